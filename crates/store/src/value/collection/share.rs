//! Shares of long items: a reply keeps a share of an element while it is being sent, instead of a copy.
//!
//! An item that is too long for a page of several has a page of its own, and a page is reference-counted. So
//! a share is a further reference, and no thread writes to the bytes it reads. Short items could be shared as
//! well, but that would cost more than copying them, and would make writers to their page copy it.

use std::ops::{Deref, Range};

use super::page::Page;
use super::tree::Spot;

/// See the module's documentation. It reads as bytes that never change.
pub struct Share {
    page: Page,
    at: usize,
    /// The part of the item, which is at least as long.
    part: Range<usize>,
}

impl Share {
    /// `len` bytes of an item, before the last `behind` bytes. The item exists and is as long.
    pub(crate) fn of(spot: &Spot<'_>, len: usize, behind: usize) -> Share {
        let item = spot.page.get(spot.at).len();
        Share { page: spot.page.clone(), at: spot.at, part: item - behind - len..item - behind }
    }

    /// Without the first `bytes` bytes, which exist.
    pub fn skip(mut self, bytes: usize) -> Share {
        assert!(bytes <= self.part.len(), "no more is left out than there is");
        self.part.start += bytes;
        self
    }
}

impl Deref for Share {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.page.get(self.at)[self.part.clone()]
    }
}
