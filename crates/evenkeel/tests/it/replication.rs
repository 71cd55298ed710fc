//! Several servers with the same data: Evenkeel, Redis and Valkey, as primaries and as replicas.

mod attached;
mod dual_channel;
mod failover;
mod maintenance;
mod resumed;
mod safety;
mod sentinel;
mod shared;
mod wire;

use std::time::{Duration, Instant};

use evenkeel_testkit::digest::{difference, difference_beyond_sum, digest};
use evenkeel_testkit::transcript::target;
use evenkeel_testkit::{Client, Program, Reference, Server};

use crate::{start, wait_until};

/// Full syncs begin at once.
const PRIMARY: &[&str] = &["--repl-diskless-sync-delay", "0", "--enable-debug-command", "yes"];

/// A reference server, as a replica, must allow DEBUG to its clients.
const REPLICA: &[&str] = &["--enable-debug-command", "yes"];

fn primary(args: &[&str]) -> Server {
    start(&[PRIMARY, args].concat())
}

/// The available reference servers, as replicas.
fn references() -> Vec<Server> {
    let found = [Reference::Redis, Reference::Valkey].into_iter().filter_map(Program::oracle);
    found.map(|program| Server::start(&program, REPLICA)).collect()
}

/// A replica of each make, Evenkeel included.
fn replicas() -> Vec<Server> {
    references().into_iter().chain([primary(&[])]).collect()
}

/// Makes a server follow another server, and waits for the link.
#[track_caller]
fn attach(replica: &Server, primary: &Server) {
    let reply = replica.connect().run(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    assert!(!reply.is_error(), "{reply}");
    await_link(replica);
}

#[track_caller]
fn await_link(replica: &Server) {
    wait_until("the link is up", || replica.info("master_link_status") == "up");
}

/// Waits until a replica has the whole stream, which grows by pings alone.
#[track_caller]
fn await_caught_up(primary: &Server, replica: &Server) {
    wait_until("the replica has all", || {
        let (wanted, has) = (primary.info("master_repl_offset"), replica.info("slave_repl_offset"));
        wanted == has && wanted == primary.info("master_repl_offset")
    });
}

/// Checks that a replica has its primary's data. The reference servers have other digests of some types;
/// their data are compared key by key.
#[track_caller]
fn assert_same(primary: &Server, replica: &Server) {
    await_caught_up(primary, replica);
    let sum = |server: &Server| server.connect().run("DEBUG DIGEST").to_string();
    let difference = || difference(&digest(&mut target(primary)), &digest(&mut target(replica)));
    let is_ours = |server: &Server| server.program().reference().is_none();
    let by_sum = is_ours(primary) && is_ours(replica);
    let began = Instant::now();
    // Expired keys are removed on both sides, a moment apart.
    let is_same = || match by_sum {
        true => sum(primary) == sum(replica) && difference_beyond_sum(primary, replica).is_none(),
        false => difference().is_none(),
    };
    while !is_same() {
        if began.elapsed() > Duration::from_secs(10) {
            let found = difference().unwrap_or_else(|| "nothing that commands tell".into());
            panic!("the replica {} differs: {found}", replica.program().path().display());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn number(server: &Server, field: &str) -> u64 {
    server.info(field).parse().expect("a number")
}

#[track_caller]
fn ok(client: &mut Client, line: &str) {
    let reply = client.run(line);
    assert!(!reply.is_error(), "{line}: {reply}");
}

/// Stops a process with SIGSTOP.
#[track_caller]
/// Stops a server, and waits until all of its threads have stopped: on busy cores that takes a while.
pub(crate) fn freeze(server: &Server) {
    server.signal(19); // SIGSTOP
    let tasks = format!("/proc/{}/task", server.pid());
    let is_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat"));
        stat.is_ok_and(|line| line.contains(") T "))
    };
    wait_until("it has stopped", || {
        std::fs::read_dir(&tasks).is_ok_and(|tasks| tasks.flatten().all(is_stopped))
    });
}

pub(crate) fn thaw(server: &Server) {
    server.signal(18); // SIGCONT
}
