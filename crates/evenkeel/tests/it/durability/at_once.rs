//! Work that Redis has finished by its reply and Evenkeel does in the background: later requests see no
//! difference.

use std::time::Duration;

use evenkeel_testkit::{Client, Program, Reference, Server};

use crate::{program, start, wait_until};

const DEBUG: &[&str] = &["--threads", "1", "--enable-debug-command", "yes"];
const WITH_LOG: &[&str] = &["--save", "", "--appendonly", "yes", "--appendfsync", "no"];
const WITH_SNAPSHOT: &[&str] = &["--save", "3600 1000000"];
const STARTED: &str = "Background append only file rewriting started";
const SAVING: &str = "Background saving started";

fn with(args: &[&str]) -> (Server, Client) {
    let server = start(&[DEBUG, args].concat());
    let mut client = server.connect();
    wait_until("a log has its base", || server.info("aof_rewrite_in_progress") == "0");
    (0..1_000).for_each(|n| ok(&mut client, &format!("SET key:{n} 1")));
    (server, client)
}

#[track_caller]
fn ok(client: &mut Client, line: &str) {
    let reply = client.run(line);
    assert!(!reply.is_error(), "{line}: {reply}");
}

#[track_caller]
fn expect_reply(client: &mut Client, line: &str, said: &str) {
    assert_eq!(client.run(line).to_string(), said, "{line}");
}

/// Waits like clients made for Redis.
fn await_rewrite(server: &Server) {
    wait_until("it has ended", || server.info("aof_rewrite_in_progress") == "0");
}

fn size(client: &mut Client) -> Option<i64> {
    client.run("DBSIZE").as_int()
}

/// Turns the append-only file off, which takes `sleep_us`.
fn turn_off_aof(server: &Server, client: &mut Client, sleep_us: u32) {
    ok(client, "CONFIG SET appendonly yes");
    await_rewrite(server);
    ok(client, &format!("DEBUG AOF-FLUSH-SLEEP {sleep_us}"));
    ok(client, "SET key:0 2");
    ok(client, "CONFIG SET appendonly no");
    assert_eq!(server.info("aof_enabled"), "1", "it takes its time");
}

/// The end of a rewrite and the end of the append-only file look like a single event. Otherwise a client that
/// waits for the rewrite could go on before the file is turned off.
#[test]
fn the_end_of_a_rewrite_and_the_end_of_the_aof_are_visible_at_once() {
    let (server, mut client) = with(WITH_LOG);
    let mut saver = server.connect();
    for _ in 0..10 {
        wait_until("the log is on", || server.info("aof_enabled") == "1");
        wait_until("it has its base", || server.info("aof_rewrite_in_progress") == "0");
        ok(&mut client, "CONFIG SET rdb-key-save-delay 10000000");
        ok(&mut client, "BGREWRITEAOF");
        saver.send(&["SAVE"]).expect("it reads");
        std::thread::sleep(Duration::from_millis(50));
        ok(&mut client, "CONFIG SET rdb-key-save-delay 0");
        ok(&mut client, "CONFIG SET appendonly no");
        assert_eq!(saver.read().to_string(), "OK");
        assert_eq!(server.info("aof_enabled"), "0");
        ok(&mut client, "CONFIG SET appendonly yes");
    }
}

/// No request is refused or visibly delayed.
#[test]
fn requests_while_the_aof_is_turned_off_succeed() {
    let (server, mut client) = with(WITH_LOG);
    turn_off_aof(&server, &mut client, 300_000);
    expect_reply(&mut client, "BGREWRITEAOF", STARTED);
    assert_eq!(server.info("aof_rewrite_in_progress"), "1");
    await_rewrite(&server);
    assert_eq!(server.info("aof_enabled"), "0");
    ok(&mut client, "DEBUG LOADAOF");
    assert_eq!(size(&mut client), Some(1_000));
    turn_off_aof(&server, &mut client, 300_000);
    expect_reply(&mut client, "BGSAVE", SAVING);
    wait_until("it has ended", || server.info("rdb_bgsave_in_progress") == "0");
    // But not for ever: the disk may hang.
    turn_off_aof(&server, &mut client, 2_000_000);
    let reply = client.run("BGSAVE").to_string();
    assert!(reply.starts_with("-ERR Another child process is active"), "{reply}");
}

