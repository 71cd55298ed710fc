//! A lane of a copy at the source: a connection, its part of the snapshot, and its part of the journal.

use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use evenkeel_net as net;
use evenkeel_net::poll::await_events;
use evenkeel_persist::save_points::Awaited;
use parking_lot::Mutex;

use crate::node_connection::NodeConnection;
use crate::snapshot_pipe::SnapshotPipe;
use crate::spill_file::SpillFile;
use crate::{Replication, Stream, feed};

/// Bytes sent in a system call.
const SEND_LEN: usize = 1 << 20;

/// Bytes of the journal that stay in memory; the rest is on disk.
const MEMORY_LEN_MAX: u64 = 8 << 20;

/// Poll interval of a lane: the longest delay of a record.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A lane's part of the journal, and how far the lane has come. Shared by the thread that reads the
/// journal, the lane's thread, and the thread of the copy.
pub(super) struct LaneQueue {
    stream: Mutex<Stream>,
    /// Bytes that were appended to `stream`.
    appended: AtomicU64,
    /// Bytes of the lane that the target has acknowledged, of the snapshot and of the journal together.
    acked: AtomicU64,
    /// Bytes of the snapshot, once all of them are known.
    snapshot_len: AtomicU64,
}

impl Default for LaneQueue {
    fn default() -> LaneQueue {
        let mut stream = Stream::new();
        stream.keep();
        LaneQueue {
            stream: Mutex::new(stream),
            appended: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            snapshot_len: AtomicU64::new(u64::MAX),
        }
    }
}

impl LaneQueue {
    /// Appends commands that follow the snapshot.
    pub(super) fn append(&self, bytes: &[u8]) {
        let mut stream = self.stream.lock();
        evenkeel_store::memory::with_the_rest(|| stream.append(bytes));
        self.appended.fetch_add(bytes.len() as u64, AcqRel);
    }

    /// Bytes that the target has not acknowledged. `None`: the snapshot is not complete.
    pub(super) fn unacked(&self) -> Option<u64> {
        let snapshot = Some(self.snapshot_len.load(Acquire)).filter(|len| *len != u64::MAX)?;
        let all = snapshot + self.appended.load(Acquire);
        Some(all.saturating_sub(self.acked.load(Acquire)))
    }

    pub(super) fn acked(&self) -> u64 {
        self.acked.load(Acquire)
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> u64 {
        self.stream.lock().memory()
    }

    /// All bytes of the journal that are kept.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> Vec<u8> {
        let stream = self.stream.lock();
        let slices = stream.backlog().expect("it keeps them").slices(0, usize::MAX);
        slices.iter().flat_map(|slice| slice.iter().copied()).collect()
    }
}

/// How a target has answered.
pub(super) enum Answered {
    Yes,
    /// It is not ready yet, for this reason.
    Later(String),
}

/// Asks the target to take a connection as a lane.
///
/// # Errors
/// The connection is broken, or the target refuses the copy.
pub(super) fn introduce(
    connection: &mut NodeConnection,
    words: &[&[u8]],
    is_wanted: &dyn Fn() -> bool,
) -> Result<Answered, String> {
    let answer =
        connection.ask(words, is_wanted).map_err(|error| format!("the connection broke: {error}"))?;
    match answer.strip_prefix("-TRYAGAIN ") {
        Some(reason) => Ok(Answered::Later(reason.to_owned())),
        None if answer == "+OK" => Ok(Answered::Yes),
        None => Err(format!("the target replied: {}", answer.trim_start_matches('-').escape_debug())),
    }
}

/// A lane at work, on its thread.
pub(super) struct Lane {
    connection: NodeConnection,
    pipe: Arc<SnapshotPipe>,
    queue: Arc<LaneQueue>,
    /// Bytes of the snapshot that were sent, and whether these are all.
    at: u64,
    is_behind_snapshot: bool,
    /// Bytes of the journal that were sent.
    journal_at: u64,
    /// When the target last acknowledged bytes, or had acknowledged all.
    acked_at: Instant,
}

impl Lane {
    pub(super) fn new(connection: NodeConnection, pipe: Arc<SnapshotPipe>, queue: Arc<LaneQueue>) -> Lane {
        let acked_at = Instant::now();
        Lane { connection, pipe, queue, at: 0, is_behind_snapshot: false, journal_at: 0, acked_at }
    }

