//! `maxmemory`: keys are evicted, or commands that may need memory are refused.
//!
//! What counts is the memory that stays in use. Values that have been removed and wait for the lazy-free thread do not
//! count: nothing is refused or evicted on their account. They are no loan without a limit either: while the process
//! holds more than `maxmemory` and an eighth because of them, a command that may need memory waits for the lazy-free
//! thread, for a slice of background work at most. That slows writers down to far less than the thread frees.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use evenkeel_store::evict::{self, Order};
use evenkeel_store::memory;

use super::Executor;
use crate::command::{Command, Flags, LockScope};
use crate::net::inbox::Inbox;
use crate::observe::stats::Stage;
use crate::server::Server;
use crate::session::Session;
use evenkeel_config::Policy;
use evenkeel_runtime::allocator::SLICE_US_MAX;
use evenkeel_runtime::clock;

/// Part of `maxmemory` by which the process may exceed it while removed data are being freed.
const SLACK: usize = 8;
/// And bytes by which it may in any case.
const SLACK_MIN: usize = 1 << 20;

/// Keys evicted between two looks at the memory that tables no longer need.
const EVICT_AT_ONCE: usize = 16;

impl Executor {
    /// Evicts keys if more memory is used than `maxmemory` allows. The seat is inside the gate, and holds nothing; it may be
    /// outside afterwards, see [`evenkeel_store::ThreadContext::gate_busy`].
    #[inline]
    pub(crate) fn make_room(&mut self) {
        self.follow_settings();
        self.out_of_memory = false;
        self.ctx.is_short_of_memory = false;
        let limit = self.settings.maxmemory as usize;
        if limit > 0 && data_bytes(&self.server) > limit {
            self.evict(limit);
            self.follow_settings(); // it may have been outside
        }
    }

    /// Whether a command has to be refused because memory was short when its batch began, and still is: commands before
    /// it may have removed enough. A command that is not refused may have waited for the lazy-free thread.
    #[cold]
    pub(super) fn lacks_memory(&mut self, row: &Command, session: &Session) -> bool {
        if !needs_memory(row, session) {
            return false;
        }
        let limit = self.settings.maxmemory as usize;
        if stays_in_use(&self.server) > limit {
            return self.ctx.is_short_of_memory;
        }
        self.ctx.is_short_of_memory = false;
        let has_room = || data_bytes(&self.server) <= limit + purge(limit);
        if !has_room() {
            let inbox = self.server.inboxes.get(self.worker);
            let patience = Duration::from_micros(SLICE_US_MAX);
            self.server.lazy_free.wait_for_values(patience, || {
                // The lazy-free thread may be waiting for this worker.
                inbox.into_iter().for_each(Inbox::settle);
                has_room()
            });
            self.last_ticks = clock::ticks();
        }
        self.out_of_memory = data_bytes(&self.server) > limit;
        false
    }

    /// Whether more is about to come back than could be evicted meanwhile. What comes until then may take the place of that, and a
    /// little more, since freeing takes its time to begin.
    fn waits_for_a_flush(&self, limit: usize) -> bool {
        let lazy_free = &self.server.lazy_free;
        let comes_back = lazy_free.is_flushing() || self.server.keyspace.keeps_flushed();
        let used = memory::used_by_data() + apart_bytes(&self.server) as usize;
        comes_back && used <= lazy_free.flushed_at() as usize + purge(limit)
    }

    /// While it was outside the gate, this server may have become a replica, or be about to end.
    fn may_still_evict(&self) -> bool {
        let server = &self.server;
        let is_told = server.replication.is_replica() && self.settings.replica_ignore_maxmemory;
        self.knows_settings()
            && !is_told
            && !server.persist.ending.is_under_way()
            && !server.pause.is_active(self.ctx.now_ms)
    }

    fn is_short(&mut self) {
        self.out_of_memory = true;
        self.ctx.is_short_of_memory = true;
    }

