//! Waiting for a key: blocked clients stand in the queue of the key, and are served in the order in which
//! they came.
//!
//! A waiter states the kinds of value it wants ([`Wants`]), and the slots that serving it takes in addition
//! to its key's (the destination of BLMOVE). A write to a key with a queue records the key in the context of
//! its thread. Before it releases any lock, the writer asks for the recorded keys and their waiters, in turn
//! ([`crate::SlotGuard::next_woken`], [`crate::SlotGuard::next_waiter`]). How a waiter is served is up to the
//! caller.
//!
//! To serve without unlocking first, a write locks in advance the slots that the waiters of its slots may
//! need ([`crate::Keyspace::hold_to_write`]). It errs on the safe side: it goes by the slot, not by the key.

use std::any::Any;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use crate::key::Place;
use crate::value::Kind;

/// A client that waits for keys.
pub trait Waiter: Any + Send + Sync {
    /// The states of the key in which the waiter is to be served.
    fn wants(&self) -> Wants;

    /// The places that serving the waiter takes in addition to the key's.
    fn beyond(&self) -> &[Place];
}

/// A set of states of a key, as bits: missing, or holding a value of some kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants(u16);

/// Kinds take three bits; a ninth state is that of a missing key.
const STATES: usize = 9;
const MISSING: usize = 0;

impl Wants {
    /// The key holds a value of this kind.
    pub fn kind(kind: Kind) -> Wants {
        Wants(1 << state(Some(kind)))
    }

    /// Any change of the key, including its removal and a value of another kind.
    pub fn any_change() -> Wants {
        Wants((1 << STATES) - 1)
    }

    fn includes(self, state: usize) -> bool {
        self.0 >> state & 1 == 1
    }
}

pub(crate) fn state(kind: Option<Kind>) -> usize {
    kind.map_or(MISSING, |kind| 1 + kind as usize)
}

/// A key that has been written to and has waiters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Woken {
    pub place: Place,
    pub key: Box<[u8]>,
}

/// Waiters for the keys of a slot.
#[derive(Default)]
pub(crate) struct Waiters {
    queues: HashMap<Box<[u8]>, Queue, foldhash::quality::RandomState>,
    /// Places that serving these waiters may take in addition to this slot, each with the number of waiters
    /// that need it.
    pub(crate) beyond: BTreeMap<Place, usize>,
}

#[derive(Default)]
struct Queue {
    /// By ticket, hence in the order in which the waiters came.
    waiting: BTreeMap<u64, Arc<dyn Waiter>>,
    /// For each state, the number of waiters that want it: no scan is needed to see whether any can be
    /// served.
    wanting: [usize; STATES],
    /// Number of the context that has recorded the key and not yet come to serve it; 0: none. A context
    /// records the key once. If a second context writes to the key meanwhile, it records the key for itself:
    /// it must serve before it unlocks, whatever the first context is about to do.
    recorded_by: usize,
}

impl Waiters {
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Number of waiters in all queues.
    pub(crate) fn len(&self) -> usize {
        self.queues.values().map(|queue| queue.waiting.len()).sum()
    }

    /// Adds the key to `woken`, the record of the context of this number, if the key has waiters.
    pub(crate) fn wake(&mut self, key: &[u8], place: Place, number: usize, woken: &mut VecDeque<Woken>) {
        if let Some(queue) = self.queues.get_mut(key)
            && queue.recorded_by != number
        {
            queue.recorded_by = number;
            woken.push_back(Woken { place, key: key.into() });
        }
    }

    /// The keys that have waiters.
    pub(crate) fn keys(&self) -> Vec<Box<[u8]>> {
        self.queues.keys().cloned().collect()
    }

    /// Clears the record of the key: the context of this number has come to serve it.
    pub(crate) fn begin_serving(&mut self, key: &[u8], number: usize) {
        if let Some(queue) = self.queues.get_mut(key)
            && queue.recorded_by == number
        {
            queue.recorded_by = 0;
        }
    }

    /// Returns whether the waiter is the first for the key, and whether it is the first that wants the key
    /// missing.
    pub(crate) fn add(&mut self, key: &[u8], ticket: u64, waiter: Arc<dyn Waiter>) -> [bool; 2] {
        let queue = self.queues.entry(key.into()).or_default();
        let was_empty = queue.is_empty();
        queue.count(waiter.wants(), 1);
        for place in waiter.beyond() {
            *self.beyond.entry(*place).or_default() += 1;
        }
        let before = queue.waiting.insert(ticket, waiter);
        assert!(before.is_none(), "a ticket waits once for a key");
        changes(was_empty, queue.is_empty())
    }

    /// Returns `None` if there is no such waiter; otherwise whether it was the last for the key, and whether
    /// it was the last that wanted the key missing.
    pub(crate) fn remove(&mut self, key: &[u8], ticket: u64) -> Option<[bool; 2]> {
        let queue = self.queues.get_mut(key)?;
        let (was_empty, waiter) = (queue.is_empty(), queue.waiting.remove(&ticket)?);
        queue.count(waiter.wants(), -1);
        let is_empty = queue.is_empty();
        if is_empty[0] {
            self.queues.remove(key);
        }
        for place in waiter.beyond() {
            let count = self.beyond.get_mut(place).expect("counted when it was added");
            *count -= 1;
            if *count == 0 {
                self.beyond.remove(place);
            }
        }
        Some(changes(was_empty, is_empty))
    }

    /// The first waiter after `after` that wants the key in this state.
    pub(crate) fn next(&self, key: &[u8], after: u64, state: usize) -> Option<(u64, Arc<dyn Waiter>)> {
        let queue = self.queues.get(key).filter(|queue| queue.wanting[state] > 0)?;
        let mut later = queue.waiting.range((Excluded(after), Unbounded));
        later
            .find(|(_, waiter)| waiter.wants().includes(state))
            .map(|(ticket, waiter)| (*ticket, waiter.clone()))
    }

    /// Panics if a count is wrong.
    pub(crate) fn verify(&self) {
        let mut beyond: BTreeMap<Place, usize> = BTreeMap::new();
        for queue in self.queues.values() {
            assert!(!queue.waiting.is_empty(), "a queue has waiters");
            let wanting = |state| queue.waiting.values().filter(|one| one.wants().includes(state)).count();
            assert_eq!(queue.wanting, std::array::from_fn(wanting), "what waiters want");
            let places = queue.waiting.values().flat_map(|one| one.beyond());
            places.for_each(|place| *beyond.entry(*place).or_default() += 1);
        }
        assert_eq!(self.beyond, beyond, "places that waiters need");
    }
}

fn changes(before: [bool; 2], after: [bool; 2]) -> [bool; 2] {
    [before[0] != after[0], before[1] != after[1]]
}

impl Queue {
    /// Returns whether no waiter is left, and whether no waiter wants the key missing.
    fn is_empty(&self) -> [bool; 2] {
        [self.waiting.is_empty(), self.wanting[MISSING] == 0]
    }

    fn count(&mut self, wants: Wants, change: isize) {
        for (state, count) in self.wanting.iter_mut().enumerate() {
            if wants.includes(state) {
                *count = count.wrapping_add_signed(change);
            }
        }
    }
}
