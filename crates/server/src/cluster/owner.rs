//! Who may change the map: this node alone, with its file.
//!
//! A [`MapOwner`] turns a request of an operator into the next map, and keeps it. With a store that several
//! nodes share, `shared/operator.rs` takes its place.

use std::path::PathBuf;

use evenkeel_cluster::{Map, MigrationId, NodeId, ShardId, SlotRanges, nodes_file};
use parking_lot::Mutex;

use super::changes;
use super::view::ClusterView;

/// A change of the map, as CLUSTER's subcommands ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MapRequest {
    AddSlots(SlotRanges),
    RemoveSlots(SlotRanges),
    FlushSlots,
    SetSlot(u16, SlotChange),
    BumpEpoch,
    SetEpoch(u64),
    /// New identities, and the epoch 0, with `hard`; no slots in any case.
    Reset {
        hard: Option<(NodeId, ShardId)>,
    },
    /// The node at an address is in the map, which several nodes share.
    Meet {
        ip: String,
        port: u16,
    },
    /// A node leaves the map, which several nodes share.
    Forget(NodeId),
    /// This node becomes a replica of another one, in a map that several nodes share.
    Replicate(NodeId),
    /// Slots move to the shard of another node, as a whole.
    Move(MigrationId, SlotRanges, NodeId),
    CancelMove(MigrationId),
    /// Nothing but keeping the map again, with this node's present address.
    Save,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SlotChange {
    Migrating(NodeId),
    Importing(NodeId),
    Stable,
    Owner(NodeId),
}

/// The outcome of a change.
#[derive(Debug)]
pub(crate) struct Changed {
    pub(crate) map: Map,
    /// This node's identity from now on.
    pub(crate) me: NodeId,
}

/// See the module's text.
pub(crate) trait MapOwner: Send + Sync {
    /// Makes the map that follows that of `view` by a request, and keeps it. May wait for a disk.
    ///
    /// # Errors
    /// The reason for the client, without a code. The map stays.
    fn change(&self, view: &ClusterView, request: &MapRequest) -> Result<Changed, String>;
}

/// The map in a file of this server: `cluster-config-file`.
pub(crate) struct FileOwner {
    path: PathBuf,
    /// One write at a time.
    writing: Mutex<()>,
}

impl FileOwner {
    pub(crate) fn new(path: PathBuf) -> FileOwner {
        FileOwner { path, writing: Mutex::default() }
    }

    /// # Errors
    /// The reason why the file cannot be written.
    fn write(&self, map: &Map, me: NodeId) -> Result<(), String> {
        let _one_at_a_time = self.writing.lock();
        let text = nodes_file::write(map, me);
        evenkeel_config::replace_file(&self.path, text.as_bytes()).map_err(|error| {
            log::warn!("Error writing {}: {error}", self.path.display());
            format!("error saving the cluster node config: {}", evenkeel_config::cause(&error))
        })
    }
}

impl MapOwner for FileOwner {
    fn change(&self, view: &ClusterView, request: &MapRequest) -> Result<Changed, String> {
        let changed = changes::apply(view, request)?;
        self.write(&changed.map, changed.me)?;
        Ok(changed)
    }
}
