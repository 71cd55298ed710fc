//! Expiring fields in expiring keys: their visibility, counts, sweep and eviction.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_store::collection::Hash;
use evenkeel_store::evict::{Order, Policy, Pool};
use evenkeel_store::{Edit, Expire, SLOTS};
use evenkeel_testkit::Random;

use crate::world::{START_MS, World, random, scaled, thread_time};

/// Fields with their deadlines.
type Fields = BTreeMap<u8, Option<u64>>;

#[derive(Clone, Debug, Default)]
struct Plain {
    fields: Fields,
    deadline: Option<u64>,
}

impl Plain {
    fn live(&self, now: u64) -> BTreeSet<u8> {
        let key_is_live = self.deadline.is_none_or(|deadline| deadline > now);
        let live = |deadline: &Option<u64>| deadline.is_none_or(|deadline| deadline > now);
        self.fields
            .iter()
            .filter(|(_, deadline)| key_is_live && live(deadline))
            .map(|(field, _)| *field)
            .collect()
    }
}

/// The world, and the expected content. The time of an expired field's removal is not checked.
struct Model {
    world: World,
    random: Random,
    keys: BTreeMap<Vec<u8>, Plain>,
    name: fn(&mut Random) -> Vec<u8>,
    pool: Pool,
}

impl Model {
    fn now(&self) -> u64 {
        self.world.ctx.now_ms
    }

    fn deadline(&mut self) -> Option<u64> {
        let now = self.now();
        match self.random.below(10) {
            0..3 => None,
            3 => Some(now + 1),
            4 => Some(now + (1 << 30)),
            _ => Some(now + self.random.below(20_000) as u64),
        }
    }

    /// The model's side of a write: expired fields are gone.
    fn settled(&mut self, key: &[u8]) -> &mut Plain {
        let now = self.now();
        let plain = self.keys.entry(key.to_vec()).or_default();
        if plain.deadline.is_some_and(|deadline| deadline <= now) {
            *plain = Plain::default();
        }
        plain
    }

