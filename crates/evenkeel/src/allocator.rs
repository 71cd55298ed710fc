//! The allocator, mimalloc, as this program has set it up, and what it is told meanwhile.
//!
//! **Blocks that others free.** Each thread owns the pages that it takes blocks from. A block that another thread frees is put
//! on a list of its page, and the owner walks these lists when it next looks for room: that costs 0.15 us per block, for each
//! is cold. What a flush or a large value leaves is freed by a thread of its own, so millions of blocks may be on these lists,
//! and one SET would walk all of them (measured: 157 ms after a FLUSHALL of 1.4 GB). Therefore workers look each time round
//! ([`settle`]), and who frees much waits for them now and then ([`crate::rubbish`]).
//!
//! **What goes back to the system.** A page is given back when its owner finds that it is empty, and an idle owner does not look.
//! So when much has been freed, and no more is being freed, all threads that own pages are asked to ([`Slack`]). A worker that
//! is busy does not do that: it looks through all its pages for it, at some 5 ms for each GB and more if they are full of what
//! others have freed, and it is going to fill them again.
//!
//! **What is taken from it** is asked for by a thread of its own, before it is needed: [`ahead`].

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use evenkeel_store::memory;

pub(crate) mod ahead;

/// Tells the allocator whether to ask for huge pages. Nothing in this program forks, so a page of 2 MiB is never
/// copied for one byte.
///
/// Freed memory is given back to the system a second later instead of at once: tables that grow free and take memory
/// all the time, and every piece given back in between breaks a huge page up (measured while 5 million keys were set:
/// 28% of the memory in huge pages after 10 ms, 99% after 1 s).
///
/// What belongs to no thread any more is given back after two seconds, not ten: it is asked for while the server is calm.
///
/// A thread looks through all its pages once in a million requests that its present page cannot serve, and not in ten
/// thousand: that is milliseconds for each GB.
pub(crate) fn set_up(huge_pages: bool) {
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    const PURGE_DELAY_MS: std::ffi::c_long = 1000;
    const SHARED_PURGE_MULT: libmimalloc_sys::mi_option_t = 24;
    const GENERIC_COLLECT: libmimalloc_sys::mi_option_t = 36;
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
    /// Not a part of the allocator's interface, but of its library: a version without it is not linked with.
    fn _mi_heap_delayed_free_partial(heap: *mut libmimalloc_sys::mi_heap_t) -> bool;
}

/// Takes back what other threads have freed of this thread's full pages. Costs nothing when that is nothing.
#[inline]
pub(crate) fn settle() {
    // SAFETY: the heap is the calling thread's own, which is what both functions ask for.
    unsafe { _mi_heap_delayed_free_partial(libmimalloc_sys::mi_heap_get_default()) };
}

/// Has this thread look through its pages, and gives back what has been unused for a while.
pub(crate) fn collect() {
    // SAFETY: works on the allocator's own structures.
    unsafe { libmimalloc_sys::mi_collect(false) }
}

/// The same, and gives all of it back at once.
pub(crate) fn purge() {
    // SAFETY: as above.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

/// The allocator's own report.
pub(crate) fn report() -> String {
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

/// What threads that own pages have been asked to do.
#[derive(Default)]
pub(crate) struct Slack {
    /// How often, if they have the time: to look through their pages where it is odd, and to give back what they have at once
    /// where it is even.
    steps: AtomicU64,
    /// How often, in any case: to give back all that is unused.
    purges: AtomicU64,
}

thread_local! {
    /// What this thread has done of it.
    static DONE: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

impl Slack {
    /// MEMORY PURGE
    pub(crate) fn ask_to_purge(&self) {
        self.purges.fetch_add(1, Relaxed);
    }

    /// Does what was asked for since this thread last did; `is_calm`: it has the time to look through its pages.
    #[inline]
    pub(crate) fn follow(&self, is_calm: bool) {
        let asked = (self.steps.load(Relaxed), self.purges.load(Relaxed));
        let (steps, purges) = DONE.get();
        if asked.1 == purges && (asked.0 == steps || !is_calm) {
            return;
        }
        if asked.1 == purges && asked.0 % 2 == 1 {
            collect()
        } else {
            purge()
        }
        DONE.set(asked);
    }
}

/// Rounds of the control thread in which nothing was freed, until that counts as the end: two seconds.
const CALM_ROUNDS: u32 = 20;

/// Rounds between two looks at what belongs to no thread, and for how many that is done: of that, two GB go back at a time.
const SHARED_ROUNDS: u32 = 10;
const SHARED_MAX: u32 = 600;

/// Rounds between the two steps: meanwhile most has gone back without any work for those who own pages.
const STEP_ROUNDS: u32 = 50;

/// Rounds for which it is looked once in ten at what has gone back, after much has been freed: the allocator does that by itself
/// within a second or two, and says nothing of it.
const FADING_ROUNDS: u32 = 40;

/// The control thread's eye on what has been freed.
#[derive(Default)]
pub(crate) struct Watch {
    /// The most that was used since threads were last asked.
    peak: usize,
    last: usize,
    /// Rounds without less being used than before.
    calm: u32,
    /// Rounds until the second step.
    step: u32,
    /// Rounds for which there may be something to be given back that belongs to no thread.
    shared: u32,
    /// Rounds for which memory may go back.
    fading: u32,
    /// How often it had been asked for in any case.
    purges: u64,
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
        self.step = self.step.saturating_sub(1);
        if is_worth_it && self.calm >= CALM_ROUNDS {
            (self.peak, self.step) = (used, STEP_ROUNDS);
            return Looked::Collects;
        }
        match (self.step, self.shared % SHARED_ROUNDS) {
            (1, _) => Looked::Purges,
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
    pub(crate) fn round(&mut self, slack: &Slack) -> bool {
        let steps = slack.steps.load(Relaxed);
        let looked = self.look(memory::used());
        let purges = slack.purges.load(Relaxed);
        let is_asked_for = looked == Looked::Purges || std::mem::replace(&mut self.purges, purges) != purges;
        if self.may_have_faded(is_asked_for) {
            ahead::look_for_gaps();
        }
        match looked {
            Looked::Nothing => return false,
            Looked::Shared => {
                collect();
                return false;
            }
            Looked::Collects => slack.steps.store((steps + 1) | 1, Relaxed),
            Looked::Purges => slack.steps.store(steps + 1, Relaxed),
        }
        true
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looked {
    Nothing,
    /// At what belongs to no thread.
    Shared,
    /// Threads are to look through their pages.
    Collects,
    /// They are to give back what they have found.
    Purges,
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
        let mut asked = |used: &mut dyn Iterator<Item = usize>| count(&mut watch, Looked::Collects, used);
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
        let shared = |looked: &&Looked| **looked == Looked::Shared;
        let before = looked.iter().take_while(shared).count();
        assert_eq!(looked[before], Looked::Collects);
        let between = looked[before + 1..].iter().take_while(shared).count();
        assert_eq!(looked[before + 1 + between], Looked::Purges);
        assert!(before >= 1 && between >= 4, "{looked:?}");
        let behind = &looked[before + between + 2..];
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

    #[test]
    fn who_is_busy_follows_later_but_purges_at_once() {
        let slack = Slack::default();
        DONE.set((0, 0));
        slack.steps.store(1, Relaxed);
        slack.follow(false);
        assert_eq!(DONE.get(), (0, 0));
        slack.follow(true);
        assert_eq!(DONE.get(), (1, 0));
        slack.ask_to_purge();
        slack.follow(false);
        assert_eq!(DONE.get(), (1, 1));
    }
}
