//! FAILOVER: the role of the primary goes to a replica, and nothing is lost that was acknowledged.
//!
//! ```text
//!                     a replica has all, or FORCE and no more time
//! primary ──> Waiting ───────────────────────────────────────────> Asking ──> replica of the new primary
//!    ^        writes are paused                  a replica, which says PSYNC .. FAILOVER to the one chosen
//!    ├────────────┘ ABORT, no more time                              │
//!    └───────────────────────────────────────────────────────────────┘ ABORT, it refuses: under a new name
//! ```
//!
//! An answer may be lost on its way, and then nobody knows whether the other one has taken over. So it is asked again, for as
//! long as it takes; and if it says that it is a primary, it is followed. Only a refusal of the first request leads back.
//!
//! It begins behind the closed gate, so whatever was admitted before is in the log, and whatever is admitted afterwards
//! waits if it writes; expired keys are hidden as on a replica. The stream comes to rest: it gets what is still in the
//! log and neither pings nor, but for one, questions. The link's thread looks every few milliseconds whether a replica has
//! acknowledged all of it, and looks once more behind the gate, in which the server then follows that one. So when
//! writers go on, to be told READONLY, all that they were told OK for is there.
//!
//! At no moment do two servers take writes: this one is a replica before it asks the other to be the primary.

use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use evenkeel_store::SlotGuard;
use parking_lot::Mutex;

use super::link::{self, Target};
use crate::server::{Pauser, Server};
use evenkeel_runtime::clock;

/// Behind the end of a failover's time, the link's thread has had its turn.
const LATE: Duration = Duration::from_millis(500);

/// How often it is looked whether a replica has all.
pub(super) const LOOK: Duration = Duration::from_millis(2);

/// What FAILOVER asks for.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// To whom; `None`: to the first that has all.
    pub(crate) target: Option<Target>,
    pub(crate) until: Option<Instant>,
    /// When the time is up, it is done all the same.
    pub(crate) force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Asking,
    /// It has been asked, and may have taken over.
    Asked,
}

impl Phase {
    /// As INFO names it.
    fn name(self) -> &'static str {
        match self {
            Phase::Waiting => "waiting-for-sync",
            Phase::Asking | Phase::Asked => "failover-in-progress",
        }
    }
}

/// The failover that is under way, if any. It changes behind the closed gate, except that it ends by success.
#[derive(Default)]
pub(crate) struct Failover(Mutex<Option<(Phase, Plan)>>);

impl Failover {
    pub(crate) fn is_under_way(&self) -> bool {
        self.0.lock().is_some()
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(*self.0.lock(), Some((Phase::Waiting, _)))
    }

    /// Whether the primary that is followed is asked to become one.
    pub(super) fn is_asking(&self) -> bool {
        matches!(*self.0.lock(), Some((Phase::Asking | Phase::Asked, _)))
    }

    /// It is about to be asked; whether it has been before.
    pub(super) fn note_asked(&self) -> bool {
        let mut state = self.0.lock();
        let Some((phase @ (Phase::Asking | Phase::Asked), _)) = &mut *state else { return false };
        std::mem::replace(phase, Phase::Asked) == Phase::Asked
    }

    /// As INFO names it.
    pub(crate) fn name(&self) -> &'static str {
        self.0.lock().as_ref().map_or("no-failover", |(phase, _)| phase.name())
    }
}

/// Begins. Everything is held, and this server is a primary that is not failing over.
pub(crate) fn begin(server: &Arc<Server>, guard: &mut SlotGuard<'_>, plan: Plan) {
    assert!(guard.holds_all(), "writes stop at one moment");
    let state = &server.replication;
    assert!(!state.is_replica(), "only a primary has something to give");
    let target = plan.target.as_ref().map_or("any replica".into(), name);
    server.log.notice(format!("FAILOVER requested to {target}."));
    server.pause.begin(Pauser::Failover, false, u64::MAX, clock::unix_ms());
    guard.hide_expired(true);
    state.stream().is_at_rest = true;
    *state.failover.0.lock() = Some((Phase::Waiting, plan));
    // Else replicas would say within a second what they have.
    state.ask_for_acks(server.keyspace.journal.last());
    link::begin(server);
}

