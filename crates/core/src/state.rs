//! [`Core`]: the state that all parts of a server share, whatever they do with it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, OnceLock, Weak};

use evenkeel_config::Settings;
use evenkeel_runtime::allocator::AllocatorPurge;
use evenkeel_runtime::clock;
use evenkeel_runtime::random::random_hex;
use evenkeel_store::Keyspace;
use parking_lot::{Mutex, RwLock};

use crate::blockers::AtomicBlockers;
use crate::latency::Monitor;
use crate::lazy_free::LazyFreeThread;
use crate::oom;
use crate::pause::Pause;
use crate::sd_notify::Manager;

/// The workers, as other threads reach them. Every call returns at once; the workers follow in their next
/// loop turn.
pub trait Workers: Send + Sync {
    /// The number of workers.
    fn count(&self) -> usize;

    /// Makes every worker run a loop turn, so that it sees changes.
    fn wake_all(&self);

    /// Notifies the workers that hold replies back: more of the journal is on disk, or at replicas.
    fn notify_durable(&self);
}

/// What the whole server does for the parts that know only [`Core`].
pub trait Host: Send + Sync {
    /// Follows the new settings, which come into force when this returns. Called by one thread at a time.
    fn before_settings(&self, settings: &Settings);

    /// Stops all threads.
    fn stop(&self);
}

/// The shared state; see the module's text.
pub struct Core {
    pub keyspace: Keyspace,
    settings: RwLock<Arc<Settings>>,
    settings_version: AtomicU64,
    /// Locked while the settings change.
    changing: Mutex<()>,
    pub workers: Arc<dyn Workers>,
    pub lazy_free: Arc<LazyFreeThread>,
    pub purge: AllocatorPurge,
    pub pause: Pause,
    /// Write-locked while DEBUG SLEEP runs.
    asleep: RwLock<()>,
    pub blockers: AtomicBlockers,
    /// Set once; all threads then stop.
    pub stopping: AtomicBool,
    pub oom_score: oom::Score,
    pub manager: Manager,
    /// The start of the server, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// Forty hexadecimal digits, other ones at each start.
    pub run_id: String,
    /// Durations of slow events, for the LATENCY commands.
    pub latency: Monitor,
    host: OnceLock<Weak<dyn Host>>,
}

impl Core {
    /// Makes the threads that talk to replicas and to the primary stop at their next turn, until the returned
    /// guard is dropped: DEBUG SLEEP imitates a server that hangs.
    pub fn sleep(&self) -> impl Drop + '_ {
        self.asleep.write()
    }

    /// Waits for the end of DEBUG SLEEP.
    pub fn wait_for_sleep(&self) {
        drop(self.asleep.read());
    }

    /// Creates the state of a server that starts now, without a host.
    pub fn new(
        settings: Settings,
        keyspace: Keyspace,
        workers: Arc<dyn Workers>,
        lazy_free: Arc<LazyFreeThread>,
    ) -> Core {
        Core {
            keyspace,
            manager: Manager::at_start(settings.supervised),
            settings: RwLock::new(Arc::new(settings)),
            settings_version: AtomicU64::new(0),
            changing: Mutex::default(),
            workers,
            lazy_free,
            purge: AllocatorPurge::default(),
            pause: Pause::default(),
            asleep: RwLock::new(()),
            blockers: AtomicBlockers::default(),
            stopping: AtomicBool::new(false),
            oom_score: oom::Score::default(),
            started_ms: clock::unix_ms(),
            run_id: random_hex(),
            latency: Monitor::default(),
            host: OnceLock::new(),
        }
    }

    /// Sets the host, once.
    pub fn set_host(&self, host: Weak<dyn Host>) {
        let is_first = self.host.set(host).is_ok();
        debug_assert!(is_first, "a server has one host");
    }

    fn host(&self) -> Option<Arc<dyn Host>> {
        self.host.get().and_then(Weak::upgrade)
    }

    /// Returns the current settings.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.read().clone()
    }

    /// Returns the number of changes to the settings so far.
    #[inline]
    pub fn settings_version(&self) -> u64 {
        self.settings_version.load(Acquire)
    }

    /// Replaces the settings by the result of `change`, unless that fails. Changes run one by one; readers do
    /// not wait for them.
    ///
    /// # Errors
    /// The error of `change`; the settings stay.
    pub fn change_settings<E>(&self, change: impl FnOnce(&Settings) -> Result<Settings, E>) -> Result<(), E> {
        let _one_at_a_time = self.changing.lock();
        let new = Arc::new(change(&self.settings())?);
        if let Some(host) = self.host() {
            host.before_settings(&new);
        }
        *self.settings.write() = new;
        self.settings_version.fetch_add(1, Release);
        self.workers.wake_all();
        Ok(())
    }

    /// Records that a flush is about to free much memory. New data may take its place until then, unless an
    /// earlier flush is in progress.
    pub fn record_flush(&self) {
        if !self.lazy_free.is_flushing() && !self.keyspace.keeps_flushed() {
            self.lazy_free.record_flush(self.apart_bytes());
        }
    }

    /// Returns the bytes that values would take in addition, if each was stored apart.
    pub fn apart_bytes(&self) -> u64 {
        /// Bytes of a hole of 64 KiB in a compressed snapshot.
        const HOLE_BYTES: u64 = 750;
        let apart = self.keyspace.apart();
        apart.shared + apart.holes * HOLE_BYTES
    }

    /// Stops all threads of the server.
    pub fn stop(&self) {
        if let Some(host) = self.host() {
            host.stop();
        }
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Acquire)
    }

    /// Milliseconds since the start.
    pub fn uptime_ms(&self) -> u64 {
        clock::unix_ms().saturating_sub(self.started_ms)
    }
}
