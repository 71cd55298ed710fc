//! No two servers write the same files.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

use evenkeel_testkit::Server;

use super::exchange::rewrite;
use crate::wait_until;
use crate::{program, start};

/// The lock is with the files, not in the folder that `dir` names now.
#[test]
fn an_aof_has_a_single_writing_server() {
    let server =
        start(&["--threads", "1", "--appendonly", "yes", "--save", "", "--enable-protected-configs", "yes"]);
    let folder = server.folder().display().to_string();
    let refused = || {
        let args = ["--threads", "1", "--appendonly", "yes", "--dir", &folder];
        let log = Server::try_start(&program(), &args).err().expect("it is refused");
        assert!(log.contains("another server uses"), "{log}");
    };
    refused();
    let other_folder = server.folder().join("elsewhere");
    std::fs::create_dir(&other_folder).expect("the folder is ours");
    let mut client = server.connect();
    assert!(!client.run(&format!("CONFIG SET dir {}", other_folder.display())).is_error());
    assert!(!client.run("SET k v").is_error());
    rewrite(&server);
    refused();
}

/// The repair tool waits until no server uses the files.
#[test]
fn an_aof_in_use_is_not_truncated() {
    let mut server = start(&["--threads", "1", "--appendonly", "yes", "--appendfsync", "always"]);
    if server.program().reference().is_some() {
        return; // the tool is Evenkeel's
    }
    let mut client = server.connect();
    assert!(!client.run("SET k v").is_error());
    let folder = server.folder().join("appendonlydir");
    let part = folder.join("appendonly.aof.1.incr.aof");
    let whole = std::fs::metadata(&part).expect("it is there").len();
    let torn = std::fs::OpenOptions::new().append(true).open(&part);
    torn.and_then(|mut file| file.write_all(b"*2\r\n$3\r\nGE")).expect("written");
    let len = || std::fs::metadata(&part).expect("it is there").len();
    let run = |name: &str, args: &[&str], path: &Path| {
        let mut command = std::process::Command::new(program().path());
        let output = command.arg0(name).args(args).arg(path).stdin(Stdio::null()).output().expect("it runs");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let ways: [(&str, &[&str], &Path); 4] = [
        ("evenkeel", &["check", "--fix", "--yes"], &folder),
        ("evenkeel", &["check", "--fix", "--yes"], &part),
        ("redis-check-aof", &["--fix"], &folder.join("appendonly.aof.manifest")),
        ("redis-check-aof", &["--fix"], &part),
    ];
    for (name, args, path) in ways {
        let (well, text) = run(name, args, path);
        assert!(!well && text.contains("appendonly.aof (it holds a lock in"), "{name} {args:?}: {text}");
        assert_eq!(len(), whole + 10, "{name} {args:?}");
    }
    server.kill();
    let (name, args, path) = ways[0];
    assert!(run(name, args, path).0);
    assert_eq!(len(), whole);
}

/// Turned off and on, the append-only file and its lock are in the folder that `dir` names then; a base
/// without such a file locks nothing.
#[test]
fn an_aof_turned_on_again_follows_dir() {
    let args = ["--threads", "1", "--save", "", "--enable-protected-configs", "yes", "--appendonly"];
    for was_on in ["yes", "no"] {
        let mut server = start(&[&args[..], &[was_on]].concat());
        let other_folder = server.folder().join("elsewhere");
        std::fs::create_dir(&other_folder).expect("the folder is ours");
        let folder = other_folder.display().to_string();
        let mut client = server.connect();
        let mut set = |line: &str| assert!(!client.run(line).is_error(), "{line}");
        set("SET k v");
        rewrite(&server);
        set("CONFIG SET appendonly no");
        wait_until("it is off", || server.info("aof_enabled") == "0");
        set(&format!("CONFIG SET dir {folder}"));
        set("CONFIG SET appendonly yes");
        wait_until("it is on", || {
            server.info("aof_enabled") == "1" && server.info("aof_rewrite_in_progress") == "0"
        });
        set("SET l v");
        let again = ["--threads", "1", "--appendonly", "yes", "--dir", &folder];
        let log = Server::try_start(&program(), &again).err().expect("it is refused");
        assert!(log.contains("another server uses"), "{log}");
        server.kill();
        let server = start(&again);
        assert_eq!(server.connect().run("DBSIZE").as_int(), Some(2));
    }
}
