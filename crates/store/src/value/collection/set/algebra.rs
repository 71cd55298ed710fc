//! Unions, intersections and differences of sets.
//!
//! There are three ways to compute them:
//! - Look up the members of a set in the other sets. This is quick if there are few members to look up, or
//!   little to search.
//! - Walk all sets side by side in the order of their hashes. This costs the same for each member of any set,
//!   but no cache misses ([`super::super::ordered`]).
//! - Change a clone of a set, if the result is nearly that set. The result shares all pages but those that
//!   differ.
//!
//! The cost of each way is estimated from the sizes alone, and the cheapest is taken. None is ever quadratic,
//! and none copies a set.
//!
//! Small sets come out in the order in which they went in.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use evenkeel_resp::number::parse_i64;

use super::super::ordered::{Builder, InOrder};
use super::{Member, Set};
use crate::Hasher;
use crate::value::collection::Collection;

// Costs, in nanoseconds.

/// Reading a member of a set.
const READ: u64 = 10;
/// Reading a member in the order of hashes, side by side with other sets.
const MERGE: u64 = 70;
/// Looking a member up in a set of a single page.
const LOOK_UP_NEAR: u64 = 30;
/// Looking a member up in a set that is larger than the caches.
const LOOK_UP_FAR: u64 = 300;
/// Adding a member to a set that is made in the order of hashes.
const BUILD: u64 = 50;
/// Adding a member to a clone, or removing it: most of the time a page must be copied.
const CHANGE: u64 = 1500;

/// Number of members below which estimates gain nothing.
const SMALL: u64 = 128;
/// Number of members of a set that fills a page.
const NEAR: u64 = 256;

/// The operation on several sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Members of any set.
    Union,
    /// Members of all sets.
    Intersection,
    /// Members of the first set that are in no other set.
    Difference,
}

impl Operation {
    /// Calls `each` with every member of the result, until `each` returns false. `sets` is not empty.
    pub fn each(self, hasher: &Hasher, sets: &[Set], each: impl FnMut(&[u8]) -> bool) {
        Plan::new(self, sets, Aim::Each).each(hasher, sets, each);
    }

    /// The result as a set. `sets` is not empty.
    pub fn set(self, hasher: &Hasher, sets: &[Set]) -> Set {
        Plan::new(self, sets, Aim::Set).set(hasher, sets)
    }

    /// Returns true if the result is empty, as far as a short look can tell.
    fn is_nothing(self, sets: &[Set]) -> bool {
        match self {
            Operation::Union => sets.iter().all(Set::is_empty),
            Operation::Intersection => sets.iter().any(Set::is_empty),
            Operation::Difference => {
                sets[0].is_empty() || sets[1..].iter().any(|other| other.is_same(&sets[0]))
            }
        }
    }
}

/// The purpose of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// Members in turn: [`Plan::each`].
    Each,
    /// A set: [`Plan::set`].
    Set,
}

/// A plan for an operation on certain sets, which must be the same and unchanged when the plan is executed.
///
/// Making a plan takes as long as sorting the sets, and no longer.
pub struct Plan {
    operation: Operation,
    /// Indices of the sets that matter, each once; empty sets are left out. A union has the largest first, an
    /// intersection the smallest. A difference has the first set, and then the largest sets, which are the
    /// likeliest to have its members. Empty if the result is empty.
    order: Vec<usize>,
    way: Way,
    ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Members of the first set are looked up in the other sets; for a union, members of each set in the sets
    /// before it.
    LookUp,
    /// All sets are walked side by side.
    Merge,
    /// Members of the other sets are added to a clone of the first, or removed from it.
    Change,
}

impl Plan {
    /// Makes a plan. `sets` is not empty.
    pub fn new(operation: Operation, sets: &[Set], aim: Aim) -> Plan {
        let mut plan = Plan { operation, order: Vec::new(), way: Way::Merge, ns: 0 };
        if operation.is_nothing(sets) {
            return plan;
        }
        let all = 0..sets.len();
        plan.order = match operation {
            Operation::Union if members(sets) <= SMALL => all.filter(|at| !sets[*at].is_empty()).collect(),
            Operation::Union => by_size(sets, all, Reverse),
            Operation::Intersection => by_size(sets, all, |len| len),
            Operation::Difference => [0].into_iter().chain(by_size(sets, 1..sets.len(), Reverse)).collect(),
        };
        let ordered = plan.ordered(sets);
        let ways = [Way::LookUp, Way::Merge, Way::Change];
        let costs = ways.map(|way| (way, Step { operation, sets: &ordered, way }.cost(aim)));
        (plan.way, plan.ns) = costs.into_iter().min_by_key(|(_, ns)| *ns).expect("three ways");
        plan
    }

