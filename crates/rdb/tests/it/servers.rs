//! Real servers: their payloads are read here with the values that they show, and they restore payloads
//! written here.

use std::collections::BTreeMap;

use evenkeel_rdb::{Decoder, Slice, Version};
use evenkeel_testkit::random::{Random, fresh_seed};
use evenkeel_testkit::{Client, Program, Reference, Server};

use crate::ask::ask;
use crate::model::{Score, Value, hex, open, read, seal, styles};
use crate::{broken, random};

/// Settings that move a bound between two forms. Some servers lack some of them.
const BOUNDS: [&str; 8] = [
    "hash-max-listpack-entries",
    "set-max-intset-entries",
    "set-max-listpack-entries",
    "zset-max-listpack-entries",
    "zset-max-listpack-value",
    "list-max-listpack-size",
    "stream-node-max-entries",
    "stream-node-max-bytes",
];

fn start(reference: Reference) -> Option<Server> {
    let program = Program::oracle(reference)?;
    Some(Server::start(&program, &["--sanitize-dump-payload", "yes", "--enable-debug-command", "yes"]))
}

/// The newest version that the reference server reads.
pub(crate) fn newest(reference: Reference) -> Version {
    match reference {
        Reference::Redis => Version::V10,
        Reference::Redis8 => Version::V11,
        Reference::Valkey => Version::V80,
    }
}

fn dump(client: &mut Client, key: &str) -> Vec<u8> {
    client.call(&["DUMP", key]).as_bytes().unwrap_or_else(|| panic!("no {key}")).to_vec()
}

#[track_caller]
fn restore(client: &mut Client, key: &str, payload: &[u8]) {
    let reply = client.call(&[b"RESTORE", key.as_bytes(), b"0", payload, b"REPLACE"]);
    assert_eq!(reply.as_bytes(), Some(&b"OK"[..]), "{reply} to {}", hex(payload));
}

#[test]
fn values_are_exchanged_with_redis() {
    both_ways(Reference::Redis);
}

#[test]
fn values_are_exchanged_with_redis_8() {
    both_ways(Reference::Redis8);
}

#[test]
fn values_are_exchanged_with_valkey() {
    both_ways(Reference::Valkey);
}

fn both_ways(reference: Reference) {
    let Some(server) = start(reference) else { return };
    let mut client = server.connect();
    let seed = fresh_seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    for _ in 0..150 {
        let value = random::value(&mut random);
        if matches!(value, Value::Array(..)) {
            continue; // neither server knows arrays
        }
        for version in [Version::V10, Version::V11, Version::V80]
            .into_iter()
            .filter(|version| *version <= newest(reference))
        {
            for style in styles(version) {
                let Some(payload) = seal(&value, style) else { continue };
                restore(&mut client, "k", &payload);
                let expected = value.clone().in_version(version);
                assert!(ask(&mut client, "k") == expected, "{style:?}: {expected:?}");
                assert!(open(&dump(&mut client, "k")) == expected, "{style:?}: {expected:?}");
            }
        }
    }
}

/// More elements than the 16 bits of a block's header count, lengths of 32 bits, and many nodes.
#[test]
fn large_values_pass_both_ways() {
    let word = |n: u32| format!("element {:x}", n.wrapping_mul(0x9E37_79B1)).into_bytes();
    let pair = |n: u32| (word(n), (word(!n), None));
    let values = [
        Value::String((0..3_000_000u32).map(|n| (n.wrapping_mul(n) >> 9) as u8).collect()),
        Value::List((0..200_000).map(word).collect()),
        Value::Set((0..70_000).map(word).collect()),
        Value::Set((0..70_000u32).map(|n| n.to_string().into_bytes()).collect()),
        Value::SortedSet((0..40_000).map(|n| (word(n), Score(f64::from(n) / 8.0))).collect()),
        Value::Hash((0..40_000).map(pair).collect()),
    ];
    for reference in [Reference::Redis, Reference::Redis8, Reference::Valkey] {
        let Some(server) = start(reference) else { continue };
        let mut client = server.connect();
        for value in &values {
            for style in styles(newest(reference)) {
                restore(&mut client, "k", &seal(value, style).expect("every version has a form for it"));
                assert!(ask(&mut client, "k") == *value, "{style:?}");
                assert!(open(&dump(&mut client, "k")) == *value, "{style:?}");
            }
        }
    }
}

