//! Prefetching leaves the results of look-ups unchanged.

use std::collections::BTreeSet;

use evenkeel_store::ahead::MEMBERS_MAX;
use evenkeel_store::collection::{Hash, Set, ZSet};
use evenkeel_store::{Edit, Expire};
use evenkeel_testkit::Random;

use crate::world::{World, random, scaled};

const KEY: &[u8] = b"key";

/// A name out of `kinds`; some fill a page of their own.
fn name(random: &mut Random, kinds: usize) -> Vec<u8> {
    let number = random.below(kinds);
    format!("{number}{}", "-".repeat(if number.is_multiple_of(100) { 5000 } else { number % 30 }))
        .into_bytes()
}

fn found(world: &mut World, members: &BTreeSet<Vec<u8>>, key: &[u8]) -> usize {
    let members: Vec<&[u8]> = members.iter().map(|member| &member[..]).collect();
    let key = world.keyspace.key(0, key);
    world.keyspace.enter(&mut world.ctx);
    let found = world.keyspace.prefetch_members(&mut world.ctx, &key, &members);
    world.keyspace.leave(&mut world.ctx);
    found
}

/// Calls `change` to add or remove random members, and checks that prefetching finds exactly the present
/// members, unless a single page has all. Tags of 16 bits give a false positive in a few hundred look-ups.
fn check(change: impl Fn(&mut World, &[u8], bool)) {
    const PAGE_MAX: usize = 4096;
    let (mut world, mut random) = (World::new(1), random("ahead"));
    let (kinds, mut plain, mut mistaken) = (scaled(300, 3000, 20_000), BTreeSet::new(), 0);
    for step in 0..3 * kinds {
        let (member, adds) = (name(&mut random, kinds), random.below(3) < [2, 1, 2][step / kinds]);
        change(&mut world, &member, adds);
        if adds {
            plain.insert(member)
        } else {
            plain.remove(&member)
        };
        if !step.is_multiple_of(10) || plain.iter().map(Vec::len).sum::<usize>() < PAGE_MAX {
            continue;
        }
        let sought: BTreeSet<Vec<u8>> = (0..MEMBERS_MAX).map(|_| name(&mut random, kinds)).collect();
        let (there, found) = (sought.intersection(&plain).count(), found(&mut world, &sought, KEY));
        assert!(found >= there, "{found} of {there} at step {step}");
        mistaken += found - there;
    }
    assert!(mistaken <= kinds / 20, "{mistaken} were not there");
    assert_eq!(found(&mut world, &plain, b"another key"), 0);
    world.verify();
}

#[test]
fn members_of_sets_are_prefetched() {
    check(|world, member, adds| {
        world.one(0, KEY, |guard, key| {
            let hasher = &guard.keyspace().hasher;
            let change = |set: &mut Edit<'_, Set>| {
                set.changes = 1;
                if adds { set.insert(hasher, member) } else { set.remove(hasher, member) }
            };
            guard.edit(key, change).expect("a set")
        });
    });
}

#[test]
fn fields_of_hashes_are_prefetched_with_and_without_deadlines() {
    for expire in [Expire::Clear, Expire::At(u64::MAX / 2)] {
        check(|world, member, adds| {
            world.one(0, KEY, |guard, key| {
                let (hasher, now) = (&guard.keyspace().hasher, guard.ctx.now_ms);
                let change = |hash: &mut Edit<'_, Hash>| {
                    hash.changes = 1;
                    if adds {
                        hash.set(hasher, now, member, b"value", expire)
                    } else {
                        hash.remove(hasher, now, member)
                    }
                };
                guard.edit(key, change).expect("a hash")
            });
        });
    }
}

#[test]
fn members_of_sorted_sets_are_prefetched() {
    check(|world, member, adds| {
        world.one(0, KEY, |guard, key| {
            let hasher = &guard.keyspace().hasher;
            let change = |set: &mut Edit<'_, ZSet>| {
                set.changes = 1;
                if adds {
                    set.insert(hasher, member, member.len() as f64)
                } else {
                    set.remove(hasher, member)
                }
            };
            guard.edit(key, change).expect("a sorted set")
        });
    });
}

/// Prefetching is no access, and leaves expired keys alone.
#[test]
fn prefetching_has_no_visible_effect() {
    let mut world = World::new(1);
    let members: Vec<Vec<u8>> = (0..1000).map(|number| format!("member {number}").into_bytes()).collect();
    world.one(0, KEY, |guard, key| {
        let hasher = &guard.keyspace().hasher;
        let change = |set: &mut Edit<'_, Set>| {
            set.changes = 1;
            members.iter().for_each(|member| _ = set.insert(hasher, member));
        };
        guard.edit(key, change).expect("a set");
        guard.set_deadline(key, Some(guard.ctx.now_ms + 1));
    });
    world.ctx.now_ms += 10;
    let before = format!("{:?}", world.keyspace.total());
    assert_eq!(found(&mut world, &members.into_iter().take(MEMBERS_MAX).collect(), KEY), MEMBERS_MAX);
    assert_eq!((world.len(0), format!("{:?}", world.keyspace.total())), (1, before));
}
