//! INFO's sections about the server, its clients and its replication.

use std::sync::atomic::Ordering::Relaxed;

use super::{Facts, Fields};
use crate::admin::connection::EVENKEEL_VERSION;
use crate::observe::process;
use crate::observe::stats::Stats;
use evenkeel_net::tls::CertificateInfo;
use evenkeel_replication::link::Phase;
use evenkeel_runtime::clock;
use evenkeel_store::evict::lru_clock;

/// Offset of a replica that has no part of a stream: Redis' value.
const NO_OFFSET: u64 = 1;

/// Differs between builds of another version, processor or profile.
pub(crate) const BUILD_ID: u64 = {
    const PROFILE: &str = if cfg!(debug_assertions) { "debug" } else { "release" };
    hash_of(hash_of(hash_of(0xcbf2_9ce4_8422_2325, EVENKEEL_VERSION), std::env::consts::ARCH), PROFILE)
};

/// FNV-1a.
const fn hash_of(mut hash: u64, text: &str) -> u64 {
    let (bytes, mut at) = (text.as_bytes(), 0);
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

const DAY_S: u64 = 24 * 60 * 60;

pub(super) fn server(facts: &Facts<'_>, fields: &mut Fields<'_>) {
    let (server, settings) = (facts.server, &facts.settings);
    let uptime_s = server.core.uptime_ms() / 1000;
    fields.field("redis_version", String::from_utf8_lossy(&settings.reported_redis_version));
    fields.field("server_name", "evenkeel");
    fields.field("evenkeel_version", EVENKEEL_VERSION);
    fields.field("redis_git_sha1", "00000000");
    fields.field("redis_git_dirty", 0);
    fields.field("redis_build_id", format_args!("{BUILD_ID:016x}"));
    fields.field("redis_mode", facts.server.mode());
    fields.field("server_mode", "standalone");
    fields.field("os", process::system_name());
    fields.field("arch_bits", usize::BITS);
    fields.field("monotonic_clock", clock::source());
    fields.field("multiplexing_api", "epoll");
    fields.field("atomicvar_api", "rust-core");
    fields.field("gcc_version", "0.0.0"); // built by another compiler
    fields.number("process_id", std::process::id());
    fields.field("process_supervised", server.core.manager.name());
    fields.field("run_id", &server.core.run_id);
    fields.field("tcp_port", if settings.port > 0 { settings.port } else { settings.tls_port });
    fields.field("server_time_usec", clock::unix_us());
    fields.number("uptime_in_seconds", uptime_s);
    fields.field("uptime_in_days", uptime_s / DAY_S);
    fields.number("hz", settings.hz);
    fields.number("configured_hz", settings.hz);
    fields.field("lru_clock", lru_clock(facts.now_ms));
    let executable = std::env::current_exe().unwrap_or_default();
    fields.field("executable", executable.display());
    let config_file = server.config_file.as_ref().map_or(std::path::Path::new(""), |file| &file.path);
    fields.field("config_file", config_file.display());
    fields.number("worker_threads", server.core.workers.count());
    fields.number("io_threads_active", 0);
    fields.field("availability_zone", String::from_utf8_lossy(&settings.availability_zone));
    if let Some(ms) = server.persist.ending.waits_ms(facts.now_ms) {
        fields.field("shutdown_in_milliseconds", ms);
    }
    for (index, listener) in server.listeners.all().iter().enumerate() {
        fields.field(format_args!("listener{index}"), listener);
    }
}

/// Prints the expiry times of certificates.
pub(super) fn tls(facts: &Facts<'_>, fields: &mut Fields<'_>) {
    let contexts = facts.server.tls.contexts();
    let certificates = contexts.as_ref().map(|contexts| &contexts.certificates);
    let now_s = (facts.now_ms / 1000) as i64;
    let one = |name: &str, info: Option<&CertificateInfo>, fields: &mut Fields<'_>| {
        let serial = info.map_or("none", |info| &info.serial);
        fields.field(format_args!("tls_{name}_cert_serial"), serial);
        let left_s = info.map_or(0, |info| info.not_after_s as i64 - now_s);
        fields.field(format_args!("tls_{name}_cert_expires_in_seconds"), left_s);
    };
    one("server", certificates.and_then(|certificates| certificates.server.as_ref()), fields);
    one("client", certificates.and_then(|certificates| certificates.client.as_ref()), fields);
    one("ca", certificates.and_then(|certificates| certificates.authority.as_ref()), fields);
}

