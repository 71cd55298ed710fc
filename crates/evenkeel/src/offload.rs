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
//! has at most one. When the running script is announced as busy ([`crate::scripting::busy`]), the scripts
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

use evenkeel_store::SlotGuard;
use parking_lot::{Condvar, Mutex};

use crate::acl::{self, Access};
use crate::blocking::{Mode, Timeout};
use crate::clients::ClientInfo;
use crate::command::args::OwnedArgs;
use crate::command::table::table;
use crate::command::{Args, Call, Flags, Id, LockScope};
use crate::dispatch::Executor;
use crate::error::{Done, Error};
use crate::observe::stats::add;
use crate::observe::{self, commandlog::Spent};
use crate::reply::Reply;
use crate::server::Server;
use crate::session::{Caching, Session};
use crate::waiting::{On, Resumed, Waiting};
use evenkeel_config::cause;
use evenkeel_runtime::clock::{self, Ticks};

/// Elements from which on work counts as large: about a millisecond at 50 ns each.
pub(crate) const OFFLOAD_MIN: usize = 20_000;

/// Pages from which on a walk over all of them counts as large: 0.3 ms with no page in a cache.
pub(crate) const OFFLOAD_PAGES: usize = 4096;

/// Commands other than scripts that may wait for a thread. Each keeps its sources from being freed.
const QUEUE_MAX: usize = 128;

/// Commands that may wait for other servers or for the disk at a time.
const BLOCKING_IO_MAX: usize = 64;

/// Attempts without locks before the work is done under them.
const ATTEMPTS: u8 = 2;

/// Poll interval of a command that is about to write while writes are paused.
const PAUSE_LOOK: Duration = Duration::from_millis(1);

enum Run {
    /// Reads only its own data and its command's arguments.
    Apart(Box<Apart>),
    /// Visits the slots of keys. The guard that it gets holds no slot, or every slot that it visits.
    Visiting(Box<Visiting>),
    /// Waits for the disk, or for another server until the client has gone. If there is no result to store,
    /// the reply is OK.
    BlockingIo(Box<BlockingIo>),
}

