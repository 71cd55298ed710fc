//! Functions: FUNCTION, FCALL and FCALL_RO.
//!
//! A change of the libraries locks all slots: it takes place at a single point of the journal and of a
//! snapshot, while no function is running.

use std::sync::Arc;

use super::script::{flush_mode, reads, run, runs};
use super::{
    Command, Flags, Group, LockScope, ScriptRef, ServerCall, ServerHandler, at_least, container, docs,
    exactly, session,
};
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_runtime::clock;
use evenkeel_runtime::glob;
use evenkeel_scripting::functions::{Libraries, Library};
use evenkeel_scripting::machine;

const GROUP: Group = Group::Scripting;

/// A subcommand that changes the libraries.
const fn changes(name: &'static str, arity: super::Arity, handler: ServerHandler) -> Command<ServerHandler> {
    let flags = Flags::NOSCRIPT.with(Flags::WRITE);
    session(name, arity, GROUP, handler).flags(flags).lock_scope(LockScope::Whole)
}

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    runs ("FCALL",    ScriptRef::Function, fcall   ),
    reads("FCALL_RO", ScriptRef::Function, fcall_ro),
    container("FUNCTION", GROUP, &[
        changes("FUNCTION|DELETE",  exactly(3),  delete ),
        session("FUNCTION|DUMP",    exactly(2),  GROUP, dump ).without(LOADS),
        changes("FUNCTION|FLUSH",   at_least(2), flush  ),
        session("FUNCTION|HELP",    exactly(2),  GROUP, help ).scriptable(),
        session("FUNCTION|KILL",    exactly(2),  GROUP, kill ).without(LOADS).flag(Flags::ALLOW_BUSY),
        session("FUNCTION|LIST",    at_least(2), GROUP, list ).without(LOADS),
        changes("FUNCTION|LOAD",    at_least(3), load   ).grows(),
        changes("FUNCTION|RESTORE", at_least(3), restore).grows(),
        session("FUNCTION|STATS",   exactly(2),  GROUP, stats).without(LOADS).flag(Flags::ALLOW_BUSY),
    ]),
];
const LOADS: Flags = Flags::LOADING.with(Flags::STALE);

fn call_function(call: &mut ServerCall<'_, '_>, ro: bool) -> Done {
    let no_number = Error::text("ERR Bad number of keys provided");
    run(call, ro, |machine, server, name| machine.function_named(&server.scripts, name), no_number, true)
}

/// FCALL function numkeys [key [key ...]] [arg [arg ...]]
fn fcall(call: &mut ServerCall<'_, '_>) -> Done {
    call_function(call, false)
}

/// FCALL_RO function numkeys [key [key ...]] [arg [arg ...]]
fn fcall_ro(call: &mut ServerCall<'_, '_>) -> Done {
    call_function(call, true)
}

/// Returns the library of this code.
fn library(call: &ServerCall<'_, '_>, code: &[u8]) -> Result<Arc<Library>, Error> {
    machine::with(&call.server.scripts, |machine| {
        machine.library(&call.server.scripts, code, call.session.replays)
    })?
    .map(Arc::new)
}

fn change(call: &mut ServerCall<'_, '_>, libraries: Libraries) {
    call.server.scripts.set_libraries(libraries);
    call.base.guard.count_change();
}

/// FUNCTION LOAD [REPLACE] function-code
fn load(call: &mut ServerCall<'_, '_>) -> Done {
    let args = call.base.args;
    let (mut replace, last) = (false, args.len() - 1);
    for at in 2..last {
        if !args.is(at, "REPLACE") {
            return Err(Error::Bytes([b"ERR Unknown option given: ", args.at(at)].concat()));
        }
        replace = true;
    }
    let name = evenkeel_lua::shebang::library_name(args.at(last))?;
    if !replace && call.server.scripts.libraries().has(&name) {
        return Err(Error::Bytes([b"ERR Library '", &name[..], b"' already exists"].concat()));
    }
    let library = library(call, args.at(last))?;
    call.server.scripts.change_libraries(|libraries| libraries.add(library, replace))?;
    call.base.guard.count_change();
    call.base.reply.bulk(&name);
    Ok(Flow::Replied)
}

