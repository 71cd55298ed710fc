//! The server: the state that all threads share.
//!
//! Commands write nothing here. Settings are an immutable value that is replaced as a whole; workers compare
//! its version once per loop turn.

use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Weak};
use std::time::Duration;

use evenkeel_store::key::Hasher;
use evenkeel_store::{Keyspace, SlotGuard, ThreadContext};
use parking_lot::Mutex;

use crate::admin::migrate::Targets;
use crate::cluster::Cluster;
use crate::commands;
use crate::executor::offload::OffloadPool;
use crate::executor::{Executor, permission};
use crate::handover::Handover;
use crate::http_host::HttpHost;
use crate::observe::capture::Capture;
use crate::observe::commandlog::CommandLog;
use crate::observe::hotkeys::HotKeys;
use crate::observe::key_sizes::KeySizes;
use crate::observe::rates::Rates;
use crate::observe::recorder::Recorder;
use crate::observe::sampler::Sampler;
use crate::observe::stats::{Outcome, Stats};
use crate::worker::inbox::{Inboxes, Message};
use evenkeel_acl::Acl;
use evenkeel_client::Session;
use evenkeel_client::clients::ClientInfo;
use evenkeel_client::hub::Hub;
use evenkeel_client::lane_ticket::LaneTicket;
use evenkeel_client::runner::{CommandRunner, RunnerFactory};
use evenkeel_command::error::Error;
use evenkeel_command::table::renamed;
use evenkeel_command::{Args, Id, Table};
use evenkeel_config::{ConfigFile, Settings};
use evenkeel_core::Core;
use evenkeel_core::lazy_free::LazyFreeThread;
use evenkeel_core::pause::Pauser;
use evenkeel_core::state::Host;
use evenkeel_http::Http;
use evenkeel_net::listener::{Listeners, Protocol};
use evenkeel_net::tls::Tls;
use evenkeel_persist::position::{Point, Position};
use evenkeel_persist::{EndStage, Persist};
use evenkeel_replication::Replication;
use evenkeel_replication::moves::{Admission, IMPORTS_MAX};
use evenkeel_runtime::clock;
use evenkeel_runtime::process_title;
use evenkeel_runtime::random::random_seed;
use evenkeel_runtime::server_log;
use evenkeel_scripting::Scripts;

/// Time in which the clients of a primary that ends get their redirections.
const REDIRECTION_TIME: Duration = Duration::from_millis(20);

/// What clients know a server by, beside its data and its address.
pub(crate) struct Identity {
    pub(crate) run_id: String,
    /// The secret of the hash function, on which the cursors of SCAN depend.
    pub(crate) hash_secret: [u64; 2],
    /// The time from which deadlines in tables count, if the data are taken over as they are.
    pub(crate) start_ms: Option<u64>,
}

impl Identity {
    fn hasher(&self) -> Hasher {
        Hasher::with_secret(self.hash_secret)
    }
}

/// The shared state; see the module's text.
pub(crate) struct Server {
    pub(crate) core: Arc<Core>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) listeners: Listeners,
    pub(crate) http: Http,
    pub(crate) tls: Arc<Tls>,
    pub(crate) config_file: Option<ConfigFile>,
    /// Commands under their configured names.
    pub(crate) table: &'static Table,
    pub(crate) acl: Acl,
    /// A set per worker, then a set per thread of the offload pool, a set for slow scripts, and a set for
    /// tests and tools.
    pub(crate) stats: Box<[Stats]>,
    pub(crate) inboxes: Arc<Inboxes>,
    pub(crate) offload: OffloadPool,
    pub(crate) scripts: Arc<Scripts>,
    /// Slow scripts, run in turn on a thread of their own.
    pub(crate) slow_scripts: OffloadPool,
    pub(crate) persist: Arc<Persist>,
    pub(crate) replication: Arc<Replication>,
    pub(crate) rates: Mutex<Rates>,
    /// DEBUG SET-ACTIVE-EXPIRE.
    pub(crate) active_expire: AtomicBool,
    /// Number of MEMORY PURGEs, each of which workers follow by compaction.
    pub(crate) compactions_asked: AtomicU64,
    /// DEBUG PAUSE-CRON.
    pub(crate) pauses_timers: AtomicBool,
    /// The thread of the watchdog runs.
    pub(crate) has_watchdog: AtomicBool,
    pub(crate) sampler: Sampler,
    pub(crate) recorder: Recorder,
    pub(crate) capture: Capture,
    pub(crate) key_sizes: KeySizes,
    pub(crate) commandlog: CommandLog,
    pub(crate) hotkeys: HotKeys,
    /// Connections cached for MIGRATE.
    pub(crate) targets: Targets,
    pub(crate) handover: Handover,
    /// Cluster mode; `None`: it is off.
    pub(crate) cluster: Option<Cluster>,
}

