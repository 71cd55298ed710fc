//! The replies that describe the map: SLOTS, SHARDS, NODES, INFO and their like.

use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

use evenkeel_cluster::nodes_file::{bus_port, write_node};
use evenkeel_cluster::{Node, NodeId, SLOTS, Shard, ShardId};

use super::super::ServerCall;
use super::view;
use crate::cluster::endpoint::{Endpoint, Viewpoint};
use crate::cluster::view::{ClusterView, SlotState};
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_config::EndpointType;

/// CLUSTER SLOTS
pub(super) fn slots(call: &mut ServerCall<'_, '_>) -> Done {
    let (view, from) = (view(call)?, Viewpoint::of(&call.session.client));
    let mut ranges: Vec<(u16, u16, ShardId)> = Vec::new();
    for slot in 0..SLOTS as u16 {
        let owner = Some(view.state(slot)).filter(|state| *state != SlotState::Unowned);
        let Some((id, _)) = owner.and_then(|_| view.map.owner(slot)) else { continue };
        match ranges.last_mut() {
            Some((_, last, shard)) if *shard == id && *last + 1 == slot => *last = slot,
            _ => ranges.push((slot, slot, id)),
        }
    }
    call.base.reply.array(ranges.len());
    for (first, last, shard) in ranges {
        let nodes: Vec<NodeId> = living(&view, shard).collect();
        call.base.reply.array(2 + nodes.len());
        call.base.reply.int(first.into());
        call.base.reply.int(last.into());
        nodes.into_iter().for_each(|id| node_of_slots(call, &view, id, &from));
    }
    Ok(Flow::Replied)
}

/// Returns the members of a shard that are there, the primary first.
fn living(view: &ClusterView, shard: ShardId) -> impl Iterator<Item = NodeId> {
    view.map.members(shard).filter(|(_, node)| node.is_alive).map(|(id, _)| id)
}

