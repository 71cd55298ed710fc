//! Asking the memory ahead of time for what will be read.
//!
//! A look-up is a chain of misses of the caches, each address being known only when the one before has come. Several
//! look-ups at once, level by level, wait about once per level for all of them. All of it is hints: nothing here changes
//! what is read afterwards.

use crate::collection::{Hash, Set, ZSet};
use crate::context::ThreadContext;
use crate::entry::View;
use crate::guard::SlotGuard;
use crate::key::Place;
use crate::keyspace::Keyspace;
use crate::segment::Word;
use crate::{Key, Kind};

/// Keys of one command that are asked for at most, and lines of the entry of each: they stay within what a core has for itself.
const KEYS_MAX: usize = 1024;
const ENTRY_LINES: usize = 2;

/// Members that are asked for at once at most. More would be gone again before the last one is looked at.
pub const MEMBERS_MAX: usize = 32;

impl Keyspace {
    /// Asks the memory system for the slot of a key. A hint: nothing is read.
    #[inline]
    pub fn prefetch_slot(&self, ctx: &ThreadContext, place: Place) {
        self.assert_inside(ctx);
        if let Some(db) = self.db_if_used(place.db()) {
            prefetch((&raw const db.slots[place.slot()]).cast());
        }
    }

    /// Asks for the bucket of a key, once its slot is there.
    #[inline]
    pub fn prefetch_bucket(&self, ctx: &ThreadContext, place: Place, hash: u64) {
        self.assert_inside(ctx);
        if let Some(db) = self.db_if_used(place.db()) {
            prefetch(db.slots[place.slot()].bucket_hint(hash));
        }
    }

    /// Asks for the first `lines` cache lines of a key's entry, once its bucket is there. The seat must be inside.
    #[inline]
    pub fn prefetch_entry(&self, ctx: &ThreadContext, place: Place, hash: u64, lines: usize) {
        self.assert_inside(ctx);
        if let Some(db) = self.db_if_used(place.db()) {
            let entry = db.slots[place.slot()].entry_hint(hash);
            if !entry.is_null() {
                (0..lines).for_each(|line| prefetch(entry.wrapping_add(64 * line)));
            }
        }
    }

    /// Asks for the slots, buckets and entries of a command's keys: all misses of a kind are waited for together. The seat must be
    /// inside.
    pub fn prefetch_keys(&self, ctx: &ThreadContext, keys: &[Key<'_>]) {
        let keys = || keys.iter().take(KEYS_MAX);
        keys().for_each(|key| self.prefetch_slot(ctx, key.place));
        keys().for_each(|key| self.prefetch_bucket(ctx, key.place, key.hash));
        keys().for_each(|key| self.prefetch_entry(ctx, key.place, key.hash, ENTRY_LINES));
    }

    /// Asks for what looking up these members, at most [`MEMBERS_MAX`], in the collection at a key will read, if that is
    /// a large hash, set or sorted set; returns how many it has found there, as far as tags tell. Locks the key's slot, so
    /// that the collection stays where it is meanwhile. The seat is inside and holds nothing.
    pub fn prefetch_members(&self, ctx: &mut ThreadContext, key: &Key<'_>, members: &[&[u8]]) -> usize {
        let guard = SlotGuard::one(self, ctx, key.place);
        let Some(found) = guard.slot_of_place(key.place).find(key.hash, key.bytes) else { return 0 };
        let (view, hasher) = (View::new(found.entry()), &self.hasher);
        match view.kind() {
            Kind::Hash => view.collection::<Hash>().prefetch(hasher, members),
            Kind::Set => view.collection::<Set>().prefetch(hasher, members),
            Kind::ZSet => view.collection::<ZSet>().prefetch(hasher, members),
            _ => 0,
        }
    }
}

/// Entries asked for ahead of a walk over them: enough to have as many on their way as the memory system can.
const AHEAD: usize = 16;

/// The words of a list, with their entries asked for ahead of time.
pub(crate) fn prefetching(words: &[Word]) -> impl Iterator<Item = Word> {
    words.iter().enumerate().map(|(at, word)| {
        if let Some(ahead) = words.get(at + AHEAD) {
            prefetch(ahead.address() as *const u8);
        }
        *word
    })
}

#[inline]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: prefetching is a hint that reads nothing; any address will do.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}
