//! Hashes: fields with values, by the hash of the field.
//!
//! An item is the field's length (shifted by one: the lowest bit is zero), the field, and the value.

use super::Cut;
use super::hashed::{self, ByHash};
use super::root::{Root, ViewMut};
use super::tree::Tree;
use super::varint::{self, Varint};
use crate::Hasher;

/// See the module's text. A field and its value are at most [`super::ITEM_MAX`] bytes together, less ten.
#[repr(transparent)]
#[derive(Clone)]
pub struct Hash(pub(super) Root);

/// An item's field and value.
#[inline]
fn split(item: &[u8]) -> (&[u8], &[u8]) {
    let (head, rest) = varint::read(item);
    rest.split_at((head >> 1) as usize)
}

#[inline]
fn has_field(item: &[u8], field: &[u8]) -> bool {
    let (head, rest) = varint::read(item);
    head >> 1 == field.len() as u64 && rest.starts_with(field)
}

impl Hash {
    fn fields(&self) -> &Tree {
        self.0.main()
    }

    fn fields_mut(&mut self) -> &mut Tree {
        match self.0.view_mut() {
            ViewMut::One(tree) => tree,
            ViewMut::Two(twin) => &mut twin.main,
        }
    }

    #[expect(clippy::len_without_is_empty, reason = "`Collection` has it")]
    pub fn len(&self) -> u64 {
        self.fields().len()
    }

    /// The value of a field.
    pub fn get(&self, hasher: &Hasher, field: &[u8]) -> Option<&[u8]> {
        let mut seek = ByHash { hash: hasher.hash(field), is: |item: &[u8]| has_field(item, field) };
        self.fields().find(&mut seek).item().map(|item| split(item).1)
    }

    /// Sets a field; whether it is new.
    pub fn set(&mut self, hasher: &Hasher, field: &[u8], value: &[u8]) -> bool {
        let hash = hasher.hash(field);
        let hash_of = |item: &[u8]| hasher.hash(split(item).0);
        let head = Varint::new((field.len() as u64) << 1);
        let parts = [head.as_bytes(), field, value];
        let mut seek = ByHash { hash, is: |item: &[u8]| has_field(item, field) };
        self.fields_mut().change(&mut seek, |page, at, found| {
            if found {
                (false, hashed::replace(page, at, &parts, hash, hash_of))
            } else {
                (true, hashed::insert(page, &parts, hash, hash_of))
            }
        })
    }

    /// Removes a field; `false` when it is not there.
    pub fn remove(&mut self, hasher: &Hasher, field: &[u8]) -> bool {
        let mut seek = ByHash { hash: hasher.hash(field), is: |item: &[u8]| has_field(item, field) };
        self.fields_mut().change(&mut seek, |page, at, found| {
            if found {
                page.remove(at, at + 1);
            }
            (found, Vec::new())
        })
    }

    /// The field and value at a position: fields have no order that means anything, but each has one position, so that
    /// one chosen at random is a fair choice.
    pub fn at(&self, at: u64) -> Option<(&[u8], &[u8])> {
        self.fields().get(at).map(split)
    }

    /// All fields and values: in the order in which they came while the hash is small.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.fields().iter().map(split)
    }

    /// Calls `each` with about `count` fields and values from `cursor` on; returns the next cursor, zero at the end.
    pub fn scan<'a>(
        &'a self,
        hasher: &Hasher,
        cursor: u64,
        count: usize,
        mut each: impl FnMut(&'a [u8], &'a [u8]),
    ) -> u64 {
        hashed::scan(
            self.fields(),
            cursor,
            count,
            |item| hasher.hash(split(item).0),
            |item| {
                let (field, value) = split(item);
                each(field, value);
            },
        )
    }

    /// Removes the fields at positions in the range, which lies inside.
    pub fn remove_range(&mut self, range: std::ops::Range<u64>) -> Cut {
        Cut(self.fields_mut().remove_range(range))
    }

    pub fn memory(&self) -> usize {
        self.0.memory()
    }

    pub(crate) fn weight(&self) -> usize {
        self.0.weight()
    }

    /// Whether both are one, and so nothing was written to either since one was cloned from the other.
    pub fn is_same(&self, other: &Hash) -> bool {
        self.0.is_same(&other.0)
    }
}
