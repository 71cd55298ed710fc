//! False or faulty primaries: a clear line in the log, a clear state, and no loss of data.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use evenkeel_testkit::{Program, Random, Reference, Server};

use super::{PRIMARY, REPLICA, await_equal, await_link, follow, seed, wait_until};
use crate::durability::full::Disk;
use crate::program;

const ID: &str = "0123456789abcdef0123456789abcdef01234567";

/// Offsets are signed numbers.
const BEYOND_NUMBERS: &str = "+FULLRESYNC 0123456789abcdef0123456789abcdef01234567 9223372036854775808\r\n";
/// The next byte of the stream would exceed the highest offset.
const LAST_NUMBER: &str = "+FULLRESYNC 0123456789abcdef0123456789abcdef01234567 9223372036854775807\r\n";

/// Acts as a primary: calls `talk` for each connection in turn, then closes it.
fn fake(mut talk: impl FnMut(&mut TcpStream) -> std::io::Result<()> + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for mut replica in listener.incoming().flatten() {
            let _ = talk(&mut replica); // the replica may close at any time
        }
    });
    port
}

/// Reads commands and answers as a primary, up to PSYNC, which gets this reply.
fn shake_hands(replica: &mut TcpStream, psync: &str) -> std::io::Result<()> {
    let mut seen = Vec::new();
    let mut answered = 0;
    loop {
        let mut piece = [0; 1024];
        let got = replica.read(&mut piece)?;
        if got == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        seen.extend_from_slice(&piece[..got]);
        let text = String::from_utf8_lossy(&seen).into_owned();
        let is_whole = text.ends_with("\r\n");
        let commands = text.matches("\r\nREPLCONF\r\n").count() + text.matches("\r\nPING\r\n").count();
        if is_whole {
            for _ in answered..commands {
                replica.write_all(b"+OK\r\n")?;
            }
            answered = commands;
        }
        if is_whole && text.contains("\r\nPSYNC\r\n") {
            return replica.write_all(psync.as_bytes());
        }
    }
}

/// A snapshot without data.
fn empty_snapshot() -> Vec<u8> {
    sent(&empty_file(&[]))
}

/// A file without data, with these properties.
fn empty_file(facts: &[(&str, &str)]) -> Vec<u8> {
    let string = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    let facts = facts.iter().flat_map(|(name, value)| [&[0xfa], &string(name)[..], &string(value)].concat());
    [b"REDIS0010".as_slice(), &facts.collect::<Vec<_>>(), b"\xff", &[0; 8]].concat()
}

fn sent(file: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", file.len()).as_bytes(), file].concat()
}

/// A command in wire format.
fn command(line: &str) -> Vec<u8> {
    let words: String = line.split(' ').map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{words}", line.split(' ').count()).into_bytes()
}

/// Acts as a primary that sends an empty snapshot and then these commands, all at once.
fn fake_stream(lines: &[&str]) -> u16 {
    let stream: Vec<u8> = lines.iter().flat_map(|line| command(line)).collect();
    fake(move |replica| {
        shake_hands(replica, &format!("+FULLRESYNC {ID} 0\r\n"))?;
        replica.write_all(&empty_snapshot())?;
        replica.write_all(&stream)?;
        std::thread::sleep(Duration::from_secs(20));
        Ok(())
    })
}

/// Makes a replica with data of its own follow this port; waits for the line in its log.
fn expect_line(port: u16, args: &[&str], line: &str) {
    let mut replica = Server::start(&program(), &[REPLICA, args].concat());
    replica.connect().run("SET own data");
    follow(&replica, port);
    wait_until(line, || replica.log().contains(line));
    let mut client = replica.connect();
    assert_eq!(replica.info("master_link_status"), "down");
    assert_eq!(client.run("GET own").to_string(), "\"data\"", "nothing is lost");
    assert!(client.run("SET own other").to_string().starts_with("-READONLY"));
    assert_eq!(client.run("REPLICAOF NO ONE").to_string(), "OK");
    assert_eq!(client.run("SET own other").to_string(), "OK");
    replica.assert_healthy();
}

