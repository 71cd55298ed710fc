//! Deadlines in tables: a column of coarse deadlines, and their counts.

use crate::guard::SlotGuard;
use crate::guard::context::add_signed;
use crate::key::Place;
use crate::keyspace::Db;
use crate::table::entry::Times;
use crate::table::slot::{KeyPosition, Slot};

impl SlotGuard<'_> {
    /// Updates the table after the deadlines of the entry found have changed from `before`; returns the
    /// entry's new position.
    #[inline]
    pub(crate) fn update_times(&mut self, place: Place, found: KeyPosition, before: Times) -> KeyPosition {
        let after = found.entry().times();
        if before == after { found } else { self.change_times(place, found, before, after) }
    }

    fn change_times(&mut self, place: Place, found: KeyPosition, before: Times, after: Times) -> KeyPosition {
        let (db, slot) = self.slot_at(place);
        let due = after.first().map_or(0, |first| self.keyspace().coarse(first));
        self.count_times(db, slot, place, before, after);
        if after.own.is_some() && after.own != before.own {
            self.record_own(place, found.entry().key());
        }
        let found = if due != 0 { slot.make_timed(found, &mut self.ctx.retired) } else { found };
        slot.set_deadline(found, due);
        found
    }

    /// Counts deadlines that come or go with an entry.
    pub(crate) fn count_times(&mut self, db: &Db, slot: &Slot, place: Place, before: Times, after: Times) {
        let own = i32::from(after.own.is_some()) - i32::from(before.own.is_some());
        let hashes = i16::from(after.fields.is_some()) - i16::from(before.fields.is_some());
        if own == 0 && hashes == 0 {
            return;
        }
        let had = (slot.timed_len() > 0, slot.has_timed_hashes());
        slot.count_timed(own, hashes);
        let has = (slot.timed_len() > 0, slot.has_timed_hashes());
        for (bits, had, has) in [(&db.timed, had.0, has.0), (&db.hashes, had.1, has.1)] {
            match (had, has) {
                (false, true) => bits.set(place.slot()),
                (true, false) => bits.clear(place.slot()),
                _ => {}
            }
        }
        let tally = &self.ctx.tally.dbs[db.id];
        add_signed(&tally.timed, own.into());
        add_signed(&tally.hashes, hashes.into());
    }

    /// Counts keys with deadlines of their own that are about to be removed from a slot.
    pub(super) fn count_removed(&mut self, place: Place, keys: usize) {
        let (db, slot) = self.slot_at(place);
        add_signed(&self.ctx.tally.dbs[db.id].keys, -(keys as i64));
        add_signed(&self.ctx.tally.dbs[db.id].timed, -(keys as i64));
        slot.count_timed(-i32::try_from(keys).expect("a segment has fewer keys"), 0);
        if slot.timed_len() == 0 {
            db.timed.clear(place.slot());
        }
    }

    /// Clears the slot's bits if it has become empty.
    pub(crate) fn clear_bits_if_empty(&mut self, place: Place) {
        let (db, slot) = self.slot_at(place);
        if slot.len() == 0 {
            db.occupied.clear(place.slot());
            // If the count of timed hashes was saturated, only an empty slot shows that there are none.
            if db.hashes.has(place.slot()) {
                db.hashes.clear(place.slot());
            }
        }
    }
}
