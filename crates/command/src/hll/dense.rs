//! The dense encoding: 16,384 registers of 6 bits, the first in the lowest bits of the first byte.
//!
//! Four registers are three bytes. Unpacked, the registers are four planes, each for a place among the four.
//! So a pass over all registers is a plain loop over bytes that crosses no lanes, which compilers turn into
//! vector instructions. It is compiled twice, for any machine and for AVX2: merging takes 0.7 us with AVX2, 5
//! without. A single row of unpacked registers would take 1.6 and 10 us, lanes in 64-bit words 4.

use super::REGISTERS;
use super::estimate::Histogram;
use super::hash::Place;

const BITS: usize = 6;
pub(super) const BYTES: usize = REGISTERS * BITS / 8;

const VALUE_MAX: u8 = 63;

const PLANES: usize = 4;
const PLANE: usize = REGISTERS / PLANES;

/// Registers whose equal values are counted in a single byte.
const COUNTED: usize = 128;
const _: () = assert!(COUNTED <= u8::MAX as usize && PLANE.is_multiple_of(COUNTED));

/// All registers, a byte each. The register `index` is in the plane `index % PLANES`.
#[derive(Clone, PartialEq, Eq)]
pub struct Registers {
    planes: [[u8; PLANE]; PLANES],
}

impl Registers {
    pub fn zeros() -> Registers {
        Registers { planes: [[0; PLANE]; PLANES] }
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = u8> {
        (0..REGISTERS).map(|index| self.planes[index % PLANES][index / PLANES])
    }

    pub(super) fn raise(&mut self, index: usize, value: u8) {
        let register = &mut self.planes[index % PLANES][index / PLANES];
        *register = value.max(*register);
    }
}

/// Raises a register; false if it is that high already. `registers` are `BYTES` long.
pub(super) fn raise(registers: &mut [u8], Place { index, rank }: Place) -> bool {
    // Four registers are three bytes.
    let group: &mut [u8; 3] = (&mut registers[index / 4 * 3..][..3]).try_into().expect("three bytes");
    let shift = index % 4 * BITS;
    let four = u32::from_le_bytes([group[0], group[1], group[2], 0]);
    if (four >> shift & 63) as u8 >= rank {
        return false;
    }
    let raised = four & !(63 << shift) | u32::from(rank) << shift;
    group.copy_from_slice(&raised.to_le_bytes()[..3]);
    true
}

/// Runs the work with the widest vectors of the machine. All of it has to be inlined here.
#[inline(always)]
fn wide<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        #[target_feature(enable = "avx2")]
        fn with_avx2<R>(work: impl FnOnce() -> R) -> R {
            work()
        }
        // SAFETY: the machine has the feature that the function requires, as checked above.
        return unsafe { with_avx2(work) };
    }
    work()
}

/// Raises `max` to `registers` where these are higher.
pub(super) fn merge_into(max: &mut Registers, registers: &[u8]) {
    wide(|| merge(max, registers));
}

#[inline(always)]
fn merge(max: &mut Registers, registers: &[u8]) {
    let [p, q, r, s] = &mut max.planes;
    let groups = registers.chunks_exact(3).zip(p).zip(q).zip(r).zip(s);
    for ((((three, p), q), r), s) in groups {
        let (a, b, c) = (three[0], three[1], three[2]);
        *p = (*p).max(a & 63);
        *q = (*q).max((a >> 6 | b << 2) & 63);
        *r = (*r).max((b >> 4 | c << 4) & 63);
        *s = (*s).max(c >> 2);
    }
}

/// Writes registers, each below 64, into `BYTES` bytes.
pub(super) fn pack(registers: &Registers, into: &mut [u8]) {
    wide(|| pack_groups(registers, into));
}

#[inline(always)]
fn pack_groups(registers: &Registers, into: &mut [u8]) {
    let [p, q, r, s] = &registers.planes;
    let groups = into.chunks_exact_mut(3).zip(p).zip(q).zip(r).zip(s);
    for ((((three, p), q), r), s) in groups {
        three[0] = p | q << 6;
        three[1] = q >> 2 | r << 4;
        three[2] = r >> 4 | s << 2;
    }
}

pub(super) fn histogram(registers: &[u8]) -> Histogram {
    let mut unpacked = Registers::zeros();
    merge_into(&mut unpacked, registers);
    unpacked.histogram()
}

impl Registers {
    /// Returns how many registers have each value.
    pub(super) fn histogram(&self) -> Histogram {
        wide(|| count_values(self.planes.as_flattened()))
    }
}

/// Makes a pass over the registers for each value, of which there are some twenty: vectors compare fast,
/// whereas a table would be incremented 16,384 times, each waiting for the last.
#[inline(always)]
fn count_values(registers: &[u8]) -> Histogram {
    let mut histogram = [0; VALUE_MAX as usize + 1];
    let highest = registers.iter().copied().fold(0, u8::max);
    for value in 0..=highest.min(VALUE_MAX) {
        for counted in registers.chunks_exact(COUNTED) {
            let equal = counted.iter().map(|register| u8::from(*register == value));
            histogram[usize::from(value)] += u32::from(equal.sum::<u8>());
        }
    }
    histogram
}
