//! The 80-bit floats of INCRBYFLOAT, in software.
//!
//! Redis keeps a float as text and adds in the x87's extended precision: 64 bits of mantissa, printed with 17
//! decimals. So `3000` plus `0.1` is `3000.10000000000000009`, and a client that computes in the same steps
//! expects exactly that. Rust has no such type, so this file implements it. Parsing and addition round
//! correctly (to nearest, ties to even), and printing is exact. An ordinary text, of up to 19 digits with a
//! small exponent, takes a single 128-bit division; longer texts go through [`Natural`].

use std::cmp::Ordering;

use evenkeel_resp::float;

use crate::bignum::{Natural, power_of, ten_to};

/// Longest text that is parsed; Redis' own limit.
const TEXT_LEN_MAX: usize = 5 * 1024 - 1;

/// The largest exponent of a number and the smallest, denormal numbers included.
const EXPONENT_MAX: i64 = 16_383 - 63;
const EXPONENT_MIN: i64 = -16_382 - 63;

/// Decimals that are printed at most.
const DECIMALS: usize = 17;
const TEN_TO_DECIMALS: u128 = 10_u128.pow(DECIMALS as u32);

/// A float: `mantissa * 2^exponent`, negated or not, or infinite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extended {
    /// The mantissa's highest bit is set, unless it is zero.
    Finite {
        negative: bool,
        mantissa: u64,
        exponent: i64,
    },
    Infinite {
        negative: bool,
    },
}

const ZERO: Extended = Extended::ZERO;

impl Extended {
    pub const ZERO: Extended = Extended::Finite { negative: false, mantissa: 0, exponent: 0 };

    /// The largest finite number.
    pub const MAX: Extended =
        Extended::Finite { negative: false, mantissa: u64::MAX, exponent: EXPONENT_MAX };

