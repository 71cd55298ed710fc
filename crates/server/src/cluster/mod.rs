//! Cluster mode: this server as a node that owns some of the slots.
//!
//! | file | |
//! |---|---|
//! | `view.rs` | the map, seen from this node: what workers consult |
//! | `routing.rs` | whether this node serves a command |
//! | `endpoint.rs` | the addresses of nodes for clients |
//! | `leaving.rs` | what ends when slots leave: waits, watches, tracked keys, shard channels |
//! | `owner.rs`, `changes.rs` | who may change the map, and the map that follows |
//! | `shared/` | a map that several nodes share |
//! | `importing.rs` | whether commands of arriving slots run here |
//! | `fence.rs` | until when this node may serve, with such a map |
//! | `identity.rs` | the identity of a node with such a map |
//!
//! **A map is in force when [`Server::publish_map`] returns.** Workers take the new view with their next
//! batch, inside the gate; the caller waits until all batches that began before have ended. Each command
//! that was admitted under the old map has run by then, so the caller finds its wait, its watch or its
//! subscription.

pub(crate) mod changes;
pub(crate) mod endpoint;
mod fence;
mod identity;
mod importing;
pub(crate) mod leaving;
pub(crate) mod owner;
pub(crate) mod routing;
mod shared;
pub(crate) mod view;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use evenkeel_cluster::{
    Address, FailoverMode, Map, Node, NodeId, SLOTS, Shard, ShardId, SlotRanges, nodes_file,
};
use evenkeel_config::{Settings, ShutdownOptions};
use evenkeel_runtime::{clock, random};
use evenkeel_store::ThreadContext;
use parking_lot::{Mutex, RwLock};

use crate::observe::slot_stats::SlotStats;
use crate::server::Server;
use fence::Fence;
use identity::Identity;
use owner::{FileOwner, MapOwner, MapRequest};
use shared::{Agent, RelayStats};
pub(crate) use shared::{MoveInfo, MoveState};
use view::{ClusterView, Seen};

/// Poll interval for the end of the batches that began under the map before.
const LANDING_POLL_INTERVAL: Duration = Duration::from_micros(50);

/// A thread's view, on a cache line of its own: it is read for each command of a script.
#[repr(align(128))]
struct ThreadView(RwLock<Arc<ClusterView>>);

/// The state of cluster mode; see the module's text.
pub(crate) struct Cluster {
    /// Absent in servers of tests, whose map is in memory alone.
    owner: OnceLock<Box<dyn MapOwner>>,
    /// One change of the map at a time.
    changing: Mutex<()>,
    /// Present with a store, from the end of loading on.
    agent: OnceLock<Arc<Agent>>,
    /// Present with a store.
    identity: Mutex<Option<(Identity, PathBuf)>>,
    fence: Fence,
    seen: Mutex<Seen>,
    view: RwLock<Arc<ClusterView>>,
    threads: Box<[ThreadView]>,
    pub(crate) slot_stats: SlotStats,
    pub(crate) relay_stats: RelayStats,
    /// For the thread that publishes a map.
    ctx: Mutex<ThreadContext>,
}

impl Cluster {
    /// Creates the state of a node that is alone and owns all slots, for `threads` threads.
    pub(crate) fn alone(settings: &Settings, threads: usize, ctx: ThreadContext) -> Cluster {
        let (me, shard) = (NodeId::new(random_id()), ShardId::new(random_id()));
        let node = Node { address: Address::default(), shard, is_alive: true };
        let slots = (0..SLOTS as u16).collect();
        let own = Shard { primary: Some(me), in_sync: [me].into(), slots, ..Shard::default() };
        let map = Map::new(1, [(me, node)].into(), [(shard, own)].into());
        let seen = Seen::new(Arc::new(map), me);
        let view = Arc::new(ClusterView::of(seen.clone(), settings));
        Cluster {
            owner: OnceLock::new(),
            agent: OnceLock::new(),
            identity: Mutex::default(),
            fence: Fence::new(!settings.cluster_store.is_empty()),
            changing: Mutex::default(),
            seen: Mutex::new(seen),
            view: RwLock::new(view.clone()),
            threads: (0..threads).map(|_| ThreadView(RwLock::new(view.clone()))).collect(),
            slot_stats: SlotStats::new(threads),
            relay_stats: RelayStats::default(),
            ctx: Mutex::new(ctx),
        }
    }

