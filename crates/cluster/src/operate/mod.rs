//! What operators ask of a node, as transactions on the map: CLUSTER ADDSLOTS, SETSLOT, REPLICATE and so on.
//!
//! A plan is made from a view and is guarded by all that it read. If it is refused, it is made again from a
//! newer view. Slots leave a shard only by a transaction of the shard's own primary, which stops serving them
//! before it sends the transaction; the exception is SETSLOT NODE at the target of a slot that is MIGRATING,
//! whose source has no keys left.
//!
//! Texts of errors are Redis' texts where Redis has the error.

mod nodes;
mod slots;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::id::{MigrationId, NodeId, ShardId};
use crate::map::{Address, Shard};
use crate::slots::SlotRanges;
use crate::snapshot::{Change, Guard, Key, Snapshot, Transaction};

/// A request of an operator, or of the node itself, to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The node enters the map, as the primary of a new shard without slots, or changes its address.
    Register { address: Address, shard: ShardId, incarnation: u64 },
    /// CLUSTER ADDSLOTS, ADDSLOTSRANGE
    AddSlots(SlotRanges),
    /// CLUSTER DELSLOTS, DELSLOTSRANGE
    DelSlots(SlotRanges),
    /// CLUSTER FLUSHSLOTS
    FlushSlots,
    /// CLUSTER SETSLOT slot MIGRATING node
    Migrating { slot: u16, node: NodeId },
    /// CLUSTER SETSLOT slot IMPORTING node
    Importing { slot: u16, node: NodeId },
    /// CLUSTER SETSLOT slot STABLE
    Stable { slot: u16 },
    /// CLUSTER SETSLOT slot NODE node
    Assign { slot: u16, node: NodeId },
    /// CLUSTER FORGET node
    Forget(NodeId),
    /// CLUSTER REPLICATE node
    Replicate(NodeId),
    /// CLUSTER RESET, CLUSTER REPLICATE NO ONE: a replica is alone again, the primary of a new shard, and
    /// removes the keys of its former shard.
    Reset { shard: ShardId, incarnation: u64 },
    /// CLUSTER BUMPEPOCH
    BumpEpoch,
    /// CLUSTER SET-CONFIG-EPOCH epoch
    SetConfigEpoch(u64),
    /// CLUSTER MIGRATESLOTS, and CLUSTER MIGRATION IMPORT at the target: an atomic move.
    Move { id: MigrationId, slots: SlotRanges, target: NodeId },
    /// CLUSTER CANCELSLOTMIGRATIONS
    CancelMove(MigrationId),
    /// The node has removed the keys of these slots, which its shard does not own.
    Cleared(SlotRanges),
}

/// The reason why an operation is not possible: an error reply.
pub type Refusal = String;

/// Plans an operation at a node. A transaction without changes: there is nothing to do.
pub fn plan(view: &Snapshot, me: NodeId, operation: &Operation) -> Result<Transaction, Refusal> {
    let mut plan = Plan { view, me, transaction: Transaction::default() };
    match operation {
        Operation::Register { address, shard, incarnation } => plan.register(address, *shard, *incarnation),
        Operation::AddSlots(slots) => plan.add_slots(slots)?,
        Operation::DelSlots(slots) => plan.del_slots(slots)?,
        Operation::FlushSlots => plan.flush_slots()?,
        Operation::Migrating { slot, node } => plan.migrating(*slot, *node)?,
        Operation::Importing { slot, node } => plan.importing(*slot, *node)?,
        Operation::Stable { slot } => plan.stable(*slot)?,
        Operation::Assign { slot, node } => plan.assign(*slot, *node)?,
        Operation::Forget(node) => plan.forget(*node)?,
        Operation::Replicate(node) => plan.replicate(*node)?,
        Operation::Reset { shard, incarnation } => plan.reset(*shard, *incarnation)?,
        Operation::BumpEpoch => plan.change_epoch(|epoch| Ok(epoch + 1))?,
        Operation::SetConfigEpoch(epoch) => plan.set_epoch(*epoch)?,
        Operation::Move { id, slots, target } => plan.begin_move(*id, slots, *target)?,
        Operation::CancelMove(id) => plan.cancel_move(*id)?,
        Operation::Cleared(slots) => plan.cleared(slots)?,
    }
    Ok(plan.transaction)
}

/// A transaction that is being made.
struct Plan<'a> {
    view: &'a Snapshot,
    me: NodeId,
    transaction: Transaction,
}

impl Plan<'_> {
    /// The transaction is made only if the key is as in the view.
    fn guard(&mut self, key: Key) {
        let guard = self.view.unchanged(key);
        if !self.transaction.guards.contains(&guard) {
            self.transaction.guards.push(guard);
        }
    }

    fn change(&mut self, change: Change) {
        self.guard(change.key());
        self.transaction.changes.push(change);
    }

    fn present(&mut self, key: Key) {
        self.transaction.guards.push(Guard::Present(key));
    }

    /// Changes a shard.
    fn change_shard(&mut self, id: ShardId, shard: &Shard, change: impl FnOnce(&mut Shard)) {
        let mut changed = shard.clone();
        change(&mut changed);
        if changed != *shard {
            self.change(Change::Shard(id, changed));
        }
    }

    /// The shard of a node; `Err`: the map does not have the node.
    fn shard_of(&self, node: NodeId) -> Result<(ShardId, Arc<Shard>), Refusal> {
        let id = self.view.nodes.get(&node).map(|entry| entry.value.shard);
        let id = id.ok_or_else(|| format!("ERR Unknown node {node}"))?;
        let shard = self.view.shards.get(&id).map(|entry| Arc::clone(&entry.value)).unwrap_or_default();
        Ok((id, shard))
    }

    /// The shard that this node is the primary of.
    fn own(&self, refusal: &str) -> Result<(ShardId, Arc<Shard>), Refusal> {
        let (id, shard) = self.shard_of(self.me)?;
        if shard.primary == Some(self.me) { Ok((id, shard)) } else { Err(refusal.into()) }
    }

    fn owner(&self, slot: u16) -> Option<(ShardId, Arc<Shard>)> {
        let entry = self.view.shards.iter().find(|(_, entry)| entry.value.slots.contains(slot))?;
        Some((*entry.0, Arc::clone(&entry.1.value)))
    }
}
