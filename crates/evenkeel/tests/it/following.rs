//! Servers that follow each other: Evenkeel, Redis and Valkey, over good links and bad. At the end a replica
//! has the data of its primary.

mod bad;
mod chain;
mod cuts;
mod from_references;
mod replica;

use std::time::{Duration, Instant};

use evenkeel_testkit::digest::{Digest, difference, difference_beyond_sum, digest, digest_values};
use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Reference, Server};

use crate::random::send_random;
use crate::wait_until;

/// Longest wait of these tests.
const TIMEOUT: Duration = Duration::from_secs(40);

/// Arguments of a foreign primary: the first sync is to begin at once.
const PRIMARY: &[&str] = &["--repl-diskless-sync-delay", "0", "--enable-debug-command", "yes"];

const REPLICA: &[&str] = &["--enable-debug-command", "yes"];

/// Not replicated, or without an equal digest on both servers.
pub(crate) const LEFT_OUT: &[&str] = &[
    "DEBUG",
    "CONFIG",
    "SHUTDOWN",
    "RESET",
    "CLIENT",
    "MONITOR",
    "SUBSCRIBE",
    "PSUBSCRIBE",
    "SAVE",
    "REPLICAOF",
];

/// A seed that a failing test prints.
fn seed() -> u64 {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    seed
}

#[track_caller]
pub(crate) fn follow(replica: &Server, port: u16) {
    let reply = replica.connect().run(&format!("REPLICAOF 127.0.0.1 {port}"));
    assert_eq!(reply.to_string(), "OK");
}

#[track_caller]
pub(crate) fn await_link(replica: &Server) {
    wait_until("the link stands", || replica.info("master_link_status") == "up");
}

/// Waits until the replica has all writes of the primary, and compares the two.
#[track_caller]
pub(crate) fn await_equal(primary: &Server, replica: &Server) {
    let (mut one, mut other) = (primary.connect(), replica.connect());
    let mut is_equal = || {
        // The primary may still remove expired keys.
        let [digest, its] = [&mut one, &mut other].map(|client| client.run("DEBUG DIGEST").to_string());
        let offsets = || [primary, replica].map(|server| server.info("master_repl_offset"));
        let [offset, acknowledged] = offsets();
        let has_reference = primary.program().reference().or(replica.program().reference()).is_some();
        !digest.starts_with('-') && digest == its && difference_beyond_sum(primary, replica).is_none()
            || has_reference
                && offset == acknowledged
                && contents(primary) == contents(replica)
                && offsets()[0] == offset
    };
    let until = Instant::now() + TIMEOUT;
    while !is_equal() {
        if Instant::now() > until {
            let [one, other] = [primary, replica].map(contents);
            let shown = difference(&one, &other).or_else(|| difference_beyond_sum(primary, replica));
            let sums = || difference(&digest_values(primary), &digest_values(replica));
            let difference = shown.or_else(sums);
            let offsets = [primary.info("master_repl_offset"), replica.info("master_repl_offset")];
            panic!(
                "offsets {offsets:?}: {}",
                difference.unwrap_or_else(|| "no difference that commands show".into())
            );
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A server's data, without the changes of consumer groups that Redis and Valkey do not replicate (an entry
/// was delivered once more).
fn contents(server: &Server) -> Digest {
    let digest = digest(&mut evenkeel_testkit::transcript::target(server));
    let without_groups = |text: String| match (text.starts_with("stream"), text.find("\"groups\"")) {
        (true, Some(groups)) => text[..groups].to_owned(),
        _ => text,
    };
    digest.into_iter().map(|(key, text)| (key, without_groups(text))).collect()
}

/// Random commands of all families that the reference server has.
pub(crate) fn write(server: &Server, reference: Reference, seed: u64, count: usize) {
    send_random(server, reference, seed, count, LEFT_OUT);
}
