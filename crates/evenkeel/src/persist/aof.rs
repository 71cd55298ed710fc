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
//! [`SYNC_MOMENT`], and the file is written meanwhile.
//!
//! Bytes that cannot be written stay in memory and are tried again; writers get MISCONF. Bytes that cannot be
//! *synced* may be lost although they were written, and no later sync of that file can be trusted: under
//! `always` nothing is acknowledged until a rewrite has begun a new file.

mod async_fsync;
mod file;
mod tail;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

use evenkeel_rdb::aof::tail::remove as remove_tail;
use evenkeel_rdb::aof::{Directory, push_comment, push_timestamp};
use evenkeel_store::SlotGuard;
use evenkeel_store::journal::{Journal, Reader, select};
use parking_lot::{Condvar, Mutex};

use self::async_fsync::Syncer;
pub(super) use self::file::LogFile;
use self::tail::TailFile;
pub(crate) use self::tail::boot;
use super::Blockers;
use super::Persist;
use super::position::Point;
use evenkeel_config::{Fsync, Settings};
use evenkeel_runtime::clock;
use evenkeel_runtime::threads;

/// Bytes taken from the journal before they are written: enough that the cost of a write itself does not
/// matter, and few enough that they are still in a CPU cache.
const WRITE_LEN: usize = 256 * 1024;

/// A record of more bytes is written while it is read, so it is never copied as a whole.
const LONG: usize = 8 << 20;

/// Bytes for the timestamp and the SELECT before a record.
const PREFACE_LEN: usize = 128;

/// Bytes a second. A disk that takes less is better fed from the page cache, which hands it larger pieces.
/// This applies once a quarter ([`UNREAD_PART`]) of `appendonly-buffer-limit` is unread. With `everysec` the
/// cache must not hold more than a second's worth, since the sync waits for all of it.
const SLOW_DISK: f64 = 100e6;
const UNREAD_PART: u64 = 4;

/// The longest sleep after a write. A crash of the process, but not of the machine, may lose this much time,
/// and the bytes in the file's buffer.
const IDLE_SLEEP_MAX: Duration = Duration::from_millis(5);

/// The shortest sleep, under load: the records are still in a CPU cache when they are read.
const IDLE_SLEEP_MIN: Duration = Duration::from_micros(500);

/// Bytes found in one round that halve the sleep, and bytes below which it doubles.
const MUCH: usize = WRITE_LEN;
const LITTLE: usize = 64 * 1024;

/// After this time without records the thread sleeps until it is woken.
const IDLE: Duration = Duration::from_secs(1);

/// The longest sleep of an idle thread, which also has syncs and switches to look after.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long the ending thread tries to write the rest, unless the write before had failed as well.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Delay before a retry after a failed write.
const RETRY: Duration = Duration::from_millis(200);

const SYNC_EVERY: Duration = Duration::from_secs(1);

/// How long no tail is made after a failure to make or write a tail.
const NO_TAIL: Duration = Duration::from_secs(60);

/// How long a sync that no reply waits for may hold up writes: while it does, a crash of the process may lose
/// more.
const SYNC_MOMENT: Duration = Duration::from_millis(200);

/// With `everysec`, the loss in a crash of the machine grows by the duration of a sync. Beyond this the
/// operator is warned.
const SYNC_LONG: Duration = Duration::from_secs(2);

/// The place without a reader.
const NOWHERE: usize = usize::MAX;

/// `switch_behind` when no switch is due.
const NEVER: u64 = u64::MAX;

/// Whether replies wait for syncs and writes may bypass the page cache.
fn wants_tail(settings: &Settings) -> bool {
    settings.appendfsync == Fsync::Always && settings.appendonly_direct_io
}

/// The state of the append-only file that all threads share.
pub(crate) struct Aof {
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
    pub(crate) metrics: AofMetrics,
}

