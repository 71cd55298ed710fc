//! Histories of concurrent operations of several clients, and a check that they could have happened one after
//! the other.
//!
//! A history is *linearizable* if each operation can be given a moment between its call and its reply so
//! that, in the order of these moments, each operation saw the state that a single copy of the data would
//! have shown. The search for such an order is that of Wing and Gong (1993) with Lowe's cache (2017) of the
//! combinations tried: the set of operations done, and the resulting state. Keys are independent of each
//! other, so each key has its own history.
//!
//! An operation whose reply was lost may have taken effect at any moment after its call, or never.

use std::collections::{BTreeMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// An operation on a number that may be absent, with its observed result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Set(i64),
    Get(Option<i64>),
    /// The new number, and the observed previous number.
    Swap(i64, Option<i64>),
    /// The increment, and the observed sum.
    Add(i64, i64),
    /// Whether the number was observed to be present.
    Delete(bool),
}

impl Op {
    /// Returns the state after the operation; `None` if its observed result contradicts `state`. A lost
    /// operation observed nothing.
    fn step(self, state: Option<i64>, is_lost: bool) -> Option<Option<i64>> {
        let (next, has_seen) = match self {
            Op::Set(number) => (Some(number), true),
            Op::Get(seen) => (state, seen == state),
            Op::Swap(number, seen) => (Some(number), seen == state),
            Op::Add(number, sum) => {
                let next = state.unwrap_or(0).wrapping_add(number);
                (Some(next), next == sum)
            }
            Op::Delete(was_there) => (None, was_there == state.is_some()),
        };
        (has_seen || is_lost).then_some(next)
    }
}

/// An operation with the moments of its call and of its reply, if it had a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub called: u64,
    pub replied: Option<u64>,
    pub op: Op,
}

/// Records the operations of clients. Moments are numbers drawn in sequence.
#[derive(Default)]
pub struct Recorder {
    moment: AtomicU64,
    keys: Mutex<BTreeMap<u64, Vec<Entry>>>,
}

impl Recorder {
    /// Returns the moment before an operation is called.
    pub fn begin(&self) -> u64 {
        self.moment.fetch_add(1, SeqCst)
    }

    /// Records an operation that has been replied to.
    pub fn end(&self, called: u64, key: u64, op: Op) {
        let replied = Some(self.moment.fetch_add(1, SeqCst));
        self.add(key, Entry { called, replied, op });
    }

    /// Records an operation that has been called and whose effect is unknown.
    pub fn lost(&self, called: u64, key: u64, op: Op) {
        self.add(key, Entry { called, replied: None, op });
    }

    fn add(&self, key: u64, entry: Entry) {
        self.keys.lock().expect("who records does not panic").entry(key).or_default().push(entry);
    }
}

/// Panics, with the operations that do not fit, unless the history of each key is linearizable. All keys are
/// absent at first.
#[track_caller]
pub fn assert_linearizable(recorder: Recorder) {
    for (key, entries) in recorder.keys.into_inner().expect("who records does not panic") {
        if let Err(stuck) = check(&entries) {
            panic!("no order explains what was seen of key {key}; furthest, all but these: {stuck:#?}");
        }
    }
}

/// Checks that an order exists. The error holds the first operations (by their calls) that could not be done
/// when the search had done the most.
pub fn check(entries: &[Entry]) -> Result<(), Vec<Entry>> {
    const SHOWN: usize = 12;
    let furthest = match Search::new(entries).run() {
        Ok(()) => return Ok(()),
        Err(furthest) => furthest,
    };
    let mut left: Vec<Entry> =
        entries.iter().zip(furthest).filter(|(_, is_done)| !is_done).map(|(entry, _)| *entry).collect();
    left.sort_by_key(|entry| entry.called);
    left.truncate(SHOWN);
    Err(left)
}

/// A call or a reply, in a linked list from which the search removes the operations that it has done.
#[derive(Clone, Copy)]
struct Event {
    /// Index of the operation.
    entry: usize,
    is_call: bool,
    before: usize,
    after: usize,
}

/// Both ends of the list: the predecessor of the first event and the successor of the last event.
const END: usize = 0;

struct Search<'a> {
    entries: &'a [Entry],
    /// The first element is a sentinel for both ends of the list.
    events: Vec<Event>,
    /// For each operation, the list positions of its call and its reply.
    places: Vec<(usize, Option<usize>)>,
    done: Vec<bool>,
    /// Operations with a reply that are not done yet.
    replied_left: usize,
}

