//! Finds and builds replies in bytes from a server that may be hostile.
//!
//! For each open aggregate the scanner keeps the number of values still to come: no recursion, a stack of at
//! most [`DEPTH_MAX`] numbers. The builder runs over bytes that the scanner has accepted. So its recursion is
//! as shallow, its capacities are for elements that have arrived, and it fails only on a refused number or a
//! malformed text.

use std::fmt;

use super::Value;

/// Deepest nesting accepted. COMMAND DOCS, the deepest reply of Redis itself, needs about a dozen; scripts
/// may build more.
pub const DEPTH_MAX: usize = 128;

/// Longest text of a line type (simple string, error, number), in bytes: Redis cuts its own errors far below.
pub const LINE_MAX: usize = 64 * 1024;

/// Largest length accepted, in bytes or elements: twice Redis' largest string by default.
pub const LENGTH_MAX: u64 = 1 << 30;

// A map counts two values per pair, and all open aggregates together must not overflow the sums below.
const _: () = assert!(LENGTH_MAX < u64::MAX / 4 && LENGTH_MAX < usize::MAX as u64 / 2);

/// Why bytes are not a reply. Each error is the sender's fault; the connection cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    /// The first byte of a value names no type.
    UnknownType(u8),
    /// A length that is not a number, is negative where that has no meaning, or exceeds [`LENGTH_MAX`].
    BadLength,
    /// A malformed integer, double, boolean or big number.
    BadNumber,
    /// A null with content, or a verbatim text without its three-letter format.
    BadText,
    /// A carriage return without its line feed, or bytes behind the announced end of a string.
    MissingLineEnd,
    /// A line of more than [`LINE_MAX`] bytes.
    LineTooLong,
    /// More than [`DEPTH_MAX`] aggregates inside one another.
    TooDeep,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::UnknownType(byte) => write!(f, "no reply starts with byte {byte:#04x}"),
            DecodeError::BadLength => write!(f, "a length is not a number between 0 and {LENGTH_MAX}"),
            DecodeError::BadNumber => f.write_str("a number does not read as one"),
            DecodeError::BadText => f.write_str("a null or a verbatim text is malformed"),
            DecodeError::MissingLineEnd => f.write_str("a line end is missing"),
            DecodeError::LineTooLong => write!(f, "a line is longer than {LINE_MAX} bytes"),
            DecodeError::TooDeep => write!(f, "values are nested deeper than {DEPTH_MAX}"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Decodes the first reply in `bytes` and returns it with its length in bytes; `None` if it is incomplete.
pub fn decode(bytes: &[u8]) -> Result<Option<(Value, usize)>, DecodeError> {
    let Some(end) = Scanner::new().scan(bytes)? else { return Ok(None) };
    let mut builder = Builder { bytes: &bytes[..end], at: 0 };
    let value = builder.value()?;
    assert_eq!(builder.at, end, "scanner and builder agree on where a reply ends");
    Ok(Some((value, end)))
}

/// Finds the end of a reply that arrives in pieces.
///
/// Each call gets the same buffer, grown at its end; accepted bytes are not scanned again.
#[derive(Debug, Default)]
pub struct Scanner {
    /// Bytes before this offset belong to the reply and have been accepted. `at <= bytes.len()` of every
    /// later call.
    at: usize,
    /// Values still to come in each aggregate around `at`, the outermost first; never holds a zero between
    /// calls.
    pub(super) pending: Vec<u64>,
}

/// A value as the scanner sees it.
enum Piece {
    /// A value that ends at this position.
    Whole(usize),
    /// The header of an aggregate: the offset of its content, and the number of values that follow.
    Open(usize, u64),
    /// An attribute: as `Open`, but not itself a value, since the value follows.
    Prefix(usize, u64),
}

impl Scanner {
    pub fn new() -> Scanner {
        Scanner::default()
    }

    /// Returns the offset after the reply's last byte, or `None` if more bytes are needed.
    ///
    /// After an end or an error the scanner is used up: start a new scanner for the next reply.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<Option<usize>, DecodeError> {
        loop {
            let Some(piece) = piece_at(bytes, self.at)? else { return Ok(None) };
            match piece {
                Piece::Whole(end) => self.at = end,
                Piece::Open(end, 0) => self.at = end,
                Piece::Open(end, count) => {
                    self.at = end;
                    self.enter(count)?;
                    continue;
                }
                Piece::Prefix(end, count) => {
                    self.at = end;
                    self.enter(count + 1)?; // the pairs, and the value that they describe
                    continue;
                }
            }
            if self.value_ended() {
                return Ok(Some(self.at));
            }
        }
    }

    fn enter(&mut self, count: u64) -> Result<(), DecodeError> {
        if self.pending.len() == DEPTH_MAX {
            return Err(DecodeError::TooDeep);
        }
        self.pending.push(count);
        Ok(())
    }

    /// Counts a value off; returns true if it was the last of the whole reply.
    fn value_ended(&mut self) -> bool {
        while let Some(left) = self.pending.last_mut() {
            *left -= 1;
            if *left > 0 {
                return false;
            }
            self.pending.pop(); // a complete aggregate is itself a value of the aggregate around it
        }
        true
    }
}

