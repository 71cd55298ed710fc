//! What is kept on disk: snapshots (RDB files), and the log (append-only files).
//!
//! Serving threads touch no file. A snapshot has a thread of its own for as long as it takes ([`snapshot`]); the log is
//! written by one that lives as long as it is kept ([`aof`]); at the start, threads of their own load what there is
//! ([`load`]). What they all say about themselves is in [`Persist`], for INFO and for those who wait.

pub(crate) mod aof;
pub(crate) mod bar;
mod direct;
pub(crate) mod draft;
pub(crate) mod end;
pub(crate) mod fresh;
pub(crate) mod load;
pub(crate) mod lock;
mod pace;
pub(crate) mod points;
pub(crate) mod recorder;
pub(crate) mod reload;
pub(crate) mod replay;
pub(crate) mod rewrite;
pub(crate) mod snapshot;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use evenkeel_store::{Seat, memory};
use parking_lot::{Condvar, Mutex};

use crate::command::{Command, Flags, Reach};
use crate::config::Settings;
use crate::error::Error;
use crate::server::Server;
use crate::session::Session;

/// How long it may take who waits for a disk, or for others, to notice that he need not any more.
const LOOK: Duration = Duration::from_millis(20);

/// How long a disk may take nothing, before replicas that wait for a full sync do not wait for it.
const STUCK: Duration = Duration::from_secs(5);

/// See the module's text.
pub(crate) struct Persist {
    pub(crate) obstacles: Obstacles,
    /// The snapshot thread's, of which there is one at a time.
    seat: Mutex<Seat>,
    /// Those of the threads that load, the reader's first.
    loaders: Mutex<Vec<Seat>>,
    /// That of who runs the log's commands again, once there has been one.
    player: Mutex<Option<Seat>>,
    state: Mutex<State>,
    /// A snapshot has ended.
    ended: Condvar,
    /// What is being written is not wanted any more.
    cancelled: AtomicBool,
    /// Nor the snapshot that is being taken for replicas.
    sync_cancelled: AtomicBool,
    /// Since when what is being written has waited for its disk.
    disk_since: Mutex<Option<Instant>>,
    /// Held by who takes all data out and puts them back.
    reload: Mutex<()>,
    pub(crate) ending: end::Ending,
    /// The data were given up for others, a primary's or those on disk, which have not come whole: what is in memory is not
    /// to take the place of what is on disk, unless somebody asks for it.
    pub(crate) is_incomplete: AtomicBool,
    pub(crate) progress: Progress,
    pub(crate) loading: load::Loading,
    pub(crate) aof: aof::Aof,
    pub(crate) locks: lock::Locks,
}

/// What is being done, and how it went before.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) running: Option<Running>,
    /// The snapshot that is being taken for replicas. Nothing else begins meanwhile, but it may itself begin while what is being
    /// written waits for nothing but its disk.
    pub(crate) sync: Option<Running>,
    /// BGREWRITEAOF, while something else is being written.
    pub(crate) rewrite_scheduled: bool,
    pub(crate) rewrites: u64,
    /// In a row.
    pub(crate) rewrites_failed: u64,
    pub(crate) last_rewrite_took_s: Option<u64>,
    /// Bytes that writers copied meanwhile.
    pub(crate) last_rewrite_copied: u64,
    pub(crate) last_rewrite_attempt_s: u64,
    /// BGSAVE SCHEDULE, while something else is being written.
    pub(crate) save_scheduled: bool,
    pub(crate) saves: u64,
    /// Seconds since the Unix epoch; the start counts as a save.
    pub(crate) last_save_s: u64,
    pub(crate) last_attempt_s: u64,
    pub(crate) last_took_s: Option<u64>,
    pub(crate) last_copied: u64,
    pub(crate) last_ok: bool,
    /// Writes since the start, as the last good snapshot has them.
    pub(crate) dirty_at_save: u64,
}

/// What has been given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancelled {
    Running,
    Scheduled,
    Nothing,
}

/// What is done one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    Snapshot,
    /// A snapshot that is to be the base of an append-only file.
    Base,
    /// The log is being turned off, or read again.
    Log,
    /// A snapshot that goes to replicas.
    Sync,
}

