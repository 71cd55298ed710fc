//! Random commands against plain maps.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_store::evict::{Order, Policy, Pool};
use evenkeel_store::key::slot_of;
use evenkeel_store::rope::{CHUNK, FLAT_MAX};
use evenkeel_store::snapshot::{Sink, Walk};
use evenkeel_store::{Expire, SLOTS, SlotSet, ThreadContext, View};
use evenkeel_testkit::Random;

use crate::compaction::Compactor;
use crate::memory::guard as held_memory;
use crate::world::{START_MS, World, random, scaled};

const DATABASES: usize = 3;

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    value: Vec<u8>,
    deadline: Option<u64>,
}

/// The world, and its expected content. An expired key stays in the model as long as in the world: until an
/// operation meets it.
struct Model {
    world: World,
    random: Random,
    /// Returns random names of keys.
    name: fn(&mut Random) -> Vec<u8>,
    databases: Vec<BTreeMap<Vec<u8>, Entry>>,
    /// Data loaded into hidden databases.
    hidden: Vec<BTreeMap<Vec<u8>, Entry>>,
    /// Expired keys are not removed.
    hides: bool,
    pools: Vec<(Policy, Pool)>,
    expired: u64,
    /// The snapshot thread's context.
    ctx: ThreadContext,
    snapshot: Option<Snapshot>,
    snapshots: usize,
    snapshots_lost: usize,
    compactor: Compactor,
}

/// A snapshot in progress, the data at its start, and the data received.
struct Snapshot {
    walk: Walk,
    expected: Vec<BTreeMap<Vec<u8>, Entry>>,
    got: Got,
    waiting_max: usize,
}

struct Got(Vec<BTreeMap<Vec<u8>, Entry>>);

impl Sink for Got {
    fn take(&mut self, db: u32, view: View<'_>) {
        let entry = Entry { value: view.string().bytes().into_owned(), deadline: view.deadline() };
        let twice = self.0[db as usize].insert(view.key().to_vec(), entry);
        assert!(twice.is_none(), "each key comes once");
    }

    fn share(&mut self, db: u32, view: View<'_>) -> usize {
        self.take(db, view);
        view.string().len()
    }
}

impl Model {
    fn new(name: fn(&mut Random) -> Vec<u8>, random: Random) -> Model {
        let orders = [Order::Lru, Order::Lfu, Order::Ttl, Order::Random];
        let policies = orders.iter().flat_map(|order| {
            [true, false].map(|volatile_only| (Policy { volatile_only, order: *order }, Pool::default()))
        });
        let world = World::new(DATABASES);
        Model {
            ctx: world.keyspace.thread_context(),
            snapshot: None,
            snapshots: 0,
            snapshots_lost: 0,
            compactor: Compactor::default(),
            world,
            random,
            name,
            databases: vec![BTreeMap::new(); DATABASES],
            hidden: vec![BTreeMap::new(); DATABASES],
            hides: false,
            pools: policies.collect(),
            expired: 0,
        }
    }

    /// A random key, more often than not an existing key.
    fn key(&mut self) -> (u32, Vec<u8>) {
        let db = self.random.below(DATABASES);
        if self.random.chance(50) {
            let from = (self.name)(&mut self.random);
            if let Some((key, _)) = self.databases[db].range(from..).next() {
                return (db as u32, key.clone());
            }
        }
        (db as u32, (self.name)(&mut self.random))
    }

    fn value(&mut self) -> Vec<u8> {
        let len = match self.random.below(400) {
            0 => CHUNK - 1 + self.random.below(3),
            1 => self.random.below(5 * CHUNK),
            2..10 => FLAT_MAX - 1 + self.random.below(3),
            10..30 => 0,
            _ => self.random.below(48),
        };
        let byte = self.random.draw() as u8;
        let mut value = vec![byte; len];
        if let Some(last) = value.last_mut() {
            *last = self.random.draw() as u8;
        }
        value
    }

    fn deadline(&mut self) -> u64 {
        let now = self.world.ctx.now_ms;
        match self.random.below(20) {
            0 => u64::MAX,
            1 => 1,
            2 => now,
            3 => now + 1,
            4 => now.saturating_add(1 << 45),
            _ => now + self.random.below(20_000) as u64,
        }
    }

