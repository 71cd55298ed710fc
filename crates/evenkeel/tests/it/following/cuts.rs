//! A link that breaks off at any byte, hundreds of times.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::time::Duration;

use evenkeel_testkit::digest::{difference, digest};
use evenkeel_testkit::transcript::target;
use evenkeel_testkit::{Program, Random, Reference, Server};

use super::{PRIMARY, REPLICA, await_equal, await_link, follow, seed, wait_until, write};
use crate::program;

/// The treatment of the primary's bytes before the cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Fast,
    /// Now and then bytes are delayed for milliseconds, and sometimes for longer than the replica's timeout.
    Stalling,
}

/// A proxy between a replica and its primary. It cuts each connection after some bytes, until it is told to
/// stop.
#[derive(Clone)]
struct Scissors {
    port: u16,
    /// Number of cuts in the primary's bytes, or behind the end of its replica.
    cuts: Arc<AtomicUsize>,
    /// Number of cuts in a replica's bytes.
    back_cuts: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
}

impl Scissors {
    /// `bytes_max`: most bytes of the primary that pass; now and then the limit is `rarely`.
    fn before(primary: u16, seed: u64, (bytes_max, rarely): (usize, usize), way: Way) -> Scissors {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let [cuts, back_cuts] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let scissors = Scissors { port, cuts, back_cuts, ends: Arc::new(AtomicBool::new(false)) };
        let shared = scissors.clone();
        std::thread::spawn(move || {
            let mut random = Random::new(seed);
            for (count, replica) in listener.incoming().flatten().enumerate() {
                // A replica without progress reconnects after a second: a delay may last some seconds, no
                // longer.
                let is_rare = count % 20 == 19;
                let allowed = match random.below(20) {
                    _ if is_rare => rarely,
                    0..=4 => 1 + random.below(400),
                    _ => 1 + random.below(bytes_max),
                };
                // A handshake has some 300 bytes, the last 80 of them ask for a partial sync; an
                // acknowledgement later has 60.
                let back_allowed = match random.below(6) {
                    0 if !is_rare => 1 + random.below(400),
                    _ => usize::MAX,
                };
                let scissors = shared.clone();
                let stalls = (way == Way::Stalling).then(|| Random::new(random.draw()));
                std::thread::spawn(move || {
                    scissors.relay(replica, primary, (allowed, back_allowed), stalls);
                });
            }
        });
        scissors
    }

    /// Returns how many of these bytes pass, and subtracts them from `allowed`.
    fn passing(&self, got: usize, allowed: &mut usize) -> usize {
        let len = if self.ends.load(Relaxed) { got } else { got.min(*allowed) };
        *allowed -= len.min(*allowed);
        len
    }

