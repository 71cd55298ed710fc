//! The last part of the replication stream: its bytes by offset, kept once for all replicas.
//!
//! The blocks have a single size and are filled one after another, so an offset determines its block. A
//! replica is a number: the offset of the first byte that it has not been sent. It is sent slices of the
//! blocks, which go to the kernel in place; nothing is copied or counted per replica. The first blocks are
//! dropped when they are neither within the size to be kept nor needed by any replica ([`Backlog::trim`]).
//!
//! The road not taken: reference-counted blocks that outlive the backlog as long as a replica needs them.
//! Then it is unknown how much memory that is, and there is no point at which a replica is too far behind.

use std::collections::VecDeque;
use std::io::IoSlice;

/// Bytes of a block: so few that keeping whole blocks does not matter even for the smallest backlogs in use,
/// and so many that a system call for a megabyte has few parts.
pub const BLOCK: usize = 16 * 1024;

/// Spare blocks at most: the blocks appended between two trims at full load.
pub(super) const SPARES_MAX: usize = 64;

/// The most memory, in bytes, of a trimmed backlog that keeps `size` bytes for no replica: these may begin
/// and end in the midst of a block.
pub(super) fn memory_of(size: u64) -> u64 {
    (size.saturating_sub(1).div_ceil(BLOCK as u64) + 1).saturating_mul(BLOCK as u64)
}

/// The last part of a stream. Offsets count the stream's bytes from 0, so the offset of the end is also the
/// number of all bytes so far.
pub struct Backlog {
    blocks: VecDeque<Box<[u8]>>,
    /// The offset of the first byte of the first block.
    start: u64,
    /// `start <= end <= start + BLOCK * blocks.len()`
    end: u64,
    /// Blocks for reuse: at most as many as were begun before the last trim, or given back since.
    spares: Vec<Box<[u8]>>,
    /// Blocks begun since the last trim.
    begun: usize,
}

impl Backlog {
    /// An empty backlog of a stream with `offset` bytes before it.
    pub fn new(offset: u64) -> Backlog {
        Backlog { blocks: VecDeque::new(), start: offset, end: offset, spares: Vec::new(), begun: 0 }
    }

    /// The offset of the first byte that is kept.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The offset of the next byte.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The number of bytes kept.
    pub(crate) fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Whether all bytes from this offset on are kept.
    pub fn has(&self, offset: u64) -> bool {
        (self.start..=self.end).contains(&offset)
    }

    /// Memory in bytes.
    pub fn memory(&self) -> u64 {
        self.memory_with(0)
    }

    /// The memory after `more` bytes have been appended.
    fn memory_with(&self, more: u64) -> u64 {
        let needed = (self.len() + more).div_ceil(BLOCK as u64);
        needed.max((self.blocks.len() + self.spares.len()) as u64) * BLOCK as u64
    }

    /// The additional memory for `more` bytes.
    pub fn memory_for(&self, more: u64) -> u64 {
        self.memory_with(more) - self.memory()
    }