    /// Estimated duration in nanoseconds.
    pub fn ns(&self) -> u64 {
        self.ns
    }

    fn ordered<'a>(&self, sets: &'a [Set]) -> Vec<&'a Set> {
        self.order.iter().map(|at| &sets[*at]).collect()
    }

    /// Calls `each` with every member of the result, until `each` returns false.
    pub fn each(&self, hasher: &Hasher, sets: &[Set], mut each: impl FnMut(&[u8]) -> bool) {
        if self.order.is_empty() {
            return;
        }
        let step = Step { operation: self.operation, sets: &self.ordered(sets), way: self.way };
        match self.way {
            Way::Change => _ = step.changed(hasher).iter().all(|member| each(&member)),
            _ => step.run(hasher, false, |_, member| each(&member)),
        }
    }

    /// Returns true if the result as a set shares pages with a set.
    pub fn shares(&self) -> bool {
        matches!(self.way, Way::Change)
    }

    /// The result as a set.
    pub fn set(&self, hasher: &Hasher, sets: &[Set]) -> Set {
        if self.order.is_empty() {
            return Set::new();
        }
        let step = Step { operation: self.operation, sets: &self.ordered(sets), way: self.way };
        match self.way {
            Way::Change => step.changed(hasher),
            Way::LookUp if step.sets[0].len() <= SMALL => {
                let mut result = Set::new();
                step.run(hasher, false, |_, member| result.insert(hasher, &member));
                result
            }
            _ => built(|builder| {
                step.run(hasher, true, |hash, member| {
                    builder.push(hash, member);
                    true
                })
            }),
        }
    }
}

/// An operation in a certain way.
struct Step<'s, 'a> {
    operation: Operation,
    /// In the order of the plan; at least one.
    sets: &'s [&'a Set],
    way: Way,
}

impl<'a> Step<'_, 'a> {
    /// Estimated duration in nanoseconds; `u64::MAX` if the way is impossible.
    fn cost(&self, aim: Aim) -> u64 {
        let (first, all) = (self.sets[0].len(), members(self.sets));
        let others = all - first;
        let (is_union, makes) = (self.operation == Operation::Union, aim == Aim::Set);
        let result = if is_union { all } else { first };
        let each = if makes { BUILD } else { READ };
        match self.way {
            // The members would not come in the order of their hashes.
            Way::LookUp if is_union && makes => u64::MAX,
            Way::LookUp if is_union => {
                let (mut ns, mut before) = (result * each, 0_u64);
                for set in self.sets {
                    ns = ns.saturating_add(set.len().saturating_mul(before));
                    before += look_up_cost(set);
                }
                ns
            }
            Way::LookUp => {
                let in_others: u64 = self.sets[1..].iter().map(|set| look_up_cost(set)).sum();
                first.saturating_mul(in_others).saturating_add(result * each)
            }
            Way::Merge => all * MERGE + result * each,
            Way::Change if self.operation == Operation::Intersection => u64::MAX,
            // All are in the caches, and in the right order.
            Way::Change if is_union && all <= SMALL => all * READ,
            Way::Change => others.saturating_mul(CHANGE) + if makes { 0 } else { result * each },
        }
    }

    /// Computes the result by changing a clone of the first set.
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

    /// Calls `each` with the hash and the member for every member of the result, by ascending hashes if
    /// `ordered`, until `each` returns false.
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
        merge(hasher, self.sets, |hash, member, seen| {
            let wanted = match self.operation {
                Operation::Union => true,
                Operation::Intersection => seen.times == all,
                Operation::Difference => seen.first && seen.times == 1,
            };
            !wanted || each(hash, member)
        });
    }
}

/// Indices of the sets that have members, by size. Sets that share the whole value have the same members, and
/// appear once.
fn by_size<K: Ord>(sets: &[Set], which: Range<usize>, key: impl Fn(u64) -> K) -> Vec<usize> {
    let mut order: Vec<usize> = which.filter(|at| !sets[*at].is_empty()).collect();
    if order.len() > 1 {
        // Makes sets that share the whole value neighbours.
        order.sort_by_key(|at| sets[*at].address());
        order.dedup_by(|one, other| sets[*one].is_same(&sets[*other]));
        order.sort_by_key(|at| key(sets[*at].len()));
    }
    order
}

