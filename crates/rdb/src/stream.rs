//! What a stream is beside its entries: ids, counters, consumer groups. Plain data, read and written alike.

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

/// What a stream says of itself, consistent with its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Entries that are there.
    pub length: u64,
    /// Of the first entry that is there; zero where there is none.
    pub first_id: Id,
    /// The last one given out, whether or not its entry is still there.
    pub last_id: Id,
    /// The highest that XDEL removed; zero: none. `max_deleted_id <= last_id`.
    pub max_deleted_id: Id,
    /// Entries ever added, `>= length`.
    pub entries_added: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    pub name: Vec<u8>,
    /// The last one delivered; it may lie beyond the stream's own.
    pub last_id: Id,
    /// How many entries of the stream were read; `None`: nobody knows.
    pub entries_read: Option<u64>,
    /// Delivered and not acknowledged, by ascending id. The entry itself may be gone.
    pub pending: Vec<Pending>,
    /// No two have the same name.
    pub consumers: Vec<Consumer>,
}

impl Group {
    /// The lowest version that keeps all of it: version 10 takes each consumer's `active` for its `seen`.
    pub fn version(&self) -> Version {
        let lossless = self.consumers.iter().all(|consumer| consumer.active == Some(consumer.seen));
        if lossless { Version::V10 } else { Version::V11 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    pub id: Id,
    /// When it was last delivered.
    pub delivered: Millis,
    pub deliveries: u64,
    /// Its owner: an index into [`Group::consumers`].
    pub consumer: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Consumer {
    pub name: Vec<u8>,
    /// When it last asked for something.
    pub seen: Millis,
    /// When it last got something; `None`: never. Forms before version 11 do not say: then it is `seen`.
    pub active: Option<Millis>,
}
