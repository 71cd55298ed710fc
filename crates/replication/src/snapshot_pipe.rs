//! A bounded pipe of bytes from a snapshot's thread to the replication thread.
//!
//! The writer waits when the pipe is full; the replication thread never waits. Several replicas read the same
//! pipe, each at its own offset, and bytes that the slowest replica has been sent are freed. The fastest
//! replica sets the pace. When it has nearly all bytes, and the pipe is full of bytes that slower replicas
//! still need, the older half is spilled to an unlinked file ([`super::spill_file`]), from which these are
//! sent. If the disk does not take it, fast replicas wait for the slowest, as long as that takes anything.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_store::memory;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::backlog::{BLOCK, Backlog};
use super::spill_file::SpillFile;
use evenkeel_persist::save_points::Awaited;

/// Bytes in memory at most: several milliseconds of a fast network, about the interval at which the
/// replication thread polls.
const PIPE_LEN: u64 = 8 << 20;

/// Bytes that stay in memory when the rest is spilled.
const SPILLED_TO: u64 = PIPE_LEN / 2;

/// Bytes that may wait for the disk before more are spilled: then a fast replica waits for the disk, and the
/// memory does not grow.
const WAITING_LEN_MAX: u64 = 16 << 20;

/// Delay before the disk is tried again after a failure, or without space.
const REST: Duration = Duration::from_secs(1);

/// A snapshot on its way to replicas.
pub(super) struct SnapshotPipe {
    state: Mutex<SnapshotPipeState>,
    room: Condvar,
}

pub(super) struct SnapshotPipeState {
    pub(super) bytes: Backlog,
    /// The bytes before `bytes` that some replica has not been sent.
    spilled: Option<SpillFile>,
    /// The time of the next attempt to spill, and whether a failure has been reported.
    rests_until: Option<Instant>,
    has_failed: bool,
    /// Since when fast replicas have waited for slower ones, since the disk takes nothing.
    held_up_since: Option<Instant>,
    /// The result, once all bytes are in the pipe.
    end: Option<Result<(), String>>,
    /// Whether no replica wants the snapshot any more.
    is_cancelled: bool,
}

impl SnapshotPipe {
    pub(super) fn new() -> Arc<SnapshotPipe> {
        let state = SnapshotPipeState {
            bytes: Backlog::new(0),
            spilled: None,
            rests_until: None,
            has_failed: false,
            held_up_since: None,
            end: None,
            is_cancelled: false,
        };
        Arc::new(SnapshotPipe { state: Mutex::new(state), room: Condvar::new() })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SnapshotPipeState> {
        self.state.lock()
    }

    /// Sets the result: all bytes are in the pipe, or the snapshot has failed.
    pub(super) fn finish(&self, end: Result<(), String>) {
        self.state.lock().end = Some(end);
    }

    /// The result, if the snapshot is over.
    pub(super) fn end(&self) -> Option<Result<(), String>> {
        self.state.lock().end.clone()
    }

    /// Cancels the snapshot: its writer gets an error.
    pub(super) fn cancel(&self) {
        self.state.lock().is_cancelled = true;
        self.room.notify_all();
    }

    /// Since when other replicas have waited for a replica at this offset, and for the disk.
    pub(super) fn held_up_since(&self, at: u64) -> Option<Instant> {
        let state = self.state.lock();
        state.held_up_since.filter(|_| at < state.bytes.start() + BLOCK as u64)
    }

    /// Frees the bytes before all `readers`, the offsets of the replicas. Spills if the fastest replica waits
    /// for room, or another job waits for the end of the snapshot (`awaited`). `create` makes a file for the
    /// bytes from an offset on.
    ///
    /// # Errors
    /// The disk has failed. Reported once, and again if bytes are lost: bytes that are no longer in
    /// [`SnapshotPipeState::bytes`] cannot be sent.
    pub(super) fn tend(
        &self,
        readers: &[u64],
        awaited: Awaited,
        create: impl FnOnce(u64) -> io::Result<SpillFile>,
    ) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut result = state.tend(readers, awaited, create);
        if result.is_err() {
            state.rests_until = Some(Instant::now() + REST);
            let had_nothing = state.spilled.take().is_none_or(|spilled| spilled.is_unused());
            if std::mem::replace(&mut state.has_failed, true) && had_nothing {
                result = Ok(());
            }
        }
        let has_room = state.bytes.len() < PIPE_LEN;
        drop(state);
        if has_room {
            self.room.notify_one();
        }
        result
    }
}

