//! The whole content of a server as texts, to compare servers after a replay of an append-only file, a load
//! or a sync.
//!
//! The texts come from the replies of ordinary commands, so any server of the family can be asked, and equal
//! values have equal texts. Elements without an order are sorted. State that neither an append-only file nor
//! a snapshot records is left out (the last activity of a consumer, the layout of a stream's tree).

use std::collections::BTreeMap;

use evenkeel_resp::value::Value;

use crate::Server;
use crate::transcript::{Target, target};

/// A server's default number of databases.
const DATABASES: usize = 16;

/// Names of fields that are not compared. A group's lag follows from other fields, and Redis 7.0 computes it
/// differently from 7.2. The numbers of entries that producers sent of late depend on the time.
const LEFT_OUT: &[&[u8]] = &[
    b"seen-time",
    b"active-time",
    b"inactive",
    b"lag",
    b"radix-tree-keys",
    b"radix-tree-nodes",
    b"pids-tracked",
    b"iids-tracked",
];

/// The text of each value, by database and key.
pub type Digest = BTreeMap<(usize, Vec<u8>), String>;

/// Reads the whole content of a server.
pub fn digest(target: &mut dyn Target) -> Digest {
    let mut digest = Digest::new();
    for db in 0..DATABASES {
        ask(target, &[b"SELECT", db.to_string().as_bytes()]);
        let keys = ask(target, &[b"KEYS", b"*"]);
        for key in keys.as_items().expect("KEYS replies an array") {
            let key = key.as_bytes().expect("a key is a string");
            if let Some(text) = text_of(target, key) {
                digest.insert((db, key.to_vec()), text);
            }
        }
    }
    digest
}

/// Reads the deadlines of all keys that have a deadline.
fn deadlines(server: &Server) -> Digest {
    const ASKED_AT_ONCE: usize = 100;
    let (mut client, mut digest) = (server.connect(), Digest::new());
    for db in 0..DATABASES {
        client.run(&format!("SELECT {db}"));
        let keys = client.run("KEYS *");
        let keys: Vec<Vec<u8>> = keys.as_items().expect("KEYS replies an array").iter().map(name).collect();
        for some in keys.chunks(ASKED_AT_ONCE) {
            let questions: Vec<_> =
                some.iter().map(|key| vec![b"PEXPIRETIME".as_slice(), key.as_slice()]).collect();
            let timed = some.iter().zip(client.pipeline(&questions));
            let timed = timed.filter(|(_, deadline)| deadline.as_int().is_some_and(|at| at > 0));
            digest.extend(timed.map(|(key, deadline)| ((db, key.clone()), format!("until {deadline}"))));
        }
    }
    digest
}

/// Reads DEBUG DIGEST-VALUE of all keys: state that no other command shows may differ.
pub fn digest_values(server: &Server) -> Digest {
    let (mut client, mut digest) = (server.connect(), Digest::new());
    for db in 0..DATABASES {
        client.run(&format!("SELECT {db}"));
        let keys = client.run("KEYS *");
        for key in keys.as_items().expect("KEYS replies an array").iter().map(name) {
            let sum = client.call(&[b"DEBUG", &b"DIGEST-VALUE"[..], &key]).to_string();
            let kind = client.call(&[b"TYPE", &key[..]]).to_string();
            digest.insert((db, key), format!("{kind} with the sum {sum}"));
        }
    }
    digest
}

/// Returns how two servers differ beyond the sums of DEBUG DIGEST: in the deadlines of keys, and, if both are
/// Evenkeel and hold few keys, in everything that [`digest`] covers, such as the groups of streams.
pub fn difference_beyond_sum(one: &Server, other: &Server) -> Option<String> {
    /// Asking key by key takes half a second for so many keys.
    const KEYS_MAX: u64 = 5_000;
    let is_ours = |server: &Server| server.program().reference().is_none();
    let keys = || {
        let info = one.connect().run("INFO keyspace").to_string();
        info.split("keys=")
            .skip(1)
            .filter_map(|part| part.split(',').next()?.parse::<u64>().ok())
            .sum::<u64>()
    };
    match is_ours(one) && is_ours(other) && keys() <= KEYS_MAX {
        true => difference(&digest(&mut target(one)), &digest(&mut target(other))),
        false => difference(&deadlines(one), &deadlines(other)),
    }
}

