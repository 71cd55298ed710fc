//! The nodes of a shard: replicas and primaries whose roles a cluster decides.
//!
//! The cluster gives this server its role ([`Replication::lead`], [`Replication::follow_primary`]), and
//! learns of its replicas by [`Cluster`]. A replica introduces itself with REPLCONF: its name, the primary
//! that it expects, the epoch of the shard, and the number of its data. The primary refuses a replica that
//! expects another primary or another epoch, and it ends all connections of an epoch with the epoch. So a
//! stream, and the acknowledgements of it, belong to a single epoch.
//!
//! **A replica keeps its data until the primary lets it drop them.** It may be a node that has to have
//! every acknowledged write. So a full synchronization waits until the cluster says that the replica is not
//! ([`Members::let_sync`]). Only then does the replica take another number for its data, and drop them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::Replication;
use super::link::{self, Target};
use evenkeel_client::replica_hello::Membership;
use evenkeel_store::SlotGuard;

/// What the cluster has to know.
pub trait Cluster: Send + Sync {
    /// A replica has so many bytes of the stream of an epoch, with data of this number. For the first
    /// message on a connection as well.
    fn acknowledged(&self, member: &Membership, bytes: u64);

    /// A replica's connection has ended, or begins.
    fn left(&self, node: &str);

    /// A replica cannot go on from its data. It waits for [`Members::let_sync`].
    fn needs_full_sync(&self, node: &str);

    /// This server, a replica, is about to drop its data. Returns the number of the next data.
    ///
    /// # Errors
    /// The number cannot be kept on disk: the data stay.
    fn reset_data(&self) -> Result<u64, String>;
}

/// The role of this server in its shard, and the state of its replicas there.
#[derive(Default)]
pub struct Members {
    cluster: OnceLock<Arc<dyn Cluster>>,
    state: Mutex<State>,
    /// Incremented with each role.
    version: AtomicU64,
}

#[derive(Default)]
struct State {
    me: String,
    /// The number of this server's data.
    incarnation: u64,
    role: Role,
    /// The replicas that may drop their data.
    may_sync: BTreeSet<String>,
}

/// The role of this server in its shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Role {
    /// No role, or a primary that is not known.
    #[default]
    None,
    Leads {
        epoch: u64,
    },
    Follows {
        primary: String,
        epoch: u64,
    },
}

impl Members {
    /// Enters this server into a cluster, once.
    pub fn enter(&self, me: String, incarnation: u64, cluster: Arc<dyn Cluster>) {
        let is_first = self.cluster.set(cluster).is_ok();
        debug_assert!(is_first, "a server is in one cluster");
        let mut state = self.state.lock();
        (state.me, state.incarnation) = (me, incarnation);
    }

    /// The cluster, if this server is in one.
    pub(super) fn cluster(&self) -> Option<&dyn Cluster> {
        self.cluster.get().map(|cluster| &**cluster)
    }

    /// Incremented with each role.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Acquire)
    }

    /// Lets a replica drop its data for a full synchronization.
    pub fn let_sync(&self, node: &str) {
        self.state.lock().may_sync.insert(node.to_owned());
    }

    pub(super) fn may_sync(&self, node: &str) -> bool {
        self.state.lock().may_sync.contains(node)
    }

    /// A replica begins a connection: it has not been let drop the data that it has now.
    pub(super) fn forget_sync(&self, node: &str) {
        self.state.lock().may_sync.remove(node);
    }

    fn set_role(&self, role: Role) {
        let mut state = self.state.lock();
        state.may_sync.clear();
        state.role = role;
        self.version.fetch_add(1, AcqRel);
    }

    /// How this server introduces itself to its primary. `None`: it is in no cluster.
    ///
    /// # Errors
    /// It does not follow a primary.
    pub(super) fn introduction(&self) -> Option<Result<Membership, &'static str>> {
        self.cluster.get()?;
        let state = self.state.lock();
        let Role::Follows { primary, epoch } = &state.role else { return Some(Err("the role has changed")) };
        Some(Ok(Membership {
            node: state.me.clone(),
            primary: primary.clone(),
            epoch: *epoch,
            incarnation: state.incarnation,
        }))
    }

    /// Checks a replica's introduction.
    ///
    /// # Errors
    /// The reason why this server does not send it the stream.
    pub fn check(&self, replica: &Membership) -> Result<(), String> {
        let state = self.state.lock();
        if self.cluster.get().is_none() {
            return Err("this server has no cluster-store".into());
        }
        if state.me != replica.primary {
            return Err(format!("this node is {}, not {}", state.me, replica.primary));
        }
        match &state.role {
            Role::Leads { epoch } if *epoch == replica.epoch => Ok(()),
            Role::Leads { epoch } => Err(format!("the epoch is {epoch} here, not {}", replica.epoch)),
            _ => Err("this node is not a primary".into()),
        }
    }

    /// Gives this server's data another number, since it is about to drop them. Nothing happens outside a
    /// cluster.
    ///
    /// # Errors
    /// As [`Cluster::reset_data`].
    pub(super) fn reset_data(&self) -> Result<(), String> {
        if let Some(cluster) = self.cluster() {
            let incarnation = cluster.reset_data()?;
            self.state.lock().incarnation = incarnation;
        }
        Ok(())
    }

    /// The number of this server's data, in a cluster.
    pub(super) fn incarnation(&self) -> Option<u64> {
        self.cluster.get().map(|_| self.state.lock().incarnation)
    }
}

