//! Listening sockets, and accepting from them.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, TcpKeepalive, Type};

use crate::config::Settings;

/// One listening socket.
pub struct Listener {
    socket: Socket,
    /// The path of a Unix socket, removed at the end.
    path: Option<PathBuf>,
}

/// A connection that has just come in.
pub struct Accepted {
    pub socket: OwnedFd,
    pub address: String,
    pub local_address: String,
    pub is_unix: bool,
    pub is_loopback: bool,
}

/// Opens all sockets that the settings name. Errors name the address.
pub fn open(settings: &Settings) -> Result<Vec<Listener>, String> {
    let mut listeners = Vec::new();
    if settings.port != 0 {
        for bind in &settings.bind {
            match open_tcp(&bind.address, settings.port, settings.tcp_backlog) {
                Ok(listener) => listeners.push(listener),
                Err(error) if bind.optional && is_unavailable(&error) => {}
                Err(error) => {
                    return Err(format!(
                        "Could not create server TCP listening socket {}:{}: {error}",
                        bind.address, settings.port
                    ));
                }
            }
        }
        if listeners.is_empty() {
            return Err(format!("no address of 'bind' is there to listen on port {}", settings.port));
        }
    }
    if let Some(path) = &settings.unixsocket {
        let opened = open_unix(path, settings.unixsocketperm, settings.tcp_backlog);
        listeners.push(opened.map_err(|error| format!("Opening Unix socket {}: {error}", path.display()))?);
    }
    Ok(listeners)
}

fn is_unavailable(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT | libc::ENOPROTOOPT)
    )
}

fn open_tcp(address: &str, port: u16, backlog: u32) -> io::Result<Listener> {
    let address: SocketAddr = match address {
        "*" => (Ipv4Addr::UNSPECIFIED, port).into(),
        "::*" => (Ipv6Addr::UNSPECIFIED, port).into(),
        name => std::net::ToSocketAddrs::to_socket_addrs(&(name, port))?
            .next()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))?,
    };
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog.min(i32::MAX as u32) as i32)?;
    socket.set_nonblocking(true)?;
    Ok(Listener { socket, path: None })
}

fn open_unix(path: &PathBuf, mode: u32, backlog: u32) -> io::Result<Listener> {
    // A socket left behind by a server that was killed would be in the way.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    if mode != 0 {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    socket.listen(backlog.min(i32::MAX as u32) as i32)?;
    socket.set_nonblocking(true)?;
    Ok(Listener { socket, path: Some(path.clone()) })
}

impl Listener {
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Takes one waiting connection; `WouldBlock` when there is none. `keepalive_s` 0 leaves keep-alive off.
    pub fn accept(&self, keepalive_s: u32) -> io::Result<Accepted> {
        let (socket, peer) = self.socket.accept()?;
        socket.set_nonblocking(true)?;
        if let Some(path) = &self.path {
            let name = format!("{}:0", path.display());
            return Ok(Accepted {
                socket: socket.into(),
                address: name.clone(),
                local_address: name,
                is_unix: true,
                is_loopback: true,
            });
        }
        socket.set_tcp_nodelay(true)?;
        if keepalive_s > 0 {
            // As Redis: a dead peer is found after about twice the interval.
            let keepalive = TcpKeepalive::new()
                .with_time(Duration::from_secs(keepalive_s.into()))
                .with_interval(Duration::from_secs((keepalive_s / 3).max(1).into()))
                .with_retries(3);
            socket.set_tcp_keepalive(&keepalive)?;
        }
        let peer = peer.as_socket();
        let local = socket.local_addr().ok().and_then(|local| local.as_socket());
        let name = |address: Option<SocketAddr>| address.map_or("?:0".into(), |address| address.to_string());
        Ok(Accepted {
            address: name(peer),
            local_address: name(local),
            is_unix: false,
            is_loopback: peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback()),
            socket: socket.into(),
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Nothing depends on it being gone.
            let _ = std::fs::remove_file(path);
        }
    }
}
