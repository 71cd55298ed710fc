//! An operator's work on a server in use: changed settings, closed clients, a rewritten configuration.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_testkit::{Client, Program, Reference, Server};

use crate::{program, start, wait_until};

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("bound").port()
}

fn at(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

#[test]
fn the_port_moves_and_connections_stay() {
    let server = start(&[]);
    let mut old = server.connect();
    let port = free_port();
    assert_eq!(old.run(&format!("CONFIG SET port {port}")).to_string(), "OK");
    assert_eq!(Client::connect(at(port)).expect("listens there").run("PING").to_string(), "PONG");
    assert!(TcpStream::connect(server.address()).is_err(), "nobody listens here any more");
    assert_eq!(old.run("PING").to_string(), "PONG");
    let (shown, wanted) = (old.run("CONFIG GET port").to_string(), format!("[\"port\", \"{port}\"]"));
    assert_eq!(shown, wanted);
}

#[test]
fn a_port_that_is_taken_changes_nothing() {
    let (server, other) = (start(&[]), start(&[]));
    let mut client = server.connect();
    let reply = client.run(&format!("CONFIG SET maxmemory 100mb port {}", other.port())).to_string();
    let reason = "argument 'port') - Unable to listen on this port. Check server logs.";
    assert!(reply.ends_with(reason), "{reply}");
    assert_eq!(client.run("CONFIG GET maxmemory").to_string(), "[\"maxmemory\", \"0\"]");
    assert_eq!(server.connect().run("PING").to_string(), "PONG");
    let reply = client.run("CONFIG SET bind 999.999.999.999").to_string();
    assert!(reply.ends_with("argument 'bind') - Failed to bind to specified addresses."), "{reply}");
    assert_eq!(server.connect().run("PING").to_string(), "PONG");
}

/// Such a file would not start a server.
#[test]
fn an_address_is_named_once() {
    let server = start(&[]);
    let mut client = server.connect();
    for bind in
        ["127.0.0.1 127.0.0.1", "127.0.0.1 -127.0.0.1", "* *", "127.0.0.4 127.0.0.4", "127.0.0.1 localhost"]
    {
        let reply = client.run(&format!("CONFIG SET bind \"{bind}\"")).to_string();
        assert!(
            reply.ends_with("argument 'bind') - Failed to bind to specified addresses."),
            "{bind}: {reply}"
        );
        assert_eq!(client.run("CONFIG GET bind").to_string(), "[\"bind\", \"127.0.0.1\"]");
        assert_eq!(server.connect().run("PING").to_string(), "PONG");
    }
}

/// `*` and an address conflict on the same port, so the old listener must close before the new listener
/// opens.
#[test]
fn addresses_are_exchanged_on_the_same_port() {
    let server = start(&["--bind", "127.0.0.1", "--protected-mode", "no"]);
    let mut client = server.connect();
    let other_address: SocketAddr = ([127, 0, 0, 4], server.port()).into();
    for (bind, there) in
        [("*", true), ("127.0.0.1", false), ("\"127.0.0.1 127.0.0.4\"", true), ("127.0.0.1", false)]
    {
        assert_eq!(client.run(&format!("CONFIG SET bind {bind}")).to_string(), "OK");
        assert_eq!(TcpStream::connect(other_address).is_ok(), there, "{bind}");
        assert_eq!(server.connect().run("PING").to_string(), "PONG", "{bind}");
    }
}

#[test]
fn a_setting_takes_effect_within_a_pipeline() {
    let server = start(&[]);
    let mut client = server.connect();
    let pipeline = b"SET k v\r\nCONFIG SET maxmemory 1\r\nSET k w\r\nCONFIG SET maxmemory 0\r\nSET k x\r\n";
    client.send_raw(pipeline).expect("connected");
    let replies: Vec<String> = (0..5).map(|_| client.read().to_string()).collect();
    assert_eq!(replies[..2], ["OK", "OK"]);
    assert!(replies[2].starts_with("-OOM"), "{}", replies[2]);
    assert_eq!(replies[3..], ["OK", "OK"]);
}

/// The number of clients is exact for the client that has closed them, on any thread.
#[test]
fn killed_clients_are_gone_at_once() {
    let server = start(&["--threads", "3"]);
    let mut operator = server.connect();
    for _ in 0..10 {
        let mut others: Vec<Client> = (0..12).map(|_| server.connect()).collect();
        others.iter_mut().for_each(|client| assert_eq!(client.run("PING").to_string(), "PONG"));
        assert_eq!(operator.run("CLIENT KILL SKIPME yes").to_string(), ":12");
        let info = operator.run("INFO clients").to_string();
        assert!(info.contains("connected_clients:1\\r"), "{info}");
        for mut client in others {
            assert_eq!(client.read_to_end().expect("hung up on"), b"");
        }
    }
    assert_eq!(operator.run("CLIENT KILL SKIPME no").to_string(), ":1");
    assert_eq!(operator.read_to_end().expect("hung up on"), b"");
}

#[test]
fn a_client_is_killed_by_its_address() {
    let server = start(&[]);
    let (mut operator, mut victim) = (server.connect(), server.connect());
    victim.run("CLIENT SETNAME victim");
    let list = operator.run("CLIENT LIST").to_string();
    let line = list.split("\\n").find(|line| line.contains("name=victim")).expect("it is listed");
    let address = line.split(' ').find_map(|field| field.strip_prefix("addr=")).expect("an address");
    assert_eq!(operator.run(&format!("CLIENT KILL {address}")).to_string(), "OK");
    assert_eq!(operator.run(&format!("CLIENT KILL {address}")).to_string(), "-ERR No such client");
    assert_eq!(victim.read_to_end().expect("hung up on"), b"");
}

#[test]
fn the_largest_clients_are_evicted_over_the_limit() {
    let server = start(&["--maxmemory-clients", "3mb"]);
    let mut operator = server.connect();
    assert_eq!(operator.run("CLIENT NO-EVICT on").to_string(), "OK");
    let mut small = server.connect();
    assert_eq!(small.run("PING").to_string(), "PONG");
    // Requests without an end.
    let mut large: Vec<Client> = (0..8).map(|_| server.connect()).collect();
    for client in &mut large {
        let _ = client.send_raw(b"*2\r\n$4\r\nECHO\r\n$10000000\r\n");
        let _ = client.send_raw(&vec![b'x'; 1 << 20]);
    }
    wait_until("some of the large ones are gone", || server.info("evicted_clients") != "0");
    wait_until("the others fit", || {
        let bytes: usize = server.info("mem_clients_normal").parse().expect("a number");
        bytes <= 3 << 20
    });
    assert_eq!(small.run("PING").to_string(), "PONG");
    assert_eq!(operator.run("PING").to_string(), "PONG");
}

#[test]
fn a_reply_over_the_hard_limit_is_not_started() {
    let server = start(&["--client-output-buffer-limit", "normal", "100000", "0", "0"]);
    let mut client = server.connect();
    assert_eq!(client.run("SETRANGE k 99999 x").to_string(), ":100000");
    client.send(&["GET", "k"]).expect("connected");
    assert_eq!(client.read_to_end().expect("hung up on"), b"");
    assert_eq!(server.info("client_output_buffer_limit_disconnections"), "1");
}

#[test]
fn commands_are_renamed_as_configured() {
    let server = start(&["--rename-command", "FLUSHALL", "wipe", "--rename-command", "debug", ""]);
    let mut client = server.connect();
    assert_eq!(client.run("WIPE").to_string(), "OK");
    for gone in ["FLUSHALL", "DEBUG SLEEP 0"] {
        assert!(client.run(gone).to_string().starts_with("-ERR unknown command"), "{gone}");
    }
}

/// A server with a configuration file; stopped at the end of the test.
struct WithFile {
    process: std::process::Child,
    port: u16,
}

impl WithFile {
    fn start(file: &Path) -> WithFile {
        WithFile::start_in(Path::new("."), file)
    }

    fn start_in(folder: &Path, file: &Path) -> WithFile {
        let port = free_port();
        let program = program().path().canonicalize().expect("it is there");
        let mut command = std::process::Command::new(program);
        command.current_dir(folder).arg(file).args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
        ]);
        let process = command.stdout(std::process::Stdio::null()).spawn().expect("it starts");
        let server = WithFile { process, port };
        wait_until("it listens", || TcpStream::connect(at(port)).is_ok());
        server
    }

    fn connect(&self) -> Client {
        Client::connect(at(self.port)).expect("it listens")
    }
}

