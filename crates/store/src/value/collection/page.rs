//! A page: a few KiB of items in one reference-counted block, the leaf of every collection.
//!
//! ```text
//!  0      4      8       10      11      12
//!  | refs | used | count | class | flags | item 0 | item 1 | ..  free  .. | offsets | tags (if any) |
//!   u32    u32    u16     u8      u8                            u8 or u16    u16, both from the end down
//! ```
//!
//! Items are stored in sequence, in the order of their positions. An item's length is the distance to the
//! next offset, and a member of 16 bytes costs 18 (20 with a tag, 17 in a page of less than 256 bytes). An
//! even page, whose items all have the same length, has no offsets: there the member costs 16 (18). A page is
//! even until an item of another length comes.
//!
//! Clones share the block; a writer to a shared block gets a copy. A page of several items is at most
//! [`PAGE_MAX`] bytes long, which bounds the cost of copying, inserting in the middle and looking for a tag.
//! A longer item has a page of its own, of any length, which is replaced but never copied for a neighbour's
//! sake.
//!
//! A page may have a head: bytes before the first item that all of its items refer to. Such pages are neither
//! split nor merged, since items mean nothing without their head.
//!
//! A packed page has a single item that itself consists of many, such as integers: it can be changed in part.

mod divide;
mod read;
mod size;
#[cfg(test)]
mod tests;
mod write;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::*};

use crate::memory::blocks;
use crate::memory::mover::Mover;

use size::stride;

pub(crate) use size::{bytes_of, len_of};
pub(crate) use write::Space;

/// Bytes of a page with several items. Inserting in the middle moves half of it, about 40 ns.
pub(crate) const PAGE_MAX: usize = 4096;

/// Longest item, in bytes. A request is shorter, and so is any item made from it.
pub(crate) const ITEM_MAX: usize = u32::MAX as usize;

/// Bytes of items up to which offsets take a byte each.
const NARROW_MAX: usize = u8::MAX as usize;

const HEADER: usize = size_of::<Header>();
const TAG: usize = size_of::<u16>();

/// A tag for each item follows the offsets.
const TAGGED: u8 = 1;
/// Offsets take one byte, not two.
const NARROW: u8 = 2;
/// Bytes before the first item are the head.
const HEADED: u8 = 4;
/// There is a single item, which consists of many for code that can read it.
const PACKED: u8 = 8;
/// There are no offsets: all items have the same length, and there is no head. If there are several, none is
/// empty, since there could be any number of empty items.
const EVEN: u8 = 16;

#[repr(C)]
struct Header {
    refs: AtomicU32,
    /// Bytes of items, and of the head.
    used: u32,
    /// Number of items.
    count: u16,
    /// The size of the block, see [`size_of_class`].
    class: u8,
    flags: u8,
}
const _: () = assert!(HEADER == 12);

/// See the module's documentation. Cloning shares the block.
#[repr(transparent)]
pub(crate) struct Page(NonNull<Header>);

// SAFETY: the reference count is atomic, and only the holder of the only reference changes a block,
// exclusively.
unsafe impl Send for Page {}
// SAFETY: as above: through `&Page` a block is only read.
unsafe impl Sync for Page {}

impl Clone for Page {
    fn clone(&self) -> Page {
        let refs = self.header().refs.fetch_add(1, Relaxed);
        assert!(refs < u32::MAX / 2, "fewer clones than would overflow their count");
        Page(self.0)
    }
}

impl Drop for Page {
    #[inline]
    fn drop(&mut self) {
        if self.header().refs.fetch_sub(1, Release) == 1 {
            // Other threads' accesses through their clones, before they dropped them, come before the block
            // is freed.
            self.header().refs.load(Acquire);
            // SAFETY: the block was allocated with this layout, and the last reference to it is gone.
            unsafe { blocks::put_back(self.0.cast(), self.memory()) }
        }
    }
}

/// Sizes of blocks are the allocator's own steps, four to a doubling, so that rounding wastes nothing.
fn size_of_class(class: u8) -> usize {
    let (doubling, quarter) = (class / 4, class as usize % 4);
    (4 + quarter) << doubling << 2
}

/// The smallest class of at least `bytes` bytes, 16 at least.
fn class_of_size(bytes: usize) -> u8 {
    let doubling = bytes.max(16).ilog2() - 4;
    let quarter = (bytes.max(16) >> (doubling + 2)) - 4;
    let class = (4 * doubling) as u8 + quarter as u8;
    class + u8::from(size_of_class(class) < bytes)
}

impl Page {
    /// An empty page with room for an item of `bytes` bytes, or none.
    pub(crate) fn new(tagged: bool, bytes: usize) -> Page {
        Page::of_kind(tagged, true, usize::from(bytes > 0), bytes)
    }

