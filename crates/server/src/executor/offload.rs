//! Long commands: another thread does the work of a command that goes through millions of elements, without
//! locks.
//!
//! A worker that sorts a million elements would keep all its other clients waiting for a second. For as long
//! as it holds the slots of its keys, it would also block every other worker that wants one of them. But a
//! large collection can be shared in constant time, and later writes do not change a share. So a handler
//! whose work is large shares its sources, hands the rest over as [`Work`] ([`Call::offload`]), and its
//! connection waits for the reply like the connection of a blocked command. The worker goes on with the next
//! client.
//!
//! For a command that only reads, that is all. A command that stores its result locks its keys when the
//! result is there and checks whether its sources are still the values that it shared. If they are, no write
//! came between, and the result is stored. If not, the handler runs anew under these locks and shares the
//! current values. After [`ATTEMPTS`] such runs it works in place, while it holds the locks, so it ends
//! however busy other clients are with its sources.
//!
//! Work may also read keys that the handler did not know ([`Work::visits`], for SORT BY): it locks their
//! slots one at a time. A command of that kind that has to end under locks holds all slots.
//!
//! Slow scripts wait for a thread of their own in the same way. No limit applies to their number: a client
//! has at most one. When the running script is announced as busy ([`evenkeel_scripting::busy`]), the scripts
//! behind it are refused.
//!
//! A command works in place inside MULTI, on behalf of a blocked client, and when [`QUEUE_MAX`] commands wait
//! for a thread already.
//!
//! Work that blocks on another server ([`Call::offload_io`]) or on the disk ([`Call::offload_disk`]) gets a
//! thread of its own, so a server that never answers cannot occupy the pool. The pool then stores the result.
//! At most [`BLOCKING_IO_MAX`] such threads exist; further commands of that kind are refused.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::cluster::leaving::gone;
use crate::cluster::routing::down;
use crate::executor::Executor;
use crate::executor::admission;
use crate::executor::permission;
use crate::observe::stats::add;
use crate::observe::{self, commandlog::Spent};
use crate::server::Server;
use evenkeel_acl::Access;
use evenkeel_client::clients::ClientInfo;
use evenkeel_client::session::{Caching, Session};
use evenkeel_client::waiting::{On, Resumed, Waiting};
use evenkeel_command::args::OwnedArgs;
use evenkeel_command::error::Error;
use evenkeel_command::flow::{
    ATTEMPTS, BlockingIo, Commit, Done, Flow, Mode, Ran, Run, Timeout, Work, ok_for_nothing,
};
use evenkeel_command::reply::Reply;
use evenkeel_command::table::table;
use evenkeel_command::{Args, Call, Flags, Id};
use evenkeel_config::cause;
use evenkeel_runtime::clock::{self, Ticks};
use evenkeel_runtime::threads;

/// Commands other than scripts that may wait for a thread. Each keeps its sources from being freed.
const QUEUE_MAX: usize = 128;

/// Commands that may wait for other servers or for the disk at a time.
const BLOCKING_IO_MAX: usize = 64;

/// Poll interval of a command that is about to write while writes are paused.
const PAUSE_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The part of a command that another thread does.
pub(crate) enum JobWork {
    Work(Work),
    /// The whole script, from its beginning.
    Script,
}

impl JobWork {
    fn writes(&self) -> bool {
        match self {
            JobWork::Work(work) => work.writes,
            JobWork::Script => true,
        }
    }
}

type IsCurrent = Box<dyn FnMut(&mut Call<'_, '_>) -> bool + Send>;
type Store = Box<dyn FnOnce(&mut Call<'_, '_>) -> Done + Send>;

/// A result on its way to be stored.
pub(crate) struct Committing {
    commit: Option<Commit>,
    /// An unstored result, and the shares kept for the comparison, may be large. Both are dropped after
    /// the locks are released.
    pub(crate) spent: (Option<IsCurrent>, Option<Store>),
}

impl Committing {
    /// Returns the check of the sources and the function that stores, once.
    pub(crate) fn take(&mut self) -> Option<(IsCurrent, Store)> {
        self.commit.take().map(|Commit { is_current, store }| (is_current, store))
    }
}

