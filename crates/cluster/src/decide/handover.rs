//! Planned changes of the primary, and the end of the process.
//!
//! The primary stops writes, waits until the target has all of them, and makes the target the primary by one
//! transaction. Until the fate of that transaction is known, the old primary serves nothing. If the target is
//! too slow, the old primary goes on.

use super::{Action, Decider};
use crate::id::NodeId;
use crate::map::{FailoverMode, Heir, Shard};

/// The longest time for a fail-over that an operator asked for, in pauses of writes. A replica that is not in
/// sync has as long to join the in-sync set.
const WISH_PAUSES: u64 = 5;

/// The state of a planned change.
#[derive(Debug, Default)]
pub(super) struct Handover {
    active: Option<Active>,
    /// The operator's wish at this node, and its time.
    wish: Option<(FailoverMode, u64)>,
    /// The map has had the wish.
    is_heir: bool,
    /// The time of the request to end the process.
    shutdown: Option<u64>,
    /// No further attempt before this time.
    not_before: u64,
    /// The heir that is not in sync yet, and the time at which the primary began to wait for it.
    awaited: Option<(NodeId, u64)>,
    has_ended: bool,
}

#[derive(Debug)]
struct Active {
    target: NodeId,
    waits: bool,
    since: u64,
    /// The offset at which writes stopped.
    offset: Option<u64>,
}

impl Handover {
    /// The node has become the primary.
    pub(super) fn begin(&mut self) {
        (self.active, self.wish, self.not_before, self.awaited) = (None, None, 0, None);
    }

    pub(super) fn is_active(&self) -> bool {
        self.active.is_some()
    }

    pub(super) fn ask(&mut self, mode: FailoverMode, now: u64) {
        (self.wish, self.is_heir) = (Some((mode, now)), false);
    }

    pub(super) fn shut_down(&mut self, now: u64) {
        self.shutdown.get_or_insert(now);
    }

    pub(super) fn stopped(&mut self, offset: u64) {
        if let Some(active) = &mut self.active {
            active.offset.get_or_insert(offset);
        }
    }
}

impl Decider {
    /// The primary's side.
    pub(super) fn work_on_handover(&mut self) {
        let Some((_, shard)) = self.own_shard() else { return };
        match &self.handover.active {
            Some(_) => self.go_on_with_handover(&shard),
            None if self.now >= self.handover.not_before => self.begin_handover(&shard),
            None => {}
        }
    }

    fn begin_handover(&mut self, shard: &Shard) {
        let heir = shard.heir.map(|heir| (heir.node, heir.mode));
        if let Some((node, mode)) = heir
            && self.may_succeed(shard, node, mode)
        {
            return self.stop_writes(node, mode);
        }
        let best = || self.best_replica(shard).filter(|_| self.handover.shutdown.is_some());
        match (heir, best()) {
            (_, Some((node, mode))) => self.stop_writes(node, mode),
            (Some((node, _)), None) if !self.may_catch_up(node) => self.drop_heir(),
            (Some(_), None) => {}
            (None, None) => self.handover.awaited = None,
        }
    }

    fn stop_writes(&mut self, target: NodeId, mode: FailoverMode) {
        let waits = mode == FailoverMode::Planned;
        self.handover.awaited = None;
        self.handover.active = Some(Active { target, waits, since: self.now, offset: None });
        self.log(format!("Stopping writes: node {target} becomes the primary"));
        self.actions.push(Action::StopWrites);
    }

    /// Whether an heir that is not in sync may join the in-sync set in time. A replica that has just attached
    /// joins within moments.
    fn may_catch_up(&mut self, heir: NodeId) -> bool {
        let (_, since) = match self.handover.awaited {
            Some(awaited) if awaited.0 == heir => awaited,
            _ => *self.handover.awaited.insert((heir, self.now)),
        };
        let is_alive = heir != self.setup.me && self.incarnation_of(heir).is_some();
        is_alive && self.now < since + WISH_PAUSES * self.setup.timing.pause
    }

