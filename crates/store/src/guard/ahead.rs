//! Prefetching the memory that lookups will read.
//!
//! A lookup is a chain of cache misses, and each address is known only when the previous line has arrived.
//! Several lookups at once, level by level, wait about once per level for all of them. All calls here are
//! hints, and none changes the results of later reads.

pub use crate::value::collection::MEMBERS_MAX;

use crate::guard::SlotGuard;
use crate::guard::context::ThreadContext;
use crate::key::Place;
use crate::keyspace::Keyspace;
use crate::memory::prefetch::{LINE, prefetch};
use crate::table::entry::View;
use crate::value::collection::{Hash, Set, ZSet};
use crate::{Key, Kind};

/// Maximum number of keys of a command that are prefetched, and lines of each entry: they fit a core's own
/// cache.
const KEYS_MAX: usize = 1024;
const ENTRY_LINES: usize = 2;

impl Keyspace {
    /// Prefetches the slot of a key. A hint: nothing is read.
    #[inline]
    pub fn prefetch_slot(&self, ctx: &ThreadContext, place: Place) {
        self.assert_inside(ctx);
        if let Some(db) = self.db_if_used(place.db()) {
            prefetch((&raw const db.slots[place.slot()]).cast());
        }
    }

    /// Prefetches the bucket of a key, once its slot has arrived.
    #[inline]
    pub fn prefetch_bucket(&self, ctx: &ThreadContext, place: Place, hash: u64) {
        self.assert_inside(ctx);
        if let Some(db) = self.db_if_used(place.db()) {
            prefetch(db.slots[place.slot()].bucket_hint(hash));
        }
    }

    /// Prefetches the first `lines` cache lines of a key's entry, once its bucket has arrived. The context
    /// must be inside.
    #[inline]
    pub fn prefetch_entry(&self, ctx: &ThreadContext, place: Place, hash: u64, lines: usize) {
        self.assert_inside(ctx);
        if let Some(db) = self.db_if_used(place.db()) {
            let entry = db.slots[place.slot()].entry_hint(hash);
            if !entry.is_null() {
                (0..lines).for_each(|line| prefetch(entry.wrapping_add(LINE * line)));
            }
        }
    }

    /// Prefetches the slots, buckets and entries of a command's keys, so that all misses of a kind are waited
    /// for together. The context must be inside.
    pub fn prefetch_keys(&self, ctx: &ThreadContext, keys: &[Key<'_>]) {
        let keys = || keys.iter().take(KEYS_MAX);
        keys().for_each(|key| self.prefetch_slot(ctx, key.place));
        keys().for_each(|key| self.prefetch_bucket(ctx, key.place, key.hash));
        keys().for_each(|key| self.prefetch_entry(ctx, key.place, key.hash, ENTRY_LINES));
    }

    /// Prefetches the memory that a lookup of these members, at most [`MEMBERS_MAX`], will read in the
    /// collection at a key, if that is a large hash, set or sorted set. Returns how many members it has
    /// found, judging by tags. Locks the key's slot, so that the collection stays in place meanwhile. The
    /// context is inside and holds nothing.
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