type Apart = dyn FnOnce(Args<'_>, &mut Reply) -> Ran + Send;

type Visiting = dyn FnOnce(&mut SlotGuard<'_>, &mut Reply) -> Ran + Send;

type BlockingIo = dyn FnOnce(&Arc<AtomicBool>) -> Ran + Send;

/// The result to store, if there is one.
type Ran = Result<Option<Commit>, Error>;

/// Work to be done without locks. It owns all that it needs.
pub(crate) struct Work {
    run: Run,
    /// The work ends in a result to store.
    writes: bool,
    /// The command is a script, to be run from its beginning by the thread for slow scripts.
    is_script: bool,
}

/// How to store the result, under the locks of the command's keys.
struct Commit {
    is_current: Box<dyn FnMut(&mut Call<'_, '_>) -> bool + Send>,
    store: Box<dyn FnOnce(&mut Call<'_, '_>) -> Done + Send>,
}

impl Work {
    /// Returns work that ends in a reply.
    pub(crate) fn reads(run: impl FnOnce(&mut Reply) -> Done + Send + 'static) -> Work {
        let run = Run::Apart(Box::new(|_, reply: &mut Reply| run(reply).map(|()| None)));
        Work { run, writes: false, is_script: false }
    }

    /// [`Work::reads`] for work that visits the slots of keys.
    pub(crate) fn visits(run: impl FnOnce(&mut SlotGuard<'_>, &mut Reply) -> Done + Send + 'static) -> Work {
        let run = Run::Visiting(Box::new(|guard, reply| run(guard, reply).map(|()| None)));
        Work { run, writes: false, is_script: false }
    }

    /// Returns work that ends in a result to store. `is_current` returns whether the sources are still the
    /// values that `compute` has. It must compare identity, since an equal value need not be the same value.
    /// `store` stores and replies.
    pub(crate) fn writes<T: Send + 'static>(
        compute: impl FnOnce() -> Result<T, Error> + Send + 'static,
        is_current: impl FnMut(&mut Call<'_, '_>) -> bool + Send + 'static,
        store: impl FnOnce(&mut Call<'_, '_>, T) -> Done + Send + 'static,
    ) -> Work {
        Work::writes_arguments(move |_| compute(), is_current, store)
    }

    /// [`Work::writes`] for work on an argument of its command. The job keeps the arguments in any case, so
    /// they are not copied for the work while the command's locks are held.
    pub(crate) fn writes_arguments<T: Send + 'static>(
        compute: impl FnOnce(Args<'_>) -> Result<T, Error> + Send + 'static,
        is_current: impl FnMut(&mut Call<'_, '_>) -> bool + Send + 'static,
        store: impl FnOnce(&mut Call<'_, '_>, T) -> Done + Send + 'static,
    ) -> Work {
        let run = |args: Args<'_>, _: &mut Reply| Ok(Some(Commit::of(compute(args)?, is_current, store)));
        Work { run: Run::Apart(Box::new(run)), writes: true, is_script: false }
    }

    /// [`Work::writes`] for work that visits the slots of keys. The values it finds there need not be current
    /// at the end.
    pub(crate) fn visits_and_writes<T: Send + 'static>(
        compute: impl FnOnce(&mut SlotGuard<'_>) -> Result<T, Error> + Send + 'static,
        is_current: impl FnMut(&mut Call<'_, '_>) -> bool + Send + 'static,
        store: impl FnOnce(&mut Call<'_, '_>, T) -> Done + Send + 'static,
    ) -> Work {
        let run = |guard: &mut SlotGuard<'_>, _: &mut Reply| {
            Ok(Some(Commit::of(compute(guard)?, is_current, store)))
        };
        Work { run: Run::Visiting(Box::new(run)), writes: true, is_script: false }
    }

    /// [`Work::writes`] for work that waits for another server. `compute` should poll its flag, which is set
    /// when the client has gone. The result is stored in any case.
    pub(crate) fn blocking_io<T: Send + 'static>(
        compute: impl FnOnce(&Arc<AtomicBool>) -> Result<T, Error> + Send + 'static,
        store: impl FnOnce(&mut Call<'_, '_>, T) -> Done + Send + 'static,
    ) -> Work {
        let run =
            |nobody_waits: &Arc<AtomicBool>| Ok(Some(Commit::of(compute(nobody_waits)?, |_| true, store)));
        Work { run: Run::BlockingIo(Box::new(run)), writes: true, is_script: false }
    }

    /// Returns work that waits for the disk; the reply is OK.
    pub(crate) fn waits_for_disk(run: impl FnOnce() -> Done + Send + 'static) -> Work {
        Work { run: Run::BlockingIo(Box::new(|_| run().map(|()| None))), writes: false, is_script: false }
    }

    /// Placeholder for work that was taken out.
    fn nothing() -> Work {
        Work::reads(|_| Ok(()))
    }

    pub(crate) fn is_script(&self) -> bool {
        self.is_script
    }
}

impl Commit {
    fn of<T: Send + 'static>(
        result: T,
        is_current: impl FnMut(&mut Call<'_, '_>) -> bool + Send + 'static,
        store: impl FnOnce(&mut Call<'_, '_>, T) -> Done + Send + 'static,
    ) -> Commit {
        Commit { is_current: Box::new(is_current), store: Box::new(|call| store(call, result)) }
    }
}

impl Mode {
    /// Whether the work has to be done under locks, since all attempts without them failed.
    pub(crate) fn must_end(self) -> bool {
        matches!(self, Mode::Again(attempts) if attempts >= ATTEMPTS)
    }
}

