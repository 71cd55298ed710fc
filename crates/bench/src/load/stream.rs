//! A connection: a socket, with TLS if enabled.

use std::io::{Read, Result, Write};
use std::os::fd::{AsRawFd, RawFd};

use socket2::Socket;

use super::tls::TlsStream;

/// See the module's text. Reads and writes as its socket does; over TLS a write may be accepted and yet wait
/// to be sent, which [`Stream::push`] does.
pub(super) struct Stream {
    socket: Socket,
    tls_stream: Option<Box<TlsStream>>,
}

impl Stream {
    pub(super) fn new(socket: Socket, tls_stream: Option<TlsStream>) -> Self {
        Self { socket, tls_stream: tls_stream.map(Box::new) }
    }

    pub(super) fn set_nonblocking(&self) -> Result<()> {
        self.socket.set_nonblocking(true)
    }

    /// Returns whether a short read may leave bytes behind: each TLS record is opened on its own.
    pub(super) fn reads_in_parts(&self) -> bool {
        self.tls_stream.is_some()
    }

    /// Sends bytes accepted by earlier writes, as far as the socket takes them.
    pub(super) fn push(&mut self) -> Result<()> {
        match &mut self.tls_stream {
            Some(tls_stream) => tls_stream.push(&mut self.socket),
            None => Ok(()),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        match &mut self.tls_stream {
            Some(tls_stream) => tls_stream.read(&mut self.socket, buffer),
            None => self.socket.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        match &mut self.tls_stream {
            Some(tls_stream) => tls_stream.write(&mut self.socket, bytes),
            None => self.socket.write(bytes),
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.push()
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
