//! Collections compared with the standard library's, with clones taken at random times that must keep their
//! content.

use std::collections::{BTreeSet, HashMap, HashSet};

use evenkeel_store::Hasher;
use evenkeel_store::collection::{Collection, Lex, Set, ZSet};
use evenkeel_testkit::random::{Random, fresh_seed};

fn seeded() -> Random {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    Random::new(seed)
}

/// A name out of `kinds`; some are long, and many have a common prefix.
fn name(random: &mut Random, kinds: usize) -> Vec<u8> {
    let number = random.below(kinds);
    match number % 50 {
        0 => [b"a longer name ".repeat(number % 400), number.to_string().into_bytes()].concat(),
        _ => format!("member:{number:07}").into_bytes(),
    }
}

const SIZES: [usize; 4] = [12, 120, 3000, 40_000];
const STEPS: usize = if cfg!(miri) { 300 } else { 30_000 };

/// Maps a score to an integer with the same order.
fn place(score: f64) -> i64 {
    let bits = score.to_bits() as i64;
    if bits < 0 { !bits ^ i64::MIN } else { bits }
}

#[test]
fn sorted_sets_match_a_plain_model() {
    let (mut random, hasher) = (seeded(), Hasher::default());
    let scores = [0.0, -0.0, 1.0, -1.0, 2.5, 1e300, f64::INFINITY, f64::NEG_INFINITY, 3e-310, 17.25];
    for (kinds, all_scores) in SIZES.into_iter().zip([10, 3, 1, 10]) {
        let mut set = ZSet::new();
        let (mut members, mut order) = (HashMap::<Vec<u8>, f64>::new(), BTreeSet::<(i64, Vec<u8>)>::new());
        let mut clones = Vec::new();
        for step in 0..STEPS {
            let member = name(&mut random, kinds);
            let score = match all_scores {
                10 if random.below(2) == 0 => random.below(100_000) as f64 / 8.0 - 3000.0,
                _ => scores[random.below(all_scores)] + 0.0,
            };
            let shrinking = step / (STEPS / 4) % 2 == 1;
            let old = members.get(&member).copied();
            if let Some(old) = old {
                order.remove(&(place(old), member.clone()));
            }
            if random.below(4) < if shrinking { 1 } else { 3 } {
                assert_eq!(set.insert(&hasher, &member, score), old);
                order.insert((place(score + 0.0), member.clone()));
                members.insert(member, score);
            } else {
                assert_eq!(set.remove(&hasher, &member), old);
                members.remove(&member);
            }
            let other = name(&mut random, kinds);
            assert_eq!(set.score(&hasher, &other), members.get(&other).copied());
            if step % 500 == 0 {
                check_order(&set, &order, &members, &other, score);
            }
            if random.below(STEPS / 8) == 0 {
                clones.push((set.clone(), order.clone()));
            }
        }
        clones.push((set, order));
        for (set, order) in clones {
            assert_eq!(set.len(), order.len() as u64);
            let same = set
                .range(0..set.len())
                .zip(&order)
                .all(|((member, score), other)| (place(score), member) == (other.0, &other.1[..]));
            assert!(same, "the same order");
            let scanned = &mut BTreeSet::new();
            set.scan(&hasher, 0, usize::MAX, |member, score| {
                _ = scanned.insert((place(score), member.to_vec()))
            });
            assert!(*scanned == order);
        }
    }
}

fn check_order(
    set: &ZSet,
    order: &BTreeSet<(i64, Vec<u8>)>,
    members: &HashMap<Vec<u8>, f64>,
    member: &[u8],
    score: f64,
) {
    if let Some(score) = members.get(member) {
        let before = order.range(..(place(*score), member.to_vec())).count() as u64;
        assert_eq!(set.rank(member, *score), before);
        assert_eq!(set.get(before), Some((member, *score)));
    }
    let below = order.iter().filter(|(other, _)| *other < place(score)).count() as u64;
    let upto = order.iter().filter(|(other, _)| *other <= place(score)).count() as u64;
    assert_eq!((set.count_below(score, false), set.count_below(score, true)), (below, upto));
    if members.values().all(|score| *score == 0.0) {
        let less = order.iter().filter(|(_, other)| other[..] < *member).count() as u64;
        let there = u64::from(members.contains_key(member));
        let ends = [Lex::Min, Lex::Including(member), Lex::Excluding(member), Lex::Max];
        let starts = [0, less, less + there, set.len()];
        let stops = [0, less + there, less, set.len()];
        for (from, start) in ends.into_iter().zip(starts) {
            for (to, stop) in ends.into_iter().zip(stops) {
                assert_eq!(set.lex_range(from, to, false), start..stop.max(start), "{from:?} to {to:?}");
            }
        }
    }
}

