//! The record of a key: what is said about it, its type, itself, its value.

use std::fmt;

use super::opcode;
use crate::Millis;
use crate::decode::{Decoder, Object};
use crate::encode::{Out, put_length};
use crate::error::{Error, Reason, Result};
use crate::source::Source;

/// What a file says about a key beside its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// When the key expires, which may have passed.
    pub expires: Option<Millis>,
    pub access: Access,
}

/// How the key was last used, for eviction: servers write it if their `maxmemory-policy` looks at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    #[default]
    Unknown,
    /// Seconds since its last use.
    Idle(u64),
    /// How often it is used: a logarithmic counter.
    Frequency(u8),
}

/// A key whose value is about to be read: [`Record::object`] reads it, [`Record::pass`] goes over it. One of the two
/// must be done, and an object be read to its end, before the next record is asked for.
pub struct Record<'r, S> {
    pub key: &'r [u8],
    pub about: About,
    /// The number of the value's type in the format.
    pub kind: u8,
    /// Where the record starts.
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

/// Whose record it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub database: u64,
    pub key: Vec<u8>,
}

/// Why a file cannot be read on, where, and in which key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub error: Error,
    /// `None`: between keys, or in a key itself.
    pub place: Option<Place>,
}

/// Of a key's name, no more than this is shown, in bytes.
const KEY_SHOWN_MAX: usize = 100;

impl Failure {
    pub fn new(error: Error, database: u64, key: &[u8]) -> Failure {
        Failure { error, place: Some(Place { database, key: key.to_vec() }) }
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
        let Some(Place { database, key }) = &self.place else { return Ok(()) };
        let shown = &key[..key.len().min(KEY_SHOWN_MAX)];
        let rest = if shown.len() < key.len() { ".." } else { "" };
        write!(f, ", in key \"{}\"{rest} of database {database}", shown.escape_ascii())
    }
}

impl std::error::Error for Failure {}

impl About {
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

    /// What stands before the key: this, and its type's number.
    pub(super) fn read<S: Source>(decoder: &mut Decoder<S>) -> Result<(About, u8)> {
        let mut about = About::default();
        loop {
            let at = decoder.source().position();
            match decoder.byte()? {
                opcode::EXPIRES_MS => about.expires = Some(decoder.millis()?),
                opcode::EXPIRES_SECONDS => about.expires = Some(seconds(decoder)? * 1_000),
                opcode::IDLE => about.access = Access::Idle(decoder.length()?),
                opcode::FREQUENCY => about.access = Access::Frequency(decoder.byte()?),
                kind if opcode::starts_record(kind) => return Ok((about, kind)),
                other => return Err(Error::new(at, Reason::UnknownOpcode(other))),
            }
        }
    }
}

/// Four bytes, lowest first; a time before 1970 is refused.
fn seconds<S: Source>(decoder: &mut Decoder<S>) -> Result<u64> {
    let at = decoder.source().position();
    let time = i32::from_le_bytes(decoder.fixed()?);
    u64::try_from(time).map_err(|_| Error::new(at, Reason::Time))
}
