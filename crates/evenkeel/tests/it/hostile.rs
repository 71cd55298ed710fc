//! Clients that are broken, hostile or asleep. Each gets the protocol's error or the configured limit; memory stays
//! bounded by what was really sent, everybody else is served meanwhile, and the process lives.

mod limits;
mod protocol;
mod witness;

use std::time::{Duration, Instant};

use evenkeel_testkit::Server;

/// Waits for what must become true soon.
#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "not within ten seconds: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn used_memory(server: &Server) -> u64 {
    server.info("used_memory").parse().expect("used_memory is a number of bytes")
}

const MIB: u64 = 1024 * 1024;
