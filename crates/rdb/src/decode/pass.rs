//! Skips values: finds a value's end without decoding it.
//!
//! The walk knows only lengths and counts. It costs a step per string of a plain value, and a single step for
//! a packed block; a fault inside the block appears on reading. Skipping and reading take the same steps, so
//! a readable value ends at the same offset for both.

use super::Announced;
use super::Decoder;
use crate::error::{Error, Reason, Result};
use crate::kind::{self, FIRST_VALKEY_VERSION, array};
use crate::source::Source;

/// A length of a textual score from here on has no bytes: it stands for an infinity or NaN.
const TEXT_LENGTHS_END: u8 = 253;

const SCORE_BYTES: u64 = 8;
const NUMBER_BYTES: u64 = 8;
const MILLIS_BYTES: u64 = 8;
const ID_BYTES: u64 = 16;

/// Item types of a module's data: numbers of 64 bits as lengths, floats, doubles, strings, up to an end mark.
const MODULE_END: u64 = 0;
const MODULE_SIGNED: u64 = 1;
const MODULE_UNSIGNED: u64 = 2;
const MODULE_FLOAT: u64 = 3;
const MODULE_DOUBLE: u64 = 4;
const MODULE_STRING: u64 = 5;

impl<S: Source> Decoder<S> {
    /// Skips a value after its type's number. Allocates no memory and detects only faults that hide the end.
    ///
    /// Values of modules can be skipped too, though not read.
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
            kind::STREAM_LISTPACKS_4 => self.pass_stream(4),
            kind::STREAM_LISTPACKS_5 => self.pass_stream(5),
            kind::ARRAY => self.pass_array(),
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
            kind::MODULE => Err(Error::new(at, Reason::ModuleType)), // its data have no marks
            kind => Err(Error::new(at, Reason::UnknownType(kind))),
        }
    }

    /// Sum of the announced savings of skipped compressed strings, in bytes.
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

    /// Skips a module's data up to its end mark.
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

    /// Reads a count and skips as many elements. Each has at least a byte, so the source's end bounds the
    /// loop.
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

    /// See `stream.rs` and `stream/groups.rs` for the layout.
    fn pass_stream(&mut self, form: u8) -> Result<()> {
        self.pass_each(Self::pass_two_strings)?;
        // length and last id; first and highest deleted id, entries added
        let numbers = if form == 1 { 3 } else { 8 };
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
            })?;
            match form {
                5.. => decoder.pass_each(|decoder| decoder.source.pass(ID_BYTES)),
                _ => Ok(()),
            }
        })?;
        if form >= 4 { self.pass_idmp() } else { Ok(()) }
    }

    fn pass_idmp(&mut self) -> Result<()> {
        self.pass_lengths(2)?; // duration, most entries
        self.pass_each(|decoder| {
            decoder.pass_string()?;
            decoder.pass_each(|decoder| {
                decoder.pass_string()?;
                decoder.pass_lengths(2)
            })
        })?;
        self.pass_lengths(2) // entries added, duplicates
    }

    fn pass_array(&mut self) -> Result<()> {
        let count = self.length()?;
        if self.length()? == 1 {
            self.length()?;
        }
        for _ in 0..count {
            self.length()?;
            let at = self.position();
            match self.length()? {
                array::LONG_STRING | array::SHORT_STRING => self.pass_string()?,
                array::INT | array::FLOAT => self.source.pass(NUMBER_BYTES)?,
                _ => return Err(Error::new(at, Reason::Element)),
            }
        }
        Ok(())
    }

    fn pass_lengths(&mut self, count: u32) -> Result<()> {
        for _ in 0..count {
            self.length()?;
        }
        Ok(())
    }
}
