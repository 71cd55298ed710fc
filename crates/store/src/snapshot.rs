//! Snapshots: all keys as they were at one moment, taken while other threads keep writing.
//!
//! Every entry carries one bit, its epoch.
//! 1. A snapshot starts behind the closed gate by flipping the epoch, which takes no time. From then on, the
//!    entries of the former epoch are those that the snapshot still lacks.
//! 2. One thread walks the slots and takes such entries, a few at a time under the slot's lock
//!    ([`Walk::step`]).
//! 3. A writer that is about to change or remove an entry that the walk has not reached hands the entry over
//!    first ([`Kept`]): a share of a large value, a copy of a small value.
//! 4. New entries are born into the new epoch.
//! 5. When the walk is through, the gate is closed once more, so that all entries handed over have been
//!    published. That ends the snapshot.
//!
//! The mark is on the entry, so the order of the walk and the growth of tables meanwhile do not matter. One
//! bit is enough: every walk goes to its end, even if the snapshot is not wanted any more, and leaves all
//! entries in the same epoch.
//!
//! Databases that are flushed meanwhile are walked in place, out of reach of all other threads. Databases
//! that are swapped are followed by the number of their counters, and keep the index that they had at the
//! start. Hidden databases ([`Keyspace::hidden`]) are walked like all others, since their entries have epochs
//! too, but the sink does not get their entries.
//!
//! A snapshot may be of some slots alone. The entries of the other slots get the new epoch in passing.
//!
//! The entries handed over and not yet taken are bounded. If the sink takes no more, because the disk under
//! it hangs, the snapshot is lost instead of the memory, and nothing is kept for it from then on.
//!
//! The road not taken: marks per slot, so that the first writer to a slot copies all of it. With 50 million
//! keys that is 2 MB for a single SET, and in the first second of a snapshot nearly every SET is such a first
//! write.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

use parking_lot::Mutex;

use crate::SLOTS;
use crate::guard::SlotGuard;
use crate::guard::context::ThreadContext;
use crate::key::Place;
use crate::keyspace::{Db, Flushed, Keyspace};
use crate::slot_set::SlotSet;
use crate::table::bits::SlotBits;
use crate::table::directory::DEPTH_MAX;
use crate::table::entry::{EntryPtr, View};
use crate::table::prefetch::prefetching;
use crate::table::segment::{TAG_BITS, Word};

/// Entries taken under one lock: about 30 us, at 0.1 us to fetch and 0.1 us to copy each.
const STEP_ENTRIES_MAX: usize = 128;

/// Bytes that the sink may copy before the lock is released.
const STEP_BYTES_MAX: usize = 64 * 1024;

/// Distance, in entries, at which the rest of an entry is prefetched: by then its beginning has arrived.
const SOON: usize = 4;

/// Bytes counted for an entry that shares a large value.
const SHARE_LEN: usize = 64;

const TAGS: u64 = 1 << TAG_BITS;

/// An entry as it was when a snapshot began, kept when the key changed.
pub struct Kept {
    /// Index of the database's counters.
    db: usize,
    entry: EntryPtr,
    /// Bytes of memory that are freed when it is dropped.
    returns: usize,
}

// SAFETY: the entry is owned, in no table, and all values that it refers to may be shared between threads.
unsafe impl Send for Kept {}

impl Kept {
    pub fn view(&self) -> View<'_> {
        View::new(self.entry)
    }

    /// Bytes kept for the snapshot alone, without those of a shared large value.
    fn len(&self) -> usize {
        match self.view().flat() {
            Some(_) => self.entry.memory(),
            None => SHARE_LEN,
        }
    }
}

impl Kept {
    fn into_entry(self) -> EntryPtr {
        ManuallyDrop::new(self).entry
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        drop(self.entry.free());
    }
}

/// State of the snapshot that is being taken.
#[derive(Default)]
pub(crate) struct Snapshots {
    /// Flipped behind the closed gate.
    epoch: AtomicBool,
    is_active: AtomicBool,
    /// Bytes published and not yet given to the sink, and their limit.
    waiting: AtomicUsize,
    waiting_max: AtomicUsize,
    /// Bytes of memory that are freed, and databases that are dropped, when the sink has got all that was
    /// published.
    returning: AtomicUsize,
    flushed_kept: AtomicUsize,
    /// Bytes published since the start.
    published: AtomicUsize,
    /// The limit was exceeded: the snapshot is not wanted any more.
    is_lost: AtomicBool,
    /// A list per context, filled by its thread and emptied by the walk.
    kept: Box<[KeptQueue]>,
    flushed: Mutex<Vec<Flushed>>,
    /// The slots of the snapshot.
    slots: SlotBits,
}

