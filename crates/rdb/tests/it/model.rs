//! Values as plain data: decoded, encoded, read from a server, and formatted as a line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use evenkeel_rdb::{
    Decoder, Encoder, Error, Form, Group, Id, Info, Item, Limits, NodeLimits, Object, Out, Source, Version,
    dump,
};

type Bytes = Vec<u8>;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    String(Bytes),
    List(Vec<Bytes>),
    Set(BTreeSet<Bytes>),
    SortedSet(BTreeMap<Bytes, Score>),
    Hash(BTreeMap<Bytes, (Bytes, Option<u64>)>),
    Stream(Entries, Info, Vec<Group>),
    Array(BTreeMap<u64, Bytes>, Option<u64>),
}

pub(crate) type Entry = (Id, Vec<(Bytes, Bytes)>);
pub(crate) type Entries = Vec<Entry>;

/// Equal by value: servers do not keep the sign of a zero when they change its form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Score(pub(crate) f64);

// ---- reading ----

/// The value of a payload, read to its end.
pub(crate) fn open(payload: &[u8]) -> Value {
    let decoder = dump::open(payload).expect("version and checksum are right");
    read(decoder).unwrap_or_else(|error| panic!("{error}: {}", hex(payload)))
}

pub(crate) fn read<S: Source>(mut decoder: Decoder<S>) -> Result<Value, Error> {
    let value = object(&mut decoder)?;
    decoder.finish()?;
    Ok(value)
}

pub(crate) fn object<S: Source>(decoder: &mut Decoder<S>) -> Result<Value, Error> {
    value(decoder.object()?)
}

pub(crate) fn value<S: Source>(object: Object<'_, S>) -> Result<Value, Error> {
    Ok(match object {
        Object::String(string) => Value::String(string.to_vec()),
        Object::Long(mut long) => {
            let mut string = Vec::new();
            while let Some(piece) = long.next()? {
                string.extend_from_slice(piece);
            }
            Value::String(string)
        }
        Object::List(mut elements) => {
            let mut list = Vec::new();
            while let Some(element) = elements.next()? {
                list.push(element.to_vec());
            }
            Value::List(list)
        }
        Object::Set(mut elements) => {
            let mut set = BTreeSet::new();
            while let Some(element) = elements.next()? {
                assert!(set.insert(element.to_vec()), "duplicates are refused");
            }
            Value::Set(set)
        }
        Object::SortedSet(mut members) => {
            let mut set = BTreeMap::new();
            while let Some(member) = members.next()? {
                assert_eq!(set.insert(member.name.to_vec(), Score(member.score)), None);
            }
            Value::SortedSet(set)
        }
        Object::Hash(mut fields) => {
            let mut hash = BTreeMap::new();
            while let Some(field) = fields.next()? {
                let value = (field.value.to_vec(), field.expires);
                assert_eq!(hash.insert(field.name.to_vec(), value), None);
            }
            Value::Hash(hash)
        }
        Object::Stream(stream) => read_stream(stream)?,
        Object::Array(mut elements) => {
            let (mut array, cursor) = (BTreeMap::new(), elements.cursor());
            while let Some((index, value)) = elements.next()? {
                assert_eq!(array.insert(index, value.to_vec()), None);
            }
            Value::Array(array, cursor)
        }
    })
}

fn read_stream<S: Source>(mut stream: evenkeel_rdb::Stream<'_, S>) -> Result<Value, Error> {
    let mut entries = Entries::new();
    while let Some(entry) = stream.next_entry()? {
        let fields: Vec<_> = entry.fields().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        assert_eq!((fields.len() as u64, entry.is_empty()), (entry.len(), false));
        entries.push((entry.id, fields));
    }
    let (info, mut groups) = stream.finish()?;
    let mut all = Vec::new();
    while let Some(group) = groups.next()? {
        all.push(in_order(group));
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Value::Stream(entries, info, all))
}

/// Sorts the group's consumers by name.
pub(crate) fn in_order(mut group: Group) -> Group {
    let names: Vec<Bytes> = group.consumers.iter().map(|consumer| consumer.name.clone()).collect();
    group.consumers.sort_by(|a, b| a.name.cmp(&b.name));
    let place = |name: &Bytes| group.consumers.iter().position(|consumer| consumer.name == *name);
    for pending in &mut group.pending {
        pending.consumer = place(&names[pending.consumer as usize]).expect("it was sorted, no more") as u32;
    }
    group
}

// ---- writing ----

/// The way to write a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) version: Version,
    pub(crate) form: Form,
    pub(crate) intsets: bool,
    pub(crate) compress: bool,
    pub(crate) nodes: NodeLimits,
}

/// Styles that cover all paths of the encoder.
pub(crate) fn styles(version: Version) -> [Style; 3] {
    let redis = NodeLimits { bytes_max: 8192, entries_max: 128 };
    let small = NodeLimits { bytes_max: 60, entries_max: 3 };
    [
        Style { version, form: Form::Packed, intsets: true, compress: true, nodes: redis },
        Style { version, form: Form::Plain, intsets: false, compress: false, nodes: small },
        Style { version, form: limits().form(9, 9), intsets: false, compress: true, nodes: small },
    ]
}

fn limits() -> Limits {
    Limits { entries_max: 8, value_max: 64 }
}

/// Returns a payload of the value; `None` if this version cannot hold it.
pub(crate) fn seal(value: &Value, style: Style) -> Option<Bytes> {
    let mut encoder = Encoder::new(Vec::new(), style.version);
    if !style.compress {
        encoder = encoder.without_compression();
    }
    write(value, &mut encoder, style)?;
    let mut payload = encoder.into_out();
    dump::seal(&mut payload, style.version);
    Some(payload)
}

