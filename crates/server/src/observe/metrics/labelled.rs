//! Metrics with labels: of commands, errors, databases, replicas, workers, and of the settings.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use evenkeel_http::Exposition;
use evenkeel_http::Kind::{Counter, Gauge, Histogram, Summary};

use crate::observe::commandlog::CommandLogKind;
use crate::observe::info::{BUILD_ID, Facts, counts_of_all, errors_by_code, latencies_of};
use crate::observe::process;
use crate::observe::sampler::DatabaseCounts;
use crate::observe::stats::{Latencies, Stage, Stats};
use crate::startup::VERSION;
use evenkeel_acl::log::Reason;
use evenkeel_command::table::table;
use evenkeel_net::tls::CertificateInfo;
use evenkeel_replication::link::Phase;
use evenkeel_runtime::clock;

/// Bounds of the histograms of commands: 1, 2, 4, ... microseconds, to 16.8 seconds. Every histogram has all
/// of them, since sums over commands and servers need the same bounds.
const HISTOGRAM_BOUNDS: usize = 25;

pub(super) fn write(facts: &Facts<'_>, out: &mut Exposition) {
    instance(facts, out);
    settings(facts, out);
    databases(facts, out);
    commands(facts, out);
    latencies(facts, out);
    logs(facts, out);
    replicas(facts, out);
    primary(facts, out);
    workers(facts, out);
    journal(facts, out);
    certificates(facts, out);
}

fn instance(facts: &Facts<'_>, out: &mut Exposition) {
    let (server, settings) = (facts.server, &facts.settings);
    out.single("redis_up", Gauge, "Always 1: the server answers.", 1_u64);
    let started_s = facts.now_ms.saturating_sub(server.core.uptime_ms()) / 1000;
    out.single("redis_start_time_seconds", Gauge, "Unix time of the start.", started_s);
    let version = String::from_utf8_lossy(&settings.reported_redis_version);
    let port = if settings.port > 0 { settings.port } else { settings.tls_port };
    let stream = server.replication.stream();
    let replication_id = stream.history.id.to_string();
    drop(stream);
    out.family("redis_instance_info", Gauge, "Always 1; its labels describe the server.");
    out.sample(
        "",
        &[
            ("role", if server.replication.is_replica() { "slave" } else { "master" }),
            ("redis_version", &version),
            ("redis_build_id", &format!("{BUILD_ID:016x}")),
            ("redis_mode", server.mode()),
            ("os", &process::system_name()),
            ("maxmemory_policy", settings.maxmemory_policy.name()),
            ("tcp_port", &port.to_string()),
            ("run_id", &server.core.run_id.to_string()),
            ("process_id", &std::process::id().to_string()),
            ("master_replid", &replication_id),
        ],
        1_u64,
    );
    out.family("evenkeel_build_info", Gauge, "Always 1; its label is the version of Evenkeel.");
    out.sample("", &[("version", VERSION)], 1_u64);
}

fn settings(facts: &Facts<'_>, out: &mut Exposition) {
    let settings = &facts.settings;
    out.single("redis_config_maxclients", Gauge, "The setting maxclients.", settings.maxclients);
    out.single("redis_config_maxmemory", Gauge, "The setting maxmemory.", settings.maxmemory);
    let limits = &settings.client_output_buffer_limit;
    let classes = [("normal", limits.normal), ("slave", limits.replica), ("pubsub", limits.pubsub)];
    out.family(
        "redis_config_client_output_buffer_limit_bytes",
        Gauge,
        "The setting client-output-buffer-limit: bytes per class of clients; 0: no limit.",
    );
    for (class, limit) in classes {
        out.sample("", &[("class", class), ("limit", "hard")], limit.hard_bytes);
        out.sample("", &[("class", class), ("limit", "soft")], limit.soft_bytes);
    }
    out.family(
        "redis_config_client_output_buffer_limit_overcome_seconds",
        Gauge,
        "The setting client-output-buffer-limit: seconds above the soft limit until a client is closed.",
    );
    for (class, limit) in classes {
        out.sample("", &[("class", class), ("limit", "soft")], limit.soft_seconds);
    }
}

