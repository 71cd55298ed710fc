//! Writing a file: one thread puts together what others have encoded.
//!
//! The header names a version, and stands before all else, when nobody knows yet which version the content will need.
//! So it can be corrected at the end: the checksum of header and body are summed up apart and joined for the header
//! that is right, and whoever holds the file replaces its first nine bytes. What goes to a socket cannot be corrected:
//! there the caller says a version that will do.

use std::io::{self, Write};

use super::header::{HEADER_BYTES, Header};
use super::opcode;
use crate::Version;
use crate::checksum::{Sum, checksum, joined};
use crate::encode::Encoder;
use crate::item::Item;

/// Where a file comes from, as its first lines say.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The version of Redis that the server stands for.
    pub redis_version: &'a str,
    /// Seconds since 1970.
    pub created: u64,
    pub used_memory: u64,
    /// True for the base file of an AOF.
    pub aof_base: bool,
    pub replication: Option<Replication<'a>>,
}

/// Which point of a replication stream the file is at, so that a replica may go on from there.
#[derive(Clone, Copy, Debug)]
pub struct Replication<'a> {
    /// The database that is selected in the stream.
    pub database: i64,
    pub id: &'a str,
    pub offset: u64,
}

/// Puts records behind each other, with what stands between them, and sums them up.
///
/// Small parts are passed on as small writes: a buffer is the output's business.
pub struct FileWriter<W> {
    out: W,
    version: Version,
    highest: Version,
    /// Of what stands behind the header; `None`: no checksum is wanted.
    sum: Option<Sum>,
    /// Bytes behind the header.
    len: u64,
    encoder: Encoder<Vec<u8>>,
}

/// A file that has been written.
#[derive(Debug)]
pub struct Finished<W> {
    pub out: W,
    /// All its bytes.
    pub len: u64,
    /// What its header says when it is right.
    pub version: Version,
    /// What its first nine bytes must be replaced by: until then it is none.
    pub header: Option<[u8; HEADER_BYTES]>,
}

impl<W: Write> FileWriter<W> {
    /// Writes the header. `version` is the lowest that its reader must know; `checksum` is `rdbchecksum`.
    pub fn new(mut out: W, version: Version, checksum: bool) -> io::Result<FileWriter<W>> {
        out.write_all(&Header::of(version))?;
        let (sum, encoder) = (checksum.then(Sum::new), Encoder::new(Vec::new(), version));
        Ok(FileWriter { out, version, highest: version, sum, len: 0, encoder })
    }

    /// Bytes so far.
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

    /// Which point of a replication stream the file is at, where that is not known before the file is begun.
    pub fn replication(&mut self, point: &Replication<'_>) -> io::Result<()> {
        self.aux(b"repl-stream-db", Item::Int(point.database))?;
        self.aux(b"repl-id", Item::Bytes(point.id.as_bytes()))?;
        self.aux(b"repl-offset", Item::Int(i64::try_from(point.offset).unwrap_or(i64::MAX)))
    }

    /// A fact that readers may ignore.
    pub fn aux(&mut self, name: &[u8], value: Item<'_>) -> io::Result<()> {
        self.small(|encoder| {
            encoder.put_byte(opcode::AUX);
            encoder.put_string(Item::Bytes(name));
            encoder.put_string(value);
        })
    }

    /// The code of a function library.
    pub fn function(&mut self, code: &[u8]) -> io::Result<()> {
        self.small(|encoder| {
            encoder.put_byte(opcode::FUNCTION_2);
            encoder.put_string(Item::Bytes(code));
        })
    }

    /// What comes next is of this database.
    pub fn database(&mut self, number: u64) -> io::Result<()> {
        self.small(|encoder| {
            encoder.put_byte(opcode::DATABASE);
            encoder.put_length(number);
        })
    }

    /// How many keys the database has, and how many of them expire: a hint for who makes room for them.
    pub fn sizes(&mut self, keys: u64, expiring: u64) -> io::Result<()> {
        self.small(|encoder| {
            encoder.put_byte(opcode::SIZES);
            encoder.put_length(keys);
            encoder.put_length(expiring);
        })
    }

    /// Whole records of the database at hand. `highest` is what [`Encoder::highest`] says of who encoded them.
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
    /// Where records needed a higher version than the file was begun with, the header must be replaced.
    pub fn finish(mut self) -> io::Result<Finished<W>> {
        self.small(|encoder| encoder.put_byte(opcode::END))?;
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
