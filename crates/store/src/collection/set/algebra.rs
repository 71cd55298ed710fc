//! Unions, intersections and differences of sets.
//!
//! There are two ways to each. Members of one set are looked up in the others: that is quick when there are few to look
//! up, or little to look in. Or all sets are walked side by side in the order of their hashes, which costs the same for
//! each member of any, but no cache misses ([`super::super::ordered`]). What either costs is estimated from the sizes
//! alone, and the cheaper way taken; neither is ever quadratic, and neither copies a set. A new set that is nearly one
//! of the old ones begins as its clone, with which it then shares all pages but those that differ.
//!
//! Small sets come out in the order in which they went in.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::super::ordered::{Builder, InOrder};
use super::{Member, Set, ints};
use crate::Hasher;
use crate::collection::Collection;

// What things cost, in nanoseconds.

/// To come by a member in a set.
const READ: u64 = 10;
/// To come by one in the order of hashes, beside those of other sets.
const MERGE: u64 = 70;
/// To look one up in a set of one page.
const LOOK_UP_NEAR: u64 = 30;
/// To look one up in a set that is larger than the caches.
const LOOK_UP_FAR: u64 = 300;
/// To put one into a set that is made in the order of hashes.
const BUILD: u64 = 50;
/// To add or remove one in a clone: most times a page has to be copied for it.
const CHANGE: u64 = 1500;

/// Members of a set that is looked through as quickly as anything else is set up.
const SMALL: u64 = 128;
/// Members of a set that the caches hold.
const NEAR: u64 = 256;

/// Calls `each` with every member of any of the sets.
pub fn union(hasher: &Hasher, sets: &[&Set], mut each: impl FnMut(&[u8])) {
    if members(sets) <= SMALL {
        return union_of(hasher, sets).iter().for_each(|member| each(&member));
    }
    let sets = by_size(sets, Reverse);
    if let [only] = sets[..] {
        return only.iter().for_each(|member| each(&member));
    }
    // Each set is looked up in those before it, which are larger.
    let look_up = sets.iter().enumerate().skip(1).map(|(at, set)| set.len() * look_up_cost(&sets[..at]));
    if look_up.fold(members(&sets) * READ, u64::saturating_add) <= members(&sets) * MERGE {
        for (at, set) in sets.iter().enumerate() {
            let is_new = |member: &Member<'_>| {
                let probe = Probe::new(hasher, member);
                !sets[..at].iter().any(|before| probe.is_in(before))
            };
            set.iter().filter(|member| at == 0 || is_new(member)).for_each(|member| each(&member));
        }
    } else {
        merge(hasher, &sets, |_, member, _| {
            each(&member);
            true
        });
    }
}

/// The set of every member of any of the sets.
pub fn union_of(hasher: &Hasher, sets: &[&Set]) -> Set {
    if members(sets) <= SMALL {
        return inserted(hasher, sets.iter().flat_map(|set| set.iter()));
    }
    let sets = by_size(sets, Reverse);
    let [largest, others @ ..] = &sets[..] else { return Set::new() };
    if members(others).saturating_mul(CHANGE) <= members(&sets) * (MERGE + BUILD) {
        let mut result = Set::clone(largest);
        for member in others.iter().flat_map(|set| set.iter()) {
            result.insert(hasher, &member);
        }
        return result;
    }
    built(|builder| {
        merge(hasher, &sets, |hash, member, _| {
            builder.push(hash, member);
            true
        });
    })
}

/// Calls `each` with every member that all of the sets have, of which there is at least one, and with `limit` at most.
pub fn intersection(hasher: &Hasher, sets: &[&Set], limit: u64, mut each: impl FnMut(&[u8])) {
    let mut left = limit;
    if left > 0 {
        intersect(hasher, sets, false, |_, member| {
            each(&member);
            left -= 1;
            left > 0
        });
    }
}

