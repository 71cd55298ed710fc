//! Compaction of a worker's memory, in slices: blocks of sparse chunks move to other chunks, so that the
//! sparse ones go back to the system ([`evenkeel_slab::Compaction`], and `compaction.rs` of crate `store`).
//!
//! Each worker compacts the chunks from which it has taken blocks, whichever slots these are in. A pass
//! surveys the chunks, marks the sparse ones and walks all slots; entries and pages of collections take
//! turns. Passes follow each other as long as they are worth it; then the worker rests.
//! Threads that are no workers, as that of the link to a primary, lend their chunks to a worker.
//!
//! **When**: with `activedefrag yes`, while more than `active-defrag-ignore-bytes` and
//! `active-defrag-threshold-lower` percent of the blocks' memory are unused; with `maxmemory`, also while the
//! chunks take more than that; after MEMORY PURGE, until nothing is to be gained.
//!
//! **How much**: between `active-defrag-cycle-min` and `-max` percent of the worker's time, in proportion to
//! the unused memory up to `active-defrag-threshold-upper` percent. A worker with much to do takes a fifth of
//! that, in slices of [`BUSY_US_MAX`]: its clients wait for a slice now and then. While chunks take more than
//! `maxmemory`, a worker spends [`URGENT_SHARE_MIN`] to [`URGENT_SHARE_MAX`] percent of its time, so the
//! clients that write wait longer: it may work between the requests of two of them. It decides anew whenever
//! the chunks have grown by a [`GROWTH_SHARE`]th of `maxmemory`, and then rests no longer. However fast
//! clients write, the chunks stay close to `maxmemory`.

use std::sync::atomic::Ordering::Relaxed;

use evenkeel_runtime::allocator::SLICE_US_MAX;
use evenkeel_runtime::clock::{self, Ticks};
use evenkeel_slab::{CHUNK, Compaction, Kind};
use evenkeel_store::{CompactionWalk, Moved, memory};

use crate::executor::Executor;
use crate::observe::stats::{Stage, add};

/// Longest slice of a worker that has much to do, in microseconds.
const BUSY_US_MAX: u64 = 100;

/// Part of a slice that is left for its last visit: 20 us, or more where memory is slow.
const VISIT_SHARE: u64 = 4;

/// Least bytes in use of the chunks that a pass empties at most.
const PASS_BYTES_MIN: usize = 64 << 20;

/// A pass that was not worth it is followed by a rest, in microseconds.
const REST_US: u64 = 5_000_000;

/// Percent of the time of a worker that follows MEMORY PURGE.
const ASKED_SHARE: u64 = 50;

/// Percent of the time when chunks take more than `maxmemory`: at first, more for each percent beyond it, and
/// at most. Rests are as short as this, in microseconds.
const URGENT_SHARE_MIN: u64 = 25;
const URGENT_SHARE_STEP: u64 = 10;
const URGENT_SHARE_MAX: u64 = 90;
const URGENT_REST_US: u64 = 500_000;

/// The part of `maxmemory` by which chunks grow before a worker decides anew; two chunks at least.
const GROWTH_SHARE: usize = 128;

/// After a pass, pauses until replaced tables are freed, and their length in microseconds.
const SETTLES_MAX: u32 = 20;
const SETTLE_US: u64 = 10_000;

/// A pass that cannot go on because of a script waits for this long, in microseconds.
const BUSY_SCRIPT_US: u64 = 50_000;

/// Time, in microseconds, by which slices may be late: a worker that sleeps wakes up by the millisecond.
const LATE_US_MAX: u64 = 2_000;

/// Least microseconds between two requests to other threads to lend their chunks.
const LENDING_US: u64 = 60_000_000;

/// Unused bytes of a worker's chunks that are not worth a pass.
const UNUSED_MIN: usize = 2 * CHUNK;

