//! Client requests while the data are being loaded: no command takes the partial data for all data.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_testkit::server::free_port;
use evenkeel_testkit::{Client, Program, Reference, Server};
use rustix::process::{Pid, Signal, kill_process};

use super::files;
use crate::{program, start, wait_until};

const KEYS: i64 = 2_000;

/// A server with keys whose next start takes a second, and its address.
fn with_keys(args: &[&str]) -> Server {
    with_so_many_keys(KEYS, args)
}

fn with_so_many_keys(keys: i64, args: &[&str]) -> Server {
    let port = free_port().to_string();
    let common =
        ["--port", &port, "--threads", "2", "--enable-debug-command", "yes", "--key-load-delay", "500"];
    let server = start(&[&common, args].concat());
    let sets = (0..keys).map(|n| vec!["SET".to_owned(), format!("key:{n}"), n.to_string()]);
    server.connect().pipeline(&sets.collect::<Vec<_>>());
    server
}

/// Restarts the server, waits for its loading error, and sends these commands meanwhile; returns the replies.
fn ask_meanwhile(server: &mut Server, lines: &[&str]) -> Vec<String> {
    let replies = ask_at_once(server, &[&["PING"], lines].concat());
    assert!(replies[0].starts_with("-LOADING"), "{replies:?}");
    replies[1..].to_vec()
}

/// The same, from the first successful connection on.
fn ask_at_once(server: &mut Server, lines: &[&str]) -> Vec<String> {
    let address = server.address();
    std::thread::scope(|scope| {
        let asked = scope.spawn(move || {
            let mut client = None;
            wait_until("it is there", || {
                client = Client::connect(address).ok();
                client.is_some()
            });
            let mut client = client.expect("it is there");
            lines.iter().map(|line| client.run(line).to_string()).collect()
        });
        server.start_again();
        asked.join().expect("no failure")
    })
}

/// The append-only files without the tail, which the start has removed.
fn log_of(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = files(&folder.join("appendonlydir"));
    files.retain(|(name, _)| !name.ends_with(".tail"));
    files
}

/// However long it takes: the machine may be busy, or its disk slow.
#[test]
fn a_client_waits_for_a_load_of_few_bytes() {
    let mut server = start(&["--appendonly", "yes", "--appendfsync", "always"]);
    server.connect().run("SET k v");
    server.kill();
    let log = server.folder().join("appendonlydir/appendonly.aof.1.incr.aof");
    let mut log = File::options().append(true).open(log).expect("the log is there");
    let script = "local n = 0; for i = 1, 100000000 do n = n + i end";
    write!(log, "*3\r\n$4\r\nEVAL\r\n${}\r\n{script}\r\n$1\r\n0\r\n", script.len()).expect("written");
    let began = Instant::now();
    assert_eq!(ask_at_once(&mut server, &["PING", "GET k"]), ["PONG", "\"v\""]);
    assert!(
        began.elapsed() > Duration::from_millis(400),
        "the load took no longer than any: {:?}",
        began.elapsed()
    );
}

#[test]
fn an_aof_is_unchanged_by_its_load() {
    let mut server = with_keys(&["--appendonly", "yes", "--appendfsync", "always"]);
    // A slow snapshot, then commands.
    assert!(!server.connect().run("BGREWRITEAOF").is_error());
    wait_until("it is written", || server.info("aof_rewrite_in_progress") == "0");
    server.connect().run("SET last 1");
    server.kill();
    let before = log_of(server.folder());
    let replies = ask_meanwhile(&mut server, &["CONFIG SET maxmemory 1gb", "CONFIG SET slowlog-max-len 7"]);
    assert_eq!(replies, ["OK", "OK"]);
    assert_eq!(server.connect().run("DBSIZE").as_int(), Some(KEYS + 1));
    assert_eq!(log_of(server.folder()), before);
    server.kill();
    server.start_again();
    assert_eq!(server.connect().run("DBSIZE").as_int(), Some(KEYS + 1));
}