#[test]
fn dumps_of_redis_match_its_replies() {
    dumped_is_shown(Reference::Redis);
}

#[test]
fn dumps_of_redis_8_match_its_replies() {
    dumped_is_shown(Reference::Redis8);
}

#[test]
fn dumps_of_valkey_match_its_replies() {
    dumped_is_shown(Reference::Valkey);
}

fn dumped_is_shown(reference: Reference) {
    let Some(server) = start(reference) else { return };
    let mut client = server.connect();
    let seed = fresh_seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut types: BTreeMap<u8, usize> = BTreeMap::new();
    let all: &[u8] = match reference {
        Reference::Redis => &[0, 2, 4, 5, 11, 16, 17, 18, 19],
        // A hash that had a field with an expiry keeps a type with expiries.
        Reference::Redis8 => &[0, 2, 4, 5, 11, 17, 18, 20, 21, 24, 25],
        Reference::Valkey => &[0, 2, 4, 5, 11, 16, 17, 18, 20, 21, 22],
    };
    for round in 0..400 {
        // Rarely, a type is still missing then.
        if round >= 40 && types.len() >= all.len() {
            break;
        }
        client.run("FLUSHALL");
        for bound in BOUNDS {
            client.call(&["CONFIG", "SET", bound, &(1 + random.below(200)).to_string()]); // possibly refused
        }
        for _ in 0..150 {
            let args = command(&mut random);
            client.call(&args); // possibly an error reply
        }
        for key in ["string", "list", "set", "integers", "zset", "hash", "stream"] {
            if client.call(&["EXISTS", key]).as_int() == Some(1) {
                let payload = dump(&mut client, key);
                *types.entry(payload[0]).or_default() += 1;
                let (shown, read) = (ask(&mut client, key), open(&payload));
                assert!(shown == read, "{shown:?}\n{read:?}\n{}", hex(&payload));
            }
        }
    }
    println!("types seen: {types:?}");
    assert_eq!(types.keys().copied().collect::<Vec<_>>(), all);
}

/// A command on any of seven keys, each with a type of its own.
fn command(random: &mut Random) -> Vec<Vec<u8>> {
    let text = |word: &str| word.as_bytes().to_vec();
    let small = |random: &mut Random| random.below(120).to_string().into_bytes();
    let element = |random: &mut Random| match random.below(4) {
        0 => random.between(i64::MIN, i64::MAX).to_string().into_bytes(),
        1 if random.chance(20) => vec![b'l'; random.below(9_000)],
        1 => random.bytes(80),
        _ => small(random),
    };
    let mut args = match random.below(15) {
        0 => vec![text("SET"), text("string")],
        1 => vec![text("APPEND"), text("string")],
        2 => vec![text("RPUSH"), text("list"), element(random)],
        3 => vec![text("LPUSH"), text("list"), element(random)],
        4 => vec![text("LREM"), text("list"), text("0")],
        5 => vec![text("SADD"), text("set"), small(random)],
        6 => vec![text("SREM"), text("set")],
        7 => vec![text("ZADD"), text("zset"), small(random)],
        8 => vec![text("ZINCRBY"), text("zset"), text("0.3")],
        9 => vec![text("HSET"), text("hash"), small(random)],
        10 => {
            let far = random.between(4_000_000_000_000, 5_000_000_000_000).to_string().into_bytes();
            vec![text("HPEXPIREAT"), text("hash"), far, text("FIELDS"), text("1"), small(random)]
        }
        11 => {
            return vec![
                text("SADD"),
                text("integers"),
                small(random),
                random.between(0, 1 << 33).to_string().into_bytes(),
            ];
        }
        _ => return stream_command(random),
    };
    if args[0] != b"HPEXPIREAT" {
        args.push(element(random));
    }
    args
}

