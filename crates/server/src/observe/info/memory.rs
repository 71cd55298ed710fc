//! INFO memory.

use std::sync::atomic::Ordering::Relaxed;

use super::{Facts, Text, human, ratio};
use crate::observe::memory::MemoryMetrics;
use crate::observe::process;

pub(super) fn memory(facts: &Facts<'_>, text: &mut Text) {
    let (server, settings) = (facts.server, &facts.settings);
    let metrics = MemoryMetrics::gather(server, facts.clients.memory as u64);
    let MemoryMetrics { used, peak, resident, active, startup, clients, overhead, lua, .. } = metrics;
    let (by_blocks, by_chunks) = metrics.allocator_ratios();
    let MemoryMetrics { scripts, functions, backlog, beyond, unread, on_its_way, .. } = metrics;
    let dataset = metrics.dataset();

    text.bytes("used_memory", used);
    text.bytes("used_memory_rss", resident);
    text.bytes("used_memory_peak", peak);
    text.field("used_memory_peak_perc", percent(used, peak));
    text.field("used_memory_overhead", overhead);
    text.field("used_memory_startup", startup);
    text.field("used_memory_dataset", dataset);
    text.field("used_memory_dataset_perc", percent(dataset, metrics.net_used()));
    text.field("allocator_allocated", used);
    text.field("allocator_active", active);
    text.field("allocator_resident", resident);
    text.zeros(&["allocator_muzzy"]); // memory that was given back is not resident
    text.bytes("total_system_memory", process::machine_bytes());
    text.bytes("memory_limit", process::memory_limit());
    // The same Lua states run scripts and functions.
    let libraries = server.scripts.libraries();
    text.field("used_memory_lua", lua);
    text.field("used_memory_vm_eval", lua);
    text.field("used_memory_lua_human", human(lua));
    text.field("used_memory_scripts_eval", scripts);
    text.field("number_of_cached_scripts", server.scripts.cached_texts().0);
    text.field("number_of_functions", libraries.functions());
    text.field("number_of_libraries", libraries.count());
    text.zeros(&["used_memory_vm_functions"]);
    text.bytes("used_memory_vm_total", lua);
    text.field("used_memory_functions", functions);
    text.bytes("used_memory_scripts", scripts + functions);
    text.bytes("maxmemory", settings.maxmemory);
    text.field("maxmemory_policy", settings.maxmemory_policy.name());
    text.field("allocator_frag_ratio", format_args!("{:.2}", by_blocks));
    text.field("allocator_frag_bytes", active - used);
    text.field("allocator_rss_ratio", format_args!("{:.2}", by_chunks));
    text.field("allocator_rss_bytes", resident as i64 - active as i64);
    text.field("rss_overhead_ratio", "1.00");
    text.field("rss_overhead_bytes", 0);
    text.field("mem_fragmentation_ratio", format_args!("{:.2}", metrics.fragmentation()));
    text.field("mem_fragmentation_bytes", metrics.fragmentation_bytes());
    let waits = unread
        + server.core.keyspace.kept_for_snapshot() as u64
        + server.core.lazy_free.values_pending() as u64;
    text.field("mem_not_counted_for_evict", beyond + waits);
    text.field("mem_shared_counted_for_evict", server.core.apart_bytes());
    text.field("mem_replication_backlog", backlog);
    text.field("mem_total_replication_buffers", backlog + beyond + on_its_way);
    text.field("mem_clients_slaves", beyond);
    text.field("mem_clients_normal", clients);
    // A replica receives a full sync over one connection, and applies the stream as it arrives.
    text.zeros(&["mem_replicas_repl_buffer", "mem_replica_full_sync_buffer"]);
    text.zeros(&["mem_cluster_links", "mem_cluster_slot_import", "mem_cluster_slot_export"]);
    text.zeros(&["mem_overhead_db_hashtable_rehashing"]); // a segment is split as a whole
    let aof = &server.persist.aof;
    text.field(
        "mem_aof_buffer",
        aof.unread(&server.core.keyspace.journal) + aof.metrics.buffered.load(Relaxed),
    );
    text.field("mem_allocator", "mimalloc");
    text.field("active_defrag_running", u8::from(server.compacts_for_us() > 0));
    text.field("lazyfree_pending_objects", server.core.lazy_free.pending());
    text.field("lazyfreed_objects", server.core.lazy_free.freed());
}

/// The engine of scripts and functions.
pub(super) fn engines(facts: &Facts<'_>, text: &mut Text) {
    let (used, overhead) = (facts.server.scripts.lua_bytes(), 0);
    text.field("engines_count", 1);
    text.field("engines_total_used_memory", used);
    text.field("engines_total_memory_overhead", overhead);
    text.field(
        "engine_0",
        format_args!("name=LUA,module=built-in,used_memory={used},memory_overhead={overhead}"),
    );
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.2}%", 100.0 * ratio(part, whole))
}
