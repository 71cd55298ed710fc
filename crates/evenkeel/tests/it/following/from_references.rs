//! Replicas of redis-server and of Valkey: moving in.

use evenkeel_testkit::{Program, Reference, Server};

use super::{PRIMARY, REPLICA, await_equal, await_link, follow, seed, wait_until, write};
use crate::program;

const COMMANDS: usize = 2_500;

/// Each way to take over the data, and then the stream, from a foreign primary.
fn check_full_sync(reference: Reference) {
    let Some(primary) = Program::oracle(reference) else { return };
    let seed = seed();
    for (number, way) in ["disabled", "on-empty-db", "swapdb", "flush-before-load"].into_iter().enumerate() {
        for diskless in ["yes", "no"] {
            let args = [PRIMARY, &["--repl-diskless-sync", diskless]].concat();
            let mut replica = Server::start(&program(), &[REPLICA, &["--repl-diskless-load", way]].concat());
            let primary = Server::start(&primary, &args);
            let seed = seed + 10 * number as u64;
            write(&primary, reference, seed, COMMANDS);
            if way == "swapdb" {
                write(&replica, reference, seed + 1, 200);
            }
            follow(&replica, primary.port());
            await_link(&replica);
            await_equal(&primary, &replica);
            write(&primary, reference, seed + 2, COMMANDS);
            await_equal(&primary, &replica);
            assert_eq!(replica.info("master_commands_failed"), "0", "{}", replica.log());
            replica.assert_healthy();
        }
    }
}

#[test]
fn evenkeel_follows_redis() {
    check_full_sync(Reference::Redis);
}

#[test]
fn evenkeel_follows_valkey() {
    check_full_sync(Reference::Valkey);
}

/// Valkey sends `EX 10 PXAT ..` if a client has sent two relative times; clients may not send this form.
#[test]
fn repeated_expiries_of_valkey_are_applied() {
    let Some(primary) = Program::oracle(Reference::Valkey) else { return };
    let (primary, mut replica) = (Server::start(&primary, PRIMARY), Server::start(&program(), REPLICA));
    follow(&replica, primary.port());
    await_link(&replica);
    let mut client = primary.connect();
    for line in [
        "HSETEX h EX 100 EX 200 FIELDS 1 a b",
        "HSETEX h PX 100000 NX PX 200000 FIELDS 1 c d",
        "HSETEX h EX 100 EX 200 EX 300 FIELDS 1 e f",
        "HGETEX h EX 100 EX 200 FIELDS 1 a",
        "MSETEX 1 k v EX 100 EX 200",
        "SET l v EX 100 EX 200",
        "GETEX l EX 100 EX 300",
    ] {
        assert!(!client.run(line).is_error(), "{line}");
    }
    await_equal(&primary, &replica);
    assert_eq!(replica.info("master_commands_failed"), "0", "{}", replica.log());
    assert!(replica.connect().run("HSETEX h EX 100 PXAT 99999999999999 FIELDS 1 a b").is_error());
    replica.assert_healthy();
}

/// Effects of scripts and functions arrive as commands, and libraries as they are; older libraries come by
/// full sync.
#[test]
fn libraries_and_script_effects_are_replicated() {
    let references = [Reference::Redis, Reference::Valkey].into_iter().filter_map(Program::oracle);
    references.chain([program()]).for_each(check_scripts);
}

fn check_scripts(primary: Program) {
    let (primary, mut replica) = (Server::start(&primary, PRIMARY), Server::start(&program(), REPLICA));
    let mut client = primary.connect();
    let library = "#!lua name=lib\nredis.register_function('add', function(keys) \
                   return redis.call('INCR', keys[1]) end)";
    assert_eq!(client.call(&["FUNCTION", "LOAD", library]).to_string(), "\"lib\"");
    follow(&replica, primary.port());
    await_link(&replica);
    for _ in 0..10 {
        assert!(client.run("FCALL add 1 counter").as_int().is_some());
        let script = "redis.call('SADD', KEYS[1], math.random(1000000)); return redis.call('SPOP', KEYS[1])";
        client.call(&["EVAL", script, "1", "set"]);
    }
    client.run("MULTI");
    client.run("SELECT 3");
    client.run("RPUSH list a b c");
    client.run("PUBLISH channel message");
    client.run("FLUSHDB");
    client.run("SET k v");
    client.run("EXEC");
    let later = "#!lua name=later\nredis.register_function('none', function() return 0 end)";
    assert_eq!(client.call(&["FUNCTION", "LOAD", later]).to_string(), "\"later\"");
    await_equal(&primary, &replica);
    for name in ["lib", "later"] {
        let ask = ["FUNCTION", "LIST", "LIBRARYNAME", name, "WITHCODE"];
        let [theirs, ours] = [&primary, &replica].map(|server| server.connect().call(&ask).to_string());
        assert!(theirs.contains("register_function"), "{theirs}");
        assert_eq!(ours, theirs);
    }
    client.run("FUNCTION DELETE lib");
    await_equal(&primary, &replica);
    assert_eq!(replica.connect().run("FUNCTION LIST LIBRARYNAME lib").to_string(), "[]");
    replica.assert_healthy();
}

