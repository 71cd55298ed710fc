//! The data during an upgrade: the new process maps their memory, or gets a copy.

use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Reference, Server as Plain};

use super::{Server, must_upgrade, start};
use crate::following::LEFT_OUT;
use crate::random::send_random;
use crate::wait_until;

/// The line of `evenkeel upgrade` that says that the memory is mapped.
const MAPPED: &str = "has mapped the data";

fn digest(server: &Plain) -> String {
    server.connect().run("DEBUG DIGEST").to_string()
}

fn used(server: &Plain) -> u64 {
    server.info("used_memory").parse().expect("a number")
}

/// Random commands of all types between upgrades. A replica, which follows by the stream of writes alone,
/// must have the same data each time.
fn random_data_stay(args: &[&str], maps: bool) {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let args = [&["--threads", "2", "--enable-debug-command", "yes"], args].concat();
    let server = start(&args);
    let replica = start(&["--threads", "1", "--enable-debug-command", "yes"]);
    replica.connect().run(&format!("REPLICAOF 127.0.0.1 {}", server.port()));
    wait_until("the replica follows", || replica.info("master_link_status") == "up");
    for round in 0..5 {
        send_random(&server, Reference::Valkey, seed + round, 400, LEFT_OUT);
        let mut client = server.connect();
        client.run("SETRANGE rope 3000000 x");
        client.run("APPEND rope 12345");
        client.run("COPY rope other REPLACE");
        client.run("PEXPIRE other 100000");
        // An element of several megabytes has a page of its own.
        client.call(&["RPUSH", "long", &"e".repeat(3 << 20), "short", &"f".repeat(40_000)]);
        // Each snapshot marks all entries, and the next process has to know with which mark.
        if round % 3 != 1 {
            assert_eq!(client.run("SAVE").to_string(), "OK");
        }
        // Keys expire meanwhile, so both are asked again.
        wait_until("the replica has the same data", || digest(&replica) == digest(&server));
        let text = must_upgrade(&server);
        assert_eq!(text.contains(MAPPED), maps, "{text}");
        wait_until("the replica has the same data", || digest(&replica) == digest(&server));
        let late = start(&["--threads", "1", "--enable-debug-command", "yes"]);
        late.connect().run(&format!("REPLICAOF 127.0.0.1 {}", server.port()));
        wait_until("a snapshot has the same data", || digest(&late) == digest(&server));
    }
    assert_eq!(replica.info("master_link_status"), "up");
    server.connect().run("FLUSHALL SYNC");
    wait_until("nothing is left of the data", || used(&server) < 16 << 20);
    replica.connect().run("REPLICAOF NO ONE");
}

#[test]
fn data_that_are_mapped_stay() {
    random_data_stay(&[], true);
}

#[test]
fn data_that_are_compacted_meanwhile_stay() {
    random_data_stay(&["--activedefrag", "yes", "--maxmemory", "100mb"], true);
}

#[test]
fn data_that_are_copied_stay() {
    random_data_stay(&["--shared-memory", "no"], false);
}

/// Memory of the server's process that is resident, in bytes.
fn resident(server: &Server) -> u64 {
    server.info("used_memory_rss").parse().expect("a number")
}

/// Nothing is lost or left over from one upgrade to the next.
#[test]
fn a_hundred_upgrades_leave_nothing_behind() {
    let server = start(&["--threads", "2", "--enable-debug-command", "yes"]);
    let mut client = server.connect();
    let empty = used(&server);
    client.run("DEBUG POPULATE 20000 key 500");
    client.run("DEBUG POPULATE 40 rope 100000");
    let taken = used(&server) - empty;
    let count = std::env::var("EVENKEEL_UPGRADES").ok().and_then(|count| count.parse().ok()).unwrap_or(30);
    let before = digest(&server);
    must_upgrade(&server);
    let (bytes, pages) = (used(&server), resident(&server));
    for number in 0..count {
        client.run(&format!("SET last {number}"));
        must_upgrade(&server);
        assert_eq!(client.run("GET last").to_string(), format!("\"{number}\""));
    }
    client.run("DEL last");
    assert_eq!(digest(&server), before);
    let (bytes_now, pages_now) = (used(&server), resident(&server));
    assert!(bytes_now < bytes + (1 << 20), "{bytes} bytes before, {bytes_now} after");
    assert!(pages_now < pages + (12 << 20), "{pages} bytes resident before, {pages_now} after");
    client.run("FLUSHALL SYNC");
    wait_until("as much is given back as was taken", || {
        (bytes_now - used(&server)).abs_diff(taken) < taken / 10
    });
}

/// Clients that read a large value while the server is upgraded: the value's memory stays theirs, and is
/// freed once.
#[test]
fn values_that_are_being_sent_stay() {
    let server = start(&["--threads", "2"]);
    let mut client = server.connect();
    let value = "v".repeat(6 << 20);
    client.call(&["SET", "large", &value]);
    client.call(&["RPUSH", "list", &value]);
    let mut readers: Vec<_> = (0..4).map(|_| server.connect()).collect();
    for reader in &mut readers {
        reader.send(&["GET", "large"]).expect("the server reads");
        reader.send(&["LINDEX", "list", "0"]).expect("the server reads");
    }
    std::thread::sleep(Duration::from_millis(100)); // the sockets are full
    must_upgrade(&server);
    client.run("DEL large list");
    for reader in &mut readers {
        for _ in 0..2 {
            assert!(reader.read().to_string() == format!("\"{value}\""));
        }
    }
    wait_until("nothing is left of the values", || used(&server) < 12 << 20);
}

/// The file of the memory ends with its last process.
#[test]
fn the_former_process_has_no_memory_of_the_data() {
    let server = start(&["--threads", "2", "--enable-debug-command", "yes"]);
    server.connect().run("DEBUG POPULATE 1000 key 500");
    let text = must_upgrade(&server);
    assert!(text.contains(MAPPED), "{text}");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.pid())).expect("the keeper");
    assert!(!maps.contains("evenkeel-data"), "{maps}");
    let files = Command::new("ls").args(["-l", &format!("/proc/{}/fd", server.pid())]).output();
    let files = String::from_utf8_lossy(&files.expect("ls runs").stdout).into_owned();
    assert!(!files.contains("evenkeel-data"), "{files}");
}
