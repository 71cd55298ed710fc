//! Items in the order of ids with which they begin: the entries that a group or a consumer has not acknowledged.

use std::cmp::Ordering;

use super::super::page::Page;
use super::super::tree::{self, Bound, Inner, Seek, Tree};
use super::id::{Packed, StreamId, unpack};

/// See the module's text.
#[derive(Clone)]
pub(super) struct Ids(Tree);

struct ById(StreamId);

fn bound_of(id: StreamId) -> Bound {
    [id.ms, id.seq]
}

impl Seek for ById {
    fn branch(&mut self, inner: &Inner) -> usize {
        let sought = bound_of(self.0);
        inner.seek(|bound| bound.cmp(&sought))
    }

    fn within(&mut self, page: &Page) -> (usize, bool) {
        let (mut from, mut to) = (0, page.len());
        while from < to {
            let middle = (from + to) / 2;
            match unpack(page.get(middle)).0.cmp(&self.0) {
                Ordering::Less => from = middle + 1,
                Ordering::Equal => return (middle, true),
                Ordering::Greater => to = middle,
            }
        }
        (from, false)
    }
}

impl Ids {
    pub(super) fn new() -> Ids {
        Ids(Tree::new())
    }

    pub(super) fn len(&self) -> u64 {
        self.0.len()
    }

    /// What follows an id in its item.
    pub(super) fn get(&self, id: StreamId) -> Option<&[u8]> {
        self.0.find(&mut ById(id)).item().map(|item| unpack(item).1)
    }

    /// Sets what follows an id; tells what has followed it before.
    pub(super) fn set<R>(&mut self, id: StreamId, text: &[u8], before: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let packed = Packed::new(id);
        let parts = [packed.as_bytes(), text];
        let bound = |item: &[u8]| bound_of(unpack(item).0);
        self.0.change(&mut ById(id), |page, at, found| {
            if found {
                let before = before(unpack(page.get(at)).1);
                (Some(before), tree::replace(page, at, &parts, bound))
            } else {
                (None, tree::insert(page, at, &parts, bound))
            }
        })
    }

    /// Removes an id, which is there.
    pub(super) fn remove(&mut self, id: StreamId) {
        self.0.change(&mut ById(id), |page, at, found| {
            assert!(found, "the caller has seen it");
            page.remove(at, at + 1);
            ((), Vec::new())
        });
    }

    /// Ids, and what follows them, in a range with both ends.
    pub(super) fn range(
        &self,
        from: StreamId,
        to: StreamId,
    ) -> impl DoubleEndedIterator<Item = (StreamId, &[u8])> + ExactSizeIterator {
        let start = self.0.rank(&mut ById(from)).0;
        let end = to.next().map_or(self.len(), |after| self.0.rank(&mut ById(after)).0);
        self.0.range(start..end.max(start)).map(unpack)
    }

    pub(super) fn memory(&self) -> usize {
        self.0.memory()
    }

    pub(super) fn weight(&self) -> usize {
        self.0.weight()
    }

    pub(super) fn into_tree(self) -> Tree {
        self.0
    }
}
