//! Transactions.
//!
//! The executor queues a session's commands between MULTI and EXEC. For EXEC it locks the slots of all
//! queued and all watched keys in ascending order, so transactions on different keys run at the same time on
//! different workers. Where the keys are unknown in advance (SELECT changes the meaning of the names after
//! it, SCAN and FLUSHALL concern all keys) it closes the gate, and all other clients wait.
//!
//! A write to a watched key marks the watch under the key's slot lock, and EXEC reads the mark while it holds
//! that lock. So no write can come between the check and the last command of the queue.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evenkeel_store::Watch;

use super::cluster;
use super::{
    Args, Arity, Command, Flags, Group, Keys, LockScope, ServerCall, ServerHandler, at_least, exactly,
    session,
};
use crate::executor::{collect, run_nested};
use evenkeel_client::clients::Names;
use evenkeel_client::session::{Multi, Session, Watching};
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow, Work};

const KEYS_OF_EXEC: Keys = Keys::Across(|args, db, _, key| {
    conditions(args).0.iter().for_each(|condition| key(condition.key, db));
});

/// A command that MULTI does not queue.
const fn control(name: &'static str, arity: Arity, handler: ServerHandler) -> Command<ServerHandler> {
    let flags = Flags::NOSCRIPT.with(Flags::LOADING).with(Flags::STALE).with(Flags::NOT_QUEUED);
    session(name, arity, Group::Transaction, handler).flags(flags)
}

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    control("MULTI",   exactly(1), multi  ).fast().flag(Flags::ALLOW_BUSY.with(Flags::NO_MULTI)),
    control("DISCARD", exactly(1), discard).fast().flag(Flags::ALLOW_BUSY),
    control("EXEC",    at_least(1), exec  ).lock_scope(LockScope::Queue).keys(KEYS_OF_EXEC)
        .form(form_of_exec).flag(Flags::SKIP_SLOWLOG),
    control("WATCH",   at_least(2), watch ).lock_scope(LockScope::Keys).keys(Keys::REST).fast()
        .flag(Flags::ALLOW_BUSY.with(Flags::NO_MULTI)),
    session("UNWATCH", exactly(1), Group::Transaction, unwatch).fast().flag(Flags::ALLOW_BUSY),
];

