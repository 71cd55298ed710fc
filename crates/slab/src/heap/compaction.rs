//! Choosing chunks to be emptied, and keeping their runs out of use meanwhile; see [`crate::Compaction`].
//!
//! A marked chunk gets no new runs, and its runs give no blocks ([`State::Leaving`]). Freeing is as always:
//! with its last block a run dissolves, and with its last run the chunk goes back to the arena. Blocks that
//! other threads free shows at the end, or when they give notice.
//!
//! Only the sparsest chunks are chosen, as many as fit into the free blocks of the others: so compaction
//! takes hardly any memory, whatever share of the heap is unused. A block's new place is in a run of its
//! class, and the free blocks of the others may be of other classes, so it can take more than one pass.

use std::sync::atomic::Ordering::Relaxed;

use super::{Heap, Own, mine};
use crate::arena::{self, CHUNK, UNITS};
use crate::run::{Run, State};
use crate::{Filled, Kind};

/// Groups of chunks by the share of their bytes in use.
const GROUPS: usize = 64;

/// Chunks between two calls of `is_over`.
const STRIDE: u32 = 4;

/// Of a thousand bytes of a chunk, so many can be in use: the rest is behind the last blocks of runs.
const USABLE: usize = 980;

/// Of a thousand free bytes, so many can be used by moved blocks: the rest is of other classes.
const FITTING: usize = 900;

/// Of a thousand bytes of a chunk worth emptying, at most so many are in use.
const SPARSE: usize = 940;

#[derive(Clone, Copy, Default)]
struct Group {
    chunks: usize,
    bytes: usize,
}

pub(crate) struct Compaction {
    pub(crate) kind: Kind,
    /// The next chunk to look at, in each step.
    at: u32,
    groups: [Group; GROUPS + 1],
    /// Chunks of lower groups are marked, and of this group as many as `quota` says.
    limit: usize,
    quota: usize,
    /// Marked chunks that have blocks at the end.
    left: usize,
    /// Whether the end has begun, and whether it is over.
    is_ending: bool,
    is_ended: bool,
    /// The number of the first of the heaps that had been merged into the thread's when this began.
    merged: Option<u32>,
}

impl Compaction {
    pub(crate) fn new(kind: Kind) -> Compaction {
        super::gather();
        Compaction {
            kind,
            at: 0,
            groups: [Group::default(); GROUPS + 1],
            limit: 0,
            quota: 0,
            left: 0,
            is_ending: false,
            is_ended: true,
            // SAFETY: the heap is the calling thread's.
            merged: mine().and_then(|heap| unsafe { heap.own() }.merged).map(|heap| heap.number),
        }
    }

    /// Calls `f` with each chunk of this thread, until `is_over`; returns whether there are more.
    fn walk(
        &mut self,
        mut is_over: impl FnMut() -> bool,
        mut f: impl FnMut(&mut Compaction, &Heap, &mut Own, u32),
    ) -> bool {
        let Some(heap) = mine() else { return false };
        // SAFETY: the heap is the calling thread's. `is_over` takes no blocks, as its caller promises.
        let own = unsafe { heap.own() };
        heap.follow_all_noticed(own);
        while self.at < arena::chunks_end() {
            let number = self.at;
            self.at += 1;
            let owner = arena::owner_of(number);
            let is_own = owner != 0 && heap.is_heap_of(owner - 1);
            if is_own {
                f(self, heap, own, number);
            }
            if self.at.is_multiple_of(STRIDE) && is_over() {
                return true;
            }
        }
        self.at = 0;
        false
    }

    pub(crate) fn survey(&mut self, is_over: impl FnMut() -> bool) -> bool {
        let has_more = self.walk(is_over, |this, heap, own, number| {
            let is_of_kind = this.is_of_kind(number);
            let Some(bytes) = heap.take_over(own, number) else { return };
            if is_of_kind {
                let group = &mut this.groups[group_of(bytes)];
                (group.chunks, group.bytes) = (group.chunks + 1, group.bytes + bytes);
            }
        });
        if !has_more && let (Some(first), Some(heap)) = (self.merged.take(), mine()) {
            // SAFETY: the heap is the calling thread's.
            heap.release(unsafe { heap.own() }, first);
        }
        has_more
    }

    fn is_of_kind(&self, number: u32) -> bool {
        // SAFETY: the chunk is the calling thread's.
        unsafe { arena::chunk(number) }.kind.get() == self.kind
    }

    pub(crate) fn found(&self) -> Filled {
        let sum = |field: fn(&Group) -> usize| self.groups.iter().map(field).sum();
        Filled { chunks: sum(|group| group.chunks), bytes: sum(|group| group.bytes) }
    }

    pub(crate) fn choose(&mut self, bytes_max: usize) -> Filled {
        let (all, mut chosen) = (self.found(), Filled::default());
        (self.limit, self.quota) = (0, 0);
        for (at, group) in self.groups.iter().enumerate().filter(|(_, group)| group.chunks > 0) {
            let each = group.bytes / group.chunks;
            if each > CHUNK / 1000 * SPARSE {
                break;
            }
            let mut quota = 0;
            while quota < group.chunks {
                let bytes = chosen.bytes + each;
                let room = (all.chunks - chosen.chunks - 1) * (CHUNK / 1000 * USABLE);
                let free = room.saturating_sub(all.bytes - bytes);
                if bytes > bytes_max || bytes > free / 1000 * FITTING {
                    break;
                }
                quota += 1;
                chosen = Filled { chunks: chosen.chunks + 1, bytes };
            }
            (self.limit, self.quota) = (at, quota);
            if quota < group.chunks {
                break;
            }
        }
        chosen
    }