    /// Parses a decimal, hexadecimal or infinite number, if C's `strtold` would read it to its end. `None`
    /// for any other text, for a NaN, and for a number that is too large or too close to zero.
    pub fn parse(text: &[u8]) -> Option<Extended> {
        if text.len() > TEXT_LEN_MAX {
            return None;
        }
        let (negative, text) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            _ => (false, text),
        };
        if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity") {
            return Some(Extended::Infinite { negative });
        }
        let number = match text {
            [b'0', b'x' | b'X', rest @ ..] => Literal::parse(rest, 16)?.hexadecimal(negative),
            _ => Literal::parse(text, 10)?.decimal(negative),
        };
        number.filter(|number| matches!(number, Extended::Finite { .. }))
    }

    pub fn is_finite(self) -> bool {
        matches!(self, Extended::Finite { .. })
    }

    /// Returns the sum; `None` if it is infinite or not a number.
    pub fn plus(self, other: Extended) -> Option<Extended> {
        use Extended::Finite;
        let (Finite { negative, mantissa, exponent }, Finite { negative: n, mantissa: m, exponent: e }) =
            (self, other)
        else {
            return None;
        };
        if m == 0 {
            return Some(self);
        }
        if mantissa == 0 {
            return Some(other);
        }
        if (exponent, mantissa) < (e, m) {
            return other.plus(self);
        }
        // From here on `self` is the larger number. 63 bits below its mantissa are kept. Of bits beyond them
        // only the presence matters, since the sum of two numbers so far apart loses at most a single bit at
        // the top.
        let apart = (exponent - e).min(127) as u32;
        let (large, whole) = (u128::from(mantissa) << 63, u128::from(m) << 63);
        let (small, lost) = (whole >> apart, whole & ((1 << apart) - 1) != 0);
        let sum = if negative == n { large + small } else { large - small - u128::from(lost) };
        let sum = round(negative, sum, exponent - 63, lost);
        sum.filter(|sum| matches!(sum, Finite { .. }))
    }

    /// Returns a double next to this number; infinite if it is too large for a double.
    pub fn nearest_double(self) -> f64 {
        let (negative, value) = match self {
            Extended::Infinite { negative } => (negative, f64::INFINITY),
            Extended::Finite { negative, mantissa, exponent } => {
                // Two steps: a power alone may be out of range although the product is not.
                let power = exponent.clamp(-2_000, 2_000) as i32;
                let (half, rest) = (power / 2, power - power / 2);
                (negative, mantissa as f64 * 2_f64.powi(half) * 2_f64.powi(rest))
            }
        };
        if negative { -value } else { value }
    }

    /// Compares two numbers; zeros of both signs are the same number.
    pub fn compare(self, other: Extended) -> Ordering {
        match (self.rank(), other.rank()) {
            (own, others) if own.is_negative() && others.is_negative() => {
                other.magnitude().cmp(&self.magnitude())
            }
            (own, others) if own != others => own.cmp(&others),
            _ => self.magnitude().cmp(&other.magnitude()),
        }
    }

    /// Returns -1, 0 or 1 with the number's sign.
    fn rank(self) -> i8 {
        match self {
            Extended::Finite { mantissa: 0, .. } => 0,
            _ if self.is_negative() => -1,
            _ => 1,
        }
    }

    /// Returns a key that grows with the absolute value.
    fn magnitude(self) -> (i64, u64) {
        match self {
            Extended::Finite { mantissa: 0, .. } => (i64::MIN, 0),
            Extended::Finite { mantissa, exponent, .. } => (exponent, mantissa),
            Extended::Infinite { .. } => (i64::MAX, 0),
        }
    }

    /// Returns the number with the other sign.
    pub fn negated(self) -> Extended {
        match self {
            Extended::Finite { negative, mantissa, exponent } => {
                Extended::Finite { negative: !negative, mantissa, exponent }
            }
            Extended::Infinite { negative } => Extended::Infinite { negative: !negative },
        }
    }

    pub fn is_negative(self) -> bool {
        match self {
            Extended::Finite { negative, .. } | Extended::Infinite { negative } => negative,
        }
    }

    /// Returns a thousand times the number, rounded to a float and then up to an integer, as Redis converts
    /// seconds to milliseconds; `None` if that is beyond 64 bits.
    pub fn thousandfold_up(self) -> Option<i64> {
        let Extended::Finite { negative, mantissa, exponent } = self else { return None };
        let Some(Extended::Finite { mantissa, exponent, .. }) =
            round(negative, u128::from(mantissa) * 1000, exponent, false)
        else {
            return if exponent < 0 { Some(0) } else { None };
        };
        let whole = match exponent {
            _ if mantissa == 0 => 0,
            0.. => return None, // the highest of the 64 bits is set
            -63..=-1 => {
                let (whole, rest) = (mantissa >> -exponent, mantissa & ((1 << -exponent) - 1));
                whole + u64::from(rest > 0 && !negative)
            }
            _ => u64::from(!negative),
        };
        let whole = i64::try_from(whole).ok()?;
        Some(if negative { -whole } else { whole })
    }

    /// Returns the other number if it is less, or greater, than this one.
    pub fn extreme(self, other: Extended, wanted: Ordering) -> Extended {
        if other.compare(self) == wanted { other } else { self }
    }

    /// Returns the number without its fraction; `None` if that is beyond 64 bits.
    pub fn whole(self) -> Option<i64> {
        let Extended::Finite { negative, mantissa, exponent } = self else { return None };
        let magnitude = match exponent {
            _ if mantissa == 0 => 0,
            1.. => return None, // the highest of the 64 bits is set
            -63..=0 => mantissa >> -exponent,
            _ => 0,
        };
        if negative { 0_i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
    }

    /// Prints the number as C does with `%.17Lg`: 17 digits, without zeros at their end, and an exponent
    /// where the number is very large or close to zero.
    pub fn print_general(self) -> String {
        let Extended::Finite { negative, mantissa, exponent } = self else { return self.print() };
        let sign = if negative { "-" } else { "" };
        if mantissa == 0 {
            return format!("{sign}0");
        }
        let (digits, exponent) = digits_of(mantissa, exponent);
        if !(-4..DECIMALS as i64).contains(&exponent) {
            let (first, rest) = digits.split_at(1);
            let point = if rest.is_empty() { "" } else { "." };
            let exponent_sign = if exponent < 0 { '-' } else { '+' };
            return format!("{sign}{first}{point}{rest}e{exponent_sign}{:02}", exponent.abs());
        }
        let Ok(whole) = usize::try_from(exponent + 1) else {
            return format!("{sign}0.{}{digits}", "0".repeat((-exponent - 1) as usize));
        };
        match digits.split_at_checked(whole) {
            None => format!("{sign}{digits}{}", "0".repeat(whole - digits.len())),
            Some(("", rest)) => format!("{sign}0.{rest}"),
            Some((whole, "")) => format!("{sign}{whole}"),
            Some((whole, rest)) => format!("{sign}{whole}.{rest}"),
        }
    }

    /// Prints the number as Redis does: 17 decimals, without zeros at their end; never an exponent.
    pub fn print(self) -> String {
        let (negative, mantissa, exponent) = match self {
            Extended::Infinite { negative: false } => return "inf".into(),
            Extended::Infinite { negative: true } => return "-inf".into(),
            Extended::Finite { negative, mantissa, exponent } => (negative, mantissa, exponent),
        };
        let mut text = if exponent >= 0 {
            Natural::from(u128::from(mantissa)).shifted_left(exponent as usize).print()
        } else {
            print_fraction(mantissa, (-exponent).min(127) as u32)
        };
        if negative && text != "0" {
            text.insert(0, '-');
        }
        text
    }
}

