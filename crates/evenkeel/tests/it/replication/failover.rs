//! FAILOVER: the roles change while clients write, and nothing that was acknowledged is lost.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

use evenkeel_testkit::history::{Op, Recorder, assert_linearizable};
use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Client, Program, Random, Reference, Server};

use super::{PRIMARY, assert_same, attach, await_link, freeze, number, ok, thaw, wait_until};
use crate::program;

fn server(program: &Program, args: &[&str]) -> Server {
    Server::start(program, &[PRIMARY, args].concat())
}

fn ours(args: &[&str]) -> Server {
    server(&program(), args)
}

/// The pairs of a failover: Evenkeel to Evenkeel, and, if available, to and from Redis and Valkey.
fn pairs() -> Vec<[Server; 2]> {
    let mut pairs = vec![[ours(&[]), ours(&[])]];
    for reference in [Reference::Redis, Reference::Valkey].into_iter().filter_map(Program::oracle) {
        pairs.push([ours(&[]), server(&reference, &[])]);
        pairs.push([server(&reference, &[]), ours(&[])]);
    }
    pairs
}

fn fail_over(from: &Server, to: &Server, rest: &str) {
    ok(&mut from.connect(), &format!("FAILOVER TO 127.0.0.1 {} {rest}", to.port()));
}

fn state(server: &Server) -> String {
    server.info("master_failover_state")
}

fn await_end(server: &Server) {
    wait_until("the failover ends", || state(server) == "no-failover");
}

fn role(server: &Server) -> String {
    server.info("role")
}

#[test]
fn a_failover_needs_no_full_sync() {
    for [one, other] in pairs() {
        let third = ours(&[]);
        attach(&other, &one);
        attach(&third, &one);
        let mut round = 0;
        for (from, to) in [(&one, &other), (&other, &one), (&one, &other)] {
            round += 1;
            ok(&mut from.connect(), &format!("SET round {round}"));
            ok(&mut from.connect(), "INCR rounds");
            let before = (number(to, "sync_partial_ok"), number(to, "sync_full"));
            fail_over(from, to, "");
            await_end(from);
            let line = format!("FAILOVER requested to 127.0.0.1:{}.", to.port());
            wait_until("the log has its beginning", || from.log().contains(&line));
            assert_eq!((role(from).as_str(), role(to).as_str()), ("slave", "master"));
            await_link(from);
            attach(&third, to);
            assert_same(to, from);
            assert_same(to, &third);
            assert_eq!(number(to, "sync_partial_ok"), before.0 + 2, "{}\n{}", from.log(), to.log());
            assert_eq!(number(to, "sync_full"), before.1);
            assert_eq!(to.connect().run("GET rounds").to_string(), format!("\"{round}\""));
            let setting = from.connect().run("CONFIG GET replicaof").to_string();
            if from.program().reference().is_none() {
                assert!(setting.contains(&to.port().to_string()), "{setting}");
            }
        }
    }
}

/// A client that waits for an element waits on until the target has taken over.
#[test]
fn waits_end_with_the_failover_and_not_before() {
    let (primary, replica) = (ours(&[]), ours(&[]));
    attach(&replica, &primary);
    let mut waiting = primary.connect();
    waiting.send(&["BRPOP", "list", "0"]).expect("it is sent");
    let blocked = |server: &Server| server.info("blocked_clients");
    wait_until("it waits", || blocked(&primary) == "1");
    freeze(&replica);
    ok(&mut primary.connect(), "SET k v");
    fail_over(&primary, &replica, "FORCE TIMEOUT 1");
    wait_until("the replica is asked", || state(&primary) == "failover-in-progress");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(blocked(&primary), "1");
    ok(&mut primary.connect(), "FAILOVER ABORT");
    assert_eq!((blocked(&primary).as_str(), role(&primary).as_str()), ("1", "master"));
    thaw(&replica);
    // The end of the failover has ended the replica's connection, which the replica notices a little later.
    wait_until("it has the new stream", || replica.info("master_replid") == primary.info("master_replid"));
    await_link(&replica);
    wait_until("the primary has it", || primary.info("connected_slaves") == "1");
    fail_over(&primary, &replica, "");
    await_end(&primary);
    let ended = waiting.read().to_string();
    assert!(ended.starts_with("-UNBLOCKED force unblock from blocking operation"), "{ended}");
}

