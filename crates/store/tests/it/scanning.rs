//! SCAN returns every key that is present all the time, and no key that was never there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::Duration;

use evenkeel_store::{Cursor, Expire, SlotGuard};
use evenkeel_testkit::Random;

use crate::world::{World, random, scaled};

/// Returns the number of times that each key is returned.
fn scan_all(world: &mut World, db: usize, count: usize) -> BTreeMap<Vec<u8>, usize> {
    let (mut times, mut cursor) = (BTreeMap::new(), Cursor(0));
    loop {
        let (keys, next) = world.scan(db, cursor, count);
        keys.into_iter().for_each(|key| *times.entry(key).or_default() += 1);
        cursor = next;
        if cursor.0 == 0 {
            return times;
        }
    }
}

/// Fills database 0 with `spread` keys over all slots and `tagged` keys in a single slot.
fn filled(spread: usize, tagged: usize) -> (World, BTreeSet<Vec<u8>>) {
    let mut world = World::new(2);
    let keys = (0..spread).map(|at| format!("key:{at}")).chain((0..tagged).map(|at| format!("{{tag}}{at}")));
    let keys: BTreeSet<Vec<u8>> = keys.map(String::into_bytes).collect();
    keys.iter().for_each(|key| world.set(0, key, b"", Expire::Clear));
    (world, keys)
}

#[test]
fn a_still_database_gives_each_key_once() {
    let many = scaled(300, 20_000, 100_000);
    for (spread, tagged) in [(0, 0), (1, 0), (0, 1), (0, 9), (0, 700), (many, 0), (0, many), (many, many)] {
        let (mut world, keys) = filled(spread, tagged);
        for count in [0, 1, 10, 1000, usize::MAX] {
            let times = scan_all(&mut world, 0, count);
            assert!(times.keys().eq(&keys), "{spread} {tagged} {count}");
            assert!(times.values().all(|times| *times == 1), "{spread} {tagged} {count}");
        }
        assert!(scan_all(&mut world, 1, 10).is_empty(), "another database");
    }
}

/// COUNT is a hint, but a call returns neither nothing nor everything.
#[test]
fn calls_return_about_as_many_as_asked_for() {
    let many = scaled(2_000, 20_000, 100_000);
    for (spread, tagged) in [(many, 0), (0, many)] {
        let (mut world, keys) = filled(spread, tagged);
        for count in [10, 100, 1000] {
            let (mut calls, mut most, mut cursor) = (0, 0, Cursor(0));
            loop {
                let (found, next) = world.scan(0, cursor, count);
                (calls, most, cursor) = (calls + 1, most.max(found.len()), next);
                if cursor.0 == 0 {
                    break;
                }
            }
            let expected = keys.len() / count;
            assert!((expected / 2..expected * 3 + 3).contains(&calls), "{calls} calls of {count}");
            assert!(most <= count * 3 + 64, "{most} keys in a call of {count}");
        }
    }
}

/// Changes between two calls of SCAN: other keys come and go, and the staying keys are changed.
fn disturb(world: &mut World, random: &mut Random, stay: &[Vec<u8>], others: usize) {
    for _ in 0..random.below(60) {
        let other = format!("{}{}", ["{tag}x", "x"][random.below(2)], random.below(others)).into_bytes();
        let expire = if random.chance(30) { Expire::At(u64::MAX) } else { Expire::Clear };
        match random.below(3) {
            0 => drop(world.one(0, &other, |guard, key| guard.remove(key))),
            _ => world.set(0, &other, b"other", expire),
        }
    }
    let key = &stay[random.below(stay.len())];
    match random.below(3) {
        0 => world.set(0, key, &vec![b'v'; random.below(100)], Expire::Clear),
        1 => drop(world.one(0, key, |guard, key| guard.set_deadline(key, Some(u64::MAX)))),
        _ => drop(world.one(0, key, |guard, key| guard.set_deadline(key, None))),
    }
}

#[test]
fn lasting_keys_are_returned_during_changes() {
    let mut random = random("keys_that_stay");
    for round in 0..scaled(1, 12, 30) {
        let stay = [3, 60, 900, 5000][round % 4].min(scaled(100, 5000, 5000));
        let (mut world, keys) = filled(stay / 3, stay);
        let stay: Vec<Vec<u8>> = keys.iter().cloned().collect();
        let (count, others) = (1 + random.below(60), 100 + random.below(30_000));
        let (mut seen, mut cursor, mut disturbed) = (BTreeSet::new(), Cursor(0), 0);
        loop {
            let (found, next) = world.scan(0, cursor, count);
            seen.extend(found);
            cursor = next;
            if cursor.0 == 0 {
                break;
            }
            if disturbed < scaled(20, 400, 2000) {
                disturb(&mut world, &mut random, &stay, others);
                disturbed += 1;
            }
            // Now and then most of the other keys go at once, so that tables shrink.
            if random.below(100) == 0 {
                for at in 0..others {
                    let other = format!("{{tag}}x{at}").into_bytes();
                    world.one(0, &other, |guard, key| guard.remove(key));
                }
            }
        }
        let missed: Vec<_> = keys.difference(&seen).map(|key| key.escape_ascii().to_string()).collect();
        assert!(missed.is_empty(), "round {round}, count {count}: missed {missed:?}");
        let is_known =
            |key: &Vec<u8>| keys.contains(key) || key.starts_with(b"x") || key.starts_with(b"{tag}x");
        assert!(seen.iter().all(is_known));
        world.verify();
    }
}

