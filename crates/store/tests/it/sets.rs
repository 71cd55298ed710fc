//! Sets compared with the standard library's: single members, many at once, and operations on two sets.
//! Clones taken at random times must keep their content.

use std::collections::BTreeSet;

use evenkeel_store::Hasher;
use evenkeel_store::collection::Collection;
use evenkeel_store::collection::sample::Dice;
use evenkeel_store::collection::set::{Operation, Set};
use evenkeel_testkit::random::{Random, fresh_seed};

type Plain = BTreeSet<Vec<u8>>;

fn seeded() -> Random {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    Random::new(seed)
}

/// The kind of a set's members.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Members {
    /// Integers of at most this many bits.
    Integers(u32),
    Names,
    /// Mostly integers.
    Mixed,
}

const LIKES: [Members; 5] =
    [Members::Names, Members::Integers(10), Members::Integers(33), Members::Integers(63), Members::Mixed];

/// A member out of `kinds`; some names are long, and many have a common prefix.
fn member(random: &mut Random, like: Members, kinds: usize) -> Vec<u8> {
    let number = random.below(kinds);
    match like {
        Members::Integers(bits) => {
            let spread = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64 >> (64 - bits);
            spread.to_string().into_bytes()
        }
        Members::Mixed if !number.is_multiple_of(20) => number.to_string().into_bytes(),
        _ if number.is_multiple_of(50) => {
            [b"a longer name ".repeat(number % 400), number.to_string().into_bytes()].concat()
        }
        _ => format!("member:{number:07}").into_bytes(),
    }
}

const SIZES: [usize; 4] = [12, 120, 3000, 40_000];
const STEPS: usize = if cfg!(miri) { 300 } else { 10_000 };

#[track_caller]
fn check(set: &Set, plain: &Plain, hasher: &Hasher) {
    let all: Plain = set.iter().map(|member| member.to_vec()).collect();
    assert_eq!(set.iter().len() as u64, set.len());
    assert_eq!((all.len(), all.len() as u64), (plain.len(), set.len()));
    let (extra, lost) = (all.difference(plain).next(), plain.difference(&all).next());
    assert!(all == *plain, "{extra:?} is too many, {lost:?} has been lost of {}", plain.len());
    assert!(plain.iter().all(|member| set.contains(hasher, member)));
    let at = |at| set.get(at).expect("a position inside").to_vec();
    let by_position: Plain = (0..set.len()).map(at).collect();
    assert!(by_position == *plain);
    assert!(set.get(set.len()).is_none());
    let mut scanned = Plain::new();
    let cursor = set.scan(hasher, 0, usize::MAX, |member| assert!(scanned.insert(member.to_vec())));
    assert!(cursor == 0 && scanned == *plain);
    if set.is_packed() {
        let value = |member: &[u8]| -> i64 {
            std::str::from_utf8(member).ok().and_then(|text| text.parse().ok()).expect("an integer")
        };
        assert!(set.iter().is_sorted_by_key(|member| value(&member)));
    }
}

#[test]
fn random_operations_match_a_plain_set() {
    let (mut random, hasher) = (seeded(), Hasher::default());
    for (kinds, like) in SIZES.into_iter().flat_map(|kinds| LIKES.map(|like| (kinds, like))) {
        let (mut set, mut plain) = (Set::new(), Plain::new());
        let mut clones: Vec<(Set, Plain)> = Vec::new();
        for step in 0..STEPS {
            let one = member(&mut random, like, kinds);
            let shrinking = step / (STEPS / 4) % 2 == 1;
            if random.below(4) < if shrinking { 1 } else { 3 } {
                assert_eq!(set.insert(&hasher, &one), plain.insert(one));
            } else {
                assert_eq!(set.remove(&hasher, &one), plain.remove(&one));
            }
            let other = member(&mut random, like, kinds);
            assert_eq!(set.contains(&hasher, &other), plain.contains(&other));
            assert_eq!(set.len(), plain.len() as u64);
            assert_eq!(set.is_empty(), plain.is_empty());
            if random.below(STEPS / 5) == 0 {
                remove_many(&mut random, &mut set, &mut plain);
                check(&set, &plain, &hasher);
            }
            if random.below(STEPS / 8) == 0 {
                clones.push((set.clone(), plain.clone()));
            }
        }
        clones.push((set, plain));
        clones.iter().for_each(|(set, plain)| check(set, plain, &hasher));
    }
}

/// Removes a range of members, or some here and there.
fn remove_many(random: &mut Random, set: &mut Set, plain: &mut Plain) {
    let start = random.below(set.len() as usize + 1) as u64;
    if random.below(2) == 0 {
        let end = start + random.below((set.len() - start) as usize + 1) as u64;
        (start..end).for_each(|at| assert!(plain.remove(&set.get(at).expect("inside")[..])));
        drop(set.remove_range(start..end));
    } else {
        let positions = Dice::new(random.draw()).positions(start, set.len());
        positions.iter().for_each(|at| assert!(plain.remove(&set.get(*at).expect("inside")[..])));
        set.remove_each(&positions);
    }
}

