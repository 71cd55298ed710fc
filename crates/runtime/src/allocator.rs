//! The allocator, mimalloc, as this program has set it up, and what it is told meanwhile.
//!
//! **Blocks that others free.** Each thread owns the pages that it takes blocks from. A block that another thread frees is put
//! on a list of its page, and the owner walks these lists when it next looks for room: that costs 0.15 us per block, for each
//! is cold. What a flush or a large value leaves is freed by a thread of its own, so millions of blocks may be on these lists,
//! and one SET would walk all of them (measured: 157 ms after a FLUSHALL of 1.4 GB). Therefore workers look each time round
//! ([`settle`]), and who frees much waits for them now and then ([`crate::lazy_free`]).
//!
//! **What goes back to the system.** Memory is given back when something near it is freed a second later, and an idle owner frees
//! nothing. So when much has been freed, and no more is being freed, all threads are asked to give back what they have unused
//! ([`AllocatorPurge`]), and do so in slices ([`spans`]).
//!
//! **What is taken from it** is asked for by a thread of its own, before it is needed: [`ahead`].

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenkeel_store::memory;

/// The longest slice of background work, in microseconds: a worker serves its clients between two slices.
pub const SLICE_US_MAX: u64 = 500;

pub mod ahead;
mod spans;

/// Numbers of options: how long what was freed is kept, in milliseconds, ..
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
/// .. and after how many requests that its present page cannot serve a thread looks through all its pages.
const GENERIC_COLLECT: libmimalloc_sys::mi_option_t = 36;

