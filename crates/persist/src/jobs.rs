//! Jobs that write to disk or walk through the keyspace, and their mutual exclusion.
//!
//! A single job at a time writes a file or replaces the stored data. A full sync of replicas may run beside
//! it: only the walk through the keyspace is exclusive. So a sync begins while the job waits for nothing but
//! its disk, which may hang. No job begins beside a sync.
//!
//! ```text
//! BGSAVE         opens its file           | walks, writes | syncs, renames
//! a full sync    may begin, if that hangs | waits         | may begin
//! ```
//!
//! A walk also waits for its disk, if the disk takes nothing any more. If replicas wait then, the walk is
//! given up and begun again later.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};

use evenkeel_store::memory;

use super::Persist;

/// Poll interval of a thread that waits for the disk or for another job: the longest delay before it notices
/// a cancellation.
pub(super) const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The longest wait of a client for the start of a job whose disk may hang.
pub(super) const START_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a disk may take nothing before replicas that wait for a full sync stop waiting for it.
pub(super) const STUCK: Duration = Duration::from_secs(5);

/// The running jobs, and the results of earlier jobs.
#[derive(Clone, Debug)]
pub struct JobState {
    pub running: Option<Running>,
    /// The snapshot that is being taken for replicas. No other job begins meanwhile, but the sync may begin
    /// while `running` waits for nothing but its disk.
    pub sync: Option<Running>,
    /// A BGREWRITEAOF waits for the end of another job.
    pub rewrite_scheduled: bool,
    pub rewrites: u64,
    /// Failures in a row.
    pub rewrites_failed: u64,
    pub last_rewrite_took_s: Option<u64>,
    /// Bytes that writers copied during the last rewrite.
    pub last_rewrite_copied: u64,
    pub last_rewrite_attempt_s: u64,
    /// A BGSAVE SCHEDULE waits for the end of another job.
    pub save_scheduled: bool,
    /// A FLUSHALL with save points owes a snapshot: the data on disk must not come back.
    pub save_owed: bool,
    pub saves: u64,
    /// Seconds since the Unix epoch; the start counts as a save.
    pub last_save_s: u64,
    pub last_attempt_s: u64,
    pub last_took_s: Option<u64>,
    pub last_copied: u64,
    pub last_ok: bool,
    /// Writes since the start that the last good snapshot contains.
    pub changes_at_save: u64,
    /// Changes since the last snapshot in the process whose data this process has taken over.
    pub changes_before_start: u64,
}

/// The job that has been cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    Running,
    Scheduled,
    Nothing,
}

/// The kinds of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PersistJob {
    Snapshot,
    /// A snapshot that is to become the base of an append-only file.
    Base,
    /// The append-only file is being turned off, or loaded again.
    Log,
    /// A snapshot that is to become the base of a backup.
    Backup,
    /// A snapshot of some slots that goes to another node of a cluster.
    Move,
    /// A snapshot that goes to replicas.
    Sync,
}

/// A running job.
#[derive(Clone, Copy, Debug)]
pub struct Running {
    pub job: PersistJob,
    pub since_s: u64,
    /// Whether the job excludes a full sync: a client waits for it, or another job follows it directly.
    is_alone: bool,
    /// Whether the job is the snapshot that FLUSHALL owes.
    pub(super) is_owed: bool,
    /// Whether the job has been cancelled and is coming to its end. Read under the state's lock; the job
    /// itself polls its flag.
    is_cancelled: bool,
    stage: Stage,
    /// Bytes that writers copied for its walk.
    pub(super) copied: u64,
}

/// The progress of a job that uses the keyspace and a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Before the walk through the keyspace, or before all locks are held, since this time.
    Before(Instant),
    /// Walking: a single job does so at a time.
    Walks,
    /// Only disk work is left.
    After,
}

impl JobState {
    /// The changes since the last good snapshot. `asked`: the writes since the start.
    pub fn changes_since_save(&self, asked: u64) -> u64 {
        asked.saturating_sub(self.changes_at_save) + self.changes_before_start
    }

    pub(super) fn new(now_s: u64) -> JobState {
        JobState {
            running: None,
            sync: None,
            rewrite_scheduled: false,
            rewrites: 0,
            rewrites_failed: 0,
            last_rewrite_took_s: None,
            last_rewrite_copied: 0,
            last_rewrite_attempt_s: 0,
            save_scheduled: false,
            save_owed: false,
            saves: 0,
            last_save_s: now_s,
            last_attempt_s: 0,
            last_took_s: None,
            last_copied: 0,
            last_ok: true,
            changes_at_save: 0,
            changes_before_start: 0,
        }
    }

