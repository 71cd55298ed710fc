//! Random commands of all families, for tests of replication and persistence.

use evenkeel_testkit::differential::{Plan, Sent, commands};
use evenkeel_testkit::{Reference, Server};

/// Sends `count` commands that the reference server has, except the names in `left_out`; ignores the replies.
#[track_caller]
pub(crate) fn send_random(server: &Server, reference: Reference, seed: u64, count: usize, left_out: &[&str]) {
    let plan = Plan { seed, commands: count, oracle: reference, except: &["wire", "connection", "dumps"] };
    let mut clients = [server.connect(), server.connect()];
    for sent in commands(plan) {
        let Sent::Command(connection, args) = sent else { continue };
        let name = args.first().map(|name| String::from_utf8_lossy(name).to_uppercase());
        let is_replicated = server.program().reference().is_none() || !is_kept_from_replicas(&args);
        if is_replicated && name.is_some_and(|name| !left_out.contains(&name.as_str())) {
            clients[connection].send(&args).expect("the server reads");
            let _ = clients[connection].try_read();
        }
    }
    // The last command may have flushed all data.
    assert!(!server.connect().run("SET written 1").is_error());
}

/// A change that Redis 7.0 and Valkey 9.1 neither log nor replicate: a BITFIELD whose every part fails by
/// overflow still creates or extends the key.
fn is_kept_from_replicas(args: &[Vec<u8>]) -> bool {
    let mut words = args.iter();
    words.next().is_some_and(|name| name.eq_ignore_ascii_case(b"BITFIELD"))
        && words.any(|word| word.eq_ignore_ascii_case(b"FAIL"))
}
