//! The occupied slots of a database, a bit per slot, so that a walk over a sparse database skips the empty
//! slots.
//!
//! Bits are set and cleared under the slot's lock, only when a slot becomes empty or stops being empty.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::slot_set::{SlotSet, WORDS};

pub(crate) struct SlotBits([AtomicU64; WORDS]);

impl Default for SlotBits {
    fn default() -> SlotBits {
        SlotBits::new()
    }
}

impl SlotBits {
    pub(crate) fn new() -> SlotBits {
        SlotBits([const { AtomicU64::new(0) }; WORDS])
    }

    /// Takes the bits of a set, a word at a time.
    pub(crate) fn set_all(&self, set: &SlotSet) {
        self.0.iter().zip(set.0.iter()).for_each(|(bits, word)| bits.store(*word, Relaxed));
    }

    pub(crate) fn set(&self, slot: usize) {
        self.0[slot / 64].fetch_or(1 << (slot % 64), Relaxed);
    }

    pub(crate) fn clear(&self, slot: usize) {
        self.0[slot / 64].fetch_and(!(1 << (slot % 64)), Relaxed);
    }

    /// Returns true if the slot's bit is set.
    pub(crate) fn has(&self, slot: usize) -> bool {
        self.0[slot / 64].load(Relaxed) >> (slot % 64) & 1 == 1
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

    /// A set bit, chosen by `random` within a word. Taking the first set bit after a random place would
    /// prefer bits with a long gap before them, and would hardly ever sample the keys in crowded places.
    pub(crate) fn any(&self, random: u64) -> Option<usize> {
        let from = random as usize % WORDS * 64;
        let word = self.next(from).or_else(|| self.next(0))? / 64;
        let mut bits = self.0[word].load(Relaxed);
        let skip = (random >> 32) % u64::from(bits.count_ones().max(1));
        for _ in 0..skip {
            bits &= bits - 1;
        }
        // Another thread may just have cleared the word.
        (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SLOTS;

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
        bits.clear(64);
        assert!(bits.has(63) && !bits.has(64) && bits.has(5000));
        assert_eq!(
            (bits.next(64), bits.next(SLOTS - 1), bits.next(SLOTS)),
            (Some(5000), Some(SLOTS - 1), None)
        );
    }

    #[test]
    fn any_finds_every_bit() {
        let bits = SlotBits::new();
        assert_eq!(bits.any(7), None);
        let set = [0, 1, 2, 63, 64, 5000, SLOTS - 1];
        set.iter().for_each(|slot| bits.set(*slot));
        let mut times = [0_u32; 7];
        let (rounds, least) = if cfg!(miri) { (1000, 0) } else { (50_000_u64, 20) };
        for random in 0..rounds {
            let slot = bits.any(random.wrapping_mul(0x9e37_79b9_7f4a_7c15)).expect("bits are set");
            times[set.iter().position(|other| *other == slot).expect("a bit that is set")] += 1;
        }
        assert!(times.iter().all(|times| *times > least), "{times:?}");
        assert!(
            cfg!(miri) || times[..4].iter().all(|share| share.abs_diff(times[0]) < times[0] / 2),
            "{times:?}"
        );
        bits.clear(SLOTS - 1);
        assert!(bits.any(u64::MAX).is_some(), "it goes round");
    }
}
