//! Ranges of sorted sets: by position, by score, by member; read, counted, stored, removed.
//!
//! Every range, by whichever criterion, is a range of positions, which the trees' counts give in logarithmic
//! time. The rest is common: the range is cut by LIMIT, read from either end, or removed as a whole.

use std::ops::Range;

use evenkeel_resp::float;
use evenkeel_store::collection::{Gather, Lex, ZSet};
use evenkeel_store::{Edit, Hasher};

use super::{GATHER_UNITS, Limits, Made, REMOVE_UNITS};
use crate::error::Error;
use crate::flow::Work;
use crate::flow::{Done, Flow};
use crate::offloading::is_much;
use crate::reply::Reply;
use crate::{Args, Call};

/// The criterion of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Lex,
}

/// An end of a range of scores.
#[derive(Clone, Copy, Debug)]
struct Limit {
    score: f64,
    excluded: bool,
}

/// The ends of a range, inclusive unless marked as excluded.
#[derive(Clone, Copy, Debug)]
enum Ends<'a> {
    Rank(i64, i64),
    Score(Limit, Limit),
    Lex(Lex<'a>, Lex<'a>),
}

impl<'a> Ends<'a> {
    fn parse(by: By, args: &Args<'a>, from: usize, to: usize) -> Result<Ends<'a>, Error> {
        match by {
            By::Rank => Ok(Ends::Rank(args.int(from)?, args.int(to)?)),
            By::Score => {
                let ends = Limit::parse(args.at(from)).zip(Limit::parse(args.at(to)));
                ends.map(|(from, to)| Ends::Score(from, to))
                    .ok_or(Error::text("ERR min or max is not a float"))
            }
            By::Lex => {
                let ends = parse_lex(args.at(from)).zip(parse_lex(args.at(to)));
                ends.map(|(from, to)| Ends::Lex(from, to))
                    .ok_or(Error::text("ERR min or max not valid string range item"))
            }
        }
    }

    /// Whether the ends select the same members in every equal set. A range by members does not where scores
    /// differ ([`ZSet::lex_range`]), neither here nor in Redis, so a command on such a range is logged by its
    /// effect.
    fn are_deterministic(&self, zset: &ZSet) -> bool {
        !matches!(self, Ends::Lex(..)) || zset.has_one_score()
    }

    /// Returns the positions in ascending order; `backwards` matters where Redis' answer depends on the side
    /// at which it begins.
    fn positions(&self, zset: &ZSet, backwards: bool) -> Range<u64> {
        let len = zset.len();
        match *self {
            Ends::Rank(from, to) => {
                let start = position(from, len).unwrap_or(0).min(len);
                let end = position(to, len).map_or(0, |to| to.saturating_add(1).min(len)).max(start);
                if backwards { len - end..len - start } else { start..end }
            }
            Ends::Score(from, to) => {
                let start = zset.count_below(from.score, from.excluded);
                start..zset.count_below(to.score, !to.excluded).max(start)
            }
            Ends::Lex(from, to) => zset.lex_range(from, to, backwards),
        }
    }
}

/// Returns the position of an index, which counts from the end if negative; `None` before the beginning.
fn position(index: i64, len: u64) -> Option<u64> {
    match u64::try_from(index) {
        Ok(index) => Some(index),
        Err(_) => len.checked_sub(index.unsigned_abs()),
    }
}

impl Limit {
    fn parse(text: &[u8]) -> Option<Limit> {
        let (excluded, text) = match text {
            [b'(', rest @ ..] => (true, rest),
            _ => (false, text),
        };
        Some(Limit { score: float::parse_leniently(text)?, excluded })
    }
}

fn parse_lex(text: &[u8]) -> Option<Lex<'_>> {
    match text {
        b"-" => Some(Lex::Min),
        b"+" => Some(Lex::Max),
        [b'[', member @ ..] => Some(Lex::Including(member)),
        [b'(', member @ ..] => Some(Lex::Excluding(member)),
        _ => None,
    }
}

