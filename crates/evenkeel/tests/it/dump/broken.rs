//! Payloads with a single byte changed, with a matching checksum and without.
//!
//! An accepted payload must give a valid value: every command that reads it answers, some that write to it
//! do, and its DUMP is accepted again with the same content.

use evenkeel_resp::value::Value;
use evenkeel_testkit::payload::reseal;
use evenkeel_testkit::{Client, Program, Reference, Server};

use super::content::{Depth, content};
use super::samples::{Needs, few};
use super::{Args, build, dump, restore};
use crate::{program, start};

/// Without it, Redis accepts payloads that crash it.
const STRICT: [&str; 2] = ["--sanitize-dump-payload", "yes"];

/// Payloads sent in a batch.
const BATCH: usize = 256;

/// Longest payload of the corpus, in bytes.
const PAYLOAD_MAX: usize = 1_200;

/// Up to this length, in bytes, each byte of a payload is changed in three ways; beyond, in a single way.
const SHORT: usize = 150;

/// Payloads of all available servers, of all types.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let programs = [Some(program()), Program::find(Reference::Redis), Program::find(Reference::Valkey)];
    let mut corpus: Vec<(String, Vec<u8>)> = Vec::new();
    for program in programs.into_iter().flatten() {
        let server = Server::start(&program, &[]);
        let mut client = server.connect();
        for sample in few() {
            if sample.needs == Needs::FieldExpiry && program.reference() == Some(Reference::Redis) {
                continue;
            }
            build(&mut client, &sample);
            let payload = dump(&mut client, "v");
            if payload.len() <= PAYLOAD_MAX && !corpus.iter().any(|(_, other)| *other == payload) {
                corpus.push((sample.name, payload));
            }
        }
    }
    corpus
}

#[test]
fn the_checksum_equals_that_of_servers() {
    for (name, payload) in corpus() {
        assert_eq!(reseal(payload.clone()), payload, "{name}");
    }
}

#[test]
fn a_wrong_checksum_is_always_detected() {
    let mut server = start(&STRICT);
    let mut client = server.connect();
    let mut all = 0;
    for (name, payload) in corpus() {
        let broken: Vec<Vec<u8>> = (0..payload.len())
            .map(|at| {
                let mut broken = payload.clone();
                broken[at] ^= 1 << (at % 8);
                broken
            })
            .collect();
        all += broken.len();
        for (at, reply) in restore_all(&mut client, &broken).iter().enumerate() {
            let expected = "(error) ERR DUMP payload version or checksum are wrong";
            assert!(expected.ends_with(text(reply)), "{name}, byte {at}: {reply}");
        }
    }
    assert_eq!(client.run("DBSIZE").as_int(), Some(0));
    assert!(all > 10_000, "{all} payloads");
    server.assert_healthy();
}

fn text(reply: &Value) -> &str {
    match reply {
        Value::Error(text) => std::str::from_utf8(text).expect("an error is text"),
        _ => "no error",
    }
}

/// Restores all payloads under unused keys, `k0` and so on.
fn restore_all(client: &mut Client, payloads: &[Vec<u8>]) -> Vec<Value> {
    let command = |(number, payload): (usize, &Vec<u8>)| {
        let key = format!("k{number}").into_bytes();
        vec![b"RESTORE".to_vec(), key, b"0".to_vec(), payload.clone()]
    };
    let commands: Vec<Args> = payloads.iter().enumerate().map(command).collect();
    client.pipeline(&commands)
}

#[test]
fn a_payload_with_a_changed_byte_is_refused_or_restores_a_valid_value() {
    let mut server = start(&STRICT);
    let mut client = server.connect();
    let (mut all, mut accepted) = (0, 0);
    for (name, payload) in corpus() {
        let body = payload.len() - 8;
        let ways = |at: usize| {
            let all = [!payload[at], payload[at] ^ 1, payload[at] ^ 0x80];
            let ways = if payload.len() <= SHORT { 0..3 } else { at % 3..at % 3 + 1 };
            all[ways].iter().map(move |byte| (at, *byte)).collect::<Vec<_>>()
        };
        let changes = (0..body).flat_map(ways);
        let broken: Vec<Vec<u8>> = changes
            .map(|(at, byte)| {
                let mut broken = payload.clone();
                broken[at] = byte;
                reseal(broken)
            })
            .collect();
        for batch in broken.chunks(BATCH) {
            let replies = restore_all(&mut client, batch);
            for (number, reply) in replies.iter().enumerate() {
                match text(reply) {
                    "no error" => {
                        assert_eq!(reply.to_string(), "OK");
                        accepted += 1;
                        use_value(&mut client, &format!("k{number}"), &name);
                    }
                    error => assert!(
                        ["ERR Bad data format", "ERR DUMP payload version or checksum are wrong"]
                            .contains(&error),
                        "{name}: {error}"
                    ),
                }
                all += 1;
            }
            client.run("FLUSHALL");
        }
    }
    println!("{accepted} of {all} accepted");
    assert!(all > 15_000 && accepted > all / 10 && accepted < all / 3 * 2, "{accepted} of {all} accepted");
    if program().reference().is_none() {
        assert_eq!(server.info("unexpected_error_replies"), "0");
    }
    server.assert_healthy();
}

