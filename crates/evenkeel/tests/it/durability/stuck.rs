//! Shutdown with snapshots that make no progress. A pipe without a reader stands for a hanging disk: it has
//! the name of the unfinished file, and opening it blocks.

use std::fs::OpenOptions;
use std::time::{Duration, Instant};

use evenkeel_testkit::{Random, Server};
use rustix::fs::{CWD, Mode, mkfifoat};

use crate::disk::Disk;
use crate::{start, wait_until};

fn with_stuck_snapshots() -> Server {
    let server = start(&["--threads", "1", "--save", ""]);
    assert_eq!(server.connect().run("SET k 1").to_string(), "OK");
    let path = server.folder().join(format!("temp-{}.rdb", server.pid()));
    mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).expect("a pipe");
    server
}

#[test]
fn a_shutdown_that_waits_for_a_stuck_snapshot_can_be_aborted() {
    for is_taken_before in [true, false] {
        let server = with_stuck_snapshots();
        let (mut client, mut asker, mut writer) = (server.connect(), server.connect(), server.connect());
        if is_taken_before {
            assert_eq!(client.run("BGSAVE").to_string(), "Background saving started");
        }
        asker.send(&["SHUTDOWN", "SAVE"]).expect("it reads");
        wait_until("the last one is to be taken", || server.log().contains("Saving the final RDB snapshot"));
        writer.send(&["INCR", "k"]).expect("it reads");
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(client.run("SHUTDOWN ABORT").to_string(), "OK");
        assert_eq!(asker.read().to_string(), "-ERR Errors trying to SHUTDOWN. Check logs.");
        assert_eq!(writer.read().to_string(), ":2", "writes go on");
        assert_eq!(client.run("SHUTDOWN ABORT").to_string(), "-ERR No shutdown in progress.");
    }
}

#[test]
fn a_shutdown_without_save_does_not_wait_for_a_stuck_snapshot() {
    let mut server = with_stuck_snapshots();
    assert_eq!(server.connect().run("BGSAVE").to_string(), "Background saving started");
    let before = Instant::now();
    assert!(server.stop().success());
    assert!(before.elapsed() < Duration::from_secs(30), "{:?}", before.elapsed());
    assert!(server.log().contains("is blocked in a write to disk"), "{}", server.log());
}

/// Incompressible data: a file of them exceeds the pipe and the writer's queue.
fn fill(client: &mut evenkeel_testkit::Client) {
    let mut random = Random::new(1);
    for number in 0..10_000 {
        let value: String = (0..1_000).map(|_| char::from(b' ' + random.below(90) as u8)).collect();
        client.call(&["SET", &format!("key:{number}"), &value]);
    }
}

/// Replicas get the data from memory, whatever blocks a snapshot on disk.
#[test]
fn a_stuck_snapshot_delays_no_full_sync() {
    // Blocked on opening the file, or after some writes.
    for walks in [false, true] {
        let mut server = with_stuck_snapshots();
        let pipe = server.folder().join(format!("temp-{}.rdb", server.pid()));
        let reader =
            walks.then(|| OpenOptions::new().read(true).write(true).open(&pipe).expect("it is there"));
        let mut client = server.connect();
        fill(&mut client);
        client.run("CONFIG SET repl-diskless-sync-delay 0");
        assert_eq!(client.run("BGSAVE").to_string(), "Background saving started");
        std::thread::sleep(Duration::from_millis(500));
        let replica = start(&["--threads", "1", "--save", ""]);
        replica.connect().run(&format!("REPLICAOF 127.0.0.1 {}", server.port()));
        wait_until("the replica has all", || replica.connect().run("DBSIZE").as_int() == Some(10_001));
        assert_eq!(server.info("rdb_last_bgsave_status"), "ok", "nothing has failed");
        let given_up = "The snapshot or rewrite in progress is abandoned";
        assert_eq!(server.log().contains(given_up), walks, "{}", server.log());
        // The pipe is gone with the cancelled snapshot: a later snapshot goes to a file.
        drop(reader);
        if walks {
            wait_until("it is taken again", || server.info("rdb_saves") == "1");
            server.kill();
            server.start_again();
            assert_eq!(server.connect().run("DBSIZE").as_int(), Some(10_001));
        }
    }
}

