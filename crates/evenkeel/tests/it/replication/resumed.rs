//! Replicas that were away continue from their offset if the backlog has the rest; otherwise they get a full
//! sync.

use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_testkit::{Program, Reference, Server};

use super::{
    PRIMARY, REPLICA, assert_same, attach, await_link, freeze, number, ok, primary, references, replicas,
    thaw, wait_until,
};
use crate::Ends;

#[test]
fn a_broken_connection_resumes_from_the_backlog() {
    let server = primary(&[]);
    let mut client = server.connect();
    for replica in replicas() {
        attach(&replica, &server);
        let (full, partial) = (number(&server, "sync_full"), number(&server, "sync_partial_ok"));
        for round in 1..=5 {
            for n in 0..100 {
                ok(&mut client, &format!("RPUSH list {round}.{n}"));
            }
            assert_eq!(client.run("CLIENT KILL TYPE replica").as_int(), Some(1));
            ok(&mut client, &format!("SET round {round}"));
            wait_until("it comes again", || number(&server, "sync_partial_ok") == partial + round);
            assert_same(&server, &replica);
        }
        assert_eq!(number(&server, "sync_full"), full, "nothing was sent anew");
        ok(&mut replica.connect(), "REPLICAOF NO ONE");
        wait_until("it is gone", || server.info("connected_slaves") == "0");
    }
}

/// A restarted replica knows its offset from its own snapshot.
#[test]
fn a_restarted_replica_resumes() {
    for reference in [Reference::Redis, Reference::Valkey] {
        let Some(program) = Program::oracle(reference) else { continue };
        let server = primary(&[]);
        let address = format!("127.0.0.1 {}", server.port());
        let args = [REPLICA, &["--replicaof", &address, "--save", "1000 1000"]].concat();
        let mut replica = Server::start(&program, &args);
        await_link(&replica);
        let mut client = server.connect();
        ok(&mut client, "SET before 1");
        assert_same(&server, &replica);
        assert!(replica.stop().success());
        ok(&mut client, "SELECT 3");
        ok(&mut client, "SET meanwhile 1");
        replica.start_again();
        await_link(&replica);
        assert_same(&server, &replica);
        assert_eq!((number(&server, "sync_full"), number(&server, "sync_partial_ok")), (1, 1));
    }
}

/// A primary and its replicas, after two clean restarts of the primary without a full sync. Calls `loaded`
/// after each.
fn restarted(options: &[&str], loaded: impl Fn(&Server)) -> (Server, Vec<Server>) {
    let mut server = primary(options);
    let replicas = replicas();
    replicas.iter().for_each(|replica| attach(replica, &server));
    let all = replicas.len() as u64;
    for round in 1..=2 {
        let mut client = server.connect();
        let due = SystemTime::now() + Duration::from_secs(2);
        let due_ms = due.duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
        for n in 0..200 {
            ok(&mut client, &format!("SELECT {}", n % 3));
            ok(&mut client, &format!("SET brief:{n} v PXAT {due_ms}"));
            ok(&mut client, &format!("RPUSH list:{n} {round}"));
        }
        let (id, full) = (server.info("master_replid"), number(&replicas[0], "sync_full"));
        assert!(server.stop().success());
        std::thread::sleep(
            due.duration_since(SystemTime::now()).unwrap_or_default() + Duration::from_millis(100),
        );
        server.start_again();
        assert_eq!(server.info("master_replid2"), id, "{}", server.log());
        loaded(&server);
        wait_until("they come again", || number(&server, "sync_partial_ok") == all);
        ok(&mut server.connect(), "SET round 1");
        for replica in &replicas {
            await_link(replica);
            let sizes = |server: &Server| {
                [0, 1, 2].map(|db| {
                    let mut client = server.connect();
                    ok(&mut client, &format!("SELECT {db}"));
                    client.run("DBSIZE").as_int()
                })
            };
            let left = [Some(68), Some(67), Some(66)];
            wait_until("what has expired is removed", || sizes(&server) == left);
            assert_same(&server, replica);
            assert_eq!(sizes(replica), left);
        }
        assert_eq!((number(&server, "sync_full"), number(&replicas[0], "sync_full")), (0, full));
    }
    (server, replicas)
}

