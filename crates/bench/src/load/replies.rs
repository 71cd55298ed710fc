//! Counts the replies in a stream of RESP2 or RESP3 bytes, wherever the stream is cut.
//!
//! The generator needs the number of replies, errors and misses, not the values. So nothing is copied or
//! kept: the payload of a bulk is skipped by arithmetic, and a nested array needs no stack, only the number
//! of values that are still open. A scalar closes a value; an array of n closes a value and opens n; a map
//! of n closes a value and opens 2n; an attribute opens 2n beside the value that it precedes. This takes a
//! few words of state per connection. Pushed messages are not replies.
//!
//! The same type counts requests for the `floor` server, since a request is an array of bulks.

use anyhow::{Result, bail};

use super::http::Responses;
use super::memcached::Lines;

/// Most bytes of an error's text kept for the report.
const ERROR_TEXT_MAX: usize = 120;
/// Longest bulk accepted: the servers' own `proto-max-bulk-len` is 512 MB.
const BULK_MAX: u64 = 1 << 32;

/// The content of a piece of the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Complete top-level replies.
    pub(crate) replies: u64,
    /// Errors among them; an error inside an array counts too.
    pub(crate) errors: u64,
    /// Nulls of every kind: missing keys.
    pub(crate) misses: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: Counts) {
        self.replies += other.replies;
        self.errors += other.errors;
        self.misses += other.misses;
    }

    /// Returns the counts since `before`.
    pub(super) fn since(self, before: Counts) -> Counts {
        Counts {
            replies: self.replies - before.replies,
            errors: self.errors - before.errors,
            misses: self.misses - before.misses,
        }
    }
}

#[derive(Debug)]
enum State {
    /// The next byte is a type.
    Type,
    /// Within the digits of a length, up to and including its line feed.
    Length { of: Extent, number: u64, negative: bool },
    /// Within a line whose content does not matter.
    Line { of_error: bool },
    /// Within a bulk: its bytes and its line end.
    Bulk { left: u64 },
}

/// A connection's replies, in its protocol.
#[derive(Debug)]
pub(super) enum Replies {
    Resp(Skipper),
    Memcached(Lines),
    Http(Responses),
}

impl Replies {
    /// See [`Skipper::feed`].
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Counts> {
        match self {
            Self::Resp(skipper) => skipper.feed(bytes),
            Self::Memcached(lines) => lines.feed(bytes),
            Self::Http(responses) => responses.feed(bytes),
        }
    }

    /// See [`Skipper::error_text`].
    pub(super) fn error_text(&self) -> String {
        match self {
            Self::Resp(skipper) => skipper.error_text(),
            Self::Memcached(lines) => lines.error_text(),
            Self::Http(responses) => responses.error_text(),
        }
    }
}

/// A type with a length.
#[derive(Clone, Copy, Debug)]
enum Extent {
    Bulk,
    /// `each` values per counted element, besides the aggregate itself.
    Values {
        each: u64,
        /// An attribute is not a value by itself.
        beside: bool,
    },
}

/// The state of a connection's stream.
#[derive(Debug)]
pub(crate) struct Skipper {
    state: State,
    /// Values until the current top-level reply is complete; 0 between two replies.
    open: u64,
    /// The current value is pushed, and is not a reply.
    is_push: bool,
    error_text: Vec<u8>,
}

impl Skipper {
    pub(crate) fn new() -> Self {
        Self { state: State::Type, open: 0, is_push: false, error_text: Vec::new() }
    }

    /// Returns the text of the first error, without its line end.
    pub(crate) fn error_text(&self) -> String {
        String::from_utf8_lossy(&self.error_text).trim_end().to_owned()
    }

