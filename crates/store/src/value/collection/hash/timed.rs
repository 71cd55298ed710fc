//! The deadlines of a hash's fields, in order, each with the hash of its field.
//!
//! An item is its own bound: sixteen bytes of deadline and hash, highest byte first. Two fields with the same
//! hash and deadline have equal items, which is very unlikely; either stands for both.

use std::cmp::Ordering;

use super::super::page::Page;
use super::super::tree::{self, Bound, Inner, Seek, Tree};
use crate::Millis;

fn item_of(bound: Bound) -> [u8; 16] {
    let mut item = [0; 16];
    item[..8].copy_from_slice(&bound[0].to_be_bytes());
    item[8..].copy_from_slice(&bound[1].to_be_bytes());
    item
}

#[inline]
fn bound_of(item: &[u8]) -> Bound {
    let item = u128::from_be_bytes(item.try_into().expect("an item is a deadline and a hash"));
    [(item >> 64) as u64, item as u64]
}

/// Finds an item, or the first item that is not less.
struct To(Bound);

impl Seek for To {
    /// The last branch that does not begin after the item.
    fn branch(&mut self, inner: &Inner) -> usize {
        inner.seek(|bound| bound.cmp(&self.0))
    }

    fn within(&mut self, page: &Page) -> (usize, bool) {
        let at = position(page, self.0);
        (at, at < page.len() && bound_of(page.get(at)) == self.0)
    }
}

/// Finds the first item that is not less, even if equal items fill several pages.
struct Before(Bound);

impl Seek for Before {
    fn branch(&mut self, inner: &Inner) -> usize {
        inner.seek(|bound| if *bound < self.0 { Ordering::Less } else { Ordering::Greater })
    }

    fn within(&mut self, page: &Page) -> (usize, bool) {
        (position(page, self.0), false)
    }
}

fn position(page: &Page, bound: Bound) -> usize {
    let (mut from, mut to) = (0, page.len());
    while from < to {
        let middle = (from + to) / 2;
        if bound_of(page.get(middle)) < bound {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    from
}

pub(super) fn insert(tree: &mut Tree, deadline: Millis, hash: u64) {
    let bound = [deadline, hash];
    tree.change(&mut To(bound), |page, at, _| ((), tree::insert(page, at, &[&item_of(bound)], bound_of)));
}

/// Removes an item, which exists.
pub(super) fn remove(tree: &mut Tree, deadline: Millis, hash: u64) {
    let bound = [deadline, hash];
    let removed = tree.change(&mut To(bound), |page, at, found| {
        if found {
            page.remove(at, at + 1);
        }
        (found, Vec::new())
    });
    if !removed {
        // The last of equal items, which begin in the page before.
        let (at, _) = tree.rank(&mut Before(bound));
        assert!(tree.get(at).is_some_and(|item| bound_of(item) == bound), "each timed field has its item");
        tree.remove_range(at..at + 1);
    }
}

/// Number of deadlines that have come.
pub(super) fn due(tree: &Tree, now: Millis) -> u64 {
    match first(tree) {
        Some(first) if first <= now => match now.checked_add(1) {
            Some(next) => tree.rank(&mut Before([next, 0])).0,
            None => tree.len(),
        },
        _ => 0,
    }
}

/// The earliest deadline.
pub(super) fn first(tree: &Tree) -> Option<Millis> {
    (tree.len() > 0).then(|| bound_of(tree.first())[0])
}

/// The first `count` deadlines, with the hashes of their fields.
pub(super) fn from(tree: &Tree, count: u64) -> impl Iterator<Item = (Millis, u64)> + use<'_> {
    tree.range(0..count).map(|item| bound_of(item).into())
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::random::{Random, fresh_seed};

    use super::*;

    /// Many equal items, so that they fill several pages.
    #[test]
    fn random_operations_against_a_plain_vector() {
        let seed = fresh_seed();
        println!("EVENKEEL_SEED={seed}");
        let mut random = Random::new(seed);
        for kinds in [1, 3, 40, 2000] {
            let (mut tree, mut plain) = (Tree::new(), Vec::<(Millis, u64)>::new());
            for step in 0..if cfg!(miri) { 200 } else { 8000 } {
                let item = (random.below(kinds) as u64, random.below(kinds) as u64 / 2);
                let at = plain.partition_point(|other| *other < item);
                let growing = step / 2000 % 2 == 0;
                if random.below(4) < if growing { 3 } else { 1 } {
                    insert(&mut tree, item.0, item.1);
                    plain.insert(at, item);
                } else if plain.get(at) == Some(&item) {
                    remove(&mut tree, item.0, item.1);
                    plain.remove(at);
                }
                let now = random.below(kinds + 2) as u64;
                let come = plain.partition_point(|(deadline, _)| *deadline <= now) as u64;
                assert_eq!(due(&tree, now), come);
                assert_eq!(first(&tree), plain.first().map(|(deadline, _)| *deadline));
                if step % 500 == 0 {
                    assert!(from(&tree, u64::MAX).eq(plain.iter().copied()));
                }
            }
            assert_eq!(due(&tree, Millis::MAX), plain.len() as u64);
        }
    }
}