/// A client that waits for SAVE gets its snapshot, however slow the disk: it is not cancelled for replicas.
#[test]
fn a_save_with_a_waiting_client_is_not_cancelled() {
    let server = with_stuck_snapshots();
    let pipe = server.folder().join(format!("temp-{}.rdb", server.pid()));
    let mut reader = OpenOptions::new().read(true).write(true).open(&pipe).expect("it is there");
    let (mut client, mut saver) = (server.connect(), server.connect());
    fill(&mut client);
    client.run("CONFIG SET repl-diskless-sync-delay 0");
    saver.send(&["SAVE"]).expect("it reads");
    let replica = start(&["--threads", "1", "--save", ""]);
    replica.connect().run(&format!("REPLICAOF 127.0.0.1 {}", server.port()));
    wait_until("the replica waits", || {
        client.run("INFO replication").to_string().contains("state=wait_bgsave")
    });
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!(replica.connect().run("DBSIZE").as_int(), Some(0));
    // The disk goes on. A pipe cannot be synced, so the save fails in the end, and the reply reports it.
    std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    let refusal = saver.read().to_string();
    assert!(refusal.starts_with("-ERR Failed saving the DB to "), "{refusal}");
    assert!(!server.log().contains("abandoned"), "{}", server.log());
    wait_until("the replica has all", || replica.connect().run("DBSIZE").as_int() == Some(10_001));
}

/// An operator turns the append-only file off because its disk hangs; the command waits until the disk goes
/// on.
#[test]
fn turning_off_a_stuck_aof_delays_no_full_sync() {
    let args = ["--threads", "1", "--save", "", "--appendonly", "yes", "--enable-debug-command", "yes"];
    let server = start(&[&args[..], &["--repl-diskless-sync-delay", "0"]].concat());
    let mut client = server.connect();
    assert_eq!(client.run("DEBUG AOF-SYNC-SLEEP 20000000").to_string(), "OK");
    client.run("SET first 1");
    wait_until("a sync is under way", || server.info("aof_pending_bio_fsync") == "1");
    assert_eq!(client.run("CONFIG SET appendonly no").to_string(), "OK");
    let replica = start(&["--threads", "1", "--save", ""]);
    replica.connect().run(&format!("REPLICAOF 127.0.0.1 {}", server.port()));
    client.run("SET second 1");
    wait_until("the replica has all", || replica.connect().run("DBSIZE").as_int() == Some(2));
    assert_eq!(server.info("aof_enabled"), "1", "the disk has not gone on");
}

