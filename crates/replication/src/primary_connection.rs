//! The connection to the primary: bytes and lines, with checks for events that end it.
//!
//! The thread waits in slices of [`WANTED_POLL_INTERVAL`]. Between two slices it checks whether the server
//! ends, the target has changed, or a client has killed the link. So REPLICAOF does not wait for a network
//! timeout.
//!
//! A primary is silent if nothing can be read, and nothing has been for `repl-timeout`. A busy thread reads
//! nothing. So it tries to read before it checks the silence, and does not check it while it sends.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::Replication;
use super::link::{Phase, Target};
use super::target::PREDECESSOR;
use evenkeel_client::clients::ClientInfo;
use evenkeel_config::Settings;
use evenkeel_net::poll::await_events;
use evenkeel_net::tls::TlsStream;
use evenkeel_runtime::clock;

/// The longest delay before the thread notices that the link is no longer wanted.
const WANTED_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Bytes of a line of the handshake, at most.
const LINE_MAX: usize = 64 * 1024;

/// The reason why a link ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The server stops, or has another target, or none.
    Superseded,
    /// For this reason. The stream may continue at its position.
    Broken(String),
    /// This server and the primary do not agree about the primary yet.
    TooEarly(String),
    /// The primary refuses the request, so the next request must be another.
    Refused(String),
    /// This server cannot accept the coming data. Each attempt ends like this until the configuration
    /// changes.
    Unfit(String),
    /// The received bytes are invalid, so the position in the stream is lost.
    Garbled(String),
}

impl Ended {
    pub(super) fn broken(reason: impl Into<String>) -> Ended {
        Ended::Broken(reason.into())
    }
}

/// A connection to the primary, closed on drop.
pub(super) struct PrimaryConnection {
    replication: Arc<Replication>,
    stream: TcpStream,
    /// With `tls-replication`.
    tls_stream: Option<Box<TlsStream>>,
    /// The primary is the process that hands its data over to this process.
    pub(super) is_predecessor: bool,
    /// The number of the link.
    generation: u64,
    pub(super) client: Arc<ClientInfo>,
    /// The time of the last received bytes.
    last_received: Instant,
    /// Received bytes, not consumed from `taken` on.
    ahead: Vec<u8>,
    taken: usize,
}

impl PrimaryConnection {
    pub(super) fn connect(
        replication: &Arc<Replication>,
        target: &Target,
        generation: u64,
    ) -> Result<PrimaryConnection, Ended> {
        if target.is_predecessor() {
            return PrimaryConnection::to_predecessor(replication, generation);
        }
        let settings = replication.core.settings();
        let failed = |error: io::Error| Ended::Broken(format!("Unable to connect to PRIMARY: {error}"));
        let mut last = Ended::broken("Unable to connect to PRIMARY: the host name has no address");
        let is_wanted =
            || replication.link.generation() == generation && !replication.core.stopping.load(Acquire);
        let resolve = |host: &str, port| match super::addresses::of(host, port, is_wanted) {
            Some(found) => found.map_err(failed),
            None => Err(Ended::Superseded),
        };
        let sources = match &settings.bind_source_addr[..] {
            [] => None,
            text => Some(resolve(&String::from_utf8_lossy(text), 0)?),
        };
        for address in resolve(&target.host, target.port)? {
            match PrimaryConnection::connect_to(
                replication,
                &settings,
                (address, sources.as_deref()),
                generation,
            ) {
                Err(Ended::Broken(reason)) => last = Ended::Broken(reason),
                other => return other,
            }
        }
        Err(last)
    }

    /// Uses the socket that the other process has passed on: there is one such connection.
    fn to_predecessor(replication: &Arc<Replication>, generation: u64) -> Result<PrimaryConnection, Ended> {
        let socket = replication.link.predecessor.lock().take();
        let socket = socket.ok_or_else(|| Ended::broken("The connection to the former process is lost"))?;
        let stream = TcpStream::from(socket);
        stream.set_nonblocking(true).map_err(sending_failed)?;
        let (id, fd) = (replication.hub.clients.next_id(), stream.as_raw_fd());
        let client = ClientInfo::new(id, PREDECESSOR.to_owned(), String::new(), fd, true, clock::unix_ms());
        client.is_primary.store(true, Relaxed);
        Ok(PrimaryConnection {
            replication: replication.clone(),
            stream,
            tls_stream: None,
            is_predecessor: true,
            generation,
            client: Arc::new(client),
            last_received: Instant::now(),
            ahead: Vec::new(),
            taken: 0,
        })
    }