/// Commands that read, by type; `%` is the key.
#[rustfmt::skip]
const READERS: [(&str, &[&str]); 6] = [
    ("string", &["STRLEN %", "GETRANGE % 1 -1", "BITCOUNT %", "GETBIT % 100", "BITPOS % 1", "PFCOUNT %",
                 "BITFIELD_RO % GET u8 3"]),
    ("list", &["LLEN %", "LINDEX % 0", "LINDEX % -1", "LPOS % x", "LPOS % 1 RANK -1 COUNT 0",
               "LRANGE % 1 -2", "SORT % ALPHA"]),
    ("set", &["SCARD %", "SISMEMBER % 1", "SMISMEMBER % 1 x", "SRANDMEMBER % -20", "SRANDMEMBER % 3",
              "SSCAN % 0 COUNT 1000", "SINTER % %", "SDIFF % nothing", "SORT % ALPHA"]),
    ("zset", &["ZCARD %", "ZCOUNT % -inf +inf", "ZRANGE % 0 -1 REV", "ZRANGE % -inf +inf BYSCORE",
               "ZRANGE % - + BYLEX", "ZRANK % 1", "ZSCORE % 1", "ZLEXCOUNT % - +",
               "ZRANDMEMBER % -20 WITHSCORES", "ZSCAN % 0 COUNT 1000",
               "ZUNION 2 % % WITHSCORES", "ZREVRANGEBYSCORE % 5 (1"]),
    ("hash", &["HLEN %", "HKEYS %", "HVALS %", "HGET % 1", "HMGET % 1 x", "HSTRLEN % 1", "HEXISTS % 1",
               "HRANDFIELD % -20 WITHVALUES", "HSCAN % 0 COUNT 1000"]),
    ("stream", &["XLEN %", "XREVRANGE % + -", "XRANGE % 3 + COUNT 2", "XINFO STREAM % FULL COUNT 0",
                 "XINFO GROUPS %", "XREAD COUNT 3 STREAMS % 0"]),
];

/// Commands that write, by type; they run last on a key.
#[rustfmt::skip]
const WRITERS: [(&str, &[&str]); 6] = [
    ("string", &["APPEND % tail", "SETRANGE % 3 xyz", "SETBIT % 77 1", "GETDEL %"]),
    ("list", &["LPUSH % a", "RPUSH % b", "LINSERT % BEFORE a c", "LSET % 1 d", "LREM % 1 a", "RPOP %",
               "LTRIM % 1 -2", "LPOP % 1000000"]),
    ("set", &["SADD % 1 x 99999999999", "SREM % x", "SPOP %", "SMOVE % other 1", "SPOP % 1000000"]),
    ("zset", &["ZADD % 1 x 2 y", "ZINCRBY % 5 x", "ZREM % y", "ZPOPMIN %", "ZREMRANGEBYSCORE % 0 5",
               "ZPOPMAX % 1000000"]),
    ("hash", &["HSET % 1 x", "HINCRBY % n 5", "HDEL % 1", "HPEXPIRE % 1000000 FIELDS 1 n",
               "HPERSIST % FIELDS 1 n", "HDEL % n"]),
    ("stream", &["XADD % * a 1", "XGROUP CREATE % new 0", "XREADGROUP GROUP new me COUNT 5 STREAMS % >",
                 "XTRIM % MAXLEN 2", "XAUTOCLAIM % new you 0 0", "XGROUP DESTROY % new", "XDEL % 1000-0"]),
];

/// Uses an accepted value in every way.
#[track_caller]
fn use_value(client: &mut Client, key: &str, name: &str) {
    let kind = client.call(&["TYPE", key]).to_string();
    if kind == "none" {
        return; // a hash whose fields have all expired
    }
    let of_kind = |table: &[(&str, &'static [&'static str])]| {
        let lines = table.iter().find(|(of, _)| *of == kind).expect("a type of ours").1;
        lines
            .iter()
            .map(|line| {
                line.split(' ').map(|word| if word == "%" { key } else { word }.into()).collect::<Args>()
            })
            .collect::<Vec<_>>()
    };
    let general = ["OBJECT ENCODING", "MEMORY USAGE", "OBJECT REFCOUNT"];
    let general = general.iter().map(|line| line.split(' ').chain([key]).map(Into::into).collect::<Args>());
    let commands: Vec<Args> = general.chain(of_kind(&READERS)).collect();
    for (reply, args) in client.pipeline(&commands).iter().zip(&commands) {
        let is_no_hll = args[0] == b"PFCOUNT";
        assert!(!reply.is_error() || is_no_hll, "{name}: {reply} to {}", evenkeel_testkit::words::join(args));
    }
    let depth = if program().reference() == Some(Reference::Redis) { Depth::Common } else { Depth::Newest };
    let before = content(client, key, depth);
    let payload = dump(client, key);
    assert_eq!(restore(client, "again", &payload).to_string(), "OK", "{name}");
    // A field may have expired in between.
    let (again, now) = (content(client, "again", depth), content(client, key, depth));
    assert!(again == before || again == now, "{name}:\n{before:?}\n{again:?}");
    assert_eq!(client.call(&["COPY", key, "copied", "REPLACE"]).to_string(), ":1", "{name}");
    let writes = of_kind(&WRITERS);
    for (reply, args) in client.pipeline(&writes).iter().zip(&writes) {
        let is_bug = matches!(reply, Value::Error(text) if text.starts_with(b"ERR internal"));
        assert!(!is_bug, "{name}: {reply} to {}", evenkeel_testkit::words::join(args));
    }
    let copied = content(client, "copied", depth);
    assert!(copied == again || copied == now, "{name}: a write has reached a copy");
}
