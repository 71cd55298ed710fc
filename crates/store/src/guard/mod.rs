//! The guard of a command: the locked slots of its keys, and all operations on the keys in them.
//!
//! Locks of commands are taken here and nowhere else, in ascending order of places, so two commands can never
//! wait for each other. (`Keyspace::table_memory` locks one slot at a time.) A key outside the held slots
//! is a bug of the caller and panics: a command reaches only the keys that it declared.

pub mod ahead;
mod clear;
mod collections;
pub(crate) mod context;
mod databases;
mod entries;
mod events;
pub mod gate;
pub(crate) mod logging;
mod read;
mod scan;
mod strings;
pub(crate) mod undo;
mod wait;
mod watch;
mod write;

use std::sync::atomic::Ordering::{Relaxed, Release};

use crate::guard::context::ThreadContext;
use crate::guard::gate::Closed;
use crate::key::{Key, Place};
use crate::keyspace::{Db, Keyspace};
use crate::notify::subscribers::SlotSubscribers;
use crate::table::slot::Slot;

pub use self::collections::Edit;
pub use self::entries::Concerns;
pub use self::strings::{Edited, Made};

/// The key holds another type of value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongType;

enum Scope<'a> {
    None,
    One(Place),
    /// Ascending, without duplicates.
    Many(&'a [Place]),
    All(#[expect(dead_code, reason = "opens the gate when dropped")] Closed<'a>),
}

/// See the module's documentation. Dropping the guard unlocks.
pub struct SlotGuard<'a> {
    keyspace: &'a Keyspace,
    pub ctx: &'a mut ThreadContext,
    scope: Scope<'a>,
    /// The slot has watchers or waiters. Set only if a single slot is held.
    listened: bool,
}

