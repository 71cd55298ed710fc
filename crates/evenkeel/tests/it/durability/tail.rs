//! Simulated crashes of the machine: with `always`, the unsynced end of the append-only file is cut off, and
//! the tail names another run of the machine. All acknowledged writes are there after the start.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use evenkeel_rdb::aof::tail::{BLOCK, HEADER_LEN, RecordPosition, header};
use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Random, Server};

use crate::{start, wait_until};

const WRITERS: usize = 3;

fn log_folder(server: &Server) -> PathBuf {
    server.folder().join("appendonlydir")
}

fn tail_path(server: &Server) -> PathBuf {
    log_folder(server).join("appendonly.aof.tail")
}

fn last_file(server: &Server) -> PathBuf {
    let manifest =
        fs::read_to_string(log_folder(server).join("appendonly.aof.manifest")).expect("a manifest");
    let last = manifest.lines().rfind(|line| line.ends_with("type i")).expect("a file of commands");
    log_folder(server).join(last.split(' ').nth(1).expect("its name"))
}

/// Waits for the first tail; `false`: the file system does not support it.
fn has_tail(server: &Server) -> bool {
    let (mut client, began) = (server.connect(), Instant::now());
    while !tail_path(server).exists() {
        if began.elapsed() > Duration::from_secs(10) {
            println!("no tail: the file system does not know the way");
            return false;
        }
        client.run("SET first 1");
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Lets several clients count until the server is killed; returns the last reply of each.
fn count_until_killed(server: &mut Server, run: Duration) -> Vec<i64> {
    let clients: Vec<_> = (0..WRITERS).map(|_| server.connect()).collect();
    std::thread::scope(|scope| {
        let count = |(index, mut client): (usize, evenkeel_testkit::Client)| {
            scope.spawn(move || {
                let name = format!("count:{index}");
                let mut last = 0;
                while let Ok(reply) = client.try_call(&["INCR", &name]) {
                    last = reply.as_int().expect("a number");
                }
                last
            })
        };
        let counts: Vec<_> = clients.into_iter().enumerate().map(count).collect();
        std::thread::sleep(run);
        server.kill();
        counts.into_iter().map(|count| count.join().expect("it counts")).collect()
    })
}

/// The row of records at the tail's start: each record's position in the tail, its place, and its bytes.
fn row(tail: &[u8]) -> BTreeMap<usize, (RecordPosition, Vec<u8>)> {
    let number = |at: usize| u64::from_le_bytes(tail[at..at + 8].try_into().expect("eight"));
    let (mut row, mut at) = (BTreeMap::<usize, (RecordPosition, Vec<u8>)>::new(), 0);
    while tail[at..].starts_with(b"EVKTAIL1") {
        let boot = u128::from_le_bytes(tail[at + 32..at + 48].try_into().expect("sixteen"));
        let place =
            RecordPosition { epoch: number(at + 16), file: number(at + 24), boot, offset: number(at + 48) };
        if row.first_key_value().is_some_and(|(_, (first, _))| first.epoch != place.epoch) {
            break;
        }
        let bytes = tail[at + HEADER_LEN..][..number(at + 56) as usize].to_owned();
        let len = (HEADER_LEN + bytes.len()).next_multiple_of(BLOCK);
        row.insert(at, (place, bytes));
        at += len;
    }
    row
}

/// Simulates the crash: the next start has another boot id, and some unsynced bytes of the file are lost.
fn fail_machine(server: &Server, random: &mut Random) {
    let (path, file) = (tail_path(server), last_file(server));
    let mut tail = fs::read(&path).expect("a tail");
    let row = row(&tail);
    let synced = row.first_key_value().expect("a record").1.0.offset;
    for (at, (place, bytes)) in row {
        let other = RecordPosition { boot: place.boot ^ 1, ..place };
        tail[at..at + HEADER_LEN].copy_from_slice(&header(&other, &bytes));
    }
    fs::write(&path, tail).expect("it can be written");
    let mut bytes = fs::read(&file).expect("a file");
    let unsynced = bytes.len() - synced as usize;
    match random.below(3) {
        // The file ends before, or has zeroes from a position on, or in the middle.
        0 => bytes.truncate(synced as usize + random.below(unsynced + 1)),
        1 => bytes[synced as usize + random.below(unsynced + 1)..].fill(0),
        _ => {
            // A file system loses whole pages of a file, or all their bytes behind the last sync.
            let from = synced as usize + random.below(unsynced + 1);
            let to = from + random.below(bytes.len() - from + 1);
            let from = (from / BLOCK * BLOCK).max(synced as usize);
            let to = to.next_multiple_of(BLOCK).min(bytes.len());
            bytes[from..to].fill(0);
        }
    }
    // The same file, with the same inode.
    let mut file = OpenOptions::new().write(true).truncate(true).open(file).expect("a file");
    file.write_all(&bytes).expect("it can be written");
}

#[test]
fn acknowledged_writes_survive_a_machine_failure() {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random::new(seed);
    let mut server = start(&["--appendonly", "yes", "--appendfsync", "always", "--threads", "2"]);
    if !has_tail(&server) {
        return;
    }
    let mut put_back = 0;
    for round in 0..8 {
        if round % 3 == 2 {
            server.connect().run("BGREWRITEAOF");
        }
        // The first sync is the file's own, as is one sync per second.
        let run = Duration::from_millis(150 + random.below(1_200) as u64);
        let counts = count_until_killed(&mut server, run);
        let is_failure =
            tail_path(&server).exists() && !row(&fs::read(tail_path(&server)).expect("a tail")).is_empty();
        if is_failure {
            fail_machine(&server, &mut random);
        }
        server.start_again();
        put_back += usize::from(server.log().contains("synced bytes from the tail"));
        let mut client = server.connect();
        for (index, count) in counts.iter().enumerate() {
            let guard = client.call(&["GET", &format!("count:{index}")]).to_string();
            let guard: i64 = guard.trim_matches('"').parse().expect("a number");
            assert!(guard >= *count, "round {round}: {guard} of {count} that writer {index} was told of");
            assert!(guard <= count + 1, "round {round}: {guard} of {count}: executed twice");
        }
    }
    assert!(put_back >= 4, "a tail was needed in {put_back} rounds only");
    server.assert_healthy();
}

/// If a user cuts the file in order to undo commands, the file counts, not the tail.
#[test]
fn after_a_process_crash_the_tail_is_ignored() {
    let mut server = start(&["--appendonly", "yes", "--appendfsync", "always", "--threads", "1"]);
    let mut client = server.connect();
    client.run("SET kept 1");
    if !has_tail(&server) {
        return;
    }
    client.run("SET kept 2");
    // The sync that created the tail was the file's own.
    let len = fs::metadata(last_file(&server)).expect("a file").len();
    client.run("FLUSHALL");
    server.kill();
    OpenOptions::new().write(true).open(last_file(&server)).expect("a file").set_len(len).expect("cut off");
    server.start_again();
    assert!(server.connect().run("GET kept").as_bytes().is_some());
    wait_until("it is said", || server.log().contains("which was renamed to"));
    assert!(!server.log().contains("restored "), "{}", server.log());
}

/// Also without further writes, and after `always` is turned off.
#[test]
fn the_file_is_synced_within_a_second() {
    let server = start(&["--appendonly", "yes", "--appendfsync", "always", "--threads", "1"]);
    let mut client = server.connect();
    if !has_tail(&server) {
        return;
    }
    client.run("SET k 2");
    // Each sync of the file itself begins the row again with the next epoch.
    let epoch =
        || row(&fs::read(tail_path(&server)).expect("a tail")).values().next().map(|(place, _)| place.epoch);
    let first = epoch();
    wait_until("the next row", || {
        std::thread::sleep(Duration::from_millis(1_300));
        client.run("INCR n");
        epoch() > first
    });
    client.run("SET k 3");
    let syncs: u64 = server.info("aof_syncs").parse().expect("a number");
    wait_until("a sync without a write", || {
        server.info("aof_syncs").parse::<u64>().expect("a number") > syncs
    });
    // A removed tail protects nothing, so the server makes a new tail.
    fs::remove_file(tail_path(&server)).expect("it is there");
    wait_until("there is another one", || {
        client.run("INCR n");
        tail_path(&server).exists()
    });
}

#[test]
fn a_tail_exists_as_long_as_it_is_needed() {
    let mut server = start(&["--appendonly", "yes", "--appendfsync", "always", "--threads", "1"]);
    let mut client = server.connect();
    let wait_for = |client: &mut evenkeel_testkit::Client, wanted: bool| {
        let began = Instant::now();
        while tail_path(&server).exists() != wanted {
            assert!(began.elapsed() < Duration::from_secs(20), "it does not become {wanted}");
            client.run("INCR n");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    if !has_tail(&server) {
        return;
    }
    client.run("INCR n");
    client.run("CONFIG SET appendfsync everysec");
    // Without another write.
    wait_until("it is gone", || !tail_path(&server).exists());
    client.run("CONFIG SET appendfsync always");
    wait_for(&mut client, true);
    client.run("CONFIG SET appendonly-direct-io no");
    wait_for(&mut client, false);
    client.run("CONFIG SET appendonly-direct-io yes");
    wait_for(&mut client, true);
    let n = client.run("GET n").to_string();
    assert!(server.stop().success());
    assert!(!tail_path(&server).exists(), "all is in the file");
    server.start_again();
    assert_eq!(server.connect().run("GET n").to_string(), n);
}
