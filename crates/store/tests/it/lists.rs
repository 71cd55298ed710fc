//! Lists compared with a plain deque, with clones taken at random times that must keep their content.

use std::collections::VecDeque;

use evenkeel_store::collection::{Collection, List};
use evenkeel_testkit::random::{Random, fresh_seed};

type Plain = VecDeque<Vec<u8>>;

const STEPS: usize = if cfg!(miri) { 300 } else { 20_000 };

/// Few are equal if `kinds` is large; some are long, and a thousandth have pages of their own.
fn element(random: &mut Random, kinds: usize) -> Vec<u8> {
    let number = random.below(kinds);
    match random.below(1000) {
        0 => vec![number as u8; 9000],
        1..30 => vec![number as u8; number % 700],
        _ => number.to_string().into_bytes(),
    }
}

fn check(list: &List, plain: &Plain) {
    assert_eq!(list.len(), plain.len() as u64);
    assert!(list.range(0..list.len()).eq(plain.iter().map(Vec::as_slice)));
    assert!(list.range(0..u64::MAX).rev().eq(plain.iter().rev().map(Vec::as_slice)));
}

/// A model of `List::remove_equal`.
fn remove_equal(plain: &mut Plain, element: &[u8], limit: usize, backward: bool) -> u64 {
    let mut gone: Vec<usize> = (0..plain.len()).filter(|at| plain[*at] == element).collect();
    if backward {
        gone.reverse();
    }
    gone.truncate(limit);
    gone.sort_unstable();
    gone.iter().rev().for_each(|at| _ = plain.remove(*at));
    gone.len() as u64
}

/// A random operation on both; `growing` decides whether lists grow or shrink on average.
fn step(random: &mut Random, list: &mut List, plain: &mut Plain, kinds: usize, growing: bool) {
    let len = plain.len();
    let (at, item) = (random.below(len + 1), element(random, kinds));
    let upto = random.below(if growing { 3 } else { 40 });
    match random.below(20) {
        0..5 => {
            list.push_front(&item);
            plain.push_front(item);
        }
        5..10 => {
            list.push_back(&item);
            plain.push_back(item);
        }
        10..13 => {
            list.insert(at as u64, &item);
            plain.insert(at, item);
        }
        13 if at < len => {
            list.set(at as u64, &item);
            plain[at] = item;
        }
        14..16 => {
            let to = (at + upto).min(len);
            list.remove(at as u64..to as u64);
            plain.drain(at..to);
        }
        16 => {
            let to = upto.min(len);
            list.remove(0..to as u64);
            plain.drain(..to);
        }
        17 => {
            let from = len - upto.min(len);
            list.remove(from as u64..len as u64);
            plain.drain(from..);
        }
        18 => {
            let (limit, backward) = (random.below(if growing { 3 } else { 2000 }), random.below(2) == 0);
            let removed = list.remove_equal(&item, limit as u64, backward);
            assert_eq!(removed, remove_equal(plain, &item, limit, backward));
        }
        _ => {
            let range = at as u64..(at + random.below(3000)) as u64;
            let positions: Vec<u64> = list.positions(&item, range.clone(), false).collect();
            let there = |at: &u64| plain.get(*at as usize) == Some(&item);
            assert!(positions.iter().copied().eq(range.clone().filter(there)));
            assert!(list.positions(&item, range, true).eq(positions.into_iter().rev()));
            assert_eq!(list.get(at as u64), plain.get(at).map(Vec::as_slice));
        }
    }
    assert_eq!(list.len(), plain.len() as u64);
}

#[test]
fn random_operations_match_a_plain_deque() {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random::new(seed);
    for kinds in [1, 3, 40, 100_000] {
        let (mut list, mut plain) = (List::new(), Plain::new());
        let mut clones: Vec<(List, Plain)> = Vec::new();
        for number in 0..STEPS {
            let growing = (number / (STEPS / 4)).is_multiple_of(2);
            step(&mut random, &mut list, &mut plain, kinds, growing);
            if random.below(STEPS / 8) == 0 {
                clones.push((list.clone(), plain.clone()));
            }
        }
        clones.push((list, plain));
        clones.iter().for_each(|(list, plain)| check(list, plain));
    }
}

#[test]
fn removing_missing_elements_copies_nothing() {
    let mut list = List::new();
    (0..10_000).for_each(|number: u32| list.push_back(number.to_string().as_bytes()));
    let clone = list.clone();
    assert_eq!(list.remove_equal(b"none", u64::MAX, false), 0);
    assert!(list.is_same(&clone));
    assert_eq!(list.remove_equal(b"77", u64::MAX, true), 1);
    assert!(!list.is_same(&clone));
}
