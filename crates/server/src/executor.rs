//! Dispatch: the steps of every command.
//!
//! ```text
//! look up > arity > permission > memory > paused? > refused? > queue it (MULTI)
//!     > lock the keys' slots > handler > unlock
//! ```
//!
//! The command's row alone decides the steps. An [`Executor`] is all that a worker needs for them, and knows
//! nothing of sockets; tests drive an executor directly.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evenkeel_store::evict::Pool;
use evenkeel_store::{Access, Key, Place, ThreadContext};

use crate::cluster::view::ClusterView;
use crate::executor::blocking::serve::Host;
use crate::executor::offload::{Committing, JobWork};
use crate::observe;
use crate::observe::commandlog::Spent;
use crate::observe::stats::{Stage, Stats, add};
use crate::server::Server;
use evenkeel_client::monitor;
use evenkeel_client::pubsub::push_queue::{self, Pending};
use evenkeel_client::runner::{CommandRunner, Outcome, Request};
use evenkeel_client::session::{ReplyMode, Session, Watching};
use evenkeel_client::waiting::{Blocked, NEVER, Resumed};
use evenkeel_command::error::Error;
use evenkeel_command::flow::Mode;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_command::reply::Reply;
use evenkeel_command::spelling;
use evenkeel_command::table::{Table, table};
use evenkeel_command::{Args, Flags, Id, LockScope};
use evenkeel_config::{Policy, Settings};
use evenkeel_runtime::allocator::SLICE_US_MAX;
use evenkeel_runtime::clock::{self, Ticks};
use evenkeel_scripting::declared;

pub(crate) mod admission;
pub(crate) mod blocking;
pub(crate) mod memory;
mod moving;
mod nested;
pub(crate) mod offload;
mod parts;
pub(crate) mod permission;
mod present;
pub(crate) mod script_host;

pub(crate) use admission::look_again;
use nested::queue_places;
pub(crate) use nested::{collect, run_nested};
pub(crate) use parts::Parts;
pub(crate) use present::keeps_expired;
use present::{keep_time, keep_time_to_serve};

use admission::Admitted;

/// A worker's means of running commands.
pub(crate) struct Executor {
    pub(crate) server: Arc<Server>,
    pub(crate) ctx: ThreadContext,
    pub(crate) settings: Arc<Settings>,
    settings_version: u64,
    /// The cluster, in cluster mode.
    pub(crate) cluster: Option<Arc<ClusterView>>,
    /// This node of a cluster may not serve its slots.
    pub(crate) is_fenced: bool,
    /// Writers of slots that leave wait, so that the target of a move catches up.
    holds_writers: bool,
    pub(crate) worker: usize,
    pub(crate) table: &'static Table,
    places: Vec<Place>,
    pub(crate) pool: Pool,
    /// The process uses more than `maxmemory`: memory is checked again before each command that may need
    /// some. `ctx.is_short_of_memory` decides whether such a command is refused.
    pub(crate) out_of_memory: bool,
    /// Ticks spent on evicting; booked and reset by the caller of the batch.
    pub(crate) evict_ticks: Ticks,
    /// Start of the present command: the end of the command before it.
    pub(crate) last_ticks: Ticks,
    /// Ticks at the moment of `ctx.now_ms`.
    present: Ticks,
    /// Watches that sessions ended while a script kept the gate closed.
    pub(crate) left_watches: Vec<Watching>,
    /// End of the present connection's share of the turn.
    time_up: Ticks,
    /// `SHARE_US` in ticks.
    pub(crate) share: Ticks,
    /// Waiters that the present command has served; notified when its locks are released.
    resumed: Vec<Resumed>,
}

/// Microseconds that a connection's commands may take before the worker turns to other connections: as long
/// as a slice of background work. A command is not interrupted, so a connection can take this and the time of
/// a single command.
const SHARE_US: u64 = SLICE_US_MAX;

impl Executor {
    pub(crate) fn new(server: Arc<Server>, worker: usize) -> Executor {
        Executor::on(server.core.keyspace.thread_context(), server, worker)
    }

