//! Requests: `*3\r\n$3\r\nSET\r\n...` or an inline line, found in a buffer without copying a byte.
//!
//! [`parse`] is a function from a buffer and a [`State`] to a new state; it keeps nothing. For an incomplete
//! request it returns the state to resume from, so that a request of a million arguments that trickles in is
//! read once, not once per packet. Arguments are [`Span`]s into the buffer.
//!
//! The parser tolerates the same input as Valkey: empty arrays and blank lines are requests without
//! arguments. Each line and each bulk ends with CR LF; a parser that skipped other bytes there would let a
//! request be smuggled past a proxy that reads them.

use std::borrow::Cow;
use std::ops::Range;

use crate::inline;
use crate::number::parse_i64;

/// Longest line that announces a length, and longest inline command, in bytes (Redis'
/// `PROTO_INLINE_MAX_SIZE`).
pub const LINE_LEN_MAX: usize = 64 * 1024;

/// Most arguments in a request (Redis: `INT_MAX`).
pub const ARGS_MAX: i64 = i32::MAX as i64;

/// The place of an argument in the buffer. Offsets are 32-bit: a request is at most 4 GiB, see
/// [`ProtocolError::TooBig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// `len` bytes from `start` on; together at most 4 GiB.
    pub fn new(start: usize, len: usize) -> Span {
        debug_assert!(start + len <= u32::MAX as usize);
        Span { start: start as u32, len: len as u32 }
    }

    /// The argument's bytes. Panics when `buf` is not the buffer that was parsed.
    #[inline]
    pub fn of<'a>(&self, buf: &'a [u8]) -> &'a [u8] {
        &buf[self.start as usize..self.start as usize + self.len as usize]
    }

    /// Returns the offset after the argument's line end; `None` if that line end is not CR LF.
    #[inline]
    fn end_with_line(&self, buf: &[u8]) -> Option<usize> {
        let end = self.start as usize + self.len as usize;
        (buf.get(end..end + 2)? == b"\r\n").then_some(end + 2)
    }

    /// The same bytes after the buffer's first `by` bytes have been dropped.
    pub fn shifted_down(self, by: usize) -> Span {
        Span { start: self.start - by as u32, len: self.len }
    }
}

/// Progress of the parser within the current request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The next byte to read.
    pub at: usize,
    /// Arguments still to come; `None` before the first line is complete.
    pub remaining: Option<u32>,
}

impl State {
    /// State before the first byte of the request that starts at `at`.
    pub fn start(at: usize) -> State {
        State { at, remaining: None }
    }
}

/// Result of [`parse`].
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A whole request that ends before this offset. Its arguments (perhaps none) have been appended.
    Ready(usize),
    /// The rest has not arrived. `missing`: bytes that the current argument still lacks, at least.
    More { state: State, missing: usize },
}

/// A malformed request: the server replies with the text and closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    InlineTooBig,
    ArrayLineTooBig,
    BulkLineTooBig,
    ArrayLength,
    BulkLength,
    ExpectedBulk(u8),
    /// Other bytes than CR LF at the end of a line or of an argument.
    LineEnd,
    UnbalancedQuotes,
    /// More than 4 GiB in one request.
    TooBig,
    /// More arguments, or a longer argument, than an unauthenticated client may send.
    UnauthenticatedArray,
    UnauthenticatedBulk,
}

impl ProtocolError {
    /// Returns the error in Redis' words, to be sent as `-ERR Protocol error: ...`. It may quote a byte that
    /// is not text.
    pub fn text(&self) -> Cow<'static, [u8]> {
        Cow::Borrowed(match self {
            ProtocolError::InlineTooBig => b"too big inline request",
            ProtocolError::ArrayLineTooBig => b"too big mbulk count string",
            ProtocolError::BulkLineTooBig => b"too big bulk count string",
            ProtocolError::ArrayLength => b"invalid multibulk length",
            ProtocolError::BulkLength => b"invalid bulk length",
            ProtocolError::ExpectedBulk(0) => b"expected '$', got ' '",
            ProtocolError::ExpectedBulk(got) => {
                return Cow::Owned([b"expected '$', got '", &[*got][..], b"'"].concat());
            }
            ProtocolError::LineEnd => b"invalid CRLF in request",
            ProtocolError::UnbalancedQuotes => b"unbalanced quotes in request",
            ProtocolError::TooBig => b"request too big",
            ProtocolError::UnauthenticatedArray => b"unauthenticated multibulk length",
            ProtocolError::UnauthenticatedBulk => b"unauthenticated bulk length",
        })
    }
}

