//! The data path between the nodes of a shard: what the decider wants of replication, and what replication
//! tells it.
//!
//! A [`Stance`] changes on the thread `cluster-map`, since a change waits for the commands that run.

use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::time::Duration;

use evenkeel_client::replica_hello::Membership;
use evenkeel_cluster::{Ack, Address, Event, NodeId, Snapshot};
use evenkeel_core::pause::Pauser;
use evenkeel_replication::link::Target;
use evenkeel_replication::members::Cluster;
use evenkeel_runtime::clock;

use super::{Agent, Message};
use crate::server::Server;

/// The longest wait of a replica until the decider knows of its new data.
const RESET_MAX: Duration = Duration::from_secs(5);

/// What the decider wants of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stance {
    pub(super) role: Option<Role>,
    /// Writes wait, for a planned change of the primary.
    pub(super) stops_writes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Leads { epoch: u64 },
    Follows { primary: Option<NodeId>, epoch: u64 },
}

/// A stance, as replication has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InForce {
    stance: Stance,
    target: Option<Target>,
}

impl InForce {
    /// Makes a stance that of replication. Waits for the commands that run. Returns false if that is not
    /// possible yet, since a replica loads data: its primary cannot change meanwhile.
    pub(super) fn follow(&mut self, server: &Server, stance: &Stance, snapshot: &Snapshot) -> bool {
        let target = target(server, stance, snapshot);
        let wanted = InForce { stance: stance.clone(), target };
        if wanted == *self {
            return true;
        }
        if server.persist.is_loading() {
            return false;
        }
        let (before, replication) = (std::mem::replace(self, wanted), &server.replication);
        if stance.role != before.stance.role || self.target != before.target {
            match stance.role {
                Some(Role::Leads { epoch }) => {
                    if matches!(before.stance.role, Some(Role::Leads { .. })) {
                        // Another node may have led in between: replies that wait are not for this epoch.
                        replication.follow_primary(None, epoch);
                    }
                    replication.lead(epoch, has_members(server, snapshot));
                }
                Some(Role::Follows { primary, epoch }) => {
                    let target = self.target.clone();
                    let primary = primary.and_then(|id| Some((id.to_string(), target?)));
                    replication.follow_primary(primary, epoch);
                }
                None => {}
            }
        }
        match (before.stance.stops_writes, stance.stops_writes) {
            (false, true) => replication.stop_writes(),
            (true, false) => replication.resume_writes(),
            _ => {}
        }
        true
    }

    /// Whether this node has become a replica, and the clients that wait for other things than keys have to
    /// know.
    pub(super) fn has_stepped_down(&self, before: &InForce) -> bool {
        let leads = |stance: &Stance| matches!(stance.role, Some(Role::Leads { .. }));
        leads(&before.stance) && !leads(&self.stance)
    }
}

/// The address of the primary for its replicas. `None`: there is no primary, or its address is not known.
fn target(server: &Server, stance: &Stance, snapshot: &Snapshot) -> Option<Target> {
    let Some(Role::Follows { primary: Some(primary), .. }) = stance.role else { return None };
    let Address { ip, port, tls_port, .. } = &snapshot.nodes.get(&primary)?.value.address;
    let port = if server.core.settings().tls_replication { *tls_port } else { *port };
    (!ip.is_empty() && port > 0).then(|| Target { host: ip.clone(), port })
}

/// Whether the shard of this node has other nodes in sync.
fn has_members(server: &Server, snapshot: &Snapshot) -> bool {
    let me = server.cluster.as_ref().map(|cluster| cluster.view().me);
    let shard =
        me.and_then(|me| snapshot.nodes.get(&me)).and_then(|node| snapshot.shards.get(&node.value.shard));
    shard.is_some_and(|shard| shard.value.in_sync.len() > 1)
}

/// Lets commands that write, or all commands, wait until the fate of a planned change of the primary is
/// known, for `time` milliseconds at most.
pub(super) fn pause(server: &Server, all: bool, time: u64) {
    let now = clock::unix_ms();
    server.core.pause.begin(Pauser::Cluster, all, now + time, now);
}

/// Lets them go on: they find the map that is in force.
pub(super) fn go_on(server: &Server) {
    server.core.pause.end(Pauser::Cluster);
    server.core.workers.wake_all();
}

/// What replication tells the decider.
pub(super) struct DataPath {
    pub(super) server: Weak<Server>,
    pub(super) agent: Arc<Agent>,
}

impl DataPath {
    fn decide(&self, event: Event) {
        // The receiver is gone when the process ends.
        let _ = self.agent.messages.send(Message::Decider(event));
    }
}

impl Cluster for DataPath {
    fn acknowledged(&self, member: &Membership, bytes: u64) {
        let Ok(node) = member.node.parse() else { return };
        let Membership { epoch, incarnation, .. } = *member;
        self.decide(Event::Ack(Ack { node, incarnation, epoch, offset: bytes }));
    }

    fn left(&self, node: &str) {
        node.parse().into_iter().for_each(|node| self.decide(Event::Disconnected(node)));
    }

    fn needs_full_sync(&self, node: &str) {
        node.parse().into_iter().for_each(|node| self.decide(Event::NeedsFullSync(node)));
    }

    fn reset_data(&self) -> Result<u64, String> {
        let server = self.server.upgrade().ok_or("the server stops")?;
        let cluster = server.cluster.as_ref().ok_or("cluster mode is off")?;
        let incarnation = cluster.renew_incarnation()?;
        let (done, is_done) = channel();
        let _ = self.agent.messages.send(Message::DataReset { incarnation, done });
        is_done.recv_timeout(RESET_MAX).map_err(|_| "the thread of the cluster is busy")?;
        Ok(incarnation)
    }
}
