//! A node that is alone: its identity, its file, and changes of its map.

use evenkeel_testkit::Server;

use super::{IDS, text};
use crate::{program, start};

const ALONE: [&str; 2] = ["--cluster-enabled", "yes"];

fn file(server: &Server) -> String {
    std::fs::read_to_string(server.folder().join("nodes.conf")).expect("the file of the map")
}

#[test]
fn the_identity_outlives_a_restart() {
    let mut server = start(&ALONE);
    let mut client = server.connect();
    let ids = ["MYID", "MYSHARDID"].map(|word| text(&mut client, &format!("CLUSTER {word}")));
    assert_ne!(ids[0], ids[1]);
    assert!(file(&server).contains(&ids[0].replace('"', "")), "{}", file(&server));
    client.run("SET foo 1");
    assert!(server.stop().success());
    server.start_again();
    let mut client = server.connect();
    assert_eq!(ids, ["MYID", "MYSHARDID"].map(|word| text(&mut client, &format!("CLUSTER {word}"))));
    assert!(text(&mut client, "CLUSTER INFO").contains("cluster_state:ok"));
    // An address that this node does not know is that at which the client has reached it.
    let slots = text(&mut client, "CLUSTER SLOTS");
    assert!(slots.starts_with("[[:0, :16383, [\"127.0.0.1\", "), "{slots}");
    server.assert_healthy();
}

#[test]
fn changes_of_the_map_are_kept() {
    let mut server = start(&ALONE);
    let mut client = server.connect();
    let mut run = |line: &str| text(&mut client, line);
    assert_eq!(run("CLUSTER DELSLOTS 5 6"), "OK");
    assert_eq!(run("CLUSTER DELSLOTSRANGE 100 199 300 300"), "OK");
    assert_eq!(run("CLUSTER ADDSLOTS 6"), "OK");
    assert_eq!(run("CLUSTER ADDSLOTSRANGE 150 160"), "OK");
    assert!(run("CLUSTER NODES").contains("connected 0-4 6-99 150-160 200-299 301-16383"));
    assert_eq!(run("GET foo"), "-CLUSTERDOWN The cluster is down");
    assert_eq!(run("CLUSTER BUMPEPOCH"), "BUMPED 1");
    assert_eq!(run("CLUSTER BUMPEPOCH"), "STILL 1");
    for (line, error) in [
        ("CLUSTER ADDSLOTS 6", "Slot 6 is already busy"),
        ("CLUSTER ADDSLOTS 5 5", "Slot 5 specified multiple times"),
        ("CLUSTER ADDSLOTS 16384", "Invalid or out of range slot"),
        ("CLUSTER ADDSLOTSRANGE 9 8", "start slot number 9 is greater than end slot number 8"),
        ("CLUSTER DELSLOTS 5", "Slot 5 is already unassigned"),
        ("CLUSTER SET-CONFIG-EPOCH 7", "Node config epoch is already non-zero"),
        ("CLUSTER SETSLOT 7 MIGRATING x", "I don't know about node x"),
        ("CLUSTER SETSLOT 5 IMPORTING x", "I don't know about node x"),
        ("CLUSTER SETSLOT 7 NODE x", "Unknown node x"),
        ("CLUSTER MEET 127.0.0.1 70000", "Port number is out of range"),
    ] {
        assert_eq!(run(line), format!("-ERR {error}"), "{line}");
    }
    let needs = run("CLUSTER MEET 127.0.0.1 7000");
    assert!(needs.starts_with("-ERR CLUSTER MEET needs cluster-store"), "{needs}");
    assert_eq!(run("MULTI"), "OK");
    assert_eq!(run("CLUSTER ADDSLOTS 5"), "QUEUED");
    assert_eq!(run("PING"), "QUEUED");
    assert!(run("EXEC").starts_with("[-ERR the map of the cluster is not changed in a script, or"));
    assert_eq!(run("MULTI"), "OK");
    for line in ["DELSLOTS 5", "ADDSLOTS 5", "SETSLOT 5 STABLE", "DELSLOTS 5", "BUMPEPOCH"] {
        assert_eq!(run(&format!("CLUSTER {line}")), "QUEUED");
    }
    assert_eq!(run("EXEC"), "[-ERR Slot 5 is already unassigned, OK, OK, OK, STILL 1]");
    server.kill();
    server.start_again();
    let mut client = server.connect();
    assert!(text(&mut client, "CLUSTER NODES").contains(" 1 connected 0-4 6-99 150-160 200-299 301-16383"));
    server.assert_healthy();
}

