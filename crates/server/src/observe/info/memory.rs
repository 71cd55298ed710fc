//! INFO memory.

use std::sync::atomic::Ordering::Relaxed;

use super::{Facts, Fields, human, ratio};
use crate::observe::memory::MemoryMetrics;
use crate::observe::process;

pub(super) fn memory(facts: &Facts<'_>, fields: &mut Fields<'_>) {
    let (server, settings) = (facts.server, &facts.settings);
    let metrics = MemoryMetrics::gather(server, facts.clients.memory as u64);
    let MemoryMetrics { used, peak, resident, active, startup, clients, overhead, lua, .. } = metrics;
    let (by_blocks, by_chunks) = metrics.allocator_ratios();
    let MemoryMetrics { scripts, functions, backlog, beyond, unread, on_its_way, .. } = metrics;
    let dataset = metrics.dataset();

    fields.bytes("used_memory", used);
    fields.bytes("used_memory_rss", resident);
    fields.bytes("used_memory_peak", peak);
    fields.field("used_memory_peak_perc", percent(used, peak));
    fields.number("used_memory_overhead", overhead);
    fields.number("used_memory_startup", startup);
    fields.number("used_memory_dataset", dataset);
    fields.field("used_memory_dataset_perc", percent(dataset, metrics.net_used()));
    fields.number("allocator_allocated", used);
    fields.number("allocator_active", active);
    fields.number("allocator_resident", resident);
    fields.zeros(&["allocator_muzzy"]); // memory that was given back is not resident
    fields.bytes("total_system_memory", process::machine_bytes());
    fields.bytes("memory_limit", process::memory_limit());
    // The same Lua states run scripts and functions.
    let libraries = server.scripts.libraries();
    fields.number("used_memory_lua", lua);
    fields.number("used_memory_vm_eval", lua);
    fields.field("used_memory_lua_human", human(lua));
    fields.number("used_memory_scripts_eval", scripts);
    fields.number("number_of_cached_scripts", server.scripts.cached_texts().0);
    fields.number("number_of_functions", libraries.functions());
    fields.number("number_of_libraries", libraries.count());
    fields.zeros(&["used_memory_vm_functions"]);
    fields.bytes("used_memory_vm_total", lua);
    fields.number("used_memory_functions", functions);
    fields.bytes("used_memory_scripts", scripts + functions);
    fields.bytes("maxmemory", settings.maxmemory);
    fields.field("maxmemory_policy", settings.maxmemory_policy.name());
    fields.decimals("allocator_frag_ratio", by_blocks, 2);
    fields.number("allocator_frag_bytes", active - used);
    fields.decimals("allocator_rss_ratio", by_chunks, 2);
    fields.number("allocator_rss_bytes", resident as i64 - active as i64);
    fields.field("rss_overhead_ratio", "1.00");
    fields.field("rss_overhead_bytes", 0);
    fields.decimals("mem_fragmentation_ratio", metrics.fragmentation(), 2);
    fields.number("mem_fragmentation_bytes", metrics.fragmentation_bytes());
    let waits = unread
        + server.core.keyspace.kept_for_snapshot() as u64
        + server.core.lazy_free.values_pending() as u64;
    fields.number("mem_not_counted_for_evict", beyond + waits);
    fields.field("mem_shared_counted_for_evict", server.core.apart_bytes());
    fields.number("mem_replication_backlog", backlog);
    fields.number("mem_total_replication_buffers", backlog + beyond + on_its_way);
    fields.number("mem_clients_slaves", beyond);
    fields.number("mem_clients_normal", clients);
    // A replica receives a full sync over one connection, and applies the stream as it arrives.
    fields.zeros(&["mem_replicas_repl_buffer", "mem_replica_full_sync_buffer"]);
    fields.zeros(&["mem_cluster_links", "mem_cluster_slot_import", "mem_cluster_slot_export"]);
    fields.zeros(&["mem_overhead_db_hashtable_rehashing"]); // a segment is split as a whole
    let aof = &server.persist.aof;
    fields.number(
        "mem_aof_buffer",
        aof.unread(&server.core.keyspace.journal) + aof.metrics.buffered.load(Relaxed),
    );
    fields.field("mem_allocator", "mimalloc");
    fields.number("active_defrag_running", u8::from(server.compacts_for_us() > 0));
    fields.number("lazyfree_pending_objects", server.core.lazy_free.pending());
    fields.number("lazyfreed_objects", server.core.lazy_free.freed());
}

/// The engine of scripts and functions.
pub(super) fn engines(facts: &Facts<'_>, fields: &mut Fields<'_>) {
    let (used, overhead) = (facts.server.scripts.lua_bytes(), 0);
    fields.field("engines_count", 1);
    fields.field("engines_total_used_memory", used);
    fields.field("engines_total_memory_overhead", overhead);
    fields.field(
        "engine_0",
        format_args!("name=LUA,module=built-in,used_memory={used},memory_overhead={overhead}"),
    );
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.2}%", 100.0 * ratio(part, whole))
}