impl Call<'_, '_> {
    /// Whether work on so many elements is worth offloading, and may be offloaded.
    #[inline]
    pub(crate) fn is_worth_offloading(&self, elements: usize) -> bool {
        elements >= OFFLOAD_MIN && self.may_offload()
    }

    /// Only a command with keys declares what to lock in the end.
    fn may_offload(&self) -> bool {
        if !matches!(table().row(self.id).lock_scope, LockScope::Keys | LockScope::KeysUnless(_)) {
            return false;
        }
        match self.mode {
            // A tracking client would be notified of a change before the reply that the change concerns.
            Mode::Direct if self.session.is_tracking() => false,
            Mode::Direct => !self.session.replays && self.server.offload.has_room(),
            Mode::Again(_) => !self.mode.must_end(),
            Mode::Nested | Mode::Script | Mode::Serving(_) => false,
        }
    }

    /// Hands a script that takes too long for a worker to the thread for slow scripts, which runs it anew
    /// with all slots held.
    pub(crate) fn offload_script(&mut self) -> Done {
        let again = Work::writes(|| Ok(()), |_| false, |_, ()| Ok(()));
        self.session.long = Some(Work { is_script: true, ..again });
        Err(Error::Suspended)
    }

    /// Offloads the work of a handler without keys. Inside a transaction it is done at once.
    pub(crate) fn offload_read(&mut self, work: impl FnOnce(&mut Reply) -> Done + Send + 'static) -> Done {
        if self.mode != Mode::Direct {
            return work(self.reply);
        }
        self.session.long = Some(Work::reads(work));
        Err(Error::Suspended)
    }

    /// [`Call::offload_read`] for work that needs the keyspace at rest. A call that is part of a larger unit
    /// cannot have that and fails.
    pub(crate) fn offload_alone(&mut self, work: impl FnOnce(&mut Reply) -> Done + Send + 'static) -> Done {
        self.must_be_alone()?;
        self.offload_read(work)
    }

    fn must_be_alone(&self) -> Done {
        if self.mode.is_nested() {
            return Err(Error::text("ERR This command is not allowed in transactions and scripts"));
        }
        if self.session.replays {
            return Err(Error::text(
                "ERR This command is not allowed in a replication stream or an append-only file",
            ));
        }
        Ok(())
    }

    /// Offloads work that needs the keyspace at rest and waits for the disk. The reply is OK.
    pub(crate) fn offload_disk(&mut self, work: impl FnOnce() -> Done + Send + 'static) -> Done {
        self.must_be_alone()?;
        self.offload_io(Work::waits_for_disk(work))
    }

    /// Offloads work that waits for another server. A tracking client may be notified of a change before the
    /// reply, which holds nothing to cache. Where offloading is not allowed, the work is done at once. With
    /// [`BLOCKING_IO_MAX`] such commands under way, it is refused.
    pub(crate) fn offload_io(&mut self, work: Work) -> Done {
        if self.mode != Mode::Direct || self.session.replays {
            return self.offload(work);
        }
        if self.server.offload.blocking_io.load(Relaxed) >= BLOCKING_IO_MAX {
            return Err(Error::text(
                "ERR Too many commands are waiting for other servers or the disk, try again later",
            ));
        }
        self.session.long = Some(work);
        Err(Error::Suspended)
    }

    /// Offloads large work. Where offloading is not allowed, the work is done at once.
    pub(crate) fn offload(&mut self, work: Work) -> Done {
        if self.may_offload() {
            self.session.long = Some(work);
            return Err(Error::Suspended);
        }
        let ran = match work.run {
            Run::Apart(run) => run(self.args, self.reply),
            Run::Visiting(run) => run(self.guard, self.reply),
            Run::BlockingIo(run) => ok_for_nothing(run(&Arc::default()), self.reply),
        };
        match ran? {
            Some(commit) => (commit.store)(self),
            None => Ok(()),
        }
    }
}

