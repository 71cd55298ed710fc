//! Time of the threads, by stage and worker.

use std::sync::atomic::Ordering::Relaxed;

use super::{Facts, Fields};
use crate::observe::stats::{Stage, Stats};
use evenkeel_runtime::clock;

/// Microseconds of each stage, over all workers, and the longest slice of background work.
pub(super) fn stages(facts: &Facts<'_>, fields: &mut Fields<'_>) {
    let all = &facts.server.stats;
    for stage in Stage::ALL {
        let us = clock::us(all.iter().map(|stats| stats.stage(stage)).sum());
        fields.field(format_args!("stage_{}_usec", stage.name()), us);
    }
    let long_us = clock::us(all.iter().map(|stats| stats.long_ticks.load(Relaxed)).sum());
    fields.number("long_commands_usec", long_us);
    let longest = all.iter().map(|stats| stats.slice_max.load(Relaxed)).max().unwrap_or(0);
    fields.number("background_slice_max_usec", clock::us(longest));
}

/// Prints a line for each worker; `busy` is its share of the last tenth of a second, the rest counts from the
/// start.
pub(super) fn workers(facts: &Facts<'_>, fields: &mut Fields<'_>) {
    let server = facts.server;
    for (index, (stats, inbox)) in server.stats.iter().zip(server.inboxes.iter()).enumerate() {
        let counts = [
            ("commands", &stats.commands_run),
            ("reads", &stats.reads),
            ("writes", &stats.writes),
            ("turns", &stats.turns),
            ("wakeups", &stats.wakeups),
            ("panics", &stats.panics),
        ];
        let counts = counts.map(|(name, count)| format!(",{name}={}", count.load(Relaxed))).concat();
        fields.field(
            format_args!("worker{index}"),
            format_args!(
                "connections={},busy={:.3}{counts}{}",
                inbox.connections.load(Relaxed),
                inbox.busy.load(Relaxed) as f64 / 1000.0,
                stage_fields(stats)
            ),
        );
    }
}

fn stage_fields(stats: &Stats) -> String {
    Stage::ALL.map(|stage| format!(",{}_usec={}", stage.name(), clock::us(stats.stage(stage)))).concat()
}
