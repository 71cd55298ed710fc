//! From entries to the records of an RDB file.
//!
//! Small values are copied under their slot's lock and encoded afterwards; of large ones, a share is taken. So the lock
//! is held for a copy, and compressing, checksums and the disk come later. What is encoded leaves in pieces, also in the
//! middle of a value: memory does not depend on the size of a value.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evenkeel_rdb::file::{About, Access, FileWriter};
use evenkeel_rdb::{Encoder, Item, Out, Version};
use evenkeel_store::evict::{idle_ms, lfu_counter};
use evenkeel_store::snapshot::Sink;
use evenkeel_store::{Millis, View, memory};

use super::Progress;
use crate::config::{Policy, Settings};
use crate::serial::{self, Value};

/// Bytes that are handed to the file at once.
const PIECE: usize = 64 * 1024;

/// See the module's text.
pub(super) struct Recorder<'a, W: io::Write> {
    encoder: Encoder<Body<W>>,
    settings: Arc<Settings>,
    progress: &'a Progress,
    now_ms: Millis,
    /// The database of the record before.
    db: Option<u32>,
    /// Keys and keys with a deadline of each database that was there, told once.
    sizes: Vec<Option<(u64, u64)>>,
    /// What was shared under a lock and is still to be encoded, and the bytes of it that were copied.
    shared: Vec<Shared>,
    bytes: Vec<u8>,
}

struct Shared {
    db: u32,
    key: Range<usize>,
    about: About,
    value: Content,
}

enum Content {
    /// A string, copied.
    Flat(Range<usize>),
    Other(Value),
}

/// Where encoded bytes gather before they go to the file. After an error, whatever comes is dropped.
struct Body<W: io::Write> {
    file: FileWriter<W>,
    piece: Vec<u8>,
    error: Option<io::Error>,
}

impl<W: io::Write> Out for Body<W> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.flush();
        }
    }
}

impl<W: io::Write> Body<W> {
    #[cold]
    fn flush(&mut self) {
        let piece = &self.piece;
        self.error = self.error.take().or_else(|| self.file.append(piece, Version::V10).err());
        self.piece.clear();
    }

    /// Does something with the file, once all that was encoded before is in it.
    fn on_file(&mut self, f: impl FnOnce(&mut FileWriter<W>) -> io::Result<()>) {
        self.flush();
        if self.error.is_none() {
            self.error = f(&mut self.file).err();
        }
    }
}

impl<'a, W: io::Write> Recorder<'a, W> {
    /// `sizes`: keys and keys with a deadline of each database.
    pub(super) fn new(
        file: FileWriter<W>,
        settings: Arc<Settings>,
        progress: &'a Progress,
        now_ms: Millis,
        sizes: Vec<Option<(u64, u64)>>,
    ) -> Recorder<'a, W> {
        let body = Body { file, piece: Vec::with_capacity(PIECE + PIECE / 4), error: None };
        let mut encoder = Encoder::new(body, Version::V10);
        if !settings.rdbcompression {
            encoder = encoder.without_compression();
        }
        let (shared, bytes) = (Vec::new(), Vec::new());
        Recorder { encoder, settings, progress, now_ms, db: None, sizes, shared, bytes }
    }

    /// Encodes what was shared.
    pub(super) fn encode(&mut self) {
        memory::aside(|| self.encode_shared());
    }

    fn encode_shared(&mut self) {
        let mut shared = std::mem::take(&mut self.shared);
        let bytes = std::mem::take(&mut self.bytes);
        for Shared { db, key, about, value } in shared.drain(..) {
            self.begin(db, &bytes[key], &about);
            match value {
                Content::Flat(range) => self.encoder.string(Item::Bytes(&bytes[range])),
                Content::Other(value) => serial::record(&value, &self.settings, &mut self.encoder),
            }
        }
        (self.shared, self.bytes) = (shared, bytes);
        self.bytes.clear();
        self.progress.bytes.store(self.encoder.out().file.written(), Relaxed);
    }

    /// What has gone wrong, if anything; the rest of the snapshot is lost then.
    pub(super) fn error(&mut self) -> Option<&io::Error> {
        self.encoder.out().error.as_ref()
    }

    /// Bytes that have gone to the file.
    pub(super) fn written(&mut self) -> u64 {
        self.encoder.out().file.written()
    }

    /// The file, once all is in it.
    pub(super) fn finish(mut self) -> io::Result<FileWriter<W>> {
        self.encode_shared();
        let highest = self.encoder.highest();
        let mut body = self.encoder.into_out();
        body.on_file(|file| file.append(&[], highest));
        body.error.map_or(Ok(body.file), Err)
    }

    fn begin(&mut self, db: u32, key: &[u8], about: &About) {
        if self.db != Some(db) {
            self.db = Some(db);
            let sizes = self.sizes.get_mut(db as usize).and_then(Option::take);
            self.encoder.out().on_file(|file| {
                file.database(u64::from(db))?;
                sizes.map_or(Ok(()), |(keys, expiring)| file.sizes(keys, expiring))
            });
        }
        self.encoder.record(Item::Bytes(key), about);
        self.progress.keys.fetch_add(1, Relaxed);
    }

    fn about(&self, view: View<'_>) -> About {
        use Policy::{AllkeysLfu, AllkeysLru, VolatileLfu, VolatileLru};
        let (access, settings) = (view.access(), &self.settings);
        let access = match settings.maxmemory_policy {
            AllkeysLru | VolatileLru => Access::Idle(idle_ms(access, self.now_ms) / 1000),
            AllkeysLfu | VolatileLfu => {
                Access::Frequency(lfu_counter(access, self.now_ms, settings.lfu_decay_time) as u8)
            }
            _ => Access::Unknown,
        };
        About { expires: view.deadline(), access }
    }

    fn copy(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }
}

impl<W: io::Write> Sink for Recorder<'_, W> {
    fn take(&mut self, db: u32, view: View<'_>) {
        memory::aside(|| self.write(db, view));
    }

    fn share(&mut self, db: u32, view: View<'_>) -> usize {
        memory::aside(|| self.put_aside(db, view))
    }
}

impl<W: io::Write> Recorder<'_, W> {
    fn write(&mut self, db: u32, view: View<'_>) {
        let about = self.about(view);
        self.begin(db, view.key(), &about);
        match view.flat() {
            Some(bytes) => self.encoder.string(Item::Bytes(bytes)),
            None => serial::record(&Value::of(view), &self.settings, &mut self.encoder),
        }
    }

    fn put_aside(&mut self, db: u32, view: View<'_>) -> usize {
        let (before, about) = (self.bytes.len(), self.about(view));
        let key = self.copy(view.key());
        let value = match view.flat() {
            Some(bytes) => Content::Flat(self.copy(bytes)),
            None => Content::Other(Value::of(view)),
        };
        self.shared.push(Shared { db, key, about, value });
        self.bytes.len() - before
    }
}
