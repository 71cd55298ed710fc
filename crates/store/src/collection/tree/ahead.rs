//! Many look-ups in one tree of hashes at once: each level's misses of the caches are waited for together.

use arrayvec::ArrayVec;

use super::{Node, Tree};
use crate::ahead::{MEMBERS_MAX, prefetch};
use crate::collection::hashed::{ByHash, tag};
use crate::collection::page::Page;
use crate::collection::tree::Seek;

impl Tree {
    /// Asks the memory for what finding items of these hashes, at most [`MEMBERS_MAX`], will read. A tree of one page has
    /// nothing that is worth it. Returns how many there are, as far as tags tell.
    pub(crate) fn prefetch_hashed(&self, hashes: impl Iterator<Item = u64>) -> usize {
        if self.is_page() {
            return 0;
        }
        let sought = |hash| (hash, ByHash::new(hash, |_: &[u8]| false), self);
        let mut ways: ArrayVec<_, MEMBERS_MAX> = hashes.take(MEMBERS_MAX).map(sought).collect();
        // All pages are at one depth.
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

/// Bytes that come together.
const LINE: usize = 64;

impl Page {
    /// Asks for the tags and the offsets, once the header is there.
    fn prefetch_index(&self) {
        let index = self.index();
        (0..index.len()).step_by(LINE).for_each(|at| prefetch(index[at..].as_ptr()));
    }

    /// Asks for the first item with a tag, if there is one, once the tags are there.
    fn prefetch_tagged(&self, tag: u16) -> bool {
        let Some(at) = self.find_tag(tag, 0) else { return false };
        let item = self.get(at).as_ptr_range();
        prefetch(item.start);
        prefetch(item.start.wrapping_add(LINE - 1).min(item.end));
        true
    }
}
