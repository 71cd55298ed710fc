//! An element as stored: bytes, or an integer that stands for its decimal digits.
//!
//! Compact forms hold integers as such. To format each integer, only for a store to parse it again, would
//! cost more than all other work of reading.

/// A string of bytes, or an integer in its place: `Int(12)` and `Bytes(b"12")` are the same string.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    Bytes(&'a [u8]),
    Int(i64),
}

/// Room for an integer's digits.
#[derive(Default)]
pub struct Digits(itoa::Buffer);

impl<'a> Item<'a> {
    /// The string's bytes; an integer's are formatted into `digits`.
    pub fn bytes<'b>(self, digits: &'b mut Digits) -> &'b [u8]
    where
        'a: 'b,
    {
        match self {
            Item::Bytes(bytes) => bytes,
            Item::Int(number) => digits.0.format(number).as_bytes(),
        }
    }

    pub fn to_vec(self) -> Vec<u8> {
        self.bytes(&mut Digits::default()).to_vec()
    }

    /// Returns the integer if the string is its canonical text, in Redis' sense: no sign but a minus, no
    /// leading zero.
    pub fn int(self) -> Option<i64> {
        match self {
            Item::Int(number) => Some(number),
            Item::Bytes(bytes) => canonical_int(bytes),
        }
    }
}

impl<'a> From<&'a [u8]> for Item<'a> {
    fn from(bytes: &'a [u8]) -> Item<'a> {
        Item::Bytes(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Item<'a> {
    fn from(bytes: &'a Vec<u8>) -> Item<'a> {
        Item::Bytes(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Item<'a> {
    fn from(bytes: &'a [u8; N]) -> Item<'a> {
        Item::Bytes(bytes)
    }
}

impl From<i64> for Item<'_> {
    fn from(number: i64) -> Self {
        Item::Int(number)
    }
}

fn canonical_int(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut magnitude = 0u64; // 19 digits fit
    for digit in digits {
        match digit.wrapping_sub(b'0') {
            digit @ 0..=9 => magnitude = magnitude * 10 + u64::from(digit),
            _ => return None,
        }
    }
    match negative {
        true => 0i64.checked_sub_unsigned(magnitude),
        false => i64::try_from(magnitude).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_texts_are_integers() {
        for number in [0, 1, -1, 10, 12_345, i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1] {
            assert_eq!(canonical_int(number.to_string().as_bytes()), Some(number));
            assert_eq!(Item::Int(number).to_vec(), number.to_string().into_bytes());
        }
        for text in ["", "-", "-0", "00", "01", "+1", " 1", "1 ", "1a", "a", "9223372036854775808"] {
            assert_eq!(canonical_int(text.as_bytes()), None, "{text}");
        }
        assert_eq!(canonical_int(b"-9223372036854775809"), None);
        assert_eq!(canonical_int(b"99999999999999999999"), None);
    }
}