/// A range with all its options.
struct Query<'a> {
    ends: Ends<'a>,
    reverse: bool,
    offset: i64,
    /// Negative: no limit.
    limit: i64,
    with_scores: bool,
}

impl<'a> Query<'a> {
    /// Parses the arguments after the source key, which is argument `source`. An option may give `by` and
    /// `reverse` if they are `None`.
    fn parse(
        args: &Args<'a>,
        source: usize,
        by: Option<By>,
        reverse: Option<bool>,
        stores: bool,
    ) -> Result<Query<'a>, Error> {
        let (mut chosen_by, mut chosen_reverse, mut offset, mut limit, mut with_scores) =
            (by, reverse, 0, -1, false);
        let mut at = source + 3;
        while at < args.len() {
            match args.word(at).as_bytes() {
                b"WITHSCORES" if !stores => with_scores = true,
                b"LIMIT" if at + 2 < args.len() => {
                    (offset, limit) = (args.int(at + 1)?, args.int(at + 2)?);
                    at += 2;
                }
                b"REV" if chosen_reverse.is_none() => chosen_reverse = Some(true),
                b"BYLEX" if chosen_by.is_none() => chosen_by = Some(By::Lex),
                b"BYSCORE" if chosen_by.is_none() => chosen_by = Some(By::Score),
                _ => return Err(Error::Syntax),
            }
            at += 1;
        }
        let (by, reverse) = (chosen_by.unwrap_or(By::Rank), chosen_reverse.unwrap_or(false));
        if limit != -1 && by == By::Rank {
            return Err(Error::text(LIMIT_WITHOUT_BY));
        }
        if with_scores && by == By::Lex {
            return Err(Error::text("ERR syntax error, WITHSCORES not supported in combination with BYLEX"));
        }
        let (first, second) = if reverse && by != By::Rank { (2, 1) } else { (1, 2) };
        let ends = Ends::parse(by, args, source + first, source + second)?;
        Ok(Query { ends, reverse, offset, limit, with_scores })
    }

    /// Returns the positions in ascending order.
    fn positions(&self, zset: &ZSet) -> Range<u64> {
        let Range { start, end } = self.ends.positions(zset, self.reverse);
        let len = end - start;
        if matches!(self.ends, Ends::Rank(..)) {
            return start..end;
        }
        // A negative offset skips all.
        let skip = u64::try_from(self.offset).map_or(len, |offset| offset.min(len));
        let take = u64::try_from(self.limit).map_or(len, |limit| limit.min(len)).min(len - skip);
        if self.reverse { end - skip - take..end - skip } else { start + skip..start + skip + take }
    }

    /// Returns the positions that it finds in a set, and the form of the reply.
    fn reply_of(&self, zset: &ZSet) -> RangeReply {
        let (reverse, with_scores) = (self.reverse, self.with_scores);
        RangeReply { positions: self.positions(zset), reverse, with_scores }
    }
}

/// Positions in ascending order, and the form in which their members are sent.
struct RangeReply {
    positions: Range<u64>,
    reverse: bool,
    with_scores: bool,
}

impl RangeReply {
    fn len(&self) -> u64 {
        self.positions.end - self.positions.start
    }

    fn reply(&self, zset: &ZSet, reply: &mut Reply) {
        let range = self.positions.clone();
        let members = zset.range(range.clone());
        let len = members.len();
        let write = |reply: &mut Reply, (at, member): (u64, &[u8])| reply.element(member, || zset.share(at));
        let numbered = |(at, (member, score))| ((at, member), score);
        if self.reverse {
            let members = range.rev().zip(members.rev()).map(numbered);
            reply_each(reply, len, members, self.with_scores, write);
        } else {
            reply_each(reply, len, range.zip(members).map(numbered), self.with_scores, write);
        }
    }
}

/// Replies with members, and with their scores if `with_scores`: in pairs in RESP3, in turn in RESP2.
pub(super) fn reply_members<'m>(
    reply: &mut Reply,
    members: impl ExactSizeIterator<Item = (&'m [u8], f64)>,
    with_scores: bool,
) {
    let len = members.len();
    reply_each(reply, len, members, with_scores, |reply, member| reply.bulk(member));
}

