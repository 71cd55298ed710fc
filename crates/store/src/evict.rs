//! Eviction: the choice of keys to remove when memory is short.
//!
//! As in Redis, keys are sampled, and the best candidates are kept in a small pool from call to call, which
//! comes close to exact LRU or LFU at five samples. There are two differences. A candidate is identified by
//! its bucket's word, not by a copy of its key. Each sample comes from a single slot, locked for a moment.

use crate::Millis;
use crate::guard::context::add;
use crate::notify::events::What;
pub use crate::table::access::{idle_ms, lfu_counter, lfu_new, lfu_touched, lru_clock};
use crate::table::entry::EntryPtr;

use crate::guard::SlotGuard;
use crate::guard::logging::Cause;
use crate::key::Place;
use crate::table::segment::{Segment, Word};
use crate::table::slot::NEVER;

/// Which keys may go, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Only keys with a deadline.
    pub volatile_only: bool,
    pub order: Order,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Least recently used first.
    Lru,
    /// Least frequently used first.
    Lfu,
    /// Nearest deadline first.
    Ttl,
    Random,
}

/// Candidates kept from call to call.
const POOL: usize = 16;

/// Slots sampled before a database is taken to have no candidates.
const TRIES: usize = 8;

/// Segments searched for a sample: most yield a key, but segments with timed hashes may yield none.
const SEGMENTS_MAX: usize = 32;

/// The best candidates so far. Each thread that evicts has a pool.
#[derive(Default)]
pub struct Pool {
    /// The policy of the scores; scores of another policy are meaningless.
    policy: Option<Policy>,
    /// Ascending by score.
    best: Vec<Candidate>,
}

struct Candidate {
    place: Place,
    hash: u64,
    word: Word,
    /// The higher, the sooner the key goes.
    score: u64,
}

