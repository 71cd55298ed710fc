//! Waiting, over sockets and on several threads.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use evenkeel_resp::value::Value;
use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Client, Random};
use parking_lot::Mutex;

use crate::testing::live::Live;

fn ok() -> Value {
    Value::Simple(b"OK".to_vec())
}

fn text(client: &mut Client) -> String {
    client.read().to_string()
}

fn say(client: &mut Client, line: &str) {
    client.send(&evenkeel_testkit::words::split(line).expect("a command line")).expect("an open connection");
}

#[test]
fn clients_of_all_workers_share_one_queue() {
    let live = Live::start(3, &[]);
    let mut clients: Vec<Client> = (0..12).map(|_| live.connect()).collect();
    let mut pusher = live.connect();
    for round in 0..20 {
        for (number, client) in clients.iter_mut().enumerate() {
            say(client, "TEST.BGET {q}k1 k2 0");
            live.await_blocked(number + 1);
        }
        for number in 0..clients.len() {
            let key = if number % 2 == 0 { "{q}k1" } else { "k2" };
            assert_eq!(pusher.run(&format!("SET {key} {round}-{number}")), ok());
        }
        for (number, client) in clients.iter_mut().enumerate() {
            assert!(text(client).ends_with(&format!("\"{round}-{number}\"]")), "{number}");
        }
        assert_eq!(pusher.run("EXISTS {q}k1 k2"), Value::Int(0));
        live.await_blocked(0);
    }
    live.verify();
    live.stop();
}

/// Never early. As for lateness, a single good try is enough on a machine that is often busy with other work.
#[test]
fn timeouts_have_millisecond_precision() {
    let live = Live::start(2, &[]);
    let mut client = live.connect();
    let late = |ms: u64, client: &mut Client| {
        let started = Instant::now();
        assert_eq!(client.run(&format!("TEST.BGET k 0.0{ms:02}")), Value::NullArray);
        let elapsed = started.elapsed();
        assert!(elapsed >= Duration::from_millis(ms), "{elapsed:?} for {ms} ms");
        elapsed - Duration::from_millis(ms)
    };
    for ms in [1, 2, 7, 30] {
        let (began, mut best) = (Instant::now(), Duration::MAX);
        while best >= Duration::from_micros(1_500) {
            assert!(began.elapsed() < Duration::from_secs(20), "{best:?} late");
            best = best.min(late(ms, &mut client));
        }
        println!("{ms} ms: {best:?} late");
    }
    live.verify();
}

#[test]
fn disconnected_clients_take_no_elements() {
    let live = Live::start(2, &[]);
    let mut pusher = live.connect();
    for round in 0..200 {
        let mut client = live.connect();
        say(&mut client, "TEST.BGET k 0");
        live.await_blocked(1);
        // The server's worker need not know of it when the key is written to.
        drop(client);
        assert_eq!(pusher.run("SET k v"), ok());
        live.await_blocked(0);
        assert_eq!(pusher.run("GETDEL k").to_string(), "\"v\"", "round {round}");
    }
    live.verify();
    live.stop();
}

/// An element taken for a client before it hung up is sent, since the client may still be reading.
#[test]
fn popped_elements_are_sent_after_a_half_close() {
    let live = Live::start(2, &[]);
    let (mut pusher, mut sent) = (live.connect(), 0);
    for round in 0..2_000 {
        let mut client = live.connect();
        say(&mut client, "TEST.BGET k 0");
        live.await_blocked(1);
        say(&mut pusher, "SET k v");
        // Either event comes first, or both at once.
        (0..round % 64).for_each(|_| std::hint::spin_loop());
        client.finish_sending().expect("an open connection");
        let reply = client.read_to_end().expect("the server hangs up");
        assert_eq!(pusher.read(), ok());
        let stays = pusher.run("DEL k") == Value::Int(1);
        assert_eq!(reply.is_empty(), stays, "round {round}");
        sent += u32::from(!stays);
    }
    println!("{sent} of 2000 were sent");
    live.verify();
    live.stop();
}

