//! A link that breaks off at any byte, hundreds of times.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::time::Duration;

use evenkeel_testkit::{Peer, Program, Random, Server};

use super::{PRIMARY, REPLICA, await_equal, await_link, follow, seed, wait_until, write};
use crate::program;

/// What becomes of the primary's bytes before they are cut off.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Fast,
    /// Now and then they wait for some milliseconds, and sometimes for longer than a replica waits for a sign of life.
    Stalling,
}

/// Stands between a replica and its primary, and cuts each connection after some bytes, until it is told to stop that.
struct Scissors {
    port: u16,
    cuts: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
}

impl Scissors {
    /// `bytes_max`: as many bytes of the primary pass at most, but for now and then: then `rarely`.
    fn before(primary: u16, seed: u64, (bytes_max, rarely): (usize, usize), way: Way) -> Scissors {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (cuts, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, stop) = (cuts.clone(), ends.clone());
        std::thread::spawn(move || {
            let mut random = Random::new(seed);
            for replica in listener.incoming().flatten() {
                let allowed = match random.below(20) {
                    0 => rarely,
                    1..=4 => 1 + random.below(400),
                    _ => 1 + random.below(bytes_max),
                };
                let (counted, stop) = (counted.clone(), stop.clone());
                let stalls = (way == Way::Stalling).then(|| Random::new(random.draw()));
                std::thread::spawn(move || relay(replica, primary, allowed, stalls, &counted, &stop));
            }
        });
        Scissors { port, cuts, ends }
    }
}

fn relay(
    mut replica: TcpStream,
    primary: u16,
    mut allowed: usize,
    mut stalls: Option<Random>,
    cuts: &AtomicUsize,
    ends: &AtomicBool,
) {
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
        if let Some(random) = stalls.as_mut().filter(|_| !ends.load(Relaxed)) {
            let ms = if random.chance(2) { 1_500 } else { random.below(8) };
            std::thread::sleep(Duration::from_millis(ms as u64));
        }
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

/// `peer`: whose commands are sent.
fn survives_cuts(primary: &Program, replica: &Program, peer: Peer, load: &str, way: Way, wanted: usize) {
    let backlog = ["--repl-backlog-size", "32mb", "--repl-timeout", "5"];
    let mut primary = Server::start(primary, &[PRIMARY, &backlog].concat());
    let patience = if way == Way::Stalling { "1" } else { "60" };
    let args = [REPLICA, &["--repl-diskless-load", load, "--repl-timeout", patience]].concat();
    let mut replica = Server::start(replica, &args);
    let seed = seed();
    // The longest command gets through now and then, with what comes behind it.
    let scissors = Scissors::before(primary.port(), seed, (60_000, 4 << 20), way);
    write(&primary, peer, seed, 300);
    // A snapshot that is cut off is begun anew, and is another matter.
    scissors.ends.store(true, Relaxed);
    follow(&replica, scissors.port);
    await_link(&replica);
    scissors.ends.store(false, Relaxed);
    let mut round = 0;
    let offset = |server: &Server| server.info("master_repl_offset").parse::<u64>().expect("a number");
    while scissors.cuts.load(Relaxed) < wanted {
        round += 1;
        // More than the backlog holds would have to be sent anew.
        wait_until("the replica comes along", || {
            scissors.cuts.load(Relaxed) >= wanted
                || offset(&primary).saturating_sub(offset(&replica)) < 8 << 20
        });
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
    let number = |field: &str| primary.info(field).parse::<usize>().expect("a number");
    let (partial, full) = (number("sync_partial_ok"), number("sync_full"));
    println!("{} cuts: {partial} partial syncs, {full} full ones", scissors.cuts.load(Relaxed));
    assert!(
        partial > 10 * full,
        "{partial} partial syncs, {full} full ones, for {:#?}",
        reasons(&primary, &replica)
    );
    if replica.program().peer().is_none() {
        assert_eq!(replica.info("master_commands_failed"), "0");
    }
    [&mut primary, &mut replica].into_iter().for_each(Server::assert_healthy);
}

/// What the two say of why all was sent anew.
fn reasons(primary: &Server, replica: &Server) -> Vec<String> {
    let tells = |line: &&str| {
        ["Unable to partial", "Full resync requested", "taken over anew", "not possible"]
            .iter()
            .any(|part| line.contains(part))
    };
    let logs = [primary.log(), replica.log()];
    logs.iter().flat_map(|log| log.lines().filter(tells)).map(str::to_owned).collect()
}

#[test]
fn a_stream_of_redis_is_cut_at_any_byte() {
    if let Some(redis) = Program::oracle(Peer::Redis) {
        survives_cuts(&redis, &program(), Peer::Redis, "disabled", Way::Fast, 300);
    }
}

#[test]
fn a_stream_of_valkey_is_cut_at_any_byte() {
    if let Some(valkey) = Program::oracle(Peer::Valkey) {
        survives_cuts(&valkey, &program(), Peer::Valkey, "swapdb", Way::Fast, 150);
    }
}

#[test]
fn our_stream_is_cut_at_any_byte() {
    survives_cuts(&program(), &program(), Peer::Redis, "disabled", Way::Fast, 200);
    if let Some(redis) = Program::oracle(Peer::Redis) {
        survives_cuts(&program(), &redis, Peer::Redis, "disabled", Way::Fast, 100);
    }
}

#[test]
fn our_stream_stalls_and_is_cut() {
    survives_cuts(&program(), &program(), Peer::Redis, "swapdb", Way::Stalling, 60);
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
        let scissors = Scissors::before(primary.port(), seed, (20_000, 20_000), Way::Fast);
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
