//! The barrier: lets one thread see the whole keyspace at rest.
//!
//! Every thread that touches the keyspace does so from inside the gate. Going in and out writes only a cache line
//! of its own, so it costs a command next to nothing; whoever needs everything at rest (FLUSHALL, SWAPDB, a
//! snapshot's start) closes the gate and waits until all others are out.
//!
//! A seat's count is odd while its thread is inside. The bad interleaving is the one of Dekker's algorithm: a thread
//! marks itself inside and then reads `closed`; the closer sets `closed` and then reads the marks. Without a full
//! fence between each pair, both could read the old value and both go on. Hence two `SeqCst` fences, and the model
//! in `tests/it/gate.rs`, which compiles this very file against loom's primitives.
//!
//! The counts serve a second purpose: a table that has been replaced may still be read by a prefetch on another
//! thread. It is freed when every seat has been seen outside, or has moved, since the table was replaced
//! ([`Gate::glance`], [`Gate::all_passed`]). Marks are stored with `Release` on the way in as well: a glance may read
//! the mark of the next visit, and has to see that the reads of the one before are over.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*, fence};
use crate::sync::{Condvar, Mutex, MutexGuard, spin_loop, yield_now};

/// Threads that may use one keyspace at the same time: 256 workers, as many for long commands and for loading, and a few
/// in the background.
pub const SEATS_MAX: usize = 784;

/// How often a thread that waits outside asks whether to go on waiting.
const LOOK: std::time::Duration = std::time::Duration::from_millis(2);

#[repr(align(128))]
struct ThreadContext {
    /// Odd: inside. Even: outside. Grows with each way in and out.
    count: AtomicU64,
}

/// See the module's text.
pub struct Gate {
    contexts: Box<[ThreadContext]>,
    closed: AtomicBool,
    /// Held by the one thread that has closed the gate.
    closer: Mutex<()>,
    opened: (Mutex<()>, Condvar),
}

impl Gate {
    pub fn new(contexts: usize) -> Gate {
        assert!((1..=SEATS_MAX).contains(&contexts), "a keyspace has 1 to {SEATS_MAX} seats");
        Gate {
            contexts: (0..contexts).map(|_| ThreadContext { count: AtomicU64::new(0) }).collect(),
            closed: AtomicBool::new(false),
            closer: Mutex::new(()),
            opened: (Mutex::new(()), Condvar::new()),
        }
    }

    /// Goes inside; waits while the gate is closed. `ctx` is the caller's alone, and outside.
    #[inline]
    pub fn enter(&self, ctx: usize) {
        loop {
            self.step(ctx);
            fence(SeqCst);
            if !self.closed.load(Acquire) {
                return;
            }
            self.step(ctx);
            self.wait_until_open();
        }
    }

    /// The same, but stays outside, and returns `false`, if `refuse` says so while the gate is closed.
    #[inline]
    pub fn enter_unless(&self, ctx: usize, refuse: impl Fn() -> bool) -> bool {
        loop {
            self.step(ctx);
            fence(SeqCst);
            if !self.closed.load(Acquire) {
                return true;
            }
            self.step(ctx);
            if refuse() {
                return false;
            }
            self.look_whether_open();
        }
    }

    /// Goes outside.
    #[inline]
    pub fn leave(&self, ctx: usize) {
        self.step(ctx);
    }

    /// One step over the threshold, in or out.
    #[inline]
    fn step(&self, ctx: usize) {
        let count = &self.contexts[ctx].count;
        count.store(count.load(Relaxed).wrapping_add(1), Release);
    }

    #[cold]
    fn wait_until_open(&self) {
        let mut guard = self.opened.0.lock();
        while self.closed.load(Relaxed) {
            self.opened.1.wait(&mut guard);
        }
    }

    /// Waits until the gate is opened, but not for long.
    #[cold]
    fn look_whether_open(&self) {
        let mut guard = self.opened.0.lock();
        if self.closed.load(Relaxed) {
            self.opened.1.wait_for(&mut guard, LOOK);
        }
    }

    /// Closes the gate and waits until nobody but the caller is inside. `ctx` is the caller's, inside before, and
    /// inside afterwards; in between it is outside for as long as others have the gate closed.
    pub fn close(&self, ctx: usize) -> Closed<'_> {
        // Two threads that both wait inside for each other to come out would wait forever, so go out first.
        self.step(ctx);
        self.close_as(ctx, self.closer.lock())
    }

    /// Closes the gate for the thread that has the lock for that. `ctx` is outside before, and inside afterwards.
    fn close_as<'a>(&'a self, ctx: usize, closer: MutexGuard<'a, ()>) -> Closed<'a> {
        self.closed.store(true, Relaxed);
        fence(SeqCst);
        for other in &self.contexts {
            let mut spins = 0;
            while other.count.load(Acquire) % 2 == 1 {
                spins += 1;
                if spins < 200 { spin_loop() } else { yield_now() }
            }
        }
        self.step(ctx);
        Closed { gate: self, _closer: closer }
    }

    /// The same, but stays outside, and returns `None`, if `refuse` says so while another thread has the gate closed.
    pub fn close_unless(&self, ctx: usize, refuse: impl Fn() -> bool) -> Option<Closed<'_>> {
        self.step(ctx);
        let closer = loop {
            if let Some(closer) = self.closer.try_lock() {
                break closer;
            }
            if refuse() {
                return None;
            }
            self.look_whether_open();
            yield_now(); // the thread that has opened the gate may not have released the lock yet
        };
        Some(self.close_as(ctx, closer))
    }

    /// Whether somebody waits for all others to come out. A hint for who has been inside for long.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// All counts at this moment, to be held against [`Gate::all_passed`] later.
    pub(crate) fn glance(&self, into: &mut Vec<u64>) {
        fence(SeqCst);
        into.clear();
        into.extend(self.contexts.iter().map(|ctx| ctx.count.load(Acquire)));
    }

    /// Whether every seat but `own` was outside at the glance or has gone outside since.
    pub(crate) fn all_passed(&self, glance: &[u64], own: usize) -> bool {
        let passed = |index: usize| {
            let then = glance[index];
            index == own || then.is_multiple_of(2) || self.contexts[index].count.load(Acquire) != then
        };
        (0..glance.len()).all(passed)
    }
}

/// Nobody else is inside while this lives.
pub struct Closed<'a> {
    gate: &'a Gate,
    _closer: MutexGuard<'a, ()>,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let _guard = self.gate.opened.0.lock();
        self.gate.closed.store(false, Release);
        self.gate.opened.1.notify_all();
    }
}
