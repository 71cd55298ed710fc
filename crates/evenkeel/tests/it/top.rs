//! `evenkeel top` on running servers: single frames, and the screen in a pseudo-terminal.

mod terminal;

use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use evenkeel_testkit::{Program, Reference, Server};

use crate::tls::certs::Certs;
use crate::tls::start_secure_as;
use crate::{Ends, program, start, wait_until};
use terminal::{Screen, status_without_terminal};

/// Returns a command that runs the tool, which never is another server's binary.
fn top(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.arg("top").args(args).env_remove("REDISCLI_AUTH").env_remove("NO_COLOR");
    command
}

/// Returns a frame of a server.
#[track_caller]
fn frame(args: &[&str]) -> String {
    let output = top(args).args(["--once", "--interval", "0.5"]).output().expect("started");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[track_caller]
fn refusal(args: &[&str]) -> String {
    let Output { status, stdout, stderr } = top(args).arg("--once").output().expect("started");
    assert!(!status.success() && stdout.is_empty(), "{}", String::from_utf8_lossy(&stdout));
    String::from_utf8(stderr).expect("text")
}

/// Returns the value behind a label.
#[track_caller]
fn value<'f>(frame: &'f str, label: &str) -> &'f str {
    let rest = frame.split_once(label).unwrap_or_else(|| panic!("no {label:?} in\n{frame}")).1;
    rest.split_whitespace().next().unwrap_or_default()
}

/// Returns a frame of a server under load: pipelines of GET and SET.
fn frame_under_load(server: &Server) -> String {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&is_over);
        scope.spawn(|| {
            let mut client = server.connect();
            let pair = [vec!["SET", "k", "v"], vec!["GET", "k"]];
            let pipeline: Vec<Vec<&str>> = pair.into_iter().cycle().take(100).collect();
            while !is_over.load(Relaxed) {
                client.pipeline(&pipeline);
            }
        });
        let calls = || server.info("total_commands_processed").parse().unwrap_or(0);
        wait_until("the load begins", || calls() > 500);
        frame(&["--port", &server.port().to_string()])
    })
}

/// Checks the values that every server has.
#[track_caller]
fn assert_shows_load(frame: &str, server: &Server, name: &str) {
    let header = frame.lines().next().unwrap_or_default();
    let address = format!("primary  127.0.0.1:{}", server.port());
    assert!(header.trim_start().starts_with(name) && header.contains(&address), "{frame}");
    for label in ["commands/s", "p50", "p99", "\n memory", "resident", "in/s", "out/s", "hit ratio", "cpu"] {
        assert!(value(frame, label).starts_with(|digit: char| digit.is_ascii_digit()), "{label}: {frame}");
    }
    assert_eq!(value(frame, "hit ratio"), "100.0%", "{frame}");
    let rate = |command: &str| {
        let row = frame.lines().find(|line| line.starts_with(&format!(" {command} ")));
        let row = row.unwrap_or_else(|| panic!("no {command:?} in\n{frame}"));
        row.split_whitespace().nth(1).map(str::to_owned)
    };
    assert!(rate("get").is_some_and(|rate| rate != "0") && rate("set") != Some("0".into()), "{frame}");
}

#[test]
fn a_frame_shows_rates() {
    let server = Server::start(&Program::under_test(env!("CARGO_BIN_EXE_evenkeel")), &[]);
    let frame = frame_under_load(&server);
    if server.program().reference().is_none() {
        assert_shows_load(&frame, &server, "evenkeel");
        let bars = frame.lines().filter(|line| line.starts_with(" w") && line.ends_with('%'));
        let is_busy = |bar: &str| bar.get(5..).is_some_and(|stages| stages.contains(['r', 'x', 'w']));
        assert!(bars.into_iter().any(is_busy) && frame.contains("x execute"), "{frame}");
        assert_ne!(value(&frame, "workers"), "0.0%", "{frame}");
    }
}

#[test]
fn a_frame_of_other_servers_shows_less() {
    for (reference, name) in [(Reference::Valkey, "valkey 9.1"), (Reference::Redis8, "redis 8.2")] {
        let Some(program) = Program::oracle(reference) else { continue };
        let server = Server::start(&program, &[]);
        let frame = frame_under_load(&server);
        assert_shows_load(&frame, &server, name);
        assert!(frame.contains("This server does not account for the stages of its threads."), "{frame}");
        assert_eq!(value(&frame, "workers"), "-", "{frame}");
    }
}

#[test]
fn a_limited_user_sees_the_rest() {
    let server = start(&["--requirepass", "secret"]);
    let port = server.port().to_string();
    let mut client = server.connect();
    client.run("AUTH secret");
    client.run("ACL SETUSER watch on >word +info");
    let user = ["--port", &port, "--user", "watch", "--password-env", "WORD"];
    let output = top(&user).args(["--once", "--interval", "0.1"]).env("WORD", "word").output();
    let frame = String::from_utf8(output.expect("started").stdout).expect("text");
    assert!(frame.contains("no permission: LATENCY HISTOGRAM"), "{frame}");
    assert_eq!((value(&frame, "p99"), value(&frame, "clients")), ("-", "2"), "{frame}");
    let by_variable = top(&["--port", &port, "--once"]).env("REDISCLI_AUTH", "secret").output();
    assert!(by_variable.expect("started").status.success());
    let wrong = refusal(&["--port", &port]);
    assert!(wrong.contains("NOAUTH"), "{wrong}");
    let wrong = top(&user).arg("--once").env("WORD", "wrong").output().expect("started").stderr;
    assert!(String::from_utf8_lossy(&wrong).contains("WRONGPASS"));
}