/// A job that is being done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub(crate) job: Job,
    pub(crate) since_s: u64,
    /// Nothing else is done meanwhile: somebody waits for it, or goes on with something else.
    is_alone: bool,
    /// It walks through the keyspace, which one does at a time.
    walks: bool,
    /// Bytes that writers copied for its walk.
    copied: u64,
}

impl State {
    /// What is being done.
    pub(crate) fn all(&self) -> impl Iterator<Item = Running> {
        self.running.into_iter().chain(self.sync)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.all().next().is_none()
    }

    /// A job has ended. What snapshots have in memory is told from data for all of them together.
    fn note_end(&self) {
        if self.is_idle() {
            memory::end_aside();
        }
    }
}

impl Running {
    fn now(job: Job, is_alone: bool) -> Running {
        Running { job, since_s: crate::clock::unix_ms() / 1000, is_alone, walks: false, copied: 0 }
    }

    pub(crate) fn is(self, job: Job) -> bool {
        self.job == job
    }
}

/// How far a snapshot is.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) keys: AtomicU64,
    pub(crate) keys_total: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Parts in ten thousand of the walk.
    pub(crate) walked: AtomicU64,
    /// How often a snapshot was lost because its disk was too slow, since the start.
    pub(crate) overruns: AtomicU64,
}

/// What keeps commands from being run, as bits: looked at before every command, written nearly never.
#[derive(Default)]
pub(crate) struct Obstacles(AtomicU8);

/// Data are being loaded.
const LOADING: u8 = 1 << 0;
/// The last snapshot failed, and writes are not to go on without one.
pub(crate) const NO_SNAPSHOT: u8 = 1 << 1;
/// The log cannot be written to disk.
pub(crate) const NO_LOG: u8 = 1 << 2;
/// More of the log waits to be written than may wait: writes wait, too.
pub(crate) const CROWDED: u8 = 1 << 3;
/// There are not as many good replicas as there have to be.
pub(crate) const NO_REPLICAS: u8 = 1 << 4;
/// The server follows another one, and clients may not write.
pub(crate) const READ_ONLY: u8 = 1 << 5;
/// The server follows another one, the link to which does not stand, and clients are not to read what may be old.
pub(crate) const STALE: u8 = 1 << 6;

pub(crate) const STALE_TEXT: &str =
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";

impl Obstacles {
    #[inline]
    pub(crate) fn any(&self) -> u8 {
        self.0.load(Relaxed)
    }

    pub(crate) fn set(&self, obstacle: u8, is_there: bool) {
        if is_there {
            self.0.fetch_or(obstacle, AcqRel);
        } else {
            self.0.fetch_and(!obstacle, AcqRel);
        }
    }

    /// Whether a command has to wait until more of the log is written.
    #[cold]
    pub(crate) fn delays(&self, row: &Command, session: &Session) -> bool {
        self.any() & CROWDED != 0 && has((row, row.flags), session, Flags::WRITE)
    }
}

impl Persist {
    /// Why a command with these flags cannot be run now, if so.
    #[cold]
    pub(crate) fn refuses(
        &self,
        server: &Server,
        command: (&Command, Flags),
        session: &Session,
    ) -> Option<Error> {
        let any = self.obstacles.any();
        // PING counts as a write here: it tells whether a server is fit to be written to.
        let writes = || has(command, session, Flags::WRITE.with(Flags::HEALTH));
        if any & NO_LOG != 0 && writes() {
            let cause = self.aof.figures.failure.lock();
            return Some(Error::text(format!("MISCONF Errors writing to the AOF file: {cause}")));
        }
        if any & READ_ONLY != 0 && has(command, session, Flags::WRITE) {
            return Some(Error::text("READONLY You can't write against a read only replica."));
        }
        if any & STALE != 0 && lacks(command, session, Flags::STALE) {
            return Some(Error::text(STALE_TEXT));
        }
        if any & LOADING != 0 && lacks(command, session, Flags::LOADING) {
            return Some(loading());
        }
        if any & NO_SNAPSHOT != 0 && writes() {
            return Some(Error::text(
                "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. \
                 Commands that may modify the data set are disabled, because this instance is configured to report \
                 errors during writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the \
                 Redis logs for details about the RDB error.",
            ));
        }
        // Looked at again: a replica that is told to be online counts from then on.
        if any & NO_REPLICAS != 0
            && has(command, session, Flags::WRITE)
            && server.replication.follow(server, &server.settings())
        {
            return Some(Error::text("NOREPLICAS Not enough good replicas to write."));
        }
        None
    }
}