impl Host for Server {
    fn before_settings(&self, settings: &Settings) {
        self.commandlog.configure(settings);
        self.hub.configure(settings);
        let keyspace = &self.core.keyspace;
        keyspace.set_unlinks(settings.lazyfree_lazy_expire, settings.lazyfree_lazy_eviction);
        self.cluster.iter().for_each(|cluster| cluster.follow_settings(settings));
    }

    fn stop(&self) {
        // A client that sees its connection closed must not get a new connection.
        self.listeners.all().iter().for_each(|listener| listener.stop());
        self.http.stop();
        self.core.stopping.store(true, Release);
        self.offload.stop();
        self.slow_scripts.stop();
        self.core.workers.wake_all();
    }
}

impl RunnerFactory for Server {
    fn runner(self: Arc<Server>, ctx: ThreadContext) -> Box<dyn CommandRunner> {
        let counters = self.stats.len() - 1;
        Box::new(Executor::on(ctx, self, counters))
    }
}

impl evenkeel_persist::Host for Server {
    fn record_failure(&self, id: Id, error: &Error) {
        self.record_waited(id, error, Outcome::Failed);
    }

    fn replica_position(&self) -> Option<Position> {
        self.replication.link.position(&self.replication)
    }

    fn finish_stream(&self, guard: &mut SlotGuard<'_>) -> Option<Position> {
        self.replication.finish(guard)
    }

    fn continue_stream(self: Arc<Server>, position: Option<Position>) {
        evenkeel_replication::link::continue_as_primary(&self.replication, position);
    }

    fn resume_stream(self: Arc<Server>) {
        self.replication.resume_stream();
    }

    fn wait_for_replicas(self: Arc<Server>, timeout: Duration, is_aborted: &dyn Fn() -> bool) {
        self.replication.wait_for_replicas(timeout, is_aborted);
        if let Some(cluster) = self.cluster.as_ref().filter(|cluster| cluster.is_shared())
            && !is_aborted()
            && cluster.hand_over(timeout)
        {
            // This node is no primary any more: the clients that wait are sent to the new one.
            self.core.pause.end(Pauser::End);
            self.core.workers.wake_all();
            std::thread::sleep(REDIRECTION_TIME);
        }
    }

    fn announce_end(&self, stage: EndStage) {
        if matches!(stage, EndStage::Stays) {
            self.cluster.iter().for_each(Cluster::stay);
        }
        evenkeel_replication::failover::announce_end(&self.replication, stage);
    }

    fn stop_stream(&self, stop: &mut dyn FnMut(Option<Point>)) {
        self.replication.stop(stop);
    }
}

impl evenkeel_replication::Host for Server {
    fn admit(&self, session: &mut Session, id: Id, args: &Args<'_>) -> Result<bool, Error> {
        if session.access.is_free_at(self.acl.generation()) {
            return Ok(true);
        }
        permission::admit(self, session, id, args, clock::unix_ms())
    }

    fn record_ended_wait(&self, id: Id, error: &Error) {
        self.record_waited(id, error, Outcome::Rejected);
    }

    fn may_import(&self, ticket: &LaneTicket) -> Admission {
        self.admit_import(ticket)
    }
}

