//! The append-only file: the thread that writes the log to disk, and who waits for it.
//!
//! One thread takes the log's records in their order, puts a SELECT before those of another database than the last one's,
//! and appends them to the current incremental file. Nobody waits for it, except:
//! - with `appendfsync always`, the replies of what has been logged, until that is synced ([`Aof::durable`]); others go on;
//! - writers, when more of the log waits than `appendonly-buffer-limit` allows: a disk that hangs is felt only then.
//!
//! With `everysec` and `no` the thread is not woken by writers: it looks every few milliseconds, takes what is there with one
//! write, and sleeps for good when there has been nothing for a while. So the log costs a serving thread a copy of the
//! command and no system call.
//!
//! A rewrite is a snapshot whose beginning is a number in the log: behind the record with that number, the thread goes on in
//! a new incremental file ([`Aof::switch_behind`]), and when the snapshot is on disk, it becomes the base and the older files
//! history. `docs/aof.md` has the formats and the rules of the start.
//!
//! A sync that replies wait for is one of the file or of its [`tail`], which takes the disk one write. One that nobody waits for is
//! another thread's ([`beside`]) when it takes longer than a moment, and the log is written meanwhile.
//!
//! What cannot be written stays in memory and is tried again; writers are told with MISCONF. What cannot be *synced* may be
//! lost even though it was written, and no later sync can be trusted: nothing is acknowledged any more under `always`
//! until a rewrite has begun a new file.

mod async_fsync;
mod file;
mod tail;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
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
use super::{CROWDED, NO_LOG};
use crate::config::{Fsync, Settings};
use crate::net::inbox::Message;
use crate::replication::Point;
use crate::server::Server;
use evenkeel_runtime::clock;

/// Bytes taken from the log before they are written: large enough that a write's own cost does not matter, and few enough
/// that they are still in a cache then.
const WRITE_LEN: usize = 256 * 1024;

/// A record of more bytes is written while it is read, so that there is no copy of the whole.
const LONG: usize = 8 << 20;

/// Bytes for what comes before a record: the second, and its database.
const PREFACE_LEN: usize = 128;

/// Bytes a second below which a disk had better get what it is given from the page cache, which gives it more at a time, once
/// a part of `appendonly-buffer-limit` has gathered. With `everysec` the cache is no room for more than a second's worth: the
/// sync waits for all of it.
const SLOW_DISK: f64 = 100e6;
const UNREAD_PART: u64 = 4;

/// How long the thread naps when there was something to write. What a crash of the process, not of the machine, may lose is this,
/// and what waits in the file's buffer.
const NAP_MAX: Duration = Duration::from_millis(5);

/// How often if there is much: so that what is read is still in a cache.
const NAP_MIN: Duration = Duration::from_micros(500);

/// Bytes found at one look that are much, and those that are little.
const MUCH: usize = WRITE_LEN;
const LITTLE: usize = 64 * 1024;

/// How long there has to have been nothing before the thread wants to be woken.
const IDLE: Duration = Duration::from_secs(1);

/// How often it looks after other things when it sleeps.
const LOOK: Duration = Duration::from_millis(100);

/// How long it tries to write what is left at its end, unless the disk took nothing before.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long after a failure it tries again.
const RETRY: Duration = Duration::from_millis(200);

const SYNC_EVERY: Duration = Duration::from_secs(1);

/// How long there is no tail after one could not be made or written.
const NO_TAIL: Duration = Duration::from_secs(60);

/// How long a sync that nobody waits for may keep what comes from being written: so long, a crash of the process may lose more.
const SYNC_MOMENT: Duration = Duration::from_millis(200);

/// With `everysec`, what a crash of the machine may lose grows by as much as a sync takes; beyond this the operator is told.
const SYNC_LONG: Duration = Duration::from_secs(2);

/// There is no reader.
const NOWHERE: usize = usize::MAX;

/// No switch is due.
const NEVER: u64 = u64::MAX;

