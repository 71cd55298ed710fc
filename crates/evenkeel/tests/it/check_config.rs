//! `--check-config`: finds the errors that would prevent a start, without a start and without a trace.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use evenkeel_testkit::Server;

use crate::{program, start, wait_until};

/// A folder in which no user can create a file.
const READ_ONLY: &str = "/proc";

/// Returns success, standard output and standard error.
fn run(args: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(program().path());
    let output = command.arg("--check-config").args(["--port", "0"]).args(args).output().expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// Returns the errors, a line each.
#[track_caller]
fn mistakes(args: &[&str]) -> Vec<String> {
    let (is_well, said, mistakes) = run(args);
    assert!(!is_well && !said.contains("valid"), "{args:?}: {said}{mistakes}");
    assert!(!mistakes.contains("(os error"), "{mistakes}");
    let mut lines: Vec<String> = mistakes.lines().map(str::to_owned).collect();
    let count = lines.pop().expect("a last line");
    assert!(count.starts_with("The configuration has "), "{mistakes}");
    lines
}

fn names_of(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn all_files_that_a_start_cannot_open_are_reported() {
    if program().reference().is_some() {
        return; // the option is Evenkeel's
    }
    let holder = start(&[]); // its folder is used, and removed with it
    let dir = holder.folder().display().to_string();
    let at = |name: &str| format!("{dir}/{name}");
    fs::write(at("broken.pem"), "nothing").expect("written");
    let socket = at("s");
    let well = ["--dir", &dir, "--unixsocket", &socket];
    let missing = "No such file or directory";
    for (args, expected) in [
        (&["--logfile", "/none/x.log"][..], format!("Can't open the log file /none/x.log: {missing}")),
        (&["--logfile", &dir], format!("Can't open the log file {dir}: Is a directory")),
        (&["--pidfile", "/none/x.pid"], format!("Cannot write the pidfile /none/x.pid: {missing}")),
        (&["--aclfile", "/none/users"], format!("Error loading ACLs, opening file '/none/users': {missing}")),
        (&["--unixsocket", "/none/s"], format!("Opening Unix socket /none/s: {missing}")),
        (&["--unixsocket", &dir], format!("Opening Unix socket {dir}: Is a directory")),
        (&["--dir", READ_ONLY, "--save", "1 1"], format!("Cannot write files in {READ_ONLY}: ")),
        (&["--dir", READ_ONLY, "--appendonly", "yes"], format!("Cannot write files in {READ_ONLY}: ")),
        (&["--dir", READ_ONLY, "--replicaof", "h 1"], format!("Cannot write files in {READ_ONLY}: ")),
        (&["--maxmemory", "1000000gb"], "maxmemory is 1024000000 MB, but this machine".into()),
        (
            &["--bind", "203.0.113.7", "--port", "27777"],
            "Could not create server TCP listening socket 203.0.113.7:27777".into(),
        ),
    ] {
        let args = [&well[..], &["--save", ""], args].concat();
        let found = mistakes(&args);
        assert!(found.len() == 1 && found[0].starts_with(&expected), "{args:?}: {found:?}");
    }
    let nowhere = mistakes(&["--dir", &dir]);
    assert_eq!(nowhere, ["Configured to not listen anywhere, exiting."]);

    let all = mistakes(&[
        "--maxmemry",
        "1",
        "--dir",
        &dir,
        "--save",
        "",
        "--logfile",
        "/none/x.log",
        "--tls-port",
        "27777",
        "--bind",
        "127.0.0.1",
        "--tls-cert-file",
        "/none/c",
        "--tls-key-file",
        &at("broken.pem"),
        "--tls-ca-cert-file",
        "/none/ca",
    ]);
    let parts = [
        "",
        "*** FATAL CONFIG FILE ERROR",
        "Reading the command line, at option 2",
        ">>> 'maxmemry \"1\"'",
        "Bad directive or wrong number of arguments. Did you mean 'maxmemory'?",
        "Can't open the log file /none/x.log",
        "Failed to configure TLS: tls-ca-cert-file /none/ca: No such file or directory",
        "Failed to configure TLS: tls-cert-file /none/c: No such file or directory",
        &format!(
            "Failed to configure TLS: tls-key-file {dir}/broken.pem: no private key in PEM format found"
        ),
    ];
    assert_eq!(all.len(), parts.len(), "{all:?}");
    all.iter().zip(parts).for_each(|(line, part)| assert!(line.starts_with(part), "{line}"));
}

/// Relative paths begin at `dir`. If `dir` is wrong, no other folder is searched.
#[test]
fn relative_paths_resolve_as_at_a_start() {
    if program().reference().is_some() {
        return; // the option is Evenkeel's
    }
    let holder = start(&[]); // its folder is used, and removed with it
    let dir = holder.folder().display().to_string();
    fs::create_dir(holder.folder().join("logs")).expect("made");
    let args = ["--unixsocket", "s", "--logfile", "logs/x.log", "--save", "", "--dir"];
    let (is_well, said, _) = run(&[&args[..], &[&dir]].concat());
    assert!(is_well && said == "The configuration is valid.\n", "{said}");
    let found = mistakes(&[&args[..], &["/none", "--aclfile", "/none/users"]].concat()).join("\n");
    assert!(found.contains("dir \"/none\"") && found.contains("'/none/users'"), "{found}");
    assert!(!found.contains("logs/x.log") && !found.contains("socket"), "{found}");
}

/// The check leaves nothing behind, and does not disturb a running server's socket, port or files.
#[test]
fn a_check_beside_a_running_server_changes_nothing() {
    if program().reference().is_some() {
        return; // the option is Evenkeel's
    }
    let mut server = start(&[
        "--appendonly",
        "yes",
        "--save",
        "1 1",
        "--unixsocket",
        "{dir}/s",
        "--logfile",
        "{dir}/x.log",
        "--pidfile",
        "{dir}/p",
    ]);
    assert_eq!(server.connect().run("SET k v").to_string(), "OK");
    let dir = server.folder().display().to_string();
    let port = server.port().to_string();
    let names = names_of(server.folder());
    let args = [
        "--dir",
        &dir,
        "--port",
        &port,
        "--bind",
        "127.0.0.1",
        "--unixsocket",
        "s",
        "--logfile",
        "x.log",
        "--pidfile",
        "p",
        "--appendonly",
        "yes",
        "--save",
        "1 1",
    ];
    let (is_well, said, mistakes) = run(&args);
    assert!(is_well && said.ends_with("The configuration is valid.\n"), "{said}{mistakes}");
    assert!(said.contains(&format!("127.0.0.1:{port}: Address already in use")), "{said}");
    assert!(said.contains("a running server uses"), "{said}");
    assert_eq!(names_of(server.folder()), names);
    assert_eq!(server.connect().run("GET k").to_string(), "\"v\"");
    assert!(server.stop().success());
    let names = names_of(server.folder());
    let (is_well, said, _) = run(&args);
    assert!(is_well && said == "The configuration is valid.\n", "{said}");
    assert_eq!(names_of(server.folder()), names);
}

/// Data files must exist and be readable.
#[test]
fn data_files_are_opened() {
    if program().reference().is_some() {
        return; // the option is Evenkeel's
    }
    let mut server = start(&["--appendonly", "yes"]);
    assert!(server.stop().success());
    let dir = server.folder().display().to_string();
    let taken = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let port = taken.port().to_string();
    let args = ["--dir", &dir, "--port", &port, "--bind", "127.0.0.1", "--appendonly", "yes", "--save", ""];
    assert!(run(&args).0);
    let base = server.folder().join("appendonlydir/appendonly.aof.1.base.rdb");
    fs::rename(&base, server.folder().join("gone")).expect("renamed");
    let found = mistakes(&args);
    assert!(found.len() == 1 && found[0].contains("appendonly.aof.1.base.rdb"), "{found:?}");
    let refused = Server::try_start(&program(), &["--dir", &dir, "--appendonly", "yes"]).err();
    assert!(refused.expect("it must not start").contains("appendonly.aof.1.base.rdb"));

    fs::create_dir(server.folder().join("dump.rdb")).expect("made");
    let found = mistakes(&["--dir", &dir, "--port", &port, "--bind", "127.0.0.1", "--save", "1 1"]);
    assert!(found.len() == 1 && found[0].contains("dump.rdb: it is a directory"), "{found:?}");
}

/// Two faults do not prevent a start, so the server's log must report them.
#[test]
fn the_log_warns_of_faults_that_do_not_prevent_a_start() {
    let server = start(&["--dir", READ_ONLY, "--save", "3600 1", "--maxmemory", "1000000gb"]);
    if server.program().reference().is_some() {
        return; // the messages are Evenkeel's
    }
    for line in
        [&format!("# Cannot write files in {READ_ONLY}: "), "# maxmemory is 1024000000 MB, but this machine"]
    {
        wait_until(line, || server.log().contains(line));
    }
    let server = start(&["--dir", READ_ONLY, "--save", ""]);
    wait_until("it is ready", || server.log().contains("Ready to accept connections"));
    assert!(!server.log().contains("Cannot write files"), "{}", server.log());
}
