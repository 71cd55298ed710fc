//! Active expiry: removes keys whose deadline has passed although no client asks for them.
//!
//! A slot stores a time before which none of its keys is due, and has a column of coarse deadlines (units of
//! 64 ms, rounded up) beside its buckets. A sweep visits slots that have keys with a deadline, skips slots
//! that are not due, and reads the column of the rest, not the entries. Ten million keys with a TTL cost a
//! sweep that finds nothing 16,384 words read; sampling, as in Redis, finds keys that expire together only
//! slowly and never all.
//!
//! A slot of many segments stores such a time for each of them, and a visit reads a few segments only. So the
//! millions of keys of a hash tag expire in steps as small as all other keys.
//!
//! A hash whose fields expire has the first of their deadlines in the same column ([`fields`]). In a slot
//! without such hashes, a deadline in the column is the key's own, and the entry need not be read.

mod fields;
pub(crate) mod own;
mod times;

use crate::guard::SlotGuard;
use crate::guard::context::add;
use crate::guard::logging::Cause;
use crate::key::Place;
use crate::notify::events::What;
use crate::table::prefetch::prefetching;
use crate::table::segment::{Segment, Word};
use crate::table::slot::NEVER;
use crate::{Millis, SLOTS};

/// Keys after which a visit of a slot ends. A segment's due keys leave together, so a visit may remove up to
/// 832 more. The slot is locked while its tables change, for some 10 us; the entries are freed after that.
const SWEEP_KEYS_MAX: usize = 256;

/// If fewer than 1 / `FEW` of the keys are due, they are removed one by one; also if timed hashes are among
/// them.
const FEW: usize = 4;

/// Maximum number of segments that a visit reads: at about 2 us each, 64 us.
const SWEEP_SEGMENTS_MAX: usize = 32;

/// Fields of hashes that a visit removes: 20 us, or 200 if each of them is in another page that must be
/// copied first.
const SWEEP_FIELDS_MAX: usize = 64;

/// The result of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swept {
    pub removed: usize,
    /// The slot to continue from, or `None` at the end of the database.
    pub next: Option<usize>,
}

