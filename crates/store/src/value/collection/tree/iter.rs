//! Iterating over a tree in its order, by item or by page, from either end.

use std::ops::Range;

use arrayvec::ArrayVec;

use super::{ByPosition, HEIGHT_MAX, Inner, Node, Seek, Tree};
use crate::value::collection::page::Page;

impl Tree {
    /// The items at positions in a range, which is cut to the length. Double-ended.
    pub(crate) fn range(&self, range: Range<u64>) -> Iter<'_> {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        let mut iter = Iter { front: Cursor::default(), back: Cursor::default(), left: end - start };
        if start < end {
            iter.front.seek(self, &mut ByPosition(start));
            iter.back.seek(self, &mut ByPosition(end - 1));
        }
        iter
    }

    pub(crate) fn iter(&self) -> Iter<'_> {
        self.range(0..self.len())
    }

    /// The pages in order, starting where `seek` leads.
    pub(crate) fn pages_from<S: Seek>(&self, mut seek: S) -> impl Iterator<Item = &Page> + use<'_, S> {
        let mut cursor = Cursor::default();
        cursor.seek(self, &mut seek);
        let mut page = cursor.page;
        std::iter::from_fn(move || {
            let this = page?;
            page = if cursor.step_page(true) { cursor.page } else { None };
            Some(this)
        })
    }

    /// The pages in order.
    pub(crate) fn pages(&self) -> impl Iterator<Item = &Page> {
        self.pages_from(ByPosition(0))
    }
}

/// A position in a tree that can move to its neighbours.
#[derive(Default)]
struct Cursor<'a> {
    path: ArrayVec<(&'a Inner, usize), HEIGHT_MAX>,
    page: Option<&'a Page>,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn seek(&mut self, mut tree: &'a Tree, seek: &mut impl Seek) {
        self.path.clear();
        loop {
            match tree.node() {
                Node::Inner(inner) => {
                    let index = seek.branch(inner);
                    self.path.push((inner, index));
                    tree = &inner.branches[index].node;
                }
                Node::Page(page) => {
                    (self.at, _) = seek.within(page);
                    self.page = Some(page);
                    return;
                }
            }
        }
    }

    /// Moves to the next page, or to the page before; returns false if there is none.
    fn step_page(&mut self, forward: bool) -> bool {
        let mut depth = self.path.len();
        while depth > 0 {
            let (inner, index) = &mut self.path[depth - 1];
            let next = if forward { *index + 1 } else { index.wrapping_sub(1) };
            if let Some(branch) = inner.branches.get(next) {
                *index = next;
                self.path.truncate(depth);
                self.descend(&branch.node, forward);
                return true;
            }
            depth -= 1;
        }
        false
    }

    fn descend(&mut self, mut tree: &'a Tree, forward: bool) {
        loop {
            match tree.node() {
                Node::Inner(inner) => {
                    let index = if forward { 0 } else { inner.branches.len() - 1 };
                    self.path.push((inner, index));
                    tree = &inner.branches[index].node;
                }
                Node::Page(page) => {
                    self.at = if forward { 0 } else { page.len() - 1 };
                    self.page = Some(page);
                    return;
                }
            }
        }
    }

    fn item(&self) -> &'a [u8] {
        self.page.expect("a cursor that was placed").get(self.at)
    }

    fn forward(&mut self) {
        self.at += 1;
        if self.page.is_some_and(|page| self.at >= page.len()) {
            self.step_page(true);
        }
    }

    fn backward(&mut self) {
        match self.at {
            0 => _ = self.step_page(false),
            _ => self.at -= 1,
        }
    }
}

/// Items of a tree, from either end.
pub(crate) struct Iter<'a> {
    front: Cursor<'a>,
    back: Cursor<'a>,
    left: u64,
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let item = self.front.item();
        if self.left > 0 {
            self.front.forward();
        }
        Some(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl DoubleEndedIterator for Iter<'_> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let item = self.back.item();
        if self.left > 0 {
            self.back.backward();
        }
        Some(item)
    }
}

impl ExactSizeIterator for Iter<'_> {}

/// Items, each with its page.
pub(crate) struct WithPages<'a>(Iter<'a>);

impl<'a> Iter<'a> {
    pub(crate) fn with_pages(self) -> WithPages<'a> {
        WithPages(self)
    }
}

impl<'a> Iterator for WithPages<'a> {
    type Item = (&'a Page, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let page = self.0.front.page;
        let item = self.0.next()?;
        Some((page.expect("an item has a page"), item))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl DoubleEndedIterator for WithPages<'_> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        let page = self.0.back.page;
        let item = self.0.next_back()?;
        Some((page.expect("an item has a page"), item))
    }
}

impl ExactSizeIterator for WithPages<'_> {}
