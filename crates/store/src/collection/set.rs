//! Sets: members by hash.

use super::Cut;
use super::hashed::{self, ByHash};
use super::tree::Tree;
use crate::Hasher;

/// See the module's text. Members are at most [`super::ITEM_MAX`] bytes long.
#[repr(transparent)]
#[derive(Clone)]
pub struct Set(pub(super) Tree);

impl Set {
    #[expect(clippy::len_without_is_empty, reason = "`Collection` has it")]
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    pub fn contains(&self, hasher: &Hasher, member: &[u8]) -> bool {
        self.0.find(&mut ByHash { hash: hasher.hash(member), is: |item: &[u8]| item == member }).found
    }

    /// Adds a member; `false` when it is there already.
    pub fn insert(&mut self, hasher: &Hasher, member: &[u8]) -> bool {
        let hash = hasher.hash(member);
        let mut seek = ByHash { hash, is: |item: &[u8]| item == member };
        self.0.change(&mut seek, |page, _, found| {
            if found {
                return (false, Vec::new());
            }
            (true, hashed::insert(page, &[member], hash, |item| hasher.hash(item)))
        })
    }

    /// Removes a member; `false` when it is not there.
    pub fn remove(&mut self, hasher: &Hasher, member: &[u8]) -> bool {
        let mut seek = ByHash { hash: hasher.hash(member), is: |item: &[u8]| item == member };
        self.0.change(&mut seek, |page, at, found| {
            if found {
                page.remove(at, at + 1);
            }
            (found, Vec::new())
        })
    }

    /// The member at a position: members have no order that means anything, but each has one position, so that one
    /// chosen at random is a fair choice.
    pub fn get(&self, at: u64) -> Option<&[u8]> {
        self.0.get(at)
    }

    /// Removes the members at positions in the range, which lies inside.
    pub fn remove_range(&mut self, range: std::ops::Range<u64>) -> Cut {
        Cut(self.0.remove_range(range))
    }

    /// All members: in the order in which they came while the set is small.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.0.iter()
    }

    /// Calls `each` with about `count` members from `cursor` on; returns the next cursor, zero at the end.
    pub fn scan<'a>(&'a self, hasher: &Hasher, cursor: u64, count: usize, each: impl FnMut(&'a [u8])) -> u64 {
        hashed::scan(&self.0, cursor, count, |item| hasher.hash(item), each)
    }

    pub fn memory(&self) -> usize {
        self.0.memory()
    }

    pub(crate) fn weight(&self) -> usize {
        self.0.weight()
    }

    /// Whether both are one, and so nothing was written to either since one was cloned from the other.
    pub fn is_same(&self, other: &Set) -> bool {
        self.0.is_same(&other.0)
    }
}
