//! XPENDING, XCLAIM, XAUTOCLAIM: inspects unacknowledged deliveries, and takes them over.

use evenkeel_store::collection::stream::{Delivery, Group, Log, Pending, Stream, StreamId, one_more};
use evenkeel_store::{Concerns, Edit};

use super::effect::Effect;
use super::id;
use super::range::reply_entry;
use crate::error::Error;
use crate::flow::OFFLOAD_MIN;
use crate::flow::{Done, Flow};
use crate::reply::Reply;
use crate::{Args, Call};

/// Milliseconds since a delivery; zero if the clock went back since.
fn idle_ms(now_ms: u64, delivery: Delivery) -> u64 {
    now_ms.saturating_sub(delivery.at_ms)
}

/// The range in a call of XPENDING.
struct PendingRange<'a> {
    min_idle_ms: u64,
    start: StreamId,
    end: StreamId,
    count: u64,
    consumer: Option<&'a [u8]>,
}

impl<'a> PendingRange<'a> {
    /// Parses the range; `None` if the call asks for a summary.
    fn parse(args: &Args<'a>) -> Result<Option<PendingRange<'a>>, Error> {
        if args.len() == 3 {
            return Ok(None);
        }
        if !(6..=9).contains(&args.len()) {
            return Err(Error::Syntax);
        }
        let (mut first, mut min_idle_ms) = (3, 0);
        if args.is(3, "IDLE") {
            min_idle_ms = u64::try_from(args.int(4)?).unwrap_or(0);
            first = 5;
            if args.len() < 8 {
                return Err(Error::Syntax);
            }
        }
        let count = u64::try_from(args.int(first + 2)?).unwrap_or(0);
        let (start, end) = (id::start(args.at(first))?, id::end(args.at(first + 1))?);
        Ok(Some(PendingRange { min_idle_ms, start, end, count, consumer: args.get(first + 3) }))
    }

    /// Replies, unless that takes more than `looks_max` looks; returns whether it has.
    fn reply(&self, reply: &mut Reply, group: &Group, now_ms: u64, looks_max: usize) -> bool {
        let found = match self.consumer.map(|name| group.consumer(name)) {
            Some(None) => Some(Vec::new()),
            Some(Some(consumer)) => {
                let ids = consumer.pending_ids(self.start, self.end);
                self.find(ids.filter_map(|id| group.pending(id)), now_ms, looks_max)
            }
            None => self.find(group.pending_range(self.start, self.end), now_ms, looks_max),
        };
        let Some(found) = found else { return false };
        reply.array(found.len());
        for one in found {
            reply.array(4);
            id::reply(reply, one.id);
            reply.bulk(one.consumer);
            let is_released = one.rank.is_some();
            reply.int(if is_released { -1 } else { idle_ms(now_ms, one.delivery) as i64 });
            reply.int(one.delivery.count as i64);
        }
        true
    }

    /// Returns up to `count` deliveries that have been idle for long enough; `None` if that takes more than
    /// `looks_max` looks.
    fn find<'g>(
        &self,
        pending: impl Iterator<Item = Pending<'g>>,
        now_ms: u64,
        looks_max: usize,
    ) -> Option<Vec<Pending<'g>>> {
        let mut found = Vec::new();
        for (looks, one) in pending.enumerate() {
            if found.len() as u64 >= self.count {
                break;
            }
            if looks >= looks_max {
                return None;
            }
            if self.min_idle_ms == 0 || idle_ms(now_ms, one.delivery) >= self.min_idle_ms {
                found.push(one);
            }
        }
        Some(found)
    }
}

/// XPENDING key group [[IDLE min-idle-time] start end count [consumer]]
pub(super) fn xpending(call: &mut Call<'_, '_>) -> Done {
    let range = PendingRange::parse(&call.args)?;
    let now = call.now_ms();
    let found = call.guard.collection::<Stream>(&call.keys[0])?;
    let group = found.as_ref().and_then(|stream| stream.group(call.args.at(2)));
    let group = group.ok_or_else(|| no_key_or_group(call.args))?;
    let Some(range) = range else {
        reply_summary(call.reply, group);
        return Ok(Flow::Replied);
    };
    if range.reply(call.reply, group, now, OFFLOAD_MIN) {
        return Ok(Flow::Replied);
    }
    let (stream, args) = (found.as_deref().expect("it has the group").clone(), call.args.to_owned());
    call.offload_reply(move |reply| {
        let args = args.as_args();
        let range = PendingRange::parse(&args).ok().flatten().expect("it was read before");
        range.reply(reply, stream.group(args.at(2)).expect("it was there"), now, usize::MAX);
    })
}

