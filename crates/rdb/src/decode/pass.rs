//! Going over a value: finding where it ends, without looking into it.
//!
//! The walk knows no more than lengths and counts. So it costs a step per string where a value is written plain, and
//! one for all of a packed block; what is wrong inside is found by whoever reads the value. Both walks take the same
//! steps, so a value that can be read ends where this one says.

use super::Announced;
use super::Decoder;
use crate::error::{Error, Reason, Result};
use crate::kind::{self, FIRST_VALKEY_VERSION};
use crate::source::Source;

/// Bytes of a textual score whose length is at least this are none: it stands for an infinity, or for no number.
const TEXT_LENGTHS_END: u8 = 253;

const SCORE_BYTES: u64 = 8;
const MILLIS_BYTES: u64 = 8;
const ID_BYTES: u64 = 16;

/// What a module's data consists of: numbers of 64 bits as lengths, floats, doubles, strings, up to an end mark.
const MODULE_END: u64 = 0;
const MODULE_SIGNED: u64 = 1;
const MODULE_UNSIGNED: u64 = 2;
const MODULE_FLOAT: u64 = 3;
const MODULE_DOUBLE: u64 = 4;
const MODULE_STRING: u64 = 5;

impl<S: Source> Decoder<S> {
    /// Goes over a value whose type's number has been read. It takes no memory, and finds no more than its end.
    ///
    /// Values of modules can be passed, too, though they cannot be read.
    pub fn pass_object_of(&mut self, kind: u8) -> Result<()> {
        let at = self.position();
        let of_valkey = self.version >= FIRST_VALKEY_VERSION;
        match kind {
            kind::STRING
            | kind::HASH_ZIPMAP
            | kind::LIST_ZIPLIST
            | kind::SET_INTSET
            | kind::ZSET_ZIPLIST
            | kind::HASH_ZIPLIST
            | kind::HASH_LISTPACK
            | kind::ZSET_LISTPACK
            | kind::SET_LISTPACK => self.pass_string(),
            kind::LIST | kind::SET | kind::LIST_QUICKLIST => self.pass_each(Self::pass_string),
            kind::HASH => self.pass_each(Self::pass_two_strings),
            kind::ZSET => self.pass_each(Self::pass_member_of_text),
            kind::ZSET_2 => self.pass_each(|decoder| decoder.pass_string_and(SCORE_BYTES)),
            kind::LIST_QUICKLIST_2 => self.pass_each(|decoder| {
                decoder.length()?;
                decoder.pass_string()
            }),
            kind::STREAM_LISTPACKS => self.pass_stream(1),
            kind::STREAM_LISTPACKS_2 => self.pass_stream(2),
            kind::STREAM_LISTPACKS_3 => self.pass_stream(3),
            kind::HASH_2 if of_valkey => self.pass_each(|decoder| {
                decoder.pass_string()?;
                decoder.pass_string_and(MILLIS_BYTES)
            }),
            kind::HASH_METADATA_PRE_GA if !of_valkey => self.pass_each(Self::pass_field_after_time),
            kind::HASH_LISTPACK_EX_PRE_GA if !of_valkey => self.pass_string(),
            kind::HASH_METADATA if !of_valkey => {
                self.source.pass(MILLIS_BYTES)?;
                self.pass_each(Self::pass_field_after_time)
            }
            kind::HASH_LISTPACK_EX if !of_valkey => {
                self.source.pass(MILLIS_BYTES)?;
                self.pass_string()
            }
            kind::MODULE_2 => {
                self.length()?;
                self.pass_module_data()
            }
            kind::MODULE => Err(Error::new(at, Reason::ModuleType)), // its data has no marks to go by
            kind => Err(Error::new(at, Reason::UnknownType(kind))),
        }
    }

    /// By how many bytes the compressed strings that were passed are longer than what was sent, as they say themselves.
    pub(crate) fn packed_away(&self) -> u64 {
        self.packed_away
    }

    #[inline]
    pub(crate) fn pass_string(&mut self) -> Result<()> {
        let at = self.position();
        match self.announced()? {
            Announced::Length(length) => self.source.pass(length),
            Announced::Form(0) => self.source.pass(1),
            Announced::Form(1) => self.source.pass(2),
            Announced::Form(2) => self.source.pass(4),
            Announced::Form(3) => {
                let (packed, length) = (self.length()?, self.length()?);
                self.packed_away = self.packed_away.saturating_add(length.saturating_sub(packed));
                self.source.pass(packed)
            }
            Announced::Form(_) => Err(Error::new(at, Reason::StringForm)),
        }
    }

    /// What a module wrote, up to its end mark.
    pub(crate) fn pass_module_data(&mut self) -> Result<()> {
        loop {
            let at = self.position();
            match self.length()? {
                MODULE_END => return Ok(()),
                MODULE_SIGNED | MODULE_UNSIGNED => _ = self.length()?,
                MODULE_FLOAT => self.source.pass(4)?,
                MODULE_DOUBLE => self.source.pass(8)?,
                MODULE_STRING => self.pass_string()?,
                _ => return Err(Error::new(at, Reason::ModuleType)),
            }
        }
    }

    /// A count, and so many elements. Each takes a byte at the least, so the end of the source ends any count.
    fn pass_each(&mut self, mut element: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        for _ in 0..self.length()? {
            element(self)?;
        }
        Ok(())
    }

    fn pass_two_strings(&mut self) -> Result<()> {
        self.pass_string()?;
        self.pass_string()
    }

    fn pass_string_and(&mut self, bytes: u64) -> Result<()> {
        self.pass_string()?;
        self.source.pass(bytes)
    }

    fn pass_field_after_time(&mut self) -> Result<()> {
        self.length()?;
        self.pass_two_strings()
    }

    fn pass_member_of_text(&mut self) -> Result<()> {
        self.pass_string()?;
        match self.byte()? {
            TEXT_LENGTHS_END.. => Ok(()),
            length => self.source.pass(u64::from(length)),
        }
    }

    /// See `stream.rs` and `stream/groups.rs` for how it is laid out.
    fn pass_stream(&mut self, form: u8) -> Result<()> {
        self.pass_each(Self::pass_two_strings)?;
        let numbers = if form == 1 { 3 } else { 8 }; // length and last id; first and highest deleted id, entries added
        self.pass_lengths(numbers)?;
        self.pass_each(|decoder| {
            decoder.pass_string()?;
            decoder.pass_lengths(if form == 1 { 2 } else { 3 })?; // last id; entries read
            decoder.pass_each(|decoder| {
                decoder.source.pass(ID_BYTES + MILLIS_BYTES)?;
                decoder.pass_lengths(1)
            })?;
            decoder.pass_each(|decoder| {
                decoder.pass_string_and(if form < 3 { MILLIS_BYTES } else { 2 * MILLIS_BYTES })?;
                decoder.pass_each(|decoder| decoder.source.pass(ID_BYTES))
            })
        })
    }

    fn pass_lengths(&mut self, count: u32) -> Result<()> {
        for _ in 0..count {
            self.length()?;
        }
        Ok(())
    }
}
