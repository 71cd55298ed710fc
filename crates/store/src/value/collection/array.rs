//! Arrays: values at indices from zero to 2^64 - 2, with holes between them.
//!
//! An item is the index and the value; items are in the order of their indices. So the memory is in
//! proportion to the values, however far their indices are apart, and no index costs more than another. The
//! index takes a byte for each seven bits: two bytes below 16,384.
//!
//! Beside the items, an array has a cursor: the index at which the last value was inserted, from which
//! ARINSERT and ARRING go on.

use std::cmp::Ordering;
use std::ops::{Range, RangeInclusive};
use std::ptr::NonNull;

use super::page::Page;
use super::share::Share;
use super::tree::{self, Bound, Inner, Seek, Tree};
use super::varint::{self, Varint};
use super::{Collection, Cut, raw};
use crate::memory::mover::Mover;
use crate::value::Kind;
use crate::value::shared::Shared;

/// The greatest index: the length, which is one more, has to be a number as well.
pub const INDEX_MAX: u64 = u64::MAX - 1;

/// See the module's documentation. Values are at most [`super::ELEMENT_MAX`] bytes long.
#[derive(Clone)]
pub struct Array(Shared<Body>);

#[derive(Clone)]
struct Body {
    items: Tree,
    cursor: Option<u64>,
}

#[inline]
fn index_of(item: &[u8]) -> u64 {
    varint::read(item).0
}

fn bound_of(item: &[u8]) -> Bound {
    [index_of(item), 0]
}

/// Finds an index.
struct ByIndex(u64);

impl Seek for ByIndex {
    #[inline]
    fn branch(&mut self, inner: &Inner) -> usize {
        inner.seek(|bound| bound[0].cmp(&self.0))
    }

    /// Indices ascend by one at least, so an item is no further behind the first item than its index is:
    /// without holes, it is just there.
    #[inline]
    fn within(&mut self, page: &Page) -> (usize, bool) {
        let len = page.len();
        let Some(last) = len.checked_sub(1) else { return (0, false) };
        let Some(beyond) = self.0.checked_sub(index_of(page.get(0))) else { return (0, false) };
        let latest = usize::try_from(beyond).unwrap_or(last).min(last);
        let (mut from, mut to) = match index_of(page.get(latest)).cmp(&self.0) {
            Ordering::Equal => return (latest, true),
            Ordering::Less => return (len, false),
            Ordering::Greater => (0, latest),
        };
        while from < to {
            let middle = (from + to) / 2;
            match index_of(page.get(middle)).cmp(&self.0) {
                Ordering::Less => from = middle + 1,
                Ordering::Equal => return (middle, true),
                Ordering::Greater => to = middle,
            }
        }
        (from, false)
    }
}

impl Collection for Array {
    const KIND: Kind = Kind::Array;

    fn new() -> Array {
        Array(Shared::new(Body { items: Tree::new(), cursor: None }))
    }

    fn is_empty(&self) -> bool {
        self.count() == 0
    }

    fn is_same(&self, other: &Array) -> bool {
        self.0.is_same(&other.0)
    }
}

impl raw::Raw for Array {
    fn into_raw(self) -> NonNull<u8> {
        self.0.into_raw()
    }

    unsafe fn from_raw(raw: NonNull<u8>) -> Array {
        // SAFETY: by the caller's promise.
        Array(unsafe { Shared::from_raw(raw) })
    }
}

impl Array {
    /// See [`Tree::relocate`].
    pub(crate) fn relocate(&mut self, from: u64, mover: &mut Mover<'_>) -> Option<u64> {
        if self.0.is_own() { self.0.own().items.relocate(from, mover) } else { None }
    }

    #[inline]
    fn items(&self) -> &Tree {
        &self.0.items
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.items().len()
    }

    /// One more than the greatest index, or zero.
    #[expect(clippy::len_without_is_empty, reason = "`Collection` has it")]
    pub fn len(&self) -> u64 {
        self.at(self.count().wrapping_sub(1)).map_or(0, |(index, _)| index + 1)
    }

    /// The index at which a value was last inserted; `None` if the next insertion is to begin at zero.
    pub fn cursor(&self) -> Option<u64> {
        self.0.cursor
    }

    /// The value at an index, and its position among the values.
    pub fn get(&self, index: u64) -> Option<&[u8]> {
        self.items().find(&mut ByIndex(index)).item().map(|item| varint::read(item).1)
    }

    /// The index and the value at a position among the values.
    pub fn at(&self, position: u64) -> Option<(u64, &[u8])> {
        self.items().get(position).map(varint::read)
    }

    /// The number of values at lesser indices, and whether there is a value at this index.
    pub fn rank(&self, index: u64) -> (u64, bool) {
        self.items().rank(&mut ByIndex(index))
    }