    /// An empty page with room for items of these lengths.
    pub(crate) fn for_items(tagged: bool, mut lens: impl Iterator<Item = usize>) -> Page {
        let Some(first) = lens.next() else { return Page::new(tagged, 0) };
        let (mut items, mut bytes, mut even) = (1, first, first > 0);
        for len in lens {
            (items, bytes, even) = (items + 1, bytes + len, even && len == first);
        }
        Page::of_kind(tagged, even, items, bytes)
    }

    /// An empty page with room for `items` items of `bytes` bytes in all.
    fn of_kind(tagged: bool, even: bool, items: usize, bytes: usize) -> Page {
        let offsets = match (even, bytes <= NARROW_MAX) {
            (true, _) => EVEN,
            (false, true) => NARROW,
            (false, false) => 0,
        };
        let flags = if tagged { TAGGED } else { 0 } | offsets;
        let class = class_of_size(HEADER + bytes + items * stride(flags));
        let block = blocks::take(blocks::Kind::Page, size_of_class(class));
        let header = Header { refs: AtomicU32::new(1), used: 0, count: 0, class, flags };
        let block = block.cast::<Header>();
        // SAFETY: the block was just allocated, is aligned, and long enough for the header.
        unsafe { block.write(header) };
        Page(block)
    }

    /// An empty page with a head, and with room for `items` items of `bytes` bytes in all.
    pub(crate) fn with_head(head: &[u8], items: usize, bytes: usize) -> Page {
        assert!(head.len() <= PAGE_MAX, "the first item's offset fits");
        let mut page = Page::of_kind(false, false, items, head.len() + bytes);
        page.write(0, &[head]);
        // SAFETY: no other reference to the block exists.
        let header = unsafe { page.0.as_mut() };
        header.used = head.len() as u32;
        header.flags |= HEADED;
        page
    }

    /// A packed page of this item.
    pub(crate) fn packed(item: &[u8]) -> Page {
        let mut page = Page::new(false, item.len());
        page.insert(0, &[item], 0);
        // SAFETY: no other reference to the block exists.
        unsafe { page.0.as_mut() }.flags |= PACKED;
        page
    }

    /// Moves the page, to which nobody else has a reference, to another block if `mover` wants it there.
    pub(crate) fn relocate(&mut self, mover: &mut Mover<'_>) {
        assert!(self.is_own(), "the caller has looked");
        if !mover.is_leaving(self.0.addr().get()) {
            return;
        }
        let (block, size) = (self.0.cast(), self.memory());
        // SAFETY: the page is this long, and this is the only reference to it, borrowed exclusively.
        let copy = unsafe { blocks::duplicate(blocks::Kind::Page, block, size) };
        mover.count(size, copy.is_some());
        let Some(copy) = copy else { return };
        self.0 = copy.cast();
        // SAFETY: the block came from there with this size, and the copy stands in its place.
        unsafe { blocks::put_back(block, size) }
    }

    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: the block lives as long as a reference to it, and no thread changes it while it is shared.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn base(&self) -> *mut u8 {
        self.0.as_ptr().cast()
    }

    /// The end of the block, aligned to eight bytes.
    #[inline]
    fn tail(&self) -> *mut u8 {
        // SAFETY: the block is this long.
        unsafe { self.base().add(self.memory()) }
    }

    /// Number of items.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.header().count as usize
    }

    #[inline]
    pub(crate) fn is_tagged(&self) -> bool {
        self.header().flags & TAGGED != 0
    }

    #[inline]
    pub(crate) fn is_headed(&self) -> bool {
        self.header().flags & HEADED != 0
    }

    #[inline]
    pub(crate) fn is_packed(&self) -> bool {
        self.header().flags & PACKED != 0
    }

    #[inline]
    fn is_narrow(&self) -> bool {
        self.header().flags & NARROW != 0
    }

    #[inline]
    fn is_even(&self) -> bool {
        self.header().flags & EVEN != 0
    }

    /// Returns true if no other reference shares the block.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        self.refs() == 1
    }

    /// Number of references to the page.
    #[inline]
    pub(crate) fn refs(&self) -> u32 {
        self.header().refs.load(Acquire)
    }

    pub(crate) fn into_raw(self) -> NonNull<u8> {
        let raw = self.0.cast();
        std::mem::forget(self);
        raw
    }

    /// # Safety
    /// `raw` comes from `into_raw`, and stands for a reference.
    pub(crate) unsafe fn from_raw(raw: NonNull<u8>) -> Page {
        Page(raw.cast())
    }
}