    /// Creates an executor with an existing context.
    pub(crate) fn on(mut ctx: ThreadContext, server: Arc<Server>, worker: usize) -> Executor {
        ctx.ticks = clock::ticks;
        let mut executor = Executor {
            settings: server.core.settings(),
            settings_version: u64::MAX,
            cluster: None,
            is_fenced: false,
            holds_writers: false,
            table: server.table,
            server,
            ctx,
            worker,
            places: Vec::new(),
            pool: Pool::default(),
            out_of_memory: false,
            evict_ticks: 0,
            last_ticks: clock::ticks(),
            present: 0,
            left_watches: Vec::new(),
            time_up: Ticks::MAX,
            share: SHARE_US * clock::ticks_per_us(),
            resumed: Vec::new(),
        };
        executor.refresh(clock::unix_ms());
        executor
    }

    /// Makes the thread stop waiting for the gate while a script is announced, since it has clients to
    /// answer.
    pub(crate) fn that_answers(mut self) -> Executor {
        self.ctx.gate_busy = Some(self.server.scripts.busy.flag());
        self
    }

    pub(crate) fn stats(&self) -> &Stats {
        &self.server.stats[self.worker]
    }

    /// Starts a connection's share of the turn.
    #[inline]
    pub(crate) fn begin_share(&mut self) {
        self.time_up = self.last_ticks + self.share;
    }

    /// Whether the connection has used up its share.
    #[inline]
    pub(crate) fn is_time_up(&self) -> bool {
        self.last_ticks >= self.time_up
    }

    /// Updates the time and changed settings. Called once per loop turn.
    pub(crate) fn refresh(&mut self, now_ms: u64) {
        self.ctx.now_ms = now_ms;
        self.present = clock::ticks();
        self.follow_settings();
        self.update_pause();
    }

    /// Takes over changed settings. Also called inside the gate before each batch: CONFIG SET is acknowledged
    /// when every batch that began under the settings before it has ended.
    #[inline]
    fn follow_settings(&mut self) {
        let version = self.server.core.settings_version();
        if version != self.settings_version {
            self.settings_version = version;
            self.settings = self.server.core.settings();
            self.ctx.access = access_of(&self.settings);
            let cluster = self.server.cluster.as_ref();
            self.cluster = cluster.map(|cluster| cluster.follow(self.worker));
        }
    }

    /// Whether the executor has the current settings.
    fn knows_settings(&self) -> bool {
        self.server.core.settings_version() == self.settings_version
    }

    /// Updates whether a pause holds, and whether the node of a cluster may serve. Called inside the gate
    /// before each batch: CLIENT PAUSE and UNPAUSE close the gate.
    #[inline]
    pub(crate) fn update_pause(&mut self) {
        self.ctx.keep_expired = keeps_expired(&self.server, &self.settings, self.ctx.now_ms);
        self.is_fenced = self.server.is_fenced();
        self.holds_writers = self.server.replication.moves.holds_writers();
    }

    /// Advances the time within a turn: a turn may take long, and a lifetime of half a second must not begin
    /// in the past.
    #[inline]
    pub(crate) fn keep_time(&mut self) {
        if self.last_ticks >= self.present + 1000 * clock::ticks_per_us() {
            keep_time(&mut self.ctx, (&self.server, &self.settings), &mut self.present, self.last_ticks);
        }
    }

