//! INFO persistence.

use std::sync::atomic::Ordering::Relaxed;

use super::{Facts, Fields};
use evenkeel_persist::{JobState, PersistJob};
use evenkeel_runtime::clock;

pub(super) fn persistence(facts: &Facts<'_>, fields: &mut Fields<'_>) {
    let (persist, now_s) = (&facts.server.persist, clock::unix_ms() / 1000);
    let (state, progress) = (persist.state(), &persist.progress);
    let is_loading = persist.is_loading();
    // For a tool that checks how busy the server is, a snapshot for replicas counts as well.
    let is_saving =
        state.all().any(|running| running.is(PersistJob::Snapshot) || running.is(PersistJob::Sync));
    let is_writing = !state.is_idle();
    fields.number("loading", u8::from(is_loading));
    fields.number("async_loading", u8::from(facts.server.replication.link.loads_beside()));
    let of_current = |counter: u64| if is_writing { counter } else { 0 };
    // There is no fork: copy-on-write copies single entries.
    let copied = of_current(facts.server.core.keyspace.copied_for_snapshot() as u64);
    fields.field("current_cow_peak", copied);
    fields.number("current_cow_size", copied);
    fields.zeros(&["current_cow_size_age"]);
    fields.field(
        "current_fork_perc",
        format!("{:.2}", of_current(progress.walked.load(Relaxed)) as f64 / 100.0),
    );
    fields.number("current_save_keys_processed", of_current(progress.keys.load(Relaxed)));
    fields.number("current_save_keys_total", of_current(progress.keys_total.load(Relaxed)));
    let bytes = of_current(progress.bytes.load(Relaxed));
    fields.number("current_save_bytes", bytes);
    let ms = clock::unix_ms().saturating_sub(progress.since_ms.load(Relaxed)).max(1);
    fields.number("current_save_bytes_per_sec", bytes.saturating_mul(1000) / ms);
    let changes = facts.server.core.keyspace.total().asked();
    fields.number("rdb_changes_since_last_save", state.changes_since_save(changes));
    // A full sync counts until all its replicas have received it, as in Redis.
    let is_syncing = facts.server.replication.metrics.syncing.load(Relaxed) > 0;
    fields.number("rdb_bgsave_in_progress", u8::from(is_saving || is_syncing));
    fields.number("rdb_last_save_time", state.last_save_s);
    fields.status("rdb_last_bgsave_status", state.last_ok);
    fields.number("rdb_last_bgsave_time_sec", seconds(state.last_took_s));
    let current_s =
        [PersistJob::Snapshot, PersistJob::Sync].into_iter().find_map(|job| current(&state, job, now_s));
    fields.number("rdb_current_bgsave_time_sec", seconds(current_s));
    fields.number("rdb_saves", state.saves);
    fields.number("rdb_last_cow_size", state.last_copied);
    fields.number("rdb_last_load_keys_expired", persist.loading.expired.load(Relaxed));
    fields.number("rdb_last_load_keys_loaded", persist.loading.keys.load(Relaxed));
    fields.number("snapshot_buffer_length", facts.server.core.keyspace.handed_over());
    fields.number("snapshot_buffer_overruns", progress.overruns.load(Relaxed));
    append_only_file(facts, fields, &state, now_s);
    fields.number("backup_in_progress", u8::from(persist.backup.status().stage.is_open()));
    fields.zeros(&["slot_migration_fork_in_progress"]);
    fields.zeros(&["module_fork_in_progress", "module_fork_last_cow_size"]);
    if is_loading {
        loading(facts, fields, now_s);
    }
}

/// Returns the seconds for which a snapshot of this kind has been running.
fn current(state: &JobState, job: PersistJob, now_s: u64) -> Option<u64> {
    let running = state.all().find(|running| running.is(job));
    running.map(|running| now_s.saturating_sub(running.since_s))
}

fn append_only_file(facts: &Facts<'_>, fields: &mut Fields<'_>, state: &JobState, now_s: u64) {
    let (aof, journal) = (&facts.server.persist.aof, &facts.server.core.keyspace.journal);
    let (metrics, is_on) = (&aof.metrics, aof.is_on());
    let current_s = current(state, PersistJob::Base, now_s);
    fields.number("aof_enabled", u8::from(is_on));
    let is_begun = state.is_about_to_rewrite() && facts.server.persist.has_all_data();
    let is_scheduled = state.rewrite_scheduled && !is_begun;
    fields.number("aof_rewrite_in_progress", u8::from(is_begun || current_s.is_some()));
    fields.number("aof_rewrite_scheduled", u8::from(is_scheduled));
    fields.number("aof_last_rewrite_time_sec", seconds(state.last_rewrite_took_s));
    fields.number("aof_current_rewrite_time_sec", seconds(current_s));
    fields.status("aof_last_bgrewrite_status", state.rewrites_failed == 0);
    fields.number("aof_rewrites", state.rewrites);
    fields.number("aof_rewrites_consecutive_failures", state.rewrites_failed);
    fields.status("aof_last_write_status", !metrics.write_failed.load(Relaxed));
    fields.number("aof_last_cow_size", state.last_rewrite_copied);
    if is_on {
        fields.number("aof_current_size", metrics.size.load(Relaxed));
        fields.number("aof_base_size", metrics.base_size.load(Relaxed));
        fields.number("aof_pending_rewrite", u8::from(is_scheduled));
        fields.number("aof_buffer_length", aof.unread(journal) + metrics.buffered.load(Relaxed));
        fields.number("aof_pending_bio_fsync", u8::from(metrics.is_syncing.load(Relaxed)));
        fields.number("aof_delayed_fsync", metrics.delayed_syncs.load(Relaxed));
        fields.number("aof_syncs", metrics.syncs.load(Relaxed));
        fields.number("aof_longest_write_usec", metrics.longest_write_us.load(Relaxed));
        fields.number("aof_longest_sync_usec", metrics.longest_sync_us.load(Relaxed));
        fields.number("aof_writers_delayed", metrics.crowded.load(Relaxed));
    }
}

fn loading(facts: &Facts<'_>, fields: &mut Fields<'_>, now_s: u64) {
    let loading = &facts.server.persist.loading;
    let (since_s, total) = (loading.since_s.load(Relaxed), loading.total_bytes.load(Relaxed));
    let loaded = loading.loaded_bytes.load(Relaxed);
    let elapsed_s = now_s.saturating_sub(since_s);
    let left = total.saturating_sub(loaded);
    fields.field("loading_start_time", since_s);
    fields.number("loading_total_bytes", total);
    fields.field("loading_rdb_used_mem", loading.used_mem.load(Relaxed));
    fields.number("loading_loaded_bytes", loaded);
    fields.field("loading_loaded_perc", format!("{:.2}", loaded as f64 * 100.0 / total.max(1) as f64));
    fields.number("loading_eta_seconds", (elapsed_s * left).checked_div(loaded).unwrap_or(1));
}

/// Returns -1 for a job that has never run.
fn seconds(seconds: Option<u64>) -> i64 {
    seconds.map_or(-1, |seconds| i64::try_from(seconds).unwrap_or(i64::MAX))
}
