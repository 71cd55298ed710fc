//! The simulation, with all protections and without each of them.

use std::time::{Duration, Instant};

use evenkeel_testkit::random::fresh_seed;

use super::World;
use crate::decide::Protections;

/// Time with faults, and time without, in milliseconds of the world.
const FAULTS: u64 = 90_000;
const CALM: u64 = 30_000;

/// Runs a world. Returns it at its end.
fn run(seed: u64, protections: Protections, journal: bool) -> World {
    let mut world = World::new(seed, protections);
    world.journal = journal.then(Vec::new);
    world.run_until(FAULTS);
    world.calm();
    world.run_until(FAULTS + CALM);
    if world.broken.is_none() {
        world.check_end();
    }
    world
}

fn explain(seed: u64, broken: &str) -> String {
    let world = run(seed, Protections::ALL, true);
    let journal = world.journal.unwrap_or_default();
    let last = journal.len().saturating_sub(3_000);
    format!("EVENKEEL_SEED={seed}: {broken}\n{}", journal[last..].join("\n"))
}

fn steps_wanted() -> u64 {
    std::env::var("EVENKEEL_STEPS")
        .map_or(10_000_000, |text| text.parse().expect("EVENKEEL_STEPS is a number"))
}

#[test]
fn no_promise_is_broken() {
    let first = fresh_seed();
    println!("EVENKEEL_SEED={first}");
    let start = Instant::now();
    let (mut steps, mut worlds, mut promotions, mut moved, mut acknowledged) = (0, 0, 0, 0, 0);
    while steps < steps_wanted() {
        let seed = first.wrapping_add(worlds);
        let world = run(seed, Protections::ALL, false);
        if let Some(broken) = &world.broken {
            panic!("{}", explain(seed, broken));
        }
        steps += world.steps;
        worlds += 1;
        promotions += world.truth.promotions;
        moved += world.truth.moved;
        acknowledged += world.truth.count();
    }
    let rate = steps as f64 / start.elapsed().as_secs_f64();
    println!(
        "{steps} steps in {worlds} worlds, {rate:.0} a second: {promotions} epochs, {moved} moves, \
         {acknowledged} acknowledged writes"
    );
    assert!(promotions > worlds && moved > worlds / 4, "the simulation has hardly any promotions or moves");
}

/// The simulation finds out that a protection is missing. Where few worlds show that, the search begins at
/// a seed shortly before one of them.
fn fails_without(protections: Protections, first: u64) {
    let end = Instant::now() + Duration::from_secs(240);
    for seed in first.. {
        if let Some(broken) = run(seed, protections, false).broken {
            println!("seed {seed}: {broken}");
            return;
        }
        assert!(Instant::now() < end, "no promise is broken without a protection, in {seed} worlds");
    }
}

macro_rules! fails_without {
    ($($name:ident: $field:ident from $first:literal,)*) => {
        $(
            #[test]
            fn $name() {
                fails_without(Protections { $field: false, ..Protections::ALL }, $first);
            }
        )*
    };
}

fails_without! {
    it_fails_without_the_fence: fence from 1,
    it_fails_without_the_margin: margin from 1,
    it_fails_without_a_view_of_the_lease: fresh_view from 1,
    it_fails_without_the_guard_of_the_absent_primary: absent_guard from 1,
    it_fails_without_the_union_of_sets: union from 1,
    it_fails_when_a_join_does_not_wait: join_waits from 1,
    it_fails_without_epochs: epochs from 1,
    it_fails_without_incarnations: incarnations from 1,
    it_fails_when_unknown_means_failed: unknown from 1,
    it_fails_when_a_member_drops_its_data: leave from 3_900,
    it_fails_without_the_guard_of_a_move: move_guard from 1,
    it_fails_when_moving_slots_stay_open: close from 1,
}
