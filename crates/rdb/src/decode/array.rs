//! The values of an array, each with its index.

use super::seen::SeenMembers;
use super::{Decoder, ItemPlace};
use crate::error::{Error, Reason, Result};
use crate::item::Item;
use crate::kind::array::{FLOAT, INT, LONG_STRING, SHORT_STRING};
use crate::numeral;
use crate::source::Source;

/// Bytes of an index, the number of a form, and a string of no bytes.
const ELEMENT_MIN: u64 = 3;

/// The elements, in the order in which they are stored. Redis stores them by index, and any order is read.
pub struct ArrayElements<'d, S> {
    decoder: &'d mut Decoder<S>,
    left: u64,
    cursor: Option<u64>,
    /// `None`: the caller finds duplicates.
    seen: Option<SeenMembers>,
    any: bool,
    /// The text of a float.
    text: String,
}

impl<'d, S: Source> ArrayElements<'d, S> {
    pub(super) fn open(decoder: &'d mut Decoder<S>) -> Result<Self> {
        let left = decoder.count(ELEMENT_MIN)?;
        let at = decoder.position();
        let cursor = match decoder.length()? {
            0 => None,
            1 => Some(decoder.length()?).filter(|cursor| *cursor < u64::MAX),
            _ => return Err(Error::new(at, Reason::Length)),
        };
        let expected = decoder.believable(left);
        let seen = decoder.refuses_duplicates.then(|| SeenMembers::with_room(expected));
        Ok(ArrayElements { decoder, left, cursor, seen, any: false, text: String::new() })
    }

    /// The index of the last insertion, if there was any.
    pub fn cursor(&self) -> Option<u64> {
        self.cursor
    }

    /// Returns the next index and its value; `None` behind the last.
    #[allow(clippy::should_implement_trait, reason = "it lends, which iterators cannot")]
    pub fn next(&mut self) -> Result<Option<(u64, Item<'_>)>> {
        let at = self.decoder.position();
        let Some(left) = self.left.checked_sub(1) else {
            let empty = Error::new(at, Reason::Empty);
            return if self.any { Ok(None) } else { Err(empty) };
        };
        (self.left, self.any) = (left, true);
        let index = self.decoder.length()?;
        if index == u64::MAX {
            return Err(Error::new(at, Reason::Index));
        }
        if let Some(seen) = &mut self.seen
            && !seen.insert(Item::Bytes(&index.to_le_bytes()))
        {
            return Err(Error::new(at, Reason::Duplicate));
        }
        let place = match self.decoder.length()? {
            LONG_STRING | SHORT_STRING => self.decoder.string_place()?,
            INT => ItemPlace::Int(i64::from_le_bytes(self.decoder.fixed()?)),
            FLOAT => return self.float(at).map(|text| Some((index, text))),
            _ => return Err(Error::new(at, Reason::Element)),
        };
        Ok(Some((index, self.decoder.item(place))))
    }

    fn float(&mut self, at: u64) -> Result<Item<'_>> {
        let value = numeral::without_tag(f64::from_le_bytes(self.decoder.fixed()?));
        if !value.is_finite() {
            return Err(Error::new(at, Reason::Score));
        }
        self.text = numeral::print(value);
        Ok(Item::Bytes(self.text.as_bytes()))
    }
}
