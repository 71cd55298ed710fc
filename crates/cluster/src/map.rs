//! The map: nodes, shards, and the owner of each slot.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::id::{NodeId, ShardId};
use crate::slots::{SLOTS, SlotRanges};

/// How clients reach a node, and what else it announces by its settings. A port of 0: there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// An IPv4 or IPv6 address.
    pub ip: String,
    pub port: u16,
    pub tls_port: u16,
    /// `cluster-announce-hostname`; may be empty.
    #[serde(default)]
    pub hostname: String,
    /// `cluster-announce-human-nodename`; may be empty.
    #[serde(default)]
    pub human_name: String,
    /// `cluster-announce-client-ipv4`, the address for clients that use IPv4; may be empty.
    #[serde(default)]
    pub client_ipv4: String,
    /// `cluster-announce-client-ipv6`; may be empty.
    #[serde(default)]
    pub client_ipv6: String,
    /// `cluster-announce-client-port`, the port for clients; 0: `port`.
    #[serde(default)]
    pub client_port: u16,
    /// `cluster-announce-client-tls-port`; 0: `tls_port`.
    #[serde(default)]
    pub client_tls_port: u16,
    /// `availability-zone`; may be empty.
    #[serde(default)]
    pub zone: String,
    /// `cluster-replica-no-failover`: the node becomes a primary only when an operator asks for it.
    #[serde(default)]
    pub no_failover: bool,
}

/// A server process that belongs to the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub address: Address,
    pub shard: ShardId,
    /// Whether its lease lives. Not part of the node's own entry.
    #[serde(skip)]
    pub is_alive: bool,
}

/// How much a change of the primary that an operator asks for may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailoverMode {
    /// The primary stops writes and waits until the replica has all of them.
    Planned,
    /// The primary does not wait: unacknowledged writes may be lost. Without a primary, its lease ends first.
    Force,
    /// As `Force`, and the replica needs not be in sync: acknowledged writes may be lost.
    Takeover,
}

/// The replica that an operator wants as the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heir {
    pub node: NodeId,
    pub mode: FailoverMode,
}

/// A primary, its replicas, and the slots that they own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Rises with each change of the primary.
    pub epoch: u64,
    /// The node that serves writes. `None`: the shard has lost its primary.
    pub primary: Option<NodeId>,
    /// The nodes that have every write that a client was promised, the primary among them. Only they may be
    /// promoted.
    #[serde(default)]
    pub in_sync: BTreeSet<NodeId>,
    /// The data that made each member of `in_sync` a member: a member whose data has another number now
    /// ([`Alive::incarnation`](crate::Alive)) lost them, and is not promoted.
    #[serde(default)]
    pub incarnations: BTreeMap<NodeId, u64>,
    /// The replica that an operator wants as the primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heir: Option<Heir>,
    pub slots: SlotRanges,
    /// Slots that leave key by key (CLUSTER SETSLOT MIGRATING), with their target.
    #[serde(default)]
    pub migrating: BTreeMap<u16, ShardId>,
    /// Slots that arrive key by key (CLUSTER SETSLOT IMPORTING), with their source.
    #[serde(default)]
    pub importing: BTreeMap<u16, ShardId>,
    /// Slots of which the shard may have keys without owning them: those of a move that goes on, or has
    /// ended. The primary removes the keys once no move needs them.
    #[serde(default, skip_serializing_if = "SlotRanges::is_empty")]
    pub leftover: SlotRanges,
}

/// One state of the cluster. Immutable: [`Map::new`] checks it and computes the owners of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    revision: u64,
    nodes: BTreeMap<NodeId, Node>,
    shards: BTreeMap<ShardId, Shard>,
    /// For each slot, the place of its owner in `shards`, plus 1; 0: the slot has no owner.
    owners: Box<[u16; SLOTS]>,
    /// The keys of `shards`, by their places.
    places: Vec<ShardId>,
}

impl Shard {
    /// The incarnation of a member of the in-sync set; `None` for other nodes.
    pub fn synced(&self, node: NodeId) -> Option<u64> {
        self.in_sync.contains(&node).then(|| self.incarnations.get(&node).copied().unwrap_or(0))
    }

    /// The in-sync set, with the incarnation of each member.
    pub fn members(&self) -> BTreeMap<NodeId, u64> {
        self.in_sync.iter().filter_map(|node| Some((*node, self.synced(*node)?))).collect()
    }

    /// Replaces the in-sync set.
    pub fn set_members(&mut self, members: &BTreeMap<NodeId, u64>) {
        self.in_sync = members.keys().copied().collect();
        self.incarnations = members.clone();
    }
}

