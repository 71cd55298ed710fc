//! DEBUG RELOAD and LOADAOF: tests of the file formats take the data of a running server to disk and back.

use std::sync::Arc;
use std::sync::atomic::Ordering::*;

use super::load::{self, Ended};
use super::replay::{self, Replayed};
use super::{PersistJob, rewrite, snapshot};
use crate::scripting::functions::Libraries;
use crate::server::Server;
use evenkeel_client::pubsub::push_queue;
use evenkeel_core::pause::Pauser;
use evenkeel_runtime::clock;

/// The options of DEBUG RELOAD.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    /// Take a snapshot first.
    pub(crate) save: bool,
    /// Empty the databases first.
    pub(crate) flush: bool,
    /// Replace present keys and libraries by those of the file; otherwise they are errors.
    pub(crate) merge: bool,
}

/// Loads the snapshot again. All commands wait meanwhile.
pub(crate) fn from_snapshot(server: &Arc<Server>, options: Options) -> Result<(), String> {
    while_all_wait(server, || reload(server, options))
}

/// Empties the databases and loads the append-only files again, once all logged commands are in them. All
/// commands wait meanwhile.
///
/// If they cannot be loaded, memory and disk differ, and nothing may be written: the server ends.
pub(crate) fn from_log(server: &Arc<Server>) -> Result<(), String> {
    while_all_wait(server, || {
        replay_log(server).inspect_err(|reason| {
            log::warn!("{reason}. Exiting.");
            server.persist.cancel_all();
            server.core.stop();
        })
    })
}

fn while_all_wait(server: &Arc<Server>, load: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    if server.persist.is_loading() {
        return Err("the data is already being loaded".into());
    }
    // A second reload would load, and perhaps save, the partial data of the first.
    let _turn = server.persist.reload.lock();
    server.core.pause.begin(Pauser::Reload, true, u64::MAX, clock::unix_ms());
    let done = load();
    server.core.pause.end(Pauser::Reload);
    server.core.workers.wake_all();
    done
}

/// Replays the append-only file. It is turned off meanwhile, since replayed commands must not be logged
/// again; the claimed job keeps other threads from turning it on or off.
fn replay_log(server: &Arc<Server>) -> Result<(), String> {
    let persist = &server.persist;
    persist.claim_in_turn(PersistJob::Log);
    let was_on = persist.aof.is_on();
    if was_on {
        rewrite::turn_off(server);
    }
    persist.is_incomplete.store(true, Release);
    flush_all(server);
    let replayed = replay::directory(server).map_err(|ended| match ended {
        Ended::Failed(reason) => reason,
        Ended::Stopped => "the server is shutting down".into(),
    });
    let done = replayed.and_then(|Replayed { directory, found, .. }| {
        persist.record_loaded(&server.core.keyspace);
        persist.is_incomplete.store(false, Release);
        // It may have been on only because no thread had turned it off yet.
        if was_on && server.core.settings().appendonly {
            rewrite::start_logging(server, directory, found)
        } else {
            Ok(())
        }
    });
    rewrite::release(server);
    done
}

/// Saves and loads under a single claim, so no other thread writes to disk: meanwhile the memory has a part
/// of the data.
fn reload(server: &Arc<Server>, options: Options) -> Result<(), String> {
    if options.save {
        if let Err(reason) = snapshot::save_before(server, PersistJob::Log) {
            rewrite::release(server);
            return Err(reason);
        }
    } else {
        server.persist.claim_in_turn(PersistJob::Log);
    }
    let done = put_back(server, options);
    rewrite::release(server);
    if done.is_ok() {
        rewrite::follow_soon(server);
    }
    done
}

/// Removes the data and loads the snapshot. After a failure, the data in memory are kept from the disk until
/// they are complete again.
fn put_back(server: &Arc<Server>, options: Options) -> Result<(), String> {
    let persist = &server.persist;
    let was_incomplete = persist.is_incomplete.load(Acquire);
    if options.flush {
        persist.is_incomplete.store(true, Release);
        flush_all(server);
    }
    let done = match load::snapshot_again(server, options.merge) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err("there is no snapshot".into()),
        Err(Ended::Failed(reason)) => Err(reason),
        Err(Ended::Stopped) => Err("the server is shutting down".into()),
    };
    // The append-only file may continue only behind the saved data; otherwise it begins anew with a base of
    // the loaded data.
    let continues = options.save && done.is_ok();
    if !continues && persist.aof.is_on() {
        rewrite::turn_off(server);
    }
    if done.is_ok() {
        persist.record_loaded(&server.core.keyspace);
        persist.is_incomplete.store(was_incomplete && options.save, Release);
    }
    done
}

fn flush_all(server: &Server) {
    let (mut ctx, keyspace) = (server.persist.ctx.lock(), &server.core.keyspace);
    ctx.suppresses_events = true; // a client that waits for a removal waits on, since the key returns
    keyspace.enter(&mut ctx);
    let mut guard = keyspace.hold_all(&mut ctx);
    server.scripts.set_libraries(Libraries::default());
    server.core.record_flush();
    let flushed: Vec<_> = (0..keyspace.databases()).filter_map(|db| guard.flush(db)).collect();
    server.hub.forget_tracked();
    drop(guard);
    keyspace.leave(&mut ctx);
    ctx.suppresses_events = false;
    push_queue::notify_workers(&server.hub);
    server.core.lazy_free.free_flushed(flushed);
}
