//! Lists: pops from the first non-empty list, moves between lists, and the blocking forms.

use evenkeel_resp::number::parse_i64;
use evenkeel_store::Edit;
use evenkeel_store::Kind;
use evenkeel_store::collection::List;

use super::form::{self, Limits};
use super::{Side, long_pop, pop_many, take};
use crate::class::LIST;
use crate::error::Error;
use crate::flow::Wait;
use crate::flow::{Done, Flow};
use crate::reply::Reply;
use crate::{Call, Keys};

/// LMPOP's keys.
pub(super) const COUNTED: Keys = Keys::Counted { at: 1, step: 1 };

/// BLMPOP's keys.
pub(super) const COUNTED_SECOND: Keys = Keys::Counted { at: 2, step: 1 };

/// BLPOP's keys: all but the timeout.
pub(super) const ALL_BUT_LAST: Keys = Keys::Range { first: 1, last: -2, step: 1 };

/// LMOVE source destination <LEFT | RIGHT> <LEFT | RIGHT>
pub(super) fn lmove(call: &mut Call<'_, '_>) -> Done {
    let (from, to) = (Side::parse(call, 3)?, Side::parse(call, 4)?);
    move_or_null(call, from, to)
}

/// RPOPLPUSH source destination
pub(super) fn rpoplpush(call: &mut Call<'_, '_>) -> Done {
    move_or_null(call, Side::Right, Side::Left)
}

fn move_or_null(call: &mut Call<'_, '_>, from: Side, to: Side) -> Done {
    if !try_move(call, from, to)? {
        call.reply.null();
    }
    Ok(Flow::Replied)
}

/// BLMOVE source destination <LEFT | RIGHT> <LEFT | RIGHT> timeout
pub(super) fn blmove(call: &mut Call<'_, '_>) -> Done {
    let (from, to) = (Side::parse(call, 3)?, Side::parse(call, 4)?);
    let flow = move_or_block(call, from, to, 5)?;
    if matches!(flow, Flow::Replied) {
        let (source, destination) = (call.keys[0].bytes, call.keys[1].bytes);
        call.log(&[b"LMOVE", source, destination, from.word(), to.word()]);
    }
    Ok(flow)
}

/// BRPOPLPUSH source destination timeout
pub(super) fn brpoplpush(call: &mut Call<'_, '_>) -> Done {
    let flow = move_or_block(call, Side::Right, Side::Left, 3)?;
    if matches!(flow, Flow::Replied) {
        // Known to servers that do not know LMOVE.
        let (source, destination) = (call.keys[0].bytes, call.keys[1].bytes);
        call.log(&[b"RPOPLPUSH", source, destination]);
    }
    Ok(flow)
}

/// Returns [`Flow::Replied`] if an element was moved; the handler then has to log a command that does not
/// block.
fn move_or_block(call: &mut Call<'_, '_>, from: Side, to: Side, timeout_at: usize) -> Done {
    let timeout = call.timeout_s(timeout_at)?;
    if try_move(call, from, to)? {
        return Ok(Flow::Replied);
    }
    call.block(Wait::on(0..1, Kind::List, timeout).with(1..2).null_in_multi())
}

/// Moves an element from an end of the first key's list to an end of the second key's, and replies with it.
/// Returns false, without any change, if there is none.
fn try_move(call: &mut Call<'_, '_>, from: Side, to: Side) -> Result<bool, Error> {
    let (source, destination, limits) = (&call.keys[0], &call.keys[1], Limits::of(call.settings));
    let Some(list) = call.guard.peek_collection::<List>(source)? else { return Ok(false) };
    let at = from.range(1, list.len()).start;
    let element = list.get(at).expect("a list that is there is not empty").to_vec();
    if source.bytes == destination.bytes {
        call.guard.edit(source, |list: &mut Edit<'_, List>| {
            limits.grow(list, [&element[..]].into_iter());
            to.push(list, &element);
            let at = if to == Side::Left { at + 1 } else { at };
            super::remove(list, limits, at..at + 1);
        })?;
        call.say(source, LIST, to.push_event());
        call.say(source, LIST, from.pop_event());
    } else {
        // First, since a destination of another type is refused before anything has changed. Both count as a
        // single change.
        call.guard.edit(destination, |list: &mut Edit<'_, List>| {
            limits.grow(list, [&element[..]].into_iter());
            to.push(list, &element);
        })?;
        call.guard.announce(destination, 0);
        call.say(destination, LIST, to.push_event());
        call.guard.edit(source, |list: &mut Edit<'_, List>| super::remove(list, limits, at..at + 1))?;
        call.say_taken(source, LIST, from.pop_event());
    }
    call.reply.bulk_of(element);
    Ok(true)
}