/// Returns the first keys that differ, as a single text; `None` if all are the same.
pub fn difference(one: &Digest, other: &Digest) -> Option<String> {
    const SHOWN: usize = 5;
    let keys = one.keys().chain(other.keys().filter(|key| !one.contains_key(*key)));
    let different = keys.filter(|key| one.get(*key) != other.get(*key));
    let lines = different.take(SHOWN).map(|key| {
        let text = |digest: &Digest| shortened(digest.get(key).map_or("nothing", String::as_str));
        format!("{} {}\n  {}\n  {}", key.0, key.1.escape_ascii(), text(one), text(other))
    });
    let lines: Vec<String> = lines.collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Returns the beginning and the end of a long text.
fn shortened(text: &str) -> String {
    const SHOWN: usize = 400;
    let chars: Vec<char> = text.chars().collect();
    match chars.len().checked_sub(2 * SHOWN) {
        None | Some(0) => text.to_owned(),
        Some(hidden) => {
            let part = |part: &[char]| part.iter().collect::<String>();
            format!("{}.. {hidden} more ..{}", part(&chars[..SHOWN]), part(&chars[SHOWN + hidden..]))
        }
    }
}

fn ask(target: &mut dyn Target, args: &[&[u8]]) -> Value {
    let args: Vec<Vec<u8>> = args.iter().map(|arg| arg.to_vec()).collect();
    target.send("digest", &args);
    target.receive("digest").expect("a reply")
}

/// Returns the text of a key's value; `None` if the key has expired meanwhile.
fn text_of(target: &mut dyn Target, key: &[u8]) -> Option<String> {
    let kind = ask(target, &[b"TYPE", key]).to_string();
    let deadline = ask(target, &[b"PEXPIRETIME", key]);
    let value = match kind.as_str() {
        "string" => ask(target, &[b"GET", key]).to_string(),
        "list" => ask(target, &[b"LRANGE", key, b"0", b"-1"]).to_string(),
        "set" => sorted(ask(target, &[b"SMEMBERS", key]), 1),
        "zset" => scores(ask(target, &[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"])),
        "hash" => hash(target, key),
        "array" => {
            let greatest = (u64::MAX - 1).to_string();
            let values = ask(target, &[b"ARSCAN", key, b"0", greatest.as_bytes()]).to_string();
            format!("{values}, next {}", ask(target, &[b"ARNEXT", key]))
        }
        "stream" => comparable(ask(target, &[b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"])),
        "none" => return None,
        other => panic!("a key of type {other}"),
    };
    Some(format!("{kind} until {deadline}: {value}"))
}

/// Joins the items in groups of `step`, sorted by their texts.
fn sorted(reply: Value, step: usize) -> String {
    let items = reply.as_items().expect("an array");
    let text = |group: &[Value]| group.iter().map(Value::to_string).collect::<Vec<_>>().join(" ");
    let mut groups: Vec<String> = items.chunks(step).map(text).collect();
    groups.sort();
    groups.join(", ")
}

/// Members and scores, which servers print differently. The sign of a zero depends on the history of the set.
fn scores(reply: Value) -> String {
    let items = reply.as_items().expect("an array").chunks(2);
    let text = |pair: &[Value]| {
        let score = pair[1].as_bytes().and_then(|score| std::str::from_utf8(score).ok()?.parse::<f64>().ok());
        format!("{} {}", pair[0], score.expect("a score is a number") + 0.0)
    };
    items.map(text).collect::<Vec<_>>().join(", ")
}

/// Fields and values, and the deadlines of the fields where the server has such deadlines.
fn hash(target: &mut dyn Target, key: &[u8]) -> String {
    let fields = ask(target, &[b"HGETALL", key]);
    let names: Vec<Vec<u8>> =
        fields.as_items().expect("an array").chunks(2).map(|pair| name(&pair[0])).collect();
    let count = names.len().to_string();
    let question: Vec<&[u8]> = [b"HPEXPIRETIME", key, b"FIELDS", count.as_bytes()]
        .into_iter()
        .chain(names.iter().map(Vec::as_slice))
        .collect();
    let deadlines = ask(target, &question);
    let mut timed: Vec<String> = deadlines
        .as_items()
        .unwrap_or_default()
        .iter()
        .zip(&names)
        .filter(|(deadline, _)| deadline.as_int() != Some(-1))
        .map(|(deadline, name)| format!("{} until {deadline}", name.escape_ascii()))
        .collect();
    timed.sort();
    format!("{}; {}", sorted(fields, 2), timed.join(", "))
}

fn name(field: &Value) -> Vec<u8> {
    field.as_bytes().expect("a field is a string").to_vec()
}

/// Returns a reply without the fields that are not compared.
fn comparable(reply: Value) -> String {
    let Value::Array(items) = reply else { return reply.to_string() };
    let mut texts = Vec::new();
    let mut items = items.into_iter();
    while let Some(item) = items.next() {
        if item.as_bytes().is_some_and(|word| LEFT_OUT.contains(&word)) {
            items.next();
        } else {
            texts.push(comparable(item));
        }
    }
    format!("[{}]", texts.join(" "))
}
