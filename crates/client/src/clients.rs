//! The registry of clients, for all workers: the data of CLIENT LIST and CLIENT KILL.
//!
//! The registry is locked only when a client connects or disconnects, or for a list. A client's worker writes
//! its entry with relaxed stores; other threads read it at any time.

use std::collections::BTreeMap;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
};
use std::sync::{Arc, Weak};

use evenkeel_store::Watch;
use parking_lot::Mutex;

use crate::pubsub::push_queue::PushQueue;
use crate::tracking::Tracked;
use crate::waiting::Blocked;
use evenkeel_acl::Who;

/// A client, as seen by other threads.
pub struct ClientInfo {
    pub id: u64,
    pub address: String,
    pub local_address: String,
    pub fd: i32,
    pub is_unix: bool,
    pub created_ms: u64,
    /// The worker that serves it now.
    pub worker: AtomicU32,
    /// Its connection's token at that worker.
    pub token: AtomicU64,
    pub db: AtomicU32,
    /// Time of its last command.
    pub active_ms: AtomicU64,
    /// Number of its last command, `u32::MAX` before the first.
    pub command: AtomicU32,
    /// Commands queued in MULTI, -1 outside.
    pub multi_len: AtomicI32,
    pub multi_memory: AtomicUsize,
    pub watched: AtomicU32,
    pub names: Names,
    /// Number of its channels, patterns and shard channels.
    pub subscribed: AtomicU32,
    pub patterns: AtomicU32,
    pub shards: AtomicU32,
    /// Messages from other threads.
    pub push_queue: PushQueue,
    pub tracked: Tracked,
    /// MONITOR.
    pub monitors: AtomicBool,
    /// The client has left the registry.
    pub gone: AtomicBool,
    /// Version of the protocol for its replies and messages: 2 or 3.
    pub resp: AtomicU8,
    /// Received bytes of its requests, and size of its own buffer for them.
    pub query_used: AtomicUsize,
    pub query_size: AtomicUsize,
    /// It has had a buffer of its own since it was idle.
    query_was_own: AtomicBool,
    /// Most received bytes at once, and when; the last half second counts.
    query_peak: AtomicUsize,
    query_peak_ms: AtomicU64,
    /// Bytes and chunks waiting to be sent.
    pub out_bytes: AtomicUsize,
    pub out_chunks: AtomicUsize,
    /// Bytes for encryption in addition.
    pub tls_size: AtomicUsize,
    pub net_in: AtomicU64,
    pub net_out: AtomicU64,
    pub commands: AtomicU64,
    pub no_evict: AtomicBool,
    pub no_touch: AtomicBool,
    /// CLIENT CAPA REDIRECT: the client understands a redirection to the primary.
    pub redirects: AtomicBool,
    /// CLIENT MAINT_NOTIFICATIONS, as an [`Asked`](crate::maintenance::Asked).
    pub maintenance: AtomicU8,
    /// The client was told to move (CLIENT MAINT_NOTIFICATIONS).
    pub is_moved: AtomicBool,
    /// READONLY: the client reads from a replica on purpose.
    pub reads_replica: AtomicBool,
    /// CLIENT IMPORT-SOURCE.
    pub imports: AtomicBool,
    /// The client receives the stream of writes.
    pub is_replica: AtomicBool,
    /// Waits for a key, or for the end of a pause.
    pub blocked: AtomicBool,
    /// Whether a command of the client waits for the end of a pause, or has waited and not run yet.
    pub parked: AtomicBool,
    /// Waits for a key, with a timeout.
    pub in_timeout: AtomicBool,
    /// Bytes of the waiting command.
    pub waiting_memory: AtomicUsize,
    /// The waiting command, or the last command that waited.
    pub wait: Mutex<Weak<Blocked>>,
    /// Its watched keys.
    pub watch: Mutex<Weak<Watch>>,
    /// The client is this server's primary.
    pub is_primary: AtomicBool,
    /// The client is the server's own HTTP side.
    pub is_http: AtomicBool,
    /// The client is the process that is about to take over from this process.
    pub is_successor: AtomicBool,
    /// Its worker has to close it.
    pub killed: AtomicBool,
    /// DEBUG PROTECT-CLIENT: it is not killed.
    pub protected: AtomicBool,
    pub name: Mutex<Vec<u8>>,
    pub lib_name: Mutex<Vec<u8>>,
    pub lib_version: Mutex<Vec<u8>>,
    /// Its user; `None` for the server's own clients.
    pub user: Mutex<Option<Arc<Who>>>,
}