/// [`reply_members`] for `len` members that `write` puts into the reply.
fn reply_each<M>(
    reply: &mut Reply,
    len: usize,
    members: impl Iterator<Item = (M, f64)>,
    with_scores: bool,
    write: impl Fn(&mut Reply, M),
) {
    let pairs = with_scores && reply.resp3;
    reply.array(len * if with_scores && !pairs { 2 } else { 1 });
    members.for_each(|(member, score)| {
        if pairs {
            reply.array(2);
        }
        write(reply, member);
        if with_scores {
            reply.double(score);
        }
    });
}

const LIMIT_WITHOUT_BY: &str =
    "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX";

/// ZRANGE key start stop [BYSCORE | BYLEX] [REV] [LIMIT offset count] [WITHSCORES]
pub(super) fn zrange(call: &mut Call<'_, '_>) -> Done {
    range(call, None, None)
}

/// ZREVRANGE key start stop [WITHSCORES]
pub(super) fn zrevrange(call: &mut Call<'_, '_>) -> Done {
    range(call, Some(By::Rank), Some(true))
}

/// ZRANGEBYSCORE key min max [WITHSCORES] [LIMIT offset count]
pub(super) fn zrangebyscore(call: &mut Call<'_, '_>) -> Done {
    range(call, Some(By::Score), Some(false))
}

/// ZREVRANGEBYSCORE key max min [WITHSCORES] [LIMIT offset count]
pub(super) fn zrevrangebyscore(call: &mut Call<'_, '_>) -> Done {
    range(call, Some(By::Score), Some(true))
}

/// ZRANGEBYLEX key min max [LIMIT offset count]
pub(super) fn zrangebylex(call: &mut Call<'_, '_>) -> Done {
    range(call, Some(By::Lex), Some(false))
}

/// ZREVRANGEBYLEX key max min [LIMIT offset count]
pub(super) fn zrevrangebylex(call: &mut Call<'_, '_>) -> Done {
    range(call, Some(By::Lex), Some(true))
}

fn range(call: &mut Call<'_, '_>, by: Option<By>, reverse: Option<bool>) -> Done {
    let query = Query::parse(&call.args, 1, by, reverse, false)?;
    let Some(zset) = call.guard.collection::<ZSet>(&call.keys[0])? else {
        call.reply.array(0);
        return Ok(Flow::Replied);
    };
    let reply_of = query.reply_of(&zset);
    if is_much(reply_of.len()) {
        let zset = ZSet::clone(&zset);
        return call.offload_reply(move |reply| reply_of.reply(&zset, reply));
    }
    reply_of.reply(&zset, call.reply);
    Ok(Flow::Replied)
}

/// ZRANGESTORE dst src min max [BYSCORE | BYLEX] [REV] [LIMIT offset count]
pub(super) fn zrangestore(call: &mut Call<'_, '_>) -> Done {
    let query = Query::parse(&call.args, 2, None, None, true)?;
    let (hasher, limits) = (&call.guard.keyspace().hasher, Limits::of(call.settings));
    let source = call.guard.collection::<ZSet>(&call.keys[1])?.map(|zset| ZSet::clone(&zset));
    let Some(source) = source else { return Made::nothing(limits).store(call) };
    let positions = query.positions(&source);
    let is_deterministic = query.ends.are_deterministic(&source);
    let store = move |call: &mut Call<'_, '_>, made: Made| {
        if is_deterministic { made.store(call) } else { made.store_and_log(call, 0) }
    };
    if !call.is_worth_offloading((positions.end - positions.start) as usize * GATHER_UNITS) {
        return store(call, gather(hasher, &source, positions, limits));
    }
    let (hasher, known) = (hasher.clone(), source.clone());
    call.offload(Work::writes(
        move || {
            let made = gather(&hasher, &source, positions, limits);
            Ok((made, source))
        },
        move |call| {
            let now = call.guard.peek_collection::<ZSet>(&call.keys[1]);
            now.is_ok_and(|now| now.is_some_and(|now| now.is_same(&known)))
        },
        move |call, (made, source)| {
            call.guard.discard(source);
            store(call, made)
        },
    ))
}