/// Gives it up, for this reason, if there is one; whether there was. Everything is held.
pub(crate) fn abort(server: &Arc<Server>, guard: &mut SlotGuard<'_>, reason: &str) -> bool {
    let Some((phase, plan)) = server.replication.failover.0.lock().clone() else { return false };
    let target = plan.target.as_ref().map_or(String::new(), |target| format!(" to {}", name(target)));
    server.log.notice(format!("Aborting failover{target} while {}: {reason}", phase.name()));
    match phase {
        Phase::Waiting => guard.hide_expired(false),
        Phase::Asking | Phase::Asked => {
            link::change(server, guard, None);
            link::remember(server, None);
        }
    }
    end(server);
    true
}

/// The link's thread: the server that was asked to become a primary does not.
pub(super) fn refused(server: &Arc<Server>, generation: u64, reason: &str) {
    let state = &server.replication;
    state.with_all_held(server, |guard| {
        if state.link.generation() == generation && state.failover.is_asking() {
            abort(server, guard, reason);
        }
    });
}

/// The link's thread: the other one is the primary from now on.
pub(super) fn succeeded(server: &Server, generation: u64) {
    let state = &server.replication;
    // Of a failover that was given up, and of the next one, the generation is another.
    if state.failover.is_asking() && state.link.generation() == generation {
        end(server);
    }
}

fn end(server: &Server) {
    let state = &server.replication;
    *state.failover.0.lock() = None;
    state.stream().is_at_rest = false;
    server.pause.end(Pauser::Failover);
    server.wake_all();
}

/// The link's thread, again and again while it waits: goes on if a replica has all, or the time is up.
pub(super) fn look(server: &Arc<Server>) {
    let Some((Phase::Waiting, plan)) = server.replication.failover.0.lock().clone() else { return };
    let is_time_up = plan.until.is_some_and(|until| Instant::now() >= until);
    if !is_time_up && who_has_all(server, &plan).is_none() {
        return;
    }
    let has_changed = server.replication.with_all_held(server, |guard| {
        // Somebody may have given it up meanwhile, or may want another one.
        let Some((Phase::Waiting, plan)) = server.replication.failover.0.lock().clone() else { return false };
        let is_time_up = plan.until.is_some_and(|until| Instant::now() >= until);
        (is_time_up || who_has_all(server, &plan).is_some()) && go_on(server, guard, plan, is_time_up)
    });
    if has_changed {
        link::end_waits(server);
    }
}

/// For who looks now and then, since the link's thread may be kept by a disk: gives up one whose time has been up for long.
pub(crate) fn give_up_late(server: &Arc<Server>) {
    let state = &server.replication;
    let is_late = || {
        let Some((Phase::Waiting, plan)) = &*state.failover.0.lock() else { return false };
        let is_forced = plan.force && plan.target.is_some();
        !is_forced && plan.until.is_some_and(|until| Instant::now() > until + LATE)
    };
    if is_late() {
        state.with_all_held(server, |guard| {
            if is_late() {
                abort(server, guard, "Replica never caught up before timeout");
            }
        });
    }
}

/// Follows who has all; whether there is one. Everything is held.
fn go_on(server: &Arc<Server>, guard: &mut SlotGuard<'_>, plan: Plan, is_time_up: bool) -> bool {
    let target = match (who_has_all(server, &plan), &plan.target) {
        (Some(target), _) => {
            server.log.notice(format!("Failover target {} is synced, failing over.", name(&target)));
            target
        }
        (None, Some(target)) if is_time_up && plan.force => {
            server.log.notice(format!("Failover to {} time out exceeded, failing over.", name(target)));
            target.clone()
        }
        (None, _) => {
            if is_time_up {
                abort(server, guard, "Replica never caught up before timeout");
            }
            return false;
        }
    };
    let plan = Plan { target: Some(target.clone()), ..plan };
    *server.replication.failover.0.lock() = Some((Phase::Asking, plan));
    link::change(server, guard, Some(target.clone()));
    link::remember(server, Some(target));
    true
}

/// A replica that may be the target, and has all of the stream, which has all of the log and the question what replicas have: that is
/// the last thing in it.
fn who_has_all(server: &Server, plan: &Plan) -> Option<Target> {
    let state = &server.replication;
    let stream = state.stream();
    if state.wants_acks.load(Acquire) {
        return None; // the question is put under the stream's lock
    }
    let (record, offset) = (server.keyspace.journal.last(), stream.offset());
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
