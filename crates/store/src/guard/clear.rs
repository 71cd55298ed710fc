//! Removal of all keys of a slot that no command has asked for: keys that are at another server by now.

use super::SlotGuard;
use crate::key::Place;
use crate::table::prefetch::prefetching;
use crate::table::segment::Word;

impl SlotGuard<'_> {
    /// Removes about `max` keys of a slot, in the journal as well, and returns their number. The slot is
    /// empty if it is 0. The caller holds nothing or everything.
    pub fn clear_some(&mut self, db: usize, slot: u16, max: usize) -> usize {
        if self.keyspace().db_if_used(db).is_none() {
            return 0;
        }
        let place = Place::new(db as u32, slot);
        self.visit(place, |guard| {
            let mut words: Vec<Word> = Vec::new();
            for (_, segment) in guard.slot_of_place(place).segments_from(0) {
                words.extend(segment.occupied().map(|bucket| segment.word(bucket)));
                if words.len() >= max {
                    words.truncate(max);
                    break;
                }
            }
            guard.take_out(place, &words);
            for word in &words {
                guard.log_unasked(place, [&b"UNLINK"[..], word.entry().key()].into_iter(), 1);
            }
            guard.unasked(|guard| guard.notify_removed(place, &words));
            prefetching(&words).for_each(|word| guard.free(place, word.entry()));
            words.len()
        })
    }
}
