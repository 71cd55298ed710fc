//! The entries of a stream: a tree of pages in the order of ids.
//!
//! Entries are added at the end and removed anywhere. Appended entries fill the last page up to the limits of
//! Redis' nodes; a page corresponds to a node: an approximate trim removes whole pages, as Redis removes
//! whole nodes.

use std::ops::Range;

use super::super::Cut;
use super::super::page::{PAGE_MAX, Page};
use super::super::tree::{Bound, Inner, Seek, Tree, WithPages};
use super::codec::{self, Entry, EntryEncoder, Head};
use super::id::StreamId;
use crate::memory::mover::Mover;

/// Capacity of a page: `stream-node-max-entries` and `stream-node-max-bytes`; zero means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimits {
    entries: usize,
    bytes: usize,
}

impl NodeLimits {
    /// Limits the bytes to the size of a page, since a write may have to copy them.
    pub fn new(entries: usize, bytes: usize) -> NodeLimits {
        let unlimited = |limit| if limit == 0 { usize::MAX } else { limit };
        NodeLimits { entries: unlimited(entries), bytes: unlimited(bytes).min(PAGE_MAX) }
    }
}

/// See the module's documentation.
#[derive(Clone)]
pub struct Entries(Tree);

/// Finds the end.
struct Last;

impl Seek for Last {
    fn branch(&mut self, inner: &Inner) -> usize {
        inner.seek(|_| std::cmp::Ordering::Less)
    }

    fn within(&mut self, page: &Page) -> (usize, bool) {
        (page.len(), false)
    }
}

/// Finds an id.
struct ById(StreamId);

fn bound_of(id: StreamId) -> Bound {
    [id.ms, id.seq]
}

impl Seek for ById {
    fn branch(&mut self, inner: &Inner) -> usize {
        let sought = bound_of(self.0);
        inner.seek(|bound| bound.cmp(&sought))
    }

    fn within(&mut self, page: &Page) -> (usize, bool) {
        if page.len() == 0 {
            return (0, false);
        }
        let head = Head::of(page);
        let (mut from, mut to) = (0, page.len());
        while from < to {
            let middle = (from + to) / 2;
            match head.id_of(page.get(middle)).cmp(&self.0) {
                std::cmp::Ordering::Less => from = middle + 1,
                std::cmp::Ordering::Equal => return (middle, true),
                std::cmp::Ordering::Greater => to = middle,
            }
        }
        (from, false)
    }
}

/// Finds the beginning of the page of a position.
struct PageOf(u64);

impl Seek for PageOf {
    fn branch(&mut self, inner: &Inner) -> usize {
        let (index, before) = inner.seek_position(self.0);
        self.0 -= before;
        index
    }

    fn within(&mut self, _: &Page) -> (usize, bool) {
        (0, false)
    }
}

impl Entries {
    pub(super) fn new() -> Entries {
        Entries(Tree::new())
    }

    pub fn len(&self) -> u64 {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn first(&self) -> Option<Entry<'_>> {
        self.range(0..1).next()
    }

    pub fn last(&self) -> Option<Entry<'_>> {
        let len = self.len();
        self.range(len.saturating_sub(1)..len).next()
    }

    pub fn get(&self, id: StreamId) -> Option<Entry<'_>> {
        let spot = self.0.find(&mut ById(id));
        spot.item().map(|item| Head::of(spot.page).read(item))
    }

    pub fn contains(&self, id: StreamId) -> bool {
        self.0.find(&mut ById(id)).found
    }

    /// Number of entries with a smaller id.
    pub fn position(&self, id: StreamId) -> u64 {
        self.0.rank(&mut ById(id)).0
    }

    /// Entries at positions in a range, which is cut to the length; double-ended.
    pub fn range(&self, range: Range<u64>) -> EntryRange<'_> {
        EntryRange(self.0.range(range).with_pages())
    }

    /// Positions of the entries whose ids lie in a range, both ends included.
    pub fn positions(&self, from: StreamId, to: StreamId) -> Range<u64> {
        let start = if from == StreamId::MIN { 0 } else { self.position(from) };
        let end = match to.next() {
            Some(after) => self.position(after),
            None => self.len(),
        };
        start..end.max(start)
    }

    /// The last position not after `at` (at most the number of entries) at which a page begins or all pages
    /// end: the number of entries that go if whole pages are removed from the start.
    pub fn whole_pages(&self, at: u64) -> u64 {
        if at == self.len() {
            return at;
        }
        self.0.rank(&mut PageOf(at)).0
    }

    /// Number of pages; zero for an empty stream.
    pub fn pages(&self) -> u64 {
        if self.is_empty() { 0 } else { self.0.page_count() }
    }

    /// Appends an entry, whose id is greater than all; `fields` are names and values in turn. Returns the
    /// bytes that it takes, including the head of its page if it is the first there.
    #[inline]
    pub(super) fn push<'f>(
        &mut self,
        id: StreamId,
        fields: impl ExactSizeIterator<Item = &'f [u8]> + Clone,
        limits: NodeLimits,
    ) -> usize {
        self.0.change(&mut Last, |page, at, _| {
            if at == 0 {
                *page = codec::first_page(id, fields, 0, 0);
                return (page.used(), Vec::new());
            }
            let buffer = EntryEncoder::new(&Head::of(page), id, fields.clone());
            if at < limits.entries && page.bytes_with(buffer.len) <= limits.bytes {
                let len = buffer.len;
                page.insert_by(at, len, 0, |space| buffer.write(space));
                return (len, Vec::new());
            }
            // The next page will be as full as this, so it need not grow step by step.
            let next = codec::first_page(id, fields, at, page.used().min(PAGE_MAX));
            (next.used(), vec![(bound_of(id), next)])
        })
    }

    /// Removes an entry; returns false if it does not exist.
    pub(super) fn remove(&mut self, id: StreamId) -> bool {
        if !self.contains(id) {
            return false;
        }
        self.0.change(&mut ById(id), |page, at, _| {
            page.remove(at, at + 1);
            ((), Vec::new())
        });
        true
    }

    /// Removes `count` entries at the start, at most all.
    pub(super) fn remove_first(&mut self, count: u64) -> Cut {
        Cut(self.0.remove_range(0..count))
    }

    /// See [`Tree::relocate`].
    pub(super) fn relocate(&mut self, from: u64, mover: &mut Mover<'_>) -> Option<u64> {
        self.0.relocate(from, mover)
    }

    pub(super) fn tree(&self) -> &Tree {
        &self.0
    }
}

/// Entries in the order of their ids; double-ended.
pub struct EntryRange<'a>(WithPages<'a>);

impl<'a> Iterator for EntryRange<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        self.0.next().map(|(page, item)| Head::of(page).read(item))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl DoubleEndedIterator for EntryRange<'_> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|(page, item)| Head::of(page).read(item))
    }
}

impl ExactSizeIterator for EntryRange<'_> {}
