//! Consumer groups: the position of a group, its pending entries, and their consumers.
//!
//! ```text
//! pending of the group:     id | time after the id's | deliveries | number of the consumer
//! pending of a consumer:    id
//! names:                    the consumer's name, at the position of its number
//! ```
//!
//! An entry that was delivered and not acknowledged is in two trees in the order of ids, the group's and its
//! consumer's. So acknowledging, claiming and reading a range of a million of them are walks down two trees.
//! The group's items refer to their consumer by a number, of a single byte while there are few, and a third
//! tree has the names of the numbers.
//!
//! A released entry (XNACK) is pending and belongs to no consumer. Its item has a rank in place of the time:
//! released entries are in the order in which they were released.

use super::super::Cut;
use super::super::named::Named;
use super::super::tree::Tree;
use super::super::varint::{self, Varint};
use super::id::StreamId;
use super::ids::Ids;
use super::log::Log;
use super::one_more;

/// See the module's documentation.
#[derive(Clone)]
pub struct Group {
    last_id: StreamId,
    entries_read: Option<u64>,
    pending: Ids,
    consumers: Named<Consumer>,
    /// At the position of an unused number: four bytes, the next unused number.
    names: Tree,
    /// The first unused number, or [`NOBODY`].
    free: u32,
    /// Number of released entries, and the rank of the next.
    released: u64,
    next_rank: u64,
}

const NOBODY: u32 = u32::MAX;

/// A consumer of a group.
#[derive(Clone)]
pub struct Consumer {
    number: u32,
    /// Time of its last attempt to get entries, in milliseconds since the Unix epoch.
    pub seen_ms: u64,
    /// Time at which it last got an entry, if ever.
    pub active_ms: Option<u64>,
    pending: Ids,
}

/// An entry that was delivered and not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending<'a> {
    pub id: StreamId,
    /// Empty for a released entry.
    pub consumer: &'a [u8],
    /// At time zero for a released entry.
    pub delivery: Delivery,
    /// The place of a released entry among the released entries.
    pub rank: Option<u64>,
}

/// Time of the last delivery of an entry, and the number of deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// In milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// At most [`super::COUNT_MAX`].
    pub count: u64,
}

/// The part of a group's item after the id.
#[derive(Clone, Copy)]
struct Note {
    delivery: Delivery,
    consumer: u32,
}

impl Note {
    fn read(id: StreamId, text: &[u8]) -> Note {
        let (after, text) = varint::read(text);
        let (count, text) = varint::read(text);
        let (consumer, _) = varint::read(text);
        let after = (after >> 1) ^ (after & 1).wrapping_neg();
        let at_ms = id.ms.wrapping_add(after);
        Note { delivery: Delivery { at_ms, count }, consumer: consumer as u32 }
    }

    /// The time is stored relative to the id, which is short if ids are times, as an integer with its sign in
    /// the lowest bit.
    fn with_bytes<R>(self, id: StreamId, then: impl FnOnce(&[u8]) -> R) -> R {
        let after = self.delivery.at_ms.wrapping_sub(id.ms) as i64;
        let after = (after << 1 ^ after >> 63) as u64;
        let numbers = [after, self.delivery.count, self.consumer.into()];
        let mut bytes = [0; 3 * varint::LEN_MAX];
        let mut len = 0;
        for number in numbers {
            let number = Varint::new(number);
            let number = number.as_bytes();
            bytes[len..len + number.len()].copy_from_slice(number);
            len += number.len();
        }
        then(&bytes[..len])
    }
}

impl Group {
    /// `entries_read`: number of entries up to and including `last_id`, if known.
    pub fn new(last_id: StreamId, entries_read: Option<u64>) -> Group {
        let (pending, consumers, names) = (Ids::new(), Named::default(), Tree::new());
        Group { last_id, entries_read, pending, consumers, names, free: NOBODY, released: 0, next_rank: 0 }
    }

    /// The last entry that was delivered.
    pub fn last_id(&self) -> StreamId {
        self.last_id
    }

    /// Number of entries, among all ever added, that were delivered or skipped, if known.
    pub fn entries_read(&self) -> Option<u64> {
        self.entries_read
    }

    /// Sets the position to another entry.
    pub fn set_position(&mut self, last_id: StreamId, entries_read: Option<u64>) {
        (self.last_id, self.entries_read) = (last_id, entries_read);
    }

    /// Records that these entries of the log, which come after the last delivered entry, are being delivered.
    /// As in Valkey, the count continues only if no entry is missing between the last delivered entry and
    /// these: it may have been set to any value.
    pub fn advance(&mut self, ids: &[StreamId], log: &Log) {
        let first_id = log.first_id();
        for id in ids {
            let is_among_entries = self.last_id >= first_id && !log.has_gap_from(self.last_id);
            self.entries_read = match self.entries_read {
                Some(read) if is_among_entries => Some(one_more(read)),
                _ => log.rank_ever(*id),
            };
            self.last_id = *id;
        }
    }

