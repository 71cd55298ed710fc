//! Memory of removed values: a script or a transaction that fills and deletes a key repeatedly uses the
//! memory of a single value, and values being freed cause no refusal or eviction by `maxmemory`.

use evenkeel_testkit::{Client, Server};

use crate::start;

const MIB: u64 = 1 << 20;

/// Rounds of about a MiB each.
const ROUNDS: usize = 300;

/// Memory that a round may leave behind: the queue of the lazy-free thread, and the allocator's reserve.
const GROWTH_MAX: u64 = 110 * MIB;

/// Scripts of a round: `items` are 5,000 strings of some 200 bytes, `pairs` the same with scores, `big` has a
/// MiB.
const SCRIPTS: [(&str, &str); 14] = [
    ("DEL of a list", "redis.call('RPUSH', k, unpack(items)) redis.call('DEL', k)"),
    ("UNLINK of a list", "redis.call('RPUSH', k, unpack(items)) redis.call('UNLINK', k)"),
    ("DEL of a set", "redis.call('SADD', k, unpack(items)) redis.call('DEL', k)"),
    ("DEL of a hash", "redis.call('HSET', k, unpack(pairs)) redis.call('DEL', k)"),
    ("DEL of a sorted set", "redis.call('ZADD', k, unpack(pairs)) redis.call('DEL', k)"),
    ("DEL of a string", "redis.call('SET', k, big) redis.call('APPEND', k, big) redis.call('DEL', k)"),
    ("SET over a string", "redis.call('SET', k, big)"),
    (
        "SET over a list",
        "redis.call('RPUSH', k, unpack(items)) redis.call('SET', k, 'x') redis.call('DEL', k)",
    ),
    ("RENAME over a list", "redis.call('RPUSH', KEYS[2], unpack(items)) redis.call('RENAME', KEYS[2], k)"),
    ("FLUSHDB", "redis.call('RPUSH', k, unpack(items)) redis.call('FLUSHDB')"),
    ("LTRIM", "redis.call('RPUSH', k, unpack(items)) redis.call('LTRIM', k, 4999, -1)"),
    ("LPOP of many", "redis.call('RPUSH', k, unpack(items)) redis.call('LPOP', k, 4999)"),
    ("SPOP of many", "redis.call('SADD', k, unpack(items)) redis.call('SPOP', k, 4999)"),
    ("ZREMRANGEBYRANK", "redis.call('ZADD', k, unpack(pairs)) redis.call('ZREMRANGEBYRANK', k, 0, -2)"),
];

#[test]
fn a_script_holds_one_deleted_value_at_a_time() {
    for (name, round) in SCRIPTS {
        let server = start(&["--threads", "2", "--save", ""]);
        let before = server.rss();
        let script = format!(
            "local k, items, pairs = KEYS[1], {{}}, {{}} \
             for i = 1, 5000 do items[i] = 'item' .. i .. string.rep('x', 190) end \
             for i = 1, 2500 do pairs[2 * i - 1] = i pairs[2 * i] = items[i] .. items[i] end \
             local big = string.rep('x', {MIB}) \
             for r = 1, {ROUNDS} do {round} end return 1"
        );
        let reply = server.connect().call(&["EVAL", &script, "2", "{k}1", "{k}2"]);
        assert_eq!(reply.to_string(), ":1", "{name}");
        let growth = server.rss().saturating_sub(before);
        assert!(growth < GROWTH_MAX, "{name}: {} MiB more", growth / MIB);
    }
}

/// A table that grows and shrinks within a script is replaced each time, and the old table is freed.
#[test]
fn a_script_holds_few_replaced_tables() {
    let server = start(&["--threads", "2", "--save", ""]);
    let before = server.rss();
    let script = "for r = 1, 60 do for i = 1, 50000 do redis.call('SET', '{x}' .. i, 'v') end \
                  for i = 1, 50000 do redis.call('DEL', '{x}' .. i) end end return redis.call('DBSIZE')";
    assert_eq!(server.connect().call(&["EVAL", script, "0"]).to_string(), ":0");
    let growth = server.rss().saturating_sub(before);
    assert!(growth < 50 * MIB, "{} MiB more", growth / MIB);
}

