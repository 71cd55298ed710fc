//! Slots.

use std::collections::BTreeMap;

use super::{Plan, Refusal};
use crate::id::{MigrationId, NodeId, ShardId};
use crate::map::Shard;
use crate::slots::SlotRanges;
use crate::snapshot::{Change, Key, Migration};

fn single(slot: u16) -> SlotRanges {
    [slot].into_iter().collect()
}

const MASTERS_ONLY: &str = "ERR You can use SETSLOT only with masters.";

impl Plan<'_> {
    /// Also takes slots that another shard is about to give to this one, as SETSLOT NODE does: so
    /// `redis-cli --cluster fix` ends a move whose target has the keys.
    pub(super) fn add_slots(&mut self, slots: &SlotRanges) -> Result<(), Refusal> {
        let (id, shard) = self.own("ERR Only a master can be assigned slots")?;
        let mut sources = BTreeMap::new();
        for slot in slots.iter() {
            let Some((source, owner)) = self.owner(slot) else { continue };
            if owner.migrating.get(&slot) != Some(&id) {
                return Err(format!("ERR Slot {slot} is already busy"));
            }
            sources.insert(source, owner);
        }
        refuse_leftover(&shard, slots)?;
        // Another node may be about to take the same slots: whatever has slots is as it was.
        let shards: Vec<ShardId> = self.view.shards.keys().copied().collect();
        shards.into_iter().for_each(|other| self.guard(Key::Shard(other)));
        for (source, owner) in sources {
            self.change_shard(source, &owner, |shard| remove(shard, slots));
        }
        self.change_shard(id, &shard, |shard| {
            shard.slots = shard.slots.union(slots);
            shard.importing.retain(|slot, _| !slots.contains(*slot));
        });
        Ok(())
    }

    pub(super) fn del_slots(&mut self, slots: &SlotRanges) -> Result<(), Refusal> {
        let (id, shard) = self.own("ERR Only a master can give up slots")?;
        if let Some(slot) = slots.iter().find(|slot| !shard.slots.contains(*slot)) {
            return Err(match self.owner(slot) {
                None => format!("ERR Slot {slot} is already unassigned"),
                Some(_) => format!("ERR Slot {slot} is served by another node"),
            });
        }
        self.change_shard(id, &shard, |shard| remove(shard, slots));
        Ok(())
    }

    pub(super) fn flush_slots(&mut self) -> Result<(), Refusal> {
        let (id, shard) = self.own("ERR Only a master can give up slots")?;
        let slots = shard.slots.clone();
        self.change_shard(id, &shard, |shard| remove(shard, &slots));
        Ok(())
    }

    pub(super) fn migrating(&mut self, slot: u16, node: NodeId) -> Result<(), Refusal> {
        let (id, shard) = self.own(MASTERS_ONLY)?;
        if !shard.slots.contains(slot) {
            return Err(format!("ERR I'm not the owner of hash slot {slot}"));
        }
        let target = self.other_primary(node)?;
        if target == id {
            return Err("ERR Target node is myself".into());
        }
        self.refuse_moving(&single(slot))?;
        self.change_shard(id, &shard, |shard| {
            shard.migrating.insert(slot, target);
        });
        Ok(())
    }

    pub(super) fn importing(&mut self, slot: u16, node: NodeId) -> Result<(), Refusal> {
        let (id, shard) = self.own(MASTERS_ONLY)?;
        if shard.slots.contains(slot) {
            return Err(format!("ERR I'm already the owner of hash slot {slot}"));
        }
        refuse_leftover(&shard, &single(slot))?;
        let source = self.other_primary(node)?;
        if source == id {
            return Err("ERR Target node is myself".into());
        }
        self.refuse_moving(&single(slot))?;
        self.change_shard(id, &shard, |shard| {
            shard.importing.insert(slot, source);
        });
        Ok(())
    }

    /// The shard of a node that has to be a primary.
    fn other_primary(&mut self, node: NodeId) -> Result<ShardId, Refusal> {
        let (id, shard) = self.shard_of(node).map_err(|_| format!("ERR I don't know about node {node}"))?;
        if shard.primary != Some(node) {
            return Err("ERR Target node is not a master".into());
        }
        self.present(Key::Shard(id));
        Ok(id)
    }

    pub(super) fn stable(&mut self, slot: u16) -> Result<(), Refusal> {
        let (id, shard) = self.own(MASTERS_ONLY)?;
        self.change_shard(id, &shard, |shard| {
            shard.migrating.remove(&slot);
            shard.importing.remove(&slot);
        });
        Ok(())
    }

    pub(super) fn assign(&mut self, slot: u16, node: NodeId) -> Result<(), Refusal> {
        self.own(MASTERS_ONLY)?;
        let (target, changed) = self.shard_of(node)?;
        if changed.primary != Some(node) {
            return Err("ERR Target node is not a master".into());
        }
        self.refuse_moving(&single(slot))?;
        refuse_leftover(&changed, &single(slot))?;
        let owner = self.owner(slot).filter(|(id, _)| *id != target);
        if let Some((source, shard)) = &owner {
            let is_leaving = shard.migrating.get(&slot) == Some(&target);
            if shard.primary != Some(self.me) && !is_leaving {
                return Err(format!(
                    "ERR Slot {slot} is served by another node, from which it does not migrate to node {node}"
                ));
            }
            self.change_shard(*source, shard, |shard| remove(shard, &single(slot)));
        } else {
            let shards: Vec<ShardId> = self.view.shards.keys().copied().collect();
            shards.into_iter().for_each(|other| self.guard(Key::Shard(other)));
        }
        self.change_shard(target, &changed, |shard| {
            shard.slots = shard.slots.union(&single(slot));
            shard.importing.remove(&slot);
        });
        Ok(())
    }

    /// At the primary of the source, or of the target.
    pub(super) fn begin_move(
        &mut self,
        id: MigrationId,
        slots: &SlotRanges,
        target: NodeId,
    ) -> Result<(), Refusal> {
        let (own, _) = self.own("ERR Only a master can migrate slots")?;
        let target = self.other_primary(target)?;
        let Some(first) = slots.iter().next() else { return Err("ERR A move has slots".into()) };
        let Some((source, shard)) = self.owner(first).filter(|(source, _)| [*source, target].contains(&own))
        else {
            return Err(format!("ERR I'm not the owner of hash slot {first}"));
        };
        if let Some(slot) = slots.iter().find(|slot| !shard.slots.contains(*slot)) {
            return Err(match own == source {
                true => format!("ERR I'm not the owner of hash slot {slot}"),
                false => "ERR slots belong to different source nodes".into(),
            });
        }
        let single = slots.iter().find(|slot| shard.migrating.contains_key(slot));
        if target == source || single.is_some() {
            return Err("ERR These slots cannot be moved there".into());
        }
        self.refuse_moving(slots)?;
        let Some(entry) = self.view.shards.get(&target) else { return Err("ERR Unknown node".into()) };
        let (slots, target_epoch) = (slots.clone(), entry.value.epoch);
        self.change_shard(target, &entry.value, |shard| shard.leftover = shard.leftover.union(&slots));
        let migration =
            Migration { slots, source, target, source_epoch: shard.epoch, target_epoch, restarts: 0 };
        self.guard(Key::Shard(source));
        self.change(Change::Migration(id, migration));
        Ok(())
    }

    pub(super) fn cancel_move(&mut self, id: MigrationId) -> Result<(), Refusal> {
        if !self.view.migrations.contains_key(&id) {
            return Err(format!("ERR There is no migration {id}"));
        }
        self.change(Change::Delete(Key::Migration(id)));
        Ok(())
    }

    /// The node has removed the keys of slots that its shard does not own.
    pub(super) fn cleared(&mut self, slots: &SlotRanges) -> Result<(), Refusal> {
        let (id, shard) = self.own("ERR Only a master removes the keys of slots")?;
        self.change_shard(id, &shard, |shard| shard.leftover = shard.leftover.minus(slots));
        Ok(())
    }

    fn refuse_moving(&self, slots: &SlotRanges) -> Result<(), Refusal> {
        let moves = |entry: &crate::snapshot::Versioned<Migration>| entry.value.slots.meets(slots);
        match self.view.migrations.iter().find(|(_, entry)| moves(entry)) {
            Some((id, _)) => Err(format!("ERR Migration {id} moves one of these slots")),
            None => Ok(()),
        }
    }
}

/// Keys of an earlier move, or of a former shard, must not become those of the slot.
fn refuse_leftover(shard: &Shard, slots: &SlotRanges) -> Result<(), Refusal> {
    match slots.iter().find(|slot| shard.leftover.contains(*slot)) {
        Some(slot) => Err(format!("ERR Former keys of slot {slot} are still being removed")),
        None => Ok(()),
    }
}

fn remove(shard: &mut Shard, slots: &SlotRanges) {
    shard.slots = shard.slots.minus(slots);
    shard.migrating.retain(|slot, _| !slots.contains(*slot));
}
