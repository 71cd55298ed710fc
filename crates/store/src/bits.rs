//! Which slots of a database hold something: a bit a slot, so that what walks a sparse database skips the void.
//!
//! Bits are set and cleared under the slot's lock, only when a slot becomes empty or stops being so.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::SLOTS;

const WORDS: usize = SLOTS / 64;

pub(crate) struct SlotBits([AtomicU64; WORDS]);

impl SlotBits {
    pub(crate) fn new() -> SlotBits {
        SlotBits([const { AtomicU64::new(0) }; WORDS])
    }

    pub(crate) fn set(&self, slot: usize) {
        self.0[slot / 64].fetch_or(1 << (slot % 64), Relaxed);
    }

    pub(crate) fn clear(&self, slot: usize) {
        self.0[slot / 64].fetch_and(!(1 << (slot % 64)), Relaxed);
    }

    /// The first slot at or after `from` whose bit is set.
    pub(crate) fn next(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        if word >= WORDS {
            return None;
        }
        let mut bits = self.0[word].load(Relaxed) & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = self.0.get(word)?.load(Relaxed);
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    /// The first set bit at or after `from`, going round.
    pub(crate) fn next_round(&self, from: usize) -> Option<usize> {
        self.next(from).or_else(|| self.next(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_finds_every_bit() {
        let bits = SlotBits::new();
        assert_eq!(bits.next(0), None);
        for slot in [0, 63, 64, 5000, SLOTS - 1] {
            bits.set(slot);
        }
        let mut seen = Vec::new();
        let mut at = 0;
        while let Some(slot) = bits.next(at) {
            seen.push(slot);
            at = slot + 1;
        }
        assert_eq!(seen, [0, 63, 64, 5000, SLOTS - 1]);
        bits.clear(0);
        assert_eq!(bits.next_round(SLOTS - 1), Some(SLOTS - 1));
        assert_eq!(bits.next_round(5001), Some(SLOTS - 1));
        bits.clear(SLOTS - 1);
        assert_eq!(bits.next_round(5001), Some(63));
    }
}
