//! Sorted sets made at once: what ZUNIONSTORE and its like, ZRANGESTORE and RESTORE end with.
//!
//! Adding a million members one by one walks down two trees a million times. Here they are sorted by their hashes, which
//! brings those together that are the same member, and then by score; both trees are appended page by page.

use std::cmp::Ordering;

use super::super::hashed;
use super::super::page::{self, PAGE_MAX, Page};
use super::super::root::Twin;
use super::super::tree::{Siblings, Tree};
use super::{Score, ZSet, bound_of};
use crate::Hasher;

/// Bytes up to which a page is filled, so that the next members do not split each one at once.
const FILL: usize = PAGE_MAX / 8 * 7;

/// Members with scores on their way into a sorted set.
pub struct Gather<'a> {
    hasher: &'a Hasher,
    items: Vec<Item<'a>>,
    longest: usize,
}

/// The same, each member once.
pub struct Gathered<'a> {
    /// Ascending by hash.
    items: Vec<Item<'a>>,
    longest: usize,
}

#[derive(Clone, Copy)]
struct Item<'a> {
    hash: u64,
    member: &'a [u8],
    score: f64,
}

impl<'a> Gather<'a> {
    pub fn new(hasher: &'a Hasher) -> Gather<'a> {
        Gather { hasher, items: Vec::new(), longest: 0 }
    }

    /// Adds a member; its score is a number.
    pub fn push(&mut self, member: &'a [u8], score: f64) {
        debug_assert!(!score.is_nan(), "a score is a number");
        self.items.push(Item { hash: self.hasher.hash(member), member, score });
        self.longest = self.longest.max(member.len());
    }

    /// Puts together what is the same member: it gets the score that `merge` makes of the first two, then of that and
    /// the third, in the order in which they came.
    pub fn merge(mut self, merge: impl Fn(f64, f64) -> f64) -> Gathered<'a> {
        // Stable: members that are the same stay in the order in which they came.
        self.items.sort_by_key(|item| item.hash);
        let mut kept: usize = 0;
        for at in 0..self.items.len() {
            let item = self.items[at];
            let mut alike = self.items[..kept].iter_mut().rev().take_while(|other| other.hash == item.hash);
            match alike.find(|other| other.member == item.member) {
                Some(other) => other.score = merge(other.score, item.score),
                None => {
                    self.items[kept] = item;
                    kept += 1;
                }
            }
        }
        self.items.truncate(kept);
        Gathered { items: self.items, longest: self.longest }
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

    /// Replaces all scores; the new ones are numbers.
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
    pub fn in_order(&self) -> impl ExactSizeIterator<Item = (&'a [u8], f64)> {
        self.order().into_iter().map(|place| {
            let item = &self.items[place.index as usize];
            (item.member, item.score)
        })
    }

    fn order(&self) -> Vec<Place> {
        assert!(self.items.len() <= u32::MAX as usize, "more members than fit into memory");
        let places = self.items.iter().enumerate();
        let mut order: Vec<Place> = places
            .map(|(index, item)| Place { bound: bound_of(item.score, item.member), index: index as u32 })
            .collect();
        let rest = |place: &Place| self.items[place.index as usize].member;
        order.sort_unstable_by(|a, b| match a.bound.cmp(&b.bound) {
            Ordering::Equal => rest(a).cmp(rest(b)),
            other => other,
        });
        order
    }
}

/// Where an item stands in the order, but for the end of a long member.
#[derive(Clone, Copy)]
struct Place {
    bound: [u64; 2],
    index: u32,
}

/// The tree of items in order.
fn ordered_tree(items: &[Item<'_>], order: &[Place]) -> Tree {
    let parts = |place: &Place| {
        let item = &items[place.index as usize];
        (Score::new(item.score), item.member, 0)
    };
    pages(order, |place| place.bound, |_, _| false, parts, false)
}

/// The tree of items by their hashes, in the order of which they are.
fn hashed_tree<'a>(items: &[Item<'a>]) -> Tree {
    let parts = |item: &Item<'a>| (Score::new(item.score), item.member, hashed::tag(item.hash));
    // Items of one hash are in one page.
    pages(items, |item| [item.hash, 0], |a, b| a.hash == b.hash, parts, true)
}

/// A tree of pages of these items; `together` tells which neighbours must be in one.
fn pages<'a, T>(
    all: &[T],
    bound: impl Fn(&T) -> [u64; 2],
    together: impl Fn(&T, &T) -> bool,
    parts: impl Fn(&T) -> (Score, &'a [u8], u16),
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
        let mut page = Page::new(tagged, count, bytes);
        for one in now {
            let (score, member, tag) = parts(one);
            page.insert(page.len(), &[score.as_bytes(), member], tag);
        }
        siblings.push((bound(&now[0]), page));
        rest = later;
    }
    Tree::of_pages(siblings)
}