    /// The model's side of a look-up: an expired key is removed, unless the thread keeps expired keys.
    fn live(&mut self, db: u32, key: &[u8], keep: bool) -> Option<&mut Entry> {
        let (now, map) = (self.world.ctx.now_ms, &mut self.databases[db as usize]);
        if map.get(key)?.deadline.is_some_and(|deadline| deadline <= now) {
            if !keep {
                map.remove(key);
                self.expired += 1;
            }
            return None;
        }
        map.get_mut(key)
    }

    fn keeps(&self) -> bool {
        self.world.ctx.keep_expired || self.hides
    }

    fn step(&mut self) {
        if self.snapshot.is_some() && self.random.chance(10) {
            self.step_snapshot();
        }
        if self.random.chance(5) {
            self.compactor.step(&self.world.keyspace, &mut self.world.ctx, &mut self.random);
        }
        match self.random.below(1000) {
            0..3 => self.flush_or_swap(),
            3..6 => self.sweep(),
            6..60 => self.evict(),
            60..80 => self.world.ctx.now_ms += self.random.below(2000) as u64,
            80..83 => self.world.ctx.keep_expired = self.random.chance(30),
            83..85 => self.hide_expired(),
            85..97 => self.random_key(),
            97..100 => self.begin_snapshot(),
            100..110 => self.load_beside(),
            110..400 => self.set(),
            400..470 => self.append(),
            470..540 => self.write_range(),
            540..650 => self.remove(),
            650..750 => self.set_deadline(),
            750..850 => self.rename_or_copy(),
            _ => self.read(),
        }
    }

    fn set(&mut self) {
        let ((db, key), value) = (self.key(), self.value());
        let expire = match self.random.below(5) {
            0 => Expire::Keep,
            1 | 2 => Expire::Clear,
            _ => Expire::At(self.deadline()),
        };
        self.world.set(db, &key, &value, expire);
        let before = self.live(db, &key, false).and_then(|entry| entry.deadline);
        let deadline = match expire {
            Expire::Keep => before,
            Expire::Clear => None,
            Expire::At(deadline) => Some(deadline),
        };
        self.databases[db as usize].insert(key, Entry { value, deadline });
    }

    fn append(&mut self) {
        let ((db, key), value) = (self.key(), self.value());
        let len = self.world.one(db, &key, |guard, key| guard.append(key, &value)).expect("a string");
        match self.live(db, &key, false) {
            Some(entry) => entry.value.extend_from_slice(&value),
            None => drop(self.databases[db as usize].insert(key.clone(), Entry { value, deadline: None })),
        }
        assert_eq!(len, self.databases[db as usize][&key].value.len());
    }

    fn write_range(&mut self) {
        let ((db, key), value) = (self.key(), self.value());
        let offset = if self.random.chance(5) { self.random.below(6 * CHUNK) } else { self.random.below(60) };
        let len =
            self.world.one(db, &key, |guard, key| guard.write_range(key, offset, &value)).expect("a string");
        if self.live(db, &key, false).is_none() {
            if value.is_empty() {
                return assert_eq!(len, 0);
            }
            self.databases[db as usize].insert(key.clone(), Entry { value: Vec::new(), deadline: None });
        }
        let entry = self.live(db, &key, false).expect("just made");
        if !value.is_empty() {
            let end = offset + value.len();
            entry.value.resize(entry.value.len().max(end), 0);
            entry.value[offset..end].copy_from_slice(&value);
        }
        assert_eq!(len, entry.value.len());
    }

    fn remove(&mut self) {
        let (db, key) = self.key();
        let removed = self.world.one(db, &key, |guard, key| guard.remove(key));
        // A hidden expired key can still be removed.
        let is_hidden = self.hides && self.databases[db as usize].contains_key(&key);
        assert_eq!(removed, is_hidden || self.live(db, &key, self.keeps()).is_some());
        if removed {
            self.databases[db as usize].remove(&key);
        }
    }

    fn set_deadline(&mut self) {
        let (db, key) = self.key();
        let deadline = self.random.chance(70).then(|| self.deadline());
        let done = self.world.one(db, &key, |guard, key| guard.set_deadline(key, deadline));
        let entry = self.live(db, &key, self.keeps());
        assert_eq!(done, entry.is_some());
        if let Some(entry) = entry {
            entry.deadline = deadline;
        }
    }

