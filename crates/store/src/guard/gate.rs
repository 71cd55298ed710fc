//! The gate: a barrier that lets a thread see the whole keyspace at rest.
//!
//! A thread touches the keyspace only from inside the gate. Entering and leaving write a cache line of the
//! thread's own, so they cost a command next to nothing. A thread that needs everything at rest (FLUSHALL,
//! SWAPDB, the start of a snapshot) closes the gate and waits until all other threads are outside.
//!
//! The count of a thread is odd while the thread is inside. The bad interleaving is Dekker's:
//! 1. A thread marks itself inside, and then reads `closed`.
//! 2. The closer sets `closed`, and then reads the marks.
//!
//! Without a full fence between the two steps of each, both could read the old value, and both would go on.
//! Hence two `SeqCst` fences, and the model in `tests/it/gate.rs`, which compiles this very file against
//! loom's primitives.
//!
//! The counts serve a second purpose. A prefetch on another thread may still read a table that has been
//! replaced. The table is freed when every other thread has been seen outside, or its count has changed,
//! since the table was replaced ([`Gate::glance`], [`Gate::all_passed`]). The mark on the way in is therefore
//! stored with `Release` as well: a glance may read the mark of a thread's next visit, and must then see that
//! the reads of the visit before are over.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*, fence};
use crate::sync::{Condvar, Mutex, MutexGuard, spin_loop, yield_now};

/// Maximum number of threads that use one keyspace at the same time: 256 workers, as many threads for
/// offloaded commands and for loading, and a few in the background.
pub const CONTEXTS_MAX: usize = 784;

/// Interval at which a thread that waits outside asks `refuse` again.
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(2);

#[repr(align(128))]
struct ThreadCount {
    /// Odd: inside. Even: outside. Grows by 1 with each entry and exit.
    count: AtomicU64,
}

/// See the module's documentation.
pub struct Gate {
    contexts: Box<[ThreadCount]>,
    closed: AtomicBool,
    /// Held by the thread that closes the gate or has closed it.
    closer: Mutex<()>,
    opened: (Mutex<()>, Condvar),
}

impl Gate {
    pub fn new(contexts: usize) -> Gate {
        assert!((1..=CONTEXTS_MAX).contains(&contexts), "a keyspace has 1 to {CONTEXTS_MAX} contexts");
        Gate {
            contexts: (0..contexts).map(|_| ThreadCount { count: AtomicU64::new(0) }).collect(),
            closed: AtomicBool::new(false),
            closer: Mutex::new(()),
            opened: (Mutex::new(()), Condvar::new()),
        }
    }

    /// Enters; waits while the gate is closed. Only the caller uses `ctx`, and it is outside.
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

    /// Like [`Gate::enter`], but stays outside and returns `false` if `refuse` returns true while the gate is
    /// closed.
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

    /// Leaves the gate.
    #[inline]
    pub fn leave(&self, ctx: usize) {
        self.step(ctx);
    }

    /// Counts an entry or an exit.
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

    /// Waits until the gate is opened, for [`POLL_INTERVAL`] at most.
    #[cold]
    fn look_whether_open(&self) {
        let mut guard = self.opened.0.lock();
        if self.closed.load(Relaxed) {
            self.opened.1.wait_for(&mut guard, POLL_INTERVAL);
        }
    }

    /// Closes the gate and waits until only the caller is inside. `ctx` is the caller's. It is inside before
    /// and afterwards; in between it is outside while another thread has the gate closed.
    pub fn close(&self, ctx: usize) -> Closed<'_> {
        // Two closers that wait inside for each other to leave would wait forever, so the caller leaves
        // first.
        self.step(ctx);
        self.close_as(ctx, self.closer.lock())
    }

    /// Closes the gate; the caller has the `closer` lock. `ctx` is outside before, and inside afterwards.
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

    /// Like [`Gate::close`], but stays outside and returns `None` if `refuse` returns true while another
    /// thread has the gate closed.
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

    /// Returns true if a thread waits for all others to leave. A hint for a thread that has been inside for
    /// long.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// Reads all counts, to be passed to [`Gate::all_passed`] later.
    pub(crate) fn glance(&self, into: &mut Vec<u64>) {
        fence(SeqCst);
        into.clear();
        into.extend(self.contexts.iter().map(|ctx| ctx.count.load(Acquire)));
    }

    /// Returns true if every thread but `own` was outside at the glance or has left since.
    pub(crate) fn all_passed(&self, glance: &[u64], own: usize) -> bool {
        let passed = |index: usize| {
            let then = glance[index];
            index == own || then.is_multiple_of(2) || self.contexts[index].count.load(Acquire) != then
        };
        (0..glance.len()).all(passed)
    }
}

/// Only the closer is inside while this value lives.
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