impl From<i64> for Extended {
    fn from(number: i64) -> Extended {
        round(number < 0, u128::from(number.unsigned_abs()), 0, false).unwrap_or(ZERO)
    }
}

impl From<f64> for Extended {
    /// The number is no NaN.
    fn from(number: f64) -> Extended {
        const FRACTION: u32 = 52;
        let (bits, negative) = (number.to_bits(), number.is_sign_negative());
        let (power, fraction) = (bits >> FRACTION & 0x7ff, bits & ((1 << FRACTION) - 1));
        let (mantissa, power) = if power == 0 { (fraction, 1) } else { (fraction | 1 << FRACTION, power) };
        match (number.is_finite(), mantissa) {
            (false, _) => Extended::Infinite { negative },
            (true, 0) => Extended::Finite { negative, mantissa: 0, exponent: 0 },
            _ => round(negative, u128::from(mantissa), power as i64 - 1075, false).unwrap_or(ZERO),
        }
    }
}

/// Returns up to 17 digits of `mantissa * 2^exponent`, which is not zero, without zeros at their end; and the
/// power of ten of the first.
fn digits_of(mantissa: u64, exponent: i64) -> (String, i64) {
    // Without the zeros at its end, most numbers are integers.
    let zeros = i64::from(mantissa.trailing_zeros()).min((-exponent).max(0));
    let (number, exponent) = (Natural::from(u128::from(mantissa >> zeros)), exponent + zeros);
    // A half is five tenths, so a number that is divided by two n times has n decimals.
    let (decimals, text) = if exponent >= 0 {
        (0, number.shifted_left(exponent as usize).print())
    } else {
        (-exponent, number.times(&power_of(5, -exponent as usize)).print())
    };
    let mut power = text.len() as i64 - 1 - decimals;
    let Some((kept, rest)) = text.split_at_checked(DECIMALS) else {
        return (text.trim_end_matches('0').to_owned(), power);
    };
    let is_odd = kept.ends_with(['1', '3', '5', '7', '9']);
    let is_half = rest.starts_with('5') && rest[1..].bytes().all(|digit| digit == b'0');
    let up = rest.as_bytes().first().is_some_and(|digit| *digit >= b'5') && (!is_half || is_odd);
    let mut digits: u128 = kept.parse().expect("17 digits");
    digits += u128::from(up);
    if digits == TEN_TO_DECIMALS {
        power += 1;
    }
    (digits.to_string().trim_end_matches('0').to_owned(), power)
}

/// Prints `mantissa / 2^shift`, rounded to 17 decimals. A shift of 127 stands for itself and all larger
/// shifts: the result is zero.
fn print_fraction(mantissa: u64, shift: u32) -> String {
    let mantissa = u128::from(mantissa);
    let whole = mantissa >> shift;
    // Below 2^64 * 10^17, which is below 2^121.
    let scaled = (mantissa & ((1 << shift) - 1)) * TEN_TO_DECIMALS;
    let (mut decimals, rest, half) = (scaled >> shift, scaled & ((1 << shift) - 1), 1 << (shift - 1));
    if rest > half || rest == half && decimals & 1 == 1 {
        decimals += 1;
    }
    let whole = whole + decimals / TEN_TO_DECIMALS;
    match decimals % TEN_TO_DECIMALS {
        0 => format!("{whole}"),
        decimals => {
            let text = format!("{whole}.{decimals:0width$}", width = DECIMALS);
            text.trim_end_matches('0').to_owned()
        }
    }
}

