//! A server's address and protocol, and the way to open a connection to it.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use socket2::{Domain, Protocol as Transport, SockAddr, Socket, Type};

use super::greeting::Greeting;
use super::http::Responses;
use super::memcached::Lines;
use super::replies::{Replies, Skipper};
use super::stream::Stream;
use super::tls::{TlsStream, Trust};

/// Longest time to open a connection, handshake and greeting included.
const OPEN_TIME_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// The form of requests and replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    #[default]
    Resp2,
    /// Requested by HELLO 3 as the first command of each connection.
    Resp3,
    /// Memcached's text protocol, for GET and SET.
    Memcached,
    /// HTTP/1.1: GET of the path that stands for the command.
    Http,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: Address,
    pub(crate) protocol: Protocol,
    pub(crate) tls: Option<Trust>,
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self { address: Address::Tcp(address), protocol: Protocol::default(), tls: None }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Tcp(address) => address.fmt(f)?,
            Address::Unix(path) => path.display().fmt(f)?,
        }
        f.write_str(if self.tls.is_some() { " over TLS" } else { "" })
    }
}

impl FromStr for Protocol {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "resp2" => Ok(Self::Resp2),
            "resp3" => Ok(Self::Resp3),
            "memcached" => Ok(Self::Memcached),
            "http" => Ok(Self::Http),
            _ => bail!("use resp2, resp3, memcached or http"),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resp2 => "resp2",
            Self::Resp3 => "resp3",
            Self::Memcached => "memcached",
            Self::Http => "http",
        })
    }
}

impl Protocol {
    /// Returns a counter for the replies of a connection.
    pub(super) fn replies(self) -> Replies {
        match self {
            Self::Resp2 | Self::Resp3 => Replies::Resp(Skipper::new()),
            Self::Memcached => Replies::Memcached(Lines::default()),
            Self::Http => Replies::Http(Responses::default()),
        }
    }
}

impl Endpoint {
    /// Returns a socket of the right kind, not connected.
    pub(super) fn socket(&self) -> Result<Socket> {
        let (domain, transport) = match &self.address {
            Address::Tcp(address) => (Domain::for_address(*address), Some(Transport::TCP)),
            Address::Unix(_) => (Domain::UNIX, None),
        };
        Socket::new(domain, Type::STREAM.cloexec(), transport).context("cannot open a socket")
    }

    pub(super) fn target(&self) -> Result<SockAddr> {
        match &self.address {
            Address::Tcp(address) => Ok(SockAddr::from(*address)),
            Address::Unix(path) => {
                SockAddr::unix(path).with_context(|| format!("no path of a socket: {}", path.display()))
            }
        }
    }

    pub(super) fn tls_stream(&self) -> Result<Option<TlsStream>> {
        self.tls.as_ref().map(TlsStream::new).transpose()
    }

    /// Opens a connection over which requests can be sent; from here on it never blocks.
    pub(super) fn open(&self, greeting: &Greeting) -> Result<Stream> {
        let socket = self.socket()?;
        socket.connect_timeout(&self.target()?, OPEN_TIME_MAX)?;
        if matches!(self.address, Address::Tcp(_)) {
            socket.set_tcp_nodelay(true)?;
        }
        socket.set_read_timeout(Some(OPEN_TIME_MAX))?;
        socket.set_write_timeout(Some(OPEN_TIME_MAX))?;
        let mut tls_stream = self.tls_stream()?;
        if let Some(tls_stream) = &mut tls_stream {
            tls_stream.shake_hands(&mut &socket).map_err(|error| match error.kind() {
                ErrorKind::WouldBlock => {
                    let seconds = OPEN_TIME_MAX.as_secs();
                    anyhow!("no answer to the TLS handshake within {seconds} s: does this port speak TLS?")
                }
                _ => anyhow!(error).context("the TLS handshake failed"),
            })?;
        }
        let mut stream = Stream::new(socket, tls_stream);
        greet(&mut stream, greeting)?;
        stream.set_nonblocking()?;
        Ok(stream)
    }
}

/// Sends the greeting and waits until all of it has been answered.
fn greet(stream: &mut Stream, greeting: &Greeting) -> Result<()> {
    let (mut answers, mut inbox) = (greeting.answers(), [0; 1024]);
    stream.write_all(greeting.bytes()).with_context(|| format!("cannot say {greeting}"))?;
    while !answers.are_complete() {
        let size = match stream.read(&mut inbox) {
            Ok(0) => bail!("the server closed the connection instead of answering {greeting}"),
            Ok(size) => size,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).with_context(|| format!("no answer to {greeting}")),
        };
        if let Some(refusal) = answers.take(greeting, &mut &inbox[..size])? {
            bail!("{refusal}");
        }
    }
    Ok(())
}
