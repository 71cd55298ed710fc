//! Replicas of replicas, and the remaining replicas after a promotion.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use evenkeel_testkit::{Program, Reference, Server};

use super::{PRIMARY, REPLICA, await_equal, await_link, follow, seed, wait_until, write};
use crate::{Ends, program};

fn evenkeel(args: &[&str]) -> Server {
    Server::start(&program(), &[PRIMARY, args].concat())
}

fn number(server: &Server, field: &str) -> u64 {
    server.info(field).parse().expect("a number")
}

/// Values of all types without expiry: a reference server as a replica treats a source as gone if it expires
/// on the way.
fn fill(server: &Server, round: u64) {
    let mut client = server.connect();
    for n in 0..100 {
        client.run(&format!("SELECT {}", n % 3));
        for command in [
            "SET s{} v",
            "RPUSH l{} a b c",
            "SADD set{} x y",
            "ZADD z{} 1 a 2 b",
            "HSET h{} f v",
            "XADD x{} 1-1 f v",
        ] {
            client.run(&command.replace("{}", &format!("{}", n + 50 * round)));
        }
        client.run("MULTI");
        client.run("INCRBYFLOAT float 0.1");
        client.run("SPOP set1");
        client.run(&format!("SETRANGE long {} {}", n * 1000, "y".repeat(900)));
        client.run("EXEC");
    }
    client.run("SWAPDB 0 1");
}

/// A chain of servers: all have equal data and equal offsets.
fn chain(first: &Program, middle: &Program, last: &Program) {
    let mut servers: Vec<Server> = [first, middle, last].map(|one| Server::start(one, PRIMARY)).into();
    fill(&servers[0], 0);
    follow(&servers[1], servers[0].port());
    await_link(&servers[1]);
    follow(&servers[2], servers[1].port());
    await_link(&servers[2]);
    for round in 1..4 {
        fill(&servers[0], round);
        await_equal(&servers[0], &servers[1]);
        await_equal(&servers[1], &servers[2]);
        assert_eq!(servers[0].info("master_replid"), servers[2].info("master_replid"));
        wait_until("offsets agree", || {
            number(&servers[0], "master_repl_offset") == number(&servers[2], "master_repl_offset")
        });
    }
    servers.iter_mut().for_each(Server::assert_healthy);
}

#[test]
fn a_chain_of_evenkeel_servers() {
    chain(&program(), &program(), &program());
}

#[test]
fn chains_of_redis_and_evenkeel() {
    if let Some(redis) = Program::oracle(Reference::Redis) {
        chain(&redis, &program(), &redis);
        chain(&program(), &redis, &program());
    }
}

/// The primary is lost. A replica is promoted, and the other replica follows it without a full sync.
#[test]
fn replicas_follow_a_promoted_replica_without_a_full_sync() {
    let seed = seed();
    let mut primary = evenkeel(&[]);
    let (mut one, mut other) = (evenkeel(&[]), evenkeel(&[]));
    for replica in [&one, &other] {
        follow(replica, primary.port());
        await_link(replica);
    }
    write(&primary, Reference::Redis, seed, 500);
    await_equal(&primary, &one);
    await_equal(&primary, &other);
    primary.kill();
    assert_eq!(one.connect().run("REPLICAOF NO ONE").to_string(), "OK");
    write(&one, Reference::Redis, seed + 1, 300);
    follow(&other, one.port());
    await_link(&other);
    await_equal(&one, &other);
    assert_eq!(
        (number(&other, "master_partial_syncs"), number(&other, "master_full_syncs")),
        (1, 1),
        "{}\n{}",
        other.log(),
        one.log()
    );
    // The lost primary comes back without data, and gets a full sync.
    primary.start_again();
    follow(&primary, one.port());
    await_link(&primary);
    write(&one, Reference::Redis, seed + 2, 300);
    await_equal(&one, &primary);
    await_equal(&one, &other);
    [&mut primary, &mut one, &mut other].into_iter().for_each(Server::assert_healthy);
}

