//! Many lookups in a tree of hashes at once: the cache misses of each level are waited for together.

use arrayvec::ArrayVec;

use super::{Node, Tree};
use crate::memory::prefetch::{LINE, prefetch};
use crate::value::collection::hashed::{ByHash, tag};
use crate::value::collection::page::Page;
use crate::value::collection::tree::Seek;

/// Maximum number of members that are prefetched at once. More would be evicted before the last is looked up.
pub const MEMBERS_MAX: usize = 32;

impl Tree {
    /// Prefetches the memory that finding items of these hashes, at most [`MEMBERS_MAX`], will read. A tree
    /// of a single page is not worth it. Returns the number of items found, judging by tags.
    pub(crate) fn prefetch_hashed(&self, hashes: impl Iterator<Item = u64>) -> usize {
        if self.is_page() {
            return 0;
        }
        let sought = |hash| (hash, ByHash::new(hash, |_: &[u8]| false), self);
        let mut ways: ArrayVec<_, MEMBERS_MAX> = hashes.take(MEMBERS_MAX).map(sought).collect();
        // All pages are at the same depth.
        while ways.first().is_some_and(|(_, _, tree)| !tree.is_page()) {
            for (_, seek, tree) in &mut ways {
                if let Node::Inner(inner) = tree.node() {
                    *tree = &inner.branches[seek.branch(inner)].node;
                    prefetch(tree.inner_pointer().as_ptr());
                }
            }
        }
        let pages = || ways.iter().filter_map(|(hash, _, tree)| Some((*hash, tree.page()?)));
        pages().for_each(|(_, page)| page.prefetch_index());
        pages().filter(|(hash, page)| page.prefetch_tagged(tag(*hash))).count()
    }
}

impl Page {
    /// Prefetches the tags and the offsets, once the header has arrived.
    fn prefetch_index(&self) {
        let index = self.index();
        (0..index.len()).step_by(LINE).for_each(|at| prefetch(index[at..].as_ptr()));
    }

    /// Prefetches the first item with a tag, if any, once the tags have arrived.
    fn prefetch_tagged(&self, tag: u16) -> bool {
        let Some(at) = self.find_tag(tag, 0) else { return false };
        let item = self.get(at).as_ptr_range();
        prefetch(item.start);
        prefetch(item.start.wrapping_add(LINE - 1).min(item.end));
        true
    }
}
