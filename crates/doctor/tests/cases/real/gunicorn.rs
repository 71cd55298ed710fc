//! gunicorn with one synchronous worker.

use std::time::Duration;

use evenkeel_testkit::server::free_port;

use super::loads::{fetch, hesitant};
use super::{Helper, Service, SilentNames, Unreachable, expect, expect_cause, expect_none, has, write};
use crate::stage::{self, Place, stage};
use crate::{Folder, corpus};

const PROGRAM: &str = "/usr/bin/gunicorn";
const REST: Duration = Duration::from_millis(2);

/// Starts an application that does `work` for each request; `None`, with a message, if gunicorn is not
/// installed.
fn start(work: &str) -> Option<Service> {
    start_with(work, &[])
}

/// The same at real-time priority, for causes that are smaller than a busy machine's waits for a CPU.
fn start_first(work: &str) -> Option<Service> {
    start_at(stage::SERVER, &[], work, &[])
}

/// As `start`, with more arguments.
pub(super) fn start_with(work: &str, more: &[&str]) -> Option<Service> {
    start_at(stage::ALL, &[], work, more)
}

/// As `start_with`, with a command prefix.
fn start_at(place: Place, prefix: &[&str], work: &str, more: &[&str]) -> Option<Service> {
    if !has(PROGRAM) {
        return None;
    }
    let folder = Folder::new("gunicorn");
    let text = format!(
        "import fcntl, http.client, os, socket, sqlite3, subprocess, time\n\
         LOG = open({:?}, 'ab', buffering=0)\n\
         def application(environ, start_response):\n    {work}\n    \
         start_response('200 OK', [('Content-Length', '2')])\n    return [b'ok']\n",
        folder.file("orders.log")
    );
    write(&folder, "app.py", &text);
    let (home, port) = (folder.file(""), free_port());
    let bind = format!("127.0.0.1:{port}");
    let words = [PROGRAM, "--chdir", &home, "--worker-tmp-dir", &home, "--bind", &bind, "--timeout", "120"];
    let words = [prefix, &words[..], more, &["app:application"]].concat();
    Some(Service::start(place, &words, folder, port))
}

fn asks(origin: &corpus::Program) -> String {
    let port = origin.port();
    format!(
        "c = http.client.HTTPConnection('127.0.0.1', {port}); c.request('GET', '/'); c.getresponse().read(); \
         c.close()"
    )
}

#[test]
#[ignore = "long"]
fn a_slow_service_behind_the_handler_is_the_first_finding() {
    let _stage = stage();
    let origin = corpus::start("slow-origin", stage::ALL);
    let Some(gunicorn) = start(&asks(&origin)) else { return };
    let _clients = fetch(gunicorn.port, "/", 2, REST);
    let words = [&format!("127.0.0.1:{}", origin.port()), "(cases-"];
    expect_cause("gunicorn, a slow service", gunicorn.worker(), "R22", &words);
}

#[test]
#[ignore = "long"]
fn a_fast_service_behind_the_handler_is_no_finding() {
    let _stage = stage();
    let origin = corpus::start("origin", stage::ALL);
    let Some(gunicorn) = start(&asks(&origin)) else { return };
    let _clients = fetch(gunicorn.port, "/", 1, REST);
    expect_none("gunicorn, a fast service", gunicorn.worker(), "R22");
}

#[test]
#[ignore = "long"]
fn a_handler_that_sleeps_is_the_first_finding() {
    let _stage = stage();
    let Some(gunicorn) = start("time.sleep(0.1)") else { return };
    let _clients = fetch(gunicorn.port, "/", 1, REST);
    expect_cause(
        "gunicorn, a handler that sleeps",
        gunicorn.worker(),
        "R17|R22",
        &["clock_nanosleep|sleep at application (app.py:"],
    );
}

#[test]
#[ignore = "long"]
fn a_handler_that_does_not_sleep_is_no_finding() {
    let _stage = stage();
    let Some(gunicorn) = start("pass") else { return };
    let _clients = fetch(gunicorn.port, "/", 1, REST);
    expect_none("gunicorn, a handler that does not sleep", gunicorn.worker(), "R22");
}

