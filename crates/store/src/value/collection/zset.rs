//! Sorted sets: members in the order of their scores, and by hash.
//!
//! An item is the score and the member. The score takes as few bytes as possible: the bytes of the
//! floating-point number without the zeros at its end, and a byte for their number. So a small integer takes
//! three bytes, not eight.
//!
//! A small set is a page in order; a member is found by comparing them all. A larger set is two trees of the
//! same items, in order and by the members' hashes. A lookup by member walks down a single tree. An iteration
//! over members stays correct while scores change, which a cursor in the order of scores could not promise.

mod gather;

use std::cmp::Ordering;
use std::ops::Range;

use super::Cut;
use super::hashed::{self, ByHash};
use super::page::Page;
use super::root::{Root, Twin, View, ViewMut};
use super::share::Share;
use super::tree::{self, Bound, Inner, Seek, Tree};
use crate::Hasher;

pub use gather::{Gather, Gathered};

/// See the module's documentation. Members are at most [`super::ELEMENT_MAX`] bytes long. Scores are never
/// NaN.
#[repr(transparent)]
#[derive(Clone)]
pub struct ZSet(pub(super) Root);

/// A score as it stands at the start of an item.
struct Score {
    bytes: [u8; 9],
    len: usize,
}

impl Score {
    fn new(score: f64) -> Score {
        let bits = score.to_bits();
        let len = 8 - (bits.trailing_zeros() / 8) as usize;
        let mut bytes = [0; 9];
        bytes[0] = len as u8;
        bytes[1..].copy_from_slice(&bits.to_be_bytes());
        Score { bytes, len: 1 + len }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[inline]
fn score_of(item: &[u8]) -> f64 {
    let len = item[0] as usize;
    let mut bytes = [0; 8];
    bytes[..len].copy_from_slice(&item[1..1 + len]);
    f64::from_bits(u64::from_be_bytes(bytes))
}

#[inline]
fn member_of(item: &[u8]) -> &[u8] {
    &item[1 + item[0] as usize..]
}

#[inline]
fn split(item: &[u8]) -> (&[u8], f64) {
    (member_of(item), score_of(item))
}

/// A number of 64 bits in the order of scores. Negative zero equals zero, but is printed as negative.
fn ordered(score: f64) -> u64 {
    let bits = (score + 0.0).to_bits();
    if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }
}

fn bound_of(score: f64, member: &[u8]) -> Bound {
    let mut prefix = [0; 8];
    let len = member.len().min(8);
    prefix[..len].copy_from_slice(&member[..len]);
    [ordered(score), u64::from_be_bytes(prefix)]
}

fn bound_of_item(item: &[u8]) -> Bound {
    bound_of(score_of(item), member_of(item))
}

/// Finds a score and member in the ordered tree.
struct ByOrder<'a> {
    score: f64,
    member: &'a [u8],
    bound: Bound,
}

impl<'a> ByOrder<'a> {
    fn new(score: f64, member: &'a [u8]) -> ByOrder<'a> {
        ByOrder { score, member, bound: bound_of(score, member) }
    }

    /// Compares an item with the score and member sought.
    fn compare(&self, item: &[u8]) -> Ordering {
        let (member, score) = split(item);
        compare_scores(score, self.score).then_with(|| member.cmp(self.member))
    }
}

fn compare_scores(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).expect("a score is a number")
}

impl Seek for ByOrder<'_> {
    fn branch(&mut self, inner: &Inner) -> usize {
        inner.seek_item(|bound| bound.cmp(&self.bound), |item| self.compare(item))
    }

    fn within(&mut self, page: &Page) -> (usize, bool) {
        match search(page, |item| self.compare(item)) {
            Ok(at) => (at, true),
            Err(at) => (at, false),
        }
    }
}

fn search(page: &Page, compare: impl Fn(&[u8]) -> Ordering) -> Result<usize, usize> {
    let (mut from, mut to) = (0, page.len());
    while from < to {
        let middle = (from + to) / 2;
        match compare(page.get(middle)) {
            Ordering::Less => from = middle + 1,
            Ordering::Equal => return Ok(middle),
            Ordering::Greater => to = middle,
        }
    }
    Err(from)
}

