//! Splits Rust source into tokens and comments, as exactly as the rules need it.
//!
//! Tokens carry no values: each is a range of the text and its line. The lexer accepts every file that rustc
//! accepts; in a file that rustc rejects, an unfinished literal or comment reaches to the end of the file.

use std::ops::Range;

/// The kinds of tokens that some rule tells apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenKind {
    /// An identifier or a keyword; raw identifiers without their `r#`.
    Name,
    /// A string with escapes, of any prefix.
    Text,
    /// A string without escapes (`r"…"`, `br#"…"#`).
    RawText,
    /// A number, a character or a lifetime.
    Literal,
    /// A single character of punctuation.
    Sign(u8),
}

/// A token: its kind, its bytes in the text, and the line on which it begins (from 1).
#[derive(Clone, Debug)]
pub struct Token {
    pub kind: TokenKind,
    pub span: Range<usize>,
    pub line: usize,
}

/// A comment without its delimiters, and the line on which it begins.
#[derive(Clone, Debug)]
pub struct Comment {
    pub span: Range<usize>,
    pub line: usize,
}

/// Returns the tokens and the comments of a file, each in the order of the text.
pub fn lex(text: &str) -> (Vec<Token>, Vec<Comment>) {
    let bytes = text.as_bytes();
    let (mut tokens, mut comments) = (Vec::with_capacity(bytes.len() / 5), Vec::new());
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let (start, first_line) = (at, line);
        let kind = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at = find(bytes, at, b"\n");
                let marks = if matches!(bytes.get(start + 2), Some(b'/' | b'!')) { 3 } else { 2 };
                comments.push(Comment { span: (start + marks).min(at)..at, line });
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                at = end_of_block(bytes, at);
                comments.push(Comment { span: start + 2..at.saturating_sub(2).max(start + 2), line });
                line += newlines(&bytes[start..at]);
                continue;
            }
            byte if byte.is_ascii_whitespace() => {
                line += usize::from(byte == b'\n');
                at += 1;
                continue;
            }
            b'"' => {
                at = end_of_quoted(bytes, at + 1, b'"');
                TokenKind::Text
            }
            b'\'' => {
                at = end_of_character(text, at);
                TokenKind::Literal
            }
            byte if byte.is_ascii_digit() => {
                at = end_of_number(bytes, at);
                TokenKind::Literal
            }
            byte if in_name(byte) => {
                let (kind, skipped, end) = name_or_prefixed(bytes, at);
                at = end;
                tokens.push(Token { kind, span: start + skipped..end, line: first_line });
                line += newlines(&bytes[start..end]);
                continue;
            }
            byte => {
                at += 1;
                TokenKind::Sign(byte)
            }
        };
        tokens.push(Token { kind, span: start..at, line: first_line });
        line += newlines(&bytes[start..at]);
    }
    (tokens, comments)
}

/// Returns whether a byte may stand in an identifier; all of UTF-8 beyond ASCII counts.
pub fn in_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// Returns whether a word stands in a text at a position, and not as a part of a longer word.
pub fn is_whole(text: &[u8], start: usize, end: usize) -> bool {
    let before = start.checked_sub(1).is_some_and(|at| in_name(text[at]));
    !before && !text.get(end).is_some_and(|&byte| in_name(byte))
}

/// Reads an identifier, or the literal to which it is a prefix. Returns its kind, the length of a skipped
/// `r#`, and its end.
fn name_or_prefixed(bytes: &[u8], start: usize) -> (TokenKind, usize, usize) {
    let end = end_of_name(bytes, start);
    let (prefix, next) = (&bytes[start..end], bytes.get(end));
    match (prefix, next) {
        (b"r" | b"br" | b"cr", Some(b'"' | b'#')) => {
            let hashes = bytes[end..].iter().take_while(|&&byte| byte == b'#').count();
            if bytes.get(end + hashes) == Some(&b'"') {
                let mut closing = vec![b'"'];
                closing.resize(1 + hashes, b'#');
                let inner = end + hashes + 1;
                (TokenKind::RawText, 0, (find(bytes, inner, &closing) + closing.len()).min(bytes.len()))
            } else if prefix == b"r" && hashes == 1 {
                (TokenKind::Name, 2, end_of_name(bytes, end + 1))
            } else {
                (TokenKind::Name, 0, end)
            }
        }
        (b"b" | b"c", Some(b'"')) => (TokenKind::Text, 0, end_of_quoted(bytes, end + 1, b'"')),
        (b"b", Some(b'\'')) => (TokenKind::Literal, 0, end_of_quoted(bytes, end + 1, b'\'')),
        _ => (TokenKind::Name, 0, end),
    }
}

