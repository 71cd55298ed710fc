//! The socket of a connection, with TLS or without.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::socket::{receive, send, send_gathered};
use crate::tls::TlsStream;

/// A connected socket that does not block, closed when dropped. Its users need not know whether it is
/// encrypted.
pub struct Stream {
    socket: OwnedFd,
    /// Present if the connection is encrypted.
    tls: Option<Box<TlsStream>>,
}

impl Stream {
    /// Takes a socket without TLS.
    pub fn new(socket: OwnedFd) -> Stream {
        Stream { socket, tls: None }
    }

    /// Encrypts the connection from now on.
    pub fn encrypt(&mut self, tls: TlsStream) {
        self.tls = Some(Box::new(tls));
    }

    #[inline]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    #[inline]
    pub fn tls(&mut self) -> Option<&mut TlsStream> {
        self.tls.as_deref_mut()
    }

    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether the TLS handshake is not finished.
    #[inline]
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Continues the handshake. Returns whether it is finished.
    pub fn shake(&mut self) -> io::Result<bool> {
        let fd = self.socket.as_fd();
        self.tls.as_mut().map_or(Ok(true), |tls| tls.shake(fd))
    }

    /// Reads the bytes that have arrived, up to a megabyte, and drops them. The caller closes the socket
    /// next: with unread bytes the kernel would reset the connection, and the peer might lose replies that it
    /// has not read.
    pub fn discard_received(&self) {
        let mut dropped = [0; 4096];
        for _ in 0..256 {
            if !matches!(receive(self.fd(), &mut dropped), Ok(1..)) {
                return;
            }
        }
    }

    /// Whether there is more to read although the socket may be empty.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_more())
    }

    /// Returns the bytes of sealed records: they count as sent, but the socket has not taken them.
    #[inline]
    pub fn unsent(&self) -> usize {
        self.tls.as_ref().map_or(0, |tls| tls.unsent())
    }

    /// Reads into `buf`. Returns 0 at the end of the stream, and `WouldBlock` if there is nothing now.
    #[inline]
    pub fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let fd = self.socket.as_fd();
        match &mut self.tls {
            None => receive(fd, buf),
            Some(tls) => tls.read(fd, buf),
        }
    }

    /// Writes as much as the socket takes; a full socket counts as zero bytes.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fd = self.socket.as_fd();
        match &mut self.tls {
            None => would_block_is_zero(send(fd, bytes)),
            Some(tls) => tls.write(fd, &[IoSlice::new(bytes)]),
        }
    }

    /// Writes as much as the socket takes; a full socket counts as zero bytes.
    #[inline]
    pub fn write_gathered(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let fd = self.socket.as_fd();
        match &mut self.tls {
            None => would_block_is_zero(send_gathered(fd, slices)),
            Some(tls) => tls.write(fd, slices),
        }
    }

    /// Sends sealed records. Returns whether the socket took all of them.
    pub fn send_sealed(&mut self) -> io::Result<bool> {
        let fd = self.socket.as_fd();
        self.tls.as_mut().map_or(Ok(true), |tls| tls.flush(fd))
    }

    /// Turns TCP_NODELAY off or on: with `delay`, the kernel sends fewer and later packets.
    pub fn delay_small_packets(&self, delay: bool) {
        // Unix sockets have no such option, and need none.
        let _ = rustix::net::sockopt::set_tcp_nodelay(&self.socket, !delay);
    }
}

impl Drop for Stream {
    /// Sends the closing message of TLS.
    fn drop(&mut self) {
        let fd = self.socket.as_fd();
        if let Some(tls) = &mut self.tls {
            tls.part(fd);
        }
    }
}

#[inline]
fn would_block_is_zero(sent: io::Result<usize>) -> io::Result<usize> {
    match sent {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        other => other,
    }
}
