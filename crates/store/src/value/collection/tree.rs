//! A tree of pages: a sequence of items that can be shared in O(1), changed in O(log n), and counted.
//!
//! ```text
//!            [ 70 items | 65 items | .. ]                inner nodes: a count and a lower bound per branch
//!             /          \
//!   [ 40 | 30 ]          [ 35 | 30 ]
//!    /     \               |      \
//!  page   page            page   page                    leaves: a few KiB of items each
//! ```
//!
//! All collections are such a sequence. A list finds its items by position, through the counts. A sorted set
//! and a stream find theirs by order, through the bounds; a hash and a set keep their items in the order of
//! hashes. Nodes are reference counted: a clone takes the root, and a later write copies the nodes on the
//! path to the page that changes, some KiB, and nothing else. A collection of a single page is that page,
//! without any node above it.
//!
//! Bounds are 16 bytes, whatever the items are. Bounds of long members are cut, and if two bounds are equal,
//! the first item of the branch decides. That keeps inner nodes flat, at the price of a walk down for members
//! that begin alike and have the same score.
//!
//! Pages and nodes are merged only when little is left of them, so that removing and adding in turns does not
//! split and merge in turns.

mod ahead;
mod change;
mod inner;
mod iter;
mod leaf;
mod relocate;
mod remove;
mod seek;
mod size;
#[cfg(test)]
mod tests;

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use super::page::Page;
use crate::value::shared::Shared;

pub use ahead::MEMBERS_MAX;
pub(crate) use inner::{Bound, Inner, Siblings};
pub(crate) use iter::{Iter, WithPages};
pub(crate) use leaf::{insert, replace};
pub(crate) use seek::{ByPosition, Seek, Spot};

/// A height that no tree reaches: each new level holds at least half of `FANOUT` times the level below.
const HEIGHT_MAX: usize = 16;

/// A tree, or a branch of a tree: a page, or an inner node if the lowest bit is set.
#[repr(transparent)]
pub(crate) struct Tree(NonNull<u8>, PhantomData<Shared<Inner>>);

pub(super) const INNER: usize = 1;

// SAFETY: a tree is a reference to a `Page` or a `Shared<Inner>`, which both may be sent and shared.
unsafe impl Send for Tree {}
// SAFETY: as above.
unsafe impl Sync for Tree {}

