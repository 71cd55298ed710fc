//! Counters and stage clocks, a set per worker.
//!
//! Only the owning worker writes its set, with plain loads and stores on its own cache lines; readers add all
//! sets up. A command costs a reading of the time-stamp counter and a handful of increments.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::probe::probe;
use evenkeel_command::Id;
use evenkeel_runtime::clock::{self, Ticks};

/// Activities of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Accept,
    Read,
    Parse,
    LockWait,
    Execute,
    Write,
    /// Removes expired keys in the background.
    Expire,
    /// Evicts keys.
    Evict,
    /// Gives unused memory back to the system.
    Purge,
    /// Moves blocks out of sparse chunks.
    Compact,
    /// Everything else between two waits: timers, the inbox.
    Other,
    /// Waits for events.
    Idle,
}

impl Stage {
    pub(crate) const ALL: [Stage; 12] = [
        Stage::Accept,
        Stage::Read,
        Stage::Parse,
        Stage::LockWait,
        Stage::Execute,
        Stage::Write,
        Stage::Expire,
        Stage::Evict,
        Stage::Purge,
        Stage::Compact,
        Stage::Other,
        Stage::Idle,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Stage::Accept => "accept",
            Stage::Read => "read",
            Stage::Parse => "parse",
            Stage::LockWait => "lock_wait",
            Stage::Execute => "execute",
            Stage::Write => "write",
            Stage::Expire => "expire",
            Stage::Evict => "evict",
            Stage::Purge => "purge",
            Stage::Compact => "compact",
            Stage::Other => "other",
            Stage::Idle => "idle",
        }
    }
}

/// A worker's counters.
#[repr(align(128))]
pub(crate) struct Stats {
    stages: [AtomicU64; Stage::ALL.len()],
    pub(crate) commands_run: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) net_in: AtomicU64,
    pub(crate) net_out: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) turns: AtomicU64,
    /// Start of the present turn in ticks; zero while the worker waits for events.
    pub(crate) turn_began: AtomicU64,
    /// Longest turn in ticks, and most commands of a turn.
    pub(crate) turn_max: AtomicU64,
    /// Longest turn in ticks since the recorder last took it.
    turn_recent: AtomicU64,
    pub(crate) turn_commands_max: AtomicU64,
    pub(crate) wakeups: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) panics: AtomicU64,
    /// Longest background slice, in ticks.
    pub(crate) slice_max: AtomicU64,
    /// Slices of expiry that ended because their time was up.
    pub(crate) slices_cut: AtomicU64,
    /// Blocks that compaction has moved, and blocks that it has looked at and left where they are.
    pub(crate) blocks_moved: AtomicU64,
    pub(crate) blocks_stayed: AtomicU64,
    /// Start of the present compaction in ticks; zero: there is none.
    pub(crate) compacts_since: AtomicU64,
    /// Ticks that the offload pool has spent on long commands.
    pub(crate) long_ticks: AtomicU64,
    pub(crate) commands: Box<[CommandStats]>,
    /// Error replies by their first word. Locked only when an error is replied.
    pub(crate) by_error: Mutex<BTreeMap<String, u64>>,
}

/// A command's counters on a worker.
#[derive(Default)]
pub(crate) struct CommandStats {
    pub(crate) calls: AtomicU64,
    pub(crate) ticks: AtomicU64,
    /// Not run: wrong arity, out of memory, not allowed.
    pub(crate) rejected: AtomicU64,
    /// Run, and replied with an error.
    pub(crate) failed: AtomicU64,
    histogram: OnceLock<Box<Histogram>>,
}

/// The end of a command that has waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Succeeded,
    Failed,
    /// Another client or a change of roles has ended the wait.
    Rejected,
    /// Its client may no longer run it.
    Denied,
}

impl Outcome {
    pub(crate) fn of_reply(failed: bool) -> Outcome {
        if failed { Outcome::Failed } else { Outcome::Succeeded }
    }
}

/// Adds to a counter that only this thread writes.
#[inline]
pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}

impl Stats {
    pub(crate) fn new(commands: usize) -> Stats {
        Stats {
            stages: Default::default(),
            commands_run: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            net_in: AtomicU64::new(0),
            net_out: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            turn_began: AtomicU64::new(0),
            turn_max: AtomicU64::new(0),
            turn_recent: AtomicU64::new(0),
            turn_commands_max: AtomicU64::new(0),
            wakeups: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            slice_max: AtomicU64::new(0),
            slices_cut: AtomicU64::new(0),
            blocks_moved: AtomicU64::new(0),
            blocks_stayed: AtomicU64::new(0),
            compacts_since: AtomicU64::new(0),
            long_ticks: AtomicU64::new(0),
            commands: (0..commands).map(|_| CommandStats::default()).collect(),
            by_error: Mutex::default(),
        }
    }

    /// Records the end of a turn that took `ticks` and ran these commands.
    pub(crate) fn record_turn(&self, ticks: Ticks, commands: u64) {
        self.turn_began.store(0, Relaxed);
        let most = [(&self.turn_max, ticks), (&self.turn_recent, ticks), (&self.turn_commands_max, commands)];
        for (most, value) in most {
            if value > most.load(Relaxed) {
                most.store(value, Relaxed);
            }
        }
    }