    fn rename_or_copy(&mut self) {
        let ((from_db, from), (to_db, to)) = (self.key(), self.key());
        let rename = self.random.chance(50);
        let there = self.world.two((from_db, &from), (to_db, &to), |guard, from, to| {
            let there = guard.look(from).is_some();
            match there {
                true if rename => guard.rename(from, to),
                true => guard.copy(from, to, 7_000),
                false => {}
            }
            there
        });
        let entry = self.live(from_db, &from, self.keeps()).cloned();
        assert_eq!(there, entry.is_some());
        let Some(entry) = entry else { return };
        if rename {
            self.databases[from_db as usize].remove(&from);
        }
        self.live(to_db, &to, false);
        self.databases[to_db as usize].insert(to, entry);
    }

    fn read(&mut self) {
        let (db, key) = self.key();
        let found = self.world.one(db, &key, |guard, key| {
            guard
                .read(key)
                .map(|view| Entry { value: view.string().bytes().into_owned(), deadline: view.deadline() })
        });
        let keep = self.keeps();
        assert_eq!(found.as_ref(), self.live(db, &key, keep).map(|entry| &*entry));
    }

    fn random_key(&mut self) {
        let db = self.random.below(DATABASES);
        let found = self.world.none(|guard| guard.random_key(db));
        let now = self.world.ctx.now_ms;
        let live = |entry: &Entry| entry.deadline.is_none_or(|deadline| deadline > now);
        let any_live = self.databases[db].values().any(live);
        match found {
            // While expired keys stay, one of them is the answer if no key is live.
            Some(key) => assert!(live(&self.databases[db][&key]) || self.keeps() && !any_live),
            None => assert!(!any_live, "there was one"),
        }
        // If nearly all keys have expired, the search removes some of them.
        if self.world.len(db) != self.databases[db].len() {
            let physical = self.physical(db);
            let gone = self.forget(db, &physical);
            assert!(gone.iter().all(|(_, entry)| !live(entry)), "{gone:?}");
            self.expired += gone.len() as u64;
        }
    }

    fn flush_or_swap(&mut self) {
        let (one, other) = (self.random.below(DATABASES), self.random.below(DATABASES));
        if self.random.chance(70) {
            self.world.all(|guard| guard.swap(one, other));
            self.databases.swap(one, other);
        } else {
            drop(self.world.all(|guard| guard.flush(one)));
            self.databases[one].clear();
        }
    }

    fn hide_expired(&mut self) {
        self.hides = self.random.chance(30);
        let hides = self.hides;
        self.world.all(|guard| guard.hide_expired(hides));
    }

    /// Loads some keys into a hidden database, or puts the hidden database in place of the visible.
    fn load_beside(&mut self) {
        let db = self.random.below(DATABASES);
        let hidden = self.world.keyspace.hidden(db).expect("there are few databases");
        if self.random.chance(10) {
            drop(self.world.all(|guard| {
                guard.swap(db, hidden);
                guard.flush(hidden)
            }));
            self.databases[db] = std::mem::take(&mut self.hidden[db]);
            return;
        }
        for _ in 0..self.random.below(20) {
            let (key, value) = ((self.name)(&mut self.random), self.value());
            let deadline = self.random.chance(50).then_some(u64::MAX);
            let expire = deadline.map_or(Expire::Clear, Expire::At);
            self.world.set(hidden as u32, &key, &value, expire);
            self.hidden[db].insert(key, Entry { value, deadline });
        }
    }

    fn begin_snapshot(&mut self) {
        if self.snapshot.is_some() {
            return;
        }
        // Some snapshots are lost because of a low limit for their waiting data.
        let waiting_max = if self.random.chance(25) { self.random.below(300) } else { usize::MAX };
        // And some are of a part of the slots.
        let is_whole = self.random.chance(50);
        let chosen = |_: &u16| is_whole || self.random.chance(50);
        let slots: SlotSet = (0..SLOTS as u16).filter(chosen).collect();
        let walk = self.world.all(|guard| guard.begin_snapshot_of(&slots, waiting_max));
        let got = Got(vec![BTreeMap::new(); DATABASES]);
        let mut expected = self.databases.clone();
        expected.iter_mut().for_each(|db| db.retain(|key, _| slots.contains(slot_of(key).into())));
        self.snapshot = Some(Snapshot { walk, expected, got, waiting_max });
    }

