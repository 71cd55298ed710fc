//! Lists: items by position.

use std::ops::Range;

use super::Cut;
use super::tree::Tree;

/// See the module's text. Elements are at most [`super::ITEM_MAX`] bytes long.
#[repr(transparent)]
#[derive(Clone)]
pub struct List(pub(super) Tree);

impl List {
    #[expect(clippy::len_without_is_empty, reason = "`Collection` has it")]
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// The element at a position, if there is one.
    pub fn get(&self, at: u64) -> Option<&[u8]> {
        self.0.get(at)
    }

    /// The elements at positions in a range, which is cut to what is there, from either end.
    pub fn range(&self, range: Range<u64>) -> impl DoubleEndedIterator<Item = &[u8]> + ExactSizeIterator {
        self.0.range(range)
    }

    pub fn push_front(&mut self, element: &[u8]) {
        self.0.insert_at(0, &[element]);
    }

    pub fn push_back(&mut self, element: &[u8]) {
        self.0.insert_at(self.len(), &[element]);
    }

    /// Inserts an element so that it is at position `at`, at most the length, afterwards.
    pub fn insert(&mut self, at: u64, element: &[u8]) {
        self.0.insert_at(at, &[element]);
    }

    /// Replaces the element at position `at`, which is there.
    pub fn set(&mut self, at: u64, element: &[u8]) {
        self.0.replace_at(at, &[element]);
    }

    /// Removes the elements at positions in the range, which lies inside; what was cut off may be much to free.
    pub fn remove(&mut self, range: Range<u64>) -> Cut {
        Cut(self.0.remove_range(range))
    }

    pub fn memory(&self) -> usize {
        self.0.memory()
    }

    pub(crate) fn weight(&self) -> usize {
        self.0.weight()
    }

    /// Whether both are one, and so nothing was written to either since one was cloned from the other.
    pub fn is_same(&self, other: &List) -> bool {
        self.0.is_same(&other.0)
    }
}
