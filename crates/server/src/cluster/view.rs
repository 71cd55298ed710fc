//! What a worker knows of the cluster: the map, seen from this node.
//!
//! A view is immutable and replaced as a whole. A worker takes a new view where it takes changed settings,
//! inside the gate before a batch, so a batch runs under a single view.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_cluster::{Address, Map, Migration, MigrationId, NodeId, SLOTS, Shard, ShardId, SlotRanges};
use evenkeel_config::Settings;

/// A slot, as this node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SlotState {
    /// No shard owns it, or the shard has no primary.
    Unowned,
    /// Another shard owns it.
    Other,
    /// This node's shard owns it.
    Own,
    /// This node's shard owns it, and its keys leave one by one.
    Migrating,
    /// Another shard owns it, and its keys arrive here one by one.
    Importing,
}

/// What a view is made of, beside the settings.
#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) map: Arc<Map>,
    pub(crate) me: NodeId,
    /// Slots that this node owns and does not serve, since they are about to leave.
    pub(crate) closed: SlotRanges,
    /// Slots of moves that are about to end: their commands wait.
    pub(crate) paused: SlotRanges,
    pub(crate) moves: Moves,
}

/// Moves of slots, of all nodes.
pub(crate) type Moves = Arc<BTreeMap<MigrationId, Migration>>;

/// See the module's text.
pub(crate) struct ClusterView {
    pub(crate) map: Arc<Map>,
    pub(crate) me: NodeId,
    pub(crate) closed: SlotRanges,
    pub(crate) paused: SlotRanges,
    pub(crate) moves: Moves,
    pub(crate) shard: ShardId,
    /// This node is the primary of its shard.
    pub(crate) is_primary: bool,
    /// The cluster serves all commands: see `cluster-require-full-coverage`.
    pub(crate) is_up: bool,
    /// This node's address, as its settings and the map say. The IP address may be empty.
    pub(crate) address: Address,
    /// A bit for each slot: commands on its keys need no further look.
    served: Box<[u64; SLOTS / 64]>,
    states: Box<[SlotState; SLOTS]>,
}

impl Seen {
    /// A map without moves, whose slots are all served.
    pub(crate) fn new(map: Arc<Map>, me: NodeId) -> Seen {
        Seen {
            map,
            me,
            closed: SlotRanges::default(),
            paused: SlotRanges::default(),
            moves: Moves::default(),
        }
    }
}

impl ClusterView {
    /// Returns the view of node `me`, which is in the map.
    #[cfg(test)]
    pub(crate) fn new(map: Arc<Map>, me: NodeId, settings: &Settings) -> ClusterView {
        ClusterView::of(Seen::new(map, me), settings)
    }

    /// Returns the view of a node that is in the map.
    pub(crate) fn of(Seen { map, me, closed, paused, moves }: Seen, settings: &Settings) -> ClusterView {
        let node = map.node(me);
        let shard = node.map_or(ShardId::new([0; 20]), |node| node.shard);
        let is_primary = map.shard(shard).is_some_and(|own| own.primary == Some(me));
        let address = own_address(node.map(|node| &node.address), settings);
        let states = states(&map, shard);
        let is_up = !settings.cluster_require_full_coverage || !states.contains(&SlotState::Unowned);
        let mut served = Box::new([0; SLOTS / 64]);
        if is_up && is_primary {
            for (slot, state) in states.iter().enumerate() {
                served[slot / 64] |= u64::from(*state == SlotState::Own) << (slot % 64);
            }
            closed
                .iter()
                .chain(paused.iter())
                .map(usize::from)
                .for_each(|slot| served[slot / 64] &= !(1 << (slot % 64)));
        }
        ClusterView { map, me, closed, paused, moves, shard, is_primary, is_up, address, served, states }
    }

    /// Whether this node serves the keys of a slot, without any further condition.
    #[inline]
    pub(crate) fn serves(&self, slot: usize) -> bool {
        self.served[slot / 64] >> (slot % 64) & 1 != 0
    }

    pub(crate) fn state(&self, slot: u16) -> SlotState {
        self.states[usize::from(slot)]
    }

    /// Whether the map gives a slot to this node's shard, which may have no primary that is there.
    pub(crate) fn is_of_own_shard(&self, slot: u16) -> bool {
        self.map.owner(slot).is_some_and(|(id, _)| id == self.shard)
    }

    /// Whether clients may find keys of a slot here: as its owner, or while it is moved.
    pub(crate) fn has(&self, slot: u16) -> bool {
        !matches!(self.state(slot), SlotState::Unowned | SlotState::Other)
    }

    /// Returns the node that serves writes to a slot.
    pub(crate) fn primary_of(&self, slot: u16) -> Option<NodeId> {
        self.map.owner(slot).and_then(|(_, shard)| shard.primary)
    }

    /// Returns the number of replicas of this node's shard that could take the primary's place.
    pub(crate) fn in_sync_replicas(&self) -> usize {
        let own = self.map.shard(self.shard);
        own.map_or(0, |own| own.in_sync.iter().filter(|node| Some(**node) != own.primary).count())
    }

