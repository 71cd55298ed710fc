//! Streams: entries, then the stream's counters and ids, then its consumer groups.
//!
//! ```text
//! nodes | (id of the node's first entry, 16 bytes | listpack) .. | length | last id | ..
//!
//! listpack: live | deleted | n | name 1 .. name n | 0 | entry ..
//! entry:    flags | id - node's | [n' | name 1 | value 1 | ..; with shared names: value 1 | ..] | elements
//! ```
//!
//! An entry is checked as a whole before it is lent, so that its fields can be walked without errors. Deleted
//! entries are skipped, and their order is not checked, since ids may be used again below them (XSETID).

mod groups;

pub use groups::Groups;

use super::packed::located;
use super::{Blob, Decoder, ItemPlace};
use crate::block::listpack::{Cursor, Passed};
use crate::block::{Element, Flaw};
use crate::error::{Error, Reason, Result};
use crate::item::Item;
use crate::source::Source;
use crate::stream::{Id, Info};

const DELETED: i64 = 1;
const SAME_NAMES: i64 = 2;

const COUNT_MAX: u64 = i64::MAX as u64;

/// Least size of a node: an id of 16 bytes with its length, and the length of a listpack.
const NODE_BYTES_MIN: u64 = 18;

/// The entries of a stream.
pub struct Stream<'d, S> {
    decoder: &'d mut Decoder<S>,
    /// The form, 1 to 5: each has more data behind the entries than its predecessor.
    form: u8,
    nodes_left: u64,
    node: Option<Node>,
    /// Number of entries so far, and the ids of the first and the last.
    length: u64,
    first: Id,
    last: Id,
    corrections: Corrections,
}

/// The treatment of counts and ids that the entries contradict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Corrections {
    Refused,
    Allowed,
    Made,
}

impl Corrections {
    /// Whether a contradiction may be ignored; records that there is a contradiction.
    fn make(&mut self) -> bool {
        if *self == Corrections::Allowed {
            *self = Corrections::Made;
        }
        *self == Corrections::Made
    }
}

/// The node being read.
struct Node {
    blob: Blob,
    /// Offset of the node in the source.
    at: u64,
    cursor: Cursor,
    id: Id,
    /// Position and number of the names that entries may share.
    names_at: usize,
    names: u64,
    /// The node's counts, less the entries seen.
    live: i64,
    deleted: i64,
}

/// An entry; its fields are known to be well-formed.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    pub id: Id,
    block: &'a [u8],
    names: SharedNames,
    values: Passed,
    fields: u64,
}

/// The position of an entry's field names.
#[derive(Clone, Debug)]
enum SharedNames {
    /// Before each value.
    No,
    /// At the node's start.
    Yes(Passed),
}

/// The fields of an entry, as pairs of name and value.
#[derive(Clone, Debug)]
pub struct EntryFields<'a> {
    entry: Entry<'a>,
}

/// An entry behind the cursor.
struct EntryHeader {
    id: Id,
    shared: bool,
    values_at: usize,
    fields: u64,
}

impl<'a> Entry<'a> {
    /// Number of fields: not zero, and never more than the source has elements.
    pub fn len(&self) -> u64 {
        self.fields
    }

    pub fn is_empty(&self) -> bool {
        self.fields == 0
    }

    /// Whether the names are stored once for several entries of the node.
    ///
    /// A store that copies the names per entry could be made to use many times the memory of the received
    /// data.
    pub fn shares_names(&self) -> bool {
        matches!(self.names, SharedNames::Yes(_))
    }

    pub fn fields(&self) -> EntryFields<'a> {
        EntryFields { entry: self.clone() }
    }
}

impl<'a> Iterator for EntryFields<'a> {
    type Item = (Item<'a>, Item<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let entry = &mut self.entry;
        entry.fields = entry.fields.checked_sub(1)?;
        let name = match &mut entry.names {
            SharedNames::No => entry.values.next(entry.block),
            SharedNames::Yes(names) => names.next(entry.block),
        };
        let value = entry.values.next(entry.block);
        Some((name.item(entry.block), value.item(entry.block)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.entry.fields as usize, Some(self.entry.fields as usize)) // the entry is in memory
    }
}

impl ExactSizeIterator for EntryFields<'_> {}

impl<'d, S: Source> Stream<'d, S> {
    pub(super) fn open(decoder: &'d mut Decoder<S>, form: u8) -> Result<Self> {
        let nodes_left = decoder.count(NODE_BYTES_MIN)?;
        let (first, last, corrections) = (Id::ZERO, Id::ZERO, Corrections::Refused);
        Ok(Stream { decoder, form, nodes_left, node: None, length: 0, first, last, corrections })
    }

