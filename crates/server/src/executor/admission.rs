//! Admission: all checks that may keep a command from being run, and the errors for its client.

use std::sync::atomic::Ordering::Relaxed;

use super::Executor;
use super::permission;
use crate::cluster::routing::{self, Asker, Route};
use crate::cluster::view::ClusterView;
use crate::server::Server;
use evenkeel_client::runner::Request;
use evenkeel_client::session::Session;
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_command::table::table;
use evenkeel_command::{Args, Flags, Id, LockScope, Spec};
use evenkeel_core::blockers::Blockers;
use evenkeel_replication::link;
use evenkeel_scripting::declared;

pub(super) enum Admitted {
    Run(Id),
    /// Runs if the keys of this slot, which is being moved to or from another node, are here.
    RunIfPresent(Id, u16),
    Queued,
    Paused,
    HungUp,
}

impl Executor {
    /// Makes all checks before a command. From a container command, the request moves on to its subcommand.
    #[inline]
    pub(super) fn admit(
        &mut self,
        session: &mut Session,
        request: &mut Request<'_>,
    ) -> Result<Admitted, Error> {
        let Some(mut id) = request.command else { return self.unknown(session, &request.args) };
        let mut row = self.table.row(id);
        if row.has_subcommands() && request.args.len() > 1 {
            request.command = self.table.find_sub(row, request.args.at(1));
            id = request.command.ok_or_else(|| {
                self.auth_first(session, None, || Error::unknown_subcommand(row, &request.args))
            })?;
            row = self.table.row(id);
        }
        session.client.command.store(id.index() as u32, Relaxed);
        if !row.admits(&request.args) {
            return Err(self.auth_first(session, Some(row), || Error::Arity(row.name)));
        }
        if session.multi.is_some() && row.flags.has(Flags::NO_MULTI) {
            return Err(self.not_in_transaction(session, row));
        }
        if !session.access.is_free_at(self.server.acl.generation())
            && !permission::admit(&self.server, session, id, &request.args, self.ctx.now_ms)?
        {
            return Ok(Admitted::HungUp);
        }
        let mut moving = None;
        // Until the fate of a planned change of the primary is known, its clients wait.
        if self.is_fenced
            && !session.replays
            && is_paused(&self.server, (row, &request.args), session, self.ctx.now_ms)
        {
            return Ok(Admitted::Paused);
        }
        if let Some(view) = &self.cluster
            && (self.is_fenced
                || self.holds_writers
                || !request.key.is_some_and(|(_, place)| view.serves(place.slot())))
        {
            match self.route(view, session, (row, &request.args))? {
                Route::Here => {}
                Route::IfPresent(slot) => moving = Some(slot),
                Route::Later => return Ok(Admitted::Paused),
            }
        }
        if session.redirects
            && let Some(error) = self.redirection(session, row, &request.args)
        {
            if self.server.core.pause.is_active(self.ctx.now_ms) {
                return Ok(Admitted::Paused); // a failover is under way, and its outcome is not known
            }
            return Err(error);
        }
        if session.is_notified && self.is_refused_write(session, row, &request.args) {
            if self.server.core.pause.is_active(self.ctx.now_ms) {
                return Ok(Admitted::Paused); // as above
            }
            if let Some(error) = link::of_moved(&self.server.replication, &session.client) {
                return Err(error);
            }
        }
        // When this client connected, another worker may not yet have known that other clients were gone.
        if session.on_probation {
            session.on_probation = self.server.hub.clients.count() > self.settings.maxclients as usize;
        }
        if session.on_probation && !row.flags.has(Flags::OPERATOR) {
            session.closing = true;
            self.server.hub.rejected_connections.fetch_add(1, Relaxed);
            return Err(Error::text("ERR max number of clients reached"));
        }
        if self.out_of_memory && self.lacks_memory(row, session) {
            return Err(Error::OutOfMemory);
        }
        if session.receives_push {
            may_while_subscribed(session, row)?;
        }
        // Refuses at once instead of pausing, as in Redis: the pause does not end if a failover finds no
        // replica.
        if !self.server.core.blockers.any().is_empty() && !session.replays {
            let is_queued = session.multi.is_some();
            let flags = if is_queued {
                declared::flags_of_call(row, &request.args, &self.server.scripts)
            } else {
                row.flags
            };
            if let Some(error) = refusal(&self.server, (row, flags), session) {
                return Err(error);
            }
            if waits_for_journal(&self.server, row, session) {
                return Ok(Admitted::Paused);
            }
        }
        if !session.replays && is_paused(&self.server, (row, &request.args), session, self.ctx.now_ms) {
            return Ok(Admitted::Paused);
        }
        let selected = session.multi.is_some().then(|| self.selected_by(id, &request.args)).flatten();
        if let Some(multi) = &mut session.multi
            && !row.flags.has(Flags::NOT_QUEUED)
        {
            multi.selected = selected.or(multi.selected);
            let touched = session.watching.as_ref().is_some_and(|watching| watching.watch.is_touched());
            // A command that will not run need not be kept, however long the queue may become.
            if !multi.failed && !touched {
                let limit = self.settings.client_query_buffer_limit;
                if multi.memory.saturating_add(request.len) > limit && !session.replays {
                    self.server.hub.record_input_limit(&session.client);
                    session.closing = true;
                    return Ok(Admitted::HungUp);
                }
                let flags = declared::flags_of_call(row, &request.args, &self.server.scripts);
                multi.push((id, flags), request.args.to_owned(), &session.client);
            }
            return Ok(Admitted::Queued);
        }
        Ok(match moving {
            Some(slot) => Admitted::RunIfPresent(id, slot),
            None => Admitted::Run(id),
        })
    }

