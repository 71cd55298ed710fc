//! Hashes: fields with values, by the hash of the field, and fields that expire.
//!
//! ```text
//! | field's length * 2 + T | deadline | field | value |        one item, found by the hash of its field
//!         varint             8, if T
//!
//! main: items by hash         side: | deadline | hash | ..     in order, 16 bytes per timed field
//! ```
//!
//! A hash without deadlines is a single tree. With the first deadline it becomes two trees, and after the
//! last it is a single tree again. The number of expired fields is the rank of the present among the
//! deadlines, and the due fields are the first: both take a walk down a tree, however many fields there are.
//! So an expired field is invisible at once, in HLEN too, and is removed later. Fields that expire together
//! are removed in the order of their hashes, page by page.
//!
//! A long item has room for a deadline in advance, so that setting a deadline never copies it.

mod timed;

use super::Cut;
use super::hashed::{self, ByHash};
use super::root::{Root, Twin, View, ViewMut};
use super::share::Share;
use super::tree::Tree;
use super::varint::{self, Varint};
use crate::value::Expire;
use crate::{Hasher, Millis};

/// See the module's documentation. A field and its value are at most [`super::ELEMENT_MAX`] bytes together.
#[repr(transparent)]
#[derive(Clone)]
pub struct Hash(pub(super) Root);

/// Length, in bytes, from which an item always has room for a deadline.
const LONG: usize = 1024;

/// Stands for no deadline. Deadlines are less.
const NEVER: Millis = Millis::MAX;

/// A stored field, expired or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    pub name: &'a [u8],
    pub value: &'a [u8],
    /// The deadline of the field, if any.
    pub deadline: Option<Millis>,
}

