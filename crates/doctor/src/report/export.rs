//! Stacks for other tools: folded lines, and the profile format of pprof.
//!
//! A pprof file is a protobuf message (github.com/google/pprof, proto/profile.proto). Each stack has four
//! numbers: samples, CPU time, blocked time, and time waiting for work; the user selects one in the tool. The
//! file is not compressed, which the format allows.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use crate::analyse::is_idle_wait;
use crate::recording::Recording;

/// Returns a line per stack, in the format of flame graph tools: frames from the outermost on, a blank, the
/// number. `off_cpu`: microseconds of blocked time instead of samples.
pub(crate) fn folded(recording: &Recording, off_cpu: bool) -> String {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    let mut add = |tid: i32, stack: u32, call: Option<&str>, value: u64| {
        let thread = recording.threads.iter().find(|thread| thread.tid == tid);
        let mut names = vec![thread.map_or("?", |thread| thread.name.as_str())];
        names.extend(recording.frames_of(stack).rev().map(|frame| frame.name.as_str()));
        names.extend(call);
        // Names must not contain the separators of the format.
        let line = names.iter().map(|name| name.replace([';', '\n'], ":")).collect::<Vec<_>>().join(";");
        *lines.entry(line).or_default() += value;
    };
    if off_cpu {
        for wait in recording.waits.iter().filter(|wait| !is_idle_wait(wait)) {
            add(wait.tid, wait.stack, wait.call.as_deref(), wait.blocked_ns / 1_000);
        }
    } else {
        recording.samples.iter().for_each(|sample| add(sample.tid, sample.stack, None, sample.count));
    }
    lines.into_iter().fold(String::new(), |mut out, (line, count)| {
        let _ = writeln!(out, "{line} {count}");
        out
    })
}

/// Kinds of numbers, and their units.
const VALUES: [(&str, &str); 4] =
    [("samples", "count"), ("cpu", "nanoseconds"), ("blocked", "nanoseconds"), ("idle", "nanoseconds")];

pub(crate) fn pprof(recording: &Recording) -> Vec<u8> {
    let mut strings = Strings::default();
    strings.add(""); // the format requires it first
    let mut profile = Message::default();
    for (kind, unit) in VALUES {
        profile.message(1, &value_type(&mut strings, kind, unit));
    }
    let cpu = cpu_of_a_sample(recording);
    for sample in &recording.samples {
        let ns = cpu.get(&sample.tid).copied().unwrap_or(0.0) * sample.count as f64;
        let values = [sample.count, ns as u64, 0, 0];
        profile.message(2, &one(recording, &mut strings, sample.tid, sample.stack, values));
    }
    for wait in &recording.waits {
        let idle = is_idle_wait(wait);
        let values = if idle { [0, 0, 0, wait.blocked_ns] } else { [0, 0, wait.blocked_ns, 0] };
        profile.message(2, &one(recording, &mut strings, wait.tid, wait.stack, values));
    }
    for (index, frame) in recording.frames.iter().enumerate() {
        let id = index as u64 + 1; // 0 means none
        let mut line = Message::default();
        line.number(1, id);
        let mut location = Message::default();
        location.number(1, id);
        location.message(4, &line);
        profile.message(4, &location);
        let mut function = Message::default();
        function.number(1, id);
        function.number(2, strings.add(&frame.name));
        function.number(3, strings.add(&frame.name));
        function.number(4, strings.add(&frame.module));
        profile.message(5, &function);
    }
    let period = value_type(&mut strings, "cpu", "nanoseconds");
    strings.list.iter().for_each(|text| profile.bytes(6, text.as_bytes()));
    profile.number(9, recording.taken_unix_s.saturating_mul(1_000_000_000));
    profile.number(10, recording.window_ns);
    profile.message(11, &period);
    profile.0
}

/// CPU time per sample of each thread.
fn cpu_of_a_sample(recording: &Recording) -> HashMap<i32, f64> {
    let mut counts: HashMap<i32, u64> = HashMap::new();
    for sample in &recording.samples {
        *counts.entry(sample.tid).or_default() += sample.count;
    }
    let of = |thread: &crate::recording::Thread| {
        let count = counts.get(&thread.tid).copied().filter(|&count| count > 0)?;
        Some((thread.tid, thread.cpu_ns as f64 / count as f64))
    };
    recording.threads.iter().filter_map(of).collect()
}

