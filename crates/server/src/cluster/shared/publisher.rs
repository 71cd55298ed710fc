//! The thread `cluster-map`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_cluster::{Map, Migration, MigrationId, Node, Shard, Snapshot};
use evenkeel_replication::link;

use super::super::identity::Identity;
use super::super::view::{Moves, Seen};
use super::data_path::InForce;
use super::{Agent, Message};
use crate::server::Server;

/// The thread looks so often whether the server stops.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Poll interval while the data of a replica are loaded.
const LOADING_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Publishes each new view, and follows each new stance, until the server stops.
pub(super) fn run(server: &Server, agent: &Agent, identity: &Identity) {
    let mut last: Option<(Arc<Map>, Moves, u64)> = None;
    let mut in_force = InForce::default();
    while !server.core.is_stopping() {
        let next = agent.wait(POLL_INTERVAL, |state| {
            let newest = (state.snapshot.revision, state.closed.version);
            let is_new = newest != state.published || state.stance_version != state.stands;
            let stance = (state.stance.clone(), state.stance_version);
            let closed = || (state.closed.slots.clone(), state.closed.paused());
            is_new.then(|| (state.snapshot.clone(), closed(), newest, stance))
        });
        let Some((snapshot, (closed, paused), newest, (stance, version))) = next else { continue };
        let before = in_force.clone();
        // The role first: a map in which this node is the primary needs a server that takes writes.
        let stands = in_force.follow(server, &stance, &snapshot);
        let map = Arc::new(shown(&snapshot, identity));
        // Entries of leases change with each write, and do not concern workers.
        let moves: Moves = Arc::new(moves_of(&snapshot));
        let is_shown = |(old, old_moves, version): &(Arc<Map>, Moves, u64)| {
            *version == newest.1 && is_same(old, &map) && *old_moves == moves
        };
        if !last.as_ref().is_some_and(is_shown) {
            server.publish(Seen { map: map.clone(), me: agent.me, closed, paused, moves: moves.clone() });
            last = Some((map, moves, newest.1));
        }
        if in_force.has_stepped_down(&before) {
            link::end_waits(&server.replication); // those for keys have ended with MOVED
        }
        agent.change(|state| {
            state.published = newest;
            if stands {
                state.stands = version;
            }
        });
        let stands = agent.state.lock().stands;
        let _ = agent.messages.send(Message::Published(newest.0, stands));
        if stands != version {
            std::thread::sleep(LOADING_POLL_INTERVAL);
        }
    }
}

fn moves_of(snapshot: &Snapshot) -> BTreeMap<MigrationId, Migration> {
    snapshot.migrations.iter().map(|(id, entry)| (*id, Migration::clone(&entry.value))).collect()
}

fn is_same(old: &Map, new: &Map) -> bool {
    old.nodes() == new.nodes() && old.shards() == new.shards()
}

/// The map of a view. A node that the store does not have sees itself, without slots, beside the others.
fn shown(snapshot: &Snapshot, identity: &Identity) -> Map {
    let map = snapshot.map();
    let (me, shard) = (identity.me, identity.shard);
    if map.node(me).is_some() {
        return map;
    }
    let (mut nodes, mut shards) = (map.nodes().clone(), map.shards().clone());
    // The shard that the node founded may have other members now.
    let alone = if shards.contains_key(&shard) { evenkeel_cluster::ShardId::new(me.bytes()) } else { shard };
    nodes.insert(me, Node { address: identity.address.clone(), shard: alone, is_alive: true });
    shards.insert(alone, Shard { primary: Some(me), in_sync: [me].into(), ..Shard::default() });
    Map::new(map.revision(), nodes, shards)
}
