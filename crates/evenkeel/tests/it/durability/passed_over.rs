//! With both a snapshot and an append-only file, a single file is loaded, and the log reports the other.

use std::fs;
use std::path::Path;

use evenkeel_testkit::Server;

use crate::{start, wait_until};

const BOTH: &[&str] = &["--threads", "1", "--appendonly", "yes", "--save", "3600 1"];

/// A server after a clean shutdown: `k` is `first` in the backup, and `second` in its files.
fn stopped() -> Option<Server> {
    let mut server = start(BOTH);
    if server.program().reference().is_some() {
        return None; // the messages are Evenkeel's
    }
    let mut client = server.connect();
    for (value, file) in [("first", "backup"), ("second", "later")] {
        assert_eq!(client.run(&format!("SET k {value}")).to_string(), "OK");
        assert_eq!(client.run("SAVE").to_string(), "OK");
        let folder = server.folder();
        fs::copy(folder.join("dump.rdb"), folder.join(file)).expect("copied");
    }
    assert!(server.stop().success());
    Some(server)
}

/// The log since the last start, once data are loaded.
fn log_of_start(server: &Server) -> String {
    let begin = format!("pid={}, just started", server.pid());
    let since = || server.log().split_once(&begin).map(|(_, since)| since.to_owned()).unwrap_or_default();
    wait_until("it is ready", || since().contains("Ready to accept connections"));
    since()
}

fn value(server: &Server) -> String {
    server.connect().run("GET k").to_string()
}

#[test]
fn an_ignored_snapshot_beside_a_loaded_aof_is_reported() {
    let Some(mut server) = stopped() else { return };
    let (dump, log) = (server.folder().join("dump.rdb"), server.folder().join("appendonlydir"));
    // Its own last snapshot causes no warning.
    server.start_again();
    let said = log_of_start(&server);
    assert!(said.contains(&format!("* {} is not loaded: the append-only file", dump.display())), "{said}");
    assert!(!said.contains(" # "), "{said}");
    assert!(server.stop().success());

    // A backup in its place causes a warning, even with the backup's time stamp.
    for keeps_time in [false, true] {
        put(&server, "backup", &dump, keeps_time);
        server.start_again();
        let said = log_of_start(&server);
        let warning = format!(
            "# {} is newer than the append-only file in {} but is not loaded",
            dump.display(),
            log.display()
        );
        assert!(said.contains(&warning), "{said}");
        assert_eq!(value(&server), "\"second\"");
        assert!(server.stop().success());
    }

    // As the warning advises.
    put(&server, "backup", &dump, false);
    fs::rename(&log, server.folder().join("away")).expect("renamed");
    server.start_again();
    let said = log_of_start(&server);
    assert!(!said.contains("is not loaded"), "{said}");
    assert_eq!(value(&server), "\"first\"");
}

/// Copies a file to another's place.
fn put(server: &Server, file: &str, place: &Path, keeps_time: bool) {
    let from = server.folder().join(file);
    let _ = fs::remove_file(place);
    fs::copy(&from, place).expect("copied");
    if keeps_time {
        let time = fs::metadata(&from).and_then(|file| file.modified()).expect("a time");
        let copy = fs::OpenOptions::new().append(true).open(place).expect("it is there");
        copy.set_modified(time).expect("set");
    }
}

#[test]
fn an_ignored_aof_beside_a_loaded_snapshot_is_reported() {
    let Some(server) = stopped() else { return };
    let dir = server.folder().display().to_string();
    let args = ["--threads", "1", "--dir", &dir, "--save", "", "--appendonly", "no"];
    let expect_warning = |level: char, rest: &str, expected: &str| {
        let other = start(&args);
        let said = log_of_start(&other);
        let line = format!(
            "{level} The append-only file in {dir}/appendonlydir is not loaded, because 'appendonly' is no. \
             {rest}"
        );
        assert!(said.contains(&line), "{line}: {said}");
        assert_eq!(value(&other), expected);
    };
    let snapshot = server.folder().join("dump.rdb").display().to_string();
    expect_warning('#', &format!("{snapshot} is older and is loaded"), "\"second\"");
    put(&server, "backup", &server.folder().join("dump.rdb"), false);
    expect_warning('*', &format!("{snapshot} is newer and is loaded"), "\"first\"");
    fs::remove_file(server.folder().join("dump.rdb")).expect("removed");
    expect_warning('#', "There is no snapshot", "(nil)");
    fs::remove_dir_all(server.folder().join("appendonlydir")).expect("removed");
    let other = start(&args);
    assert!(!log_of_start(&other).contains("is not loaded"));
}
