//! Counts the replies in a stream of RESP2 bytes, wherever the stream is cut.
//!
//! The generator wants to know how many replies have arrived and whether they were errors or misses; values themselves
//! do not interest it. So nothing is copied or kept: the payload of a bulk is skipped by arithmetic, and a nested array
//! needs no stack, only the number of values that are still open: a scalar closes one, an array of n closes one and
//! opens n. A few words of state per connection.
//!
//! The same type counts requests for the `floor` server, since a request is an array of bulks.

use anyhow::{Result, bail};

/// Most of an error's text that is kept for the report.
const ERROR_TEXT_MAX: usize = 120;
/// Longest bulk that is believed: the servers' own `proto-max-bulk-len` is 512 MB.
const BULK_MAX: u64 = 1 << 32;

/// What a piece of the stream held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Top-level replies that are complete.
    pub(crate) replies: u64,
    /// Those that were errors; an error inside an array counts too.
    pub(crate) errors: u64,
    /// Null bulks and null arrays: keys that were not there.
    pub(crate) misses: u64,
}

#[derive(Debug)]
enum State {
    /// The next byte is a type.
    Type,
    /// Within the digits of a length, up to and including its line feed.
    Length { of_array: bool, number: u64, negative: bool },
    /// Within a line whose content does not matter.
    Line { of_error: bool },
    /// Within a bulk: its bytes and its line end.
    Bulk { left: u64 },
}

/// The state of one connection's stream.
#[derive(Debug)]
pub(crate) struct Skipper {
    state: State,
    /// Values until the current top-level reply is complete; at least 1.
    open: u64,
    error_text: Vec<u8>,
}

impl Skipper {
    pub(crate) fn new() -> Self {
        Self { state: State::Type, open: 1, error_text: Vec::new() }
    }

    /// Text of the first error that came by, without its line end.
    pub(crate) fn error_text(&self) -> String {
        String::from_utf8_lossy(&self.error_text).trim_end().to_owned()
    }

    /// Takes the next bytes of the stream. Fails when they are not RESP2.
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
        self.state = match byte {
            b'+' | b':' => State::Line { of_error: false },
            b'-' => {
                counts.errors += 1;
                State::Line { of_error: self.error_text.is_empty() }
            }
            b'$' | b'*' => State::Length { of_array: byte == b'*', number: 0, negative: false },
            _ => bail!("the server's answer is not RESP2: byte {byte:#04x} where a type belongs"),
        };
        Ok(())
    }

    fn take_length<'b>(&mut self, bytes: &'b [u8], counts: &mut Counts) -> Result<&'b [u8]> {
        let State::Length { of_array, mut number, mut negative } = self.state else {
            unreachable!("called in this state only");
        };
        for (index, &byte) in bytes.iter().enumerate() {
            match byte {
                b'0'..=b'9' if number < BULK_MAX => number = number * 10 + u64::from(byte - b'0'),
                b'-' => negative = true,
                b'\r' => {}
                b'\n' => {
                    self.length_is(of_array, number, negative, counts);
                    return Ok(&bytes[index + 1..]);
                }
                _ => bail!("the server's answer is not RESP2: byte {byte:#04x} in a length"),
            }
        }
        self.state = State::Length { of_array, number, negative };
        Ok(&[])
    }

    fn length_is(&mut self, of_array: bool, number: u64, negative: bool, counts: &mut Counts) {
        self.state = State::Type;
        if negative {
            counts.misses += 1;
            self.close_one(counts);
        } else if of_array {
            self.open = self.open.saturating_add(number);
            self.close_one(counts);
        } else {
            self.state = State::Bulk { left: number + 2 };
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
            self.open = 1;
            counts.replies += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] =
        b"+OK\r\n$5\r\nhe\r\no\r\n$-1\r\n:42\r\n-ERR no\r\n*0\r\n*2\r\n$1\r\na\r\n*1\r\n:1\r\n*-1\r\n$0\r\n\r\n-WRONG second\r\n";
    const HELD: Counts = Counts { replies: 10, errors: 2, misses: 2 };

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
    fn cut_at_every_byte() {
        for cut in 0..=STREAM.len() {
            let (counts, skipper) = feed_all(&[&STREAM[..cut], &STREAM[cut..]]);
            assert_eq!(counts, HELD, "cut at {cut}");
            assert_eq!(skipper.error_text(), "ERR no", "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = STREAM.chunks(1).collect();
        assert_eq!(feed_all(&bytes).0, HELD);
    }

    #[test]
    fn an_unfinished_reply_is_not_counted() {
        for (stream, replies) in
            [(&b"*2\r\n:1\r\n"[..], 0), (b"$3\r\nabc\r", 0), (b"+OK\r\n+O", 1), (b"$", 0)]
        {
            assert_eq!(feed_all(&[stream]).0.replies, replies, "{stream:?}");
        }
    }

    #[test]
    fn what_is_not_resp2_is_an_error() {
        for stream in [&b"HTTP/1.1 200"[..], b"$5x\r\n", b"+OK\r\nx", b"$99999999999999999999999\r\n"] {
            assert!(Skipper::new().feed(stream).is_err(), "{stream:?}");
        }
    }
}