/// An append-only file that is turned on while it is being turned off begins anew afterwards; until then it
/// is empty.
#[test]
fn an_aof_being_turned_off_records_nothing() {
    let (mut server, mut client) = with(WITH_LOG);
    turn_off_aof(&server, &mut client, 400_000);
    ok(&mut client, "CONFIG SET appendonly yes");
    ok(&mut client, "SET late 1");
    expect_reply(&mut client, "WAITAOF 1 0 100", "[:0, :0]");
    let reply = client.run("SHUTDOWN NOSAVE").to_string();
    assert!(reply.starts_with("-ERR Errors trying to SHUTDOWN"), "{reply}");
    assert_eq!(server.info("aof_rewrite_in_progress"), "1");
    await_rewrite(&server);
    expect_reply(&mut client, "WAITAOF 1 0 10000", "[:1, :0]");
    ok(&mut client, "DEBUG LOADAOF");
    assert_eq!(size(&mut client), Some(1_001));
    server.kill();
    server.start_again();
    assert_eq!(size(&mut server.connect()), Some(1_001));
}

/// A walk ends regularly even after its rewrite was given up.
#[test]
fn a_cancelled_rewrite_has_no_effect() {
    let (server, mut client) = with(WITH_LOG);
    for (line, said) in [("BGREWRITEAOF", STARTED), ("BGSAVE", SAVING)] {
        ok(&mut client, "CONFIG SET appendonly yes");
        await_rewrite(&server);
        ok(&mut client, "CONFIG SET rdb-key-save-delay 200000");
        expect_reply(&mut client, "BGREWRITEAOF", STARTED);
        expect_reply(
            &mut client,
            "BGREWRITEAOF",
            "-ERR Background append only file rewriting already in progress",
        );
        std::thread::sleep(Duration::from_millis(50));
        ok(&mut client, "CONFIG SET rdb-key-save-delay 0");
        ok(&mut client, "CONFIG SET appendonly no");
        expect_reply(&mut client, line, said);
        await_rewrite(&server);
        wait_until("it has ended", || server.info("rdb_bgsave_in_progress") == "0");
    }
}

/// A transaction does not wait for FLUSHALL's snapshot; a later command does, if it depends on it.
#[test]
fn the_pending_snapshot_of_flushall_blocks_no_transaction() {
    let (server, mut client) = with(WITH_SNAPSHOT);
    ok(&mut client, "CONFIG SET rdb-key-save-delay 4000");
    let flush = |client: &mut Client| {
        ["MULTI", "FLUSHALL", "EXEC"].iter().for_each(|line| ok(client, line));
        (0..50).for_each(|n| ok(client, &format!("SET key:{n} 1")));
        // Before it begins, or after.
        std::thread::sleep(Duration::from_millis(110));
    };
    for _ in 0..3 {
        flush(&mut client);
        expect_reply(&mut client, "BGSAVE", SAVING);
        wait_until("it has ended", || server.info("rdb_bgsave_in_progress") == "0");
        flush(&mut client);
        expect_reply(&mut client, "SAVE", "OK");
        flush(&mut client);
        expect_reply(&mut client, "BGREWRITEAOF", STARTED);
        await_rewrite(&server);
        ok(&mut client, "DEBUG LOADAOF");
        assert_eq!(size(&mut client), Some(50));
    }
}

