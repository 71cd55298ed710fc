//! Writes entries in their stored form: as records of an RDB file, or as commands.
//!
//! A small value is copied under its slot's lock and encoded afterwards; a large value is shared. So the lock
//! is held for a copy only; compression, checksums and the disk come later. Encoded bytes leave in pieces,
//! also in the middle of a value: memory use does not depend on the size of a value.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use evenkeel_rdb::file::{Access, KeyMetadata};
use evenkeel_store::evict::{idle_ms, lfu_counter};
use evenkeel_store::snapshot::Sink;
use evenkeel_store::{Millis, SlotSet, View, memory};

use super::Progress;
use crate::position::Position;
use evenkeel_command::value_codec::Value;
use evenkeel_config::{Policy, Settings};

mod commands;
mod records;

pub use commands::Commands;
pub use records::Records;

/// Bytes that are handed to the file at once.
const PIECE: usize = 64 * 1024;

/// Keys, and keys with a deadline, of each database. `None`: the database is empty.
pub type Sizes = Vec<Option<(u64, u64)>>;

/// A stored form, and its destination. After an error, further calls are ignored.
pub trait Form {
    /// The result of a complete snapshot.
    type Whole;

    /// The slots whose keys it takes; `None`: all.
    fn slots(&self) -> Option<&SlotSet> {
        None
    }

    /// Writes the position in a replication stream. Called before all other methods.
    fn position(&mut self, position: &Position) -> io::Result<()>;

    /// Writes the code of a function library. Called before all keys.
    fn library(&mut self, code: &[u8]) -> io::Result<()>;

    /// Announces the sizes of the databases. Called before all keys.
    fn begin(&mut self, sizes: Sizes);

    fn key(&mut self, db: u32, key: &[u8], metadata: &KeyMetadata, value: Taken<'_>);

    /// The first error, if any. The rest of the snapshot is lost then.
    fn error(&mut self) -> Option<&io::Error>;

    /// Bytes written to the file so far.
    fn written(&mut self) -> u64;

    fn finish(self) -> io::Result<Self::Whole>;
}

/// A value that no thread changes any more.
#[derive(Clone, Copy)]
pub enum Taken<'v> {
    /// A string.
    Flat(&'v [u8]),
    Other(&'v Value),
}

/// Copies or shares entries under their locks, and encodes them into a [`Form`].
pub(super) struct Recorder<'a, F: Form> {
    form: F,
    settings: Arc<Settings>,
    progress: &'a Progress,
    /// Whether the snapshot has been cancelled: further keys are skipped, and the caller checks this flag
    /// when it is finished.
    cancelled: &'a AtomicBool,
    now_ms: Millis,
    /// Entries shared under a lock and not encoded yet, and the copied bytes they refer to.
    shared: VecDeque<Shared>,
    bytes: Vec<u8>,
}

struct Shared {
    db: u32,
    key: Range<usize>,
    metadata: KeyMetadata,
    value: Content,
}

enum Content {
    /// A string, copied.
    Flat(Range<usize>),
    Other(Value),
}

impl<'a, F: Form> Recorder<'a, F> {
    pub(super) fn new(
        mut form: F,
        settings: Arc<Settings>,
        (progress, cancelled): (&'a Progress, &'a AtomicBool),
        now_ms: Millis,
        sizes: Sizes,
    ) -> Recorder<'a, F> {
        form.begin(sizes);
        let (shared, bytes) = <(VecDeque<Shared>, Vec<u8>)>::default();
        Recorder { form, settings, progress, cancelled, now_ms, shared, bytes }
    }

    /// Encodes shared entries up to and including the first large value, which takes a while. Returns whether
    /// more are left.
    pub(super) fn encode(&mut self) -> bool {
        memory::uncounted(|| self.encode_shared());
        self.progress.bytes.store(self.form.written(), Relaxed);
        !self.shared.is_empty()
    }

    fn encode_shared(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        while let Some(Shared { db, key, metadata, value }) = self.shared.pop_front() {
            let key = &bytes[key];
            match &value {
                Content::Flat(range) => self.put(db, key, &metadata, Taken::Flat(&bytes[range.clone()])),
                Content::Other(value) => {
                    self.put(db, key, &metadata, Taken::Other(value));
                    break;
                }
            }
        }
        self.bytes = bytes;
        if self.shared.is_empty() {
            self.bytes.clear();
        }
    }

    /// The first error, if any. The rest of the snapshot is lost then.
    pub(super) fn error(&mut self) -> Option<&io::Error> {
        self.form.error()
    }

    /// Completes the file once all entries are in it.
    pub(super) fn finish(self) -> io::Result<F::Whole> {
        debug_assert!(self.shared.is_empty(), "all has been encoded");
        self.form.finish()
    }

    fn put(&mut self, db: u32, key: &[u8], metadata: &KeyMetadata, value: Taken<'_>) {
        // A flushed database arrives in a single call.
        if self.cancelled.load(Relaxed) || self.form.error().is_some() {
            return;
        }
        self.form.key(db, key, metadata, value);
        self.progress.keys.fetch_add(1, Relaxed);
    }

    fn metadata(&self, view: View<'_>) -> KeyMetadata {
        use Policy::{AllkeysLfu, AllkeysLrm, AllkeysLru, VolatileLfu, VolatileLrm, VolatileLru};
        let (access, settings) = (view.access(), &self.settings);
        let access = match settings.maxmemory_policy {
            AllkeysLru | VolatileLru | AllkeysLrm | VolatileLrm => {
                Access::Idle(idle_ms(access, self.now_ms) / 1000)
            }
            AllkeysLfu | VolatileLfu => {
                Access::Frequency(lfu_counter(access, self.now_ms, settings.lfu_decay_time) as u8)
            }
            _ => Access::Unknown,
        };
        KeyMetadata { expires: view.deadline(), access }
    }

    fn copy(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }
}

impl<F: Form> Sink for Recorder<'_, F> {
    fn take(&mut self, db: u32, view: View<'_>) {
        memory::uncounted(|| self.write(db, view));
    }

    fn share(&mut self, db: u32, view: View<'_>) -> usize {
        memory::uncounted(|| self.put_aside(db, view))
    }
}

impl<F: Form> Recorder<'_, F> {
    fn write(&mut self, db: u32, view: View<'_>) {
        let metadata = self.metadata(view);
        match view.flat() {
            Some(bytes) => self.put(db, view.key(), &metadata, Taken::Flat(bytes)),
            None => self.put(db, view.key(), &metadata, Taken::Other(&Value::of(view))),
        }
    }

    fn put_aside(&mut self, db: u32, view: View<'_>) -> usize {
        let (before, metadata) = (self.bytes.len(), self.metadata(view));
        let key = self.copy(view.key());
        let value = match view.flat() {
            Some(bytes) => Content::Flat(self.copy(bytes)),
            None => Content::Other(Value::of(view)),
        };
        self.shared.push_back(Shared { db, key, metadata, value });
        self.bytes.len() - before
    }
}
