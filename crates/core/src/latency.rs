//! The latency monitor: events that took longer than `latency-monitor-threshold`.
//!
//! | event | |
//! |---|---|
//! | `command`, `fast-command` | a command; the slow log names it |
//! | `expire-cycle` | a slice of the sweep for expired keys |
//! | `eviction-cycle` | a slice of eviction |
//! | `aof-write` | a write to the append-only file; only the writing thread waits for it |
//! | `aof-fsync-always`, `aof-fsync` | an fsync that replies wait for, and any other fsync |
//!
//! Slices of background work shall take at most half a millisecond, so such an event indicates a fault, or a
//! machine that is busy with other work.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

use parking_lot::Mutex;

use evenkeel_runtime::clock;

/// Samples kept of each event; at most a sample per second.
const SAMPLES_MAX: usize = 160;

/// Columns and rows of a graph.
const COLUMNS: usize = 80;
const ROWS: u64 = 4;

/// The monitored events. Locked only to record a sample, and by commands that read them.
#[derive(Default)]
pub struct Monitor {
    events: Mutex<BTreeMap<&'static str, Series>>,
}

/// The samples of an event.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Unix time in seconds and duration in milliseconds; oldest first.
    pub samples: VecDeque<(u64, u64)>,
    pub longest_ms: u64,
    /// Duration and number of all recorded events.
    pub sum_ms: u64,
    pub count: u64,
}

impl Monitor {
    /// Records that `event` took `us` microseconds, if it reached `threshold_ms`. A threshold of zero records
    /// nothing.
    #[inline]
    pub fn record(&self, event: &'static str, us: u64, threshold_ms: u64) {
        if threshold_ms > 0 && us / 1000 >= threshold_ms {
            self.add(event, clock::unix_ms() / 1000, us / 1000);
        }
    }

    #[cold]
    fn add(&self, event: &'static str, now_s: u64, ms: u64) {
        let mut events = self.events.lock();
        let series = events.entry(event).or_default();
        series.longest_ms = series.longest_ms.max(ms);
        series.sum_ms += ms;
        series.count += 1;
        match series.samples.back_mut() {
            Some((at, before)) if *at == now_s => *before = ms.max(*before),
            _ => series.samples.push_back((now_s, ms)),
        }
        if series.samples.len() > SAMPLES_MAX {
            series.samples.pop_front();
        }
    }

    /// Returns all recorded events.
    pub fn all(&self) -> Vec<(&'static str, Series)> {
        self.events.lock().iter().map(|(event, series)| (*event, series.clone())).collect()
    }

    pub fn find(&self, event: &[u8]) -> Option<(&'static str, Series)> {
        self.all().into_iter().find(|(name, _)| name.as_bytes() == event)
    }

    /// Drops the events that `wanted` selects; returns their number.
    pub fn reset(&self, wanted: impl Fn(&str) -> bool) -> usize {
        let mut events = self.events.lock();
        let before = events.len();
        events.retain(|event, _| !wanted(event));
        before - events.len()
    }
}

