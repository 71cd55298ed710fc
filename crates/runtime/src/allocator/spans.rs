//! What a thread's segments have unused goes back to the system, in slices.
//!
//! A page without blocks becomes a free span of its segment, and the allocator gives that back when something else in the segment is
//! freed a second later. Where nothing is, it stays. So the thread goes through its free spans, and has what is unused of their
//! segments given back. The allocator's own way (`mi_collect`) goes through all pages for it, in one piece: 5 ms for each GB. The
//! spans are few, but to give back a segment, of 32 MiB, may take a millisecond, and so others are served in between.
//!
//! A walk remembers the span at which it stopped, and looks whether that is still one when it goes on; if not, it begins the queue of
//! spans of that size anew.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

/// Where a walk goes on; `place_t` of heap.c.
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
    /// Of the walk that this thread is on.
    static PLACE: Cell<Option<Place>> = const { Cell::new(None) };
}

/// Whether this thread is on a walk.
pub(super) fn is_on() -> bool {
    PLACE.get().is_some()
}

/// Begins one.
pub(super) fn begin() {
    PLACE.set(Some(Place { span: ptr::null_mut(), slices: 0, queue: 0, left: 0 }));
}

/// Goes on until `is_over`, which is asked after each span. Returns whether there is more.
pub(super) fn give_back(mut is_over: impl FnMut() -> bool) -> bool {
    extern "C" fn ask<F: FnMut() -> bool>(is_over: *mut c_void) -> bool {
        // SAFETY: it is what was given below.
        unsafe { (*is_over.cast::<F>())() }
    }
    fn asks<F: FnMut() -> bool>(_: &F) -> extern "C" fn(*mut c_void) -> bool {
        ask::<F>
    }
    let Some(mut place) = PLACE.take() else { return false };
    // SAFETY: it goes over the calling thread's own heap, which is where its place comes from: both are the thread's. Nothing in it calls
    // back but for `is_over`, which outlives the call.
    let has_more = unsafe { evenkeel_give_back(&mut place, asks(&is_over), (&raw mut is_over).cast()) };
    PLACE.set(has_more.then_some(place));
    if !has_more {
        // SAFETY: adds this thread's counters to those that MEMORY MALLOC-STATS shows.
        unsafe { libmimalloc_sys::mi_stats_merge() };
    }
    has_more
}

/// Gives back at once what belongs to no thread: that may take a second, and nobody is to wait for who does it.
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

    /// So that nothing goes back but by what is tested.
    fn keep_what_is_freed() {
        // SAFETY: sets a number that the allocator reads when something is freed.
        unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, 1_000_000) };
    }

    /// Of the pages in which these addresses lie, the share that is in the memory.
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

    /// What a thread does that fills and frees memory, by neighbours, so that pages go, and segments.
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
        // They take the segments that others have given back.
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