    /// Checks whether this node serves a command.
    #[inline(never)]
    fn route(
        &self,
        view: &ClusterView,
        session: &Session,
        (row, args): (&Spec, &Args<'_>),
    ) -> Result<Route, Error> {
        if session.replays {
            return Ok(Route::Here);
        }
        if routing::has_no_slot(row) {
            let is_refused = self.is_fenced && view.is_primary && row.flags.has(Flags::WRITE);
            return if is_refused { Err(routing::down()) } else { Ok(Route::Here) };
        }
        let flags = declared::flags_of_call(row, args, &self.server.scripts);
        let writes = has((row, flags), session, Flags::WRITE);
        let (is_fenced, holds_writers) = (self.is_fenced, self.holds_writers);
        (Asker { view, settings: &self.settings, session, is_fenced, holds_writers }).route(row, args, writes)
    }

    /// Returns the error of a malformed command, or tells a client that has to authenticate first nothing
    /// about the command.
    #[cold]
    fn auth_first(
        &self,
        session: &Session,
        row: Option<&'static Spec>,
        error: impl FnOnce() -> Error,
    ) -> Error {
        let is_for_all = row.is_some_and(|row| row.flags.has(Flags::NO_AUTH));
        if !is_for_all && session.access.lacks_auth(&self.server.acl) { Error::NoAuth } else { error() }
    }

    /// Returns the redirection to the primary, if this server is a replica, for a client that follows it
    /// (CLIENT CAPA).
    #[cold]
    fn redirection(&self, session: &Session, row: &Spec, args: &Args<'_>) -> Option<Error> {
        let replication = &self.server.replication;
        // In a cluster, MOVED does that.
        if session.replays || !replication.is_replica() || self.cluster.is_some() {
            return None;
        }
        let command = (row, declared::flags_of_call(row, args, &self.server.scripts));
        let reads = !session.client.reads_replica.load(Relaxed) && has(command, session, Flags::READONLY);
        if !reads && !has(command, session, Flags::WRITE) {
            return None;
        }
        let primary = replication.link.target()?;
        Some(Error::text(format!("REDIRECT {}:{}", primary.host, primary.port)))
    }

    /// Whether a replica has to refuse the command, since it writes.
    #[cold]
    fn is_refused_write(&self, session: &Session, row: &Spec, args: &Args<'_>) -> bool {
        let command = (row, declared::flags_of_call(row, args, &self.server.scripts));
        !session.replays && self.server.replication.is_replica() && has(command, session, Flags::WRITE)
    }

    /// Returns the error for a command that MULTI does not queue.
    #[cold]
    fn not_in_transaction(&self, session: &Session, row: &'static Spec) -> Error {
        self.auth_first(session, Some(row), || {
            Error::text(format!("ERR Command '{}' not allowed inside a transaction", row.lower_name()))
        })
    }

    /// Handles an unknown command. If it is the start of an HTTP request, a browser has been tricked into
    /// connecting, and its user may know nothing of the commands that follow.
    #[cold]
    fn unknown(&self, session: &mut Session, args: &Args<'_>) -> Result<Admitted, Error> {
        if !args.is(0, "POST") && !args.is(0, "Host:") {
            return Err(self.auth_first(session, None, || unknown_command(args)));
        }
        session.closing = true;
        let address = &session.client.address;
        log::warn!(
            "Possible SECURITY ATTACK detected: client {address} sent an HTTP request and was disconnected. \
             A web page may try to send commands through the browser of a user (cross protocol scripting)."
        );
        Ok(Admitted::HungUp)
    }

    /// Returns the command if it has to be refused outside the gate. A command that is invalid in any case
    /// gets its own error instead.
    pub(super) fn refused_outside(&self, request: &Request<'_>) -> Option<Id> {
        let mut id = request.command?;
        let mut row = self.table.row(id);
        if row.has_subcommands() && request.args.len() > 1 {
            id = self.table.find_sub(row, request.args.at(1))?;
            row = self.table.row(id);
        }
        if !row.admits(&request.args) {
            return None;
        }
        let touches_data = !matches!(row.lock_scope, LockScope::Walk);
        let ends = row.flags.has(Flags::OPERATOR);
        (!row.flags.has(Flags::ALLOW_BUSY) || touches_data && !ends).then_some(id)
    }
}

/// Checks again a command that left the gate to lock everything: meanwhile its client may have been killed or
/// have lost a permission, and the server may have changed its role, or be stopping.
#[cold]
pub(crate) fn look_again(
    server: &Server,
    session: &Session,
    (row, args): (&Spec, &Args<'_>),
    now_ms: u64,
) -> Done {
    if let Some(link) = session.link
        && link != server.replication.link.generation()
    {
        return Err(Error::text("ERR replication from the master has ended"));
    }
    if session.client.killed.load(Relaxed) && !session.replays {
        return Err(Error::killed());
    }
    if !session.replays && !session.access.is_checked_at(server.acl.generation()) {
        return Ok(Flow::RetryAdmission);
    }
    let blockers = &server.core.blockers;
    let is_kept = !session.replays
        && (is_paused(server, (row, args), session, now_ms)
            || !blockers.any().is_empty()
                && (refusal(server, (row, row.flags), session).is_some()
                    || waits_for_journal(server, row, session)));
    if is_kept { Ok(Flow::RetryAdmission) } else { Ok(Flow::Replied) }
}

/// Checks whether a client with subscriptions may run the command.
#[cold]
fn may_while_subscribed(session: &Session, row: &Spec) -> Result<(), Error> {
    const DATA: Flags = Flags::WRITE.with(Flags::READONLY).with(Flags::MAY_WRITE);
    if session.monitors && row.flags.has(DATA) {
        return Err(Error::text("ERR Replica can't interact with the keyspace"));
    }
    if !row.flags.has(Flags::WHILE_SUBSCRIBED) && session.is_restricted() {
        return Err(while_subscribed(row));
    }
    Ok(())
}

#[cold]
fn while_subscribed(row: &Spec) -> Error {
    Error::text(format!(
        "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in \
         this context",
        row.lower_name()
    ))
}

#[cold]
fn unknown_command(args: &Args<'_>) -> Error {
    const SHOWN: usize = 128;
    let mut text = b"ERR unknown command '".to_vec();
    text.extend_from_slice(args.quoted(0, SHOWN));
    text.extend_from_slice(b"', with args beginning with: ");
    let (mut shown, mut index) = (0, 1);
    while index < args.len() && shown < SHOWN {
        let arg = args.quoted(index, SHOWN - shown);
        text.extend_from_slice(&[b"'", arg, b"' "].concat());
        shown += arg.len() + 3;
        index += 1;
    }
    Error::Bytes(text)
}

/// Returns the reason why a command with these flags cannot be run now, if any.
#[cold]
pub(crate) fn refusal(server: &Server, command: (&Spec, Flags), session: &Session) -> Option<Error> {
    let any = server.core.blockers.any();
    // PING counts as a write here: it tests whether a server can take writes.
    let writes = || has(command, session, Flags::WRITE.with(Flags::HEALTH));
    if any.contains(Blockers::NO_LOG) && writes() {
        let cause = server.persist.aof.metrics.failure.lock();
        return Some(Error::text(format!("MISCONF Errors writing to the AOF file: {cause}")));
    }
    if any.contains(Blockers::READ_ONLY) && has(command, session, Flags::WRITE) {
        return Some(Error::text("READONLY You can't write against a read only replica."));
    }
    if any.contains(Blockers::STALE) && lacks(command, session, Flags::STALE) {
        return Some(Error::stale());
    }
    if any.contains(Blockers::LOADING) && lacks(command, session, Flags::LOADING) {
        return Some(evenkeel_persist::loading());
    }
    if any.contains(Blockers::NO_SNAPSHOT) && writes() {
        return Some(Error::text(
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to \
             disk. Commands that may modify the data set are disabled, because this instance is \
             configured to report errors during writes if RDB snapshotting fails \
             (stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB \
             error.",
        ));
    }
    // Checked again: a replica counts from the moment it is online.
    if any.contains(Blockers::NO_REPLICAS)
        && has(command, session, Flags::WRITE)
        && server.replication.follow(&server.core.settings())
    {
        return Some(Error::text("NOREPLICAS Not enough good replicas to write."));
    }
    None
}

/// Whether a command has to wait until more of the journal is written.
#[inline]
pub(crate) fn waits_for_journal(server: &Server, spec: &Spec, session: &Session) -> bool {
    server.core.blockers.any().contains(Blockers::CROWDED) && has((spec, spec.flags), session, Flags::WRITE)
}

/// Whether a pause delays a command.
#[inline]
pub(crate) fn is_paused(
    server: &Server,
    (spec, args): (&Spec, &Args<'_>),
    session: &Session,
    now_ms: u64,
) -> bool {
    let pause = &server.core.pause;
    if !pause.may_be_active() || !pause.is_active(now_ms) || spec.flags.has(Flags::EVEN_PAUSED) {
        return false;
    }
    pause.is_of_all(now_ms) || writes(server, (spec, args), session)
}

#[cold]
fn writes(server: &Server, (row, args): (&Spec, &Args<'_>), session: &Session) -> bool {
    const WRITES: Flags = Flags::WRITE.with(Flags::MAY_WRITE);
    let one = |row: &Spec, args: &Args<'_>| {
        row.flags.has(WRITES) && !declared::only_reads(row, args, &server.scripts)
    };
    if !matches!(row.lock_scope, LockScope::Queue) {
        return one(row, args);
    }
    let mut queued = session.multi.iter().flat_map(|multi| &multi.queue);
    queued.any(|queued| one(table().row(queued.id), &queued.args.as_args()))
}

/// Whether a command has one of these flags; for EXEC, whether a queued command has.
fn has((row, its): (&Spec, Flags), session: &Session, flags: Flags) -> bool {
    match row.lock_scope {
        LockScope::Queue => queued(session).any(|its| its.has(flags)),
        _ => its.has(flags),
    }
}

/// Whether a command lacks this flag; for EXEC, whether a queued command does.
fn lacks((row, its): (&Spec, Flags), session: &Session, flag: Flags) -> bool {
    match row.lock_scope {
        LockScope::Queue => queued(session).any(|its| !its.has(flag)),
        _ => !its.has(flag),
    }
}

fn queued(session: &Session) -> impl Iterator<Item = Flags> {
    session.multi.iter().flat_map(|multi| &multi.queue).map(|queued| queued.flags)
}