pub(crate) fn write<O: Out>(value: &Value, encoder: &mut Encoder<O>, style: Style) -> Option<()> {
    match value {
        Value::String(string) => encoder.string(string.into()),
        Value::List(list) => {
            let mut writer = encoder.list(style.nodes, None);
            list.iter().for_each(|element| writer.push(element.into()));
            writer.finish();
        }
        Value::Set(set) => {
            let mut numbers: Vec<i64> = set.iter().filter_map(|member| Item::Bytes(member).int()).collect();
            numbers.sort_unstable();
            if style.intsets && numbers.len() == set.len() {
                encoder.intset(numbers.into_iter());
                return Some(());
            }
            let mut writer = encoder.set(style.form, set.len() as u64);
            set.iter().for_each(|member| writer.push(member.into()));
            writer.finish();
        }
        Value::SortedSet(set) => {
            let mut members: Vec<_> = set.iter().collect();
            members.sort_by(|a, b| a.1.0.partial_cmp(&b.1.0).expect("no NaN").then(a.0.cmp(b.0)));
            let mut writer = encoder.sorted_set(style.form, set.len() as u64);
            members.iter().for_each(|(name, score)| writer.push((*name).into(), score.0));
            writer.finish();
        }
        Value::Hash(hash) => {
            let count = hash.len() as u64;
            let mut writer = match hash.values().any(|(_, expires)| expires.is_some()) {
                true => encoder.expiring_hash(count)?,
                false => encoder.hash(style.form, count),
            };
            for (name, (value, expires)) in hash {
                writer.push(name.into(), value.into(), *expires);
            }
            writer.finish();
        }
        Value::Stream(entries, info, groups) => {
            let mut writer = encoder.stream(style.nodes, None);
            for (id, fields) in entries {
                let fields: Vec<_> = fields.iter().map(|(name, value)| (name.into(), value.into())).collect();
                writer.entry(*id, &fields);
            }
            writer.finish(info, groups.iter());
        }
        Value::Array(array, cursor) => {
            let mut writer = encoder.array(array.len() as u64, *cursor)?;
            array.iter().for_each(|(index, value)| writer.push(*index, value));
            writer.finish();
        }
    }
    Some(())
}

impl Value {
    /// Returns the value as it is after a round trip through that version.
    pub(crate) fn in_version(mut self, version: Version) -> Value {
        if let Value::Stream(_, _, groups) = &mut self
            && version < Version::V11
        {
            let consumers = groups.iter_mut().flat_map(|group| &mut group.consumers);
            consumers.for_each(|consumer| consumer.active = Some(consumer.seen));
        }
        self
    }
}

// ---- formatting ----

/// Formats the whole value as a line.
pub(crate) fn describe(value: &Value) -> String {
    let mut line = String::new();
    let mut set_line = |word: &str, all: Vec<String>| line = format!("{word} {}", all.join(" "));
    match value {
        Value::String(string) => set_line("string", vec![word(string)]),
        Value::List(list) => set_line("list", list.iter().map(|element| word(element)).collect()),
        Value::Set(set) => set_line("set", set.iter().map(|member| word(member)).collect()),
        Value::SortedSet(set) => {
            set_line(
                "zset",
                set.iter().map(|(name, score)| format!("{}={:?}", word(name), score.0)).collect(),
            );
        }
        Value::Hash(hash) => set_line("hash", hash.iter().map(describe_field).collect()),
        Value::Stream(entries, info, groups) => {
            let mut all: Vec<String> = entries.iter().map(describe_entry).collect();
            let ids = [info.first_id, info.last_id, info.max_deleted_id].map(describe_id);
            all.push(format!("/ {} {} {}", info.length, ids.join(" "), info.entries_added));
            all.extend(groups.iter().map(describe_group));
            set_line("stream", all);
        }
        Value::Array(array, cursor) => {
            let pairs = array.iter().map(|(index, value)| format!("{index}={}", word(value)));
            set_line("array", std::iter::once(format!("{cursor:?}")).chain(pairs).collect());
        }
    }
    line
}

fn describe_field((name, (value, expires)): (&Bytes, &(Bytes, Option<u64>))) -> String {
    match expires {
        None => format!("{}={}", word(name), word(value)),
        Some(time) => format!("{}={}@{time}", word(name), word(value)),
    }
}

fn describe_entry((id, fields): &Entry) -> String {
    let pairs = fields.iter().map(|(name, value)| format!("{}={}", word(name), word(value)));
    format!("{}[{}]", describe_id(*id), pairs.collect::<Vec<_>>().join(","))
}

fn describe_group(group: &Group) -> String {
    let mut text = format!("/ {} {} {:?}", word(&group.name), describe_id(group.last_id), group.entries_read);
    for pending in &group.pending {
        let (id, owner) = (describe_id(pending.id), word(&group.consumers[pending.consumer as usize].name));
        write!(text, " {id}:{owner}:{}:{}", pending.delivered, pending.deliveries).expect("memory");
    }
    for consumer in &group.consumers {
        write!(text, " {}:{}:{:?}", word(&consumer.name), consumer.seen, consumer.active).expect("memory");
    }
    text
}

fn describe_id(id: Id) -> String {
    format!("{}-{}", id.ms, id.seq)
}

fn word(bytes: &[u8]) -> String {
    match !bytes.is_empty() && bytes.iter().all(u8::is_ascii_alphanumeric) {
        true => String::from_utf8_lossy(bytes).into_owned(),
        false => format!("x{}", hex(bytes)),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Bytes {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex digits");
    (0..text.len()).step_by(2).map(digit).collect()
}