/// FUNCTION DELETE library-name
fn delete(call: &mut ServerCall<'_, '_>) -> Done {
    let name = call.base.args.at(2);
    call.server.scripts.change_libraries(|libraries| {
        if libraries.remove(name) { Ok(()) } else { Err(Error::text("ERR Library not found")) }
    })?;
    call.base.guard.count_change();
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// FUNCTION FLUSH [ASYNC | SYNC]
fn flush(call: &mut ServerCall<'_, '_>) -> Done {
    if call.base.args.len() > 3 {
        return Err(wrong_count("flush"));
    }
    flush_mode(&call.base.args).ok_or(Error::text("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"))?;
    change(call, Libraries::default());
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// FUNCTION DUMP
fn dump(call: &mut ServerCall<'_, '_>) -> Done {
    let libraries = call.server.scripts.libraries();
    let codes: Vec<&[u8]> = libraries.iter().map(|library| &library.code[..]).collect();
    call.base.reply.bulk(&evenkeel_rdb::functions::dump(&codes));
    Ok(Flow::Replied)
}

/// FUNCTION RESTORE serialized-value [FLUSH | APPEND | REPLACE]
fn restore(call: &mut ServerCall<'_, '_>) -> Done {
    let args = call.base.args;
    let policy = if args.len() == 3 { b"APPEND".to_vec() } else { args.word(3).as_bytes().to_vec() };
    if args.len() > 4 {
        return Err(wrong_count("restore"));
    }
    let codes = evenkeel_rdb::functions::read(args.at(2));
    let (flush, replace) = match &policy[..] {
        b"FLUSH" => (true, false),
        b"APPEND" => (false, false),
        b"REPLACE" => (false, true),
        _ => {
            return Err(Error::text(
                "ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.",
            ));
        }
    };
    let codes = codes.map_err(|error| match error {
        evenkeel_rdb::functions::FunctionsError::Sum => {
            Error::text("ERR DUMP payload version or checksum are wrong")
        }
        evenkeel_rdb::functions::FunctionsError::Content => Error::text("ERR failed loading functions"),
    })?;
    // A payload that has a library or a function twice is refused, whatever the policy.
    let mut restored = Libraries::default();
    for code in codes {
        restored.add(library(call, &code)?, false)?;
    }
    let mut libraries = if flush { Libraries::default() } else { (*call.server.scripts.libraries()).clone() };
    for library in restored.iter() {
        if libraries.remove(&library.name) && !replace {
            let text = [b"ERR Library ", &library.name[..], b" already exists"].concat();
            return Err(Error::Bytes(text));
        }
    }
    for library in restored.iter() {
        libraries.add(library.clone(), false)?;
    }
    change(call, libraries);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

fn wrong_count(subcommand: &str) -> Error {
    let text =
        format!("ERR unknown subcommand or wrong number of arguments for '{subcommand}'. Try FUNCTION HELP.");
    Error::text(text)
}

/// FUNCTION LIST [LIBRARYNAME library-name-pattern] [WITHCODE]
fn list(call: &mut ServerCall<'_, '_>) -> Done {
    let args = call.base.args;
    let (mut pattern, mut with_code, mut at) = (None, false, 2);
    while at < args.len() {
        if !with_code && args.is(at, "WITHCODE") {
            with_code = true;
        } else if pattern.is_none() && args.is(at, "LIBRARYNAME") {
            at += 1;
            pattern = Some(args.get(at).ok_or(Error::text("ERR library name argument was not given"))?);
        } else {
            return Err(Error::Bytes([b"ERR Unknown argument ", args.at(at)].concat()));
        }
        at += 1;
    }
    let libraries = call.server.scripts.libraries();
    let matches =
        |library: &&Arc<Library>| pattern.is_none_or(|pattern| glob::matches(pattern, &library.name, true));
    let listed: Vec<&Arc<Library>> = libraries.iter().filter(matches).collect();
    call.base.reply.array(listed.len());
    listed.into_iter().for_each(|library| show(call, library, with_code));
    Ok(Flow::Replied)
}

fn show(call: &mut ServerCall<'_, '_>, library: &Library, with_code: bool) {
    let reply = &mut *call.base.reply;
    reply.map(if with_code { 4 } else { 3 });
    reply.bulk(b"library_name");
    reply.bulk(&library.name);
    reply.bulk(b"engine");
    reply.bulk(b"LUA");
    reply.bulk(b"functions");
    reply.array(library.functions.len());
    for function in library.functions.values() {
        reply.map(3);
        reply.bulk(b"name");
        reply.bulk(&function.name);
        reply.bulk(b"description");
        match &function.description {
            Some(text) => reply.bulk(text),
            None => reply.null(),
        }
        reply.bulk(b"flags");
        let flags: Vec<&str> = function.flags.names().collect();
        reply.set(flags.len());
        flags.into_iter().for_each(|flag| reply.simple(flag));
    }
    if with_code {
        reply.bulk(b"library_code");
        reply.bulk(&library.code);
    }
}

/// FUNCTION STATS
fn stats(call: &mut ServerCall<'_, '_>) -> Done {
    let running = call.server.scripts.busy.running();
    if running.as_ref().is_some_and(|running| !running.is_function) {
        return Err(call.server.scripts.busy.refusal());
    }
    let libraries = call.server.scripts.libraries();
    let reply = &mut *call.base.reply;
    reply.map(2);
    reply.bulk(b"running_script");
    match running {
        Some(running) => {
            reply.map(3);
            reply.bulk(b"name");
            reply.bulk(&running.name);
            reply.bulk(b"command");
            reply.array(running.command.len());
            running.command.iter().for_each(|word| reply.bulk(word));
            reply.bulk(b"duration_ms");
            let elapsed = clock::ticks().saturating_sub(running.since) / clock::ticks_per_us() / 1000;
            reply.int(elapsed as i64);
        }
        None => reply.null(),
    }
    reply.bulk(b"engines");
    reply.map(1);
    reply.bulk(b"LUA");
    reply.map(2);
    reply.bulk(b"libraries_count");
    reply.int(libraries.count() as i64);
    reply.bulk(b"functions_count");
    reply.int(libraries.functions() as i64);
    Ok(Flow::Replied)
}

/// FUNCTION KILL
fn kill(call: &mut ServerCall<'_, '_>) -> Done {
    call.server.scripts.busy.kill(true)?;
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// FUNCTION HELP
fn help(call: &mut ServerCall<'_, '_>) -> Done {
    docs::reply_help(call, "FUNCTION");
    Ok(Flow::Replied)
}
