//! Sets: members by hash, or packed integers in ascending order while they are few (see [`super::ints`]).
//!
//! The first member of an empty set decides the form: an integer makes it packed. With the first other
//! member, or with too many integers, it becomes an ordinary set for good.

mod algebra;
mod member;

pub use algebra::{Aim, Operation, Plan};
pub use member::Member;

use evenkeel_resp::number::parse_i64;

use super::Cut;
use super::hashed::{self, ByHash, Scan};
use super::ints::{self, Added, Ints};
use super::page::Page;
use super::share::Share;
use super::tree::{self, Tree};
use crate::Hasher;

/// See the module's documentation. Members are at most [`super::ELEMENT_MAX`] bytes long.
#[repr(transparent)]
#[derive(Clone)]
pub struct Set(pub(super) Tree);

impl Set {
    #[expect(clippy::len_without_is_empty, reason = "`Collection` has it")]
    #[inline]
    pub fn len(&self) -> u64 {
        match self.ints() {
            Some(ints) => ints.len() as u64,
            None => self.0.len(),
        }
    }

    #[inline]
    fn ints(&self) -> Option<Ints<'_>> {
        self.0.page().and_then(Ints::of)
    }

    /// Returns true if the members are packed integers; the members of an ordinary set may all be integers,
    /// too.
    pub fn is_packed(&self) -> bool {
        self.ints().is_some()
    }

    #[inline]
    pub fn contains(&self, hasher: &Hasher, member: &[u8]) -> bool {
        match self.ints() {
            Some(ints) => parse_i64(member).is_some_and(|value| ints.contains(value)),
            None => self.contains_hashed(hasher.hash(member), member),
        }
    }

    /// Prefetches the memory that looking up these members will read, and returns the number found; see
    /// [`crate::guard::ahead`].
    pub(crate) fn prefetch(&self, hasher: &Hasher, members: &[&[u8]]) -> usize {
        self.0.prefetch_hashed(members.iter().map(|member| hasher.hash(member)))
    }

    fn contains_hashed(&self, hash: u64, member: &[u8]) -> bool {
        self.0.find(&mut ByHash::new(hash, |item: &[u8]| item == member)).found
    }

    /// Adds a member; returns false if it exists already.
    pub fn insert(&mut self, hasher: &Hasher, member: &[u8]) -> bool {
        if let Some(page) = self.0.page_mut()
            && (page.is_packed() || page.len() == 0)
        {
            match insert_packed(page, member) {
                Added::New => return true,
                Added::AlreadyThere => return false,
                Added::Full => self.unpack(hasher),
            }
        }
        let hash = hasher.hash(member);
        let mut seek = ByHash::new(hash, |item: &[u8]| item == member);
        self.0.change(&mut seek, |page, _, found| {
            if found {
                return (false, Vec::new());
            }
            (true, hashed::insert(page, &[member], hash, |item| hasher.hash(item)))
        })
    }

    /// Turns packed integers into ordinary members.
    fn unpack(&mut self, hasher: &Hasher) {
        let Some(ints) = self.ints() else { return };
        let mut tree = Tree::new();
        for member in ints.iter().map(Member::integer) {
            let hash = hasher.hash(&member);
            tree.change(&mut ByHash::new(hash, |_: &[u8]| false), |page, _, _| {
                ((), hashed::insert(page, &[&member], hash, |item| hasher.hash(item)))
            });
        }
        self.0 = tree;
    }

    /// Turns ordinary members into packed integers, if all are integers.
    fn pack(&mut self) {
        if self.len() == 0 || self.len() > ints::INTS_MAX as u64 || self.is_packed() {
            return;
        }
        let values: Option<Vec<i64>> = self.0.iter().map(parse_i64).collect();
        if let Some(mut values) = values {
            values.sort_unstable();
            self.0 = ints::of_sorted(&values).into();
        }
    }

    /// Removes a member; returns false if it does not exist.
    pub fn remove(&mut self, hasher: &Hasher, member: &[u8]) -> bool {
        if self.is_packed() {
            let page = self.0.page_mut().expect("packed integers are one page");
            return parse_i64(member).is_some_and(|value| ints::remove(page, value));
        }
        let mut seek = ByHash::new(hasher.hash(member), |item: &[u8]| item == member);
        self.0.change(&mut seek, |page, at, found| {
            if found {
                page.remove(at, at + 1);
            }
            (found, Vec::new())
        })
    }

    /// The member at a position. The order is meaningless, but each member has exactly one position, so a
    /// random position is a fair choice.
    pub fn get(&self, at: u64) -> Option<Member<'_>> {
        match self.ints() {
            Some(ints) => (at < ints.len() as u64).then(|| Member::integer(ints.get(at as usize))),
            None => self.0.get(at).map(Member::bytes),
        }
    }

    /// A share of the member at a position. Panics if there is none, or if it is a packed integer.
    pub fn share(&self, at: u64) -> Share {
        assert!(!self.is_packed(), "integers are short");
        let spot = self.0.spot(at);
        Share::of(&spot, spot.page.get(spot.at).len(), 0)
    }

    /// Removes the members at positions in the range, which lies inside.
    pub fn remove_range(&mut self, range: std::ops::Range<u64>) -> Cut {
        match self.ints().map(Ints::len) {
            Some(len) if range != (0..len as u64) => {
                let page = self.0.page_mut().expect("packed integers are one page");
                ints::remove_range(page, range.start as usize..range.end as usize);
                Cut::default()
            }
            // The whole page is a single item.
            Some(_) => Cut(self.0.remove_range(0..1)),
            None => Cut(self.0.remove_range(range)),
        }
    }

    /// Removes the members at these positions, which ascend and lie inside.
    pub fn remove_each(&mut self, positions: &[u64]) {
        if !self.is_packed() {
            return self.0.remove_each(positions);
        }
        let page = self.0.page_mut().expect("packed integers are one page");
        positions.iter().rev().for_each(|at| ints::remove_range(page, *at as usize..*at as usize + 1));
    }

    /// The whole content, to be freed.
    pub fn into_cut(self) -> Cut {
        Cut(vec![self.0])
    }

    /// All members: packed integers in ascending order, ordinary members in the order of insertion while the
    /// set is small.
    pub fn iter(&self) -> Iter<'_> {
        match self.ints() {
            Some(ints) => Iter(Walk::Ints(ints, 0)),
            None => Iter(Walk::Tree(self.0.iter())),
        }
    }

    /// All members in place. Panics if they are packed.
    pub fn unpacked(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        assert!(!self.is_packed(), "the caller has unpacked them");
        self.0.iter()
    }

    /// Calls `each` with about `count` members from `cursor` on; returns the next cursor, zero at the end.
    pub fn scan(&self, hasher: &Hasher, cursor: u64, count: usize, mut each: impl FnMut(&[u8])) -> u64 {
        if self.is_packed() {
            if cursor == 0 && self.len() <= count as u64 {
                self.iter().for_each(|member| each(&member));
                return 0;
            }
            // By hashes as well: the set may become a tree before the walk continues.
            let members = self.iter().map(|member| (hasher.hash(&member), member));
            return Scan::new(cursor, count).go_over(members, |member| each(&member)).unwrap_or(0);
        }
        hashed::scan(&self.0, cursor, count, |item| hasher.hash(item), each)
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

    /// Two sets have the same address exactly if they share the whole value.
    fn address(&self) -> usize {
        self.0.address()
    }

    /// Returns true if both share the whole value, so neither was written to since it was cloned.
    pub fn is_same(&self, other: &Set) -> bool {
        self.0.is_same(&other.0)
    }
}