#[test]
fn a_command_may_arrive_with_the_end_of_the_stream() {
    let live = Live::start(1, &[]);
    let mut client = live.connect();
    say(&mut client, "TEST.BGET k 0");
    say(&mut client, "SET unheard v");
    client.finish_sending().expect("an open connection");
    assert_eq!(client.read_to_end().expect("the server hangs up"), b"");
    assert_eq!(live.connect().run("EXISTS unheard"), Value::Int(0));
    assert_eq!(live.server.hub.clients.totals().blocked, 0);
    live.verify();
}

#[test]
fn pipelined_commands_run_after_the_wait() {
    let live = Live::start(2, &[]);
    let (mut client, mut pusher) = (live.connect(), live.connect());
    let padding = "x".repeat(500);
    say(&mut client, "ECHO before");
    say(&mut client, "TEST.BGET k 0");
    live.await_blocked(1);
    // More than the socket takes: the rest comes when the server reads again.
    let mut lines = Vec::new();
    for number in 0..2_000 {
        lines.push(vec!["ECHO".to_owned(), format!("{number}-{padding}")]);
    }
    let bytes: Vec<u8> = lines.iter().flat_map(|line| evenkeel_resp::value::encode_command(line)).collect();
    std::thread::scope(|scope| {
        let replies = scope.spawn(|| {
            client.send_raw(&bytes).expect("it is read in the end");
            (0..2_002).map(|_| text(&mut client)).collect::<Vec<_>>()
        });
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(pusher.run("SET k v"), ok());
        let replies = replies.join().expect("all replies");
        assert_eq!(replies[..2], ["\"before\"", "[\"k\", \"v\"]"]);
        assert!(
            replies[2..].iter().enumerate().all(|(number, one)| one.starts_with(&format!("\"{number}-")))
        );
    });
    live.stop();
}

#[test]
fn waits_end_with_their_connections() {
    let live = Live::start(2, &["--timeout", "1"]);
    let mut operator = live.connect();
    for number in 0..6 {
        let client = &mut live.connect();
        let Value::Int(id) = client.run("CLIENT ID") else { panic!("an id") };
        say(client, "TEST.BMOVE from to 100");
        live.await_blocked(1);
        match number {
            0 => assert_eq!(operator.run(&format!("CLIENT KILL ID {id}")), Value::Int(1)),
            1 => {
                assert_eq!(operator.run(&format!("CLIENT UNBLOCK {id} ERROR")), Value::Int(1));
                assert_eq!(text(client), "-UNBLOCKED client unblocked via CLIENT UNBLOCK");
            }
            2 => {
                assert_eq!(operator.run(&format!("CLIENT UNBLOCK {id}")), Value::Int(1));
                assert_eq!(text(client), "(nil array)");
            }
            // A waiting client is not idle.
            3 => {
                (0..30).for_each(|_| {
                    assert_eq!(operator.run("PING").to_string(), "PONG");
                    std::thread::sleep(Duration::from_millis(50));
                });
                assert_eq!(operator.run(&format!("CLIENT UNBLOCK {id}")), Value::Int(1));
                assert_eq!(text(client), "(nil array)");
            }
            _ => {
                client.finish_sending().expect("an open connection");
                assert_eq!(client.read_to_end().expect("the end"), b"");
            }
        }
        live.await_blocked(0);
    }
    assert_eq!(operator.run("SET from v"), ok());
    assert_eq!(operator.run("GET from").to_string(), "\"v\"");
    live.verify();
}

/// CLIENT PAUSE: writes wait, so no waiter is served; timeouts run on.
#[test]
fn no_client_is_served_during_a_pause() {
    let live = Live::start(2, &[]);
    let (mut operator, mut pusher, mut client) = (live.connect(), live.connect(), live.connect());
    say(&mut client, "TEST.BGET k 0.2");
    live.await_blocked(1);
    assert_eq!(operator.run("CLIENT PAUSE 100000 WRITE"), ok());
    say(&mut pusher, "SET k v");
    assert_eq!(text(&mut client), "(nil array)");
    assert_eq!(operator.run("CLIENT UNPAUSE"), ok());
    assert_eq!(text(&mut pusher), "OK");
    assert_eq!(operator.run("GET k").to_string(), "\"v\"");
}

