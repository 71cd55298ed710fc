//! Pops from an end of a sorted set: ZPOPMIN, ZPOPMAX, ZMPOP, and their blocking forms.

use std::ops::Range;

use evenkeel_store::Kind;
use evenkeel_store::collection::ZSet;
use evenkeel_store::{Edit, WrongType};

use super::REMOVE_UNITS;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::flow::{Timeout, Wait};
use crate::offloading::is_much;
use crate::reply::Reply;
use crate::{Args, Call};

/// An end of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Min,
    Max,
}

impl End {
    /// Returns the positions of the `count` members at this end of a set of `len`, which has that many.
    fn range(self, count: u64, len: u64) -> Range<u64> {
        match self {
            End::Min => 0..count,
            End::Max => len - count..len,
        }
    }
}

/// The form of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Members and scores in turn.
    Flat,
    /// Pairs of them.
    Pairs,
    /// The key, a member, its score.
    KeyAndOne,
    /// The key, and pairs.
    KeyAndPairs,
}

/// ZPOPMIN key [count]
pub(super) fn zpopmin(call: &mut Call<'_, '_>) -> Done {
    pop_from_one(call, End::Min)
}

/// ZPOPMAX key [count]
pub(super) fn zpopmax(call: &mut Call<'_, '_>) -> Done {
    pop_from_one(call, End::Max)
}

fn pop_from_one(call: &mut Call<'_, '_>, end: End) -> Done {
    let args = call.args;
    if args.len() > 3 {
        return Err(Error::Syntax);
    }
    let count = if args.len() == 3 { Some(count_at(&args, 2)?) } else { None };
    let shape = if count.is_some() && call.reply.resp3 { Shape::Pairs } else { Shape::Flat };
    let count = count.unwrap_or(1);
    if let Some(zset) = long_pop(call, 0, count)? {
        return offload_pop(call, 0, zset, end, count, shape);
    }
    if pop(call, 0, end, count, shape)?.is_none() {
        call.reply.array(0);
    }
    Ok(Flow::Replied)
}

/// Returns a clone of the set at the call's key of this index if popping so many members takes long.
fn long_pop(call: &mut Call<'_, '_>, key: usize, count: u64) -> Result<Option<ZSet>, WrongType> {
    if !is_much(count.saturating_mul(REMOVE_UNITS)) {
        return Ok(None);
    }
    let zset = call.guard.peek_collection::<ZSet>(&call.keys[key])?.map(|zset| ZSet::clone(&zset));
    Ok(zset.filter(|zset| call.is_worth_offloading((count.min(zset.len()) * REMOVE_UNITS) as usize)))
}

/// Offloads a pop of up to `count` members from the set at the call's key of this index, the first that
/// exists.
fn offload_pop(call: &mut Call<'_, '_>, key: usize, zset: ZSet, end: End, count: u64, shape: Shape) -> Done {
    let (hasher, name) = (call.guard.keyspace().hasher.clone(), call.keys[key].bytes.to_vec());
    let take = move |zset: &mut ZSet, reply: &mut Reply| {
        let range = end.range(count.min(zset.len()), zset.len());
        reply_popped(reply, zset, range.clone(), end, &name, shape);
        let popped = range.end - range.start;
        drop(zset.remove_range(&hasher, range));
        popped
    };
    call.offload_change_and_log(key, zset, take, move |call, before| {
        log_pop(call, key, end, count.min(before.len()));
    })
}

fn count_at(args: &Args<'_>, at: usize) -> Result<u64, Error> {
    let count = args.int(at).ok().and_then(|count| u64::try_from(count).ok());
    count.ok_or(Error::text("ERR value is out of range, must be positive"))
}

/// Pops up to `count` members from the end of the set at the call's key of this index, and replies. Returns
/// how many; `None` without a set.
fn pop(
    call: &mut Call<'_, '_>,
    key: usize,
    end: End,
    count: u64,
    shape: Shape,
) -> Result<Option<u64>, WrongType> {
    let hasher = &call.guard.keyspace().hasher;
    let (key, reply) = (&call.keys[key], &mut *call.reply);
    call.guard.edit_if_there(key, |edit: &mut Edit<'_, ZSet>| {
        edit.changes = count.min(edit.len());
        let range = end.range(edit.changes, edit.len());
        reply_popped(reply, edit, range.clone(), end, key.bytes, shape);
        let cut = edit.remove_range(hasher, range);
        edit.discard(cut);
        edit.changes
    })
}

