//! TLS: accepted certificates and their users, changed and broken files, misbehaving clients, many clients at
//! once, and servers that follow each other.

pub(crate) mod certs;
mod clients;
mod files;
mod hostile;
mod servers;
mod storm;
mod users;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_testkit::client::Transport;
use evenkeel_testkit::server::free_port;
use evenkeel_testkit::{Client, Program, Server};
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::program;
use certs::Certs;

/// Longest duration of a handshake.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A server with a plain port and a TLS port.
pub(crate) struct Secure {
    pub(crate) server: Server,
    pub(crate) port: u16,
}

/// Starts a server with the certificates of `certs`; every client must show a certificate unless `args` say
/// otherwise.
#[track_caller]
fn start_secure(certs: &Certs, args: &[&str]) -> Secure {
    start_secure_as(&program(), certs, args)
}

#[track_caller]
pub(crate) fn start_secure_as(program: &Program, certs: &Certs, args: &[&str]) -> Secure {
    let mut problem = String::new();
    for _ in 0..5 {
        let port = free_port();
        let port_word = port.to_string();
        let of_tls = certs.arguments();
        let mut all = vec!["--tls-port", &port_word];
        all.extend(of_tls.iter().map(String::as_str));
        all.extend(args);
        match Server::try_start(program, &all) {
            Ok(server) => return Secure { server, port },
            Err(why) => problem = why,
        }
    }
    panic!("no start: {problem}");
}

/// Connects to the TLS port with a certificate of the server's authority.
#[track_caller]
pub(crate) fn connect(port: u16, certs: &Certs) -> Client {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it listens");
    Client::through(tls_stream(stream, certs.client("client")).expect("the server lets it in"))
}

impl Secure {
    fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Connects with a certificate of the server's authority.
    #[track_caller]
    fn connect(&self, certs: &Certs) -> Client {
        connect(self.port, certs)
    }

    /// Connects, and finishes the handshake on this side.
    fn tls_stream(&self, config: Arc<ClientConfig>) -> io::Result<TlsStream> {
        tls_stream(TcpStream::connect(self.address())?, config)
    }

    /// Returns `Ok` if a client gets a reply.
    fn accepts(&self, config: Arc<ClientConfig>) -> Result<(), String> {
        let mut client = Client::through(self.tls_stream(config).map_err(|error| error.to_string())?);
        match client.try_call(&["PING"]) {
            Ok(reply) if reply.to_string() == "PONG" => Ok(()),
            Ok(reply) => Err(format!("an odd answer: {reply}")),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// A TLS connection of a client, over some socket.
pub(crate) struct TlsStream<S: Read + Write = TcpStream> {
    stream: StreamOwned<ClientConnection, S>,
    socket: TcpStream,
}

pub(crate) fn tls_stream(socket: TcpStream, config: Arc<ClientConfig>) -> io::Result<TlsStream> {
    let same = socket.try_clone()?;
    tls_stream_over(socket, same, config)
}

/// The same over something that uses `socket`.
fn tls_stream_over<S: Read + Write>(
    mut through: S,
    socket: TcpStream,
    config: Arc<ClientConfig>,
) -> io::Result<TlsStream<S>> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    let name = "localhost".try_into().expect("a name");
    let mut connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
    while connection.is_handshaking() {
        connection.complete_io(&mut through)?;
    }
    Ok(TlsStream { stream: StreamOwned::new(connection, through), socket })
}

impl<S: Read + Write> Read for TlsStream<S> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buf)
    }
}

impl<S: Read + Write> Write for TlsStream<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl<S: Read + Write + Send> Transport for TlsStream<S> {
    fn set_read_timeout(&self, wait: Duration) -> io::Result<()> {
        self.socket.set_read_timeout(Some(wait))
    }

    fn set_write_timeout(&self, wait: Duration) -> io::Result<()> {
        self.socket.set_write_timeout(Some(wait))
    }

    /// The protocol's own way; the socket stays open.
    fn finish_sending(&mut self) -> io::Result<()> {
        self.stream.conn.send_close_notify();
        self.stream.flush()
    }
}
