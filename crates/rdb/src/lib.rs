//! Redis' serialization of values, both ways: what DUMP returns, RESTORE takes, and RDB files hold per key.
//!
//! What is absent: the store and clocks. A [`Decoder`] pulls over a [`Source`], which is a slice or a reader, and lends
//! out one element at a time, so whoever builds a value copies each byte once and may stop whenever it likes. An
//! [`Encoder`] is pushed elements and writes to an [`Out`]. What stands between the values of a file is in [`mod@file`].
//!
//! ```text
//! payload ── dump::open ──> Decoder ── object ──> Object::{String, List, Set, SortedSet, Hash, Stream}
//!    ^                         │                        │ next(): an Item, a Field, a Member, an Entry
//!    │                      primitives               block/: listpack, ziplist, zipmap, intset
//! dump::seal <── Encoder <── push(..) <── list, set, intset, sorted_set, hash, stream
//! ```
//!
//! Everything that comes in is hostile until it has been checked: `docs/rdb.md` lists what is. Nothing panics on it,
//! memory is bounded by the input (times LZF's highest ratio of 88, for what is compressed), time is linear in it.
//!
//! Sources for the formats: the documentation page "RDB dump format", the listpack specification (antirez/listpack),
//! and the bytes that redis-server 6.2, 7.0, 8.2 and Valkey 9.1 produce.

pub mod aof;
mod block;
mod checksum;
mod decode;
pub mod dump;
mod encode;
mod error;
pub mod file;
pub mod functions;
mod item;
mod kind;
mod lzf;
mod source;
mod stream;

pub use decode::{
    Decoder, Elements, Entry, EntryFields, Field, Fields, Groups, LongString, Member, Members, Object, PIECE,
    Stream,
};
pub use encode::{
    Encoder, Form, GroupsWriter, HashWriter, Limits, ListWriter, NodeCount, NodeLimits, Out, Piece,
    SetWriter, SortedSetWriter, StreamWriter,
};
pub use error::{Error, Reason, without_numbers};
pub use item::{Digits, Item};
pub use kind::Version;
pub use source::{Feed, Slice, Source};
pub use stream::{Consumer, Group, Id, Info, Pending};

/// Milliseconds since the Unix epoch.
pub type Millis = u64;
