//! Payloads of DUMP: a slice and a reader give the same value, whose size the payload bounds.

#![no_main]

use std::collections::HashSet;
use std::fmt::Debug;

use evenkeel_rdb::{Decoder, Error, Feed, Item, Object, Slice, Source, dump};
use libfuzzer_sys::fuzz_target;

/// Bytes of a value for a byte of its payload: 88 by compression, and twice that for integers as digits.
const GROWTH_MAX: usize = 200;

const VERSIONS: [u16; 8] = [1, 6, 9, 10, 11, 12, 80, 81];

fuzz_target!(|data: &[u8]| {
    let Some((&version, body)) = data.split_first() else { return };
    let version = VERSIONS[usize::from(version) % VERSIONS.len()];
    let sliced = read(Decoder::new(Slice::new(body), version));
    let fed = read(Decoder::new(Feed::new(body, Some(body.len() as u64)), version));
    match (&sliced, &fed) {
        (Ok(sliced), Ok(fed)) => assert_eq!(sliced, fed, "a slice and a reader differ"),
        (Err(_), Err(_)) => {}
        _ => panic!("a slice and a reader differ: {sliced:?}, {fed:?}"),
    }
    if let Ok(value) = &sliced {
        // The names of a stream's fields stand in its payload once, and here once for each entry.
        assert!(value.is_stream || value.bytes.len() <= GROWTH_MAX * body.len());
    }
    let mut payload = body.to_vec();
    payload.extend_from_slice(&version.to_le_bytes());
    payload.extend_from_slice(&[0; 8]);
    assert!(dump::unpacked_len(&payload) >= payload.len() as u64);
    if let Ok(decoder) = dump::open(data) {
        let _ = read(decoder);
    }
});

/// The parts of a value, one behind the other.
#[derive(Debug, Default, PartialEq)]
struct Parts {
    bytes: Vec<u8>,
    is_stream: bool,
}

impl Parts {
    fn item(&mut self, item: Item<'_>) {
        self.bytes.extend_from_slice(&item.to_vec());
    }

    fn shown(&mut self, part: impl Debug) {
        self.bytes.extend_from_slice(format!("{part:?}").as_bytes());
    }
}

fn read<S: Source>(mut decoder: Decoder<S>) -> Result<Parts, Error> {
    let mut parts = Parts::default();
    match decoder.object()? {
        Object::String(string) => parts.item(string),
        Object::Long(mut long) => {
            while let Some(piece) = long.next()? {
                parts.bytes.extend_from_slice(piece);
            }
        }
        Object::List(mut elements) | Object::Set(mut elements) => {
            while let Some(element) = elements.next()? {
                parts.item(element);
            }
        }
        Object::SortedSet(mut members) => {
            while let Some(member) = members.next()? {
                assert!(!member.score.is_nan(), "a score is a number");
                parts.item(member.name);
                parts.bytes.extend_from_slice(&member.score.to_le_bytes());
            }
        }
        Object::Hash(mut fields) => {
            while let Some(field) = fields.next()? {
                parts.item(field.name);
                parts.item(field.value);
                parts.bytes.extend_from_slice(&field.expires.unwrap_or(0).to_le_bytes());
            }
        }
        Object::Array(mut elements) => {
            let mut seen = HashSet::new();
            while let Some((index, value)) = elements.next()? {
                assert!(seen.insert(index), "an index stands once");
                parts.item(value);
            }
        }
        Object::Stream(mut stream) => {
            parts.is_stream = true;
            let mut last = None;
            while let Some(entry) = stream.next_entry()? {
                assert!(last < Some(entry.id), "entries ascend");
                last = Some(entry.id);
                let mut count = 0;
                for (name, value) in entry.fields() {
                    parts.item(name);
                    parts.item(value);
                    count += 1;
                }
                assert_eq!(count, entry.len());
            }
            let (info, mut groups) = stream.finish()?;
            assert!(last <= Some(info.last_id) || last.is_none());
            parts.shown(info);
            while let Some(group) = groups.next()? {
                parts.shown(group);
            }
        }
    }
    decoder.finish()?;
    Ok(parts)
}