#[repr(align(128))]
#[derive(Default)]
struct KeptQueue(Mutex<Vec<Kept>>);

impl Snapshots {
    pub(crate) fn new(contexts: usize) -> Snapshots {
        Snapshots { kept: (0..contexts).map(|_| KeptQueue::default()).collect(), ..Snapshots::default() }
    }

    /// Sets the epoch that the entries of another process have. Everything is held, and there are no entries.
    pub(crate) fn take_epoch_over(&self, epoch: bool) {
        self.epoch.store(epoch, Relaxed);
    }

    /// The present epoch, for callers inside the gate.
    #[inline]
    pub(crate) fn epoch(&self) -> bool {
        self.epoch.load(Relaxed)
    }

    /// Publishes the entries that a context has kept, or frees them if they exceed the limit.
    #[cold]
    pub(crate) fn publish(&self, ctx: &mut ThreadContext) {
        let bytes: usize = ctx.kept.iter().map(Kept::len).sum();
        self.published.fetch_add(bytes, Relaxed);
        let before = self.waiting.fetch_add(bytes, Relaxed);
        if before.saturating_add(bytes) > self.waiting_max.load(Relaxed) {
            self.is_lost.store(true, Relaxed);
        }
        if !self.is_lost.load(Relaxed) {
            self.returning.fetch_add(ctx.kept.iter().map(|kept| kept.returns).sum(), Relaxed);
            return self.kept[ctx.index].0.lock().append(&mut ctx.kept);
        }
        self.waiting.fetch_sub(bytes, Relaxed);
        for kept in std::mem::take(&mut ctx.kept) {
            let value = kept.into_entry().free();
            ctx.discard(value);
        }
    }

    /// Takes all entries that were published.
    fn take(&self, into: &mut Vec<Kept>) {
        for queue in &self.kept {
            into.append(&mut queue.0.lock());
        }
    }

    /// Returns true if an entry of the former epoch must still be kept.
    #[inline]
    fn is_wanted(&self) -> bool {
        !self.is_lost.load(Relaxed)
    }

    /// The same, for an entry of this slot.
    #[inline]
    fn is_wanted_of(&self, slot: usize) -> bool {
        self.is_wanted() && self.slots.has(slot)
    }

    /// Keeps a flushed database for the walk; returns it if there is no walk.
    pub(crate) fn keep_flushed(&self, flushed: Flushed) -> Option<Flushed> {
        if !self.is_active.load(Relaxed) || !self.is_wanted() {
            return Some(flushed);
        }
        self.flushed_kept.fetch_add(1, Relaxed);
        self.flushed.lock().push(flushed);
        None
    }
}

impl Keyspace {
    /// Bytes that writers have handed over and that the sink has not got yet.
    pub fn handed_over(&self) -> usize {
        self.snapshots.waiting.load(Relaxed)
    }

    /// Bytes of memory that are freed when the sink has got all entries handed over: copies, and removed
    /// entries.
    pub fn kept_for_snapshot(&self) -> usize {
        self.snapshots.returning.load(Relaxed)
    }

    /// Returns true if a flushed database is kept whose memory is freed when the sink has got it.
    pub fn keeps_flushed(&self) -> bool {
        self.snapshots.flushed_kept.load(Relaxed) > 0
    }
}

/// The walk of a snapshot. The caller steps it until [`Walk::is_done`], and then ends it.
pub struct Walk {
    dbs: Vec<Walked>,
    at: usize,
    cursor: Cursor,
    taken: Vec<Kept>,
}

/// A database as it was when the snapshot started.
#[derive(Clone, Copy)]
struct Walked {
    /// Index of its counters.
    id: usize,
    /// Its place at the start.
    at: u32,
    /// Its number, unless it is hidden.
    index: Option<u32>,
}