/// Syncs are waited for, and may go past the page cache.
fn wants_tail(settings: &Settings) -> bool {
    settings.appendfsync == Fsync::Always && settings.appendonly_direct_io
}

/// What all threads know of the append-only file.
pub(crate) struct Aof {
    /// The thread runs.
    is_on: AtomicBool,
    /// The place of its reader of the log, or [`NOWHERE`].
    place: AtomicUsize,
    pub(super) directory: Mutex<Option<Directory>>,
    /// The manifest of the log that this server has loaded, or written as a whole: what is in another's files, it has not.
    pub(super) own: Mutex<Option<PathBuf>>,
    /// Behind the record with this number, a new incremental file begins.
    switch_behind: AtomicU64,
    switched: (Mutex<Switched>, Condvar),
    /// The last record that is on disk for good, as far as the disk can be trusted.
    durable: AtomicU64,
    /// The last record that is contained in the base.
    base_has: AtomicU64,
    /// The files that are listed make the data: a base that was to be made has been.
    is_based: AtomicBool,
    /// What is done is not logged any more, and the thread has only to write what was.
    is_left: AtomicBool,
    /// The thread is to end once all is written that there is.
    ends: AtomicBool,
    /// Where the data are in a replication stream when the server ends.
    end: Mutex<Option<Point>>,
    pub(crate) figures: Figures,
}

/// For INFO.
#[derive(Default)]
pub(crate) struct Figures {
    /// Bytes of all files, and of those that the last rewrite left.
    pub(crate) size: AtomicU64,
    pub(crate) base_size: AtomicU64,
    /// Bytes taken from the log and not written yet.
    pub(crate) buffered: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) longest_write_us: AtomicU64,
    pub(crate) longest_sync_us: AtomicU64,
    /// Syncs that took longer than [`SYNC_LONG`], and whether one that nobody waits for is under way.
    pub(crate) delayed_syncs: AtomicU64,
    pub(crate) is_syncing: AtomicBool,
    /// How often writers had to wait because too much of the log was not written.
    pub(crate) crowded: AtomicU64,
    /// DEBUG AOF-SYNC-SLEEP: how much longer each sync takes that nobody waits for.
    pub(crate) sync_sleep_us: AtomicU64,
    /// DEBUG AOF-FLUSH-SLEEP: how long each write is put off.
    pub(crate) flush_sleep_us: AtomicU64,
    pub(crate) write_failed: AtomicBool,
    /// Why, for those who are refused.
    pub(crate) failure: Mutex<String>,
}

/// The number of the incremental file that was begun last, and behind which record.
struct Switched {
    behind: u64,
    seq: Result<u64, String>,
}

impl Figures {
    /// CONFIG RESETSTAT.
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
            figures: Figures::default(),
        }
    }
}

impl Aof {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Acquire)
    }

    /// The same, and it is not about to end.
    pub(crate) fn goes_on(&self) -> bool {
        self.is_on() && !self.ends.load(Acquire)
    }

    /// What is done is logged.
    pub(crate) fn logs(&self) -> bool {
        self.is_on() && !self.is_left.load(Acquire)
    }

    /// What is done from now on is not. Everything is held.
    pub(super) fn note_left(&self) {
        self.is_left.store(true, Release);
    }

    /// Whether the last try to write or sync has failed: there is something acknowledged that is not on disk.
    pub(super) fn fails(&self) -> bool {
        self.is_on() && self.figures.write_failed.load(Relaxed)
    }

    /// Bytes of the log that the thread has not taken yet.
    pub(crate) fn unread(&self, journal: &Journal) -> u64 {
        journal.unread_by(self.place.load(Relaxed)) as u64
    }

    /// The number of the last record that is on disk for good.
    #[inline]
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Acquire)
    }

    /// Whether a start of the server would find the record with this number. As long as the first base is being written,
    /// it would find nothing.
    pub(crate) fn keeps(&self, record: u64) -> bool {
        self.logs() && self.is_based.load(Acquire) && record <= self.durable()
    }

    /// Whether what is logged is the data, together with the files that are there: the first base has been written.
    pub(super) fn is_complete(&self) -> bool {
        self.logs() && self.is_based.load(Acquire)
    }

    /// Where the data are in a replication stream, if nothing is logged any more: the server ends.
    pub(super) fn note_end(&self, point: Option<Point>) {
        *self.end.lock() = point;
    }

    /// The files that are listed are the data from now on, and what their base has goes up to this record.
    pub(super) fn note_base(&self, last: u64) {
        self.base_has.store(last, Release);
        self.is_based.store(true, Release);
    }

    /// Behind the record with this number, goes on in a new incremental file. To be called with everything held.
    pub(super) fn switch_behind(&self, number: u64) {
        self.switched.0.lock().behind = NEVER;
        self.switch_behind.store(number, Release);
    }

    /// Waits until the file has been begun that was asked for behind this record; returns its number, or why it could not be.
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
            // A disk that takes nothing must not keep the server from ending.
            if is_cancelled() {
                return Err("it was cancelled".into());
            }
            self.switched.1.wait_for(&mut switched, LOOK);
        }
        switched.seq.clone()
    }
}

