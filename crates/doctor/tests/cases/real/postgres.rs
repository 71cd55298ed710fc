//! PostgreSQL: the process of one session is diagnosed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use evenkeel_testkit::server::free_port;

use super::loads::forget;
use super::{Helper, NOBODY, Service, expect, expect_cause, expect_none, succeed, write};
use crate::Folder;
use crate::stage::{self, Seen, stage};

/// Settings of every case.
const SETTINGS: &[&str] = &[
    "-c",
    "shared_buffers=16MB",
    "-c",
    "autovacuum=off",
    "-c",
    "jit=off",
    "-c",
    "log_min_messages=panic",
    "-c",
    "log_checkpoints=off",
];
const TABLE: &str = "create table accounts as select i as id, 0 as total, repeat('x', 300) as note from";

struct Postgres {
    service: Service,
    programs: String,
}

impl Postgres {
    /// Starts a new cluster with a table of `rows`; `None`, with a message, if PostgreSQL is not installed.
    fn start(rows: usize, settings: &[&str]) -> Option<Postgres> {
        let Some(programs) = programs() else {
            println!("left out: scripts/setup corpus installs postgresql");
            return None;
        };
        let folder = Folder::new("postgres");
        write(&folder, "script", "");
        let user: &[&str] = if is_root() { &NOBODY } else { &[] };
        let (data, socket, port) = (folder.file("data"), folder.file(""), free_port());
        let initdb = format!("{programs}/initdb");
        let words = [&initdb, "-D", &data, "-U", "postgres", "-A", "trust", "--no-sync", "--locale=C"];
        succeed(&[&["setpriv"], user, &words[..]].concat());
        let (program, port_word) = (format!("{programs}/postgres"), port.to_string());
        let words = [&program, "-D", &data, "-h", "127.0.0.1", "-p", &port_word, "-k", &socket];
        let words = [&words[..], SETTINGS, settings].concat();
        let service = Service::start_as(stage::ALL, user, &words, folder, port);
        let postgres = Postgres { service, programs };
        stage::wait_for("PostgreSQL answers", || postgres.session().ask("select 1") == "1");
        postgres.session().ask(&format!("{TABLE} generate_series(1, {rows}) as i; checkpoint; select 1"));
        Some(postgres)
    }

