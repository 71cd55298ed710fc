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
//! that, in slices of [`BUSY_US_MAX`]: its clients wait for a slice now and then.

use std::sync::atomic::Ordering::Relaxed;

use evenkeel_config::Settings;
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

/// Unused bytes of a worker's chunks that are not worth a pass.
const UNUSED_MIN: usize = 2 * CHUNK;

/// State of a worker's compaction; see the module's text.
pub(crate) struct Compactor {
    step: Step,
    kind: Kind,
    /// Percent of the time; zero: there is nothing to do.
    share: u64,
    is_calm: bool,
    /// No slice and no pass begins before this.
    not_before: Ticks,
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
}

impl Limits {
    fn of(settings: &Settings) -> Limits {
        Limits {
            is_on: settings.activedefrag,
            ignored: settings.active_defrag_ignore_bytes,
            lower: settings.active_defrag_threshold_lower,
            upper: settings.active_defrag_threshold_upper,
            min: settings.active_defrag_cycle_min,
            max: settings.active_defrag_cycle_max,
            maxmemory: settings.maxmemory,
        }
    }

    /// The percentage of its time that a worker spends, for `used` bytes in blocks and as many bytes in
    /// chunks; zero: none. `is_going`: what has begun goes on down to half of the lower bound.
    fn share(&self, used: usize, in_chunks: usize, is_going: bool) -> u64 {
        let unused = in_chunks.saturating_sub(used);
        let percent = (unused * 100 / used.max(1)) as u64;
        let lower = if is_going { self.lower / 2 } else { self.lower };
        let is_tight = self.maxmemory > 0 && in_chunks as u64 > self.maxmemory && unused > UNUSED_MIN;
        let is_wanted = is_tight || self.is_on && unused as u64 > self.ignored;
        if percent <= lower || !is_wanted {
            return 0;
        }
        let upper = self.upper.max(lower + 1);
        self.min + self.max.saturating_sub(self.min) * (percent.min(upper) - lower) / (upper - lower)
    }
}

