//! [`Hub`]: all clients, and everything that sends them messages which they have not asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use evenkeel_command::class::{EXPIRED, HASH, OF_FIELDS};
use evenkeel_config::Settings;
use evenkeel_core::Core;
use evenkeel_store::events::Events;

use crate::clients::{ClientInfo, Clients};
use crate::maintenance::Maintenance;
use crate::monitor::Monitors;
use crate::pubsub::PubSub;
use crate::pubsub::notices::Notices;
use crate::tracking::Tracking;
use crate::waiting::Resumed;

/// The workers, as other threads reach them on behalf of clients. Every call returns at once.
pub trait ClientWorkers: Send + Sync {
    /// Has a worker send the queued messages of these clients, which it serves.
    fn push_queued(&self, worker: usize, clients: Vec<Arc<ClientInfo>>);

    /// Has the client's worker send the reply to a command that waited.
    fn resume(&self, resumed: Resumed);

    /// Has all workers close the connections of killed clients.
    fn close_killed(&self);
}

/// All clients, and the sources of their push messages.
pub struct Hub {
    core: Arc<Core>,
    workers: Arc<dyn ClientWorkers>,
    pub clients: Clients,
    pub pubsub: Arc<PubSub>,
    notices: Arc<Notices>,
    pub tracking: Arc<Tracking>,
    pub monitors: Arc<Monitors>,
    pub maintenance: Maintenance,
    /// Connections refused since `maxclients` was reached.
    pub rejected_connections: AtomicU64,
    pub closed_for_output: AtomicU64,
    pub closed_for_input: AtomicU64,
    pub evicted_clients: AtomicU64,
}

impl Hub {
    /// Creates a hub without clients, and registers it for the events of the keyspace.
    pub fn new(core: Arc<Core>, workers: Arc<dyn ClientWorkers>) -> Hub {
        let settings = core.settings();
        let pubsub = Arc::new(PubSub::new(&settings));
        let tracking = Arc::new(Tracking::new(pubsub.clone()));
        let monitors = Arc::new(Monitors::default());
        let notices = Arc::new(Notices::new(pubsub.clone(), tracking.clone(), monitors.clone()));
        core.keyspace.events.set_listener(notices.clone());
        let hub = Hub {
            core,
            workers,
            clients: Clients::default(),
            pubsub,
            notices,
            tracking,
            monitors,
            maintenance: Maintenance::default(),
            rejected_connections: AtomicU64::new(0),
            closed_for_output: AtomicU64::new(0),
            closed_for_input: AtomicU64::new(0),
            evicted_clients: AtomicU64::new(0),
        };
        hub.configure(&settings);
        hub
    }

    /// Follows the settings.
    pub fn configure(&self, settings: &Settings) {
        self.pubsub.configure(settings);
        self.tracking.configure(settings.tracking_table_max_keys);
        let classes = self.notices.configure(&settings.notify_keyspace_events);
        let events = &self.core.keyspace.events;
        events.want(Events::FIELDS, classes & OF_FIELDS != 0 && classes & (HASH | EXPIRED) != 0);
        events.want(Events::NOTICES, classes != 0);
    }

    /// Invalidates all keys that tracking clients have read.
    pub fn forget_tracked(&self) {
        if let Some(forgotten) = self.tracking.flushed() {
            self.core.lazy_free.free(forgotten);
        }
    }

    /// Ends a client's tracking.
    pub fn end_tracking(&self, client: &Arc<ClientInfo>) {
        if let Some(forgotten) = self.tracking.end(&self.core.keyspace.events, client) {
            self.core.lazy_free.free(forgotten);
        }
    }

    /// Notifies a client's worker that its command no longer waits.
    pub fn resume(&self, resumed: Resumed) {
        self.workers.resume(resumed);
    }

    /// Has a worker send the queued messages of these clients.
    pub fn push_queued(&self, worker: usize, clients: Vec<Arc<ClientInfo>>) {
        self.workers.push_queued(worker, clients);
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.core.workers.count()
    }

    /// Takes these clients out of the registry, and has their connections closed. Returns how many there
    /// were.
    pub fn kill(&self, clients: &[Arc<ClientInfo>]) -> usize {
        let killed = self.clients.kill(clients);
        // All workers, since a connection may be moving between workers.
        self.workers.close_killed();
        killed
    }

    /// Counts and logs a client that is disconnected because its received, unprocessed bytes have reached
    /// `client-query-buffer-limit`.
    #[cold]
    pub fn record_input_limit(&self, client: &ClientInfo) {
        self.closed_for_input.fetch_add(1, Relaxed);
        let ClientInfo { id, address, .. } = client;
        log::warn!("Closing client that reached max query buffer length: id={id} addr={address}");
    }

    /// Resets the counters, for CONFIG RESETSTAT.
    pub fn reset_counts(&self) {
        for counter in [
            &self.rejected_connections,
            &self.closed_for_output,
            &self.closed_for_input,
            &self.evicted_clients,
        ] {
            counter.store(0, Relaxed);
        }
    }
}