/// The set of every member that all of the sets have, of which there is at least one.
pub fn intersection_of(hasher: &Hasher, sets: &[&Set]) -> Set {
    let smallest = sets.iter().map(|set| set.len()).min().unwrap_or(0);
    if smallest <= SMALL {
        let mut result = Set::new();
        intersection(hasher, sets, u64::MAX, |member| _ = result.insert(hasher, member));
        return result;
    }
    built(|builder| {
        intersect(hasher, sets, true, |hash, member| {
            builder.push(hash, member);
            true
        });
    })
}

/// Calls `each` with the hash of a member and itself, by ascending hashes if `ordered`, until it returns `false`.
fn intersect<'a>(
    hasher: &Hasher,
    sets: &[&'a Set],
    ordered: bool,
    mut each: impl FnMut(u64, Member<'a>) -> bool,
) {
    let sets = by_size(sets, |len| len);
    let Some((smallest, others)) = sets.split_first() else { return };
    if smallest.len().saturating_mul(look_up_cost(others)) <= members(&sets) * MERGE {
        for probe in probes(hasher, smallest, ordered) {
            if others.iter().all(|other| probe.is_in(other)) && !each(probe.hash, probe.member) {
                return;
            }
        }
    } else {
        let all = sets.len();
        merge(hasher, &sets, |hash, member, seen| seen.times < all || each(hash, member));
    }
}

/// Calls `each` with every member of the first set, of which there is one, that none of the others has.
pub fn difference(hasher: &Hasher, first: &Set, others: &[&Set], mut each: impl FnMut(&[u8])) {
    subtract(hasher, first, others, false, |_, member| each(&member));
}

/// The set of every member of the first set that none of the others has.
pub fn difference_of(hasher: &Hasher, first: &Set, others: &[&Set]) -> Set {
    if first.len() <= SMALL {
        let mut result = Set::new();
        difference(hasher, first, others, |member| _ = result.insert(hasher, member));
        return result;
    }
    if members(others).saturating_mul(CHANGE) <= first.len() * (READ + BUILD) {
        let mut result = first.clone();
        for member in others.iter().flat_map(|set| set.iter()) {
            result.remove(hasher, &member);
        }
        return result;
    }
    built(|builder| subtract(hasher, first, others, true, |hash, member| builder.push(hash, member)))
}

/// Calls `each` with the hash of a member and itself, by ascending hashes if `ordered`.
fn subtract<'a>(
    hasher: &Hasher,
    first: &'a Set,
    others: &[&'a Set],
    ordered: bool,
    mut each: impl FnMut(u64, Member<'a>),
) {
    if others.iter().any(|other| other.is_same(first)) {
        return;
    }
    // The larger ones are the likelier to have a member.
    let others = by_size(others, Reverse);
    if first.len().saturating_mul(look_up_cost(&others)) <= (first.len() + members(&others)) * MERGE {
        for probe in probes(hasher, first, ordered) {
            if !others.iter().any(|other| probe.is_in(other)) {
                each(probe.hash, probe.member);
            }
        }
    } else {
        let all = [&[first][..], &others[..]].concat();
        merge(hasher, &all, |hash, member, seen| {
            if seen.first && seen.times == 1 {
                each(hash, member);
            }
            true
        });
    }
}

/// The sets by their sizes, each once: two that are one have the same members.
fn by_size<'a, K: Ord>(sets: &[&'a Set], key: impl Fn(u64) -> K) -> Vec<&'a Set> {
    let mut sets = sets.to_vec();
    if sets.len() > 1 {
        // Those that are one are neighbours then.
        sets.sort_by_key(|set| set.address());
        sets.dedup_by(|one, other| one.is_same(other));
        sets.sort_by_key(|set| key(set.len()));
    }
    sets
}

fn members(sets: &[&Set]) -> u64 {
    sets.iter().map(|set| set.len()).sum()
}

/// What looking a member up in all of the sets costs at most.
fn look_up_cost(sets: &[&Set]) -> u64 {
    sets.iter().map(|set| if set.len() <= NEAR { LOOK_UP_NEAR } else { LOOK_UP_FAR }).sum()
}

fn inserted<'a>(hasher: &Hasher, members: impl Iterator<Item = Member<'a>>) -> Set {
    let mut set = Set::new();
    members.for_each(|member| _ = set.insert(hasher, &member));
    set
}

