//! Where memory is, for INFO and MEMORY.

use std::sync::atomic::Ordering::Relaxed;

use evenkeel_store::memory as counted;

use super::process;
use crate::server::Server;

/// All in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) used: u64,
    pub(crate) peak: u64,
    pub(crate) startup: u64,
    pub(crate) resident: u64,
    pub(crate) clients: u64,
    /// What is kept of the stream in any case, and what is kept until some replica has it: of the stream beyond that, and of the
    /// snapshots that are being sent.
    pub(crate) backlog: u64,
    pub(crate) beyond: u64,
    /// Of the log, what its readers have not taken yet, and what of that will be of the stream.
    pub(crate) unread: u64,
    pub(crate) on_its_way: u64,
    /// States of Lua, and the texts of scripts and of libraries of functions.
    pub(crate) lua: u64,
    pub(crate) scripts: u64,
    pub(crate) functions: u64,
    /// All that is no data: tables, what was there at the start, clients and replicas.
    pub(crate) overhead: u64,
}

impl Figures {
    /// `clients`: bytes of all connections, which whoever asks may have counted.
    pub(crate) fn gather(server: &Server, clients: u64) -> Figures {
        // The log is read with the stream locked: what is not in the one is in the other.
        let stream = server.replication.stream();
        let (memory, unread) = (stream.memory(), server.keyspace.journal.unread() as u64);
        let on_its_way = stream.backlog().map_or(0, |backlog| backlog.memory_for(unread));
        drop(stream);
        let backlog = memory.min(server.settings().repl_backlog_size);
        let in_pipes = server.replication.figures.in_pipes.load(Relaxed);
        let startup = server.sampler.startup_bytes();
        let functions = server.scripts.libraries().iter().map(|library| library.code.len() as u64).sum();
        Figures {
            used: counted::used() as u64,
            peak: counted::peak() as u64,
            startup,
            resident: process::resident_bytes(),
            clients,
            backlog,
            beyond: memory - backlog + in_pipes,
            unread,
            on_its_way,
            lua: server.scripts.lua_bytes(),
            scripts: server.scripts.figures().1 as u64,
            functions,
            overhead: startup + clients + memory + in_pipes + server.sampler.table_bytes(),
        }
    }

    /// Without what was there at the start.
    pub(crate) fn net_used(&self) -> u64 {
        self.used.saturating_sub(self.startup)
    }

    pub(crate) fn dataset(&self) -> u64 {
        self.used.saturating_sub(self.overhead)
    }

    /// Resident for each byte in use.
    pub(crate) fn fragmentation(&self) -> f64 {
        self.resident as f64 / self.used.max(1) as f64
    }

    pub(crate) fn fragmentation_bytes(&self) -> i64 {
        self.resident as i64 - self.used as i64
    }
}