    /// The running jobs.
    pub fn all(&self) -> impl Iterator<Item = Running> {
        self.running.into_iter().chain(self.sync)
    }

    /// Whether the walk of this job is running, for which overwritten values are kept.
    pub(super) fn is_walking(&self, job: PersistJob) -> bool {
        self.all().any(|running| running.is(job) && running.stage == Stage::Walks)
    }

    /// Whether a snapshot runs that no client waits for, or a snapshot for replicas.
    pub fn is_saving_in_background(&self) -> bool {
        let is_save = |running: Running| {
            let goes_to_file = running.is(PersistJob::Snapshot) || running.is(PersistJob::Backup);
            goes_to_file && !running.is_brief()
        };
        self.sync.is_some() || self.running.is_some_and(is_save)
    }

    /// Whether a base is being written and has not been cancelled.
    pub fn is_rewriting(&self) -> bool {
        self.running.is_some_and(|running| running.is(PersistJob::Base) && !running.is_cancelled)
    }

    /// Whether a scheduled rewrite waits for work that Redis completes before its reply. There, the rewrite
    /// would be running.
    pub fn is_about_to_rewrite(&self) -> bool {
        self.rewrite_scheduled && !self.is_saving_in_background()
    }

    /// Whether a snapshot is owed, or work is running, that Redis completes before its reply.
    pub fn is_behind(&self) -> bool {
        self.save_owed || self.running.is_some_and(Running::is_brief)
    }

    /// Whether FLUSHALL's snapshot is not complete yet.
    pub(super) fn is_owing(&self) -> bool {
        self.save_owed || self.running.is_some_and(|running| running.is_owed)
    }

    pub fn is_idle(&self) -> bool {
        self.all().next().is_none()
    }

    /// Handles the end of a job. The memory of all walks together is accounted apart from the data.
    pub(super) fn on_job_end(&self) {
        if self.all().all(|running| running.stage != Stage::Walks) {
            memory::end_aside();
        }
    }
}

impl Running {
    pub(super) fn now(job: PersistJob, is_alone: bool) -> Running {
        let stage = Stage::Before(Instant::now());
        let since_s = evenkeel_runtime::clock::unix_ms() / 1000;
        Running { job, since_s, is_alone, is_owed: false, is_cancelled: false, stage, copied: 0 }
    }

    pub fn is(self, job: PersistJob) -> bool {
        self.job == job
    }

    /// Whether Redis would have completed it: logging is being turned off, a client waits, FLUSHALL owes it,
    /// or it is cancelled.
    fn is_brief(self) -> bool {
        self.is(PersistJob::Log) || self.is_alone || self.is_owed || self.is_cancelled
    }
}

impl Persist {
    /// BGSAVE SCHEDULE during another job: takes the snapshot when that job has ended.
    pub fn schedule_save(&self) {
        self.state.lock().save_scheduled = true;
    }

    /// FLUSHALL with save points: takes a snapshot soon, and in any case before the server ends.
    pub fn owe_save(&self) {
        self.state.lock().save_owed = true;
    }

    /// BGREWRITEAOF during another job.
    pub fn schedule_rewrite(&self) {
        self.state.lock().rewrite_scheduled = true;
    }

    /// Schedules a rewrite if logging is being turned off, and returns whether it is.
    pub fn schedule_behind_leaving(&self) -> bool {
        let mut state = self.state.lock();
        let is_leaving =
            state.running.is_some_and(|running| running.is(PersistJob::Log) && !running.is_alone);
        state.rewrite_scheduled |= is_leaving;
        is_leaving
    }

    /// Cancels all running jobs, for the end of the server.
    pub fn cancel_all(&self) {
        self.cancel(|_| true);
    }

    /// Cancels all running jobs before other data are loaded, unless an end has begun: its last snapshot
    /// stays.
    pub fn cancel_unless_ending(&self) {
        // Evaluated under the state's lock: an end has begun before it claims a job.
        self.cancel(|_| !self.ending.is_under_way());
    }

    /// Cancels a running or scheduled snapshot, but neither the base of an append-only file nor a snapshot
    /// for replicas.
    pub fn cancel_save(&self) -> Cancelled {
        self.cancel(|running| running.is(PersistJob::Snapshot))
    }

