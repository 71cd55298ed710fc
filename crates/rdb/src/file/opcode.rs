//! What stands where a type's number may, and is none.

use crate::kind;

/// Valkey 9: a slot that is being imported, as a job's name and ranges of slots.
pub(super) const SLOT_IMPORT: u8 = 243;
/// Redis 7.4 and later, in cluster mode: a slot, its keys, those of them that expire.
pub(super) const SLOT_INFO: u8 = 244;
/// The code of a library.
pub(crate) const FUNCTION_2: u8 = 245;
pub(super) const MODULE_AUX: u8 = 247;
/// Seconds since the key was last used.
pub(super) const IDLE: u8 = 248;
/// How often the key is used: Redis' logarithmic counter.
pub(super) const FREQUENCY: u8 = 249;
pub(super) const AUX: u8 = 250;
pub(super) const SIZES: u8 = 251;
pub(super) const EXPIRES_MS: u8 = 252;
/// In four bytes, as servers wrote it before 2.6.
pub(super) const EXPIRES_SECONDS: u8 = 253;
pub(super) const DATABASE: u8 = 254;
pub(super) const END: u8 = 255;

/// True if this byte starts the record of a key: with what is said about it, or with its type at once.
pub(super) fn starts_record(byte: u8) -> bool {
    byte <= kind::LAST || matches!(byte, IDLE | FREQUENCY | EXPIRES_MS | EXPIRES_SECONDS)
}
