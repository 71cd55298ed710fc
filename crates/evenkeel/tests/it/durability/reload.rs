//! DEBUG RELOAD: partial data never replace the data on disk, and the append-only file continues the same
//! data.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use evenkeel_testkit::digest::{difference, digest};
use evenkeel_testkit::transcript::target;
use evenkeel_testkit::{Client, Program, Reference, Server};

use crate::{Ends, program, start, wait_until};

const KEYS: i64 = 20_000;
const DEBUG: &[&str] = &["--threads", "1", "--enable-debug-command", "yes"];
const WITH_SNAPSHOT: &[&str] = &["--save", "3600 1"];
const WITH_LOG: &[&str] = &["--save", "", "--appendonly", "yes", "--appendfsync", "always"];

/// A server with many keys.
fn filled(args: &[&str]) -> (Server, Client) {
    let server = start(&[DEBUG, args].concat());
    let mut client = server.connect();
    let sets = (0..KEYS).map(|n| vec!["SET".to_owned(), format!("key:{n}"), n.to_string()]);
    client.pipeline(&sets.collect::<Vec<_>>());
    (server, client)
}

fn size(server: &Server) -> Option<i64> {
    server.connect().run("DBSIZE").as_int()
}

#[track_caller]
fn ok(client: &mut Client, line: &str) {
    let reply = client.run(line);
    assert!(!reply.is_error(), "{line}: {reply}");
}

/// Starts a slow load, during which the test can act, and returns when it has begun.
fn begin_slow_load(server: &Server, client: &mut Client) {
    ok(client, "CONFIG SET key-load-delay 200");
    client.send(&["DEBUG", "RELOAD"]).expect("it reads");
    wait_until("it is saved", || server.log().contains("DB saved on disk"));
    std::thread::sleep(Duration::from_millis(100));
}

#[test]
fn a_shutdown_during_a_reload_keeps_the_saved_data() {
    let (mut server, mut client) = filled(WITH_SNAPSHOT);
    begin_slow_load(&server, &mut client);
    assert!(server.stop().success());
    server.start_again();
    assert_eq!(size(&server), Some(KEYS));
}

/// A due rewrite waits for the end of the load.
#[test]
fn a_rewrite_waits_for_all_data() {
    let (mut server, mut client) = filled(WITH_LOG);
    ok(&mut client, "CONFIG SET rdb-key-save-delay 50 key-load-delay 200");
    ok(&mut client, "BGSAVE");
    assert!(client.run("BGREWRITEAOF").to_string().contains("scheduled"));
    ok(&mut client, "CONFIG SET rdb-key-save-delay 0");
    ok(&mut client, "DEBUG RELOAD");
    assert_eq!(size(&server), Some(KEYS));
    wait_until("the rewrite has ended", || {
        server.info("aof_rewrite_scheduled") == "0" && server.info("aof_rewrite_in_progress") == "0"
    });
    server.kill();
    server.start_again();
    assert_eq!(size(&server), Some(KEYS));
}

/// Partially loaded data are not saved, not even at shutdown.
#[test]
fn a_failed_load_leaves_the_files_on_disk() {
    let (mut server, mut client) = filled(WITH_SNAPSHOT);
    ok(&mut client, "SAVE");
    ok(&mut client, "SET new x");
    let dump = server.folder().join("dump.rdb");
    let whole = fs::read(&dump).expect("it was saved");
    let torn = &whole[..whole.len() / 2];
    fs::write(&dump, torn).expect("the folder is ours");
    assert!(client.run("DEBUG RELOAD NOSAVE").is_error());
    ok(&mut client, "SET newer x");
    assert!(server.stop().success());
    assert!(fs::read(&dump).is_ok_and(|there| there == torn), "it is as it was");
    fs::write(&dump, &whole).expect("the folder is ours");
    server.start_again();
    assert_eq!(size(&server), Some(KEYS));
}

/// The append-only file has complete data, and no change of partial data. A complete load makes a new base.
#[test]
fn an_aof_continues_only_after_a_complete_load() {
    let (mut server, mut client) = filled(WITH_LOG);
    ok(&mut client, "SAVE");
    ok(&mut client, "SET new x");
    let dump = server.folder().join("dump.rdb");
    let whole = fs::read(&dump).expect("it was saved");
    fs::write(&dump, &whole[..whole.len() / 2]).expect("the folder is ours");
    assert!(client.run("DEBUG RELOAD NOSAVE").is_error());
    ok(&mut client, "RPUSH new x");
    server.kill();
    server.start_again();
    assert_eq!(size(&server), Some(KEYS + 1));

    fs::write(&dump, &whole).expect("the folder is ours");
    let mut client = server.connect();
    ok(&mut client, "DEBUG RELOAD NOSAVE");
    assert_eq!(size(&server), Some(KEYS));
    ok(&mut client, "RPUSH new x");
    wait_until("there is a new base", || {
        server.info("aof_enabled") == "1" && server.info("aof_rewrite_in_progress") == "0"
    });
    ok(&mut client, "RPUSH new y");
    server.kill();
    server.start_again();
    assert_eq!(server.connect().run("LLEN new").as_int(), Some(2));
    assert_eq!(size(&server), Some(KEYS + 1));
}

