//! Broken, hostile or silent clients. Each gets a protocol error or meets a configured limit. The bytes
//! really sent bound the memory, other clients are served meanwhile, and the process lives.

mod limits;
mod protocol;
mod witness;

use evenkeel_testkit::Server;

/// Returns INFO's `used_memory`, in bytes.
fn used_memory(server: &Server) -> u64 {
    server.info("used_memory").parse().expect("used_memory is a number of bytes")
}

const MIB: u64 = 1024 * 1024;
