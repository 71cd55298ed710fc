//! Finding an item from the root down, by its position or by an order.

use super::{Inner, Node, Tree};
use crate::value::collection::page::Page;

/// A way to find an item from the root down.
pub(crate) trait Seek {
    /// Returns the branch to take; there is at least one.
    fn branch(&mut self, inner: &Inner) -> usize;

    /// Returns the position in the page, and whether the item is there.
    fn within(&mut self, page: &Page) -> (usize, bool);
}

/// Seeks a position, at most the number of items.
pub(crate) struct ByPosition(pub(crate) u64);

impl Seek for ByPosition {
    fn branch(&mut self, inner: &Inner) -> usize {
        let (index, before) = inner.seek_position(self.0);
        self.0 -= before;
        index
    }

    fn within(&mut self, page: &Page) -> (usize, bool) {
        let at = (self.0 as usize).min(page.len());
        (at, at < page.len())
    }
}

/// The position of an item, whether it is there or not.
pub(crate) struct Spot<'a> {
    pub(crate) page: &'a Page,
    pub(crate) at: usize,
    pub(crate) found: bool,
}

impl<'a> Spot<'a> {
    pub(crate) fn item(&self) -> Option<&'a [u8]> {
        self.found.then(|| self.page.get(self.at))
    }
}

impl Tree {
    /// The first item. Panics if there is none.
    pub(crate) fn first(&self) -> &[u8] {
        let mut tree = self;
        loop {
            match tree.node() {
                Node::Page(page) => return page.get(0),
                Node::Inner(inner) => tree = &inner.branches[0].node,
            }
        }
    }

    /// Follows `seek` down to a page.
    #[inline]
    pub(crate) fn find(&self, seek: &mut impl Seek) -> Spot<'_> {
        let mut tree = self;
        loop {
            match tree.node() {
                Node::Inner(inner) => tree = &inner.branches[seek.branch(inner)].node,
                Node::Page(page) => {
                    let (at, found) = seek.within(page);
                    return Spot { page, at, found };
                }
            }
        }
    }

    /// Follows `seek` down; returns the number of items before the position, and whether the item is there.
    pub(crate) fn rank(&self, seek: &mut impl Seek) -> (u64, bool) {
        let (mut tree, mut before) = (self, 0);
        loop {
            match tree.node() {
                Node::Inner(inner) => {
                    let index = seek.branch(inner);
                    before += inner.branches[..index].iter().map(|branch| branch.count).sum::<u64>();
                    tree = &inner.branches[index].node;
                }
                Node::Page(page) => {
                    let (at, found) = seek.within(page);
                    return (before + at as u64, found);
                }
            }
        }
    }

    /// The item at a position, if there is one.
    pub(crate) fn get(&self, at: u64) -> Option<&[u8]> {
        if at < self.len() { self.find(&mut ByPosition(at)).item() } else { None }
    }

    /// The spot of the item at a position. Panics if there is none.
    pub(crate) fn spot(&self, at: u64) -> Spot<'_> {
        assert!(at < self.len(), "a position inside");
        self.find(&mut ByPosition(at))
    }
}