impl SnapshotPipeState {
    /// Whether the pipe ends at this offset.
    pub(super) fn ends_at(&self, offset: u64) -> bool {
        self.end == Some(Ok(())) && self.bytes.end() == offset
    }

    /// The spill file, if it has the byte at this offset.
    pub(super) fn spilled(&self, offset: u64) -> Option<&SpillFile> {
        self.spilled.as_ref().filter(|spilled| spilled.has(offset))
    }

    /// Bytes of memory, and bytes on disk.
    pub(super) fn sizes(&self) -> (u64, u64) {
        let (in_memory, on_disk) = self.spilled.as_ref().map_or((0, 0), |spilled| {
            (spilled.memory(), spilled.len() - spilled.waiting().min(spilled.len()))
        });
        (self.bytes.memory() + in_memory, on_disk)
    }

    fn tend(
        &mut self,
        readers: &[u64],
        awaited: Awaited,
        create: impl FnOnce(u64) -> io::Result<SpillFile>,
    ) -> io::Result<()> {
        let (Some(&slowest), Some(&quickest)) = (readers.iter().min(), readers.iter().max()) else {
            return Ok(());
        };
        self.bytes.trim(0, Some(slowest));
        if let Some(spilled) = &mut self.spilled {
            spilled.check()?;
            spilled.trim(slowest, readers);
            self.bytes.give_back(spilled.written());
        }
        // A file that has been read to its end would have a gap if more were appended.
        let is_over = |spilled: &SpillFile| !spilled.is_unused() && slowest >= self.bytes.start();
        if self.spilled.as_ref().is_some_and(is_over) {
            self.spilled = None;
        }
        let is_quick = self.bytes.end() - quickest < SPILLED_TO - BLOCK as u64;
        let is_full = self.end.is_none() && self.bytes.len() >= PIPE_LEN;
        let is_wanted = is_full && (is_quick || awaited != Awaited::Nothing);
        // A job that is only due is no reason to drop a replica.
        if is_wanted && !self.spill(create)? && (is_quick || awaited == Awaited::Asked) {
            self.held_up_since.get_or_insert_with(Instant::now);
        } else {
            self.held_up_since = None;
        }
        Ok(())
    }

    /// Spills the oldest bytes. Returns whether the disk takes them now.
    fn spill(&mut self, create: impl FnOnce(u64) -> io::Result<SpillFile>) -> io::Result<bool> {
        if self.rests_until.is_some_and(|until| Instant::now() < until) {
            return Ok(false);
        }
        let spilled = match &mut self.spilled {
            Some(spilled) => spilled,
            none => none.insert(create(self.bytes.start())?),
        };
        if !spilled.is_open()? || spilled.waiting() >= WAITING_LEN_MAX {
            return Ok(false);
        }
        if !spilled.has_room() {
            if spilled.is_unused() {
                // Space may be freed by other files; the reserved space is theirs until then.
                (self.spilled, self.rests_until) = (None, Some(Instant::now() + REST));
            }
            return Ok(false);
        }
        // A value of any size arrives in a single write.
        let kept = SPILLED_TO.max(self.bytes.len().saturating_sub(WAITING_LEN_MAX));
        spilled.append(self.bytes.start(), self.bytes.take_oldest(kept));
        Ok(true)
    }
}

/// The writing end of the pipe.
pub(super) struct Inlet(pub(super) Arc<SnapshotPipe>);

