//! Receiving and sending on a socket that does not block.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

/// Receives available bytes; 0 is the end of the stream.
#[inline]
pub fn receive(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    let (got, _) = rustix::net::recv(fd, buf, RecvFlags::empty())?;
    Ok(got)
}

/// Sends as much as the socket takes.
#[inline]
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // No SIGPIPE: the error is enough.
    Ok(rustix::net::send(fd, bytes, SendFlags::NOSIGNAL)?)
}

/// Sends as much as the socket takes.
#[inline]
pub fn send_gathered(fd: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    let mut nothing = SendAncillaryBuffer::default();
    Ok(rustix::net::sendmsg(fd, slices, &mut nothing, SendFlags::NOSIGNAL)?)
}
