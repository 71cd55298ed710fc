//! Save points: a snapshot when enough has changed in long enough. Looked at ten times a second by the control thread.

use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

use super::snapshot;
use crate::clock;
use crate::server::Server;

/// How long after a snapshot that failed the next one may come by itself.
const RETRY_S: u64 = 5;

/// Begins what is due.
pub(crate) fn look(server: &Arc<Server>) {
    if server.persist.obstacles.any() & super::LOADING != 0 || server.stopping.load(Acquire) {
        return;
    }
    let (state, settings) = (server.persist.state(), server.settings());
    if state.running.is_some() {
        return;
    }
    let now_s = clock::unix_ms() / 1000;
    let may_try = state.last_ok || now_s.saturating_sub(state.last_attempt_s) > RETRY_S;
    if state.save_scheduled && may_try {
        let _ = snapshot::begin(server); // if somebody was faster, it stays due
        return;
    }
    let changes = server.keyspace.total().dirty.saturating_sub(state.dirty_at_save);
    let elapsed_s = now_s.saturating_sub(state.last_save_s);
    let due = settings.save.iter().find(|point| changes >= point.changes && elapsed_s > point.seconds);
    if let Some(point) = due.filter(|_| may_try) {
        server.log.notice(format!("{} changes in {} seconds. Saving...", point.changes, point.seconds));
        let _ = snapshot::begin(server);
    }
}
