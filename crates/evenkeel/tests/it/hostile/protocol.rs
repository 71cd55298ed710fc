//! Cut, wrong and random bytes.

use std::time::Duration;

use evenkeel_testkit::random::{Random, fresh_seed};

use super::MIB;
use super::witness::while_serving_a_witness;
use crate::{start, wait_until};

const REQUESTS: &[&[u8]] = &[
    b"*3\r\n$3\r\nSET\r\n$3\r\ncut\r\n$5\r\n\x00\xff\r\n!\r\n",
    b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n",
    b"SET cut \"quoted \\x41 'text'\" EX 1000\r\n",
    b"*1\r\n$4\r\nPING\r\n*0\r\n\r\n*-1\r\nPING\r\n",
    b"*4\r\n$8\r\nBITFIELD\r\n$3\r\ncut\r\n$3\r\nGET\r\n$2\r\nu8\r\n",
];

#[test]
fn a_request_cut_at_any_byte_waits_for_its_rest() {
    let mut server = start(&[]);
    let mut client = server.connect();
    for request in REQUESTS {
        let answers = |client: &mut evenkeel_testkit::Client| {
            client.send(&["ECHO", "end"]).expect("connected");
            let mut replies = Vec::new();
            loop {
                match client.read().to_string() {
                    end if end == "\"end\"" => return replies,
                    reply => replies.push(reply),
                }
            }
        };
        client.run("FLUSHALL");
        client.send_raw(request).expect("connected");
        let whole = answers(&mut client);
        for cut in 1..request.len() {
            client.run("FLUSHALL");
            client.send_raw(&request[..cut]).expect("connected");
            std::thread::sleep(Duration::from_micros(300)); // so that the server reads the first part alone
            client.send_raw(&request[cut..]).expect("connected");
            assert_eq!(answers(&mut client), whole, "cut at byte {cut} of {}", request.escape_ascii());
        }
    }
    server.assert_healthy();
}

#[test]
fn an_incomplete_request_has_no_effect() {
    let mut server = start(&[]);
    for request in [REQUESTS[0], REQUESTS[2]] {
        for cut in 0..request.len() {
            let mut client = server.connect();
            client.send_raw(&request[..cut]).expect("connected");
        }
    }
    wait_until("the connections are gone", || server.info("connected_clients") == "1");
    assert_eq!(server.connect().run("EXISTS cut").to_string(), ":0");
    server.assert_healthy();
}

#[test]
fn malformed_requests_get_a_protocol_error_and_are_disconnected() {
    let mut server = start(&[]);
    let long = |start: &str, byte: &str| [start, &byte.repeat(70_000)].concat();
    let cases: Vec<(String, &str)> = vec![
        ("*2147483648\r\n".into(), "invalid multibulk length"),
        ("*9223372036854775808\r\n".into(), "invalid multibulk length"),
        ("*99999999999999999999999\r\n".into(), "invalid multibulk length"),
        ("*abc\r\n".into(), "invalid multibulk length"),
        ("*1\r\n:1\r\n".into(), "expected '$', got ':'"),
        ("*1\r\nPING\r\n".into(), "expected '$', got 'P'"),
        ("*1\r\n$-1\r\n".into(), "invalid bulk length"),
        ("*1\r\n$abc\r\n".into(), "invalid bulk length"),
        ("*1\r\n$536870913\r\n".into(), "invalid bulk length"),
        ("*1\r\n$9223372036854775807\r\n".into(), "invalid bulk length"),
        ("*1\r\n$18446744073709551615\r\n".into(), "invalid bulk length"),
        ("SET k \"unbalanced\r\n".into(), "unbalanced quotes in request"),
        (long("", "x"), "too big inline request"),
        (long("*", "1"), "too big mbulk count string"),
        (long("*1\r\n$", "1"), "too big bulk count string"),
    ];
    for (bytes, error) in cases {
        let mut client = server.connect();
        // Commands before the invalid bytes are answered first.
        client.send_raw(&[b"PING\r\n", bytes.as_bytes()].concat()).expect("connected");
        let answer = client.read_to_end().expect("the server hangs up");
        let expected = format!("+PONG\r\n-ERR Protocol error: {error}\r\n");
        assert_eq!(String::from_utf8_lossy(&answer), expected, "after {:.40}", bytes.escape_debug());
    }
    server.assert_healthy();
}

