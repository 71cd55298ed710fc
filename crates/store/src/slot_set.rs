//! Sets of slots.

use crate::SLOTS;

pub(crate) const WORDS: usize = SLOTS / 64;

/// A set of slots, a bit per slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotSet(pub(crate) Box<[u64; WORDS]>);

impl SlotSet {
    pub fn all() -> SlotSet {
        SlotSet(Box::new([u64::MAX; WORDS]))
    }

    /// Whether a slot below [`SLOTS`] is in the set.
    #[inline]
    pub fn contains(&self, slot: usize) -> bool {
        self.0[slot / 64] >> (slot % 64) & 1 == 1
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}

/// The empty set.
impl Default for SlotSet {
    fn default() -> SlotSet {
        SlotSet(Box::new([0; WORDS]))
    }
}

/// Of slots below [`SLOTS`], in any order.
impl FromIterator<u16> for SlotSet {
    fn from_iter<I: IntoIterator<Item = u16>>(slots: I) -> SlotSet {
        let mut set = SlotSet::default();
        slots.into_iter().map(usize::from).for_each(|slot| set.0[slot / 64] |= 1 << (slot % 64));
        set
    }
}
