//! The registry of clients: what CLIENT LIST shows and CLIENT KILL acts on, for all workers.
//!
//! The registry itself is locked only when a client comes or goes or somebody lists them. Each client's entry is
//! written by its worker with relaxed stores; others read it as it stands.

use std::collections::BTreeMap;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
};
use std::sync::{Arc, Weak};

use evenkeel_store::Watch;
use parking_lot::Mutex;

use crate::acl::Who;
use crate::blocking::Blocked;
use crate::net::connection::Connection;
use crate::pubsub::push_queue::PushQueue;
use crate::tracking::Tracked;

/// One client, as others see it.
pub(crate) struct ClientInfo {
    pub(crate) id: u64,
    pub(crate) address: String,
    pub(crate) local_address: String,
    pub(crate) fd: i32,
    pub(crate) is_unix: bool,
    pub(crate) created_ms: u64,
    /// The worker that serves it now.
    pub(crate) worker: AtomicU32,
    /// Its connection's token there.
    pub(crate) token: AtomicU64,
    pub(crate) db: AtomicU32,
    /// When its last command came.
    pub(crate) active_ms: AtomicU64,
    /// Its last command's number, `u32::MAX` before the first.
    pub(crate) command: AtomicU32,
    /// Commands queued in MULTI, -1 outside.
    pub(crate) multi_len: AtomicI32,
    pub(crate) multi_memory: AtomicUsize,
    pub(crate) watched: AtomicU32,
    pub(crate) names: Names,
    /// Channels, patterns and shard channels that it listens to.
    pub(crate) subscribed: AtomicU32,
    pub(crate) patterns: AtomicU32,
    pub(crate) shards: AtomicU32,
    /// What others have for it.
    pub(crate) push_queue: PushQueue,
    pub(crate) tracked: Tracked,
    /// MONITOR.
    pub(crate) monitors: AtomicBool,
    /// It is in the registry no more.
    pub(crate) gone: AtomicBool,
    pub(crate) resp: AtomicU8,
    /// Bytes of its requests that are at hand, and of the buffer that it has of its own for them.
    pub(crate) query_used: AtomicUsize,
    pub(crate) query_size: AtomicUsize,
    /// The most bytes of requests at hand at once, and when that was; the last half second counts.
    query_peak: AtomicUsize,
    query_peak_ms: AtomicU64,
    /// Bytes and stretches waiting to be sent.
    pub(crate) out_bytes: AtomicUsize,
    pub(crate) out_stretches: AtomicUsize,
    /// Bytes that encryption takes beside them.
    pub(crate) tunnel_size: AtomicUsize,
    pub(crate) net_in: AtomicU64,
    pub(crate) net_out: AtomicU64,
    pub(crate) commands: AtomicU64,
    pub(crate) no_evict: AtomicBool,
    pub(crate) no_touch: AtomicBool,
    /// It is fed the stream of writes.
    pub(crate) is_replica: AtomicBool,
    /// Waiting, for a key or for a pause to end.
    pub(crate) blocked: AtomicBool,
    /// Waiting for a key, and not for ever.
    pub(crate) in_timeout: AtomicBool,
    /// Bytes of the command that waits.
    pub(crate) waiting_memory: AtomicUsize,
    /// The command that waits, or the last one that did.
    pub(crate) wait: Mutex<Weak<Blocked>>,
    /// What it watches keys with.
    pub(crate) watch: Mutex<Weak<Watch>>,
    /// It is the primary that this server follows.
    pub(crate) is_primary: AtomicBool,
    /// To be closed by its worker.
    pub(crate) killed: AtomicBool,
    pub(crate) name: Mutex<Vec<u8>>,
    pub(crate) lib_name: Mutex<Vec<u8>>,
    pub(crate) lib_version: Mutex<Vec<u8>>,
    /// The user that it is; `None` for the server's own.
    pub(crate) user: Mutex<Option<Arc<Who>>>,
}

/// Bytes that others keep for a client: of the keys that it watches, of what it listens to, of the prefixes that it tracks.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) watched: AtomicUsize,
    pub(crate) heard: AtomicUsize,
    pub(crate) tracked: AtomicUsize,
}

