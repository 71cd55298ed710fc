//! Logged commands are replayed whatever the settings are by then.

use evenkeel_testkit::{Program, Reference, Server};

use super::exchange::copy_folder;
use super::files;
use crate::following::{await_link, follow};
use crate::wait_until;
use crate::{program, start};

const WITH_LOG: &[&str] = &["--threads", "1", "--save", "", "--appendonly", "yes", "--appendfsync", "always"];

/// Clients' names of commands differ from the logged names: a name is unused, and another belongs to another
/// command.
#[rustfmt::skip]
const RENAMED: &[&str] = &[
    "--rename-command", "FLUSHALL", "secretflush",
    "--rename-command", "DEL",      "",
    "--rename-command", "SELECT",   "",
    "--rename-command", "MULTI",    "",
    "--rename-command", "SET",      "put",
    "--rename-command", "GET",      "set",
];

#[test]
fn the_aof_has_the_standard_names_of_renamed_commands() {
    let mut server = start(&[WITH_LOG, RENAMED].concat());
    let mut client = server.connect();
    for (line, said) in [
        ("put gone x", "OK"),
        ("secretflush", "OK"),
        ("put soon x PX 20", "OK"),
        ("EVAL redis.call('put','a',1)redis.call('put','b',2) 2 a b", "(nil)"),
        ("put here x", "OK"),
    ] {
        assert_eq!(client.run(line).to_string(), said, "{line}");
    }
    while client.run("DBSIZE").as_int() != Some(3) {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    server.kill();
    server.start_again();
    let mut client = server.connect();
    assert_eq!(client.run("DBSIZE").as_int(), Some(3));
    assert_eq!(client.run("set here").to_string(), "\"x\"");
}

/// Redis logs commands by the clients' names.
#[test]
fn an_aof_of_redis_with_renamed_commands_is_loaded() {
    let Some(redis) = Program::oracle(Reference::Redis) else { return };
    let args = ["--appendonly", "yes", "--rename-command", "FLUSHALL", "secretflush"];
    let [mut one, mut other] = [redis, program()].map(|program| Server::start(&program, &args));
    let mut client = one.connect();
    for line in ["SET gone x", "secretflush", "SET here x"] {
        assert_eq!(client.run(line).to_string(), "OK", "{line}");
    }
    assert!(one.stop().success());
    other.kill();
    copy_folder(one.folder(), other.folder());
    other.start_again();
    assert_eq!(other.connect().run("KEYS *").to_string(), "[\"here\"]");
}

/// A logged string beyond the present limit is loaded in full, here and on a replica.
#[test]
fn an_aof_may_have_longer_strings_than_clients_may_send() {
    let mut server = start(&[WITH_LOG, &["--proto-max-bulk-len", "1mb"]].concat());
    let replica = start(&["--proto-max-bulk-len", "1mb"]);
    follow(&replica, server.port());
    await_link(&replica);
    let mut client = server.connect();
    for line in [
        "CONFIG SET proto-max-bulk-len 8mb",
        "SETRANGE range 3000000 x",
        "APPEND range y",
        "SETBIT bits 30000000 1",
        "BITFIELD fields SET u8 30000000 1",
    ] {
        assert!(!client.run(line).is_error(), "{line}");
    }
    let lens = |server: &Server| {
        let mut client = server.connect();
        ["range", "bits", "fields"]
            .map(|key| client.run(&format!("STRLEN {key}")).as_int().expect("a number"))
    };
    let written = [3_000_002, 3_750_001, 3_750_001];
    assert_eq!(lens(&server), written);
    wait_until("the replica has all", || lens(&replica) == written);
    server.kill();
    server.start_again();
    assert_eq!(lens(&server), written);
    assert!(server.connect().run("APPEND range z").is_error());
}

/// The single file of a server before Redis 7 belongs to this server only if it has loaded it.
#[test]
fn an_aof_that_was_not_loaded_is_left_unchanged() {
    let mut server = start(&["--save", "", "--appendonly", "no"]);
    let (old, content) =
        (server.folder().join("appendonly.aof"), b"*3\r\n$3\r\nSET\r\n$3\r\nold\r\n$1\r\n1\r\n");
    std::fs::write(&old, content).expect("the folder is ours");
    for line in ["SET new 1", "CONFIG SET appendonly yes", "CONFIG REWRITE"] {
        let said = server.connect().run(line).to_string();
        assert!(said == "OK" || line == "CONFIG REWRITE", "{line}: {said}");
    }
    wait_until("it is on", || {
        server.info("aof_enabled") == "1" && server.info("aof_rewrite_in_progress") == "0"
    });
    super::exchange::rewrite(&server);
    assert_eq!(std::fs::read(&old).expect("it is there"), content);
    assert!(server.log().contains("was not loaded by this server"), "{}", server.log());
    server.kill();
    let dir = server.folder().display().to_string();
    let again = start(&["--save", "", "--appendonly", "yes", "--dir", &dir]);
    assert_eq!(again.connect().run("KEYS *").to_string(), "[\"new\"]");
    assert_eq!(std::fs::read(&old).expect("it is there"), content);
}

/// The same for a file in parts, readable or not.
#[test]
fn parts_that_were_not_loaded_are_left_unchanged() {
    for is_broken in [false, true] {
        let mut first = start(WITH_LOG);
        assert_eq!(first.connect().run("SET precious 1").to_string(), "OK");
        super::exchange::rewrite(&first);
        assert_eq!(first.connect().run("SET more 1").to_string(), "OK");
        first.kill();
        let folder = first.folder().join("appendonlydir");
        if is_broken {
            let base = folder.join("appendonly.aof.2.base.rdb");
            let mut bytes = std::fs::read(&base).expect("a base");
            bytes[20..27].fill(0xa5);
            std::fs::write(&base, bytes).expect("the folder is ours");
        }
        let before = files(&folder);
        let dir = first.folder().display().to_string();
        let mut server = start(&["--save", "", "--appendonly", "no", "--dir", &dir]);
        let mut client = server.connect();
        for line in ["SET new 1", "CONFIG SET appendonly yes"] {
            assert_eq!(client.run(line).to_string(), "OK", "{line}");
        }
        wait_until("it is on", || {
            server.info("aof_enabled") == "1" && server.info("aof_rewrite_in_progress") == "0"
        });
        super::exchange::rewrite(&server);
        let is_part = |name: &str| name.ends_with(".rdb") || name.ends_with(".incr.aof");
        let after = files(&folder);
        for (name, bytes) in before.iter().filter(|(name, _)| is_part(name)) {
            assert!(after.contains(&(name.clone(), bytes.clone())), "{name}");
        }
        assert!(server.log().contains("was not loaded by this server"), "{}", server.log());
        server.kill();
        let again = start(&["--save", "", "--appendonly", "yes", "--dir", &dir]);
        assert_eq!(again.connect().run("KEYS *").to_string(), "[\"new\"]");
        drop(again);
        if !is_broken {
            let manifest = folder.join("appendonly.aof.manifest");
            std::fs::copy(folder.join("appendonly.aof.manifest.unused.1"), manifest).expect("it was kept");
            let again = start(&["--save", "", "--appendonly", "yes", "--dir", &dir]);
            assert_eq!(again.connect().run("DBSIZE").as_int(), Some(2), "precious and more");
        }
    }
}

/// A grown file is rewritten automatically, an unchanged file is not.
#[test]
fn a_grown_aof_is_rewritten() {
    let grows = ["--auto-aof-rewrite-percentage", "100", "--auto-aof-rewrite-min-size", "50kb"];
    let server = start(&[WITH_LOG, &grows].concat());
    let mut client = server.connect();
    let mut fill = |kilobytes: usize| {
        (0..kilobytes).for_each(|_| assert!(!client.run(&format!("SET k {}", "x".repeat(1_000))).is_error()));
    };
    let rewrites = || server.info("aof_rewrites").parse::<u64>().expect("a number");
    let before = rewrites();
    fill(30);
    std::thread::sleep(std::time::Duration::from_millis(500)); // the size is checked ten times a second
    assert_eq!(rewrites(), before, "it is smaller than the least");
    fill(40);
    wait_until("it is rewritten", || rewrites() == before + 1);
    wait_until("it is small", || {
        server.info("aof_current_size").parse::<u64>().is_ok_and(|size| size < 50_000)
    });
    assert_eq!(server.info("aof_base_size"), server.info("aof_current_size"));
}

/// A save point that is reached saves, and reports the time.
#[test]
fn a_save_point_saves() {
    let server = start(&["--threads", "1", "--save", "1 3"]);
    let mut client = server.connect();
    let last = |client: &mut evenkeel_testkit::Client| client.run("LASTSAVE").as_int().expect("a number");
    let before = last(&mut client);
    assert_eq!(client.run("MSET a 1 b 2").to_string(), "OK");
    std::thread::sleep(std::time::Duration::from_millis(2_300));
    assert_eq!(server.info("rdb_saves"), "0", "two changes are too few");
    assert_eq!(client.run("SET c 3").to_string(), "OK");
    wait_until("it is saved", || server.info("rdb_saves") == "1");
    assert!(last(&mut client) > before);
    assert_eq!(server.info("rdb_changes_since_last_save"), "0");
    assert_eq!(server.info("latest_fork_usec"), "0");
}

/// Without a checksum, damage in readable data is not detected.
#[test]
fn checksums_are_written_and_verified_as_configured() {
    let written = |wanted: &str| {
        let server = start(&["--save", "", "--rdbchecksum", wanted]);
        assert_eq!(server.connect().run("SET k v").to_string(), "OK");
        assert_eq!(server.connect().run("SAVE").to_string(), "OK");
        std::fs::read(server.folder().join("dump.rdb")).expect("it was saved")
    };
    let without = written("no");
    assert!(without.ends_with(&[0; 8]));
    let mut damaged = written("yes");
    assert!(!damaged.ends_with(&[0; 8]));
    *damaged.last_mut().expect("a sum") ^= 1;
    let holder = start(&[]); // its folder is used, and removed with it
    std::fs::write(holder.folder().join("other.rdb"), damaged).expect("the folder is ours");
    let dir = holder.folder().display().to_string();
    let options = ["--save", "", "--dbfilename", "other.rdb", "--dir", &dir, "--rdbchecksum"];
    let refused = Server::try_start(&crate::program(), &[&options[..], &["yes"]].concat());
    assert!(refused.is_err(), "the sum is wrong");
    assert_eq!(start(&[&options[..], &["no"]].concat()).connect().run("GET k").to_string(), "\"v\"");
}

/// Files contained in a base are removed at once, or stay as long as configured.
#[test]
fn files_contained_in_a_base_are_kept_as_configured() {
    let server = start(&[WITH_LOG, &["--aof-disable-auto-gc", "yes"]].concat());
    let parts = || {
        let names = files(&server.folder().join("appendonlydir")).into_iter().map(|(name, _)| name);
        names.filter(|name| name.ends_with(".rdb") || name.ends_with(".incr.aof")).count()
    };
    super::exchange::rewrite(&server);
    super::exchange::rewrite(&server);
    assert_eq!(parts(), 6, "three bases, and what was logged behind each");
    assert_eq!(server.connect().run("CONFIG SET aof-disable-auto-gc no").to_string(), "OK");
    wait_until("it is gone", || parts() == 2);
    // The files are removed first, then their lines.
    let path = server.folder().join("appendonlydir/appendonly.aof.manifest");
    wait_until("nor is it listed", || {
        !std::fs::read_to_string(&path).expect("it is there").contains("type h")
    });
    super::exchange::rewrite(&server);
    assert_eq!(parts(), 2);
}

/// The parts of an append-only file by name, and its manifest, after each of these steps.
fn parts_after_steps(program: &Program) -> Vec<(&'static str, Vec<String>, Vec<String>)> {
    const STEPS: &[&str] = &[
        "SET k v",
        "BGREWRITEAOF",
        "INCR n",
        "BGREWRITEAOF",
        "CONFIG SET appendonly no",
        "BGREWRITEAOF",
        "SET lost 1",
        "DEBUG LOADAOF",
        "INCR n",
        "CONFIG SET appendonly yes",
        "INCR n",
        "CONFIG SET aof-disable-auto-gc yes",
        "BGREWRITEAOF",
        "INCR n",
        "BGREWRITEAOF",
        "CONFIG SET aof-disable-auto-gc no",
        "DEBUG LOADAOF",
        "BGREWRITEAOF",
        "CONFIG SET appendonly no",
        "CONFIG SET appendonly yes",
        "kill",
        "INCR n",
        "BGREWRITEAOF",
        "stop",
        "INCR n",
        "CONFIG SET aof-use-rdb-preamble no",
        "BGREWRITEAOF",
        "FLUSHALL",
        "BGREWRITEAOF",
        "kill",
    ];
    let mut server = Server::start(program, super::exchange::ARGS);
    let folder = server.folder().join("appendonlydir");
    let mut seen = Vec::new();
    for step in STEPS {
        match *step {
            "kill" => server.kill(),
            "stop" => assert!(server.stop().success()),
            "BGREWRITEAOF" => super::exchange::rewrite(&server),
            line => assert!(!server.connect().run(line).is_error(), "{line}"),
        }
        if !server.is_alive() {
            server.start_again();
        }
        let is_done = || {
            let fields = ["aof_rewrite_in_progress", "aof_rewrite_scheduled"];
            let is_on = server.connect().run("CONFIG GET appendonly").to_string().contains("yes");
            fields.iter().all(|field| server.info(field) == "0")
                && (server.info("aof_enabled") == "1") == is_on
        };
        wait_until("it is done", is_done);
        let said = |manifest: String| manifest.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
        let manifest = || {
            let read = std::fs::read_to_string(folder.join("appendonly.aof.manifest"));
            said(read.expect("there is one"))
        };
        let parts = || {
            let names = files(&folder).into_iter().map(|(name, _)| name);
            names.filter(|name| name.ends_with(".rdb") || name.ends_with(".aof")).collect::<Vec<_>>()
        };
        // Files that are no longer listed are removed a moment later.
        wait_until("the others are gone", || {
            let named = manifest();
            let keeps = server.connect().run("CONFIG GET aof-disable-auto-gc").to_string().contains("yes");
            named.len() == parts().len() && (keeps || !named.iter().any(|line| line.ends_with("type h")))
        });
        let values = ["k", "n", "lost"].map(|key| server.connect().run(&format!("GET {key}")).to_string());
        seen.push((*step, [parts(), values.to_vec()].concat(), manifest()));
    }
    seen
}

/// Operators, backups and tools rely on the names in the folder.
#[test]
fn parts_have_the_names_that_redis_gives_them() {
    let Some(redis) = Program::oracle(Reference::Redis) else { return };
    let (ours, theirs) = (parts_after_steps(&program()), parts_after_steps(&redis));
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs);
    }
    assert!(ours.iter().any(|(_, _, manifest)| manifest.len() == 6), "with history: {ours:?}");
}

