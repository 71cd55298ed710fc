//! A TLS stream over a non-blocking socket: records in, plain bytes out, and the reverse.
//!
//! It reads like a socket, with a difference: there may be more to read although the socket is empty, since a
//! record may hold more bytes than the buffer had room for ([`TlsStream::has_more`]). It writes like a
//! socket, with a difference: accepted bytes are sealed, and may not all have been sent
//! ([`TlsStream::unsent`]).
//!
//! Bytes from the socket go through a buffer of the thread, so an idle connection keeps little memory. Sealed
//! records are sent from the place where they were made. At most [`SEAL_LEN`] bytes are sealed ahead of the
//! socket.

use std::cell::RefCell;
use std::io::{self, IoSlice, Read, Write};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConfig, ServerConnection};

use super::Contexts;
use crate::socket::{receive, send_gathered};

/// Bytes received at once.
const RECEIVE_LEN: usize = 64 * 1024;

/// Fewest bytes received at once, however little room there is for their content.
const RECEIVE_LEN_MIN: usize = 4 * 1024;

/// Bytes sealed before they are sent: four records.
const SEAL_LEN: usize = 64 * 1024;

/// Chunks sealed at once.
const LOT: usize = 64;

thread_local! {
    static RECEIVED: RefCell<Box<[u8]>> = RefCell::new(vec![0; RECEIVE_LEN].into());
}

/// A TLS stream; see the module's text.
pub struct TlsStream {
    connection: Connection,
    /// Received bytes that are not decrypted, since there was no room for earlier plain bytes.
    ahead: Vec<u8>,
    /// Plain bytes wait to be read.
    waits: bool,
    /// Sealed bytes that the socket has not taken.
    unsent: usize,
    has_more: bool,
    /// The remote side will send nothing more.
    is_over: bool,
    /// Why no further record can be decrypted.
    failed: Option<rustls::Error>,
    /// The connection is in its worker's queue of handshakes.
    pub is_queued: bool,
    /// Error sent to the client instead of service, once the handshake is done.
    pub refusal: Option<&'static str>,
}

impl TlsStream {
    /// Approximate bytes of an idle stream: measured with 1,500 streams.
    pub const MEMORY: usize = 7 * 1024;

    /// Creates a stream for an accepted connection.
    pub fn accept(config: Arc<ServerConfig>) -> Result<TlsStream, rustls::Error> {
        Ok(TlsStream::over(ServerConnection::new(config)?.into()))
    }

    /// Creates a stream for a connection made to this address.
    pub fn connect(contexts: &Contexts, address: IpAddr) -> Result<TlsStream, rustls::Error> {
        let name = ServerName::IpAddress(address.into());
        Ok(TlsStream::over(ClientConnection::new(contexts.client.clone(), name)?.into()))
    }

    fn over(mut connection: Connection) -> TlsStream {
        connection.set_buffer_limit(Some(SEAL_LEN));
        TlsStream {
            connection,
            ahead: Vec::new(),
            waits: false,
            unsent: 0,
            has_more: false,
            is_over: false,
            failed: None,
            is_queued: false,
            refusal: None,
        }
    }

    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Returns the certificate of the remote side, in DER.
    pub fn shown(&self) -> Option<&[u8]> {
        self.connection.peer_certificates()?.first().map(|certificate| &certificate[..])
    }

    /// Whether there may be more to read although the last read was short.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// Returns the sealed bytes that wait for the socket.
    pub fn unsent(&self) -> usize {
        self.unsent
    }

