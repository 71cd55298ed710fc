//! Packed blocks: small collections that are one string of bytes, element after element.
//!
//! A cursor walks a block and yields where its elements lie, not the elements: the block is the decoder's to lend. Each
//! step checks what it passes (form, end, the length that leads back), and the last one checks the header's counts, so
//! that one walk is both the reading and the sanitising.

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
    /// `block` is the one in which it was found.
    #[inline]
    pub(crate) fn item(self, block: &[u8]) -> Item<'_> {
        match self {
            Element::Int(number) => Item::Int(number),
            Element::Bytes { start, end } => Item::Bytes(&block[start..end]),
        }
    }
}

/// What is wrong with a block, and where in it.
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

/// Stands before an element of a block, or at its end. The same block is given to each call.
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

    /// The next element; `None` at the end, where all that the header says has been found to hold.
    #[inline]
    pub(crate) fn next(&mut self, block: &[u8]) -> Result<Option<Element>, Flaw> {
        match self {
            Cursor::Listpack(cursor) => cursor.next(block),
            Cursor::Ziplist(cursor) => cursor.next(block),
            Cursor::Zipmap(cursor) => cursor.next(block),
            Cursor::Intset(cursor) => cursor.next(block),
        }
    }

    /// How many elements the header announces; the highest number of its kind where it does not know.
    pub(crate) fn announced(&self) -> u64 {
        match self {
            Cursor::Listpack(cursor) => cursor.announced(),
            Cursor::Ziplist(cursor) => cursor.announced(),
            Cursor::Zipmap(cursor) => cursor.announced(),
            Cursor::Intset(cursor) => cursor.announced(),
        }
    }
}

/// The `N` bytes from `at` on, where the block has them.
#[inline]
pub(crate) fn fixed<const N: usize>(block: &[u8], at: usize) -> Result<[u8; N], Flaw> {
    match block.get(at..).and_then(|rest| rest.first_chunk()) {
        Some(bytes) => Ok(*bytes),
        None => Err(Flaw::new(at, Reason::Truncated)),
    }
}

/// A string of `len` bytes from `start` on.
#[inline]
pub(crate) fn span(block: &[u8], start: usize, len: usize) -> Result<Element, Flaw> {
    match start.checked_add(len) {
        Some(end) if end <= block.len() => Ok(Element::Bytes { start, end }),
        _ => Err(Flaw::new(start, Reason::Truncated)),
    }
}

/// Three bytes, lowest first, as a signed number.
#[inline]
pub(crate) fn int24([a, b, c]: [u8; 3]) -> i64 {
    i64::from(i32::from_le_bytes([0, a, b, c]) >> 8)
}
