//! The keys of the store: a consistent view of them, and transactions that change them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{MigrationId, NodeId, ShardId};
use crate::map::{Address, Map, Node, Shard};
use crate::slots::SlotRanges;

/// The identity of a lease of the store.
pub type LeaseId = u64;

/// The entry `alive/<node>`, which the store removes when the lease of the node ends. Only the node writes
/// it, and nothing but the end of the lease removes it: promotions rely on that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alive {
    /// A random number of the process: two processes with the identity of one node differ in it.
    pub process: u64,
    /// The lease that the entry is bound to.
    pub lease: LeaseId,
    /// The number of the data of the node. It rises whenever the node may have lost a write: at a start
    /// without all acknowledged writes, and before a full synchronization drops its data.
    pub incarnation: u64,
    /// The number of bytes of the replication stream that the node had when it wrote the entry.
    pub offset: u64,
    pub address: Address,
    /// The version of the program.
    #[serde(default)]
    pub version: String,
}

/// Slots that move from a shard to another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migration {
    pub slots: SlotRanges,
    pub source: ShardId,
    pub target: ShardId,
    /// The epochs of both shards when the copy began. The copy begins again after a change of either.
    pub source_epoch: u64,
    pub target_epoch: u64,
    /// The number of times that the copy began again.
    #[serde(default)]
    pub restarts: u32,
}

impl Migration {
    /// Whether the slots come to this shard, between these epochs.
    pub fn comes_to(&self, shard: ShardId, source_epoch: u64, target_epoch: u64) -> bool {
        (self.target, self.source_epoch, self.target_epoch) == (shard, source_epoch, target_epoch)
    }
}

/// A value of the store with the revision of its last change.
#[derive(Debug, PartialEq, Eq)]
pub struct Versioned<T> {
    pub value: Arc<T>,
    pub revision: u64,
}

impl<T> Clone for Versioned<T> {
    fn clone(&self) -> Versioned<T> {
        Versioned { value: Arc::clone(&self.value), revision: self.revision }
    }
}

/// A key of the store, below the prefix of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Meta,
    Node(NodeId),
    Alive(NodeId),
    Shard(ShardId),
    Migration(MigrationId),
}

/// A condition of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The key was last changed at this revision; 0: there is no such key.
    Unchanged(Key, u64),
    /// There is such a key.
    Present(Key),
}

/// A change that a transaction makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Node(NodeId, Node),
    /// Bound to the lease that the entry names.
    Alive(NodeId, Alive),
    Shard(ShardId, Shard),
    Migration(MigrationId, Migration),
    Delete(Key),
}

impl Change {
    pub fn key(&self) -> Key {
        match self {
            Change::Node(id, _) => Key::Node(*id),
            Change::Alive(id, _) => Key::Alive(*id),
            Change::Shard(id, _) => Key::Shard(*id),
            Change::Migration(id, _) => Key::Migration(*id),
            Change::Delete(key) => *key,
        }
    }
}

/// Changes that the store makes together, if all guards hold, or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    pub guards: Vec<Guard>,
    pub changes: Vec<Change>,
}

/// All keys of a cluster at one revision of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub revision: u64,
    pub nodes: BTreeMap<NodeId, Versioned<Node>>,
    pub alive: BTreeMap<NodeId, Versioned<Alive>>,
    pub shards: BTreeMap<ShardId, Versioned<Shard>>,
    pub migrations: BTreeMap<MigrationId, Versioned<Migration>>,
}

impl Snapshot {
    /// The map of this view.
    pub fn map(&self) -> Map {
        let node = |(id, entry): (&NodeId, &Versioned<Node>)| {
            (*id, Node { is_alive: self.alive.contains_key(id), ..Node::clone(&entry.value) })
        };
        let shard = |(id, entry): (&ShardId, &Versioned<Shard>)| (*id, Shard::clone(&entry.value));
        Map::new(
            self.revision,
            self.nodes.iter().map(node).collect(),
            self.shards.iter().map(shard).collect(),
        )
    }

    /// The revision of the last change of a key; 0 without such a key.
    pub fn revision_of(&self, key: Key) -> u64 {
        match key {
            Key::Meta => None,
            Key::Node(id) => self.nodes.get(&id).map(|entry| entry.revision),
            Key::Alive(id) => self.alive.get(&id).map(|entry| entry.revision),
            Key::Shard(id) => self.shards.get(&id).map(|entry| entry.revision),
            Key::Migration(id) => self.migrations.get(&id).map(|entry| entry.revision),
        }
        .unwrap_or(0)
    }

    /// The guard that a key is as in this view.
    pub fn unchanged(&self, key: Key) -> Guard {
        Guard::Unchanged(key, self.revision_of(key))
    }

    /// Whether a guard holds in this view.
    pub fn satisfies(&self, guard: &Guard) -> bool {
        match *guard {
            Guard::Unchanged(key, revision) => self.revision_of(key) == revision,
            Guard::Present(key) => self.revision_of(key) != 0,
        }
    }

    /// Makes a change at a revision.
    pub fn apply(&mut self, revision: u64, change: Change) {
        self.revision = revision;
        match change {
            Change::Node(id, value) => drop(self.nodes.insert(id, versioned(revision, value))),
            Change::Alive(id, value) => drop(self.alive.insert(id, versioned(revision, value))),
            Change::Shard(id, value) => drop(self.shards.insert(id, versioned(revision, value))),
            Change::Migration(id, value) => drop(self.migrations.insert(id, versioned(revision, value))),
            Change::Delete(key) => self.delete(key),
        }
    }

    fn delete(&mut self, key: Key) {
        match key {
            Key::Meta => {}
            Key::Node(id) => drop(self.nodes.remove(&id)),
            Key::Alive(id) => drop(self.alive.remove(&id)),
            Key::Shard(id) => drop(self.shards.remove(&id)),
            Key::Migration(id) => drop(self.migrations.remove(&id)),
        }
    }

    /// Makes the changes of a transaction at a revision, if its guards hold. Returns whether they did.
    pub fn commit(&mut self, revision: u64, transaction: &Transaction) -> bool {
        let holds = transaction.guards.iter().all(|guard| self.satisfies(guard));
        if holds {
            transaction.changes.iter().for_each(|change| self.apply(revision, change.clone()));
        }
        holds
    }
}

fn versioned<T>(revision: u64, value: T) -> Versioned<T> {
    Versioned { value: Arc::new(value), revision }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_changes_all_or_nothing() {
        let (a, b) = (ShardId::new([1; 20]), ShardId::new([2; 20]));
        let put = |id| Change::Shard(id, Shard::default());
        let mut view = Snapshot::default();
        let both = Transaction { guards: vec![view.unchanged(Key::Shard(a))], changes: vec![put(a), put(b)] };
        assert!(view.commit(5, &both) && !view.commit(6, &both));
        assert_eq!((view.revision, view.revision_of(Key::Shard(b)), view.shards.len()), (5, 5, 2));
        let delete = Transaction {
            guards: vec![Guard::Present(Key::Shard(b)), view.unchanged(Key::Shard(a))],
            changes: vec![Change::Delete(Key::Shard(b))],
        };
        assert!(view.commit(7, &delete) && !view.commit(8, &delete));
        assert_eq!(view.map().shards().len(), 1);
    }
}