/// The commands that wait for a thread, and counters of them.
#[derive(Default)]
pub(crate) struct OffloadPool {
    jobs: Mutex<VecDeque<OffloadJob>>,
    arrived: Condvar,
    /// Length of the queue; a hint for threads that must not take the lock.
    queued: AtomicUsize,
    running: AtomicUsize,
    /// Commands on a `blocking-io` thread.
    blocking_io: AtomicUsize,
    total: AtomicU64,
}

/// A command whose work is offloaded.
pub(crate) struct OffloadJob {
    number: u64,
    client: Arc<ClientInfo>,
    id: Id,
    args: OwnedArgs,
    db: u32,
    resp3: bool,
    no_touch: bool,
    /// Whether keys that the command reads are tracked for its client: for scripts only, all of which may be
    /// offloaded.
    tracks: bool,
    caching: Caching,
    work: JobWork,
    /// Time spent on its worker.
    spent: Ticks,
    /// Time spent waiting for another server.
    blocking_io: Ticks,
    /// Set when the client has gone.
    nobody_waits: Arc<AtomicBool>,
}

impl OffloadPool {
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Relaxed)
    }

    pub(crate) fn running(&self) -> usize {
        self.running.load(Relaxed) + self.blocking_io.load(Relaxed)
    }

    /// Commands offloaded since the start.
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }

    pub(crate) fn has_room_for_io(&self) -> bool {
        self.blocking_io.load(Relaxed) < BLOCKING_IO_MAX
    }

    pub(crate) fn has_room(&self) -> bool {
        self.queued() < QUEUE_MAX
    }

    /// Queues a command of this session; `spent` is the time that its worker has spent on it.
    pub(crate) fn submit(
        &self,
        server: &Arc<Server>,
        session: &mut Session,
        (id, args, resp3): (Id, OwnedArgs, bool),
        work: JobWork,
        spent: Ticks,
    ) {
        let (number, nobody_waits) = (server.core.keyspace.ticket(), Arc::new(AtomicBool::new(false)));
        let on = On::Long(nobody_waits.clone());
        let waiting = Waiting::new(number, Timeout(None), on);
        session.waiting = Some(Box::new(waiting));
        let (client, db, no_touch) = (session.client.clone(), session.db, session.no_touch);
        let (tracks, caching) = (session.tracks && matches!(work, JobWork::Script), session.caching);
        #[rustfmt::skip]
        let job = |work| OffloadJob {
            number, client, id, args, db, resp3, no_touch, tracks, caching, work, spent, blocking_io: 0,
            nobody_waits,
        };
        match work {
            JobWork::Work(Work { run: Run::BlockingIo(run), writes }) => {
                let in_its_place = Work { writes, ..Work::nothing() };
                offload_io(server, job(JobWork::Work(in_its_place)), run);
            }
            work => self.push(server, job(work)),
        }
    }

    fn push(&self, server: &Server, job: OffloadJob) {
        let mut jobs = self.jobs.lock();
        // Checked under the lock: a thread that announces a script takes the lock after the announcement.
        if matches!(job.work, JobWork::Script) && server.scripts.busy.is_busy() {
            drop(jobs);
            return job.refuse(server);
        }
        jobs.push_back(job);
        self.queued.store(jobs.len(), Relaxed);
        drop(jobs);
        self.arrived.notify_one();
    }

    /// Refuses the scripts that wait behind a script just announced as busy. `stats` is the index of the
    /// counters of the thread that runs the busy script.
    pub(crate) fn refuse_all(&self, server: &Server, stats: usize) {
        let mut jobs = self.jobs.lock();
        let waiting = std::mem::take(&mut *jobs);
        self.queued.store(0, Relaxed);
        drop(jobs);
        let (stats, refusal) = (&server.stats[stats], server.scripts.busy.refusal());
        for job in waiting {
            stats.error(&refusal.line());
            add(&stats.commands[job.id.index()].rejected, 1);
            job.refuse(server);
        }
    }

    /// Takes the next command, if there is any: for tests, which have no threads for these.
    #[cfg(test)]
    pub(crate) fn next(&self) -> Option<OffloadJob> {
        self.pop(&mut self.jobs.lock())
    }

    /// Waits for the next command. Returns `None` when there is other work, when this thread was woken for
    /// that, or when the server stops.
    fn await_next(&self, stopping: &AtomicBool, has_more_to_do: impl Fn() -> bool) -> Option<OffloadJob> {
        let mut jobs = self.jobs.lock();
        let next = self.pop(&mut jobs);
        if next.is_none() && !stopping.load(Acquire) && !has_more_to_do() {
            self.arrived.wait(&mut jobs);
        }
        next.or_else(|| self.pop(&mut jobs))
    }

    fn pop(&self, jobs: &mut VecDeque<OffloadJob>) -> Option<OffloadJob> {
        self.pop_at(jobs, 0)
    }

    /// Takes the next command that only reads, for a thread that must not write now.
    fn next_that_reads(&self) -> Option<OffloadJob> {
        let mut jobs = self.jobs.lock();
        let at = jobs.iter().position(|job| !job.work.writes())?;
        self.pop_at(&mut jobs, at)
    }

    fn pop_at(&self, jobs: &mut VecDeque<OffloadJob>, at: usize) -> Option<OffloadJob> {
        let job = jobs.remove(at)?;
        self.queued.store(jobs.len(), Relaxed);
        self.running.fetch_add(1, Relaxed);
        self.total.fetch_add(1, Relaxed);
        Some(job)
    }

    /// Wakes the threads when the server stops; no further command begins. Running commands are left alone:
    /// they hold no locks, and no client waits for them.
    pub(crate) fn stop(&self) {
        self.wake_all();
    }

    /// Wakes all threads, so that each looks for work.
    pub(crate) fn wake_all(&self) {
        drop(self.jobs.lock());
        self.arrived.notify_all();
    }
}

