//! XINFO: streams, their groups and their consumers.

use evenkeel_store::Ref;
use evenkeel_store::collection::stream::{Consumer, Entry, Group, Log, Stream, StreamId};

use super::id;
use super::range::reply_entry;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::offloading::is_much;
use crate::reply::Reply;
use crate::{Call, docs};

/// XINFO HELP
pub(super) fn help(call: &mut Call<'_, '_>) -> Done {
    docs::reply_help(call, "XINFO");
    Ok(Flow::Replied)
}

/// XINFO CONSUMERS key group
pub(super) fn consumers(call: &mut Call<'_, '_>) -> Done {
    let (now, args) = (call.now_ms(), call.args);
    let found = find(call)?;
    let group = found.0.group(args.at(3)).ok_or_else(|| super::no_group(&args, 3))?;
    let reply = found.1;
    reply.array(group.consumers_len());
    for (name, consumer) in group.consumers() {
        let inactive = consumer.active_ms.map_or(-1, |at_ms| now.saturating_sub(at_ms) as i64);
        reply.map(4);
        bulk(reply, "name", name);
        int(reply, "pending", consumer.pending_len());
        int(reply, "idle", now.saturating_sub(consumer.seen_ms));
        reply.bulk(b"inactive");
        reply.int(inactive);
    }
    Ok(Flow::Replied)
}

/// Returns the stream and the reply.
fn find<'c>(call: &'c mut Call<'_, '_>) -> Result<(Ref<'c, Stream>, &'c mut Reply), Error> {
    let found = call.guard.collection::<Stream>(&call.keys[0])?;
    Ok((found.ok_or(Error::NoSuchKey)?, &mut *call.reply))
}

/// XINFO GROUPS key
pub(super) fn groups(call: &mut Call<'_, '_>) -> Done {
    let (stream, reply) = find(call)?;
    reply.array(stream.groups_len());
    for (name, group) in stream.groups() {
        reply.map(6);
        bulk(reply, "name", name);
        int(reply, "consumers", group.consumers_len() as u64);
        int(reply, "pending", group.pending_len());
        id_of(reply, "last-delivered-id", group.last_id());
        maybe_int(reply, "entries-read", group.entries_read());
        maybe_int(reply, "lag", group.lag(stream.log()));
    }
    Ok(Flow::Replied)
}

/// XINFO STREAM key [FULL [COUNT count]]
pub(super) fn stream(call: &mut Call<'_, '_>) -> Done {
    let (args, now) = (call.args, call.now_ms());
    let (stream, reply) = find(call)?;
    if args.len() == 3 {
        reply.map(10 + idmp_fields(&stream));
        reply_numbers(reply, &stream, now);
        int(reply, "groups", stream.groups_len() as u64);
        entry(reply, "first-entry", stream.entries().first());
        entry(reply, "last-entry", stream.entries().last());
        return Ok(Flow::Replied);
    }
    let well_formed = args.len() == 4 || args.len() == 6 && args.is(4, "COUNT");
    if !well_formed || !args.is(3, "FULL") {
        return Err(super::bad_subcommand(&args, "XINFO"));
    }
    let count = if args.len() == 6 { args.int(5)? } else { COUNT };
    if is_much(lines_of(&stream, count)) {
        let stream = Stream::clone(&stream);
        return call.offload_reply(move |reply| reply_full(reply, &stream, count, now));
    }
    reply_full(reply, &stream, count, now);
    Ok(Flow::Replied)
}

/// The default number of entries, and of pending entries of each group and consumer.
const COUNT: i64 = 10;

/// Number of fields about idempotent production: none for a stream that does not use it, as in Valkey.
fn idmp_fields(stream: &Stream) -> usize {
    if stream.idmp().is_some() { 6 } else { 0 }
}

fn reply_numbers(reply: &mut Reply, stream: &Stream, now_ms: u64) {
    let (log, pages) = (stream.log(), stream.entries().pages());
    int(reply, "length", stream.len());
    int(reply, "radix-tree-keys", pages);
    // A single node above as many leaves: our tree is not Redis', and flatter.
    int(reply, "radix-tree-nodes", pages + 1);
    id_of(reply, "last-generated-id", log.last_id());
    id_of(reply, "max-deleted-entry-id", log.max_deleted_id());
    int(reply, "entries-added", log.added());
    id_of(reply, "recorded-first-entry-id", log.first_id());
    if let Some(idmp) = stream.idmp() {
        let (producers, entries) = idmp.tracked(now_ms);
        int(reply, "idmp-duration", idmp.duration_s);
        int(reply, "idmp-maxsize", idmp.entries_max);
        int(reply, "pids-tracked", producers);
        int(reply, "iids-tracked", entries);
        int(reply, "iids-added", idmp.added);
        int(reply, "iids-duplicates", idmp.duplicates);
    }
}

