//! Classes of keyspace notifications, as bits: the letters of `notify-keyspace-events`.

/// Publish to the channel of the key.
pub const BY_KEY: u32 = 1 << 0;
/// Publish to the channel of the event.
pub const BY_EVENT: u32 = 1 << 1;
pub const GENERIC: u32 = 1 << 2;
pub const STRING: u32 = 1 << 3;
pub const LIST: u32 = 1 << 4;
pub const SET: u32 = 1 << 5;
pub const HASH: u32 = 1 << 6;
pub const ZSET: u32 = 1 << 7;
pub const EXPIRED: u32 = 1 << 8;
pub const EVICTED: u32 = 1 << 9;
pub const STREAM: u32 = 1 << 10;
pub const MISSES: u32 = 1 << 11;
pub const MODULE: u32 = 1 << 13;
pub const NEW: u32 = 1 << 14;
pub const ARRAY: u32 = 1 << 15;
pub const OVERWRITTEN: u32 = 1 << 20;
pub const TYPE_CHANGED: u32 = 1 << 21;
/// Publish the names of fields, too: to the channel of the key, of the event, of the key and a field, of the
/// event and the key.
pub const FIELDS_BY_KEY: u32 = 1 << 22;
pub const FIELDS_BY_EVENT: u32 = 1 << 23;
pub const BY_FIELD: u32 = 1 << 24;
pub const FIELDS_BY_BOTH: u32 = 1 << 25;
/// All channels with names of fields.
pub const OF_FIELDS: u32 = FIELDS_BY_KEY | FIELDS_BY_EVENT | BY_FIELD | FIELDS_BY_BOTH;
const CHANNELS: u32 = BY_KEY | BY_EVENT | OF_FIELDS;
pub const ALL: u32 =
    GENERIC | STRING | LIST | SET | HASH | ZSET | EXPIRED | EVICTED | STREAM | MODULE | ARRAY;

/// Returns the classes for the letters of `notify-keyspace-events`; zero if no channel would get letters.
pub fn classes(letters: &[u8]) -> u32 {
    let class = |letter: &u8| match letter {
        b'K' => BY_KEY,
        b'E' => BY_EVENT,
        b'A' => ALL,
        b'g' => GENERIC,
        b'$' => STRING,
        b'l' => LIST,
        b's' => SET,
        b'h' => HASH,
        b'z' => ZSET,
        b'x' => EXPIRED,
        b'e' => EVICTED,
        b't' => STREAM,
        b'm' => MISSES,
        b'd' => MODULE,
        b'n' => NEW,
        b'o' => OVERWRITTEN,
        b'c' => TYPE_CHANGED,
        b'S' => FIELDS_BY_KEY,
        b'T' => FIELDS_BY_EVENT,
        b'I' => BY_FIELD,
        b'V' => FIELDS_BY_BOTH,
        b'a' => ARRAY,
        _ => 0,
    };
    let classes = letters.iter().map(class).fold(0, |all, one| all | one);
    if classes & CHANNELS == 0 || classes & !CHANNELS == 0 { 0 } else { classes }
}
