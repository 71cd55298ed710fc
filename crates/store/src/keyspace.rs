//! The keyspace: databases, the gate around them, and the sums over all contexts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

use parking_lot::Mutex;

use crate::apart::{Apart, Sharers, Sum};
use crate::expiry::own::Own;
use crate::guard::SlotGuard;
use crate::guard::context::{DbTally, LeftBehind, Tally, ThreadContext, Total};
use crate::guard::gate::{Closed, Gate};
use crate::journal::Journal;
use crate::key::{Hasher, Key, Place, slot_of};
use crate::lazy_free::{Garbage, InPlace, LazyFree};
use crate::notify::events::Events;
use crate::notify::subscribers::SlotSubscribers;
use crate::notify::watch::{After, Change};
use crate::slot_set::SlotSet;
use crate::snapshot::Snapshots;
use crate::table::bits::SlotBits;
use crate::table::entry::EntryPtr;
use crate::table::slot::{Slot, Slots};
use crate::{Millis, SLOTS};

/// Milliseconds per unit of coarse deadlines: 32 bits of them last 8.7 years from the server's start.
const COARSE_MS: u64 = 64;

/// The number of databases that a [`Place`] has room for.
const DATABASES_MAX: usize = 1 << 18;

/// How far the clock may be set back below the time of the start. Below that, sweeps pause until it has
/// caught up.
const SET_BACK_MS: u64 = 24 * 60 * 60 * 1000;

/// A database.
pub(crate) struct Db {
    /// Index of its counters in each tally; stays with the data when databases are swapped.
    pub(crate) id: usize,
    pub(crate) slots: Slots,
    pub(crate) occupied: SlotBits,
    pub(crate) apart: Sum,
    /// Slots with keys that have a deadline of their own.
    pub(crate) timed: SlotBits,
    /// Slots with hashes whose fields have a deadline.
    pub(crate) hashes: SlotBits,
}

impl Db {
    fn new(id: usize) -> Db {
        Db::of(id, Slots::new())
    }

    /// A database with these slots, whose keys are not counted yet.
    fn of(id: usize, slots: Slots) -> Db {
        let bits = SlotBits::new;
        Db { id, slots, occupied: bits(), apart: Sum::default(), timed: bits(), hashes: bits() }
    }

    /// Calls `f` with each entry, which the caller then owns, and empties the database. No other thread can
    /// reach it.
    fn drain(&self, mut f: impl FnMut(EntryPtr)) {
        let mut from = 0;
        while let Some(slot) = self.occupied.next(from) {
            self.slots[slot].drain(&mut f);
            self.occupied.clear(slot);
            from = slot + 1;
        }
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        self.drain(|entry| drop(entry.free()));
        for slot in self.slots.iter() {
            drop(SlotSubscribers::take(&slot.subscribers));
        }
    }
}

/// A flushed database: dropping it frees its keys, which may take long.
pub struct Flushed(Box<Db>);

impl Flushed {
    /// Frees the keys here; values of several blocks go to [`LazyFree`], all together.
    pub fn free_keys(self, ctx: &ThreadContext) {
        let mut values = Vec::new();
        self.0.drain(|entry| values.extend(entry.free()));
        if let Some(garbage) = Garbage::of_all(values.into_iter()) {
            ctx.lazy_free.free(garbage);
        }
    }

    pub(crate) fn db(&self) -> &Db {
        &self.0
    }
}

/// The threads that were inside the gate at one moment; see [`Keyspace::in_flight`].
pub struct InFlight(Vec<u64>);

const _: () = assert!(crate::guard::gate::CONTEXTS_MAX <= 1 << crate::journal::CONTEXT_BITS);

