//! The count of all bytes that the process holds: an allocator that adds up its blocks.
//!
//! `used_memory` decides when to evict, so it must be true and cheap. Each registered thread has a counter on
//! its own cache line, written with a plain load and store; reading the total adds the counters up. A thread
//! may free a block that another thread allocated, so a single counter may be negative; the sum is exact. The
//! requested sizes are counted; the allocator's rounding shows in the resident set size.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::Relaxed};

pub(crate) mod block_vec;
pub(crate) mod blocks;
pub(crate) mod mover;
pub(crate) mod prefetch;
pub mod regions;

/// Number of counters: each registered thread has its own, all other threads share the first.
const THREADS_MAX: usize = 512;

/// The counter of memory that is not the data's: see [`uncounted`].
const UNCOUNTED: usize = THREADS_MAX;

#[repr(align(128))] // two lines: adjacent-line prefetching makes pairs of lines travel together
struct Counter {
    all: AtomicIsize,
    /// The part in blocks of crate `slab`.
    in_blocks: AtomicIsize,
}

static COUNTERS: [Counter; THREADS_MAX + 1] =
    [const { Counter { all: AtomicIsize::new(0), in_blocks: AtomicIsize::new(0) } }; THREADS_MAX + 1];
static REGISTERED: AtomicUsize = AtomicUsize::new(1);
static PEAK: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MINE: Cell<usize> = const { Cell::new(0) };
    /// For a thread that paces its frees: number of blocks that it may free before its next pause; zero: any
    /// number.
    static UNPACED: Cell<u32> = const { Cell::new(0) };
    static PACE: RefCell<Option<Pace>> = const { RefCell::new(None) };
}

/// Number of blocks between two pauses, and the pause.
type Pace = (u32, Box<dyn FnMut()>);

/// Wraps the allocator `A` and counts.
pub struct Counting<A>(pub A);

// SAFETY: every call is passed on unchanged to `A`, which keeps the contract; counting neither allocates nor
// panics. Failed calls are not counted.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the promises that `A` requires.
        counted(unsafe { self.0.alloc(layout) }, layout.size() as isize)
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        counted(unsafe { self.0.alloc_zeroed(layout) }, layout.size() as isize)
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let is_own = add(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { self.0.dealloc(block, layout) }
        if !is_own {
            freed_by_any();
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        counted(unsafe { self.0.realloc(block, layout, size) }, size as isize - layout.size() as isize)
    }
}

#[inline]
fn counted(block: *mut u8, bytes: isize) -> *mut u8 {
    if !block.is_null() {
        let _ = add(bytes);
        regions::on_block(block);
    }
    block
}

/// Returns true if the thread has a counter of its own.
#[inline]
fn add(bytes: isize) -> bool {
    add_to(bytes, false)
}

#[inline]
fn add_to(bytes: isize, is_block: bool) -> bool {
    // A thread that is being torn down has lost its index, and counts on the shared line.
    let mine = MINE.try_with(Cell::get).unwrap_or(0);
    let counter = &COUNTERS[mine];
    if mine == 0 || mine == UNCOUNTED {
        counter.all.fetch_add(bytes, Relaxed);
        if is_block {
            counter.in_blocks.fetch_add(bytes, Relaxed);
        }
        false
    } else {
        // Only this thread writes this counter.
        counter.all.store(counter.all.load(Relaxed) + bytes, Relaxed);
        if is_block {
            counter.in_blocks.store(counter.in_blocks.load(Relaxed) + bytes, Relaxed);
        }
        true
    }
}

/// Paces the calling thread, which has no counter of its own and has freed a block.
#[cold]
fn freed_by_any() {
    let left = UNPACED.try_with(|left| left.replace(left.get().saturating_sub(1))).unwrap_or(0);
    if left == 1 {
        // Frees by `pause` itself do not count, since the number is zero meanwhile.
        let _ = PACE.try_with(|pace| {
            if let Ok(mut pace) = pace.try_borrow_mut()
                && let Some((blocks, pause)) = &mut *pace
            {
                pause();
                UNPACED.set(*blocks);
            }
        });
    }
}

