//! Servers in Go, Java and Python: locks, sleeps and garbage collection of their runtimes. `scripts/setup
//! clients` installs the languages.

use std::process::Command;

use evenkeel_testkit::server::free_port;

use super::loads::lines;
use super::{Service, expect_cause, expect_none, succeed};
use crate::Folder;
use crate::corpus::Clients;
use crate::stage::{ANYWHERE, stage};

const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");
const CLIENTS: usize = 6;

fn runs(program: &str) -> bool {
    let works = Command::new(program).arg(if program == "go" { "version" } else { "--version" }).output();
    let works = works.is_ok_and(|output| output.status.success());
    if !works {
        println!("left out: scripts/setup clients installs {program}");
    }
    works
}

/// A server and its clients; the server starts first and ends last.
struct Loaded {
    _clients: Clients,
    server: Service,
}

fn load(server: Service, clients: usize) -> Loaded {
    Loaded { _clients: lines(server.port, clients), server }
}

/// A program of Go with a known cause, built without the symbols that distributions strip.
fn go(cause: &str, clients: usize) -> Option<Loaded> {
    if !runs("go") {
        return None;
    }
    let (folder, port) = (Folder::new("go"), free_port());
    let (source, program) = (format!("{PROGRAMS}/server.go"), folder.file("server"));
    succeed(&["go", "build", "-ldflags=-s -w", "-o", &program, &source]);
    Some(load(Service::start(ANYWHERE, &[&program, &port.to_string(), cause], folder, port), clients))
}

fn java(options: &[&str], name: &str, more: &[&str]) -> Option<Loaded> {
    if !runs("java") {
        return None;
    }
    let (folder, port) = (Folder::new("java"), free_port());
    let (source, text) = (format!("{PROGRAMS}/{name}.java"), port.to_string());
    let words = [&["java"], options, &[&source, &text], more].concat();
    Some(load(Service::start(ANYWHERE, &words, folder, port), CLIENTS))
}

fn python(name: &str, more: &[&str], clients: usize) -> Loaded {
    let (folder, port) = (Folder::new("python"), free_port());
    let (source, text) = (format!("{PROGRAMS}/{name}.py"), port.to_string());
    let words = [&["python3", &source, &text], more].concat();
    load(Service::start(ANYWHERE, &words, folder, port), clients)
}

#[test]
#[ignore = "long"]
fn a_mutex_of_go_is_the_first_finding_with_its_place() {
    let _stage = stage();
    let Some(loaded) = go("mutex", CLIENTS) else { return };
    let words = ["sync.Mutex", "main.update (server.go:", "the holder sleeps at main.update"];
    expect_cause("Go, one mutex over 3 ms", loaded.server.pid(), "R24", &words);
}

#[test]
#[ignore = "long"]
fn a_mutex_for_each_connection_of_go_is_no_finding() {
    let _stage = stage();
    let Some(loaded) = go("own", CLIENTS) else { return };
    expect_none("Go, a mutex for each connection", loaded.server.pid(), "R24");
}

#[test]
#[ignore = "long"]
fn a_goroutine_that_sleeps_is_the_first_finding_with_its_place() {
    let _stage = stage();
    let Some(loaded) = go("sleep", CLIENTS) else { return };
    let words = ["goroutines", "sleep at main.answer (server.go:"];
    expect_cause("Go, a handler that sleeps", loaded.server.pid(), "R22", &words);
}

#[test]
#[ignore = "long"]
fn a_channel_that_admits_two_is_the_first_finding_with_its_place() {
    let _stage = stage();
    let Some(loaded) = go("slots", CLIENTS) else { return };
    let words = ["wait for another task at main.answer (server.go:"];
    expect_cause("Go, a channel that admits two", loaded.server.pid(), "R22", &words);
}

