//! MIGRATE: to real servers and to Evenkeel, refused calls, and targets that misbehave.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use evenkeel_testkit::server::free_port;
use evenkeel_testkit::{Client, Program, Reference, Server};

use super::build;
use super::content::{Depth, content};
use super::samples::{Needs, few};
use crate::{program, start};

/// MIGRATE to a port, the rest as on a command line.
fn migrate(client: &mut Client, port: u16, rest: &str) -> String {
    client.run(&format!("MIGRATE 127.0.0.1 {port} {rest}")).to_string()
}

#[test]
fn values_of_all_types_move() {
    let references = [Reference::Redis, Reference::Valkey].into_iter().filter_map(Program::oracle);
    // A reference server writes its own version, which older servers do not read.
    let references = references.filter(|_| program().reference().is_none());
    for target in [program()].into_iter().chain(references) {
        let is_old = [target.reference(), program().reference()].contains(&Some(Reference::Redis));
        let (source, target) = (start(&[]), Server::start(&target, &[]));
        let (mut here, mut there) = (source.connect(), target.connect());
        for sample in few().iter().filter(|sample| sample.needs == Needs::Nothing || !is_old) {
            build(&mut here, sample);
            let depth = if is_old { Depth::Common } else { Depth::Newest };
            let expected = content(&mut here, "v", depth);
            assert_eq!(migrate(&mut here, target.port(), "v 0 5000 REPLACE"), "OK", "{}", sample.name);
            assert!(content(&mut there, "v", depth) == expected, "{}", sample.name);
            assert_eq!(here.run("EXISTS v").as_int(), Some(0), "{}", sample.name);
        }
    }
}

#[test]
fn migrate_options_decide_the_fate_of_the_keys() {
    let (source, target) = (start(&[]), start(&[]));
    let (mut here, mut there, port) = (source.connect(), target.connect(), target.port());
    here.run("MSET a 1 b 2 c 3");
    assert_eq!(migrate(&mut here, port, "nosuch 0 1000"), "NOKEY");
    assert_eq!(migrate(&mut here, port, "\"\" 0 1000 KEYS nosuch neither"), "NOKEY");

    here.run("PEXPIRE a 1000000");
    assert_eq!(migrate(&mut here, port, "a 9 1000 COPY"), "OK");
    assert_eq!(here.run("GET a").to_string(), "\"1\"");
    there.run("SELECT 9");
    let ttl = there.run("PTTL a").as_int().expect("a time");
    assert!((900_000..=1_000_000).contains(&ttl), "{ttl}");

    let busy = "-ERR Target instance replied with error: BUSYKEY Target key name already exists.";
    assert_eq!(migrate(&mut here, port, "a 9 1000"), busy);
    assert_eq!(here.run("GET a").to_string(), "\"1\"");
    here.run("SET a new KEEPTTL");
    assert_eq!(migrate(&mut here, port, "a 9 1000 REPLACE"), "OK");
    assert_eq!(there.run("GET a").to_string(), "\"new\"");
    assert_eq!(here.run("EXISTS a").as_int(), Some(0));

    // Keys that the target can take are moved, whatever happens to the rest.
    there.run("SET b there");
    assert_eq!(migrate(&mut here, port, "\"\" 9 1000 KEYS nosuch b c"), busy);
    assert_eq!(here.run("MGET b c").to_string(), "[\"2\", (nil)]");
    assert_eq!(there.run("MGET b c").to_string(), "[\"there\", \"3\"]");
}

#[test]
fn credentials_are_passed_on() {
    let (source, target) = (start(&[]), start(&["--requirepass", "open sesame"]));
    let (mut here, port) = (source.connect(), target.port());
    here.run("MSET a 1 b 2");
    let error_of_target = |what: &str| format!("-ERR Target instance replied with error: {what}");
    assert_eq!(migrate(&mut here, port, "a 0 1000"), error_of_target("NOAUTH Authentication required."));
    let wrong = error_of_target("WRONGPASS invalid username-password pair or user is disabled.");
    assert_eq!(migrate(&mut here, port, "a 0 1000 AUTH nonsense"), wrong);
    assert_eq!(migrate(&mut here, port, "a 0 1000 AUTH2 nobody nonsense"), wrong);
    assert_eq!(here.run("EXISTS a b").as_int(), Some(2));
    assert_eq!(migrate(&mut here, port, "a 0 1000 AUTH \"open sesame\""), "OK");
    assert_eq!(migrate(&mut here, port, "\"\" 0 1000 AUTH2 default \"open sesame\" KEYS b"), "OK");
    assert_eq!(here.run("EXISTS a b").as_int(), Some(0));
}

