//! Waiters for keys, and their wake-up.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_store::{Expire, Kind, Place, SLOTS, SlotGuard, Waiter, Wants};

use crate::world::{World, random, scaled};

struct One {
    name: u64,
    wants: Wants,
    beyond: Vec<Place>,
}

impl Waiter for One {
    fn wants(&self) -> Wants {
        self.wants
    }

    fn beyond(&self) -> &[Place] {
        &self.beyond
    }
}

fn waiter(name: u64, wants: Wants, beyond: &[Place]) -> Arc<One> {
    Arc::new(One { name, wants, beyond: beyond.to_vec() })
}

fn name_of(waiter: Arc<dyn Waiter>) -> u64 {
    let waiter: Arc<dyn Any + Send + Sync> = waiter;
    waiter.downcast::<One>().expect("nothing else waits here").name
}

/// Puts a waiter for strings into a queue; its ticket is its name.
fn wait(world: &mut World, db: u32, key: &[u8], wants: Wants, beyond: &[Place]) -> u64 {
    let ticket = world.keyspace.ticket();
    world.one(db, key, |guard, key| guard.wait(key, ticket, waiter(ticket, wants, beyond)));
    ticket
}

/// The keys that can be served with the held locks, and for each the waiters that want it, in order.
fn woken(guard: &mut SlotGuard<'_>) -> Vec<(Vec<u8>, Vec<u64>)> {
    let mut all = Vec::new();
    while let Some(woken) = guard.next_woken() {
        let key = guard.keyspace().key(woken.place.db() as u32, &woken.key);
        let (mut names, mut after) = (Vec::new(), 0);
        while let Some((ticket, waiter)) = guard.next_waiter(&key, after) {
            after = ticket;
            names.push(name_of(waiter));
        }
        all.push((woken.key.to_vec(), names));
    }
    all
}

fn string() -> Wants {
    Wants::kind(Kind::String)
}

#[test]
fn a_write_records_its_key_once_if_there_are_waiters() {
    let mut world = World::new(1);
    let first = wait(&mut world, 0, b"k", string(), &[]);
    let second = wait(&mut world, 0, b"k", Wants::any_change(), &[]);
    wait(&mut world, 0, b"other", string(), &[]);
    assert_eq!(world.keyspace.waited_keys(), [2, 1]);
    let seen = world.one(0, b"k", |guard, key| {
        guard.set_string(key, b"v", Expire::Clear);
        guard.append(key, b"w").expect("a string");
        woken(guard)
    });
    assert_eq!(seen, [(b"k".to_vec(), vec![first, second])]);
    let seen = world.one(0, b"k", |guard, key| {
        assert!(guard.remove(key));
        woken(guard)
    });
    assert_eq!(seen, [(b"k".to_vec(), vec![second])], "who wants a string does not hear that there is none");
    let gone = world.one(0, b"k", |guard, key| {
        let gone = (guard.unwait(key, first), guard.unwait(key, first), guard.unwait(key, second));
        guard.set_string(key, b"v", Expire::Clear);
        assert_eq!(woken(guard), []);
        gone
    });
    assert_eq!(gone, (true, false, true));
    assert_eq!(world.keyspace.waited_keys(), [1, 0]);
    world.verify();
}

/// The other thread may be about to serve the same key: a writer must still serve before it unlocks.
#[test]
fn each_thread_records_a_key_for_itself() {
    let mut world = World::new(1);
    let ticket = wait(&mut world, 0, b"k", string(), &[]);
    let mut other = world.keyspace.thread_context();
    other.now_ms = crate::world::START_MS;
    world.keyspace.enter(&mut other);
    let key = world.keyspace.key(0, b"k");
    world.keyspace.hold_one(&mut other, key.place).set_string(&key, b"v", Expire::Clear);
    let seen = world.one(0, b"k", |guard, key| {
        guard.set_string(key, b"w", Expire::Clear);
        woken(guard)
    });
    assert_eq!(seen, [(b"k".to_vec(), vec![ticket])]);
    assert_eq!(other.next_unserved(), Some(key.place));
    let seen = woken(&mut world.keyspace.hold_one(&mut other, key.place));
    assert_eq!(seen, [(b"k".to_vec(), vec![ticket])]);
    assert_eq!(other.unserved(), 0);
    world.keyspace.leave(&mut other);
}

