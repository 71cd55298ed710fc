//! MIGRATE between servers.

use std::net::TcpListener;

use evenkeel_testkit::{Client, Server};

use crate::{start, wait_until};

/// Migrates with these arguments, which follow the address.
fn migrate(client: &mut Client, to: &Server, what: &str) -> String {
    client.run(&format!("MIGRATE 127.0.0.1 {} {what}", to.port())).to_string()
}

/// A host that accepts connections and stays silent as long as it exists, and its port.
fn silent_host() -> (TcpListener, String) {
    let host = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = host.local_addr().expect("it is bound").port().to_string();
    (host, port)
}

fn kept(client: &mut Client) -> String {
    let info = client.run("INFO stats").to_string();
    let (_, rest) = info.split_once("migrate_cached_sockets:").expect("INFO has it");
    rest.chars().take_while(char::is_ascii_digit).collect()
}

#[test]
fn keys_move_with_values_and_deadlines() {
    let (from, to) = (start(&[]), start(&[]));
    let (mut here, mut there) = (from.connect(), to.connect());
    here.run("RPUSH list a b c");
    here.run("SET timed v PX 100000");
    here.run("HSET copied f v");
    assert_eq!(migrate(&mut here, &to, "'' 0 5000 KEYS list timed nosuch list"), "OK");
    assert_eq!(migrate(&mut here, &to, "copied 3 5000 COPY"), "OK");
    assert_eq!(migrate(&mut here, &to, "nosuch 0 5000"), "NOKEY");
    assert_eq!(here.run("EXISTS list timed copied").to_string(), ":1");
    assert_eq!(there.run("LRANGE list 0 -1").to_string(), "[\"a\", \"b\", \"c\"]");
    let ttl = there.run("PTTL timed").to_string();
    assert!(matches!(ttl[1..].parse(), Ok(90_000..=100_000)), "{ttl}");
    there.run("SELECT 3");
    assert_eq!(there.run("HGET copied f").to_string(), "\"v\"");
    let busy = "-ERR Target instance replied with error: BUSYKEY Target key name already exists.";
    assert_eq!(migrate(&mut here, &to, "copied 3 5000"), busy);
    assert_eq!(migrate(&mut here, &to, "copied 3 5000 REPLACE"), "OK");
    assert_eq!(here.run("DBSIZE").to_string(), ":0");
}

#[test]
fn a_cached_connection_is_replaced_once_the_target_has_closed_it() {
    let (from, mut to) = (start(&[]), start(&[]));
    let mut here = from.connect();
    here.run("MSET a 1 b 2 c 3");
    assert_eq!(kept(&mut here), "0");
    for key in ["a", "b"] {
        assert_eq!(migrate(&mut here, &to, &format!("{key} 0 5000")), "OK");
        assert_eq!(kept(&mut here), "1");
    }
    assert!(to.stop().success());
    assert!(migrate(&mut here, &to, "c 0 5000").starts_with("-IOERR "), "nobody listens");
    assert_eq!((kept(&mut here).as_str(), here.run("GET c").to_string().as_str()), ("0", "\"3\""));
    to.start_again();
    assert_eq!(migrate(&mut here, &to, "c 0 5000"), "OK");
    assert!(to.stop().success());
    to.start_again();
    here.run("SET d 4");
    assert_eq!(migrate(&mut here, &to, "d 0 5000"), "OK", "the kept connection is dead, a new one is not");
    assert_eq!(to.connect().run("GET d").to_string(), "\"4\"");
}

/// In Redis the next caller has the last caller's rights; here it does not.
#[test]
fn credentials_are_not_shared_between_callers() {
    let (from, to) = (start(&[]), start(&["--requirepass", "secret"]));
    let mut here = from.connect();
    here.run("MSET a 1 b 2");
    assert_eq!(migrate(&mut here, &to, "a 0 5000 AUTH secret"), "OK");
    let refused = migrate(&mut here, &to, "b 0 5000");
    assert_eq!(refused, "-ERR Target instance replied with error: NOAUTH Authentication required.");
    assert!(migrate(&mut here, &to, "b 0 5000 AUTH wrong").contains("WRONGPASS"));
    assert_eq!(migrate(&mut here, &to, "b 0 5000 AUTH secret"), "OK");
    assert_eq!(here.run("DBSIZE").to_string(), ":0");
}

/// A client that waits for a silent server delays no other client, and its wait ends when it disconnects.
#[test]
fn a_silent_host_delays_no_other_client() {
    let server = start(&["--threads", "1", "--save", ""]);
    let (_silent, port) = silent_host();
    let mut client = server.connect();
    client.run("MSET a 1 b 2 c 3");
    let waiting = ["a", "b", "c"].map(|key| {
        let mut waiting = server.connect();
        waiting.send(&["MIGRATE", "127.0.0.1", &port, key, "0", "600000000"]).expect("it reads");
        waiting
    });
    wait_until("all wait", || server.info("long_commands_running") == "3");
    assert_eq!(client.run("BGSAVE").to_string(), "Background saving started");
    assert_eq!(client.run("FLUSHDB SYNC").to_string(), "OK");
    client.run("SET a 1");
    assert_eq!(client.run("CLIENT KILL TYPE normal SKIPME yes").to_string(), ":3");
    wait_until("nobody waits any more", || server.info("long_commands_running") == "0");
    assert_eq!(client.run("GET a").to_string(), "\"1\"");
    drop(waiting);
}

/// Beyond a number of threads further calls are refused; the waiting calls end at their timeout.
#[test]
fn the_number_of_waiting_migrate_calls_is_bounded() {
    let server = start(&["--threads", "1", "--save", ""]);
    let (_silent, port) = silent_host();
    let mut client = server.connect();
    client.run("SET k 1");
    let words = |timeout: &str| ["MIGRATE", "127.0.0.1", &port, "k", "0", timeout].map(str::to_owned);
    let mut waiting: Vec<_> = (0..64).map(|_| server.connect()).collect();
    waiting.iter_mut().for_each(|one| one.send(&words("3000")).expect("it reads"));
    wait_until("all wait", || server.info("long_commands_running") == "64");
    let refused = "-ERR Too many commands are waiting for other servers or the disk, try again later";
    assert_eq!(client.call(&words("100")).to_string(), refused);
    for one in &mut waiting {
        assert_eq!(one.read().to_string(), "-IOERR error or timeout reading to target instance");
    }
    assert_eq!(client.call(&words("100")).to_string(), "-IOERR error or timeout reading to target instance");
    assert_eq!(client.run("GET k").to_string(), "\"1\"");
}
