//! Items in the order of their hashes: the trees of sets, of hashes and of the members of sorted sets.
//!
//! The hash of an item decides its page. Inside a page items stay in the order in which they came, so a small
//! collection reads as it was written, and a new item is appended. A page of more than a few items has a
//! 16-bit tag for each, and many tags are compared at a time. A full page is divided at the middle hash. No
//! other page moves, so an iteration that remembers a hash continues where it was, whatever splits and merges
//! have happened meanwhile.

use super::page::{PAGE_MAX, Page, bytes_of, len_of};
use super::tree::{Inner, Seek, Siblings, Tree};

/// Pages of fewer items are searched by comparing the items themselves.
pub(crate) const TAGS_FROM: usize = 16;

/// Finds the item of this hash for which `is` returns true.
pub(crate) struct ByHash<F> {
    hash: u64,
    /// The least and the greatest hash below the node that the search has reached.
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
    /// Hashes are spread evenly, and so are the bounds of branches. The branch is therefore near the relative
    /// place of the hash in the node's range. Looking there takes one or two successive cache misses; halving
    /// the node takes six.
    #[inline]
    fn branch(&mut self, inner: &Inner) -> usize {
        let (least, greatest) = self.range;
        let share = self.hash.saturating_sub(least) as f64 / (greatest.saturating_sub(least) as f64 + 1.0);
        inner.seek_near(share, self.hash, &mut self.range)
    }

    /// The position of a missing item is the page's end.
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

/// The tag, which is compared before the item itself.
#[inline]
pub(crate) fn tag(hash: u64) -> u16 {
    hash as u16
}

/// Appends a new item to the page of its hash. `hash_of` returns the hash of an item.
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
        // All hashes are equal, which chance does not bring about before 64 KiB are full.
        page.insert(page.len(), parts, tag(hash));
        return Vec::new();
    };
    let goes: Vec<bool> = hashes.iter().map(|hash| *hash >= bound).collect();
    let mut right = page.take_out(&goes);
    let side = if hash >= bound { &mut right } else { &mut *page };
    let more = insert(side, parts, hash, hash_of);
    let mut siblings = vec![([bound, 0], right)];
    // New pages to the left page's right come before the right page.
    siblings.splice(if hash >= bound { 1..1 } else { 0..0 }, more);
    siblings
}

/// Puts an item in a page before or after a page with a single item, which may be long and is not touched.
/// Returns `None` if their hashes are equal.
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

/// A page of a single item. It has a tag from the start, as every page with neighbours must; adding the tag
/// later would copy the page.
fn alone(parts: &[&[u8]], hash: u64) -> Page {
    let mut page = Page::new(true, len_of(parts));
    page.insert(0, parts, tag(hash));
    page
}

/// A hash that divides the hashes of a page and a new hash: some are less, and some are not.
fn dividing(hashes: &[u64], new: u64) -> Option<u64> {
    let mut sorted: Vec<u64> = hashes.iter().copied().chain([new]).collect();
    sorted.sort_unstable();
    let middle = sorted[sorted.len() / 2];
    sorted
        .into_iter()
        .filter(|hash| *hash > *hashes.iter().min().unwrap_or(&new).min(&new))
        .min_by_key(|hash| hash.abs_diff(middle))
}

/// Replaces an item by another with the same hash.
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

/// Walks over items by ascending hashes. Calls `each` with items from hash `cursor` on until there have been
/// `count` or more; returns the next cursor, zero at the end.
///
/// Items that exist from the first call of a walk to the last are met, however many are added and removed
/// meanwhile. A tree of a single page of at most `count` items is walked in the order of its items.
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

    /// Visits items with their hashes, in any order; they come after the items of the call before. Returns
    /// the next cursor, if the call ends before the last item.
    pub(crate) fn go_over<T>(
        &mut self,
        items: impl Iterator<Item = (u64, T)>,
        mut each: impl FnMut(T),
    ) -> Option<u64> {
        let mut items: Vec<(u64, T)> = items.filter(|(hash, _)| *hash >= self.cursor).collect();
        self.keep_next(&mut items);
        items.sort_unstable_by_key(|(hash, _)| *hash);
        for (hash, item) in items {
            // Items of the same hash are met together: the cursor cannot stand between them.
            if self.seen >= self.count && hash > self.last {
                return Some(hash);
            }
            each(item);
            self.last = hash;
            self.seen += 1;
        }
        None
    }

    /// Drops items behind the item at which this call ends, so that they need not be sorted. Keeps all if the
    /// hashes around that item are equal.
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
