//! Servers that follow each other over TLS, and that move keys to each other.

use std::time::{Duration, Instant};

use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Peer, Program};

use super::certs::Certs;
use super::{PATIENCE, Secure, start_secure_as};
use crate::following::{await_equal, await_link, follow, write};
use crate::program;

const ARGS: &[&str] =
    &["--tls-replication", "yes", "--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0"];

fn all() -> impl Iterator<Item = Program> {
    [Some(program()), Program::oracle(Peer::Redis)].into_iter().flatten()
}

#[test]
fn replicas_follow_over_tls() {
    let certs = Certs::new();
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    for (primary, replica) in all().flat_map(|primary| all().map(move |replica| (primary.clone(), replica))) {
        if primary.peer().is_some() && replica.peer().is_some() {
            continue;
        }
        let ours = if primary.peer().is_some() { &replica } else { &primary };
        let mut primary = start_secure_as(&primary, &certs, ARGS);
        let mut replica = start_secure_as(&replica, &certs, ARGS);
        assert!(ours.peer().is_none());
        write(&primary.server, Peer::Redis, seed, 1_500);
        let large = vec![b'x'; 20 << 20];
        primary.server.connect().call(&[b"SET", &b"large"[..], &large]);
        follow(&replica.server, primary.port);
        await_link(&replica.server);
        await_equal(&primary.server, &replica.server);
        write(&primary.server, Peer::Redis, seed + 1, 1_500);
        primary.server.connect().call(&[b"SET", &b"larger"[..], &[&large[..], &large].concat()]);
        await_equal(&primary.server, &replica.server);
        // Where a replica can be reached is told, too.
        let slave = primary.server.info("slave0");
        assert!(slave.contains(&format!("port={},state=online", replica.port)), "{slave}");
        // The link breaks, and goes on where it was.
        primary.server.connect().run("CLIENT KILL TYPE replica");
        primary.server.connect().run("SET after v");
        await_link(&replica.server);
        await_equal(&primary.server, &replica.server);
        assert_eq!(primary.server.info("sync_full"), "1");
        primary.server.assert_healthy();
        replica.server.assert_healthy();
    }
}

#[test]
fn a_replica_believes_only_whom_it_knows() {
    let (certs, others) = (Certs::new(), Certs::new());
    let primary = start_secure_as(&program(), &others, ARGS);
    let mut replica = start_secure_as(&program(), &certs, ARGS);
    follow(&replica.server, primary.port);
    await_line(&replica, "The TLS handshake with the master failed: invalid peer certificate: ");
    // Nor does it talk to a server without TLS, or one that wants no stranger.
    follow(&replica.server, primary.server.port());
    await_line(&replica, "The TLS handshake with the master failed: received corrupt message");
    assert_eq!(replica.server.info("master_link_status"), "down");
    let ca = format!("CONFIG SET tls-ca-cert-file {}", others.word("ca.crt"));
    assert_eq!(replica.server.connect().run(&ca).to_string(), "OK");
    follow(&replica.server, primary.port);
    await_line(&primary, "Error accepting a client connection: invalid peer certificate: ");
    let own = format!(
        "CONFIG SET tls-client-cert-file {} tls-client-key-file {}",
        others.word("client.crt"),
        others.word("client.key")
    );
    assert_eq!(replica.server.connect().run(&own).to_string(), "OK");
    await_link(&replica.server);
    replica.server.assert_healthy();
}

fn await_line(secure: &Secure, line: &str) {
    let until = Instant::now() + PATIENCE;
    while !secure.server.log().contains(line) {
        assert!(Instant::now() < until, "{line}: {}", secure.server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// As in Redis, it is `tls-cluster` that says how MIGRATE talks to others.
#[test]
fn keys_move_over_tls() {
    let certs = Certs::new();
    for (source, target) in all().flat_map(|source| all().map(move |target| (source.clone(), target))) {
        let source = start_secure_as(&source, &certs, &["--tls-cluster", "yes"]);
        let target = start_secure_as(&target, &certs, &[]);
        let (mut here, mut there) = (source.server.connect(), target.server.connect());
        let value = "v".repeat(300_000);
        for (key, value) in [("a", "1"), ("b", &value[..])] {
            here.call(&["SET", key, value]);
        }
        let mut migrate = |port: u16, rest: &str| {
            here.run(&format!("MIGRATE 127.0.0.1 {port} \"\" 0 2000 {rest} KEYS a b")).to_string()
        };
        assert_eq!(migrate(target.port, "COPY"), "OK");
        assert_eq!(there.run("STRLEN b").as_int(), Some(300_000));
        assert_eq!(migrate(target.port, "COPY REPLACE"), "OK", "over the connection that was kept");
        // To where no TLS is spoken.
        let refused = migrate(target.server.port(), "COPY REPLACE");
        assert_eq!(refused, "-IOERR error or timeout connecting to the client");
        source.server.connect().run("CONFIG SET tls-cluster no tls-replication yes");
        assert_eq!(migrate(target.server.port(), "REPLACE"), "OK");
        assert_eq!(source.server.connect().run("DBSIZE").as_int(), Some(0));
    }
}
