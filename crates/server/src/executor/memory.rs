//! `maxmemory`: evicts keys, or refuses commands that may need memory.
//!
//! Only memory that stays in use counts. Removed values that wait for the lazy-free thread do not count, so
//! nothing is refused or evicted because of them. They are bounded, however: while the process uses more than
//! `maxmemory` and an eighth because of them, a command that may need memory waits for the lazy-free thread,
//! for a slice of background work at most. That slows writers down to far less than the thread frees.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use evenkeel_store::evict::{self, Order};
use evenkeel_store::memory;

use super::Executor;
use crate::observe::stats::Stage;
use crate::server::Server;
use crate::worker::inbox::Inbox;
use evenkeel_client::session::Session;
use evenkeel_command::{Flags, LockScope, Spec};
use evenkeel_config::Policy;
use evenkeel_runtime::allocator::SLICE_US_MAX;
use evenkeel_runtime::clock;

/// Divisor of `maxmemory` for the excess allowed while removed data are being freed.
const EXCESS_PART: usize = 8;
/// Bytes of excess allowed in any case.
const EXCESS_MIN: usize = 1 << 20;

/// Keys evicted between two attempts to free retired tables.
const EVICT_AT_ONCE: usize = 16;

impl Executor {
    /// Evicts keys if more memory is used than `maxmemory` allows. `ctx` is inside the gate, and holds
    /// nothing; it may be outside afterwards, see [`evenkeel_store::ThreadContext::gate_busy`].
    #[inline]
    pub(crate) fn make_room(&mut self) {
        self.follow_settings();
        self.out_of_memory = false;
        self.ctx.is_short_of_memory = false;
        let limit = self.settings.maxmemory as usize;
        if limit > 0 && data_bytes(&self.server) > limit {
            self.evict(limit);
            self.follow_settings(); // `ctx` may have been outside
        }
    }

    /// Whether a command has to be refused because memory was short when its batch began, and still is:
    /// earlier commands may have removed enough. May wait for the lazy-free thread before it admits a
    /// command.
    #[cold]
    pub(super) fn lacks_memory(&mut self, row: &Spec, session: &Session) -> bool {
        if !needs_memory(row, session) {
            return false;
        }
        let limit = self.settings.maxmemory as usize;
        if stays_in_use(&self.server) > limit {
            return self.ctx.is_short_of_memory;
        }
        self.ctx.is_short_of_memory = false;
        let has_room = || data_bytes(&self.server) <= limit + excess_max(limit);
        if !has_room() {
            let inbox = self.server.inboxes.get(self.worker);
            let timeout = Duration::from_micros(SLICE_US_MAX);
            self.server.core.lazy_free.wait_for_values(timeout, || {
                // The lazy-free thread may be waiting for this worker.
                inbox.into_iter().for_each(Inbox::settle);
                has_room()
            });
            self.last_ticks = clock::ticks();
        }
        self.out_of_memory = data_bytes(&self.server) > limit;
        false
    }

    /// Whether a flush is about to free more than could be evicted meanwhile. Until then new data may take
    /// the place of the flushed data, and a little more, since freeing takes its time to begin.
    fn waits_for_a_flush(&self, limit: usize) -> bool {
        let lazy_free = &self.server.core.lazy_free;
        let is_freeing = lazy_free.is_flushing() || self.server.core.keyspace.keeps_flushed();
        let used = memory::used_by_data() + self.server.core.apart_bytes() as usize;
        is_freeing && used <= lazy_free.flushed_at() as usize + excess_max(limit)
    }

    /// Whether eviction is still allowed. While `ctx` was outside the gate, this server may have become a
    /// replica, or be about to stop.
    fn may_still_evict(&self) -> bool {
        let server = &self.server;
        let leaves_eviction_to_primary =
            server.replication.is_replica() && self.settings.replica_ignore_maxmemory;
        self.knows_settings()
            && !leaves_eviction_to_primary
            && !server.persist.ending.is_under_way()
            && !server.core.pause.is_active(self.ctx.now_ms)
    }

    fn is_short(&mut self) {
        self.out_of_memory = true;
        self.ctx.is_short_of_memory = true;
    }