#[test]
fn a_write_locks_the_keys_of_its_waiters_and_of_their_waiters() {
    let mut world = World::new(2);
    let place = |world: &World, db, key: &[u8]| world.keyspace.key(db, key).place;
    let chain: Vec<Place> = [&b"a"[..], b"b", b"c", b"d"].map(|key| place(&world, 0, key)).into();
    let far = place(&world, 1, b"z");
    wait(&mut world, 0, b"a", string(), &[chain[1], chain[0]]);
    wait(&mut world, 0, b"b", string(), &[chain[2], far]);
    wait(&mut world, 0, b"c", string(), &[chain[0]]);
    let mut places = vec![chain[0]];
    world.keyspace.enter(&mut world.ctx);
    {
        let guard = world.keyspace.hold_to_write(&mut world.ctx, &mut places);
        assert!([chain[0], chain[1], chain[2], far].iter().all(|place| guard.holds(*place)));
        assert!(!guard.holds(chain[3]) && !guard.holds_all());
    }
    world.keyspace.leave(&mut world.ctx);
    // A key that cannot be served with the held locks stays recorded.
    world.one(0, b"a", |guard, key| {
        guard.set_string(key, b"v", Expire::Clear);
        assert_eq!(woken(guard), []);
    });
    assert!(world.ctx.has_woken());
    // The next thread that holds more locks finds it, whatever its own command is.
    assert_eq!(world.all(woken).len(), 1);
    assert!(!world.ctx.has_woken());
    assert_eq!(world.ctx.next_unserved(), None);
}

#[test]
fn flushing_and_swapping_keep_waiters_with_the_database_number() {
    let mut world = World::new(2);
    let here = wait(&mut world, 0, b"k", string(), &[]);
    let gone = wait(&mut world, 0, b"k", Wants::any_change(), &[]);
    let there = wait(&mut world, 1, b"k", string(), &[]);
    world.set(0, b"k", b"v", Expire::Clear);
    assert_eq!(world.all(woken), [(b"k".to_vec(), vec![here, gone])]);
    let seen = world.all(|guard| {
        guard.swap(0, 1);
        woken(guard)
    });
    assert_eq!(seen, [(b"k".to_vec(), vec![gone]), (b"k".to_vec(), vec![there])]);
    world.set(0, b"k", b"v", Expire::Clear);
    assert_eq!(world.all(woken), [(b"k".to_vec(), vec![here, gone])]);
    let seen = world.all(|guard| {
        drop(guard.flush(0));
        woken(guard)
    });
    assert_eq!(seen, [(b"k".to_vec(), vec![gone])]);
    world.verify();
}

#[test]
fn sweeps_and_lookups_of_expired_keys_are_writes() {
    let mut world = World::new(1);
    for key in [&b"a"[..], b"b"] {
        wait(&mut world, 0, key, Wants::any_change(), &[]);
        world.set(0, key, b"v", Expire::At(crate::world::START_MS + 100));
    }
    assert_eq!(world.all(woken).len(), 2);
    world.ctx.now_ms += 1000;
    assert_eq!(world.get(0, b"a"), None);
    assert_eq!(world.ctx.next_unserved(), Some(world.keyspace.key(0, b"a").place));
    world.none(|guard| guard.sweep(0, 0, SLOTS, || false));
    assert_eq!(world.all(woken).iter().map(|(key, _)| &key[..]).collect::<Vec<_>>(), [b"a", b"b"]);
}

/// Queues compared with plain lists, in any order of arrivals, departures and writes.
#[test]
fn queues_keep_the_order_whatever_happens() {
    let (mut world, mut random) = (World::new(1), random("queues"));
    // Some of them share a slot.
    let keys: [&[u8]; 6] = [b"{a}1", b"{a}2", b"{a}3", b"b", b"c", b"{b}"];
    let mut model: BTreeMap<&[u8], Vec<(u64, bool)>> = BTreeMap::new();
    for _ in 0..scaled(200, 5_000, 50_000) {
        let key = keys[random.below(keys.len())];
        match random.below(5) {
            0 | 1 => {
                let any = random.chance(30);
                let wants = if any { Wants::any_change() } else { string() };
                let beyond: Vec<Place> = (0..random.below(3))
                    .map(|_| world.keyspace.key(0, keys[random.below(6)]).place)
                    .collect();
                let ticket = wait(&mut world, 0, key, wants, &beyond);
                model.entry(key).or_default().push((ticket, any));
            }
            2 => {
                if let Some(queue) = model.get_mut(key) {
                    let (ticket, _) = queue.remove(random.below(queue.len()));
                    assert!(world.one(0, key, |guard, key| guard.unwait(key, ticket)));
                    model.retain(|_, queue| !queue.is_empty());
                }
            }
            way => {
                let seen = world.all(|guard| {
                    let key = guard.keyspace().key(0, key);
                    if way == 3 {
                        guard.set_string(&key, b"v", Expire::Clear);
                    } else if !guard.remove(&key) {
                        return None;
                    }
                    Some(woken(guard))
                });
                let wants = |any: &bool| way == 3 || *any;
                let expected = model.get(key).map(|queue| {
                    let names = queue.iter().filter(|(_, any)| wants(any)).map(|(ticket, _)| *ticket);
                    (key.to_vec(), names.collect())
                });
                assert!(seen.is_none_or(|seen| seen == Vec::from_iter(expected)));
            }
        }
        let on_no_key = model.values().filter(|queue| queue.iter().any(|(_, any)| *any)).count();
        assert_eq!(world.keyspace.waited_keys(), [model.len(), on_no_key]);
        if random.below(100) == 0 {
            world.verify();
        }
    }
}
