//! The connections of a copy at the target.
//!
//! A worker hands a connection over that has introduced itself as a lane. A thread of its own runs the
//! commands that come, with the checks of the server ([`crate::Host::may_import`]) inside the gate before
//! each batch, and acknowledges their bytes when the in-sync nodes have their effects.
//!
//! **An attempt** is a copy from its beginning. A new attempt ends the lanes of the former, and removes
//! what these have stored, before it begins.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

use evenkeel_acl::Access;
use evenkeel_client::clients::ClientInfo;
pub use evenkeel_client::lane_ticket::LaneTicket as Ticket;
use evenkeel_client::runner::{CommandRunner, Outcome, Request};
use evenkeel_client::session::Session;
use evenkeel_command::reply::Reply;
use evenkeel_config::{Fsync, WriteAcks};
use evenkeel_net as net;
use evenkeel_net::poll::await_events;
use evenkeel_persist::pace::{GivesWay, Pace};
use evenkeel_runtime::{clock, threads};
use evenkeel_store::{SlotSet, ThreadContext};
use parking_lot::Mutex;

use super::clear;
use crate::Replication;
use crate::command_buffer::CommandBuffer;
use crate::feed::record_point;
use crate::replica_inbox::Arrival;

/// Lanes at once, of all copies, and threads that remove the rest of earlier ones: each has a context.
pub const IMPORTS_MAX: usize = 10;

/// Bytes that are read at once.
const ROOM: usize = 256 * 1024;

/// Poll interval while acknowledgements wait for other nodes, and while commands wait for the end of a pause.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Poll interval of an idle lane.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// With fewer received bytes than this, a lane takes no rest.
const MUCH_LEN: usize = 64 * 1024;

/// A lane that has not caught up with its source for so long takes no rest any more: otherwise it might
/// never, if clients load all cores.
const PATIENCE: Duration = Duration::from_secs(5);

/// What an in-sync node of this shard needs to have before bytes are acknowledged.
const IN_SYNC: WriteAcks = WriteAcks { count: 0, in_sync: true };

/// Whether commands of a copy may run now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    Yes,
    /// Later: commands are paused.
    Later,
    /// The map does not have the move between these epochs any more: the copy has ended.
    Over,
    /// The copy fails here, for this reason.
    Never(String),
}

/// The copies that this server gets.
#[derive(Default)]
pub struct Imports {
    /// By the identity of the move.
    attempts: Mutex<BTreeMap<String, Attempt>>,
    /// Contexts that are not in use, and the number of those in use.
    contexts: Mutex<Vec<ThreadContext>>,
    used: AtomicUsize,
}

struct Attempt {
    number: u64,
    /// Of the source and the target.
    epochs: (u64, u64),
    /// Nothing is left of an earlier attempt.
    is_clear: bool,
    /// The removal of the rest has failed or was given up.
    has_failed: bool,
    /// The number of flushes when it began.
    flushes: u64,
}

impl Imports {
    /// Forgets moves that are not in the map any more.
    pub fn retain(&self, is_known: impl Fn(&str) -> bool) {
        self.attempts.lock().retain(|id, _| is_known(id));
    }

    /// Whether this is the present attempt, which has begun with as many flushes.
    fn is_present(&self, ticket: &Ticket, flushes: u64) -> bool {
        let attempts = self.attempts.lock();
        attempts.get(&ticket.id).is_some_and(|attempt| {
            attempt.number == ticket.attempt && attempt.is_clear && attempt.flushes == flushes
        })
    }

    /// A context for a thread, if one is free.
    fn context(&self, replication: &Replication) -> Option<ThreadContext> {
        if self.used.fetch_add(1, AcqRel) >= IMPORTS_MAX {
            self.used.fetch_sub(1, AcqRel);
            return None;
        }
        let kept = self.contexts.lock().pop();
        Some(kept.unwrap_or_else(|| replication.core.keyspace.thread_context()))
    }

