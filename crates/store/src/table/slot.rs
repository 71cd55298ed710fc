//! A slot: a lock, and a table that grows without ever pausing.
//!
//! Up to about 830 keys a slot is a single [`Segment`]. Beyond that, it is a [`Directory`] of segments that
//! split one at a time (extendible hashing), so the slot of a hash tag with ten million keys grows as evenly
//! as any other. The directory is indexed by the leading bits of the hash below the tag. A split therefore
//! never changes the order of keys by (directory bits, tag), and SCAN cursors refer to that order.
//!
//! All fields are atomic, read and written relaxed: the lock orders them. Only `root`, `len` and `due` are
//! read without the lock, as hints. Prefetches follow `root`, so a new table is published with `Release`.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::*};

use lock_api::RawMutex as _;
use parking_lot::RawMutex;

use crate::key::Hasher;
use crate::memory::blocks;
use crate::notify::subscribers::SlotSubscribers;
use crate::table::directory::{DEPTH_MAX, Directory, Part, prefix};
use crate::table::entry::EntryPtr;
use crate::table::prefetch::prefetching;
use crate::table::retired::{Retired, RetiredTables};
use crate::table::segment::{BUCKETS_SPLIT, KEYS_MAX, Segment, Word, tag};

/// Value of `due` when no key of the slot has a deadline.
pub(crate) const NEVER: u32 = u32::MAX;

/// Half a cache line. All zeros is an empty slot, so a new database consists of zeroed pages that cost
/// nothing until they are used.
#[repr(C, align(32))]
pub(crate) struct Slot {
    lock: RawMutex,
    /// Whether `due` is valid.
    timed: AtomicU8,
    /// Number of hashes with fields that have a deadline; saturates at `HASHES_MAX`.
    hashes: AtomicU16,
    /// Nothing is due before this coarse time.
    due: AtomicU32,
    /// A `Segment`, or a `Directory`.
    root: AtomicU64,
    len: AtomicU32,
    /// Keys with a deadline of their own.
    timed_len: AtomicU32,
    /// Subscribers of writes, nearly always none; then the number of the slot's last journal record.
    pub(crate) subscribers: AtomicPtr<SlotSubscribers>,
}
const _: () = assert!(size_of::<Slot>() == 32);

/// This many hashes with fields that have a deadline, or more.
const HASHES_MAX: u16 = u16::MAX;

/// Position of a key: its place in the directory (0 without a directory), and its bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyPosition {
    branch: usize,
    pub(crate) segment: Segment,
    pub(crate) bucket: usize,
}

impl KeyPosition {
    #[inline]
    pub(crate) fn entry(&self) -> EntryPtr {
        self.segment.word(self.bucket).entry()
    }
}

/// Reads that need no lock.
impl Slot {
    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Relaxed) as usize
    }

    /// Number of keys with a deadline of their own.
    pub(crate) fn timed_len(&self) -> usize {
        self.timed_len.load(Relaxed) as usize
    }

    /// Returns true if there may be hashes with fields that have a deadline; if not, every deadline is a
    /// key's own.
    #[inline]
    pub(crate) fn has_timed_hashes(&self) -> bool {
        self.hashes.load(Relaxed) != 0
    }

    /// Nothing is due before this coarse time.
    pub(crate) fn due(&self) -> u32 {
        if self.timed.load(Relaxed) == 0 { NEVER } else { self.due.load(Relaxed) }
    }

    /// Address of the word of `hash`, or of the directory entry that leads to it, for prefetching; null if
    /// there is no table.
    #[inline]
    pub(crate) fn bucket_hint(&self, hash: u64) -> *const u8 {
        let root = self.root.load(Relaxed);
        match Directory::of(root) {
            None => Segment(root).home_hint(tag(hash)),
            Some(directory) => directory.address_hint(hash),
        }
    }

    /// Address of the probable entry of `hash`, for prefetching; null if it takes more than a short look. The
    /// caller is inside the gate, so the tables read here live on, even if they change.
    #[inline]
    pub(crate) fn entry_hint(&self, hash: u64) -> *const u8 {
        let root = self.root.load(Acquire);
        let segment = Directory::of(root).map_or(Segment(root), |directory| directory.hint(hash));
        segment.entry_hint(tag(hash))
    }
}

