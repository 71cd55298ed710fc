//! Waiting for a key: blocked clients stand in the queue of the key, and are served in the order in which
//! they came.
//!
//! A waiter states the kinds of value it wants ([`Wants`]), and the slots that serving it takes in addition
//! to its key's (the destination of BLMOVE). A write to a key with a queue records the key in
//! [`ThreadContext::woken`]. Before it releases any lock, the writer asks for the recorded keys and their
//! waiters, in turn ([`SlotGuard::next_woken`], [`SlotGuard::next_waiter`]). How a waiter is served is up to
//! the caller.
//!
//! To serve without unlocking first, a write locks in advance the slots that the waiters of its slots may
//! need ([`Keyspace::hold_to_write`]). It errs on the safe side: it goes by the slot, not by the key.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::guard::SlotGuard;
use crate::guard::context::ThreadContext;
use crate::key::{Key, Place};
use crate::keyspace::Keyspace;
use crate::notify::subscribers::SlotSubscribers;
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

fn state(kind: Option<Kind>) -> usize {
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
    beyond: BTreeMap<Place, usize>,
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
    noted_by: usize,
}

impl Waiters {
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Number of waiters in all queues.
    pub(crate) fn len(&self) -> usize {
        self.queues.values().map(|queue| queue.waiting.len()).sum()
    }

    /// Records the key if it has waiters. A context with `is_unheard` serves none: see
    /// [`SlotGuard::wake_waiters`].
    pub(crate) fn note(&mut self, key: &[u8], place: Place, ctx: &mut ThreadContext) {
        if ctx.is_unheard {
            return;
        }
        if let Some(queue) = self.queues.get_mut(key)
            && queue.noted_by != ctx.number()
        {
            queue.noted_by = ctx.number();
            ctx.woken.push_back(Woken { place, key: key.into() });
        }
    }

    /// Records all keys that have waiters.
    pub(crate) fn note_all(&mut self, place: Place, ctx: &mut ThreadContext) {
        let keys: Vec<Box<[u8]>> = self.queues.keys().cloned().collect();
        keys.iter().for_each(|key| self.note(key, place, ctx));
    }

    /// Clears the record of the key: the context of this number has come to serve it.
    fn come_to(&mut self, key: &[u8], number: usize) {
        if let Some(queue) = self.queues.get_mut(key)
            && queue.noted_by == number
        {
            queue.noted_by = 0;
        }
    }

    /// Returns whether the waiter is the first for the key, and whether it is the first that wants the key
    /// missing.
    fn add(&mut self, key: &[u8], ticket: u64, waiter: Arc<dyn Waiter>) -> [bool; 2] {
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
    fn remove(&mut self, key: &[u8], ticket: u64) -> Option<[bool; 2]> {
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
    fn next(&self, key: &[u8], after: u64, state: usize) -> Option<(u64, Arc<dyn Waiter>)> {
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
            assert!(!queue.waiting.is_empty(), "a queue is there for somebody");
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

impl Keyspace {
    /// Returns a number larger than all before: the smaller ticket came first. Callers take it under the
    /// locks of the keys they will wait for. Otherwise an earlier ticket could enter a queue after a later
    /// ticket, and a server that has just served the later ticket would pass over it.
    pub fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Relaxed) + 1
    }

    /// Number of keys that have waiters, and number of keys that some waiter wants missing.
    pub fn waited_keys(&self) -> [usize; 2] {
        [0, 1].map(|which| self.waited_keys[which].load(Relaxed))
    }

    /// Places that serving the waiters in `places` may take in addition; the caller has locked `places`.
    pub(crate) fn beyond(&self, places: &[Place]) -> Vec<Place> {
        let mut more = Vec::new();
        for place in places {
            let subscribers = &self.db(place.db()).slots[place.slot()].subscribers;
            SlotSubscribers::if_any(subscribers, |subscribers| {
                let missing = |place: &&Place| places.binary_search(place).is_err();
                more.extend(subscribers.waiters.beyond.keys().filter(missing));
            });
        }
        more
    }
}

impl SlotGuard<'_> {
    /// Puts a waiter into the key's queue.
    pub fn wait(&mut self, key: &Key<'_>, ticket: u64, waiter: Arc<dyn Waiter>) {
        let subscribers = &self.slot_of_place(key.place).subscribers;
        let first = SlotSubscribers::with(subscribers, |subscribers| {
            subscribers.waiters.add(key.bytes, ticket, waiter)
        });
        self.keyspace().waits.fetch_add(1, Relaxed);
        for (count, is_first) in self.keyspace().waited_keys.iter().zip(first) {
            count.fetch_add(is_first.into(), Relaxed);
        }
    }

    /// Removes a waiter from the key's queue; returns false if it is not there any more.
    pub fn unwait(&mut self, key: &Key<'_>, ticket: u64) -> bool {
        let subscribers = &self.slot_of_place(key.place).subscribers;
        let removed =
            SlotSubscribers::if_any(subscribers, |subscribers| subscribers.waiters.remove(key.bytes, ticket));
        let Some(last) = removed.flatten() else { return false };
        self.keyspace().waits.fetch_sub(1, Relaxed);
        for (count, is_last) in self.keyspace().waited_keys.iter().zip(last) {
            count.fetch_sub(is_last.into(), Relaxed);
        }
        true
    }

    /// The next key that this context has written to and that has waiters. Keys that cannot be served with
    /// the locks held are put off, see [`ThreadContext::next_unserved`].
    pub fn next_woken(&mut self) -> Option<Woken> {
        while let Some(woken) = self.ctx.woken.pop_front() {
            if self.can_serve(woken.place) {
                return Some(self.come_to(woken));
            }
            self.ctx.put_off.push_back(woken);
        }
        // A key that was put off is not recorded again by a later write, which may hold the necessary locks.
        let at = self.ctx.put_off.iter().position(|woken| self.can_serve(woken.place))?;
        let woken = self.ctx.put_off.remove(at)?;
        Some(self.come_to(woken))
    }

    fn come_to(&mut self, woken: Woken) -> Woken {
        let number = self.ctx.number();
        SlotSubscribers::if_any(&self.slot_of_place(woken.place).subscribers, |subscribers| {
            subscribers.waiters.come_to(&woken.key, number)
        });
        woken
    }

    fn can_serve(&self, place: Place) -> bool {
        let all_held = |subscribers: &mut SlotSubscribers| {
            subscribers.waiters.beyond.keys().all(|place| self.holds(*place))
        };
        self.holds(place)
            && SlotSubscribers::if_any(&self.slot_of_place(place).subscribers, all_held).unwrap_or(true)
    }

    /// The key's first waiter after ticket `after` (0: from the start) that wants the key as it is now.
    pub fn next_waiter(&mut self, key: &Key<'_>, after: u64) -> Option<(u64, Arc<dyn Waiter>)> {
        let state = state(self.peek(key).map(|view| view.kind()));
        let subscribers = &self.slot_of_place(key.place).subscribers;
        SlotSubscribers::if_any(subscribers, |subscribers| subscribers.waiters.next(key.bytes, after, state))
            .flatten()
    }
}