#[test]
fn the_most_advanced_replica_is_promoted_if_none_is_named() {
    let (primary, slow, quick) = (ours(&[]), ours(&[]), ours(&[]));
    attach(&slow, &primary);
    attach(&quick, &primary);
    freeze(&slow);
    ok(&mut primary.connect(), "SET k v");
    ok(&mut primary.connect(), "FAILOVER");
    await_end(&primary);
    thaw(&slow);
    assert_eq!((role(&primary).as_str(), role(&quick).as_str()), ("slave", "master"));
    assert_eq!(quick.connect().run("GET k").to_string(), "\"v\"");
}

/// However long a snapshot in progress takes.
#[test]
fn a_snapshot_delays_no_failover() {
    let (primary, replica) = (ours(&["--rdb-key-save-delay", "100000"]), ours(&[]));
    attach(&replica, &primary);
    let mut client = primary.connect();
    (0..600).for_each(|n| ok(&mut client, &format!("SET {n} v")));
    ok(&mut client, "BGSAVE");
    assert_eq!(primary.info("rdb_bgsave_in_progress"), "1");
    ok(&mut client, "FAILOVER TIMEOUT 20000");
    await_end(&primary);
    assert_eq!(primary.info("rdb_bgsave_in_progress"), "1", "it takes a minute");
    assert_eq!((role(&primary).as_str(), role(&replica).as_str()), ("slave", "master"));
}

/// The writes that must survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// All acknowledged writes: the primary waits for its replica.
    All,
    /// Writes that a replica has acknowledged (WAIT): the replica takes over in any state.
    Replicated,
}