/// The caller holds the lock for all of these.
impl Slot {
    #[inline]
    fn directory(&self) -> Option<Directory> {
        Directory::of(self.root.load(Relaxed))
    }

    #[inline]
    fn segment_of(&self, hash: u64) -> (usize, Segment) {
        let root = self.root.load(Relaxed);
        let Some(directory) = Directory::of(root) else { return (0, Segment(root)) };
        let branch = directory.place(prefix(hash));
        (branch, directory.branches()[branch].segment())
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, key: &[u8]) -> Option<KeyPosition> {
        let (branch, segment) = self.segment_of(hash);
        segment.find(hash, key).map(|bucket| KeyPosition { branch, segment, bucket })
    }

    /// Finds the word of a key with this hash that was seen earlier, if it is still there.
    pub(crate) fn find_word(&self, hash: u64, word: Word) -> Option<KeyPosition> {
        let (branch, segment) = self.segment_of(hash);
        segment.find_by(word.tag(), |other| other == word).map(|bucket| KeyPosition {
            branch,
            segment,
            bucket,
        })
    }

    /// Adds an entry whose key is not in the table.
    pub(crate) fn insert(
        &self,
        hash: u64,
        entry: EntryPtr,
        deadline: u32,
        hasher: &Hasher,
        retired: &mut RetiredTables,
    ) {
        let (branch, segment) = self.segment_for_one_more(hash, deadline != 0, hasher, retired);
        segment.insert(Word::new(tag(hash), entry), deadline);
        self.count_len(branch, 1);
        if deadline != 0 {
            self.lower_due(branch, deadline);
        }
    }

    /// Counts deadlines that come or go: keys' own deadlines, and hashes with timed fields.
    pub(crate) fn count_timed(&self, own: i32, hashes: i16) {
        self.timed_len.store(self.timed_len.load(Relaxed).wrapping_add_signed(own), Relaxed);
        let before = self.hashes.load(Relaxed);
        if hashes != 0 && before != HASHES_MAX {
            self.hashes.store(before.wrapping_add_signed(hashes), Relaxed);
        }
    }

    /// Removes an entry, whose deadlines are no longer counted, from the table.
    pub(crate) fn remove(&self, found: KeyPosition, retired: &mut RetiredTables) -> EntryPtr {
        let entry = found.entry();
        self.set_deadline(found, 0);
        found.segment.remove(found.bucket);
        self.count_len(found.branch, -1);
        if self.len() == 0 {
            self.reset(retired);
        } else {
            self.shrink(found.branch, found.segment, retired);
        }
        entry
    }

    /// Removes the `due` keys that are due from the segment at `branch`, all at once; the caller frees their
    /// entries. Their deadlines are no longer counted.
    pub(crate) fn remove_due(
        &self,
        branch: usize,
        segment: Segment,
        now: u32,
        due: usize,
        retired: &mut RetiredTables,
    ) {
        let left = self.segment_len(branch) - due;
        self.exchange(branch, segment.without_due(now, (left + left / 8).max(1)), retired);
        self.count_len(branch, -i16::try_from(due).expect("a segment has fewer keys"));
        if self.len() == 0 {
            self.reset(retired);
        }
    }

    /// Replaces an entry by another with the same key.
    #[inline]
    pub(crate) fn replace(&self, found: KeyPosition, entry: EntryPtr) {
        found.segment.set_word(found.bucket, Word::new(found.segment.word(found.bucket).tag(), entry));
    }

    /// Sets the coarse deadline of a bucket whose segment has room for it (see [`Slot::make_timed`]), or
    /// clears it.
    pub(crate) fn set_deadline(&self, found: KeyPosition, deadline: u32) {
        let before = found.segment.deadline(found.bucket);
        if before == deadline {
            return;
        }
        found.segment.set_deadline(found.bucket, deadline);
        if deadline != 0 {
            self.lower_due(found.branch, deadline);
        }
    }

    /// Lowers the due times to the deadline of a bucket, as the column has it.
    pub(crate) fn remember(&self, found: KeyPosition) {
        match found.segment.deadline(found.bucket) {
            0 => {}
            deadline => self.lower_due(found.branch, deadline),
        }
    }