/// Bytes kept elsewhere for a client: its watched keys, its subscriptions, its tracked prefixes.
#[derive(Default)]
pub struct Names {
    pub watched: AtomicUsize,
    pub subscribed: AtomicUsize,
    pub tracked: AtomicUsize,
    pub fieldsets: AtomicUsize,
}

impl Names {
    /// Returns the bytes of such a name: it is kept with the client, and in an index.
    pub fn cost(name: &[u8]) -> usize {
        /// Slots in two maps or lists.
        const PLACES: usize = 64;
        2 * name.len() + PLACES
    }

    fn sum(&self) -> usize {
        let Names { watched, subscribed, tracked, fieldsets } = self;
        [watched, subscribed, tracked, fieldsets].iter().map(|bytes| bytes.load(Relaxed)).sum()
    }
}

impl ClientInfo {
    pub fn new(
        id: u64,
        address: String,
        local_address: String,
        fd: i32,
        is_unix: bool,
        now_ms: u64,
    ) -> ClientInfo {
        ClientInfo {
            id,
            address,
            local_address,
            fd,
            is_unix,
            created_ms: now_ms,
            worker: AtomicU32::new(0),
            token: AtomicU64::new(0),
            db: AtomicU32::new(0),
            active_ms: AtomicU64::new(now_ms),
            command: AtomicU32::new(u32::MAX),
            multi_len: AtomicI32::new(-1),
            multi_memory: AtomicUsize::new(0),
            watched: AtomicU32::new(0),
            names: Names::default(),
            subscribed: AtomicU32::new(0),
            patterns: AtomicU32::new(0),
            shards: AtomicU32::new(0),
            push_queue: PushQueue::default(),
            tracked: Tracked::default(),
            monitors: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            resp: AtomicU8::new(2),
            query_used: AtomicUsize::new(0),
            query_size: AtomicUsize::new(0),
            query_was_own: AtomicBool::new(false),
            query_peak: AtomicUsize::new(0),
            query_peak_ms: AtomicU64::new(0),
            out_bytes: AtomicUsize::new(0),
            out_chunks: AtomicUsize::new(0),
            tls_size: AtomicUsize::new(0),
            net_in: AtomicU64::new(0),
            net_out: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            no_evict: AtomicBool::new(false),
            no_touch: AtomicBool::new(false),
            redirects: AtomicBool::new(false),
            maintenance: AtomicU8::new(0),
            is_moved: AtomicBool::new(false),
            reads_replica: AtomicBool::new(false),
            imports: AtomicBool::new(false),
            is_replica: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            parked: AtomicBool::new(false),
            in_timeout: AtomicBool::new(false),
            waiting_memory: AtomicUsize::new(0),
            wait: Mutex::default(),
            watch: Mutex::default(),
            is_primary: AtomicBool::new(false),
            is_http: AtomicBool::new(false),
            is_successor: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            protected: AtomicBool::new(false),
            name: Mutex::default(),
            lib_name: Mutex::default(),
            lib_version: Mutex::default(),
            user: Mutex::default(),
        }
    }
}

impl ClientInfo {
    /// Whether the client has chosen RESP3 (HELLO).
    #[inline]
    pub fn is_resp3(&self) -> bool {
        self.resp.load(Relaxed) == 3
    }

    /// Returns the user for whom the client acts.
    pub fn user(&self) -> Option<Arc<Who>> {
        self.user.lock().clone()
    }

    /// Records the received bytes of requests, about to be run.
    #[inline]
    pub fn record_query(&self, len: usize, now_ms: u64) {
        self.active_ms.store(now_ms, Relaxed);
        self.query_used.store(len, Relaxed);
        let peak = self.query_peak.load(Relaxed);
        if len >= peak || now_ms.saturating_sub(self.query_peak_ms.load(Relaxed)) > QUERY_PEAK_MS {
            self.query_peak.store(len, Relaxed);
            self.query_peak_ms.store(now_ms, Relaxed);
        }
    }

    /// Records the client's own buffer for requests, and its received bytes.
    pub fn set_query(&self, used: usize, size: usize) {
        self.query_used.store(used, Relaxed);
        self.query_size.store(size, Relaxed);
        if size > 0 {
            self.query_was_own.store(true, Relaxed);
        }
    }

