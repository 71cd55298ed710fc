//! Pipelined writes reach the append-only file unchanged, although the server reuses its read buffers.
//!
//! Connections send requests in all forms, short and long, many or few at a time, cut anywhere. At the end
//! the file and a replica must match the server: each value names the request that wrote it.

use std::time::Duration;

use evenkeel_testkit::digest::{Digest, difference, digest};
use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Client, Random, Server, transcript};

use crate::following::{await_link, follow};
use crate::{start, wait_until};

const CLIENTS: usize = 6;
const PIPELINES: usize = 120;
const KEYS: usize = 200;

/// Lengths of values in bytes, equally likely: from many in a read to several reads for a value.
const LENGTHS: [usize; 8] = [1, 8, 60, 300, 500, 700, 3_000, 40_000];

/// Writes a request in a random form; returns the number of its replies.
fn request(random: &mut Random, value: &str, bytes: &mut Vec<u8>) -> usize {
    let key = format!("key:{}", random.below(KEYS));
    let array = |words: &[&str], bytes: &mut Vec<u8>| {
        bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        words.iter().for_each(|word| {
            bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        });
    };
    match random.below(16) {
        0 => array(&["set", &key, value], bytes),
        1 => array(&["sEt", &key, value], bytes),
        2 => bytes.extend_from_slice(format!("SET {key} \"{value}\"\r\n").as_bytes()),
        3 => array(&["APPEND", &format!("long:{key}"), &value[..value.len().min(40)]], bytes),
        4 => array(&["SELECT", ["0", "7"][random.below(2)]], bytes),
        5 => {
            array(&["MULTI"], bytes);
            array(&["SET", &key, value], bytes);
            array(&["RPUSH", "list", &value[..1]], bytes);
            array(&["EXEC"], bytes);
            return 4;
        }
        6 => array(&["INCRBYFLOAT", "float", "0.5"], bytes),
        7 => array(&["GET", &key], bytes),
        8 => array(&["EVAL", "return redis.call('SET', KEYS[1], ARGV[1])", "1", &key, value], bytes),
        9 => array(&["HSET", "hash", &key, value], bytes),
        10 => array(&["DEL", &key, "float"], bytes),
        _ => array(&["SET", &key, value], bytes),
    }
    1
}

fn send_pipelines(mut client: Client, index: usize, mut random: Random) {
    for number in 0..PIPELINES {
        let (mut bytes, mut replies) = (Vec::new(), 0);
        let length = LENGTHS[random.below(LENGTHS.len())];
        for at in 0..random.between(1, 40) {
            let value = format!("{index}-{number}-{at}-").repeat(length / 8 + 1);
            replies += request(&mut random, &value, &mut bytes);
        }
        // In a few pieces, cut anywhere.
        let mut left = &bytes[..];
        while !left.is_empty() {
            let len = if random.chance(50) { left.len() } else { 1 + random.below(left.len()) };
            let (piece, rest) = left.split_at(len);
            client.send_raw(piece).expect("it reads");
            left = rest;
        }
        for _ in 0..replies {
            let reply = client.read();
            assert!(!reply.is_error(), "{reply}");
        }
    }
}

fn all_of(server: &Server) -> Digest {
    digest(&mut transcript::target(server))
}

fn same(one: &Digest, other: &Digest, what: &str) {
    if let Some(difference) = difference(one, other) {
        panic!("{what}:\n{difference}");
    }
}

fn pipelines_are_logged_in_order(args: &[&str]) {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    // A base, or a second full sync, would hide errors in the append-only file.
    let always =
        ["--appendonly", "yes", "--auto-aof-rewrite-percentage", "0", "--repl-diskless-sync-delay", "0"];
    let mut server = start(&[&["--threads", "2"], &always[..], args].concat());
    let replica = start(&[]);
    follow(&replica, server.port());
    await_link(&replica);
    std::thread::scope(|scope| {
        for index in 0..CLIENTS {
            let (client, random) = (server.connect(), Random::new(seed + index as u64));
            scope.spawn(move || send_pipelines(client, index, random));
        }
    });
    let guard = all_of(&server);
    assert!(guard.len() > KEYS, "{} keys", guard.len());
    let offset = || server.info("master_repl_offset");
    wait_until("the replica has all", || replica.info("slave_repl_offset") == offset());
    same(&guard, &all_of(&replica), "the replica");
    assert_eq!(server.info("sync_full"), "1");
    // Regions that the AOF thread has read are no longer lent; lent regions count as memory.
    wait_until("the file has all", || server.info("aof_buffer_length") == "0");
    std::thread::sleep(Duration::from_millis(20)); // read bytes are written
    server.kill();
    server.start_again();
    wait_until("it has been loaded", || server.info("loading") == "0");
    same(&guard, &all_of(&server), "the file");
}

#[test]
fn pipelines_are_logged_in_order_everysec() {
    pipelines_are_logged_in_order(&["--appendfsync", "everysec"]);
}

#[test]
fn pipelines_are_logged_in_order_always() {
    pipelines_are_logged_in_order(&["--appendfsync", "always"]);
}

/// Lent regions are small, and are not used for a client that sends more than a region at once.
#[test]
fn a_long_pipeline_takes_few_reads() {
    const PIPELINES: usize = 40;
    let server = start(&["--threads", "1", "--appendonly", "yes"]);
    let mut client = server.connect();
    let command = ["SET".to_owned(), "key".to_owned(), "v".repeat(500)].to_vec();
    let reads = || server.info("total_reads_processed").parse::<usize>().expect("a number");
    let before = reads();
    for _ in 0..PIPELINES {
        client.pipeline(&vec![command.clone(); 45]);
    }
    let reads = reads() - before;
    assert!(reads < PIPELINES * 3 / 2, "{reads} reads");
}
