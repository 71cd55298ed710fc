use std::time::{Duration, Instant};

use evenkeel_resp::value::Value;
use evenkeel_testkit::{Client, Program, Reference, Server, transcript};

use crate::testing::live::Live;
use crate::testing::{World, check};
use evenkeel_persist::replay::{self, Replayed};
use evenkeel_persist::rewrite;

#[test]
fn arguments() {
    check(
        "
        > WAIT x 0                 < -ERR value is not an integer or out of range
        > WAIT 1 x                 < -ERR timeout is not an integer or out of range
        > WAIT 1 -1                < -ERR timeout is negative
        > WAIT 0 0                 < :0
        > WAIT -1 0                < :0
        > WAIT 1                   < -ERR wrong number of arguments for 'wait' command
    ",
    );
}

#[test]
fn waitaof_checks_its_arguments() {
    let text = "
        > WAITAOF 2 0 0            < -ERR value is out of range, value must between 0 and 1
        > WAITAOF -1 0 0           < -ERR value is out of range, value must between 0 and 1
        > WAITAOF x 0 0            < -ERR value is not an integer or out of range
        > WAITAOF 0 -1 0           < -ERR value is out of range, must be positive
        > WAITAOF 0 x 0            < -ERR value is out of range, must be positive
        > WAITAOF 1 0 x            < -ERR timeout is not an integer or out of range
        > WAITAOF 0 0 -1           < -ERR timeout is negative
        > WAITAOF 1 0 0
        < -ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.
        > WAITAOF 0 0 0            < [:0, :0]
        > MULTI
        > WAIT 1 0                 < QUEUED
        > WAITAOF 0 1 0            < QUEUED
        > WAITAOF 1 0 0            < QUEUED
        > EXEC
        < [:0, [:0, :0], -ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.]
    ";
    World::new().check(text);
    if let Some(valkey) = Program::oracle(Reference::Valkey) {
        transcript::check(&Server::start(&valkey, &[]), text);
    }
}

#[test]
fn waitaof_is_refused_on_a_replica() {
    const WAIT: &str = "-ERR WAIT cannot be used with replica instances. Please also note that if a replica \
        is configured to be writable (which is not the default) writes to replicas are just local and are \
        not propagated.";
    const WAITAOF: &str = "-ERR WAITAOF cannot be used with replica instances. Please also note that writes \
        to replicas are just local and are not propagated.";
    let text = format!(
        "
        > WAIT x 0                 < {WAIT}
        > WAIT 0 0                 < {WAIT}
        > WAITAOF 2 0 0            < -ERR value is out of range, value must between 0 and 1
        > WAITAOF 0 x 0            < -ERR value is out of range, must be positive
        > WAITAOF 0 0 -1           < -ERR timeout is negative
        > WAITAOF 1 0 0            < {WAITAOF}
        > MULTI
        > WAIT 1 0                 < QUEUED
        > WAITAOF 0 0 0            < QUEUED
        > EXEC                     < [{WAIT}, {WAITAOF}]
    "
    );
    let mut world = World::new();
    world.server.replication.set_replica(true);
    world.check(&text);
    if let Some(valkey) = Program::oracle(Reference::Valkey) {
        transcript::check(&Server::start(&valkey, &["--replicaof", "127.0.0.1", "1"]), &text);
    }
}

/// A server with an append-only file.
fn with_log(fsync: &str) -> (Live, tempdir::Folder) {
    let folder = tempdir::Folder::new();
    let path = folder.0.to_str().expect("a plain name");
    let own = ["--dir", path, "--appendonly", "yes", "--appendfsync", fsync, "--enable-debug-command", "yes"];
    let live = Live::start(2, &own);
    let Replayed { directory, found, .. } = replay::directory(&live.server.persist).expect("it is empty");
    assert!(!found);
    rewrite::start_logging(&live.server.persist, directory, found).expect("a folder to write to");
    (live, folder)
}

mod tempdir {
    use std::path::PathBuf;

    pub(super) struct Folder(pub(super) PathBuf);

