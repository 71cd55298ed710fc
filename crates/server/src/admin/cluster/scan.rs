//! CLUSTERSCAN: a scan over the slots of all nodes.
//!
//! A cursor is `<version>-{<tag>}-<position>`. The tag hashes to the slot, so a client sends the cursor to
//! the slot's node as if it was a key; the position is that of SCAN within the slot. A node scans slot after
//! slot while they are its own, and then returns a cursor of the next slot, which is another node's.

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

/// A text for each slot that hashes to it.
fn tags() -> &'static [String] {
    static TAGS: OnceLock<Vec<String>> = OnceLock::new();
    TAGS.get_or_init(|| {
        let (mut tags, mut left) = (vec![String::new(); SLOTS], SLOTS);
        for number in 0_u32.. {
            let tag = format!("{number:x}");
            let of_slot = &mut tags[usize::from(slot_of(tag.as_bytes()))];
            if of_slot.is_empty() {
                *of_slot = tag;
                left -= 1;
            }
            if left == 0 {
                break;
            }
        }
        tags
    })
}

fn invalid() -> Error {
    Error::text("ERR Invalid cursor")
}

/// Parses a cursor: its slot, and the position in the slot.
fn cursor_of(text: &[u8]) -> Option<(u16, Cursor)> {
    let open = text.windows(2).position(|pair| pair == b"-{")?;
    let close = open + text[open..].windows(2).position(|pair| pair == b"}-")?;
    let position = std::str::from_utf8(&text[close + 2..]).ok()?.parse::<u64>().ok()?;
    let slot = slot_of(text);
    let cursor = Cursor(position);
    // A position of another slot begins this slot anew.
    let is_here = cursor.slot() == usize::from(slot);
    Some((slot, if is_here { cursor } else { Cursor::of_slot(slot) }))
}

fn text_of(slot: u16, position: u64) -> String {
    format!("0-{{{}}}-{position}", tags()[usize::from(slot)])
}

/// CLUSTERSCAN cursor [MATCH pattern] [COUNT count] [TYPE type] [SLOT slot]
pub(super) fn scan(call: &mut ServerCall<'_, '_>) -> Done {
    let view = view(call)?;
    let only = slot_option(call)?;
    let others = without_slot(call);
    let filter = Filter::parse(&others.as_args(), 2, Of::Keys)?;
    let text = call.base.args.at(1);
    if text == b"0" {
        return reply(call, &text_of(only.unwrap_or(0), 0), 0, &Encoder::default());
    }
    let (mut slot, mut cursor) = cursor_of(text).ok_or_else(invalid)?;
    if only.is_some_and(|only| only != slot) {
        return Err(Error::text("ERR Cursor slot mismatch with SLOT argument"));
    }
    let (mut found, mut count, mut left) = (Encoder::default(), 0, filter.count);
    let next = loop {
        let mut seen = 0;
        cursor = call.base.guard.scan_in_slot(call.base.db as usize, cursor, left, filter.kind(), |view| {
            seen += 1;
            if filter.passes(view) {
                found.bulk(view.key());
                count += 1;
            }
        });
        let is_over = cursor.0 == 0 || cursor.slot() != usize::from(slot);
        if !is_over {
            break text_of(slot, cursor.0);
        }
        if only.is_some() || usize::from(slot) + 1 == SLOTS {
            break "0".to_owned();
        }
        slot += 1;
        left = left.saturating_sub(seen);
        if left == 0 || !view.has(slot) {
            break text_of(slot, 0);
        }
        cursor = Cursor::of_slot(slot);
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
        slot = Some(number.ok_or(Error::text("ERR Invalid or out of range slot"))?);
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
            assert_eq!(slot_of(text_of(slot, 0).as_bytes()), slot);
        }
    }

    #[test]
    fn cursors_are_read_back() {
        for slot in [0, 1, 12_182, 16_383] {
            let position = Cursor::of_slot(slot).0 | 1 << 20;
            let text = text_of(slot, position);
            assert_eq!(cursor_of(text.as_bytes()), Some((slot, Cursor(position))), "{text}");
        }
        assert_eq!(cursor_of(b"0-{foo}-3"), Some((12_182, Cursor::of_slot(12_182))));
        for text in ["", "0", "{foo}", "0-{foo}-", "0-{foo}-x", "0-foo-0", "0-{foo-0", "-{", "}--{"] {
            assert_eq!(cursor_of(text.as_bytes()), None, "{text}");
        }
    }
}