/// Tells the allocator whether to ask for huge pages. Nothing in this program forks, so a page of 2 MiB is never
/// copied for one byte.
///
/// Freed memory is given back to the system a second later instead of at once: tables that grow free and take memory
/// all the time, and every piece given back in between breaks a huge page up (measured while 5 million keys were set:
/// 28% of the memory in huge pages after 10 ms, 99% after 1 s).
///
/// What belongs to no thread any more is given back after two seconds, not ten: it is asked for while the server is calm.
///
/// A thread that does not [`settle`] looks through all its pages once in a million requests that its present page cannot serve,
/// and not in ten thousand: that is milliseconds for each GB.
pub fn set_up(huge_pages: bool) {
    const PURGE_DELAY_MS: std::ffi::c_long = 1000;
    const SHARED_PURGE_MULT: libmimalloc_sys::mi_option_t = 24;
    const REQUESTS: std::ffi::c_long = 1_000_000;
    const ALLOW_THP: libmimalloc_sys::mi_option_t = 37;
    if !huge_pages {
        // SAFETY: says of this process that it gets none, not even where the allocator has asked for them already.
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    }
    // SAFETY: sets numbers that the allocator reads when it next asks the system for memory, or gives some back.
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

/// Takes back what other threads have freed of this thread's pages. Costs nothing when that is nothing.
///
/// A thread that calls this again and again does not look through all its pages, unless a million requests come between two calls.
/// The allocator has it do so after as many, in one piece, for what others have freed.
#[inline]
pub fn settle() {
    // SAFETY: works on the calling thread's own heap.
    unsafe { evenkeel_settle() };
}

/// Gives back what belongs to no thread any more and has been unused for a while; for a thread that owns few pages.
fn collect() {
    // SAFETY: works on the allocator's own structures.
    unsafe { libmimalloc_sys::mi_collect(false) }
}

/// The allocator's own report.
pub fn report() -> String {
    unsafe extern "C" fn append(line: *const libc::c_char, text: *mut libc::c_void) {
        // SAFETY: the allocator passes a text that ends in a zero, and the address that it was given.
        let (line, text) = unsafe { (std::ffi::CStr::from_ptr(line), &mut *text.cast::<String>()) };
        text.push_str(&line.to_string_lossy());
    }
    let mut text = String::new();
    // SAFETY: the function and the text outlive the call.
    unsafe { libmimalloc_sys::mi_stats_print_out(Some(append), (&raw mut text).cast()) };
    text
}

/// How often threads have been asked to give back what they have unused, and how often one has.
#[derive(Default)]
pub struct AllocatorPurge {
    asked: AtomicU64,
    given_back: AtomicU64,
}

thread_local! {
    /// How often this thread has begun to.
    static BEGUN: Cell<u64> = const { Cell::new(0) };
}

impl AllocatorPurge {
    /// Threads are to look at [`AllocatorPurge::is_asked`] soon.
    pub fn ask(&self) {
        self.asked.fetch_add(1, Relaxed);
    }

    /// Whether there is anything to do for this thread.
    #[inline]
    pub fn is_asked(&self) -> bool {
        spans::is_on() || BEGUN.get() != self.asked.load(Relaxed)
    }

    /// Does what was asked for, until `is_over`, which is asked now and then: within a microsecond or two, and a millisecond where much
    /// goes back. Returns whether there is more to do.
    pub fn follow(&self, is_over: impl FnMut() -> bool) -> bool {
        if !self.is_asked() {
            return false;
        }
        if !spans::is_on() {
            BEGUN.set(self.asked.load(Relaxed));
            settle();
            spans::begin();
        }
        if spans::give_back(is_over) {
            return true;
        }
        self.given_back.fetch_add(1, Relaxed);
        self.is_asked()
    }

    /// The same for as long as a worker's slice of background work.
    pub fn follow_a_slice(&self) -> bool {
        let until = Instant::now() + Duration::from_micros(SLICE_US_MAX);
        self.follow(|| Instant::now() >= until)
    }
}

/// Rounds of the control thread in which nothing was freed, until that counts as the end: two seconds.
const CALM_ROUNDS: u32 = 20;

/// Rounds between two looks at what belongs to no thread, and for how many that is done: of that, two GB go back at a time.
const SHARED_ROUNDS: u32 = 10;
const SHARED_MAX: u32 = 600;

/// Rounds for which that is done after threads have given back theirs.
const AGAIN_ROUNDS: u32 = 50;

/// Rounds until threads are asked: meanwhile most goes back without any work of theirs.
const ASKING_ROUNDS: u32 = 50;

/// Rounds for which it is looked once in ten at what has gone back, after much has been freed: the allocator does that by itself
/// within a second or two, and says nothing of it.
const FADING_ROUNDS: u32 = 40;

/// The control thread's eye on what has been freed.
#[derive(Default)]
pub struct Watch {
    /// The most that was used since threads were last asked.
    peak: usize,
    last: usize,
    /// Rounds without less being used than before.
    calm: u32,
    /// Rounds until threads are asked, if they are to be.
    asks_in: u32,
    /// Rounds for which there may be something to be given back that belongs to no thread.
    shared: u32,
    /// Rounds for which memory may go back.
    fading: u32,
    /// How often threads had given back what they had unused.
    given_back: u64,
}

impl Watch {
    /// Less freed than this is not worth looking for.
    const FREED_MIN: usize = 64 << 20;

    /// To be called each round; what is returned is to be done.
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

    /// Whether memory may have gone back since this was last true; `is_asked_for`: that it is to.
    fn may_have_faded(&mut self, is_asked_for: bool) -> bool {
        if is_asked_for || self.calm == 0 && self.peak - self.last >= Self::FREED_MIN {
            self.fading = FADING_ROUNDS;
        }
        self.fading = self.fading.saturating_sub(1);
        self.fading % 10 == 1
    }

    /// One round; whether all threads are asked for something now.
    pub fn round(&mut self, purge: &AllocatorPurge) -> bool {
        let given_back = purge.given_back.load(Relaxed);
        let has_given_back = std::mem::replace(&mut self.given_back, given_back) != given_back;
        let looked = self.look(memory::used());
        if has_given_back {
            spans::give_back_shared();
            // If somebody else was about to, that has done nothing.
            self.shared = self.shared.max(AGAIN_ROUNDS);
        } else if looked == Looked::Shared {
            collect();
        }
        if self.may_have_faded(has_given_back) {
            ahead::look_for_gaps();
        }
        if looked == Looked::Asks {
            purge.ask();
        }
        looked == Looked::Asks
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looked {
    Nothing,
    /// At what belongs to no thread.
    Shared,
    /// Threads are to give back what they have unused.
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

    /// What the calling thread's heap is asked for is counted; a look through all pages is one more call than those.
    fn calls_of_the_allocator(requests: usize, mut each: impl FnMut()) -> usize {
        thread_local!(static CALLS: Cell<usize> = const { Cell::new(0) });
        extern "C" fn count(_is_forced: bool, _heartbeat: libc::c_ulonglong, _argument: *mut libc::c_void) {
            CALLS.set(CALLS.get() + 1);
        }
        // SAFETY: it takes no memory, and stays.
        unsafe { libmimalloc_sys::mi_register_deferred_free(Some(count), std::ptr::null_mut()) };
        let before = CALLS.get();
        for _ in 0..requests {
            // Too large for a page with others.
            drop(std::hint::black_box(Vec::<u8>::with_capacity(1 << 20)));
            each();
        }
        CALLS.get() - before
    }

    #[test]
    fn who_settles_does_not_look_through_all_pages() {
        // SAFETY: asks for and sets a number that the allocator reads when it is asked for memory.
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
            // Every other one goes, so that there are spans.
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