/// Returns a sorted set of the members at these positions.
fn gather(hasher: &Hasher, source: &ZSet, positions: Range<u64>, limits: Limits) -> Made {
    let mut gather = Gather::new(hasher);
    source.range(positions).for_each(|(member, score)| gather.push(member, score));
    Made::of(gather.merge(|score, _| score), limits)
}

/// ZCOUNT key min max
pub(super) fn zcount(call: &mut Call<'_, '_>) -> Done {
    count(call, By::Score)
}

/// ZLEXCOUNT key min max
pub(super) fn zlexcount(call: &mut Call<'_, '_>) -> Done {
    count(call, By::Lex)
}

fn count(call: &mut Call<'_, '_>, by: By) -> Done {
    let ends = Ends::parse(by, &call.args, 2, 3)?;
    let zset = call.guard.collection::<ZSet>(&call.keys[0])?;
    let range = zset.map_or(0..0, |zset| ends.positions(&zset, false));
    call.reply.int((range.end - range.start) as i64);
    Ok(Flow::Replied)
}

/// ZREMRANGEBYRANK key start stop
pub(super) fn zremrangebyrank(call: &mut Call<'_, '_>) -> Done {
    remove(call, By::Rank)
}

/// ZREMRANGEBYSCORE key min max
pub(super) fn zremrangebyscore(call: &mut Call<'_, '_>) -> Done {
    remove(call, By::Score)
}

/// ZREMRANGEBYLEX key min max
pub(super) fn zremrangebylex(call: &mut Call<'_, '_>) -> Done {
    remove(call, By::Lex)
}

fn remove(call: &mut Call<'_, '_>, by: By) -> Done {
    let ends = Ends::parse(by, &call.args, 2, 3)?;
    let (hasher, is_logged) = (&call.guard.keyspace().hasher, call.is_logged());
    let Some(zset) = call.guard.peek_collection::<ZSet>(&call.keys[0])? else {
        call.reply.int(0);
        return Ok(Flow::Replied);
    };
    let (range, len) = (ends.positions(&zset, false), zset.len());
    let count = range.end - range.start;
    let is_deterministic = ends.are_deterministic(&zset);
    // A whole set is discarded in a single step.
    let is_much = count < len && is_much(count * REMOVE_UNITS);
    let logs_removed = is_logged && count > 0 && !is_deterministic;
    let mut shared = (is_much || logs_removed).then(|| ZSet::clone(&zset));
    if is_much
        && call.is_worth_offloading((count * REMOVE_UNITS) as usize)
        && let Some(zset) = shared.take()
    {
        let (hasher, removed) = (hasher.clone(), range.clone());
        let change = move |zset: &mut ZSet, reply: &mut Reply| {
            drop(zset.remove_range(&hasher, range));
            reply.int(count as i64);
            count
        };
        return call.offload_change_and_log(0, zset, change, move |call, before| {
            if !is_deterministic {
                log_removed(call, before, removed);
            }
        });
    }
    // If the old set is not needed, it is not shared either, and nothing is copied.
    let before = shared.filter(|_| logs_removed);
    call.guard.edit_if_there(&call.keys[0], |edit: &mut Edit<'_, ZSet>| {
        edit.changes = count;
        let cut = edit.remove_range(hasher, range.clone());
        edit.discard(cut);
    })?;
    if let Some(before) = before {
        log_removed(call, &before, range);
        call.guard.discard(before);
    }
    call.reply.int(count as i64);
    Ok(Flow::Replied)
}

/// Logs which members of the old set were removed.
fn log_removed(call: &mut Call<'_, '_>, before: &ZSet, range: Range<u64>) {
    if !call.is_logged() {
        return;
    }
    let key = call.keys[0].bytes;
    if range == (0..before.len()) {
        return call.log(&[b"DEL", key]);
    }
    call.log_each(&[b"ZREM", key], 1, before.range(range).map(|(member, _)| member));
}
