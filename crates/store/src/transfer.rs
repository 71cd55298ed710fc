//! Taking over a keyspace whose blocks another process has made.
//!
//! All data lie in blocks ([`crate::memory`]), which another process can map ([`evenkeel_slab::attach`]).
//! What else belongs to a keyspace is passed as [`PassedKeyspace`]: addresses of slots, and sums. Watchers
//! and waiters are not passed: they belong to clients, who begin to watch and wait anew.
//!
//! The moments: [`SlotGuard::pass`] by a thread of the first process, behind its closed gate, which then
//! stays closed; [`SlotGuard::take_over`] by a thread of the second, whose keyspace has no keys.

use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};

use crate::apart::Apart;
use crate::expiry::own::Name;
use crate::guard::SlotGuard;
use crate::guard::context::add_signed;
use crate::key::Place;
use crate::keyspace::{Db, Keyspace};
use crate::memory;
use crate::notify::subscribers::SlotSubscribers;
use crate::table::slot::Slots;

/// A hash of the layout of all that lies in blocks. Processes with the same hash can take over from each
/// other: it covers the sources of this crate and of the allocator, the compiler, and the versions of the
/// crates whose types lie in blocks.
pub const LAYOUT_HASH: &str = env!("EVENKEEL_LAYOUT_HASH");

/// A keyspace, except for its blocks.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct PassedKeyspace {
    epoch: bool,
    databases: Vec<PassedDb>,
    /// Keys that share memory with others.
    sharers: Vec<(usize, usize, Box<[u8]>)>,
    /// Keys whose deadline only this server knows, a replica.
    own: Vec<Name>,
    /// Bytes in blocks: of all kinds, and of those that can be compacted.
    used: usize,
    used_small: usize,
}

#[derive(Debug, Serialize, Deserialize)]
struct PassedDb {
    number: usize,
    /// The address of the first slot.
    slots: u64,
    keys: i64,
    timed: i64,
    hashes: i64,
    shared: u64,
    holes: u64,
}

impl Keyspace {
    /// The time from which deadlines in tables count, in milliseconds since 1970.
    pub fn start_ms(&self) -> u64 {
        self.start_ms
    }

    /// Sets that time, for a keyspace that takes over the blocks of another. Before there are any keys.
    pub fn with_start_ms(mut self, start_ms: u64) -> Keyspace {
        self.start_ms = start_ms;
        self
    }
}

impl SlotGuard<'_> {
    /// The keyspace without its blocks. Everything is held, and stays so until this process ends or knows
    /// that no other has taken over. No snapshot is in progress, and the memory has not been
    /// [suspended](evenkeel_slab::suspend) yet.
    pub fn pass(&self) -> PassedKeyspace {
        let keyspace = self.keyspace();
        let databases = (0..keyspace.all_databases())
            .filter_map(|number| Some((number, keyspace.db_if_used(number)?)))
            .map(|(number, db)| {
                let [keys, timed, hashes] = keyspace.db_counts(db.id);
                let Apart { shared, holes } = db.apart.get();
                PassedDb { number, slots: db.slots.address(), keys, timed, hashes, shared, holes }
            });
        let (used, used_small) = memory::blocks_in_use();
        PassedKeyspace {
            epoch: self.ctx.epoch,
            databases: databases.collect(),
            sharers: keyspace.sharers.all().map(|(place, key)| (place.db(), place.slot(), key)).collect(),
            own: keyspace.own_names(),
            used,
            used_small,
        }
    }

    /// Takes the databases of another process over. Everything is held, and the keyspace has no keys. Takes
    /// about 0.2 ms for each database in use, however many keys it has.
    ///
    /// # Safety
    /// `passed` comes from [`SlotGuard::pass`] of a process whose [`LAYOUT_HASH`] is the same, and whose
    /// memory this process has taken over. The hash secret of both keyspaces is the same, and so is
    /// [`Keyspace::start_ms`].
    pub unsafe fn take_over(&mut self, passed: PassedKeyspace) {
        let keyspace = self.keyspace();
        memory::add_blocks(passed.used, passed.used_small);
        self.ctx.epoch = passed.epoch;
        keyspace.snapshots.take_epoch_over(passed.epoch);
        for one in passed.databases {
            // SAFETY: by the caller's promise these are the slots of that process.
            let slots = unsafe { Slots::from_address(one.slots) };
            let db = keyspace.put_db(one.number, slots);
            find_occupied(db);
            let apart = Apart { shared: one.shared, holes: one.holes };
            db.apart.add(apart);
            keyspace.apart.add(apart);
            let tally = &self.ctx.tally.dbs[db.id];
            add_signed(&tally.keys, one.keys);
            add_signed(&tally.timed, one.timed);
            add_signed(&tally.hashes, one.hashes);
        }
        for (db, slot, key) in passed.sharers {
            keyspace.sharers.push(Place::new(db as u32, slot as u16), &key);
        }
        keyspace.take_own_over(passed.own);
    }
}

/// Finds the slots with keys and with deadlines, and forgets the other process' subscribers and journal.
fn find_occupied(db: &Db) {
    for (number, slot) in db.slots.iter().enumerate() {
        if slot.subscribers.load(Relaxed).addr() != 0 {
            SlotSubscribers::put(&slot.subscribers, None);
        }
        if slot.len() == 0 {
            continue;
        }
        db.occupied.set(number);
        if slot.timed_len() > 0 {
            db.timed.set(number);
        }
        if slot.has_timed_hashes() {
            db.hashes.set(number);
        }
    }
}