pub(super) fn clients(facts: &Facts<'_>, fields: &mut Fields<'_>) {
    let (server, clients, now) = (facts.server, &facts.clients, facts.now_ms);
    fields.number("connected_clients", clients.count);
    fields.field("cluster_connections", 0);
    fields.number("maxclients", facts.settings.maxclients);
    fields.number("client_recent_max_input_buffer", clients.input_max);
    fields.number("client_recent_max_output_buffer", clients.output_max);
    fields.number("blocked_clients", clients.blocked);
    fields.number("tracking_clients", server.hub.tracking.clients());
    fields.number("pubsub_clients", clients.subscribers);
    fields.number("watching_clients", clients.watching);
    fields.number("clients_in_timeout_table", clients.in_timeout);
    fields.number("total_watched_keys", clients.watched_keys);
    let [waited_keys, on_no_key] = server.core.keyspace.waited_keys();
    fields.number("total_blocking_keys", waited_keys);
    fields.number("total_blocking_keys_on_nokey", on_no_key);
    let paused = server.core.pause.is_active(now);
    fields.field("paused_reason", server.core.pause.reason(now));
    fields.field("paused_actions", server.core.pause.name(now));
    let left_ms = if paused { server.core.pause.until_ms(now).saturating_sub(now) } else { 0 };
    // Readers parse it as a signed number.
    fields.field("paused_timeout_milliseconds", left_ms.min(i64::MAX as u64));
}

pub(super) fn replication(facts: &Facts<'_>, fields: &mut Fields<'_>) {
    let state = &facts.server.replication;
    state.catch_up(&facts.server.core.keyspace.journal);
    fields.field("role", if state.is_replica() { "slave" } else { "master" });
    if state.is_replica() {
        link(facts, fields);
    }
    let settings = &facts.settings;
    let replicas = state.replicas.list();
    fields.number("connected_slaves", replicas.len());
    if settings.min_replicas_to_write > 0 && settings.min_replicas_max_lag > 0 {
        let good = state.replicas.count_good(u64::from(settings.min_replicas_max_lag), facts.now_ms);
        fields.number("min_slaves_good_slaves", good);
    }
    for (index, replica) in replicas.iter().enumerate() {
        let lag = if replica.is_online() { replica.lag_s(facts.now_ms) } else { 0 };
        let (ip, port, offset) = (&replica.ip, replica.port, replica.acked.load(Relaxed));
        let progress = replica.progress().name();
        let line = format_args!("ip={ip},port={port},state={progress},offset={offset},lag={lag}");
        fields.field(format_args!("slave{index}"), line);
    }
    fields.zeros(&["replicas_waiting_psync"]);
    fields.field("master_failover_state", state.failover.name());
    let stream = state.stream();
    let (second, until) = stream.history.second();
    fields.field("master_replid", &stream.history.id);
    fields.field("master_replid2", second);
    fields.number("master_repl_offset", stream.offset());
    fields.number("second_repl_offset", until);
    fields.number("repl_backlog_active", u8::from(stream.backlog().is_some()));
    fields.number("repl_backlog_size", settings.repl_backlog_size);
    fields.number("repl_backlog_first_byte_offset", stream.start().map_or(0, |start| start + 1));
    fields.number("repl_backlog_on_disk", state.metrics.on_disk.load(Relaxed));
    fields.number("repl_snapshot_on_disk", state.metrics.spilled.load(Relaxed));
    fields.number("repl_backlog_histlen", stream.start().map_or(0, |start| stream.offset() - start));
}

