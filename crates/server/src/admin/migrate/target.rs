//! The servers that MIGRATE sends keys to, and the connections to them.
//!
//! A client that moves many keys often moves them singly, so a connection is kept for some seconds after its
//! use. It is kept only if it has answered all requests, and only for calls with the same credentials:
//! another caller must not get the rights of the last caller.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenkeel_resp::value::{Value as Answer, decode};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use evenkeel_net::poll::await_events;

/// How long an unused connection is kept, as in Redis.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// Connections kept at most, as in Redis.
const KEPT_MAX: usize = 64;

/// Poll interval of a wait: the longest delay before it notices that the client has gone.
const CLIENT_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum bytes of an answer; answers are short lines.
const ANSWER_MAX: usize = 64 * 1024;

/// Another server, and the credentials for it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) host: String,
    pub(super) port: u16,
    /// Arguments of AUTH, or none.
    pub(super) credentials: Vec<Vec<u8>>,
    /// Whether the connection uses TLS.
    pub(super) is_encrypted: bool,
}

/// The limits of a wait for the other server.
#[derive(Clone)]
pub(super) struct WaitLimit {
    /// For each write and read, and for the connection.
    timeout: Duration,
    /// Set when the client has gone.
    nobody_waits: Arc<AtomicBool>,
}

impl WaitLimit {
    pub(super) fn new(timeout: Duration, nobody_waits: &Arc<AtomicBool>) -> WaitLimit {
        WaitLimit { timeout, nobody_waits: nobody_waits.clone() }
    }
}

/// A socket that waits in slices of [`CLIENT_POLL_INTERVAL`], and checks between them whether the client has
/// gone.
struct Line {
    socket: TcpStream,
    wait_limit: WaitLimit,
}

impl Line {
    fn connect(address: &SocketAddr, wait_limit: WaitLimit) -> io::Result<Line> {
        let socket = Socket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&SockAddr::from(*address)) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
            _ => {}
        }
        let line = Line { socket: socket.into(), wait_limit };
        line.wait(libc::POLLOUT)?;
        line.socket.take_error()?.map_or(Ok(line), Err)
    }

    fn wait(&self, events: i16) -> io::Result<()> {
        let began = Instant::now();
        while !self.wait_limit.nobody_waits.load(Relaxed) {
            let left = self.wait_limit.timeout.saturating_sub(began.elapsed());
            if await_events(self.socket.as_raw_fd(), events, left.min(CLIENT_POLL_INTERVAL))? != 0 {
                return Ok(());
            }
            if left.is_zero() {
                break;
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Runs an operation that would block, and repeats it once the socket is ready.
    fn insist<R>(
        &mut self,
        events: i16,
        mut once: impl FnMut(&mut TcpStream) -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            match once(&mut self.socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(events)?,
                done => return done,
            }
        }
    }
}

impl Read for Line {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        self.insist(libc::POLLIN, |socket| socket.read(piece))
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.insist(libc::POLLOUT, |socket| socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Stream {
    Plain(Line),
    Encrypted(Box<StreamOwned<ClientConnection, Line>>),
}

impl Stream {
    /// Connects, with a TLS handshake if the connection is to be encrypted.
    fn connect(
        address: &SocketAddr,
        wait_limit: WaitLimit,
        tls: Option<&Arc<ClientConfig>>,
    ) -> io::Result<Stream> {
        let mut line = Line::connect(address, wait_limit)?;
        let Some(config) = tls else { return Ok(Stream::Plain(line)) };
        let name = ServerName::IpAddress(address.ip().into());
        let mut connection = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut line)?;
        }
        Ok(Stream::Encrypted(Box::new(StreamOwned::new(connection, line))))
    }

    fn line(&mut self) -> &mut Line {
        match self {
            Stream::Plain(line) => line,
            Stream::Encrypted(stream) => &mut stream.sock,
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Plain(line) => line.write_all(bytes),
            Stream::Encrypted(stream) => stream.write_all(bytes),
        }
    }

    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(line) => line.read(piece),
            Stream::Encrypted(stream) => stream.read(piece),
        }
    }
}

/// A connection to a target.
pub(super) struct Target {
    who: Who,
    stream: Stream,
    read: Vec<u8>,
    /// When it was last used.
    used: Instant,
}

