//! Servers that follow each other over TLS, and move keys between each other.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Program, Random, Reference};

use super::certs::Certs;
use super::{Secure, TIMEOUT, start_secure_as};
use crate::following::{await_equal, await_link, follow, write};
use crate::program;

const ARGS: &[&str] =
    &["--tls-replication", "yes", "--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0"];

fn all() -> impl Iterator<Item = Program> {
    [Some(program()), Program::oracle(Reference::Redis)].into_iter().flatten()
}

#[test]
fn replicas_follow_over_tls() {
    let certs = Certs::new();
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    for (primary, replica) in all().flat_map(|primary| all().map(move |replica| (primary.clone(), replica))) {
        if primary.reference().is_some() && replica.reference().is_some() {
            continue;
        }
        let ours = if primary.reference().is_some() { &replica } else { &primary };
        let mut primary = start_secure_as(&primary, &certs, ARGS);
        let mut replica = start_secure_as(&replica, &certs, ARGS);
        assert!(ours.reference().is_none());
        write(&primary.server, Reference::Redis, seed, 1_500);
        let large = vec![b'x'; 20 << 20];
        primary.server.connect().call(&[b"SET", &b"large"[..], &large]);
        follow(&replica.server, primary.port);
        await_link(&replica.server);
        await_equal(&primary.server, &replica.server);
        write(&primary.server, Reference::Redis, seed + 1, 1_500);
        primary.server.connect().call(&[b"SET", &b"larger"[..], &[&large[..], &large].concat()]);
        await_equal(&primary.server, &replica.server);
        // The replica's port is reported, too.
        let slave = primary.server.info("slave0");
        assert!(slave.contains(&format!("port={},state=online", replica.port)), "{slave}");
        // The link breaks, and resumes.
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
fn a_replica_verifies_its_primarys_certificate() {
    let (certs, others) = (Certs::new(), Certs::new());
    let primary = start_secure_as(&program(), &others, ARGS);
    let mut replica = start_secure_as(&program(), &certs, ARGS);
    follow(&replica.server, primary.port);
    await_line(&replica, "The TLS handshake with the master failed: invalid peer certificate: ");
    // Nor does it sync with a server without TLS, or a server that refuses its certificate.
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
    let until = Instant::now() + TIMEOUT;
    while !secure.server.log().contains(line) {
        assert!(Instant::now() < until, "{line}: {}", secure.server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// As in Redis, `tls-cluster` decides about MIGRATE's connections.
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
        // To a port without TLS.
        let refused = migrate(target.server.port(), "COPY REPLACE");
        assert_eq!(refused, "-IOERR error or timeout connecting to the client");
        source.server.connect().run("CONFIG SET tls-cluster no tls-replication yes");
        assert_eq!(migrate(target.server.port(), "REPLACE"), "OK");
        assert_eq!(source.server.connect().run("DBSIZE").as_int(), Some(0));
    }
}

/// A proxy to a port. It cuts each connection after a number of bytes to its client, in this order; later
/// connections live.
fn cutting(to: u16, cuts: Vec<usize>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        let mut cuts = cuts.into_iter();
        for here in listener.incoming().flatten() {
            let Ok(there) = TcpStream::connect(("127.0.0.1", to)) else { return };
            let cut = cuts.next().unwrap_or(usize::MAX);
            let (from, back) = (there.try_clone().expect("a handle"), here.try_clone().expect("a handle"));
            std::thread::spawn(move || forward(from, back, cut));
            std::thread::spawn(move || forward(here, there, usize::MAX));
        }
    });
    port
}

fn forward(mut from: TcpStream, mut to: TcpStream, mut left: usize) {
    let mut buffer = [0; 4096];
    while left > 0 {
        let room = left.min(buffer.len());
        match from.read(&mut buffer[..room]) {
            Ok(got @ 1..) if to.write_all(&buffer[..got]).is_ok() => left -= got,
            _ => break,
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// In the handshake, in the snapshot, in the stream, and inside a record.
#[test]
fn a_tls_link_survives_cuts_at_any_byte() {
    let certs = Certs::new();
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random::new(seed);
    let mut primary = start_secure_as(&program(), &certs, ARGS);
    let mut replica = start_secure_as(&program(), &certs, ARGS);
    write(&primary.server, Reference::Redis, seed, 500);
    let cuts = (0..10).map(|number| random.below([400, 4_000, 60_000][number % 3])).collect();
    follow(&replica.server, cutting(primary.port, cuts));
    for round in 1..=10 {
        write(&primary.server, Reference::Redis, seed + round, 200);
        std::thread::sleep(Duration::from_millis(200));
    }
    await_link(&replica.server);
    await_equal(&primary.server, &replica.server);
    assert_eq!(replica.server.info("master_commands_failed"), "0");
    primary.server.assert_healthy();
    replica.server.assert_healthy();
}