#[test]
fn a_million_empty_requests_cost_nothing() {
    let mut server = start(&[]);
    for empty in ["*0\r\n", "*-1\r\n", "\r\n"] {
        let before = server.rss();
        while_serving_a_witness(&mut server, |server| {
            let mut client = server.connect();
            client.send_raw(empty.repeat(1_000_000).as_bytes()).expect("they are read");
            assert_eq!(client.run("PING").to_string(), "PONG");
        });
        assert!(server.rss() < before + 16 * MIB, "{} MiB more for nothing", (server.rss() - before) / MIB);
    }
}

#[test]
fn clients_that_disconnect_without_reading_are_removed() {
    let mut server = start(&[]);
    while_serving_a_witness(&mut server, |server| {
        for _ in 0..200 {
            let mut client = server.connect();
            client.send_raw(&b"PING\r\n".repeat(2_000)).expect("connected");
        }
    });
    wait_until("the connections are gone", || server.info("connected_clients") == "1");
}

/// Random changes of valid requests, on many connections: each gets a reply, an error or a closed connection.
#[test]
fn mutated_requests_are_survived() {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random::new(seed);
    let mut server = start(&[]);
    while_serving_a_witness(&mut server, |server| {
        for _ in 0..1_500 {
            let mut client = server.connect();
            client.send_raw(&mutated(&mut random)).expect("connected");
            let _ = client.finish_sending(); // the server may have closed already
            client.read_to_end().expect("an end, one way or the other");
        }
    });
    wait_until("the connections are gone", || server.info("connected_clients") == "1");
}

fn mutated(random: &mut Random) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..=random.below(4)).flat_map(|_| REQUESTS[random.below(REQUESTS.len())].to_vec()).collect();
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len());
        match random.below(4) {
            0 => bytes[at] = random.draw() as u8,
            1 => drop(bytes.remove(at)),
            2 => drop(bytes.splice(at..at, random.bytes(8))),
            _ => drop(bytes.splice(at..at, random.pick(&["\r\n", "*1\r\n", "$9\r\n", "*-5", "$-"]).bytes())),
        }
        if bytes.is_empty() {
            bytes.push(b'*');
        }
    }
    bytes
}

/// An inline request is parsed in place, which removes its quotes: behind a blocked or paused command it must
/// still be intact.
#[test]
fn a_quoted_line_after_a_blocked_command_is_read_once() {
    let mut server = start(&[]);
    let (mut client, mut other) = (server.connect(), server.connect());
    for first in ["BLPOP none 0.01\r\n", "PING 'a b'\r\n"] {
        let requests = [first.as_bytes(), b"SET quoted \"one \\x41 'two'\"\r\nECHO 'it\\'s'\r\nECHO end\r\n"];
        client.send_raw(&requests.concat()).expect("connected");
        client.read();
        assert_eq!(client.read().to_string(), "OK");
        assert_eq!(client.read().to_string(), "\"it's\"");
        assert_eq!(client.read().to_string(), "\"end\"");
    }
    other.run("CLIENT PAUSE 50 WRITE");
    client.send_raw(b"SET quoted 'a b c'\r\nGET quoted\r\n").expect("connected");
    assert_eq!(client.read().to_string(), "OK");
    assert_eq!(client.read().to_string(), "\"a b c\"");
    server.assert_healthy();
}

/// Empty lines are no requests: exactly the bytes of a paused request are put back.
#[test]
fn empty_lines_before_a_paused_request_change_nothing() {
    let mut server = start(&[]);
    let mut other = server.connect();
    let with_a_line_inside =
        "\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$10\r\nx\r\nFLUSHDB\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
    for (requests, replies) in [
        ("\r\nSET k 1\r\n", &["OK"][..]),
        ("\r\n\r\nSET k 2\r\nGET k\r\n", &["OK", "\"2\""]),
        ("GET k\r\n\r\nSET k 'a b'\r\nGET k\r\n", &["\"2\"", "OK", "\"a b\""]),
        (with_a_line_inside, &["OK", "\"x\\r\\nFLUSHDB\""]),
    ] {
        let mut client = server.connect();
        other.run("CLIENT PAUSE 50 WRITE");
        client.send_raw(requests.as_bytes()).expect("connected");
        for reply in replies {
            assert_eq!(client.read().to_string(), *reply, "{requests:?}");
        }
    }
    // This command needs no authentication.
    let mut unauthenticated = server.connect();
    other.run("CLIENT PAUSE 50 ALL");
    unauthenticated.send_raw(b"\r\nHELLO\r\n").expect("connected");
    assert!(unauthenticated.read().to_string().contains("server"));
    server.assert_healthy();
}