/// A restarted primary knows its offset from its last snapshot. Keys that expire meanwhile are removed on the
/// replicas, too.
#[test]
fn a_restarted_primary_resumes() {
    let (mut server, replicas) = restarted(&["--save", "1000 1000"], |server| {
        assert_eq!(number(server, "rdb_last_load_keys_expired"), 200);
    });
    ok(&mut server.connect(), "CONFIG RESETSTAT");
    assert_eq!(number(&server, "sync_partial_ok"), 0);
    // After a kill, its data on disk are older than its replicas' data.
    ok(&mut server.connect(), "SET after it");
    assert_same(&server, &replicas[0]);
    server.kill();
    server.start_again();
    wait_until("they begin anew", || number(&server, "sync_full") == replicas.len() as u64);
    assert_eq!(number(&server, "sync_partial_ok"), 0);
    for replica in &replicas {
        await_link(replica);
        assert_same(&server, replica);
        assert_eq!(replica.connect().run("EXISTS after").as_int(), Some(0));
    }
}

const LOGGED: &[&str] = &["--appendonly", "yes", "--save", ""];

/// A primary's append-only file has its replication offset at the end, like its last snapshot.
#[test]
fn a_restarted_primary_with_an_append_only_file_resumes() {
    let (mut server, replicas) = restarted(LOGGED, |_| {});
    // After a kill, the file has more than its stored offset covers.
    assert_same(&server, &replicas[0]);
    server.kill();
    server.start_again();
    wait_until("they begin anew", || number(&server, "sync_full") == replicas.len() as u64);
    assert_eq!(number(&server, "sync_partial_ok"), 0);
    replicas.iter().for_each(|replica| {
        await_link(replica);
        assert_same(&server, replica);
    });
}

/// So does a replica's append-only file, with a stream that goes on.
#[test]
fn a_restarted_replica_with_an_append_only_file_resumes() {
    let references = [Reference::Redis, Reference::Valkey].into_iter().filter_map(Program::oracle);
    // However late the replica returns, the backlog has its rest.
    const BACKLOG: &[&str] = &["--repl-backlog-size", "256mb"];
    let args = [PRIMARY, BACKLOG].concat();
    let primaries = references.map(|program| Server::start(&program, &args)).chain([primary(BACKLOG)]);
    for server in primaries {
        let address = format!("127.0.0.1 {}", server.port());
        let mut replica = primary(&[LOGGED, &["--replicaof", &address]].concat());
        await_link(&replica);
        let partial = || number(&server, "sync_partial_ok");
        for round in 1..=3 {
            let ends = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut client = server.connect();
                    for n in (0..).take_while(|_| !ends.load(Relaxed)) {
                        ok(&mut client, &format!("SELECT {}", n % 3));
                        ok(&mut client, &format!("INCR n:{}", n % 10));
                        ok(&mut client, "MULTI");
                        ok(&mut client, "RPUSH log x");
                        ok(&mut client, "INCR length");
                        ok(&mut client, "EXEC");
                    }
                });
                let _ends = Ends(&ends);
                std::thread::sleep(Duration::from_millis(200));
                assert!(replica.stop().success());
                replica.start_again();
                await_link(&replica);
            });
            assert_eq!((number(&server, "sync_full"), partial()), (1, round), "{}", replica.log());
            assert_same(&server, &replica);
        }
        // Only an offset at the very end of the file counts.
        ok(&mut server.connect(), "SET more v");
        assert_same(&server, &replica);
        wait_until("it is on disk", || replica.info("aof_buffer_length") == "0");
        replica.kill();
        replica.start_again();
        await_link(&replica);
        assert_same(&server, &replica);
        assert_eq!((number(&server, "sync_full"), partial()), (2, 3));
    }
}