/// A slot grows a thousandfold while its first keys are scanned.
#[test]
fn a_slot_splits_under_a_scan() {
    let (mut world, keys) = filled(0, 500);
    let (mut seen, mut cursor, mut next_other) = (BTreeSet::new(), Cursor(0), 0);
    loop {
        let (found, next) = world.scan(0, cursor, 7);
        seen.extend(found);
        cursor = next;
        if cursor.0 == 0 {
            break;
        }
        for _ in 0..scaled(20, 200, 1000) {
            let other = format!("{{tag}}x{next_other}");
            world.set(0, other.as_bytes(), b"", Expire::Clear);
            next_other += 1;
            if next_other > scaled(300, 50_000, 500_000) {
                break;
            }
        }
    }
    assert!(keys.is_subset(&seen));
}

/// A scan in the middle of a slot that is emptied goes on at the beginning of the next slot.
#[test]
fn an_emptied_slot_is_passed() {
    let mut world = World::new(1);
    let name = |tag: &str, at: usize| format!("{{{tag}}}{at}").into_bytes();
    let keys = scaled(300, 5000, 5000);
    for at in 0..keys {
        world.set(0, &name("b", at), b"", Expire::Clear);
        world.set(0, &name("user1000", at), b"", Expire::Clear);
    }
    let low = if world.scan(0, Cursor(0), 1).0[0].starts_with(b"{b}") { "b" } else { "user1000" };
    let high = if low == "b" { "user1000" } else { "b" };
    let (_, cursor) = world.scan(0, Cursor(0), keys / 2);
    (0..keys).for_each(|at| assert!(world.one(0, &name(low, at), |guard, key| guard.remove(key))));
    let (rest, next) = world.scan(0, cursor, usize::MAX);
    assert_eq!((rest.len(), next), (keys, Cursor(0)));
    assert!(rest.iter().all(|key| key.starts_with(format!("{{{high}}}").as_bytes())));
}

#[test]
fn any_cursor_is_answered() {
    let mut random = random("any_cursor");
    let (mut world, keys) = filled(100, scaled(100, 5000, 5000));
    for _ in 0..scaled(20, 2000, 20_000) {
        let cursor = Cursor(random.draw() >> random.below(64));
        let (found, next) = world.scan(0, cursor, 1 + random.below(50));
        assert!(found.iter().all(|key| keys.contains(key)));
        assert!(next.0 == 0 || next != cursor, "it goes on");
    }
}

/// As in Redis, so that DBSIZE after a whole scan is the number of returned keys.
#[test]
fn expired_keys_are_removed_on_the_way() {
    let (mut world, _) = filled(50, scaled(100, 2000, 2000));
    let (now, live) = (world.ctx.now_ms, world.len(0));
    for at in 0..300 {
        world.set(0, format!("gone:{at}").as_bytes(), b"", Expire::At(now));
        world.set(0, format!("{{tag}}gone:{at}").as_bytes(), b"", Expire::At(now));
    }
    world.set(0, b"there", b"", Expire::At(now + 1));
    world.ctx.keep_expired = true;
    assert_eq!((scan_all(&mut world, 0, 10).len(), world.len(0)), (live + 1, live + 601), "only hidden");
    world.ctx.keep_expired = false;
    let keys = scan_all(&mut world, 0, 10);
    assert!(keys.contains_key(&b"there"[..]) && keys.values().all(|times| *times == 1));
    assert_eq!((keys.len(), world.len(0)), (live + 1, live + 1));
    assert_eq!(world.keyspace.total().expired, 600);
    world.verify();
}

/// During a walk through a slot, the slot grows and shrinks; staying keys are still seen exactly once.
#[test]
fn a_walk_sees_each_key_once_during_changes() {
    let (world, keys) = filled(0, scaled(100, 5000, 20_000));
    let (keyspace, done) = (&world.keyspace, AtomicBool::new(false));
    let mut ctx = keyspace.thread_context();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in (0..2).cycle().take_while(|_| !done.load(Relaxed)) {
                for at in 0..scaled(50, 5000, 20_000) {
                    let bytes = format!("{{tag}}other:{at}");
                    let key = keyspace.key(0, bytes.as_bytes());
                    keyspace.enter(&mut ctx);
                    let mut guard = keyspace.hold_one(&mut ctx, key.place);
                    if round == 0 {
                        guard.set_string(&key, b"", Expire::Clear)
                    } else {
                        _ = guard.remove(&key)
                    }
                    drop(guard);
                    keyspace.leave(&mut ctx);
                }
            }
        });
        let mut walker = world.ctx;
        for _ in 0..scaled(5, 30, 100) {
            let mut times: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
            keyspace.enter(&mut walker);
            keyspace
                .hold_none(&mut walker)
                .for_each_key(0, |view| *times.entry(view.key().to_vec()).or_default() += 1);
            keyspace.leave(&mut walker);
            assert!(keys.iter().all(|key| times.get(key) == Some(&1)));
        }
        done.store(true, Relaxed);
    });
}

