//! Numbers in arrays: Redis keeps and writes a text as a number if the number prints back to the text.

use crate::item::Item;

/// A text that Redis keeps as a number in an array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Numeral {
    Int(i64),
    Float(f64),
}

/// Redis keeps an integer or a float in a word of 64 bits, of which it needs the lowest two for itself.
const TAG_BITS: u32 = 2;
const INT_MAX: i64 = i64::MAX >> TAG_BITS;

/// Longest text of such a float: Redis prints 17 digits, a sign, a point, and some zeros.
const FLOAT_LEN_MAX: usize = 32;

/// Integers up to here are printed without an exponent.
const WHOLE_MAX: f64 = (1_u64 << 52) as f64;

impl Numeral {
    /// Returns the number that a text stands for, if the text is the number's own.
    pub fn of(text: &[u8]) -> Option<Numeral> {
        match Item::Bytes(text).int() {
            Some(number) if (-INT_MAX - 1..=INT_MAX).contains(&number) => Some(Numeral::Int(number)),
            Some(_) => None,
            None => float_of(text).map(Numeral::Float),
        }
    }
}

/// Without the lowest two bits, as Redis keeps it.
pub(crate) fn without_tag(value: f64) -> f64 {
    f64::from_bits(value.to_bits() >> TAG_BITS << TAG_BITS)
}

fn float_of(text: &[u8]) -> Option<f64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let points = digits.iter().filter(|byte| **byte == b'.').count();
    let is_plain = digits.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    if points != 1 || !is_plain || text.len() > FLOAT_LEN_MAX {
        return None;
    }
    let value = without_tag(std::str::from_utf8(text).ok()?.parse().ok()?);
    (print(value).as_bytes() == text).then_some(value)
}

/// Prints a finite float as Redis prints a float of an array: the fewest digits that read back to the same
/// float, and a point in any case.
pub(crate) fn print(value: f64) -> String {
    let whole = value.abs() <= WHOLE_MAX && value == value.trunc();
    let text = if whole { format!("{value}") } else { shortest(value) };
    if text.contains(['.', 'e']) { text } else { text + ".0" }
}

/// Prints with an exponent from a certain length on, as the algorithm does that Redis uses (Grisu2, by
/// Andreas Samoljuk).
fn shortest(value: f64) -> String {
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let len = digits.bytes().filter(u8::is_ascii_digit).count() as i32;
    // The power of ten of the last digit.
    let last = exponent - len + 1;
    let distance = exponent.abs();
    if last >= 0 && distance < len + 7 || last < 0 && (last > -7 || distance < 4) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { "" } else { "+" };
    format!("{digits}e{sign}{exponent}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_numbers_are_numbers_only_if_they_print_back() {
        for (text, number) in [
            ("0", Some(Numeral::Int(0))),
            ("-17", Some(Numeral::Int(-17))),
            ("2305843009213693951", Some(Numeral::Int((1 << 61) - 1))),
            ("-2305843009213693952", Some(Numeral::Int(-1 << 61))),
            ("2305843009213693952", None),
            ("007", None),
            ("1.0", Some(Numeral::Float(1.0))),
            ("-42.0", Some(Numeral::Float(-42.0))),
            ("0.5", Some(Numeral::Float(0.5))),
            ("-0.0", Some(Numeral::Float(-0.0))),
            // The lowest bits of the first are zero, and those of the second are not.
            ("0.06", Some(Numeral::Float(0.06))),
            ("3.14", None),
            ("0.00", None),
            ("10.500", None),
            ("001.25", None),
            ("1.", None),
            (".5", None),
            ("1e3", None),
            ("1.0e+100", None),
            ("", None),
            ("-", None),
            (".", None),
            ("1.0.0", None),
            ("nan", None),
        ] {
            assert_eq!(Numeral::of(text.as_bytes()), number, "{text}");
        }
        assert!(matches!(Numeral::of(b"-0.0"), Some(Numeral::Float(zero)) if zero.is_sign_negative()));
    }

    #[test]
    fn floats_print_with_few_digits() {
        for (value, text) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.25, "0.25"),
            (1e300, "1e+300"),
            (1.5e-9, "1.5e-9"),
            (0.001, "0.001"),
            (4503599627370496.0, "4503599627370496.0"),
            (1e22, "1e+22"),
            (12345.678, "12345.678"),
        ] {
            assert_eq!(print(value), text);
        }
    }
}
