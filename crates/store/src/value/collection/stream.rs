//! Streams: entries in the order of their ids, and the consumer groups that read them.
//!
//! Entries lie in a tree of pages whose bounds are ids ([`entries`]), groups in a balanced tree of names
//! ([`group`]). A clone shares all of it, and a later write copies the parts that it changes.

mod codec;
mod entries;
mod group;
mod id;
mod idmp;
mod ids;
mod log;

use std::ptr::NonNull;

pub use codec::{Entry, Fields, NAMES_MAX};
pub use entries::{Entries, EntryRange, NodeLimits};
pub use group::{Consumer, Delivery, Group, Pending};
pub use id::StreamId;
pub use idmp::{DURATION_S_MAX, ENTRIES_MAX_MAX, Idmp, Producer};
pub use log::Log;

use super::named::Named;
use super::{Collection, Cut, raw};
use crate::memory::mover::Mover;
use crate::value::Kind;
use crate::value::shared::Shared;

/// Maximum value of the counters of streams and groups: clients and RDB files treat them as signed numbers.
pub const COUNT_MAX: u64 = i64::MAX as u64;

/// Maximum bytes of names and values of an entry, as in Redis.
pub const ENTRY_MAX: usize = 1 << 30;

/// Maximum number of names and values of an entry. A request of 4 GiB has no room for more, and an entry of
/// this many, at two bytes each in a packed block, stays below 4 GiB as well.
pub const PARTS_MAX: usize = 1 << 30;

/// A counter, incremented.
pub fn one_more(count: u64) -> u64 {
    count.saturating_add(1).min(COUNT_MAX)
}

/// See the module's documentation. An entry has at most [`ENTRY_MAX`] bytes of names and values.
#[derive(Clone)]
pub struct Stream(Shared<Body>);

#[derive(Clone)]
struct Body {
    log: Log,
    groups: Named<Group>,
    /// `None` until it is used.
    idmp: Option<Shared<Idmp>>,
    /// The stream has been written to, so it exists, even if it is empty.
    exists: bool,
}

impl Collection for Stream {
    const KIND: Kind = Kind::Stream;

    fn new() -> Stream {
        Stream(Shared::new(Body { log: Log::new(), groups: Named::default(), idmp: None, exists: false }))
    }

    /// Only before the first write: a stream without entries exists as well.
    fn is_empty(&self) -> bool {
        !self.0.exists
    }

    fn is_same(&self, other: &Stream) -> bool {
        self.0.is_same(&other.0)
    }
}

impl raw::Raw for Stream {
    fn into_raw(self) -> NonNull<u8> {
        self.0.into_raw()
    }

    unsafe fn from_raw(raw: NonNull<u8>) -> Stream {
        // SAFETY: by the caller's promise.
        Stream(unsafe { Shared::from_raw(raw) })
    }
}

impl Stream {
    /// Moves pages of entries; see [`Entries::relocate`].
    pub(crate) fn relocate(&mut self, from: u64, mover: &mut Mover<'_>) -> Option<u64> {
        if self.0.is_own() { self.0.own().log.entries.relocate(from, mover) } else { None }
    }

    pub fn log(&self) -> &Log {
        &self.0.log
    }

    pub fn entries(&self) -> &Entries {
        &self.0.log.entries
    }

    /// Number of entries.
    #[expect(clippy::len_without_is_empty, reason = "`Collection` has it, and it means something else")]
    pub fn len(&self) -> u64 {
        self.entries().len()
    }

    // Writing. All of these make the stream exist.

    #[inline]
    fn body(&mut self) -> &mut Body {
        let body = self.0.own();
        body.exists = true;
        body
    }

    /// Makes the stream exist, and does nothing else.
    pub fn make(&mut self) {
        self.body();
    }