impl Series {
    /// Returns the graph of LATENCY GRAPH: a column per sample, and its age below.
    pub fn graph(&self, event: &str, now_s: u64) -> String {
        let shown: Vec<_> = self.samples.iter().rev().take(COLUMNS).rev().collect();
        let high = shown.iter().map(|(_, ms)| *ms).max().unwrap_or(0);
        let low = shown.iter().map(|(_, ms)| *ms).min().unwrap_or(0);
        let mut text =
            format!("{event} - high {high} ms, low {low} ms (all time high {} ms)\n", self.longest_ms);
        text += &"-".repeat(COLUMNS);
        text.push('\n');
        let height = |ms: u64| (ms * ROWS).div_ceil(high.max(1)).max(1);
        for row in (1..=ROWS).rev() {
            let line: String =
                shown.iter().map(|(_, ms)| if height(*ms) >= row { '#' } else { ' ' }).collect();
            text += line.trim_end();
            text.push('\n');
        }
        text.push('\n');
        let ages: Vec<Vec<char>> =
            shown.iter().map(|(at, _)| age(now_s.saturating_sub(*at)).chars().collect()).collect();
        for row in 0..ages.iter().map(Vec::len).max().unwrap_or(0) {
            let line: String = ages.iter().map(|age| age.get(row).copied().unwrap_or(' ')).collect();
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    /// Returns mean and mean deviation, in milliseconds.
    fn mean(&self) -> (u64, u64) {
        let count = self.samples.len().max(1) as u64;
        let mean = self.samples.iter().map(|(_, ms)| ms).sum::<u64>() / count;
        (mean, self.samples.iter().map(|(_, ms)| ms.abs_diff(mean)).sum::<u64>() / count)
    }
}

/// Formats a time span as briefly as possible: `7s`, `12m`, `3h`, `2d`.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Returns the report of LATENCY DOCTOR.
pub fn report(events: &[(&'static str, Series)], threshold_ms: u64, slow_us: i64) -> String {
    if threshold_ms == 0 {
        return "Latency monitoring is disabled. To enable it, set a threshold: CONFIG SET \
                latency-monitor-threshold <milliseconds>\n"
            .into();
    }
    if events.is_empty() {
        return format!(
            "No event took {threshold_ms} ms or longer since startup or the last LATENCY RESET.\n"
        );
    }
    let mut text = format!("Events that took {threshold_ms} ms or longer:\n\n");
    for (event, series) in events {
        let (mean, deviation) = series.mean();
        let _ = writeln!(
            text,
            "- {event}: {} samples, average {mean} ms (mean deviation {deviation} ms), maximum {} ms",
            series.samples.len(),
            series.longest_ms
        );
    }
    text += "\nAdvice:\n\n";
    let has = |name: &str| events.iter().any(|(event, _)| *event == name);
    if has("command") || has("fast-command") {
        text +=
            "- Find slow commands with SLOWLOG GET. LATENCY HISTOGRAM <command> shows their distribution.\n";
        if slow_us < 0 || slow_us as u64 / 1000 > threshold_ms {
            text +=
                "- Lower the threshold of the slow log: CONFIG SET slowlog-log-slower-than <microseconds>\n";
        }
    }
    if has("fast-command") {
        text += "- A constant-time command was slow: the thread was not scheduled, or waited for a slot that \
                 another command had locked. INFO stages shows lock_wait and execute separately.\n";
    }
    if has("expire-cycle") || has("eviction-cycle") {
        text += "- Background work runs in slices of half a millisecond. A longer slice was not scheduled: \
                 check for other busy processes and for a CPU limit of this process.\n";
    }
    if has("aof-fsync-always") || has("aof-fsync") || has("aof-write") {
        text += "- The disk of the append-only file is slow or busy. With appendfsync always, clients wait \
                 for it; otherwise they do not, but a machine failure loses more data. INFO persistence \
                 shows the longest write and fsync.\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_sample_of_a_second_is_kept() {
        let monitor = Monitor::default();
        for (now, ms) in [(100, 5), (100, 9), (100, 7), (101, 3)] {
            monitor.add("command", now, ms);
        }
        let (_, series) = monitor.find(b"command").expect("noted");
        assert_eq!(series.samples, [(100, 9), (101, 3)]);
        assert_eq!(series.longest_ms, 9);
        (0..1000).for_each(|now| monitor.add("command", 200 + now, 1));
        assert_eq!(monitor.find(b"command").expect("noted").1.samples.len(), SAMPLES_MAX);
        assert_eq!(monitor.reset(|event| event == "other"), 0);
        assert_eq!(monitor.reset(|event| event == "command"), 1);
        assert!(monitor.find(b"command").is_none());
    }

    #[test]
    fn only_latencies_over_the_threshold_are_recorded() {
        let monitor = Monitor::default();
        monitor.record("command", 4_999, 5);
        monitor.record("command", 1_000_000, 0);
        assert!(monitor.all().is_empty());
        monitor.record("command", 5_000, 5);
        assert_eq!(monitor.all().len(), 1);
    }

    #[test]
    fn latency_graph() {
        let series = Series {
            samples: [(100, 10), (160, 40), (220, 20)].into(),
            longest_ms: 50,
            count: 3,
            sum_ms: 70,
        };
        let expected = format!(
            "command - high 40 ms, low 10 ms (all time high 50 ms)\n{}\n #\n #\n ##\n###\n\n211\nmms\n0\n",
            "-".repeat(80)
        );
        assert_eq!(series.graph("command", 230), expected.replace("211\nmms\n0\n", "211\nmm0\n  s\n"));
    }
}
