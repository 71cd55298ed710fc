//! IDs as clients write and read them.

use evenkeel_resp::number::parse_u64;
use evenkeel_store::collection::stream::StreamId;

use crate::Args;
use crate::error::Error;
use crate::reply::Reply;

/// Longest ID that is parsed.
const TEXT_MAX: usize = 127;

pub(super) fn invalid() -> Error {
    Error::text("ERR Invalid stream ID specified as stream command argument")
}

/// The ID that XADD gives its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NewId {
    /// `*`: the time, or the next after the last ID.
    Auto,
    /// `ms-*`: the next of that millisecond.
    AutoSeq(u64),
    Exactly(StreamId),
}

impl NewId {
    /// Parses an ID; `*` alone is the caller's case.
    pub(super) fn parse(text: &[u8]) -> Result<NewId, Error> {
        match text.strip_suffix(b"-*") {
            Some(ms) if !ms.contains(&b'-') => number(ms).map(NewId::AutoSeq).ok_or_else(invalid),
            _ => strict(text, 0).map(NewId::Exactly),
        }
    }

    /// Returns the ID after `last`; `None` if it would not be greater.
    pub(super) fn after(self, last: StreamId, now_ms: u64) -> Option<StreamId> {
        match self {
            NewId::Auto if now_ms > last.ms => Some(StreamId::new(now_ms, 0)),
            NewId::Auto => last.next(),
            NewId::AutoSeq(ms) if ms == last.ms => last.seq.checked_add(1).map(|seq| StreamId::new(ms, seq)),
            NewId::AutoSeq(ms) => Some(StreamId::new(ms, 0)).filter(|id| *id > last),
            NewId::Exactly(id) => Some(id).filter(|id| *id > last),
        }
    }
}

/// Parses an ID where only an ID is valid. `missing_seq` is the sequence number if the text has none.
pub(super) fn strict(text: &[u8], missing_seq: u64) -> Result<StreamId, Error> {
    // Redis reads it as a text that ends at a zero byte.
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    let shown = &text[..end];
    if text.len() > TEXT_MAX || shown == b"-" || shown == b"+" {
        return Err(invalid());
    }
    let id = match shown.iter().position(|byte| *byte == b'-') {
        Some(dash) => number(&shown[..dash]).zip(number(&shown[dash + 1..])),
        None => number(shown).map(|ms| (ms, missing_seq)),
    };
    id.map(|(ms, seq)| StreamId { ms, seq }).ok_or_else(invalid)
}

/// [`strict`] with `-` for the first and `+` for the last possible ID.
pub(super) fn loose(text: &[u8], missing_seq: u64) -> Result<StreamId, Error> {
    match text {
        b"-" => Ok(StreamId::MIN),
        b"+" => Ok(StreamId::MAX),
        _ => strict(text, missing_seq),
    }
}

/// Parses a number like C: white space, a plus sign and zeros may come before it.
fn number(text: &[u8]) -> Option<u64> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let text = &text[text.iter().take_while(|byte| is_space(byte)).count()..];
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let zeros = text.iter().take_while(|byte| **byte == b'0').count();
    if zeros > 0 && zeros == text.len() {
        return Some(0);
    }
    parse_u64(&text[zeros..])
}

/// Parses the start of an interval, exclusive after a `(`.
pub(super) fn start(text: &[u8]) -> Result<StreamId, Error> {
    match text {
        [b'(', rest @ ..] if !rest.is_empty() => {
            strict(rest, 0)?.next().ok_or(Error::text("ERR invalid start ID for the interval"))
        }
        _ => loose(text, 0),
    }
}

/// Parses the end of an interval, as [`start`].
pub(super) fn end(text: &[u8]) -> Result<StreamId, Error> {
    match text {
        [b'(', rest @ ..] if !rest.is_empty() => {
            strict(rest, u64::MAX)?.previous().ok_or(Error::text("ERR invalid end ID for the interval"))
        }
        _ => loose(text, u64::MAX),
    }
}

/// Parses all arguments from `first` on as IDs.
pub(super) fn all(args: &Args<'_>, first: usize) -> Result<Vec<StreamId>, Error> {
    args.from(first).map(|text| strict(text, 0)).collect()
}

/// Writes an ID as a bulk string.
#[inline]
pub(super) fn reply(reply: &mut Reply, id: StreamId) {
    /// Twenty digits each, and the dash.
    const LEN_MAX: usize = 41;
    let (mut ms, mut seq) = (itoa::Buffer::new(), itoa::Buffer::new());
    let (ms, seq) = (ms.format(id.ms).as_bytes(), seq.format(id.seq).as_bytes());
    let mut text = [b'-'; LEN_MAX];
    let len = ms.len() + 1 + seq.len();
    text[..ms.len()].copy_from_slice(ms);
    text[ms.len() + 1..len].copy_from_slice(seq);
    reply.bulk(&text[..len]);
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(ms: u64, seq: u64) -> StreamId {
        StreamId { ms, seq }
    }

    #[test]
    fn ids_parse_as_in_redis() {
        const MAX: u64 = u64::MAX;
        let cases: [(&[u8], _); 12] = [
            (b"5", Some(id(5, 7))),
            (b"5-3", Some(id(5, 3))),
            (b"0-0", Some(id(0, 0))),
            (b"18446744073709551615-18446744073709551615", Some(id(MAX, MAX))),
            (b"18446744073709551616", None),
            (b" 012-+03", Some(id(12, 3))),
            (b"5\0-9", Some(id(5, 7))),
            (b"5-", None),
            (b"-5", None),
            (b"5-*", None),
            (b"", None),
            (b"+", None),
        ];
        for (text, expected) in cases {
            assert_eq!(strict(text, 7).ok(), expected, "{}", text.escape_ascii());
        }
        assert_eq!(loose(b"-", 7), Ok(StreamId::MIN));
        assert_eq!(loose(b"+", 7), Ok(StreamId::MAX));
        assert_eq!((start(b"(1-1"), end(b"(1-1")), (Ok(id(1, 2)), Ok(id(1, 0))));
        assert_eq!(end(b"(1"), Ok(id(1, u64::MAX - 1)));
        assert!(
            [start(b"("), start(b"(-"), end(b"(0-0"), start(b"(18446744073709551615-18446744073709551615")]
                .iter()
                .all(Result::is_err)
        );
    }

    #[test]
    fn new_ids_exceed_the_last_id() {
        let last = id(100, 5);
        for (text, expected) in [
            (&b"100-6"[..], Some(id(100, 6))),
            (b"100-5", None),
            (b"101", Some(id(101, 0))),
            (b"100-*", Some(id(100, 6))),
            (b"200-*", Some(id(200, 0))),
            (b"99-*", None),
        ] {
            let new = NewId::parse(text).expect("an id");
            assert_eq!(new.after(last, 0), expected, "{}", text.escape_ascii());
        }
        assert_eq!(NewId::Auto.after(last, 99), Some(id(100, 6)));
        assert_eq!(NewId::Auto.after(last, 101), Some(id(101, 0)));
        assert_eq!(NewId::Auto.after(id(100, u64::MAX), 100), Some(id(101, 0)));
        assert_eq!(NewId::AutoSeq(100).after(id(100, u64::MAX), 100), None);
        assert!([&b"-*"[..], b"*-*", b"1--*", b"x-*"].iter().all(|text| NewId::parse(text).is_err()));
    }
}
