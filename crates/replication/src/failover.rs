//! FAILOVER: the role of the primary goes to a replica, without the loss of any acknowledged write.
//!
//! ```text
//!                     a replica has all, or FORCE and no more time
//! primary ──> Waiting ───────────────────────────────────────────> Asking ──> replica of the new primary
//!    ^        writes are paused                  a replica, which sends PSYNC .. FAILOVER to its target
//!    ├────────────┘ ABORT, no more time                              │
//!    └───────────────────────────────────────────────────────────────┘ ABORT, it refuses: under a new name
//! ```
//!
//! An answer may be lost, and then it is unknown whether the target has taken over. So the request is
//! repeated as long as necessary, and a target that says that it is a primary is followed. Only a refusal of
//! the first request leads back.
//!
//! A failover begins while the gate is closed. So commands admitted before are in the journal, and writes
//! admitted afterwards wait. Expired keys are hidden as on a replica. The stream comes to rest: it gets the
//! remaining records of the journal, one GETACK, and no PING. The link's thread checks every few milliseconds
//! whether a replica has acknowledged all of the stream. It then closes the gate, checks once more, and makes
//! this server a replica of that replica. So when the paused writers go on and get READONLY, the target has
//! every write that was acknowledged to them.
//!
//! At no moment do two servers take writes: this server becomes a replica before it asks the target to become
//! the primary.

use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use evenkeel_store::SlotGuard;
use parking_lot::Mutex;

use super::Replication;
use super::link::{self, Target};
use evenkeel_client::maintenance::{Endpoint, Notice, announce};
use evenkeel_core::pause::Pauser;
use evenkeel_persist::EndStage;
use evenkeel_runtime::clock;

/// After the end of a failover's time, the delay that leaves the link's thread its turn.
const LATE: Duration = Duration::from_millis(500);

/// Seconds that are announced for a failover without a timeout.
const USUAL_SECONDS: u64 = 10;

/// Poll interval while no replica has everything.
pub(super) const FAILOVER_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The options of FAILOVER.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The new primary; `None`: the first replica that has everything.
    pub target: Option<Target>,
    pub until: Option<Instant>,
    /// Whether to continue after the timeout.
    pub force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Asking,
    /// The target has been asked, and may have taken over.
    Asked,
}

impl Phase {
    /// The name in INFO.
    fn name(self) -> &'static str {
        match self {
            Phase::Waiting => "waiting-for-sync",
            Phase::Asking | Phase::Asked => "failover-in-progress",
        }
    }
}

/// The present failover, if any. It changes while the gate is closed, except that it may succeed at any time.
#[derive(Default)]
pub struct Failover(Mutex<Option<(Phase, Plan)>>);

impl Failover {
    pub fn is_under_way(&self) -> bool {
        self.0.lock().is_some()
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(*self.0.lock(), Some((Phase::Waiting, _)))
    }

    /// Whether the target is asked to become a primary.
    pub(super) fn is_asking(&self) -> bool {
        matches!(*self.0.lock(), Some((Phase::Asking | Phase::Asked, _)))
    }

    /// Records that the target is about to be asked. Returns whether it has been asked before.
    pub(super) fn mark_asked(&self) -> bool {
        let mut state = self.0.lock();
        let Some((phase @ (Phase::Asking | Phase::Asked), _)) = &mut *state else { return false };
        std::mem::replace(phase, Phase::Asked) == Phase::Asked
    }

    /// The name in INFO.
    pub fn name(&self) -> &'static str {
        self.0.lock().as_ref().map_or("no-failover", |(phase, _)| phase.name())
    }
}

/// Begins a failover. The caller holds all locks, and this server is a primary without a failover.
pub fn begin(replication: &Arc<Replication>, guard: &mut SlotGuard<'_>, plan: Plan) {
    assert!(guard.holds_all(), "writes stop at one moment");
    let state = &replication;
    assert!(!state.is_replica(), "only a primary has something to give");
    let target = plan.target.as_ref().map_or("any replica".into(), name);
    log::info!("FAILOVER requested to {target}.");
    replication.core.pause.begin(Pauser::Failover, false, u64::MAX, clock::unix_ms());
    let seconds = plan.until.map_or(USUAL_SECONDS, |until| {
        until.saturating_duration_since(Instant::now()).as_secs().saturating_add(1)
    });
    announce(&state.hub, &Notice::FailingOver { seconds });
    guard.hide_expired(true);
    state.stream().is_at_rest = true;
    *state.failover.0.lock() = Some((Phase::Waiting, plan));
    // Without this, replicas would acknowledge within a second.
    state.ask_for_acks(replication.core.keyspace.journal.last());
    link::begin(replication);
}

/// Aborts the failover, if any, for this reason. Returns whether there was a failover. The caller holds all
/// locks.
pub fn abort(replication: &Arc<Replication>, guard: &mut SlotGuard<'_>, reason: &str) -> bool {
    let Some((phase, plan)) = replication.failover.0.lock().clone() else { return false };
    let target = plan.target.as_ref().map_or(String::new(), |target| format!(" to {}", name(target)));
    log::info!("Aborting failover{target} while {}: {reason}", phase.name());
    match phase {
        Phase::Waiting => guard.hide_expired(false),
        Phase::Asking | Phase::Asked => {
            link::change(replication, guard, None);
            link::remember(replication, None);
        }
    }
    announce(&replication.hub, &Notice::FailedOver);
    end(replication);
    true
}

