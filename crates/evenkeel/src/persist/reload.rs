//! DEBUG RELOAD and LOADAOF: tests of what is written and read take a running server through the disk and back.

use std::sync::Arc;
use std::sync::atomic::Ordering::*;

use super::load::{self, Ended};
use super::replay::{self, Replayed};
use super::{Job, rewrite, snapshot};
use crate::pubsub::push_queue;
use crate::scripting::functions::Libraries;
use crate::server::{Pauser, Server};
use evenkeel_runtime::clock;

/// What DEBUG RELOAD does around the load.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    /// Everything is saved first.
    pub(crate) save: bool,
    /// The databases are emptied first.
    pub(crate) flush: bool,
    /// What is there gives way to what the file has; without this, a key or a library that is there is an error.
    pub(crate) merge: bool,
}

/// Loads the snapshot again. All commands wait meanwhile.
pub(crate) fn from_snapshot(server: &Arc<Server>, options: Options) -> Result<(), String> {
    while_all_wait(server, || reload(server, options))
}

/// Empties the databases and loads the append-only files again, once all that was logged is in them. All commands wait
/// meanwhile.
///
/// If they cannot be loaded, what is in memory is not what is on disk, and nothing may be written there: the server ends.
pub(crate) fn from_log(server: &Arc<Server>) -> Result<(), String> {
    while_all_wait(server, || {
        replay_log(server).inspect_err(|reason| {
            server.log.warning(format!("{reason}. Exiting."));
            server.persist.cancel_all();
            server.stop();
        })
    })
}

fn while_all_wait(server: &Arc<Server>, load: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    if server.persist.is_loading() {
        return Err("the data is already being loaded".into());
    }
    // Of two, one loads what the other has left: with half of that, it would save half.
    let _turn = server.persist.reload.lock();
    server.pause.begin(Pauser::Reload, true, u64::MAX, clock::unix_ms());
    let done = load();
    server.pause.end(Pauser::Reload);
    server.wake_all();
    done
}

/// What is run again must not be logged again, so the log is turned off meanwhile. Nobody else may turn it on or off
/// meanwhile.
fn replay_log(server: &Arc<Server>) -> Result<(), String> {
    let persist = &server.persist;
    persist.claim_in_turn(Job::Log);
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
        persist.note_loaded(&server.keyspace);
        persist.is_incomplete.store(false, Release);
        // It may have been on only because nobody has had the time to turn it off.
        if was_on && server.settings().appendonly { rewrite::go_on(server, directory, found) } else { Ok(()) }
    });
    rewrite::release(server);
    done
}

/// From the save to the end of the load, nobody else writes to disk: what is in memory is half of the data meanwhile.
fn reload(server: &Arc<Server>, options: Options) -> Result<(), String> {
    if options.save {
        if let Err(reason) = snapshot::save_before(server, Job::Log) {
            rewrite::release(server);
            return Err(reason);
        }
    } else {
        server.persist.claim_in_turn(Job::Log);
    }
    let done = put_back(server, options);
    rewrite::release(server);
    if done.is_ok() {
        rewrite::follow_soon(server);
    }
    done
}

/// Takes the data out and those of the snapshot in. If that fails, what is in memory is kept from the disk until there are
/// whole data again.
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
    // The log goes on behind the data that were saved, and behind no others: it begins anew with a base of these.
    let goes_on = options.save && done.is_ok();
    if !goes_on && persist.aof.is_on() {
        rewrite::turn_off(server);
    }
    if done.is_ok() {
        persist.note_loaded(&server.keyspace);
        persist.is_incomplete.store(was_incomplete && options.save, Release);
    }
    done
}

fn flush_all(server: &Server) {
    let (mut ctx, keyspace) = (server.persist.ctx.lock(), &server.keyspace);
    ctx.is_unheard = true; // who waits for a key to go waits on: it comes back
    keyspace.enter(&mut ctx);
    let mut guard = keyspace.hold_all(&mut ctx);
    server.scripts.set_libraries(Libraries::default());
    server.note_flush();
    let flushed: Vec<_> = (0..keyspace.databases()).filter_map(|db| guard.flush(db)).collect();
    server.forget_tracked();
    drop(guard);
    keyspace.leave(&mut ctx);
    ctx.is_unheard = false;
    push_queue::tell(server);
    server.lazy_free.free_flushed(flushed);
}