    /// Returns the bytes of buffer for requests. A client without an incomplete request has no buffer of its
    /// own: it reads into its worker's. If it recently had one, it counts with its recent need, until it is
    /// idle.
    pub fn query_room(&self, now_ms: u64) -> usize {
        /// Redis and Valkey give a client at least that much, and their tools expect it.
        const ROOM_MIN: usize = 16 * 1024;
        const IDLE_MS: u64 = 2_000;
        let own = self.query_size.load(Relaxed);
        let idle_ms = now_ms.saturating_sub(self.active_ms.load(Relaxed));
        if idle_ms >= IDLE_MS {
            self.query_was_own.store(own > 0, Relaxed);
        }
        if own > 0 || !self.query_was_own.load(Relaxed) {
            return own;
        }
        self.query_peak.load(Relaxed).max(ROOM_MIN)
    }

    /// Whether the client has subscriptions: such clients have a class of their own.
    #[inline]
    pub fn is_subscriber(&self) -> bool {
        [&self.subscribed, &self.patterns, &self.shards].iter().any(|count| count.load(Relaxed) > 0)
    }

    /// Records that a wait for a key begins or ends.
    pub fn set_waiting(&self, waits: bool, memory: usize, in_timeout: bool) {
        self.blocked.store(waits, Relaxed);
        self.waiting_memory.store(memory, Relaxed);
        self.in_timeout.store(in_timeout, Relaxed);
    }

    /// Returns the bytes that the client takes: its buffers, its queued and waiting commands, its name,
    /// itself, and the names that it watches, subscribes to and tracks.
    pub fn memory(&self) -> usize {
        let names = self.name.lock().capacity() + self.lib_name.lock().capacity() + self.names.sum();
        let buffers = self.query_size.load(Relaxed) + self.out_bytes.load(Relaxed);
        let buffers = buffers + self.tls_size.load(Relaxed);
        BASE + names + buffers + self.multi_memory.load(Relaxed) + self.waiting_memory.load(Relaxed)
    }

    /// Whether the client is on this machine: over a Unix socket or the loopback interface.
    pub fn is_local(&self) -> bool {
        let ip = self.address.parse::<std::net::SocketAddr>().map(|address| address.ip().to_canonical());
        self.is_unix || ip.is_ok_and(|ip| ip.is_loopback())
    }
}

/// Milliseconds for which a client's largest request is remembered.
const QUERY_PEAK_MS: u64 = 500;

/// Bytes of a connection apart from its buffers, which this registry does not know.
pub const CONNECTION_BYTES: usize = 488;

/// Bytes of an idle client: its entry here, and its connection.
const BASE: usize = size_of::<ClientInfo>() + CONNECTION_BYTES;

/// Totals over all clients but replicas.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub count: usize,
    /// In bytes.
    pub memory: usize,
    /// Largest query buffer and largest output backlog, in bytes.
    pub input_max: usize,
    pub output_max: usize,
    pub blocked: usize,
    pub in_timeout: usize,
    pub watching: usize,
    pub watched_keys: usize,
    pub subscribers: usize,
}

/// All clients; see the module's text.
#[derive(Default)]
pub struct Clients {
    by_id: Mutex<BTreeMap<u64, Arc<ClientInfo>>>,
    last_id: AtomicU64,
    count: AtomicUsize,
}

