//! A channel between two processes of this machine: messages of bytes, with descriptors.
//!
//! A message begins with its length and the number of its descriptors; the kernel passes the descriptors with
//! these first bytes, so that they cannot be confused with those of another message.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Most descriptors of a message. The kernel takes 253.
pub const DESCRIPTORS_MAX: usize = 200;

/// Most bytes of a message. Whoever sends more has a defect, or is another program.
const LEN_MAX: u64 = 8 << 30;

const HEAD: usize = 12;

/// An end of a channel; see the module's text.
pub struct Channel(UnixStream);

impl Channel {
    /// The two ends of a new channel.
    ///
    /// # Errors
    /// The process has no more descriptors.
    pub fn pair() -> io::Result<(Channel, Channel)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Channel(ours), Channel(theirs)))
    }

    pub fn of(stream: UnixStream) -> Channel {
        Channel(stream)
    }

    /// Another descriptor of the same end.
    pub fn try_clone(&self) -> io::Result<Channel> {
        self.0.try_clone().map(Channel)
    }

    /// Bounds the time in which each part of a message has to be sent or to arrive; `None`: no bound.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(timeout)?;
        self.0.set_write_timeout(timeout)
    }

    /// Sends a message with at most [`DESCRIPTORS_MAX`] descriptors.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        assert!(descriptors.len() <= DESCRIPTORS_MAX, "the caller splits longer lists");
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        head[8..].copy_from_slice(&(descriptors.len() as u32).to_le_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            let is_pushed = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
            assert!(is_pushed, "there is space for them");
        }
        let sent = loop {
            match sendmsg(&self.0, &[IoSlice::new(&head)], &mut ancillary, SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other?,
            }
        };
        (&self.0).write_all(&head[sent..])?;
        (&self.0).write_all(bytes)
    }

    /// Receives a message.
    ///
    /// # Errors
    /// `UnexpectedEof`: the other end is closed, as when its process has ended. `InvalidData`: these are no
    /// messages.
    pub fn receive(&self) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        let mut head = [0; HEAD];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            let into = &mut [IoSliceMut::new(&mut head)];
            match recvmsg(&self.0, into, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other?.bytes,
            }
        };
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let descriptors: Vec<OwnedFd> = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .collect();
        (&self.0).read_exact(&mut head[got..])?;
        let len = u64::from_le_bytes(head[..8].try_into().expect("eight bytes"));
        let count = u32::from_le_bytes(head[8..].try_into().expect("four bytes"));
        if len > LEN_MAX || count as usize != descriptors.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this is no message of a hand-over"));
        }
        let mut bytes = Vec::new();
        (&self.0).take(len).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((bytes, descriptors))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> OwnedFd {
        channel.0.into()
    }
}

impl From<OwnedFd> for Channel {
    fn from(descriptor: OwnedFd) -> Channel {
        Channel(descriptor.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn descriptors_come_with_their_message() {
        let (one, other) = Channel::pair().expect("two descriptors");
        let sockets: Vec<(UnixStream, UnixStream)> =
            (0..3).map(|_| UnixStream::pair().expect("two descriptors")).collect();
        let sender = std::thread::spawn(move || {
            one.send(b"none", &[]).expect("it is sent");
            one.send(&[7; 1 << 20], &[sockets[0].0.as_fd(), sockets[1].0.as_fd()]).expect("it is sent");
            one.send(b"", &[sockets[2].0.as_fd()]).expect("it is sent");
            for (number, (_, theirs)) in sockets.iter().enumerate() {
                (&*theirs).write_all(&[number as u8]).expect("it is sent");
            }
        });
        let (bytes, none) = other.receive().expect("a message");
        assert_eq!((&bytes[..], none.len()), (&b"none"[..], 0));
        let (bytes, mut all) = other.receive().expect("a message");
        assert_eq!((bytes.len(), all.len()), (1 << 20, 2));
        let (bytes, third) = other.receive().expect("a message");
        assert!(bytes.is_empty());
        all.extend(third);
        for (number, descriptor) in all.into_iter().enumerate() {
            let mut byte = [0xff];
            File::from(descriptor).read_exact(&mut byte).expect("a byte");
            assert_eq!(byte, [number as u8]);
        }
        sender.join().expect("it does not panic");
        assert_eq!(other.receive().expect_err("it is closed").kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn other_bytes_are_no_message() {
        let (one, other) = UnixStream::pair().expect("two descriptors");
        (&one).write_all(b"*1\r\n$4\r\nPING\r\n").expect("it is sent");
        let error = Channel::of(other).receive().expect_err("no message");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
