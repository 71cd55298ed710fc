//! Integers in ascending order, packed: the form of a small set whose members are all integers.
//!
//! ```text
//!  | width | integer 0 | integer 1 | ..      1 byte, then 2, 4 or 8 bytes each, as the widest needs
//! ```
//!
//! They are the single item of a packed page. 512 integers below 32,768 take 1 KiB; as text they would take
//! 5. A lookup takes nine comparisons in a few cache lines. An insertion moves half of the integers, so their
//! number is limited: beyond [`INTS_MAX`], which is twice Redis' default, a set becomes an ordinary tree.

use std::ops::Range;

use super::page::Page;

/// Maximum number of integers in a page: 8 KiB of the widest, of which inserting moves half in about 100 ns.
pub(crate) const INTS_MAX: usize = 1024;

/// Bytes before the first integer.
const HEAD: usize = 1;

/// The integers of a packed page.
#[derive(Clone, Copy)]
pub(crate) struct Ints<'a> {
    width: usize,
    /// A multiple of `width`, which is 2, 4 or 8.
    bytes: &'a [u8],
}

/// The result of adding an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    New,
    AlreadyThere,
    /// Nothing has been added: the page has as many integers as it may.
    Full,
}

impl<'a> Ints<'a> {
    /// The integers of a page, if it holds integers.
    #[inline]
    pub(crate) fn of(page: &'a Page) -> Option<Ints<'a>> {
        if !page.is_packed() {
            return None;
        }
        let (head, bytes) = page.get(0).split_at(HEAD);
        Some(Ints { width: head[0] as usize, bytes })
    }

    #[inline]
    pub(crate) fn len(self) -> usize {
        match self.width {
            2 => self.bytes.len() / 2,
            4 => self.bytes.len() / 4,
            _ => self.bytes.len() / 8,
        }
    }

    /// The integer at a position. Panics if there is none.
    #[inline]
    pub(crate) fn get(self, at: usize) -> i64 {
        match self.width {
            2 => i64::from(i16::from_le_bytes(self.bytes.as_chunks().0[at])),
            4 => i64::from(i32::from_le_bytes(self.bytes.as_chunks().0[at])),
            _ => i64::from_le_bytes(self.bytes.as_chunks().0[at]),
        }
    }

    pub(crate) fn iter(self) -> impl ExactSizeIterator<Item = i64> {
        (0..self.len()).map(move |at| self.get(at))
    }

    /// The position of an integer, or the position at which it would be inserted.
    #[inline]
    pub(crate) fn find(self, value: i64) -> Result<usize, usize> {
        match self.width {
            2 => find(self.bytes, value, |bytes| i64::from(i16::from_le_bytes(bytes))),
            4 => find(self.bytes, value, |bytes| i64::from(i32::from_le_bytes(bytes))),
            _ => find(self.bytes, value, i64::from_le_bytes),
        }
    }

    #[inline]
    pub(crate) fn contains(self, value: i64) -> bool {
        self.find(value).is_ok()
    }
}

#[inline]
fn find<const WIDTH: usize>(
    bytes: &[u8],
    value: i64,
    read: impl Fn([u8; WIDTH]) -> i64,
) -> Result<usize, usize> {
    bytes.as_chunks().0.binary_search_by(|bytes| read(*bytes).cmp(&value))
}

/// Bytes that an integer needs.
fn width_of(value: i64) -> usize {
    match value {
        _ if i16::try_from(value).is_ok() => 2,
        _ if i32::try_from(value).is_ok() => 4,
        _ => 8,
    }
}

/// A page of a single integer.
pub(crate) fn single(value: i64) -> Page {
    of_sorted(&[value])
}

/// A page of integers, which ascend.
pub(crate) fn of_sorted(values: &[i64]) -> Page {
    let widest = |value: Option<&i64>| value.map_or(2, |value| width_of(*value));
    let width = widest(values.first()).max(widest(values.last()));
    let mut item = Vec::with_capacity(HEAD + values.len() * width);
    item.push(width as u8);
    values.iter().for_each(|value| item.extend_from_slice(&value.to_le_bytes()[..width]));
    Page::packed(&item)
}

/// Adds an integer to a page of integers.
pub(crate) fn insert(page: &mut Page, value: i64) -> Added {
    let ints = Ints::of(page).expect("a page of integers");
    let at = match ints.find(value) {
        Ok(_) => return Added::AlreadyThere,
        Err(_) if ints.len() == INTS_MAX => return Added::Full,
        Err(at) => at,
    };
    let width = ints.width;
    if width_of(value) > width {
        // It is wider than all others, and so less or greater than all of them.
        let mut values: Vec<i64> = ints.iter().collect();
        values.insert(at, value);
        *page = of_sorted(&values);
    } else {
        let start = HEAD + at * width;
        page.splice(start..start, &value.to_le_bytes()[..width]);
    }
    Added::New
}

/// Removes an integer from a page of integers; returns false if it is not there.
pub(crate) fn remove(page: &mut Page, value: i64) -> bool {
    let found = Ints::of(page).expect("a page of integers").find(value);
    if let Ok(at) = found {
        remove_range(page, at..at + 1);
    }
    found.is_ok()
}

/// Removes the integers at positions in the range, which lies inside.
pub(crate) fn remove_range(page: &mut Page, range: Range<usize>) {
    let width = Ints::of(page).expect("a page of integers").width;
    page.splice(HEAD + range.start * width..HEAD + range.end * width, b"");
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::random::{Random, fresh_seed};
    use std::collections::BTreeSet;

    fn check(page: &Page, plain: &BTreeSet<i64>) {
        let ints = Ints::of(page).expect("a page of integers");
        assert!(ints.iter().eq(plain.iter().copied()));
        assert_eq!(ints.len(), plain.len());
    }

    #[test]
    fn random_operations_against_a_plain_set() {
        let seed = fresh_seed();
        println!("EVENKEEL_SEED={seed}");
        let mut random = Random::new(seed);
        for bits in [3, 12, 16, 17, 32, 33, 63] {
            let draw = |random: &mut Random| random.between(-(1 << (bits - 1)), (1 << (bits - 1)) - 1);
            let first = draw(&mut random);
            let (mut page, mut plain) = (single(first), BTreeSet::from([first]));
            let mut clones = Vec::new();
            for step in 0..if cfg!(miri) { 100 } else { 6000 } {
                let value = if random.below(500) == 0 { random.draw() as i64 } else { draw(&mut random) };
                let there = plain.contains(&value);
                assert_eq!(Ints::of(&page).expect("integers").contains(value), there);
                if step / 2000 == 1 || random.below(4) == 0 {
                    assert_eq!(remove(&mut page, value), plain.remove(&value));
                } else if plain.len() == INTS_MAX && !there {
                    assert_eq!(insert(&mut page, value), Added::Full);
                } else {
                    let expected = if plain.insert(value) { Added::New } else { Added::AlreadyThere };
                    assert_eq!(insert(&mut page, value), expected);
                }
                if random.below(500) == 0 {
                    clones.push((page.clone(), plain.clone()));
                }
                if step % 100 == 0 {
                    check(&page, &plain);
                }
            }
            clones.push((page, plain));
            clones.iter().for_each(|(page, plain)| check(page, plain));
        }
    }

    #[test]
    fn each_width_holds_its_extremes() {
        let edges = [i64::MIN, -(1 << 31) - 1, -(1 << 31), -32_769, -32_768, 0, 32_767, 32_768, i64::MAX];
        let mut page = single(0);
        for (at, value) in edges.iter().enumerate() {
            let added = insert(&mut page, *value);
            assert_eq!(added, if *value == 0 { Added::AlreadyThere } else { Added::New }, "{at}");
        }
        assert!(Ints::of(&page).expect("integers").iter().eq(edges));
        for value in edges {
            let page = single(value);
            assert_eq!(Ints::of(&page).expect("integers").get(0), value);
        }
    }

    #[test]
    fn memory_is_that_of_the_integers() {
        let mut page = single(0);
        (1..512).for_each(|value| assert_eq!(insert(&mut page, value), Added::New));
        assert!(page.memory() <= 1280, "{} bytes for 512 integers of two", page.memory());
        (1..500).for_each(|value| assert!(remove(&mut page, value)));
        assert!(page.memory() <= 128, "{} bytes for 13 integers of two", page.memory());
    }
}