/// Prints a replica's link to its primary.
fn link(facts: &Facts<'_>, fields: &mut Fields<'_>) {
    let (settings, link) = (&facts.settings, &facts.server.replication.link);
    let (metrics, phase) = (&link.metrics, link.phase());
    let ago_s = |ms: u64| if ms == 0 { -1 } else { (facts.now_ms.saturating_sub(ms) / 1000) as i64 };
    let last_io_s = ago_s(metrics.last_io_ms.load(Relaxed));
    let target = link.target();
    fields.field("master_host", target.as_ref().map_or("", |target| &target.host));
    fields.field("master_port", target.as_ref().map_or(0, |target| target.port));
    fields.field("master_link_status", if phase == Phase::Connected { "up" } else { "down" });
    fields.field("master_last_io_seconds_ago", if phase == Phase::Connected { last_io_s } else { -1 });
    fields.field("master_sync_in_progress", u8::from(phase == Phase::Transfer));
    // If its data belong to no stream, the offset would show Sentinel newer data than other replicas have.
    let has_data = phase == Phase::Connected || link.position(&facts.server.replication).is_some();
    let read = if has_data { metrics.read_offset.load(Relaxed) } else { 0 };
    let offset = if has_data { facts.server.replication.stream().offset() } else { NO_OFFSET };
    fields.field("slave_read_repl_offset", read.max(offset));
    fields.field("slave_repl_offset", offset);
    if phase == Phase::Transfer {
        let (total, read) = (metrics.transfer_total.load(Relaxed), metrics.transfer_read.load(Relaxed));
        fields.field("master_sync_total_bytes", total);
        fields.field("master_sync_read_bytes", read);
        fields.number("master_sync_left_bytes", total - read);
        let percent = if total > 0 { read as f64 * 100.0 / total as f64 } else { 0.0 };
        fields.field("master_sync_perc", format_args!("{percent:.2}"));
        fields.field("master_sync_last_io_seconds_ago", last_io_s);
    }
    if phase != Phase::Connected {
        fields.field("master_link_down_since_seconds", ago_s(metrics.down_since_ms.load(Relaxed)));
    }
    fields.number("slave_priority", settings.replica_priority);
    fields.field("slave_read_only", u8::from(settings.replica_read_only));
    fields.field("replica_announced", u8::from(settings.replica_announced));
    fields.number("master_full_syncs", metrics.full_syncs.load(Relaxed));
    fields.number("master_partial_syncs", metrics.partial_syncs.load(Relaxed));
    fields.number("master_commands_failed", metrics.failed.load(Relaxed));
}

pub(super) fn cpu(facts: &Facts<'_>, fields: &mut Fields<'_>) {
    for (suffix, children) in [("", false), ("_children", true)] {
        let time = process::cpu_time(children);
        fields.decimals(&format!("used_cpu_sys{suffix}"), time.system.as_secs_f64(), 6);
        fields.decimals(&format!("used_cpu_user{suffix}"), time.user.as_secs_f64(), 6);
    }
    let time = process::main_thread_cpu_time();
    fields.decimals("used_cpu_sys_main_thread", time.system.as_secs_f64(), 6);
    fields.decimals("used_cpu_user_main_thread", time.user.as_secs_f64(), 6);
    // What a main thread does elsewhere is the work of all workers here.
    let busy_us = clock::us(facts.server.stats.iter().map(Stats::busy).sum());
    fields.decimals("used_active_time_main_thread", busy_us as f64 / 1e6, 6);
}

pub(super) fn cluster(facts: &Facts<'_>, fields: &mut Fields<'_>) {
    fields.field("cluster_enabled", u8::from(facts.server.cluster.is_some()));
    let Some(cluster) = &facts.server.cluster else { return };
    if let Some(health) = cluster.store_health() {
        fields.field("cluster_store", health);
        let view = cluster.view();
        fields.field("cluster_in_sync_replicas", view.in_sync_replicas());
        fields.field("cluster_slots_leaving", view.leaving().len());
        fields.field("cluster_slots_arriving", view.arriving().len());
    }
}

pub(super) fn keyspace(facts: &Facts<'_>, fields: &mut Fields<'_>) {
    let (keyspace, ctx) = (&facts.server.core.keyspace, &facts.guard.ctx);
    for db in 0..keyspace.databases() {
        let keys = keyspace.len(ctx, db);
        if keys > 0 {
            let expires = keyspace.timed_len(ctx, db);
            let mean_ttl = facts.server.sampler.mean_ttl_ms(db);
            let mean_ttl = if expires == 0 { 0 } else { mean_ttl };
            let hashes = keyspace.timed_hashes(ctx, db);
            fields.field(
                format_args!("db{db}"),
                format_args!(
                    "keys={keys},expires={expires},avg_ttl={mean_ttl},keys_with_volatile_items={hashes}"
                ),
            );
        }
    }
}

pub(super) fn key_sizes(facts: &Facts<'_>, fields: &mut Fields<'_>) {
    facts.server.key_sizes.for_each_line(|name, value| fields.field(name, value));
}
