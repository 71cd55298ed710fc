//! A thread against a plain list of blocks: taking or freeing a block never writes to another block.

use evenkeel_slab::{CHUNK, SIZE_MAX, stats};
use evenkeel_testkit::Random;

use super::{Block, alone_on_a_thread, seed};

/// Draws sizes of many kinds: small sizes, the bounds of classes, and all sizes.
fn size(random: &mut Random) -> usize {
    match random.below(10) {
        0..4 => 1 + random.below(100),
        4..7 => {
            [256, 1024, 4096, SIZE_MAX, 8, 16, 264, 1040][random.below(8)].min(SIZE_MAX - 1) + random.below(2)
        }
        _ => 1 + random.below(SIZE_MAX),
    }
}

#[test]
fn blocks_keep_what_is_in_them() {
    alone_on_a_thread(|| {
        let mut random = Random::new(seed("blocks_keep_what_is_in_them"));
        let (mut blocks, mut number) = (Vec::new(), 0);
        let steps = if cfg!(miri) { 300 } else { 300_000 };
        for step in 0..steps {
            // Now mostly taking, now mostly freeing.
            let is_growing = step / (steps / 6) % 2 == 0;
            if random.chance(if is_growing { 70 } else { 30 }) || blocks.is_empty() {
                number += 1;
                blocks.push(Block::take(size(&mut random), number));
            } else {
                blocks.swap_remove(random.below(blocks.len())).put_back();
            }
        }
        blocks.into_iter().for_each(Block::put_back);
    });
}

/// Freed memory is used again, and whole chunks go back.
#[test]
#[cfg_attr(miri, ignore = "too many blocks")]
fn freed_chunks_are_given_back() {
    alone_on_a_thread(|| {
        const BLOCKS: usize = 200_000;
        let before = stats().in_chunks;
        let fill = |size| (0..BLOCKS).map(|number| Block::take(size, number as u64)).collect::<Vec<_>>();
        let blocks = fill(300);
        let full = stats().in_chunks - before;
        let needed = BLOCKS * 304;
        assert!(full >= needed && full < needed + needed / 50 + 8 * CHUNK, "{full} for {needed}");
        blocks.into_iter().for_each(Block::put_back);
        let left = stats().in_chunks.saturating_sub(before);
        assert!(left <= 8 * CHUNK, "{left} bytes of chunks without a block");
        // Other sizes take the same chunks.
        let idle = stats().idle;
        let blocks = fill(120);
        assert!(stats().idle < idle, "chunks that were there are used again");
        blocks.into_iter().for_each(Block::put_back);
    });
}

/// Sizes of which there are few blocks share runs.
#[test]
#[cfg_attr(miri, ignore = "too many blocks")]
fn rare_sizes_share_runs() {
    alone_on_a_thread(|| {
        let before = stats().in_runs;
        let blocks: Vec<_> = (0..200).map(|number| Block::take(4000 + 64 * number, number as u64)).collect();
        let (bytes, taken) = (blocks.iter().map(|block| block.size).sum::<usize>(), stats().in_runs - before);
        assert!(taken < 6 * bytes, "{taken} bytes for {bytes}");
        blocks.into_iter().for_each(Block::put_back);
    });
}