/// A disk that takes seconds for a sync: this does not increase the loss in a kill of the process.
#[test]
fn writes_during_a_long_sync_survive_a_kill() {
    let args = ["--threads", "2", "--save", "", "--appendonly", "yes", "--enable-debug-command", "yes"];
    let mut server = start(&args);
    let mut client = server.connect();
    assert_eq!(client.run("DEBUG AOF-SYNC-SLEEP 20000000").to_string(), "OK");
    client.run("SET first 1");
    wait_until("a sync is under way", || server.info("aof_pending_bio_fsync") == "1");
    // The AOF thread waits for a moment, in case the sync is short.
    std::thread::sleep(Duration::from_millis(500));
    for number in 0..1_000 {
        client.run(&format!("SET key:{number} {}", "x".repeat(1_000)));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(server.info("aof_pending_bio_fsync"), "1", "it is under way still");
    assert_eq!(client.run("WAITAOF 1 0 100").to_string(), "[:0, :0]", "which says what is on disk");
    server.kill();
    server.start_again();
    assert_eq!(server.connect().run("DBSIZE").as_int(), Some(1_001));
    // A rewrite, another policy and a shutdown wait for a sync in progress.
    let mut client = server.connect();
    assert_eq!(client.run("DEBUG AOF-SYNC-SLEEP 1000000").to_string(), "OK");
    for line in ["CONFIG SET appendfsync always", "CONFIG SET appendfsync everysec"] {
        client.run("SET second 1");
        wait_until("a sync is under way", || {
            server.info("aof_pending_bio_fsync") == "1" || line.ends_with("everysec")
        });
        assert_eq!(client.run(line).to_string(), "OK");
        assert!(!client.run("INCR n").is_error());
    }
    let tail = server.folder().join("appendonlydir/appendonly.aof.tail");
    wait_until("nothing is in a tail any more", || !tail.exists());
    super::exchange::rewrite(&server);
    client.run("INCR n");
    assert_eq!(client.run("WAITAOF 1 0 10000").to_string(), "[:1, :0]");
    client.run("INCR n");
    assert!(server.stop().success());
    server.start_again();
    let mut client = server.connect();
    assert_eq!(
        (client.run("DBSIZE").as_int(), client.run("GET n").to_string()),
        (Some(1_003), "\"4\"".into())
    );
}

/// Memory evicted during a snapshot is freed once the snapshot has walked it. A stuck snapshot is cancelled
/// once, and no more than needed is evicted in its place, however long the cancel takes.
#[test]
fn a_stuck_snapshot_causes_no_excess_eviction() {
    // For a collection, the snapshot keeps shared memory, which counts little towards its limit.
    let all = [
        ("SET", 1_000, 1_000, 5_000, 8_000),
        ("SET", 1 << 20, 8, 10, 20),
        ("RPUSH", 5_000, 500, 1_000, 1_750),
    ];
    for (command, len, step, new, most) in all {
        let server = with_stuck_snapshots();
        let pipe = server.folder().join(format!("temp-{}.rdb", server.pid()));
        // Opening does not block then; writing does when the pipe is full.
        let reader = OpenOptions::new().read(true).write(true).open(&pipe).expect("it is there");
        let mut client = server.connect();
        for line in ["CONFIG SET maxmemory-policy allkeys-random", "CONFIG SET maxmemory 64mb"] {
            assert_eq!(client.run(line).to_string(), "OK");
        }
        if command != "SET" {
            client.run("CONFIG SET snapshot-buffer-limit 1mb");
        }
        let mut asker = server.connect();
        let mut evicted = || {
            let stats = asker.run("INFO stats").to_string();
            let number = stats.split("evicted_keys:").nth(1).and_then(|rest| rest.split('\\').next());
            number.and_then(|number| number.parse::<u64>().ok()).expect("it is counted")
        };
        let (mut keys, mut random) = (0..100_000, Random::new(1));
        let mut set = |count: usize| {
            for number in keys.by_ref().take(count) {
                // Incompressible values: the file must exceed the pipe.
                let value: String = (0..len).map(|_| char::from(b' ' + random.below(90) as u8)).collect();
                let reply = client.call(&[command, &format!("key:{number}"), &value]);
                assert!(!reply.is_error(), "{reply}");
            }
        };
        while evicted() == 0 {
            set(step);
        }
        assert!(!server.connect().run("BGSAVE").is_error());
        std::thread::sleep(Duration::from_millis(500));
        let before = evicted();
        set(new);
        let more = evicted() - before;
        assert_eq!(server.info("rdb_bgsave_in_progress"), "1");
        assert!((new as u64 / 2..most).contains(&more), "{more} keys for {new} new ones of {len} bytes");
        drop(reader); // the writer gets an error
        wait_until("it has ended", || server.info("rdb_bgsave_in_progress") == "0");
        let before = evicted();
        set(new);
        assert!(evicted() - before < most, "what it had does not count any more");
    }
}

/// Large removed values that a snapshot keeps count as memory: a hanging disk does not double the data.
#[test]
fn a_stuck_snapshot_that_keeps_too_much_memory_is_cancelled() {
    let server = with_stuck_snapshots();
    let pipe = server.folder().join(format!("temp-{}.rdb", server.pid()));
    let _reader = OpenOptions::new().read(true).write(true).open(&pipe).expect("it is there");
    let mut client = server.connect();
    assert_eq!(client.run("CONFIG SET snapshot-buffer-limit 1mb").to_string(), "OK");
    fill(&mut client);
    let element = "x".repeat(1_000);
    let list: Vec<&str> = ["RPUSH", "list"].into_iter().chain((0..5_000).map(|_| &element[..])).collect();
    client.call(&list);
    assert_eq!(client.run("BGSAVE").to_string(), "Background saving started");
    std::thread::sleep(Duration::from_millis(500));
    client.run("DEL list");
    wait_until("it is given up", || server.info("snapshot_buffer_overruns") == "1");
}

/// FLUSHALL with save points, and SAVE, wait for the disk; long reads do not.
#[test]
fn commands_that_wait_for_the_disk_take_no_thread_from_readers() {
    let server = with_stuck_snapshots();
    let mut client = server.connect();
    assert_eq!(client.run("CONFIG SET save '3600 1'").to_string(), "OK");
    let waiting = ["FLUSHALL", "SAVE", "FLUSHALL"].into_iter().map(|command| {
        let mut waiter = server.connect();
        waiter.send(&[command]).expect("it reads");
        std::thread::sleep(Duration::from_millis(100));
        waiter
    });
    let _waiting: Vec<_> = waiting.collect();
    let members: Vec<String> = (0..30_000).map(|n| n.to_string()).collect();
    let add: Vec<&str> = ["SADD", "set"].into_iter().chain(members.iter().map(|n| &n[..])).collect();
    client.call(&add);
    let sorted = client.run("SORT set LIMIT 0 1");
    assert!(!sorted.is_error(), "{sorted}");
}

/// Acknowledged writes are still in memory: a client's SHUTDOWN waits, and can be aborted until then.
#[test]
fn a_shutdown_that_waits_for_a_stuck_aof_can_be_aborted() {
    let args = ["--threads", "1", "--save", "", "--appendonly", "yes", "--enable-debug-command", "yes"];
    let server = start(&args);
    let (mut client, mut asker) = (server.connect(), server.connect());
    wait_until("the log is on", || server.info("aof_rewrite_in_progress") == "0");
    client.run("DEBUG AOF-FLUSH-SLEEP 20000000");
    client.run("SET k 1");
    wait_until("it is in the write that hangs", || server.info("aof_buffer_length") != "0");
    for aborts in [true, false] {
        asker.send(&["SHUTDOWN", "NOSAVE"]).expect("it reads");
        if aborts {
            std::thread::sleep(Duration::from_millis(200));
            assert_eq!(client.run("SHUTDOWN ABORT").to_string(), "OK");
        }
        let reason = match aborts {
            true => "",
            false => {
                " The disk of the append-only file is blocked. SHUTDOWN FORCE discards the pending writes."
            }
        };
        let refusal = format!("-ERR Errors trying to SHUTDOWN. Check logs.{reason}");
        assert_eq!(asker.read().to_string(), refusal);
        assert_eq!(client.run("GET k").to_string(), "\"1\"");
    }
    assert!(server.log().contains("disk of the append-only file is blocked"), "{}", server.log());
    client.run("DEBUG AOF-FLUSH-SLEEP 0");
}

/// Redis does not refuse it either.
#[test]
fn a_save_waits_for_a_rewrite() {
    let args = ["--threads", "1", "--save", "", "--appendonly", "yes", "--rdb-key-save-delay", "2000"];
    let server = start(&args);
    let mut client = server.connect();
    wait_until("the log is on", || server.info("aof_rewrite_in_progress") == "0");
    (0..500).for_each(|n| drop(client.run(&format!("SET key:{n} 1"))));
    client.run("BGREWRITEAOF");
    assert_eq!(server.info("aof_rewrite_in_progress"), "1");
    assert_eq!(client.run("SAVE").to_string(), "OK");
    assert_eq!(server.info("rdb_changes_since_last_save"), "0");
}

/// A client in the queue for SAVE gives up when the server shuts down.
#[test]
fn a_shutdown_does_not_wait_for_queued_saves() {
    let mut server = with_stuck_snapshots();
    let pipe = server.folder().join(format!("temp-{}.rdb", server.pid()));
    let mut client = server.connect();
    fill(&mut client);
    let mut saver = server.connect();
    saver.send(&["SAVE"]).expect("it reads");
    wait_until("it has begun", || server.log().contains("Background saving started"));
    let mut waiting: Vec<_> = (0..3).map(|_| server.connect()).collect();
    waiting.iter_mut().for_each(|one| one.send(&["SAVE"]).expect("it reads"));
    std::thread::sleep(Duration::from_millis(300));
    // The disk goes on after the shutdown has begun: the waiting client would be next.
    let reader = OpenOptions::new().read(true).write(true).open(&pipe).expect("it is there");
    assert!(server.stop().success());
    drop(reader);
    assert_eq!(server.log().matches("Background saving started").count(), 1, "{}", server.log());
}

/// A shutdown does not wait for ever for FLUSHALL's snapshot.
#[test]
fn a_shutdown_does_not_wait_for_a_pending_snapshot_on_a_hung_disk() {
    let mut server = with_stuck_snapshots();
    let mut client = server.connect();
    assert_eq!(client.run("CONFIG SET save '3600 1'").to_string(), "OK");
    let mut flusher = server.connect();
    flusher.send(&["FLUSHALL"]).expect("it reads");
    wait_until("it has begun", || server.log().contains("Background saving started"));
    client.send(&["SHUTDOWN", "NOSAVE"]).expect("it reads");
    wait_until("it ends", || !server.is_alive());
}

/// A hanging file system: clients notice nothing until the queue is full, and then writers wait until it goes
/// on. No client is refused, readers are served, and nothing is lost.
#[test]
fn a_frozen_file_system_delays_writers_in_the_end() {
    const WRITES: usize = 600;
    let Some(disk) = Disk::mount("frozen", 64) else { return };
    let dir = disk.path().to_str().expect("a plain name");
    for policy in ["everysec", "no"] {
        let options = ["--dir", dir, "--appendonly", "yes", "--appendfsync", policy, "--threads", "2"];
        let mut server = start(&[&options[..], &["--appendonly-buffer-limit", "2mb"]].concat());
        let (mut client, mut other) = (server.connect(), server.connect());
        assert_eq!(client.run("FLUSHALL").to_string(), "OK");
        let (value, mut writers) = ("x".repeat(10_000), Vec::from_iter((0..10).map(|_| server.connect())));
        let frozen = disk.freeze();
        // Longer than a second, so that a sync is due as well.
        let began = Instant::now();
        for number in 0..100 {
            assert_eq!(client.call(&["SET", &format!("key:{number}"), &value]).to_string(), "OK");
            std::thread::sleep(Duration::from_millis(12));
        }
        assert!(began.elapsed() > Duration::from_millis(1_200));
        assert_eq!(server.info("aof_writers_delayed"), "0", "the bound is not reached");
        for number in 100..WRITES {
            let writer = &mut writers[number % 10];
            writer.send(&["SET", &format!("key:{number}"), &value]).expect("the kernel takes it");
        }
        wait_until("writers wait", || server.info("aof_writers_delayed") != "0");
        wait_until("it is said", || server.log().contains("appendonly-buffer-limit"));
        for _ in 0..50 {
            assert_eq!(other.run("STRLEN key:0").as_int(), Some(10_000));
        }
        drop(frozen);
        for number in 100..WRITES {
            assert_eq!(writers[number % 10].read().to_string(), "OK", "{number}");
        }
        wait_until("all is written", || server.info("aof_buffer_length") == "0");
        server.kill();
        server.start_again();
        assert_eq!(server.connect().run("DBSIZE").as_int(), Some(WRITES as i64), "{policy}");
        server.assert_healthy();
    }
}

/// The queue for the disk is bounded, and beyond it writers wait: no client is refused, readers do not wait,
/// nothing is lost.
#[test]
fn the_queue_of_the_aof_is_bounded() {
    const WRITES: usize = 600;
    let options = ["--appendonly", "yes", "--appendfsync", "everysec", "--appendonly-buffer-limit", "1mb"];
    let mut server =
        start(&[&["--threads", "1", "--save", "", "--enable-debug-command", "yes"], &options[..]].concat());
    let (mut client, mut other) = (server.connect(), server.connect());
    assert_eq!(client.run("DEBUG AOF-FLUSH-SLEEP 300000").to_string(), "OK");
    let value = "x".repeat(10_000);
    for number in 0..WRITES {
        client.send(&["SET", &format!("key:{number}"), &value]).expect("it reads");
    }
    wait_until("writers wait", || server.info("aof_writers_delayed") != "0");
    // Plus the writes that other clients have in progress by then.
    let waiting = || server.info("aof_buffer_length").parse::<u64>().expect("a number");
    for _ in 0..40 {
        let waiting = waiting();
        assert!(waiting < 2 << 20, "{waiting} bytes wait");
        std::thread::sleep(Duration::from_millis(5));
    }
    let asked = Instant::now();
    assert_eq!(other.run("STRLEN key:0").as_int(), Some(10_000));
    assert!(asked.elapsed() < Duration::from_millis(250), "{:?}", asked.elapsed());
    wait_until("it is said", || server.log().contains("appendonly-buffer-limit"));
    assert_eq!(other.run("DEBUG AOF-FLUSH-SLEEP 0").to_string(), "OK");
    for number in 0..WRITES {
        assert_eq!(client.read().to_string(), "OK", "{number}");
    }
    wait_until("all is written", || server.info("aof_buffer_length") == "0");
    server.kill();
    server.start_again();
    assert_eq!(server.connect().run("DBSIZE").as_int(), Some(WRITES as i64));
}
