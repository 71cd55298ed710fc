//! Scripts: EVAL and the like, SCRIPT.
//!
//! docs/scripting.md has the locks of a script and how it is run; crate `scripting` runs it.

use super::{
    Args, Command, Flags, Group, Keys, LockScope, ScriptRef, ServerCall, ServerHandler, at_least, container,
    docs, exactly, session,
};
use crate::executor::script_host::ScriptThread;
use crate::server::Server;
use evenkeel_command::error::Error;
use evenkeel_command::flow::Mode;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_scripting::Sha;
use evenkeel_scripting::machine::{self, Machine, Target};

const GROUP: Group = Group::Scripting;

/// A command that runs a script or a function.
pub(super) const fn runs(
    name: &'static str,
    script: ScriptRef,
    handler: ServerHandler,
) -> Command<ServerHandler> {
    let flags = Flags::NOSCRIPT.with(Flags::STALE).with(Flags::MAY_WRITE);
    let keys = Keys::Counted { at: 2, step: 1 };
    let row = session(name, at_least(3), GROUP, handler);
    row.flags(flags).keys(keys).lock_scope(LockScope::Script(script))
}

/// [`runs`] for a command that only reads.
pub(super) const fn reads(
    name: &'static str,
    script: ScriptRef,
    handler: ServerHandler,
) -> Command<ServerHandler> {
    let command = runs(name, script, handler);
    command.without(Flags::MAY_WRITE).flag(Flags::READONLY)
}

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    runs ("EVAL",       ScriptRef::Text,   eval      ),
    runs ("EVALSHA",    ScriptRef::Digest, eval_sha   ),
    reads("EVALSHA_RO", ScriptRef::Digest, eval_sha_ro),
    reads("EVAL_RO",    ScriptRef::Text,   eval_ro    ),
    container("SCRIPT", GROUP, &[
        session("SCRIPT|DEBUG",  exactly(3),  GROUP, debug ).without(LOADS),
        session("SCRIPT|EXISTS", at_least(3), GROUP, exists).without(Flags::LOADING),
        session("SCRIPT|FLUSH",  at_least(2), GROUP, flush ).without(Flags::LOADING),
        session("SCRIPT|HELP",   exactly(2),  GROUP, help  ).scriptable(),
        session("SCRIPT|KILL",   exactly(2),  GROUP, kill  ).without(LOADS).flag(Flags::ALLOW_BUSY),
        session("SCRIPT|LOAD",   exactly(3),  GROUP, load  ).without(LOADS).flag(Flags::STALE),
        session("SCRIPT|SHOW",   exactly(3),  GROUP, show  ).without(Flags::LOADING),
    ]),
];
const LOADS: Flags = Flags::LOADING.with(Flags::STALE);

/// Parses the number of keys; `no_number` is the error for an argument that is no number.
pub(super) fn keys_count(args: &Args<'_>, no_number: Error) -> Result<usize, Error> {
    let count = args.int(2).map_err(|_| no_number)?;
    if count > args.len() as i64 - 3 {
        return Err(Error::text("ERR Number of keys can't be greater than number of args"));
    }
    usize::try_from(count).map_err(|_| Error::text("ERR Number of keys can't be negative"))
}

/// Finds the script or function, and runs it. It has fieldsets of its own (HIMPORT), which end with it.
pub(super) fn run(
    call: &mut ServerCall<'_, '_>,
    ro: bool,
    find: impl FnOnce(&mut Machine, &Server, &[u8]) -> Result<Target, Error>,
    no_number: Error,
    finds_first: bool,
) -> Done {
    let fieldsets = call.session.take_fieldsets();
    let done = find_and_run(call, ro, find, no_number, finds_first);
    call.session.put_fieldsets(fieldsets);
    done
}

fn find_and_run(
    call: &mut ServerCall<'_, '_>,
    ro: bool,
    find: impl FnOnce(&mut Machine, &Server, &[u8]) -> Result<Target, Error>,
    no_number: Error,
    finds_first: bool,
) -> Done {
    let args = call.base.args;
    let server = call.server.clone();
    machine::with(&server.scripts, |machine| {
        let (target, keys) = if finds_first {
            let target = find(machine, &server, args.at(1))?;
            (target, keys_count(&args, no_number)?)
        } else {
            let keys = keys_count(&args, no_number)?;
            (find(machine, &server, args.at(1))?, keys)
        };
        let may_go = call.base.mode == Mode::Direct && !call.session.replays;
        if may_go && target.habits().leaves_worker(server.inboxes.len()) {
            return Ok(Flow::OffloadScript);
        }
        let thread = ScriptThread::of(call);
        machine.run(&mut thread.script_call(call), &target, keys, ro)
    })?
}

