//! The keyspace: databases of 16,384 slots, each a small table behind its own lock; entries, values, expiry,
//! eviction and memory.
//!
//! It knows no sockets, files, threads, protocol or clocks. Time and randomness are arguments: they come with
//! the [`ThreadContext`] of a thread, so every test decides the time.
//! From a thread to the data, from the outside in:
//!
//! ```text
//! Keyspace ── enter ──> gate (read side, own cache line) ── hold ──> SlotGuard: a command's locked slots
//!     │                                                              │
//!     └─ Db (x databases) ── Slot (x 16,384) ── Segment ── Entry: header, deadline, key, value in a block
//! ```
//!
//! | part | content | knows |
//! |---|---|---|
//! | `memory` | the count of all bytes, blocks, regions of the address space, prefetching | nothing |
//! | `key` | slot and hash of a key | nothing |
//! | `value` | ropes, collections | `memory`, `key` |
//! | `notify` | watchers, waiters, events | `value`, `key` |
//! | `table` | slots, segments, directories, entries | `notify`, `value`, `memory`, `key` |
//! | `journal` | records of writes, and their readers | nothing |
//! | `guard` | gate, thread context, slot guard with its operations | all of these, and some of the rest |
//!
//! The rest uses a [`SlotGuard`] for work on whole databases: `expiry`, `evict`, `snapshot`, `apart`,
//! `compaction`, `verify`. The guard and the keyspace know each other: the keyspace makes guards, and a guard
//! reads the databases through it.

mod apart;
mod compaction;
pub mod evict;
mod expiry;
mod guard;
pub mod journal;
#[cfg(test)]
#[path = "journal/tests.rs"]
mod journal_tests; // not in `journal`, whose files the model in `tests/it` compiles as well
pub mod key;
mod keyspace;
mod lazy_free;
pub mod memory;
mod notify;
mod slot_set;
pub mod snapshot;
mod sync;
mod table;
mod transfer;
mod value;
mod verify;

pub use apart::Apart;
pub use compaction::{CompactionWalk, Moved};
pub use expiry::Swept;
pub use guard::context::{Access, Tally, ThreadContext, Total};
pub use guard::undo::Undo;
pub use guard::{Concerns, Edit, Edited, Made, SlotGuard, WrongType, ahead, gate};
pub use key::{Hasher, Key, Place, SLOTS};
pub use keyspace::{Flushed, InFlight, Keyspace};
pub use lazy_free::{Garbage, LazyFree};
pub use notify::events;
pub use notify::wait::{Waiter, Wants, Woken};
pub use notify::watch::Watch;
pub use slot_set::SlotSet;
pub use table::cursor::Cursor;
pub use table::entry;
pub use table::entry::{Ref, View};
pub use transfer::{LAYOUT_HASH, PassedKeyspace};
pub use value::rope::Str;
pub use value::{Expire, Kind, collection, rope};

/// Milliseconds since the Unix epoch.
pub type Millis = u64;