impl Target {
    /// `tls` encrypts if the target asks for that.
    pub(super) fn connect(
        who: &Who,
        wait_limit: &WaitLimit,
        tls: Option<&Arc<ClientConfig>>,
    ) -> io::Result<Target> {
        if who.is_encrypted && tls.is_none() {
            return Err(io::Error::other("TLS is not configured"));
        }
        let tls = tls.filter(|_| who.is_encrypted);
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in (who.host.as_str(), who.port).to_socket_addrs()? {
            match Stream::connect(&address, wait_limit.clone(), tls) {
                Ok(stream) => {
                    return Ok(Target { who: who.clone(), stream, read: Vec::new(), used: Instant::now() });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sets the limits of waits from now on.
    pub(super) fn set_wait_limit(&mut self, wait_limit: WaitLimit) {
        self.stream.line().wait_limit = wait_limit;
    }

    /// Sends a request and waits for the answer. After an error the connection is unusable.
    pub(super) fn ask(&mut self, words: &[&[u8]]) -> io::Result<Answer> {
        self.send(words)?;
        self.answer()
    }

    fn send(&mut self, words: &[&[u8]]) -> io::Result<()> {
        let mut head = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            head.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            self.stream.write_all(&head)?;
            self.stream.write_all(word)?;
            head = b"\r\n".to_vec();
        }
        self.stream.write_all(&head)
    }

    fn answer(&mut self) -> io::Result<Answer> {
        let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
        loop {
            if let Some((answer, used)) = decode(&self.read).map_err(|_| ended())? {
                self.read.drain(..used);
                return Ok(answer);
            }
            let mut piece = [0; 4096];
            let got = self.stream.read(&mut piece).map_err(|_| ended())?;
            if got == 0 || self.read.len() > ANSWER_MAX {
                return Err(ended());
            }
            self.read.extend_from_slice(&piece[..got]);
        }
    }
}

/// Connections that are not in use.
#[derive(Default)]
pub(crate) struct Targets(Mutex<Vec<Target>>);

impl Targets {
    /// Takes a connection to this target, for the caller alone.
    pub(super) fn take(&self, who: &Who) -> Option<Target> {
        let mut kept = self.0.lock();
        let at = kept.iter().position(|target| target.who == *who)?;
        Some(kept.swap_remove(at))
    }

    /// Keeps a connection without outstanding answers; the longest unused connection makes room for it.
    pub(super) fn keep(&self, mut target: Target) {
        if !target.read.is_empty() {
            return;
        }
        target.used = Instant::now();
        let mut kept = self.0.lock();
        if kept.len() >= KEPT_MAX
            && let Some(oldest) = (0..kept.len()).min_by_key(|at| kept[*at].used)
        {
            kept.swap_remove(oldest);
        }
        kept.push(target);
    }

    /// Closes connections that were unused for a while.
    pub(crate) fn close_idle(&self) {
        self.0.lock().retain(|target| target.used.elapsed() < IDLE_MAX);
    }

    pub(crate) fn kept(&self) -> usize {
        self.0.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn wait_limit() -> WaitLimit {
        WaitLimit::new(Duration::from_secs(5), &Arc::default())
    }

    fn who(listener: &TcpListener, password: &str) -> Who {
        let address = listener.local_addr().expect("it is bound");
        Who {
            host: address.ip().to_string(),
            port: address.port(),
            credentials: vec![password.as_bytes().to_vec()],
            is_encrypted: false,
        }
    }

    #[test]
    fn connections_are_cached_per_caller_until_they_expire() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let (one, other) = (who(&listener, "one"), who(&listener, "other"));
        let targets = Targets::default();
        let connect = || Target::connect(&one, &wait_limit(), None).expect("somebody listens");
        targets.keep(connect());
        targets.close_idle();
        assert_eq!(targets.kept(), 1);
        assert!(targets.take(&other).is_none(), "with other credentials it is another one");
        let mut target = targets.take(&one).expect("it was kept");
        assert!(targets.take(&one).is_none(), "nobody else gets it meanwhile");
        target.read.push(b'+');
        targets.keep(target);
        assert_eq!(targets.kept(), 0, "an answer without a question is not read by the next caller");
        targets.keep(connect());
        let Some(long_ago) = Instant::now().checked_sub(IDLE_MAX) else { return };
        targets.0.lock()[0].used = long_ago;
        targets.close_idle();
        assert_eq!(targets.kept(), 0);
    }

    #[test]
    fn the_oldest_connection_is_evicted() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let targets = Targets::default();
        for number in 0..=KEPT_MAX {
            let who = who(&listener, &number.to_string());
            targets.keep(Target::connect(&who, &wait_limit(), None).expect("somebody listens"));
        }
        assert_eq!(targets.kept(), KEPT_MAX);
        assert!(targets.take(&who(&listener, "0")).is_none());
        assert!(targets.take(&who(&listener, "1")).is_some());
    }
}
