//! Metrics that need a walk over the data: the control thread samples them regularly, and INFO shows the last
//! sample.
//!
//! So a monitor that asks every second costs the clients nothing, and the metrics are at most a few seconds
//! old.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use evenkeel_store::{Keyspace, ThreadContext, memory};
use parking_lot::Mutex;

/// Milliseconds between two walks over all tables. With 16,384 slots, a walk takes about a millisecond per
/// database.
const TABLES_EVERY_MS: u64 = 5_000;

/// Milliseconds between two looks at the databases, and keys of a database sampled for the mean TTL.
const DATABASES_EVERY_MS: u64 = 1_000;
const TTL_SAMPLES: usize = 64;

/// Number of keys of a database, and estimates about them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DatabaseCounts {
    pub(crate) keys: u64,
    /// Keys with a deadline.
    pub(crate) timed: u64,
    /// Hashes that have fields with a deadline.
    pub(crate) timed_hashes: u64,
    /// Estimate of the mean remaining TTL, in milliseconds.
    pub(crate) mean_ttl_ms: u64,
}

impl DatabaseCounts {
    /// Counts the keys of a database. `ctx` is inside the gate.
    fn count(keyspace: &Keyspace, ctx: &ThreadContext, db: usize) -> DatabaseCounts {
        DatabaseCounts {
            keys: keyspace.len(ctx, db) as u64,
            timed: keyspace.timed_len(ctx, db) as u64,
            timed_hashes: keyspace.timed_hashes(ctx, db) as u64,
            mean_ttl_ms: 0,
        }
    }
}

/// The last samples; see the module's text. Written only by the control thread.
pub(crate) struct Sampler {
    startup_bytes: AtomicU64,
    /// By database.
    table_bytes: Box<[AtomicU64]>,
    databases: Box<[Mutex<DatabaseCounts>]>,
    /// Milliseconds for which the memory in use exceeded `maxmemory`, without the present period.
    over_limit_ms: AtomicU64,
    /// Start of the present period above the limit; zero: there is none.
    over_since_ms: AtomicU64,
    tables_at_ms: AtomicU64,
    databases_at_ms: AtomicU64,
}

impl Sampler {
    pub(crate) fn new(databases: usize) -> Sampler {
        Sampler {
            startup_bytes: AtomicU64::new(0),
            table_bytes: (0..databases).map(|_| AtomicU64::new(0)).collect(),
            databases: (0..databases).map(|_| Mutex::default()).collect(),
            over_limit_ms: AtomicU64::new(0),
            over_since_ms: AtomicU64::new(0),
            tables_at_ms: AtomicU64::new(0),
            databases_at_ms: AtomicU64::new(0),
        }
    }

    /// Records the present memory as the memory of an empty server.
    pub(crate) fn record_startup(&self) {
        self.startup_bytes.store(memory::used() as u64, Relaxed);
    }

    pub(crate) fn startup_bytes(&self) -> u64 {
        self.startup_bytes.load(Relaxed)
    }

    /// Returns the bytes of the tables of all databases.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.table_bytes.iter().map(|bytes| bytes.load(Relaxed)).sum()
    }

    pub(crate) fn table_bytes_of(&self, db: usize) -> u64 {
        self.table_bytes[db].load(Relaxed)
    }

    /// Returns an estimate of the mean remaining TTL.
    pub(crate) fn mean_ttl_ms(&self, db: usize) -> u64 {
        self.databases[db].lock().mean_ttl_ms
    }

    /// Returns the counts of a database: the present ones inside the gate, and outside the last sample.
    pub(crate) fn database(&self, keyspace: &Keyspace, ctx: &ThreadContext, db: usize) -> DatabaseCounts {
        let sampled = *self.databases[db].lock();
        if !ctx.is_inside() {
            return sampled;
        }
        DatabaseCounts { mean_ttl_ms: sampled.mean_ttl_ms, ..DatabaseCounts::count(keyspace, ctx, db) }
    }

    /// Returns the keys of all databases, at the last sample.
    pub(crate) fn keys(&self) -> u64 {
        self.databases.iter().map(|counts| counts.lock().keys).sum()
    }

    /// Returns the milliseconds above the memory limit: in all, and in the present period.
    pub(crate) fn over_limit_ms(&self, now_ms: u64) -> (u64, u64) {
        let since = self.over_since_ms.load(Relaxed);
        let current = if since == 0 { 0 } else { now_ms.saturating_sub(since) };
        (self.over_limit_ms.load(Relaxed) + current, current)
    }

    /// Resets the time above the limit, for CONFIG RESETSTAT.
    pub(crate) fn reset(&self, now_ms: u64) {
        self.over_limit_ms.store(0, Relaxed);
        if self.over_since_ms.load(Relaxed) != 0 {
            self.over_since_ms.store(now_ms, Relaxed);
        }
    }

    /// Takes the samples that are due. `limit` is `maxmemory`; `ctx` is outside the gate.
    pub(crate) fn round(&self, keyspace: &Keyspace, ctx: &mut ThreadContext, limit: u64) {
        let now = ctx.now_ms;
        self.update_over_limit(limit, now);
        if is_due(&self.databases_at_ms, DATABASES_EVERY_MS, now) {
            for (db, counts) in self.databases.iter().enumerate() {
                keyspace.enter(ctx);
                let mut found = DatabaseCounts::count(keyspace, ctx, db);
                let mean_ttl_ms = keyspace.hold_none(ctx).mean_ttl(db, TTL_SAMPLES);
                keyspace.leave(ctx);
                found.mean_ttl_ms = mean_ttl_ms.unwrap_or(0);
                *counts.lock() = found;
            }
        }
        if is_due(&self.tables_at_ms, TABLES_EVERY_MS, now) {
            for (db, bytes) in self.table_bytes.iter().enumerate() {
                // Inside the gate for a single database at a time: a thread that closes the gate waits for
                // this.
                keyspace.enter(ctx);
                bytes.store(keyspace.table_memory(ctx, db) as u64, Relaxed);
                keyspace.leave(ctx);
            }
        }
    }

    fn update_over_limit(&self, limit: u64, now: u64) {
        let is_over = limit > 0 && memory::used() as u64 > limit;
        let since = self.over_since_ms.load(Relaxed);
        if is_over && since == 0 {
            self.over_since_ms.store(now, Relaxed);
        } else if !is_over && since != 0 {
            self.over_limit_ms.fetch_add(now.saturating_sub(since), Relaxed);
            self.over_since_ms.store(0, Relaxed);
        }
    }
}

fn is_due(last: &AtomicU64, every_ms: u64, now: u64) -> bool {
    let due = now.saturating_sub(last.load(Relaxed)) >= every_ms;
    if due {
        last.store(now, Relaxed);
    }
    due
}
