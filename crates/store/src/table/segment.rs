//! A segment: an open-addressing table of 8-byte words, each a 20-bit tag and the address of an entry.
//!
//! The tag is a part of the key's hash, and it alone decides the home of a word, so the table can grow,
//! shrink and close gaps without looking at a single entry. A lookup reads a cache line of words and, for the
//! word whose tag fits, the entry; with 1,024 buckets a wrong tag fits once in a thousand.
//!
//! A segment that holds keys with a TTL has a column of coarse deadlines beside its words, 4 bytes a bucket.
//! Finding the due keys then reads 4 KiB instead of a thousand entries.
//!
//! Linear probing, at most 13/16 full, growing by about a quarter: eleven bytes a key. `hashbrown` was
//! measured: a further cache miss per lookup, and no way to prefetch.
//!
//! Words are atomic because other threads read them unlocked to prefetch entries, without following them. All
//! other accesses are under the slot's lock.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::memory::blocks;
use crate::table::entry::EntryPtr;
use crate::table::retired::Retired;

/// Bits of the hash in a word.
pub(crate) const TAG_BITS: u32 = 20;
const ADDRESS_BITS: u32 = 64 - TAG_BITS;
const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;

/// Number of buckets from which a segment is split rather than grown: moving so many words takes about 3 us,
/// and splitting, which reads each entry, about 30 us.
pub(crate) const BUCKETS_SPLIT: usize = 1024;

/// Capacities, in buckets.
const LADDER: [u16; 28] = [
    8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048,
    2560, 4096, 8192, 16384, 24576, 32752,
];
const _: () = assert!(LADDER[LADDER.len() - 1] as usize / 8 < 1 << CAP_BITS);

/// Buckets looked at to prefetch an entry: at 13/16 full, most words lie nearer to their home.
const HINT_BUCKETS: usize = 8;

/// Maximum number of keys in `buckets` buckets: 13/16 of them. At least one bucket stays empty, so that
/// probing ends.
const fn room(buckets: usize) -> usize {
    buckets * 13 / 16
}

const _: () = assert!(room(LADDER[0] as usize) < LADDER[0] as usize);

/// Maximum number of keys in a segment.
pub(crate) const KEYS_MAX: usize = room(LADDER[LADDER.len() - 1] as usize);

/// The tag of a hash.
#[inline]
pub(crate) fn tag(hash: u64) -> u32 {
    (hash >> ADDRESS_BITS) as u32
}

/// A bucket's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    #[inline]
    pub(crate) fn new(tag: u32, entry: EntryPtr) -> Word {
        let address = entry.address() as u64;
        debug_assert!(
            address.is_multiple_of(8) && address >> 47 == 0,
            "a user-space address on x86-64 or AArch64"
        );
        Word((tag as u64) << ADDRESS_BITS | address >> 3)
    }

    #[inline]
    pub(crate) fn tag(self) -> u32 {
        (self.0 >> ADDRESS_BITS) as u32
    }

    #[inline]
    pub(crate) fn address(self) -> usize {
        ((self.0 & ADDRESS_MASK) << 3) as usize
    }

    #[inline]
    pub(crate) fn entry(self) -> EntryPtr {
        // SAFETY: words other than zero are made by `Word::new`, and callers check for zero.
        unsafe { EntryPtr::from_address(self.address()) }
    }
}

const CAP_BITS: u32 = 12;
const DEADLINES: u64 = 1 << (44 + CAP_BITS);
/// Set in a slot's root that is a directory; its depth is where the capacity would be.
pub(crate) const DIRECTORY: u64 = 1 << (45 + CAP_BITS);

/// A segment's address, capacity and shape in one word, so that they can be read together without the lock.
/// Zero is the empty segment, without memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Segment(pub(crate) u64);

impl Segment {
    pub(crate) const EMPTY: Segment = Segment(0);

    fn allocate(buckets: usize, deadlines: bool) -> Segment {
        let block = blocks::take_zeroed(size(buckets, deadlines));
        let flag = if deadlines { DEADLINES } else { 0 };
        Segment(pack_address(block.as_ptr() as usize) | ((buckets / 8) as u64) << 44 | flag)
    }

    #[inline]
    pub(crate) fn buckets(self) -> usize {
        (self.0 >> 44 & ((1 << CAP_BITS) - 1)) as usize * 8
    }

