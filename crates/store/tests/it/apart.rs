//! The memory that values would take without sharing: the shared pages of copies, and holes.

use evenkeel_store::collection::{Collection, Hash, List, Set, ZSet};
use evenkeel_store::rope::{CHUNK, Rope};
use evenkeel_store::{Apart, Expire, Made};

use crate::world::World;

/// Tolerance in percent: a page or chunk, and its bookkeeping.
const MORE: u64 = 101;
const FULL: u64 = 100;

fn shared(world: &World) -> u64 {
    world.keyspace.apart().shared
}

/// Copies a key to another, with `bytes` bytes shared.
fn copy(world: &mut World, bytes: u64) {
    world.two((0, b"one"), (1, b"other"), |guard, one, other| guard.copy(one, other, bytes));
}

fn appraise(world: &mut World) {
    world.lazy_free.clear();
    for _ in 0..world.keyspace.sharers() {
        assert!(world.none(|guard| guard.appraise_next()));
    }
    world.verify();
}

fn assert_about(found: u64, expected: u64) {
    assert!(found >= expected && found * FULL <= expected * MORE, "{found} for {expected}");
}

#[test]
fn memory_shared_by_a_copied_string_is_counted_until_it_is_unshared() {
    let mut world = World::new(2);
    world.set(0, b"one", &vec![b'v'; 100 * CHUNK], Expire::Clear);
    let bytes = world.one(0, b"one", |guard, key| guard.peek(key).expect("there").memory() as u64);
    copy(&mut world, bytes);
    assert_about(shared(&world), bytes);
    appraise(&mut world);
    assert_about(shared(&world), 100 * CHUNK as u64);
    // A write to either of the two reduces the shared bytes.
    world.one(1, b"other", |guard, key| guard.write_range(key, 0, &[b'w'; 30 * CHUNK]).expect("a string"));
    world.one(0, b"one", |guard, key| {
        guard.write_range(key, 50 * CHUNK, &[b'x'; 30 * CHUNK]).expect("a string")
    });
    appraise(&mut world);
    assert_about(shared(&world), 40 * CHUNK as u64);
    // A change that keeps the name and the value keeps the shared bytes, too.
    world.one(1, b"other", |guard, key| guard.set_deadline(key, Some(u64::MAX)));
    world.two((1, b"other"), (0, b"moved"), |guard, from, to| guard.rename(from, to));
    assert_about(shared(&world), 40 * CHUNK as u64);
    world.one(0, b"one", |guard, key| guard.remove(key));
    appraise(&mut world);
    assert_eq!((shared(&world), world.keyspace.sharers()), (0, 0));
    assert!(!world.none(|guard| guard.appraise_next()));
}

#[test]
fn removed_memory_is_not_counted() {
    let mut world = World::new(2);
    let ways: [fn(&mut World); 5] = [
        |world| _ = world.one(1, b"other", |guard, key| guard.remove(key)),
        |world| world.set(1, b"other", b"short", Expire::Clear),
        |world| _ = world.all(|guard| guard.flush(1)),
        |world| {
            world.one(1, b"other", |guard, key| guard.set_deadline(key, Some(1)));
            world.sweep(1);
        },
        |world| {
            let rope = Made::Rope(Rope::new(&[b'x'; 3 * CHUNK]));
            world.one(1, b"other", |guard, key| guard.set_made(key, rope));
        },
    ];
    for way in ways {
        world.set(0, b"one", &vec![b'v'; 10 * CHUNK], Expire::Clear);
        copy(&mut world, 10 * CHUNK as u64);
        world.verify();
        way(&mut world);
        assert_eq!(shared(&world), 0);
        appraise(&mut world);
    }
}

/// Fills a collection by `push`, copies it, and changes every page.
fn check<T: Collection + Clone>(value: T, bytes: fn(&T) -> usize, change: fn(&mut World)) {
    let mut world = World::new(2);
    let all = bytes(&value) as u64;
    assert!(all > 100_000);
    world.one(0, b"one", |guard, key| guard.set_collection(key, value, 0, None));
    copy(&mut world, all);
    appraise(&mut world);
    assert_about(shared(&world), all);
    change(&mut world);
    appraise(&mut world);
    assert!((all / 2..all).contains(&shared(&world)), "{} of {all}", shared(&world));
    // Pages kept by a snapshot or a reply are shared, but with no value.
    world.one(0, b"one", |guard, key| guard.remove(key));
    appraise(&mut world);
    assert_eq!(shared(&world), 0);
}