/// Automatically, after the rewrite has ended.
#[test]
fn a_save_can_be_scheduled_after_a_rewrite() {
    for program in [Program::oracle(Reference::Redis), Some(program())].into_iter().flatten() {
        let server = Server::start(&program, &["--appendonly", "yes"]);
        let mut client = server.connect();
        let number = |field: &str| server.info(field).parse::<u64>().expect("a number");
        wait_until("a log has its base", || number("aof_rewrite_in_progress") == 0);
        (0..300).for_each(|n| assert_eq!(client.run(&format!("SET key:{n} 1")).to_string(), "OK"));
        let saves = number("rdb_saves");
        assert_eq!(client.run("CONFIG SET rdb-key-save-delay 10000").to_string(), "OK");
        assert_eq!(client.run("BGREWRITEAOF").to_string(), "Background append only file rewriting started");
        let refused = client.run("BGSAVE").to_string();
        assert!(refused.starts_with("-ERR Another child process is active (AOF?)"), "{refused}");
        assert_eq!(client.run("BGSAVE SCHEDULE").to_string(), "Background saving scheduled");
        assert_eq!((number("rdb_saves"), number("aof_rewrite_in_progress")), (saves, 1));
        assert_eq!(client.run("CONFIG SET rdb-key-save-delay 0").to_string(), "OK");
        wait_until("it is saved", || number("rdb_saves") == saves + 1);
        assert_eq!(number("aof_rewrite_in_progress"), 0, "the rewrite came first");
        wait_until("it has ended", || number("rdb_bgsave_in_progress") == 0);
        assert!(server.folder().join("dump.rdb").exists());
    }
}

/// The partial file of a snapshot that was given up.
#[test]
fn a_shutdown_without_save_leaves_no_partial_snapshot() {
    for program in [Program::oracle(Reference::Redis), Some(program())].into_iter().flatten() {
        let mut server = Server::start(&program, &["--save", ""]);
        let mut client = server.connect();
        (0..300).for_each(|n| assert_eq!(client.run(&format!("SET key:{n} 1")).to_string(), "OK"));
        assert_eq!(client.run("CONFIG SET rdb-key-save-delay 10000").to_string(), "OK");
        assert_eq!(client.run("BGSAVE").to_string(), "Background saving started");
        let parts = || files(server.folder()).into_iter().filter(|(name, _)| name.ends_with("rdb")).count();
        wait_until("some is written", || parts() == 1);
        client.send(&["SHUTDOWN", "NOSAVE"]).expect("it reads");
        wait_until("it ends", || !server.is_alive());
        assert_eq!(files(server.folder()).iter().filter(|(name, _)| name.ends_with("rdb")).count(), 0);
    }
}