/// State of a worker's compaction; see the module's text.
pub(crate) struct Compactor {
    step: Step,
    kind: Kind,
    /// Percent of the time; zero: there is nothing to do.
    share: u64,
    /// Chunks take more than `maxmemory`.
    is_urgent: bool,
    is_calm: bool,
    /// No slice and no pass begins before this.
    not_before: Ticks,
    /// A worker decides anew when chunks take as many bytes, before the next tick.
    decides_at: usize,
    /// Bytes of the chunks when the present rest began.
    rests_since: Option<usize>,
    /// No thread is asked to lend its chunks before this.
    borrows_from: Ticks,
    /// Whether the last round of both kinds was worth it, or is under way.
    is_going: bool,
    /// Chunks at the beginning of the present round, and of the round before.
    chunks: usize,
    chunks_before: usize,
    /// The last MEMORY PURGE that this worker has followed to its end.
    followed: u64,
    /// The MEMORY PURGE that it follows.
    follows: u64,
}

enum Step {
    Rest,
    Survey(Compaction),
    /// With the number of chunks chosen.
    Mark(Compaction, usize),
    Move(Compaction, usize, CompactionWalk),
    /// Waits, for so many slices at most, until tables that were replaced have been freed.
    Settle(Compaction, usize, u32),
    End(Compaction, usize),
}

/// The settings for compaction; percentages, and bytes.
struct Limits {
    is_on: bool,
    ignored: u64,
    lower: u64,
    upper: u64,
    min: u64,
    max: u64,
    maxmemory: u64,
    workers: usize,
}

impl Limits {
    fn of(executor: &Executor) -> Limits {
        let settings = &executor.settings;
        // A replica that leaves eviction to its primary has no limit of its own.
        let is_unlimited = executor.server.replication.is_replica() && settings.replica_ignore_maxmemory;
        Limits {
            is_on: settings.activedefrag,
            ignored: settings.active_defrag_ignore_bytes,
            lower: settings.active_defrag_threshold_lower,
            upper: settings.active_defrag_threshold_upper,
            min: settings.active_defrag_cycle_min,
            max: settings.active_defrag_cycle_max,
            maxmemory: if is_unlimited { 0 } else { settings.maxmemory },
            workers: executor.server.core.workers.count(),
        }
    }

    /// The percentage of its time that a worker spends, for `used` bytes in blocks and as many bytes in
    /// chunks; zero: none. With `is_going`, a compaction that has begun goes on down to half of the lower
    /// bound.
    fn share(&self, used: usize, in_chunks: usize, is_going: bool) -> u64 {
        let unused = in_chunks.saturating_sub(used);
        let percent = (unused * 100 / used.max(1)) as u64;
        let lower = if is_going { self.lower / 2 } else { self.lower };
        if percent <= lower {
            return 0;
        }
        if self.is_urgent(used, in_chunks) {
            let beyond = (in_chunks as u64 - self.maxmemory).saturating_mul(100) / self.maxmemory;
            return (URGENT_SHARE_MIN + URGENT_SHARE_STEP.saturating_mul(beyond)).min(URGENT_SHARE_MAX);
        }
        if !self.is_on || unused as u64 <= self.ignored {
            return 0;
        }
        let upper = self.upper.max(lower + 1);
        self.min + self.max.saturating_sub(self.min) * (percent.min(upper) - lower) / (upper - lower)
    }

    /// The growth of the chunks, in bytes, after which a worker decides anew.
    fn growth(&self) -> usize {
        match self.maxmemory {
            0 => usize::MAX,
            limit => (limit as usize / GROWTH_SHARE).max(2 * CHUNK),
        }
    }

    /// Whether chunks take more than `maxmemory`, and more is unused than each worker leaves alone.
    fn is_urgent(&self, used: usize, in_chunks: usize) -> bool {
        let left_alone = 2 * UNUSED_MIN * self.workers;
        self.maxmemory > 0 && in_chunks as u64 > self.maxmemory && in_chunks > used + left_alone
    }
}

impl Compactor {
    pub(crate) fn new() -> Compactor {
        Compactor {
            step: Step::Rest,
            kind: Kind::Entry,
            share: 0,
            is_urgent: false,
            is_calm: false,
            not_before: 0,
            decides_at: usize::MAX,
            rests_since: None,
            borrows_from: 0,
            is_going: false,
            chunks: 0,
            chunks_before: usize::MAX,
            followed: 0,
            follows: 0,
        }
    }

