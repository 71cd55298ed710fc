//! Faults and operators.

use super::{Event, Request, SLOTS_USED, TTL, World, node_id};
use crate::decide;
use crate::id::MigrationId;
use crate::map::{FailoverMode, Shard};
use crate::operate::{Operation, plan};
use crate::snapshot::{Change, Guard, Key, Transaction};

impl World {
    pub(super) fn fault(&mut self) {
        let pause = 100 + self.random.below(1_500) as u64;
        self.after(pause, Event::Fault);
        if !self.has_faults {
            return;
        }
        let at = self.random.below(self.nodes.len());
        match self.random.below(20) {
            0 | 1 => self.crash(at, true),
            2 => self.crash(at, false),
            3 | 4 => self.stop(at),
            5..=7 => self.partition(),
            8 => self.heal(),
            9 => self.stop_store(),
            10 => self.store.change_leader(self.now),
            11 | 12 => self.operator_failover(at),
            13 => self.shut_down(at),
            14 => self.cancel_move(),
            15 => self.replicate(at),
            16 => self.bump_epoch(at),
            _ => self.move_slots(),
        }
    }

    fn crash(&mut self, at: usize, keeps_data: bool) {
        if self.nodes[at].decider.is_none() || !keeps_data && !self.may_lose(at) {
            return;
        }
        self.record(|| format!("node {at} crashes, keeps data: {keeps_data}"));
        self.end_process(at);
        if !keeps_data {
            let rest = self.random.below(self.nodes[at].log.len() + 1);
            let rest = if self.random.chance(50) { 0 } else { rest };
            self.nodes[at].log.truncate(rest);
            self.nodes[at].incarnation = self.number();
        }
        let pause = 10 + self.random.below(3 * TTL as usize) as u64;
        self.after(pause, Event::Restart { node: at });
    }

    pub(super) fn restart(&mut self, at: usize) {
        if self.nodes[at].decider.is_none() {
            self.record(|| format!("node {at} starts"));
            self.start(at, true);
        }
    }

    /// Whether another node has the data of the node's shard, now and after each transaction that may yet be
    /// made: no protocol survives the loss of all copies.
    fn may_lose(&self, at: usize) -> bool {
        let id = self.store.view.nodes[&node_id(at)].value.shard;
        let Some(entry) = self.store.view.shards.get(&id) else { return true };
        let others = |shard: &Shard| self.true_members(shard).into_iter().any(|member| member != at);
        let keeps = |change: &Change| match change {
            Change::Shard(changed, shard) if *changed == id => others(shard),
            _ => true,
        };
        let under_way = |event: &Event| match event {
            Event::Store { request: Request::Commit(_, transaction), .. } => {
                transaction.changes.iter().all(keeps)
            }
            _ => true,
        };
        others(&entry.value) && self.queue.iter().all(|queued| under_way(&queued.event))
    }

    /// SIGSTOP, and SIGCONT after a time that may be longer than the lease.
    fn stop(&mut self, at: usize) {
        let pause = 50 + self.random.below(2 * TTL as usize) as u64;
        self.record(|| format!("node {at} is stopped for {pause} ms"));
        self.nodes[at].stopped_until = self.now + pause;
        self.after(pause, Event::Resume { node: at });
    }

    fn partition(&mut self) {
        let count = self.cut.len();
        match self.random.below(4) {
            // A node, or the store, alone.
            0 => {
                let at = self.random.below(count);
                (0..count).for_each(|other| self.cut_both(at, other));
            }
            // A node and the store.
            1 => {
                let at = self.random.below(count - 1);
                self.cut_both(at, count - 1);
            }
            // A single direction between two nodes.
            2 => {
                let (from, to) = (self.random.below(count), self.random.below(count));
                self.cut[from][to] = true;
            }
            // Two halves.
            _ => {
                let sides: Vec<bool> = (0..count).map(|_| self.random.chance(50)).collect();
                let pairs = (0..count).flat_map(|a| (0..count).map(move |b| (a, b)));
                pairs.filter(|(a, b)| sides[*a] != sides[*b]).for_each(|(a, b)| self.cut[a][b] = true);
            }
        }
        let pause = 100 + self.random.below(3 * TTL as usize) as u64;
        self.after(pause, Event::Heal);
    }

    fn cut_both(&mut self, a: usize, b: usize) {
        self.cut[a][b] = true;
        self.cut[b][a] = true;
    }

    pub(super) fn heal(&mut self) {
        self.cut.iter_mut().flatten().for_each(|cut| *cut = false);
    }

    fn stop_store(&mut self) {
        let pause = self.random.below(TTL as usize) as u64;
        self.store.stopped_until = self.now + pause;
    }

    fn operator_failover(&mut self, at: usize) {
        let mode = if self.random.chance(70) { FailoverMode::Planned } else { FailoverMode::Force };
        if !self.nodes[at].is_stopped(self.now) {
            self.decide(at, decide::Event::Failover(mode));
            self.check_writers(at);
        }
    }

    fn shut_down(&mut self, at: usize) {
        if !self.nodes[at].is_stopped(self.now) {
            self.decide(at, decide::Event::Shutdown);
            self.check_writers(at);
        }
    }

    /// An operator moves a slot from one shard to the other.
    fn move_slots(&mut self) {
        let slot = self.random.below(usize::from(SLOTS_USED)) as u16;
        let view = std::sync::Arc::clone(&self.store.view);
        let owns = |shard: &Shard| shard.slots.contains(slot);
        let Some((source, shard)) = view.shards.iter().find(|(_, shard)| owns(&shard.value)) else { return };
        let Some((_, other)) = view.shards.iter().find(|(id, _)| *id != source) else { return };
        if view.migrations.values().any(|entry| entry.value.slots.contains(slot))
            || shard.value.slots.len() < 2
        {
            return;
        }
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&self.number().to_be_bytes());
        let (Some(from), Some(to)) = (shard.value.primary, other.value.primary) else { return };
        let slots = [slot].into_iter().collect();
        let operation = Operation::Move { id: MigrationId::new(bytes), slots, target: to };
        if let Ok(transaction) = plan(&view, from, &operation) {
            self.commit(&transaction);
        }
    }

    fn cancel_move(&mut self) {
        let Some(id) = self.store.view.migrations.keys().next().copied() else { return };
        let key = Key::Migration(id);
        self.commit(&Transaction { guards: vec![Guard::Present(key)], changes: vec![Change::Delete(key)] });
    }

    /// An operator makes a replica one of the other shard.
    fn replicate(&mut self, at: usize) {
        let own = self.store.view.nodes[&node_id(at)].value.shard;
        let other = self.store.view.shards.iter().find(|(id, _)| **id != own);
        if let Some(primary) = other.and_then(|(_, shard)| shard.value.primary)
            && self.may_lose(at)
        {
            self.operate(at, &Operation::Replicate(primary));
        }
    }

    fn bump_epoch(&mut self, at: usize) {
        self.operate(at, &Operation::BumpEpoch);
    }

    fn operate(&mut self, at: usize, operation: &Operation) {
        if let Ok(transaction) = plan(&self.store.view, node_id(at), operation) {
            self.record(|| format!("operator at node {at}: {operation:?}"));
            self.commit(&transaction);
        }
    }

    /// No faults from now on: everybody runs, and everything is connected.
    pub(super) fn calm(&mut self) {
        self.has_faults = false;
        self.heal();
        self.store.stopped_until = 0;
        for at in 0..self.nodes.len() {
            self.nodes[at].stopped_until = self.nodes[at].stopped_until.min(self.now);
            self.restart(at);
        }
    }
}