/// Outside the gate, which a long script may keep closed, the counts are those of the last second.
fn databases(facts: &Facts<'_>, out: &mut Exposition) {
    let (server, ctx) = (facts.server, &facts.guard.ctx);
    let keyspace = &server.core.keyspace;
    let used: Vec<(String, DatabaseCounts)> = (0..keyspace.databases())
        .map(|db| (format!("db{db}"), server.sampler.database(keyspace, ctx, db)))
        .filter(|(_, counts)| counts.keys > 0)
        .collect();
    let mut each = |name, help, count: fn(&DatabaseCounts) -> u64| {
        out.family(name, Gauge, help);
        used.iter().for_each(|(db, counts)| out.sample("", &[("db", db)], count(counts)));
    };
    each("redis_db_keys", "Keys of a database.", |counts| counts.keys);
    each("redis_db_keys_expiring", "Keys of a database that have a deadline.", |counts| counts.timed);
    each(
        "redis_db_keys_with_expiring_items",
        "Hashes of a database that have fields with a deadline.",
        |counts| counts.timed_hashes,
    );
    out.family(
        "redis_db_avg_ttl_seconds",
        Gauge,
        "Mean time to live of a sample of the keys with a deadline.",
    );
    for (db, counts) in &used {
        let mean_ms = if counts.timed > 0 { counts.mean_ttl_ms } else { 0 };
        out.sample("", &[("db", db)], mean_ms as f64 / 1000.0);
    }
}

fn commands(facts: &Facts<'_>, out: &mut Exposition) {
    let all: Vec<_> = counts_of_all(facts.server).collect();
    out.family("redis_commands_total", Counter, "Calls of a command.");
    all.iter().for_each(|(name, counts)| out.sample("", &[("cmd", name)], counts.calls));
    out.family("redis_commands_duration_seconds_total", Counter, "Time spent on a command.");
    all.iter().for_each(|(name, counts)| out.sample("", &[("cmd", name)], counts.us as f64 / 1e6));
    out.family("redis_commands_rejected_calls_total", Counter, "Calls of a command that were refused.");
    all.iter().for_each(|(name, counts)| out.sample("", &[("cmd", name)], counts.rejected));
    out.family(
        "redis_commands_failed_calls_total",
        Counter,
        "Calls of a command that replied with an error.",
    );
    all.iter().for_each(|(name, counts)| out.sample("", &[("cmd", name)], counts.failed));
    out.family("redis_errors_total", Counter, "Error replies by their first word.");
    for (code, count) in errors_by_code(facts.server) {
        out.sample("", &[("err", &code)], count);
    }
}

fn latencies(facts: &Facts<'_>, out: &mut Exposition) {
    let ticks_of = |index: usize| -> u64 {
        facts.server.stats.iter().map(|stats| stats.commands[index].ticks.load(Relaxed)).sum()
    };
    let has_any = |index: usize| facts.server.stats.iter().any(|stats| stats.commands[index].has_latencies());
    let all: Vec<(String, Latencies, u64)> = table()
        .rows()
        .iter()
        .enumerate()
        .filter(|(index, _)| has_any(*index))
        .map(|(index, row)| (row.lower_name(), latencies_of(facts.server, index), clock::us(ticks_of(index))))
        .filter(|(_, latencies, _)| latencies.count() > 0)
        .collect();
    let bounds: Vec<String> = (0..HISTOGRAM_BOUNDS).map(|power| (1_u64 << power).to_string()).collect();
    out.family("redis_commands_latencies_usec", Histogram, "Time of a command, in microseconds.");
    for (name, latencies, sum_us) in &all {
        for ((_, count), bound) in latencies.cumulative_us().zip(&bounds) {
            out.sample("_bucket", &[("cmd", name), ("le", bound)], count);
        }
        out.sample("_bucket", &[("cmd", name), ("le", "+Inf")], latencies.count());
        out.sample("_sum", &[("cmd", name)], *sum_us);
        out.sample("_count", &[("cmd", name)], latencies.count());
    }
    let percentiles = &facts.settings.latency_tracking_info_percentiles;
    let shown: Vec<(f64, String)> =
        percentiles.iter().map(|percent| (*percent, percent.to_string())).collect();
    out.family(
        "redis_latency_percentiles_usec",
        Summary,
        "Percentiles of a command's time, in microseconds.",
    );
    for (name, latencies, sum_us) in &all {
        for (percent, text) in &shown {
            out.sample("", &[("cmd", name), ("quantile", text)], latencies.percentile_us(*percent));
        }
        out.sample("_sum", &[("cmd", name)], *sum_us);
        out.sample("_count", &[("cmd", name)], latencies.count());
    }
}

