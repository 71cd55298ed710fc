//! Runs the primary's stream: its commands in order, as a replay of the append-only file does.
//!
//! Nothing expires meanwhile, since the primary sends a removal of each expired key. Bytes that have been run
//! are appended unchanged to this server's own stream, for its own replicas and for the time when it becomes
//! a primary. A transaction is appended as a whole, since a stream that breaks off within it is continued
//! before it.
//!
//! **Consistency.** While the gate is closed, the stream's offset is that of the commands that have been run.
//! So this thread does not leave the gate between running and appending. It appends before any command that
//! may close the gate itself, since such a command leaves the gate for a moment. If the target has changed
//! while the gate was closed, this thread notices that at its next check inside the gate, before it runs
//! anything more ([`Applier::run`]).
//!
//! ```text
//! buffer:  [passed on][ run, not passed on ][ queued since MULTI ][ not parsed ]
//!                     ^ passed             ^ ran                  ^ parsed
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

use super::Replication;
use super::command_buffer::{CommandBuffer, Parts};
use super::feed::record_point;
use super::primary_connection::Ended;
use evenkeel_acl::Access;
use evenkeel_client::clients::ClientInfo;
use evenkeel_client::runner::{CommandRunner, Outcome, Request};
use evenkeel_client::session::Session;
use evenkeel_command::reply::Reply;
use evenkeel_command::{Args, LockScope, Spec};
use evenkeel_runtime::clock;

/// Kinds of failures with a line in the server log; failures of further kinds are only counted.
const COMPLAINTS_MAX: usize = 64;

/// Bytes of a command's name in the server log.
const NAME_SHOWN: usize = 64;

/// Poll interval while DEBUG RELOAD runs.
const RELOAD_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Runs the stream of the present link.
pub(super) struct Applier {
    replication: Arc<Replication>,
    pub(super) runner: Box<dyn CommandRunner>,
    /// The setting `repl-backlog-size`, in bytes.
    backlog_size: u64,
    session: Session,
    /// See [`super::link::Link::lacks_data`].
    lacks_data: bool,
    reply: Reply,
    /// Received bytes that have not been passed on.
    buffer: CommandBuffer,
    passed: usize,
    /// The end of the last command that has been run, outside an unfinished transaction.
    /// `passed <= ran <= buffer.parsed`
    ran: usize,
    complaints: BTreeSet<Vec<u8>>,
    /// Whether the primary has asked for an acknowledgement.
    pub(super) is_asked: bool,
    /// Pairs of a record and an offset: the data up to the record are the data at the offset. Both are
    /// ascending. Only the first pair may be known to be on disk.
    points: VecDeque<(u64, u64)>,
}

impl Applier {
    pub(super) fn new(replication: &Arc<Replication>) -> Applier {
        let nobody = Arc::new(ClientInfo::new(0, String::new(), String::new(), -1, false, 0));
        Applier {
            replication: replication.clone(),
            runner: replication.host().runner(replication.core.keyspace.thread_context()),
            backlog_size: replication.core.settings().repl_backlog_size,
            session: session_of(nobody),
            lacks_data: false,
            reply: Reply::default(),
            buffer: CommandBuffer::default(),
            passed: 0,
            ran: 0,
            complaints: BTreeSet::new(),
            is_asked: false,
            points: VecDeque::new(),
        }
    }

    /// Begins with a stream in which this database is selected. Bytes of an earlier stream are dropped: they
    /// are sent again.
    pub(super) fn begin(&mut self, client: Arc<ClientInfo>, db: u32) {
        self.session.discard();
        self.session = session_of(client);
        self.lacks_data = self.replication.link.lacks_data.load(Acquire);
        self.session.select(db);
        self.buffer.clear();
        (self.passed, self.ran) = (0, 0);
        self.is_asked = false;
        self.points.clear();
    }

    /// The buffer for the next `room` bytes. [`Applier::received`] sets how many of them have come.
    pub(super) fn room(&mut self, room: usize) -> &mut [u8] {
        self.buffer.room(room)
    }

    pub(super) fn received(&mut self, got: usize, room: usize) {
        self.buffer.received(got, room);
        self.session.client.record_query(self.buffer.bytes.len(), clock::unix_ms());
    }

