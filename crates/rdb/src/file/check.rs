//! Checks a file: lists its content, and finds the offset where it becomes invalid.
//!
//! Every value is decoded and dropped. A damaged value does not end the check as long as its extent is known.
//! So the report tells one damaged key from a file that is lost from some byte on.

use std::collections::BTreeMap;
use std::io::Read;

use super::batch::Batch;
use super::header::Header;
use super::reader::{Checksum, FilePart, FileReader, ReadLimits};
use super::record::{Failure, KeyMetadata};
use crate::decode::Object;
use crate::error::Error;
use crate::kind::Versions;
use crate::source::Source;

/// The content of a file, as far as it can be read.
#[derive(Clone, Debug, Default)]
pub struct FileReport {
    /// `None` if the file does not even begin like an RDB file of a known version.
    pub header: Option<Header>,
    pub aux: Vec<(Vec<u8>, Vec<u8>)>,
    pub databases: BTreeMap<u64, Database>,
    pub types: BTreeMap<Type, Tally>,
    /// The keys of each type in each database.
    pub kinds: BTreeMap<(u64, Type), Kind>,
    /// The code of each library.
    pub functions: Vec<Vec<u8>>,
    /// Modules with data in the file beside their values.
    pub modules: Vec<String>,
    /// `None` if the end was not reached.
    pub checksum: Option<Checksum>,
    /// The first fault. Everything before it is whole, unless it is the checksum: then any byte may be wrong.
    pub failure: Option<Failure>,
    /// Number of keys with damaged values.
    pub damaged: u64,
    /// Streams whose entries contradict the counters: the server corrects the counters when it loads the
    /// file.
    pub corrected: u64,
    /// Number of bytes that could be cut into parts. The bytes behind them are lost. If the end was reached
    /// and the failure is [`Trailing`](crate::Reason::Trailing), they are the rest of an append-only file.
    pub readable: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Database {
    /// Number of keys with readable values, and of keys among them that expire.
    pub keys: u64,
    pub expiring: u64,
    /// Number of keys that the file announces.
    pub announced: Option<u64>,
}

/// The keys of a type in a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kind {
    pub keys: u64,
    pub expiring: u64,
    /// As in [`Tally`].
    pub elements: u64,
}

/// All keys of a type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub keys: u64,
    /// Elements, members, fields, entries; of strings, bytes.
    pub elements: u64,
    /// Bytes in the file, keys included.
    pub bytes: u64,
    /// Size of the largest record in the file, in bytes.
    pub largest: u64,
    pub largest_key: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Type {
    String,
    List,
    Set,
    SortedSet,
    Hash,
    Stream,
    Array,
}

impl Type {
    /// The type's name as in TYPE.
    pub fn name(self) -> &'static str {
        match self {
            Type::String => "string",
            Type::List => "list",
            Type::Set => "set",
            Type::SortedSet => "zset",
            Type::Hash => "hash",
            Type::Stream => "stream",
            Type::Array => "array",
        }
    }
}

impl FileReport {
    /// Whether the file has no fault at all.
    pub fn is_sound(&self) -> bool {
        self.failure.is_none()
    }

    /// Number of announced keys that are missing or damaged. It is a lower bound: a lost part may have
    /// announced more.
    pub fn lost(&self) -> u64 {
        let missing =
            |database: &Database| database.announced.map_or(0, |all| all.saturating_sub(database.keys));
        let missing =
            self.databases.values().fold(0, |sum: u64, database| sum.saturating_add(missing(database)));
        missing.max(self.damaged)
    }

    pub fn keys(&self) -> u64 {
        self.databases.values().map(|database| database.keys).sum()
    }
}

/// Checks the file to its end, whatever its version. `len`: its size in bytes, if known.
pub fn check(file: impl Read, len: Option<u64>) -> FileReport {
    let mut report = FileReport::default();
    match FileReader::of_versions(file, len, ReadLimits::default(), Versions::Any) {
        Err(failure) => report.failure = Some(failure),
        Ok(mut reader) => {
            report.header = Some(reader.header());
            let walked = walk(&mut reader, &mut report).and_then(|()| reader.expect_no_more());
            if let Err(failure) = walked {
                report.failure.get_or_insert(failure);
            }
        }
    }
    report
}