    pub(crate) fn choose_all(&mut self) {
        (self.limit, self.quota) = (GROUPS + 1, 0);
    }

    pub(crate) fn mark(&mut self, is_over: impl FnMut() -> bool) -> bool {
        self.is_ended = false;
        self.walk(is_over, |this, heap, own, number| {
            if !this.is_of_kind(number) {
                return;
            }
            let group = group_of(bytes_of(number));
            if group > this.limit || group == this.limit && this.quota == 0 {
                return;
            }
            if group == this.limit {
                this.quota -= 1;
            }
            heap.begin_leaving(own, number);
        })
    }

    #[inline]
    pub(crate) fn is_leaving(&self, address: usize) -> bool {
        let leaving = arena::leaving(address);
        leaving != 0 && mine().is_some_and(|heap| heap.number + 1 == u32::from(leaving))
    }

    pub(crate) fn end(&mut self, is_over: impl FnMut() -> bool) -> bool {
        if self.is_ended {
            return false;
        }
        if !std::mem::replace(&mut self.is_ending, true) {
            self.at = 0; // the marks may not have come to their end
        }
        let has_more = self.walk(is_over, |this, heap, own, number| {
            // SAFETY: the chunk is this thread's.
            let is_leaving = unsafe { arena::chunk(number) }.is_leaving.get();
            if is_leaving && this.is_of_kind(number) && heap.end_leaving(own, number) {
                this.left += 1;
            }
        });
        self.is_ended = !has_more;
        has_more
    }

    pub(crate) fn left(&self) -> usize {
        self.left
    }
}

impl Drop for Compaction {
    fn drop(&mut self) {
        self.end(|| false);
    }
}

/// Calls `f` with each run of a chunk of the calling thread, until it returns false.
fn for_each_run(number: u32, mut f: impl FnMut(&Run) -> bool) {
    let mut unit = 0;
    while unit < UNITS {
        // SAFETY: the chunk is the calling thread's.
        let free = unsafe { arena::chunk(number) }.free.get();
        if free.has(unit) {
            unit += 1;
            continue;
        }
        let (run, _) = arena::run_at(number, unit);
        // SAFETY: the unit is not free, and the units before it are free or those of earlier runs.
        let run = unsafe { &*run };
        unit += 1 << run.order();
        if !f(run) {
            return;
        }
    }
}

/// Bytes in use of a chunk of the calling thread.
fn bytes_of(number: u32) -> usize {
    let mut bytes = 0;
    for_each_run(number, |run| {
        bytes += run.live();
        true
    });
    bytes
}

fn group_of(bytes: usize) -> usize {
    bytes / (CHUNK / GROUPS)
}

impl Heap {
    /// Makes a chunk and its runs this heap's own, where they have the number of a merged heap, and dissolves
    /// runs that other threads have emptied. Returns the bytes in use; `None`: there were none, and the chunk
    /// has gone back to the arena.
    fn take_over(&self, own: &mut Own, number: u32) -> Option<usize> {
        // SAFETY: the chunk is this heap's.
        unsafe { arena::chunk(number) }.owner.store(self.number + 1, Relaxed);
        let (mut bytes, mut is_gone) = (0, false);
        for_each_run(number, |run| {
            run.owner.store(self.number + 1, Relaxed);
            bytes += run.live();
            match run.state.get() {
                State::Listed if run.is_unused() => {
                    own.unlist(run);
                    is_gone = self.dissolve(own, run);
                }
                State::Full if run.is_unused() => is_gone = self.dissolve(own, run),
                _ => {}
            }
            !is_gone
        });
        (!is_gone).then_some(bytes)
    }

    fn begin_leaving(&self, own: &mut Own, number: u32) {
        // SAFETY: the chunk is this heap's.
        let chunk = unsafe { arena::chunk(number) };
        own.close(number, chunk);
        chunk.is_leaving.set(true);
        arena::set_leaving(number, (self.number + 1) as u16);
        for_each_run(number, |run| {
            match run.state.get() {
                State::Current => own.classes[run.class as usize].current = std::ptr::null(),
                State::Listed => own.unlist(run),
                State::Full => {}
                State::Leaving | State::Over => return true,
            }
            run.state.set(State::Leaving);
            run.owner.store(self.number + 1, Relaxed); // it may be a merged heap's
            !(run.is_unused() && self.dissolve(own, run))
        });
    }

    /// Returns whether the chunk has blocks yet.
    fn end_leaving(&self, own: &mut Own, number: u32) -> bool {
        // SAFETY: the chunk is this heap's.
        let chunk = unsafe { arena::chunk(number) };
        let mut is_gone = false;
        for_each_run(number, |run| {
            if run.state.get() == State::Leaving {
                if run.is_unused() {
                    is_gone = self.dissolve(own, run);
                } else {
                    own.list(run); // perhaps without a free block, as the next refill will find
                }
            }
            !is_gone
        });
        if is_gone {
            return false;
        }
        chunk.is_leaving.set(false);
        arena::set_leaving(number, 0);
        own.file(number, chunk);
        true
    }
}
