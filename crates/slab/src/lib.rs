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
//! - **Another process can take the memory over**, with all blocks, in the time of a few system calls
//!   ([`attach`]).
//!
//! Blocks above [`SIZE_MAX`] are large: their pages have a table of their own, behind a lock ([`large`]).

mod arena;
mod classes;
mod heap;
mod large;
mod list;
mod pages;
mod range;
mod remote;
mod run;
mod sync;
#[cfg(not(miri))]
mod transfer;
mod units;

use std::ptr::NonNull;

pub use arena::{CHUNK, on_taken, set_pages};
pub use classes::SIZE_MAX;
pub use pages::PAGE;
pub use range::Pages;
#[cfg(not(miri))]
pub use transfer::{Attached, Passed, Suspended, attach, can_share, pass, share, suspend};

/// Kinds of blocks: a chunk has blocks of one kind, so that it can be emptied by a walk that finds this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Entries, and the tables that lead to them.
    Entry,
    /// Pages of collections.
    Page,
    /// What refers to pages and to parts of strings, and is never moved.
    Node,
}

/// Number of kinds.
const KINDS: usize = 3;

impl Kind {
    pub const ALL: [Kind; KINDS] = [Kind::Entry, Kind::Page, Kind::Node];
}

/// Takes a block of `size` bytes, aligned to eight. `None`: the system has no more memory.
///
/// `size` is at most [`SIZE_MAX`].
#[inline]
pub fn take(kind: Kind, size: usize) -> Option<NonNull<u8>> {
    assert!(size <= SIZE_MAX, "a block of this allocator");
    NonNull::new(heap::take(kind, size)?)
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

/// Takes a large block, of more than [`SIZE_MAX`] bytes, aligned to 4 KiB. `None`: the system has no more
/// memory or addresses. The second value: all bytes are known to be zero.
pub fn take_large(size: usize) -> Option<(NonNull<u8>, bool)> {
    assert!(size > SIZE_MAX, "a large block");
    large::take(size)
}

/// Takes a large block of zeros, of which only pages that are written to take memory. It takes addresses in
/// steps of [`CHUNK`]. `None`: the system has no more memory or addresses.
pub fn take_large_zeroed(size: usize) -> Option<NonNull<u8>> {
    assert!(size > SIZE_MAX, "a large block");
    large::take_zeroed(size)
}

/// Frees a large block.
///
/// # Safety
/// The block comes from [`take_large`] or [`take_large_zeroed`] with this size, and nobody uses it any more.
pub unsafe fn put_back_large(block: NonNull<u8>, size: usize) {
    // SAFETY: the same promise.
    unsafe { large::put_back(block, size) }
}

/// Takes back the blocks that other threads have freed in this thread's full runs: constant time for each
/// such run. A thread that shares blocks with others calls it regularly.
#[inline]
pub fn settle() {
    heap::settle();
}

/// Lends what the calling thread has taken blocks from to the next thread that begins a [`Compaction`], for
/// good: for a thread that does not compact. It goes on with memory of its own.
pub fn lend() {
    heap::lend();
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

/// The emptying of the calling thread's sparse chunks, step by step:
///
/// 1. [`Compaction::survey`] counts the bytes in use of each chunk.
/// 2. [`Compaction::choose`] decides how sparse a chunk has to be.
/// 3. [`Compaction::mark`] marks the sparse chunks: no block is taken from them any more.
/// 4. The caller walks all blocks of the kind, and moves each block that is
///    [leaving](Compaction::is_leaving): it takes a new block, copies the bytes, changes the pointer to the
///    old block, and frees the old block. A chunk without blocks goes back to the arena.
/// 5. [`Compaction::end`] takes the rest of the marked chunks back into use.
///
/// Dropping this ends it too. All calls concern the chunks of the calling thread, so they come from one
/// thread: chunks that another thread has marked stay out of use.
pub struct Compaction(heap::Compaction);

/// The chunks of a kind of the calling thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    pub chunks: usize,
    /// Bytes in use.
    pub bytes: usize,
}

impl Compaction {
    pub fn new(kind: Kind) -> Compaction {
        Compaction(heap::Compaction::new(kind))
    }

    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Goes on counting until `is_over`, which is called after each few chunks. Returns whether there is
    /// more.
    pub fn survey(&mut self, is_over: impl FnMut() -> bool) -> bool {
        self.0.survey(is_over)
    }

    /// What the survey has found.
    pub fn found(&self) -> Filled {
        self.0.found()
    }

    /// Chooses the sparsest chunks whose blocks fit into the others, with at most `bytes_max` bytes in use.
    pub fn choose(&mut self, bytes_max: usize) -> Filled {
        self.0.choose(bytes_max)
    }

    /// Chooses all chunks, for tests: every block has to move.
    pub fn choose_all(&mut self) {
        self.0.choose_all();
    }

    /// Goes on marking until `is_over`, which is called after each few chunks. Returns whether there is more.
    pub fn mark(&mut self, is_over: impl FnMut() -> bool) -> bool {
        self.0.mark(is_over)
    }

    /// Whether a block at this address is to be moved. False for other allocators' blocks.
    #[inline]
    pub fn is_leaving(&self, address: usize) -> bool {
        self.0.is_leaving(address)
    }

    /// Goes on until `is_over`, as [`Compaction::mark`] does. Returns whether there is more.
    pub fn end(&mut self, is_over: impl FnMut() -> bool) -> bool {
        self.0.end(is_over)
    }

    /// Marked chunks that have not been emptied; valid after the end.
    pub fn left(&self) -> usize {
        self.0.left()
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
    /// Bytes in large blocks, rounded up to pages.
    pub in_large: usize,
    /// Bytes of the memory in which large blocks lie.
    pub for_large: usize,
}

pub fn stats() -> Stats {
    let (taken, idle) = arena::counts();
    let (in_large, for_large) = large::counts();
    let in_runs = heap::bytes_in_runs();
    Stats { in_runs, in_chunks: taken * CHUNK, idle: idle * CHUNK, in_large, for_large }
}

/// Bytes of the chunks of heaps: [`Stats::in_chunks`] alone, for the price of a load.
pub fn in_chunks() -> usize {
    arena::counts().0 * CHUNK
}

/// Gives the memory of at most `chunks` chunks back to the system, only of chunks without runs, and leaves
/// `kept` of them resident. Returns the number of chunks. It may take a millisecond for each.
pub fn purge(chunks: usize, kept: usize) -> usize {
    arena::purge(chunks, kept)
}

/// Looks at up to `chunks` chunks of large blocks, and gives free pages in them back to the system that have
/// been free since the look before. Returns the number of bytes. Each call goes on where the last has ended.
pub fn purge_large(chunks: usize) -> usize {
    large::purge(chunks)
}

/// Number of chunks at which [`purge_large`] has to look to have looked at all.
pub fn chunks() -> usize {
    arena::chunks_end() as usize
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
