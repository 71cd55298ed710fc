//! Eviction: the evicted keys under each policy.

use evenkeel_store::evict::{Order, Policy, Pool, idle_ms, lfu_counter, lfu_new, lru_clock};
use evenkeel_store::{Access, Expire};

use crate::world::{START_MS, World, random, scaled};

const ALL_LRU: Policy = Policy { volatile_only: false, order: Order::Lru };

fn name(at: usize) -> Vec<u8> {
    format!("key:{at}").into_bytes()
}

/// A name in a fixed slot.
fn tagged(at: usize) -> Vec<u8> {
    format!("{{tag}}{at}").into_bytes()
}

fn evict(world: &mut World, policy: Policy, keys: usize) {
    let mut pool = Pool::default();
    for _ in 0..keys {
        assert!(world.none(|guard| guard.evict(policy, 5, 1, &mut pool)), "there are keys that may go");
    }
    assert_eq!(world.keyspace.total().evicted, keys as u64);
}

fn survivors(world: &mut World, names: impl Iterator<Item = Vec<u8>>) -> usize {
    names.filter(|key| world.one(0, key, |guard, key| guard.peek(key).is_some())).count()
}

/// Of 10,000 keys, half of them read a minute ago and the rest only written long ago, 4,000 are evicted.
#[test]
fn lru_keeps_recently_read_keys() {
    let keys = scaled(500, 10_000, 10_000);
    for name in [name, tagged] {
        let mut world = World::new(4);
        (0..keys).for_each(|at| world.set(0, &name(at), b"value", Expire::Clear));
        world.ctx.now_ms += 3_600_000;
        (0..keys).step_by(2).for_each(|at| drop(world.get(0, &name(at))));
        world.ctx.now_ms += 60_000;
        evict(&mut world, ALL_LRU, keys * 4 / 10);
        let read = survivors(&mut world, (0..keys).step_by(2).map(name));
        println!("LRU: {read} of {} keys that were read survive", keys / 2);
        assert!(read * 100 >= keys / 2 * 98);
        assert_eq!(world.len(0), keys - keys * 4 / 10);
        world.verify();
    }
}

#[test]
fn lfu_keeps_frequently_read_keys() {
    let keys = scaled(500, 10_000, 10_000);
    let mut world = World::new(1);
    world.ctx.access = Access::Lfu { log_factor: 10, decay_minutes: 1 };
    (0..keys).for_each(|at| world.set(0, &name(at), b"value", Expire::Clear));
    for _ in 0..30 {
        (0..keys).step_by(2).for_each(|at| drop(world.get(0, &name(at))));
    }
    evict(&mut world, Policy { volatile_only: false, order: Order::Lfu }, keys * 4 / 10);
    let read = survivors(&mut world, (0..keys).step_by(2).map(name));
    println!("LFU: {read} of {} keys that were read often survive", keys / 2);
    assert!(read * 100 >= keys / 2 * 95);
}

#[test]
fn the_nearest_deadline_goes_first() {
    let keys = scaled(500, 5000, 5000);
    let mut world = World::new(1);
    for at in 0..keys {
        let deadline = START_MS + 1_000_000 + at as u64 * 1000;
        world.set(0, &name(at), b"value", Expire::At(deadline));
        world.set(0, &tagged(at), b"no deadline", Expire::Clear);
    }
    evict(&mut world, Policy { volatile_only: true, order: Order::Ttl }, keys / 2);
    assert_eq!(survivors(&mut world, (0..keys).map(tagged)), keys, "keys without a deadline stay");
    let far = survivors(&mut world, (keys / 2..keys).map(name));
    println!("TTL: {far} of {} keys with far deadlines survive", keys / 2);
    assert!(far * 100 >= keys / 2 * 85);
}

