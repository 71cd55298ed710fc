//! Waiting for a key: who is blocked on it stands in a queue, and is served in the order of coming.
//!
//! A waiter says which kinds of value it wants ([`Wants`]) and which slots serving it takes beside its key's (BLMOVE's
//! destination). A write to a key with a queue notes it in [`ThreadContext::woken`]; whoever made the write asks, before it lets
//! go of any lock, for the keys noted and their waiters one by one ([`SlotGuard::next_woken`], [`SlotGuard::next_waiter`]). What
//! serving means is the caller's affair.
//!
//! So that this can be done without letting go, a write takes beforehand what the waiters of its slots may need
//! ([`Keyspace::hold_to_write`]). It errs on the safe side: it goes by the slot, not by the key.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::context::ThreadContext;
use crate::entry::Kind;
use crate::guard::SlotGuard;
use crate::key::{Key, Place};
use crate::keyspace::Keyspace;
use crate::subscribers::SlotSubscribers;

/// One who waits for keys.
pub trait Waiter: Any + Send + Sync {
    /// In which states of the key it is to be served.
    fn wants(&self) -> Wants;

    /// The places that serving it takes beside that of the key.
    fn beyond(&self) -> &[Place];
}

/// States of a key, as bits: not there, or holding a value of some kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants(u16);

/// Kinds are numbered with three bits; one state more is that of a missing key.
const STATES: usize = 9;
const MISSING: usize = 0;

impl Wants {
    /// The key holds a value of this kind.
    pub fn kind(kind: Kind) -> Wants {
        Wants(1 << state(Some(kind)))
    }

    /// The key has changed, whatever it is now: also that it has gone, or holds another kind of value.
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

/// Who waits for keys of one slot.
#[derive(Default)]
pub(crate) struct Waiters {
    queues: HashMap<Box<[u8]>, Queue, foldhash::quality::RandomState>,
    /// What serving any of them may take beside this slot, and how many of them need it.
    beyond: BTreeMap<Place, usize>,
}

#[derive(Default)]
struct Queue {
    /// By their tickets, hence in the order in which they came.
    waiting: BTreeMap<u64, Arc<dyn Waiter>>,
    /// How many want the key in each state: whether anybody can be served now is seen without asking all.
    wanting: [usize; STATES],
    /// The seat that has noted the key and has not come to serve it; 0: none. It notes the key once. Another seat that
    /// writes to it meanwhile notes it for itself: it has to serve before it unlocks, whatever others are about to do.
    noted_by: usize,
}

impl Waiters {
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Waiters in all queues.
    pub(crate) fn len(&self) -> usize {
        self.queues.values().map(|queue| queue.waiting.len()).sum()
    }

    /// Notes the key if somebody waits for it. Who is unheard serves nobody: see [`SlotGuard::wake_waiters`].
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

    /// Notes all keys that somebody waits for.
    pub(crate) fn note_all(&mut self, place: Place, ctx: &mut ThreadContext) {
        let keys: Vec<Box<[u8]>> = self.queues.keys().cloned().collect();
        keys.iter().for_each(|key| self.note(key, place, ctx));
    }

    /// The seat of this number has come to serve the key.
    fn come_to(&mut self, key: &[u8], number: usize) {
        if let Some(queue) = self.queues.get_mut(key)
            && queue.noted_by == number
        {
            queue.noted_by = 0;
        }
    }

    /// Returns whether it is the first one for the key, and the first one who wants it missing.
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

    /// `None`: it is not there. Else whether it was the last one for the key, and the last one who wanted it missing.
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

    /// The first one after `after` that wants the key in this state.
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
    /// Whether nobody waits, and whether nobody wants the key missing.
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
    /// A number larger than all before it: who has the smaller one came first. To be taken under the locks of the keys
    /// that are going to be waited for; otherwise an earlier ticket could be put into a queue after a later one, and be
    /// passed over by who has just served that one.
    pub fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Relaxed) + 1
    }

    /// Keys that somebody waits for, and how many of them somebody wants missing.
    pub fn waited_keys(&self) -> [usize; 2] {
        [0, 1].map(|which| self.waited_keys[which].load(Relaxed))
    }

    /// What serving the waiters in the slots `places`, which the caller has locked, may take beside them.
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

    /// Takes a waiter out of the key's queue; `false`: it is not there any more.
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

    /// The next key that this seat has written to and that has waiters. Those that cannot be served with what is held are
    /// put off, see [`ThreadContext::next_unserved`].
    pub fn next_woken(&mut self) -> Option<Woken> {
        while let Some(woken) = self.ctx.woken.pop_front() {
            if self.can_serve(woken.place) {
                return Some(self.come_to(woken));
            }
            self.ctx.put_off.push_back(woken);
        }
        // One that was put off is not noted anew by a later write, which may hold what is needed.
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

    /// The key's first waiter after ticket `after` (0: of all) that wants it as it is now.
    pub fn next_waiter(&mut self, key: &Key<'_>, after: u64) -> Option<(u64, Arc<dyn Waiter>)> {
        let state = state(self.peek(key).map(|view| view.kind()));
        let subscribers = &self.slot_of_place(key.place).subscribers;
        SlotSubscribers::if_any(subscribers, |subscribers| subscribers.waiters.next(key.bytes, after, state))
            .flatten()
    }
}
