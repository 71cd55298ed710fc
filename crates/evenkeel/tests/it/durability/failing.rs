//! Faults of the machine, on demand. A disk that refuses writes or syncs: unsafe writes are not acknowledged,
//! the fault is reported, and a later base makes the data safe again. A slow disk. A clock set back. A crash
//! of the whole machine.

mod machine;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use evenkeel_testkit::{Client, Server};

use crate::{program, wait_until};

/// Loaded into a server, it produces the listed faults.
const SHIM: &str = include_str!("failing/faults.c");

/// The list of the current faults.
pub(super) struct Faults(PathBuf);

impl Faults {
    pub(super) fn new(name: &str) -> Faults {
        let faults = Faults(folder().join(name));
        faults.are("");
        faults
    }

    /// Replaces the list of faults; faults.c describes the lines.
    pub(super) fn are(&self, lines: &str) {
        let draft = self.0.with_extension("draft");
        fs::write(&draft, lines).expect("the folder is ours");
        fs::rename(draft, &self.0).expect("the folder is ours");
    }

    pub(super) fn start(&self, args: &[&str]) -> Server {
        self.start_by(&[], args)
    }

    /// `prefix` executes the server.
    fn start_by(&self, prefix: &[&str], args: &[&str]) -> Server {
        start_with(&format!("EVENKEEL_TEST_FAULTS={}", self.0.display()), prefix, args)
    }
}

/// `what`: a variable of the environment that faults.c reads.
fn start_with(what: &str, prefix: &[&str], args: &[&str]) -> Server {
    let preload = format!("LD_PRELOAD={}", shim().display());
    Server::start(&program().started_by(&[&["env", &preload, what], prefix].concat()), args)
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// Compiles the shim, once for all tests of this process.
fn shim() -> &'static PathBuf {
    static SHIM_PATH: OnceLock<PathBuf> = OnceLock::new();
    SHIM_PATH.get_or_init(|| {
        let process = std::process::id();
        let (source, library) =
            (folder().join(format!("faults-{process}.c")), folder().join(format!("faults-{process}.so")));
        fs::write(&source, SHIM).expect("the folder is ours");
        let compiler = std::env::var("CC").unwrap_or("cc".into());
        let (compiler, args) = compiler.split_once(' ').unwrap_or((&compiler, ""));
        let mut command = Command::new(compiler);
        command.args(args.split_whitespace());
        command
            .args(["-std=gnu11", "-shared", "-fPIC", "-O1", "-w", "-o"])
            .arg(&library)
            .arg(&source)
            .arg("-ldl");
        assert!(command.status().expect("a C compiler").success(), "it compiles");
        library
    })
}

const ALWAYS: &[&str] = &["--threads", "2", "--appendonly", "yes", "--appendfsync", "always"];
const EVERY_SECOND: &[&str] = &["--threads", "2", "--appendonly", "yes", "--appendfsync", "everysec"];
const REFUSED: &str = "MISCONF Errors writing to the AOF file: Input/output error";
/// No sync of the commands, neither in the file nor in its tail.
const NO_SYNC: &str = "sync .incr.aof\nwrite appendonly.aof.tail\n";

fn is_refused(client: &mut Client) -> bool {
    client.run("SET other 1").to_string().contains(REFUSED)
}

/// Number of times that the server's log has these words.
fn times(server: &Server, words: &str) -> usize {
    server.log().matches(words).count()
}

fn rewrite(server: &Server) {
    server.connect().run("BGREWRITEAOF");
    wait_until("the rewrite has ended", || {
        server.info("aof_rewrite_in_progress") == "0" && server.info("aof_rewrite_scheduled") == "0"
    });
}

