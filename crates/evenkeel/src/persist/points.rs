//! Save points: a snapshot when enough has changed in long enough. Looked at ten times a second by the control thread.

use std::sync::Arc;
use std::sync::atomic::Ordering::*;

use super::{rewrite, snapshot};
use crate::clock;
use crate::config::Settings;
use crate::server::Server;

/// How long after a snapshot that failed the next one may come by itself.
const RETRY_S: u64 = 5;

/// Begins what is due.
pub(crate) fn look(server: &Arc<Server>) {
    let persist = &server.persist;
    let is_half_loaded = persist.obstacles.any() & super::LOADING != 0 || persist.is_incomplete.load(Acquire);
    if is_half_loaded || server.stopping.load(Acquire) {
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
    let may_rewrite =
        state.rewrites_failed == 0 || now_s.saturating_sub(state.last_rewrite_attempt_s) > RETRY_S;
    if state.rewrite_scheduled || may_rewrite && rewrite_is_due(server, &settings) {
        rewrite::begin(server);
        return;
    }
    if settings.appendonly != server.persist.aof.is_on() && may_rewrite {
        return rewrite::follow_soon(server);
    }
    let changes = server.keyspace.total().dirty.saturating_sub(state.dirty_at_save);
    let elapsed_s = now_s.saturating_sub(state.last_save_s);
    let due = settings.save.iter().find(|point| changes >= point.changes && elapsed_s > point.seconds);
    if let Some(point) = due.filter(|_| may_try) {
        server.log.notice(format!("{} changes in {} seconds. Saving...", point.changes, point.seconds));
        let _ = snapshot::begin(server);
    }
}

/// Whether the append-only files have grown so much since the last rewrite that another one is worth it.
fn rewrite_is_due(server: &Server, settings: &Settings) -> bool {
    let (aof, percentage) = (&server.persist.aof, u64::from(settings.auto_aof_rewrite_percentage));
    let (size, base) = (aof.figures.size.load(Relaxed), aof.figures.base_size.load(Relaxed).max(1));
    let growth = (size.saturating_sub(base)).saturating_mul(100) / base;
    aof.is_on() && percentage > 0 && size > settings.auto_aof_rewrite_min_size && growth >= percentage
}
