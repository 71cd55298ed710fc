//! Messages of PUBLISH that other nodes pass on to this one: see `cluster/shared/relay.rs`.

use std::sync::atomic::Ordering::Relaxed;

use super::super::ServerCall;
use super::disabled;
use super::requests::shared;
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};

/// CLUSTER RELAY PUBLISH | SPUBLISH channel message
///
/// Publishes to the clients of this node alone.
pub(super) fn relay(call: &mut ServerCall<'_, '_>) -> Done {
    shared(call)?;
    let Some(cluster) = &call.server.cluster else { return Err(disabled()) };
    let (pubsub, channel, message) = (&call.server.hub.pubsub, call.base.args.at(3), call.base.args.at(4));
    let count = match call.base.args.word(2).as_bytes() {
        b"PUBLISH" => pubsub.publish(channel, message),
        b"SPUBLISH" => pubsub.publish_in_shard(channel, message),
        _ => return Err(Error::Syntax),
    };
    cluster.relay_stats.received.fetch_add(1, Relaxed);
    cluster.relay_stats.received_bytes.fetch_add((channel.len() + message.len()) as u64, Relaxed);
    call.base.reply.int(count as i64);
    Ok(Flow::Replied)
}