/// An expired key or field is in the append-only file until it is removed by a logged command.
#[test]
fn expired_entries_stay_in_the_aof_until_their_removal_is_logged() {
    let mut server = start(&[DEBUG, WITH_LOG].concat());
    let mut client = server.connect();
    ok(&mut client, "DEBUG SET-ACTIVE-EXPIRE 0");
    ok(&mut client, "SET key v PX 20");
    ok(&mut client, "HSET hash field v other v");
    ok(&mut client, "HPEXPIRE hash 20 FIELDS 1 field");
    std::thread::sleep(Duration::from_millis(40));
    ok(&mut client, "DEBUG RELOAD");
    assert_eq!(client.run("HINCRBY hash field 1").as_int(), Some(1));
    assert_eq!(client.run("LPUSH key a").as_int(), Some(1));
    server.kill();
    server.start_again();
    let mut client = server.connect();
    assert_eq!(client.run("LRANGE key 0 -1").to_string(), "[\"a\"]");
    assert_eq!(client.run("HGET hash field").to_string(), "\"1\"");
}

/// Streams with numbers at the limits, as clients can create them, are loaded from every form.
#[test]
fn streams_with_the_greatest_numbers_come_back() {
    let mut server = start(&[DEBUG, WITH_LOG].concat());
    let mut client = server.connect();
    for line in [
        "XADD t 5-0 a b",
        "XADD t 6-0 a b",
        "XDEL t 6-0",
        "XSETID t 6-0 ENTRIESADDED 9223372036854775807",
        "XADD t 7-0 a b",
        "XGROUP CREATE t g 6-0 ENTRIESREAD 9223372036854775807",
        "XREADGROUP GROUP g c STREAMS t >",
        "XCLAIM t g c 0 7-0 RETRYCOUNT 9223372036854775807",
        "XCLAIM t g c 0 7-0",
        "XADD s 5-0 a b",
        "XADD s 10-0 a b",
        "XDEL s 10-0",
    ] {
        ok(&mut client, line);
    }
    // Redis 7.0 accepts it.
    client.run("XSETID s 6-0");
    let digest = |server: &Server| digest(&mut target(server));
    let guard = digest(&server);
    ok(&mut client, "DEBUG LOADAOF");
    assert_eq!(difference(&digest(&server), &guard), None, "the log");
    ok(&mut client, "DEBUG RELOAD");
    assert_eq!(difference(&digest(&server), &guard), None, "a snapshot");
    ok(&mut client, "CONFIG SET aof-use-rdb-preamble no");
    super::exchange::rewrite(&server);
    assert!(server.stop().success());
    server.start_again();
    assert_eq!(difference(&digest(&server), &guard), None, "a base of commands");
}

/// The append-only file cannot be turned off while its base is written; it is turned off once the base is
/// given up.
#[test]
fn an_aof_being_turned_off_stays_off() {
    let (server, mut client) = filled(&["--save", "", "--appendonly", "yes"]);
    for round in 1..=5 {
        super::exchange::rewrite(&server);
        ok(&mut client, "CONFIG SET rdb-key-save-delay 10000000");
        ok(&mut client, "BGREWRITEAOF");
        ok(&mut client, "CONFIG SET appendonly no");
        ok(&mut client, "DEBUG LOADAOF");
        assert_eq!(size(&server), Some(KEYS));
        wait_until("it is off", || {
            server.log().matches("The append-only file is disabled.").count() >= round
        });
        std::thread::sleep(Duration::from_millis(250)); // the settings are read ten times a second
        assert_eq!(
            server.log().matches("The append-only file is disabled.").count(),
            round,
            "{}",
            server.log()
        );
        ok(&mut client, "CONFIG SET rdb-key-save-delay 0 appendonly yes");
        wait_until("it is on again", || {
            server.info("aof_rewrite_in_progress") == "0" && server.info("aof_enabled") == "1"
        });
    }
}

