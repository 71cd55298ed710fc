//! The guard of a command: the locked slots of its keys, and all operations on the keys in them.
//!
//! Locks are taken here and nowhere else, in ascending order of places, so two commands can never wait for
//! each other. A key outside the held slots is a bug of the caller and panics: a command reaches only the
//! keys that it declared.

pub mod ahead;
pub(crate) mod context;
mod events;
pub mod gate;
mod logging;
mod scan;
mod strings;
pub(crate) mod undo;
mod wait;
mod watch;

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::{Relaxed, Release};

use crate::Millis;
use crate::guard::context::{Access, ThreadContext, add, add_signed};
use crate::guard::gate::Closed;
use crate::key::{Key, Place};
use crate::keyspace::{Db, Flushed, Keyspace};
use crate::notify::events::What;
use crate::notify::subscribers::SlotSubscribers;
use crate::notify::watch::Change;
use crate::table::access;
use crate::table::entry::{EntryPtr, Ref, Times, Value, View};
use crate::table::segment::Word;
use crate::table::slot::{Found, Slot};
use crate::value::collection::{Collection, Cut};
use crate::value::heap_value::HeapValue;

pub use self::strings::{Edited, Made};

/// The key holds another type of value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongType;

/// The subscribers that a change notifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concerns {
    Everybody,
    /// Waiters for the key, but not its watchers.
    Waiters,
    Nobody,
}

/// A collection being changed.
pub struct Edit<'v, T> {
    value: &'v mut T,
    /// Number of changes to count. With zero, no subscriber is notified, and the form stays.
    pub changes: u64,
    /// `Everybody`, unless only the record that the collection keeps of its readers has changed.
    pub concerns: Concerns,
    /// The form for OBJECT ENCODING: zero for the most compact, three at most.
    pub form: u8,
    cut: Vec<Cut>,
}

