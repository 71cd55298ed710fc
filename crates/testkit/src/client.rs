//! A small blocking client: exact about bytes, impatient by default, and indifferent to the content that it
//! sends.
//!
//! Methods for the plain case (`call`, `run`, `read`) panic with a readable text when the connection fails:
//! in a test that is the failure. The `try_` forms return the error, for tests in which the server is
//! expected to hang up.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_resp::value::{Scanner, Value, decode, encode_command};

use crate::words;

/// Longer than any answer of a healthy server on a busy two-core machine, shorter than a developer's
/// patience.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
const CHUNK: usize = 64 * 1024;

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Other(Box<dyn Transport>),
}

/// A transport other than a plain socket: TLS, or a socket that misbehaves.
pub trait Transport: Read + Write + Send {
    fn set_read_timeout(&self, wait: Duration) -> io::Result<()>;
    fn set_write_timeout(&self, wait: Duration) -> io::Result<()>;
    fn finish_sending(&mut self) -> io::Result<()>;
}

pub struct Client {
    stream: Stream,
    /// Received bytes. The bytes before `read` have been handed out. `read <= received.len()`.
    received: Vec<u8>,
    read: usize,
    wait: Duration,
}

impl Client {
    pub fn connect(address: SocketAddr) -> io::Result<Client> {
        let stream = TcpStream::connect_timeout(&address, REPLY_TIMEOUT)?;
        stream.set_nodelay(true)?;
        Ok(Client::over(Stream::Tcp(stream)))
    }

    pub fn connect_unix(path: &Path) -> io::Result<Client> {
        Ok(Client::over(Stream::Unix(UnixStream::connect(path)?)))
    }

    /// Takes a socket that the caller has set up, for example with a small receive buffer.
    pub fn from_tcp(stream: TcpStream) -> Client {
        Client::over(Stream::Tcp(stream))
    }

    pub fn through(transport: impl Transport + 'static) -> Client {
        Client::over(Stream::Other(Box::new(transport)))
    }

    fn over(stream: Stream) -> Client {
        Client { stream, received: Vec::new(), read: 0, wait: REPLY_TIMEOUT }
    }

    /// Sets the time that `read` waits for a whole reply, and a write for room in the socket.
    pub fn set_reply_timeout(&mut self, wait: Duration) {
        self.wait = wait;
    }

    // ---- the plain case ----

    /// Runs a command line in redis-cli's notation: `client.run("SET k v")`.
    #[track_caller]
    pub fn run(&mut self, line: &str) -> Value {
        let args = words::split(line).expect("a well-formed command line");
        self.call(&args)
    }

    #[track_caller]
    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Value {
        match self.try_call(args) {
            Ok(value) => value,
            Err(error) => panic!("`{}`: {error}", words::join(args)),
        }
    }

    #[track_caller]
    pub fn read(&mut self) -> Value {
        match self.try_read() {
            Ok(value) => value,
            Err(error) => panic!("while reading a reply: {error}"),
        }
    }

    /// Sends all commands in a single write, then reads all replies.
    #[track_caller]
    pub fn pipeline<A: AsRef<[u8]>>(&mut self, commands: &[Vec<A>]) -> Vec<Value> {
        let bytes: Vec<u8> = commands.iter().flat_map(|args| encode_command(args)).collect();
        self.send_raw(&bytes).expect("the server takes a pipeline");
        commands.iter().map(|_| self.read()).collect()
    }

    // ---- with the error in hand ----

    pub fn try_call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Value> {
        self.send(args)?;
        self.try_read()
    }

    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<()> {
        self.send_raw(&encode_command(args))
    }

    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.stream {
            Stream::Tcp(stream) => {
                stream.set_write_timeout(Some(self.wait))?;
                stream.write_all(bytes)
            }
            Stream::Unix(stream) => {
                stream.set_write_timeout(Some(self.wait))?;
                stream.write_all(bytes)
            }
            Stream::Other(stream) => {
                stream.set_write_timeout(self.wait)?;
                stream.write_all(bytes)?;
                stream.flush()
            }
        }
    }

    pub fn try_read(&mut self) -> io::Result<Value> {
        let bytes = self.read_raw()?;
        let reply = decode(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(reply.expect("`read_raw` returns whole replies").0)
    }

    /// Reads a reply, byte for byte as it came. Errors: `UnexpectedEof` if the server hung up, `TimedOut` if
    /// the reply took too long.
    pub fn read_raw(&mut self) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + self.wait;
        let mut scanner = Scanner::new();
        self.discard_input();
        loop {
            match scanner.scan(self.unread()) {
                Ok(Some(end)) => {
                    self.read += end;
                    return Ok(self.received[self.read - end..self.read].to_vec());
                }
                Ok(None) => {}
                Err(error) => {
                    let shown = Value::bulk(&self.unread()[..self.unread().len().min(200)]);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{error}, in {shown}")));
                }
            }
            if self.receive(deadline)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads all bytes until the server closes the connection. A reset counts as an end.
    pub fn read_to_end(&mut self) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + self.wait;
        loop {
            match self.receive(deadline) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
                Err(error) => return Err(error),
            }
        }
        let rest = self.unread().to_vec();
        self.read = self.received.len();
        Ok(rest)
    }

    /// Reads `len` bytes of any content.
    pub fn read_exactly(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + self.wait;
        self.discard_input();
        while self.unread().len() < len {
            if self.receive(deadline)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.read += len;
        Ok(self.received[self.read - len..self.read].to_vec())
    }

    /// Closes the sending direction; reading goes on.
    pub fn finish_sending(&mut self) -> io::Result<()> {
        match &mut self.stream {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
            Stream::Other(stream) => stream.finish_sending(),
        }
    }

    /// Returns bytes received beyond the replies that were read; a correct exchange leaves none.
    pub fn unread(&self) -> &[u8] {
        &self.received[self.read..]
    }

    /// Moves bytes only now and then: a pipeline's replies arrive by the thousand in one chunk.
    fn discard_input(&mut self) {
        if self.read == self.received.len() || self.read > CHUNK {
            self.received.drain(..self.read);
            self.read = 0;
        }
    }

    fn receive(&mut self, deadline: Instant) -> io::Result<usize> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut chunk = [0; CHUNK];
        let got = match &mut self.stream {
            Stream::Tcp(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.read(&mut chunk)
            }
            Stream::Unix(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.read(&mut chunk)
            }
            Stream::Other(stream) => {
                stream.set_read_timeout(left)?;
                stream.read(&mut chunk)
            }
        };
        match got {
            Ok(length) => {
                self.received.extend_from_slice(&chunk[..length]);
                Ok(length)
            }
            // A read that times out returns `WouldBlock` on Linux.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(io::ErrorKind::TimedOut.into()),
            Err(error) => Err(error),
        }
    }
}