    /// Replaces the length, the last id, the number of entries added and the counts of nodes if the entries
    /// contradict them, unless there are no entries. Redis 7.0 loads such streams with the stored numbers.
    pub fn allow_corrections(&mut self) {
        self.corrections = Corrections::Allowed;
    }

    /// Returns the next entry that is not deleted, by ascending id; `None` behind the last.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'_>>> {
        let Some(found) = self.find()? else { return Ok(None) };
        let node = self.node.as_ref().expect("the entry is in it");
        let names =
            if found.shared { SharedNames::Yes(Passed::from(node.names_at)) } else { SharedNames::No };
        let (block, values) = (self.decoder.blob(node.blob), Passed::from(found.values_at));
        Ok(Some(Entry { id: found.id, block, names, values, fields: found.fields }))
    }

    /// Offset in the source behind the last read.
    pub fn position(&self) -> u64 {
        self.decoder.position()
    }

    /// Reads the data behind the entries; unread entries are skipped.
    pub fn finish(mut self) -> Result<(Info, Groups<'d, S>)> {
        while self.find()?.is_some() {}
        let at = self.decoder.position();
        let mut info = self.info()?;
        let consistent =
            info.length == self.length && info.last_id >= self.last && info.entries_added >= info.length;
        if !consistent {
            if self.length == 0 || !self.corrections.make() {
                return Err(Error::new(at, Reason::StreamCounters));
            }
            info.length = self.length;
            info.last_id = info.last_id.max(self.last);
            info.entries_added = info.entries_added.max(self.length);
        }
        let is_corrected = self.corrections == Corrections::Made;
        let groups = Groups::open(self.decoder, self.form, info, is_corrected)?;
        Ok((info, groups))
    }

    /// Takes the first id from the entries: Redis stores it only for a quick look-up of its own. The highest
    /// deleted id is limited to the last id, because XSETID of Redis 7.0 can set the last id below it.
    fn info(&mut self) -> Result<Info> {
        let decoder = &mut *self.decoder;
        let (length, last_id) = (counter(decoder)?, id(decoder)?);
        let first_id = self.first;
        if self.form == 1 {
            return Ok(Info { length, first_id, last_id, max_deleted_id: Id::ZERO, entries_added: length });
        }
        id(decoder)?;
        let (max_deleted_id, entries_added) = (id(decoder)?.min(last_id), counter(decoder)?);
        Ok(Info { length, first_id, last_id, max_deleted_id, entries_added })
    }

    fn find(&mut self) -> Result<Option<EntryHeader>> {
        loop {
            let Some(node) = &mut self.node else {
                if self.nodes_left == 0 {
                    return Ok(None);
                }
                self.nodes_left -= 1;
                self.node = Some(Node::open(self.decoder)?);
                continue;
            };
            match node.next(self.decoder.blob(node.blob)).map_err(|flaw| located(node.at, flaw))? {
                None if node.is_as_announced() || self.corrections.make() => self.node = None,
                None => return Err(located(node.at, Flaw::new(0, Reason::Count))),
                Some(found) if found.id <= self.last => return Err(Error::new(node.at, Reason::Order)),
                Some(found) => {
                    if self.length == 0 {
                        self.first = found.id;
                    }
                    self.last = found.id;
                    self.length += 1;
                    return Ok(Some(found));
                }
            }
        }
    }
}

impl Node {
    fn open<S: Source>(decoder: &mut Decoder<S>) -> Result<Node> {
        let id_at = decoder.position();
        let id = match decoder.string()? {
            Item::Bytes(bytes) => bytes.try_into().map(Id::from_bytes).ok(),
            Item::Int(_) => None,
        };
        let id = id.ok_or(Error::new(id_at, Reason::StringForm))?;
        let at = decoder.position();
        let ItemPlace::Whole(blob) = decoder.string_place()? else {
            return Err(Error::new(at, Reason::StringForm));
        };
        Node::start(id, blob, at, decoder.blob(blob)).map_err(|flaw| located(at, flaw))
    }