    #[inline]
    pub(crate) fn has_deadlines(self) -> bool {
        self.0 & DEADLINES != 0
    }

    #[inline]
    pub(crate) fn address(self) -> usize {
        unpack_address(self.0)
    }

    #[inline]
    pub(crate) fn words<'a>(self) -> &'a [AtomicU64] {
        if self.0 == 0 {
            return &[];
        }
        // SAFETY: the segment's memory starts with its words; it lives while the slot is held or, for
        // prefetching, while the reader is inside the gate.
        unsafe { std::slice::from_raw_parts(self.address() as *const AtomicU64, self.buckets()) }
    }

    #[inline]
    fn deadlines<'a>(self) -> Option<&'a [AtomicU32]> {
        // SAFETY: the flag says that the column follows the words.
        self.has_deadlines().then(|| unsafe {
            let column = (self.address() as *const AtomicU64).add(self.buckets());
            std::slice::from_raw_parts(column.cast(), self.buckets())
        })
    }

    #[inline]
    pub(crate) fn word(self, bucket: usize) -> Word {
        Word(self.words()[bucket].load(Relaxed))
    }

    #[inline]
    pub(crate) fn set_word(self, bucket: usize, word: Word) {
        self.words()[bucket].store(word.0, Relaxed);
    }

    /// The coarse deadline of a bucket; zero without one.
    #[inline]
    pub(crate) fn deadline(self, bucket: usize) -> u32 {
        self.deadlines().map_or(0, |column| column[bucket].load(Relaxed))
    }

    /// Sets the coarse deadline of a bucket. A non-zero deadline needs a segment with the column.
    #[inline]
    pub(crate) fn set_deadline(self, bucket: usize, deadline: u32) {
        match self.deadlines() {
            Some(column) => column[bucket].store(deadline, Relaxed),
            None => assert!(deadline == 0, "a segment without deadlines"),
        }
    }

    /// The home bucket of a word with this tag.
    #[inline]
    pub(crate) fn home(self, tag: u32) -> usize {
        ((tag as u64 * self.buckets() as u64) >> TAG_BITS) as usize
    }

    #[inline]
    fn after(self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets() { 0 } else { bucket + 1 }
    }

    /// The bucket that holds `key`.
    #[inline]
    pub(crate) fn find(self, hash: u64, key: &[u8]) -> Option<usize> {
        self.find_by(tag(hash), |word| word.entry().has_key(key))
    }