    impl Folder {
        pub(super) fn new() -> Folder {
            let name = format!("evenkeel-wait-{}", &evenkeel_runtime::random::random_hex()[..12]);
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir(&path).expect("a folder of one's own");
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

fn say(client: &mut Client, line: &str) {
    client.send(&evenkeel_testkit::words::split(line).expect("a command line")).expect("an open connection");
}

fn numbers(local: i64) -> Value {
    Value::Array(vec![Value::Int(local), Value::Int(0)])
}

#[test]
fn waitaof_waits_for_the_sync() {
    let (live, _folder) = with_log("no");
    let (mut client, mut other) = (live.connect(), live.connect());
    assert_eq!(client.run("WAITAOF 1 0 0"), numbers(1)); // nothing written
    assert_eq!(
        client.run("WAIT 1 9223372036854775807"),
        Value::Error(b"ERR timeout is out of range".to_vec())
    );
    client.run("SET k v");
    let began = Instant::now();
    assert_eq!(client.run("WAITAOF 1 0 30"), numbers(0));
    assert!(began.elapsed() >= Duration::from_millis(30));
    client.run("MULTI");
    client.run("WAITAOF 1 0 0");
    assert_eq!(client.run("EXEC"), Value::Array(vec![numbers(0)]));
    assert_eq!(other.run("WAITAOF 1 0 30"), numbers(0)); // it has written nothing, but another client has
    say(&mut client, "WAITAOF 1 0 0");
    live.await_blocked(1);
    other.run("CONFIG SET appendfsync everysec");
    assert_eq!(client.read(), numbers(1));
    live.await_blocked(0);
    live.stop();
}

#[test]
fn pipelined_writes_are_waited_for() {
    let (live, _folder) = with_log("always");
    let mut client = live.connect();
    for _ in 0..200 {
        say(&mut client, "INCR n");
        say(&mut client, "WAITAOF 1 0 0");
    }
    for number in 1..=200 {
        assert_eq!(client.read(), Value::Int(number));
        assert_eq!(client.read(), numbers(1));
    }
    live.stop();
}

#[test]
fn appendonly_no_and_client_unblock_end_waits() {
    let (live, _folder) = with_log("no");
    let (mut client, mut other) = (live.connect(), live.connect());
    let Value::Int(id) = client.run("CLIENT ID") else { panic!("a number") };
    client.run("SET k v");
    say(&mut client, "WAITAOF 1 0 0");
    live.await_blocked(1);
    assert_eq!(other.run(&format!("CLIENT UNBLOCK {id}")), Value::Int(1));
    assert_eq!(client.read(), numbers(0));
    say(&mut client, "WAITAOF 1 0 0");
    live.await_blocked(1);
    other.run(&format!("CLIENT UNBLOCK {id} ERROR"));
    assert!(client.read().to_string().contains("UNBLOCKED"));
    say(&mut client, "WAITAOF 1 1 0");
    live.await_blocked(1);
    other.run("CONFIG SET appendonly no");
    let said = client.read().to_string();
    assert!(said.contains("WAITAOF cannot be used"), "{said}");
    say(&mut client, "WAIT 1 0");
    live.await_blocked(1);
    other.run(&format!("CLIENT UNBLOCK {id}"));
    assert_eq!(client.read(), Value::Int(0));
    live.stop();
}

/// DEBUG LOADAOF: logged data is there afterwards, and logging goes on.
#[test]
fn debug_loadaof_reloads_the_data() {
    let (live, _folder) = with_log("everysec");
    let mut client = live.connect();
    for round in 1..=3 {
        assert_eq!(client.run("INCR n"), Value::Int(round));
        client.run("RPUSH l a b");
        client.run("PEXPIRE l 100000");
        assert_eq!(client.run("DEBUG LOADAOF"), Value::Simple(b"OK".to_vec()));
        assert_eq!(client.run("DBSIZE"), Value::Int(2));
        assert_eq!(client.run("LLEN l"), Value::Int(2 * round));
        assert!(matches!(client.run("PTTL l"), Value::Int(1..=100_000)));
        assert_eq!(client.run("WAITAOF 1 0 0"), numbers(1));
    }
    live.verify();
    live.stop();
}
