//! Lists: moves of several elements, as in Redis 8.10.
//!
//! The elements move as a block, also within a list. Bulk moves keep the order that they have in the source.
//! Moved one by one from an end to the same end, they come in the opposite order.

use evenkeel_resp::number::parse_i64;
use evenkeel_store::Edit;
use evenkeel_store::Kind;
use evenkeel_store::collection::{Collection, List};

use super::form::{self, Limits};
use super::{Side, reply_removed};
use crate::Call;
use crate::class::LIST;
use crate::error::Error;
use crate::flow::{Done, Flow, Wait, Work};
use crate::offloading::is_much;
use crate::reply::Reply;

/// Which elements to move, and in which order.
#[derive(Clone, Copy)]
struct Move {
    from: Side,
    to: Side,
    count: u64,
    /// Moves nothing if there are fewer elements.
    exactly: bool,
    /// Turns the order of the elements round.
    reverses: bool,
}

impl Move {
    /// Parses the ends from argument 3 on, and the number and the order of the elements from argument `first`
    /// on, if that exists. By default a single element is moved.
    fn parse(call: &Call<'_, '_>, first: usize) -> Result<Move, Error> {
        let args = call.args;
        let (from, to) = (Side::parse(call, 3)?, Side::parse(call, 4)?);
        let mut plan = Move { from, to, count: 1, exactly: false, reverses: false };
        match args.len() - first {
            0 => return Ok(plan),
            3 => {}
            _ => return Err(Error::Syntax),
        }
        plan.exactly = match args.word(first).as_bytes() {
            b"COUNT" => false,
            b"EXACTLY" => true,
            _ => return Err(Error::Syntax),
        };
        plan.reverses = match args.word(first + 2).as_bytes() {
            b"OBO" => from == to,
            b"BULK" => false,
            _ => return Err(Error::Syntax),
        };
        let count = parse_i64(args.at(first + 1)).and_then(|count| u64::try_from(count).ok());
        let count = count.filter(|count| *count > 0);
        plan.count = count.ok_or(Error::text("ERR count should be greater than 0"))?;
        Ok(plan)
    }

    /// Returns how many elements of a list are moved; `None` if there are too few.
    fn count_of(&self, list: &List) -> Option<u64> {
        let count = self.count.min(list.len());
        (count > 0 && !(self.exactly && count < self.count)).then_some(count)
    }

    /// Returns so many elements of the source, in the order in which they stand in the destination.
    fn elements(&self, list: &List, count: u64) -> Vec<Vec<u8>> {
        let mut elements: Vec<_> =
            list.range(self.from.range(count, list.len())).map(<[u8]>::to_vec).collect();
        if self.reverses {
            elements.reverse();
        }
        elements
    }

    /// Inserts the elements at an end of the destination, and replies with them.
    fn insert(&self, list: &mut List, elements: &[Vec<u8>], reply: &mut Reply) {
        match self.to {
            Side::Left => elements.iter().rev().for_each(|element| list.push_front(element)),
            Side::Right => elements.iter().for_each(|element| list.push_back(element)),
        }
        let moved = self.to.range(elements.len() as u64, list.len());
        reply.array(elements.len());
        reply_removed(list, moved, Side::Left, reply);
    }
}

/// LMOVEM source destination <LEFT | RIGHT> <LEFT | RIGHT> [<COUNT count | EXACTLY count> <OBO | BULK>]
pub(super) fn lmovem(call: &mut Call<'_, '_>) -> Done {
    let plan = Move::parse(call, 5)?;
    if is_much(plan.count)
        && call.keys[0].bytes != call.keys[1].bytes
        && let Some((list, count)) = source(call, plan)?
        && call.is_worth_offloading(count as usize)
    {
        return offload_move(call, plan, list, count);
    }
    if !try_move(call, plan)? {
        call.reply.null_array();
    }
    Ok(Flow::Replied)
}

/// BLMOVEM source destination <LEFT | RIGHT> <LEFT | RIGHT> timeout
/// [<COUNT count | EXACTLY count> <OBO | BULK>]
pub(super) fn blmovem(call: &mut Call<'_, '_>) -> Done {
    let plan = Move::parse(call, 6)?;
    let timeout = call.timeout_s(5)?;
    if try_move(call, plan)? {
        return Ok(Flow::Replied);
    }
    call.block(Wait::on(0..1, Kind::List, timeout).with(1..2))
}

/// Returns a clone of the source, and how many elements to move; `None` if there are too few.
fn source(call: &mut Call<'_, '_>, plan: Move) -> Result<Option<(List, u64)>, Error> {
    let list = call.guard.peek_collection::<List>(&call.keys[0])?.map(|list| List::clone(&list));
    Ok(list.and_then(|list| plan.count_of(&list).map(|count| (list, count))))
}