    /// Appends an entry; `fields` are names and values in turn. Returns the bytes that the entry takes; the
    /// first entry of a page includes the names that later entries share. Returns `None`, and does nothing,
    /// if the id is not greater than the last id.
    #[inline]
    pub fn append<'f>(
        &mut self,
        id: StreamId,
        fields: impl ExactSizeIterator<Item = &'f [u8]> + Clone,
        limits: NodeLimits,
    ) -> Option<usize> {
        if id <= self.0.log.last_id {
            return None;
        }
        let log = &mut self.body().log;
        let bytes = log.entries.push(id, fields, limits);
        log.last_id = id;
        log.added = one_more(log.added);
        Some(bytes)
    }

    /// Removes an entry; returns false if it does not exist.
    pub fn delete(&mut self, id: StreamId) -> bool {
        if !self.entries().contains(id) {
            return false;
        }
        let log = &mut self.body().log;
        log.max_deleted_id = log.max_deleted_id.max(id);
        log.entries.remove(id)
    }

    /// Removes `count` entries at the start, at most all; the part cut off may take long to free.
    pub fn trim(&mut self, count: u64) -> Cut {
        self.body().log.entries.remove_first(count)
    }

    /// Sets the counters that include removed entries. The last id is not less than that of any entry, and at
    /// least as many entries were added as exist. The largest deleted id is limited to the last id: in Redis
    /// 7.0 the last id can be set back to before it.
    pub fn set_history(&mut self, last_id: StreamId, added: u64, max_deleted_id: StreamId) {
        let log = &mut self.body().log;
        (log.last_id, log.added) = (last_id, added.min(COUNT_MAX));
        log.max_deleted_id = max_deleted_id.min(last_id);
    }

    // Groups.

    /// Names and groups, in the order of the names.
    pub fn groups(&self) -> impl Iterator<Item = (&[u8], &Group)> {
        self.0.groups.iter()
    }

    pub fn groups_len(&self) -> usize {
        self.0.groups.len()
    }

    pub fn group(&self, name: &[u8]) -> Option<&Group> {
        self.0.groups.get(name)
    }

    /// A group, for changes, and the log that it reads.
    pub fn group_mut(&mut self, name: &[u8]) -> Option<(&mut Group, &Log)> {
        self.group(name)?;
        let Body { log, groups, .. } = self.body();
        Some((groups.get_mut(name)?, log))
    }

    /// Adds a group; returns false if the name exists.
    pub fn add_group(&mut self, name: &[u8], group: Group) -> bool {
        let is_new = self.group(name).is_none();
        if is_new {
            self.body().groups.insert(name, group);
        }
        is_new
    }

    /// Removes a group; its pending entries may take long to free. Returns `None` if there is no such group.
    pub fn remove_group(&mut self, name: &[u8]) -> Option<Cut> {
        self.group(name)?;
        Some(self.body().groups.remove(name)?.into_cut())
    }

    // Idempotent production.

    pub fn idmp(&self) -> Option<&Idmp> {
        self.0.idmp.as_deref()
    }

    pub fn idmp_mut(&mut self) -> &mut Idmp {
        self.body().idmp.get_or_insert_with(|| Shared::new(Idmp::default())).own()
    }

    // References.

    /// Returns true if a group has the entry pending, or has still to deliver it.
    pub fn is_referenced(&self, id: StreamId) -> bool {
        self.groups().any(|(_, group)| group.last_id() < id || group.pending(id).is_some())
    }

    /// The entries, among the first `count`, that no group has pending or has still to deliver. Takes time in
    /// proportion to the pending entries of all groups, including entries that are deleted.
    pub fn unreferenced(&self, count: u64) -> impl Iterator<Item = StreamId> {
        let delivered = self.groups().map(|(_, group)| group.last_id()).min().unwrap_or(StreamId::MAX);
        let end = delivered.next().map_or(count, |next| count.min(self.entries().position(next)));
        let groups = self.groups().filter(|_| end > 0);
        let mut pending: Vec<_> =
            groups.map(|(_, group)| group.pending_ids(StreamId::MIN, delivered).peekable()).collect();
        let ids = self.entries().range(0..end).map(|entry| entry.id);
        ids.filter(move |id| {
            !pending.iter_mut().any(|pending| {
                while pending.next_if(|before| before < id).is_some() {}
                pending.peek() == Some(id)
            })
        })
    }

    /// Makes all groups forget an entry; returns the number of groups that had it pending.
    pub fn forget(&mut self, id: StreamId) -> u64 {
        let holders = self.groups().filter(|(_, group)| group.pending(id).is_some());
        let holders: Vec<Box<[u8]>> = holders.map(|(name, _)| name.into()).collect();
        for name in &holders {
            let groups = &mut self.body().groups;
            groups.get_mut(name).expect("just seen").forget(id);
        }
        holders.len() as u64
    }

    /// Makes all groups forget the first `count` entries.
    pub fn forget_first(&mut self, count: u64) {
        let last = count.checked_sub(1).and_then(|at| self.entries().range(at..count).next());
        let Some(last) = last.map(|entry| entry.id) else { return };
        let pending = self.groups().flat_map(|(_, group)| group.pending_range(StreamId::MIN, last));
        // Entries deleted before stay pending.
        let pending = pending.map(|pending| pending.id).filter(|id| self.entries().contains(*id));
        let mut ids: Vec<StreamId> = pending.collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().for_each(|id| _ = self.forget(id));
    }

    // The stream as a whole.

    /// Bytes of memory, shared or not.
    pub fn memory(&self) -> usize {
        let groups: usize = self.groups().map(|(name, group)| name.len() + group.memory()).sum();
        let idmp = self.idmp().map_or(0, Idmp::memory);
        size_of::<Body>() + size_of::<u64>() + self.entries().tree().memory() + groups + idmp
    }

    /// Bytes of memory of pages that other streams refer to as well: all of them if there are more than
    /// `owners` references to this stream. Its groups count as shared. Takes time in proportion to the pages.
    pub fn shared_memory(&self, owners: u32) -> usize {
        let groups: usize = self.groups().map(|(name, group)| name.len() + group.memory()).sum();
        let owners = if self.0.refs() > owners { 0 } else { 1 };
        self.entries().tree().shared_memory(owners) + groups
    }

    /// Number of pages of its entries, counted up to `max`.
    pub fn pages_up_to(&self, max: usize) -> usize {
        self.entries().tree().pages_up_to(max)
    }

    pub(crate) fn memory_of_entries(&self) -> usize {
        self.entries().tree().memory()
    }

    /// Like `memory`, counted up to `max`, which bounds the time.
    pub fn memory_up_to(&self, max: usize) -> usize {
        let mut bytes = self.entries().tree().memory_up_to(max);
        for (name, group) in self.groups() {
            if bytes >= max {
                break;
            }
            bytes += name.len() + group.memory();
        }
        bytes.min(max)
    }

    /// Returns true if no other owner shares the whole value.
    pub(crate) fn is_own(&self) -> bool {
        self.0.is_own()
    }

    pub(crate) fn weight(&self) -> usize {
        let entries = self.entries().tree().weight();
        let is_complex = |idmp: &Idmp| idmp.producers_len() > 0;
        if self.groups_len() > group::FEW || self.idmp().is_some_and(is_complex) {
            return usize::MAX;
        }
        self.groups().map(|(_, group)| group.weight()).fold(entries, usize::saturating_add)
    }

    /// Returns true if both share the whole value, so neither was written to since it was cloned.
    pub fn is_same(&self, other: &Stream) -> bool {
        self.0.is_same(&other.0)
    }

    /// Panics if an invariant between the parts is broken. For tests; takes time in proportion to the stream.
    pub fn verify(&self) {
        let log = self.log();
        let ids: Vec<StreamId> = self.entries().range(0..u64::MAX).map(|entry| entry.id).collect();
        assert!(ids.is_sorted_by(|a, b| a < b), "ids rise");
        assert!(ids.last().is_none_or(|last| *last <= log.last_id), "the last id is the greatest");
        self.groups().for_each(|(_, group)| group.verify());
    }
}

#[cfg(test)]
mod tests;