#[test]
fn a_reset_node_begins_anew() {
    let server = start(&ALONE);
    let mut client = server.connect();
    let mut run = |line: &str| text(&mut client, line);
    let id = run("CLUSTER MYID");
    run("SET foo 1");
    assert_eq!(run("CLUSTER RESET"), "-ERR CLUSTER RESET can't be called with master nodes containing keys");
    assert_eq!(run("CLUSTER FLUSHSLOTS"), "-ERR DB must be empty to perform CLUSTER FLUSHSLOTS.");
    run("FLUSHALL");
    assert_eq!(run("CLUSTER RESET HARD"), "OK");
    assert_ne!(run("CLUSTER MYID"), id);
    assert_eq!(run("GET foo"), "-CLUSTERDOWN Hash slot not served");
    assert_eq!(run("CLUSTER SET-CONFIG-EPOCH 7"), "OK");
    assert_eq!(run("CLUSTER ADDSLOTSRANGE 0 16383"), "OK");
    assert_eq!(run("SET foo 1"), "OK");
    assert!(file(&server).contains("vars currentEpoch 7 "), "{}", file(&server));
    run("FLUSHALL");
    assert_eq!(run("CLUSTER FLUSHSLOTS"), "OK");
    assert_eq!(run("CLUSTER SLOTS"), "[]");
}

/// A waiting client is redirected by the thread that changes the map, and a listener is unsubscribed.
#[test]
fn clients_notice_that_a_slot_leaves() {
    let server = start(&["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"]);
    let (mut admin, mut waits, mut listens) = (server.connect(), server.connect(), server.connect3());
    waits.send(&["BLPOP", "foo", "0"]).expect("sent");
    assert_eq!(text(&mut listens, "SSUBSCRIBE {foo}c"), ">[\"ssubscribe\", \"{foo}c\", :1]");
    assert_eq!(text(&mut listens, "SSUBSCRIBE bar"), ">[\"ssubscribe\", \"bar\", :2]");
    crate::wait_until("the client waits", || server.info("blocked_clients") == "1");
    assert_eq!(text(&mut admin, "CLUSTER DELSLOTS 12182"), "OK");
    assert_eq!(waits.read().to_string(), "-CLUSTERDOWN Hash slot not served");
    assert_eq!(listens.read().to_string(), ">[\"sunsubscribe\", \"{foo}c\", :1]");
    assert_eq!(text(&mut admin, "PUBSUB SHARDCHANNELS"), "[\"bar\"]");
    assert_eq!(text(&mut admin, "SPUBLISH bar x"), ":1");
    assert_eq!(listens.read().to_string(), ">[\"smessage\", \"bar\", \"x\"]");
}

#[test]
fn a_damaged_file_keeps_the_server_from_starting() {
    let mut server = start(&ALONE);
    assert!(server.stop().success());
    let path = server.folder().join("nodes.conf");
    let good = file(&server);
    for bad in [good.replace("myself,", ""), good[..good.len() - 2].to_owned(), "\u{0}".into(), String::new()]
    {
        std::fs::write(&path, bad).expect("writable");
        assert!(server.try_start_again().is_err());
        let log = server.log();
        let line = log.lines().rev().find(|line| line.contains("corrupted cluster config file"));
        assert!(line.is_some_and(|line| line.contains("nodes.conf")), "{log}");
    }
    std::fs::write(&path, good).expect("writable");
    server.start_again();
}

#[test]
fn a_file_of_redis_is_read() {
    let scratch = evenkeel_testkit::scratch::Scratch::new();
    scratch.write("nodes.conf", &format!("{} :0@0 myself,master - 0 0 9 connected 0-16383\n", IDS[0]));
    let dir = scratch.path.display().to_string();
    let server = Server::start(&program(), &["--cluster-enabled", "yes", "--dir", &dir]);
    let mut client = server.connect();
    assert_eq!(text(&mut client, "CLUSTER MYID"), format!("\"{}\"", IDS[0]));
    assert!(text(&mut client, "CLUSTER INFO").contains("cluster_my_epoch:9"));
}
