//! The server: the state that all threads share.
//!
//! Commands write nothing here. Settings are an immutable value that is replaced as a whole; workers compare
//! its version once per loop turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use evenkeel_store::Keyspace;
use evenkeel_store::events::Events;
use parking_lot::{Mutex, RwLock};

use crate::admin::migrate::Targets;
use crate::clients::{ClientInfo, Clients};
use crate::commands;
use crate::dispatch::memory::apart_bytes;
use crate::monitor::Monitors;
use crate::net::inbox::{Inbox, Message};
use crate::observe::commandlog::CommandLog;
use crate::observe::hotkeys::HotKeys;
use crate::observe::latency::Monitor;
use crate::observe::rates::Rates;
use crate::observe::sampler::Sampler;
use crate::observe::stats::Stats;
use crate::offload::OffloadPool;
use crate::persist::{Persist, load};
use crate::pubsub::PubSub;
use crate::pubsub::notices::Notices;
use crate::replication;
use crate::scripting::Scripts;
use crate::tracking::Tracking;
use crate::waiting::Resumed;
use evenkeel_acl::Acl;
use evenkeel_command::Table;
use evenkeel_command::table::{renamed, table};
use evenkeel_config::{ConfigFile, Settings};
use evenkeel_core::lazy_free::LazyFreeThread;
use evenkeel_core::pause::Pause;
use evenkeel_core::sd_notify::Manager;
use evenkeel_net::listener::Listeners;
use evenkeel_net::tls::Tls;
use evenkeel_runtime::allocator::AllocatorPurge;
use evenkeel_runtime::clock;
use evenkeel_runtime::random::{random_hex, random_seed};
use evenkeel_runtime::server_log;

/// The shared state; see the module's text.
pub(crate) struct Server {
    pub(crate) keyspace: Keyspace,
    settings: RwLock<Arc<Settings>>,
    settings_version: AtomicU64,
    /// Locked while the settings change.
    changing: Mutex<()>,
    pub(crate) listeners: Listeners,
    pub(crate) tls: Tls,
    pub(crate) config_file: Option<ConfigFile>,
    /// Commands under their configured names.
    pub(crate) table: &'static Table,
    pub(crate) acl: Acl,
    pub(crate) clients: Clients,
    /// A set per worker, then a set per thread of the offload pool, a set for slow scripts, and a set for
    /// tests and tools.
    pub(crate) stats: Box<[Stats]>,
    pub(crate) inboxes: Arc<[Inbox]>,
    pub(crate) pause: Pause,
    pub(crate) pubsub: Arc<PubSub>,
    notices: Arc<Notices>,
    pub(crate) tracking: Arc<Tracking>,
    pub(crate) monitors: Arc<Monitors>,
    pub(crate) offload: OffloadPool,
    pub(crate) scripts: Scripts,
    /// Slow scripts, run in turn on a thread of their own.
    pub(crate) slow_scripts: OffloadPool,
    pub(crate) persist: Persist,
    pub(crate) lazy_free: Arc<LazyFreeThread>,
    pub(crate) purge: AllocatorPurge,
    pub(crate) started_ms: u64,
    pub(crate) run_id: String,
    pub(crate) replication: replication::ReplicationState,
    /// Set once; workers then stop.
    pub(crate) stopping: AtomicBool,
    pub(crate) rates: Mutex<Rates>,
    pub(crate) rejected_connections: AtomicU64,
    pub(crate) closed_for_output: AtomicU64,
    pub(crate) closed_for_input: AtomicU64,
    pub(crate) evicted_clients: AtomicU64,
    /// DEBUG SET-ACTIVE-EXPIRE.
    pub(crate) active_expire: AtomicBool,
    pub(crate) sampler: Sampler,
    pub(crate) commandlog: CommandLog,
    pub(crate) hotkeys: HotKeys,
    pub(crate) latency: Monitor,
    pub(crate) oom_score: evenkeel_core::oom::Score,
    pub(crate) manager: Manager,
    /// Connections cached for MIGRATE.
    pub(crate) targets: Targets,
}

impl Server {
    /// Invalidates all keys that tracking clients have read.
    pub(crate) fn forget_tracked(&self) {
        if let Some(forgotten) = self.tracking.flushed() {
            self.lazy_free.free(forgotten);
        }
    }

