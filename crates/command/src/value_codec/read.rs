//! From bytes to the store.

use std::collections::HashSet;

use evenkeel_rdb::{
    ArrayElements, Decoder, Digits, Elements, Error, Fields, Id, Item, LongString, Members, NOBODY, Object,
    PIECE, Reason, Source,
};
use evenkeel_store::collection::stream::{self, Delivery, ENTRY_MAX, Group, NodeLimits, PARTS_MAX, StreamId};
use evenkeel_store::collection::{Array, Collection, ELEMENT_MAX, Gather, Hash, List, Set, Stream};
use evenkeel_store::rope::{self, CHUNK, FLAT_MAX, Rope};
use evenkeel_store::{Expire, Hasher, Millis};

use super::{Formed, Value};
use crate::{list, zset};
use evenkeel_config::Settings;

/// The encodings of a set, as OBJECT ENCODING reports them.
const INTSET: u8 = 0;
const LISTPACK: u8 = 1;
const HASHTABLE: u8 = 2;

/// Bytes of a string that any client may restore: the default limit of Redis' strings.
const CLIENTS_STRING_MAX: usize = 512 << 20;

/// Bytes of a stream's entries that are stored, however few bytes of input the client has sent for them.
const FREE_BYTES: u64 = 64 * 1024 * 1024;

/// Maximum bytes of a stream's entries per byte of the client's input, beyond [`FREE_BYTES`].
///
/// Entries may share names that are too long for the store to share, and any client can encode a node in
/// which any number of entries share names of any length. Our own writer shares only names that the store
/// shares, and stays below this limit. Redis lets a hundred entries share long names by default. It exceeds
/// this limit only where the names compress to almost nothing and next to no other data is beside them.
const INFLATION_MAX: u64 = 256;

/// Where bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A client, trusted with nothing.
    Client,
    /// A file, the journal, or the primary: its writer had the value in memory.
    Trusted,
}

/// Reads a value. Fields that have expired by `now` are left out, so a hash may come out empty.
pub fn read<S: Source>(
    decoder: &mut Decoder<S>,
    settings: &Settings,
    hasher: &Hasher,
    (now, origin): (Millis, Origin),
) -> Result<Formed, Error> {
    // Insertion finds duplicates at no extra cost.
    decoder.leave_duplicates();
    build(decoder.object()?, settings, hasher, (now, origin))
}

/// Builds the value that a decoder is about to read; the decoder leaves duplicates to the builder.
pub fn build<S: Source>(
    object: Object<'_, S>,
    settings: &Settings,
    hasher: &Hasher,
    (now, origin): (Millis, Origin),
) -> Result<Formed, Error> {
    match object {
        Object::String(string) => Ok(read_string(string)),
        Object::Long(string) => read_long_string(string, settings, origin),
        Object::List(elements) => read_list(elements, settings),
        Object::Set(members) => read_set(members, settings, hasher),
        Object::SortedSet(members) => read_zset(members, settings, hasher),
        Object::Hash(fields) => read_hash(fields, settings, hasher, now),
        Object::Stream(entries) => read_stream(entries, settings, origin),
        Object::Array(elements) => read_array(elements),
    }
}

/// A long string gets its final form, so that storing it copies nothing.
fn read_string(string: Item<'_>) -> Formed {
    let value = match string {
        Item::Bytes(bytes) if bytes.len() > FLAT_MAX => Value::Rope(Rope::new(bytes)),
        string => Value::Flat(string.to_vec()),
    };
    Formed::new(value, 0)
}

/// Reads a string of many chunks; chunks of zeros take no memory.
fn read_long_string<S: Source>(
    mut string: LongString<'_, S>,
    settings: &Settings,
    origin: Origin,
) -> Result<Formed, Error> {
    const { assert!(PIECE == CHUNK, "a piece becomes a chunk") };
    let len = usize::try_from(string.len()).map_err(|_| too_large(0))?;
    // A payload may expand to 88 times its size. A server's payloads hold no longer string than its clients
    // could send.
    if origin == Origin::Client && len > CLIENTS_STRING_MAX.max(settings.proto_max_bulk_len) {
        return Err(too_large(0));
    }
    let mut chunks = Vec::new();
    while let Some(piece) = string.next()? {
        chunks.push(rope::chunk_of(piece));
    }
    Ok(Formed::new(Value::Rope(Rope::from_chunks(len, chunks)), 0))
}

fn read_list<S: Source>(mut elements: Elements<'_, S>, settings: &Settings) -> Result<Formed, Error> {
    let (mut list, mut digits) = (List::new(), Digits::default());
    while let Some(element) = elements.next()? {
        list.push_back(fitting(element.bytes(&mut digits))?);
    }
    let form = list::form::Limits::of(settings).of_whole(&list);
    Ok(Formed::new(Value::List(list), form))
}