/// Subscribers get events of later changes, not of reloaded keys.
#[test]
fn subscribers_get_events_after_a_reload() {
    let (server, mut client) = filled(&[]);
    ok(&mut client, "CONFIG SET notify-keyspace-events KEAn");
    let [mut listener, mut cache] = [(); 2].map(|()| server.connect3());
    listener.run("PSUBSCRIBE __keyevent*");
    ok(&mut cache, "CLIENT TRACKING ON BCAST");
    for round in 0..3 {
        ok(&mut client, "DEBUG RELOAD");
        ok(&mut client, &format!("SET after {round}"));
        let event = listener.read().to_string();
        assert!(event.contains("\"after\""), "{event}");
        if round == 0 {
            assert!(listener.read().to_string().contains("\"after\"")); // the event of a new key
        }
        assert_eq!(cache.read().to_string(), ">[\"invalidate\", (null)]");
        assert_eq!(cache.read().to_string(), ">[\"invalidate\", [\"after\"]]");
    }
}

fn entries(count: usize, name_len: usize) -> Vec<Vec<String>> {
    let name = "x".repeat(name_len);
    let words = |n: usize| ["XADD", "s", &format!("1-{n}"), &name, ""].map(str::to_owned).to_vec();
    (1..=count).map(words).collect()
}

/// Shared names that take many times the file's memory once they are copied per entry. The file's writer had
/// that memory, and no data are refused because a stranger could forge such a file.
#[test]
fn saved_data_are_loaded_however_small_the_file_is() {
    const ENTRIES: usize = 51_666;
    let Some(redis) = Program::oracle(Reference::Redis) else { return };
    let (theirs, mut server) = (Server::start(&redis, &["--save", ""]), start(WITH_SNAPSHOT));
    let mut client = theirs.connect();
    client.pipeline(&entries(ENTRIES, 1_500));
    ok(&mut client, "SAVE");
    server.kill();
    fs::copy(theirs.folder().join("dump.rdb"), server.folder().join("dump.rdb")).expect("it was saved");
    server.start_again();
    assert_eq!(server.connect().run("XLEN s").as_int(), Some(ENTRIES as i64));
}

/// The server accepts every payload that it gives out.
#[test]
fn a_stream_of_long_names_is_saved_and_loaded() {
    const ENTRIES: usize = 30_000;
    let limits = ["--stream-node-max-bytes", "0", "--stream-node-max-entries", "10000"];
    let mut server = start(&[WITH_SNAPSHOT, &limits].concat());
    let mut client = server.connect();
    client.pipeline(&entries(ENTRIES, 2_900));
    let payload = client.run("DUMP s");
    let restore = [b"RESTORE", &b"t"[..], b"0", payload.as_bytes().expect("a payload")];
    assert_eq!(client.call(&restore).to_string(), "OK");
    ok(&mut client, "SAVE");
    server.kill();
    server.start_again();
    for key in ["s", "t"] {
        assert_eq!(server.connect().run(&format!("XLEN {key}")).as_int(), Some(ENTRIES as i64));
    }
}

/// A command within a transaction or script holds the gate, and would wait for itself.
#[test]
fn a_transaction_cannot_reload_the_data() {
    let (server, mut client) = filled(WITH_LOG);
    let refused = "-ERR This command is not allowed in transactions and scripts";
    for command in ["DEBUG RELOAD", "DEBUG LOADAOF"] {
        ok(&mut client, "MULTI");
        ok(&mut client, command);
        ok(&mut client, "SET last 1");
        assert_eq!(client.run("EXEC").to_string(), format!("[{refused}, OK]"));
    }
    assert_eq!(size(&server), Some(KEYS + 1));
}

/// Nothing was removed, so the memory has all data, and a client that asks for a snapshot gets it in any
/// case.
#[test]
fn a_failed_merging_load_does_not_stop_saves() {
    for (reload, shutdown) in
        [("DEBUG RELOAD NOFLUSH NOSAVE", "SHUTDOWN"), ("DEBUG RELOAD NOSAVE", "SHUTDOWN SAVE")]
    {
        let mut server = start(&[DEBUG, WITH_SNAPSHOT].concat());
        let mut client = server.connect();
        ok(&mut client, "SET old 1");
        ok(&mut client, "SAVE");
        let dump = server.folder().join("dump.rdb");
        fs::write(&dump, &fs::read(&dump).expect("it was saved")[..40]).expect("the folder is ours");
        assert!(client.run(reload).is_error());
        ok(&mut client, "SET new 1");
        client.send(&shutdown.split(' ').collect::<Vec<_>>()).expect("it reads");
        wait_until("it ends", || !server.is_alive());
        server.start_again();
        assert_eq!(server.connect().run("EXISTS new").as_int(), Some(1), "{reload}");
    }
}