impl Search<'_> {
    fn new(entries: &[Entry]) -> Search<'_> {
        let mut moments: Vec<(u64, usize, bool)> = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            moments.push((entry.called, index, true));
            moments.extend(entry.replied.map(|replied| (replied, index, false)));
        }
        moments.sort_unstable();
        let count = moments.len();
        let mut events = vec![Event { entry: 0, is_call: false, before: count, after: 1 % (count + 1) }];
        let mut places = vec![(END, None); entries.len()];
        for (at, (_, entry, is_call)) in moments.into_iter().enumerate() {
            let at = at + 1;
            events.push(Event { entry, is_call, before: at - 1, after: (at + 1) % (count + 1) });
            if is_call {
                places[entry].0 = at;
            } else {
                places[entry].1 = Some(at);
            }
        }
        let replied_left = entries.iter().filter(|entry| entry.replied.is_some()).count();
        Search { entries, events, places, done: vec![false; entries.len()], replied_left }
    }

    /// The error holds the operations done when the search had done the most.
    fn run(mut self) -> Result<(), Vec<bool>> {
        let (mut tried, mut path) = (HashSet::new(), Vec::new());
        let (mut furthest, mut least_left) = (self.done.clone(), self.replied_left);
        let (mut state, mut at) = (None, self.events[END].after);
        while self.replied_left > 0 {
            let event = self.events[at];
            let is_end = at == END || !event.is_call;
            if is_end {
                // Later operations must come after the operation of this reply, which is not done: backtrack.
                let Some((entry, before)) = path.pop() else { return Err(furthest) };
                self.put_back(entry);
                state = before;
                at = self.events[self.places[entry].0].after;
                continue;
            }
            let entry = event.entry;
            let next = self.entries[entry].op.step(state, self.entries[entry].replied.is_none());
            if let Some(next) = next {
                self.done[entry] = true;
                if tried.insert((self.bits(), next)) {
                    path.push((entry, state));
                    state = next;
                    self.take_out(entry);
                    if self.replied_left < least_left {
                        (furthest, least_left) = (self.done.clone(), self.replied_left);
                    }
                    at = self.events[END].after;
                    continue;
                }
                self.done[entry] = false;
            }
            at = event.after;
        }
        Ok(())
    }

    fn bits(&self) -> Vec<u64> {
        let word = |chunk: &[bool]| chunk.iter().fold(0, |word, is_done| word << 1 | u64::from(*is_done));
        self.done.chunks(64).map(word).collect()
    }

    fn take_out(&mut self, entry: usize) {
        let (call, reply) = self.places[entry];
        for at in [Some(call), reply].into_iter().flatten() {
            let Event { before, after, .. } = self.events[at];
            self.events[before].after = after;
            self.events[after].before = before;
        }
        self.replied_left -= usize::from(reply.is_some());
    }

    /// Called in the reverse order of `take_out`.
    fn put_back(&mut self, entry: usize) {
        let (call, reply) = self.places[entry];
        for at in [reply, Some(call)].into_iter().flatten() {
            let Event { before, after, .. } = self.events[at];
            self.events[before].after = at;
            self.events[after].before = at;
        }
        self.done[entry] = false;
        self.replied_left += usize::from(reply.is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    fn entry(called: u64, replied: u64, op: Op) -> Entry {
        Entry { called, replied: Some(replied), op }
    }

    fn lost(called: u64, op: Op) -> Entry {
        Entry { called, replied: None, op }
    }

    #[test]
    fn sequential_histories_are_linearizable() {
        let seen = |number| entry(3, 4, Op::Get(number));
        let set = entry(1, 2, Op::Set(7));
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[set, seen(Some(7))]), Ok(()));
        assert_eq!(check(&[set, seen(None)]), Err(vec![seen(None)]), "an acknowledged write was lost");
        assert_eq!(check(&[set, seen(Some(8))]), Err(vec![seen(Some(8))]), "nobody wrote that");
    }

    #[test]
    fn concurrent_operations_may_take_either_order() {
        let set = entry(1, 6, Op::Set(7));
        let (early, late) = (entry(2, 3, Op::Get(None)), entry(4, 5, Op::Get(Some(7))));
        assert_eq!(check(&[set, early, late]), Ok(()));
        let (early, late) = (entry(2, 3, Op::Get(Some(7))), entry(4, 5, Op::Get(None)));
        assert!(check(&[set, early, late]).is_err(), "what was seen is gone again");
        let sums = |one, other| [entry(1, 4, Op::Add(1, one)), entry(2, 3, Op::Add(1, other))];
        assert_eq!(check(&sums(1, 2)), Ok(()));
        assert_eq!(check(&sums(2, 1)), Ok(()));
        assert!(check(&sums(1, 1)).is_err(), "one of the two is lost");
        let swaps = [entry(1, 4, Op::Swap(5, Some(6))), entry(2, 3, Op::Swap(6, None))];
        assert_eq!(check(&swaps), Ok(()));
        assert!(check(&[swaps[0], swaps[1], entry(5, 6, Op::Get(Some(6)))]).is_err());
        let deletes = [entry(1, 9, Op::Delete(true)), entry(2, 8, Op::Delete(true)), entry(3, 7, Op::Set(1))];
        assert!(check(&deletes).is_err(), "both have taken the same");
    }

    #[test]
    fn lost_replies_may_or_may_not_have_run() {
        let (set, read) = (lost(1, Op::Set(7)), |number| entry(5, 6, Op::Get(number)));
        assert_eq!(check(&[set, read(None)]), Ok(()));
        assert_eq!(check(&[set, read(Some(7))]), Ok(()));
        assert_eq!(check(&[set, read(None), entry(7, 8, Op::Get(Some(7)))]), Ok(()), "it came late");
        assert!(check(&[set, read(Some(7)), entry(7, 8, Op::Get(None))]).is_err());
        assert!(check(&[lost(7, Op::Set(7)), read(Some(7))]).is_err(), "before it was called");
    }

    /// Histories of overlapping operations on a single copy are found to be linearizable. With one reply
    /// changed to a number that no operation can have left, they are not.
    #[test]
    fn overlapping_random_histories_are_linearizable() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let (mut state, mut entries, mut moment) = (None, Vec::new(), 100);
            for _ in 0..400 {
                let number = random.below(10) as i64;
                let op = match random.below(5) {
                    0 => Op::Set(number),
                    1 => Op::Get(state),
                    2 => Op::Swap(number, state),
                    3 => Op::Delete(state.is_some()),
                    _ => Op::Add(number, state.unwrap_or(0) + number),
                };
                state = op.step(state, false).expect("it has seen the state");
                moment += 10;
                let (early, late) = (random.below(40) as u64, 1 + random.below(40) as u64);
                entries.push(entry(moment - early, moment + late, op));
            }
            assert_eq!(check(&entries), Ok(()), "seed {seed}");
            let at = random.below(entries.len());
            entries[at].op = Op::Get(Some(1_000_000));
            assert!(check(&entries).is_err(), "seed {seed}");
        }
    }
}