    /// Continues the handshake as far as received bytes allow. Returns whether it is finished.
    pub fn shake(&mut self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        self.flush(fd)?; // a client speaks first
        RECEIVED.with_borrow_mut(|received| {
            while self.is_handshaking() {
                let got = match receive(fd, received) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(got) => got,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => return Err(error),
                };
                self.open(fd, &received[..got], &mut [], &mut 0)?;
                // An error behind the end of the handshake is reported once the bytes before it have been
                // read.
                if self.is_handshaking()
                    && let Some(error) = self.failed.take()
                {
                    return Err(invalid(error));
                }
            }
            Ok(true)
        })
    }

    /// Reads into `buf`. Returns 0 at the end of the stream, and `WouldBlock` if there is nothing now.
    pub fn read(&mut self, fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        let is_drained = RECEIVED.with_borrow_mut(|received| self.fill(fd, received, buf, &mut filled));
        self.has_more = !is_drained.as_ref().is_ok_and(|is_drained| *is_drained);
        match is_drained {
            _ if filled > 0 => Ok(filled),
            Ok(true) => Err(io::ErrorKind::WouldBlock.into()),
            Ok(false) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Fills `buf` with the bytes available without waiting. Returns `true` if there are no more. Nothing and
    /// `false` is the end.
    fn fill(
        &mut self,
        fd: BorrowedFd<'_>,
        received: &mut [u8],
        buf: &mut [u8],
        filled: &mut usize,
    ) -> io::Result<bool> {
        self.drain(buf, filled);
        if !self.waits && !self.ahead.is_empty() {
            let ahead = std::mem::take(&mut self.ahead);
            self.open(fd, &ahead, buf, filled)?;
        }
        loop {
            if self.waits || !self.ahead.is_empty() || *filled == buf.len() {
                return Ok(false);
            }
            if let Some(error) = self.failed.take_if(|_| *filled == 0) {
                return Err(invalid(error));
            }
            if self.is_over || self.failed.is_some() {
                return Ok(false);
            }
            let wanted = (buf.len() - *filled).clamp(RECEIVE_LEN_MIN, received.len());
            let got = match receive(fd, &mut received[..wanted]) {
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            };
            self.is_over |= got == 0;
            self.open(fd, &received[..got], buf, filled)?;
            let is_whole = !self.waits && self.ahead.is_empty() && self.failed.is_none() && !self.is_over;
            if is_whole && got < wanted {
                return Ok(true);
            }
            if *filled > 0 {
                return Ok(false);
            }
        }
    }

    /// Decrypts records into `buf`; keeps the records for which there is no room.
    fn open(
        &mut self,
        fd: BorrowedFd<'_>,
        mut bytes: &[u8],
        buf: &mut [u8],
        filled: &mut usize,
    ) -> io::Result<()> {
        while !bytes.is_empty() && self.failed.is_none() {
            if self.waits {
                self.ahead = bytes.to_vec();
                break;
            }
            // It takes a few KiB at a time, and nothing behind the closing message.
            if self.connection.read_tls(&mut bytes)? == 0 {
                break;
            }
            match self.connection.process_new_packets() {
                Ok(state) => {
                    self.waits = state.plaintext_bytes_to_read() > 0;
                    self.is_over |= state.peer_has_closed();
                }
                Err(error) => {
                    self.waits = true; // bytes before the error may be there
                    self.failed = Some(error);
                }
            }
            self.drain(buf, filled);
        }
        let sent = self.flush(fd);
        // The remote side receives an alert. Its arrival makes no difference.
        if self.failed.is_some() { Ok(()) } else { sent.map(drop) }
    }

    fn drain(&mut self, buf: &mut [u8], filled: &mut usize) {
        while self.waits && *filled < buf.len() {
            match self.connection.reader().read(&mut buf[*filled..]) {
                Ok(0) | Err(_) => self.waits = false,
                Ok(got) => *filled += got,
            }
        }
    }

    /// Seals and sends as much as the socket takes, and a little more; returns the number of bytes taken from
    /// `slices`.
    pub fn write(&mut self, fd: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.flush(fd)? {
            return Ok(0);
        }
        let (mut next, mut skip, mut taken) = (0, 0, 0);
        loop {
            // Collects up to `LOT` chunks.
            let mut lot = [IoSlice::new(&[]); LOT];
            let (mut count, mut len) = (0, 0);
            while next + count < slices.len() && count < LOT && len < SEAL_LEN {
                let from = if count == 0 { skip } else { 0 };
                lot[count] = IoSlice::new(&slices[next + count][from..]);
                len += lot[count].len();
                count += 1;
            }
            if count == 0 {
                return Ok(taken);
            }
            let mut sealed = self.connection.writer().write_vectored(&lot[..count])?;
            taken += sealed;
            if !self.flush(fd)? || sealed == 0 && len > 0 {
                return Ok(taken);
            }
            for slice in &lot[..count] {
                if sealed < slice.len() {
                    skip = slices[next].len() - slice.len() + sealed;
                    break;
                }
                (sealed, skip) = (sealed - slice.len(), 0);
                next += 1;
            }
        }
    }

    /// Sends sealed records. Returns whether the socket took all.
    pub fn flush(&mut self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Socket(fd)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let state = self.connection.process_new_packets();
                    self.unsent = state.map_or(0, |state| state.tls_bytes_to_write());
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        self.unsent = 0;
        Ok(true)
    }

    /// Sends the closing message, if that is possible without waiting.
    pub fn part(&mut self, fd: BorrowedFd<'_>) {
        if !self.is_handshaking() && self.unsent == 0 {
            self.connection.send_close_notify();
            let _ = self.flush(fd);
        }
    }
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// A socket to write to.
struct Socket<'s>(BorrowedFd<'s>);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        send_gathered(self.0, &[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        send_gathered(self.0, slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
