//! Integers as Redis reads them from clients: strict, decimal, no leading zeros, no plus sign, no spaces.

/// Parses `text` as a signed 64-bit integer; `None` for anything that would not print back to the same bytes.
///
/// ```
/// use evenkeel_resp::number::parse_i64;
/// assert_eq!(parse_i64(b"-12"), Some(-12));
/// assert_eq!(parse_i64(b"012"), None);
/// assert_eq!(parse_i64(b"9223372036854775808"), None);
/// ```
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let magnitude = parse_u64(digits)?;
    match (negative, magnitude) {
        (true, 0) => None, // "-0" is no integer to Redis
        (true, m) if m <= 1 << 63 => Some((m as i64).wrapping_neg()),
        (false, m) if m < 1 << 63 => Some(m as i64),
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
            ["", "-", "+1", "-0", "00", "01", " 1", "1 ", "1.0", "a", "-a", "--1", "9223372036854775808"]
        {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse_i64(b"-9223372036854775809"), None);
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
        assert_eq!(parse_u64(b"99999999999999999999999"), None);
    }
}