/// Parses the request at `buf[state.at..]`, appending its arguments to `args`.
///
/// `bulk_len_max` is the longest argument accepted, in bytes. Inline words are unescaped in place.
#[inline]
pub fn parse(
    buf: &mut [u8],
    state: State,
    args: &mut Vec<Span>,
    bulk_len_max: usize,
) -> Result<Parsed, ProtocolError> {
    parse_from::<false>(buf, state, args, bulk_len_max)
}

/// Like [`parse`], for an unauthenticated client, whose request may take little memory: at most ten arguments
/// of 16 KiB.
pub fn parse_unauthenticated(
    buf: &mut [u8],
    state: State,
    args: &mut Vec<Span>,
    bulk_len_max: usize,
) -> Result<Parsed, ProtocolError> {
    parse_from::<true>(buf, state, args, bulk_len_max)
}

const UNAUTHENTICATED_ARGS_MAX: i64 = 10;
const UNAUTHENTICATED_BULK_LEN_MAX: i64 = 16 * 1024;

#[inline]
fn parse_from<const UNAUTHENTICATED: bool>(
    buf: &mut [u8],
    state: State,
    args: &mut Vec<Span>,
    bulk_len_max: usize,
) -> Result<Parsed, ProtocolError> {
    let (mut at, mut remaining) = match state.remaining {
        Some(remaining) => (state.at, remaining),
        None => match buf.get(state.at) {
            None => return Ok(Parsed::More { state, missing: 1 }),
            Some(b'*') => match length_line(buf, state.at + 1, ProtocolError::ArrayLineTooBig)? {
                None => return Ok(Parsed::More { state, missing: 1 }),
                Some((count, after)) => {
                    let count = count.filter(|count| *count <= ARGS_MAX).ok_or(ProtocolError::ArrayLength)?;
                    if UNAUTHENTICATED && count > UNAUTHENTICATED_ARGS_MAX {
                        return Err(ProtocolError::UnauthenticatedArray);
                    }
                    (after, count.max(0) as u32)
                }
            },
            Some(_) => return parse_inline(buf, state, args),
        },
    };
    while remaining > 0 {
        let here = State { at, remaining: Some(remaining) };
        match buf.get(at) {
            None => return Ok(Parsed::More { state: here, missing: 1 }),
            Some(b'$') => {}
            // As in Redis, the error waits until the whole line has arrived.
            Some(other) => match length_line_long(buf, at, ProtocolError::BulkLineTooBig) {
                Ok(None) => return Ok(Parsed::More { state: here, missing: 1 }),
                Ok(Some(_)) | Err(ProtocolError::LineEnd) => {
                    return Err(ProtocolError::ExpectedBulk(*other));
                }
                Err(error) => return Err(error),
            },
        }
        let Some((len, start)) = length_line(buf, at + 1, ProtocolError::BulkLineTooBig)? else {
            return Ok(Parsed::More { state: here, missing: 1 });
        };
        let len =
            len.filter(|len| (0..=bulk_len_max as i64).contains(len)).ok_or(ProtocolError::BulkLength)?;
        if UNAUTHENTICATED && len > UNAUTHENTICATED_BULK_LEN_MAX {
            return Err(ProtocolError::UnauthenticatedBulk);
        }
        let len = len as usize;
        let end = start + len + 2;
        if end > u32::MAX as usize {
            return Err(ProtocolError::TooBig);
        }
        if buf.len() < end {
            return Ok(Parsed::More { state: here, missing: end - buf.len() });
        }
        if buf[end - 2..end] != *b"\r\n" {
            return Err(ProtocolError::LineEnd);
        }
        args.push(Span::new(start, len));
        at = end;
        remaining -= 1;
    }
    Ok(Parsed::Ready(at))
}

/// Returns the range of `buf` that encodes these arguments as an array of bulk strings, if the client sent
/// them in the common form. `None` if it used another form, or the arguments do not lie one behind the other.
pub fn as_sent(buf: &[u8], args: &[Span]) -> Option<Range<usize>> {
    let (first, others) = args.split_first()?;
    let bulk = (first.start as usize).checked_sub(1 + digits(first.len) + 2)?;
    let start = bulk.checked_sub(1 + digits(args.len() as u32) + 2)?;
    if !is_line(&buf[start..bulk], b'*', args.len() as u32)
        || !is_line(&buf[bulk..first.start as usize], b'$', first.len)
    {
        return None;
    }
    let mut end = first.end_with_line(buf)?;
    for arg in others {
        // The parser has read the line between the arguments as a length, except for its last byte. Among
        // lines of this many characters only the common form has that value. The previous argument ended with
        // CR LF, so the byte is no blank between words of an inline request.
        let from = arg.start as usize;
        if from != end + 1 + digits(arg.len) + 2 || buf[from - 1] != b'\n' {
            return None;
        }
        end = arg.end_with_line(buf)?;
    }
    Some(start..end)
}

