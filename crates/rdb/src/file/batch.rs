//! Batches of whole records, cut out of a file, that any thread can decode.

use super::opcode;
use super::record::{Failure, KeyMetadata, Record};
use crate::decode::Decoder;
use crate::error::{Error, Reason};
use crate::item::Item;
use crate::source::{Slice, Source};

/// Consecutive records of one database. Their extents are known, their content is not decoded yet.
#[derive(Clone, Debug)]
pub struct Batch {
    pub database: u64,
    /// Number of records.
    pub keys: u64,
    /// Offset of the first record in the file.
    pub at: u64,
    /// The file's version.
    pub version: u16,
    pub bytes: Vec<u8>,
}

impl Batch {
    pub fn records(&self) -> Records<'_> {
        let decoder = Decoder::new(Slice::at(&self.bytes, self.at), self.version);
        Records { batch: self, decoder, at: self.at, key: Vec::new() }
    }
}

/// Reads the records of a batch.
pub struct Records<'b> {
    batch: &'b Batch,
    decoder: Decoder<Slice<'b>>,
    /// Offset of the last record in the file.
    at: u64,
    key: Vec<u8>,
}

impl<'b> Records<'b> {
    /// Returns the next record; `None` behind the last.
    #[allow(clippy::should_implement_trait, reason = "it lends, which iterators cannot")]
    pub fn next(&mut self) -> Result<Option<Record<'_, Slice<'b>>>, Failure> {
        if self.decoder.source().left() == Some(0) {
            return Ok(None);
        }
        self.at = self.position();
        open_record(&mut self.decoder, &mut self.key).map(Some).map_err(Failure::from)
    }

    /// Returns an error in the record's value together with the key.
    pub fn failure(&self, error: Error) -> Failure {
        Failure::new(error, self.batch.database, &self.key)
    }

    /// Skips the last record, whose value could not be read to its end.
    pub fn pass_failed(&mut self) -> Result<(), Failure> {
        let start = (self.at - self.batch.at) as usize; // it lies in the batch
        *self.decoder.source() = Slice::at(&self.batch.bytes[start..], self.at);
        pass_record(&mut self.decoder).map_err(|error| self.failure(error))
    }

    /// Offset in the file of the next byte.
    pub fn position(&mut self) -> u64 {
        self.decoder.source().position()
    }

    /// As [`Decoder::leave_duplicates`].
    pub fn leave_duplicates(&mut self) {
        self.decoder.leave_duplicates();
    }
}

/// Reads the start of a record, up to its value.
pub(super) fn open_record<'r, S: Source>(
    decoder: &'r mut Decoder<S>,
    key: &'r mut Vec<u8>,
) -> Result<Record<'r, S>, Error> {
    let at = decoder.source().position();
    let (metadata, kind) = KeyMetadata::read(decoder)?;
    key.clear();
    match decoder.string()? {
        Item::Bytes(bytes) => key.extend_from_slice(bytes),
        number => key.extend_from_slice(number.bytes(&mut Default::default())),
    }
    Ok(Record { key, metadata, kind, at, decoder })
}

/// The extent of whole records.
pub(super) struct Extent {
    pub(super) bytes: usize,
    pub(super) keys: u64,
    /// The reason why the extent ends; `None` before an item of another kind, or at the end of the bytes.
    pub(super) end: Option<Failure>,
}

/// Measures the records that `bytes` start with. They lie at `at` in a file of this version.
pub(super) fn extent(bytes: &[u8], at: u64, version: u16, database: u64) -> Extent {
    let mut decoder = Decoder::new(Slice::at(bytes, at), version);
    let mut found = Extent { bytes: 0, keys: 0, end: None };
    while bytes.get(found.bytes).is_some_and(|byte| opcode::starts_record(*byte)) {
        if let Err(error) = pass_record(&mut decoder) {
            let at = found.bytes;
            found.end = Some(blamed(error, &bytes[at..], version, database));
            break;
        }
        found.bytes = (decoder.source().position() - at) as usize;
        found.keys += 1;
    }
    found
}

fn pass_record(decoder: &mut Decoder<Slice<'_>>) -> Result<(), Error> {
    let (_, kind) = KeyMetadata::read(decoder)?;
    decoder.pass_string()?;
    decoder.pass_object_of(kind)
}

/// Attributes an error in the record that `bytes` start with to its key, if that can be read.
fn blamed(error: Error, bytes: &[u8], version: u16, database: u64) -> Failure {
    if error.reason == Reason::Truncated {
        return error.into(); // most often the end of the bytes read so far: no caller looks at it
    }
    let mut key = Vec::new();
    match open_record(&mut Decoder::new(Slice::new(bytes), version), &mut key) {
        Ok(_) => Failure::new(error, database, &key),
        Err(_) => error.into(),
    }
}