impl SlotGuard<'_> {
    /// Removes a key by `policy`, having sampled about `samples` keys of each database; returns false if no
    /// key qualifies. The caller holds nothing or everything.
    pub fn evict(&mut self, policy: Policy, samples: usize, decay_minutes: u32, pool: &mut Pool) -> bool {
        if pool.policy != Some(policy) || policy.order == Order::Random {
            *pool = Pool { policy: Some(policy), best: Vec::new() };
        }
        for _ in 0..TRIES {
            for db in 0..self.keyspace().databases() {
                self.sample(db, policy, samples.max(1), decay_minutes, pool);
            }
            while let Some(candidate) = pool.best.pop() {
                if self.evict_candidate(&candidate, policy, decay_minutes) {
                    add(&self.ctx.tally.evicted, 1);
                    return true;
                }
            }
        }
        false
    }

    /// Removes a candidate if it still exists and has not been used since it was chosen.
    fn evict_candidate(&mut self, candidate: &Candidate, policy: Policy, decay_minutes: u32) -> bool {
        let place = candidate.place;
        if self.keyspace().db_if_used(place.db()).is_none() {
            return false;
        }
        self.visit(place, |guard| {
            let slot = guard.slot_of_place(place);
            let Some(found) = slot.find_word(candidate.hash, candidate.word) else { return false };
            let entry = found.entry();
            let unused = policy.order == Order::Random
                || score(entry, policy.order, guard.ctx.now_ms, decay_minutes) >= candidate.score;
            let is_spared = guard.keyspace().spared.has(place.slot());
            let goes = !is_spared && unused && (entry.deadline().is_some() || !policy.volatile_only);
            if goes {
                guard.emit(place, entry.key(), What::Evicted);
                guard.log_removal(place, entry.key(), Cause::Evicted);
                guard.unasked(|guard| guard.remove_found(place, found));
            }
            goes
        })
    }

    fn sample(&mut self, db: usize, policy: Policy, samples: usize, decay_minutes: u32, pool: &mut Pool) {
        let mut seen = 0;
        for _ in 0..samples {
            let random = self.ctx.random();
            let Some(database) = self.keyspace().db_if_used(db) else { return };
            let bits = if policy.volatile_only { &database.timed } else { &database.occupied };
            let Some(slot) = bits.any(random) else { return };
            if self.keyspace().spared.has(slot) {
                continue;
            }
            let place = Place::new(db as u32, slot as u16);
            seen += self.visit(place, |guard| {
                guard.sample_slot(place, policy, samples.saturating_sub(seen), decay_minutes, pool)
            });
            if seen >= samples {
                return;
            }
        }
    }

    /// Samples up to `samples` neighbouring keys of a segment: neighbours have nothing in common but their
    /// hash. Returns the number of keys seen.
    fn sample_slot(
        &mut self,
        place: Place,
        policy: Policy,
        samples: usize,
        decay_minutes: u32,
        pool: &mut Pool,
    ) -> usize {
        let (random, now) = (self.ctx.random(), self.ctx.now_ms);
        let slot = self.slot_of_place(place);
        // A deadline in the column may be that of a hash's field; only the entry tells.
        let column_suffices = !slot.has_timed_hashes();
        let qualifies = |segment: Segment, bucket: usize| {
            let word = segment.word(bucket);
            let is_timed =
                || segment.deadline(bucket) != 0 && (column_suffices || word.entry().deadline().is_some());
            word.0 != 0 && (!policy.volatile_only || is_timed())
        };
        let mut looked_at = 0;
        for (branch, segment) in slot.segments_from(random) {
            if policy.volatile_only && slot.due_of(branch) == NEVER {
                continue;
            }
            if looked_at == SEGMENTS_MAX {
                break;
            }
            looked_at += 1;
            let mut seen = 0;
            for word in neighbours(segment, random as usize, samples, &qualifies) {
                let score = match policy.order {
                    Order::Random => self.ctx.random(),
                    order => score(word.entry(), order, now, decay_minutes),
                };
                pool.offer(score, word, || (place, self.keyspace().hasher.hash(word.entry().key())));
                seen += 1;
            }
            if seen > 0 {
                return seen;
            }
            if policy.volatile_only && column_suffices {
                // Its keys with a deadline are gone. This spares the next call, and sweeps, the search.
                slot.set_due_of(branch, NEVER);
            }
        }
        0
    }
}

impl Pool {
    /// Keeps the candidate if it is among the best; the best is last.
    fn offer(&mut self, score: u64, word: Word, origin: impl FnOnce() -> (Place, u64)) {
        let at = self.best.partition_point(|other| other.score < score);
        let full = self.best.len() == POOL;
        if full && at == 0 || self.best.iter().any(|other| other.word == word) {
            return;
        }
        let (place, hash) = origin();
        self.best.insert(at, Candidate { place, hash, word, score });
        if full {
            self.best.remove(0);
        }
    }
}

/// Some words of a segment, near a bucket chosen by `random`. It takes the words in the length of a cache
/// line, if there are any: going on to the next words would prefer words after a gap, and eviction makes
/// gaps.
fn neighbours(
    segment: Segment,
    random: usize,
    samples: usize,
    qualifies: &impl Fn(Segment, usize) -> bool,
) -> impl Iterator<Item = Word> {
    let buckets = segment.buckets();
    let qualifies = move |bucket: &usize| qualifies(segment, *bucket);
    let near = (0..buckets.min(8)).map(move |step| (random % buckets + step) % buckets).filter(qualifies);
    let far = segment.occupied_from(random).filter(qualifies);
    let far_needed = if near.clone().next().is_none() { samples } else { 0 };
    near.chain(far.take(far_needed)).map(move |bucket| segment.word(bucket))
}

fn score(entry: EntryPtr, order: Order, now: Millis, decay_minutes: u32) -> u64 {
    match order {
        Order::Lru => idle_ms(entry.access(), now),
        Order::Lfu => 255 - u64::from(lfu_counter(entry.access(), now, decay_minutes)),
        Order::Ttl => u64::MAX - entry.deadline().unwrap_or(u64::MAX),
        Order::Random => 0,
    }
}
