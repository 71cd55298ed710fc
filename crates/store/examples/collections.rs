//! Times the operations of collections by size: `cargo run --release --example collections [elements]`.

use std::hint::black_box;
use std::time::Instant;

use evenkeel_store::collection::{Collection, Hash, List, Set, ZSet};
use evenkeel_store::memory::{Counting, used};
use evenkeel_store::{Expire, Hasher};

#[global_allocator]
static ALLOCATOR: Counting<mimalloc::MiMalloc> = Counting(mimalloc::MiMalloc);

/// Operations per figure.
const TIMES: u64 = 1_000_000;

fn member(number: u64) -> [u8; 16] {
    let mut member = [0; 16];
    for (at, byte) in member.iter_mut().enumerate() {
        *byte = b"0123456789abcdef"[(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (4 * at)) as usize & 15];
    }
    member
}

fn time(name: &str, size: u64, mut operation: impl FnMut(u64)) {
    let started = Instant::now();
    for round in 0..TIMES {
        operation(round.wrapping_mul(0xd134_2543_de82_ef95) >> 8);
    }
    println!("{name:28} {size:9} {:7.0} ns", started.elapsed().as_nanos() as f64 / TIMES as f64);
}

fn main() {
    let sizes: Vec<u64> = match std::env::args().nth(1) {
        Some(size) => vec![size.parse().expect("a number of elements")],
        None => vec![10, 100, 10_000, 1_000_000],
    };
    let hasher = Hasher::default();
    for size in sizes {
        let per = |before: usize| (used() - before) as f64 / size as f64;
        let before = used();
        let mut set = Set::new();
        (0..size).for_each(|number| _ = set.insert(&hasher, &member(number)));
        println!("set                 {:.1} B per member", per(before));
        time("SISMEMBER", size, |r| _ = black_box(set.contains(&hasher, &member(r % size))));
        time("SADD, SREM by turns", size, |r| {
            let member = member(r % (2 * size));
            if !set.insert(&hasher, &member) {
                set.remove(&hasher, &member);
            }
        });
        let before = used();
        let mut hash = Hash::new();
        (0..size)
            .for_each(|number| _ = hash.set(&hasher, 0, &member(number), b"sixteen bytes...", Expire::Clear));
        println!("hash                {:.1} B per field", per(before));
        time("HGET", size, |r| _ = black_box(hash.get(&hasher, 0, &member(r % size))));
        time("HSET, same length", size, |r| {
            _ = hash.set(&hasher, 0, &member(r % size), b"another sixteen.", Expire::Clear)
        });
        let before = used();
        (0..size).for_each(|n| _ = hash.set_deadline(&hasher, 0, &member(n), Some(1000 + n % 1000)));
        println!("deadlines           {:.1} B per field", per(before));
        time("HLEN, half expired", size, |_| _ = black_box(hash.len(1500)));
        time("HPEXPIREAT", size, |r| {
            _ = hash.set_deadline(&hasher, 0, &member(r % size), Some(1000 + r % 1000))
        });
        let (half, from) = (hash.expired(1500).max(1), Instant::now());
        while hash.purge(&hasher, 1500, 64, |_| {}).0 > 0 {}
        println!("expired fields      {:.0} ns each", from.elapsed().as_nanos() as f64 / half as f64);
        let before = used();
        let mut sorted = ZSet::new();
        (0..size).for_each(|n| _ = sorted.insert(&hasher, &member(n), (n * 7919 % size) as f64));
        println!("sorted set          {:.1} B per member", per(before));
        time("ZSCORE", size, |r| _ = black_box(sorted.score(&hasher, &member(r % size))));
        time("ZRANK", size, |r| {
            let member = member(r % size);
            let score = sorted.score(&hasher, &member).expect("it is there");
            black_box(sorted.rank(&member, score));
        });
        time("ZADD, new score", size, |r| {
            _ = sorted.insert(&hasher, &member(r % size), (r >> 20) as f64 % size as f64);
        });
        let before = used();
        let mut list = List::new();
        (0..size).for_each(|number| list.push_back(&member(number)));
        println!("list                {:.1} B per element", per(before));
        time("LINDEX", size, |r| _ = black_box(list.get(r % size)));
        time("LPUSH, RPOP", size, |r| {
            list.push_front(&member(r));
            drop(list.remove(size..size + 1));
        });
        time("LRANGE of 100", size, |r| {
            let at = r % size;
            list.range(at..at + 100).for_each(|element| _ = black_box(element.len()));
        });
        time("clone, and a write", size, |r| {
            let clone = set.clone();
            set.insert(&hasher, &member(r % size));
            drop(clone);
        });
    }
}
