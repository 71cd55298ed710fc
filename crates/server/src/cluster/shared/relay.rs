//! Messages of PUBLISH and SPUBLISH for clients of other nodes.
//!
//! | published at | kind | it reaches, besides the clients of this node |
//! |---|---|---|
//! | a primary | PUBLISH, SPUBLISH | its replicas: by replication, in the order of its writes |
//! | a primary | PUBLISH | all nodes of other shards: by CLUSTER RELAY |
//! | a replica | PUBLISH | all other nodes: by CLUSTER RELAY |
//! | a replica | SPUBLISH | the other nodes of its shard: by CLUSTER RELAY |
//!
//! A message is encoded once, and put into the queue of each node that gets it. A node's queue has a thread
//! of its own, which begins with the first message: it connects and sends. So each node gets the messages of
//! a publisher in their order, and a node that is slow delays no other.
//!
//! **At most once.** A message is dropped when its node is not reached, or when the queue is full. A node
//! without a lease gets no messages.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use evenkeel_client::pubsub::SubscriptionKind;
use evenkeel_client::pubsub::relay;
use evenkeel_cluster::{Node, NodeId};
use evenkeel_rdb::aof::push_command;
use evenkeel_replication::node_connection::NodeConnection;
use evenkeel_runtime::threads;
use parking_lot::{Condvar, Mutex};

use super::super::Cluster;
use super::super::view::ClusterView;
use crate::server::Server;

/// Bytes that wait for a node at most.
const QUEUE_LEN_MAX: usize = 64 << 20;

/// Bytes that are sent together.
const BATCH_LEN: usize = 256 << 10;

/// How often a thread without messages looks whether its node is in the map.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The time between two attempts to connect. Messages that come in between are dropped.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The time between two lines of the log about a node.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Messages that were exchanged with other nodes, and the bytes of their channels and texts.
#[derive(Default)]
pub(crate) struct RelayStats {
    pub(crate) sent: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
    /// Messages for nodes that were not reached, or whose queue was full.
    pub(crate) dropped: AtomicU64,
}

/// The queues of all nodes; see the module's text.
pub(super) struct Relay {
    server: Weak<Server>,
    destinations: Mutex<HashMap<NodeId, Arc<Destination>>>,
}

impl Relay {
    pub(super) fn new(server: &Arc<Server>) -> Relay {
        Relay { server: Arc::downgrade(server), destinations: Mutex::default() }
    }

    /// The queue of a node, with its thread. `None`: the thread does not start.
    fn destination(&self, server: &Server, id: NodeId) -> Option<Arc<Destination>> {
        let mut destinations = self.destinations.lock();
        // The thread of a node that had left the map has ended.
        if let Some(destination) = destinations.get(&id).filter(|there| !there.queue.lock().has_ended) {
            return Some(destination.clone());
        }
        let destination = Arc::new(Destination { id, queue: Mutex::default(), changed: Condvar::new() });
        let (on_thread, server_of_thread) = (destination.clone(), self.server.clone());
        let spawned = threads::named("cluster-relay").spawn(move || {
            evenkeel_store::memory::register_thread();
            Sender::new(on_thread).run(&server_of_thread);
        });
        if let Err(error) = spawned {
            count(server, 1, |stats| &stats.dropped);
            log::warn!("Cannot start a thread for the messages of PUBLISH: {error}");
            return None;
        }
        destinations.insert(id, destination.clone());
        Some(destination)
    }
}

impl relay::Relay for Relay {
    fn has_receivers(&self, kind: SubscriptionKind) -> bool {
        let Some(server) = self.server.upgrade() else { return false };
        let Some(cluster) = &server.cluster else { return false };
        let view = cluster.view();
        receivers(&view, kind).next().is_some()
    }

    fn send(&self, kind: SubscriptionKind, channel: &[u8], text: &[u8]) {
        let Some(server) = self.server.upgrade() else { return };
        let Some(cluster) = &server.cluster else { return };
        let view = cluster.view();
        let mut command: Option<Arc<[u8]>> = None;
        for (id, _) in receivers(&view, kind) {
            let command = command.get_or_insert_with(|| encode(kind, channel, text));
            let Some(destination) = self.destination(&server, id) else { continue };
            if destination.put(command.clone()) {
                count(&server, 1, |stats| &stats.sent);
                count(&server, channel.len() + text.len(), |stats| &stats.sent_bytes);
            } else {
                count(&server, 1, |stats| &stats.dropped);
            }
        }
    }
}

fn count(server: &Server, by: usize, field: impl Fn(&RelayStats) -> &AtomicU64) {
    if let Some(cluster) = &server.cluster {
        field(&cluster.relay_stats).fetch_add(by as u64, Relaxed);
    }
}

/// The nodes that get a message of this kind by CLUSTER RELAY.
fn receivers(view: &ClusterView, kind: SubscriptionKind) -> impl Iterator<Item = (NodeId, &Node)> {
    let in_shard = kind == SubscriptionKind::Shard;
    let nodes = view.map.nodes().iter().map(|(id, node)| (*id, node));
    nodes.filter(move |(id, node)| {
        let is_mate = node.shard == view.shard;
        let is_reached = if view.is_primary { !is_mate && !in_shard } else { is_mate || !in_shard };
        *id != view.me && node.is_alive && is_reached
    })
}

