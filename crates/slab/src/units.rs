//! The free units of a chunk. Runs have 1, 2, 4 or 8 units and begin at a multiple of that, so that runs of
//! different lengths leave no gaps that none of them fits.

/// Lengths of runs: an order is the power of two.
pub(crate) const ORDERS: usize = 4;

/// A bit for each unit that belongs to no run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Units(u64);

impl Units {
    pub(crate) const ALL: Units = Units(u64::MAX);

    /// For each order, the units at which a free block of this order begins.
    fn blocks(self) -> [u64; ORDERS] {
        const STARTS: [u64; ORDERS] = [u64::MAX, u64::MAX / 3, u64::MAX / 15, u64::MAX / 255];
        let mut blocks = [self.0; ORDERS];
        for order in 1..ORDERS {
            let halves = blocks[order - 1];
            blocks[order] = halves & halves >> (1 << (order - 1)) & STARTS[order];
        }
        blocks
    }

    /// For each order, the units at which a free block of this order begins that is no part of a larger one.
    fn whole_blocks(self) -> [u64; ORDERS] {
        let mut blocks = self.blocks();
        for order in 0..ORDERS - 1 {
            let larger = blocks[order + 1];
            blocks[order] &= !(larger | larger << (1 << order));
        }
        blocks
    }

    /// Whether a unit is free.
    pub(crate) fn has(self, unit: usize) -> bool {
        self.0 >> unit & 1 == 1
    }

    /// The order of the smallest free block.
    pub(crate) fn smallest(self) -> Option<usize> {
        self.whole_blocks().iter().position(|blocks| *blocks != 0)
    }

    /// Takes a block of this order out of the smallest that has room; returns its first unit.
    pub(crate) fn take(&mut self, order: usize) -> Option<usize> {
        let unit =
            self.whole_blocks()[order..].iter().find(|blocks| **blocks != 0)?.trailing_zeros() as usize;
        self.0 &= !mask(unit, order);
        Some(unit)
    }

    /// These and the units of a block that was taken.
    pub(crate) fn with(self, unit: usize, order: usize) -> Units {
        debug_assert!(self.0 & mask(unit, order) == 0, "they were taken");
        Units(self.0 | mask(unit, order))
    }
}

fn mask(unit: usize, order: usize) -> u64 {
    ((1 << (1 << order)) - 1) << unit
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::Random;

    use super::*;

    #[test]
    fn a_block_comes_out_of_the_smallest_that_has_room() {
        let mut units = Units(0b1111_1111_0011_0100);
        assert_eq!(units.smallest(), Some(0));
        assert_eq!(units.take(0), Some(2));
        assert_eq!(units.smallest(), Some(1));
        assert_eq!(units.take(0), Some(4));
        assert_eq!(units.take(2), Some(8));
        assert_eq!(units.take(0), Some(5));
        assert_eq!(units.take(1), Some(12));
        assert_eq!((units.take(2), units.take(1), units.take(0)), (None, Some(14), None));
        assert_eq!(units.smallest(), None);
    }

    #[test]
    fn random_blocks_match_a_plain_list() {
        let mut random = Random::new(1);
        for _ in 0..if cfg!(miri) { 2 } else { 200 } {
            let (mut units, mut plain, mut taken) = (Units::ALL, [true; 64], Vec::new());
            for _ in 0..200 {
                let order = random.below(ORDERS);
                if random.chance(60) {
                    let is_free =
                        |start: &usize| plain[*start..start + (1 << order)].iter().all(|free| *free);
                    let there = (0..64).step_by(1 << order).find(is_free);
                    let unit = units.take(order);
                    assert_eq!(unit.is_some(), there.is_some());
                    let Some(unit) = unit else { continue };
                    assert!(unit.is_multiple_of(1 << order) && is_free(&unit));
                    plain[unit..unit + (1 << order)].fill(false);
                    taken.push((unit, order));
                } else if !taken.is_empty() {
                    let (unit, order) = taken.swap_remove(random.below(taken.len()));
                    units = units.with(unit, order);
                    plain[unit..unit + (1 << order)].fill(true);
                }
            }
            taken.into_iter().for_each(|(unit, order)| units = units.with(unit, order));
            assert_eq!(units, Units::ALL);
        }
    }
}