fn read_set<S: Source>(
    mut members: Elements<'_, S>,
    settings: &Settings,
    hasher: &Hasher,
) -> Result<Formed, Error> {
    let (mut set, mut digits, mut longest) = (Set::new(), Digits::default(), 0);
    while let Some(member) = members.next()? {
        let member = fitting(member.bytes(&mut digits))?;
        longest = longest.max(member.len());
        if !set.insert(hasher, member) {
            return Err(duplicate());
        }
    }
    let is_short =
        set.len() <= settings.set_max_listpack_entries as u64 && longest <= settings.set_max_listpack_value;
    let form = match is_short {
        _ if set.is_packed() && set.len() <= settings.set_max_intset_entries as u64 => INTSET,
        true => LISTPACK,
        false => HASHTABLE,
    };
    Ok(Formed::new(Value::Set(set), form))
}

fn read_zset<S: Source>(
    mut members: Members<'_, S>,
    settings: &Settings,
    hasher: &Hasher,
) -> Result<Formed, Error> {
    // All names end to end: built at once, a large set takes a tenth of the time of insertions.
    let (mut names, mut ends, mut digits) = (Vec::new(), Vec::new(), Digits::default());
    while let Some(member) = members.next()? {
        names.extend_from_slice(fitting(member.name.bytes(&mut digits))?);
        ends.push((names.len(), member.score));
    }
    drop(members);
    let (mut gather, mut from, members) = (Gather::new(hasher), 0, ends.len());
    for (end, score) in ends {
        gather.push(&names[from..end], score);
        from = end;
    }
    let gathered = gather.merge(|_, last| last);
    if gathered.len() != members as u64 {
        return Err(duplicate());
    }
    let form = zset::Limits::of(settings).form(gathered.len(), gathered.longest());
    Ok(Formed::new(Value::ZSet(gathered.into_set()), form))
}

fn read_hash<S: Source>(
    mut fields: Fields<'_, S>,
    settings: &Settings,
    hasher: &Hasher,
    now: Millis,
) -> Result<Formed, Error> {
    let (mut hash, mut longest, mut timed) = (Hash::new(), 0, false);
    let (mut names, mut values) = (Digits::default(), Digits::default());
    // The names of expired fields, which must not occur twice, either.
    let mut gone: HashSet<Vec<u8>> = HashSet::new();
    while let Some(field) = fields.next()? {
        if field.expires.is_some_and(|deadline| deadline <= now) {
            let name = field.name.to_vec();
            if hash.get(hasher, now, &name).is_some() || !gone.insert(name) {
                return Err(duplicate());
            }
            continue;
        }
        let (name, value) = (field.name.bytes(&mut names), field.value.bytes(&mut values));
        if name.len() + value.len() > ELEMENT_MAX {
            return Err(too_large(0));
        }
        longest = longest.max(name.len()).max(value.len());
        let expire = field.expires.map_or(Expire::Clear, Expire::At);
        timed |= field.expires.is_some();
        if gone.contains(name) || !hash.set(hasher, now, name, value, expire) {
            return Err(duplicate());
        }
    }
    let is_small = !timed
        && hash.size() <= settings.hash_max_listpack_entries as u64
        && longest <= settings.hash_max_listpack_value;
    Ok(Formed::new(Value::Hash(hash), u8::from(!is_small)))
}

fn read_stream<S: Source>(
    mut entries: evenkeel_rdb::Stream<'_, S>,
    settings: &Settings,
    origin: Origin,
) -> Result<Formed, Error> {
    if origin == Origin::Trusted {
        entries.allow_corrections();
    }
    let limits = NodeLimits::new(settings.stream_node_max_entries, settings.stream_node_max_bytes);
    let (start, mut taken) = (entries.position(), 0);
    let mut stream = Stream::new();
    stream.make();
    // Names and values alternate, end to end.
    let (mut bytes, mut ends, mut digits) = (Vec::new(), Vec::new(), Digits::default());
    loop {
        let before = entries.position();
        let Some(entry) = entries.next_entry()? else { break };
        bytes.clear();
        ends.clear();
        for (name, value) in entry.fields() {
            for part in [name, value] {
                let part = part.bytes(&mut digits);
                if bytes.len() + part.len() > ENTRY_MAX || ends.len() >= PARTS_MAX {
                    return Err(too_large(before));
                }
                bytes.extend_from_slice(part);
                ends.push(bytes.len());
            }
        }
        let parts = ends.iter().enumerate().map(|(at, end)| {
            let from = if at == 0 { 0 } else { ends[at - 1] };
            &bytes[from..*end]
        });
        taken += stream.append(id(entry.id), parts, limits).expect("entries come by ascending ids") as u64;
        let at = entries.position();
        if origin == Origin::Client && taken > FREE_BYTES.max((at - start).saturating_mul(INFLATION_MAX)) {
            return Err(Error { at, inside: None, reason: Reason::Inflated });
        }
    }
    let (info, mut groups) = entries.finish()?;
    let is_corrected = groups.is_of_corrected();
    stream.set_history(id(info.last_id), info.entries_added, id(info.max_deleted_id));
    while let Some(group) = groups.next()? {
        stream.add_group(&group.name, group_of(&group)?);
    }
    if let Some(idmp) = groups.take_idmp() {
        read_idmp(&mut stream, &idmp)?;
    }
    Ok(Formed { is_corrected, ..Formed::new(Value::Stream(stream), 0) })
}