    fn set(&mut self) {
        let (key, now) = ((self.name)(&mut self.random), self.now());
        let fields: Vec<(u8, Option<u64>)> =
            (0..self.random.below(4)).map(|_| (self.random.below(12) as u8, self.deadline())).collect();
        self.world.one(0, &key, |guard, key| {
            let hasher = &guard.keyspace().hasher;
            guard
                .edit(key, |hash: &mut Edit<'_, Hash>| {
                    for (field, deadline) in &fields {
                        let expire = deadline.map_or(Expire::Clear, Expire::At);
                        hash.set(hasher, now, &[*field], b"value", expire);
                        hash.changes += 1;
                    }
                })
                .expect("a hash");
        });
        self.settled(&key).fields.extend(fields);
    }

    fn remove_fields(&mut self) {
        let (key, now) = ((self.name)(&mut self.random), self.now());
        let fields: BTreeSet<u8> = (0..self.random.below(9)).map(|_| self.random.below(12) as u8).collect();
        let removed = self.world.one(0, &key, |guard, key| {
            let hasher = &guard.keyspace().hasher;
            let removed = guard.edit_if_there(key, |hash: &mut Edit<'_, Hash>| {
                let removed = fields.iter().filter(|field| hash.remove(hasher, now, &[**field])).count();
                hash.changes = removed as u64;
                removed
            });
            removed.expect("a hash").unwrap_or(0)
        });
        let plain = self.settled(&key);
        let live = plain.live(now);
        assert_eq!(removed, fields.iter().filter(|field| live.contains(field)).count());
        // Expired fields stay.
        plain.fields.retain(|field, _| !(fields.contains(field) && live.contains(field)));
        if plain.fields.is_empty() {
            *plain = Plain::default();
        }
    }

    fn remove(&mut self) {
        let key = (self.name)(&mut self.random);
        self.world.one(0, &key, |guard, key| guard.remove(key));
        self.keys.remove(&key);
    }

    fn set_deadline(&mut self) {
        let (key, deadline) = ((self.name)(&mut self.random), self.deadline());
        let done = self.world.one(0, &key, |guard, key| guard.set_deadline(key, deadline));
        let now = self.now();
        if done {
            self.settled(&key).deadline = deadline;
        } else {
            assert!(self.settled(&key).live(now).is_empty(), "what has live fields is there");
        }
    }

    fn rename_or_copy(&mut self) {
        let (from, to) = ((self.name)(&mut self.random), (self.name)(&mut self.random));
        let renames = self.random.chance(50);
        let there = self.world.two((0, &from), (0, &to), |guard, from, to| {
            let there = guard.look(from).is_some();
            match there {
                true if renames => guard.rename(from, to),
                true => guard.copy(from, to, 7_000),
                false => {}
            }
            there
        });
        if there {
            let plain = self.settled(&from).clone();
            if renames {
                self.keys.remove(&from);
            }
            self.keys.insert(to, plain);
        }
    }

    fn read(&mut self) {
        let (key, now) = ((self.name)(&mut self.random), self.now());
        let found = self.world.one(0, &key, |guard, key| {
            let hasher = &guard.keyspace().hasher;
            guard.collection::<Hash>(key).expect("a hash").map(|hash| {
                let live: BTreeSet<u8> = hash.iter(now).map(|(name, _)| name[0]).collect();
                assert_eq!(hash.len(now), live.len() as u64);
                (0..12).for_each(|n| assert_eq!(hash.get(hasher, now, &[n]).is_some(), live.contains(&n)));
                live
            })
        });
        let live = self.settled(&key).live(now);
        assert_eq!(found.unwrap_or_default(), live);
    }

    /// All keys, expired or not: whether they have a deadline of their own, and their fields.
    fn physical(&mut self) -> BTreeMap<Vec<u8>, (bool, BTreeSet<u8>)> {
        let now = std::mem::replace(&mut self.world.ctx.now_ms, 0);
        let mut keys = BTreeMap::new();
        self.world.none(|guard| {
            guard.for_each_key(0, |view| {
                let fields = view.collection::<Hash>().fields().map(|field| field.name[0]).collect();
                keys.insert(view.key().to_vec(), (view.deadline().is_some(), fields));
            });
        });
        self.world.ctx.now_ms = now;
        keys
    }

    fn evict(&mut self) {
        let before = self.physical();
        let policy = Policy { volatile_only: true, order: Order::Ttl };
        let pool = &mut self.pool;
        let evicted = self.world.none(|guard| guard.evict(policy, 5, 1, pool));
        assert_eq!(evicted, before.values().any(|(timed, _)| *timed), "a timed field makes no key volatile");
        let after = self.physical();
        let gone: Vec<_> = before.into_iter().filter(|(key, _)| !after.contains_key(key)).collect();
        assert_eq!(gone.len(), usize::from(evicted));
        for (key, (timed, _)) in gone {
            assert!(timed);
            self.keys.remove(&key);
        }
    }

    fn sweep(&mut self) {
        self.world.sweep(0);
        let (now, physical) = (self.now(), self.physical());
        for (key, plain) in &mut self.keys {
            let live = plain.live(now);
            let left = physical.get(key).map_or(BTreeSet::new(), |(_, fields)| fields.clone());
            assert!(live.is_subset(&left), "only what has expired is gone");
            plain.fields.retain(|field, _| left.contains(field));
        }
        // A removed key has lost its own deadline, too.
        self.keys.retain(|key, _| physical.contains_key(key));
        // Sweeps have a resolution of 128 ms.
        let due = |deadline: Option<u64>| deadline.is_some_and(|deadline| deadline <= now - 128);
        self.world.none(|guard| {
            guard.for_each_key(0, |view| {
                assert!(!due(view.deadline()));
                let hash = view.collection::<Hash>();
                assert!(hash.fields().all(|field| !due(field.deadline)), "due fields are gone");
                assert!(hash.fields().len() > 0, "and keys without any");
            });
        });
    }

    fn check_counts(&mut self) {
        self.world.verify();
        let physical = self.physical();
        assert_eq!(self.world.len(0), physical.len());
        assert_eq!(self.world.timed_len(0), physical.values().filter(|(timed, _)| *timed).count());
        self.world.none(|guard| {
            let (mut hashes, now) = (0, guard.ctx.now_ms);
            guard.ctx.now_ms = 0;
            guard.for_each_key(0, |view| hashes += usize::from(view.collection::<Hash>().timed_len() > 0));
            guard.ctx.now_ms = now;
            assert_eq!(guard.keyspace().timed_hashes(guard.ctx, 0), hashes);
        });
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..30 => self.set(),
            30..40 => self.remove_fields(),
            40..44 => self.remove(),
            44..50 => self.set_deadline(),
            50..55 => self.rename_or_copy(),
            55..58 => self.world.ctx.now_ms += self.random.below(3000) as u64,
            58 => self.sweep(),
            59 => self.evict(),
            _ => self.read(),
        }
    }
}

fn run(name: fn(&mut Random) -> Vec<u8>, test: &str) {
    let world = World::new(2);
    let mut model = Model { world, random: random(test), keys: BTreeMap::new(), name, pool: Pool::default() };
    let steps = scaled(200, 30_000, 100_000);
    for step in 0..steps {
        model.step();
        if step % (steps / 30) == 0 {
            model.check_counts();
        }
        if model.random.below(steps / 3) == 0 {
            // Counts move with the data.
            model.world.all(|guard| guard.swap(0, 1));
            assert_eq!((model.world.len(0), model.world.timed_len(0)), (0, 0));
            model.world.verify();
            model.world.all(|guard| guard.swap(0, 1));
        }
    }
    model.world.ctx.now_ms += 1 << 31;
    model.sweep();
    model.check_counts();
    assert_eq!(model.world.timed_len(0), 0);
    assert!(model.world.ctx.now_ms > START_MS && model.world.keyspace.total().expired_fields > 0);
    drop(model.world.all(|guard| guard.flush(0)));
    model.world.verify();
}

#[test]
fn hashes_over_all_slots() {
    run(|random| format!("key:{}", random.below(500)).into_bytes(), "hashes_over_all_slots");
}

#[test]
fn few_hashes() {
    run(|random| vec![b'k'; random.below(5)], "few_hashes");
}

