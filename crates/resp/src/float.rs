//! Doubles as Redis 7.0 reads and prints them: scores, weights, coordinates.
//!
//! Parsing follows C's `strtod`: decimal with or without an exponent, hexadecimal, infinities. Printing
//! follows `%.17g`: 17 significant digits, which read back to the same double, without trailing zeros; so 0.1
//! is `0.10000000000000001`. Nearly all scores are integers and take neither path.

use std::io::Write;

/// Decimal digits that distinguish a double from every other double.
const DIGITS: usize = 17;

/// Parses `text`, all of which must be a number: no space, no NaN, no value that overflows or underflows.
///
/// ```
/// use evenkeel_resp::float::parse;
/// assert_eq!(parse(b"-1.5e3"), Some(-1500.0));
/// assert_eq!(parse(b"0x.8p1"), Some(1.0));
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

/// Parses `text` as Redis parses the ends of ranges. Leading spaces are skipped, a zero byte ends the text,
/// and an empty text is zero. A value that overflows is infinite; a value that underflows is zero.
pub fn parse_leniently(text: &[u8]) -> Option<f64> {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    if text.is_empty() {
        return Some(0.0);
    }
    let spaces = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).count();
    Some(read(&text[spaces..])?.value)
}

/// Parses `text` as SORT parses weights. Leading spaces are skipped, a zero byte ends the text, and an empty
/// text is zero. Refuses values that overflow, and values so close to zero that they lose digits.
///
/// ```
/// use evenkeel_resp::float::parse_weight;
/// assert_eq!(parse_weight(b" \t1.5"), Some(1.5));
/// assert_eq!(parse_weight(b""), Some(0.0));
/// assert_eq!(parse_weight(b"7\0x"), Some(7.0));
/// assert_eq!(parse_weight(b"1e-310"), None);
/// ```
#[inline]
pub fn parse_weight(text: &[u8]) -> Option<f64> {
    small_integer(text).or_else(|| parse_odd_weight(text))
}

fn parse_odd_weight(text: &[u8]) -> Option<f64> {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    if text.is_empty() {
        return Some(0.0);
    }
    let spaces = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).count();
    let Read { value, fits } = read(&text[spaces..])?;
    let is_hexadecimal = text.iter().any(|byte| matches!(byte, b'x' | b'X'));
    (fits && (is_hexadecimal || !value.is_subnormal())).then_some(value)
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
        [b'0', b'x' | b'X', digits @ ..] => hexadecimal(digits)?,
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