/// Finds the first item that is not before a place in the order; no item equals the place.
struct Before<B, I> {
    /// Compares the lower bound of a branch with the place; if they are equal, the first item decides.
    bound: B,
    /// Returns true if an item lies before the place.
    item: I,
}

impl<B: Fn(&Bound) -> Ordering, I: Fn(&[u8]) -> bool> Seek for Before<B, I> {
    fn branch(&mut self, inner: &Inner) -> usize {
        let first = |item: &[u8]| if (self.item)(item) { Ordering::Less } else { Ordering::Greater };
        inner.seek_item(&self.bound, first)
    }

    fn within(&mut self, page: &Page) -> (usize, bool) {
        let at = search(page, |item| if (self.item)(item) { Ordering::Less } else { Ordering::Greater });
        (at.unwrap_or_else(|at| at), false)
    }
}

/// An end of a range of members that all have the same score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lex<'a> {
    /// `-`: before all members.
    Min,
    /// `+`: after all members.
    Max,
    /// `[member`
    Including(&'a [u8]),
    /// `(member`
    Excluding(&'a [u8]),
}

impl Lex<'_> {
    /// Returns true if a member comes before this end; `upper`: if it comes before the first member beyond
    /// the range.
    fn is_after(&self, member: &[u8], upper: bool) -> bool {
        match *self {
            Lex::Min => false,
            Lex::Max => true,
            Lex::Including(end) => {
                if upper {
                    member <= end
                } else {
                    member < end
                }
            }
            Lex::Excluding(end) => {
                if upper {
                    member < end
                } else {
                    member <= end
                }
            }
        }
    }
}

/// See [`ZSet::lex_range`].
fn lex_range_of_mixed(page: &Page, from: Lex<'_>, to: Lex<'_>, backwards: bool) -> Range<u64> {
    let len = page.len();
    let enough = |at: usize| !from.is_after(member_of(page.get(at)), false);
    let not_too_much = |at: usize| to.is_after(member_of(page.get(at)), true);
    if len == 0 || !enough(len - 1) || !not_too_much(0) {
        return 0..0;
    }
    let range = if backwards {
        let end = (0..len).rev().find(|at| not_too_much(*at)).map_or(0, |last| last + 1);
        (0..end).rev().find(|at| !enough(*at)).map_or(0, |before| before + 1)..end
    } else {
        let start = (0..len).find(|at| enough(*at)).unwrap_or(len);
        start..(start..len).find(|at| !not_too_much(*at)).unwrap_or(len)
    };
    range.start as u64..range.end as u64
}

impl ZSet {
    fn ordered(&self) -> &Tree {
        self.0.main()
    }

    #[expect(clippy::len_without_is_empty, reason = "`Collection` has it")]
    pub fn len(&self) -> u64 {
        self.ordered().len()
    }

    /// Prefetches the memory that looking up these members will read, and returns the number found; see
    /// [`crate::guard::ahead`].
    pub(crate) fn prefetch(&self, hasher: &Hasher, members: &[&[u8]]) -> usize {
        match self.0.view() {
            View::One(_) => 0,
            View::Two(twin) => twin.side.prefetch_hashed(members.iter().map(|member| hasher.hash(member))),
        }
    }

    /// The score of a member.
    pub fn score(&self, hasher: &Hasher, member: &[u8]) -> Option<f64> {
        let is = |item: &[u8]| member_of(item) == member;
        let item = match self.0.view() {
            View::One(tree) => {
                let page = tree.page().expect("larger ones are twins");
                (0..page.len()).map(|at| page.get(at)).find(|item| is(item))
            }
            View::Two(twin) => twin.side.find(&mut ByHash::new(hasher.hash(member), is)).item(),
        };
        item.map(score_of)
    }

    /// Sets a member's score; returns the old score.
    pub fn insert(&mut self, hasher: &Hasher, member: &[u8], score: f64) -> Option<f64> {
        self.update(hasher, member, |_| Some(score))
    }

