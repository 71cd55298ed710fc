//! Changing the items of a page. Every change first makes the block this reference's own.

use std::marker::PhantomData;
use std::ops::Range;

use super::{EVEN, HEADED, HEADER, ITEM_MAX, NARROW, NARROW_MAX, PACKED, Page, len_of};

impl Page {
    /// Makes the block this reference's own, with room for `items` more items of `bytes` bytes, even or not;
    /// copies it if necessary.
    pub(super) fn own(&mut self, items: usize, bytes: usize, even: bool) {
        let used = self.used() + bytes;
        let stays = even == self.is_even();
        let too_wide = self.is_narrow() && used > NARROW_MAX && self.len() + items > 1;
        let needed = self.bytes() + bytes + items * self.stride();
        if !self.is_own() || !stays || too_wide || needed > self.memory() {
            *self = self.copied(self.len() + items, used, even);
        }
    }

    /// A copy with room for `items` items of `bytes` bytes in all.
    fn copied(&self, items: usize, bytes: usize, even: bool) -> Page {
        let mut copy = Page::of_kind(self.is_tagged(), even, items, bytes);
        let (used, count) = (self.used(), self.len());
        // SAFETY: both blocks hold `used` bytes behind the header, and tags at their ends; the copy has room
        // for both, and no other reference to it exists.
        unsafe {
            copy.base().add(HEADER).copy_from_nonoverlapping(self.base().add(HEADER), used);
            let tags = count * self.tag_width();
            copy.tail().sub(tags).copy_from_nonoverlapping(self.tail().sub(tags), tags);
            let header = copy.0.as_mut();
            header.count = count as u16;
            header.used = used as u32;
            header.flags |= self.header().flags & (HEADED | PACKED);
        }
        if !even {
            (0..count).for_each(|at| copy.set_start(at, self.start(at)));
        }
        copy
    }

    /// Sets an offset in a block that is this reference's own, and not even.
    fn set_start(&mut self, at: usize, start: usize) {
        assert!(at < self.len(), "a position inside");
        // SAFETY: as in `start`.
        unsafe {
            let end = self.tail().sub(self.len() * self.tag_width());
            if self.is_narrow() {
                *end.sub(at + 1) = start as u8;
            } else {
                *end.cast::<u16>().sub(at + 1) = start as u16;
            }
        }
    }

    /// Frees memory after much has been removed.
    fn shrink(&mut self) {
        if self.bytes() * 2 < self.memory() {
            *self = self.copied(self.len(), self.used(), self.is_even());
        }
    }

    /// Makes room for `len` bytes in place of the bytes from `start` to `end`, and moves the offsets from
    /// position `from` on. The block is this reference's own, and large enough.
    fn shift(&mut self, start: usize, end: usize, len: usize, from: usize) {
        let used = self.used();
        debug_assert!(start <= end && end <= used);
        if end - start == len {
            return;
        }
        let count = self.len();
        let change = len.wrapping_sub(end - start);
        // SAFETY: the block is ours and large enough for `used - (end - start) + len` bytes of items. Offsets
        // lie as in `start`, with those from `from` on lowest.
        unsafe {
            let base = self.base().add(HEADER);
            base.add(start + len).copy_from(base.add(end), used - end);
            let offsets = self.tail().sub(count * self.stride());
            if self.is_narrow() {
                let offsets = std::slice::from_raw_parts_mut(offsets, count - from);
                offsets.iter_mut().for_each(|offset| *offset = offset.wrapping_add(change as u8));
            } else if !self.is_even() {
                let offsets = std::slice::from_raw_parts_mut(offsets.cast::<u16>(), count - from);
                offsets.iter_mut().for_each(|offset| *offset = offset.wrapping_add(change as u16));
            }
            self.0.as_mut().used = (used - (end - start) + len) as u32;
        }
    }

    /// Makes room for an offset and a tag at position `at`, and counts the item.
    fn open_tail(&mut self, at: usize, tag: u16) {
        let (count, tag_width) = (self.len(), self.tag_width());
        let width = self.stride() - tag_width;
        // SAFETY: the block is ours, with room for a further offset and tag below. Offsets and tags lie in
        // descending order, so the entries from `at` on are the lower ones: they move down by one more.
        // Lowest first.
        unsafe {
            let offsets = self.tail().sub(count * self.stride());
            offsets.sub(tag_width + width).copy_from(offsets, (count - at) * width);
            let first = offsets.add((count - at) * width);
            first.sub(tag_width).copy_from(first, at * width);
            if tag_width > 0 {
                let tags = self.tail().cast::<u16>().sub(count);
                tags.sub(1).copy_from(tags, count - at);
                self.tail().cast::<u16>().sub(at + 1).write(tag);
            }
            self.0.as_mut().count += 1;
        }
    }

    pub(super) fn write(&mut self, start: usize, parts: &[&[u8]]) {
        // SAFETY: room for all parts was made at `start` by the caller, in a block that is ours.
        let mut space = unsafe { Space::new(self.base().add(HEADER + start), len_of(parts)) };
        parts.iter().for_each(|part| space.put(part));
    }

    /// Inserts an item made of `parts` at position `at`. The caller ensures that a page of several items
    /// stays below 64 KiB.
    pub(crate) fn insert(&mut self, at: usize, parts: &[&[u8]], tag: u16) {
        self.insert_by(at, len_of(parts), tag, |space| parts.iter().for_each(|part| space.put(part)));
    }

