//! The least cost of a replica: a thread that sends the bytes that the serving thread has read.
//!
//! The serving thread copies nothing and wakes no thread: it gives away the buffer that it has read into and
//! goes on with another. The sending thread looks for buffers twice a millisecond, and sends all that are
//! there at once.

use std::io::{IoSlice, Write};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use socket2::Socket;

/// Interval at which the idle sending thread looks for buffers.
const POLL_INTERVAL: Duration = Duration::from_micros(500);
/// Most buffers that may wait; beyond, the clients wait, too.
const WAITING_MAX: usize = 1_024;
/// Buffers that are sent at once.
const AT_ONCE: usize = 64;

/// The queue to the sending thread.
pub(super) struct Feed(Arc<Queue>);

#[derive(Default)]
struct Queue {
    waiting: Mutex<Vec<Piece>>,
    /// Sent buffers, to be read into again.
    spare: Mutex<Vec<Vec<u8>>>,
    /// The replica has gone, or the server no longer serves it.
    is_over: AtomicBool,
}

struct Piece {
    buffer: Vec<u8>,
    range: Range<usize>,
}

impl Feed {
    /// Feeds the replica at the other end of the socket from now on.
    pub(super) fn start(socket: Socket) -> Result<Self> {
        socket.set_nonblocking(false)?;
        let queue = Arc::new(Queue::default());
        let shared = queue.clone();
        let thread = std::thread::Builder::new().name("feed".into());
        thread.spawn(move || shared.send(socket)).context("no thread for a replica")?;
        Ok(Self(queue))
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.is_over.load(Relaxed)
    }

    /// Gives away a part of a buffer; returns a buffer to go on with, which may be empty.
    pub(super) fn give(&self, buffer: Vec<u8>, range: Range<usize>) -> Vec<u8> {
        loop {
            let mut waiting = self.0.waiting.lock();
            if waiting.len() < WAITING_MAX || self.is_over() {
                waiting.push(Piece { buffer, range });
                break;
            }
            drop(waiting);
            std::thread::sleep(POLL_INTERVAL);
        }
        self.0.spare.lock().pop().unwrap_or_default()
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.0.is_over.store(true, Relaxed);
    }
}

impl Queue {
    fn send(&self, mut socket: Socket) {
        let mut pieces = Vec::new();
        while !self.is_over.load(Relaxed) {
            std::mem::swap(&mut pieces, &mut *self.waiting.lock());
            if pieces.is_empty() {
                std::thread::sleep(POLL_INTERVAL);
            }
            for some in pieces.chunks(AT_ONCE) {
                let mut slices: Vec<IoSlice<'_>> =
                    some.iter().map(|piece| IoSlice::new(&piece.buffer[piece.range.clone()])).collect();
                if write_all(&mut socket, &mut slices).is_none() {
                    self.is_over.store(true, Relaxed);
                    return;
                }
            }
            self.spare.lock().extend(pieces.drain(..).map(|piece| piece.buffer));
        }
    }
}

/// `None` when the connection is over.
fn write_all(socket: &mut Socket, mut slices: &mut [IoSlice<'_>]) -> Option<()> {
    // Empty parts are skipped first: a write of nothing would be taken for the end.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        let size = socket.write_vectored(slices).ok().filter(|size| *size > 0)?;
        IoSlice::advance_slices(&mut slices, size);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Returns the socket of the server and the stream of the replica.
    fn pair() -> (Socket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let replica = TcpStream::connect(listener.local_addr().expect("its address")).expect("it listens");
        (Socket::from(listener.accept().expect("who connects").0), replica)
    }

    #[test]
    fn all_queued_bytes_arrive_in_order() {
        let (socket, mut replica) = pair();
        let feed = Feed::start(socket).expect("a thread");
        let number = |number: u32| number.to_le_bytes();
        let reader = std::thread::spawn(move || {
            let mut bytes = vec![0; 4 * 10_000];
            replica.read_exact(&mut bytes).expect("all of it");
            bytes
        });
        for at in 0..10_000 {
            let buffer = [b"head".as_slice(), &number(at), b"tail"].concat();
            feed.give(buffer, 4..8);
            feed.give(Vec::new(), 0..0);
        }
        let expected: Vec<u8> = (0..10_000).flat_map(number).collect();
        assert!(reader.join().expect("it does not panic") == expected);
        assert!(!feed.is_over());
    }

    #[test]
    fn a_disconnecting_replica_delays_no_other() {
        let (socket, replica) = pair();
        let feed = Feed::start(socket).expect("a thread");
        drop(replica);
        for _ in 0..10 * WAITING_MAX {
            feed.give(vec![0; 64 * 1024], 0..64 * 1024);
            if feed.is_over() {
                return;
            }
        }
        panic!("nobody has seen that the replica is gone");
    }
}