fn eval_text(call: &mut ServerCall<'_, '_>, ro: bool) -> Done {
    run(
        call,
        ro,
        |machine, server, body| machine.script(&server.scripts, body, true),
        Error::NotInteger,
        false,
    )
}

fn eval_name(call: &mut ServerCall<'_, '_>, ro: bool) -> Done {
    if call.base.args.at(1).len() != size_of::<Sha>() {
        return Err(machine::no_script());
    }
    run(call, ro, |machine, server, sha| machine.script_named(&server.scripts, sha), Error::NotInteger, false)
}

/// EVAL script numkeys [key [key ...]] [arg [arg ...]]
fn eval(call: &mut ServerCall<'_, '_>) -> Done {
    eval_text(call, false)
}

/// EVAL_RO script numkeys [key [key ...]] [arg [arg ...]]
fn eval_ro(call: &mut ServerCall<'_, '_>) -> Done {
    eval_text(call, true)
}

/// EVALSHA sha1 numkeys [key [key ...]] [arg [arg ...]]
fn eval_sha(call: &mut ServerCall<'_, '_>) -> Done {
    eval_name(call, false)
}

/// EVALSHA_RO sha1 numkeys [key [key ...]] [arg [arg ...]]
fn eval_sha_ro(call: &mut ServerCall<'_, '_>) -> Done {
    eval_name(call, true)
}

/// SCRIPT LOAD script
fn load(call: &mut ServerCall<'_, '_>) -> Done {
    let (args, server) = (call.base.args, call.server);
    let target =
        machine::with(&server.scripts, |machine| machine.script(&server.scripts, args.at(2), false))??;
    if let Target::Script(script) = target {
        call.base.reply.bulk(&script.sha);
    }
    Ok(Flow::Replied)
}

/// SCRIPT EXISTS sha1 [sha1 ...]
fn exists(call: &mut ServerCall<'_, '_>) -> Done {
    call.base.reply.array(call.base.args.len() - 2);
    for name in call.base.args.from(2) {
        let sha = Sha::try_from(name.to_ascii_lowercase()).ok();
        let found = sha.is_some_and(|sha| call.server.scripts.find(&sha).is_some());
        call.base.reply.int(i64::from(found));
    }
    Ok(Flow::Replied)
}

/// SCRIPT SHOW sha1
fn show(call: &mut ServerCall<'_, '_>) -> Done {
    let sha = Sha::try_from(call.base.args.at(2).to_ascii_lowercase()).ok();
    let script = sha.and_then(|sha| call.server.scripts.find(&sha));
    let script = script.ok_or_else(machine::no_script)?;
    call.base.reply.bulk(&script.body);
    Ok(Flow::Replied)
}

/// SCRIPT FLUSH [ASYNC | SYNC]
///
/// Nothing takes long here: the texts are few, and each thread drops its compiled scripts when it runs its
/// next script.
fn flush(call: &mut ServerCall<'_, '_>) -> Done {
    flush_mode(&call.base.args).ok_or(Error::text("ERR SCRIPT FLUSH only support SYNC|ASYNC option"))?;
    call.server.scripts.flush();
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// Checks that at most a mode follows the subcommand.
pub(super) fn flush_mode(args: &Args<'_>) -> Option<()> {
    (args.len() == 2 || args.len() == 3 && (args.is(2, "SYNC") || args.is(2, "ASYNC"))).then_some(())
}

/// SCRIPT KILL
fn kill(call: &mut ServerCall<'_, '_>) -> Done {
    call.server.scripts.busy.kill(false)?;
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// SCRIPT DEBUG <YES | SYNC | NO>
fn debug(call: &mut ServerCall<'_, '_>) -> Done {
    match call.base.args.word(2).as_bytes() {
        b"NO" => {
            call.base.reply.ok();
            Ok(Flow::Replied)
        }
        b"YES" | b"SYNC" => {
            Err(Error::text("ERR SCRIPT DEBUG is not supported: this server has no script debugger"))
        }
        _ => Err(Error::text("ERR Use SCRIPT DEBUG YES/SYNC/NO")),
    }
}

/// SCRIPT HELP
fn help(call: &mut ServerCall<'_, '_>) -> Done {
    docs::reply_help(call, "SCRIPT");
    Ok(Flow::Replied)
}
