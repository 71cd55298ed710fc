//! The allocators: the options of mimalloc, and the memory of both that goes back to the system. The store's
//! blocks come from [`evenkeel_slab`], everything else from mimalloc.
//!
//! **Blocks of mimalloc freed by other threads.** A thread owns the pages from which it allocates. When
//! another thread frees a block, the block goes onto a list of its page. The owner walks these lists when
//! it next looks for space, at 0.15 us per block, since each block is cold. The lazy-free thread frees
//! flushed and large values, so a worker may own millions of listed blocks, and a single SET would walk all
//! of them (measured: 157 ms after a FLUSHALL of 1.4 GB). Therefore workers take them back in every round
//! ([`settle`]), and the lazy-free thread waits for the workers now and then (`lazy_free.rs`).
//!
//! **Memory that goes back to the system.** The allocator purges memory when another block near it is freed a
//! second later, but an idle owner frees nothing. So when much has been freed, and freeing has stopped, all
//! threads are asked to purge their unused memory ([`AllocatorPurge`]), and do so in slices: first a walk
//! finds runs of blocks that others have emptied, then one finds unused spans of mimalloc ([`spans`]). Chunks
//! without runs go back with the memory that belongs to no thread.
//!
//! **Memory that comes from the system** is populated by a thread of its own before workers need it:
//! [`ahead`].

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenkeel_store::memory;

/// Longest slice of background work, in microseconds: a worker serves its clients between two slices.
pub const SLICE_US_MAX: u64 = 500;

pub mod ahead;
mod spans;

/// Number of the option: milliseconds before freed memory is purged.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
/// Number of the option: requests that a thread's present page cannot serve, before the thread looks through
/// all its pages.
const GENERIC_COLLECT: libmimalloc_sys::mi_option_t = 36;

/// Sets the options of the allocator. `huge_pages`: ask for huge pages. The process does not fork once it has
/// data, so no page of 2 MiB is ever copied because of a byte.
///
/// Freed memory is purged after a second instead of at once: growing tables free and take memory all the
/// time, and every piece purged in between breaks a huge page up (measured while 5 million keys were set: 28%
/// of the memory in huge pages after 10 ms, 99% after 1 s).
///
/// Memory that belongs to no thread is purged after two seconds, not ten: it is asked for while the server is
/// calm.
///
/// A thread that does not [`settle`] looks through all its pages once in a million requests that its present
/// page cannot serve, not once in ten thousand: such a look takes milliseconds per GB.
pub fn set_up(huge_pages: bool) {
    const PURGE_DELAY_MS: std::ffi::c_long = 1000;
    const SHARED_PURGE_MULT: libmimalloc_sys::mi_option_t = 24;
    const REQUESTS: std::ffi::c_long = 1_000_000;
    const ALLOW_THP: libmimalloc_sys::mi_option_t = 37;
    if !huge_pages {
        // For the whole process: huge pages are off even where the allocator has asked for them already.
        let _ = rustix::thread::disable_transparent_huge_pages(true);
    }
    // SAFETY: sets numbers that the allocator reads when it next takes memory from the system or purges some.
    unsafe {
        libmimalloc_sys::mi_option_set(PURGE_DELAY, PURGE_DELAY_MS);
        libmimalloc_sys::mi_option_set(SHARED_PURGE_MULT, 2);
        libmimalloc_sys::mi_option_set(GENERIC_COLLECT, REQUESTS);
        libmimalloc_sys::mi_option_set(ALLOW_THP, huge_pages.into());
    }
}

unsafe extern "C" {
    fn evenkeel_settle();
}

/// Takes back the blocks of this thread's pages that other threads have freed. Costs nothing if there are
/// none.
///
/// A thread that calls this regularly does not look through all its pages, unless a million requests come
/// between two calls. After that many requests the allocator makes the thread look, in one piece, for blocks
/// freed by other threads.
#[inline]
pub fn settle() {
    // SAFETY: works on the calling thread's own heap.
    unsafe { evenkeel_settle() };
    evenkeel_slab::settle();
}

