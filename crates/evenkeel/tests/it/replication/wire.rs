//! The bytes sent to a replica, as seen by a test that acts as a replica.

use std::time::Duration;

use evenkeel_testkit::{Client, Server};

use super::{number, ok, primary, wait_until};

/// A client that acts as a replica.
struct Sink(Client);

impl Sink {
    fn connect(server: &Server) -> Sink {
        let mut client = server.connect();
        client.set_reply_timeout(Duration::from_secs(20));
        Sink(client)
    }

    /// Reads `len` bytes.
    fn take(&mut self, len: usize) -> Vec<u8> {
        self.0.read_exactly(len).expect("so much comes")
    }

    /// Reads a line; skips blank lines.
    fn line(&mut self) -> String {
        let mut line = String::new();
        loop {
            match self.take(1)[0] {
                b'\n' if line.is_empty() => {}
                b'\n' => return line.trim_end().to_owned(),
                byte => line.push(byte as char),
            }
        }
    }

    #[track_caller]
    fn expect(&mut self, text: &str) {
        let text = resp(text);
        let got = self.take(text.len());
        assert_eq!(String::from_utf8_lossy(&got), text);
    }

    /// Asks for a full sync, and reads the snapshot; returns the history's id and the offset.
    fn full(&mut self) -> (String, u64) {
        let place = self.snapshot();
        self.ack(0);
        place
    }

    /// The same, without an acknowledgement at the end.
    fn snapshot(&mut self) -> (String, u64) {
        self.ask();
        let (place, snapshot) = self.snapshot_bytes();
        assert!(snapshot.starts_with(b"REDIS00"));
        place
    }

    fn ask(&mut self) {
        ok(&mut self.0, "REPLCONF listening-port 7 capa eof capa psync2");
        self.0.send(&["PSYNC", "?", "-1"]).expect("it reads");
    }

    /// Reads the requested snapshot.
    fn snapshot_bytes(&mut self) -> ((String, u64), Vec<u8>) {
        let place = self.place();
        (place, self.marked_snapshot())
    }

    /// Reads a snapshot with an end mark, and returns both.
    fn marked_snapshot(&mut self) -> Vec<u8> {
        let mark = self.line();
        let mark = mark.strip_prefix("$EOF:").expect("a mark").to_owned();
        let mut snapshot = Vec::new();
        while !snapshot.ends_with(mark.as_bytes()) {
            snapshot.push(self.take(1)[0]);
        }
        snapshot
    }

    fn place(&mut self) -> (String, u64) {
        let line = self.line();
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!((words[0], words[1].len()), ("+FULLRESYNC", 40), "{line}");
        (words[1].to_owned(), words[2].parse().expect("an offset"))
    }

    fn ack(&mut self, offset: u64) {
        self.0.send(&["REPLCONF", "ACK", &offset.to_string()]).expect("it reads");
    }
}

/// Commands, a line each, in wire format.
fn resp(text: &str) -> String {
    let command = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let bulks = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect::<String>();
        format!("*{}\r\n{bulks}", words.len())
    };
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(command).collect()
}

