//! WATCH: changes of the watched key set the flag, and nothing else does.

use std::sync::Arc;

use evenkeel_store::{Expire, Key, SlotGuard, Watch};

use crate::memory::guard as held_memory;
use crate::world::{START_MS, World};

/// Watches a key, calls `action`, and returns whether the flag is set.
fn touched(world: &mut World, db: u32, key: &[u8], action: impl FnOnce(&mut World)) -> bool {
    let watch = Arc::new(Watch::default());
    world.one(db, key, |guard, key| guard.watch(key, &watch));
    world.verify();
    action(world);
    world.one(db, key, |guard, key| guard.unwatch(key, &watch));
    world.verify();
    watch.is_touched()
}

fn on(key: &'static [u8], f: impl FnOnce(&mut SlotGuard<'_>, &Key<'_>)) -> impl FnOnce(&mut World) {
    move |world| world.one(0, key, f)
}

#[test]
fn changes_touch() {
    let world = &mut World::new(2);
    world.set(0, b"k", b"value", Expire::Clear);
    assert!(touched(world, 0, b"k", |world| world.set(0, b"k", b"other", Expire::Keep)));
    assert!(touched(world, 0, b"k", on(b"k", |guard, key| _ = guard.append(key, b"more"))));
    assert!(touched(world, 0, b"k", on(b"k", |guard, key| _ = guard.write_range(key, 0, b"x"))));
    assert!(touched(world, 0, b"k", on(b"k", |guard, key| assert!(guard.set_deadline(key, Some(u64::MAX))))));
    assert!(touched(world, 0, b"k", on(b"k", |guard, key| assert!(guard.remove(key)))));
    assert!(touched(world, 0, b"k", |world| world.set(0, b"k", b"value", Expire::Clear)), "it was not there");
    let rename =
        |world: &mut World| world.two((0, b"k"), (0, b"l"), |guard, from, to| guard.rename(from, to));
    assert!(touched(world, 0, b"k", rename));
    let copy =
        |world: &mut World| world.two((0, b"l"), (0, b"k"), |guard, from, to| guard.copy(from, to, 7_000));
    assert!(touched(world, 0, b"k", copy));
    assert!(!touched(world, 0, b"l", copy), "the origin of a copy is as it was");
    assert!(touched(world, 0, b"k", |world| drop(world.all(|guard| guard.flush(0)))));
}

#[test]
fn nothing_else_touches() {
    let world = &mut World::new(2);
    world.set(0, b"{t}k", b"value", Expire::Clear);
    assert!(!touched(world, 0, b"{t}k", |world| drop(world.get(0, b"{t}k"))));
    assert!(
        !touched(world, 0, b"{t}k", |world| world.set(0, b"{t}l", b"value", Expire::Clear)),
        "another key"
    );
    assert!(
        !touched(world, 0, b"{t}k", |world| world.set(1, b"{t}k", b"value", Expire::Clear)),
        "another database"
    );
    assert!(!touched(world, 0, b"{t}k", |world| drop(world.all(|guard| guard.flush(1)))));
    assert!(!touched(world, 0, b"none", |world| drop(world.all(|guard| guard.flush(0)))), "it was not there");
    assert!(!touched(world, 0, b"none", on(b"none", |guard, key| assert!(!guard.remove(key)))));
}

/// A session watches two keys of a slot, the first of them twice; giving up a key leaves the other.
#[test]
fn a_watch_may_have_several_keys() {
    let before = held_memory();
    let mut world = World::new(1);
    let watch = Arc::new(Watch::default());
    for key in [b"{t}k", b"{t}l", b"{t}k"] {
        world.one(0, key, |guard, key| guard.watch(key, &watch));
    }
    world.verify();
    world.one(0, b"{t}k", |guard, key| guard.unwatch(key, &watch));
    world.one(0, b"{t}k", |guard, key| guard.unwatch(key, &watch));
    world.verify();
    world.set(0, b"{t}k", b"value", Expire::Clear);
    assert!(!watch.is_touched());
    world.set(0, b"{t}l", b"value", Expire::Clear);
    assert!(watch.is_touched());
    // The watch on the other key is freed with the keyspace.
    drop((world, watch));
    assert_eq!(held_memory(), before);
}

