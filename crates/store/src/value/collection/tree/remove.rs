//! Removing many items at once: a range, or scattered items.

use std::ops::Range;

use arrayvec::ArrayVec;

use super::inner::FANOUT;
use super::{NodeMut, Tree};
use crate::value::collection::page::Page;

impl Tree {
    /// Removes the items at positions in the range, which lies inside. Returns the nodes to be freed, which
    /// may be many.
    pub(crate) fn remove_range(&mut self, range: Range<u64>) -> Vec<Tree> {
        assert!(range.start <= range.end && range.end <= self.len(), "positions inside");
        let mut gone = Vec::new();
        if range.start == 0 && range.end == self.len() {
            gone.push(std::mem::replace(self, Tree::new()));
        } else if range.start < range.end {
            self.cut(range, &mut gone);
            self.lower();
        }
        gone
    }

    fn cut(&mut self, range: Range<u64>, gone: &mut Vec<Tree>) {
        let inner = match self.node_mut() {
            NodeMut::Page(page) => return page.remove(range.start as usize, range.end as usize),
            NodeMut::Inner(inner) => inner,
        };
        inner.count -= range.end - range.start;
        let (mut index, mut from) = (0, 0);
        while index < inner.branches.len() && from < range.end {
            let branch = &mut inner.branches[index];
            let to = from + branch.count;
            let below = range.start.max(from)..range.end.min(to);
            if below.start >= below.end {
                index += 1;
            } else if below == (from..to) {
                gone.push(inner.branches.remove(index).node);
            } else {
                branch.count -= below.end - below.start;
                branch.node.cut(below.start - from..below.end - from, gone);
                index += 1;
            }
            from = to;
        }
        // The nodes on both sides of the gap may be small. The second is merged first, so that the first
        // stays in place.
        let nearest = inner.branches.len().min(index);
        for at in (nearest.saturating_sub(2)..nearest).rev() {
            if at < inner.branches.len() && inner.branches[at].node.is_small() {
                inner.merge(at);
            }
        }
    }

    /// Removes the items at these positions, which ascend and lie inside.
    pub(crate) fn remove_each(&mut self, positions: &[u64]) {
        assert!(positions.is_sorted_by(|one, next| one < next), "positions ascend");
        assert!(positions.last().is_none_or(|last| *last < self.len()), "positions inside");
        if positions.len() as u64 == self.len() {
            *self = Tree::new();
        } else if !positions.is_empty() {
            self.thin(positions, 0);
            self.lower();
        }
    }

    /// Like [`Tree::remove_each`], for a part of a tree that has `before` items to its left and does not lose
    /// all its items.
    fn thin(&mut self, positions: &[u64], before: u64) {
        let inner = match self.node_mut() {
            NodeMut::Page(page) => return thin_page(page, positions, before),
            NodeMut::Inner(inner) => inner,
        };
        inner.count -= positions.len() as u64;
        let (mut rest, mut from, mut touched) = (positions, before, 0u64);
        const { assert!(FANOUT <= u64::BITS as usize, "a bit for each branch") };
        for (index, branch) in inner.branches.iter_mut().enumerate() {
            let to = from + branch.count;
            let here;
            (here, rest) = rest.split_at(rest.partition_point(|at| *at < to));
            branch.count -= here.len() as u64;
            if !here.is_empty() {
                touched |= 1 << index;
                if branch.count > 0 {
                    branch.node.thin(here, from);
                }
            }
            from = to;
            if rest.is_empty() {
                break;
            }
        }
        // From the highest index down, so that lower indices stay valid. Empty branches go first, since they
        // must not be merged.
        for index in
            ones(touched).filter(|index| inner.branches[*index].count == 0).collect::<ArrayVec<_, FANOUT>>()
        {
            inner.branches.remove(index);
            let before = (1 << index) - 1;
            touched = touched & before | touched >> 1 & !before;
        }
        for index in ones(touched) {
            if index < inner.branches.len() && inner.branches[index].node.is_small() {
                inner.merge(index);
            }
        }
    }
}

/// The bits that are set, the highest first.
fn ones(bits: u64) -> impl Iterator<Item = usize> {
    (0..u64::BITS as usize).rev().filter(move |index| bits >> index & 1 == 1)
}

fn thin_page(page: &mut Page, positions: &[u64], before: u64) {
    /// Fewer items are removed one at a time.
    const FEW: usize = 8;
    let places = positions.iter().map(|at| (at - before) as usize);
    if positions.len() < FEW {
        return places.rev().for_each(|at| page.remove(at, at + 1));
    }
    let mut goes = vec![false; page.len()];
    places.for_each(|at| goes[at] = true);
    page.take_out(&goes);
}