impl Map {
    /// The map at a revision of the store. If two shards claim a slot, the shard with the higher epoch
    /// owns it.
    ///
    /// At most 65,535 shards.
    pub fn new(revision: u64, nodes: BTreeMap<NodeId, Node>, shards: BTreeMap<ShardId, Shard>) -> Map {
        assert!(shards.len() < usize::from(u16::MAX), "a shard's place fits");
        let mut owners = Box::new([0; SLOTS]);
        let mut by_epoch: Vec<(u64, u16, &Shard)> =
            (1..).zip(shards.values()).map(|(place, shard)| (shard.epoch, place, shard)).collect();
        by_epoch.sort_by_key(|(epoch, place, _)| (*epoch, *place));
        for (_, place, shard) in by_epoch {
            shard.slots.iter().for_each(|slot| owners[usize::from(slot)] = place);
        }
        let places = shards.keys().copied().collect();
        Map { revision, nodes, shards, owners, places }
    }

    /// The revision of the store that this map shows; a later map has a higher revision.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    pub fn nodes(&self) -> &BTreeMap<NodeId, Node> {
        &self.nodes
    }

    pub fn shards(&self) -> &BTreeMap<ShardId, Shard> {
        &self.shards
    }

    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    pub fn shard(&self, id: ShardId) -> Option<&Shard> {
        self.shards.get(&id)
    }

    /// The shard that owns a slot below [`SLOTS`].
    pub fn owner(&self, slot: u16) -> Option<(ShardId, &Shard)> {
        let place = self.owners[usize::from(slot)].checked_sub(1)?;
        let id = *self.places.get(usize::from(place))?;
        self.shards.get(&id).map(|shard| (id, shard))
    }

    /// The nodes of a shard, the primary first.
    pub fn members(&self, shard: ShardId) -> impl Iterator<Item = (NodeId, &Node)> {
        let primary = self.shards.get(&shard).and_then(|shard| shard.primary);
        let is_member = move |(_, node): &(&NodeId, &Node)| node.shard == shard;
        let first = self.nodes.iter().filter(is_member).filter(move |(id, _)| Some(**id) == primary);
        let others = self.nodes.iter().filter(is_member).filter(move |(id, _)| Some(**id) != primary);
        first.chain(others).map(|(id, node)| (*id, node))
    }

    /// The highest epoch of a shard.
    pub fn epoch(&self) -> u64 {
        self.shards.values().map(|shard| shard.epoch).max().unwrap_or(0)
    }

    /// Number of slots with an owner.
    pub fn assigned(&self) -> usize {
        self.owners.iter().filter(|owner| **owner != 0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(shard: ShardId) -> Node {
        Node {
            address: Address { ip: "127.0.0.1".into(), port: 6379, ..Address::default() },
            shard,
            is_alive: true,
        }
    }

    fn map() -> (Map, [ShardId; 2], [NodeId; 3]) {
        let shards = [ShardId::new([1; 20]), ShardId::new([2; 20])];
        let nodes = [NodeId::new([1; 20]), NodeId::new([2; 20]), NodeId::new([3; 20])];
        let all = [(nodes[0], node(shards[0])), (nodes[1], node(shards[1])), (nodes[2], node(shards[0]))];
        let shard = |epoch, primary, slots: std::ops::RangeInclusive<u16>| Shard {
            epoch,
            primary: Some(primary),
            in_sync: [primary].into(),
            slots: slots.collect(),
            ..Shard::default()
        };
        let both = [(shards[0], shard(1, nodes[2], 0..=100)), (shards[1], shard(2, nodes[1], 100..=200))];
        (Map::new(7, all.into(), both.into()), shards, nodes)
    }

    #[test]
    fn the_higher_epoch_owns_a_slot_that_two_shards_claim() {
        let (map, shards, _) = map();
        let owner = |slot| map.owner(slot).map(|(id, _)| id);
        assert_eq!((owner(0), owner(99)), (Some(shards[0]), Some(shards[0])));
        assert_eq!((owner(100), owner(200), owner(201)), (Some(shards[1]), Some(shards[1]), None));
        assert_eq!((map.assigned(), map.epoch(), map.revision()), (201, 2, 7));
    }

    #[test]
    fn the_primary_is_the_first_member() {
        let (map, shards, nodes) = map();
        let members = |shard| map.members(shard).map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(members(shards[0]), [nodes[2], nodes[0]]);
        assert_eq!(members(shards[1]), [nodes[1]]);
    }
}
