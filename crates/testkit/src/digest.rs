//! All that a server holds, as texts to be compared: what a log was replayed into, a file loaded into, or a replica has.
//!
//! Made of the replies of ordinary commands, so any server of the family can be asked, and keys have the same text wherever
//! they hold the same: elements that have no order are put into one, and what no log or file says is left out (when a
//! consumer was last seen, how a stream's tree looks).

use std::collections::BTreeMap;

use evenkeel_resp::value::Value;

use crate::Server;
use crate::transcript::{Target, target};

/// Databases of a server, if nothing else is said.
const DATABASES: usize = 16;

/// Words before what is not compared. A group's lag is made of other fields, and Redis 7.0 makes it in another way than 7.2.
const LEFT_OUT: &[&[u8]] =
    &[b"seen-time", b"active-time", b"inactive", b"lag", b"radix-tree-keys", b"radix-tree-nodes"];

/// Databases and keys, with what is there.
pub type Digest = BTreeMap<(usize, Vec<u8>), String>;

/// Asks a server for all that it holds.
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

/// When the keys expire that do.
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

/// How two servers differ in what DEBUG DIGEST does not sum up: when keys expire, and where both are ours, which tell each
/// other so much, what groups of streams have.
pub fn difference_beyond_sum(one: &Server, other: &Server) -> Option<String> {
    /// To ask key by key takes half a second for so many.
    const KEYS_MAX: u64 = 5_000;
    let is_ours = |server: &Server| server.program().peer().is_none();
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

/// The first keys that differ, as one text; `None`: all is the same.
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

/// The beginning and the end of a text that is long.
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

/// `None`: it has expired meanwhile.
fn text_of(target: &mut dyn Target, key: &[u8]) -> Option<String> {
    let kind = ask(target, &[b"TYPE", key]).to_string();
    let deadline = ask(target, &[b"PEXPIRETIME", key]);
    let value = match kind.as_str() {
        "string" => ask(target, &[b"GET", key]).to_string(),
        "list" => ask(target, &[b"LRANGE", key, b"0", b"-1"]).to_string(),
        "set" => sorted(ask(target, &[b"SMEMBERS", key]), 1),
        "zset" => scores(ask(target, &[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"])),
        "hash" => hash(target, key),
        "stream" => comparable(ask(target, &[b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"])),
        "none" => return None,
        other => panic!("a key of type {other}"),
    };
    Some(format!("{kind} until {deadline}: {value}"))
}

/// The items in groups of `step`, in the order of their texts.
fn sorted(reply: Value, step: usize) -> String {
    let items = reply.as_items().expect("an array");
    let text = |group: &[Value]| group.iter().map(Value::to_string).collect::<Vec<_>>().join(" ");
    let mut groups: Vec<String> = items.chunks(step).map(text).collect();
    groups.sort();
    groups.join(", ")
}

/// Members and scores, which servers print in different ways. Whether a zero has a sign depends on how the set has grown.
fn scores(reply: Value) -> String {
    let items = reply.as_items().expect("an array").chunks(2);
    let text = |pair: &[Value]| {
        let score = pair[1].as_bytes().and_then(|score| std::str::from_utf8(score).ok()?.parse::<f64>().ok());
        format!("{} {}", pair[0], score.expect("a score is a number") + 0.0)
    };
    items.map(text).collect::<Vec<_>>().join(", ")
}

/// Fields and values, and the deadlines of the fields where the server knows such.
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

/// A reply without what is not compared.
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
