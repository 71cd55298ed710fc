//! The end of the server: a last snapshot, if there is to be one, and then everybody stops.

use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

use super::{LOADING, rewrite, snapshot};
use crate::clock;
use crate::server::{Pauser, Server};

/// How to end: SHUTDOWN's options, or what the configuration says for a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct How {
    /// Whether to take a snapshot; `None`: if there are save points.
    pub(crate) save: Option<bool>,
    /// Do not wait for replicas.
    pub(crate) now: bool,
    /// End even if the snapshot fails.
    pub(crate) force: bool,
    /// What clusters look at.
    pub(crate) safe: bool,
    pub(crate) failover: bool,
}

/// Whether the end has begun.
pub(crate) fn is_under_way(server: &Server) -> bool {
    server.persist.ending.load(Acquire)
}

/// Ends the server, unless a snapshot that there should be cannot be taken; whether it ends. Writes wait meanwhile, so
/// that the snapshot has all that was replied to.
pub(crate) fn end(server: &Arc<Server>, how: How) -> bool {
    if server.persist.ending.swap(true, AcqRel) {
        return true; // somebody else does it
    }
    let (settings, persist) = (server.settings(), &server.persist);
    server.pause.begin(Pauser::End, false, u64::MAX, clock::unix_ms());
    persist.cancel_all();
    let is_loading = persist.obstacles.any() & LOADING != 0;
    let saves = how.save.unwrap_or(!settings.save.is_empty()) && !is_loading;
    if !how.now && !is_loading {
        let timeout = Duration::from_secs(u64::from(settings.shutdown_timeout));
        server.replication.wait_for_replicas(server, timeout);
    }
    if saves {
        server.log.notice("Saving the final RDB snapshot before exiting.");
        if !snapshot::save(server, true) && !how.force {
            server.log.warning("Error trying to save the DB, can't exit.");
            rewrite::with_all_held(server, |held| server.replication.go_on(held));
            server.pause.end(Pauser::End);
            server.wake_all();
            persist.ending.store(false, Release);
            return false;
        }
    }
    server.stop();
    true
}

/// The same for a signal, on a thread of its own: a second signal is to be heard.
pub(crate) fn begin_on_thread(server: &Arc<Server>, how: How) {
    let on_thread = server.clone();
    let thread = std::thread::Builder::new().name("shutdown".into());
    let spawned = thread.spawn(move || {
        end(&on_thread, how);
    });
    if spawned.is_err() {
        end(server, how);
    }
}
