//! Snapshots and the shutdown: SAVE, BGSAVE, LASTSAVE, SHUTDOWN.

use std::sync::Arc;

use std::sync::atomic::AtomicBool;

use super::{Command, Flags, Group, ServerCall, ServerHandler, at_least, exactly, session};
use crate::server::Server;
use evenkeel_client::waiting::{On, Waiting};
use evenkeel_command::error::Error;
use evenkeel_command::flow::Timeout;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_command::reply::Reply;
use evenkeel_config::ShutdownOptions;
use evenkeel_persist::end::{self, Asker};
use evenkeel_persist::snapshot::{Begun, Busy};
use evenkeel_persist::{Cancelled, PersistJob, rewrite, snapshot};

/// Commands that write to disk and must not be queued in a transaction by accident.
const FOR_OPERATORS: Flags =
    Flags::ADMIN.with(Flags::NOSCRIPT).with(Flags::NO_ASYNC_LOADING).with(Flags::NO_DATA);

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    session("BGREWRITEAOF", exactly(1), Group::Server, rewrite_aof).flags(FOR_OPERATORS),
    session("BGSAVE", at_least(1), Group::Server, background_save).flags(FOR_OPERATORS),
    session("LASTSAVE", exactly(1),  Group::Server, last_save).fast().scriptable(),
    session("SAVE", exactly(1), Group::Server, save).flags(FOR_OPERATORS.with(Flags::NO_MULTI)),
    session("SHUTDOWN", at_least(1), Group::Server, shutdown ).admin()
        .flag(Flags::NO_MULTI.with(Flags::ALLOW_BUSY)),
];

/// SAVE: only its client waits. A second SAVE waits for the first, and a SAVE waits for a rewrite.
fn save(call: &mut ServerCall<'_, '_>) -> Done {
    if call.server.persist.state().is_saving_in_background() {
        return Err(Error::text("ERR Background save already in progress"));
    }
    let server = call.server.clone();
    call.offload_disk(move || {
        snapshot::save(&server.persist).map_err(|reason| Error::text(format!("ERR {reason}")))
    })
}

/// BGREWRITEAOF
fn rewrite_aof(call: &mut ServerCall<'_, '_>) -> Done {
    let (persist, may_begin) = (&call.server.persist, may_begin(call));
    if persist.state().is_rewriting() {
        return Err(Error::text("ERR Background append only file rewriting already in progress"));
    }
    let text = if may_begin && rewrite::begin(&call.server.persist) {
        "Background append only file rewriting started"
    } else {
        persist.schedule_rewrite();
        // It is queued behind a job that Redis would have finished by now, begins by itself, and INFO reports
        // it as under way.
        match may_begin && !persist.state().is_saving_in_background() {
            true => "Background append only file rewriting started",
            false => "Background append only file rewriting scheduled",
        }
    };
    call.base.reply.simple(text);
    Ok(Flow::Replied)
}

/// A transaction holds locks that a snapshot has to wait for.
fn may_begin(call: &ServerCall<'_, '_>) -> bool {
    !call.base.mode.is_nested()
}

/// BGSAVE [SCHEDULE | CANCEL]
fn background_save(call: &mut ServerCall<'_, '_>) -> Done {
    let schedule = match call.base.args.len() {
        1 => false,
        2 if call.base.args.is(1, "SCHEDULE") => true,
        2 if call.base.args.is(1, "CANCEL") => return cancel(call),
        _ => return Err(Error::Syntax),
    };
    let (server, may_begin) = (call.server.clone(), may_begin(call));
    if may_begin && server.persist.state().is_behind() {
        // Redis is never behind: it finishes such work before it replies.
        return call.offload_read(move |reply| {
            server.persist.catch_up();
            let begun = begin_save(&server, may_begin, schedule)?;
            reply_to_save(begun, reply)
        });
    }
    match begin_save(&server, may_begin, schedule)? {
        // Writes after the reply are not in the snapshot.
        Some(begun) => call.offload_read(move |reply| reply_to_save(Some(begun), reply)),
        None => reply_to_save(None, call.base.reply).map(|()| Flow::Replied),
    }
}