fn walk<R: Read>(reader: &mut FileReader<R>, report: &mut FileReport) -> Result<(), Failure> {
    report.readable = reader.position();
    while let Some(part) = reader.next()? {
        match part {
            FilePart::Aux { name, value } => report.aux.push((name, value)),
            FilePart::Function(code) => report.functions.push(code),
            FilePart::ModuleAux { module } => report.modules.push(module),
            FilePart::Database(number) => _ = report.databases.entry(number).or_default(),
            FilePart::Sizes { keys, .. } => report.database(reader.database()).announced = Some(keys),
            FilePart::SlotSizes { .. } | FilePart::SlotImport { .. } => {}
            FilePart::Keys(batch) => report.batch(&batch)?,
            FilePart::Large => report.large(reader)?,
            FilePart::End(checksum) => report.checksum = Some(checksum),
        }
        report.readable = reader.position();
    }
    Ok(())
}

impl FileReport {
    fn database(&mut self, number: u64) -> &mut Database {
        self.databases.entry(number).or_default()
    }

    fn batch(&mut self, batch: &Batch) -> Result<(), Failure> {
        let mut records = batch.records();
        while let Some(record) = records.next()? {
            let (key, metadata, at) = (record.key.to_vec(), record.metadata, record.at);
            match record.object().and_then(drained) {
                Ok((kind, elements, is_corrected)) => {
                    self.corrected += u64::from(is_corrected);
                    let bytes = records.position() - at;
                    self.add(batch.database, key, metadata, kind, elements, bytes);
                }
                Err(error) => {
                    self.damaged += 1;
                    self.failure.get_or_insert(Failure::new(error, batch.database, &key));
                    records.pass_failed()?;
                }
            }
        }
        Ok(())
    }

    /// Checks a large record. After an error its end is unknown.
    fn large<R: Read>(&mut self, reader: &mut FileReader<R>) -> Result<(), Failure> {
        let database = reader.database();
        let Some(record) = reader.large()? else { return Ok(()) };
        let (key, metadata, at) = (record.key.to_vec(), record.metadata, record.at);
        let drained = record.object().and_then(drained);
        let (kind, elements, is_corrected) = drained.map_err(|error| {
            self.damaged += 1;
            Failure::new(error, database, &key)
        })?;
        self.corrected += u64::from(is_corrected);
        let bytes = reader.position() - at;
        self.add(database, key, metadata, kind, elements, bytes);
        Ok(())
    }

    fn add(
        &mut self,
        database: u64,
        key: Vec<u8>,
        metadata: KeyMetadata,
        kind: Type,
        elements: u64,
        bytes: u64,
    ) {
        let number = database;
        let database = self.database(number);
        database.keys += 1;
        database.expiring += u64::from(metadata.expires.is_some());
        let of_kind = self.kinds.entry((number, kind)).or_default();
        of_kind.keys += 1;
        of_kind.expiring += u64::from(metadata.expires.is_some());
        of_kind.elements += elements;
        let tally = self.types.entry(kind).or_default();
        tally.keys += 1;
        tally.elements += elements;
        tally.bytes += bytes;
        if bytes > tally.largest {
            (tally.largest, tally.largest_key) = (bytes, key);
        }
    }
}

/// Reads a value to its end. Returns its type, its number of elements, and whether it is a stream to be
/// corrected.
fn drained<S: Source>(object: Object<'_, S>) -> Result<(Type, u64, bool), Error> {
    let (mut count, mut is_corrected) = (0, false);
    let kind = match object {
        Object::String(string) => {
            count = string.bytes(&mut Default::default()).len() as u64;
            Type::String
        }
        Object::Long(mut string) => {
            count = string.len();
            while string.next()?.is_some() {}
            Type::String
        }
        Object::List(mut elements) => {
            while elements.next()?.is_some() {
                count += 1;
            }
            Type::List
        }
        Object::Set(mut members) => {
            while members.next()?.is_some() {
                count += 1;
            }
            Type::Set
        }
        Object::SortedSet(mut members) => {
            while members.next()?.is_some() {
                count += 1;
            }
            Type::SortedSet
        }
        Object::Hash(mut fields) => {
            while fields.next()?.is_some() {
                count += 1;
            }
            Type::Hash
        }
        Object::Stream(mut stream) => {
            stream.allow_corrections();
            let (info, mut groups) = stream.finish()?;
            is_corrected = groups.is_of_corrected();
            while groups.next()?.is_some() {}
            count = info.length;
            Type::Stream
        }
        Object::Array(mut elements) => {
            while elements.next()?.is_some() {
                count += 1;
            }
            Type::Array
        }
    };
    Ok((kind, count, is_corrected))
}