    /// Returns the longest turn that ended since the last call, in ticks. For the recorder alone.
    pub(crate) fn take_longest_turn(&self) -> Ticks {
        self.turn_recent.swap(0, Relaxed)
    }

    /// Adds ticks to a stage, and fires the probe that a tool may watch. Every stage of a command passes
    /// here.
    #[inline]
    pub(crate) fn record_stage(&self, stage: Stage, ticks: Ticks) {
        probe!("stage", stage as u64, ticks);
        add(&self.stages[stage as usize], ticks);
    }

    /// Returns the ticks spent in all stages but waiting for events.
    pub(crate) fn busy(&self) -> Ticks {
        Stage::ALL.into_iter().filter(|stage| *stage != Stage::Idle).map(|stage| self.stage(stage)).sum()
    }

    /// Returns the ticks spent in a stage.
    pub(crate) fn stage(&self, stage: Stage) -> Ticks {
        self.stages[stage as usize].load(Relaxed)
    }

    /// Records a command that has run for `ticks`.
    #[inline]
    pub(crate) fn ran(&self, id: Id, ticks: Ticks, failed: bool, histogram: bool) {
        let stats = &self.commands[id.index()];
        add(&stats.calls, 1);
        add(&stats.ticks, ticks);
        add(&self.commands_run, 1);
        if failed {
            add(&stats.failed, 1);
        }
        if histogram {
            stats.histogram.get_or_init(Box::default).record(clock::ns(ticks));
        }
    }

    /// Records the reply to a command that has waited, and was not counted so far; serving it took `ticks`.
    pub(crate) fn resumed(&self, id: Id, ticks: Ticks, outcome: Outcome, histogram: bool) {
        let stats = &self.commands[id.index()];
        if outcome == Outcome::Denied {
            return add(&stats.rejected, 1);
        }
        add(&stats.calls, 1);
        add(&self.commands_run, 1);
        add(&stats.ticks, ticks);
        add(&stats.failed, u64::from(outcome == Outcome::Failed));
        add(&stats.rejected, u64::from(outcome == Outcome::Rejected));
        if histogram {
            stats.histogram.get_or_init(Box::default).record(clock::ns(ticks));
        }
    }

    /// Records an error reply; `line` starts with its code.
    #[cold]
    pub(crate) fn error(&self, line: &[u8]) {
        self.error_of(line, false);
    }

    /// The same for an error that a script may have made up.
    #[cold]
    pub(crate) fn script_error(&self, line: &[u8]) {
        self.error_of(line, true);
    }

    fn error_of(&self, line: &[u8], is_made_up: bool) {
        /// Most distinct codes kept for errors that scripts make up; the others are counted together.
        const CODES_MAX: usize = 128;
        const OTHERS: &str = "ERRORSTATS_OVERFLOW";
        add(&self.errors, 1);
        let code = code_of(line);
        let mut by_error = self.by_error.lock();
        let is_too_many = is_made_up && by_error.len() >= CODES_MAX && !by_error.contains_key(&code);
        *by_error.entry(if is_too_many { OTHERS.into() } else { code }).or_default() += 1;
    }

    /// Resets the counters, for CONFIG RESETSTAT. Counts made by the owner at the same moment may survive.
    pub(crate) fn reset(&self) {
        self.stages.iter().for_each(|stage| stage.store(0, Relaxed));
        for counter in [
            &self.commands_run,
            &self.connections,
            &self.net_in,
            &self.net_out,
            &self.reads,
            &self.writes,
            &self.turns,
            &self.turn_max,
            &self.turn_commands_max,
            &self.wakeups,
            &self.errors,
            &self.panics,
            &self.slice_max,
            &self.slices_cut,
            &self.long_ticks,
        ] {
            counter.store(0, Relaxed);
        }
        for stats in &self.commands {
            stats.reset();
        }
        self.by_error.lock().clear();
    }
}

impl CommandStats {
    fn reset(&self) {
        for counter in [&self.calls, &self.ticks, &self.rejected, &self.failed] {
            counter.store(0, Relaxed);
        }
        self.reset_histogram();
    }

    /// Whether this worker has recorded a latency of the command.
    pub(crate) fn has_latencies(&self) -> bool {
        self.histogram.get().is_some()
    }

    /// Resets the latencies, for LATENCY RESET and CONFIG RESETSTAT.
    pub(crate) fn reset_histogram(&self) {
        if let Some(histogram) = self.histogram.get() {
            histogram.0.iter().for_each(|bucket| bucket.store(0, Relaxed));
        }
    }

    /// Adds this worker's latencies to `sum`.
    pub(crate) fn add_latencies(&self, sum: &mut Latencies) {
        if let Some(histogram) = self.histogram.get() {
            for (bucket, count) in histogram.0.iter().enumerate() {
                sum.0[bucket] += count.load(Relaxed);
            }
        }
    }
}