fn node_of_slots(call: &mut ServerCall<'_, '_>, view: &ClusterView, id: NodeId, from: &Viewpoint) {
    let kind = call.base.settings.cluster_preferred_endpoint_type;
    let Some(endpoint) = Endpoint::of(view, id, from) else { return };
    let reply = &mut *call.base.reply;
    reply.array(4);
    match endpoint.preferred(kind) {
        Some(host) => reply.bulk(host.as_bytes()),
        None => reply.null(),
    }
    reply.int(endpoint.port.into());
    reply.bulk(id.to_string().as_bytes());
    let ip = ("ip", &*endpoint.ip, kind != EndpointType::Ip);
    let hostname =
        ("hostname", endpoint.hostname, kind != EndpointType::HostName && !endpoint.hostname.is_empty());
    let zone = ("availability-zone", endpoint.zone, !endpoint.zone.is_empty());
    let others: Vec<_> = [ip, hostname, zone].into_iter().filter(|(_, _, is_shown)| *is_shown).collect();
    reply.map(others.len());
    for (name, value, _) in others {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
}

/// CLUSTER SHARDS
pub(super) fn shards(call: &mut ServerCall<'_, '_>) -> Done {
    let (view, from) = (view(call)?, Viewpoint::of(&call.session.client));
    call.base.reply.array(view.map.shards().len());
    for (id, shard) in view.map.shards() {
        call.base.reply.map(3);
        call.base.reply.bulk(b"slots");
        call.base.reply.array(2 * shard.slots.ranges().len());
        for range in shard.slots.ranges() {
            call.base.reply.int((*range.start()).into());
            call.base.reply.int((*range.end()).into());
        }
        call.base.reply.bulk(b"nodes");
        let members: Vec<(NodeId, &Node)> = view.map.members(*id).collect();
        call.base.reply.array(members.len());
        members.into_iter().for_each(|member| node_of_shard(call, (&view, shard), member, &from));
        call.base.reply.bulk(b"id");
        call.base.reply.bulk(id.to_string().as_bytes());
    }
    Ok(Flow::Replied)
}

fn node_of_shard(
    call: &mut ServerCall<'_, '_>,
    (view, shard): (&ClusterView, &Shard),
    (id, node): (NodeId, &Node),
    from: &Viewpoint,
) {
    let kind = call.base.settings.cluster_preferred_endpoint_type;
    let (Some(endpoint), Some(address)) = (Endpoint::of(view, id, from), view.address_of(id)) else { return };
    let is_own = id == view.me;
    let health = match () {
        () if !node.is_alive => "failed",
        () if is_own && call.server.persist.is_loading() => "loading",
        () => "online",
    };
    let offset = if is_own { call.server.replication.stream().offset() } else { 0 };
    let role = if shard.primary == Some(id) { "master" } else { "replica" };
    let ports = [("port", address.port), ("tls-port", address.tls_port)];
    let ports: Vec<_> = ports.into_iter().filter(|(_, port)| *port != 0).collect();
    let has_hostname = !endpoint.hostname.is_empty();
    let reply = &mut *call.base.reply;
    let has_zone = !endpoint.zone.is_empty();
    reply.map(6 + ports.len() + usize::from(has_hostname) + usize::from(has_zone));
    let text = |reply: &mut evenkeel_command::reply::Reply, name: &str, value: &str| {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    };
    text(reply, "id", &id.to_string());
    for (name, port) in ports {
        reply.bulk(name.as_bytes());
        reply.int(port.into());
    }
    text(reply, "ip", &endpoint.ip);
    text(reply, "endpoint", endpoint.preferred(kind).unwrap_or(""));
    if has_hostname {
        text(reply, "hostname", endpoint.hostname);
    }
    text(reply, "role", role);
    reply.bulk(b"replication-offset");
    reply.int(offset as i64);
    text(reply, "health", health);
    if has_zone {
        text(reply, "availability-zone", endpoint.zone);
    }
}

/// CLUSTER NODES
pub(super) fn nodes(call: &mut ServerCall<'_, '_>) -> Done {
    let (view, from) = (view(call)?, Viewpoint::of(&call.session.client));
    let mut text = String::new();
    for (id, node) in view.map.nodes() {
        write_line(&mut text, &view, (*id, node), &from);
    }
    call.base.reply.verbatim(&text, b"txt");
    Ok(Flow::Replied)
}

fn write_line(text: &mut String, view: &ClusterView, (id, node): (NodeId, &Node), from: &Viewpoint) {
    let Some(endpoint) = Endpoint::of(view, id, from) else { return };
    let Endpoint { ip, port, hostname, .. } = endpoint;
    let mut address = format!("{ip}:{port}@{}", bus_port(port));
    if !hostname.is_empty() {
        let _ = write!(address, ",{hostname}"); // a `String` takes all
    }
    write_node(text, (&view.map, view.me), (id, node), &address);
}

/// CLUSTER REPLICAS node-id, CLUSTER SLAVES node-id
pub(super) fn replicas(call: &mut ServerCall<'_, '_>) -> Done {
    let (view, from) = (view(call)?, Viewpoint::of(&call.session.client));
    let (id, node) = named(&view, call.base.args.at(2))?;
    if view.map.shard(node.shard).is_none_or(|shard| shard.primary != Some(id)) {
        return Err(Error::text("ERR The specified node is not a master"));
    }
    let members: Vec<_> = view.map.members(node.shard).filter(|(member, _)| *member != id).collect();
    call.base.reply.array(members.len());
    for member in members {
        let mut text = String::new();
        write_line(&mut text, &view, member, &from);
        call.base.reply.bulk(text.trim_end().as_bytes());
    }
    Ok(Flow::Replied)
}

/// Returns the node of this name.
pub(super) fn named<'v>(view: &'v ClusterView, name: &[u8]) -> Result<(NodeId, &'v Node), Error> {
    let id = std::str::from_utf8(name).ok().and_then(|name| name.parse::<NodeId>().ok());
    let found = id.and_then(|id| view.map.node(id).map(|node| (id, node)));
    found.ok_or_else(|| Error::Bytes([b"ERR Unknown node ", name].concat()))
}

