//! DEBUG RELOAD: tests of what is written and read take a running server through the disk and back.

use std::sync::Arc;

use super::load::{self, Ended};
use super::snapshot;
use crate::clock;
use crate::server::Server;

/// Saves everything, empties the databases, and loads it again. All commands wait meanwhile.
pub(crate) fn from_snapshot(server: &Arc<Server>, save: bool, flush: bool) -> Result<(), String> {
    server.pause.begin(true, u64::MAX, clock::unix_ms());
    let done = reload(server, save, flush);
    server.pause.end();
    server.wake_all();
    done
}

fn reload(server: &Arc<Server>, save: bool, flush: bool) -> Result<(), String> {
    if save && !snapshot::save(server) {
        return Err("it could not be saved".into());
    }
    if flush {
        flush_all(server);
    }
    match load::snapshot(server) {
        Ok(Some(_)) => {
            server.persist.note_loaded(server.keyspace.total().dirty);
            Ok(())
        }
        Ok(None) => Err("there is no snapshot".into()),
        Err(Ended::Failed(reason)) => Err(reason),
        Err(Ended::Stopped) => Err("the server ends".into()),
    }
}

fn flush_all(server: &Server) {
    let (mut seat, keyspace) = (server.persist.seat.lock(), &server.keyspace);
    keyspace.enter(&mut seat);
    let mut held = keyspace.hold_all(&mut seat);
    let flushed: Vec<_> = (0..keyspace.databases()).filter_map(|db| held.flush(db)).collect();
    drop(held);
    keyspace.leave(&mut seat);
    server.rubbish.free_flushed(flushed);
}