    /// Looks up the command and the key of a request, for prefetching.
    #[inline]
    pub(crate) fn resolve<'a>(&self, args: Args<'a>, db: u32) -> Request<'a> {
        self.request(self.table.find(args.at(0)), args, db)
    }

    #[inline]
    fn request<'a>(&self, command: Option<Id>, args: Args<'a>, db: u32) -> Request<'a> {
        let mut key = None;
        if let Some(id) = command
            && self.table.row(id).keys.is_first()
            && let Some(bytes) = args.get(1)
        {
            let resolved = self.server.core.keyspace.key(db, bytes);
            key = Some((resolved.hash, resolved.place));
        }
        Request { command, args, len: 0, key }
    }

    /// Returns the database that the command selects if it succeeds, to prefetch the keys of the commands
    /// behind it.
    pub(crate) fn selected_by(&self, id: Id, args: &Args<'_>) -> Option<u32> {
        let row = self.table.row(id);
        let selects = row.name == "SELECT" && row.arity.admits(args.len());
        selects.then(|| args.database(1, self.server.core.keyspace.databases() as u32).ok())?
    }

    /// Runs a request and writes its reply. `ctx` is inside the gate.
    #[inline]
    pub(crate) fn run(
        &mut self,
        session: &mut Session,
        mut request: Request<'_>,
        reply: &mut Reply,
    ) -> Outcome {
        let (mark, errors) = (reply.mark(), reply.errors);
        let (len, waited) = (reply.len(), self.ctx.lock_wait);
        let outcome = loop {
            break match self.admit(session, &mut request) {
                Ok(run @ (Admitted::Run(id) | Admitted::RunIfPresent(id, _))) => {
                    let done = match run {
                        Admitted::RunIfPresent(_, slot) => {
                            match self.run_if_present(session, (id, slot), &request, reply) {
                                Err(error) if error.is_redirection() => {
                                    self.reject(session, Some(id), &error, reply);
                                    break Outcome::Replied;
                                }
                                done => done,
                            }
                        }
                        _ => self.run_admitted(session, id, &request, reply),
                    };
                    if matches!(done, Ok(Flow::RetryAdmission)) {
                        if !self.ctx.is_inside() {
                            // A long-running script has the gate closed.
                            reply.rewind(mark);
                            return self.run_outside(session, request, reply);
                        }
                        continue;
                    }
                    if self.server.hub.monitors.is_any() {
                        self.show(session, id, &request.args);
                    }
                    let done = match done {
                        Ok(Flow::Replied) => Ok(()),
                        Ok(flow) => return self.suspended(session, (id, &request.args), flow, reply),
                        Err(error) => Err(error),
                    };
                    let spent = Spent {
                        ticks: self.finish(id, done, reply, errors),
                        waited: self.ctx.lock_wait.saturating_sub(waited),
                        request: request.len,
                        reply: reply.len().saturating_sub(len),
                        ..Spent::default()
                    };
                    let command = (self.table.row(id), request.args, &spent);
                    observe::ended(&self.server, &self.settings, self.worker, &session.client, command);
                    Outcome::Replied
                }
                Ok(Admitted::Queued) => {
                    reply.simple("QUEUED");
                    Outcome::Replied
                }
                Ok(Admitted::Paused) => return Outcome::Paused, // not run: no reply is skipped for it
                Ok(Admitted::HungUp) => Outcome::Replied,
                Err(error) => {
                    self.reject(session, request.command, &error, reply);
                    Outcome::Replied
                }
            };
        };
        if session.reply_mode != ReplyMode::On {
            silence(session, reply, mark);
        }
        if session.receives_push && outcome == Outcome::Replied {
            session.after_command();
            append_push(session, reply);
        }
        outcome
    }

    /// Like [`Executor::run`], outside a gate that a long-running script keeps closed: refuses all commands
    /// except commands that may help.
    #[cold]
    pub(crate) fn run_outside(
        &mut self,
        session: &mut Session,
        request: Request<'_>,
        reply: &mut Reply,
    ) -> Outcome {
        let outcome = self.run_out_there(session, request, reply);
        self.left_watches.extend(session.left_watches.take());
        outcome
    }

    fn run_out_there(
        &mut self,
        session: &mut Session,
        mut request: Request<'_>,
        reply: &mut Reply,
    ) -> Outcome {
        if let Some(id) = self.refused_outside(&request) {
            let mark = reply.mark();
            let now_ms = self.ctx.now_ms;
            let refusal = match permission::admit(&self.server, session, id, &request.args, now_ms) {
                Ok(true) => self.server.scripts.busy.refusal(),
                Ok(false) => return Outcome::Replied,
                Err(error) => error,
            };
            self.reject(session, Some(id), &refusal, reply);
            if session.reply_mode != ReplyMode::On {
                silence(session, reply, mark);
            }
            return Outcome::Replied;
        }
        let (mark, errors) = (reply.mark(), reply.errors);
        match self.admit(session, &mut request) {
            Ok(Admitted::Run(id)) => {
                let _row = self.table.row(id);
                let server = self.server.clone();
                let settings = self.settings.clone();
                let mut parts = Parts::new(id, reply, session, (&server, &settings, self.worker));
                let mut guard = server.core.keyspace.hold_outside(&mut self.ctx);
                let done = parts.run(Mode::Direct, request.args, &[], &mut guard);
                drop(guard);
                let done = match done {
                    Ok(Flow::Replied) => Ok(()),
                    Ok(flow) => return self.suspended(session, (id, &request.args), flow, reply),
                    Err(error) => Err(error),
                };
                self.finish(id, done, reply, errors);
            }
            // No command that may run while a script is busy has keys.
            Ok(Admitted::RunIfPresent(..)) => return Outcome::Paused,
            Ok(Admitted::Queued) => reply.simple("QUEUED"),
            Ok(Admitted::Paused) => return Outcome::Paused,
            Ok(Admitted::HungUp) => {}
            Err(error) => self.reject(session, request.command, &error, reply),
        }
        if session.reply_mode != ReplyMode::On {
            silence(session, reply, mark);
        }
        Outcome::Replied
    }

    /// Shows the command to MONITOR, unless that was done while its keys were locked.
    #[cold]
    fn show(&self, session: &Session, id: Id, args: &Args<'_>) {
        let row = self.table.row(id);
        if !row.runs_scripts() && !matches!(row.lock_scope, LockScope::Queue) {
            self.server.hub.monitors.show(&self.server.hub.pubsub, session, row, args);
        }
    }

    /// Locks the row's [`LockScope`] and calls the handler.
    #[inline]
    fn run_admitted(
        &mut self,
        session: &mut Session,
        id: Id,
        request: &Request<'_>,
        reply: &mut Reply,
    ) -> Done {
        let row = self.table.row(id);
        self.ctx.no_touch = session.no_touch;
        self.ctx.sees_expired = session.imports && self.settings.import_mode;
        let server = &self.server;
        let keyspace = &server.core.keyspace;
        let mut parts = Parts::new(id, reply, session, (server, &self.settings, self.worker));
        if row.keys.is_first() {
            let bytes = request.args.at(1);
            let key = match request.key {
                Some((hash, place)) if place.db() == parts.session.db as usize => Key { bytes, place, hash },
                _ => keyspace.key(parts.session.db, bytes),
            };
            let mut guard = keyspace.hold_one(&mut self.ctx, key.place);
            if guard.has_listeners() && row.flags.has(Flags::WRITE) {
                drop(guard);
                let command = (id, request.args, Mode::Direct);
                return self.call_to_write(session, command, reply, None);
            }
            return parts.run(Mode::Direct, request.args, std::slice::from_ref(&key), &mut guard);
        }
        let keys = row.keys.find(&request.args, parts.session.db, &server.core.keyspace);
        let mut guard = match row.lock_scope_in(&request.args) {
            LockScope::Walk => keyspace.hold_none(&mut self.ctx),
            LockScope::Whole => match keyspace.try_hold_all(&mut self.ctx) {
                Some(guard) => guard,
                None => return Ok(Flow::RetryAdmission),
            },
            LockScope::Keys | LockScope::KeysUnless(_) => {
                if keys.len() > 1 {
                    keyspace.prefetch_keys(&self.ctx, &keys);
                }
                self.places.clear();
                self.places.extend(keys.iter().map(|key| key.place));
                if row.flags.has(Flags::WRITE) {
                    keyspace.hold_to_write(&mut self.ctx, &mut self.places)
                } else {
                    keyspace.hold(&mut self.ctx, &mut self.places)
                }
            }
            LockScope::Script(script) => {
                // A replayed script is not taken back. If it takes long, every other thread has to notice
                // that at the gate.
                if parts.session.replays || declared::needs_all(script, &request.args, &server.scripts) {
                    match keyspace.try_hold_all(&mut self.ctx) {
                        Some(guard) => guard,
                        None => return Ok(Flow::RetryAdmission),
                    }
                } else {
                    self.places.clear();
                    self.places.extend(keys.iter().map(|key| key.place));
                    keyspace.hold_to_write(&mut self.ctx, &mut self.places)
                }
            }
            LockScope::Queue => {
                if queue_places(parts.session, server, &mut self.places) {
                    self.places.extend(keys.iter().map(|key| key.place));
                    keyspace.hold_to_write(&mut self.ctx, &mut self.places)
                } else {
                    match keyspace.try_hold_all(&mut self.ctx) {
                        Some(guard) => guard,
                        None => return Ok(Flow::RetryAdmission),
                    }
                }
            }
        };
        if guard.holds_all() {
            keep_time(guard.ctx, (server, &self.settings), &mut self.present, clock::ticks());
            match look_again(server, parts.session, (row, &request.args), guard.ctx.now_ms)? {
                Flow::Replied => {}
                flow => return Ok(flow),
            }
        }
        let done = parts.run_shown(request.args, &keys, &mut guard);
        if guard.ctx.has_woken() {
            keep_time_to_serve(guard.ctx, (server, &self.settings), &mut self.present);
            self.last_ticks += parts.serve(&mut guard, &mut self.resumed);
        }
        drop(guard);
        self.resume_served();
        if matches!(done, Ok(Flow::RetryHoldingAll)) {
            return self.call_to_write(session, (id, request.args, Mode::Direct), reply, None);
        }
        if !matches!(row.lock_scope, LockScope::Keys)
            && self.server.core.settings_version() != self.settings_version
        {
            // CONFIG SET also holds for the next command of the same batch.
            self.refresh(self.ctx.now_ms);
            // A session that replays must not leave the gate between a command's effect and its count as run.
            // CONFIG SET leaves the gate, and stays outside if a busy script has closed it.
            if !session.replays && self.ctx.is_inside() {
                self.make_room();
            }
        }
        done
    }

    /// Locks a command's keys for writing, runs it, or stores the result of its work, then serves the clients
    /// that wait for the written keys. `ctx` is inside the gate, and may leave it to hold all locks. Returns
    /// [`Flow::RetryAdmission`] if the command must not run after that, or if `ctx` stays outside, see
    /// [`ThreadContext::gate_busy`].
    #[cold]
    pub(crate) fn call_to_write(
        &mut self,
        session: &mut Session,
        (id, args, mode): (Id, Args<'_>, Mode),
        reply: &mut Reply,
        commit: Option<&mut Committing>,
    ) -> Done {
        let server = &self.server;
        let row = self.table.row(id);
        let keys = row.keys.find(&args, session.db, &server.core.keyspace);
        self.places.clear();
        self.places.extend(keys.iter().map(|key| key.place));
        self.ctx.no_touch = session.no_touch;
        self.ctx.sees_expired = session.imports && self.settings.import_mode;
        let mut parts = Parts::new(id, reply, session, (server, &self.settings, self.worker));
        let mut guard =
            if row.runs_scripts() || mode.must_end() && matches!(row.lock_scope_in(&args), LockScope::Walk) {
                match server.core.keyspace.try_hold_all(&mut self.ctx) {
                    Some(guard) => guard,
                    None => return Ok(Flow::RetryAdmission),
                }
            } else {
                server.core.keyspace.hold_to_write(&mut self.ctx, &mut self.places)
            };
        if guard.holds_all() {
            keep_time(guard.ctx, (server, &self.settings), &mut self.present, clock::ticks());
            match look_again(server, parts.session, (row, &args), guard.ctx.now_ms)? {
                Flow::Replied => {}
                flow => return Ok(flow),
            }
        }
        let is_shown = server.hub.monitors.is_any() && row.runs_scripts();
        if is_shown {
            monitor::begin_script(parts.session, row, &args);
        }
        let done = parts.commit_or_run(commit, mode, args, &keys, &mut guard);
        if is_shown {
            monitor::end_script(&mut guard, &done);
        }
        if guard.ctx.has_woken() {
            keep_time_to_serve(guard.ctx, (server, &self.settings), &mut self.present);
        }
        self.last_ticks += parts.serve(&mut guard, &mut self.resumed);
        drop(guard);
        self.resume_served();
        done
    }

    /// Serves the waiters of keys that changed without a lock for writing: expired or evicted keys. `ctx` is
    /// inside the gate, and holds nothing.
    #[inline]
    pub(crate) fn serve_woken(&mut self) {
        if self.ctx.unserved() > 0 {
            self.serve_unserved();
        }
        push_queue::notify_workers(&self.server.hub);
    }

    /// Runs a waiting command again, since the time has come for that. The caller is outside the gate.
    #[cold]
    pub(crate) fn retry(&mut self, blocked: &Blocked, keys: &[Box<[u8]>]) {
        let server = self.server.clone();
        let keyspace = &server.core.keyspace;
        blocked.retry_ms.store(NEVER, Relaxed);
        keyspace.enter(&mut self.ctx);
        let mut guard = keyspace.hold_none(&mut self.ctx);
        for key in keys {
            let key = keyspace.key(blocked.db, key);
            guard.visit(key.place, |guard| guard.wake_waiters_of(&key));
        }
        drop(guard);
        self.serve_woken();
        keyspace.leave(&mut self.ctx);
    }

    #[cold]
    fn serve_unserved(&mut self) {
        while let Some(place) = self.ctx.next_unserved() {
            let before = self.ctx.unserved();
            self.places.clear();
            self.places.push(place);
            let host = Host { server: &self.server, settings: &self.settings, worker: self.worker };
            let mut guard = self.server.core.keyspace.hold_to_write(&mut self.ctx, &mut self.places);
            host.serve(&mut guard, &mut self.resumed);
            drop(guard);
            self.resume_served();
            assert!(self.ctx.unserved() < before, "all that serving takes was held");
        }
    }

    /// Notifies the workers of clients that have been served.
    #[inline]
    fn resume_served(&mut self) {
        for resumed in self.resumed.drain(..) {
            self.server.hub.resume(resumed);
        }
    }

    /// Handles a command that has begun to wait, or offloads work.
    #[cold]
    fn suspended(
        &mut self,
        session: &mut Session,
        (id, args): (Id, &Args<'_>),
        flow: Flow,
        reply: &mut Reply,
    ) -> Outcome {
        let now = clock::ticks();
        let elapsed = now.saturating_sub(self.last_ticks);
        self.last_ticks = now;
        let (pool, work) = match flow {
            Flow::Offload(work) => (&self.server.offload, JobWork::Work(work)),
            Flow::OffloadScript => (&self.server.slow_scripts, JobWork::Script),
            Flow::RetryNextTurn => return Outcome::Paused,
            _ => {
                return self.after_suspension(session, reply);
            }
        };
        let command = (id, (*args).to_owned(), reply.resp3);
        pool.submit(&self.server, session, command, work, elapsed);
        self.after_suspension(session, reply)
    }

    fn after_suspension(&mut self, session: &mut Session, reply: &mut Reply) -> Outcome {
        if session.reply_mode != ReplyMode::On {
            if let Some(waiting) = &mut session.waiting {
                waiting.mute = true;
            }
            silence(session, reply, reply.mark());
        }
        if session.receives_push {
            session.after_command();
        }
        Outcome::Suspended
    }

    #[inline]
    fn finish(&mut self, id: Id, done: Result<(), Error>, reply: &mut Reply, errors_before: u64) -> Ticks {
        if let Err(error) = &done {
            reply.fail(error);
            self.stats().error(&error.line());
        }
        let now = clock::stage_end(self.last_ticks);
        let elapsed = now.saturating_sub(self.last_ticks);
        self.last_ticks = now;
        let failed = reply.errors != errors_before;
        self.stats().ran(id, elapsed, failed, self.settings.latency_tracking && clock::is_accounting());
        elapsed
    }

    #[cold]
    fn reject(&mut self, session: &mut Session, id: Option<Id>, error: &Error, reply: &mut Reply) {
        let ends_multi = id.is_some_and(|id| matches!(self.table.row(id).lock_scope, LockScope::Queue));
        let aborted = ends_multi.then(|| self.abort(session, error)).filter(|_| !error.is_redirection());
        let error = aborted.as_ref().unwrap_or(error);
        reply.fail(error);
        self.stats().error(&error.line());
        if let Some(id) = id {
            add(&self.stats().commands[id.index()].rejected, 1);
        }
        if let Some(multi) = &mut session.multi {
            multi.failed = true;
        }
        self.last_ticks = clock::ticks();
    }

    /// Ends the transaction after EXEC has been refused, and returns the error for the reply.
    fn abort(&mut self, session: &mut Session, cause: &Error) -> Error {
        session.discard();
        let keyspace = &self.server.core.keyspace;
        session.unwatch(&mut if self.ctx.is_inside() {
            keyspace.hold_none(&mut self.ctx)
        } else {
            keyspace.hold_outside(&mut self.ctx)
        });
        let line = cause.line();
        let cause = line.strip_prefix(b"ERR ").unwrap_or(&line);
        Error::Bytes([b"EXECABORT Transaction discarded because of: ", cause].concat())
    }

    /// Runs `f`. A panic in it becomes an error reply; unwinding has released its locks.
    pub(crate) fn shielded<R>(
        &mut self,
        reply: &mut Reply,
        f: impl FnOnce(&mut Self, &mut Reply) -> R,
    ) -> Option<R> {
        let mark = reply.mark();
        let result = catch_unwind(AssertUnwindSafe(|| f(self, reply)));
        result.ok().or_else(|| {
            add(&self.stats().panics, 1);
            reply.rewind(mark);
            reply.fail(&Error::abandoned());
            None
        })
    }
}

impl CommandRunner for Executor {
    fn ctx(&mut self) -> &mut ThreadContext {
        &mut self.ctx
    }

    fn into_ctx(self: Box<Self>) -> ThreadContext {
        self.ctx
    }

    fn refresh(&mut self, now_ms: u64) {
        self.refresh(now_ms);
    }

    fn restart_clock(&mut self) {
        self.last_ticks = clock::ticks();
    }

    fn resolve_logged<'a>(&self, args: Args<'a>, db: u32) -> Request<'a> {
        let name = args.at(0);
        self.request(table().find(name).or_else(|| self.table.find(name)), args, db)
    }

    fn run(&mut self, session: &mut Session, request: Request<'_>, reply: &mut Reply) -> Option<Outcome> {
        let row = request.command.map(|id| self.table.row(id));
        let rewritten = row.and_then(|row| spelling::in_decimals(row, &request.args));
        let request = match &rewritten {
            Some(args) => Request { args: args.as_args(), ..request },
            None => request,
        };
        self.shielded(reply, |executor, reply| executor.run(session, request, reply))
    }

    fn errors(&self) -> u64 {
        self.stats().errors.load(Relaxed)
    }

    fn make_room(&mut self) -> bool {
        self.make_room();
        !self.out_of_memory
    }

    fn serve_woken(&mut self) {
        self.serve_woken();
    }
}