    fn relay(
        self,
        mut replica: TcpStream,
        primary: u16,
        (mut allowed, back_allowed): (usize, usize),
        mut stalls: Option<Random>,
    ) {
        let Ok(mut primary) = TcpStream::connect(("127.0.0.1", primary)) else { return };
        let back = [&replica, &primary].map(|stream| stream.try_clone().expect("a handle"));
        let is_cut_back = Arc::new(AtomicBool::new(false));
        let (scissors, cut_back) = (self.clone(), is_cut_back.clone());
        std::thread::spawn(move || scissors.relay_back(back, back_allowed, &cut_back));
        let mut piece = vec![0; 8192];
        while let Ok(got @ 1..) = primary.read(&mut piece) {
            let len = self.passing(got, &mut allowed);
            if let Some(random) = stalls.as_mut().filter(|_| !self.ends.load(Relaxed)) {
                let ms = if random.chance(2) { 1_500 } else { random.below(8) };
                std::thread::sleep(Duration::from_millis(ms as u64));
            }
            if replica.write_all(&piece[..len]).is_err() || len < got {
                if !is_cut_back.load(Relaxed) {
                    self.cuts.fetch_add(1, Relaxed);
                }
                break;
            }
        }
        for stream in [&replica, &primary] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn relay_back(
        &self,
        [mut replica, mut primary]: [TcpStream; 2],
        mut allowed: usize,
        is_cut: &AtomicBool,
    ) {
        let mut piece = vec![0; 8192];
        while let Ok(got @ 1..) = replica.read(&mut piece) {
            let len = self.passing(got, &mut allowed);
            if primary.write_all(&piece[..len]).is_err() {
                break;
            }
            if len < got {
                is_cut.store(true, Relaxed);
                self.back_cuts.fetch_add(1, Relaxed);
                let _ = replica.shutdown(Shutdown::Both);
                break;
            }
        }
        let _ = primary.shutdown(Shutdown::Both);
    }
}

/// `reference`: the server whose commands are sent.
fn survives_cuts(
    primary: &Program,
    replica: &Program,
    reference: Reference,
    load: &str,
    way: Way,
    wanted: usize,
) {
    let backlog = ["--repl-backlog-size", "32mb", "--repl-timeout", "5"];
    let mut primary = Server::start(primary, &[PRIMARY, &backlog].concat());
    let timeout = if way == Way::Stalling { "1" } else { "60" };
    let args = [REPLICA, &["--repl-diskless-load", load, "--repl-timeout", timeout]].concat();
    let mut replica = Server::start(replica, &args);
    let seed = seed();
    // The longest command passes now and then, together with later bytes.
    let scissors = Scissors::before(primary.port(), seed, (60_000, 4 << 20), way);
    write(&primary, reference, seed, 300);
    // A cut snapshot is sent anew; another test covers it.
    scissors.ends.store(true, Relaxed);
    follow(&replica, scissors.port);
    await_link(&replica);
    scissors.ends.store(false, Relaxed);
    let mut round = 0;
    let offset = |server: &Server| server.info("master_repl_offset").parse::<u64>().expect("a number");
    while scissors.cuts.load(Relaxed) < wanted {
        round += 1;
        // A distance beyond the backlog would need a full sync.
        wait_until("the replica comes along", || {
            scissors.cuts.load(Relaxed) >= wanted
                || offset(&primary).saturating_sub(offset(&replica)) < 8 << 20
        });
        write(&primary, reference, seed + round, 300);
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
    let [cuts, back_cuts] = [&scissors.cuts, &scissors.back_cuts].map(|count| count.load(Relaxed));
    println!("{cuts} cuts, {back_cuts} on the way back: {partial} partial syncs, {full} full ones");
    assert!(back_cuts > 0);
    assert!(
        partial > 10 * full,
        "{partial} partial syncs, {full} full ones, for {:#?}",
        reasons(&primary, &replica)
    );
    if replica.program().reference().is_none() {
        let log = replica.log();
        let refused: Vec<&str> = log.lines().filter(|line| line.contains("was not applied")).collect();
        assert_eq!(replica.info("master_commands_failed"), "0", "{}", refused.join("\n"));
    }
    [&mut primary, &mut replica].into_iter().for_each(Server::assert_healthy);
}

/// The reasons of full syncs in both logs.
fn reasons(primary: &Server, replica: &Server) -> Vec<String> {
    let has_reason = |line: &&str| {
        ["Unable to partial", "Full resync requested", "A full resynchronization follows", "not possible"]
            .iter()
            .any(|part| line.contains(part))
    };
    let logs = [primary.log(), replica.log()];
    logs.iter().flat_map(|log| log.lines().filter(has_reason)).map(str::to_owned).collect()
}

#[test]
fn a_stream_of_redis_survives_cuts_at_any_byte() {
    if let Some(redis) = Program::oracle(Reference::Redis) {
        survives_cuts(&redis, &program(), Reference::Redis, "disabled", Way::Fast, 300);
    }
}

#[test]
fn a_stream_of_valkey_survives_cuts_at_any_byte() {
    if let Some(valkey) = Program::oracle(Reference::Valkey) {
        survives_cuts(&valkey, &program(), Reference::Valkey, "swapdb", Way::Fast, 150);
    }
}

#[test]
fn a_stream_of_evenkeel_survives_cuts_at_any_byte() {
    survives_cuts(&program(), &program(), Reference::Redis, "disabled", Way::Fast, 200);
    if let Some(redis) = Program::oracle(Reference::Redis) {
        survives_cuts(&program(), &redis, Reference::Redis, "disabled", Way::Fast, 100);
    }
}

#[test]
fn a_stream_of_evenkeel_survives_stalls_and_cuts() {
    survives_cuts(&program(), &program(), Reference::Redis, "swapdb", Way::Stalling, 60);
}

/// Keys of all types, large and small, with expiry and consumer groups, in two databases, and a library.
/// About 400 KB.
fn fill(server: &Server, random: &mut Random) {
    let mut client = server.connect();
    let mut run = |words: &[&[u8]]| {
        let reply = client.call(words);
        assert!(!reply.is_error(), "{}: {reply}", words[0].escape_ascii());
    };
    let library = "#!lua name=lib\nredis.register_function('one', function() return 1 end)";
    run(&[b"FUNCTION", b"LOAD", library.as_bytes()]);
    for db in ["0", "3"] {
        run(&[b"SELECT", db.as_bytes()]);
        for n in 0..10 {
            let name = |kind: &str| format!("{kind}:{n}").into_bytes();
            for element in 0..if n % 2 == 0 { 6 } else { 150 } {
                let noise: Vec<u8> = (0..30 + random.below(60)).map(|_| random.draw() as u8).collect();
                let (number, noise) = (element.to_string(), noise.as_slice());
                run(&[b"APPEND", &name("string"), noise]);
                run(&[b"RPUSH", &name("list"), noise]);
                run(&[b"SADD", &name("set"), noise]);
                run(&[b"SADD", &name("numbers"), number.as_bytes()]);
                run(&[b"ZADD", &name("zset"), number.as_bytes(), noise]);
                run(&[b"HSET", &name("hash"), noise, number.as_bytes()]);
                run(&[b"XADD", &name("stream"), b"*", b"field", noise]);
            }
            run(&[b"XGROUP", b"CREATE", &name("stream"), b"group", b"0"]);
            let streams = [&b"STREAMS"[..], &name("stream"), b">"];
            run(&[&[&b"XREADGROUP"[..], b"GROUP", b"group", b"reader", b"COUNT", b"4"], &streams[..]]
                .concat());
            run(&[b"PEXPIRE", &name(["hash", "list", "string"][n % 3]), b"10000000"]);
        }
    }
}

/// Snapshots that are cut anywhere, in every way of loading.
#[test]
fn a_full_sync_survives_cuts_at_any_byte() {
    let programs = [Program::oracle(Reference::Redis), Some(program())];
    for program in programs.into_iter().flatten() {
        let primary = Server::start(&program, PRIMARY);
        let seed = seed();
        fill(&primary, &mut Random::new(seed));
        primary.connect().run("SAVE");
        let len = std::fs::metadata(primary.folder().join("dump.rdb")).expect("it was saved").len() as usize;
        assert!(len > 300_000, "{len}");
        std::thread::scope(|scope| {
            for way in ["disabled", "on-empty-db", "swapdb"] {
                let primary = &primary;
                scope.spawn(move || snapshot_is_cut(primary, (seed, len), way));
            }
        });
    }
}

fn snapshot_is_cut(primary: &Server, (seed, len): (u64, usize), way: &str) {
    let mut replica = Server::start(&program(), &[REPLICA, &["--repl-diskless-load", way]].concat());
    if way == "swapdb" {
        replica.connect().run("SET own data");
    }
    let scissors = Scissors::before(primary.port(), seed, (len, len), Way::Fast);
    follow(&replica, scissors.port);
    wait_until("some cuts", || scissors.cuts.load(Relaxed) >= 8);
    if way == "swapdb" {
        let own = replica.connect().run("GET own").to_string();
        assert!(own == "\"data\"" || own.starts_with("-LOADING"), "{own}");
    }
    scissors.ends.store(true, Relaxed);
    await_link(&replica);
    await_equal(primary, &replica);
    // A snapshot contains consumer groups exactly, and libraries.
    let [theirs, its] = [primary, &replica].map(|server| digest(&mut target(server)));
    assert_eq!(difference(&theirs, &its), None);
    let libraries = |server: &Server| server.connect().run("FUNCTION LIST WITHCODE").to_string();
    assert_eq!(libraries(&replica), libraries(primary));
    assert!(libraries(&replica).contains("register_function"));
    replica.assert_healthy();
}
