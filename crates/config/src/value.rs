//! Values of directives: `ValueKind` parses words into a `Value`, checks them, and writes them back.
//!
//! Every value of the table, with a field or without, passes through here, so that a directive without an
//! effect is checked as strictly as it will be later. The error texts are Redis' own, since tools and tests
//! match on them.

use super::line;
use super::lists::ListKind;
use std::borrow::Cow;

/// Bytes, since a password or a path need not be text.
pub type Word = Vec<u8>;

/// Why a value was refused, in Redis' words.
pub(crate) type Reason = Cow<'static, str>;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Flag(bool),
    /// Wide enough for sizes up to `u64::MAX` and for directives with negative values; a percentage is
    /// negative.
    Number(i128),
    Choice(&'static str),
    Text(Word),
    Words(Vec<Word>),
    Numbers(Vec<i64>),
    Decimals(Vec<f64>),
}

/// An inclusive range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) least: i128,
    pub(super) most: i128,
}

pub(super) enum ValueKind {
    /// `yes` or `no`.
    Flag,
    Integer(Range),
    /// An integer of the first range, clamped to the second.
    Clamped(Range, Range),
    Octal(Range),
    /// Bytes, with `k` = 1000, `kb` = 1024 and so on for `m` and `g`.
    Memory(Range),
    /// Bytes, or `1%` to `100%`, kept as a negative number.
    MemoryOrPercent,
    Choice(&'static [&'static str]),
    /// Any of these at once; the first stands for none.
    Choices(&'static [&'static str]),
    Text,
    /// Text that a function checks and may normalise.
    Checked(fn(&[u8]) -> Result<Word, Reason>),
    /// A directory that exists, made absolute from the `dir` before it.
    Directory,
    /// Several words with rules of their own.
    List(&'static ListKind),
}

/// A directive's value before a line or a CONFIG SET changes it.
#[derive(Clone, Copy)]
pub(super) struct Before<'a> {
    pub(super) value: Option<&'a Value>,
    /// An earlier line of the same start has set it, so that a repeatable directive adds to it.
    pub(super) repeated: bool,
}

const WRONG_NUMBER: Reason = Cow::Borrowed("wrong number of arguments");

impl ValueKind {
    /// Parses the words of a CONFIG SET, without the directive's name: a single word, which may hold a whole
    /// list.
    pub(super) fn parse(&self, words: &[Word], before: Before<'_>) -> Result<Value, Reason> {
        self.parse_split(words, before, split_at_blanks)
    }

    /// Parses the words of a line in a file or on the command line. A single word with a whole list is split
    /// as a line is, quotes and all.
    pub(super) fn parse_line(&self, words: &[Word], before: Before<'_>) -> Result<Value, Reason> {
        self.parse_split(words, before, |lone| line::split(lone).unwrap_or_else(|| split_at_blanks(lone)))
    }

    fn parse_split(
        &self,
        words: &[Word],
        before: Before<'_>,
        split: impl Fn(&[u8]) -> Vec<Word>,
    ) -> Result<Value, Reason> {
        let listed = || if let [lone] = words { split(lone) } else { words.to_vec() };
        match self {
            ValueKind::List(list) => (list.parse)(&listed(), before),
            ValueKind::Choices(names) => choices(names, &listed()),
            _ => match words {
                [word] => self.parse_word(word, before),
                _ => Err(WRONG_NUMBER),
            },
        }
    }

    fn parse_word(&self, word: &[u8], before: Before<'_>) -> Result<Value, Reason> {
        match self {
            ValueKind::Flag => flag(word),
            ValueKind::Integer(range) => integer(word, *range),
            ValueKind::Clamped(range, kept) => integer(word, *range).map(|value| clamped(value, *kept)),
            ValueKind::Octal(range) => octal(word, *range),
            ValueKind::Memory(range) => memory(word, *range),
            ValueKind::MemoryOrPercent => memory_or_percent(word),
            ValueKind::Choice(names) => choice(names, word).map(Value::Choice),
            ValueKind::Text => Ok(Value::Text(word.to_vec())),
            ValueKind::Checked(check) => check(word).map(Value::Text),
            ValueKind::Directory => directory(word, before),
            ValueKind::Choices(_) | ValueKind::List(_) => {
                unreachable!("taken with all their words by `parse`")
            }
        }
    }

