//! What the nodes of a cluster agree on: the [`Map`] of nodes, shards and slots.
//!
//! A *node* is a server process. A *shard* is a primary and its replicas, and owns slots. The map is
//! immutable: every change makes a new map with a higher revision.
//!
//! This crate knows no sockets of clients, no commands and no data.

mod id;
mod map;
mod slots;

pub use id::{BadId, NodeId, ShardId};
pub use map::{Address, Map, Node, Shard};
pub use slots::{BadSlots, SLOTS, SlotRanges};
