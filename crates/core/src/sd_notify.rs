//! Notifies the service manager that has started this process when clients can be served, and when the server
//! stops.
//!
//! The protocol is systemd's: a datagram of `NAME=value` lines to the socket that the environment names. A
//! manager that does not listen does not prevent service. Upstart, which requires a process to stop itself,
//! is not supported.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use evenkeel_config::Supervised;

const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// The service manager, if any; see the module's text.
#[derive(Default)]
pub struct Manager {
    /// Its socket.
    address: Option<SocketAddr>,
}

impl Manager {
    /// Returns the configured manager, or none.
    pub fn at_start(supervised: Supervised) -> Manager {
        let socket = std::env::var_os(SOCKET_VARIABLE);
        match supervised {
            Supervised::No => return Manager::default(),
            Supervised::Auto if socket.is_none() => return Manager::default(),
            Supervised::Upstart => {
                log::warn!("'supervised upstart' has no effect: upstart is not supported");
                return Manager::default();
            }
            Supervised::Auto | Supervised::Systemd => {}
        }
        let Some(socket) = socket else {
            log::warn!("systemd supervision requested, but {SOCKET_VARIABLE} not found!");
            return Manager::default();
        };
        let address = address(&socket)
            .inspect_err(|error| log::warn!("{SOCKET_VARIABLE} is not a valid socket address: {error}"));
        let manager = Manager { address: address.ok() };
        if manager.notify("STATUS=Evenkeel is loading...\n") {
            log::info!(
                "Supervised by systemd. Please make sure you set appropriate values for TimeoutStartSec and \
                 TimeoutStopSec in your service unit."
            );
            manager
        } else {
            Manager::default()
        }
    }

    pub fn is_there(&self) -> bool {
        self.address.is_some()
    }

    /// Returns the name in INFO.
    pub fn name(&self) -> &'static str {
        if self.address.is_some() { "systemd" } else { "no" }
    }

    /// Reports that clients are served.
    pub fn notify_ready(&self, is_replica: bool) {
        let status = match is_replica {
            false => "Ready to accept connections",
            true => "Ready to accept connections in read-only mode. Waiting for PRIMARY <-> REPLICA sync",
        };
        self.notify(&format!("STATUS={status}\nREADY=1\n"));
    }

    /// Reports that another process, which has taken over, is the service's main process from now on. Returns
    /// whether a manager has received it.
    pub fn notify_successor(&self, pid: u32) -> bool {
        self.notify(&format!("MAINPID={pid}\nREADY=1\nSTATUS=Ready to accept connections\n"))
    }

    /// Reports that the process stops, irrevocably.
    pub fn notify_stopping(&self) {
        self.notify("STOPPING=1\n");
    }

    /// Sends a state. Returns whether a manager has received it.
    fn notify(&self, state: &str) -> bool {
        let Some(address) = &self.address else { return false };
        let sent = UnixDatagram::unbound().and_then(|socket| {
            // Does not wait for a manager that does not read.
            socket.set_nonblocking(true)?;
            socket.send_to_addr(state.as_bytes(), address)
        });
        sent.inspect_err(|error| log::warn!("Cannot notify systemd: {error}")).is_ok()
    }
}

/// Parses a path, or the name of an abstract socket behind an `@`.
fn address(socket: &OsStr) -> io::Result<SocketAddr> {
    match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(socket),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a path nor an abstract socket name")),
    }
}
