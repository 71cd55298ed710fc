//! Random values of every kind and size, written in every version and style, and read again.

use evenkeel_rdb::{
    Consumer, Decoder, Encoder, Feed, Group, Id, Info, Item, Limits, NodeCount, NodeLimits, Pending, Version,
    dump,
};
use evenkeel_testkit::random::{Random, fresh_seed};

use crate::model::{Entries, Score, Value, in_order, open, read, seal, styles};

/// Far in the future: nothing expires while a test runs.
const FAR: i64 = 4_000_000_000_000;

pub(crate) fn value(random: &mut Random) -> Value {
    match random.below(7) {
        6 => array(random),
        0 => Value::String(bytes(random)),
        1 => Value::List((0..size(random)).map(|_| bytes(random)).collect()),
        2 => {
            let integers = random.chance(50);
            Value::Set(
                (0..size(random)).map(|_| if integers { number(random) } else { bytes(random) }).collect(),
            )
        }
        3 => Value::SortedSet((0..size(random)).map(|_| (bytes(random), score(random))).collect()),
        4 => {
            let expiring = random.chance(30);
            Value::Hash(
                (0..size(random))
                    .map(|_| (bytes(random), (bytes(random), expiry(random, expiring))))
                    .collect(),
            )
        }
        _ => stream(random),
    }
}

/// Sizes around each change of form: 1, Redis' thresholds of 128 and 512, and 255 and 65,535 in a header.
fn size(random: &mut Random) -> usize {
    match random.below(20) {
        0 => 1,
        1..15 => 1 + random.below(40),
        15..19 => 120 + random.below(450),
        _ => 1_000 + random.below(3_000),
    }
}

fn bytes(random: &mut Random) -> Vec<u8> {
    match random.below(10) {
        0 | 1 => number(random),
        2 => random.bytes(70),
        3 => vec![b'a' + random.below(3) as u8; random.below(300)],
        4 if random.chance(2) => random.bytes(20_000),
        5 if random.chance(2) => vec![b'x'; random.below(100_000)],
        _ => (0..random.below(30)).map(|_| b'a' + random.below(26) as u8).collect(),
    }
}

/// The text of an integer of any width, or nearly an integer.
fn number(random: &mut Random) -> Vec<u8> {
    let bits = random.below(64);
    let number = (random.draw() as i64) >> bits;
    let text = if random.chance(3) { format!("0{number}") } else { number.to_string() };
    text.into_bytes()
}

fn score(random: &mut Random) -> Score {
    Score(match random.below(8) {
        0 => f64::from_bits(random.draw()),
        1 => f64::INFINITY,
        2 => f64::NEG_INFINITY,
        3 => -0.0,
        4 => random.between(-1_000_000, 1_000_000) as f64 / 1_000.0,
        _ => random.between(-200, 200) as f64,
    })
    .or_zero()
}

impl Score {
    fn or_zero(self) -> Score {
        if self.0.is_nan() { Score(0.0) } else { self }
    }
}

fn expiry(random: &mut Random, expiring: bool) -> Option<u64> {
    (expiring && random.chance(60)).then(|| random.between(FAR, 2 * FAR) as u64)
}

fn stream(random: &mut Random) -> Value {
    let names: Vec<Vec<Vec<u8>>> =
        (0..3).map(|_| (0..1 + random.below(4)).map(|_| bytes(random)).collect()).collect();
    let mut id = Id { ms: random.draw() >> random.between(1, 60), seq: random.draw() >> random.below(64) };
    let mut entries = Entries::new();
    for _ in 0..size(random) - 1 {
        id = next_id(random, id);
        let names = &names[if random.chance(80) { 0 } else { random.below(3) }];
        entries.push((id, names.iter().map(|name| (name.clone(), bytes(random))).collect()));
    }
    let length = entries.len() as u64;
    let last_id = if random.chance(50) { id } else { next_id(random, id) };
    let info = Info {
        length,
        first_id: entries.first().map_or(Id::ZERO, |entry| entry.0),
        last_id,
        max_deleted_id: if random.chance(50) { Id::ZERO } else { last_id },
        entries_added: length + random.below(3) as u64,
    };
    let mut groups: Vec<Group> = (0..random.below(3)).map(|index| group(random, index, last_id)).collect();
    groups.sort_by(|a, b| a.name.cmp(&b.name));
    Value::Stream(entries, info, groups)
}

/// Dense, scattered, or both, with numbers that print back to their texts and others that do not.
fn array(random: &mut Random) -> Value {
    let far = [8, 100, 1 << 40, u64::MAX][random.below(4)];
    let index = |random: &mut Random| random.draw() % far;
    let values = (0..size(random)).map(|_| {
        let text = match random.below(4) {
            0 => format!("{}.{}", random.between(-99, 99), random.below(1000)).into_bytes(),
            1 => format!("{}.0", random.draw() as i64 >> random.below(64)).into_bytes(),
            _ => bytes(random),
        };
        (index(random), text)
    });
    let values = values.collect();
    Value::Array(values, random.chance(50).then(|| index(random)))
}

