//! Counters since the start or the last CONFIG RESETSTAT.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Facts, Text};
use crate::observe::stats::{Stage, Stats};
use evenkeel_client::pubsub::SubscriptionKind;
use evenkeel_runtime::clock;

pub(super) fn stats(facts: &Facts<'_>, text: &mut Text) {
    let server = facts.server;
    let sum = |counter: fn(&Stats) -> &AtomicU64| -> u64 {
        server.stats.iter().map(|one| counter(one).load(Relaxed)).sum()
    };
    let stage_us = |stage: Stage| clock::us(server.stats.iter().map(|one| one.stage(stage)).sum());
    let keys = server.core.keyspace.total();
    let rates = server.rates.lock();
    let kilobytes = |bytes: u64| format!("{:.2}", bytes as f64 / 1024.0);

    text.field("total_connections_received", sum(|stats| &stats.connections));
    text.field("total_commands_processed", sum(|stats| &stats.commands_run));
    text.field("long_commands_running", server.offload.running());
    text.field("long_commands_queued", server.offload.queued());
    text.field("long_commands_processed", server.offload.total());
    text.field("instantaneous_ops_per_sec", rates.commands_per_second());
    let (repl_in, repl_out) = server.replication.traffic();
    text.field("total_net_input_bytes", sum(|stats| &stats.net_in) + repl_in);
    text.field("total_net_output_bytes", sum(|stats| &stats.net_out) + repl_out);
    text.field("total_net_repl_input_bytes", repl_in);
    text.field("total_net_repl_output_bytes", repl_out);
    text.field("instantaneous_input_kbps", kilobytes(rates.net_in_per_second()));
    text.field("instantaneous_output_kbps", kilobytes(rates.net_out_per_second()));
    text.field("instantaneous_input_repl_kbps", kilobytes(rates.repl_in_per_second()));
    text.field("instantaneous_output_repl_kbps", kilobytes(rates.repl_out_per_second()));
    text.field("rejected_connections", server.hub.rejected_connections.load(Relaxed));
    let replication = &facts.server.replication.metrics;
    text.field("sync_full", replication.full.load(Relaxed));
    text.field("sync_partial_ok", replication.partial.load(Relaxed));
    text.field("sync_partial_err", replication.partial_refused.load(Relaxed));
    text.field("expired_keys", keys.expired);
    text.field("expired_keys_active", keys.expired_in_sweeps);
    text.field("expired_fields", keys.expired_fields);
    text.field("expired_subkeys", keys.expired_fields); // the name of Redis 8
    text.field("expired_stale_perc", "0.00"); // the sweep goes by deadlines and leaves no expired keys behind
    text.field("expired_keys_with_volatile_items_stale_perc", "0.00");
    text.field("expired_time_cap_reached_count", sum(|stats| &stats.slices_cut));
    text.field("expire_cycle_cpu_milliseconds", stage_us(Stage::Expire) / 1000);
    text.field("evicted_keys", keys.evicted);
    text.field("evicted_clients", server.hub.evicted_clients.load(Relaxed));
    let (total, current) = server.sampler.over_limit_ms(facts.now_ms);
    text.field("total_eviction_exceeded_time", total);
    text.field("current_eviction_exceeded_time", current);
    text.field("keyspace_hits", keys.hits);
    text.field("keyspace_misses", keys.misses);
    text.field("pubsub_channels", server.hub.pubsub.count(SubscriptionKind::Channel));
    text.field("pubsub_patterns", server.hub.pubsub.count(SubscriptionKind::Pattern));
    text.field("pubsubshard_channels", server.hub.pubsub.count(SubscriptionKind::Shard));
    text.zeros(&["latest_fork_usec", "total_forks"]);
    text.field("evicted_scripts", server.scripts.evicted());
    text.field("migrate_cached_sockets", server.targets.kept());
    text.field("slave_expires_tracked_keys", server.core.keyspace.own_timed());
    let (moved, stayed) = (sum(|stats| &stats.blocks_moved), sum(|stats| &stats.blocks_stayed));
    text.field("active_defrag_hits", moved);
    text.field("active_defrag_misses", stayed);
    // Blocks are moved, whichever keys they belong to.
    text.field("active_defrag_key_hits", moved);
    text.field("active_defrag_key_misses", stayed);
    text.field("total_active_defrag_time", stage_us(Stage::Compact) / 1000);
    text.field("current_active_defrag_time", server.compacts_for_us() / 1000);
    text.field("tracking_total_keys", server.hub.tracking.keys());
    text.field("tracking_total_items", server.hub.tracking.items());
    text.field("tracking_total_prefixes", server.hub.tracking.prefixes());
    text.field("unexpected_error_replies", sum(|stats| &stats.panics));
    text.field("total_error_replies", sum(|stats| &stats.errors));
    // every payload is checked, regardless of `sanitize-dump-payload`
    text.zeros(&["dump_payload_sanitizations"]);
    text.field("total_reads_processed", sum(|stats| &stats.reads));
    text.field("total_writes_processed", sum(|stats| &stats.writes));
    text.zeros(&["io_threaded_reads_processed", "io_threaded_writes_processed"]);
    text.zeros(&["io_threaded_accept_processed", "io_threaded_poll_processed"]);
    text.zeros(&["io_threaded_freed_objects", "io_threaded_total_prefetch_batches"]);
    text.zeros(&["io_threaded_total_prefetch_entries"]);
    text.zeros(&["total_net_cluster_slot_import_bytes", "total_net_cluster_slot_export_bytes"]);
    text.zeros(&["reply_buffer_shrinks", "reply_buffer_expands"]);
    text.field("client_query_buffer_limit_disconnections", server.hub.closed_for_input.load(Relaxed));
    text.field("client_output_buffer_limit_disconnections", server.hub.closed_for_output.load(Relaxed));
    let busy_us = clock::us(server.stats.iter().map(Stats::busy).sum());
    text.field("instantaneous_eventloop_cycles_per_sec", rates.turns_per_second());
    text.field("instantaneous_eventloop_duration_usec", rates.turn_us());
    text.field("eventloop_cycles", sum(|stats| &stats.turns));
    text.field("eventloop_duration_sum", busy_us);
    text.field("eventloop_duration_cmd_sum", stage_us(Stage::Execute));
    text.field("log_lines_lost", evenkeel_runtime::server_log::lost());
    server.acl.log.counts().for_each(|(reason, count)| text.field(reason.counter_name(), count));
}

/// Times of the loops of all workers.
pub(super) fn debug(facts: &Facts<'_>, text: &mut Text) {
    let stats = &facts.server.stats;
    let most = |counter: fn(&Stats) -> &AtomicU64| -> u64 {
        stats.iter().map(|one| counter(one).load(Relaxed)).max().unwrap_or(0)
    };
    text.zeros(&["eventloop_duration_aof_sum"]); // a thread of its own writes the append-only file
    let timers = stats.iter().map(|one| one.stage(Stage::Other)).sum();
    text.field("eventloop_duration_cron_sum", clock::us(timers));
    text.field("eventloop_duration_max", clock::us(most(|stats| &stats.turn_max)));
    text.field("eventloop_cmd_per_cycle_max", most(|stats| &stats.turn_commands_max));
    text.zeros(&["io_threaded_reads_pending", "io_threaded_writes_pending"]);
}
