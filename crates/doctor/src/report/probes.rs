//! Results of probes: latencies of a function as a histogram, counts, and stages of requests.

use std::fmt::Write;

use crate::collect::probes::{FunctionTimes, RequestStages, TracepointCounts};

const BAR_MAX: usize = 50;

pub(crate) fn latency(timed: &FunctionTimes) -> String {
    let FunctionTimes { function, module, seconds, count, .. } = timed;
    let mut out = format!("{function} of {module}: {count} calls in {seconds:.1} s");
    if *count == 0 {
        let _ = writeln!(out, "; {} have not returned", timed.unfinished);
        return out;
    }
    let _ = writeln!(
        out,
        ", {:.0} a second; {:.1}% of the time, if one thread calls it",
        *count as f64 / seconds,
        timed.sum_ns as f64 / 1e7 / seconds
    );
    let at = |share| us(quantile(&timed.slots, *count, share).min(timed.longest_ns));
    let _ = writeln!(
        out,
        "mean {}, half below {}, 90% below {}, 99% below {}, longest {}\n",
        us(timed.sum_ns / count),
        at(0.5),
        at(0.9),
        at(0.99),
        us(timed.longest_ns)
    );
    let rows = powers(&timed.slots);
    let most = rows.iter().map(|row| row.1).max().unwrap_or(1).max(1);
    for (end, calls) in rows {
        let bar = "#".repeat((calls as usize * BAR_MAX).div_ceil(most as usize));
        let _ = writeln!(out, "{:>12} {calls:>10}  {bar}", format!("< {}", us(end)));
    }
    out
}

/// Returns a line for each stage: its time by the probes, and by the server's own statistics.
pub(crate) fn stages(staged: &RequestStages) -> String {
    let mut out = format!("{:<12} {:>10} {:>14} {:>14}\n", "stage", "times", "by probes, ms", "by INFO, ms");
    for stage in staged.stages.iter().filter(|stage| stage.times > 0) {
        let (by_probe, by_server) = (stage.probe_us / 1e3, stage.server_us / 1e3);
        let _ = writeln!(out, "{:<12} {:>10} {by_probe:>14.3} {by_server:>14.3}", stage.name, stage.times);
    }
    let _ = writeln!(out, "\nin {:.1} s, over all threads", staged.seconds);
    out
}

/// Returns the end of the slot in which the calls reach that share.
fn quantile(slots: &[(u64, u64)], count: u64, share: f64) -> u64 {
    let wanted = (count as f64 * share).ceil() as u64;
    let mut seen = 0;
    let slot = slots.iter().find(|(_, calls)| {
        seen += calls;
        seen >= wanted
    });
    slot.or(slots.last()).map_or(0, |(end, _)| *end)
}

/// Merges slots into powers of two.
fn powers(slots: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut rows: Vec<(u64, u64)> = Vec::new();
    for &(end, calls) in slots {
        let end = end.checked_next_power_of_two().unwrap_or(u64::MAX);
        match rows.last_mut() {
            Some(row) if row.0 == end => row.1 += calls,
            _ => rows.push((end, calls)),
        }
    }
    rows
}

fn us(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{:.2} us", ns as f64 / 1e3),
        10_000..10_000_000 => format!("{:.0} us", ns as f64 / 1e3),
        _ => format!("{:.0} ms", ns as f64 / 1e6),
    }
}

pub(crate) fn counts(counted: &TracepointCounts) -> String {
    let mut out = format!("{:<40} {:>12} {:>12}\n", "met by the process", "count", "a second");
    for (name, count) in counted.counts.iter().filter(|(_, count)| *count > 0) {
        let _ = writeln!(out, "{name:<40} {count:>12} {:>12.0}", *count as f64 / counted.seconds);
    }
    let never = counted.counts.iter().filter(|(_, count)| *count == 0).count();
    if never > 0 {
        let _ = writeln!(out, "({never} more were not met)");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_bars_are_those_of_the_calls() {
        let timed = FunctionTimes {
            function: "call".to_string(),
            module: "redis-server".to_string(),
            seconds: 2.0,
            count: 100,
            unfinished: 0,
            sum_ns: 200_000,
            longest_ns: 40_000,
            slots: vec![(1_536, 30), (1_792, 60), (3_072, 9), (40_960, 1)],
        };
        let text = latency(&timed);
        assert!(text.starts_with("call of redis-server: 100 calls in 2.0 s, 50 a second"), "{text}");
        assert!(
            text.contains("mean 2.00 us, half below 1.79 us, 90% below 1.79 us, 99% below 3.07 us"),
            "{text}"
        );
        let bars: Vec<&str> = text.lines().skip(3).collect();
        assert!(bars[0].contains("< 2.05 us         90  ####") && bars.len() == 3, "{text}");
        assert_eq!(latency(&FunctionTimes { count: 0, unfinished: 1, ..timed }).lines().count(), 1);
    }

    #[test]
    fn tracepoints_without_hits_are_only_counted() {
        let counts = vec![("sched_switch".to_string(), 10), ("sched_wake_idle".to_string(), 0)];
        let text = super::counts(&TracepointCounts { seconds: 2.0, counts });
        assert!(text.contains("sched_switch") && text.ends_with("(1 more were not met)\n"), "{text}");
    }
}