    /// Returns the node to which, or from which, a slot is moved.
    pub(crate) fn partner(&self, slot: u16) -> Option<NodeId> {
        let own = self.map.shard(self.shard)?;
        let other = own.migrating.get(&slot).or_else(|| own.importing.get(&slot))?;
        self.map.shard(*other).and_then(|shard| shard.primary)
    }

    /// Whether this node, as the primary of its shard, gets the slots of a move between these epochs.
    pub(crate) fn imports(
        &self,
        id: MigrationId,
        source_epoch: u64,
        target_epoch: u64,
    ) -> Option<&SlotRanges> {
        let epoch = self.map.shard(self.shard).map(|own| own.epoch);
        let found = self.moves.get(&id)?;
        let is_wanted = found.comes_to(self.shard, source_epoch, target_epoch);
        (is_wanted && self.is_primary && epoch == Some(target_epoch)).then_some(&found.slots)
    }

    /// Returns the slots that this node's shard gets by moves.
    pub(crate) fn arriving(&self) -> SlotRanges {
        arriving(&self.moves, self.shard)
    }

    /// Returns the slots that this node's shard gives away by moves.
    pub(crate) fn leaving(&self) -> SlotRanges {
        slots_of(&self.moves, |found| found.source == self.shard)
    }

    /// Whether a slot is among [`ClusterView::leaving`].
    pub(crate) fn leaves(&self, slot: u16) -> bool {
        self.moves.values().any(|found| found.source == self.shard && found.slots.contains(slot))
    }

    /// Returns the slots of which this shard may have keys that nobody needs.
    pub(crate) fn leftover(&self) -> SlotRanges {
        let Some(own) = self.map.shard(self.shard) else { return SlotRanges::default() };
        own.leftover.minus(&own.slots).minus(&self.arriving())
    }

    /// Returns the address of a node; of this node, as its settings say.
    pub(crate) fn address_of(&self, id: NodeId) -> Option<&Address> {
        if id == self.me { Some(&self.address) } else { self.map.node(id).map(|node| &node.address) }
    }
}

/// Returns the slots that a shard gets by moves.
pub(super) fn arriving(moves: &Moves, shard: ShardId) -> SlotRanges {
    slots_of(moves, |found| found.target == shard)
}

fn slots_of(moves: &Moves, which: impl Fn(&Migration) -> bool) -> SlotRanges {
    let found = moves.values().filter(|found| which(found));
    found.fold(SlotRanges::default(), |all, found| all.union(&found.slots))
}

/// Whether the primary of a shard is there, or a replica that is about to take its place: the other shards go
/// on meanwhile.
fn is_served(map: &Map, shard: &Shard) -> bool {
    let is_alive = |id| map.node(id).is_some_and(|node| node.is_alive);
    let may_lead = |id| map.node(id).is_some_and(|node| node.is_alive && !node.address.no_failover);
    shard.primary.is_some_and(|id| is_alive(id) || shard.in_sync.iter().any(|member| may_lead(*member)))
}

fn states(map: &Map, own: ShardId) -> Box<[SlotState; SLOTS]> {
    let mut states = Box::new([SlotState::Unowned; SLOTS]);
    for (id, shard) in map.shards() {
        for slot in shard.slots.iter() {
            let is_owner = map.owner(slot).is_some_and(|(owner, _)| owner == *id);
            states[usize::from(slot)] = match () {
                () if !is_owner => continue,
                () if !is_served(map, shard) => SlotState::Unowned,
                () if *id != own => SlotState::Other,
                () if shard.migrating.contains_key(&slot) => SlotState::Migrating,
                () => SlotState::Own,
            };
        }
    }
    for slot in map.shard(own).into_iter().flat_map(|shard| shard.importing.keys()) {
        if let Some(state @ SlotState::Other) = states.get_mut(usize::from(*slot)) {
            *state = SlotState::Importing;
        }
    }
    states
}