#[test]
fn a_transaction_holds_one_deleted_value_at_a_time() {
    let server = start(&["--threads", "2", "--save", ""]);
    let mut client = server.connect();
    let script = "local items = {} for i = 1, 5000 do items[i] = 'item' .. i .. string.rep('x', 190) end \
                  return redis.call('RPUSH', KEYS[1], unpack(items))";
    // `RPUSH` writes to a copy made by `COPY`, so that the transaction's queue stays small.
    client.call(&["EVAL", script, "1", "{k}source"]);
    let before = server.rss();
    client.run("MULTI");
    for _ in 0..ROUNDS {
        client.run("SORT {k}source BY none STORE {k}copy");
        client.run("DEL {k}copy");
    }
    let replies = client.run("EXEC").to_string();
    assert_eq!(replies.matches(":5000").count(), ROUNDS);
    let growth = server.rss().saturating_sub(before);
    assert!(growth < GROWTH_MAX, "{} MiB more", growth / MIB);
}

/// Ways to write a value of about 1 or 5 MiB, and to remove or replace it.
type Round = fn(&mut Client, &[u8]);

fn list(client: &mut Client) {
    let item = [b'x'; 200];
    let mut push: Vec<&[u8]> = vec![b"RPUSH", b"k"];
    push.resize(5_002, &item);
    assert_eq!(client.call(&push).to_string(), ":5000");
}

fn ok(client: &mut Client, args: &[&[u8]]) {
    let reply = client.call(args);
    assert!(!reply.is_error(), "{}: {reply}", String::from_utf8_lossy(args[0]));
}

const ROUNDS_AT_LIMIT: [(&str, u64, Round); 9] = [
    ("RPUSH, DEL", 16, |client, _| {
        list(client);
        ok(client, &[b"DEL", b"k"]);
    }),
    ("RPUSH, UNLINK", 16, |client, _| {
        list(client);
        ok(client, &[b"UNLINK", b"k"]);
    }),
    ("RPUSH, RENAME", 16, |client, _| {
        list(client);
        ok(client, &[b"RENAME", b"k", b"other"]);
    }),
    ("RPUSH, SET", 16, |client, _| {
        list(client);
        ok(client, &[b"SET", b"k", b"v"]);
        ok(client, &[b"DEL", b"k"]);
    }),
    ("SET", 40, |client, value| ok(client, &[b"SET", b"k", value])),
    ("SETEX", 40, |client, value| ok(client, &[b"SETEX", b"k", b"100", value])),
    ("MSET", 40, |client, value| ok(client, &[b"MSET", b"k", value])),
    ("EVAL", 40, |client, value| {
        ok(client, &[b"EVAL", b"return redis.call('SET', KEYS[1], ARGV[1])", b"1", b"k", value]);
    }),
    ("MULTI", 40, |client, value| {
        ok(client, &[b"MULTI"]);
        ok(client, &[b"SET", b"k", value]);
        let reply = client.run("EXEC").to_string();
        assert_eq!(reply, "[OK]");
    }),
];

fn start_with_limit(mib: u64, policy: &str) -> Server {
    let limit = format!("{mib}mb");
    let args = ["--threads", "2", "--save", "", "--maxmemory", &limit, "--maxmemory-policy", policy];
    let server = start(&args);
    let mut client = server.connect();
    (0..1_000).for_each(|key| ok(&mut client, &[b"SET", format!("small{key}").as_bytes(), b"v"]));
    server
}

#[test]
fn memory_being_freed_refuses_no_write_and_evicts_no_key() {
    let value = vec![b'v'; 5 << 20];
    for policy in ["noeviction", "allkeys-lru"] {
        for (name, mib, round) in ROUNDS_AT_LIMIT {
            println!("{name}, {policy}");
            let server = start_with_limit(mib, policy);
            let mut client = server.connect();
            (0..200).for_each(|_| round(&mut client, &value));
            assert_eq!(server.info("evicted_keys"), "0", "{name}");
        }
    }
}

/// Pages of large values go back to the system although other values lie in the same chunks.
#[test]
fn pages_between_large_values_go_back() {
    for shares in ["yes", "no"] {
        let server = start(&["--threads", "2", "--save", "", "--shared-memory", shares]);
        let mut client = server.connect();
        let before = server.rss();
        let fill = "local v = string.rep('x', 100000) for i = 1, 3000 do redis.call('SET', i, v) end";
        client.call(&["EVAL", fill, "0"]);
        assert!(server.rss() - before > 280 * MIB);
        // The control thread sees the peak.
        std::thread::sleep(std::time::Duration::from_millis(500));
        let remove = "for i = 1, 3000 do if i % 3 > 0 then redis.call('DEL', i) end end";
        client.call(&["EVAL", remove, "0"]);
        let taken = || server.rss().saturating_sub(before) / MIB;
        crate::wait_until("two thirds of the pages are back", || taken() < 140);
        assert!(taken() > 90, "the other pages are mapped");
    }
}
