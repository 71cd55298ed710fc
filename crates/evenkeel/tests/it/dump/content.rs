//! A key's content as clients see it, in lines of text: two keys are equal if their lines are.

use evenkeel_resp::value::Value;
use evenkeel_testkit::Client;

/// Fields of XINFO about the layout, not the content.
const LAYOUT: [&[u8]; 2] = [b"radix-tree-keys", b"radix-tree-nodes"];

/// Fields that Redis 7.0 does not show.
const NEWER: [&[u8]; 1] = [b"active-time"];

/// Scope of the comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// Everything that all servers show.
    Common,
    /// Also expiries of fields and active times of consumers.
    Newest,
}

/// Returns the lines, none for a missing key. An error reply of a reading command is a line as well.
pub(super) fn content(client: &mut Client, key: &str, depth: Depth) -> Vec<String> {
    let kind = client.call(&["TYPE", key]).to_string();
    let mut lines = match kind.as_str() {
        "none" => return Vec::new(),
        "string" => vec![client.call(&["GET", key]).to_string()],
        "list" => each(&client.call(&["LRANGE", key, "0", "-1"]), 1),
        "set" => sorted(each(&client.call(&["SMEMBERS", key]), 1)),
        "zset" => zset(&client.call(&["ZRANGE", key, "0", "-1", "WITHSCORES"])),
        "hash" => hash(client, key, depth),
        "stream" => stream(client, key, depth),
        "array" => vec![client.call(&["ARSCAN", key, "0", "18446744073709551614"]).to_string()],
        other => panic!("{key} is {other}"),
    };
    lines.push(kind);
    lines
}

/// Servers print the same score with more or fewer digits.
fn zset(flat: &Value) -> Vec<String> {
    let score = |text: &Value| match text.as_bytes().map(std::str::from_utf8) {
        Some(Ok(text)) => text.parse::<f64>().map_or(text.to_owned(), |score| format!("{score:?}")),
        _ => text.to_string(),
    };
    let line = |pair: &[Value]| format!("{} {}", pair[0], score(&pair[1]));
    flat.as_items().map_or(vec![flat.to_string()], |items| items.chunks(2).map(line).collect())
}

fn hash(client: &mut Client, key: &str, depth: Depth) -> Vec<String> {
    let flat = client.call(&["HGETALL", key]);
    if depth == Depth::Common {
        return sorted(each(&flat, 2));
    }
    let names = flat.as_items().unwrap_or_default().chunks(2).filter_map(|pair| pair[0].as_bytes());
    let names: Vec<&[u8]> = names.collect();
    let count = names.len().to_string();
    let times = client
        .call(&[&[&b"HPEXPIRETIME"[..], key.as_bytes(), b"FIELDS", count.as_bytes()], &names[..]].concat());
    let times = each(&times, 1).into_iter();
    sorted(each(&flat, 2).into_iter().zip(times).map(|(pair, time)| format!("{pair} until {time}")).collect())
}

fn stream(client: &mut Client, key: &str, depth: Depth) -> Vec<String> {
    let mut lines = each(&client.call(&["XRANGE", key, "-", "+"]), 1);
    let about = client.call(&["XINFO", "STREAM", key, "FULL", "COUNT", "0"]);
    lines.push(without(&about, |name| {
        LAYOUT.contains(&name) || depth == Depth::Common && NEWER.contains(&name)
    }));
    lines
}

/// Formats a reply as text, without some of its fields.
fn without(reply: &Value, is_left_out: impl Fn(&[u8]) -> bool + Copy) -> String {
    let Some(items) = reply.as_items() else { return reply.to_string() };
    let is_out = |at: usize| items[at].as_bytes().is_some_and(is_left_out);
    let kept = (0..items.len()).filter(|at| !(is_out(*at) || *at > 0 && is_out(at - 1)));
    let kept: Vec<String> = kept.map(|at| without(&items[at], is_left_out)).collect();
    format!("[{}]", kept.join(" "))
}

/// Splits a reply's items into lines.
fn each(reply: &Value, per_line: usize) -> Vec<String> {
    match reply.as_items() {
        Some(items) => items.chunks(per_line).map(line).collect(),
        None => vec![reply.to_string()],
    }
}

fn line(items: &[Value]) -> String {
    items.iter().map(Value::to_string).collect::<Vec<_>>().join(" ")
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort_unstable();
    lines
}
