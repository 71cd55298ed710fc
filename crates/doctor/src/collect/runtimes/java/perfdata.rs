//! HotSpot's own counters: a file that each JVM maps, /tmp/hsperfdata_USER/PID, unless it was started with
//! -XX:-UsePerfData.
//!
//! A header and entries follow each other, each entry a name and a value. The file is written while it is
//! read, and any process can write files with such names, so nothing in it is trusted: entries that do not
//! fit are left out.

use std::collections::HashMap;

/// The magic is big-endian on every machine.
const MAGIC: [u8; 4] = [0xca, 0xfe, 0xc0, 0xc0];
const LITTLE_ENDIAN: u8 = 1;
const HEADER_LEN: usize = 32;
const ENTRY_LEN: usize = 20;
/// A JVM has about 300.
const ENTRIES_MAX: usize = 10_000;
/// Collectors of a JVM: two of the generations, and a third for concurrent phases.
const COLLECTORS_MAX: usize = 8;

/// The counters of a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PerfData {
    numbers: HashMap<String, u64>,
    texts: HashMap<String, String>,
}

impl PerfData {
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.texts.get(name).map(String::as_str)
    }

    /// The time in which each garbage collector stopped the program since an earlier moment, ns.
    pub(super) fn collections_since(&self, earlier: &PerfData) -> Vec<(String, u64)> {
        let collector = |index: usize| {
            let name = self.text(&format!("sun.gc.collector.{index}.name"))?;
            let counter = format!("sun.gc.collector.{index}.time");
            let ticks = self.numbers.get(&counter)?.checked_sub(*earlier.numbers.get(&counter)?)?;
            let frequency = *self.numbers.get("sun.os.hrt.frequency").filter(|frequency| **frequency > 0)?;
            let ns = u128::from(ticks) * 1_000_000_000 / u128::from(frequency);
            (ticks > 0)
                .then(|| (format!("garbage collection ({name})"), u64::try_from(ns).unwrap_or(u64::MAX)))
        };
        (0..COLLECTORS_MAX).filter_map(collector).collect()
    }
}

/// Parses version 2, which JDK 5 to 25 write; `None` for anything else.
pub(super) fn parse(bytes: &[u8]) -> Option<PerfData> {
    let is_ours = bytes.get(..4)? == MAGIC && *bytes.get(4)? == LITTLE_ENDIAN && *bytes.get(5)? == 2;
    if !is_ours || bytes.len() < HEADER_LEN {
        return None;
    }
    let mut at = number_at(bytes, 24)?;
    let count = number_at(bytes, 28)?.min(ENTRIES_MAX);
    let mut data = PerfData::default();
    for _ in 0..count {
        let Some(length) = number_at(bytes, at).filter(|length| *length >= ENTRY_LEN) else { break };
        let Some(entry) = at.checked_add(length).and_then(|end| bytes.get(at..end)) else { break };
        add_entry(&mut data, entry);
        at += length;
    }
    Some(data)
}

/// Adds an entry: its length, offset of its name, length of its vector, type, three bytes that do not matter,
/// and the offset of its value.
fn add_entry(data: &mut PerfData, entry: &[u8]) {
    let Some((name_at, vector, value_at)) = number_at(entry, 4)
        .zip(number_at(entry, 8))
        .zip(number_at(entry, 16))
        .map(|((name, vector), value)| (name, vector, value))
    else {
        return;
    };
    let Some(name) = text_at(entry, name_at, entry.len()) else { return };
    match (entry.get(12), vector) {
        (Some(b'J'), 0) => {
            let value = entry.get(value_at..).and_then(|rest| rest.first_chunk::<8>());
            if let Some(value) = value {
                data.numbers.insert(name, u64::from_le_bytes(*value));
            }
        }
        (Some(b'B'), 1..) => {
            if let Some(text) = text_at(entry, value_at, vector) {
                data.texts.insert(name, text);
            }
        }
        _ => {}
    }
}

fn number_at(bytes: &[u8], at: usize) -> Option<usize> {
    let chunk = bytes.get(at..)?.first_chunk::<4>()?;
    usize::try_from(u32::from_le_bytes(*chunk)).ok()
}

/// The text up to its zero, at most `length` bytes, without control characters.
fn text_at(bytes: &[u8], at: usize, length: usize) -> Option<String> {
    let rest = bytes.get(at..)?;
    let rest = &rest[..rest.len().min(length)];
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
    Some(String::from_utf8_lossy(&rest[..end]).replace(char::is_control, "?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, kind: u8, value: &[u8]) -> Vec<u8> {
        let name_end = ENTRY_LEN + name.len() + 1;
        let value_at = name_end.next_multiple_of(8);
        let length = (value_at + value.len()).next_multiple_of(8);
        let vector = if kind == b'B' { value.len() } else { 0 };
        let mut bytes = Vec::new();
        for number in [length, ENTRY_LEN, vector] {
            bytes.extend((number as u32).to_le_bytes());
        }
        bytes.extend([kind, 0, 1, 1]);
        bytes.extend((value_at as u32).to_le_bytes());
        bytes.extend(name.bytes());
        bytes.resize(value_at, 0);
        bytes.extend(value);
        bytes.resize(length, 0);
        bytes
    }

    fn file(entries: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([LITTLE_ENDIAN, 2, 0, 1]);
        bytes.resize(24, 0);
        bytes.extend((HEADER_LEN as u32).to_le_bytes());
        bytes.extend((entries.len() as u32).to_le_bytes());
        bytes.extend(entries.concat());
        bytes
    }

    fn at_time(ticks: u64) -> Vec<u8> {
        file(&[
            entry("java.property.java.version", b'B', b"17.0.15\0\0\0"),
            entry("sun.gc.collector.0.name", b'B', b"Copy\0"),
            entry("sun.gc.collector.0.time", b'J', &ticks.to_le_bytes()),
            entry("sun.os.hrt.frequency", b'J', &1_000u64.to_le_bytes()),
        ])
    }

    #[test]
    fn collections_are_counted_between_two_moments() {
        let (before, after) = (parse(&at_time(500)).expect("a file"), parse(&at_time(750)).expect("a file"));
        assert_eq!(after.text("java.property.java.version"), Some("17.0.15"));
        let expected = [("garbage collection (Copy)".to_string(), 250_000_000)];
        assert_eq!(after.collections_since(&before), expected);
        assert!(before.collections_since(&before).is_empty(), "no collection");
        assert!(before.collections_since(&after).is_empty(), "another process since");
        assert!(after.collections_since(&PerfData::default()).is_empty(), "no begin");
    }

    #[test]
    fn a_file_that_is_cut_or_changed_anywhere_is_read_as_far_as_it_goes() {
        let whole = at_time(500);
        for at in 0..whole.len() {
            parse(&whole[..at]);
            for byte in [0, 1, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = byte;
                parse(&changed);
            }
        }
        assert_eq!(parse(&whole[..HEADER_LEN - 1]), None);
        assert_eq!(parse(b"text"), None);
    }
}
