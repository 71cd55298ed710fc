//! The watchdog (`watchdog-period`): stack traces of all threads in the server log when a worker has not come
//! back to its event loop for so long.
//!
//! A thread of its own, which locks nothing: a worker that is stuck may hold the gate.

use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

use crate::server::Server;
use evenkeel_runtime::clock;
use evenkeel_runtime::{threads, traces};

/// Milliseconds between two looks at the workers.
const LOOK_MS: u64 = 20;

/// Starts the thread if the directive is set and the thread does not run.
pub(crate) fn follow(server: &Arc<Server>) {
    if server.core.settings().watchdog_period == 0 || server.has_watchdog.swap(true, SeqCst) {
        return;
    }
    let for_thread = server.clone();
    let started = threads::named("watchdog").spawn(move || run(&for_thread));
    if let Err(error) = started {
        log::warn!("The watchdog cannot be started: {error}");
        server.has_watchdog.store(false, SeqCst);
    }
}

fn run(server: &Arc<Server>) {
    let mut reported = vec![0; server.stats.len()];
    loop {
        let period_ms = u64::from(server.core.settings().watchdog_period);
        if period_ms == 0 || server.core.stopping.load(Acquire) {
            server.has_watchdog.store(false, SeqCst);
            return;
        }
        for (stats, reported) in server.stats.iter().zip(&mut reported) {
            let began = stats.turn_began.load(Relaxed);
            let elapsed_ms = clock::us(clock::ticks().saturating_sub(began)) / 1000;
            if began != 0 && began != *reported && elapsed_ms >= period_ms {
                *reported = began;
                log::warn!("--- WATCHDOG TIMER EXPIRED ---");
                log_traces();
            }
        }
        std::thread::sleep(Duration::from_millis(LOOK_MS));
    }
}

/// Writes the stack traces of all threads into the server log.
pub(crate) fn log_traces() {
    log::warn!("------ STACK TRACES ------");
    for trace in traces::of_all_threads() {
        log::warn!("Thread '{}' ({})", trace.name, trace.thread_id);
        match trace.frames {
            Some(frames) => frames.iter().for_each(|frame| log::warn!("  {frame}")),
            None => log::warn!("  (it does not answer)"),
        }
    }
    log::warn!("------ STACK TRACES DONE ------");
}
