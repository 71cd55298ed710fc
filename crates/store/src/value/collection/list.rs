//! Lists: items by position.

use std::ops::Range;

use super::Cut;
use super::page::Page;
use super::share::Share;
use super::tree::{ByPosition, Iter, Tree};

/// See the module's documentation. Elements are at most [`super::ELEMENT_MAX`] bytes long.
#[repr(transparent)]
#[derive(Clone)]
pub struct List(pub(super) Tree);

impl List {
    #[expect(clippy::len_without_is_empty, reason = "`Collection` has it")]
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// The element at a position, if there is any.
    pub fn get(&self, at: u64) -> Option<&[u8]> {
        self.0.get(at)
    }

    /// A share of the element at a position. Panics if there is none.
    pub fn share(&self, at: u64) -> Share {
        let spot = self.0.spot(at);
        Share::of(&spot, spot.page.get(spot.at).len(), 0)
    }

    /// The elements at positions in a range, which is cut to the length; double-ended.
    pub fn range(&self, range: Range<u64>) -> impl DoubleEndedIterator<Item = &[u8]> + ExactSizeIterator {
        self.0.range(range)
    }

    pub fn push_front(&mut self, element: &[u8]) {
        self.0.insert_at(0, &[element]);
    }

    pub fn push_back(&mut self, element: &[u8]) {
        self.0.insert_at(self.len(), &[element]);
    }

    /// Inserts an element at position `at`, which is at most the length.
    pub fn insert(&mut self, at: u64, element: &[u8]) {
        self.0.insert_at(at, &[element]);
    }

    /// Replaces the element at position `at`, which exists.
    pub fn set(&mut self, at: u64, element: &[u8]) {
        self.0.replace_at(at, &[element]);
    }

    /// Removes the elements at positions in the range, which lies inside; the part cut off may take long to
    /// free.
    pub fn remove(&mut self, range: Range<u64>) -> Cut {
        Cut(self.0.remove_range(range))
    }

    /// The positions in the range whose elements equal `element`, ascending or, with `backward`, descending.
    pub fn positions<'a>(&'a self, element: &'a [u8], range: Range<u64>, backward: bool) -> Positions<'a> {
        let elements = self.0.range(range.clone());
        let from = range.start.min(self.len());
        let next = if backward { from + elements.len() as u64 } else { from };
        Positions { elements, element, next, backward }
    }

    /// Removes up to `limit` elements that equal `element`, the first or, with `backward`, the last; returns
    /// their number. Pages without such elements are only read.
    pub fn remove_equal(&mut self, element: &[u8], limit: u64, backward: bool) -> u64 {
        let (mut removed, mut next) = (0, if backward { self.len() } else { 0 });
        while removed < limit {
            // The current page, from its item `at` on or, backwards, up to that item.
            let sought =
                if backward { next.checked_sub(1) } else { Some(next).filter(|at| *at < self.len()) };
            let Some(sought) = sought else { break };
            let spot = self.0.find(&mut ByPosition(sought));
            let start = sought - spot.at as u64;
            let range = if backward { 0..spot.at + 1 } else { spot.at..spot.page.len() };
            let end = start + range.end as u64;
            let hits = hits(spot.page, element, range, limit - removed, backward);
            next = if backward { start } else { end - hits.len() as u64 };
            removed += hits.len() as u64;
            if !hits.is_empty() {
                self.0.change(&mut ByPosition(start), |page, _, _| (remove_all(page, &hits), Vec::new()));
            }
        }
        removed
    }

    /// An upper bound, in constant time, of the bytes that the elements take in a listpack; `None` for a list
    /// of more than a page.
    pub fn packed_max(&self) -> Option<usize> {
        /// Bytes of form and backward length: of an element that shares its page, and more of any element.
        const SHARING: usize = 4;
        const ALONE: usize = 6;
        self.0.page().map(|page| page.used() + SHARING * page.len() + ALONE)
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
    pub fn is_same(&self, other: &List) -> bool {
        self.0.is_same(&other.0)
    }
}

/// The items of a page in the range that equal an element: at most `limit`, the first or the last, in order.
fn hits(page: &Page, element: &[u8], range: Range<usize>, limit: u64, backward: bool) -> Vec<usize> {
    let mut hits: Vec<usize> = range.filter(|at| page.get(*at) == element).collect();
    let beyond = hits.len() - usize::try_from(limit).map_or(hits.len(), |limit| limit.min(hits.len()));
    if backward {
        hits.drain(..beyond);
    } else {
        hits.truncate(hits.len() - beyond);
    }
    hits
}

/// Removes items at ascending positions from a page: neighbours at once, from the end.
fn remove_all(page: &mut Page, hits: &[usize]) {
    for run in hits.chunk_by(|one, next| one + 1 == *next).rev() {
        page.remove(run[0], run[0] + run.len());
    }
}

/// See [`List::positions`].
pub struct Positions<'a> {
    elements: Iter<'a>,
    element: &'a [u8],
    /// The position of the next element or, backwards, the position after it.
    next: u64,
    backward: bool,
}

impl Iterator for Positions<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        loop {
            let item = if self.backward { self.elements.next_back()? } else { self.elements.next()? };
            let at = if self.backward { self.next - 1 } else { self.next };
            self.next = if self.backward { at } else { at + 1 };
            if item == self.element {
                return Some(at);
            }
        }
    }
}
