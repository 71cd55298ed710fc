//! Shares of long items: what a reply keeps of an element while it is being sent, in place of a copy.
//!
//! An item that is too long for a page of several has one of its own, and a page is reference-counted. So a share of it is
//! one reference more, and nobody writes to what it reads. Short items could be shared as well, but that would cost more
//! than copying them, and make whoever writes to their page copy it.

use std::ops::{Deref, Range};

use super::page::Page;
use super::tree::Spot;

/// See the module's text. It reads as bytes, for ever the same.
pub struct Share {
    page: Page,
    at: usize,
    /// What of the item, which is as long at least.
    part: Range<usize>,
}

impl Share {
    /// The last `len` bytes of an item but for the `behind` at its end. The item is there, and as long.
    pub(crate) fn of(spot: &Spot<'_>, len: usize, behind: usize) -> Share {
        let item = spot.page.get(spot.at).len();
        Share { page: spot.page.clone(), at: spot.at, part: item - behind - len..item - behind }
    }

    /// Without the first `bytes`, which are there.
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
