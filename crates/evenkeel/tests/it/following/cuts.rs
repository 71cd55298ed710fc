//! A link that breaks off at any byte, hundreds of times.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

use evenkeel_testkit::{Peer, Program, Random, Server};

use super::{PRIMARY, REPLICA, await_equal, await_link, follow, seed, wait_until, write};
use crate::program;

/// Stands between a replica and its primary, and cuts each connection after some bytes, until it is told to stop that.
struct Scissors {
    port: u16,
    cuts: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
}

impl Scissors {
    /// `bytes_max`: as many bytes of the primary pass at most.
    fn before(primary: u16, seed: u64, bytes_max: usize) -> Scissors {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (cuts, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, stop) = (cuts.clone(), ends.clone());
        std::thread::spawn(move || {
            let mut random = Random::new(seed);
            for replica in listener.incoming().flatten() {
                let most = if random.chance(20) { 400 } else { bytes_max };
                let allowed = 1 + random.below(most);
                let (counted, stop) = (counted.clone(), stop.clone());
                std::thread::spawn(move || relay(replica, primary, allowed, &counted, &stop));
            }
        });
        Scissors { port, cuts, ends }
    }
}

fn relay(mut replica: TcpStream, primary: u16, mut allowed: usize, cuts: &AtomicUsize, ends: &AtomicBool) {
    let Ok(mut primary) = TcpStream::connect(("127.0.0.1", primary)) else { return };
    let (mut back_from, mut back_to) =
        (replica.try_clone().expect("a handle"), primary.try_clone().expect("a handle"));
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut back_from, &mut back_to);
        let _ = back_to.shutdown(Shutdown::Both);
    });
    let mut piece = vec![0; 8192];
    while let Ok(got @ 1..) = primary.read(&mut piece) {
        let len = if ends.load(Relaxed) { got } else { got.min(allowed) };
        allowed -= len.min(allowed);
        if replica.write_all(&piece[..len]).is_err() || len < got {
            cuts.fetch_add(1, Relaxed);
            break;
        }
    }
    for stream in [&replica, &primary] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn survives_cuts(peer: Peer, way: &str, wanted: usize) {
    let Some(program_of_peer) = Program::oracle(peer) else { return };
    let backlog = ["--repl-backlog-size", "32mb"];
    let primary = Server::start(&program_of_peer, &[PRIMARY, &backlog].concat());
    let mut replica = Server::start(&program(), &[REPLICA, &["--repl-diskless-load", way]].concat());
    let seed = seed();
    let scissors = Scissors::before(primary.port(), seed, 60_000);
    write(&primary, peer, seed, 300);
    follow(&replica, scissors.port);
    let mut round = 0;
    while scissors.cuts.load(Relaxed) < wanted {
        round += 1;
        write(&primary, peer, seed + round, 300);
        // Large values, so that cuts come soon, and transactions, which must come whole.
        let mut client = primary.connect();
        for number in 0..40 {
            client.call(&[
                "SETRANGE",
                &format!("large:{number}"),
                &(number * 100).to_string(),
                &"x".repeat(2_000),
            ]);
            client.run("MULTI");
            client.run("INCR transactions");
            client.run(&format!("APPEND log {number},"));
            client.run("EXEC");
        }
    }
    scissors.ends.store(true, Relaxed);
    await_link(&replica);
    await_equal(&primary, &replica);
    let number = |field: &str| replica.info(field).parse::<usize>().expect("a number");
    let (partial, full) = (number("master_partial_syncs"), number("master_full_syncs"));
    println!("{} cuts: {partial} partial syncs, {full} full ones", scissors.cuts.load(Relaxed));
    assert!(partial > 10 * full, "{partial} partial syncs, {full} full ones");
    assert_eq!(replica.info("master_commands_failed"), "0");
    replica.assert_healthy();
}

#[test]
fn a_stream_of_redis_is_cut_at_any_byte() {
    survives_cuts(Peer::Redis, "disabled", 300);
}

#[test]
fn a_stream_of_valkey_is_cut_at_any_byte() {
    survives_cuts(Peer::Valkey, "swapdb", 150);
}

/// Snapshots that break off, and with them whatever way they are loaded.
#[test]
fn a_snapshot_is_cut_at_any_byte() {
    let Some(peer) = Program::oracle(Peer::Redis) else { return };
    let primary = Server::start(&peer, PRIMARY);
    let mut client = primary.connect();
    let seed = seed();
    let mut random = Random::new(seed);
    for n in 0..300 {
        let noise: Vec<u8> = (0..2_000).map(|_| random.draw() as u8).collect();
        client.call(&[b"SET".to_vec(), format!("k{n}").into_bytes(), noise]);
    }
    for way in ["disabled", "on-empty-db", "swapdb"] {
        let mut replica = Server::start(&program(), &[REPLICA, &["--repl-diskless-load", way]].concat());
        if way == "swapdb" {
            replica.connect().run("SET own data");
        }
        let scissors = Scissors::before(primary.port(), seed, 20_000);
        follow(&replica, scissors.port);
        wait_until("some cuts", || scissors.cuts.load(Relaxed) >= 3);
        if way == "swapdb" {
            let own = replica.connect().run("GET own").to_string();
            assert!(own == "\"data\"" || own.starts_with("-LOADING"), "{own}");
        }
        scissors.ends.store(true, Relaxed);
        await_link(&replica);
        await_equal(&primary, &replica);
        replica.assert_healthy();
    }
}
