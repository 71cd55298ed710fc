//! Calls, outcomes and latencies of each command.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Facts, Fields};
use crate::observe::stats::{CommandStats, Latencies};
use crate::server::Server;
use evenkeel_command::table::table;
use evenkeel_runtime::clock;

pub(super) fn calls(facts: &Facts<'_>, fields: &mut Fields<'_>) {
    for (name, counts) in counts_of_all(facts.server) {
        let CommandCounts { calls, us, rejected, failed } = counts;
        let each = if calls == 0 { 0.0 } else { us as f64 / calls as f64 };
        fields.field(
            format_args!("cmdstat_{name}"),
            format_args!(
                "calls={calls},usec={us},usec_per_call={each:.2},\
                 rejected_calls={rejected},failed_calls={failed}"
            ),
        );
    }
}

/// A command's counters over all threads.
#[derive(Clone, Copy)]
pub(crate) struct CommandCounts {
    pub(crate) calls: u64,
    pub(crate) us: u64,
    pub(crate) rejected: u64,
    pub(crate) failed: u64,
}

/// Returns the counters of each command that was called, by its name in lower case.
pub(crate) fn counts_of_all(server: &Server) -> impl Iterator<Item = (String, CommandCounts)> {
    table().rows().iter().enumerate().filter_map(|(index, row)| {
        let sum = |counter: fn(&CommandStats) -> &AtomicU64| -> u64 {
            server.stats.iter().map(|stats| counter(&stats.commands[index]).load(Relaxed)).sum()
        };
        let counts = CommandCounts {
            calls: sum(|stats| &stats.calls),
            us: clock::us(sum(|stats| &stats.ticks)),
            rejected: sum(|stats| &stats.rejected),
            failed: sum(|stats| &stats.failed),
        };
        (counts.calls > 0 || counts.rejected > 0).then_some((row.lower_name(), counts))
    })
}

pub(super) fn errors(facts: &Facts<'_>, fields: &mut Fields<'_>) {
    for (code, count) in errors_by_code(facts.server) {
        fields.field(format_args!("errorstat_{code}"), format_args!("count={count}"));
    }
}

/// Returns the number of error replies by their first word.
pub(crate) fn errors_by_code(server: &Server) -> BTreeMap<String, u64> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for stats in &server.stats {
        for (code, count) in stats.by_error.lock().iter() {
            *sums.entry(code.clone()).or_default() += count;
        }
    }
    sums
}

pub(super) fn latencies(facts: &Facts<'_>, fields: &mut Fields<'_>) {
    let percentiles = &facts.settings.latency_tracking_info_percentiles;
    if !facts.settings.latency_tracking || percentiles.is_empty() {
        return;
    }
    for (index, row) in table().rows().iter().enumerate() {
        let latencies = latencies_of(facts.server, index);
        if latencies.count() == 0 {
            continue;
        }
        let show = |percent: &f64| format!("p{percent}={:.3}", latencies.percentile_us(*percent));
        let shown: Vec<String> = percentiles.iter().map(show).collect();
        fields.field(format_args!("latency_percentiles_usec_{}", row.lower_name()), shown.join(","));
    }
}

/// Returns the latencies of the command of this number, over all workers.
pub(crate) fn latencies_of(server: &Server, index: usize) -> Latencies {
    let mut sum = Latencies::default();
    server.stats.iter().for_each(|stats| stats.commands[index].add_latencies(&mut sum));
    sum
}
