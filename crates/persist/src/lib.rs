//! Data on disk: snapshots (RDB files) and append-only files.
//!
//! Serving threads touch no file. Each snapshot has a thread of its own ([`snapshot`]). The append-only file
//! has a writer thread that lives as long as the file is on ([`aof`]). At the start, a group of threads loads
//! the data ([`load`]). A backup has a journal reader of its own ([`backup`]). [`jobs`] says which of them
//! may run at the same time. [`Persist`] has their state, for INFO and for waiting threads.

pub mod aof;
pub mod backup;
mod direct;
pub mod direct_writer;
pub mod disk_space;
pub mod end;
mod jobs;
pub mod load;
pub mod lock;
pub mod pace;
pub mod passed_over;
pub mod position;
pub mod progress_bar;
pub mod recorder;
pub mod reload;
pub mod replay;
pub mod rewrite;
pub mod save_points;
pub mod snapshot;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use evenkeel_store::{Keyspace, SlotGuard, ThreadContext};
use parking_lot::{Condvar, Mutex, MutexGuard};

use jobs::{CANCEL_POLL_INTERVAL, Running, cancelled};
pub use jobs::{Cancelled, JobState, PersistJob};

use evenkeel_client::Hub;
use evenkeel_client::runner::RunnerFactory;
use evenkeel_command::Id;
use evenkeel_command::error::Error;
use evenkeel_config::Settings;
use evenkeel_core::Core;
use evenkeel_core::blockers::Blockers;
use evenkeel_scripting::Scripts;
use position::{Point, Position};

/// The state of persistence, shared by all threads.
pub struct Persist {
    pub core: Arc<Core>,
    hub: Arc<Hub>,
    scripts: Arc<Scripts>,
    host: OnceLock<Weak<dyn Host>>,
    /// The context of the snapshot thread, which is alone.
    ctx: Mutex<ThreadContext>,
    /// The contexts of the loading threads, the reader's first.
    loaders: Mutex<Vec<ThreadContext>>,
    /// The context for replaying the append-only file, once it has been used.
    player: Mutex<Option<ThreadContext>>,
    state: Mutex<JobState>,
    /// Signals the end of a job.
    ended: Condvar,
    /// Whether the running job has been cancelled.
    cancelled: AtomicBool,
    /// Whether the snapshot for replicas has been cancelled.
    sync_cancelled: AtomicBool,
    /// Since when the running job has waited for its disk.
    disk_since: Mutex<Option<Instant>>,
    /// Held during a reload, which removes all data and loads them again.
    reload: Mutex<()>,
    pub ending: end::Ending,
    /// Whether the data in memory are incomplete: they were given up for data of a primary or of a file, of
    /// which a part is missing. They must not replace the data on disk, unless a client asks for it.
    pub is_incomplete: AtomicBool,
    pub progress: Progress,
    pub loading: load::Loading,
    pub aof: aof::Aof,
    pub locks: lock::Locks,
    pub backup: backup::Backup,
}

/// What the parts above do for persistence: replication, and the executor of commands.
pub trait Host: RunnerFactory {
    /// Counts a command that has waited, and fails with this error.
    fn record_failure(&self, id: Id, error: &Error);

    /// Returns the position of a replica's data in its primary's stream. The gate is closed.
    fn replica_position(&self) -> Option<Position>;

    /// Ends this server's own stream and returns its last position, if it is known. The caller holds all
    /// locks, and nothing is written until [`Host::resume_stream`].
    fn finish_stream(&self, guard: &mut SlotGuard<'_>) -> Option<Position>;

    /// Continues the stream of loaded data at their position, on a primary that has just started.
    fn continue_stream(self: Arc<Self>, position: Option<Position>);

    /// Continues the stream, since the server stays.
    fn resume_stream(self: Arc<Self>);

    /// Waits until all replicas have everything, the timeout passes, or `is_aborted` returns true.
    fn wait_for_replicas(self: Arc<Self>, timeout: Duration, is_aborted: &dyn Fn() -> bool);

    /// Tells the clients that have asked (CLIENT MAINT_NOTIFICATIONS) that the end begins, is certain, or was
    /// given up.
    fn announce_end(&self, stage: EndStage);

    /// Calls `stop` with all locks held, with the last point of the stream if it is known.
    fn stop_stream(&self, stop: &mut dyn FnMut(Option<Point>));
}

/// A stage of the server's end, as clients are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndStage {
    /// Replicas may take so many seconds to catch up.
    Begins {
        seconds: u64,
    },
    Certain,
    Stays,
}

