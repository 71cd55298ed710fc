//! Arrays: values at indices of 64 bits, with holes; the newest type of Redis (8.8).
//!
//! Every index is a number from zero to 2^64 - 2 that neither moves nor counts from the end. [`range`] has
//! the commands on ranges, [`insert`] those on the cursor, at which a log or a ring of values goes on.

mod aggregate;
mod grep;
mod info;
mod insert;
mod range;
mod regex;

use evenkeel_resp::number::parse_u64;
use evenkeel_store::Edit;
use evenkeel_store::collection::Array;
use evenkeel_store::collection::array::INDEX_MAX;

use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::list::check_element;
use crate::offloading::is_much;
use crate::reply::Reply;
use crate::{Args, Call, Command, DataHandler, Group, Keys, at_least, exactly, read, write};

const GROUP: Group = Group::Array;

#[rustfmt::skip]
pub const COMMANDS: &[Command<DataHandler>] = &[
    read ("ARCOUNT",     exactly(2),  Keys::FIRST, GROUP, arcount            ).fast(),
    write("ARDEL",       at_least(3), Keys::FIRST, GROUP, ardel              ).fast(),
    write("ARDELRANGE",  at_least(4), Keys::FIRST, GROUP, range::ardelrange  ),
    read ("ARGET",       exactly(3),  Keys::FIRST, GROUP, arget              ).fast(),
    read ("ARGETRANGE",  exactly(4),  Keys::FIRST, GROUP, range::argetrange  ),
    read ("ARGREP",      at_least(6), Keys::FIRST, GROUP, grep::argrep       ),
    read ("ARINFO",      at_least(2), Keys::FIRST, GROUP, info::arinfo       ),
    write("ARINSERT",    at_least(3), Keys::FIRST, GROUP, insert::arinsert   ).grows().fast(),
    read ("ARLASTITEMS", at_least(3), Keys::FIRST, GROUP, range::arlastitems ),
    read ("ARLEN",       exactly(2),  Keys::FIRST, GROUP, arlen              ).fast(),
    read ("ARMGET",      at_least(3), Keys::FIRST, GROUP, armget             ).fast(),
    write("ARMSET",      at_least(4), Keys::FIRST, GROUP, armset             ).grows().fast(),
    read ("ARNEXT",      exactly(2),  Keys::FIRST, GROUP, insert::arnext     ).fast(),
    read ("AROP",        at_least(5), Keys::FIRST, GROUP, aggregate::arop    ),
    write("ARRING",      at_least(4), Keys::FIRST, GROUP, insert::arring     ).grows(),
    read ("ARSCAN",      at_least(4), Keys::FIRST, GROUP, range::arscan      ),
    write("ARSEEK",      exactly(3),  Keys::FIRST, GROUP, insert::arseek     ).fast(),
    write("ARSET",       at_least(4), Keys::FIRST, GROUP, arset              ).grows().fast(),
];

/// The most positions that a command replies with, where most of them may be empty. It is part of the
/// commands' meaning, and no setting.
const POSITIONS_MAX: u64 = 1_000_000;

fn invalid_index() -> Error {
    Error::text("ERR invalid array index")
}

/// Parses an index.
fn index(args: &Args<'_>, at: usize) -> Result<u64, Error> {
    index_of(args.at(at))
}

fn index_of(text: &[u8]) -> Result<u64, Error> {
    parse_u64(text).filter(|index| *index <= INDEX_MAX).ok_or_else(invalid_index)
}

/// The commands with pairs of arguments behind the key.
fn check_pairs(call: &Call<'_, '_>) -> Result<(), Error> {
    if call.args.len().is_multiple_of(2) { Ok(()) } else { Err(Error::Arity(call.name())) }
}

/// Replies with the value at an index, or with a null.
fn reply_value(reply: &mut Reply, array: Option<&Array>, index: u64) {
    match array.and_then(|array| Some((array, array.get(index)?))) {
        Some((array, value)) => reply.element(value, || array.share(array.rank(index).0)),
        None => reply.null(),
    }
}