/// See the module's documentation.
pub struct Keyspace {
    pub hasher: Hasher,
    pub(crate) gate: Gate,
    /// Null until first used. The hidden databases follow those that clients see, see [`Keyspace::hidden`].
    dbs: Box<[AtomicPtr<Db>]>,
    pub(crate) apart: Sum,
    pub(crate) sharers: Sharers,
    databases: usize,
    /// No thread removes a key because its deadline has passed. Changes behind the closed gate only.
    hides_expired: AtomicBool,
    /// Number of flushed and swapped databases.
    pub(crate) flushes: AtomicU64,
    /// See [`Keyspace::spare`].
    pub(crate) spared: SlotBits,
    /// Slots whose keys clients do not see, and whether there are any.
    hidden: SlotBits,
    hides: AtomicBool,
    /// The journal removes expired and evicted keys by UNLINK, in this order.
    pub(crate) unlinks: [AtomicBool; 2],
    /// Keys that meanwhile expire by this server's decision alone, and their number.
    pub(crate) own: Mutex<Own>,
    pub(crate) own_timed: AtomicUsize,
    /// Indices of unused counters.
    free_ids: Mutex<Vec<usize>>,
    tallies: Mutex<Vec<Arc<Tally>>>,
    contexts: usize,
    contexts_made: AtomicUsize,
    /// The time from which coarse deadlines count.
    pub(crate) start_ms: Millis,
    /// Number of watches and waits; FLUSHALL and SWAPDB look for subscribers only if there are any.
    pub(crate) watches: AtomicUsize,
    pub(crate) waits: AtomicUsize,
    /// See [`Keyspace::waited_keys`].
    pub(crate) waited_keys: [AtomicUsize; 2],
    /// The last ticket given to a waiter.
    pub(crate) tickets: AtomicU64,
    pub(crate) snapshots: Snapshots,
    pub journal: Journal,
    pub events: Events,
    random: AtomicU64,
    /// Also identifies the keyspace that a context belongs to.
    left_behind: Arc<LeftBehind>,
    lazy_free: Arc<dyn LazyFree>,
}

impl Keyspace {
    /// Creates `databases` empty databases for at most `contexts` threads. `now_ms` is the time of the start.
    pub fn new(databases: usize, contexts: usize, now_ms: Millis, random: u64) -> Keyspace {
        assert!((1..=DATABASES_MAX).contains(&databases), "1 to 262,144 databases");
        let all = if 2 * databases <= DATABASES_MAX { 2 * databases } else { databases };
        Keyspace {
            hasher: Hasher::default(),
            gate: Gate::new(contexts),
            dbs: (0..all).map(|_| AtomicPtr::default()).collect(),
            apart: Sum::default(),
            sharers: Sharers::default(),
            databases,
            hides_expired: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            spared: SlotBits::new(),
            hidden: SlotBits::new(),
            hides: AtomicBool::new(false),
            unlinks: [AtomicBool::new(true), AtomicBool::new(true)],
            own: Mutex::default(),
            own_timed: AtomicUsize::new(0),
            free_ids: Mutex::new((0..all).rev().collect()),
            tallies: Mutex::default(),
            contexts,
            contexts_made: AtomicUsize::new(0),
            start_ms: now_ms.saturating_sub(SET_BACK_MS),
            watches: AtomicUsize::new(0),
            waits: AtomicUsize::new(0),
            waited_keys: Default::default(),
            tickets: AtomicU64::new(0),
            snapshots: Snapshots::new(contexts),
            journal: Journal::new(contexts),
            events: Events::default(),
            random: AtomicU64::new(random | 1),
            left_behind: Arc::default(),
            lazy_free: Arc::new(InPlace),
        }
    }

    /// Sets the journal's clock, which is the same for all threads; see [`crate::journal`]. Its unit must not
    /// be longer than a write takes, and 2^53 units must be longer than the process lives.
    pub fn with_clock(mut self, clock: fn() -> u64) -> Keyspace {
        self.journal.set_clock(clock);
        self
    }

