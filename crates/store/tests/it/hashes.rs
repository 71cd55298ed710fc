//! Hashes compared with a plain map, with expiring fields and a clock, and with clones taken at random times
//! that must keep their content.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_store::collection::{Collection, Field, Hash};
use evenkeel_store::{Expire, Hasher};
use evenkeel_testkit::Random;

use crate::world::{random, scaled, thread_time};

/// Values with deadlines, by field; an expired field is here as long as it is in the hash.
type Plain = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

struct Model {
    random: Random,
    hasher: Hasher,
    hash: Hash,
    plain: Plain,
    now: u64,
    kinds: usize,
    /// Chance in a hundred that a field gets a deadline.
    timed: usize,
}

fn is_live(deadline: Option<u64>, now: u64) -> bool {
    deadline.is_none_or(|deadline| deadline > now)
}

impl Model {
    /// Some names are long, and many have a common prefix.
    fn name(&mut self) -> Vec<u8> {
        let number = self.random.below(self.kinds);
        match number % 50 {
            0 => [b"a longer name ".repeat(number % 400), number.to_string().into_bytes()].concat(),
            _ => format!("member:{number:07}").into_bytes(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        let long = if self.random.below(300) == 0 { 10_000 } else { 40 };
        vec![self.random.draw() as u8; self.random.below(long)]
    }

    /// Many fields have equal deadlines, some of them in the past.
    fn deadline(&mut self) -> u64 {
        match self.random.below(4) {
            0 => 1_000_000,
            1 => self.now + 5,
            _ => self.now.saturating_sub(3) + self.random.below(100) as u64,
        }
    }

    fn set(&mut self) {
        let (name, value) = (self.name(), self.value());
        let expire = match self.random.below(4) {
            0 => Expire::Keep,
            _ if self.random.chance(self.timed) => Expire::At(self.deadline()),
            _ => Expire::Clear,
        };
        let before = self.plain.get(&name).map(|(_, deadline)| *deadline);
        let was_live = before.is_some_and(|deadline| is_live(deadline, self.now));
        let deadline = match expire {
            Expire::Keep => before.flatten().filter(|_| was_live),
            Expire::Clear => None,
            Expire::At(deadline) => Some(deadline),
        };
        assert_eq!(self.hash.set(&self.hasher, self.now, &name, &value, expire), !was_live);
        self.plain.insert(name, (value, deadline));
    }

    fn remove(&mut self) {
        let name = self.name();
        let was_live = self.plain.get(&name).is_some_and(|(_, deadline)| is_live(*deadline, self.now));
        if was_live {
            self.plain.remove(&name);
        }
        assert_eq!(self.hash.remove(&self.hasher, self.now, &name), was_live);
    }

    fn set_deadline(&mut self) {
        let name = self.name();
        let deadline = self.random.chance(self.timed).then(|| self.deadline());
        let live = self.plain.get_mut(&name).filter(|(_, deadline)| is_live(*deadline, self.now));
        assert_eq!(self.hash.set_deadline(&self.hasher, self.now, &name, deadline), live.is_some());
        if let Some((_, before)) = live {
            *before = deadline;
        }
    }

    /// The earliest deadlines go first.
    fn purge(&mut self) {
        let max = self.random.below(100);
        let mut due: Vec<u64> = self.plain.values().filter_map(|(_, deadline)| *deadline).collect();
        due.retain(|deadline| *deadline <= self.now);
        due.sort_unstable();
        let (removed, _) = self.hash.purge(&self.hasher, self.now, max, |_| {});
        assert_eq!(removed, due.len().min(max));
        let left: Plain = self.hash.fields().map(owned).collect();
        assert_eq!(left.len(), self.plain.len() - removed);
        let gone = self.plain.iter().filter(|(name, _)| !left.contains_key(*name));
        let mut gone: Vec<u64> = gone.map(|(_, (_, deadline))| deadline.expect("it was due")).collect();
        gone.sort_unstable();
        assert_eq!(gone, due[..removed]);
        self.plain = left;
    }

    fn check_counts(&mut self) {
        let name = self.name();
        let live = self.plain.get(&name).filter(|(_, deadline)| is_live(*deadline, self.now));
        let field = self.hash.field(&self.hasher, self.now, &name);
        assert_eq!(field.map(owned), live.map(|live| (name.clone(), live.clone())));
        assert_eq!(self.hash.get(&self.hasher, self.now, &name), live.map(|(value, _)| &value[..]));
    }

    fn step(&mut self, growing: bool) {
        match self.random.below(20) {
            0 if self.timed > 0 => self.now += self.random.below(4) as u64,
            1 if self.timed > 0 && self.random.chance(5) => self.purge(),
            2..5 => self.set_deadline(),
            5..15 if growing => self.set(),
            5..8 => self.set(),
            _ => self.remove(),
        }
        self.check_counts();
    }
}

fn owned(field: Field<'_>) -> (Vec<u8>, (Vec<u8>, Option<u64>)) {
    (field.name.to_vec(), (field.value.to_vec(), field.deadline))
}

fn check(hash: &Hash, plain: &Plain, hasher: &Hasher, now: u64) {
    let all: Plain = hash.fields().map(owned).collect();
    assert!(all == *plain, "the same fields, values and deadlines");
    assert_eq!(hash.fields().len(), plain.len());
    let deadlines = || plain.values().filter_map(|(_, deadline)| *deadline);
    assert_eq!(hash.earliest(), deadlines().min());
    assert_eq!(hash.timed_len(), deadlines().count() as u64);
    for now in [now, 0, u64::MAX] {
        let expired = deadlines().filter(|deadline| *deadline <= now).count() as u64;
        assert_eq!((hash.expired(now), hash.len(now)), (expired, plain.len() as u64 - expired));
        assert_eq!(hash.iter(now).count() as u64, hash.len(now));
    }
    let mut scanned = 0;
    let end = hash.scan(hasher, now, 0, usize::MAX, |name, value| {
        assert!(plain.get(name).is_some_and(|(other, deadline)| other == value && is_live(*deadline, now)));
        scanned += 1;
    });
    assert_eq!((end, scanned), (0, hash.len(now)));
    assert!(
        (0..plain.len() as u64).all(|at| hash.at(at).is_some_and(|field| plain.contains_key(field.name)))
    );
    assert_eq!(hash.is_empty(), plain.is_empty());
}

fn run(timed: usize) {
    let steps = scaled(300, 20_000, 60_000);
    for kinds in [12, 120, 3000, 40_000] {
        let mut model = Model {
            random: random("hashes"),
            hasher: Hasher::default(),
            hash: Hash::new(),
            plain: Plain::new(),
            now: 1000,
            kinds,
            timed,
        };
        let mut clones: Vec<(Hash, Plain, u64)> = Vec::new();
        for step in 0..steps {
            model.step((step / (steps / 4)).is_multiple_of(2));
            if model.random.below(steps / 8) == 0 {
                clones.push((model.hash.clone(), model.plain.clone(), model.now));
            }
            if step % (steps / 10) == 0 {
                check(&model.hash, &model.plain, &model.hasher, model.now);
            }
        }
        clones.push((model.hash.clone(), model.plain.clone(), model.now));
        clones.iter().for_each(|(hash, plain, now)| check(hash, plain, &model.hasher, *now));
        drop(model.hash);
        clones.iter().for_each(|(hash, plain, now)| check(hash, plain, &model.hasher, *now));
    }
}

#[test]
fn hashes_without_deadlines() {
    run(0);
}

#[test]
fn hashes_with_some_deadlines() {
    run(20);
}

#[test]
fn hashes_with_many_deadlines() {
    run(90);
}

/// Setting a deadline does not copy a long value.
#[test]
fn a_long_value_has_room_for_a_deadline() {
    let (mut hash, hasher) = (Hash::new(), Hasher::default());
    let long = vec![b'x'; scaled(10_000, 64_000_000, 64_000_000)];
    assert!(hash.set(&hasher, 0, b"long", &long, Expire::Clear));
    assert!(hash.set(&hasher, 0, b"short", b"value", Expire::Clear));
    let at = hash.get(&hasher, 0, b"long").expect("just set").as_ptr();
    for deadline in [Some(5), Some(6), None, Some(7)] {
        let before = thread_time();
        assert!(hash.set_deadline(&hasher, 0, b"long", deadline));
        let taken = thread_time() - before;
        assert!(taken < Duration::from_millis(3), "{taken:?}: copying it takes 10 ms and more");
        let field = hash.field(&hasher, 0, b"long").expect("it has not expired");
        assert_eq!((field.deadline, field.value.as_ptr()), (deadline, at));
    }
    assert!(!hash.set_deadline(&hasher, 7, b"long", None), "it has expired");
    assert_eq!((hash.len(6), hash.len(7), hash.purge(&hasher, 7, 5, |_| {}).0), (2, 1, 1));
}
