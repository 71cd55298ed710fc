//! Dual-channel replication of Valkey. Evenkeel has one channel: a primary takes the capability for unknown,
//! and a replica does not announce it. Valkey then syncs over one channel on either side.

use evenkeel_testkit::{Program, Reference, Server};

use super::{PRIMARY, REPLICA, assert_same, attach, number, ok, primary, wait_until};

const DUAL: [&str; 2] = ["--dual-channel-replication-enabled", "yes"];

fn fill(server: &Server) {
    let mut client = server.connect();
    for number in 0..300 {
        ok(&mut client, &format!("SET key:{number} {number}"));
    }
    ok(&mut client, "SELECT 3");
    ok(&mut client, "HSET hash f v");
    ok(&mut client, "HPEXPIRE hash 100000000 FIELDS 1 f");
    ok(&mut client, "XADD stream * a 1");
}

/// A full sync, the stream behind it, and a partial resync after the loss of the connection.
#[track_caller]
fn follows(primary: &Server, replica: &Server) {
    fill(primary);
    attach(replica, primary);
    let mut client = primary.connect();
    ok(&mut client, "RPUSH list a b c");
    assert_same(primary, replica);
    let partial = number(primary, "sync_partial_ok");
    ok(&mut client, "CLIENT KILL TYPE replica");
    ok(&mut client, "RPUSH list d");
    wait_until("it comes again", || number(primary, "sync_partial_ok") == partial + 1);
    assert_same(primary, replica);
    assert_eq!(number(primary, "sync_full"), 1);
}

#[test]
fn a_valkey_replica_with_dual_channels_syncs_over_one() {
    let Some(program) = Program::oracle(Reference::Valkey) else { return };
    for set in ["yes", "no"] {
        let server = primary(&["--dual-channel-replication-enabled", set]);
        let replica = Server::start(&program, &[REPLICA, &DUAL].concat());
        follows(&server, &replica);
        let log = replica.log();
        assert!(!log.contains("Dual channel replication"), "{log}");
    }
}

#[test]
fn a_valkey_primary_with_dual_channels_syncs_over_one() {
    let Some(program) = Program::oracle(Reference::Valkey) else { return };
    let server = Server::start(&program, &[PRIMARY, &DUAL].concat());
    for set in ["yes", "no"] {
        let replica = primary(&["--dual-channel-replication-enabled", set]);
        let full = number(&server, "sync_full");
        if full == 0 {
            follows(&server, &replica);
        } else {
            attach(&replica, &server);
            assert_same(&server, &replica);
        }
    }
}
