//! SWAPDB, FLUSHDB and FLUSHALL: commands on whole databases.
//!
//! FLUSHDB and FLUSHALL take a database away behind the closed gate, in microseconds, and leave the freeing
//! of its keys to the lazy-free thread. With SYNC the reply comes when the memory was given back, without an
//! option also after 50 ms; no other client waits.

use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use super::{Command, Group, ServerCall, ServerHandler, at_least, exactly, whole};
use crate::server::Server;
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow, Mode};
use evenkeel_persist::snapshot;

const GROUP: Group = Group::Keyspace;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    whole("SWAPDB",   exactly(3),  GROUP, swapdb  ).fast(),
    whole("FLUSHDB",  at_least(1), GROUP, flushdb ),
    whole("FLUSHALL", at_least(1), GROUP, flushall),
];

/// SWAPDB index1 index2
fn swapdb(call: &mut ServerCall<'_, '_>) -> Done {
    if call.server.cluster.is_some() {
        return Err(Error::text("ERR SWAPDB is not allowed in cluster mode"));
    }
    let databases = call.server.core.keyspace.databases() as u32;
    let one = call.base.args.int32(1).map_err(|_| Error::text("ERR invalid first DB index"))?;
    let other = call.base.args.int32(2).map_err(|_| Error::text("ERR invalid second DB index"))?;
    let valid = |index: i32| u32::try_from(index).ok().filter(|db| *db < databases).ok_or(Error::InvalidDb);
    let (one, other) = (valid(one)?, valid(other)?);
    call.base.guard.swap(one as usize, other as usize);
    if one != other {
        // Redis notifies no client of this, and leaves caches with stale values.
        call.server.hub.forget_tracked();
    }
    call.base.reply.ok();
    Ok(Flow::Replied)
}

/// FLUSHDB [ASYNC | SYNC]
fn flushdb(call: &mut ServerCall<'_, '_>) -> Done {
    let db = call.base.db as usize;
    let timing = timing(call)?;
    flush(call, db..db + 1, timing, false)
}

/// FLUSHALL [ASYNC | SYNC]
///
/// With save points, saved data is removed as well: no restart, not even of a replica, is to bring it back.
fn flushall(call: &mut ServerCall<'_, '_>) -> Done {
    let databases = call.server.core.keyspace.databases();
    let timing = timing(call)?;
    // A snapshot of flushed data is not worth finishing.
    call.server.persist.cancel_save();
    // The current settings: a transaction may have changed them before.
    let is_replayed = call.base.replays && call.session.link.is_none();
    let saves = !call.server.core.settings().save.is_empty() && !is_replayed;
    flush(call, 0..databases, timing, saves)
}

/// When a flush is replied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timing {
    /// ASYNC: at once.
    Async,
    /// SYNC, or no option with `lazyfree-lazy-user-flush no`: when the memory is free.
    Sync,
    /// No option: when the memory is free, or after [`DEFAULT_WAIT_MAX`]. A client that asks for the used
    /// memory next gets the value without the flushed keys, unless they are many.
    Default,
}

/// Longest wait of a flush without an option.
const DEFAULT_WAIT_MAX: Duration = Duration::from_millis(50);

fn timing(call: &ServerCall<'_, '_>) -> Result<Timing, Error> {
    match call.base.args.len() {
        1 if call.base.settings.lazyfree_lazy_user_flush => Ok(Timing::Default),
        1 => Ok(Timing::Sync),
        2 if call.base.args.is(1, "SYNC") => Ok(Timing::Sync),
        2 if call.base.args.is(1, "ASYNC") => Ok(Timing::Async),
        _ => Err(Error::Syntax),
    }
}

/// Few keys are freed before the reply, unless asynchronously: a client that then queries the used memory
/// gets the true value, except for large values. More keys, or large values, would delay all clients.
fn flush(
    call: &mut ServerCall<'_, '_>,
    databases: std::ops::Range<usize>,
    timing: Timing,
    saves: bool,
) -> Done {
    /// At about 100 ns each, they take as long as a slice of background work may.
    const FREED_AT_ONCE: usize = 5_000;
    /// Poll interval for the freeing of the rest.
    const FREE_POLL_INTERVAL: Duration = Duration::from_micros(200);
    let keys: usize =
        databases.clone().map(|db| call.server.core.keyspace.len(call.base.guard.ctx, db)).sum();
    call.server.core.record_flush();
    let flushed: Vec<_> = databases.filter_map(|db| call.base.guard.flush(db)).collect();
    call.server.hub.forget_tracked();
    if timing != Timing::Async && keys <= FREED_AT_ONCE {
        flushed.into_iter().for_each(|db| db.free_keys(call.base.guard.ctx));
    } else if !flushed.is_empty() {
        call.server.core.lazy_free.free_flushed(flushed);
    }
    // Where the next keys are likely to go.
    call.base.guard.open(call.base.db as usize);
    if saves {
        // Also if no client waits for it, or no longer by then.
        call.server.persist.owe_save();
    }
    let may_wait = call.base.mode == Mode::Direct && !call.base.replays;
    if may_wait && (saves || timing != Timing::Async && call.server.core.lazy_free.is_flushing()) {
        // Other clients go on; the caller gets its reply when the memory was given back, and the snapshot is
        // gone.
        let server = call.server.clone();
        let started = Instant::now();
        let wait = move |server: &Server| {
            let goes_on = || match timing {
                Timing::Async => false,
                Timing::Sync => true,
                Timing::Default => started.elapsed() < DEFAULT_WAIT_MAX,
            };
            while goes_on() && server.core.lazy_free.is_flushing() && !server.core.stopping.load(Acquire) {
                std::thread::sleep(FREE_POLL_INTERVAL);
            }
        };
        if !saves {
            return call.base.offload_read(move |reply| {
                wait(&server);
                reply.ok();
                Ok(())
            });
        }
        let goes = call.base.offload_disk(move || {
            wait(&server);
            snapshot::pay(&server.persist);
            Ok(())
        })?;
        // With too many commands waiting for the disk, this command does not wait: it flushes all the same.
        if matches!(goes, Flow::Offload(_)) {
            return Ok(goes);
        }
    }
    call.base.reply.ok();
    Ok(Flow::Replied)
}
