//! What the nodes of a cluster agree on: the [`Map`] of nodes, shards and slots.
//!
//! A *node* is a server process. A *shard* is a primary and its replicas, and owns slots. The map is
//! immutable: every change makes a new map with a higher revision.
//!
//! This crate knows no sockets of clients, no commands and no data.

mod decide;
mod id;
mod map;
pub mod nodes_file;
mod operate;
#[cfg(test)]
mod sim;
mod slots;
mod snapshot;
pub mod store;

pub use decide::{Ack, Action, Decider, Event, MoveAction, MoveEvent, Outcome, Setup, Timing};
pub use id::{BadId, MigrationId, NodeId, ShardId};
pub use map::{Address, FailoverMode, Heir, Map, Node, Shard};
pub use operate::{Operation, Refusal, plan};
pub use slots::{BadSlots, SLOTS, SlotRanges};
pub use snapshot::{Alive, Change, Guard, Key, LeaseId, Migration, Snapshot, Transaction, Versioned};
