//! A connection to the server: over TCP, a Unix socket or TLS, with pipelined commands.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_resp::value::{Scanner, Value, decode, encode_command};
use rustls::ClientConfig;

use crate::options::Options;
use crate::text::escaped;
use crate::tls::{self, TlsStream};

/// Longest time to connect, and to wait for the replies of a poll.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Longest reply: CLIENT LIST of 200,000 clients.
const REPLY_LEN_MAX: usize = 64 << 20;

/// Name under which CLIENT LIST shows the connection.
const NAME: &str = "evenkeel-top";

/// The way to the server, and the login there.
pub(crate) struct Target {
    options: Options,
    password: Option<String>,
    tls: Option<Arc<ClientConfig>>,
}

impl Target {
    /// Reads the files that the options name.
    pub(crate) fn new(options: Options, password: Option<String>) -> Result<Target, String> {
        let tls = if options.tls { Some(tls::config(&options)?) } else { None };
        Ok(Target { options, password, tls })
    }

    /// Connects and logs in.
    pub(crate) fn connect(&self) -> Result<Connection, String> {
        let mut connection = Connection { stream: self.stream()?, received: Vec::new() };
        let mut commands: Vec<Vec<&str>> = Vec::new();
        match (&self.options.user, &self.password) {
            (Some(user), password) => commands.push(vec!["AUTH", user, password.as_deref().unwrap_or("")]),
            (None, Some(password)) => commands.push(vec!["AUTH", password]),
            (None, None) => {}
        }
        commands.push(vec!["CLIENT", "SETNAME", NAME]);
        let replies = connection.exchange(&commands)?;
        // A server may not know CLIENT, or a user may not run it: only a refused login matters.
        let refused = |reply: &&Value| {
            let text = error_text(reply).unwrap_or_default();
            let is_login = ["NOAUTH", "WRONGPASS"].iter().any(|code| text.starts_with(code));
            is_login || (self.password.is_some() && std::ptr::eq(*reply, &replies[0]) && reply.is_error())
        };
        match replies.iter().find(refused) {
            Some(reply) => Err(error_text(reply).unwrap_or_default()),
            None => Ok(connection),
        }
    }

    fn stream(&self) -> Result<Stream, String> {
        if let Some(path) = &self.options.socket {
            let stream = UnixStream::connect(path).map_err(|error| cause(&error))?;
            set_timeouts(|wait| stream.set_read_timeout(wait).and(stream.set_write_timeout(wait)))?;
            return Ok(Stream::Unix(stream));
        }
        let stream = tcp(&self.options.host, self.options.port).map_err(|error| cause(&error))?;
        set_timeouts(|wait| stream.set_read_timeout(wait).and(stream.set_write_timeout(wait)))?;
        stream.set_nodelay(true).map_err(|error| cause(&error))?;
        match &self.tls {
            None => Ok(Stream::Tcp(stream)),
            Some(config) => {
                let stream = tls::connect(config, &self.options.host, stream)?;
                Ok(Stream::Tls(Box::new(stream)))
            }
        }
    }
}

fn set_timeouts(set: impl Fn(Option<Duration>) -> io::Result<()>) -> Result<(), String> {
    set(Some(TIMEOUT)).map_err(|error| cause(&error))
}

/// Tries the addresses of a host in turn.
fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Returns the text of an error reply, escaped.
pub(crate) fn error_text(reply: &Value) -> Option<String> {
    match reply {
        Value::Error(text) | Value::BlobError(text) => Some(escaped(text)),
        _ => None,
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream>),
}

impl Stream {
    fn read(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(chunk),
            Stream::Unix(stream) => stream.read(chunk),
            Stream::Tls(stream) => stream.read(chunk),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Unix(stream) => stream.write_all(bytes),
            Stream::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }
}

pub(crate) struct Connection {
    stream: Stream,
    /// Bytes received behind the last reply.
    received: Vec<u8>,
}

impl Connection {
    /// Sends all commands at once and returns their replies.
    pub(crate) fn exchange<A: AsRef<[u8]>>(&mut self, commands: &[Vec<A>]) -> Result<Vec<Value>, String> {
        let request: Vec<u8> = commands.iter().flat_map(|command| encode_command(command)).collect();
        let deadline = Instant::now() + TIMEOUT;
        self.stream.send(&request).map_err(|error| cause(&error))?;
        commands.iter().map(|_| self.reply(deadline)).collect()
    }

    /// Reads a reply; messages that answer no command are skipped.
    fn reply(&mut self, deadline: Instant) -> Result<Value, String> {
        let mut scanner = Scanner::new();
        loop {
            match scanner.scan(&self.received).map_err(|error| error.to_string())? {
                Some(end) => {
                    let decoded = decode(&self.received[..end]).map_err(|error| error.to_string())?;
                    self.received.drain(..end);
                    match decoded {
                        Some((Value::Push(_), _)) | None => scanner = Scanner::new(),
                        Some((reply, _)) => return Ok(reply),
                    }
                }
                None => self.receive(deadline)?,
            }
        }
    }

    fn receive(&mut self, deadline: Instant) -> Result<(), String> {
        if self.received.len() > REPLY_LEN_MAX {
            return Err(format!("a reply is longer than {REPLY_LEN_MAX} bytes"));
        }
        if Instant::now() > deadline {
            return Err("the server does not answer".into());
        }
        let mut chunk = [0; 64 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err("the server closed the connection".into()),
            Ok(length) => {
                self.received.extend_from_slice(&chunk[..length]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(cause(&error)),
        }
    }
}

/// Returns the reason of a failed connection, without the number that Rust appends to the system's text.
fn cause(error: &io::Error) -> String {
    match error.kind() {
        // A read that times out returns `WouldBlock` on Linux.
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "the server does not answer".into(),
        io::ErrorKind::UnexpectedEof => "the server closed the connection".into(),
        _ => {
            let text = escaped(error.to_string().as_bytes());
            text.split(" (os error").next().unwrap_or_default().to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a command against a server that sends `answer` and hangs up.
    fn answered(answer: &'static [u8]) -> Result<Vec<Value>, String> {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        let server = std::thread::spawn(move || {
            let mut request = [0; 64];
            let _ = theirs.read(&mut request);
            theirs.write_all(answer)
        });
        let mut connection = Connection { stream: Stream::Unix(ours), received: Vec::new() };
        let replies = connection.exchange(&[vec!["PING"], vec!["PING"]]);
        server.join().expect("no panic").expect("written");
        replies
    }

    #[test]
    fn messages_between_replies_are_skipped() {
        let replies = answered(b"+a\r\n>1\r\n+pushed\r\n-ERR b\r\n");
        assert_eq!(replies, Ok(vec![Value::Simple(b"a".to_vec()), Value::Error(b"ERR b".to_vec())]));
    }

    #[test]
    fn a_server_that_speaks_otherwise_is_an_error() {
        assert!(answered(b"HTTP/1.1 400 Bad Request\r\n\r\n").is_err());
        assert_eq!(answered(b"+a\r\n"), Err("the server closed the connection".into()));
    }
}
