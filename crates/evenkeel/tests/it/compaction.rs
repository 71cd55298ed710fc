//! Compaction of a running server: memory that was freed here and there goes back to the system while clients
//! read and write, and no value changes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use evenkeel_testkit::random::{Random, fresh_seed};
use evenkeel_testkit::{Client, Server};

use crate::{start, wait_until};

const MIB: u64 = 1 << 20;

/// Keys with strings of all lengths up to 700 bytes, and small collections of each type: enough that the
/// chunk or two of each size class that are left half empty are little beside the data.
const KEYS: usize = 300_000;

fn value(random: &mut Random) -> String {
    format!("{:01$}", random.draw() % 1000, 1 + random.below(700))
}

/// Sends commands in pipelines; each has to succeed.
fn run_all(client: &mut Client, commands: &[Vec<String>]) {
    for part in commands.chunks(500) {
        for command in part {
            client.send(command).expect("it is connected");
        }
        for command in part {
            let reply = client.read().to_string();
            assert!(!reply.starts_with('-'), "{command:?}: {reply}");
        }
    }
}

fn collection(at: usize, random: &mut Random) -> Vec<String> {
    let (command, name) = (["RPUSH", "SADD", "HSET", "ZADD"][at % 4], format!("collection:{at}"));
    let mut parts = vec![command.to_owned(), name];
    for number in 0..1 + random.below(40) {
        if at % 4 > 1 {
            parts.push(number.to_string());
        }
        parts.push(value(random));
    }
    parts
}

/// Bytes of the chunks of the store's blocks.
fn chunks(client: &mut Client) -> u64 {
    let report = client.run("MEMORY MALLOC-STATS").to_string();
    let (before, _) = report.split_once(" in chunks with runs").expect("the report has it");
    before.rsplit(' ').next().expect("a number").parse().expect("a number")
}

/// Fills a server and deletes two thirds of the keys. Returns the values of the strings that are left.
fn thin(server: &Server, random: &mut Random) -> HashMap<String, String> {
    let mut client = server.connect();
    let mut strings: HashMap<_, _> = (0..KEYS).map(|at| (format!("key:{at}"), value(random))).collect();
    let sets: Vec<_> =
        strings.iter().map(|(key, value)| vec!["SET".to_owned(), key.clone(), value.clone()]).collect();
    run_all(&mut client, &sets);
    run_all(&mut client, &(0..KEYS / 20).map(|at| collection(at, random)).collect::<Vec<_>>());
    let mut gone: Vec<_> = strings.keys().filter(|_| random.chance(67)).cloned().collect();
    gone.iter().for_each(|key| drop(strings.remove(key)));
    gone.extend((0..KEYS / 20).filter(|_| random.chance(67)).map(|at| format!("collection:{at}")));
    run_all(&mut client, &gone.into_iter().map(|key| vec!["DEL".to_owned(), key]).collect::<Vec<_>>());
    strings
}

fn check(client: &mut Client, strings: &HashMap<String, String>) {
    for (key, value) in strings {
        assert_eq!(client.call(&["GET", key]).to_string(), format!("\"{value}\""), "{key}");
    }
}

fn digest(client: &mut Client) -> String {
    client.run("DEBUG DIGEST").to_string()
}

#[test]
fn sparse_memory_goes_back_while_clients_are_served() {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let random = &mut Random::new(seed);
    let args = ["--threads", "2", "--save", "", "--active-defrag-ignore-bytes", "4mb"];
    let server = start(&[&args[..], &["--enable-debug-command", "yes"]].concat());
    let mut strings = thin(&server, random);
    let mut client = server.connect();
    let (before, full, rss) = (digest(&mut client), chunks(&mut client), server.rss());
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(server.info("active_defrag_hits"), "0", "it is off unless it is asked for");
    assert_eq!(client.run("CONFIG SET activedefrag yes").to_string(), "OK");
    wait_until("it begins", || server.info("active_defrag_running") == "1");
    // Meanwhile, values are written and read.
    let until = Instant::now() + Duration::from_secs(1);
    let keys: Vec<String> = strings.keys().cloned().collect();
    while Instant::now() < until {
        let key = &keys[random.below(keys.len())];
        let old = client.call(&["GETSET", key, "meanwhile"]).to_string();
        assert_eq!(old, format!("\"{}\"", strings[key]));
        client.call(&["SET", key, &strings[key]]);
        let name = format!("new:{}", random.below(1000));
        strings.insert(name.clone(), value(random));
        client.call(&["SET", &name, &strings[&name]]);
    }
    // The worker may begin another round.
    wait_until("the chunks have gone", || chunks(&mut client) < full / 20 * 9);
    wait_until("it ends", || server.info("active_defrag_running") == "0");
    wait_until("the memory has gone back", || server.rss() < rss - full / 2);
    let moved: u64 = server.info("active_defrag_hits").parse().expect("a number");
    assert!(moved > 10_000 && server.info("active_defrag_misses") != "0", "{moved}");
    assert_ne!(server.info("stage_compact_usec"), "0");
    check(&mut client, &strings);
    for at in 0..1000 {
        client.call(&["DEL", &format!("new:{at}")]);
    }
    assert_eq!(digest(&mut client), before, "no value has changed");
}

/// MEMORY PURGE does the same once, whatever `activedefrag` says.
#[test]
fn memory_purge_compacts() {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let server = start(&["--threads", "2", "--save", ""]);
    let strings = thin(&server, &mut Random::new(seed));
    let mut client = server.connect();
    let full = chunks(&mut client);
    assert_eq!(client.run("MEMORY PURGE").to_string(), "OK");
    wait_until("the chunks have gone", || chunks(&mut client) < full / 20 * 9);
    wait_until("it ends", || server.info("active_defrag_running") == "0");
    check(&mut client, &strings);
}

/// With values of ever other lengths, whose keys are evicted here and there, the process holds little more
/// than `maxmemory`.
#[test]
fn the_process_stays_near_maxmemory() {
    const MAXMEMORY: u64 = 150 * MIB;
    /// `maxmemory` with the memory that a process takes beside its data: see "Memory" in docs/operations.md.
    const RSS_MAX: u64 = MAXMEMORY + MAXMEMORY / 100 * 15 + 64 * MIB;
    let args = ["--threads", "2", "--save", "", "--maxmemory", "150mb", "--maxmemory-policy", "allkeys-lru"];
    let server = start(&args);
    let mut client = server.connect();
    for len in [500, 100, 300, 900] {
        let (value, keys) = ("x".repeat(len), 2 * MAXMEMORY / (len as u64 + 60));
        for first in (0..keys).step_by(20_000) {
            let set = |at| vec!["SET".to_owned(), format!("{len}:{at}"), value.clone()];
            run_all(&mut client, &(first..first + 20_000).map(set).collect::<Vec<_>>());
            let rss = server.rss();
            assert!(rss < RSS_MAX, "{} MiB with values of {len} bytes", rss / MIB);
        }
    }
    assert_ne!(server.info("evicted_keys"), "0");
    assert_ne!(server.info("active_defrag_hits"), "0");
}