/// A scan by cursor returns everything that is present all the time, whatever else changes.
#[test]
fn a_scan_returns_all_lasting_members() {
    let (mut random, hasher) = (seeded(), Hasher::default());
    for kinds in [100, 5000] {
        let mut set = Set::new();
        let staying: Vec<Vec<u8>> = (0..kinds).map(|number| format!("stays {number}").into_bytes()).collect();
        staying.iter().for_each(|member| assert!(set.insert(&hasher, member)));
        let (mut cursor, mut met, mut calls) = (0, HashSet::new(), 0);
        loop {
            cursor = set.scan(&hasher, cursor, 10, |member| _ = met.insert(member.to_vec()));
            calls += 1;
            for _ in 0..200 {
                let passing = format!("passes {}", random.below(4 * kinds)).into_bytes();
                if random.below(2) == 0 {
                    set.insert(&hasher, &passing)
                } else {
                    set.remove(&hasher, &passing)
                };
            }
            if cursor == 0 {
                break;
            }
        }
        assert!(staying.iter().all(|member| met.contains(member)), "after {calls} calls");
    }
}

/// Scans of sets in each form return pages of the requested size, also across a change of form.
#[test]
fn a_scan_returns_no_more_than_it_is_asked_for() {
    let hasher = Hasher::default();
    for (members, other) in [(600, ""), (1000, ""), (1000, "text"), (3000, ""), (40, "")] {
        let mut set = Set::new();
        let all: Vec<Vec<u8>> = (0..members).map(|number: u32| number.to_string().into_bytes()).collect();
        all.iter().for_each(|member| assert!(set.insert(&hasher, member)));
        let (mut cursor, mut met) = (0, Vec::new());
        loop {
            let mut page = Vec::new();
            cursor = set.scan(&hasher, cursor, 10, |member| page.push(member.to_vec()));
            assert!(page.len() == 10 || cursor == 0, "{} of {members}", page.len());
            met.append(&mut page);
            if !other.is_empty() {
                set.insert(&hasher, other.as_bytes()); // from integers to a tree
            }
            if cursor == 0 {
                break;
            }
        }
        met.retain(|member| member != other.as_bytes());
        met.sort();
        let mut all = all;
        all.sort();
        assert!(met == all, "{} of {members}", met.len());
    }
}

/// A thread writes; other threads read clones, clone them again and drop them, all at the same time.
#[test]
fn clones_are_read_on_several_threads_during_writes() {
    const READERS: usize = 3;
    let hasher = Hasher::default();
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let digest = |set: &ZSet| {
        set.range(0..set.len())
            .fold(0_u64, |sum, (member, score)| sum.rotate_left(5) ^ hasher.hash(member) ^ score.to_bits())
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                let (sender, receiver) = std::sync::mpsc::sync_channel::<(ZSet, u64)>(4);
                let digest = &digest;
                scope.spawn(move || {
                    let mut kept = Vec::new();
                    for (set, expected) in receiver {
                        assert_eq!(digest(&set), expected);
                        kept.push((set.clone(), expected));
                        if kept.len() > 3 {
                            let (set, expected) = kept.swap_remove(1);
                            assert_eq!(digest(&set), expected, "after more writes");
                        }
                    }
                });
                sender
            })
            .collect();
        let (mut random, mut set) = (Random::new(seed), ZSet::new());
        for _ in 0..if cfg!(miri) { 4 } else { 400 } {
            for _ in 0..50 {
                let member = format!("member {}", random.below(3000));
                match random.below(3) {
                    0 => _ = set.remove(&hasher, member.as_bytes()),
                    _ => _ = set.insert(&hasher, member.as_bytes(), random.below(100) as f64),
                }
            }
            let expected = digest(&set);
            readers.iter().for_each(|reader| reader.send((set.clone(), expected)).expect("it reads"));
        }
    });
}
