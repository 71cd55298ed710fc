//! Calls, outcomes and latencies of each command.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Facts, Text};
use crate::observe::stats::{CommandStats, Latencies};
use crate::server::Server;
use evenkeel_command::table::table;
use evenkeel_runtime::clock;

pub(super) fn calls(facts: &Facts<'_>, text: &mut Text) {
    for (index, row) in table().rows().iter().enumerate() {
        let sum = |counter: fn(&CommandStats) -> &AtomicU64| -> u64 {
            facts.server.stats.iter().map(|stats| counter(&stats.commands[index]).load(Relaxed)).sum()
        };
        let (calls, rejected) = (sum(|stats| &stats.calls), sum(|stats| &stats.rejected));
        if calls == 0 && rejected == 0 {
            continue;
        }
        let (us, failed) = (clock::us(sum(|stats| &stats.ticks)), sum(|stats| &stats.failed));
        let each = if calls == 0 { 0.0 } else { us as f64 / calls as f64 };
        text.field(
            format_args!("cmdstat_{}", row.lower_name()),
            format_args!(
                "calls={calls},usec={us},usec_per_call={each:.2},\
                 rejected_calls={rejected},failed_calls={failed}"
            ),
        );
    }
}

pub(super) fn errors(facts: &Facts<'_>, text: &mut Text) {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for stats in &facts.server.stats {
        for (code, count) in stats.by_error.lock().iter() {
            *sums.entry(code.clone()).or_default() += count;
        }
    }
    for (code, count) in sums {
        text.field(format_args!("errorstat_{code}"), format_args!("count={count}"));
    }
}

pub(super) fn latencies(facts: &Facts<'_>, text: &mut Text) {
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
        text.field(format_args!("latency_percentiles_usec_{}", row.lower_name()), shown.join(","));
    }
}

/// Returns the latencies of the command of this number, over all workers.
pub(crate) fn latencies_of(server: &Server, index: usize) -> Latencies {
    let mut sum = Latencies::default();
    server.stats.iter().for_each(|stats| stats.commands[index].add_latencies(&mut sum));
    sum
}