/// MULTI
fn multi(call: &mut ServerCall<'_, '_>) -> Done {
    call.session.multi = Some(Multi::default());
    call.session.client.multi_len.store(0, Relaxed);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// DISCARD
fn discard(call: &mut ServerCall<'_, '_>) -> Done {
    if call.session.discard().is_none() {
        return Err(Error::text("ERR DISCARD without MULTI"));
    }
    call.session.unwatch(call.base.guard);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// A condition of EXEC.
struct Condition<'a> {
    wanted: Wanted<'a>,
    /// Index of its key among the arguments.
    key: usize,
}

#[derive(Clone, Copy)]
enum Wanted<'a> {
    /// IFEQ: a string of these bytes.
    Equal(&'a [u8]),
    /// IFNE: no string of these bytes.
    Unequal(&'a [u8]),
    /// NX.
    Absent,
    /// XX.
    Present,
}

/// Whether EXEC has no arguments, or conditions.
fn form_of_exec(args: &Args<'_>) -> bool {
    args.len() == 1 || matches!(args.word(1).as_bytes(), b"IFEQ" | b"IFNE" | b"NX" | b"XX")
}

/// Returns the conditions of EXEC up to the first argument that is part of none, and whether that is the end.
fn conditions<'a>(args: &Args<'a>) -> (Vec<Condition<'a>>, bool) {
    let (mut conditions, mut at) = (Vec::new(), 1);
    while at < args.len() {
        let (wanted, len) = match (args.word(at).as_bytes(), args.get(at + 2)) {
            (b"IFEQ", Some(value)) => (Wanted::Equal(value), 3),
            (b"IFNE", Some(value)) => (Wanted::Unequal(value), 3),
            (b"NX", _) => (Wanted::Absent, 2),
            (b"XX", _) => (Wanted::Present, 2),
            _ => return (conditions, false),
        };
        if at + len > args.len() {
            return (conditions, false);
        }
        conditions.push(Condition { wanted, key: at + 1 });
        at += len;
    }
    (conditions, true)
}

/// Whether a condition holds. The error: IFEQ and IFNE concern strings alone.
fn holds(call: &mut ServerCall<'_, '_>, number: usize, condition: &Condition<'_>) -> Result<bool, Error> {
    let key = &call.base.keys[number];
    debug_assert_eq!(key.bytes, call.base.args.at(condition.key), "a condition has one key");
    Ok(match condition.wanted {
        Wanted::Equal(bytes) => call.base.guard.string(key)?.is_some_and(|value| value.equals(bytes)),
        Wanted::Unequal(bytes) => call.base.guard.string(key)?.is_none_or(|value| !value.equals(bytes)),
        Wanted::Absent => call.base.guard.peek(key).is_none(),
        Wanted::Present => call.base.guard.peek(key).is_some(),
    })
}

/// EXEC [IFEQ key value | IFNE key value | NX key | XX key ...]
///
/// The transaction runs if all conditions hold; they are checked under its locks.
fn exec(call: &mut ServerCall<'_, '_>) -> Done {
    let (conditions, are_whole) = conditions(&call.base.args);
    let Some(multi) = call.session.discard() else { return Err(Error::text("ERR EXEC without MULTI")) };
    let changed = watched_has_changed(call);
    call.session.unwatch(call.base.guard);
    if multi.failed {
        return Err(Error::ExecAborted);
    }
    if !are_whole {
        return Err(Error::text("EXECABORT Transaction discarded because of invalid check condition syntax"));
    }
    let mut all_hold = !changed;
    for (number, condition) in conditions.iter().enumerate() {
        all_hold = all_hold && holds(call, number, condition)?;
    }
    if !all_hold {
        call.base.reply.null_array();
        return Ok(Flow::Replied);
    }
    if cluster::change_the_map(&multi.queue) {
        let works = multi.queue.iter().map(|queued| collect(call, queued)).collect();
        return call.offload_io(Work::in_order(works));
    }
    let len_max = call.reply_len_max();
    call.base.reply.array(multi.queue.len());
    for queued in &multi.queue {
        // A reply that will not be sent need not be kept; all commands run nevertheless.
        let cut = call.base.reply.cut_beyond(len_max).then(|| call.base.reply.mark());
        run_nested(call, queued);
        if let Some(mark) = cut {
            call.base.reply.rewind(mark);
        }
    }
    Ok(Flow::Replied)
}

/// Whether a watched key was written to, or has expired without having been accessed.
fn watched_has_changed(call: &ServerCall<'_, '_>) -> bool {
    let Some(Watching { watch, keys }) = &call.session.watching else { return false };
    let lapsed = |(db, key): &(u32, Box<[u8]>)| {
        call.base.guard.lapsed(&call.server.core.keyspace.key(*db, key), watch)
    };
    watch.is_touched() || keys.iter().any(lapsed)
}

/// WATCH key [key ...]
fn watch(call: &mut ServerCall<'_, '_>) -> Done {
    let Session { watching, client, .. } = &mut *call.session;
    let watching =
        watching.get_or_insert_with(|| Watching { watch: Arc::new(Watch::default()), keys: Vec::new() });
    for key in call.base.keys {
        if call.base.guard.watch(key, &watching.watch) {
            watching.keys.push((key.place.db() as u32, key.bytes.into()));
            client.names.watched.fetch_add(Names::cost(key.bytes), Relaxed);
        }
    }
    *client.watch.lock() = Arc::downgrade(&watching.watch);
    client.watched.store(watching.keys.len() as u32, Relaxed);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// UNWATCH
fn unwatch(call: &mut ServerCall<'_, '_>) -> Done {
    call.session.unwatch(call.base.guard);
    call.base.reply.ok();
    Ok(Flow::Replied)
}

#[cfg(test)]
mod tests;
