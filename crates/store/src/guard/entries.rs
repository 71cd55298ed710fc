//! Entries that come into their tables and leave them, with all that goes along: counters, deadlines, the
//! epoch of a snapshot, and the notification of subscribers and listeners.

use std::sync::atomic::Ordering::Relaxed;

use super::SlotGuard;
use crate::guard::context::{Access, add, add_signed};
use crate::key::{Key, Place};
use crate::notify::events::What;
use crate::notify::subscribers::SlotSubscribers;
use crate::notify::watch::Change;
use crate::table::entry::{EntryPtr, Times};
use crate::table::segment::Word;
use crate::table::slot::{KeyPosition, Slot};

/// The subscribers that a change notifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concerns {
    Everybody,
    /// Waiters for the key, but not its watchers.
    Waiters,
    Nobody,
}

impl SlotGuard<'_> {
    #[inline]
    pub(super) fn add_entry(&mut self, key: &Key<'_>, entry: EntryPtr) {
        self.insert(key, entry);
        self.emit(key.place, key.bytes, What::Added);
    }

    #[inline]
    pub(crate) fn insert(&mut self, key: &Key<'_>, entry: EntryPtr) {
        let (db, slot) = self.slot(key);
        debug_assert!(slot.find(key.hash, key.bytes).is_none(), "a table never holds a key twice");
        if slot.len() == 0 {
            db.occupied.set(key.place.slot());
        }
        entry.set_epoch(self.ctx.epoch);
        self.count_apart(key.place, entry);
        let times = entry.times();
        let due = times.first().map_or(0, |first| self.keyspace.coarse(first));
        if due != 0 {
            self.count_times(db, slot, key.place, Times::default(), times);
            if times.own.is_some() {
                self.record_own(key.place, key.bytes);
            }
        }
        slot.insert(key.hash, entry, due, &self.keyspace.hasher, &mut self.ctx.retired);
        add_signed(&self.ctx.tally.dbs[db.id].keys, 1);
    }

    /// Replaces the entry found by another entry of the same key, and frees the old entry.
    pub(super) fn replace(&mut self, key: &Key<'_>, found: KeyPosition, entry: EntryPtr) {
        let old = found.entry();
        let before = old.times();
        entry.set_epoch(self.ctx.epoch);
        self.count_apart(key.place, entry);
        self.slot(key).1.replace(found, entry);
        self.update_times(key.place, found, before);
        self.free(key.place, old);
    }

    /// Removes an entry from its table.
    pub(crate) fn detach(&mut self, place: Place, found: KeyPosition) -> EntryPtr {
        let (db, slot) = self.slot_at(place);
        if found.segment.deadline(found.bucket) != 0 {
            self.count_times(db, slot, place, found.entry().times(), Times::default());
        }
        let entry = slot.remove(found, &mut self.ctx.retired);
        add_signed(&self.ctx.tally.dbs[db.id].keys, -1);
        self.clear_bits_if_empty(place);
        entry
    }

    /// Removes and frees an entry, and notifies subscribers and listeners.
    pub(crate) fn remove_found(&mut self, place: Place, found: KeyPosition) {
        let word = found.segment.word(found.bucket);
        let entry = self.detach(place, found);
        self.notify_removed(place, &[word]);
        self.free(place, entry);
    }

    /// Counts keys that have been removed, and notifies their watchers, waiters and listeners.
    pub(crate) fn notify_removed(&mut self, place: Place, removed: &[Word]) {
        add(&self.ctx.tally.dirty, removed.len() as u64);
        if self.is_listened_to() {
            removed.iter().for_each(|word| self.emit(place, word.entry().key(), What::Removed));
        }
        let slot = self.slot_at(place).1;
        if SlotSubscribers::is_there(&slot.subscribers) {
            removed.iter().for_each(|word| {
                self.notify(slot, place, word.entry().key(), Change::Removed, Concerns::Everybody)
            });
        }
    }

    /// Notifies subscribers and listeners that the key has changed.
    #[inline]
    pub(super) fn changed(&mut self, key: &Key<'_>, change: Change) {
        self.changed_times(key, change, 1);
    }

    /// Like [`SlotGuard::changed`], for a command that makes `times` changes at once.
    #[inline]
    pub(super) fn changed_times(&mut self, key: &Key<'_>, change: Change, times: u64) {
        self.changed_for(key, change, times, Concerns::Everybody);
    }

    /// Like [`SlotGuard::changed_times`], for a part of the subscribers.
    #[inline]
    pub(super) fn changed_for(&mut self, key: &Key<'_>, change: Change, times: u64, concerns: Concerns) {
        add(&self.ctx.tally.dirty, times);
        if self.ctx.access == Access::Lrm {
            self.mark_as_modified(key);
        }
        if concerns == Concerns::Everybody {
            let what = if change == Change::Removed { What::Removed } else { What::Written };
            self.emit(key.place, key.bytes, what);
        }
        let slot = self.slot(key).1;
        if SlotSubscribers::is_there(&slot.subscribers) {
            self.notify(slot, key.place, key.bytes, change, concerns);
        }
    }

    #[cold]
    fn mark_as_modified(&mut self, key: &Key<'_>) {
        // Found even if it has expired: its removal is up to the caller.
        if let Some(found) = self.slot(key).1.find(key.hash, key.bytes) {
            found.entry().set_access(self.new_access());
        }
    }

    #[cold]
    pub(crate) fn notify(
        &mut self,
        slot: &Slot,
        place: Place,
        key: &[u8],
        change: Change,
        concerns: Concerns,
    ) {
        let keyspace = self.keyspace;
        SlotSubscribers::with(&slot.subscribers, |subscribers| {
            if concerns == Concerns::Everybody {
                subscribers.watchers.touch(key, change);
                keyspace.watches.fetch_sub(subscribers.watchers.drop_forgotten(key), Relaxed);
            }
            if concerns != Concerns::Nobody {
                self.ctx.wake(&mut subscribers.waiters, key, place);
            }
        });
    }
}