impl Names {
    /// Of one such name: it is kept with the client, and where it is looked up.
    pub(crate) fn cost(name: &[u8]) -> usize {
        /// Places in two maps or lists.
        const PLACES: usize = 64;
        2 * name.len() + PLACES
    }

    fn sum(&self) -> usize {
        [&self.watched, &self.heard, &self.tracked].iter().map(|bytes| bytes.load(Relaxed)).sum()
    }
}

impl ClientInfo {
    pub(crate) fn new(
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
            query_peak: AtomicUsize::new(0),
            query_peak_ms: AtomicU64::new(0),
            out_bytes: AtomicUsize::new(0),
            out_stretches: AtomicUsize::new(0),
            tunnel_size: AtomicUsize::new(0),
            net_in: AtomicU64::new(0),
            net_out: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            no_evict: AtomicBool::new(false),
            no_touch: AtomicBool::new(false),
            is_replica: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            in_timeout: AtomicBool::new(false),
            waiting_memory: AtomicUsize::new(0),
            wait: Mutex::default(),
            watch: Mutex::default(),
            is_primary: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            name: Mutex::default(),
            lib_name: Mutex::default(),
            lib_version: Mutex::default(),
            user: Mutex::default(),
        }
    }
}

impl ClientInfo {
    /// So many bytes of requests are at hand, to be run now.
    #[inline]
    pub(crate) fn note_query(&self, len: usize, now_ms: u64) {
        self.active_ms.store(now_ms, Relaxed);
        self.query_used.store(len, Relaxed);
        let peak = self.query_peak.load(Relaxed);
        if len >= peak || now_ms.saturating_sub(self.query_peak_ms.load(Relaxed)) > QUERY_PEAK_MS {
            self.query_peak.store(len, Relaxed);
            self.query_peak_ms.store(now_ms, Relaxed);
        }
    }

    /// Bytes of room for requests. A client with nothing unfinished has no buffer of its own: it reads into its
    /// worker's, of which it is given what it needed lately, and nothing once it is idle.
    pub(crate) fn query_room(&self, now_ms: u64) -> usize {
        /// Peers give a client that much at least, and their tools look for it.
        const ROOM_MIN: usize = 16 * 1024;
        const IDLE_MS: u64 = 2_000;
        let own = self.query_size.load(Relaxed);
        let idle_ms = now_ms.saturating_sub(self.active_ms.load(Relaxed));
        if own > 0 || idle_ms >= IDLE_MS || self.net_in.load(Relaxed) == 0 {
            return own;
        }
        self.query_peak.load(Relaxed).max(ROOM_MIN)
    }

    /// Whether it listens to anything: such clients have a class of their own.
    #[inline]
    pub(crate) fn is_subscriber(&self) -> bool {
        [&self.subscribed, &self.patterns, &self.shards].iter().any(|count| count.load(Relaxed) > 0)
    }

    /// A wait for a key begins or ends.
    pub(crate) fn note_wait(&self, waits: bool, memory: usize, in_timeout: bool) {
        self.blocked.store(waits, Relaxed);
        self.waiting_memory.store(memory, Relaxed);
        self.in_timeout.store(in_timeout, Relaxed);
    }

    /// Bytes of memory that the client takes: its buffers, its commands that are queued or wait, its name, itself, and the
    /// names of what it watches, listens to and tracks.
    pub(crate) fn memory(&self) -> usize {
        let names = self.name.lock().capacity() + self.lib_name.lock().capacity() + self.names.sum();
        let buffers = self.query_size.load(Relaxed) + self.out_bytes.load(Relaxed);
        let buffers = buffers + self.tunnel_size.load(Relaxed);
        BASE + names + buffers + self.multi_memory.load(Relaxed) + self.waiting_memory.load(Relaxed)
    }

    /// Whether the client is on this machine: over a Unix socket or the loopback interface.
    pub(crate) fn is_local(&self) -> bool {
        let ip = self.address.parse::<std::net::SocketAddr>().map(|address| address.ip().to_canonical());
        self.is_unix || ip.is_ok_and(|ip| ip.is_loopback())
    }
}