fn next_id(random: &mut Random, id: Id) -> Id {
    match (random.chance(70), id.seq.checked_add(1 + random.below(3) as u64)) {
        (true, Some(seq)) => Id { seq, ..id },
        _ => Id { ms: id.ms + 1 + random.below(1_000) as u64, seq: random.below(3) as u64 },
    }
}

fn group(random: &mut Random, index: usize, last_id: Id) -> Group {
    let time = |random: &mut Random| random.between(1, FAR) as u64;
    let name = |kind: &str, index: usize| format!("{kind}{index}").into_bytes();
    let consumers: Vec<Consumer> = (0..random.below(4))
        .map(|index| {
            let active = random.chance(70).then(|| time(random));
            Consumer { name: name("consumer ", index), seen: time(random), active }
        })
        .collect();
    let mut id = Id::ZERO;
    let pending = (0..if consumers.is_empty() { 0 } else { random.below(30) }).map(|_| {
        id = next_id(random, id);
        let consumer = random.below(consumers.len()) as u32;
        Pending { id, delivered: time(random), deliveries: random.below(100_000) as u64, consumer }
    });
    let pending = pending.collect();
    let entries_read = random.chance(70).then(|| random.below(1_000) as u64);
    let released = Vec::new();
    in_order(Group { name: name("group ", index), last_id, entries_read, pending, consumers, released })
}

/// Bytes come in pieces of random length.
struct Pieces<'a>(&'a [u8], Random);

impl std::io::Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let len = self.0.len().min(into.len()).min(1 + self.1.below(5_000));
        self.0.read(&mut into[..len])
    }
}

#[test]
fn written_values_are_read_back() {
    let seed = fresh_seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    for _ in 0..400 {
        let value = value(&mut random);
        let versions = [Version::V10, Version::V11, Version::V14, Version::V80];
        for style in versions.iter().flat_map(|version| styles(*version)) {
            let Some(payload) = seal(&value, style) else { continue };
            let expected = value.clone().in_version(style.version);
            assert!(open(&payload) == expected, "{style:?}: {expected:?}");
            let body = &payload[..payload.len() - 10];
            let feed = Feed::new(Pieces(body, random.clone()), None);
            let fed = read(Decoder::new(feed, style.version.number())).expect("it is well-formed");
            assert!(fed == expected, "{style:?}, read in pieces: {expected:?}");
        }
    }
}

#[test]
fn the_counted_nodes_are_written() {
    let seed = fresh_seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    for _ in 0..200 {
        let limits =
            NodeLimits { bytes_max: 20 + random.below(400), entries_max: 1 + random.below(30) as u64 };
        let version = if random.chance(50) { Version::V10 } else { Version::V80 };
        let elements: Vec<Vec<u8>> = (0..size(&mut random)).map(|_| bytes(&mut random)).collect();
        let item = |index: usize| match Item::Bytes(&elements[index]).int() {
            // the form of an item must not matter
            Some(number) if index.is_multiple_of(2) => Item::Int(number),
            _ => Item::Bytes(&elements[index]),
        };
        let end = random.below(elements.len());
        let mut count = NodeCount::new(limits, version);
        for (index, element) in elements.iter().enumerate() {
            if index == end {
                count.end_node();
            }
            count.element(element.into());
        }
        let write = |nodes: Option<u64>| {
            let mut encoder = Encoder::new(Vec::new(), version);
            let mut writer = encoder.list(limits, nodes);
            for index in 0..elements.len() {
                if index == end {
                    writer.end_node();
                }
                writer.push(item(index));
            }
            writer.finish();
            encoder.into_out()
        };
        let counted = write(Some(count.nodes()));
        assert_eq!(counted, write(None));
        let mut payload = counted;
        dump::seal(&mut payload, version);
        assert!(open(&payload) == Value::List(elements));
    }
}

#[test]
fn streams_are_counted_likewise() {
    let mut random = Random::new(7);
    for _ in 0..100 {
        let Value::Stream(entries, info, groups) = stream(&mut random) else {
            unreachable!("a stream was made")
        };
        let limits = NodeLimits { bytes_max: 4_096, entries_max: 1 + random.below(100) as u64 };
        let mut count = NodeCount::new(limits, Version::V80);
        let fields = |index: usize| -> Vec<(Item<'_>, Item<'_>)> {
            entries[index].1.iter().map(|(name, value)| (name.into(), value.into())).collect()
        };
        (0..entries.len()).for_each(|index| count.entry(&fields(index)));
        let write = |nodes: Option<u64>| {
            let mut encoder = Encoder::new(Vec::new(), Version::V80);
            let mut writer = encoder.stream(limits, nodes);
            (0..entries.len()).for_each(|index| writer.entry(entries[index].0, &fields(index)));
            writer.finish(&info, groups.iter());
            encoder.into_out()
        };
        assert_eq!(write(Some(count.nodes())), write(None));
    }
}

#[test]
fn limits_are_inclusive() {
    let limits = Limits { entries_max: 2, value_max: 3 };
    assert_ne!(limits.form(2, 3), limits.form(3, 3));
    assert_ne!(limits.form(2, 3), limits.form(2, 4));
}