#[test]
fn after_a_failed_sync_writes_are_acknowledged_only_once_in_a_base() {
    let faults = Faults::new("always");
    let mut server = faults.start(ALWAYS);
    let (mut writer, mut other) = (server.connect(), server.connect());
    assert_eq!(writer.run("SET before 1").to_string(), "OK");

    faults.are(NO_SYNC);
    writer.set_reply_timeout(Duration::from_millis(700));
    assert!(writer.try_call(&["SET", "waits", "1"]).is_err(), "it may be lost");
    wait_until("writers are told", || is_refused(&mut other));
    assert_eq!(other.run("GET before").as_bytes(), Some(&b"1"[..]), "readers are served");
    assert_eq!(server.info("aof_last_write_status"), "err");
    wait_until("it is said", || times(&server, "no write is acknowledged") == 1);
    assert_eq!(times(&server, "Error syncing the append-only file: Input/output error"), 1);

    // The kernel reports a lost write only once: a later successful sync proves nothing.
    faults.are("");
    assert!(writer.try_read().is_err(), "it may be lost still");
    assert!(is_refused(&mut other), "{}", server.log());

    rewrite(&server);
    writer.set_reply_timeout(Duration::from_secs(30));
    assert_eq!(writer.read().to_string(), "OK", "the base has it");
    wait_until("writes go on", || !is_refused(&mut other));
    assert_eq!(server.info("aof_last_write_status"), "ok");
    wait_until("it is said", || times(&server, "The new base file has all data") == 1);
    server.kill();
    faults.are("");
    server.start_again();
    assert_eq!(server.connect().run("MGET before waits other").to_string(), r#"["1", "1", "1"]"#);
    server.assert_healthy();
}

#[test]
fn a_base_ends_no_sync_error_while_the_next_file_is_in_doubt() {
    let faults = Faults::new("twice");
    let mut server = faults.start(ALWAYS);
    let (mut writer, mut other) = (server.connect(), server.connect());
    for key in 0..20 {
        writer.run(&format!("SET key:{key} 1"));
    }
    writer.run("SET soon 1 PX 3000");
    faults.are(NO_SYNC);
    writer.set_reply_timeout(Duration::from_millis(200));
    assert!(writer.try_call(&["SET", "waits", "1"]).is_err(), "it may be lost");
    wait_until("writers are told", || is_refused(&mut other));
    // A client without writes waits for no disk, even if its command has blocked.
    assert_eq!(other.run("XREAD BLOCK 50 STREAMS none $").to_string(), "(nil array)");
    assert_eq!(other.run("BGSAVE").to_string(), "Background saving started");
    wait_until("it has ended", || server.info("rdb_bgsave_in_progress") == "0");

    // A base that takes six seconds. Meanwhile a key expires; its removal is logged, and cannot be synced
    // either.
    other.run("CONFIG SET rdb-key-save-delay 300000");
    other.run("BGREWRITEAOF");
    wait_until("the second failure", || times(&server, "Error syncing the append-only file") == 2);
    assert_eq!(server.info("aof_rewrite_in_progress"), "1", "the base came too early");
    wait_until("the base", || server.info("aof_rewrite_in_progress") == "0");
    assert_eq!(server.info("aof_last_bgrewrite_status"), "ok");
    assert!(writer.try_read().is_err(), "it is acknowledged");
    assert!(is_refused(&mut other), "{}", server.log());
    assert_eq!(times(&server, "The new base file has all data"), 0);

    faults.are("");
    other.run("CONFIG SET rdb-key-save-delay 0");
    rewrite(&server);
    wait_until("writes go on", || !is_refused(&mut other));
    writer.set_reply_timeout(Duration::from_secs(30));
    assert_eq!(writer.read().to_string(), "OK");
    server.kill();
    server.start_again();
    assert_eq!(server.connect().run("MGET key:19 waits soon").to_string(), r#"["1", "1", (nil)]"#);
}

#[test]
fn with_everysec_a_failed_sync_refuses_later_writes() {
    let faults = Faults::new("everysec");
    let mut server = faults.start(EVERY_SECOND);
    let (mut writer, mut waiter) = (server.connect(), server.connect());
    writer.run("SET before 1");
    assert_eq!(waiter.run("WAITAOF 1 0 30000").to_string(), "[:1, :0]");
    faults.are(NO_SYNC);
    assert_eq!(writer.run("SET doubtful 1").to_string(), "OK", "it is not synced yet");
    wait_until("the sync", || is_refused(&mut writer));
    assert_eq!(waiter.run("WAITAOF 1 0 300").to_string(), "[:0, :0]", "it may be lost");
    faults.are("");
    std::thread::sleep(Duration::from_millis(1_200));
    assert!(is_refused(&mut writer), "a later sync proves nothing:\n{}", server.log());
    rewrite(&server);
    wait_until("writes go on", || !is_refused(&mut writer));
    assert_eq!(waiter.run("WAITAOF 1 0 30000").to_string(), "[:1, :0]");
    server.kill();
    server.start_again();
    assert_eq!(server.connect().run("MGET before doubtful").to_string(), r#"["1", "1"]"#);
}

#[test]
fn the_server_does_without_a_tail_that_cannot_be_written() {
    let faults = Faults::new("tail");
    let mut server = faults.start(ALWAYS);
    let mut client = server.connect();
    let tail = server.folder().join("appendonlydir/appendonly.aof.tail");
    // The tail exists if the file system supports it, and is in use once it has a record.
    let is_used = || fs::read(&tail).is_ok_and(|bytes| bytes.starts_with(b"EVKTAIL1"));
    let (mut number, began) = (0, Instant::now());
    while !is_used() {
        number += 1;
        client.run(&format!("SET key {number}"));
        if began.elapsed() > Duration::from_secs(10) {
            assert!(times(&server, "no tail file, so each fsync") == 1, "{}", server.log());
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    faults.are("write appendonly.aof.tail");
    for _ in 0..50 {
        number += 1;
        assert_eq!(client.run(&format!("SET key {number}")).to_string(), "OK");
    }
    wait_until("it is said", || times(&server, "takes longer: a write to the tail failed") == 1);
    assert!(!tail.exists(), "what it has is older than the file");
    assert_eq!(server.info("aof_last_write_status"), "ok");
    server.kill();
    server.start_again();
    assert_eq!(server.connect().run("GET key").to_string(), format!("\"{number}\""));
}

#[test]
fn a_failed_write_is_retried() {
    let faults = Faults::new("write");
    let mut server = faults.start(EVERY_SECOND);
    let mut client = server.connect();
    client.run("SET before 1");
    faults.are("write .incr.aof");
    assert_eq!(client.run("SET waits 1").to_string(), "OK");
    wait_until("writers are told", || is_refused(&mut client));
    wait_until("it is said", || times(&server, "Pending data is kept in memory") == 1);
    faults.are("");
    wait_until("writes go on", || !is_refused(&mut client));
    server.kill();
    server.start_again();
    assert_eq!(server.connect().run("MGET before waits").to_string(), r#"["1", "1"]"#);
}

#[test]
fn an_unsynced_snapshot_or_base_changes_nothing() {
    let faults = Faults::new("snapshot");
    let mut server = faults.start(EVERY_SECOND);
    let mut client = server.connect();
    client.run("SET key 1");
    assert_eq!(client.run("SAVE").to_string(), "OK");
    let dump = server.folder().join("dump.rdb");
    let before = fs::read(&dump).expect("a snapshot");
    client.run("SET key 2");

    faults.are("sync temp-");
    assert!(client.run("SAVE").is_error());
    client.run("BGSAVE");
    wait_until("the snapshot has failed", || {
        server.info("rdb_bgsave_in_progress") == "0" && server.info("rdb_last_bgsave_status") == "err"
    });
    assert_eq!(fs::read(&dump).expect("a snapshot"), before);
    rewrite(&server);
    assert_eq!(server.info("aof_last_bgrewrite_status"), "err");
    client.run("SET key 3");
    let left: Vec<_> = [server.folder().to_owned(), server.folder().join("appendonlydir")]
        .iter()
        .flat_map(|folder| fs::read_dir(folder).expect("a folder").flatten())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("temp-"))
        .collect();
    assert!(left.is_empty(), "{left:?}");

    faults.are("");
    rewrite(&server);
    assert_eq!(server.info("aof_last_bgrewrite_status"), "ok");
    client.run("SET key 4");
    wait_until("it is written", || client.run("WAITAOF 1 0 1000").to_string() == "[:1, :0]");
    server.kill();
    server.start_again();
    assert_eq!(server.connect().run("GET key").to_string(), "\"4\"");
}

/// Each failed rewrite adds an incremental file: all of them are loaded until a rewrite succeeds, also after
/// a restart.
#[test]
fn failed_rewrites_leave_an_aof_of_more_files() {
    let faults = Faults::new("failures");
    let mut server = faults.start(EVERY_SECOND);
    let manifest = |server: &Server| {
        let path = server.folder().join("appendonlydir/appendonly.aof.manifest");
        let text = fs::read_to_string(path).expect("a manifest");
        text.lines().map(|line| line.split(' ').nth(1).expect("a name").to_owned()).collect::<Vec<_>>()
    };
    let base = "appendonly.aof.1.base.rdb";
    let numbered = |numbers: std::ops::RangeInclusive<i32>| {
        numbers.map(|number| format!("appendonly.aof.{number}.incr.aof")).collect::<Vec<_>>()
    };
    faults.are("sync temp-appendonly.aof.base\n");
    for round in 1..=3 {
        assert!(!server.connect().run(&format!("SET key:{round} 1")).is_error());
        rewrite(&server);
        assert_eq!(server.info("aof_last_bgrewrite_status"), "err");
        assert_eq!(server.info("aof_rewrites_consecutive_failures"), round.to_string());
        // The AOF thread begins it.
        let files = [vec![base.to_owned()], numbered(1..=round + 1)].concat();
        wait_until("there is one more", || manifest(&server) == files);
    }
    server.connect().run("SET key:4 1");
    wait_until("it is written", || server.info("aof_buffer_length") == "0");
    server.kill();
    server.start_again();
    assert_eq!(server.connect().run("DBSIZE").as_int(), Some(4));
    assert_eq!(manifest(&server), [vec![base.to_owned()], numbered(1..=4)].concat());
    faults.are("");
    rewrite(&server);
    assert_eq!(manifest(&server), ["appendonly.aof.2.base.rdb", "appendonly.aof.5.incr.aof"]);
    server.kill();
    server.start_again();
    assert_eq!(server.connect().run("DBSIZE").as_int(), Some(4));
    server.assert_healthy();
}

/// If the first base fails, no append-only file exists yet; writes until then are in the base that succeeds.
#[test]
fn a_failed_first_base_is_retried() {
    let faults = Faults::new("first");
    let mut server = faults.start(&["--threads", "2", "--appendfsync", "everysec"]);
    let mut client = server.connect();
    client.run("SET before 1");
    faults.are("sync temp-");
    assert_eq!(client.run("CONFIG SET appendonly yes").to_string(), "OK");
    wait_until("it fails", || server.info("aof_last_bgrewrite_status") == "err");
    assert_eq!(client.run("SET meanwhile 1").to_string(), "OK");
    let manifest = server.folder().join("appendonlydir/appendonly.aof.manifest");
    assert!(!manifest.exists(), "a log without a base is none");
    faults.are("");
    // Six seconds later, without a command.
    wait_until("there is a base", || manifest.exists() && server.info("aof_last_bgrewrite_status") == "ok");
    assert_eq!(client.run("SET after 1").to_string(), "OK");
    assert_eq!(client.run("WAITAOF 1 0 10000").to_string(), "[:1, :0]");
    server.kill();
    // Turned on in a server that was started without it.
    let dir = server.folder().display().to_string();
    let again = crate::start(&["--dir", &dir, "--appendonly", "yes"]);
    assert_eq!(again.connect().run("DBSIZE").as_int(), Some(3));
}

/// No client request makes a worker thread write or sync a file, except CONFIG REWRITE and ACL SAVE in a
/// transaction: ARCHITECTURE.md.
#[test]
fn threads_that_serve_clients_touch_no_file() {
    let faults = Faults::new("never");
    faults.are("never worker-");
    for policy in ["always", "everysec", "no"] {
        let [config, users] = ["conf", "users"].map(|kind| folder().join(format!("never-{policy}.{kind}")));
        fs::write(&users, "user default on nopass ~* &* +@all\n").expect("the folder is ours");
        fs::write(&config, format!("aclfile {}\n", users.display())).expect("the folder is ours");
        let config = config.to_str().expect("a plain name");
        let with_config = ["sh", "-c", &format!("exec \"$0\" {config} \"$@\"")];
        let args = ["--appendonly", "yes", "--appendfsync", policy, "--threads", "2"];
        let args = [&args[..], &["--enable-debug-command", "yes"]].concat();
        let mut server = faults.start_by(&with_config, &args);
        let mut client = server.connect();
        let done = |server: &Server| {
            let fields = ["rdb_bgsave_in_progress", "aof_rewrite_in_progress", "aof_rewrite_scheduled"];
            wait_until("it is done", || fields.iter().all(|field| server.info(field) == "0"));
        };
        for round in 0..3 {
            let sets =
                (0..500).map(|n| vec!["SET".into(), format!("key:{n}"), format!("{round}").repeat(1_000)]);
            client.pipeline(&sets.collect::<Vec<_>>());
            let lines = [
                "MULTI",
                "INCR n",
                "RPUSH l 1",
                "EXEC",
                "EVAL return(redis.call('INCR','m')) 0",
                "BGSAVE",
                "SAVE",
                "BGREWRITEAOF",
                "CONFIG SET slowlog-log-slower-than 0",
                "WAITAOF 1 0 1000",
                "FLUSHALL ASYNC",
                "CONFIG SET save '3600 1'",
                "FLUSHALL",
                "SET k v",
                "CONFIG REWRITE",
                "ACL SAVE",
                "CONFIG SET appendonly no",
                "CONFIG SET appendonly yes",
                "DEBUG LOG x",
                "INFO",
                "PUBLISH a b",
                "REPLICAOF NO ONE",
                "CONFIG RESETSTAT",
                "LASTSAVE",
                "MEMORY PURGE",
                "SLOWLOG GET",
            ];
            for line in lines {
                let reply = client.run(line);
                assert!(!reply.is_error(), "{line}: {reply}");
                done(&server);
            }
        }
        assert!(server.is_alive(), "{}", server.log());
        assert!(!server.log().contains("has touched"), "{}", server.log());
        drop(client.try_call(&["SHUTDOWN", "SAVE"])); // no reply comes
        wait_until("it ends", || !server.is_alive());
        assert!(!server.log().contains("has touched"), "{}", server.log());
    }
}

/// Syncs and commands of a connection overlap: each reply waits for its own record, not for the last.
#[test]
fn with_always_a_continuous_writer_gets_replies() {
    let faults = Faults::new("thick");
    let server = faults.start(ALWAYS);
    server.connect().run("SET first 1");
    faults.are("slow appendonly.aof");
    let mut stream = TcpStream::connect(server.address()).expect("a connection");
    stream.set_nodelay(true).expect("an option");
    let mut reader = stream.try_clone().expect("another handle");
    reader.set_read_timeout(Some(Duration::from_secs(30))).expect("an option");
    let sent = 2_000;
    let answered_by_then = std::thread::scope(|scope| {
        let arrivals = scope.spawn(move || {
            let (mut got, mut buffer, mut arrivals) = (0, [0; 4096], Vec::new());
            while got < sent * "+OK\r\n".len() {
                got += reader.read(&mut buffer).expect("replies");
                arrivals.push((Instant::now(), got / "+OK\r\n".len()));
            }
            arrivals
        });
        // The client does not wait for replies, and a sync takes longer than the gap between commands.
        for _ in 0..sent {
            stream.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\n1\r\n").expect("sent");
            std::thread::sleep(Duration::from_micros(500));
        }
        let until = Instant::now();
        let arrivals = arrivals.join().expect("all came");
        arrivals.into_iter().take_while(|(when, _)| *when <= until).last().map_or(0, |(_, count)| count)
    });
    assert!(answered_by_then > sent / 2, "{answered_by_then} of {sent} while it went on");
}

#[test]
fn with_always_the_last_write_of_a_client_gets_its_reply() {
    let faults = Faults::new("last");
    let server = faults.start(ALWAYS);
    server.connect().run("SET first 1");
    faults.are("slow appendonly.aof");
    for _ in 0..10 {
        let mut stream = TcpStream::connect(server.address()).expect("a connection");
        stream.write_all(b"SET k 1\r\nGET k\r\n").expect("sent");
        stream.shutdown(Shutdown::Write).expect("half of it");
        let mut replies = String::new();
        stream.read_to_string(&mut replies).expect("the replies, and the end");
        assert_eq!(replies, "+OK\r\n$1\r\n1\r\n");
    }
}

/// Clients that write during a sync share the next sync.
#[test]
fn with_always_many_writers_share_a_sync() {
    const WRITERS: usize = 50;
    let server = crate::start(&[ALWAYS, &["--enable-debug-command", "yes"]].concat());
    let mut clients: Vec<Client> = (0..=WRITERS).map(|_| server.connect()).collect();
    let mut operator = clients.pop().expect("one more than writers");
    let syncs = || server.info("aof_syncs").parse::<u64>().expect("a number");
    assert_eq!(operator.run("DEBUG AOF-FLUSH-SLEEP 200000").to_string(), "OK");
    let before = syncs();
    for round in 0..3 {
        for (number, client) in clients.iter_mut().enumerate() {
            client.send(&["SET", &format!("key:{number}"), &round.to_string()]).expect("it reads");
        }
        clients.iter_mut().for_each(|client| assert_eq!(client.read().to_string(), "OK"));
    }
    let made = syncs() - before;
    assert!((3..=12).contains(&made), "{made} syncs for {} writes", 3 * WRITERS);
}

#[test]
fn periodic_tasks_continue_when_the_clock_is_set_back() {
    let faults = Faults::new("clock");
    let server = faults.start(&["--threads", "2"]);
    let mut client = server.connect();
    client.run("SET k 1");
    faults.are("clock -7200");
    std::thread::sleep(Duration::from_millis(300));
    // Only the expiry sweep removes it.
    client.run("SET soon 1 PX 20");
    wait_until("a sweep", || client.run("DBSIZE").as_int() == Some(1));
}

/// `appendonly` is turned on during a snapshot, and off again: no base is left for a later start.
#[test]
fn an_aof_turned_off_before_its_first_base_leaves_no_file() {
    let server = crate::start(&["--threads", "2", "--save", "3600 1"]);
    let mut client = server.connect();
    for key in 0..20 {
        client.run(&format!("SET key:{key} 1"));
    }
    client.run("CONFIG SET rdb-key-save-delay 150000");
    client.run("BGSAVE");
    client.run("CONFIG SET appendonly yes");
    assert_eq!(server.info("aof_rewrite_scheduled"), "1");
    client.run("CONFIG SET appendonly no");
    assert_eq!(server.info("aof_rewrite_scheduled"), "0");
    wait_until("the snapshot", || server.info("rdb_bgsave_in_progress") == "0");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(server.info("aof_rewrite_in_progress"), "0");
    assert!(!server.folder().join("appendonlydir/appendonly.aof.manifest").exists());
}