#[test]
fn an_aof_does_not_start_with_half_of_a_snapshot() {
    let mut server = with_keys(&["--save", "3600 1"]);
    assert_eq!(server.connect().run("SAVE").to_string(), "OK");
    server.kill();
    let asked = ["CONFIG SET appendonly yes", "CONFIG SET maxmemory 1gb APPENDONLY yes", "CONFIG SET dir /"];
    let replies = ask_meanwhile(&mut server, &asked);
    assert!(replies.iter().all(|reply| reply.starts_with("-LOADING ")), "{replies:?}");
    let mut client = server.connect();
    assert_eq!(client.run("DBSIZE").as_int(), Some(KEYS));
    assert_eq!(client.run("CONFIG GET appendonly").to_string(), "[\"appendonly\", \"no\"]");
    assert_eq!(client.run("CONFIG GET maxmemory").to_string(), "[\"maxmemory\", \"0\"]");
}

#[test]
fn a_snapshot_is_not_loaded_twice_at_a_time() {
    let mut server = with_keys(&["--save", "3600 1"]);
    assert_eq!(server.connect().run("SAVE").to_string(), "OK");
    server.kill();
    let before = files(server.folder());
    let replies =
        ask_meanwhile(&mut server, &["DEBUG RELOAD", "DEBUG RELOAD NOSAVE NOFLUSH", "DEBUG LOADAOF"]);
    assert!(replies.iter().all(|reply| reply.starts_with("-ERR Error trying to load")), "{replies:?}");
    assert_eq!(server.connect().run("DBSIZE").as_int(), Some(KEYS));
    let snapshot = |files: Vec<(String, Vec<u8>)>| files.into_iter().find(|(name, _)| name == "dump.rdb");
    assert_eq!(snapshot(files(server.folder())), snapshot(before));
}

/// A waiting client gets the file and the progress.
#[test]
fn info_reports_the_progress_of_a_load() {
    let mut server = with_keys(&["--save", "3600 1"]);
    assert_eq!(server.connect().run("SAVE").to_string(), "OK");
    let len = std::fs::metadata(server.folder().join("dump.rdb")).expect("it is there").len();
    server.kill();
    let replies = ask_meanwhile(&mut server, &["INFO persistence", "INFO persistence"]);
    let field = |info: &str, name: &str| {
        let line = info.split("\\r\\n").find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.unwrap_or_else(|| panic!("no {name}: {info}")).to_owned()
    };
    let number = |info: &str, name: &str| field(info, name).parse::<f64>().expect("a number");
    for info in &replies {
        assert_eq!(field(info, "loading"), "1");
        assert_eq!(number(info, "loading_total_bytes"), len as f64);
        assert!(number(info, "loading_loaded_bytes") <= len as f64);
        let percent = number(info, "loading_loaded_bytes") * 100.0 / len as f64;
        assert!((number(info, "loading_loaded_perc") - percent).abs() < 0.01);
        assert!(number(info, "loading_rdb_used_mem") > 100_000.0, "what the writer had in memory");
        assert!(number(info, "loading_start_time") > 1.7e9);
        assert!(number(info, "loading_eta_seconds") >= 0.0);
    }
    let after = server.connect().run("INFO persistence").to_string();
    assert_eq!(field(&after, "loading"), "0");
    assert!(!after.contains("loading_total_bytes"));
}

/// A short load is over before any client is served, as in Redis, which serves no client during it.
#[test]
fn a_short_load_reports_no_progress() {
    let mut server = with_so_many_keys(60, &["--appendonly", "yes"]);
    assert!(!server.connect().run("BGREWRITEAOF").is_error());
    wait_until("it is written", || server.info("aof_rewrite_in_progress") == "0");
    server.kill();
    assert_eq!(ask_at_once(&mut server, &["DBSIZE", "SET k 1"]), [":60", "OK"]);
}