    /// Like [`Page::insert`], for an item of `len` bytes that `fill` writes.
    #[inline]
    pub(crate) fn insert_by(&mut self, at: usize, len: usize, tag: u16, fill: impl FnOnce(&mut Space<'_>)) {
        let count = self.len();
        assert!(at <= count && count < u16::MAX as usize, "a position inside, and a count that fits");
        assert!(self.used() + len <= ITEM_MAX, "lengths fit, also of what stands before the items");
        assert!(count == 0 || self.used() + len <= u16::MAX as usize, "offsets fit");
        // A single item is even.
        let even = self.is_even() && (self.stays_even_with(len) || count == 0);
        self.own(1, len, even);
        let start = if at == count { self.used() } else { self.start(at) };
        self.shift(start, start, len, at);
        self.open_tail(at, tag);
        if !even {
            self.set_start(at, start);
        }
        // SAFETY: room for the item was made at `start`, in a block that is ours.
        let mut space = unsafe { Space::new(self.base().add(HEADER + start), len) };
        fill(&mut space);
        assert!(space.left == 0, "as many bytes as were announced");
    }

    /// Replaces an item by another.
    pub(crate) fn replace(&mut self, at: usize, parts: &[&[u8]]) {
        let (start, end) = self.bounds(at);
        let len = len_of(parts);
        if self.len() == 1
            && !self.is_headed()
            && (!self.is_own() || self.bytes() - (end - start) + len > self.memory())
        {
            // Nothing of the old block is needed.
            let tag = if self.is_tagged() { self.tag(0) } else { 0 };
            let mut page = Page::new(self.is_tagged(), len);
            page.insert(0, parts, tag);
            *self = page;
            return;
        }
        assert!(self.len() == 1 || self.used() - (end - start) + len <= u16::MAX as usize, "offsets fit");
        let even = self.is_even() && (self.len() == 1 || len == end - start);
        self.own(0, len.saturating_sub(end - start), even);
        self.shift(start, end, len, at + 1);
        self.write(start, parts);
        self.shrink();
    }

    /// Replaces a part of a packed page's item by `bytes`.
    pub(crate) fn splice(&mut self, part: Range<usize>, bytes: &[u8]) {
        assert!(self.is_packed() && part.start <= part.end && part.end <= self.used(), "a part of the item");
        let (old, new) = (part.len(), bytes.len());
        assert!(self.used() - old + new <= ITEM_MAX, "an item's length fits");
        self.own(0, new.saturating_sub(old), self.is_even());
        self.shift(part.start, part.end, new, 1);
        self.write(part.start, &[bytes]);
        if new < old {
            self.shrink();
        }
    }

    /// Overwrites a part of an item, which lies inside.
    pub(crate) fn patch(&mut self, at: usize, offset: usize, bytes: &[u8]) {
        let (start, end) = self.bounds(at);
        assert!(offset + bytes.len() <= end - start, "inside the item");
        self.own(0, 0, self.is_even());
        self.write(start + offset, &[bytes]);
    }

    /// Removes the items at positions `from` to `to`.
    pub(crate) fn remove(&mut self, from: usize, to: usize) {
        assert!(from <= to && to <= self.len(), "positions inside");
        if from == to {
            return;
        }
        if to - from == self.len() && !self.is_headed() && !self.is_own() {
            // Nothing of the old block is needed, and it may be long.
            *self = Page::new(self.is_tagged(), 0);
            return;
        }
        self.own(0, 0, self.is_even());
        let (start, end) = (self.start(from), self.bounds(to - 1).1);
        self.shift(start, end, 0, to);
        let (count, tag_width, gone) = (self.len(), self.tag_width(), to - from);
        let width = self.stride() - tag_width;
        // SAFETY: the block is ours; offsets and tags lie as in `open_tail`, and move up. Highest first.
        unsafe {
            if tag_width > 0 {
                let tags = self.tail().cast::<u16>().sub(count);
                tags.add(gone).copy_from(tags, count - to);
            }
            let offsets = self.tail().sub(count * self.stride());
            let first = offsets.add((count - from) * width);
            first.add(gone * tag_width).copy_from(first, from * width);
            offsets.add(gone * (tag_width + width)).copy_from(offsets, (count - to) * width);
            let header = self.0.as_mut();
            header.count -= gone as u16;
            if header.count == 0 && header.flags & (HEADED | PACKED) == 0 {
                header.flags = header.flags & !NARROW | EVEN;
            }
        }
        self.shrink();
    }
}

/// The destination of an item's bytes.
pub(crate) struct Space<'p> {
    at: *mut u8,
    left: usize,
    page: PhantomData<&'p mut Page>,
}

impl Space<'_> {
    /// # Safety
    /// `len` bytes at `at` are the caller's, and stay so while this exists.
    unsafe fn new(at: *mut u8, len: usize) -> Self {
        Space { at, left: len, page: PhantomData }
    }

    /// Appends bytes. Panics if there is no room for them.
    #[inline]
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.left, "no more bytes than were announced");
        // SAFETY: this many bytes are left, in a block that no other reference sees.
        unsafe {
            self.at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            self.at = self.at.add(bytes.len());
        }
        self.left -= bytes.len();
    }
}

impl Drop for Space<'_> {
    /// Zeroes the bytes that a panic has left unfilled, so that they are not read as they are.
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as in `put`.
        unsafe { self.at.write_bytes(0, self.left) }
    }
}