#[test]
fn hashes_of_one_slot() {
    run(|random| format!("{{tag}}{}", random.below(4000)).into_bytes(), "hashes_of_one_slot");
}

/// A thread that waits for the slot of a hash with many due fields waits for a single visit at most.
#[test]
fn many_due_fields_are_removed_in_small_steps() {
    const LONGEST: Duration = Duration::from_millis(2);
    for spread in [1, 1000] {
        // A virtual machine does not know when it lost its core; only a step that is too long in each run
        // counts.
        let longest = (0..3).map(|_| longest_step(spread)).find(|longest| *longest < LONGEST);
        assert!(longest.is_some(), "a step of more than {LONGEST:?} in each of three runs");
    }
}

/// Removes many fields with `spread` different deadlines; returns the longest step.
fn longest_step(spread: u32) -> Duration {
    const FIELDS: u32 = scaled(200, 100_000, 300_000) as u32;
    let mut world = World::new(1);
    world.one(0, b"h", |guard, key| {
        let (hasher, now) = (&guard.keyspace().hasher, guard.ctx.now_ms);
        guard
            .edit(key, |hash: &mut Edit<'_, Hash>| {
                for number in 0..FIELDS {
                    let expire = Expire::At(now + 1 + u64::from(number % spread));
                    hash.set(hasher, now, &number.to_be_bytes(), b"value", expire);
                }
                hash.set(hasher, now, b"stays", b"value", Expire::Clear);
                hash.changes = 1;
            })
            .expect("a hash");
    });
    // A snapshot shares the hash, so that pages are copied.
    let clone = world.one(0, b"h", |guard, key| {
        Hash::clone(&guard.collection::<Hash>(key).expect("a hash").expect("it is there"))
    });
    world.ctx.now_ms += 2000;
    let now = world.ctx.now_ms;
    let (mut longest, mut visits, mut next) = (Duration::ZERO, 0_u64, Some(0));
    while let Some(from) = next {
        let before = thread_time();
        next = world.none(|guard| guard.sweep(0, from, SLOTS, || true).next);
        longest = longest.max(thread_time() - before);
        visits += 1;
        if visits == 3 {
            let len = world.one(0, b"h", |guard, key| {
                guard.collection::<Hash>(key).map(|hash| hash.map(|hash| hash.len(now)))
            });
            assert_eq!(len, Ok(Some(1)), "expired fields are not counted, although they are there");
        }
    }
    println!("{FIELDS} fields, {spread} deadlines: {visits} visits, the longest {longest:?}");
    assert!(visits >= u64::from(FIELDS) / 64, "{visits} visits");
    assert_eq!(world.keyspace.total().expired_fields, u64::from(FIELDS));
    assert_eq!((clone.len(START_MS), clone.len(now)), (u64::from(FIELDS) + 1, 1));
    world.verify();
    longest
}

/// The whole key goes in a single step.
#[test]
fn a_hash_all_of_whose_fields_are_due_goes_as_a_whole() {
    const FIELDS: u32 = scaled(300, 10_000, 10_000) as u32;
    let mut world = World::new(1);
    world.one(0, b"h", |guard, key| {
        let (hasher, now) = (&guard.keyspace().hasher, guard.ctx.now_ms);
        guard
            .edit(key, |hash: &mut Edit<'_, Hash>| {
                for number in 0..FIELDS {
                    hash.set(hasher, now, &number.to_be_bytes(), b"value", Expire::At(now + 5));
                }
                hash.changes = 1;
            })
            .expect("a hash");
    });
    world.ctx.now_ms += 200;
    let swept = world.none(|guard| guard.sweep(0, 0, SLOTS, || false));
    assert_eq!((swept.removed, world.len(0)), (0, 0));
    assert_eq!(world.keyspace.total().expired_fields, u64::from(FIELDS));
    assert_eq!(world.lazy_free.len(), usize::from(FIELDS == 10_000), "what is much is freed elsewhere");
    world.verify();
}

/// A shrinking table keeps the deadlines of fields, even if no key has a deadline of its own.
#[test]
fn deadlines_of_fields_outlive_most_keys() {
    let mut world = World::new(1);
    let names: Vec<String> = (0..scaled(60, 600, 600)).map(|number| format!("{{tag}}{number}")).collect();
    for name in &names {
        world.one(0, name.as_bytes(), |guard, key| {
            let (hasher, now) = (&guard.keyspace().hasher, guard.ctx.now_ms);
            guard
                .edit(key, |hash: &mut Edit<'_, Hash>| {
                    hash.set(hasher, now, b"stays", b"value", Expire::Clear);
                    hash.set(hasher, now, b"goes", b"value", Expire::At(now + 1000));
                    hash.changes = 2;
                })
                .expect("a hash");
        });
    }
    for name in &names[5..] {
        assert!(world.one(0, name.as_bytes(), |guard, key| guard.remove(key)));
    }
    world.verify();
    world.ctx.now_ms += 2000;
    world.sweep(0);
    assert_eq!((world.len(0), world.keyspace.total().expired_fields), (5, 5));
    world.verify();
}