impl Clients {
    /// Returns an id that no client has had.
    pub fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Relaxed) + 1
    }

    /// Returns the last id that a client has got.
    pub fn last_id(&self) -> u64 {
        self.last_id.load(Relaxed)
    }

    /// Leaves all ids up to this to clients of another process, which are taken over.
    pub fn skip_ids(&self, last: u64) {
        self.last_id.fetch_max(last, Relaxed);
    }

    pub fn add(&self, client: Arc<ClientInfo>) {
        self.count.fetch_add(1, Relaxed);
        self.by_id.lock().insert(client.id, client);
    }

    pub fn remove(&self, id: u64) {
        if let Some(client) = self.by_id.lock().remove(&id) {
            client.gone.store(true, Relaxed);
            self.count.fetch_sub(1, Relaxed);
        }
    }

    /// Removes clients from the registry and marks them for their workers to close. Returns how many were
    /// still registered.
    pub fn kill(&self, clients: &[Arc<ClientInfo>]) -> usize {
        let mut killed = 0;
        for client in clients.iter().filter(|client| !client.protected.load(Relaxed)) {
            client.killed.store(true, Relaxed);
            if self.by_id.lock().remove(&client.id).is_some() {
                client.gone.store(true, Relaxed);
                self.count.fetch_sub(1, Relaxed);
                killed += 1;
            }
        }
        killed
    }

    pub fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Returns the clients that take most memory, until the remaining clients take at most `limit` bytes.
    /// Protected clients count, but stay.
    pub fn beyond(&self, limit: usize) -> Vec<Arc<ClientInfo>> {
        let mut clients = self.list();
        // A replica's waiting bytes are the stream, which all replicas share; the primary's bytes must not be
        // lost.
        clients.retain(|client| !client.is_replica.load(Relaxed) && !client.is_primary.load(Relaxed));
        let mut sum: usize = clients.iter().map(|client| client.memory()).sum();
        if sum <= limit {
            return Vec::new();
        }
        let mut candidates: Vec<_> = clients
            .into_iter()
            .filter(|client| !client.no_evict.load(Relaxed))
            .map(|client| (client.memory(), client))
            .collect();
        candidates.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let mut beyond = Vec::new();
        for (bytes, client) in candidates {
            if sum <= limit {
                break;
            }
            sum = sum.saturating_sub(bytes);
            beyond.push(client);
        }
        beyond
    }

    /// Computes the totals over all clients but replicas.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for client in self.by_id.lock().values().filter(|client| !client.is_replica.load(Relaxed)) {
            totals.count += 1;
            totals.memory += client.memory();
            totals.input_max = totals.input_max.max(client.query_size.load(Relaxed));
            totals.output_max = totals.output_max.max(client.out_bytes.load(Relaxed));
            totals.blocked += usize::from(client.blocked.load(Relaxed));
            totals.in_timeout += usize::from(client.in_timeout.load(Relaxed));
            let watched = client.watched.load(Relaxed) as usize;
            totals.watching += usize::from(watched > 0);
            totals.watched_keys += watched;
            totals.subscribers += usize::from(client.is_subscriber());
        }
        totals
    }

    /// Returns the client with this id.
    pub fn get(&self, id: u64) -> Option<Arc<ClientInfo>> {
        self.by_id.lock().get(&id).cloned()
    }

    /// Returns all clients, ordered by id.
    pub fn list(&self) -> Vec<Arc<ClientInfo>> {
        self.by_id.lock().values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(clients: &Clients, bytes: usize) -> Arc<ClientInfo> {
        let address = "127.0.0.1:1".to_owned();
        let client = Arc::new(ClientInfo::new(clients.next_id(), address.clone(), address, 1, false, 0));
        client.out_bytes.store(bytes, Relaxed);
        clients.add(client.clone());
        client
    }

    #[test]
    fn the_largest_clients_are_evicted_first() {
        let clients = Clients::default();
        let all: Vec<_> = [10, 500_000, 300_000, 700_000, 20].map(|bytes| client(&clients, bytes)).into();
        all[3].no_evict.store(true, Relaxed);
        let ids = |limit| clients.beyond(limit).iter().map(|client| client.id).collect::<Vec<_>>();
        assert!(ids(2_000_000).is_empty());
        assert_eq!(ids(1_100_000), [2]);
        assert_eq!(ids(800_000), [2, 3]);
        assert_eq!(ids(0).len(), 4, "the one that may not be evicted stays");
        assert_eq!(clients.kill(&clients.beyond(800_000)), 2);
        assert_eq!((clients.count(), clients.kill(&all[1..2])), (3, 0), "each counts once");
        assert!(all[1].killed.load(Relaxed) && !all[0].killed.load(Relaxed));
    }

    /// Otherwise the bytes that it sends would be lost.
    #[test]
    fn replicas_and_the_primary_are_never_evicted() {
        let clients = Clients::default();
        let [replica, primary, other] = [3_000_000, 2_000_000, 100_000].map(|bytes| client(&clients, bytes));
        replica.is_replica.store(true, Relaxed);
        primary.is_primary.store(true, Relaxed);
        assert!(clients.beyond(1_000_000).is_empty(), "nor do they count");
        assert!(clients.beyond(0).iter().map(|client| client.id).eq([other.id]));
    }

    #[test]
    fn active_clients_keep_their_buffers() {
        let client = client(&Clients::default(), 0);
        client.record_query(400_000, 1_000);
        assert_eq!(client.query_room(1_001), 0, "it was read into the worker's buffer");
        client.set_query(300_000, 300_000);
        client.set_query(0, 0);
        assert_eq!(client.query_room(1_001), 400_000);
        client.record_query(100, 1_100);
        assert_eq!(client.query_room(1_101), 400_000);
        client.record_query(100, 1_600);
        assert_eq!(client.query_room(1_601), 16 * 1024);
        assert_eq!(client.query_room(3_600), 0);
        client.record_query(100, 3_700);
        assert_eq!(client.query_room(3_701), 0);
        client.query_size.store(777, Relaxed);
        assert_eq!(client.query_room(9_999), 777);
    }
}