/// Replies with the members at these positions, the outermost first.
fn reply_popped(reply: &mut Reply, zset: &ZSet, range: Range<u64>, end: End, key: &[u8], shape: Shape) {
    begin(reply, key, (range.end - range.start) as usize, shape);
    let members = zset.range(range.clone());
    let each = |(at, (member, score)): (u64, (&[u8], f64))| {
        if matches!(shape, Shape::Pairs | Shape::KeyAndPairs) {
            reply.array(2);
        }
        reply.element(member, || zset.share(at));
        reply.double(score);
    };
    match end {
        End::Min => range.zip(members).for_each(each),
        End::Max => range.rev().zip(members.rev()).for_each(each),
    }
}

/// Logs that so many members were popped from the set at the call's key of this index; the other keys no
/// longer matter.
fn log_pop(call: &mut Call<'_, '_>, key: usize, end: End, count: u64) {
    let command: &[u8] = match end {
        End::Min => b"ZPOPMIN",
        End::Max => b"ZPOPMAX",
    };
    call.log(&[command, call.keys[key].bytes, count.to_string().as_bytes()]);
}

fn begin(reply: &mut Reply, key: &[u8], members: usize, shape: Shape) {
    match shape {
        Shape::Flat => reply.array(2 * members),
        Shape::Pairs => reply.array(members),
        Shape::KeyAndOne => {
            reply.array(3);
            reply.bulk(key);
        }
        Shape::KeyAndPairs => {
            reply.array(2);
            reply.bulk(key);
            reply.array(members);
        }
    }
}

/// ZMPOP numkeys key [key ...] <MIN | MAX> [COUNT count]
pub(super) fn zmpop(call: &mut Call<'_, '_>) -> Done {
    let (end, count) = parse_mpop(&call.args, 1)?;
    if let Some(key) = call.first_of_much(count.saturating_mul(REMOVE_UNITS))
        && let Some(zset) = long_pop(call, key, count)?
    {
        return offload_pop(call, key, zset, end, count, Shape::KeyAndPairs);
    }
    for key in 0..call.keys.len() {
        if let Some(popped) = pop(call, key, end, count, Shape::KeyAndPairs)? {
            log_pop(call, key, end, popped);
            return Ok(Flow::Replied);
        }
    }
    call.reply.null_array();
    Ok(Flow::Replied)
}

/// Parses the arguments of ZMPOP, from the number of keys on.
fn parse_mpop(args: &Args<'_>, numkeys: usize) -> Result<(End, u64), Error> {
    let at_least_one = |at: usize, text: &'static str| {
        let number = args.int(at).ok().and_then(|number| u64::try_from(number).ok());
        number.filter(|number| *number > 0).ok_or(Error::text(text))
    };
    let keys = at_least_one(numkeys, "ERR numkeys should be greater than 0")?;
    let end_at =
        usize::try_from(keys).ok().and_then(|keys| keys.checked_add(numkeys + 1)).ok_or(Error::Syntax)?;
    let end = match args.word(end_at).as_bytes() {
        b"MIN" => End::Min,
        b"MAX" => End::Max,
        _ => return Err(Error::Syntax),
    };
    let (mut count, mut at) = (None, end_at + 1);
    while at < args.len() {
        if count.is_some() || !args.is(at, "COUNT") || at + 1 == args.len() {
            return Err(Error::Syntax);
        }
        count = Some(at_least_one(at + 1, "ERR count should be greater than 0")?);
        at += 2;
    }
    Ok((end, count.unwrap_or(1)))
}

/// BZPOPMIN key [key ...] timeout
pub(super) fn bzpopmin(call: &mut Call<'_, '_>) -> Done {
    let timeout = call.timeout_s(call.args.len() - 1)?;
    pop_or_wait(call, timeout, End::Min, 1, Shape::KeyAndOne)
}

/// BZPOPMAX key [key ...] timeout
pub(super) fn bzpopmax(call: &mut Call<'_, '_>) -> Done {
    let timeout = call.timeout_s(call.args.len() - 1)?;
    pop_or_wait(call, timeout, End::Max, 1, Shape::KeyAndOne)
}

/// BZMPOP timeout numkeys key [key ...] <MIN | MAX> [COUNT count]
pub(super) fn bzmpop(call: &mut Call<'_, '_>) -> Done {
    let (end, count) = parse_mpop(&call.args, 2)?;
    let timeout = call.timeout_s(1)?;
    pop_or_wait(call, timeout, end, count, Shape::KeyAndPairs)
}

fn pop_or_wait(call: &mut Call<'_, '_>, timeout: Timeout, end: End, count: u64, shape: Shape) -> Done {
    let keys = 0..call.keys.len();
    for key in call.tries(keys.clone()) {
        if let Some(popped) = pop(call, key, end, count, shape)? {
            log_pop(call, key, end, popped);
            return Ok(Flow::Replied);
        }
    }
    call.block(Wait::on(keys, Kind::ZSet, timeout))
}