impl Replication {
    /// Makes this server a replica without a primary, until the cluster gives it a role. No client is served
    /// yet.
    pub fn await_role(self: &Arc<Replication>) {
        self.with_all_held(|guard| link::change(self, guard, Some(Target::nobody())));
    }

    /// Makes this server the primary of its shard, in this epoch. `has_members`: there are other nodes in
    /// sync. Waits for the commands that run.
    pub fn lead(self: &Arc<Replication>, epoch: u64, has_members: bool) {
        self.with_all_held(|guard| {
            self.members.set_role(Role::Leads { epoch });
            self.stream().is_at_rest = false;
            if self.is_replica() {
                link::change(self, guard, None);
            }
            if has_members {
                self.follow_log(guard); // replies wait for records, which have numbers then
            }
            self.acks.begin_epoch(epoch, &self.core.keyspace.journal, self.stream().offset());
        });
        self.run_feed();
    }

    fn run_feed(self: &Arc<Replication>) {
        if self.reading.is_any()
            && let Err(error) = self.replica_inbox.open(self)
        {
            log::warn!("Cannot start the replication thread: {error}");
        }
    }

    /// Lets clients wait for a number of replicas from now on: records have numbers. The caller holds all
    /// locks.
    pub fn number_records(self: &Arc<Replication>, guard: &mut SlotGuard<'_>) {
        assert!(guard.holds_all(), "records have numbers from one moment on");
        self.acks.ask_for_numbers();
        if !self.is_replica() {
            self.follow_log(guard);
            self.run_feed();
        }
    }

    /// The same if the settings say so, or some client has asked before this server became a primary. Called
    /// every tenth of a second: CONFIG SET holds no locks, and has its effect then.
    pub fn number_records_if_asked(self: &Arc<Replication>) {
        let is_asked = self.acks.are_numbers_asked() || self.core.settings().write_acks.count > 0;
        if is_asked && !self.reading.is_any() && !self.is_replica() {
            self.with_all_held(|guard| self.number_records(guard));
        }
    }

    /// Makes this server a replica of a node, in this epoch; `None`: of no node. Waits for the commands that
    /// run.
    pub fn follow_primary(self: &Arc<Replication>, primary: Option<(String, Target)>, epoch: u64) {
        let (role, target) = match primary {
            Some((primary, target)) => (Role::Follows { primary, epoch }, target),
            None => (Role::None, Target::nobody()),
        };
        self.with_all_held(|guard| {
            self.members.set_role(role);
            self.stream().is_at_rest = false;
            link::change(self, guard, Some(target));
        });
        self.replica_inbox.nudge();
        link::begin(self);
    }

    /// Stops writes, for a planned change of the primary: they wait in `Pauser::Cluster`, which the caller
    /// has begun. The stream comes to rest; [`Replication::rests_at`] says where.
    pub fn stop_writes(&self) {
        self.with_all_held(|guard| {
            guard.hide_expired(true);
            self.stream().is_at_rest = true;
        });
        self.ask_for_acks(self.core.keyspace.journal.last());
    }

    /// Lets writes go on, on the primary.
    pub fn resume_writes(&self) {
        self.with_all_held(|guard| {
            guard.hide_expired(self.is_replica());
            self.stream().is_at_rest = false;
        });
    }

    /// Makes `members`, with data of these numbers, the nodes that have to have every acknowledged write.
    /// Returns a record: replies to later records wait for these nodes.
    pub fn require(&self, members: BTreeMap<String, u64>) -> u64 {
        let record = self.acks.require(members, &self.core.keyspace.journal);
        self.core.workers.notify_durable();
        record
    }

    /// The stream's offset, once it has the journal's records up to `record`.
    pub fn offset_behind(&self, record: u64) -> Option<u64> {
        let stream = self.stream();
        if self.reading.is_any() && self.streamed.load(Relaxed) < record {
            drop(stream);
            self.replica_inbox.nudge();
            return None;
        }
        Some(stream.offset())
    }

    /// The offset at which the stream rests, once it has the last record.
    pub fn rests_at(&self) -> Option<u64> {
        let offset = self.offset_behind(self.core.keyspace.journal.last())?;
        (!self.reading.is_any() || !self.wants_acks.load(Acquire)).then_some(offset)
    }
}