    /// Records that a flush is about to free much memory. New data may take its place until then, unless an
    /// earlier flush is in progress.
    pub(crate) fn record_flush(&self) {
        if !self.lazy_free.is_flushing() && !self.keyspace.keeps_flushed() {
            self.lazy_free.record_flush(apart_bytes(self));
        }
    }

    /// Creates a server with `workers` workers, which do not run yet.
    pub(crate) fn new(
        settings: Settings,
        config_file: Option<ConfigFile>,
        workers: usize,
    ) -> std::io::Result<Server> {
        commands::install();
        let now = clock::unix_ms();
        let sampler = Sampler::new(settings.databases);
        // Contexts for: workers, as many threads of the offload pool and for loading, the control thread, the
        // threads that load large values and take snapshots, a thread that replays the append-only file, a
        // thread that feeds replicas, a thread that follows a primary, the thread for slow scripts, and
        // tests.
        let inboxes = (0..workers).map(|_| Inbox::new()).collect::<std::io::Result<Arc<[Inbox]>>>()?;
        let lazy_free = Arc::new(LazyFreeThread::start(inboxes.clone()));
        let keyspace = Keyspace::new(settings.databases, 3 * workers + 8, now, random_seed())
            .with_clock(clock::log_time)
            .with_lazy_free(lazy_free.clone());
        let loaders = (0..=workers).map(|_| load::loader_context(&keyspace)).collect();
        let persist = Persist::new(keyspace.thread_context(), loaders, now / 1000);
        let replication = replication::ReplicationState::new(keyspace.thread_context())?;
        let commands = table().rows().len();
        let table = renamed(&settings.rename_command);
        let commandlog = CommandLog::new(2 * workers + 2);
        commandlog.configure(&settings);
        let pubsub = Arc::new(PubSub::new(&settings));
        let tracking = Arc::new(Tracking::new(pubsub.clone()));
        tracking.configure(settings.tracking_table_max_keys);
        let monitors = Arc::new(Monitors::default());
        let notices = Arc::new(Notices::new(pubsub.clone(), tracking.clone(), monitors.clone()));
        keyspace.events.set_listener(notices.clone());
        keyspace.events.want(Events::NOTICES, notices.configure(&settings.notify_keyspace_events));
        Ok(Server {
            manager: Manager::at_start(settings.supervised),
            keyspace,
            table,
            acl: Acl::new(&settings),
            settings: RwLock::new(Arc::new(settings)),
            settings_version: AtomicU64::new(0),
            changing: Mutex::default(),
            listeners: Listeners::default(),
            tls: Tls::default(),
            config_file,
            clients: Clients::default(),
            stats: (0..2 * workers + 2).map(|_| Stats::new(commands)).collect(),
            lazy_free,
            inboxes,
            purge: AllocatorPurge::default(),
            pause: Pause::default(),
            pubsub,
            notices,
            tracking,
            monitors,
            offload: OffloadPool::default(),
            scripts: Scripts::default(),
            slow_scripts: OffloadPool::default(),
            persist,
            started_ms: now,
            run_id: random_hex(),
            replication,
            stopping: AtomicBool::new(false),
            rates: Mutex::default(),
            rejected_connections: AtomicU64::new(0),
            closed_for_output: AtomicU64::new(0),
            closed_for_input: AtomicU64::new(0),
            evicted_clients: AtomicU64::new(0),
            active_expire: AtomicBool::new(true),
            sampler,
            commandlog,
            hotkeys: HotKeys::new(2 * workers + 2),
            latency: Monitor::default(),
            oom_score: evenkeel_core::oom::Score::default(),
            targets: Targets::default(),
        })
    }

    /// Wakes all threads that own much memory, so that they purge it.
    pub(crate) fn ask_for_purge(&self) {
        self.wake_all();
        self.offload.wake_all();
        self.slow_scripts.wake_all();
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.read().clone()
    }

    #[inline]
    pub(crate) fn settings_version(&self) -> u64 {
        self.settings_version.load(Acquire)
    }