/// Moves elements, replies with them, and logs that. Returns false, without any change, if there are too few.
fn try_move(call: &mut Call<'_, '_>, plan: Move) -> Result<bool, Error> {
    let Some(list) = call.guard.peek_collection::<List>(&call.keys[0])? else { return Ok(false) };
    let Some(count) = plan.count_of(&list) else { return Ok(false) };
    let (len, elements) = (list.len(), plan.elements(&list, count));
    let (source, destination, limits) = (&call.keys[0], &call.keys[1], Limits::of(call.settings));
    let insert = |list: &mut Edit<'_, List>, reply: &mut Reply| {
        limits.grow(list, elements.iter().map(Vec::as_slice));
        plan.insert(list, &elements, reply);
    };
    let taken = plan.from.range(count, len);
    if source.bytes == destination.bytes {
        call.guard.edit(source, |list: &mut Edit<'_, List>| {
            insert(list, call.reply);
            let shift = if plan.to == Side::Left { count } else { 0 };
            super::remove(list, limits, taken.start + shift..taken.end + shift);
        })?;
        call.say(source, LIST, plan.to.push_event());
        call.say(source, LIST, plan.from.pop_event());
        log_rotation(call, plan, &elements);
    } else {
        // First, since a destination of another type is refused before anything has changed.
        call.guard.edit(destination, |list: &mut Edit<'_, List>| insert(list, call.reply))?;
        call.guard.announce(destination, 0);
        call.say(destination, LIST, plan.to.push_event());
        call.guard.edit(source, |list: &mut Edit<'_, List>| super::remove(list, limits, taken))?;
        call.say_taken(source, LIST, plan.from.pop_event());
        log_move(call, plan, &elements);
    }
    Ok(true)
}

/// Logs a move between two lists, in commands that all servers know.
fn log_move(call: &mut Call<'_, '_>, plan: Move, elements: &[Vec<u8>]) {
    let (source, destination) = (call.keys[0].bytes, call.keys[1].bytes);
    log_push(call, plan.to, destination, elements);
    log_pop(call, plan.from, source, elements.len());
}

/// Logs a move within a list, which does not go meanwhile: it may have a deadline.
fn log_rotation(call: &mut Call<'_, '_>, plan: Move, elements: &[Vec<u8>]) {
    let key = call.keys[0].bytes;
    if plan.from != plan.to {
        log_push(call, plan.to, key, elements);
        log_pop(call, plan.from, key, elements.len());
    } else if plan.reverses && elements.len() > 1 && call.is_logged() {
        for (at, element) in elements.iter().enumerate() {
            let index = match plan.to {
                Side::Left => at as i64,
                Side::Right => at as i64 - elements.len() as i64,
            };
            call.log(&[b"LSET", key, index.to_string().as_bytes(), element]);
        }
    } else {
        call.log(&[b"LMOVE", key, key, plan.from.word(), plan.to.word()]);
    }
}

fn log_push(call: &mut Call<'_, '_>, to: Side, key: &[u8], elements: &[Vec<u8>]) {
    match to {
        Side::Left => call.log_each(&[b"LPUSH", key], 1, elements.iter().rev()),
        Side::Right => call.log_each(&[b"RPUSH", key], 1, elements),
    }
}

fn log_pop(call: &mut Call<'_, '_>, from: Side, key: &[u8], count: usize) {
    call.log(&[from.pop_command(), key, count.to_string().as_bytes()]);
}

/// Offloads a move between two lists: both are changed as clones, which then replace them.
fn offload_move(call: &mut Call<'_, '_>, plan: Move, source: List, count: u64) -> Done {
    let destination = call.guard.peek_collection::<List>(&call.keys[1])?.map(|list| List::clone(&list));
    let known = (source.clone(), destination.clone());
    let mut reply = Reply::default();
    reply.resp3 = call.reply.resp3;
    let compute = move || {
        let (mut source, mut destination) = (source, destination.unwrap_or_else(List::new));
        let elements = plan.elements(&source, count);
        plan.insert(&mut destination, &elements, &mut reply);
        let cut = source.remove(plan.from.range(count, source.len()));
        drop(cut);
        Ok((source, destination, elements, reply))
    };
    let is_current = move |call: &mut Call<'_, '_>| {
        let mut is_same = |key: usize, known: Option<&List>| {
            let now = call.guard.peek_collection::<List>(&call.keys[key]);
            now.is_ok_and(|now| match (now, known) {
                (Some(now), Some(known)) => now.is_same(known),
                (now, known) => now.is_none() && known.is_none(),
            })
        };
        is_same(0, Some(&known.0)) && is_same(1, known.1.as_ref())
    };
    call.offload(Work::writes(compute, is_current, move |call, (source, destination, elements, reply)| {
        let limits = Limits::of(call.settings);
        replace(call, 1, destination, |list| limits.grow(list, elements.iter().map(Vec::as_slice)))?;
        call.guard.announce(&call.keys[1], 0);
        call.say(&call.keys[1], LIST, plan.to.push_event());
        replace(call, 0, source, |list| list.changes = elements.len() as u64)?;
        form::settle(call, 0);
        call.say_taken(&call.keys[0], LIST, plan.from.pop_event());
        log_move(call, plan, &elements);
        call.reply.append(reply);
        Ok(Flow::Replied)
    }))
}

/// Replaces the list at the call's key of this index, after `prepare` has seen it.
fn replace(
    call: &mut Call<'_, '_>,
    key: usize,
    list: List,
    prepare: impl FnOnce(&mut Edit<'_, List>),
) -> Result<(), Error> {
    let old = call.guard.edit(&call.keys[key], |edit: &mut Edit<'_, List>| {
        prepare(edit);
        std::mem::replace(&mut **edit, list)
    })?;
    call.guard.discard(old);
    Ok(())
}
