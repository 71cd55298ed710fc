//! Transactions.
//!
//! The dispatcher queues a session's commands between MULTI and EXEC. For EXEC it locks the slots of all
//! queued and all watched keys in ascending order, so transactions on different keys run at the same time on
//! different workers. Where the keys are unknown in advance (SELECT changes the meaning of the names after
//! it, SCAN and FLUSHALL concern all keys) it closes the gate, and all other clients wait.
//!
//! A write to a watched key marks the watch under the key's slot lock, and EXEC reads the mark while it holds
//! that lock. So no write can come between the check and the last command of the queue.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evenkeel_store::Watch;

use super::{Arity, Call, Command, Flags, Group, Handler, Keys, LockScope, at_least, exactly, session};
use crate::clients::Names;
use crate::dispatch::run_nested;
use crate::error::{Done, Error};
use crate::session::{Multi, Session, Watching};

/// A command that MULTI does not queue.
const fn control(name: &'static str, arity: Arity, handler: Handler) -> Command {
    let flags = Flags::NOSCRIPT.with(Flags::LOADING).with(Flags::STALE).with(Flags::NOT_QUEUED);
    Command { flags, ..session(name, arity, Group::Transaction, handler) }
}

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    control("MULTI",   exactly(1), multi  ).fast().flag(Flags::ALLOW_BUSY),
    control("DISCARD", exactly(1), discard).fast().flag(Flags::ALLOW_BUSY),
    Command { lock_scope: LockScope::Queue, ..control("EXEC", exactly(1), exec).flag(Flags::SKIP_SLOWLOG) },
    Command { lock_scope: LockScope::Keys, keys: Keys::REST, ..control("WATCH", at_least(2), watch).fast().flag(Flags::ALLOW_BUSY) },
    session("UNWATCH", exactly(1), Group::Transaction, unwatch).fast().flag(Flags::ALLOW_BUSY),
];

/// MULTI
fn multi(call: &mut Call<'_, '_>) -> Done {
    if call.session.multi.is_some() {
        return Err(Error::text("ERR MULTI calls can not be nested"));
    }
    call.session.multi = Some(Multi::default());
    call.session.client.multi_len.store(0, Relaxed);
    call.reply.ok();
    Ok(())
}

/// DISCARD
fn discard(call: &mut Call<'_, '_>) -> Done {
    if call.session.discard().is_none() {
        return Err(Error::text("ERR DISCARD without MULTI"));
    }
    call.session.unwatch(call.guard);
    call.reply.ok();
    Ok(())
}

/// EXEC
fn exec(call: &mut Call<'_, '_>) -> Done {
    let Some(multi) = call.session.discard() else { return Err(Error::text("ERR EXEC without MULTI")) };
    let changed = watched_has_changed(call);
    call.session.unwatch(call.guard);
    if multi.failed {
        return Err(Error::ExecAborted);
    }
    if changed {
        call.reply.null_array();
        return Ok(());
    }
    let len_max = call.reply_len_max();
    call.reply.array(multi.queue.len());
    for queued in &multi.queue {
        // A reply that will not be sent need not be kept; all commands run nevertheless.
        let cut = call.reply.cut_beyond(len_max).then(|| call.reply.mark());
        run_nested(call, queued);
        if let Some(mark) = cut {
            call.reply.rewind(mark);
        }
    }
    Ok(())
}

/// Whether a watched key was written to, or has expired without having been accessed.
fn watched_has_changed(call: &Call<'_, '_>) -> bool {
    let Some(Watching { watch, keys }) = &call.session.watching else { return false };
    let lapsed = |(db, key): &(u32, Box<[u8]>)| call.guard.lapsed(&call.server.keyspace.key(*db, key), watch);
    watch.is_touched() || keys.iter().any(lapsed)
}

/// WATCH key [key ...]
fn watch(call: &mut Call<'_, '_>) -> Done {
    if call.session.multi.is_some() {
        return Err(Error::text("ERR WATCH inside MULTI is not allowed"));
    }
    let Session { watching, client, .. } = &mut *call.session;
    let watching =
        watching.get_or_insert_with(|| Watching { watch: Arc::new(Watch::default()), keys: Vec::new() });
    for key in call.keys {
        if call.guard.watch(key, &watching.watch) {
            watching.keys.push((key.place.db() as u32, key.bytes.into()));
            client.names.watched.fetch_add(Names::cost(key.bytes), Relaxed);
        }
    }
    *client.watch.lock() = Arc::downgrade(&watching.watch);
    client.watched.store(watching.keys.len() as u32, Relaxed);
    call.reply.ok();
    Ok(())
}

/// UNWATCH
fn unwatch(call: &mut Call<'_, '_>) -> Done {
    call.session.unwatch(call.guard);
    call.reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests;
