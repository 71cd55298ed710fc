//! Lists: operations at the ends and by position. [`search`] has operations that look at elements, [`moving`]
//! has moves between lists and blocking pops, [`moving_many`] has moves of several elements.
//!
//! A list is a tree of pages with counts: every position is found in O(log n), and a range is cut off in
//! O(log n), too. A large range that was cut off is freed by another thread.

pub(crate) mod form;
mod moving;
mod moving_many;
mod search;

use std::ops::Range;

use evenkeel_resp::number::parse_i64;
use evenkeel_store::collection::{ELEMENT_MAX, List};
use evenkeel_store::{Edit, WrongType};

use crate::class;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::offloading::is_much;
use crate::reply::Reply;
use crate::{Call, Command, DataHandler, Group, Keys, at_least, exactly, read, write};
use form::Limits;

const GROUP: Group = Group::List;

#[rustfmt::skip]
pub const COMMANDS: &[Command<DataHandler>] = &[
    write("LPUSH",      at_least(3), Keys::FIRST,            GROUP, lpush             ).grows().fast(),
    write("RPUSH",      at_least(3), Keys::FIRST,            GROUP, rpush             ).grows().fast(),
    write("LPUSHX",     at_least(3), Keys::FIRST,            GROUP, lpushx            ).grows().fast(),
    write("RPUSHX",     at_least(3), Keys::FIRST,            GROUP, rpushx            ).grows().fast(),
    write("LPOP",       at_least(2), Keys::FIRST,            GROUP, lpop              ).fast(),
    write("RPOP",       at_least(2), Keys::FIRST,            GROUP, rpop              ).fast(),
    read ("LLEN",       exactly(2),  Keys::FIRST,            GROUP, llen              ).fast(),
    read ("LINDEX",     exactly(3),  Keys::FIRST,            GROUP, lindex            ),
    write("LSET",       exactly(4),  Keys::FIRST,            GROUP, lset              ).grows(),
    read ("LRANGE",     exactly(4),  Keys::FIRST,            GROUP, lrange            ),
    write("LTRIM",      exactly(4),  Keys::FIRST,            GROUP, ltrim             ),
    write("LINSERT",    exactly(5),  Keys::FIRST,            GROUP, search::linsert   ).grows(),
    write("LREM",       exactly(4),  Keys::FIRST,            GROUP, search::lrem      ),
    read ("LPOS",       at_least(3), Keys::FIRST,            GROUP, search::lpos      ),
    write("LMOVE",      exactly(5),  Keys::FIRST_TWO,        GROUP, moving::lmove     ).grows(),
    write("RPOPLPUSH",  exactly(3),  Keys::FIRST_TWO,        GROUP, moving::rpoplpush ).grows(),
    write("LMOVEM",     at_least(5), Keys::FIRST_TWO,        GROUP, moving_many::lmovem).grows(),
    write("LMPOP",      at_least(4), moving::COUNTED,        GROUP, moving::lmpop     ),
    write("BLPOP",      at_least(3), moving::ALL_BUT_LAST,   GROUP, moving::blpop     ).blocks(),
    write("BRPOP",      at_least(3), moving::ALL_BUT_LAST,   GROUP, moving::brpop     ).blocks(),
    write("BLMOVE",     exactly(6),  Keys::FIRST_TWO,        GROUP, moving::blmove    ).grows()
        .blocks(),
    write("BLMOVEM",    at_least(6), Keys::FIRST_TWO,        GROUP, moving_many::blmovem).grows()
        .blocks(),
    write("BRPOPLPUSH", exactly(4),  Keys::FIRST_TWO,        GROUP, moving::brpoplpush).grows()
        .blocks(),
    write("BLMPOP",     at_least(5), moving::COUNTED_SECOND, GROUP, moving::blmpop    ).blocks(),
];

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

impl Side {
    /// Parses the side in an argument.
    fn parse(call: &Call<'_, '_>, index: usize) -> Result<Side, Error> {
        match call.args.word(index).as_bytes() {
            b"LEFT" => Ok(Side::Left),
            b"RIGHT" => Ok(Side::Right),
            _ => Err(Error::Syntax),
        }
    }

    /// The event of a pop at this end.
    fn pop_event(self) -> &'static str {
        match self {
            Side::Left => "lpop",
            Side::Right => "rpop",
        }
    }

    fn push_event(self) -> &'static str {
        match self {
            Side::Left => "lpush",
            Side::Right => "rpush",
        }
    }

    fn pop_command(self) -> &'static [u8] {
        match self {
            Side::Left => b"LPOP",
            Side::Right => b"RPOP",
        }
    }

    /// The word for this end.
    fn word(self) -> &'static [u8] {
        match self {
            Side::Left => b"LEFT",
            Side::Right => b"RIGHT",
        }
    }

    fn push(self, list: &mut Edit<'_, List>, element: &[u8]) {
        match self {
            Side::Left => list.push_front(element),
            Side::Right => list.push_back(element),
        }
    }

    /// Returns the positions of the `count` elements at this end of a list of `len`, which has that many.
    fn range(self, count: u64, len: u64) -> Range<u64> {
        match self {
            Side::Left => 0..count,
            Side::Right => len - count..len,
        }
    }
}

