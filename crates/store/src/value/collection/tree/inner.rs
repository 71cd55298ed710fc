//! Inner nodes: the search for a branch, and the width of a node after one of its branches has changed.

use std::cmp::Ordering;

use arrayvec::ArrayVec;

use super::{NodeMut, Tree};
use crate::value::shared::Shared;

/// Branches of an inner node: copying a node takes about a microsecond, and ten million items of 16 bytes are
/// three levels.
pub(crate) const FANOUT: usize = 64;

/// Inner nodes of fewer branches are merged with a neighbour, if it has room.
pub(super) const BRANCHES_MIN: usize = FANOUT / 4;

/// The lower bound of a branch: the first 16 bytes of the sort key of its items.
pub(crate) type Bound = [u64; 2];

/// Nodes to the right of a node that had to be split.
pub(crate) type Siblings<N> = Vec<(Bound, N)>;

/// An inner node.
#[derive(Clone)]
pub(crate) struct Inner {
    /// Number of items below.
    pub(super) count: u64,
    /// At least one branch. The first bound is meaningless: all items below the second bound are in the first
    /// branch.
    pub(super) branches: ArrayVec<Branch, FANOUT>,
}

#[derive(Clone)]
pub(super) struct Branch {
    /// No item below is less, and no item of the branch before is greater.
    pub(super) bound: Bound,
    /// Number of items below.
    pub(super) count: u64,
    pub(super) node: Tree,
}

impl Inner {
    /// The branch with a position, at most the count, and the number of items before the branch.
    #[inline]
    pub(crate) fn seek_position(&self, at: u64) -> (usize, u64) {
        let (last, mut before) = (self.branches.len() - 1, 0);
        for (index, branch) in self.branches[..last].iter().enumerate() {
            if at < before + branch.count {
                return (index, before);
            }
            before += branch.count;
        }
        (last, before)
    }

    /// The last branch whose bound is not greater than the item sought. `compare` compares a bound with the
    /// item.
    #[inline]
    pub(crate) fn seek(&self, compare: impl Fn(&Bound) -> Ordering) -> usize {
        self.branches[1..].partition_point(|branch| compare(&branch.bound).is_le())
    }

    /// Like [`Inner::seek`], for a number that bounds begin with. The search starts at the branch that has
    /// `share` of the branches before it. Narrows `range`, the least and the greatest number below this node,
    /// to the branch.
    #[inline]
    pub(crate) fn seek_near(&self, share: f64, number: u64, range: &mut (u64, u64)) -> usize {
        let bound = |at: usize| self.branches[at].bound[0];
        let last = self.branches.len() - 1;
        let mut at = ((share * self.branches.len() as f64) as usize).min(last);
        while at < last && bound(at + 1) <= number {
            at += 1;
        }
        while at > 0 && bound(at) > number {
            at -= 1;
        }
        if at > 0 {
            range.0 = bound(at);
        }
        if at < last {
            range.1 = bound(at + 1).saturating_sub(1);
        }
        at
    }

    /// Like [`Inner::seek`], but the first item of the branch decides between equal bounds.
    #[inline]
    pub(crate) fn seek_item(
        &self,
        compare: impl Fn(&Bound) -> Ordering,
        compare_item: impl Fn(&[u8]) -> Ordering,
    ) -> usize {
        self.branches[1..].partition_point(|branch| match compare(&branch.bound) {
            Ordering::Equal => compare_item(branch.node.first()).is_le(),
            other => other.is_le(),
        })
    }

    /// The bounds of a branch and of the next, if they are known here: the items between them are in the
    /// branch.
    #[inline]
    pub(crate) fn bounds_of(&self, at: usize) -> (Option<Bound>, Option<Bound>) {
        let bound = |at: usize| self.branches.get(at).map(|branch| branch.bound);
        (if at > 0 { bound(at) } else { None }, bound(at + 1))
    }

    /// Updates the node after a branch has changed; returns the nodes that do not fit in here any more.
    pub(super) fn settle(&mut self, at: usize, siblings: Siblings<Tree>) -> Siblings<Tree> {
        let branch = &mut self.branches[at];
        let before = std::mem::replace(&mut branch.count, branch.node.len());
        self.count = self.count - before + branch.count;
        if !siblings.is_empty() {
            return self.widen(at, siblings);
        }
        if branch.count == 0 {
            self.branches.remove(at);
        } else if branch.count < before && branch.node.is_small() {
            self.merge(at);
        }
        Vec::new()
    }

    fn widen(&mut self, at: usize, siblings: Siblings<Tree>) -> Siblings<Tree> {
        if self.branches.len() + siblings.len() <= FANOUT {
            for (place, (bound, node)) in (at + 1..).zip(siblings) {
                let count = node.len();
                self.count += count;
                self.branches.insert(place, Branch { bound, count, node });
            }
            return Vec::new();
        }
        let appends = at + 1 == self.branches.len();
        let new = siblings.into_iter().map(|(bound, node)| Branch { bound, count: node.len(), node });
        let tail: Vec<Branch> = self.branches.drain(at + 1..).collect();
        let all: Vec<Branch> = self.branches.drain(..).chain(new).chain(tail).collect();
        let mut inners = distribute(all, appends).into_iter();
        *self = inners.next().expect("at least one branch");
        inners.map(|inner| (inner.branches[0].bound, Shared::new(inner).into())).collect()
    }

    /// Merges a small branch with a neighbour, if both fit in one.
    pub(super) fn merge(&mut self, at: usize) {
        if self.branches.len() == 1 {
            return;
        }
        let left = if at + 1 == self.branches.len() { at - 1 } else { at };
        if !self.branches[left].node.has_room_for(&self.branches[left + 1].node) {
            return;
        }
        let mut right = self.branches.remove(left + 1);
        let left = &mut self.branches[left];
        left.count += right.count;
        match (left.node.node_mut(), right.node.node_mut()) {
            (NodeMut::Page(left), NodeMut::Page(right)) => left.append(right),
            (NodeMut::Inner(left), NodeMut::Inner(below)) => {
                left.count += below.count;
                // The first bound of `below` becomes meaningful.
                below.branches[0].bound = right.bound;
                left.branches.extend(below.branches.drain(..));
            }
            _ => unreachable!("all pages are at one depth"),
        }
    }

    pub(super) fn of(branches: ArrayVec<Branch, FANOUT>) -> Inner {
        Inner { count: branches.iter().map(|branch| branch.count).sum(), branches }
    }
}

/// Distributes branches over as few inner nodes as possible, about equally. If items are appended, all nodes
/// but the last are full, since nothing will be added to them.
pub(super) fn distribute(all: Vec<Branch>, appends: bool) -> Vec<Inner> {
    let nodes = all.len().div_ceil(FANOUT);
    let each = if appends { FANOUT } else { all.len().div_ceil(nodes) };
    let mut all = all.into_iter().peekable();
    let mut inners = Vec::with_capacity(nodes);
    while all.peek().is_some() {
        inners.push(Inner::of(all.by_ref().take(each).collect()));
    }
    inners
}
