//! Lengths inside items: seven bits a byte, lowest first.

/// A length as bytes.
pub(crate) struct Varint {
    bytes: [u8; LEN_MAX],
    len: usize,
}

/// Bytes of the longest length.
pub(crate) const LEN_MAX: usize = 10;

impl Varint {
    #[inline]
    pub(crate) fn new(mut value: u64) -> Varint {
        let (mut bytes, mut len) = ([0; LEN_MAX], 0);
        while value >= 0x80 {
            bytes[len] = value as u8 | 0x80;
            value >>= 7;
            len += 1;
        }
        bytes[len] = value as u8;
        Varint { bytes, len: len + 1 }
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Number of bytes that a length takes.
    #[inline]
    pub(crate) fn len_of(value: u64) -> usize {
        (u64::BITS - (value | 1).leading_zeros()).div_ceil(7) as usize
    }
}

/// The length at the start of an item, and the rest of it.
#[inline]
pub(crate) fn read(item: &[u8]) -> (u64, &[u8]) {
    if item[0] < 0x80 {
        return (u64::from(item[0]), &item[1..]);
    }
    let (mut value, mut at) = (0, 0);
    loop {
        value |= u64::from(item[at] & 0x7f) << (7 * at);
        at += 1;
        if item[at - 1] < 0x80 {
            return (value, &item[at..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_read_back() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), (1 << 35) - 1, u64::MAX] {
            let item = [Varint::new(value).as_bytes(), b"rest"].concat();
            assert_eq!(read(&item), (value, &b"rest"[..]));
            assert_eq!(Varint::len_of(value), item.len() - 4);
        }
    }
}