/// The commands that wait for a thread, and counters of them.
#[derive(Default)]
pub(crate) struct OffloadPool {
    jobs: Mutex<VecDeque<Job>>,
    came: Condvar,
    /// Length of the queue; a hint for threads that must not take the lock.
    queued: AtomicUsize,
    running: AtomicUsize,
    /// Commands on a `blocking-io` thread.
    blocking_io: AtomicUsize,
    total: AtomicU64,
}

/// A command whose work is offloaded.
pub(crate) struct Job {
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
    work: Work,
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

    pub(crate) fn has_room(&self) -> bool {
        self.queued() < QUEUE_MAX
    }

    /// Queues a command of this session; `spent` is the time that its worker has spent on it.
    pub(crate) fn submit(
        &self,
        server: &Arc<Server>,
        session: &mut Session,
        (id, args, resp3): (Id, OwnedArgs, bool),
        work: Work,
        spent: Ticks,
    ) {
        let (number, nobody_waits) = (server.keyspace.ticket(), Arc::new(AtomicBool::new(false)));
        let on = On::Long(nobody_waits.clone());
        let waiting = Waiting::new(number, Timeout(None), on);
        session.waiting = Some(Box::new(waiting));
        let (client, db, no_touch) = (session.client.clone(), session.db, session.no_touch);
        let (tracks, caching) = (session.tracks && work.is_script, session.caching);
        #[rustfmt::skip]
        let job = |work| Job {
            number, client, id, args, db, resp3, no_touch, tracks, caching, work, spent, blocking_io: 0, nobody_waits,
        };
        match work {
            Work { run: Run::BlockingIo(run), writes, .. } => {
                let in_its_place = Work { writes, ..Work::nothing() };
                offload_io(server, job(in_its_place), run);
            }
            work => self.push(server, job(work)),
        }
    }

