//! Events and actions of a [`Decider`](super::Decider).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::id::{MigrationId, NodeId, ShardId};
use crate::map::{Address, FailoverMode};
use crate::snapshot::{LeaseId, Snapshot, Transaction};

/// Durations, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time to live of the lease, as the store counts it.
    pub ttl: u64,
    /// The primary stops so long before its lease may end: for clocks that differ in rate, and for a write
    /// between the check of the time and its effect.
    pub margin: u64,
    /// Time between two renewals of the lease.
    pub renew: u64,
    /// A candidate waits so long for each candidate with more data.
    pub rank: u64,
    /// A replica that makes no progress for so long leaves the in-sync set.
    pub lag: u64,
    /// The longest time for which a replica that joins the in-sync set delays acknowledgements.
    pub join: u64,
    /// The longest stop of writes for a planned change of the primary, and for the switch of moving slots.
    pub pause: u64,
    /// Time between two attempts of an operation that failed, and between two updates of the node's entry.
    pub retry: u64,
}

impl Timing {
    /// The durations for a lease of `ttl` milliseconds.
    pub fn of_lease(ttl: u64) -> Timing {
        Timing {
            ttl,
            margin: ttl / 10 + ttl / 500,
            renew: ttl / 6,
            rank: ttl / 20,
            lag: ttl / 3,
            join: ttl / 3,
            pause: ttl / 3,
            retry: ttl / 3,
        }
    }
}

/// A node's constants, from its start to its end.
#[derive(Clone, Debug)]
pub struct Setup {
    pub me: NodeId,
    /// A random number of this process.
    pub process: u64,
    /// The number of the data, see [`Alive::incarnation`](crate::Alive::incarnation). It is new, and higher
    /// than any before, unless the process starts with every write that it ever acknowledged.
    pub incarnation: u64,
    /// The number of bytes of the replication stream that the data have at the start.
    pub offset: u64,
    pub address: Address,
    pub version: String,
    pub timing: Timing,
}

/// The end of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The store made the changes at this revision.
    Committed(u64),
    /// A guard did not hold: the store made no change, and will not.
    Refused,
    /// No answer came in time: the store may have made the changes, and may yet make them.
    Unknown,
}

/// A replica's acknowledgement, or its first message on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    pub node: NodeId,
    /// The number of the replica's data.
    pub incarnation: u64,
    /// The epoch of the stream that the replica follows.
    pub epoch: u64,
    /// The number of bytes of the stream that the replica has.
    pub offset: u64,
}

/// The progress of a move, from the data path of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveEvent {
    /// The target has nearly everything: the slots may be closed.
    Ready,
    /// The slots are closed, and every in-sync member of the target has all their data.
    Drained,
    /// The copy broke.
    Failed,
}

/// An input of a [`Decider`](super::Decider).
#[derive(Clone, Debug)]
pub enum Event {
    /// A view of the store, newer than any before.
    View(Arc<Snapshot>),
    /// The store granted a lease that was asked for at time `sent`.
    Granted { lease: LeaseId, sent: u64 },
    /// The store renewed the lease; the request was sent at time `sent`.
    Renewed { lease: LeaseId, sent: u64 },
    /// The store does not know the lease.
    LeaseLost { lease: LeaseId },
    /// A request of the lease failed, or had no answer in time.
    LeaseUnanswered,
    /// The end of a transaction.
    Answered { number: u64, outcome: Outcome },
    /// The data path counts the acknowledgements of the set `number`; it had written `offset` bytes then.
    Counting { number: u64, offset: u64 },
    /// A replica has so much of the stream.
    Ack(Ack),
    /// The connection of a replica has ended, or begins anew: its earlier acknowledgements count no more.
    Disconnected(NodeId),
    /// The data path has stopped writes, as [`Action::StopWrites`] asked, after `offset` bytes.
    Stopped { offset: u64 },
    /// A connected replica cannot go on from its data. It keeps them until [`Action::FullSync`].
    NeedsFullSync(NodeId),
    /// The node is about to drop data that it acknowledged: they have a new number.
    DataReset { incarnation: u64 },
    /// A move of slots with a target of this epoch has made progress.
    Move { id: MigrationId, epoch: u64, event: MoveEvent },
    /// CLUSTER FAILOVER at this node.
    Failover(FailoverMode),
    /// The process is to end.
    Shutdown,
    /// Time has passed; the node has written or received `offset` bytes.
    Tick { offset: u64 },
}

/// What the data path of the source does for a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveAction {
    /// Copy the slots to the primary of the target, from the beginning.
    Copy { target: NodeId, epoch: u64 },
    /// Stop writes to the slots.
    Close,
    /// Let writes to the slots go on.
    Open,
    /// Forget the copy; the map says who owns the slots.
    End,
}

/// An output of a [`Decider`](super::Decider).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the store for a lease; the answer names the time of this request.
    Grant,
    /// Ask the store to renew the lease.
    Renew { lease: LeaseId },
    /// Give the lease back. The node does not serve any more.
    Revoke { lease: LeaseId },
    /// Send a transaction, once: it is not sent again when the answer stays away.
    Submit { number: u64, transaction: Transaction },
    /// Reads and writes may be served until this time of the clock, and not at or after it.
    ServeUntil(u64),
    /// Accept no writes; the data path answers with [`Event::Stopped`].
    StopWrites,
    /// Accept writes again.
    ResumeWrites,
    /// The node is the primary of a shard; its stream has this epoch from now on. An earlier
    /// [`Action::StopWrites`] is over.
    Lead { shard: ShardId, epoch: u64 },
    /// The node is a replica. `None`: there is no primary to follow. Clients that wait for acknowledgements
    /// of writes get an error: a later epoch of this node must not acknowledge these writes.
    Follow { primary: Option<NodeId>, epoch: u64 },
    /// The replica may drop its data: the full synchronization that [`Event::NeedsFullSync`] asked for
    /// begins.
    FullSync(NodeId),
    /// A write is acknowledged when each of these nodes has it, with data of this number.
    CountAcks { number: u64, members: BTreeMap<NodeId, u64> },
    /// A step of a move.
    Move(MigrationId, MoveAction),
    /// A line for the server log.
    Log(String),
    /// The process may end.
    Exit,
}