    fn connect_to(
        replication: &Arc<Replication>,
        settings: &Settings,
        (address, sources): (SocketAddr, Option<&[SocketAddr]>),
        generation: u64,
    ) -> Result<PrimaryConnection, Ended> {
        let failed = |error: io::Error| Ended::Broken(format!("Error condition on socket for SYNC: {error}"));
        let socket = open(settings, address, sources).map_err(failed)?;
        match socket.connect(&SockAddr::from(address)) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(failed(error)),
            _ => {}
        }
        let stream = TcpStream::from(socket);
        let client = client_of(replication, &stream, address);
        let tls_stream = tls_stream_to(replication, settings, address)?;
        let (replication, last_received, ahead) = (replication.clone(), Instant::now(), Vec::new());
        let mut conn = PrimaryConnection {
            replication,
            stream,
            tls_stream,
            is_predecessor: false,
            generation,
            client,
            last_received,
            ahead,
            taken: 0,
        };
        conn.wait(libc::POLLOUT)?;
        if let Some(error) = conn.stream.take_error().map_err(failed)? {
            return Err(failed(error));
        }
        // The local address is known now.
        conn.client = client_of(&conn.replication, &conn.stream, address);
        conn.shake()?;
        Ok(conn)
    }

    /// Does the TLS handshake, if TLS is on.
    fn shake(&mut self) -> Result<(), Ended> {
        while let Some(tls_stream) = &mut self.tls_stream {
            let done = tls_stream.shake(self.stream.as_fd());
            let wants = if tls_stream.unsent() > 0 { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
            match done {
                Ok(true) => break,
                Ok(false) => self.wait(wants)?,
                Err(error) => {
                    return Err(Ended::Broken(format!("The TLS handshake with the master failed: {error}")));
                }
            }
        }
        Ok(())
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls_stream {
            None => self.stream.read(into),
            Some(tls_stream) => tls_stream.read(self.stream.as_fd(), into),
        }
    }

    /// Writes a part of the bytes; `WouldBlock` if none can be written.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls_stream) = &mut self.tls_stream else { return self.stream.write(bytes) };
        match tls_stream.write(self.stream.as_fd(), &[IoSlice::new(bytes)])? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            taken => Ok(taken),
        }
    }

    /// Whether bytes that count as written have not been sent.
    fn has_unsent(&mut self) -> io::Result<bool> {
        let fd = self.stream.as_fd();
        self.tls_stream.as_mut().map_or(Ok(false), |tls_stream| tls_stream.flush(fd).map(|all| !all))
    }

    /// Receives at least a byte.
    pub(super) fn receive(&mut self, into: &mut [u8]) -> Result<usize, Ended> {
        loop {
            if let Some(got) = self.receive_within(into, Duration::MAX)? {
                return Ok(got);
            }
        }
    }

    /// The same; `None`: nothing has arrived within `timeout`.
    pub(super) fn receive_within(
        &mut self,
        into: &mut [u8],
        timeout: Duration,
    ) -> Result<Option<usize>, Ended> {
        let ahead = &self.ahead[self.taken..];
        if !ahead.is_empty() {
            let len = ahead.len().min(into.len());
            into[..len].copy_from_slice(&ahead[..len]);
            self.taken += len;
            return Ok(Some(len));
        }
        let until = Instant::now().checked_add(timeout);
        loop {
            self.check()?;
            match self.read(into) {
                Ok(0) => return Err(Ended::broken("Connection with master lost.")),
                Ok(got) => {
                    self.last_received = Instant::now();
                    self.note(got);
                    return Ok(Some(got));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.check_silence(self.last_received)?;
                    if until.is_some_and(|until| Instant::now() >= until) {
                        return Ok(None);
                    }
                    let look = if self.replication.core.purge.follow_a_slice() {
                        Duration::ZERO
                    } else {
                        WANTED_POLL_INTERVAL
                    };
                    let left = until.map_or(look, |until| until.saturating_duration_since(Instant::now()));
                    self.poll(libc::POLLIN, left.min(look))?;
                }
                Err(error) => {
                    return Err(Ended::Broken(format!("Connection with master lost: {error}")));
                }
            }
        }
    }

    fn note(&self, got: usize) {
        self.client.net_in.fetch_add(got as u64, Relaxed);
        self.client.active_ms.store(clock::unix_ms(), Relaxed);
        let metrics = &self.replication.link.metrics;
        metrics.bytes_in.fetch_add(got as u64, Relaxed);
        metrics.last_io_ms.store(clock::unix_ms(), Relaxed);
    }

    /// Sends all bytes.
    pub(super) fn send(&mut self, mut bytes: &[u8]) -> Result<(), Ended> {
        self.client.net_out.fetch_add(bytes.len() as u64, Relaxed);
        self.replication.link.metrics.bytes_out.fetch_add(bytes.len() as u64, Relaxed);
        while !bytes.is_empty() {
            self.check()?;
            match self.write(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(libc::POLLOUT)?,
                Err(error) => return Err(sending_failed(error)),
            }
        }
        while self.has_unsent().map_err(sending_failed)? {
            self.wait(libc::POLLOUT)?;
        }
        Ok(())
    }

    /// Sends a command.
    pub(super) fn send_command(&mut self, words: &[&[u8]]) -> Result<(), Ended> {
        let mut bytes = Vec::new();
        evenkeel_rdb::aof::push_command(&mut bytes, words);
        self.send(&bytes)
    }

    /// The next line, without its end. An empty line is only a sign of life.
    pub(super) fn line(&mut self) -> Result<Vec<u8>, Ended> {
        loop {
            let ahead = &self.ahead[self.taken..];
            if let Some(end) = ahead.iter().position(|byte| *byte == b'\n') {
                let line = ahead[..end].strip_suffix(b"\r").unwrap_or(&ahead[..end]).to_vec();
                self.taken += end + 1;
                return Ok(line);
            }
            if ahead.len() > LINE_MAX {
                return Err(Ended::Garbled("the reply of the master is too long".into()));
            }
            let mut ahead = ahead.to_vec();
            (self.ahead, self.taken) = (Vec::new(), 0);
            let mut piece = [0; 4096];
            let got = self.receive(&mut piece)?;
            ahead.extend_from_slice(&piece[..got]);
            self.ahead = ahead;
        }
    }

    /// Restarts the measurement of silence: a primary sends nothing until its snapshot has been loaded.
    pub(super) fn begin_to_listen(&mut self) {
        self.last_received = Instant::now();
    }

    /// Waits until the socket is ready for `events`.
    fn wait(&mut self, events: i16) -> Result<(), Ended> {
        let began = Instant::now();
        loop {
            self.check()?;
            self.check_silence(began)?;
            if self.poll(events, WANTED_POLL_INTERVAL)? {
                self.last_received = Instant::now();
                return Ok(());
            }
        }
    }

    fn poll(&self, events: i16, timeout: Duration) -> Result<bool, Ended> {
        let timeout = timeout.clamp(Duration::from_millis(1), WANTED_POLL_INTERVAL);
        let seen = await_events(self.stream.as_raw_fd(), events, timeout);
        seen.map(|seen| seen != 0).map_err(|error| Ended::Broken(error.to_string()))
    }

    /// Checks that the link is still wanted, and no client has killed it.
    pub(super) fn check(&self) -> Result<(), Ended> {
        if self.replication.core.stopping.load(Acquire)
            || self.replication.link.generation() != self.generation
        {
            return Err(Ended::Superseded);
        }
        if self.client.killed.load(Relaxed) {
            return Err(Ended::broken("Connection with master lost: it was killed by a client."));
        }
        Ok(())
    }

    /// Checks that the silence since then is within `repl-timeout`.
    fn check_silence(&self, since: Instant) -> Result<(), Ended> {
        let timeout = Duration::from_secs(self.replication.core.settings().repl_timeout.into());
        if since.elapsed() > timeout {
            let is_up = self.replication.link.phase() >= Phase::Transfer;
            return Err(Ended::broken(match is_up {
                true => "PRIMARY timeout: no data nor PING received...",
                false => "Timeout connecting to the PRIMARY...",
            }));
        }
        Ok(())
    }
}

