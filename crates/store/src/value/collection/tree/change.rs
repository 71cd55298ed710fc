//! Changing one page of a tree, and the nodes above it.

use super::inner::{Branch, distribute};
use super::{Bound, ByPosition, Inner, Node, NodeMut, Seek, Siblings, Tree, insert, replace};
use crate::value::collection::page::Page;
use crate::value::shared::Shared;

impl Tree {
    /// Follows `seek` down and changes the page found there with `change`. `change` gets the position and
    /// whether the item is there, and returns its result and the new pages to the right of the page.
    #[inline]
    pub(crate) fn change<R>(
        &mut self,
        seek: &mut impl Seek,
        change: impl FnOnce(&mut Page, usize, bool) -> (R, Siblings<Page>),
    ) -> R {
        let (result, siblings) = self.change_below(seek, change);
        if !siblings.is_empty() {
            self.raise(siblings);
        } else {
            self.lower();
        }
        result
    }

    fn change_below<R>(
        &mut self,
        seek: &mut impl Seek,
        change: impl FnOnce(&mut Page, usize, bool) -> (R, Siblings<Page>),
    ) -> (R, Siblings<Tree>) {
        match self.node_mut() {
            NodeMut::Page(page) => {
                let (at, found) = seek.within(page);
                let (result, siblings) = change(page, at, found);
                (result, siblings.into_iter().map(|(bound, page)| (bound, page.into())).collect())
            }
            NodeMut::Inner(inner) => {
                let at = seek.branch(inner);
                let (result, siblings) = inner.branches[at].node.change_below(seek, change);
                (result, inner.settle(at, siblings))
            }
        }
    }

    /// Puts nodes above this node and its new siblings.
    pub(super) fn raise(&mut self, siblings: Siblings<Tree>) {
        let first = std::mem::replace(self, Tree::new());
        *self = Tree::above(std::iter::once(([0; 2], first)).chain(siblings));
    }

    /// A tree of these nodes, at least one, which are at the same depth.
    fn above(nodes: impl Iterator<Item = (Bound, Tree)>) -> Tree {
        let mut level: Vec<Branch> =
            nodes.map(|(bound, node)| Branch { bound, count: node.len(), node }).collect();
        while level.len() > 1 {
            let inners = distribute(level, true).into_iter();
            let branch = |inner: Inner| Branch {
                bound: inner.branches[0].bound,
                count: inner.count,
                node: Shared::new(inner).into(),
            };
            level = inners.map(branch).collect();
        }
        level.pop().expect("one node at least").node
    }

    /// Removes nodes above a single branch.
    pub(super) fn lower(&mut self) {
        while let Node::Inner(inner) = self.node() {
            let only = match &inner.branches[..] {
                [] => Tree::new(),
                [only] => only.node.clone(),
                _ => return,
            };
            *self = only;
        }
    }

    /// Inserts an item at position `at`, which is at most the number of items.
    pub(crate) fn insert_at(&mut self, at: u64, parts: &[&[u8]]) {
        assert!(at <= self.len(), "a position inside");
        self.change(&mut ByPosition(at), |page, at, _| ((), insert(page, at, parts, |_| [0; 2])));
    }

    /// Replaces the item at position `at`. Panics if there is none.
    pub(crate) fn replace_at(&mut self, at: u64, parts: &[&[u8]]) {
        assert!(at < self.len(), "a position inside");
        self.change(&mut ByPosition(at), |page, at, _| ((), replace(page, at, parts, |_| [0; 2])));
    }
}
