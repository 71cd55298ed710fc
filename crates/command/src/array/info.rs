//! ARINFO: the form in which Redis would keep an array.
//!
//! Redis keeps arrays in slices of 4,096 indices. A slice of a few values is a list of them; of more values,
//! a window of positions. Here an array is a tree of pages, and the numbers are computed for an array that
//! Redis would just have built.

use evenkeel_store::collection::Array;

use crate::Call;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::offloading::is_much;
use crate::reply::Reply;

const SLICE_SIZE: u64 = 4096;
/// Slices whose addresses are in a single table.
const BLOCK_SLICES: u64 = 2048;
/// Values of a slice that are a list.
const LISTED_MAX: u64 = 10;
/// Least sizes of a window, of a list, and of the table of tables.
const WINDOW_MIN: u64 = 8;
const LIST_MIN: u64 = 4;
const TABLES_MIN: u64 = 4;

#[derive(Default)]
struct Slices {
    count: u64,
    /// Groups of slices with a table of their own.
    blocks: u64,
    dense: u64,
    windows: u64,
    dense_values: u64,
    sparse: u64,
    lists: u64,
}

impl Slices {
    fn of(array: &Array) -> Slices {
        let (mut slices, mut at, mut block) = (Slices::default(), 0, None);
        while let Some((first, _)) = array.at(at) {
            let slice = first / SLICE_SIZE;
            let end = array.rank(slice * SLICE_SIZE + (SLICE_SIZE - 1));
            let next = end.0 + u64::from(end.1);
            let last = array.at(next - 1).map_or(first, |(index, _)| index);
            slices.add(next - at, last - first + 1);
            slices.blocks += u64::from(block.replace(slice / BLOCK_SLICES) != Some(slice / BLOCK_SLICES));
            at = next;
        }
        slices
    }

    /// Adds a slice of `values` over a number of indices.
    fn add(&mut self, values: u64, over: u64) {
        self.count += 1;
        if values <= LISTED_MAX {
            self.sparse += 1;
            self.lists += values.next_power_of_two().clamp(LIST_MIN, LISTED_MAX);
        } else {
            self.dense += 1;
            self.windows += over.next_power_of_two().clamp(WINDOW_MIN, SLICE_SIZE);
            self.dense_values += values;
        }
    }
}

fn average(sum: u64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { sum as f64 / count as f64 }
}

fn reply_info(reply: &mut Reply, array: &Array, is_full: bool) {
    let slices = Slices::of(array);
    let last_slice = (array.len() - 1) / SLICE_SIZE;
    let has_blocks = last_slice >= BLOCK_SLICES;
    let tables = if has_blocks { slices.blocks.next_power_of_two().max(TABLES_MIN) } else { 0 };
    let flat = (last_slice + 1).next_power_of_two();
    let next = array.cursor().and_then(|cursor| cursor.checked_add(1)).filter(|next| *next < u64::MAX);
    let numbers = [
        ("count", array.count()),
        ("len", array.len()),
        ("next-insert-index", next.unwrap_or(0)),
        ("slices", slices.count),
        ("directory-size", if has_blocks { tables } else { flat }),
        ("super-dir-entries", if has_blocks { slices.blocks } else { 0 }),
        ("slice-size", SLICE_SIZE),
    ];
    reply.map(if is_full { numbers.len() + 5 } else { numbers.len() });
    let number = |reply: &mut Reply, (name, value): (&str, u64)| {
        reply.bulk(name.as_bytes());
        reply.uint(value);
    };
    numbers.into_iter().for_each(|field| number(reply, field));
    if is_full {
        number(reply, ("dense-slices", slices.dense));
        number(reply, ("sparse-slices", slices.sparse));
        for (name, value) in [
            ("avg-dense-size", average(slices.windows, slices.dense)),
            ("avg-dense-fill", average(slices.dense_values, slices.windows)),
            ("avg-sparse-size", average(slices.lists, slices.sparse)),
        ] {
            reply.bulk(name.as_bytes());
            reply.double(value);
        }
    }
}

/// ARINFO key [FULL]
pub(super) fn arinfo(call: &mut Call<'_, '_>) -> Done {
    let is_full = match call.args.len() {
        2 => false,
        3 if call.args.is(2, "FULL") => true,
        _ => return Err(Error::Syntax),
    };
    let array = call.guard.collection::<Array>(&call.keys[0])?.map(|array| Array::clone(&array));
    let array = array.ok_or(Error::NoSuchKey)?;
    if is_much(array.count()) {
        return call.offload_reply(move |reply| reply_info(reply, &array, is_full));
    }
    reply_info(call.reply, &array, is_full);
    Ok(Flow::Replied)
}
