//! Clients that are broken, hostile or asleep. Each gets the protocol's error or the configured limit; memory stays
//! bounded by what was really sent, everybody else is served meanwhile, and the process lives.

mod limits;
mod protocol;
mod witness;

use evenkeel_testkit::Server;

/// Waits for what must become true soon.
fn used_memory(server: &Server) -> u64 {
    server.info("used_memory").parse().expect("used_memory is a number of bytes")
}

const MIB: u64 = 1024 * 1024;