    /// Returns the value as CONFIG GET shows it.
    pub(super) fn show(&self, value: &Value) -> Word {
        match value {
            Value::Flag(on) => if *on { b"yes" } else { &b"no"[..] }.to_vec(),
            Value::Number(number) => match self {
                ValueKind::Octal(_) => format!("{number:o}").into_bytes(),
                ValueKind::MemoryOrPercent if *number < 0 => format!("{}%", -number).into_bytes(),
                _ => number.to_string().into_bytes(),
            },
            Value::Choice(name) => name.as_bytes().to_vec(),
            Value::Text(word) => word.clone(),
            Value::Words(words) => words.join(&b' '),
            Value::Numbers(numbers) => joined(numbers.iter().map(i64::to_string)),
            Value::Decimals(decimals) => joined(decimals.iter().map(|&d| decimal(d))),
        }
    }

    /// Returns the lines, each without the directive's name, that give `value` when read by a start that has
    /// set nothing else.
    pub(super) fn lines(&self, value: &Value) -> Vec<Word> {
        match (self, value) {
            (ValueKind::List(list), _) => (list.lines)(value),
            (ValueKind::Memory(_) | ValueKind::MemoryOrPercent, Value::Number(bytes)) if *bytes >= 0 => {
                vec![memory_with_unit(*bytes)]
            }
            (_, Value::Text(text)) => vec![line::quoted(text)],
            _ => vec![self.show(value)],
        }
    }
}

fn split_at_blanks(word: &[u8]) -> Vec<Word> {
    word.split(u8::is_ascii_whitespace).filter(|part| !part.is_empty()).map(<[u8]>::to_vec).collect()
}

fn joined(words: impl Iterator<Item = String>) -> Word {
    words.collect::<Vec<_>>().join(" ").into_bytes()
}