/// ARGET key index
fn arget(call: &mut Call<'_, '_>) -> Done {
    let index = index(&call.args, 2)?;
    let array = call.guard.collection::<Array>(&call.keys[0])?;
    reply_value(call.reply, array.as_deref(), index);
    Ok(Flow::Replied)
}

/// ARMGET key index [index ...]
fn armget(call: &mut Call<'_, '_>) -> Done {
    let indices = call.args.from(2).map(index_of).collect::<Result<Vec<u64>, Error>>()?;
    let array = call.guard.collection::<Array>(&call.keys[0])?;
    if is_much(indices.len() as u64)
        && let Some(array) = &array
    {
        let array = Array::clone(array);
        return call.offload_reply(move |reply| reply_values(reply, Some(&array), &indices));
    }
    reply_values(call.reply, array.as_deref(), &indices);
    Ok(Flow::Replied)
}

fn reply_values(reply: &mut Reply, array: Option<&Array>, indices: &[u64]) {
    reply.array(indices.len());
    indices.iter().for_each(|index| reply_value(reply, array, *index));
}

/// ARSET key index value [value ...]
fn arset(call: &mut Call<'_, '_>) -> Done {
    let (start, values) = (index(&call.args, 2)?, call.args.from(3));
    last_index(start, values.len()).ok_or(Error::text("ERR array index overflow"))?;
    values.clone().try_for_each(check_element)?;
    let added = call.guard.edit(&call.keys[0], |array: &mut Edit<'_, Array>| {
        array.changes = values.len() as u64;
        (start..).zip(values).filter(|(index, value)| array.set(*index, value)).count()
    })?;
    call.reply.int(added as i64);
    Ok(Flow::Replied)
}

/// Returns the index of the last of `count` values, one at least, from `start` on; `None` beyond all indices.
fn last_index(start: u64, count: usize) -> Option<u64> {
    start.checked_add(count as u64 - 1).filter(|last| *last <= INDEX_MAX)
}

/// ARMSET key index value [index value ...]
fn armset(call: &mut Call<'_, '_>) -> Done {
    check_pairs(call)?;
    let args = call.args;
    let at = (2..args.len()).step_by(2);
    let indices = at.clone().map(|at| index(&args, at)).collect::<Result<Vec<u64>, Error>>()?;
    at.clone().try_for_each(|at| check_element(args.at(at + 1)))?;
    let added = call.guard.edit(&call.keys[0], |array: &mut Edit<'_, Array>| {
        array.changes = indices.len() as u64;
        indices.iter().zip(at).filter(|(index, at)| array.set(**index, args.at(at + 1))).count()
    })?;
    call.reply.int(added as i64);
    Ok(Flow::Replied)
}

/// ARDEL key index [index ...]
fn ardel(call: &mut Call<'_, '_>) -> Done {
    let indices = call.args.from(2).map(index_of).collect::<Result<Vec<u64>, Error>>()?;
    let removed = call.guard.edit_if_there(&call.keys[0], |array: &mut Edit<'_, Array>| {
        array.changes = indices.iter().filter(|index| array.remove(**index)).count() as u64;
        array.changes
    })?;
    call.reply.int(removed.unwrap_or(0) as i64);
    Ok(Flow::Replied)
}

/// ARLEN key
fn arlen(call: &mut Call<'_, '_>) -> Done {
    let len = call.guard.collection::<Array>(&call.keys[0])?.map_or(0, |array| array.len());
    call.reply.uint(len);
    Ok(Flow::Replied)
}

/// ARCOUNT key
fn arcount(call: &mut Call<'_, '_>) -> Done {
    let count = call.guard.collection::<Array>(&call.keys[0])?.map_or(0, |array| array.count());
    call.reply.uint(count);
    Ok(Flow::Replied)
}
