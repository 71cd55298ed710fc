//! A directory: the segments of a slot that is too large for a single segment, by the leading bits of the
//! hash below the tag.
//!
//! It has `1 << depth` places. A segment that was split fewer times than that stands in several neighbouring
//! places, and the first of them holds its counters. Each place stores a time before which no key of its
//! segment is due. So a sweep of a slot with ten million keys reads a list of times, not ten million
//! deadlines.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::*};

use crate::memory::blocks;
use crate::table::retired::Retired;
use crate::table::segment::{DIRECTORY, KEYS_MAX, Segment, TAG_BITS, pack_address, unpack_address};

/// Bits of the hash that a directory can use.
pub(crate) const DEPTH_MAX: u32 = 24;
const _: () = assert!(TAG_BITS + DEPTH_MAX <= 64);
const _: () = assert!(KEYS_MAX <= u16::MAX as usize);

/// The directory's bits of a hash, as a number below `1 << DEPTH_MAX`.
#[inline]
pub(crate) fn prefix(hash: u64) -> u64 {
    hash << TAG_BITS >> (64 - DEPTH_MAX)
}

/// A place of a directory.
#[repr(C)]
pub(crate) struct Branch {
    segment: AtomicU64,
    /// No key of the segment is due before this coarse time.
    pub(crate) due: AtomicU32,
    pub(crate) len: AtomicU16,
    /// Number of times that the segment was split.
    depth: AtomicU8,
}
const _: () = assert!(size_of::<Branch>() == 16);

impl Branch {
    #[inline]
    pub(crate) fn segment(&self) -> Segment {
        Segment(self.segment.load(Relaxed))
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Relaxed) as usize
    }

    pub(crate) fn depth(&self) -> u32 {
        u32::from(self.depth.load(Relaxed))
    }

    /// `Release`, since prefetches follow the address without the slot's lock.
    fn store(&self, part: &Part, depth: u32) {
        self.due.store(part.due, Relaxed);
        self.len.store(part.len as u16, Relaxed);
        self.depth.store(depth as u8, Relaxed);
        self.segment.store(part.segment.0, Release);
    }
}

/// A segment, its number of keys, and a time before which none of them is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) segment: Segment,
    pub(crate) len: usize,
    pub(crate) due: u32,
}

/// A directory's address and depth, as a slot's root holds them.
#[derive(Clone, Copy)]
pub(crate) struct Directory(u64);

impl Directory {
    /// The directory of a root, unless the root is a single segment.
    #[inline]
    pub(crate) fn of(root: u64) -> Option<Directory> {
        (root & DIRECTORY != 0).then_some(Directory(root))
    }

    /// Creates a directory with two places, both for `whole`.
    pub(crate) fn new(whole: Part) -> Directory {
        let new = Directory::allocate(1);
        new.branches().iter().for_each(|branch| branch.store(&whole, 0));
        new
    }

    /// A copy with twice the places. The caller retires the old memory.
    pub(crate) fn doubled(self) -> Directory {
        let new = Directory::allocate(self.depth() + 1);
        for (pair, old) in new.branches().chunks_exact(2).zip(self.branches()) {
            let part = Part { segment: old.segment(), len: old.len(), due: old.due.load(Relaxed) };
            pair.iter().for_each(|branch| branch.store(&part, old.depth()));
        }
        new
    }

    fn allocate(depth: u32) -> Directory {
        let block = blocks::take_zeroed(size(depth));
        Directory(pack_address(block.as_ptr() as usize) | u64::from(depth) << 44 | DIRECTORY)
    }

    /// A copy in another block, if there is memory. The directory lies in a block of the slab allocator.
    pub(crate) fn duplicate(self) -> Option<Directory> {
        let Retired { address, size } = self.retire();
        // SAFETY: the directory is this long, and the holder of its slot neither frees nor changes it now.
        let copy =
            unsafe { blocks::duplicate(blocks::Kind::Entry, NonNull::new(address as *mut u8)?, size) }?;
        Some(Directory(pack_address(copy.as_ptr() as usize) | u64::from(self.depth()) << 44 | DIRECTORY))
    }

    /// The directory as a slot's root holds it.
    pub(crate) fn root(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) fn depth(self) -> u32 {
        (self.0 >> 44 & 0xfff) as u32
    }

    #[inline]
    pub(crate) fn branches<'a>(self) -> &'a [Branch] {
        // SAFETY: `1 << depth` branches lie there; see `Segment::words` for how long.
        unsafe { std::slice::from_raw_parts(unpack_address(self.0) as *const Branch, 1 << self.depth()) }
    }

    /// The place of a prefix.
    #[inline]
    pub(crate) fn place(self, prefix: u64) -> usize {
        (prefix >> (DEPTH_MAX - self.depth())) as usize
    }

    /// All places of the segment at `branch`.
    pub(crate) fn places(self, branch: usize) -> Range<usize> {
        let width = 1 << (self.depth() - self.branches()[branch].depth());
        let first = branch & !(width - 1);
        first..first + width
    }

    /// The place with the counters of the segment at `branch`.
    #[inline]
    pub(crate) fn first<'a>(self, branch: usize) -> &'a Branch {
        &self.branches()[self.places(branch).start]
    }

    /// Puts `segment` in all places of the segment at `branch`; returns the old segment.
    pub(crate) fn exchange(self, branch: usize, segment: Segment) -> Segment {
        let old = self.branches()[branch].segment();
        for branch in &self.branches()[self.places(branch)] {
            branch.segment.store(segment.0, Release);
        }
        old
    }

    /// Gives the lower places of the segment at `branch` to the first half, the upper places to the second.
    pub(crate) fn split(self, branch: usize, halves: [Part; 2]) {
        let (places, depth) = (self.places(branch), self.branches()[branch].depth() + 1);
        let middle = places.start + places.len() / 2;
        for at in places {
            self.branches()[at].store(&halves[usize::from(at >= middle)], depth);
        }
    }

    /// The place for `hash`, for prefetching.
    #[inline]
    pub(crate) fn address_hint(self, hash: u64) -> *const u8 {
        (unpack_address(self.0) + size_of::<Branch>() * self.place(prefix(hash))) as *const u8
    }

    /// The segment for `hash`, read without the slot's lock.
    #[inline]
    pub(crate) fn hint(self, hash: u64) -> Segment {
        Segment(self.branches()[self.place(prefix(hash))].segment.load(Acquire))
    }

    /// The address, for finding out where the directory lies.
    pub(crate) fn address(self) -> usize {
        unpack_address(self.0)
    }

    /// The directory's memory, to be freed later; without the segments.
    pub(crate) fn retire(self) -> Retired {
        Retired { address: unpack_address(self.0), size: size(self.depth()) }
    }
}

/// Bytes of a directory, whose depth is at most [`DEPTH_MAX`].
fn size(depth: u32) -> usize {
    size_of::<Branch>() << depth
}

const _: () = assert!(align_of::<Branch>() <= 8);
