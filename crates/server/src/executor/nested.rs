//! Commands within other commands, under the locks of the outer command: calls of scripts, and the queue of
//! EXEC.

use std::sync::Arc;

use evenkeel_store::{Key, Place};

use super::Parts;
use super::permission;
use crate::admin::ServerCall;
use crate::observe;
use crate::observe::commandlog::{self, Spent};
use crate::observe::stats::add;
use crate::server::Server;
use evenkeel_client::monitor;
use evenkeel_client::session::{Queued, Session};
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow, Mode, Work};
use evenkeel_command::reply::Reply;
use evenkeel_command::table::table;
use evenkeel_command::{Args, Call, Flags, Id, LockScope};
use evenkeel_runtime::clock;

/// Runs a command that a script calls, under the script's locks; `reply` is empty. Its errors are counted
/// here.
pub(super) fn run_in_script(
    (server, worker): (&Arc<Server>, usize),
    (base, session): (&mut Call<'_, '_>, &mut Session),
    (id, args): (Id, Args<'_>),
    keys: &[Key<'_>],
    reply: &mut Reply,
) -> Done {
    let (row, before, errors) = (table().row(id), clock::ticks(), reply.errors);
    let (len, waited) = (reply.len(), base.guard.ctx.lock_wait);
    base.guard.ctx.no_touch = session.no_touch;
    let mut parts = Parts::new(id, reply, session, (server, base.settings, worker));
    let done = parts.run(Mode::Script, args, keys, base.guard);
    base.guard.tidy_between_commands();
    let stats = &server.stats[worker];
    add(&session.client.commands, 1);
    if let Err(error) = &done {
        stats.error(&error.line());
    }
    let failed = done.is_err() || reply.errors != errors;
    let spent = Spent {
        ticks: clock::ticks().saturating_sub(before),
        waited: base.guard.ctx.lock_wait.saturating_sub(waited),
        reply: reply.len().saturating_sub(len),
        ..Spent::default()
    };
    stats.ran(id, spent.ticks, failed, base.settings.latency_tracking);
    if base.settings.cluster_slot_stats_enabled
        && let Some(cluster) = &server.cluster
    {
        cluster.slot_stats.count_nested(worker, row, &args, 0);
    }
    // The script has declared the keys, so hot keys and their time are counted for the script.
    if server.commandlog.wants(&spent) {
        let command = (row, args, &spent);
        commandlog::note(server, base.settings, worker, &session.client, command);
    }
    done
}

/// Runs a queued command inside EXEC's call, which holds the slots it needs.
pub(crate) fn run_nested(call: &mut ServerCall<'_, '_>, queued: &Queued) {
    let errors = call.base.reply.errors;
    if let Err(error) = run_queued(call, queued, Mode::Nested) {
        call.base.reply.fail(&error);
    }
    call.base.reply.errors = errors; // EXEC itself has not failed
}

/// Returns what a queued command does without locks.
pub(crate) fn collect(call: &mut ServerCall<'_, '_>, queued: &Queued) -> Result<Work, Error> {
    match run_queued(call, queued, Mode::Collected)? {
        Flow::Offload(work) => Ok(work),
        _ => Err(Error::text("ERR the command cannot be one of several")),
    }
}

fn run_queued(call: &mut ServerCall<'_, '_>, queued: &Queued, mode: Mode) -> Done {
    let row = table().row(queued.id);
    let (args, before, errors) = (queued.args.as_args(), clock::ticks(), call.base.reply.errors);
    let (len, waited) = (call.base.reply.len(), call.base.guard.ctx.lock_wait);
    call.base.guard.ctx.no_touch = call.session.no_touch;
    let keys = row.keys.find(&args, call.session.db, &call.server.core.keyspace);
    let server = call.server;
    if server.hub.monitors.is_any() && row.runs_scripts() {
        monitor::begin_script(call.session, row, &args);
    }
    let now_ms = call.base.now_ms();
    let done = match permission::admit_in_exec(server, call.session, (queued.id, &args), now_ms) {
        Ok(()) => {
            let means = (server, call.base.settings, call.worker);
            let mut parts = Parts::new(queued.id, call.base.reply, call.session, means);
            parts.run(mode, args, &keys, call.base.guard)
        }
        Err(refusal) => Err(refusal),
    };
    call.base.guard.tidy_between_commands();
    if server.hub.monitors.is_any() {
        match row.runs_scripts() {
            true => monitor::end_script(call.base.guard, &done),
            false => monitor::show_in_unit(call.base.guard, call.session, row, &args),
        }
    }
    let stats = &server.stats[call.worker];
    if let Err(error) = &done {
        stats.error(&error.line());
    }
    let failed = done.is_err() || call.base.reply.errors != errors;
    let spent = Spent {
        ticks: clock::ticks().saturating_sub(before),
        waited: call.base.guard.ctx.lock_wait.saturating_sub(waited),
        reply: call.base.reply.len().saturating_sub(len),
        is_nested: true,
        ..Spent::default()
    };
    stats.ran(queued.id, spent.ticks, failed, call.base.settings.latency_tracking);
    let client = &call.session.client;
    observe::ended(server, call.base.settings, call.worker, client, (row, args, &spent));
    done
}

/// Collects the places of all keys that EXEC needs: of the queued commands and the watched keys. Returns
/// `false` if they are not known beforehand, and everything has to be locked.
pub(super) fn queue_places(session: &Session, server: &Server, places: &mut Vec<Place>) -> bool {
    places.clear();
    let databases = server.core.keyspace.databases() as u32;
    for queued in session.multi.iter().flat_map(|multi| &multi.queue) {
        let row = table().row(queued.id);
        let args = queued.args.as_args();
        // A change of permissions waits for other threads' commands; see `ServerCall::reply_in_force`.
        let is_apart = row.flags.has(Flags::NO_DATA) && !row.flags.has(Flags::ADMIN);
        if !matches!(row.lock_scope_in(&args), LockScope::Keys) && !is_apart {
            return false;
        }
        row.keys.for_each(&args, session.db, databases, |index, db| {
            places.push(server.core.keyspace.key(db, args.at(index)).place);
        });
    }
    let watched = session.watching.iter().flat_map(|watching| &watching.keys);
    places.extend(watched.map(|(db, key)| server.core.keyspace.key(*db, key).place));
    true
}