    /// The first bucket on the tag's probe path whose tag fits and for which `is` returns true.
    #[inline]
    pub(crate) fn find_by(self, tag: u32, is: impl Fn(Word) -> bool) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let words = self.words();
        let mut bucket = self.home(tag);
        loop {
            let word = Word(words[bucket].load(Relaxed));
            if word.tag() == tag && word.0 != 0 && is(word) {
                return Some(bucket);
            }
            if word.0 == 0 {
                return None;
            }
            bucket = self.after(bucket);
        }
    }

    /// The address of the home bucket of this tag; null for the empty segment. Reads nothing.
    #[inline]
    pub(crate) fn home_hint(self, tag: u32) -> *const u8 {
        if self.0 == 0 {
            return std::ptr::null();
        }
        (self.address() + size_of::<u64>() * self.home(tag)) as *const u8
    }

    /// The address of the first entry whose tag fits, if it lies within a few buckets of its home. Other
    /// threads may be writing the words meanwhile, and the next empty bucket may be far away, so the search
    /// ends there.
    #[inline]
    pub(crate) fn entry_hint(self, tag: u32) -> *const u8 {
        if self.0 == 0 {
            return std::ptr::null();
        }
        let near = self.words()[self.home(tag)..].iter().take(HINT_BUCKETS);
        let mut near = near.map(|word| Word(word.load(Relaxed))).take_while(|word| word.0 != 0);
        near.find(|word| word.tag() == tag).map_or(std::ptr::null(), |word| word.address() as *const u8)
    }

    /// The buckets that hold a word.
    pub(crate) fn occupied(self) -> impl Iterator<Item = usize> {
        self.occupied_from(0)
    }

    /// The buckets that hold a word, in a circle from a bucket chosen by `random`.
    pub(crate) fn occupied_from(self, random: usize) -> impl Iterator<Item = usize> {
        let buckets = self.buckets();
        let first = random.checked_rem(buckets).unwrap_or(0);
        (first..buckets).chain(0..first).filter(move |bucket| self.word(*bucket).0 != 0)
    }

    /// Returns true if a further key fits.
    #[inline]
    pub(crate) fn has_room(self, keys: usize) -> bool {
        keys < room(self.buckets())
    }

    /// Puts a word whose key is not in the segment into it, which has room; returns the bucket.
    #[inline]
    pub(crate) fn insert(self, word: Word, deadline: u32) -> usize {
        let mut bucket = self.home(word.tag());
        while self.word(bucket).0 != 0 {
            bucket = self.after(bucket);
        }
        self.set_word(bucket, word);
        self.set_deadline(bucket, deadline);
        bucket
    }

    /// Empties a bucket and moves later words into the gap, so that no lookup stops early.
    pub(crate) fn remove(self, bucket: usize) {
        let buckets = self.buckets();
        let distance = |from: usize, to: usize| if to >= from { to - from } else { to + buckets - from };
        let (mut gap, mut next) = (bucket, self.after(bucket));
        loop {
            let word = self.word(next);
            if word.0 == 0 {
                break;
            }
            // A word may move back to the gap unless its home lies between the gap and itself.
            if distance(self.home(word.tag()), next) >= distance(gap, next) {
                self.set_word(gap, word);
                self.set_deadline(gap, self.deadline(next));
                gap = next;
            }
            next = self.after(next);
        }
        self.set_word(gap, Word(0));
        self.set_deadline(gap, 0);
    }

    /// A copy with room for `keys` keys and, if asked, the column of deadlines. The caller retires the old
    /// memory.
    pub(crate) fn resized(self, keys: usize, deadlines: bool) -> Segment {
        let step = LADDER.iter().find(|step| room(**step as usize) >= keys).expect("at most KEYS_MAX keys");
        let new = Segment::allocate(*step as usize, deadlines);
        for bucket in self.occupied() {
            new.insert(self.word(bucket), if deadlines { self.deadline(bucket) } else { 0 });
        }
        new
    }

    /// A copy in another block, if there is memory. The segment lies in a block of the slab allocator.
    pub(crate) fn duplicate(self) -> Option<Segment> {
        let block = NonNull::new(self.address() as *mut u8)?;
        // SAFETY: the segment is this long, and the holder of its slot neither frees nor changes it now.
        let copy = unsafe { blocks::duplicate(blocks::Kind::Entry, block, self.memory()) }?;
        Some(Segment(self.0 & !ADDRESS_MASK | pack_address(copy.as_ptr() as usize)))
    }

    /// A copy of the keys that are not due, with room for `keys` keys.
    pub(crate) fn without_due(self, now: u32, keys: usize) -> Segment {
        let new = Segment::EMPTY.resized(keys, true);
        for bucket in self.occupied().filter(|bucket| !self.is_due(*bucket, now)) {
            new.insert(self.word(bucket), self.deadline(bucket));
        }
        new
    }

    /// Returns true if a bucket's key has a deadline that has come.
    #[inline]
    pub(crate) fn is_due(self, bucket: usize, now: u32) -> bool {
        (1..=now).contains(&self.deadline(bucket))
    }

    /// Returns true if shrinking is worth it when `keys` keys are left.
    pub(crate) fn shrinks(self, keys: usize) -> bool {
        self.buckets() > LADDER[0] as usize && keys * 4 < self.buckets()
    }

    /// The segment's memory, to be freed once it is out of the table; `None` for the empty segment.
    pub(crate) fn retire(self) -> Option<Retired> {
        (self.0 != 0)
            .then(|| Retired { address: self.address(), size: size(self.buckets(), self.has_deadlines()) })
    }

    pub(crate) fn memory(self) -> usize {
        self.retire().map_or(0, |retired| retired.size)
    }
}

/// An address in 44 bits: all blocks are aligned to 8 bytes and lie below 2^47.
pub(crate) fn pack_address(address: usize) -> u64 {
    assert!(address.is_multiple_of(8) && address >> 47 == 0, "a user-space address on x86-64 or AArch64");
    address as u64 >> 3
}

#[inline]
pub(crate) fn unpack_address(packed: u64) -> usize {
    ((packed & ADDRESS_MASK) << 3) as usize
}

/// Bytes of a segment.
fn size(buckets: usize, deadlines: bool) -> usize {
    buckets * (size_of::<AtomicU64>() + if deadlines { size_of::<AtomicU32>() } else { 0 })
}

#[cfg(test)]
mod tests;