#[test]
fn the_stream_has_the_executed_writes() {
    let server = primary(&["--repl-ping-replica-period", "3600"]);
    let mut client = server.connect();
    ok(&mut client, "SET before 1");
    let mut sink = Sink::connect(&server);
    let (id, offset) = sink.full();
    assert_eq!(id, server.info("master_replid"));
    ok(&mut client, "SET k v EX 1000000 NX");
    sink.expect("SELECT 0");
    assert_eq!(sink.take(21), b"*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$", "the options are gone");
    let rest = resp("SET k v PXAT 1700000000000").len() - 21;
    sink.take(rest);
    ok(&mut client, "INCR n");
    sink.expect("INCR n");
    ok(&mut client, "GET k");
    ok(&mut client, "MULTI");
    ok(&mut client, "SADD s a");
    ok(&mut client, "SPOP s");
    ok(&mut client, "SELECT 2");
    ok(&mut client, "RPUSH l x");
    ok(&mut client, "EXEC");
    sink.expect("MULTI\n SADD s a\n SREM s a\n SELECT 2\n RPUSH l x\n EXEC");
    ok(&mut client, "RPUSH l y");
    sink.expect("RPUSH l y");
    ok(&mut client, "SELECT 0");
    ok(&mut client, "SET soon gone PX 1");
    sink.expect("SELECT 0");
    sink.take(resp("SET soon gone PXAT 1700000000000").len());
    sink.expect("UNLINK soon");
    let end = number(&server, "master_repl_offset");
    assert!(end > offset);
    // A returning replica gets the missing part, and nothing more.
    let mut again = Sink::connect(&server);
    ok(&mut again.0, "REPLCONF capa psync2");
    let (from, last) = ((end - resp("UNLINK soon").len() as u64 + 1).to_string(), (end + 1).to_string());
    again.0.send(&["PSYNC", &id, &from]).expect("it reads");
    assert_eq!(again.line(), format!("+CONTINUE {id}"));
    again.expect("UNLINK soon");
    let mut old = Sink::connect(&server);
    old.0.send(&["PSYNC", &id, &last]).expect("it reads");
    assert_eq!(old.line(), "+CONTINUE", "one that knows no names is told none");
    ok(&mut client, "INCR n");
    for sink in [&mut sink, &mut again, &mut old] {
        sink.expect("INCR n");
    }
}

/// An offset beyond the end, before the beginning, or of another history: a full sync follows.
#[test]
fn an_unavailable_offset_causes_a_full_sync() {
    let server = primary(&[]);
    let mut client = server.connect();
    let (id, offset) = Sink::connect(&server).full();
    ok(&mut client, "SET k v");
    let next = offset + 2;
    let asked =
        [(id.as_str(), 0), (&id, offset + 10_000), (&"f".repeat(40), next), ("", next), (&id, u64::MAX >> 1)];
    for (count, (name, from)) in asked.into_iter().enumerate() {
        let mut sink = Sink::connect(&server);
        sink.0.send(&["PSYNC", name, &from.to_string()]).expect("it reads");
        let (again, offset) = sink.place();
        assert_eq!((again, offset), (id.clone(), number(&server, "master_repl_offset")));
        assert_eq!(number(&server, "sync_full"), count as u64 + 2);
    }
}

/// A smaller backlog takes effect for the next replica, not at the next periodic check.
#[test]
fn a_smaller_backlog_applies_to_the_next_replica() {
    let server = primary(&[]);
    let (mut client, value) = (server.connect(), "v".repeat(20_000));
    let mut first = Sink::connect(&server);
    let (id, offset) = first.full();
    let mut again = Sink::connect(&server);
    ok(&mut client, "MULTI");
    ok(&mut client, "CLIENT KILL TYPE replica");
    ok(&mut client, "CONFIG SET repl-backlog-size 16384");
    (0..10).for_each(|n| ok(&mut client, &format!("SET key:{n} {value}")));
    ok(&mut client, "EXEC");
    again.0.send(&["PSYNC", &id, &(offset + 1).to_string()]).expect("it reads");
    assert_eq!(again.place().0, id, "what it lacks is more than is kept");
    assert_eq!(number(&server, "sync_full"), 2);
}

/// A replica without end marks and offsets: a length, the snapshot, then the stream.
#[test]
fn the_protocol_without_end_marks_is_served() {
    let server = primary(&["--repl-ping-replica-period", "3600"]);
    let mut client = server.connect();
    ok(&mut client, "SET before 1");
    let mut sink = Sink::connect(&server);
    sink.0.send(&["SYNC"]).expect("it reads");
    let line = sink.line();
    let len: usize = line.strip_prefix('$').and_then(|len| len.parse().ok()).expect("a length");
    ok(&mut client, "SET after 1");
    let snapshot = sink.take(len);
    assert!(snapshot.starts_with(b"REDIS00"));
    sink.expect("SELECT 0\n SET after 1");
    wait_until("it is online", || server.info("slave0").contains("state=online"));
}

