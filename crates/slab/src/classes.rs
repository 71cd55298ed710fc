//! Sizes of blocks.
//!
//! | bytes | step | classes |
//! |---|---|---|
//! | 8 to 256 | 8 | 32 |
//! | to 1,024 | 16 | 48 |
//! | to 4,096 | 32 | 96 |
//! | to 17,408 | 64 | 208 |
//!
//! So rounding wastes 4 to 32 bytes on average. The steps of the usual allocators are an eighth to a quarter
//! of the size: 530 bytes take 640. Each class has runs of its own in each heap, so a heap gives a class
//! above 1 KiB its own runs only where they are few beside all of its runs; until then the class takes blocks
//! of a coarse class, sixteen of which make a doubling ([`coarse`]).

use crate::arena::UNIT;
use crate::units::ORDERS;

/// The largest block, in bytes.
pub const SIZE_MAX: usize = 17 * 1024;

/// Number of classes.
pub(crate) const CLASSES: usize = 32 + 48 + 96 + 208;

const FINE_MAX: usize = 1024;

const _: () = assert!((UNIT << (ORDERS - 1)) / 8 < u16::MAX as usize, "the place of a block fits 16 bits");

/// Fewest blocks of a run.
const BLOCKS_MIN: usize = 8;

/// The class of a block of `size` bytes, which are at most [`SIZE_MAX`].
#[inline]
pub(crate) fn class_of(size: usize) -> usize {
    match size {
        0..=8 => 0,
        9..=256 => size.div_ceil(8) - 1,
        257..=1024 => 32 + (size - 256).div_ceil(16) - 1,
        1025..=4096 => 80 + (size - 1024).div_ceil(32) - 1,
        _ => 176 + (size - 4096).div_ceil(64) - 1,
    }
}

/// The bytes of a block of this class.
pub(crate) const fn size_of(class: usize) -> usize {
    match class {
        0..32 => (class + 1) * 8,
        32..80 => 256 + (class - 31) * 16,
        80..176 => 1024 + (class - 79) * 32,
        _ => 4096 + (class - 175) * 64,
    }
}

/// The class whose blocks a class without runs of its own takes.
pub(crate) fn coarse(class: usize) -> usize {
    let size = size_of(class);
    if size <= FINE_MAX {
        return class;
    }
    let step = 1 << ((size - 1).ilog2() - 4);
    class_of(size.next_multiple_of(step).min(SIZE_MAX))
}

/// Bytes of a run that hold no block.
const fn wasted(class: usize, order: usize) -> usize {
    (UNIT << order) % size_of(class)
}

/// The order of a run of this class: the smallest order that wastes at most a 128th, or else the
/// order that wastes the least.
const fn order_of(class: usize) -> usize {
    let (mut order, mut best) = (0, ORDERS - 1);
    while order < ORDERS {
        if (UNIT << order) / size_of(class) >= BLOCKS_MIN {
            if wasted(class, order) <= (UNIT << order) / 128 {
                return order;
            }
            if wasted(class, order) << (ORDERS - order) < wasted(class, best) << (ORDERS - best) {
                best = order;
            }
        }
        order += 1;
    }
    best
}

/// [`order_of`] each class.
pub(crate) static ORDER: [u8; CLASSES] = {
    let mut all = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        all[class] = order_of(class) as u8;
        class += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_hardly_larger_than_was_asked_for() {
        for size in 1..=SIZE_MAX {
            let class = class_of(size);
            assert!(size_of(class) >= size && (class == 0 || size_of(class - 1) < size), "{size}");
            let wide = size_of(coarse(class));
            assert!(wide >= size && (wide - size) * 16 <= size.max(128), "{size}: {wide}");
        }
        assert_eq!(class_of(SIZE_MAX), CLASSES - 1);
        assert_eq!(size_of(CLASSES - 1), SIZE_MAX);
    }

    #[test]
    fn runs_waste_little() {
        let mut sum = 0.0;
        for (class, order) in ORDER.iter().enumerate() {
            let (order, size) = (*order as usize, size_of(class));
            assert!((UNIT << order) / size >= BLOCKS_MIN, "{size}");
            let share = wasted(class, order) as f64 / (UNIT << order) as f64;
            assert!(share <= 0.06, "{size}: {share}");
            sum += share;
        }
        assert!(sum / (CLASSES as f64) < 0.014, "{}", sum / CLASSES as f64);
    }
}