fn value_type(strings: &mut Strings, kind: &str, unit: &str) -> Message {
    let mut message = Message::default();
    message.number(1, strings.add(kind));
    message.number(2, strings.add(unit));
    message
}

fn one(recording: &Recording, strings: &mut Strings, tid: i32, stack: u32, values: [u64; 4]) -> Message {
    let locations: Vec<u64> =
        recording.stacks[stack as usize].iter().map(|&index| u64::from(index) + 1).collect();
    let mut label = Message::default();
    label.number(1, strings.add("thread"));
    label.number(2, strings.add(&recording.thread_name(tid)));
    let mut sample = Message::default();
    sample.packed(1, &locations);
    sample.packed(2, &values);
    sample.message(3, &label);
    sample
}

/// Texts of the profile by index, without duplicates.
#[derive(Default)]
struct Strings {
    list: Vec<String>,
    index: HashMap<String, u64>,
}

impl Strings {
    fn add(&mut self, text: &str) -> u64 {
        if let Some(&index) = self.index.get(text) {
            return index;
        }
        let index = self.list.len() as u64;
        self.list.push(text.to_string());
        self.index.insert(text.to_string(), index);
        index
    }
}

/// A protobuf message under construction; fields are written in the order of the calls.
#[derive(Default)]
struct Message(Vec<u8>);

const VARINT: u64 = 0;
const LENGTH: u64 = 2;

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3 | VARINT);
        self.varint(value);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | LENGTH);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, message: &Message) {
        self.bytes(field, &message.0);
    }

    fn packed(&mut self, field: u64, values: &[u64]) {
        let mut inner = Message::default();
        values.iter().for_each(|&value| inner.varint(value));
        self.message(field, &inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    #[test]
    fn stacks_are_folded_and_names_cannot_hold_separators() {
        let mut recording = golden::idle();
        golden::add_samples(&mut recording, &["main", "call;me"], 7);
        assert_eq!(folded(&recording, false), "redis-server;main;call:me 7\n");
    }

    /// The fields of a message: number, and the value or the bytes.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
        fn varint(bytes: &mut &[u8]) -> u64 {
            let (mut value, mut shift) = (0, 0);
            loop {
                let (first, rest) = bytes.split_first().expect("a whole number");
                *bytes = rest;
                value |= u64::from(first & 0x7f) << shift;
                shift += 7;
                if first & 0x80 == 0 {
                    return value;
                }
            }
        }
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let value = varint(&mut bytes);
            let mut inner = Vec::new();
            if key & 7 == LENGTH {
                let (start, rest) = bytes.split_at(value as usize);
                (inner, bytes) = (start.to_vec(), rest);
            }
            found.push((key >> 3, value, inner));
        }
        found
    }

    #[test]
    fn a_profile_has_every_stack_with_its_names_and_times() {
        let mut recording = golden::idle();
        recording.threads[0].cpu_ns = 1_000;
        golden::add_samples(&mut recording, &["main", "call"], 300);
        golden::add_samples(&mut recording, &["main"], 200);
        let profile = fields(&pprof(&recording));
        let of = |number: u64| profile.iter().filter(move |field| field.0 == number);
        let strings: Vec<String> = of(6).map(|f| String::from_utf8(f.2.clone()).expect("text")).collect();
        assert_eq!(strings[0], "");
        let functions: Vec<String> = of(5).map(|f| strings[fields(&f.2)[1].1 as usize].clone()).collect();
        assert_eq!(functions, ["call", "main"]);
        let first = fields(&of(2).next().expect("a sample").2);
        assert_eq!(first[0].2, [1, 2], "the innermost first, by number from 1");
        assert_eq!(first[1].2, [0xac, 0x02, 0xd8, 0x04, 0, 0], "300 samples, 600 ns of CPU");
        assert_eq!(of(1).count(), VALUES.len());
    }
}