/// The same with end marks, as `redis-cli --rdb` does it: the primary writes nothing to its disk.
#[test]
fn the_protocol_without_offsets_is_served_with_end_marks() {
    let server = primary(&["--repl-ping-replica-period", "3600"]);
    let mut client = server.connect();
    ok(&mut client, "SET before 1");
    let mut sink = Sink::connect(&server);
    ok(&mut sink.0, "REPLCONF capa eof");
    sink.0.send(&["SYNC"]).expect("it reads");
    assert!(sink.marked_snapshot().starts_with(b"REDIS00"));
    ok(&mut client, "SET after 1");
    sink.ack(0);
    sink.expect("SELECT 0\n SET after 1");
}

/// The snapshot alone.
#[test]
fn a_request_for_a_snapshot_alone_gets_no_stream() {
    let server = primary(&["--repl-ping-replica-period", "1"]);
    let mut sink = Sink::connect(&server);
    ok(&mut sink.0, "REPLCONF rdb-only 1");
    sink.snapshot();
    ok(&mut server.connect(), "SET k v");
    assert!(sink.0.read_exactly(1).is_err(), "nothing comes");
    assert_eq!(server.info("connected_slaves"), "0");
}

/// Each replica gets the requested part of the data, also when several ask at the same time.
#[test]
fn a_snapshot_has_the_requested_part_of_the_data() {
    let server = primary(&["--repl-diskless-sync-delay", "1"]);
    let mut client = server.connect();
    let code = "#!lua name=lib\nredis.register_function('f', function() return 1 end)";
    assert_eq!(client.call(&["FUNCTION", "LOAD", code]).to_string(), "\"lib\"");
    ok(&mut client, "SET the-key v");
    ok(&mut client, "HSET hash field v");
    ok(&mut client, "HPEXPIRE hash 1000000 FIELDS 1 field");
    let filters = [None, Some("functions"), Some(""), Some("functions")];
    let mut sinks = filters.map(|filter| {
        let mut sink = Sink::connect(&server);
        ok(&mut sink.0, "REPLCONF rdb-only 1");
        if let Some(filter) = filter {
            let reply = sink.0.call(&["REPLCONF", "rdb-filter-only", filter]);
            assert_eq!(reply.to_string(), "OK");
        }
        sink.ask();
        sink
    });
    for (filter, sink) in filters.iter().zip(&mut sinks) {
        let (_, snapshot) = sink.snapshot_bytes();
        let has = |text: &str| snapshot.windows(text.len()).any(|window| window == text.as_bytes());
        assert_eq!(has("register_function"), *filter != Some(""), "{filter:?}");
        assert_eq!(has("the-key"), filter.is_none(), "{filter:?}");
        assert_eq!(snapshot.starts_with(b"REDIS0010"), filter.is_some(), "what Redis reads, if it can be");
    }
}

/// A replica that waits for a file gets signs of life.
#[test]
fn a_replica_that_waits_for_a_file_gets_keepalives() {
    let server = primary(&["--repl-diskless-sync", "no", "--rdb-key-save-delay", "30000"]);
    let mut client = server.connect();
    (0..100).for_each(|n| ok(&mut client, &format!("SET {n} v")));
    let mut sink = Sink::connect(&server);
    sink.ask();
    let _place = sink.place();
    assert_eq!(sink.take(1), b"\n");
    let line = sink.line();
    let len: usize = line.strip_prefix('$').and_then(|len| len.parse().ok()).expect("a length");
    assert!(sink.take(len).starts_with(b"REDIS00"));
}