fn cancelled() -> io::Error {
    io::Error::other("it was cancelled")
}

/// What is answered while data are loaded.
pub(crate) fn loading() -> Error {
    Error::text("LOADING Redis is loading the dataset in memory")
}

/// Whether a command has one of these flags; an EXEC, whether one of its commands has.
fn has((row, its): (&Command, Flags), session: &Session, flags: Flags) -> bool {
    match row.reach {
        Reach::Queue => queued(session).any(|its| its.has(flags)),
        _ => its.has(flags),
    }
}

/// Whether a command lacks this flag; an EXEC, whether one of its commands does.
fn lacks((row, its): (&Command, Flags), session: &Session, flag: Flags) -> bool {
    match row.reach {
        Reach::Queue => queued(session).any(|its| !its.has(flag)),
        _ => !its.has(flag),
    }
}

fn queued(session: &Session) -> impl Iterator<Item = Flags> {
    session.multi.iter().flat_map(|multi| &multi.queue).map(|queued| queued.flags)
}

impl Persist {
    pub(crate) fn new(seat: Seat, loaders: Vec<Seat>, now_s: u64) -> Persist {
        let state = State {
            running: None,
            sync: None,
            rewrite_scheduled: false,
            rewrites: 0,
            rewrites_failed: 0,
            last_rewrite_took_s: None,
            last_rewrite_copied: 0,
            last_rewrite_attempt_s: 0,
            save_scheduled: false,
            saves: 0,
            last_save_s: now_s,
            last_attempt_s: 0,
            last_took_s: None,
            last_copied: 0,
            last_ok: true,
            dirty_at_save: 0,
        };
        Persist {
            obstacles: Obstacles::default(),
            seat: Mutex::new(seat),
            loaders: Mutex::new(loaders),
            player: Mutex::new(None),
            state: Mutex::new(state),
            ended: Condvar::new(),
            cancelled: AtomicBool::new(false),
            sync_cancelled: AtomicBool::new(false),
            disk_since: Mutex::new(None),
            reload: Mutex::new(()),
            ending: end::Ending::default(),
            is_incomplete: AtomicBool::new(false),
            progress: Progress::default(),
            loading: load::Loading::default(),
            aof: aof::Aof::default(),
            locks: lock::Locks::default(),
        }
    }

    /// CONFIG RESETSTAT
    pub(crate) fn reset_counts(&self) {
        self.state.lock().saves = 0;
        self.aof.figures.reset();
    }

    pub(crate) fn state(&self) -> State {
        self.state.lock().clone()
    }

    /// BGSAVE SCHEDULE while something else is being written: as soon as that has ended.
    pub(crate) fn schedule_save(&self) {
        self.state.lock().save_scheduled = true;
    }

    /// BGREWRITEAOF while something else is being written.
    pub(crate) fn schedule_rewrite(&self) {
        self.state.lock().rewrite_scheduled = true;
    }

    /// Gives up whatever is being written, for the server ends.
    pub(crate) fn cancel_all(&self) {
        self.cancel(|_| true);
    }

    /// Gives up the snapshot that is being taken, and one that is to come; not the base of an append-only file, or what goes
    /// to replicas.
    pub(crate) fn cancel_save(&self) -> Cancelled {
        self.cancel(|running| running.is(Job::Snapshot))
    }

    /// Gives up the base that is being written, and one that is to come; whether there was one.
    pub(crate) fn cancel_rewrite(&self) -> bool {
        let mut state = self.state.lock();
        state.rewrite_scheduled = false;
        let is_running = state.running.is_some_and(|running| running.is(Job::Base));
        if is_running {
            self.cancelled.store(true, Release);
        }
        is_running
    }

    fn cancel(&self, which: impl Fn(Running) -> bool) -> Cancelled {
        let mut state = self.state.lock();
        let was_scheduled = std::mem::take(&mut state.save_scheduled);
        let mut cancelled = if was_scheduled { Cancelled::Scheduled } else { Cancelled::Nothing };
        for running in state.all().filter(|running| which(*running)) {
            self.cancelled(running.job).store(true, Release);
            cancelled = Cancelled::Running;
        }
        cancelled
    }