#[test]
fn a_refused_connection_is_logged() {
    expect_line(evenkeel_testkit::server::free_port(), &[], "Connection refused");
}

/// The replica keeps answering, at least with BUSY, also to the client that makes it follow no server.
#[test]
fn a_replica_answers_during_an_endless_replicated_script() {
    let port = fake_stream(&["SELECT 0", "SET mark 1", "EVAL while\ttrue\tdo\tend 1 k"]);
    let mut replica = Server::start(&program(), &[REPLICA, &["--busy-reply-threshold", "1500"]].concat());
    follow(&replica, port);
    let mut client = replica.connect();
    wait_until("the stream has come", || client.run("EXISTS mark").to_string() != ":0");
    std::thread::sleep(Duration::from_millis(50));
    let mut promotes = replica.connect();
    promotes.send(&["REPLICAOF", "NO", "ONE"]).expect("it reads");
    assert!(promotes.read().to_string().starts_with("-BUSY"));
    assert!(client.run("GET k").to_string().starts_with("-BUSY"));
    let refused = client.run("SCRIPT KILL").to_string();
    assert!(refused.starts_with("-UNKILLABLE The busy script was sent by a master instance"), "{refused}");
    client.send(&["SHUTDOWN", "NOSAVE"]).expect("it reads");
    wait_until("it ends", || !replica.is_alive());
}

#[test]
fn a_wrong_password_is_logged() {
    let Some(reference) = Program::oracle(Reference::Redis) else { return };
    let primary = Server::start(&reference, &[PRIMARY, &["--requirepass", "secret"]].concat());
    expect_line(primary.port(), &["--masterauth", "wrong"], "Unable to AUTH to PRIMARY: -WRONGPASS");
    expect_line(primary.port(), &[], "-NOAUTH");
    let replica = Server::start(
        &program(),
        &[REPLICA, &["--masterauth", "secret", "--masteruser", "default"]].concat(),
    );
    follow(&replica, primary.port());
    await_link(&replica);
    // The setting can be corrected while the replica retries.
    let replica = Server::start(&program(), &[REPLICA, &["--masterauth", "wrong"]].concat());
    follow(&replica, primary.port());
    wait_until("it is refused", || replica.log().contains("-WRONGPASS"));
    replica.connect().run("CONFIG SET masterauth secret");
    await_link(&replica);
}