/// Returns the float nearest to `(bits + fraction) * 2^exponent`, with a fraction between zero and one if
/// `sticky`, else zero. `bits` is not zero, and has more than 64 bits if `sticky`. `None` when the result is
/// zero.
fn round(negative: bool, bits: u128, exponent: i64, sticky: bool) -> Option<Extended> {
    if bits == 0 {
        return Some(ZERO);
    }
    let zeros = bits.leading_zeros();
    let (bits, exponent) = (bits << zeros, exponent - i64::from(zeros));
    // Half of the bits are dropped, and more if the number is denormal.
    let drop = (EXPONENT_MIN - exponent).max(64);
    if drop > 128 {
        return None;
    }
    let (kept, rest) = if drop == 128 { (0, bits) } else { (bits >> drop, bits & ((1 << drop) - 1)) };
    let up = match rest.cmp(&(1 << (drop - 1))) {
        Ordering::Less => false,
        Ordering::Equal => sticky || kept & 1 == 1,
        Ordering::Greater => true,
    };
    let (kept, exponent) = (kept + u128::from(up), exponent + drop);
    if kept == 0 {
        return None;
    }
    // Rounding up may have made it 2^64, whose lowest bits are zeros.
    let zeros = i64::from(kept.leading_zeros()) - 64;
    let mantissa = if zeros < 0 { kept >> 1 } else { kept << zeros } as u64;
    let exponent = exponent - zeros;
    if exponent > EXPONENT_MAX {
        return Some(Extended::Infinite { negative });
    }
    Some(Extended::Finite { negative, mantissa, exponent })
}

/// A number as written: `digits * base^exponent` (in base 16: `digits * 2^exponent`).
struct Literal {
    /// Values, not characters; the first is not zero.
    digits: Vec<u8>,
    exponent: i64,
}

impl Literal {
    fn parse(text: &[u8], base: u8) -> Option<Literal> {
        let value = |byte: u8| char::from(byte).to_digit(u32::from(base)).map(|digit| digit as u8);
        let (mut digits, mut after_point, mut any, mut point) = (Vec::new(), 0, false, false);
        let mut at = 0;
        while let Some(byte) = text.get(at) {
            match (value(*byte), byte) {
                (Some(digit), _) => {
                    any = true;
                    after_point += i64::from(point);
                    if digit != 0 || !digits.is_empty() {
                        digits.push(digit);
                    }
                }
                (None, b'.') if !point => point = true,
                _ => break,
            }
            at += 1;
        }
        let given = parse_exponent(&text[at..], if base == 16 { b'p' } else { b'e' })?;
        let per_digit = if base == 16 { 4 } else { 1 };
        any.then(|| Literal { digits, exponent: given - after_point * per_digit })
    }

    fn hexadecimal(self, negative: bool) -> Option<Extended> {
        // 30 digits are 117 bits at least, more than enough to round by the mere presence of further digits.
        const EXACT: usize = 30;
        if self.digits.is_empty() {
            return Some(ZERO);
        }
        let (first, rest) = self.digits.split_at(self.digits.len().min(EXACT));
        let bits = first.iter().fold(0, |bits, digit| bits << 4 | u128::from(*digit));
        round(negative, bits, self.exponent + 4 * rest.len() as i64, rest.iter().any(|digit| *digit != 0))
    }

    fn decimal(mut self, negative: bool) -> Option<Extended> {
        // The largest number has 4,933 digits before the point, the smallest 4,950 zeros after it.
        const MAGNITUDE: std::ops::RangeInclusive<i64> = -4_951..=4_933;
        while self.digits.last() == Some(&0) {
            self.digits.pop();
            self.exponent += 1;
        }
        if self.digits.is_empty() {
            return Some(ZERO);
        }
        if !MAGNITUDE.contains(&(self.digits.len() as i64 + self.exponent)) {
            return None;
        }
        // 19 digits and 10^18 fit 64 bits each.
        if self.digits.len() <= 19 && self.exponent.abs() <= 18 {
            let digits = self.digits.iter().fold(0, |value, digit| value * 10 + u128::from(*digit));
            let power = 10_u128.pow(self.exponent.unsigned_abs() as u32);
            if self.exponent >= 0 {
                return round(negative, digits * power, 0, false);
            }
            // At least 2^127 divided by less than 2^60: more than the 64 bits that are needed.
            let shift = digits.leading_zeros();
            let digits = digits << shift;
            return round(negative, digits / power, -i64::from(shift), digits % power != 0);
        }
        self.decimal_by_naturals(negative)
    }

