//! The append-only file: the thread that writes the journal to disk, and the threads that wait for it.
//!
//! One thread takes the journal's records in order and appends them to the current incremental file. It puts
//! a SELECT before a record whose database differs from the last one's. The serving threads do not wait for
//! it, with two exceptions:
//! - With `appendfsync always`, the replies to logged commands wait for the sync ([`Aof::durable`]). Other
//!   replies go out.
//! - Writers wait while the unread journal exceeds `appendonly-buffer-limit`. A hanging disk is felt only
//!   then.
//!
//! With `everysec` and `no`, writers do not wake the thread. It polls every few milliseconds, writes the
//! records it finds with one write, and sleeps until woken after an idle period. So the append-only file
//! costs a serving thread a copy of the command and no system call.
//!
//! A rewrite is a snapshot that begins at a record number of the journal. Behind that record the thread goes
//! on in a new incremental file ([`Aof::switch_behind`]). When the snapshot is on disk it becomes the base,
//! and the older files become history. `docs/aof.md` has the formats and the rules of a start.
//!
//! A sync that replies wait for goes to the file or to its [`tail`], which costs the disk a single write. A
//! sync without waiting replies moves to another thread ([`async_fsync`]) if it takes longer than
//! [`sync`]'s `SYNC_MOMENT`, and the file is written meanwhile.
//!
//! Bytes that cannot be written stay in memory and are tried again; writers get MISCONF. Bytes that cannot be
//! *synced* may be lost although they were written, and no later sync of that file can be trusted: under
//! `always` nothing is acknowledged until a rewrite has begun a new file.

mod appender;
mod async_fsync;
mod file;
mod sync;
mod tail;
mod writer;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::time::Duration;

use evenkeel_rdb::aof::Directory;
use evenkeel_store::SlotGuard;
use evenkeel_store::journal::{Journal, Reader};
use parking_lot::{Condvar, Mutex};

pub(super) use self::appender::Appender;
pub(super) use self::file::LogFile;
pub use self::tail::boot;
use self::writer::{IDLE_POLL_INTERVAL, Writer, sleep_us};
use super::Blockers;
use super::Persist;
use super::position::Point;
use evenkeel_config::{Fsync, Settings};
use evenkeel_runtime::{clock, threads};

/// The place without a reader.
const NOWHERE: usize = usize::MAX;

/// `switch_behind` when no switch is due.
const NEVER: u64 = u64::MAX;

/// Whether replies wait for syncs and writes may bypass the page cache.
fn wants_tail(settings: &Settings) -> bool {
    settings.appendfsync == Fsync::Always && settings.appendonly_direct_io
}

/// The state of the append-only file that all threads share.
pub struct Aof {
    /// Whether the thread runs.
    is_on: AtomicBool,
    /// The place of the thread's reader in the journal, or [`NOWHERE`].
    place: AtomicUsize,
    pub(super) directory: Mutex<Option<Directory>>,
    /// The manifest of the files that this server has loaded or written as a whole. It lacks the data of any
    /// other manifest's files.
    pub(super) own: Mutex<Option<PathBuf>>,
    /// The record behind which a new incremental file begins.
    switch_behind: AtomicU64,
    switched: (Mutex<Switched>, Condvar),
    /// The last record that is safely on disk, as far as the disk can be trusted.
    durable: AtomicU64,
    /// The last record that the base contains.
    base_has: AtomicU64,
    /// Whether the listed files make up the data: a pending first base has been written.
    is_based: AtomicBool,
    /// Whether logging has ended, and the thread has only to write the rest.
    is_left: AtomicBool,
    /// Whether the thread is to end once everything is written.
    ends: AtomicBool,
    /// The replication position of the data when the server ends.
    end: Mutex<Option<Point>>,
    pub metrics: AofMetrics,
}

