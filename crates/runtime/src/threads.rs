//! Threads: their names, their stacks, and what a panic outside of a command does.
//!
//! A panic in a command is caught where commands run. Any other panic leaves connections in an unknown state,
//! and clients or writers waiting for ever, so a restart of the process is better: [`or_exit`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::Builder;

/// Bytes of a stack on which scripts run: their C functions call each other up to 200 deep, and each may have
/// a buffer of 8 KiB. Unused pages are never resident.
pub const DEEP_STACK_LEN: usize = 16 << 20;

/// Exit code after a failure of a thread that the server cannot do without (EX_SOFTWARE of sysexits.h).
pub const EXIT_CODE: i32 = 70;

/// A thread by its name, of at most 15 bytes: operators see it in top and in perf.
pub fn named(name: impl Into<String>) -> Builder {
    let name = name.into();
    debug_assert!(name.len() <= 15, "{name}: Linux cuts the name");
    Builder::new().name(name)
}

/// A thread that runs commands, and so scripts.
pub fn with_deep_stack(name: impl Into<String>) -> Builder {
    named(name).stack_size(DEEP_STACK_LEN)
}

/// Runs the work of a thread whose loss would leave the server hanging. If `run` panics, the server log names
/// `what`, and the process ends with [`EXIT_CODE`].
pub fn or_exit(what: &str, run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        log::warn!("The {what} failed outside a command. Exiting.");
        crate::server_log::flush();
        std::process::exit(EXIT_CODE);
    }
}
