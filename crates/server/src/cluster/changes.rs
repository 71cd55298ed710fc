//! The map that follows a request: a function of both.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_cluster::{Map, Node, NodeId, Shard, ShardId, SlotRanges};

use super::owner::{Changed, MapRequest, SlotChange};
use super::view::ClusterView;

/// Returns the next map, in which this node's address is that of its settings.
///
/// # Errors
/// The reason, in Valkey's words where it has the same.
pub(super) fn apply(view: &ClusterView, request: &MapRequest) -> Result<Changed, String> {
    let mut change = Change::new(view)?;
    match request {
        MapRequest::AddSlots(slots) => change.add(slots)?,
        MapRequest::RemoveSlots(slots) => change.remove(slots)?,
        MapRequest::FlushSlots => change.own().slots = SlotRanges::default(),
        MapRequest::SetSlot(slot, what) => change.set_slot(*slot, what)?,
        MapRequest::BumpEpoch => change.bump_epoch(),
        MapRequest::SetEpoch(epoch) => change.set_epoch(*epoch)?,
        MapRequest::Reset { hard } => change.reset(*hard),
        MapRequest::Save => {}
        MapRequest::Meet { .. }
        | MapRequest::Forget(_)
        | MapRequest::Replicate(_)
        | MapRequest::Move(..)
        | MapRequest::CancelMove(_) => {
            return Err("it needs cluster-store".into());
        }
    }
    Ok(change.finish())
}

/// A map in the making.
struct Change<'a> {
    map: &'a Map,
    me: NodeId,
    nodes: BTreeMap<NodeId, Node>,
    shards: BTreeMap<ShardId, Shard>,
    shard: ShardId,
}

