//! Entries as bytes: the items of a stream's pages, which refer to the heads of their pages.
//!
//! ```text
//! head:  base id | names | (length, name) ...
//! item:  flags | [milliseconds after base] | [seq] | (length, value) ...
//!        flags | [milliseconds after base] | [seq] | fields | (length, name, length, value) ...
//! ```
//!
//! The head has the id and the names of the first entry of the page. An entry with the same names, as in most
//! streams, does not repeat them: two fields with values of 16 bytes take 40 bytes of a page. A head never
//! changes, so an entry stays valid whatever happens to its neighbours.

use super::super::page::{PAGE_MAX, Page, Space};
use super::super::varint::{self, Varint};
use super::id::{Packed, StreamId, unpack};

/// The entry has names of its own.
const NAMED: u8 = 1;
/// The entry is of a later millisecond than the head's id. Then its `seq` counts from zero, otherwise from
/// the head's.
const LATER: u8 = 2;
/// The stored `seq` is not zero.
const SEQ: u8 = 4;

/// Names of more bytes than this, including their lengths, are not shared, so that a head leaves room for
/// items.
pub const NAMES_MAX: usize = PAGE_MAX / 4;

/// The head of a page, which its items refer to.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    base: StreamId,
    names: u64,
    text: &'a [u8],
}

impl<'a> Head<'a> {
    #[inline]
    pub(super) fn of(page: &'a Page) -> Head<'a> {
        Head::parse(page.head())
    }

    #[inline]
    fn parse(head: &'a [u8]) -> Head<'a> {
        let (base, rest) = unpack(head);
        let (names, text) = varint::read(rest);
        Head { base, names, text }
    }

    /// The bytes of the head of a page whose first entry is this; `fields` are names and values in turn.
    fn bytes_for<'f>(id: StreamId, fields: impl ExactSizeIterator<Item = &'f [u8]> + Clone) -> Vec<u8> {
        let names = fields.clone().step_by(2);
        let text: usize = names.clone().map(text_len).sum();
        let mut head = Packed::new(id).as_bytes().to_vec();
        if text > NAMES_MAX {
            head.push(0);
            return head;
        }
        head.reserve(varint::LEN_MAX + text);
        head.extend_from_slice(Varint::new(names.len() as u64).as_bytes());
        for name in names {
            head.extend_from_slice(Varint::new(name.len() as u64).as_bytes());
            head.extend_from_slice(name);
        }
        head
    }

    #[inline]
    fn has_names<'f>(&self, mut names: impl ExactSizeIterator<Item = &'f [u8]>) -> bool {
        let mut text = self.text;
        names.len() as u64 == self.names && names.all(|name| take_text(&mut text) == name)
    }

    /// The id of an item of the page, and the rest of the item.
    #[inline]
    fn read_id(&self, item: &'a [u8]) -> (StreamId, u8, &'a [u8]) {
        let (flags, mut rest) = (item[0], &item[1..]);
        let mut id = self.base;
        if flags & LATER != 0 {
            let (ms, after) = varint::read(rest);
            (id, rest) = (StreamId { ms: id.ms + ms, seq: 0 }, after);
        }
        if flags & SEQ != 0 {
            let (seq, after) = varint::read(rest);
            (id.seq, rest) = (id.seq + seq, after);
        }
        (id, flags, rest)
    }

    #[inline]
    pub(super) fn id_of(&self, item: &'a [u8]) -> StreamId {
        self.read_id(item).0
    }

    #[inline]
    pub(super) fn read(&self, item: &'a [u8]) -> Entry<'a> {
        let (id, flags, mut rest) = self.read_id(item);
        let (names, left) = if flags & NAMED == 0 {
            (Some(self.text), self.names)
        } else {
            let (fields, after) = varint::read(rest);
            rest = after;
            (None, fields)
        };
        Entry { id, fields: Fields { left: left as usize, names, rest } }
    }
}

/// An entry of a stream.
#[derive(Clone)]
pub struct Entry<'a> {
    pub id: StreamId,
    fields: Fields<'a>,
}

