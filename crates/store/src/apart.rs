//! What values would take beyond what they take now, if each was stored apart from all others and in full.
//!
//! A copy shares the pages of its original, and a hole takes no memory. But a snapshot has the copy as a value of its own, and
//! in some form the hole, so whoever loads it or is sent it has more. What that comes to is counted here, for
//! `maxmemory`: commands that take next to no memory could otherwise make data that fit nowhere else.
//!
//! *Shared bytes* are noted in an entry when a command makes its value from that of another key: of each page that several
//! entries have, at least all but one have noted it. That is an upper bound, since an original may be removed or changed
//! later. [`SlotGuard::appraise_next`] looks at one value after the other again, and takes off what is its own by now. The
//! references of snapshots and replies are never noted, since nothing is stored because of them.
//!
//! *Holes* are counted by ropes themselves, see [`crate::rope`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::entry::EntryPtr;
use crate::guard::SlotGuard;
use crate::key::Place;

/// Of one value, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Apart {
    /// Bytes of memory that it shares with other values.
    pub shared: u64,
    /// Chunks of 64 KiB that are holes.
    pub holes: u64,
}

/// The sum over values that are in their tables. Written to for values that share something or have holes, and no others.
#[derive(Default)]
pub(crate) struct Sum {
    shared: AtomicU64,
    holes: AtomicU64,
}

impl Sum {
    fn add(&self, apart: Apart) {
        self.shared.fetch_add(apart.shared, Relaxed);
        self.holes.fetch_add(apart.holes, Relaxed);
    }

    /// Takes off what was added before.
    pub(crate) fn subtract(&self, apart: Apart) {
        self.shared.fetch_sub(apart.shared, Relaxed);
        self.holes.fetch_sub(apart.holes, Relaxed);
    }

    pub(crate) fn get(&self) -> Apart {
        Apart { shared: self.shared.load(Relaxed), holes: self.holes.load(Relaxed) }
    }
}

/// Keys that wait to be looked at again. Others that come meanwhile keep what they have noted.
const SHARERS_MAX: usize = 64 * 1024;

/// Keys whose values have shared bytes noted, and are to be looked at again. Some may be gone, or in another database.
#[derive(Default)]
pub(crate) struct Sharers(Mutex<VecDeque<(Place, Box<[u8]>)>>);

impl Sharers {
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }

    fn push(&self, place: Place, key: &[u8]) {
        let mut waiting = self.0.lock();
        if waiting.len() < SHARERS_MAX {
            waiting.push_back((place, key.into()));
        }
    }
}

/// Bits of a number of bytes that an entry keeps exactly; five more say how far they are shifted. Rounded up, it is at most a
/// 512th too much.
const MANTISSA: u32 = 10;
const SHIFT_MAX: u32 = 31;

/// So many bytes, in 15 bits.
pub(crate) fn encoded(bytes: u64) -> u16 {
    let bits = u64::BITS - bytes.leading_zeros();
    let mut shift = bits.saturating_sub(MANTISSA);
    let mut mantissa = bytes.div_ceil(1 << shift);
    if mantissa == 1 << MANTISSA {
        (mantissa, shift) = (mantissa / 2, shift + 1);
    }
    match shift {
        0..=SHIFT_MAX => (shift as u16) << MANTISSA | mantissa as u16,
        _ => (1 << 15) - 1, // 2 TiB
    }
}

pub(crate) fn decoded(code: u16) -> u64 {
    u64::from(code & ((1 << MANTISSA) - 1)) << (code >> MANTISSA)
}

impl SlotGuard<'_> {
    /// Counts an entry that comes into its table.
    #[inline]
    pub(crate) fn count_apart(&self, place: Place, entry: EntryPtr) {
        let apart = entry.apart();
        if apart != Apart::default() {
            self.add_apart(place, apart);
        }
    }

    /// Counts no more an entry that leaves its table.
    #[inline]
    pub(crate) fn discount_apart(&self, place: Place, entry: EntryPtr) {
        let apart = entry.apart();
        if apart != Apart::default() {
            self.subtract_apart(place, apart);
        }
    }

    #[cold]
    pub(crate) fn add_apart(&self, place: Place, apart: Apart) {
        self.keyspace().apart.add(apart);
        self.keyspace().db(place.db()).apart.add(apart);
    }

    #[cold]
    pub(crate) fn subtract_apart(&self, place: Place, apart: Apart) {
        self.keyspace().apart.subtract(apart);
        self.keyspace().db(place.db()).apart.subtract(apart);
    }

    /// Counts the holes of a string that was written to where it lies.
    #[inline]
    pub(crate) fn holes_changed(&self, place: Place, before: usize, now: usize) {
        if before < now {
            self.add_apart(place, Apart { shared: 0, holes: (now - before) as u64 });
        } else if now < before {
            self.subtract_apart(place, Apart { shared: 0, holes: (before - now) as u64 });
        }
    }

    /// Notes what an entry that is about to come into its table shares with others; a flat value shares nothing.
    pub(crate) fn note_shared(&self, place: Place, entry: EntryPtr, bytes: u64) {
        if bytes > 0 && entry.is_outside() {
            entry.set_shared(bytes);
            self.keyspace().sharers.push(place, entry.key());
        }
    }

    /// Has the entry, if it shares something, looked at again under its new key.
    pub(crate) fn sharer_moved(&self, place: Place, entry: EntryPtr) {
        if entry.apart().shared > 0 {
            self.keyspace().sharers.push(place, entry.key());
        }
    }

    /// Looks at one of the keys whose values share something, and notes it if that has become less; false: there is none.
    /// Only for who holds nothing. It takes time in proportion to the pages of the value, but not inside the gate.
    pub fn appraise_next(&mut self) -> bool {
        let Some((place, bytes)) = self.keyspace().sharers.0.lock().pop_front() else { return false };
        let key = self.keyspace().key(place.db() as u32, &bytes);
        let find = |guard: &Self| {
            let found = guard.slot_of_place(place).find(key.hash, key.bytes)?;
            Some(found.entry()).filter(|entry| entry.apart().shared > 0)
        };
        let Some(value) = self.visit(place, |guard| find(guard).and_then(EntryPtr::share_outside)) else {
            return true;
        };
        // The entry's reference, and this one.
        let shared = self.outside_gate(|| value.shared_memory(2)) as u64;
        let is_there = self.visit(place, |guard| {
            let Some(entry) = find(guard).filter(|entry| entry.is_sharing(&value)) else { return false };
            let before = entry.apart();
            if shared < before.shared {
                guard.subtract_apart(place, before);
                entry.set_shared(shared);
                guard.add_apart(place, entry.apart());
            }
            if shared > 0 {
                guard.keyspace().sharers.push(place, key.bytes);
            }
            true
        });
        match is_there {
            true => drop(value), // which frees nothing, unless the key has been removed just now
            false => self.ctx.discard(Some(value)),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_noted_with_little_too_much() {
        for bytes in (0..5_000).chain((10..40).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 1]))
        {
            let code = encoded(bytes);
            assert!(code < 1 << 15);
            let noted = decoded(code);
            assert!((bytes..=bytes + bytes / 512).contains(&noted), "{bytes} as {noted}");
            assert_eq!(encoded(noted), code, "what was noted is noted again as it is");
        }
        assert!(decoded(encoded(u64::MAX)) > 1 << 40);
    }
}