impl<'a> SlotGuard<'a> {
    #[inline]
    pub(crate) fn one(keyspace: &'a Keyspace, ctx: &'a mut ThreadContext, place: Place) -> SlotGuard<'a> {
        keyspace.assert_free(ctx);
        let listened = SlotSubscribers::is_there(&lock(keyspace, ctx, place).subscribers);
        ctx.holding = true;
        SlotGuard { keyspace, ctx, scope: Scope::One(place), listened }
    }

    /// `places` are ascending and without duplicates.
    pub(crate) fn many(
        keyspace: &'a Keyspace,
        ctx: &'a mut ThreadContext,
        places: &'a [Place],
    ) -> SlotGuard<'a> {
        keyspace.assert_free(ctx);
        lock_all(keyspace, ctx, places);
        ctx.holding = true;
        SlotGuard { keyspace, ctx, scope: Scope::Many(places), listened: false }
    }

    /// Locks `places`, sorted here, and the slots that serving waiters may take: first for waiters in
    /// `places`, then for waiters in the slots added, and so on. If slots are missing, all are unlocked and
    /// locked anew, in ascending order.
    pub(crate) fn to_write(
        keyspace: &'a Keyspace,
        ctx: &'a mut ThreadContext,
        places: &'a mut Vec<Place>,
    ) -> SlotGuard<'a> {
        /// More rounds than waiters are ever linked. If waiters come faster than that, everything is held.
        const ROUNDS_MAX: usize = 64;
        keyspace.assert_free(ctx);
        for _ in 0..ROUNDS_MAX {
            places.sort_unstable();
            places.dedup();
            lock_all(keyspace, ctx, places);
            let more = keyspace.beyond(places);
            if more.is_empty() {
                ctx.holding = true;
                return SlotGuard { keyspace, ctx, scope: Scope::Many(places), listened: false };
            }
            unlock_all(keyspace, places);
            places.extend(more);
        }
        SlotGuard::all(keyspace, ctx)
    }

    pub(crate) fn all(keyspace: &'a Keyspace, ctx: &'a mut ThreadContext) -> SlotGuard<'a> {
        keyspace.assert_free(ctx);
        keyspace.publish(ctx);
        let closed = keyspace.close(ctx);
        SlotGuard::behind(closed, keyspace, ctx)
    }

    /// Like [`SlotGuard::all`]. Returns `None` if another thread keeps the gate closed for long; the context
    /// then stays outside.
    pub(crate) fn try_all(keyspace: &'a Keyspace, ctx: &'a mut ThreadContext) -> Option<SlotGuard<'a>> {
        keyspace.assert_free(ctx);
        keyspace.publish(ctx);
        let closed = keyspace.try_close(ctx)?;
        Some(SlotGuard::behind(closed, keyspace, ctx))
    }

    fn behind(closed: Closed<'a>, keyspace: &'a Keyspace, ctx: &'a mut ThreadContext) -> SlotGuard<'a> {
        keyspace.sync_flags(ctx);
        if keyspace.journal.is_on() {
            keyspace.journal.last(); // slots may go, and later records come after all earlier ones
        }
        ctx.holding = true;
        SlotGuard { keyspace, ctx, scope: Scope::All(closed), listened: false }
    }

    pub(crate) fn none(keyspace: &'a Keyspace, ctx: &'a mut ThreadContext) -> SlotGuard<'a> {
        keyspace.assert_free(ctx);
        SlotGuard { keyspace, ctx, scope: Scope::None, listened: false }
    }

    pub(crate) fn outside(keyspace: &'a Keyspace, ctx: &'a mut ThreadContext) -> SlotGuard<'a> {
        assert!(!ctx.inside, "a context inside the gate holds nothing in there instead");
        SlotGuard { keyspace, ctx, scope: Scope::None, listened: false }
    }

    /// Returns true if the held slot has watchers or waiters. Without meaning if more slots are held.
    #[inline]
    pub fn has_listeners(&self) -> bool {
        self.listened
    }

    pub fn keyspace(&self) -> &'a Keyspace {
        self.keyspace
    }

    /// Returns true if this slot is held.
    #[inline]
    pub fn holds(&self, place: Place) -> bool {
        match &self.scope {
            Scope::One(one) => *one == place,
            Scope::Many(places) => places.binary_search(&place).is_ok(),
            Scope::All(_) => true,
            Scope::None => false,
        }
    }

    /// Returns true if everything is held.
    pub fn holds_all(&self) -> bool {
        matches!(self.scope, Scope::All(_))
    }

    /// Locks a slot while `f` runs. The caller holds nothing, or that slot.
    pub fn visit<R>(&mut self, place: Place, f: impl FnOnce(&mut Self) -> R) -> R {
        match self.scope {
            _ if self.holds(place) => f(self),
            Scope::None => {
                self.keyspace.assert_inside(self.ctx);
                lock(self.keyspace, self.ctx, place);
                self.scope = Scope::One(place);
                self.ctx.holding = true;
                let result = f(self);
                self.unlock();
                self.scope = Scope::None;
                result
            }
            _ => panic!("one slot at a time: a second lock could wait for this thread"),
        }
    }

    /// Frees retired tables if there are many. Called between two commands of a script or a transaction,
    /// which would otherwise keep all of them until its end.
    #[inline]
    pub fn tidy_between_commands(&mut self) {
        if self.ctx.retired.are_many() {
            // The first call is for tables that waited for threads which have left the gate by now, the
            // second for tables retired since.
            self.ctx.free_retired(&self.keyspace.gate);
            self.ctx.free_retired(&self.keyspace.gate);
        }
    }

    /// Lets a thread that wants to close the gate go first. For a caller that holds nothing and works long:
    /// values read earlier may be stale afterwards. Does nothing if locks are held. Returns false if the
    /// closer takes long: the context is then outside, and the caller must give up its work; see
    /// [`ThreadContext::gate_busy`].
    #[must_use]
    pub fn give_way(&mut self) -> bool {
        if matches!(self.scope, Scope::None) && self.keyspace.gate.is_closed() {
            self.keyspace.leave(self.ctx);
            return self.keyspace.try_enter(self.ctx);
        }
        true
    }

    /// Runs `f` outside the gate. `f` takes long and touches no data, so it delays no thread that needs
    /// everything at rest. Values read earlier may be stale afterwards. If locks are held, `f` runs in place.
    /// A context with [`ThreadContext::gate_busy`] may be outside afterwards: its thread then touches no
    /// data.
    pub fn outside_gate<R>(&mut self, f: impl FnOnce() -> R) -> R {
        if !matches!(self.scope, Scope::None) {
            return f();
        }
        let _exit = GateExit::begin(self.keyspace, self.ctx);
        f()
    }

    /// Unlocks the slots, once listeners and the journal have the changes.
    fn unlock(&mut self) {
        self.notify_listener();
        self.commit();
        if self.ctx.records_seen {
            self.record_seen();
        }
        let places = match &self.scope {
            Scope::One(place) => std::slice::from_ref(place),
            Scope::Many(places) => places,
            Scope::None | Scope::All(_) => &[],
        };
        unlock_all(self.keyspace, places);
        self.ctx.holding = false;
    }

    /// Notes the last record that the held slots have: the caller may have seen its effect.
    #[cold]
    fn record_seen(&mut self) {
        let last = match &self.scope {
            Scope::None => return,
            Scope::All(_) => self.keyspace.journal.last(),
            Scope::One(_) | Scope::Many(_) => self.last_logged(),
        };
        self.ctx.seen = self.ctx.seen.max(last);
    }

    /// The largest record number of the slots held; zero if everything is held.
    #[inline]
    pub(crate) fn last_logged(&self) -> u64 {
        let logged = |place: &Place| SlotSubscribers::logged(&slot(self.keyspace, *place).subscribers);
        match &self.scope {
            Scope::One(place) => logged(place),
            Scope::Many(places) => places.iter().map(logged).max().unwrap_or(0),
            Scope::None | Scope::All(_) => 0,
        }
    }

    /// Stores the number of the last record with the slots held.
    #[inline]
    pub(crate) fn set_logged(&self, number: u64) {
        let set =
            |place: &Place| SlotSubscribers::set_logged(&slot(self.keyspace, *place).subscribers, number);
        match &self.scope {
            Scope::One(place) => set(place),
            Scope::Many(places) => places.iter().for_each(set),
            Scope::None | Scope::All(_) => {}
        }
    }

    #[inline]
    pub(crate) fn slot_at(&self, place: Place) -> (&'a Db, &'a Slot) {
        assert!(self.holds(place), "a key outside the slots that its command holds");
        let db = self.keyspace.db(place.db());
        (db, &db.slots[place.slot()])
    }

    #[inline]
    fn slot(&self, key: &Key<'_>) -> (&'a Db, &'a Slot) {
        self.slot_at(key.place)
    }

    pub(crate) fn slot_of_place(&self, place: Place) -> &'a Slot {
        self.slot_at(place).1
    }

    /// Runs `f`, whose changes no client requested: save points do not count them.
    #[inline]
    pub fn unasked<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let before = self.ctx.tally.asked();
        let result = f(self);
        // Not by adding the difference: `f` may itself contain unrequested changes.
        let tally = &self.ctx.tally;
        tally.unasked.store(tally.dirty.load(Relaxed).wrapping_sub(before), Release);
        result
    }
}