#[test]
fn pages_of_collections_are_counted_exactly() {
    let hasher = World::new(1).keyspace.hasher.clone();
    let word = |number: u32| format!("element {number}").into_bytes();
    // The first pages are no measure of the later pages' sizes.
    let (mut list, mut set, mut zset, mut hash) = (List::new(), Set::new(), ZSet::new(), Hash::new());
    for number in 0..20_000 {
        list.push_back(&word(number));
        set.insert(&hasher, &word(number));
        zset.insert(&hasher, &word(number), f64::from(number));
        hash.set(&hasher, 0, &word(number), b"value", Expire::Clear);
    }
    (0..20).for_each(|_| list.push_back(&[b'x'; 100_000]));
    assert!(list.shared_memory(0) > 2_000_000 && list.shared_memory(1) == 0);
    let clone = list.clone();
    assert!(list.shared_memory(1) == list.shared_memory(0) && clone.shared_memory(2) == 0);
    drop(clone);
    check(
        list,
        |list| list.shared_memory(0),
        |world| {
            world.one(1, b"other", |guard, key| {
                guard
                    .edit(key, |list: &mut evenkeel_store::Edit<'_, List>| list.push_back(b"more"))
                    .expect("a list")
            });
        },
    );
    check(
        set,
        |set| set.shared_memory(0),
        |world| {
            let hasher = world.keyspace.hasher.clone();
            world.one(0, b"one", |guard, key| {
                guard
                    .edit(key, |set: &mut evenkeel_store::Edit<'_, Set>| set.insert(&hasher, b"more"))
                    .expect("a set")
            });
        },
    );
    check(
        zset,
        |zset| zset.shared_memory(0),
        |world| {
            let hasher = world.keyspace.hasher.clone();
            world.one(0, b"one", |guard, key| {
                guard
                    .edit(key, |zset: &mut evenkeel_store::Edit<'_, ZSet>| zset.insert(&hasher, b"more", 1.0))
                    .expect("a sorted set")
            });
        },
    );
    check(
        hash,
        |hash| hash.shared_memory(0),
        |world| {
            let hasher = world.keyspace.hasher.clone();
            world.one(0, b"one", |guard, key| {
                guard
                    .edit(key, |hash: &mut evenkeel_store::Edit<'_, Hash>| {
                        hash.set(&hasher, 0, b"more", b"value", Expire::Clear)
                    })
                    .expect("a hash")
            });
        },
    );
}

#[test]
fn holes_are_counted_as_they_appear_and_vanish() {
    let mut world = World::new(2);
    let holes = |world: &World| world.keyspace.apart();
    let write = |world: &mut World, offset, bytes: &[u8]| {
        world.one(0, b"key", |guard, key| guard.write_range(key, offset, bytes).expect("a string"));
        world.verify();
    };
    write(&mut world, 100 * CHUNK, b"x");
    assert_eq!(holes(&world), Apart { shared: 0, holes: 100 });
    write(&mut world, 300 * CHUNK, b"x");
    write(&mut world, 5 * CHUNK, b"x");
    write(&mut world, 6 * CHUNK, b"\0");
    assert_eq!(holes(&world).holes, 298);
    world.set(1, b"key", &vec![0; 10 * CHUNK], Expire::Clear);
    world.two((0, b"key"), (1, b"copy"), |guard, from, to| guard.copy(from, to, 1000));
    assert_eq!(holes(&world).holes, 2 * 298 + 10);
    drop(world.all(|guard| guard.flush(1)));
    assert_eq!(holes(&world), Apart { shared: 0, holes: 298 });
    world.one(0, b"key", |guard, key| guard.remove(key));
    assert_eq!(holes(&world), Apart::default());
}

#[test]
fn a_string_built_from_existing_chunks_shares_them() {
    let mut world = World::new(2);
    let rope = Rope::new(&[b'r'; 10 * CHUNK]);
    world.one(0, b"one", |guard, key| guard.set_made(key, Made::Rope(rope)));
    assert_eq!(shared(&world), 0);
    let source = world.one(0, b"one", |guard, key| guard.peek(key).expect("there").rope().expect("a rope"));
    let mut other = source.clone();
    other.write(0, b"other");
    world.one(0, b"other", |guard, key| guard.set_made(key, Made::Rope(other)));
    drop(source);
    assert_about(shared(&world), 9 * CHUNK as u64);
    world.verify();
}
