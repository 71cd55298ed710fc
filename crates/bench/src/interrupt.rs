//! Ctrl-C and SIGTERM: a flag that every wait checks.
//!
//! The handler does nothing else, so that an interrupted run unwinds like a failed run: through `?`, past the
//! destructors that end the servers and remove their directories.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Longest time until a wait notices the signal.
const SLICE: Duration = Duration::from_millis(20);

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Takes over SIGINT and SIGTERM. A second signal ends the process at once, should the unwinding hang.
pub(crate) fn install() -> Result<()> {
    let flag = FLAG.get_or_init(Arc::default);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())
            .context("signal handler")?;
        signal_hook::flag::register(signal, flag.clone()).context("signal handler")?;
    }
    Ok(())
}

pub(crate) fn check() -> Result<()> {
    match FLAG.get() {
        Some(flag) if flag.load(Ordering::Relaxed) => bail!("interrupted"),
        _ => Ok(()),
    }
}

/// Sleeps until `deadline`, or less when a signal comes or `done` returns true.
pub(crate) fn sleep_until(deadline: Instant, mut done: impl FnMut() -> bool) -> Result<()> {
    loop {
        check()?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || done() {
            return Ok(());
        }
        std::thread::sleep(left.min(SLICE));
    }
}

pub(crate) fn sleep(time: Duration) -> Result<()> {
    sleep_until(Instant::now() + time, || false)
}