fn end_of_name(bytes: &[u8], start: usize) -> usize {
    start + bytes[start..].iter().take_while(|&&byte| in_name(byte)).count()
}

/// Returns the end of a number; `1..2` and `1.max(2)` end before the dot.
fn end_of_number(bytes: &[u8], start: usize) -> usize {
    let end = end_of_name(bytes, start);
    match (bytes.get(end), bytes.get(end + 1)) {
        (Some(b'.'), Some(next)) if next.is_ascii_digit() => end_of_name(bytes, end + 1),
        _ => end,
    }
}

/// Returns the end of a character literal or of a lifetime: a lifetime has no quote after its first
/// character.
fn end_of_character(text: &str, start: usize) -> usize {
    let mut inner = text[start + 1..].chars();
    match (inner.next(), inner.next()) {
        (Some('\\'), _) => end_of_quoted(text.as_bytes(), start + 1, b'\''),
        (Some(character), Some('\'')) => start + 1 + character.len_utf8() + 1,
        _ => end_of_name(text.as_bytes(), start + 1),
    }
}

/// Returns the position after the closing quote, from a position within the literal.
fn end_of_quoted(bytes: &[u8], mut at: usize, quote: u8) -> usize {
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// Returns the end of a block comment; these nest.
fn end_of_block(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        match &bytes[at..(at + 2).min(bytes.len())] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn find(bytes: &[u8], from: usize, pattern: &[u8]) -> usize {
    bytes[from..]
        .windows(pattern.len())
        .position(|at| at == pattern)
        .map_or(bytes.len(), |found| from + found)
}

fn newlines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, tokens: &[&str], comments: &[&str]) {
        let (found, remarks) = lex(text);
        assert_eq!(found.iter().map(|token| &text[token.span.clone()]).collect::<Vec<_>>(), tokens);
        assert_eq!(
            remarks.iter().map(|comment| text[comment.span.clone()].trim()).collect::<Vec<_>>(),
            comments
        );
    }

    #[test]
    fn comments_are_apart_from_code() {
        check("a //! b \"\n// c\n/* d /* e */ f */ g", &["a", "g"], &["b \"", "c", "d /* e */ f"]);
        check("\"// no comment\"", &["\"// no comment\""], &[]);
    }

    #[test]
    fn literals_end_where_they_end() {
        check(r#""a\"b" c"#, &[r#""a\"b""#, "c"], &[]);
        check(r###"r#"a"b\"# br"\" c"###, &[r##"r#"a"b\"#"##, r#"br"\""#, "c"], &[]);
        check(r"'a' '\'' b'\'' 'a 'é' x", &["'a'", r"'\''", r"b'\''", "'a", "'é'", "x"], &[]);
        check("1.5 1..2 0x1f", &["1.5", "1", ".", ".", "2", "0x1f"], &[]);
        check("r#type br", &["type", "br"], &[]);
    }

    #[test]
    fn lines_are_counted_in_literals_and_comments() {
        let (tokens, comments) = lex("a \"\n\n\" b /*\n*/ c // d");
        assert_eq!(tokens.iter().map(|token| token.line).collect::<Vec<_>>(), [1, 1, 3, 4]);
        assert_eq!(comments.iter().map(|comment| comment.line).collect::<Vec<_>>(), [3, 4]);
    }

    #[test]
    fn unfinished_text_ends_with_the_file() {
        for text in ["\"a", "\"\\", "r#\"a\"", "/* a", "'\\", "b'", "//", "///", "/*", "'"] {
            lex(text);
        }
    }
}