    pub fn append(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let used = (self.len() % BLOCK as u64) as usize;
            if used == 0 {
                let block = self.spares.pop().unwrap_or_else(|| vec![0; BLOCK].into());
                self.blocks.push_back(block);
                self.begun += 1;
            }
            let block = self.blocks.back_mut().expect("there is one that is not full");
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK - used));
            block[used..used + now.len()].copy_from_slice(now);
            self.end += now.len() as u64;
            bytes = later;
        }
    }

    /// The bytes from a kept offset on, at most `max`, as slices for a system call.
    pub fn slices(&self, from: u64, max: usize) -> Vec<IoSlice<'_>> {
        assert!(self.has(from), "only what is kept can be read");
        let mut left = (self.end - from).min(max as u64) as usize;
        let mut at = (from - self.start) as usize;
        let mut slices = Vec::with_capacity(left.div_ceil(BLOCK) + 1);
        while left > 0 {
            let block = &self.blocks[at / BLOCK][at % BLOCK..];
            let len = block.len().min(left);
            slices.push(IoSlice::new(&block[..len]));
            (at, left) = (at + len, left - len);
        }
        slices
    }

    /// Removes the oldest blocks until at most `len` bytes, or a block, are left.
    pub fn take_oldest(&mut self, len: u64) -> Vec<Box<[u8]>> {
        let beyond = self.len().saturating_sub(len.max(BLOCK as u64));
        let count = beyond.div_ceil(BLOCK as u64) as usize;
        self.start += (count * BLOCK) as u64;
        self.blocks.drain(..count).collect()
    }

    /// Takes removed blocks back for reuse.
    pub fn give_back(&mut self, blocks: Vec<Box<[u8]>>) {
        let room = SPARES_MAX.saturating_sub(self.spares.len());
        self.spares.extend(blocks.into_iter().take(room));
    }

    /// Drops the blocks without any byte that is among the last `size`, or at or behind `needed`, the first
    /// byte that a replica still needs.
    pub fn trim(&mut self, size: u64, needed: Option<u64>) {
        let kept_from = self.end.saturating_sub(size);
        let kept_from = needed.map_or(kept_from, |needed| needed.min(kept_from));
        let spares_max = std::mem::take(&mut self.begun).min(SPARES_MAX);
        self.spares.truncate(spares_max);
        while self.start + BLOCK as u64 <= kept_from
            && let Some(block) = self.blocks.pop_front()
        {
            if self.spares.len() < spares_max {
                self.spares.push(block);
            }
            self.start += BLOCK as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::random::printed as random;

    fn bytes(backlog: &Backlog, from: u64, max: usize) -> Vec<u8> {
        backlog.slices(from, max).iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn random_ranges_match_the_appended_bytes() {
        let mut random = random();
        for _ in 0..20 {
            let begin = random.draw() >> 20;
            let (mut backlog, mut model) = (Backlog::new(begin), Vec::new());
            for _ in 0..200 {
                let len = if random.chance(20) { 3 * BLOCK } else { 5_000 };
                let piece = random.bytes(len);
                backlog.append(&piece);
                model.extend_from_slice(&piece);
                assert_eq!(backlog.end(), begin + model.len() as u64);
                let size = random.below(6 * BLOCK) as u64;
                let kept = backlog.len();
                let needed =
                    random.chance(50).then(|| backlog.end() - random.below(kept as usize + 1) as u64);
                backlog.trim(size, needed);
                assert!(backlog.len() >= size.min(kept) && backlog.len() < kept.max(size + BLOCK as u64) + 1);
                assert!(needed.is_none_or(|needed| backlog.has(needed)));
                if needed.is_none() {
                    assert!(backlog.len() < size + BLOCK as u64, "no more than a block too much is kept");
                }
                let from = backlog.start() + random.below(backlog.len() as usize + 1) as u64;
                let (at, max) = ((from - begin) as usize, random.below(4 * BLOCK));
                assert_eq!(bytes(&backlog, from, max), model[at..model.len().min(at + max)]);
            }
        }
    }

    #[test]
    fn the_oldest_blocks_can_be_removed() {
        let mut backlog = Backlog::new(5);
        let bytes: Vec<u8> = (0..5 * BLOCK + 10).map(|n| (n / 1_000) as u8).collect();
        backlog.append(&bytes);
        assert!(backlog.take_oldest(6 * BLOCK as u64).is_empty());
        assert_eq!(backlog.take_oldest(3 * BLOCK as u64 + 10).concat(), bytes[..2 * BLOCK]);
        assert_eq!(backlog.start(), 5 + 2 * BLOCK as u64);
        assert_eq!(
            backlog.take_oldest(0).concat(),
            bytes[2 * BLOCK..5 * BLOCK],
            "the one that is begun stays"
        );
        backlog.give_back(vec![vec![0; BLOCK].into(); SPARES_MAX + 1]);
        assert_eq!(backlog.memory(), ((1 + SPARES_MAX) * BLOCK) as u64, "no more than can be of use");
        assert!(backlog.len() == 10 && backlog.has(5 + bytes.len() as u64 - 10));
    }

    #[test]
    fn trimming_keeps_needed_and_configured_bytes() {
        let mut backlog = Backlog::new(100);
        assert!(backlog.has(100) && !backlog.has(99) && !backlog.has(101));
        assert!(backlog.slices(100, 10).is_empty());
        backlog.append(&[1; 2 * BLOCK]);
        backlog.trim(0, Some(100));
        assert_eq!((backlog.start(), backlog.len()), (100, 2 * BLOCK as u64));
        backlog.trim(1, None);
        assert_eq!((backlog.start(), backlog.len()), (100 + BLOCK as u64, BLOCK as u64));
        backlog.trim(0, None);
        assert_eq!((backlog.start(), backlog.end()), (100 + 2 * BLOCK as u64, 100 + 2 * BLOCK as u64));
        assert_eq!(backlog.memory(), 0, "nothing comes");
    }

    #[test]
    fn a_backlog_for_no_replica_takes_the_memory_of_its_size() {
        for size in [1, 100, BLOCK - 1, BLOCK, BLOCK + 1, 10 * BLOCK + 7].map(|size| size as u64) {
            let (mut backlog, mut most) = (Backlog::new(0), 0);
            for _ in 0..size + 3 * BLOCK as u64 {
                backlog.append(&[1]);
                backlog.trim(size, None);
                backlog.trim(size, None); // spares are for a stream that goes on
                most = most.max(backlog.memory());
            }
            assert_eq!(most, memory_of(size), "of {size} bytes");
        }
    }

    #[test]
    fn spare_blocks_match_the_last_append() {
        let mut backlog = Backlog::new(0);
        backlog.append(&[1; 3 * BLOCK]);
        backlog.trim(0, None);
        assert_eq!(backlog.memory(), 3 * BLOCK as u64);
        assert_eq!([1, 3, 4].map(|blocks| backlog.memory_for(blocks * BLOCK as u64)), [0, 0, BLOCK as u64]);
        backlog.append(&[1; 2 * BLOCK + 1]);
        assert_eq!(backlog.memory(), 3 * BLOCK as u64, "they are used again");
        backlog.trim(0, None);
        assert_eq!(backlog.memory(), 3 * BLOCK as u64);
        backlog.trim(0, None);
        assert_eq!(backlog.memory(), BLOCK as u64, "the one that is begun");
        backlog.append(&vec![2; 2 * SPARES_MAX * BLOCK]);
        backlog.trim(0, None);
        assert_eq!(backlog.memory(), ((1 + SPARES_MAX) * BLOCK) as u64, "not all of them");
    }
}
