//! Blocks of entries, pages, tables and parts of values, counted. All data of a keyspace lie in blocks, and
//! nowhere else: so another process can take them over.

use std::alloc::{Layout, handle_alloc_error};
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
        return take_large(size).0;
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
    let (block, is_zero) =
        if size > slab::SIZE_MAX { take_large(size) } else { (take(Kind::Entry, size), false) };
    if !is_zero {
        // SAFETY: the block is this long, and new.
        unsafe { block.write_bytes(0, size) };
    }
    block
}

/// Takes a large block of zeros, whose pages take memory only when they are written to, if possible.
pub(crate) fn take_zeroed_sparse(size: usize) -> NonNull<u8> {
    let Some(block) = slab::take_large_zeroed(size) else { return take_zeroed(size) };
    let _ = super::add(rounded(size));
    block
}

/// Also returns whether all bytes are known to be zero.
#[cold]
fn take_large(size: usize) -> (NonNull<u8>, bool) {
    let block = slab::take_large(size).unwrap_or_else(|| handle_alloc_error(layout(size)));
    let _ = super::add(rounded(size));
    block
}

/// Bytes as which a large block counts: the pages that it takes, whose sum the allocator knows.
fn rounded(size: usize) -> isize {
    size.next_multiple_of(slab::PAGE) as isize
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
        return put_back_large(block, size);
    }
    let is_own = super::add_to(-(size as isize), true);
    // SAFETY: as above.
    unsafe { slab::put_back(block) };
    if !is_own {
        super::freed_by_any();
    }
}

#[cold]
fn put_back_large(block: NonNull<u8>, size: usize) {
    let is_own = super::add(-rounded(size));
    // SAFETY: the caller of `put_back` promises that the block came from there, with this size.
    unsafe { slab::put_back_large(block, size) };
    if !is_own {
        super::freed_by_any();
    }
}
