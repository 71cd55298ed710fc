//! Lists: operations that look at each element in turn.

use evenkeel_store::Edit;
use evenkeel_store::collection::List;

use super::form::{self, Limits};
use super::{Side, check_element};
use crate::Call;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::offloading::is_much;
use crate::reply::Reply;

/// LINSERT key <BEFORE | AFTER> pivot element
pub(super) fn linsert(call: &mut Call<'_, '_>) -> Done {
    let behind = match call.args.word(2).as_bytes() {
        b"BEFORE" => 0,
        b"AFTER" => 1,
        _ => return Err(Error::Syntax),
    };
    let (pivot, element) = (call.args.at(3), call.args.at(4));
    check_element(element)?;
    if let Some(list) = much_of(call)? {
        let (pivot, element) = (pivot.to_vec(), element.to_vec());
        return call.offload_change(list, move |list, reply| {
            let at = list.positions(&pivot, 0..list.len(), false).next();
            if let Some(at) = at {
                list.insert(at + behind, &element);
            }
            reply.int(at.map_or(-1, |_| list.len() as i64));
            u64::from(at.is_some())
        });
    }
    let limits = Limits::of(call.settings);
    let len = call.guard.edit_if_there(&call.keys[0], |list: &mut Edit<'_, List>| {
        let at = list.positions(pivot, 0..list.len(), false).next()?;
        limits.grow(list, [element].into_iter());
        list.insert(at + behind, element);
        list.changes = 1;
        Some(list.len())
    })?;
    call.reply.int(match len {
        None => 0,
        Some(None) => -1,
        Some(Some(len)) => len as i64,
    });
    Ok(Flow::Replied)
}

/// LREM key count element
pub(super) fn lrem(call: &mut Call<'_, '_>) -> Done {
    let (count, element) = (any_but_least(call, 2)?, call.args.at(3));
    let limit = if count == 0 { u64::MAX } else { count.unsigned_abs() };
    if let Some(list) = much_of(call)? {
        let element = element.to_vec();
        let remove = move |list: &mut List, reply: &mut Reply| {
            let removed = list.remove_equal(&element, limit, count < 0);
            reply.int(removed as i64);
            removed
        };
        return call.offload_change_and_log(0, list, remove, |call, _| form::settle(call, 0));
    }
    let limits = Limits::of(call.settings);
    let removed = call.guard.edit_if_there(&call.keys[0], |list: &mut Edit<'_, List>| {
        list.changes = list.remove_equal(element, limit, count < 0);
        limits.shrink(list);
        list.changes
    })?;
    call.reply.int(removed.unwrap_or(0) as i64);
    Ok(Flow::Replied)
}

/// Returns a clone of the call's list if it is so long that a search through it is offloaded.
fn much_of(call: &mut Call<'_, '_>) -> Result<Option<List>, Error> {
    let list = call.guard.peek_collection::<List>(&call.keys[0])?;
    let Some(list) = list.filter(|list| is_much(list.len())).map(|list| List::clone(&list)) else {
        return Ok(None);
    };
    Ok(Some(list).filter(|list| call.is_worth_offloading(list.len() as usize)))
}

/// An integer that can be negated.
fn any_but_least(call: &Call<'_, '_>, index: usize) -> Result<i64, Error> {
    const TEXT: &str =
        "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807";
    let value = call.args.int(index)?;
    if value == i64::MIN { Err(Error::text(TEXT)) } else { Ok(value) }
}

/// The query of LPOS.
struct Search {
    /// Matches to pass over.
    skip: u64,
    backward: bool,
    /// Zero: all matches. `None`: only the first match, and the reply is not an array.
    count: Option<u64>,
    /// Elements to look at; zero: all.
    depth: u64,
}

impl Search {
    fn parse(call: &Call<'_, '_>) -> Result<Search, Error> {
        let mut search = Search { skip: 0, backward: false, count: None, depth: 0 };
        let mut index = 3;
        while index < call.args.len() {
            let has_value = index + 1 < call.args.len();
            match call.args.word(index).as_bytes() {
                b"RANK" if has_value => {
                    let rank = any_but_least(call, index + 1)?;
                    let skip = rank.unsigned_abs().checked_sub(1).ok_or(Error::text(RANK_ZERO))?;
                    (search.skip, search.backward) = (skip, rank < 0);
                }
                b"COUNT" if has_value => {
                    search.count = Some(not_negative(call, index + 1, "ERR COUNT can't be negative")?);
                }
                b"MAXLEN" if has_value => {
                    search.depth = not_negative(call, index + 1, "ERR MAXLEN can't be negative")?;
                }
                _ => return Err(Error::Syntax),
            }
            index += 2;
        }
        Ok(search)
    }

    /// Returns how many elements of a list are looked at, at most.
    fn depth(&self, list: &List) -> u64 {
        if self.depth == 0 { list.len() } else { self.depth.min(list.len()) }
    }

    fn reply(&self, list: Option<&List>, element: &[u8], reply: &mut Reply) {
        let mut found = list.into_iter().flat_map(|list| self.positions(list, element));
        let Some(count) = self.count else {
            return match found.next() {
                Some(at) => reply.int(at as i64),
                None => reply.null(),
            };
        };
        let limit = if count == 0 { usize::MAX } else { usize::try_from(count).unwrap_or(usize::MAX) };
        let found: Vec<u64> = found.take(limit).collect();
        reply.array(found.len());
        found.iter().for_each(|at| reply.int(*at as i64));
    }

    /// Returns the positions of an element, in search order.
    fn positions<'a>(&self, list: &'a List, element: &'a [u8]) -> impl Iterator<Item = u64> + use<'a> {
        let (len, depth) = (list.len(), self.depth(list));
        let side = if self.backward { Side::Right } else { Side::Left };
        let skip = usize::try_from(self.skip).unwrap_or(usize::MAX);
        list.positions(element, side.range(depth, len), self.backward).skip(skip)
    }
}

const RANK_ZERO: &str = "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... \
                         or use negative to start from the end of the list";

fn not_negative(call: &Call<'_, '_>, index: usize, text: &'static str) -> Result<u64, Error> {
    let value = call.args.int(index).ok().and_then(|value| u64::try_from(value).ok());
    value.ok_or(Error::text(text))
}

/// LPOS key element [RANK rank] [COUNT num-matches] [MAXLEN len]
pub(super) fn lpos(call: &mut Call<'_, '_>) -> Done {
    let search = Search::parse(call)?;
    let list = call.guard.collection::<List>(&call.keys[0])?;
    match list {
        Some(list) if is_much(search.depth(&list)) => {
            let (list, element) = (List::clone(&list), call.args.at(2).to_vec());
            return call.offload_reply(move |reply| search.reply(Some(&list), &element, reply));
        }
        list => search.reply(list.as_deref(), call.args.at(2), call.reply),
    }
    Ok(Flow::Replied)
}
