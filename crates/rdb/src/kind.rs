//! Numbers of the types, and the versions of the format that have them.

/// A version of the format to write: its readers know the types up to that version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum Version {
    /// Redis 7.0 and everything after it.
    V10 = 10,
    /// Redis 7.2, Valkey 7.2 to 8.1, and everything after them.
    V11 = 11,
    /// Redis 8.6 and later: streams that remember their producers.
    V13 = 13,
    /// Redis 8.8 and later: streams with released entries, arrays. No version of Valkey knows the types since
    /// 13.
    V14 = 14,
    /// Valkey 9.0 and later only: hashes whose fields expire. Arrays have the same form as in version 14,
    /// although no version of Valkey knows them.
    V80 = 80,
}

impl Version {
    pub fn number(self) -> u16 {
        self as u16
    }

    /// Whether the expiry of a hash's fields can be written.
    pub fn has_field_expiry(self) -> bool {
        self >= Version::V80
    }

    /// Whether arrays can be written.
    pub fn has_arrays(self) -> bool {
        self >= Version::V14
    }

    pub(crate) fn has_packed_sets(self) -> bool {
        self >= Version::V11
    }

    pub(crate) fn has_active_times(self) -> bool {
        self >= Version::V11
    }

    /// Redis 7.0 reads plain list nodes, but writes them for elements of 1 GiB only; later versions for any
    /// large element.
    pub(crate) fn has_plain_nodes(self) -> bool {
        self >= Version::V11
    }
}

/// First version of Valkey's own numbering: type 22 has another meaning from here on.
pub(crate) const FIRST_VALKEY_VERSION: u16 = 80;

/// Last version that Redis and Valkey share.
const LAST_COMMON_VERSION: u16 = 11;

/// Highest known version of Redis' own numbering. 12 is that of Redis 7.4 to 8.2; 13 and 14 add types, which
/// have numbers of their own, and change no older type.
pub(crate) const REDIS_VERSION_MAX: u16 = 14;

/// Highest known version of Valkey's numbering, which adds a type to version 80.
pub(crate) const VALKEY_VERSION_MAX: u16 = 81;

/// The versions that are read (`rdb-version-check`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Versions {
    /// The versions whose types this crate reads, except for types of modules.
    #[default]
    Known,
    /// Every version. The decoder returns an error at a value of an unknown type.
    Any,
}

impl Versions {
    pub(crate) fn contain(self, version: u16) -> bool {
        let is_known = (1..=REDIS_VERSION_MAX).contains(&version)
            || (FIRST_VALKEY_VERSION..=VALKEY_VERSION_MAX).contains(&version);
        is_known || (self == Versions::Any && version > 0)
    }
}

/// Whether an opcode means a job that imports slots. In Redis' own versions since Valkey's beginning, the
/// same number means data of modules beside a key.
pub(crate) fn has_slot_imports(version: u16) -> bool {
    !(LAST_COMMON_VERSION + 1..FIRST_VALKEY_VERSION).contains(&version)
}

/// Whether it is a version of Redis' own numbering that this crate does not know, so that its unknown types
/// may be numbers to which Valkey gives another meaning.
pub(crate) fn is_foreign(version: u16) -> bool {
    (REDIS_VERSION_MAX + 1..FIRST_VALKEY_VERSION).contains(&version)
}

pub(crate) const STRING: u8 = 0;
pub(crate) const LIST: u8 = 1;
pub(crate) const SET: u8 = 2;
/// Scores as text.
pub(crate) const ZSET: u8 = 3;
pub(crate) const HASH: u8 = 4;
/// Scores as eight bytes.
pub(crate) const ZSET_2: u8 = 5;
pub(crate) const MODULE: u8 = 6;
pub(crate) const MODULE_2: u8 = 7;
pub(crate) const HASH_ZIPMAP: u8 = 9;
pub(crate) const LIST_ZIPLIST: u8 = 10;
pub(crate) const SET_INTSET: u8 = 11;
pub(crate) const ZSET_ZIPLIST: u8 = 12;
pub(crate) const HASH_ZIPLIST: u8 = 13;
pub(crate) const LIST_QUICKLIST: u8 = 14;
pub(crate) const STREAM_LISTPACKS: u8 = 15;
pub(crate) const HASH_LISTPACK: u8 = 16;
pub(crate) const ZSET_LISTPACK: u8 = 17;
pub(crate) const LIST_QUICKLIST_2: u8 = 18;
/// With first id, highest deleted id, entries ever added, and entries read by each group.
pub(crate) const STREAM_LISTPACKS_2: u8 = 19;
pub(crate) const SET_LISTPACK: u8 = 20;
/// With the time at which a consumer last got an entry.
pub(crate) const STREAM_LISTPACKS_3: u8 = 21;
/// Redis 7.4's release candidates below version 80: absolute expiry before each field.
pub(crate) const HASH_METADATA_PRE_GA: u8 = 22;
/// Valkey 9 from version 80 on: expiry behind each value.
pub(crate) const HASH_2: u8 = 22;
pub(crate) const HASH_LISTPACK_EX_PRE_GA: u8 = 23;
/// Redis 7.4: the earliest expiry, and the fields' expiries relative to it.
pub(crate) const HASH_METADATA: u8 = 24;
pub(crate) const HASH_LISTPACK_EX: u8 = 25;
/// With the entries of producers.
pub(crate) const STREAM_LISTPACKS_4: u8 = 26;
/// With the released entries of each group.
pub(crate) const STREAM_LISTPACKS_5: u8 = 27;
pub(crate) const ARRAY: u8 = 28;

/// Highest number of a type.
pub(crate) const LAST: u8 = ARRAY;

/// The forms of an array's values.
pub(crate) mod array {
    pub(crate) const LONG_STRING: u64 = 0;
    /// Eight bytes, little-endian.
    pub(crate) const INT: u64 = 1;
    /// Eight bytes, little-endian; the lowest two bits are zero.
    pub(crate) const FLOAT: u64 = 2;
    /// Of at most seven bytes.
    pub(crate) const SHORT_STRING: u64 = 3;
}
