//! Throughput of writing, cutting up and decoding files: `cargo run --release -p evenkeel-rdb --example
//! file_throughput`.
//!
//! CPU time of a single thread, the best of several runs; megabytes are the file's. "Encode" can run on any
//! number of threads, "append" is the writer's part, "cut" the reading thread's. "Decode" is the part of the
//! threads that get the batches; here they drop the values.

use std::hint::black_box;
use std::io::{self, Read, Write};
use std::time::Duration;

use evenkeel_rdb::file::{FilePart, FileReader, FileWriter, KeyMetadata, ReadLimits, check};
use evenkeel_rdb::{Encoder, Form, Item, NodeLimits, Object, Version};
use evenkeel_testkit::Random;

const RUNS: usize = 5;
const NODES: NodeLimits = NodeLimits { bytes_max: 8192, entries_max: 1 << 20 };

fn main() {
    println!(
        "{:<33} {:>5} {:>18} {:>18} {:>18} {:>18} {:>18}",
        "", "MB", "encode", "append", "cut", "decode", "check"
    );
    let mut random = Random::new(1);
    let noise: Vec<u8> = (0..64_000).map(|_| random.draw() as u8).collect();
    let mut at = 0;
    let mut bytes = move |len: usize| {
        at = (at + 61) % (noise.len() - len);
        noise[at..at + len].to_vec()
    };
    let short = bytes(16);
    report("16 B string", 1_000_000, false, |encoder, _| encoder.string((&short).into()));
    let long = bytes(700);
    report("700 B string, noise", 200_000, false, |encoder, _| encoder.string((&long).into()));
    report("the same, compressing", 200_000, true, |encoder, _| encoder.string((&long).into()));
    report("64 KB string, noise", 2_000, false, |encoder, _| encoder.string((&noise_of(65_000)).into()));
    report("integer", 1_000_000, false, |encoder, n| encoder.string(Item::Int(n as i64)));
    report("hash of 10, packed", 100_000, false, |encoder, n| {
        let mut hash = encoder.hash(Form::Packed, 10);
        (0..10).for_each(|field| hash.push((&word(field)).into(), (&word(n + field)).into(), None));
        hash.finish();
    });
    report("hash of 1,000, plain", 1_000, false, |encoder, n| {
        let mut hash = encoder.hash(Form::Plain, 1_000);
        (0..1_000).for_each(|field| hash.push((&word(field)).into(), (&word(n + field)).into(), None));
        hash.finish();
    });
    report("sorted set of 1,000, plain", 1_000, false, |encoder, n| {
        let mut set = encoder.sorted_set(Form::Plain, 1_000);
        (0..1_000).for_each(|member| set.push((&word(n + member)).into(), member as f64));
        set.finish();
    });
    report("list of 1,000", 1_000, false, |encoder, n| {
        let mut list = encoder.list(NODES, None);
        (0..1_000).for_each(|element| list.push((&word(n + element)).into()));
        list.finish();
    });
}

fn noise_of(len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) as u8).collect()
}

fn word(n: u64) -> [u8; 16] {
    let digits = n
        .wrapping_add(1)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(23)
        .wrapping_mul(0xD1B5_4A32_D192_ED03);
    std::array::from_fn(|index| b"0123456789abcdef"[(digits >> (4 * index)) as usize & 15])
}

fn report(name: &str, keys: u64, compress: bool, value: impl Fn(&mut Encoder<Vec<u8>>, u64)) {
    let mut records = Vec::new();
    let encoding = best(|| records = encoded(keys, compress, &value));
    let (mut file, mut bytes) = (Vec::new(), 0);
    let appending = best(|| {
        let mut writer = FileWriter::new(io::sink(), Version::V10, true).expect("it takes everything");
        records.chunks(1 << 18).for_each(|piece| append(&mut writer, piece));
        bytes = writer.finish().expect("it takes everything").len;
    });
    let mut writer = FileWriter::new(&mut file, Version::V10, true).expect("it takes everything");
    append(&mut writer, &records);
    writer.finish().expect("it takes everything");
    let cutting = best(|| _ = black_box(cut(&file[..], |_| 0)));
    let both = best(|| _ = black_box(cut(&file[..], decoded)));
    let checking = best(|| assert!(check(&file[..], Some(bytes)).is_sound()));
    let rate = |time: Duration| {
        let each = time.as_nanos() as f64 / keys as f64;
        format!("{:.0} MB/s {each:.0} ns", bytes as f64 / 1e6 / time.as_secs_f64())
    };
    let decoding = both.saturating_sub(cutting);
    let [encode, append, cut, decode, check] = [encoding, appending, cutting, decoding, checking].map(rate);
    println!(
        "{name:<33} {:>5.0} {encode:>18} {append:>18} {cut:>18} {decode:>18} {check:>18}",
        bytes as f64 / 1e6
    );
}

fn encoded(keys: u64, compress: bool, value: &impl Fn(&mut Encoder<Vec<u8>>, u64)) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new(), Version::V10);
    if !compress {
        encoder = encoder.without_compression();
    }
    for n in 0..keys {
        encoder.record(Item::Bytes(&word(n)), &KeyMetadata::default());
        value(&mut encoder, n);
    }
    encoder.into_out()
}

fn append<W: Write>(writer: &mut FileWriter<W>, records: &[u8]) {
    writer.append(records, Version::V10).expect("it takes everything");
}

fn cut(file: impl Read, mut visit: impl FnMut(&evenkeel_rdb::file::Batch) -> u64) -> u64 {
    let mut reader = FileReader::new(file, None, ReadLimits::default()).expect("it was just made");
    let mut keys = 0;
    while let Some(part) = reader.next().expect("it was just made") {
        if let FilePart::Keys(batch) = part {
            keys += batch.keys;
            black_box(visit(&batch));
            reader.reuse(batch);
        }
    }
    keys
}

fn decoded(batch: &evenkeel_rdb::file::Batch) -> u64 {
    let mut records = batch.records();
    records.leave_duplicates();
    let mut count = 0;
    while let Some(record) = records.next().expect("well-formed") {
        black_box(record.key);
        match record.object().expect("well-formed") {
            Object::String(string) => _ = black_box(string),
            Object::Long(mut string) => {
                while let Some(piece) = string.next().expect("well-formed") {
                    black_box(piece);
                }
            }
            Object::List(mut elements) | Object::Set(mut elements) => {
                while let Some(element) = elements.next().expect("well-formed") {
                    black_box(element);
                }
            }
            Object::SortedSet(mut members) => {
                while let Some(member) = members.next().expect("well-formed") {
                    black_box(member);
                }
            }
            Object::Hash(mut fields) => {
                while let Some(field) = fields.next().expect("well-formed") {
                    black_box(field);
                }
            }
            Object::Stream(_) | Object::Array(_) => unreachable!("none was written"),
        }
        count += 1;
    }
    count
}

fn best(mut work: impl FnMut()) -> Duration {
    let runs = (0..RUNS).map(|_| {
        let start = cpu_time();
        work();
        cpu_time() - start
    });
    runs.min().expect("there are runs")
}

/// CPU time used by this thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
