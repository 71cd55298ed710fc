//! Maps an element to its register and to the rarity of its hash.
//!
//! The hash is MurmurHash64A by Austin Appleby (public domain), read in little endian on every machine, with
//! Redis' seed.

use super::{INDEX_BITS, REGISTERS};

pub(super) const SEED: u64 = 0xadc8_3b19;
const MULTIPLIER: u64 = 0xc6a4_a793_5bd1_e995;
const SHIFT: u32 = 47;

/// Bits of the hash beyond the index.
pub(super) const RANK_BITS: u32 = u64::BITS - INDEX_BITS;

/// An element's demand on a register: to be at least `rank`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) index: usize,
    /// The number of zeros at the end of the rest of the hash, plus 1.
    pub(super) rank: u8,
}

pub(super) fn place(element: &[u8]) -> Place {
    let hash = murmur64(element, SEED);
    let rest = hash >> INDEX_BITS | 1 << RANK_BITS; // so that there is a bit
    Place { index: hash as usize & (REGISTERS - 1), rank: rest.trailing_zeros() as u8 + 1 }
}

pub(super) fn murmur64(bytes: &[u8], seed: u64) -> u64 {
    let mut hash = seed ^ (bytes.len() as u64).wrapping_mul(MULTIPLIER);
    let words = bytes.chunks_exact(8);
    let tail = words.remainder();
    for word in words {
        let mut word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        word = word.wrapping_mul(MULTIPLIER);
        word ^= word >> SHIFT;
        hash = (hash ^ word.wrapping_mul(MULTIPLIER)).wrapping_mul(MULTIPLIER);
    }
    if !tail.is_empty() {
        let mut word = [0; 8];
        word[..tail.len()].copy_from_slice(tail);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(MULTIPLIER);
    }
    hash ^= hash >> SHIFT;
    hash = hash.wrapping_mul(MULTIPLIER);
    hash ^ hash >> SHIFT
}