fn stream_command(random: &mut Random) -> Vec<Vec<u8>> {
    let id = |random: &mut Random| format!("{}-{}", random.below(40), random.below(3));
    let (a, b) = (id(random), random.below(1_000));
    let line = match random.below(16) {
        0..5 => format!("XADD stream * name {b} other {}", b / 7),
        5 => format!("XADD stream {a} single {b}"),
        6 => format!("XADD stream {}-0 name {b} other x name y", random.below(60)),
        7 => format!("XDEL stream {a} {}", id(random)),
        8 => format!("XTRIM stream MAXLEN {}", random.below(40)),
        9 => format!("XGROUP CREATE stream group{} {a} MKSTREAM", b % 3),
        10 | 11 => {
            format!("XREADGROUP GROUP group{} consumer{} COUNT {} STREAMS stream >", b % 3, b % 5, b % 7 + 1)
        }
        12 => format!("XACK stream group{} {a} {}", b % 3, id(random)),
        13 => format!("XGROUP CREATECONSUMER stream group{} consumer{}", b % 3, b % 5),
        14 => format!("XCLAIM stream group{} consumer{} 0 {a} FORCE TIME {b} RETRYCOUNT {b}", b % 3, b % 5),
        _ => format!("XSETID stream {}-0 ENTRIESADDED {b} MAXDELETEDID {}-0", b % 60, b % 50),
    };
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

#[test]
fn redis_restores_accepted_broken_payloads() {
    accepted_is_restored(Reference::Redis);
}

#[test]
fn valkey_restores_accepted_broken_payloads() {
    accepted_is_restored(Reference::Valkey);
}

/// An accepted payload is also a value to other servers, even if they would refuse the same bytes; but the
/// oracles know no arrays.
fn accepted_is_restored(reference: Reference) {
    const BATCH: usize = 100;
    let Some(mut server) = start(reference) else { return };
    let mut client = server.connect();
    let (mut batch, mut restored): (Vec<Value>, usize) = (Vec::new(), 0);
    broken::with_one_byte_changed(|golden, body| {
        if let Ok(value) = read(Decoder::new(Slice::new(body), golden.version()))
            && !expires_soon(&value)
            && !matches!(value, Value::Array(..))
        {
            batch.push(value);
        }
        if batch.len() == BATCH {
            restored += restore_all(&mut client, newest(reference), &batch);
            batch.clear();
        }
    });
    restored += restore_all(&mut client, newest(reference), &batch);
    assert!(restored > 5_000, "{restored}");
    server.assert_healthy();
}

/// Whether some field may expire before the server shows it.
fn expires_soon(value: &Value) -> bool {
    let Value::Hash(hash) = value else { return false };
    hash.values().any(|(_, expires)| expires.is_some_and(|time| time < 1_990_000_000_000))
}

fn restore_all(client: &mut Client, version: Version, batch: &[Value]) -> usize {
    let payloads = batch.iter().enumerate().filter_map(|(index, value)| {
        let style = styles(version)[index % 3];
        seal(value, style).map(|payload| (index, payload))
    });
    let payloads: Vec<(usize, Vec<u8>)> = payloads.collect();
    let commands: Vec<Vec<Vec<u8>>> = payloads
        .iter()
        .map(|(index, payload)| {
            let key = format!("k{index}").into_bytes();
            vec![b"RESTORE".to_vec(), key, b"0".to_vec(), payload.clone(), b"REPLACE".to_vec()]
        })
        .collect();
    for (reply, (index, payload)) in client.pipeline(&commands).iter().zip(&payloads) {
        assert_eq!(reply.as_bytes(), Some(&b"OK"[..]), "{reply}: {:?}, {}", batch[*index], hex(payload));
    }
    for (index, _) in payloads.iter().step_by(7) {
        let expected = batch[*index].clone().in_version(version);
        assert_eq!(ask(client, &format!("k{index}")), expected);
    }
    payloads.len()
}