    /// Evicts for at most a slice; the next batch removes the remaining excess.
    #[cold]
    fn evict(&mut self, limit: usize) {
        if self.waits_for_a_flush(limit) {
            return;
        }
        if self.server.replication.is_replica() && self.settings.replica_ignore_maxmemory {
            return; // the primary decides which keys go
        }
        if stays_in_use(&self.server) <= limit {
            self.out_of_memory = true; // commands that may need memory check again
            return;
        }
        // During an import the source decides which keys go.
        let evicts = !self.settings.import_mode || self.server.replication.is_replica();
        let Some(policy) = eviction(self.settings.maxmemory_policy).filter(|_| evicts) else {
            self.is_short();
            return;
        };
        if self.ctx.keep_expired || self.server.persist.ending.is_under_way() {
            return; // paused, or about to stop: the data must not change
        }
        let started = clock::ticks();
        let until = started + SLICE_US_MAX * clock::ticks_per_us();
        let (samples, decay) = (self.settings.maxmemory_samples, self.settings.lfu_decay_time);
        let server = self.server.clone();
        loop {
            // Tables that shrink with every removed key are freed only when no thread can be reading them.
            let is_inside = server.core.keyspace.step_out(&mut self.ctx);
            if !is_inside
                || stays_in_use(&self.server) <= limit
                || clock::ticks() >= until
                || !self.may_still_evict()
            {
                break;
            }
            if self.waits_for_a_flush(limit) {
                break;
            }
            let mut guard = server.core.keyspace.hold_none(&mut self.ctx);
            let mut is_there_none = false;
            for _ in 0..EVICT_AT_ONCE {
                // Bytes that a snapshot lacks count as freed once they are published to it.
                if guard.ctx.has_kept() || stays_in_use(&server) <= limit {
                    break;
                }
                if !guard.evict(policy, samples, decay, &mut self.pool) {
                    is_there_none = true;
                    break;
                }
            }
            // Not merely because another worker freed something in between: the use goes up and down by a
            // block while blocks are moved.
            if is_there_none {
                // Retired tables are freed without further work.
                let tables = guard.ctx.retired_bytes();
                drop(guard);
                if stays_in_use(&server).saturating_sub(tables) > limit {
                    self.is_short();
                }
                break;
            }
        }
        // This time is not the next command's.
        self.last_ticks = clock::ticks();
        let elapsed = self.last_ticks.saturating_sub(started);
        self.stats().record_stage(Stage::Evict, elapsed);
        let threshold_ms = self.settings.latency_monitor_threshold;
        server.core.latency.record("eviction-cycle", clock::us(elapsed), threshold_ms);
        self.stats().slice_max.fetch_max(elapsed, Relaxed);
    }
}

/// Returns the memory that `maxmemory` limits. It excludes data that wait to be written to disk, in the
/// journal or a snapshot, or to be sent to replicas, since evicting keys would only add to them. An evicted
/// key that a snapshot lacks is among them, and so counts as freed once. A snapshot keeps at most as much as
/// there was when it began. Shared parts of values and holes count as well, with their size in stored or sent
/// data: a server that loads these has to have room for them.
fn data_bytes(server: &Server) -> usize {
    let (keyspace, metrics) = (&server.core.keyspace, &server.replication.metrics);
    let for_replicas = (metrics.beyond.load(Relaxed) + metrics.in_pipes.load(Relaxed)) as usize;
    // Bytes lent to the journal are part of its unread bytes, until these are read.
    let lent = server.inboxes.iter().map(|inbox| inbox.lent.load(Relaxed)).sum();
    let waits = keyspace.journal.unread().max(lent) + keyspace.kept_for_snapshot() + for_replicas;
    memory::used_by_data().saturating_sub(waits) + server.core.apart_bytes() as usize
}

/// Like [`data_bytes`], without removed values that wait for the lazy-free thread.
fn stays_in_use(server: &Server) -> usize {
    data_bytes(server).saturating_sub(server.core.lazy_free.values_pending())
}

/// Returns the excess over a limit that is allowed while removed data are being freed.
fn excess_max(limit: usize) -> usize {
    (limit / EXCESS_PART).max(EXCESS_MIN)
}

/// Whether a command is refused without memory: a command that may grow the data, an EXEC with such a
/// command, and every command that would be queued, since a queue may grow without bound. Replayed commands
/// were admitted by another server or run.
#[cold]
fn needs_memory(row: &Spec, session: &Session) -> bool {
    if session.replays {
        return false;
    }
    let queue = || session.multi.iter().flat_map(|multi| &multi.queue);
    match row.lock_scope {
        LockScope::Queue => queue().any(|queued| queued.flags.has(Flags::DENYOOM)),
        _ => row.flags.has(Flags::DENYOOM),
    }
}

/// Converts a policy to the store's; `None` evicts nothing.
fn eviction(policy: Policy) -> Option<evict::Policy> {
    let (volatile_only, order) = match policy {
        // What counts as a use is a matter of `access_of`.
        Policy::VolatileLru | Policy::VolatileLrm => (true, Order::Lru),
        Policy::VolatileLfu => (true, Order::Lfu),
        Policy::VolatileRandom => (true, Order::Random),
        Policy::VolatileTtl => (true, Order::Ttl),
        Policy::AllkeysLru | Policy::AllkeysLrm => (false, Order::Lru),
        Policy::AllkeysLfu => (false, Order::Lfu),
        Policy::AllkeysRandom => (false, Order::Random),
        Policy::NoEviction => return None,
    };
    Some(evict::Policy { volatile_only, order })
}
