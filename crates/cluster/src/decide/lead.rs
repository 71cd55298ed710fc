//! The role of a node, and promotion.
//!
//! A process leads only in an epoch that began while it ran, and only if the map has the number of its data.
//! So a process that starts as the primary of the map begins a new epoch first: its replicas may have writes
//! of the old epoch that it lacks.
//!
//! A node is promoted by one transaction, if the shard is as in its view, and if the primary has no entry, or
//! the map has no primary. Then nobody else serves: the primary without an entry has stopped (`lease.rs`),
//! and a node that leaves the shard without a primary had stopped before.

use std::collections::BTreeMap;

use super::{Action, Decider};
use crate::id::{NodeId, ShardId};
use crate::map::{FailoverMode, Heir, Shard};
use crate::snapshot::{Guard, Key};

/// The role of the node.
#[derive(Debug, Default)]
pub(super) struct Role {
    /// The node's shard and the epoch in which the process found it: an epoch that it does not lead in.
    found: Option<(ShardId, u64)>,
    /// The epoch in which the node leads its shard.
    leads: Option<u64>,
    follows: Option<(Option<NodeId>, u64)>,
    /// The time since which the shard needs a primary.
    vacant_since: Option<u64>,
    /// The reason was logged why the node does not lead although the map asks it to.
    has_complained: bool,
}

impl Decider {
    /// The epoch in which the node leads its shard. It may serve until the time of [`Action::ServeUntil`]
    /// only.
    pub fn leads(&self) -> Option<u64> {
        self.role.leads
    }

    pub(super) fn is_leading(&self) -> bool {
        self.role.leads.is_some()
    }

    /// The primary that the node follows, and the epoch of its stream.
    pub fn follows(&self) -> Option<(NodeId, u64)> {
        let (primary, epoch) = self.role.follows?;
        Some((primary?, epoch))
    }

    /// Whether the node accepts the stream of a primary in this epoch.
    pub fn accepts_stream(&self, primary: NodeId, epoch: u64) -> bool {
        !self.protections.epochs || self.follows() == Some((primary, epoch))
    }

    /// Takes the role that the view gives.
    pub(super) fn settle(&mut self) {
        let Some(node) = self.view.nodes.get(&self.setup.me) else { return self.leave() };
        let id = node.value.shard;
        self.proposals.seen(self.view.revision_of(Key::Shard(id)));
        let shard = self.view.shards.get(&id).map(|entry| entry.value.clone()).unwrap_or_default();
        if self.role.found.is_none_or(|(found, _)| found != id) {
            self.role.found = Some((id, shard.epoch));
        }
        if self.may_lead(&shard) {
            self.lead(id, shard.epoch);
        } else {
            self.follow(&shard);
        }
    }

    fn may_lead(&self, shard: &Shard) -> bool {
        let began_here = self.role.found.is_some_and(|(_, found)| shard.epoch > found);
        shard.primary == Some(self.setup.me) && began_here && self.has_data(shard)
    }

    /// Whether the node has every acknowledged write.
    fn has_data(&self, shard: &Shard) -> bool {
        let known = shard.synced(self.setup.me);
        known == Some(self.setup.incarnation) || !self.protections.incarnations && known.is_some()
    }

    fn lead(&mut self, id: ShardId, epoch: u64) {
        if self.role.leads == Some(epoch) {
            return;
        }
        (self.role.leads, self.role.follows, self.role.vacant_since) = (Some(epoch), None, None);
        self.sync.begin();
        self.handover.begin();
        self.end_moves();
        self.log(format!("This node is the primary of shard {id} in epoch {epoch}"));
        self.actions.push(Action::Lead { shard: id, epoch });
    }

    fn follow(&mut self, shard: &Shard) {
        let primary = shard.primary.filter(|primary| *primary != self.setup.me);
        self.step_down(&format!("the primary is {}, in epoch {}", name(primary), shard.epoch));
        if self.role.follows != Some((primary, shard.epoch)) {
            self.role.follows = Some((primary, shard.epoch));
            self.role.vacant_since = None;
            self.actions.push(Action::Follow { primary, epoch: shard.epoch });
        }
    }

    fn leave(&mut self) {
        self.step_down("the map does not have this node");
        self.role = Role::default();
    }

    fn step_down(&mut self, reason: &str) {
        if let Some(epoch) = self.role.leads.take() {
            self.handover.begin();
            self.update_fence();
            self.end_moves();
            self.log(format!("This node is not the primary any more, as in epoch {epoch}: {reason}"));
        }
    }

    pub(super) fn work_as_replica(&mut self) {
        let Some((_, shard)) = self.own_shard() else { return };
        if !self.is_registered() {
            return;
        }
        if !self.is_vacant(&shard) {
            self.role.vacant_since = None;
            return self.work_as_heir(&shard);
        }
        let since = *self.role.vacant_since.get_or_insert(self.now);
        let is_wanted = shard.heir.is_some_and(|heir| heir.node != self.setup.me);
        let may_resign = shard.primary == Some(self.setup.me) && !self.has_data(&shard);
        if may_resign && (is_wanted || self.others_have_data(&shard)) {
            return self.resign();
        }
        // A node that lacks data, or waits for an operator, has a claim only as the heir.
        if !self.has_data(&shard) || self.waits_for_operator(&shard) {
            self.work_as_heir(&shard);
        }
        if !self.waits_for_operator(&shard)
            && let Some(members) = self.claim(&shard)
            && self.now >= since + self.rank(&shard) * self.setup.timing.rank
        {
            self.promote(&shard, members);
        }
    }