fn piece_at(bytes: &[u8], at: usize) -> Result<Option<Piece>, DecodeError> {
    let Some(&mark) = bytes.get(at) else { return Ok(None) };
    if !b"+-:$*%~>,#(=!|_".contains(&mark) {
        return Err(DecodeError::UnknownType(mark));
    }
    let Some((content, next)) = line_at(bytes, at + 1)? else { return Ok(None) };
    Ok(match mark {
        b'$' | b'*' if content == b"-1" => Some(Piece::Whole(next)),
        b'$' | b'=' | b'!' => blob_end(bytes, next, length(content)?)?.map(Piece::Whole),
        b'*' | b'~' | b'>' => Some(Piece::Open(next, length(content)?)),
        b'%' => Some(Piece::Open(next, 2 * length(content)?)),
        b'|' => Some(Piece::Prefix(next, 2 * length(content)?)),
        _ => Some(Piece::Whole(next)),
    })
}

/// Returns the text up to the line end, and the offset after the line end.
fn line_at(bytes: &[u8], start: usize) -> Result<Option<(&[u8], usize)>, DecodeError> {
    let rest = &bytes[start..];
    let window = &rest[..rest.len().min(LINE_MAX + 1)];
    let Some(length) = window.iter().position(|&byte| byte == b'\r' || byte == b'\n') else {
        return if rest.len() > LINE_MAX { Err(DecodeError::LineTooLong) } else { Ok(None) };
    };
    match (rest[length], rest.get(length + 1)) {
        (b'\r', None) => Ok(None),
        (b'\r', Some(b'\n')) => Ok(Some((&rest[..length], start + length + 2))),
        _ => Err(DecodeError::MissingLineEnd),
    }
}

fn blob_end(bytes: &[u8], start: usize, length: u64) -> Result<Option<usize>, DecodeError> {
    let end = start + length as usize;
    match bytes.get(end..) {
        None | Some([] | [b'\r']) => Ok(None),
        Some([b'\r', b'\n', ..]) => Ok(Some(end + 2)),
        Some(_) => Err(DecodeError::MissingLineEnd),
    }
}

/// Parses digits alone: Rust's parser would also accept a plus.
fn length(content: &[u8]) -> Result<u64, DecodeError> {
    let digits = content.iter().all(u8::is_ascii_digit);
    number(content).ok().filter(|&number| digits && number <= LENGTH_MAX).ok_or(DecodeError::BadLength)
}