/// Returns this node's address: as the settings announce it, otherwise as it stands in the map.
fn own_address(in_map: Option<&Address>, settings: &Settings) -> Address {
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let or = |port: u16, otherwise: u16| if port == 0 { otherwise } else { port };
    let announced = text(&settings.cluster_announce_ip);
    let ip = if announced.is_empty() {
        in_map.map(|address| address.ip.clone()).unwrap_or_default()
    } else {
        announced
    };
    Address {
        ip,
        port: or(settings.cluster_announce_port, settings.port),
        tls_port: or(settings.cluster_announce_tls_port, settings.tls_port),
        hostname: text(&settings.cluster_announce_hostname),
        human_name: text(&settings.cluster_announce_human_nodename),
        client_ipv4: text(&settings.cluster_announce_client_ipv4),
        client_ipv6: text(&settings.cluster_announce_client_ipv6),
        client_port: settings.cluster_announce_client_port,
        client_tls_port: settings.cluster_announce_client_tls_port,
        zone: text(&settings.availability_zone),
        no_failover: settings.cluster_replica_no_failover,
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_cluster::{Node, SlotRanges};

    use super::*;

    fn ids() -> [(NodeId, ShardId); 3] {
        [1, 2, 3].map(|byte| (NodeId::new([byte; 20]), ShardId::new([byte; 20])))
    }

    /// Three shards of a node each. The second owns 100..=199, the third the rest above it but 16383.
    fn map() -> Map {
        let ranges: [SlotRanges; 3] = [(0..=99).collect(), (100..=199).collect(), (200..=16_382).collect()];
        let mut shards: BTreeMap<ShardId, Shard> = BTreeMap::new();
        let mut nodes = BTreeMap::new();
        for ((node, shard), slots) in ids().into_iter().zip(ranges) {
            nodes.insert(node, Node { address: Address::default(), shard, is_alive: true });
            shards.insert(shard, Shard { primary: Some(node), slots, ..Shard::default() });
        }
        let first = shards.get_mut(&ids()[0].1).expect("the first shard");
        first.migrating.insert(5, ids()[1].1);
        first.importing.insert(150, ids()[1].1);
        Map::new(1, nodes, shards)
    }

    fn settings(pairs: &[(&[u8], &[u8])]) -> Settings {
        Settings::default().set(pairs, true).map(|(settings, _)| settings).expect("good values")
    }

    #[test]
    fn a_slot_is_served_by_its_owner_alone() {
        let settings = settings(&[(b"cluster-require-full-coverage", b"no")]);
        let view = ClusterView::new(Arc::new(map()), ids()[0].0, &settings);
        let states = [0, 5, 100, 150, 16_383].map(|slot| view.state(slot));
        use SlotState::*;
        assert_eq!(states, [Own, Migrating, Other, Importing, Unowned]);
        assert_eq!(
            [0, 5, 100, 150, 16_383].map(|slot| view.serves(slot)),
            [true, false, false, false, false]
        );
        assert_eq!((view.partner(5), view.partner(150)), (Some(ids()[1].0), Some(ids()[1].0)));
        assert_eq!((view.primary_of(200), view.primary_of(16_383)), (Some(ids()[2].0), None));
    }

    #[test]
    fn nothing_is_served_while_a_slot_has_no_owner() {
        let view = ClusterView::new(Arc::new(map()), ids()[0].0, &settings(&[]));
        assert!(!view.is_up && !view.serves(0) && view.state(0) == SlotState::Own);
    }

    #[test]
    fn a_shard_without_its_primary_owns_nothing() {
        let mut nodes = map().nodes().clone();
        nodes.get_mut(&ids()[1].0).expect("the second node").is_alive = false;
        let map = Map::new(2, nodes, map().shards().clone());
        let view = ClusterView::new(Arc::new(map), ids()[0].0, &settings(&[]));
        assert_eq!((view.state(100), view.state(200)), (SlotState::Unowned, SlotState::Other));
    }

    #[test]
    fn slots_arrive_between_two_epochs() {
        let (id, ids) = (MigrationId::new([9; 20]), ids());
        let found = Migration {
            slots: (0..=9).collect(),
            source: ids[0].1,
            target: ids[1].1,
            source_epoch: 3,
            target_epoch: 0,
            restarts: 0,
        };
        let (mut shards, nodes) = (map().shards().clone(), map().nodes().clone());
        for (_, shard) in &ids[..2] {
            shards.get_mut(shard).expect("a shard").leftover = (0..=20).collect();
        }
        let seen = Seen {
            moves: Arc::new([(id, found)].into()),
            paused: (7..=8).collect(),
            ..Seen::new(Arc::new(Map::new(1, nodes, shards)), ids[0].0)
        };
        let settings = settings(&[(b"cluster-require-full-coverage", b"no")]);
        let view = |node: NodeId| ClusterView::of(Seen { me: node, ..seen.clone() }, &settings);
        let (source, target) = (view(ids[0].0), view(ids[1].0));
        let slots = |range: std::ops::RangeInclusive<u16>| -> SlotRanges { range.collect() };
        assert_eq!(target.imports(id, 3, 0), Some(&slots(0..=9)));
        assert_eq!((target.imports(id, 2, 0), target.imports(id, 3, 1)), (None, None), "other epochs");
        assert_eq!((source.imports(id, 3, 0), source.arriving()), (None, SlotRanges::default()));
        assert_eq!((target.arriving(), source.leaving()), (slots(0..=9), slots(0..=9)));
        // What arrives is needed, and what the shard owns is its own.
        assert_eq!((target.leftover(), source.leftover()), (slots(10..=20), SlotRanges::default()));
        assert_eq!([6, 7, 9].map(|slot| source.serves(slot)), [true, false, true]);
        assert_eq!(source.state(7), SlotState::Own);
    }

    #[test]
    fn settings_announce_this_nodes_address() {
        let settings = settings(&[
            (b"cluster-announce-ip", b"10.0.0.1"),
            (b"cluster-announce-port", b"7"),
            (b"cluster-announce-hostname", b"host"),
        ]);
        let view = ClusterView::new(Arc::new(map()), ids()[0].0, &settings);
        assert_eq!(
            (view.address.ip.as_str(), view.address.port, view.address.hostname.as_str()),
            ("10.0.0.1", 7, "host")
        );
        assert_eq!(view.address_of(ids()[1].0), Some(&Address::default()));
    }
}