/// Returns whether `bytes` is the line that announces `number` of `kind`. Compares byte by byte: a line built
/// for a comparison would have to be stored first and then be loaded as a whole.
#[inline]
fn is_line(bytes: &[u8], kind: u8, number: u32) -> bool {
    let [first, digits @ .., b'\r', b'\n'] = bytes else { return false };
    let mut left = number;
    let are_its = digits.iter().rev().all(|digit| {
        let is_next = *digit == b'0' + (left % 10) as u8;
        left /= 10;
        is_next
    });
    *first == kind && are_its && left == 0
}

/// Returns the number of decimal digits of `number`.
#[inline]
fn digits(number: u32) -> usize {
    match number {
        0..10 => 1,
        10..100 => 2,
        100..1_000 => 3,
        _ => number.ilog10() as usize + 1,
    }
}

/// The text of a line that announces a number, such as `*3\r\n`.
pub struct Line {
    bytes: [u8; 24],
    from: u8,
}

impl Line {
    #[inline]
    pub fn new(kind: u8, mut number: usize) -> Line {
        let (mut bytes, mut at) = ([0; 24], 22);
        bytes[22..].copy_from_slice(b"\r\n");
        loop {
            at -= 1;
            bytes[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        bytes[at - 1] = kind;
        Line { bytes, from: at as u8 - 1 }
    }
}

impl std::ops::Deref for Line {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[usize::from(self.from)..]
    }
}

/// Reads a number up to CR LF. Returns `Some((number, offset after the line))`, where the number is `None` if
/// the text is not a number.
#[inline]
fn length_line(
    buf: &[u8],
    at: usize,
    too_big: ProtocolError,
) -> Result<Option<(Option<i64>, usize)>, ProtocolError> {
    // Nearly every length has one to three digits.
    if let Some(&[a, b, c, d, e]) = buf.get(at..at + 5).and_then(|head| <&[u8; 5]>::try_from(head).ok()) {
        let digit = |byte: u8| i64::from(byte.wrapping_sub(b'0'));
        let (x, y, z) = (digit(a), digit(b), digit(c));
        if [b, c] == *b"\r\n" && x <= 9 {
            return Ok(Some((Some(x), at + 3)));
        }
        if [c, d] == *b"\r\n" && (1..=9).contains(&x) && y <= 9 {
            return Ok(Some((Some(x * 10 + y), at + 4)));
        }
        if [d, e] == *b"\r\n" && (1..=9).contains(&x) && y <= 9 && z <= 9 {
            return Ok(Some((Some(x * 100 + y * 10 + z), at + 5)));
        }
    }
    length_line_long(buf, at, too_big)
}

#[cold]
fn length_line_long(
    buf: &[u8],
    at: usize,
    too_big: ProtocolError,
) -> Result<Option<(Option<i64>, usize)>, ProtocolError> {
    let rest = &buf[at..];
    let line = &rest[..rest.len().min(LINE_LEN_MAX)];
    match line.iter().position(|byte| *byte == b'\r') {
        None if rest.len() > LINE_LEN_MAX => Err(too_big),
        None => Ok(None),
        Some(cr) if cr + 2 > rest.len() => Ok(None),
        Some(cr) if rest[cr + 1] != b'\n' => Err(ProtocolError::LineEnd),
        Some(cr) => Ok(Some((parse_i64(&rest[..cr]), at + cr + 2))),
    }
}

#[cold]
fn parse_inline(buf: &mut [u8], state: State, args: &mut Vec<Span>) -> Result<Parsed, ProtocolError> {
    let rest = &buf[state.at..];
    let Some(newline) = rest.iter().position(|byte| *byte == b'\n') else {
        return if rest.len() > LINE_LEN_MAX {
            Err(ProtocolError::InlineTooBig)
        } else {
            Ok(Parsed::More { state, missing: 1 })
        };
    };
    if state.at + newline >= u32::MAX as usize {
        return Err(ProtocolError::TooBig);
    }
    let end = state.at + newline;
    let line_end = if newline > 0 && buf[end - 1] == b'\r' { end - 1 } else { end };
    inline::split(buf, state.at, line_end, args)?;
    Ok(Parsed::Ready(end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BULK_MAX: usize = 512 << 20;

    fn words(buf: &[u8], args: &[Span]) -> Vec<Vec<u8>> {
        args.iter().map(|span| span.of(buf).to_vec()).collect()
    }

    /// Returns all requests of a stream that arrives in pieces, cut at `cuts`.
    fn feed(stream: &[u8], cuts: &[usize]) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
        let (mut requests, mut args, mut buf) = (Vec::new(), Vec::new(), Vec::new());
        let mut state = State::start(0);
        let mut ends: Vec<usize> = cuts.to_vec();
        ends.push(stream.len());
        let mut arrived = 0;
        for end in ends {
            buf.extend_from_slice(&stream[arrived..end]);
            arrived = end;
            loop {
                match parse(&mut buf, state, &mut args, BULK_MAX)? {
                    Parsed::Ready(after) => {
                        requests.push(words(&buf, &args));
                        args.clear();
                        state = State::start(after);
                        if after == buf.len() {
                            break;
                        }
                    }
                    Parsed::More { state: later, .. } => {
                        state = later;
                        break;
                    }
                }
            }
        }
        Ok(requests)
    }

    #[test]
    fn unauthenticated_clients_may_send_little() {
        let parse = |text: String| {
            let (mut text, mut args) = (text.into_bytes(), Vec::new());
            parse_unauthenticated(&mut text, State::start(0), &mut args, BULK_MAX)
        };
        assert_eq!(parse("*11\r\n".into()), Err(ProtocolError::UnauthenticatedArray));
        assert_eq!(parse("*1\r\n$16385\r\n".into()), Err(ProtocolError::UnauthenticatedBulk));
        let most = format!("*10\r\n{}", format!("$16384\r\n{}\r\n", "x".repeat(16384)).repeat(10));
        assert_eq!(parse(most.clone()), Ok(Parsed::Ready(most.len())));
    }

    #[test]
    fn a_request_in_canonical_form_is_recognised() {
        let sent = |request: &[u8]| {
            let (mut buf, mut args) = ([b"junk", request, b"$1\r\n"].concat(), Vec::new());
            let parsed = parse(&mut buf, State::start(4), &mut args, BULK_MAX);
            assert!(matches!(parsed, Ok(Parsed::Ready(_))), "{parsed:?}");
            as_sent(&buf, &args).map(|range| buf[range].to_vec())
        };
        let long = [&b"*2\r\n$4\r\nECHO\r\n$1234\r\n"[..], &[b'\n'; 1234], b"\r\n"].concat();
        for common in [&b"*1\r\n$4\r\nPING\r\n"[..], b"*2\r\n$0\r\n\r\n$3\r\n\r\n\0\r\n", &long] {
            assert_eq!(sent(common).as_deref(), Some(common));
        }
        for other in [&b"*0\r\n"[..], b"PING\r\n", b"ECHO \"a\\r\\n$1\\r\\n\"\r\n"] {
            assert_eq!(sent(other), None, "{:?}", other.escape_ascii().to_string());
        }
        let mut buf = b"*2\r\n$4\r\nECHO\r\n$1\r\na\r\n".to_vec();
        let mut args = Vec::new();
        parse(&mut buf, State::start(0), &mut args, BULK_MAX).expect("it is whole");
        assert_eq!(as_sent(&buf, &args[..1]), None);
        assert_eq!(as_sent(&buf, &args[1..]), None);
        args.reverse();
        assert_eq!(as_sent(&buf, &args), None);
    }

    fn many() -> Vec<u8> {
        let mut stream = Vec::new();
        stream.extend_from_slice(
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n*0\r\n*-1\r\nPING \"a\\x41\"\r\n\r\n",
        );
        stream.extend_from_slice(b"*1\r\n$4\r\nPING\r\nGET k\n*2\r\n$4\r\nECHO\r\n$12\r\n");
        stream.extend_from_slice(b"a\r\nb*2\r\n$1\r\n\r\n");
        stream.extend_from_slice(b"*2\r\n$4\r\nECHO\r\n$1200\r\n");
        stream.extend_from_slice(&[b'x'; 1200]);
        stream.extend_from_slice(b"\r\n");
        stream
    }

    #[test]
    fn any_two_cuts_give_the_same_requests() {
        let stream = many();
        let whole = feed(&stream, &[]).expect("valid");
        assert_eq!(whole.len(), 9);
        for cut in 0..stream.len() {
            assert_eq!(feed(&stream, &[cut]).as_ref(), Ok(&whole), "cut at {cut}");
            let second = cut + (stream.len() - cut) / 2;
            assert_eq!(feed(&stream, &[cut, second]).as_ref(), Ok(&whole), "cuts at {cut}, {second}");
        }
        let every: Vec<usize> = (0..stream.len()).collect();
        assert_eq!(feed(&stream, &every), Ok(whole));
    }

    #[test]
    fn errors_are_those_of_redis() {
        let text = |stream: &[u8]| feed(stream, &[]).expect_err("must be refused").text();
        let error = |stream: &[u8]| String::from_utf8_lossy(&text(stream)).into_owned();
        assert_eq!(error(b"*abc\r\n"), "invalid multibulk length");
        assert_eq!(error(b"*3000000000\r\n"), "invalid multibulk length");
        assert_eq!(error(b"*1\r\nfoo\r\n"), "expected '$', got 'f'");
        assert_eq!(*text(b"*1\r\n\xa4\r\n"), *b"expected '$', got '\xa4'");
        assert_eq!(feed(b"*1\r\nfoo\r", &[]), Ok(Vec::new()), "the line may go on");
        assert_eq!(error(b"*1\r\n$-1\r\n"), "invalid bulk length");
        assert_eq!(error(b"*1\r\n$600000000000\r\n"), "invalid bulk length");
        assert_eq!(error(b"*1\r\n$99999999999999999999\r\n"), "invalid bulk length");
        assert_eq!(error(b"*1\r\n$abc\r\n"), "invalid bulk length");
        assert_eq!(error(b"SET \"a\r\n"), "unbalanced quotes in request");
        for smuggled in [
            &b"*1\r\n$4\r\nPING.."[..],
            b"*1\r\n$4\rxPING\r\n",
            b"*1\rx$4\r\nPING\r\n",
            b"*x\rx$4\r\nPING\r\n",
            b"*1\r\n$x\rxPING\r\n",
            b"*2\r\n$4\r\nECHO\r\n$1\rxa\r\n",
            b"*2\r\n$4\r\nECHO\r\n$1\r\na..",
            b"*2\r\n$4\r\nECHO\rx$1\r\na\r\n",
            b"*2\r\n$4\r\nECHOx\n$1\r\na\r\n",
        ] {
            assert_eq!(
                error(smuggled),
                "invalid CRLF in request",
                "{:?}",
                smuggled.escape_ascii().to_string()
            );
        }
        assert_eq!(error(b"*1\r\nx\rx"), "expected '$', got 'x'");
        assert_eq!(error(&[b'a'; LINE_LEN_MAX + 1]), "too big inline request");
        assert_eq!(error(&[&b"*"[..], &[b'1'; LINE_LEN_MAX + 1]].concat()), "too big mbulk count string");
        assert_eq!(
            error(&[&b"*1\r\n$"[..], &[b'1'; LINE_LEN_MAX + 1]].concat()),
            "too big bulk count string"
        );
    }

    #[test]
    fn a_long_request_is_read_once() {
        let mut buf = b"*100000\r\n".to_vec();
        let (mut args, mut state) = (Vec::new(), State::start(0));
        for done in 0..100_000 {
            let parsed = parse(&mut buf, state, &mut args, BULK_MAX).expect("valid");
            let Parsed::More { state: later, .. } = parsed else { panic!("not all has arrived") };
            assert!(later.at + 16 >= buf.len() && args.len() == done, "goes on where it stopped");
            state = later;
            buf.extend_from_slice(b"$1\r\nx\r\n");
        }
        assert_eq!(parse(&mut buf, state, &mut args, BULK_MAX), Ok(Parsed::Ready(buf.len())));
        assert_eq!(args.len(), 100_000);
    }

    /// Mutated streams: `parse` always answers without a panic, and spans lie inside the buffer.
    #[test]
    fn mutations_never_panic() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed as usize
        };
        let stream = many();
        for _ in 0..20_000 {
            let mut mutated = stream[..random() % (stream.len() + 1)].to_vec();
            for _ in 0..random() % 6 {
                if mutated.is_empty() {
                    break;
                }
                let at = random() % mutated.len();
                match random() % 3 {
                    0 => mutated[at] = random() as u8,
                    1 => mutated[at] = b"*$\r\n-0123456789\"'\\"[random() % 18],
                    _ => drop(mutated.remove(at)),
                }
            }
            let _ = feed(&mutated, &[mutated.len() / 2]);
        }
    }
}
