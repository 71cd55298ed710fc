//! CLUSTERSCAN: a scan over the slots of all nodes.
//!
//! A cursor is `<fingerprint>-{<tag>}-<position>`. The tag hashes to the slot, so a client sends the cursor
//! to the slot's node as if it was a key. The position is that of SCAN within the slot. It holds for one
//! process, whose keys are in the order of a random hash: the fingerprint names that, and is 0 at the
//! beginning of a slot. With another fingerprint, the slot is scanned from its beginning.
//!
//! A node scans slot after slot while they are its own, and then returns a cursor of the next slot, which is
//! another node's.

use std::sync::OnceLock;

use evenkeel_cluster::SLOTS;
use evenkeel_resp::number::parse_i64;
use evenkeel_resp::reply::Encoder;
use evenkeel_store::Cursor;
use evenkeel_store::key::slot_of;

use super::super::ServerCall;
use super::view;
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_command::generic::scan::{Filter, Of};

/// The shortest text of digits and letters for each slot that hashes to it: the first one, digits before
/// small letters before capital ones. Valkey's are the same.
fn tags() -> &'static [String] {
    const LETTERS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    static TAGS: OnceLock<Vec<String>> = OnceLock::new();
    TAGS.get_or_init(|| {
        let mut tags = vec![String::new(); SLOTS];
        let mut texts = vec![String::new()];
        // Three letters are enough.
        for _ in 0..3 {
            let mut next = Vec::with_capacity(texts.len() * LETTERS.len());
            for text in &texts {
                next.extend(LETTERS.iter().map(|letter| format!("{text}{}", char::from(*letter))));
            }
            for text in &next {
                let of_slot = &mut tags[usize::from(slot_of(text.as_bytes()))];
                if of_slot.is_empty() {
                    of_slot.clone_from(text);
                }
            }
            texts = next;
        }
        tags
    })
}

fn invalid() -> Error {
    Error::text("ERR Invalid cursor")
}

/// Parses a cursor: its slot, and the position in the slot.
fn cursor_of(text: &[u8], fingerprint: &str) -> Option<(u16, Cursor)> {
    let open = text.windows(2).position(|pair| pair == b"-{")?;
    let close = open + text[open..].windows(2).position(|pair| pair == b"}-")?;
    let position = std::str::from_utf8(&text[close + 2..]).ok()?.parse::<u64>().ok()?;
    let slot = slot_of(text);
    let cursor = Cursor(position);
    let is_here = cursor.slot() == usize::from(slot) && &text[..open] == fingerprint.as_bytes();
    Some((slot, if is_here { cursor } else { Cursor::of_slot(slot) }))
}

fn text_of(fingerprint: &str, slot: u16, position: u64) -> String {
    format!("{fingerprint}-{{{}}}-{position}", tags()[usize::from(slot)])
}

fn start_of(slot: u16) -> String {
    text_of("0", slot, 0)
}

/// The only slot whose keys a pattern can match, if it says so: it has no wildcard up to the end of its tag.
fn slot_of_pattern(pattern: &[u8]) -> Option<u16> {
    let wildcard = pattern.iter().position(|byte| b"*?[\\".contains(byte));
    let Some(wildcard) = wildcard else { return Some(slot_of(pattern)) };
    let before = &pattern[..wildcard];
    let open = before.iter().position(|byte| *byte == b'{')?;
    let len = before[open + 1..].iter().position(|byte| *byte == b'}').filter(|len| *len > 0)?;
    Some(slot_of(&before[..open + len + 2]))
}

