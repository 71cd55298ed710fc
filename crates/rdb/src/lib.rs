//! Redis' serialization of values, read and written: the format of DUMP, RESTORE, and the records of RDB
//! files.
//!
//! The crate has no store and no clock. A [`Decoder`] pulls from a [`Source`] (a slice or a reader) and lends
//! an element at a time, so its caller copies each byte once and may stop at any element. An [`Encoder`]
//! takes pushed elements and writes to an [`Out`]. [`mod@file`] has the items between a file's values.
//!
//! ```text
//! payload ── dump::open ──> Decoder ── object ──> Object::{String, List, Set, SortedSet, Hash, ..}
//!    ^                         │                        │ next(): an Item, a Field, a Member, an Entry
//!    │                      primitives               block/: listpack, ziplist, zipmap, intset
//! dump::seal <── Encoder <── push(..) <── list, set, intset, sorted_set, hash, ..
//! ```
//!
//! All input is hostile until checked: `docs/rdb.md` lists the checks. No input causes a panic. The input's
//! size bounds the memory (times 88, LZF's highest ratio, for compressed data), and the time is linear in it.
//!
//! Sources for the formats: the documentation page "RDB dump format", the listpack specification
//! (antirez/listpack), and the bytes that redis-server 6.2, 7.0, 8.2 and Valkey 9.1 produce; for arrays, the
//! sources of Redis 8.8.

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
mod numeral;
mod source;
mod stream;

pub use block::listpack::{EMPTY as LISTPACK_EMPTY, size as listpack_size};
pub use decode::{
    ArrayElements, Decoder, Elements, Entry, EntryFields, Field, Fields, Groups, LongString, Member, Members,
    Object, PIECE, Stream,
};
pub use encode::{
    ArrayWriter, Encoder, Form, GroupsWriter, HashWriter, Limits, ListWriter, NodeCount, NodeLimits, Out,
    Piece, SetWriter, SortedSetWriter, StreamForm, StreamWriter,
};
pub use error::{Error, Reason, without_numbers};
pub use item::{Digits, Item};
pub use kind::{Version, Versions};
pub use numeral::Numeral;
pub use source::{Feed, Slice, Source};
pub use stream::{Consumer, Group, Id, Idmp, Info, NOBODY, Pending, Producer};

/// Milliseconds since the Unix epoch.
pub type Millis = u64;
