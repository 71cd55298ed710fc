//! Syncs of the append-only file: when they are due, their targets, and their results.

use std::io;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use evenkeel_rdb::aof::tail::remove as remove_tail;

use super::async_fsync::Syncer;
use super::tail::TailFile;
use super::writer::Writer;
use super::{refuse_writes, wants_tail};
use evenkeel_config::{Fsync, Settings};

const SYNC_EVERY: Duration = Duration::from_secs(1);

/// How long no tail is made after a failure to make or write a tail.
const NO_TAIL: Duration = Duration::from_secs(60);

/// How long a sync that no reply waits for may hold up writes: while it does, a crash of the process may lose
/// more.
const SYNC_MOMENT: Duration = Duration::from_millis(200);

/// With `everysec`, the loss in a crash of the machine grows by the duration of a sync. Beyond this the
/// operator is warned.
const SYNC_LONG: Duration = Duration::from_secs(2);

/// The syncs of the file so far, and the running sync.
pub(super) struct SyncState {
    /// Whether a sync of this file has failed.
    pub(super) broken: bool,
    /// The last record in a file whose sync failed. Records up to it are on disk once a base contains them.
    pub(super) doubtful: Option<u64>,
    /// The last record that is synced.
    pub(super) synced: u64,
    pub(super) last_sync: Instant,
    /// The time of the last sync of the file itself.
    pub(super) last_file_sync: Instant,
    /// The target of the syncs that replies wait for, except for one sync a second.
    pub(super) tail: Option<TailFile>,
    /// The earliest time of the next attempt to make a tail, after a failure.
    pub(super) tail_not_before: Option<Instant>,
    /// Whether the last sync went to the tail.
    pub(super) in_tail: bool,
    /// The thread for syncs that no reply waits for, started by the first of them, and the running sync.
    pub(super) syncer: Option<Syncer>,
    pub(super) under_way: Option<UnderWay>,
}

impl SyncState {
    /// The state of a file whose records up to `synced` are on disk.
    pub(super) fn new(synced: u64) -> SyncState {
        SyncState {
            broken: false,
            doubtful: None,
            synced,
            last_sync: Instant::now(),
            last_file_sync: Instant::now(),
            tail: None,
            tail_not_before: None,
            in_tail: false,
            syncer: None,
            under_way: None,
        }
    }
}

/// A sync that has begun.
#[derive(Clone, Copy)]
pub(super) struct UnderWay {
    began: Instant,
    /// The last record that was in the file as a whole, if known.
    has: Option<u64>,
    /// The end of the file when the sync began.
    end: u64,
    by_tail: bool,
}

/// The kind of sync that is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// A sync of the tail is enough, if there is a tail.
    TailWillDo,
    OfTheFile,
    /// A sync of the file that no reply waits for.
    InItsOwnTime,
}

impl Writer {
    pub(super) fn is_sync_due(&self, settings: &Settings, ends: bool) -> bool {
        if self.syncs.under_way.is_some() && !ends && settings.appendfsync != Fsync::Always {
            return false;
        }
        let due = match settings.appendfsync {
            Fsync::Always => true,
            Fsync::EverySecond => {
                self.syncs.last_sync.elapsed() >= SYNC_EVERY
                    || self.file.is_much() && settings.appendonly_direct_io
            }
            Fsync::Never => false,
        };
        let has_unsynced = self.taken > self.syncs.synced;
        // Bytes that are in the tail alone get a second as well; a tail that is no longer wanted ends here.
        let is_old = self.syncs.in_tail && self.syncs.last_file_sync.elapsed() >= SYNC_EVERY;
        let is_useless = self.syncs.tail.is_some() && !wants_tail(settings);
        has_unsynced && (due || ends) || is_old || is_useless
    }