/// A replica loads for a long time, while more is written than fits into memory or an output buffer: it gets
/// every byte, and nothing waits for it.
#[test]
fn writes_during_a_replicas_load_are_kept() {
    let limit = ["--client-output-buffer-limit", "replica 1mb 1mb 1"];
    let server = primary(&[&limit[..], &["--repl-ping-replica-period", "3600"]].concat());
    let mut client = server.connect();
    let mut sink = Sink::connect(&server);
    let (_, from) = sink.snapshot();
    let set = |n: usize| vec!["SET".to_owned(), format!("key:{}", n % 10), format!("{n:050000}").repeat(2)];
    let used = number(&server, "used_memory");
    for some in (0..2_000).collect::<Vec<_>>().chunks(50) {
        client.pipeline(&some.iter().map(|n| set(*n)).collect::<Vec<_>>());
    }
    wait_until("it is on disk", || number(&server, "repl_backlog_on_disk") > 100 << 20);
    assert!(number(&server, "used_memory") - used < 80 << 20, "no more than a bound in memory");
    sink.ack(from);
    sink.expect("SELECT 0");
    for n in 0..2_000 {
        let expected = resp(&set(n).join(" "));
        assert!(sink.take(expected.len()) == expected.as_bytes(), "at write {n}");
    }
    wait_until("the disk is free again", || number(&server, "repl_backlog_on_disk") == 0);
    ok(&mut client, "INCR n");
    sink.expect("INCR n");
    // From now on the replica measures its lag.
    let value = "v".repeat(1_000_000);
    (0..40).for_each(|n| ok(&mut client, &format!("SET key:{n} {value}")));
    wait_until("it is dropped", || server.info("connected_slaves") == "0");
}

/// A disk that takes nothing costs the loading replica its full sync, and nothing else.
#[test]
fn a_replica_whose_spill_fails_needs_a_new_full_sync() {
    let server = primary(&["--repl-ping-replica-period", "3600"]);
    let mut client = server.connect();
    let mut follows = Sink::connect(&server);
    let (_, from) = follows.snapshot();
    follows.ack(from);
    let mut loads = Sink::connect(&server);
    let _place = loads.snapshot();
    let other_folder = server.folder().with_extension("elsewhere");
    std::fs::rename(server.folder(), &other_folder).expect("the folder is ours");
    let set = |n: usize| vec!["SET".to_owned(), format!("key:{}", n % 10), format!("{n:050000}").repeat(2)];
    ok(&mut client, "SET first 1");
    follows.expect("SELECT 0\n SET first 1");
    for n in 0..800 {
        ok(&mut client, &set(n).join(" "));
        let expected = resp(&set(n).join(" "));
        assert!(follows.take(expected.len()) == expected.as_bytes(), "at write {n}");
        if n == 400 {
            assert_eq!(server.info("connected_slaves"), "2", "memory holds 40 MB of it");
            assert!(!server.log().contains("Cannot spill"));
        }
    }
    wait_until("one is left", || server.info("connected_slaves") == "1");
    std::fs::rename(&other_folder, server.folder()).expect("the folder is ours");
    let said = format!("to disk, in {}: No such file", server.folder().display());
    wait_until("it is said", || server.log().contains(&said));
    ok(&mut client, "INCR n");
    follows.expect("INCR n");
    assert_eq!(number(&server, "repl_backlog_on_disk"), 0);
}

/// At any time, the bytes between journal and stream are counted in either of them.
#[test]
fn bytes_kept_for_a_replica_are_always_counted() {
    let server = primary(&["--repl-ping-replica-period", "3600"]);
    let mut client = server.connect();
    let mut loads = Sink::connect(&server);
    let _place = loads.snapshot();
    let write = format!("SET key {}", "x".repeat(7_000)); // 7 MB of 8 MiB in memory
    for writes in 1..=1_000 {
        ok(&mut client, &write);
        let kept = number(&server, "mem_total_replication_buffers");
        assert!(kept >= writes * resp(&write).len() as u64, "{kept} after {writes} writes");
    }
}