#[test]
#[ignore = "long"]
fn behind_a_crowd_the_slow_service_is_still_the_first_finding() {
    let _stage = stage();
    let origin = corpus::start("slow-origin", stage::ALL);
    let Some(gunicorn) = start_with(&asks(&origin), &["--backlog", "5"]) else { return };
    let _clients = fetch(gunicorn.port, "/", 20, REST);
    expect("gunicorn, a slow service and a crowd", gunicorn.worker(), |seen| {
        super::names(seen, "R22", &[&format!("127.0.0.1:{}", origin.port())])
    });
}

const APPEND: &str = "LOG.write(b'order')";

#[test]
#[ignore = "long"]
fn a_sync_for_each_request_is_the_first_finding() {
    let _stage = stage();
    let Some(gunicorn) = start_first(&format!("{APPEND}; os.fsync(LOG.fileno())")) else { return };
    let _clients = fetch(gunicorn.port, "/", 2, Duration::ZERO);
    expect_cause("gunicorn, an fsync for each request", gunicorn.worker(), "R3", &["fsync", "orders.log"]);
}

#[test]
#[ignore = "long"]
fn without_a_sync_the_disk_is_no_finding() {
    let _stage = stage();
    let Some(gunicorn) = start_first(APPEND) else { return };
    let _clients = fetch(gunicorn.port, "/", 2, Duration::ZERO);
    expect_none("gunicorn, no fsync", gunicorn.worker(), "R3");
}

#[test]
#[ignore = "long"]
fn a_child_process_that_the_handler_waits_for_is_the_first_finding() {
    let _stage = stage();
    let Some(gunicorn) = start("subprocess.run(['sleep', '0.2'])") else { return };
    let _clients = fetch(gunicorn.port, "/", 2, REST);
    expect_cause(
        "gunicorn, subprocess.run",
        gunicorn.worker(),
        "R17|R22",
        &["wait4|application (app.py:", "sleep"],
    );
}

#[test]
#[ignore = "long"]
fn a_child_process_that_is_not_waited_for_is_no_finding() {
    let _stage = stage();
    let Some(gunicorn) = start("subprocess._cleanup(); subprocess.Popen(['sleep', '0.01'])") else { return };
    let _clients = fetch(gunicorn.port, "/", 1, Duration::from_millis(50));
    expect_none("gunicorn, subprocess.Popen", gunicorn.worker(), "R22");
}

#[test]
#[ignore = "long"]
fn a_silent_name_server_is_the_first_finding() {
    let _stage = stage();
    let Some(names) = SilentNames::start() else { return };
    let work = "\n    try: socket.getaddrinfo('orders.internal', 80)\n    except OSError: pass\n";
    let Some(gunicorn) = start_at(stage::ALL, &names.prefix(), work, &[]) else { return };
    let _clients = fetch(gunicorn.port, "/", 2, REST);
    let words = ["name server", SilentNames::ADDRESS];
    expect_cause("gunicorn, a silent name server", gunicorn.worker(), "R22", &words);
}

#[test]
#[ignore = "long"]
fn a_name_that_needs_no_name_server_is_no_finding() {
    let _stage = stage();
    let Some(gunicorn) = start("socket.getaddrinfo('localhost', 80)") else { return };
    let _clients = fetch(gunicorn.port, "/", 2, REST);
    expect_none("gunicorn, a name of /etc/hosts", gunicorn.worker(), "R22");
}

/// A handler that takes a lock file, as PHP does for a session; and a process that has the lock most of the
/// time.
fn with_lock_file(is_taken: bool) -> Option<(Service, Option<Helper>, Folder)> {
    let folder = Folder::new("gunicorn-lock");
    let path = write(&folder, "session.lock", "");
    let work = format!("f = open('{path}'); fcntl.flock(f, fcntl.LOCK_EX); f.close()");
    let take = ["bash", "-c", "while :; do flock $0 sleep 0.2; done", &path];
    let other = is_taken.then(|| Helper::start(stage::ALL, &take));
    let gunicorn = start(&work)?;
    Some((gunicorn, other, folder))
}