#[test]
fn replies_in_another_protocol_are_logged() {
    let port = fake(|replica| replica.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n"));
    expect_line(port, &[], "Error reply to PING from master: 'HTTP/1.0 400 Bad Request'");
    let port = fake(|replica| replica.write_all(&[b'x'; 100_000]));
    expect_line(port, &[], "the reply of the master is too long");
    for (answer, line) in [
        ("+FULLRESYNC abc 1\r\n", "wrong +FULLRESYNC syntax"),
        (BEYOND_NUMBERS, "wrong +FULLRESYNC syntax"),
        (LAST_NUMBER, "wrong +FULLRESYNC syntax"),
        ("+WHAT\r\n", "Unexpected reply to PSYNC from master: +WHAT"),
        ("-NOMASTERLINK Can't SYNC\r\n", "Master is currently unable to PSYNC but should be in the future"),
        ("+CONTINUE\r\n", "continues a replication stream that was not requested"),
    ] {
        expect_line(fake(move |replica| shake_hands(replica, answer)), &[], line);
    }
}

#[test]
fn invalid_snapshots_are_refused() {
    for way in ["disabled", "swapdb"] {
        for (sent, line) in [
            (&b"-ERR no\r\n"[..], "PRIMARY aborted replication with an error: -ERR no"),
            (b"+what\r\n", "Bad protocol from PRIMARY"),
            (b"$99999999999999999999999\r\n", "Bad protocol from PRIMARY"),
            (b"\n\n$5\r\nhello", if way == "disabled" { "is damaged" } else { "Failed trying to load" }),
            (b"$9000000000000000000\r\nREDIS0010", "Connection with master lost"),
            (
                b"$9000000000000000000\r\nREDIS0010",
                if way == "disabled" {
                    "lost"
                } else {
                    "Internal error in RDB: the loading ended after 9 received bytes"
                },
            ),
        ] {
            let port = fake(move |replica| {
                shake_hands(replica, &format!("+FULLRESYNC {ID} 1\r\n"))?;
                replica.write_all(sent)?;
                std::thread::sleep(Duration::from_millis(100));
                Ok(())
            });
            expect_line(port, &["--repl-diskless-load", way], line);
        }
    }
}

/// Any byte of a snapshot may be changed: a damaged snapshot is never loaded in part.
#[test]
fn damaged_snapshots_are_refused() {
    let Some(reference) = Program::oracle(Reference::Redis) else { return };
    let source = Server::start(&reference, PRIMARY);
    let mut client = source.connect();
    (0..50).for_each(|n| drop(client.call(&["SET", &format!("k{n}"), &n.to_string().repeat(50)])));
    client.run("RPUSH list a b c");
    client.run("HSET hash f v");
    client.run("SAVE");
    let whole = std::fs::read(source.folder().join("dump.rdb")).expect("it was saved");
    let mut random = Random::new(seed());
    for way in ["disabled", "swapdb"] {
        let mut damaged = whole.clone();
        let at = random.below(whole.len() - 20);
        damaged[at] ^= 1 << random.below(8);
        println!("byte {at} of {}", whole.len());
        let port = fake(move |replica| {
            shake_hands(replica, &format!("+FULLRESYNC {ID} 1\r\n"))?;
            replica.write_all(format!("${}\r\n", damaged.len()).as_bytes())?;
            replica.write_all(&damaged)
        });
        let line = if way == "disabled" { "is damaged" } else { "Failed trying to load" };
        expect_line(port, &["--repl-diskless-load", way], line);
    }
}

/// A stream that cannot be parsed ends the link, and a full sync follows.
#[test]
fn a_garbled_stream_ends_the_link() {
    for garbage in
        [&b"*1\r\n$4\r\nPING\r\nxyz\r\n"[..], b"*2\r\n$3\r\nSET\r\n:1\r\n", b"*x\r\n", b"*1\r\n$-5\r\n"]
    {
        let port = fake(move |replica| {
            shake_hands(replica, &format!("+FULLRESYNC {ID} 0\r\n"))?;
            replica.write_all(&empty_snapshot())?;
            replica.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n")?;
            replica.write_all(garbage)?;
            std::thread::sleep(Duration::from_millis(200));
            Ok(())
        });
        let mut replica = Server::start(&program(), REPLICA);
        follow(&replica, port);
        wait_until("it is noticed", || replica.log().contains("Protocol error from master"));
        wait_until("it is not asked to go on", || replica.log().matches("no cached master").count() >= 2);
        // Each full sync makes the command valid again.
        wait_until("what came before has happened", || replica.connect().run("GET k").to_string() == "\"v\"");
        replica.assert_healthy();
    }
}

/// Redis before version 7 replicated relative times unchanged: they count from their arrival.
#[test]
fn relative_expiries_of_an_old_primary_are_applied() {
    let port = fake(|replica| {
        shake_hands(replica, &format!("+FULLRESYNC {ID} 0\r\n"))?;
        replica.write_all(&empty_snapshot())?;
        for line in
            ["SET a v PX 100000", "SETEX b 100 v", "SET c v", "EXPIRE c 100", "SET d v", "PEXPIRE d 100000"]
        {
            replica.write_all(&command(line))?;
        }
        std::thread::sleep(Duration::from_secs(20));
        Ok(())
    });
    let replica = Server::start(&program(), REPLICA);
    follow(&replica, port);
    let mut client = replica.connect();
    wait_until("all have come", || client.run("EXISTS d").to_string() == ":1");
    for key in ["a", "b", "c", "d"] {
        wait_until("it has its time", || {
            let left = client.run(&format!("PTTL {key}")).as_int().expect("a number");
            (1..=100_000).contains(&left)
        });
    }
}

/// The primary has admitted its writes. A shortage of memory here does not matter, whenever it is configured.
#[test]
fn a_replicas_memory_limit_refuses_no_replicated_write() {
    let port = fake_stream(&["CONFIG SET maxmemory 1", "SET a v", "MULTI", "SET b v", "EXEC", "SET c v"]);
    let replica = Server::start(&program(), REPLICA);
    follow(&replica, port);
    let mut client = replica.connect();
    wait_until("all have come", || client.run("EXISTS a b c").as_int() == Some(3));
    assert_eq!(replica.info("master_commands_failed"), "0", "{}", replica.log());
}

#[test]
fn a_stream_in_a_missing_database_is_not_continued() {
    for (way, line) in [("disabled", "cannot be loaded"), ("swapdb", "Failed trying to load")] {
        let port = fake(|replica| {
            shake_hands(replica, &format!("+FULLRESYNC {ID} 0\r\n"))?;
            replica.write_all(&sent(&empty_file(&[("repl-stream-db", "99")])))?;
            replica.write_all(&command("SET k v"))
        });
        expect_line(port, &["--repl-diskless-load", way], line);
    }
}

/// A replication position in a file is used only if a stream can have it.
#[test]
fn impossible_replication_offsets_are_ignored() {
    for (offset, db, tried) in [("7", "3", true), ("9223372036854775808", "3", false), ("7", "99", false)] {
        let port = fake(|replica| shake_hands(replica, "+CONTINUE\r\n")).to_string();
        let mut replica = Server::start(&program(), &["--save", "", "--replicaof", "127.0.0.1", &port]);
        replica.kill();
        let facts = [("repl-id", ID), ("repl-offset", offset), ("repl-stream-db", db)];
        std::fs::write(replica.folder().join("dump.rdb"), empty_file(&facts)).expect("its folder is ours");
        let tries = |log: &str| log.matches("PRIMARY <-> REPLICA sync started").count();
        let before = tries(&replica.log());
        replica.start_again();
        wait_until("it tries again", || tries(&replica.log()) >= before + 2);
        let request = format!("Trying a partial resynchronization (request {ID}:8)");
        assert_eq!(replica.log().contains(&request), tried, "{}", replica.log());
        replica.assert_healthy();
    }
}

/// A write to a database that is missing here must not go to another database.
#[test]
fn a_write_to_a_missing_database_ends_the_link() {
    let streams: [&[&str]; 3] = [
        &["SELECT 3", "SET k v", "SELECT 20", "SET lost v", "SELECT 0", "SET lost v"],
        &["SELECT 3", "SET k v", "MULTI", "SET lost v", "SELECT 20", "SET lost v", "EXEC", "SET lost v"],
        &["SELECT 3", "SET k v", "SELECT", "SET lost v"],
    ];
    for stream in streams {
        let mut replica = Server::start(&program(), REPLICA);
        follow(&replica, fake_stream(stream));
        wait_until("it is told", || replica.log().contains("The master selects database"));
        wait_until("the link is down", || replica.info("master_link_status") == "down");
        assert_ne!(replica.info("master_commands_failed"), "0");
        let mut client = replica.connect();
        assert_eq!(
            client.run("INFO keyspace").to_string().matches("keys=1,").count(),
            1,
            "nothing else has come"
        );
        client.run("SELECT 3");
        assert_eq!(client.run("GET k").to_string(), "\"v\"", "what came before has happened");
        let run: usize = stream[..2].iter().map(|line| command(line).len()).sum();
        assert_eq!(replica.info("master_repl_offset"), run.to_string(), "it goes on there");
        replica.assert_healthy();
    }
}

/// An unknown command is skipped and counted; its transaction is executed.
#[test]
fn unknown_replicated_commands_are_reported() {
    let port = fake(|replica| {
        shake_hands(replica, &format!("+FULLRESYNC {ID} 0\r\n"))?;
        replica.write_all(&empty_snapshot())?;
        replica.write_all(
            b"*1\r\n$5\r\nMULTI\r\n*1\r\n$6\r\nNOSUCH\r\n*2\r\n$4\r\nINCR\r\n$1\r\nk\r\n*1\r\n$4\r\nEXEC\r\n",
        )?;
        for line in ["MULTI", "OBJECT NOSUCH k", "INCR k l", "INCR k", "EXEC", "SAVE", "DEBUG RELOAD"] {
            replica.write_all(&command(line))?;
        }
        replica.write_all(b"*2\r\n$5\r\nRPUSH\r\n$1\r\nk\r\n*3\r\n$5\r\nRPUSH\r\n$1\r\nk\r\n$1\r\nv\r\n")?;
        std::thread::sleep(Duration::from_secs(20));
        Ok(())
    });
    let mut replica = Server::start(&program(), REPLICA);
    follow(&replica, port);
    wait_until("seven have failed", || replica.info("master_commands_failed") == "7");
    assert_eq!(replica.connect().run("GET k").to_string(), "\"2\"");
    for line in ["nosuch: this server does not support it", "rpush: it failed: -ERR wrong number"] {
        wait_until(line, || replica.log().contains(line));
    }
    assert_eq!(replica.info("master_link_status"), "up");
    replica.assert_healthy();
}

/// A primary with the oldest protocol sends no offset. A replica of its replica still uses the right
/// database.
#[test]
fn a_chained_replica_without_offsets_uses_the_right_database() {
    let (sender, receiver) = std::sync::mpsc::channel::<Vec<u8>>();
    let port = fake(move |replica| {
        shake_hands(replica, "-ERR unknown command\r\n")?;
        replica.write_all(&empty_snapshot())?;
        receiver.iter().try_for_each(|bytes| replica.write_all(&bytes))
    });
    let (middle, last) = (Server::start(&program(), PRIMARY), Server::start(&program(), REPLICA));
    follow(&middle, port);
    await_link(&middle);
    let send = |line: &str| sender.send(command(line)).expect("it is connected");
    let has = |server: &Server, key: &str| {
        let mut client = server.connect();
        client.run("SELECT 3");
        client.run(&format!("EXISTS {key}")).as_int() == Some(1)
    };
    send("SELECT 3");
    send("SET before v");
    wait_until("it comes", || has(&middle, "before"));
    follow(&last, middle.port());
    await_link(&last);
    send("SET after v");
    wait_until("it comes to the right database", || has(&last, "before") && has(&last, "after"));
}

#[test]
fn a_silent_primary_is_disconnected() {
    let port = fake(|replica| {
        shake_hands(replica, &format!("+FULLRESYNC {ID} 0\r\n"))?;
        replica.write_all(&empty_snapshot())?;
        std::thread::sleep(Duration::from_secs(20));
        Ok(())
    });
    let replica = Server::start(&program(), &[REPLICA, &["--repl-timeout", "1"]].concat());
    follow(&replica, port);
    wait_until("it is noticed", || replica.log().contains("PRIMARY timeout: no data nor PING received"));
}

/// A primary that accepts connections and stays silent, from the start or at the last step, is dropped and
/// retried.
#[test]
fn a_primary_silent_in_the_handshake_is_disconnected() {
    for answers_at_first in [false, true] {
        let times = Arc::new(AtomicU64::new(0));
        let counted = times.clone();
        let port = fake(move |replica| {
            counted.fetch_add(1, Relaxed);
            if answers_at_first {
                shake_hands(replica, "")?;
            }
            while replica.read(&mut [0; 1024])? > 0 {}
            Ok(())
        });
        let mut replica = Server::start(&program(), &[REPLICA, &["--repl-timeout", "1"]].concat());
        replica.connect().run("SET own data");
        follow(&replica, port);
        let line = "Timeout connecting to the PRIMARY...";
        wait_until(line, || replica.log().contains(line));
        wait_until("it connects again", || times.load(Relaxed) >= 2);
        wait_until("it gives up again", || replica.log().matches(line).count() >= 2);
        assert_eq!(replica.info("master_link_status"), "down");
        assert_eq!(replica.connect().run("GET own").to_string(), "\"data\"", "nothing is lost");
        replica.assert_healthy();
    }
}

/// If the disk has no room for the snapshot, the data stay; the sync succeeds once another way is open.
#[test]
fn a_full_disk_delays_the_sync_and_keeps_the_data() {
    let (Some(reference), Some(disk)) = (Program::oracle(Reference::Redis), Disk::mount("replica")) else {
        return;
    };
    let primary = Server::start(&reference, PRIMARY);
    let mut client = primary.connect();
    let mut random = Random::new(seed());
    for n in 0..150 {
        let noise: Vec<u8> = (0..20_000).map(|_| random.draw() as u8).collect();
        client.call(&[b"SET".to_vec(), format!("k{n}").into_bytes(), noise]);
    }
    let dir = disk.path().display().to_string();
    let mut replica = Server::start(&program(), &[REPLICA, &["--dir", &dir]].concat());
    replica.connect().run("SET own data");
    follow(&replica, primary.port());
    let line = "Write error or short write writing to the DB dump file";
    wait_until(line, || replica.log().contains(line));
    assert_eq!(replica.connect().run("GET own").to_string(), "\"data\"");
    replica.connect().run("CONFIG SET repl-diskless-load swapdb");
    await_link(&replica);
    await_equal(&primary, &replica);
    let left: Vec<_> = std::fs::read_dir(disk.path()).expect("a folder").flatten().collect();
    assert!(left.is_empty(), "nothing is left behind: {left:?}");
    replica.assert_healthy();
}

/// A primary with more databases than this server: its snapshot cannot be loaded.
fn follow_primary_with_more_databases(replica: &Server) -> Server {
    let primary = Server::start(&program(), &[PRIMARY, &["--databases", "20"]].concat());
    let mut client = primary.connect();
    client.run("SELECT 18");
    client.run("SET far away");
    replica.connect().run("SET own data");
    follow(replica, primary.port());
    primary
}

#[test]
fn a_snapshot_that_cannot_be_loaded_leaves_the_data() {
    let replica = Server::start(&program(), &[REPLICA, &["--appendonly", "yes"]].concat());
    let _primary = follow_primary_with_more_databases(&replica);
    let line = "The snapshot of the master cannot be loaded: database 18 is out of range";
    wait_until(line, || replica.log().contains(line));
    assert_eq!(replica.connect().run("GET own").to_string(), "\"data\"");
    assert_eq!(replica.info("aof_enabled"), "1");
}

/// A snapshot that has arrived but cannot get its name leaves the data; the next sync succeeds.
#[test]
fn a_snapshot_file_that_cannot_be_renamed_leaves_the_data() {
    let primary = Server::start(&program(), PRIMARY);
    primary.connect().run("SET k primary");
    let mut replica = Server::start(&program(), REPLICA);
    replica.connect().run("SET k replica");
    let in_the_way = replica.folder().join("dump.rdb");
    let _ = std::fs::remove_file(&in_the_way);
    std::fs::create_dir(&in_the_way).expect("a folder");
    follow(&replica, primary.port());
    let line = "Failed trying to rename the temp DB into dump.rdb";
    wait_until(line, || replica.log().contains(line));
    assert_eq!(replica.connect().run("GET k").to_string(), "\"replica\"");
    std::fs::remove_dir(&in_the_way).expect("it is empty");
    await_link(&replica);
    assert_eq!(replica.connect().run("GET k").to_string(), "\"primary\"");
    replica.assert_healthy();
}

/// If the present data are dropped before the new data arrive, the files on disk stay until the new data are
/// complete.
#[test]
fn data_on_disk_are_kept_until_new_data_are_complete() {
    let args = ["--appendonly", "yes", "--repl-diskless-load", "flush-before-load", "--save", "1 1"];
    let mut replica = Server::start(&program(), &[REPLICA, &args].concat());
    let primary = follow_primary_with_more_databases(&replica);
    let line = "Failed trying to load the PRIMARY synchronization DB";
    wait_until(line, || replica.log().contains(line));
    std::thread::sleep(Duration::from_millis(2_500)); // longer than the file writer's poll interval
    assert_eq!(replica.connect().run("DBSIZE").as_int(), Some(0));
    drop(primary);
    assert!(replica.stop().success(), "without a last snapshot, though there are save points");
    replica.start_again();
    assert_eq!(replica.connect().run("GET own").to_string(), "\"data\"");
}

/// A replica that has dropped its data for a failed sync has nothing to hand on, and reports this to a
/// replica that asks for its offset.
#[test]
fn a_chained_replica_keeps_its_data_while_its_primary_has_none() {
    let times = AtomicU64::new(0);
    let first_may_end = Arc::new(AtomicBool::new(false));
    let may_end = first_may_end.clone();
    let port = fake(move |replica| {
        let time = times.fetch_add(1, Relaxed);
        shake_hands(replica, &format!("+FULLRESYNC {} 1000\r\n", ID.replace('0', &(time % 10).to_string())))?;
        let snapshot = empty_snapshot();
        if time > 0 {
            // Enough to make the replica drop its data.
            return replica.write_all(&snapshot[..snapshot.len() - 10]);
        }
        replica.write_all(&snapshot)?;
        replica.write_all(&command("SET k v"))?;
        while !may_end.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    });
    let way = ["--repl-diskless-load", "flush-before-load", "--repl-diskless-sync-delay", "2"];
    let middle = Server::start(&program(), &[REPLICA, &way].concat());
    follow(&middle, port);
    wait_until("it has data", || middle.connect().run("GET k").to_string() == "\"v\"");
    assert!(middle.info("slave_repl_offset").parse::<u64>().is_ok_and(|offset| offset > 1000));
    let last = Server::start(&program(), REPLICA);
    last.connect().run("SET own 1");
    follow(&last, middle.port());
    wait_until("it waits", || middle.info("connected_slaves") == "1");
    first_may_end.store(true, Relaxed);
    wait_until("its data are gone", || middle.connect().run("DBSIZE").to_string() == ":0");
    wait_until("it has no place in a stream", || middle.info("slave_repl_offset") == "1");
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(last.connect().run("GET own").to_string(), "\"1\"");
}

/// The memory does not fill with data that the disk does not take: the primary keeps them, and the replica
/// reports its offset.
#[test]
fn a_replica_with_a_full_disk_stops_reading() {
    let Some(disk) = Disk::mount("replica") else { return };
    let dir = disk.path().display().to_string();
    let primary = Server::start(&program(), &[PRIMARY, &["--repl-timeout", "5"]].concat());
    let log = ["--appendonly", "yes", "--appendonly-buffer-limit", "8mb", "--dir", &dir];
    let replica = Server::start(&program(), &[REPLICA, &log].concat());
    follow(&replica, primary.port());
    await_link(&replica);
    let mut client = primary.connect();
    for number in 0..64 {
        assert!(!client.call(&["SET", &format!("key:{number}"), &"x".repeat(1 << 20)]).is_error());
    }
    wait_until("it is told", || replica.log().contains("write commands are delayed"));
    std::thread::sleep(Duration::from_secs(7));
    let keys = replica.connect().run("DBSIZE").as_int().expect("a number");
    assert!((2..40).contains(&keys), "{keys} keys of a megabyte each, with eight for what waits");
    assert_eq!(replica.info("master_link_status"), "up", "it is alive, and says so");
    assert_eq!(primary.info("connected_slaves"), "1");
    assert_eq!(replica.connect().run("CONFIG SET appendonly no").to_string(), "OK");
    await_equal(&primary, &replica);
    assert_eq!(primary.info("sync_full"), "1");
    drop(replica); // before the disk goes
}