    /// Whether a job is not wanted any more.
    fn cancelled(&self, job: Job) -> &AtomicBool {
        if job == Job::Sync { &self.sync_cancelled } else { &self.cancelled }
    }

    /// Claims that a job is being done; `false`: one is. Syncs have their own claim.
    pub(crate) fn claim(&self, job: Job) -> bool {
        self.claim_as(job, false)
    }

    fn claim_as(&self, job: Job, is_alone: bool) -> bool {
        let mut state = self.state.lock();
        if !state.is_idle() {
            return false;
        }
        let running = Running::now(job, is_alone);
        state.running = Some(running);
        match job {
            Job::Base => (state.last_rewrite_attempt_s, state.rewrite_scheduled) = (running.since_s, false),
            Job::Snapshot => (state.last_attempt_s, state.save_scheduled) = (running.since_s, false),
            Job::Log | Job::Sync => {}
        }
        self.cancelled.store(false, Release);
        true
    }

    /// The same, once what is being done has ended, and nothing else is done meanwhile.
    pub(crate) fn claim_in_turn(&self, job: Job) {
        while !self.claim_as(job, true) {
            self.wait_until_idle();
        }
    }

    /// Claims that a snapshot is being taken for replicas; `false`: that cannot be now. [`Persist::end_sync`] gives it back.
    pub(crate) fn claim_sync(&self) -> bool {
        let mut state = self.state.lock();
        let may_be = |running: Running| !running.is(Job::Log) && !running.is_alone && !running.walks;
        if state.sync.is_some() || !state.running.is_none_or(may_be) {
            return false;
        }
        state.sync = Some(Running::now(Job::Sync, false));
        self.sync_cancelled.store(false, Release);
        true
    }

    /// For replicas, which wait for what walks through the keyspace: if that has waited for its disk for long, it is given up, and
    /// begun anew later; whether it is.
    fn give_up_stuck(&self) -> bool {
        let mut state = self.state.lock();
        let is_stuck = || self.disk_since.lock().is_some_and(|since| since.elapsed() > STUCK);
        let Some(running) = state.running.filter(|running| running.walks && !running.is_alone) else {
            return false;
        };
        if !is_stuck() || self.cancelled.swap(true, AcqRel) {
            return false;
        }
        if running.is(Job::Base) {
            state.rewrite_scheduled = true;
        } else {
            state.save_scheduled = true;
        }
        true
    }

    /// What a job does is a walk through the keyspace from now on.
    fn begin_walk(&self, job: Job) {
        self.note_walk(job, |running| running.walks = true);
    }

    /// It is not any more; writers have copied so many bytes for it.
    fn end_walk(&self, job: Job, copied: u64) {
        self.note_walk(job, |running| (running.walks, running.copied) = (false, copied));
    }

    fn note_walk(&self, job: Job, note: impl FnOnce(&mut Running)) {
        let state = &mut *self.state.lock();
        let running = if job == Job::Sync { &mut state.sync } else { &mut state.running };
        if let Some(running) = running {
            note(running);
        }
    }

    /// What is being written waits for its disk, as it may have done before; [`Persist::end_wait`] when it does not any more.
    fn note_wait(&self, job: Job) {
        if job != Job::Sync {
            self.disk_since.lock().get_or_insert_with(Instant::now);
        }
    }

    fn end_wait(&self, job: Job) {
        if job != Job::Sync {
            *self.disk_since.lock() = None;
        }
    }

    /// No replica is left that wants the snapshot which is being taken for some.
    pub(crate) fn cancel_sync(&self) {
        if self.state.lock().sync.is_some() {
            self.sync_cancelled.store(true, Release);
        }
    }

    /// The snapshot for replicas has been taken, or is given up.
    pub(crate) fn end_sync(&self) {
        let mut state = self.state.lock();
        let running = state.sync.take().expect("it was claimed");
        state.last_took_s = Some((crate::clock::unix_ms() / 1000).saturating_sub(running.since_s));
        state.note_end();
        drop(state);
        self.ended.notify_all();
    }

    /// Whether what is in memory are the data, and not what has been loaded of them so far.
    pub(crate) fn has_all_data(&self) -> bool {
        !self.is_loading() && !self.is_incomplete.load(Acquire)
    }