    /// Gives a key's segment the column of deadlines; returns the new position of the key.
    pub(crate) fn make_timed(&self, found: KeyPosition, retired: &mut RetiredTables) -> KeyPosition {
        if found.segment.has_deadlines() {
            return found;
        }
        let word = found.segment.word(found.bucket);
        let segment = found.segment.resized(self.segment_len(found.branch), true);
        self.exchange(found.branch, segment, retired);
        let bucket = segment.find_by(word.tag(), |other| other == word).expect("all words were moved");
        KeyPosition { branch: found.branch, segment, bucket }
    }

    pub(crate) fn set_due(&self, due: u32) {
        self.timed.store(u8::from(due != NEVER), Relaxed);
        self.due.store(due, Relaxed);
    }

    /// No key of the segment at `branch` is due before this coarse time.
    pub(crate) fn due_of(&self, branch: usize) -> u32 {
        self.directory().map_or_else(|| self.due(), |directory| directory.first(branch).due.load(Relaxed))
    }

    pub(crate) fn set_due_of(&self, branch: usize, due: u32) {
        match self.directory() {
            None => self.set_due(due),
            Some(directory) => directory.first(branch).due.store(due, Relaxed),
        }
    }

    fn lower_due(&self, branch: usize, deadline: u32) {
        if deadline < self.due() {
            self.set_due(deadline);
        }
        if deadline < self.due_of(branch) {
            self.set_due_of(branch, deadline);
        }
    }