/// If the final snapshot fails, the server stays up, and its replicas continue the same stream.
#[test]
fn a_failed_shutdown_keeps_the_stream() {
    let server = primary(&["--dbfilename", "taken.rdb"]);
    let replica = primary(&[]);
    attach(&replica, &server);
    let mut client = server.connect();
    ok(&mut client, "SET k v");
    std::fs::create_dir(server.folder().join("taken.rdb")).expect("the folder is ours");
    assert!(client.run("SHUTDOWN SAVE").to_string().starts_with("-ERR Errors trying to SHUTDOWN"));
    ok(&mut client, "SET k w");
    assert_eq!(client.run("WAIT 1 10000").as_int(), Some(1));
    assert_same(&server, &replica);
    assert_eq!(number(&server, "sync_full"), 1);
}

/// A killed replica has lost its data, or does not know its offset.
#[test]
fn a_killed_replica_needs_a_full_sync() {
    for mut replica in replicas() {
        let server = primary(&[]);
        attach(&replica, &server);
        ok(&mut server.connect(), "SET a 1");
        replica.kill();
        wait_until("it is gone", || server.info("connected_slaves") == "0");
        ok(&mut server.connect(), "SET b 1");
        replica.start_again();
        attach(&replica, &server);
        assert_same(&server, &replica);
        assert_eq!(number(&server, "sync_full"), 2);
    }
}

/// Primaries of all makes.
fn primaries() -> Vec<Server> {
    let references = [Reference::Redis, Reference::Valkey].into_iter().filter_map(Program::oracle);
    references.map(|program| Server::start(&program, PRIMARY)).chain([primary(&[])]).collect()
}

/// Adds to the present data, so that repeated commands show. Begins and ends in the same database, not the
/// first, so that the next command comes without SELECT.
fn write_more(server: &Server) {
    let mut client = server.connect();
    for n in 0..61 {
        ok(&mut client, &format!("SELECT {}", (n + 2) % 3));
        ok(&mut client, "INCR count");
        ok(&mut client, &format!("RPUSH list {n}"));
        ok(&mut client, &format!("SET timed:{n} v PX {} NX", 10_000_000 + n));
    }
}

/// A killed replica has on disk its own last snapshot, or that of its last full sync. This state is older
/// than its last acknowledged offset, and the primary sends the rest from there on.
#[test]
fn a_killed_replica_resumes_from_its_last_snapshot() {
    for server in primaries() {
        let address = format!("127.0.0.1 {}", server.port());
        let mut replica = primary(&["--replicaof", &address]);
        await_link(&replica);
        for round in 1..=3 {
            write_more(&server);
            assert_same(&server, &replica);
            // Evenkeel's snapshot for replicas does not contain its own offset.
            if round > 1 || server.program().reference().is_none() {
                ok(&mut replica.connect(), "SAVE");
            }
            let on_disk = number(&replica, "slave_repl_offset");
            write_more(&server);
            assert_same(&server, &replica);
            let acknowledged = number(&replica, "slave_repl_offset");
            assert!(acknowledged > on_disk + 1_000);
            replica.kill();
            write_more(&server);
            replica.start_again();
            await_link(&replica);
            assert_same(&server, &replica);
            let counts = (number(&server, "sync_full"), number(&server, "sync_partial_ok"));
            assert_eq!(counts, (1, round), "{}", replica.log());
            let log = replica.log();
            let asked = log.rsplit("Trying a partial resynchronization (request ").next().expect("a rest");
            let asked = asked.split([':', ')']).nth(1).and_then(|next| next.parse::<u64>().ok());
            // The primary may have sent a ping between the snapshot and the request.
            assert!(asked.is_some_and(|next| next <= on_disk + 1 + 28), "{asked:?}, {on_disk} on disk");
        }
    }
}

/// A replica without files has no offset to continue from, in every way of syncing.
#[test]
fn a_killed_replica_without_files_needs_a_full_sync() {
    for options in [["--repl-diskless-load", "swapdb"], ["--rdb-del-sync-files", "yes"]] {
        for server in primaries() {
            let address = format!("127.0.0.1 {}", server.port());
            let mut replica = primary(
                &[&options[..], &["--save", "", "--appendonly", "no", "--replicaof", &address]].concat(),
            );
            await_link(&replica);
            write_more(&server);
            assert_same(&server, &replica);
            assert!(!replica.folder().join("dump.rdb").exists());
            replica.kill();
            write_more(&server);
            replica.start_again();
            await_link(&replica);
            assert_same(&server, &replica);
            assert_eq!((number(&server, "sync_full"), number(&server, "sync_partial_ok")), (2, 0));
        }
    }
}

