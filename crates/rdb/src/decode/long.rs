//! A long string, read in pieces: neither its compressed nor its unpacked form is in memory as a whole.

use super::{Announced, Decoder};
use crate::error::{Error, Reason, Result};
use crate::item::Item;
use crate::lzf::Unpacker;
use crate::source::Source;

/// Length of each piece but the last, in bytes. A longer string is a long string.
pub const PIECE: usize = 64 * 1024;

/// See the module's text.
pub struct LongString<'d, S> {
    decoder: &'d mut Decoder<S>,
    len: u64,
    left: u64,
    form: StringForm,
    /// Offset of the string.
    at: u64,
}

enum StringForm {
    Plain,
    Packed(Box<Unpacker>),
}

/// A string that is a value of its own.
pub(super) enum StringValue<'d, S> {
    Short(Item<'d>),
    Long(LongString<'d, S>),
}

impl<'d, S: Source> LongString<'d, S> {
    pub(super) fn open(decoder: &'d mut Decoder<S>) -> Result<StringValue<'d, S>> {
        let at = decoder.position();
        let (len, form) = match decoder.announced()? {
            Announced::Form(3) => {
                let (packed, len) = (decoder.length()?, decoder.length()?);
                if len <= PIECE as u64 {
                    let place = decoder.unpacked_place(at, packed, len)?;
                    return Ok(StringValue::Short(decoder.item(place)));
                }
                decoder.refuse_beyond_end(at, packed)?;
                let unpacker = Unpacker::new(packed, len).ok_or(Error::new(at, Reason::Compressed))?;
                (len, StringForm::Packed(Box::new(unpacker)))
            }
            Announced::Length(len) if len > PIECE as u64 => {
                decoder.refuse_beyond_end(at, len)?;
                (len, StringForm::Plain)
            }
            announced => {
                let place = decoder.place_of(at, announced)?;
                return Ok(StringValue::Short(decoder.item(place)));
            }
        };
        Ok(StringValue::Long(LongString { decoder, len, left: len, form, at }))
    }

    /// Length of the whole string in bytes.
    #[allow(clippy::len_without_is_empty, reason = "it is long")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the next piece of [`PIECE`] bytes, the last possibly shorter; `None` behind the last piece.
    #[allow(clippy::should_implement_trait, reason = "a piece is lent out")]
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        let len = PIECE.min(usize::try_from(self.left).unwrap_or(PIECE));
        self.left -= len as u64;
        let source = &mut self.decoder.source;
        match &mut self.form {
            _ if len == 0 => Ok(None),
            StringForm::Plain => {
                source.take(len as u64)?;
                Ok(Some(source.taken()))
            }
            StringForm::Packed(unpacker) => {
                let garbage = Error::new(self.at, Reason::Compressed);
                while !unpacker.has(len) {
                    source.take(unpacker.bytes_wanted(PIECE as u64))?;
                    unpacker.feed(source.taken());
                    if !unpacker.unpack(len) {
                        return Err(garbage);
                    }
                }
                if self.left == 0 && !unpacker.is_at_end() {
                    return Err(garbage);
                }
                Ok(Some(unpacker.take(len)))
            }
        }
    }
}
