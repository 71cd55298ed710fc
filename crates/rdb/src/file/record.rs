//! The record of a key: attributes, type, key, value.

use std::fmt;

use super::opcode;
use crate::Millis;
use crate::decode::{Decoder, Object};
use crate::encode::{Out, put_length};
use crate::error::{Error, Reason, Result};
use crate::source::Source;

/// The attributes of a key in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyMetadata {
    /// Time of expiry, possibly past.
    pub expires: Option<Millis>,
    pub access: Access,
}

/// The key's last use, for eviction: servers write it if their `maxmemory-policy` considers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    #[default]
    Unknown,
    /// Seconds since the last use.
    Idle(u64),
    /// Frequency of use: a logarithmic counter.
    Frequency(u8),
}

/// A key whose value is not read yet: [`Record::object`] reads it, [`Record::pass`] skips it. The caller must
/// call either, and read an object to its end, before it asks for the next record.
pub struct Record<'r, S> {
    pub key: &'r [u8],
    pub metadata: KeyMetadata,
    /// The number of the value's type in the file.
    pub kind: u8,
    /// Offset of the record.
    pub at: u64,
    pub(super) decoder: &'r mut Decoder<S>,
}

impl<'r, S: Source> Record<'r, S> {
    pub fn object(self) -> Result<Object<'r, S>> {
        self.decoder.object_of(self.kind)
    }

    pub fn pass(self) -> Result<()> {
        self.decoder.pass_object_of(self.kind)
    }
}

/// The database and key of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPosition {
    pub database: u64,
    pub key: Vec<u8>,
}

/// The reason why a file cannot be read on, its offset, and the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub error: Error,
    /// `None`: between keys, or in a key's name.
    pub place: Option<KeyPosition>,
}

/// Length of a key in error messages, in bytes; the rest is left out.
const KEY_SHOWN_MAX: usize = 100;

impl Failure {
    pub fn new(error: Error, database: u64, key: &[u8]) -> Failure {
        Failure { error, place: Some(KeyPosition { database, key: key.to_vec() }) }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { error, place: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.error)?;
        let Some(KeyPosition { database, key }) = &self.place else { return Ok(()) };
        let shown = &key[..key.len().min(KEY_SHOWN_MAX)];
        let rest = if shown.len() < key.len() { ".." } else { "" };
        write!(f, ", in key \"{}\"{rest} of database {database}", shown.escape_ascii())
    }
}

impl std::error::Error for Failure {}

impl KeyMetadata {
    pub(crate) fn put(&self, out: &mut impl Out) {
        if let Some(expires) = self.expires {
            out.put(&[opcode::EXPIRES_MS]);
            out.put(&expires.to_le_bytes());
        }
        match self.access {
            Access::Unknown => {}
            Access::Idle(seconds) => {
                out.put(&[opcode::IDLE]);
                put_length(out, seconds);
            }
            Access::Frequency(frequency) => out.put(&[opcode::FREQUENCY, frequency]),
        }
    }

    /// Reads the attributes before the key, and the type's number.
    pub(super) fn read<S: Source>(decoder: &mut Decoder<S>) -> Result<(KeyMetadata, u8)> {
        let mut metadata = KeyMetadata::default();
        loop {
            let at = decoder.source().position();
            match decoder.byte()? {
                opcode::EXPIRES_MS => metadata.expires = Some(decoder.millis()?),
                opcode::EXPIRES_SECONDS => metadata.expires = Some(seconds(decoder)? * 1_000),
                opcode::IDLE => metadata.access = Access::Idle(decoder.length()?),
                opcode::FREQUENCY => metadata.access = Access::Frequency(decoder.byte()?),
                kind if opcode::starts_record(kind) => return Ok((metadata, kind)),
                other => return Err(Error::new(at, Reason::UnknownOpcode(other))),
            }
        }
    }
}

/// Reads a time in four bytes, little-endian; a time before 1970 is refused.
fn seconds<S: Source>(decoder: &mut Decoder<S>) -> Result<u64> {
    let at = decoder.source().position();
    let time = i32::from_le_bytes(decoder.fixed()?);
    u64::try_from(time).map_err(|_| Error::new(at, Reason::Time))
}
