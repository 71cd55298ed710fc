//! The in-sync set of the shard that the node leads, and the acknowledgements that count.
//!
//! The primary acknowledges a write when all nodes of the *required set* have it: the members in the view,
//! the members that any transaction under way would make, and the replicas that are about to join. So the
//! required set contains the in-sync set of the store at any time, and every member of that has every
//! acknowledged write.
//!
//! The primary itself takes a replica out of the set before the replica drops its data, since it has them for
//! certain: a replica that decided alone might have the last copy, of a primary that has just ended.
//!
//! | change | order |
//! |---|---|
//! | a replica leaves | transaction, view, smaller required set |
//! | a replica drops its data, to get all | as if it left; then the full synchronization |
//! | a replica joins | larger required set; the primary's offset then; the replica has it; transaction |

use std::collections::{BTreeMap, BTreeSet};

use super::{Ack, Action, Decider};
use crate::id::NodeId;

/// The in-sync set, and the progress of replicas.
#[derive(Debug, Default)]
pub(super) struct Sync {
    /// For each connected replica: the number of its data, and its offset.
    acks: BTreeMap<NodeId, (u64, u64)>,
    /// For each required node: the offset that it has to reach, since when.
    waits: BTreeMap<NodeId, (u64, u64)>,
    joins: BTreeMap<NodeId, Join>,
    /// The replicas that wait for a full synchronization.
    full: BTreeSet<NodeId>,
    /// The last set of [`Action::CountAcks`].
    counted: Option<BTreeMap<NodeId, u64>>,
    number: u64,
}

/// A replica that is about to join.
#[derive(Debug)]
struct Join {
    incarnation: u64,
    since: u64,
    /// The first set that has the replica.
    number: Option<u64>,
    /// The primary's offset when the data path counted that set.
    offset: Option<u64>,
}

impl Sync {
    /// The node has become the primary.
    pub(super) fn begin(&mut self) {
        *self = Sync { number: self.number, ..Sync::default() };
    }

    pub(super) fn disconnected(&mut self, node: NodeId) {
        self.acks.remove(&node);
        self.full.remove(&node);
    }

    pub(super) fn needs_full_sync(&mut self, node: NodeId) {
        self.acks.remove(&node);
        self.full.insert(node);
    }

    /// Whether the data path waits for a node.
    #[cfg(test)]
    pub(super) fn requires(&self, node: NodeId) -> bool {
        self.counted.as_ref().is_some_and(|counted| counted.contains_key(&node))
    }

    /// The offset that a connected node has acknowledged.
    pub(super) fn offset(&self, node: NodeId) -> Option<u64> {
        self.acks.get(&node).map(|(_, offset)| *offset)
    }

    /// Whether a node has so much of the stream, with data of this number.
    pub(super) fn has(&self, node: NodeId, incarnation: u64, offset: u64) -> bool {
        self.acks.get(&node).is_some_and(|(number, has)| *number == incarnation && *has >= offset)
    }
}

impl Decider {
    /// Whether an acknowledgement belongs to the stream of the node.
    pub fn counts(&self, ack: &Ack) -> bool {
        self.is_leading() && (!self.protections.epochs || self.leads() == Some(ack.epoch))
    }

    /// Records an acknowledgement. Returns whether something waits for it.
    pub(super) fn acknowledged(&mut self, ack: Ack) -> bool {
        if !self.counts(&ack) {
            return false;
        }
        let known = self.sync.acks.entry(ack.node).or_insert((ack.incarnation, ack.offset));
        if known.0 != ack.incarnation {
            *known = (ack.incarnation, ack.offset);
        }
        known.1 = known.1.max(ack.offset);
        self.handover.is_active() || self.sync.joins.contains_key(&ack.node)
    }

    pub(super) fn counting(&mut self, number: u64, offset: u64) {
        self.offset = self.offset.max(offset);
        for join in self.sync.joins.values_mut() {
            if join.offset.is_none() && join.number.is_some_and(|since| number >= since) {
                join.offset = Some(offset);
            }
        }
    }

    /// The nodes that have to acknowledge, without this node.
    fn required(&self) -> BTreeMap<NodeId, u64> {
        let mut required = BTreeMap::new();
        let mut add = |node: NodeId, number: u64| {
            required.entry(node).and_modify(|known: &mut u64| *known = number.max(*known)).or_insert(number);
        };
        if let Some((_, shard)) = self.own_shard() {
            shard.members().into_iter().for_each(|(node, number)| add(node, number));
        }
        if self.protections.union {
            self.proposals.members().for_each(|(node, number)| add(*node, *number));
            self.sync.joins.iter().for_each(|(node, join)| add(*node, join.incarnation));
        }
        required.remove(&self.setup.me);
        required
    }

