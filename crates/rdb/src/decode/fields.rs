//! The fields of a hash, with or without a time at which each expires.

use super::packed::Packed;
use super::seen::SeenMembers;
use super::{Decoder, ItemPlace};
use crate::Millis;
use crate::block::{BlockKind, Element};
use crate::error::{Error, Reason, Result};
use crate::item::Item;
use crate::source::Source;

/// Latest expiry of a field in Redis 7.4: 48 bits.
const REDIS_EXPIRY_MAX: Millis = (1 << 48) - 1;

/// The fields, in the order in which they are stored.
pub struct Fields<'d, S> {
    decoder: &'d mut Decoder<S>,
    from: FieldSource,
    expiry: Expiry,
    seen: Option<SeenMembers>,
    any: bool,
    /// The last expiry of a block, whose fields ascend by it; [`Millis::MAX`]: the field does not expire.
    latest: Millis,
    /// Offset of the last field, or of its block.
    at: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    pub name: Item<'a>,
    pub value: Item<'a>,
    /// Time of expiry, possibly past.
    pub expires: Option<Millis>,
}

enum FieldSource {
    Plain { left: u64 },
    Block(Packed),
}

/// The position of a field's expiry.
#[derive(Clone, Copy)]
pub(super) enum Expiry {
    None,
    /// Behind the value: a third element of a block (0: none), or eight bytes (-1: none).
    Behind,
    /// A length before the field (0: none). With an earliest expiry, 1 stands for it.
    Before {
        earliest: Option<Millis>,
    },
}

impl<'d, S: Source> Fields<'d, S> {
    pub(super) fn plain(decoder: &'d mut Decoder<S>, expiry: Expiry) -> Result<Self> {
        let left = decoder.count(match expiry {
            Expiry::None => 2,
            Expiry::Behind => 10,
            Expiry::Before { .. } => 3,
        })?;
        Ok(Fields::new(decoder, FieldSource::Plain { left }, expiry))
    }

    pub(super) fn block(decoder: &'d mut Decoder<S>, kind: BlockKind, expiry: Expiry) -> Result<Self> {
        let packed = decoder.packed(kind)?;
        Ok(Fields::new(decoder, FieldSource::Block(packed), expiry))
    }

    fn new(decoder: &'d mut Decoder<S>, from: FieldSource, expiry: Expiry) -> Self {
        let at = decoder.position();
        let mut fields = Fields { decoder, from, expiry, seen: None, any: false, latest: 0, at };
        fields.seen = fields.decoder.refuses_duplicates.then(|| SeenMembers::with_room(fields.expected()));
        fields
    }

    /// Announced number of fields, at most as many as can be left: a hint for allocations.
    pub fn expected(&self) -> usize {
        match &self.from {
            FieldSource::Plain { left } => self.decoder.believable(*left),
            FieldSource::Block(packed) => packed.expected(self.decoder.blob(packed.blob)) / 2,
        }
    }

    /// Returns the next field; `None` behind the last.
    #[allow(clippy::should_implement_trait, reason = "it lends, which iterators cannot")]
    pub fn next(&mut self) -> Result<Option<Field<'_>>> {
        let Some((name, value, expires)) = self.find()? else {
            let empty = Error::new(self.at, Reason::Empty);
            return if self.any { Ok(None) } else { Err(empty) };
        };
        self.any = true;
        if let Some(seen) = &mut self.seen
            && !seen.insert(self.decoder.item(name))
        {
            return Err(Error::new(self.at, Reason::Duplicate));
        }
        Ok(Some(Field { name: self.decoder.item(name), value: self.decoder.item(value), expires }))
    }

    fn find(&mut self) -> Result<Option<(ItemPlace, ItemPlace, Option<Millis>)>> {
        match &mut self.from {
            FieldSource::Plain { left: 0 } => Ok(None),
            FieldSource::Plain { left } => {
                *left -= 1;
                self.at = self.decoder.position();
                plain_field(self.decoder, self.expiry).map(Some)
            }
            FieldSource::Block(packed) => {
                let block = self.decoder.blob(packed.blob);
                let Some(name) = packed.next(block)? else { return Ok(None) };
                let value = packed.counterpart(block)?;
                let expires = match self.expiry {
                    Expiry::None => None,
                    _ => packed_expiry(packed.counterpart(block)?, &mut self.latest)
                        .map_err(|reason| Error::new(self.at, reason))?,
                };
                Ok(Some((packed.place(name), packed.place(value), expires)))
            }
        }
    }
}

fn plain_field<S: Source>(
    decoder: &mut Decoder<S>,
    expiry: Expiry,
) -> Result<(ItemPlace, ItemPlace, Option<Millis>)> {
    let expires = match expiry {
        Expiry::Before { earliest } => expiry_before(decoder, earliest)?,
        _ => None,
    };
    let name = decoder.string_place()?;
    let name = decoder.keep(name, 0);
    let value = decoder.string_place()?;
    match expiry {
        Expiry::Behind => {
            let value = decoder.keep(value, 1);
            Ok((name, value, expiry_behind(decoder)?))
        }
        _ => Ok((name, value, expires)),
    }
}

fn expiry_before<S: Source>(decoder: &mut Decoder<S>, earliest: Option<Millis>) -> Result<Option<Millis>> {
    let at = decoder.position();
    let time = match (decoder.length()?, earliest) {
        (0, _) => return Ok(None),
        (time, None) => Some(time),
        (after, Some(earliest)) => earliest.checked_add(after - 1),
    };
    time.filter(|time| *time <= REDIS_EXPIRY_MAX).map(Some).ok_or(Error::new(at, Reason::Time))
}

fn expiry_behind<S: Source>(decoder: &mut Decoder<S>) -> Result<Option<Millis>> {
    let at = decoder.position();
    match i64::from_le_bytes(decoder.fixed()?) {
        -1 => Ok(None),
        time => u64::try_from(time).map(Some).map_err(|_| Error::new(at, Reason::Time)),
    }
}

/// Reads an expiry; `latest` is that of the field before. Fields that do not expire come last.
fn packed_expiry(element: Element, latest: &mut Millis) -> std::result::Result<Option<Millis>, Reason> {
    let expires = match element {
        Element::Int(0) => None,
        Element::Int(time) if (1..=REDIS_EXPIRY_MAX as i64).contains(&time) => Some(time as u64),
        _ => return Err(Reason::Time),
    };
    let order = expires.unwrap_or(Millis::MAX);
    match order >= std::mem::replace(latest, order) {
        true => Ok(expires),
        false => Err(Reason::Order),
    }
}
