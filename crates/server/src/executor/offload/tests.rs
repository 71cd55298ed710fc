//! Long commands, in process and over sockets, with commands that only tests have.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use evenkeel_resp::value::Value;
use evenkeel_testkit::Client;

use crate::testing::World;
use crate::testing::live::Live;
use evenkeel_core::pause::Pauser;
use evenkeel_runtime::clock;

fn say(client: &mut Client, line: &str) {
    client.send(&evenkeel_testkit::words::split(line).expect("a command line")).expect("an open connection");
}

#[test]
fn other_clients_run_during_offloaded_work() {
    let mut world = World::new();
    world.check("> SET k v");
    world.type_in("a", "TEST.LONG k 1");
    world.type_in("a", "PING");
    // The reply is the value at the time of the command.
    world.check(
        "
        > SET k w                         < OK
        > INFO clients                    < \"*blocked_clients:0\\r*\"
        > INFO stats
        < \"*long_commands_running:0\\r\\nlong_commands_queued:1\\r\\nlong_commands_processed:0\\r*\"
        > CLIENT UNBLOCK 2                < :0
        a< \"v\"
        a< PONG
        > INFO stats                      < \"*long_commands_queued:0\\r\\nlong_commands_processed:1\\r*\"
        a> TEST.LONG k 0                  < \"w\"
        > INFO stats                      < \"*long_commands_queued:0\\r\\nlong_commands_processed:1\\r*\"
        a> TEST.LONG none 1               < -ERR no such key
        a> TEST.LONG k 1 PANIC            < -ERR internal error: the command was aborted, see the server log
        > INFO stats                      < \"*long_commands_running:0\\r*\"
        > INFO commandstats               < \"*cmdstat_test.long:calls=4,*failed_calls=2*\"
    ",
    );
}