/// Calls `pause` on the calling thread each time it has freed `blocks` blocks (at least one). The thread must
/// not be registered.
pub fn pace_frees(blocks: u32, pause: impl FnMut() + 'static) {
    PACE.replace(Some((blocks, Box::new(pause))));
    UNPACED.set(blocks);
}

/// Gives the calling thread a counter of its own. Worth it for threads that serve clients; at most 511
/// threads get a counter.
pub fn register_thread() {
    let index = REGISTERED.fetch_add(1, Relaxed);
    if index < THREADS_MAX {
        MINE.set(index);
    }
}

/// Bytes that the calling thread has taken since it was registered, minus the bytes that it has freed.
pub fn held_by_thread() -> isize {
    COUNTERS[MINE.get()].all.load(Relaxed)
}

fn sum(part: fn(&Counter) -> &AtomicIsize) -> usize {
    let last = REGISTERED.load(Relaxed).min(THREADS_MAX);
    let counters = COUNTERS[..last].iter().chain([&COUNTERS[UNCOUNTED]]);
    counters.map(|counter| part(counter).load(Relaxed)).sum::<isize>().max(0) as usize
}

/// Bytes in blocks of crate `slab` now.
pub fn used_in_blocks() -> usize {
    sum(|counter| &counter.in_blocks)
}

/// Bytes in blocks, of all sizes and of those that crate `slab` can compact, for another process.
pub(crate) fn blocks_in_use() -> (usize, usize) {
    let small = used_in_blocks();
    (small + evenkeel_slab::stats().in_large, small)
}

/// Counts blocks that another process has taken.
pub(crate) fn add_blocks(bytes: usize, small: usize) {
    COUNTERS[0].all.fetch_add(bytes as isize, Relaxed);
    COUNTERS[0].in_blocks.fetch_add(small as isize, Relaxed);
}

/// Bytes held by the process now.
pub fn used() -> usize {
    let used = sum(|counter| &counter.all);
    if used > PEAK.load(Relaxed) {
        PEAK.fetch_max(used, Relaxed);
    }
    used
}

/// Counts separately the memory that `f` takes and returns: no eviction should make up for it, as for the
/// buffers of a snapshot. `f` frees no memory from elsewhere. When all of it has been returned, [`end_aside`]
/// is called.
pub fn uncounted<R>(f: impl FnOnce() -> R) -> R {
    counting_as(UNCOUNTED, f)
}

/// Counts the memory that `f` takes and returns with the data, even within [`uncounted`]: for memory that
/// goes to other threads, which free it.
pub fn with_the_rest<R>(f: impl FnOnce() -> R) -> R {
    counting_as(0, f)
}

fn counting_as<R>(index: usize, f: impl FnOnce() -> R) -> R {
    struct Back(usize);
    impl Drop for Back {
        fn drop(&mut self) {
            MINE.set(self.0);
        }
    }
    let _back = Back(MINE.replace(index));
    f()
}

/// Ends a separate count: the balance has gone to other threads or came from them, so it is added to the
/// common count.
pub fn end_aside() {
    let (common, apart) = (&COUNTERS[0], &COUNTERS[UNCOUNTED]);
    common.all.fetch_add(apart.all.swap(0, Relaxed), Relaxed);
    common.in_blocks.fetch_add(apart.in_blocks.swap(0, Relaxed), Relaxed);
}

/// Bytes held now that count towards a limit: all but those used [`uncounted`].
pub fn used_by_data() -> usize {
    used().saturating_sub(COUNTERS[UNCOUNTED].all.load(Relaxed).max(0) as usize)
}

/// The largest amount that [`used`] has seen; `used` must be called regularly.
pub fn peak() -> usize {
    PEAK.load(Relaxed).max(used())
}

/// Resets the peak.
pub fn reset_peak() {
    PEAK.store(0, Relaxed);
}
