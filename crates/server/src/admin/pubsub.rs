//! Publish and subscribe: messages to the current listeners. docs/pubsub.md has the guarantees.
//!
//! A confirmation goes through the client's own push queue, so that it stands between earlier and later
//! messages. In a transaction it is the command's reply, an element of EXEC's; messages come after that.

use super::{
    Arity, Command, Flags, Group, ServerCall, ServerHandler, at_least, container, docs, exactly, session,
};
use crate::executor::permission;
use evenkeel_client::pubsub::{SubscriptionKind, push_queue};
use evenkeel_command::error::Error;
use evenkeel_command::flow::Mode;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_store::key::slot_of;

const fn on_channels(name: &'static str, arity: Arity, handler: ServerHandler) -> Command<ServerHandler> {
    session(name, arity, Group::PubSub, handler).flag(Flags::PUBSUB)
}

/// Changes the client's subscriptions.
const fn listens(name: &'static str, arity: Arity, handler: ServerHandler) -> Command<ServerHandler> {
    on_channels(name, arity, handler).flag(Flags::WHILE_SUBSCRIBED)
}

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    listens("SUBSCRIBE",    at_least(2), subscribe           ),
    listens("UNSUBSCRIBE",  at_least(1), unsubscribe         ),
    listens("PSUBSCRIBE",   at_least(2), subscribe_pattern   ),
    listens("PUNSUBSCRIBE", at_least(1), unsubscribe_pattern ),
    listens("SSUBSCRIBE",   at_least(2), subscribe_shard     ),
    listens("SUNSUBSCRIBE", at_least(1), unsubscribe_shard   ),
    on_channels("PUBLISH",  exactly(3),  publish             ).fast().scriptable().flag(Flags::MAY_WRITE),
    on_channels("SPUBLISH", exactly(3),  publish_in_shard    ).fast().scriptable().flag(Flags::MAY_WRITE),
    container("PUBSUB", Group::PubSub, &[
        on_channels("PUBSUB|CHANNELS",      at_least(2), channels             ).scriptable(),
        session    ("PUBSUB|HELP",          exactly(2),  Group::Server, help  ).scriptable(),
        on_channels("PUBSUB|NUMPAT",        exactly(2),  pattern_count        ).scriptable(),
        on_channels("PUBSUB|NUMSUB",        at_least(2), subscriber_counts    ).scriptable(),
        on_channels("PUBSUB|SHARDCHANNELS", at_least(2), shard_channels       ).scriptable(),
        on_channels("PUBSUB|SHARDNUMSUB",   at_least(2), shard_subscriber_counts).scriptable(),
    ]),
];

/// SUBSCRIBE channel [channel ...]
fn subscribe(call: &mut ServerCall<'_, '_>) -> Done {
    join(call, SubscriptionKind::Channel, b"subscribe")
}

/// PSUBSCRIBE pattern [pattern ...]
fn subscribe_pattern(call: &mut ServerCall<'_, '_>) -> Done {
    join(call, SubscriptionKind::Pattern, b"psubscribe")
}

/// SSUBSCRIBE shardchannel [shardchannel ...]
fn subscribe_shard(call: &mut ServerCall<'_, '_>) -> Done {
    join(call, SubscriptionKind::Shard, b"ssubscribe")
}

/// UNSUBSCRIBE [channel ...]
fn unsubscribe(call: &mut ServerCall<'_, '_>) -> Done {
    leave(call, SubscriptionKind::Channel, b"unsubscribe")
}

/// PUNSUBSCRIBE [pattern ...]
fn unsubscribe_pattern(call: &mut ServerCall<'_, '_>) -> Done {
    leave(call, SubscriptionKind::Pattern, b"punsubscribe")
}

/// SUNSUBSCRIBE [shardchannel ...]
fn unsubscribe_shard(call: &mut ServerCall<'_, '_>) -> Done {
    leave(call, SubscriptionKind::Shard, b"sunsubscribe")
}

fn join(call: &mut ServerCall<'_, '_>, kind: SubscriptionKind, word: &[u8]) -> Done {
    // a client that subscribes here must not get messages that its transaction has published before
    call.base.guard.send_messages();
    let mut subscriptions = call.session.subscriptions.take().unwrap_or_default();
    let (client, server) = (call.session.client.clone(), call.server.clone());
    for name in call.base.args.from(1) {
        let is_new = subscriptions.add(kind, name);
        let count = subscriptions.count(kind);
        subscriptions.note(&client);
        let mut confirm = || confirm(call, word, Some(name), count);
        if is_new {
            server.hub.pubsub.join(kind, name, &client, confirm);
        } else {
            confirm();
        }
    }
    call.session.subscriptions = Some(subscriptions);
    permission::after_joining(call);
    Ok(Flow::Replied)
}

fn leave(call: &mut ServerCall<'_, '_>, kind: SubscriptionKind, word: &[u8]) -> Done {
    call.base.guard.send_messages();
    let mut subscriptions = call.session.subscriptions.take().unwrap_or_default();
    let client = call.session.client.clone();
    let names: Vec<Box<[u8]>> = match call.base.args.len() {
        1 => subscriptions.names(kind).map(Into::into).collect(),
        _ => call.base.args.from(1).map(Into::into).collect(),
    };
    for name in &names {
        if subscriptions.remove(kind, name) {
            call.server.hub.pubsub.leave(kind, name, &client);
        }
        confirm(call, word, Some(name), subscriptions.count(kind));
    }
    if names.is_empty() {
        confirm(call, word, None, subscriptions.count(kind));
    }
    subscriptions.note(&client);
    call.session.subscriptions = Some(subscriptions).filter(|subscriptions| !subscriptions.is_empty());
    Ok(Flow::Replied)
}