/// Position in a database from which the walk continues.
#[derive(Clone, Copy, Default)]
struct Cursor {
    slot: usize,
    prefix: u64,
    tag: u64,
}

impl SlotGuard<'_> {
    /// Starts a snapshot of the present state, for which up to `waiting_max` bytes of entries are kept: see
    /// [`Walk::is_lost`]. Everything is held, and no other snapshot is being taken.
    pub fn begin_snapshot(&mut self, waiting_max: usize) -> Walk {
        self.begin_snapshot_of(&SlotSet::all(), waiting_max)
    }

    /// The same for some slots: nothing is kept of the others, and the sink does not get their entries.
    pub fn begin_snapshot_of(&mut self, slots: &SlotSet, waiting_max: usize) -> Walk {
        assert!(self.holds_all(), "a snapshot is of one moment");
        let keyspace = self.keyspace();
        let snapshots = &keyspace.snapshots;
        assert!(!snapshots.is_active.load(Relaxed), "one snapshot at a time");
        debug_assert!(snapshots.kept.iter().all(|queue| queue.0.lock().is_empty()));
        snapshots.is_active.store(true, Relaxed);
        snapshots.is_lost.store(false, Relaxed);
        // Nothing is kept, so counts that a panic has left are reset.
        snapshots.waiting.store(0, Relaxed);
        snapshots.returning.store(0, Relaxed);
        snapshots.flushed_kept.store(0, Relaxed);
        snapshots.published.store(0, Relaxed);
        snapshots.waiting_max.store(waiting_max, Relaxed);
        snapshots.slots.set_all(slots);
        snapshots.epoch.store(!snapshots.epoch(), Relaxed);
        self.ctx.epoch = snapshots.epoch();
        let used = |at: usize| {
            let index = (at < keyspace.databases()).then_some(at as u32);
            Some(Walked { id: keyspace.db_if_used(at)?.id, at: at as u32, index })
        };
        let dbs = (0..keyspace.all_databases()).filter_map(used).collect();
        Walk { dbs, at: 0, cursor: Cursor::default(), taken: Vec::new() }
    }

    /// Ends a snapshot whose walk is done. Everything is held. The result has the entries handed over last,
    /// to be given to the sink where time does not matter.
    pub fn end_snapshot(&mut self, mut walk: Walk) -> Rest {
        assert!(self.holds_all(), "no thread keeps entries any more");
        assert!(walk.is_done(), "a walk goes to its end");
        let snapshots = &self.keyspace().snapshots;
        snapshots.take(&mut walk.taken);
        snapshots.is_active.store(false, Relaxed);
        let is_lost = walk.is_lost(self.keyspace());
        Rest { walk, is_lost, flushed: std::mem::take(&mut snapshots.flushed.lock()) }
    }

    /// Frees an entry that is out of its table, or gives it to the snapshot being taken.
    pub(crate) fn free(&mut self, place: Place, entry: EntryPtr) {
        self.discount_apart(place, entry);
        if entry.epoch() != self.ctx.epoch && self.keyspace().snapshots.is_wanted_of(place.slot()) {
            let db = self.keyspace().db(place.db()).id;
            return self.ctx.kept.push(Kept { db, entry, returns: entry.memory_about() });
        }
        let value = entry.free();
        self.ctx.discard(value);
    }

    /// Hands the entry to the snapshot being taken, if the snapshot still lacks it. Called before an entry is
    /// changed in place.
    #[inline]
    pub(crate) fn preserve(&mut self, place: Place, entry: EntryPtr) {
        if entry.epoch() != self.ctx.epoch {
            self.keep(place, entry);
        }
    }

    #[cold]
    fn keep(&mut self, place: Place, entry: EntryPtr) {
        if self.keyspace().snapshots.is_wanted_of(place.slot()) {
            let db = self.slot_at(place).0.id;
            let copy = entry.copy(entry.key(), entry.deadline(), entry.access());
            let mut kept = Kept { db, entry: copy, returns: 0 };
            kept.returns = kept.len();
            self.ctx.kept.push(kept);
        }
        entry.set_epoch(self.ctx.epoch);
    }

    /// Calls `f` with entries of the former epoch from the cursor on, until `f` has copied enough bytes or
    /// the part of the segment ends.
    fn walk_slot(&mut self, place: Place, cursor: &mut Cursor, mut f: impl FnMut(View<'_>) -> usize) {
        let (slot, epoch) = (self.slot_of_place(place), self.ctx.epoch);
        let is_wanted = self.keyspace().snapshots.slots.has(place.slot());
        let (segment, next_prefix) = slot.segment_at(cursor.prefix);
        // Keys are spread evenly over the tags, so a fraction of the tags is that fraction of the keys.
        let width = TAGS.saturating_mul(STEP_ENTRIES_MAX as u64).div_ceil(segment.buckets().max(1) as u64);
        let until = if segment.buckets() <= STEP_ENTRIES_MAX { TAGS } else { (cursor.tag + width).min(TAGS) };
        let tags = cursor.tag..until;
        let words = segment.occupied().map(|bucket| segment.word(bucket));
        let words: Vec<Word> = words.filter(|word| tags.contains(&u64::from(word.tag()))).collect();
        let mut bytes = 0;
        for (at, word) in prefetching(&words).enumerate() {
            let entry = word.entry();
            if is_wanted
                && let Some(soon) = words.get(at + SOON).map(|word| word.entry())
                && soon.epoch() != epoch
            {
                soon.prefetch_rest();
            }
            if entry.epoch() != epoch {
                bytes += if is_wanted { f(View::new(entry)) } else { 0 };
                entry.set_epoch(epoch);
                if bytes >= STEP_BYTES_MAX {
                    return; // the entries done are known by their epoch
                }
            }
        }
        (cursor.prefix, cursor.tag) = if until < TAGS { (cursor.prefix, until) } else { (next_prefix, 0) };
    }
}