    fn give_back(&self, context: ThreadContext) {
        self.contexts.lock().push(context);
        self.used.fetch_sub(1, AcqRel);
    }
}

impl Replication {
    /// Decides whether a connection may become a lane. With the first lane of an attempt, a thread begins to
    /// remove the keys of `slots` that an earlier attempt has stored; the lanes are admitted afterwards.
    ///
    /// # Errors
    /// The reason why the source has to ask again.
    pub fn admit_lane(self: &Arc<Replication>, ticket: &Ticket, slots: SlotSet) -> Result<(), String> {
        let imports = &self.moves.imports;
        let mut attempts = imports.attempts.lock();
        let (present, epochs) = (attempts.get(&ticket.id), (ticket.source_epoch, ticket.target_epoch));
        match present {
            // The clock of a new source may be behind that of the former.
            Some(present) if present.epochs == epochs && present.number > ticket.attempt => {
                return Err("a later attempt of the copy has begun".into());
            }
            Some(present) if present.number == ticket.attempt && !present.has_failed => {
                let has_room = imports.used.load(Acquire) < IMPORTS_MAX;
                return match present.is_clear {
                    true if has_room => Ok(()),
                    true => Err("too many slots are being imported at once".into()),
                    false => Err("the rest of an earlier copy is being removed".into()),
                };
            }
            _ => {}
        }
        let Some(context) = imports.context(self) else {
            return Err("too many slots are being imported at once".into());
        };
        let flushes = self.core.keyspace.flushes();
        let number = ticket.attempt;
        let attempt = Attempt { number, epochs, is_clear: false, has_failed: false, flushes };
        attempts.insert(ticket.id.clone(), attempt);
        drop(attempts);
        self.clear_for(ticket.clone(), slots, context);
        Err("the rest of an earlier copy is being removed".into())
    }

    /// Removes what an earlier attempt has stored.
    fn clear_for(self: &Arc<Replication>, ticket: Ticket, slots: SlotSet, context: ThreadContext) {
        let (number, id) = (ticket.attempt, ticket.id.clone());
        let (of_thread, at_end) = (self.clone(), self.clone());
        let host = self.host();
        let may_go_on = move || {
            let attempts = of_thread.moves.imports.attempts.lock();
            let is_present = attempts.get(&ticket.id).is_some_and(|attempt| attempt.number == number);
            drop(attempts);
            is_present && matches!(host.may_import(&ticket), Admission::Yes | Admission::Later)
        };
        let done = move |is_clear: bool| {
            let flushes = at_end.core.keyspace.flushes();
            let mut attempts = at_end.moves.imports.attempts.lock();
            if let Some(attempt) = attempts.get_mut(&id).filter(|attempt| attempt.number == number) {
                (attempt.is_clear, attempt.has_failed, attempt.flushes) = (is_clear, !is_clear, flushes);
            }
        };
        if !self.clear_with(context, slots, may_go_on, done.clone()) {
            done(false);
        }
    }

    /// Removes all keys of some slots, in slices, on a thread of its own, while `may_go_on` says so inside
    /// the gate; then calls `done` with whether all are removed. Returns false if too many slots are being
    /// imported or cleared, or a thread does not start: nothing happens then.
    pub fn clear_slots(
        self: &Arc<Replication>,
        slots: SlotSet,
        may_go_on: impl Fn() -> bool + Send + 'static,
        done: impl FnOnce(bool) + Send + 'static,
    ) -> bool {
        let context = self.moves.imports.context(self);
        context.is_some_and(|context| self.clear_with(context, slots, may_go_on, done))
    }