/// Parses the text behind `0x`: digits with or without a point, and an exponent of two, in decimal, after a
/// `p`.
fn hexadecimal(text: &[u8]) -> Option<Read> {
    let end = text.iter().position(|byte| byte.eq_ignore_ascii_case(&b'p')).unwrap_or(text.len());
    let exponent = text[end..].split_first().map_or(Some(0), |(_letter, behind)| parse_exponent(behind))?;
    let digits = &text[..end];
    // The first 60 significant bits, and whether bits behind them are set.
    let (mut bits, mut lost, mut any, mut point) = (0_u64, false, false, false);
    let mut shift = exponent;
    for byte in digits {
        if *byte == b'.' && !point {
            point = true;
            continue;
        }
        let digit = u64::from(char::from(*byte).to_digit(16)?);
        any = true;
        if bits >> 56 == 0 {
            bits = bits << 4 | digit;
            shift -= if point { 4 } else { 0 };
        } else {
            lost |= digit != 0;
            shift += if point { 0 } else { 4 };
        }
    }
    any.then(|| scaled(bits, lost, shift))
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

/// Returns the double nearest to `(bits + rest) * 2^exponent`; the rest lies between 0 and 1 if `lost`, else
/// it is 0.
fn scaled(bits: u64, lost: bool, exponent: i64) -> Read {
    if bits == 0 {
        return Read { value: 0.0, fits: true };
    }
    let zeros = bits.leading_zeros();
    let (bits, exponent) = (bits << zeros, exponent - i64::from(zeros));
    // Of 64 bits, 53 are kept; of a number close to zero, fewer.
    let drop = (-1074 - exponent).max(11);
    if drop > 64 {
        return Read { value: 0.0, fits: false };
    }
    let whole = u128::from(bits);
    let (kept, rest, half) = (whole >> drop, whole & ((1 << drop) - 1), 1 << (drop - 1));
    let up = rest > half || rest == half && (lost || kept & 1 == 1);
    let kept = (kept + u128::from(up)) as f64;
    let power = (exponent + drop).min(2000) as i32;
    // Two steps, each exact: the power alone may be out of range although the product is not.
    let value = kept * 2_f64.powi(power / 2) * 2_f64.powi(power - power / 2);
    Read { value, fits: value.is_finite() && value != 0.0 }
}

/// A double as text, without an allocation.
pub struct Text {
    bytes: [u8; 32],
    len: usize,
}

impl Text {
    /// Prints `value` as C does with `%.17g`.
    #[inline]
    pub fn new(value: f64) -> Text {
        /// Integers below this bound have at most 17 digits, and doubles hold them exactly.
        const WHOLE: f64 = 1e15;
        let mut text = Text { bytes: [0; 32], len: 0 };
        if value.abs() < WHOLE && value == value.trunc() && (value != 0.0 || value.is_sign_positive()) {
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
        let (digits, exponent) = digits_of(value.abs());
        let len = digits.iter().rposition(|digit| *digit != b'0').map_or(1, |last| last + 1);
        self.push_digits(&digits[..len], exponent);
    }

    /// Appends the number `d.ddd * 10^exponent`.
    fn push_digits(&mut self, digits: &[u8], exponent: i32) {
        if !(-4..DIGITS as i32).contains(&exponent) {
            self.push(&digits[..1]);
            if digits.len() > 1 {
                self.push(b".");
                self.push(&digits[1..]);
            }
            let mut rest = &mut self.bytes[self.len..];
            let room = rest.len();
            let sign = if exponent < 0 { '-' } else { '+' };
            write!(rest, "e{sign}{:02}", exponent.unsigned_abs()).expect("24 digits at most come before it");
            self.len += room - rest.len();
        } else if exponent < 0 {
            self.push(&b"0.0000"[..(1 - exponent) as usize]);
            self.push(digits);
        } else {
            let whole = exponent as usize + 1;
            let (before, after) = digits.split_at(whole.min(digits.len()));
            self.push(before);
            self.push(&[b'0'; DIGITS][..whole - before.len()]);
            if !after.is_empty() {
                self.push(b".");
                self.push(after);
            }
        }
    }
}

/// Returns the 17 digits of a number above zero, and the power of ten of the first digit.
fn digits_of(value: f64) -> ([u8; DIGITS], i32) {
    let mut text = [0; 32];
    let mut rest = &mut text[..];
    write!(rest, "{value:.16e}")
        .expect("a digit, a point, 16 digits, and an exponent of five letters at most");
    let len = 32 - rest.len();
    let mut digits = [0; DIGITS];
    digits[0] = text[0];
    digits[1..].copy_from_slice(&text[2..DIGITS + 1]);
    let exponent = std::str::from_utf8(&text[DIGITS + 2..len]).ok().and_then(|text| text.parse().ok());
    (digits, exponent.expect("an integer follows the e"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::random::{Random, fresh_seed};

    fn print(value: f64) -> String {
        String::from_utf8_lossy(Text::new(value).as_bytes()).into_owned()
    }

    /// Expected texts: replies of redis-server 7.0.15 to ZSCORE after ZADD.
    #[test]
    fn scores_are_printed_like_in_redis() {
        for (text, printed) in [
            ("0.1", "0.10000000000000001"),
            ("1e17", "1e+17"),
            ("1e16", "10000000000000000"),
            ("1e20", "1e+20"),
            ("123456789012345678", "1.2345678901234568e+17"),
            ("12345678901234567", "12345678901234568"),
            ("inf", "inf"),
            ("-Infinity", "-inf"),
            ("+iNf", "inf"),
            ("0x10", "16"),
            ("0x1p3", "8"),
            ("0X.8P1", "1"),
            ("0x1.fffffffffffff7p0", "1.9999999999999998"),
            ("0x1.fffffffffffff8p0", "2"),
            ("0x1.00000000000008p0", "1"),
            ("0x1.000000000000080000000000000000000001p0", "1.0000000000000002"),
            ("-0x1p-1074", "-4.9406564584124654e-324"),
            ("0x1.8p-1075", "4.9406564584124654e-324"),
            ("4e-324", "4.9406564584124654e-324"),
            ("1e-308", "9.9999999999999991e-309"),
            ("2.2250738585072014e-308", "2.2250738585072014e-308"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
            ("0x1.fffffffffffffp1023", "1.7976931348623157e+308"),
            ("1.", "1"),
            (".5", "0.5"),
            ("+5", "5"),
            ("-7", "-7"),
            ("1e+5", "100000"),
            ("0.30000000000000004", "0.30000000000000004"),
            ("0.0001", "0.0001"),
            ("0.00001", "1.0000000000000001e-05"),
            ("0.000012345", "1.2345e-05"),
            ("-0.0001220703125", "-0.0001220703125"),
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
            "", " ", ".", "-", "+", "e5", "1e", "1e+", "0x", "0x.", "0x1p", "0xg", "1..2", "--1", "+-1", " 1",
            "1 ", "1\0", "nan", "-nan", "nan(1)", "1_0", "infi", "abc", "1e400", "-1e400", "1e-400", "2e-324",
            "0x1p1024", "0x1p-1075",
            "0x1p-9999999999999999999", "0x1p9999999999999999999", "0x1.fffffffffffff8p1023", "e", "0x1.1.1",
        ];
        for text in texts {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse(&[b'1'; 400]), None);
        assert_eq!(parse(&[b"0x", &[b'1'; 400][..]].concat()), None);
    }

    #[test]
    fn ends_of_ranges_are_read_as_c_reads_text() {
        for (text, value) in [
            (&b""[..], 0.0),
            (b"\0junk", 0.0),
            (b" 1", 1.0),
            (b"\t\r\n2\0", 2.0),
            (b"1e400", f64::INFINITY),
            (b"-1e400", f64::NEG_INFINITY),
            (b"1e-400", 0.0),
            (b"0x1p2", 4.0),
        ] {
            assert_eq!(parse_leniently(text), Some(value), "{text:?}");
        }
        for text in [&b" "[..], b" \0", b"1 ", b"nan", b"a", b"("] {
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

    /// Hexadecimal digits are a double's own bits.
    #[test]
    fn hexadecimal_is_exact() {
        let seed = fresh_seed();
        println!("EVENKEEL_SEED={seed}");
        let mut random = Random::new(seed);
        for _ in 0..20_000 {
            let value = f64::from_bits(random.draw() >> 1);
            if !value.is_normal() {
                continue;
            }
            let bits = value.to_bits();
            let text = format!("0x1.{:013x}p{}", bits & ((1 << 52) - 1), (bits >> 52) as i64 - 1023);
            assert_eq!(parse(text.as_bytes()), Some(value), "{text}");
        }
    }
}