    fn session(&self) -> Session {
        let port = self.service.port.to_string();
        let mut child = Command::new("psql")
            .args(["-X", "-A", "-t", "-q", "-h", "127.0.0.1", "-U", "postgres", "-p", &port, "postgres"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("scripts/setup installs psql");
        let out = BufReader::new(child.stdout.take().expect("it was asked for"));
        Session { input: child.stdin.take(), child, out }
    }

    /// Starts a client that repeats a statement for a minute, and returns its process on the server.
    fn repeat(&self, statement: &str) -> (Helper, u32) {
        self.repeat_at("127.0.0.1", "1", statement)
    }

    /// As `repeat`, at an address or the folder of its Unix socket, in a number of sessions.
    fn repeat_at(&self, host: &str, sessions: &str, statement: &str) -> (Helper, u32) {
        let script = write(&self.service.folder, "script", statement);
        let (program, port) = (format!("{}/pgbench", self.programs), self.service.port.to_string());
        let words = [
            &program, "-n", "-f", &script, "-T", "60", "-c", sessions, "-h", host, "-U", "postgres", "-p",
            &port,
        ];
        let client = Helper::start(stage::ALL, &[&words[..], &["postgres"]].concat());
        let mut pid = 0;
        let question =
            "select coalesce(max(pid), 0) from pg_stat_activity where application_name = 'pgbench'";
        stage::wait_for("the client has a session", || {
            pid = self.session().ask(question).parse().unwrap_or(0);
            pid > 0
        });
        (client, pid)
    }
}

fn is_root() -> bool {
    // SAFETY: it only reads.
    unsafe { libc::geteuid() == 0 }
}

/// Returns the folder of the newest version's programs.
fn programs() -> Option<String> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let folders = versions.map(|version| version.path().join("bin"));
    let newest = folders.filter(|folder| folder.join("postgres").exists()).max()?;
    Some(newest.to_str()?.to_string())
}

/// A session of psql, ended on drop.
struct Session {
    child: Child,
    input: Option<ChildStdin>,
    out: BufReader<ChildStdout>,
}

impl Session {
    /// Runs statements, of which one must reply with a line, and returns that line.
    fn ask(&mut self, statements: &str) -> String {
        let mut line = String::new();
        let _ = writeln!(self.input.as_mut().expect("until drop"), "{statements};");
        let _ = self.out.read_line(&mut line);
        line.trim().to_string()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A session that waits for something that no call names may not be called idle, nor without work.
fn is_waiting(seen: &Seen) -> bool {
    let first = seen.rules().first().is_some_and(|rule| rule == "R22");
    seen.verdict() == "inconclusive" || seen.verdict() == "found" && first
}

#[test]
#[ignore = "long"]
fn a_session_that_waits_for_the_lock_of_a_row_is_not_idle() {
    let _stage = stage();
    let Some(postgres) = Postgres::start(100, &[]) else { return };
    let mut other = postgres.session();
    let locked = other.ask("begin; update accounts set total = 1 where id = 1; select 'locked'");
    assert_eq!(locked, "locked");
    let (_client, pid) = postgres.repeat("update accounts set total = total + 1 where id = 1;");
    expect("PostgreSQL, another session has the row", pid, is_waiting);
}

#[test]
#[ignore = "long"]
fn a_session_with_a_client_on_a_unix_socket_that_waits_for_a_lock_is_not_idle() {
    let _stage = stage();
    let Some(postgres) = Postgres::start(100, &[]) else { return };
    let mut other = postgres.session();
    other.ask("begin; update accounts set total = 1 where id = 1; select 'locked'");
    let folder = postgres.service.folder.file("");
    let (_client, pid) = postgres.repeat_at(&folder, "1", "update accounts set total = 0 where id = 1;");
    expect("PostgreSQL, a lock, and a Unix socket", pid, is_waiting);
}

#[test]
#[ignore = "long"]
fn a_session_that_gets_its_locks_does_not_wait() {
    let _stage = stage();
    let Some(postgres) = Postgres::start(100, &["-c", "synchronous_commit=off"]) else { return };
    let (_client, pid) = postgres.repeat("update accounts set total = total + 1 where id = 1;");
    expect_none("PostgreSQL, no other session", pid, "R22");
}

#[test]
#[ignore = "long"]
fn a_session_that_sleeps_in_its_statement_is_not_idle() {
    let _stage = stage();
    let Some(postgres) = Postgres::start(100, &[]) else { return };
    let (_client, pid) = postgres.repeat("select pg_sleep(0.3);");
    expect("PostgreSQL, pg_sleep", pid, is_waiting);
}

#[test]
#[ignore = "long"]
fn a_session_without_statements_is_idle() {
    let _stage = stage();
    let Some(postgres) = Postgres::start(100, &[]) else { return };
    let mut session = postgres.session();
    let pid = session.ask("select pg_backend_pid()").parse().expect("a number");
    expect("PostgreSQL, a session without statements", pid, |seen| seen.verdict() == "idle");
}

const INSERT: &str = "insert into accounts values (7, 7, 'new');";

#[test]
#[ignore = "long"]
fn a_sync_at_each_commit_is_the_first_finding() {
    let _stage = stage();
    let Some(postgres) = Postgres::start(100, &["-c", "wal_sync_method=fdatasync"]) else { return };
    let (_client, pid) = postgres.repeat(INSERT);
    expect_cause("PostgreSQL, a commit for each row", pid, "R3", &["fdatasync", "0000000100000"]);
}

#[test]
#[ignore = "long"]
fn sessions_that_commit_at_once_wait_for_the_log() {
    let _stage = stage();
    let Some(postgres) = Postgres::start(100, &["-c", "wal_sync_method=fdatasync"]) else { return };
    let (_client, pid) = postgres.repeat_at("127.0.0.1", "3", INSERT);
    let words = ["fdatasync|XLogFlush|LWLock"];
    expect_cause("PostgreSQL, three sessions that commit", pid, "R3|R6|R22", &words);
}

#[test]
#[ignore = "long"]
fn without_a_sync_at_commit_the_disk_is_no_finding() {
    let _stage = stage();
    let Some(postgres) = Postgres::start(100, &["-c", "synchronous_commit=off"]) else { return };
    let (_client, pid) = postgres.repeat(INSERT);
    expect_none("PostgreSQL, commits without a sync", pid, "R3");
}

const SCAN: &str = "set max_parallel_workers_per_gather = 0; select sum(total) from accounts;";
const ROWS: usize = 300_000;

#[test]
#[ignore = "long"]
fn a_scan_of_a_table_that_is_not_in_memory_is_the_first_finding() {
    let _stage = stage();
    let Some(postgres) = Postgres::start(ROWS, &[]) else { return };
    let path = postgres.session().ask("select pg_relation_filepath('accounts')");
    let name = path.rsplit('/').next().expect("a path").to_string();
    let table = postgres.service.folder.file(&format!("data/{path}"));
    let _forget = forget(&table);
    let (_client, pid) = postgres.repeat(SCAN);
    expect_cause("PostgreSQL, a scan from the disk", pid, "R16", &[&name]);
}

#[test]
#[ignore = "long"]
fn a_scan_of_a_table_in_memory_does_not_wait_for_the_disk() {
    let _stage = stage();
    let Some(postgres) = Postgres::start(ROWS, &[]) else { return };
    let (_client, pid) = postgres.repeat(SCAN);
    expect_none("PostgreSQL, a scan in memory", pid, "R16");
}

#[test]
#[ignore = "long"]
fn a_sort_is_the_first_finding() {
    let _stage = stage();
    let Some(postgres) = Postgres::start(ROWS, &["-c", "work_mem=200MB"]) else { return };
    let sort = "select id from accounts order by (id::bigint * 7919 % 300007)::text offset 299999;";
    let (_client, pid) = postgres.repeat(sort);
    expect_cause("PostgreSQL, a sort", pid, "R25", &["Sorting takes"]);
}

#[test]
#[ignore = "long"]
fn short_statements_are_no_sort() {
    let _stage = stage();
    let Some(postgres) = Postgres::start(100, &[]) else { return };
    let (_client, pid) = postgres.repeat("select 1;");
    expect("PostgreSQL, short statements", pid, |seen| {
        let wrong = ["sort", "connections that it made"]; // its client made the connection
        !seen.titles().iter().any(|title| wrong.iter().any(|word| title.contains(word)))
    });
}