    /// Replaces the settings by the result of `change`, unless that fails. Changes run one by one; readers do
    /// not wait for them.
    pub(crate) fn change_settings<E>(
        &self,
        change: impl FnOnce(&Settings) -> Result<Settings, E>,
    ) -> Result<(), E> {
        let _one_at_a_time = self.changing.lock();
        let new = Arc::new(change(&self.settings())?);
        self.commandlog.configure(&new);
        self.pubsub.configure(&new);
        self.tracking.configure(new.tracking_table_max_keys);
        self.acl.log.truncate(new.acllog_max_len);
        let is_wanted = self.notices.configure(&new.notify_keyspace_events);
        self.keyspace.events.want(Events::NOTICES, is_wanted);
        *self.settings.write() = new;
        self.settings_version.fetch_add(1, Release);
        self.wake_all();
        Ok(())
    }

    /// Listens on the addresses of `settings` from now on; see [`Listeners::follow`].
    pub(crate) fn listen(&self, settings: &Settings) -> Result<(), String> {
        let result = self.listeners.follow(settings);
        // Also after a failure: sockets may have been closed and opened again.
        self.inboxes.iter().for_each(|inbox| inbox.post(Message::Listen));
        result
    }

    pub(crate) fn workers(&self) -> usize {
        self.inboxes.len()
    }

    /// Closes the connections of these clients, which no longer count when this returns. Returns how many
    /// there were.
    pub(crate) fn kill(&self, clients: &[Arc<ClientInfo>]) -> usize {
        let killed = self.clients.kill(clients);
        self.replication.link.on_killed(self, clients);
        // All workers, since a connection may be moving between workers.
        self.inboxes.iter().for_each(|inbox| inbox.post(Message::CloseKilled));
        if clients.iter().any(|client| client.is_replica.load(Relaxed)) {
            self.replication.replica_inbox.nudge();
        }
        killed
    }

    /// Closes the clients that use most memory, until all of them together use at most `limit` bytes.
    pub(crate) fn evict_clients(&self, limit: usize) {
        let beyond = self.clients.beyond(limit);
        if beyond.is_empty() {
            return;
        }
        for client in &beyond {
            let (id, address, bytes) = (client.id, &client.address, client.memory());
            log::info!("Evicting client: id={id} addr={address} tot-mem={bytes}");
        }
        let evicted = self.kill(&beyond);
        self.evicted_clients.fetch_add(evicted as u64, Relaxed);
    }

    /// Notifies a client's worker that its command no longer waits.
    pub(crate) fn resume(&self, resumed: Resumed) {
        let worker = resumed.client.worker.load(Relaxed);
        self.inboxes[worker as usize].post(Message::Resume(resumed));
    }

    /// Counts and logs a client that is disconnected because its received, unprocessed bytes have reached
    /// `client-query-buffer-limit`.
    #[cold]
    pub(crate) fn record_input_limit(&self, client: &ClientInfo) {
        self.closed_for_input.fetch_add(1, Relaxed);
        let ClientInfo { id, address, .. } = client;
        log::warn!("Closing client that reached max query buffer length: id={id} addr={address}");
    }

    /// Makes every worker run a loop turn, so that it sees changes.
    pub(crate) fn wake_all(&self) {
        self.inboxes.iter().for_each(|inbox| inbox.post(Message::Wake));
    }

    /// Resets the statistics, for CONFIG RESETSTAT.
    pub(crate) fn reset_stats(&self) {
        self.stats.iter().for_each(Stats::reset);
        self.keyspace.reset_totals();
        *self.rates.lock() = Rates::default();
        self.sampler.reset(clock::unix_ms());
        self.lazy_free.reset();
        server_log::reset_lost();
        self.acl.log.reset_counts();
        self.replication.metrics.reset();
        self.replication.link.metrics.bytes_in.store(0, Relaxed);
        self.persist.reset_counts();
        for counter in [
            &self.rejected_connections,
            &self.closed_for_output,
            &self.closed_for_input,
            &self.evicted_clients,
        ] {
            counter.store(0, Relaxed);
        }
    }

    /// Whether the server certainly stops: a thread that keeps the gate open, or closed, for long has to let
    /// go of it.
    pub(crate) fn certainly_stops(&self) -> bool {
        self.stopping.load(Acquire) || self.persist.ending.is_certain()
    }

    /// Stops all threads.
    pub(crate) fn stop(&self) {
        // A client that sees its connection closed must not get a new connection.
        self.listeners.all().iter().for_each(|listener| listener.stop());
        self.stopping.store(true, Release);
        self.offload.stop();
        self.slow_scripts.stop();
        self.wake_all();
    }

    pub(crate) fn uptime_ms(&self) -> u64 {
        clock::unix_ms().saturating_sub(self.started_ms)
    }
}