/// Purges memory that belongs to no thread and has been unused for a while; for a thread that owns few pages.
fn collect() {
    // SAFETY: works on the allocator's own structures.
    unsafe { libmimalloc_sys::mi_collect(false) }
}

/// Returns the report of the allocators: that of the store's blocks, and that of everything else.
pub fn report() -> String {
    unsafe extern "C" fn append(line: *const libc::c_char, text: *mut libc::c_void) {
        // SAFETY: the allocator passes a zero-terminated text, and the address that it was given.
        let (line, text) = unsafe { (std::ffi::CStr::from_ptr(line), &mut *text.cast::<String>()) };
        text.push_str(&line.to_string_lossy());
    }
    let blocks = evenkeel_slab::stats();
    let mut text = format!(
        "blocks of the store: {} bytes in runs, {} in chunks with runs, {} resident without runs, {} in \
         large blocks, {} in memory for these\n",
        blocks.in_runs, blocks.in_chunks, blocks.idle, blocks.in_large, blocks.for_large
    );
    // SAFETY: the function and the text outlive the call.
    unsafe { libmimalloc_sys::mi_stats_print_out(Some(append), (&raw mut text).cast()) };
    text
}

/// Counts the requests to all threads to purge their unused memory, and the threads' completed purges.
#[derive(Default)]
pub struct AllocatorPurge {
    asked: AtomicU64,
    given_back: AtomicU64,
    /// Chunks that compaction has emptied.
    emptied: AtomicU64,
    /// Number of times that compaction has begun.
    compactions: AtomicU64,
}

thread_local! {
    /// The last request that this thread has begun to follow.
    static BEGUN: Cell<u64> = const { Cell::new(0) };
    /// The last compaction to which this thread has lent its blocks.
    static LENT: Cell<u64> = const { Cell::new(0) };
    /// This thread's walk through its runs of blocks, which comes before that through its spans.
    static WALK: Cell<Option<evenkeel_slab::Walk>> = const { Cell::new(None) };
}

impl AllocatorPurge {
    /// Asks all threads to look at [`AllocatorPurge::is_asked`] soon.
    pub fn ask(&self) {
        self.asked.fetch_add(1, Relaxed);
    }

    /// Says that compaction has emptied chunks: the control thread gives them back to the system.
    pub fn record_emptied(&self, chunks: usize) {
        self.emptied.fetch_add(chunks as u64, Relaxed);
    }

    /// Whether this thread has memory to purge.
    #[inline]
    pub fn is_asked(&self) -> bool {
        spans::is_on() || BEGUN.get() != self.asked.load(Relaxed)
    }

    /// Purges until `is_over`, which is called after each span: every microsecond or two, or after a
    /// millisecond where much memory goes back. Returns whether there is more to do.
    pub fn follow(&self, mut is_over: impl FnMut() -> bool) -> bool {
        if !self.is_asked() {
            return false;
        }
        if !spans::is_on() {
            BEGUN.set(self.asked.load(Relaxed));
            settle();
            spans::begin();
            WALK.set(Some(evenkeel_slab::Walk::new()));
        }
        if let Some(mut walk) = WALK.take()
            && walk.go_on(&mut is_over)
        {
            WALK.set(Some(walk));
            return true;
        }
        if spans::give_back(is_over) {
            return true;
        }
        self.given_back.fetch_add(1, Relaxed);
        self.is_asked()
    }

    /// Says that compaction begins: threads other than workers lend their blocks to it.
    pub fn begin_compaction(&self) {
        self.compactions.fetch_add(1, Relaxed);
    }

