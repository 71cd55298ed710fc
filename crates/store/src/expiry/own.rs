//! Keys that clients of a writable replica have given a deadline.
//!
//! A replica removes no key by its own clock: its primary decides when a key goes. The primary does not know
//! these keys, so it would never remove them. The replica stores their names, as Redis does, and removes the
//! keys when their deadline has passed. When the server is no longer a replica, they are keys like all
//! others.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::Ordering::Relaxed;

use crate::guard::SlotGuard;
use crate::key::Place;
use crate::keyspace::Keyspace;

/// Keys that are checked between two calls of `stop`.
const CHUNK: usize = 32;

/// Database and name.
pub(crate) type Name = (u32, Box<[u8]>);

#[derive(Default)]
pub(crate) struct Own {
    names: BTreeSet<Name>,
    /// The next check begins behind this name.
    last: Option<Name>,
}

impl Own {
    /// The next names in turn, and whether they end a round.
    fn next(&mut self) -> (Vec<Name>, bool) {
        let from = self.last.take().map_or(Unbounded, Excluded);
        let names: Vec<Name> = self.names.range((from, Unbounded)).take(CHUNK).cloned().collect();
        let is_last = names.len() < CHUNK;
        self.last = names.last().filter(|_| !is_last).cloned();
        (names, is_last)
    }
}

impl Keyspace {
    /// Number of keys whose deadline only this server, a replica, knows.
    pub fn own_timed(&self) -> usize {
        self.own_timed.load(Relaxed)
    }

    fn change_own<R>(&self, change: impl FnOnce(&mut Own) -> R) -> R {
        let mut own = self.own.lock();
        let result = change(&mut own);
        self.own_timed.store(own.names.len(), Relaxed);
        result
    }

    /// All of them, for another process.
    pub(crate) fn own_names(&self) -> Vec<Name> {
        self.own.lock().names.iter().cloned().collect()
    }

    pub(crate) fn take_own_over(&self, names: Vec<Name>) {
        self.change_own(|own| own.names.extend(names));
    }

    pub(crate) fn forget_own(&self) {
        self.change_own(|own| *own = Own::default());
    }
}

impl SlotGuard<'_> {
    /// Stores a key that has just got a deadline, if only this server knows the deadline: the primary has the
    /// keys that are replayed or loaded.
    #[inline]
    pub(crate) fn record_own(&mut self, place: Place, key: &[u8]) {
        if self.ctx.hides_expired && self.ctx.now_ms != 0 && !self.ctx.suppresses_events {
            self.remember_own(place, key);
        }
    }

    #[cold]
    fn remember_own(&mut self, place: Place, key: &[u8]) {
        self.keyspace().change_own(|own| own.names.insert((place.db() as u32, key.into())));
    }

    /// Removes a replica's own keys whose deadline has passed, until `stop` returns true or all have been
    /// checked. The caller holds nothing.
    pub fn sweep_own(&mut self, mut stop: impl FnMut() -> bool) {
        while self.keyspace().own_timed() > 0 && self.ctx.hides_expired {
            let (names, is_last) = self.keyspace().change_own(Own::next);
            names.iter().for_each(|name| self.look_at_own(name));
            if is_last || stop() {
                break;
            }
        }
    }

    /// Removes a key that is due, and forgets a key that is gone or has no deadline any more. Both happen
    /// under the lock of the slot, so no new deadline can be set in between.
    fn look_at_own(&mut self, name: &Name) {
        let (keyspace, now) = (self.keyspace(), self.ctx.now_ms);
        let forget = || _ = keyspace.change_own(|own| own.names.remove(name));
        if keyspace.db_if_used(name.0 as usize).is_none() {
            return forget();
        }
        let key = keyspace.key(name.0, &name.1);
        self.visit(key.place, |guard| {
            let found = guard.slot_of_place(key.place).find(key.hash, key.bytes);
            match found.and_then(|found| Some((found, found.entry().deadline()?))) {
                None => forget(),
                Some((found, deadline)) if deadline <= now => {
                    guard.expire(&key, found, false);
                    forget();
                }
                Some(_) => {}
            }
        });
    }
}