impl<'a> Entry<'a> {
    /// Names and values, in the order in which they were given.
    pub fn fields(&self) -> Fields<'a> {
        self.fields.clone()
    }
}

/// Names and values of an entry.
#[derive(Clone)]
pub struct Fields<'a> {
    left: usize,
    /// The shared names; `None` if each name stands before its value.
    names: Option<&'a [u8]>,
    rest: &'a [u8],
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a [u8], &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let name = take_text(self.names.as_mut().unwrap_or(&mut self.rest));
        Some((name, take_text(&mut self.rest)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Fields<'_> {}

/// Reads a text with its length before it; `bytes` continue after it.
#[inline]
fn take_text<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let (len, rest) = varint::read(bytes);
    let (text, rest) = rest.split_at(len as usize);
    *bytes = rest;
    text
}

#[inline]
fn text_len(text: &[u8]) -> usize {
    Varint::len_of(text.len() as u64) + text.len()
}

/// An entry to be written to a page whose head is known.
pub(super) struct EntryEncoder<F> {
    flags: u8,
    ms: u64,
    seq: u64,
    fields: F,
    /// Bytes of the item.
    pub(super) len: usize,
}

impl<'f, F: ExactSizeIterator<Item = &'f [u8]> + Clone> EntryEncoder<F> {
    /// `fields` are names and values in turn. The id is not less than the head's.
    #[inline]
    pub(super) fn new(head: &Head<'_>, id: StreamId, fields: F) -> EntryEncoder<F> {
        let ms = id.ms - head.base.ms;
        let seq = if ms == 0 { id.seq - head.base.seq } else { id.seq };
        let (mut flags, mut len) = (0, 1);
        if ms > 0 {
            flags |= LATER;
            len += Varint::len_of(ms);
        }
        if seq > 0 {
            flags |= SEQ;
            len += Varint::len_of(seq);
        }
        if head.has_names(fields.clone().step_by(2)) {
            len += fields.clone().skip(1).step_by(2).map(text_len).sum::<usize>();
        } else {
            flags |= NAMED;
            len += Varint::len_of(fields.len() as u64 / 2) + fields.clone().map(text_len).sum::<usize>();
        }
        EntryEncoder { flags, ms, seq, fields, len }
    }

    #[inline]
    pub(super) fn write(self, space: &mut Space<'_>) {
        space.put(&[self.flags]);
        if self.flags & LATER != 0 {
            space.put(Varint::new(self.ms).as_bytes());
        }
        if self.flags & SEQ != 0 {
            space.put(Varint::new(self.seq).as_bytes());
        }
        if self.flags & NAMED == 0 {
            return self.fields.skip(1).step_by(2).for_each(|value| put_text(space, value));
        }
        space.put(Varint::new(self.fields.len() as u64 / 2).as_bytes());
        self.fields.for_each(|text| put_text(space, text));
    }
}

#[inline]
fn put_text(space: &mut Space<'_>, text: &[u8]) {
    space.put(Varint::new(text.len() as u64).as_bytes());
    space.put(text);
}

/// A page with this as its first entry, and room for `items` items of `bytes` bytes in all, if that is more.
pub(super) fn first_page<'f>(
    id: StreamId,
    fields: impl ExactSizeIterator<Item = &'f [u8]> + Clone,
    items: usize,
    bytes: usize,
) -> Page {
    let head = Head::bytes_for(id, fields.clone());
    let buffer = EntryEncoder::new(&Head::parse(&head), id, fields);
    let room = buffer.len.max(bytes.saturating_sub(head.len()));
    let mut page = Page::with_head(&head, items.max(1), room);
    page.insert_by(0, buffer.len, 0, |space| buffer.write(space));
    page
}
