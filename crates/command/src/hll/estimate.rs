//! From registers to a count: the estimator of Otmar Ertl, "New cardinality estimation algorithms for
//! HyperLogLog sketches" (arXiv:1702.01284), which needs no tables and no special cases for small or large
//! counts.
//!
//! Floating point is done in Redis' order of operations, so that both arrive at the same integer.

use super::REGISTERS;
use super::hash::RANK_BITS;

/// How many registers have each value. A client may write values that no element has; these are ignored.
pub(super) type Histogram = [u32; 64];

/// 1 / (2 ln 2)
const ALPHA: f64 = 0.721_347_520_444_481_7;

pub(super) fn count(histogram: &Histogram) -> u64 {
    let registers = REGISTERS as f64;
    let share = |value: f64| value / registers;
    let full = f64::from(histogram[RANK_BITS as usize + 1]);
    let mut z = registers * tau(share(registers - full));
    for rank in (1..=RANK_BITS as usize).rev() {
        z = (z + f64::from(histogram[rank])) * 0.5;
    }
    z += registers * sigma(share(f64::from(histogram[0])));
    let estimate = (ALPHA * registers * registers / z).round();
    // Only registers that no element can produce lead beyond; Redis then shows its machine's conversion of
    // the float.
    if estimate < i64::MAX as f64 { estimate as u64 } else { 1 << 63 }
}

/// Corrects for registers at the top.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        y *= 0.5;
        let before = z;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

/// Corrects for registers at zero.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}
