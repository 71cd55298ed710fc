//! From the store to bytes.

use evenkeel_rdb::{
    Encoder, GroupsWriter, HashWriter, Id, Idmp, Info, Item, Limits, NodeCount, NodeLimits, Out, Piece,
    Producer, StreamForm, Version, dump,
};
use evenkeel_store::collection::stream::{self, StreamId};
use evenkeel_store::collection::{Array, Hash, List, Set, Stream, ZSet};
use evenkeel_store::rope;

use super::Value;
use evenkeel_config::Settings;

/// The format version that a value needs: the lowest that holds all of it, so that most servers can read it.
fn version_for(value: &Value) -> Version {
    match value {
        Value::Hash(hash) if hash.timed_len() > 0 => Version::V80,
        Value::Stream(stream) if has_active_times(stream) => form_of(stream).version().max(Version::V11),
        Value::Stream(stream) => form_of(stream).version(),
        Value::Array(_) => Version::V14,
        _ => Version::V10,
    }
}

/// The form that holds all of the stream.
fn form_of(stream: &Stream) -> StreamForm {
    if stream.groups().any(|(_, group)| group.released_len() > 0) {
        return StreamForm::Released;
    }
    if stream.idmp().is_some() { StreamForm::Idmp } else { StreamForm::Plain }
}

/// Whether a consumer was last given an entry at another time than its last request. Readers of older
/// versions assume that the times are equal.
fn has_active_times(stream: &Stream) -> bool {
    let mut consumers = stream.groups().flat_map(|(_, group)| group.consumers());
    consumers.any(|(_, consumer)| consumer.active_ms != Some(consumer.seen_ms))
}

/// Returns the value as DUMP does.
pub fn payload(value: &Value, settings: &Settings) -> Vec<u8> {
    let version = version_for(value);
    let mut encoder = Encoder::new(Vec::new(), version);
    write(value, settings, &mut encoder);
    let mut payload = encoder.into_out();
    dump::seal(&mut payload, version);
    payload
}

/// Writes a value into a file, which as many servers as possible should be able to read.
///
/// Only a field's deadline, an array, and a stream's producers and released entries require a newer version.
/// The time at which a stream's consumer was last given an entry is not worth that: it would keep Redis 7.0
/// from every file with a consumer group. In files, both times are that of the consumer's last request.
pub fn record(value: &Value, settings: &Settings, encoder: &mut Encoder<impl Out>) {
    match value {
        Value::Hash(_) | Value::Array(_) => encoder.raise(version_for(value)),
        Value::Stream(stream) => encoder.raise(form_of(stream).version()),
        _ => {}
    }
    write(value, settings, encoder);
}

/// Writes a value, in a compact form if the settings call it small.
fn write(value: &Value, settings: &Settings, encoder: &mut Encoder<impl Out>) {
    match value {
        Value::Flat(bytes) => encoder.string(Item::Bytes(bytes)),
        Value::Rope(spine) => {
            let pieces = spine.pieces(0..spine.len()).map(|piece| match piece {
                rope::Piece::Bytes(chunk, range) => Piece::Bytes(&chunk[range]),
                rope::Piece::Zeros(len) => Piece::Zeros(len),
            });
            encoder.string_in_pieces(spine.len(), pieces);
        }
        Value::List(list) => write_list(list, settings, encoder),
        Value::Set(set) => write_set(set, settings, encoder),
        Value::ZSet(set) => write_zset(set, settings, encoder),
        Value::Hash(hash) => write_hash(hash, settings, encoder),
        Value::Stream(stream) => write_stream(stream, settings, encoder),
        Value::Array(array) => write_array(array, encoder),
    }
}

/// Lists and streams begin with their number of nodes. The nodes of values up to this size stay in memory
/// until they are counted; a larger value is walked twice.
const WAITING_BYTES_MAX: usize = 64 * 1024;

fn write_list(list: &List, settings: &Settings, encoder: &mut Encoder<impl Out>) {
    let limits = list_limits(settings.list_max_listpack_size);
    let plain_from = match settings.quicklist_packed_threshold {
        0 => usize::MAX,
        threshold => threshold,
    };
    let elements = || list.range(0..list.len()).map(Item::Bytes);
    let is_large = list.memory_up_to(WAITING_BYTES_MAX) >= WAITING_BYTES_MAX;
    let nodes = is_large.then(|| {
        let mut count = NodeCount::new(limits, encoder.version()).plain_from(plain_from);
        elements().for_each(|element| count.element(element));
        count.nodes()
    });
    let mut writer = encoder.list(limits, nodes).plain_from(plain_from);
    elements().for_each(|element| writer.push(element));
    writer.finish();
}

/// `list-max-listpack-size`: a number of elements or, if negative, one of five sizes from 4 KiB on.
fn list_limits(size: i32) -> NodeLimits {
    /// Maximum bytes of a node whose number of elements is the only limit set.
    const SAFE_BYTES: usize = 8192;
    match size {
        1.. => NodeLimits { bytes_max: SAFE_BYTES, entries_max: size as u64 },
        _ => NodeLimits { bytes_max: 2048 << size.unsigned_abs().clamp(1, 5), entries_max: u64::MAX },
    }
}

fn write_set(set: &Set, settings: &Settings, encoder: &mut Encoder<impl Out>) {
    if set.is_packed() && set.len() <= settings.set_max_intset_entries as u64 {
        let numbers: Vec<i64> = set.iter().filter_map(|member| Item::Bytes(&member).int()).collect();
        return encoder.intset(numbers.into_iter());
    }
    let limits = Limits {
        entries_max: settings.set_max_listpack_entries as u64,
        value_max: settings.set_max_listpack_value,
    };
    let longest = longest(limits, set.len(), || set.iter().map(|member| member.len()).max());
    let mut writer = encoder.set(limits.form(set.len(), longest), set.len());
    set.iter().for_each(|member| writer.push(Item::Bytes(&member)));
    writer.finish();
}