    /// Cancels the running rewrite and a scheduled rewrite. Returns whether a rewrite was running.
    pub fn cancel_rewrite(&self) -> bool {
        let mut state = self.state.lock();
        state.rewrite_scheduled = false;
        let running = state.running.as_mut().filter(|running| running.is(PersistJob::Base));
        let Some(running) = running else { return false };
        running.is_cancelled = true;
        self.cancelled.store(true, Release);
        true
    }

    /// Cancels the snapshot for a move of slots.
    pub fn cancel_move(&self) {
        self.cancel_if_running(PersistJob::Move);
    }

    /// Cancels the walk of a backup.
    pub(super) fn cancel_backup(&self) {
        self.cancel_if_running(PersistJob::Backup);
    }

    fn cancel_if_running(&self, job: PersistJob) {
        let mut state = self.state.lock();
        if let Some(running) = state.running.as_mut().filter(|running| running.is(job)) {
            running.is_cancelled = true;
            self.cancelled.store(true, Release);
        }
    }

    fn cancel(&self, which: impl Fn(Running) -> bool) -> Cancelled {
        let state = &mut *self.state.lock();
        let was_scheduled = std::mem::take(&mut state.save_scheduled);
        let mut cancelled = if was_scheduled { Cancelled::Scheduled } else { Cancelled::Nothing };
        for running in state.running.iter_mut().chain(&mut state.sync).filter(|running| which(**running)) {
            running.is_cancelled = true;
            self.cancel_flag(running.job).store(true, Release);
            cancelled = Cancelled::Running;
        }
        cancelled
    }

    /// The flag that says whether a job has been cancelled.
    pub(super) fn cancel_flag(&self, job: PersistJob) -> &AtomicBool {
        if job == PersistJob::Sync { &self.sync_cancelled } else { &self.cancelled }
    }

    /// Claims a job. Returns false if another job is running. Syncs have their own claim.
    pub fn claim(&self, job: PersistJob) -> bool {
        self.claim_as(job, false)
    }

    /// The same; no full sync runs beside the job.
    pub fn claim_alone(&self, job: PersistJob) -> bool {
        self.claim_as(job, true)
    }

    fn claim_as(&self, job: PersistJob, is_alone: bool) -> bool {
        let mut state = self.state.lock();
        if !state.is_idle() {
            return false;
        }
        let mut running = Running::now(job, is_alone);
        match job {
            PersistJob::Base => {
                (state.last_rewrite_attempt_s, state.rewrite_scheduled) = (running.since_s, false)
            }
            PersistJob::Snapshot => {
                (state.last_attempt_s, state.save_scheduled) = (running.since_s, false);
                running.is_owed = std::mem::take(&mut state.save_owed);
            }
            PersistJob::Log | PersistJob::Backup | PersistJob::Move | PersistJob::Sync => {}
        }
        state.running = Some(running);
        self.cancelled.store(false, Release);
        true
    }

    /// Waits for the end of the running jobs, then claims a job as [`Persist::claim_alone`] does.
    pub fn claim_in_turn(&self, job: PersistJob) {
        while !self.claim_alone(job) {
            self.wait_until_idle();
        }
    }

    /// Claims the snapshot for replicas. Returns false if it cannot begin now. [`Persist::end_sync`] releases
    /// the claim.
    pub fn claim_sync(&self) -> bool {
        let mut state = self.state.lock();
        let waits_for_disk = |running: Running| match running.stage {
            Stage::Before(since) => since.elapsed() > STUCK && !running.is(PersistJob::Log),
            Stage::Walks => false,
            Stage::After => true,
        };
        let may_be = |running: Running| !running.is_alone && waits_for_disk(running);
        if state.sync.is_some() || !state.running.is_none_or(may_be) {
            return false;
        }
        state.sync = Some(Running::now(PersistJob::Sync, false));
        self.sync_cancelled.store(false, Release);
        true
    }