    /// Takes the next bytes of the stream. Fails when they are not RESP.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Result<Counts> {
        let mut counts = Counts::default();
        while let [first, rest @ ..] = bytes {
            bytes = match self.state {
                State::Type => {
                    self.take_type(*first, &mut counts)?;
                    rest
                }
                State::Length { .. } => self.take_length(bytes, &mut counts)?,
                State::Line { of_error } => self.take_line(bytes, of_error, &mut counts),
                State::Bulk { left } => self.take_bulk(bytes, left, &mut counts),
            };
        }
        Ok(counts)
    }

    fn take_type(&mut self, byte: u8, counts: &mut Counts) -> Result<()> {
        let is_first = self.open == 0;
        self.open += u64::from(is_first);
        let sized = |of| State::Length { of, number: 0, negative: false };
        let values = |each, beside| sized(Extent::Values { each, beside });
        self.state = match byte {
            b'+' | b':' | b'#' | b',' | b'(' => State::Line { of_error: false },
            b'_' => {
                counts.misses += 1;
                State::Line { of_error: false }
            }
            b'-' => {
                counts.errors += 1;
                State::Line { of_error: self.error_text.is_empty() }
            }
            b'!' => {
                counts.errors += 1;
                sized(Extent::Bulk)
            }
            b'$' | b'=' => sized(Extent::Bulk),
            b'*' | b'~' => values(1, false),
            b'%' => values(2, false),
            b'|' => values(2, true),
            b'>' if is_first => {
                self.is_push = true;
                values(1, false)
            }
            _ => bail!("the server's answer is not RESP: byte {byte:#04x} where a type belongs"),
        };
        Ok(())
    }

    fn take_length<'b>(&mut self, bytes: &'b [u8], counts: &mut Counts) -> Result<&'b [u8]> {
        let State::Length { of, mut number, mut negative } = self.state else {
            unreachable!("called in this state only");
        };
        for (index, &byte) in bytes.iter().enumerate() {
            match byte {
                b'0'..=b'9' if number < BULK_MAX => number = number * 10 + u64::from(byte - b'0'),
                b'-' => negative = true,
                b'\r' => {}
                b'\n' => {
                    self.length_is(of, number, negative, counts);
                    return Ok(&bytes[index + 1..]);
                }
                _ => bail!("the server's answer is not RESP: byte {byte:#04x} in a length"),
            }
        }
        self.state = State::Length { of, number, negative };
        Ok(&[])
    }

    fn length_is(&mut self, of: Extent, number: u64, negative: bool, counts: &mut Counts) {
        self.state = State::Type;
        match of {
            _ if negative => {
                counts.misses += 1;
                self.close_one(counts);
            }
            Extent::Bulk => self.state = State::Bulk { left: number + 2 },
            Extent::Values { each, beside } => {
                self.open = self.open.saturating_add(number.saturating_mul(each));
                if !beside {
                    self.close_one(counts);
                }
            }
        }
    }

    fn take_line<'b>(&mut self, bytes: &'b [u8], of_error: bool, counts: &mut Counts) -> &'b [u8] {
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let line = &bytes[..end.unwrap_or(bytes.len())];
        if of_error {
            let room = ERROR_TEXT_MAX.saturating_sub(self.error_text.len());
            self.error_text.extend_from_slice(&line[..line.len().min(room)]);
        }
        match end {
            Some(end) => {
                self.close_one(counts);
                &bytes[end + 1..]
            }
            None => &[],
        }
    }

    fn take_bulk<'b>(&mut self, bytes: &'b [u8], left: u64, counts: &mut Counts) -> &'b [u8] {
        let here = left.min(bytes.len() as u64);
        if here == left {
            self.close_one(counts);
        } else {
            self.state = State::Bulk { left: left - here };
        }
        &bytes[here as usize..]
    }

    fn close_one(&mut self, counts: &mut Counts) {
        self.state = State::Type;
        self.open -= 1;
        if self.open == 0 {
            counts.replies += u64::from(!std::mem::take(&mut self.is_push));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] = b"+OK\r\n$5\r\nhe\r\no\r\n$-1\r\n:42\r\n-ERR no\r\n*0\r\n\
         *2\r\n$1\r\na\r\n*1\r\n:1\r\n*-1\r\n$0\r\n\r\n-WRONG second\r\n";
    const HELD: Counts = Counts { replies: 10, errors: 2, misses: 2 };

    /// Null, boolean, double, big number, verbatim text, two pushes, a map with a set in it, an empty map, an
    /// attribute and its value within an array, and an error with a length.
    const RESP3: &[u8] = b"_\r\n#t\r\n,1.5\r\n(12345678901234567890\r\n=7\r\ntxt:a\r\n\r\n\
         >2\r\n+pushed\r\n*1\r\n:1\r\n>0\r\n%1\r\n+k\r\n~2\r\n:1\r\n:2\r\n\
         %0\r\n*1\r\n|1\r\n+ttl\r\n:3\r\n$1\r\nx\r\n!3\r\nERR\r\n";
    const HELD3: Counts = Counts { replies: 9, errors: 1, misses: 1 };

    fn feed_all(pieces: &[&[u8]]) -> (Counts, Skipper) {
        let (mut skipper, mut sum) = (Skipper::new(), Counts::default());
        for piece in pieces {
            let counts = skipper.feed(piece).expect("well-formed");
            sum.replies += counts.replies;
            sum.errors += counts.errors;
            sum.misses += counts.misses;
        }
        (sum, skipper)
    }

    #[test]
    fn whole() {
        let (counts, skipper) = feed_all(&[STREAM]);
        assert_eq!(counts, HELD);
        assert_eq!(skipper.error_text(), "ERR no");
    }

    #[test]
    fn replies_may_be_cut_at_every_byte() {
        for cut in 0..=STREAM.len() {
            let (counts, skipper) = feed_all(&[&STREAM[..cut], &STREAM[cut..]]);
            assert_eq!(counts, HELD, "cut at {cut}");
            assert_eq!(skipper.error_text(), "ERR no", "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = STREAM.chunks(1).collect();
        assert_eq!(feed_all(&bytes).0, HELD);
    }

    #[test]
    fn the_types_of_resp3_may_be_cut_at_every_byte() {
        for cut in 0..=RESP3.len() {
            assert_eq!(feed_all(&[&RESP3[..cut], &RESP3[cut..]]).0, HELD3, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = RESP3.chunks(1).collect();
        assert_eq!(feed_all(&bytes).0, HELD3);
        // An empty push has ended, and a reply follows.
        assert_eq!(feed_all(&[b">0\r\n+OK\r\n"]).0, Counts { replies: 1, ..Counts::default() });
    }

    #[test]
    fn an_unfinished_reply_is_not_counted() {
        for (stream, replies) in [
            (&b"*2\r\n:1\r\n"[..], 0),
            (b"%1\r\n+k\r\n", 0),
            (b"|1\r\n+k\r\n+v\r\n", 0),
            (b"$3\r\nabc\r", 0),
            (b"+OK\r\n+O", 1),
            (b"$", 0),
        ] {
            assert_eq!(feed_all(&[stream]).0.replies, replies, "{stream:?}");
        }
    }

    #[test]
    fn replies_in_another_protocol_are_errors() {
        for stream in
            [&b"HTTP/1.1 200"[..], b"$5x\r\n", b"+OK\r\nx", b"$99999999999999999999999\r\n", b"*1\r\n>1\r\n"]
        {
            assert!(Skipper::new().feed(stream).is_err(), "{stream:?}");
        }
    }
}