impl Walk {
    /// Gives some entries of the snapshot to the sink, entries handed over first, since they take memory. The
    /// context is outside the gate. Returns the same as [`Walk::take_kept`].
    pub fn step(
        &mut self,
        keyspace: &Keyspace,
        ctx: &mut ThreadContext,
        sink: &mut impl Sink,
    ) -> Vec<Flushed> {
        let flushed = self.take_kept(keyspace, sink);
        keyspace.enter(ctx);
        self.step_inside(&mut keyspace.hold_none(ctx), sink);
        keyspace.leave(ctx);
        flushed
    }

    /// Gives all entries handed over to the sink. Returns databases to be dropped where time does not matter.
    pub fn take_kept(&mut self, keyspace: &Keyspace, sink: &mut impl Sink) -> Vec<Flushed> {
        let snapshots = &keyspace.snapshots;
        snapshots.take(&mut self.taken);
        self.give(keyspace, sink);
        let next = || snapshots.flushed.lock().pop();
        let mut done = Vec::new();
        while let Some(flushed) = next() {
            if let Some(index) = walked(&self.dbs, flushed.db().id).and_then(|db| db.index) {
                let (db, mut from) = (flushed.db(), 0);
                while let Some(slot) = db.occupied.next(from) {
                    let is_wanted = snapshots.slots.has(slot);
                    db.each_of_other_epoch(slot, snapshots.epoch(), |view| {
                        if is_wanted {
                            sink.take(index, view);
                        }
                    });
                    // Other threads keep writing meanwhile.
                    snapshots.take(&mut self.taken);
                    self.give(keyspace, sink);
                    from = slot + 1;
                }
            }
            done.push(flushed);
            snapshots.flushed_kept.fetch_sub(1, Relaxed);
        }
        done
    }

    fn step_inside(&mut self, guard: &mut SlotGuard<'_>, sink: &mut impl Sink) {
        // A database flushed a moment ago is walked before its place is taken for empty.
        let was_flushed = !guard.keyspace().snapshots.flushed.lock().is_empty();
        let Some(walked) = self.dbs.get(self.at).copied().filter(|_| !was_flushed) else { return };
        let slot = find(guard.keyspace(), walked)
            .and_then(|(present, db)| db.occupied.next(self.cursor.slot).map(|slot| (present, slot)));
        let Some((present, slot)) = slot else {
            self.at += 1;
            self.cursor = Cursor::default();
            return;
        };
        if slot != self.cursor.slot {
            self.cursor = Cursor { slot, ..Cursor::default() };
        }
        let (place, cursor) = (Place::new(present, slot as u16), &mut self.cursor);
        let mut share = |view: View<'_>| walked.index.map_or(0, |index| sink.share(index, view));
        guard.visit(place, |guard| guard.walk_slot(place, cursor, &mut share));
        if self.cursor.prefix >= 1 << DEPTH_MAX {
            self.cursor = Cursor { slot: slot + 1, ..Cursor::default() };
        }
    }