impl<'a> Field<'a> {
    #[inline]
    fn of(item: &'a [u8]) -> Field<'a> {
        let (deadline, len, rest) = open(item);
        let (name, value) = rest.split_at(len);
        Field { name, value, deadline }
    }

    #[inline]
    pub fn is_live(&self, now: Millis) -> bool {
        self.deadline.is_none_or(|deadline| deadline > now)
    }
}

/// An item's deadline, the length of its field, and the field followed by the value.
#[inline]
fn open(item: &[u8]) -> (Option<Millis>, usize, &[u8]) {
    let (head, rest) = varint::read(item);
    let len = (head >> 1) as usize;
    if head & 1 == 0 {
        return (None, len, rest);
    }
    let (deadline, rest) = rest.split_first_chunk().expect("the head says that a deadline follows");
    let deadline = Millis::from_le_bytes(*deadline);
    ((deadline != NEVER).then_some(deadline), len, rest)
}

#[inline]
fn name_of(item: &[u8]) -> &[u8] {
    let (_, len, rest) = open(item);
    &rest[..len]
}

#[inline]
fn has_name(item: &[u8], name: &[u8]) -> bool {
    let (_, len, rest) = open(item);
    len == name.len() && rest.starts_with(name)
}

/// The bytes before the field in an item.
struct Head {
    bytes: [u8; 13],
    len: usize,
}

impl Head {
    fn new(name: &[u8], value: &[u8], deadline: Option<Millis>) -> Head {
        assert!(deadline != Some(NEVER), "a deadline is less than that");
        let has_room = deadline.is_some() || name.len() + value.len() >= LONG;
        let varint = Varint::new((name.len() as u64) << 1 | u64::from(has_room));
        let (varint, mut bytes) = (varint.as_bytes(), [0; 13]);
        let mut len = varint.len();
        bytes[..len].copy_from_slice(varint);
        if has_room {
            bytes[len..len + 8].copy_from_slice(&deadline.unwrap_or(NEVER).to_le_bytes());
            len += 8;
        }
        Head { bytes, len }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Hash {
    fn fields_mut(&mut self) -> &mut Tree {
        match self.0.view_mut() {
            ViewMut::One(tree) => tree,
            ViewMut::Two(twin) => &mut twin.main,
        }
    }

    /// Number of fields that have not expired.
    pub fn len(&self, now: Millis) -> u64 {
        self.size() - self.expired(now)
    }

    /// Number of fields, including expired fields not yet removed.
    pub fn size(&self) -> u64 {
        self.0.len()
    }

    /// Number of fields that have expired and are not removed yet.
    pub fn expired(&self, now: Millis) -> u64 {
        match self.0.view() {
            View::One(_) => 0,
            View::Two(twin) => timed::due(&twin.side, now),
        }
    }

    /// Number of fields with a deadline.
    pub fn timed_len(&self) -> u64 {
        match self.0.view() {
            View::One(_) => 0,
            View::Two(twin) => twin.side.len(),
        }
    }

    /// The earliest deadline of a field.
    pub fn earliest(&self) -> Option<Millis> {
        match self.0.view() {
            View::One(_) => None,
            View::Two(twin) => timed::first(&twin.side),
        }
    }

    /// A field that has not expired.
    #[inline]
    pub fn field(&self, hasher: &Hasher, now: Millis, name: &[u8]) -> Option<Field<'_>> {
        let mut seek = ByHash::new(hasher.hash(name), |item: &[u8]| has_name(item, name));
        self.0.main().find(&mut seek).item().map(Field::of).filter(|field| field.is_live(now))
    }

    /// Prefetches the memory that looking up these fields will read, and returns the number found; see
    /// [`crate::guard::ahead`].
    pub(crate) fn prefetch(&self, hasher: &Hasher, names: &[&[u8]]) -> usize {
        self.0.main().prefetch_hashed(names.iter().map(|name| hasher.hash(name)))
    }

    /// The value of a field.
    #[inline]
    pub fn get(&self, hasher: &Hasher, now: Millis, name: &[u8]) -> Option<&[u8]> {
        self.field(hasher, now, name).map(|field| field.value)
    }

    /// A share of the value of a field. Panics if the field does not exist.
    pub fn share(&self, hasher: &Hasher, name: &[u8]) -> Share {
        let mut seek = ByHash::new(hasher.hash(name), |item: &[u8]| has_name(item, name));
        let spot = self.0.main().find(&mut seek);
        assert!(spot.found, "the caller has seen the field");
        Share::of(&spot, Field::of(spot.page.get(spot.at)).value.len(), 0)
    }

    /// Shares of the name and the value of the field at a position. Panics if there is none.
    pub fn shares_at(&self, at: u64) -> (Share, Share) {
        let spot = self.0.main().spot(at);
        let field = Field::of(spot.page.get(spot.at));
        let value = field.value.len();
        (Share::of(&spot, field.name.len(), value), Share::of(&spot, value, 0))
    }

    /// Sets a field; returns true if it is new. An expired field counts as missing.
    pub fn set(&mut self, hasher: &Hasher, now: Millis, name: &[u8], value: &[u8], expire: Expire) -> bool {
        let hash = hasher.hash(name);
        let hash_of = |item: &[u8]| hasher.hash(name_of(item));
        let mut seek = ByHash::new(hash, |item: &[u8]| has_name(item, name));
        let (is_new, before, after) = self.fields_mut().change(&mut seek, |page, at, found| {
            let old = found.then(|| Field::of(page.get(at)));
            let (before, is_live) = old.map_or((None, false), |old| (old.deadline, old.is_live(now)));
            let after = match expire {
                Expire::Keep if is_live => before,
                Expire::Keep | Expire::Clear => None,
                Expire::At(deadline) => Some(deadline),
            };
            let head = Head::new(name, value, after);
            let parts = [head.as_bytes(), name, value];
            let siblings = if found {
                hashed::replace(page, at, &parts, hash, hash_of)
            } else {
                hashed::insert(page, &parts, hash, hash_of)
            };
            ((!is_live, before, after), siblings)
        });
        self.on_deadline(hash, before, after);
        is_new
    }

    /// Sets or clears the deadline of a field; returns false if there is no such field, or it has expired.
    pub fn set_deadline(
        &mut self,
        hasher: &Hasher,
        now: Millis,
        name: &[u8],
        deadline: Option<Millis>,
    ) -> bool {
        let hash = hasher.hash(name);
        let hash_of = |item: &[u8]| hasher.hash(name_of(item));
        let mut seek = ByHash::new(hash, |item: &[u8]| has_name(item, name));
        let before = self.fields_mut().change(&mut seek, |page, at, found| {
            let Some(field) = found.then(|| Field::of(page.get(at))).filter(|field| field.is_live(now))
            else {
                return (None, Vec::new());
            };
            let (before, head) = (field.deadline, Head::new(name, field.value, deadline));
            let old_head = page.get(at).len() - name.len() - field.value.len();
            if head.len == old_head {
                page.patch(at, 0, head.as_bytes());
                return (Some(before), Vec::new());
            }
            // The item is not long, or it would have room for the deadline.
            let value = field.value.to_vec();
            let parts = [head.as_bytes(), name, &value];
            (Some(before), hashed::replace(page, at, &parts, hash, hash_of))
        });
        if let Some(before) = before {
            self.on_deadline(hash, before, deadline);
        }
        before.is_some()
    }

    /// Removes a field; returns false if there is no such field, or it has expired. An expired field stays.
    pub fn remove(&mut self, hasher: &Hasher, now: Millis, name: &[u8]) -> bool {
        let hash = hasher.hash(name);
        let mut seek = ByHash::new(hash, |item: &[u8]| has_name(item, name));
        let (was_live, before) = self.fields_mut().change(&mut seek, |page, at, found| {
            if !found {
                return ((false, None), Vec::new());
            }
            let field = Field::of(page.get(at));
            let (is_live, deadline) = (field.is_live(now), field.deadline);
            if is_live {
                page.remove(at, at + 1);
            }
            ((is_live, deadline.filter(|_| is_live)), Vec::new())
        });
        self.on_deadline(hash, before, None);
        was_live
    }

    /// Records that the deadline of a field with this hash has changed.
    #[inline]
    fn on_deadline(&mut self, hash: u64, before: Option<Millis>, after: Option<Millis>) {
        if before != after {
            self.move_deadline(hash, before, after);
        }
    }

    fn move_deadline(&mut self, hash: u64, before: Option<Millis>, after: Option<Millis>) {
        if let ViewMut::One(tree) = self.0.view_mut() {
            let main = std::mem::replace(tree, Tree::new());
            self.0 = Twin { main, side: Tree::new() }.into();
        }
        let ViewMut::Two(twin) = self.0.view_mut() else { unreachable!("it was made one") };
        if let Some(before) = before {
            timed::remove(&mut twin.side, before, hash);
        }
        if let Some(after) = after {
            timed::insert(&mut twin.side, after, hash);
        }
        self.settle();
    }

    /// Returns to a single tree when no deadline is left.
    fn settle(&mut self) {
        if let ViewMut::Two(twin) = self.0.view_mut()
            && twin.side.len() == 0
        {
            self.0 = std::mem::replace(&mut twin.main, Tree::new()).into();
        }
    }

    /// Removes up to `max` expired fields, and calls `gone` with the name of each before; returns their
    /// number.
    pub fn purge(
        &mut self,
        hasher: &Hasher,
        now: Millis,
        max: usize,
        mut gone: impl FnMut(&[u8]),
    ) -> (usize, Cut) {
        let ViewMut::Two(twin) = self.0.view_mut() else { return (0, Cut::default()) };
        let count = timed::due(&twin.side, now).min(max as u64);
        for (deadline, hash) in timed::from(&twin.side, count) {
            let is = |item: &[u8]| {
                let (other, len, rest) = open(item);
                other == Some(deadline) && hasher.hash(&rest[..len]) == hash
            };
            twin.main.change(&mut ByHash::new(hash, is), |page, at, found| {
                debug_assert!(found, "each deadline has its field");
                if found {
                    gone(name_of(page.get(at)));
                    page.remove(at, at + 1);
                }
                ((), Vec::new())
            });
        }
        let cut = Cut(twin.side.remove_range(0..count));
        self.settle();
        (count as usize, cut)
    }

    /// The field at a position below the number of all fields, including expired fields. The order is
    /// meaningless, but each field has exactly one position, so a random position is a fair choice.
    pub fn at(&self, at: u64) -> Option<Field<'_>> {
        self.0.main().get(at).map(Field::of)
    }

