//! A run: consecutive units of a chunk with blocks of a class, owned by a heap.
//!
//! | state | where the run is | ends when |
//! |---|---|---|
//! | current | the run from which its class takes blocks | it is full |
//! | listed | in its class's list: it has free blocks | it becomes current, or its last block is freed |
//! | full | nowhere; other threads are asked for notice of a freed block | a block is freed |
//! | leaving | nowhere: its blocks are being moved | its last block is freed, or the compaction ends |
//! | over | nowhere: all blocks are free, but a thread is about to hand the run over | that has happened |
//!
//! A block that was never taken is not linked: `fresh` is the place of the first of them, so the memory
//! behind it is not touched before it is needed.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::*};

use crate::classes;
use crate::remote::{NONE, Remote};

/// No run, where runs are named by number.
pub(crate) const NO_RUN: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    Current,
    Listed,
    Full,
    Leaving,
    Over,
}

/// The description of a run. Places are offsets from the first byte in eights of bytes, and fit 16 bits.
///
/// Only the owner uses the fields in a `Cell`. Other threads read the rest, which does not change while a
/// block is in use. So all threads may have references to a run at the same time.
#[repr(C, align(64))]
pub(crate) struct Run {
    /// The number of its heap, plus 1.
    pub(crate) owner: AtomicU32,
    /// In an entry that is not a run's first: how many entries before it the first is.
    pub(crate) behind: u8,
    pub(crate) state: Cell<State>,
    /// Whether other threads have been asked for notice, and the notice has not been received.
    pub(crate) awaits_notice: Cell<bool>,
    pub(crate) base: *mut u8,
    /// The first of the free blocks.
    pub(crate) free: Cell<u16>,
    /// The place of the first block that was never taken, and the place behind the last block.
    pub(crate) fresh: Cell<u16>,
    pub(crate) end: u16,
    /// Size of a block, in eights of bytes.
    pub(crate) stride: u16,
    /// Blocks taken and not freed; blocks that other threads have freed count until the owner takes them.
    pub(crate) used: Cell<u16>,
    /// By kind and class: the place in the heap's row of classes.
    pub(crate) class: u16,
    /// Neighbours in the list of the class.
    pub(crate) previous: Cell<u32>,
    pub(crate) next: Cell<u32>,
    /// The next run in its owner's list of runs with notice.
    pub(crate) next_noticed: AtomicU32,
    pub(crate) remote: Remote,
}

const _: () = assert!(size_of::<Run>() == 64);

impl Run {
    /// Makes a run of the entries of `1 << order` units, whose first byte is at `base`. The owner's number
    /// comes last, and atomically: other threads may look for it in any entry.
    ///
    /// # Safety
    /// The entries are no run's.
    pub(crate) unsafe fn make<'a>(
        at: *mut Run,
        owner: u32,
        class: usize,
        size: usize,
        base: *mut u8,
        order: usize,
    ) -> &'a Run {
        let blocks = (crate::arena::UNIT << order) / size;
        // SAFETY: nobody reads these fields of an entry that is no run's.
        unsafe {
            for behind in 0..1 << order {
                (&raw mut (*at.add(behind)).behind).write(behind as u8);
            }
            (&raw mut (*at).base).write(base);
            (&raw mut (*at).end).write((blocks * size / 8) as u16);
            (&raw mut (*at).stride).write((size / 8) as u16);
            (&raw mut (*at).class).write(class as u16);
        }
        // SAFETY: from here on the entry is a run's.
        let run = unsafe { &*at };
        run.state.set(State::Current);
        run.awaits_notice.set(false);
        run.free.set(NONE);
        run.fresh.set(0);
        run.used.set(0);
        run.remote.reset();
        run.owner.store(owner + 1, Relaxed);
        run
    }

    /// The run has `1 << order` units.
    pub(crate) fn order(&self) -> usize {
        classes::ORDER[self.class as usize % classes::CLASSES] as usize
    }

    /// Bytes of the blocks in use. For the owner.
    pub(crate) fn live(&self) -> usize {
        usize::from(self.used.get() - self.remote.len()) * self.stride as usize * 8
    }

    /// Takes a block; `None`: none is free here, as far as the owner knows. For the owner.
    #[inline]
    pub(crate) fn take(&self) -> Option<*mut u8> {
        let place = self.free.get();
        let block = if place != NONE {
            let block = self.at(place);
            // SAFETY: a free block begins with the place of the next.
            self.free.set(unsafe { block.cast::<u16>().read() });
            block
        } else if self.fresh.get() != self.end {
            let place = self.fresh.get();
            self.fresh.set(place + self.stride);
            self.at(place)
        } else {
            return None;
        };
        self.used.set(self.used.get() + 1);
        Some(block)
    }

    #[inline]
    fn at(&self, place: u16) -> *mut u8 {
        self.base.wrapping_add(place as usize * 8)
    }

    #[inline]
    fn place_of(&self, block: *mut u8) -> u16 {
        ((block.addr() - self.base.addr()) / 8) as u16
    }

    /// Frees a block.
    ///
    /// # Safety
    /// The block lies in this run, and nobody uses it any more. The caller owns the run.
    #[inline]
    pub(crate) unsafe fn put_back(&self, block: *mut u8) {
        // SAFETY: a block has at least eight bytes, which belong to the run again.
        unsafe { block.cast::<u16>().write(self.free.get()) };
        self.free.set(self.place_of(block));
        self.used.set(self.used.get() - 1);
    }

    /// Frees a block of a run of another thread. Returns whether the caller has to give notice.
    ///
    /// # Safety
    /// The block lies in this run, and nobody uses it any more.
    pub(crate) unsafe fn put_back_from_afar(&self, block: *mut u8) -> bool {
        // SAFETY: a block has at least eight bytes, which belong to the run again.
        self.remote.push(self.place_of(block), |next| unsafe { block.cast::<u16>().write(next) })
    }

    /// Takes the blocks that other threads have freed, if the owner has no other; returns whether there are
    /// any. For the owner.
    pub(crate) fn collect(&self) -> bool {
        if self.free.get() != NONE {
            return true;
        }
        let list = self.remote.take();
        self.free.set(list.first);
        self.used.set(self.used.get() - list.len);
        list.first != NONE
    }

    /// Whether all blocks have been freed, by whichever thread. For the owner.
    pub(crate) fn is_unused(&self) -> bool {
        self.used.get() == self.remote.len()
    }
}

/// Runs of which other threads have given notice, for their owner.
#[derive(Debug)]
pub(crate) struct Noticed(AtomicU32);

impl Noticed {
    pub(crate) fn new() -> Noticed {
        Noticed(AtomicU32::new(NO_RUN))
    }

    /// Adds a run. `link` writes the number of the next into it.
    pub(crate) fn push(&self, run: u32, link: impl Fn(u32)) {
        let mut head = self.0.load(Relaxed);
        loop {
            link(head);
            match self.0.compare_exchange_weak(head, run, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.0.load(Relaxed) != NO_RUN
    }

    /// Takes all of them: the number of the first, or [`NO_RUN`].
    pub(crate) fn take(&self) -> u32 {
        if self.is_any() { self.0.swap(NO_RUN, Acquire) } else { NO_RUN }
    }
}