impl Server {
    /// Creates a server with `workers` workers, which do not run yet.
    pub(crate) fn new(
        settings: Settings,
        config_file: Option<ConfigFile>,
        workers: usize,
        inherited: Option<Identity>,
    ) -> std::io::Result<Arc<Server>> {
        commands::install();
        let now = clock::unix_ms();
        // Contexts for: workers, as many threads of the offload pool and for loading, the control thread, the
        // threads that load large values and take snapshots, a thread that replays the append-only file, a
        // thread that feeds replicas, a thread that follows a primary, the thread for slow scripts, the HTTP
        // thread, threads of a backup, a hand-over, changes of the cluster's map, and tests.
        let inboxes = Arc::new(Inboxes::new(workers)?);
        let lazy_free = Arc::new(LazyFreeThread::start(inboxes.owners()));
        let keyspace =
            Keyspace::new(settings.database_count(), 3 * workers + 12 + IMPORTS_MAX, now, random_seed())
                .with_hasher(
                    inherited.as_ref().map_or_else(|| hasher_of(&settings.hash_seed), Identity::hasher),
                )
                .with_clock(clock::log_time)
                .with_lazy_free(lazy_free.clone());
        let keyspace = match inherited.as_ref().and_then(|identity| identity.start_ms) {
            Some(start_ms) => keyspace.with_start_ms(start_ms),
            None => keyspace,
        };
        let mut core = Core::new(settings, keyspace, inboxes.clone(), lazy_free);
        if let Some(Identity { run_id, .. }) = inherited {
            core.run_id = run_id;
        }
        let core = Arc::new(core);
        let hub = Arc::new(Hub::new(core.clone(), inboxes.clone()));
        let scripts = Arc::new(Scripts::new(&core.settings().reported_redis_version));
        scripts.is_insecure.store(core.settings().lua_enable_insecure_api, Relaxed);
        let tls = Arc::new(Tls::default());
        let persist = Arc::new(Persist::new(core.clone(), hub.clone(), scripts.clone()));
        let settings = core.settings();
        let table = renamed(&settings.rename_command);
        let (shared, on_disk) = ((core.clone(), hub.clone()), (scripts.clone(), persist.clone()));
        let replication = Arc::new(Replication::new(shared, on_disk, tls.clone(), table)?);
        let commands = evenkeel_command::table::table().rows().len();
        let commandlog = CommandLog::new(2 * workers + 2);
        let cluster = settings
            .cluster_enabled
            .then(|| Cluster::alone(&settings, 2 * workers + 2, core.keyspace.thread_context()));
        commandlog.configure(&settings);
        let server = Arc::new(Server {
            persist,
            hub,
            core,
            table,
            acl: Acl::new(&settings),
            listeners: Listeners::default(),
            http: Http::default(),
            tls,
            config_file,
            stats: (0..2 * workers + 2).map(|_| Stats::new(commands)).collect(),
            inboxes,
            offload: OffloadPool::default(),
            scripts,
            slow_scripts: OffloadPool::default(),
            replication,
            rates: Mutex::default(),
            active_expire: AtomicBool::new(true),
            compactions_asked: AtomicU64::new(0),
            pauses_timers: AtomicBool::new(false),
            has_watchdog: AtomicBool::new(false),
            sampler: Sampler::new(settings.database_count()),
            capture: Capture::default(),
            recorder: Recorder::new(workers, settings.recorder_memory),
            key_sizes: KeySizes::new(settings.database_count()),
            commandlog,
            hotkeys: HotKeys::new(2 * workers + 2),
            targets: Targets::default(),
            handover: Handover::default(),
            cluster,
        });
        let host: Weak<Server> = Arc::downgrade(&server);
        server.core.set_host(host.clone());
        server.persist.set_host(host.clone());
        server.replication.set_host(host);
        Ok(server)
    }

    /// Microseconds for which the longest present compaction of a worker has been going on; zero: there is
    /// none.
    pub(crate) fn compacts_for_us(&self) -> u64 {
        let begun =
            self.stats.iter().map(|stats| stats.compacts_since.load(Relaxed)).filter(|since| *since > 0);
        begun.min().map_or(0, |since| clock::us(clock::ticks().saturating_sub(since)).max(1))
    }

    /// Returns the word by which clients know the server's mode.
    pub(crate) fn mode(&self) -> &'static str {
        if self.cluster.is_some() { "cluster" } else { "standalone" }
    }

    /// Wakes all threads that own much memory, so that they purge it.
    pub(crate) fn ask_for_purge(&self) {
        self.core.workers.wake_all();
        self.offload.wake_all();
        self.slow_scripts.wake_all();
    }

    /// Listens on the addresses of `settings` from now on; see [`Listeners::follow`].
    pub(crate) fn listen(&self, settings: &Settings) -> Result<(), String> {
        let result = self.listeners.follow(Protocol::Resp, settings);
        // Also after a failure: sockets may have been closed and opened again.
        self.inboxes.iter().for_each(|inbox| inbox.post(Message::Listen));
        result
    }

    /// Listens for HTTP on the addresses of `settings` from now on.
    pub(crate) fn listen_http(self: &Arc<Server>, settings: &Settings) -> Result<(), String> {
        self.http.follow(settings, || Arc::new(HttpHost::new(self.clone())))
    }

    /// Closes the connections of these clients, which no longer count when this returns. Returns how many
    /// there were.
    pub(crate) fn kill(&self, clients: &[Arc<ClientInfo>]) -> usize {
        let killed = self.hub.kill(clients);
        self.replication.link.on_killed(&self.replication, clients);
        if clients.iter().any(|client| client.is_replica.load(Relaxed)) {
            self.replication.replica_inbox.nudge();
        }
        killed
    }

    /// Closes the clients that use most memory, until all of them together use at most `limit` bytes.
    pub(crate) fn evict_clients(&self, limit: usize) {
        let beyond = self.hub.clients.beyond(limit);
        if beyond.is_empty() {
            return;
        }
        for client in &beyond {
            let (id, address, bytes) = (client.id, &client.address, client.memory());
            log::info!("Evicting client: id={id} addr={address} tot-mem={bytes}");
        }
        let evicted = self.kill(&beyond);
        self.hub.evicted_clients.fetch_add(evicted as u64, Relaxed);
    }

    /// Counts a command whose wait has ended with an error, on a thread that is no worker.
    fn record_waited(&self, id: Id, error: &Error, outcome: Outcome) {
        let stats = self.stats.last().expect("a set for threads that are no workers");
        stats.error(&error.line());
        stats.resumed(id, 0, outcome, self.core.settings().latency_tracking);
    }

    /// Sets the process title that the settings ask for, as `ps` shows it. Without the kernel's permission,
    /// the arguments stay.
    pub(crate) fn set_title(&self) {
        let settings = self.core.settings();
        if settings.set_proc_title {
            let config_file = self.config_file.as_ref().map(|file| file.path.as_os_str().as_bytes());
            let _ = process_title::set(&title(&settings, config_file.unwrap_or_default()));
        }
    }

    /// Resets the statistics, for CONFIG RESETSTAT.
    pub(crate) fn reset_stats(&self) {
        self.stats.iter().for_each(Stats::reset);
        self.core.keyspace.reset_totals();
        *self.rates.lock() = Rates::default();
        self.sampler.reset(clock::unix_ms());
        self.core.lazy_free.reset();
        server_log::reset_lost();
        self.acl.log.reset_counts();
        self.replication.metrics.reset();
        self.replication.link.metrics.bytes_in.store(0, Relaxed);
        self.persist.reset_counts();
        self.hub.reset_counts();
        self.scripts.reset_stat();
        self.cluster.iter().for_each(|cluster| cluster.slot_stats.reset());
    }

    /// Whether the server certainly stops: a thread that keeps the gate open, or closed, for long has to let
    /// go of it.
    pub(crate) fn certainly_stops(&self) -> bool {
        self.core.is_stopping() || self.persist.ending.is_certain()
    }
}

