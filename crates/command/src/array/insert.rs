//! Insertions at the cursor: a growing log (ARINSERT), or a ring of a number of values (ARRING).
//!
//! The cursor is the index of the last insertion. ARSEEK 0 takes it away, and the next insertion begins at
//! zero.

use evenkeel_store::Edit;
use evenkeel_store::collection::array::INDEX_MAX;
use evenkeel_store::collection::{Array, Collection};

use super::{invalid_index, last_index};
use crate::Call;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::list::check_element;
use evenkeel_resp::number::parse_u64;

/// The index of the next insertion, one more than the greatest index if there is no room.
fn next(array: &Array) -> u64 {
    array.cursor().map_or(0, |cursor| cursor + 1)
}

/// ARINSERT key value [value ...]
pub(super) fn arinsert(call: &mut Call<'_, '_>) -> Done {
    let values = call.args.from(2);
    values.clone().try_for_each(check_element)?;
    let last = call.guard.edit(&call.keys[0], |array: &mut Edit<'_, Array>| {
        let start = next(array);
        let last = last_index(start, values.len()).ok_or(Error::text("ERR insert index overflow"))?;
        array.changes = values.len() as u64;
        (start..).zip(values).for_each(|(index, value)| _ = array.set(index, value));
        array.set_cursor(Some(last));
        Ok::<u64, Error>(last)
    })??;
    call.reply.uint(last);
    Ok(Flow::Replied)
}

/// ARNEXT key
pub(super) fn arnext(call: &mut Call<'_, '_>) -> Done {
    let next = call.guard.collection::<Array>(&call.keys[0])?.map_or(0, |array| next(&array));
    if next <= INDEX_MAX {
        call.reply.uint(next)
    } else {
        call.reply.null()
    }
    Ok(Flow::Replied)
}

/// ARSEEK key index
pub(super) fn arseek(call: &mut Call<'_, '_>) -> Done {
    // One more than the greatest index is the state behind the last insertion.
    let index = parse_u64(call.args.at(2)).ok_or_else(invalid_index)?;
    let is_there = call.guard.edit_if_there(&call.keys[0], |array: &mut Edit<'_, Array>| {
        array.set_cursor(index.checked_sub(1));
        array.changes = 1;
    })?;
    call.reply.int(i64::from(is_there.is_some()));
    Ok(Flow::Replied)
}

/// ARRING key size value [value ...]
pub(super) fn arring(call: &mut Call<'_, '_>) -> Done {
    let size = call.args.int(2).map_err(|_| Error::text("ERR invalid size"))?;
    let size = u64::try_from(size).ok().filter(|size| *size > 0);
    let size = size.ok_or(Error::text("ERR size must be positive"))?;
    let values = call.args.from(3);
    values.clone().try_for_each(check_element)?;
    if let Some(array) = large_turn(call, size)? {
        let values: Vec<Vec<u8>> = values.map(<[u8]>::to_vec).collect();
        return call.offload_change(array, move |array, reply| {
            turn(array, size);
            reply.uint(put(array, size, values.iter().map(Vec::as_slice)));
            values.len() as u64
        });
    }
    let (old, last) = call.guard.edit(&call.keys[0], |array: &mut Edit<'_, Array>| {
        array.changes = values.len() as u64;
        (turn(array, size), put(array, size, values))
    })?;
    old.into_iter().for_each(|old| call.guard.discard(old));
    call.reply.uint(last);
    Ok(Flow::Replied)
}

/// Returns a clone of the array if its values have to be moved, and are so many that this takes long.
fn large_turn(call: &mut Call<'_, '_>, size: u64) -> Result<Option<Array>, Error> {
    let array = call.guard.peek_collection::<Array>(&call.keys[0])?;
    let turned = array.and_then(|array| Some((kept(&array, size)?.min(array.count()), Array::clone(&array))));
    let Some((moved, array)) = turned else { return Ok(None) };
    Ok(call.is_worth_offloading(usize::try_from(moved).unwrap_or(usize::MAX)).then_some(array))
}

/// How many values stay when an array becomes a ring of this size; `None` if all stay where they are: the
/// ring has its size, or grows before it has wrapped around. A cursor that ARSEEK 0 took away is to begin at
/// zero, whatever is there.
fn kept(array: &Array, size: u64) -> Option<u64> {
    let len = array.len();
    match array.cursor() {
        _ if len == 0 || size == len => None,
        _ if size < len => Some(size),
        Some(cursor) if cursor + 1 < len => Some(len),
        _ => None,
    }
}

/// Makes a ring of this size out of the values that were inserted last, up to the first hole: the oldest is
/// at zero then. Returns the former array if another took its place.
fn turn(array: &mut Array, size: u64) -> Option<Array> {
    let (most, len) = (kept(array, size)?, array.len());
    let newest = array.cursor().map_or(len - 1, |cursor| cursor % len);
    let mut ring = Array::new();
    let positions = array.newest(newest, most).into_iter().flatten();
    let mut last = None;
    for (index, position) in (0..).zip(positions) {
        let (_, value) = array.at(position).expect("positions inside");
        ring.set(index, value);
        last = Some(index);
    }
    ring.set_cursor(last);
    Some(std::mem::replace(array, ring))
}

/// Puts values into a ring; returns the index of the last.
fn put<'a>(array: &mut Array, size: u64, values: impl Iterator<Item = &'a [u8]>) -> u64 {
    let mut index = 0;
    for value in values {
        index = next(array) % size;
        array.set(index, value);
        array.set_cursor(Some(index));
    }
    index
}