fn no_key_or_group(args: Args<'_>) -> Error {
    Error::Bytes(super::no_such_group(args.at(1), args.at(2)))
}

/// Replies with the number of deliveries, the first and the last ID, and each consumer's number.
fn reply_summary(reply: &mut Reply, group: &Group) {
    let mut all = group.pending_range(StreamId::MIN, StreamId::MAX).map(|one| one.id);
    reply.array(4);
    reply.int(group.pending_len() as i64);
    let Some(first) = all.next() else {
        reply.null();
        reply.null();
        return reply.null_array();
    };
    id::reply(reply, first);
    id::reply(reply, all.next_back().unwrap_or(first));
    let busy = group.consumers().filter(|(_, consumer)| consumer.pending_len() > 0);
    let busy: Vec<_> = busy.collect();
    reply.array(busy.len());
    for (name, consumer) in busy {
        reply.array(2);
        reply.bulk(name);
        reply.bulk_int(consumer.pending_len() as i64);
    }
}

/// Options of XCLAIM, behind its IDs.
#[derive(Default)]
struct ClaimOptions {
    at_ms: Option<u64>,
    retries: Option<u64>,
    force: bool,
    just_id: bool,
    last_id: StreamId,
}

impl ClaimOptions {
    /// Parses the options. `latest_ms` is the latest valid time of a delivery.
    fn parse(args: &Args<'_>, first: usize, now_ms: u64, latest_ms: u64) -> Result<ClaimOptions, Error> {
        let (mut options, mut at) = (ClaimOptions::default(), first);
        while at < args.len() {
            let has_value = at + 1 < args.len();
            let number = |name: &str| {
                let text = format!("ERR Invalid {name} option argument for XCLAIM");
                args.int(at + 1).map_err(|_| Error::text(text))
            };
            // An invalid time means now: the clocks of clients may differ.
            let time =
                |at_ms: i64| u64::try_from(at_ms).ok().filter(|at_ms| *at_ms <= latest_ms).or(Some(now_ms));
            match args.word(at).as_bytes() {
                b"FORCE" => options.force = true,
                b"JUSTID" => options.just_id = true,
                b"IDLE" if has_value => options.at_ms = time((now_ms as i64).wrapping_sub(number("IDLE")?)),
                b"TIME" if has_value => options.at_ms = time(number("TIME")?),
                b"RETRYCOUNT" if has_value => options.retries = u64::try_from(number("RETRYCOUNT")?).ok(),
                b"LASTID" if has_value => options.last_id = id::strict(args.at(at + 1), 0)?,
                _ => {
                    let text = [b"ERR Unrecognized XCLAIM option '", args.quoted(at, usize::MAX), b"'"];
                    return Err(Error::Bytes(text.concat()));
                }
            }
            let is_flag = args.is(at, "FORCE") || args.is(at, "JUSTID");
            at += if is_flag { 1 } else { 2 };
        }
        Ok(options)
    }
}

/// XCLAIM key group consumer min-idle-time id [id ...] [IDLE ms] [TIME unix-time-ms] [RETRYCOUNT count]
/// [FORCE] [JUSTID] [LASTID last-id]
pub(super) fn xclaim(call: &mut Call<'_, '_>) -> Done {
    let (args, now) = (call.args, call.now_ms());
    let found = call.guard.collection::<Stream>(&call.keys[0])?;
    if found.is_none_or(|stream| stream.group(args.at(2)).is_none()) {
        return Err(no_key_or_group(args));
    }
    let min_idle_ms = min_idle(&args, "XCLAIM")?;
    // The options begin at the first argument that is not an ID.
    let ids: Vec<StreamId> = args.from(5).map_while(|text| id::strict(text, 0).ok()).collect();
    let latest_ms = if call.is_replay() { u64::MAX } else { now };
    let options = ClaimOptions::parse(&args, 5 + ids.len(), now, latest_ms)?;
    let times = Times { now_ms: now, seen_ms: call.counts_from_ms() };
    let len_max = call.reply_len_max();
    let (key, reply) = (&call.keys[0], &mut *call.reply);
    let effect = call.guard.edit(key, |edit: &mut Edit<'_, Stream>| {
        let (group, log) = edit.group_mut(args.at(2)).expect("seen above");
        let mut position = None;
        if options.last_id > group.last_id() {
            position = Some((options.last_id, group.entries_read()));
            group.set_position(options.last_id, group.entries_read());
        }
        let mut claim = Claim::begin(group, log, args.at(3), times, options.just_id);
        let claimed: Vec<StreamId> =
            ids.into_iter().filter(|id| claim.take(*id, min_idle_ms, &options)).collect();
        claim.reply(reply, len_max, claimed.into_iter());
        let Claim { changes, effect, .. } = claim;
        (edit.changes, edit.concerns) = (changes, Concerns::Nobody);
        Effect { position, ..effect }
    })?;
    effect.log(call, key.bytes, args.at(2), args.at(3));
    Ok(Flow::Replied)
}

