//! The keyspace: databases of 16,384 slots, each a small table behind its own lock; entries, values, expiry,
//! eviction and memory.
//!
//! It knows no sockets, files, threads, protocol or clocks. Time and randomness are arguments: they come with
//! the [`ThreadContext`] of a thread, so every test decides the time.
//! From a thread to the data, from the outside in:
//!
//! ```text
//! Keyspace ── enter ──> gate (read side, own cache line) ── hold ──> SlotGuard: a command's locked slots
//!     │                                                        │
//!     └─ Db (x databases) ── Slot (x 16,384) ── Segment ── Entry: header, deadline, key, value in a block
//! ```

pub mod ahead;
mod apart;
mod bits;
mod context;
mod directory;
pub mod entry;
pub mod events;
pub mod evict;
mod expiry;
pub mod gate;
mod guard;
pub mod journal;
#[cfg(test)]
mod journal_tests;
pub mod key;
mod keyspace;
mod lazy_free;
mod logging;
pub mod memory;
mod prefetch;
mod scan;
mod segment;
mod slot;
pub mod snapshot;
mod subscribers;
mod sync;
mod undo;
mod value;
mod verify;
mod wait;
mod watch;

pub use apart::Apart;
pub use context::{Access, Tally, ThreadContext, Total};
pub use entry::{Ref, View};
pub use expiry::Swept;
pub use guard::{Concerns, Edit, Edited, Made, SlotGuard, WrongType};
pub use key::{Hasher, Key, Place, SLOTS};
pub use keyspace::{Flushed, InFlight, Keyspace};
pub use lazy_free::{Garbage, LazyFree};
pub use scan::Cursor;
pub use undo::Undo;
pub use value::rope::Str;
pub use value::{Expire, Kind, collection, rope};
pub use wait::{Waiter, Wants, Woken};
pub use watch::Watch;

/// Milliseconds since the Unix epoch.
pub type Millis = u64;