    /// Works for at most one slice: what is still too much then is the next batch's to remove.
    #[cold]
    fn evict(&mut self, limit: usize) {
        if self.waits_for_a_flush(limit) {
            return;
        }
        if self.server.replication.is_replica() && self.settings.replica_ignore_maxmemory {
            return; // the primary says what goes
        }
        if stays_in_use(&self.server) <= limit {
            self.out_of_memory = true; // commands that may need memory look again
            return;
        }
        let Some(policy) = eviction(self.settings.maxmemory_policy) else {
            self.is_short();
            return;
        };
        if self.ctx.keep_expired || self.server.persist.ending.is_under_way() {
            return; // paused, or about to end: the data must not change
        }
        let started = clock::ticks();
        let until = started + SLICE_US_MAX * clock::ticks_per_us();
        let (samples, decay) = (self.settings.maxmemory_samples, self.settings.lfu_decay_time);
        let server = self.server.clone();
        loop {
            // Tables that shrink with every key removed are freed only when no thread can be reading them.
            let is_inside = server.keyspace.step_out(&mut self.ctx);
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
            let mut guard = server.keyspace.hold_none(&mut self.ctx);
            let evicted = (0..EVICT_AT_ONCE).take_while(|_| {
                // What a snapshot lacks is counted as given up when it is laid down.
                let may_go_on = !guard.ctx.has_kept() && stays_in_use(&server) > limit;
                may_go_on && guard.evict(policy, samples, decay, &mut self.pool)
            });
            if evicted.count() == 0 {
                // Replaced tables come back by themselves.
                let tables = guard.ctx.retired_bytes();
                drop(guard);
                if stays_in_use(&server).saturating_sub(tables) > limit {
                    self.is_short();
                }
                break;
            }
        }
        // The command that comes next did not take this time.
        self.last_ticks = clock::ticks();
        let elapsed = self.last_ticks.saturating_sub(started);
        self.stats().book(Stage::Evict, elapsed);
        let threshold_ms = self.settings.latency_monitor_threshold;
        server.latency.note("eviction-cycle", clock::us(elapsed), threshold_ms);
        self.stats().slice_max.fetch_max(elapsed, Relaxed);
    }
}

/// The memory that `maxmemory` limits: without what waits to be written to disk, in the log or in a snapshot, or to be sent to replicas,
/// which evicting keys would only add to. An evicted key that a snapshot lacks is among that, and so is given up once. At most as much
/// is kept for a snapshot as there was when it began. What values share with others, and holes, are counted as well, as much as they
/// take where the data are stored or sent: who loads them is to have room for them.
fn data_bytes(server: &Server) -> usize {
    let (keyspace, figures) = (&server.keyspace, &server.replication.figures);
    let for_replicas = (figures.beyond.load(Relaxed) + figures.in_pipes.load(Relaxed)) as usize;
    // What is lent to the log is part of what is unread, until that has been read.
    let lent = server.inboxes.iter().map(|inbox| inbox.lent.load(Relaxed)).sum();
    let waits = keyspace.journal.unread().max(lent) + keyspace.kept_for_snapshot() + for_replicas;
    memory::used_by_data().saturating_sub(waits) + apart_bytes(server) as usize
}

/// Bytes of a hole of 64 KiB in a snapshot, where it is compressed.
const HOLE_BYTES: u64 = 750;

/// What values would take beyond what they take now, if each was stored apart.
pub(crate) fn apart_bytes(server: &Server) -> u64 {
    let apart = server.keyspace.apart();
    apart.shared + apart.holes * HOLE_BYTES
}

/// The same without removed values that wait for the lazy-free thread.
fn stays_in_use(server: &Server) -> usize {
    data_bytes(server).saturating_sub(server.lazy_free.values_pending())
}

/// Bytes by which the process may exceed a limit while removed data are being freed.
fn purge(limit: usize) -> usize {
    (limit / SLACK).max(SLACK_MIN)
}

/// Whether a command is refused when there is no memory left: one that may grow the data, an EXEC of such, and all
/// that would be queued, since a queue may grow without end. What is replayed has been admitted elsewhere.
#[cold]
fn needs_memory(row: &Command, session: &Session) -> bool {
    if session.replays {
        return false;
    }
    let queue = || session.multi.iter().flat_map(|multi| &multi.queue);
    match row.lock_scope {
        LockScope::Queue => queue().any(|queued| queued.flags.has(Flags::DENYOOM)),
        _ => row.flags.has(Flags::DENYOOM) || session.multi.is_some() && !row.flags.has(Flags::NOT_QUEUED),
    }
}

/// The store's words for a policy; `None` evicts nothing.
fn eviction(policy: Policy) -> Option<evict::Policy> {
    let (volatile_only, order) = match policy {
        Policy::VolatileLru => (true, Order::Lru),
        Policy::VolatileLfu => (true, Order::Lfu),
        Policy::VolatileRandom => (true, Order::Random),
        Policy::VolatileTtl => (true, Order::Ttl),
        Policy::AllkeysLru => (false, Order::Lru),
        Policy::AllkeysLfu => (false, Order::Lfu),
        Policy::AllkeysRandom => (false, Order::Random),
        Policy::NoEviction => return None,
    };
    Some(evict::Policy { volatile_only, order })
}