/// Starts the thread: it writes to `file` what the reader reads.
pub(super) fn start(server: &Arc<Server>, file: LogFile, reader: Reader) -> io::Result<()> {
    let (aof, after, place) = (&server.persist.aof, reader.last(), reader.place());
    let writer = Writer {
        server: server.clone(),
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
        nap: NAP_MAX,
    };
    aof.place.store(place, Relaxed);
    aof.ends.store(false, Release);
    // One that the thread before did not come to is not this one's.
    aof.switch_behind.store(NEVER, Release);
    aof.is_based.store(false, Release);
    aof.is_left.store(false, Release);
    aof.durable.store(after, Release);
    aof.is_on.store(true, Release);
    std::thread::Builder::new().name("aof".into()).spawn(move || {
        evenkeel_store::memory::register_thread();
        let log = writer.server.log.clone();
        // Nobody else takes the log: sooner or later all writers would wait for ever. What was acknowledged is on disk.
        if catch_unwind(AssertUnwindSafe(|| writer.run())).is_err() {
            log.warning("The append-only file thread failed. Exiting.");
            log.flush();
            std::process::exit(70);
        }
    })?;
    Ok(())
}

/// Forgets a reader whose thread could not be started. Everything is held.
pub(super) fn forget(server: &Server, guard: &mut SlotGuard<'_>) {
    let aof = &server.persist.aof;
    guard.dismiss(aof.place.load(Relaxed));
    vacate(server);
    aof.is_on.store(false, Release);
}

/// Gives back the place of a reader whose thread has ended.
pub(super) fn vacate(server: &Server) {
    let place = server.persist.aof.place.swap(NOWHERE, Relaxed);
    server.keyspace.journal.vacate(place);
}

/// Refuses writes if the log cannot be written, as long as it is wanted, or no longer. To be called when either has changed.
pub(super) fn refuse_writes(server: &Server) {
    let figures = &server.persist.aof.figures;
    // One at a time: the last one to come sees what all have changed.
    let _one = figures.failure.lock();
    let fails = figures.write_failed.load(Relaxed);
    server.persist.blockers.set(NO_LOG, fails && server.settings().appendonly);
}

/// The place of the thread's reader of the log.
pub(super) fn place(server: &Server) -> usize {
    server.persist.aof.place.load(Relaxed)
}

