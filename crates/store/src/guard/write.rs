//! Changes of keys that do not depend on the type of their values: removal, deadline, rename, copy.

use super::SlotGuard;
use crate::Millis;
use crate::guard::context::add;
use crate::key::Key;
use crate::notify::events::What;
use crate::notify::watch::Change;

impl SlotGuard<'_> {
    /// Removes the key; returns false if it did not exist. An expired key that is only hidden does exist: a
    /// client that may write to a replica can remove it.
    #[inline]
    pub fn remove(&mut self, key: &Key<'_>) -> bool {
        let hides = self.ctx.hides_expired;
        let found = if hides { self.slot(key).1.find(key.hash, key.bytes) } else { self.live(key) };
        let Some(found) = found else { return false };
        self.remove_found(key.place, found);
        true
    }

    /// Removes a key because its new deadline has passed: it counts as expired. Returns false if the key does
    /// not exist.
    pub fn remove_as_expired(&mut self, key: &Key<'_>) -> bool {
        let Some(found) = self.live(key) else { return false };
        self.emit(key.place, key.bytes, What::Expired);
        self.remove_found(key.place, found);
        add(&self.ctx.tally.expired, 1);
        true
    }

    /// Sets or clears the key's deadline; returns false if the key does not exist. A deadline in the past
    /// hides the key; callers that want it removed must remove it.
    pub fn set_deadline(&mut self, key: &Key<'_>, deadline: Option<Millis>) -> bool {
        let Some(found) = self.live(key) else { return false };
        let entry = found.entry();
        self.preserve(key.place, entry);
        match deadline {
            Some(deadline) if entry.deadline().is_some() => {
                let before = entry.times();
                entry.set_deadline(deadline);
                self.update_times(key.place, found, before);
            }
            _ if entry.deadline() != deadline => {
                let before = entry.times();
                let new = entry.rebuild(key.bytes, deadline);
                new.set_epoch(self.ctx.epoch);
                self.slot(key).1.replace(found, new);
                self.update_times(key.place, found, before);
            }
            _ => {}
        }
        self.changed(key, Change::Written);
        true
    }

    /// Moves the value and deadline of `from`, which exists, to `to`, replacing the value there.
    pub fn rename(&mut self, from: &Key<'_>, to: &Key<'_>) {
        let found = self.live(from).expect("the caller has seen the key");
        let entry = self.detach(from.place, found);
        self.preserve(from.place, entry);
        // Save points count a rename as a single change.
        self.unasked(|guard| guard.changed(from, Change::Removed));
        if let Some(found) = self.live_or_gone(to) {
            let old = self.detach(to.place, found);
            self.free(to.place, old);
        }
        self.discount_apart(from.place, entry);
        let new = entry.rebuild(to.bytes, entry.deadline());
        self.sharer_moved(to.place, new);
        self.add_entry(to, new);
        self.changed(to, Change::Written);
    }

    /// Copies the value and deadline of `from`, which exists, to `to`, replacing the value there. Large
    /// values share their memory until either is written to; `shared` bytes are recorded for that.
    pub fn copy(&mut self, from: &Key<'_>, to: &Key<'_>, shared: u64) {
        let found = self.live(from).expect("the caller has seen the key");
        let new = found.entry().copy(to.bytes, found.entry().deadline(), self.new_access());
        self.record_shared(to.place, new, shared);
        if let Some(found) = self.live_or_gone(to) {
            let old = self.detach(to.place, found);
            self.free(to.place, old);
        }
        self.add_entry(to, new);
        self.changed(to, Change::Written);
    }
}