/// CLUSTERSCAN cursor [MATCH pattern] [COUNT count] [TYPE type] [SLOT slot]
pub(super) fn scan(call: &mut ServerCall<'_, '_>) -> Done {
    let view = view(call)?;
    let only = slot_option(call)?;
    let others = without_slot(call);
    let filter = Filter::parse(&others.as_args(), 2, Of::Keys)?;
    let matched = filter.pattern().and_then(slot_of_pattern);
    let finds_nothing = only.is_some_and(|only| matched.is_some_and(|matched| matched != only));
    let (text, wanted) = (call.base.args.at(1), only.or(matched));
    if text == b"0" {
        let next = if finds_nothing { "0".to_owned() } else { start_of(wanted.unwrap_or(0)) };
        return reply(call, &next, 0, &Encoder::default());
    }
    let keyspace = &call.server.core.keyspace;
    let fingerprint = format!("{:08x}", keyspace.fingerprint());
    let (mut slot, mut cursor) = cursor_of(text, &fingerprint).ok_or_else(invalid)?;
    if only.is_some_and(|only| only != slot) {
        return Err(Error::text("ERR Cursor slot mismatch with SLOT argument"));
    }
    if let Some(matched) = matched.filter(|matched| *matched != slot) {
        let is_ahead = !finds_nothing && matched > slot;
        let next = if is_ahead { start_of(matched) } else { "0".to_owned() };
        return reply(call, &next, 0, &Encoder::default());
    }
    let db = call.base.db as usize;
    let (mut found, mut count, mut left) = (Encoder::default(), 0, filter.count);
    let next = loop {
        let mut seen = 0;
        cursor = call.base.guard.scan_in_slot(db, cursor, left, filter.kind(), |view| {
            seen += 1;
            if filter.passes(view) {
                found.bulk(view.key());
                count += 1;
            }
        });
        let is_over = cursor.0 == 0 || cursor.slot() != usize::from(slot);
        if !is_over {
            break text_of(&fingerprint, slot, cursor.0);
        }
        if wanted.is_some() {
            break "0".to_owned();
        }
        // The next slot with keys, or of another node.
        let is_empty = |slot: u16| keyspace.slot_len(call.base.guard.ctx, db, slot) == 0;
        let next = (slot + 1..SLOTS as u16).find(|slot| !view.has(*slot) || !is_empty(*slot));
        let Some(next) = next else { break "0".to_owned() };
        left = left.saturating_sub(seen);
        if left == 0 || !view.has(next) {
            break start_of(next);
        }
        (slot, cursor) = (next, Cursor::of_slot(next));
        if !call.base.guard.give_way() {
            return Ok(Flow::RetryAdmission);
        }
    };
    reply(call, &next, count, &found)
}

fn reply(call: &mut ServerCall<'_, '_>, next: &str, count: usize, found: &Encoder) -> Done {
    call.base.reply.array(2);
    call.base.reply.bulk(next.as_bytes());
    call.base.reply.array(count);
    call.base.reply.bytes.extend_from_slice(&found.bytes);
    Ok(Flow::Replied)
}

/// Returns the slot of the option SLOT.
fn slot_option(call: &ServerCall<'_, '_>) -> Result<Option<u16>, Error> {
    let (args, mut slot) = (&call.base.args, None);
    for at in (2..args.len()).step_by(2).filter(|at| args.is(*at, "SLOT")) {
        let number = args.get(at + 1).ok_or(Error::Syntax)?;
        let number = parse_i64(number).and_then(|number| u16::try_from(number).ok());
        let number = number.filter(|slot| usize::from(*slot) < SLOTS);
        let number = number.ok_or(Error::text("ERR Invalid or out of range slot"))?;
        if slot.replace(number).is_some() {
            return Err(Error::text("ERR SLOT option can only be specified once"));
        }
    }
    Ok(slot)
}

/// Returns the arguments without the option SLOT.
fn without_slot(call: &ServerCall<'_, '_>) -> evenkeel_command::args::OwnedArgs {
    let args = &call.base.args;
    let is_of_slot = |at: usize| at >= 2 && args.is(at - at % 2, "SLOT");
    let kept = (0..args.len()).filter(|at| !is_of_slot(*at)).map(|at| args.at(at));
    evenkeel_command::args::OwnedArgs::new(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_tag() {
        for slot in 0..SLOTS as u16 {
            assert_eq!(slot_of(start_of(slot).as_bytes()), slot);
            assert!(tags()[usize::from(slot)].len() <= 3);
        }
    }

    #[test]
    fn cursors_are_read_back() {
        for slot in [0, 1, 12_182, 16_383] {
            let position = Cursor::of_slot(slot).0 | 1 << 20;
            let text = text_of("12ab", slot, position);
            assert_eq!(cursor_of(text.as_bytes(), "12ab"), Some((slot, Cursor(position))), "{text}");
            // Of another process, whose keys have another order.
            assert_eq!(cursor_of(text.as_bytes(), "12ac"), Some((slot, Cursor::of_slot(slot))), "{text}");
        }
        assert_eq!(cursor_of(b"0-{foo}-3", "12ab"), Some((12_182, Cursor::of_slot(12_182))));
        for text in ["", "0", "{foo}", "0-{foo}-", "0-{foo}-x", "0-foo-0", "0-{foo-0", "-{", "}--{"] {
            assert_eq!(cursor_of(text.as_bytes(), "0"), None, "{text}");
        }
    }

    #[test]
    fn patterns_of_a_single_slot_are_recognized() {
        let foo = Some(12_182);
        for (pattern, slot) in [
            (&b"foo"[..], foo),
            (b"{foo}*", foo),
            (b"a{foo}[b]", foo),
            (b"{foo}{bar}*", foo),
            (b"", Some(0)),
            (b"*", None),
            (b"foo*", None),
            (b"*{foo}", None),
            (b"{fo?}", None),
            (b"{}foo*", None),
            (b"{foo*", None),
            (b"{fo\\o}", None),
        ] {
            assert_eq!(slot_of_pattern(pattern), slot, "{}", String::from_utf8_lossy(pattern));
        }
    }
}