#[test]
#[ignore = "long"]
fn a_lock_file_of_another_process_is_the_first_finding() {
    let _stage = stage();
    let Some((gunicorn, _other, _folder)) = with_lock_file(true) else { return };
    let _clients = fetch(gunicorn.port, "/", 2, REST);
    let words = ["flock", "session.lock"];
    expect_cause("gunicorn, a lock file is taken", gunicorn.worker(), "R17|R26", &words);
}

#[test]
#[ignore = "long"]
fn a_lock_file_of_its_own_is_no_finding() {
    let _stage = stage();
    let Some((gunicorn, _none, _folder)) = with_lock_file(false) else { return };
    let _clients = fetch(gunicorn.port, "/", 2, REST);
    expect("gunicorn, a lock file of its own", gunicorn.worker(), |seen| {
        !seen.titles().iter().any(|title| title.contains("flock"))
    });
}

/// A handler that writes to a database of SQLite, which another process may lock most of the time.
fn with_database(is_locked: bool) -> Option<(Service, Option<Helper>, Folder)> {
    const LOCKER: &str = "import sqlite3, sys, time
c = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
while True:
    c.execute('begin immediate'); time.sleep(0.3); c.execute('commit')
";
    let folder = Folder::new("gunicorn-database");
    let (path, locker) = (folder.file("orders.db"), write(&folder, "locker.py", LOCKER));
    let work = format!(
        "c = sqlite3.connect('{path}', timeout=60); c.execute('pragma synchronous = off'); \
         c.execute('create table if not exists t (a)'); c.execute('insert into t values (1)'); c.commit(); \
         c.close()"
    );
    let other = is_locked.then(|| Helper::start(stage::ALL, &["python3", &locker, &path]));
    Some((start(&work)?, other, folder))
}

#[test]
#[ignore = "long"]
fn a_locked_database_is_the_first_finding() {
    let _stage = stage();
    let Some((gunicorn, _other, _folder)) = with_database(true) else { return };
    let _clients = fetch(gunicorn.port, "/", 2, REST);
    let words = ["nanosleep|sleep at", "sqlite|orders.db|application (app.py:"];
    expect_cause("gunicorn, a locked SQLite database", gunicorn.worker(), "R17|R22", &words);
}

#[test]
#[ignore = "long"]
fn a_database_of_its_own_is_no_finding() {
    let _stage = stage();
    let Some((gunicorn, _none, _folder)) = with_database(false) else { return };
    let _clients = fetch(gunicorn.port, "/", 1, REST);
    expect_none("gunicorn, an SQLite database of its own", gunicorn.worker(), "R22");
}

#[test]
#[ignore = "long"]
fn a_client_that_sends_half_a_request_is_the_first_finding() {
    let _stage = stage();
    let Some(gunicorn) = start("pass") else { return };
    let (_slow, address) = hesitant(gunicorn.port);
    let _clients = fetch(gunicorn.port, "/", 4, REST);
    let case = "gunicorn, a client sends half a request";
    expect_cause(case, gunicorn.worker(), "R10|R17|R22", &[&address]);
}

#[test]
#[ignore = "long"]
fn a_service_that_accepts_no_connections_is_the_first_finding() {
    let _stage = stage();
    let service = Unreachable::start();
    let port = service.port();
    let work = format!(
        "\n    try: socket.create_connection(('127.0.0.1', {port}), timeout=2)\n    except OSError: pass\n"
    );
    let Some(gunicorn) = start(&work) else { return };
    let _clients = fetch(gunicorn.port, "/", 2, REST);
    let words = [&format!("127.0.0.1:{port}")];
    expect_cause("gunicorn, no connection to a service", gunicorn.worker(), "R22", &[words[0]]);
}