fn members<S: Borrow<Set>>(sets: &[S]) -> u64 {
    sets.iter().map(|set| set.borrow().len()).sum()
}

/// Maximum cost of looking a member up in the set.
fn look_up_cost(set: &Set) -> u64 {
    if set.len() <= NEAR { LOOK_UP_NEAR } else { LOOK_UP_FAR }
}

/// Builds a set from members by ascending hashes.
fn built<'a>(fill: impl FnOnce(&mut Builder<Member<'a>>)) -> Set {
    let mut builder = Builder::new();
    fill(&mut builder);
    let mut set = Set(builder.finish());
    set.pack();
    set
}

/// A member to be looked up in sets, whatever form they have.
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
        Probe { hash, value: parse_i64(&member), member }
    }

    fn is_in(&self, set: &Set) -> bool {
        match set.ints() {
            Some(ints) => self.value.is_some_and(|value| ints.contains(value)),
            None => set.contains_hashed(self.hash, &self.member),
        }
    }
}

/// The members of a set, to be looked up in other sets.
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

/// The sets that have a member.
struct Seen {
    times: usize,
    /// The first set is among them.
    first: bool,
}

/// Calls `each` with every member of any of the sets, by ascending hashes, until `each` returns false.
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
    // Members of the same hash: mostly a single member, seen in one set or several.
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
    use std::time::{Duration, Instant};

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

    /// Every way has the same result.
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
                    let plan = Plan::new(operation, &sets, Aim::Each);
                    let ordered = plan.ordered(&sets);
                    let step = Step { operation, sets: &ordered, way };
                    if ordered.is_empty() || step.cost(Aim::Each) == u64::MAX {
                        continue;
                    }
                    taken.insert((operation as u8, plan.way as u8));
                    let mut found = Plain::new();
                    if way == Way::Change {
                        found = step.changed(&hasher).iter().map(|member| member.to_vec()).collect();
                    } else {
                        let (ordered, mut last) = (random.below(2) == 0, 0);
                        let ascend = ordered && (way == Way::Merge || operation != Operation::Union);
                        step.run(&hasher, ordered, |hash, member| {
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

    /// Neither planning nor the planned way may take quadratic time in the number of sets.
    #[test]
    fn many_sets_take_their_number_and_no_more() {
        let (count, hasher) = (if cfg!(miri) { 300 } else { 80_000 }, Hasher::default());
        let one = |number: usize| {
            let mut set = Set::new();
            set.insert(&hasher, number.to_string().as_bytes());
            set
        };
        let (nothing, all): (Vec<Set>, Vec<Set>) = (0..count).map(|number| (Set::new(), one(number))).unzip();
        let began = Instant::now();
        for aim in [Aim::Each, Aim::Set] {
            let union = Plan::new(Operation::Union, &nothing, aim);
            assert_eq!((union.order.len(), union.ns()), (0, 0));
            let of = |operation| {
                (Plan::new(operation, &all, aim), Plan::new(operation, &nothing, aim).order.len())
            };
            let ((union, 0), (intersection, 0), (difference, 0)) =
                (of(Operation::Union), of(Operation::Intersection), of(Operation::Difference))
            else {
                panic!("nothing comes of nothing")
            };
            for plan in [&union, &intersection, &difference] {
                assert!(plan.ns() < count as u64 * 500, "{:?}: {} ns", plan.operation, plan.ns());
            }
            assert_eq!(union.set(&hasher, &all).len(), count as u64);
            assert_eq!(difference.set(&hasher, &all).len(), 1);
            assert_eq!(intersection.set(&hasher, &all).len(), 0);
        }
        let mut found = 0;
        Operation::Union.each(&hasher, &all, |_| {
            found += 1;
            true
        });
        assert_eq!(found, count);
        // With sums of sums it takes a minute.
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        let among_nothing = [&nothing[..9], &all[..2], &nothing[..9]].concat();
        assert_eq!(Plan::new(Operation::Union, &among_nothing, Aim::Each).order, [9, 10]);
        assert_eq!(Plan::new(Operation::Difference, &among_nothing[9..], Aim::Each).order, [0, 1]);
    }
}
