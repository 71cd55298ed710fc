//! Doubles as Valkey reads and prints them: scores, weights, coordinates.
//!
//! Texts are decimal with or without an exponent, or infinities. Printing chooses the fewest digits that read
//! back to the same double, so 0.1 is `0.1`; Valkey's algorithm prints a digit more than needed for about one
//! in a thousand doubles of 16 digits. Nearly all scores are integers and take neither path.

use std::io::Write;

/// Decimal digits that distinguish any double from every other double.
const DIGITS: usize = 17;

/// Parses `text`, all of which must be a number: no space, no NaN, no value that overflows or underflows.
///
/// ```
/// use evenkeel_resp::float::parse;
/// assert_eq!(parse(b"-1.5e3"), Some(-1500.0));
/// assert_eq!(parse(b"0x10"), None);
/// assert_eq!(parse(b"-Infinity"), Some(f64::NEG_INFINITY));
/// assert_eq!(parse(b"1e400"), None);
/// assert_eq!(parse(b" 1"), None);
/// ```
#[inline]
pub fn parse(text: &[u8]) -> Option<f64> {
    if let Some(integer) = small_integer(text) {
        return Some(integer);
    }
    match read(text)? {
        Read { value, fits: true } => Some(value),
        Read { fits: false, .. } => None,
    }
}

/// Parses `text` as the ends of ranges are parsed: a zero byte ends the text, and an empty text is zero. A
/// value that overflows is infinite; a value that underflows is zero.
pub fn parse_leniently(text: &[u8]) -> Option<f64> {
    match until_zero(text) {
        [] => Some(0.0),
        text => Some(read(text)?.value),
    }
}

/// Parses `text` as SORT parses weights: a zero byte ends the text. Refuses values that overflow or
/// underflow.
///
/// ```
/// use evenkeel_resp::float::parse_weight;
/// assert_eq!(parse_weight(b"1.5"), Some(1.5));
/// assert_eq!(parse_weight(b""), None);
/// assert_eq!(parse_weight(b"7\0x"), Some(7.0));
/// assert_eq!(parse_weight(b"1e-400"), None);
/// ```
#[inline]
pub fn parse_weight(text: &[u8]) -> Option<f64> {
    parse(until_zero(text))
}

fn until_zero(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Parses up to 15 digits, which a double holds exactly. `None` for a negative zero, whose sign `read` keeps.
#[inline]
fn small_integer(text: &[u8]) -> Option<f64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if !(1..=15).contains(&digits.len()) {
        return None;
    }
    let mut value = 0_u64;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + u64::from(digit);
    }
    if !negative {
        Some(value as f64)
    } else if value > 0 {
        Some(-(value as f64))
    } else {
        None
    }
}

struct Read {
    value: f64,
    /// The value neither overflowed nor underflowed.
    fits: bool,
}

fn read(text: &[u8]) -> Option<Read> {
    let (negative, rest) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let read = match rest {
        [b'0'..=b'9' | b'.', ..] => decimal(rest)?,
        _ if rest.eq_ignore_ascii_case(b"inf") || rest.eq_ignore_ascii_case(b"infinity") => {
            Read { value: f64::INFINITY, fits: true }
        }
        _ => return None,
    };
    Some(Read { value: if negative { -read.value } else { read.value }, ..read })
}

/// Parses `text` that begins with a digit or a point. This excludes the words that Rust's parser also
/// accepts.
fn decimal(text: &[u8]) -> Option<Read> {
    let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let mut digits = text.iter().take_while(|byte| matches!(byte, b'0'..=b'9' | b'.'));
    let is_zero = digits.all(|byte| matches!(byte, b'0' | b'.'));
    Some(Read { value, fits: value.is_finite() && (value != 0.0 || is_zero) })
}

/// Parses the text behind an exponent's letter: an optional sign and digits. The value is capped where more
/// digits no longer matter.
pub fn parse_exponent(text: &[u8]) -> Option<i64> {
    const FAR: i64 = 1 << 40;
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = digits.iter().fold(0, |value, digit| (value * 10 + i64::from(digit - b'0')).min(FAR));
    Some(if negative { -value } else { value })
}

/// A double as text, without an allocation.
pub struct Text {
    bytes: [u8; 32],
    len: usize,
}