/// Returns the code at the start of an error line: its first word, unless the line ends there or the word is
/// longer than any code. INFO shows it, so characters that would end a name or a line there are replaced.
fn code_of(line: &[u8]) -> String {
    const LEN_MAX: usize = 30;
    let Some(len) = line.iter().take(LEN_MAX + 1).position(|byte| b" \r\n".contains(byte)) else {
        return "ERR".into();
    };
    String::from_utf8_lossy(&line[..len]).replace(['#', ':', '\n', '\r'], "_")
}

/// Latencies in nanoseconds: powers of two, each divided into eight, so the error of a percentile is at most
/// an eighth.
const CUTS_LOG2: u32 = 3;
const BUCKETS: usize = 40 << CUTS_LOG2;

struct Histogram([AtomicU64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram([const { AtomicU64::new(0) }; BUCKETS])
    }
}

impl Histogram {
    #[inline]
    fn record(&self, ns: u64) {
        add(&self.0[bucket_of(ns)], 1);
    }
}

#[inline]
fn bucket_of(ns: u64) -> usize {
    let ns = ns.max(1 << CUTS_LOG2);
    let power = 63 - ns.leading_zeros();
    let cut = ns >> (power - CUTS_LOG2) & ((1 << CUTS_LOG2) - 1);
    (((power - CUTS_LOG2) << CUTS_LOG2) as usize + cut as usize).min(BUCKETS - 1)
}

/// Returns the largest value of a bucket, in nanoseconds.
fn bucket_end(bucket: usize) -> u64 {
    let power = (bucket >> CUTS_LOG2) as u32;
    let cut = (bucket & ((1 << CUTS_LOG2) - 1)) as u64;
    (((1 << CUTS_LOG2) + cut + 1) << power) - 1
}

/// A command's latencies over all workers.
#[derive(Clone)]
pub(crate) struct Latencies([u64; BUCKETS]);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies([0; BUCKETS])
    }
}

impl Latencies {
    pub(crate) fn add(&mut self, other: &Latencies) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum += count);
    }

    /// Returns the latencies that were added since `before`; all of them, if the counters were reset.
    pub(crate) fn since(&self, before: &Latencies) -> Latencies {
        let is_reset = self.0.iter().zip(&before.0).any(|(now, before)| now < before);
        if is_reset {
            return self.clone();
        }
        let mut added = self.clone();
        added.0.iter_mut().zip(&before.0).for_each(|(now, before)| *now -= before);
        added
    }

    /// Returns an upper bound of the longest latency, in microseconds.
    pub(crate) fn longest_us(&self) -> f64 {
        self.0.iter().rposition(|count| *count > 0).map_or(0.0, |bucket| bucket_end(bucket) as f64 / 1000.0)
    }

    #[cfg(test)]
    pub(crate) fn record(&mut self, ns: u64) {
        self.0[bucket_of(ns)] += 1;
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the latency below which `percent` of the calls stay, in microseconds.
    pub(crate) fn percentile_us(&self, percent: f64) -> f64 {
        let rank = (self.count() as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.0.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return bucket_end(bucket) as f64 / 1000.0;
            }
        }
        0.0
    }

    /// Returns the limits 1, 2, 4, ... in microseconds without end, and the number of calls up to each.
    pub(crate) fn cumulative_us(&self) -> impl Iterator<Item = (u64, u64)> {
        let (mut seen, mut bucket) = (0, 0);
        (0..64).map(move |power| {
            let limit_us = 1_u64 << power;
            while bucket < BUCKETS && bucket_end(bucket) < limit_us.saturating_mul(1000).saturating_add(1000)
            {
                seen += self.0[bucket];
                bucket += 1;
            }
            (limit_us, seen)
        })
    }

    /// Returns the calls up to each power of two of microseconds that adds some (LATENCY HISTOGRAM).
    pub(crate) fn cumulative_by_power_us(&self) -> Vec<(u64, u64)> {
        let mut last = 0;
        let adds_some = |(_, seen): &(u64, u64)| std::mem::replace(&mut last, *seen) < *seen;
        self.cumulative_us().filter(adds_some).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_buckets_are_an_eighth_wide() {
        for ns in [8, 9, 100, 1_000, 123_456, 10_000_000, 1 << 40] {
            let end = bucket_end(bucket_of(ns));
            assert!(end >= ns && end as f64 <= ns as f64 * 1.126, "{ns} {end}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles() {
        let histogram = Histogram::default();
        (0..99).for_each(|_| histogram.record(1_000));
        histogram.record(1_000_000);
        let stats = CommandStats::default();
        let _ = stats.histogram.set(Box::new(histogram));
        let mut sum = Latencies::default();
        stats.add_latencies(&mut sum);
        assert_eq!(sum.count(), 100);
        assert!((1.0..1.2).contains(&sum.percentile_us(50.0)));
        assert!((1.0..1.2).contains(&sum.percentile_us(99.0)));
        assert!((1000.0..1130.0).contains(&sum.percentile_us(99.9)));
    }
}
