//! Memory that requests are read into, and that is lent to the log.
//!
//! A pipeline's commands are mostly logged as they came. To copy them costs the thread that serves clients more than all else
//! that the log does: what it copies to was last read by another core. So the log keeps what was read as it is, and the
//! worker reads on into other memory until those who read the log are done with it.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use evenkeel_store::journal::{KEPT_PART, Received, SMALL_LEN_MAX};

/// Bytes read at once from a connection: what a pipeline of 100 requests of 500 bytes needs.
const READ_LEN: usize = 64 * 1024;

/// The same where what is read may be lent, from a connection that had less to read last.
const LESS_LEN: usize = 16 * 1024;

/// Bytes that a worker lends at most. If those who read the log are so far behind, the rest is copied for them.
const LENT_LEN_MAX: usize = 8 << 20;

/// Of them, those that are kept in any case when the log is done with them, to be lent again soon.
const KEPT_LEN: usize = 2 << 20;

enum Region {
    Own(Box<[u8]>),
    Lent(Received),
}

impl Region {
    fn new(len: usize) -> Region {
        Region::Own(vec![0; len].into())
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Region::Own(bytes) => bytes,
            Region::Lent(bytes) => bytes,
        }
    }

    /// If somebody has it, he keeps it as it was.
    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Region::Own(bytes) => bytes,
            Region::Lent(bytes) => {
                let bytes: &mut Box<[u8]> = Arc::make_mut(bytes);
                bytes
            }
        }
    }

    fn lend(&mut self) -> Received {
        if let Region::Own(bytes) = self {
            *self = Region::Lent(Arc::new(mem::take(bytes)));
        }
        let Region::Lent(bytes) = self else { unreachable!("it has just been made so") };
        bytes.clone()
    }
}

/// Which region: those of one length are numbered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    index: usize,
    is_small: bool,
}

impl Spot {
    /// For a read from a connection that had so many bytes last. `may_lend`: the log may keep what comes.
    pub(super) fn new(index: usize, last: usize, may_lend: bool) -> Spot {
        Spot { index, is_small: may_lend && last < LESS_LEN }
    }
}

/// A worker's regions.
#[derive(Default)]
pub(super) struct Regions {
    large: Shelf,
    small: Shelf,
    /// Bytes of those that are lent.
    lent_len: usize,
}

/// Regions of one length.
#[derive(Default)]
struct Shelf {
    own: Vec<Region>,
    /// Those that were lent last are at the end.
    lent: VecDeque<Received>,
}

impl Regions {
    /// So many of each length. They are there from the beginning: what clients send later is not to count as data.
    pub(super) fn new(count: usize) -> Regions {
        let mut regions = Regions::default();
        for is_small in [false, true] {
            let (shelf, len) = regions.shelf(Spot { index: 0, is_small });
            shelf.own.extend((0..count).map(|_| Region::new(len)));
        }
        regions
    }

    /// Bytes that are lent, or were and are kept to be lent again.
    pub(super) fn lent_len(&self) -> usize {
        self.lent_len
    }

    fn shelf(&mut self, spot: Spot) -> (&mut Shelf, usize) {
        if spot.is_small { (&mut self.small, LESS_LEN) } else { (&mut self.large, READ_LEN) }
    }

    /// To be read into.
    pub(super) fn bytes_mut(&mut self, spot: Spot) -> &mut [u8] {
        let (shelf, _) = self.shelf(spot);
        shelf.own[spot.index].bytes_mut()
    }

    /// Takes a region, of which the first `len` bytes were received; to be put back. `may_lend`: the log may keep it.
    pub(super) fn take(&mut self, spot: Spot, len: usize, may_lend: bool) -> Arrived {
        if self.lent_len >= LENT_LEN_MAX {
            self.trim();
        }
        let has_room = self.lent_len < LENT_LEN_MAX;
        let (shelf, room) = self.shelf(spot);
        let region = mem::replace(&mut shelf.own[spot.index], Region::Own(Box::default()));
        let may_lend = may_lend && has_room && len > SMALL_LEN_MAX && len * KEPT_PART >= room;
        Arrived { region, len, may_lend }
    }

