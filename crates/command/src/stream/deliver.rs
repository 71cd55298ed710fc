//! XREADGROUP: entries not yet delivered in the group, or entries that a consumer has not acknowledged.

use evenkeel_store::collection::stream::{Delivery, Group, Log, Stream, StreamId, one_more};
use evenkeel_store::{Concerns, Edit, Key, Kind};

use super::effect::Effect;
use super::id;
use super::range::reply_entry;
use super::read::{ReadOptions, begin_stream, may_wait, positions_after, reply_streams};
use crate::Call;
use crate::error::Error;
use crate::flow::Wait;
use crate::flow::{Done, Flow};
use crate::reply::Reply;

/// The request for a stream.
#[derive(Clone, Copy)]
enum Wish {
    /// `>`: entries not yet delivered in the group.
    New,
    /// The consumer's unacknowledged entries after this ID.
    After(StreamId),
}

/// The consumer that reads, and its options.
struct Reader<'a> {
    group: &'a [u8],
    consumer: &'a [u8],
    count: u64,
    no_ack: bool,
    now_ms: u64,
    is_logged: bool,
    /// Bytes beyond which entries are left out of the reply: a stream may be named many times.
    len_max: usize,
}

/// XREADGROUP GROUP group consumer [COUNT count] [BLOCK milliseconds] [NOACK] STREAMS key [key ...] id [id
/// ...]
pub(super) fn xreadgroup(call: &mut Call<'_, '_>) -> Done {
    let options = ReadOptions::parse(call, true)?;
    let tries = call.tries(0..options.streams);
    let mut wishes = Vec::with_capacity(tries.len());
    for stream in tries {
        find_group(call, &options, stream)?;
        wishes.push((stream, wish(options.id_text(&call.args, stream))?));
    }
    let (group, consumer) = (call.args.at(options.group), call.args.at(options.group + 1));
    let ReadOptions { count, no_ack, .. } = options;
    // A session that applies a primary's stream may serve a client, and has no clock.
    let (now_ms, is_logged) = (call.counts_from_ms(), call.is_logged());
    let len_max = call.reply_len_max();
    let reader = Reader { group, consumer, count, no_ack, now_ms, is_logged, len_max };
    let served =
        reply_streams(call, wishes.into_iter(), |call, stream, wish| reader.serve(call, stream, wish));
    if served || !may_wait(call, &options) {
        return Ok(Flow::Replied);
    }
    // A waiter is notified when the key or the group goes.
    let timeout = options.timeout.expect("seen above");
    call.block(Wait::on(0..options.streams, Kind::Stream, timeout).or_any_change())
}

/// Checks that a stream and its group exist. A waiter whose key has gone or changed its type gets the same
/// errors as a new command.
fn find_group(call: &mut Call<'_, '_>, options: &ReadOptions, stream: usize) -> Result<(), Error> {
    let (key, group) = (&call.keys[stream], call.args.at(options.group));
    let found = call.guard.collection::<Stream>(key)?;
    if found.is_some_and(|found| found.group(group).is_some()) {
        return Ok(());
    }
    let mut text = super::no_such_group(key.bytes, group);
    text.extend_from_slice(b" in XREADGROUP with GROUP option");
    Err(Error::Bytes(text))
}

fn wish(text: &[u8]) -> Result<Wish, Error> {
    match text {
        b">" => Ok(Wish::New),
        b"$" | b"+" => Err(Error::text(format!(
            "ERR The {sign} ID is meaningless in the context of XREADGROUP: you want to read the history of \
             this consumer by specifying a proper ID, or use the > ID to get new messages. The {sign} ID \
             would just return an empty result set.",
            sign = text[0] as char
        ))),
        // No entry can come after the last of all IDs; Redis takes it for `>`.
        _ => id::strict(text, 0).map(|id| if id == StreamId::MAX { Wish::New } else { Wish::After(id) }),
    }
}