/// How long the largest request of a client is remembered, in milliseconds.
const QUERY_PEAK_MS: u64 = 500;

/// Bytes of an idle client: its entry here, and its connection.
const BASE: usize = size_of::<ClientInfo>() + size_of::<Connection>();

/// Figures over all clients but replicas.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) count: usize,
    /// In bytes.
    pub(crate) memory: usize,
    /// The largest query buffer and the largest backlog, in bytes.
    pub(crate) input_max: usize,
    pub(crate) output_max: usize,
    pub(crate) blocked: usize,
    pub(crate) in_timeout: usize,
    pub(crate) watching: usize,
    pub(crate) watched_keys: usize,
    pub(crate) subscribers: usize,
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Clients {
    by_id: Mutex<BTreeMap<u64, Arc<ClientInfo>>>,
    last_id: AtomicU64,
    count: AtomicUsize,
}

impl Clients {
    /// A number that no client has had.
    pub(crate) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Relaxed) + 1
    }

    pub(crate) fn add(&self, client: Arc<ClientInfo>) {
        self.count.fetch_add(1, Relaxed);
        self.by_id.lock().insert(client.id, client);
    }

    pub(crate) fn remove(&self, id: u64) {
        if let Some(client) = self.by_id.lock().remove(&id) {
            client.gone.store(true, Relaxed);
            self.count.fetch_sub(1, Relaxed);
        }
    }

    /// Takes clients out of the registry and marks them for their workers to close; returns how many were still there.
    pub(crate) fn kill(&self, clients: &[Arc<ClientInfo>]) -> usize {
        let mut killed = 0;
        for client in clients {
            client.killed.store(true, Relaxed);
            if self.by_id.lock().remove(&client.id).is_some() {
                client.gone.store(true, Relaxed);
                self.count.fetch_sub(1, Relaxed);
                killed += 1;
            }
        }
        killed
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// The clients that take most memory, as many as have to go for the others to take at most `limit` bytes; those
    /// that may not be evicted are counted and stay.
    pub(crate) fn beyond(&self, limit: usize) -> Vec<Arc<ClientInfo>> {
        let mut clients = self.list();
        // What waits for a replica is the stream, of which there is one for all of them; what the primary sends
        // must not be lost.
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

    /// Figures over all clients but replicas.
    pub(crate) fn totals(&self) -> Totals {
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

    /// The client with this id.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<ClientInfo>> {
        self.by_id.lock().get(&id).cloned()
    }

    /// All clients, in the order of their ids.
    pub(crate) fn list(&self) -> Vec<Arc<ClientInfo>> {
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
    fn the_largest_go_until_the_rest_fits() {
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

    /// What it sends is lost otherwise.
    #[test]
    fn neither_replicas_nor_the_primary_go() {
        let clients = Clients::default();
        let [replica, primary, other] = [3_000_000, 2_000_000, 100_000].map(|bytes| client(&clients, bytes));
        replica.is_replica.store(true, Relaxed);
        primary.is_primary.store(true, Relaxed);
        assert!(clients.beyond(1_000_000).is_empty(), "nor do they count");
        assert!(clients.beyond(0).iter().map(|client| client.id).eq([other.id]));
    }

    #[test]
    fn a_client_is_given_room_while_it_is_active() {
        let client = client(&Clients::default(), 0);
        assert_eq!(client.query_room(0), 0, "nothing has come yet");
        client.net_in.store(1, Relaxed);
        client.note_query(400_000, 1_000);
        assert_eq!(client.query_room(1_001), 400_000);
        client.note_query(100, 1_100);
        assert_eq!(client.query_room(1_101), 400_000);
        client.note_query(100, 1_600);
        assert_eq!(client.query_room(1_601), 16 * 1024);
        assert_eq!(client.query_room(3_600), 0);
        client.query_size.store(777, Relaxed);
        assert_eq!(client.query_room(9_999), 777);
    }
}