/// Runs work that waits for another server or for the disk on a thread of its own, and queues the command
/// again with the result.
fn offload_io(server: &Arc<Server>, job: OffloadJob, run: Box<BlockingIo>) {
    let requeue = |server: &Server, mut job: OffloadJob, ran: std::thread::Result<Ran>| {
        let come = |_: Args<'_>, reply: &mut Reply| {
            ok_for_nothing(ran.unwrap_or_else(|panic| resume_unwind(panic)), reply)
        };
        job.work = JobWork::Work(Work { run: Run::Apart(Box::new(come)), writes: job.work.writes() });
        server.offload.push(server, job);
    };
    let (on_thread, waits) = (server.clone(), job.nobody_waits.clone());
    server.offload.blocking_io.fetch_add(1, Relaxed);
    // The job is handed over only once the thread exists.
    let (hand_over, handed) = std::sync::mpsc::channel();
    let thread = threads::named("blocking-io");
    let spawned = thread.spawn(move || {
        let before = clock::ticks();
        let ran = catch_unwind(AssertUnwindSafe(|| run(&waits)));
        let Ok(mut job): Result<OffloadJob, _> = handed.recv() else { return };
        job.blocking_io = clock::ticks().saturating_sub(before);
        requeue(&on_thread, job, ran);
        on_thread.offload.blocking_io.fetch_sub(1, Relaxed);
    });
    match spawned {
        Ok(_) => _ = hand_over.send(job),
        Err(error) => {
            server.offload.blocking_io.fetch_sub(1, Relaxed);
            requeue(
                server,
                job,
                Ok(Err(Error::text(format!(
                    "ERR Cannot start a thread for this command: {}",
                    cause(&error)
                )))),
            );
        }
    }
}

/// Runs offloaded commands until the server stops. `index` is that of this thread's counters.
pub(crate) fn run(server: &Arc<Server>, long: &OffloadPool, index: usize) {
    evenkeel_store::memory::register_thread();
    let mut executor = Executor::new(server.clone(), index);
    if std::ptr::eq(long, &server.slow_scripts) {
        executor = executor.that_answers();
    }
    while !server.core.stopping.load(Acquire) {
        if let Some(job) = long.await_next(&server.core.stopping, || server.core.purge.is_asked()) {
            job.run(&mut executor, long);
        }
        server.core.keyspace.tidy(&mut executor.ctx);
        server.core.purge.follow_a_slice();
    }
}

impl OffloadJob {
    /// Does the work, stores its result if there is any, and sends the reply to the connection's worker.
    pub(crate) fn run(self, executor: &mut Executor, long: &OffloadPool) {
        self.work_off(executor, long);
        long.running.fetch_sub(1, Relaxed);
    }

