//! Unions, intersections and differences of sets.
//!
//! There are three ways to them. Members of one set are looked up in the others: that is quick when there are few to look
//! up, or little to look in. Or all sets are walked side by side in the order of their hashes, which costs the same for
//! each member of any, but no cache misses ([`super::super::ordered`]). Or, where the result is nearly one of the sets,
//! it begins as the clone of that, and goes on sharing all pages but those that differ. What each way costs is estimated
//! from the sizes alone, and the cheapest taken. None is ever quadratic, and none copies a set.
//!
//! Small sets come out in the order in which they went in.

use std::borrow::Borrow;
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
/// To add one to a clone, or to remove it: most times a page has to be copied for it.
const CHANGE: u64 = 1500;

/// Members so few that nothing is gained by estimating anything.
const SMALL: u64 = 128;
/// Members of a set that fills one page.
const NEAR: u64 = 256;

/// What is made of several sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// What any of them has.
    Union,
    /// What all of them have.
    Intersection,
    /// What the first has, and none of the others.
    Difference,
}

impl Operation {
    /// Calls `each` with every member of the result, until it returns `false`. There is one set at least.
    pub fn each(self, hasher: &Hasher, sets: &[Set], mut each: impl FnMut(&[u8]) -> bool) {
        if self.is_nothing(sets) {
            return;
        }
        let plan = Plan::new(self, sets, false);
        match plan.way {
            Way::Change => _ = plan.changed(hasher).iter().all(|member| each(&member)),
            _ => plan.run(hasher, false, |_, member| each(&member)),
        }
    }

    /// The result as a set. There is one set at least.
    pub fn set(self, hasher: &Hasher, sets: &[Set]) -> Set {
        if self.is_nothing(sets) {
            return Set::new();
        }
        let plan = Plan::new(self, sets, true);
        match plan.way {
            Way::Change => plan.changed(hasher),
            Way::LookUp if plan.sets[0].len() <= SMALL => {
                let mut result = Set::new();
                plan.run(hasher, false, |_, member| result.insert(hasher, &member));
                result
            }
            _ => built(|builder| {
                plan.run(hasher, true, |hash, member| {
                    builder.push(hash, member);
                    true
                })
            }),
        }
    }

    /// About how long [`Operation::each`] takes, in nanoseconds.
    pub fn each_ns(self, sets: &[Set]) -> u64 {
        if self.is_nothing(sets) { 0 } else { Plan::new(self, sets, false).ns }
    }

    /// About how long [`Operation::set`] takes, in nanoseconds.
    pub fn set_ns(self, sets: &[Set]) -> u64 {
        if self.is_nothing(sets) { 0 } else { Plan::new(self, sets, true).ns }
    }

    /// Whether the result is empty, as far as can be told at a glance.
    fn is_nothing(self, sets: &[Set]) -> bool {
        match self {
            Operation::Union => false,
            Operation::Intersection => sets.iter().any(Set::is_empty),
            Operation::Difference => {
                sets[0].is_empty() || sets[1..].iter().any(|other| other.is_same(&sets[0]))
            }
        }
    }
}

/// What is done for an operation.
struct Plan<'a> {
    operation: Operation,
    /// Each once. Of a union the largest first; of an intersection the smallest; of a difference the first, and then the
    /// largest, which are the likeliest to have its members. One at least.
    sets: Vec<&'a Set>,
    way: Way,
    ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Members of the first set are looked up in the others; for a union, those of each set in the ones before.
    LookUp,
    /// All sets are walked side by side.
    Merge,
    /// Members of the other sets are added to a clone of the first, or removed from it.
    Change,
}