/// Formats with at most six decimals and no trailing zeros, as Redis shows percentiles.
pub(super) fn decimal(number: f64) -> String {
    let text = format!("{number:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn flag(word: &[u8]) -> Result<Value, Reason> {
    match word.to_ascii_lowercase().as_slice() {
        b"yes" => Ok(Value::Flag(true)),
        b"no" => Ok(Value::Flag(false)),
        _ => Err("argument must be 'yes' or 'no'".into()),
    }
}

fn integer(word: &[u8], range: Range) -> Result<Value, Reason> {
    let number = strict_integer(word).ok_or("argument couldn't be parsed into an integer")?;
    in_range(number.into(), range)
}

fn in_range(number: i128, range: Range) -> Result<Value, Reason> {
    let Range { least, most } = range;
    if number < least || number > most {
        return Err(format!("argument must be between {least} and {most} inclusive").into());
    }
    Ok(Value::Number(number))
}

fn clamped(value: Value, kept: Range) -> Value {
    match value {
        Value::Number(number) => Value::Number(number.clamp(kept.least, kept.most)),
        other => other,
    }
}

/// Parses an integer in its only canonical form: no plus sign, no leading zero, no `-0`.
pub(super) fn strict_integer(word: &[u8]) -> Option<i64> {
    let digits = word.strip_prefix(b"-").unwrap_or(word);
    let canonical = match digits {
        [b'0'] => word.len() == 1,
        [b'1'..=b'9', ..] => digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if canonical { std::str::from_utf8(word).ok()?.parse().ok() } else { None }
}

fn octal(word: &[u8], range: Range) -> Result<Value, Reason> {
    let text = std::str::from_utf8(word).unwrap_or("");
    let number =
        i64::from_str_radix(text, 8).map_err(|_| "argument couldn't be parsed as an octal number")?;
    let Range { least, most } = range;
    let refused = || format!("argument must be between {least:o} and {most:o} inclusive");
    in_range(number.into(), range).map_err(|_| refused().into())
}

fn memory(word: &[u8], range: Range) -> Result<Value, Reason> {
    const REFUSED: &str = "argument must be a memory value";
    let (below_zero, size) = match word.strip_prefix(b"-") {
        Some(size) if range.least < 0 => (true, size),
        _ => (false, word),
    };
    let bytes = i128::from(memory_size(size).ok_or(REFUSED)?);
    in_range(if below_zero { -bytes } else { bytes }, range)
}

/// Parses bytes with an optional unit. Digits may be missing, which means zero, as in Redis.
pub fn memory_size(word: &[u8]) -> Option<u64> {
    let digits = word.iter().take_while(|b| b.is_ascii_digit()).count();
    let (digits, unit) = word.split_at(digits);
    let unit: u64 = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1_000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    let count: u64 = if digits.is_empty() { 0 } else { std::str::from_utf8(digits).ok()?.parse().ok()? };
    count.checked_mul(unit)
}

fn memory_or_percent(word: &[u8]) -> Result<Value, Reason> {
    const REFUSED: &str = "argument must be a memory or percent value";
    if let Some(percent) = word.strip_suffix(b"%") {
        let percent = strict_integer(percent).filter(|p| *p >= 0).ok_or(REFUSED)?;
        if percent > 100 {
            return Err("percentage argument must be less or equal to 100".into());
        }
        return Ok(Value::Number(-i128::from(percent)));
    }
    memory_size(word).map(|bytes| Value::Number(bytes.into())).ok_or(REFUSED.into())
}

/// Formats bytes with the largest unit that leaves a whole number.
pub(super) fn memory_with_unit(bytes: i128) -> Word {
    for (shift, unit) in [(30, "gb"), (20, "mb"), (10, "kb")] {
        if bytes > 0 && bytes % (1 << shift) == 0 {
            return format!("{}{unit}", bytes >> shift).into_bytes();
        }
    }
    bytes.to_string().into_bytes()
}

fn choice(names: &[&'static str], word: &[u8]) -> Result<&'static str, Reason> {
    let known = names.iter().find(|name| name.as_bytes().eq_ignore_ascii_case(word));
    let refused = || format!("argument(s) must be one of the following: {}", names.join(", ")).into();
    known.copied().ok_or_else(refused)
}

/// Parses choices into the order of `names`. The first name, which stands for none, must be alone.
fn choices(names: &[&'static str], words: &[Word]) -> Result<Value, Reason> {
    if words.is_empty() {
        choice(names, b"")?;
    }
    let given = words.iter().map(|word| choice(names, word)).collect::<Result<Vec<_>, _>>()?;
    if given.contains(&"save") && given.contains(&"nosave") {
        return Err("shutdown options SAVE and NOSAVE can't be used simultaneously".into());
    }
    let some: Vec<Word> =
        names[1..].iter().filter(|n| given.contains(n)).map(|n| n.as_bytes().to_vec()).collect();
    Ok(Value::Words(if some.is_empty() { vec![names[0].as_bytes().to_vec()] } else { some }))
}

fn directory(word: &[u8], before: Before<'_>) -> Result<Value, Reason> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::{ffi::OsStr, io, path::Path};
    let from = match before.value {
        Some(Value::Text(from)) => Path::new(OsStr::from_bytes(from)),
        _ => Path::new("."),
    };
    if word.is_empty() {
        return Err(super::errors::cause(&io::ErrorKind::NotFound.into()).into());
    }
    let path = from.join(OsStr::from_bytes(word));
    let path = path.canonicalize().map_err(|e| super::errors::cause(&e))?;
    if !path.is_dir() {
        return Err("Not a directory".into());
    }
    Ok(Value::Text(path.into_os_string().into_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Range = Range { least: 0, most: u64::MAX as i128 };
    const NONE: Before<'_> = Before { value: None, repeated: false };

    #[track_caller]
    fn check(kind: &ValueKind, word: &str, expected: Result<&str, &str>) {
        let parsed = kind.parse(&[word.as_bytes().to_vec()], NONE);
        let shown = parsed.map(|value| String::from_utf8(kind.show(&value)).expect("these values are text"));
        assert_eq!(shown.as_deref().map_err(|reason| &**reason), expected, "{word}");
    }

    #[test]
    fn sizes_in_memory() {
        let kind = ValueKind::Memory(ANY);
        for (word, bytes) in [
            ("0", "0"),
            ("1b", "1"),
            ("1k", "1000"),
            ("1KB", "1024"),
            ("100m", "100000000"),
            ("3Gb", "3221225472"),
        ] {
            check(&kind, word, Ok(bytes));
        }
        check(&kind, "", Ok("0"));
        check(&kind, "010", Ok("10"));
        check(&kind, "18446744073709551615", Ok("18446744073709551615"));
        for word in ["abc", "1.5gb", " 1", "+1", "-1", "1t", "18446744073709551616", "99999999999gb"] {
            check(&kind, word, Err("argument must be a memory value"));
        }
        let from_1mb = ValueKind::Memory(Range { least: 1 << 20, most: i64::MAX.into() });
        check(&from_1mb, "1k", Err("argument must be between 1048576 and 9223372036854775807 inclusive"));
        check(&ValueKind::Memory(Range { least: -1, most: 9 }), "-1", Ok("-1"));
    }

    #[test]
    fn sizes_or_percentages() {
        let kind = ValueKind::MemoryOrPercent;
        check(&kind, "5%", Ok("5%"));
        check(&kind, "0%", Ok("0"));
        check(&kind, "1gb", Ok("1073741824"));
        check(&kind, "101%", Err("percentage argument must be less or equal to 100"));
        check(&kind, "-10%", Err("argument must be a memory or percent value"));
        check(&kind, "5.5%", Err("argument must be a memory or percent value"));
    }

    #[test]
    fn integers_are_strict() {
        let kind = ValueKind::Integer(Range { least: -2, most: 100 });
        check(&kind, "-2", Ok("-2"));
        check(&kind, "101", Err("argument must be between -2 and 100 inclusive"));
        for word in ["", "+1", " 1", "1 ", "010", "-0", "0x1", "1.0", "-", "10000000000000000000"] {
            check(&kind, word, Err("argument couldn't be parsed into an integer"));
        }
        check(&ValueKind::Clamped(ANY, Range { least: 1, most: 500 }), "1000", Ok("500"));
    }

    #[test]
    fn octal_numbers() {
        let kind = ValueKind::Octal(Range { least: 0, most: 0o777 });
        check(&kind, "755", Ok("755"));
        check(&kind, "1777", Err("argument must be between 0 and 777 inclusive"));
        check(&kind, "9", Err("argument couldn't be parsed as an octal number"));
    }

    #[test]
    fn choices_are_shown_in_their_own_order() {
        let kind = ValueKind::Choices(&["default", "save", "nosave", "now"]);
        check(&kind, "NOW nosave", Ok("nosave now"));
        check(&kind, "default now", Ok("now"));
        check(&kind, "default", Ok("default"));
        check(&kind, "save nosave", Err("shutdown options SAVE and NOSAVE can't be used simultaneously"));
        check(&kind, "", Err("argument(s) must be one of the following: default, save, nosave, now"));
        check(&ValueKind::Choice(&["no", "yes"]), "YES", Ok("yes"));
        check(&ValueKind::Flag, "YES", Ok("yes"));
        check(&ValueKind::Flag, "on", Err("argument must be 'yes' or 'no'"));
    }

    #[test]
    fn lines_use_the_largest_unit() {
        for (bytes, text) in [(0, "0"), (1, "1"), (1 << 30, "1gb"), (3 << 20, "3mb"), (2_000_000, "2000000")]
        {
            assert_eq!(memory_with_unit(bytes), text.as_bytes());
        }
    }
}
