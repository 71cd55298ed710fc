//! Use of memory, for INFO and MEMORY.

use std::sync::atomic::Ordering::Relaxed;

use evenkeel_store::memory as counted;

use super::process;
use crate::server::Server;

/// All in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemoryMetrics {
    pub(crate) used: u64,
    pub(crate) peak: u64,
    pub(crate) startup: u64,
    pub(crate) resident: u64,
    /// In use, and unused in chunks that have blocks in use: what compaction can make less.
    pub(crate) active: u64,
    pub(crate) clients: u64,
    /// The stream's backlog; and memory kept until a replica has received it: the stream beyond the backlog,
    /// and snapshots in transit.
    pub(crate) backlog: u64,
    pub(crate) beyond: u64,
    /// Bytes of the journal that its readers have not taken, and the part of them that will join the stream.
    pub(crate) unread: u64,
    pub(crate) on_its_way: u64,
    /// Lua states, and the texts of scripts and libraries of functions.
    pub(crate) lua: u64,
    pub(crate) scripts: u64,
    pub(crate) functions: u64,
    /// Everything but data: tables, the memory at the start, clients and replicas.
    pub(crate) overhead: u64,
}

impl MemoryMetrics {
    /// Gathers the values. `clients`: bytes of all connections, which the caller may have counted.
    pub(crate) fn gather(server: &Server, clients: u64) -> MemoryMetrics {
        // The journal is read with the stream locked, so that every byte is counted in exactly one of the
        // two.
        let stream = server.replication.stream();
        let (memory, unread) = (stream.memory(), server.core.keyspace.journal.unread() as u64);
        let on_its_way = stream.backlog().map_or(0, |backlog| backlog.memory_for(unread));
        let beyond = stream.memory_beyond(server.core.settings().repl_backlog_size);
        drop(stream);
        let in_pipes = server.replication.metrics.in_pipes.load(Relaxed);
        let startup = server.sampler.startup_bytes();
        let functions = server.scripts.libraries().iter().map(|library| library.code.len() as u64).sum();
        let unused = evenkeel_slab::stats().in_chunks.saturating_sub(counted::used_in_blocks());
        let used = counted::used() as u64;
        MemoryMetrics {
            used,
            active: used + unused as u64,
            peak: counted::peak() as u64,
            startup,
            resident: process::resident_bytes(),
            clients,
            backlog: memory - beyond,
            beyond: beyond + in_pipes,
            unread,
            on_its_way,
            lua: server.scripts.lua_bytes(),
            scripts: server.scripts.cached_texts().1 as u64,
            functions,
            overhead: startup + clients + memory + in_pipes + server.sampler.table_bytes(),
        }
    }

    /// Returns the memory in use without the memory at the start.
    pub(crate) fn net_used(&self) -> u64 {
        self.used.saturating_sub(self.startup)
    }

    pub(crate) fn dataset(&self) -> u64 {
        self.used.saturating_sub(self.overhead)
    }

    /// Returns the active bytes per byte in use, and the resident bytes per active byte.
    pub(crate) fn allocator_ratios(&self) -> (f64, f64) {
        let ratio = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        (ratio(self.active, self.used), ratio(self.resident, self.active))
    }

    /// Returns the resident bytes per byte in use.
    pub(crate) fn fragmentation(&self) -> f64 {
        self.resident as f64 / self.used.max(1) as f64
    }

    pub(crate) fn fragmentation_bytes(&self) -> i64 {
        self.resident as i64 - self.used as i64
    }
}
