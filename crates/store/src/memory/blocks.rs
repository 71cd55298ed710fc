//! Blocks of entries, pages and tables, counted. Large blocks come from the general allocator.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use evenkeel_slab as slab;
pub(crate) use evenkeel_slab::Kind;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).expect("a block is hardly longer than an item can be")
}

/// Takes a block of `size` bytes, aligned to eight.
#[inline]
pub(crate) fn take(kind: Kind, size: usize) -> NonNull<u8> {
    if size > slab::SIZE_MAX {
        return take_large(size);
    }
    try_take(kind, size).unwrap_or_else(|| handle_alloc_error(layout(size)))
}

/// Takes a block of `size` bytes, which are at most [`slab::SIZE_MAX`], if there is memory.
#[inline]
pub(crate) fn try_take(kind: Kind, size: usize) -> Option<NonNull<u8>> {
    let block = slab::take(kind, size)?;
    let _ = super::add_to(size as isize, true);
    Some(block)
}

/// Takes a block of zeros, for a table.
pub(crate) fn take_zeroed(size: usize) -> NonNull<u8> {
    if size > slab::SIZE_MAX {
        let layout = layout(size);
        // SAFETY: the layout's size is not zero.
        return NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
    }
    let block = take(Kind::Entry, size);
    // SAFETY: the block is this long, and new.
    unsafe { block.write_bytes(0, size) };
    block
}

#[cold]
fn take_large(size: usize) -> NonNull<u8> {
    let layout = layout(size);
    // SAFETY: the layout's size is not zero.
    NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
}

/// A copy of a block of `size` bytes, if there is memory.
///
/// # Safety
/// The block is this long, comes from the slab allocator, and nobody writes to it meanwhile.
pub(crate) unsafe fn duplicate(kind: Kind, block: NonNull<u8>, size: usize) -> Option<NonNull<u8>> {
    let copy = try_take(kind, size)?;
    // SAFETY: both are this long, and the copy is new.
    unsafe { copy.copy_from_nonoverlapping(block, size) };
    Some(copy)
}

/// Frees a block.
///
/// # Safety
/// The block comes from [`take`] with the same size, and nobody uses it any more.
#[inline]
pub(crate) unsafe fn put_back(block: NonNull<u8>, size: usize) {
    if size > slab::SIZE_MAX {
        // SAFETY: the caller promises that the block came from there, with this size.
        return unsafe { dealloc(block.as_ptr(), layout(size)) };
    }
    let is_own = super::add_to(-(size as isize), true);
    // SAFETY: as above.
    unsafe { slab::put_back(block) };
    if !is_own {
        super::freed_by_any();
    }
}