    /// Sets the hash function of keys and members, before there are any. By default its secret is random.
    pub fn with_hasher(mut self, hasher: Hasher) -> Keyspace {
        self.hasher = hasher;
        self
    }

    /// Hands values whose freeing would take long to `lazy_free`. Called before the first context is made.
    pub fn with_lazy_free(mut self, lazy_free: Arc<dyn LazyFree>) -> Keyspace {
        assert_eq!(*self.contexts_made.get_mut(), 0, "contexts have been made without it");
        self.lazy_free = lazy_free;
        self
    }

    /// Creates a context for a further thread. Panics if all are taken.
    pub fn thread_context(&self) -> ThreadContext {
        let index = self.contexts_made.fetch_add(1, Relaxed);
        assert!(index < self.contexts, "all {} contexts are taken", self.contexts);
        let dbs = (0..self.dbs.len()).map(|_| DbTally::default()).collect();
        let tally = Arc::new(Tally { dbs, ..Tally::default() });
        self.tallies.lock().push(tally.clone());
        let random =
            self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ThreadContext::new(index, tally, self.left_behind.clone(), self.lazy_free.clone(), random)
    }

    /// Number of databases that clients can select.
    pub fn databases(&self) -> usize {
        self.databases
    }

    /// Number of the hidden database of `db`, which no command reaches. A data set is loaded there beside the
    /// present data set while clients use `db`, and then the two are swapped. `None` if there are too many
    /// databases for that.
    pub fn hidden(&self, db: usize) -> Option<usize> {
        let hidden = db + self.databases;
        (hidden < self.dbs.len()).then_some(hidden)
    }

    /// Number of databases, including the hidden ones.
    pub(crate) fn all_databases(&self) -> usize {
        self.dbs.len()
    }

    /// Returns true if expired keys stay until a command removes them; for callers inside the gate.
    pub(crate) fn hides_expired(&self) -> bool {
        self.hides_expired.load(Relaxed)
    }

    /// Sets whether the journal removes expired and evicted keys by UNLINK. Otherwise, it does so by DEL.
    pub fn set_unlinks(&self, expired: bool, evicted: bool) {
        self.unlinks[0].store(expired, Relaxed);
        self.unlinks[1].store(evicted, Relaxed);
    }

