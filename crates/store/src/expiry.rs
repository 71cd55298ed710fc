//! Active expiry: removes keys whose time has passed although nobody asked for them.
//!
//! A slot knows a time before which none of its keys is due, and has a column of coarse deadlines (units of 128 ms,
//! rounded up) beside its buckets. A sweep looks at slots that have keys with a deadline, skips those that are not
//! due, and in the others reads the column, not the entries. Ten million keys with a TTL cost a sweep that finds
//! nothing 16,384 words read; sampling, as Redis does, finds keys that expire together only slowly and never all.
//!
//! A slot of many segments knows such a time for each of them, and one visit looks at a few segments only, so the
//! millions of keys of one hash tag expire in as small steps as all others.

use crate::held::Held;
use crate::key::Place;
use crate::keyspace::prefetching;
use crate::seat::add;
use crate::segment::{Segment, Word};
use crate::slot::{NEVER, Slot};
use crate::{Millis, SLOTS};

/// Most keys that one visit of a slot removes: at up to 400 ns each, when nothing is in the cache, the slot is locked
/// for 100 us.
const SWEEP_KEYS_MAX: usize = 256;

/// Most segments that one visit looks at: at about 2 us each, for 64 us.
const SWEEP_SEGMENTS_MAX: usize = 32;

/// What a sweep did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swept {
    pub removed: usize,
    /// Where to go on: the slot to look at next, or `None` when the database has been gone through.
    pub next: Option<usize>,
}

impl Held<'_> {
    /// Removes due keys from the database's slots `from..to` until `stop` says so; asks it after each slot visited.
    ///
    /// Only for who holds nothing or everything. The slot is locked while its keys are checked and removed: without
    /// that, a SET that clears the TTL could run between the look at the column and the removal, and the new value
    /// would be deleted.
    pub fn sweep(&mut self, db: usize, from: usize, to: usize, mut stop: impl FnMut() -> bool) -> Swept {
        let (mut removed, mut at) = (0, from);
        while at < to.min(SLOTS) {
            let Some(database) = self.keyspace().db_if_used(db) else { break };
            let Some(slot) = database.timed.next(at).filter(|slot| *slot < to) else { break };
            let now = self.keyspace().coarse_now(self.seat.now_ms);
            if database.slots[slot].due() > now {
                at = slot + 1;
                continue;
            }
            let place = Place::new(db as u32, slot as u16);
            let (here, complete) = self.visit(place, |held| held.sweep_slot(place, now));
            removed += here;
            at = if complete { slot + 1 } else { slot };
            if stop() {
                return Swept { removed, next: Some(at) };
            }
        }
        Swept { removed, next: None }
    }

    /// How long keys with a deadline have left on average, by about `samples` of them; `None` where there are none. Only
    /// for who holds nothing or everything.
    pub fn mean_ttl(&mut self, db: usize, samples: usize) -> Option<Millis> {
        let (mut sum, mut seen) = (0, 0);
        for _ in 0..samples {
            let random = self.seat.random();
            let timed = &self.keyspace().db_if_used(db)?.timed;
            let Some(slot) = timed.any(random) else { break };
            let place = Place::new(db as u32, slot as u16);
            let (left, count) = self.visit(place, |held| held.ttl_of_some(place, random, samples - seen));
            (sum, seen) = (sum + left, seen + count);
            if seen >= samples {
                break;
            }
        }
        sum.checked_div(seen as u128).map(|mean| mean as Millis)
    }

    /// The time that up to `samples` neighbouring keys of a slot have left, in all, and how many those are.
    fn ttl_of_some(&mut self, place: Place, random: u64, samples: usize) -> (u128, usize) {
        let (slot, now) = (self.slot_of_place(place), self.seat.now_ms);
        let left = |segment: Segment, bucket| {
            let deadline = segment.word(bucket).entry().deadline()?;
            Some(u128::from(deadline.saturating_sub(now)))
        };
        for (_, segment) in slot.segments_from(random) {
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

    /// Removes due keys of a slot; returns how many, and whether those were all.
    fn sweep_slot(&mut self, place: Place, now: u32) -> (usize, bool) {
        let slot = self.slot_of_place(place);
        let mut due = Vec::new();
        let complete = collect_due(slot, self.seat.random(), now, &mut due);
        self.remove_expired(place, &due);
        add(&self.seat.tally.expired_in_sweeps, due.len() as u64);
        (due.len(), complete)
    }

    /// Removes keys whose time has passed; they were seen in the slot under the lock that is still held.
    pub(crate) fn remove_expired(&mut self, place: Place, expired: &[Word]) {
        let slot = self.slot_of_place(place);
        for word in prefetching(expired) {
            let entry = word.entry();
            let deadline = entry.deadline().expect("whoever saw it expired saw a deadline");
            assert!(deadline <= self.seat.now_ms, "deadlines are rounded up in the column");
            let hash = self.keyspace().hasher.hash(entry.key());
            let found = slot.find_word(hash, word).expect("it was seen under the same lock");
            self.remove_found(place, found);
        }
        add(&self.seat.tally.expired, expired.len() as u64);
    }
}

/// Collects words that are due, for the caller to remove them all; `false` when there may be more. It begins with any
/// segment: always with the first one, each visit would walk past all those that earlier ones are done with.
fn collect_due(slot: &Slot, random: u64, now: u32, due: &mut Vec<Word>) -> bool {
    let (mut looked_at, mut earliest) = (0, NEVER);
    for (branch, segment) in slot.segments_from(random) {
        if slot.due_of(branch) <= now {
            if looked_at == SWEEP_SEGMENTS_MAX
                || !collect_due_in(segment, now, due, |later| slot.set_due_of(branch, later))
            {
                return false;
            }
            looked_at += 1;
        }
        earliest = earliest.min(slot.due_of(branch));
    }
    slot.set_due(earliest);
    true
}

/// The same for a segment; `set_due` is told the earliest deadline of those that are not collected.
fn collect_due_in(segment: Segment, now: u32, due: &mut Vec<Word>, set_due: impl FnOnce(u32)) -> bool {
    let mut earliest = NEVER;
    for bucket in 0..segment.buckets() {
        match segment.deadline(bucket) {
            0 => {}
            deadline if deadline > now => earliest = earliest.min(deadline),
            _ if due.len() == SWEEP_KEYS_MAX => return false,
            _ => due.push(segment.word(bucket)),
        }
    }
    set_due(earliest);
    true
}
