//! Upgrades of primaries and replicas, and of servers with other listeners.

use std::time::{Duration, Instant};

use evenkeel_testkit::Client;

use crate::disk::Disk;

use super::{Server, must_upgrade, start, upgrade, wait_until};

fn attached(primary: &Server) -> Server {
    let replica = start(&["--enable-debug-command", "yes"]);
    let reply = replica.connect().run(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    assert!(!reply.is_error(), "{reply}");
    wait_until("the link is up", || replica.info("master_link_status") == "up");
    replica
}

fn assert_same(primary: &Server, replica: &Server) {
    wait_until("the replica has all", || {
        replica.info("master_link_status") == "up"
            && primary.info("master_repl_offset") == replica.info("slave_repl_offset")
    });
    let digest = |server: &Server| server.connect().run("DEBUG DIGEST").to_string();
    assert_eq!(digest(primary), digest(replica));
}

#[test]
fn replicas_of_an_upgraded_primary_continue() {
    let primary = start(&["--repl-diskless-sync-delay", "0", "--enable-debug-command", "yes"]);
    let replica = attached(&primary);
    let (mut client, mut notified) = (primary.connect(), primary.connect3());
    notified.run("CLIENT MAINT_NOTIFICATIONS ON");
    client.run("SET a 1");
    for round in 0..3 {
        must_upgrade(&primary);
        client.run(&format!("SET b {round}"));
        assert_same(&primary, &replica);
        assert_eq!(primary.info("connected_slaves"), "1");
        assert_eq!(primary.info("sync_full"), "0", "the new process sends no snapshot");
        assert_eq!(primary.info("sync_partial_ok"), "1");
    }
    client.run("FAILOVER");
    let notice = notified.read().to_string();
    assert!(notice.contains("FAILING_OVER"), "{notice}");
}

#[test]
fn an_upgraded_replica_continues() {
    let primary = start(&["--repl-diskless-sync-delay", "0", "--enable-debug-command", "yes"]);
    let replica = attached(&primary);
    let (mut writer, mut reader) = (primary.connect(), replica.connect());
    let full = primary.info("sync_full");
    for round in 0..3 {
        for key in 0..200 {
            writer.run(&format!("INCRBY key:{key} {round}"));
        }
        must_upgrade(&replica);
        assert!(reader.run("SET x y").is_error(), "it is a replica");
        assert_same(&primary, &replica);
        assert_eq!(primary.info("sync_full"), full, "it continues with the stream");
    }
}

/// The successor is no replica for anybody else.
#[test]
fn the_successor_does_not_show() {
    let server = start(&["--min-replicas-to-write", "0"]);
    let mut client = server.connect();
    must_upgrade(&server);
    assert_eq!(server.info("connected_slaves"), "0");
    assert_eq!(server.info("role"), "master");
    assert_eq!(client.run("WAIT 1 10").to_string(), ":0");
}

#[test]
fn unix_sockets_and_their_clients_go_on() {
    let server = start(&["--unixsocket", "{dir}/sock"]);
    let path = server.folder().join("sock");
    let mut client = Client::connect_unix(&path).expect("it listens");
    client.run("SET a 1");
    must_upgrade(&server);
    assert_eq!(client.run("GET a").to_string(), "\"1\"");
    must_upgrade(&server);
    let mut other = Client::connect_unix(&path).expect("it listens");
    assert_eq!(other.run("GET a").to_string(), "\"1\"");
}

/// A client with TLS has to connect again, and can; the command says so.
#[test]
fn clients_with_tls_are_told_of() {
    let certs = crate::tls::certs::Certs::new();
    let secure = crate::tls::start_secure_as(&crate::program(), &certs, &["--tls-auth-clients", "no"]);
    let (port, server) = (secure.port, Server(secure.server));
    let mut plain = server.connect();
    plain.run("SET a 1");
    let mut client = crate::tls::connect(port, &certs);
    client.run("GET a");
    let mut asking = crate::tls::connect(port, &certs);
    asking.run("HELLO 3");
    asking.run("CLIENT MAINT_NOTIFICATIONS ON");
    let text = must_upgrade(&server);
    assert!(text.contains("closed: 2 connections with TLS"), "{text}");
    assert!(client.try_call(&["GET", "a"]).is_err(), "it is closed");
    let moving = asking.read().to_string();
    assert!(moving.contains("MOVING") && moving.contains(&format!("127.0.0.1:{port}")), "{moving}");
    assert!(asking.try_read().is_err(), "it is closed");
    let mut again = crate::tls::connect(port, &certs);
    assert_eq!(again.run("GET a").to_string(), "\"1\"");
}

/// A snapshot ends first, and a server that stops is not upgraded.
#[test]
fn upgrades_wait_for_snapshots() {
    let server =
        start(&["--rdb-key-save-delay", "1000", "--enable-debug-command", "yes", "--save", "3600 1"]);
    let mut client = server.connect();
    client.run("DEBUG POPULATE 500");
    client.run("BGSAVE");
    assert_eq!(server.info("rdb_bgsave_in_progress"), "1");
    let text = must_upgrade(&server);
    assert!(text.contains("waiting: a snapshot"), "{text}");
    assert_eq!(client.run("DBSIZE").to_string(), ":500");
    assert!(std::fs::metadata(server.folder().join("dump.rdb")).is_ok(), "the snapshot was completed");
}

#[test]
fn an_open_backup_is_a_reason_to_refuse() {
    let server = start(&["--threads", "1"]);
    let mut client = server.connect();
    assert_eq!(client.run("BACKUP START").to_string(), "OK");
    let errors = String::from_utf8_lossy(&upgrade(&server).stderr).into_owned();
    assert!(errors.contains("a backup is open"), "{errors}");
    client.run("BACKUP ABORT");
    must_upgrade(&server);
}

/// A disk that hangs under the append-only file is a reason to refuse, and no client waits for it.
#[test]
fn a_disk_that_hangs_delays_no_client() {
    let Some(disk) = Disk::mount("upgrade", 64) else { return };
    let dir = disk.path().to_string_lossy().into_owned();
    let server =
        start(&["--threads", "2", "--dir", &dir, "--appendonly", "yes", "--appendfsync", "everysec"]);
    let (mut client, mut reader) = (server.connect(), server.connect());
    client.run("SET a 1");
    let frozen = disk.freeze();
    client.run("SET b 2");
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| upgrade(&server));
        let (began, mut longest) = (Instant::now(), Duration::ZERO);
        while !asked.is_finished() && began.elapsed() < Duration::from_secs(60) {
            let sent = Instant::now();
            assert_eq!(reader.run("GET a").to_string(), "\"1\"");
            longest = longest.max(sent.elapsed());
        }
        let output = asked.join().expect("it does not panic");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains("the disk of the append-only file"), "{errors}");
        println!("longest request: {longest:?}");
    });
    drop(frozen);
    assert_eq!(client.run("GET b").to_string(), "\"2\"");
    must_upgrade(&server);
    assert_eq!(client.run("GET b").to_string(), "\"2\"");
    drop(server);
}