    /// Syncs the file: the file itself or, if replies wait and it is enough, the tail. A sync `InItsOwnTime`
    /// may still be running on return.
    pub(super) fn sync(&mut self, how: How) -> io::Result<()> {
        let _ = self.await_sync(); // a failure has been recorded
        let began = Instant::now();
        self.syncs.last_sync = began;
        if self.syncs.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let is_awaited = self.persist.core.settings().appendfsync == Fsync::Always;
        self.persist.aof.metrics.is_syncing.store(!is_awaited, Relaxed);
        self.persist.aof.metrics.recent_syncs.begin();
        let end = self.file.end();
        let may_do = is_awaited && how == How::TailWillDo && self.syncs.last_file_sync.elapsed() < SYNC_EVERY;
        let by_tail = may_do && self.syncs.tail.as_mut().is_some_and(|tail| tail.sync(end));
        let has = (self.file.pending() == 0).then_some(self.taken);
        let sync = UnderWay { began, has, end, by_tail };
        if by_tail {
            return self.end_sync(sync, Ok(()));
        }
        if how == How::InItsOwnTime && self.begin_beside() {
            self.syncs.under_way = Some(sync);
            let ended = self.syncs.syncer.as_ref().and_then(|syncer| syncer.end_within(SYNC_MOMENT));
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
    pub(super) fn begin_beside(&mut self) -> bool {
        if self.syncs.syncer.is_none() {
            self.syncs.syncer = Syncer::start(&self.persist);
        }
        let begun = self.syncs.syncer.as_ref().is_some_and(|syncer| self.file.sync_beside(syncer));
        if !begun {
            self.syncs.syncer = None;
        }
        begun
    }

    /// Handles the end of a running sync that has ended meanwhile.
    pub(super) fn look_at_sync(&mut self) {
        let (Some(sync), Some(syncer)) = (self.syncs.under_way, &self.syncs.syncer) else { return };
        if let Some(result) = syncer.end_within(Duration::ZERO)
            && self.end_sync(sync, result).is_ok()
        {
            self.publish();
            // The tail dates from a time in which replies waited for syncs. The file itself has everything
            // now.
            if let Some(tail) = self.syncs.tail.take_if(|_| !wants_tail(&self.persist.core.settings())) {
                tail.remove();
            }
        }
    }

    /// Waits for the end of a running sync.
    pub(super) fn await_sync(&mut self) -> io::Result<()> {
        let (Some(sync), Some(syncer)) = (self.syncs.under_way, &self.syncs.syncer) else { return Ok(()) };
        let result = syncer.end();
        self.end_sync(sync, result)
    }

    /// Records the result of a sync that has ended.
    pub(super) fn end_sync(&mut self, sync: UnderWay, result: io::Result<()>) -> io::Result<()> {
        self.syncs.under_way = None;
        let metrics = &self.persist.aof.metrics;
        let settings = self.persist.core.settings();
        metrics.is_syncing.store(false, Relaxed);
        metrics.syncs.fetch_add(1, Relaxed);
        metrics.recent_syncs.end();
        self.record_sync(sync.began.elapsed(), settings.appendfsync == Fsync::Always);
        match &result {
            Ok(()) => {
                self.syncs.synced = sync.has.unwrap_or(self.syncs.synced);
                self.syncs.in_tail = sync.by_tail;
                if !sync.by_tail {
                    self.syncs.last_file_sync = Instant::now();
                    let mut end = sync.end;
                    // Bytes written meanwhile may be in the cache.
                    if self.file.end() == end {
                        let is_each_second = settings.appendfsync == Fsync::EverySecond;
                        self.file.record_sync(is_each_second && settings.appendonly_direct_io);
                        end = self.file.end();
                    }
                    self.syncs.tail.iter_mut().for_each(|tail| tail.record_synced(end));
                }
            }
            Err(error) => {
                // The kernel may have dropped the bytes it could not write, and reports that only once. The
                // tail may have the only copy, and stays.
                (self.syncs.tail, self.syncs.in_tail) = (None, false);
                self.syncs.broken = true;
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
    pub(super) fn maintain_tail(&mut self, settings: &Settings) {
        if self.syncs.in_tail {
            self.file.start_writeback();
            return;
        }
        if let Some(tail) = self.syncs.tail.take_if(|tail| !wants_tail(settings) || !tail.is_good()) {
            if tail.has_failed() {
                self.put_tail_off("a write to the tail failed");
            }
            tail.remove();
        }
        let aof = &self.persist.aof;
        // Before there is a base, a start would not use the tail; while records are in doubt, an older tail
        // may be needed.
        let is_due = aof.is_based.load(Acquire) && self.syncs.doubtful.is_none();
        let may_try = self.syncs.tail_not_before.is_none_or(|moment| Instant::now() >= moment);
        if self.syncs.tail.is_none() && wants_tail(settings) && is_due && may_try {
            // If the directory is being changed at the moment, the next sync makes the tail.
            let directory = aof.directory.try_lock();
            let path = directory.and_then(|directory| Some(directory.as_ref()?.tail_path()));
            match path.map(|path| TailFile::create(path, self.file.end())) {
                None => {}
                Some(Ok(tail)) => self.syncs.tail = Some(tail),
                Some(Err(error)) => self.put_tail_off(&error.to_string()),
            }
        }
    }

    pub(super) fn put_tail_off(&mut self, reason: &str) {
        if self.syncs.tail_not_before.is_none() {
            log::info!("The append-only file has no tail file, so each fsync takes longer: {reason}");
        }
        self.syncs.tail_not_before = Some(Instant::now() + NO_TAIL);
    }

    /// Records the duration of a sync.
    pub(super) fn record_sync(&self, took: Duration, is_awaited: bool) {
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

    pub(super) fn record_latency(&self, event: &'static str, took: Duration) {
        let threshold_ms = self.persist.core.settings().latency_monitor_threshold;
        self.persist.core.latency.record(event, took.as_micros() as u64, threshold_ms);
    }

    /// Trusts the disk again once a base contains the records of the file whose sync failed.
    pub(super) fn clear_sync_error(&mut self) {
        let aof = &self.persist.aof;
        // The present file may be in doubt by now as well. Then a further base will cover it.
        if !self.syncs.broken && self.syncs.doubtful.is_some_and(|last| aof.base_has.load(Acquire) >= last) {
            self.syncs.doubtful = None;
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
    pub(super) fn publish(&self) {
        if self.syncs.doubtful.is_some() {
            return;
        }
        let aof = &self.persist.aof;
        aof.durable.store(self.syncs.synced, Release);
        self.persist.core.workers.notify_durable();
    }
}