impl Text {
    /// Prints `value` with the fewest digits that read back to it.
    #[inline]
    pub fn new(value: f64) -> Text {
        /// Integers up to this bound, 2^62, are printed with all their digits.
        const WHOLE: f64 = 4_611_686_018_427_387_904.0;
        let mut text = Text { bytes: [0; 32], len: 0 };
        if value.abs() <= WHOLE && value == value.trunc() && (value != 0.0 || value.is_sign_positive()) {
            text.push(itoa::Buffer::new().format(value as i64).as_bytes());
        } else {
            text.push_general(value);
        }
        text
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn push_general(&mut self, value: f64) {
        if value.is_nan() {
            return self.push(b"nan");
        }
        if value.is_sign_negative() {
            self.push(b"-");
        }
        if value.is_infinite() {
            return self.push(b"inf");
        }
        if value == 0.0 {
            return self.push(b"0");
        }
        let Digits { digits, len, exponent } = Digits::of(value.abs());
        self.push_digits(&digits[..len], exponent);
    }

    /// Appends the number `d.ddd * 10^exponent`, whose last digit is not zero.
    fn push_digits(&mut self, digits: &[u8], exponent: i32) {
        let len = digits.len() as i32;
        // The power of ten of the last digit.
        let last = exponent - len + 1;
        if (0..len + 7).contains(&exponent) && last >= 0 {
            self.push(digits);
            self.push(&[b'0'; 7][..last as usize]);
        } else if last < 0 && (last > -7 || exponent.abs() < 4) {
            let (before, after) = digits.split_at((exponent + 1).max(0) as usize);
            self.push(if before.is_empty() { b"0" } else { before });
            self.push(b".");
            self.push(&[b'0'; 5][..(-exponent - 1).max(0) as usize]);
            self.push(after);
        } else {
            self.push(&digits[..1]);
            if digits.len() > 1 {
                self.push(b".");
                self.push(&digits[1..]);
            }
            self.push(if exponent < 0 { b"e-" } else { b"e+" });
            self.push(itoa::Buffer::new().format(exponent.unsigned_abs()).as_bytes());
        }
    }
}

/// The significant digits of a number above zero.
struct Digits {
    /// The first `len` bytes count.
    digits: [u8; DIGITS],
    len: usize,
    /// The power of ten of the first digit.
    exponent: i32,
}

impl Digits {
    fn of(value: f64) -> Digits {
        let mut text = [0; 32];
        let mut rest = &mut text[..];
        write!(rest, "{value:e}")
            .expect("17 digits at most, a point, and an exponent of five letters at most");
        let len = 32 - rest.len();
        let mut found = Digits { digits: [b'0'; DIGITS], len: 0, exponent: 0 };
        let end = text[..len].iter().position(|byte| *byte == b'e').expect("the exponent's letter");
        for digit in text[..end].iter().filter(|byte| **byte != b'.') {
            found.digits[found.len] = *digit;
            found.len += 1;
        }
        let exponent = std::str::from_utf8(&text[end + 1..len]).ok().and_then(|text| text.parse().ok());
        found.exponent = exponent.expect("an integer follows the e");
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::random::{Random, fresh_seed};

    fn print(value: f64) -> String {
        String::from_utf8_lossy(Text::new(value).as_bytes()).into_owned()
    }

    /// Expected texts: replies of Valkey 9.1.2 to ZSCORE after ZADD.
    #[test]
    fn scores_are_printed_like_in_valkey() {
        for (text, printed) in [
            ("0.1", "0.1"),
            ("1e15", "1000000000000000"),
            ("1e18", "1000000000000000000"),
            ("1e19", "1e+19"),
            ("1.5e21", "1.5e+21"),
            ("123456789012345678", "123456789012345680"),
            ("-12345678901234567", "-12345678901234568"),
            ("9223372036854775807", "9223372036854776000"),
            ("12345678901234567890123", "12345678901234568000000"),
            ("123456789012345678901234567890", "1.2345678901234568e+29"),
            ("inf", "inf"),
            ("-Infinity", "-inf"),
            ("+iNf", "inf"),
            ("4e-324", "5e-324"),
            ("1e-308", "1e-308"),
            ("2.2250738585072014e-308", "2.2250738585072014e-308"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
            ("1.", "1"),
            (".5", "0.5"),
            ("+5", "5"),
            ("-7", "-7"),
            ("1e+5", "100000"),
            ("0.30000000000000004", "0.30000000000000004"),
            ("1234567890123.456", "1234567890123.456"),
            ("0.0001", "0.0001"),
            ("0.00012", "0.00012"),
            ("0.000001", "0.000001"),
            ("0.0000001", "1e-7"),
            ("1.234e-7", "1.234e-7"),
            ("0.000012345", "1.2345e-5"),
            ("-0.0001220703125", "-1.220703125e-4"),
            ("100.25", "100.25"),
            ("0", "0"),
            ("-0", "-0"),
            ("0e-99999", "0"),
        ] {
            let value = parse(text.as_bytes()).unwrap_or_else(|| panic!("{text} is a number"));
            assert_eq!(print(value), printed, "{text}");
        }
    }

    #[test]
    fn invalid_numbers_are_refused() {
        #[rustfmt::skip]
        let texts = [
            "", " ", ".", "-", "+", "e5", "1e", "1e+", "0x", "0x10", "1..2", "--1", "+-1", " 1", "1 ", "1\0",
            "nan", "-nan", "nan(1)", "1_0", "infi", "abc", "1e400", "-1e400", "1e-400", "2e-324", "e",
        ];
        for text in texts {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse(&[b'1'; 400]), None);
    }

    #[test]
    fn ends_of_ranges_end_at_a_zero_byte() {
        for (text, value) in [
            (&b""[..], 0.0),
            (b"\0junk", 0.0),
            (b"2\0", 2.0),
            (b"1e400", f64::INFINITY),
            (b"-1e400", f64::NEG_INFINITY),
            (b"1e-400", 0.0),
        ] {
            assert_eq!(parse_leniently(text), Some(value), "{text:?}");
        }
        for text in [&b" "[..], b" \0", b" 1", b"1 ", b"nan", b"a", b"(", b"0x1"] {
            assert_eq!(parse_leniently(text), None, "{text:?}");
        }
    }

    #[test]
    fn printed_numbers_read_back() {
        let seed = fresh_seed();
        println!("EVENKEEL_SEED={seed}");
        let mut random = Random::new(seed);
        for _ in 0..20_000 {
            let value = match random.below(3) {
                0 => f64::from_bits(random.draw()),
                1 => random.between(-1_000_000_000_000_000_000, 1_000_000_000_000_000_000) as f64,
                _ => random.between(-1_000_000, 1_000_000) as f64 / 4096.0,
            };
            if value.is_nan() {
                continue;
            }
            let text = print(value);
            assert_eq!(parse(text.as_bytes()).map(f64::to_bits), Some(value.to_bits()), "{text}");
        }
    }
}
