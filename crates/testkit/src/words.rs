//! Command lines as people type them, in redis-cli's notation: words, "double quotes" with escapes, 'single
//! quotes'.

/// Splits a line into arguments; an error describes the problem with the line.
pub fn split(line: &str) -> Result<Vec<Vec<u8>>, String> {
    let (words, rest) = split_at_answer(line)?;
    match rest {
        None => Ok(words),
        Some(_) => Err("a bare `<` is an argument only within quotes".to_owned()),
    }
}

/// Splits up to a bare `<`, and returns the text behind it.
pub fn split_at_answer(line: &str) -> Result<(Vec<Vec<u8>>, Option<&str>), String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        if rest == "<" || rest.starts_with("< ") {
            return Ok((words, Some(rest[1..].trim())));
        }
        let (word, after) = first_word(rest)?;
        words.push(word);
        rest = after.trim_start();
    }
    Ok((words, None))
}

/// Returns a line that [`split`] takes apart into these arguments.
pub fn join<A: AsRef<[u8]>>(args: &[A]) -> String {
    args.iter().map(|arg| quoted_where_needed(arg.as_ref())).collect::<Vec<_>>().join(" ")
}

fn quoted_where_needed(arg: &[u8]) -> String {
    let plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\' | b'<');
    if !arg.is_empty() && arg.iter().all(plain) {
        return String::from_utf8_lossy(arg).into_owned();
    }
    evenkeel_resp::value::Value::bulk(arg).to_string()
}

fn first_word(text: &str) -> Result<(Vec<u8>, &str), String> {
    let end = match text.as_bytes()[0] {
        b'"' | b'\'' => return quoted_word(text),
        _ => text.find(char::is_whitespace).unwrap_or(text.len()),
    };
    Ok((text.as_bytes()[..end].to_vec(), &text[end..]))
}

fn quoted_word(text: &str) -> Result<(Vec<u8>, &str), String> {
    let bytes = text.as_bytes();
    let quote = bytes[0];
    let mut word = Vec::new();
    let mut at = 1;
    loop {
        match bytes.get(at) {
            None => return Err(format!("a quote is not closed in `{text}`")),
            Some(&byte) if byte == quote => return closed(word, &text[at + 1..]),
            Some(b'\\') if quote == b'"' => at += escape(&bytes[at..], &mut word),
            Some(b'\\') if bytes.get(at + 1) == Some(&b'\'') => {
                word.push(b'\'');
                at += 2;
            }
            Some(&byte) => {
                word.push(byte);
                at += 1;
            }
        }
    }
}

fn closed(word: Vec<u8>, rest: &str) -> Result<(Vec<u8>, &str), String> {
    match rest.chars().next() {
        Some(next) if !next.is_whitespace() => Err(format!("a closing quote is followed by `{next}`")),
        _ => Ok((word, rest)),
    }
}

/// Appends the byte for the escape at the start of `bytes`, and returns the escape's length.
fn escape(bytes: &[u8], word: &mut Vec<u8>) -> usize {
    if let Some(byte) = hex_escape(bytes) {
        word.push(byte);
        return 4;
    }
    word.push(match bytes.get(1) {
        Some(b'n') => b'\n',
        Some(b'r') => b'\r',
        Some(b't') => b'\t',
        Some(b'b') => 0x08,
        Some(b'a') => 0x07,
        Some(&byte) => byte,
        None => b'\\',
    });
    2
}

fn hex_escape(bytes: &[u8]) -> Option<u8> {
    let digits = bytes.strip_prefix(b"\\x")?.get(..2)?;
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|value| value as u8);
    Some(digit(digits[0])? << 4 | digit(digits[1])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<Vec<u8>> {
        split(line).expect("well-formed")
    }

    #[test]
    fn words_and_quotes() {
        assert_eq!(words("SET k  v"), [b"SET", &b"k"[..], b"v"]);
        assert_eq!(
            words(r#"SET "" 'it\'s' "a \"b\" \x00\xff\n""#)[1..],
            [&b""[..], b"it's", b"a \"b\" \x00\xff\n"]
        );
        assert_eq!(words(r#"'\n' "\xzz""#), [&b"\\n"[..], b"xzz"]);
        assert_eq!(words("  "), Vec::<Vec<u8>>::new());
        assert!(split("SET \"a").is_err() && split("SET 'a").is_err() && split("\"a\"b").is_err());
    }

    #[test]
    fn the_answer_starts_at_a_bare_mark() {
        let (args, answer) = split_at_answer("SET k \"a < b\"   < OK < x").expect("well-formed");
        assert_eq!((args.len(), answer), (3, Some("OK < x")));
        assert_eq!(split_at_answer("GET k").expect("well-formed").1, None);
    }

    #[test]
    fn joined_lines_split_into_the_same_arguments() {
        let args: Vec<Vec<u8>> =
            [&b"SET"[..], b"", b"a b", b"\"", b"'", b"\\", b"<", b"\x00\xff\r\n\t\x07\x08", "é".as_bytes()]
                .iter()
                .map(|arg| arg.to_vec())
                .collect();
        assert_eq!(words(&join(&args)), args);
    }
}
