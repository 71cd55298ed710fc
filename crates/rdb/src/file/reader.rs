//! Reads a file: one thread cuts it into parts, other threads decode them.

use std::io::Read;

use super::batch::{Batch, extent, open_record};
use super::header::{HEADER_BYTES, Header};
use super::opcode;
use super::record::{Failure, Record};
use crate::decode::Decoder;
use crate::error::{Error, Reason};
use crate::item::Item;
use crate::kind::{self, Versions};
use crate::source::{Feed, Source};

/// Limits of the memory in use.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimits {
    /// Bytes per read, and the size of most batches: a larger record has a batch of its own.
    pub block: usize,
    /// Longest record in a batch, in bytes. A longer record is [`FilePart::Large`].
    pub whole_max: usize,
}

impl Default for ReadLimits {
    /// A block is a millisecond of work or two. With eight batches in progress, they hold at most 256 MiB.
    fn default() -> ReadLimits {
        ReadLimits { block: 1 << 20, whole_max: 32 << 20 }
    }
}

/// Length of the name of a job that imports slots.
const JOB_NAME_BYTES: usize = 40;

/// The parts of a file, in file order.
#[derive(Debug)]
pub enum FilePart {
    /// A named property of the file: `redis-ver`, `ctime`, `repl-id` and more. Readers ignore unknown names.
    Aux {
        name: Vec<u8>,
        value: Vec<u8>,
    },
    /// The code of a function library.
    Function(Vec<u8>),
    /// A module's data beside its values. The reader has skipped them, so a caller that goes on loses them.
    ModuleAux {
        module: String,
    },
    /// The number of the database that the next records belong to.
    Database(u64),
    /// The database's number of keys, and of keys that expire: a hint.
    Sizes {
        keys: u64,
        expiring: u64,
    },
    /// The same for one slot of a cluster: a hint.
    SlotSizes {
        slot: u64,
        keys: u64,
        expiring: u64,
    },
    /// Slots under import from another server. The file may have only a part of their keys.
    SlotImport {
        job: Vec<u8>,
        slots: Vec<Slots>,
    },
    Keys(Batch),
    /// A record too large for a batch: [`FileReader::large`] reads it. Otherwise the next call skips it.
    Large,
    /// The end of the RDB data. Bytes may follow: see [`FileReader::expect_no_more`].
    End(Checksum),
}

/// `first..=last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    pub first: u64,
    pub last: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    Right,
    /// The file has none, because of a setting or its age.
    Absent,
    /// The check was turned off.
    Unchecked,
}

/// Cuts a file into its parts. [`ReadLimits`] bounds the memory, except for single strings of a large value.
pub struct FileReader<R> {
    decoder: Decoder<Feed<R>>,
    header: Header,
    limits: ReadLimits,
    checks: bool,
    database: u64,
    /// The next record is too large for a batch, and the caller has not read it.
    large: bool,
    key: Vec<u8>,
    ended: bool,
}

impl<R: Read> FileReader<R> {
    /// Reads the header. `len`: the file's size in bytes, if known.
    pub fn new(inner: R, len: Option<u64>, limits: ReadLimits) -> Result<FileReader<R>, Failure> {
        FileReader::of_versions(inner, len, limits, Versions::Known)
    }

    /// Reads the header like [`FileReader::new`]; `versions` decides which versions of the format are
    /// accepted.
    pub fn of_versions(
        inner: R,
        len: Option<u64>,
        limits: ReadLimits,
        versions: Versions,
    ) -> Result<FileReader<R>, Failure> {
        let mut feed = Feed::new(inner, len);
        if !feed.reach(HEADER_BYTES)? {
            let reason = if is_start_of_header(feed.ahead()) { Reason::Truncated } else { Reason::NoRdbFile };
            return Err(Error::new(feed.ahead().len() as u64, reason).into());
        }
        feed.take(HEADER_BYTES as u64)?;
        let header = Header::parse(feed.taken().first_chunk().expect("so many were taken"), versions)?;
        Ok(FileReader {
            decoder: Decoder::new(feed, header.version),
            header,
            limits,
            checks: true,
            database: 0,
            large: false,
            key: Vec::new(),
            ended: false,
        })
    }