/// Nothing waits for bytes that the disk failed to take.
#[test]
fn a_replica_whose_bytes_are_lost_is_closed_at_once() {
    let server = primary(&["--repl-ping-replica-period", "3600"]);
    let mut client = server.connect();
    let mut loads = Sink::connect(&server);
    let _place = loads.snapshot();
    let other_folder = server.folder().with_extension("elsewhere");
    std::fs::rename(server.folder(), &other_folder).expect("the folder is ours");
    ok(&mut client, &format!("SET large {}", "x".repeat(64 << 20)));
    wait_until("it is cut off", || server.info("connected_slaves") == "0");
    std::fs::rename(&other_folder, server.folder()).expect("the folder is ours");
    let said = format!("to disk, in {}: No such file", server.folder().display());
    wait_until("it is said", || server.log().contains(&said));
}

/// The data kept for a loading replica also serve a returning replica, in memory or on disk.
#[test]
fn a_spill_serves_returning_replicas() {
    let server = primary(&["--repl-ping-replica-period", "3600", "--repl-backlog-size", "16kb"]);
    let mut client = server.connect();
    let mut before = Sink::connect(&server);
    let (id, _) = before.full();
    ok(&mut client, "SET k v");
    before.expect("SELECT 0\n SET k v");
    let end = number(&server, "master_repl_offset");
    drop(before);
    let mut loads = Sink::connect(&server);
    let _place = loads.snapshot();
    let set = |n: usize| vec!["SET".to_owned(), format!("key:{}", n % 10), format!("{n:050000}").repeat(2)];
    for some in (0..1_000).collect::<Vec<_>>().chunks(50) {
        client.pipeline(&some.iter().map(|n| set(*n)).collect::<Vec<_>>());
    }
    wait_until("it is on disk", || number(&server, "repl_backlog_on_disk") > 40 << 20);
    assert!(number(&server, "repl_backlog_histlen") > 100_000_000);
    assert!(number(&server, "repl_backlog_first_byte_offset") <= end + 1);
    let mut again = Sink::connect(&server);
    ok(&mut again.0, "REPLCONF capa psync2");
    again.0.send(&["PSYNC", &id, &(end + 1).to_string()]).expect("it reads");
    assert_eq!(again.line(), format!("+CONTINUE {id}"));
    again.expect("SELECT 0");
    for n in 0..1_000 {
        let expected = resp(&set(n).join(" "));
        assert!(again.take(expected.len()) == expected.as_bytes(), "at write {n}");
    }
    drop(loads);
    wait_until("only what is to be kept is", || number(&server, "repl_backlog_histlen") < 40_000);
    assert!(number(&server, "mem_total_replication_buffers") < 40_000);
    assert_eq!((number(&server, "sync_full"), number(&server, "sync_partial_ok")), (2, 1));
}

/// Tools wait for the end of a full sync before other expensive work.
#[test]
fn a_full_sync_counts_as_a_snapshot_in_progress() {
    for form in ["yes", "no"] {
        let server = primary(&["--repl-diskless-sync", form, "--rdb-key-save-delay", "1000000"]);
        let mut client = server.connect();
        (0..100).for_each(|n| ok(&mut client, &format!("SET {n} v")));
        // Both replicas are there before a sync can begin.
        ok(&mut client, "BGSAVE");
        let mut sinks = [(); 2].map(|()| Sink::connect(&server));
        for sink in &mut sinks {
            ok(&mut sink.0, "REPLCONF listening-port 7 capa eof capa psync2");
            sink.0.send(&["PSYNC", "?", "-1"]).expect("it reads");
        }
        wait_until("both wait", || server.info("connected_slaves") == "2");
        ok(&mut client, "BGSAVE CANCEL");
        for sink in &mut sinks {
            let _place = sink.place();
        }
        assert_eq!(server.info("rdb_bgsave_in_progress"), "1");
        assert_ne!(server.info("rdb_current_bgsave_time_sec"), "-1");
        for replica in ["slave0", "slave1"] {
            assert!(server.info(replica).contains("state=wait_bgsave"), "{}", server.info(replica));
        }
        let [one, other] = sinks;
        drop(one);
        wait_until("it is gone", || server.info("connected_slaves") == "1");
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(server.info("rdb_bgsave_in_progress"), "1", "the other one wants it");
        drop(other);
        wait_until("nobody wants it", || server.info("rdb_bgsave_in_progress") == "0");
    }
}