fn min_idle(args: &Args<'_>, command: &str) -> Result<u64, Error> {
    let idle = args.int(4);
    let idle = idle.map_err(|_| Error::text(format!("ERR Invalid min-idle-time argument for {command}")));
    Ok(u64::try_from(idle?).unwrap_or(0))
}

/// XAUTOCLAIM key group consumer min-idle-time start [COUNT count] [JUSTID]
pub(super) fn xautoclaim(call: &mut Call<'_, '_>) -> Done {
    let (args, now) = (call.args, call.now_ms());
    let min_idle_ms = min_idle(&args, "XAUTOCLAIM")?;
    let start = id::start(args.at(5))?;
    let (count, just_id) = autoclaim_options(&args)?;
    let found = call.guard.collection::<Stream>(&call.keys[0])?;
    let group = found.as_ref().and_then(|stream| Some((stream.group(args.at(2))?, stream.log())));
    let (group, log) = group.ok_or_else(|| no_key_or_group(args))?;
    let sweep = Sweep::over(group, log, start, count, |delivery| {
        min_idle_ms == 0 || idle_ms(now, delivery) >= min_idle_ms
    });
    let times = Times { now_ms: now, seen_ms: call.counts_from_ms() };
    let len_max = call.reply_len_max();
    let (key, reply) = (&call.keys[0], &mut *call.reply);
    let effect = call.guard.edit(key, |edit: &mut Edit<'_, Stream>| {
        let (group, log) = edit.group_mut(args.at(2)).expect("seen above");
        let mut claim = Claim::begin(group, log, args.at(3), times, just_id);
        sweep.gone.iter().for_each(|id| claim.forget(*id));
        for (id, count) in &sweep.idle {
            claim.give(*id, Delivery { at_ms: now, count: if just_id { *count } else { one_more(*count) } });
        }
        reply.array(3);
        id::reply(reply, sweep.next);
        claim.reply(reply, len_max, sweep.idle.iter().map(|(id, _)| *id));
        reply.array(sweep.gone.len());
        sweep.gone.iter().for_each(|id| id::reply(reply, *id));
        let Claim { changes, effect, .. } = claim;
        (edit.changes, edit.concerns) = (changes, Concerns::Nobody);
        effect
    })?;
    effect.log(call, key.bytes, args.at(2), args.at(3));
    Ok(Flow::Replied)
}

/// Parses how many entries to claim, and whether only their IDs are to be returned.
fn autoclaim_options(args: &Args<'_>) -> Result<(u64, bool), Error> {
    /// The default of COUNT.
    const COUNT: u64 = 100;
    /// The limit of Redis' own memory for this.
    const COUNT_MAX: i64 = i64::MAX / 16;
    let (mut count, mut just_id, mut at) = (COUNT, false, 6);
    while at < args.len() {
        if args.is(at, "COUNT") && at + 1 < args.len() {
            let given = args.int(at + 1).ok().filter(|count| (1..=COUNT_MAX).contains(count));
            count = given.ok_or(Error::text("ERR COUNT must be > 0"))?.unsigned_abs();
            at += 2;
        } else if args.is(at, "JUSTID") {
            just_id = true;
            at += 1;
        } else {
            return Err(Error::Syntax);
        }
    }
    Ok((count, just_id))
}

