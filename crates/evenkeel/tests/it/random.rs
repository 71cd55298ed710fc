//! Random commands of all families, for tests of what passes them on or keeps them.

use evenkeel_testkit::differential::{Plan, Sent, commands};
use evenkeel_testkit::{Peer, Server};

/// Sends so many that the peer has, but for those that are left out by name, and does not look at the replies.
#[track_caller]
pub(crate) fn send_random(server: &Server, peer: Peer, seed: u64, count: usize, left_out: &[&str]) {
    let plan = Plan { seed, commands: count, oracle: peer, except: &["wire", "connection", "dumps"] };
    let mut clients = [server.connect(), server.connect()];
    for sent in commands(plan) {
        let Sent::Command(connection, args) = sent else { continue };
        let name = args.first().map(|name| String::from_utf8_lossy(name).to_uppercase());
        let is_told_of = server.program().peer().is_none() || !is_kept_from_replicas(&args);
        if is_told_of && name.is_some_and(|name| !left_out.contains(&name.as_str())) {
            clients[connection].send(&args).expect("the server reads");
            let _ = clients[connection].try_read();
        }
    }
    // The last of them may have flushed everything.
    assert!(!server.connect().run("SET written 1").is_error());
}

/// What Redis 7.0 and Valkey 9.1 do and neither log nor tell their replicas: a BITFIELD of which every part fails for its overflow
/// makes the key, or makes it longer, all the same.
fn is_kept_from_replicas(args: &[Vec<u8>]) -> bool {
    let mut words = args.iter();
    words.next().is_some_and(|name| name.eq_ignore_ascii_case(b"BITFIELD"))
        && words.any(|word| word.eq_ignore_ascii_case(b"FAIL"))
}