    /// Some steps of the walk, or its end.
    fn step_snapshot(&mut self) {
        let keyspace = &self.world.keyspace;
        let snapshot = self.snapshot.as_mut().expect("one has begun");
        assert!(keyspace.handed_over() <= snapshot.waiting_max, "no more waits than may");
        for _ in 0..self.random.below(64) {
            snapshot.walk.step(keyspace, &mut self.ctx, &mut snapshot.got);
        }
        if !snapshot.walk.is_done() || self.random.chance(50) {
            return;
        }
        let Snapshot { walk, expected, mut got, .. } = self.snapshot.take().expect("one has begun");
        let rest = self.world.all(|guard| guard.end_snapshot(walk));
        let is_lost = rest.is_lost();
        rest.finish(&self.world.keyspace, &mut got);
        assert_eq!(self.world.keyspace.handed_over(), 0);
        if is_lost {
            self.snapshots_lost += 1;
            return;
        }
        assert!(got.0 == expected, "a snapshot is what was there when it began");
        self.snapshots += 1;
    }

    fn sweep(&mut self) {
        let (db, now) = (self.random.below(DATABASES), self.world.ctx.now_ms);
        let removed = self.world.sweep(db);
        if self.hides {
            return assert_eq!(removed, 0, "nothing is removed while it is hidden");
        }
        let before = self.databases[db].len();
        // Sweeps have a resolution of 128 ms.
        self.databases[db].retain(|_, entry| entry.deadline.is_none_or(|deadline| deadline > now - 128));
        let physical = self.physical(db);
        let late = self.forget(db, &physical);
        assert!(
            late.iter().all(|(_, entry)| entry.deadline.is_some_and(|deadline| deadline <= now)),
            "{late:?}"
        );
        assert_eq!(removed, before - self.databases[db].len());
        self.expired += removed as u64;
    }

    fn evict(&mut self) {
        let at = self.random.below(self.pools.len());
        let (policy, pool) = &mut self.pools[at];
        let policy = *policy;
        let evicted = self.world.none(|guard| guard.evict(policy, 5, 1, pool));
        let goes = |entry: &Entry| !policy.volatile_only || entry.deadline.is_some();
        assert_eq!(evicted, self.databases.iter().flat_map(BTreeMap::values).any(goes));
        if !evicted {
            return;
        }
        let db =
            (0..DATABASES).find(|db| self.world.len(*db) != self.databases[*db].len()).expect("one key less");
        let physical = self.physical(db);
        let gone = self.forget(db, &physical);
        assert_eq!(gone.len(), 1);
        assert!(!policy.volatile_only || gone[0].1.deadline.is_some(), "it had a deadline");
    }

    /// Removes missing keys from the model, and returns them.
    fn forget(&mut self, db: usize, there: &BTreeSet<Vec<u8>>) -> Vec<(Vec<u8>, Entry)> {
        let map = &mut self.databases[db];
        let gone: Vec<Vec<u8>> = map.keys().filter(|key| !there.contains(*key)).cloned().collect();
        gone.into_iter().filter_map(|key| map.remove_entry(&key)).collect()
    }

    /// All keys, expired or not.
    fn physical(&mut self, db: usize) -> BTreeSet<Vec<u8>> {
        let now = std::mem::replace(&mut self.world.ctx.now_ms, 0);
        let mut keys = BTreeSet::new();
        self.world.none(|guard| {
            guard.for_each_key(db, |view| assert!(keys.insert(view.key().to_vec()), "each key once"));
        });
        self.world.ctx.now_ms = now;
        keys
    }

    fn check_counts(&mut self) {
        for db in 0..DATABASES {
            assert_eq!(self.world.len(db), self.databases[db].len());
            let timed = self.databases[db].values().filter(|entry| entry.deadline.is_some()).count();
            assert_eq!(self.world.timed_len(db), timed);
        }
        assert_eq!(self.world.keyspace.total().expired, self.expired);
    }

    fn check_everything(&mut self) {
        self.check_counts();
        self.world.verify();
        let now = std::mem::replace(&mut self.world.ctx.now_ms, 0);
        for db in 0..DATABASES {
            let mut there = BTreeMap::new();
            self.world.none(|guard| {
                guard.for_each_key(db, |view| {
                    let value = view.string().bytes().into_owned();
                    there.insert(view.key().to_vec(), Entry { value, deadline: view.deadline() });
                });
            });
            assert!(there == self.databases[db], "database {db} differs from its model");
        }
        self.world.ctx.now_ms = now;
    }
}

