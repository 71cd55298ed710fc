//! The lazy-free thread: frees flushed databases and large values, which would keep a worker from its
//! clients.
//!
//! Most of that memory belongs to workers, and a worker spends time on every block of its memory that another
//! thread frees ([`evenkeel_runtime::allocator`]). So the lazy-free thread pauses after some thousand blocks
//! until each worker has taken its blocks back: no worker is kept from its clients by more than these. If a
//! worker does not answer, because a script runs on it, the thread does not wait for that worker again until
//! it has answered.
//!
//! The queue is bounded by the work of the threads that fill it: while more than [`QUEUED_BYTES_MAX`] of
//! removed values wait, a thread that removes a value of up to [`IN_PLACE_MAX`] bytes frees it itself. A
//! larger value took its writers far longer to build than it takes the lazy-free thread to free.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use evenkeel_runtime::threads;
use evenkeel_store::{Flushed, Garbage, LazyFree, memory};

/// Blocks freed at once: at 0.15 us each, 0.6 ms of a worker that owns all of them.
const AT_ONCE: u32 = 4_000;

/// Most bytes of removed values that may wait for the lazy-free thread, not counting large values.
const QUEUED_BYTES_MAX: u64 = 64 << 20;

/// Longest value, in bytes, that the removing thread frees while the queue is full: some 2,000 pages of a
/// collection, which take 0.6 ms.
const IN_PLACE_MAX: usize = 8 << 20;

/// Longest wait for a worker.
const WORKER_TIMEOUT: Duration = Duration::from_millis(10);

/// Sleep between two checks whether workers are done.
const WORKER_POLL_INTERVAL: Duration = Duration::from_micros(50);

/// A thread that owns memory, and takes its blocks back when it is asked to.
pub trait Owner: Send + Sync + 'static {
    /// Asks the thread to take back its freed blocks soon.
    fn ask_to_settle(&self);

    /// Whether the thread has done so since the last request.
    fn is_settled(&self) -> bool;
}

/// Sends values to the lazy-free thread.
pub struct LazyFreeThread {
    sender: Sender<Box<dyn Send>>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    given: AtomicU64,
    freed: AtomicU64,
    /// Approximate bytes of removed values that are not freed yet.
    values: AtomicU64,
    /// `freed` at the last CONFIG RESETSTAT.
    forgotten: AtomicU64,
    /// FLUSHDBs and FLUSHALLs whose memory is not freed yet.
    flushes: AtomicU64,
    /// See [`LazyFreeThread::flushed_at`].
    flushed_at: AtomicU64,
}

impl LazyFreeThread {
    /// Starts the thread; it ends when the last sender is gone.
    pub fn start<O: Owner>(owners: Arc<[O]>) -> LazyFreeThread {
        let (sender, receiver) = channel::<Box<dyn Send>>();
        let counts = Arc::new(Counts::default());
        let freed = counts.clone();
        threads::named("lazy-free")
            .spawn(move || {
                memory::pace_frees(AT_ONCE, move || settle(&owners));
                for thing in receiver {
                    drop(thing);
                    freed.freed.fetch_add(1, Relaxed);
                }
            })
            .expect("a thread can be started");
        LazyFreeThread { sender, counts }
    }

    /// Drops `thing` soon, on the lazy-free thread.
    pub fn free(&self, thing: impl Send + 'static) {
        self.counts.given.fetch_add(1, Relaxed);
        // The receiver lives as long as the sender; without it, `thing` would be dropped here.
        drop(self.sender.send(Box::new(thing)));
    }

    /// Drops flushed databases soon; until then, [`LazyFreeThread::is_flushing`].
    pub fn free_flushed(&self, databases: impl Send + 'static) {
        self.counts.flushes.fetch_add(1, Relaxed);
        // Dropped in this order.
        self.free((databases, Flush(self.counts.clone())));
    }

    /// Like [`LazyFreeThread::free_flushed`], if there are any.
    pub fn free_if_any(&self, databases: Vec<Flushed>) {
        if !databases.is_empty() {
            self.free_flushed(databases);
        }
    }

    /// Returns the approximate bytes of removed values that are about to be freed, without flushed databases.
    pub fn values_pending(&self) -> usize {
        self.counts.values.load(Relaxed) as usize
    }

    /// Waits until `is_enough` or until no removed value is left to be freed, for `timeout` at most.
    pub fn wait_for_values(&self, timeout: Duration, is_enough: impl Fn() -> bool) {
        let until = Instant::now() + timeout;
        while self.values_pending() > 0 && !is_enough() && Instant::now() < until {
            std::thread::sleep(WORKER_POLL_INTERVAL);
        }
    }

    /// Records the start of a flush while no other is in progress: see [`LazyFreeThread::flushed_at`].
    /// `apart`: bytes that count in addition to the used bytes.
    pub fn record_flush(&self, apart: u64) {
        self.counts.flushed_at.store(memory::used_by_data() as u64 + apart, Relaxed);
    }

    /// Returns the bytes that the data took when the present flush began: a limit, roughly, until its memory
    /// is freed. Later flushes meanwhile do not raise it.
    pub fn flushed_at(&self) -> u64 {
        self.counts.flushed_at.load(Relaxed)
    }

    /// Whether memory of flushed databases is about to be freed.
    pub fn is_flushing(&self) -> bool {
        self.counts.flushes.load(Relaxed) > 0
    }

    /// Returns the number of things queued and not yet freed.
    pub fn pending(&self) -> u64 {
        self.counts.given.load(Relaxed).saturating_sub(self.counts.freed.load(Relaxed))
    }

    /// Returns the number of things freed since the start, or the last reset.
    pub fn freed(&self) -> u64 {
        self.counts.freed.load(Relaxed).saturating_sub(self.counts.forgotten.load(Relaxed))
    }

    /// Resets [`LazyFreeThread::freed`] to zero.
    pub fn reset(&self) {
        self.counts.forgotten.store(self.counts.freed.load(Relaxed), Relaxed);
    }
}

impl LazyFree for LazyFreeThread {
    fn free(&self, garbage: Garbage) {
        let bytes = garbage.memory();
        if self.counts.values.load(Relaxed) > QUEUED_BYTES_MAX && bytes <= IN_PLACE_MAX {
            self.counts.given.fetch_add(1, Relaxed);
            drop(garbage);
            self.counts.freed.fetch_add(1, Relaxed);
            return;
        }
        self.counts.values.fetch_add(bytes as u64, Relaxed);
        // Dropped in this order.
        LazyFreeThread::free(self, (garbage, Returned { counts: self.counts.clone(), bytes }));
    }
}

/// Ends the count of a removed value when dropped.
struct Returned {
    counts: Arc<Counts>,
    bytes: usize,
}

impl Drop for Returned {
    fn drop(&mut self) {
        self.counts.values.fetch_sub(self.bytes as u64, Relaxed);
    }
}

/// Ends a flush when dropped.
struct Flush(Arc<Counts>);

impl Drop for Flush {
    fn drop(&mut self) {
        self.0.flushes.fetch_sub(1, Relaxed);
    }
}

/// Makes workers take their blocks back, and waits until they have.
fn settle<O: Owner>(owners: &[O]) {
    // A worker that did not answer the last time is not asked again until it has.
    let asked: Vec<&O> = owners.iter().filter(|owner| owner.is_settled()).collect();
    asked.iter().for_each(|owner| owner.ask_to_settle());
    let until = Instant::now() + WORKER_TIMEOUT;
    while !asked.iter().all(|owner| owner.is_settled()) && Instant::now() < until {
        std::thread::sleep(WORKER_POLL_INTERVAL);
    }
}
