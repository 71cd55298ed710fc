//! Walks over the keys of a database: KEYS, SCAN, RANDOMKEY.
//!
//! A walk locks only the part of a slot that it reads, and lets a thread that needs the keyspace at rest go
//! first. So a walk over ten million keys keeps its own worker busy, as in Redis, and no other.

use evenkeel_resp::number::parse_i64;
use evenkeel_resp::reply::Encoder;
use evenkeel_store::{Cursor, Kind, View};

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
    let keyspace = call.guard.keyspace();
    let is_whole = call.guard.for_each_key(db, |view| {
        if glob::matches(pattern, view.key(), false) && !keyspace.hides_key(view.key()) {
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
    let keyspace = call.guard.keyspace();
    loop {
        let step = left.min(SCAN_STEP);
        cursor = call.guard.scan(call.db as usize, cursor, step, filter.kind, |view| {
            if filter.passes(view) && !keyspace.hides_key(view.key()) {
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

/// Parses a cursor as Valkey does. A plain number must not be negative; any other text is read like
/// `strtoull` does: with spaces in front, a sign, zeros, and up to a zero byte.
pub(crate) fn cursor_of(text: &[u8]) -> Option<Cursor> {
    if let Some(number) = parse_i64(text) {
        return u64::try_from(number).ok().map(Cursor);
    }
    let text = text.split(|byte| *byte == 0).next().unwrap_or(text);
    let spaces = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).count();
    let (negative, digits) = match &text[spaces..] {
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
pub enum Of {
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
pub struct Filter<'a> {
    pattern: Option<&'a [u8]>,
    kind: Option<Kind>,
    pub count: usize,
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
    ///
    /// # Errors
    /// The error for the client.
    pub fn parse(args: &Args<'a>, first: usize, of: Of) -> Result<Filter<'a>, Error> {
        let mut filter = Filter { pattern: None, kind: None, count: 10, names_only: false };
        let mut at = first;
        while at < args.len() {
            let value = || args.get(at + 1).ok_or(Error::Syntax);
            match args.word(at).as_bytes() {
                b"MATCH" => filter.pattern = Some(value()?),
                b"TYPE" if of == Of::Keys => filter.kind = Some(kind_named(value()?)?),
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
                b"NOVALUES" => return Err(Error::text("ERR NOVALUES option can only be used in HSCAN")),
                b"NOSCORES" => return Err(Error::text("ERR NOSCORES option can only be used in ZSCAN")),
                _ => return Err(Error::Syntax),
            }
            at += 2;
        }
        Ok(filter)
    }

    pub fn pattern(&self) -> Option<&'a [u8]> {
        self.pattern
    }

    /// Whether a name matches the pattern.
    pub(crate) fn admits(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, name, false))
    }

    /// Returns the kind of the values to visit; `None`: all.
    pub fn kind(&self) -> Option<Kind> {
        self.kind
    }

    /// Whether a key is to be returned.
    pub fn passes(&self, view: View<'_>) -> bool {
        self.admits(view.key()) && self.kind.is_none_or(|kind| kind == view.kind())
    }
}

/// Returns the kind of values of a name. As in Valkey, a zero byte ends the name.
fn kind_named(name: &[u8]) -> Result<Kind, Error> {
    let name = name.split(|byte| *byte == 0).next().unwrap_or(name);
    let unknown = || Error::Bytes([b"ERR unknown type name '".as_slice(), name, b"'"].concat());
    Kind::named(name).ok_or_else(unknown)
}

/// Keys that RANDOMKEY tries, when clients do not see some.
const RANDOM_TRIES: usize = 1000;

/// RANDOMKEY
fn randomkey(call: &mut Call<'_, '_>) -> Done {
    let mut key = call.guard.random_key(call.db as usize);
    let is_hidden = |call: &Call<'_, '_>, key: &[u8]| call.guard.keyspace().hides_key(key);
    for _ in 0..RANDOM_TRIES {
        if key.as_ref().is_none_or(|key| !is_hidden(call, key)) {
            break;
        }
        key = call.guard.random_key(call.db as usize);
    }
    match key.filter(|key| !is_hidden(call, key)) {
        Some(key) => call.reply.bulk(&key),
        None => call.reply.null(),
    }
    Ok(Flow::Replied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_parse_as_in_valkey() {
        for (text, cursor) in [
            ("0", 0),
            ("00", 0),
            ("-0", 0),
            ("+7", 7),
            ("7\0x", 7),
            (" 7", 7),
            ("\t7", 7),
            ("\x0b7", 7),
            (" -1", u64::MAX),
            ("-01", u64::MAX),
            ("-18446744073709551615", 1),
        ] {
            assert_eq!(cursor_of(text.as_bytes()), Some(Cursor(cursor)), "{text}");
        }
        assert_eq!(cursor_of(b"18446744073709551615"), Some(Cursor(u64::MAX)));
        let wrong = ["", " ", "\0", "-1", "18446744073709551616", "-18446744073709551616", "1 ", "0x1"];
        for text in wrong.into_iter().chain(["+", "-", "--1", "a"]) {
            assert_eq!(cursor_of(text.as_bytes()), None, "{text}");
        }
    }
}
