//! The counters of a running thread, and the result of a run.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::Window;
use super::replies::Counts;
use super::timeline::Timeline;
use crate::proc::Spent;

/// Latencies are kept in nanoseconds, to three digits, from 64 ns to ten minutes.
const LATENCY_NS_MIN: u64 = 64;
const LATENCY_NS_MAX: u64 = 600_000_000_000;

fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(LATENCY_NS_MIN, LATENCY_NS_MAX, 3).expect("the bounds are in order")
}

/// A thread's counts.
pub(crate) struct Tally {
    /// Replies since the thread's start, warm-up included: the main thread takes differences.
    pub(crate) answered: Counts,
    /// From write to the whole answer; with short connections from connect. A value per batch.
    latency: Histogram<u64>,
    error_text: Option<String>,
    /// Connections that the server refused, and connections that ended or timed out without an answer.
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    pub(crate) cpu_ns: u64,
    pub(crate) ended: Option<Instant>,
    /// Requests that were due and have not been sent.
    pub(crate) late: u64,
    timeline: Timeline,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            answered: Counts::default(),
            latency: latencies(),
            error_text: None,
            refused: 0,
            failed: 0,
            cpu_ns: 0,
            ended: None,
            late: 0,
            timeline: Timeline::new(Instant::now()),
        }
    }
}

impl Tally {
    #[inline]
    pub(crate) fn answered(&mut self, counts: Counts) {
        self.answered.add(counts);
    }

    #[inline]
    pub(crate) fn took(&mut self, since: Instant, commands: u64) {
        let now = Instant::now();
        let latency = now.saturating_duration_since(since);
        self.latency.saturating_record(latency.as_nanos() as u64);
        self.timeline.record(now, commands, latency);
    }

    /// Keeps the first error's text; for the rare path.
    pub(crate) fn record_error(&mut self, text: impl FnOnce() -> String) {
        self.error_text.get_or_insert_with(text);
    }

    pub(crate) fn forget_warm_up(&mut self) {
        self.latency.reset();
        self.timeline.begin();
        (self.refused, self.failed) = (0, 0);
    }

    /// Records a connection that still waits at the end: it has waited at least this long. Without this, a
    /// connection that the server forgot would not show at all.
    pub(crate) fn record_unanswered(&mut self, waited: Duration) {
        if waited.as_nanos() as u64 > self.latency.max() {
            self.latency.saturating_record(waited.as_nanos() as u64);
            self.timeline.record(Instant::now(), 0, waited);
        }
    }
}

/// The result of a run.
pub(crate) struct Outcome {
    pub(crate) commands: u64,
    pub(crate) elapsed: Duration,
    pub(crate) latency: Histogram<u64>,
    pub(crate) errors: u64,
    pub(crate) error_text: Option<String>,
    pub(crate) misses: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    /// Connections that the kernel dropped because a listener's queue was full, anywhere on this machine.
    pub(crate) listen_overflows: u64,
    /// CPU time of the generator's threads, and their number.
    pub(crate) load_cpu: Duration,
    pub(crate) load_threads: usize,
    pub(crate) server: Option<Spent>,
    pub(crate) late: u64,
    pub(crate) timeline: Timeline,
}

impl Outcome {
    pub(super) fn new(window: Window, tallies: Vec<Tally>) -> Self {
        let ended = tallies.iter().filter_map(|tally| tally.ended).max().unwrap_or(window.ended);
        let mut outcome = Self {
            commands: window.answered.replies,
            elapsed: ended.min(window.ended) - window.started,
            latency: latencies(),
            errors: window.answered.errors,
            error_text: None,
            misses: window.answered.misses,
            refused: 0,
            failed: 0,
            listen_overflows: window.listen_overflows,
            load_cpu: Duration::ZERO,
            load_threads: window.threads,
            late: 0,
            timeline: Timeline::new(window.started),
            server: window.usage.map(|(before, after)| after.since(&before)),
        };
        tallies.into_iter().for_each(|tally| outcome.add(tally));
        outcome
    }

    fn add(&mut self, tally: Tally) {
        self.latency.add(&tally.latency).expect("all histograms have the same bounds");
        self.timeline.add(&tally.timeline);
        self.late += tally.late;
        self.refused += tally.refused;
        self.failed += tally.failed;
        self.load_cpu += Duration::from_nanos(tally.cpu_ns);
        self.error_text = self.error_text.take().or(tally.error_text);
    }

    /// Adds the outcome of a simultaneous run against another server.
    pub(crate) fn join(&mut self, other: Self) {
        self.commands += other.commands;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.latency.add(&other.latency).expect("all histograms have the same bounds");
        self.timeline.add(&other.timeline);
        self.errors += other.errors;
        self.misses += other.misses;
        self.refused += other.refused;
        self.failed += other.failed;
        self.late += other.late;
        // both counts are of the same machine
        self.listen_overflows = self.listen_overflows.max(other.listen_overflows);
        self.load_cpu += other.load_cpu;
        self.load_threads += other.load_threads;
        self.error_text = self.error_text.take().or(other.error_text);
        self.server = self.server.take().zip(other.server).map(|(one, other)| one.and(&other));
    }

    /// Commands per second.
    pub(crate) fn rate(&self) -> f64 {
        self.commands as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// CPU microseconds of the server process per command.
    pub(crate) fn server_us(&self) -> Option<f64> {
        let spent = self.server.as_ref()?;
        Some(spent.cpu.as_secs_f64() * 1e6 / self.commands.max(1) as f64)
    }

    /// CPU microseconds of the generator per command.
    pub(crate) fn load_us(&self) -> f64 {
        self.load_cpu.as_secs_f64() * 1e6 / self.commands.max(1) as f64
    }

    /// Share of the time that the generator's threads were running: near 1, the generator limits the rate.
    pub(crate) fn load_busy(&self) -> f64 {
        self.load_cpu.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9) / self.load_threads as f64
    }

    pub(crate) fn latency_us_mean(&self) -> f64 {
        self.latency.mean() / 1e3
    }

    /// Latency in microseconds below which `quantile` of the batches stayed.
    pub(crate) fn latency_us(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1e3
    }
}
