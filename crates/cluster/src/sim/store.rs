//! The model of etcd: one order of transactions, leases by its own clock, watches that are late.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_testkit::random::Random;

use super::{Event, Message, Request, SLOTS_USED, TTL, World, node_id, shard_id};
use crate::decide::Outcome;
use crate::map::{Address, Node, Shard};
use crate::snapshot::{Change, Key, LeaseId, Snapshot, Transaction};

pub(super) struct Store {
    pub(super) view: Arc<Snapshot>,
    /// The end of each lease, by the store's clock.
    leases: BTreeMap<LeaseId, u64>,
    revision: u64,
    /// Parts per million by which the clock is fast.
    rate: i64,
    /// The leader does nothing before this time.
    pub(super) stopped_until: u64,
}

impl Store {
    pub(super) fn new(random: &mut Random) -> Store {
        Store {
            view: Arc::default(),
            leases: BTreeMap::new(),
            revision: 1,
            rate: random.between(-1_000, 1_000),
            stopped_until: 0,
        }
    }

    fn clock(&self, now: u64) -> u64 {
        (now as i64 + now as i64 * self.rate / 1_000_000) as u64
    }

    /// Two shards, with every node in one of them.
    pub(super) fn set_up(&mut self, count: usize) {
        let mut view = Snapshot::default();
        for at in 0..count {
            let node = Node { address: Address::default(), shard: shard_id(at % 2), is_alive: false };
            view.apply(1, Change::Node(node_id(at), node));
        }
        for at in 0..2 {
            let half = SLOTS_USED / 2;
            let mut shard = Shard { primary: Some(node_id(at)), ..Shard::default() };
            shard.slots = (at as u16 * half..(at as u16 + 1) * half).collect();
            shard.set_members(&[(node_id(at), 0)].into());
            view.apply(1, Change::Shard(shard_id(at), shard));
        }
        self.view = Arc::new(view);
    }

    /// Makes a transaction. Returns its revision, if its guards held.
    pub(super) fn commit(&mut self, transaction: &Transaction) -> Option<u64> {
        let has_lease = |change: &Change| match change {
            Change::Alive(_, alive) => self.leases.contains_key(&alive.lease),
            _ => true,
        };
        let guards = transaction.guards.iter().all(|guard| self.view.satisfies(guard));
        if !guards || !transaction.changes.iter().all(has_lease) {
            return None;
        }
        self.revision += 1;
        let revision = self.revision;
        Arc::make_mut(&mut self.view).commit(revision, transaction);
        Some(revision)
    }

    /// A new leader counts all leases anew.
    pub(super) fn change_leader(&mut self, now: u64) {
        let end = self.clock(now) + TTL;
        self.leases.values_mut().for_each(|lease| *lease = end);
    }
}

impl World {
    pub(super) fn on_store(&mut self, from: usize, life: u32, sent: u64, request: Request) {
        if self.now < self.store.stopped_until {
            let rest = self.store.stopped_until - self.now + self.random.below(20) as u64;
            return self.after(rest, Event::Store { from, life, sent, request });
        }
        let store = self.nodes.len();
        let end = self.store.clock(self.now) + TTL;
        let answer = match request {
            Request::Grant => {
                let lease = self.number();
                self.store.leases.insert(lease, end);
                Message::Lease { lease: Some(lease), asked: None, sent }
            }
            Request::Renew(lease) => {
                let known = self.store.leases.get_mut(&lease).map(|known| *known = end);
                Message::Lease { lease: known.map(|()| lease), asked: Some(lease), sent }
            }
            Request::Revoke(lease) => return self.end_leases(&[lease]),
            Request::Commit(number, transaction) => {
                let outcome = self.commit(&transaction).map_or(Outcome::Refused, Outcome::Committed);
                Message::Answer { number, outcome }
            }
            Request::Read => Message::View(Arc::clone(&self.store.view)),
        };
        if self.nodes[from].life == life {
            self.send(store, from, answer);
        }
    }

    /// Makes a transaction, checks its effect, and sends it to the watches.
    pub(super) fn commit(&mut self, transaction: &Transaction) -> Option<u64> {
        let before = Arc::clone(&self.store.view);
        let revision = self.store.commit(transaction)?;
        let keys: Vec<Key> = transaction.changes.iter().map(Change::key).collect();
        for key in keys {
            if let Key::Shard(id) = key {
                self.record(|| format!("store: shard {id:?}"));
                self.check_shard(id, &before);
            }
        }
        self.notify();
        Some(revision)
    }

    fn notify(&mut self) {
        let store = self.nodes.len();
        for at in 0..self.nodes.len() {
            if self.nodes[at].decider.is_some() {
                let view = Arc::clone(&self.store.view);
                self.send(store, at, Message::View(view));
            }
        }
    }

    pub(super) fn expire(&mut self) {
        let pause = 20 + self.random.below(60) as u64;
        self.after(pause, Event::Expire);
        if self.now < self.store.stopped_until {
            return;
        }
        let now = self.store.clock(self.now);
        let ended: Vec<LeaseId> =
            self.store.leases.iter().filter(|(_, end)| **end <= now).map(|(lease, _)| *lease).collect();
        if !ended.is_empty() {
            self.end_leases(&ended);
        }
    }

    fn end_leases(&mut self, ended: &[LeaseId]) {
        for lease in ended {
            self.store.leases.remove(lease);
        }
        let view = Arc::clone(&self.store.view);
        let bound = view.alive.iter().filter(|(_, entry)| ended.contains(&entry.value.lease));
        let changes: Vec<Change> = bound.map(|(node, _)| Change::Delete(Key::Alive(*node))).collect();
        if !changes.is_empty() {
            self.record(|| format!("store: leases end: {changes:?}"));
            self.commit(&Transaction { guards: Vec::new(), changes });
        }
    }
}
