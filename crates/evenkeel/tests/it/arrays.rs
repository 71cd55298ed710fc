//! Arrays in files, in the append-only file, and on replicas, with values set at random. DEBUG DIGEST takes
//! up indices and values, and the cursors are compared by themselves.

use std::fs;

use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Client, Random, Server};

use crate::following::{await_equal, await_link, follow};
use crate::{start, wait_until};

const DEBUG: &[&str] = &["--enable-debug-command", "yes", "--save", ""];

#[track_caller]
fn ok(client: &mut Client, line: &str) {
    let reply = client.run(line);
    assert!(!reply.is_error(), "{line}: {reply}");
}

fn index(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.draw() >> random.between(1, 60),
        _ => random.below(3000) as u64,
    }
}

/// Random commands on arrays: many values close together, some far apart, rings and deletions.
fn write(client: &mut Client, random: &mut Random, count: usize) {
    for _ in 0..count {
        let key = format!("array:{}", random.below(6));
        let (one, other) = (index(random), index(random));
        let values: Vec<String> = (0..1 + random.below(40))
            .map(|_| match random.below(4) {
                0 => format!("{}.5", random.below(1000)),
                1 => "x".repeat(random.below(60)),
                2 => "long ".repeat(random.below(300)).trim().to_owned(),
                _ => random.draw().to_string(),
            })
            .collect();
        let head = match random.below(9) {
            0 | 1 => vec!["ARSET".to_owned(), key, one.to_string()],
            2 | 3 => vec!["ARINSERT".to_owned(), key],
            4 => vec!["ARRING".to_owned(), key, (1 + random.below(500)).to_string()],
            5 => {
                ok(client, &format!("ARSEEK {key} {one}"));
                continue;
            }
            6 => {
                ok(client, &format!("ARDEL {key} {one} {other}"));
                continue;
            }
            7 => {
                ok(client, &format!("ARDELRANGE {key} {one} {}", one.saturating_add(100)));
                continue;
            }
            _ => vec!["ARMSET".to_owned(), key, one.to_string(), values[0].clone(), other.to_string()],
        };
        let values = if head[0] == "ARMSET" { &values[..1] } else { &values[..] };
        let words: Vec<&str> = head.iter().chain(values).map(String::as_str).collect();
        client.call(&words);
    }
}

/// All data, as text.
fn contents(server: &Server) -> Vec<String> {
    let mut client = server.connect();
    let mut contents = vec![client.run("DEBUG DIGEST").to_string()];
    for key in 0..6 {
        contents.push(client.run(&format!("ARNEXT array:{key}")).to_string());
        contents.push(client.run(&format!("ARLEN array:{key}")).to_string());
    }
    contents
}

fn filled(args: &[&str]) -> (Server, Client, Random) {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let (server, mut random) = (start(&[DEBUG, args].concat()), Random::new(seed));
    let mut client = server.connect();
    write(&mut client, &mut random, 400);
    (server, client, random)
}

#[track_caller]
fn assert_kept(server: &mut Server, client: &mut Client) {
    let before = contents(server);
    server.kill();
    server.start_again();
    *client = server.connect();
    assert_eq!(contents(server), before);
}

#[test]
fn arrays_survive_kills_and_rewrites() {
    for preamble in ["yes", "no"] {
        let args = ["--appendonly", "yes", "--appendfsync", "always", "--aof-use-rdb-preamble", preamble];
        let (mut server, mut client, mut random) = filled(&args);
        assert_kept(&mut server, &mut client);
        ok(&mut client, "BGREWRITEAOF");
        write(&mut client, &mut random, 100);
        wait_until("it is rewritten", || server.info("aof_rewrite_in_progress") == "0");
        assert_kept(&mut server, &mut client);
    }
}

#[test]
fn snapshots_have_a_version_that_holds_arrays_only_if_there_are_any() {
    let (mut server, mut client, _) = filled(&[]);
    let file = server.folder().join("dump.rdb");
    let header = || fs::read(&file).expect("it is saved")[..9].to_vec();
    ok(&mut client, "SAVE");
    assert_eq!(header(), b"REDIS0014");
    assert_kept(&mut server, &mut client);
    ok(&mut client, "HSET hash f v");
    ok(&mut client, "HEXPIRE hash 1000 FIELDS 1 f");
    ok(&mut client, "SAVE");
    assert_eq!(header(), b"VALKEY080");
    assert_kept(&mut server, &mut client);
    for key in 0..6 {
        ok(&mut client, &format!("UNLINK array:{key}"));
    }
    ok(&mut client, "DEL hash");
    ok(&mut client, "SET k v");
    ok(&mut client, "SAVE");
    assert_eq!(header(), b"REDIS0010");
}

#[test]
fn replicas_get_arrays_by_full_syncs_and_by_the_stream() {
    for diskless in ["yes", "no"] {
        let args = ["--repl-diskless-sync", diskless, "--repl-diskless-sync-delay", "0"];
        let (primary, mut client, mut random) = filled(&args);
        let replica = start(DEBUG);
        follow(&replica, primary.port());
        await_link(&replica);
        write(&mut client, &mut random, 200);
        await_equal(&primary, &replica);
        assert_eq!(contents(&primary), contents(&replica));
    }
}
