//! Replies as values, for clients of the protocol only.
//!
//! The server writes replies straight into its output buffers and never builds such a tree. Load generators,
//! tests and the doctor read replies, and for them a tree is the convenient form. Decoding takes two steps: a
//! [`Scanner`] finds the end of a reply without allocating for its content, and only a complete reply is
//! built. So a server that announces a billion elements and sends none costs nothing, and a reply that
//! trickles in is scanned once, however many reads it takes.
//!
//! RESP3's streamed types (`$?`, `*?`) are refused: no server of this family sends them.
//!
//! Source: the protocol pages "RESP protocol spec" (RESP2) and "RESP3 specification".

mod decode;
#[cfg(test)]
mod tests;

use std::fmt;

pub use decode::{DEPTH_MAX, DecodeError, LENGTH_MAX, LINE_MAX, Scanner, decode};

/// A reply, of any type of RESP2 or RESP3.
///
/// Texts are bytes: nothing in the protocol promises UTF-8. The three nulls stay apart, because a server that
/// sends the wrong null breaks clients that read the type before the value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `+OK`
    Simple(Vec<u8>),
    /// `-ERR text`, without the minus
    Error(Vec<u8>),
    /// `:1`
    Int(i64),
    /// `$3` and three bytes
    Bulk(Vec<u8>),
    /// `$-1`, RESP2's missing string
    NullBulk,
    /// `*-1`, RESP2's missing array (an aborted EXEC, a timed-out BLPOP)
    NullArray,
    /// `_`, RESP3's only null
    Null,
    /// `*2` and two values
    Array(Vec<Value>),
    /// `%1` and a pair; the order is kept as sent
    Map(Vec<(Value, Value)>),
    /// `~2` and two values; the order is kept as sent
    Set(Vec<Value>),
    /// `>2` and two values: not the answer to a command
    Push(Vec<Value>),
    /// `,3.25`, also `inf`, `-inf` and `nan`
    Double(f64),
    /// `#t` or `#f`
    Bool(bool),
    /// `(12345678901234567890`: digits, kept as sent
    BigNumber(Vec<u8>),
    /// `=8` and `txt:data`
    Verbatim { format: [u8; 3], text: Vec<u8> },
    /// `!3` and three bytes: an error that may hold line ends
    BlobError(Vec<u8>),
    /// `|1`, a pair, and then the value that the pair describes
    Attribute { pairs: Vec<(Value, Value)>, value: Box<Value> },
}

impl Value {
    pub fn bulk(bytes: impl Into<Vec<u8>>) -> Value {
        Value::Bulk(bytes.into())
    }

    pub fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the bytes of a string of any kind; errors are not strings.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Simple(bytes) | Value::Bulk(bytes) | Value::Verbatim { text: bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    /// Returns the elements of an array, a set or a push.
    pub fn as_items(&self) -> Option<&[Value]> {
        match self {
            Value::Array(items) | Value::Set(items) | Value::Push(items) => Some(items),
            _ => None,
        }
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Value::NullBulk | Value::NullArray | Value::Null)
    }

    pub fn is_error(&self) -> bool {
        matches!(self, Value::Error(_) | Value::BlobError(_))
    }

    /// Appends the value as a server would send it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Value::Simple(bytes) => line(out, b'+', bytes),
            Value::Error(bytes) => line(out, b'-', bytes),
            Value::Int(number) => header(out, b':', number),
            Value::Bulk(bytes) => blob(out, b'$', bytes),
            Value::NullBulk => out.extend_from_slice(b"$-1\r\n"),
            Value::NullArray => out.extend_from_slice(b"*-1\r\n"),
            Value::Null => out.extend_from_slice(b"_\r\n"),
            Value::Array(items) => aggregate(out, b'*', items),
            Value::Set(items) => aggregate(out, b'~', items),
            Value::Push(items) => aggregate(out, b'>', items),
            Value::Map(pairs) => encode_pairs(out, b'%', pairs),
            Value::Double(number) => header(out, b',', double_text(*number)),
            Value::Bool(truth) => line(out, b'#', if *truth { b"t" } else { b"f" }),
            Value::BigNumber(digits) => line(out, b'(', digits),
            Value::Verbatim { format, text } => blob(out, b'=', &[&format[..], b":", text].concat()),
            Value::BlobError(bytes) => blob(out, b'!', bytes),
            Value::Attribute { pairs, value } => {
                encode_pairs(out, b'|', pairs);
                value.encode(out);
            }
        }
    }
}

