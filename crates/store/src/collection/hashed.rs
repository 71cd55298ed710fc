//! Items in the order of their hashes: how sets, hashes and the members of sorted sets find theirs.
//!
//! Which page an item is in follows from its hash; inside a page items stay in the order in which they came, so a small
//! collection reads as it was written, and a new item is appended. A page of more than a few items has a tag of 16 bits
//! for each, which are compared many at a time. A page that is full is divided at the middle hash: no other moves, and
//! an iteration that remembers a hash goes on where it was, whatever has been split or merged meanwhile.

use super::page::{PAGE_MAX, Page, bytes_of, len_of};
use super::tree::{Inner, Seek, Siblings, Tree};

/// Pages of fewer items are searched by comparing these themselves.
pub(crate) const TAGS_FROM: usize = 16;

/// Seeks the item of this hash for which `is` holds.
pub(crate) struct ByHash<F> {
    hash: u64,
    /// The least and the greatest hash below the node that the search has come to.
    range: (u64, u64),
    is: F,
}

impl<F: Fn(&[u8]) -> bool> ByHash<F> {
    #[inline]
    pub(crate) fn new(hash: u64, is: F) -> ByHash<F> {
        ByHash { hash, range: (0, u64::MAX), is }
    }
}

impl<F: Fn(&[u8]) -> bool> Seek for ByHash<F> {
    /// Hashes are spread evenly, and so are the bounds of branches: the one sought is near the place in the node that the
    /// hash has in the node's range. Looking there takes one or two misses of the caches, one after the other, where
    /// halving the node takes six.
    #[inline]
    fn branch(&mut self, inner: &Inner) -> usize {
        let (least, greatest) = self.range;
        let share = self.hash.saturating_sub(least) as f64 / (greatest.saturating_sub(least) as f64 + 1.0);
        inner.seek_near(share, self.hash, &mut self.range)
    }

    /// The position of an item that is not there is the page's end.
    #[inline]
    fn within(&mut self, page: &Page) -> (usize, bool) {
        let found = if page.is_tagged() {
            let mut found = page.find_tag(tag(self.hash), 0);
            while let Some(at) = found
                && !(self.is)(page.get(at))
            {
                found = page.find_tag(tag(self.hash), at + 1);
            }
            found
        } else {
            (0..page.len()).find(|at| (self.is)(page.get(*at)))
        };
        found.map_or((page.len(), false), |at| (at, true))
    }
}

/// What is compared before an item itself is.
#[inline]
pub(crate) fn tag(hash: u64) -> u16 {
    hash as u16
}

/// Appends an item, which is not there, to the page that its hash belongs to. `hash_of` tells the hashes of others.
pub(crate) fn insert(
    page: &mut Page,
    parts: &[&[u8]],
    hash: u64,
    hash_of: impl Fn(&[u8]) -> u64 + Copy,
) -> Siblings<Page> {
    if page.len() >= TAGS_FROM && !page.is_tagged() {
        *page = page.with_tags(|item| tag(hash_of(item)));
    }
    if page.has_room(parts) {
        page.insert(page.len(), parts, tag(hash));
        return Vec::new();
    }
    if page.len() == 0 {
        *page = alone(parts, hash);
        return Vec::new();
    }
    if page.len() == 1 && page.is_tagged() {
        let old = hash_of(page.get(0));
        if let Some(siblings) = beside(page, old, parts, hash) {
            return siblings;
        }
    }
    if !page.is_tagged() {
        *page = page.with_tags(|item| tag(hash_of(item)));
    }
    let hashes: Vec<u64> = (0..page.len()).map(|at| hash_of(page.get(at))).collect();
    let Some(bound) = dividing(&hashes, hash) else {
        // All hashes are alike, which chance does not bring about while 64 KiB are not full.
        page.insert(page.len(), parts, tag(hash));
        return Vec::new();
    };
    let goes: Vec<bool> = hashes.iter().map(|hash| *hash >= bound).collect();
    let mut right = page.take_out(&goes);
    let side = if hash >= bound { &mut right } else { &mut *page };
    let more = insert(side, parts, hash, hash_of);
    let mut siblings = vec![([bound, 0], right)];
    // Those of the left page come before the right one.
    siblings.splice(if hash >= bound { 1..1 } else { 0..0 }, more);
    siblings
}

/// Puts an item into a page before or behind that of a single one, which may be long and is not touched. `None`: their
/// hashes are alike.
fn beside(page: &mut Page, old: u64, parts: &[&[u8]], hash: u64) -> Option<Siblings<Page>> {
    if hash == old {
        return None;
    }
    let new = alone(parts, hash);
    if hash > old {
        return Some(vec![([hash, 0], new)]);
    }
    let right = std::mem::replace(page, new);
    Some(vec![([old, 0], right)])
}

/// A page of a single item. It has a tag from the start, as all pages have to have that are not alone, since to give it one
/// later would be to copy it.
fn alone(parts: &[&[u8]], hash: u64) -> Page {
    let mut page = Page::new(true, len_of(parts));
    page.insert(0, parts, tag(hash));
    page
}