impl io::Write for Inlet {
    /// Waits for room.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.state.lock();
        while state.bytes.len() >= PIPE_LEN && !state.is_cancelled {
            self.0.room.wait(&mut state);
        }
        if state.is_cancelled {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "no replica needs the snapshot any more"));
        }
        // Other threads free these bytes.
        memory::with_the_rest(|| state.bytes.append(bytes));
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
    fn writers_wait_for_the_slowest_reader() {
        let pipe = SnapshotPipe::new();
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
            assert!(state.bytes.len() < PIPE_LEN + (piece.len() + BLOCK) as u64);
            if state.ends_at(at) {
                break;
            }
            at += state.bytes.slices(at, 300_000).iter().map(|slice| slice.len() as u64).sum::<u64>();
            drop(state);
            pipe.tend(&[at], Awaited::Nothing, |_| panic!("nobody else waits")).expect("no disk");
        }
        assert_eq!(at, pieces * piece.len() as u64);
        written.join().expect("no panic");
    }

    /// Writes `len` bytes, each derived from its offset.
    fn write_all(pipe: &Arc<SnapshotPipe>, len: u64) -> std::thread::JoinHandle<()> {
        let mut inlet = Inlet(pipe.clone());
        std::thread::spawn(move || {
            let all: Vec<u8> = (0..len).map(byte_at).collect();
            inlet.write_all(&all[..all.len() / 2]).expect("somebody reads");
            all[all.len() / 2..]
                .chunks(100_000)
                .for_each(|piece| inlet.write_all(piece).expect("somebody reads"));
            inlet.0.finish(Ok(()));
        })
    }

    fn byte_at(offset: u64) -> u8 {
        (offset ^ offset >> 8 ^ offset >> 16) as u8
    }

    /// Reads at most `max` bytes at this offset, checks them, and returns the offset behind them.
    fn read_some(pipe: &SnapshotPipe, at: u64, max: usize) -> u64 {
        let state = pipe.lock();
        let bytes = match state.spilled(at) {
            Some(spilled) => spilled.read(at).map_or(vec![], |(piece, skip)| piece[skip..].to_vec()),
            None => state.bytes.slices(at, max).iter().flat_map(|slice| slice.to_vec()).collect(),
        };
        let bytes = &bytes[..bytes.len().min(max)];
        assert!(bytes.iter().zip(at..).all(|(byte, offset)| *byte == byte_at(offset)), "behind {at}");
        at + bytes.len() as u64
    }

    #[test]
    fn the_fastest_replica_sets_the_pace() {
        const LEN: u64 = 5 * PIPE_LEN;
        let pipe = SnapshotPipe::new();
        let create = |from| SpillFile::create(&std::env::temp_dir(), from, || {});
        let writer = write_all(&pipe, LEN);
        let mut random = evenkeel_testkit::random::printed();
        // The first reader takes everything, the second a little now and then, and the third nothing.
        let mut readers = [0; 3];
        while !pipe.lock().ends_at(readers[0]) {
            let before = readers[0];
            readers[0] = read_some(&pipe, before, 1 << 20);
            if readers[0] > before && random.chance(30) {
                readers[1] = read_some(&pipe, readers[1], 50_000);
            }
            pipe.tend(&readers, Awaited::Nothing, create).expect("a disk that takes it");
            let (memory, _) = pipe.lock().sizes();
            assert!(memory <= 2 * (PIPE_LEN + WAITING_LEN_MAX), "{memory}");
        }
        writer.join().expect("no panic");
        assert!(readers[1] < LEN / 2 && pipe.lock().sizes().1 > LEN / 4, "{readers:?}");
        while readers[1..] != [LEN; 2] {
            for reader in &mut readers[1..] {
                *reader = read_some(&pipe, *reader, 300_000);
            }
            pipe.tend(&readers[1..], Awaited::Nothing, create).expect("a disk that takes it");
        }
        assert!(pipe.lock().spilled.is_none(), "nobody needs it");
    }

    /// The slowest replica has read all that is on disk at the moment when memory overflows.
    #[test]
    fn a_caught_up_replica_gets_a_new_spill_file() {
        const MB: u64 = 1 << 20;
        let pipe = SnapshotPipe::new();
        let create = |from| SpillFile::create(&std::env::temp_dir(), from, || {});
        let write = |len: u64| pipe.lock().bytes.append(&vec![7; len as usize]);
        let spill = |readers: &[u64], to: u64| {
            while pipe.lock().bytes.start() < to {
                pipe.tend(readers, Awaited::Nothing, create).expect("a disk that takes it");
            }
        };
        write(8 * MB);
        spill(&[0, 8 * MB], 4 * MB);
        write(5 * MB);
        let slowest = 4 * MB + 256 * 1024;
        spill(&[slowest, 13 * MB], 9 * MB);
        let state = pipe.lock();
        assert!(state.spilled(slowest).is_some() && state.spilled(4 * MB).is_none());
    }

    /// A snapshot's own memory is counted apart, but other threads free these bytes.
    #[test]
    fn bytes_in_transit_are_counted() {
        let (pipe, piece) = (SnapshotPipe::new(), vec![7; 256 << 20]);
        let apart = || memory::used() as isize - memory::used_by_data() as isize;
        let before = apart();
        memory::uncounted(|| Inlet(pipe.clone()).write_all(&piece)).expect("it is empty");
        assert!(apart() < before + piece.len() as isize / 2);
    }

    /// A single large write is given to the disk in parts, so the disk does not lag too far behind.
    #[test]
    fn large_pieces_are_spilled_in_steps() {
        const LEN: u64 = 320 << 20;
        let pipe = SnapshotPipe::new();
        let create = |from| SpillFile::create(&std::env::temp_dir(), from, || {});
        pipe.lock().bytes.append(&vec![7; LEN as usize]);
        while pipe.lock().bytes.len() >= PIPE_LEN {
            pipe.tend(&[0, LEN], Awaited::Nothing, create).expect("a disk that takes it");
            let state = pipe.lock();
            let waiting = state.spilled.as_ref().map_or(0, SpillFile::waiting);
            assert!(waiting <= 2 * WAITING_LEN_MAX + BLOCK as u64, "{waiting}");
        }
    }

    #[test]
    fn without_a_disk_writers_wait_for_the_slowest() {
        let pipe = SnapshotPipe::new();
        let writer = write_all(&pipe, 2 * PIPE_LEN);
        let (mut readers, mut failed) = ([0; 2], 0);
        let tend = |readers: &[u64], awaited| {
            let create = |from| SpillFile::create("/none/such".as_ref(), from, || {});
            usize::from(pipe.tend(readers, awaited, create).is_err())
        };
        while failed == 0 || pipe.held_up_since(0).is_none() {
            readers[0] = read_some(&pipe, readers[0], 1 << 20);
            failed += tend(&readers, Awaited::Nothing);
        }
        assert!(pipe.lock().bytes.start() == 0 && pipe.held_up_since(readers[0]).is_none() && failed == 1);
        readers[1] = PIPE_LEN;
        assert_eq!(tend(&readers, Awaited::Nothing), 0, "that is said once");
        assert!(pipe.held_up_since(0).is_none(), "somebody writes again");
        while !writer.is_finished() {
            readers = readers.map(|at| read_some(&pipe, at, 1 << 20));
            assert_eq!(tend(&readers, Awaited::Asked), 0);
        }
    }

    /// A job waits for the end of the snapshot, though no other replica is sent it.
    #[test]
    fn waiting_for_the_end_ignores_other_replicas() {
        for awaited in [Awaited::Nothing, Awaited::Due, Awaited::Asked] {
            let others_wait = awaited != Awaited::Nothing;
            let pipe = SnapshotPipe::new();
            let writer = write_all(&pipe, 3 * PIPE_LEN);
            let create = |from| SpillFile::create(&std::env::temp_dir(), from, || {});
            let began = std::time::Instant::now();
            while !writer.is_finished() && (others_wait || began.elapsed().as_millis() < 100) {
                assert!(began.elapsed().as_secs() < 60, "it waits");
                pipe.tend(&[0], awaited, create).expect("a disk that takes it");
            }
            assert_eq!((writer.is_finished(), pipe.lock().spilled.is_some()), (others_wait, others_wait));
            let mut at = 0;
            while !pipe.lock().ends_at(at) {
                at = read_some(&pipe, at, 1 << 20);
                pipe.tend(&[at], awaited, create).expect("a disk that takes it");
            }
            writer.join().expect("no panic");
            assert_eq!(at, 3 * PIPE_LEN);
        }
    }

    #[test]
    fn writers_without_readers_get_an_error() {
        let pipe = SnapshotPipe::new();
        let writer = std::thread::spawn({
            let mut inlet = Inlet(pipe.clone());
            move || (0..).find_map(|_| inlet.write_all(&[0; 1 << 20]).err())
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        pipe.cancel();
        assert_eq!(
            writer.join().expect("no panic").map(|error| error.kind()),
            Some(io::ErrorKind::BrokenPipe)
        );
    }
}
