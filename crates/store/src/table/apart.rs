//! The excess of an entry's value ([`crate::apart`]), and the code of 15 bits in which the entry keeps its
//! shared bytes.

/// The excess of a value, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Apart {
    /// Bytes of memory shared with other values.
    pub shared: u64,
    /// Chunks of 64 KiB that are holes.
    pub holes: u64,
}

/// Bits of a byte count that an entry keeps exactly; five more bits are its shift. Rounding up adds a 512th
/// at most.
const MANTISSA: u32 = 10;
const SHIFT_MAX: u32 = 31;

/// Encodes a number of bytes in 15 bits.
pub(crate) fn encoded(bytes: u64) -> u16 {
    let bits = u64::BITS - bytes.leading_zeros();
    let mut shift = bits.saturating_sub(MANTISSA);
    let mut mantissa = bytes.div_ceil(1 << shift);
    if mantissa == 1 << MANTISSA {
        (mantissa, shift) = (mantissa / 2, shift + 1);
    }
    match shift {
        0..=SHIFT_MAX => (shift as u16) << MANTISSA | mantissa as u16,
        _ => (1 << 15) - 1, // 2 TiB
    }
}

pub(crate) fn decoded(code: u16) -> u64 {
    u64::from(code & ((1 << MANTISSA) - 1)) << (code >> MANTISSA)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_with_little_too_much() {
        for bytes in (0..5_000).chain((10..40).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 1]))
        {
            let code = encoded(bytes);
            assert!(code < 1 << 15);
            let kept = decoded(code);
            assert!((bytes..=bytes + bytes / 512).contains(&kept), "{bytes} as {kept}");
            assert_eq!(encoded(kept), code, "bytes that were decoded are encoded exactly");
        }
        assert!(decoded(encoded(u64::MAX)) > 1 << 40);
    }
}