#[test]
fn invalid_migrate_calls_are_refused_before_any_change() {
    let (source, target) = (start(&[]), start(&[]));
    let (mut here, port) = (source.connect(), target.port());
    here.run("SET a 1");
    for (rest, error) in [
        ("a 0", "-ERR wrong number of arguments for 'migrate' command"),
        ("a 0 soon", "-ERR value is not an integer or out of range"),
        ("a zero 1000", "-ERR value is not an integer or out of range"),
        ("a 0 1000 NONSENSE", "-ERR syntax error"),
        ("a 0 1000 COPY AUTH", "-ERR syntax error"),
        ("a 0 1000 AUTH2 one", "-ERR syntax error"),
        (
            "a 0 1000 KEYS a",
            "-ERR When using MIGRATE KEYS option, the key argument must be set to the empty string",
        ),
        ("a 99 1000", "-ERR Target instance replied with error: ERR DB index is out of range"),
    ] {
        assert_eq!(migrate(&mut here, port, rest), error, "{rest}");
        assert_eq!(here.run("GET a").to_string(), "\"1\"", "{rest}");
    }
    let nobody = migrate(&mut here, free_port(), "a 0 200");
    assert_eq!(nobody, "-IOERR error or timeout writing to target instance");
}

/// A target that accepts all data and gives the replies that a test wants.
fn target(serve: impl FnOnce(std::net::TcpStream) + Send + 'static) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = listener.local_addr().expect("a bound socket has an address").port();
    std::thread::spawn(move || serve(listener.accept().expect("somebody connects").0));
    port
}

#[test]
fn a_silent_migrate_target_delays_no_other_client() {
    let mut source = start(&[]);
    let (mut here, mut other) = (source.connect(), source.connect());
    here.run("SET a 1");
    let port = target(|mut stream| {
        let _ = stream.read_to_end(&mut Vec::new()); // until the source closes
    });
    let started = Instant::now();
    let words = ["MIGRATE", "127.0.0.1", &port.to_string(), "a", "0", "700"];
    here.send(&words).expect("connected");
    let answer = other.run("GET a").to_string();
    if program().reference().is_none() {
        assert!(started.elapsed() < Duration::from_millis(600), "others wait for {:?}", started.elapsed());
    }
    assert_eq!(answer, "\"1\"");
    let reply = here.read().to_string();
    assert_eq!(reply, "-IOERR error or timeout reading to target instance");
    assert!(started.elapsed() >= Duration::from_millis(650), "{:?}", started.elapsed());
    assert_eq!(here.run("GET a").to_string(), "\"1\"");
    source.assert_healthy();
}

const TOUCHED: &str = "-ERR A key was changed while it was being migrated: the copy is on the target, and \
                       the key here was not deleted";

/// A key written to during its transfer must not be lost. In the reference servers no write can come in
/// between.
#[test]
fn a_key_written_during_migrate_stays() {
    if program().reference().is_some() {
        return;
    }
    let mut source = start(&[]);
    let (mut here, mut other) = (source.connect(), source.connect());
    here.run("MSET a 1 b 2");
    here.run("RPUSH c x y");
    let reply = migrate_during(&mut here, &["a", "b", "c"], 3, || {
        other.run("SET a changed");
        other.run("RPUSH c z");
    });
    assert_eq!(reply, TOUCHED);
    assert_eq!(here.run("MGET a b").to_string(), "[\"changed\", (nil)]");
    assert_eq!(here.run("LRANGE c 0 -1").to_string(), "[\"x\", \"y\", \"z\"]");
    source.assert_healthy();
}

/// A target that calls `act` before it takes keys, and then answers `count` times.
fn migrate_during(here: &mut Client, keys: &[&str], count: usize, act: impl FnOnce()) -> String {
    let (arrived, arrivals) = std::sync::mpsc::channel();
    let (go_on, waits) = std::sync::mpsc::channel();
    let port = target(move |mut stream| {
        let mut read = vec![0; 4096];
        let _ = stream.read(&mut read);
        arrived.send(()).expect("the test waits");
        waits.recv().expect("the test goes on");
        for _ in 0..=count {
            stream.write_all(b"+OK\r\n").expect("connected");
            let _ = stream.read(&mut read);
        }
        let _ = stream.read_to_end(&mut read); // until the source closes
    });
    let port = port.to_string();
    let words = ["MIGRATE", "127.0.0.1", &port, "", "0", "9000", "KEYS"];
    here.send(&[&words[..], keys].concat()).expect("connected");
    arrivals.recv().expect("it connects");
    act();
    go_on.send(()).expect("the target waits");
    here.read().to_string()
}

