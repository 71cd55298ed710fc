//! Evenkeel: a Redis-compatible, multi-core, in-memory data store whose latency stays even.
//!
//! This file has the allocator, and decides between the server, the tool that checks files, the tool that
//! shows a running server, and the request for an upgrade.

use std::ffi::OsString;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: evenkeel_store::memory::Counting<mimalloc::MiMalloc> =
    evenkeel_store::memory::Counting(mimalloc::MiMalloc);

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_default();
    let args: Vec<OsString> = args.collect();
    evenkeel_check::run(&program, &args)
        .or_else(|| evenkeel_top::run(&args))
        .or_else(|| evenkeel_server::run_upgrade(&args))
        .unwrap_or_else(|| evenkeel_server::run(&program, args))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_small_entry_is_not_rounded_up() {
        // SAFETY: computes a size class.
        assert_eq!(unsafe { libmimalloc_sys::mi_good_size(40) }, 40, "see .cargo/config.toml");
    }
}