#[test]
fn random_takes_from_all_databases() {
    let keys = scaled(100, 2000, 2000);
    let mut world = World::new(3);
    for at in 0..keys {
        (0..3).for_each(|db| world.set(db, &name(at), b"value", Expire::Clear));
    }
    evict(&mut world, Policy { volatile_only: false, order: Order::Random }, keys);
    for db in 0..3 {
        let gone = keys - world.len(db);
        assert!((keys / 5..keys / 2).contains(&gone), "{gone} of {keys} from database {db}");
    }
}

/// A few keys with a deadline among many without, all in a single slot, are all found.
#[test]
fn volatile_policies_find_the_few_keys_with_deadlines() {
    let keys = scaled(1000, 30_000, 300_000);
    for order in [Order::Lru, Order::Lfu, Order::Ttl, Order::Random] {
        let mut world = World::new(2);
        (0..keys).for_each(|at| world.set(1, &tagged(at), b"value", Expire::Clear));
        let policy = Policy { volatile_only: true, order };
        assert!(!world.none(|guard| guard.evict(policy, 5, 1, &mut Pool::default())), "none qualifies");
        for at in (0..keys).step_by(keys / 10) {
            world.one(1, &tagged(at), |guard, key| guard.set_deadline(key, Some(u64::MAX)));
        }
        // The trace of a removed deadline must not mislead.
        world.one(1, &tagged(1), |guard, key| guard.set_deadline(key, Some(1 << 50)));
        world.one(1, &tagged(1), |guard, key| guard.set_deadline(key, None));
        evict(&mut world, policy, 10);
        assert!(!world.none(|guard| guard.evict(policy, 5, 1, &mut Pool::default())), "all are gone");
        assert_eq!((world.len(1), world.timed_len(1)), (keys - 10, 0));
        world.verify();
    }
}

/// The last of a slot's many keys is found.
#[test]
fn a_lonely_key_is_evicted() {
    let keys = scaled(1000, 20_000, 100_000);
    let mut world = World::new(1);
    (0..keys).for_each(|at| world.set(0, &tagged(at), b"value", Expire::Clear));
    (1..keys).for_each(|at| assert!(world.one(0, &tagged(at), |guard, key| guard.remove(key))));
    assert!(world.none(|guard| guard.evict(ALL_LRU, 5, 1, &mut Pool::default())));
    assert!(!world.none(|guard| guard.evict(ALL_LRU, 5, 1, &mut Pool::default())));
}

/// A candidate used since its selection stays: the pool's entries are checked again.
#[test]
fn a_candidate_that_was_used_stays() {
    let mut world = World::new(1);
    let mut pool = Pool::default();
    (0..20).for_each(|at| world.set(0, &name(at), b"value", Expire::Clear));
    world.ctx.now_ms += 500_000;
    (20..300).for_each(|at| world.set(0, &name(at), b"value", Expire::Clear));
    world.ctx.now_ms += 500_000;
    // Now the pool is full of the first twenty keys, which are then used.
    assert!(world.none(|guard| guard.evict(ALL_LRU, 300, 1, &mut pool)));
    let there = survivors(&mut world, (0..20).map(name));
    (0..20).for_each(|at| drop(world.get(0, &name(at))));
    for _ in 0..100 {
        assert!(world.none(|guard| guard.evict(ALL_LRU, 5, 1, &mut pool)));
    }
    let left = survivors(&mut world, (0..20).map(name));
    assert!(left + 1 >= there, "{left} of {there} that were used are left");
}

