//! Integers as Redis reads them from clients: strict, decimal, no leading zeros, no plus sign, no spaces.

/// Parses `text` as a signed 64-bit integer; `None` unless the number prints back to the same bytes.
///
/// ```
/// use evenkeel_resp::number::parse_i64;
/// assert_eq!(parse_i64(b"-12"), Some(-12));
/// assert_eq!(parse_i64(b"012"), None);
/// assert_eq!(parse_i64(b"9223372036854775808"), None);
/// ```
#[inline]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0), // Redis refuses "-0"
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut magnitude: u64 = 0; // nineteen digits fit
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        magnitude = magnitude * 10 + u64::from(digit);
    }
    match negative {
        true if magnitude <= 1 << 63 => Some((magnitude as i64).wrapping_neg()),
        false => i64::try_from(magnitude).ok(),
        _ => None,
    }
}

/// Parses `text` as an unsigned 64-bit integer, under the same rules.
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    match text {
        [b'0'] => return Some(0),
        [b'1'..=b'9', ..] if text.len() <= 20 => {}
        _ => return None,
    }
    let mut value: u64 = 0;
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_print_back_or_are_refused() {
        for value in [0, 1, -1, 9, 10, i64::MAX, i64::MIN, i64::MIN + 1, 1 << 40] {
            assert_eq!(parse_i64(value.to_string().as_bytes()), Some(value));
        }
        for text in
            ["", "-", "+1", "-0", "00", "01", "-01", " 1", "1 ", "1.0", "1e3", "0x1", "a", "1a", "-a", "--1"]
        {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text:?}");
        }
        for text in
            ["9223372036854775808", "-9223372036854775809", "18446744073709551616", "99999999999999999999"]
        {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
        assert_eq!(parse_u64(b"99999999999999999999999"), None);
    }
}