/// The progress of a snapshot.
#[derive(Default)]
pub struct Progress {
    pub keys: AtomicU64,
    pub keys_total: AtomicU64,
    pub bytes: AtomicU64,
    /// The start, in milliseconds since the Unix epoch.
    pub since_ms: AtomicU64,
    /// The walked part of the keyspace, in ten thousandths.
    pub walked: AtomicU64,
    /// Snapshots lost since the start because their disk was too slow.
    pub overruns: AtomicU64,
}

/// The error reply while data are loaded.
pub fn loading() -> Error {
    Error::text("LOADING Redis is loading the dataset in memory")
}

impl Persist {
    /// Creates the state of a server without jobs, and without a host.
    pub fn new(core: Arc<Core>, hub: Arc<Hub>, scripts: Arc<Scripts>) -> Persist {
        let loaders = (0..=core.workers.count()).map(|_| load::loader_context(&core.keyspace)).collect();
        Persist {
            host: OnceLock::new(),
            ctx: Mutex::new(core.keyspace.thread_context()),
            loaders: Mutex::new(loaders),
            player: Mutex::new(None),
            state: Mutex::new(JobState::new(core.started_ms / 1000)),
            ended: Condvar::new(),
            cancelled: AtomicBool::new(false),
            sync_cancelled: AtomicBool::new(false),
            disk_since: Mutex::new(None),
            reload: Mutex::new(()),
            ending: end::Ending::default(),
            is_incomplete: AtomicBool::new(false),
            progress: Progress::default(),
            loading: load::Loading::default(),
            aof: aof::Aof::default(),
            locks: lock::Locks::default(),
            backup: backup::Backup::new(&core.keyspace),
            core,
            hub,
            scripts,
        }
    }

    /// Sets the host, once.
    pub fn set_host(&self, host: Weak<dyn Host>) {
        let is_first = self.host.set(host).is_ok();
        debug_assert!(is_first, "a server has one host");
    }

    /// Returns the host. A thread that calls this has had the host from its start, so the host still exists.
    fn host(&self) -> Arc<dyn Host> {
        self.host.get().and_then(Weak::upgrade).expect("this thread has kept it")
    }

    /// Resets the counters, for CONFIG RESETSTAT.
    pub fn reset_counts(&self) {
        self.state.lock().saves = 0;
        self.aof.metrics.reset();
    }

    /// Keeps snapshots, and the thread that turns the append-only file off, from beginning, until the result
    /// is dropped. For tests.
    #[doc(hidden)]
    pub fn hold_context(&self) -> MutexGuard<'_, ThreadContext> {
        self.ctx.lock()
    }

    pub fn state(&self) -> JobState {
        self.state.lock().clone()
    }

    /// Whether the data in memory are complete, and not a part loaded so far.
    pub fn has_all_data(&self) -> bool {
        !self.is_loading() && !self.is_incomplete.load(Acquire)
    }

    pub fn is_loading(&self) -> bool {
        self.core.blockers.any().contains(Blockers::LOADING)
    }

    /// Follows changed settings: blocks or allows writes after a failed snapshot, and lets the writer of the
    /// append-only file end its tail now, not with the next write, which would be synced.
    pub fn follow(&self, settings: &Settings) {
        if self.aof.is_on() {
            self.core.keyspace.journal.wake(aof::place(self));
        }
        let stops = settings.stop_writes_on_bgsave_error && !settings.save.is_empty();
        // Under the lock: the last caller sees all changes.
        let state = self.state.lock();
        self.core.blockers.set(Blockers::NO_SNAPSHOT, stops && !state.last_ok);
    }

    /// Records the last snapshot of a process whose data this process has taken over, and the changes since.
    pub fn record_taken_over(&self, keyspace: &Keyspace, last_save_s: u64, changes: u64) {
        let mut state = self.state.lock();
        state.last_save_s = last_save_s;
        state.changes_at_save = keyspace.total().asked();
        state.changes_before_start = changes;
    }

    /// Records that the data equal the data on disk, from which they have just been loaded.
    pub fn record_loaded(&self, keyspace: &Keyspace) {
        self.state.lock().changes_at_save = keyspace.total().asked();
    }
}