impl SlotGuard<'_> {
    /// Removes due keys from the database's slots `from..to` until `stop` returns true; `stop` is called
    /// after each slot visited.
    ///
    /// The caller holds nothing or everything. The slot is locked while its keys are checked and removed.
    /// Without that, a SET that clears the TTL could run between the read of the column and the removal, and
    /// the new value would be deleted.
    pub fn sweep(&mut self, db: usize, from: usize, to: usize, mut stop: impl FnMut() -> bool) -> Swept {
        let (mut removed, mut at) = (0, from);
        if self.ctx.hides_expired {
            return Swept { removed, next: None };
        }
        let to = to.min(SLOTS);
        while at < to {
            let Some(database) = self.keyspace().db_if_used(db) else { break };
            let timed = [&database.timed, &database.hashes].map(|bits| bits.next(at).unwrap_or(SLOTS));
            let slot = timed[0].min(timed[1]);
            if slot >= to {
                break;
            }
            let now = self.keyspace().coarse_now(self.ctx.now_ms);
            if database.slots[slot].due() > now || self.keyspace().spared.has(slot) {
                at = slot + 1;
                continue;
            }
            let place = Place::new(db as u32, slot as u16);
            let (due, complete) = self.visit(place, |guard| guard.sweep_slot(place, now));
            removed += due.len();
            self.free_expired(place, &due);
            at = if complete { slot + 1 } else { slot };
            if stop() {
                return Swept { removed, next: Some(at) };
            }
        }
        Swept { removed, next: None }
    }

    /// The mean time to live of keys with a deadline, from about `samples` of them; `None` if there are none.
    /// The caller holds nothing or everything.
    pub fn mean_ttl(&mut self, db: usize, samples: usize) -> Option<Millis> {
        let (mut sum, mut seen) = (0, 0);
        for _ in 0..samples {
            let random = self.ctx.random();
            let timed = &self.keyspace().db_if_used(db)?.timed;
            let Some(slot) = timed.any(random) else { break };
            let place = Place::new(db as u32, slot as u16);
            let (left, count) = self.visit(place, |guard| guard.ttl_of_some(place, random, samples - seen));
            (sum, seen) = (sum + left, seen + count);
            if seen >= samples {
                break;
            }
        }
        sum.checked_div(seen as u128).map(|mean| mean as Millis)
    }

    /// The total time to live of up to `samples` neighbouring keys of a slot, and their number.
    fn ttl_of_some(&mut self, place: Place, random: u64, samples: usize) -> (u128, usize) {
        let (slot, now) = (self.slot_of_place(place), self.ctx.now_ms);
        let left = |segment: Segment, bucket| {
            let deadline = segment.word(bucket).entry().deadline()?;
            Some(u128::from(deadline.saturating_sub(now)))
        };
        let timed = slot.segments_from(random).filter(|(branch, _)| slot.due_of(*branch) != NEVER);
        for (_, segment) in timed {
            let found: Vec<u128> = segment
                .occupied_from(random as usize)
                .filter(|bucket| segment.deadline(*bucket) != 0)
                .filter_map(|bucket| left(segment, bucket))
                .take(samples)
                .collect();
            if !found.is_empty() {
                return (found.iter().sum(), found.len());
            }
        }
        (0, 0)
    }

    /// Removes due keys from a slot; returns them, to be freed after the slot is unlocked, and whether no due
    /// key is left. It starts at a random segment. If it always started at the first segment, each visit
    /// would walk past all segments that earlier visits have finished.
    fn sweep_slot(&mut self, place: Place, now: u32) -> (Vec<Word>, bool) {
        let slot = self.slot_of_place(place);
        let (mut removed, mut looked_at, mut earliest) = (Vec::new(), 0, NEVER);
        let mut fields_left = SWEEP_FIELDS_MAX;
        for (branch, segment) in slot.segments_from(self.ctx.random()) {
            if slot.due_of(branch) <= now {
                if looked_at == SWEEP_SEGMENTS_MAX || removed.len() >= SWEEP_KEYS_MAX || fields_left == 0 {
                    return (removed, false);
                }
                looked_at += 1;
                self.sweep_segment(place, (branch, segment), now, &mut removed, &mut fields_left);
                if slot.len() == 0 {
                    return (removed, true);
                }
            }
            earliest = earliest.min(slot.due_of(branch));
        }
        slot.set_due(earliest);
        // The fields still due are those for which this visit had no time.
        (removed, earliest > now)
    }

    fn sweep_segment(
        &mut self,
        place: Place,
        (branch, segment): (usize, Segment),
        now: u32,
        removed: &mut Vec<Word>,
        fields_left: &mut usize,
    ) {
        let (slot, first, mut earliest) = (self.slot_of_place(place), removed.len(), NEVER);
        let (column_suffices, mut hashes) = (!slot.has_timed_hashes(), Vec::new());
        for bucket in segment.occupied() {
            match segment.deadline(bucket) {
                0 => {}
                deadline if deadline <= now => {
                    let word = segment.word(bucket);
                    let is_key = column_suffices || self.is_expired(word);
                    if is_key { &mut *removed } else { &mut hashes }.push(word);
                }
                later => earliest = earliest.min(later),
            }
        }
        slot.set_due_of(branch, earliest);
        let due = &removed[first..];
        if due.len() * FEW < slot.segment_len(branch) || !column_suffices {
            self.take_out(place, due);
        } else {
            // A table of the keys that stay is built: no gap is closed, and the table does not shrink step by
            // step.
            self.count_removed(place, due.len());
            slot.remove_due(branch, segment, now, due.len(), &mut self.ctx.retired);
            self.clear_bits_if_empty(place);
        }
        due.iter().for_each(|word| self.report_expired(place, *word));
        self.unasked(|guard| guard.notify_removed(place, due));
        add(&self.ctx.tally.expired_in_sweeps, due.len() as u64);
        hashes.into_iter().for_each(|word| self.sweep_hash(place, word, fields_left));
    }

    fn is_expired(&self, word: Word) -> bool {
        word.entry().deadline().is_some_and(|deadline| deadline <= self.ctx.now_ms)
    }

    /// Removes keys whose deadline has passed; they were seen in the slot under the lock that is still held.
    pub(crate) fn remove_expired(&mut self, place: Place, expired: &[Word]) {
        self.take_out(place, expired);
        expired.iter().for_each(|word| self.report_expired(place, *word));
        self.unasked(|guard| guard.notify_removed(place, expired));
        self.free_expired(place, expired);
    }

    /// Reports an expired key to the listener and the journal.
    fn report_expired(&mut self, place: Place, word: Word) {
        self.emit(place, word.entry().key(), What::Expired);
        self.log_removal(place, word.entry().key(), Cause::Expired);
    }

    /// Takes entries out of their tables; they were seen in the slot under the lock that is still held.
    pub(crate) fn take_out(&mut self, place: Place, expired: &[Word]) {
        let slot = self.slot_of_place(place);
        for word in prefetching(expired) {
            let hash = self.keyspace().hasher.hash(word.entry().key());
            let found = slot.find_word(hash, word).expect("it was seen under the same lock");
            self.detach(place, found);
        }
    }

    /// Frees entries that are out of their tables.
    fn free_expired(&mut self, place: Place, expired: &[Word]) {
        for word in prefetching(expired) {
            let deadline = word.entry().deadline().expect("an expired entry has a deadline");
            assert!(deadline <= self.ctx.now_ms, "deadlines are rounded up in the column");
            self.free(place, word.entry());
        }
        add(&self.ctx.tally.expired, expired.len() as u64);
    }
}
