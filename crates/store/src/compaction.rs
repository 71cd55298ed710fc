//! Compaction: blocks in sparse chunks move to other chunks while clients are served, so that memory that was
//! freed here and there goes back to the system as a whole ([`evenkeel_slab::Compaction`]).
//!
//! A worker visits the slots one after another, and moves the blocks in marked chunks under the slot's lock.
//! Why no other thread can be reading a block that moves:
//!
//! - **Entries** are read and written under their slot's lock alone, and only the slot's table has their
//!   address. Threads prefetch entries without the lock, which reads nothing. Eviction remembers the
//!   addresses of candidates, and looks them up under the lock: an entry that has moved is no candidate any
//!   more. A snapshot takes copies or shares under the lock, and keeps no address of an entry in a table.
//! - **Tables** are read without the lock by prefetches, and stay until all threads have been outside the
//!   gate: they are replaced as by growth ([`crate::table::retired`]).
//! - **Pages** are reference-counted. A page moves if its count is one, and the counts of all nodes above it:
//!   then a reader, a snapshot or a copy elsewhere has no reference to it, and nobody can get one without the
//!   slot's lock. The rest stays where it is, and its chunk is not emptied this time.
//!
//! A page of a stream's group or of its consumers stays where it is too.

use evenkeel_slab::{Compaction, Kind as BlockKind};

use crate::SLOTS;
use crate::guard::SlotGuard;
use crate::key::Place;
use crate::memory::mover::Mover;
use crate::table::directory::DEPTH_MAX;
use crate::table::entry::EntryPtr;
use crate::table::prefetch::prefetching;
use crate::table::segment::{Segment, Word};

pub use crate::memory::mover::Moved;

/// Position of a walk through all databases.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompactionWalk {
    db: usize,
    slot: usize,
    /// The segment of the slot.
    prefix: u64,
    /// The bucket of the segment, and the item of its collection: for pages.
    bucket: usize,
    item: u64,
}

impl SlotGuard<'_> {
    /// Moves blocks out of marked chunks until `is_over`, which is called after each visit of a slot, about
    /// 20 us. Returns whether there is more. The caller holds nothing, and `compaction` is the calling
    /// thread's.
    pub fn compact(
        &mut self,
        compaction: &Compaction,
        walk: &mut CompactionWalk,
        moved: &mut Moved,
        mut is_over: impl FnMut() -> bool,
    ) -> bool {
        while walk.db < self.keyspace().all_databases() {
            let database = self.keyspace().db_if_used(walk.db);
            let slot = database.and_then(|db| db.occupied.next(walk.slot)).unwrap_or(SLOTS);
            if slot == SLOTS {
                *walk = CompactionWalk { db: walk.db + 1, ..CompactionWalk::default() };
                continue;
            }
            if slot != walk.slot {
                *walk = CompactionWalk { db: walk.db, slot, ..CompactionWalk::default() };
            }
            let place = Place::new(walk.db as u32, slot as u16);
            let mut mover = Mover::new(compaction, moved);
            self.visit(place, |guard| match compaction.kind() {
                BlockKind::Entry => guard.move_entries(place, walk, &mut mover),
                BlockKind::Page => guard.move_pages(place, walk, &mut mover),
                BlockKind::Node => unreachable!("nodes are not moved"),
            });
            if walk.prefix == 1 << DEPTH_MAX {
                *walk = CompactionWalk { db: walk.db, slot: slot + 1, ..CompactionWalk::default() };
            }
            if moved.has_failed {
                return false;
            }
            if is_over() {
                return true;
            }
        }
        false
    }

    /// Moves tables and entries of a slot, from the walk's segment on.
    fn move_entries(&mut self, place: Place, walk: &mut CompactionWalk, mover: &mut Mover<'_>) {
        let (slot, retired) = (self.slot_of_place(place), &mut self.ctx.retired);
        if walk.prefix == 0 {
            let bytes = slot.move_directory(|address| mover.is_leaving(address), retired);
            count_table(mover, bytes);
        }
        while walk.prefix < 1 << DEPTH_MAX {
            let bytes = slot.move_segment(walk.prefix, |address| mover.is_leaving(address), retired);
            count_table(mover, bytes);
            let (segment, next) = slot.segment_at(walk.prefix);
            if !move_entries_of(segment, mover) {
                return; // the next visit comes back to this segment
            }
            walk.prefix = next;
            if mover.is_spent() {
                return;
            }
        }
    }

    /// Moves pages of a slot's collections, from the walk's position on.
    fn move_pages(&mut self, place: Place, walk: &mut CompactionWalk, mover: &mut Mover<'_>) {
        let slot = self.slot_of_place(place);
        while walk.prefix < 1 << DEPTH_MAX {
            let (segment, next) = slot.segment_at(walk.prefix);
            let buckets: Vec<usize> = segment.occupied().filter(|bucket| *bucket >= walk.bucket).collect();
            let words: Vec<Word> = buckets.iter().map(|bucket| segment.word(*bucket)).collect();
            for (bucket, word) in buckets.into_iter().zip(prefetching(&words)) {
                let item = if bucket == walk.bucket { walk.item } else { 0 };
                mover.look();
                if mover.is_spent() {
                    (walk.bucket, walk.item) = (bucket, item);
                    return;
                }
                if let Some(item) = word.entry().relocate_pages(item, mover) {
                    (walk.bucket, walk.item) = (bucket, item);
                    return;
                }
            }
            (walk.prefix, walk.bucket, walk.item) = (next, 0, 0);
        }
    }
}

fn count_table(mover: &mut Mover<'_>, bytes: Option<usize>) {
    match bytes {
        Some(0) => {}
        Some(bytes) => mover.count(bytes, true),
        None => mover.count(0, false),
    }
}

/// Moves the entries of a segment. Returns false if some are left.
fn move_entries_of(segment: Segment, mover: &mut Mover<'_>) -> bool {
    let (mut buckets, mut words) = (Vec::new(), Vec::new());
    for bucket in segment.occupied() {
        let word = segment.word(bucket);
        if mover.is_leaving(word.address()) {
            buckets.push(bucket);
            words.push(word);
        } else {
            mover.look();
        }
    }
    for (bucket, word) in buckets.into_iter().zip(prefetching(&words)) {
        let old = word.entry();
        let copy = old.duplicate();
        mover.count(old.size(), copy.is_some());
        let Some(copy) = copy else { return false };
        segment.set_word(bucket, Word::new(word.tag(), copy));
        old.free_block();
        if mover.is_spent() {
            return false;
        }
    }
    true
}

impl EntryPtr {
    /// Moves the pages of the entry's collection, from an item on; see
    /// [`crate::value::heap_value::HeapValue::relocate_pages`].
    fn relocate_pages(self, item: u64, mover: &mut Mover<'_>) -> Option<u64> {
        if self.single_page().is_some_and(|page| !mover.is_leaving(page)) {
            return None;
        }
        self.change_heap_value(|value| value.relocate_pages(item, mover)).flatten()
    }
}