impl<'a> Plan<'a> {
    /// `makes`: the result is to be a set.
    fn new(operation: Operation, sets: &'a [Set], makes: bool) -> Plan<'a> {
        let sets = match operation {
            Operation::Union if members(sets) <= SMALL => sets.iter().collect(),
            Operation::Union => by_size(sets, Reverse),
            Operation::Intersection => by_size(sets, |len| len),
            Operation::Difference => std::iter::once(&sets[0]).chain(by_size(&sets[1..], Reverse)).collect(),
        };
        let mut plan = Plan { operation, sets, way: Way::Merge, ns: 0 };
        let ways = [Way::LookUp, Way::Merge, Way::Change];
        let costs = ways.map(|way| (way, plan.cost(way, makes)));
        (plan.way, plan.ns) = costs.into_iter().min_by_key(|(_, ns)| *ns).expect("three ways");
        plan
    }

    fn cost(&self, way: Way, makes: bool) -> u64 {
        let (first, all) = (self.sets[0].len(), members(&self.sets));
        let others = all - first;
        let is_union = self.operation == Operation::Union;
        let result = if is_union { all } else { first };
        let each = if makes { BUILD } else { READ };
        match way {
            // They do not come in the order of their hashes.
            Way::LookUp if is_union && makes => u64::MAX,
            Way::LookUp if is_union => {
                let look_up = |at: usize| self.sets[at].len().saturating_mul(look_up_cost(&self.sets[..at]));
                (1..self.sets.len()).map(look_up).fold(result * each, u64::saturating_add)
            }
            Way::LookUp => first.saturating_mul(look_up_cost(&self.sets[1..])).saturating_add(result * each),
            Way::Merge => all * MERGE + result * each,
            Way::Change if self.operation == Operation::Intersection => u64::MAX,
            // All in the caches, and in the right order.
            Way::Change if is_union && all <= SMALL => all * READ,
            Way::Change => others.saturating_mul(CHANGE) + if makes { 0 } else { result * each },
        }
    }

    /// The result by changing a clone of the first set.
    fn changed(&self, hasher: &Hasher) -> Set {
        let mut result = self.sets[0].clone();
        for member in self.sets[1..].iter().flat_map(|set| set.iter()) {
            match self.operation {
                Operation::Union => result.insert(hasher, &member),
                _ => result.remove(hasher, &member),
            };
        }
        result
    }

    /// Calls `each` with the hash of every member of the result and itself, by ascending hashes if `ordered`, until it
    /// returns `false`.
    fn run(&self, hasher: &Hasher, ordered: bool, each: impl FnMut(u64, Member<'a>) -> bool) {
        match self.way {
            Way::LookUp => self.look_up(hasher, ordered, each),
            _ => self.merge(hasher, each),
        }
    }

    fn look_up(&self, hasher: &Hasher, ordered: bool, mut each: impl FnMut(u64, Member<'a>) -> bool) {
        let (first, others) = self.sets.split_first().expect("one set at least");
        let wanted: &dyn Fn(&Probe<'_>) -> bool = match self.operation {
            Operation::Union => &|_| true,
            Operation::Intersection => &|probe| others.iter().all(|other| probe.is_in(other)),
            Operation::Difference => &|probe| !others.iter().any(|other| probe.is_in(other)),
        };
        if !probes(hasher, first, ordered).filter(wanted).all(|probe| each(probe.hash, probe.member)) {
            return;
        }
        let more = if self.operation == Operation::Union { others } else { &[] };
        for (at, set) in more.iter().enumerate() {
            let is_new = |probe: &Probe<'_>| !self.sets[..=at].iter().any(|before| probe.is_in(before));
            if !probes(hasher, set, false).filter(is_new).all(|probe| each(probe.hash, probe.member)) {
                return;
            }
        }
    }

    fn merge(&self, hasher: &Hasher, mut each: impl FnMut(u64, Member<'a>) -> bool) {
        let all = self.sets.len();
        merge(hasher, &self.sets, |hash, member, seen| {
            let wanted = match self.operation {
                Operation::Union => true,
                Operation::Intersection => seen.times == all,
                Operation::Difference => seen.first && seen.times == 1,
            };
            !wanted || each(hash, member)
        });
    }
}

/// The sets by their sizes, each once: two that are one have the same members.
fn by_size<K: Ord>(sets: &[Set], key: impl Fn(u64) -> K) -> Vec<&Set> {
    let mut sets: Vec<&Set> = sets.iter().collect();
    if sets.len() > 1 {
        // Those that are one are neighbours then.
        sets.sort_by_key(|set| set.address());
        sets.dedup_by(|one, other| one.is_same(other));
        sets.sort_by_key(|set| key(set.len()));
    }
    sets
}

fn members<S: Borrow<Set>>(sets: &[S]) -> u64 {
    sets.iter().map(|set| set.borrow().len()).sum()
}

/// What looking a member up in all of the sets costs at most.
fn look_up_cost(sets: &[&Set]) -> u64 {
    sets.iter().map(|set| if set.len() <= NEAR { LOOK_UP_NEAR } else { LOOK_UP_FAR }).sum()
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

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::random::{Random, fresh_seed};
    use std::collections::BTreeSet;

    type Plain = BTreeSet<Vec<u8>>;

    /// Some sets that have much in common.
    fn some_sets(random: &mut Random, hasher: &Hasher) -> Vec<Set> {
        let kinds = [10, 300, 5000][random.below(3)];
        let mut sets: Vec<Set> = Vec::new();
        for _ in 0..1 + random.below(4) {
            let mut set =
                if random.below(3) == 0 { sets.last().map_or_else(Set::new, Set::clone) } else { Set::new() };
            let names = random.below(2) == 0;
            for _ in 0..random.below(kinds) {
                let number = random.below(kinds);
                let member = if names { format!("a member called {number}") } else { number.to_string() };
                set.insert(hasher, member.as_bytes());
            }
            sets.push(set);
        }
        sets
    }

    /// Whatever way is taken, the result is the same.
    #[test]
    fn all_ways_lead_to_the_same_result() {
        let seed = fresh_seed();
        println!("EVENKEEL_SEED={seed}");
        let (mut random, hasher) = (Random::new(seed), Hasher::default());
        let mut taken = BTreeSet::new();
        for _ in 0..if cfg!(miri) { 5 } else { 150 } {
            let sets = some_sets(&mut random, &hasher);
            for operation in [Operation::Union, Operation::Intersection, Operation::Difference] {
                let expected: Plain = operation.set(&hasher, &sets).iter().map(|m| m.to_vec()).collect();
                for way in [Way::LookUp, Way::Merge, Way::Change] {
                    let mut plan = Plan::new(operation, &sets, false);
                    if operation.is_nothing(&sets) || plan.cost(way, false) == u64::MAX {
                        continue;
                    }
                    taken.insert((operation as u8, plan.way as u8));
                    plan.way = way;
                    let mut found = Plain::new();
                    if way == Way::Change {
                        found = plan.changed(&hasher).iter().map(|member| member.to_vec()).collect();
                    } else {
                        let (ordered, mut last) = (random.below(2) == 0, 0);
                        let ascend = ordered && (way == Way::Merge || operation != Operation::Union);
                        plan.run(&hasher, ordered, |hash, member| {
                            assert!(!ascend || hash >= last, "hashes ascend");
                            last = hash;
                            found.insert(member.to_vec())
                        });
                    }
                    assert!(found == expected, "{operation:?} of {} sets", sets.len());
                }
            }
        }
        assert!(cfg!(miri) || taken.len() >= 6, "nearly every way is the cheapest for some sets: {taken:?}");
    }
}