    /// Returns the newest view.
    pub(crate) fn view(&self) -> Arc<ClusterView> {
        self.view.read().clone()
    }

    /// Makes the newest view that of a thread, and returns it.
    pub(crate) fn follow(&self, thread: usize) -> Arc<ClusterView> {
        let view = self.view();
        *self.threads[thread].0.write() = view.clone();
        view
    }

    /// Calls `f` with the view under which a thread runs its batch. `f` calls nothing of this type.
    pub(crate) fn with_view<R>(&self, thread: usize, f: impl FnOnce(&ClusterView) -> R) -> R {
        f(&self.threads[thread].0.read())
    }

    /// Makes the view of the map under settings that are about to come into force. Called by one thread at a
    /// time.
    pub(crate) fn follow_settings(&self, settings: &Settings) {
        let new = Arc::new(ClusterView::of(self.seen.lock().clone(), settings));
        *self.view.write() = new;
    }

    /// Reads `cluster-config-file`, or creates it. From now on changes are kept there. Called before clients
    /// are served.
    ///
    /// # Errors
    /// The reason why the server cannot start with this file.
    pub(crate) fn open_file(&self, settings: &Settings) -> Result<(), String> {
        let path = path_of(settings);
        if !settings.cluster_store.is_empty() {
            return self.open_identity(path, settings);
        }
        let owner = FileOwner::new(path.clone());
        match read_file(&path)? {
            Some(content) => self.replace((content.map, content.me), settings),
            None => log::info!("No cluster configuration found, I'm {}", self.view().me),
        }
        // With the address that this node has now.
        let kept = owner.change(&self.view(), &MapRequest::Save)?;
        self.replace((kept.map, kept.me), settings);
        let _ = self.owner.set(Box::new(owner));
        let view = self.view();
        log::info!(
            "Node configuration loaded, I'm {}, {} of {SLOTS} slots have an owner",
            view.me,
            view.map.assigned()
        );
        Ok(())
    }

    /// Returns the map as a text, for a process that takes over.
    pub(crate) fn to_text(&self) -> String {
        let view = self.view();
        nodes_file::write(&view.map, view.me)
    }

    /// Goes on with the map of the process before, which keeps its file as it is.
    ///
    /// # Errors
    /// The reason why this process cannot take over.
    pub(crate) fn take_over(&self, text: &str, settings: &Settings) -> Result<(), String> {
        let content = nodes_file::read(text)?;
        self.replace((content.map, content.me), settings);
        let _ = self.owner.set(Box::new(FileOwner::new(path_of(settings))));
        Ok(())
    }

    /// Replaces the map before clients are served.
    fn replace(&self, (map, me): (Map, NodeId), settings: &Settings) {
        *self.seen.lock() = Seen::new(Arc::new(map), me);
        self.follow_settings(settings);
    }

    // --- With a store ---

    /// Whether several nodes share the map.
    pub(crate) fn is_shared(&self) -> bool {
        self.identity.lock().is_some()
    }

    /// Returns the field `cluster_store` of INFO: `ok`, or the store's error. `None`: there is no store.
    pub(crate) fn store_health(&self) -> Option<String> {
        self.is_shared()
            .then(|| self.agent.get().map_or_else(|| "not started".into(), |agent| agent.health()))
    }

    /// Reads the identity of a node, or makes one. The data that the process is about to load have a new
    /// number.
    fn open_identity(&self, path: PathBuf, settings: &Settings) -> Result<(), String> {
        let known = read_text(&path)?.map(|text| Identity::read(&text)).transpose();
        let known = known.map_err(|reason| damaged(&path, &reason))?;
        let mut identity = known.unwrap_or_else(|| Identity {
            me: NodeId::new(random_id()),
            shard: ShardId::new(random_id()),
            address: Address::default(),
            cluster: String::new(),
            incarnation: 0,
        });
        identity.incarnation = next_incarnation(identity.incarnation);
        identity.write(&path)?;
        log::info!("This node is {}", identity.me);
        self.replace((identity.map(), identity.me), settings);
        *self.identity.lock() = Some((identity, path));
        Ok(())
    }

    fn identity(&self) -> Option<Identity> {
        self.identity.lock().as_ref().map(|(identity, _)| identity.clone())
    }

    fn incarnation(&self) -> u64 {
        self.identity.lock().as_ref().map_or(0, |(identity, _)| identity.incarnation)
    }

