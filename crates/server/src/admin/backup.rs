//! BACKUP START, SEAL, STATUS, LIST, ABORT, CLEANUP.

use std::os::unix::ffi::OsStrExt;

use super::{Command, Flags, Group, ServerCall, ServerHandler, container, docs, exactly, session};
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_persist::backup::{self, Status};

const GROUP: Group = Group::Server;

const READS: Flags = Flags::ADMIN.with(Flags::NOSCRIPT).with(Flags::NO_DATA);

/// Commands that wait for all locks, of which a transaction has some.
const NOT_NESTED: Flags = READS.with(Flags::NO_MULTI);

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    container("BACKUP", GROUP, &[
        session("BACKUP|ABORT",   exactly(2), GROUP, abort  ).flags(NOT_NESTED),
        session("BACKUP|CLEANUP", exactly(2), GROUP, cleanup).flags(NOT_NESTED),
        session("BACKUP|HELP",    exactly(2), GROUP, help   ),
        session("BACKUP|LIST",    exactly(2), GROUP, list   ).flags(READS),
        session("BACKUP|SEAL",    exactly(2), GROUP, seal   ).flags(NOT_NESTED),
        session("BACKUP|START",   exactly(2), GROUP, start  ).flags(READS),
        session("BACKUP|STATUS",  exactly(2), GROUP, status ).flags(READS),
    ]),
];

/// BACKUP HELP
fn help(call: &mut ServerCall<'_, '_>) -> Done {
    docs::reply_help(call, "BACKUP");
    Ok(Flow::Replied)
}

/// BACKUP START: in a transaction, the backup begins behind it.
fn start(call: &mut ServerCall<'_, '_>) -> Done {
    let server = call.server.clone();
    if call.base.mode.is_nested() {
        refused(backup::start(&server.persist, true))?;
        call.base.reply.ok();
        return Ok(Flow::Replied);
    }
    call.offload_disk(move || refused(backup::start(&server.persist, false)))
}

/// BACKUP SEAL
fn seal(call: &mut ServerCall<'_, '_>) -> Done {
    let server = call.server.clone();
    call.offload_disk(move || refused(backup::seal(&server.persist)))
}

/// BACKUP ABORT
fn abort(call: &mut ServerCall<'_, '_>) -> Done {
    let server = call.server.clone();
    call.offload_disk(move || refused(backup::abort(&server.persist)))
}

/// BACKUP CLEANUP
fn cleanup(call: &mut ServerCall<'_, '_>) -> Done {
    let server = call.server.clone();
    call.offload_disk(move || refused(backup::cleanup(&server.persist)))
}

fn refused(done: Result<(), String>) -> Result<(), Error> {
    done.map_err(|reason| Error::text(format!("ERR {reason}")))
}

/// BACKUP STATUS
fn status(call: &mut ServerCall<'_, '_>) -> Done {
    let Status { stage, error, started_s, ended_s } = call.server.persist.backup.status();
    let (started, ended) = (started_s.to_string(), ended_s.to_string());
    let reply = &mut *call.base.reply;
    reply.map(4);
    let fields =
        [("state", stage.name()), ("error", error.as_str()), ("start_time", &started), ("end_time", &ended)];
    for (name, value) in fields {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    Ok(Flow::Replied)
}

/// BACKUP LIST
fn list(call: &mut ServerCall<'_, '_>) -> Done {
    let files = call.server.persist.backup.files();
    call.base.reply.array(files.len());
    for file in files {
        call.base.reply.bulk(file.as_os_str().as_bytes());
    }
    Ok(Flow::Replied)
}
