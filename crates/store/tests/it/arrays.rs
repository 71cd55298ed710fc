//! Arrays compared with a plain map, with clones taken at random times that must keep their content.

use std::collections::BTreeMap;

use evenkeel_store::collection::array::INDEX_MAX;
use evenkeel_store::collection::{Array, Collection};
use evenkeel_testkit::random::{Random, fresh_seed};

type Plain = BTreeMap<u64, Vec<u8>>;

const STEPS: usize = if cfg!(miri) { 300 } else { 20_000 };

/// Some are long, and a thousandth have pages of their own.
fn value(random: &mut Random) -> Vec<u8> {
    let number = random.below(100_000);
    match random.below(1000) {
        0 => vec![number as u8; 9000],
        1..30 => vec![number as u8; number % 700],
        _ => number.to_string().into_bytes(),
    }
}

/// Indices without holes, in clusters, or anywhere up to the greatest.
fn index(random: &mut Random, spread: usize) -> u64 {
    match (spread, random.below(10)) {
        (0, _) => random.below(3000) as u64,
        (1, 0) => INDEX_MAX - random.below(3) as u64,
        (1, _) => random.below(40) as u64 * 1_000_003 + random.below(90) as u64,
        _ => random.draw() >> random.below(64),
    }
    .min(INDEX_MAX)
}

fn check(array: &Array, plain: &Plain) {
    assert_eq!(array.count(), plain.len() as u64);
    assert_eq!(array.len(), plain.last_key_value().map_or(0, |(last, _)| last + 1));
    let pairs = || plain.iter().map(|(index, value)| (*index, &value[..]));
    assert!(array.range(0..array.count()).eq(pairs()));
    assert!(array.range(0..u64::MAX).rev().eq(pairs().rev()));
}

/// A model of [`Array::newest`]: indices, the oldest first.
fn newest(plain: &Plain, newest: u64, most: u64) -> Vec<u64> {
    let len = plain.last_key_value().map_or(0, |(last, _)| last + 1);
    let (mut found, mut at) = (Vec::new(), newest);
    while (found.len() as u64) < most && plain.contains_key(&at) && (found.is_empty() || at != newest) {
        found.push(at);
        at = at.checked_sub(1).unwrap_or(len - 1);
    }
    found.reverse();
    found
}

/// A random operation on both; `growing` decides whether arrays grow or shrink on average.
fn step(random: &mut Random, (array, plain): (&mut Array, &mut Plain), spread: usize, growing: bool) {
    let at = index(random, spread);
    match random.below(20) {
        0..8 if growing => {
            let value = value(random);
            assert_eq!(array.set(at, &value), plain.insert(at, value).is_none());
        }
        8..12 => {
            let count = 1 + random.below(if growing { 60 } else { 6 }) as u64;
            for at in at..at.saturating_add(count).min(INDEX_MAX) {
                let value = value(random);
                assert_eq!(array.set(at, &value), plain.insert(at, value).is_none());
            }
        }
        0..8 => assert_eq!(array.remove(at), plain.remove(&at).is_some()),
        12 if !growing || random.below(30) == 0 => {
            let other = index(random, spread);
            let indices = at.min(other)..=at.max(other).min(at.min(other).saturating_add(1 << 16));
            let positions = array.positions(indices.clone());
            let gone: Vec<u64> = plain.range(indices).map(|(at, _)| *at).collect();
            assert_eq!(positions.end - positions.start, gone.len() as u64);
            drop(array.remove_range(positions));
            gone.iter().for_each(|at| _ = plain.remove(at));
        }
        13..15 => {
            let most = 1 + random.below(200) as u64;
            let from = if random.below(2) == 0 { at } else { array.at(at % 97).map_or(0, |(at, _)| at) };
            let positions = array.newest(from, most).into_iter().flatten();
            let found: Vec<u64> = positions.map(|position| array.at(position).expect("inside").0).collect();
            assert_eq!(found, newest(plain, from, most), "from {from}, {most} at most");
        }
        15 => {
            let cursor = random.chance(50).then_some(at);
            array.set_cursor(cursor);
            assert_eq!(array.cursor(), cursor);
        }
        _ => {
            assert_eq!(array.get(at), plain.get(&at).map(Vec::as_slice));
            let (rank, found) = array.rank(at);
            assert_eq!((rank as usize, found), (plain.range(..at).count(), plain.contains_key(&at)));
        }
    }
}

#[test]
fn random_operations_match_a_plain_map() {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random::new(seed);
    for spread in 0..3 {
        let (mut array, mut plain) = (Array::new(), Plain::new());
        let mut clones: Vec<(Array, Plain)> = Vec::new();
        for number in 0..STEPS {
            let growing = (number / (STEPS / 4)).is_multiple_of(2);
            step(&mut random, (&mut array, &mut plain), spread, growing);
            if number.is_multiple_of(1000) {
                check(&array, &plain);
            }
            if random.below(STEPS / 8) == 0 {
                clones.push((array.clone(), plain.clone()));
            }
        }
        clones.push((array, plain));
        clones.iter().for_each(|(array, plain)| check(array, plain));
    }
}

#[test]
fn distant_indices_take_no_more_memory_than_near_ones() {
    let (mut near, mut far) = (Array::new(), Array::new());
    let count = if cfg!(miri) { 1000 } else { 100_000 };
    for at in 0..count {
        near.set(at, b"a value");
        far.set(at * (INDEX_MAX / count), b"a value");
    }
    let per_value = |array: &Array| array.memory() as f64 / count as f64;
    assert!(per_value(&near) < 14.0, "{} bytes for 7", per_value(&near));
    assert!(per_value(&far) < 36.0, "{} bytes for 7", per_value(&far));
}

#[test]
fn a_clone_shares_all_that_is_not_written_to() {
    let mut array = Array::new();
    (0..50_000).for_each(|at| _ = array.set(at, b"value"));
    let clone = array.clone();
    assert!(clone.is_same(&array) && !array.remove(60_000) && clone.is_same(&array));
    array.set(17, b"other");
    assert!(!clone.is_same(&array));
    assert_eq!((clone.get(17), array.get(17)), (Some(&b"value"[..]), Some(&b"other"[..])));
    assert!(array.shared_memory(1) > array.memory() / 10 * 9, "{}", array.shared_memory(1));
}