    fn clear_with(
        self: &Arc<Replication>,
        context: ThreadContext,
        slots: SlotSet,
        may_go_on: impl Fn() -> bool + Send + 'static,
        done: impl FnOnce(bool) + Send + 'static,
    ) -> bool {
        let (on_thread, host) = (self.clone(), self.host());
        // A thread that does not start must not take the context with it.
        let context = Arc::new(Mutex::new(Some(context)));
        let of_thread = context.clone();
        let spawned = threads::named("slot-clear").spawn(move || {
            let _host = host;
            evenkeel_store::memory::register_thread();
            let _gives_way = GivesWay::new();
            let (keyspace, imports) = (&on_thread.core.keyspace, &on_thread.moves.imports);
            let Some(mut context) = of_thread.lock().take() else { return };
            // Batches that have passed their checks end first.
            let in_flight = keyspace.in_flight();
            while !keyspace.has_landed(&in_flight) && !on_thread.core.stopping.load(Acquire) {
                std::thread::sleep(POLL_INTERVAL);
            }
            let may_go_on = || !on_thread.core.stopping.load(Acquire) && may_go_on();
            context.now_ms = 0; // no key has expired for this thread
            let mut pace = Pace::new();
            let is_clear = clear(keyspace, &mut context, &slots, may_go_on, || pace.rest(0.0));
            imports.give_back(context);
            done(is_clear);
        });
        if let Err(error) = &spawned {
            log::warn!("Cannot start a thread that removes the keys of slots: {error}");
            context.lock().take().into_iter().for_each(|context| self.moves.imports.give_back(context));
        }
        spawned.is_ok()
    }

    /// Runs the commands of a lane, whose connection a worker has handed over.
    pub fn accept_lane(self: &Arc<Replication>, arrival: Arrival, ticket: Ticket) {
        let (on_thread, host) = (self.clone(), self.host());
        let client = arrival.session.client.clone();
        let id = client.id;
        let spawned = threads::named("slot-import").spawn(move || {
            let _host = host;
            evenkeel_store::memory::register_thread();
            let _gives_way = GivesWay::new();
            let Some(context) = on_thread.moves.imports.context(&on_thread) else {
                return on_thread.hub.clients.remove(id);
            };
            let runner = on_thread.host().runner(context);
            let mut importer = Importer::new(on_thread.clone(), arrival, ticket, runner);
            let ran = catch_unwind(AssertUnwindSafe(|| importer.run()));
            let ran = ran.unwrap_or_else(|_| {
                on_thread.core.keyspace.leave_after_panic(importer.runner.ctx());
                Err("a panic, see the server log".into())
            });
            importer.end(ran);
        });
        if let Err(error) = spawned {
            log::warn!("Cannot start a thread for the import of slots: {error}");
            self.hub.clients.remove(id);
        }
    }
}

/// A lane at the target.
struct Importer {
    replication: Arc<Replication>,
    ticket: Ticket,
    runner: Box<dyn CommandRunner>,
    stream: net::Stream,
    session: Session,
    client: Arc<ClientInfo>,
    reply: Reply,
    buffer: CommandBuffer,
    /// Bytes of the lane before the buffer.
    before: u64,
    /// Records with the bytes that have been run up to there. Both ascend.
    points: VecDeque<(u64, u64)>,
    unsent: Vec<u8>,
    pace: Pace,
    /// Behind the snapshot: since when commands have been waiting for this thread.
    behind_since: Option<Instant>,
    is_behind_snapshot: bool,
}

impl Importer {
    fn new(
        replication: Arc<Replication>,
        arrival: Arrival,
        ticket: Ticket,
        runner: Box<dyn CommandRunner>,
    ) -> Importer {
        let Arrival { stream, session, input, unsent } = arrival;
        let client = session.client.clone();
        let mut buffer = CommandBuffer::default();
        buffer.bytes = input;
        Importer {
            replication,
            ticket,
            runner,
            stream,
            session: Session { replays: true, ..Session::new(client.clone(), Access::of_server()) },
            client,
            reply: Reply::default(),
            buffer,
            before: 0,
            points: VecDeque::new(),
            unsent,
            pace: Pace::new(),
            behind_since: None,
            is_behind_snapshot: false,
        }
    }

