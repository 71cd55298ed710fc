//! Compaction: sparse chunks are emptied by moving their blocks, and no block is lost or changed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use evenkeel_slab::{CHUNK, Compaction, Kind, stats};
use evenkeel_testkit::Random;

use super::{Block, alone, alone_on_a_thread, seed};

/// Begins a pass: surveys, chooses and marks. Returns the chunks that were chosen.
fn begin(random: &mut Random) -> (Compaction, usize) {
    let mut compaction = Compaction::new(Kind::Entry);
    while compaction.survey(|| random.chance(50)) {}
    let chosen = compaction.choose(usize::MAX).chunks;
    while compaction.mark(|| random.chance(50)) {}
    (compaction, chosen)
}

fn move_all(compaction: &Compaction, blocks: &mut [Block]) {
    for block in blocks.iter_mut().filter(|block| compaction.is_leaving(block.at.addr().get())) {
        block.relocate();
        assert!(!compaction.is_leaving(block.at.addr().get()), "it has come to a chunk that stays");
    }
}

fn end(mut compaction: Compaction, random: &mut Random) -> usize {
    while compaction.end(|| random.chance(50)) {}
    compaction.left()
}

/// Blocks of sizes around `mean`.
fn fill(random: &mut Random, blocks: usize, mean: usize) -> Vec<Block> {
    (0..blocks as u64).map(|number| Block::take(mean / 2 + random.below(mean), number)).collect()
}

/// Frees blocks at random, so that a third is left.
fn thin(random: &mut Random, blocks: &mut Vec<Block>) {
    for _ in 0..blocks.len() / 3 * 2 {
        blocks.swap_remove(random.below(blocks.len())).put_back();
    }
}

fn bytes(blocks: &[Block]) -> usize {
    blocks.iter().map(|block| block.size).sum()
}

/// Empties chunks until there is nothing to be gained, and checks how much memory is left.
fn compact(random: &mut Random, blocks: &mut [Block], before: usize) {
    let (mut passes, mut last) = (0, usize::MAX);
    while stats().in_chunks < last {
        last = stats().in_chunks;
        let (compaction, chosen) = begin(random);
        move_all(&compaction, blocks);
        assert_eq!(end(compaction, random), 0, "all blocks have been moved");
        passes += 1;
        println!("{chosen} of {} chunks, for {} in use", last / CHUNK, bytes(blocks) / CHUNK);
    }
    let (now, live) = (stats().in_chunks - before, bytes(blocks));
    println!("{passes} passes: {now} bytes of chunks for {live} in use");
    assert!(now < live + live / 9 + 6 * CHUNK, "{now} bytes of chunks for {live} in use");
}

