//! memcached with one worker thread.

use std::io::{Read, Write};
use std::time::Duration;

use evenkeel_testkit::server::free_port;

use super::loads::{fetch, repeat, silent};
use super::{Service, expect, expect_cause, expect_none, has};
use crate::Folder;
use crate::stage::{self, Place, stage};

const PROGRAM: &str = "/usr/bin/memcached";
const REST: Duration = Duration::from_millis(2);
const VALUE: usize = 500_000;

/// `None`, with a message, if it is not installed.
fn start(place: Place, more: &[&str]) -> Option<Service> {
    if !has(PROGRAM) {
        return None;
    }
    let port = free_port();
    let port_word = port.to_string();
    let words =
        [PROGRAM, "-u", "root", "-l", "127.0.0.1", "-p", &port_word, "-U", "0", "-t", "1", "-m", "200"];
    Some(Service::start(place, &[&words[..], more].concat(), Folder::new("memcached"), port))
}

#[test]
fn the_limit_of_connections_is_the_first_finding() {
    let _stage = stage();
    let Some(memcached) = start(stage::ALL, &["-c", "30", "-o", "no_maxconns_fast"]) else { return };
    let _silent = silent(memcached.port, 32);
    std::thread::sleep(Duration::from_millis(200));
    let _clients = fetch(memcached.port, "/", 6, REST);
    let port = memcached.port.to_string();
    expect_cause("memcached, its limit of connections", memcached.pid(), "R10", &[&port]);
}

#[test]
#[ignore = "long"]
fn below_the_limit_of_connections_nothing_waits() {
    let _stage = stage();
    let Some(memcached) = start(stage::ALL, &["-c", "100"]) else { return };
    let _silent = silent(memcached.port, 32);
    let _clients = repeat(memcached.port, "get none\r\n", "END\r\n", 6, REST);
    expect_none("memcached, below its limit of connections", memcached.pid(), "R10");
}

/// Stores a large value.
fn store(port: u16) {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let text = format!("set large 0 0 {VALUE}\r\n{}\r\n", "x".repeat(VALUE));
    stream.write_all(text.as_bytes()).expect("it reads");
    let mut reply = [0; 8];
    stream.read_exact(&mut reply).expect("it replies");
    assert_eq!(&reply, b"STORED\r\n");
}

#[test]
#[ignore = "long"]
fn a_client_with_giant_requests_is_the_first_finding() {
    let _stage = stage();
    let Some(memcached) = start(stage::SERVER, &[]) else { return };
    store(memcached.port);
    let _calm = repeat(memcached.port, "get none\r\n", "END\r\n", 5, REST);
    let request = format!("get{}\r\n", " large".repeat(40));
    let _giant = repeat(memcached.port, &request, "END\r\n", 1, Duration::ZERO);
    expect("memcached, a client with giant requests", memcached.pid(), |seen| {
        super::names(seen, "R21", &["127.0.0.1:"]) || super::names(seen, "R2", &["127.0.0.1:"])
    });
}

#[test]
#[ignore = "long"]
fn equal_clients_are_no_finding() {
    let _stage = stage();
    let Some(memcached) = start(stage::SERVER, &[]) else { return };
    let _calm = repeat(memcached.port, "get none\r\n", "END\r\n", 6, REST);
    expect_none("memcached, equal clients", memcached.pid(), "R21");
}

#[test]
#[ignore = "long"]
fn a_busy_thread_is_critical_and_its_sends_are_the_first_finding() {
    let _stage = stage();
    let Some(memcached) = start(stage::SERVER, &[]) else { return };
    store(memcached.port);
    let _clients = repeat(memcached.port, "get large\r\n", "END\r\n", 4, Duration::ZERO);
    expect_cause("memcached, large values", memcached.pid(), "R2", &["client"]);
}