/// The primary's stream removes expired keys. Until then no client sees such a key, and the replica keeps it.
#[test]
fn expired_keys_are_removed_by_the_primarys_stream() {
    let Some(primary) = Program::oracle(Reference::Redis) else { return };
    let (primary, replica) = (Server::start(&primary, PRIMARY), Server::start(&program(), REPLICA));
    let (mut one, mut other) = (primary.connect(), replica.connect());
    one.run("DEBUG SET-ACTIVE-EXPIRE 0");
    one.run("SET before v PX 300");
    follow(&replica, primary.port());
    await_link(&replica);
    one.run("SET k v PX 200");
    one.run("RPUSH list a b");
    one.run("PEXPIRE list 200");
    await_equal(&primary, &replica);
    std::thread::sleep(std::time::Duration::from_millis(700));
    for _ in 0..2 {
        assert_eq!(other.run("GET k").to_string(), "(nil)");
        assert_eq!(other.run("EXISTS before list k").as_int(), Some(0));
        assert_eq!(other.run("LRANGE list 0 -1").to_string(), "[]");
        assert_eq!(other.run("SCAN 0").as_items().map(|items| items[1].to_string()).as_deref(), Some("[]"));
        assert_eq!(other.run("DBSIZE").as_int(), Some(3), "hidden, and still there");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    one.run("GET k");
    wait_until("one is gone", || other.run("DBSIZE").as_int() == Some(2));
    one.run("DEBUG SET-ACTIVE-EXPIRE 1");
    wait_until("all are gone", || other.run("DBSIZE").as_int() == Some(0));
    // A primary removes expired keys itself.
    one.run("SET last v PX 100");
    one.run("DEBUG SET-ACTIVE-EXPIRE 0");
    wait_until("it has come", || other.run("DBSIZE").as_int() == Some(1));
    other.run("REPLICAOF NO ONE");
    wait_until("it is gone", || other.run("DBSIZE").as_int() == Some(0));
}

/// While the link is down, and when the primary has been restarted.
#[test]
fn a_replica_reconnects_to_a_restarted_primary() {
    let Some(reference) = Program::oracle(Reference::Redis) else { return };
    let mut primary = Server::start(&reference, &[PRIMARY, &["--appendonly", "no"]].concat());
    let replica = Server::start(&program(), REPLICA);
    let seed = seed();
    write(&primary, Reference::Redis, seed, 300);
    follow(&replica, primary.port());
    await_link(&replica);
    for round in 0..3 {
        write(&primary, Reference::Redis, seed + round, 200);
        await_equal(&primary, &replica);
        primary.connect().run("SAVE");
        primary.kill();
        wait_until("the link is down", || replica.info("master_link_status") == "down");
        let stale = replica.connect().run("GET written").to_string();
        assert_eq!(stale, "\"1\"", "what is there is served");
        primary.start_again();
        await_link(&replica);
        await_equal(&primary, &replica);
    }
}

/// A restarted replica continues from its offset.
#[test]
fn a_restarted_replica_continues_from_its_offset() {
    let Some(reference) = Program::oracle(Reference::Redis) else { return };
    let primary = Server::start(&reference, PRIMARY);
    let port = primary.port().to_string();
    write(&primary, Reference::Redis, seed(), 300);
    let mut replica = Server::start(
        &program(),
        &[REPLICA, &["--replicaof", "127.0.0.1", &port, "--save", "1000 1000"]].concat(),
    );
    await_link(&replica);
    for round in 0..3 {
        write(&primary, Reference::Redis, seed(), 200);
        primary.connect().run("SELECT 7");
        await_equal(&primary, &replica);
        assert!(replica.stop().success());
        write(&primary, Reference::Redis, seed(), 200);
        replica.start_again();
        await_link(&replica);
        await_equal(&primary, &replica);
        assert_eq!(
            (replica.info("master_partial_syncs").as_str(), replica.info("master_full_syncs").as_str()),
            ("1", "0"),
            "round {round}: {}",
            replica.log()
        );
    }
    replica.assert_healthy();
}