    /// Sends what there is until `is_over`.
    ///
    /// # Errors
    /// The reason why the copy has failed.
    pub(super) fn run(
        &mut self,
        replication: &Replication,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), String> {
        let mut sent = 0;
        while !is_over() {
            let writes = sent > 0 || self.connection.stream.unsent() > 0;
            let events = if writes { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
            let fd = self.connection.stream.fd().as_raw_fd();
            await_events(fd, events, POLL_INTERVAL).map_err(|error| error.to_string())?;
            let broken = |error: io::Error| format!("the connection to the target broke: {error}");
            self.listen().map_err(broken)?;
            sent = self.send().map_err(broken)?;
            self.tend(replication)?;
            self.check_silence(replication)?;
        }
        Ok(())
    }

    /// Reads acknowledgements.
    fn listen(&mut self) -> io::Result<()> {
        while self.connection.receive()? {}
        while let Some(line) = self.connection.line()? {
            let acked = line.strip_prefix(':').and_then(|number| number.parse::<u64>().ok());
            let acked = acked.ok_or_else(|| io::Error::other(line.escape_debug().to_string()))?;
            self.queue.acked.fetch_max(acked, AcqRel);
            self.acked_at = Instant::now();
        }
        Ok(())
    }

    fn send(&mut self) -> io::Result<usize> {
        let stream = &mut self.connection.stream;
        if stream.unsent() > 0 && !stream.send_sealed()? {
            return Ok(0);
        }
        if self.is_behind_snapshot { self.send_journal() } else { self.send_snapshot() }
    }

    fn send_snapshot(&mut self) -> io::Result<usize> {
        let state = self.pipe.lock();
        if state.ends_at(self.at) {
            self.queue.snapshot_len.store(self.at, Release);
            self.is_behind_snapshot = true;
            drop(state);
            return self.send_journal();
        }
        let sent = match state.spilled(self.at).map(|spilled| spilled.read(self.at)) {
            Some(None) => 0,
            Some(Some((piece, skip))) => {
                drop(state);
                self.connection.stream.write_gathered(&[IoSlice::new(&piece[skip..])])?
            }
            None => write(&mut self.connection.stream, &state.bytes.slices(self.at, SEND_LEN))?,
        };
        self.at += sent as u64;
        Ok(sent)
    }

    fn send_journal(&mut self) -> io::Result<usize> {
        let stream = self.queue.stream.lock();
        let at = self.journal_at;
        let sent = match &stream.spill_file {
            Some(spill_file) if spill_file.has(at) => match spill_file.read(at) {
                None => 0,
                Some((piece, skip)) => {
                    drop(stream);
                    self.connection.stream.write_gathered(&[IoSlice::new(&piece[skip..])])?
                }
            },
            _ => match stream.backlog() {
                Some(backlog) => write(&mut self.connection.stream, &backlog.slices(at, SEND_LEN))?,
                None => 0,
            },
        };
        self.journal_at += sent as u64;
        Ok(sent)
    }

    /// Frees the bytes that the socket has taken, and moves bytes of the journal to disk that are beyond
    /// [`MEMORY_LEN_MAX`].
    fn tend(&mut self, replication: &Replication) -> Result<(), String> {
        let settings = replication.core.settings();
        let folder: &Path = &settings.dir;
        let full = |error: io::Error| {
            format!("cannot keep what waits for the target, in {}: {error}", folder.display())
        };
        if !self.is_behind_snapshot {
            let readers = [self.at];
            self.pipe
                .tend(&readers, Awaited::Nothing, |from| SpillFile::create(folder, from, || ()))
                .map_err(full)?;
        }
        let mut stream = self.queue.stream.lock();
        stream.trim(0, &[self.journal_at]);
        let create = |from| SpillFile::create(folder, from, || ());
        stream.spill_file(MEMORY_LEN_MAX, feed::WITHOUT_DISK_LEN_MAX, create).map_err(full)
    }

    fn check_silence(&mut self, replication: &Replication) -> Result<(), String> {
        let timeout = Duration::from_secs(replication.core.settings().repl_timeout.into());
        let sent = self.at + self.journal_at;
        if self.queue.acked.load(Acquire) >= sent {
            self.acked_at = Instant::now();
        }
        if self.acked_at.elapsed() > timeout {
            return Err(format!("the target has acknowledged nothing for {} s", timeout.as_secs()));
        }
        Ok(())
    }
}

/// Writes slices, of which there may be none.
fn write(stream: &mut net::Stream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    if slices.is_empty() { Ok(0) } else { stream.write_gathered(slices) }
}
