//! Fields of hashes that expire by themselves.
//!
//! A hash with a million due fields takes many visits, and its slot is unlocked between them; meanwhile the
//! fields are hidden. A hash whose fields are all due is removed as a whole, in a single step. The journal
//! has the names of its fields, as in Valkey, if they are few; the key is removed in any case.

use super::SWEEP_FIELDS_MAX;
use crate::guard::context::add;
use crate::guard::logging::Cause;
use crate::guard::{Concerns, SlotGuard};
use crate::key::Place;
use crate::notify::events::{Fields, What};
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
            let names = match self.wants_names() && due as usize <= SWEEP_FIELDS_MAX {
                true => hash.fields().map(|field| field.name.into()).collect(),
                false => Fields::default(),
            };
            drop(hash);
            *fields_left = fields_left.saturating_sub(WHOLE);
            self.count_expired_fields(due);
            self.log_fields_removed(place, entry.key(), &names);
            self.log_removal(place, entry.key(), Cause::Expired);
            self.unasked(|guard| add(&guard.ctx.tally.dirty, names.len() as u64));
            self.emit_fields(place, entry.key(), What::AllFieldsExpired, names);
            return self.unasked(|guard| guard.remove_found(place, found));
        }
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let wants_names = self.wants_names();
        let (removed, cut) = hash.purge(hasher, now, *fields_left, |name| {
            if wants_names {
                names.push(name.into());
            }
        });
        debug_assert!(!hash.is_empty(), "a hash that has no live field is removed as a whole");
        drop(hash);
        self.ctx.discard_cut(cut);
        *fields_left -= removed;
        self.unasked(|guard| add(&guard.ctx.tally.dirty, removed as u64));
        let found = self.update_times(place, found, before);
        slot.remember(found);
        self.log_fields_removed(place, entry.key(), &names);
        if removed > 0 {
            self.count_expired_fields(removed as u64);
            self.emit_fields(place, entry.key(), What::FieldsExpired, names.into());
            self.notify_if_there(place, entry.key());
        }
    }

    /// Returns true if the journal or a listener needs the names of expired fields.
    fn wants_names(&self) -> bool {
        self.is_logged() || self.keyspace().events.are_fields_wanted()
    }

    /// Logs that these fields are removed, if there are any.
    fn log_fields_removed(&mut self, place: Place, key: &[u8], names: &[Box<[u8]>]) {
        if !names.is_empty() {
            let args = [&b"HDEL"[..], key].into_iter().chain(names.iter().map(|name| &**name));
            self.log_unasked(place, args.collect::<Vec<_>>().into_iter(), names.len() as u64);
        }
    }

    /// Counts fields that have expired.
    #[cold]
    pub fn count_expired_fields(&mut self, count: u64) {
        add(&self.ctx.tally.expired_fields, count);
    }

    /// Notifies the watchers and waiters of the key.
    pub(crate) fn notify_if_there(&mut self, place: Place, key: &[u8]) {
        let slot = self.slot_at(place).1;
        if SlotSubscribers::is_there(&slot.subscribers) {
            self.notify(slot, place, key, Change::Written, Concerns::Everybody);
        }
    }
}