/// Zero means all, a negative number means the default.
fn wanted(count: i64) -> u64 {
    match count {
        0 => u64::MAX,
        1.. => count.unsigned_abs(),
        _ => COUNT.unsigned_abs(),
    }
}

/// Returns how many entries, pending entries, groups and consumers FULL replies with at most.
fn lines_of(stream: &Stream, count: i64) -> u64 {
    let count = wanted(count);
    let of_group = |group: &Group| {
        let (pending, consumers) = (group.pending_len(), group.consumers_len() as u64);
        1 + pending.min(count) + consumers + pending.min(count.saturating_mul(consumers))
    };
    stream.groups().fold(stream.len().min(count), |lines, (_, group)| lines + of_group(group))
}

fn reply_full(reply: &mut Reply, stream: &Stream, count: i64, now_ms: u64) {
    let count = wanted(count);
    reply.map(9 + idmp_fields(stream));
    reply_numbers(reply, stream, now_ms);
    reply.bulk(b"entries");
    let entries = stream.entries().range(0..count);
    reply.array(entries.len());
    entries.for_each(|entry| reply_entry(reply, &entry));
    reply.bulk(b"groups");
    reply.array(stream.groups_len());
    for (name, group) in stream.groups() {
        reply_group(reply, name, group, stream.log(), count as usize);
    }
}

fn reply_group(reply: &mut Reply, name: &[u8], group: &Group, log: &Log, count: usize) {
    // As in Valkey, unless there are entries that Valkey does not know.
    let has_released = group.released_len() > 0;
    reply.map(7 + usize::from(has_released));
    bulk(reply, "name", name);
    id_of(reply, "last-delivered-id", group.last_id());
    maybe_int(reply, "entries-read", group.entries_read());
    maybe_int(reply, "lag", group.lag(log));
    int(reply, "pel-count", group.pending_len());
    if has_released {
        int(reply, "nacked-count", group.released_len());
    }
    reply.bulk(b"pending");
    let pending = group.pending_range(StreamId::MIN, StreamId::MAX).take(count);
    reply.array(pending.len());
    for one in pending {
        reply.array(4);
        id::reply(reply, one.id);
        reply.bulk(one.consumer);
        reply.int(one.delivery.at_ms as i64);
        reply.int(one.delivery.count as i64);
    }
    reply.bulk(b"consumers");
    reply.array(group.consumers_len());
    for (name, consumer) in group.consumers() {
        reply_consumer(reply, name, consumer, group, count);
    }
}

fn reply_consumer(reply: &mut Reply, name: &[u8], consumer: &Consumer, group: &Group, count: usize) {
    reply.map(5);
    bulk(reply, "name", name);
    int(reply, "seen-time", consumer.seen_ms);
    reply.bulk(b"active-time");
    reply.int(consumer.active_ms.map_or(-1, |at_ms| at_ms as i64));
    int(reply, "pel-count", consumer.pending_len());
    reply.bulk(b"pending");
    let ids = consumer.pending_ids(StreamId::MIN, StreamId::MAX).take(count);
    reply.array(ids.len());
    for id in ids {
        let pending = group.pending(id).expect("what a consumer has pending, the group has");
        reply.array(3);
        id::reply(reply, id);
        reply.int(pending.delivery.at_ms as i64);
        reply.int(pending.delivery.count as i64);
    }
}

// Fields of the maps.

fn bulk(reply: &mut Reply, name: &str, value: &[u8]) {
    reply.bulk(name.as_bytes());
    reply.bulk(value);
}

fn int(reply: &mut Reply, name: &str, value: u64) {
    reply.bulk(name.as_bytes());
    reply.int(value as i64);
}

fn maybe_int(reply: &mut Reply, name: &str, value: Option<u64>) {
    reply.bulk(name.as_bytes());
    match value {
        Some(value) => reply.int(value as i64),
        None => reply.null(),
    }
}

fn id_of(reply: &mut Reply, name: &str, id: StreamId) {
    reply.bulk(name.as_bytes());
    id::reply(reply, id);
}

fn entry(reply: &mut Reply, name: &str, entry: Option<Entry<'_>>) {
    reply.bulk(name.as_bytes());
    match entry {
        Some(entry) => reply_entry(reply, &entry),
        None => reply.null(),
    }
}
