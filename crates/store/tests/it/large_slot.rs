//! A hash tag with a million keys: no single operation on its slot takes long.

use std::time::Duration;

use evenkeel_store::Expire;

use crate::memory::guard as held_memory;
use crate::world::{World, random, scaled, thread_time};

/// Durations of single operations: the longest show pauses.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn time(&mut self, operation: impl FnOnce()) {
        let start = thread_time();
        operation();
        self.0.push(thread_time() - start);
    }

    fn print(mut self, what: &str) {
        self.0.sort_unstable();
        let at = |share: f64| self.0[((self.0.len() - 1) as f64 * share) as usize];
        let sum: Duration = self.0.iter().sum();
        let mean = sum / self.0.len() as u32;
        println!(
            "{what}: {} in {sum:?}, mean {mean:?}, 99.9% {:?}, 99.999% {:?}, longest {:?}",
            self.0.len(),
            at(0.999),
            at(0.99999),
            at(1.0)
        );
    }
}

/// The durations are printed, not asserted: on a busy machine the longest of a million depends on its
/// neighbours.
#[test]
fn no_operation_on_a_large_slot_is_long() {
    let mut random = random("large_slot");
    let keys = scaled(1500, 150_000, 1_000_000);
    let names: Vec<Vec<u8>> = (0..keys).map(|at| format!("{{tag}}{at:09}").into_bytes()).collect();
    let [mut inserts, mut reads, mut deadlines, mut removals] =
        [0; 4].map(|_| Times(Vec::with_capacity(keys)));
    let before = held_memory();
    let mut world = World::new(1);
    for (at, name) in names.iter().enumerate() {
        let expire = if at % 3 == 0 { Expire::At(u64::MAX) } else { Expire::Clear };
        inserts.time(|| world.set(0, name, b"sixteen byte val", expire));
    }
    assert_eq!((world.len(0), world.timed_len(0)), (keys, keys.div_ceil(3)));
    world.verify();
    let (entries, tables) = (keys * 50, world.none(|guard| guard.keyspace().table_memory(guard.ctx, 0)));
    assert!(held_memory() - before > (entries / 2) as isize);

    for _ in 0..keys {
        let name = &names[random.below(keys)];
        reads.time(|| assert!(world.one(0, name, |guard, key| guard.read(key).is_some())));
    }

    for name in &names {
        deadlines.time(|| assert!(world.one(0, name, |guard, key| guard.set_deadline(key, Some(u64::MAX)))));
    }

    for name in &names {
        removals.time(|| assert!(world.one(0, name, |guard, key| guard.remove(key))));
    }
    assert_eq!((world.len(0), world.timed_len(0)), (0, 0));
    world.verify();
    drop(world);
    assert_eq!(held_memory(), before);

    println!("tables: {:.1} bytes a key", (tables as f64 - 524_288.0) / keys as f64);
    inserts.print("inserts");
    reads.print("reads");
    deadlines.print("deadlines");
    removals.print("removals");
}