/// The key would reappear at the target after its client was told of the removal.
#[test]
fn a_key_removed_during_migrate_is_reported() {
    if program().reference().is_some() {
        return;
    }
    let mut source = start(&[]);
    let (mut here, mut other) = (source.connect(), source.connect());
    for (line, left) in [("DEL a", 1), ("RENAME a c", 2), ("FLUSHALL", 0), ("MOVE a 1", 1), ("UNLINK a b", 0)]
    {
        here.run("MSET a 1 b 2");
        here.run("DEL c");
        let reply = migrate_during(&mut here, &["a"], 1, || drop(other.run(line)));
        assert_eq!(reply, TOUCHED, "{line}");
        assert_eq!(here.run("DBSIZE").as_int(), Some(left), "{line}");
        here.run("FLUSHALL");
    }
    // An expired key is gone at the target as well.
    here.run("SET a 1 PX 300");
    let wait = || std::thread::sleep(Duration::from_millis(400));
    assert_eq!(migrate_during(&mut here, &["a"], 1, wait), "OK");
    source.assert_healthy();
}

/// An equal value may be another value than the sent value: the target may have sent it back.
#[test]
fn a_key_created_again_during_migrate_stays() {
    if program().reference().is_some() {
        return;
    }
    let mut source = start(&[]);
    let (mut here, mut other) = (source.connect(), source.connect());
    for lines in [&["SET a 1"][..], &["DEL a", "SET a 1"], &["INCR a", "DECR a"], &["FLUSHALL", "SET a 1"]] {
        here.run("SET a 1");
        let act = || lines.iter().for_each(|line| drop(other.run(line)));
        assert_eq!(migrate_during(&mut here, &["a"], 1, act), TOUCHED, "{lines:?}");
        assert_eq!(here.run("GET a").to_string(), "\"1\"", "{lines:?}");
    }
    // No watch is left afterwards.
    assert_eq!(migrate_during(&mut here, &["a"], 1, || {}), "OK");
    assert_eq!(here.run("EXISTS a").as_int(), Some(0));
    source.assert_healthy();
}

#[test]
fn keys_migrated_to_their_own_database_stay() {
    let server = start(&[]);
    let (mut client, port) = (server.connect(), server.port());
    client.run("MSET short v number 12345");
    client.call(&["SET", "long", &"x".repeat(100_000)]);
    client.run("RPUSH list a b c");
    client.run("XADD stream 1-1 f v");
    for key in ["short", "number", "long", "list", "stream"] {
        let reply = migrate(&mut client, port, &format!("{key} 0 300 REPLACE"));
        assert!(reply.starts_with('-'), "{key}: {reply}");
        assert_eq!(client.run(&format!("EXISTS {key}")).as_int(), Some(1), "{key}");
    }
}

/// Each key is sent with its remaining time to live at its turn, and not sent once it has expired.
#[test]
fn the_ttl_of_a_key_runs_while_migrate_sends_earlier_keys() {
    // A reference server sends all keys at once, before they expire.
    if program().reference().is_some() {
        return;
    }
    let source = start(&[]);
    let mut here = source.connect();
    here.run("MSET a 1 b 2 c 3");
    here.run("PEXPIRE b 200");
    here.run("PEXPIRE c 100000");
    let (sender, receiver) = std::sync::mpsc::channel();
    let port = target(move |mut stream| {
        let (mut all, mut piece) = (Vec::new(), vec![0; 4096]);
        // Replies to SELECT, and to each RESTORE in turn.
        while let Ok(len @ 1..) = stream.read(&mut piece) {
            all.extend_from_slice(&piece[..len]);
            std::thread::sleep(Duration::from_millis(250));
            let _ = stream.write_all(b"+OK\r\n");
        }
        let _ = sender.send(all);
    });
    here.send(&["MIGRATE", "127.0.0.1", &port.to_string(), "", "0", "2000", "KEYS", "a", "b", "c"])
        .expect("connected");
    assert_eq!(here.read().to_string(), "OK");
    assert_eq!(here.run("EXISTS a b c").as_int(), Some(0));
    drop((here, source)); // the connection would be kept for another call
    let sent = receiver.recv().expect("it ends");
    let text = String::from_utf8_lossy(&sent);
    let at = |what: &str| text.find(what);
    assert!(at("\r\n$1\r\na\r\n$1\r\n0\r\n").is_some(), "{text}");
    assert!(at("\r\n$1\r\nb\r\n").is_none(), "{text}");
    let ttl =
        text.split("\r\n$1\r\nc\r\n").nth(1).and_then(|rest| rest.split("\r\n").nth(1)).expect("it is sent");
    assert!((90_000..=99_500).contains(&ttl.parse::<u32>().expect("a number")), "{ttl}");
}
