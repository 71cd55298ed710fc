//! The thread `cluster-map`.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_cluster::{Map, Node, Shard, Snapshot};
use evenkeel_replication::link;

use super::super::identity::Identity;
use super::super::view::Seen;
use super::data_path::InForce;
use super::{Agent, Message};
use crate::server::Server;

/// The thread looks so often whether the server stops.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Poll interval while the data of a replica are loaded.
const LOADING_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Publishes each new view, and follows each new stance, until the server stops.
pub(super) fn run(server: &Server, agent: &Agent, identity: &Identity) {
    let mut last: Option<(Arc<Map>, u64)> = None;
    let mut in_force = InForce::default();
    while !server.core.is_stopping() {
        let next = agent.wait(POLL_INTERVAL, |state| {
            let newest = (state.snapshot.revision, state.closed.version);
            let is_new = newest != state.published || state.stance_version != state.stands;
            let stance = (state.stance.clone(), state.stance_version);
            is_new.then(|| (state.snapshot.clone(), state.closed.slots.clone(), newest, stance))
        });
        let Some((snapshot, closed, newest, (stance, version))) = next else { continue };
        let before = in_force.clone();
        // The role first: a map in which this node is the primary needs a server that takes writes.
        let stands = in_force.follow(server, &stance, &snapshot);
        let map = Arc::new(shown(&snapshot, identity));
        // Entries of leases change with each write, and do not concern workers.
        if last.as_ref().is_none_or(|(old, version)| *version != newest.1 || !is_same(old, &map)) {
            server.publish(Seen { map: map.clone(), me: agent.me, closed });
            last = Some((map, newest.1));
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
