//! The elements of a list or a set.

use super::packed::Packed;
use super::seen::SeenMembers;
use super::{Decoder, ItemPlace};
use crate::block::BlockKind;
use crate::error::{Error, Reason, Result};
use crate::item::Item;
use crate::source::Source;

/// The forms of a list node.
const PLAIN_NODE: u64 = 1;
const PACKED_NODE: u64 = 2;

/// The elements, in the order in which they are stored.
pub struct Elements<'d, S> {
    decoder: &'d mut Decoder<S>,
    from: ElementSource,
    /// `None`: elements may repeat.
    seen: Option<SeenMembers>,
    any: bool,
    /// Offset of the last element, or of its block.
    at: u64,
}

enum ElementSource {
    Plain { left: u64 },
    Block(Packed),
    Nodes { left: u64, nodes: Nodes, open: Option<Packed> },
}

/// The nodes of a quicklist.
#[derive(Clone, Copy)]
pub(super) enum Nodes {
    Ziplists,
    /// Listpacks or single elements, each after a number that names its form.
    Containers,
}

impl<'d, S: Source> Elements<'d, S> {
    pub(super) fn plain(decoder: &'d mut Decoder<S>, duplicates: bool) -> Result<Self> {
        let left = decoder.count(1)?;
        Ok(Elements::new(decoder, ElementSource::Plain { left }, duplicates))
    }

    pub(super) fn block(decoder: &'d mut Decoder<S>, kind: BlockKind, duplicates: bool) -> Result<Self> {
        let packed = decoder.packed(kind)?;
        Ok(Elements::new(decoder, ElementSource::Block(packed), duplicates))
    }

    pub(super) fn nodes(decoder: &'d mut Decoder<S>, nodes: Nodes) -> Result<Self> {
        let left = decoder.count(1)?;
        Ok(Elements::new(decoder, ElementSource::Nodes { left, nodes, open: None }, true))
    }

    fn new(decoder: &'d mut Decoder<S>, from: ElementSource, duplicates: bool) -> Self {
        let at = decoder.position();
        let mut elements = Elements { decoder, from, seen: None, any: false, at };
        elements.seen = (!duplicates).then(|| SeenMembers::with_room(elements.expected()));
        elements
    }

    /// Announced number of elements, at most as many as can be left: a hint for allocations.
    pub fn expected(&self) -> usize {
        match &self.from {
            ElementSource::Plain { left } => self.decoder.believable(*left),
            ElementSource::Block(packed) => packed.expected(self.decoder.blob(packed.blob)),
            ElementSource::Nodes { left, .. } => self.decoder.believable(*left), // at least
        }
    }

    /// Returns the next element; `None` behind the last.
    ///
    /// Only sets return [`Reason::Duplicate`], unless duplicates were left to the caller.
    #[allow(clippy::should_implement_trait, reason = "it lends, which iterators cannot")]
    pub fn next(&mut self) -> Result<Option<Item<'_>>> {
        let Some(place) = self.find()? else {
            let empty = Error::new(self.at, Reason::Empty);
            return if self.any { Ok(None) } else { Err(empty) };
        };
        self.any = true;
        if let Some(seen) = &mut self.seen
            && !seen.insert(self.decoder.item(place))
        {
            return Err(Error::new(self.at, Reason::Duplicate));
        }
        Ok(Some(self.decoder.item(place)))
    }

    fn find(&mut self) -> Result<Option<ItemPlace>> {
        let decoder = &mut *self.decoder;
        loop {
            match &mut self.from {
                ElementSource::Plain { left: 0 } | ElementSource::Nodes { left: 0, open: None, .. } => {
                    return Ok(None);
                }
                ElementSource::Plain { left } => {
                    *left -= 1;
                    self.at = decoder.position();
                    return decoder.string_place().map(Some);
                }
                ElementSource::Block(packed) => {
                    let element = packed.next(decoder.blob(packed.blob))?;
                    return Ok(element.map(|element| packed.place(element)));
                }
                ElementSource::Nodes { open: slot @ Some(_), .. } => {
                    let packed = slot.as_mut().expect("it was just seen");
                    if let Some(element) = packed.next(decoder.blob(packed.blob))? {
                        return Ok(Some(packed.place(element)));
                    }
                    *slot = None;
                }
                ElementSource::Nodes { left, nodes, open } => {
                    *left -= 1;
                    self.at = decoder.position();
                    match nodes.open(decoder)? {
                        Node::Plain(place) => return Ok(Some(place)),
                        Node::Packed(packed) => *open = Some(packed),
                    }
                }
            }
        }
    }
}

enum Node {
    Plain(ItemPlace),
    Packed(Packed),
}

impl Nodes {
    fn open<S: Source>(self, decoder: &mut Decoder<S>) -> Result<Node> {
        if let Nodes::Ziplists = self {
            return decoder.packed(BlockKind::Ziplist).map(Node::Packed);
        }
        let at = decoder.position();
        match decoder.length()? {
            PLAIN_NODE => {
                let place = decoder.string_place()?;
                match decoder.item(place) {
                    Item::Bytes([]) => Err(Error::new(at, Reason::Container)),
                    _ => Ok(Node::Plain(place)),
                }
            }
            PACKED_NODE => decoder.packed(BlockKind::Listpack).map(Node::Packed),
            _ => Err(Error::new(at, Reason::Container)),
        }
    }
}