#[test]
#[cfg_attr(miri, ignore = "too many blocks")]
fn sparse_chunks_are_emptied() {
    alone_on_a_thread(|| {
        let random = &mut Random::new(seed("sparse_chunks_are_emptied"));
        let before = stats().in_chunks;
        for mean in [60, 500, 2000] {
            let mut blocks = fill(random, 100_000_000 / mean, mean);
            thin(random, &mut blocks);
            assert!(stats().in_chunks - before > 5 * bytes(&blocks) / 2, "that is sparse");
            compact(random, &mut blocks, before);
            blocks.into_iter().for_each(Block::put_back);
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "too many blocks")]
fn chunks_of_an_ended_thread_are_emptied() {
    alone_on_a_thread(|| {
        let random = &mut Random::new(seed("chunks_of_an_ended_thread_are_emptied"));
        Block::take(8, 0).put_back(); // before the other thread ends: its heap is merged into this
        let before = stats().in_chunks;
        let mut from = Random::new(random.below(1000) as u64);
        let loaded = std::thread::spawn(move || fill(&mut from, 200_000, 300));
        let mut blocks = loaded.join().expect("it holds");
        thin(random, &mut blocks);
        Block::take(5000, 0).put_back(); // needs a run, and so merges the heap
        compact(random, &mut blocks, before);
        blocks.into_iter().for_each(Block::put_back);
    });
}

/// A thread lends its chunks, goes on, and frees blocks in them.
#[test]
#[cfg_attr(miri, ignore = "too many blocks")]
fn lent_chunks_are_emptied() {
    let _alone = alone();
    let seed = seed("lent_chunks_are_emptied");
    let (to_compact, compacts) = std::sync::mpsc::channel::<Vec<Block>>();
    let (to_lend, lends) = std::sync::mpsc::channel::<Vec<Block>>();
    let before = stats().in_chunks;
    let lending = std::thread::spawn(move || {
        let random = &mut Random::new(seed);
        for _ in 0..3 {
            let mut blocks = fill(random, 100_000, 300);
            thin(random, &mut blocks);
            evenkeel_slab::lend();
            to_compact.send(blocks).expect("it compacts");
            let mut blocks = lends.recv().expect("it compacts");
            for _ in 0..20_000 {
                blocks.swap_remove(random.below(blocks.len())).put_back();
                blocks.push(Block::take(1 + random.below(500), 1));
            }
            blocks.into_iter().for_each(Block::put_back);
        }
    });
    let compacting = std::thread::spawn(move || {
        let random = &mut Random::new(seed + 1);
        for mut blocks in compacts {
            compact(random, &mut blocks, before);
            to_lend.send(blocks).expect("it lends");
        }
    });
    lending.join().expect("it holds");
    compacting.join().expect("it holds");
}

/// A thread lends its chunks more often than there are heaps.
#[test]
#[cfg_attr(miri, ignore = "too many blocks")]
fn heaps_that_were_lent_are_used_again() {
    let _alone = alone();
    const BLOCK: usize = 17_000;
    let (to_compact, compacts) = std::sync::mpsc::channel::<Vec<usize>>();
    let (to_lend, lends) = std::sync::mpsc::channel::<()>();
    let before = stats().in_chunks;
    let put_back = |block: usize| {
        let block = std::ptr::NonNull::new(block as *mut u8).expect("a block has an address");
        // SAFETY: it comes from `take`, and is not used any more.
        unsafe { evenkeel_slab::put_back(block) };
    };
    let lending = std::thread::spawn(move || {
        for _ in 0..700 {
            let take = |_| evenkeel_slab::take(Kind::Entry, BLOCK).expect("there is memory").addr().get();
            let blocks: Vec<usize> = (0..9 * CHUNK / BLOCK).map(take).collect();
            evenkeel_slab::lend();
            to_compact.send(blocks).expect("it compacts");
            lends.recv().expect("it compacts");
        }
    });
    let compacting = std::thread::spawn(move || {
        for mut blocks in compacts {
            // Of each chunk a few blocks are left.
            let left = blocks.split_off(blocks.len() - 40);
            blocks.into_iter().for_each(put_back);
            let mut compaction = Compaction::new(Kind::Entry);
            compaction.survey(|| false);
            let found = compaction.found();
            assert!(found.bytes >= 40 * BLOCK && found.chunks > 0, "its chunks are here: {found:?}");
            left.into_iter().for_each(put_back);
            to_lend.send(()).expect("it lends");
        }
    });
    lending.join().expect("it holds");
    compacting.join().expect("it holds");
    assert!(stats().in_chunks < before + 20 * CHUNK);
}

#[test]
#[cfg_attr(miri, ignore = "too many blocks")]
fn marked_chunks_come_back_into_use() {
    alone_on_a_thread(|| {
        let random = &mut Random::new(seed("marked_chunks_come_back_into_use"));
        let mut blocks = fill(random, 200_000, 300);
        thin(random, &mut blocks);
        let full = stats().in_chunks;
        let mut compaction = Compaction::new(Kind::Entry);
        compaction.survey(|| false);
        compaction.choose_all();
        assert!(compaction.mark(|| true) && compaction.mark(|| true), "that was a part of the marks");
        end(compaction, random);
        for is_dropped in [false, true] {
            let (mut compaction, chosen) = begin(random);
            assert!(chosen > 5);
            let some = blocks.len() / 2;
            move_all(&compaction, &mut blocks[..some]);
            if is_dropped {
                compaction.end(|| true);
                drop(compaction);
            } else {
                assert!(end(compaction, random) > 0, "half of the blocks are still there");
            }
        }
        let more = fill(random, 130_000, 300);
        let now = stats().in_chunks;
        assert!(now < full + full / 20, "{now} bytes of chunks: free blocks are not used, of {full}");
        blocks.into_iter().chain(more).for_each(Block::put_back);
    });
}

/// One thread compacts its chunks while this thread and another take and free blocks.
#[test]
#[cfg_attr(miri, ignore = "too many blocks")]
fn blocks_are_freed_and_taken_by_others_meanwhile() {
    let _alone = alone();
    let seed = seed("blocks_are_freed_and_taken_by_others_meanwhile");
    let shards: Vec<Mutex<Vec<Block>>> = (0..256).map(|_| Mutex::default()).collect();
    let is_over = AtomicBool::new(false);
    let churn = |random: &mut Random| {
        let mut shard = shards[random.below(shards.len())].lock().expect("no thread panics");
        let wanted = random.below(800);
        while shard.len() > wanted {
            let at = random.below(shard.len());
            shard.swap_remove(at).put_back();
        }
        while shard.len() < wanted {
            shard.push(Block::take(1 + random.below(900), random.below(1 << 20) as u64));
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut random = Random::new(seed + 1);
            while !is_over.load(Relaxed) {
                churn(&mut random);
                evenkeel_slab::settle();
            }
        });
        scope.spawn(|| {
            let random = &mut Random::new(seed);
            (0..2000).for_each(|_| churn(random));
            let mut gone = 0;
            for _ in 0..60 {
                let (compaction, chosen) = begin(random);
                for shard in &shards {
                    move_all(&compaction, &mut shard.lock().expect("no thread panics"));
                    if random.chance(20) {
                        churn(random);
                    }
                }
                evenkeel_slab::settle();
                gone += chosen - end(compaction, random);
                (0..200).for_each(|_| churn(random));
            }
            println!("{gone} chunks were emptied");
            is_over.store(true, Relaxed);
            assert!(gone > 60 && other.join().is_ok());
            shards.iter().for_each(|shard| {
                shard.lock().expect("no thread panics").drain(..).for_each(Block::put_back);
            });
        });
    });
}
