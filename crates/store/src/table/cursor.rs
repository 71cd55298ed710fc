//! The position of a SCAN: slot, directory bits and tag, in an order that no growth or shrinking changes.

use crate::SLOTS;
use crate::key::SLOT_BITS;
use crate::table::directory::DEPTH_MAX;
use crate::table::segment::TAG_BITS;

/// The position at which a scan continues; zero is both the start and the end.
///
/// ```text
/// bits 63..58 unused | 57..34 directory bits | 33..14 tag | 13..0 slot
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(pub u64);

/// Number of tags.
pub(crate) const TAGS: u64 = 1 << TAG_BITS;
const _: () = assert!(SLOT_BITS + TAG_BITS + DEPTH_MAX <= 64);

impl Cursor {
    pub(crate) fn new(slot: usize, prefix: u64, tag: u64) -> Cursor {
        Cursor((prefix << TAG_BITS | tag) << SLOT_BITS | slot as u64)
    }

    /// The start of a slot.
    pub fn of_slot(slot: u16) -> Cursor {
        Cursor::new(usize::from(slot), 0, 0)
    }

    pub fn slot(self) -> usize {
        self.0 as usize & (SLOTS - 1)
    }

    pub(crate) fn tag(self) -> u64 {
        self.0 >> SLOT_BITS & (TAGS - 1)
    }

    pub(crate) fn prefix(self) -> u64 {
        self.0 >> (SLOT_BITS + TAG_BITS) & ((1 << DEPTH_MAX) - 1)
    }
}
