//! Threads that free each other's blocks, begin and end.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;

use evenkeel_slab::{settle, stats};
use evenkeel_testkit::Random;

use super::{Block, alone, seed};

/// Each thread takes blocks, keeps some, sends some to others and frees the blocks that it receives. Threads
/// end and new threads take their heaps over, while their blocks are still on the way.
#[test]
fn blocks_travel() {
    let _alone = alone();
    const THREADS: usize = 4;
    let (generations, rounds) = if cfg!(miri) { (2, 60) } else { (12, 20_000) };
    let seed = seed("blocks_travel");
    let number = AtomicU64::new(0);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel::<Block>()).unzip();
    let mut receivers: Vec<_> = receivers.into_iter().map(Some).collect();
    for generation in 0..generations {
        std::thread::scope(|scope| {
            let (number, senders) = (&number, &senders);
            let work = |index: usize, receiver: mpsc::Receiver<Block>| {
                move || {
                    let mut random = Random::new(seed ^ (generation * THREADS + index) as u64);
                    let mut own = Vec::new();
                    for _ in 0..rounds {
                        let most = if random.chance(90) { 120 } else { 5000 };
                        let size = 1 + random.below(most);
                        own.push(Block::take(size, number.fetch_add(1, Relaxed)));
                        if random.chance(60) {
                            let block = own.swap_remove(random.below(own.len()));
                            senders[random.below(THREADS)].send(block).expect("the receivers stay");
                        }
                        if random.chance(30) && !own.is_empty() {
                            own.swap_remove(random.below(own.len())).put_back();
                        }
                        receiver.try_iter().take(3).for_each(Block::put_back);
                        if random.chance(2) {
                            settle();
                        }
                    }
                    own.into_iter().for_each(Block::put_back);
                    receiver
                }
            };
            let threads: Vec<_> = receivers
                .iter_mut()
                .enumerate()
                .map(|(index, receiver)| scope.spawn(work(index, receiver.take().expect("it came back"))))
                .collect();
            for (thread, receiver) in threads.into_iter().zip(&mut receivers) {
                *receiver = Some(thread.join().expect("it holds"));
            }
        });
    }
    drop(senders);
    receivers.into_iter().flatten().for_each(|receiver| receiver.iter().for_each(Block::put_back));
}

/// A thread takes blocks and another frees them: the memory is used again, however rarely the owner looks.
#[test]
#[cfg_attr(miri, ignore = "too many blocks")]
fn blocks_freed_by_another_thread_are_used_again() {
    let _alone = alone();
    const ROUNDS: usize = 40;
    let (sender, receiver) = mpsc::sync_channel::<Vec<Block>>(1);
    let (ready, is_ready) = mpsc::channel();
    let freeing = std::thread::spawn(move || {
        receiver.iter().for_each(|blocks| {
            blocks.into_iter().for_each(Block::put_back);
            ready.send(()).expect("the other one stays");
        });
    });
    let taking = std::thread::spawn(move || {
        let before = stats().in_runs;
        let mut most = 0;
        for round in 0..ROUNDS {
            sender.send((0..20_000).map(|number| Block::take(200, number)).collect()).expect("it receives");
            most = most.max(stats().in_runs.saturating_sub(before));
            is_ready.recv().expect("it has freed them");
            if round == ROUNDS / 2 {
                settle();
            }
        }
        assert!(most < 3 * 20_000 * 200, "{most} bytes for 4 MB at a time");
    });
    taking.join().expect("it holds");
    freeing.join().expect("it holds");
}

/// Blocks of an ended thread, freed by a thread that was there before, are used again by this thread.
#[test]
#[cfg_attr(miri, ignore = "too many blocks")]
fn the_heap_of_an_ended_thread_is_taken_over() {
    let _alone = alone();
    const BLOCKS: u64 = 100_000;
    let taking = || (0..BLOCKS).map(|number| Block::take(200, number)).collect::<Vec<_>>();
    std::thread::spawn(move || {
        // Before the loading thread ends, so that this thread does not begin with its heap.
        Block::take(8, 0).put_back();
        let loaded = std::thread::spawn(taking).join().expect("it holds");
        let full = stats().in_runs;
        let mut blocks = loaded;
        for _ in 0..4 {
            blocks.drain(..).for_each(Block::put_back);
            blocks = taking();
        }
        let now = stats().in_runs;
        assert!(now < full + full / 4, "{now} bytes after {full}");
        blocks.into_iter().for_each(Block::put_back);
    })
    .join()
    .expect("it holds");
}
