//! Undoing a command's changes: for a script that turns out to need more locks than it holds.
//!
//! Before the first write to a key, its entry is kept ([`SlotGuard::keep_for_undo`]): a copy of a small
//! value, a reference to a large value. [`SlotGuard::undo`] puts the entries back. The result is as if
//! nothing had been done:
//! - The journal record is dropped.
//! - A snapshot has received the entries it lacked before the first change, as always.
//! - Watchers of a key that was put back are touched. A transaction may then fail that could have succeeded,
//!   which is always allowed.
//! - Waiters for a key are asked, and find nothing.
//! - Listeners receive no event.
//!
//! Expired keys count. If a write removed an expired key, the key is put back as it was, and its removal is
//! logged when it is next met. Reads must not remove expired keys meanwhile (`ThreadContext::keep_expired`).

use crate::guard::SlotGuard;
use crate::key::{Key, Place};
use crate::table::entry::EntryPtr;

/// Entries as they were. Dropping it only frees them.
#[derive(Default)]
pub struct Undo {
    kept: Vec<Kept>,
    bytes: usize,
}

struct Kept {
    key: Box<[u8]>,
    place: Place,
    /// `None`: the key was not there.
    entry: Option<EntryPtr>,
}

// SAFETY: no other value refers to the entries, and any thread may free them.
unsafe impl Send for Undo {}

impl Undo {
    /// Number of keys whose entries are kept.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Approximate bytes of memory taken; shared values do not count.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        for kept in self.kept.drain(..) {
            // A large value is shared with the table's entry, or this is its last reference and it is freed
            // here.
            drop(kept.entry.and_then(EntryPtr::free));
        }
    }
}

impl SlotGuard<'_> {
    /// Keeps the entry of a key that is about to be written to, unless it is kept already.
    pub fn keep_for_undo(&mut self, key: &Key<'_>, undo: &mut Undo) {
        // Most scripts write to few keys; the caller bounds the number.
        if undo.kept.iter().any(|kept| kept.place == key.place && *kept.key == *key.bytes) {
            return;
        }
        let found = self.slot_of_place(key.place).find(key.hash, key.bytes);
        let entry = found.map(|found| {
            let entry = found.entry();
            undo.bytes += entry.size();
            entry.copy(key.bytes, entry.deadline(), entry.access())
        });
        undo.bytes += key.bytes.len();
        undo.kept.push(Kept { key: key.bytes.into(), place: key.place, entry });
    }

    /// Puts back all kept entries, and drops the records logged since the locks were taken.
    pub fn undo(&mut self, mut undo: Undo) {
        for kept in undo.kept.drain(..) {
            let key = self.keyspace().key(kept.place.db() as u32, &kept.key);
            debug_assert!(key.place == kept.place, "a key lies where it lay");
            if let Some(found) = self.slot_of_place(key.place).find(key.hash, key.bytes) {
                let entry = self.detach(key.place, found);
                self.free(key.place, entry);
            }
            if let Some(entry) = kept.entry {
                self.insert(&key, entry);
            }
        }
        self.ctx.buffer.forget();
        self.forget_events();
    }

    /// Drops the records logged since the locks were taken: for a script that ends with the server.
    pub fn forget_log(&mut self) {
        self.ctx.buffer.forget();
    }

    /// Counts a change of state that is not a key, so that the command is logged.
    pub fn count_change(&mut self) {
        crate::guard::context::add(&self.ctx.tally.dirty, 1);
    }
}
