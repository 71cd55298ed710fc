//! Waiting for keys, and serving waiters: see [`crate::notify::wait`].

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::SlotGuard;
use crate::guard::context::ThreadContext;
use crate::key::{Key, Place};
use crate::keyspace::Keyspace;
use crate::notify::subscribers::SlotSubscribers;
use crate::notify::wait::{Waiter, Waiters, Woken, state};

impl ThreadContext {
    /// Records the key if it has waiters. A context with `suppresses_events` serves none: see
    /// [`SlotGuard::wake_waiters`].
    pub(crate) fn wake(&mut self, waiters: &mut Waiters, key: &[u8], place: Place) {
        if !self.suppresses_events {
            let number = self.number();
            waiters.wake(key, place, number, &mut self.woken);
        }
    }

    /// Like [`ThreadContext::wake`], for all keys that have waiters.
    pub(crate) fn wake_all(&mut self, waiters: &mut Waiters, place: Place) {
        waiters.keys().iter().for_each(|key| self.wake(waiters, key, place));
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

    /// Records the key for serving, as a write does.
    pub fn wake_waiters_of(&mut self, key: &Key<'_>) {
        let number = self.ctx.number();
        let subscribers = &self.slot_of_place(key.place).subscribers;
        let mut woken = std::mem::take(&mut self.ctx.woken);
        SlotSubscribers::if_any(subscribers, |subscribers| {
            subscribers.waiters.wake(key.bytes, key.place, number, &mut woken);
        });
        self.ctx.woken = woken;
    }

    /// The next key that this context has written to and that has waiters. Keys that cannot be served with
    /// the locks held are put off, see [`ThreadContext::next_unserved`].
    pub fn next_woken(&mut self) -> Option<Woken> {
        while let Some(woken) = self.ctx.woken.pop_front() {
            if self.can_serve(woken.place) {
                return Some(self.begin_serving(woken));
            }
            self.ctx.put_off.push_back(woken);
        }
        // A key that was put off is not recorded again by a later write, which may hold the necessary locks.
        let at = self.ctx.put_off.iter().position(|woken| self.can_serve(woken.place))?;
        let woken = self.ctx.put_off.remove(at)?;
        Some(self.begin_serving(woken))
    }

    fn begin_serving(&mut self, woken: Woken) -> Woken {
        let number = self.ctx.number();
        SlotSubscribers::if_any(&self.slot_of_place(woken.place).subscribers, |subscribers| {
            subscribers.waiters.begin_serving(&woken.key, number)
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
