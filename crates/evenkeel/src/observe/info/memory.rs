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
    // Scripts and functions are run by the same Lua states.
    let (lua, (scripts, script_bytes)) = (server.scripts.lua_bytes(), server.scripts.figures());
    let libraries = server.scripts.libraries();
    let code_bytes: usize = libraries.iter().map(|library| library.code.len()).sum();
    text.field("used_memory_lua", lua);
    text.field("used_memory_vm_eval", lua);
    text.field("used_memory_lua_human", human(lua));
    text.field("used_memory_scripts_eval", script_bytes);
    text.field("number_of_cached_scripts", scripts);
    text.field("number_of_functions", libraries.functions());
    text.field("number_of_libraries", libraries.len());
    text.zeros(&["used_memory_vm_functions"]);
    text.bytes("used_memory_vm_total", lua);
    text.field("used_memory_functions", code_bytes);
    text.bytes("used_memory_scripts", (script_bytes + code_bytes) as u64);
    text.bytes("maxmemory", settings.maxmemory);
    text.field("maxmemory_policy", settings.maxmemory_policy.name());
    text.field("allocator_frag_ratio", format_args!("{:.2}", ratio(resident, used)));
    text.field("allocator_frag_bytes", resident as i64 - used as i64);
    text.field("allocator_rss_ratio", "1.00");
    text.field("allocator_rss_bytes", 0);
    text.field("rss_overhead_ratio", "1.00");
    text.field("rss_overhead_bytes", 0);
    text.field("mem_fragmentation_ratio", format_args!("{:.2}", ratio(resident, used)));
    text.field("mem_fragmentation_bytes", resident as i64 - used as i64);
    let replication = &server.replication.figures;
    let (backlog, beyond) = (replication.memory.load(Relaxed), replication.beyond.load(Relaxed));
    let unread = server.keyspace.journal.unread() as u64;
    // What the feeding thread has yet to take is on its way to replicas, too.
    let on_its_way = if backlog > 0 { unread } else { 0 };
    text.field("mem_not_counted_for_evict", beyond + unread);
    text.field("mem_replication_backlog", backlog - beyond);
    text.field("mem_total_replication_buffers", backlog + on_its_way);
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
