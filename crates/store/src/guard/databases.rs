//! Changes of whole databases; nearly all of them need everything held.

use std::sync::atomic::Ordering::Relaxed;

use super::SlotGuard;
use crate::guard::context::add;
use crate::keyspace::Flushed;

impl SlotGuard<'_> {
    /// Allocates a database before its first key would: half a megabyte more at that moment could exceed
    /// `maxmemory`.
    pub fn open(&mut self, db: usize) {
        self.keyspace.db(db);
    }

    /// Empties a database; everything is held. The caller drops the result where time does not matter.
    pub fn flush(&mut self, db: usize) -> Option<Flushed> {
        assert!(self.holds_all(), "flushing needs everything");
        // Save points count each key as a change. Flushing an empty database counts as none, and is logged
        // all the same.
        match self.keyspace.len(self.ctx, db) as u64 {
            0 => self.unasked(|guard| add(&guard.ctx.tally.dirty, 1)),
            keys => add(&self.ctx.tally.dirty, keys),
        }
        if self.keyspace.is_empty(self.ctx, db) {
            return None; // and an empty database need not be made again
        }
        self.keyspace.flushes.fetch_add(1, Relaxed);
        self.keyspace.flush(db, self.ctx)
    }

    /// Exchanges two databases; everything is held.
    pub fn swap(&mut self, a: usize, b: usize) {
        assert!(self.holds_all(), "swapping needs everything");
        add(&self.ctx.tally.dirty, 1);
        self.keyspace.flushes.fetch_add(1, Relaxed);
        self.keyspace.swap(a, b, self.ctx);
    }

    /// Until this is revoked, no key is removed because its deadline has passed: neither on access nor by a
    /// sweep. An expired key is hidden, and stays until a command removes it. For a replica, whose primary
    /// decides when a key goes. Everything is held, so the rule starts at the same moment for all threads.
    pub fn hide_expired(&mut self, hide: bool) {
        assert!(self.holds_all(), "it begins and ends at one moment");
        self.keyspace.hide_expired(hide);
        self.keyspace.forget_own(); // from here on they are keys like others
        self.ctx.hides_expired = hide;
    }

    /// Records the waited-for keys of a database whose keys came without notification; everything is held.
    pub fn wake_waiters(&mut self, db: usize) {
        assert!(self.holds_all(), "a waiter may wait for any key");
        self.keyspace.wake_waiters(db, self.ctx);
    }
}
