//! Holes and shared values take no memory here, and little when they are stored or sent. The memory that they
//! would take after a load counts towards `maxmemory`.

use std::fs;

use evenkeel_resp::value::Value;
use evenkeel_testkit::{Client, Program, Reference, Server};

use crate::{start, wait_until};

const MB: u64 = 1 << 20;
const LIMIT: &[&str] = &["--maxmemory", "100mb", "--save", "", "--repl-diskless-sync-delay", "0"];
/// The highest bit offset: a string of 512 MB.
const LAST_BIT: &str = "4294967295";

fn number(server: &Server, field: &str) -> u64 {
    server.info(field).parse().expect("a number")
}

#[track_caller]
fn ok(client: &mut Client, line: &str) {
    let reply = client.run(line);
    assert!(!reply.is_error(), "{line}: {reply}");
}

fn call(client: &mut Client, words: &[&[u8]]) -> Value {
    client.call(words)
}

fn is_oom(client: &mut Client, line: &str) -> bool {
    client.run(line).to_string().contains("OOM")
}

/// The process's peak of resident memory, in bytes.
fn resident_peak(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it is told");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") * 1024
}

/// Checks two bitmaps of 512 MB with a single bit each.
#[track_caller]
fn assert_sparse(server: &Server) {
    let mut client = server.connect();
    for key in ["k", "l"] {
        assert_eq!(client.run(&format!("STRLEN {key}")).as_int(), Some(512 << 20));
        assert_eq!(client.run(&format!("BITCOUNT {key}")).as_int(), Some(1));
        assert_eq!(client.run(&format!("GETBIT {key} {LAST_BIT}")).as_int(), Some(1));
    }
    let used = number(server, "used_memory");
    assert!(used < 40 * MB, "{used} bytes are used");
    let peak = resident_peak(server);
    assert!(peak < 160 * MB, "{peak} bytes were resident");
    ok(&mut client, "SET more value");
}

fn sparse(args: &[&str]) -> Server {
    let server = start(&[LIMIT, args].concat());
    let mut client = server.connect();
    ok(&mut client, &format!("SETBIT k {LAST_BIT} 1"));
    ok(&mut client, &format!("SETBIT l {LAST_BIT} 1"));
    server
}

#[test]
fn sparse_bitmaps_stay_sparse_in_a_snapshot_and_after_its_load() {
    for compresses in ["yes", "no"] {
        let mut server = sparse(&["--rdbcompression", compresses]);
        ok(&mut server.connect(), "SAVE");
        let len = fs::metadata(server.folder().join("dump.rdb")).expect("it was saved").len();
        assert!(len < 13 * MB, "{len} bytes");
        // Their size after a load counts.
        let counted = number(&server, "mem_shared_counted_for_evict");
        assert!((len - MB..len + MB).contains(&counted), "{counted} bytes count, {len} were saved");
        server.kill();
        server.start_again();
        assert_sparse(&server);
    }
}

