//! XREADGROUP: entries not yet delivered in the group, or entries that a consumer has not acknowledged.

use std::ops::Range;

use evenkeel_store::collection::stream::{Delivery, Entry, Group, Log, Stream, StreamId, one_more};
use evenkeel_store::{Concerns, Edit, Key, Kind};

use super::effect::Effect;
use super::id;
use super::range::{reply_entry, reply_id_and_fields};
use super::read::{Budget, ReadOptions, begin_stream, may_wait, positions_after, reply_streams};
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
    /// Pending entries that have been idle for so long are claimed.
    min_idle_ms: Option<u64>,
    no_ack: bool,
    now_ms: u64,
    is_logged: bool,
    /// Bytes beyond which entries are left out of the reply: a stream may be named many times.
    len_max: usize,
}

/// XREADGROUP GROUP group consumer [COUNT count] [MAXCOUNT count] [MAXSIZE bytes] [BLOCK milliseconds] [CLAIM
/// min-idle-time] [NOACK] STREAMS key [key ...] id [id ...]
pub(super) fn xreadgroup(call: &mut Call<'_, '_>) -> Done {
    let options = ReadOptions::parse(call, true)?;
    let tries = call.tries(0..options.streams);
    let mut wishes = Vec::with_capacity(tries.len());
    for stream in tries {
        find_group(call, &options, stream)?;
        wishes.push((stream, wish(options.id_text(&call.args, stream))?));
    }
    let (group, consumer) = (call.args.at(options.group), call.args.at(options.group + 1));
    let ReadOptions { count, min_idle_ms, no_ack, .. } = options;
    // A session that applies a primary's stream may serve a client, and has no clock.
    let (now_ms, is_logged) = (call.counts_from_ms(), call.is_logged());
    let len_max = call.reply_len_max();
    let reader = Reader { group, consumer, count, min_idle_ms, no_ack, now_ms, is_logged, len_max };
    let mut budget = Budget::new(options.limits);
    let wishes_again = call.tries(0..options.streams);
    let served = reply_streams(call, wishes.into_iter(), |call, stream, wish| {
        !budget.is_spent() && reader.serve(call, stream, wish, &mut budget)
    });
    if served || !may_wait(call, &options) {
        return Ok(Flow::Replied);
    }
    // A waiter is notified when the key or the group goes.
    let timeout = options.timeout.expect("seen above");
    let retry_ms = reader.retry_ms(call, wishes_again);
    call.block(Wait::on(0..options.streams, Kind::Stream, timeout).or_any_change().retried_after(retry_ms))
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

/// Bytes of a reply to CLAIM beside the entry: idle time and deliveries.
const CLAIM_BYTES: u64 = 16;

/// A pending entry that is to be claimed.
struct Idle {
    id: StreamId,
    delivery: Delivery,
}

impl Reader<'_> {
    /// Replies with the entries of a stream whose group exists; false if there are none.
    fn serve(&self, call: &mut Call<'_, '_>, stream: usize, wish: Wish, budget: &mut Budget) -> bool {
        let key = &call.keys[stream];
        let is_history = matches!(wish, Wish::After(_));
        // CLAIM does not concern the consumer's own entries.
        let idle = if is_history { Vec::new() } else { self.find_idle(call, key) };
        let is_served = is_history || !idle.is_empty() || self.has_new(call, key);
        // A waiter was seen when it came. If it is run again and gets nothing, nothing may change.
        if !is_served && call.is_serving() {
            return false;
        }
        let reply = &mut *call.reply;
        budget.begin_stream(key.bytes);
        let effect = call.guard.edit_if_there(key, |edit: &mut Edit<'_, Stream>| {
            let (group, log) = edit.group_mut(self.group).expect("seen above");
            let is_new_consumer = group.add_consumer(self.consumer, self.now_ms);
            let consumer = group.consumer_mut(self.consumer).expect("just added");
            consumer.seen_ms = self.now_ms;
            let effect = match wish {
                _ if !is_served => Effect::default(),
                Wish::New => self.deliver(reply, key.bytes, (group, log), idle, budget),
                Wish::After(id) => self.repeat(reply, key.bytes, (group, log), id, budget),
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

    /// Returns the entries to be claimed: released entries, then pending entries by their idle time, the
    /// longest first.
    fn find_idle(&self, call: &mut Call<'_, '_>, key: &Key<'_>) -> Vec<Idle> {
        let Some(min_idle_ms) = self.min_idle_ms else { return Vec::new() };
        let Some(until_ms) = self.now_ms.checked_sub(min_idle_ms) else { return Vec::new() };
        let found = call.guard.peek_collection::<Stream>(key).ok().flatten();
        let parts = found.as_ref().and_then(|found| Some((found.log(), found.group(self.group)?)));
        let Some((log, group)) = parts else { return Vec::new() };
        let pending = group.pending_range(StreamId::MIN, StreamId::MAX);
        let idle = pending.filter(|one| one.delivery.at_ms <= until_ms && log.entries().contains(one.id));
        let mut idle: Vec<_> = idle.map(|one| (one.rank.is_none(), one.rank, one)).collect();
        idle.sort_by_key(|(is_owned, rank, one)| (*is_owned, *rank, one.delivery.at_ms));
        let most = usize::try_from(self.count).unwrap_or(usize::MAX);
        let idle = idle.iter().take(most).map(|(.., one)| Idle { id: one.id, delivery: one.delivery });
        idle.collect()
    }

    /// Returns the milliseconds until the first pending entry of these streams can be claimed. Others may be
    /// delivered meanwhile, so it is no more than the time that an entry has to be idle.
    fn retry_ms(&self, call: &mut Call<'_, '_>, streams: Range<usize>) -> Option<u64> {
        const LEAST: u64 = 10;
        let (min_idle_ms, mut wait_ms) = (self.min_idle_ms?, self.min_idle_ms?);
        for stream in streams {
            let found = call.guard.peek_collection::<Stream>(&call.keys[stream]).ok().flatten();
            let parts = found.as_ref().and_then(|found| Some((found.log(), found.group(self.group)?)));
            let Some((log, group)) = parts else { continue };
            let pending = group.pending_range(StreamId::MIN, StreamId::MAX);
            let times = pending.filter(|one| log.entries().contains(one.id)).map(|one| one.delivery.at_ms);
            let first_ms = times.min().map(|at_ms| at_ms.saturating_add(min_idle_ms));
            wait_ms = first_ms.map_or(wait_ms, |at_ms| wait_ms.min(at_ms.saturating_sub(self.now_ms)));
        }
        Some(wait_ms.max(LEAST))
    }

    /// Claims idle entries, and delivers new entries.
    fn deliver(
        &self,
        reply: &mut Reply,
        key: &[u8],
        (group, log): (&mut Group, &Log),
        mut idle: Vec<Idle>,
        budget: &mut Budget,
    ) -> Effect {
        let with_claim = self.min_idle_ms.is_some();
        let extra = if with_claim { CLAIM_BYTES } else { 0 };
        let entry_of = |id: StreamId| log.entries().get(id).expect("it was found");
        let fitting = idle.iter().take_while(|one| budget.take(&entry_of(one.id), extra)).count();
        idle.truncate(fitting);
        let left = self.count - idle.len() as u64;
        let positions = positions_after(log, group.last_id(), left);
        let positions = if budget.is_spent() {
            positions.start..positions.start
        } else {
            budget.cut(log, positions, extra)
        };
        begin_stream(reply, key, idle.len() + (positions.end - positions.start) as usize);
        let mut effect = self.claim(reply, (group, log), &idle);
        let entries = log.entries().range(positions);
        let ids = entries.map(|entry| {
            if !reply.cut_beyond(self.len_max) {
                match with_claim {
                    true => reply_claimed(reply, &entry, (0, 0)),
                    false => reply_entry(reply, &entry),
                }
            }
            entry.id
        });
        let ids: Vec<StreamId> = ids.collect();
        if ids.is_empty() {
            return effect;
        }
        group.advance(&ids, log);
        effect.position = Some((group.last_id(), group.entries_read()));
        if !self.no_ack {
            let delivery = Delivery { at_ms: self.now_ms, count: 1 };
            if self.is_logged {
                effect.given.extend(ids.iter().map(|id| (*id, delivery)));
            }
            group.deliver(self.consumer, ids.into_iter(), self.now_ms);
            group.consumer_mut(self.consumer).expect("just added").active_ms = Some(self.now_ms);
        }
        effect
    }

    /// Gives idle entries to the consumer.
    fn claim(&self, reply: &mut Reply, (group, log): (&mut Group, &Log), idle: &[Idle]) -> Effect {
        let mut effect = Effect::default();
        for Idle { id, delivery } in idle {
            if !reply.cut_beyond(self.len_max) {
                let entry = log.entries().get(*id).expect("it was found");
                reply_claimed(reply, &entry, (self.now_ms - delivery.at_ms, delivery.count));
            }
            let delivery = Delivery { at_ms: self.now_ms, count: one_more(delivery.count) };
            group.give(*id, self.consumer, delivery);
            effect.given.push((*id, delivery));
        }
        if !idle.is_empty() {
            group.consumer_mut(self.consumer).expect("just added").active_ms = Some(self.now_ms);
        }
        effect
    }

    /// Delivers the consumer's unacknowledged entries again. A deleted entry has only its ID.
    fn repeat(
        &self,
        reply: &mut Reply,
        key: &[u8],
        (group, log): (&mut Group, &Log),
        after: StreamId,
        budget: &mut Budget,
    ) -> Effect {
        let mut effect = Effect::default();
        let first = after.next().expect("the last of all ids means another thing");
        let consumer = group.consumer(self.consumer).expect("just added");
        let ids = consumer.pending_ids(first, StreamId::MAX).take(self.count as usize);
        let fits = |id: &StreamId| match log.entries().get(*id) {
            Some(entry) => budget.take(&entry, 0),
            None => budget.take_id(*id),
        };
        let ids: Vec<StreamId> = ids.take_while(fits).collect();
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

/// Replies with an entry as XREADGROUP does with CLAIM: with the time since its last delivery, and the number
/// of deliveries before this.
fn reply_claimed(reply: &mut Reply, entry: &Entry<'_>, (idle_ms, count): (u64, u64)) {
    reply.array(4);
    reply_id_and_fields(reply, entry);
    reply.int(idle_ms as i64);
    reply.int(count as i64);
}