    /// Received bytes that are still kept.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.buffer.bytes.len()
    }

    /// Runs all complete commands. `generation`: the number of their link.
    pub(super) fn run(&mut self, generation: u64) -> Result<(), Ended> {
        let now_ms = clock::unix_ms();
        self.runner.refresh(now_ms);
        self.backlog_size = self.replication.core.settings().repl_backlog_size;
        loop {
            let broken = self.buffer.parse(&*self.runner, self.session.db);
            // Line ends alone are no commands, but bytes of the stream all the same.
            let has_blanks = self.buffer.parsed > self.ran && self.session.multi.is_none();
            if !self.buffer.batch().is_empty() || has_blanks {
                self.run_batch(generation, now_ms)?;
            }
            match broken {
                Some(reason) => return Err(Ended::Garbled(format!("Protocol error from master: {reason}"))),
                None if !self.buffer.is_batch_full() => break,
                None => {}
            }
        }
        self.tidy();
        Ok(())
    }

    /// Runs the batch inside the gate, and passes on the bytes that have been run.
    fn run_batch(&mut self, generation: u64, now_ms: u64) -> Result<(), Ended> {
        let replication = self.replication.clone();
        let keyspace = &replication.core.keyspace;
        self.runner.ctx().now_ms = 0;
        self.runner.ctx().played_ms = now_ms;
        keyspace.enter(self.runner.ctx());
        // Checked inside the gate: DEBUG RELOAD passes through it after it has set the flag.
        while replication.core.pause.is_to_reload() && !replication.core.stopping.load(Acquire) {
            keyspace.leave(self.runner.ctx());
            std::thread::sleep(RELOAD_POLL_INTERVAL);
            keyspace.enter(self.runner.ctx());
        }
        // The time spent waiting belongs to no command.
        self.runner.restart_clock();
        self.session.link = Some(generation);
        // A thread that stopped the server while the gate was closed relies on nothing more being run.
        let stops = replication.core.stopping.load(Acquire);
        let mut ran = Ok(());
        if !stops && self.is_wanted() {
            self.buffer.prefetch(keyspace, self.runner.ctx());
            // A command that needs all locks may find, once it has them, that the target has changed.
            ran = (0..self.buffer.batch().len()).try_for_each(|index| {
                let parts = self.buffer.batch()[index];
                if self.is_wanted() { self.run_one(&parts) } else { Ok(()) }
            });
            if self.is_wanted() {
                if ran.is_ok() && self.session.multi.is_none() {
                    self.ran = self.buffer.parsed;
                }
                self.pass_on();
            }
            self.runner.serve_woken();
        }
        let is_wanted = !stops && self.is_wanted();
        keyspace.leave(self.runner.ctx());
        if is_wanted { ran } else { Err(Ended::Superseded) }
    }

    /// Whether the link of this stream is still the present link.
    fn is_wanted(&self) -> bool {
        self.session.link == Some(self.replication.link.generation())
    }

    fn run_one(&mut self, parts: &Parts) -> Result<(), Ended> {
        let args = self.buffer.args(parts);
        if args.is(0, "SELECT") && !self.has_database(&args) {
            let metrics = &self.replication.link.metrics;
            metrics.failed.fetch_add(1, Relaxed);
            let number = args.get(1).unwrap_or_default();
            return Err(Ended::Unfit(format!(
                "The master selects database {}, but only {} are configured (databases): its further writes \
                 cannot be applied",
                number[..number.len().min(NAME_SHOWN)].escape_ascii(),
                self.replication.core.keyspace.databases()
            )));
        }
        let row = parts.command.map(|id| self.replication.table.row(id));
        if args.is(0, "REPLCONF") {
            // A command of the link itself, which other connections may not send.
            self.is_asked |= args.is(1, "GETACK");
        } else if self.lacks_data && !args.is(0, "SELECT") && !args.is(0, "FUNCTION") {
            // The predecessor has run it, on the data that this process takes over.
        } else if let Some(row) = row {
            if self.session.multi.is_some() && !self.is_well_formed(row, &args) {
                let name = args.quoted(0, NAME_SHOWN).to_ascii_lowercase();
                self.complain(name, "this server does not support its arguments");
                return Ok(());
            }
            if !matches!(row.lock_scope, LockScope::Keys) {
                self.pass_on();
            }
            self.execute(parts);
        } else {
            // A refusal would cost the transaction around it.
            let name = args.quoted(0, NAME_SHOWN).to_ascii_lowercase();
            self.complain(name, "this server does not support it");
        }
        if self.session.multi.is_none() {
            self.ran = parts.end;
        }
        Ok(())
    }

    /// Whether this server knows the subcommand, if any, with this number of arguments.
    fn is_well_formed(&self, row: &Spec, args: &Args<'_>) -> bool {
        let table = self.replication.table;
        if !row.has_subcommands() || args.len() < 2 {
            return row.arity.admits(args.len());
        }
        table.find_sub(row, args.at(1)).is_some_and(|id| table.row(id).arity.admits(args.len()))
    }

    /// Whether SELECT names an existing database. Otherwise all commands after it would go to another
    /// database, and within a transaction that would be noticed only at its end.
    fn has_database(&self, args: &Args<'_>) -> bool {
        args.len() == 2 && args.database(1, self.replication.core.keyspace.databases() as u32).is_ok()
    }

    fn execute(&mut self, parts: &Parts) {
        let args = self.buffer.args(parts);
        let request = Request { command: parts.command, args, len: 0, key: parts.key };
        let errors = self.runner.errors();
        let outcome = self.runner.run(&mut self.session, request, &mut self.reply);
        let is_fine = outcome == Some(Outcome::Replied) && self.runner.errors() == errors;
        if !is_fine && self.is_wanted() {
            let name = args.quoted(0, NAME_SHOWN).to_ascii_lowercase();
            let said = String::from_utf8_lossy(self.reply.plain().unwrap_or_default()).trim_end().to_owned();
            self.complain(name, &format!("it failed: {said}"));
        }
        self.reply.clear();
        self.session.client.commands.fetch_add(1, Relaxed);
    }

    fn complain(&mut self, name: Vec<u8>, why: &str) {
        let metrics = &self.replication.link.metrics;
        metrics.failed.fetch_add(1, Relaxed);
        if self.complaints.len() < COMPLAINTS_MAX && self.complaints.insert(name.clone()) {
            let name = name.escape_ascii();
            log::warn!(
                "A command from the master was not applied, so the data differs from the master: {name}: \
                 {why}. INFO counts such commands in master_commands_failed."
            );
        }
    }

    /// Appends the bytes that have been run to the stream.
    fn pass_on(&mut self) {
        if self.ran > self.passed {
            let link = &self.replication.link;
            let mut stream = self.replication.stream();
            stream.append(&self.buffer.bytes[self.passed..self.ran]);
            link.set_applied_db(self.session.db);
            // With replicas of our own, the replication thread trims, since it knows their needs.
            if !self.replication.replica_inbox.is_open() {
                stream.trim(self.backlog_size, &[]);
            }
            let offset = stream.offset();
            drop(stream);
            self.passed = self.ran;
            self.record_point(offset);
        }
    }

    /// Records that the stream up to this offset has been run and is in the journal.
    pub(super) fn record_point(&mut self, offset: u64) {
        if !self.replication.persist.aof.is_on() {
            return;
        }
        let record = self.replication.core.keyspace.journal.last();
        match self.points.back_mut() {
            Some((last, at)) if *last == record => *at = offset,
            _ => record_point(&mut self.points, (record, offset)),
        }
    }

    /// The offset up to which the stream has been run and is on disk, if known.
    pub(super) fn synced(&mut self) -> Option<u64> {
        let aof = &self.replication.persist.aof;
        while self.points.get(1).is_some_and(|(record, _)| aof.keeps(*record)) {
            self.points.pop_front();
        }
        self.points.front().filter(|(record, _)| aof.keeps(*record)).map(|(_, offset)| *offset)
    }

    /// Drops the bytes that have been passed on.
    fn tidy(&mut self) {
        let passed = std::mem::take(&mut self.passed);
        self.ran -= passed;
        self.buffer.drop_first(passed, super::link::ROOM);
    }
}

/// A session that may run all commands of the primary.
fn session_of(client: Arc<ClientInfo>) -> Session {
    Session { replays: true, ..Session::new(client, Access::of_server()) }
}