    /// Runs what comes until the connection ends.
    ///
    /// # Errors
    /// The reason why the copy cannot go on.
    fn run(&mut self) -> Result<(), String> {
        let replication = self.replication.clone();
        loop {
            if replication.core.stopping.load(Acquire) || self.client.killed.load(Relaxed) {
                return Ok(());
            }
            let has_come = match self.receive() {
                Ok(has_come) => has_come,
                Err(_) => return Ok(()), // the source begins anew
            };
            self.run_all()?;
            self.acknowledge();
            if self.send().is_err() {
                return Ok(());
            }
            if !has_come {
                self.behind_since = None;
                let waits = !self.points.is_empty() || !self.unsent.is_empty();
                let timeout = if waits { POLL_INTERVAL } else { IDLE_POLL_INTERVAL };
                let fd = self.stream.fd().as_raw_fd();
                await_events(fd, libc::POLLIN, timeout).map_err(|error| error.to_string())?;
                match self.admission() {
                    Admission::Yes | Admission::Later => {}
                    Admission::Over => return Ok(()),
                    Admission::Never(reason) => return Err(reason),
                }
            }
        }
    }

    /// Reads the bytes that the socket has. Returns false if it has none.
    fn receive(&mut self) -> io::Result<bool> {
        let got = self.stream.read(self.buffer.room(ROOM));
        self.buffer.received(got.as_ref().map_or(0, |got| *got), ROOM);
        match got {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => {
                self.client.net_in.fetch_add(got as u64, Relaxed);
                self.client.record_query(self.buffer.bytes.len(), clock::unix_ms());
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Runs all complete commands.
    fn run_all(&mut self) -> Result<(), String> {
        let now_ms = clock::unix_ms();
        self.runner.refresh(now_ms);
        loop {
            let broken = self.buffer.parse(&*self.runner, self.session.db);
            if !self.buffer.batch().is_empty() {
                self.run_batch(now_ms)?;
                self.rest();
            }
            if let Some(reason) = broken {
                return Err(format!("Protocol error: {reason}"));
            }
            if !self.buffer.is_batch_full() {
                break;
            }
        }
        let parsed = self.buffer.parsed;
        self.before += parsed as u64;
        self.buffer.drop_first(parsed, ROOM);
        Ok(())
    }

    /// Leaves the cores to clients, as long as much is waiting: the last commands come while clients wait
    /// for the end of the move. Behind the snapshot the share grows until the lane catches up.
    fn rest(&mut self) {
        if self.buffer.bytes.len() - self.buffer.parsed < MUCH_LEN {
            return;
        }
        let mut share_min = 0.0;
        if self.is_behind_snapshot {
            let since = self.behind_since.get_or_insert_with(Instant::now);
            share_min = since.elapsed().as_secs_f64() / PATIENCE.as_secs_f64();
        }
        self.pace.rest(share_min);
    }

    fn admission(&self) -> Admission {
        let replication = &self.replication;
        let flushes = replication.core.keyspace.flushes();
        match replication.host().may_import(&self.ticket) {
            Admission::Yes if !replication.moves.imports.is_present(&self.ticket, flushes) => {
                Admission::Never("another attempt has begun, or data were flushed here".into())
            }
            admission => admission,
        }
    }

    /// Enters the gate once commands of the copy may run.
    fn enter(&mut self) -> Result<(), String> {
        let replication = self.replication.clone();
        let keyspace = &replication.core.keyspace;
        loop {
            keyspace.enter(self.runner.ctx());
            match self.admission() {
                Admission::Yes => return Ok(()),
                admission => {
                    keyspace.leave(self.runner.ctx());
                    match admission {
                        Admission::Never(reason) => return Err(reason),
                        Admission::Over => return Err("the move has ended".into()),
                        Admission::Yes | Admission::Later => {}
                    }
                }
            }
            if replication.core.stopping.load(Acquire) {
                return Err("the server stops".into());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Evicts keys of this node's own slots if memory is short.
    fn make_room(&mut self, now_ms: u64) -> Result<(), String> {
        let replication = self.replication.clone();
        self.runner.ctx().now_ms = now_ms;
        replication.core.keyspace.enter(self.runner.ctx());
        let has_room = self.runner.make_room();
        replication.core.keyspace.leave(self.runner.ctx());
        has_room.then_some(()).ok_or_else(|| "the limit of maxmemory is reached".into())
    }

    fn run_batch(&mut self, now_ms: u64) -> Result<(), String> {
        let replication = self.replication.clone();
        let keyspace = &replication.core.keyspace;
        self.make_room(now_ms)?;
        self.runner.ctx().now_ms = 0;
        self.runner.ctx().played_ms = now_ms;
        self.enter()?;
        self.runner.restart_clock();
        self.buffer.prefetch(keyspace, self.runner.ctx());
        let mut ran = Ok(());
        for index in 0..self.buffer.batch().len() {
            ran = self.run_one(index);
            if ran.is_err() {
                break;
            }
        }
        self.runner.serve_woken();
        keyspace.leave(self.runner.ctx());
        // A transaction is run as a whole.
        if ran.is_ok() && self.session.multi.is_none() {
            let bytes = self.before + self.buffer.parsed as u64;
            record_point(&mut self.points, (keyspace.journal.last(), bytes));
        }
        ran
    }

    fn run_one(&mut self, index: usize) -> Result<(), String> {
        const NAME_SHOWN: usize = 64;
        let parts = self.buffer.batch()[index];
        let args = self.buffer.args(&parts);
        // The source sends it behind the snapshot, and when the slots are closed.
        self.is_behind_snapshot |= args.is(0, "PING");
        let request = Request { command: parts.command, args, len: 0, key: parts.key };
        let outcome = self.runner.run(&mut self.session, request, &mut self.reply);
        let failed = self.reply.errors > 0 || outcome != Some(Outcome::Replied);
        let said = || String::from_utf8_lossy(self.reply.plain().unwrap_or_default()).trim_end().to_owned();
        let ran = match failed {
            true => Err(format!("{} failed: {}", args.quoted(0, NAME_SHOWN).escape_ascii(), said())),
            false => Ok(()),
        };
        self.reply.clear();
        self.client.commands.fetch_add(1, Relaxed);
        ran
    }

    /// Acknowledges the bytes whose effects are kept.
    fn acknowledge(&mut self) {
        let Some((last, _)) = self.points.back() else { return };
        let replication = &self.replication;
        let is_always =
            replication.core.settings().appendfsync == Fsync::Always && replication.persist.aof.is_on();
        let durable = if is_always { replication.persist.aof.durable() } else { u64::MAX };
        let kept = durable.min(replication.acks.kept(IN_SYNC));
        if *last > kept {
            replication.ask_for_acks(*last);
        }
        let count = self.points.partition_point(|(record, _)| *record <= kept);
        if let Some((_, bytes)) = self.points.drain(..count).next_back() {
            self.unsent.extend_from_slice(format!(":{bytes}\r\n").as_bytes());
        }
    }

    fn send(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() && self.stream.send_sealed()? {
            match self.stream.write(&self.unsent)? {
                0 => return Ok(()),
                sent => _ = self.unsent.drain(..sent),
            }
        }
        self.stream.send_sealed().map(drop)
    }

    /// Tells the source why the lane ends, and gives the context back.
    fn end(mut self, ran: Result<(), String>) {
        if let Err(reason) = ran {
            log::warn!("Move {}: the import of its slots ends: {reason}", self.ticket.id);
            self.unsent
                .extend_from_slice(format!("-ERR {}\r\n", reason.replace(['\r', '\n'], " ")).as_bytes());
            let until = Instant::now() + Duration::from_secs(1);
            while self.send().is_ok() && !self.unsent.is_empty() && Instant::now() < until {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        self.session.discard();
        self.replication.hub.clients.remove(self.client.id);
        let replication = self.replication.clone();
        replication.moves.imports.give_back(self.runner.into_ctx());
    }
}
