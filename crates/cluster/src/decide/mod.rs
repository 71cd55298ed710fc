//! The decisions of a node: when it may serve, when it becomes the primary, which acknowledgements count, and
//! when slots change their owner.
//!
//! A [`Decider`] is a pure state machine. It gets events with the time of a clock that never goes back and
//! runs while the machine sleeps, in milliseconds, and returns actions. `docs/cluster-design.md` has the
//! protocol and its proof; the simulator in `sim` looks for interleavings that break it.
//!
//! | file | decides |
//! |---|---|
//! | `lease.rs` | the lease, and until when the node may serve |
//! | `lead.rs` | the role of the node; promotion |
//! | `sync.rs` | the in-sync set, and the acknowledgements that count |
//! | `handover.rs` | planned changes of the primary; the end of the process |
//! | `moves.rs` | moves of slots |
//! | `proposal.rs` | transactions whose effect is unknown |

mod handover;
mod lead;
mod lease;
mod moves;
mod proposal;
mod sync;
mod types;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use types::{Ack, Action, Event, MoveAction, MoveEvent, Outcome, Setup, Timing};

use crate::id::{MigrationId, NodeId, ShardId};
use crate::map::Shard;
use crate::slots::SlotRanges;
use crate::snapshot::{Change, Guard, Key, Snapshot, Transaction};

/// The protections of the protocol. Tests take each out to see the simulation fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protections {
    /// The primary stops before its lease may end.
    pub(crate) fence: bool,
    /// The lease is counted from before its renewal was asked, less a margin.
    pub(crate) margin: bool,
    /// The primary serves only with a view that has the entry of its present lease.
    pub(crate) fresh_view: bool,
    /// A promotion has the guard that the entry of the primary is absent.
    pub(crate) absent_guard: bool,
    /// Members of the old and of the new in-sync set have to acknowledge while a change is under way.
    pub(crate) union: bool,
    /// A replica counts as in sync only with the acknowledgements of all it may have missed.
    pub(crate) join_waits: bool,
    /// Streams and acknowledgements of other epochs are refused.
    pub(crate) epochs: bool,
    /// Data with another number than the map's do not make a primary.
    pub(crate) incarnations: bool,
    /// A transaction without an answer may yet be made.
    pub(crate) unknown: bool,
    /// A replica leaves the in-sync set before it drops its data.
    pub(crate) leave: bool,
    /// The switch of a move has the guard that the target is as it was.
    pub(crate) move_guard: bool,
    /// The slots of a move are closed before the switch.
    pub(crate) close: bool,
}

impl Protections {
    pub(crate) const ALL: Protections = Protections {
        fence: true,
        margin: true,
        fresh_view: true,
        absent_guard: true,
        union: true,
        join_waits: true,
        epochs: true,
        incarnations: true,
        unknown: true,
        leave: true,
        move_guard: true,
        close: true,
    };
}

/// The state machine of a node.
#[derive(Debug)]
pub struct Decider {
    setup: Setup,
    protections: Protections,
    now: u64,
    /// Bytes of the replication stream that the node has.
    offset: u64,
    view: Arc<Snapshot>,
    lease: lease::Lease,
    role: lead::Role,
    proposals: proposal::Proposals,
    sync: sync::Sync,
    handover: handover::Handover,
    moves: BTreeMap<MigrationId, moves::Move>,
    next_number: u64,
    /// The last value of [`Action::ServeUntil`].
    fence: u64,
    actions: Vec<Action>,
}

impl Decider {
    /// The state machine of a process that starts.
    pub fn new(setup: Setup) -> Decider {
        Decider {
            offset: setup.offset,
            setup,
            protections: Protections::ALL,
            now: 0,
            view: Arc::default(),
            lease: lease::Lease::default(),
            role: lead::Role::default(),
            proposals: proposal::Proposals::default(),
            sync: sync::Sync::default(),
            handover: handover::Handover::default(),
            moves: BTreeMap::new(),
            next_number: 0,
            fence: 0,
            actions: Vec::new(),
        }
    }

    /// Takes protections out.
    #[cfg(test)]
    pub(crate) fn with(mut self, protections: Protections) -> Decider {
        self.protections = protections;
        self
    }

    /// Handles an event at a time, which is not before that of any earlier event. The actions are to be
    /// carried out in their order.
    pub fn handle(&mut self, event: Event, now: u64) -> Vec<Action> {
        self.now = now;
        if self.take(event) {
            self.work();
            self.update_fence();
            self.update_set();
        }
        std::mem::take(&mut self.actions)
    }