/// Called by the link's thread after the target has refused to become a primary.
pub(super) fn refused(replication: &Arc<Replication>, generation: u64, reason: &str) {
    let state = &replication;
    state.with_all_held(|guard| {
        if state.link.generation() == generation && state.failover.is_asking() {
            abort(replication, guard, reason);
        }
    });
}

/// Called by the link's thread when the target has become the primary.
///
/// Only now do the waits of clients end: after an abort this server is the primary as before, and they wait
/// on.
pub(super) fn succeeded(replication: &Replication, generation: u64) {
    let state = &replication;
    // A later failover, after an aborted attempt, has another generation.
    if state.failover.is_asking() && state.link.generation() == generation {
        // Before writers go on: they find the message, and not only that they may not write here.
        if let Some(target) = state.link.target() {
            announce(&state.hub, &Notice::Moving(endpoint(replication, target)));
        }
        announce(&state.hub, &Notice::FailedOver);
        end(replication);
        link::end_waits(replication);
    }
}

/// Returns a replica as clients reach it. A replica announces the port to which its primary may connect.
pub(super) fn endpoint(replication: &Replication, replica: Target) -> Endpoint {
    let is_tls = replication.core.settings().tls_replication;
    Endpoint { host: replica.host, port: replica.port, is_tls }
}

/// Tells the clients that have asked (CLIENT MAINT_NOTIFICATIONS) of the end of this server, if it is a
/// primary with a replica. No replica becomes a primary by itself: a client that moves to one may read, and
/// may write once the operator, or a supervisor, has chosen it.
pub fn announce_end(replication: &Replication, stage: EndStage) {
    let mut replicas = replication.replicas.list();
    replicas.retain(|replica| replica.is_online());
    let first = replicas.into_iter().max_by_key(|replica| replica.acked());
    let Some(first) = first.filter(|_| !replication.is_replica()) else { return };
    let notice = match stage {
        EndStage::Begins { seconds } => Notice::FailingOver { seconds },
        EndStage::Certain => Notice::Moving(endpoint(replication, first.address())),
        EndStage::Stays => Notice::FailedOver,
    };
    announce(&replication.hub, &notice);
}

fn end(replication: &Replication) {
    let state = &replication;
    *state.failover.0.lock() = None;
    state.stream().is_at_rest = false;
    replication.core.pause.end(Pauser::Failover);
    replication.core.workers.wake_all();
}

/// Called repeatedly by the link's thread while it waits: continues if a replica has everything, or the time
/// is up.
pub(super) fn look(replication: &Arc<Replication>) {
    let Some((Phase::Waiting, plan)) = replication.failover.0.lock().clone() else { return };
    let is_time_up = plan.until.is_some_and(|until| Instant::now() >= until);
    if !is_time_up && who_has_all(replication, &plan).is_none() {
        return;
    }
    replication.with_all_held(|guard| {
        // It may have been aborted meanwhile, or another may have begun.
        let Some((Phase::Waiting, plan)) = replication.failover.0.lock().clone() else { return };
        let is_time_up = plan.until.is_some_and(|until| Instant::now() >= until);
        if is_time_up || who_has_all(replication, &plan).is_some() {
            hand_over(replication, guard, plan, is_time_up);
        }
    });
}

/// Aborts a failover whose time has been up for long. Called periodically by another thread, since the link's
/// thread may be blocked by a disk.
pub fn abort_late(replication: &Arc<Replication>) {
    let state = &replication;
    let is_late = || {
        let Some((Phase::Waiting, plan)) = &*state.failover.0.lock() else { return false };
        let is_forced = plan.force && plan.target.is_some();
        !is_forced && plan.until.is_some_and(|until| Instant::now() > until + LATE)
    };
    if is_late() {
        state.with_all_held(|guard| {
            if is_late() {
                abort(replication, guard, "Replica never caught up before timeout");
            }
        });
    }
}

/// Follows the replica that has everything, if any. The caller holds all locks.
fn hand_over(replication: &Arc<Replication>, guard: &mut SlotGuard<'_>, plan: Plan, is_time_up: bool) {
    let target = match (who_has_all(replication, &plan), &plan.target) {
        (Some(target), _) => {
            log::info!("Failover target {} is synced, failing over.", name(&target));
            target
        }
        (None, Some(target)) if is_time_up && plan.force => {
            log::info!("Failover to {} time out exceeded, failing over.", name(target));
            target.clone()
        }
        (None, _) => {
            if is_time_up {
                abort(replication, guard, "Replica never caught up before timeout");
            }
            return;
        }
    };
    let plan = Plan { target: Some(target.clone()), ..plan };
    *replication.failover.0.lock() = Some((Phase::Asking, plan));
    link::change(replication, guard, Some(target.clone()));
    link::remember(replication, Some(target));
}

/// A permitted target that has all of the stream, which itself has all records of the journal and ends with a
/// GETACK.
fn who_has_all(replication: &Replication, plan: &Plan) -> Option<Target> {
    let state = &replication;
    let stream = state.stream();
    if state.wants_acks.load(Acquire) {
        return None; // GETACK is appended under the stream's lock
    }
    let (record, offset) = (replication.core.keyspace.journal.last(), stream.offset());
    drop(stream);
    let replicas = state.replicas.list();
    let has_all = |replica: &super::replicas::Replica| {
        replica.is_online() && replica.acked_record() >= record && replica.acked() == offset
    };
    let mut wanted = replicas.iter().filter(|replica| plan.target.as_ref().is_none_or(|one| replica.is(one)));
    let found = wanted.find(|replica| has_all(replica))?;
    Some(plan.target.clone().unwrap_or_else(|| found.address()))
}

fn name(target: &Target) -> String {
    format!("{}:{}", target.host, target.port)
}
