//! Moving the pages of a tree to other blocks.

use super::{NodeMut, Tree};
use crate::memory::mover::Mover;

impl Tree {
    /// Moves the pages that `mover` wants elsewhere, from the item at `from` on; shared nodes stay where they
    /// are, with all that is below. Returns the item to go on from, if `mover` has had enough before the end.
    pub(crate) fn relocate(&mut self, from: u64, mover: &mut Mover<'_>) -> Option<u64> {
        // By the address alone: a page that stays is not read.
        if self.is_page() && !mover.is_leaving(self.address()) || !self.is_own() {
            return None;
        }
        let inner = match self.node_mut() {
            NodeMut::Page(page) => {
                page.relocate(mover);
                return None;
            }
            NodeMut::Inner(inner) => inner,
        };
        let mut before = 0;
        for branch in &mut inner.branches {
            let after = before + branch.count;
            if after > from {
                mover.look();
                if mover.is_spent() {
                    return Some(before.max(from));
                }
                if let Some(at) = branch.node.relocate(from.saturating_sub(before), mover) {
                    return Some(before + at);
                }
            }
            before = after;
        }
        None
    }
}