/// Sets of random sizes; some are clones of the previous set, with a few changes.
fn some_sets(random: &mut Random, hasher: &Hasher, like: Members) -> Vec<(Set, Plain)> {
    const MOST: usize = if cfg!(miri) { 300 } else { 20_000 };
    let mut sets: Vec<(Set, Plain)> = Vec::new();
    for _ in 0..1 + random.below(5) {
        let size = match random.below(4) {
            0 => random.below(20),
            1 => random.below(200.min(MOST)),
            2 => random.below(2000.min(MOST)),
            _ => random.below(MOST),
        };
        let (mut set, mut plain, mut changes) = (Set::new(), Plain::new(), size);
        if let Some((one, other)) = sets.last()
            && random.below(3) == 0
        {
            (set, plain, changes) = (one.clone(), other.clone(), random.below(10));
        }
        for _ in 0..changes {
            let one = member(random, like, 2 * size.max(10));
            assert_eq!(set.insert(hasher, &one), plain.insert(one));
        }
        sets.push((set, plain));
    }
    sets
}

#[test]
fn set_algebra_matches_plain_sets() {
    let (mut random, hasher) = (seeded(), Hasher::default());
    for round in 0..if cfg!(miri) { 4 } else { 50 } {
        let like = LIKES[round % LIKES.len()];
        let sets = some_sets(&mut random, &hasher, like);
        let mut all: Vec<Set> = sets.iter().map(|(set, _)| set.clone()).collect();
        let mut plain: Vec<&Plain> = sets.iter().map(|(_, plain)| plain).collect();
        if random.below(4) == 0 {
            let again = random.below(all.len());
            all.push(all[again].clone());
            plain.push(plain[again]);
        }
        let union = plain.iter().fold(Plain::new(), |union, plain| &union | plain);
        let shared = plain.iter().fold(union.clone(), |shared, plain| &shared & plain);
        let left = plain[1..].iter().fold(plain[0].clone(), |left, plain| &left - plain);
        let expected =
            [(Operation::Union, union), (Operation::Intersection, shared), (Operation::Difference, left)];
        let made = expected.map(|(operation, plain)| {
            let mut found = Plain::new();
            operation.each(&hasher, &all, |member| {
                assert!(found.insert(member.to_vec()), "each member once");
                true
            });
            assert!(found == plain, "{operation:?}");
            let (mut times, limit) = (0, 1 + random.below(plain.len() + 2));
            operation.each(&hasher, &all, |_| {
                times += 1;
                times < limit
            });
            assert_eq!(times, limit.min(plain.len()));
            (operation.set(&hasher, &all), plain)
        });
        for (mut set, mut plain) in made {
            check(&set, &plain, &hasher);
            for _ in 0..50 {
                let one = member(&mut random, like, 3000);
                assert_eq!(set.insert(&hasher, &one), plain.insert(one));
                let one = member(&mut random, like, 3000);
                assert_eq!(set.remove(&hasher, &one), plain.remove(&one));
            }
            check(&set, &plain, &hasher);
        }
        sets.iter().for_each(|(set, plain)| check(set, plain, &hasher));
    }
}

#[test]
fn small_sets_keep_insertion_order() {
    let hasher = Hasher::default();
    let of = |members: &str| {
        let mut set = Set::new();
        members.split(' ').for_each(|member| _ = set.insert(&hasher, member.as_bytes()));
        set
    };
    let shown = |set: &Set| {
        let members: Vec<String> =
            set.iter().map(|member| String::from_utf8_lossy(&member).into_owned()).collect();
        members.join(" ")
    };
    let (letters, others, numbers) = (of("d a c b"), of("c e a"), of("3 -1 20"));
    assert_eq!(shown(&numbers), "-1 3 20");
    let all = [letters, others, numbers];
    assert_eq!(shown(&Operation::Union.set(&hasher, &all[..2])), "d a c b e");
    assert_eq!(shown(&Operation::Intersection.set(&hasher, &all[..2])), "c a");
    assert_eq!(shown(&Operation::Difference.set(&hasher, &all[..2])), "d b");
    let [letters, _, mut numbers] = all;
    assert_eq!(shown(&Operation::Union.set(&hasher, &[numbers.clone(), letters])), "-1 3 20 d a c b");
    numbers.insert(&hasher, b"x");
    numbers.insert(&hasher, b"0");
    assert_eq!(shown(&numbers), "-1 3 20 x 0");
}

#[test]
fn a_set_made_of_a_large_one_shares_its_pages() {
    let hasher = Hasher::default();
    let mut large = Set::new();
    for number in 0..if cfg!(miri) { 2000 } else { 100_000 } {
        large.insert(&hasher, format!("member:{number}").as_bytes());
    }
    let mut small = Set::new();
    (0..20).for_each(|number| _ = small.insert(&hasher, format!("another:{number}").as_bytes()));
    let mut union = Operation::Union.set(&hasher, &[small.clone(), large.clone()]);
    assert_eq!(union.len(), large.len() + 20);
    let rest = Operation::Difference.set(&hasher, &[union.clone(), small]);
    assert_eq!(rest.len(), large.len());
    (0..20).for_each(|number| assert!(union.remove(&hasher, format!("another:{number}").as_bytes())));
    assert_eq!(union.len(), large.len());
    assert!(Operation::Difference.set(&hasher, &[union, large]).is_empty());
}
