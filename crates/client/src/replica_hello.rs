//! What a connection says of itself before it becomes a replica's: the options of REPLCONF, and PSYNC.

/// A connection's introduction (REPLCONF) and its request for the stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaHello {
    /// Its announced address; zero and empty: the address of the socket.
    pub port: u16,
    pub ip: String,
    /// Whether it accepts a snapshot without a length, with a mark at its end.
    pub takes_mark: bool,
    /// Whether it accepts a new name for its history.
    pub takes_names: bool,
    pub only_snapshot: bool,
    pub content: Content,
    /// `None`: it is no node of a cluster with a shared map.
    pub membership: Option<Membership>,
    pub asks: Option<Asks>,
}

/// A replica of a shard of a cluster, as it introduces itself to its primary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// The replica's name in the map.
    pub node: String,
    /// The name of the node that it takes the stream from.
    pub primary: String,
    /// The shard's epoch, in the replica's view of the map.
    pub epoch: u64,
    /// The number of the replica's data: see `evenkeel_cluster::Alive::incarnation`.
    pub incarnation: u64,
}

/// The data that the snapshot is to contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Content {
    #[default]
    All,
    /// Function libraries.
    Libraries,
    Nothing,
}

/// A PSYNC or SYNC request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asks {
    /// SYNC: a snapshot without a status reply, and the stream.
    Snapshot,
    /// PSYNC: the bytes behind this offset of this history; `None`: it has no history.
    Rest(Option<(Vec<u8>, u64)>),
}