/// A stream that never had a producer, nor a configuration of its own, stays as it is.
fn read_idmp(stream: &mut Stream, read: &evenkeel_rdb::Idmp) -> Result<(), Error> {
    let default = stream::Idmp::default();
    let numbers = |duration, most, added, duplicates| [duration, most, added, duplicates];
    let found = numbers(read.duration_s, read.entries_max, read.added, read.duplicates);
    let is_default = found == numbers(default.duration_s, default.entries_max, 0, 0);
    if is_default && read.producers.is_empty() {
        return Ok(());
    }
    let idmp = stream.idmp_mut();
    idmp.duration_s = read.duration_s.clamp(1, stream::DURATION_S_MAX);
    idmp.entries_max = read.entries_max.clamp(1, stream::ENTRIES_MAX_MAX);
    for producer in &read.producers {
        for (iid, entry) in &producer.entries {
            idmp.remember(fitting(&producer.name)?, fitting(iid)?, id(*entry));
        }
    }
    (idmp.added, idmp.duplicates) = (read.added, read.duplicates);
    Ok(())
}

fn read_array<S: Source>(mut elements: ArrayElements<'_, S>) -> Result<Formed, Error> {
    let (mut array, mut digits) = (Array::new(), Digits::default());
    array.set_cursor(elements.cursor());
    while let Some((index, value)) = elements.next()? {
        if !array.set(index, fitting(value.bytes(&mut digits))?) {
            return Err(duplicate());
        }
    }
    Ok(Formed::new(Value::Array(array), 0))
}

fn group_of(read: &evenkeel_rdb::Group) -> Result<Group, Error> {
    let mut group = Group::new(id(read.last_id), read.entries_read);
    for consumer in &read.consumers {
        group.add_consumer(fitting(&consumer.name)?, consumer.seen);
        if let Some(made) = group.consumer_mut(&consumer.name) {
            made.active_ms = consumer.active;
        }
    }
    for pending in read.pending.iter().filter(|pending| pending.consumer != NOBODY) {
        let owner = &read.consumers[pending.consumer as usize].name;
        group.give(id(pending.id), owner, Delivery { at_ms: pending.delivered, count: pending.deliveries });
    }
    for released in &read.released {
        let place = read.pending.binary_search_by_key(released, |pending| pending.id);
        let place = place.expect("a released entry is pending");
        group.release(id(*released), read.pending[place].deliveries);
    }
    Ok(group)
}

fn duplicate() -> Error {
    Error { at: 0, inside: None, reason: Reason::Duplicate }
}

/// Returns the element if it is short enough to be stored.
fn fitting(element: &[u8]) -> Result<&[u8], Error> {
    if element.len() <= ELEMENT_MAX { Ok(element) } else { Err(too_large(0)) }
}

fn too_large(at: u64) -> Error {
    Error { at, inside: None, reason: Reason::TooLarge }
}

fn id(id: Id) -> StreamId {
    StreamId::new(id.ms, id.seq)
}

#[cfg(test)]
mod tests {
    use evenkeel_rdb::Slice;

    use super::*;
    use evenkeel_store::Keyspace;

    /// Types of values in their plain forms, as files have them.
    const LIST: u8 = 1;
    const SET: u8 = 2;
    const HASH: u8 = 4;
    const ZSET: u8 = 5;

    fn length(len: usize) -> Vec<u8> {
        [&[0x81], &(len as u64).to_be_bytes()[..]].concat()
    }

    /// Untouched memory of this size is never populated.
    fn zeroes(parts: &[&[u8]], len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut at = 0;
        for part in parts {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        bytes
    }

    fn refusal(keyspace: &Keyspace, bytes: &[u8]) -> Option<Reason> {
        let mut decoder = Decoder::new(Slice::new(bytes), 10);
        let origin = (0, Origin::Trusted);
        let found = read(&mut decoder, &Settings::default(), &keyspace.hasher, origin);
        found.err().map(|error| error.reason)
    }

    #[test]
    fn elements_longer_than_can_be_stored_are_refused() {
        let keyspace = Keyspace::new(1, 1, 0, 7);
        let long = ELEMENT_MAX + 1;
        for kind in [LIST, SET, ZSET] {
            let head = [&[kind, 1][..], &length(long)].concat();
            let bytes = zeroes(&[&head], head.len() + long + 8);
            assert_eq!(refusal(&keyspace, &bytes), Some(Reason::TooLarge), "type {kind}");
        }
        // A field and its value are stored together.
        let (name, value) = (ELEMENT_MAX / 2, ELEMENT_MAX / 2 + 10);
        let head = [&[HASH, 1][..], &length(name)].concat();
        let mut bytes = zeroes(&[&head], head.len() + name + 9 + value);
        bytes[head.len() + name..][..9].copy_from_slice(&length(value));
        assert_eq!(refusal(&keyspace, &bytes), Some(Reason::TooLarge));
    }
}
