//! A stream's data beside its entries: ids, counters, consumer groups. The same types for reading and
//! writing.

use crate::Millis;
use crate::kind::Version;

/// The id of an entry: a time, and a number within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    pub ms: Millis,
    pub seq: u64,
}

impl Id {
    pub const ZERO: Id = Id { ms: 0, seq: 0 };

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Id {
        let both = u128::from_be_bytes(bytes);
        Id { ms: (both >> 64) as u64, seq: both as u64 }
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.ms) << 64 | u128::from(self.seq)).to_be_bytes()
    }
}

/// Counters and ids of a stream, consistent with its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Number of entries.
    pub length: u64,
    /// Id of the first entry; zero if there is none.
    pub first_id: Id,
    /// The last id given out, even if its entry is deleted.
    pub last_id: Id,
    /// The highest id that XDEL removed; zero: none. `max_deleted_id <= last_id`.
    pub max_deleted_id: Id,
    /// Number of entries ever added, `>= length`.
    pub entries_added: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    pub name: Vec<u8>,
    /// The last delivered id; it may lie beyond the stream's last id.
    pub last_id: Id,
    /// Number of entries read; `None`: unknown.
    pub entries_read: Option<u64>,
    /// Delivered and not acknowledged, by ascending id. The entry itself may be gone.
    pub pending: Vec<Pending>,
    /// Names are unique.
    pub consumers: Vec<Consumer>,
    /// Pending entries that belong to no consumer, in the order in which they were released (XNACK).
    pub released: Vec<Id>,
}

impl Group {
    /// The lowest version that loses nothing: version 10 takes each consumer's `active` for its `seen`.
    pub fn version(&self) -> Version {
        if !self.released.is_empty() {
            return Version::V14;
        }
        let lossless = self.consumers.iter().all(|consumer| consumer.active == Some(consumer.seen));
        if lossless { Version::V10 } else { Version::V11 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    pub id: Id,
    /// Time of the last delivery.
    pub delivered: Millis,
    pub deliveries: u64,
    /// Its owner: an index into [`Group::consumers`], or [`NOBODY`] if it was released.
    pub consumer: u32,
}

/// In place of the owner of a released entry.
pub const NOBODY: u32 = u32::MAX;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Consumer {
    pub name: Vec<u8>,
    /// Time of the last request.
    pub seen: Millis,
    /// Time of the last delivery; `None`: never. Forms before version 11 lack it: then it is `seen`.
    pub active: Option<Millis>,
}

/// The entries that a stream remembers of its producers (XADD with IDMP).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Idmp {
    pub duration_s: u64,
    /// Most entries of each producer.
    pub entries_max: u64,
    pub producers: Vec<Producer>,
    /// Number of entries ever remembered, and of entries that were sent again.
    pub added: u64,
    pub duplicates: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Producer {
    pub name: Vec<u8>,
    /// The producer's ids, and the entries' ids, in the order in which they came.
    pub entries: Vec<(Vec<u8>, Id)>,
}
