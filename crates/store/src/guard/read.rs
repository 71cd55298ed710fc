//! Reading keys: the live entry of a key, hits and misses, and the access mark that a read leaves.

use super::SlotGuard;
use crate::guard::context::{Access, add};
use crate::guard::logging::Cause;
use crate::key::{Key, Place};
use crate::notify::events::What;
use crate::table::access;
use crate::table::entry::{EntryPtr, View};
use crate::table::slot::KeyPosition;

impl SlotGuard<'_> {
    /// Returns true if expired keys of this slot are hidden instead of removed.
    #[inline]
    pub(crate) fn keeps_expired(&self, place: Place) -> bool {
        self.ctx.keeps_expired() || self.keyspace.spared.has(place.slot())
    }

    /// The key's entry, unless it has expired. An expired entry is removed if the context may do so.
    #[inline]
    pub(super) fn live(&mut self, key: &Key<'_>) -> Option<KeyPosition> {
        let found = self.slot(key).1.find(key.hash, key.bytes)?;
        match found.entry().deadline() {
            Some(deadline) if deadline <= self.ctx.now_ms => {
                self.expire(key, found, self.keeps_expired(key.place))
            }
            _ => Some(found),
        }
    }

    /// Like [`SlotGuard::live`], for a caller that adds an entry if there is none. An expired entry is
    /// removed even if the context only hides expired keys, since a table must never hold a key twice.
    #[inline]
    pub(super) fn live_or_gone(&mut self, key: &Key<'_>) -> Option<KeyPosition> {
        let found = self.slot(key).1.find(key.hash, key.bytes)?;
        match found.entry().deadline() {
            Some(deadline) if deadline <= self.ctx.now_ms => self.expire(key, found, false),
            _ => Some(found),
        }
    }

    #[cold]
    pub(crate) fn expire(&mut self, key: &Key<'_>, found: KeyPosition, keep: bool) -> Option<KeyPosition> {
        if self.ctx.sees_expired {
            return Some(found);
        }
        if !keep {
            self.emit(key.place, key.bytes, What::Expired);
            self.log_removal(key.place, key.bytes, Cause::Expired);
            self.unasked(|guard| guard.remove_found(key.place, found));
            add(&self.ctx.tally.expired, 1);
        }
        None
    }

    /// Returns true if the key exists although its deadline has passed.
    pub fn has_expired(&self, key: &Key<'_>) -> bool {
        let deadline = self.slot(key).1.find(key.hash, key.bytes).and_then(|found| found.entry().deadline());
        deadline.is_some_and(|deadline| deadline <= self.ctx.now_ms) && !self.ctx.sees_expired
    }

    /// The key's entry; counts neither as a hit nor as an access.
    #[inline]
    pub fn peek(&mut self, key: &Key<'_>) -> Option<View<'_>> {
        self.live(key).map(|found| View::new(found.entry()))
    }

    /// The key's entry; counts as a hit or miss but not as an access (EXISTS, TTL, TYPE).
    pub fn look(&mut self, key: &Key<'_>) -> Option<View<'_>> {
        let found = self.live(key);
        if found.is_some() {
            add(&self.ctx.tally.hits, 1);
        } else {
            self.missed(key);
        }
        found.map(|found| View::new(found.entry()))
    }

    /// The key's entry; counts as a hit or miss, and as an access.
    #[inline]
    pub fn read(&mut self, key: &Key<'_>) -> Option<View<'_>> {
        match self.live(key) {
            Some(found) => {
                add(&self.ctx.tally.hits, 1);
                self.mark(found.entry());
                Some(View::new(found.entry()))
            }
            None => {
                self.missed(key);
                None
            }
        }
    }

    fn missed(&mut self, key: &Key<'_>) {
        add(&self.ctx.tally.misses, 1);
        self.emit(key.place, key.bytes, What::Missed);
    }

    /// The key's entry, for a caller about to change it; counts as an access but neither as a hit nor as a
    /// miss.
    pub fn touch(&mut self, key: &Key<'_>) -> Option<View<'_>> {
        let found = self.live(key)?;
        self.mark(found.entry());
        Some(View::new(found.entry()))
    }

    /// Marks an entry as accessed. If only writes count, [`SlotGuard::changed_for`] marks it.
    #[inline]
    pub(super) fn mark(&mut self, entry: EntryPtr) {
        if self.ctx.no_touch {
            return;
        }
        match self.ctx.access {
            Access::Lru => {
                let now = access::lru_clock(self.ctx.used_ms());
                // Reading dirties the cache line once a second at most.
                if entry.access() != now {
                    entry.set_access(now);
                }
            }
            Access::Lrm => {}
            Access::Lfu { log_factor, decay_minutes } => {
                let random = self.ctx.random();
                let access = entry.access();
                entry.set_access(access::lfu_touched(
                    access,
                    self.ctx.used_ms(),
                    log_factor,
                    decay_minutes,
                    random,
                ));
            }
        }
    }

    /// Sets the key's access bits, as in RESTORE; see [`crate::evict`].
    pub fn set_access(&mut self, key: &Key<'_>, access: u32) {
        if let Some(found) = self.live(key) {
            found.entry().set_access(access);
        }
    }

    pub(super) fn new_access(&self) -> u32 {
        match self.ctx.access {
            Access::Lru | Access::Lrm => access::lru_clock(self.ctx.used_ms()),
            Access::Lfu { .. } => access::lfu_new(self.ctx.used_ms()),
        }
    }

    /// The access mark of a value that replaces `found`. The frequency stays with the key; with LRU, a new
    /// value was used just now.
    pub(crate) fn access_after(&mut self, found: Option<&KeyPosition>) -> u32 {
        match found {
            Some(found) if self.ctx.access != Access::Lru => {
                self.mark(found.entry());
                found.entry().access()
            }
            _ => self.new_access(),
        }
    }
}