fn logs(facts: &Facts<'_>, out: &mut Exposition) {
    let (server, slow) = (facts.server, CommandLogKind::Slow);
    let log = &server.commandlog;
    out.single("redis_slowlog_length", Gauge, "Entries in the slow log.", log.len(slow));
    let last_id = log.recorded(slow).saturating_sub(1);
    out.single("redis_slowlog_last_id", Gauge, "Number of the last entry of the slow log.", last_id);
    let last_us = log.newest(slow, 1).first().map_or(0, |entry| entry.amount);
    out.single(
        "redis_last_slow_execution_duration_seconds",
        Gauge,
        "Time of the last command in the slow log.",
        last_us as f64 / 1e6,
    );
    let events = server.core.latency.all();
    let last = |out: &mut Exposition, of: fn((u64, u64)) -> f64| {
        for (event, series) in &events {
            out.sample("", &[("event_name", event)], of(series.samples.back().copied().unwrap_or_default()));
        }
    };
    out.family("redis_latency_spike_last", Gauge, "Unix time of the last event of the latency monitor.");
    last(out, |(at_s, _)| at_s as f64);
    out.family(
        "redis_latency_spike_duration_seconds",
        Gauge,
        "Length of the last event of the latency monitor.",
    );
    last(out, |(_, ms)| ms as f64 / 1000.0);
    for (reason, count) in server.acl.log.counts() {
        let (name, help) = match reason {
            Reason::Auth => ("redis_acl_access_denied_auth_total", "Failed logins."),
            Reason::Command => ("redis_acl_access_denied_cmd_total", "Commands that a user may not run."),
            Reason::Key => ("redis_acl_access_denied_key_total", "Commands on keys that a user may not use."),
            Reason::Channel => ("redis_acl_access_denied_channel_total", "Commands on forbidden channels."),
            Reason::Database => ("redis_acl_access_denied_db_total", "Commands on forbidden databases."),
            Reason::Certificate => {
                ("redis_acl_access_denied_tls_cert_total", "Certificates that name no enabled user.")
            }
        };
        out.single(name, Counter, help, count);
    }
}

fn replicas(facts: &Facts<'_>, out: &mut Exposition) {
    struct Row {
        ip: String,
        port: String,
        state: &'static str,
        offset: u64,
        lag_s: u64,
    }
    let rows: Vec<Row> = facts
        .server
        .replication
        .replicas
        .list()
        .iter()
        .map(|replica| Row {
            ip: replica.ip.to_string(),
            port: replica.port.to_string(),
            state: replica.progress().name(),
            offset: replica.acked.load(Relaxed),
            lag_s: if replica.is_online() { replica.lag_s(facts.now_ms) } else { 0 },
        })
        .collect();
    let labels = |row: &Row| {
        [
            ("slave_ip", row.ip.clone()),
            ("slave_port", row.port.clone()),
            ("slave_state", row.state.to_owned()),
        ]
    };
    let mut each = |name, help, value: fn(&Row) -> u64| {
        out.family(name, Gauge, help);
        for row in &rows {
            let labels = labels(row);
            let labels: Vec<(&str, &str)> =
                labels.iter().map(|(name, label)| (*name, label.as_str())).collect();
            out.sample("", &labels, value(row));
        }
    };
    each("redis_connected_slave_offset_bytes", "Offset that a replica has confirmed.", |row| row.offset);
    each("redis_connected_slave_lag_seconds", "Seconds since a replica last confirmed.", |row| row.lag_s);
}

/// The link to the primary, at a replica.
fn primary(facts: &Facts<'_>, out: &mut Exposition) {
    let replication = &facts.server.replication;
    let Some(target) = replication.link.target() else { return };
    let (phase, metrics, port) =
        (replication.link.phase(), &replication.link.metrics, target.port.to_string());
    let labels = [("master_host", target.host.as_str()), ("master_port", port.as_str())];
    let mut single = |name, help, value: i64| {
        out.family(name, Gauge, help);
        out.sample("", &labels, value);
    };
    let is_up = phase == Phase::Connected;
    single("redis_master_link_up", "Whether the link to the primary is up.", i64::from(is_up));
    single(
        "redis_master_sync_in_progress",
        "Whether a full sync is being received.",
        i64::from(phase == Phase::Transfer),
    );
    let last_ms = metrics.last_io_ms.load(Relaxed);
    let ago_s = if is_up && last_ms > 0 { (facts.now_ms.saturating_sub(last_ms) / 1000) as i64 } else { -1 };
    single(
        "redis_master_last_io_seconds_ago",
        "Seconds since the primary sent something; -1: no link.",
        ago_s,
    );
    let offset = replication.stream().offset();
    single("redis_slave_repl_offset", "Offset of the stream that was applied.", offset as i64);
    out.family("redis_slave_info", Gauge, "Always 1 at a replica; its labels describe it.");
    let read_only = if facts.settings.replica_read_only { "1" } else { "0" };
    out.sample("", &[labels[0], labels[1], ("read_only", read_only)], 1_u64);
}