/// Expiry changes a watched key, unless it had expired before.
#[test]
fn expiry_touches_once() {
    let world = &mut World::new(1);
    let read = |world: &mut World| drop(world.get(0, b"k"));
    world.set(0, b"k", b"value", Expire::At(START_MS + 10));
    let expire = |world: &mut World| {
        world.ctx.now_ms += 10;
        read(world);
    };
    assert!(touched(world, 0, b"k", expire));
    world.set(0, b"k", b"value", Expire::At(START_MS));
    assert!(!touched(world, 0, b"k", read), "it was as good as gone");
    world.set(0, b"k", b"value", Expire::At(START_MS));
    assert!(!touched(world, 0, b"k", |world| drop(world.all(|guard| guard.flush(0)))));
    world.set(0, b"k", b"value", Expire::At(START_MS));
    assert!(touched(world, 0, b"k", |world| world.set(0, b"k", b"new", Expire::Clear)));
}

/// EXEC asks for expired keys that no operation has met since; a key expired before the watch does not count.
#[test]
fn an_expired_key_that_is_still_there_has_lapsed() {
    let world = &mut World::new(1);
    let watch = Arc::new(Watch::default());
    let lapsed = |world: &mut World| world.one(0, b"k", |guard, key| guard.lapsed(key, &watch));
    assert!(!lapsed(world), "no key");
    world.set(0, b"k", b"value", Expire::At(START_MS + 10));
    assert!(world.one(0, b"k", |guard, key| guard.watch(key, &watch)));
    assert!(!world.one(0, b"k", |guard, key| guard.watch(key, &watch)), "watched already");
    assert!(!lapsed(world), "it lives");
    world.ctx.now_ms += 10;
    assert!(lapsed(world) && !watch.is_touched());
    assert_eq!(world.len(0), 1, "asking removes nothing");
    world.one(0, b"k", |guard, key| guard.unwatch(key, &watch));
    world.one(0, b"k", |guard, key| guard.watch(key, &watch));
    assert!(!lapsed(world), "it had expired when the watch began");
    world.one(0, b"k", |guard, key| guard.unwatch(key, &watch));
}

/// SWAPDB touches the keys of both databases; watchers stay with their database's number.
#[test]
fn swapping_touches_what_it_changes() {
    let world = &mut World::new(3);
    let swap = |world: &mut World| world.all(|guard| guard.swap(0, 1));
    world.set(0, b"here", b"value", Expire::Clear);
    world.set(1, b"there", b"value", Expire::Clear);
    assert!(touched(world, 0, b"here", swap));
    assert!(touched(world, 0, b"here", swap));
    assert!(!touched(world, 0, b"nowhere", swap));
    assert!(!touched(world, 2, b"here", swap), "another database");
    assert!(touched(world, 1, b"here", |world| {
        swap(world);
        swap(world);
    }));
    // A watcher of database 0 is notified of the keys that have come there.
    assert!(touched(world, 0, b"later", |world| {
        swap(world);
        world.set(0, b"later", b"value", Expire::Clear);
    }));
    // Expired keys count as missing, before and after.
    let world = &mut World::new(2);
    world.set(1, b"dead", b"value", Expire::At(START_MS));
    assert!(!touched(world, 0, b"dead", swap), "none has become a dead one");
    assert!(!touched(world, 0, b"dead", swap), "a dead one has become none");
    world.set(0, b"dead", b"value", Expire::At(START_MS));
    assert!(!touched(world, 0, b"dead", swap), "a dead one has become another");
    drop(world.all(|guard| guard.flush(0)));
    world.set(0, b"dead", b"alive", Expire::Clear);
    assert!(touched(world, 1, b"dead", swap), "a dead one has come alive");
}

/// A panicking thread cannot give up its watches.
#[test]
fn abandoned_watches_are_dropped() {
    let world = &mut World::new(2);
    let leave = |world: &mut World, count: usize| {
        for _ in 0..count {
            world.one(0, b"k", |guard, key| assert!(guard.watch(key, &Arc::default())));
        }
    };
    let kept = Arc::new(Watch::default());
    world.one(0, b"k", |guard, key| guard.watch(key, &kept));
    for left in [1, 50] {
        leave(world, left);
        world.verify();
        world.set(0, b"k", b"value", Expire::Clear);
        world.verify();
    }
    assert!(kept.is_touched());
    world.one(0, b"k", |guard, key| {
        guard.unwatch(key, &kept);
        assert!(!guard.has_listeners() || guard.watch(key, &kept));
    });
    world.one(0, b"k", |guard, key| guard.unwatch(key, &kept));
    world.one(0, b"k", |guard, _| assert!(!guard.has_listeners(), "nobody is left"));
    world.verify();
}