    /// Each segment once, with its place in the directory.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (usize, Segment)> + use<> {
        self.segments_in(0..usize::MAX)
    }

    /// Each segment once, in a circle from a segment chosen by `random`.
    pub(crate) fn segments_from(&self, random: u64) -> impl Iterator<Item = (usize, Segment)> + use<> {
        let (branch, _) = self.segment_of(random);
        let first = self.directory().map_or(0, |directory| directory.places(branch).start);
        self.segments_in(first..usize::MAX).chain(self.segments_in(0..first))
    }

    /// The segments whose first place is in the range, which starts with a first place.
    fn segments_in(&self, mut range: Range<usize>) -> impl Iterator<Item = (usize, Segment)> + use<> {
        let root = self.root.load(Relaxed);
        let directory = Directory::of(root);
        range.end = range.end.min(directory.map_or(1, |directory| directory.branches().len()));
        std::iter::from_fn(move || {
            let at = range.next()?;
            let Some(directory) = directory else { return Some((at, Segment(root))) };
            range.start = directory.places(at).end;
            Some((at, directory.branches()[at].segment()))
        })
    }

    /// The segment that covers `prefix`, and the first prefix after it (`1 << DEPTH_MAX` at the end).
    pub(crate) fn segment_at(&self, prefix: u64) -> (Segment, u64) {
        let root = self.root.load(Relaxed);
        let Some(directory) = Directory::of(root) else { return (Segment(root), 1 << DEPTH_MAX) };
        let branch = &directory.branches()[directory.place(prefix)];
        let width = DEPTH_MAX - branch.depth();
        (branch.segment(), ((prefix >> width) + 1) << width)
    }

    /// Moves the directory to another block, if `is_leaving` says so of its address. Returns its bytes, zero
    /// if it stays; `None`: there is no memory.
    pub(crate) fn move_directory(
        &self,
        is_leaving: impl Fn(usize) -> bool,
        retired: &mut RetiredTables,
    ) -> Option<usize> {
        let Some(old) = self.directory().filter(|directory| is_leaving(directory.address())) else {
            return Some(0);
        };
        self.root.store(old.duplicate()?.root(), Release);
        let old = old.retire();
        let bytes = old.size;
        retired.add(Some(old));
        Some(bytes)
    }

    /// Moves the segment that covers `prefix` to another block, as [`Slot::move_directory`] does.
    pub(crate) fn move_segment(
        &self,
        prefix: u64,
        is_leaving: impl Fn(usize) -> bool,
        retired: &mut RetiredTables,
    ) -> Option<usize> {
        let (segment, _) = self.segment_at(prefix);
        if !is_leaving(segment.address()) {
            return Some(0);
        }
        let branch = self.directory().map_or(0, |directory| directory.place(prefix));
        self.exchange(branch, segment.duplicate()?, retired);
        Some(segment.memory())
    }

    /// Empties the slot and calls `f` with each entry, which the caller then owns.
    pub(crate) fn drain(&self, mut f: impl FnMut(EntryPtr)) {
        for (_, segment) in self.segments() {
            segment.occupied().for_each(|bucket| f(segment.word(bucket).entry()));
        }
        self.free_tables(|table| {
            // SAFETY: no other thread can reach the slot any more.
            unsafe { table.free() }
        });
    }

    pub(crate) fn has_tables(&self) -> bool {
        self.root.load(Relaxed) != 0
    }

    /// Bytes of memory that the tables take.
    pub(crate) fn memory(&self) -> usize {
        let directory = self.directory().map_or(0, |directory| directory.retire().size);
        directory + self.segments().map(|(_, segment)| segment.memory()).sum::<usize>()
    }

    pub(crate) fn segment_len(&self, branch: usize) -> usize {
        self.directory().map_or_else(|| self.len(), |directory| directory.first(branch).len())
    }

    #[inline]
    fn count_len(&self, branch: usize, change: i16) {
        self.len.store(self.len.load(Relaxed).wrapping_add_signed(change.into()), Relaxed);
        if let Some(directory) = self.directory() {
            let len = &directory.first(branch).len;
            len.store(len.load(Relaxed).wrapping_add_signed(change), Relaxed);
        }
    }

    /// The segment for `hash`, grown or split so that a further key fits.
    #[inline]
    fn segment_for_one_more(
        &self,
        hash: u64,
        timed: bool,
        hasher: &Hasher,
        retired: &mut RetiredTables,
    ) -> (usize, Segment) {
        let (branch, segment) = self.segment_of(hash);
        if segment.has_room(self.segment_len(branch)) && (segment.has_deadlines() || !timed) {
            return (branch, segment);
        }
        self.make_room(hash, timed, hasher, retired)
    }

    #[cold]
    fn make_room(
        &self,
        hash: u64,
        timed: bool,
        hasher: &Hasher,
        retired: &mut RetiredTables,
    ) -> (usize, Segment) {
        loop {
            let (branch, segment) = self.segment_of(hash);
            let len = self.segment_len(branch);
            if !segment.has_room(len)
                && segment.buckets() >= BUCKETS_SPLIT
                && self.split(branch, segment, len, hasher, retired)
            {
                continue; // the half that this key belongs to may be full again, if unlikely
            }
            assert!(len < KEYS_MAX, "a segment that can neither grow nor split: the hash is broken");
            let segment = segment.resized(len + 1, timed || segment.has_deadlines());
            self.exchange(branch, segment, retired);
            return (branch, segment);
        }
    }

    /// Puts `segment` in all places of the segment at `branch`, whose memory is retired.
    fn exchange(&self, branch: usize, segment: Segment, retired: &mut RetiredTables) {
        let old = match self.directory() {
            None => {
                let old = Segment(self.root.load(Relaxed));
                self.root.store(segment.0, Release);
                old
            }
            Some(directory) => directory.exchange(branch, segment),
        };
        retired.add(old.retire());
    }

    /// Splits the segment at `branch` in two by the next bit of its keys' hashes. Returns false if there are
    /// no more bits.
    fn split(
        &self,
        branch: usize,
        old: Segment,
        len: usize,
        hasher: &Hasher,
        retired: &mut RetiredTables,
    ) -> bool {
        let before = self.directory();
        let local = before.map_or(0, |directory| directory.branches()[branch].depth());
        if local == DEPTH_MAX {
            return false;
        }
        let halves = split_words(old, local, hasher);
        let (directory, branch) = match before {
            None => (Directory::new(Part { segment: old, len, due: self.due() }), 0),
            Some(directory) if directory.depth() == local => (directory.doubled(), branch * 2),
            Some(directory) => (directory, branch),
        };
        directory.split(branch, halves);
        if before.is_none_or(|before| before.root() != directory.root()) {
            self.root.store(directory.root(), Release);
            retired.add(before.map(Directory::retire));
        }
        retired.add(old.retire());
        true
    }

    fn shrink(&self, branch: usize, segment: Segment, retired: &mut RetiredTables) {
        let len = self.segment_len(branch);
        if segment.shrinks(len) {
            let timed = segment.has_deadlines() && (self.timed_len() > 0 || self.has_timed_hashes());
            self.exchange(branch, segment.resized((len * 3 / 2).max(1), timed), retired);
        }
    }

    /// Resets the slot to the state in which it has never held a key.
    fn reset(&self, retired: &mut RetiredTables) {
        self.free_tables(|table| retired.add(Some(table)));
        self.timed_len.store(0, Relaxed);
        self.hashes.store(0, Relaxed);
        self.set_due(NEVER);
    }

    fn free_tables(&self, mut free: impl FnMut(Retired)) {
        let (segments, directory) = (self.segments(), self.directory());
        self.root.store(0, Relaxed);
        segments.filter_map(|(_, segment)| segment.retire()).for_each(&mut free);
        if let Some(directory) = directory {
            free(directory.retire());
        }
    }

    /// Takes the lock.
    #[inline]
    pub(crate) fn lock(&self) {
        self.lock.lock();
    }

    /// Takes the lock if it is free.
    #[inline]
    pub(crate) fn try_lock(&self) -> bool {
        self.lock.try_lock()
    }

    /// # Safety
    /// The caller holds the lock.
    #[inline]
    pub(crate) unsafe fn unlock(&self) {
        // SAFETY: by the caller's promise.
        unsafe { self.lock.unlock() }
    }
}