/// CLUSTER COUNT-FAILURE-REPORTS node-id: no node reports failures of others.
pub(super) fn failure_reports(call: &mut ServerCall<'_, '_>) -> Done {
    named(&*view(call)?, call.base.args.at(2))?;
    call.base.reply.int(0);
    Ok(Flow::Replied)
}

/// CLUSTER LINKS: there is no cluster bus.
pub(super) fn links(call: &mut ServerCall<'_, '_>) -> Done {
    view(call)?;
    call.base.reply.array(0);
    Ok(Flow::Replied)
}

/// The counters of the cluster bus, which is absent.
const OF_THE_BUS: [&str; 7] = [
    "cluster_stats_messages_sent",
    "cluster_stats_messages_received",
    "cluster_stats_bytes_sent",
    "cluster_stats_bytes_received",
    "cluster_stats_module_bytes_sent",
    "cluster_stats_module_bytes_received",
    "total_cluster_links_buffer_limit_exceeded",
];

/// Returns the number of nodes that this node knows. With a store, the map has all nodes of the store. A node
/// without slots and without other nodes in its shard has no part in the cluster yet, and counts only itself:
/// redis-cli's `create` and `add-node` accept only such nodes as new nodes.
fn known_nodes(view: &ClusterView, is_shared: bool) -> usize {
    let has_part = view.map.shard(view.shard).is_some_and(|own| !own.slots.is_empty())
        || view.map.members(view.shard).count() > 1;
    if is_shared && !has_part { 1 } else { view.map.nodes().len() }
}

/// CLUSTER INFO
pub(super) fn info(call: &mut ServerCall<'_, '_>) -> Done {
    let view = view(call)?;
    let Some(cluster) = &call.server.cluster else { return Err(super::disabled()) };
    let map = &view.map;
    let unserved = (0..SLOTS as u16).filter(|slot| view.state(*slot) == SlotState::Unowned).count();
    let ok = SLOTS - unserved;
    let failed_nodes = map.nodes().values().filter(|node| !node.is_alive).count();
    let size = map.shards().values().filter(|shard| !shard.slots.is_empty()).count();
    let own_epoch = map.shard(view.shard).map_or(0, |shard| shard.epoch);
    let failed_slots = map.assigned().saturating_sub(ok);
    let mut text = String::new();
    let mut field = |name: &str, value: &dyn std::fmt::Display| _ = write!(text, "{name}:{value}\r\n");
    let is_fenced = view.is_primary && call.server.is_fenced();
    field("cluster_state", &if view.is_up && !is_fenced { "ok" } else { "fail" });
    for (name, value) in [
        ("cluster_slots_assigned", map.assigned()),
        ("cluster_slots_ok", ok),
        ("cluster_slots_pfail", 0),
        ("cluster_slots_fail", failed_slots),
        ("cluster_nodes_pfail", 0),
        ("cluster_nodes_fail", failed_nodes),
        ("cluster_voting_nodes_pfail", 0),
        ("cluster_voting_nodes_fail", 0),
        ("cluster_known_nodes", known_nodes(&view, cluster.is_shared())),
        ("cluster_size", size),
    ] {
        field(name, &value);
    }
    field("cluster_current_epoch", &map.epoch());
    field("cluster_my_epoch", &own_epoch);
    OF_THE_BUS.iter().for_each(|name| field(name, &0));
    let relayed = &cluster.relay_stats;
    field("cluster_stats_messages_publish_sent", &relayed.sent.load(Relaxed));
    field("cluster_stats_messages_publish_received", &relayed.received.load(Relaxed));
    field("cluster_stats_messages_publish_dropped", &relayed.dropped.load(Relaxed));
    field("cluster_stats_pubsub_bytes_sent", &relayed.sent_bytes.load(Relaxed));
    field("cluster_stats_pubsub_bytes_received", &relayed.received_bytes.load(Relaxed));
    if let Some(health) = cluster.store_health() {
        field("cluster_store", &health);
        field("cluster_in_sync_replicas", &view.in_sync_replicas());
        field("cluster_slots_leaving", &view.leaving().len());
        field("cluster_slots_arriving", &view.arriving().len());
    }
    call.base.reply.verbatim(&text, b"txt");
    Ok(Flow::Replied)
}