    /// Turns off the check of the checksum (`rdbchecksum no`).
    pub fn without_checksum(mut self) -> FileReader<R> {
        self.checks = false;
        self
    }

    /// As [`Decoder::leave_duplicates`], for large records.
    pub fn leave_duplicates(&mut self) {
        self.decoder.leave_duplicates();
    }

    pub fn header(&self) -> Header {
        self.header
    }

    /// The database of the next record.
    pub fn database(&self) -> u64 {
        self.database
    }

    /// Number of bytes of the file handed out or skipped.
    pub fn position(&mut self) -> u64 {
        self.decoder.source().position()
    }

    /// Returns the next part; `None` behind [`FilePart::End`].
    #[allow(clippy::should_implement_trait, reason = "it fails, and goes on no further")]
    pub fn next(&mut self) -> Result<Option<FilePart>, Failure> {
        if std::mem::take(&mut self.large) {
            self.pass_large()?;
        }
        if self.ended {
            return Ok(None);
        }
        let at = self.position();
        let feed = self.decoder.source();
        feed.reach(1)?;
        match feed.ahead().first() {
            None => Err(Error::new(at, Reason::Truncated).into()),
            Some(byte) if opcode::starts_record(*byte) => self.records().map(Some),
            Some(_) => self.between().map(Some),
        }
    }

