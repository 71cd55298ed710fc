//! The consumer groups of a stream.
//!
//! ```text
//! groups | (name | last id | [entries read] | pending .. | consumers .. | [count | (id, 16 bytes) ..]) ..
//!        | [idmp]
//! pending:  count | (id, 16 bytes | delivered, 8 bytes | deliveries) ..
//! consumer: name | seen, 8 bytes | [active, 8 bytes] | count | (id, 16 bytes) ..
//! idmp:     duration | most entries | producers | (name | count | (producer's id | id) ..) .. | added
//!           | duplicates
//! ```
//!
//! Each pending entry is stored twice: in the group, and, as its id alone, in the consumer that owns it, or
//! behind the consumers if none does.

use std::collections::HashSet;

use super::super::Decoder;
use super::super::seen::SeenMembers;
use super::{COUNT_MAX, counter, id};
use crate::Millis;
use crate::error::{Error, Reason, Result};
use crate::item::Item;
use crate::source::Source;
use crate::stream::{Consumer, Group, Id, Idmp, Info, NOBODY, Pending, Producer};

/// Stored for a missing time or an unknown number.
const UNKNOWN: u64 = u64::MAX;

const GROUP_BYTES_MIN: u64 = 5;
const PENDING_BYTES_MIN: u64 = 25;
const CONSUMER_BYTES_MIN: u64 = 10;
const ID_BYTES: u64 = 16;
const PRODUCER_BYTES_MIN: u64 = 2;
const IID_BYTES_MIN: u64 = 3;

/// Reads the groups in sequence.
pub struct Groups<'d, S> {
    decoder: &'d mut Decoder<S>,
    form: u8,
    info: Info,
    is_corrected: bool,
    left: u64,
    seen: SeenMembers,
    idmp: Option<Idmp>,
}

impl<'d, S: Source> Groups<'d, S> {
    pub(super) fn open(
        decoder: &'d mut Decoder<S>,
        form: u8,
        info: Info,
        is_corrected: bool,
    ) -> Result<Self> {
        let left = decoder.count(GROUP_BYTES_MIN)?;
        let seen = SeenMembers::default();
        let mut groups = Groups { decoder, form, info, is_corrected, left, seen, idmp: None };
        groups.read_end()?;
        Ok(groups)
    }

    /// What the stream remembers of its producers, once the last group was read.
    pub fn take_idmp(&mut self) -> Option<Idmp> {
        self.idmp.take()
    }

    /// Reads the data behind the last group.
    fn read_end(&mut self) -> Result<()> {
        if self.left == 0 && self.form >= 4 {
            self.idmp = Some(self.read_idmp()?);
        }
        Ok(())
    }

    fn read_idmp(&mut self) -> Result<Idmp> {
        let (duration_s, entries_max) = (counter(self.decoder)?, counter(self.decoder)?);
        let (mut seen, mut producers) = (SeenMembers::default(), Vec::new());
        for _ in 0..self.decoder.count(PRODUCER_BYTES_MIN)? {
            let at = self.decoder.position();
            let name = self.decoder.string_to_own()?;
            if !seen.insert(Item::Bytes(&name)) {
                return Err(Error::new(at, Reason::Duplicate));
            }
            producers.push(Producer { name, entries: self.producer_entries()? });
        }
        let (added, duplicates) = (counter(self.decoder)?, counter(self.decoder)?);
        Ok(Idmp { duration_s, entries_max, producers, added, duplicates })
    }

    fn producer_entries(&mut self) -> Result<Vec<(Vec<u8>, Id)>> {
        let (mut seen, mut entries) = (SeenMembers::default(), Vec::new());
        for _ in 0..self.decoder.count(IID_BYTES_MIN)? {
            let at = self.decoder.position();
            let iid = self.decoder.string_to_own()?;
            if !seen.insert(Item::Bytes(&iid)) {
                return Err(Error::new(at, Reason::Duplicate));
            }
            entries.push((iid, id(self.decoder)?));
        }
        Ok(entries)
    }

    /// Whether the entries contradict the stream's counters or ids, see
    /// [`Stream::allow_corrections`](super::Stream::allow_corrections).
    pub fn is_of_corrected(&self) -> bool {
        self.is_corrected
    }

