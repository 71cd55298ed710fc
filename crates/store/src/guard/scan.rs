//! SCAN: walks a database in the order of slot, directory bits and tag, which no growth or shrinking changes.
//!
//! A cursor is a position in that order, so a scan keeps no state in the server. Every key that exists from
//! the first call to the last is returned: keys never change their position in the order, and a directory
//! never gets coarser while its slot holds a key. Keys may come twice when a segment splits between two
//! calls.

use crate::Kind;
use crate::SLOTS;
use crate::guard::SlotGuard;
use crate::key::Place;
use crate::table::cursor::{Cursor, TAGS};
use crate::table::directory::{self, DEPTH_MAX};
use crate::table::entry::View;
use crate::table::prefetch::prefetching;

/// Slots tried for a random key before falling back to any key.
const RANDOM_TRIES: usize = 100;

impl SlotGuard<'_> {
    /// Calls `f` with about `count` keys of the database from `cursor` on; returns the cursor to continue
    /// from.
    ///
    /// Expired keys are skipped; those of `kind`, or of all kinds, are removed if the context may do so. The
    /// caller holds nothing or everything.
    pub fn scan(
        &mut self,
        db: usize,
        cursor: Cursor,
        count: usize,
        kind: Option<Kind>,
        mut f: impl FnMut(View<'_>),
    ) -> Cursor {
        let (mut cursor, mut seen) = (cursor, 0);
        // Each slot with its bit set yields a key or has just lost its last key, so this visits about `count`
        // slots at most.
        loop {
            let Some(slot) = self.keyspace().db_if_used(db).and_then(|db| db.occupied.next(cursor.slot()))
            else {
                return Cursor(0);
            };
            if slot != cursor.slot() {
                cursor = Cursor::new(slot, 0, 0);
            }
            let place = Place::new(db as u32, slot as u16);
            cursor =
                self.visit(place, |guard| guard.scan_slot(place, cursor, count, kind, &mut seen, &mut f));
            if cursor.0 == 0 || seen >= count {
                return cursor;
            }
        }
    }

    /// Like [`SlotGuard::scan`], within the cursor's slot. Returns the start of the next slot, or zero behind
    /// the last slot, when the slot is over.
    pub fn scan_in_slot(
        &mut self,
        db: usize,
        cursor: Cursor,
        count: usize,
        kind: Option<Kind>,
        mut f: impl FnMut(View<'_>),
    ) -> Cursor {
        let slot = cursor.slot();
        if self.keyspace().db_if_used(db).is_none() {
            return if slot + 1 == SLOTS { Cursor(0) } else { Cursor::new(slot + 1, 0, 0) };
        }
        let place = Place::new(db as u32, slot as u16);
        self.visit(place, |guard| guard.scan_slot(place, cursor, count, kind, &mut 0, &mut f))
    }

    fn scan_slot(
        &mut self,
        place: Place,
        cursor: Cursor,
        count: usize,
        kind: Option<Kind>,
        seen: &mut usize,
        f: &mut impl FnMut(View<'_>),
    ) -> Cursor {
        let slot = self.slot_of_place(place);
        let (mut prefix, mut tag) = (cursor.prefix(), cursor.tag());
        while prefix < 1 << DEPTH_MAX {
            let (segment, next_prefix) = slot.segment_at(prefix);
            // Keys are spread evenly over the tags, so a fraction of the tags is that fraction of the keys.
            let want = (count - (*seen).min(count)).max(1) as u64;
            let width = TAGS.saturating_mul(want).div_ceil(segment.buckets().max(1) as u64);
            let until = if segment.buckets() <= 64 { TAGS } else { tag.saturating_add(width).min(TAGS) };
            let (now, mut expired) = (self.ctx.seen_ms(), Vec::new());
            let words = segment.occupied().map(|bucket| segment.word(bucket));
            let words: Vec<_> = words.filter(|word| (tag..until).contains(&u64::from(word.tag()))).collect();
            *seen += words.len();
            for word in prefetching(&words) {
                let entry = word.entry();
                match entry.deadline() {
                    Some(deadline) if deadline <= now => {
                        if kind.is_none_or(|kind| kind == entry.kind()) {
                            expired.push(word);
                        }
                    }
                    _ => f(View::new(entry)),
                }
            }
            if !self.keeps_expired(place) {
                self.remove_expired(place, &expired);
            }
            (prefix, tag) = if until < TAGS { (prefix, until) } else { (next_prefix, 0) };
            if *seen >= count && prefix < 1 << DEPTH_MAX {
                return Cursor::new(place.slot(), prefix, tag);
            }
        }
        let next = place.slot() + 1;
        if next == SLOTS { Cursor(0) } else { Cursor::new(next, 0, 0) }
    }

    /// Calls `f` with every live key of a database. The caller holds nothing or everything. Returns false if
    /// the walk was given up, see [`SlotGuard::give_way`].
    ///
    /// One segment at a time is locked, and between two segments a thread that wants to close the gate may go
    /// first. So the result is not the database at one moment, but a key that exists throughout is seen once,
    /// however its slot grows.
    pub fn for_each_key(&mut self, db: usize, mut f: impl FnMut(View<'_>)) -> bool {
        let mut from = 0;
        while let Some(slot) = self.keyspace().db_if_used(db).and_then(|db| db.occupied.next(from)) {
            let (place, mut prefix) = (Place::new(db as u32, slot as u16), 0);
            while prefix < 1 << DEPTH_MAX {
                prefix = self.visit(place, |guard| guard.keys_of_segment(place, prefix, &mut f));
                if !self.give_way() {
                    return false;
                }
            }
            from = slot + 1;
        }
        true
    }

    /// Calls `f` with the live keys of the segment that covers `prefix`, from there on; returns the next
    /// prefix.
    fn keys_of_segment(&mut self, place: Place, prefix: u64, f: &mut impl FnMut(View<'_>)) -> u64 {
        let (segment, next) = self.slot_of_place(place).segment_at(prefix);
        let (now, hasher) = (self.ctx.seen_ms(), &self.keyspace().hasher);
        for entry in segment.occupied().map(|bucket| segment.word(bucket).entry()) {
            // A slot that was emptied since the last segment starts again with a segment that covers all
            // prefixes.
            let is_new = prefix == 0 || directory::prefix(hasher.hash(entry.key())) >= prefix;
            if is_new && entry.deadline().is_none_or(|deadline| deadline > now) {
                f(View::new(entry));
            }
        }
        next
    }

    /// A random key of the database; nearly uniform if keys are spread over the slots. Its deadline may have
    /// passed if no key is live, and expired keys are only hidden. The caller holds nothing or everything.
    pub fn random_key(&mut self, db: usize) -> Option<Vec<u8>> {
        for _ in 0..RANDOM_TRIES {
            let random = self.ctx.random();
            let slot = self.keyspace().db_if_used(db)?.occupied.any(random)?;
            let place = Place::new(db as u32, slot as u16);
            let key = self.visit(place, |guard| guard.random_in_slot(place));
            if key.is_some() {
                return key;
            }
        }
        // Nearly all keys have expired and have not been swept yet, so any live key is accepted. Without one,
        // an expired key that stays is the answer, as in Valkey.
        let live = self.live_key(db);
        live.or_else(|| if self.ctx.keeps_expired() { self.random_expired_key(db) } else { None })
    }

    fn live_key(&mut self, db: usize) -> Option<Vec<u8>> {
        let (mut key, mut cursor) = (None, Cursor(0));
        loop {
            cursor = self.scan(db, cursor, 1000, None, |view| key = Some(view.key().to_vec()));
            if key.is_some() || cursor.0 == 0 {
                return key;
            }
        }
    }

    /// A key of a database without live keys. While no key expires, as on a replica, clients get its name.
    #[cold]
    fn random_expired_key(&mut self, db: usize) -> Option<Vec<u8>> {
        let random = self.ctx.random();
        let slot = self.keyspace().db_if_used(db)?.occupied.any(random)?;
        let place = Place::new(db as u32, slot as u16);
        self.visit(place, |guard| {
            let mut segments = guard.slot_of_place(place).segments_from(random);
            segments.find_map(|(_, segment)| {
                let bucket = segment.occupied_from(random as usize).next()?;
                Some(segment.word(bucket).entry().key().to_vec())
            })
        })
    }

    fn random_in_slot(&mut self, place: Place) -> Option<Vec<u8>> {
        let (random, now) = (self.ctx.random(), self.ctx.seen_ms());
        let mut segments = self.slot_of_place(place).segments_from(random);
        segments.find_map(|(_, segment)| {
            let mut entries =
                segment.occupied_from(random as usize).map(|bucket| segment.word(bucket).entry());
            let live = entries.find(|entry| entry.deadline().is_none_or(|deadline| deadline > now));
            live.map(|entry| entry.key().to_vec())
        })
    }
}