/// LMPOP numkeys key [key ...] <LEFT | RIGHT> [COUNT count]
pub(super) fn lmpop(call: &mut Call<'_, '_>) -> Done {
    let (side, count) = parse_mpop(call, 1)?;
    if let Some(key) = call.first_of_much(count)
        && let Some(list) = long_pop(call, key, count)?
    {
        return offload_mpop(call, key, list, side, count);
    }
    if !try_mpop(call, side, count)? {
        call.reply.null_array();
    }
    Ok(Flow::Replied)
}

/// BLMPOP timeout numkeys key [key ...] <LEFT | RIGHT> [COUNT count]
pub(super) fn blmpop(call: &mut Call<'_, '_>) -> Done {
    let (side, count) = parse_mpop(call, 2)?;
    let timeout = call.timeout_s(1)?;
    if try_mpop(call, side, count)? {
        return Ok(Flow::Replied);
    }
    call.block(Wait::on(0..call.keys.len(), Kind::List, timeout))
}

/// BLPOP key [key ...] timeout
pub(super) fn blpop(call: &mut Call<'_, '_>) -> Done {
    pop_or_block(call, Side::Left)
}

/// BRPOP key [key ...] timeout
pub(super) fn brpop(call: &mut Call<'_, '_>) -> Done {
    pop_or_block(call, Side::Right)
}

fn pop_or_block(call: &mut Call<'_, '_>, side: Side) -> Done {
    let (timeout, all) = (call.timeout_s(call.args.len() - 1)?, 0..call.keys.len());
    let limits = Limits::of(call.settings);
    for key in &call.keys[call.tries(all.clone())] {
        let popped = call.guard.edit_if_there(key, |list| {
            call.reply.array(2);
            call.reply.bulk(key.bytes);
            take(list, limits, 1, side, call.reply);
        })?;
        if popped.is_some() {
            call.log(&[side.pop_command(), key.bytes]);
            return Ok(Flow::Replied);
        }
    }
    call.block(Wait::on(all, Kind::List, timeout))
}

/// Parses the side and the count of an LMPOP whose number of keys is argument `index`.
fn parse_mpop(call: &Call<'_, '_>, index: usize) -> Result<(Side, u64), Error> {
    let positive = |index, text| {
        let value = parse_i64(call.args.at(index)).filter(|value| *value > 0);
        value.map(|value| value as u64).ok_or(Error::text(text))
    };
    let keys = positive(index, "ERR numkeys should be greater than 0")?;
    let keys = usize::try_from(keys).ok().filter(|keys| *keys < call.args.len()).ok_or(Error::Syntax)?;
    let at = index + 1 + keys;
    let side = Side::parse(call, at)?;
    match call.args.len() - at - 1 {
        0 => Ok((side, 1)),
        2.. if call.args.is(at + 1, "COUNT") => {
            let count = positive(at + 2, "ERR count should be greater than 0")?;
            if call.args.len() == at + 3 { Ok((side, count)) } else { Err(Error::Syntax) }
        }
        _ => Err(Error::Syntax),
    }
}

/// Pops elements from the first list that exists, and replies with its key and the elements; false if no list
/// exists.
fn try_mpop(call: &mut Call<'_, '_>, side: Side, count: u64) -> Result<bool, Error> {
    let limits = Limits::of(call.settings);
    for key in call.tries(0..call.keys.len()) {
        let name = &call.keys[key];
        let popped = call.guard.edit_if_there(name, |list: &mut Edit<'_, List>| {
            let count = count.min(list.len());
            call.reply.array(2);
            call.reply.bulk(name.bytes);
            call.reply.array(count as usize);
            take(list, limits, count, side, call.reply);
            count
        })?;
        if let Some(popped) = popped {
            log_mpop(call, key, side, popped);
            return Ok(true);
        }
    }
    Ok(false)
}

/// Offloads the pop from the list at the call's key of this index, the first that exists.
fn offload_mpop(call: &mut Call<'_, '_>, key: usize, list: List, side: Side, count: u64) -> Done {
    let name = call.keys[key].bytes.to_vec();
    let take = move |list: &mut List, reply: &mut Reply| {
        reply.array(2);
        reply.bulk(&name);
        pop_many(list, count, side, reply)
    };
    call.offload_change_and_log(key, list, take, move |call, before| {
        form::settle(call, key);
        log_mpop(call, key, side, count.min(before.len()));
    })
}

/// Logs that so many elements were popped from the list at the call's key of this index.
fn log_mpop(call: &mut Call<'_, '_>, key: usize, side: Side, count: u64) {
    call.log(&[side.pop_command(), call.keys[key].bytes, count.to_string().as_bytes()]);
}
