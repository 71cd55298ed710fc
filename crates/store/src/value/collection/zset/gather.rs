//! Sorted sets made at once: the results of ZUNIONSTORE and similar commands, ZRANGESTORE and RESTORE.
//!
//! Adding a million members one at a time walks down two trees a million times. Here the members are sorted
//! by their hashes, which makes equal members neighbours, and then by score. Both trees are appended page by
//! page.
//!
//! A caller that adds the same members repeatedly merges them now and then ([`Gather::settle`]), so that the
//! memory is proportional to the result, not to the number of additions.

use std::cmp::Ordering;

use super::super::hashed;
use super::super::page::{self, PAGE_MAX, Page};
use super::super::root::Twin;
use super::super::set::Member;
use super::super::tree::{Siblings, Tree};
use super::{Score, ZSet, bound_of};
use crate::Hasher;

/// Bytes up to which a page is filled, so that later members do not split every page at once.
const FILL: usize = PAGE_MAX / 8 * 7;

/// Number of members that are not worth merging before the end: three megabytes.
const UNSETTLED_MAX: usize = 65_536;

/// Members with scores, collected for a sorted set.
pub struct Gather<'a> {
    hasher: &'a Hasher,
    items: Vec<Item<'a>>,
    /// This many items, from the front, are different members.
    settled: usize,
    longest: usize,
}

/// The collected members, each once.
pub struct Gathered<'a> {
    /// Ascending by hash.
    items: Vec<Item<'a>>,
    longest: usize,
}

#[derive(Clone, Copy)]
struct Item<'a> {
    hash: u64,
    member: Member<'a>,
    score: f64,
}

impl<'a> Gather<'a> {
    pub fn new(hasher: &'a Hasher) -> Gather<'a> {
        Gather { hasher, items: Vec::new(), settled: 0, longest: 0 }
    }

    /// Adds a member; its score is a number.
    pub fn push(&mut self, member: impl Into<Member<'a>>, score: f64) {
        debug_assert!(!score.is_nan(), "a score is a number");
        let member = member.into();
        self.longest = self.longest.max(member.len());
        self.items.push(Item { hash: self.hasher.hash(&member), member, score });
    }

    /// Merges equal members, as [`Gather::merge`] does at the end, if more members have been added since the
    /// last time than there were then. The final scores are the same: merged members stand before all later
    /// additions.
    pub fn settle(&mut self, merge: impl Fn(f64, f64) -> f64) {
        if self.items.len() - self.settled > self.settled.max(UNSETTLED_MAX) {
            self.put_together(merge);
        }
    }

    /// Merges equal members. A member gets the score that `merge` returns for the first two scores, then for
    /// the result and the third, in the order of the additions.
    pub fn merge(mut self, merge: impl Fn(f64, f64) -> f64) -> Gathered<'a> {
        self.put_together(merge);
        Gathered { items: self.items, longest: self.longest }
    }

    fn put_together(&mut self, merge: impl Fn(f64, f64) -> f64) {
        // Stable: equal members stay in the order in which they were added.
        self.items.sort_by_key(|item| item.hash);
        let mut kept: usize = 0;
        for at in 0..self.items.len() {
            let item = self.items[at];
            let mut alike = self.items[..kept].iter_mut().rev().take_while(|other| other.hash == item.hash);
            match alike.find(|other| other.member[..] == item.member[..]) {
                Some(other) => other.score = merge(other.score, item.score),
                None => {
                    self.items[kept] = item;
                    kept += 1;
                }
            }
        }
        self.items.truncate(kept);
        self.settled = kept;
    }
}

