//! Memory that requests are read into, and that is lent to the journal.
//!
//! A pipeline's commands are mostly recorded as they arrived. Copying them costs the serving thread more than
//! all other work for the journal: another core has last read the destination of the copy. So the journal
//! keeps the received bytes in place, and the worker reads into other memory until the readers of the journal
//! have released them.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use evenkeel_store::journal::{KEPT_PART, LentRegion, RequestBytes, SMALL_LEN_MAX};

/// Bytes of a read from a connection: enough for a pipeline of 100 requests of 500 bytes.
const READ_LEN: usize = 64 * 1024;

/// The same for a connection with little data in its last read, if the region may be lent.
const LESS_LEN: usize = 16 * 1024;

/// Most bytes that a worker lends. If the journal's readers are that far behind, further requests are copied.
const LENT_LEN_MAX: usize = 8 << 20;

/// Returned regions that are kept in any case, in bytes, to be lent again soon.
const KEPT_LEN: usize = 2 << 20;

enum Region {
    Own(Box<[u8]>),
    Lent(LentRegion),
}

impl Region {
    fn new(len: usize) -> Region {
        Region::Own(vec![0; len].into())
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Region::Own(bytes) => bytes,
            Region::Lent(bytes) => bytes,
        }
    }

    /// Returns the bytes for writing. If the journal still holds them, it keeps the old content.
    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Region::Own(bytes) => bytes,
            Region::Lent(bytes) => {
                let bytes: &mut Box<[u8]> = Arc::make_mut(bytes);
                bytes
            }
        }
    }

    #[inline]
    fn lend(&mut self) -> &LentRegion {
        if let Region::Own(bytes) = self {
            *self = Region::Lent(Arc::new(mem::take(bytes)));
        }
        let Region::Lent(bytes) = self else { unreachable!("it has just been made so") };
        bytes
    }
}

/// Identifies a region: its length and its index among regions of that length.
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    index: usize,
    is_small: bool,
}

impl Spot {
    /// Selects a region for a connection whose last read had `last` bytes. `may_lend`: the journal may keep
    /// the region.
    #[inline]
    pub fn new(index: usize, last: usize, may_lend: bool) -> Spot {
        Spot { index, is_small: may_lend && last < LESS_LEN }
    }
}

/// A worker's regions.
#[derive(Default)]
pub struct Regions {
    large: Shelf,
    small: Shelf,
    /// Bytes of lent regions.
    lent_len: usize,
}

/// Regions of the same length.
#[derive(Default)]
struct Shelf {
    own: Vec<Region>,
    /// Lent regions, the latest at the end.
    lent: VecDeque<LentRegion>,
}

impl Regions {
    /// Creates `count` regions of each length. They exist from the beginning, so that they do not count as
    /// data later.
    pub fn new(count: usize) -> Regions {
        let mut regions = Regions::default();
        for is_small in [false, true] {
            let (shelf, len) = regions.shelf(Spot { index: 0, is_small });
            shelf.own.extend((0..count).map(|_| Region::new(len)));
        }
        regions
    }

    /// Returns the bytes that are lent, or were lent and are kept to be lent again.
    #[inline]
    pub fn lent_len(&self) -> usize {
        self.lent_len
    }

    #[inline]
    fn shelf(&mut self, spot: Spot) -> (&mut Shelf, usize) {
        if spot.is_small { (&mut self.small, LESS_LEN) } else { (&mut self.large, READ_LEN) }
    }

    /// Returns a region for reading into it.
    #[inline]
    pub fn bytes_mut(&mut self, spot: Spot) -> &mut [u8] {
        let (shelf, _) = self.shelf(spot);
        shelf.own[spot.index].bytes_mut()
    }

    /// Takes a region with `len` received bytes; the caller puts it back. `may_lend`: the journal may keep
    /// it.
    #[inline]
    pub fn take(&mut self, spot: Spot, len: usize, may_lend: bool) -> Arrived {
        if self.lent_len >= LENT_LEN_MAX {
            self.trim();
        }
        let has_room = self.lent_len < LENT_LEN_MAX;
        let (shelf, room) = self.shelf(spot);
        let region = mem::replace(&mut shelf.own[spot.index], Region::Own(Box::default()));
        let may_lend = may_lend && has_room && len > SMALL_LEN_MAX && len * KEPT_PART >= room;
        Arrived { region, len, may_lend }
    }

    pub fn put_back(&mut self, spot: Spot, arrived: Arrived) {
        let mut lent_len = self.lent_len;
        let (shelf, len) = self.shelf(spot);
        shelf.own[spot.index] = match arrived.region {
            Region::Own(bytes) => Region::Own(bytes),
            Region::Lent(bytes) => match Arc::try_unwrap(bytes) {
                Ok(bytes) => Region::Own(bytes),
                Err(bytes) => {
                    shelf.lent.push_back(bytes);
                    lent_len += len;
                    match shelf.returned() {
                        Some(bytes) => {
                            lent_len -= len;
                            Region::Own(bytes)
                        }
                        None => Region::new(len),
                    }
                }
            },
        };
        if lent_len > KEPT_LEN && shelf.returned().is_some() {
            lent_len -= len;
        }
        self.lent_len = lent_len;
    }