/// Builds values out of bytes that a scanner has accepted as a whole reply.
struct Builder<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Builder<'_> {
    fn value(&mut self) -> Result<Value, DecodeError> {
        let mark = self.bytes[self.at];
        let (content, next) = line_at(self.bytes, self.at + 1)?.expect("the scanner saw this line end");
        self.at = next;
        Ok(match mark {
            b'+' => Value::Simple(content.to_vec()),
            b'-' => Value::Error(content.to_vec()),
            b':' => integer(content)?,
            b'$' if content == b"-1" => Value::NullBulk,
            b'*' if content == b"-1" => Value::NullArray,
            b'$' => Value::Bulk(self.blob(length(content)?)),
            b'!' => Value::BlobError(self.blob(length(content)?)),
            b'=' => verbatim(self.blob(length(content)?))?,
            b'*' => Value::Array(self.items(length(content)?)?),
            b'~' => Value::Set(self.items(length(content)?)?),
            b'>' => Value::Push(self.items(length(content)?)?),
            b'%' => Value::Map(self.pairs(length(content)?)?),
            b'|' => Value::Attribute { pairs: self.pairs(length(content)?)?, value: Box::new(self.value()?) },
            b',' => Value::Double(double(content)?),
            b'#' => Value::Bool(truth(content)?),
            b'(' => Value::BigNumber(digits(content)?),
            b'_' if content.is_empty() => Value::Null,
            _ => return Err(DecodeError::BadText), // `_` with content: all other marks are above
        })
    }

    fn blob(&mut self, length: u64) -> Vec<u8> {
        let start = self.at;
        self.at += length as usize + 2;
        self.bytes[start..self.at - 2].to_vec()
    }

    fn items(&mut self, count: u64) -> Result<Vec<Value>, DecodeError> {
        let mut items = Vec::with_capacity(count as usize); // all of them are in `bytes`
        for _ in 0..count {
            items.push(self.value()?);
        }
        Ok(items)
    }

    fn pairs(&mut self, count: u64) -> Result<Vec<(Value, Value)>, DecodeError> {
        let mut pairs = Vec::with_capacity(count as usize);
        for _ in 0..count {
            pairs.push((self.value()?, self.value()?));
        }
        Ok(pairs)
    }
}

fn number<N: std::str::FromStr>(content: &[u8]) -> Result<N, DecodeError> {
    std::str::from_utf8(content).ok().and_then(|text| text.parse().ok()).ok_or(DecodeError::BadNumber)
}

/// Decodes an integer. Redis sends the length of an array and its indices as unsigned 64-bit integers; a
/// number beyond `i64` becomes a big number.
fn integer(content: &[u8]) -> Result<Value, DecodeError> {
    match number(content) {
        Ok(value) => Ok(Value::Int(value)),
        Err(error) => match number::<u64>(content) {
            Ok(_) => Ok(Value::BigNumber(content.to_vec())),
            Err(_) => Err(error),
        },
    }
}

/// Rust's parser is laxer than the protocol: it also accepts `infinity` and any case.
fn double(content: &[u8]) -> Result<f64, DecodeError> {
    match content {
        b"inf" | b"+inf" => Ok(f64::INFINITY),
        b"-inf" => Ok(f64::NEG_INFINITY),
        b"nan" | b"-nan" => Ok(f64::NAN),
        _ if content.iter().all(|byte| b"0123456789+-.eE".contains(byte)) => number(content),
        _ => Err(DecodeError::BadNumber),
    }
}

fn truth(content: &[u8]) -> Result<bool, DecodeError> {
    match content {
        b"t" => Ok(true),
        b"f" => Ok(false),
        _ => Err(DecodeError::BadNumber),
    }
}

fn digits(content: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let digits = content.strip_prefix(b"-").or(content.strip_prefix(b"+")).unwrap_or(content);
    let valid = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    if valid { Ok(content.to_vec()) } else { Err(DecodeError::BadNumber) }
}

fn verbatim(mut blob: Vec<u8>) -> Result<Value, DecodeError> {
    match *blob {
        [a, b, c, b':', ..] => {
            blob.drain(..4);
            Ok(Value::Verbatim { format: [a, b, c], text: blob })
        }
        _ => Err(DecodeError::BadText),
    }
}
