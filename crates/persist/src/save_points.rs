//! Save points: a snapshot after a number of changes and a time. The control thread checks them ten times a
//! second.

use std::sync::Arc;
use std::sync::atomic::Ordering::*;

use super::Persist;
use super::jobs::JobState;
use super::{PersistJob, rewrite, snapshot};
use evenkeel_config::{SavePoint, Settings};
use evenkeel_runtime::clock;

/// Delay in seconds before an automatic retry of a failed snapshot.
const RETRY_S: u64 = 5;

/// Failures in a row from which on automatic rewrites come ever more rarely, as in Redis: each leaves another
/// incremental file, and a retry seldom helps.
const FAILURES: u64 = 3;

/// Longest interval between automatic rewrites.
const MINUTES_MAX: u64 = 60;

/// A job that is to begin once no other job is running.
enum Due {
    /// A snapshot that a client has asked for, or that FLUSHALL owes.
    Save,
    SavePoint(SavePoint),
    Rewrite,
    /// The append-only file is to be turned on or off.
    FollowSettings,
}

/// Begins the job that is due, if any.
pub fn look(persist: &Arc<Persist>) {
    let state = persist.state();
    if !state.is_idle() {
        return;
    }
    match due(persist, &state) {
        None => {}
        Some(Due::FollowSettings) => rewrite::follow_soon(persist),
        // If another thread was faster, the job stays due.
        Some(Due::Rewrite) => _ = rewrite::begin(persist),
        Some(Due::Save) => _ = snapshot::begin(persist),
        Some(Due::SavePoint(SavePoint { changes, seconds })) => {
            log::info!("{changes} changes in {seconds} seconds. Saving...");
            let _ = snapshot::begin(persist);
        }
    }
}

/// The job that begins when the running job has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    Nothing,
    /// An automatic job, which is due again if it fails.
    Due,
    /// A job that a client has asked for.
    Asked,
}

pub fn awaited(persist: &Persist) -> Awaited {
    let state = persist.state();
    if state.save_owed || state.save_scheduled || state.rewrite_scheduled || persist.backup.is_pending() {
        return Awaited::Asked;
    }
    let is_done = |job| state.running.is_some_and(|running| running.is(job));
    match due(persist, &state) {
        Some(Due::SavePoint(_)) if !is_done(PersistJob::Snapshot) => Awaited::Due,
        Some(Due::Rewrite) if !is_done(PersistJob::Base) => Awaited::Due,
        Some(Due::FollowSettings) => Awaited::Due,
        _ => Awaited::Nothing,
    }
}

fn due(persist: &Persist, state: &JobState) -> Option<Due> {
    if !persist.has_all_data() || persist.core.stopping.load(Acquire) || persist.ending.is_under_way() {
        return None;
    }
    let settings = persist.core.settings();
    let now_s = clock::unix_ms() / 1000;
    let may_try = state.last_ok || now_s.saturating_sub(state.last_attempt_s) > RETRY_S;
    // An owed snapshot comes first: BGREWRITEAOF after FLUSHALL reports the rewrite as running.
    let saves_first = state.save_owed || state.save_scheduled && !state.rewrite_scheduled;
    if saves_first && may_try {
        return Some(Due::Save);
    }
    let may_rewrite =
        now_s.saturating_sub(state.last_rewrite_attempt_s) >= rewrite_delay_s(state.rewrites_failed);
    if state.rewrite_scheduled || may_rewrite && rewrite_is_due(persist, &settings) {
        return Some(Due::Rewrite);
    }
    // Turning the append-only file off needs no rewrite, and is the way out if none succeeds.
    if settings.appendonly != persist.aof.is_on() && (may_rewrite || !settings.appendonly) {
        return Some(Due::FollowSettings);
    }
    let changes = state.changes_since_save(persist.core.keyspace.total().asked());
    let elapsed_s = now_s.saturating_sub(state.last_save_s);
    let due = settings.save.iter().find(|point| changes >= point.changes && elapsed_s > point.seconds);
    due.filter(|_| may_try).map(|point| Due::SavePoint(*point))
}

/// Seconds without an automatic rewrite after the last rewrite, when `failed` rewrites in a row have failed.
fn rewrite_delay_s(failed: u64) -> u64 {
    match failed {
        0 => 0,
        _ => minutes_limited(failed).map_or(RETRY_S + 1, |minutes| minutes * 60),
    }
}

/// Minutes before the next automatic rewrite, after too many failures: 1, 2, 4 and so on.
pub(super) fn minutes_limited(failed: u64) -> Option<u64> {
    let doublings = failed.checked_sub(FAILURES)?;
    Some((1_u64 << doublings.min(63)).min(MINUTES_MAX))
}

/// Whether the append-only files have grown enough since the last rewrite for another rewrite.
fn rewrite_is_due(persist: &Persist, settings: &Settings) -> bool {
    let (aof, percentage) = (&persist.aof, u64::from(settings.auto_aof_rewrite_percentage));
    let (size, base) = (aof.metrics.size.load(Relaxed), aof.metrics.base_size.load(Relaxed).max(1));
    let growth = (size.saturating_sub(base)).saturating_mul(100) / base;
    aof.is_on() && percentage > 0 && size > settings.auto_aof_rewrite_min_size && growth >= percentage
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Disk;

    #[test]
    fn failing_rewrites_back_off() {
        let delays = [0, 1, 2, 3, 4, 5, 8, 9, 10, u64::MAX].map(rewrite_delay_s);
        assert_eq!(delays, [0, 6, 6, 60, 120, 240, 1_920, 3_600, 3_600, 3_600]);
    }

    /// The append-only file is to be turned on: automatically not before its time, but at once by command.
    #[test]
    fn rewrites_wait_for_their_conditions() {
        let persist = Disk::new(&["--appendonly", "yes"]);
        let rewrites_after = |failed, seconds| {
            let mut state = persist.state.lock();
            let last_s = clock::unix_ms() / 1000 - seconds;
            (state.rewrites, state.rewrites_failed, state.last_rewrite_attempt_s) = (0, failed, last_s);
            drop(state);
            look(&persist);
            persist.wait_until_idle();
            persist.state().rewrites
        };
        assert_eq!(rewrites_after(1, 3), 0);
        assert_eq!(rewrites_after(3, 50), 0);
        assert_eq!(rewrites_after(4, 110), 0);
        assert_eq!(rewrites_after(4, 121), 1);
        persist.schedule_rewrite();
        assert_eq!(rewrites_after(4, 0), 1);
        rewrite::turn_off(&persist);
    }
}