/// Clients write all the time to the current primary, while the roles change repeatedly.
fn writers_lose_nothing(pair: &[Server; 2], rounds: usize, pause: Duration, kept: Kept) {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    attach(&pair[1], &pair[0]);
    let (recorder, ends) = (Recorder::default(), AtomicBool::new(false));
    let (acknowledged, primary) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let filler = format!("SET filler {}", "x".repeat(100_000));
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (recorder, ends, acknowledged, primary) = (&recorder, &ends, &acknowledged, &primary);
            scope.spawn(move || {
                let mut random = Random::new(seed + writer);
                while !ends.load(Relaxed) {
                    let mut client = pair[primary.load(Relaxed)].connect();
                    acknowledged.fetch_add(
                        write_until_refused(&mut client, recorder, &mut random, ends, kept),
                        Relaxed,
                    );
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        for round in 0..rounds {
            std::thread::sleep(pause);
            let (from, to) = (round % 2, (round + 1) % 2);
            await_link(&pair[to]);
            if kept == Kept::Replicated {
                std::thread::sleep(pause); // without a replica no write is acknowledged
            }
            // The chosen replica is far behind.
            freeze(&pair[to]);
            let mut client = pair[from].connect();
            (0..FILLERS).for_each(|_| ok(&mut client, &filler));
            let options = if kept == Kept::All { "" } else { "TIMEOUT 100 FORCE" };
            fail_over(&pair[from], &pair[to], options);
            if kept == Kept::Replicated {
                wait_until("it waits no longer", || state(&pair[from]) == "failover-in-progress");
            }
            thaw(&pair[to]);
            await_end(&pair[from]);
            assert_eq!(role(&pair[from]), "slave", "{}", pair[from].log());
            primary.store(to, Relaxed);
        }
        std::thread::sleep(pause);
        ends.store(true, Relaxed);
    });
    let (primary, replica) = (&pair[rounds % 2], &pair[(rounds + 1) % 2]);
    // The final data must belong to the history.
    let mut client = primary.connect();
    for key in 0..KEYS {
        let called = recorder.begin();
        let seen = client.run(&format!("GET {key}"));
        recorder.end(called, key, Op::Get(text(&seen)));
    }
    let count = acknowledged.load(Relaxed);
    println!("{count} acknowledged in {rounds} failovers");
    let least = if kept == Kept::All { 100 } else { 10 };
    assert!(count > least * rounds, "{count}");
    assert_linearizable(recorder);
    assert_same(primary, replica);
    for server in pair.iter().filter(|_| kept == Kept::All) {
        assert!(number(server, "sync_full") <= 1, "no failover costs a snapshot:\n{}", server.log());
    }
}

const KEYS: u64 = 8;

/// Large values, which delay a replica.
const FILLERS: usize = 150;

fn text(value: &evenkeel_resp::value::Value) -> Option<i64> {
    value.as_bytes().map(|bytes| String::from_utf8_lossy(bytes).parse().expect("a number"))
}

/// Writes until this server is no longer the primary; returns the number of acknowledged writes. Every read
/// is done by a command that writes, since a replica would answer others from its own data.
fn write_until_refused(
    client: &mut Client,
    recorder: &Recorder,
    random: &mut Random,
    ends: &AtomicBool,
    kept: Kept,
) -> usize {
    let mut count = 0;
    while !ends.load(Relaxed) {
        let (key, number) = (random.below(KEYS as usize) as u64, random.below(1_000_000) as i64);
        let called = recorder.begin();
        let (op, line) = match random.below(4) {
            0 => (Op::Set(number), format!("SET {key} {number}")),
            1 => (Op::Swap(number, None), format!("SET {key} {number} GET")),
            2 => (Op::Delete(false), format!("DEL {key}")),
            _ => (Op::Add(number, 0), format!("INCRBY {key} {number}")),
        };
        let words: Vec<&str> = line.split(' ').collect();
        let reply = match client.try_call(&words) {
            Ok(reply) if reply.is_error() => {
                let refusal = reply.to_string();
                assert!(
                    refusal.starts_with("-READONLY")
                        || refusal.starts_with("-UNBLOCKED")
                        || refusal.contains("LOADING"),
                    "{refusal}"
                );
                return count; // not executed
            }
            Ok(reply) => reply,
            Err(_) => {
                recorder.lost(called, key, op);
                return count;
            }
        };
        let seen = match op {
            Op::Swap(number, _) => Op::Swap(number, text(&reply)),
            Op::Delete(_) => Op::Delete(reply.as_int() == Some(1)),
            Op::Add(number, _) => Op::Add(number, reply.as_int().expect("a number")),
            op => op,
        };
        // A forced takeover may lose writes that no replica has.
        let mut is_kept = || client.try_call(&["WAIT", "1", "5000"]).is_ok_and(|had| had.as_int() >= Some(1));
        if kept == Kept::Replicated && !is_kept() {
            recorder.lost(called, key, seen);
            return count;
        }
        recorder.end(called, key, seen);
        count += 1;
    }
    count
}

#[test]
fn no_acknowledged_write_is_lost() {
    writers_lose_nothing(
        &[ours(&["--threads", "4"]), ours(&["--threads", "4"])],
        20,
        Duration::from_millis(100),
        Kept::All,
    );
}

/// Also if the primary is told not to wait for its replica.
#[test]
fn no_write_confirmed_by_wait_is_lost_by_force() {
    let pair = [ours(&["--threads", "4"]), ours(&["--threads", "4"])];
    writers_lose_nothing(&pair, 10, Duration::from_millis(200), Kept::Replicated);
}

#[test]
fn no_acknowledged_write_is_lost_between_redis_and_evenkeel() {
    if let Some(redis) = Program::oracle(Reference::Redis) {
        writers_lose_nothing(&[ours(&[]), server(&redis, &[])], 6, Duration::from_millis(200), Kept::All);
    }
}

/// Sends a write that waits for the end of a failover, on its own thread; returns its reply.
fn write_later(server: &Server, line: &str) -> impl FnOnce() -> String + use<> {
    let mut client = server.connect();
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    client.send(&words).expect("it reads");
    move || client.read().to_string()
}

#[test]
fn a_failover_can_be_aborted() {
    let (primary, replica) = (ours(&[]), ours(&[]));
    attach(&replica, &primary);
    let mut client = primary.connect();
    ok(&mut client, "SET k v");
    ok(&mut client, "SET brief v PX 3000");
    assert_eq!(client.run("WAIT 1 10000").as_int(), Some(1));
    freeze(&replica);
    ok(&mut client, "SET k w");
    fail_over(&primary, &replica, "TIMEOUT 60000");
    assert_eq!(state(&primary), "waiting-for-sync");
    let began = Instant::now();
    let waits = write_later(&primary, "SET k x");
    for (line, answer) in [
        ("GET k", "\"w\""),
        ("FAILOVER", "-ERR FAILOVER already in progress."),
        ("REPLICAOF NO ONE", "-ERR REPLICAOF not allowed while failing over."),
        ("CLIENT PAUSE 1 WRITE", "OK"),
        ("CLIENT UNPAUSE", "OK"),
    ] {
        assert_eq!(client.run(line).to_string(), answer, "{line}");
    }
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(client.run("GET k").to_string(), "\"w\"", "nobody writes");
    let offset = number(&primary, "master_repl_offset");
    wait_until("its time passes", || client.run("GET brief").to_string() == "(nil)");
    assert_eq!(client.run("WAIT 1 100").as_int(), Some(0));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(number(&primary, "master_repl_offset"), offset, "the stream is at rest");
    assert_eq!(client.run("DBSIZE").as_int(), Some(2), "what has expired is hidden, and there");
    ok(&mut client, "FAILOVER ABORT");
    assert_eq!(state(&primary), "no-failover");
    assert_eq!(waits(), "OK");
    assert!(began.elapsed() < Duration::from_secs(30));
    wait_until("what has expired goes", || client.run("DBSIZE").as_int() == Some(1));
    thaw(&replica);
    assert_same(&primary, &replica);
    assert_eq!((role(&primary).as_str(), role(&replica).as_str()), ("master", "slave"));
    assert_eq!(client.run("FAILOVER ABORT").to_string(), "-ERR No failover in progress.");
}

#[test]
fn a_failover_times_out_if_no_replica_catches_up() {
    let (primary, replica) = (ours(&[]), ours(&[]));
    attach(&replica, &primary);
    freeze(&replica);
    let mut client = primary.connect();
    ok(&mut client, "SET k v");
    let began = Instant::now();
    fail_over(&primary, &replica, "TIMEOUT 300");
    let waits = write_later(&primary, "SET k w");
    assert_eq!(waits(), "OK");
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(250) && took < Duration::from_secs(10), "{took:?}");
    assert_eq!((state(&primary).as_str(), role(&primary).as_str()), ("no-failover", "master"));
    thaw(&replica);
    assert_same(&primary, &replica);
    assert_eq!(number(&primary, "sync_full"), 1);
}

