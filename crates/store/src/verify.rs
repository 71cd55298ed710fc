//! A walk over the whole keyspace that asserts the invariants between its parts. Tests call it after any
//! sequence of commands.

use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

use crate::SLOTS;
use crate::apart::Apart;
use crate::guard::SlotGuard;
use crate::key::{Place, slot_of};
use crate::keyspace::Db;
use crate::notify::subscribers::SlotSubscribers;
use crate::table::directory::{DEPTH_MAX, prefix};
use crate::table::segment::{Segment, tag};
use crate::table::slot::Slot;

impl SlotGuard<'_> {
    /// Panics if an invariant is broken: counters, bits, due times, every word's place. Needs everything
    /// held, and takes time in proportion to it.
    pub fn verify(&self) {
        assert!(self.holds_all(), "verifying needs everything");
        let keyspace = self.keyspace();
        let (mut watches, mut waits, mut all) = (0, 0, Apart::default());
        for (number, db) in
            (0..keyspace.all_databases()).filter_map(|at| keyspace.db_if_used(at).map(|db| (at, db)))
        {
            let (mut keys, mut timed, mut hashes) = (0, 0, 0);
            let mut apart = Apart::default();
            for slot in 0..SLOTS {
                for (_, segment) in db.slots[slot].segments() {
                    for bucket in segment.occupied() {
                        let of_entry = segment.word(bucket).entry().apart();
                        (apart.shared, apart.holes) =
                            (apart.shared + of_entry.shared, apart.holes + of_entry.holes);
                    }
                }
                hashes += self.verify_slot(db, Place::new(number as u32, slot as u16));
                keys += db.slots[slot].len();
                timed += db.slots[slot].timed_len();
                SlotSubscribers::if_any(&db.slots[slot].subscribers, |subscribers| {
                    watches += subscribers.watchers.len();
                    waits += subscribers.waiters.len();
                    subscribers.waiters.verify();
                });
            }
            assert_eq!(db.apart.get(), apart, "what database {number} shares");
            (all.shared, all.holes) = (all.shared + apart.shared, all.holes + apart.holes);
            assert_eq!(keyspace.len(self.ctx, number), keys, "keys of database {number}");
            assert_eq!(keyspace.timed_len(self.ctx, number), timed, "timed keys of database {number}");
            assert_eq!(keyspace.timed_hashes(self.ctx, number), hashes, "timed hashes of database {number}");
        }
        assert_eq!(keyspace.apart(), all, "what all databases share");
        assert_eq!(keyspace.watches.load(Relaxed), watches, "watches");
        assert_eq!(keyspace.waits.load(Relaxed), waits, "waits");
    }

    /// Returns the number of hashes with timed fields.
    fn verify_slot(&self, db: &Db, place: Place) -> usize {
        let (number, slot) = (place.slot(), &db.slots[place.slot()]);
        assert_eq!(db.occupied.has(number), slot.len() > 0, "the bit of a slot with keys");
        assert_eq!(db.timed.has(number), slot.timed_len() > 0, "the bit of a slot with deadlines");
        assert_eq!(db.hashes.has(number), slot.has_timed_hashes(), "the bit of a slot with timed hashes");
        if slot.len() == 0 {
            assert!(!slot.has_tables() && !slot.has_timed_hashes(), "an empty slot has no tables");
            return 0;
        }
        let (mut keys, mut timed, mut hashes, mut from) = (0, 0, 0, 0);
        let mut seen = HashSet::new();
        for (branch, segment) in slot.segments() {
            let (found, next) = slot.segment_at(from);
            assert_eq!(found, segment, "segments follow each other");
            assert!(slot.due() <= slot.due_of(branch), "no segment is due before its slot");
            let in_segment = segment.occupied().count();
            assert_eq!(in_segment, slot.segment_len(branch), "keys of a segment");
            assert!(
                in_segment == 0 || segment.has_room(in_segment - 1),
                "probing ends at an empty bucket soon"
            );
            keys += in_segment;
            for bucket in segment.occupied() {
                self.verify_word(slot, place, from..next, (branch, segment, bucket));
                let entry = segment.word(bucket).entry();
                timed += usize::from(entry.times().own.is_some());
                hashes += usize::from(entry.times().fields.is_some());
                assert!(seen.insert(entry.key()), "a key is there once");
            }
            from = next;
        }
        assert_eq!(from, 1 << DEPTH_MAX, "segments cover all prefixes");
        assert_eq!((keys, timed), (slot.len(), slot.timed_len()), "keys and timed keys of slot {number}");
        assert!(hashes == 0 || slot.has_timed_hashes(), "timed hashes of slot {number}");
        hashes
    }

    fn verify_word(
        &self,
        slot: &Slot,
        place: Place,
        prefixes: std::ops::Range<u64>,
        (branch, segment, bucket): (usize, Segment, usize),
    ) {
        let (word, deadline) = (segment.word(bucket), segment.deadline(bucket));
        let key = word.entry().key();
        let hash = self.keyspace().hasher.hash(key);
        assert_eq!(slot_of(key) as usize, place.slot(), "a key lies in its slot");
        assert_eq!(word.tag(), tag(hash), "the tag is that of the key");
        assert!(prefixes.contains(&prefix(hash)), "the segment is that of the key");
        assert!(slot.find(hash, key).is_some_and(|found| found.entry() == word.entry()), "the key is found");
        let coarse = word.entry().times().first().map_or(0, |first| self.keyspace().coarse(first));
        assert_eq!(deadline, coarse, "the column repeats the entry's first deadline");
        assert!(deadline == 0 || slot.due_of(branch) <= deadline, "no key is due before its segment");
    }
}
