//! Purges the unused memory of a thread's segments, in slices.
//!
//! A page without blocks becomes a free span of its segment. The allocator purges the span when another block
//! in the segment is freed a second later; without such a free, the memory stays. So the thread walks its
//! free spans and purges the unused memory of their segments. The allocator's own way (`mi_collect`) walks
//! all pages without a pause, 5 ms per GB. Spans are few, but purging a segment of 32 MiB may take a
//! millisecond, so the worker serves clients in between.
//!
//! A walk remembers the span at which it stopped. When it goes on, it checks that this is still a free span;
//! if not, it begins the queue of spans of that size again.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

/// Position of a walk; `place_t` of heap.c.
#[derive(Clone, Copy)]
#[repr(C)]
struct Place {
    span: *mut c_void,
    slices: usize,
    queue: usize,
    left: usize,
}

unsafe extern "C" {
    fn evenkeel_give_back(
        place: *mut Place,
        is_over: extern "C" fn(*mut c_void) -> bool,
        argument: *mut c_void,
    ) -> bool;
    fn evenkeel_give_back_shared();
}

thread_local! {
    /// The position of this thread's walk, if it is on a walk.
    static PLACE: Cell<Option<Place>> = const { Cell::new(None) };
}

/// Whether this thread is on a walk.
pub(super) fn is_on() -> bool {
    PLACE.get().is_some()
}

/// Begins a walk.
pub(super) fn begin() {
    PLACE.set(Some(Place { span: ptr::null_mut(), slices: 0, queue: 0, left: 0 }));
}

/// Continues the walk until `is_over`, which is called after each span. Returns whether there is more.
pub(super) fn give_back(mut is_over: impl FnMut() -> bool) -> bool {
    extern "C" fn ask<F: FnMut() -> bool>(is_over: *mut c_void) -> bool {
        // SAFETY: the pointer is that of `is_over` below.
        unsafe { (*is_over.cast::<F>())() }
    }
    fn asks<F: FnMut() -> bool>(_: &F) -> extern "C" fn(*mut c_void) -> bool {
        ask::<F>
    }
    let Some(mut place) = PLACE.take() else { return false };
    // SAFETY: the call walks the calling thread's own heap, and `place` belongs to the same thread. The call
    // runs no code of ours but `is_over`, which outlives it.
    let has_more = unsafe { evenkeel_give_back(&mut place, asks(&is_over), (&raw mut is_over).cast()) };
    PLACE.set(has_more.then_some(place));
    if !has_more {
        // SAFETY: adds this thread's counters to those shown by MEMORY MALLOC-STATS.
        unsafe { libmimalloc_sys::mi_stats_merge() };
    }
    has_more
}

/// Purges all memory that belongs to no thread at once. It may take a second, so no client may wait for the
/// calling thread.
pub(super) fn give_back_shared() {
    // SAFETY: works on the allocator's own structures.
    unsafe { evenkeel_give_back_shared() }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use evenkeel_testkit::random::Random;

    use super::*;
    use crate::allocator::{PURGE_DELAY, settle};
    use evenkeel_testkit::random::fresh_seed;

    fn on_a_thread(run: impl FnOnce() + Send + 'static) {
        thread::spawn(run).join().expect("it does not panic");
    }

    /// Turns timed purges off, so that memory goes back only by the tested call.
    fn keep_what_is_freed() {
        // SAFETY: sets a number that the allocator reads when a block is freed.
        unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, 1_000_000) };
    }

    /// Returns the share of the pages of these addresses that is resident.
    fn resident(addresses: &[usize]) -> f64 {
        const PAGE: usize = 4096;
        let is_there = |address: &&usize| {
            let mut is_there = 0;
            // SAFETY: asks about one page.
            let asked = unsafe { libc::mincore((**address & !(PAGE - 1)) as *mut _, PAGE, &mut is_there) };
            assert_eq!(asked, 0);
            is_there & 1 == 1
        };
        addresses.iter().filter(is_there).count() as f64 / addresses.len() as f64
    }

    #[test]
    fn what_others_have_freed_goes_back_a_span_at_a_time() {
        keep_what_is_freed();
        on_a_thread(|| {
            let mut blocks: Vec<Vec<u8>> = (0..30_000).map(|_| vec![1; 4000]).collect();
            let mut number = 0;
            let is_freed = |_: &mut Vec<u8>| {
                number += 1;
                number % 600 != 0
            };
            let freed: Vec<_> = blocks.extract_if(.., is_freed).collect();
            let addresses: Vec<usize> = freed.iter().map(|block| block.as_ptr() as usize).collect();
            on_a_thread(move || drop(freed));
            settle();
            assert_eq!(resident(&addresses), 1.0);
            begin();
            let mut slices = 1;
            while give_back(|| true) {
                slices += 1;
            }
            assert!(slices >= blocks.len(), "{slices}");
            assert!(resident(&addresses) < 0.05, "{}", resident(&addresses));
            assert!(!is_on());
        });
    }

    /// Allocates and frees neighbouring blocks at random, so that pages and segments vanish.
    fn churn(random: &mut Random, blocks: &mut Vec<Vec<u8>>, is_growing: bool) {
        if is_growing && blocks.len() < 10_000 || blocks.is_empty() {
            return blocks.extend((0..random.below(1000)).map(|_| {
                let len_max = if random.below(200) == 0 { 3 << 20 } else { 9000 };
                let len = random.below(len_max);
                vec![len as u8; len]
            }));
        }
        let at = random.below(blocks.len());
        let most = [20, 100, 3000][random.below(3)];
        let to = blocks.len().min(at + random.below(most));
        let gone: Vec<_> = blocks.drain(at..to).collect();
        if random.chance(50) {
            drop(gone)
        } else {
            on_a_thread(move || drop(gone))
        }
        settle();
    }

    #[test]
    fn a_walk_ends_and_harms_nothing_whatever_becomes_of_the_spans_meanwhile() {
        keep_what_is_freed();
        let seed = fresh_seed();
        println!("EVENKEEL_SEED={seed}");
        let mut random = Random::new(seed);
        let seeds = [random.draw(), random.draw(), random.draw()];
        // These threads take segments that other threads have given back.
        let walks = seeds.map(|seed| {
            thread::spawn(move || {
                let (mut random, mut blocks) = (Random::new(seed), Vec::new());
                for _ in 0..100 {
                    let is_growing = random.chance(50);
                    begin();
                    for slice in 0.. {
                        assert!(slice < 60, "it goes over what is no span");
                        churn(&mut random, &mut blocks, is_growing);
                        let mut spans = random.between(1, 5);
                        let is_over = || {
                            spans -= 1;
                            spans == 0
                        };
                        if !give_back(is_over) {
                            break;
                        }
                    }
                }
                for block in &blocks {
                    assert!(block.iter().all(|byte| *byte == block.len() as u8), "a block has changed");
                }
            })
        });
        for walk in walks {
            walk.join().expect("it does not panic");
        }
    }
}