    /// Sets a member's score to the result of `decide`, which gets the old score, if any; `None` changes
    /// nothing. Returns the old score.
    pub fn update(
        &mut self,
        hasher: &Hasher,
        member: &[u8],
        decide: impl FnOnce(Option<f64>) -> Option<f64>,
    ) -> Option<f64> {
        let old = self.score(hasher, member);
        let Some(score) = decide(old) else { return old };
        debug_assert!(!score.is_nan(), "a score is a number");
        if old == Some(score) {
            return old;
        }
        let head = Score::new(score);
        let parts = [head.as_bytes(), member];
        if let ViewMut::Two(twin) = self.0.view_mut() {
            let hash = hasher.hash(member);
            let hash_of = |item: &[u8]| hasher.hash(member_of(item));
            let mut seek = ByHash::new(hash, |item: &[u8]| member_of(item) == member);
            twin.side.change(&mut seek, |page, at, found| {
                let siblings = if found {
                    hashed::replace(page, at, &parts, hash, hash_of)
                } else {
                    hashed::insert(page, &parts, hash, hash_of)
                };
                ((), siblings)
            });
        }
        let ordered = match self.0.view_mut() {
            ViewMut::One(tree) => tree,
            ViewMut::Two(twin) => &mut twin.main,
        };
        if let Some(old) = old {
            remove_ordered(ordered, old, member);
        }
        ordered.change(&mut ByOrder::new(score, member), |page, at, found| {
            assert!(!found, "a member is there once");
            ((), tree::insert(page, at, &parts, bound_of_item))
        });
        self.pair(hasher);
        old
    }

    /// Gives a set of several pages its second tree.
    fn pair(&mut self, hasher: &Hasher) {
        let View::One(tree) = self.0.view() else { return };
        if tree.is_page() {
            return;
        }
        let mut side = Tree::new();
        let hash_of = |item: &[u8]| hasher.hash(member_of(item));
        for item in tree.iter() {
            let hash = hash_of(item);
            let mut seek = ByHash::new(hash, |_: &[u8]| false);
            side.change(&mut seek, |page, _, _| ((), hashed::insert(page, &[item], hash, hash_of)));
        }
        self.0 = Twin { main: tree.clone(), side }.into();
    }

    /// A share of the member at a position. Panics if there is none.
    pub fn share(&self, at: u64) -> Share {
        let spot = self.ordered().spot(at);
        Share::of(&spot, member_of(spot.page.get(spot.at)).len(), 0)
    }

    /// Removes a member; returns its score.
    pub fn remove(&mut self, hasher: &Hasher, member: &[u8]) -> Option<f64> {
        let score = self.score(hasher, member)?;
        match self.0.view_mut() {
            ViewMut::One(tree) => remove_ordered(tree, score, member),
            ViewMut::Two(twin) => {
                remove_ordered(&mut twin.main, score, member);
                remove_hashed(&mut twin.side, hasher, member);
            }
        }
        Some(score)
    }

    /// Removes the members at positions in the range, which lies inside: O(log n) for each, but O(1) for all.
    pub fn remove_range(&mut self, hasher: &Hasher, range: Range<u64>) -> Cut {
        if range == (0..self.len()) {
            let gone = std::mem::replace(self, <ZSet as super::Collection>::new());
            return Cut::of(gone.0);
        }
        match self.0.view_mut() {
            ViewMut::One(tree) => Cut(tree.remove_range(range)),
            ViewMut::Two(twin) => {
                for item in twin.main.range(range.clone()) {
                    remove_hashed(&mut twin.side, hasher, member_of(item));
                }
                Cut(twin.main.remove_range(range))
            }
        }
    }

    /// Number of members before this member, which has this score.
    pub fn rank(&self, member: &[u8], score: f64) -> u64 {
        let (rank, found) = self.ordered().rank(&mut ByOrder::new(score, member));
        debug_assert!(found, "the member is there");
        rank
    }

    /// The member and score at a position.
    pub fn get(&self, at: u64) -> Option<(&[u8], f64)> {
        self.ordered().get(at).map(split)
    }

