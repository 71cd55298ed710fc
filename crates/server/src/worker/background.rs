//! Background work of a worker, in slices of at most half a millisecond, between which clients are served.
//! Every slice is booked under its name.
//!
//! **Expired keys.** Each worker sweeps its own share of the slots. A sweep begins with every tick.
//!
//! **Unused memory.** After much has been freed, each worker purges its unused memory
//! ([`evenkeel_runtime::allocator::AllocatorPurge`]). A worker with much to do takes a slice with every tick;
//! otherwise it continues to the end.
//!
//! **Sparse memory.** See [`compaction`](crate::worker::compaction).

use std::sync::atomic::Ordering::Relaxed;

use evenkeel_store::SLOTS;

use crate::executor::Executor;
use crate::observe::stats::{Stage, add};
use crate::worker::compaction::Compactor;
use evenkeel_runtime::allocator::SLICE_US_MAX;
use evenkeel_runtime::clock::{self, Ticks};

/// Microseconds after which a sweep visits no further slot: a visit takes up to 200 more when a segment is
/// due as a whole.
const SWEEP_US_MAX: u64 = SLICE_US_MAX - 200;

/// Microseconds of a sweep for the keys of a replica's own clients.
const OWN_US_MAX: u64 = SWEEP_US_MAX / 2;

/// State of a worker's background work; see the module's text.
pub(crate) struct Background {
    from: usize,
    to: usize,
    /// Position of the sweep: database and slot.
    sweep: Option<(usize, usize)>,
    /// Whether the last slice was part of a sweep.
    swept: bool,
    /// Whether a slice is due for unused memory.
    memory: bool,
    compactor: Compactor,
    /// Whether the worker had little to do at the last tick.
    is_calm: bool,
}

impl Background {
    /// Creates the state for worker `index` of `workers`.
    pub(crate) fn new(index: usize, workers: usize) -> Background {
        let share = |index: usize| SLOTS * index / workers;
        Background {
            from: share(index),
            to: share(index + 1),
            sweep: None,
            swept: false,
            memory: false,
            compactor: Compactor::new(),
            is_calm: false,
        }
    }

    /// Whether work is left over from the last slice.
    pub(crate) fn is_pending(&self) -> bool {
        self.sweep.is_some() || self.memory || self.compactor.due_in_ms() == Some(0)
    }

    /// Milliseconds until there is work that waits for its time, if there is any.
    pub(crate) fn due_in_ms(&self) -> Option<u64> {
        self.compactor.due_in_ms()
    }

    /// Gives a pass of compaction up; see [`Compactor::give_up`].
    pub(crate) fn give_up_compaction(&mut self) {
        self.compactor.give_up();
    }

    /// Begins the work that is due with every tick. `is_calm`: the worker has little to do.
    pub(crate) fn tick(&mut self, executor: &Executor, is_calm: bool) {
        self.memory = executor.server.core.purge.is_asked();
        self.is_calm = is_calm;
        self.compactor.tick(executor, is_calm);
        let is_loading = executor.server.persist.is_loading();
        let may_expire =
            executor.server.active_expire.load(Relaxed) && !executor.ctx.keep_expired && !is_loading;
        if self.sweep.is_none() && may_expire {
            self.sweep = Some((0, self.from));
        }
    }

    /// Works for at most `SLICE_US_MAX`, alternating if both kinds of work are due. Returns the ticks that do
    /// not count as busy: purging memory leaves a worker as much time for its clients as before.
    pub(crate) fn slice(&mut self, executor: &mut Executor) -> Ticks {
        let is_memorys_turn = self.memory && self.swept;
        if let Some(next) = self.sweep
            && !is_memorys_turn
        {
            self.expire(executor, next);
            self.swept = true;
            return 0;
        }
        self.swept = false;
        if self.memory { self.give_memory_back(executor) } else { self.compactor.slice(executor) }
    }

    /// Compacts between the requests of two clients if memory is short. Returns the ticks, as
    /// [`Background::slice`] does.
    #[inline]
    pub(crate) fn slice_between(&mut self, executor: &mut Executor) -> Ticks {
        if !self.compactor.is_pressing() {
            return 0;
        }
        let elapsed = self.compactor.slice(executor);
        if elapsed > 0 {
            executor.last_ticks = clock::ticks(); // this time is not the next command's
        }
        elapsed
    }

    fn give_memory_back(&mut self, executor: &Executor) -> Ticks {
        let started = clock::ticks();
        let until = started + SLICE_US_MAX * clock::ticks_per_us();
        let has_more = executor.server.core.purge.follow(|| clock::ticks() >= until);
        self.memory = has_more && self.is_calm;
        let elapsed = clock::ticks().saturating_sub(started);
        executor.stats().record_stage(Stage::Purge, elapsed);
        executor.stats().slice_max.fetch_max(elapsed, Relaxed);
        elapsed
    }

    fn expire(&mut self, executor: &mut Executor, (mut db, mut slot): (usize, usize)) {
        let waits_since = clock::ticks();
        let server = executor.server.clone();
        let is_inside =
            server.core.keyspace.enter_unless(&mut executor.ctx, || server.scripts.busy.is_busy());
        // A script that keeps the gate closed is no work of the sweep.
        let started = clock::ticks();
        executor.stats().record_stage(Stage::LockWait, started.saturating_sub(waits_since));
        if !is_inside {
            self.sweep = None; // the next tick tries again
            return;
        }
        let until = started + SWEEP_US_MAX * clock::ticks_per_us();
        // The data must not change in a pause, even if it began after the sweep.
        executor.update_pause();
        if executor.ctx.keep_expired {
            server.core.keyspace.leave(&mut executor.ctx);
            self.sweep = None;
            return;
        }
        if (db, slot) == (0, 0) {
            // The worker with the first slots handles the keys of a replica's own clients.
            server
                .core
                .keyspace
                .hold_none(&mut executor.ctx)
                .sweep_own(|| clock::ticks() >= started + OWN_US_MAX * clock::ticks_per_us());
        }
        self.sweep = loop {
            if db == server.core.keyspace.databases() {
                break None;
            }
            let mut guard = server.core.keyspace.hold_none(&mut executor.ctx);
            match guard.sweep(db, slot, self.to, || clock::ticks() >= until).next {
                Some(next) => break Some((db, next)),
                None => (db, slot) = (db + 1, self.from),
            }
        };
        executor.serve_woken();
        server.core.keyspace.leave(&mut executor.ctx);
        let elapsed = clock::ticks().saturating_sub(started);
        let stats = executor.stats();
        stats.record_stage(Stage::Expire, elapsed);
        server.core.latency.record(
            "expire-cycle",
            clock::us(elapsed),
            executor.settings.latency_monitor_threshold,
        );
        if self.sweep.is_some() {
            add(&stats.slices_cut, 1);
        }
        stats.slice_max.fetch_max(elapsed, Relaxed);
    }
}
