//! A value as a server's commands show it.

use evenkeel_rdb::{Consumer, Group, Id, Info, Pending};
use evenkeel_resp::value::Value as Reply;
use evenkeel_testkit::Client;

use crate::model::{Entries, Entry, Score, Value, in_order};

/// Returns the value at `key`.
pub(crate) fn ask(client: &mut Client, key: &str) -> Value {
    let kind = client.call(&["TYPE", key]).to_string();
    match kind.as_str() {
        "string" => Value::String(bytes(&client.call(&["GET", key]))),
        "list" => Value::List(strings(client.call(&["LRANGE", key, "0", "-1"]))),
        "set" => Value::Set(strings(client.call(&["SMEMBERS", key])).into_iter().collect()),
        "zset" => {
            let flat = strings(client.call(&["ZRANGE", key, "0", "-1", "WITHSCORES"]));
            Value::SortedSet(
                pairs(flat).into_iter().map(|(name, score)| (name, Score(number(&score)))).collect(),
            )
        }
        "hash" => hash(client, key),
        "stream" => stream(client, key),
        _ => panic!("{key} is {kind}"),
    }
}

fn hash(client: &mut Client, key: &str) -> Value {
    let fields = pairs(strings(client.call(&["HGETALL", key])));
    let times = expiries(client, key, &fields);
    Value::Hash(fields.into_iter().zip(times).map(|((name, value), time)| (name, (value, time))).collect())
}

/// `None` for servers without field expiry.
fn expiries(client: &mut Client, key: &str, fields: &[(Vec<u8>, Vec<u8>)]) -> Vec<Option<u64>> {
    let count = fields.len().to_string();
    let mut args: Vec<&[u8]> = vec![b"HPEXPIRETIME", key.as_bytes(), b"FIELDS", count.as_bytes()];
    args.extend(fields.iter().map(|(name, _)| &name[..]));
    let reply = client.call(&args);
    match reply.as_items() {
        Some(times) => {
            times.iter().map(|time| time.as_int().and_then(|time| u64::try_from(time).ok())).collect()
        }
        None => vec![None; fields.len()],
    }
}

fn stream(client: &mut Client, key: &str) -> Value {
    let entries: Entries = items(&client.call(&["XRANGE", key, "-", "+"])).iter().map(entry).collect();
    let full = client.call(&["XINFO", "STREAM", key, "FULL", "COUNT", "0"]);
    let info = Info {
        length: int(&full, "length") as u64,
        first_id: id(field(&full, "recorded-first-entry-id")),
        last_id: id(field(&full, "last-generated-id")),
        max_deleted_id: id(field(&full, "max-deleted-entry-id")),
        entries_added: int(&full, "entries-added") as u64,
    };
    let mut groups: Vec<Group> = items(field(&full, "groups")).iter().map(group).collect();
    groups.sort_by(|a, b| a.name.cmp(&b.name));
    Value::Stream(entries, info, groups)
}

fn entry(reply: &Reply) -> Entry {
    let parts = items(reply);
    (id(&parts[0]), pairs(items(&parts[1]).iter().map(bytes).collect()))
}

fn group(reply: &Reply) -> Group {
    let consumers: Vec<Consumer> = items(field(reply, "consumers")).iter().map(consumer).collect();
    let pending = |pending: &Reply| {
        let parts = items(pending);
        let owner = bytes(&parts[1]);
        let index =
            consumers.iter().position(|consumer| consumer.name == owner).expect("a consumer of the group");
        let [delivered, deliveries] =
            [2, 3].map(|part: usize| parts[part].as_int().expect("a number") as u64);
        Pending { id: id(&parts[0]), delivered, deliveries, consumer: index as u32 }
    };
    in_order(Group {
        name: bytes(field(reply, "name")),
        last_id: id(field(reply, "last-delivered-id")),
        entries_read: field(reply, "entries-read").as_int().map(|read| read as u64),
        pending: items(field(reply, "pending")).iter().map(pending).collect(),
        consumers,
        released: Vec::new(),
    })
}

/// Redis 7.0 shows no active time: its `seen` stands for it.
fn consumer(reply: &Reply) -> Consumer {
    let seen = int(reply, "seen-time") as u64;
    let active = match find(reply, "active-time") {
        None => Some(seen),
        Some(time) => u64::try_from(time.as_int().expect("a time")).ok(),
    };
    Consumer { name: bytes(field(reply, "name")), seen, active }
}

fn find<'r>(map: &'r Reply, name: &str) -> Option<&'r Reply> {
    let flat = items(map);
    flat.chunks(2).find(|pair| pair[0].as_bytes() == Some(name.as_bytes())).map(|pair| &pair[1])
}

fn field<'r>(map: &'r Reply, name: &str) -> &'r Reply {
    find(map, name).unwrap_or_else(|| panic!("no {name} in {map}"))
}

fn int(map: &Reply, name: &str) -> i64 {
    field(map, name).as_int().unwrap_or_else(|| panic!("{name} is no number in {map}"))
}

fn items(reply: &Reply) -> &[Reply] {
    reply.as_items().unwrap_or_else(|| panic!("no array: {reply}"))
}

fn bytes(reply: &Reply) -> Vec<u8> {
    reply.as_bytes().unwrap_or_else(|| panic!("no string: {reply}")).to_vec()
}

fn strings(reply: Reply) -> Vec<Vec<u8>> {
    items(&reply).iter().map(bytes).collect()
}

fn pairs(flat: Vec<Vec<u8>>) -> Vec<(Vec<u8>, Vec<u8>)> {
    flat.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

fn number(text: &[u8]) -> f64 {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).expect("a score")
}

fn id(reply: &Reply) -> Id {
    let text = String::from_utf8(bytes(reply)).expect("an id is text");
    let (ms, seq) = text.split_once('-').expect("an id has two numbers");
    Id { ms: ms.parse().expect("a number"), seq: seq.parse().expect("a number") }
}