    /// Records that this node belongs to the cluster of this name, also in its file.
    fn belong_to(&self, cluster: &str) {
        if let Some((kept, path)) = &mut *self.identity.lock() {
            kept.cluster = cluster.into();
            let _ = kept.write(path); // it has logged the reason
        }
    }

    /// Gives this node's data another number, also in its file, and returns it.
    ///
    /// # Errors
    /// The file cannot be written: the number stays.
    fn renew_incarnation(&self) -> Result<u64, String> {
        let mut known = self.identity.lock();
        let (kept, path) = known.as_mut().ok_or("this node has no identity in a store")?;
        let next = Identity { incarnation: next_incarnation(kept.incarnation), ..kept.clone() };
        next.write(path)?;
        *kept = next;
        Ok(kept.incarnation)
    }

    /// Writes the file of this node's identity again.
    fn save_identity(&self) -> Result<(), String> {
        match &*self.identity.lock() {
            Some((identity, path)) => identity.write(path),
            None => Ok(()),
        }
    }

    /// Hands the shard over to a replica, if this node is the primary of one, and gives the lease back. The
    /// process is about to end. Returns false if that takes longer than `time`.
    pub(crate) fn hand_over(&self, time: Duration) -> bool {
        self.agent.get().is_none_or(|agent| agent.hand_over(time))
    }

    /// Takes part in the map again: the process does not end after all.
    pub(crate) fn stay(&self) {
        self.agent.get().iter().for_each(|agent| agent.stay());
    }

    /// Asks for a planned change: this node, a replica, becomes the primary of its shard.
    ///
    /// # Errors
    /// The reason for the client, without a code.
    pub(crate) fn fail_over(&self, mode: FailoverMode) -> Result<(), String> {
        let agent = self.agent.get().ok_or("This node has not loaded its data yet")?;
        agent.fail_over(mode);
        Ok(())
    }

    /// Returns the moves of slots from or to this node.
    pub(crate) fn moves(&self, server: &Server) -> Vec<MoveInfo> {
        self.agent.get().map(|agent| agent.moves(server)).unwrap_or_default()
    }

    /// Whether commands of slots wait for the end of a move.
    pub(crate) fn has_paused_slots(&self) -> bool {
        !self.view.read().paused.is_empty()
    }

    /// Ends this node's part in the map. No worker runs any more.
    pub(crate) fn end(&self) {
        self.agent.get().iter().for_each(|agent| agent.end());
    }
}

/// Joins the map in the store, if there is one. The data are loaded.
///
/// # Errors
/// The reason why the settings of the store cannot be used.
pub(crate) fn join(server: &Arc<Server>) -> Result<(), String> {
    let identity = server.cluster.as_ref().and_then(|cluster| cluster.identity());
    identity.map_or(Ok(()), |identity| shared::start(server, identity))
}

fn path_of(settings: &Settings) -> PathBuf {
    settings.dir.join(&settings.cluster_config_file)
}

/// Checks what keeps a node of a cluster from starting with these settings.
///
/// # Errors
/// The reason.
pub(crate) fn check(settings: &Settings) -> Result<(), String> {
    shared::check(settings)?;
    if !settings.cluster_enabled {
        return Ok(());
    }
    if settings.replicaof.is_some() {
        return Err("replicaof directive not allowed in cluster mode".into());
    }
    read_file(&path_of(settings)).map(|_| ())
}

fn damaged(path: &Path, reason: &str) -> String {
    format!(
        "Unrecoverable error: corrupted cluster config file {}: {reason}. Repair it, or remove it to begin a \
         cluster anew",
        path.display()
    )
}

fn read_file(path: &Path) -> Result<Option<nodes_file::Content>, String> {
    let text = read_text(path)?;
    text.map(|text| nodes_file::read(&text).map_err(|reason| damaged(path, &reason))).transpose()
}

fn read_text(path: &Path) -> Result<Option<String>, String> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(format!("Cannot read {}: {}", path.display(), evenkeel_config::cause(&error)));
        }
    };
    String::from_utf8(bytes).map(Some).map_err(|_| damaged(path, "it is no text"))
}

/// A number of data that is higher than those before, also if the file of the former numbers is lost.
fn next_incarnation(former: u64) -> u64 {
    clock::unix_ms().max(former + 1)
}

/// Returns the bytes of a new identity.
pub(crate) fn random_id() -> [u8; 20] {
    let mut bytes = [0; 20];
    for part in bytes.chunks_mut(8) {
        let random = random::random_seed().to_le_bytes();
        part.copy_from_slice(&random[..part.len()]);
    }
    bytes
}

