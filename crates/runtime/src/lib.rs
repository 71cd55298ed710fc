//! The parts of a server process that know no command: threads, time, randomness, the allocator, the server
//! log, crash reports, temporary files, patterns, seccomp probes, and the small synchronisation protocols
//! that are checked with loom.
//!
//! Absent: configuration (callers pass values), sockets, commands.

pub mod allocator;
pub mod claim;
pub mod clock;
pub mod crash;
pub mod glob;
pub mod mailbox;
pub mod process_title;
pub mod random;
pub mod sandbox;
pub mod server_log;
mod sync;
pub mod temp_file;
pub mod threads;
pub mod traces;

/// The server's allocator, for the unit tests of [`allocator`].
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: evenkeel_store::memory::Counting<mimalloc::MiMalloc> =
    evenkeel_store::memory::Counting(mimalloc::MiMalloc);