/// Encodes a command as clients send it: an array of bulk strings.
pub fn encode_command<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + args.iter().map(|arg| arg.as_ref().len() + 16).sum::<usize>());
    header(&mut out, b'*', args.len());
    for arg in args {
        blob(&mut out, b'$', arg.as_ref());
    }
    out
}

fn line(out: &mut Vec<u8>, mark: u8, bytes: &[u8]) {
    out.push(mark);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn header(out: &mut Vec<u8>, mark: u8, content: impl fmt::Display) {
    line(out, mark, content.to_string().as_bytes());
}

fn blob(out: &mut Vec<u8>, mark: u8, bytes: &[u8]) {
    header(out, mark, bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn aggregate(out: &mut Vec<u8>, mark: u8, items: &[Value]) {
    header(out, mark, items.len());
    for item in items {
        item.encode(out);
    }
}

fn encode_pairs(out: &mut Vec<u8>, mark: u8, pairs: &[(Value, Value)]) {
    header(out, mark, pairs.len());
    for (key, value) in pairs {
        key.encode(out);
        value.encode(out);
    }
}

/// Rust prints `NaN`, the protocol says `nan`; all other numbers agree.
fn double_text(number: f64) -> String {
    if number.is_nan() { "nan".to_owned() } else { number.to_string() }
}

/// Prints one line for people and transcripts: `OK`, `:60`, `"v"`, `(nil)`, `-ERR ...`, `[a, b]`, `{k: v}`.
///
/// Each type has its own look, so that two values of different types never print alike. The exception is a
/// simple string: it prints bare, as it is by far the most frequent, and could look like any other type.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Simple(bytes) => escaped(f, bytes),
            Value::Error(bytes) => f.write_str("-").and_then(|()| escaped(f, bytes)),
            Value::Int(number) => write!(f, ":{number}"),
            Value::Bulk(bytes) => quoted(f, bytes),
            Value::NullBulk => f.write_str("(nil)"),
            Value::NullArray => f.write_str("(nil array)"),
            Value::Null => f.write_str("(null)"),
            Value::Array(items) => list(f, "[", items, "]"),
            Value::Set(items) => list(f, "~[", items, "]"),
            Value::Push(items) => list(f, ">[", items, "]"),
            Value::Map(pairs) => map(f, "{", pairs),
            Value::Double(number) => write!(f, ",{}", double_text(*number)),
            Value::Bool(truth) => f.write_str(if *truth { "#t" } else { "#f" }),
            Value::BigNumber(digits) => f.write_str("(").and_then(|()| escaped(f, digits)),
            Value::Verbatim { format, text } => {
                f.write_str("=")?;
                escaped(f, format)?;
                f.write_str(":")?;
                quoted(f, text)
            }
            Value::BlobError(bytes) => f.write_str("!").and_then(|()| escaped(f, bytes)),
            Value::Attribute { pairs, value } => {
                map(f, "|{", pairs)?;
                write!(f, " {value}")
            }
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, open: &str, items: &[Value], close: &str) -> fmt::Result {
    f.write_str(open)?;
    for (index, item) in items.iter().enumerate() {
        write!(f, "{}{item}", if index == 0 { "" } else { ", " })?;
    }
    f.write_str(close)
}

fn map(f: &mut fmt::Formatter<'_>, open: &str, pairs: &[(Value, Value)]) -> fmt::Result {
    f.write_str(open)?;
    for (index, (key, value)) in pairs.iter().enumerate() {
        write!(f, "{}{key}: {value}", if index == 0 { "" } else { ", " })?;
    }
    f.write_str("}")
}

fn quoted(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    f.write_str("\"")?;
    escaped(f, bytes)?;
    f.write_str("\"")
}

/// Writes redis-cli's escapes, which a person can paste back between quotes.
fn escaped(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    for &byte in bytes {
        match byte {
            b'"' => f.write_str("\\\"")?,
            b'\\' => f.write_str("\\\\")?,
            b'\n' => f.write_str("\\n")?,
            b'\r' => f.write_str("\\r")?,
            b'\t' => f.write_str("\\t")?,
            0x07 => f.write_str("\\a")?,
            0x08 => f.write_str("\\b")?,
            b' '..=b'~' => fmt::Write::write_char(f, char::from(byte))?,
            _ => write!(f, "\\x{byte:02x}")?,
        }
    }
    Ok(())
}
