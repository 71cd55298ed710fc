//! A connection to another node of the cluster, as a client of it.
//!
//! It logs in with `masteruser` and `masterauth`, and uses TLS with `tls-replication`. The socket does not
//! block: a thread that waits for the other node polls whether its caller still wants the connection.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use evenkeel_config::Settings;
use evenkeel_net as net;
use evenkeel_net::poll::await_events;
use evenkeel_net::tls::TlsStream;
use evenkeel_rdb::aof::push_command;
use socket2::SockAddr;

use crate::Replication;
use crate::handshake::login;
use crate::primary_connection::open;

/// Bytes of an answer at most.
const LINE_MAX: usize = 4 * 1024;

/// See the module's text.
pub struct NodeConnection {
    pub(crate) stream: net::Stream,
    /// Bytes that have come and are not taken.
    input: Vec<u8>,
    /// The longest wait for the other node, as for a primary.
    time_limit: Duration,
}

impl NodeConnection {
    /// Connects to a node and logs in. `is_wanted` is polled.
    ///
    /// # Errors
    /// The reason why there is no connection.
    pub fn connect(
        replication: &Replication,
        (host, port): (&str, u16),
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<NodeConnection, String> {
        let settings = replication.core.settings();
        let time_limit = Duration::from_secs(settings.repl_timeout.into());
        let unwanted = || "the connection is not wanted any more".to_owned();
        let failed = |error: io::Error| format!("cannot connect to {host}:{port}: {error}");
        let found = crate::addresses::of(host, port, is_wanted).ok_or_else(unwanted)?.map_err(failed)?;
        let mut last = format!("the host name {host} has no address");
        for address in found {
            let socket = match open(&settings, address, None) {
                Ok(socket) => socket,
                Err(error) => return Err(failed(error)),
            };
            match socket.connect(&SockAddr::from(address)) {
                Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => last = failed(error),
                _ => {
                    let mut stream = net::Stream::new(OwnedFd::from(socket));
                    if settings.tls_replication {
                        let contexts = replication.tls.contexts().ok_or("TLS is not configured")?;
                        let tls = TlsStream::connect(&contexts, address.ip());
                        stream.encrypt(tls.map_err(|error| format!("cannot start TLS: {error}"))?);
                    }
                    let mut connection = NodeConnection { stream, input: Vec::new(), time_limit };
                    match connection.begin(&settings, is_wanted) {
                        Ok(()) => return Ok(connection),
                        Err(error) => last = failed(error),
                    }
                }
            }
        }
        Err(last)
    }

    fn begin(&mut self, settings: &Settings, is_wanted: &dyn Fn() -> bool) -> io::Result<()> {
        let limit = Limit { until: Instant::now() + self.time_limit, is_wanted };
        limit.wait(&self.stream, libc::POLLOUT)?;
        while !self.stream.shake()? {
            let writes = self.stream.unsent() > 0;
            limit.wait(&self.stream, if writes { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN })?;
        }
        let Some(words) = login(settings) else { return Ok(()) };
        match self.ask(&words, is_wanted)? {
            answer if answer.starts_with('-') => Err(io::Error::other(answer)),
            _ => Ok(()),
        }
    }

    /// Sends a command, and waits for its reply, which is a line. `is_wanted` is polled.
    pub(crate) fn ask(&mut self, words: &[&[u8]], is_wanted: &dyn Fn() -> bool) -> io::Result<String> {
        let limit = Limit { until: Instant::now() + self.time_limit, is_wanted };
        let mut bytes = Vec::new();
        push_command(&mut bytes, words);
        self.send_all(&bytes, &limit)?;
        loop {
            if let Some(line) = self.line()? {
                return Ok(line);
            }
            if !self.receive()? {
                limit.wait(&self.stream, libc::POLLIN)?;
            }
        }
    }

    /// Sends commands. `is_wanted` is polled.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send(&mut self, bytes: &[u8], is_wanted: &dyn Fn() -> bool) -> io::Result<()> {
        self.send_all(bytes, &Limit { until: Instant::now() + self.time_limit, is_wanted })
    }

    /// Takes the replies that have come, which are lines. Returns the first error among them.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn take_replies(&mut self) -> io::Result<Option<String>> {
        while self.receive()? {}
        let mut first = None;
        while let Some(line) = self.line()? {
            first = first.or_else(|| line.strip_prefix('-').map(str::to_owned));
        }
        Ok(first)
    }

    fn send_all(&mut self, bytes: &[u8], limit: &Limit<'_>) -> io::Result<()> {
        let mut sent = 0;
        while sent < bytes.len() || self.stream.unsent() > 0 {
            let is_sealed = self.stream.send_sealed()?;
            sent += if is_sealed { self.stream.write(&bytes[sent..])? } else { 0 };
            if sent < bytes.len() || self.stream.unsent() > 0 {
                limit.wait(&self.stream, libc::POLLOUT)?;
            }
        }
        Ok(())
    }

    /// Reads the bytes that the socket has. Returns false if it has none.
    pub(crate) fn receive(&mut self) -> io::Result<bool> {
        let mut piece = [0; 4096];
        match self.stream.read(&mut piece) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the target closed the connection")),
            Ok(got) => {
                self.input.extend_from_slice(&piece[..got]);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Takes the next line that has come.
    pub(crate) fn line(&mut self) -> io::Result<Option<String>> {
        let Some(end) = self.input.iter().position(|byte| *byte == b'\n') else {
            return match self.input.len() > LINE_MAX {
                true => Err(io::Error::other("the answer of the target is too long")),
                false => Ok(None),
            };
        };
        let line = self.input.drain(..=end).collect::<Vec<u8>>();
        Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()))
    }
}

/// The longest wait for the other node, as for a primary.
struct Limit<'a> {
    until: Instant,
    is_wanted: &'a dyn Fn() -> bool,
}

impl Limit<'_> {
    fn wait(&self, stream: &net::Stream, events: i16) -> io::Result<()> {
        const SLICE: Duration = Duration::from_millis(50);
        loop {
            if !(self.is_wanted)() {
                return Err(io::Error::other("it is not wanted any more"));
            }
            if Instant::now() >= self.until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if await_events(stream.fd().as_raw_fd(), events, SLICE)? != 0 {
                return Ok(());
            }
        }
    }
}