    fn work_off(mut self, executor: &mut Executor, long: &OffloadPool) {
        let server = executor.server.clone();
        executor.refresh(clock::unix_ms());
        let before = clock::ticks();
        if !self.work.writes() && self.nobody_waits.load(Relaxed) {
            return;
        }
        let mut reply = self.empty_reply();
        let work = std::mem::replace(&mut self.work, JobWork::Script);
        let may_write = matches!(work, JobWork::Script) || table().row(self.id).flags.has(Flags::WRITE);
        let done = self.attempt(executor, long, work, &mut reply);
        let elapsed = clock::ticks().saturating_sub(before) + self.blocking_io;
        add(&executor.stats().long_ticks, elapsed);
        self.record_call(executor, done, &mut reply, elapsed);
        server.hub.resume(Resumed {
            client: self.client,
            number: self.number,
            reply,
            may_write,
            closes: false,
        });
    }

    fn attempt(
        &self,
        executor: &mut Executor,
        long: &OffloadPool,
        mut work: JobWork,
        reply: &mut Reply,
    ) -> Result<(), Error> {
        for attempts in 1..=ATTEMPTS {
            let commit = match work {
                JobWork::Work(work) => match self.work_on(executor, work, reply) {
                    Ok(None) => return Ok(()),
                    Ok(commit) => commit,
                    Err(error) => {
                        *reply = self.empty_reply();
                        return Err(error);
                    }
                },
                JobWork::Script => None,
            };
            match self.commit(executor, long, commit, attempts, reply) {
                Ok(None) => return Ok(()),
                Ok(Some(more)) => work = more,
                Err(error) => {
                    *reply = self.empty_reply();
                    return Err(error);
                }
            }
        }
        unreachable!("the last attempt is made under the locks, where nothing is left to do elsewhere");
    }

    fn work_on(&self, executor: &mut Executor, work: Work, reply: &mut Reply) -> Ran {
        let run = match work.run {
            Run::Apart(run) => return shielded(executor, |_| run(self.args.as_args(), reply)),
            Run::Visiting(run) => run,
            Run::BlockingIo(_) => unreachable!("it comes here with what it has got"),
        };
        let server = executor.server.clone();
        executor.refresh(clock::unix_ms());
        executor.ctx.no_touch = self.no_touch;
        server.core.keyspace.enter(&mut executor.ctx);
        executor.update_pause();
        let mut session = self.session(&server);
        let ran = self.is_still_permitted(executor, &mut session).and_then(|()| {
            shielded(executor, |executor| run(&mut server.core.keyspace.hold_none(&mut executor.ctx), reply))
        });
        executor.serve_woken();
        server.core.keyspace.leave(&mut executor.ctx);
        ran
    }

    /// Stores a result, or runs the handler anew if there is none or the sources have changed; that may
    /// return further work.
    fn commit(
        &self,
        executor: &mut Executor,
        long: &OffloadPool,
        commit: Option<Commit>,
        attempts: u8,
        reply: &mut Reply,
    ) -> Result<Option<JobWork>, Error> {
        let mut session = self.session(&executor.server);
        let server = executor.server.clone();
        let mut committing = Committing { commit, spent: (None, None) };
        let done = loop {
            if let Err(refusal) = self.admit(executor, long, &mut session) {
                *reply = self.empty_reply();
                break Err(refusal);
            }
            let command = (self.id, self.args.as_args(), Mode::Again(attempts));
            let done = shielded(executor, |executor| {
                executor.call_to_write(&mut session, command, reply, Some(&mut committing))
            });
            if executor.ctx.is_inside() {
                executor.serve_woken();
                server.core.keyspace.leave(&mut executor.ctx);
            }
            if !matches!(done, Ok(Flow::RetryAdmission)) {
                break done;
            }
        };
        drop(committing);
        Ok(match done? {
            Flow::Offload(work) => Some(JobWork::Work(work)),
            Flow::OffloadScript => Some(JobWork::Script),
            _ => None,
        })
    }

    /// Whether the client may still run this command: since the command began, the client may have been
    /// killed or may have lost the permission. The thread context is inside the gate.
    fn is_still_permitted(&self, executor: &Executor, session: &mut Session) -> Result<(), Error> {
        if self.client.killed.load(Relaxed) {
            return Err(Error::killed());
        }
        let (args, now_ms) = (self.args.as_args(), executor.ctx.now_ms);
        match permission::admit(&executor.server, session, self.id, &args, now_ms)? {
            true => Ok(()),
            false => Err(Error::killed()), // the user is gone, and its connections are being closed
        }
    }

