//! A process takes the memory of another over.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::ptr::NonNull;

use evenkeel_slab::{Kind, Passed, SIZE_MAX, attach, pass, put_back, put_back_large, share, suspend};
use evenkeel_testkit::Random;

const ROLE: &str = "EVENKEEL_SLAB_ROLE";

#[test]
fn another_process_takes_all_blocks_over() {
    match std::env::var(ROLE).as_deref() {
        Err(_) => start("first", &[]),
        Ok("first") => first(),
        Ok(_) => second(),
    }
}

/// Runs this test in another process.
fn start(role: &str, variables: &[(&str, String)]) {
    let own = std::env::current_exe().expect("a program");
    let mut command = Command::new(own);
    command.args(["transfer::another_process_takes_all_blocks_over", "--exact", "--nocapture"]);
    command.env(ROLE, role).envs(variables.iter().map(|(name, value)| (name, value)));
    assert!(command.status().expect("it starts").success(), "the {role} process");
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Block {
    at: NonNull<u8>,
    size: usize,
    number: u8,
}

fn take(size: usize, number: u8) -> Block {
    let at = if size > SIZE_MAX {
        evenkeel_slab::take_large(size).expect("there is memory").0
    } else {
        evenkeel_slab::take(Kind::ALL[size % Kind::ALL.len()], size).expect("there is memory")
    };
    // SAFETY: the block is this long.
    unsafe { at.write_bytes(number, size) };
    Block { at, size, number }
}

impl Block {
    fn free(self) {
        // SAFETY: the block is this long, and in use.
        let bytes = unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.size) };
        assert!(bytes.iter().all(|byte| *byte == self.number), "the bytes are those of the first process");
        // SAFETY: the block came from `take`.
        unsafe { if self.size > SIZE_MAX { put_back_large(self.at, self.size) } else { put_back(self.at) } }
    }
}

fn size(random: &mut Random) -> usize {
    match random.below(50) {
        0 => 1 + random.below(3 << 20),
        1..5 => 1 + random.below(200 << 10),
        _ => 1 + random.below(2_000),
    }
}

/// Takes blocks on several threads, each of which frees blocks of others.
fn churn(seed: u64) -> Vec<Block> {
    struct Blocks(Vec<Block>);
    // SAFETY: blocks may be used and freed by any thread.
    unsafe impl Send for Blocks {}
    let all = std::sync::Mutex::new(Blocks(Vec::new()));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let all = &all;
            scope.spawn(move || {
                let mut random = Random::new(seed + thread);
                for _ in 0..3_000 {
                    let block = take(size(&mut random), random.below(256) as u8);
                    let mut all = all.lock().expect("no thread panics");
                    all.0.push(block);
                    if random.chance(45) {
                        let place = random.below(all.0.len());
                        all.0.swap_remove(place).free();
                    }
                }
            });
        }
    });
    all.into_inner().expect("no thread panics").0
}

/// The heap of a thread that ends while the process does not use the memory goes to another thread later.
fn end_a_thread_meanwhile() {
    take(8, 1).free();
    let walk = || {
        evenkeel_slab::Walk::new().go_on(|| false);
        evenkeel_slab::stats().in_runs
    };
    let before = walk();
    let (may_end, waits) = std::sync::mpsc::channel::<()>();
    let (says, has_blocks) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        (1..50).for_each(|size| take(size * 20, 1).free());
        says.send(()).expect("the other thread waits");
        waits.recv().expect_err("the sender is dropped");
    });
    has_blocks.recv().expect("the thread lives");
    let suspended = suspend();
    drop(may_end);
    thread.join().expect("it does not panic");
    drop(suspended);
    assert!(evenkeel_slab::stats().in_runs > before);
    assert_eq!(walk(), before);
}

fn first() {
    share();
    end_a_thread_meanwhile();
    let mut blocks = churn(crate::seed("first"));
    // The list of the blocks is a block, too.
    let table = evenkeel_slab::take_large(blocks.len() * size_of::<Block>()).expect("there is memory").0;
    // SAFETY: the block is this long.
    unsafe { table.cast::<Block>().copy_from_nonoverlapping(NonNull::from(&mut blocks[0]), blocks.len()) };
    let (file, passed) = pass().expect("the memory is a file's");
    let file = file.try_clone_to_owned().expect("a descriptor");
    // SAFETY: the descriptor is open; the child inherits it.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) }, 0);
    let table = table.addr().get();
    let place = format!("{} {} {} {} {table}", file.as_raw_fd(), passed.address, passed.chunks, blocks.len());
    let suspended = suspend();
    assert!(!suspended.is_taken());
    start("second", &[("EVENKEEL_SLAB_PLACE", place)]);
    assert!(evenkeel_slab::take(Kind::Entry, 8).is_none(), "the memory is the other process'");
    assert_eq!(evenkeel_slab::stats().in_runs, 0);
    assert!(suspended.is_taken());
    std::mem::forget(suspended); // threads end without using their heaps
}

fn second() {
    let place = std::env::var("EVENKEEL_SLAB_PLACE").expect("the first process sets it");
    let words: Vec<u64> = place.split(' ').map(|word| word.parse().expect("a number")).collect();
    // SAFETY: the descriptor was inherited, and nothing else owns it.
    let file = || unsafe { OwnedFd::from_raw_fd(libc::dup(words[0] as i32)) };
    let passed = Passed { address: words[1], chunks: words[2] };
    for wrong in
        [Passed { chunks: passed.chunks + 1, ..passed }, Passed { chunks: passed.chunks * 2, ..passed }]
    {
        assert!(attach(file(), wrong).is_err());
    }
    assert!(attach(file(), Passed { address: passed.address + 4096, ..passed }).is_err());
    let attached = attach(file(), passed).expect("the range is free here");
    assert!(attach(file(), passed).is_err(), "once");
    assert!(evenkeel_slab::take(Kind::Entry, 8).is_none(), "not before it is taken over");
    // SAFETY: the program is the same, and the other process waits for the end of this one.
    unsafe { attached.take_over() };
    let table: *const Block = std::ptr::with_exposed_provenance(words[4] as usize);
    // SAFETY: the other process has put so many blocks there.
    let blocks = unsafe { std::slice::from_raw_parts(table, words[3] as usize) };
    let (before, bytes) = (evenkeel_slab::stats(), blocks.iter().map(|block| block.size).sum::<usize>());
    assert!(before.in_runs + before.in_large >= bytes && before.in_runs > 0 && before.in_large > 0);
    let mut more = churn(crate::seed("second"));
    let (one, other) = blocks.split_at(blocks.len() / 2);
    one.iter().for_each(|block| block.free());
    more.drain(..).for_each(Block::free);
    other.iter().for_each(|block| block.free());
    take(8, 1).free(); // this thread has a heap now, into which a walk merges the others
    for _ in 0..2 {
        evenkeel_slab::Walk::new().go_on(|| false);
    }
    let after = evenkeel_slab::stats();
    let table = size_of_val(blocks).next_multiple_of(4096);
    assert_eq!(after.in_large, table, "all large blocks but the table");
    assert!(after.in_runs <= before.in_runs / 8, "{after:?} after {before:?}");
}