impl Drop for WithFile {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have ended already
        let _ = self.process.wait();
    }
}

#[test]
fn settings_are_written_into_the_file_and_read_again() {
    let holder = start(&[]); // its folder is used, and removed with it
    let file = holder.folder().join("own.conf");
    std::fs::write(&file, "# mine\ntimeout 5\n").expect("written");
    let server = WithFile::start(&file);
    let mut client = server.connect();
    assert_eq!(client.run("CONFIG SET timeout 7 maxmemory 100mb").to_string(), "OK");
    assert_eq!(client.run("CONFIG REWRITE").to_string(), "OK");
    drop(server);
    let text = std::fs::read_to_string(&file).expect("it is there");
    assert!(text.starts_with("# mine\ntimeout 7\n") && text.contains("maxmemory 100mb\n"), "{text}");
    let again = WithFile::start(&file);
    assert_eq!(again.connect().run("CONFIG GET timeout").to_string(), "[\"timeout\", \"7\"]");
}

/// Each rewrite reads a whole file, and leaves a whole file.
#[test]
fn concurrent_rewrites_of_the_files_succeed() {
    let holder = start(&[]); // its folder is used, and removed with it
    let (file, users) = (holder.folder().join("own.conf"), holder.folder().join("users.acl"));
    let filling = "# a line that stays\n".repeat(2_000);
    std::fs::write(&file, format!("aclfile {}\n{filling}", users.display())).expect("written");
    std::fs::write(&users, "").expect("written");
    let server = WithFile::start(&file);
    for number in 0..200 {
        let rules = "~some:key:* ".repeat(20);
        assert_eq!(server.connect().run(&format!("ACL SETUSER user:{number} on {rules}")).to_string(), "OK");
    }
    std::thread::scope(|scope| {
        for number in 0..8 {
            let mut client = server.connect();
            scope.spawn(move || {
                for round in 0..20 {
                    let timeout = 10_000 + 100 * number + round;
                    for line in [&format!("CONFIG SET timeout {timeout}"), "CONFIG REWRITE", "ACL SAVE"] {
                        assert_eq!(client.run(line).to_string(), "OK", "{line}");
                    }
                }
            });
        }
    });
    let timeout = server.connect().run("CONFIG GET timeout").to_string();
    let list = server.connect().run("ACL LIST").to_string();
    drop(server);
    let text = std::fs::read_to_string(&file).expect("it is there");
    assert!(
        text.contains(&filling) && text.matches("\ntimeout ").count() == 1,
        "{}",
        text.replace(&filling, "")
    );
    let again = WithFile::start(&file);
    assert_eq!(again.connect().run("CONFIG GET timeout").to_string(), timeout);
    assert_eq!(again.connect().run("ACL LIST").to_string(), list);
    let names = std::fs::read_dir(holder.folder()).expect("it is there").flatten();
    let left: Vec<_> = names
        .map(|entry| entry.file_name())
        .filter(|name| name.display().to_string().contains("tmp"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A disk that hangs under either file delays only the client that asked for the write.
#[test]
fn a_hung_disk_delays_only_the_client_that_writes_the_files() {
    let holder = start(&[]); // its folder is used, and removed with it
    let (file, users) = (holder.folder().join("own.conf"), holder.folder().join("users.acl"));
    std::fs::write(&file, format!("threads 1\naclfile {}\n", users.display())).expect("written");
    std::fs::write(&users, "").expect("written");
    let server = WithFile::start(&file);
    let mut other = server.connect();
    // Temporary files are numbered; each line creates two.
    for (number, name, line) in [(0, "own.conf", "CONFIG REWRITE"), (2, "users.acl", "ACL SAVE")] {
        // Opening the file waits for a reader.
        let draft = holder.folder().join(format!(".{name}-{}-{number}.tmp", server.process.id()));
        let made = std::process::Command::new("mkfifo").arg(&draft).status().expect("mkfifo runs");
        assert!(made.success());
        let mut writing = server.connect();
        writing.send(&line.split(' ').collect::<Vec<_>>()).expect("it reads");
        for _ in 0..20 {
            assert_eq!(other.run("PING").to_string(), "PONG", "{line}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let reader = std::thread::spawn(move || std::fs::read(&draft).expect("it is written"));
        // A pipe cannot be synced.
        assert!(writing.read().is_error(), "{line}");
        assert!(!reader.join().expect("it reads to the end").is_empty(), "{line}");
        assert_eq!(other.run(line).to_string(), "OK", "{line}");
    }
}

/// The server has changed to `dir` since; it rewrites the file in the directory of its start.
#[test]
fn a_file_with_relative_paths_is_rewritten_in_place() {
    let holder = start(&[]); // its folder is used, and removed with it
    let folder = holder.folder();
    std::fs::create_dir(folder.join("data")).expect("the folder is ours");
    let text = "include outer.part\ndir data\ninclude inner.part\n";
    for (name, text) in
        [("own.conf", text), ("outer.part", "requirepass old\n"), ("data/inner.part", "timeout 7\n")]
    {
        std::fs::write(folder.join(name), text).expect("written");
    }
    let start = || WithFile::start_in(folder, Path::new("own.conf"));
    let mut password = "old";
    for (set, timeout) in [("requirepass new", 7), ("timeout 0", 0), ("hz 11", 0)] {
        let server = start();
        let mut client = server.connect();
        assert_eq!(client.run(&format!("AUTH {password}")).to_string(), "OK");
        assert_eq!(client.run(&format!("CONFIG SET {set}")).to_string(), "OK");
        assert_eq!(client.run("CONFIG REWRITE").to_string(), "OK");
        drop(server);
        let found = std::fs::read_to_string(folder.join("own.conf")).expect("it is there");
        assert!(found.starts_with(text) && !found.contains("???"), "{found}");
        password = "new";
        let (again, wanted) = (start(), format!("[\"timeout\", \"{timeout}\"]"));
        let mut client = again.connect();
        assert_eq!(client.run(&format!("AUTH {password}")).to_string(), "OK");
        assert_eq!(client.run("CONFIG GET timeout").to_string(), wanted);
        let dir = folder.join("data").canonicalize().expect("it is there");
        assert!(client.run("CONFIG GET dir").to_string().contains(&dir.display().to_string()));
    }
}

#[test]
fn users_are_written_into_the_file_and_read_again() {
    let holder = start(&[]); // its folder is used, and removed with it
    let file = holder.folder().join("own.conf");
    std::fs::write(&file, "# mine\nuser ann on >pw +get\ntimeout 5\nrequirepass x\n").expect("written");
    let server = WithFile::start(&file);
    let mut client = server.connect();
    assert_eq!(client.run("AUTH x").to_string(), "OK");
    assert_eq!(client.run("CONFIG REWRITE").to_string(), "OK");
    let text = std::fs::read_to_string(&file).expect("it is there");
    assert!(text.contains("\nuser ann on >pw +get\n"), "left as it was: {text}");
    assert_eq!(client.run("ACL SETUSER ann +set").to_string(), "OK");
    assert_eq!(client.run("ACL SETUSER bob off (+get ~x)").to_string(), "OK");
    assert_eq!(client.run("CONFIG REWRITE").to_string(), "OK");
    let users = client.run("ACL LIST").to_string();
    drop(server);
    let text = std::fs::read_to_string(&file).expect("it is there");
    assert!(text.starts_with("# mine\nuser ann on #") && !text.contains("user default"), "{text}");
    let again = WithFile::start(&file);
    let mut client = again.connect();
    assert_eq!(client.run("AUTH x").to_string(), "OK");
    assert_eq!(client.run("ACL LIST").to_string(), users);
}

#[test]
fn a_sleeping_server_does_not_answer_and_stops_on_a_signal() {
    let mut server = start(&["--enable-debug-command", "local"]);
    let (mut sleeper, mut other) = (server.connect(), server.connect());
    assert_eq!(other.run("PING").to_string(), "PONG");
    sleeper.send(&["DEBUG", "SLEEP", "0.5"]).expect("connected");
    let (sent, mut longest) = (Instant::now(), Duration::ZERO);
    while sent.elapsed() < Duration::from_secs(1) {
        let asked = Instant::now();
        assert_eq!(other.run("GET k").to_string(), "(nil)");
        longest = longest.max(asked.elapsed());
    }
    assert!(longest > Duration::from_millis(200), "it was asleep: {longest:?}");
    assert_eq!(sleeper.read().to_string(), "OK");
    sleeper.send(&["DEBUG", "SLEEP", "1000"]).expect("connected");
    std::thread::sleep(Duration::from_millis(100));
    assert!(server.stop().success());
}

/// Names that the server keeps for a client count as the client's memory.
#[test]
fn clients_with_too_many_watches_subscriptions_or_prefixes_are_evicted() {
    let server = start(&["--maxmemory-clients", "200000"]);
    let asks: [fn(usize) -> String; 5] = [
        |at| format!("WATCH key:{at}"),
        |at| format!("SUBSCRIBE channel:{at}"),
        |at| format!("PSUBSCRIBE pattern:{at}"),
        |at| format!("SSUBSCRIBE shard:{at}"),
        |at| format!("CLIENT TRACKING ON BCAST PREFIX {at:08}"),
    ];
    for ask in asks {
        let mut client = server.connect3();
        let evicted = server.info("evicted_clients");
        let mut names = 0;
        wait_until("who takes too much is gone", || {
            let lines: String = (names..names + 200).map(|at| ask(at) + "\r\n").collect();
            names += 200;
            client.send_raw(lines.as_bytes()).is_err() || server.info("evicted_clients") != evicted
        });
    }
    // Names that the client has given up no longer count.
    let mut client = server.connect3();
    for _ in 0..20 {
        for at in 0..100 {
            client.run(&format!("WATCH key:{at}"));
            client.run(&format!("SUBSCRIBE channel:{at}"));
            client.run(&format!("CLIENT TRACKING ON BCAST PREFIX {at:08}"));
        }
        assert_eq!(client.run("UNWATCH").to_string(), "OK");
        client.run("UNSUBSCRIBE");
        (1..100).for_each(|_| _ = client.read());
        assert_eq!(client.run("CLIENT TRACKING OFF").to_string(), "OK");
        assert_eq!(client.run("WATCH k").to_string(), "OK");
    }
    assert_eq!(client.run("UNWATCH").to_string(), "OK");
}

#[test]
fn a_lower_client_memory_limit_takes_effect_at_once() {
    let server = start(&[]);
    let mut operator = server.connect();
    assert_eq!(operator.run("CLIENT NO-EVICT on").to_string(), "OK");
    let mut large = server.connect();
    assert_eq!(large.run("CLIENT SETNAME large").to_string(), "OK");
    large.send_raw(b"*2\r\n$4\r\nECHO\r\n$10000000\r\n").expect("connected");
    large.send_raw(&vec![b'x'; 1 << 20]).expect("connected");
    wait_until("it takes memory", || {
        let bytes: usize = server.info("mem_clients_normal").parse().expect("a number");
        bytes > 1 << 20
    });
    let is_there = |operator: &mut Client| operator.run("CLIENT LIST").to_string().contains("name=large");
    assert_eq!(operator.run("CONFIG SET maxmemory-clients 0").to_string(), "OK");
    assert!(is_there(&mut operator));
    assert_eq!(operator.run("CONFIG SET maxmemory-clients 1mb").to_string(), "OK");
    assert!(!is_there(&mut operator));
}

#[test]
fn the_oom_score_follows_the_settings() {
    let server = start(&[]);
    let mut client = server.connect();
    let file = format!("/proc/{}/oom_score_adj", server.pid());
    let score = || std::fs::read_to_string(&file).expect("it runs").trim().parse::<i64>().expect("a number");
    let mut set = |line: &str, wanted: i64| {
        assert_eq!(client.run(line).to_string(), "OK", "{line}");
        assert_eq!(score(), wanted, "{line}");
    };
    let base = score();
    set("CONFIG SET oom-score-adj-values \"10 20 30\"", base);
    set("CONFIG SET oom-score-adj yes", base + 10);
    set("REPLICAOF 127.0.0.1 1", base + 20);
    set("REPLICAOF NO ONE", base + 10);
    set("CONFIG SET oom-score-adj relative oom-score-adj-values \"11 20 30\"", base + 11);
    set("CONFIG SET oom-score-adj absolute oom-score-adj-values \"900 20 30\"", 900);
    // Without privileges, a process cannot lower its score below the score at its start.
    set("CONFIG SET oom-score-adj no", base);
}

/// Neither the sockets nor the score change if the other cannot.
#[test]
fn the_oom_score_and_the_port_change_atomically() {
    let is_root = rustix::process::geteuid().is_root();
    // Without this capability, no process lowers a score below its start.
    let prefix: &[&str] = if is_root { &["setpriv", "--bounding-set", "-sys_resource"] } else { &[] };
    let (server, other) = (Server::start(&program().started_by(prefix), &[]), start(&[]));
    let mut client = server.connect();
    let file = format!("/proc/{}/oom_score_adj", server.pid());
    let score = || std::fs::read_to_string(&file).expect("it runs").trim().to_owned();
    let before = score();
    let taken = other.port();
    for scores in ["yes oom-score-adj-values \"10 20 30\"", "absolute oom-score-adj-values \"900 20 30\""] {
        let reply = client.run(&format!("CONFIG SET port {taken} oom-score-adj {scores}")).to_string();
        assert!(reply.ends_with("Unable to listen on this port. Check server logs."), "{reply}");
        assert_eq!(score(), before);
    }
    let free = free_port();
    let values = "absolute oom-score-adj-values \"-1000 -1000 -1000\"";
    let reply = client.run(&format!("CONFIG SET port {free} oom-score-adj {values}")).to_string();
    assert!(reply.ends_with("Failed to set current oom_score_adj. Check server logs."), "{reply}");
    assert_eq!(score(), before);
    assert!(TcpStream::connect(at(free)).is_err(), "nobody listens there");
    assert_eq!(server.connect().run("PING").to_string(), "PONG");
}

/// More than the limit can be, even for a process that may raise the limit.
#[test]
fn the_limit_of_open_files_bounds_the_clients() {
    let limited = |limit: &str| program().started_by(&["prlimit", limit]);
    let args = ["--threads", "1", "--maxclients", "4294967295"];
    let server = Server::start(&limited("--nofile=150:150"), &args);
    let reply = server.connect().run("CONFIG GET maxclients").to_string();
    let most: usize =
        reply.trim_end_matches("\"]").rsplit('"').next().and_then(|n| n.parse().ok()).expect("a number");
    assert!((1..150).contains(&most), "{reply}");
    assert!(server.log().contains("maxclients was reduced"), "{}", server.log());
    let mut clients: Vec<Client> = (0..most).map(|_| server.connect()).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.run("PING").to_string(), "PONG"));
    let refused = server.connect().read_to_end().expect("hung up on");
    assert_eq!(refused, b"-ERR max number of clients reached\r\n");
    for line in ["SET k v", "SAVE", "CONFIG SET appendonly yes"] {
        assert_eq!(clients[0].run(line).to_string(), "OK");
    }
    let log =
        Server::try_start(&limited("--nofile=20:20"), &args).err().expect("there is no room for a client");
    assert!(log.contains("open file"), "{log}");
}

#[test]
fn a_failed_final_snapshot_leaves_the_server_running() {
    let server = start(&["--save", "3600 1"]);
    let mut client = server.connect();
    std::fs::create_dir(server.folder().join("dump.rdb")).expect("a folder in its place");
    assert_eq!(client.run("SET k v").to_string(), "OK");
    assert!(client.run("SHUTDOWN").to_string().starts_with("-ERR Errors trying to SHUTDOWN"));
    assert_eq!(client.run("PING").to_string(), "PONG");
    assert_eq!(client.run("SET k w").to_string(), "OK");
}

/// The operator can know from the start, and a refused client gets the reason and the remedy.
#[test]
fn an_unwritable_dir_is_reported_at_the_start_and_in_every_refusal() {
    let mut server = start(&["--dir", "/proc", "--save", "3600 1"]);
    if server.program().reference().is_some() {
        return; // the messages are Evenkeel's
    }
    let line = "# Cannot write files in /proc: No such file or directory. With this configuration, \
                snapshots fail";
    assert!(server.log().contains(line), "{}", server.log());
    let mut client = server.connect();
    let reason = "Failed saving the DB to /proc/dump.rdb: No such file or directory";
    assert_eq!(client.run("SAVE").to_string(), format!("-ERR {reason}"));
    let way_out = "SHUTDOWN NOSAVE stops the server without a snapshot.";
    let refusal = format!("-ERR Errors trying to SHUTDOWN. Check logs. {reason}. {way_out}");
    assert_eq!(client.run("SHUTDOWN").to_string(), refusal);
    server.signal(15);
    wait_until("the log has the way out", || {
        server.log().matches(&format!("can't exit. {way_out}")).count() == 2
    });
    client.send(&["SHUTDOWN", "NOSAVE"]).expect("it reads");
    wait_until("it ends", || !server.is_alive());
}

/// The protocol of systemd, with a path and with an abstract name.
#[test]
fn the_service_manager_is_notified_of_start_and_shutdown() {
    let name = format!("evenkeel-notify-{}", std::process::id());
    let path = std::env::temp_dir().join(&name);
    let bound = UnixDatagram::bind(&path).expect("the temporary folder is ours");
    let named = UnixAddress::from_abstract_name(&name).expect("a name");
    let named = UnixDatagram::bind_addr(&named).expect("nobody has this name");
    for (socket, address, way) in
        [(bound, path.display().to_string(), "systemd"), (named, format!("@{name}"), "auto")]
    {
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
        let status = || {
            let mut text = [0; 256];
            let len = socket.recv(&mut text).expect("it is told");
            String::from_utf8_lossy(&text[..len]).into_owned()
        };
        let manager = format!("NOTIFY_SOCKET={address}");
        let program = program().started_by(&["env", &manager]);
        let mut server = Server::start(&program, &["--supervised", way, "--daemonize", "no"]);
        assert_eq!(status(), "STATUS=Evenkeel is loading...\n");
        assert_eq!(status(), "STATUS=Ready to accept connections\nREADY=1\n");
        assert_eq!(server.info("process_supervised"), "systemd");
        assert!(server.stop().success());
        assert_eq!(status(), "STOPPING=1\n");

        let server = Server::start(&program, &["--supervised", "no"]);
        assert_eq!(server.info("process_supervised"), "no");
        socket.set_nonblocking(true).expect("a socket");
        assert!(socket.recv(&mut [0; 256]).is_err(), "nobody is to be told");
    }
    let _ = std::fs::remove_file(&path); // a file left behind is no failure of the test
}

#[test]
fn a_missing_service_manager_does_not_stop_the_server() {
    for (address, way, line) in [
        ("NOTIFY_SOCKET=/nonexistent/socket", "systemd", "Cannot notify systemd"),
        ("NOTIFY_SOCKET=nothing", "auto", "NOTIFY_SOCKET is not a valid socket address"),
        ("OTHER=1", "systemd", "systemd supervision requested, but NOTIFY_SOCKET not found!"),
        ("OTHER=1", "upstart", "'supervised upstart' has no effect: upstart is not supported"),
    ] {
        let program = program().started_by(&["env", "-u", "NOTIFY_SOCKET", address]);
        let server = Server::start(&program, &["--supervised", way]);
        wait_until(line, || server.log().contains(line));
        assert_eq!(server.info("process_supervised"), "no");
    }
}

#[test]
fn the_log_reports_settings_without_effect() {
    let server = start(&[]);
    let mut client = server.connect();
    let line = "'active-expire-effort' has no effect: expired keys are found by deadline";
    assert_eq!(client.run("CONFIG SET active-expire-effort 1").to_string(), "OK");
    assert!(!server.log().contains(line));
    assert_eq!(client.run("CONFIG SET active-expire-effort 5").to_string(), "OK");
    wait_until("it is told", || server.log().contains(line));
}

/// A single notice for harmless directives, and a warning for each other directive.
#[test]
fn a_start_reports_settings_without_effect_in_few_lines() {
    let args = ["--io-threads", "4", "--locale-collate", "C", "--active-expire-effort", "5"];
    let server = start(&args);
    if server.program().reference().is_some() {
        return; // there it has an effect
    }
    wait_until("it is ready", || server.log().contains("Ready to accept connections"));
    let log = server.log();
    let harmless = "* These directives have no effect and are not needed: 'active-expire-effort', \
                    'io-threads'. 'evenkeel --check-config' prints the reasons";
    assert!(log.contains(harmless), "{log}");
    assert!(log.contains("# 'locale-collate' has no effect: SORT ALPHA compares bytes"), "{log}");
    assert_eq!(log.matches("no effect").count(), 2, "{log}");
}

/// Pages of one SCAN, asked for in turn from servers with the same keys, visit every key once.
#[test]
fn a_scan_goes_on_at_a_server_with_the_same_hash_seed() {
    let servers = [start(&["--hash-seed", "one secret"]), start(&["--hash-seed", "one secret"])];
    let mut clients = servers.each_ref().map(|server| server.connect());
    for client in &mut clients {
        for number in 0..3000 {
            client.run(&format!("SET k:{number} v"));
            client.run(&format!("SADD s m:{number}"));
        }
    }
    for walk in ["SCAN", "SSCAN s"] {
        let (mut cursor, mut seen, mut pages) = ("0".to_owned(), Vec::new(), 0);
        loop {
            let page = clients[pages % 2].run(&format!("{walk} {cursor}"));
            let [next, names] = page.as_items().expect("a page") else { panic!("{page}") };
            seen.extend(names.as_items().expect("names").iter().map(ToString::to_string));
            cursor = String::from_utf8_lossy(next.as_bytes().expect("a cursor")).into_owned();
            pages += 1;
            if cursor == "0" {
                break;
            }
        }
        seen.sort_unstable();
        seen.dedup();
        assert!(pages > 100, "{pages} pages");
        assert_eq!(seen.len(), if walk == "SCAN" { 3001 } else { 3000 }, "{walk}");
    }
}

/// With Debian's configuration (log in a file, in the background) a terminal would stay empty.
#[test]
fn the_terminal_shows_the_log_file_and_the_cause_of_a_failed_start() {
    let server = start(&["--daemonize", "yes", "--logfile", "{dir}/x.log"]);
    if server.program().reference().is_some() {
        return; // there it runs in the background
    }
    let folder = server.folder().display().to_string();
    let line = format!(
        "Evenkeel runs in the foreground ('daemonize' has no effect). The server log is {folder}/x.log\n"
    );
    assert_eq!(server.log(), line);
    let silent = start(&["--daemonize", "no", "--logfile", "{dir}/x.log"]);
    assert_eq!(silent.log(), "", "it is no terminal");
    for (args, why) in [
        (["--unixsocket", "/none/s"], "Failed listening on port"),
        (
            ["--aclfile", "/none/users"],
            "Startup aborted because of ACL errors: Error loading ACLs, opening file '/none/users'",
        ),
    ] {
        let args = [&["--logfile", "{dir}/x.log"][..], &args].concat();
        let refused = Server::try_start(&program(), &args).err().expect("it must not start");
        assert!(refused.lines().any(|line| line.starts_with(why)), "{refused}");
    }
}

#[test]
fn sentinel_mode_is_refused_with_alternatives() {
    if program().reference().is_some() {
        return; // there the same program is a sentinel, too
    }
    let run = |name: &str, args: &[&str]| {
        let mut command = std::process::Command::new(program().path());
        let output = command.arg0(name).args(args).output().expect("it runs");
        (output.status.success(), String::from_utf8(output.stderr).expect("text"))
    };
    for (name, args) in [
        ("evenkeel", &["--sentinel"][..]),
        ("evenkeel", &["x.conf", "--sentinel"]),
        ("/usr/bin/redis-sentinel", &["x.conf"]),
        ("valkey-sentinel", &[]),
    ] {
        let (is_well, said) = run(name, args);
        assert!(
            !is_well && said.contains("package redis-sentinel or valkey-sentinel"),
            "{name} {args:?}: {said}"
        );
    }
}

#[test]
fn the_log_shows_how_the_server_was_started() {
    let kept = |args: &[&str]| {
        let server = start(args);
        wait_until("it is logged", || server.log().contains("Ready to accept connections"));
        let log = server.log();
        assert_eq!(log.matches("pid=").count(), 1, "{log}");
        assert!(!log.contains("PID: "), "{log}");
        assert!(log.contains("Configuration loaded without a file"), "{log}");
        ["there is no persistence", "snapshots are taken at save points", "the append-only file is on"]
            .into_iter()
            .filter(|line| log.contains(&format!("worker threads; {line}; the data directory is ")))
            .collect::<Vec<_>>()
    };
    assert_eq!(kept(&["--save", ""]), ["there is no persistence"]);
    assert_eq!(kept(&["--save", "100 1"]), ["snapshots are taken at save points"]);
    assert_eq!(kept(&["--appendonly", "yes", "--save", ""]), ["the append-only file is on"]);
}

/// As in Redis, a save point counts the keys: flushed data must not come back after a crash.
#[test]
fn a_flush_counts_a_change_per_key() {
    let server = start(&["--databases", "2"]);
    let mut client = server.connect();
    let changes = || server.info("rdb_changes_since_last_save").parse::<u64>().expect("a number");
    for (flush, counted) in [("FLUSHDB", 100), ("FLUSHDB ASYNC", 100), ("FLUSHDB", 0), ("FLUSHALL", 100)] {
        if counted >= 100 {
            (0..100).for_each(|n| drop(client.run(&format!("SET k{n} v"))));
        }
        let before = changes();
        assert_eq!(client.run(flush).to_string(), "OK");
        assert_eq!(changes() - before, counted, "{flush}");
    }
}

#[test]
fn the_lowest_client_limit_admits_a_few_clients() {
    let server = start(&["--threads", "2", "--maxclients", "100"]);
    assert_eq!(server.connect().run("CONFIG SET maxmemory-clients 1").to_string(), "OK");
    for _ in 0..3 {
        let mut client = server.connect();
        for _ in 0..2 {
            assert_eq!(client.run("PING").to_string(), "PONG");
            std::thread::sleep(Duration::from_millis(150)); // longer than the control thread's interval
        }
    }
    assert_eq!(server.info("evicted_clients"), "0");
}

/// With Valkey's names and errors.
#[test]
fn clients_are_filtered_by_their_attributes() {
    let server = start(&["--threads", "2"]);
    let mut operator = server.connect();
    let ids = |client: &mut Client, filters: &str| -> Vec<i64> {
        let reply = client.run(&format!("CLIENT LIST {filters}"));
        let text = reply.as_bytes().unwrap_or_else(|| panic!("{filters}: {reply}"));
        let text = String::from_utf8_lossy(text);
        let id = |line: &str| line.split_once(' ')?.0.strip_prefix("id=")?.parse().ok();
        let mut ids: Vec<i64> = text.lines().map(|line| id(line).expect("an id")).collect();
        ids.sort_unstable();
        ids
    };
    let id_of = |client: &mut Client| client.run("CLIENT ID").as_int().expect("an id");
    let (mut named, mut subscriber) = (server.connect(), server.connect());
    for command in
        ["CLIENT SETNAME ann", "CLIENT SETINFO LIB-NAME lib", "CLIENT SETINFO LIB-VER 1.2", "SELECT 3"]
    {
        assert_eq!(named.run(command).to_string(), "OK");
    }
    let (it, ann, subscriber_id) = (id_of(&mut operator), id_of(&mut named), id_of(&mut subscriber));
    subscriber.run("SUBSCRIBE news");
    let address = operator.run(&format!("CLIENT LIST ID {ann}")).to_string();
    let address =
        address.split(' ').find_map(|word| word.strip_prefix("addr=")).expect("it has one").to_owned();
    for (filters, expected) in [
        (String::new(), vec![it, ann, subscriber_id]),
        ("SKIPME yes".into(), vec![ann, subscriber_id]),
        ("NAME ann".into(), vec![ann]),
        ("NOT-NAME ann".into(), vec![it, subscriber_id]),
        ("NAME bob NAME ann".into(), vec![ann]),
        ("DB 3".into(), vec![ann]),
        ("not-db 3 skipme yes".into(), vec![subscriber_id]),
        ("LIB-NAME lib LIB-VER 1.2".into(), vec![ann]),
        ("LIB-NAME lib NOT-LIB-VER 1.2".into(), vec![]),
        ("FLAGS P".into(), vec![subscriber_id]),
        ("NOT-FLAGS P".into(), vec![it, ann]),
        ("TYPE pubsub".into(), vec![subscriber_id]),
        ("NOT-TYPE pubsub".into(), vec![it, ann]),
        ("IP 127.0.0.1".into(), vec![it, ann, subscriber_id]),
        ("NOT-IP 127.0.0.1".into(), vec![]),
        (format!("ADDR {address}"), vec![ann]),
        (format!("NOT-ADDR {address}"), vec![it, subscriber_id]),
        (format!("NOT-ID {ann} {subscriber_id}"), vec![it]),
        (format!("ID {ann} ID {subscriber_id}"), vec![ann, subscriber_id]),
        (format!("ID {ann} {subscriber_id} NOT-ID {subscriber_id}"), vec![ann]),
        ("USER default MAXAGE 1000".into(), vec![]),
        ("IDLE 1000".into(), vec![]),
        ("NOT-CAPA r".into(), vec![it, ann, subscriber_id]),
    ] {
        // Two workers accept connections: the first request for a connection need not get the lowest number.
        let expected: Vec<i64> = BTreeSet::from_iter(expected).into_iter().collect();
        assert_eq!(ids(&mut operator, &filters), expected, "CLIENT LIST {filters}");
    }
    for (filters, error) in [
        ("DB 99", "-ERR DB number should be between 0 and 15"),
        ("DB x", "-ERR DB is not an integer or out of range"),
        ("IDLE 0", "-ERR idle should be greater than 0"),
        ("FLAGS Z", "-ERR Unknown flags found in the provided filter: Z"),
        ("NOT-USER nosuch", "-ERR No such user 'nosuch'"),
        ("NOT-IDLE 1", "-ERR syntax error"),
        ("NAME", "-ERR syntax error"),
        ("SKIPME perhaps", "-ERR syntax error"),
    ] {
        assert_eq!(operator.run(&format!("CLIENT LIST {filters}")).to_string(), error);
    }
    assert_eq!(operator.run("CLIENT KILL NOT-FLAGS P NOT-NAME bob").as_int(), Some(1), "itself is spared");
    let left = BTreeSet::from([it, subscriber_id]);
    assert_eq!(ids(&mut operator, ""), left.into_iter().collect::<Vec<i64>>());
}

/// No client asks for it, and the threads have no other reason to search their memory.
#[test]
fn freed_memory_returns_to_the_system() {
    let server = start(&["--threads", "2", "--save", "", "--enable-debug-command", "yes"]);
    let (before, mut client) = (server.rss(), server.connect());
    // By an offload thread, and by workers.
    client.run("DEBUG POPULATE 100000 by_long 1000");
    let value = "x".repeat(1000);
    let sets =
        (0..100_000).map(|number| vec!["SET".to_owned(), format!("by_worker:{number}"), value.clone()]);
    client.pipeline(&sets.collect::<Vec<_>>());
    assert_eq!(client.run("DBSIZE").to_string(), ":200000");
    let full = server.rss();
    assert!(full > before + 200_000_000, "{before} {full}");
    client.run("FLUSHALL");
    wait_until("most of it has gone back", || server.rss() < before + (full - before) / 4);
}

/// INFO's number of changes since the last save (used by save points) agrees with Redis: without expired and
/// evicted keys, and with the keys of FLUSHALL.
#[test]
fn changes_are_counted_as_redis_counts_them() {
    let Some(reference) = Program::oracle(Reference::Redis) else { return };
    let servers = [Server::start(&reference, &["--save", ""]), start(&["--save", ""])];
    for line in [
        "FLUSHALL",
        "SET gone v PX 20",
        "SET soon v PX 20",
        "MSET a 1 b 2 c 3",
        "FLUSHDB",
        "FLUSHDB",
        "MSET a 1 b 2 c 3",
        "RENAME a new",
        "RENAME new b",
        "RENAMENX b a",
        "MOVE a 5",
        "COPY c a",
        "SELECT 3",
        "SET d 4",
        "SWAPDB 0 3",
        "FLUSHALL ASYNC",
        "CONFIG SET maxmemory-policy allkeys-random",
        "MSET a 1 b 2 c 3",
        "CONFIG SET maxmemory 1",
    ] {
        let [redis, ours] = [0, 1].map(|which| {
            let (server, mut client) = (&servers[which], servers[which].connect());
            client.run(line);
            if line.ends_with("PX 20") {
                wait_until("it has expired", || client.run("DBSIZE").as_int() == Some(0));
            }
            if line.ends_with("maxmemory 1") {
                wait_until("all are evicted", || server.info("evicted_keys") == "3");
            }
            server.info("rdb_changes_since_last_save")
        });
        assert_eq!(ours, redis, "{line}");
    }
}

/// Redis and Valkey ignore them too, except SIGXFSZ.
#[test]
fn irrelevant_signals_change_nothing() {
    let mut server = start(&[]);
    for signal in [libc::SIGHUP, libc::SIGPIPE, libc::SIGALRM, libc::SIGUSR2, libc::SIGXFSZ, libc::SIGWINCH] {
        server.signal(signal);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(server.connect().run("PING").to_string(), "PONG", "after signal {signal}");
    }
    server.assert_healthy();
}

/// As if the disk were full.
#[test]
fn a_snapshot_over_the_file_size_limit_fails_without_other_effect() {
    let limited = program().started_by(&["prlimit", "--fsize=100000"]);
    let mut server = Server::start(&limited, &["--enable-debug-command", "yes"]);
    let mut client = server.connect();
    client.run("DEBUG POPULATE 20000");
    client.run("BGSAVE");
    wait_until("the snapshot has failed", || server.info("rdb_last_bgsave_status") == "err");
    assert_eq!(client.run("DBSIZE").as_int(), Some(20_000));
    server.assert_healthy();
}
