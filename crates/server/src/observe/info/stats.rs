//! Counters since the start or the last CONFIG RESETSTAT.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Facts, Fields};
use crate::observe::stats::{Stage, Stats};
use evenkeel_client::pubsub::SubscriptionKind;
use evenkeel_runtime::clock;

pub(super) fn stats(facts: &Facts<'_>, fields: &mut Fields<'_>) {
    let server = facts.server;
    let sum = |counter: fn(&Stats) -> &AtomicU64| -> u64 {
        server.stats.iter().map(|one| counter(one).load(Relaxed)).sum()
    };
    let stage_us = |stage: Stage| clock::us(server.stats.iter().map(|one| one.stage(stage)).sum());
    let keys = server.core.keyspace.total();
    let rates = server.rates.lock();
    let kilobytes = |bytes: u64| format!("{:.2}", bytes as f64 / 1024.0);

    fields.number("total_connections_received", sum(|stats| &stats.connections));
    fields.number("total_commands_processed", sum(|stats| &stats.commands_run));
    fields.number("long_commands_running", server.offload.running());
    fields.number("long_commands_queued", server.offload.queued());
    fields.number("long_commands_processed", server.offload.total());
    fields.number("instantaneous_ops_per_sec", rates.commands_per_second());
    let (repl_in, repl_out) = server.replication.traffic();
    fields.number("total_net_input_bytes", sum(|stats| &stats.net_in) + repl_in);
    fields.number("total_net_output_bytes", sum(|stats| &stats.net_out) + repl_out);
    fields.number("total_net_repl_input_bytes", repl_in);
    fields.number("total_net_repl_output_bytes", repl_out);
    fields.field("instantaneous_input_kbps", kilobytes(rates.net_in_per_second()));
    fields.field("instantaneous_output_kbps", kilobytes(rates.net_out_per_second()));
    fields.field("instantaneous_input_repl_kbps", kilobytes(rates.repl_in_per_second()));
    fields.field("instantaneous_output_repl_kbps", kilobytes(rates.repl_out_per_second()));
    fields.number("rejected_connections", server.hub.rejected_connections.load(Relaxed));
    let replication = &facts.server.replication.metrics;
    fields.number("sync_full", replication.full.load(Relaxed));
    fields.number("sync_partial_ok", replication.partial.load(Relaxed));
    fields.number("sync_partial_err", replication.partial_refused.load(Relaxed));
    fields.number("expired_keys", keys.expired);
    fields.number("expired_keys_active", keys.expired_in_sweeps);
    fields.number("expired_fields", keys.expired_fields);
    fields.number("expired_subkeys", keys.expired_fields); // the name of Redis 8
    // The sweep goes by deadlines, and leaves no expired keys behind.
    fields.decimals("expired_stale_perc", 0.0, 2);
    fields.field("expired_keys_with_volatile_items_stale_perc", "0.00");
    fields.number("expired_time_cap_reached_count", sum(|stats| &stats.slices_cut));
    fields.number("expire_cycle_cpu_milliseconds", stage_us(Stage::Expire) / 1000);
    fields.number("evicted_keys", keys.evicted);
    fields.number("evicted_clients", server.hub.evicted_clients.load(Relaxed));
    let (total, current) = server.sampler.over_limit_ms(facts.now_ms);
    fields.number("total_eviction_exceeded_time", total);
    fields.number("current_eviction_exceeded_time", current);
    fields.number("keyspace_hits", keys.hits);
    fields.number("keyspace_misses", keys.misses);
    fields.number("pubsub_channels", server.hub.pubsub.count(SubscriptionKind::Channel));
    fields.number("pubsub_patterns", server.hub.pubsub.count(SubscriptionKind::Pattern));
    fields.number("pubsubshard_channels", server.hub.pubsub.count(SubscriptionKind::Shard));
    fields.zeros(&["latest_fork_usec", "total_forks"]);
    fields.number("evicted_scripts", server.scripts.evicted());
    fields.number("migrate_cached_sockets", server.targets.kept());
    fields.number("slave_expires_tracked_keys", server.core.keyspace.own_timed());
    let (moved, stayed) = (sum(|stats| &stats.blocks_moved), sum(|stats| &stats.blocks_stayed));
    fields.number("active_defrag_hits", moved);
    fields.number("active_defrag_misses", stayed);
    // Blocks are moved, whichever keys they belong to.
    fields.number("active_defrag_key_hits", moved);
    fields.number("active_defrag_key_misses", stayed);
    fields.number("total_active_defrag_time", stage_us(Stage::Compact) / 1000);
    fields.number("current_active_defrag_time", server.compacts_for_us() / 1000);
    fields.number("tracking_total_keys", server.hub.tracking.keys());
    fields.number("tracking_total_items", server.hub.tracking.items());
    fields.number("tracking_total_prefixes", server.hub.tracking.prefixes());
    fields.number("unexpected_error_replies", sum(|stats| &stats.panics));
    fields.number("total_error_replies", sum(|stats| &stats.errors));
    // every payload is checked, regardless of `sanitize-dump-payload`
    fields.zeros(&["dump_payload_sanitizations"]);
    fields.number("total_reads_processed", sum(|stats| &stats.reads));
    fields.number("total_writes_processed", sum(|stats| &stats.writes));
    fields.zeros(&["io_threaded_reads_processed", "io_threaded_writes_processed"]);
    fields.zeros(&["io_threaded_accept_processed", "io_threaded_poll_processed"]);
    fields.zeros(&["io_threaded_freed_objects", "io_threaded_total_prefetch_batches"]);
    fields.zeros(&["io_threaded_total_prefetch_entries"]);
    fields.zeros(&["total_net_cluster_slot_import_bytes", "total_net_cluster_slot_export_bytes"]);
    fields.zeros(&["reply_buffer_shrinks", "reply_buffer_expands"]);
    fields.number("client_query_buffer_limit_disconnections", server.hub.closed_for_input.load(Relaxed));
    fields.number("client_output_buffer_limit_disconnections", server.hub.closed_for_output.load(Relaxed));
    let busy_us = clock::us(server.stats.iter().map(Stats::busy).sum());
    fields.number("instantaneous_eventloop_cycles_per_sec", rates.turns_per_second());
    fields.number("instantaneous_eventloop_duration_usec", rates.turn_us());
    fields.number("eventloop_cycles", sum(|stats| &stats.turns));
    fields.number("eventloop_duration_sum", busy_us);
    fields.number("eventloop_duration_cmd_sum", stage_us(Stage::Execute));
    fields.number("log_lines_lost", evenkeel_runtime::server_log::lost());
    fields.number("recorder_bytes", server.recorder.bytes());
    fields.number("upgrade_in_progress", u8::from(server.handover.is_under_way()));
    server.acl.log.counts().for_each(|(reason, count)| fields.field(reason.counter_name(), count));
}

/// Times of the loops of all workers.
pub(super) fn debug(facts: &Facts<'_>, fields: &mut Fields<'_>) {
    let stats = &facts.server.stats;
    let most = |counter: fn(&Stats) -> &AtomicU64| -> u64 {
        stats.iter().map(|one| counter(one).load(Relaxed)).max().unwrap_or(0)
    };
    fields.zeros(&["eventloop_duration_aof_sum"]); // a thread of its own writes the append-only file
    let timers = stats.iter().map(|one| one.stage(Stage::Other)).sum();
    fields.field("eventloop_duration_cron_sum", clock::us(timers));
    fields.field("eventloop_duration_max", clock::us(most(|stats| &stats.turn_max)));
    fields.field("eventloop_cmd_per_cycle_max", most(|stats| &stats.turn_commands_max));
    fields.zeros(&["io_threaded_reads_pending", "io_threaded_writes_pending"]);
}
