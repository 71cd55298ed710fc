//! LATENCY: latency events, and histograms of commands' times.

use std::collections::BTreeSet;

use super::{Command, Group, ServerCall, ServerHandler, at_least, container, docs, exactly, session};
use crate::observe::info::latencies_of;
use crate::observe::recorder;
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_command::table::table;
use evenkeel_core::latency::report;
use evenkeel_runtime::clock;

const GROUP: Group = Group::Server;

/// The span that LATENCY DOCTOR reports on.
const HOUR_MS: u64 = 3_600_000;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    container("LATENCY", GROUP, &[
        session("LATENCY|DOCTOR",    exactly(2),  GROUP, doctor   ).admin(),
        session("LATENCY|GRAPH",     exactly(3),  GROUP, graph    ).admin(),
        session("LATENCY|HELP",      exactly(2),  GROUP, help     ).scriptable(),
        session("LATENCY|HISTOGRAM", at_least(2), GROUP, histogram).admin(),
        session("LATENCY|HISTORY",   exactly(3),  GROUP, history  ).admin(),
        session("LATENCY|LATEST",    exactly(2),  GROUP, latest   ).admin(),
        session("LATENCY|RESET",     at_least(2), GROUP, reset    ).admin(),
    ]),
];

/// LATENCY HELP
fn help(call: &mut ServerCall<'_, '_>) -> Done {
    docs::reply_help(call, "LATENCY");
    Ok(Flow::Replied)
}

/// LATENCY LATEST
fn latest(call: &mut ServerCall<'_, '_>) -> Done {
    let events = call.server.core.latency.all();
    call.base.reply.array(events.len());
    for (event, series) in events {
        let (at, ms) = series.samples.back().copied().unwrap_or_default();
        call.base.reply.array(6);
        call.base.reply.bulk(event.as_bytes());
        [at, ms, series.longest_ms, series.sum_ms, series.count]
            .iter()
            .for_each(|number| call.base.reply.int(*number as i64));
    }
    Ok(Flow::Replied)
}

/// LATENCY HISTORY event
fn history(call: &mut ServerCall<'_, '_>) -> Done {
    let samples = call
        .server
        .core
        .latency
        .find(call.base.args.at(2))
        .map(|(_, series)| series.samples)
        .unwrap_or_default();
    call.base.reply.array(samples.len());
    for (at, ms) in samples {
        call.base.reply.array(2);
        call.base.reply.int(at as i64);
        call.base.reply.int(ms as i64);
    }
    Ok(Flow::Replied)
}

/// LATENCY RESET [event ...]
fn reset(call: &mut ServerCall<'_, '_>) -> Done {
    let args = call.base.args;
    let asked = |event: &str| args.from(2).any(|name| name.eq_ignore_ascii_case(event.as_bytes()));
    let count = call.server.core.latency.reset(|event| args.len() == 2 || asked(event));
    call.base.reply.int(count as i64);
    Ok(Flow::Replied)
}

/// LATENCY GRAPH event
fn graph(call: &mut ServerCall<'_, '_>) -> Done {
    let event = call.base.args.at(2);
    let Some((event, series)) = call.server.core.latency.find(event) else {
        return Err(Error::Bytes([b"ERR No samples available for event '", event, b"'"].concat()));
    };
    call.base.reply.verbatim(&series.graph(event, clock::unix_ms() / 1000), b"txt");
    Ok(Flow::Replied)
}

/// LATENCY DOCTOR
fn doctor(call: &mut ServerCall<'_, '_>) -> Done {
    let (threshold, slow) =
        (call.base.settings.latency_monitor_threshold, call.base.settings.slowlog_log_slower_than);
    let now_ms = clock::unix_ms();
    let findings = call.server.recorder.findings(now_ms.saturating_sub(HOUR_MS), now_ms);
    let monitor = report(&call.server.core.latency.all(), threshold, slow);
    let text =
        format!("In the last hour: {}\nLatency monitor: {monitor}", findings.text(recorder::time_of_day));
    call.base.reply.verbatim(&text, b"txt");
    Ok(Flow::Replied)
}

/// LATENCY HISTOGRAM [command ...]
fn histogram(call: &mut ServerCall<'_, '_>) -> Done {
    let rows = table().rows();
    let chosen: Vec<usize> =
        if call.base.args.len() == 2 { (0..rows.len()).collect() } else { asked_for(call) };
    let found: Vec<_> = chosen
        .into_iter()
        .map(|index| (rows[index], latencies_of(call.server, index)))
        .filter(|(_, latencies)| latencies.count() > 0)
        .collect();
    call.base.reply.map(found.len());
    for (row, latencies) in found {
        let buckets = latencies.cumulative_by_power_us();
        call.base.reply.bulk(row.lower_name().as_bytes());
        call.base.reply.map(2);
        call.base.reply.bulk(b"calls");
        call.base.reply.int(latencies.count() as i64);
        call.base.reply.bulk(b"histogram_usec");
        call.base.reply.map(buckets.len());
        for (us, count) in buckets {
            call.base.reply.int(us as i64);
            call.base.reply.int(count as i64);
        }
    }
    Ok(Flow::Replied)
}

/// Returns the numbers of the named commands, each once; a container stands for its subcommands.
fn asked_for(call: &ServerCall<'_, '_>) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    let found = call.base.args.from(2).filter_map(|name| call.server.table.find_full(name));
    let with_subcommands = found.flat_map(|id| {
        let first = id.index();
        first..=first + table().row(id).subcommands
    });
    with_subcommands.filter(|index| seen.insert(*index)).collect()
}

#[cfg(test)]
mod tests {
    use crate::testing::check;

    #[test]
    fn slow_commands_become_latency_events() {
        check(
            "
            > LATENCY LATEST                      < []
            > DEBUG SLEEP 0.02                    < OK
            > LATENCY LATEST                      < []
            > CONFIG SET latency-monitor-threshold 10
            > DEBUG SLEEP 0.02                    < OK
            > LATENCY LATEST                      < [[\"command\", :*, :*, :*, :*, :1]]
            > LATENCY HISTORY command             < [[:*, :*]]
            > LATENCY HISTORY nosuch              < []
            > LATENCY GRAPH command               < \"command - high * ms, low * ms (all time high * ms)*\"
            > LATENCY GRAPH nosuch                < -ERR No samples available for event 'nosuch'
            > LATENCY RESET nosuch                < :0
            > LATENCY RESET command               < :1
            > LATENCY LATEST                      < []
        ",
        );
    }

    #[test]
    fn latencies_are_counted_by_command() {
        check(
            "
            > CONFIG RESETSTAT
            > GET k
            > GET k
            > LATENCY HISTOGRAM get nosuch        < [\"get\", [\"calls\", :2, \"histogram_usec\", [:*]]]
            > LATENCY HISTOGRAM config
            < [\"config|resetstat\", [\"calls\", :1, \"histogram_usec\", [:*, :1]]]
            > CONFIG RESETSTAT
            > LATENCY HISTOGRAM get               < []
        ",
        );
    }
}
