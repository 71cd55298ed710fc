//! `load` and `fill` against real servers: every way to reach a server, and errors that must be reported.

mod certs;
mod login;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use certs::Certs;
use evenkeel_testkit::server::free_port;
use evenkeel_testkit::{Program, Reference, Server};

const BENCH: &str = env!("CARGO_BIN_EXE_evenkeel-bench");

/// Evenkeel, if it was built beside the bench, and Redis.
fn programs() -> Vec<Program> {
    let beside = Path::new(BENCH).with_file_name("evenkeel");
    let ours = Program::under_test(&beside.display().to_string());
    let ours = ours.path().exists().then_some(ours);
    let all: Vec<Program> = ours.into_iter().chain(Program::oracle(Reference::Redis)).collect();
    assert!(!all.is_empty(), "there is a server to test with: cargo build -p evenkeel");
    all
}

/// Returns the JSON of `load`, or its error text.
fn load(server: &[&str], words: &[&str]) -> Result<serde_json::Value, String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Relaxed);
    let file = std::env::temp_dir().join(format!("evenkeel-load-{}-{number}.json", std::process::id()));
    let json = file.display().to_string();
    let output = Command::new(BENCH)
        .env_remove("REDISCLI_AUTH")
        .arg("load")
        .args(server)
        .args(words)
        .args(["--json", &json])
        .output();
    let output = output.expect("the program is built");
    let text = std::fs::read_to_string(&file);
    let _ = std::fs::remove_file(&file); // it does not exist if the load failed
    match text {
        Ok(text) if output.status.success() => Ok(serde_json::from_str(&text).expect("it writes JSON")),
        _ => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn fill(server: &[&str], words: &[&str]) {
    let status = Command::new(BENCH)
        .env_remove("REDISCLI_AUTH")
        .arg("fill")
        .args(server)
        .args(words)
        .stdout(Stdio::null())
        .status();
    assert!(status.expect("the program is built").success(), "fill {server:?} {words:?}");
}

/// Sends this many requests and checks that each was answered, none by an error or a null.
#[track_caller]
fn all_answered(server: &[&str], words: &[&str], requests: u64) -> serde_json::Value {
    let count = requests.to_string();
    let result = load(server, &[words, &["-n", &count]].concat()).expect("it runs");
    for (name, expected) in
        [("requests", requests), ("errors", 0), ("misses", 0), ("refused", 0), ("failed", 0)]
    {
        assert_eq!(result[name], expected, "{name} with {server:?} {words:?}: {result}");
    }
    result
}

/// SETs, GETs in batches over several threads, large values both ways, and short connections.
fn everything(server: &[&str]) {
    fill(server, &["-k", "100"]);
    all_answered(server, &["-k", "100", "-c", "7", "-t", "2", "-P", "3"], 2_000);
    all_answered(server, &["-k", "100", "-P", "16", "-d", "100000", "--command", "set"], 320);
    all_answered(server, &["-k", "100", "-P", "16"], 3_200);
    all_answered(server, &["-k", "100", "-c", "5", "--short"], 40);
    all_answered(server, &["-k", "100", "-c", "4", "--rate", "2000"], 100);
    let missed = load(server, &["-k", "1", "-n", "30", "--command", "GET nothing:{key}"]).expect("it runs");
    assert_eq!(missed["misses"], 30, "{missed}");
    let wrong =
        load(server, &["-k", "100", "-n", "60", "--command", "LPUSH {key} x ; PING"]).expect("it runs");
    assert_eq!(wrong["errors"], 30, "{wrong}");
}

/// `everything`, in both versions of the protocol.
fn everything_twice(server: &[&str]) {
    for protocol in ["resp2", "resp3"] {
        everything(&[server, &["--protocol", protocol]].concat());
    }
}

#[test]
fn over_tcp() {
    for program in programs() {
        let server = start(&program, &[]);
        everything_twice(&["-p", &server.port().to_string()]);
    }
}

#[test]
fn over_a_unix_socket() {
    for program in programs() {
        let server = start(&program, &["--unixsocket", "{dir}/socket"]);
        let socket = server.folder().join("socket").display().to_string();
        everything_twice(&["--socket", &socket]);
    }
}

#[test]
fn over_tls() {
    let certs = Certs::new();
    for program in programs() {
        let port = free_port().to_string();
        let _server = start_secure(&program, &certs, &port);
        let common =
            ["-p", &port, "--tls", "--cert", &certs.word("client.crt"), "--key", &certs.word("client.key")];
        everything_twice(&[&common[..], &["--cacert", &certs.word("ca.crt")]].concat());
        everything(&[&common[..], &["--insecure"]].concat());
    }
}

#[test]
fn untrusted_servers_are_refused_over_tls() {
    let certs = Certs::new();
    for program in programs() {
        let port = free_port().to_string();
        let _server = start_secure(&program, &certs, &port);
        let (client, key) = (certs.word("client.crt"), certs.word("client.key"));
        let ours = ["-p", &port, "--tls", "--cert", &client, "--key", &key];
        let (ca, other) = (certs.word("ca.crt"), certs.word("other.crt"));
        let with =
            |more: &[&str]| load(&[&ours[..], more].concat(), &["-n", "10", "-c", "1", "--command", "PING"]);
        assert!(with(&["--cacert", &ca]).is_ok());
        let error = with(&["--cacert", &other]).expect_err("another authority");
        assert!(error.contains("UnknownIssuer"), "{error}");
        let error = with(&["--cacert", &ca, "--sni", "elsewhere"]).expect_err("another name");
        assert!(error.contains("not valid for name"), "{error}");
        assert!(with(&["--cacert", &ca, "--sni", "localhost"]).is_ok());
        // A client without a certificate is refused; with TLS 1.3 it notices only when it reads.
        load(&["-p", &port, "--tls", "--insecure"], &["-n", "10", "-c", "1"]).expect_err("no certificate");
        let missing = with(&["--cacert", "/nowhere"]).expect_err("no file");
        assert!(missing.contains("/nowhere"), "{missing}");
        let error = with(&[]).expect_err("it has to be said whom to believe");
        assert!(error.contains("--cacert"), "{error}");
    }
}

#[test]
fn push_messages_are_not_replies() {
    for program in programs() {
        let server = start(&program, &[]);
        let port = server.port().to_string();
        let server = ["-p", &port, "--protocol", "resp3"];
        fill(&server, &["-k", "10"]);
        let command = "CLIENT TRACKING ON ; GET {key} ; SET {same} {value} ; HELLO 3 ; GET {same}";
        all_answered(&server, &["-k", "10", "-c", "3", "-P", "5", "--command", command], 3_000);
    }
}

#[test]
fn connections_announce_their_protocol() {
    for program in programs() {
        let server = start(&program, &[]);
        let port = server.port().to_string();
        let words = ["load", "-p", &port, "--protocol", "resp3", "-c", "3", "-s", "60", "--rate", "100"];
        let mut child = Command::new(BENCH)
            .env_remove("REDISCLI_AUTH")
            .args(words)
            .stdout(Stdio::null())
            .spawn()
            .expect("it is built");
        let mut client = server.connect();
        let (deadline, mut list) = (Instant::now() + Duration::from_secs(30), String::new());
        while Instant::now() < deadline && list.matches("resp=3").count() < 3 {
            list = client.run("CLIENT LIST").to_string();
        }
        child.kill().expect("it is still there");
        child.wait().expect("it has ended");
        assert_eq!(list.matches("resp=3").count(), 3, "{list}");
    }
}

#[test]
fn memcached_is_filled_and_queried() {
    let Some(server) = Memcached::start() else { return };
    let server = server.words();
    fill(&server, &["-k", "100"]);
    all_answered(&server, &["-k", "100", "-P", "16"], 3_200);
    all_answered(&server, &["-k", "100", "-P", "3", "--command", "mixed:50"], 600);
    all_answered(&server, &["-k", "100", "-c", "5", "--short"], 40);
    let result = load(&server, &["-k", "200", "-n", "200", "--distribution", "sequential"]).expect("it runs");
    assert_eq!(result["misses"], 100);
    let large = load(&server, &["-k", "1", "-n", "3", "-d", "2000000", "--command", "set"]);
    let large = large.expect_err("it takes no such values");
    assert!(large.contains("every request was answered with an error"), "{large}");
    let error = load(&server, &["-n", "1", "--command", "INCR {key}"]).expect_err("it has no such words");
    assert!(error.contains("memcached"), "{error}");
}

#[test]
fn errors_and_misses_are_those_of_measured_requests() {
    for program in programs() {
        let server = start(&program, &[]);
        let port = server.port().to_string();
        let run =
            |command: &str| load(&["-p", &port], &["-s", "0.3", "--warm-up", "0.1", "--command", command]);
        let missed = run("get").expect("nothing is there");
        assert_eq!(missed["misses"], missed["requests"], "{}", program.path().display());
        let half = run("FOO ; PING").expect("a half of it works");
        let part = half["errors"].as_f64().expect("a number") / half["requests"].as_f64().expect("a number");
        assert!((0.4..0.6).contains(&part), "{part}");
        let none = run("FOO").expect_err("nothing of it works");
        assert!(none.contains("every request was answered with an error: ERR unknown command"), "{none}");
        let typed = run("ECHO {ky}").expect("it is a word");
        assert_eq!(typed["errors"], 0);
    }
}

#[test]
fn senseless_options_are_refused() {
    for words in [
        &["--tls"][..],
        &["--cacert", "x"],
        &["--tls", "--cacert", "x", "--insecure"],
        &["--tls", "--insecure", "--cert", "x"],
        &["--socket", "x", "--port", "1"],
        &["--protocol", "resp4"],
        &["--socket", "/nowhere/at/all", "-n", "1"],
    ] {
        let output = Command::new(BENCH)
            .env_remove("REDISCLI_AUTH")
            .arg("load")
            .args(words)
            .output()
            .expect("it is built");
        assert!(!output.status.success() && !output.stderr.is_empty(), "{words:?}");
    }
}

#[test]
fn error_messages_name_the_senseless_option() {
    for (words, said) in [
        (&["--user", "me"][..], "--user needs --password"),
        (&["--protocol", "memcached", "-a", "x"], "memcached is told no password"),
        (&["--protocol", "memcached", "--db", "1"], "memcached has no databases"),
        (&["--protocol", "memcached", "--command", "100% get"], "memcached is sent get"),
        (&["--db", "x"], "--db <NUMBER>"),
        (&["-d", "1000-100"], "from the smaller to the larger"),
        (&["-d", "100:0"], "weight 0"),
        (&["--command", "50% get ; 60% set"], "add up to 110"),
        (&["--command", "50% get ; set"], "has no percentage"),
        (&["-n", "0"], "nothing to measure"),
        (&["-s", "0"], "nothing to measure"),
    ] {
        let error = load(&["-p", "1"], words).expect_err("it makes no sense");
        assert!(error.contains(said), "{words:?}: {error}");
    }
}

/// Debian's memcached, ended with the value.
struct Memcached {
    child: std::process::Child,
    port: String,
}

impl Memcached {
    /// Starts memcached and waits until it answers; `None` if it is not installed, which fails on CI.
    fn start() -> Option<Self> {
        let port = free_port().to_string();
        let words = ["-p", &port, "-l", "127.0.0.1", "-U", "0", "-u", "root"];
        let Ok(child) = Command::new("memcached").args(words).stderr(Stdio::null()).spawn() else {
            assert!(std::env::var_os("CI").is_none(), "CI must have memcached");
            eprintln!("SKIPPED: no memcached on this machine");
            return None;
        };
        let server = Self { child, port };
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::net::TcpStream::connect(("127.0.0.1", server.port.parse().expect("a port"))).is_err() {
            assert!(Instant::now() < deadline, "memcached does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(server)
    }

    fn words(&self) -> [&str; 4] {
        ["-p", &self.port, "--protocol", "memcached"]
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}

/// Redis 7.0 counts 127.0.0.2, the source of short connections, as not local.
fn start(program: &Program, args: &[&str]) -> Server {
    Server::start(program, &[&["--protected-mode", "no"], args].concat())
}

fn start_secure(program: &Program, certs: &Certs, port: &str) -> Server {
    let files = [("cert", "server.crt"), ("key", "server.key"), ("ca-cert", "ca.crt")];
    let mut args = vec!["--tls-port".to_owned(), port.to_owned()];
    args.extend(files.iter().flat_map(|(what, name)| [format!("--tls-{what}-file"), certs.word(name)]));
    start(program, &args.iter().map(String::as_str).collect::<Vec<_>>())
}
