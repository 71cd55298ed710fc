//! Watching keys: see [`crate::notify::watch`].

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::SlotGuard;
use crate::key::{Key, Place};
use crate::notify::subscribers::SlotSubscribers;
use crate::notify::watch::{Change, Watch};

impl SlotGuard<'_> {
    /// Touches `watch` when the key changes from now on. Returns false if it was watching the key already.
    pub fn watch(&mut self, key: &Key<'_>, watch: &Arc<Watch>) -> bool {
        let (stale, keyspace) = (self.has_expired(key), self.keyspace());
        SlotSubscribers::with(&self.slot_of_place(key.place).subscribers, |subscribers| {
            keyspace.watches.fetch_sub(subscribers.watchers.drop_forgotten(key.bytes), Relaxed);
            let is_new = subscribers.watchers.add(key.bytes, watch, stale);
            keyspace.watches.fetch_add(usize::from(is_new), Relaxed);
            is_new
        })
    }

    /// Returns true if a key under `watch` has expired since, but has not been removed yet and so has touched
    /// no watch.
    pub fn lapsed(&self, key: &Key<'_>, watch: &Arc<Watch>) -> bool {
        let is_stale = |subscribers: &mut SlotSubscribers| subscribers.watchers.is_stale(key.bytes, watch);
        let subscribers = &self.slot_of_place(key.place).subscribers;
        self.has_expired(key) && !SlotSubscribers::if_any(subscribers, is_stale).unwrap_or(false)
    }

    /// Touches all watches of keys in some slots of a database, since these keys are no longer here. The
    /// guard holds nothing.
    pub fn touch_watches_in(&mut self, db: usize, slots: impl Iterator<Item = u16>) {
        if self.keyspace().watches.load(Relaxed) == 0 || self.keyspace().db_if_used(db).is_none() {
            return;
        }
        for slot in slots {
            self.visit(Place::new(db as u32, slot), |guard| {
                let subscribers = &guard.slot_of_place(Place::new(db as u32, slot)).subscribers;
                SlotSubscribers::if_any(subscribers, |subscribers| {
                    subscribers.watchers.touch_all(|_| Change::Written);
                });
            });
        }
    }

    /// Ends a watch of a key that [`SlotGuard::watch`] began.
    pub fn unwatch(&mut self, key: &Key<'_>, watch: &Arc<Watch>) {
        let subscribers = &self.slot_of_place(key.place).subscribers;
        let removed =
            SlotSubscribers::if_any(subscribers, |subscribers| subscribers.watchers.remove(key.bytes, watch));
        if removed == Some(true) {
            self.keyspace().watches.fetch_sub(1, Relaxed);
        }
    }
}