    /// Cancels a walk that has waited for its disk for [`STUCK`], since replicas wait for the keyspace.
    /// Schedules the job again. Returns whether it was cancelled.
    pub(super) fn cancel_stuck(&self) -> bool {
        let mut state = self.state.lock();
        let is_stuck = || self.disk_since.lock().is_some_and(|since| since.elapsed() > STUCK);
        let may_be = |running: &Running| running.stage == Stage::Walks && !running.is_alone;
        let Some(running) = state.running.as_mut().filter(|running| may_be(running)) else { return false };
        if !is_stuck() || self.cancelled.swap(true, AcqRel) {
            return false;
        }
        running.is_cancelled = true;
        let running = *running;
        match running.job {
            PersistJob::Base => state.rewrite_scheduled = true,
            PersistJob::Snapshot if !running.is_owed => state.save_scheduled = true,
            // A client begins another backup.
            PersistJob::Snapshot
            | PersistJob::Backup
            | PersistJob::Log
            | PersistJob::Move
            | PersistJob::Sync => {}
        }
        true
    }

    /// Marks the beginning of a job's walk through the keyspace.
    pub(super) fn begin_walk(&self, job: PersistJob) {
        self.update_walk(job, |running| running.stage = Stage::Walks);
    }

    /// Marks the end of the walk, for which writers have copied `copied` bytes.
    pub(super) fn end_walk(&self, job: PersistJob, copied: u64) {
        self.update_walk(job, |running| (running.stage, running.copied) = (Stage::After, copied));
    }

    fn update_walk(&self, job: PersistJob, update: impl FnOnce(&mut Running)) {
        let state = &mut *self.state.lock();
        let running = if job == PersistJob::Sync { &mut state.sync } else { &mut state.running };
        if let Some(running) = running {
            update(running);
        }
    }

    /// Marks that the job waits for its disk, unless it is marked already. [`Persist::end_wait`] ends the
    /// wait.
    pub(super) fn begin_wait(&self, job: PersistJob) {
        if job != PersistJob::Sync {
            self.disk_since.lock().get_or_insert_with(Instant::now);
        }
    }

    pub(super) fn end_wait(&self, job: PersistJob) {
        if job != PersistJob::Sync {
            *self.disk_since.lock() = None;
        }
    }

    /// Cancels the snapshot for replicas, as no replica wants it any more.
    pub fn cancel_sync(&self) {
        if self.state.lock().sync.is_some() {
            self.sync_cancelled.store(true, Release);
        }
    }

    /// Releases the claim of the snapshot for replicas, complete or cancelled.
    pub fn end_sync(&self) {
        let mut state = self.state.lock();
        let running = state.sync.take().expect("it was claimed");
        state.last_took_s = Some((evenkeel_runtime::clock::unix_ms() / 1000).saturating_sub(running.since_s));
        state.on_job_end();
        drop(state);
        self.ended.notify_all();
    }

    /// Whether a job has been cancelled.
    pub fn is_cancelled(&self, job: PersistJob) -> bool {
        self.cancel_flag(job).load(Acquire)
    }

    /// Returns `written`, unless the job was cancelled meanwhile: later keys may be missing in it.
    pub fn unless_cancelled<T>(&self, job: PersistJob, written: io::Result<T>) -> io::Result<T> {
        let whole = written?;
        if self.is_cancelled(job) { Err(cancelled()) } else { Ok(whole) }
    }

    /// Claims a job in turn, unless `is_cancelled`, which it polls. Returns whether the job is claimed. The
    /// running job may be a write to a disk that hangs.
    pub(super) fn claim_in_turn_unless(
        &self,
        job: PersistJob,
        mut is_cancelled: impl FnMut() -> bool,
    ) -> bool {
        while !is_cancelled() {
            if self.claim_alone(job) {
                return true;
            }
            self.is_idle_within(CANCEL_POLL_INTERVAL);
        }
        false
    }

    /// Waits for the work that Redis completes before its reply: as long as a healthy disk takes, and at most
    /// [`START_TIMEOUT`], for a disk may hang. The caller is not in the gate.
    pub fn catch_up(&self) {
        let until = Instant::now() + START_TIMEOUT;
        let mut state = self.state.lock();
        while state.is_behind() && !self.ended.wait_until(&mut state, until).timed_out() {}
    }

    /// Waits until the owed snapshot can be taken. Returns false if another thread has taken it, or a long
    /// job is running.
    pub(super) fn wait_to_pay(&self) -> bool {
        let until = Instant::now() + START_TIMEOUT;
        let mut state = self.state.lock();
        loop {
            let Some(running) = state.running.or(state.sync) else { return state.save_owed };
            // A snapshot is the owed snapshot, or was cancelled for it.
            let is_worth_waiting = running.is(PersistJob::Snapshot)
                || running.is_brief() && state.sync.is_none() && Instant::now() < until;
            if !(state.is_owing() && is_worth_waiting) {
                return false;
            }
            self.ended.wait_for(&mut state, CANCEL_POLL_INTERVAL);
        }
    }