    /// Returns the record that the last part announced as large.
    ///
    /// The caller must read its value to the end, since the file goes on from there.
    pub fn large(&mut self) -> Result<Option<Record<'_, Feed<R>>>, Failure> {
        match std::mem::take(&mut self.large) {
            true => Ok(Some(open_record(&mut self.decoder, &mut self.key)?)),
            false => Ok(None),
        }
    }

    /// Returns an error in the large record's value together with its key.
    pub fn failure(&self, error: Error) -> Failure {
        Failure::new(error, self.database, &self.key)
    }

    /// Fails if bytes follow the end, as in an append-only file that begins with an RDB file.
    ///
    /// For any other file the caller must check this: a damaged byte may read as an end before zeros that
    /// mean "no checksum".
    pub fn expect_no_more(&mut self) -> Result<(), Failure> {
        let at = self.position();
        match self.decoder.source().reach(1)? {
            true => Err(Error::new(at, Reason::Trailing).into()),
            false => Ok(()),
        }
    }

    /// Returns the bytes read beyond the end, and the reader behind them.
    pub fn into_rest(self) -> (Vec<u8>, R) {
        self.decoder.into_source().into_rest()
    }

    /// Takes back the memory of a decoded batch: new memory for each batch costs more than reading.
    pub fn reuse(&mut self, batch: Batch) {
        self.decoder.source().give_back(batch.bytes);
    }

    fn pass_large(&mut self) -> Result<(), Failure> {
        let record = open_record(&mut self.decoder, &mut self.key)?;
        record.pass().map_err(|error| self.failure(error))
    }

    /// Returns the whole records of a block, or of several blocks if the first record needs them.
    ///
    /// Each attempt doubles the block, so the repeated scans add up to at most twice the bytes. A block that
    /// is at least half full is not filled up first: if few records stand between sizes of slots, the rest of
    /// the block would be moved again and again.
    fn records(&mut self) -> Result<FilePart, Failure> {
        let (at, mut len) = (self.position(), self.limits.block);
        let mut least = len / 2;
        loop {
            let feed = self.decoder.source();
            let more = feed.refill(least, len)?;
            let found = extent(feed.ahead(), at, self.header.version, self.database);
            if found.keys > 0 {
                let (database, version) = (self.database, self.header.version);
                let bytes = feed.detach(found.bytes);
                return Ok(FilePart::Keys(Batch { database, keys: found.keys, at, version, bytes }));
            }
            let failure = found.end.expect("it starts as a record, and is none");
            if failure.error.reason != Reason::Truncated {
                return Err(failure);
            }
            if !more || feed.ahead().len() >= self.limits.whole_max {
                self.large = true; // or an incomplete last record, whose error appears on reading
                return Ok(FilePart::Large);
            }
            if feed.ahead().len() >= len {
                len = len.saturating_mul(2).min(self.limits.whole_max);
            }
            least = len;
        }
    }

    /// Reads an item between records.
    fn between(&mut self) -> Result<FilePart, Failure> {
        let at = self.position();
        let decoder = &mut self.decoder;
        Ok(match decoder.byte()? {
            opcode::AUX => FilePart::Aux { name: string(decoder)?, value: string(decoder)? },
            opcode::FUNCTION_2 => FilePart::Function(string(decoder)?),
            opcode::DATABASE => {
                self.database = decoder.length()?;
                FilePart::Database(self.database)
            }
            opcode::SIZES => FilePart::Sizes { keys: decoder.length()?, expiring: decoder.length()? },
            opcode::SLOT_INFO => FilePart::SlotSizes {
                slot: decoder.length()?,
                keys: decoder.length()?,
                expiring: decoder.length()?,
            },
            opcode::SLOT_IMPORT if kind::has_slot_imports(self.header.version) => {
                let job = string(decoder)?;
                if job.len() != JOB_NAME_BYTES {
                    return Err(Error::new(at, Reason::JobName).into());
                }
                FilePart::SlotImport { job, slots: slots(decoder)? }
            }
            opcode::MODULE_AUX => {
                let module = module_name(decoder.length()?);
                decoder.length()?; // the kind of the next item: a number
                decoder.length()?; // the number: before or behind the keys
                decoder.pass_module_data()?;
                FilePart::ModuleAux { module }
            }
            opcode::END => self.end()?,
            other if kind::is_foreign(self.header.version) => {
                let version = self.header.version;
                return Err(Error::new(at, Reason::ForeignOpcode { opcode: other, version }).into());
            }
            other => return Err(Error::new(at, Reason::UnknownOpcode(other)).into()),
        })
    }

    fn end(&mut self) -> Result<FilePart, Failure> {
        self.ended = true;
        if !self.header.has_checksum() {
            return Ok(FilePart::End(Checksum::Absent));
        }
        let summed = self.decoder.source().checksum();
        let at = self.position();
        match u64::from_le_bytes(self.decoder.fixed()?) {
            0 => Ok(FilePart::End(Checksum::Absent)),
            _ if !self.checks => Ok(FilePart::End(Checksum::Unchecked)),
            stored if stored == summed => Ok(FilePart::End(Checksum::Right)),
            _ => Err(Error::new(at, Reason::Checksum).into()),
        }
    }
}

fn is_start_of_header(bytes: &[u8]) -> bool {
    [b"REDIS", &b"VALKEY"[..]].iter().any(|magic| bytes.iter().zip(*magic).all(|(a, b)| a == b))
}

fn string<S: Source>(decoder: &mut Decoder<S>) -> Result<Vec<u8>, Error> {
    decoder.string().map(Item::to_vec)
}

fn slots<S: Source>(decoder: &mut Decoder<S>) -> Result<Vec<Slots>, Error> {
    let mut all = Vec::new();
    for _ in 0..decoder.length()? {
        all.push(Slots { first: decoder.length()?, last: decoder.length()? });
    }
    Ok(all)
}

/// A module's number holds nine letters of six bits, highest first, above ten bits of a version.
fn module_name(number: u64) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    (0..9).map(|index| char::from(LETTERS[(number >> (58 - 6 * index)) as usize & 63])).collect()
}