/// The findings of XAUTOCLAIM among the pending entries.
struct Sweep {
    /// To be claimed, with the deliveries so far.
    idle: Vec<(StreamId, u64)>,
    /// To be forgotten: the entries were deleted.
    gone: Vec<StreamId>,
    /// Where to go on; zeros at the end.
    next: StreamId,
}

impl Sweep {
    /// Looks for `count` entries among ten times as many.
    fn over(
        group: &Group,
        log: &Log,
        start: StreamId,
        count: u64,
        is_idle: impl Fn(Delivery) -> bool,
    ) -> Sweep {
        const LOOKS_PER_CLAIM: u64 = 10;
        let mut sweep = Sweep { idle: Vec::new(), gone: Vec::new(), next: StreamId::MIN };
        let mut pending = group.pending_range(start, StreamId::MAX);
        let (mut looks, mut left) = (count.saturating_mul(LOOKS_PER_CLAIM), count);
        while looks > 0 && left > 0 {
            let Some(one) = pending.next() else { break };
            looks -= 1;
            if !log.entries().contains(one.id) {
                sweep.gone.push(one.id);
            } else if is_idle(one.delivery) {
                sweep.idle.push((one.id, one.delivery.count));
            } else {
                continue;
            }
            left -= 1;
        }
        sweep.next = pending.next().map_or(StreamId::MIN, |one| one.id);
        sweep
    }
}

/// The time of a call, which its deliveries get, and the time at which its consumer was seen: a journal has
/// only the first.
#[derive(Clone, Copy)]
struct Times {
    now_ms: u64,
    seen_ms: u64,
}

/// A consumer that takes entries over.
struct Claim<'a> {
    group: &'a mut Group,
    log: &'a Log,
    consumer: &'a [u8],
    times: Times,
    just_id: bool,
    changes: u64,
    /// Its effect, for the journal.
    effect: Effect,
}

impl<'a> Claim<'a> {
    fn begin(
        group: &'a mut Group,
        log: &'a Log,
        consumer: &'a [u8],
        times: Times,
        just_id: bool,
    ) -> Claim<'a> {
        let is_new_consumer = group.add_consumer(consumer, times.seen_ms);
        let (changes, effect) = (u64::from(is_new_consumer), Effect { is_new_consumer, ..Effect::default() });
        group.consumer_mut(consumer).expect("just added").seen_ms = times.seen_ms;
        Claim { group, log, consumer, times, just_id, changes, effect }
    }

    fn forget(&mut self, id: StreamId) {
        if self.group.forget(id) {
            self.changes += 1;
            self.effect.forgotten.push(id);
        }
    }

    fn give(&mut self, id: StreamId, delivery: Delivery) {
        self.group.give(id, self.consumer, delivery);
        self.effect.given.push((id, delivery));
        let consumer = self.group.consumer_mut(self.consumer).expect("just added");
        consumer.active_ms = Some(self.times.seen_ms);
        self.changes += 1;
    }

    /// Takes an entry if it exists and has been idle for long enough.
    fn take(&mut self, id: StreamId, min_idle_ms: u64, options: &ClaimOptions) -> bool {
        if !self.log.entries().contains(id) {
            self.forget(id);
            return false;
        }
        let deliveries = match self.group.pending(id).map(|pending| pending.delivery) {
            // A released entry, whose time is zero, is idle enough.
            Some(delivery) if min_idle_ms > 0 && idle_ms(self.times.now_ms, delivery) < min_idle_ms => {
                return false;
            }
            Some(delivery) => delivery.count,
            None if options.force => 1,
            None => return false,
        };
        let count = options.retries.unwrap_or(if self.just_id { deliveries } else { one_more(deliveries) });
        self.give(id, Delivery { at_ms: options.at_ms.unwrap_or(self.times.now_ms), count });
        true
    }

    /// Replies with the claimed entries. Beyond `len_max` bytes, the rest is left out: an ID may occur many
    /// times.
    fn reply(&self, reply: &mut Reply, len_max: usize, ids: impl ExactSizeIterator<Item = StreamId>) {
        reply.array(ids.len());
        for id in ids {
            if reply.cut_beyond(len_max) {
                return;
            }
            match self.log.entries().get(id) {
                Some(entry) if !self.just_id => reply_entry(reply, &entry),
                _ => id::reply(reply, id),
            }
        }
    }
}