/// Flushed data do not come back, however the server ends.
#[test]
fn a_shutdown_takes_the_pending_snapshot_of_flushall() {
    for how in ["MULTI", "EVAL redis.call('flushall') 0", "BGREWRITEAOF"] {
        let (mut server, mut client) = with(WITH_SNAPSHOT);
        ok(&mut client, "SAVE");
        let rest: &[&str] = match how {
            "MULTI" => &["FLUSHALL", "EXEC"],
            // Behind a long job it is delayed.
            "BGREWRITEAOF" => {
                ok(&mut client, "CONFIG SET rdb-key-save-delay 10000");
                &["FLUSHALL"]
            }
            _ => &[],
        };
        ok(&mut client, how);
        rest.iter().for_each(|line| ok(&mut client, line));
        client.send(&["SHUTDOWN", "NOSAVE"]).expect("it reads");
        wait_until("it ends", || !server.is_alive());
        server.start_again();
        assert_eq!(size(&mut server.connect()), Some(0), "{how}");
    }
}

/// A snapshot that FLUSHALL cancels ends first, then FLUSHALL's own is taken, before the reply.
#[test]
fn data_flushed_during_a_snapshot_do_not_come_back() {
    let (mut server, mut client) = with(WITH_SNAPSHOT);
    ok(&mut client, "SAVE");
    ok(&mut client, "CONFIG SET rdb-key-save-delay 20000");
    expect_reply(&mut client, "BGSAVE", SAVING);
    expect_reply(&mut client, "FLUSHALL", "OK");
    server.kill();
    server.start_again();
    assert_eq!(size(&mut server.connect()), Some(0));
}

/// Only a shutdown stops a script that has written, and it cannot wait for the snapshot.
#[test]
fn a_shutdown_during_a_busy_script_skips_the_pending_snapshot() {
    for wait_ms in [50, 400] {
        let (mut server, mut client) = with(&[WITH_SNAPSHOT, &["--busy-reply-threshold", "100"]].concat());
        let mut runs = server.connect();
        ["MULTI", "FLUSHALL", "EXEC"].iter().for_each(|line| ok(&mut runs, line));
        runs.send(&["EVAL", "redis.call('set', 'k', 1) while true do end", "0"]).expect("it reads");
        std::thread::sleep(Duration::from_millis(wait_ms));
        client.send(&["SHUTDOWN", "NOSAVE"]).expect("it reads");
        wait_until("it ends", || !server.is_alive());
    }
}

/// The append-only file begins with its base, after the snapshot; earlier writes are in the base, and nowhere
/// else.
#[test]
fn an_aof_turned_on_during_a_snapshot_starts_after_it() {
    for program in [Program::oracle(Reference::Redis), Some(program())].into_iter().flatten() {
        let server = Server::start(&program, &["--enable-debug-command", "yes"]);
        let mut client = server.connect();
        (0..200).for_each(|n| ok(&mut client, &format!("SET key:{n} 1")));
        ok(&mut client, "CONFIG SET rdb-key-save-delay 10000");
        expect_reply(&mut client, "BGSAVE", SAVING);
        ok(&mut client, "CONFIG SET appendonly yes");
        assert_eq!(server.info("aof_rewrite_scheduled"), "1");
        assert_eq!(server.info("aof_rewrite_in_progress"), "0");
        ok(&mut client, "SET late 1");
        let begun = |server: &Server| {
            let folder = std::fs::read_dir(server.folder().join("appendonlydir"));
            folder.is_ok_and(|entries| {
                entries.flatten().any(|entry| entry.metadata().is_ok_and(|file| file.len() > 0))
            })
        };
        assert!(!begun(&server), "{:?}", server.program());
        ok(&mut client, "CONFIG SET rdb-key-save-delay 0");
        wait_until("there is a base", || {
            server.info("aof_rewrite_scheduled") == "0" && server.info("aof_rewrite_in_progress") == "0"
        });
        assert!(begun(&server));
        ok(&mut client, "DEBUG LOADAOF");
        assert_eq!(size(&mut client), Some(201));
    }
}