    /// Decides with every tick how much time it may take.
    pub(crate) fn tick(&mut self, executor: &Executor, is_calm: bool) {
        let server = &executor.server;
        self.is_calm = is_calm;
        let asked = server.compactions_asked.load(Relaxed);
        if asked != self.follows {
            (self.follows, self.not_before) = (asked, 0);
        }
        let (used, in_chunks) = (memory::used_in_blocks(), evenkeel_slab::in_chunks());
        let limits = Limits::of(executor);
        self.share = limits.share(used, in_chunks, self.is_going);
        self.is_urgent = self.share > 0 && limits.is_urgent(used, in_chunks);
        let growth = limits.growth();
        self.decides_at = in_chunks.max(limits.maxmemory as usize).saturating_add(growth);
        if self.is_urgent {
            let has_grown = self.rests_since.is_some_and(|since| in_chunks >= since.saturating_add(growth));
            let rest_us = if has_grown { 0 } else { URGENT_REST_US };
            self.not_before = self.not_before.min(clock::ticks() + rest_us * clock::ticks_per_us());
        }
        if self.follows != self.followed {
            self.share = self.share.max(ASKED_SHARE);
        }
        if server.persist.is_loading() {
            self.share = 0;
        }
        if self.share == 0 {
            // A pass that has begun ends, so that its marked chunks come back into use.
            self.step = match std::mem::replace(&mut self.step, Step::Rest) {
                Step::Mark(compaction, chosen)
                | Step::Move(compaction, chosen, _)
                | Step::Settle(compaction, chosen, _) => Step::End(compaction, chosen),
                step @ Step::End(..) => step,
                Step::Rest | Step::Survey(_) => Step::Rest,
            };
            if matches!(self.step, Step::Rest) {
                (self.kind, self.is_going) = (Kind::Entry, false);
                (self.chunks, self.chunks_before) = (0, usize::MAX);
            }
        }
        let is_running = self.is_wanted() && !matches!(self.step, Step::Rest);
        let since = &executor.stats().compacts_since;
        match (is_running, since.load(Relaxed)) {
            (true, 0) => since.store(clock::ticks(), Relaxed),
            (false, 1..) => since.store(0, Relaxed),
            _ => {}
        }
    }

    fn is_wanted(&self) -> bool {
        self.share > 0 || matches!(self.step, Step::End(..))
    }

    /// Gives the present pass up: its marked chunks come back into use, in a millisecond or two for 50 GB.
    pub(crate) fn give_up(&mut self) {
        self.step = Step::Rest; // dropping a compaction ends it
    }

    /// Milliseconds until the next slice, if there is one.
    pub(crate) fn due_in_ms(&self) -> Option<u64> {
        let left = || clock::us(self.not_before.saturating_sub(clock::ticks())).div_ceil(1000);
        self.is_wanted().then(left)
    }

    /// Whether chunks take more than `maxmemory`, or may have begun to: a slice may be due between the
    /// requests of two clients, not only when all have been served.
    #[inline]
    pub(crate) fn is_pressing(&self) -> bool {
        self.is_urgent || evenkeel_slab::in_chunks() >= self.decides_at
    }

    /// Works for at most [`SLICE_US_MAX`], if it is time. Returns the ticks.
    pub(crate) fn slice(&mut self, executor: &mut Executor) -> Ticks {
        if evenkeel_slab::in_chunks() >= self.decides_at {
            self.tick(executor, self.is_calm);
        }
        if !self.is_wanted() {
            return 0;
        }
        if clock::ticks() < self.not_before {
            return 0;
        }
        self.rests_since = None;
        let is_inside = matches!(self.step, Step::Move(..)) && enter(executor);
        let started = clock::ticks();
        let us = if self.is_calm || self.is_urgent { SLICE_US_MAX } else { BUSY_US_MAX };
        let until = started + (us - us / VISIT_SHARE) * clock::ticks_per_us();
        let waits_us = self.go_on(executor, is_inside, || clock::ticks() >= until);
        let now = clock::ticks();
        let elapsed = now.saturating_sub(started);
        let share = if self.is_calm || self.is_urgent { self.share } else { self.share / 5 }.clamp(1, 99);
        // From when the slice was due on: a worker that woke up late makes up for it.
        let due = self.not_before.max(started.saturating_sub(LATE_US_MAX * clock::ticks_per_us()));
        self.not_before = match waits_us {
            0 => due + elapsed * 100 / share,
            us => now + us * clock::ticks_per_us(),
        };
        executor.stats().record_stage(Stage::Compact, elapsed);
        executor.stats().slice_max.fetch_max(elapsed, Relaxed);
        elapsed
    }