impl<'a> Change<'a> {
    fn new(view: &'a ClusterView) -> Result<Change<'a>, String> {
        let (map, me, shard) = (&*view.map, view.me, view.shard);
        let (mut nodes, mut shards) = (map.nodes().clone(), map.shards().clone());
        nodes.get_mut(&me).ok_or("This node is not in the map")?.address = view.address.clone();
        shards.entry(shard).or_default();
        Ok(Change { map, me, nodes, shards, shard })
    }

    fn own(&mut self) -> &mut Shard {
        self.shards.entry(self.shard).or_default()
    }

    fn finish(self) -> Changed {
        Changed { map: Map::new(self.map.revision() + 1, self.nodes, self.shards), me: self.me }
    }

    fn add(&mut self, slots: &SlotRanges) -> Result<(), String> {
        if let Some(busy) = slots.iter().find(|slot| self.map.owner(*slot).is_some()) {
            return Err(format!("Slot {busy} is already busy"));
        }
        let all: BTreeSet<u16> = self.own().slots.iter().chain(slots.iter()).collect();
        self.own().slots = all.into_iter().collect();
        slots.iter().for_each(|slot| _ = self.own().importing.remove(&slot));
        Ok(())
    }

    /// Takes slots away from whichever shard has them.
    fn remove(&mut self, slots: &SlotRanges) -> Result<(), String> {
        if let Some(free) = slots.iter().find(|slot| self.map.owner(*slot).is_none()) {
            return Err(format!("Slot {free} is already unassigned"));
        }
        self.take(slots);
        Ok(())
    }

    fn take(&mut self, slots: &SlotRanges) {
        for shard in self.shards.values_mut() {
            if slots.iter().any(|slot| shard.slots.contains(slot)) {
                shard.slots = shard.slots.iter().filter(|slot| !slots.contains(*slot)).collect();
            }
            shard.migrating.retain(|slot, _| !slots.contains(*slot));
        }
    }

    fn set_slot(&mut self, slot: u16, change: &SlotChange) -> Result<(), String> {
        let is_own = self.map.owner(slot).is_some_and(|(id, _)| id == self.shard);
        match change {
            SlotChange::Stable => {
                self.own().migrating.remove(&slot);
                self.own().importing.remove(&slot);
            }
            SlotChange::Migrating(_) if !is_own => {
                return Err(format!("I'm not the owner of hash slot {slot}"));
            }
            SlotChange::Migrating(to) => {
                let to = self.partner(*to)?;
                self.own().migrating.insert(slot, to);
            }
            SlotChange::Importing(_) if is_own => {
                return Err(format!("I'm already the owner of hash slot {slot}"));
            }
            SlotChange::Importing(from) => {
                let from = self.partner(*from)?;
                self.own().importing.insert(slot, from);
            }
            SlotChange::Owner(id) => self.give(slot, *id)?,
        }
        Ok(())
    }

    /// Returns the shard of another node.
    fn partner(&self, id: NodeId) -> Result<ShardId, String> {
        let node = self.map.node(id).ok_or_else(|| format!("I don't know about node {id}"))?;
        if id == self.me {
            return Err("Target node is myself".into());
        }
        if self.map.shard(node.shard).is_none_or(|shard| shard.primary != Some(id)) {
            return Err("Target node is not a master".into());
        }
        Ok(node.shard)
    }

    /// Makes a node's shard the owner of a slot. A slot that arrives here raises this shard's epoch above all
    /// others.
    fn give(&mut self, slot: u16, id: NodeId) -> Result<(), String> {
        let shard = self.map.node(id).ok_or_else(|| format!("Unknown node {id}"))?.shard;
        if self.map.shard(shard).is_none_or(|owner| owner.primary != Some(id)) {
            return Err("Target node is not a master".into());
        }
        let one: SlotRanges = std::iter::once(slot).collect();
        self.take(&one);
        let arrives = self.own().importing.remove(&slot).is_some() && shard == self.shard;
        let owner = self.shards.entry(shard).or_default();
        let all: BTreeSet<u16> = owner.slots.iter().chain([slot]).collect();
        owner.slots = all.into_iter().collect();
        if arrives {
            self.bump_epoch();
        }
        Ok(())
    }

    fn bump_epoch(&mut self) {
        let highest = self.map.epoch();
        let epoch = self.own().epoch;
        let is_highest = epoch != 0
            && epoch == highest
            && self.map.shards().values().filter(|shard| shard.epoch == highest).count() == 1;
        if !is_highest {
            self.own().epoch = highest + 1;
        }
    }

    fn set_epoch(&mut self, epoch: u64) -> Result<(), String> {
        if self.map.nodes().len() > 1 {
            return Err(
                "The user can assign a config epoch only when the node does not know any other node.".into(),
            );
        }
        if self.own().epoch != 0 {
            return Err("Node config epoch is already non-zero".into());
        }
        self.own().epoch = epoch;
        Ok(())
    }

    /// Forgets all other nodes and all slots.
    fn reset(&mut self, hard: Option<(NodeId, ShardId)>) {
        let epoch = if hard.is_some() { 0 } else { self.own().epoch };
        let Some(mut node) = self.nodes.remove(&self.me) else { return };
        if let Some((me, shard)) = hard {
            (self.me, self.shard) = (me, shard);
        }
        node.shard = self.shard;
        let shard = Shard { epoch, primary: Some(self.me), in_sync: [self.me].into(), ..Shard::default() };
        self.nodes = [(self.me, node)].into();
        self.shards = [(self.shard, shard)].into();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use evenkeel_config::Settings;

    use super::*;
    use evenkeel_cluster::nodes_file;

    const ONE: &str = "0101010101010101010101010101010101010101";
    const TWO: &str = "0202020202020202020202020202020202020202";

    fn two_nodes() -> (Map, NodeId, NodeId) {
        let text = format!(
            "{ONE} :1@10001 myself,master - 0 0 0 connected 0-99\n\
             {TWO} :2@10002 master - 0 0 2 connected 200-299\n"
        );
        let content = nodes_file::read(&text).expect("a good file");
        (content.map, content.me, TWO.parse().expect("an identity"))
    }

    fn view_of(map: Map, me: NodeId) -> ClusterView {
        ClusterView::new(Arc::new(map), me, &Settings::default())
    }

    fn slots(range: std::ops::RangeInclusive<u16>) -> SlotRanges {
        range.collect()
    }

    fn refused(request: &MapRequest) -> String {
        let (map, me, _) = two_nodes();
        apply(&view_of(map, me), request).expect_err("a refusal")
    }

    fn applied(requests: &[MapRequest]) -> Changed {
        let (map, me, _) = two_nodes();
        let mut changed = Changed { map, me };
        for request in requests {
            changed = apply(&view_of(changed.map, changed.me), request).expect("a good request");
        }
        changed
    }

    fn own(changed: &Changed) -> Shard {
        let shard = changed.map.node(changed.me).expect("this node").shard;
        changed.map.shard(shard).expect("its shard").clone()
    }

    #[test]
    fn slots_come_and_go() {
        let changed =
            applied(&[MapRequest::AddSlots(slots(100..=199)), MapRequest::RemoveSlots(slots(50..=250))]);
        assert_eq!((own(&changed).slots, changed.map.assigned()), (slots(0..=49), 99));
        assert!(changed.map.revision() > two_nodes().0.revision());
        assert_eq!(refused(&MapRequest::AddSlots(slots(99..=100))), "Slot 99 is already busy");
        assert_eq!(refused(&MapRequest::RemoveSlots(slots(99..=100))), "Slot 100 is already unassigned");
        assert!(own(&applied(&[MapRequest::FlushSlots])).slots.is_empty());
    }

    #[test]
    fn a_slot_moves_between_nodes() {
        let (_, me, other) = two_nodes();
        let set = |slot, change| MapRequest::SetSlot(slot, change);
        let changed =
            applied(&[set(5, SlotChange::Migrating(other)), set(200, SlotChange::Importing(other))]);
        assert_eq!((own(&changed).migrating.len(), own(&changed).importing.len()), (1, 1));
        let stable = applied(&[set(5, SlotChange::Migrating(other)), set(5, SlotChange::Stable)]);
        assert!(own(&stable).migrating.is_empty());
        let gone = applied(&[set(5, SlotChange::Migrating(other)), set(5, SlotChange::Owner(other))]);
        assert!(!own(&gone).slots.contains(5) && own(&gone).migrating.is_empty() && own(&gone).epoch == 0);
        let arrived = applied(&[set(200, SlotChange::Importing(other)), set(200, SlotChange::Owner(me))]);
        assert!(own(&arrived).slots.contains(200) && own(&arrived).importing.is_empty());
        assert_eq!(own(&arrived).epoch, 3);
        let unknown = NodeId::new([9; 20]);
        for (request, reason) in [
            (set(200, SlotChange::Migrating(other)), "I'm not the owner of hash slot 200"),
            (set(5, SlotChange::Importing(other)), "I'm already the owner of hash slot 5"),
            (set(5, SlotChange::Migrating(me)), "Target node is myself"),
            (set(200, SlotChange::Importing(unknown)), &format!("I don't know about node {unknown}")),
            (set(5, SlotChange::Owner(unknown)), &format!("Unknown node {unknown}")),
        ] {
            assert_eq!(refused(&request), reason);
        }
    }

    #[test]
    fn epochs_rise() {
        assert_eq!(own(&applied(&[MapRequest::BumpEpoch])).epoch, 3);
        assert_eq!(own(&applied(&[MapRequest::BumpEpoch, MapRequest::BumpEpoch])).epoch, 3);
        assert!(refused(&MapRequest::SetEpoch(5)).starts_with("The user can assign"));
        let alone = [MapRequest::Reset { hard: None }, MapRequest::SetEpoch(5)];
        assert_eq!(own(&applied(&alone)).epoch, 5);
    }

    #[test]
    fn a_reset_forgets_the_cluster() {
        let (_, me, _) = two_nodes();
        let soft = applied(&[MapRequest::Reset { hard: None }]);
        assert_eq!((soft.me, soft.map.nodes().len(), soft.map.assigned()), (me, 1, 0));
        let ids = (NodeId::new([7; 20]), ShardId::new([8; 20]));
        let hard = applied(&[MapRequest::Reset { hard: Some(ids) }]);
        assert_eq!((hard.me, own(&hard).primary, hard.map.shards().len()), (ids.0, Some(ids.0), 1));
    }
}
