//! Writes a file: one thread puts together records that other threads have encoded.
//!
//! The header names a version, and is written before the version that the content needs is known. So the
//! header can be corrected at the end: the checksums of header and body are computed apart and joined for the
//! final header, and the owner of the file replaces its first nine bytes. A stream to a socket cannot be
//! corrected: there the caller names a sufficient version beforehand.

use std::io::{self, Write};

use super::header::{HEADER_BYTES, Header};
use super::opcode;
use crate::Version;
use crate::checksum::{Sum, checksum, joined};
use crate::encode::Encoder;
use crate::item::Item;

/// The file's origin, for its first fields.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The version of Redis that the server is compatible with.
    pub redis_version: &'a str,
    /// Seconds since 1970.
    pub created: u64,
    pub used_memory: u64,
    /// True for the base file of an AOF.
    pub aof_base: bool,
    pub replication: Option<Replication<'a>>,
}

/// A point of a replication stream, from which a replica may go on.
#[derive(Clone, Copy, Debug)]
pub struct Replication<'a> {
    /// The database selected in the stream.
    pub database: i64,
    pub id: &'a str,
    pub offset: u64,
}

/// Writes records in sequence, with the items between them, and computes the checksum.
///
/// Small items are small writes: the output should have a buffer.
pub struct FileWriter<W> {
    out: W,
    version: Version,
    highest: Version,
    /// Checksum of the bytes behind the header; `None` if the file gets none.
    sum: Option<Sum>,
    /// Number of bytes behind the header.
    len: u64,
    encoder: Encoder<Vec<u8>>,
    keeps_header: bool,
}

/// A finished file.
#[derive(Debug)]
pub struct Finished<W> {
    pub out: W,
    /// The file's length in bytes.
    pub len: u64,
    /// The version that the correct header names.
    pub version: Version,
    /// The correct first nine bytes, if they differ: until they are replaced, the file is invalid.
    pub header: Option<[u8; HEADER_BYTES]>,
}

impl<W: Write> FileWriter<W> {
    /// Writes the header. `version` is the lowest version that a reader must know; `checksum` is
    /// `rdbchecksum`.
    pub fn new(mut out: W, version: Version, checksum: bool) -> io::Result<FileWriter<W>> {
        out.write_all(&Header::of(version))?;
        let (sum, encoder) = (checksum.then(Sum::new), Encoder::new(Vec::new(), version));
        Ok(FileWriter { out, version, highest: version, sum, len: 0, encoder, keeps_header: false })
    }

    /// Leaves the header as it is, whatever the content needs: it is on its way to a reader, which knows the
    /// types that it will get or refuses them.
    pub fn keep_header(mut self) -> FileWriter<W> {
        self.keeps_header = true;
        self
    }

    /// Number of bytes written so far.
    pub fn written(&self) -> u64 {
        HEADER_BYTES as u64 + self.len
    }

    pub fn origin(&mut self, origin: &Origin<'_>) -> io::Result<()> {
        let number = |number: u64| Item::Int(i64::try_from(number).unwrap_or(i64::MAX));
        self.aux(b"redis-ver", Item::Bytes(origin.redis_version.as_bytes()))?;
        self.aux(b"redis-bits", Item::Int(64))?;
        self.aux(b"ctime", number(origin.created))?;
        self.aux(b"used-mem", number(origin.used_memory))?;
        if let Some(replication) = &origin.replication {
            self.replication(replication)?;
        }
        self.aux(b"aof-base", Item::Int(i64::from(origin.aof_base)))
    }

    /// Writes the replication point, if it is not known before the file is begun.
    pub fn replication(&mut self, point: &Replication<'_>) -> io::Result<()> {
        self.aux(b"repl-stream-db", Item::Int(point.database))?;
        self.aux(b"repl-id", Item::Bytes(point.id.as_bytes()))?;
        self.aux(b"repl-offset", Item::Int(i64::try_from(point.offset).unwrap_or(i64::MAX)))
    }

    /// Writes a named property, which readers may ignore.
    pub fn aux(&mut self, name: &[u8], value: Item<'_>) -> io::Result<()> {
        self.small(|encoder| {
            encoder.put_byte(opcode::AUX);
            encoder.put_string(Item::Bytes(name));
            encoder.put_string(value);
        })
    }

    /// Writes the code of a function library.
    pub fn function(&mut self, code: &[u8]) -> io::Result<()> {
        self.small(|encoder| {
            encoder.put_byte(opcode::FUNCTION_2);
            encoder.put_string(Item::Bytes(code));
        })
    }

    /// Begins the records of this database.
    pub fn database(&mut self, number: u64) -> io::Result<()> {
        self.small(|encoder| {
            encoder.put_byte(opcode::DATABASE);
            encoder.put_length(number);
        })
    }

    /// Writes the database's number of keys and of keys that expire, a hint for the reader's allocations.
    pub fn sizes(&mut self, keys: u64, expiring: u64) -> io::Result<()> {
        self.small(|encoder| {
            encoder.put_byte(opcode::SIZES);
            encoder.put_length(keys);
            encoder.put_length(expiring);
        })
    }

    /// Appends whole records of the current database. `highest`: [`Encoder::highest`] of their encoder.
    pub fn append(&mut self, records: &[u8], highest: Version) -> io::Result<()> {
        self.highest = self.highest.max(highest);
        self.len += records.len() as u64;
        if let Some(sum) = &mut self.sum {
            sum.add(records);
        }
        self.out.write_all(records)
    }

    /// Writes the end, and flushes.
    ///
    /// If records needed a higher version than the file was begun with, the caller must replace the header.
    pub fn finish(mut self) -> io::Result<Finished<W>> {
        self.small(|encoder| encoder.put_byte(opcode::END))?;
        if self.keeps_header {
            self.highest = self.version;
        }
        let header = Header::of(self.highest);
        let sum = self.sum.as_ref().map_or(0, |sum| joined(checksum(&header), sum.value(), self.len));
        self.out.write_all(&sum.to_le_bytes())?;
        self.out.flush()?;
        let len = self.written() + size_of_val(&sum) as u64;
        let header = (self.highest != self.version).then_some(header);
        Ok(Finished { out: self.out, len, version: self.highest, header })
    }

    fn small(&mut self, put: impl FnOnce(&mut Encoder<Vec<u8>>)) -> io::Result<()> {
        put(&mut self.encoder);
        let bytes = std::mem::take(self.encoder.out());
        self.append(&bytes, Version::V10)
    }
}
