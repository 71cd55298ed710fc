//! Evenkeel: a Redis-compatible, multi-core, in-memory data store whose latency stays even.
//!
//! This file starts and stops the process. A command's way begins in `net/worker.rs` and continues through
//! `pipeline.rs` and `dispatch.rs`.

#[cfg(test)]
mod acl_tests;
mod admin;
mod background;
mod blocking;
mod check;
mod commands;
mod dispatch;
#[cfg(test)]
mod live_tests;
mod net;
mod observe;
mod offload;
mod pipeline;
mod server;
mod startup;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod transcripts;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: evenkeel_store::memory::Counting<mimalloc::MiMalloc> =
    evenkeel_store::memory::Counting(mimalloc::MiMalloc);

fn main() -> ExitCode {
    startup::run(std::env::args_os())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_small_entry_is_not_rounded_up() {
        // SAFETY: computes a size class.
        assert_eq!(unsafe { libmimalloc_sys::mi_good_size(40) }, 40, "see .cargo/config.toml");
    }
}
