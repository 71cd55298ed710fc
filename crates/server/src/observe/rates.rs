//! Rates: operations and bytes per second over the last second and a half, as INFO shows them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::stats::Stats;
use evenkeel_runtime::clock;

/// Samples kept; a sample is taken every 100 ms.
const SAMPLES: usize = 16;

/// A counter's rate.
#[derive(Default)]
struct Rate {
    last: u64,
    last_ms: u64,
    samples: [u64; SAMPLES],
    next: usize,
}

impl Rate {
    fn sample(&mut self, total: u64, now_ms: u64) {
        let elapsed = now_ms.saturating_sub(self.last_ms);
        if self.last_ms > 0 && elapsed > 0 {
            self.samples[self.next] = total.saturating_sub(self.last) * 1000 / elapsed;
            self.next = (self.next + 1) % SAMPLES;
        }
        (self.last, self.last_ms) = (total, now_ms);
    }

    fn per_second(&self) -> u64 {
        self.samples.iter().sum::<u64>() / SAMPLES as u64
    }
}

/// All rates. Sampled by the control thread.
#[derive(Default)]
pub(crate) struct Rates {
    commands: Rate,
    net_in: Rate,
    net_out: Rate,
    repl_in: Rate,
    repl_out: Rate,
    turns: Rate,
    /// Ticks spent in turns.
    busy: Rate,
}

impl Rates {
    /// Takes a sample. `replication`: bytes from a primary, and bytes to replicas, which are not in `stats`.
    pub(crate) fn sample(&mut self, stats: &[Stats], replication: (u64, u64), now_ms: u64) {
        let sum =
            |counter: fn(&Stats) -> &AtomicU64| stats.iter().map(|one| counter(one).load(Relaxed)).sum();
        self.commands.sample(sum(|stats| &stats.commands_run), now_ms);
        self.net_in.sample(sum(|stats| &stats.net_in) + replication.0, now_ms);
        self.net_out.sample(sum(|stats| &stats.net_out) + replication.1, now_ms);
        self.repl_in.sample(replication.0, now_ms);
        self.repl_out.sample(replication.1, now_ms);
        self.turns.sample(sum(|stats| &stats.turns), now_ms);
        self.busy.sample(stats.iter().map(Stats::busy).sum(), now_ms);
    }

    pub(crate) fn commands_per_second(&self) -> u64 {
        self.commands.per_second()
    }

    /// Returns the turns per second of all workers' loops.
    pub(crate) fn turns_per_second(&self) -> u64 {
        self.turns.per_second()
    }

    /// Returns the mean time of a turn, in microseconds.
    pub(crate) fn turn_us(&self) -> u64 {
        clock::us(self.busy.per_second().checked_div(self.turns.per_second()).unwrap_or(0))
    }

    /// Returns the bytes received per second.
    pub(crate) fn net_in_per_second(&self) -> u64 {
        self.net_in.per_second()
    }

    /// Returns the bytes sent per second.
    pub(crate) fn net_out_per_second(&self) -> u64 {
        self.net_out.per_second()
    }

    /// Returns the bytes per second from a primary.
    pub(crate) fn repl_in_per_second(&self) -> u64 {
        self.repl_in.per_second()
    }

    /// Returns the bytes per second to replicas.
    pub(crate) fn repl_out_per_second(&self) -> u64 {
        self.repl_out.per_second()
    }
}
