//! Inline commands: a line of words, as a person types them over telnet, with Redis' quoting.

use crate::request::{ProtocolError, Span};

/// Splits `buf[start..end]` (a line without its line end) into words, appending their spans to `args`.
///
/// Quoted words are unescaped in place, since unescaping never makes a word longer: `"a\x41\n"` and
/// `'it\'s'`. A word may have several quoted parts: `a"b c"'d'`. Fails when a quote is not closed.
pub(crate) fn split(
    buf: &mut [u8],
    start: usize,
    end: usize,
    args: &mut Vec<Span>,
) -> Result<(), ProtocolError> {
    let mut at = start;
    loop {
        while at < end && is_space(buf[at]) {
            at += 1;
        }
        if at == end {
            return Ok(());
        }
        let word = at;
        let mut to = at;
        at = word_into(buf, at, end, &mut to).ok_or(ProtocolError::UnbalancedQuotes)?;
        args.push(Span::new(word, to - word));
    }
}

/// Reads a word from `at`, writing its bytes from `*to` on; returns the offset where the word ended.
fn word_into(buf: &mut [u8], mut at: usize, end: usize, to: &mut usize) -> Option<usize> {
    while at < end && !ends_word(buf[at]) {
        match buf[at] {
            b'"' => at = double_quoted(buf, at + 1, end, to)?,
            b'\'' => at = single_quoted(buf, at + 1, end, to)?,
            plain => {
                put(buf, to, plain);
                at += 1;
            }
        }
    }
    // A NUL ends the line, as it does for Redis.
    Some(if at < end && buf[at] == 0 { end } else { at })
}

fn double_quoted(buf: &mut [u8], mut at: usize, end: usize, to: &mut usize) -> Option<usize> {
    while at < end {
        match &buf[at..end] {
            [b'\\', b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let byte = hex(*high) << 4 | hex(*low);
                put(buf, to, byte);
                at += 4;
            }
            [b'\\', escaped, ..] => {
                let byte = match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                };
                put(buf, to, byte);
                at += 2;
            }
            [b'"', ..] => return Some(at + 1),
            [plain, ..] => {
                let byte = *plain;
                put(buf, to, byte);
                at += 1;
            }
            [] => return None,
        }
    }
    None
}

fn single_quoted(buf: &mut [u8], mut at: usize, end: usize, to: &mut usize) -> Option<usize> {
    while at < end {
        match &buf[at..end] {
            [b'\\', b'\'', ..] => {
                put(buf, to, b'\'');
                at += 2;
            }
            [b'\'', ..] => return Some(at + 1),
            [plain, ..] => {
                let byte = *plain;
                put(buf, to, byte);
                at += 1;
            }
            [] => return None,
        }
    }
    None
}

fn put(buf: &mut [u8], to: &mut usize, byte: u8) {
    buf[*to] = byte;
    *to += 1;
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// Vertical tab and form feed are spaces between words, but do not end a bare word.
fn ends_word(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0)
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Option<Vec<Vec<u8>>> {
        let mut buf = line.as_bytes().to_vec();
        let (mut args, end) = (Vec::new(), buf.len());
        split(&mut buf, 0, end, &mut args).ok()?;
        Some(args.iter().map(|span| span.of(&buf).to_vec()).collect())
    }

    fn check(line: &str, expected: &[&[u8]]) {
        assert_eq!(words(line), Some(expected.iter().map(|word| word.to_vec()).collect()), "{line:?}");
    }

    #[test]
    fn words_and_quotes() {
        check("", &[]);
        check("  \t ", &[]);
        check("\x0b\x0ca\x0bb\x0c \"c\"\x0c", &[b"a\x0bb\x0c", b"c\x0c"]);
        check("SET a b", &[b"SET", b"a", b"b"]);
        check(r#"SET "a b" 'c d'"#, &[b"SET", b"a b", b"c d"]);
        check(r#""\x41\n\r\t\a\b\\\"" x"#, &[b"A\n\r\t\x07\x08\\\"", b"x"]);
        check(r"'it\'s \n'", &[b"it's \\n"]);
        check(r#"foo"bar""#, &[b"foobar"]);
        check(r#""""a b"c'd'"e" "f"g"#, &[b"a bcde", b"fg"]);
        check(r#""" ''"#, &[b"", b""]);
        for broken in [r#""abc"#, "'abc", r#""a"b""#, r"'a'b'c", r#""\"#, r#"""""#] {
            assert_eq!(words(broken), None, "{broken:?}");
        }
    }
}
