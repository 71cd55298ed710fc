//! What a visit of a slot moves to other blocks, and when it has moved enough.

use evenkeel_slab::Compaction;

/// What a compaction has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Blocks that were moved, and their bytes.
    pub blocks: u64,
    pub bytes: u64,
    /// Blocks that were looked at and stayed.
    pub stayed: u64,
    /// There was no memory for a copy.
    pub has_failed: bool,
}

/// Decides which blocks move during one visit, which holds a slot's lock: see [`Mover::new`].
pub(crate) struct Mover<'a> {
    compaction: &'a Compaction,
    moved: &'a mut Moved,
    blocks: usize,
    bytes: usize,
    looks: usize,
}

/// Blocks and bytes that a visit moves at most, about 20 us, and blocks that it looks at.
const BLOCKS_MAX: usize = 64;
const BYTES_MAX: usize = 32 * 1024;
const LOOKS_MAX: usize = 2048;

impl Mover<'_> {
    pub(crate) fn new<'a>(compaction: &'a Compaction, moved: &'a mut Moved) -> Mover<'a> {
        Mover { compaction, moved, blocks: BLOCKS_MAX, bytes: BYTES_MAX, looks: LOOKS_MAX }
    }

    /// Whether the block at this address has to move.
    #[inline]
    pub(crate) fn is_leaving(&self, address: usize) -> bool {
        self.compaction.is_leaving(address)
    }

    /// Counts a block that was looked at.
    #[inline]
    pub(crate) fn look(&mut self) {
        self.looks = self.looks.saturating_sub(1);
        self.moved.stayed += 1;
    }

    /// Counts a block of `size` bytes that moves; `is_there`: there was memory for it.
    pub(crate) fn count(&mut self, size: usize, is_there: bool) {
        if !is_there {
            self.moved.has_failed = true;
            return;
        }
        self.blocks = self.blocks.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(size);
        self.moved.blocks += 1;
        self.moved.bytes += size as u64;
    }

    /// Whether the visit has to end.
    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        self.blocks == 0 || self.bytes == 0 || self.looks == 0 || self.moved.has_failed
    }
}