/// Invalid commands from a replica end its connection, and nothing else.
#[test]
fn invalid_messages_of_a_replica_end_its_connection() {
    let mut server = primary(&["--repl-ping-replica-period", "3600"]);
    for nonsense in [
        &b"*1\r\n$-5\r\n"[..],
        b"*3000000000\r\n",
        &[b'x'; 100_000],
        b"*2\r\n$8\r\nREPLCONF\r\n$99999999\r\n",
    ] {
        let mut sink = Sink::connect(&server);
        sink.full();
        let _ = sink.0.send_raw(nonsense);
        wait_until("it is gone", || server.info("connected_slaves") == "0");
    }
    let mut sink = Sink::connect(&server);
    sink.full();
    for words in ["SYNC", "PSYNC ? -1", "REPLCONF", "REPLCONF ACK", "REPLCONF ACK x", "REPLCONF GETACK *"] {
        let words: Vec<&str> = words.split(' ').collect();
        sink.0.send(&words).expect("it reads");
    }
    sink.ack(3);
    wait_until("the rest is passed over", || server.info("slave0").contains("offset=3"));
    ok(&mut server.connect(), "SET k v");
    sink.expect("SELECT 0\n SET k v"); // and no reply before it
    assert!(sink.0.unread().is_empty());
    server.assert_healthy();
}

/// Tools that wait for a replica compare offsets right after a write.
#[test]
fn an_offset_reported_after_a_write_includes_it() {
    let server = primary(&["--threads", "2"]);
    let mut sink = Sink::connect(&server);
    let _place = sink.full();
    let (mut writer, mut other) = (server.connect(), server.connect());
    for round in 0..100 {
        let before = number(&server, "master_repl_offset");
        ok(&mut writer, "SET key value");
        let after = if round % 2 == 0 {
            number(&server, "master_repl_offset")
        } else {
            let role = other.run("ROLE");
            role.as_items().expect("a role")[1].as_int().expect("an offset") as u64
        };
        assert!(after >= before + 30, "round {round}: {before} and then {after}");
    }
}

/// A reply would be part of the stream, so a replica that sends a command is disconnected, as by Valkey.
#[test]
fn replicas_that_send_commands_are_disconnected() {
    let server = primary(&[]);
    for (asks, line, name) in [
        (vec!["SYNC"], "PING", "ping"),
        (vec!["SYNC"], "XINFO HELP", "xinfo|help"),
        (vec!["PSYNC", "?", "-1"], "GET foo", "get"),
        (vec!["PSYNC", "?", "-1"], "NOSUCH 1", "NOSUCH"),
    ] {
        let mut sink = Sink::connect(&server);
        sink.0.send(&asks).expect("it reads");
        let words: Vec<&str> = line.split(' ').collect();
        sink.0.send(&words).expect("it reads");
        let rest = sink.0.read_to_end().expect("it ends in order");
        assert!(!String::from_utf8_lossy(&rest).contains("PONG"), "{line}");
        let log = server.log();
        assert!(log.contains(&format!("Replica generated a reply to command '{name}', disconnecting it: ")));
        assert_eq!(
            log.contains("Replica can't interact with the keyspace"),
            name == "get" || name == "NOSUCH"
        );
    }
    // What replicas send has no reply.
    let mut sink = Sink::connect(&server);
    sink.full();
    ok(&mut server.connect(), "SET k 1");
    sink.expect("SELECT 0\n SET k 1");
}
