//! Bytes of a page, and whether a further item fits.

use std::ops::Range;

use super::{EVEN, HEADER, NARROW, PAGE_MAX, Page, TAG, TAGGED, size_of_class};

impl Page {
    /// Bytes of the items and the head.
    #[inline]
    pub(crate) fn used(&self) -> usize {
        self.header().used as usize
    }

    /// Bytes of the items, tags, offsets and header.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        HEADER + self.used() + self.len() * self.stride()
    }

    /// Bytes of memory.
    #[inline]
    pub(crate) fn memory(&self) -> usize {
        size_of_class(self.header().class)
    }

    /// Bytes that each item takes in addition to its own.
    #[inline]
    pub(crate) fn stride(&self) -> usize {
        stride(self.header().flags)
    }

    /// Bytes per tag; zero if there are none.
    #[inline]
    pub(super) fn tag_width(&self) -> usize {
        if self.is_tagged() { TAG } else { 0 }
    }

    #[inline]
    pub(super) fn wide_stride(&self) -> usize {
        stride(self.header().flags & !(NARROW | EVEN))
    }

    /// Returns true if an item made of `parts` fits into this page within [`PAGE_MAX`].
    #[inline]
    pub(crate) fn has_room(&self, parts: &[&[u8]]) -> bool {
        self.bytes_with(len_of(parts)) <= PAGE_MAX
    }

    /// Bytes of the items, tags, offsets and header with a further item of `len` bytes, in a page that is not
    /// narrow.
    #[inline]
    pub(crate) fn bytes_with(&self, len: usize) -> usize {
        let stride = if self.stays_even_with(len) { self.stride() } else { self.wide_stride() };
        HEADER + self.used() + len + (self.len() + 1) * stride
    }

    /// Bytes of the page with the items of another page.
    pub(crate) fn bytes_with_all_of(&self, other: &Page) -> usize {
        let stride = if self.stays_even_with_all_of(other) { self.stride() } else { self.wide_stride() };
        HEADER + self.used() + other.used() + (self.len() + other.len()) * stride
    }

    /// Returns true if the page is even, and stays even with a further item of `len` bytes, or several.
    #[inline]
    pub(super) fn stays_even_with(&self, len: usize) -> bool {
        self.is_even() && len > 0 && (self.len() == 0 || self.even_len() == len)
    }

    pub(super) fn stays_even_with_all_of(&self, other: &Page) -> bool {
        self.is_even() && other.is_even() && (other.len() == 0 || self.stays_even_with(other.even_len()))
    }

    /// Returns true if an item made of `parts` fits into a page of these items of this page, within
    /// [`PAGE_MAX`].
    pub(crate) fn has_room_in(&self, items: Range<usize>, parts: &[&[u8]]) -> bool {
        let used = if items.is_empty() { 0 } else { self.bounds(items.end - 1).1 - self.start(items.start) };
        let len = len_of(parts);
        let stride = if self.stays_even_with(len) { self.stride() } else { self.wide_stride() };
        HEADER + used + len + (items.len() + 1) * stride <= PAGE_MAX
    }

    /// Returns true if an item made of `parts` can replace the item here, within [`PAGE_MAX`].
    #[inline]
    pub(crate) fn has_room_instead(&self, at: usize, parts: &[&[u8]]) -> bool {
        let (old, new) = (self.get(at).len(), len_of(parts));
        let stays = self.len() == 1 || new == old || new < old && !self.is_even();
        stays || HEADER + self.used() - old + new + self.len() * self.wide_stride() <= PAGE_MAX
    }
}

/// Bytes that each item takes in addition to its own, in a page with these flags.
#[inline]
pub(super) fn stride(flags: u8) -> usize {
    let offset = match flags & (NARROW | EVEN) {
        0 => 2,
        NARROW => 1,
        _ => 0,
    };
    offset + if flags & TAGGED != 0 { TAG } else { 0 }
}

/// Bytes of an ordinary page of `items` items of `bytes` bytes in all.
#[inline]
pub(crate) fn bytes_of(tagged: bool, items: usize, bytes: usize) -> usize {
    HEADER + bytes + items * stride(if tagged { TAGGED } else { 0 })
}

#[inline]
pub(crate) fn len_of(parts: &[&[u8]]) -> usize {
    parts.iter().map(|part| part.len()).sum()
}
