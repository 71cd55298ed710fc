//! A member of a set as a reader gets it: bytes in place, or the digits of a packed integer.

use std::fmt;
use std::ops::Deref;

/// Digits of the longest integer, and its sign.
const DIGITS_MAX: usize = 20;

/// See the module's documentation. It reads as bytes.
#[derive(Clone, Copy)]
pub struct Member<'a>(Kept<'a>);

#[derive(Clone, Copy)]
enum Kept<'a> {
    Bytes(&'a [u8]),
    /// The last `len` of these bytes.
    Digits {
        bytes: [u8; DIGITS_MAX],
        len: u8,
    },
}

impl<'a> Member<'a> {
    #[inline]
    pub(crate) fn bytes(bytes: &'a [u8]) -> Member<'a> {
        Member(Kept::Bytes(bytes))
    }

    pub(crate) fn integer(value: i64) -> Member<'a> {
        let (mut bytes, mut at, mut rest) = ([0; DIGITS_MAX], DIGITS_MAX, value.unsigned_abs());
        loop {
            at -= 1;
            bytes[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if value < 0 {
            at -= 1;
            bytes[at] = b'-';
        }
        Member(Kept::Digits { bytes, len: (DIGITS_MAX - at) as u8 })
    }
}

impl<'a> From<&'a [u8]> for Member<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Member<'a> {
        Member::bytes(bytes)
    }
}

impl Deref for Member<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kept::Bytes(bytes) => bytes,
            Kept::Digits { bytes, len } => &bytes[DIGITS_MAX - *len as usize..],
        }
    }
}

impl AsRef<[u8]> for Member<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Member<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_the_integer() {
        for value in [0, 1, -1, 9, 10, 99, 100, -100, i64::MAX, i64::MIN] {
            assert_eq!(&*Member::integer(value), value.to_string().as_bytes());
        }
    }
}