#[test]
fn force_promotes_a_replica_that_lags_behind() {
    let (primary, replica) = (ours(&[]), ours(&[]));
    attach(&replica, &primary);
    freeze(&replica);
    let mut client = primary.connect();
    ok(&mut client, "SET k v");
    fail_over(&primary, &replica, "TIMEOUT 100 FORCE");
    let waits = write_later(&primary, "SET k w");
    wait_until("it asks", || state(&primary) == "failover-in-progress");
    assert_eq!(role(&primary), "slave", "never are there two who take writes");
    thaw(&replica);
    await_end(&primary);
    assert_eq!(waits(), "-READONLY You can't write against a read only replica.");
    assert_eq!((role(&primary).as_str(), role(&replica).as_str()), ("slave", "master"));
    assert_same(&replica, &primary);
}

/// A proxy before a server that breaks the first connection that contains this word.
fn break_connection(listener: TcpListener, server: u16, word: &'static str) {
    let has_broken = Arc::new(AtomicBool::new(false));
    for mut client in listener.incoming().flatten() {
        let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
        let (mut from, mut to) =
            (client.try_clone().expect("a handle"), server.try_clone().expect("a handle"));
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to); // either side may close at any time
            let _ = to.shutdown(Shutdown::Both);
        });
        let has_broken = has_broken.clone();
        std::thread::spawn(move || {
            let mut piece = [0; 64 * 1024];
            while let Ok(got @ 1..) = server.read(&mut piece) {
                let is_said = String::from_utf8_lossy(&piece[..got]).contains(word);
                if is_said && !has_broken.swap(true, Relaxed) || client.write_all(&piece[..got]).is_err() {
                    break;
                }
            }
            for stream in [&client, &server] {
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
    }
}

/// The replica may have taken over already. So the primary cannot go back, and follows the new primary.
#[test]
fn a_lost_reply_makes_no_two_primaries() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port().to_string();
    let (primary, target) = (ours(&[]), ours(&["--replica-announce-port", &port]));
    let behind = target.port();
    std::thread::spawn(move || break_connection(listener, behind, "+CONTINUE"));
    attach(&target, &primary);
    let mut client = primary.connect();
    ok(&mut client, "SET k v");
    ok(&mut client, &format!("FAILOVER TO 127.0.0.1 {port}"));
    let waits = write_later(&primary, "SET k w");
    await_end(&primary);
    assert_eq!((role(&primary).as_str(), role(&target).as_str()), ("slave", "master"), "{}", primary.log());
    assert_eq!(waits(), "-READONLY You can't write against a read only replica.");
    await_link(&primary);
    ok(&mut target.connect(), "SET k x");
    assert_same(&target, &primary);
    assert_eq!(number(&target, "sync_full"), 0);
    wait_until("it is said", || primary.log().contains("is already a master"));
}