/// Returns the longest element of a value that may be small; a value with too many entries is large without
/// this.
fn longest(limits: Limits, entries: u64, longest: impl FnOnce() -> Option<usize>) -> usize {
    if entries <= limits.entries_max { longest().unwrap_or(0) } else { usize::MAX }
}

fn write_zset(set: &ZSet, settings: &Settings, encoder: &mut Encoder<impl Out>) {
    let limits = Limits {
        entries_max: settings.zset_max_listpack_entries as u64,
        value_max: settings.zset_max_listpack_value,
    };
    let members = || set.range(0..set.len());
    let longest = longest(limits, set.len(), || members().map(|(member, _)| member.len()).max());
    let form = limits.form(set.len(), longest);
    let mut writer = encoder.sorted_set(form, set.len());
    members().for_each(|(member, score)| writer.push(Item::Bytes(member), score));
    writer.finish();
}

/// Writes expired fields as well; the reader leaves them out.
fn write_hash(hash: &Hash, settings: &Settings, encoder: &mut Encoder<impl Out>) {
    let count = hash.size();
    let push = |mut writer: HashWriter<'_, _>| {
        for field in hash.fields() {
            writer.push(Item::Bytes(field.name), Item::Bytes(field.value), field.deadline);
        }
        writer.finish();
    };
    if hash.timed_len() > 0 {
        return push(encoder.expiring_hash(count).expect("the version was chosen for it"));
    }
    let limits = Limits {
        entries_max: settings.hash_max_listpack_entries as u64,
        value_max: settings.hash_max_listpack_value,
    };
    let longest =
        longest(limits, count, || hash.fields().map(|field| field.name.len().max(field.value.len())).max());
    push(encoder.hash(limits.form(count, longest), count));
}

fn write_stream(stream: &Stream, settings: &Settings, encoder: &mut Encoder<impl Out>) {
    let limits = |limit: usize, unlimited| if limit == 0 { unlimited } else { limit };
    let limits = NodeLimits {
        bytes_max: limits(settings.stream_node_max_bytes, 1 << 30),
        entries_max: limits(settings.stream_node_max_entries, usize::MAX) as u64,
    };
    let is_large = stream.memory_up_to(WAITING_BYTES_MAX) >= WAITING_BYTES_MAX;
    let nodes = is_large.then(|| {
        let mut count = NodeCount::new(limits, encoder.version());
        each_entry(stream, |_, fields| count.entry(fields));
        count.nodes()
    });
    let mut writer = encoder.stream_of(form_of(stream), limits, nodes).sharing_up_to(stream::NAMES_MAX);
    each_entry(stream, |id, fields| writer.entry(id, fields));
    let log = stream.log();
    let info = Info {
        length: stream.len(),
        first_id: id(log.first_id()),
        last_id: id(log.last_id()),
        max_deleted_id: id(log.max_deleted_id()),
        entries_added: log.added(),
    };
    let mut writer = writer.groups(&info, stream.groups_len() as u64);
    stream.groups().for_each(|(name, group)| write_group(name, group, &mut writer));
    writer.finish(&idmp_of(stream));
}

fn idmp_of(stream: &Stream) -> Idmp {
    // A stream that has no producers yet is like a new one.
    let default = stream::Idmp::default();
    let idmp = stream.idmp().unwrap_or(&default);
    let producers = idmp.producers().map(|(name, producer)| Producer {
        name: name.to_vec(),
        entries: producer.entries().map(|(iid, entry)| (iid.to_vec(), id(entry))).collect(),
    });
    Idmp {
        duration_s: idmp.duration_s,
        entries_max: idmp.entries_max,
        producers: producers.collect(),
        added: idmp.added,
        duplicates: idmp.duplicates,
    }
}

fn write_array(array: &Array, encoder: &mut Encoder<impl Out>) {
    let count = array.count();
    let mut writer = encoder.array(count, array.cursor()).expect("the version was chosen for it");
    array.range(0..count).for_each(|(index, value)| writer.push(index, value));
    writer.finish();
}

fn each_entry(stream: &Stream, mut f: impl FnMut(Id, &[(Item<'_>, Item<'_>)])) {
    let mut fields = Vec::new();
    for entry in stream.entries().range(0..stream.len()) {
        fields.clear();
        fields.extend(entry.fields().map(|(name, value)| (Item::Bytes(name), Item::Bytes(value))));
        f(id(entry.id), &fields);
    }
}

fn write_group(name: &[u8], group: &stream::Group, writer: &mut GroupsWriter<'_, impl Out>) {
    writer.group(name, id(group.last_id()), group.entries_read(), group.pending_len());
    for pending in group.pending_range(StreamId::MIN, StreamId::MAX) {
        writer.pending(id(pending.id), pending.delivery.at_ms, pending.delivery.count);
    }
    writer.consumers(group.consumers_len() as u64);
    for (name, consumer) in group.consumers() {
        writer.consumer(name, consumer.seen_ms, consumer.active_ms, consumer.pending_len());
        consumer.pending_ids(StreamId::MIN, StreamId::MAX).for_each(|pending| writer.owned(id(pending)));
    }
    writer.released(group.released().iter().map(|pending| id(pending.id)));
}

fn id(id: StreamId) -> Id {
    Id { ms: id.ms, seq: id.seq }
}