impl Reader<'_> {
    /// Replies with the entries of a stream whose group exists; false if there are none.
    fn serve(&self, call: &mut Call<'_, '_>, stream: usize, wish: Wish) -> bool {
        let key = &call.keys[stream];
        let is_served = matches!(wish, Wish::After(_)) || self.has_new(call, key);
        // A waiter was seen when it came. If it is run again and gets nothing, nothing may change.
        if !is_served && call.is_serving() {
            return false;
        }
        let reply = &mut *call.reply;
        let effect = call.guard.edit_if_there(key, |edit: &mut Edit<'_, Stream>| {
            let (group, log) = edit.group_mut(self.group).expect("seen above");
            let is_new_consumer = group.add_consumer(self.consumer, self.now_ms);
            let consumer = group.consumer_mut(self.consumer).expect("just added");
            consumer.seen_ms = self.now_ms;
            let effect = match wish {
                _ if !is_served => Effect::default(),
                Wish::New => self.deliver(reply, key.bytes, group, log),
                Wish::After(id) => self.repeat(reply, key.bytes, group, log, id),
            };
            let has_changed = is_served || is_new_consumer;
            (edit.changes, edit.concerns) = (has_changed.into(), Concerns::Nobody);
            Effect { is_new_consumer, ..effect }
        });
        let Ok(Some(effect)) = effect else { return false };
        effect.log(call, key.bytes, self.group, self.consumer);
        is_served
    }

    /// Whether there are entries not yet delivered in the group.
    fn has_new(&self, call: &mut Call<'_, '_>, key: &Key<'_>) -> bool {
        let found = call.guard.peek_collection::<Stream>(key).ok().flatten();
        let last_id =
            found.as_ref().and_then(|found| Some((found.log(), found.group(self.group)?.last_id())));
        last_id.is_some_and(|(log, last_id)| !positions_after(log, last_id, 1).is_empty())
    }

    /// Delivers new entries.
    fn deliver(&self, reply: &mut Reply, key: &[u8], group: &mut Group, log: &Log) -> Effect {
        let positions = positions_after(log, group.last_id(), self.count);
        begin_stream(reply, key, (positions.end - positions.start) as usize);
        let entries = log.entries().range(positions);
        let ids = entries.map(|entry| {
            if !reply.cut_beyond(self.len_max) {
                reply_entry(reply, &entry);
            }
            entry.id
        });
        let ids: Vec<StreamId> = ids.collect();
        group.advance(&ids, log);
        let mut effect =
            Effect { position: Some((group.last_id(), group.entries_read())), ..Effect::default() };
        if !self.no_ack {
            let delivery = Delivery { at_ms: self.now_ms, count: 1 };
            if self.is_logged {
                effect.given = ids.iter().map(|id| (*id, delivery)).collect();
            }
            group.deliver(self.consumer, ids.into_iter(), self.now_ms);
            group.consumer_mut(self.consumer).expect("just added").active_ms = Some(self.now_ms);
        }
        effect
    }

    /// Delivers the consumer's unacknowledged entries again. A deleted entry has only its ID.
    fn repeat(&self, reply: &mut Reply, key: &[u8], group: &mut Group, log: &Log, after: StreamId) -> Effect {
        let mut effect = Effect::default();
        let first = after.next().expect("the last of all ids means another thing");
        let consumer = group.consumer(self.consumer).expect("just added");
        let ids = consumer.pending_ids(first, StreamId::MAX).take(self.count as usize);
        let ids: Vec<StreamId> = ids.collect();
        begin_stream(reply, key, ids.len());
        for id in ids {
            match log.entries().get(id) {
                Some(entry) => {
                    if !reply.cut_beyond(self.len_max) {
                        reply_entry(reply, &entry);
                    }
                    let pending = group.pending(id).expect("what a consumer has pending, the group has");
                    let count = one_more(pending.delivery.count);
                    let delivery = Delivery { at_ms: self.now_ms, count };
                    group.give(id, self.consumer, delivery);
                    effect.given.push((id, delivery));
                }
                None => {
                    reply.array(2);
                    id::reply(reply, id);
                    reply.null_array();
                }
            }
        }
        effect
    }
}