/// Distributes the words of `old` over two segments, by bit `local` of their keys' prefixes.
fn split_words(old: Segment, local: u32, hasher: &Hasher) -> [Part; 2] {
    let buckets: Vec<usize> = old.occupied().collect();
    let words: Vec<Word> = buckets.iter().map(|bucket| old.word(*bucket)).collect();
    let is_upper = |word: Word| prefix(hasher.hash(word.entry().key())) >> (DEPTH_MAX - 1 - local) & 1 == 1;
    let uppers: Vec<bool> = prefetching(&words).map(is_upper).collect();
    let upper = uppers.iter().filter(|upper| **upper).count();
    let mut halves = [words.len() - upper, upper].map(|len| {
        let segment = Segment::EMPTY.resized((len + len / 8).max(1), old.has_deadlines());
        Part { segment, len, due: NEVER }
    });
    for ((bucket, word), upper) in buckets.into_iter().zip(words).zip(uppers) {
        let (half, deadline) = (&mut halves[usize::from(upper)], old.deadline(bucket));
        half.segment.insert(word, deadline);
        if deadline != 0 {
            half.due = half.due.min(deadline);
        }
    }
    halves
}

/// The slots of a database.
pub(crate) struct Slots {
    first: NonNull<Slot>,
}

// SAFETY: slots are made of atomics and a lock.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Slots {
    const SIZE: usize = size_of::<[Slot; crate::SLOTS]>();

    pub(crate) fn new() -> Slots {
        Slots { first: blocks::take_zeroed_sparse(Slots::SIZE).cast() }
    }

    /// The address, for a process that takes the slots over.
    pub(crate) fn address(&self) -> u64 {
        self.first.as_ptr().expose_provenance() as u64
    }

    /// # Safety
    /// The address is that of slots of a keyspace whose memory this process has taken over, and nothing else
    /// owns them.
    pub(crate) unsafe fn from_address(address: u64) -> Slots {
        let first = NonNull::new(std::ptr::with_exposed_provenance_mut(address as usize));
        Slots { first: first.expect("slots have an address") }
    }
}

impl std::ops::Deref for Slots {
    type Target = [Slot; crate::SLOTS];

    #[inline]
    fn deref(&self) -> &[Slot; crate::SLOTS] {
        // SAFETY: `first` points to as many slots, and all zeros is a valid slot: an unlocked `RawMutex` is
        // zero.
        unsafe { self.first.cast().as_ref() }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: taken in `new` with the same size. Tables and entries have been drained by
        // `Db::drop`.
        unsafe { blocks::put_back(self.first.cast(), Slots::SIZE) }
    }
}