impl Compactor {
    pub(crate) fn new() -> Compactor {
        Compactor {
            step: Step::Rest,
            kind: Kind::Entry,
            share: 0,
            is_calm: false,
            not_before: 0,
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
        self.share = match self.follows == self.followed {
            _ if server.persist.is_loading() => 0,
            false => ASKED_SHARE,
            true => {
                let chunks = evenkeel_slab::stats().in_chunks;
                Limits::of(&executor.settings).share(memory::used_in_blocks(), chunks, self.is_going)
            }
        };
        if self.share == 0 {
            // What has begun ends, so that marked chunks come back into use.
            self.step = match std::mem::replace(&mut self.step, Step::Rest) {
                Step::Mark(compaction, chosen) | Step::Move(compaction, chosen, _) => {
                    Step::End(compaction, chosen)
                }
                step @ Step::End(..) => step,
                Step::Rest | Step::Survey(_) => Step::Rest,
            };
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

    /// Milliseconds until the next slice, if there is one.
    pub(crate) fn due_in_ms(&self) -> Option<u64> {
        let left = || clock::us(self.not_before.saturating_sub(clock::ticks())).div_ceil(1000);
        self.is_wanted().then(left)
    }

    /// Works for at most [`SLICE_US_MAX`], if it is time. Returns the ticks.
    pub(crate) fn slice(&mut self, executor: &mut Executor) -> Ticks {
        if !self.is_wanted() {
            return 0;
        }
        let started = clock::ticks();
        if started < self.not_before {
            return 0;
        }
        let us = if self.is_calm { SLICE_US_MAX } else { BUSY_US_MAX };
        let until = started + (us - us / VISIT_SHARE) * clock::ticks_per_us();
        let has_rest = self.go_on(executor, || clock::ticks() >= until);
        let now = clock::ticks();
        let elapsed = now.saturating_sub(started);
        let share = if self.is_calm { self.share } else { self.share / 5 }.clamp(1, 99);
        let pause = if has_rest { REST_US * clock::ticks_per_us() } else { elapsed * (100 - share) / share };
        self.not_before = now + pause;
        executor.stats().record_stage(Stage::Compact, elapsed);
        executor.stats().slice_max.fetch_max(elapsed, Relaxed);
        elapsed
    }

    /// Goes on until `is_over`. Returns whether a rest is due.
    fn go_on(&mut self, executor: &mut Executor, is_over: impl Fn() -> bool + Copy) -> bool {
        let (step, has_rest) = match std::mem::replace(&mut self.step, Step::Rest) {
            Step::Rest => {
                if !std::mem::replace(&mut self.is_going, true) && executor.worker == 0 {
                    executor.server.core.purge.begin_compaction();
                    executor.server.ask_for_purge(); // those that sleep lend their blocks as well
                }
                (Step::Survey(Compaction::new(self.kind)), false)
            }
            Step::Survey(mut compaction) => {
                if compaction.survey(is_over) {
                    (Step::Survey(compaction), false)
                } else {
                    self.choose(executor, compaction)
                }
            }
            Step::Mark(mut compaction, chosen) => {
                if compaction.mark(is_over) {
                    (Step::Mark(compaction, chosen), false)
                } else {
                    (Step::Move(compaction, chosen, CompactionWalk::default()), false)
                }
            }
            Step::Move(compaction, chosen, walk) => {
                (self.move_blocks(executor, compaction, chosen, walk, is_over), false)
            }
            Step::End(mut compaction, chosen) => {
                if compaction.end(is_over) {
                    (Step::End(compaction, chosen), false)
                } else {
                    let emptied = chosen.saturating_sub(compaction.left());
                    executor.server.core.purge.record_emptied(emptied);
                    self.next_kind()
                }
            }
        };
        self.step = step;
        has_rest
    }

    /// Chooses sparse chunks after the survey, unless it is not worth it.
    fn choose(&mut self, executor: &Executor, mut compaction: Compaction) -> (Step, bool) {
        let (settings, found) = (&executor.settings, compaction.found());
        self.chunks += found.chunks;
        let unused = found.chunks * CHUNK - found.bytes;
        let percent = (unused * 100 / found.bytes.max(1)) as u64;
        let is_asked = self.follows != self.followed;
        if unused < UNUSED_MIN || !is_asked && percent <= settings.active_defrag_threshold_lower / 2 {
            return self.next_kind();
        }
        let chosen = compaction.choose(PASS_BYTES_MIN.max(found.bytes / 4)).chunks;
        if chosen == 0 { self.next_kind() } else { (Step::Mark(compaction, chosen), false) }
    }

    /// The other kind's turn, or after the second a rest, if the round before has not left fewer chunks.
    fn next_kind(&mut self) -> (Step, bool) {
        let is_round_over = self.kind == Kind::Page;
        self.kind = if is_round_over { Kind::Entry } else { Kind::Page };
        if !is_round_over {
            return (Step::Rest, false);
        }
        let chunks = std::mem::take(&mut self.chunks);
        self.is_going = chunks > 0 && chunks < std::mem::replace(&mut self.chunks_before, chunks);
        if !self.is_going {
            self.chunks_before = usize::MAX;
            self.followed = self.follows;
        }
        (Step::Rest, !self.is_going)
    }

    fn move_blocks(
        &mut self,
        executor: &mut Executor,
        compaction: Compaction,
        chosen: usize,
        mut walk: CompactionWalk,
        is_over: impl Fn() -> bool,
    ) -> Step {
        let server = executor.server.clone();
        if !server.core.keyspace.enter_unless(&mut executor.ctx, || server.scripts.busy.is_busy()) {
            return Step::Move(compaction, chosen, walk); // the next slice tries again
        }
        let mut moved = Moved::default();
        let mut guard = server.core.keyspace.hold_none(&mut executor.ctx);
        let has_more = guard.compact(&compaction, &mut walk, &mut moved, is_over);
        drop(guard);
        server.core.keyspace.leave(&mut executor.ctx);
        let stats = executor.stats();
        add(&stats.blocks_moved, moved.blocks);
        add(&stats.blocks_stayed, moved.stayed);
        if has_more { Step::Move(compaction, chosen, walk) } else { Step::End(compaction, chosen) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_grows_with_the_unused_memory() {
        let limits =
            Limits { is_on: true, ignored: 100, lower: 10, upper: 100, min: 1, max: 25, maxmemory: 0 };
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
        assert_eq!(shares(&tight), [0, 3, 13, 25, 0, 0], "chunks beyond maxmemory");
        assert_eq!(shares(&Limits { min: 30, ..limits }), [0, 30, 30, 30, 0, 30], "the minimum goes first");
    }
}