    /// A share of the value at a position. Panics if there is none.
    pub fn share(&self, position: u64) -> Share {
        let spot = self.items().spot(position);
        Share::of(&spot, varint::read(spot.page.get(spot.at)).1.len(), 0)
    }

    /// The positions of the values whose indices lie in a range, which is in order.
    pub fn positions(&self, indices: RangeInclusive<u64>) -> Range<u64> {
        let start = if *indices.start() == 0 { 0 } else { self.rank(*indices.start()).0 };
        let (end, found) = self.rank(*indices.end());
        start..end + u64::from(found)
    }

    /// Indices and values at positions in a range, which is cut to their number; double-ended.
    pub fn range(
        &self,
        positions: Range<u64>,
    ) -> impl DoubleEndedIterator<Item = (u64, &[u8])> + ExactSizeIterator {
        self.items().range(positions).map(varint::read)
    }

    /// Sets the value at an index, at most [`INDEX_MAX`]; returns true if there was none.
    #[inline]
    pub fn set(&mut self, index: u64, value: &[u8]) -> bool {
        let head = Varint::new(index);
        let parts = [head.as_bytes(), value];
        self.0.own().items.change(&mut ByIndex(index), |page, at, found| {
            let siblings = if found {
                tree::replace(page, at, &parts, bound_of)
            } else {
                tree::insert(page, at, &parts, bound_of)
            };
            (!found, siblings)
        })
    }

    pub fn set_cursor(&mut self, cursor: Option<u64>) {
        self.0.own().cursor = cursor;
    }

    /// Removes the value at an index; returns false if there is none.
    pub fn remove(&mut self, index: u64) -> bool {
        if !self.rank(index).1 {
            return false;
        }
        self.0.own().items.change(&mut ByIndex(index), |page, at, _| {
            page.remove(at, at + 1);
            (true, Vec::new())
        })
    }

    /// Removes the values at positions in the range, which lies inside; the part cut off may take long to
    /// free.
    pub fn remove_range(&mut self, positions: Range<u64>) -> Cut {
        if positions.is_empty() {
            return Cut::default();
        }
        Cut(self.0.own().items.remove_range(positions))
    }

    /// The positions of the values that come last in a ring: from the index `newest` down to the next hole,
    /// and past index zero from the end of the array down; at most `most` values. The ranges are those at
    /// greater indices than `newest`, which are older, and the others.
    pub fn newest(&self, newest: u64, most: u64) -> [Range<u64>; 2] {
        let (at, found) = self.rank(newest);
        if !found {
            return [0..0, 0..0];
        }
        let from = self.run_to(at).max((at + 1).saturating_sub(most));
        let wraps = self.at(from).is_some_and(|(index, _)| index == 0);
        let left = most - (at + 1 - from);
        let last = self.count() - 1;
        if !wraps || left == 0 || last == at {
            return [0..0, from..at + 1];
        }
        let start = self.run_to(last).max(at + 1).max((last + 1).saturating_sub(left));
        [start..last + 1, from..at + 1]
    }

    /// The first position from which on, up to `last`, no hole comes between the values.
    fn run_to(&self, last: u64) -> u64 {
        let holes_before = |position| self.at(position).map_or(0, |(index, _)| index - position);
        let holes = holes_before(last);
        let (mut from, mut to) = (0, last);
        while from < to {
            let middle = from + (to - from) / 2;
            if holes_before(middle) < holes {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        from
    }

    // The array as a whole.

    /// Bytes of memory, shared or not.
    pub fn memory(&self) -> usize {
        size_of::<Body>() + size_of::<u64>() + self.items().memory()
    }

    /// Bytes of memory of the pages, counted up to `max`, which bounds the time.
    pub fn memory_up_to(&self, max: usize) -> usize {
        self.items().memory_up_to(max)
    }

    /// Bytes of memory of pages that other arrays refer to as well: all of them if there are more than
    /// `owners` references to this array. Takes time in proportion to the pages.
    pub fn shared_memory(&self, owners: u32) -> usize {
        // The items below a shared body still have a single reference.
        let owners = if self.0.refs() > owners { 0 } else { 1 };
        self.items().shared_memory(owners)
    }

    /// Number of pages, counted up to `max`.
    pub fn pages_up_to(&self, max: usize) -> usize {
        self.items().pages_up_to(max)
    }

    /// Returns true if no other owner shares the whole value.
    pub(crate) fn is_own(&self) -> bool {
        self.0.is_own()
    }

    /// Approximate maximum number of nodes that dropping it visits.
    pub(crate) fn weight(&self) -> usize {
        self.items().weight()
    }

    /// Returns true if both share the whole value, so neither was written to since it was cloned.
    pub fn is_same(&self, other: &Array) -> bool {
        self.0.is_same(&other.0)
    }
}
