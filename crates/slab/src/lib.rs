//! The allocator of the store's blocks: entries and pages of collections.
//!
//! Differences from a general allocator:
//!
//! - Whoever frees a block knows its size, and no block is aligned to more than eight bytes.
//! - **Little rounding.** Sizes have steps of 8 to 64 bytes, where a general allocator's are an eighth to a
//!   quarter of the size ([`classes`]).
//! - **No lock on the path.** A thread takes blocks from runs of its own ([`heap`]). A block that another
//!   thread frees goes onto a list of its run, which the owner takes as a whole ([`remote`]).
//! - **No long steps.** An owner never walks its runs or a list of freed blocks: a run that gets a free block
//!   is handed to it.
//! - **Memory is known.** Blocks lie in chunks of 2 MiB, each of a single thread. Their number, and that of
//!   the bytes in runs, can be read at any time ([`Stats`]).
//! - **Nothing comes from the general allocator.** What describes runs, chunks and heaps lies in tables of
//!   their own, linked in place.
//!
//! Larger blocks than [`SIZE_MAX`] are the general allocator's.

mod arena;
mod classes;
mod heap;
mod list;
mod remote;
mod run;
mod sync;
mod units;

use std::ptr::NonNull;

pub use arena::{CHUNK, Pages, on_taken, set_pages};
pub use classes::SIZE_MAX;

/// Takes a block of `size` bytes, aligned to eight. `None`: the system has no more memory.
///
/// `size` is at most [`SIZE_MAX`].
#[inline]
pub fn take(size: usize) -> Option<NonNull<u8>> {
    assert!(size <= SIZE_MAX, "a block of this allocator");
    NonNull::new(heap::take(size)?)
}

/// Frees a block.
///
/// # Safety
/// The block comes from [`take`], and nobody uses it any more.
#[inline]
pub unsafe fn put_back(block: NonNull<u8>) {
    // SAFETY: the same promise.
    unsafe { heap::put_back(block.as_ptr()) }
}

/// Takes back the blocks that other threads have freed in this thread's full runs: constant time for each
/// such run. A thread that shares blocks with others calls it regularly.
#[inline]
pub fn settle() {
    heap::settle();
}

/// A walk through the calling thread's runs that finds memory without blocks: other threads may have freed
/// all blocks of a run that had some free ones already, of which they give no notice.
#[derive(Clone, Copy, Debug)]
pub struct Walk(heap::Walk);

impl Walk {
    /// Begins a walk.
    #[expect(clippy::new_without_default, reason = "it is the calling thread's")]
    pub fn new() -> Walk {
        Walk(heap::Walk::new())
    }

    /// Goes on until `is_over`, which is called after each run and takes and frees no block. Returns whether
    /// there is more. A walk goes on in the thread that began it.
    pub fn go_on(&mut self, is_over: impl FnMut() -> bool) -> bool {
        self.0.go_on(is_over)
    }
}

/// The memory that the allocator holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes in runs, with the free blocks in them.
    pub in_runs: usize,
    /// Bytes in chunks that have runs.
    pub in_chunks: usize,
    /// Resident bytes in chunks that have none.
    pub idle: usize,
}

pub fn stats() -> Stats {
    let (taken, idle) = arena::counts();
    Stats { in_runs: heap::bytes_in_runs(), in_chunks: taken * CHUNK, idle: idle * CHUNK }
}

/// Gives the memory of at most `chunks` chunks back to the system, only of chunks without runs, and leaves
/// `kept` of them resident. Returns the number of chunks. It may take a millisecond for each.
pub fn purge(chunks: usize, kept: usize) -> usize {
    arena::purge(chunks, kept)
}

/// Populates a chunk, with a huge page if possible, so that a thread that takes it does not wait
/// for the system. Returns false if there is no more memory.
pub fn populate() -> bool {
    arena::populate()
}

/// Takes the address of a chunk that a thread took before it was populated ([`Pages::Populated`]), the one
/// that has waited longest: it has small pages, which the caller may make a huge page.
pub fn next_loose() -> Option<usize> {
    arena::next_loose()
}

/// Puts a chunk from [`next_loose`] back.
pub fn keep_loose(address: usize) {
    arena::keep_loose(address);
}