    /// Number of entries still to be delivered, if it can be determined; computed as in Valkey and in Redis
    /// up to 7.2.5, which count trimmed entries too. (Later versions of Redis take the length after a trim.)
    /// A stream without entries has nothing to deliver to a group beyond them, as in Redis 8; Valkey calls
    /// that unknown.
    pub fn lag(&self, log: &Log) -> Option<u64> {
        if log.added() == 0 {
            return Some(0);
        }
        let read = match self.entries_read {
            Some(read) if !log.has_gap_from(self.last_id) => Some(read),
            _ => log.rank_ever(self.last_id),
        };
        let lag = read.map(|read| log.added().wrapping_sub(read));
        lag.or_else(|| log.entries().is_empty().then_some(0))
    }

    // Consumers.

    /// Names and consumers, in the order of the names.
    pub fn consumers(&self) -> impl Iterator<Item = (&[u8], &Consumer)> {
        self.consumers.iter()
    }

    pub fn consumers_len(&self) -> usize {
        self.consumers.len()
    }

    pub fn consumer(&self, name: &[u8]) -> Option<&Consumer> {
        self.consumers.get(name)
    }

    pub fn consumer_mut(&mut self, name: &[u8]) -> Option<&mut Consumer> {
        self.consumers.get_mut(name)
    }

    /// Adds a consumer that has never got an entry; returns false if the name exists.
    pub fn add_consumer(&mut self, name: &[u8], seen_ms: u64) -> bool {
        if self.consumers.get(name).is_some() {
            return false;
        }
        let number = self.take_number(name);
        self.consumers.insert(name, Consumer { number, seen_ms, active_ms: None, pending: Ids::new() });
        true
    }

    /// Removes a consumer and its pending entries; returns their number, or `None` if there is no such
    /// consumer.
    pub fn remove_consumer(&mut self, name: &[u8]) -> Option<(u64, Cut)> {
        let consumer = self.consumers.remove(name)?;
        for (id, _) in consumer.pending.range(StreamId::MIN, StreamId::MAX) {
            self.pending.remove(id, |_| ());
        }
        self.names.replace_at(consumer.number.into(), &[&self.free.to_le_bytes()]);
        self.free = consumer.number;
        Some((consumer.pending.len(), Cut(vec![consumer.pending.into_tree()])))
    }

    fn take_number(&mut self, name: &[u8]) -> u32 {
        if self.free == NOBODY {
            let number = u32::try_from(self.names.len()).expect("fewer consumers than would fill the memory");
            self.names.insert_at(number.into(), &[name]);
            return number;
        }
        let number = self.free;
        let next = self.names.get(number.into()).expect("every number has a place");
        self.free = u32::from_le_bytes(next.try_into().expect("a number that nobody has leads to the next"));
        self.names.replace_at(number.into(), &[name]);
        number
    }

    fn name_of(&self, number: u32) -> &[u8] {
        self.names.get(number.into()).expect("a consumer that is named in a note is there")
    }

    // Pending entries.

    pub fn pending_len(&self) -> u64 {
        self.pending.len()
    }