/// Walks database 0; another thread locks all slots for a moment while the first segment is walked. Returns
/// the number of visits of each key.
fn walk_interrupted(world: World, f: impl FnOnce(&mut SlotGuard<'_>) + Send) -> BTreeMap<Vec<u8>, usize> {
    let (keyspace, (begun, reported), about_to) = (&world.keyspace, channel(), &AtomicBool::new(false));
    let (mut walker, mut other, mut times) =
        (world.ctx, keyspace.thread_context(), BTreeMap::<Vec<u8>, usize>::new());
    other.now_ms = walker.now_ms;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let () = reported.recv().expect("the walk tells when it has begun");
            keyspace.enter(&mut other);
            about_to.store(true, Relaxed);
            f(&mut keyspace.hold_all(&mut other));
            keyspace.leave(&mut other);
        });
        keyspace.enter(&mut walker);
        keyspace.hold_none(&mut walker).for_each_key(0, |view| {
            if times.is_empty() {
                begun.send(()).expect("the other thread waits for it");
                while !about_to.load(Relaxed) {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(50)); // by then the gate is closed
            }
            *times.entry(view.key().to_vec()).or_default() += 1;
        });
        keyspace.leave(&mut walker);
    });
    times
}

/// A thread that needs exclusive access does not wait for the end of a long walk, so other threads do not
/// wait for it either.
#[test]
fn a_long_walk_yields() {
    for (spread, tagged) in [(200, 0), (0, 2000)] {
        let (world, keys) = filled(spread, tagged);
        let times = walk_interrupted(world, |guard| drop(guard.flush(0)));
        assert!((1..keys.len()).contains(&times.len()), "the walk saw {} of {}", times.len(), keys.len());
    }
}

/// A slot emptied and refilled in the middle of a walk begins with a single segment that covers everything.
#[test]
fn a_walk_sees_no_key_twice_whatever_becomes_of_its_slot() {
    let (world, keys) = filled(0, 1500);
    let times = walk_interrupted(world, |guard| {
        for bytes in &keys {
            let key = guard.keyspace().key(0, bytes);
            assert!(guard.remove(&key));
        }
        for bytes in keys.iter().take(500) {
            let key = guard.keyspace().key(0, bytes);
            guard.set_string(&key, b"", Expire::Clear);
        }
    });
    assert!(times.values().all(|times| *times == 1) && times.len() > 500, "some before and some after");
}

#[test]
fn random_keys_are_spread() {
    for (spread, tagged) in [(200, 0), (0, 200), (0, scaled(900, 3000, 3000))] {
        let (mut world, keys) = filled(spread, tagged);
        let mut times: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        let draws = keys.len() * 20;
        for _ in 0..draws {
            let key = world.none(|guard| guard.random_key(0)).expect("there are keys");
            *times.entry(key).or_default() += 1;
        }
        assert!(times.keys().all(|key| keys.contains(key)));
        assert!(times.len() * 10 > keys.len() * 8, "{} of {} keys were ever drawn", times.len(), keys.len());
        let most = times.values().max().expect("some were drawn");
        assert!(*most < 20 * 15, "one key was drawn {most} times of {draws}");
    }
}

/// The last key of a formerly large slot is found, and so is the last live key among expired keys.
#[test]
fn a_lonely_key_is_drawn() {
    let (mut world, keys) = filled(0, scaled(1000, 20_000, 100_000));
    let mut rest = keys.iter();
    let lonely = rest.next().expect("there are keys");
    for key in rest {
        assert!(world.one(0, key, |guard, key| guard.remove(key)));
    }
    world.verify();
    let now = world.ctx.now_ms;
    for _ in 0..20 {
        assert_eq!(world.none(|guard| guard.random_key(0)).as_ref(), Some(lonely));
    }
    for at in 0..scaled(300, 3000, 3000) {
        world.set(0, format!("dead{at}").as_bytes(), b"", Expire::At(now));
    }
    for _ in 0..20 {
        assert_eq!(world.none(|guard| guard.random_key(0)).as_ref(), Some(lonely));
    }
    world.one(0, lonely, |guard, key| guard.remove(key));
    assert_eq!(world.none(|guard| guard.random_key(0)), None);
}
