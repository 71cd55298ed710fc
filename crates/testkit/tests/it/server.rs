//! Starting, stopping and talking to a real server.

use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_resp::value::Value;
use evenkeel_testkit::{Program, Reference, Server, check};

fn redis(args: &[&str]) -> Option<Server> {
    Program::oracle(Reference::Redis).map(|program| Server::start(&program, args))
}

#[test]
fn a_transcript_runs_over_connections_and_real_time() {
    let Some(server) = redis(&[]) else { return };
    check(
        &server,
        r#"
        > SET k v PX 1000      < OK
        a> SELECT 1            < OK
        a> GET k               < (nil)
        > GET k                < "v"
        ~ 1100ms
        > GET k                < (nil)
        b> BLPOP list 0
        > RPUSH list x         < :1
        b< ["list", "x"]
        c> HELLO 3             < {*"proto": :3*}
        c> GET k               < (null)
        > INCR k extra         < -ERR wrong number of arguments for 'incr' command
    "#,
    );
}

#[test]
fn a_server_restarts_on_its_port_and_keeps_its_folder() {
    let Some(mut server) = redis(&["--appendonly", "yes"]) else { return };
    assert_eq!(server.connect().run("SET k v").to_string(), "OK");
    assert!(server.stop().success());
    assert!(!server.is_alive() && server.try_connect().is_err());
    server.start_again();
    assert_eq!(server.connect().run("GET k"), Value::bulk("v"));
    server.kill();
    server.start_again();
    assert_eq!(server.connect().run("GET k"), Value::bulk("v"));
    server.assert_healthy();
    assert!(server.log().matches("Ready to accept connections").count() == 3, "one log for all three lives");
    let (folder, pid) = (server.folder().to_owned(), server.pid());
    drop(server);
    assert!(!folder.exists() && !std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn a_server_on_a_unix_socket_alone_is_reached() {
    let Some(server) = redis(&["--port", "0", "--unixsocket", "{dir}/socket"]) else { return };
    assert_eq!(server.connect().run("PING").to_string(), "PONG");
}

#[test]
fn a_refused_command_line_is_an_error_with_the_servers_message() {
    let Some(program) = Program::oracle(Reference::Redis) else { return };
    let problem = Server::try_start(&program, &["--no-such-option", "1"]).err().expect("refused");
    assert!(problem.contains("Bad directive"), "{problem}");
}

#[test]
fn replies_are_read_whole_and_late_ones_time_out() {
    let Some(server) = redis(&[]) else { return };
    let mut client = server.connect();
    let long = vec![b'x'; 3_000_000];
    assert_eq!(client.call(&[b"SET", &b"long"[..], &long]).to_string(), "OK");
    assert_eq!(client.call(&["GET", "long"]).as_bytes(), Some(&long[..]));
    let commands: Vec<Vec<String>> = (0..10_000).map(|i| vec!["ECHO".to_owned(), i.to_string()]).collect();
    let replies = client.pipeline(&commands);
    assert!(replies.iter().enumerate().all(|(i, reply)| *reply == Value::bulk(i.to_string())));
    assert!(client.unread().is_empty());
    client.set_reply_timeout(Duration::from_millis(30));
    let asked = Instant::now();
    let error = client.try_call(&["BLPOP", "nothing", "0"]).expect_err("nobody pushes");
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    assert!(asked.elapsed() < Duration::from_secs(10));
}

/// Not a test: the next test runs it as a separate process.
#[test]
#[ignore = "leaves a server behind on purpose"]
fn exit_without_stopping_the_server() {
    let Some(server) = redis(&[]) else { std::process::exit(1) };
    println!("\nPID {}\nFOLDER {}", server.pid(), server.folder().display());
    std::process::exit(0);
}

#[test]
fn a_test_run_that_is_cut_short_leaves_no_server() {
    if Program::oracle(Reference::Redis).is_none() {
        return;
    }
    let itself = std::env::current_exe().expect("a test binary has a path");
    let name = "server::exit_without_stopping_the_server";
    let run =
        Command::new(itself).args(["--ignored", "--exact", name, "--nocapture"]).output().expect("it runs");
    let output = String::from_utf8_lossy(&run.stdout).into_owned();
    let printed =
        |name: &str| output.lines().find_map(|line| line.strip_prefix(name)).expect("it started a server");
    let pid = printed("PID ");
    let deadline = Instant::now() + Duration::from_secs(10);
    while runs(pid) {
        assert!(Instant::now() < deadline, "server {pid} outlives its test");
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = std::fs::remove_dir_all(printed("FOLDER ")); // the kernel ends processes, and leaves their files
}

/// A process that has ended may stay as a zombie until its new parent reaps it.
fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with(['Z', 'X']))
}