/// Roles are exchanged repeatedly, without loss and without a full sync: there are no writes during an
/// exchange.
#[test]
fn roles_are_exchanged() {
    let seed = seed();
    let mut pair = [evenkeel(&[]), evenkeel(&[])];
    follow(&pair[1], pair[0].port());
    await_link(&pair[1]);
    for round in 0..6 {
        let (primary, replica) = (round % 2, (round + 1) % 2);
        write(&pair[primary], Reference::Redis, seed + round as u64, 200);
        await_equal(&pair[primary], &pair[replica]);
        wait_until("all of it is there", || {
            number(&pair[primary], "master_repl_offset") == number(&pair[replica], "master_repl_offset")
        });
        assert_eq!(pair[replica].connect().run("REPLICAOF NO ONE").to_string(), "OK");
        follow(&pair[primary], pair[replica].port());
        await_link(&pair[primary]);
        await_equal(&pair[replica], &pair[primary]);
        assert_eq!(
            number(&pair[primary], "master_full_syncs"),
            u64::from(primary == 1),
            "{}",
            pair[primary].log()
        );
    }
    pair.iter_mut().for_each(Server::assert_healthy);
}

/// Writes of the former primary that never reached the replica are not part of the continued history.
#[test]
fn writes_that_only_a_lost_primary_had_are_dropped() {
    let (primary, replica) = (evenkeel(&[]), evenkeel(&[]));
    follow(&replica, primary.port());
    await_link(&replica);
    primary.connect().run("SET k v");
    await_equal(&primary, &replica);
    replica.connect().run("REPLICAOF NO ONE");
    primary.connect().run("SET only here");
    replica.connect().run("SET k w");
    follow(&primary, replica.port());
    await_link(&primary);
    await_equal(&replica, &primary);
    assert_eq!(primary.connect().run("EXISTS only").as_int(), Some(0));
}

/// The middle server of a chain gets another data set: so does its replica.
#[test]
fn a_new_data_set_passes_down_the_chain() {
    let (first, second, middle, last) = (evenkeel(&[]), evenkeel(&[]), evenkeel(&[]), evenkeel(&[]));
    first.connect().run("SET of first");
    second.connect().run("SET of second");
    follow(&middle, first.port());
    await_link(&middle);
    follow(&last, middle.port());
    await_link(&last);
    await_equal(&first, &last);
    for (from, way) in [(&second, "disabled"), (&first, "swapdb")] {
        middle.connect().run(&format!("CONFIG SET repl-diskless-load {way}"));
        follow(&middle, from.port());
        wait_until("it is the other data set", || {
            last.connect().run("GET of").to_string() == from.connect().run("GET of").to_string()
        });
        from.connect().run("INCR counter");
        await_link(&middle);
        await_equal(from, &middle);
        await_equal(from, &last);
    }
}

/// While its own link is down, a replica accepts no replica.
#[test]
fn a_replica_without_its_link_accepts_no_replica() {
    let replica = Server::start(&program(), REPLICA);
    follow(&replica, evenkeel_testkit::server::free_port());
    let mut client = replica.connect();
    for asked in ["PSYNC ? -1", "SYNC"] {
        assert_eq!(
            client.run(asked).to_string(),
            "-NOMASTERLINK Can't SYNC while not connected with my master"
        );
    }
}

/// A replica that connects and disconnects repeatedly makes the replication thread start each time.
#[test]
fn a_flapping_replica_does_not_stop_replication() {
    let (first, middle) = (evenkeel(&["--repl-backlog-ttl", "1"]), evenkeel(&["--repl-backlog-ttl", "1"]));
    follow(&middle, first.port());
    await_link(&middle);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = first.connect();
            while !ends.load(Relaxed) {
                writer.run("INCR n");
            }
        });
        let _ends = Ends(&ends);
        for _ in 0..150 {
            let mut guest = TcpStream::connect(("127.0.0.1", middle.port())).expect("it listens");
            guest.write_all(b"PSYNC ? -1\r\n").expect("it reads");
            // Empty lines keep the link alive until there is an answer.
            let mut lines = BufReader::new(guest).lines().map(|line| line.expect("an answer"));
            let answer = lines.find(|line| !line.trim().is_empty()).expect("an answer");
            assert!(answer.starts_with("+FULLRESYNC"), "{answer}");
            drop(lines);
            wait_until("it is gone", || number(&middle, "connected_slaves") == 0);
        }
    });
    await_equal(&first, &middle);
}