    fn push(&self, server: &Server, job: Job) {
        let mut jobs = self.jobs.lock();
        // Checked under the lock: a thread that announces a script takes the lock after the announcement.
        if job.work.is_script && server.scripts.busy.is_busy() {
            drop(jobs);
            return job.refuse(server);
        }
        jobs.push_back(job);
        self.queued.store(jobs.len(), Relaxed);
        drop(jobs);
        self.came.notify_one();
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
    pub(crate) fn next(&self) -> Option<Job> {
        self.pop(&mut self.jobs.lock())
    }

    /// Waits for the next command. Returns `None` when there is other work, when this thread was woken for
    /// that, or when the server stops.
    fn await_next(&self, stopping: &AtomicBool, has_more_to_do: impl Fn() -> bool) -> Option<Job> {
        let mut jobs = self.jobs.lock();
        let next = self.pop(&mut jobs);
        if next.is_none() && !stopping.load(Acquire) && !has_more_to_do() {
            self.came.wait(&mut jobs);
        }
        next.or_else(|| self.pop(&mut jobs))
    }

    fn pop(&self, jobs: &mut VecDeque<Job>) -> Option<Job> {
        self.pop_at(jobs, 0)
    }

    /// Takes the next command that only reads, for a thread that must not write now.
    fn next_that_reads(&self) -> Option<Job> {
        let mut jobs = self.jobs.lock();
        let at = jobs.iter().position(|job| !job.work.writes)?;
        self.pop_at(&mut jobs, at)
    }

    fn pop_at(&self, jobs: &mut VecDeque<Job>, at: usize) -> Option<Job> {
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
        self.came.notify_all();
    }
}

fn ok_for_nothing(ran: Ran, reply: &mut Reply) -> Ran {
    if let Ok(None) = ran {
        reply.ok();
    }
    ran
}

/// Runs work that waits for another server or for the disk on a thread of its own, and queues the command
/// again with the result.
fn offload_io(server: &Arc<Server>, job: Job, run: Box<BlockingIo>) {
    let come_back = |server: &Server, mut job: Job, ran: std::thread::Result<Ran>| {
        let come = |_: Args<'_>, reply: &mut Reply| {
            ok_for_nothing(ran.unwrap_or_else(|panic| resume_unwind(panic)), reply)
        };
        job.work.run = Run::Apart(Box::new(come));
        server.offload.push(server, job);
    };
    let (on_thread, waits) = (server.clone(), job.nobody_waits.clone());
    server.offload.blocking_io.fetch_add(1, Relaxed);
    // The job is handed over only once the thread exists.
    let (hand_over, handed) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name("blocking-io".into());
    let spawned = thread.spawn(move || {
        let before = clock::ticks();
        let ran = catch_unwind(AssertUnwindSafe(|| run(&waits)));
        let Ok(mut job): Result<Job, _> = handed.recv() else { return };
        job.blocking_io = clock::ticks().saturating_sub(before);
        come_back(&on_thread, job, ran);
        on_thread.offload.blocking_io.fetch_sub(1, Relaxed);
    });
    match spawned {
        Ok(_) => _ = hand_over.send(job),
        Err(error) => {
            server.offload.blocking_io.fetch_sub(1, Relaxed);
            come_back(
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
    while !server.stopping.load(Acquire) {
        if let Some(job) = long.await_next(&server.stopping, || server.purge.is_asked()) {
            job.run(&mut executor, long);
        }
        server.keyspace.tidy(&mut executor.ctx);
        server.purge.follow_a_slice();
    }
}

impl Job {
    /// Does the work, stores its result if there is any, and sends the reply to the connection's worker.
    pub(crate) fn run(self, executor: &mut Executor, long: &OffloadPool) {
        self.work_off(executor, long);
        long.running.fetch_sub(1, Relaxed);
    }

    fn work_off(mut self, executor: &mut Executor, long: &OffloadPool) {
        let server = executor.server.clone();
        executor.refresh(clock::unix_ms());
        let before = clock::ticks();
        if !self.work.writes && self.nobody_waits.load(Relaxed) {
            return;
        }
        let mut reply = self.empty_reply();
        let work = std::mem::replace(&mut self.work, Work::nothing());
        let may_write = work.is_script || table().row(self.id).flags.has(Flags::WRITE);
        let done = self.attempt(executor, long, work, &mut reply);
        let elapsed = clock::ticks().saturating_sub(before) + self.blocking_io;
        add(&executor.stats().long_ticks, elapsed);
        self.book(executor, done, &mut reply, elapsed);
        server.resume(Resumed { client: self.client, number: self.number, reply, may_write, closes: false });
    }

    fn attempt(
        &self,
        executor: &mut Executor,
        long: &OffloadPool,
        mut work: Work,
        reply: &mut Reply,
    ) -> Done {
        for attempts in 1..=ATTEMPTS {
            let result = self.work_on(executor, work, reply);
            match result {
                Ok(None) => return Ok(()),
                Ok(Some(commit)) => match self.commit(executor, long, commit, attempts, reply) {
                    Ok(None) => return Ok(()),
                    Ok(Some(more)) => work = more,
                    Err(error) => {
                        *reply = self.empty_reply();
                        return Err(error);
                    }
                },
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
        server.keyspace.enter(&mut executor.ctx);
        executor.note_pause();
        let mut session = self.session(&server);
        let ran = self.is_still_permitted(executor, &mut session).and_then(|()| {
            shielded(executor, |executor| run(&mut server.keyspace.hold_none(&mut executor.ctx), reply))
        });
        executor.serve_woken();
        server.keyspace.leave(&mut executor.ctx);
        ran
    }

    /// Stores a result, or runs the handler anew if the sources have changed; that may return further work.
    fn commit(
        &self,
        executor: &mut Executor,
        long: &OffloadPool,
        commit: Commit,
        attempts: u8,
        reply: &mut Reply,
    ) -> Result<Option<Work>, Error> {
        let mut session = self.session(&executor.server);
        let row = table().row(self.id);
        let server = executor.server.clone();
        let mut commit = Some(commit);
        // An unstored result, and the shares kept for the comparison, may be large. Both are dropped after
        // the locks are released.
        let mut is_over = (None, None);
        let done = loop {
            if let Err(refusal) = self.admit(executor, long, &mut session) {
                *reply = self.empty_reply();
                break Err(refusal);
            }
            let command = (self.id, self.args.as_args(), Mode::Again(attempts));
            // `commit` is taken on the first run. If its sources were stale, a later run of this closure runs
            // the handler.
            let done = shielded(executor, |executor| {
                executor.call_to_write(&mut session, command, reply, |call| {
                    let Some(Commit { mut is_current, store }) = commit.take() else { return call.run(row) };
                    let is_so = is_current(call);
                    is_over.0 = Some(is_current);
                    if is_so {
                        return call.logged(row, store);
                    }
                    is_over.1 = Some(store);
                    call.run(row)
                })
            });
            if executor.ctx.is_inside() {
                executor.serve_woken();
                server.keyspace.leave(&mut executor.ctx);
            }
            if done != Err(Error::AdmitAgain) {
                break done;
            }
        };
        drop(is_over);
        match done {
            Err(Error::Suspended) => Ok(session.long.take()),
            done => done.map(|()| None),
        }
    }

    /// Whether the client may still run this command: since the command began, the client may have been
    /// killed or may have lost the permission. The thread context is inside the gate.
    fn is_still_permitted(&self, executor: &Executor, session: &mut Session) -> Done {
        if self.client.killed.load(Relaxed) {
            return Err(Error::killed());
        }
        let (args, now_ms) = (self.args.as_args(), executor.ctx.now_ms);
        match acl::admit(&executor.server, session, self.id, &args, now_ms)? {
            true => Ok(()),
            false => Err(Error::killed()), // the user is gone, and its connections are being closed
        }
    }

    /// Returns the client's session, as far as its command needs it here.
    fn session(&self, server: &Server) -> Session {
        let access = Access::of_client(&server.acl, &self.client);
        let mut session = Session::new(self.client.clone(), access);
        (session.db, session.no_touch) = (self.db, self.no_touch);
        (session.tracks, session.caching) = (self.tracks, self.caching);
        session
    }

    /// Waits until the command may write. On success the context is inside the gate and has not left it since
    /// the checks. A change of role, or an exclusive section, waits for the gate.
    fn admit(&self, executor: &mut Executor, long: &OffloadPool, session: &mut Session) -> Done {
        let (row, args, server) = (table().row(self.id), self.args.as_args(), executor.server.clone());
        loop {
            executor.refresh(clock::unix_ms());
            let is_inside = server.keyspace.try_enter(&mut executor.ctx);
            if is_inside {
                executor.make_room();
            }
            if !executor.ctx.is_inside() {
                return Err(server.scripts.busy.refusal());
            }
            if let Err(refusal) = self.is_still_permitted(executor, session) {
                server.keyspace.leave(&mut executor.ctx);
                return Err(refusal);
            }
            if let Some(refusal) = server.persist.refuses(&server, (row, row.flags), session) {
                server.keyspace.leave(&mut executor.ctx);
                return Err(refusal);
            }
            let is_paused = server.pause.delays(&server, (row, &args), session, executor.ctx.now_ms);
            if !is_paused && !server.persist.blockers.delays(row, session) {
                return Ok(());
            }
            server.keyspace.leave(&mut executor.ctx);
            // A pause of writes does not delay commands that only read.
            match long.next_that_reads() {
                Some(job) => job.run(executor, long),
                None => std::thread::sleep(PAUSE_LOOK),
            }
        }
    }

    /// Records the command as if it had run at once: one call, with its total time.
    fn book(&self, executor: &mut Executor, done: Done, reply: &mut Reply, long: Ticks) {
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
        server.resume(Resumed { client, number, reply, may_write: false, closes: false });
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