    /// Tells the data path a new required set.
    pub(super) fn update_set(&mut self) {
        if !self.is_leading() {
            return;
        }
        let required = self.required();
        let awaits_number = self.sync.joins.values().any(|join| join.number.is_none());
        if self.sync.counted.as_ref() == Some(&required) && !awaits_number {
            return;
        }
        self.sync.number += 1;
        let number = self.sync.number;
        self.sync.joins.values_mut().for_each(|join| join.number = join.number.or(Some(number)));
        self.sync.counted = Some(required.clone());
        self.actions.push(Action::CountAcks { number, members: required });
    }

    pub(super) fn work_on_sync(&mut self) {
        let Some((_, shard)) = self.own_shard() else { return };
        let members = shard.members();
        self.begin_joins(&members);
        self.end_joins(&members);
        self.begin_full_syncs(&members);
        let late = self.late(&members);
        let ready = self.ready();
        if late.is_empty() && ready.is_empty() {
            return;
        }
        let proposed = self.propose(|shard| {
            let mut members = shard.members();
            members.retain(|node, _| !late.contains(node));
            members.extend(ready.iter().copied());
            shard.set_members(&members);
        });
        if proposed {
            late.iter()
                .for_each(|node| self.log(format!("Replica {node} lags behind, and leaves the in-sync set")));
            ready.iter().for_each(|(node, _)| self.log(format!("Replica {node} joins the in-sync set")));
        }
    }

    /// The members that have not reached their offset for too long.
    fn late(&mut self, members: &BTreeMap<NodeId, u64>) -> Vec<NodeId> {
        let (now, offset, lag) = (self.now, self.offset, self.setup.timing.lag);
        self.sync.waits.retain(|node, _| members.contains_key(node));
        let mut late = Vec::new();
        for (node, number) in members.iter().filter(|(node, _)| **node != self.setup.me) {
            let (target, since) = *self.sync.waits.entry(*node).or_insert((offset, now));
            if self.sync.has(*node, *number, target) {
                self.sync.waits.insert(*node, (offset, now));
            } else if now >= since + lag || self.sync.full.contains(node) {
                late.push(*node);
            }
        }
        late
    }

    /// Lets replicas drop their data that are not, and will not be, members because of these.
    fn begin_full_syncs(&mut self, members: &BTreeMap<NodeId, u64>) {
        let may_be_member = |node: &NodeId| members.contains_key(node) || self.proposals.have(*node);
        let is_free = |node: &NodeId| !self.protections.leave || !may_be_member(node);
        let free: Vec<NodeId> = self.sync.full.iter().filter(|node| is_free(node)).copied().collect();
        for node in free {
            self.sync.full.remove(&node);
            self.actions.push(Action::FullSync(node));
        }
    }

    /// Whether a connected node is a replica of the shard that is not a member with its present data.
    fn may_join(&self, node: NodeId, incarnation: u64, members: &BTreeMap<NodeId, u64>) -> bool {
        let shard = |node| self.view.nodes.get(&node).map(|entry| entry.value.shard);
        let is_connected = self.sync.acks.get(&node).is_some_and(|(number, _)| *number == incarnation);
        is_connected
            && shard(node) == shard(self.setup.me)
            && self.incarnation_of(node) == Some(incarnation)
            && members.get(&node) != Some(&incarnation)
    }

    /// Begins the joins of replicas that are nearly as far as the primary.
    fn begin_joins(&mut self, members: &BTreeMap<NodeId, u64>) {
        let is_near = |offset: u64| offset + JOIN_DISTANCE >= self.offset;
        let is_new = |node: &NodeId| !self.sync.joins.contains_key(node);
        let near = self.sync.acks.iter().filter(|(node, (_, offset))| is_near(*offset) && is_new(node));
        let near: Vec<(NodeId, u64)> = near.map(|(node, (incarnation, _))| (*node, *incarnation)).collect();
        for (node, incarnation) in near {
            if self.may_join(node, incarnation, members) {
                let join = Join { incarnation, since: self.now, number: None, offset: None };
                self.sync.joins.insert(node, join);
            }
        }
    }

    /// Ends joins that succeeded, that take too long, or whose replica has gone or has left the shard.
    fn end_joins(&mut self, members: &BTreeMap<NodeId, u64>) {
        let (now, join_max) = (self.now, self.setup.timing.join);
        let mut joins = std::mem::take(&mut self.sync.joins);
        joins.retain(|node, join| {
            now < join.since + join_max && self.may_join(*node, join.incarnation, members)
        });
        self.sync.joins = joins;
    }

    /// The replicas whose acknowledgements count and that have all that was acknowledged without them.
    fn ready(&self) -> Vec<(NodeId, u64)> {
        let waits = self.protections.join_waits;
        let is_ready = |(node, join): &(&NodeId, &Join)| {
            !waits || join.offset.is_some_and(|offset| self.sync.has(**node, join.incarnation, offset))
        };
        self.sync.joins.iter().filter(is_ready).map(|(node, join)| (*node, join.incarnation)).collect()
    }
}

/// A replica that lags by so many bytes at most may join.
const JOIN_DISTANCE: u64 = 1 << 20;