    /// Like [`AllocatorPurge::follow`], for a slice of a thread that is not a worker, and does not compact.
    pub fn follow_a_slice(&self) -> bool {
        let begun = self.compactions.load(Relaxed);
        if LENT.replace(begun) != begun {
            evenkeel_slab::lend();
        }
        let until = Instant::now() + Duration::from_micros(SLICE_US_MAX);
        self.follow(|| Instant::now() >= until)
    }
}

/// Rounds of the control thread without a decrease, until freeing counts as stopped: two seconds.
const CALM_ROUNDS: u32 = 20;

/// Rounds between two purges of memory that belongs to no thread, and rounds for which these go on: 2 GB go
/// back at a time.
const SHARED_ROUNDS: u32 = 10;
const SHARED_MAX: u32 = 600;

/// Chunks of blocks go back in slices of [`SLICE_US_MAX`], so many in a round, with pauses in between: a
/// worker may be on the same core. For the next blocks, a chunk stays for each `CHUNKS_SHARE` in use, at
/// most `CHUNKS_KEPT`.
const CHUNK_SLICES: u32 = 20;
const CHUNK_PAUSE: Duration = Duration::from_millis(1);
const CHUNKS_SHARE: usize = 64;
const CHUNKS_KEPT: usize = 8;

/// Most looks at chunks of large blocks in a round.
const LARGE_LOOKS: usize = 4096;

/// Rounds for which such purges go on after threads have purged their own memory.
const AGAIN_ROUNDS: u32 = 50;

/// Rounds before threads are asked: meanwhile most memory goes back without any work of theirs.
const ASKING_ROUNDS: u32 = 50;

/// Rounds, after much has been freed, for which every tenth round looks for purged memory: the allocator
/// purges within a second or two, and reports nothing.
const FADING_ROUNDS: u32 = 40;

/// The control thread's watch on freed memory.
#[derive(Default)]
pub struct Watch {
    /// Most bytes in use since threads were last asked.
    peak: usize,
    last: usize,
    /// Rounds since the bytes in use last decreased.
    calm: u32,
    /// Rounds until threads are asked; 0: no request is planned.
    asks_in: u32,
    /// Remaining rounds for which memory that belongs to no thread is purged.
    shared: u32,
    /// Remaining rounds for which memory may go back.
    fading: u32,
    /// [`AllocatorPurge::given_back`] and [`AllocatorPurge::emptied`] in the round before.
    given_back: u64,
    emptied: u64,
    /// Whether chunks without blocks are still to go back.
    purges_chunks: bool,
    /// Looks at chunks of large blocks that are still due: two at each, since pages go back that were free at
    /// the look before.
    large_looks: usize,
}

impl Watch {
    /// Fewer freed bytes than this are not worth a purge.
    const FREED_MIN: usize = 64 << 20;

    /// Advances by a round and returns the work that is due.
    fn look(&mut self, used: usize) -> Looked {
        let is_calm = used + used / 100 >= self.last;
        (self.calm, self.last) = (if is_calm { self.calm + 1 } else { 0 }, used);
        self.peak = self.peak.max(used);
        let freed = self.peak - used;
        let is_worth_it = freed >= Self::FREED_MIN && freed >= self.peak / 10;
        if is_worth_it && self.shared < SHARED_MAX / 2 {
            self.shared = SHARED_MAX;
        }
        self.shared = self.shared.saturating_sub(1);
        self.asks_in = self.asks_in.saturating_sub(1);
        if is_worth_it && self.calm >= CALM_ROUNDS && self.asks_in == 0 {
            (self.peak, self.asks_in) = (used, ASKING_ROUNDS);
        }
        match (self.asks_in, self.shared % SHARED_ROUNDS) {
            (1, _) => Looked::Asks,
            (_, 0) if self.shared > 0 => Looked::Shared,
            _ => Looked::Nothing,
        }
    }

    /// Whether memory may have gone back since this last returned true; `is_asked_for`: threads have purged.
    fn may_have_faded(&mut self, is_asked_for: bool) -> bool {
        if is_asked_for || self.calm == 0 && self.peak - self.last >= Self::FREED_MIN {
            self.fading = FADING_ROUNDS;
        }
        self.fading = self.fading.saturating_sub(1);
        self.fading % 10 == 1
    }