/// A set of members that come by ascending hashes.
fn built<'a>(fill: impl FnOnce(&mut Builder<Member<'a>>)) -> Set {
    let mut builder = Builder::new();
    fill(&mut builder);
    let mut set = Set(builder.finish());
    set.pack();
    set
}

/// A member to be looked up in sets, whatever they keep theirs as.
struct Probe<'a> {
    hash: u64,
    value: Option<i64>,
    member: Member<'a>,
}

impl<'a> Probe<'a> {
    fn new(hasher: &Hasher, member: &Member<'a>) -> Probe<'a> {
        Probe::hashed(hasher.hash(member), *member)
    }

    fn hashed(hash: u64, member: Member<'a>) -> Probe<'a> {
        Probe { hash, value: ints::parse(&member), member }
    }

    fn is_in(&self, set: &Set) -> bool {
        match set.ints() {
            Some(ints) => self.value.is_some_and(|value| ints.contains(value)),
            None => set.contains_hashed(self.hash, &self.member),
        }
    }
}

/// The members of a set, to be looked up in others.
fn probes<'a>(hasher: &Hasher, set: &'a Set, ordered: bool) -> Box<dyn Iterator<Item = Probe<'a>> + 'a> {
    if ordered {
        return Box::new(in_order(hasher, set).map(|(hash, member)| Probe::hashed(hash, member)));
    }
    let hasher = hasher.clone();
    Box::new(set.iter().map(move |member| Probe::new(&hasher, &member)))
}

type InHashOrder<'a> = Box<dyn Iterator<Item = (u64, Member<'a>)> + 'a>;

/// The members by ascending hashes.
fn in_order<'a>(hasher: &Hasher, set: &'a Set) -> InHashOrder<'a> {
    if set.is_packed() {
        let mut members: Vec<(u64, Member<'a>)> =
            set.iter().map(|member| (hasher.hash(&member), member)).collect();
        members.sort_unstable_by_key(|(hash, _)| *hash);
        return Box::new(members.into_iter());
    }
    let hasher = hasher.clone();
    let items = InOrder::new(&set.0, move |item: &[u8]| hasher.hash(item));
    Box::new(items.map(|(hash, item)| (hash, Member::bytes(item))))
}

/// Which of the sets have a member.
struct Seen {
    times: usize,
    /// The first one is among them.
    first: bool,
}

/// Calls `each` with every member of any of the sets and its hash, which ascend, until it returns `false`.
fn merge<'a>(hasher: &Hasher, sets: &[&'a Set], mut each: impl FnMut(u64, Member<'a>, Seen) -> bool) {
    let mut walks: Vec<InHashOrder<'a>> = sets.iter().map(|set| in_order(hasher, set)).collect();
    let mut heads: Vec<Option<Member<'a>>> = vec![None; sets.len()];
    let mut next = BinaryHeap::with_capacity(sets.len());
    let mut step = |index: usize, heads: &mut [Option<Member<'a>>]| {
        let (hash, member) = walks[index].next()?;
        heads[index] = Some(member);
        Some(Reverse((hash, index)))
    };
    next.extend((0..sets.len()).filter_map(|index| step(index, &mut heads)));
    // Members of one hash: most times one, seen in one set or several.
    let mut group: Vec<(Member<'a>, Seen)> = Vec::new();
    while let Some(Reverse((hash, _))) = next.peek().copied() {
        while let Some(mut top) = next.peek_mut()
            && top.0.0 == hash
        {
            let index = top.0.1;
            let member = heads[index].take().expect("a set in the heap has a member at hand");
            match group.iter_mut().find(|(other, _)| other[..] == member[..]) {
                Some((_, seen)) => {
                    seen.times += 1;
                    seen.first |= index == 0;
                }
                None => group.push((member, Seen { times: 1, first: index == 0 })),
            }
            match step(index, &mut heads) {
                Some(after) => *top = after,
                None => _ = std::collections::binary_heap::PeekMut::pop(top),
            }
        }
        for (member, seen) in group.drain(..) {
            if !each(hash, member, seen) {
                return;
            }
        }
    }
}