    /// Gives the entries taken to the sink, and frees them.
    fn give(&mut self, keyspace: &Keyspace, sink: &mut impl Sink) {
        for kept in self.taken.drain(..) {
            let db = walked(&self.dbs, kept.db);
            let db = db.expect("entries of the former epoch lie in databases that were there");
            if let Some(index) = db.index {
                sink.take(index, kept.view());
            }
            keyspace.snapshots.waiting.fetch_sub(kept.len(), Relaxed);
            keyspace.snapshots.returning.fetch_sub(kept.returns, Relaxed);
        }
    }

    /// Returns true if more entries had to be kept than the limit allows. Then some entries of the snapshot
    /// are missing, and the walk only goes to its end.
    pub fn is_lost(&self, keyspace: &Keyspace) -> bool {
        !keyspace.snapshots.is_wanted()
    }

    /// Returns true if all slots have been walked. Entries handed over later come with
    /// [`SlotGuard::end_snapshot`].
    pub fn is_done(&self) -> bool {
        self.at == self.dbs.len()
    }

    /// Fraction of the walk that is done, from 0 to 1, measured in slots.
    pub fn progress(&self) -> f64 {
        if self.dbs.is_empty() {
            return 1.0;
        }
        (self.at as f64 + self.cursor.slot as f64 / SLOTS as f64) / self.dbs.len() as f64
    }
}

/// The remainder of a snapshot that has ended.
pub struct Rest {
    walk: Walk,
    is_lost: bool,
    /// Databases that were walked before they were flushed: all their entries are younger than the snapshot.
    flushed: Vec<Flushed>,
}

impl Rest {
    /// Gives the entries handed over last to the sink, and frees them. Returns the same as
    /// [`Walk::take_kept`].
    pub fn finish(mut self, keyspace: &Keyspace, sink: &mut impl Sink) -> Vec<Flushed> {
        self.walk.give(keyspace, sink);
        keyspace.snapshots.flushed_kept.fetch_sub(self.flushed.len(), Relaxed);
        self.flushed
    }

    /// See [`Walk::is_lost`]; the value is final.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }
}

impl Keyspace {
    /// Bytes of entries kept for the present or the last snapshot, since its start.
    pub fn copied_for_snapshot(&self) -> usize {
        self.snapshots.published.load(Relaxed)
    }
}

/// The destination of a snapshot.
pub trait Sink {
    /// Takes an entry of database `db`. No lock is held, and the call may take any time.
    fn take(&mut self, db: u32, view: View<'_>);

    /// Like [`Sink::take`], but under the lock of the entry's slot: copies small values, shares large values,
    /// and waits for nothing. Returns the number of bytes copied.
    fn share(&mut self, db: u32, view: View<'_>) -> usize;
}

/// The database with these counters, as it was when the snapshot started.
fn walked(dbs: &[Walked], id: usize) -> Option<Walked> {
    dbs.iter().find(|db| db.id == id).copied()
}

/// The present place of a database.
fn find(keyspace: &Keyspace, walked: Walked) -> Option<(u32, &Db)> {
    let has_id =
        |at: u32| keyspace.db_if_used(at as usize).filter(|db| db.id == walked.id).map(|db| (at, db));
    has_id(walked.at).or_else(|| (0..keyspace.all_databases() as u32).find_map(has_id))
}

impl Db {
    /// Calls `f` with all entries of a slot whose epoch is not `epoch`. The caller has exclusive access to
    /// the database.
    fn each_of_other_epoch(&self, slot: usize, epoch: bool, mut f: impl FnMut(View<'_>)) {
        for (_, segment) in self.slots[slot].segments() {
            let words: Vec<Word> = segment.occupied().map(|bucket| segment.word(bucket)).collect();
            let old = prefetching(&words).map(Word::entry).filter(|entry| entry.epoch() != epoch);
            old.for_each(|entry| f(View::new(entry)));
        }
    }
}