/// A killed replica gets nothing more, even writes of the same moment.
#[test]
fn a_killed_replica_receives_no_later_write() {
    for replica in replicas() {
        let server = primary(&["--repl-backlog-size", "16kb"]);
        attach(&replica, &server);
        let (mut client, value) = (server.connect(), "v".repeat(20_000));
        for round in 1..=10 {
            ok(&mut client, "MULTI");
            ok(&mut client, "CLIENT KILL TYPE replica");
            (0..10).for_each(|n| ok(&mut client, &format!("SET key:{n} {value}")));
            ok(&mut client, "EXEC");
            wait_until("it is sent everything", || number(&server, "sync_full") == round + 1);
            await_link(&replica);
            assert_same(&server, &replica);
            let syncs = (number(&server, "sync_full"), number(&server, "sync_partial_ok"));
            assert_eq!(syncs, (round + 1, 0), "what it lacks is more than is kept");
        }
    }
}

/// The backlog no longer has the part that a long absence needs.
#[test]
fn bytes_no_longer_in_the_backlog_need_a_full_sync() {
    for replica in replicas() {
        let server = primary(&["--repl-backlog-size", "100kb"]);
        attach(&replica, &server);
        let mut client = server.connect();
        freeze(&replica);
        client.run("CLIENT KILL TYPE replica");
        wait_until("it is gone", || server.info("connected_slaves") == "0");
        let value = "v".repeat(10_000);
        (0..50).for_each(|n| ok(&mut client, &format!("SET key:{n} {value}")));
        wait_until("it is in the stream", || number(&server, "master_repl_offset") > 500_000);
        thaw(&replica);
        wait_until("it is sent everything", || number(&server, "sync_full") == 2);
        await_link(&replica);
        assert_same(&server, &replica);
        assert!(number(&server, "repl_backlog_histlen") < 200_000);
    }
}

/// Without replicas the backlog is freed after a time, and with it the history: the journal ends.
#[test]
fn the_backlog_is_freed_without_replicas() {
    for replica in replicas() {
        let server = primary(&["--repl-backlog-ttl", "1"]);
        let mut client = server.connect();
        assert_eq!(server.info("repl_backlog_active"), "0");
        ok(&mut client, "SET nobody listens");
        assert_eq!(server.info("master_repl_offset"), "0");
        attach(&replica, &server);
        let id = server.info("master_replid");
        ok(&mut client, "SET k v");
        assert_same(&server, &replica);
        ok(&mut replica.connect(), "REPLICAOF NO ONE");
        wait_until("it is freed", || server.info("repl_backlog_active") == "0");
        assert_ne!(server.info("master_replid"), id);
        let offset = server.info("master_repl_offset");
        ok(&mut client, "SET nobody listens");
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(server.info("master_repl_offset"), offset);
        attach(&replica, &server);
        assert_same(&server, &replica);
        assert_eq!(number(&server, "sync_full"), 2);
    }
}

/// A killed primary without files comes back empty, as a primary with a new history: its replicas follow it,
/// become empty, and get its later writes.
#[test]
fn a_primary_that_lost_its_data_is_followed() {
    let mut server = primary(&["--save", ""]);
    let replicas: Vec<Server> = references().into_iter().chain([primary(&["--save", ""])]).collect();
    ok(&mut server.connect(), "SET before 1");
    for replica in &replicas {
        attach(replica, &server);
        assert_same(&server, replica);
    }
    let id = server.info("master_replid");
    server.kill();
    server.start_again();
    assert_ne!(server.info("master_replid"), id);
    ok(&mut server.connect(), "SET after 1");
    for replica in &replicas {
        await_link(replica);
        assert_same(&server, replica);
        assert_eq!(replica.connect().run("KEYS *").to_string(), "[\"after\"]");
    }
    assert_eq!(number(&server, "sync_partial_ok"), 0, "nobody goes on with what is lost");
}
