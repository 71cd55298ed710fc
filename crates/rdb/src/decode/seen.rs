//! The members of a value seen so far, as keyed hashes of 128 bits.
//!
//! Copies of the members would double the memory of a value while it is read; a fingerprint has 16 bytes. In
//! a value of ten million members two share a fingerprint with a probability of 10^-25. The hash keys are
//! drawn anew in each process, so no client can prepare a value that is refused by mistake, or a duplicate
//! that is accepted.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};

use foldhash::quality::RandomState;

use crate::item::{Digits, Item};

/// Most members to reserve memory for: 36 MB. A count is only an announcement.
const ROOM_MAX: usize = 1 << 20;

#[derive(Default)]
pub(super) struct SeenMembers {
    low: RandomState,
    high: RandomState,
    fingerprints: HashSet<u128, BuildHasherDefault<FingerprintHasher>>,
}

impl SeenMembers {
    /// Reserves memory for as many members: growing a large table costs more than filling it.
    pub(super) fn with_room(members: usize) -> SeenMembers {
        let mut seen = SeenMembers::default();
        seen.fingerprints.reserve(members.min(ROOM_MAX));
        seen
    }

    /// False if the item was seen before.
    pub(super) fn insert(&mut self, item: Item<'_>) -> bool {
        let mut digits = Digits::default();
        let bytes = item.bytes(&mut digits);
        let fingerprint = u128::from(hash(&self.high, bytes)) << 64 | u128::from(hash(&self.low, bytes));
        self.fingerprints.insert(fingerprint)
    }
}

fn hash(state: &RandomState, bytes: &[u8]) -> u64 {
    let mut hasher = state.build_hasher();
    hasher.write(bytes);
    hasher.finish()
}

/// Passes a fingerprint on as its own hash.
#[derive(Default)]
struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("fingerprints are numbers");
    }

    fn write_u128(&mut self, fingerprint: u128) {
        self.0 = fingerprint as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_integer_equals_its_text() {
        let mut seen = SeenMembers::default();
        assert!(seen.insert(Item::Int(12)));
        assert!(!seen.insert(Item::Bytes(b"12")));
        assert!(seen.insert(Item::Bytes(b"012")));
        assert!(seen.insert(Item::Bytes(b"")));
        assert!((100..100_000).all(|number| seen.insert(Item::Int(number))));
        assert!(!(100..100_000).any(|number| seen.insert(Item::Bytes(number.to_string().as_bytes()))));
    }
}