/// Metrics for INFO.
#[derive(Default)]
pub struct AofMetrics {
    /// Bytes of all files, and of the files that the last rewrite left.
    pub size: AtomicU64,
    pub base_size: AtomicU64,
    /// Bytes taken from the journal and not written yet.
    pub buffered: AtomicU64,
    pub syncs: AtomicU64,
    pub longest_write_us: AtomicU64,
    pub longest_sync_us: AtomicU64,
    pub recent_writes: RecentCalls,
    pub recent_syncs: RecentCalls,
    /// Syncs that took longer than [`SYNC_LONG`], and whether a sync is running that no reply waits for.
    pub delayed_syncs: AtomicU64,
    pub is_syncing: AtomicBool,
    /// How often writers had to wait because the unread journal exceeded its limit.
    pub crowded: AtomicU64,
    /// DEBUG AOF-SYNC-SLEEP: the extra duration of each sync that no reply waits for.
    pub sync_sleep_us: AtomicU64,
    /// DEBUG AOF-FLUSH-SLEEP: the delay before each write.
    pub flush_sleep_us: AtomicU64,
    pub write_failed: AtomicBool,
    /// The cause of a failure, for the error replies of refused writers.
    pub failure: Mutex<String>,
}

/// Calls of the disk since the flight recorder last looked.
#[derive(Default)]
pub struct RecentCalls {
    /// Start of the call that is under way, as microseconds since the Unix epoch; zero: there is none.
    began_us: AtomicU64,
    longest_us: AtomicU64,
}

impl RecentCalls {
    fn begin(&self) {
        self.began_us.store(clock::unix_us(), Relaxed);
    }

    fn end(&self) {
        let began_us = self.began_us.swap(0, Relaxed);
        self.longest_us.fetch_max(clock::unix_us().saturating_sub(began_us), Relaxed);
    }

    /// Returns the duration of the longest call that has ended since the last call of this function, or of
    /// the call that is under way, in microseconds.
    pub fn take_us(&self) -> u64 {
        let under_way_us = match self.began_us.load(Relaxed) {
            0 => 0,
            began_us => clock::unix_us().saturating_sub(began_us),
        };
        self.longest_us.swap(0, Relaxed).max(under_way_us)
    }
}

/// The number of the incremental file that was begun last, and the record behind which it begins.
struct Switched {
    behind: u64,
    seq: Result<u64, String>,
}

impl AofMetrics {
    /// Resets the counters, for CONFIG RESETSTAT.
    pub(super) fn reset(&self) {
        let counted =
            [&self.syncs, &self.longest_write_us, &self.longest_sync_us, &self.delayed_syncs, &self.crowded];
        counted.iter().for_each(|figure| figure.store(0, Relaxed));
    }
}

impl Default for Aof {
    fn default() -> Aof {
        Aof {
            is_on: AtomicBool::new(false),
            place: AtomicUsize::new(NOWHERE),
            directory: Mutex::default(),
            own: Mutex::default(),
            switch_behind: AtomicU64::new(NEVER),
            switched: (Mutex::new(Switched { behind: NEVER, seq: Ok(0) }), Condvar::new()),
            durable: AtomicU64::new(0),
            base_has: AtomicU64::new(0),
            is_based: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            end: Mutex::new(None),
            metrics: AofMetrics::default(),
        }
    }
}

