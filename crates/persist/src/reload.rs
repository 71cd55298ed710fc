//! DEBUG RELOAD and LOADAOF: tests of the file formats take the data of a running server to disk and back.

use std::sync::Arc;
use std::sync::atomic::Ordering::*;

use super::Persist;
use super::load::{self, Ended};
use super::replay::{self, Replayed};
use super::{PersistJob, backup, rewrite, snapshot};
use evenkeel_client::pubsub::push_queue;
use evenkeel_core::pause::Pauser;
use evenkeel_runtime::clock;
use evenkeel_scripting::functions::Libraries;

/// The options of DEBUG RELOAD.
#[derive(Clone, Copy)]
pub struct Options {
    /// Take a snapshot first.
    pub save: bool,
    /// Empty the databases first.
    pub flush: bool,
    /// Replace present keys and libraries by those of the file; otherwise they are errors.
    pub merge: bool,
}

/// Loads the snapshot again. All commands wait meanwhile.
pub fn from_snapshot(persist: &Arc<Persist>, options: Options) -> Result<(), String> {
    while_all_wait(persist, || reload(persist, options))
}

/// Empties the databases and loads the append-only files again, once all logged commands are in them. All
/// commands wait meanwhile.
///
/// If they cannot be loaded, memory and disk differ, and nothing may be written: the server ends.
pub fn from_log(persist: &Arc<Persist>) -> Result<(), String> {
    while_all_wait(persist, || {
        replay_log(persist).inspect_err(|reason| {
            log::warn!("{reason}. Exiting.");
            persist.cancel_all();
            persist.core.stop();
        })
    })
}

fn while_all_wait(persist: &Arc<Persist>, load: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    if persist.is_loading() {
        return Err("the data is already being loaded".into());
    }
    // A second reload would load, and perhaps save, the partial data of the first.
    let _turn = persist.reload.lock();
    persist.core.pause.begin(Pauser::Reload, true, u64::MAX, clock::unix_ms());
    let done = load();
    persist.core.pause.end(Pauser::Reload);
    persist.core.workers.wake_all();
    done
}

/// Replays the append-only file. It is turned off meanwhile, since replayed commands must not be logged
/// again; the claimed job keeps other threads from turning it on or off.
fn replay_log(persist: &Arc<Persist>) -> Result<(), String> {
    persist.claim_in_turn(PersistJob::Log);
    let was_on = persist.aof.is_on();
    if was_on {
        rewrite::turn_off(persist);
    }
    backup::invalidate(persist);
    persist.is_incomplete.store(true, Release);
    flush_all(persist);
    let replayed = replay::directory(persist).map_err(|ended| match ended {
        Ended::Failed(reason) => reason,
        Ended::Stopped => "the server is shutting down".into(),
    });
    let done = replayed.and_then(|Replayed { directory, found, .. }| {
        persist.record_loaded(&persist.core.keyspace);
        persist.is_incomplete.store(false, Release);
        // It may have been on only because no thread had turned it off yet.
        if was_on && persist.core.settings().appendonly {
            rewrite::start_logging(persist, directory, found)
        } else {
            Ok(())
        }
    });
    rewrite::release(persist);
    done
}

/// Saves and loads under a single claim, so no other thread writes to disk: meanwhile the memory has a part
/// of the data.
fn reload(persist: &Arc<Persist>, options: Options) -> Result<(), String> {
    if options.save {
        if let Err(reason) = snapshot::save_before(persist, PersistJob::Log) {
            rewrite::release(persist);
            return Err(reason);
        }
    } else {
        persist.claim_in_turn(PersistJob::Log);
    }
    let done = put_back(persist, options);
    rewrite::release(persist);
    if done.is_ok() {
        rewrite::follow_soon(persist);
    }
    done
}

/// Removes the data and loads the snapshot. After a failure, the data in memory are kept from the disk until
/// they are complete again.
fn put_back(persist: &Arc<Persist>, options: Options) -> Result<(), String> {
    let was_incomplete = persist.is_incomplete.load(Acquire);
    if options.flush {
        load::check_header(persist)?;
        persist.is_incomplete.store(true, Release);
        flush_all(persist);
    }
    let done = match load::snapshot_again(persist, options.merge) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err("there is no snapshot".into()),
        Err(Ended::Failed(reason)) => Err(reason),
        Err(Ended::Stopped) => Err("the server is shutting down".into()),
    };
    // The append-only file may continue only behind the saved data; otherwise it begins anew with a base of
    // the loaded data.
    let continues = options.save && done.is_ok();
    if !continues && persist.aof.is_on() {
        rewrite::turn_off(persist);
    }
    if !continues {
        backup::invalidate(persist);
    }
    if done.is_ok() {
        persist.record_loaded(&persist.core.keyspace);
        persist.is_incomplete.store(was_incomplete && options.save, Release);
    }
    done
}

fn flush_all(persist: &Persist) {
    let (mut ctx, keyspace) = (persist.ctx.lock(), &persist.core.keyspace);
    ctx.suppresses_events = true; // a client that waits for a removal waits on, since the key returns
    keyspace.enter(&mut ctx);
    let mut guard = keyspace.hold_all(&mut ctx);
    persist.scripts.set_libraries(Libraries::default());
    persist.core.record_flush();
    let flushed: Vec<_> = (0..keyspace.databases()).filter_map(|db| guard.flush(db)).collect();
    persist.hub.forget_tracked();
    drop(guard);
    keyspace.leave(&mut ctx);
    ctx.suppresses_events = false;
    push_queue::notify_workers(&persist.hub);
    persist.core.lazy_free.free_flushed(flushed);
}