/// Appends the push messages of a client that receives some, so that a command's own pushes follow its reply.
#[cold]
pub(crate) fn append_push(session: &mut Session, reply: &mut Reply) {
    // If there are too many of them, its worker has been notified.
    if let Pending::Messages(messages) = session.client.push_queue.take(reply.resp3) {
        messages.into_iter().for_each(|message| reply.message(message));
    }
}

/// Removes a reply that CLIENT REPLY suppresses.
#[cold]
fn silence(session: &mut Session, reply: &mut Reply, mark: evenkeel_command::reply::Mark) {
    match session.reply_mode {
        ReplyMode::On => {}
        ReplyMode::Off => reply.rewind(mark),
        ReplyMode::SkipNext => {
            reply.rewind(mark);
            session.reply_mode = ReplyMode::SkipThis;
        }
        ReplyMode::SkipThis => {
            reply.rewind(mark);
            session.reply_mode = ReplyMode::On;
        }
    }
}

/// Returns how reads and writes mark entries under the configured policy.
fn access_of(settings: &Settings) -> Access {
    match settings.maxmemory_policy {
        Policy::AllkeysLfu | Policy::VolatileLfu => {
            Access::Lfu { log_factor: settings.lfu_log_factor, decay_minutes: settings.lfu_decay_time }
        }
        Policy::AllkeysLrm | Policy::VolatileLrm => Access::Lrm,
        _ => Access::Lru,
    }
}

/// Records a stage that began at `from`; returns the present.
#[inline]
pub(crate) fn record_stage(stats: &Stats, stage: Stage, from: Ticks) -> Ticks {
    let now = clock::stage_end(from);
    stats.record_stage(stage, now.saturating_sub(from));
    now
}
