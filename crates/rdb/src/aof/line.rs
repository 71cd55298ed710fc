//! Words of a manifest's line, quoted as in Redis: in double quotes with `\n`, `\x1f` and the like, or in
//! single quotes, where only `\'` is an escape.

/// Returns the words of a line; `None` if a quote does not end or a byte other than a space follows it.
pub(crate) fn split(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut words, mut rest) = (Vec::new(), line.trim_ascii_start());
    while !rest.is_empty() {
        let (word, behind) = word(rest)?;
        words.push(word);
        rest = behind.trim_ascii_start();
    }
    Some(words)
}

fn word(mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut word = Vec::new();
    loop {
        match rest {
            [] => return Some((word, rest)),
            [b'"', inside @ ..] => return quoted(word, inside, b'"'),
            [b'\'', inside @ ..] => return quoted(word, inside, b'\''),
            [byte, ..] if byte.is_ascii_whitespace() => return Some((word, rest)),
            [byte, behind @ ..] => {
                word.push(*byte);
                rest = behind;
            }
        }
    }
}

/// Parses the rest of a word, up to its closing quote.
fn quoted(mut word: Vec<u8>, mut rest: &[u8], quote: u8) -> Option<(Vec<u8>, &[u8])> {
    loop {
        let (byte, behind) = match rest {
            [b'\\', b'x', high, low, behind @ ..] if quote == b'"' && hex(*high, *low).is_some() => {
                (hex(*high, *low)?, behind)
            }
            [b'\\', escaped, behind @ ..] if quote == b'"' => (unescaped(*escaped), behind),
            [b'\\', b'\'', behind @ ..] => (b'\'', behind),
            [byte, behind @ ..] if *byte == quote => {
                let ends = behind.first().is_none_or(u8::is_ascii_whitespace);
                return ends.then_some((word, behind));
            }
            [byte, behind @ ..] => (*byte, behind),
            [] => return None,
        };
        word.push(byte);
        rest = behind;
    }
}

fn hex(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

fn unescaped(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

/// Appends a word, in quotes only if it needs them.
pub(crate) fn push(out: &mut Vec<u8>, word: &[u8]) {
    let plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\');
    if !word.is_empty() && word.iter().all(plain) {
        return out.extend_from_slice(word);
    }
    out.push(b'"');
    for byte in word {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', *byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x07 => out.extend_from_slice(b"\\a"),
            0x08 => out.extend_from_slice(b"\\b"),
            b' '..=b'~' => out.push(*byte),
            byte => out.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_a_round_trip() {
        let words: [&[u8]; 6] =
            [b"plain.aof", b"", b" a\tb ", b"\"'\\", b"\x00\x07\x08\n\r\xff", "ä".as_bytes()];
        let mut line = Vec::new();
        for word in words {
            push(&mut line, word);
            line.push(b' ');
        }
        assert_eq!(split(&line).expect("it is well-formed"), words);
        assert_eq!(&line[..26], b"plain.aof \"\" \" a\\tb \" \"\\\"'");
    }

    #[test]
    fn quotes_are_read_as_redis_reads_them() {
        let read = |line: &str| split(line.as_bytes()).map(|words| words.concat());
        assert_eq!(read(r"'a\'b\n'").as_deref(), Some(&br"a'b\n"[..]));
        assert_eq!(read(r#"a"b c""#).as_deref(), Some(&b"ab c"[..]));
        assert_eq!(read(r#""\x4g\q""#).as_deref(), Some(&b"x4gq"[..]));
        for broken in [r#""a"#, r#""a"b"#, "'a", "'a'b", r#""a\"#] {
            assert_eq!(read(broken), None, "{broken}");
        }
    }
}
