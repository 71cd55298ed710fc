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

use super::{
    Arity, Command, Flags, Group, Keys, LockScope, ServerCall, ServerHandler, at_least, exactly, session,
};
use crate::executor::run_nested;
use evenkeel_client::clients::Names;
use evenkeel_client::session::{Multi, Session, Watching};
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};

/// A command that MULTI does not queue.
const fn control(name: &'static str, arity: Arity, handler: ServerHandler) -> Command<ServerHandler> {
    let flags = Flags::NOSCRIPT.with(Flags::LOADING).with(Flags::STALE).with(Flags::NOT_QUEUED);
    session(name, arity, Group::Transaction, handler).flags(flags)
}

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    control("MULTI",   exactly(1), multi  ).fast().flag(Flags::ALLOW_BUSY.with(Flags::NO_MULTI)),
    control("DISCARD", exactly(1), discard).fast().flag(Flags::ALLOW_BUSY),
    control("EXEC",    exactly(1), exec   ).lock_scope(LockScope::Queue).flag(Flags::SKIP_SLOWLOG),
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

/// EXEC
fn exec(call: &mut ServerCall<'_, '_>) -> Done {
    let Some(multi) = call.session.discard() else { return Err(Error::text("ERR EXEC without MULTI")) };
    let changed = watched_has_changed(call);
    call.session.unwatch(call.base.guard);
    if multi.failed {
        return Err(Error::ExecAborted);
    }
    if changed {
        call.base.reply.null_array();
        return Ok(Flow::Replied);
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
