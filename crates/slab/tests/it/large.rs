//! Large blocks against a plain list.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use evenkeel_slab::{CHUNK, SIZE_MAX, put_back_large, stats, take_large};
use evenkeel_testkit::Random;

use crate::{alone_on_a_thread, seed};

/// The first and the last bytes of a block, made from its number.
fn ends(at: NonNull<u8>, size: usize) -> [*mut u64; 2] {
    [at.as_ptr().cast(), at.as_ptr().wrapping_add(size / 8 * 8 - 8).cast()]
}

fn write(at: NonNull<u8>, size: usize, number: u64) {
    // SAFETY: the block is this long, and in use.
    ends(at, size).into_iter().for_each(|end| unsafe { end.write(number) });
}

fn check(at: NonNull<u8>, size: usize, number: u64) {
    // SAFETY: as above.
    ends(at, size).into_iter().for_each(|end| assert_eq!(unsafe { end.read() }, number));
}

#[test]
fn random_large_blocks_never_overlap() {
    let mut random = Random::new(seed("random_large_blocks_never_overlap"));
    alone_on_a_thread(move || {
        let before = stats();
        let mut blocks: BTreeMap<usize, (usize, u64)> = BTreeMap::new();
        for number in 0..6_000 {
            let is_full =
                blocks.len() > 300 || blocks.values().map(|block| block.0).sum::<usize>() > 400 << 20;
            if !is_full && random.chance(60) {
                let size = match random.below(20) {
                    0 => CHUNK / 2 + random.below(3 * CHUNK),
                    1..=9 => 64 << 10,
                    _ => SIZE_MAX + 1 + random.below(300 << 10),
                };
                let (at, is_zero) = take_large(size).expect("there is memory");
                let address = at.addr().get();
                assert!(address.is_multiple_of(4096));
                let previous = blocks.range(..=address).next_back();
                assert!(previous.is_none_or(|(at, block)| at + block.0 <= address), "no block is there");
                let next = blocks.range(address..).next();
                assert!(next.is_none_or(|(at, _)| address + size <= *at), "no block is behind");
                if is_zero {
                    check(at, size, 0);
                }
                write(at, size, number);
                blocks.insert(address, (size, number));
            } else if !blocks.is_empty() {
                let place = random.below(blocks.len());
                let address = *blocks.keys().nth(place).expect("one of them");
                let (size, number) = blocks.remove(&address).expect("it is there");
                free(address, size, number);
            }
            if random.chance(5) {
                evenkeel_slab::purge_large(random.below(40));
            }
            let used: usize = blocks.values().map(|block| block.0.next_multiple_of(4096)).sum();
            assert_eq!(stats().in_large - before.in_large, used);
        }
        blocks.into_iter().for_each(|(address, (size, number))| free(address, size, number));
        assert_eq!(stats().in_large, before.in_large);
        assert_eq!(stats().for_large, before.for_large);
    });
}

fn free(address: usize, size: usize, number: u64) {
    let at = NonNull::new(std::ptr::with_exposed_provenance_mut(address)).expect("a block");
    check(at, size, number);
    // SAFETY: the block came from `take_large` with this size.
    unsafe { put_back_large(at, size) };
}

/// Pages that are resident, of a block's.
fn resident(at: NonNull<u8>, size: usize) -> usize {
    let mut pages = vec![0_u8; size.div_ceil(4096)];
    // SAFETY: the call only writes into `pages`, which has a byte for each page.
    assert_eq!(unsafe { libc::mincore(at.as_ptr().cast(), size, pages.as_mut_ptr()) }, 0);
    pages.into_iter().filter(|page| page & 1 == 1).count()
}

#[test]
fn pages_that_stay_free_go_back_to_the_system() {
    alone_on_a_thread(|| {
        const SIZE: usize = 64 << 10;
        let take = |number| {
            let (at, _) = take_large(SIZE).expect("there is memory");
            // SAFETY: the block is this long.
            unsafe { at.write_bytes(1, SIZE) };
            write(at, SIZE, number);
            at
        };
        let blocks: Vec<NonNull<u8>> = (0..8).map(take).collect();
        for at in blocks.iter().skip(1) {
            // SAFETY: the block came from `take_large`.
            unsafe { put_back_large(*at, SIZE) };
        }
        let all = 1 << 20;
        evenkeel_slab::purge_large(all);
        assert!(evenkeel_slab::purge_large(all) >= 7 * SIZE, "free for two looks");
        assert_eq!(evenkeel_slab::purge_large(all), 0, "once");
        check(blocks[0], SIZE, 0);
        assert_eq!(resident(blocks[0], SIZE), 16);
        assert_eq!(resident(blocks[3], SIZE), 0);
        // SAFETY: as above.
        unsafe { put_back_large(blocks[0], SIZE) };
    });
}
