//! Save points: a snapshot when enough has changed in long enough. Looked at ten times a second by the control thread.

use std::sync::Arc;
use std::sync::atomic::Ordering::*;

use super::jobs::State;
use super::{Job, rewrite, snapshot};
use crate::config::{SavePoint, Settings};
use crate::server::Server;
use evenkeel_runtime::clock;

/// How long after a snapshot that failed the next one may come by itself.
const RETRY_S: u64 = 5;

/// As many rewrites that fail in a row have them come by themselves ever more rarely, as in Redis: each leaves another
/// incremental file, and what keeps failing is seldom cured by trying.
const FAILURES: u64 = 3;

/// The longest between two of them.
const MINUTES_MAX: u64 = 60;

/// What is to begin as soon as nothing else is done.
enum Due {
    /// A snapshot that has been asked for, or that FLUSHALL owes.
    Save,
    SavePoint(SavePoint),
    Rewrite,
    /// The log is to be turned on or off.
    FollowSettings,
}

/// Begins what is due.
pub(crate) fn look(server: &Arc<Server>) {
    let state = server.persist.state();
    if !state.is_idle() {
        return;
    }
    match due(server, &state) {
        None => {}
        Some(Due::FollowSettings) => rewrite::follow_soon(server),
        // If somebody was faster, it stays due.
        Some(Due::Rewrite) => _ = rewrite::begin(server),
        Some(Due::Save) => _ = snapshot::begin(server),
        Some(Due::SavePoint(SavePoint { changes, seconds })) => {
            server.log.notice(format!("{changes} changes in {seconds} seconds. Saving..."));
            let _ = snapshot::begin(server);
        }
    }
}

/// What is to begin when what is under way has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    Nothing,
    /// It comes by itself, and comes again if it fails.
    Due,
    /// Somebody has asked for it.
    Asked,
}

pub(crate) fn awaited(server: &Server) -> Awaited {
    let state = server.persist.state();
    if state.save_owed || state.save_scheduled || state.rewrite_scheduled {
        return Awaited::Asked;
    }
    let is_done = |job| state.running.is_some_and(|running| running.is(job));
    match due(server, &state) {
        Some(Due::SavePoint(_)) if !is_done(Job::Snapshot) => Awaited::Due,
        Some(Due::Rewrite) if !is_done(Job::Base) => Awaited::Due,
        Some(Due::FollowSettings) => Awaited::Due,
        _ => Awaited::Nothing,
    }
}

fn due(server: &Server, state: &State) -> Option<Due> {
    let persist = &server.persist;
    if !persist.has_all_data() || server.stopping.load(Acquire) || persist.ending.is_under_way() {
        return None;
    }
    let settings = server.settings();
    let now_s = clock::unix_ms() / 1000;
    let may_try = state.last_ok || now_s.saturating_sub(state.last_attempt_s) > RETRY_S;
    // What is owed comes first: who asks for a rewrite behind FLUSHALL is told that it is under way.
    let saves_first = state.save_owed || state.save_scheduled && !state.rewrite_scheduled;
    if saves_first && may_try {
        return Some(Due::Save);
    }
    let may_rewrite =
        now_s.saturating_sub(state.last_rewrite_attempt_s) >= rewrite_delay_s(state.rewrites_failed);
    if state.rewrite_scheduled || may_rewrite && rewrite_is_due(server, &settings) {
        return Some(Due::Rewrite);
    }
    // To turn the log off takes no rewrite, and is the way out when none succeeds.
    if settings.appendonly != server.persist.aof.is_on() && (may_rewrite || !settings.appendonly) {
        return Some(Due::FollowSettings);
    }
    let changes = server.keyspace.total().asked().saturating_sub(state.changes_at_save);
    let elapsed_s = now_s.saturating_sub(state.last_save_s);
    let due = settings.save.iter().find(|point| changes >= point.changes && elapsed_s > point.seconds);
    due.filter(|_| may_try).map(|point| Due::SavePoint(*point))
}

/// For how long no rewrite comes by itself after the last one, when so many have failed in a row.
fn rewrite_delay_s(failed: u64) -> u64 {
    match failed {
        0 => 0,
        _ => minutes_limited(failed).map_or(RETRY_S + 1, |minutes| minutes * 60),
    }
}

/// The minutes that the next one waits for, if too many have failed: 1, 2, 4 and so on.
pub(super) fn minutes_limited(failed: u64) -> Option<u64> {
    let doublings = failed.checked_sub(FAILURES)?;
    Some((1_u64 << doublings.min(63)).min(MINUTES_MAX))
}

/// Whether the append-only files have grown so much since the last rewrite that another one is worth it.
fn rewrite_is_due(server: &Server, settings: &Settings) -> bool {
    let (aof, percentage) = (&server.persist.aof, u64::from(settings.auto_aof_rewrite_percentage));
    let (size, base) = (aof.figures.size.load(Relaxed), aof.figures.base_size.load(Relaxed).max(1));
    let growth = (size.saturating_sub(base)).saturating_mul(100) / base;
    aof.is_on() && percentage > 0 && size > settings.auto_aof_rewrite_min_size && growth >= percentage
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::live::Live;

    #[test]
    fn rewrites_that_keep_failing_come_ever_more_rarely() {
        let delays = [0, 1, 2, 3, 4, 5, 8, 9, 10, u64::MAX].map(rewrite_delay_s);
        assert_eq!(delays, [0, 6, 6, 60, 120, 240, 1_920, 3_600, 3_600, 3_600]);
    }

    /// The log is to be turned on, which it is not by itself before its time, but by who asks.
    #[test]
    fn a_rewrite_waits_for_its_time() {
        let folder = crate::testing::folder("points");
        let dir = folder.to_str().expect("a plain name");
        let live = Live::start(1, &["--dir", dir, "--appendonly", "yes"]);
        let (server, persist) = (&live.server, &live.server.persist);
        let rewrites_after = |failed, seconds| {
            let mut state = persist.state.lock();
            let last_s = clock::unix_ms() / 1000 - seconds;
            (state.rewrites, state.rewrites_failed, state.last_rewrite_attempt_s) = (0, failed, last_s);
            drop(state);
            look(server);
            persist.wait_until_idle();
            persist.state().rewrites
        };
        assert_eq!(rewrites_after(1, 3), 0);
        assert_eq!(rewrites_after(3, 50), 0);
        assert_eq!(rewrites_after(4, 110), 0);
        assert_eq!(rewrites_after(4, 121), 1);
        persist.schedule_rewrite();
        assert_eq!(rewrites_after(4, 0), 1);
        rewrite::turn_off(server);
        live.stop();
        std::fs::remove_dir_all(&folder).expect("it can be removed");
    }
}