/// A command that waited for the end of a pause runs before a CLIENT UNBLOCK that comes after CLIENT UNPAUSE.
#[test]
fn a_client_that_was_paused_is_unblocked_at_once() {
    let live = Live::start(2, &[]);
    let mut operator = live.connect();
    let mut clients: Vec<Client> = (0..8).map(|_| live.connect()).collect();
    let id_of = |client: &mut Client| match client.run("CLIENT ID") {
        Value::Int(id) => id,
        other => panic!("{other}"),
    };
    let ids: Vec<i64> = clients.iter_mut().map(id_of).collect();
    for round in 0..100 {
        assert_eq!(operator.run("CLIENT PAUSE 100000 WRITE"), ok());
        clients.iter_mut().for_each(|client| say(client, "TEST.BGET k 0"));
        live.await_blocked(8);
        assert_eq!(operator.run(&format!("CLIENT UNBLOCK {}", ids[0])), Value::Int(0));
        assert_eq!(operator.run("CLIENT UNPAUSE"), ok());
        for id in ids.iter().rev() {
            assert_eq!(operator.run(&format!("CLIENT UNBLOCK {id}")), Value::Int(1), "round {round}");
        }
        clients.iter_mut().for_each(|client| assert_eq!(text(client), "(nil array)"));
    }
}

#[test]
fn a_server_stops_while_clients_are_blocked() {
    let live = Live::start(2, &[]);
    let mut clients: Vec<Client> = (0..8).map(|_| live.connect()).collect();
    clients.iter_mut().for_each(|client| say(client, "TEST.BGET a b c 0"));
    live.await_blocked(8);
    live.server.core.stop();
    clients.iter_mut().for_each(|client| assert_eq!(client.read_to_end().expect("the end"), b""));
    live.wait_until("queues are left", || live.server.core.keyspace.waited_keys() == [0, 0]);
    live.stop();
}

/// The whereabouts of all elements: each was put in once, and has to be in a single place.
#[derive(Default)]
struct Ledger {
    put: Mutex<Vec<String>>,
    taken: Mutex<Vec<String>>,
    stop: AtomicBool,
}

const KEYS: usize = 6;

/// Puts elements where there are none, alone or within a transaction, on keys in several slots and databases.
fn push(live: &Live, ledger: &Ledger, random: &mut Random, name: u64) {
    let mut client = live.connect();
    let mut number = 0;
    while !ledger.stop.load(Relaxed) {
        number += 1;
        let keys: Vec<String> = (0..=random.below(3)).map(|_| format!("k{}", random.below(KEYS))).collect();
        let elements: Vec<String> = (0..keys.len()).map(|at| format!("{name}.{number}.{at}")).collect();
        let is_exec = keys.len() > 1;
        let sets = keys.iter().zip(&elements).map(|(key, element)| format!("SET {key} {element} NX"));
        let lines: Vec<String> = if is_exec {
            std::iter::once("MULTI".to_owned()).chain(sets).chain(["EXEC".to_owned()]).collect()
        } else {
            sets.collect()
        };
        lines.iter().for_each(|line| say(&mut client, line));
        let last = lines.iter().map(|_| client.read()).last().expect("a reply to each");
        let replies = if let Value::Array(replies) = last { replies } else { vec![last] };
        let went_in = elements.into_iter().zip(replies).filter(|(_, reply)| *reply == ok());
        ledger.put.lock().extend(went_in.map(|(element, _)| element));
    }
}

/// Waits for elements in all ways: for ever, for a millisecond or two, until unblocked, until it hangs up.
fn take(live: &Live, ledger: &Ledger, random: &mut Random, name: u64) {
    let mut client = live.connect();
    while !ledger.stop.load(Relaxed) {
        let (one, other) = (random.below(KEYS), random.below(KEYS));
        let timeout = ["0.001", "0.002", "0.02", "0.1"][random.below(4)];
        let line = match random.below(4) {
            // A move would overwrite an element that is there.
            0 if client.run(&format!("EXISTS own{name}")) == Value::Int(0) => {
                format!("TEST.BMOVE k{one} own{name} {timeout}")
            }
            1 => format!("TEST.BGET k{one} {timeout}"),
            _ => format!("TEST.BGET k{one} k{other} own{name} {timeout}"),
        };
        say(&mut client, &line);
        if random.below(20) == 0 {
            client.finish_sending().expect("an open connection");
            let rest = client.read_to_end().expect("the server hangs up");
            if let Some((reply, _)) = evenkeel_resp::value::decode(&rest).expect("whole replies") {
                note(ledger, &reply);
            }
            client = live.connect();
        } else {
            let reply = client.read();
            note(ledger, &reply);
        }
    }
}

