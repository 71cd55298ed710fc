//! Lists: what has to look at one element after the other.

use evenkeel_store::Edit;
use evenkeel_store::collection::List;

use super::{Side, check_element};
use crate::command::Call;
use crate::error::{Done, Error};

/// LINSERT key <BEFORE | AFTER> pivot element
pub(super) fn linsert(call: &mut Call<'_, '_>) -> Done {
    let behind = match call.args.word(2).as_bytes() {
        b"BEFORE" => 0,
        b"AFTER" => 1,
        _ => return Err(Error::Syntax),
    };
    let (pivot, element) = (call.args.at(3), call.args.at(4));
    check_element(element)?;
    let len = call.held.edit_if_there(&call.keys[0], |list: &mut Edit<'_, List>| {
        let at = list.positions(pivot, 0..list.len(), false).next()?;
        list.insert(at + behind, element);
        list.changes = 1;
        Some(list.len())
    })?;
    call.reply.int(match len {
        None => 0,
        Some(None) => -1,
        Some(Some(len)) => len as i64,
    });
    Ok(())
}

/// LREM key count element
pub(super) fn lrem(call: &mut Call<'_, '_>) -> Done {
    let (count, element) = (any_but_least(call, 2)?, call.args.at(3));
    let limit = if count == 0 { u64::MAX } else { count.unsigned_abs() };
    let removed = call.held.edit_if_there(&call.keys[0], |list: &mut Edit<'_, List>| {
        list.changes = list.remove_equal(element, limit, count < 0);
        list.changes
    })?;
    call.reply.int(removed.unwrap_or(0) as i64);
    Ok(())
}

/// An integer that can be negated.
fn any_but_least(call: &Call<'_, '_>, index: usize) -> Result<i64, Error> {
    const TEXT: &str =
        "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807";
    let value = call.args.int(index)?;
    if value == i64::MIN { Err(Error::text(TEXT)) } else { Ok(value) }
}

/// What LPOS looks for.
struct Search {
    /// How many matches are passed over.
    skip: u64,
    backward: bool,
    /// All for zero, and an array is replied; just one for none.
    count: Option<u64>,
    /// How many elements are looked at; all for zero.
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

    /// The positions of an element, in the order in which they are found.
    fn positions<'a>(&self, list: &'a List, element: &'a [u8]) -> impl Iterator<Item = u64> + use<'a> {
        let len = list.len();
        let depth = if self.depth == 0 { len } else { self.depth.min(len) };
        let side = if self.backward { Side::Right } else { Side::Left };
        let skip = usize::try_from(self.skip).unwrap_or(usize::MAX);
        list.positions(element, side.range(depth, len), self.backward).skip(skip)
    }
}

const RANK_ZERO: &str = "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use \
                         negative to start from the end of the list";

fn not_negative(call: &Call<'_, '_>, index: usize, text: &'static str) -> Result<u64, Error> {
    let value = call.args.int(index).ok().and_then(|value| u64::try_from(value).ok());
    value.ok_or(Error::text(text))
}

/// LPOS key element [RANK rank] [COUNT num-matches] [MAXLEN len]
pub(super) fn lpos(call: &mut Call<'_, '_>) -> Done {
    let search = Search::parse(call)?;
    let list = call.held.collection::<List>(&call.keys[0])?;
    let mut found = list.iter().flat_map(|list| search.positions(list, call.args.at(2)));
    let Some(count) = search.count else {
        match found.next() {
            Some(at) => call.reply.int(at as i64),
            None => call.reply.null(),
        }
        return Ok(());
    };
    let limit = if count == 0 { usize::MAX } else { usize::try_from(count).unwrap_or(usize::MAX) };
    let found: Vec<u64> = found.take(limit).collect();
    call.reply.array(found.len());
    found.iter().for_each(|at| call.reply.int(*at as i64));
    Ok(())
}