    /// Frees the regions that the journal has released.
    pub fn trim(&mut self) {
        for shelf in [&mut self.large, &mut self.small] {
            while let Some(bytes) = shelf.returned() {
                self.lent_len -= bytes.len();
            }
        }
    }
}

impl Shelf {
    /// Returns the region that was lent first, if the journal has released it.
    fn returned(&mut self) -> Option<Box<[u8]>> {
        Arc::get_mut(self.lent.front_mut()?)?;
        self.lent.pop_front().and_then(Arc::into_inner)
    }
}

/// The bytes of a batch of requests.
pub trait Source {
    fn bytes(&self) -> &[u8];

    fn bytes_mut(&mut self) -> &mut [u8];

    /// Returns the bytes for running the requests in them. With `lend`, and if their memory may be lent, the
    /// journal may keep them: nothing should be written to them later, since that would copy them.
    fn request_bytes(&mut self, lend: bool) -> RequestBytes<'_>;
}

/// Bytes of a single read.
pub struct Arrived {
    region: Region,
    len: usize,
    may_lend: bool,
}

impl Source for Arrived {
    #[inline]
    fn bytes(&self) -> &[u8] {
        &self.region.bytes()[..self.len]
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.region.bytes_mut()[..self.len]
    }

    #[inline]
    fn request_bytes(&mut self, lend: bool) -> RequestBytes<'_> {
        if lend && self.may_lend {
            return RequestBytes::lent(self.region.lend(), self.len);
        }
        RequestBytes::unlent(self.bytes())
    }
}

/// Bytes that a connection has kept in its own buffer.
impl Source for Vec<u8> {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }

    #[inline]
    fn request_bytes(&mut self, _lend: bool) -> RequestBytes<'_> {
        RequestBytes::unlent(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPOT: Spot = Spot { index: 0, is_small: true };
    const LEN: usize = SMALL_LEN_MAX + 1;

    /// Lends a region, as the journal keeps it.
    fn lend(arrived: &mut Arrived) -> Option<LentRegion> {
        arrived.may_lend.then(|| arrived.region.lend().clone())
    }

    fn take(regions: &mut Regions) -> Arrived {
        regions.take(SPOT, LEN, true)
    }

    #[test]
    fn lent_memory_is_not_reused_until_returned() {
        let mut regions = Regions::new(1);
        let mut arrived = take(&mut regions);
        arrived.bytes_mut()[..2].copy_from_slice(b"ab");
        let lent = lend(&mut arrived).expect("it may be");
        assert_eq!(&lent[..LEN], arrived.bytes());
        arrived.bytes_mut()[0] = b'x';
        assert_eq!(
            (&lent[..2], &arrived.bytes()[..2]),
            (&b"ab"[..], &b"xb"[..]),
            "who has it keeps what was there"
        );
        let again = lend(&mut arrived).expect("it may be");
        regions.put_back(SPOT, arrived);
        regions.bytes_mut(SPOT)[0] = b'y';
        assert_eq!(&again[..2], b"xb");
        let address = again.as_ptr();
        drop(again);
        // The returned region replaces the next region that is lent.
        let mut arrived = take(&mut regions);
        let lent = lend(&mut arrived);
        regions.put_back(SPOT, arrived);
        assert_eq!(regions.bytes_mut(SPOT).as_ptr(), address);
        assert_eq!(regions.lent_len, LESS_LEN);
        drop(lent);
        regions.trim();
        assert_eq!((regions.small.lent.len(), regions.lent_len), (0, 0));
    }

    #[test]
    fn lending_is_bounded_and_skips_mostly_empty_buffers() {
        let mut regions = Regions::new(1);
        let mut lent = Vec::new();
        for _ in 0..2 * LENT_LEN_MAX / LESS_LEN {
            let mut arrived = take(&mut regions);
            lent.extend(lend(&mut arrived));
            regions.put_back(SPOT, arrived);
        }
        assert_eq!(lent.len(), LENT_LEN_MAX / LESS_LEN);
        lent.clear();
        regions.trim();
        let mut lends = |last, len| {
            let spot = Spot::new(0, last, true);
            let mut arrived = regions.take(spot, len, true);
            let lends = lend(&mut arrived).is_some();
            regions.put_back(spot, arrived);
            lends
        };
        assert!(lends(0, LEN) && !lends(0, SMALL_LEN_MAX));
        assert!(lends(LESS_LEN, READ_LEN / KEPT_PART) && !lends(LESS_LEN, LEN));
    }
}
