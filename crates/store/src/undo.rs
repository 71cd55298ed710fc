//! Taking back what a command has done to its keys: for a script that turns out to need more than what is held.
//!
//! Before a key is written to for the first time, its entry is kept ([`SlotGuard::keep_for_undo`]): a copy of a small value, a
//! reference to a large one. [`SlotGuard::undo`] puts the entries back. What is left then is as if nothing had been done: the
//! record of the log is forgotten, and a snapshot has been given what it lacked before the first change, as always. Those
//! who watch a key that was put back find it touched, which makes a transaction fail that might have succeeded; that is
//! always allowed. Those who wait for one are asked, and find nothing. Who wants to hear of every change hears of none.
//!
//! Expired keys count: one that a write met and removed is put back as it was, so that its removal is logged by whoever
//! meets it next. Reads must not remove any meanwhile (`ThreadContext::keep_expired`).

use crate::entry::EntryPtr;
use crate::guard::SlotGuard;
use crate::key::{Key, Place};

/// Entries as they were. Does nothing when dropped but free them.
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

// SAFETY: the entries are nobody else's, and may be freed by any thread.
unsafe impl Send for Undo {}

impl Undo {
    /// Keys whose entries are kept.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Bytes of memory taken, about; values that are shared do not count.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        for kept in self.kept.drain(..) {
            // What is large is shared with the table's entry, or was its only value and is freed here.
            drop(kept.entry.and_then(EntryPtr::free));
        }
    }
}

impl SlotGuard<'_> {
    /// Keeps the entry of a key that is about to be written to, unless that has been done before.
    pub fn keep_for_undo(&mut self, key: &Key<'_>, undo: &mut Undo) {
        // Few keys are written to in most scripts; many are bounded by who calls this.
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

    /// Puts back all that was kept, and forgets what was logged since the locks were taken.
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

    /// Forgets what was logged since the locks were taken: for a script that ends with the server.
    pub fn forget_log(&mut self) {
        self.ctx.buffer.forget();
    }

    /// Counts a change of something that is no key, and makes that the command is logged.
    pub fn count_change(&mut self) {
        crate::context::add(&self.ctx.tally.dirty, 1);
    }
}