/// Returns the hash function that `hash-seed` stands for. Servers with the same text have the same order of
/// keys, so that a SCAN may go on at a replica, or after a restart. Without a text, no other server has this
/// function.
fn hasher_of(text: &[u8]) -> Hasher {
    if text.is_empty() {
        return Hasher::default();
    }
    let digest = sha1_smol::Sha1::from(text).digest().bytes();
    let number = |from: usize| digest[from..from + 8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    Hasher::with_secret([number(0), number(8)])
}

/// The process title of these settings: the template with its variables replaced.
fn title(settings: &Settings, config_file: &[u8]) -> Vec<u8> {
    let program = std::env::args_os().next().unwrap_or_default();
    let socket = settings.unixsocket.as_ref().map_or(&b""[..], |path| path.as_os_str().as_bytes());
    let (port, tls_port) = (settings.port.to_string(), settings.tls_port.to_string());
    let address = match (settings.port, settings.tls_port, settings.bind.first()) {
        (0, 0, _) => [b"unixsocket:", socket].concat(),
        (0, port, bind) | (port, _, bind) => {
            format!("{}:{port}", bind.map_or("*", |bind| bind.address.as_str())).into_bytes()
        }
    };
    let variables = [
        ("{title}", program.as_bytes()),
        ("{listen-addr}", &address),
        ("{server-mode}", b""),
        ("{port}", port.as_bytes()),
        ("{tls-port}", tls_port.as_bytes()),
        ("{unixsocket}", socket),
        ("{config-file}", config_file),
    ];
    let (mut text, mut rest) = (Vec::new(), &settings.proc_title_template[..]);
    while let Some((first, others)) = rest.split_first() {
        match variables.iter().find(|(variable, _)| rest.starts_with(variable.as_bytes())) {
            Some((variable, value)) => {
                text.extend_from_slice(value);
                rest = &rest[variable.len()..];
            }
            None => {
                text.push(*first);
                rest = others;
            }
        }
    }
    text.truncate(text.trim_ascii_end().len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_name_the_address() {
        let settings =
            |pairs: &[(&[u8], &[u8])]| Settings::default().set(pairs, true).expect("they are valid").0;
        let shown = |settings: &Settings| {
            let text = String::from_utf8(title(settings, b"/etc/x.conf")).expect("plain names");
            text.split_once(' ').map(|(_, rest)| rest.to_owned()).unwrap_or_default()
        };
        assert_eq!(shown(&Settings::default()), "*:6379");
        assert_eq!(shown(&settings(&[(b"bind", b"127.0.0.1 ::1"), (b"port", b"7")])), "127.0.0.1:7");
        assert_eq!(shown(&settings(&[(b"port", b"0"), (b"tls-port", b"8")])), "*:8");
        let template: &[u8] = b"x {port} {tls-port} {config-file} {server-mode}";
        assert_eq!(shown(&settings(&[(b"proc-title-template", template)])), "6379 0 /etc/x.conf");
    }
}