#[test]
fn work_inside_multi_runs_in_place() {
    World::new().check(
        "
        > SET k v
        > MULTI
        > TEST.LONG k 1
        > TEST.LONGCOPY k to 1
        > TEST.LONGCOPY none to 1
        > EXEC                            < [\"v\", \"v\", -ERR no such key]
        > GET to                          < \"v\"
        > INFO stats                      < \"*long_commands_processed:0\\r*\"
    ",
    );
}

#[test]
fn results_are_stored_if_the_sources_are_unchanged() {
    let mut world = World::new();
    world.check("> SET k v\n b> TEST.LONGCOPY k to 1 < \"v+\"\n > GET to < \"v+\"");
    world.type_in("a", "TEST.LONGCOPY k to 1");
    world.check("> SET k w\n > GET to < \"v+\"\n a< \"w++\"\n > GET to < \"w++\"");
    world.type_in("a", "TEST.LONGCOPY k to 1");
    world.check("> DEL k\n a< -ERR no such key\n > GET to < \"w++\"");
    world.check(
        "> SET k panic\n a> TEST.LONGCOPY k to 1 < -ERR internal*\n a> PING < PONG\n > GET to < \"w++\"",
    );
    world.verify();
}

#[test]
fn stored_results_serve_blocked_clients() {
    World::new().check(
        "
        > SET k v
        a> TEST.BMOVE to other 0
        b> TEST.BGET other 0
        c> TEST.LONGCOPY k to 1           < \"v+\"
        a< \"v+\"
        b< [\"other\", \"v+\"]
        > EXISTS to other                 < :0
    ",
    );
}

#[test]
fn results_of_disconnected_clients_are_stored() {
    let mut world = World::new();
    world.check("> SET k v\n a> PING < PONG\n b> PING < PONG");
    world.type_in("a", "TEST.LONGCOPY k to 1");
    world.type_in("b", "TEST.LONG k 60000");
    world.hang_up("a");
    world.hang_up("b");
    world.check(
        "c> TEST.LONG k 1 < \"v\"\n > GET to < \"v+\"\n > INFO stats < \"*long_commands_processed:3\\r*\"",
    );
}

#[test]
fn client_reply_off_applies_to_late_replies() {
    let mut world = World::new();
    world.check("> SET k v");
    world.type_in("a", "CLIENT REPLY SKIP");
    world.type_in("a", "TEST.LONG k 1");
    world.check("b> TEST.LONG k 1 < \"v\"\n a> PING < PONG");
}

#[test]
fn the_slow_log_has_the_total_time() {
    World::new().check(
        "
        > CONFIG SET slowlog-log-slower-than 200000
        > SET k v
        > TEST.LONG k 300
        > SLOWLOG GET                     < [[:0, *, *, [\"TEST.LONG\", \"k\", \"300\"], *]]
        > CONFIG RESETSTAT
        > TEST.LONGCOPY k to 300
        > SLOWLOG LEN                     < :2
        > INFO commandstats               < \"*cmdstat_test.longcopy:calls=1,*\"
        > CONFIG SET slowlog-log-slower-than 100000
        > TEST.LONG k 110
        > SLOWLOG LEN                     < :3
        > CONFIG SET slowlog-log-slower-than 2000000
        > TEST.LONG k 300
        > SLOWLOG LEN                     < :3
    ",
    );
}

/// Latencies seen by a client that called as fast as it could.
#[derive(Default)]
struct Seen {
    longest: Duration,
    /// From the beginning of a call to the end of the next.
    longest_two: Duration,
    count: u32,
}

/// Calls as fast as possible until `stop`.
fn loop_over(client: &mut Client, lines: [&str; 2], stop: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    let mut before = Instant::now();
    while !stop.load(Relaxed) {
        for line in lines {
            let started = Instant::now();
            assert!(!client.run(line).is_error());
            seen.longest = seen.longest.max(started.elapsed());
            seen.longest_two = seen.longest_two.max(before.elapsed());
            seen.count += 1;
            before = started;
        }
    }
    seen
}

/// Returns the latencies of a client that calls as fast as it can while `f` lasts.
fn beside(client: &mut Client, lines: [&str; 2], f: impl FnOnce()) -> Seen {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let others = scope.spawn(|| loop_over(client, lines, &stop));
        f();
        stop.store(true, Relaxed);
        others.join().expect("no failure")
    })
}

/// The least of three: a delay by the server recurs each time, a delay by the machine does not.
fn least_longest(mut seen: impl FnMut() -> Seen) -> Duration {
    let longest = (0..3).map(|_| {
        let Seen { longest, count, .. } = seen();
        println!("{count} calls, the longest of {longest:?}");
        longest
    });
    longest.min().expect("three")
}

/// A single worker: without another thread for the long command, the other client would wait for all of it.
#[test]
fn offloaded_work_blocks_neither_worker_nor_slot() {
    let live = Live::start(1, &[]);
    let (mut slow, mut quick) = (live.connect(), live.connect());
    assert!(!slow.run("SET k v").is_error());
    for (line, reply) in [("TEST.LONG k 200", "\"v\""), ("TEST.LONGCOPY k to 200", "\"v+\"")] {
        let longest = least_longest(|| {
            beside(&mut quick, ["GET k", "SET {k}2 w"], || assert_eq!(slow.run(line).to_string(), reply))
        });
        assert!(longest < Duration::from_millis(100), "{line}: {longest:?}");
    }
    live.verify();
    live.stop();
}

/// The third time is under the locks, and succeeds.
#[test]
fn constantly_changing_sources_do_not_retry_forever() {
    let live = Live::start(2, &[]);
    let (mut slow, mut busy) = (live.connect(), live.connect());
    assert!(!slow.run("SET k 1").is_error());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let others = scope.spawn(|| loop_over(&mut busy, ["INCR k", "INCR k"], &stop));
        let copy = slow.run("TEST.LONGCOPY k to 200").to_string();
        stop.store(true, Relaxed);
        let Seen { longest_two, .. } = others.join().expect("no failure");
        assert!(copy.ends_with("+++\""), "{copy}");
        // A call may begin when the slot is held already; the call before it did not.
        assert!(longest_two >= Duration::from_millis(200), "the third time holds the slot: {longest_two:?}");
    });
    live.verify();
}

#[test]
fn results_are_not_stored_during_a_pause() {
    let live = Live::start(2, &[]);
    let (mut slow, mut operator) = (live.connect(), live.connect());
    assert!(!slow.run("SET k v").is_error());
    say(&mut slow, "TEST.LONGCOPY k to 50");
    live.wait_until("it has begun", || live.server.offload.running() == 1);
    assert!(!operator.run("CLIENT PAUSE 100000 WRITE").is_error());
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(operator.run("EXISTS to"), Value::Int(0));
    assert!(!operator.run("CLIENT UNPAUSE").is_error());
    assert_eq!(slow.read().to_string(), "\"v+\"");
}

#[test]
fn paused_offloaded_writes_do_not_block_reads() {
    let live = Live::start(1, &[]);
    let (mut slow, mut other, mut operator) = (live.connect(), live.connect(), live.connect());
    assert!(!slow.run("SET k v").is_error());
    say(&mut slow, "TEST.LONGCOPY k to 50");
    live.wait_until("it has begun", || live.server.offload.running() == 1);
    assert!(!operator.run("CLIENT PAUSE 100000 WRITE").is_error());
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(other.run("TEST.LONG k 50").to_string(), "\"v\"");
    assert_eq!(operator.run("EXISTS to"), Value::Int(0));
    assert!(!operator.run("CLIENT UNPAUSE").is_error());
    assert_eq!(slow.read().to_string(), "\"v+\"");
    live.stop();
}

#[test]
fn new_replicas_store_no_offloaded_results() {
    let live = Live::start(2, &[]);
    let (mut slow, mut operator) = (live.connect(), live.connect());
    assert!(!slow.run("SET k v").is_error());
    say(&mut slow, "TEST.LONGCOPY k to 50");
    live.wait_until("it has begun", || live.server.offload.running() == 1);
    assert_eq!(operator.run("REPLICAOF 127.0.0.1 1").to_string(), "OK");
    assert_eq!(slow.read().to_string(), "-READONLY You can't write against a read only replica.");
    assert_eq!(operator.run("EXISTS to"), Value::Int(0));
    live.stop();
}

#[test]
fn excess_work_is_queued_or_runs_in_place() {
    let live = Live::start(2, &[]);
    let mut clients: Vec<Client> = (0..200).map(|_| live.connect()).collect();
    assert!(!clients[0].run("SET k v").is_error());
    clients.iter_mut().for_each(|client| say(client, "TEST.LONG k 1"));
    clients.iter_mut().for_each(|client| assert_eq!(client.read().to_string(), "\"v\""));
    live.wait_until("all is done", || live.server.offload.running() == 0);
    assert_eq!(live.server.offload.queued(), 0);
    live.stop();
}

#[test]
fn large_replies_arrive_and_disconnects_release_them() {
    let live = Live::start(1, &[]);
    let (mut slow, mut quick) = (live.connect(), live.connect());
    let value = vec![b'x'; 30_000_000];
    assert!(!slow.call(&[b"SET", &b"k"[..], &value]).is_error());
    for _ in 0..3 {
        say(&mut slow, "TEST.LONG k 1");
        say(&mut slow, "PING");
        assert_eq!(quick.run("PING").to_string(), "PONG");
        assert!(slow.read().as_bytes() == Some(&value[..]));
        assert_eq!(slow.read().to_string(), "PONG");
    }
    say(&mut slow, "TEST.LONG k 20");
    let mut idle = live.connect();
    say(&mut idle, "TEST.LONG k 1");
    drop(slow);
    live.wait_until("all is done", || live.server.offload.running() == 0);
    // The server sends as much as the socket takes; the client never reads it.
    live.wait_until("the reply is on its way", || live.server.hub.clients.totals().output_max > 1_000_000);
    drop(idle);
    live.wait_until("all is freed", || live.server.core.lazy_free.pending() == 0);
    assert_eq!(quick.run("PING").to_string(), "PONG");
    live.stop();
}

/// As `nc` does, which sends a line and then reads.
#[test]
fn half_closed_clients_get_their_reply() {
    let live = Live::start(1, &[]);
    let mut client = live.connect();
    assert!(!client.run("SET k v").is_error());
    say(&mut client, "TEST.LONG k 50");
    client.finish_sending().expect("an open connection");
    assert_eq!(client.read_to_end().expect("the server hangs up"), b"$1\r\nv\r\n");
    live.stop();
}

#[test]
fn a_server_stops_while_work_is_done() {
    let live = Live::start(1, &[]);
    let mut client = live.connect();
    assert!(!client.run("SET k v").is_error());
    say(&mut client, "TEST.LONG k 300");
    live.wait_until("it has begun", || live.server.offload.running() == 1);
    let mut second = live.connect();
    say(&mut second, "TEST.LONG k 60000");
    live.wait_until("it has come", || live.server.offload.queued() == 1);
    live.stop();
    assert_eq!(client.read_to_end().expect("the server hangs up"), b"");
}

/// A single worker again. Commands are not cut short, but the commands behind them in a pipeline wait for
/// their turn.
#[test]
fn pipelines_of_slow_commands_do_not_starve_other_clients() {
    const COMMANDS: usize = 40;
    let live = Live::start(1, &["--enable-debug-command", "yes"]);
    let (mut slow, mut quick) = (live.connect(), live.connect());
    let line = b"*3\r\n$5\r\nDEBUG\r\n$5\r\nSLEEP\r\n$4\r\n0.01\r\n";
    let longest = least_longest(|| {
        let seen = beside(&mut quick, ["PING", "ECHO quick"], || {
            slow.send_raw(&[&line.repeat(COMMANDS)[..], b"PING\r\n"].concat()).expect("an open connection");
            (0..COMMANDS).for_each(|_| assert_eq!(slow.read().to_string(), "OK"));
            assert_eq!(slow.read().to_string(), "PONG");
        });
        assert!(seen.count > COMMANDS as u32 / 2, "{} calls", seen.count);
        seen
    });
    assert!(longest < Duration::from_millis(100), "{longest:?}");
    live.stop();
}

/// The port is closed: in place, the command would be answered at once; for a host that does not answer,
/// never.
#[test]
fn migrate_of_tracking_clients_is_offloaded() {
    let mut world = World::new();
    world.check("> SET k v\n a> HELLO 3 < *\n a> CLIENT TRACKING ON < OK\n a> TEST.LONG k 1 < \"v\"");
    world.check("> INFO stats < \"*long_commands_queued:0\\r\\nlong_commands_processed:0\\r*\"");
    world.check("a> MIGRATE 127.0.0.1 1 k 0 1000 < -IOERR *\n > GET k < \"v\"");
    world.check("> INFO stats < \"*long_commands_queued:0\\r\\nlong_commands_processed:1\\r*\"");
}

#[test]
fn blocking_io_is_accepted_when_the_queue_is_full() {
    let mut world = World::new();
    world.check("> SET k v\n > SET l v");
    (0..super::QUEUE_MAX).for_each(|number| world.type_in(&number.to_string(), "TEST.LONG k 1"));
    world.check(
        "
        a> TEST.LONG k 1                  < \"v\"
        a> MIGRATE 127.0.0.1 1 nosuch 0 1000 < NOKEY
        a> MIGRATE 127.0.0.1 1 l 0 1000   < -IOERR *
        0< \"v\"
        > GET l                           < \"v\"
    ",
    );
}

#[test]
fn queued_work_is_rechecked_behind_the_gate() {
    let live = Live::start(2, &["--databases", "1"]);
    let (mut writer, mut operator) = (live.connect(), live.connect());
    let members: Vec<String> = (0..1_100).map(|number| number.to_string()).collect();
    assert!(!operator.run(&format!("RPUSH list {}", members.join(" "))).is_error());
    let slow = "for i = 1, 3e7 do end redis.call('SET', KEYS[1], 1)";
    assert!(!operator.run(&format!("EVAL \"{slow}\" 1 learned")).is_error());
    let outside = "redis.call('SET', ARGV[1], 1)";
    let commands = [
        // Begun with the lock of its key alone, and run again.
        (format!("EVAL \"{outside}\" 1 other to"), "(nil)"),
        // By the thread for slow scripts.
        (format!("EVAL \"{slow}\" 1 to"), "(nil)"),
        // More keys than are locked individually.
        ("SORT list BY weight_* STORE to".to_string(), ":1100"),
    ];
    let mut ctx = live.server.core.keyspace.thread_context();
    for (command, reply) in commands {
        live.server.core.keyspace.enter(&mut ctx);
        say(&mut writer, &command);
        std::thread::sleep(Duration::from_millis(100));
        live.server.core.pause.begin(Pauser::End, false, u64::MAX, clock::unix_ms());
        live.server.core.keyspace.leave(&mut ctx);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(operator.run("EXISTS to"), Value::Int(0), "{command}");
        live.server.core.pause.end(Pauser::End);
        live.server.core.workers.wake_all();
        assert_eq!(writer.read().to_string(), reply, "{command}");
        assert_eq!(operator.run("DEL to"), Value::Int(1), "{command}");
    }
    live.stop();
}

/// By prefix as well: the client would be notified of the change before it reads the old value.
#[test]
fn prefix_tracking_clients_are_answered_in_place() {
    let mut world = World::new();
    world.check("> SET k v\n a> HELLO 3 < *\n a> CLIENT TRACKING ON BCAST < OK\n a> TEST.LONG k 1 < \"v\"");
    world.check("> INFO stats < \"*long_commands_queued:0\\r\\nlong_commands_processed:0\\r*\"");
    world.check("a> CLIENT TRACKING OFF < OK\n a> TEST.LONG k 1 < \"v\"");
    world.check("> INFO stats < \"*long_commands_queued:0\\r\\nlong_commands_processed:1\\r*\"");
}