impl Drop for SlotGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.unlock();
    }
}

/// Locks slots, given in ascending order.
fn lock_all(keyspace: &Keyspace, ctx: &mut ThreadContext, places: &[Place]) {
    // Checked before the first lock is taken: a panic after it would leave the first slot locked.
    assert!(places.last().is_none_or(|place| place.db() < keyspace.all_databases()), "no such database");
    for place in places {
        lock(keyspace, ctx, *place);
    }
}

/// Unlocks slots that this thread has locked.
#[inline]
fn unlock_all(keyspace: &Keyspace, places: &[Place]) {
    for place in places {
        // SAFETY: the callers have locked these slots and not unlocked them since.
        unsafe { slot(keyspace, *place).unlock() }
    }
}

#[inline]
fn slot(keyspace: &Keyspace, place: Place) -> &Slot {
    &keyspace.db(place.db()).slots[place.slot()]
}

/// Locks a slot, and measures the wait if another thread holds it.
#[inline]
fn lock<'a>(keyspace: &'a Keyspace, ctx: &mut ThreadContext, place: Place) -> &'a Slot {
    let slot = slot(keyspace, place);
    if !slot.try_lock() {
        let before = (ctx.ticks)();
        slot.lock();
        ctx.lock_wait += (ctx.ticks)().saturating_sub(before);
    }
    slot
}

/// A context outside the gate for a while. Dropping it enters again if that is allowed, also after a panic.
struct GateExit<'a> {
    keyspace: &'a Keyspace,
    ctx: &'a mut ThreadContext,
}

impl<'a> GateExit<'a> {
    fn begin(keyspace: &'a Keyspace, ctx: &'a mut ThreadContext) -> GateExit<'a> {
        keyspace.leave(ctx);
        GateExit { keyspace, ctx }
    }
}

impl Drop for GateExit<'_> {
    fn drop(&mut self) {
        self.keyspace.try_enter(self.ctx);
    }
}
