//! Walks over the keys of a database: KEYS, SCAN, RANDOMKEY.
//!
//! A walk locks only the part of a slot that it reads, and lets a thread that needs the keyspace at rest go
//! first. So a walk over ten million keys keeps its own worker busy, as in Redis, and no other.

use evenkeel_resp::reply::Encoder;
use evenkeel_store::{Cursor, View};

use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::reply::Reply;
use crate::{Args, Call, Command, DataHandler, Group, at_least, exactly, walk};
use evenkeel_runtime::glob;

#[rustfmt::skip]
pub const COMMANDS: &[Command<DataHandler>] = &[
    walk("KEYS",      exactly(2),  Group::Keyspace, keys),
    walk("SCAN",      at_least(2), Group::Keyspace, scan),
    walk("RANDOMKEY", exactly(1),  Group::Keyspace, randomkey),
];

/// KEYS pattern
///
/// Expired keys are left to be removed by other commands, as in Redis.
fn keys(call: &mut Call<'_, '_>) -> Done {
    let (db, pattern) = (call.db as usize, call.args.at(1));
    let (mut found, mut count) = (Encoder::default(), 0);
    let is_whole = call.guard.for_each_key(db, |view| {
        if glob::matches(pattern, view.key(), false) {
            found.bulk(view.key());
            count += 1;
        }
    });
    if !is_whole {
        return Ok(Flow::RetryAdmission);
    }
    call.reply.array(count);
    call.reply.bytes.extend_from_slice(&found.bytes);
    Ok(Flow::Replied)
}

/// Most keys that SCAN visits under a single lock: at about 100 ns each, a slot is locked for 0.1 ms.
const SCAN_STEP: usize = 1000;

/// SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]
fn scan(call: &mut Call<'_, '_>) -> Done {
    let mut cursor = cursor_of(call.args.at(1)).ok_or(Error::text("ERR invalid cursor"))?;
    let filter = Filter::parse(&call.args, 2, Of::Keys)?;
    let (mut found, mut count, mut left) = (Encoder::default(), 0, filter.count);
    loop {
        let step = left.min(SCAN_STEP);
        cursor = call.guard.scan(call.db as usize, cursor, step, |view| {
            if filter.passes(view) {
                found.bulk(view.key());
                count += 1;
            }
        });
        left -= step;
        if cursor.0 == 0 || left == 0 {
            break;
        }
        if !call.guard.give_way() {
            return Ok(Flow::RetryAdmission);
        }
    }
    call.reply.array(2);
    call.reply.bulk(cursor.0.to_string().as_bytes());
    call.reply.array(count);
    call.reply.bytes.extend_from_slice(&found.bytes);
    Ok(Flow::Replied)
}

/// Parses a cursor like `strtoul`, as Redis does: a sign is accepted, an empty text is zero, and a zero byte
/// ends the text.
pub(crate) fn cursor_of(text: &[u8]) -> Option<Cursor> {
    let text = text.split(|byte| *byte == 0).next().unwrap_or(text);
    let (negative, digits) = match text {
        [] => return Some(Cursor(0)),
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = std::str::from_utf8(digits).ok()?.parse::<u64>().ok()?;
    Some(Cursor(if negative { number.wrapping_neg() } else { number }))
}

/// The kind of names that a walk visits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    Keys,
    /// The members of a set.
    Members,
    /// The fields of a hash, with or without their values.
    Fields,
    /// The members of a sorted set, with or without their scores.
    ScoredMembers,
}

impl Of {
    /// The option that leaves out values or scores.
    fn names_only(self) -> Option<&'static [u8]> {
        match self {
            Of::Keys | Of::Members => None,
            Of::Fields => Some(b"NOVALUES"),
            Of::ScoredMembers => Some(b"NOSCORES"),
        }
    }
}

/// Which of the visited names a walk returns, and how many it visits.
pub(crate) struct Filter<'a> {
    pattern: Option<&'a [u8]>,
    kind: Option<&'a [u8]>,
    pub(crate) count: usize,
    /// Leaves out values or scores.
    pub(crate) names_only: bool,
}

/// The names found by a page of a collection.
#[derive(Default)]
pub(crate) struct PageFound {
    pub(crate) found: Encoder,
    pub(crate) count: usize,
}

impl PageFound {
    /// Writes the reply of a page; the walk goes on at `next`.
    pub(crate) fn reply(self, reply: &mut Reply, next: u64) {
        reply.array(2);
        reply.bulk(next.to_string().as_bytes());
        reply.array(self.count);
        reply.bytes.extend_from_slice(&self.found.bytes);
    }
}

impl<'a> Filter<'a> {
    /// Parses the options from argument `first` on.
    pub(crate) fn parse(args: &Args<'a>, first: usize, of: Of) -> Result<Filter<'a>, Error> {
        let mut filter = Filter { pattern: None, kind: None, count: 10, names_only: false };
        let mut at = first;
        while at < args.len() {
            let value = || args.get(at + 1).ok_or(Error::Syntax);
            match args.word(at).as_bytes() {
                b"MATCH" => filter.pattern = Some(value()?),
                b"TYPE" if of == Of::Keys => filter.kind = Some(value()?),
                b"COUNT" => {
                    value()?;
                    let count = usize::try_from(args.int(at + 1)?).map_err(|_| Error::Syntax)?;
                    filter.count = if count == 0 { return Err(Error::Syntax) } else { count };
                }
                word if Some(word) == of.names_only() => {
                    filter.names_only = true;
                    at += 1;
                    continue;
                }
                _ => return Err(Error::Syntax),
            }
            at += 2;
        }
        Ok(filter)
    }

    /// Whether a name matches the pattern.
    pub(crate) fn admits(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, name, false))
    }

    fn passes(&self, view: View<'_>) -> bool {
        self.admits(view.key())
            && self.kind.is_none_or(|kind| kind.eq_ignore_ascii_case(view.kind().name().as_bytes()))
    }
}

/// RANDOMKEY
fn randomkey(call: &mut Call<'_, '_>) -> Done {
    match call.guard.random_key(call.db as usize) {
        Some(key) => call.reply.bulk(&key),
        None => call.reply.null(),
    }
    Ok(Flow::Replied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_parse_as_in_redis() {
        for (text, cursor) in
            [("", 0), ("0", 0), ("00", 0), ("+7", 7), ("-1", u64::MAX), ("7\0x", 7), ("\0", 0)]
        {
            assert_eq!(cursor_of(text.as_bytes()), Some(Cursor(cursor)), "{text}");
        }
        assert_eq!(cursor_of(b"18446744073709551615"), Some(Cursor(u64::MAX)));
        for text in ["18446744073709551616", "-18446744073709551616", " 1", "1 ", "0x1", "+", "-", "--1", "a"]
        {
            assert_eq!(cursor_of(text.as_bytes()), None, "{text}");
        }
    }
}
