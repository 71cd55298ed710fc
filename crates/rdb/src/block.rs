//! Packed blocks: small collections as a single string of bytes, element after element.
//!
//! A cursor walks a block and yields positions of elements, not elements: only the decoder can lend the
//! block. Each step checks the bytes it passes (form, end, backward length), and the last step checks the
//! header's counts. So a single walk both reads and validates the block.

pub(crate) mod intset;
pub(crate) mod listpack;
pub(crate) mod ziplist;
pub(crate) mod zipmap;

use crate::error::Reason;
use crate::item::Item;

/// An element, as a place in its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Int(i64),
    /// `start <= end <= block.len()`
    Bytes {
        start: usize,
        end: usize,
    },
}

impl Element {
    /// `block` is the block of the element.
    #[inline]
    pub(crate) fn item(self, block: &[u8]) -> Item<'_> {
        match self {
            Element::Int(number) => Item::Int(number),
            Element::Bytes { start, end } => Item::Bytes(&block[start..end]),
        }
    }
}

/// A block's fault and its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub(crate) at: usize,
    pub(crate) reason: Reason,
}

impl Flaw {
    pub(crate) fn new(at: usize, reason: Reason) -> Flaw {
        Flaw { at, reason }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum BlockKind {
    Listpack,
    Ziplist,
    Zipmap,
    Intset,
}

/// Stands before an element of a block, or at its end. The caller passes the same block to each call.
#[derive(Clone, Debug)]
pub(crate) enum Cursor {
    Listpack(listpack::Cursor),
    Ziplist(ziplist::Cursor),
    Zipmap(zipmap::Cursor),
    Intset(intset::Cursor),
}

impl Cursor {
    pub(crate) fn open(kind: BlockKind, block: &[u8]) -> Result<Cursor, Flaw> {
        Ok(match kind {
            BlockKind::Listpack => Cursor::Listpack(listpack::Cursor::open(block)?),
            BlockKind::Ziplist => Cursor::Ziplist(ziplist::Cursor::open(block)?),
            BlockKind::Zipmap => Cursor::Zipmap(zipmap::Cursor::open(block)?),
            BlockKind::Intset => Cursor::Intset(intset::Cursor::open(block)?),
        })
    }

    /// Returns the next element; `None` at the end, after the header's fields have proved right.
    #[inline]
    pub(crate) fn next(&mut self, block: &[u8]) -> Result<Option<Element>, Flaw> {
        match self {
            Cursor::Listpack(cursor) => cursor.next(block),
            Cursor::Ziplist(cursor) => cursor.next(block),
            Cursor::Zipmap(cursor) => cursor.next(block),
            Cursor::Intset(cursor) => cursor.next(block),
        }
    }

    /// Number of elements in the header, or the highest number of its type if the header does not know.
    pub(crate) fn announced(&self) -> u64 {
        match self {
            Cursor::Listpack(cursor) => cursor.announced(),
            Cursor::Ziplist(cursor) => cursor.announced(),
            Cursor::Zipmap(cursor) => cursor.announced(),
            Cursor::Intset(cursor) => cursor.announced(),
        }
    }
}

/// Returns the `N` bytes from `at` on, if the block has them.
#[inline]
pub(crate) fn fixed<const N: usize>(block: &[u8], at: usize) -> Result<[u8; N], Flaw> {
    match block.get(at..).and_then(|rest| rest.first_chunk()) {
        Some(bytes) => Ok(*bytes),
        None => Err(Flaw::new(at, Reason::Truncated)),
    }
}

/// Returns the string of `len` bytes from `start` on.
#[inline]
pub(crate) fn span(block: &[u8], start: usize, len: usize) -> Result<Element, Flaw> {
    match start.checked_add(len) {
        Some(end) if end <= block.len() => Ok(Element::Bytes { start, end }),
        _ => Err(Flaw::new(start, Reason::Truncated)),
    }
}

/// Three bytes, little-endian, as a signed number.
#[inline]
pub(crate) fn int24([a, b, c]: [u8; 3]) -> i64 {
    i64::from(i32::from_le_bytes([0, a, b, c]) >> 8)
}
