//! Bitmaps: strings as bits, the highest bit of the first byte first.
//!
//! A sparse bitmap is a rope with holes: counting and searching pass over a hole at once.

pub mod bitfield;
pub mod bitop;

use std::ops::Range;

use evenkeel_store::Str;
use evenkeel_store::rope::{Piece, Spine};

use crate::bitfield::{bitfield, bitfield_ro};
use crate::bitop::bitop;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::string::{clamp, clamp_each, string_to_change};
use crate::{Call, Command, DataHandler, Group, Keys, at_least, exactly, read, write};

#[rustfmt::skip]
pub const COMMANDS: &[Command<DataHandler>] = &[
    write("SETBIT",      exactly(4),  Keys::FIRST,            Group::Bitmap, setbit     ).grows(),
    read ("GETBIT",      exactly(3),  Keys::FIRST,            Group::Bitmap, getbit     ).fast(),
    read ("BITCOUNT",    at_least(2), Keys::FIRST,            Group::Bitmap, bitcount   ),
    read ("BITPOS",      at_least(3), Keys::FIRST,            Group::Bitmap, bitpos     ),
    write("BITOP",       at_least(4), Keys::REST_FROM_SECOND, Group::Bitmap, bitop      ).grows(),
    write("BITFIELD",    at_least(2), Keys::FIRST,            Group::Bitmap, bitfield   ).grows(),
    read ("BITFIELD_RO", at_least(2), Keys::FIRST,            Group::Bitmap, bitfield_ro).fast(),
];

/// SETBIT key offset value
fn setbit(call: &mut Call<'_, '_>) -> Done {
    let offset = bit_offset(call, call.args.at(2), None)?;
    let on = match call.args.at(3) {
        b"0" => false,
        b"1" => true,
        _ => return Err(Error::BitValue),
    };
    let (at, mask) = ((offset / 8) as usize, 0x80 >> (offset % 8));
    let (byte, there) = match string_to_change(call, 0)? {
        Some(value) => (value.byte(at), at < value.len()),
        None => (0, false),
    };
    let new = if on { byte | mask } else { byte & !mask };
    // A bit that is set so already is no change for WATCH, nor for the counter of changes.
    if there && new == byte {
        call.guard.write_same(&call.keys[0])?;
    } else {
        call.guard.write_range(&call.keys[0], at, &[new])?;
    }
    call.reply.int(i64::from(byte & mask != 0));
    Ok(Flow::Replied)
}

/// Parses a bit's offset, which must lie in a string of the allowed length. For a field of `bits` bits it may
/// be given in fields, after a `#`.
pub fn bit_offset(call: &Call<'_, '_>, text: &[u8], bits: Option<u32>) -> Result<u64, Error> {
    let (text, unit) = match (text, bits) {
        ([b'#', rest @ ..], Some(bits)) => (rest, i64::from(bits)),
        _ => (text, 1),
    };
    let offset = evenkeel_resp::number::parse_i64(text).and_then(|offset| offset.checked_mul(unit));
    let offset = offset.and_then(|offset| u64::try_from(offset).ok()).ok_or(Error::BitOffset)?;
    if offset >> 3 < call.string_len_max() as u64 { Ok(offset) } else { Err(Error::BitOffset) }
}

/// GETBIT key offset
fn getbit(call: &mut Call<'_, '_>) -> Done {
    let offset = bit_offset(call, call.args.at(2), None)?;
    let byte = call.guard.string(&call.keys[0])?.map_or(0, |value| value.byte((offset / 8) as usize));
    call.reply.int(i64::from(byte >> (7 - offset % 8) & 1));
    Ok(Flow::Replied)
}

/// BITCOUNT key [start [end [BYTE | BIT]]]
fn bitcount(call: &mut Call<'_, '_>) -> Done {
    let args = call.args;
    let range = match args.len() {
        2 => None,
        3..=5 => {
            let start = args.int(2)?;
            let in_bits = args.len() == 5 && in_bits(args.word(4).as_bytes())?;
            let end = if args.len() > 3 { args.int(3)? } else { -1 };
            Some((start, end, if in_bits { 1 } else { 8 }))
        }
        _ => return Err(Error::Syntax),
    };
    let count = match (call.guard.string(&call.keys[0])?, range) {
        (None, _) => 0,
        (Some(value), None) => count_ones(value, 0..value.len()),
        (Some(value), Some((start, end, unit))) => match clamp(start, end, value.len() * 8 / unit) {
            Some((first, last)) => count_ones_between(value, first * unit, (last + 1) * unit - 1),
            None => 0,
        },
    };
    call.reply.int(count as i64);
    Ok(Flow::Replied)
}

fn in_bits(unit: &[u8]) -> Result<bool, Error> {
    match unit {
        b"BIT" => Ok(true),
        b"BYTE" => Ok(false),
        _ => Err(Error::Syntax),
    }
}

