//! A block in the source or in the decompressed copy, and a cursor in it.

use super::{Blob, ItemPlace};
use crate::block::{BlockKind, Cursor, Element, Flaw};
use crate::error::{Error, Reason, Result};

#[derive(Debug)]
pub(super) struct Packed {
    pub(super) blob: Blob,
    /// Offset of the block's string in the source.
    pub(super) at: u64,
    cursor: Cursor,
}

impl Packed {
    pub(super) fn open(kind: BlockKind, blob: Blob, at: u64, block: &[u8]) -> Result<Packed> {
        let cursor = Cursor::open(kind, block).map_err(|flaw| located(at, flaw))?;
        Ok(Packed { blob, at, cursor })
    }

    /// `block` is the block at `self.blob`.
    #[inline]
    pub(super) fn next(&mut self, block: &[u8]) -> Result<Option<Element>> {
        self.cursor.next(block).map_err(|flaw| located(self.at, flaw))
    }

    /// Returns the partner of the previous element; an error if it is missing.
    #[inline]
    pub(super) fn counterpart(&mut self, block: &[u8]) -> Result<Element> {
        self.next(block)?.ok_or(Error::new(self.at, Reason::Unpaired))
    }

    #[inline]
    pub(super) fn place(&self, element: Element) -> ItemPlace {
        match element {
            Element::Int(number) => ItemPlace::Int(number),
            Element::Bytes { start, end } => ItemPlace::Part(self.blob, start, end),
        }
    }

    /// Number of elements, as far as the block names and can hold them; `block` as with `next`.
    pub(super) fn expected(&self, block: &[u8]) -> usize {
        usize::try_from(self.cursor.announced()).unwrap_or(usize::MAX).min(block.len() / 2)
    }
}

pub(super) fn located(at: u64, flaw: Flaw) -> Error {
    Error { at, inside: Some(flaw.at), reason: flaw.reason }
}
