//! Sweeps remove all due keys, and only these, in steps of bounded work.

use std::time::Duration;

use evenkeel_store::{Expire, SLOTS};

use crate::world::{START_MS, World, random, scaled, thread_time};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Most keys that a visit removes: it ends after 256, and a segment's due keys, 832 at most, are removed
/// together.
const STEP_MAX: usize = 255 + 832;

/// Sweeps in the smallest steps; returns the number of removed keys, and the longest step.
fn sweep_stepwise(world: &mut World, db: usize) -> (usize, Duration) {
    let (mut removed, mut at, mut longest) = (0, Some(0), Duration::ZERO);
    while let Some(from) = at {
        let start = thread_time();
        let swept = world.none(|guard| guard.sweep(db, from, SLOTS, || true));
        longest = longest.max(thread_time() - start);
        assert!(swept.removed <= STEP_MAX, "{} at once", swept.removed);
        (removed, at) = (removed + swept.removed, swept.next);
    }
    (removed, longest)
}

#[test]
fn exactly_the_due_keys_are_removed() {
    let mut random = random("due_keys_go");
    for one_slot in [false, true] {
        let mut world = World::new(2);
        let keys = scaled(200, 20_000, 100_000);
        let mut deadlines = Vec::new();
        for at in 0..keys {
            let deadline = match random.below(10) {
                0 => [0, 1, START_MS - 1, START_MS, u64::MAX, u64::MAX - 1, 1 << 60][random.below(7)],
                1 => continue,
                _ => START_MS + random.below(100_000) as u64,
            };
            let name = if one_slot { format!("{{tag}}{at}") } else { format!("{at}") };
            world.set(0, name.as_bytes(), b"value", Expire::At(deadline));
            deadlines.push(deadline);
        }
        while world.ctx.now_ms < START_MS + 101_000 {
            let now = world.ctx.now_ms;
            sweep_stepwise(&mut world, 0);
            // Sweeps have a resolution of 128 ms.
            let surely = deadlines.iter().filter(|deadline| **deadline <= now.saturating_sub(128)).count();
            let perhaps = deadlines.iter().filter(|deadline| **deadline <= now).count();
            let gone = deadlines.len() - world.timed_len(0);
            assert!((surely..=perhaps).contains(&gone), "{gone} went, {surely} to {perhaps} were due");
            assert_eq!(world.len(0), world.timed_len(0));
            world.ctx.now_ms += random.below(15_000) as u64;
        }
        sweep_stepwise(&mut world, 0);
        let forever = deadlines.iter().filter(|deadline| **deadline > 1 << 59).count();
        assert_eq!(world.len(0), forever);
        world.verify();
    }
}

/// A million keys of a slot expire together: no visit is long, and none is in vain.
#[test]
fn a_large_slot_is_swept_in_small_steps() {
    let keys = scaled(1000, 100_000, 1_000_000);
    let mut world = World::new(1);
    for at in 0..keys {
        let deadline = START_MS + 1000 + (at % 7) as u64;
        world.set(0, format!("{{tag}}{at}").as_bytes(), b"value", Expire::At(deadline));
    }
    assert_eq!(sweep_stepwise(&mut world, 0).0, 0);
    world.ctx.now_ms += 2000;
    let start = thread_time();
    let (removed, longest) = sweep_stepwise(&mut world, 0);
    println!("{removed} keys of one slot swept in {:?}, longest step {longest:?}", thread_time() - start);
    assert_eq!(removed, keys);
    assert_eq!(world.len(0), 0);
    world.verify();
}

/// A due key in each segment of a large slot: the number of visited segments bounds the work, not the number
/// of keys.
#[test]
fn thinly_spread_due_keys_are_found_in_small_steps() {
    let keys = scaled(1000, 100_000, 1_000_000);
    let mut world = World::new(1);
    let mut due = 0;
    for at in 0..keys {
        let soon = at % 500 == 0;
        let deadline = START_MS + if soon { 1000 } else { DAY_MS };
        due += usize::from(soon);
        world.set(0, format!("{{tag}}{at}").as_bytes(), b"value", Expire::At(deadline));
    }
    world.ctx.now_ms += 2000;
    let (removed, longest) = sweep_stepwise(&mut world, 0);
    println!("{removed} of {keys} keys of one slot swept, longest step {longest:?}");
    assert_eq!(removed, due);
    world.verify();
}

