//! The dense encoding: 16,384 registers of 6 bits, the first in the lowest bits of the first byte.
//!
//! Eight registers are six bytes. They are taken apart and put together in a 64-bit word, all eight at once: three steps
//! of a mask and a shift each, which cost about as much as two registers do one by one.

use super::estimate::Histogram;
use super::hash::Place;
use super::{REGISTERS, Registers};

const BITS: usize = 6;
pub(super) const BYTES: usize = REGISTERS * BITS / 8;

/// Bytes that hold eight registers.
const GROUP: usize = BITS;
const _: () =
    assert!(BYTES.is_multiple_of(GROUP) && REGISTERS.is_multiple_of(8), "groups end where the registers end");

/// The highest bit of eight registers, a byte each. Registers have six bits, so it is free.
const GUARDS: u64 = 0x8080_8080_8080_8080;

/// Raises a register; `false` when it is that high already. `registers` are `BYTES` long.
pub(super) fn raise(registers: &mut [u8], Place { index, rank }: Place) -> bool {
    // Four registers are three bytes.
    let group: &mut [u8; 3] = (&mut registers[index / 4 * 3..][..3]).try_into().expect("three bytes");
    let shift = index % 4 * BITS;
    let four = u32::from_le_bytes([group[0], group[1], group[2], 0]);
    if (four >> shift & 63) as u8 >= rank {
        return false;
    }
    let raised = four & !(63 << shift) | u32::from(rank) << shift;
    group.copy_from_slice(&raised.to_le_bytes()[..3]);
    true
}

/// Eight registers, of six bytes, a byte each.
#[inline]
fn spread(group: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..GROUP].copy_from_slice(group);
    let x = u64::from_le_bytes(bytes);
    let x = x & 0x0000_0000_00ff_ffff | (x & 0x0000_ffff_ff00_0000) << 8;
    let x = x & 0x0000_0fff_0000_0fff | (x & 0x00ff_f000_00ff_f000) << 4;
    x & 0x003f_003f_003f_003f | (x & 0x0fc0_0fc0_0fc0_0fc0) << 2
}

/// The reverse of [`spread`].
#[inline]
fn gather(x: u64) -> [u8; GROUP] {
    let x = x & 0x003f_003f_003f_003f | x >> 2 & 0x0fc0_0fc0_0fc0_0fc0;
    let x = x & 0x0000_0fff_0000_0fff | x >> 4 & 0x00ff_f000_00ff_f000;
    let x = x & 0x0000_0000_00ff_ffff | x >> 8 & 0x0000_ffff_ff00_0000;
    x.to_le_bytes()[..GROUP].try_into().expect("six of eight bytes")
}

/// The higher of each two bytes, which are below 128.
#[inline]
fn higher(a: u64, b: u64) -> u64 {
    let not_less = ((a | GUARDS) - b) & GUARDS;
    let from_a = not_less - (not_less >> 7);
    a & from_a | b & !from_a
}

/// Raises `max` to the registers where those are higher.
pub(super) fn merge_into(max: &mut Registers, registers: &[u8]) {
    for (eight, group) in max.chunks_exact_mut(8).zip(registers.chunks_exact(GROUP)) {
        let before = u64::from_le_bytes((&*eight).try_into().expect("eight bytes"));
        eight.copy_from_slice(&higher(before, spread(group)).to_le_bytes());
    }
}

/// Writes registers, each below 64, into `BYTES` bytes.
pub(super) fn pack(registers: &Registers, into: &mut [u8]) {
    for (group, eight) in into.chunks_exact_mut(GROUP).zip(registers.chunks_exact(8)) {
        group.copy_from_slice(&gather(u64::from_le_bytes(eight.try_into().expect("eight bytes"))));
    }
}

pub(super) fn histogram(registers: &[u8]) -> Histogram {
    histogram_of_words(registers.chunks_exact(GROUP).map(spread))
}

pub(super) fn histogram_of_bytes(registers: &Registers) -> Histogram {
    histogram_of_words(
        registers.chunks_exact(8).map(|eight| u64::from_le_bytes(eight.try_into().expect("eight bytes"))),
    )
}

/// Counts in four tables by turns: neighbours are often equal, and an increment has to wait for one before it that
/// goes to the same place.
fn histogram_of_words(words: impl Iterator<Item = u64>) -> Histogram {
    let mut tables = [[0_u32; 64]; 4];
    for word in words {
        for (lane, value) in word.to_le_bytes().into_iter().enumerate() {
            tables[lane % 4][usize::from(value & 63)] += 1;
        }
    }
    std::array::from_fn(|value| tables.iter().map(|table| table[value]).sum())
}