#[test]
fn one_upgrade_at_a_time() {
    let server = start(&["--enable-debug-command", "yes"]);
    let mut client = server.connect();
    client.run("DEBUG POPULATE 200000");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| upgrade(&server));
        wait_until("it has begun", || {
            let text = server.log();
            text.contains("asks for synchronization") || first.is_finished()
        });
        let second = upgrade(&server);
        let first = first.join().expect("it does not panic");
        assert!(first.status.success(), "{first:?}");
        let errors = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(second.status.success() || errors.contains("another upgrade is under way"), "{errors}");
    });
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(client.run("DBSIZE").to_string(), ":200000");
}

/// Also if the map was changed after the start.
#[test]
fn a_node_of_a_cluster_keeps_its_identity() {
    let server = start(&["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"]);
    let mut client = server.connect();
    let mut run = |line: &str| client.run(line).to_string();
    assert_eq!(run("CLUSTER DELSLOTS 7"), "OK");
    assert_eq!(run("SET foo v"), "OK");
    let before = ["NODES", "MYSHARDID", "SLOTS"].map(|word| run(&format!("CLUSTER {word}")));
    must_upgrade(&server);
    assert_eq!(before, ["NODES", "MYSHARDID", "SLOTS"].map(|word| run(&format!("CLUSTER {word}"))));
    assert_eq!(run("GET foo"), "\"v\"");
    assert_eq!(run("SET {foo}2 v"), "OK");
    assert_eq!(run("CLUSTER ADDSLOTS 7"), "OK");
    assert!(run("CLUSTER NODES").contains("connected 0-16383"));
}
