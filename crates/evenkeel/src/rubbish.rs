//! The thread that frees what would take long: flushed databases, huge values.
//!
//! Most of it is memory that belongs to workers, and a worker has work with what others free of its memory
//! ([`crate::allocator`]). So this thread stops after some thousand blocks, and goes on when all workers have taken theirs back: none
//! of them is kept from its clients by more than these. One that does not come to that for a while, for a script runs on it,
//! is not waited for again until it has.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use evenkeel_store::{Flushed, memory};

use crate::net::inbox::{Inbox, Message};

/// Blocks that are freed at once: at 0.15 us each, 0.6 ms of a worker that owns all of them.
const AT_ONCE: u32 = 4_000;

/// How long a worker is waited for.
const PATIENCE: Duration = Duration::from_millis(10);

/// How long it sleeps between two looks whether workers are done.
const LOOK: Duration = Duration::from_micros(50);

/// Things to be dropped on another thread.
pub(crate) struct Rubbish {
    sender: Sender<Box<dyn Send>>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    given: AtomicU64,
    freed: AtomicU64,
    /// `freed` at the last CONFIG RESETSTAT.
    forgotten: AtomicU64,
    /// FLUSHDBs and FLUSHALLs whose memory has not come back yet.
    flushes: AtomicU64,
    /// See [`Rubbish::flushed_at`].
    flushed_at: AtomicU64,
}

impl Rubbish {
    /// Starts the thread; it ends when the last sender is gone.
    pub(crate) fn start(inboxes: Arc<[Inbox]>) -> Rubbish {
        let (sender, receiver) = channel::<Box<dyn Send>>();
        let counts = Arc::new(Counts::default());
        let freed = counts.clone();
        std::thread::Builder::new()
            .name("free".into())
            .spawn(move || {
                let mut settling = Settling { numbers: vec![0; inboxes.len()], inboxes };
                evenkeel_store::memory::pace_frees(AT_ONCE, move || settling.wait());
                for thing in receiver {
                    drop(thing);
                    freed.freed.fetch_add(1, Relaxed);
                }
            })
            .expect("a thread can be started");
        Rubbish { sender, counts }
    }

    /// Drops `thing` soon.
    pub(crate) fn free(&self, thing: impl Send + 'static) {
        self.counts.given.fetch_add(1, Relaxed);
        // The receiver lives as long as the sender; were it gone, the thing would be dropped here.
        drop(self.sender.send(Box::new(thing)));
    }

    /// Drops flushed databases soon; until then, [`Rubbish::is_flushing`].
    pub(crate) fn free_flushed(&self, databases: impl Send + 'static) {
        self.counts.flushes.fetch_add(1, Relaxed);
        // Dropped in this order.
        self.free((databases, Flush(self.counts.clone())));
    }

    /// The same, if there are any.
    pub(crate) fn free_if_any(&self, databases: Vec<Flushed>) {
        if !databases.is_empty() {
            self.free_flushed(databases);
        }
    }

    /// Much is about to be given up, and nothing is on its way back yet: see [`Rubbish::flushed_at`].
    pub(crate) fn note_flush(&self) {
        self.counts.flushed_at.store(memory::used_by_data() as u64, Relaxed);
    }

    /// Bytes that the data took when what is on its way back was given up: not to be exceeded by much before it is back. What is given up
    /// meanwhile does not raise that.
    pub(crate) fn flushed_at(&self) -> u64 {
        self.counts.flushed_at.load(Relaxed)
    }

    /// Whether the memory of flushed databases is about to come back.
    pub(crate) fn is_flushing(&self) -> bool {
        self.counts.flushes.load(Relaxed) > 0
    }

    /// Things given and not yet freed.
    pub(crate) fn pending(&self) -> u64 {
        self.counts.given.load(Relaxed).saturating_sub(self.counts.freed.load(Relaxed))
    }

    /// Things freed since the start, or the last reset.
    pub(crate) fn freed(&self) -> u64 {
        self.counts.freed.load(Relaxed).saturating_sub(self.counts.forgotten.load(Relaxed))
    }

    /// Counts from zero on what is freed.
    pub(crate) fn reset(&self) {
        self.counts.forgotten.store(self.counts.freed.load(Relaxed), Relaxed);
    }
}

/// Ends a flush when dropped.
struct Flush(Arc<Counts>);

impl Drop for Flush {
    fn drop(&mut self) {
        self.0.flushes.fetch_sub(1, Relaxed);
    }
}

/// Has workers take their memory back.
struct Settling {
    inboxes: Arc<[Inbox]>,
    /// What each has been asked to note last.
    numbers: Vec<u64>,
}

impl Settling {
    fn is_done(&self, worker: usize) -> bool {
        self.inboxes[worker].settled.load(Acquire) == self.numbers[worker]
    }

    fn wait(&mut self) {
        let asked: Vec<usize> = (0..self.inboxes.len()).filter(|worker| self.is_done(*worker)).collect();
        for worker in &asked {
            self.numbers[*worker] += 1;
            self.inboxes[*worker].post(Message::Settle(self.numbers[*worker]));
        }
        let until = Instant::now() + PATIENCE;
        while !asked.iter().all(|worker| self.is_done(*worker)) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }
}
