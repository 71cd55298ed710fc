//! Tables: a slot is a lock and a table of segments, a segment is an array of words, and a word leads to the
//! entry of a key.
//!
//! The functions here are called under the slot's lock, and know neither locks nor subscribers; some are
//! hints for prefetching, which need no lock.

pub(crate) mod access;
pub(crate) mod apart;
pub(crate) mod bits;
pub(crate) mod cursor;
pub(crate) mod directory;
pub mod entry;
pub(crate) mod prefetch;
pub(crate) mod retired;
pub(crate) mod segment;
pub(crate) mod slot;
