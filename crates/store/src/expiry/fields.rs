//! Fields of hashes that expire by themselves.
//!
//! A hash with a million due fields takes many visits, and its slot is unlocked between them; meanwhile the
//! fields are hidden. A hash whose fields are all due is removed as a whole, in a single step.

use super::SWEEP_FIELDS_MAX;
use crate::guard::context::add;
use crate::guard::{Concerns, SlotGuard};
use crate::key::Place;
use crate::notify::events::What;
use crate::notify::subscribers::SlotSubscribers;
use crate::notify::watch::Change;
use crate::table::segment::Word;
use crate::value::collection::{Collection, Hash};

/// Number of fields that removing a whole hash counts as: up to 64 blocks of it are freed at once.
const WHOLE: usize = SWEEP_FIELDS_MAX / 4;

impl SlotGuard<'_> {
    /// Removes due fields of a hash, as many as the visit has time for. The hash was seen under the lock that
    /// is still held.
    pub(super) fn sweep_hash(&mut self, place: Place, word: Word, fields_left: &mut usize) {
        let (slot, hasher, now) = (self.slot_of_place(place), &self.keyspace().hasher, self.ctx.now_ms);
        let entry = word.entry();
        let key_hash = hasher.hash(entry.key());
        let found = slot.find_word(key_hash, word).expect("it was seen under the same lock");
        let before = entry.times();
        self.preserve(place, entry);
        let mut hash = entry.collection_mut::<Hash>();
        let due = hash.expired(now);
        if hash.len(now) == 0 && *fields_left > 0 {
            drop(hash);
            *fields_left = fields_left.saturating_sub(WHOLE);
            self.fields_expired(place, entry.key(), due, true);
            self.log_removal(place, entry.key());
            return self.unasked(|guard| guard.remove_found(place, found));
        }
        let mut names: Vec<Vec<u8>> = Vec::new();
        let is_logged = self.is_logged();
        let (removed, cut) = hash.purge(hasher, now, *fields_left, |name| {
            if is_logged {
                names.push(name.to_vec());
            }
        });
        debug_assert!(!hash.is_empty(), "a hash that has no live field is removed as a whole");
        drop(hash);
        self.ctx.discard_cut(cut);
        *fields_left -= removed;
        self.unasked(|guard| add(&guard.ctx.tally.dirty, removed as u64));
        let found = self.update_times(place, found, before);
        slot.remember(found);
        if !names.is_empty() {
            let args = [&b"HDEL"[..], entry.key()].into_iter().chain(names.iter().map(Vec::as_slice));
            self.log_unasked(place, args.collect::<Vec<_>>().into_iter(), removed as u64);
        }
        if removed > 0 {
            self.fields_expired(place, entry.key(), removed as u64, false);
            self.notify_if_there(place, entry.key());
        }
    }

    /// Counts fields that have expired; `all`: the hash goes with them.
    #[cold]
    pub(crate) fn fields_expired(&mut self, place: Place, key: &[u8], count: u64, all: bool) {
        add(&self.ctx.tally.expired_fields, count);
        self.emit(place, key, if all { What::AllFieldsExpired } else { What::FieldsExpired });
    }

    /// Notifies the watchers and waiters of the key.
    pub(crate) fn notify_if_there(&mut self, place: Place, key: &[u8]) {
        let slot = self.slot_at(place).1;
        if SlotSubscribers::is_there(&slot.subscribers) {
            self.notify(slot, place, key, Change::Written, Concerns::Everybody);
        }
    }
}