#[test]
fn a_failover_to_a_silent_target_can_be_aborted() {
    let (primary, replica, third) = (ours(&[]), ours(&[]), ours(&[]));
    attach(&replica, &primary);
    attach(&third, &primary);
    freeze(&replica);
    let mut client = primary.connect();
    ok(&mut client, "SET k v");
    let id = primary.info("master_replid");
    fail_over(&primary, &replica, "TIMEOUT 100 FORCE");
    wait_until("it asks", || state(&primary) == "failover-in-progress");
    // Writers do not wait for a replica that may never answer: this server is a replica already.
    assert_eq!(primary.info("paused_reason"), "failover_in_progress");
    const REFUSED: &str = "-READONLY You can't write against a read only replica.";
    assert_eq!(client.run("SET k w").to_string(), REFUSED);
    ok(&mut client, "MULTI");
    assert_eq!(client.run("SET k w").to_string(), REFUSED);
    assert!(client.run("EXEC").to_string().starts_with("-EXECABORT"));
    ok(&mut client, "FAILOVER ABORT");
    ok(&mut client, "SET k w");
    assert_eq!((role(&primary).as_str(), primary.info("master_replid2")), ("master", id));
    thaw(&replica);
    // The request may have reached it before it was thawed; then it is a primary.
    if role(&replica) == "slave" {
        await_link(&replica);
    }
    await_link(&third);
    assert_same(&primary, &third);
    assert_eq!(number(&primary, "sync_full"), 2, "{}", primary.log());
}

#[test]
fn a_refused_failover_leaves_the_primary_in_its_role() {
    for refusing in [Some(program()), Program::oracle(Reference::Redis)].into_iter().flatten() {
        let primary = ours(&[]);
        let replica = server(&refusing, &["--rename-command", "PSYNC", "other"]);
        attach(&replica, &primary);
        let mut client = primary.connect();
        ok(&mut client, "SET k v");
        freeze(&replica);
        fail_over(&primary, &replica, "");
        assert_eq!(primary.info("paused_reason"), "failover_in_progress");
        let waits = write_later(&primary, "SET k w");
        thaw(&replica);
        await_end(&primary);
        assert_eq!(waits(), "OK");
        assert_eq!(role(&primary), "master");
        wait_until("it is said", || primary.log().contains("Failover target rejected psync request"));
        assert_eq!(client.run("CONFIG GET replicaof").to_string(), "[\"replicaof\", \"\"]");
        await_link(&replica);
        assert_same(&primary, &replica);
        assert_eq!(number(&primary, "sync_full"), 1, "the new name is learnt by a partial sync");
    }
}

/// Only the server's own primary, with the same history, can promote it.
#[test]
fn only_a_replicas_own_primary_may_promote_it() {
    let (primary, replica) = (ours(&[]), ours(&[]));
    attach(&replica, &primary);
    let mut client = replica.connect();
    let unknown = "-ERR PSYNC FAILOVER replid must match my replid.";
    assert_eq!(client.run(&format!("PSYNC {} 1 FAILOVER", "0".repeat(40))).to_string(), unknown);
    assert_eq!(client.run("PSYNC ? -1 FAILOVER").to_string(), unknown);
    assert_eq!(role(&replica), "slave");
    let id = primary.info("master_replid");
    let refused = "-ERR PSYNC FAILOVER can't be sent to a master.";
    assert_eq!(primary.connect().run(&format!("PSYNC {id} 1 FAILOVER")).to_string(), refused);
}
