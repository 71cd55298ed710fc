//! Splits lines of a configuration file into words as Redis does, and quotes words so that they split back.

use super::value::Word;

/// Splits a line at blanks. `"..."` takes the escapes `\n \r \t \a \b \xHH` and `\` before any other byte,
/// `'...'` only takes `\'`. Returns `None` if quotes are not closed, or a byte other than a blank follows the
/// closing quote.
pub fn split(line: &[u8]) -> Option<Vec<Word>> {
    let mut rest = line;
    let mut words = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Some(words);
        }
        words.push(word(&mut rest)?);
    }
}

/// Takes the next word off `rest`. Quotes may begin in the middle of a word, but they end it.
fn word(rest: &mut &[u8]) -> Option<Word> {
    let mut word = Word::new();
    loop {
        match next(rest) {
            None => return Some(word),
            Some(byte) if byte.is_ascii_whitespace() => return Some(word),
            Some(b'"') => {
                double_quoted(rest, &mut word)?;
                return at_end_of_word(rest).then_some(word);
            }
            Some(b'\'') => {
                single_quoted(rest, &mut word)?;
                return at_end_of_word(rest).then_some(word);
            }
            Some(byte) => word.push(byte),
        }
    }
}

fn double_quoted(rest: &mut &[u8], word: &mut Word) -> Option<()> {
    loop {
        match next(rest)? {
            b'"' => return Some(()),
            b'\\' => word.push(escaped(rest)?),
            byte => word.push(byte),
        }
    }
}

fn escaped(rest: &mut &[u8]) -> Option<u8> {
    if let [b'x', high, low, after @ ..] = *rest
        && let (Some(high), Some(low)) = (hex_digit(*high), hex_digit(*low))
    {
        *rest = after;
        return Some(high << 4 | low);
    }
    Some(match next(rest)? {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        byte => byte,
    })
}

fn single_quoted(rest: &mut &[u8], word: &mut Word) -> Option<()> {
    loop {
        match next(rest)? {
            b'\'' => return Some(()),
            b'\\' if rest.first() == Some(&b'\'') => word.extend(next(rest)),
            byte => word.push(byte),
        }
    }
}

fn next(rest: &mut &[u8]) -> Option<u8> {
    let (&first, after) = rest.split_first()?;
    *rest = after;
    Some(first)
}

fn at_end_of_word(rest: &[u8]) -> bool {
    rest.first().is_none_or(|byte| byte.is_ascii_whitespace())
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

/// Returns the word unchanged, or quoted if it would not split back into itself.
pub fn plain_or_quoted(word: &[u8]) -> Word {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\');
    if !word.is_empty() && word.iter().all(is_plain) { word.to_vec() } else { quoted(word) }
}

/// Returns the word in double quotes, with everything but printable ASCII escaped.
pub fn quoted(word: &[u8]) -> Word {
    let mut out = vec![b'"'];
    for &byte in word {
        match byte {
            b'"' | b'\\' => out.extend([b'\\', byte]),
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            b'\t' => out.extend(b"\\t"),
            b' '..=b'~' => out.push(byte),
            _ => out.extend(format!("\\x{byte:02x}").into_bytes()),
        }
    }
    out.push(b'"');
    out
}

/// Like [`plain_or_quoted`], but also quotes a `#`.
pub(super) fn quoted_if_needed(word: &[u8]) -> Word {
    let plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\' | b'#');
    if !word.is_empty() && word.iter().all(plain) { word.to_vec() } else { quoted(word) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: Option<&[&str]>) {
        let expected = expected.map(|words| words.iter().map(|w| w.as_bytes().to_vec()).collect::<Vec<_>>());
        assert_eq!(split(line.as_bytes()), expected, "{line}");
    }

    #[test]
    fn words_quotes_and_escapes() {
        check("", Some(&[]));
        check("  port \t 6379  ", Some(&["port", "6379"]));
        check(r#"save """#, Some(&["save", ""]));
        check(r#"a "b c\n\x41\"\\\q""#, Some(&["a", "b c\nA\"\\q"]));
        check(r"a 'b \n \' c'", Some(&["a", r"b \n ' c"]));
        check(r#"a b"c d""#, Some(&["a", "bc d"]));
        check(r#"a "\xZZ""#, Some(&["a", "xZZ"]));
    }

    #[test]
    fn unbalanced_quotes() {
        for line in ["\"a", "'a", "\"a\"b", "'a'b", "a \"b\\\"", "a \"b\\", "\""] {
            check(line, None);
        }
    }

    #[test]
    fn what_is_quoted_splits_back() {
        let all: Word = (0..=255).collect();
        for word in [all.as_slice(), b"", b"a b", b"x'y", b"#", b"plain", b"\"", b"\\x41"] {
            assert_eq!(split(&quoted(word)), Some(vec![word.to_vec()]));
            assert_eq!(split(&quoted_if_needed(word)), Some(vec![word.to_vec()]));
        }
        assert_eq!(quoted_if_needed(b"-::1"), b"-::1");
    }
}