    fn best_replica(&self, shard: &Shard) -> Option<(NodeId, FailoverMode)> {
        let others = shard.in_sync.iter().filter(|node| **node != self.setup.me);
        let present = others.filter(|node| self.may_succeed(shard, **node, FailoverMode::Planned));
        let best = present.max_by_key(|node| self.sync.offset(**node))?;
        Some((*best, FailoverMode::Planned))
    }

    /// Whether a node may become the primary: it is in sync, and alive with the same data. A take-over needs
    /// no transaction of the primary: the node takes over when the primary has left the shard.
    fn may_succeed(&self, shard: &Shard, node: NodeId, mode: FailoverMode) -> bool {
        let number = self.incarnation_of(node);
        number.is_some() && (shard.synced(node) == number || mode == FailoverMode::Takeover)
    }

    /// An heir that cannot succeed is no heir.
    fn drop_heir(&mut self) {
        if self.propose(|shard| shard.heir = None) {
            self.handover.awaited = None;
            self.log("The fail-over that was asked for is not possible: the replica is not in sync".into());
        }
    }

    fn go_on_with_handover(&mut self, shard: &Shard) {
        let Some(active) = &self.handover.active else { return };
        let (target, waits) = (active.target, active.waits);
        let number = shard.synced(target);
        let has_all = |offset| !waits || number.is_some_and(|number| self.sync.has(target, number, offset));
        // A forced change does not wait for commands that run for long.
        let is_forced = !waits && self.now >= active.since + self.setup.timing.pause / 4;
        let is_ready = active.offset.is_some_and(has_all) || is_forced;
        if self.proposals.give_away() {
            return;
        }
        if self.now >= active.since + self.setup.timing.pause {
            return self.abandon_handover(shard);
        }
        if is_ready {
            self.give_shard(number.is_some().then_some(target));
        }
    }

    /// Makes a node the primary; without a node, the heir takes over.
    fn give_shard(&mut self, target: Option<NodeId>) {
        self.propose(|shard| {
            shard.primary = target;
            if target.is_some() {
                shard.epoch += 1;
                shard.heir = None;
            }
        });
    }

    fn abandon_handover(&mut self, shard: &Shard) {
        if shard.heir.is_some() && !self.propose(|shard| shard.heir = None) {
            return;
        }
        self.handover.active = None;
        self.handover.not_before = self.now + self.setup.timing.retry;
        self.log("The fail-over took too long: this node remains the primary".into());
        self.actions.push(Action::ResumeWrites);
    }

    /// The replica's side: asks the primary to make this node its heir.
    pub(super) fn work_as_heir(&mut self, shard: &Shard) {
        let Some((mode, since)) = self.handover.wish else { return };
        let heir = Some(Heir { node: self.setup.me, mode });
        let is_over = self.now >= since + WISH_PAUSES * self.setup.timing.pause;
        if shard.heir == heir && is_over {
            self.handover.wish = None;
            self.propose(|shard| shard.heir = None);
        } else if shard.heir == heir {
            self.handover.is_heir = true;
        } else if is_over || self.handover.is_heir {
            // The primary has refused.
            self.handover.wish = None;
        } else {
            self.propose(|shard| shard.heir = heir);
        }
    }

    /// Ends the process when nobody needs it any more, or when that takes too long.
    pub(super) fn end_if_due(&mut self) {
        let Some(since) = self.handover.shutdown else { return };
        let may_hand_over = self.is_leading() && self.has_successor();
        let is_late = self.now >= since + 3 * self.setup.timing.pause;
        if self.handover.has_ended || may_hand_over && !is_late {
            return;
        }
        self.handover.has_ended = true;
        self.give_lease_back();
        self.actions.push(Action::Exit);
    }

    fn has_successor(&self) -> bool {
        let best = |shard: &Shard| self.best_replica(shard).is_some();
        self.own_shard().is_some_and(|(_, shard)| best(&shard)) || self.proposals.give_away()
    }
}
