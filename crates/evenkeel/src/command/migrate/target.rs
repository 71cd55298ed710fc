//! The servers that MIGRATE sends keys to, and the connections to them.
//!
//! Who moves many keys often does so one by one, so a connection is kept for some seconds after its use. Only one that
//! has answered all it was asked is kept, and only for calls with the same credentials: another caller is not to have
//! the rights of the last one.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_resp::value::{Value as Answer, decode};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

/// How long a connection is kept that nobody uses, as in Redis.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// Connections kept at most, as in Redis.
const KEPT_MAX: usize = 64;

/// Bytes of an answer, at most: they are short lines.
const ANSWER_MAX: usize = 64 * 1024;

/// Another server, and as whom to talk to it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) host: String,
    pub(super) port: u16,
    /// Arguments of AUTH, or none.
    pub(super) credentials: Vec<Vec<u8>>,
    /// Whether that is said over TLS.
    pub(super) is_encrypted: bool,
}

enum Stream {
    Plain(TcpStream),
    Encrypted(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// Connects, and shakes hands where it is to be encrypted.
    fn connect(
        address: &SocketAddr,
        timeout: Duration,
        tls: Option<&Arc<ClientConfig>>,
    ) -> io::Result<Stream> {
        let mut socket = TcpStream::connect_timeout(address, timeout)?;
        socket.set_nodelay(true)?;
        set_timeout(&socket, timeout)?;
        let Some(config) = tls else { return Ok(Stream::Plain(socket)) };
        let name = ServerName::IpAddress(address.ip().into());
        let mut connection = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut socket)?;
        }
        Ok(Stream::Encrypted(Box::new(StreamOwned::new(connection, socket))))
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Encrypted(stream) => &stream.sock,
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.write_all(bytes),
            Stream::Encrypted(stream) => stream.write_all(bytes),
        }
    }

    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(piece),
            Stream::Encrypted(stream) => stream.read(piece),
        }
    }
}

fn set_timeout(socket: &TcpStream, timeout: Duration) -> io::Result<()> {
    socket.set_read_timeout(Some(timeout))?;
    socket.set_write_timeout(Some(timeout))
}

/// A connection to it.
pub(super) struct Target {
    who: Who,
    stream: Stream,
    read: Vec<u8>,
    /// When it was used last.
    used: Instant,
}

impl Target {
    /// `tls` encrypts where the target asks for that.
    pub(super) fn connect(
        who: &Who,
        timeout: Duration,
        tls: Option<&Arc<ClientConfig>>,
    ) -> io::Result<Target> {
        if who.is_encrypted && tls.is_none() {
            return Err(io::Error::other("TLS is not configured"));
        }
        let tls = tls.filter(|_| who.is_encrypted);
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in (who.host.as_str(), who.port).to_socket_addrs()? {
            match Stream::connect(&address, timeout, tls) {
                Ok(stream) => {
                    return Ok(Target { who: who.clone(), stream, read: Vec::new(), used: Instant::now() });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// For each write and read from now on.
    pub(super) fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        set_timeout(self.stream.socket(), timeout)
    }

    /// Sends a request and waits for the answer. After an error the connection is of no use.
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
    /// A connection to `who` for the caller alone.
    pub(super) fn take(&self, who: &Who) -> Option<Target> {
        let mut kept = self.0.lock();
        let at = kept.iter().position(|target| target.who == *who)?;
        Some(kept.swap_remove(at))
    }

    /// Keeps a connection that has answered everything; the one that has been unused for longest makes room for it.
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

    /// Closes what nobody has used for a while.
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
    fn a_connection_is_kept_for_the_same_caller_and_for_some_time() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let (one, other) = (who(&listener, "one"), who(&listener, "other"));
        let targets = Targets::default();
        let connect = || Target::connect(&one, Duration::from_secs(5), None).expect("somebody listens");
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
    fn the_oldest_makes_room() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let targets = Targets::default();
        for number in 0..=KEPT_MAX {
            let who = who(&listener, &number.to_string());
            targets.keep(Target::connect(&who, Duration::from_secs(5), None).expect("somebody listens"));
        }
        assert_eq!(targets.kept(), KEPT_MAX);
        assert!(targets.take(&who(&listener, "0")).is_none());
        assert!(targets.take(&who(&listener, "1")).is_some());
    }
}
