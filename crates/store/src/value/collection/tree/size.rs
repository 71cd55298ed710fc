//! The size of a tree: its pages, its memory, and the memory that it shares with others.

use std::mem::ManuallyDrop;

use super::inner::{BRANCHES_MIN, Branch, FANOUT};
use super::{Inner, Node, Owned, Tree};
use crate::value::collection::page::PAGE_MAX;
use crate::value::shared::Shared;

impl Tree {
    /// Number of pages. Reads the inner nodes, which are a hundredth of the pages or fewer.
    pub(crate) fn page_count(&self) -> u64 {
        let Node::Inner(inner) = self.node() else { return 1 };
        if inner.branches[0].node.is_page() {
            return inner.branches.len() as u64;
        }
        inner.branches.iter().map(|branch| branch.node.page_count()).sum()
    }

    /// Number of pages, counted up to `max`.
    pub(crate) fn pages_up_to(&self, max: usize) -> usize {
        self.pages().take(max).count()
    }

    /// Bytes of memory, shared or not: exact for small trees, estimated from the first pages for large trees.
    pub(crate) fn memory(&self) -> usize {
        /// Pages that are read.
        const SAMPLES: usize = 16;
        let (mut bytes, mut items) = (0, 0);
        for page in self.pages().take(SAMPLES) {
            let branch = if self.is_page() { 0 } else { size_of::<Branch>() * 4 / 3 };
            bytes += page.memory() + branch;
            items += page.len() as u64;
        }
        if items == 0 || items == self.len() {
            return bytes;
        }
        (bytes as f64 / items as f64 * self.len() as f64) as usize
    }

    /// Exact bytes of the pages alone, counted up to `max`, which bounds the number of pages read.
    pub(crate) fn memory_up_to(&self, max: usize) -> usize {
        let mut bytes = 0;
        for page in self.pages() {
            bytes += page.memory();
            if bytes >= max {
                return max;
            }
        }
        bytes
    }

    /// Returns true if no other tree shares the whole tree.
    pub(crate) fn is_own(&self) -> bool {
        match self.node() {
            Node::Page(page) => page.is_own(),
            Node::Inner(_) => {
                // SAFETY: the copy is not dropped; the pointer is that of an inner node, as in `node`.
                ManuallyDrop::new(unsafe { Shared::<Inner>::from_raw(self.inner_pointer()) }).is_own()
            }
        }
    }

    /// Bytes of memory of its nodes that other trees refer to as well: all of them if its root has more than
    /// `owners` references. Exact, so it takes time in proportion to the pages.
    pub(crate) fn shared_memory(&self, owners: u32) -> usize {
        // SAFETY: the copy is not dropped.
        let refs = match &*ManuallyDrop::new(unsafe { self.to_owned() }) {
            Owned::Page(page) => page.refs(),
            Owned::Inner(inner) => inner.refs(),
        };
        self.memory_if(refs > owners)
    }

    /// Bytes of its nodes if they are shared, otherwise of the shared nodes below.
    fn memory_if(&self, is_shared: bool) -> usize {
        match self.node() {
            Node::Page(page) if is_shared => page.memory(),
            Node::Page(_) => 0,
            Node::Inner(inner) => {
                let below = |branch: &Branch| match is_shared {
                    true => size_of::<Branch>() + branch.node.memory_if(true),
                    false => branch.node.shared_memory(1),
                };
                inner.branches.iter().map(below).sum()
            }
        }
    }

    /// Approximate maximum number of nodes that dropping the tree visits: distinguishes long work from short.
    pub(crate) fn weight(&self) -> usize {
        match self.node() {
            Node::Page(_) => 1,
            Node::Inner(inner) => match inner.branches[0].node.node() {
                Node::Page(_) => inner.branches.len(),
                Node::Inner(_) => usize::MAX,
            },
        }
    }

    pub(super) fn is_small(&self) -> bool {
        match self.node() {
            Node::Page(page) => page.bytes() < PAGE_MAX / 4,
            Node::Inner(inner) => inner.branches.len() < BRANCHES_MIN,
        }
    }

    /// Returns true if the right neighbour fits in here, and leaves room for more.
    pub(super) fn has_room_for(&self, other: &Tree) -> bool {
        match (self.node(), other.node()) {
            (Node::Page(this), Node::Page(other)) => {
                !this.is_headed() && !other.is_headed() && this.bytes_with_all_of(other) <= PAGE_MAX / 4 * 3
            }
            (Node::Inner(this), Node::Inner(other)) => {
                this.branches.len() + other.branches.len() <= FANOUT / 4 * 3
            }
            _ => unreachable!("all pages are at one depth"),
        }
    }
}