#[test]
fn client_reply_skip_applies_to_a_paused_command() {
    let server = start(&[]);
    let (mut client, mut other) = (server.connect(), server.connect());
    other.run("CLIENT PAUSE 50 WRITE");
    client.send_raw(b"CLIENT REPLY SKIP\r\nSET k v\r\nGET k\r\n").expect("connected");
    assert_eq!(client.read().to_string(), "\"v\"");
}

/// Much data, then the end of the stream: all requests are answered and the end is seen, in any number of
/// turns.
#[test]
fn the_end_of_a_long_request_stream_is_noticed() {
    const REQUESTS: usize = 60_000;
    let server = start(&[]);
    for first in ["", "BLPOP none 0.05\r\n", "CLIENT PAUSE 50 ALL\r\n"] {
        let mut client = server.connect();
        let mut requests = first.as_bytes().to_vec();
        requests.extend(b"EXISTS k\r\n".repeat(REQUESTS));
        client.send_raw(&requests).expect("connected");
        client.finish_sending().expect("connected");
        let replies = client.read_to_end().expect("the server hangs up");
        assert!(replies.ends_with(b":0\r\n:0\r\n"), "{} bytes", replies.len());
    }
}

/// A killed client executes nothing more, even requests sent at the same time.
#[test]
fn a_client_killed_in_the_same_turn_is_not_served() {
    const ROUNDS: usize = 200;
    let server = start(&["--threads", "1", "--enable-debug-command", "yes"]);
    let (mut killer, mut counter) = (server.connect(), server.connect());
    for round in 0..ROUNDS {
        let mut victim = server.connect();
        let id = victim.run("CLIENT ID").to_string();
        let id = id.trim_start_matches(':');
        // Both requests wait in the kernel until the worker is back.
        counter.send_raw(b"DEBUG SLEEP 0.002\r\n").expect("connected");
        std::thread::sleep(std::time::Duration::from_millis(1));
        let kill = format!("CLIENT KILL ID {id}\r\nEXISTS killed\r\n");
        killer.send_raw(kill.as_bytes()).expect("connected");
        victim.send_raw(b"SET killed yes\r\n").expect("connected");
        counter.read();
        assert_eq!(killer.read().to_string(), ":1", "round {round}");
        // It may have come first.
        let then = killer.read();
        assert_eq!(killer.run("EXISTS killed"), then, "round {round}");
        killer.run("DEL killed");
    }
}

/// A replica's connection receives the stream alone: earlier subscriptions, tracking and watches have ended.
#[test]
fn a_connection_that_becomes_a_replica_ends_its_subscriptions() {
    let server = start(&[]);
    let mut other = server.connect();
    for first in ["SUBSCRIBE channel", "CLIENT TRACKING ON BCAST", "WATCH k", "MONITOR"] {
        let mut client = server.connect3();
        client.send_raw(format!("{first}\r\nPSYNC ? -1\r\n").as_bytes()).expect("connected");
        wait_until("it is a replica", || server.info("connected_slaves") == "1");
        let subscribers = other.run("PUBSUB NUMSUB channel").to_string();
        assert_eq!(subscribers, "[\"channel\", :0]", "{first}");
        assert_eq!(server.info("tracking_clients"), "0", "{first}");
        assert_eq!(server.info("watching_clients"), "0", "{first}");
        let monitors = other.run("CLIENT LIST").to_string();
        assert!(!monitors.contains("flags=O"), "{first}: {monitors}");
        drop(client);
        wait_until("it is gone", || server.info("connected_slaves") == "0");
    }
}

#[test]
fn a_watching_client_is_reset_during_a_busy_script() {
    let server = start(&["--busy-reply-threshold", "20"]);
    let (mut client, mut busy, mut other) = (server.connect(), server.connect(), server.connect());
    client.run("WATCH k");
    busy.send_raw(b"EVAL 'while true do end' 0\r\n").expect("connected");
    wait_until("the script is busy", || other.run("PING").to_string().contains("BUSY"));
    assert_eq!(client.run("RESET").to_string(), "RESET");
    assert_eq!(client.run("RESET").to_string(), "RESET");
    assert_eq!(other.run("SCRIPT KILL").to_string(), "OK");
    wait_until("it has ended", || other.run("PING").to_string() == "PONG");
    assert_eq!(server.info("watching_clients"), "0");
    // No watch is left in the slot: this is a new watch.
    other.run("WATCH k");
    client.run("SET k v");
    other.run("MULTI");
    assert_eq!(other.run("EXEC").to_string(), "(nil array)");
}