fn encode(kind: SubscriptionKind, channel: &[u8], text: &[u8]) -> Arc<[u8]> {
    let word: &[u8] = if kind == SubscriptionKind::Shard { b"SPUBLISH" } else { b"PUBLISH" };
    let mut bytes = Vec::with_capacity(channel.len() + text.len() + 96);
    let words: [&[u8]; 5] = [b"CLUSTER", b"RELAY", word, channel, text];
    push_command(&mut bytes, &words);
    bytes.into()
}

/// A node that gets messages.
struct Destination {
    id: NodeId,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    commands: VecDeque<Arc<[u8]>>,
    len: usize,
    /// The node's thread has ended.
    has_ended: bool,
}

impl Destination {
    /// Returns false if there is no room.
    fn put(&self, command: Arc<[u8]>) -> bool {
        let mut queue = self.queue.lock();
        if queue.has_ended || queue.len + command.len() > QUEUE_LEN_MAX && !queue.commands.is_empty() {
            return false;
        }
        queue.len += command.len();
        queue.commands.push_back(command);
        drop(queue);
        self.changed.notify_one();
        true
    }

    /// Takes commands to send together, and their number. Waits for [`LOOK_INTERVAL`] at most.
    fn take(&self) -> (Vec<u8>, usize) {
        let mut queue = self.queue.lock();
        if queue.commands.is_empty() {
            self.changed.wait_for(&mut queue, LOOK_INTERVAL);
        }
        let (mut batch, mut number) = (Vec::new(), 0);
        while batch.len() < BATCH_LEN
            && let Some(command) = queue.commands.pop_front()
        {
            queue.len -= command.len();
            batch.extend_from_slice(&command);
            number += 1;
        }
        (batch, number)
    }

    /// Ends the queue. Returns the number of messages in it.
    fn end(&self) -> usize {
        let mut queue = self.queue.lock();
        (queue.has_ended, queue.len) = (true, 0);
        std::mem::take(&mut queue.commands).len()
    }
}

/// A node's thread.
struct Sender {
    destination: Arc<Destination>,
    connection: Option<NodeConnection>,
    failed_at: Option<Instant>,
    logged_at: Option<Instant>,
}

impl Sender {
    fn new(destination: Arc<Destination>) -> Sender {
        Sender { destination, connection: None, failed_at: None, logged_at: None }
    }

    /// Sends messages until the node is not in the map any more, or the process ends.
    fn run(mut self, server: &Weak<Server>) {
        loop {
            let (batch, number) = self.destination.take();
            let Some(server) = server.upgrade() else { break };
            let node = server.cluster.as_ref().and_then(|cluster| {
                let view = cluster.view();
                view.map.node(self.destination.id).cloned()
            });
            let Some(node) = node.filter(|_| !server.core.is_stopping()) else {
                count(&server, number + self.destination.end(), |stats| &stats.dropped);
                return;
            };
            if !node.is_alive {
                self.connection = None;
            }
            if number > 0 && !self.send(&server, &node, &batch) {
                count(&server, number, |stats| &stats.dropped);
            }
        }
        self.destination.end();
    }

    fn send(&mut self, server: &Server, node: &Node, batch: &[u8]) -> bool {
        let id = self.destination.id;
        let is_alive = |cluster: &Cluster| cluster.view().map.node(id).is_some_and(|node| node.is_alive);
        let is_wanted = || !server.core.is_stopping() && server.cluster.as_ref().is_some_and(is_alive);
        // An idle connection may have ended: that shows now, before anything is sent.
        if self.connection.as_mut().is_some_and(|connection| connection.take_replies().is_err()) {
            self.connection = None;
        }
        if self.connection.is_none() && !self.connect(server, node, &is_wanted) {
            return false;
        }
        let Some(connection) = &mut self.connection else { return false };
        let sent = connection.send(batch, &is_wanted).and_then(|()| connection.take_replies());
        match sent {
            Ok(None) => true,
            Ok(Some(refusal)) => {
                self.log(&format!("it replied: {}", refusal.escape_debug()));
                true
            }
            Err(error) => {
                self.connection = None;
                self.log(&format!("the connection broke: {error}"));
                false
            }
        }
    }

    fn connect(&mut self, server: &Server, node: &Node, is_wanted: &dyn Fn() -> bool) -> bool {
        if self.failed_at.is_some_and(|at| at.elapsed() < RETRY_INTERVAL) {
            return false;
        }
        let address = &node.address;
        let port = if server.core.settings().tls_replication { address.tls_port } else { address.port };
        match NodeConnection::connect(&server.replication, (&address.ip, port), is_wanted) {
            Ok(connection) => {
                (self.connection, self.failed_at) = (Some(connection), None);
                true
            }
            Err(reason) => {
                self.failed_at = Some(Instant::now());
                self.log(&reason);
                false
            }
        }
    }

    fn log(&mut self, reason: &str) {
        if self.logged_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            self.logged_at = Some(Instant::now());
            log::warn!("Messages of PUBLISH do not reach node {}: {reason}", self.destination.id);
        }
    }
}
