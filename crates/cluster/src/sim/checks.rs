//! The promises, checked against the true state of the world.
//!
//! | promise | checked |
//! |---|---|
//! | at most a single node accepts writes of a slot | after each step, for the node of the step |
//! | each in-sync member has each acknowledged write | at acknowledgements and changes of a shard |
//! | without faults, each slot is served, and moves end | at the end |

use std::sync::Arc;

use super::{Record, SLOTS_USED, World, place_of};
use crate::id::ShardId;
use crate::map::Shard;
use crate::snapshot::Snapshot;

/// What clients know.
#[derive(Default)]
pub(super) struct Truth {
    /// For each write: whether it was acknowledged.
    acknowledged: Vec<bool>,
    /// The acknowledged writes of each slot.
    by_slot: [Vec<u32>; SLOTS_USED as usize],
    pub(super) promotions: u64,
    pub(super) moved: u64,
}

impl Truth {
    pub(super) fn new_write(&mut self) -> u32 {
        self.acknowledged.push(false);
        (self.acknowledged.len() - 1) as u32
    }

    pub(super) fn count(&self) -> usize {
        self.by_slot.iter().map(Vec::len).sum()
    }
}

/// The writes that a log makes.
fn content(log: &[Record], writes: usize) -> Vec<bool> {
    let mut has = vec![false; writes];
    let mut by_slot: [Vec<u32>; SLOTS_USED as usize] = Default::default();
    for record in log {
        let slot = &mut by_slot[usize::from(record.slot)];
        match record.write {
            Some(write) => {
                slot.push(write);
                has[write as usize] = true;
            }
            None => slot.drain(..).for_each(|write| has[write as usize] = false),
        }
    }
    has
}

impl World {
    /// No other node accepts writes of the node's slots.
    pub(super) fn check_writers(&mut self, at: usize) {
        let now = self.now;
        let own = self.nodes[at].writable(now);
        if own == 0 {
            return;
        }
        for other in 0..self.nodes.len() {
            let both = own & self.nodes[other].writable(now);
            if other != at && both != 0 {
                self.break_promise(format!("nodes {at} and {other} accept writes of slots {both:b}"));
            }
        }
    }

    /// The in-sync members of a shard whose data are the data that made them members.
    pub(super) fn true_members(&self, shard: &Shard) -> Vec<usize> {
        let has =
            |(node, number): &(crate::id::NodeId, u64)| self.nodes[place_of(*node)].incarnation == *number;
        shard.members().into_iter().filter(has).map(|(node, _)| place_of(node)).collect()
    }

    fn owner(&self, slot: u8) -> Option<Arc<Shard>> {
        let owns = |shard: &&crate::snapshot::Versioned<Shard>| shard.value.slots.contains(u16::from(slot));
        self.store.view.shards.values().find(owns).map(|entry| Arc::clone(&entry.value))
    }

    /// A primary acknowledges the writes between two lengths of its log.
    pub(super) fn check_acknowledged(&mut self, at: usize, start: usize, end: usize) {
        for place in start..end {
            let record = self.nodes[at].log[place];
            let Some(write) = record.write else { continue };
            // Only the process that accepted a write has a client to answer.
            let has_client = record.process == self.process(at) && !record.is_copy;
            if self.truth.acknowledged[write as usize] || !has_client {
                continue;
            }
            self.record(|| format!("node {at} acknowledges write {write} of slot {}", record.slot));
            self.truth.acknowledged[write as usize] = true;
            self.truth.by_slot[usize::from(record.slot)].push(write);
            self.check_kept(at, place, record, write);
        }
    }

    fn check_kept(&mut self, at: usize, place: usize, record: Record, write: u32) {
        let Some(shard) = self.owner(record.slot) else { return };
        let writes = self.truth.acknowledged.len();
        for member in self.true_members(&shard) {
            let log = &self.nodes[member].log;
            if log.get(place) != Some(&record) && !content(log, writes)[write as usize] {
                self.break_promise(format!(
                    "node {at} acknowledges write {write} of slot {}, and in-sync node {member} lacks it",
                    record.slot
                ));
            }
        }
    }

    /// A shard has changed: each in-sync member has each acknowledged write of its slots.
    pub(super) fn check_shard(&mut self, id: ShardId, before: &Snapshot) {
        let Some(shard) = self.store.view.shards.get(&id).map(|entry| Arc::clone(&entry.value)) else {
            return;
        };
        if let Some(old) = before.shards.get(&id) {
            self.truth.promotions += u64::from(old.value.epoch != shard.epoch);
            self.truth.moved += u64::from(old.value.slots.len() < shard.slots.len());
        }
        self.check_members(&shard);
    }

    fn check_members(&mut self, shard: &Shard) {
        let members = self.true_members(shard);
        if members.is_empty() && self.protections.incarnations {
            self.break_promise(format!("nobody has the data of a shard: {shard:?}"));
        }
        for member in members {
            let has = content(&self.nodes[member].log, self.truth.acknowledged.len());
            let slots = shard.slots.iter();
            let lost = slots
                .flat_map(|slot| &self.truth.by_slot[usize::from(slot)])
                .find(|write| !has[**write as usize]);
            if let Some(write) = lost {
                self.break_promise(format!("in-sync node {member} lacks write {write}: {shard:?}"));
            }
        }
    }

    /// Without faults for a while: each slot is served, and no move remains.
    pub(super) fn check_end(&mut self) {
        let now = self.now;
        let served = self.nodes.iter().fold(0, |all, node| all | node.writable(now));
        let all = (1u64 << SLOTS_USED) - 1;
        if served != all {
            self.break_promise(format!("slots {:b} are not served in the end", all & !served));
        }
        if !self.store.view.migrations.is_empty() {
            self.break_promise(format!("moves do not end: {:?}", self.store.view.migrations));
        }
        let shards: Vec<Arc<Shard>> =
            self.store.view.shards.values().map(|entry| Arc::clone(&entry.value)).collect();
        for shard in shards {
            self.check_members(&shard);
            self.check_primary(&shard);
        }
    }

    fn check_primary(&mut self, shard: &Shard) {
        let Some(primary) = shard.primary.map(place_of) else { return };
        let has = content(&self.nodes[primary].log, self.truth.acknowledged.len());
        let mut slots = shard.slots.iter().flat_map(|slot| &self.truth.by_slot[usize::from(slot)]);
        if slots.any(|write| !has[*write as usize]) {
            self.break_promise(format!("the primary {primary} lacks an acknowledged write"));
        }
    }
}