fn sending_failed(error: io::Error) -> Ended {
    Ended::Broken(format!("Sending to the master failed: {error}"))
}

/// The TLS stream of the link, if TLS is on.
fn tls_stream_to(
    replication: &Replication,
    settings: &Settings,
    address: SocketAddr,
) -> Result<Option<Box<TlsStream>>, Ended> {
    if !settings.tls_replication {
        return Ok(None);
    }
    let contexts =
        replication.tls.contexts().ok_or_else(|| Ended::broken("TLS is not configured for replication"))?;
    let tls_stream = TlsStream::connect(&contexts, address.ip());
    let tls_stream = tls_stream
        .map_err(|error| Ended::Broken(format!("Cannot start TLS for the link to the master: {error}")))?;
    Ok(Some(Box::new(tls_stream)))
}

/// The primary, as CLIENT LIST shows it.
fn client_of(replication: &Replication, stream: &TcpStream, address: SocketAddr) -> Arc<ClientInfo> {
    let local = stream.local_addr().map_or_else(|_| String::new(), |local| local.to_string());
    let (id, fd) = (replication.hub.clients.next_id(), stream.as_raw_fd());
    let client = ClientInfo::new(id, address.to_string(), local, fd, false, clock::unix_ms());
    client.is_primary.store(true, Relaxed);
    Arc::new(client)
}

/// Opens a socket. `sources`: the local addresses to choose from, if configured.
pub(super) fn open(
    settings: &Settings,
    address: SocketAddr,
    sources: Option<&[SocketAddr]>,
) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(sources) = sources {
        let source = sources.iter().find(|one| one.is_ipv4() == address.is_ipv4());
        let source = source.ok_or(io::ErrorKind::AddrNotAvailable)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SockAddr::from(*source))?;
    }
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    if settings.tcp_keepalive > 0 {
        socket.set_keepalive(true)?;
    }
    Ok(socket)
}