    /// Number of databases that were flushed or swapped since the start. For callers inside the gate.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Relaxed)
    }

    /// Sets the slots in which only commands remove keys: no key there expires or is evicted. Each thread
    /// follows with its next lock of a slot.
    pub fn spare(&self, slots: &SlotSet) {
        self.spared.set_all(slots);
    }

    /// Sets the slots whose keys are not those of clients: they arrive, or are left of a move.
    pub fn hide(&self, slots: &SlotSet) {
        self.hidden.set_all(slots);
        self.hides.store(self.hidden.next(0).is_some(), Release);
    }

    /// Whether clients do not see a key, in walks over all keys.
    #[inline]
    pub fn hides_key(&self, key: &[u8]) -> bool {
        self.hides.load(Relaxed) && self.hidden.has(usize::from(slot_of(key)))
    }

    /// Number of keys of a database that clients see. The context must be inside.
    pub fn visible_len(&self, ctx: &ThreadContext, db: usize) -> usize {
        let mut len = self.len(ctx, db);
        if self.hides.load(Relaxed) {
            let mut from = 0;
            while let Some(slot) = self.hidden.next(from) {
                len = len.saturating_sub(self.slot_len(ctx, db, slot as u16));
                from = slot + 1;
            }
        }
        len
    }

    pub(crate) fn hide_expired(&self, hide: bool) {
        self.hides_expired.store(hide, Relaxed);
    }

    /// Tells the order of keys in a scan from that of another process, whose secret differs. Reveals nothing
    /// of the secret, as no hash does.
    pub fn fingerprint(&self) -> u32 {
        self.hasher.hash(b"order of keys") as u32
    }

    #[inline]
    pub fn key<'a>(&self, db: u32, bytes: &'a [u8]) -> Key<'a> {
        self.hasher.key(db, bytes)
    }

    /// Enters the gate; see [`Gate`]. The caller must leave soon, since a thread that needs everything at
    /// rest waits for it.
    #[inline]
    pub fn enter(&self, ctx: &mut ThreadContext) {
        assert!(!ctx.inside, "a context enters once");
        assert!(Arc::ptr_eq(&ctx.left_behind, &self.left_behind), "a context is used with its own keyspace");
        self.gate.enter(ctx.index);
        ctx.inside = true;
        self.sync_flags(ctx);
    }

    /// Like [`Keyspace::enter`], but stays outside and returns `false` if `refuse` returns true while the
    /// gate is closed.
    #[inline]
    pub fn enter_unless(&self, ctx: &mut ThreadContext, refuse: impl Fn() -> bool) -> bool {
        assert!(!ctx.inside, "a context enters once");
        assert!(Arc::ptr_eq(&ctx.left_behind, &self.left_behind), "a context is used with its own keyspace");
        ctx.inside = self.gate.enter_unless(ctx.index, refuse);
        if ctx.inside {
            self.sync_flags(ctx);
        }
        ctx.inside
    }

    /// Like [`Keyspace::enter_unless`], with the context's own flag as `refuse`; see
    /// [`ThreadContext::gate_busy`].
    pub fn try_enter(&self, ctx: &mut ThreadContext) -> bool {
        let busy = ctx.gate_busy.clone();
        self.enter_unless(ctx, || busy.as_ref().is_some_and(|busy| busy.load(Acquire)))
    }

    /// Copies the flags that change only behind the closed gate into a context.
    #[inline]
    pub(crate) fn sync_flags(&self, ctx: &mut ThreadContext) {
        ctx.epoch = self.snapshots.epoch();
        ctx.buffer.is_on = self.journal.is_on() && !ctx.is_mute;
        ctx.buffer.has_replicas = self.journal.has_replicas() && !ctx.is_mute;
        ctx.hides_expired = self.hides_expired();
    }

    /// Publishes the context's journal records and kept entries, before it leaves.
    #[inline]
    pub(crate) fn publish(&self, ctx: &mut ThreadContext) {
        if !ctx.kept.is_empty() {
            self.snapshots.publish(ctx);
        }
        if !ctx.buffer.is_empty() {
            self.journal.publish(ctx.index, &mut ctx.buffer);
        }
    }

    #[inline]
    pub fn leave(&self, ctx: &mut ThreadContext) {
        self.assert_inside(ctx);
        assert!(!ctx.holding, "a context leaves with nothing held");
        self.publish(ctx);
        self.gate.leave(ctx.index);
        ctx.inside = false;
        if ctx.retired.are_many() {
            ctx.free_retired(&self.gate);
        }
    }

    /// Leaves if a panic has left the context inside. Its guards were dropped while unwinding.
    pub fn leave_after_panic(&self, ctx: &mut ThreadContext) {
        if ctx.inside {
            self.leave(ctx);
        }
    }

    /// Records which threads are inside the gate. When [`Keyspace::has_landed`] returns true, all of them
    /// have left: any work inside the gate from then on began after this call, and sees all that the caller
    /// wrote before it. So a thread that revokes a permission can tell when the last command admitted before
    /// has ended.
    pub fn in_flight(&self) -> InFlight {
        let mut counts = Vec::new();
        self.gate.glance(&mut counts);
        InFlight(counts)
    }

    /// See [`Keyspace::in_flight`]. Called from outside the gate.
    pub fn has_landed(&self, in_flight: &InFlight) -> bool {
        self.gate.all_passed(&in_flight.0, usize::MAX)
    }

    /// Panics unless the context is inside. Databases are looked up, slots locked and tables read inside the
    /// gate only.
    #[inline]
    pub(crate) fn assert_inside(&self, ctx: &ThreadContext) {
        let own = Arc::ptr_eq(&ctx.left_behind, &self.left_behind);
        assert!(ctx.inside && own, "the context is inside the gate of its keyspace");
    }

    /// Also panics if the context has a guard: a second lock could wait for this very thread.
    #[inline]
    pub(crate) fn assert_free(&self, ctx: &ThreadContext) {
        self.assert_inside(ctx);
        assert!(!ctx.holding, "a context has one guard at a time");
    }

    /// Frees retired tables. Called now and then, from outside the gate.
    pub fn tidy(&self, ctx: &mut ThreadContext) {
        ctx.free_retired(&self.gate);
    }

    /// Leaves and enters again, and frees retired tables that no other thread can be reading: for a thread
    /// inside that needs memory now. Returns true if it is inside again; see [`ThreadContext::gate_busy`].
    pub fn step_out(&self, ctx: &mut ThreadContext) -> bool {
        self.leave(ctx);
        // The first call is for tables that waited for threads which have passed by now, the second for
        // tables retired since.
        self.tidy(ctx);
        self.tidy(ctx);
        self.try_enter(ctx)
    }

    /// Locks the slots of a command's keys. `places` is sorted here and may hold duplicates.
    pub fn hold<'a>(&'a self, ctx: &'a mut ThreadContext, places: &'a mut Vec<Place>) -> SlotGuard<'a> {
        places.sort_unstable();
        places.dedup();
        SlotGuard::many(self, ctx, places)
    }

    /// Like [`Keyspace::hold`], for a write: also locks the slots that serving waiters may take, see
    /// [`crate::notify::wait`].
    pub fn hold_to_write<'a>(
        &'a self,
        ctx: &'a mut ThreadContext,
        places: &'a mut Vec<Place>,
    ) -> SlotGuard<'a> {
        SlotGuard::to_write(self, ctx, places)
    }

    /// Locks the slot of a command's only key.
    #[inline]
    pub fn hold_one<'a>(&'a self, ctx: &'a mut ThreadContext, place: Place) -> SlotGuard<'a> {
        SlotGuard::one(self, ctx, place)
    }

    /// Holds nothing yet: for walks from slot to slot, see [`SlotGuard::visit`].
    #[inline]
    pub fn hold_none<'a>(&'a self, ctx: &'a mut ThreadContext) -> SlotGuard<'a> {
        SlotGuard::none(self, ctx)
    }

    /// Holds nothing, for a caller outside the gate that touches no data: any access panics.
    pub fn hold_outside<'a>(&'a self, ctx: &'a mut ThreadContext) -> SlotGuard<'a> {
        SlotGuard::outside(self, ctx)
    }

    /// Waits until no other thread is inside, and holds everything. The context is inside before and
    /// afterwards.
    pub fn hold_all<'a>(&'a self, ctx: &'a mut ThreadContext) -> SlotGuard<'a> {
        SlotGuard::all(self, ctx)
    }

    /// Like [`Keyspace::hold_all`], for a thread that may have clients to answer instead. `None`: the context
    /// is outside, see [`ThreadContext::gate_busy`].
    pub fn try_hold_all<'a>(&'a self, ctx: &'a mut ThreadContext) -> Option<SlotGuard<'a>> {
        SlotGuard::try_all(self, ctx)
    }

    pub(crate) fn close(&self, ctx: &ThreadContext) -> Closed<'_> {
        self.gate.close(ctx.index)
    }

    pub(crate) fn try_close(&self, ctx: &mut ThreadContext) -> Option<Closed<'_>> {
        let closed = self.gate.close_unless(ctx.index, || ctx.refuses_to_wait());
        ctx.inside = closed.is_some();
        closed
    }

    #[inline]
    pub(crate) fn db_if_used(&self, db: usize) -> Option<&Db> {
        // SAFETY: a database's address changes only behind the closed gate, and callers are inside it.
        unsafe { self.dbs[db].load(Acquire).as_ref() }
    }

    #[inline]
    pub(crate) fn db(&self, db: usize) -> &Db {
        match self.db_if_used(db) {
            Some(db) => db,
            None => self.open_db(db),
        }
    }

    /// Puts a database with these slots, which may have keys, in place of one that was never used. Everything
    /// is held.
    pub(crate) fn put_db(&self, number: usize, slots: Slots) -> &Db {
        assert!(self.dbs[number].load(Acquire).is_null(), "the database was never used");
        let id = self.free_ids.lock().pop().expect("as many counters as databases");
        let db = Box::new(Db::of(id, slots));
        self.dbs[number].store(Box::into_raw(db), Release);
        self.db_if_used(number).expect("just made")
    }

    /// Number of keys, of keys with a deadline and of hashes with timed fields in a database. Everything is
    /// held.
    pub(crate) fn db_counts(&self, id: usize) -> [i64; 3] {
        let tallies = self.tallies.lock();
        let sum = |count: fn(&DbTally) -> &std::sync::atomic::AtomicI64| {
            tallies.iter().map(|tally| count(&tally.dbs[id]).load(Relaxed)).sum()
        };
        [sum(|tally| &tally.keys), sum(|tally| &tally.timed), sum(|tally| &tally.hashes)]
    }

    #[cold]
    fn open_db(&self, db: usize) -> &Db {
        let mut ids = self.free_ids.lock();
        if self.dbs[db].load(Acquire).is_null() {
            let id = ids.pop().expect("as many counters as databases");
            self.dbs[db].store(Box::into_raw(Box::new(Db::new(id))), Release);
        }
        drop(ids);
        self.db_if_used(db).expect("just made, and flushed only while everything is held")
    }

    /// Bytes that all values would take, stored separately and in full, beyond the bytes they take now.
    pub fn apart(&self) -> Apart {
        self.apart.get()
    }

    /// Number of keys that wait for [`SlotGuard::appraise_next`].
    pub fn sharers(&self) -> usize {
        self.sharers.len()
    }

    /// Empties a database. Everything is held; the caller drops the result where time does not matter.
    pub(crate) fn flush(&self, db: usize, ctx: &mut ThreadContext) -> Option<Flushed> {
        let old = self.dbs[db].swap(std::ptr::null_mut(), AcqRel);
        if old.is_null() {
            return None;
        }
        // SAFETY: the pointer came from `Box::into_raw`, everything is held, and no thread can reach it any
        // more.
        let old = unsafe { Box::from_raw(old) };
        for tally in self.tallies.lock().iter() {
            tally.dbs[old.id].keys.store(0, Relaxed);
            tally.dbs[old.id].timed.store(0, Relaxed);
            tally.dbs[old.id].hashes.store(0, Relaxed);
        }
        self.apart.subtract(old.apart.get());
        self.free_ids.lock().push(old.id);
        if db >= self.databases {
            // no client watches or waits there, and none needs it soon
            return self.snapshots.keep_flushed(Flushed(old));
        }
        // Created now rather than with the next key, which would seem to cost half a megabyte.
        let new = self.db(db);
        if self.has_subscribers() {
            for (number, (slot, new)) in old.slots.iter().zip(new.slots.iter()).enumerate() {
                let Some(mut subscribers) = SlotSubscribers::take(&slot.subscribers) else { continue };
                subscribers.watchers.touch_all(|key| {
                    let before = slot.find(self.hasher.hash(key), key).is_some();
                    Change::Replaced { before, after: After::Nothing }
                });
                ctx.wake_all(&mut subscribers.waiters, Place::new(db as u32, number as u16));
                SlotSubscribers::put(&new.subscribers, Some(subscribers));
            }
        }
        self.snapshots.keep_flushed(Flushed(old))
    }

    /// Exchanges two databases. Everything is held.
    pub(crate) fn swap(&self, a: usize, b: usize, ctx: &mut ThreadContext) {
        if a == b {
            return;
        }
        if self.has_subscribers() {
            let (first, second) = (self.db(a), self.db(b));
            for (number, (one, other)) in first.slots.iter().zip(second.slots.iter()).enumerate() {
                let place = |db: usize| Place::new(db as u32, number as u16);
                let ones = self.subscribers_after_swap(one, other, place(a), ctx);
                let others = self.subscribers_after_swap(other, one, place(b), ctx);
                SlotSubscribers::put(&one.subscribers, others);
                SlotSubscribers::put(&other.subscribers, ones);
            }
        }
        let first = self.dbs[a].load(Acquire);
        self.dbs[a].store(self.dbs[b].load(Acquire), Release);
        self.dbs[b].store(first, Release);
    }

    /// Takes out the subscribers of the slot at `place`, and notifies them that another slot comes there.
    fn subscribers_after_swap(
        &self,
        old: &Slot,
        new: &Slot,
        place: Place,
        ctx: &mut ThreadContext,
    ) -> Option<Box<SlotSubscribers>> {
        let mut subscribers = SlotSubscribers::take(&old.subscribers)?;
        subscribers.watchers.touch_all(|key| self.replaced(old, new, key, ctx.now_ms));
        ctx.wake_all(&mut subscribers.waiters, place);
        Some(subscribers)
    }

    /// Records all keys of a database that have waiters. Everything is held.
    pub(crate) fn wake_waiters(&self, db: usize, ctx: &mut ThreadContext) {
        if self.waits.load(Relaxed) == 0 {
            return;
        }
        let Some(database) = self.db_if_used(db) else { return };
        for (number, slot) in database.slots.iter().enumerate() {
            let place = Place::new(db as u32, number as u16);
            SlotSubscribers::if_any(&slot.subscribers, |subscribers| {
                ctx.wake_all(&mut subscribers.waiters, place)
            });
        }
    }

    fn has_subscribers(&self) -> bool {
        self.watches.load(Relaxed) > 0 || self.waits.load(Relaxed) > 0
    }

    /// The change of a key when a slot replaces another.
    fn replaced(&self, before: &Slot, after: &Slot, key: &[u8], now_ms: Millis) -> Change {
        let hash = self.hasher.hash(key);
        let after = match after.find(hash, key).map(|found| found.entry().deadline()) {
            None => After::Nothing,
            Some(Some(deadline)) if deadline <= now_ms => After::Expired,
            Some(_) => After::Live,
        };
        Change::Replaced { before: before.find(hash, key).is_some(), after }
    }

    /// Number of keys of a database, including expired keys not yet removed. The context must be inside.
    pub fn len(&self, ctx: &ThreadContext, db: usize) -> usize {
        self.sum(ctx, db, |tally| tally.keys.load(Relaxed))
    }

    /// Returns true if a database has no keys.
    pub fn is_empty(&self, ctx: &ThreadContext, db: usize) -> bool {
        self.len(ctx, db) == 0
    }

    /// Number of keys of a database that have a deadline of their own. The context must be inside.
    pub fn timed_len(&self, ctx: &ThreadContext, db: usize) -> usize {
        self.sum(ctx, db, |tally| tally.timed.load(Relaxed))
    }

    /// Number of hashes of a database with fields that have a deadline. The context must be inside.
    pub fn timed_hashes(&self, ctx: &ThreadContext, db: usize) -> usize {
        self.sum(ctx, db, |tally| tally.hashes.load(Relaxed))
    }

    fn sum(&self, ctx: &ThreadContext, db: usize, count: impl Fn(&DbTally) -> i64) -> usize {
        self.assert_inside(ctx);
        let Some(db) = self.db_if_used(db) else { return 0 };
        let sum: i64 = self.tallies.lock().iter().map(|tally| count(&tally.dbs[db.id])).sum();
        sum.max(0) as usize
    }

    /// The sum of the counters of all contexts.
    pub fn total(&self) -> Total {
        let mut total = Total::default();
        for tally in self.tallies.lock().iter() {
            total.hits += tally.hits.load(Relaxed);
            total.misses += tally.misses.load(Relaxed);
            total.expired += tally.expired.load(Relaxed);
            total.expired_fields += tally.expired_fields.load(Relaxed);
            total.expired_in_sweeps += tally.expired_in_sweeps.load(Relaxed);
            total.evicted += tally.evicted.load(Relaxed);
            // Before `dirty`, so that each unrequested write read here is also among `dirty`.
            total.unasked += tally.unasked.load(Acquire);
            total.dirty += tally.dirty.load(Relaxed);
        }
        total
    }

    /// CONFIG RESETSTAT: resets all counters except those of writes. A concurrent count may survive.
    pub fn reset_totals(&self) {
        for tally in self.tallies.lock().iter() {
            let of_keys = [&tally.expired, &tally.expired_in_sweeps, &tally.evicted];
            for counter in of_keys.into_iter().chain([&tally.hits, &tally.misses, &tally.expired_fields]) {
                counter.store(0, Relaxed);
            }
        }
    }

    /// Memory of a database's tables, in bytes: slots and segments. The context must be inside.
    pub fn table_memory(&self, ctx: &ThreadContext, db: usize) -> usize {
        self.assert_inside(ctx);
        let Some(db) = self.db_if_used(db) else { return 0 };
        let mut bytes = size_of::<[crate::table::slot::Slot; SLOTS]>();
        let mut from = 0;
        while let Some(slot) = db.occupied.next(from) {
            // Counting walks the segments, so it needs the lock.
            let slot_ref = &db.slots[slot];
            slot_ref.lock();
            bytes += slot_ref.memory();
            // SAFETY: locked two lines above.
            unsafe { slot_ref.unlock() };
            from = slot + 1;
        }
        bytes
    }

    /// Number of keys of a slot of a database. The context must be inside.
    pub fn slot_len(&self, ctx: &ThreadContext, db: usize, slot: u16) -> usize {
        self.assert_inside(ctx);
        self.db_if_used(db).map_or(0, |db| db.slots[usize::from(slot)].len())
    }

    /// Number of keys of each slot of a database; empty if the database was never used. Slots that other
    /// threads write meanwhile have their number from before or after. The context must be inside.
    pub fn slot_lens(&self, ctx: &ThreadContext, db: usize) -> Vec<u32> {
        self.assert_inside(ctx);
        let lens = |db: &Db| db.slots.iter().map(|slot| slot.len() as u32).collect();
        self.db_if_used(db).map(lens).unwrap_or_default()
    }

    /// A deadline in coarse units, rounded up: a key that is due in coarse units is due.
    #[inline]
    pub(crate) fn coarse(&self, deadline: Millis) -> u32 {
        let units = deadline.saturating_sub(self.start_ms).div_ceil(COARSE_MS) + 1;
        units.min(u64::from(crate::table::slot::NEVER) - 1) as u32
    }

    /// The present in coarse units, rounded down. Before the start of the count it is zero, and nothing is
    /// due.
    #[inline]
    pub(crate) fn coarse_now(&self, now: Millis) -> u32 {
        let units = now.checked_sub(self.start_ms).map_or(0, |elapsed| elapsed / COARSE_MS + 1);
        units.min(u64::from(crate::table::slot::NEVER) - 2) as u32
    }
}

impl Drop for Keyspace {
    fn drop(&mut self) {
        for db in &self.dbs {
            let db = db.swap(std::ptr::null_mut(), AcqRel);
            if !db.is_null() {
                // SAFETY: the pointer came from `Box::into_raw`, and no other thread can reach it.
                drop(unsafe { Box::from_raw(db) });
            }
        }
    }
}