impl Aof {
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Acquire)
    }

    /// Whether the thread runs and is not about to end.
    pub fn is_running(&self) -> bool {
        self.is_on() && !self.ends.load(Acquire)
    }

    /// Whether commands are logged.
    pub fn logs(&self) -> bool {
        self.is_on() && !self.is_left.load(Acquire)
    }

    /// Ends the logging of commands. The caller holds all locks.
    pub(super) fn set_left(&self) {
        self.is_left.store(true, Release);
    }

    /// Whether the last write or sync failed, so an acknowledged command may not be on disk.
    pub fn fails(&self) -> bool {
        self.is_on() && self.metrics.write_failed.load(Relaxed)
    }

    /// Bytes of the journal that the thread has not taken yet.
    pub fn unread(&self, journal: &Journal) -> u64 {
        journal.unread_by(self.place.load(Relaxed)) as u64
    }

    /// The number of the last record that is safely on disk.
    #[inline]
    pub fn durable(&self) -> u64 {
        self.durable.load(Acquire)
    }

    /// Whether a start of the server would find the record with this number. While the first base is being
    /// written, a start would find nothing.
    pub fn keeps(&self, record: u64) -> bool {
        self.logs() && self.is_based.load(Acquire) && record <= self.durable()
    }

    /// Whether the logged commands and the present files together are the data: the first base has been
    /// written.
    pub(super) fn is_complete(&self) -> bool {
        self.logs() && self.is_based.load(Acquire)
    }

    /// Sets the replication position of the data for a server that ends. Nothing is logged any more.
    pub(super) fn set_end(&self, point: Option<Point>) {
        *self.end.lock() = point;
    }

    /// Marks the listed files as the data. Their base contains the records up to `last`.
    pub(super) fn set_base(&self, last: u64) {
        self.base_has.store(last, Release);
        self.is_based.store(true, Release);
    }

    /// Requests a new incremental file behind this record. The caller holds all locks.
    pub(super) fn switch_behind(&self, number: u64) {
        self.switched.0.lock().behind = NEVER;
        self.switch_behind.store(number, Release);
    }

    /// Waits until the file requested behind this record has been begun. Returns its number, or the cause of
    /// the failure.
    pub(super) fn wait_for_switch(
        &self,
        behind: u64,
        is_cancelled: impl Fn() -> bool,
    ) -> Result<u64, String> {
        let mut switched = self.switched.0.lock();
        while switched.behind != behind {
            if !self.is_on() {
                return Err("the append-only file was disabled".into());
            }
            // A hanging disk must not keep the server from ending.
            if is_cancelled() {
                return Err("it was cancelled".into());
            }
            self.switched.1.wait_for(&mut switched, IDLE_POLL_INTERVAL);
        }
        switched.seq.clone()
    }
}

/// Starts the thread, which writes the records of `reader` to `file`.
pub(super) fn start(persist: &Arc<Persist>, file: LogFile, reader: Reader) -> io::Result<()> {
    let (aof, after, place) = (&persist.aof, reader.last(), reader.place());
    let writer = Writer::new(persist, file, reader);
    aof.place.store(place, Relaxed);
    aof.ends.store(false, Release);
    // A request that the previous thread did not reach is not for this thread.
    aof.switch_behind.store(NEVER, Release);
    aof.is_based.store(false, Release);
    aof.is_left.store(false, Release);
    aof.durable.store(after, Release);
    aof.is_on.store(true, Release);
    threads::named("aof").spawn(move || {
        evenkeel_store::memory::register_thread();
        // No other thread takes these records: sooner or later all writers would block for ever. Acknowledged
        // commands are on disk.
        threads::or_exit("append-only file thread", || writer.run());
    })?;
    Ok(())
}

/// Releases a reader whose thread could not be started. The caller holds all locks.
pub(super) fn forget(persist: &Persist, guard: &mut SlotGuard<'_>) {
    let aof = &persist.aof;
    guard.dismiss(aof.place.load(Relaxed));
    vacate(persist);
    aof.is_on.store(false, Release);
}

/// Releases the place of a reader whose thread has ended.
pub(super) fn vacate(persist: &Persist) {
    let place = persist.aof.place.swap(NOWHERE, Relaxed);
    persist.core.keyspace.journal.vacate(place);
}

/// Refuses writes while the append-only file fails and is enabled; otherwise allows them. The caller calls it
/// after each change of either condition.
pub(super) fn refuse_writes(persist: &Persist) {
    let metrics = &persist.aof.metrics;
    // Serialised by this lock: the last caller sees all changes.
    let _one = metrics.failure.lock();
    let fails = metrics.write_failed.load(Relaxed);
    persist.core.blockers.set(Blockers::NO_LOG, fails && persist.core.settings().appendonly);
}

/// The place of the thread's reader in the journal.
pub(super) fn place(persist: &Persist) -> usize {
    persist.aof.place.load(Relaxed)
}

/// Ends the thread once all logged records are written and synced, and waits for that.
pub fn stop(persist: &Persist) {
    let aof = &persist.aof;
    aof.ends.store(true, Release);
    // Blocked writers may be waiting for a disk that hangs, and nothing more is logged.
    persist.core.blockers.set(Blockers::CROWDED, false);
    persist.core.workers.wake_all();
    persist.core.keyspace.journal.wake(aof.place.load(Relaxed));
    while aof.is_on() {
        std::thread::sleep(Duration::from_millis(1));
    }
}