    /// Runs a round. Returns whether all threads are asked to purge now.
    pub fn round(&mut self, purge: &AllocatorPurge) -> bool {
        let given_back = purge.given_back.load(Relaxed);
        let has_given_back = std::mem::replace(&mut self.given_back, given_back) != given_back;
        let looked = self.look(memory::used());
        if has_given_back {
            spans::give_back_shared();
            // If another thread was purging, the call has done nothing.
            self.shared = self.shared.max(AGAIN_ROUNDS);
        } else if looked == Looked::Shared {
            collect();
        }
        let emptied = purge.emptied.load(Relaxed);
        let has_emptied = std::mem::replace(&mut self.emptied, emptied) != emptied;
        if has_given_back || has_emptied || looked == Looked::Shared {
            self.purges_chunks = true;
            self.large_looks = 2 * evenkeel_slab::chunks();
        }
        if self.purges_chunks {
            self.purges_chunks = purge_chunks();
        }
        self.large_looks -= purge_large(self.large_looks);
        if self.may_have_faded(has_given_back || has_emptied) {
            ahead::look_for_gaps();
        }
        if looked == Looked::Asks {
            purge.ask();
        }
        looked == Looked::Asks
    }
}

/// Gives chunks without blocks back to the system, for a round. Returns whether there may be more.
fn purge_chunks() -> bool {
    let kept = (evenkeel_slab::in_chunks() / evenkeel_slab::CHUNK / CHUNKS_SHARE).clamp(1, CHUNKS_KEPT);
    for _ in 0..CHUNK_SLICES {
        let until = Instant::now() + Duration::from_micros(SLICE_US_MAX);
        while Instant::now() < until {
            if evenkeel_slab::purge(1, kept) == 0 {
                return false;
            }
        }
        std::thread::sleep(CHUNK_PAUSE);
    }
    true
}