/// The workers' own account of their time.
fn workers(facts: &Facts<'_>, out: &mut Exposition) {
    let server = facts.server;
    let names: Vec<String> = (0..server.core.workers.count()).map(|index| index.to_string()).collect();
    let all = || names.iter().zip(&server.stats);
    out.family(
        "evenkeel_worker_seconds_total",
        Counter,
        "Time of a worker by stage; idle is waiting for events.",
    );
    for (name, stats) in all() {
        for stage in Stage::ALL {
            let labels = [("worker", name.as_str()), ("stage", stage.name())];
            out.sample("", &labels, clock::us(stats.stage(stage)) as f64 / 1e6);
        }
    }
    let mut each = |metric, help, count: fn(&Stats) -> &AtomicU64| {
        out.family(metric, Counter, help);
        all().for_each(|(name, stats)| out.sample("", &[("worker", name)], count(stats).load(Relaxed)));
    };
    each("evenkeel_worker_commands_total", "Commands run by a worker.", |stats| &stats.commands_run);
    each("evenkeel_worker_turns_total", "Turns of a worker's loop.", |stats| &stats.turns);
    each("evenkeel_worker_wakeups_total", "Wake-ups of a worker by another thread.", |stats| &stats.wakeups);
    each("evenkeel_worker_reads_total", "Reads from sockets by a worker.", |stats| &stats.reads);
    each("evenkeel_worker_writes_total", "Writes to sockets by a worker.", |stats| &stats.writes);
    out.family("evenkeel_worker_turn_max_seconds", Gauge, "Longest turn of a worker's loop.");
    for (name, stats) in all() {
        let us = clock::us(stats.turn_max.load(Relaxed));
        out.sample("", &[("worker", name)], us as f64 / 1e6);
    }
    out.family("evenkeel_worker_connections", Gauge, "Connections of a worker.");
    for (name, inbox) in names.iter().zip(server.inboxes.iter()) {
        out.sample("", &[("worker", name)], inbox.connections.load(Relaxed));
    }
    let long_us = clock::us(server.stats.iter().map(|stats| stats.long_ticks.load(Relaxed)).sum());
    out.single(
        "evenkeel_offloaded_seconds_total",
        Counter,
        "Time of the offload pool on long commands.",
        long_us as f64 / 1e6,
    );
}

fn journal(facts: &Facts<'_>, out: &mut Exposition) {
    let keyspace = &facts.server.core.keyspace;
    out.single(
        "evenkeel_journal_unread_bytes",
        Gauge,
        "Bytes of the journal that the append-only file or the replication stream have not taken.",
        keyspace.journal.unread(),
    );
    let slab = evenkeel_slab::stats();
    out.family(
        "evenkeel_slab_bytes",
        Gauge,
        "Memory of the store's allocator: in runs, in chunks, in idle chunks.",
    );
    for (state, bytes) in [("runs", slab.in_runs), ("chunks", slab.in_chunks), ("idle", slab.idle)] {
        out.sample("", &[("state", state)], bytes);
    }
}

fn certificates(facts: &Facts<'_>, out: &mut Exposition) {
    let Some(contexts) = facts.server.tls.contexts() else { return };
    let certificates = &contexts.certificates;
    out.family("evenkeel_tls_certificate_expiry_seconds", Gauge, "Unix time at which a certificate expires.");
    let mut one = |name: &str, info: Option<&CertificateInfo>| {
        if let Some(info) = info {
            out.sample("", &[("certificate", name)], info.not_after_s);
        }
    };
    one("server", certificates.server.as_ref());
    one("client", certificates.client.as_ref());
    one("ca", certificates.authority.as_ref());
}