#[test]
#[ignore = "long"]
fn a_monitor_of_java_is_the_first_finding_with_its_place_and_holder() {
    let _stage = stage();
    let Some(loaded) = java(&[], "MonitorServer", &[]) else { return };
    let words = ["java.lang.Object 0x", "MonitorServer.update (MonitorServer.java:", "the holder sleeps"];
    expect_cause("Java, one monitor over 10 ms", loaded.server.pid(), "R24", &words);
}

#[test]
#[ignore = "long"]
fn a_monitor_for_each_connection_of_java_is_no_finding() {
    let _stage = stage();
    let Some(loaded) = java(&[], "MonitorServer", &["own"]) else { return };
    expect_none("Java, a monitor for each connection", loaded.server.pid(), "R24");
}

#[test]
#[ignore = "long"]
fn a_reentrant_lock_of_java_is_the_first_finding_with_its_place() {
    let _stage = stage();
    let Some(loaded) = java(&[], "LockServer", &[]) else { return };
    let words = ["locks.ReentrantLock 0x", "LockServer.update (LockServer.java:"];
    expect_cause("Java, one lock over 10 ms", loaded.server.pid(), "R24", &words);
}

#[test]
#[ignore = "long"]
fn a_future_of_java_that_does_not_complete_is_the_first_finding_with_its_place() {
    let _stage = stage();
    let Some(loaded) = java(&[], "FutureServer", &[]) else { return };
    let words = ["wait for another task at FutureServer.ask (FutureServer.java:"];
    expect_cause("Java, a future that does not complete", loaded.server.pid(), "R22", &words);
}

#[test]
#[ignore = "long"]
fn garbage_collection_of_java_is_the_first_finding() {
    let _stage = stage();
    let options = ["-Xmx64m", "-XX:+UseSerialGC"];
    let Some(loaded) = java(&options, "GarbageServer", &[]) else { return };
    expect_cause(
        "Java, a small heap",
        loaded.server.pid(),
        "R24",
        &["Garbage collection", "stops all threads"],
    );
}

#[test]
#[ignore = "long"]
fn a_java_server_without_garbage_has_no_such_finding() {
    let _stage = stage();
    let Some(loaded) = java(&["-Xmx64m", "-XX:+UseSerialGC"], "GarbageServer", &["small"]) else { return };
    expect_none("Java, no garbage", loaded.server.pid(), "R24");
}

#[test]
#[ignore = "long"]
fn pythons_interpreter_lock_is_the_first_finding() {
    let _stage = stage();
    let loaded = python("gil", &[], CLIENTS);
    let words = ["the interpreter lock (GIL)", "at work wait for it", "CPUs"];
    expect_cause("Python, six threads that compute", loaded.server.pid(), "R24", &words);
}

#[test]
#[ignore = "long"]
fn a_single_thread_of_python_waits_for_no_lock_and_its_function_is_named() {
    let _stage = stage();
    let loaded = python("gil", &[], 1);
    expect_cause(
        "Python, one thread that computes",
        loaded.server.pid(),
        "R24",
        &["The function checksum computes"],
    );
}

#[test]
#[ignore = "long"]
fn a_lock_of_python_is_the_first_finding_with_its_place() {
    let _stage = stage();
    let loaded = python("lock", &[], CLIENTS);
    let words = ["at work wait for a lock (lock 0x", "answer (lock.py:", "the holder sleeps"];
    expect_cause("Python, one lock over 50 ms", loaded.server.pid(), "R24|R22", &words);
}

#[test]
#[ignore = "long"]
fn a_lock_for_each_connection_of_python_is_no_finding() {
    let _stage = stage();
    let loaded = python("lock", &["each"], CLIENTS);
    expect_none("Python, a lock for each connection", loaded.server.pid(), "R24");
}

#[test]
#[ignore = "long"]
fn a_handler_of_python_that_sleeps_is_the_first_finding_with_its_place() {
    let _stage = stage();
    let loaded = python("sleep", &[], CLIENTS);
    expect_cause(
        "Python, a handler that sleeps",
        loaded.server.pid(),
        "R22",
        &["sleep at answer (sleep.py:"],
    );
}
