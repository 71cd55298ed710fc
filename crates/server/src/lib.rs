//! The server: what a worker does with a connection ([`worker`]), the steps of a command ([`executor`]), the
//! commands on sessions and on the server ([`admin`]), its statistics ([`observe`]), its start and stop
//! ([`startup`]).
//!
//! A command's way begins in `worker.rs` and continues through `worker/pipeline.rs` and `executor.rs`.

#[cfg(test)]
mod acl_tests;
mod admin;
mod cluster;
mod commands;
mod executor;
mod handover;
mod http_host;
#[cfg(test)]
mod live_tests;
mod observe;
mod server;
mod startup;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod transcripts;
mod worker;

pub use handover::control::run as run_upgrade;
pub use startup::run;

/// The allocator of the program, for tests that count bytes.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: evenkeel_store::memory::Counting<mimalloc::MiMalloc> =
    evenkeel_store::memory::Counting(mimalloc::MiMalloc);