/// A reply of `TEST.BGET` is an element taken. The element in a reply of `TEST.BMOVE` is still there.
fn note(ledger: &Ledger, reply: &Value) {
    if let Value::Array(parts) = reply {
        let element = parts[1].as_bytes().expect("a string").to_vec();
        ledger.taken.lock().push(String::from_utf8(element).expect("as it was put in"));
    }
}

/// Inspects, unblocks, and disturbs.
fn meddle(live: &Live, ledger: &Ledger, random: &mut Random) {
    let mut client = live.connect();
    // A connection counts as a client when it was accepted, which a reply shows.
    assert!(!client.run("PING").is_error());
    while !ledger.stop.load(Relaxed) {
        let clients = live.server.hub.clients.list();
        let id = clients[random.below(clients.len())].id;
        match random.below(6) {
            0 => drop(client.run("SWAPDB 1 2")),
            1 => drop(client.run(&format!("RENAME k{} k{}", KEYS, KEYS + 1))),
            2 => drop(client.run("INFO")),
            3 => drop(client.run(&format!("PEXPIRE own{} 100000", random.below(24)))),
            reason => {
                let reason = if reason == 4 { "ERROR" } else { "TIMEOUT" };
                drop(client.run(&format!("CLIENT UNBLOCK {id} {reason}")));
            }
        }
        std::thread::sleep(Duration::from_micros(random.below(300) as u64));
    }
}

#[test]
fn every_element_is_popped_at_most_once() {
    const TAKERS: u64 = 24;
    let live = Live::start(4, &["--maxclients", "1000"]);
    let (ledger, seed) = (Ledger::default(), fresh_seed());
    println!("EVENKEEL_SEED={seed}");
    std::thread::scope(|scope| {
        let (live, ledger) = (&live, &ledger);
        let random = |number: u64| Random::new(seed.wrapping_add(number));
        for name in 0..TAKERS {
            scope.spawn(move || take(live, ledger, &mut random(name), name));
        }
        for name in 0..4 {
            scope.spawn(move || push(live, ledger, &mut random(100 + name), name));
        }
        scope.spawn(move || meddle(live, ledger, &mut random(200)));
        std::thread::sleep(Duration::from_secs(3));
        ledger.stop.store(true, Relaxed);
    });
    live.await_blocked(0);
    let mut client = live.connect();
    let left = (0..KEYS).map(|key| format!("k{key}")).chain((0..TAKERS).map(|name| format!("own{name}")));
    let left: Vec<String> = left
        .filter_map(|key| client.run(&format!("GET {key}")).as_bytes().map(<[u8]>::to_vec))
        .map(|element| String::from_utf8(element).expect("as it was put in"))
        .collect();
    let (mut put, mut seen) = (ledger.put.into_inner(), ledger.taken.into_inner());
    println!("{} put in, {} taken, {} left", put.len(), seen.len(), left.len());
    assert!(seen.len() > 1_000, "they had enough to do");
    seen.extend(left);
    put.sort_unstable();
    seen.sort_unstable();
    assert_eq!(put, seen);
    assert_eq!(live.server.core.keyspace.waited_keys(), [0, 0]);
    live.verify();
    live.stop();
}

/// Its waiter is run again, finds nothing and keeps waiting.
#[test]
fn keys_that_expire_within_a_transaction_serve_nobody() {
    let live = Live::start(2, &["--enable-debug-command", "yes"]);
    let (mut client, mut pusher) = (live.connect(), live.connect());
    say(&mut client, "BLPOP k 0");
    live.await_blocked(1);
    for line in ["MULTI", "RPUSH k a", "PEXPIRE k 60", "DEBUG SLEEP 0.15", "EXEC"] {
        pusher.run(line);
    }
    live.await_blocked(1);
    assert_eq!(pusher.run("RPUSH k b"), Value::Int(1));
    assert_eq!(text(&mut client), "[\"k\", \"b\"]");
    live.verify();
    live.stop();
}