    /// Goes on until `is_over`. Returns the microseconds to wait then, or 0.
    ///
    /// `is_inside`: the worker has entered the gate to move blocks, and leaves it here.
    fn go_on(&mut self, executor: &mut Executor, is_inside: bool, is_over: impl Fn() -> bool + Copy) -> u64 {
        let (step, waits_us) = match std::mem::replace(&mut self.step, Step::Rest) {
            Step::Rest => {
                if !std::mem::replace(&mut self.is_going, true) && executor.worker == 0 {
                    self.borrow(executor);
                }
                (Step::Survey(Compaction::new(self.kind)), 0)
            }
            Step::Survey(mut compaction) => {
                if compaction.survey(is_over) {
                    (Step::Survey(compaction), 0)
                } else {
                    self.choose(executor, compaction)
                }
            }
            Step::Mark(mut compaction, chosen) => {
                if compaction.mark(is_over) {
                    (Step::Mark(compaction, chosen), 0)
                } else {
                    (Step::Move(compaction, chosen, CompactionWalk::default()), 0)
                }
            }
            Step::Move(compaction, chosen, walk) if !is_inside => {
                (Step::Move(compaction, chosen, walk), BUSY_SCRIPT_US)
            }
            Step::Move(compaction, chosen, walk) => {
                self.move_blocks(executor, compaction, chosen, walk, is_over)
            }
            Step::Settle(compaction, chosen, left) => {
                executor.server.core.keyspace.tidy(&mut executor.ctx);
                match left.checked_sub(1).filter(|_| executor.ctx.retired_bytes() > 0 && !self.is_urgent) {
                    Some(left) => (Step::Settle(compaction, chosen, left), SETTLE_US),
                    None => (Step::End(compaction, chosen), 0),
                }
            }
            Step::End(mut compaction, chosen) => {
                if compaction.end(is_over) {
                    (Step::End(compaction, chosen), 0)
                } else {
                    let emptied = chosen.saturating_sub(compaction.left());
                    executor.server.core.purge.record_emptied(emptied);
                    self.next_kind()
                }
            }
        };
        self.step = step;
        waits_us
    }

    /// Asks the threads that are no workers to lend their chunks.
    fn borrow(&mut self, executor: &Executor) {
        let now = clock::ticks();
        if now >= self.borrows_from {
            self.borrows_from = now + LENDING_US * clock::ticks_per_us();
            executor.server.core.purge.begin_compaction();
            executor.server.ask_for_purge(); // wakes the threads that wait for work
        }
    }

    /// Chooses sparse chunks after the survey, unless it is not worth it.
    fn choose(&mut self, executor: &Executor, mut compaction: Compaction) -> (Step, u64) {
        let (settings, found) = (&executor.settings, compaction.found());
        self.chunks += found.chunks;
        let unused = found.chunks * CHUNK - found.bytes;
        let percent = (unused * 100 / found.bytes.max(1)) as u64;
        let is_asked = self.follows != self.followed;
        if unused < UNUSED_MIN || !is_asked && percent <= settings.active_defrag_threshold_lower / 2 {
            return self.next_kind();
        }
        let chosen = compaction.choose(PASS_BYTES_MIN.max(found.bytes / 4)).chunks;
        if chosen == 0 { self.next_kind() } else { (Step::Mark(compaction, chosen), 0) }
    }

    /// The other kind's turn, or after the second a rest, if the round before has not left fewer chunks.
    fn next_kind(&mut self) -> (Step, u64) {
        let is_round_over = self.kind == Kind::Page;
        self.kind = if is_round_over { Kind::Entry } else { Kind::Page };
        if !is_round_over {
            return (Step::Rest, 0);
        }
        let chunks = std::mem::take(&mut self.chunks);
        self.is_going = chunks > 0 && chunks < std::mem::replace(&mut self.chunks_before, chunks);
        if !self.is_going {
            self.chunks_before = usize::MAX;
            self.followed = self.follows;
        }
        if self.is_going {
            return (Step::Rest, 0);
        }
        self.rests_since = Some(evenkeel_slab::in_chunks());
        (Step::Rest, REST_US)
    }

