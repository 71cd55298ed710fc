//! Files that a server writes are no other server's.

use evenkeel_testkit::Server;

use super::exchange::rewrite;
use super::reload::wait_until;
use crate::{program, start};

/// The lock is where the files are, and not where `dir` points by now.
#[test]
fn nobody_else_writes_a_log_that_has_its_writer() {
    let server =
        start(&["--threads", "1", "--appendonly", "yes", "--save", "", "--enable-protected-configs", "yes"]);
    let folder = server.folder().display().to_string();
    let refused = || {
        let args = ["--threads", "1", "--appendonly", "yes", "--dir", &folder];
        let log = Server::try_start(&program(), &args).err().expect("it is refused");
        assert!(log.contains("another server keeps its data in"), "{log}");
    };
    refused();
    let elsewhere = server.folder().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("the folder is ours");
    let mut client = server.connect();
    assert!(!client.run(&format!("CONFIG SET dir {}", elsewhere.display())).is_error());
    assert!(!client.run("SET k v").is_error());
    rewrite(&server);
    refused();
}

/// Turned off and on, the log is where `dir` points by then, and so is the lock; a base without a log holds on to nothing.
#[test]
fn a_log_that_is_turned_on_again_follows_dir() {
    let args = ["--threads", "1", "--save", "", "--enable-protected-configs", "yes", "--appendonly"];
    for was_on in ["yes", "no"] {
        let mut server = start(&[&args[..], &[was_on]].concat());
        let elsewhere = server.folder().join("elsewhere");
        std::fs::create_dir(&elsewhere).expect("the folder is ours");
        let folder = elsewhere.display().to_string();
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
        assert!(log.contains("another server keeps its data in"), "{log}");
        server.kill();
        let server = start(&again);
        assert_eq!(server.connect().run("DBSIZE").as_int(), Some(2));
    }
}