/// A hash that divides those of a page and a new one: some are less, and some are not.
fn dividing(hashes: &[u64], new: u64) -> Option<u64> {
    let mut sorted: Vec<u64> = hashes.iter().copied().chain([new]).collect();
    sorted.sort_unstable();
    let middle = sorted[sorted.len() / 2];
    sorted
        .into_iter()
        .filter(|hash| *hash > *hashes.iter().min().unwrap_or(&new).min(&new))
        .min_by_key(|hash| hash.abs_diff(middle))
}

/// Puts another item of the same hash in the place of one.
pub(crate) fn replace(
    page: &mut Page,
    at: usize,
    parts: &[&[u8]],
    hash: u64,
    hash_of: impl Fn(&[u8]) -> u64 + Copy,
) -> Siblings<Page> {
    if page.len() == 1 && !page.is_tagged() && bytes_of(true, 1, len_of(parts)) > PAGE_MAX {
        *page = alone(parts, hash);
        return Vec::new();
    }
    if page.has_room_instead(at, parts) {
        page.replace(at, parts);
        return Vec::new();
    }
    page.remove(at, at + 1);
    insert(page, parts, hash, hash_of)
}

/// Walks over items by ascending hashes: calls `each` with items until there have been `count` or more, beginning with
/// those of hash `cursor`; returns where to go on, zero at the end.
///
/// What is there from the first call of a walk to the last one is met, however much is added and removed meanwhile.
/// A tree of one page of at most `count` items is walked in the order of its items.
pub(crate) fn scan<'a>(
    tree: &'a Tree,
    cursor: u64,
    count: usize,
    hash_of: impl Fn(&[u8]) -> u64,
    mut each: impl FnMut(&'a [u8]),
) -> u64 {
    if let (Some(page), 0) = (tree.page(), cursor)
        && page.len() <= count
    {
        (0..page.len()).for_each(|at| each(page.get(at)));
        return 0;
    }
    let mut scan = Scan::new(cursor, count);
    for page in tree.pages_from(ByHash::new(cursor, |_: &[u8]| false)) {
        let items = (0..page.len()).map(|at| (hash_of(page.get(at)), page.get(at)));
        if let Some(next) = scan.go_over(items, &mut each) {
            return next;
        }
    }
    0
}

/// A call of a walk by ascending hashes.
pub(crate) struct Scan {
    cursor: u64,
    count: usize,
    seen: usize,
    last: u64,
}

impl Scan {
    pub(crate) fn new(cursor: u64, count: usize) -> Scan {
        Scan { cursor, count: count.max(1), seen: 0, last: cursor }
    }

    /// Goes over items with their hashes, which come in any order and lie behind those of the call before. Returns the cursor at
    /// which the walk goes on, if it ends in between.
    pub(crate) fn go_over<T>(
        &mut self,
        items: impl Iterator<Item = (u64, T)>,
        mut each: impl FnMut(T),
    ) -> Option<u64> {
        let mut items: Vec<(u64, T)> = items.filter(|(hash, _)| *hash >= self.cursor).collect();
        self.keep_next(&mut items);
        items.sort_unstable_by_key(|(hash, _)| *hash);
        for (hash, item) in items {
            // Items of one hash are met together: the cursor cannot stand between them.
            if self.seen >= self.count && hash > self.last {
                return Some(hash);
            }
            each(item);
            self.last = hash;
            self.seen += 1;
        }
        None
    }

    /// Drops items behind the one at which this call ends, so that they need not be sorted. Keeps all where the hashes around that
    /// one are alike.
    fn keep_next<T>(&self, items: &mut Vec<(u64, T)>) {
        let wanted = self.count.saturating_sub(self.seen);
        if wanted >= items.len() {
            return;
        }
        let (before, (hash, _), _) = items.select_nth_unstable_by_key(wanted, |(hash, _)| *hash);
        let end = *hash;
        if end > before.iter().map(|(hash, _)| *hash).max().unwrap_or(self.last) {
            items.truncate(wanted + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All items, in calls for `count` of them each.
    fn walk(hashes: &[u64], count: usize) -> (Vec<u64>, usize) {
        let (mut cursor, mut met, mut calls) = (0, Vec::new(), 0);
        loop {
            calls += 1;
            let mut scan = Scan::new(cursor, count);
            let next = scan.go_over(hashes.iter().map(|hash| (*hash, *hash)), |hash| met.push(hash));
            let Some(next) = next else { return (met, calls) };
            cursor = next;
        }
    }

    #[test]
    fn a_walk_meets_each_item_once_and_those_of_one_hash_together() {
        for count in 1..12 {
            for hashes in
                [vec![9, 3, 5, 1, 7, 2], vec![4, 4, 4, 1, 9, 9, 4], vec![0, 0, u64::MAX, 5, 5], vec![6]]
            {
                let (met, calls) = walk(&hashes, count);
                let mut sorted = hashes.clone();
                sorted.sort_unstable();
                assert_eq!(met, sorted, "{count} of {hashes:?}");
                assert!(calls <= hashes.len().div_ceil(count), "{count} of {hashes:?}: {calls}");
            }
        }
    }
}
