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

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Bytes of a page with several items. Inserting in the middle moves half of it, about 40 ns.
pub(crate) const PAGE_MAX: usize = 4096;

/// Longest item, in bytes. A request is shorter, and so is any item made from it.
pub(crate) const ITEM_MAX: usize = u32::MAX as usize;

/// Bytes of items up to which offsets take a byte each.
const NARROW_MAX: usize = u8::MAX as usize;

const HEADER: usize = size_of::<Header>();
const TAG: usize = size_of::<u16>();
const ALIGN: usize = 8;

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
            unsafe { dealloc(self.0.as_ptr().cast(), layout(self.memory())) }
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

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, ALIGN).expect("a block is hardly longer than an item can be")
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
        let layout = layout(size_of_class(class));
        // SAFETY: the layout's size is at least that of the header.
        let Some(block) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
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

    /// The bytes before the first item.
    #[inline]
    pub(crate) fn head(&self) -> &[u8] {
        let len = if self.len() == 0 { self.used() } else { self.start(0) };
        debug_assert!(len <= self.used(), "offsets rise");
        // SAFETY: this many bytes were written before the first item.
        unsafe { std::slice::from_raw_parts(self.base().add(HEADER), len) }
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

    /// The length of each item of an even page that is not empty.
    #[inline]
    fn even_len(&self) -> usize {
        (self.header().used / u32::from(self.header().count)) as usize
    }

    /// Returns true if the page is even, and stays even with a further item of `len` bytes, or several.
    #[inline]
    fn stays_even_with(&self, len: usize) -> bool {
        self.is_even() && len > 0 && (self.len() == 0 || self.even_len() == len)
    }

    /// Bytes that each item takes in addition to its own.
    #[inline]
    pub(crate) fn stride(&self) -> usize {
        stride(self.header().flags)
    }

    /// Bytes per tag; zero if there are none.
    #[inline]
    fn tag_width(&self) -> usize {
        if self.is_tagged() { TAG } else { 0 }
    }

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

    fn stays_even_with_all_of(&self, other: &Page) -> bool {
        self.is_even() && other.is_even() && (other.len() == 0 || self.stays_even_with(other.even_len()))
    }

    #[inline]
    fn wide_stride(&self) -> usize {
        stride(self.header().flags & !(NARROW | EVEN))
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

    /// The tags, last item first; empty if there are none.
    #[inline]
    pub(crate) fn tags(&self) -> &[u16] {
        if !self.is_tagged() {
            return &[];
        }
        // SAFETY: `count` tags end the block, whose end is aligned.
        unsafe { std::slice::from_raw_parts(self.tail().cast::<u16>().sub(self.len()), self.len()) }
    }

    /// The offsets and the tags, at the end of the block.
    #[inline]
    pub(crate) fn index(&self) -> &[u8] {
        let len = self.len() * self.stride();
        // SAFETY: this many bytes of offsets and tags end the block.
        unsafe { std::slice::from_raw_parts(self.tail().sub(len), len) }
    }

    #[inline]
    pub(crate) fn tag(&self, at: usize) -> u16 {
        self.tags()[self.len() - 1 - at]
    }

    #[inline]
    fn start(&self, at: usize) -> usize {
        assert!(at < self.len(), "a position inside");
        if self.is_even() {
            return at * self.even_len();
        }
        // SAFETY: `count` offsets lie before the tags, the first offset last; offsets of two bytes are
        // aligned, since tags are as wide.
        unsafe {
            let end = self.tail().sub(self.len() * self.tag_width());
            if self.is_narrow() { *end.sub(at + 1) as usize } else { *end.cast::<u16>().sub(at + 1) as usize }
        }
    }

    /// Start and end of an item.
    #[inline]
    fn bounds(&self, at: usize) -> (usize, usize) {
        assert!(at < self.len(), "a position inside");
        if self.is_even() {
            let len = self.even_len();
            return (at * len, (at + 1) * len);
        }
        (self.start(at), if at + 1 == self.len() { self.used() } else { self.start(at + 1) })
    }

    /// The item at a position. Panics if there is none.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> &[u8] {
        let (start, end) = self.bounds(at);
        debug_assert!(start <= end && end <= self.used(), "offsets rise");
        // SAFETY: offsets rise and end at `used`, which lies inside the block; so do multiples of an even
        // page's length.
        unsafe { std::slice::from_raw_parts(self.base().add(HEADER + start), end - start) }
    }

    /// The first position from `from` on whose tag is `tag`.
    #[inline]
    pub(crate) fn find_tag(&self, tag: u16, from: usize) -> Option<usize> {
        const LANES: usize = 16;
        let tags = self.tags();
        let mut rest = &tags[..tags.len() - from];
        // From the back, where the first positions are, many at a time.
        while let Some((head, queues)) = rest.split_last_chunk::<LANES>() {
            let hit = queues.iter().fold(false, |hit, one| hit | (*one == tag));
            if hit {
                break;
            }
            rest = head;
        }
        rest.iter().rposition(|one| *one == tag).map(|index| tags.len() - 1 - index)
    }

    // Writing. All of these first make the block this reference's own.

    /// Makes the block this reference's own, with room for `items` more items of `bytes` bytes, even or not;
    /// copies it if necessary.
    fn own(&mut self, items: usize, bytes: usize, even: bool) {
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

    fn write(&mut self, start: usize, parts: &[&[u8]]) {
        // SAFETY: room for all parts was made at `start` by the caller, in a block that is ours.
        let mut space = unsafe { Space::new(self.base().add(HEADER + start), len_of(parts)) };
        parts.iter().for_each(|part| space.put(part));
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

    /// Moves the items from `at` on to a page of their own.
    pub(crate) fn split_off(&mut self, at: usize) -> Page {
        let right = self.of(self.is_tagged(), (at..self.len()).map(|at| self.numbered(at)));
        self.remove(at, self.len());
        right
    }

    /// Appends the items of another page, which is tagged if this page is.
    pub(crate) fn append(&mut self, other: &Page) {
        assert!(!self.is_headed() && !other.is_headed(), "items stay with their head");
        self.own(other.len(), other.used(), self.stays_even_with_all_of(other));
        for at in 0..other.len() {
            let (item, tag) = other.numbered(at);
            self.insert(self.len(), &[item], tag);
        }
    }

    /// Moves the items chosen by `goes` to a page of their own; both pages keep their order.
    pub(crate) fn take_out(&mut self, goes: &[bool]) -> Page {
        let chosen = |which: bool| {
            let all = (0..self.len()).filter(move |at| goes[*at] == which);
            self.of(self.is_tagged(), all.map(|at| self.numbered(at)))
        };
        let (stays, gone) = (chosen(false), chosen(true));
        *self = stays;
        gone
    }

    /// The same items, with tags.
    pub(crate) fn with_tags(&self, tag: impl Fn(&[u8]) -> u16 + Clone) -> Page {
        self.of(true, (0..self.len()).map(|at| (self.get(at), tag(self.get(at)))))
    }

    fn numbered(&self, at: usize) -> (&[u8], u16) {
        (self.get(at), if self.is_tagged() { self.tag(at) } else { 0 })
    }

    /// A page of these items.
    fn of<'a>(&self, tagged: bool, items: impl Iterator<Item = (&'a [u8], u16)> + Clone) -> Page {
        assert!(!self.is_headed(), "items stay with their head");
        let mut page = Page::for_items(tagged, items.clone().map(|(item, _)| item.len()));
        items.for_each(|(item, tag)| page.insert(page.len(), &[item], tag));
        page
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

/// Bytes that each item takes in addition to its own, in a page with these flags.
#[inline]
fn stride(flags: u8) -> usize {
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

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::random::{Random, fresh_seed};

    type Plain = Vec<(Vec<u8>, u16)>;

    fn check(page: &Page, plain: &Plain) {
        assert_eq!(page.len(), plain.len());
        for (at, (item, tag)) in plain.iter().enumerate() {
            assert_eq!(page.get(at), item);
            if page.is_tagged() {
                assert_eq!(page.tag(at), *tag);
                let first = plain.iter().position(|(_, other)| other == tag);
                assert_eq!(page.find_tag(*tag, 0), first);
                assert_eq!(page.find_tag(*tag, at), Some(at));
            }
        }
    }

    #[test]
    fn random_operations_against_a_plain_vector() {
        let seed = fresh_seed();
        println!("EVENKEEL_SEED={seed}");
        let mut random = Random::new(seed);
        for round in 0..if cfg!(miri) { 4 } else { 60 } {
            let head = vec![b'h'; random.below(400)];
            let is_headed = round % 3 == 2;
            let mut page =
                if is_headed { Page::with_head(&head, 0, 0) } else { Page::new(round % 2 == 0, 0) };
            let mut plain = Plain::new();
            // In some rounds, nearly all items have the same length.
            let (usual, others) = [(0, 100), (16, 1), (1, 1), (16, 20), (5, 0)][random.below(5)];
            let mut clones: Vec<(Page, Plain)> = Vec::new();
            for _ in 0..if cfg!(miri) { 60 } else { 500 } {
                let long = if random.below(20) == 0 { 300 } else { 30 };
                let len = if random.chance(others) { random.below(long) } else { usual };
                let item = vec![random.below(256) as u8; len];
                let tag = random.below(300) as u16;
                let at = random.below(plain.len() + 1);
                match random.below(8) {
                    0..=2 if page.has_room(&[&item]) => {
                        let (a, b) = item.split_at(item.len() / 2);
                        page.insert(at, &[a, b], tag);
                        plain.insert(at, (item, tag));
                    }
                    3 if at < plain.len() && page.has_room_instead(at, &[&item]) => {
                        page.replace(at, &[&item]);
                        plain[at].0 = item;
                    }
                    3 if at < plain.len() => {
                        let from = random.below(plain[at].0.len() + 1);
                        let to = from + random.below(plain[at].0.len() - from + 1);
                        page.patch(at, from, &vec![b'p'; to - from]);
                        plain[at].0[from..to].fill(b'p');
                    }
                    4 => {
                        let to = (at + random.below(4)).min(plain.len());
                        page.remove(at, to);
                        plain.drain(at..to);
                    }
                    5 if random.below(8) == 0 && !is_headed => {
                        let right = page.split_off(at);
                        check(&right, &plain.split_off(at));
                        page.append(&right);
                        plain.extend((0..right.len()).map(|at| {
                            (right.get(at).to_vec(), if right.is_tagged() { right.tag(at) } else { 0 })
                        }));
                    }
                    6 if random.below(8) == 0 && !is_headed => {
                        let goes: Vec<bool> = plain.iter().map(|_| random.below(4) == 0).collect();
                        let gone = page.take_out(&goes);
                        let mut which = goes.iter();
                        let left: Plain = plain.extract_if(.., |_| *which.next().expect("as many")).collect();
                        check(&gone, &left);
                    }
                    _ if random.below(10) == 0 => clones.push((page.clone(), plain.clone())),
                    _ => {}
                }
                check(&page, &plain);
                assert_eq!(page.head(), if is_headed { &head[..] } else { b"" });
                assert!(page.bytes() <= page.memory());
                assert!(page.bytes() <= PAGE_MAX || page.len() == 1, "{} bytes", page.bytes());
            }
            clones.iter().for_each(|(page, plain)| check(page, plain));
        }
    }

    #[test]
    fn items_as_long_as_each_other_have_no_offsets() {
        let item = |at: usize| [at as u8; 16];
        let mut page = Page::new(false, 0);
        while page.has_room(&[&item(0)]) {
            page.insert(page.len(), &[&item(page.len())], 0);
        }
        assert_eq!((page.len(), page.bytes()), ((PAGE_MAX - HEADER) / 16, HEADER + page.len() * 16));
        let mut half = page.split_off(100);
        assert_eq!(page.bytes(), HEADER + 100 * 16);
        assert!(half.has_room_instead(7, &[&item(0)]) && half.has_room(&[b"longer than the others"]));
        half.replace(7, &[b"short"]);
        assert_eq!(half.bytes(), HEADER + half.len() * 18 - 11);
        assert_eq!((half.get(6), half.get(7), half.get(8)), (&item(106)[..], &b"short"[..], &item(108)[..]));
        assert!(page.bytes_with_all_of(&half) > PAGE_MAX, "with offsets for all");
        half.remove(7, 8);
        let even = half.split_off(0);
        page.append(&even);
        assert_eq!(page.bytes(), HEADER + page.len() * 16);
        assert!(!page.has_room_instead(7, &[b"short"]), "all the others would need offsets");
    }

    #[test]
    fn a_page_that_was_emptied_is_even_again() {
        let mut page = Page::new(true, 0);
        [&b"one"[..], b"another", b"third"].iter().for_each(|item| page.insert(0, &[item], 1));
        page.remove(0, 2);
        assert_eq!(page.bytes(), HEADER + 3 + 3, "one byte of an offset, two of a tag");
        page.remove(0, 1);
        (0..9).for_each(|at| page.insert(at, &[b"sixteen bytes..."], at as u16));
        assert_eq!((page.bytes(), page.tag(8)), (HEADER + 9 * 18, 8));
    }

    #[test]
    fn empty_items_have_offsets_if_they_are_several() {
        let mut page = Page::new(false, 0);
        let room = (0..).take_while(|_| {
            let has_room = page.has_room(&[b""]);
            page.insert(page.len(), &[b""], 0);
            has_room
        });
        assert!(room.count() <= PAGE_MAX / 2);
        assert!((0..page.len()).all(|at| page.get(at).is_empty()));
    }

    #[test]
    fn bytes_of_an_item_that_a_panic_left_out_are_zeros() {
        let mut page = Page::new(false, 0);
        let fill = |space: &mut Space<'_>| {
            space.put(b"half");
            panic!("as a test wants it");
        };
        let filled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| page.insert_by(0, 8, 0, fill)));
        assert!(filled.is_err());
        assert_eq!(page.get(0), b"half\0\0\0\0");
    }

    #[test]
    fn classes_hold_what_they_are_for() {
        for bytes in (0..10_000).chain([1 << 20, (1 << 20) + 1, ITEM_MAX + 100]) {
            let size = size_of_class(class_of_size(bytes));
            assert!(size >= bytes && size <= (bytes + bytes / 4 + 8).max(16), "{bytes} in {size}");
            assert!(size.is_multiple_of(4));
        }
    }

    #[test]
    fn parts_of_a_packed_item_are_replaced() {
        let seed = fresh_seed();
        println!("EVENKEEL_SEED={seed}");
        let mut random = Random::new(seed);
        let mut page = Page::packed(b"");
        let mut plain = Vec::new();
        let mut clones: Vec<(Page, Vec<u8>)> = Vec::new();
        for step in 0..if cfg!(miri) { 100 } else { 5000 } {
            let long = if step / 500 % 2 == 0 { 30 } else { 3 };
            let bytes = vec![step as u8; random.below(long)];
            let start = random.below(plain.len() + 1);
            let end = (start + random.below(12)).min(plain.len());
            page.splice(start..end, &bytes);
            plain.splice(start..end, bytes);
            assert_eq!((page.get(0), page.len(), page.is_packed()), (&plain[..], 1, true));
            assert!(page.memory() < 2 * plain.len() + 40, "{} bytes for {}", page.memory(), plain.len());
            if random.below(200) == 0 {
                clones.push((page.clone(), plain.clone()));
            }
        }
        clones.iter().for_each(|(page, plain)| assert_eq!(page.get(0), plain));
    }

    #[test]
    fn an_item_of_its_own_page_may_be_long() {
        let mut page = Page::new(true, 0);
        let long = vec![b'x'; 3_000_000];
        page.insert(0, &[&long, b"end"], 7);
        assert_eq!(page.get(0).len(), long.len() + 3);
        let clone = page.clone();
        page.replace(0, &[b"short"]);
        assert_eq!((page.get(0), page.tag(0)), (&b"short"[..], 7));
        assert!(page.memory() < 100, "{}", page.memory());
        assert!(clone.get(0).ends_with(b"xend"));
        page.replace(0, &[&long]);
        assert_eq!(page.get(0), long);
    }
}
