//! A snapshot is of a single point in time, however much is written while it is taken.
//!
//! The data are accounts in slots of their own, whose sum no transaction changes, and pairs of keys that are
//! always written together. A server that has loaded a snapshot must have the sum, and no half of a pair. The
//! snapshot is slow, so that writes meet it at every position.

use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};

use evenkeel_resp::value::Value;
use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Client, Random, Server};

use crate::{Ends, start};

const ACCOUNTS: usize = 2_000;
const BALANCE: i64 = 1_000;
const WRITERS: usize = 4;
const SNAPSHOTS: usize = 3;

/// Delay per key in microseconds: makes a snapshot take about a tenth of a second.
const DELAY: &str = "40";

fn account(index: usize) -> String {
    format!("account:{index}") // no hash tag: every account in a slot of its own
}

fn text(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Runs commands as a transaction; `None`: the server is shutting down.
fn together(client: &mut Client, commands: &[Vec<String>]) {
    let mut all = vec![text(&["MULTI"])];
    all.extend_from_slice(commands);
    all.push(text(&["EXEC"]));
    let replies = client.pipeline(&all);
    let results = replies.last().and_then(Value::as_items).expect("EXEC replies an array");
    let error = results.iter().find(|result| result.is_error());
    assert!(error.is_none(), "{all:?}: {results:?}");
}

fn fill(client: &mut Client) {
    let accounts: Vec<_> = (0..ACCOUNTS).map(|n| text(&["SET", &account(n), &BALANCE.to_string()])).collect();
    client.pipeline(&accounts);
}

fn transfer(client: &mut Client, random: &mut Random) {
    let (from, amount) = (random.below(ACCOUNTS), random.between(1, 50).to_string());
    let to = (from + 1 + random.below(ACCOUNTS - 1)) % ACCOUNTS;
    together(client, &[text(&["DECRBY", &account(from), &amount]), text(&["INCRBY", &account(to), &amount])]);
}

fn number(value: &Value) -> i64 {
    let text = value.as_bytes().and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{value} is no number"))
}

/// Waits for a snapshot in progress, asks for another, and waits for it.
fn snapshot(server: &Server, client: &mut Client) {
    let until = Instant::now() + Duration::from_secs(20);
    let before = server.info("rdb_saves");
    let begun = client.run("BGSAVE");
    assert!(!begun.is_error(), "{begun}");
    while server.info("rdb_saves") == before {
        assert!(Instant::now() < until, "no snapshot within 20 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `write` on several connections and takes snapshots meanwhile; `check` gets a server that has loaded a
/// snapshot.
fn snapshots_under(write: impl Fn(&mut Client, &mut Random, usize) + Sync, check: impl Fn(&mut Client)) {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let mut server = start(&["--threads", "2", "--rdb-key-save-delay", DELAY]);
    fill(&mut server.connect());
    let (ends, shared) = (AtomicBool::new(false), &server);
    let loaded = std::thread::scope(|scope| {
        let _ends = Ends(&ends);
        for index in 0..WRITERS {
            let (ends, write) = (&ends, &write);
            scope.spawn(move || {
                let (mut client, mut random) = (shared.connect(), Random::new(seed ^ index as u64));
                while !ends.load(Relaxed) {
                    write(&mut client, &mut random, index);
                }
            });
        }
        let mut operator = shared.connect();
        let loaded: Vec<Server> = (0..SNAPSHOTS)
            .map(|_| {
                std::thread::sleep(Duration::from_millis(100));
                snapshot(shared, &mut operator);
                load(&shared.folder().join("dump.rdb"))
            })
            .collect();
        loaded
    });
    server.assert_healthy();
    for mut other in loaded {
        check(&mut other.connect());
        other.assert_healthy();
    }
}

/// A server with the file's data.
fn load(file: &std::path::Path) -> Server {
    let mut other = start(&["--threads", "2"]);
    other.kill();
    std::fs::copy(file, other.folder().join("dump.rdb")).expect("the file is there");
    other.start_again();
    other
}

fn sum(client: &mut Client) -> i64 {
    let names: Vec<String> = ["MGET".to_owned()].into_iter().chain((0..ACCOUNTS).map(account)).collect();
    let guard = client.call(&names);
    guard.as_items().expect("an array").iter().map(number).sum()
}

#[test]
fn a_snapshot_has_no_half_of_a_transfer() {
    snapshots_under(
        |client, random, _| transfer(client, random),
        |client| assert_eq!(sum(client), BALANCE * ACCOUNTS as i64),
    );
}

/// A single connection moves or removes many keys at once, and records each action in the same transaction.
#[test]
fn a_snapshot_is_consistent_when_databases_are_swapped() {
    let turn = std::sync::atomic::AtomicU64::new(0);
    snapshots_under(
        |client, random, index| match index {
            0 => {
                // Either database 1 or 2 has 300 keys, and database 3 names their generation: never two,
                // never none.
                let n = turn.fetch_add(1, Relaxed).to_string();
                let fill = (0..300).map(|key| text(&["SET", &format!("of:{key}"), &n]));
                let mut all = vec![text(&["SELECT", "1"]), text(&["FLUSHDB"])];
                all.extend(fill);
                all.push(text(&["SWAPDB", "1", "2"]));
                all.extend([text(&["SELECT", "3"]), text(&["SET", "generation", &n])]);
                together(client, &all);
                std::thread::sleep(Duration::from_millis(15));
            }
            1 => {
                // Exactly one of two names exists; a counter tells which.
                client.call(&["SELECT", "4"]);
                let key = random.below(200).to_string();
                let (a, b) = (format!("a:{key}"), format!("b:{key}"));
                together(client, &[text(&["SET", &a, &key]), text(&["SET", &b, &key])]);
                let c = format!("c:{key}");
                together(client, &[text(&["RENAME", &a, &c]), text(&["RENAME", &c, &b])]);
                together(client, &[text(&["DEL", &b])]);
            }
            2 => {
                // Both keys of a pair; in half of the cases the second is short-lived.
                client.call(&["SELECT", "5"]);
                let (key, value) = (random.below(500).to_string(), random.draw().to_string());
                together(
                    client,
                    &[
                        text(&["SET", &format!("left:{key}"), &value]),
                        text(&["SET", &format!("right:{key}"), &value]),
                        text(&["SET", &format!("soon:{key}"), &value, "PX", "3"]),
                    ],
                );
            }
            _ => transfer(client, random),
        },
        |client| {
            assert_eq!(sum(client), BALANCE * ACCOUNTS as i64);
            check_generation(client);
            check_names(client);
            check_pairs(client);
        },
    );
}

/// All keys of the generation that database 3 names.
fn check_generation(client: &mut Client) {
    client.call(&["SELECT", "3"]);
    let generation = client.call(&["GET", "generation"]);
    client.call(&["SELECT", "2"]);
    let names: Vec<String> =
        ["MGET".to_owned()].into_iter().chain((0..300).map(|key| format!("of:{key}"))).collect();
    let all = client.call(&names);
    let others = all.as_items().expect("an array").iter().filter(|value| **value != generation).count();
    assert_eq!(others, 0, "keys of another generation than {generation}: {all}");
}

/// Both names or the second alone, but never the intermediate name.
fn check_names(client: &mut Client) {
    client.call(&["SELECT", "4"]);
    for key in 0..200 {
        let guard = client.call(&["EXISTS", &format!("c:{key}")]).as_int();
        assert_eq!(guard, Some(0), "c:{key} is only there within a transaction");
        let (a, b) = (format!("a:{key}"), format!("b:{key}"));
        let (a, b) = (client.call(&["EXISTS", &a]).as_int(), client.call(&["EXISTS", &b]).as_int());
        assert!(a <= b, "a:{key} is never there without b:{key}");
    }
}

fn check_pairs(client: &mut Client) {
    client.call(&["SELECT", "5"]);
    for key in 0..500 {
        let pair = client.call(&["MGET", &format!("left:{key}"), &format!("right:{key}")]);
        let pair = pair.as_items().expect("an array");
        assert_eq!(pair[0], pair[1], "pair {key}");
    }
}

/// A snapshot's own memory does not count towards `maxmemory`, neither before its end nor after.
#[test]
fn a_snapshot_takes_no_memory_reserved_for_data() {
    let server = start(&["--threads", "2", "--save", ""]);
    let mut client = server.connect();
    let value = "x".repeat(700);
    (0..20_000).for_each(|n| drop(client.call(&["SET", &format!("k{n}"), &value])));
    let used: u64 = server.info("used_memory").parse().expect("a number");
    assert_eq!(client.run(&format!("CONFIG SET maxmemory {}", used + (3 << 19))).to_string(), "OK");
    for form in ["BGSAVE", "BGREWRITEAOF", "BGSAVE", "BGREWRITEAOF", "BGSAVE", "BGSAVE"] {
        assert!(!client.run(form).is_error());
        let until = Instant::now() + Duration::from_secs(20);
        let is_busy = |field| server.info(field) != "0";
        while is_busy("rdb_bgsave_in_progress") || is_busy("aof_rewrite_in_progress") {
            assert!(Instant::now() < until, "{form} does not end");
            for _ in 0..200 {
                let reply = client.run("SET another v").to_string();
                assert_eq!(reply, "OK", "during {form}");
                assert_eq!(client.run("DEL another").to_string(), ":1");
            }
        }
        assert_eq!(client.run("SET another v").to_string(), "OK", "behind {form}");
    }
}