/// Adds a member to an empty page or a page of packed integers; `Full`: it must become a page of ordinary
/// members first.
fn insert_packed(page: &mut Page, member: &[u8]) -> Added {
    let Some(value) = parse_i64(member) else { return Added::Full };
    if page.is_packed() {
        return ints::insert(page, value);
    }
    *page = ints::single(value);
    Added::New
}

/// The members of a set.
pub struct Iter<'a>(Walk<'a>);

#[expect(clippy::large_enum_variant, reason = "it lives on the stack, and not for long")]
enum Walk<'a> {
    Tree(tree::Iter<'a>),
    /// The integers, and the position of the next.
    Ints(Ints<'a>, usize),
}

impl<'a> Iterator for Iter<'a> {
    type Item = Member<'a>;

    #[inline]
    fn next(&mut self) -> Option<Member<'a>> {
        match &mut self.0 {
            Walk::Tree(items) => items.next().map(Member::bytes),
            Walk::Ints(ints, at) => {
                *at += 1;
                (*at <= ints.len()).then(|| Member::integer(ints.get(*at - 1)))
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Walk::Tree(items) => items.size_hint(),
            Walk::Ints(ints, at) => (ints.len() - at, Some(ints.len() - at)),
        }
    }
}

impl ExactSizeIterator for Iter<'_> {}