    /// All fields, including expired fields; in the order of insertion while the hash is small.
    pub fn fields(&self) -> impl ExactSizeIterator<Item = Field<'_>> {
        self.fields_from(0)
    }

    /// The fields from this position on, including expired fields.
    pub fn fields_from(&self, at: u64) -> impl ExactSizeIterator<Item = Field<'_>> {
        self.0.main().range(at..self.size()).map(Field::of)
    }

    /// The fields that have not expired, with their values.
    pub fn iter(&self, now: Millis) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields().filter(move |field| field.is_live(now)).map(|field| (field.name, field.value))
    }

    /// Calls `each` with about `count` fields and values from `cursor` on; returns the next cursor, zero at
    /// the end.
    pub fn scan<'a>(
        &'a self,
        hasher: &Hasher,
        now: Millis,
        cursor: u64,
        count: usize,
        mut each: impl FnMut(&'a [u8], &'a [u8]),
    ) -> u64 {
        hashed::scan(
            self.0.main(),
            cursor,
            count,
            |item| hasher.hash(name_of(item)),
            |item| {
                let field = Field::of(item);
                if field.is_live(now) {
                    each(field.name, field.value);
                }
            },
        )
    }

    /// Bytes of memory, counted up to `max`, which bounds the time.
    pub fn memory_up_to(&self, max: usize) -> usize {
        self.0.memory_up_to(max)
    }

    pub fn memory(&self) -> usize {
        self.0.memory()
    }

    pub(crate) fn weight(&self) -> usize {
        self.0.weight()
    }

    /// Returns true if both share the whole value, so neither was written to since it was cloned.
    pub fn is_same(&self, other: &Hash) -> bool {
        self.0.is_same(&other.0)
    }
}