impl<'a> Gathered<'a> {
    pub fn len(&self) -> u64 {
        self.items.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Bytes of the longest member.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Replaces all scores; the new scores are numbers.
    pub fn map(&mut self, change: impl Fn(f64) -> f64) {
        self.items.iter_mut().for_each(|item| item.score = change(item.score));
    }

    /// The set of all members.
    pub fn into_set(self) -> ZSet {
        let main = ordered_tree(&self.items, &self.order());
        if main.is_page() {
            return ZSet(main.into());
        }
        ZSet(Twin { main, side: hashed_tree(&self.items) }.into())
    }

    /// Members and scores in order.
    pub fn in_order(&self) -> impl ExactSizeIterator<Item = (&[u8], f64)> {
        self.order().into_iter().map(|place| {
            let item = &self.items[place.index as usize];
            (&item.member[..], item.score)
        })
    }

    fn order(&self) -> Vec<Place> {
        assert!(self.items.len() <= u32::MAX as usize, "more members than fit into memory");
        let places = self.items.iter().enumerate();
        let mut order: Vec<Place> = places
            .map(|(index, item)| Place { bound: bound_of(item.score, &item.member), index: index as u32 })
            .collect();
        let rest = |place: &Place| &self.items[place.index as usize].member[..];
        order.sort_unstable_by(|a, b| match a.bound.cmp(&b.bound) {
            Ordering::Equal => rest(a).cmp(rest(b)),
            other => other,
        });
        order
    }
}

/// The place of an item in the order, without the end of a long member.
#[derive(Clone, Copy)]
struct Place {
    bound: [u64; 2],
    index: u32,
}

/// The tree of items in order.
fn ordered_tree(items: &[Item<'_>], order: &[Place]) -> Tree {
    let parts = |place: &Place| {
        let item = &items[place.index as usize];
        (Score::new(item.score), &item.member[..], 0)
    };
    pages(order, |place| place.bound, |_, _| false, parts, false)
}

/// The tree of items by their hashes; `items` are in that order.
fn hashed_tree(items: &[Item<'_>]) -> Tree {
    let parts = |item| {
        let Item { hash, member, score }: &Item<'_> = item;
        (Score::new(*score), &member[..], hashed::tag(*hash))
    };
    // Items of the same hash are in the same page.
    pages(items, |item| [item.hash, 0], |a, b| a.hash == b.hash, parts, true)
}

/// A tree of pages of these items; `together` returns true for neighbours that must be in the same page.
fn pages<'a, T>(
    all: &'a [T],
    bound: impl Fn(&T) -> [u64; 2],
    together: impl Fn(&T, &T) -> bool,
    parts: impl Fn(&'a T) -> (Score, &'a [u8], u16),
    tagged: bool,
) -> Tree {
    let mut siblings: Siblings<Page> = Vec::new();
    let mut rest = all;
    while !rest.is_empty() {
        let (mut count, mut bytes) = (0, 0);
        for (at, one) in rest.iter().enumerate() {
            let (score, member, _) = parts(one);
            let more = score.as_bytes().len() + member.len();
            let full = page::bytes_of(tagged, count + 1, bytes + more) > FILL;
            if full && at > 0 && !together(&rest[at - 1], one) {
                break;
            }
            (count, bytes) = (count + 1, bytes + more);
        }
        let (now, later) = rest.split_at(count);
        let len_of = |one| {
            let (score, member, _) = parts(one);
            score.as_bytes().len() + member.len()
        };
        let mut page = Page::for_items(tagged, now.iter().map(len_of));
        for one in now {
            let (score, member, tag) = parts(one);
            page.insert(page.len(), &[score.as_bytes(), member], tag);
        }
        siblings.push((bound(&now[0]), page));
        rest = later;
    }
    Tree::of_pages(siblings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::random::{Random, fresh_seed};

    fn added(
        of: impl Fn(f64, f64) -> f64 + Copy,
        names: &[String],
        scores: &[f64],
        settles: bool,
    ) -> Vec<(Vec<u8>, u64)> {
        let hasher = Hasher::default();
        let mut gather = Gather::new(&hasher);
        for (at, score) in scores.iter().enumerate() {
            gather.push(names[at % names.len()].as_bytes(), *score);
            if settles && at % 100 == 0 {
                gather.put_together(of);
            }
        }
        let gathered = gather.merge(of);
        gathered.in_order().map(|(member, score)| (member.to_vec(), score.to_bits())).collect()
    }

    /// The last digits of the scores depend on the order of additions.
    #[test]
    fn what_is_put_together_early_has_the_same_scores() {
        let seed = fresh_seed();
        println!("EVENKEEL_SEED={seed}");
        let mut random = Random::new(seed);
        let names: Vec<String> = (0..37).map(|number| format!("member:{number}")).collect();
        let scores: Vec<f64> = (0..2000).map(|_| random.below(1_000_000) as f64 / 7e5).collect();
        let sum = |a, b| a + b;
        let of_all = added(sum, &names, &scores, false);
        assert_eq!(of_all.len(), names.len());
        assert_eq!(added(sum, &names, &scores, true), of_all);
        let reversed: Vec<f64> = scores.iter().rev().copied().collect();
        assert_ne!(added(sum, &names, &reversed, true), of_all, "another order can be seen");
    }

    #[test]
    fn memory_goes_with_the_result() {
        const MEMBERS: usize = 1000;
        let (hasher, names) =
            (Hasher::default(), (0..MEMBERS).map(|number| number.to_string()).collect::<Vec<_>>());
        let mut gather = Gather::new(&hasher);
        for _ in 0..if cfg!(miri) { 70 } else { 1000 } {
            names.iter().for_each(|name| gather.push(name.as_bytes(), 1.0));
            gather.settle(|a, b| a + b);
        }
        assert!(gather.items.capacity() < 3 * UNSETTLED_MAX, "{}", gather.items.capacity());
        assert_eq!(gather.merge(|a, b| a + b).len(), MEMBERS as u64);
    }
}