/// As from a primary older than Redis 7, or from its append-only file.
#[test]
fn relative_times_count_from_the_load() {
    let mut server = start(&["--threads", "1", "--appendonly", "yes"]);
    let mut client = server.connect();
    client.run("SET plain v");
    let dumped = client.call(&["DUMP", "plain"]);
    let payload = dumped.as_bytes().expect("a payload");
    assert!(server.stop().success());
    let mut more = Vec::new();
    let lines: [&[&[u8]]; 5] = [
        &[b"RESTORE", b"restored", b"1000000", payload],
        &[b"SET", b"read", b"v"],
        &[b"GETEX", b"read", b"EX", b"1000"],
        &[b"HSETEX", b"hash", b"EX", b"1000", b"FIELDS", b"1", b"f", b"v"],
        &[b"HGETEX", b"hash", b"PX", b"900000", b"FIELDS", b"1", b"f"],
    ];
    lines.iter().for_each(|words| evenkeel_rdb::aof::push_command(&mut more, words));
    append(&server, &more);
    server.start_again();
    let mut client = server.connect();
    for (line, seconds) in [("TTL restored", 1000), ("TTL read", 1000)] {
        let left = client.run(line).as_int().expect("a number");
        assert!((seconds - 60..=seconds).contains(&left), "{line}: {left}");
    }
    let left = client.run("HTTL hash FIELDS 1 f").to_string();
    assert!(left.starts_with("[:8") || left == "[:900]", "{left}");
}

fn append(server: &Server, bytes: &[u8]) {
    let path = server.folder().join("appendonlydir/appendonly.aof.1.incr.aof");
    let file = std::fs::OpenOptions::new().append(true).open(path);
    std::io::Write::write_all(&mut file.expect("the log"), bytes).expect("there is room");
}

/// Servers before Redis 7 log scripts as received; the effects of a failed script stay, there and here.
#[test]
fn a_script_in_the_log_may_fail() {
    let mut server = start(&["--threads", "1", "--appendonly", "yes"]);
    server.connect().run("SET k text");
    assert!(server.stop().success());
    let script: &[u8] =
        b"redis.call('SET', KEYS[2], 1) redis.call('INCR', KEYS[1]) redis.call('SET', KEYS[2], 2)";
    let mut more = Vec::new();
    evenkeel_rdb::aof::push_command(&mut more, &[b"EVAL".as_slice(), script, b"2", b"k", b"done"]);
    evenkeel_rdb::aof::push_command(&mut more, &[b"SET".as_slice(), b"last", b"1"]);
    append(&server, &more);
    server.start_again();
    assert_eq!(server.connect().run("MGET k done last").to_string(), "[\"text\", \"1\", \"1\"]");
    wait_until("it is said", || server.log().contains("of the append only file failed"));
}

/// INFO and MEMORY STATS separate the data from the server's overhead, also for loaded data.
#[test]
fn loaded_data_count_as_data() {
    for args in [["--appendonly", "no"], ["--appendonly", "yes"]] {
        let mut server = start(&args);
        let mut client = server.connect();
        let value = "v".repeat(100_000);
        let set = |n| vec!["SET".to_owned(), format!("key:{n}"), value.clone()];
        let sets: Vec<_> = (0..200).map(set).collect();
        client.pipeline(&sets);
        client.run("SAVE");
        assert!(server.stop().success());
        server.start_again();
        let field = |name: &str| server.info(name).parse::<u64>().expect("a number");
        let (used, startup, data) =
            (field("used_memory"), field("used_memory_startup"), field("used_memory_dataset"));
        assert!(startup > 0 && startup < used - 20_000_000, "{args:?}: {startup} of {used}");
        assert!(data > 20_000_000 && data < used, "{args:?}: {data} of {used}");
    }
}

/// A shutdown need not wait for the end of the load, and the files stay as they are.
#[test]
fn a_load_can_be_interrupted() {
    for log in ["no", "yes"] {
        for way in ["a signal", "SHUTDOWN NOSAVE", "SHUTDOWN"] {
            let mut server = with_so_many_keys(100_000, &["--appendonly", log, "--save", "3600 1"]);
            if log == "yes" {
                super::exchange::rewrite(&server); // reading a base can be slowed down
            }
            assert!(server.stop().success());
            let kept = |server: &Server| match log {
                "yes" => log_of(server.folder()),
                _ => vec![(
                    "dump.rdb".into(),
                    std::fs::read(server.folder().join("dump.rdb")).expect("a file"),
                )],
            };
            let before = kept(&server);
            let began = Instant::now();
            let address = server.address();
            let started = std::thread::scope(|scope| {
                scope.spawn(move || {
                    let mut client = None;
                    wait_until("it is there", || {
                        client = Client::connect(address).ok();
                        client.is_some()
                    });
                    let mut client = client.expect("it is there");
                    let reply = client.run("PING").to_string();
                    assert!(reply.starts_with("-LOADING"), "{reply}: {way}, {log}");
                    if way != "a signal" {
                        return drop(client.try_call(&way.split(' ').collect::<Vec<_>>()));
                    }
                    let info = client.run("INFO server").to_string();
                    let reply = info.split("process_id:").nth(1).expect("it says so");
                    let pid = reply.chars().take_while(char::is_ascii_digit).collect::<String>();
                    // The process was started by this test, and is not reaped yet.
                    let pid = Pid::from_raw(pid.parse().expect("a number")).expect("not zero");
                    let _ = kill_process(pid, Signal::TERM);
                });
                server.try_start_again()
            });
            assert_eq!(started, Err("it ended with exit status: 0".into()), "{way}, {log}");
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
            let after = kept(&server);
            assert!(before == after, "{way}, {log}");
        }
    }
}