    /// Whether the shard needs a primary: it has none, or the primary has no entry, or it is this node, which
    /// has begun no epoch yet.
    fn is_vacant(&self, shard: &Shard) -> bool {
        shard
            .primary
            .is_none_or(|primary| primary == self.setup.me || !self.view.alive.contains_key(&primary))
    }

    fn others_have_data(&self, shard: &Shard) -> bool {
        shard.in_sync.iter().any(|member| *member != self.setup.me)
    }

    /// A primary that has lost its data leaves the shard to the replicas that have them.
    fn resign(&mut self) {
        let me = self.setup.me;
        if self.propose(|shard| shard.primary = None) {
            self.log(format!(
                "Node {me} has lost the data of its shard, and leaves the shard to its replicas"
            ));
        }
    }

    /// The in-sync set that the node would have as the primary, if it has a right to be that.
    fn claim(&mut self, shard: &Shard) -> Option<BTreeMap<NodeId, u64>> {
        let me = (self.setup.me, self.setup.incarnation);
        if self.has_data(shard) {
            let is_present = |(node, number): &(NodeId, u64)| self.incarnation_of(*node) == Some(*number);
            let others = shard.members().into_iter().filter(|(node, _)| Some(*node) != shard.primary);
            return Some(others.filter(is_present).chain([me]).collect());
        }
        let takes_over = shard.heir == Some(Heir { node: me.0, mode: FailoverMode::Takeover });
        if takes_over || self.is_best_of_the_lost(shard) {
            return Some([me].into());
        }
        if shard.in_sync.contains(&me.0) && !self.role.has_complained {
            self.role.has_complained = true;
            self.log(
                "No node of the shard is known to have every acknowledged write. CLUSTER FAILOVER TAKEOVER \
                 at the node with the best data makes it the primary"
                    .into(),
            );
        }
        None
    }

    fn own_shard_id(&self) -> Option<ShardId> {
        Some(self.view.nodes.get(&self.setup.me)?.value.shard)
    }

    /// Every in-sync member is back, each has lost writes, and no node of the shard has more than
    /// this member.
    fn is_best_of_the_lost(&self, shard: &Shard) -> bool {
        let has_lost = |(node, number)| self.incarnation_of(node).is_some_and(|now| now > number);
        if !shard.in_sync.contains(&self.setup.me) || !shard.members().into_iter().all(has_lost) {
            return false;
        }
        let own = self.view.nodes.iter().filter(|(_, node)| self.own_shard_id() == Some(node.value.shard));
        own.map(|(node, _)| *node).all(|node| match self.view.alive.get(&node) {
            // A member and a replica with the same offset: the member leads.
            Some(entry) if shard.in_sync.contains(&node) => {
                (entry.value.offset, node) <= (self.published(), self.setup.me)
            }
            Some(entry) => entry.value.offset <= self.published(),
            None => false,
        })
    }

    /// Whether the node takes another node's place only when an operator asks for it.
    fn waits_for_operator(&self, shard: &Shard) -> bool {
        let me = self.setup.me;
        let is_wanted = shard.primary == Some(me) || shard.heir.is_some_and(|heir| heir.node == me);
        !is_wanted && self.view.nodes.get(&me).is_some_and(|node| node.value.address.no_failover)
    }

    /// The number of candidates that have more data.
    fn rank(&self, shard: &Shard) -> u64 {
        if shard.heir.is_some_and(|heir| heir.node == self.setup.me) {
            return 0;
        }
        let has_more = |(node, number): &(NodeId, u64)| {
            let more = |entry: &crate::snapshot::Versioned<crate::snapshot::Alive>| {
                entry.value.incarnation == *number
                    && (entry.value.offset, *node) > (self.published(), self.setup.me)
            };
            let may_lead = !self.view.nodes.get(node).is_some_and(|node| node.value.address.no_failover);
            may_lead && self.view.alive.get(node).is_some_and(more)
        };
        // An heir that is alive goes first.
        let heir = shard.heir.is_some_and(|heir| self.view.alive.contains_key(&heir.node));
        let more = shard.members().iter().filter(|(node, number)| has_more(&(**node, **number))).count();
        more as u64 + 2 * u64::from(heir)
    }

    fn published(&self) -> u64 {
        self.view.alive.get(&self.setup.me).map_or(0, |entry| entry.value.offset)
    }

    fn promote(&mut self, shard: &Shard, members: BTreeMap<NodeId, u64>) {
        let me = self.setup.me;
        let absent = |primary: NodeId| Guard::Unchanged(Key::Alive(primary), 0);
        let primary = shard.primary.filter(|primary| *primary != me && self.protections.absent_guard);
        let guards = primary.map(absent).into_iter().chain(self.guards_of_the_lost(shard)).collect();
        let promoted = self.propose_with(guards, Vec::new(), None, |shard| {
            shard.epoch += 1;
            (shard.primary, shard.heir) = (Some(me), None);
            shard.set_members(&members);
        });
        if promoted {
            let reason = match shard.primary {
                None => "the shard has no primary".into(),
                Some(primary) if primary == me => "this process begins as the primary".into(),
                Some(primary) => format!("the lease of the primary {primary} has ended"),
            };
            let (epoch, count) = (shard.epoch + 1, members.len());
            self.log(format!("Asking for epoch {epoch} with {count} nodes in sync: {reason}"));
        }
    }

    /// If all have lost writes: that none of them has begun anew since.
    fn guards_of_the_lost(&self, shard: &Shard) -> Vec<Guard> {
        if self.has_data(shard) || !self.is_best_of_the_lost(shard) {
            return Vec::new();
        }
        shard.in_sync.iter().map(|node| self.view.unchanged(Key::Alive(*node))).collect()
    }
}

fn name(node: Option<NodeId>) -> String {
    node.map_or_else(|| "nobody".into(), |node| node.to_string())
}