#[test]
fn sparse_bitmaps_stay_sparse_on_a_replica() {
    let primary = sparse(&[]);
    let replica = start(LIMIT);
    ok(&mut replica.connect(), &format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    wait_until("the link is up", || replica.info("master_link_status") == "up");
    ok(&mut replica.connect(), "REPLICAOF NO ONE");
    assert_sparse(&replica);
}

#[test]
fn sparse_bitmaps_stay_sparse_in_an_append_only_file() {
    for preamble in ["yes", "no"] {
        let args = ["--appendonly", "yes", "--aof-use-rdb-preamble", preamble];
        let mut server = sparse(&args);
        ok(&mut server.connect(), "SETRANGE l 1000000 in-between");
        call(&mut server.connect(), &[b"SETRANGE", b"l", b"1000000", &[0; 10]]);
        ok(&mut server.connect(), "BGREWRITEAOF");
        wait_until("it is rewritten", || {
            server.info("aof_rewrite_in_progress") == "0" && server.info("aof_rewrite_scheduled") == "0"
        });
        let entries = fs::read_dir(server.folder().join("appendonlydir")).expect("a folder").flatten();
        let len: u64 = entries.map(|entry| entry.metadata().expect("it is there").len()).sum();
        assert!(len < 13 * MB, "{len} bytes");
        assert!(server.stop().success());
        server.start_again();
        assert_sparse(&server);
    }
}

/// A client may send zeros in any form.
#[test]
fn zeros_sent_by_clients_become_holes() {
    let server = start(LIMIT);
    let mut client = server.connect();
    let zeros = vec![0; 30 << 20];
    let before = number(&server, "used_memory");
    call(&mut client, &[b"SET", b"set", &zeros[..]]);
    call(&mut client, &[b"APPEND", b"appended", &zeros[..]]);
    call(&mut client, &[b"SETRANGE", b"written", b"5", &zeros[..]]);
    if let Some(program) = Program::oracle(Reference::Redis) {
        let redis = Server::start(&program, &[]);
        call(&mut redis.connect(), &[b"SET", b"k", &zeros[..]]);
        let dumped = redis.connect().run("DUMP k");
        call(&mut client, &[b"RESTORE", b"restored", b"0", dumped.as_bytes().expect("a payload")]);
        assert_eq!(client.run("STRLEN restored").as_int(), Some(30 << 20));
    }
    assert_eq!(client.run("BITPOS written 1").as_int(), Some(-1));
    drop(client);
    wait_until("the requests are freed", || number(&server, "used_memory") < before + 10 * MB);
}

/// Other servers restore the DUMP of a bitmap, and their DUMP restores to the same bitmap here.
#[test]
fn reference_servers_restore_a_dumped_bitmap() {
    let server = start(&["--enable-debug-command", "yes"]);
    let mut client = server.connect();
    ok(&mut client, "SETBIT k 100000000 1");
    ok(&mut client, "SETRANGE k 3000000 some-text-that-is-no-zeros");
    ok(&mut client, "SETRANGE k 12000000 more");
    let dumped = client.run("DUMP k");
    let dumped = dumped.as_bytes().expect("a payload");
    assert!(dumped.len() < 200_000, "{} bytes", dumped.len());
    for reference in [Reference::Redis, Reference::Valkey].into_iter().filter_map(Program::oracle) {
        let reference = Server::start(&reference, &[]);
        let mut other = reference.connect();
        let restored = call(&mut other, &[b"RESTORE", b"k", b"0", dumped]);
        assert!(!restored.is_error(), "{restored}");
        assert!(other.run("GET k") == client.run("GET k"));
        let again = other.run("DUMP k");
        call(&mut client, &[b"RESTORE", b"again", b"0", again.as_bytes().expect("a payload"), b"REPLACE"]);
        assert!(other.run("GET k") == client.run("GET again"));
    }
}

#[test]
fn dumping_a_bitmap_takes_memory_for_the_payload_alone() {
    let server = start(&[]);
    let mut client = server.connect();
    ok(&mut client, &format!("SETBIT k {LAST_BIT} 1"));
    let payload = client.run("DUMP k");
    let payload = payload.as_bytes().expect("a payload");
    assert!(payload.len() < 7 << 20, "{} bytes", payload.len());
    let restored = call(&mut client, &[b"RESTORE", b"l", b"0", payload]);
    assert!(!restored.is_error(), "{restored}");
    assert_eq!(client.run("BITCOUNT l").as_int(), Some(1));
    let peak = resident_peak(&server);
    assert!(peak < 160 * MB, "{peak} bytes were resident");
}

#[test]
fn restore_refuses_strings_longer_than_clients_may_send() {
    /// Three bytes that copy 264.
    const RATIO: usize = 88;
    let server = start(&[]);
    let mut client = server.connect();
    let len: usize = (512 << 20) + RATIO * 3;
    let mut payload = vec![0, 0xc3];
    let packed = 2 + (len - 1).div_ceil(264) * 3;
    let len = 1 + (packed - 2) / 3 * 264;
    for length in [packed, len] {
        payload.push(0x80);
        payload.extend_from_slice(&(length as u32).to_be_bytes());
    }
    payload.extend_from_slice(&[0, 0]);
    payload.extend([0xe0, 0xff, 0].repeat((packed - 2) / 3));
    evenkeel_rdb::dump::seal(&mut payload, evenkeel_rdb::Version::V10);
    let reply = call(&mut client, &[b"RESTORE", b"k", b"0", &payload[..]]);
    assert_eq!(reply.to_string(), "-ERR Bad data format");
    ok(&mut client, "CONFIG SET proto-max-bulk-len 1gb");
    let reply = call(&mut client, &[b"RESTORE", b"k", b"0", &payload[..]]);
    assert!(!reply.is_error(), "{reply}");
    assert_eq!(client.run("STRLEN k").as_int(), Some(len as i64));
}

/// Copies `k` to new keys until memory runs out; returns the number of copies.
fn copies(client: &mut Client, line: impl Fn(usize) -> String) -> usize {
    (0..1000).take_while(|number| !is_oom(client, &line(*number))).count()
}

/// After a restart with the same limit all data are there, and a few `DEL` make room.
fn check_loaded(mut server: Server, keys: usize) {
    ok(&mut server.connect(), "SAVE");
    server.kill();
    server.start_again();
    let mut client = server.connect();
    assert_eq!(client.run("DBSIZE").as_int(), Some(keys as i64));
    let used = number(&server, "used_memory");
    assert!(used < 130 * MB, "{used} bytes are used");
    (0..2).for_each(|number| ok(&mut client, &format!("DEL copy:{number}")));
    wait_until("there is room", || !is_oom(&mut client, "SET more value"));
}

fn string(client: &mut Client) {
    call(client, &[b"SET", b"k", &vec![b'x'; 20 << 20][..]]);
}

/// A list whose first pages have other sizes than its later pages.
fn list(client: &mut Client) {
    (0..100).for_each(|_| ok(client, &format!("RPUSH k {}", "short ".repeat(500))));
    for _ in 0..20 {
        call(client, &[b"RPUSH", b"k", &vec![b'x'; 1 << 20][..]]);
    }
}

#[test]
fn copies_count_towards_maxmemory() {
    for fill in [string, list] {
        let server = start(LIMIT);
        let mut client = server.connect();
        fill(&mut client);
        let copies = copies(&mut client, |number| format!("COPY k copy:{number}"));
        assert!((3..6).contains(&copies), "{copies} copies of 20 MB");
        let counted = number(&server, "mem_shared_counted_for_evict");
        // A long element has a page with room for a quarter more.
        assert!((copies as u64 * 20 * MB..copies as u64 * 26 * MB).contains(&counted), "{counted}");
        assert!(number(&server, "used_memory") < 60 * MB, "they are shared all the same");
        check_loaded(server, copies + 1);
    }
}

#[test]
fn results_that_share_their_source_count_towards_maxmemory() {
    let server = start(LIMIT);
    let mut client = server.connect();
    for number in 0..20 {
        call(&mut client, &[b"SADD", b"k", &[vec![b'x'; 1 << 20], vec![number]].concat()[..]]);
    }
    let sets = copies(&mut client, |number| format!("SDIFFSTORE copy:{number} k none"));
    assert!((3..6).contains(&sets), "{sets} copies of 20 MB");
    check_loaded(server, sets + 1);

    let server = start(LIMIT);
    let mut client = server.connect();
    string(&mut client);
    let strings = copies(&mut client, |number| format!("BITOP OR copy:{number} k none"));
    assert!((3..6).contains(&strings), "{strings} copies of 20 MB");
    check_loaded(server, strings + 1);

    // All holes, once written in full, share a single chunk.
    let server = start(LIMIT);
    let mut client = server.connect();
    ok(&mut client, "SETBIT k 167772159 1");
    let strings = copies(&mut client, |number| format!("BITOP NOT copy:{number} k"));
    assert!((3..6).contains(&strings), "{strings} strings of 20 MB");
    check_loaded(server, strings + 1);
}

/// Evicting and removing copies makes room, and so does the removal or replacement of the original.
#[test]
fn memory_no_longer_shared_is_not_counted() {
    let server = start(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru", "--save", ""]);
    let mut client = server.connect();
    string(&mut client);
    for number in 0..100 {
        ok(&mut client, &format!("COPY k copy:{number}"));
    }
    let left = client.run("DBSIZE").as_int().expect("a number");
    assert!((3..7).contains(&left), "{left} of 101 are left");
    ok(&mut client, "FLUSHALL");
    assert_eq!(number(&server, "mem_shared_counted_for_evict"), 0);
    string(&mut client);
    ok(&mut client, "COPY k other");
    assert!(number(&server, "mem_shared_counted_for_evict") > 20 * MB);
    ok(&mut client, "DEL k");
    wait_until("it is its own", || number(&server, "mem_shared_counted_for_evict") == 0);
    assert_eq!(client.run("STRLEN other").as_int(), Some(20 << 20));
}

/// Another thread counts the shared memory of a value with many pages.
#[test]
fn large_values_are_copied_like_small_values() {
    let server = start(&["--save", "", "--enable-debug-command", "yes"]);
    let mut client = server.connect();
    let elements: Vec<_> =
        (0..10_000).map(|number| vec!["RPUSH".into(), "k".into(), format!("{number:4000}")]).collect();
    client.pipeline(&elements);
    assert_eq!(client.run("COPY k other").as_int(), Some(1));
    assert_eq!(client.run("COPY k other").as_int(), Some(0));
    assert_eq!(client.run("COPY k other REPLACE DB 0").as_int(), Some(1));
    assert!(number(&server, "mem_shared_counted_for_evict") > 40_000_000);
    assert_eq!(
        client.run("DEBUG DIGEST-VALUE k").to_string(),
        client.run("DEBUG DIGEST-VALUE other").to_string()
    );
    ok(&mut client, "MULTI");
    ok(&mut client, "COPY k third");
    ok(&mut client, "EXEC");
    assert_eq!(client.run("LLEN third").as_int(), Some(10_000));
    assert!(number(&server, "mem_shared_counted_for_evict") > 80_000_000);
}