/// Ends the thread, once all that has been logged is written and synced, and waits for that.
pub(crate) fn stop(server: &Server) {
    let aof = &server.persist.aof;
    aof.ends.store(true, Release);
    // What still waits may wait for a disk that hangs, and nothing more is logged.
    server.persist.blockers.set(CROWDED, false);
    server.wake_all();
    server.keyspace.journal.wake(aof.place.load(Relaxed));
    while aof.is_on() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Writer {
    server: Arc<Server>,
    reader: Reader,
    file: LogFile,
    /// The last write failed.
    fails: bool,
    /// The last record that has been taken from the log.
    taken: u64,
    /// The database selected behind it.
    selected: Option<u32>,
    /// Of the last annotation.
    second: u64,
    /// A sync of this file has failed.
    broken: bool,
    /// Records up to this one are in a file whose sync failed: they are on disk when a base has them.
    doubtful: Option<u64>,
    /// There may be more to take at once.
    more: bool,
    /// The last record that is synced.
    synced: u64,
    last_sync: Instant,
    /// The last one that was of the file itself.
    last_file_sync: Instant,
    /// Where syncs that are waited for go, but for one each second.
    tail: Option<TailFile>,
    /// When to try again to make one, which was in vain, or has failed.
    tail_not_before: Option<Instant>,
    /// The last sync was the tail's.
    in_tail: bool,
    /// Syncs that nobody waits for, once there has been one, and the one that is under way.
    syncer: Option<Syncer>,
    under_way: Option<UnderWay>,
    last_record: Instant,
    /// How long it sleeps between two looks.
    nap: Duration,
}

/// A sync.
#[derive(Clone, Copy)]
struct UnderWay {
    began: Instant,
    /// The last record of which all was in the file.
    has: Option<u64>,
    /// Where the file ended.
    end: u64,
    by_tail: bool,
}

/// What a sync has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// If there is a tail, it will do.
    TailWillDo,
    OfTheFile,
    /// And nobody waits for it.
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
        let server = self.server.clone();
        let (aof, journal) = (&server.persist.aof, &server.keyspace.journal);
        loop {
            let settings = server.settings();
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
            if ends && !wrote && (failed_before || self.last_record.elapsed() > PATIENCE) {
                let left = self.file.pending() + self.reader.unread(journal);
                server.log.warning(format!(
                    "{left} bytes could not be written to the append-only file and are lost."
                ));
                break;
            }
            if !wrote {
                self.rest_before_retry(ends);
            } else if !self.more {
                self.rest(journal, settings.appendfsync);
            }
        }
        self.note_end();
        self.file.touch();
        let _ = self.sync(How::OfTheFile);
        self.leave();
    }

    /// Says where in a replication stream the data are that have been written, if that is known.
    fn note_end(&mut self) {
        let point = self.server.persist.aof.end.lock().take();
        let is_end = |point: &Point| point.record == self.reader.last() && self.file.pending() == 0;
        if let Some(Point { position, .. }) = point.filter(is_end)
            && !self.broken
            && self.doubtful.is_none()
        {
            let note = position.note();
            push_comment(self.file.room(PREFACE_LEN + note.len()), &note);
            let server = self.server.clone();
            self.write(&server.keyspace.journal, true);
        }
    }

    /// Nobody waits any more for what is not written.
    fn leave(&mut self) {
        if let Some(tail) = self.tail.take()
            && self.synced == self.taken
        {
            tail.remove();
        }
        let aof = &self.server.persist.aof;
        aof.figures.write_failed.store(false, Relaxed);
        refuse_writes(&self.server);
        aof.figures.buffered.store(0, Relaxed);
        aof.is_on.store(false, Release);
        // Who sets it looks once more whether there is still somebody to take it back.
        std::sync::atomic::fence(SeqCst);
        self.server.persist.blockers.set(CROWDED, false);
        aof.switched.1.notify_all();
        self.publish();
        self.server.wake_all();
    }

    /// Takes records until there is enough to be written, or a new file is to begin.
    fn take(&mut self, journal: &Journal, settings: &Settings) {
        let switch_behind = &self.server.persist.aof.switch_behind;
        if self.reader.last() >= switch_behind.load(Acquire) {
            return;
        }
        let now_s = if settings.aof_timestamp_enabled { clock::unix_ms() / 1000 } else { 0 };
        self.more = false;
        let Writer { reader, file, selected, second, taken, more, tail, .. } = self;
        let (mut found, end_before) = (0, file.end());
        // A tail gets what is pending before the file does.
        let may_write = tail.is_none();
        // Where a new file is to begin is said before the first record of that file gets its number, but perhaps after
        // this thread has looked. So it looks again with each record in hand: taken for one of the old file, it would be in
        // neither the base nor a file that stays.
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
        let written = self.file.end().saturating_sub(end_before); // somebody may have shortened it
        self.server.persist.aof.figures.size.fetch_add(written, Relaxed);
        self.more |= self.reader.last() >= switch_behind.load(Acquire);
        if found > 0 {
            self.last_record = Instant::now();
        }
        self.nap = match found {
            MUCH.. => (self.nap / 2).max(NAP_MIN),
            ..LITTLE => (self.nap * 2).min(NAP_MAX),
            _ => self.nap,
        };
    }

    /// Writes what has been taken; `false`: not all of it could be. Unless it `must_all`, some of it may wait for more.
    fn write(&mut self, journal: &Journal, must_all: bool) -> bool {
        let figures = &self.server.persist.aof.figures;
        let pending = self.file.pending();
        figures.buffered.store(pending as u64, Relaxed);
        if pending == 0 || !must_all && self.file.may_wait() {
            return true;
        }
        sleep_us(&figures.flush_sleep_us);
        let began = Instant::now();
        let result = if must_all { self.file.write_all() } else { self.file.write() };
        let left = self.file.pending();
        figures.size.fetch_add((pending - left) as u64, Relaxed);
        figures.buffered.store(left as u64, Relaxed);
        if let Err(error) = result {
            self.note_failure(&error);
            return false;
        }
        let unread_max = self.server.settings().appendonly_buffer_limit / UNREAD_PART;
        let is_slow = || ((pending - left) as f64) < SLOW_DISK * began.elapsed().as_secs_f64();
        if self.file.goes_past() && self.reader.unread(journal) as u64 > unread_max && is_slow() {
            self.file.rest();
        }
        figures.longest_write_us.fetch_max(began.elapsed().as_micros() as u64, Relaxed);
        self.note_latency("aof-write", began.elapsed());
        if figures.write_failed.load(Relaxed) && !self.broken && self.doubtful.is_none() {
            self.server.log.notice("The append-only file is writable again.");
            figures.write_failed.store(false, Relaxed);
            refuse_writes(&self.server);
        }
        true
    }

    fn note_failure(&self, error: &io::Error) {
        let figures = &self.server.persist.aof.figures;
        *figures.failure.lock() = crate::config::cause(error);
        if !figures.write_failed.swap(true, Relaxed) {
            self.server.log.warning(format!(
                "Error writing to the append-only file: {error}. Pending data is kept in memory and write \
                 commands are refused until writing succeeds."
            ));
        }
        refuse_writes(&self.server);
    }

    /// Lets writers go on when enough of the log has been taken.
    fn unblock_writers(&self, journal: &Journal, settings: &Settings) {
        let blockers = &self.server.persist.blockers;
        let is_crowded = blockers.any() & CROWDED != 0;
        if is_crowded && self.reader.unread(journal) as u64 <= settings.appendonly_buffer_limit / 2 {
            blockers.set(CROWDED, false);
            self.server.wake_all();
            self.server
                .log
                .notice("Pending data was written to the append-only file. Write commands continue.");
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
        // What is in the tail alone has a second as well, and the tail an end when it is wanted no more.
        let is_old = self.in_tail && self.last_file_sync.elapsed() >= SYNC_EVERY;
        let is_useless = self.tail.is_some() && !wants_tail(settings);
        has_unsynced && (due || ends) || is_old || is_useless
    }

    /// Syncs what is in the file: the file itself, or, if that will do and is waited for, the tail. If it may take its time, it may be
    /// under way still when this returns.
    fn sync(&mut self, how: How) -> io::Result<()> {
        let _ = self.await_sync(); // a failure has been noted
        let began = Instant::now();
        self.last_sync = began;
        if self.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let is_awaited = self.server.settings().appendfsync == Fsync::Always;
        self.server.persist.aof.figures.is_syncing.store(!is_awaited, Relaxed);
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
                    // What comes goes through the cache at once, and is not kept to come with more.
                    self.file.rest();
                    Ok(())
                }
            };
        }
        let result = self.file.sync();
        self.end_sync(sync, result)
    }

    /// Begins a sync by the other thread; `false`: it cannot be.
    fn begin_beside(&mut self) -> bool {
        if self.syncer.is_none() {
            self.syncer = Syncer::start(&self.server);
        }
        let begun = self.syncer.as_ref().is_some_and(|syncer| self.file.sync_beside(syncer));
        if !begun {
            self.syncer = None;
        }
        begun
    }

    /// Takes note of a sync under way that has ended meanwhile.
    fn look_at_sync(&mut self) {
        let (Some(sync), Some(syncer)) = (self.under_way, &self.syncer) else { return };
        if let Some(result) = syncer.end_within(Duration::ZERO)
            && self.end_sync(sync, result).is_ok()
        {
            self.publish();
            // Of a time in which syncs were waited for: the file itself has it all now.
            if let Some(tail) = self.tail.take_if(|_| !wants_tail(&self.server.settings())) {
                tail.remove();
            }
        }
    }

    /// Waits for the end of one that is under way.
    fn await_sync(&mut self) -> io::Result<()> {
        let (Some(sync), Some(syncer)) = (self.under_way, &self.syncer) else { return Ok(()) };
        let result = syncer.end();
        self.end_sync(sync, result)
    }

    /// What a sync means that has ended.
    fn end_sync(&mut self, sync: UnderWay, result: io::Result<()>) -> io::Result<()> {
        self.under_way = None;
        let figures = &self.server.persist.aof.figures;
        let settings = self.server.settings();
        figures.is_syncing.store(false, Relaxed);
        figures.syncs.fetch_add(1, Relaxed);
        self.note_sync(sync.began.elapsed(), settings.appendfsync == Fsync::Always);
        match &result {
            Ok(()) => {
                self.synced = sync.has.unwrap_or(self.synced);
                self.in_tail = sync.by_tail;
                if !sync.by_tail {
                    self.last_file_sync = Instant::now();
                    let mut end = sync.end;
                    // What was written meanwhile may be in the cache.
                    if self.file.end() == end {
                        let is_each_second = settings.appendfsync == Fsync::EverySecond;
                        self.file.note_sync(is_each_second && settings.appendonly_direct_io);
                        end = self.file.end();
                    }
                    self.tail.iter_mut().for_each(|tail| tail.note_synced(end));
                }
            }
            Err(error) => {
                // The kernel may have dropped what it could not write, and will not say so twice. What is in the tail may
                // be all that is left, and stays.
                (self.tail, self.in_tail) = (None, false);
                self.broken = true;
                *figures.failure.lock() = crate::config::cause(error);
                figures.write_failed.store(true, Relaxed);
                refuse_writes(&self.server);
                self.server.log.warning(format!(
                    "Error syncing the append-only file: {error}. Written data may be lost: write commands \
                     are refused, and with 'appendfsync always' no write is acknowledged. Run BGREWRITEAOF \
                     to start a new file."
                ));
            }
        }
        result
    }

    /// After a sync, and when all who waited for it have been told: makes a tail if there is to be one, or does away with it.
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
        let aof = &self.server.persist.aof;
        // Before there is a base, no start would use it, and one that is left may be needed.
        let is_due = aof.is_based.load(Acquire) && self.doubtful.is_none();
        let may_try = self.tail_not_before.is_none_or(|moment| Instant::now() >= moment);
        if self.tail.is_none() && wants_tail(settings) && is_due && may_try {
            // If somebody changes it at the moment, there is one after the next sync.
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
            self.server.log.notice(format!(
                "The append-only file has no tail file, so each fsync takes longer: {reason}"
            ));
        }
        self.tail_not_before = Some(Instant::now() + NO_TAIL);
    }

    /// A sync took so long.
    fn note_sync(&self, took: Duration, is_awaited: bool) {
        let (server, figures) = (&self.server, &self.server.persist.aof.figures);
        figures.longest_sync_us.fetch_max(took.as_micros() as u64, Relaxed);
        let event = if is_awaited { "aof-fsync-always" } else { "aof-fsync" };
        self.note_latency(event, took);
        if took > SYNC_LONG {
            figures.delayed_syncs.fetch_add(1, Relaxed);
            server.log.warning(format!(
                "An fsync of the append-only file took {:.1} s: the disk is busy or slow. Data written in \
                 the meantime is not durable until the next fsync.",
                took.as_secs_f64()
            ));
        }
    }

    fn note_latency(&self, event: &'static str, took: Duration) {
        let threshold_ms = self.server.settings().latency_monitor_threshold;
        self.server.latency.note(event, took.as_micros() as u64, threshold_ms);
    }

    /// Trusts the disk again once a base has what was in a file whose sync failed.
    fn clear_sync_error(&mut self) {
        let aof = &self.server.persist.aof;
        // The file that is written now may have come to be in doubt as well: then there will be a base of that.
        if !self.broken && self.doubtful.is_some_and(|last| aof.base_has.load(Acquire) >= last) {
            self.doubtful = None;
            // One that was left when a sync failed has nothing any more that the base has not.
            if let Some(directory) = &*aof.directory.lock() {
                let _ = remove_tail(&directory.tail_path()); // the next one takes its place
            }
            self.server
                .log
                .notice("The new base file has all data that was possibly lost. Write commands continue.");
            aof.figures.write_failed.store(false, Relaxed);
            refuse_writes(&self.server);
            self.publish();
        }
    }

    /// Lets those go on who wait for what is synced.
    fn publish(&self) {
        if self.doubtful.is_some() {
            return;
        }
        let aof = &self.server.persist.aof;
        aof.durable.store(self.synced, Release);
        // A worker that begins to wait looks once more after it has said so.
        std::sync::atomic::fence(SeqCst);
        for inbox in self.server.inboxes.iter().filter(|inbox| inbox.awaits_log.load(Relaxed)) {
            inbox.post(Message::Durable);
        }
    }

    fn switch_if_due(&mut self) {
        let server = self.server.clone();
        let aof = &server.persist.aof;
        let behind = aof.switch_behind.load(Acquire);
        if self.reader.last() < behind || self.file.pending() > 0 {
            return;
        }
        // Only the end of the last file may be torn. A failure is noted, and makes what is in the file doubtful.
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
            // Each file says of itself which database, and of when.
            (self.selected, self.second) = (None, 0);
            if std::mem::take(&mut self.broken) {
                self.doubtful = Some(self.taken);
            }
        }
        // Tried once: whoever wants another file says so again, and may have done so meanwhile.
        let _ = aof.switch_behind.compare_exchange(behind, NEVER, AcqRel, Acquire);
        let mut switched = aof.switched.0.lock();
        *switched = Switched { behind, seq: begun };
        aof.switched.1.notify_all();
    }

    /// Waits until the disk may take something again, or the thread is to end.
    fn rest_before_retry(&self, ends: bool) {
        let until = Instant::now() + RETRY;
        while Instant::now() < until && self.server.persist.aof.ends.load(Acquire) == ends {
            std::thread::sleep(NAP_MAX);
        }
    }

    /// Waits for more.
    fn rest(&self, journal: &Journal, policy: Fsync) {
        let needs_sync = policy != Fsync::Never && self.synced != self.taken;
        let is_idle = self.last_record.elapsed() > IDLE && !needs_sync;
        if policy == Fsync::Always || is_idle {
            self.reader.sleep(journal, LOOK);
        } else {
            std::thread::sleep(self.nap);
        }
    }
}
