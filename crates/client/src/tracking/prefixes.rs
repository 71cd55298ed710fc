//! Prefixes of keys in ordered collections: which of them a key begins with, and which of them overlap.
//!
//! Neighbours in lexicographic order answer both questions, so each costs O(log n) comparisons. A scan of all
//! prefixes would cost O(n) for each changed key, and O(n²) for a CLIENT TRACKING that registers n prefixes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Included, Unbounded};

pub type PrefixSet = BTreeSet<Box<[u8]>>;

/// Yields the entries of `map` whose key is a prefix of `key`, the longest first.
///
/// The greatest entry up to `key` either is its longest prefix, or differs from `key` at some byte. In the
/// second case a prefix of `key` longer than their common part would lie between the two. So the search goes
/// on below the common part, which is shorter each time: a search for each prefix found, and at worst a
/// search for each length at which an entry departs from `key`.
pub fn prefixes_of<'a, V>(
    map: &'a BTreeMap<Box<[u8]>, V>,
    key: &'a [u8],
) -> impl Iterator<Item = (&'a [u8], &'a V)> {
    let mut rest = Some(key);
    std::iter::from_fn(move || {
        while let Some(bound) = rest {
            let (found, value) = map.range::<[u8], _>((Unbounded, Included(bound))).next_back()?;
            let common = common_len(found, bound);
            if common == found.len() {
                rest = common.checked_sub(1).map(|len| &key[..len]);
                return Some((&**found, value));
            }
            rest = Some(&key[..common]);
        }
        None
    })
}

fn common_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Whether either is a prefix of the other.
fn overlap(a: &[u8], b: &[u8]) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

/// Returns the first member of `set`, the prefixes of a client, that overlaps with `prefix`.
///
/// No two members overlap, unless one is empty: CLIENT TRACKING without prefixes adds the empty prefix to the
/// client's present prefixes. So a member that is a prefix of `prefix` is its neighbour below: anything
/// between the two would begin with that member. Members that begin with `prefix` follow it without a gap.
pub fn overlapping<'a>(set: &'a PrefixSet, prefix: &[u8]) -> Option<&'a [u8]> {
    let below = || set.range::<[u8], _>((Unbounded, Included(prefix))).next_back();
    let above = || set.range::<[u8], _>((Included(prefix), Unbounded)).next();
    set.get(&b""[..])
        .or_else(|| below().filter(|below| prefix.starts_with(below)))
        .or_else(|| above().filter(|above| above.starts_with(prefix)))
        .map(|member| &**member)
}

/// Returns the indices of two prefixes of the list that overlap: the first that overlaps with a later prefix,
/// and the first such later prefix.
pub fn first_overlap(prefixes: &[&[u8]]) -> Option<(usize, usize)> {
    let mut sorted: Vec<usize> = (0..prefixes.len()).collect();
    sorted.sort_by_key(|at| prefixes[*at]);
    // In this order all members that begin with a prefix follow it. The stack has the prefixes of the member
    // seen last.
    let (mut stack, mut first) = (Vec::<usize>::new(), None::<usize>);
    for at in sorted {
        while stack.pop_if(|top| !prefixes[at].starts_with(prefixes[*top])).is_some() {}
        if let Some(top) = stack.last() {
            let least = at.min(*top);
            first = Some(first.map_or(least, |first| first.min(least)));
        }
        stack.push(at);
    }
    let first = first?;
    let later = (first + 1..prefixes.len()).find(|at| overlap(prefixes[first], prefixes[*at]));
    Some((first, later.expect("the first of all that overlap does so with a later one")))
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::random::{Random, fresh_seed};

    use super::*;

    /// Returns short words of few letters, many of which overlap.
    fn words(random: &mut Random, count: usize, len_max: usize) -> Vec<Vec<u8>> {
        let word = |random: &mut Random| -> Vec<u8> {
            (0..random.below(len_max + 1)).map(|_| b"\0ab\xff"[random.below(4)]).collect()
        };
        (0..count).map(|_| word(random)).collect()
    }

    #[test]
    fn prefix_search_matches_a_linear_scan() {
        let seed = fresh_seed();
        println!("EVENKEEL_SEED={seed}");
        let mut random = Random::new(seed);
        for _ in 0..500 {
            let count = random.below(30);
            let map: BTreeMap<Box<[u8]>, ()> =
                words(&mut random, count, 6).into_iter().map(|word| (word.into(), ())).collect();
            for key in words(&mut random, 10, 9) {
                let found: Vec<&[u8]> = prefixes_of(&map, &key).map(|(prefix, ())| prefix).collect();
                let scanned = map.keys().map(|prefix| &**prefix).filter(|prefix| key.starts_with(prefix));
                let expected: Vec<&[u8]> = scanned.rev().collect();
                assert_eq!(found, expected, "{}", key.escape_ascii());
            }
        }
    }

    #[test]
    fn overlap_search_matches_comparing_all_pairs() {
        let seed = fresh_seed();
        println!("EVENKEEL_SEED={seed}");
        let mut random = Random::new(seed);
        for _ in 0..2_000 {
            let count = random.below(8);
            let words = words(&mut random, count, 6);
            let list: Vec<&[u8]> = words.iter().map(|word| &word[..]).collect();
            let pairs = (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b)));
            let expected = pairs.into_iter().find(|(a, b)| overlap(list[*a], list[*b]));
            assert_eq!(first_overlap(&list), expected, "{list:?}");
            let mut set = PrefixSet::new();
            for word in &list {
                let expected = set.iter().map(|member| &**member).find(|member| overlap(member, word));
                assert_eq!(overlapping(&set, word), expected, "{list:?}");
                if expected.is_none() || word.is_empty() {
                    set.insert((*word).into());
                }
            }
        }
    }
}