enum Node<'a> {
    Page(&'a Page),
    Inner(&'a Inner),
}

enum NodeMut<'a> {
    Page(&'a mut Page),
    Inner(&'a mut Inner),
}

enum Owned {
    Page(Page),
    Inner(Shared<Inner>),
}

impl From<Page> for Tree {
    fn from(page: Page) -> Tree {
        Tree(page.into_raw(), PhantomData)
    }
}

impl From<Shared<Inner>> for Tree {
    fn from(inner: Shared<Inner>) -> Tree {
        Tree(inner.into_raw().map_addr(|address| address | INNER), PhantomData)
    }
}

impl Drop for Tree {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `self` is dropped now, so the copy is the only one.
        drop(unsafe { self.to_owned() });
    }
}

impl Clone for Tree {
    fn clone(&self) -> Tree {
        // SAFETY: the copy is not dropped.
        match &*ManuallyDrop::new(unsafe { self.to_owned() }) {
            Owned::Page(page) => page.clone().into(),
            Owned::Inner(inner) => inner.clone().into(),
        }
    }
}

impl Tree {
    /// An empty tree.
    pub(crate) fn new() -> Tree {
        Page::new(false, 0).into()
    }

    /// A tree of these pages, in their order; the first bound is meaningless.
    pub(crate) fn of_pages(pages: Siblings<Page>) -> Tree {
        let mut pages = pages.into_iter().map(|(bound, page)| (bound, Tree::from(page)));
        let mut tree = pages.next().map_or_else(Tree::new, |(_, first)| first);
        let others: Siblings<Tree> = pages.collect();
        if !others.is_empty() {
            tree.raise(others);
        }
        tree
    }

    /// Number of items.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        match self.node() {
            Node::Page(page) => page.len() as u64,
            Node::Inner(inner) => inner.count,
        }
    }

    /// The only page.
    pub(crate) fn page(&self) -> Option<&Page> {
        match self.node() {
            Node::Page(page) => Some(page),
            Node::Inner(_) => None,
        }
    }

    /// The only page, for changes.
    pub(crate) fn page_mut(&mut self) -> Option<&mut Page> {
        match self.is_page().then(|| self.node_mut())? {
            NodeMut::Page(page) => Some(page),
            NodeMut::Inner(_) => unreachable!("it is a page"),
        }
    }

    /// # Safety
    /// The result stands for the same reference as `self`: one of the two must not be dropped.
    unsafe fn to_owned(&self) -> Owned {
        if self.is_page() {
            // SAFETY: without the bit it is a page's pointer; the caller keeps the count right.
            Owned::Page(unsafe { Page::from_raw(self.0) })
        } else {
            // SAFETY: with the bit it is that of an inner node.
            Owned::Inner(unsafe { Shared::from_raw(self.inner_pointer()) })
        }
    }

    fn inner_pointer(&self) -> NonNull<u8> {
        let raw = self.0.as_ptr().map_addr(|address| address & !INNER);
        NonNull::new(raw).expect("a node's address is more than its lowest bit")
    }

    /// Returns true if the tree is a single page.
    #[inline]
    pub(crate) fn is_page(&self) -> bool {
        self.0.addr().get() & INNER == 0
    }

    #[inline]
    fn node(&self) -> Node<'_> {
        if self.is_page() {
            // SAFETY: `Tree` and `Page` are both nothing but the pointer to the block.
            Node::Page(unsafe { &*(&raw const *self).cast::<Page>() })
        } else {
            // SAFETY: the copy is not dropped, and its node lives as long as `self`.
            let inner = ManuallyDrop::new(unsafe { Shared::<Inner>::from_raw(self.inner_pointer()) });
            let inner: *const Inner = &**inner;
            // SAFETY: as above.
            Node::Inner(unsafe { &*inner })
        }
    }

    /// The node, for changes; an inner node is then this reference's own.
    #[inline]
    fn node_mut(&mut self) -> NodeMut<'_> {
        if self.is_page() {
            // SAFETY: as in `node`; a page that replaces itself by its copy writes the new pointer back.
            return NodeMut::Page(unsafe { &mut *(&raw mut *self).cast::<Page>() });
        }
        // SAFETY: the copy is not dropped: its new pointer is written back.
        let mut inner = ManuallyDrop::new(unsafe { Shared::<Inner>::from_raw(self.inner_pointer()) });
        let own: *mut Inner = inner.own();
        // `self` must not be dropped: its reference went with `inner`, which may refer to another node by
        // now.
        let tree = Tree::from(ManuallyDrop::into_inner(inner));
        // SAFETY: `self` holds nothing to be dropped.
        unsafe { (&raw mut *self).write(tree) };
        // SAFETY: it is the own node of `self`, borrowed exclusively as long as `self` is.
        NodeMut::Inner(unsafe { &mut *own })
    }

    pub(crate) fn into_raw(self) -> NonNull<u8> {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }

    /// # Safety
    /// `raw` comes from `into_raw`, and stands for a reference.
    pub(crate) unsafe fn from_raw(raw: NonNull<u8>) -> Tree {
        Tree(raw, PhantomData)
    }

    /// The address, for finding references to the same node.
    pub(crate) fn address(&self) -> usize {
        self.0.addr().get()
    }

    /// Returns true if both share the whole tree. As long as a clone of a tree is kept, no other tree is the
    /// same as the clone, so a tree that is the same has not been written to.
    pub(crate) fn is_same(&self, other: &Tree) -> bool {
        self.0 == other.0
    }
}