    pub(super) fn put_back(&mut self, spot: Spot, arrived: Arrived) {
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

    /// Gives back the memory of those that the log is done with.
    pub(super) fn trim(&mut self) {
        for shelf in [&mut self.large, &mut self.small] {
            while let Some(bytes) = shelf.returned() {
                self.lent_len -= bytes.len();
            }
        }
    }
}

impl Shelf {
    /// The one that was lent first, if the log is done with it.
    fn returned(&mut self) -> Option<Box<[u8]>> {
        Arc::get_mut(self.lent.front_mut()?)?;
        self.lent.pop_front().and_then(Arc::into_inner)
    }
}

/// What a batch of requests is in.
pub(crate) trait Source {
    fn bytes(&self) -> &[u8];

    fn bytes_mut(&mut self) -> &mut [u8];

    /// The memory that it is in, as something that the log may keep.
    fn lend(&mut self) -> Option<Received>;
}

/// Bytes that were received in one piece.
pub(super) struct Arrived {
    region: Region,
    len: usize,
    may_lend: bool,
}

impl Source for Arrived {
    fn bytes(&self) -> &[u8] {
        &self.region.bytes()[..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.region.bytes_mut()[..self.len]
    }

    fn lend(&mut self) -> Option<Received> {
        self.may_lend.then(|| self.region.lend())
    }
}

/// What a connection has kept of its own.
impl Source for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }

    fn lend(&mut self) -> Option<Received> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPOT: Spot = Spot { index: 0, is_small: true };
    const LEN: usize = SMALL_LEN_MAX + 1;

    fn take(regions: &mut Regions) -> Arrived {
        regions.take(SPOT, LEN, true)
    }

    #[test]
    fn what_is_lent_is_not_read_into_until_it_comes_back() {
        let mut regions = Regions::new(1);
        let mut arrived = take(&mut regions);
        arrived.bytes_mut()[..2].copy_from_slice(b"ab");
        let lent = arrived.lend().expect("it may be");
        assert_eq!(&lent[..LEN], arrived.bytes());
        arrived.bytes_mut()[0] = b'x';
        assert_eq!(
            (&lent[..2], &arrived.bytes()[..2]),
            (&b"ab"[..], &b"xb"[..]),
            "who has it keeps what was there"
        );
        let again = arrived.lend().expect("it may be");
        regions.put_back(SPOT, arrived);
        regions.bytes_mut(SPOT)[0] = b'y';
        assert_eq!(&again[..2], b"xb");
        let address = again.as_ptr();
        drop(again);
        // The one that has come back takes the place of the next one that is lent.
        let mut arrived = take(&mut regions);
        let lent = arrived.lend();
        regions.put_back(SPOT, arrived);
        assert_eq!(regions.bytes_mut(SPOT).as_ptr(), address);
        assert_eq!(regions.lent_len, LESS_LEN);
        drop(lent);
        regions.trim();
        assert_eq!((regions.small.lent.len(), regions.lent_len), (0, 0));
    }

    #[test]
    fn no_more_is_lent_than_may_be_and_nothing_that_is_mostly_empty() {
        let mut regions = Regions::new(1);
        let mut lent = Vec::new();
        for _ in 0..2 * LENT_LEN_MAX / LESS_LEN {
            let mut arrived = take(&mut regions);
            lent.extend(arrived.lend());
            regions.put_back(SPOT, arrived);
        }
        assert_eq!(lent.len(), LENT_LEN_MAX / LESS_LEN);
        lent.clear();
        regions.trim();
        let mut lends = |last, len| {
            let spot = Spot::new(0, last, true);
            let mut arrived = regions.take(spot, len, true);
            let lends = arrived.lend().is_some();
            regions.put_back(spot, arrived);
            lends
        };
        assert!(lends(0, LEN) && !lends(0, SMALL_LEN_MAX));
        assert!(lends(LESS_LEN, READ_LEN / KEPT_PART) && !lends(LESS_LEN, LEN));
    }
}
