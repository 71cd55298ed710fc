//! Throughput of a thread with a million keys over all slots, and duration of single operations on a slot
//! with a million keys. `cargo run --release -p evenkeel-store --example micro [keys]`
//!
//! With huge pages the longest times are the kernel's, which zeroes 2 MB at the first touch of each page;
//! `MIMALLOC_ALLOW_THP=0` shows the keyspace's own times.

use std::time::{Duration, Instant};

use evenkeel_store::memory::Counting;
use evenkeel_store::{Expire, Key, Keyspace, SLOTS, SlotGuard, ThreadContext};
use evenkeel_testkit::Random;
use mimalloc::MiMalloc;

#[global_allocator]
static MEMORY: Counting<MiMalloc> = Counting(MiMalloc);

/// Commands per batch of a pipeline.
const BATCH: usize = 16;

const NOW_MS: u64 = 1_700_000_000_000;

struct Bench {
    keyspace: Keyspace,
    ctx: ThreadContext,
    keys: usize,
    random: Random,
}

impl Bench {
    fn new(keys: usize) -> Bench {
        let keyspace = Keyspace::new(1, 1, NOW_MS, 1);
        let mut ctx = keyspace.thread_context();
        ctx.now_ms = NOW_MS;
        Bench { keyspace, ctx, keys, random: Random::new(1) }
    }

    /// Random names of keys, 16 bytes each, made before the measurement.
    fn names(&mut self, operations: usize) -> Vec<[u8; 16]> {
        (0..operations).map(|_| name(self.random.below(self.keys))).collect()
    }

    /// Calls `each` for every name, a batch at a time inside the gate; returns the time per call.
    fn run(
        &mut self,
        names: &[[u8; 16]],
        prefetch: bool,
        mut each: impl FnMut(&Keyspace, &mut ThreadContext, &Key<'_>),
    ) -> Duration {
        let start = Instant::now();
        for batch in names.chunks(BATCH) {
            let keys: Vec<Key<'_>> = batch.iter().map(|name| self.keyspace.key(0, name)).collect();
            self.keyspace.enter(&mut self.ctx);
            if prefetch {
                keys.iter().for_each(|key| self.keyspace.prefetch_slot(&self.ctx, key.place));
                keys.iter().for_each(|key| self.keyspace.prefetch_bucket(&self.ctx, key.place, key.hash));
                keys.iter().for_each(|key| self.keyspace.prefetch_entry(&self.ctx, key.place, key.hash, 1));
            }
            keys.iter().for_each(|key| each(&self.keyspace, &mut self.ctx, key));
            self.keyspace.leave(&mut self.ctx);
        }
        start.elapsed() / names.len() as u32
    }
}

fn name(at: usize) -> [u8; 16] {
    let mut name = *b"key:000000000000";
    let digits = format!("{at}");
    name[16 - digits.len()..].copy_from_slice(digits.as_bytes());
    name
}

fn set(keyspace: &Keyspace, ctx: &mut ThreadContext, key: &Key<'_>) {
    keyspace.hold_one(ctx, key.place).set_string(key, b"sixteen bytes...", Expire::Clear);
}

fn get(keyspace: &Keyspace, ctx: &mut ThreadContext, key: &Key<'_>) {
    let mut guard = keyspace.hold_one(ctx, key.place);
    let value = guard.string(key).expect("a string").expect("there");
    std::hint::black_box(value.byte(0));
}

/// SET with a value of another length each time: a new entry replaces the old entry.
fn set_other_length(keyspace: &Keyspace, ctx: &mut ThreadContext, key: &Key<'_>) {
    let len = ctx.random() as usize % 32;
    keyspace.hold_one(ctx, key.place).set_string(key, &[b'v'; 32][..len], Expire::Clear);
}

fn random_keys(keys: usize) {
    let mut bench = Bench::new(keys);
    let before = evenkeel_store::memory::used();
    let all: Vec<[u8; 16]> = (0..keys).map(name).collect();
    let insert = bench.run(&all, false, set);
    let used = evenkeel_store::memory::used() - before - all.len() * 16;
    println!("{keys} keys of 16 + 16 bytes over all slots: {:.1} bytes a key", used as f64 / keys as f64);
    println!("  insert in order        {insert:?}");
    let names = bench.names(keys);
    for (what, operation) in [
        ("get", get as fn(&Keyspace, &mut ThreadContext, &Key<'_>)),
        ("set", set),
        ("set, other length", set_other_length),
    ] {
        let plain = bench.run(&names, false, operation);
        let prefetching = bench.run(&names, true, operation);
        println!("  {what:22} {plain:?}, prefetching in batches of {BATCH} {prefetching:?}");
    }
}

/// CPU time of this thread: other processes do not count.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Calls `operation` for each name. A clock reading takes as long as an operation, so a first round measures
/// the mean, and a second the longest.
fn each(what: &str, names: &[Vec<u8>], single: bool, mut operation: impl FnMut(&[u8])) {
    if !single {
        let start = thread_time();
        names.iter().for_each(|name| operation(name));
        return println!("  {what:22} mean {:?}", (thread_time() - start) / names.len() as u32);
    }
    let time = |name: &Vec<u8>| {
        let start = thread_time();
        operation(name);
        thread_time() - start
    };
    let longest = names.iter().map(time).max().expect("there are names");
    println!("  {what:22} longest {longest:?}");
}

fn one_slot(keys: usize, single: bool) {
    println!("{keys} keys in one slot");
    let mut bench = Bench::new(keys);
    let names: Vec<Vec<u8>> = (0..keys).map(|at| format!("{{tag}}{at}").into_bytes()).collect();
    let (keyspace, ctx) = (&bench.keyspace, &mut bench.ctx);
    let mut with = |name: &[u8], f: &mut dyn FnMut(&mut SlotGuard<'_>, &Key<'_>)| {
        let key = keyspace.key(0, name);
        keyspace.enter(ctx);
        f(&mut keyspace.hold_one(ctx, key.place), &key);
        keyspace.leave(ctx);
    };
    let value = b"sixteen bytes...";
    each("insert", &names, single, |name| {
        with(name, &mut |guard, key| guard.set_string(key, value, Expire::Clear));
    });
    each("remove", &names, single, |name| with(name, &mut |guard, key| assert!(guard.remove(key))));
    each("insert with deadline", &names, single, |name| {
        with(name, &mut |guard, key| guard.set_string(key, value, Expire::At(NOW_MS)));
    });
    keyspace.enter(ctx);
    let (mut at, mut removed, mut longest, start) = (Some(0), 0, Duration::ZERO, thread_time());
    while let Some(from) = at {
        let start = thread_time();
        let swept = keyspace.hold_none(ctx).sweep(0, from, SLOTS, || true);
        longest = longest.max(thread_time() - start);
        (at, removed) = (swept.next, removed + swept.removed);
    }
    keyspace.leave(ctx);
    println!(
        "  sweep                  mean {:?}, longest visit {longest:?}",
        (thread_time() - start) / removed as u32
    );
}

fn main() {
    let keys = std::env::args().nth(1).map_or(1_000_000, |keys| keys.parse().expect("a number of keys"));
    random_keys(keys);
    one_slot(keys, false);
    one_slot(keys, true);
}
