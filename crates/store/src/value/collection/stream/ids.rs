//! Items in the order of the ids at their start: the pending entries of a group or a consumer.

use std::cmp::Ordering;

use super::super::page::Page;
use super::super::tree::{self, Bound, Inner, Seek, Tree};
use super::id::{Packed, StreamId, unpack};

/// See the module's documentation.
#[derive(Clone)]
pub(super) struct Ids(Tree);

struct ById {
    sought: StreamId,
    /// Bounds of the branches taken so far, if known: no id in the branch is less or greater.
    least: Option<StreamId>,
    greatest: Option<StreamId>,
}

fn bound_of(id: StreamId) -> Bound {
    [id.ms, id.seq]
}

fn id_of([ms, seq]: Bound) -> StreamId {
    StreamId { ms, seq }
}

impl Seek for ById {
    fn branch(&mut self, inner: &Inner) -> usize {
        let sought = bound_of(self.sought);
        let at = inner.seek(|bound| bound.cmp(&sought));
        let (least, greatest) = inner.bounds_of(at);
        self.least = least.map(id_of).or(self.least);
        self.greatest = greatest.map(id_of).or(self.greatest);
        at
    }

    /// Ids follow time, and so are about evenly spread in a page. An estimate reads few lines, where halving
    /// would read a line at each step.
    fn within(&mut self, page: &Page) -> (usize, bool) {
        let (mut from, mut to) = if page.len() < GUESS_FROM { (0, page.len()) } else { self.narrow(page) };
        while from < to {
            let middle = (from + to) / 2;
            match id_at(page, middle).cmp(&self.sought) {
                Ordering::Less => from = middle + 1,
                Ordering::Equal => return (middle, true),
                Ordering::Greater => to = middle,
            }
        }
        (from, false)
    }
}

/// Pages of fewer items are halved at once.
const GUESS_FROM: usize = 8;

fn id_at(page: &Page, at: usize) -> StreamId {
    unpack(page.get(at)).0
}

impl ById {
    fn new(sought: StreamId) -> ById {
        ById { sought, least: None, greatest: None }
    }

    /// The range of positions of the first id that is not less than the id sought. The search starts at the
    /// position expected for evenly spread ids, in steps that double. The page is not empty.
    fn narrow(&self, page: &Page) -> (usize, usize) {
        let (len, mut step) = (page.len(), 1);
        let at = self.guess(page);
        match id_at(page, at).cmp(&self.sought) {
            Ordering::Equal => (at, at + 1),
            Ordering::Less => {
                let mut from = at + 1;
                while from + step < len {
                    let probe = from + step;
                    if id_at(page, probe) >= self.sought {
                        return (from, probe + 1);
                    }
                    (from, step) = (probe + 1, 2 * step);
                }
                (from, len)
            }
            Ordering::Greater => {
                let mut to = at + 1;
                while to > step {
                    let probe = to - 1 - step.min(to - 1);
                    if id_at(page, probe) < self.sought {
                        return (probe + 1, to);
                    }
                    (to, step) = (probe + 1, 2 * step);
                }
                (0, to)
            }
        }
    }

    /// The position of the id if the page's ids were spread evenly between the least and the greatest. The
    /// bounds are close to these two, and reading the items instead would be a cache miss for each.
    fn guess(&self, page: &Page) -> usize {
        let last = page.len() - 1;
        let least = self.least.unwrap_or_else(|| id_at(page, 0));
        let greatest = self.greatest.unwrap_or_else(|| id_at(page, last));
        let (sought, least, greatest) = if least.ms == greatest.ms {
            (self.sought.seq, least.seq, greatest.seq)
        } else {
            (self.sought.ms, least.ms, greatest.ms)
        };
        let share = sought.saturating_sub(least) as f64 / greatest.saturating_sub(least).max(1) as f64;
        ((share * page.len() as f64) as usize).min(last)
    }
}

impl Ids {
    pub(super) fn new() -> Ids {
        Ids(Tree::new())
    }

    pub(super) fn len(&self) -> u64 {
        self.0.len()
    }

    /// The text after an id in its item.
    pub(super) fn get(&self, id: StreamId) -> Option<&[u8]> {
        self.0.find(&mut ById::new(id)).item().map(|item| unpack(item).1)
    }

    /// Sets the text after an id; calls `before` with the old text and returns its result.
    pub(super) fn set<R>(&mut self, id: StreamId, text: &[u8], before: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let packed = Packed::new(id);
        let parts = [packed.as_bytes(), text];
        let bound = |item: &[u8]| bound_of(unpack(item).0);
        self.0.change(&mut ById::new(id), |page, at, found| {
            if found {
                let before = before(unpack(page.get(at)).1);
                (Some(before), tree::replace(page, at, &parts, bound))
            } else {
                (None, tree::insert(page, at, &parts, bound))
            }
        })
    }

    /// Removes an id, if it exists; calls `before` with its text and returns the result.
    pub(super) fn remove<R>(&mut self, id: StreamId, before: impl FnOnce(&[u8]) -> R) -> Option<R> {
        self.0.change(&mut ById::new(id), |page, at, found| {
            let before = found.then(|| before(unpack(page.get(at)).1));
            page.remove(at, at + usize::from(found));
            (before, Vec::new())
        })
    }

    /// Ids and their texts in a range, both ends included.
    pub(super) fn range(
        &self,
        from: StreamId,
        to: StreamId,
    ) -> impl DoubleEndedIterator<Item = (StreamId, &[u8])> + ExactSizeIterator {
        let start = self.0.rank(&mut ById::new(from)).0;
        let end = to.next().map_or(self.len(), |after| self.0.rank(&mut ById::new(after)).0);
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

#[cfg(test)]
mod tests {
    use evenkeel_testkit::random::{Random, fresh_seed};

    use super::*;

    /// Ids that are evenly spread, in clusters, or with a distant outlier, are found, and so are the places
    /// between them.
    #[test]
    fn ids_are_found_however_they_are_spread() {
        let seed = fresh_seed();
        println!("EVENKEEL_SEED={seed}");
        let mut random = Random::new(seed);
        for round in 0..if cfg!(miri) { 4 } else { 400 } {
            let (ms, seqs) = ([3, 50, 100_000][round % 3], [1, 4, 1_000][random.below(3)]);
            let id = |random: &mut Random| match random.below(100) {
                0 => StreamId { ms: u64::MAX - random.below(3) as u64, seq: u64::MAX },
                1 => StreamId { ms: 0, seq: random.below(3) as u64 },
                _ => StreamId { ms: random.below(ms) as u64, seq: random.below(seqs) as u64 },
            };
            let (mut ids, mut plain) = (Ids::new(), std::collections::BTreeSet::new());
            let most = if round % 8 == 0 { 3000 } else { 150 };
            for _ in 0..random.below(most) {
                let id = id(&mut random);
                assert_eq!(ids.set(id, b"text", |_| ()).is_some(), !plain.insert(id));
            }
            for _ in 0..300 {
                let id = id(&mut random);
                assert_eq!(ids.get(id).is_some(), plain.contains(&id), "{id} in round {round}");
                assert_eq!(ids.0.rank(&mut ById::new(id)).0, plain.range(..id).count() as u64);
            }
            assert!(ids.range(StreamId::MIN, StreamId::MAX).map(|(id, _)| id).eq(plain));
        }
    }
}
