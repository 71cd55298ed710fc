//! A stream's entries, and the record of its removed entries.

use super::entries::Entries;
use super::id::StreamId;

/// See the module's documentation.
#[derive(Clone)]
pub struct Log {
    pub(super) entries: Entries,
    pub(super) last_id: StreamId,
    pub(super) max_deleted_id: StreamId,
    pub(super) added: u64,
}

impl Log {
    pub(super) fn new() -> Log {
        let none = StreamId::MIN;
        Log { entries: Entries::new(), last_id: none, max_deleted_id: none, added: 0 }
    }

    pub fn entries(&self) -> &Entries {
        &self.entries
    }

    /// The greatest id there ever was.
    pub fn last_id(&self) -> StreamId {
        self.last_id
    }

    /// The first entry's id; zeros if there is none.
    pub fn first_id(&self) -> StreamId {
        self.entries.first().map_or(StreamId::MIN, |entry| entry.id)
    }

    /// The greatest id that was deleted on its own, not by trimming.
    pub fn max_deleted_id(&self) -> StreamId {
        self.max_deleted_id
    }

    /// Number of entries ever added.
    pub fn added(&self) -> u64 {
        self.added
    }

    /// Returns true if an entry from `id` on may have been deleted.
    pub fn has_gap_from(&self, id: StreamId) -> bool {
        !self.entries.is_empty() && self.max_deleted_id > StreamId::MIN && id <= self.max_deleted_id
    }

    /// Number of entries ever added up to and including `id`, if it can be determined. Decided as in Redis,
    /// since clients see the result.
    pub fn rank_ever(&self, id: StreamId) -> Option<u64> {
        let len = self.entries.len();
        if self.added == 0 {
            return Some(0);
        }
        if len == 0 && id <= self.last_id {
            return Some(self.added);
        }
        if id > StreamId::MIN && id < self.max_deleted_id {
            return None;
        }
        if id >= self.last_id {
            return (id == self.last_id).then_some(self.added);
        }
        let first = self.first_id();
        let no_gap = self.max_deleted_id == StreamId::MIN || self.max_deleted_id < first;
        (no_gap && id <= first).then(|| self.added.saturating_sub(len) + u64::from(id == first))
    }
}