    /// Returns the next group; `None` behind the last.
    #[allow(clippy::should_implement_trait, reason = "it fails, and goes on no further")]
    pub fn next(&mut self) -> Result<Option<Group>> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        let at = self.decoder.position();
        let name = self.decoder.string_to_own()?;
        if !self.seen.insert(Item::Bytes(&name)) {
            return Err(Error::new(at, Reason::Duplicate));
        }
        let last_id = id(self.decoder)?;
        let entries_read = match self.form {
            1 => read_up_to(last_id, &self.info),
            _ => self.entries_read()?,
        };
        let mut pending = self.pending()?;
        let consumers = self.consumers(&mut pending)?;
        let released = if self.form < 5 { Vec::new() } else { self.released(&pending)? };
        let owned = pending.iter().filter(|pending| pending.consumer != NOBODY).count();
        if owned + released.len() != pending.len() {
            return Err(Error::new(at, Reason::Pending));
        }
        self.read_end()?;
        Ok(Some(Group { name, last_id, entries_read, pending, consumers, released }))
    }

    /// Reads the ids of pending entries without an owner.
    fn released(&mut self, pending: &[Pending]) -> Result<Vec<Id>> {
        let (mut released, mut seen) = (Vec::new(), HashSet::new());
        for _ in 0..self.decoder.count(ID_BYTES)? {
            let at = self.decoder.position();
            let id = Id::from_bytes(self.decoder.fixed()?);
            let place = pending.binary_search_by_key(&id, |pending| pending.id);
            let is_unowned = place.is_ok_and(|place| pending[place].consumer == NOBODY);
            if !is_unowned || !seen.insert(id) {
                return Err(Error::new(at, Reason::Pending));
            }
            released.push(id);
        }
        Ok(released)
    }

    fn entries_read(&mut self) -> Result<Option<u64>> {
        match self.decoder.length()? {
            UNKNOWN => Ok(None),
            number => Ok(Some(number.min(COUNT_MAX))),
        }
    }

    fn pending(&mut self) -> Result<Vec<Pending>> {
        let count = self.decoder.count(PENDING_BYTES_MIN)?;
        let mut all: Vec<Pending> = Vec::new();
        for _ in 0..count {
            let at = self.decoder.position();
            let id = Id::from_bytes(self.decoder.fixed()?);
            if all.last().is_some_and(|last| last.id >= id) {
                return Err(Error::new(at, Reason::Order));
            }
            let (delivered, deliveries) = (self.decoder.millis()?, counter(self.decoder)?);
            all.push(Pending { id, delivered, deliveries, consumer: NOBODY });
        }
        Ok(all)
    }

    fn consumers(&mut self, pending: &mut [Pending]) -> Result<Vec<Consumer>> {
        let (mut seen, mut all) = (SeenMembers::default(), Vec::new());
        let at = self.decoder.position();
        let count = self.decoder.count(CONSUMER_BYTES_MIN)?;
        let count = u32::try_from(count).ok().filter(|count| *count < NOBODY);
        for index in 0..count.ok_or(Error::new(at, Reason::TooLong))? {
            let at = self.decoder.position();
            let name = self.decoder.string_to_own()?;
            if !seen.insert(Item::Bytes(&name)) {
                return Err(Error::new(at, Reason::DuplicateConsumer));
            }
            let time = self.decoder.millis()?;
            let active = if self.form < 3 { Some(time) } else { self.active()? };
            all.push(Consumer { name, seen: time, active });
            self.own(pending, index)?;
        }
        Ok(all)
    }

    fn active(&mut self) -> Result<Option<Millis>> {
        let at = self.decoder.position();
        match i64::from_le_bytes(self.decoder.fixed()?) {
            -1 => Ok(None),
            time => u64::try_from(time).map(Some).map_err(|_| Error::new(at, Reason::Time)),
        }
    }

    /// Reads the ids of a consumer's pending entries.
    fn own(&mut self, pending: &mut [Pending], index: u32) -> Result<()> {
        for _ in 0..self.decoder.count(ID_BYTES)? {
            let at = self.decoder.position();
            let id = Id::from_bytes(self.decoder.fixed()?);
            let place = pending.binary_search_by_key(&id, |pending| pending.id);
            match place.ok().map(|place| &mut pending[place]) {
                Some(pending) if pending.consumer == NOBODY => pending.consumer = index,
                Some(pending) if pending.consumer == index => {
                    return Err(Error::new(at, Reason::DuplicatePending));
                }
                _ => return Err(Error::new(at, Reason::Pending)),
            }
        }
        Ok(())
    }
}

/// Returns a group's number of read entries for the form without it, as Redis 7 computes it.
///
/// That form does not store the number of deleted entries, so none count as deleted. The result is known at
/// or before the first entry, at the last, and in an empty stream.
fn read_up_to(last_id: Id, info: &Info) -> Option<u64> {
    match info.length {
        0 => Some(0),
        length if last_id == info.last_id => Some(length),
        _ if last_id > info.last_id => None,
        _ if last_id < info.first_id => Some(0),
        _ if last_id == info.first_id => Some(1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Redis 7.0 shows these as `entries-read` after it has restored such streams from Redis 6.2.
    #[test]
    fn the_count_of_entries_read_is_computed_like_in_redis() {
        let id = |ms: u64| Id { ms, seq: 0 };
        let three =
            Info { length: 3, first_id: id(2), last_id: id(9), max_deleted_id: Id::ZERO, entries_added: 3 };
        let read: Vec<Option<u64>> = [0, 1, 2, 3, 8, 9, 10].map(|ms| read_up_to(id(ms), &three)).to_vec();
        assert_eq!(read, [Some(0), Some(0), Some(1), None, None, Some(3), None]);
        let empty = Info { last_id: id(9), ..Info::default() };
        assert_eq!([0, 9, 10].map(|ms| read_up_to(id(ms), &empty)), [Some(0); 3]);
    }
}