    fn move_blocks(
        &mut self,
        executor: &mut Executor,
        compaction: Compaction,
        chosen: usize,
        mut walk: CompactionWalk,
        is_over: impl Fn() -> bool,
    ) -> (Step, u64) {
        let server = executor.server.clone();
        let mut moved = Moved::default();
        let mut guard = server.core.keyspace.hold_none(&mut executor.ctx);
        let has_more = guard.compact(&compaction, &mut walk, &mut moved, is_over);
        drop(guard);
        server.core.keyspace.leave(&mut executor.ctx);
        let stats = executor.stats();
        add(&stats.blocks_moved, moved.blocks);
        add(&stats.blocks_stayed, moved.stayed);
        match has_more {
            true => (Step::Move(compaction, chosen, walk), 0),
            false => (Step::Settle(compaction, chosen, SETTLES_MAX), 0),
        }
    }
}

/// Enters the gate, and returns whether it could: a busy script keeps the gate closed. The wait for the gate
/// is no work of the compaction.
fn enter(executor: &mut Executor) -> bool {
    let waits_since = clock::ticks();
    let server = executor.server.clone();
    let is_inside = server.core.keyspace.enter_unless(&mut executor.ctx, || server.scripts.busy.is_busy());
    executor.stats().record_stage(Stage::LockWait, clock::ticks().saturating_sub(waits_since));
    is_inside
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::time::Duration;

    use super::*;
    use crate::testing::World;

    #[test]
    fn the_share_grows_with_the_unused_memory() {
        let limits = Limits {
            is_on: true,
            ignored: 100,
            lower: 10,
            upper: 100,
            min: 1,
            max: 25,
            maxmemory: 0,
            workers: 2,
        };
        let shares = |limits: &Limits| {
            [(1000, 1050), (1000, 1200), (1000, 1550), (1000, 3000), (50, 140), (50, 300)]
                .map(|(used, in_chunks)| limits.share(used << 20, in_chunks << 20, false))
        };
        let limits = Limits { ignored: limits.ignored << 20, ..limits };
        assert_eq!(shares(&limits), [0, 3, 13, 25, 0, 25]);
        assert_eq!(limits.share(1000 << 20, 1080 << 20, true), 0, "less than is ignored");
        assert_eq!(limits.share(2000 << 20, 2160 << 20, true), 1, "it goes on");
        assert_eq!(limits.share(2000 << 20, 2160 << 20, false), 0, "and does not begin");
        assert_eq!(shares(&Limits { is_on: false, ..limits }), [0; 6]);
        let tight = Limits { is_on: false, maxmemory: 1100 << 20, ..limits };
        assert_eq!(shares(&tight), [0, 90, 90, 90, 0, 0], "chunks beyond maxmemory");
        assert_eq!(shares(&Limits { min: 30, ..limits }), [0, 30, 30, 30, 0, 30], "the minimum goes first");
    }

    #[test]
    fn the_wait_for_a_closed_gate_is_no_compaction() {
        const CLOSED: Duration = Duration::from_millis(50);
        let mut world = World::new();
        let step = Step::Move(Compaction::new(Kind::Entry), 0, CompactionWalk::default());
        let mut compactor = Compactor { step, share: 50, ..Compactor::new() };
        let (server, is_closed) = (world.server.clone(), Barrier::new(2));
        let executor = &mut world.workers[0];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut ctx = server.core.keyspace.thread_context();
                server.core.keyspace.enter(&mut ctx);
                let guard = server.core.keyspace.hold_all(&mut ctx);
                is_closed.wait();
                std::thread::sleep(CLOSED);
                drop(guard);
                server.core.keyspace.leave(&mut ctx);
            });
            is_closed.wait();
            compactor.slice(executor);
        });
        let stats = executor.stats();
        let waited = Duration::from_micros(clock::us(stats.stage(Stage::LockWait)));
        let worked = Duration::from_micros(clock::us(stats.stage(Stage::Compact)));
        assert!(waited >= CLOSED / 2 && worked < CLOSED / 2, "waited {waited:?}, worked {worked:?}");
    }
}