/// Confirms the client's new subscriptions.
fn confirm(call: &mut ServerCall<'_, '_>, word: &[u8], name: Option<&[u8]>, count: usize) {
    let start = call.base.reply.bytes.len();
    call.base.reply.push(3);
    call.base.reply.bulk(word);
    match name {
        Some(name) => call.base.reply.bulk(name),
        None => call.base.reply.null(),
    }
    call.base.reply.int(count as i64);
    call.session.receives_push = true;
    if !matches!(call.base.mode, Mode::Nested) {
        let message = call.base.reply.bytes.split_off(start);
        push_queue::put(&call.session.client, message, u64::MAX);
    }
}

/// PUBLISH channel message
fn publish(call: &mut ServerCall<'_, '_>) -> Done {
    let (pubsub, channel, message) = (&call.server.hub.pubsub, call.base.args.at(1), call.base.args.at(2));
    let count = match call.base.mode {
        Mode::Direct => pubsub.publish(channel, message),
        _ => pubsub.publish_in_unit(call.base.guard, channel, message),
    };
    pass_on(call, SubscriptionKind::Channel);
    call.base.reply.int(count as i64);
    Ok(Flow::Replied)
}

/// SPUBLISH shardchannel message
fn publish_in_shard(call: &mut ServerCall<'_, '_>) -> Done {
    let (pubsub, channel, message) = (&call.server.hub.pubsub, call.base.args.at(1), call.base.args.at(2));
    let count = match call.base.mode {
        Mode::Direct => pubsub.publish_in_shard(channel, message),
        _ => pubsub.publish_in_shard_in_unit(call.base.guard, channel, message),
    };
    pass_on(call, SubscriptionKind::Shard);
    if call.base.settings.cluster_slot_stats_enabled
        && let Some(cluster) = &call.server.cluster
    {
        let (channel, message) = (call.base.args.at(1), call.base.args.at(2));
        let len = evenkeel_client::pubsub::encode(&[b"smessage", channel, message], true).len();
        cluster.slot_stats.count_messages(call.worker, slot_of(channel), (count * len) as u64);
    }
    call.base.reply.int(count as i64);
    Ok(Flow::Replied)
}

/// Passes the message on to listeners at replicas, and at other nodes of the cluster.
fn pass_on(call: &mut ServerCall<'_, '_>, kind: SubscriptionKind) {
    let (pubsub, channel, message) = (&call.server.hub.pubsub, call.base.args.at(1), call.base.args.at(2));
    match call.base.mode {
        _ if call.base.replays => {}
        Mode::Direct => pubsub.relay(kind, channel, message),
        _ => pubsub.relay_in_unit(call.base.guard, kind, channel, message),
    }
    let name = evenkeel_command::table::table().row(call.base.id).name.as_bytes();
    let args = [name, call.base.args.at(1), call.base.args.at(2)];
    call.base.guard.propagate(call.session.db, args.into_iter());
}

/// PUBSUB HELP
fn help(call: &mut ServerCall<'_, '_>) -> Done {
    docs::reply_help(call, "PUBSUB");
    Ok(Flow::Replied)
}

/// PUBSUB CHANNELS [pattern]
fn channels(call: &mut ServerCall<'_, '_>) -> Done {
    reply_names(call, SubscriptionKind::Channel)
}

/// PUBSUB SHARDCHANNELS [pattern]
fn shard_channels(call: &mut ServerCall<'_, '_>) -> Done {
    reply_names(call, SubscriptionKind::Shard)
}

fn reply_names(call: &mut ServerCall<'_, '_>, kind: SubscriptionKind) -> Done {
    if call.base.args.len() > 3 {
        let text = b"ERR unknown subcommand or wrong number of arguments for '";
        return Err(Error::Bytes([text, call.base.args.at(1), b"'. Try PUBSUB HELP."].concat()));
    }
    let names = call.server.hub.pubsub.names(kind, call.base.args.get(2));
    call.base.reply.array(names.len());
    names.iter().for_each(|name| call.base.reply.bulk(name));
    Ok(Flow::Replied)
}

/// PUBSUB NUMPAT
fn pattern_count(call: &mut ServerCall<'_, '_>) -> Done {
    call.base.reply.int(call.server.hub.pubsub.count(SubscriptionKind::Pattern) as i64);
    Ok(Flow::Replied)
}

/// PUBSUB NUMSUB [channel ...]
fn subscriber_counts(call: &mut ServerCall<'_, '_>) -> Done {
    reply_counts(call, SubscriptionKind::Channel)
}

/// PUBSUB SHARDNUMSUB [shardchannel ...]
fn shard_subscriber_counts(call: &mut ServerCall<'_, '_>) -> Done {
    reply_counts(call, SubscriptionKind::Shard)
}

fn reply_counts(call: &mut ServerCall<'_, '_>, kind: SubscriptionKind) -> Done {
    call.base.reply.array(2 * (call.base.args.len() - 2));
    for channel in call.base.args.from(2) {
        call.base.reply.bulk(channel);
        call.base.reply.int(call.server.hub.pubsub.subscribers(kind, channel) as i64);
    }
    Ok(Flow::Replied)
}

#[cfg(test)]
mod tests;