/// A pool survives all changes of its candidates.
#[test]
fn candidates_may_vanish() {
    let mut random = random("candidates_may_vanish");
    let mut world = World::new(3);
    let mut pool = Pool::default();
    for _ in 0..scaled(5, 100, 500) {
        for _ in 0..random.below(100) {
            let (db, key) = (random.below(3) as u32, name(random.below(300)));
            world.set(db, &key, b"value", Expire::At(START_MS + 1_000_000));
        }
        let order = [Order::Lru, Order::Lfu, Order::Ttl, Order::Random][random.below(4)];
        let policy = Policy { volatile_only: random.chance(50), order };
        let there = (0..3).any(|db| world.len(db) > 0);
        assert_eq!(world.none(|guard| guard.evict(policy, 10, 1, &mut pool)), there);
        match random.below(4) {
            0 => drop(world.all(|guard| guard.flush(random.below(3)))),
            1 => world.all(|guard| guard.swap(0, 2)),
            2 => (0..300).for_each(|at| _ = world.one(0, &name(at), |guard, key| guard.remove(key))),
            _ => world.ctx.now_ms += 1000,
        }
    }
    // A candidate in a missing database does not create that database: a database takes half a megabyte.
    let mut world = World::new(3);
    (0..50).for_each(|at| world.set(0, &name(at), b"value", Expire::Clear));
    assert!(world.none(|guard| guard.evict(ALL_LRU, 10, 1, &mut pool)));
    world.all(|guard| guard.swap(0, 1));
    (0..50).for_each(|at| _ = world.one(1, &name(at), |guard, key| guard.remove(key)));
    assert!(!world.none(|guard| guard.evict(ALL_LRU, 10, 1, &mut pool)));
    assert_eq!(world.none(|guard| guard.keyspace().table_memory(guard.ctx, 0)), 0);
    world.verify();
}

/// Threads read the clock at different times: an access in the future counts as recent.
#[test]
fn an_access_from_the_future_is_recent() {
    let now = START_MS;
    assert_eq!(idle_ms(lru_clock(now), now), 0);
    assert_eq!(idle_ms(lru_clock(now), now + 5_000), 5_000);
    assert_eq!(idle_ms(lru_clock(now + 1_000), now), 0);
    assert_eq!(idle_ms(lru_clock(now + 60_000), now), 0);
    assert_eq!(idle_ms(lru_clock(now), now + 100 * 86_400_000), 100 * 86_400_000);
    assert_eq!(lfu_counter(lfu_new(now), now, 1), 5);
    assert_eq!(lfu_counter(lfu_new(now), now + 3 * 60_000, 1), 2);
    assert_eq!(lfu_counter(lfu_new(now + 60_000), now, 1), 5);
    assert_eq!(lfu_counter(lfu_new(now), now + 1_000_000 * 60_000, 0), 5, "0 minutes: no decay");
}

#[test]
fn reads_and_writes_leave_their_marks() {
    let mut world = World::new(1);
    let access =
        |world: &mut World| world.one(0, b"k", |guard, key| guard.peek(key).expect("there").access());
    world.set(0, b"k", b"value", Expire::Clear);
    assert_eq!(access(&mut world), lru_clock(START_MS));
    world.ctx.now_ms += 10_000;
    world.ctx.no_touch = true;
    world.get(0, b"k");
    assert_eq!(access(&mut world), lru_clock(START_MS), "NO-TOUCH leaves no mark");
    world.set(0, b"k", b"other", Expire::Clear);
    assert_eq!(access(&mut world), lru_clock(START_MS + 10_000), "a new value is new");
    world.ctx.no_touch = false;
    world.ctx.now_ms += 10_000;
    world.get(0, b"k");
    assert_eq!(access(&mut world), lru_clock(START_MS + 20_000));
    // Under LFU a key keeps its counter, whatever length its next value has.
    world.ctx.access = Access::Lfu { log_factor: 0, decay_minutes: 0 };
    world.one(0, b"k", |guard, key| guard.remove(key));
    world.set(0, b"k", b"value", Expire::Clear);
    world.set(0, b"k", b"VALUE", Expire::Clear);
    world.set(0, b"k", b"another length", Expire::Clear);
    world.set(0, b"k", b"and a deadline", Expire::At(u64::MAX));
    world.get(0, b"k");
    assert_eq!(access(&mut world) & 0xff, 5 + 4);
}
