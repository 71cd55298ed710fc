//! The members of a sorted set, with their scores.

use std::cmp::Ordering;

use super::packed::Packed;
use super::seen::SeenMembers;
use super::{Decoder, ItemPlace};
use crate::block::{BlockKind, Element};
use crate::error::{Error, Reason, Result};
use crate::item::{Digits, Item};
use crate::source::Source;

/// Lengths of a textual score that stand for scores without digits.
const TEXT_NAN: u8 = 253;
const TEXT_INFINITY: u8 = 254;
const TEXT_MINUS_INFINITY: u8 = 255;

/// The members. In a block they ascend by score, then by bytes; elsewhere they have any order, in Redis
/// descending.
pub struct Members<'d, S> {
    decoder: &'d mut Decoder<S>,
    from: MemberSource,
    seen: Option<SeenMembers>,
    any: bool,
    /// Offset of the last member, or of its block.
    at: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    pub name: Item<'a>,
    /// Never NaN.
    pub score: f64,
}

enum MemberSource {
    Plain { left: u64, text: bool },
    Block { packed: Packed, before: Option<(Element, f64)> },
}

impl<'d, S: Source> Members<'d, S> {
    pub(super) fn plain(decoder: &'d mut Decoder<S>, text: bool) -> Result<Self> {
        let left = decoder.count(if text { 2 } else { 9 })?;
        Ok(Members::new(decoder, MemberSource::Plain { left, text }))
    }

    pub(super) fn block(decoder: &'d mut Decoder<S>, kind: BlockKind) -> Result<Self> {
        let packed = decoder.packed(kind)?;
        Ok(Members::new(decoder, MemberSource::Block { packed, before: None }))
    }

    fn new(decoder: &'d mut Decoder<S>, from: MemberSource) -> Self {
        let at = decoder.position();
        let mut members = Members { decoder, from, seen: None, any: false, at };
        members.seen = members.decoder.refuses_duplicates.then(|| SeenMembers::with_room(members.expected()));
        members
    }

    /// Announced number of members, at most as many as can be left: a hint for allocations.
    pub fn expected(&self) -> usize {
        match &self.from {
            MemberSource::Plain { left, .. } => self.decoder.believable(*left),
            MemberSource::Block { packed, .. } => packed.expected(self.decoder.blob(packed.blob)) / 2,
        }
    }

    /// Returns the next member; `None` behind the last.
    #[allow(clippy::should_implement_trait, reason = "it lends, which iterators cannot")]
    pub fn next(&mut self) -> Result<Option<Member<'_>>> {
        let Some((name, score)) = self.find()? else {
            let empty = Error::new(self.at, Reason::Empty);
            return if self.any { Ok(None) } else { Err(empty) };
        };
        self.any = true;
        if let Some(seen) = &mut self.seen
            && !seen.insert(self.decoder.item(name))
        {
            return Err(Error::new(self.at, Reason::Duplicate));
        }
        Ok(Some(Member { name: self.decoder.item(name), score }))
    }

    fn find(&mut self) -> Result<Option<(ItemPlace, f64)>> {
        match &mut self.from {
            MemberSource::Plain { left: 0, .. } => Ok(None),
            MemberSource::Plain { left, text } => {
                *left -= 1;
                self.at = self.decoder.position();
                let name = self.decoder.string_place()?;
                let name = self.decoder.keep(name, 0);
                let score =
                    if *text { textual(self.decoder)? } else { f64::from_le_bytes(self.decoder.fixed()?) };
                number(score).map(|score| Some((name, score))).map_err(|reason| Error::new(self.at, reason))
            }
            MemberSource::Block { packed, before } => {
                let block = self.decoder.blob(packed.blob);
                let Some(name) = packed.next(block)? else { return Ok(None) };
                let score = packed.counterpart(block)?.item(block);
                let score = packed_score(score).map_err(|reason| Error::new(packed.at, reason))?;
                let ascends = before.is_none_or(|(last, last_score)| {
                    compare((last.item(block), last_score), (name.item(block), score)).is_lt()
                });
                if !ascends {
                    return Err(Error::new(packed.at, Reason::Order));
                }
                *before = Some((name, score));
                Ok(Some((packed.place(name), score)))
            }
        }
    }
}

fn compare(a: (Item<'_>, f64), b: (Item<'_>, f64)) -> Ordering {
    let by_name = || a.0.bytes(&mut Digits::default()).cmp(b.0.bytes(&mut Digits::default()));
    a.1.partial_cmp(&b.1).expect("neither is NaN").then_with(by_name)
}

fn packed_score(score: Item<'_>) -> std::result::Result<f64, Reason> {
    match score {
        Item::Int(number) => Ok(number as f64),
        Item::Bytes(text) => parse(text).and_then(number),
    }
}

/// Reads an old score: the length of its text in a byte, then the text.
fn textual<S: Source>(decoder: &mut Decoder<S>) -> Result<f64> {
    let at = decoder.position();
    match decoder.byte()? {
        TEXT_NAN => Ok(f64::NAN),
        TEXT_INFINITY => Ok(f64::INFINITY),
        TEXT_MINUS_INFINITY => Ok(f64::NEG_INFINITY),
        len => {
            decoder.source.take(u64::from(len))?;
            parse(decoder.source.taken()).map_err(|reason| Error::new(at, reason))
        }
    }
}

fn parse(text: &[u8]) -> std::result::Result<f64, Reason> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(Reason::Score)
}

fn number(score: f64) -> std::result::Result<f64, Reason> {
    if score.is_nan() { Err(Reason::Score) } else { Ok(score) }
}