#[test]
fn certificates_are_verified() {
    let certs = Certs::new();
    let secure = start_secure_as(&program(), &certs, &["--tls-auth-clients", "optional"]);
    let port = secure.port.to_string();
    let [ca, other_ca] = ["ca.crt", "other-ca.crt"].map(|name| certs.word(name));
    let server = ["--host", "localhost", "--port", &port, "--tls"];
    let with = |args: &[&'static str], file: &str| -> Vec<String> {
        server.iter().chain(args).map(|word| word.replace("FILE", file)).collect()
    };
    let shown = |args: Vec<String>| frame(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(shown(with(&["--cacert", "FILE"], &ca)).contains("primary"));
    assert!(shown(with(&["--insecure"], "")).contains("primary"));
    let refused = with(&["--cacert", "FILE"], &other_ca);
    let refused = refusal(&refused.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(refused.contains("certificate"), "{refused}");
}

#[test]
fn a_unix_socket_is_a_way_to_the_server() {
    let server = start(&["--unixsocket", "{dir}/socket"]);
    let socket = server.folder().join("socket").display().to_string();
    let frame = frame(&["--socket", &socket]);
    assert!(frame.contains(&format!("primary  {socket}")), "{frame}");
    let refused = refusal(&["--socket", "/nonexistent"]);
    assert!(refused.contains("no connection to the server: No such file"), "{refused}");
}

#[test]
fn the_screen_has_views_and_leaves_the_terminal_as_it_was() {
    let server = start(&["--slowlog-log-slower-than", "0"]);
    let mut client = server.connect();
    client.run("CLIENT SETNAME worker-of-a-test");
    client.call(&["SET", "key", "\x1b]0;title\x07\x1b[31m"]);
    client.run("CONFIG SET slowlog-log-slower-than -1");
    let mut screen = Screen::start(&mut top(&["--port", &server.port().to_string(), "--interval", "0.2"]));
    screen.wait_for(&["primary", "1 Overview", "commands/s", "History", "Workers"]);
    for (key, shown) in [
        ("2", &["per call", "client|setname"][..]),
        ("3", &["took", "SET key \\x1b]0;title\\x07\\x1b[31m"]),
        ("4", &["worker-of-a-test", "evenkeel-top"]),
        ("5", &["append-only file", "No replicas."]),
        ("6", &["atency"]),
        ("\t", &["History"]),
        ("?", &["longer, shorter interval"]),
        ("?p", &["PAUSED"]),
        ("p+", &["interval 0.5s"]),
    ] {
        screen.press(key);
        screen.wait_for(shown);
    }
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
    assert!(screen.styles().iter().any(|style| style.starts_with("38;")), "colours");
    let output = screen.output();
    assert!(!output.windows(4).any(|bytes| bytes == b"\x1b]0;"), "a client's bytes reached the terminal");
}

#[test]
fn a_signal_restores_the_terminal() {
    let server = start(&[]);
    for (signal, status) in [(libc::SIGTERM, 143), (libc::SIGHUP, 129)] {
        let mut screen = Screen::start(&mut top(&["--port", &server.port().to_string()]));
        screen.wait_for(&["primary"]);
        screen.signal(signal);
        assert_eq!(screen.end(), Some(status));
    }
}

#[test]
fn the_program_ends_with_its_terminal() {
    let server = start(&[]);
    let mut command = top(&["--port", &server.port().to_string()]);
    assert_eq!(status_without_terminal(&mut command, "primary"), Some(1));
}

#[test]
fn the_screen_returns_with_the_server() {
    let mut server = start(&[]);
    let args = ["--port", &server.port().to_string(), "--interval", "0.2"];
    let mut screen = Screen::start(top(&args).env("NO_COLOR", "1"));
    screen.wait_for(&["primary", "x execute"]);
    server.kill();
    screen.wait_for(&["no connection: "]);
    server.start_again();
    screen.wait_for(&["primary", "up 00:00:0"]);
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
    let styles = screen.styles();
    assert!(!styles.iter().any(|style| style.starts_with("38;") || style.starts_with("48;")), "{styles:?}");
}

/// Each interval costs the server two commands, and a view's own command only while it is shown.
#[test]
fn a_poll_has_few_commands() {
    let server = start(&[]);
    let mut client = server.connect();
    let mut screen = Screen::start(&mut top(&["--port", &server.port().to_string(), "--interval", "0.1"]));
    screen.wait_for(&["primary", "latency|histogram"]);
    let stats = client.run("INFO commandstats").to_string();
    let called: Vec<&str> =
        stats.split("cmdstat_").skip(1).filter_map(|line| line.split(':').next()).collect();
    assert!(
        called.iter().all(|name| ["client|setname", "info", "latency|histogram", "ping"].contains(name)),
        "{stats}"
    );
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
}