/// Begins a save; `None` if it is scheduled.
fn begin_save(server: &Arc<Server>, may_begin: bool, schedule: bool) -> Result<Option<Begun>, Error> {
    match server.persist.state().all().last() {
        // A full sync counts as a snapshot, too, for INFO and for another BGSAVE.
        Some(running) if running.is(PersistJob::Snapshot) || running.is(PersistJob::Sync) => {
            return Err(Error::text("ERR Background save already in progress"));
        }
        Some(_) if !schedule && may_begin => {
            return Err(Error::text(
                "ERR Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE SCHEDULE in \
                 order to schedule a BGSAVE whenever possible.",
            ));
        }
        _ => {}
    }
    let begun = if may_begin { snapshot::begin(&server.persist) } else { Err(Busy) };
    match begun {
        Ok(begun) => Ok(Some(begun)),
        Err(Busy) if schedule || !may_begin => {
            server.persist.schedule_save();
            Ok(None)
        }
        Err(Busy) => Err(Error::text("ERR Background save already in progress")),
    }
}

fn reply_to_save(begun: Option<Begun>, reply: &mut Reply) -> Result<(), Error> {
    let text = match begun {
        Some(begun) => {
            begun.wait();
            "Background saving started"
        }
        None => "Background saving scheduled",
    };
    reply.simple(text);
    Ok(())
}

fn cancel(call: &mut ServerCall<'_, '_>) -> Done {
    let text = match call.server.persist.cancel_save() {
        Cancelled::Running => "Background saving cancelled",
        Cancelled::Scheduled => "Scheduled background saving cancelled",
        Cancelled::Nothing => {
            return Err(Error::text("ERR Background saving is currently not in progress or scheduled"));
        }
    };
    call.base.reply.simple(text);
    Ok(Flow::Replied)
}

/// LASTSAVE: the start counts as a save, as long as there is no other.
fn last_save(call: &mut ServerCall<'_, '_>) -> Done {
    call.base.reply.int(call.server.persist.state().last_save_s as i64);
    Ok(Flow::Replied)
}

/// SHUTDOWN [NOSAVE | SAVE] [NOW] [FORCE] [SAFE] [FAILOVER] [ABORT]
///
/// FAILOVER changes nothing: an orderly end hands the shard over to a replica in any case.
/// There is no reply: the client sees the connection close. If a save is due and fails, the server stays up,
/// unless FORCE is given. A client that sends SHUTDOWN during a shutdown waits for it.
fn shutdown(call: &mut ServerCall<'_, '_>) -> Done {
    let args = call.base.args;
    let (mut how, mut abort) = (ShutdownOptions::default(), false);
    for at in 1..args.len() {
        match args.word(at).as_bytes() {
            b"SAVE" if how.save != Some(false) => how.save = Some(true),
            b"NOSAVE" if how.save != Some(true) => how.save = Some(false),
            b"NOW" => how.now = true,
            b"FORCE" => how.force = true,
            b"SAFE" => how.safe = true,
            b"FAILOVER" => how.failover = true,
            b"ABORT" => abort = true,
            _ => return Err(Error::Syntax),
        }
    }
    if abort && how != ShutdownOptions::default() {
        return Err(Error::Syntax);
    }
    if how.failover && call.server.cluster.is_none() {
        return Err(Error::text("ERR SHUTDOWN FAILOVER is only supported in cluster mode."));
    }
    if abort {
        if !end::abort(&call.server.persist) {
            return Err(Error::text("ERR No shutdown in progress."));
        }
        call.base.reply.ok();
        return Ok(Flow::Replied);
    }
    if call.server.is_end_unsafe(how) {
        return Err(Error::text("ERR Errors trying to SHUTDOWN. Check logs."));
    }
    // A snapshot would have to wait for the script, which may never end.
    if how.save != Some(false) && call.server.scripts.busy.is_busy() {
        return Err(call.server.scripts.busy.refusal());
    }
    let (server, client) = (call.server, call.session.client.clone());
    let (number, nobody_waits) = (server.core.keyspace.ticket(), Arc::new(AtomicBool::new(false)));
    let on = On::Long(nobody_waits);
    let waiting = Waiting::new(number, Timeout(None), on);
    call.session.waiting = Some(Box::new(waiting));
    client.set_waiting(true, 0, false);
    log::warn!("User requested shutdown...");
    end::begin(
        &server.persist,
        how,
        Some(Asker { client, number, id: call.base.id, resp3: call.base.reply.resp3 }),
    );
    Ok(Flow::Suspended)
}

#[cfg(test)]
mod tests;