fn run(name: fn(&mut Random) -> Vec<u8>, steps: usize, test: &str) {
    let random = random(test);
    let before = held_memory();
    let mut model = Model::new(name, random);
    for step in 0..steps {
        model.step();
        if step % 64 == 0 {
            model.check_counts();
        }
        if step % (steps / 8) == 0 {
            model.check_everything();
        }
    }
    model.check_everything();
    assert!(model.world.ctx.now_ms > START_MS);
    // A run has few snapshots, so the test waits for a complete and a lost snapshot.
    for _ in 0..20 * steps {
        if cfg!(miri) || model.snapshots > 0 && model.snapshots_lost > 0 {
            break;
        }
        model.step();
    }
    while model.snapshot.is_some() {
        model.step_snapshot();
    }
    assert!(
        cfg!(miri) || model.snapshots > 0 && model.snapshots_lost > 0,
        "{} snapshots, {} lost",
        model.snapshots,
        model.snapshots_lost
    );
    // All keys with a deadline expire, and are swept.
    model.world.all(|guard| guard.hide_expired(false));
    model.world.ctx.now_ms += 1 << 30;
    for db in 0..DATABASES {
        let removed = model.world.none(|guard| guard.sweep(db, 0, SLOTS, || false).removed);
        let now = model.world.ctx.now_ms;
        let due = |entry: &Entry| entry.deadline.is_some_and(|deadline| deadline <= now);
        assert_eq!(removed, model.databases[db].values().filter(|entry| due(entry)).count());
    }
    model.world.verify();
    drop(model);
    assert_eq!(held_memory(), before, "everything is freed");
}

#[test]
fn keys_over_all_slots() {
    let name = |random: &mut Random| format!("key:{}", random.below(3000)).into_bytes();
    run(name, scaled(300, 20_000, 100_000), "keys_over_all_slots");
}

#[test]
fn few_keys() {
    run(|random| vec![b'k'; random.below(8)], scaled(600, 20_000, 100_000), "few_keys");
}

#[test]
fn keys_of_one_slot() {
    let name = |random: &mut Random| format!("{{tag}}{}", random.below(6000)).into_bytes();
    run(name, scaled(300, 20_000, 100_000), "keys_of_one_slot");
}

/// Around 65,535 bytes the header has no room for the length any more.
#[test]
fn long_keys() {
    let name = |random: &mut Random| {
        let len = [1, 65_534, 65_535, 65_536, 100_000][random.below(5)];
        let mut key = vec![b'l'; len];
        key[len / 2] = random.below(20) as u8;
        key
    };
    run(name, scaled(30, 2_000, 20_000), "long_keys");
}

/// Writes to another database for each received key, like clients during a snapshot.
struct Busy<'a> {
    keyspace: &'a evenkeel_store::Keyspace,
    ctx: ThreadContext,
    got: usize,
}

impl Sink for Busy<'_> {
    fn take(&mut self, db: u32, _: View<'_>) {
        self.got += 1;
        if db == 0 {
            let name = format!("key:{}", self.got);
            let key = self.keyspace.key(1, name.as_bytes());
            self.keyspace.enter(&mut self.ctx);
            self.keyspace.hold_one(&mut self.ctx, key.place).set_string(&key, b"new", Expire::Clear);
            self.keyspace.leave(&mut self.ctx);
        }
    }

    fn share(&mut self, _: u32, view: View<'_>) -> usize {
        self.got += 1;
        view.string().len()
    }
}

/// The data that writers hand over during the walk of a flushed database stay within the limit.
#[test]
fn a_flushed_database_is_taken_while_others_write() {
    const KEYS: usize = scaled(200, 5_000, 5_000);
    let mut world = World::new(DATABASES);
    for (db, number) in (0..2).flat_map(|db| (1..=KEYS).map(move |number| (db, number))) {
        world.set(db, format!("key:{number}").as_bytes(), &[b'v'; 100], Expire::Clear);
    }
    let mut walk = world.all(|guard| guard.begin_snapshot(20 * 1_000));
    drop(world.all(|guard| guard.flush(0)));
    let mut sink = Busy { keyspace: &world.keyspace, ctx: world.keyspace.thread_context(), got: 0 };
    while !walk.is_done() {
        drop(walk.step(&world.keyspace, &mut world.ctx, &mut sink));
    }
    world.keyspace.enter(&mut world.ctx);
    let rest = world.keyspace.hold_all(&mut world.ctx).end_snapshot(walk);
    world.keyspace.leave(&mut world.ctx);
    assert!(!rest.is_lost());
    drop(rest.finish(&world.keyspace, &mut sink));
    assert_eq!(sink.got, 2 * KEYS);
    drop(sink);
    world.verify();
}