impl<'v, T> Edit<'v, T> {
    fn new(value: &'v mut T, form: u8) -> Edit<'v, T> {
        Edit { value, changes: 0, concerns: Concerns::Everybody, form, cut: Vec::new() }
    }

    /// Frees a part that was cut off the collection; the lazy-free thread does so if it takes long.
    pub fn discard(&mut self, cut: Cut) {
        self.cut.push(cut);
    }
}

impl<T> Deref for Edit<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> DerefMut for Edit<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value
    }
}

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
        assert!(!ctx.inside, "who is inside holds something or nothing in there");
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
        let _stroll = GateExit::begin(self.keyspace, self.ctx);
        f()
    }

    /// Unlocks the slots, once listeners and the journal have the changes.
    fn unlock(&mut self) {
        self.tell_listener();
        self.commit();
        let places = match &self.scope {
            Scope::One(place) => std::slice::from_ref(place),
            Scope::Many(places) => places,
            Scope::None | Scope::All(_) => &[],
        };
        unlock_all(self.keyspace, places);
        self.ctx.holding = false;
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
    pub(crate) fn note_logged(&self, number: u64) {
        let note =
            |place: &Place| SlotSubscribers::note_logged(&slot(self.keyspace, *place).subscribers, number);
        match &self.scope {
            Scope::One(place) => note(place),
            Scope::Many(places) => places.iter().for_each(note),
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

    /// The key's entry, unless it has expired. An expired entry is removed if the context may do so.
    #[inline]
    fn live(&mut self, key: &Key<'_>) -> Option<Found> {
        let found = self.slot(key).1.find(key.hash, key.bytes)?;
        match found.entry().deadline() {
            Some(deadline) if deadline <= self.ctx.now_ms => {
                self.expire(key, found, self.ctx.keeps_expired())
            }
            _ => Some(found),
        }
    }

    /// Like [`SlotGuard::live`], for a caller that adds an entry if there is none. An expired entry is
    /// removed even if the context only hides expired keys, since a table must never hold a key twice.
    #[inline]
    fn live_or_gone(&mut self, key: &Key<'_>) -> Option<Found> {
        let found = self.slot(key).1.find(key.hash, key.bytes)?;
        match found.entry().deadline() {
            Some(deadline) if deadline <= self.ctx.now_ms => self.expire(key, found, false),
            _ => Some(found),
        }
    }

    #[cold]
    pub(crate) fn expire(&mut self, key: &Key<'_>, found: Found, keep: bool) -> Option<Found> {
        if !keep {
            self.emit(key.place, key.bytes, What::Expired);
            self.log_removal(key.place, key.bytes);
            self.unasked(|guard| guard.remove_found(key.place, found));
            add(&self.ctx.tally.expired, 1);
        }
        None
    }

    // Reading.

    /// The key's entry; counts neither as a hit nor as an access.
    #[inline]
    pub fn peek(&mut self, key: &Key<'_>) -> Option<View<'_>> {
        self.live(key).map(|found| View::new(found.entry()))
    }

    /// The key's entry; counts as a hit or miss but not as an access (EXISTS, TTL, TYPE).
    pub fn look(&mut self, key: &Key<'_>) -> Option<View<'_>> {
        let found = self.live(key);
        if found.is_some() {
            add(&self.ctx.tally.hits, 1);
        } else {
            self.missed(key);
        }
        found.map(|found| View::new(found.entry()))
    }

    /// The key's entry; counts as a hit or miss, and as an access.
    #[inline]
    pub fn read(&mut self, key: &Key<'_>) -> Option<View<'_>> {
        match self.live(key) {
            Some(found) => {
                add(&self.ctx.tally.hits, 1);
                self.mark(found.entry());
                Some(View::new(found.entry()))
            }
            None => {
                self.missed(key);
                None
            }
        }
    }

    fn missed(&mut self, key: &Key<'_>) {
        add(&self.ctx.tally.misses, 1);
        self.emit(key.place, key.bytes, What::Missed);
    }

    /// The key's entry, for a caller about to change it; counts as an access but neither as a hit nor as a
    /// miss.
    pub fn touch(&mut self, key: &Key<'_>) -> Option<View<'_>> {
        let found = self.live(key)?;
        self.mark(found.entry());
        Some(View::new(found.entry()))
    }

    /// Marks an entry as accessed.
    #[inline]
    fn mark(&mut self, entry: EntryPtr) {
        if self.ctx.no_touch {
            return;
        }
        match self.ctx.access {
            Access::Lru => {
                let now = access::lru_clock(self.ctx.used_ms());
                // Reading dirties the cache line once a second at most.
                if entry.access() != now {
                    entry.set_access(now);
                }
            }
            Access::Lfu { log_factor, decay_minutes } => {
                let random = self.ctx.random();
                let access = entry.access();
                entry.set_access(access::lfu_touched(
                    access,
                    self.ctx.used_ms(),
                    log_factor,
                    decay_minutes,
                    random,
                ));
            }
        }
    }

    /// Sets the key's access bits, as in RESTORE; see [`crate::evict`].
    pub fn set_access(&mut self, key: &Key<'_>, access: u32) {
        if let Some(found) = self.live(key) {
            found.entry().set_access(access);
        }
    }

    fn new_access(&self) -> u32 {
        match self.ctx.access {
            Access::Lru => access::lru_clock(self.ctx.used_ms()),
            Access::Lfu { .. } => access::lfu_new(self.ctx.used_ms()),
        }
    }

    /// The collection at the key, as [`SlotGuard::read`].
    #[inline]
    pub fn collection<T: Collection>(&mut self, key: &Key<'_>) -> Result<Option<Ref<'_, T>>, WrongType> {
        match self.read(key) {
            None => Ok(None),
            Some(view) if view.kind() == T::KIND => Ok(Some(view.collection())),
            Some(_) => Err(WrongType),
        }
    }

    /// The collection at the key, as [`SlotGuard::peek`], for a caller about to change it.
    pub fn peek_collection<T: Collection>(&mut self, key: &Key<'_>) -> Result<Option<Ref<'_, T>>, WrongType> {
        match self.peek(key) {
            None => Ok(None),
            Some(view) if view.kind() == T::KIND => Ok(Some(view.collection())),
            Some(_) => Err(WrongType),
        }
    }

    // Writing.

    /// Changes the collection at the key with `change`, which records in the [`Edit`] how much it has
    /// changed. If there is none, `change` gets an empty collection, which becomes the key's value unless it
    /// is still empty afterwards. If `change` leaves an empty collection, the key is removed.
    pub fn edit<T: Collection, R>(
        &mut self,
        key: &Key<'_>,
        change: impl FnOnce(&mut Edit<'_, T>) -> R,
    ) -> Result<R, WrongType> {
        let Some(found) = self.live_or_gone(key) else {
            let mut value = T::new();
            let mut edit = Edit::new(&mut value, 0);
            let result = change(&mut edit);
            let Edit { changes, form, cut, .. } = edit;
            cut.into_iter().for_each(|cut| self.ctx.discard_cut(cut));
            if !value.is_empty() {
                self.add_collection(key, value, form, None);
                self.changed_times(key, Change::Written, changes);
            }
            return Ok(result);
        };
        let entry = found.entry();
        if entry.kind() != T::KIND {
            return Err(WrongType);
        }
        self.mark(entry);
        self.preserve(key.place, entry);
        let (before, now) = (entry.times(), self.ctx.now_ms);
        let mut value = entry.collection_mut::<T>();
        let overdue = value.overdue(now);
        let mut edit = Edit::new(&mut *value, entry.form());
        let result = change(&mut edit);
        let Edit { changes, concerns, form, cut, .. } = edit;
        let is_empty = value.is_empty();
        let expired = if overdue > 0 { overdue.saturating_sub(value.overdue(now)) } else { 0 };
        drop(value);
        cut.into_iter().for_each(|cut| self.ctx.discard_cut(cut));
        let found = self.note_times(key.place, found, before);
        if expired > 0 {
            self.fields_expired(key.place, key.bytes, expired, is_empty && changes == 0);
        }
        if is_empty && changes == 0 {
            self.unasked(|guard| guard.remove_found(key.place, found));
        } else if is_empty {
            self.remove_found(key.place, found);
            add(&self.ctx.tally.dirty, changes - 1);
        } else if expired > 0 && changes == 0 {
            self.notify_if_there(key.place, key.bytes);
        } else if changes > 0 {
            entry.set_form(form);
            self.changed_for(key, Change::Written, changes, concerns);
        }
        Ok(result)
    }

    /// Like [`SlotGuard::edit`], but returns `None` if there is no collection.
    pub fn edit_if_there<T: Collection, R>(
        &mut self,
        key: &Key<'_>,
        change: impl FnOnce(&mut Edit<'_, T>) -> R,
    ) -> Result<Option<R>, WrongType> {
        if self.live(key).is_none() {
            return Ok(None);
        }
        self.edit(key, change).map(Some)
    }

    /// Notifies subscribers of the key of a write, and counts `changes`: for LTRIM, which in Redis counts as
    /// a write even if nothing has changed, and for results that count as several changes.
    pub fn announce(&mut self, key: &Key<'_>, changes: u64) {
        self.changed_times(key, Change::Written, changes);
    }

    /// Sets the form of an existing collection, which does not change.
    pub fn note_form(&mut self, key: &Key<'_>, form: u8) {
        if let Some(found) = self.live(key) {
            found.entry().set_form(form);
        }
    }

    /// Sets the key to a collection of this form, whatever was there; an empty collection removes the key.
    pub fn set_collection<T: Collection>(
        &mut self,
        key: &Key<'_>,
        value: T,
        form: u8,
        deadline: Option<Millis>,
    ) {
        self.set_sharing_collection(key, (value, form, 0), deadline);
    }

    /// Like [`SlotGuard::set_collection`], for a value that shares `shared` bytes with the collections it was
    /// made from.
    pub fn set_sharing_collection<T: Collection>(
        &mut self,
        key: &Key<'_>,
        (value, form, shared): (T, u8, u64),
        deadline: Option<Millis>,
    ) {
        if value.is_empty() {
            self.remove(key);
            return;
        }
        let found = self.live_or_gone(key);
        let access = self.access_after(found.as_ref());
        let replaced = found.map(|found| {
            let old = self.detach(key.place, found);
            self.free(key.place, old);
        });
        let entry = self.entry_of(key, value, form, deadline);
        entry.set_access(access);
        self.note_shared(key.place, entry, shared);
        self.insert(key, entry);
        if replaced.is_none() {
            self.emit(key.place, key.bytes, What::Added);
        }
        self.changed(key, Change::Written);
    }

    /// The access mark of a value that replaces `found`. The frequency stays with the key; with LRU, a new
    /// value was used just now.
    pub(crate) fn access_after(&mut self, found: Option<&Found>) -> u32 {
        match found {
            Some(found) if self.ctx.access != Access::Lru => {
                self.mark(found.entry());
                found.entry().access()
            }
            _ => self.new_access(),
        }
    }

    /// Drops a collection that a command has shared with a key or made itself. If that was the last
    /// reference, it is freed, by the lazy-free thread if that takes long.
    pub fn discard<T: Collection>(&mut self, value: T) {
        // SAFETY: the raw value is of this kind, and its reference moves on.
        let outside = unsafe { HeapValue::from_raw(T::KIND, value.into_raw().as_ptr()) };
        self.ctx.discard(Some(outside));
    }

    fn add_collection<T: Collection>(&mut self, key: &Key<'_>, value: T, form: u8, deadline: Option<Millis>) {
        let entry = self.entry_of(key, value, form, deadline);
        self.add_entry(key, entry);
    }

    fn entry_of<T: Collection>(
        &self,
        key: &Key<'_>,
        value: T,
        form: u8,
        deadline: Option<Millis>,
    ) -> EntryPtr {
        let raw = value.into_raw();
        // SAFETY: the raw value is of this kind, and its reference moves on.
        let outside = unsafe { HeapValue::from_raw(T::KIND, raw.as_ptr()) };
        EntryPtr::new(key.bytes, Value::HeapValue(outside, form), deadline, self.new_access())
    }

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
                self.note_times(key.place, found, before);
            }
            _ if entry.deadline() != deadline => {
                let before = entry.times();
                let new = entry.rebuild(key.bytes, deadline);
                new.set_epoch(self.ctx.epoch);
                self.slot(key).1.replace(found, new);
                self.note_times(key.place, found, before);
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
        self.note_shared(to.place, new, shared);
        if let Some(found) = self.live_or_gone(to) {
            let old = self.detach(to.place, found);
            self.free(to.place, old);
        }
        self.add_entry(to, new);
        self.changed(to, Change::Written);
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
        self.keyspace.flush(db, self.ctx)
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

    /// Records the waited-for keys of a database whose keys came without notification; everything is held.
    pub fn wake_waiters(&mut self, db: usize) {
        assert!(self.holds_all(), "anybody may wait for any of them");
        self.keyspace.wake_waiters(db, self.ctx);
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

    /// Allocates a database before its first key would: half a megabyte more at that moment could exceed
    /// `maxmemory`.
    pub fn open(&mut self, db: usize) {
        self.keyspace.db(db);
    }

    /// Exchanges two databases; everything is held.
    pub fn swap(&mut self, a: usize, b: usize) {
        assert!(self.holds_all(), "swapping needs everything");
        add(&self.ctx.tally.dirty, 1);
        self.keyspace.swap(a, b, self.ctx);
    }

    /// Returns true if the key exists although its deadline has passed.
    pub fn has_expired(&self, key: &Key<'_>) -> bool {
        let deadline = self.slot(key).1.find(key.hash, key.bytes).and_then(|found| found.entry().deadline());
        deadline.is_some_and(|deadline| deadline <= self.ctx.now_ms)
    }

    // The rest moves entries into and out of tables.

    /// Notifies subscribers and listeners that the key has changed.
    #[inline]
    fn changed(&mut self, key: &Key<'_>, change: Change) {
        self.changed_times(key, change, 1);
    }

    /// Like [`SlotGuard::changed`], for a command that makes `times` changes at once.
    #[inline]
    fn changed_times(&mut self, key: &Key<'_>, change: Change, times: u64) {
        self.changed_for(key, change, times, Concerns::Everybody);
    }

    /// Like [`SlotGuard::changed_times`], for a part of the subscribers.
    #[inline]
    fn changed_for(&mut self, key: &Key<'_>, change: Change, times: u64, concerns: Concerns) {
        add(&self.ctx.tally.dirty, times);
        if concerns == Concerns::Everybody {
            let what = if change == Change::Removed { What::Removed } else { What::Written };
            self.emit(key.place, key.bytes, what);
        }
        let slot = self.slot(key).1;
        if SlotSubscribers::is_there(&slot.subscribers) {
            self.notify(slot, key.place, key.bytes, change, concerns);
        }
    }

    #[cold]
    pub(crate) fn notify(
        &mut self,
        slot: &Slot,
        place: Place,
        key: &[u8],
        change: Change,
        concerns: Concerns,
    ) {
        let keyspace = self.keyspace;
        SlotSubscribers::with(&slot.subscribers, |subscribers| {
            if concerns == Concerns::Everybody {
                subscribers.watchers.touch(key, change);
                keyspace.watches.fetch_sub(subscribers.watchers.drop_forgotten(key), Relaxed);
            }
            if concerns != Concerns::Nobody {
                self.ctx.wake(&mut subscribers.waiters, key, place);
            }
        });
    }

    #[inline]
    fn add_entry(&mut self, key: &Key<'_>, entry: EntryPtr) {
        self.insert(key, entry);
        self.emit(key.place, key.bytes, What::Added);
    }

    #[inline]
    pub(crate) fn insert(&mut self, key: &Key<'_>, entry: EntryPtr) {
        let (db, slot) = self.slot(key);
        debug_assert!(slot.find(key.hash, key.bytes).is_none(), "a table never holds a key twice");
        if slot.len() == 0 {
            db.occupied.set(key.place.slot());
        }
        entry.set_epoch(self.ctx.epoch);
        self.count_apart(key.place, entry);
        let times = entry.times();
        let due = times.first().map_or(0, |first| self.keyspace.coarse(first));
        if due != 0 {
            self.count_times(db, slot, key.place, Times::default(), times);
            if times.own.is_some() {
                self.note_own(key.place, key.bytes);
            }
        }
        slot.insert(key.hash, entry, due, &self.keyspace.hasher, &mut self.ctx.retired);
        add_signed(&self.ctx.tally.dbs[db.id].keys, 1);
    }

    /// Replaces the entry found by another entry of the same key, and frees the old entry.
    fn replace(&mut self, key: &Key<'_>, found: Found, entry: EntryPtr) {
        let old = found.entry();
        let before = old.times();
        entry.set_epoch(self.ctx.epoch);
        self.count_apart(key.place, entry);
        self.slot(key).1.replace(found, entry);
        self.note_times(key.place, found, before);
        self.free(key.place, old);
    }

    /// Removes an entry from its table.
    pub(crate) fn detach(&mut self, place: Place, found: Found) -> EntryPtr {
        let (db, slot) = self.slot_at(place);
        if found.segment.deadline(found.bucket) != 0 {
            self.count_times(db, slot, place, found.entry().times(), Times::default());
        }
        let entry = slot.remove(found, &mut self.ctx.retired);
        add_signed(&self.ctx.tally.dbs[db.id].keys, -1);
        self.note_emptied(place);
        entry
    }

    /// Removes and frees an entry, and notifies subscribers and listeners.
    pub(crate) fn remove_found(&mut self, place: Place, found: Found) {
        let word = found.segment.word(found.bucket);
        let entry = self.detach(place, found);
        self.notify_removed(place, &[word]);
        self.free(place, entry);
    }

    /// Counts keys that have been removed, and notifies their watchers, waiters and listeners.
    pub(crate) fn notify_removed(&mut self, place: Place, removed: &[Word]) {
        add(&self.ctx.tally.dirty, removed.len() as u64);
        if self.is_listened_to() {
            removed.iter().for_each(|word| self.emit(place, word.entry().key(), What::Removed));
        }
        let slot = self.slot_at(place).1;
        if SlotSubscribers::is_there(&slot.subscribers) {
            removed.iter().for_each(|word| {
                self.notify(slot, place, word.entry().key(), Change::Removed, Concerns::Everybody)
            });
        }
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
