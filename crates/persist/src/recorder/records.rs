//! Keys as records of an RDB file.

use std::io;
use std::sync::Arc;

use evenkeel_rdb::file::{FileWriter, KeyMetadata, Replication};
use evenkeel_rdb::{Encoder, Item, Out, Version};

use super::{Form, PIECE, Sizes, Taken};
use crate::position::Position;
use evenkeel_command::value_codec;
use evenkeel_config::Settings;

/// Writes each key as a record of an RDB file.
pub struct Records<W: io::Write> {
    encoder: Encoder<Body<W>>,
    settings: Arc<Settings>,
    /// The database of the previous record.
    db: Option<u32>,
    /// The sizes of each database, written before its first record.
    sizes: Sizes,
}

/// Gathers encoded bytes for the file. After an error, further bytes are dropped.
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

    /// Calls `f` with the file, once all bytes encoded so far are in it.
    fn on_file(&mut self, f: impl FnOnce(&mut FileWriter<W>) -> io::Result<()>) {
        self.flush();
        if self.error.is_none() {
            self.error = f(&mut self.file).err();
        }
    }
}

impl<W: io::Write> Records<W> {
    /// Continues in a file whose header has been written.
    pub fn new(file: FileWriter<W>, settings: Arc<Settings>) -> Records<W> {
        let body = Body { file, piece: Vec::with_capacity(PIECE + PIECE / 4), error: None };
        let mut encoder = Encoder::new(body, Version::V10);
        if !settings.rdbcompression {
            encoder = encoder.without_compression();
        }
        Records { encoder, settings, db: None, sizes: Sizes::new() }
    }

    fn select(&mut self, db: u32) {
        if self.db == Some(db) {
            return;
        }
        self.db = Some(db);
        let sizes = self.sizes.get_mut(db as usize).and_then(Option::take);
        self.encoder.out().on_file(|file| {
            file.database(u64::from(db))?;
            sizes.map_or(Ok(()), |(keys, expiring)| file.sizes(keys, expiring))
        });
    }
}

impl<W: io::Write> Form for Records<W> {
    type Whole = FileWriter<W>;

    fn position(&mut self, Position { id, offset, db }: &Position) -> io::Result<()> {
        let database = i64::from(*db);
        self.encoder.out().file.replication(&Replication { database, id, offset: *offset })
    }

    fn library(&mut self, code: &[u8]) -> io::Result<()> {
        self.encoder.out().file.function(code)
    }

    fn begin(&mut self, sizes: Sizes) {
        self.sizes = sizes;
    }

    fn key(&mut self, db: u32, key: &[u8], metadata: &KeyMetadata, value: Taken<'_>) {
        self.select(db);
        self.encoder.record(Item::Bytes(key), metadata);
        match value {
            Taken::Flat(bytes) => self.encoder.string(Item::Bytes(bytes)),
            Taken::Other(value) => value_codec::record(value, &self.settings, &mut self.encoder),
        }
    }

    fn error(&mut self) -> Option<&io::Error> {
        self.encoder.out().error.as_ref()
    }

    fn written(&mut self) -> u64 {
        self.encoder.out().file.written()
    }

    fn finish(self) -> io::Result<FileWriter<W>> {
        let highest = self.encoder.highest();
        let mut body = self.encoder.into_out();
        body.on_file(|file| file.append(&[], highest));
        body.error.map_or(Ok(body.file), Err)
    }
}