/// A terminal shows the progress of the load, and nothing of it at the end.
#[test]
fn a_terminal_shows_the_progress_of_a_load() {
    let mut server = with_keys(&["--save", "3600 1"]);
    assert!(server.stop().success());
    let (mut terminal, other_end) = terminal();
    let dir = server.folder().display().to_string();
    let mut process = Command::new(program().path())
        .args([
            "--port",
            &free_port().to_string(),
            "--dir",
            &dir,
            "--threads",
            "2",
            "--key-load-delay",
            "500",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(other_end))
        .spawn()
        .expect("the program starts");
    let (mut shown, mut piece) = (String::new(), [0; 4096]);
    // The bar is erased after the last drawing.
    while !(shown.contains('%') && shown.ends_with("\r\u{1b}[K")) {
        let len = terminal.read(&mut piece).expect("it draws");
        shown.push_str(&String::from_utf8_lossy(&piece[..len]));
    }
    let percents = shown.split('%').filter_map(|part| part.rsplit(' ').next()?.parse::<u32>().ok());
    let percents: Vec<u32> = percents.collect();
    assert!(
        percents.len() > 1 && percents.is_sorted() && percents.iter().all(|part| *part <= 100),
        "{shown:?}"
    );
    process.kill().expect("it is ours");
    process.wait().expect("it is ours");
}

/// A terminal: the test's end, and the end of the program that runs in it.
fn terminal() -> (File, OwnedFd) {
    let (mut ours, mut theirs) = (-1, -1);
    // SAFETY: the kernel writes two descriptors that nothing else owns; the other arguments may be null.
    unsafe {
        let null = std::ptr::null_mut();
        assert_eq!(libc::openpty(&raw mut ours, &raw mut theirs, null, null.cast(), null.cast()), 0);
        (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs))
    }
}

/// A key's last use and frequency survive a restart, and Redis reads them.
#[test]
fn a_snapshot_has_last_uses_and_frequencies_of_keys() {
    for (policy, uses) in [("allkeys-lfu", true), ("allkeys-lru", false)] {
        let options = ["--save", "3600 1", "--maxmemory-policy", policy];
        let mut server = start(&options);
        let mut client = server.connect();
        client.run("SET key v");
        let ask = if uses { "OBJECT FREQ key" } else { "OBJECT IDLETIME key" };
        if uses {
            client.pipeline(&vec![vec!["GET".to_owned(), "key".into()]; 10_000]);
        } else {
            std::thread::sleep(Duration::from_millis(2_100));
        }
        let before = client.run(ask).as_int().expect("a number");
        assert!(before >= 2, "{before}");
        assert!(server.stop().success());
        let dump = std::fs::read(server.folder().join("dump.rdb")).expect("a snapshot");
        server.start_again();
        let readers =
            [Program::oracle(Reference::Redis), Program::oracle(Reference::Valkey)].into_iter().flatten();
        let others = readers.map(|program| {
            let mut other = Server::start(&program, &options);
            other.kill();
            std::fs::write(other.folder().join("dump.rdb"), &dump).expect("the folder is ours");
            other.start_again();
            other
        });
        for other in others.chain([server]) {
            let after = other.connect().run(ask).as_int().expect("a number");
            assert!(
                (before..before + 10).contains(&after) || uses && after + 1 == before,
                "{policy}: {before}, {after}"
            );
        }
    }
}
