//! With many writes the append-only file is written past the page cache, in bursts, with rewrites in between.
//! A server killed then starts again, with a prefix of the writes that ends shortly before the kill.

use std::fs;
use std::time::{Duration, Instant};

use evenkeel_resp::value::encode_command;
use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Client, Random, Server};

use crate::start;

/// Number of SETs per batch, and length of each value: more than a single write past the cache.
const BATCH: u64 = 200;
const VALUE_LEN: usize = 5_000;

/// Bound of the loss in a kill: data stay in memory for 5 ms at most, plus the delay of a busy disk.
const LOSS: Duration = Duration::from_secs(1);

fn value(number: u64) -> String {
    format!("{number:>VALUE_LEN$}")
}

/// Sends a batch that begins at this number, and waits for its replies.
fn send(client: &mut Client, first: u64) {
    let sets = (first..first + BATCH)
        .map(|number| encode_command(&["SET".to_owned(), format!("k{number}"), value(number)]));
    client.send_raw(&sets.flatten().collect::<Vec<u8>>()).expect("it reads");
    (0..BATCH).for_each(|_| assert_eq!(client.read().to_string(), "OK"));
}

/// Whether an append-only file of this server is currently written past the page cache.
fn bypasses_page_cache(server: &Server) -> bool {
    let process = format!("/proc/{}", server.pid());
    let files = fs::read_dir(format!("{process}/fd")).expect("it runs").flatten();
    files.into_iter().any(|file| {
        let is_log =
            fs::read_link(file.path()).is_ok_and(|path| path.to_string_lossy().ends_with(".incr.aof"));
        let info = format!("{process}/fdinfo/{}", file.file_name().to_string_lossy());
        let info = fs::read_to_string(info).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.map_or(0, |flags| i32::from_str_radix(flags.trim(), 8).expect("octal digits"));
        is_log && flags & libc::O_DIRECT != 0
    })
}

#[test]
fn a_kill_during_many_writes_leaves_a_prefix_of_them() {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random::new(seed);
    let mut server = start(&["--appendonly", "yes", "--threads", "2", "--save", ""]);
    let (mut next, mut has_gone_past) = (0, 0);
    for _ in 0..3 {
        let mut client = server.connect();
        let mut sent = Vec::new();
        let ends = Instant::now() + Duration::from_millis(200 + random.below(1_600) as u64);
        while Instant::now() < ends {
            for _ in 0..1 + random.below(100) {
                send(&mut client, next);
                next += BATCH;
                sent.push((Instant::now(), next));
                has_gone_past += usize::from(bypasses_page_cache(&server));
            }
            std::thread::sleep(Duration::from_millis(random.below(20) as u64));
            if random.chance(4) {
                client.run("BGREWRITEAOF");
            }
        }
        let killed = Instant::now();
        server.kill();
        server.start_again();
        let least = sent.iter().rev().find(|(when, _)| *when + LOSS <= killed).map_or(0, |(_, next)| *next);
        next = check(&server, least, next);
    }
    // On a file system that supports it.
    println!("{next} keys, seen past the page cache {has_gone_past} times");
    assert!(has_gone_past > 0 || !supports_direct_io(&server), "all went through the page cache");
}

/// Checks all keys up to a number, and that no later key exists; returns the number.
fn check(server: &Server, least: u64, most: u64) -> u64 {
    let mut client = server.connect();
    let keys = client.call(&["DBSIZE"]).as_int().expect("a number") as u64;
    assert!((least..=most).contains(&keys), "{keys} keys, of {least} to {most}");
    for first in (0..keys).step_by(1_000) {
        let numbers = first..keys.min(first + 1_000);
        let names = numbers.clone().map(|number| format!("k{number}"));
        let words: Vec<String> = ["MGET".to_owned()].into_iter().chain(names).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let values = client.call(&words);
        for (number, guard) in numbers.zip(values.as_items().expect("an array")) {
            assert!(guard.as_bytes() == Some(value(number).as_bytes()), "k{number} of {keys}");
        }
    }
    keys
}

fn supports_direct_io(server: &Server) -> bool {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
    options.open(server.folder().join("way")).is_ok()
}
