//! What a snapshot's thread writes and the thread that feeds replicas sends: a bounded stretch of bytes between the two.
//!
//! The one waits when the stretch is full, the other never waits for anything. Several replicas read the same pipe, each at
//! its own offset; what the slowest of them has been sent goes.

use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::backlog::Backlog;

/// Bytes that wait at most: several milliseconds of a fast network, which is how often somebody comes to send them.
const PIPE_LEN: u64 = 8 << 20;

/// See the module's text.
pub(super) struct Pipe {
    state: Mutex<State>,
    room: Condvar,
}

pub(super) struct State {
    pub(super) bytes: Backlog,
    /// How it went, once all is in the pipe.
    end: Option<Result<(), String>>,
    /// Nobody wants it any more.
    is_given_up: bool,
}

impl Pipe {
    pub(super) fn new() -> Arc<Pipe> {
        let state = State { bytes: Backlog::new(0), end: None, is_given_up: false };
        Arc::new(Pipe { state: Mutex::new(state), room: Condvar::new() })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// All is in the pipe, or what it should have been cannot be had.
    pub(super) fn finish(&self, end: Result<(), String>) {
        self.state.lock().end = Some(end);
    }

    /// How it went, if it is over.
    pub(super) fn end(&self) -> Option<Result<(), String>> {
        self.state.lock().end.clone()
    }

    /// Nobody wants it any more: who writes is told.
    pub(super) fn give_up(&self) {
        self.state.lock().is_given_up = true;
        self.room.notify_all();
    }

    /// Whether who writes waits for one that has been sent no more than this.
    pub(super) fn is_full_for(&self, at: u64) -> bool {
        let state = self.state.lock();
        state.bytes.len() >= PIPE_LEN && at < state.bytes.start() + super::backlog::BLOCK as u64
    }

    /// Drops what lies before this offset.
    pub(super) fn trim(&self, needed: u64) {
        let mut state = self.state.lock();
        state.bytes.trim(0, Some(needed));
        let has_room = state.bytes.len() < PIPE_LEN;
        drop(state);
        if has_room {
            self.room.notify_one();
        }
    }
}

impl State {
    /// Whether the byte at this offset is the first that will never come.
    pub(super) fn ends_at(&self, offset: u64) -> bool {
        self.end == Some(Ok(())) && self.bytes.end() == offset
    }
}

/// The end that is written to.
pub(super) struct Inlet(pub(super) Arc<Pipe>);

impl io::Write for Inlet {
    /// Waits for room.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.state.lock();
        while state.bytes.len() >= PIPE_LEN && !state.is_given_up {
            self.0.room.wait(&mut state);
        }
        if state.is_given_up {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "no replica is left that wants it"));
        }
        state.bytes.append(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn who_writes_waits_for_the_slowest_who_reads() {
        let pipe = Pipe::new();
        let (piece, pieces) = (vec![7; 1 << 20], 40);
        let written = std::thread::spawn({
            let (mut inlet, piece) = (Inlet(pipe.clone()), piece.clone());
            move || {
                (0..pieces).for_each(|_| inlet.write_all(&piece).expect("somebody reads"));
                inlet.0.finish(Ok(()));
            }
        });
        let mut at = 0;
        loop {
            let state = pipe.lock();
            assert!(state.bytes.len() < PIPE_LEN + piece.len() as u64 + super::super::backlog::BLOCK as u64);
            if state.ends_at(at) {
                break;
            }
            at += state.bytes.slices(at, 300_000).iter().map(|slice| slice.len() as u64).sum::<u64>();
            drop(state);
            pipe.trim(at);
        }
        assert_eq!(at, pieces * piece.len() as u64);
        written.join().expect("no panic");
    }

    #[test]
    fn who_writes_for_nobody_is_told() {
        let pipe = Pipe::new();
        let writer = std::thread::spawn({
            let mut inlet = Inlet(pipe.clone());
            move || (0..).find_map(|_| inlet.write_all(&[0; 1 << 20]).err())
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        pipe.give_up();
        assert_eq!(
            writer.join().expect("no panic").map(|error| error.kind()),
            Some(io::ErrorKind::BrokenPipe)
        );
    }
}
