//! Nodes, roles and epochs.

use std::collections::BTreeMap;

use super::{Plan, Refusal};
use crate::id::{NodeId, ShardId};
use crate::map::{Address, Node, Shard};
use crate::slots::SLOTS;
use crate::snapshot::{Change, Key};

impl Plan<'_> {
    pub(super) fn register(&mut self, address: &Address, shard: ShardId, incarnation: u64) {
        let known = self.view.nodes.get(&self.me).map(|entry| Node::clone(&entry.value));
        match known {
            Some(node) if node.address == *address => {}
            Some(node) => self.change(Change::Node(self.me, Node { address: address.clone(), ..node })),
            None => self.enter(address.clone(), shard, incarnation),
        }
    }

    /// The node becomes the primary of a new shard.
    fn enter(&mut self, address: Address, shard: ShardId, incarnation: u64) {
        let mut own = Shard { epoch: 1, primary: Some(self.me), ..Shard::default() };
        own.set_members(&BTreeMap::from([(self.me, incarnation)]));
        self.change(Change::Shard(shard, own));
        self.change(Change::Node(self.me, Node { address, shard, is_alive: false }));
    }

    pub(super) fn forget(&mut self, node: NodeId) -> Result<(), Refusal> {
        let (id, shard) = self.shard_of(node)?;
        if node == self.me {
            return Err("ERR I tried hard but I can't forget myself...".into());
        }
        if self.shard_of(self.me)?.0 == id && shard.primary == Some(node) {
            return Err("ERR Can't forget my master!".into());
        }
        if shard.primary == Some(node) && !self.is_empty(id, &shard, node) {
            return Err(format!("ERR Node {node} is a master with slots or replicas"));
        }
        self.leave_shard(id, &shard, node);
        self.change(Change::Delete(Key::Node(node)));
        Ok(())
    }

    /// Whether a shard has no slots, and no other node.
    fn is_empty(&self, id: ShardId, shard: &Shard, node: NodeId) -> bool {
        let others = self.view.nodes.iter().any(|(other, entry)| *other != node && entry.value.shard == id);
        shard.slots.is_empty() && !others
    }

    /// Takes a node out of its shard, and removes the shard with its only node. The shard's key changes in
    /// any case: a transaction of the primary that adds the node, and that is under way, is never made then.
    fn leave_shard(&mut self, id: ShardId, shard: &Shard, node: NodeId) {
        if shard.primary == Some(node) {
            return self.change(Change::Delete(Key::Shard(id)));
        }
        let mut changed = shard.clone();
        let mut members = shard.members();
        members.remove(&node);
        changed.set_members(&members);
        self.change(Change::Shard(id, changed));
    }

    pub(super) fn replicate(&mut self, node: NodeId) -> Result<(), Refusal> {
        if node == self.me {
            return Err("ERR Can't replicate myself".into());
        }
        let (target, primary) = self.shard_of(node)?;
        if primary.primary != Some(node) {
            return Err("ERR I can only replicate a master, not a replica.".into());
        }
        let (id, shard) = self.shard_of(self.me)?;
        if id == target {
            return Ok(());
        }
        if shard.primary == Some(self.me) && !self.is_empty(id, &shard, self.me) {
            return Err("ERR To set a master the node must be empty and without assigned slots.".into());
        }
        self.leave_shard(id, &shard, self.me);
        self.move_to(target);
        self.present(Key::Shard(target));
        Ok(())
    }

    fn move_to(&mut self, shard: ShardId) {
        if let Some(entry) = self.view.nodes.get(&self.me) {
            self.change(Change::Node(self.me, Node { shard, ..Node::clone(&entry.value) }));
        }
    }

    pub(super) fn reset(&mut self, shard: ShardId, incarnation: u64) -> Result<(), Refusal> {
        let (id, old) = self.shard_of(self.me)?;
        if old.primary == Some(self.me) {
            return if self.is_empty(id, &old, self.me) {
                Ok(())
            } else {
                Err("ERR CLUSTER RESET can't be called with master nodes that have slots or replicas".into())
            };
        }
        self.leave_shard(id, &old, self.me);
        // It has the former shard's keys yet, and removes them.
        let leftover = (0..SLOTS as u16).collect();
        let mut own = Shard { epoch: 1, primary: Some(self.me), leftover, ..Shard::default() };
        own.set_members(&BTreeMap::from([(self.me, incarnation)]));
        self.change(Change::Shard(shard, own));
        self.move_to(shard);
        Ok(())
    }

    /// A higher epoch of the shard that the node leads. The node has seen the shard's data, and goes on.
    pub(super) fn change_epoch(
        &mut self,
        change: impl FnOnce(u64) -> Result<u64, Refusal>,
    ) -> Result<(), Refusal> {
        let (id, shard) = self.own("ERR Only a master has an epoch of its own")?;
        let epoch = change(shard.epoch)?;
        self.change_shard(id, &shard, |shard| shard.epoch = epoch);
        Ok(())
    }

    pub(super) fn set_epoch(&mut self, epoch: u64) -> Result<(), Refusal> {
        if epoch == 0 {
            return Err("ERR Invalid config epoch specified: 0".into());
        }
        self.change_epoch(|known| {
            if known > epoch {
                return Err(format!("ERR The epoch is {known} already, and never goes back"));
            }
            Ok(epoch)
        })
    }
}