    /// Members and scores at positions in a range, which is cut to the length, in order; double-ended.
    pub fn range(
        &self,
        range: Range<u64>,
    ) -> impl DoubleEndedIterator<Item = (&[u8], f64)> + ExactSizeIterator {
        self.ordered().range(range).map(split)
    }

    /// Number of members with a score less than this score, or not greater if `including`.
    pub fn count_below(&self, score: f64, including: bool) -> u64 {
        let place = ordered(score);
        let before = |item: &[u8]| {
            let other = score_of(item);
            other < score || including && other == score
        };
        // In a branch whose bound has this very score, only the first item tells where the score begins.
        self.ordered().rank(&mut Before { bound: |bound: &Bound| bound[0].cmp(&place), item: before }).0
    }

    /// The positions of members from `from` to `to` in a set whose members all have the same score; may be
    /// empty.
    ///
    /// If scores differ ([`ZSet::has_one_score`]), the result is meaningless, but in small sets it is the
    /// same as in Redis: members from the first that is not before the range to the next behind it, or from
    /// the other side if `backwards`. In large sets it depends on the ends of the pages, which may differ
    /// between equal sets.
    pub fn lex_range(&self, from: Lex<'_>, to: Lex<'_>, backwards: bool) -> Range<u64> {
        if let (Some(page), false) = (self.ordered().page(), self.has_one_score()) {
            return lex_range_of_mixed(page, from, to, backwards);
        }
        let (start, end) = (self.count_below_lex(from, false), self.count_below_lex(to, true));
        start..end.max(start)
    }

    /// Returns true if all members have the same score.
    pub fn has_one_score(&self) -> bool {
        let len = self.len();
        let (first, last) = (self.get(0), self.get(len.wrapping_sub(1)));
        first.map(|(_, score)| score) == last.map(|(_, score)| score)
    }

    /// Number of members before this end of a range; `upper`: including members up to the end.
    fn count_below_lex(&self, end: Lex<'_>, upper: bool) -> u64 {
        let member = match end {
            Lex::Min => return 0,
            Lex::Max => return self.len(),
            Lex::Including(member) | Lex::Excluding(member) => member,
        };
        let before = |item: &[u8]| end.is_after(member_of(item), upper);
        let place = bound_of(0.0, member)[1];
        self.ordered().rank(&mut Before { bound: |bound: &Bound| bound[1].cmp(&place), item: before }).0
    }

    /// Calls `each` with about `count` members and scores from `cursor` on; returns the next cursor, zero at
    /// the end.
    pub fn scan<'a>(
        &'a self,
        hasher: &Hasher,
        cursor: u64,
        count: usize,
        mut each: impl FnMut(&'a [u8], f64),
    ) -> u64 {
        let tree = match self.0.view() {
            View::One(tree) => tree,
            View::Two(twin) => &twin.side,
        };
        hashed::scan(
            tree,
            cursor,
            count,
            |item| hasher.hash(member_of(item)),
            |item| {
                let (member, score) = split(item);
                each(member, score);
            },
        )
    }

    /// Bytes of memory, counted up to `max`, which bounds the time.
    pub fn memory_up_to(&self, max: usize) -> usize {
        self.0.memory_up_to(max)
    }

    pub fn memory(&self) -> usize {
        self.0.memory()
    }

    pub(crate) fn weight(&self) -> usize {
        self.0.weight()
    }

    /// Returns true if both share the whole value, so neither was written to since it was cloned.
    pub fn is_same(&self, other: &ZSet) -> bool {
        self.0.is_same(&other.0)
    }
}

fn remove_ordered(tree: &mut Tree, score: f64, member: &[u8]) {
    tree.change(&mut ByOrder::new(score, member), |page, at, found| {
        assert!(found, "a member that has a score is in its place");
        page.remove(at, at + 1);
        ((), Vec::new())
    });
}

fn remove_hashed(tree: &mut Tree, hasher: &Hasher, member: &[u8]) {
    let mut seek = ByHash::new(hasher.hash(member), |item: &[u8]| member_of(item) == member);
    tree.change(&mut seek, |page, at, found| {
        assert!(found, "a member that has a score is in its place");
        page.remove(at, at + 1);
        ((), Vec::new())
    });
}