    pub fn pending(&self, id: StreamId) -> Option<Pending<'_>> {
        self.pending.get(id).map(|text| self.pending_of(id, text))
    }

    /// Pending entries whose ids lie in a range, both ends included.
    pub fn pending_range(
        &self,
        from: StreamId,
        to: StreamId,
    ) -> impl DoubleEndedIterator<Item = Pending<'_>> + ExactSizeIterator {
        self.pending.range(from, to).map(|(id, text)| self.pending_of(id, text))
    }

    /// Ids of pending entries in a range, both ends included.
    pub fn pending_ids(
        &self,
        from: StreamId,
        to: StreamId,
    ) -> impl DoubleEndedIterator<Item = StreamId> + ExactSizeIterator {
        self.pending.range(from, to).map(|(id, _)| id)
    }

    fn pending_of<'a>(&'a self, id: StreamId, text: &[u8]) -> Pending<'a> {
        let Note { delivery, consumer } = Note::read(id, text);
        if consumer == NOBODY {
            let (rank, delivery) = (Some(delivery.at_ms), Delivery { at_ms: 0, ..delivery });
            return Pending { id, consumer: b"", delivery, rank };
        }
        Pending { id, consumer: self.name_of(consumer), delivery, rank: None }
    }

    /// Number of released entries.
    pub fn released_len(&self) -> u64 {
        self.released
    }

    /// Released entries, in the order in which they were released.
    pub fn released(&self) -> Vec<Pending<'_>> {
        if self.released == 0 {
            return Vec::new();
        }
        let all = self.pending_range(StreamId::MIN, StreamId::MAX);
        let mut released: Vec<Pending<'_>> = all.filter(|one| one.rank.is_some()).collect();
        released.sort_unstable_by_key(|one| one.rank);
        released
    }

    /// Takes an entry from its consumer, if it has one, and leaves it pending, behind all released entries.
    /// `count`: its number of deliveries.
    pub fn release(&mut self, id: StreamId, count: u64) {
        let note = Note { delivery: Delivery { at_ms: self.next_rank, count }, consumer: NOBODY };
        self.next_rank += 1;
        let before =
            note.with_bytes(id, |text| self.pending.set(id, text, |text| Note::read(id, text).consumer));
        self.released += 1;
        if let Some(before) = before {
            self.take_from(before, id);
        }
    }

    /// Delivers entries to a consumer, which exists, and counts it as their first delivery.
    pub fn deliver(&mut self, consumer: &[u8], ids: impl Iterator<Item = StreamId>, now_ms: u64) {
        let owner = self.consumers.get_mut(consumer).expect("the caller has made sure of it");
        let note = Note { delivery: Delivery { at_ms: now_ms, count: 1 }, consumer: owner.number };
        let mut others: Vec<(u32, StreamId)> = Vec::new();
        for id in ids {
            let before =
                note.with_bytes(id, |text| self.pending.set(id, text, |text| Note::read(id, text).consumer));
            owner.pending.set(id, b"", |_| ());
            // Delivered before, and the group was set back since.
            others.extend(before.filter(|number| *number != owner.number).map(|number| (number, id)));
        }
        others.into_iter().for_each(|(number, id)| self.take_from(number, id));
    }

    /// Gives an entry to a consumer, which exists, whether or not another consumer has it pending.
    pub fn give(&mut self, id: StreamId, consumer: &[u8], delivery: Delivery) {
        let owner = self.consumers.get_mut(consumer).expect("the caller has made sure of it");
        let (number, note) = (owner.number, Note { delivery, consumer: owner.number });
        let before =
            note.with_bytes(id, |text| self.pending.set(id, text, |text| Note::read(id, text).consumer));
        if before != Some(number) {
            owner.pending.set(id, b"", |_| ());
            if let Some(before) = before {
                self.take_from(before, id);
            }
        }
    }

    /// Forgets an entry that was acknowledged or deleted; returns false if it was not pending.
    pub fn forget(&mut self, id: StreamId) -> bool {
        let owner = self.pending.remove(id, |text| Note::read(id, text).consumer);
        if let Some(number) = owner {
            self.take_from(number, id);
        }
        owner.is_some()
    }

    fn take_from(&mut self, number: u32, id: StreamId) {
        if number == NOBODY {
            self.released -= 1;
            return;
        }
        let name = self.names.get(number.into()).expect("a consumer that is named in a note is there");
        let consumer = self.consumers.get_mut(name).expect("a number stands for a consumer");
        consumer.pending.remove(id, |_| ());
    }

    // The group as a whole.

    pub(super) fn memory(&self) -> usize {
        let consumers: usize = self.consumers().map(|(name, consumer)| name.len() + consumer.memory()).sum();
        size_of::<Group>() + self.pending.memory() + self.names.memory() + consumers
    }

    /// Counts the consumers while they are few.
    pub(super) fn weight(&self) -> usize {
        if self.consumers_len() > FEW {
            return usize::MAX;
        }
        let consumers = self.consumers().map(|(_, consumer)| consumer.pending.weight());
        consumers.fold(self.pending.weight(), usize::saturating_add)
    }

    /// The parts that may take long to free.
    pub(super) fn into_cut(self) -> Cut {
        let consumers = self.consumers.iter().map(|(_, consumer)| consumer.pending.clone().into_tree());
        let mut trees: Vec<Tree> = consumers.collect();
        trees.extend([self.pending.into_tree(), self.names]);
        Cut(trees)
    }

    /// Panics if a count or a reference is wrong. For tests.
    pub(super) fn verify(&self) {
        let mut pending = 0;
        for (name, consumer) in self.consumers() {
            assert_eq!(self.name_of(consumer.number), name, "a number leads back to its name");
            for id in consumer.pending_ids(StreamId::MIN, StreamId::MAX) {
                let owner = self.pending(id).map(|pending| pending.consumer);
                assert_eq!(owner, Some(name), "the group knows who has an entry");
            }
            pending += consumer.pending_len();
        }
        assert_eq!(self.released().len() as u64, self.released, "released entries are counted");
        assert_eq!(pending + self.released, self.pending_len(), "every other pending entry has one consumer");
    }
}

/// Up to this many groups, or consumers of a group, are visited to estimate how long dropping them takes.
pub(super) const FEW: usize = 64;

impl Consumer {
    pub fn pending_len(&self) -> u64 {
        self.pending.len()
    }

    /// The ids of its pending entries in a range, both ends included.
    pub fn pending_ids(
        &self,
        from: StreamId,
        to: StreamId,
    ) -> impl DoubleEndedIterator<Item = StreamId> + ExactSizeIterator {
        self.pending.range(from, to).map(|(id, _)| id)
    }

    fn memory(&self) -> usize {
        size_of::<Consumer>() + self.pending.memory()
    }
}