    /// [`Literal::decimal`] for any number of digits and any exponent within the range of magnitudes.
    fn decimal_by_naturals(&self, negative: bool) -> Option<Extended> {
        let digits = Natural::from_digits(&self.digits);
        let power = ten_to(self.exponent.unsigned_abs() as usize);
        let (bits, exponent, sticky) =
            if self.exponent >= 0 { digits.times(&power).top_bits() } else { digits.quotient_bits(&power) };
        round(negative, bits, exponent, sticky)
    }
}

/// Parses the text after the digits: empty, or a letter and an integer, which saturates.
fn parse_exponent(text: &[u8], letter: u8) -> Option<i64> {
    match text.split_first() {
        None => Some(0),
        Some((first, rest)) if first.eq_ignore_ascii_case(&letter) => float::parse_exponent(rest),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::random::printed as random;

    /// As `printf("%.17Lg")` of the GNU C library prints numbers of 80 bits.
    #[test]
    fn numbers_are_printed_with_17_digits() {
        for (text, printed) in [
            ("0", "0"),
            ("60", "60"),
            ("60.5", "60.5"),
            ("0.1", "0.10000000000000000"),
            ("3.14", "3.1400000000000000"),
            ("-2.5e-5", "-2.5000000000000000e-05"),
            ("0.0001", "0.00010000000000000000"),
            ("12345678901234567", "12345678901234567"),
            ("123456789012345678", "1.2345678901234568e+17"),
            ("99999999999999999.5", "1e+17"),
            ("1e4000", "1e+4000"),
            ("inf", "inf"),
            ("-infinity", "-inf"),
        ] {
            let is_fraction = printed.contains('.');
            let (head, tail) = printed
                .split_once('e')
                .map_or((printed, String::new()), |(head, exponent)| (head, format!("e{exponent}")));
            let head = if is_fraction { head.trim_end_matches('0').trim_end_matches('.') } else { head };
            let number = Extended::parse(text.as_bytes()).expect("a number");
            assert_eq!(number.print_general(), format!("{head}{tail}"), "{text}");
        }
        assert_eq!(Extended::from(0.1).print_general(), "0.10000000000000001");
        assert_eq!(Extended::from(i64::MIN).print_general(), "-9.2233720368547758e+18");
        assert_eq!(Extended::from(5e-324).print_general(), "4.9406564584124654e-324");
    }

    #[test]
    fn numbers_are_compared_and_cut() {
        let number = |text: &str| Extended::parse(text.as_bytes()).expect("a number");
        let ascending = ["-inf", "-1e300", "-2", "-1.5", "0", "1e-4000", "1.5", "2", "1e300", "inf"];
        for pair in ascending.windows(2) {
            let (less, more) = (number(pair[0]), number(pair[1]));
            assert_eq!((less.compare(more), more.compare(less)), (Ordering::Less, Ordering::Greater));
            assert_eq!(less.extreme(more, Ordering::Greater), more);
        }
        assert_eq!(number("-0").compare(number("0")), Ordering::Equal);
        for (text, whole) in [
            ("7.9", Some(7)),
            ("-7.9", Some(-7)),
            ("0.5", Some(0)),
            ("1e-30", Some(0)),
            ("9223372036854775807.4", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("-9223372036854775808", Some(i64::MIN)),
            ("1e30", None),
            ("inf", None),
        ] {
            assert_eq!(number(text).whole(), whole, "{text}");
        }
    }

    fn sum(a: &str, b: &str) -> Option<String> {
        Some(Extended::parse(a.as_bytes())?.plus(Extended::parse(b.as_bytes())?)?.print())
    }

    /// As redis-server 7.0.15 answers INCRBYFLOAT on x86-64.
    #[test]
    fn sums_match_redis() {
        for (a, b, expected) in [
            ("10.5", "0.1", "10.6"),
            ("3000", "0.1", "3000.10000000000000009"),
            ("3000.10000000000000009", "0.1", "3000.20000000000000018"),
            ("5.0e3", "2.0e2", "5200"),
            ("1", "-1.0", "0"),
            ("0", "-0.000000000000000001", "0"),
            ("-0", "-0", "0"),
            ("0.1", "0.2", "0.3"),
            ("3.0e-10", "0", "0.0000000003"),
            ("17179869184", "1.5", "17179869185.5"),
            ("18446744073709551615", "1", "18446744073709551616"),
            ("18446744073709551616", "1", "18446744073709551616"),
            ("18446744073709551616", "3", "18446744073709551620"),
            // Ties, and a number that is no tie because of a bit far below.
            ("0.000003814697265625", "0", "0.00000381469726562"),
            ("0.000011444091796875", "0", "0.00001144409179688"),
            (
                "170141183460469231750134047789593657344",
                "-9223372036854775809",
                "170141183460469231731687303715884105728",
            ),
            ("0x1p-2", "0x.8P4", "8.25"),
            ("+.5", "5.", "5.5"),
            ("1e-4940", "1e-4940", "0"),
            ("12345678901234567890123", "0.5", "12345678901234567889920"),
        ] {
            assert_eq!(sum(a, b).as_deref(), Some(expected), "{a} + {b}");
        }
        let largest = "1.18973149535723176502e4932";
        assert!(
            sum(largest, "0")
                .is_some_and(|text| text.len() == 4933 && text.starts_with("11897314953572317650212638"))
        );
        assert_eq!(sum(largest, largest), None);
        assert_eq!(sum("inf", "1"), None);
    }

    #[test]
    fn invalid_numbers_are_refused() {
        for text in [
            "",
            ".",
            "-",
            "+",
            "e5",
            "1e",
            "1e+",
            "0x",
            "0x.",
            "0x1p",
            "1..2",
            "--1",
            "+-1",
            " 1",
            "1 ",
            "1\0",
            "nan",
            "1_0",
            "infi",
            "abc",
            "1e5000",
            "1e-5000",
            "1e99999999999999999999",
            "0x1p16384",
            "0x1p-16446",
            "1.18973149535723176509e4932",
            "1e-4951",
        ] {
            assert_eq!(Extended::parse(text.as_bytes()), None, "{text:?}");
        }
        for text in
            ["0e99999999999999999999", "0x1p-16445", "0x1.8p-16446", "INF", "-Infinity", "00012", "2e-4951"]
        {
            assert!(Extended::parse(text.as_bytes()).is_some(), "{text:?}");
        }
        assert_eq!(Extended::parse(&[b'5'; TEXT_LEN_MAX + 1]), None);
        // The longest text that is parsed: 5,119 digits, most of them after the point.
        let long = [b"0.", &[b'0'; 4000][..], &[b'7'; TEXT_LEN_MAX - 4002]].concat();
        assert!(Extended::parse(&long).is_some());
    }

    /// Short numbers take another path than long numbers, with the same result.
    #[test]
    fn both_parsers_agree() {
        let mut random = random();
        for _ in 0..20_000 {
            let digits = random.between(1, 19) as usize;
            let first = random.between(1, 9).to_string();
            let text: String = (1..digits).map(|_| random.between(0, 9).to_string()).collect();
            let text = format!("{first}{text}e{}", random.between(-18, 18));
            let literal = Literal::parse(text.as_bytes(), 10).expect("a number");
            let long = literal.decimal_by_naturals(false);
            assert_eq!(Extended::parse(text.as_bytes()), long, "{text}");
        }
    }

    /// A double is an extended float with eleven zero bits at the end.
    #[test]
    fn exact_doubles_parse_exactly() {
        let mut random = random();
        for _ in 0..2_000 {
            let value = f64::from_bits(random.draw() >> 1);
            if !value.is_normal() {
                continue;
            }
            let text = format!("{value:.1074}");
            let bits = value.to_bits();
            let mantissa = (1 << 52 | bits & ((1 << 52) - 1)) << 11;
            let exponent = (bits >> 52) as i64 - 1023 - 63;
            let expected = Extended::Finite { negative: false, mantissa, exponent };
            assert_eq!(Extended::parse(text.as_bytes()), Some(expected), "{value:e}");
        }
    }
}
