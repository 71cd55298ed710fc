//! Throughput of writing and reading values: `cargo run --release -p evenkeel-rdb --example throughput`.
//!
//! Megabytes are the payload's before compression, nanoseconds are per element. "Raw" is without compression.
//! Reading is from compressed data; "trusting" leaves duplicates to the caller. CPU time, the best of several
//! runs.

use std::hint::black_box;
use std::time::Duration;

use evenkeel_rdb::{Encoder, Form, Id, Info, Item, NodeLimits, Object, Version, dump};
use evenkeel_testkit::Random;

const ELEMENTS: u64 = 1_000_000;
const RUNS: usize = 7;
const NODES: NodeLimits = NodeLimits { bytes_max: 8192, entries_max: 1 << 20 };
const STREAM_NODES: NodeLimits = NodeLimits { bytes_max: 4096, entries_max: 100 };

fn main() {
    println!(
        "{:<27} {:>5} {:>17} {:>17} {:>17} {:>17}",
        "", "MB", "write", "write raw", "read", "read trusting"
    );
    let text = b"Lorem ipsum dolor sit amet, consectetur adipiscing elit. ".repeat(20_000);
    let noise: Vec<u8> = {
        let mut random = Random::new(1);
        (0..1_000_000).map(|_| random.draw() as u8).collect()
    };
    let json: String = (0..10_000).map(person).collect();
    report("string of JSON", 1, |encoder| encoder.string(json.as_bytes().into()));
    report("string that compresses", 1, |encoder| encoder.string((&text).into()));
    report("string that does not", 1, |encoder| encoder.string((&noise).into()));
    report("list of 16 bytes", ELEMENTS, |encoder| {
        let mut list = encoder.list(NODES, None);
        (0..ELEMENTS).for_each(|n| list.push((&word(n)).into()));
        list.finish();
    });
    report("list of integers", ELEMENTS, |encoder| {
        let mut list = encoder.list(NODES, None);
        (0..ELEMENTS).for_each(|n| list.push(Item::Int((scatter(n) >> 40) as i64)));
        list.finish();
    });
    report("set of 16 bytes", ELEMENTS, |encoder| {
        let mut set = encoder.set(Form::Plain, ELEMENTS);
        (0..ELEMENTS).for_each(|n| set.push((&word(n)).into()));
        set.finish();
    });
    report("intset", ELEMENTS, |encoder| encoder.intset(0..ELEMENTS as i64));
    report("sorted set of 16 bytes", ELEMENTS, |encoder| {
        let mut set = encoder.sorted_set(Form::Plain, ELEMENTS);
        (0..ELEMENTS).for_each(|n| set.push((&word(n)).into(), n as f64 / 3.0));
        set.finish();
    });
    report("hash of 16 and 16 bytes", ELEMENTS, |encoder| {
        let mut hash = encoder.hash(Form::Plain, ELEMENTS);
        (0..ELEMENTS).for_each(|n| hash.push((&word(n)).into(), (&word(!n)).into(), None));
        hash.finish();
    });
    report("stream of two fields", ELEMENTS, |encoder| {
        let mut stream = encoder.stream(STREAM_NODES, None);
        for n in 1..=ELEMENTS {
            let fields = [
                (Item::Bytes(b"sensor"), Item::Int(n as i64)),
                (Item::Bytes(b"value"), Item::Bytes(b"19.5")),
            ];
            stream.entry(Id { ms: 1_700_000_000_000 + n, seq: 0 }, &fields);
        }
        let last_id = Id { ms: 1_700_000_000_000 + ELEMENTS, seq: 0 };
        let info = Info { length: ELEMENTS, last_id, entries_added: ELEMENTS, ..Info::default() };
        stream.finish(&info, [].iter());
    });
    report("hash of 100 fields, packed", 100, |encoder| {
        let mut hash = encoder.hash(Form::Packed, 100);
        (0..100).for_each(|n| hash.push((&word(n)).into(), (&word(!n)).into(), None));
        hash.finish();
    });
}

fn scatter(n: u64) -> u64 {
    n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23).wrapping_mul(0xD1B5_4A32_D192_ED03)
}

fn person(n: u64) -> String {
    let [id, name, email, score] = [0, 1, 2, 3].map(|field| scatter(4 * n + field));
    let (id, name, email, is_active) = (id >> 34, name >> 47, email >> 44, email.is_multiple_of(2));
    let score = score as f64 / u64::MAX as f64;
    format!(
        "{{\"id\": {id}, \"name\": \"user{name}\", \"email\": \"u{email}@example.org\", \
         \"active\": {is_active}, \"score\": {score}}}, "
    )
}

fn word(n: u64) -> [u8; 16] {
    let digits = scatter(n);
    std::array::from_fn(|index| b"0123456789abcdef"[(digits >> (4 * index)) as usize & 15])
}

fn report(name: &str, elements: u64, write: impl Fn(&mut Encoder<Vec<u8>>)) {
    let (mut compressed, mut raw) = (Vec::new(), Vec::new());
    let writing = best(|| compressed = sealed(&write, true));
    let writing_raw = best(|| raw = sealed(&write, false));
    let reading = best(|| read(&compressed, false));
    let trusting = best(|| read(&compressed, true));
    let rate = |time: Duration| {
        let each = time.as_nanos() as f64 / elements as f64;
        format!("{:.0} MB/s {each:.0} ns", raw.len() as f64 / 1e6 / time.as_secs_f64())
    };
    let [write, write_raw, read, trusting] = [writing, writing_raw, reading, trusting].map(rate);
    println!(
        "{name:<27} {:>5.1} {write:>17} {write_raw:>17} {read:>17} {trusting:>17}",
        raw.len() as f64 / 1e6
    );
}

fn sealed(write: impl Fn(&mut Encoder<Vec<u8>>), compress: bool) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new(), Version::V11);
    if !compress {
        encoder = encoder.without_compression();
    }
    write(&mut encoder);
    let mut payload = encoder.into_out();
    dump::seal(&mut payload, Version::V11);
    payload
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

fn read(payload: &[u8], trusting: bool) {
    let mut decoder = dump::open(payload).expect("it was just made");
    if trusting {
        decoder.leave_duplicates();
    }
    match decoder.object().expect("well-formed") {
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
        Object::Array(_) => unreachable!("none was written"),
        Object::Stream(mut stream) => {
            while let Some(entry) = stream.next_entry().expect("well-formed") {
                entry.fields().for_each(|field| _ = black_box(field));
            }
        }
    }
}