    /// Records an event. Returns whether there may be something to do.
    fn take(&mut self, event: Event) -> bool {
        match event {
            Event::View(view) => self.see(view),
            Event::Granted { lease, sent } => self.lease.granted(lease, self.counted_from(sent)),
            Event::Renewed { lease, sent } => self.lease.renewed(lease, self.counted_from(sent)),
            Event::LeaseLost { lease } => self.lease.lost(lease),
            Event::LeaseUnanswered => self.lease.unanswered(self.now, &self.setup.timing),
            Event::Answered { number, outcome } => self.answered(number, outcome),
            Event::Counting { number, offset } => self.counting(number, offset),
            Event::Ack(ack) => return self.acknowledged(ack),
            Event::Disconnected(node) => self.sync.disconnected(node),
            Event::Stopped { offset } => self.handover.stopped(offset),
            Event::NeedsFullSync(node) => self.sync.needs_full_sync(node),
            Event::DataReset { incarnation } => self.setup.incarnation = incarnation,
            Event::Move { id, epoch, event } => self.move_event(id, epoch, event),
            Event::Failover(mode) => self.handover.ask(mode, self.now),
            Event::Shutdown => self.handover.shut_down(self.now),
            Event::Tick { offset } => self.offset = offset,
        }
        true
    }

    /// The time from which a lease counts that was asked for at `sent`.
    fn counted_from(&self, sent: u64) -> u64 {
        if self.protections.margin { sent } else { self.now }
    }

    fn see(&mut self, view: Arc<Snapshot>) {
        if view.revision > self.view.revision {
            self.view = view;
            self.settle();
        }
    }

    fn answered(&mut self, number: u64, outcome: Outcome) {
        let retry = self.now + self.setup.timing.rank / 4;
        if !self.proposals.answered(number, outcome, !self.protections.unknown, retry) {
            self.lease.answered(number);
        }
    }

    /// Everything that is due.
    fn work(&mut self) {
        self.keep_lease();
        if self.is_leading() {
            self.work_as_primary();
        } else {
            self.work_as_replica();
        }
        self.end_if_due();
    }

    fn work_as_primary(&mut self) {
        if !self.is_registered() {
            return;
        }
        self.work_on_handover();
        self.work_on_sync();
        self.work_on_moves();
        self.settle_unknown();
    }

    /// A transaction that changes nothing settles those without an answer.
    fn settle_unknown(&mut self) {
        if self.proposals.are_unknown() && self.lease.may_retry(self.now, self.setup.timing.retry) {
            self.propose(|_| ());
        }
    }

    // --- What the view says ---

    /// The slots of the node's shard, in the node's view.
    pub fn owned_slots(&self) -> SlotRanges {
        self.own_shard().map(|(_, shard)| shard.slots.clone()).unwrap_or_default()
    }

    /// The identity and the entry of the node's shard.
    fn own_shard(&self) -> Option<(ShardId, Arc<Shard>)> {
        let id = self.view.nodes.get(&self.setup.me)?.value.shard;
        Some((id, Arc::clone(&self.view.shards.get(&id)?.value)))
    }

    /// Whether the view has the node's entry, bound to the lease that the node has.
    fn is_registered(&self) -> bool {
        let Some(lease) = self.lease.id() else { return false };
        let is_own = |process, bound| process == self.setup.process && bound == lease;
        self.view
            .alive
            .get(&self.setup.me)
            .is_some_and(|entry| is_own(entry.value.process, entry.value.lease))
    }

    /// The number of the data of a node that is alive.
    fn incarnation_of(&self, node: NodeId) -> Option<u64> {
        self.view.alive.get(&node).map(|entry| entry.value.incarnation)
    }

    // --- Transactions ---

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn submit(&mut self, transaction: Transaction) -> u64 {
        let number = self.number();
        self.actions.push(Action::Submit { number, transaction });
        number
    }

    /// Proposes a change of the node's shard, if no transaction is under way.
    fn propose(&mut self, change: impl FnOnce(&mut Shard)) -> bool {
        self.propose_with(Vec::new(), Vec::new(), None, change)
    }

    fn propose_with(
        &mut self,
        guards: Vec<Guard>,
        changes: Vec<Change>,
        switches: Option<MigrationId>,
        change: impl FnOnce(&mut Shard),
    ) -> bool {
        let Some((id, shard)) = self.own_shard() else { return false };
        if !self.proposals.may_send() || self.proposals.waits(self.now) {
            return false;
        }
        let mut changed = Shard::clone(&shard);
        change(&mut changed);
        let gives_away = changed.primary != Some(self.setup.me);
        let members = changed.members();
        let own = [self.view.unchanged(Key::Shard(id)), Guard::Present(Key::Alive(self.setup.me))];
        let guards = own.into_iter().chain(guards).collect();
        let changes = std::iter::once(Change::Shard(id, changed)).chain(changes).collect();
        let number = self.number();
        self.proposals.sent(self.view.revision_of(Key::Shard(id)), number, members, gives_away, switches);
        // The data path gets its new bounds before the store gets the transaction that needs them.
        self.update_fence();
        self.update_set();
        self.actions.push(Action::Submit { number, transaction: Transaction { guards, changes } });
        true
    }

    fn log(&mut self, line: String) {
        self.actions.push(Action::Log(line));
    }
}
