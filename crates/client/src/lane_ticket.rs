//! The introduction of a connection that brings slots from another node of a cluster.

/// A lane of a copy of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneTicket {
    /// The identity of the move.
    pub id: String,
    pub source_epoch: u64,
    pub target_epoch: u64,
    /// The number of the copy, which rises from attempt to attempt.
    pub attempt: u64,
    pub lane: usize,
}
