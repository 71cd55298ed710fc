//! SCAN: every key that is there all along is returned, and nothing is returned that was not there.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_store::{Cursor, Expire};
use evenkeel_testkit::Random;

use crate::world::{World, random, scaled};

/// How often each key is returned.
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

/// Fills database 0 with `spread` keys over all slots and `tagged` keys in one.
fn filled(spread: usize, tagged: usize) -> (World, BTreeSet<Vec<u8>>) {
    let mut world = World::new(2);
    let keys = (0..spread).map(|at| format!("key:{at}")).chain((0..tagged).map(|at| format!("{{tag}}{at}")));
    let keys: BTreeSet<Vec<u8>> = keys.map(String::into_bytes).collect();
    keys.iter().for_each(|key| world.set(0, key, b"", Expire::Clear));
    (world, keys)
}

#[test]
fn a_still_database_gives_each_key_once() {
    let many = scaled(300, 20_000, 200_000);
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

/// COUNT is a hint, but one that is kept: a call does neither nothing nor everything.
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

/// What happens to a database between two calls of SCAN: other keys come and go, and those that stay are changed.
fn disturb(world: &mut World, random: &mut Random, stay: &[Vec<u8>], others: usize) {
    for _ in 0..random.below(60) {
        let other = format!("{}{}", ["{tag}x", "x"][random.below(2)], random.below(others)).into_bytes();
        let expire = if random.chance(30) { Expire::At(u64::MAX) } else { Expire::Clear };
        match random.below(3) {
            0 => drop(world.one(0, &other, |held, key| held.remove(key))),
            _ => world.set(0, &other, b"other", expire),
        }
    }
    let key = &stay[random.below(stay.len())];
    match random.below(3) {
        0 => world.set(0, key, &vec![b'v'; random.below(100)], Expire::Clear),
        1 => drop(world.one(0, key, |held, key| held.set_deadline(key, Some(u64::MAX)))),
        _ => drop(world.one(0, key, |held, key| held.set_deadline(key, None))),
    }
}

#[test]
fn keys_that_stay_are_returned_while_others_come_and_go() {
    let mut random = random("keys_that_stay");
    for round in 0..scaled(1, 12, 60) {
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
            // Now and then most of the others go at once, so that tables shrink.
            if random.below(100) == 0 {
                for at in 0..others {
                    let other = format!("{{tag}}x{at}").into_bytes();
                    world.one(0, &other, |held, key| held.remove(key));
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

/// A slot whose first keys are scanned while it grows a thousandfold.
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

#[test]
fn expired_keys_are_passed_over() {
    let (mut world, _) = filled(50, 0);
    let now = world.seat.now_ms;
    world.set(0, b"gone", b"", Expire::At(now));
    world.set(0, b"there", b"", Expire::At(now + 1));
    let keys = scan_all(&mut world, 0, 10);
    assert!(keys.contains_key(&b"there"[..]) && !keys.contains_key(&b"gone"[..]));
    assert_eq!((keys.len(), world.len(0)), (51, 52), "SCAN removes nothing");
}

#[test]
fn random_keys_are_spread() {
    for (spread, tagged) in [(200, 0), (0, 200), (0, scaled(900, 3000, 3000))] {
        let (mut world, keys) = filled(spread, tagged);
        let mut times: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        let draws = keys.len() * 20;
        for _ in 0..draws {
            let key = world.none(|held| held.random_key(0)).expect("there are keys");
            *times.entry(key).or_default() += 1;
        }
        assert!(times.keys().all(|key| keys.contains(key)));
        assert!(times.len() * 10 > keys.len() * 8, "{} of {} keys were ever drawn", times.len(), keys.len());
        let most = times.values().max().expect("some were drawn");
        assert!(*most < 20 * 15, "one key was drawn {most} times of {draws}");
    }
}

/// The last key of a slot that held many is found, and so is the last live one among the dead.
#[test]
fn a_lonely_key_is_drawn() {
    let (mut world, keys) = filled(0, scaled(1000, 20_000, 100_000));
    let mut rest = keys.iter();
    let lonely = rest.next().expect("there are keys");
    for key in rest {
        assert!(world.one(0, key, |held, key| held.remove(key)));
    }
    world.verify();
    let now = world.seat.now_ms;
    for _ in 0..20 {
        assert_eq!(world.none(|held| held.random_key(0)).as_ref(), Some(lonely));
    }
    for at in 0..scaled(300, 3000, 3000) {
        world.set(0, format!("dead{at}").as_bytes(), b"", Expire::At(now));
    }
    for _ in 0..20 {
        assert_eq!(world.none(|held| held.random_key(0)).as_ref(), Some(lonely));
    }
    world.one(0, lonely, |held, key| held.remove(key));
    assert_eq!(world.none(|held| held.random_key(0)), None);
}