    /// Returns the client's session, as far as its command needs it here.
    fn session(&self, server: &Server) -> Session {
        let access = Access::of_client(&server.acl, self.client.user());
        let mut session = Session::new(self.client.clone(), access);
        (session.db, session.no_touch) = (self.db, self.no_touch);
        (session.tracks, session.caching) = (self.tracks, self.caching);
        session
    }

    /// Waits until the command may write. On success the context is inside the gate and has not left it since
    /// the checks. A change of role, or an exclusive section, waits for the gate.
    fn admit(&self, executor: &mut Executor, long: &OffloadPool, session: &mut Session) -> Result<(), Error> {
        let (row, args, server) = (table().row(self.id), self.args.as_args(), executor.server.clone());
        loop {
            executor.refresh(clock::unix_ms());
            let is_inside = server.core.keyspace.try_enter(&mut executor.ctx);
            if is_inside {
                executor.make_room();
            }
            if !executor.ctx.is_inside() {
                return Err(server.scripts.busy.refusal());
            }
            if let Err(refusal) = self.is_still_permitted(executor, session) {
                server.core.keyspace.leave(&mut executor.ctx);
                return Err(refusal);
            }
            if let Some(refusal) = admission::refusal(&server, (row, row.flags), session) {
                server.core.keyspace.leave(&mut executor.ctx);
                return Err(refusal);
            }
            let is_paused = admission::is_paused(&server, (row, &args), session, executor.ctx.now_ms);
            if let Some(view) = executor.cluster.as_ref().filter(|_| !is_paused)
                && let Some(error) =
                    gone(view, &executor.settings, &self.client, (row, &args)).or_else(|| {
                        let is_fenced = view.is_primary && server.is_fenced();
                        (is_fenced && (row.flags.has(Flags::WRITE) || !row.keys.is_none())).then(down)
                    })
            {
                server.core.keyspace.leave(&mut executor.ctx);
                return Err(error);
            }
            if !is_paused && !admission::waits_for_journal(&server, row, session) {
                return Ok(());
            }
            server.core.keyspace.leave(&mut executor.ctx);
            // A pause of writes does not delay commands that only read.
            match long.next_that_reads() {
                Some(job) => job.run(executor, long),
                None => std::thread::sleep(PAUSE_POLL_INTERVAL),
            }
        }
    }

    /// Records the command as if it had run at once: one call, with its total time.
    fn record_call(&self, executor: &mut Executor, done: Result<(), Error>, reply: &mut Reply, long: Ticks) {
        let waited = std::mem::take(&mut executor.ctx.lock_wait);
        let (server, settings, stats) = (&executor.server, &executor.settings, executor.stats());
        if let Err(error) = &done {
            reply.fail(error);
            stats.error(&error.line());
        }
        let args = self.args.as_args();
        let spent = Spent {
            ticks: self.spent + long,
            waited,
            long: long.saturating_sub(waited),
            request: args.wire_len(),
            reply: reply.len(),
            is_nested: false,
        };
        stats.ran(self.id, spent.ticks, reply.errors > 0, settings.latency_tracking);
        let command = (table().row(self.id), args, &spent);
        observe::ended(server, settings, executor.worker, &self.client, command);
    }

    /// Replies that a script is busy.
    fn refuse(self, server: &Server) {
        let mut reply = self.empty_reply();
        reply.fail(&server.scripts.busy.refusal());
        let (client, number) = (self.client, self.number);
        server.hub.resume(Resumed { client, number, reply, may_write: false, closes: false });
    }

    fn empty_reply(&self) -> Reply {
        let mut reply = Reply::default();
        reply.resp3 = self.resp3;
        reply
    }
}

/// Runs `f`; turns a panic in it into an error.
fn shielded<R>(
    executor: &mut Executor,
    f: impl FnOnce(&mut Executor) -> Result<R, Error>,
) -> Result<R, Error> {
    catch_unwind(AssertUnwindSafe(|| f(executor))).unwrap_or_else(|_| {
        add(&executor.stats().panics, 1);
        Err(Error::abandoned())
    })
}

#[cfg(test)]
mod tests;