/// Metrics for INFO.
#[derive(Default)]
pub(crate) struct AofMetrics {
    /// Bytes of all files, and of the files that the last rewrite left.
    pub(crate) size: AtomicU64,
    pub(crate) base_size: AtomicU64,
    /// Bytes taken from the journal and not written yet.
    pub(crate) buffered: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) longest_write_us: AtomicU64,
    pub(crate) longest_sync_us: AtomicU64,
    /// Syncs that took longer than [`SYNC_LONG`], and whether a sync is running that no reply waits for.
    pub(crate) delayed_syncs: AtomicU64,
    pub(crate) is_syncing: AtomicBool,
    /// How often writers had to wait because the unread journal exceeded its limit.
    pub(crate) crowded: AtomicU64,
    /// DEBUG AOF-SYNC-SLEEP: the extra duration of each sync that no reply waits for.
    pub(crate) sync_sleep_us: AtomicU64,
    /// DEBUG AOF-FLUSH-SLEEP: the delay before each write.
    pub(crate) flush_sleep_us: AtomicU64,
    pub(crate) write_failed: AtomicBool,
    /// The cause of a failure, for the error replies of refused writers.
    pub(crate) failure: Mutex<String>,
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
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Acquire)
    }

    /// Whether the thread runs and is not about to end.
    pub(crate) fn is_running(&self) -> bool {
        self.is_on() && !self.ends.load(Acquire)
    }

    /// Whether commands are logged.
    pub(crate) fn logs(&self) -> bool {
        self.is_on() && !self.is_left.load(Acquire)
    }

    /// Ends the logging of commands. The caller holds all locks.
    pub(super) fn set_left(&self) {
        self.is_left.store(true, Release);
    }

    /// Whether the last write or sync failed, so an acknowledged command may not be on disk.
    pub(super) fn fails(&self) -> bool {
        self.is_on() && self.metrics.write_failed.load(Relaxed)
    }

    /// Bytes of the journal that the thread has not taken yet.
    pub(crate) fn unread(&self, journal: &Journal) -> u64 {
        journal.unread_by(self.place.load(Relaxed)) as u64
    }

    /// The number of the last record that is safely on disk.
    #[inline]
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Acquire)
    }

    /// Whether a start of the server would find the record with this number. While the first base is being
    /// written, a start would find nothing.
    pub(crate) fn keeps(&self, record: u64) -> bool {
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
    let writer = Writer {
        persist: persist.clone(),
        reader,
        file,
        fails: false,
        taken: after,
        selected: None,
        second: 0,
        broken: false,
        doubtful: None,
        more: false,
        synced: after,
        last_sync: Instant::now(),
        last_file_sync: Instant::now(),
        tail: None,
        tail_not_before: None,
        in_tail: false,
        syncer: None,
        under_way: None,
        last_record: Instant::now(),
        idle_sleep: IDLE_SLEEP_MAX,
    };
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
pub(crate) fn stop(persist: &Persist) {
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

struct Writer {
    persist: Arc<Persist>,
    reader: Reader,
    file: LogFile,
    /// Whether the last write failed.
    fails: bool,
    /// The last record taken from the journal.
    taken: u64,
    /// The database selected behind `taken`.
    selected: Option<u32>,
    /// The second of the last timestamp line.
    second: u64,
    /// Whether a sync of this file has failed.
    broken: bool,
    /// The last record in a file whose sync failed. Records up to it are on disk once a base contains them.
    doubtful: Option<u64>,
    /// Whether more records may be taken without a sleep.
    more: bool,
    /// The last record that is synced.
    synced: u64,
    last_sync: Instant,
    /// The time of the last sync of the file itself.
    last_file_sync: Instant,
    /// The target of the syncs that replies wait for, except for one sync a second.
    tail: Option<TailFile>,
    /// The earliest time of the next attempt to make a tail, after a failure.
    tail_not_before: Option<Instant>,
    /// Whether the last sync went to the tail.
    in_tail: bool,
    /// The thread for syncs that no reply waits for, started by the first of them, and the running sync.
    syncer: Option<Syncer>,
    under_way: Option<UnderWay>,
    last_record: Instant,
    /// The sleep between two polls.
    idle_sleep: Duration,
}

/// A sync that has begun.
#[derive(Clone, Copy)]
struct UnderWay {
    began: Instant,
    /// The last record that was in the file as a whole, if known.
    has: Option<u64>,
    /// The end of the file when the sync began.
    end: u64,
    by_tail: bool,
}

/// The kind of sync that is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// A sync of the tail is enough, if there is a tail.
    TailWillDo,
    OfTheFile,
    /// A sync of the file that no reply waits for.
    InItsOwnTime,
}

/// Sleeps for so many microseconds.
fn sleep_us(us: &AtomicU64) {
    let us = us.load(Relaxed);
    if us > 0 {
        std::thread::sleep(Duration::from_micros(us));
    }
}

impl Writer {
    fn run(mut self) {
        let persist = self.persist.clone();
        let (aof, journal) = (&persist.aof, &persist.core.keyspace.journal);
        loop {
            let settings = persist.core.settings();
            let ends = aof.ends.load(Acquire);
            self.look_at_sync();
            if !self.fails || self.file.pending() == 0 {
                self.take(journal, &settings);
            }
            let is_sync_due = self.is_sync_due(&settings, ends);
            let is_switch_due = self.reader.last() >= aof.switch_behind.load(Acquire);
            let must_all = ends || is_sync_due || is_switch_due;
            if settings.appendfsync == Fsync::Always
                && let Some(tail) = &mut self.tail
            {
                tail.prepare(self.file.inode(), self.file.end(), self.file.pending_bytes());
            }
            let wrote = self.write(journal, must_all);
            self.unblock_writers(journal, &settings);
            if wrote {
                let how = match settings.appendfsync {
                    _ if ends => How::OfTheFile,
                    Fsync::Always if wants_tail(&settings) => How::TailWillDo,
                    Fsync::Always => How::OfTheFile,
                    Fsync::EverySecond | Fsync::Never => How::InItsOwnTime,
                };
                if is_sync_due && self.sync(how).is_ok() && self.under_way.is_none() {
                    self.publish();
                    if !ends {
                        self.maintain_tail(&settings);
                    }
                }
                self.switch_if_due();
                self.clear_sync_error();
            }
            let is_behind = self.reader.unread(journal) > 0;
            if ends && wrote && !is_behind {
                break;
            }
            let failed_before = std::mem::replace(&mut self.fails, !wrote);
            if ends && !wrote && (failed_before || self.last_record.elapsed() > LAST_WRITE_TIMEOUT) {
                let left = self.file.pending() + self.reader.unread(journal);
                log::warn!("{left} bytes could not be written to the append-only file and are lost.");
                break;
            }
            if !wrote {
                self.rest_before_retry(ends);
            } else if !self.more {
                self.rest(journal, settings.appendfsync);
            }
        }
        self.write_end();
        self.file.touch();
        let _ = self.sync(How::OfTheFile);
        self.leave();
    }

    /// Appends the replication position of the written data, if it is known.
    fn write_end(&mut self) {
        let point = self.persist.aof.end.lock().take();
        let is_end = |point: &Point| point.record == self.reader.last() && self.file.pending() == 0;
        if let Some(Point { position, .. }) = point.filter(is_end)
            && !self.broken
            && self.doubtful.is_none()
        {
            let note = position.note();
            push_comment(self.file.room(PREFACE_LEN + note.len()), &note);
            let persist = self.persist.clone();
            self.write(&persist.core.keyspace.journal, true);
        }
    }

    /// Releases all threads that wait for the append-only file.
    fn leave(&mut self) {
        if let Some(tail) = self.tail.take()
            && self.synced == self.taken
        {
            tail.remove();
        }
        let aof = &self.persist.aof;
        aof.metrics.write_failed.store(false, Relaxed);
        refuse_writes(&self.persist);
        aof.metrics.buffered.store(0, Relaxed);
        aof.is_on.store(false, Release);
        // A thread that sets CROWDED afterwards checks again whether this thread is still there to clear it.
        std::sync::atomic::fence(SeqCst);
        self.persist.core.blockers.set(Blockers::CROWDED, false);
        aof.switched.1.notify_all();
        self.publish();
        self.persist.core.workers.wake_all();
    }

    /// Takes records until there is enough to write, or a new file is to begin.
    fn take(&mut self, journal: &Journal, settings: &Settings) {
        let switch_behind = &self.persist.aof.switch_behind;
        if self.reader.last() >= switch_behind.load(Acquire) {
            return;
        }
        let now_s = if settings.aof_timestamp_enabled { clock::unix_ms() / 1000 } else { 0 };
        self.more = false;
        let Writer { reader, file, selected, second, taken, more, tail, .. } = self;
        let (mut found, end_before) = (0, file.end());
        // The tail gets pending bytes before the file does.
        let may_write = tail.is_none();
        // The place of the switch is published before the first record of the new file gets its number, but
        // perhaps after this thread has read it. So it is read again with each record in hand: a record taken
        // for the old file would be in neither the base nor a file that stays.
        let is_of_this_file = |number| number <= switch_behind.load(Acquire);
        reader.read_while(journal, is_of_this_file, |record| {
            *taken = record.number;
            if !record.is_data {
                return true;
            }
            let is_worth_offloading = may_write && record.bytes.len() > LONG;
            let buffer = file.room(PREFACE_LEN + if is_worth_offloading { 0 } else { record.bytes.len() });
            if now_s > *second {
                *second = now_s;
                push_timestamp(buffer, now_s as i64);
            }
            if *selected != Some(record.first_db) {
                select(buffer, record.first_db);
            }
            if is_worth_offloading {
                file.append_long(record.bytes);
            } else {
                buffer.extend_from_slice(record.bytes);
            }
            *selected = Some(record.last_db);
            found += record.bytes.len();
            *more = found >= WRITE_LEN;
            !*more
        });
        let written = self.file.end().saturating_sub(end_before); // another program may have cut the file off
        self.persist.aof.metrics.size.fetch_add(written, Relaxed);
        self.more |= self.reader.last() >= switch_behind.load(Acquire);
        if found > 0 {
            self.last_record = Instant::now();
        }
        self.idle_sleep = match found {
            MUCH.. => (self.idle_sleep / 2).max(IDLE_SLEEP_MIN),
            ..LITTLE => (self.idle_sleep * 2).min(IDLE_SLEEP_MAX),
            _ => self.idle_sleep,
        };
    }

    /// Writes the taken records. Returns false if some could not be written. Unless `must_all`, some of them
    /// may wait for more.
    fn write(&mut self, journal: &Journal, must_all: bool) -> bool {
        let metrics = &self.persist.aof.metrics;
        let pending = self.file.pending();
        metrics.buffered.store(pending as u64, Relaxed);
        if pending == 0 || !must_all && self.file.may_wait() {
            return true;
        }
        sleep_us(&metrics.flush_sleep_us);
        let began = Instant::now();
        let result = if must_all { self.file.write_all() } else { self.file.write() };
        let left = self.file.pending();
        metrics.size.fetch_add((pending - left) as u64, Relaxed);
        metrics.buffered.store(left as u64, Relaxed);
        if let Err(error) = result {
            self.record_failure(&error);
            return false;
        }
        let unread_max = self.persist.core.settings().appendonly_buffer_limit / UNREAD_PART;
        let is_slow = || ((pending - left) as f64) < SLOW_DISK * began.elapsed().as_secs_f64();
        if self.file.goes_past() && self.reader.unread(journal) as u64 > unread_max && is_slow() {
            self.file.rest();
        }
        metrics.longest_write_us.fetch_max(began.elapsed().as_micros() as u64, Relaxed);
        self.record_latency("aof-write", began.elapsed());
        if metrics.write_failed.load(Relaxed) && !self.broken && self.doubtful.is_none() {
            log::info!("The append-only file is writable again.");
            metrics.write_failed.store(false, Relaxed);
            refuse_writes(&self.persist);
        }
        true
    }

    fn record_failure(&self, error: &io::Error) {
        let metrics = &self.persist.aof.metrics;
        *metrics.failure.lock() = evenkeel_config::cause(error);
        if !metrics.write_failed.swap(true, Relaxed) {
            log::warn!(
                "Error writing to the append-only file: {error}. Pending data is kept in memory and write \
                 commands are refused until writing succeeds."
            );
        }
        refuse_writes(&self.persist);
    }

    /// Unblocks writers once enough of the journal has been taken.
    fn unblock_writers(&self, journal: &Journal, settings: &Settings) {
        let blockers = &self.persist.core.blockers;
        let is_crowded = blockers.any().contains(Blockers::CROWDED);
        if is_crowded && self.reader.unread(journal) as u64 <= settings.appendonly_buffer_limit / 2 {
            blockers.set(Blockers::CROWDED, false);
            self.persist.core.workers.wake_all();
            log::info!("Pending data was written to the append-only file. Write commands continue.");
        }
    }

    fn is_sync_due(&self, settings: &Settings, ends: bool) -> bool {
        if self.under_way.is_some() && !ends && settings.appendfsync != Fsync::Always {
            return false;
        }
        let due = match settings.appendfsync {
            Fsync::Always => true,
            Fsync::EverySecond => {
                self.last_sync.elapsed() >= SYNC_EVERY || self.file.is_much() && settings.appendonly_direct_io
            }
            Fsync::Never => false,
        };
        let has_unsynced = self.taken > self.synced;
        // Bytes that are in the tail alone get a second as well; a tail that is no longer wanted ends here.
        let is_old = self.in_tail && self.last_file_sync.elapsed() >= SYNC_EVERY;
        let is_useless = self.tail.is_some() && !wants_tail(settings);
        has_unsynced && (due || ends) || is_old || is_useless
    }

    /// Syncs the file: the file itself or, if replies wait and it is enough, the tail. A sync `InItsOwnTime`
    /// may still be running on return.
    fn sync(&mut self, how: How) -> io::Result<()> {
        let _ = self.await_sync(); // a failure has been recorded
        let began = Instant::now();
        self.last_sync = began;
        if self.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let is_awaited = self.persist.core.settings().appendfsync == Fsync::Always;
        self.persist.aof.metrics.is_syncing.store(!is_awaited, Relaxed);
        let end = self.file.end();
        let may_do = is_awaited && how == How::TailWillDo && self.last_file_sync.elapsed() < SYNC_EVERY;
        let by_tail = may_do && self.tail.as_mut().is_some_and(|tail| tail.sync(end));
        let has = (self.file.pending() == 0).then_some(self.taken);
        let sync = UnderWay { began, has, end, by_tail };
        if by_tail {
            return self.end_sync(sync, Ok(()));
        }
        if how == How::InItsOwnTime && self.begin_beside() {
            self.under_way = Some(sync);
            let ended = self.syncer.as_ref().and_then(|syncer| syncer.end_within(SYNC_MOMENT));
            return match ended {
                Some(result) => self.end_sync(sync, result),
                None => {
                    // Bytes that come now go through the cache at once, and do not wait for more.
                    self.file.rest();
                    Ok(())
                }
            };
        }
        let result = self.file.sync();
        self.end_sync(sync, result)
    }

    /// Begins a sync on the other thread. Returns false if that fails.
    fn begin_beside(&mut self) -> bool {
        if self.syncer.is_none() {
            self.syncer = Syncer::start(&self.persist);
        }
        let begun = self.syncer.as_ref().is_some_and(|syncer| self.file.sync_beside(syncer));
        if !begun {
            self.syncer = None;
        }
        begun
    }

    /// Handles the end of a running sync that has ended meanwhile.
    fn look_at_sync(&mut self) {
        let (Some(sync), Some(syncer)) = (self.under_way, &self.syncer) else { return };
        if let Some(result) = syncer.end_within(Duration::ZERO)
            && self.end_sync(sync, result).is_ok()
        {
            self.publish();
            // The tail dates from a time in which replies waited for syncs. The file itself has everything
            // now.
            if let Some(tail) = self.tail.take_if(|_| !wants_tail(&self.persist.core.settings())) {
                tail.remove();
            }
        }
    }

    /// Waits for the end of a running sync.
    fn await_sync(&mut self) -> io::Result<()> {
        let (Some(sync), Some(syncer)) = (self.under_way, &self.syncer) else { return Ok(()) };
        let result = syncer.end();
        self.end_sync(sync, result)
    }

    /// Records the result of a sync that has ended.
    fn end_sync(&mut self, sync: UnderWay, result: io::Result<()>) -> io::Result<()> {
        self.under_way = None;
        let metrics = &self.persist.aof.metrics;
        let settings = self.persist.core.settings();
        metrics.is_syncing.store(false, Relaxed);
        metrics.syncs.fetch_add(1, Relaxed);
        self.record_sync(sync.began.elapsed(), settings.appendfsync == Fsync::Always);
        match &result {
            Ok(()) => {
                self.synced = sync.has.unwrap_or(self.synced);
                self.in_tail = sync.by_tail;
                if !sync.by_tail {
                    self.last_file_sync = Instant::now();
                    let mut end = sync.end;
                    // Bytes written meanwhile may be in the cache.
                    if self.file.end() == end {
                        let is_each_second = settings.appendfsync == Fsync::EverySecond;
                        self.file.record_sync(is_each_second && settings.appendonly_direct_io);
                        end = self.file.end();
                    }
                    self.tail.iter_mut().for_each(|tail| tail.record_synced(end));
                }
            }
            Err(error) => {
                // The kernel may have dropped the bytes it could not write, and reports that only once. The
                // tail may have the only copy, and stays.
                (self.tail, self.in_tail) = (None, false);
                self.broken = true;
                *metrics.failure.lock() = evenkeel_config::cause(error);
                metrics.write_failed.store(true, Relaxed);
                refuse_writes(&self.persist);
                log::warn!(
                    "Error syncing the append-only file: {error}. Written data may be lost: write commands \
                     are refused, and with 'appendfsync always' no write is acknowledged. Run BGREWRITEAOF \
                     to start a new file."
                );
            }
        }
        result
    }

    /// Makes a tail or removes it, as configured. Called after a sync, when its waiters have been released.
    fn maintain_tail(&mut self, settings: &Settings) {
        if self.in_tail {
            self.file.start_writeback();
            return;
        }
        if let Some(tail) = self.tail.take_if(|tail| !wants_tail(settings) || !tail.is_good()) {
            if tail.has_failed() {
                self.put_tail_off("a write to the tail failed");
            }
            tail.remove();
        }
        let aof = &self.persist.aof;
        // Before there is a base, a start would not use the tail; while records are in doubt, an older tail
        // may be needed.
        let is_due = aof.is_based.load(Acquire) && self.doubtful.is_none();
        let may_try = self.tail_not_before.is_none_or(|moment| Instant::now() >= moment);
        if self.tail.is_none() && wants_tail(settings) && is_due && may_try {
            // If the directory is being changed at the moment, the next sync makes the tail.
            let directory = aof.directory.try_lock();
            let path = directory.and_then(|directory| Some(directory.as_ref()?.tail_path()));
            match path.map(|path| TailFile::create(path, self.file.end())) {
                None => {}
                Some(Ok(tail)) => self.tail = Some(tail),
                Some(Err(error)) => self.put_tail_off(&error.to_string()),
            }
        }
    }

    fn put_tail_off(&mut self, reason: &str) {
        if self.tail_not_before.is_none() {
            log::info!("The append-only file has no tail file, so each fsync takes longer: {reason}");
        }
        self.tail_not_before = Some(Instant::now() + NO_TAIL);
    }

    /// Records the duration of a sync.
    fn record_sync(&self, took: Duration, is_awaited: bool) {
        let metrics = &self.persist.aof.metrics;
        metrics.longest_sync_us.fetch_max(took.as_micros() as u64, Relaxed);
        let event = if is_awaited { "aof-fsync-always" } else { "aof-fsync" };
        self.record_latency(event, took);
        if took > SYNC_LONG {
            metrics.delayed_syncs.fetch_add(1, Relaxed);
            log::warn!(
                "An fsync of the append-only file took {:.1} s: the disk is busy or slow. Data written in \
                 the meantime is not durable until the next fsync.",
                took.as_secs_f64()
            );
        }
    }

    fn record_latency(&self, event: &'static str, took: Duration) {
        let threshold_ms = self.persist.core.settings().latency_monitor_threshold;
        self.persist.core.latency.record(event, took.as_micros() as u64, threshold_ms);
    }

    /// Trusts the disk again once a base contains the records of the file whose sync failed.
    fn clear_sync_error(&mut self) {
        let aof = &self.persist.aof;
        // The present file may be in doubt by now as well. Then a further base will cover it.
        if !self.broken && self.doubtful.is_some_and(|last| aof.base_has.load(Acquire) >= last) {
            self.doubtful = None;
            // A tail left by the failed sync has nothing that the base lacks.
            if let Some(directory) = &*aof.directory.lock() {
                let _ = remove_tail(&directory.tail_path()); // the next tail takes its place
            }
            log::info!("The new base file has all data that was possibly lost. Write commands continue.");
            aof.metrics.write_failed.store(false, Relaxed);
            refuse_writes(&self.persist);
            self.publish();
        }
    }

    /// Releases the replies that wait for the synced records.
    fn publish(&self) {
        if self.doubtful.is_some() {
            return;
        }
        let aof = &self.persist.aof;
        aof.durable.store(self.synced, Release);
        self.persist.core.workers.notify_durable();
    }

    fn switch_if_due(&mut self) {
        let persist = self.persist.clone();
        let aof = &persist.aof;
        let behind = aof.switch_behind.load(Acquire);
        if self.reader.last() < behind || self.file.pending() > 0 {
            return;
        }
        // Only the end of the last file may be torn. A failure is recorded, and makes the records of the file
        // doubtful.
        if self.sync(How::OfTheFile).is_ok() {
            self.publish();
        }
        let mut directory = aof.directory.lock();
        let directory = directory.as_mut().expect("it is there for as long as the thread runs");
        let begun = directory.next_incremental().map_err(|error| error.to_string());
        let begun = begun.and_then(|file| {
            self.file.begin(file).map_err(|error| error.to_string())?;
            Ok(directory.manifest().incremental.last().map_or(0, |entry| entry.seq))
        });
        if begun.is_ok() {
            self.tail.take_if(|tail| tail.begin().is_err()).into_iter().for_each(TailFile::remove);
            // Each file states its own database and timestamp.
            (self.selected, self.second) = (None, 0);
            if std::mem::take(&mut self.broken) {
                self.doubtful = Some(self.taken);
            }
        }
        // Tried once: a caller that wants another file requests it again, and may have done so meanwhile.
        let _ = aof.switch_behind.compare_exchange(behind, NEVER, AcqRel, Acquire);
        let mut switched = aof.switched.0.lock();
        *switched = Switched { behind, seq: begun };
        aof.switched.1.notify_all();
    }

    /// Sleeps until a retry may succeed, or the thread is to end.
    fn rest_before_retry(&self, ends: bool) {
        let until = Instant::now() + RETRY;
        while Instant::now() < until && self.persist.aof.ends.load(Acquire) == ends {
            std::thread::sleep(IDLE_SLEEP_MAX);
        }
    }

    /// Waits for more records.
    fn rest(&self, journal: &Journal, policy: Fsync) {
        let needs_sync = policy != Fsync::Never && self.synced != self.taken;
        let is_idle = self.last_record.elapsed() > IDLE && !needs_sync;
        if policy == Fsync::Always || is_idle {
            self.reader.sleep(journal, IDLE_POLL_INTERVAL);
        } else {
            std::thread::sleep(self.idle_sleep);
        }
    }
}