/// Gives free pages of large blocks back to the system, for a round. Returns the number of looks at chunks,
/// at most `looks`.
fn purge_large(looks: usize) -> usize {
    // Each chunk once: the next look at it belongs to the next round.
    let (looks, mut done) = (looks.min(evenkeel_slab::chunks()).min(LARGE_LOOKS), 0);
    let until = Instant::now() + CHUNK_PAUSE * CHUNK_SLICES;
    while done < looks && Instant::now() < until {
        if evenkeel_slab::purge_large(1) > 0 {
            std::thread::sleep(CHUNK_PAUSE);
        }
        done += 1;
    }
    done
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looked {
    Nothing,
    /// Purge memory that belongs to no thread.
    Shared,
    /// Ask threads to purge their unused memory.
    Asks,
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: usize = 1 << 30;

    fn count(watch: &mut Watch, what: Looked, used: impl Iterator<Item = usize>) -> usize {
        used.filter(|used| watch.look(*used) == what).count()
    }

    #[test]
    fn threads_are_asked_once_when_much_has_been_freed() {
        let mut watch = Watch::default();
        let mut asked = |used: &mut dyn Iterator<Item = usize>| count(&mut watch, Looked::Asks, used);
        assert_eq!(asked(&mut (0..100).map(|round| round * GB / 50)), 0, "it grows");
        assert_eq!(asked(&mut (0..100).map(|_| 2 * GB - GB / 20)), 0, "a fortieth is not much");
        assert_eq!(asked(&mut (0..100).map(|round| 2 * GB - round * GB / 50)), 0, "more is being freed");
        assert_eq!(asked(&mut (0..100).map(|_| 1000)), 1);
        assert_eq!(asked(&mut (0..100).map(|_| 1000)), 0);
    }

    #[test]
    fn what_is_shared_goes_back_before_threads_give_back_theirs() {
        let mut watch = Watch::default();
        watch.look(GB);
        let looked: Vec<_> =
            (0..1000).map(|_| watch.look(0)).filter(|looked| *looked != Looked::Nothing).collect();
        let before = looked.iter().take_while(|looked| **looked == Looked::Shared).count();
        assert!(before >= 5 && looked[before] == Looked::Asks, "{looked:?}");
        let behind = &looked[before + 1..];
        assert!(behind.iter().all(|looked| *looked == Looked::Shared) && behind.len() > 40, "{looked:?}");
        assert_eq!(count(&mut watch, Looked::Nothing, std::iter::repeat_n(0, 1000)), 1000);
    }

    #[test]
    fn what_has_gone_back_is_looked_for_while_it_does() {
        let mut watch = Watch::default();
        let mut looks = |used: usize, rounds: usize| {
            let round = |_: &usize| {
                watch.look(used);
                watch.may_have_faded(false)
            };
            (0..rounds).filter(round).count()
        };
        assert_eq!(looks(GB, 100), 0);
        assert_eq!(looks(GB - GB / 50, 100), 0, "little was freed");
        assert_eq!(looks(GB / 2, 15), 1);
        assert_eq!(looks(GB / 2, 1000), 3);
        assert!(!watch.may_have_faded(true));
        assert_eq!((0..100).filter(|_| watch.may_have_faded(false)).count(), 4);
    }

    /// Counts calls of the allocator's slow path on this thread; a look through all pages adds one.
    fn calls_of_the_allocator(requests: usize, mut each: impl FnMut()) -> usize {
        thread_local!(static CALLS: Cell<usize> = const { Cell::new(0) });
        extern "C" fn count(_is_forced: bool, _heartbeat: libc::c_ulonglong, _argument: *mut libc::c_void) {
            CALLS.set(CALLS.get() + 1);
        }
        // SAFETY: the function takes no memory, and lives as long as the process.
        unsafe { libmimalloc_sys::mi_register_deferred_free(Some(count), std::ptr::null_mut()) };
        let before = CALLS.get();
        for _ in 0..requests {
            // Too large to share a page.
            drop(std::hint::black_box(Vec::<u8>::with_capacity(1 << 20)));
            each();
        }
        CALLS.get() - before
    }

    #[test]
    fn who_settles_does_not_look_through_all_pages() {
        // SAFETY: sets a number that the allocator reads when memory is requested.
        let look_after = |requests| unsafe { libmimalloc_sys::mi_option_set(GENERIC_COLLECT, requests) };
        // SAFETY: the same.
        let before = unsafe { libmimalloc_sys::mi_option_get(GENERIC_COLLECT) };
        look_after(1000);
        let on_a_thread =
            |each: fn()| std::thread::spawn(move || calls_of_the_allocator(20_000, each)).join();
        assert_eq!(on_a_thread(|| ()).expect("it holds"), 200 + 20);
        assert_eq!(on_a_thread(settle).expect("it holds"), 200);
        look_after(before);
    }

    #[test]
    fn who_is_asked_again_meanwhile_does_it_again() {
        std::thread::spawn(|| {
            // Frees every second block, so that there are spans.
            let mut blocks: Vec<_> = (0..20).map(|_| Some(vec![1_u8; 200_000])).collect();
            blocks.iter_mut().step_by(2).for_each(|block| *block = None);
            let purge = AllocatorPurge::default();
            assert!(!purge.is_asked() && !purge.follow(|| true));
            purge.ask();
            assert!(purge.is_asked() && purge.follow(|| true), "it has just begun");
            purge.ask();
            assert!(purge.follow(|| false), "once more");
            assert_eq!(purge.given_back.load(Relaxed), 1);
            assert!(purge.is_asked() && !purge.follow(|| false));
            assert!(!purge.is_asked() && !purge.follow(|| false));
            assert_eq!(purge.given_back.load(Relaxed), 2);
        })
        .join()
        .expect("it holds");
    }
}