/// Refuses an element that is too long.
pub(super) fn check_element(element: &[u8]) -> Result<(), Error> {
    if element.len() <= ELEMENT_MAX { Ok(()) } else { Err(Error::text("ERR Element too large")) }
}

/// LPUSH key element [element ...]
fn lpush(call: &mut Call<'_, '_>) -> Done {
    push(call, Side::Left)
}

/// RPUSH key element [element ...]
fn rpush(call: &mut Call<'_, '_>) -> Done {
    push(call, Side::Right)
}

fn push(call: &mut Call<'_, '_>, side: Side) -> Done {
    call.args.from(2).try_for_each(check_element)?;
    let limits = Limits::of(call.settings);
    let len = call.guard.edit(&call.keys[0], |list| push_all(list, limits, call.args.from(2), side))?;
    call.reply.int(len as i64);
    Ok(Flow::Replied)
}

/// LPUSHX key element [element ...]
fn lpushx(call: &mut Call<'_, '_>) -> Done {
    push_if_there(call, Side::Left)
}

/// RPUSHX key element [element ...]
fn rpushx(call: &mut Call<'_, '_>) -> Done {
    push_if_there(call, Side::Right)
}

fn push_if_there(call: &mut Call<'_, '_>, side: Side) -> Done {
    call.args.from(2).try_for_each(check_element)?;
    let limits = Limits::of(call.settings);
    let len =
        call.guard.edit_if_there(&call.keys[0], |list| push_all(list, limits, call.args.from(2), side))?;
    call.reply.int(len.unwrap_or(0) as i64);
    Ok(Flow::Replied)
}

/// Pushes elements in turn; returns the length afterwards.
fn push_all<'a>(
    list: &mut Edit<'_, List>,
    limits: Limits,
    elements: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
    side: Side,
) -> u64 {
    limits.grow(list, elements.clone());
    list.changes = elements.len() as u64;
    elements.for_each(|element| side.push(list, element));
    list.len()
}

/// LPOP key [count]
fn lpop(call: &mut Call<'_, '_>) -> Done {
    pop(call, Side::Left)
}

/// RPOP key [count]
fn rpop(call: &mut Call<'_, '_>) -> Done {
    pop(call, Side::Right)
}

fn pop(call: &mut Call<'_, '_>, side: Side) -> Done {
    let count = match call.args.len() {
        2 => None,
        3 => Some(count_at(call, 2)?),
        _ => return Err(Error::Arity(call.name())),
    };
    if let Some(count) = count
        && let Some(list) = long_pop(call, 0, count)?
    {
        let pop = move |list: &mut List, reply: &mut Reply| pop_many(list, count, side, reply);
        return call.offload_change_and_log(0, list, pop, |call, _| form::settle(call, 0));
    }
    let limits = Limits::of(call.settings);
    let popped = call.guard.edit_if_there(&call.keys[0], |list: &mut Edit<'_, List>| match count {
        None => {
            let range = side.range(1, list.len());
            let element = list.get(range.start).expect("what is there is not empty");
            call.reply.element(element, || list.share(range.start));
            remove(list, limits, range);
        }
        Some(count) => {
            let count = count.min(list.len());
            call.reply.array(count as usize);
            take(list, limits, count, side, call.reply);
        }
    })?;
    match (popped, count) {
        (Some(()), _) => {}
        (None, None) => call.reply.null(),
        (None, Some(_)) => call.reply.null_array(),
    }
    Ok(Flow::Replied)
}

/// Returns a clone of the list at the call's key of this index if a reply of so many elements takes long.
fn long_pop(call: &mut Call<'_, '_>, key: usize, count: u64) -> Result<Option<List>, WrongType> {
    if !is_much(count) {
        return Ok(None);
    }
    let list = call.guard.peek_collection::<List>(&call.keys[key])?.map(|list| List::clone(&list));
    Ok(list.filter(|list| call.is_worth_offloading(count.min(list.len()) as usize)))
}

/// Pops many elements of an unshared clone; returns how many.
fn pop_many(list: &mut List, count: u64, side: Side, reply: &mut Reply) -> u64 {
    let count = count.min(list.len());
    let range = side.range(count, list.len());
    reply.array(count as usize);
    reply_removed(list, range.clone(), side, reply);
    drop(list.remove(range));
    count
}