/// BITPOS key bit [start [end [BYTE | BIT]]]
fn bitpos(call: &mut Call<'_, '_>) -> Done {
    let args = call.args;
    let bit = match args.int(2)? {
        0 => false,
        1 => true,
        _ => return Err(Error::text("ERR The bit argument must be 1 or 0.")),
    };
    if args.len() > 6 {
        return Err(Error::Syntax);
    }
    let start = if args.len() > 3 { args.int(3)? } else { 0 };
    let in_bits = args.len() > 5 && in_bits(args.word(5).as_bytes())?;
    let end = if args.len() > 4 { args.int(4)? } else { -1 };
    let unit = if in_bits { 1 } else { 8 };
    let Some(value) = call.guard.string(&call.keys[0])? else {
        call.reply.int(if bit { -1 } else { 0 });
        return Ok(Flow::Replied);
    };
    let found = clamp_each(start, end, value.len() * 8 / unit).and_then(|(first, last)| {
        let found = find(value, bit, first * unit, (last + 1) * unit - 1);
        // Without a given end, the string is followed by zeros.
        found.or((!bit && args.len() <= 4).then_some(value.len() * 8))
    });
    call.reply.int(found.map_or(-1, |at| at as i64));
    Ok(Flow::Replied)
}

/// A part of a string.
pub enum BytesOrZeros<'a> {
    Bytes(&'a [u8]),
    Zeros(usize),
}

/// Returns the parts that make up `range`, in order. `range` lies inside the string.
pub fn parts_of(value: Str<'_>, range: Range<usize>) -> impl Iterator<Item = BytesOrZeros<'_>> {
    let (flat, rope): (_, Option<&Spine>) = match value {
        Str::Flat(bytes) => (Some(BytesOrZeros::Bytes(&bytes[range.clone()])), None),
        Str::Rope(rope) => (None, Some(rope)),
    };
    let pieces = rope.into_iter().flat_map(move |rope| rope.pieces(range.clone()));
    flat.into_iter().chain(pieces.map(|piece| match piece {
        Piece::Bytes(chunk, range) => BytesOrZeros::Bytes(&chunk[range]),
        Piece::Zeros(len) => BytesOrZeros::Zeros(len),
    }))
}

/// Counts the set bits in a range of bytes.
fn count_ones(value: Str<'_>, range: Range<usize>) -> usize {
    let ones = parts_of(value, range).map(|part| match part {
        BytesOrZeros::Bytes(bytes) => ones_in(bytes),
        BytesOrZeros::Zeros(_) => 0,
    });
    ones.sum()
}

/// Counts the set bits from the bit `first` to the bit `last`, both inside the string.
fn count_ones_between(value: Str<'_>, first: usize, last: usize) -> usize {
    let (from, to) = (first / 8, last / 8);
    let before = value.byte(from) & !(0xff >> (first % 8));
    let after = value.byte(to) & (0x7f >> (last % 8));
    count_ones(value, from..to + 1) - (before.count_ones() + after.count_ones()) as usize
}

/// Counts the set bits in some bytes, with the processor's instruction if it has it, as nearly all do.
fn ones_in(bytes: &[u8]) -> usize {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("popcnt") {
        // SAFETY: the processor has the instruction.
        return unsafe { ones_in_by_popcnt(bytes) };
    }
    ones_in_by_word(bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "popcnt")]
fn ones_in_by_popcnt(bytes: &[u8]) -> usize {
    ones_in_by_word(bytes)
}

#[inline(always)]
fn ones_in_by_word(bytes: &[u8]) -> usize {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_ne_bytes(*word).count_ones() as usize);
    words.sum::<usize>() + rest.iter().map(|byte| byte.count_ones() as usize).sum::<usize>()
}

/// Finds the first bit equal to `bit` from `first` to `last`, both inside the string.
fn find(value: Str<'_>, bit: bool, first: usize, last: usize) -> Option<usize> {
    let flip = if bit { 0 } else { 0xff };
    let from = first / 8;
    let in_first = (value.byte(from) ^ flip) & (0xff >> (first % 8));
    let found = if in_first != 0 {
        Some(from * 8 + in_first.leading_zeros() as usize)
    } else {
        find_in_bytes(value, bit, from + 1..last / 8 + 1)
    };
    found.filter(|at| *at <= last)
}

fn find_in_bytes(value: Str<'_>, bit: bool, range: Range<usize>) -> Option<usize> {
    let mut at = range.start * 8;
    for part in parts_of(value, range) {
        let (found, len) = match part {
            BytesOrZeros::Bytes(bytes) => (first_in(bytes, bit), bytes.len()),
            BytesOrZeros::Zeros(len) => ((!bit).then_some(0), len),
        };
        if let Some(found) = found {
            return Some(at + found);
        }
        at += len * 8;
    }
    None
}

/// Finds the first bit equal to `bit` in some bytes.
fn first_in(bytes: &[u8], bit: bool) -> Option<usize> {
    let flip = if bit { 0 } else { u64::MAX };
    let (words, rest) = bytes.as_chunks::<8>();
    let in_words = words.iter().position(|word| u64::from_ne_bytes(*word) ^ flip != 0);
    if let Some(at) = in_words {
        let word = u64::from_be_bytes(words[at]) ^ flip;
        return Some(at * 64 + word.leading_zeros() as usize);
    }
    let at = rest.iter().position(|byte| byte ^ flip as u8 != 0)?;
    let byte = rest[at] ^ flip as u8;
    Some((words.len() * 8 + at) * 8 + byte.leading_zeros() as usize)
}

#[cfg(test)]
mod tests;
