//! Where the memory is.

use std::sync::atomic::Ordering::Relaxed;

use super::{Facts, Text, human, ratio};
use crate::observe::process;
use evenkeel_store::memory as counted;

pub(super) fn memory(facts: &Facts<'_>, text: &mut Text) {
    let (server, settings) = (facts.server, &facts.settings);
    let used = counted::used() as u64;
    let peak = counted::peak() as u64;
    let resident = process::resident_bytes();
    let startup = server.census.startup_bytes();
    let clients = facts.clients.memory as u64;
    let overhead = startup + clients + server.census.table_bytes();
    let dataset = used.saturating_sub(overhead);

    text.bytes("used_memory", used);
    text.bytes("used_memory_rss", resident);
    text.bytes("used_memory_peak", peak);
    text.field("used_memory_peak_perc", percent(used, peak));
    text.field("used_memory_overhead", overhead);
    text.field("used_memory_startup", startup);
    text.field("used_memory_dataset", dataset);
    text.field("used_memory_dataset_perc", percent(dataset, used.saturating_sub(startup)));
    text.field("allocator_allocated", used);
    // The allocator reserves memory by the gigabyte, and what it has not touched costs nothing.
    text.field("allocator_active", resident);
    text.field("allocator_resident", resident);
    text.bytes("total_system_memory", process::machine_bytes());
    text.zeros(&["used_memory_lua", "used_memory_vm_eval"]);
    text.field("used_memory_lua_human", human(0));
    text.zeros(&[
        "used_memory_scripts_eval",
        "number_of_cached_scripts",
        "number_of_functions",
        "number_of_libraries",
        "used_memory_vm_functions",
    ]);
    text.bytes("used_memory_vm_total", 0);
    text.zeros(&["used_memory_functions"]);
    text.bytes("used_memory_scripts", 0);
    text.bytes("maxmemory", settings.maxmemory);
    text.field("maxmemory_policy", settings.maxmemory_policy.name());
    text.field("allocator_frag_ratio", format_args!("{:.2}", ratio(resident, used)));
    text.field("allocator_frag_bytes", resident as i64 - used as i64);
    text.field("allocator_rss_ratio", "1.00");
    text.field("allocator_rss_bytes", 0);
    text.field("mem_fragmentation_ratio", format_args!("{:.2}", ratio(resident, used)));
    text.field("mem_fragmentation_bytes", resident as i64 - used as i64);
    let replication = &server.replication.figures;
    let (backlog, beyond) = (replication.memory.load(Relaxed), replication.beyond.load(Relaxed));
    text.field("mem_not_counted_for_evict", beyond + server.keyspace.journal.unread() as u64);
    text.field("mem_replication_backlog", backlog - beyond);
    text.field("mem_total_replication_buffers", backlog);
    text.field("mem_clients_slaves", beyond);
    text.field("mem_clients_normal", clients);
    text.zeros(&["mem_cluster_links", "mem_aof_buffer"]);
    text.field("mem_allocator", "mimalloc");
    text.field("active_defrag_running", 0);
    text.field("lazyfree_pending_objects", server.rubbish.pending());
    text.field("lazyfreed_objects", server.rubbish.freed());
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.2}%", 100.0 * ratio(part, whole))
}