/// Parses an argument as a number of elements.
fn count_at(call: &Call<'_, '_>, index: usize) -> Result<u64, Error> {
    let count = parse_i64(call.args.at(index)).and_then(|count| u64::try_from(count).ok());
    count.ok_or(Error::text("ERR value is out of range, must be positive"))
}

/// Pops elements, of which there are enough, from an end and replies with each, the outermost first.
fn take(list: &mut Edit<'_, List>, limits: Limits, count: u64, side: Side, reply: &mut Reply) {
    let range = side.range(count, list.len());
    reply_removed(list, range.clone(), side, reply);
    remove(list, limits, range);
}

fn reply_removed(list: &List, range: Range<u64>, side: Side, reply: &mut Reply) {
    let elements = list.range(range.clone());
    let each = |(at, element)| reply.element(element, || list.share(at));
    match side {
        Side::Left => range.zip(elements).for_each(each),
        Side::Right => range.rev().zip(elements.rev()).for_each(each),
    }
}

fn remove(list: &mut Edit<'_, List>, limits: Limits, range: Range<u64>) {
    list.changes += range.end - range.start;
    let cut = list.remove(range);
    list.discard(cut);
    limits.shrink(list);
}

/// LLEN key
fn llen(call: &mut Call<'_, '_>) -> Done {
    let len = call.guard.collection::<List>(&call.keys[0])?.map_or(0, |list| list.len());
    call.reply.int(len as i64);
    Ok(Flow::Replied)
}

/// LINDEX key index
fn lindex(call: &mut Call<'_, '_>) -> Done {
    let list = call.guard.collection::<List>(&call.keys[0])?;
    let Some(list) = list else {
        call.reply.null();
        return Ok(Flow::Replied);
    };
    match position(call.args.int(2)?, list.len()).and_then(|at| Some((at, list.get(at)?))) {
        Some((at, element)) => call.reply.element(element, || list.share(at)),
        None => call.reply.null(),
    }
    Ok(Flow::Replied)
}

/// Returns the position of an index, which counts from the end if negative; `None` before the first position.
fn position(index: i64, len: u64) -> Option<u64> {
    if index < 0 { len.checked_sub(index.unsigned_abs()) } else { Some(index as u64) }
}

/// LSET key index element
fn lset(call: &mut Call<'_, '_>) -> Done {
    let element = call.args.at(3);
    check_element(element)?;
    let limits = Limits::of(call.settings);
    let set = call.guard.edit_if_there(&call.keys[0], |list: &mut Edit<'_, List>| {
        let at = position(call.args.int(2)?, list.len()).filter(|at| *at < list.len());
        let at = at.ok_or(Error::text("ERR index out of range"))?;
        limits.grow(list, [element].into_iter());
        list.set(at, element);
        list.changes = 1;
        limits.shrink(list);
        Ok(())
    })?;
    set.unwrap_or(Err(Error::NoSuchKey))?;
    call.reply.ok();
    Ok(Flow::Replied)
}

/// LRANGE key start stop
fn lrange(call: &mut Call<'_, '_>) -> Done {
    let (start, stop) = (call.args.int(2)?, call.args.int(3)?);
    let list = call.guard.collection::<List>(&call.keys[0])?;
    let found = list.as_ref().and_then(|list| Some((list, range(start, stop, list.len())?)));
    let Some((list, range)) = found else {
        call.reply.array(0);
        return Ok(Flow::Replied);
    };
    if is_much(range.end - range.start) {
        let list = List::clone(list);
        return call.offload_reply(move |reply| reply_range(reply, &list, range));
    }
    reply_range(call.reply, list, range);
    Ok(Flow::Replied)
}

fn reply_range(reply: &mut Reply, list: &List, range: Range<u64>) {
    let elements = list.range(range.clone());
    reply.array(elements.len());
    range.zip(elements).for_each(|(at, element)| reply.element(element, || list.share(at)));
}

/// Returns the positions from `start` to `stop`, which count from the end if negative; `None` when there are
/// none.
fn range(start: i64, stop: i64, len: u64) -> Option<Range<u64>> {
    let first = position(start, len).unwrap_or(0);
    let end = position(stop, len)?.saturating_add(1).min(len);
    (first < end).then_some(first..end)
}

/// LTRIM key start stop
fn ltrim(call: &mut Call<'_, '_>) -> Done {
    let (start, stop) = (call.args.int(2)?, call.args.int(3)?);
    let (key, limits) = (&call.keys[0], Limits::of(call.settings));
    let trimmed = call.guard.edit_if_there(key, |list: &mut Edit<'_, List>| {
        let stays = range(start, stop, list.len()).unwrap_or(0..0);
        let behind = stays.end..list.len();
        remove(list, limits, behind);
        remove(list, limits, 0..stays.start);
        list.changes
    })?;
    if trimmed == Some(0) {
        call.say(key, class::LIST, "ltrim"); // although nothing has changed
    }
    call.reply.ok();
    Ok(Flow::Replied)
}
