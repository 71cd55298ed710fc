//! Keys to which clients of a writable replica have given a deadline.
//!
//! A replica removes nothing by its clock: its primary says when a key goes. Of these the primary knows nothing, so nobody would
//! ever say it. They are remembered by their names, as in Redis, and removed when their time has passed, as long as the server is a
//! replica: otherwise they are keys like others.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::Ordering::Relaxed;

use crate::guard::SlotGuard;
use crate::key::Place;
use crate::keyspace::Keyspace;

/// Keys that are looked at between two looks at the clock.
const CHUNK: usize = 32;

/// Database and name.
type Name = (u32, Box<[u8]>);

#[derive(Default)]
pub(crate) struct Own {
    names: BTreeSet<Name>,
    /// Where the next look begins: behind this one.
    last: Option<Name>,
}

impl Own {
    /// The next ones in turn, and whether they are the last ones of a round.
    fn next(&mut self) -> (Vec<Name>, bool) {
        let from = self.last.take().map_or(Unbounded, Excluded);
        let names: Vec<Name> = self.names.range((from, Unbounded)).take(CHUNK).cloned().collect();
        let is_last = names.len() < CHUNK;
        self.last = names.last().filter(|_| !is_last).cloned();
        (names, is_last)
    }
}

impl Keyspace {
    /// How many keys there are of which only this server, which is a replica, knows that they expire.
    pub fn own_timed(&self) -> usize {
        self.own_timed.load(Relaxed)
    }

    fn change_own<R>(&self, change: impl FnOnce(&mut Own) -> R) -> R {
        let mut own = self.own.lock();
        let result = change(&mut own);
        self.own_timed.store(own.names.len(), Relaxed);
        result
    }

    pub(crate) fn forget_own(&self) {
        self.change_own(|own| *own = Own::default());
    }
}

impl SlotGuard<'_> {
    /// Remembers a key that has just got a deadline, if only this server knows of it: what is replayed, and what is loaded, the
    /// primary has.
    #[inline]
    pub(crate) fn note_own(&mut self, place: Place, key: &[u8]) {
        if self.ctx.hides_expired && self.ctx.now_ms != 0 && !self.ctx.is_unheard {
            self.remember_own(place, key);
        }
    }

    #[cold]
    fn remember_own(&mut self, place: Place, key: &[u8]) {
        self.keyspace().change_own(|own| own.names.insert((place.db() as u32, key.into())));
    }

    /// Removes those of a replica's own keys whose time has passed, until `stop` says so or all have been looked at. Only for who
    /// holds nothing.
    pub fn sweep_own(&mut self, mut stop: impl FnMut() -> bool) {
        while self.keyspace().own_timed() > 0 && self.ctx.hides_expired {
            let (names, is_last) = self.keyspace().change_own(Own::next);
            names.iter().for_each(|name| self.look_at_own(name));
            if is_last || stop() {
                break;
            }
        }
    }

    /// Removes a key that is due, and forgets one that has gone or has no deadline any more; under the lock under which it may get
    /// another one.
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