#[test]
fn deadlines_that_change_are_followed() {
    let mut world = World::new(1);
    let at = |deadline| Expire::At(deadline);
    world.set(0, b"later", b"", at(START_MS + 1000));
    world.set(0, b"never", b"", at(START_MS + 1000));
    world.set(0, b"sooner", b"", at(START_MS + DAY_MS));
    world.set(0, b"kept", b"", at(START_MS + 1000));
    world.set(0, b"replaced", b"", at(START_MS + 1000));
    world.one(0, b"later", |guard, key| guard.set_deadline(key, Some(START_MS + DAY_MS)));
    world.one(0, b"never", |guard, key| guard.set_deadline(key, None));
    world.one(0, b"sooner", |guard, key| guard.set_deadline(key, Some(START_MS + 1000)));
    world.set(0, b"kept", b"another value", Expire::Keep);
    world.set(0, b"replaced", b"another value", Expire::Clear);
    world.ctx.now_ms += 2000;
    assert_eq!(world.sweep(0), 2);
    let there = |world: &mut World, key: &[u8]| world.get(0, key).is_some();
    assert!(there(&mut world, b"later") && there(&mut world, b"never") && there(&mut world, b"replaced"));
    assert_eq!(world.len(0), 3);
    world.verify();
}

/// A swapped database takes its deadlines along, and a flushed database leaves none behind.
#[test]
fn swapped_databases_are_swept() {
    let mut world = World::new(3);
    for at in 0..100 {
        world.set(0, format!("{at}").as_bytes(), b"", Expire::At(START_MS + 1000));
        world.set(1, format!("{at}").as_bytes(), b"", Expire::At(START_MS + DAY_MS));
    }
    world.all(|guard| guard.swap(0, 1));
    world.all(|guard| guard.swap(2, 1));
    world.ctx.now_ms += 2000;
    assert_eq!([0, 1, 2].map(|db| world.sweep(db)), [0, 0, 100]);
    assert_eq!([0, 1, 2].map(|db| world.timed_len(db)), [100, 0, 0]);
    drop(world.all(|guard| guard.flush(0)));
    world.ctx.now_ms += 2 * DAY_MS;
    assert_eq!([0, 1, 2].map(|db| world.sweep(db)), [0, 0, 0]);
    world.verify();
}

/// A clock set back, even to before the start, makes no sweep remove too much or go on for ever.
#[test]
fn a_clock_set_back_is_harmless() {
    let mut world = World::new(1);
    for at in 0..scaled(100, 2000, 2000) {
        world.set(0, format!("{{tag}}{at}").as_bytes(), b"", Expire::At(START_MS - 2000 + at as u64));
    }
    let keys = world.len(0);
    world.ctx.now_ms = START_MS - 1_500;
    let removed = world.sweep(0);
    assert!((100..=501).contains(&removed.max(100)), "{removed}");
    // More than a day before the start, deadlines are not distinguished: sweeps wait.
    world.set(0, b"{tag}long ago", b"", Expire::At(START_MS - 3 * DAY_MS / 2));
    let keys = keys + 1;
    world.ctx.now_ms = START_MS - 2 * DAY_MS;
    assert_eq!(world.sweep(0), 0);
    world.ctx.now_ms = 0;
    assert_eq!(world.sweep(0), 0);
    assert_eq!(world.len(0), keys - removed);
    world.ctx.now_ms = START_MS + 1000;
    assert_eq!(world.sweep(0), keys - removed);
    assert_eq!(world.len(0), 0);
    world.verify();
}

/// A sweep stays in its range, and a stopped sweep resumes where it was.
#[test]
fn a_sweep_keeps_to_its_range() {
    let mut world = World::new(1);
    for at in 0..scaled(100, 3000, 3000) {
        world.set(0, format!("{at}").as_bytes(), b"", Expire::At(START_MS));
    }
    let keys = world.len(0);
    let lower = world.none(|guard| guard.sweep(0, 0, SLOTS / 2, || false));
    assert_eq!(lower.next, None);
    assert_eq!(world.len(0), keys - lower.removed);
    let mut visits = 0;
    let upper = world.none(|guard| {
        guard.sweep(0, SLOTS / 2, usize::MAX, || {
            visits += 1;
            visits == 10
        })
    });
    assert!(upper.next.is_some_and(|next| next > SLOTS / 2));
    assert_eq!(world.sweep(0), keys - lower.removed - upper.removed);
    assert_eq!(world.len(0), 0);
}
