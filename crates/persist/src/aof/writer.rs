//! The thread that writes the journal to the append-only file.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use evenkeel_rdb::aof::push_comment;
use evenkeel_store::journal::{Journal, Reader};

use super::appender::Appender;
use super::file::LogFile;
use super::sync::{How, SyncState};
use super::tail::TailFile;
use super::{NEVER, Switched, refuse_writes, wants_tail};
use crate::position::Point;
use crate::{Blockers, Persist};
use evenkeel_config::{Fsync, Settings};
use evenkeel_runtime::clock;

/// Bytes taken from the journal before they are written: enough that the cost of a write itself does not
/// matter, and few enough that they are still in a CPU cache.
const WRITE_LEN: usize = 256 * 1024;

/// Bytes around the text of a comment.
const COMMENT_LEN: usize = 16;

/// Bytes a second. A disk that takes less is better fed from the page cache, which hands it larger pieces.
/// This applies once a quarter ([`UNREAD_PART`]) of `appendonly-buffer-limit` is unread. With `everysec` the
/// cache must not hold more than a second's worth, since the sync waits for all of it.
const SLOW_DISK: f64 = 100e6;

const UNREAD_PART: u64 = 4;

/// The longest sleep after a write. A crash of the process, but not of the machine, may lose this much time,
/// and the bytes in the file's buffer.
const IDLE_SLEEP_MAX: Duration = Duration::from_millis(5);

/// The longest sleep of an idle thread, which also has syncs and switches to look after.
pub(super) const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The shortest sleep, under load: the records are still in a CPU cache when they are read.
const IDLE_SLEEP_MIN: Duration = Duration::from_micros(500);

/// Bytes found in one round that halve the sleep, and bytes below which it doubles.
const MUCH: usize = WRITE_LEN;

const LITTLE: usize = 64 * 1024;

/// After this time without records the thread sleeps until it is woken.
const IDLE: Duration = Duration::from_secs(1);

/// How long the ending thread tries to write the rest, unless the write before had failed as well.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Delay before a retry after a failed write.
const RETRY: Duration = Duration::from_millis(200);

/// Sleeps for so many microseconds.
pub(super) fn sleep_us(us: &AtomicU64) {
    let us = us.load(Relaxed);
    if us > 0 {
        std::thread::sleep(Duration::from_micros(us));
    }
}

/// The thread that writes the records of the journal to the file.
pub(super) struct Writer {
    pub(super) persist: Arc<Persist>,
    reader: Reader,
    pub(super) file: LogFile,
    /// Whether the last write failed.
    fails: bool,
    /// The last record taken from the journal.
    pub(super) taken: u64,
    appender: Appender,
    /// Whether more records may be taken without a sleep.
    more: bool,
    last_record: Instant,
    /// The sleep between two polls.
    idle_sleep: Duration,
    pub(super) syncs: SyncState,
}

impl Writer {
    /// A writer that begins behind the last record of `reader`, which is on disk.
    pub(super) fn new(persist: &Arc<Persist>, file: LogFile, reader: Reader) -> Writer {
        let after = reader.last();
        Writer {
            persist: persist.clone(),
            reader,
            file,
            fails: false,
            taken: after,
            appender: Appender::default(),
            more: false,
            last_record: Instant::now(),
            idle_sleep: IDLE_SLEEP_MAX,
            syncs: SyncState::new(after),
        }
    }

    pub(super) fn run(mut self) {
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
                && let Some(tail) = &mut self.syncs.tail
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
                if is_sync_due && self.sync(how).is_ok() && self.syncs.under_way.is_none() {
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
            && !self.syncs.broken
            && self.syncs.doubtful.is_none()
        {
            let note = position.note();
            push_comment(self.file.room(COMMENT_LEN + note.len()), &note);
            let persist = self.persist.clone();
            self.write(&persist.core.keyspace.journal, true);
        }
    }

    /// Releases all threads that wait for the append-only file.
    fn leave(&mut self) {
        if let Some(tail) = self.syncs.tail.take()
            && self.syncs.synced == self.taken
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
        let Writer { reader, file, appender, taken, more, syncs, .. } = self;
        let (mut found, end_before) = (0, file.end());
        // The tail gets pending bytes before the file does.
        let may_write = syncs.tail.is_none();
        // The place of the switch is published before the first record of the new file gets its number, but
        // perhaps after this thread has read it. So it is read again with each record in hand: a record taken
        // for the old file would be in neither the base nor a file that stays.
        let is_of_this_file = |number| number <= switch_behind.load(Acquire);
        reader.read_while(journal, is_of_this_file, |record| {
            *taken = record.number;
            appender.append(file, &record, now_s, may_write);
            found += if record.is_data { record.bytes.len() } else { 0 };
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
        metrics.recent_writes.begin();
        sleep_us(&metrics.flush_sleep_us);
        let began = Instant::now();
        let result = if must_all { self.file.write_all() } else { self.file.write() };
        metrics.recent_writes.end();
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
        if metrics.write_failed.load(Relaxed) && !self.syncs.broken && self.syncs.doubtful.is_none() {
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
            self.syncs.tail.take_if(|tail| tail.begin().is_err()).into_iter().for_each(TailFile::remove);
            self.appender = Appender::default();
            if std::mem::take(&mut self.syncs.broken) {
                self.syncs.doubtful = Some(self.taken);
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
        let needs_sync = policy != Fsync::Never && self.syncs.synced != self.taken;
        let is_idle = self.last_record.elapsed() > IDLE && !needs_sync;
        if policy == Fsync::Always || is_idle {
            self.reader.sleep(journal, IDLE_POLL_INTERVAL);
        } else {
            std::thread::sleep(self.idle_sleep);
        }
    }
}