    /// Reads the node's header, up to the first entry.
    fn start(id: Id, blob: Blob, at: u64, block: &[u8]) -> std::result::Result<Node, Flaw> {
        let mut cursor = Cursor::open(block)?;
        let (live, deleted) = (int(&mut cursor, block)?, int(&mut cursor, block)?);
        let names = count(&mut cursor, block)?;
        let names_at = cursor.position();
        pass(&mut cursor, block, names)?;
        let end_at = cursor.position();
        match int(&mut cursor, block)? {
            0 => Ok(Node { blob, at, cursor, id, names_at, names, live, deleted }),
            _ => Err(Flaw::new(end_at, Reason::StreamEntry)),
        }
    }

    /// Whether the entries seen match the node's counts.
    fn is_as_announced(&self) -> bool {
        self.live == 0 && self.deleted == 0
    }

    /// Returns the next entry that is not deleted.
    fn next(&mut self, block: &[u8]) -> std::result::Result<Option<EntryHeader>, Flaw> {
        loop {
            let start = self.cursor.position();
            let flags = match self.cursor.next(block)? {
                None => return Ok(None),
                Some(Element::Int(flags)) if flags & !(DELETED | SAME_NAMES) == 0 => flags,
                Some(_) => return Err(Flaw::new(start, Reason::StreamEntry)),
            };
            let found = self.entry(start, flags & SAME_NAMES != 0, block)?;
            match flags & DELETED {
                0 => {
                    self.live = self.live.wrapping_sub(1); // a negative count never reaches zero
                    return Ok(Some(found));
                }
                _ => self.deleted = self.deleted.wrapping_sub(1),
            }
        }
    }

    fn entry(&mut self, start: usize, shared: bool, block: &[u8]) -> std::result::Result<EntryHeader, Flaw> {
        let cursor = &mut self.cursor;
        let (ms, seq) = (int(cursor, block)?, int(cursor, block)?);
        // Differences of unsigned numbers, stored as signed numbers.
        let id = Id { ms: self.id.ms.wrapping_add(ms as u64), seq: self.id.seq.wrapping_add(seq as u64) };
        let fields = if shared { self.names } else { count(cursor, block)? };
        let values_at = cursor.position();
        let elements = if shared { fields } else { fields.saturating_mul(2) };
        pass(cursor, block, elements)?;
        // flags, two differences, and the count
        let counted = if shared { elements + 3 } else { elements + 4 };
        match int(cursor, block)? {
            stored if fields > 0 && u64::try_from(stored) == Ok(counted) => {
                Ok(EntryHeader { id, shared, values_at, fields })
            }
            _ => Err(Flaw::new(start, Reason::StreamEntry)),
        }
    }
}

fn int(cursor: &mut Cursor, block: &[u8]) -> std::result::Result<i64, Flaw> {
    let at = cursor.position();
    match cursor.next(block)? {
        Some(Element::Int(number)) => Ok(number),
        _ => Err(Flaw::new(at, Reason::StreamEntry)),
    }
}

fn count(cursor: &mut Cursor, block: &[u8]) -> std::result::Result<u64, Flaw> {
    let at = cursor.position();
    u64::try_from(int(cursor, block)?).map_err(|_| Flaw::new(at, Reason::StreamEntry))
}

/// Skips `elements` elements; an error if fewer are left.
fn pass(cursor: &mut Cursor, block: &[u8], elements: u64) -> std::result::Result<(), Flaw> {
    for _ in 0..elements {
        let at = cursor.position();
        cursor.next(block)?.ok_or(Flaw::new(at, Reason::StreamEntry))?;
    }
    Ok(())
}

fn id<S: Source>(decoder: &mut Decoder<S>) -> Result<Id> {
    Ok(Id { ms: decoder.length()?, seq: decoder.length()? })
}

/// Reads a number that Redis keeps in 64 bits and shows as signed, so that clients can exceed the greatest
/// signed number. Here that number is the limit.
fn counter<S: Source>(decoder: &mut Decoder<S>) -> Result<u64> {
    Ok(decoder.length()?.min(COUNT_MAX))
}
