//! Sets of slots, as ranges.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// Number of slots.
pub const SLOTS: usize = 16_384;

/// Ranges of slots in ascending order, without overlap, and as few as possible.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u16, u16)>", into = "Vec<(u16, u16)>")]
pub struct SlotRanges(Vec<(u16, u16)>);

/// Ranges that are out of order, overlap, or name a slot that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSlots;

impl fmt::Display for BadSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ranges of slots ascend, do not overlap, and end at 16383")
    }
}

impl std::error::Error for BadSlots {}

impl SlotRanges {
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = RangeInclusive<u16>> + Clone + '_ {
        self.0.iter().map(|(first, last)| *first..=*last)
    }

    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.ranges().flatten()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The slots of both sets.
    pub fn union(&self, other: &SlotRanges) -> SlotRanges {
        let mut all: Vec<(u16, u16)> = self.0.iter().chain(&other.0).copied().collect();
        all.sort_unstable();
        let mut joined: Vec<(u16, u16)> = Vec::new();
        for (first, last) in all {
            match joined.last_mut() {
                Some((_, end)) if first <= *end + 1 => *end = last.max(*end),
                _ => joined.push((first, last)),
            }
        }
        SlotRanges(joined)
    }

    /// The slots of this set that the other does not have.
    pub fn minus(&self, other: &SlotRanges) -> SlotRanges {
        let mut left = Vec::new();
        for (first, last) in self.0.iter().copied() {
            let mut from = first;
            let behind = other.0.partition_point(|(_, end)| *end < first);
            for (start, end) in other.0[behind..].iter().take_while(|(start, _)| *start <= last) {
                if *start > from {
                    left.push((from, start - 1));
                }
                from = end + 1;
            }
            if from <= last {
                left.push((from, last));
            }
        }
        SlotRanges(left)
    }

    /// Whether the sets have a slot in common.
    pub fn meets(&self, other: &SlotRanges) -> bool {
        self.ranges().any(|mine| {
            other.ranges().any(|theirs| mine.start() <= theirs.end() && theirs.start() <= mine.end())
        })
    }

    /// Whether each slot of the other set is in this set.
    pub fn includes(&self, other: &SlotRanges) -> bool {
        let within = |mine: RangeInclusive<u16>, theirs: &RangeInclusive<u16>| {
            mine.start() <= theirs.start() && theirs.end() <= mine.end()
        };
        other.ranges().all(|theirs| self.ranges().any(|mine| within(mine, &theirs)))
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.ranges().map(|range| range.len()).sum()
    }

    pub fn contains(&self, slot: u16) -> bool {
        self.0
            .binary_search_by(|(first, last)| {
                if *last < slot {
                    std::cmp::Ordering::Less
                } else if *first > slot {
                    std::cmp::Ordering::Greater
                } else {
                    std::cmp::Ordering::Equal
                }
            })
            .is_ok()
    }
}

/// From slots in ascending order; slots above 16,383 do not exist.
impl FromIterator<u16> for SlotRanges {
    fn from_iter<I: IntoIterator<Item = u16>>(slots: I) -> SlotRanges {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for slot in slots {
            assert!((slot as usize) < SLOTS, "a slot");
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == slot => *last = slot,
                Some((_, last)) => {
                    assert!(*last < slot, "ascending slots");
                    ranges.push((slot, slot));
                }
                None => ranges.push((slot, slot)),
            }
        }
        SlotRanges(ranges)
    }
}

impl TryFrom<Vec<(u16, u16)>> for SlotRanges {
    type Error = BadSlots;

    fn try_from(ranges: Vec<(u16, u16)>) -> Result<SlotRanges, BadSlots> {
        let are_in_order = ranges.windows(2).all(|pair| pair[0].1 < pair[1].0);
        let are_ranges = ranges.iter().all(|(first, last)| first <= last && (*last as usize) < SLOTS);
        if !are_in_order || !are_ranges {
            return Err(BadSlots);
        }
        // Neighbouring ranges become one.
        Ok(ranges.into_iter().flat_map(|(first, last)| first..=last).collect())
    }
}

impl From<SlotRanges> for Vec<(u16, u16)> {
    fn from(slots: SlotRanges) -> Vec<(u16, u16)> {
        slots.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_range() {
        let slots: SlotRanges = [0, 1, 2, 5, 6, 16_383].into_iter().collect();
        assert_eq!(slots.ranges().collect::<Vec<_>>(), [0..=2, 5..=6, 16_383..=16_383]);
        assert_eq!(slots.len(), 6);
        for slot in 0..SLOTS as u16 {
            assert_eq!(slots.contains(slot), [0, 1, 2, 5, 6, 16_383].contains(&slot));
        }
        assert_eq!(SlotRanges::try_from(vec![(0, 2), (3, 4)]), Ok((0..=4).collect()));
    }

    #[test]
    fn sets_of_slots_are_joined_and_compared() {
        let (low, high): (SlotRanges, SlotRanges) = ((0..=9).collect(), (5..=20).collect());
        assert_eq!(low.union(&high), (0..=20).collect());
        assert_eq!(low.minus(&high), (0..=4).collect());
        // All small sets, and those at the end, against sets of single slots.
        let sets = |base: u16| {
            (0..256u16)
                .map(move |bits| (0..8).filter(|bit| bits >> bit & 1 == 1).map(|bit| base + bit).collect())
        };
        let plain = |set: &SlotRanges| set.iter().collect::<std::collections::BTreeSet<u16>>();
        for base in [0, 16_376] {
            let all: Vec<SlotRanges> = sets(base).collect();
            for (one, other) in all.iter().flat_map(|one| all.iter().map(move |other| (one, other))) {
                let union: SlotRanges = plain(one).union(&plain(other)).copied().collect();
                let minus: SlotRanges = plain(one).difference(&plain(other)).copied().collect();
                assert_eq!((one.union(other), one.minus(other)), (union, minus), "{one:?} {other:?}");
            }
        }
        assert!(low.meets(&high) && !low.includes(&high));
        assert!(low.includes(&[1, 2, 9].into_iter().collect()) && !low.meets(&(10..=11).collect()));
    }

    #[test]
    fn ranges_that_overlap_or_leave_the_slots_are_refused() {
        for ranges in [vec![(0, 2), (2, 4)], vec![(5, 6), (1, 2)], vec![(3, 2)], vec![(0, 16_384)]] {
            assert_eq!(SlotRanges::try_from(ranges), Err(BadSlots));
        }
    }
}
