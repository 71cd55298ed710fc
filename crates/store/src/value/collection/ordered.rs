//! Items of hashed trees by ascending hashes, and trees made from such items.
//!
//! Every tree of a keyspace is ordered by the same hash, so trees are compared by walking them side by side,
//! page by page. Looking up each item of a tree in another would miss the caches each time. Inside a page
//! items have no order, so each page is sorted when the walk reaches it. Items by ascending hashes fill page
//! after page, and nothing is moved or split: making a set of a million takes about as long as reading it.

use super::hashed::{TAGS_FROM, tag};
use super::page::{PAGE_MAX, Page};
use super::tree::{ByPosition, Siblings, Tree};

/// Bytes that a page is filled with: the rest is for later items.
const FILL: usize = PAGE_MAX / 8 * 7;

/// Bytes that an item takes in addition to its own.
const STRIDE: usize = 4;

/// The items of a tree by ascending hashes.
pub(crate) struct InOrder<'a, H> {
    pages: Box<dyn Iterator<Item = &'a Page> + 'a>,
    hash_of: H,
    /// Items of the current page, the next item last.
    items: Vec<(u64, &'a [u8])>,
}

impl<'a, H: Fn(&[u8]) -> u64> InOrder<'a, H> {
    pub(crate) fn new(tree: &'a Tree, hash_of: H) -> Self {
        InOrder { pages: Box::new(tree.pages_from(ByPosition(0))), hash_of, items: Vec::new() }
    }

    fn next_page(&mut self) -> Option<()> {
        let page = self.pages.next()?;
        let items = (0..page.len()).map(|at| page.get(at));
        self.items.extend(items.map(|item| ((self.hash_of)(item), item)));
        self.items.sort_unstable_by_key(|(hash, _)| std::cmp::Reverse(*hash));
        Some(())
    }
}

impl<'a, H: Fn(&[u8]) -> u64> Iterator for InOrder<'a, H> {
    type Item = (u64, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        while self.items.is_empty() {
            self.next_page()?;
        }
        self.items.pop()
    }
}

/// Makes a tree from items by ascending hashes.
pub(crate) struct Builder<T> {
    pages: Siblings<Page>,
    /// Items of the next page.
    waiting: Vec<(u64, T)>,
    /// Bytes that these items will take.
    bytes: usize,
}

impl<T: AsRef<[u8]>> Builder<T> {
    pub(crate) fn new() -> Self {
        Builder { pages: Vec::new(), waiting: Vec::new(), bytes: 0 }
    }

    /// Adds a new item, whose hash is not less than that of the item before.
    pub(crate) fn push(&mut self, hash: u64, item: T) {
        let bytes = item.as_ref().len() + STRIDE;
        // Items of the same hash are in the same page.
        if self.bytes + bytes > FILL && self.waiting.last().is_some_and(|(last, _)| *last < hash) {
            self.close_page();
        }
        self.bytes += bytes;
        self.waiting.push((hash, item));
    }

    fn close_page(&mut self) {
        let Some((first, _)) = self.waiting.first() else { return };
        let (bound, count) = ([*first, 0], self.waiting.len());
        let tagged = count >= TAGS_FROM || !self.pages.is_empty();
        let mut page = Page::for_items(tagged, self.waiting.iter().map(|(_, item)| item.as_ref().len()));
        for (hash, item) in self.waiting.drain(..) {
            page.insert(page.len(), &[item.as_ref()], tag(hash));
        }
        self.pages.push((bound, page));
        self.bytes = 0;
    }

    pub(crate) fn finish(mut self) -> Tree {
        self.close_page();
        Tree::of_pages(self.pages)
    }
}