    /// Waits until no job is running.
    pub fn wait_until_idle(&self) {
        let mut state = self.state.lock();
        while !state.is_idle() {
            self.ended.wait(&mut state);
        }
    }

    /// The same, for at most `timeout`. Returns whether no job is running.
    pub fn is_idle_within(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let mut state = self.state.lock();
        while !state.is_idle() && !self.ended.wait_until(&mut state, until).timed_out() {}
        state.is_idle()
    }
}

pub(super) fn cancelled() -> io::Error {
    io::Error::other("it was cancelled")
}

#[cfg(test)]
mod tests {
    use super::super::rewrite;
    use super::*;
    use crate::testing::Disk;

    #[test]
    fn an_owed_snapshot_stays_owed_until_saved() {
        let persist = Disk::new(&["--save", "3600 1"]);
        persist.owe_save();
        assert!(persist.state().is_owing() && persist.state().is_behind());
        assert!(persist.claim(PersistJob::Snapshot));
        assert!(persist.state().is_owing() && persist.state().is_behind());
        assert!(!persist.state().is_saving_in_background(), "Redis has done it");
        rewrite::release(&persist);
        assert!(persist.state().save_owed, "it was given up");
        assert!(persist.claim_sync());
        assert!(!persist.wait_to_pay(), "that may take long");
        persist.end_sync();
        assert!(persist.wait_to_pay());
        super::super::snapshot::pay(&persist);
        assert!(!persist.state().is_owing() && !persist.state().is_behind() && !persist.wait_to_pay());
    }

    #[test]
    fn full_syncs_wait_for_walks_but_not_for_disks() {
        let persist = Disk::new(&[]);
        for job in [PersistJob::Snapshot, PersistJob::Base] {
            assert!(persist.claim(job));
            assert!(!persist.claim_sync(), "it is about to walk");
            let long_ago = Instant::now().checked_sub(STUCK).expect("the machine has been up for longer");
            persist.update_walk(job, |running| running.stage = Stage::Before(long_ago));
            assert!(persist.claim_sync(), "it does not come to that");
            assert!(!persist.claim(job) && !persist.claim_sync());
            persist.end_sync();
            persist.begin_walk(job);
            persist.begin_wait(job);
            assert!(!persist.claim_sync() && !persist.cancel_stuck(), "it has not waited for long");
            *persist.disk_since.lock() = Instant::now().checked_sub(STUCK);
            assert!(!persist.is_cancelled(job));
            assert!(persist.cancel_stuck() && !persist.cancel_stuck());
            assert!(!persist.claim_sync(), "it has not come to its end");
            let state = persist.state();
            assert_eq!(
                (state.save_scheduled, state.rewrite_scheduled),
                (job == PersistJob::Snapshot, job == PersistJob::Base)
            );
            assert!(persist.is_cancelled(job));
            persist.end_walk(job, 7);
            assert_eq!(persist.state().running.map(|running| running.copied), Some(7));
            assert!(persist.claim_sync());
            assert!(!persist.is_cancelled(PersistJob::Sync));
            persist.cancel_all();
            assert!(persist.is_cancelled(PersistJob::Sync));
            persist.end_sync();
            persist.end_wait(job);
            let mut state = persist.state.lock();
            (state.running, state.rewrite_scheduled) = (None, false);
        }
        for job in [PersistJob::Log, PersistJob::Snapshot] {
            persist.claim_in_turn(job);
            assert!(!persist.claim_sync(), "who waits, or changes the data, has all for himself");
            persist.begin_walk(job);
            persist.begin_wait(job);
            *persist.disk_since.lock() = Instant::now().checked_sub(STUCK);
            assert!(!persist.cancel_stuck());
            persist.end_wait(job);
            persist.end_walk(job, 0);
            assert!(!persist.claim_sync());
            rewrite::release(&persist);
        }
        assert!(
            persist.claim(PersistJob::Log) && !persist.claim_sync(),
            "who leaves the log holds all in a moment"
        );
        persist.end_walk(PersistJob::Log, 0);
        assert!(persist.claim_sync(), "what is left of the log is the disk's");
        persist.end_sync();
        rewrite::release(&persist);
    }
}