    pub(crate) fn is_loading(&self) -> bool {
        self.obstacles.any() & LOADING != 0
    }

    /// Whether what a job writes is not wanted any more.
    pub(crate) fn is_cancelled(&self, job: Job) -> bool {
        self.cancelled(job).load(Acquire)
    }

    /// What was written, unless it was cancelled meanwhile: what came after that may not be in it.
    pub(crate) fn unless_cancelled<T>(&self, job: Job, written: io::Result<T>) -> io::Result<T> {
        let whole = written?;
        if self.is_cancelled(job) { Err(cancelled()) } else { Ok(whole) }
    }

    /// Refuses writes, or no longer, as the settings say of a snapshot that failed.
    pub(crate) fn follow(&self, settings: &Settings) {
        let stops = settings.stop_writes_on_bgsave_error && !settings.save.is_empty();
        // Under the lock: the last one to come sees what all have changed.
        let state = self.state.lock();
        self.obstacles.set(NO_SNAPSHOT, stops && !state.last_ok);
    }

    /// The same, unless it is no longer wanted, which is looked at in between; whether it is claimed. What is being done may
    /// be a write to a disk that hangs.
    fn claim_in_turn_unless(&self, job: Job, is_given_up: impl Fn() -> bool) -> bool {
        while !is_given_up() {
            if self.claim_as(job, true) {
                return true;
            }
            self.is_idle_within(LOOK);
        }
        false
    }

    /// Waits until nothing is written.
    fn wait_until_written(&self) {
        let mut state = self.state.lock();
        while state.running.is_some() {
            self.ended.wait(&mut state);
        }
    }

    /// Waits until no snapshot is being taken.
    pub(crate) fn wait_until_idle(&self) {
        let mut state = self.state.lock();
        while !state.is_idle() {
            self.ended.wait(&mut state);
        }
    }

    /// The same, for so long at most; whether none is.
    pub(crate) fn is_idle_within(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut state = self.state.lock();
        while !state.is_idle() && !self.ended.wait_until(&mut state, until).timed_out() {}
        state.is_idle()
    }

    /// The data are what is on disk: they have been loaded just now.
    pub(crate) fn note_loaded(&self, dirty: u64) {
        self.state.lock().dirty_at_save = dirty;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::live::Live;

    #[test]
    fn a_full_sync_waits_for_a_walk_and_not_for_a_disk() {
        let live = Live::start(1, &[]);
        let persist = &live.server.persist;
        for job in [Job::Snapshot, Job::Base] {
            assert!(persist.claim(job));
            assert!(persist.claim_sync(), "it does not walk yet");
            assert!(!persist.claim(job) && !persist.claim_sync());
            persist.end_sync();
            persist.begin_walk(job);
            persist.note_wait(job);
            assert!(!persist.claim_sync() && !persist.give_up_stuck(), "it has not waited for long");
            *persist.disk_since.lock() = Instant::now().checked_sub(STUCK);
            assert!(!persist.is_cancelled(job));
            assert!(persist.give_up_stuck() && !persist.give_up_stuck());
            assert!(!persist.claim_sync(), "it has not come to its end");
            let state = persist.state();
            assert_eq!(
                (state.save_scheduled, state.rewrite_scheduled),
                (job == Job::Snapshot, job == Job::Base)
            );
            assert!(persist.is_cancelled(job));
            persist.end_walk(job, 7);
            assert_eq!(persist.state().running.map(|running| running.copied), Some(7));
            assert!(persist.claim_sync());
            assert!(!persist.is_cancelled(Job::Sync));
            persist.cancel_all();
            assert!(persist.is_cancelled(Job::Sync));
            persist.end_sync();
            persist.end_wait(job);
            let mut state = persist.state.lock();
            (state.running, state.rewrite_scheduled) = (None, false);
        }
        for job in [Job::Log, Job::Snapshot] {
            persist.claim_in_turn(job);
            assert!(!persist.claim_sync(), "who waits, or changes what is kept, has all for himself");
            persist.begin_walk(job);
            persist.note_wait(job);
            *persist.disk_since.lock() = Instant::now().checked_sub(STUCK);
            assert!(!persist.give_up_stuck());
            persist.end_wait(job);
            rewrite::release(&live.server);
        }
        live.stop();
    }
}