impl Server {
    /// Whether this node of a cluster may not serve its slots: see `fence.rs`.
    #[inline]
    pub(crate) fn is_fenced(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.fence.has_passed())
    }

    /// Whether an end with these options would leave slots without a node, which `safe` forbids. Logs the
    /// reason.
    pub(crate) fn is_end_unsafe(&self, how: ShutdownOptions) -> bool {
        let Some(cluster) = self.cluster.as_ref().filter(|_| how.safe && !how.force) else { return false };
        let view = cluster.view();
        let has_slots = view.map.shard(view.shard).is_some_and(|shard| !shard.slots.is_empty());
        let is_needed = view.is_primary && has_slots && view.in_sync_replicas() == 0;
        if is_needed {
            log::warn!("This node serves slots, and no replica could take them over. The server goes on");
        }
        is_needed
    }

    /// Makes `map` the server's map, in which it is the node `me`. When this returns, no command runs any
    /// more that was admitted under the map before, and clients that waited, watched or listened in slots
    /// that have left have their replies. The caller is outside the gate. Nothing happens without cluster
    /// mode.
    pub(crate) fn publish_map(&self, map: Map, me: NodeId) {
        self.publish(Seen::new(Arc::new(map), me));
    }

    /// As [`Server::publish_map`], with slots that are closed.
    fn publish(&self, seen: Seen) {
        let Some(cluster) = &self.cluster else { return };
        let mut ctx = cluster.ctx.lock(); // one map at a time
        let old = cluster.view();
        // No key of arriving slots expires: from before the first command of a copy until after the last.
        let shard = seen.map.node(seen.me).map_or(old.shard, |node| node.shard);
        let arriving = view::arriving(&seen.moves, shard);
        self.core.keyspace.spare(&arriving.union(&old.arriving()).iter().collect());
        let hidden = seen
            .map
            .shard(shard)
            .map_or(arriving.clone(), |own| arriving.union(&own.leftover).minus(&own.slots));
        // Whoever finds a key under the new view also counts it: all keys of a slot have come by then.
        self.core.keyspace.hide(&hidden.iter().collect());
        *cluster.seen.lock() = seen;
        // The same settings anew: one thread at a time makes a view, of the newest map and settings.
        let renewed =
            self.core.change_settings(|settings| Ok::<_, std::convert::Infallible>(settings.clone()));
        renewed.unwrap_or_else(|never| match never {});
        let in_flight = self.core.keyspace.in_flight();
        while !self.core.keyspace.has_landed(&in_flight) && !self.core.is_stopping() {
            std::thread::sleep(LANDING_POLL_INTERVAL);
        }
        let new = cluster.view();
        self.core.keyspace.spare(&arriving.iter().collect());
        leaving::follow(self, &old, &new, &mut ctx);
        if !old.paused.is_empty() {
            self.core.workers.wake_all();
        }
    }

    /// Changes the map by a request, keeps it, and publishes it. The caller is outside the gate, and may wait
    /// for a disk.
    ///
    /// # Errors
    /// The reason for the client, without a code. The map stays.
    pub(crate) fn change_map(&self, request: &MapRequest) -> Result<(), String> {
        let Some(cluster) = &self.cluster else {
            return Err("This instance has cluster support disabled".into());
        };
        let _one_at_a_time = cluster.changing.lock();
        if cluster.is_shared() {
            let agent = cluster.agent.get().ok_or("This node has not loaded its data yet")?;
            return shared::change(self, cluster, agent, request);
        }
        let view = cluster.view();
        let changed = match cluster.owner.get() {
            Some(owner) => owner.change(&view, request)?,
            None => changes::apply(&view, request)?,
        };
        self.publish_map(changed.map, changed.me);
        Ok(())
    }

    /// Whether there is a key of these slots in any database. The caller is outside the gate.
    fn has_keys_in(&self, slots: &SlotRanges) -> bool {
        let Some(cluster) = &self.cluster else { return false };
        let (keyspace, mut ctx) = (&self.core.keyspace, cluster.ctx.lock());
        keyspace.enter(&mut ctx);
        let has_keys = |slot| (0..keyspace.databases()).any(|db| keyspace.slot_len(&ctx, db, slot) > 0);
        let found = slots.iter().any(has_keys);
        keyspace.leave(&mut ctx);
        found
    }
}
