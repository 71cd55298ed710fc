//! Bytes that values would take beyond their present memory, if each was stored apart from all others and in
//! full.
//!
//! A copy shares the pages of its original, and a hole takes no memory. But a snapshot stores the copy as a
//! value of its own, and in some form the hole, so a server that loads it or a replica that receives it needs
//! more memory. The difference is counted here, for `maxmemory`. Otherwise commands that take next to no
//! memory could create data that fits nowhere else.
//!
//! *Shared bytes* are recorded in an entry when a command makes its value from that of another key. Of each
//! page that several entries share, all entries but one, at least, have recorded it. That is an upper bound,
//! since an original may be removed or changed later. [`SlotGuard::appraise_next`] checks the values again,
//! in turn, and subtracts bytes that are no longer shared. The references of snapshots and replies are never
//! recorded, since nothing is stored because of them.
//!
//! *Holes* are counted by ropes themselves, see [`crate::value::rope`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

pub use crate::table::apart::Apart;

use crate::guard::SlotGuard;
use crate::key::Place;
use crate::table::entry::EntryPtr;

/// The sum over values in their tables. Written only for values that share memory or have holes.
#[derive(Default)]
pub(crate) struct Sum {
    shared: AtomicU64,
    holes: AtomicU64,
}

impl Sum {
    pub(crate) fn add(&self, apart: Apart) {
        self.shared.fetch_add(apart.shared, Relaxed);
        self.holes.fetch_add(apart.holes, Relaxed);
    }

    /// Subtracts an earlier addition.
    pub(crate) fn subtract(&self, apart: Apart) {
        self.shared.fetch_sub(apart.shared, Relaxed);
        self.holes.fetch_sub(apart.holes, Relaxed);
    }

    pub(crate) fn get(&self) -> Apart {
        Apart { shared: self.shared.load(Relaxed), holes: self.holes.load(Relaxed) }
    }
}

/// Maximum number of keys that wait to be checked again. The values of further keys keep the bytes they have
/// recorded.
const SHARERS_MAX: usize = 64 * 1024;

/// Keys whose values have recorded shared bytes, to be checked again. Some may be gone, or in another
/// database.
#[derive(Default)]
pub(crate) struct Sharers(Mutex<VecDeque<(Place, Box<[u8]>)>>);

impl Sharers {
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// All keys that wait.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Place, Box<[u8]>)> {
        self.0.lock().clone().into_iter()
    }

    pub(crate) fn push(&self, place: Place, key: &[u8]) {
        let mut waiting = self.0.lock();
        if waiting.len() < SHARERS_MAX {
            waiting.push_back((place, key.into()));
        }
    }
}

impl SlotGuard<'_> {
    /// Counts an entry that comes into its table.
    #[inline]
    pub(crate) fn count_apart(&self, place: Place, entry: EntryPtr) {
        let apart = entry.apart();
        if apart != Apart::default() {
            self.add_apart(place, apart);
        }
    }

    /// Stops counting an entry that leaves its table.
    #[inline]
    pub(crate) fn discount_apart(&self, place: Place, entry: EntryPtr) {
        let apart = entry.apart();
        if apart != Apart::default() {
            self.subtract_apart(place, apart);
        }
    }

    #[cold]
    pub(crate) fn add_apart(&self, place: Place, apart: Apart) {
        self.keyspace().apart.add(apart);
        self.keyspace().db(place.db()).apart.add(apart);
    }

    #[cold]
    pub(crate) fn subtract_apart(&self, place: Place, apart: Apart) {
        self.keyspace().apart.subtract(apart);
        self.keyspace().db(place.db()).apart.subtract(apart);
    }

    /// Counts the holes of a string that was written to in place.
    #[inline]
    pub(crate) fn holes_changed(&self, place: Place, before: usize, now: usize) {
        if before < now {
            self.add_apart(place, Apart { shared: 0, holes: (now - before) as u64 });
        } else if now < before {
            self.subtract_apart(place, Apart { shared: 0, holes: (before - now) as u64 });
        }
    }

    /// Records the bytes that an entry about to enter its table shares; a flat value shares none.
    pub(crate) fn record_shared(&self, place: Place, entry: EntryPtr, bytes: u64) {
        if bytes > 0 && entry.has_heap_value() {
            entry.set_shared(bytes);
            self.keyspace().sharers.push(place, entry.key());
        }
    }

    /// Queues an entry that shares memory to be checked again under its new key.
    pub(crate) fn sharer_moved(&self, place: Place, entry: EntryPtr) {
        if entry.apart().shared > 0 {
            self.keyspace().sharers.push(place, entry.key());
        }
    }

    /// Checks the next key whose value shares memory, and records the bytes if they have become fewer.
    /// Returns false if there is none. The caller holds nothing. The time is proportional to the pages of the
    /// value, and is spent outside the gate.
    pub fn appraise_next(&mut self) -> bool {
        let Some((place, bytes)) = self.keyspace().sharers.0.lock().pop_front() else { return false };
        let key = self.keyspace().key(place.db() as u32, &bytes);
        let find = |guard: &Self| {
            let found = guard.slot_of_place(place).find(key.hash, key.bytes)?;
            Some(found.entry()).filter(|entry| entry.apart().shared > 0)
        };
        let Some(value) = self.visit(place, |guard| find(guard).and_then(EntryPtr::share_heap_value)) else {
            return true;
        };
        // Two references: the entry's, and this.
        let shared = self.outside_gate(|| value.shared_memory(2)) as u64;
        let is_there = self.visit(place, |guard| {
            let Some(entry) = find(guard).filter(|entry| entry.is_sharing(&value)) else { return false };
            let before = entry.apart();
            if shared < before.shared {
                guard.subtract_apart(place, before);
                entry.set_shared(shared);
                guard.add_apart(place, entry.apart());
            }
            if shared > 0 {
                guard.keyspace().sharers.push(place, key.bytes);
            }
            true
        });
        match is_there {
            true => drop(value), // which frees nothing, unless the key has been removed just now
            false => self.ctx.discard(Some(value)),
        }
        true
    }
}
