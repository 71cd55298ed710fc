//! INFO persistence.

use std::sync::atomic::Ordering::Relaxed;

use super::{Facts, Text};
use evenkeel_persist::{JobState, PersistJob};
use evenkeel_runtime::clock;

pub(super) fn persistence(facts: &Facts<'_>, text: &mut Text) {
    let (persist, now_s) = (&facts.server.persist, clock::unix_ms() / 1000);
    let (state, progress) = (persist.state(), &persist.progress);
    let is_loading = persist.is_loading();
    // For a tool that checks how busy the server is, a snapshot for replicas counts as well.
    let is_saving =
        state.all().any(|running| running.is(PersistJob::Snapshot) || running.is(PersistJob::Sync));
    let is_writing = !state.is_idle();
    text.field("loading", u8::from(is_loading));
    text.field("async_loading", u8::from(facts.server.replication.link.loads_beside()));
    let of_current = |counter: u64| if is_writing { counter } else { 0 };
    // There is no fork: copy-on-write copies single entries.
    let copied = of_current(facts.server.core.keyspace.copied_for_snapshot() as u64);
    text.field("current_cow_peak", copied);
    text.field("current_cow_size", copied);
    text.zeros(&["current_cow_size_age"]);
    text.field(
        "current_fork_perc",
        format!("{:.2}", of_current(progress.walked.load(Relaxed)) as f64 / 100.0),
    );
    text.field("current_save_keys_processed", of_current(progress.keys.load(Relaxed)));
    text.field("current_save_keys_total", of_current(progress.keys_total.load(Relaxed)));
    let bytes = of_current(progress.bytes.load(Relaxed));
    text.field("current_save_bytes", bytes);
    let ms = clock::unix_ms().saturating_sub(progress.since_ms.load(Relaxed)).max(1);
    text.field("current_save_bytes_per_sec", bytes.saturating_mul(1000) / ms);
    let changes = facts.server.core.keyspace.total().asked();
    text.field("rdb_changes_since_last_save", changes.saturating_sub(state.changes_at_save));
    // A full sync counts until all its replicas have received it, as in Redis.
    let is_syncing = facts.server.replication.metrics.syncing.load(Relaxed) > 0;
    text.field("rdb_bgsave_in_progress", u8::from(is_saving || is_syncing));
    text.field("rdb_last_save_time", state.last_save_s);
    text.field("rdb_last_bgsave_status", if state.last_ok { "ok" } else { "err" });
    text.field("rdb_last_bgsave_time_sec", seconds(state.last_took_s));
    let current_s =
        [PersistJob::Snapshot, PersistJob::Sync].into_iter().find_map(|job| current(&state, job, now_s));
    text.field("rdb_current_bgsave_time_sec", seconds(current_s));
    text.field("rdb_saves", state.saves);
    text.field("rdb_last_cow_size", state.last_copied);
    text.field("rdb_last_load_keys_expired", persist.loading.expired.load(Relaxed));
    text.field("rdb_last_load_keys_loaded", persist.loading.keys.load(Relaxed));
    text.field("snapshot_buffer_length", facts.server.core.keyspace.handed_over());
    text.field("snapshot_buffer_overruns", progress.overruns.load(Relaxed));
    append_only_file(facts, text, &state, now_s);
    text.field("backup_in_progress", u8::from(persist.backup.status().stage.is_open()));
    text.zeros(&["slot_migration_fork_in_progress"]);
    text.zeros(&["module_fork_in_progress", "module_fork_last_cow_size"]);
    if is_loading {
        loading(facts, text, now_s);
    }
}

/// Returns the seconds for which a snapshot of this kind has been running.
fn current(state: &JobState, job: PersistJob, now_s: u64) -> Option<u64> {
    let running = state.all().find(|running| running.is(job));
    running.map(|running| now_s.saturating_sub(running.since_s))
}

fn append_only_file(facts: &Facts<'_>, text: &mut Text, state: &JobState, now_s: u64) {
    let (aof, journal) = (&facts.server.persist.aof, &facts.server.core.keyspace.journal);
    let (metrics, is_on) = (&aof.metrics, aof.is_on());
    let current_s = current(state, PersistJob::Base, now_s);
    text.field("aof_enabled", u8::from(is_on));
    let is_begun = state.is_about_to_rewrite() && facts.server.persist.has_all_data();
    let is_scheduled = state.rewrite_scheduled && !is_begun;
    text.field("aof_rewrite_in_progress", u8::from(is_begun || current_s.is_some()));
    text.field("aof_rewrite_scheduled", u8::from(is_scheduled));
    text.field("aof_last_rewrite_time_sec", seconds(state.last_rewrite_took_s));
    text.field("aof_current_rewrite_time_sec", seconds(current_s));
    text.field("aof_last_bgrewrite_status", if state.rewrites_failed == 0 { "ok" } else { "err" });
    text.field("aof_rewrites", state.rewrites);
    text.field("aof_rewrites_consecutive_failures", state.rewrites_failed);
    text.field("aof_last_write_status", if metrics.write_failed.load(Relaxed) { "err" } else { "ok" });
    text.field("aof_last_cow_size", state.last_rewrite_copied);
    if is_on {
        text.field("aof_current_size", metrics.size.load(Relaxed));
        text.field("aof_base_size", metrics.base_size.load(Relaxed));
        text.field("aof_pending_rewrite", u8::from(is_scheduled));
        text.field("aof_buffer_length", aof.unread(journal) + metrics.buffered.load(Relaxed));
        text.field("aof_pending_bio_fsync", u8::from(metrics.is_syncing.load(Relaxed)));
        text.field("aof_delayed_fsync", metrics.delayed_syncs.load(Relaxed));
        text.field("aof_syncs", metrics.syncs.load(Relaxed));
        text.field("aof_longest_write_usec", metrics.longest_write_us.load(Relaxed));
        text.field("aof_longest_sync_usec", metrics.longest_sync_us.load(Relaxed));
        text.field("aof_writers_delayed", metrics.crowded.load(Relaxed));
    }
}

fn loading(facts: &Facts<'_>, text: &mut Text, now_s: u64) {
    let loading = &facts.server.persist.loading;
    let (since_s, total) = (loading.since_s.load(Relaxed), loading.total_bytes.load(Relaxed));
    let loaded = loading.loaded_bytes.load(Relaxed);
    let elapsed_s = now_s.saturating_sub(since_s);
    let left = total.saturating_sub(loaded);
    text.field("loading_start_time", since_s);
    text.field("loading_total_bytes", total);
    text.field("loading_rdb_used_mem", loading.used_mem.load(Relaxed));
    text.field("loading_loaded_bytes", loaded);
    text.field("loading_loaded_perc", format!("{:.2}", loaded as f64 * 100.0 / total.max(1) as f64));
    text.field("loading_eta_seconds", (elapsed_s * left).checked_div(loaded).unwrap_or(1));
}

/// Returns -1 for a job that has never run.
fn seconds(seconds: Option<u64>) -> i64 {
    seconds.map_or(-1, |seconds| i64::try_from(seconds).unwrap_or(i64::MAX))
}
