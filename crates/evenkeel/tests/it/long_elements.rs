//! Elements too long to be copied into a reply: the client receives the elements as they were when the
//! command ran, even if they change before they are sent.

use evenkeel_resp::value::Value;
use evenkeel_testkit::{Client, Server};

use crate::start;

/// Longer than a copied element, and longer than a socket's buffer.
const LENGTHS: [usize; 2] = [17_000, 6_000_000];

fn long(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ salt).collect()
}

/// Two long elements between short elements.
fn elements(len: usize) -> Vec<Vec<u8>> {
    vec![b"a".to_vec(), long(len, 1), b"b".to_vec(), long(len + 1, 2)]
}

/// A key of each collection type: `list`, `set`, `zset`, `hash` with long values, `names` with long fields.
fn fill(client: &mut Client, len: usize) {
    client.run("FLUSHALL");
    let mut run = |line: &str, rest: Vec<Vec<u8>>| {
        let words = line.split(' ').map(|word| word.as_bytes().to_vec());
        let reply = client.call(&words.chain(rest).collect::<Vec<_>>());
        assert_eq!(reply.as_int(), Some(4), "{line}");
    };
    run("RPUSH list", elements(len));
    run("SADD set", elements(len));
    let numbered = |number: usize| number.to_string().into_bytes();
    let pairs = |names_first: bool| {
        let pair = move |(number, element)| {
            if names_first { [numbered(number), element] } else { [element, numbered(number)] }
        };
        elements(len).into_iter().enumerate().flat_map(pair).collect()
    };
    run("ZADD zset", pairs(true));
    run("HSET hash", pairs(true));
    run("HSET names", pairs(false));
}

/// A command and the number of long elements in its reply; `None`: any number.
#[rustfmt::skip]
const COMMANDS: [(&str, Option<usize>); 27] = [
    ("LRANGE list 0 -1",           Some(4)), ("LINDEX list 1",             None),
    ("LPOP list 4",                Some(4)), ("RPOP list",                 Some(1)),
    ("LMPOP 1 list LEFT COUNT 9",  Some(4)), ("LMOVE list list RIGHT LEFT", Some(1)),
    ("BLPOP list 0",               Some(1)), ("SMEMBERS set",              Some(4)),
    ("SPOP set",                   None),    ("SPOP set 3",                None),
    ("SPOP set 9",                 Some(4)), ("SRANDMEMBER set",           None),
    ("SRANDMEMBER set 3",          None),    ("SRANDMEMBER set -9",        None),
    ("ZRANGE zset 0 -1",           Some(4)), ("ZRANGE zset 0 -1 REV WITHSCORES", Some(4)),
    ("ZPOPMIN zset 4",             Some(4)), ("ZPOPMAX zset",              Some(1)),
    ("ZMPOP 1 zset MAX COUNT 4",   Some(4)), ("HGET hash 3",               Some(1)),
    ("HMGET hash 0 1 2 nosuch 3",  Some(4)), ("HVALS hash",                Some(4)),
    ("HGETALL hash",               Some(4)), ("HGETALL names",             Some(4)),
    ("HKEYS names",                Some(4)), ("HRANDFIELD hash 4 WITHVALUES", Some(4)),
    ("HSCAN hash 0",               Some(4)),
];

/// All strings in a reply that are among the given elements.
fn found<'r>(reply: &'r Value, elements: &[Vec<u8>]) -> Vec<&'r [u8]> {
    match reply {
        Value::Map(pairs) => pairs
            .iter()
            .flat_map(|(name, value)| [found(name, elements), found(value, elements)].concat())
            .collect(),
        reply => match (reply.as_items(), reply.as_bytes()) {
            (Some(items), _) => items.iter().flat_map(|item| found(item, elements)).collect(),
            (None, Some(bytes)) if elements.iter().any(|element| element == bytes) => vec![bytes],
            _ => Vec::new(),
        },
    }
}

#[track_caller]
fn check(reply: &Value, len: usize, count: Option<usize>, line: &str) {
    let (all, bytes) = (elements(len), total(reply));
    let found = found(reply, &all);
    assert!(count.is_none_or(|count| found.len() == count) && !found.is_empty(), "{line}: {}", found.len());
    // No other element is as long.
    let known: usize = found.iter().map(|element| element.len()).sum();
    assert!(bytes - known < 100, "{line}: {bytes} bytes, of which {known} are known");
}

fn total(reply: &Value) -> usize {
    match reply {
        Value::Map(pairs) => pairs.iter().map(|(name, value)| total(name) + total(value)).sum(),
        reply => match reply.as_items() {
            Some(items) => items.iter().map(total).sum(),
            None => reply.as_bytes().map_or(0, <[u8]>::len),
        },
    }
}

fn check_replies(server: &mut Server, resp3: bool) {
    let mut other = server.connect();
    for len in LENGTHS {
        for (line, count) in COMMANDS {
            fill(&mut other, len);
            let mut slow = if resp3 { server.connect3() } else { server.connect() };
            let words: Vec<&str> = line.split(' ').collect();
            slow.pipeline(&[vec!["PING"]]);
            slow.send_raw(&[b"PING\r\n", line.as_bytes(), b"\r\nPING\r\n"].concat()).expect("connected");
            // After the command has run: a change of the value, then its removal.
            while has_not_run(&mut other, words[0]) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            for change in
                ["LSET list 1 x", "HSET hash 1 x 3 y n m", "HDEL names a b", "ZADD zset 9 a", "SADD set z"]
            {
                other.run(change); // the key may be gone
            }
            other.run("FLUSHALL");
            assert_eq!(slow.read().to_string(), "PONG", "{line}");
            let reply = slow.read();
            check(&reply, len, count, line);
            assert_eq!(slow.read().to_string(), "PONG", "{line}");
        }
    }
    server.assert_healthy();
}

/// Whether the command has not run since the last call.
fn has_not_run(client: &mut Client, name: &str) -> bool {
    let reply = client.run("INFO commandstats");
    let text = String::from_utf8_lossy(reply.as_bytes().expect("a text")).into_owned();
    let ran = text.contains(&format!("cmdstat_{}:", name.to_lowercase()));
    if ran {
        client.run("CONFIG RESETSTAT");
    }
    !ran
}

#[test]
fn replies_keep_the_values_the_command_read() {
    check_replies(&mut start(&[]), false);
}

#[test]
fn replies_in_resp3_keep_the_values_the_command_read() {
    check_replies(&mut start(&[]), true);
}