/// Of two loads at once, the second begins after the first has ended and finds all data; writers wait for
/// both.
#[test]
fn concurrent_reloads_take_turns() {
    let (mut server, mut client) = filled(&[WITH_LOG, &["--threads", "2"]].concat());
    ok(&mut client, "CONFIG SET key-load-delay 20");
    let mut writes = 0;
    for commands in [["RELOAD", "RELOAD"], ["RELOAD", "LOADAOF"], ["LOADAOF", "LOADAOF"]] {
        let mut others = commands.map(|_| server.connect());
        for (other, command) in others.iter_mut().zip(commands) {
            other.send(&["DEBUG", command]).expect("it reads");
        }
        let is_done = AtomicBool::new(false);
        writes += std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut writer = server.connect();
                let writes = (0..).take_while(|_| !is_done.load(Relaxed));
                writes.map(|_| assert!(!writer.run("INCR written").is_error())).count()
            });
            let ends = Ends(&is_done);
            others.iter_mut().for_each(|other| assert_eq!(other.read().to_string(), "OK", "{commands:?}"));
            drop(ends);
            writer.join().expect("no failure")
        });
        assert_eq!(client.run("GET written").to_string(), format!("\"{writes}\""), "{commands:?}");
        assert_eq!(size(&server), Some(KEYS + 1));
    }
    server.kill();
    server.start_again();
    assert_eq!(server.connect().run("GET written").to_string(), format!("\"{writes}\""));
    assert_eq!(size(&server), Some(KEYS + 1));
}

/// A replay's intermediate state is partial: no blocked client is served from it, or gets an event of a
/// removed key.
#[test]
fn blocked_clients_are_not_served_by_a_replay() {
    let server = start(&[DEBUG, WITH_LOG].concat());
    let mut client = server.connect();
    for line in ["RPUSH k v w", "RENAME k other", "XADD s 1-1 f v", "XGROUP CREATE s g $"] {
        ok(&mut client, line);
    }
    let mut waiting = [server.connect(), server.connect()];
    waiting[0].send(&["BLPOP", "k", "0"]).expect("it reads");
    waiting[1].send(&["XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">"]).expect("it reads");
    wait_until("they wait", || server.info("blocked_clients") == "2");
    for reload in ["DEBUG LOADAOF", "DEBUG RELOAD", "DEBUG LOADAOF"] {
        ok(&mut client, reload);
        assert_eq!(server.info("blocked_clients"), "2", "{reload}");
        assert_eq!(client.run("LRANGE other 0 -1").to_string(), "[\"v\", \"w\"]", "{reload}");
    }
    ok(&mut client, "RPUSH k x");
    assert_eq!(waiting[0].read().to_string(), "[\"k\", \"x\"]");
    ok(&mut client, "XADD s 2-1 f w");
    assert_eq!(waiting[1].read().to_string(), "[[\"s\", [[\"2-1\", [\"f\", \"w\"]]]]]");
}

/// Without MERGE an existing key is an error, as in Redis; with it, the file's value replaces it.
#[test]
fn existing_keys_are_replaced_only_with_merge() {
    const LIBRARY: &str = "#!lua name=l\nredis.register_function('f', function() return NUMBER end)";
    for reference in [Some(Reference::Redis), Some(Reference::Valkey), None] {
        let Some(program) = reference.map_or(Some(program()), Program::oracle) else { continue };
        let mut server = Server::start(&program, &["--save", "", "--enable-debug-command", "yes"]);
        let mut client = server.connect();
        let load = |client: &mut Client, number: &str| {
            let code = LIBRARY.replace("NUMBER", number);
            assert_eq!(client.call(&["FUNCTION", "LOAD", "REPLACE", &code]).to_string(), "\"l\"");
        };
        load(&mut client, "1");
        let reply = client.run("DEBUG RELOAD NOFLUSH").to_string();
        assert!(reply.starts_with("-ERR Error trying to load the RDB dump"), "{reference:?}: {reply}");
        for line in ["SET k 1", "RPUSH l a b", "SET timed 1 PX 99999999"] {
            ok(&mut client, line);
        }
        ok(&mut client, "DEBUG RELOAD NOFLUSH MERGE");
        for line in ["SET k 2", "SET new 1", "DEL l", "SADD l x", "PERSIST timed"] {
            ok(&mut client, line);
        }
        load(&mut client, "2");
        ok(&mut client, "DEBUG RELOAD NOFLUSH NOSAVE MERGE");
        let mut guard = ["GET k", "GET new", "LRANGE l 0 -1", "DBSIZE", "FCALL f 0"]
            .map(|line| client.run(line).to_string())
            .to_vec();
        guard.push((client.run("PTTL timed").as_int().expect("a number") > 0).to_string());
        let expected = ["\"1\"", "\"1\"", "[\"a\", \"b\"]", ":4", ":1", "true"];
        assert_eq!(guard, expected, "{reference:?}");
        server.assert_healthy();
    }
}
