//! The thread that frees what would take long: flushed databases, huge values.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};

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
}

impl Rubbish {
    /// Starts the thread; it ends when the last sender is gone.
    pub(crate) fn start() -> Rubbish {
        let (sender, receiver) = channel::<Box<dyn Send>>();
        let counts = Arc::new(Counts::default());
        let freed = counts.clone();
        std::thread::Builder::new()
            .name("free".into())
            .spawn(move || {
                evenkeel_store::memory::register_thread();
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
