//! Opcodes: bytes in the place of a type's number that are none.

use crate::kind;

/// Valkey 9: slots under import, as a job's name and ranges of slots.
pub(super) const SLOT_IMPORT: u8 = 243;
/// Redis 7.4 and later, in cluster mode: a slot, its number of keys, and its number of keys that expire.
pub(super) const SLOT_INFO: u8 = 244;
/// The code of a library.
pub(crate) const FUNCTION_2: u8 = 245;
pub(super) const MODULE_AUX: u8 = 247;
/// Seconds since the key's last use.
pub(super) const IDLE: u8 = 248;
/// Frequency of the key's use: Redis' logarithmic counter.
pub(super) const FREQUENCY: u8 = 249;
pub(super) const AUX: u8 = 250;
pub(super) const SIZES: u8 = 251;
pub(super) const EXPIRES_MS: u8 = 252;
/// In seconds, four bytes, as servers wrote it before 2.6.
pub(super) const EXPIRES_SECONDS: u8 = 253;
pub(super) const DATABASE: u8 = 254;
pub(super) const END: u8 = 255;

/// Whether this byte starts the record of a key: an attribute of the key, or its type.
pub(super) fn starts_record(byte: u8) -> bool {
    byte <= kind::LAST || matches!(byte, IDLE | FREQUENCY | EXPIRES_MS | EXPIRES_SECONDS)
}
