//! Data on disk: snapshots (RDB files) and append-only files.
//!
//! Serving threads touch no file. Each snapshot has a thread of its own ([`snapshot`]). The append-only file
//! has a writer thread that lives as long as the file is on ([`aof`]). At the start, a group of threads loads
//! the data ([`load`]). [`jobs`] says which of them may run at the same time. [`Persist`] has their state,
//! for INFO and for waiting threads.

pub(crate) mod aof;
mod direct;
pub(crate) mod direct_writer;
pub(crate) mod disk_space;
pub(crate) mod end;
mod jobs;
pub(crate) mod load;
pub(crate) mod lock;
mod pace;
pub(crate) mod passed_over;
pub(crate) mod progress_bar;
pub(crate) mod recorder;
pub(crate) mod reload;
pub(crate) mod replay;
pub(crate) mod rewrite;
pub(crate) mod save_points;
pub(crate) mod snapshot;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::*};
use std::time::Instant;

use bitflags::bitflags;
use evenkeel_store::{Keyspace, ThreadContext};
use parking_lot::{Condvar, Mutex};

pub(crate) use jobs::{Cancelled, Job, State};
use jobs::{LOOK, Running, cancelled};

use crate::server::Server;
use crate::session::Session;
use evenkeel_command::error::Error;
use evenkeel_command::{Flags, LockScope, Spec};
use evenkeel_config::Settings;

/// The state of persistence, shared by all threads.
pub(crate) struct Persist {
    pub(crate) blockers: AtomicBlockers,
    /// The context of the snapshot thread, which is alone.
    ctx: Mutex<ThreadContext>,
    /// The contexts of the loading threads, the reader's first.
    loaders: Mutex<Vec<ThreadContext>>,
    /// The context for replaying the append-only file, once it has been used.
    player: Mutex<Option<ThreadContext>>,
    state: Mutex<State>,
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
    pub(crate) ending: end::Ending,
    /// Whether the data in memory are incomplete: they were given up for data of a primary or of a file, of
    /// which a part is missing. They must not replace the data on disk, unless a client asks for it.
    pub(crate) is_incomplete: AtomicBool,
    pub(crate) progress: Progress,
    pub(crate) loading: load::Loading,
    pub(crate) aof: aof::Aof,
    pub(crate) locks: lock::Locks,
}

/// The progress of a snapshot.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) keys: AtomicU64,
    pub(crate) keys_total: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// The start, in milliseconds since the Unix epoch.
    pub(crate) since_ms: AtomicU64,
    /// The walked part of the keyspace, in ten thousandths.
    pub(crate) walked: AtomicU64,
    /// Snapshots lost since the start because their disk was too slow.
    pub(crate) overruns: AtomicU64,
}

bitflags! {
    /// Conditions that block commands.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Blockers: u8 {
        /// Data are being loaded.
        const LOADING = 1 << 0;
        /// The last snapshot failed, and the settings stop writes without one.
        const NO_SNAPSHOT = 1 << 1;
        /// The append-only file cannot be written.
        const NO_LOG = 1 << 2;
        /// The unread journal exceeds its limit, so writes wait.
        const CROWDED = 1 << 3;
        /// There are fewer good replicas than the settings require.
        const NO_REPLICAS = 1 << 4;
        /// The server is a replica, and clients may not write.
        const READ_ONLY = 1 << 5;
        /// The server is a replica whose link is down, and clients must not read stale data.
        const STALE = 1 << 6;
    }
}

/// The blockers in force: read before every command, and written very rarely.
#[derive(Default)]
pub(crate) struct AtomicBlockers(AtomicU8);

pub(crate) const STALE_TEXT: &str =
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";

impl AtomicBlockers {
    #[inline]
    pub(crate) fn any(&self) -> Blockers {
        Blockers::from_bits_retain(self.0.load(Relaxed))
    }

    pub(crate) fn set(&self, blocker: Blockers, is_there: bool) {
        if is_there {
            self.0.fetch_or(blocker.bits(), AcqRel);
        } else {
            self.0.fetch_and(!blocker.bits(), AcqRel);
        }
    }

    /// Whether a command has to wait until more of the journal is written.
    #[cold]
    pub(crate) fn delays(&self, row: &Spec, session: &Session) -> bool {
        self.any().contains(Blockers::CROWDED) && has((row, row.flags), session, Flags::WRITE)
    }
}

impl Persist {
    /// The reason why a command with these flags cannot be run now, if any.
    #[cold]
    pub(crate) fn refuses(
        &self,
        server: &Server,
        command: (&Spec, Flags),
        session: &Session,
    ) -> Option<Error> {
        let any = self.blockers.any();
        // PING counts as a write here: it tests whether a server can take writes.
        let writes = || has(command, session, Flags::WRITE.with(Flags::HEALTH));
        if any.contains(Blockers::NO_LOG) && writes() {
            let cause = self.aof.figures.failure.lock();
            return Some(Error::text(format!("MISCONF Errors writing to the AOF file: {cause}")));
        }
        if any.contains(Blockers::READ_ONLY) && has(command, session, Flags::WRITE) {
            return Some(Error::text("READONLY You can't write against a read only replica."));
        }
        if any.contains(Blockers::STALE) && lacks(command, session, Flags::STALE) {
            return Some(Error::text(STALE_TEXT));
        }
        if any.contains(Blockers::LOADING) && lacks(command, session, Flags::LOADING) {
            return Some(loading());
        }
        if any.contains(Blockers::NO_SNAPSHOT) && writes() {
            return Some(Error::text(
                "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to \
                 disk. Commands that may modify the data set are disabled, because this instance is \
                 configured to report errors during writes if RDB snapshotting fails \
                 (stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB \
                 error.",
            ));
        }
        // Checked again: a replica counts from the moment it is online.
        if any.contains(Blockers::NO_REPLICAS)
            && has(command, session, Flags::WRITE)
            && server.replication.follow(server, &server.settings())
        {
            return Some(Error::text("NOREPLICAS Not enough good replicas to write."));
        }
        None
    }
}

/// The error reply while data are loaded.
pub(crate) fn loading() -> Error {
    Error::text("LOADING Redis is loading the dataset in memory")
}

/// Whether a command has one of these flags; for EXEC, whether a queued command has.
fn has((row, its): (&Spec, Flags), session: &Session, flags: Flags) -> bool {
    match row.lock_scope {
        LockScope::Queue => queued(session).any(|its| its.has(flags)),
        _ => its.has(flags),
    }
}

/// Whether a command lacks this flag; for EXEC, whether a queued command does.
fn lacks((row, its): (&Spec, Flags), session: &Session, flag: Flags) -> bool {
    match row.lock_scope {
        LockScope::Queue => queued(session).any(|its| !its.has(flag)),
        _ => !its.has(flag),
    }
}

fn queued(session: &Session) -> impl Iterator<Item = Flags> {
    session.multi.iter().flat_map(|multi| &multi.queue).map(|queued| queued.flags)
}

impl Persist {
    pub(crate) fn new(ctx: ThreadContext, loaders: Vec<ThreadContext>, now_s: u64) -> Persist {
        Persist {
            blockers: AtomicBlockers::default(),
            ctx: Mutex::new(ctx),
            loaders: Mutex::new(loaders),
            player: Mutex::new(None),
            state: Mutex::new(State::new(now_s)),
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
        }
    }

    /// Resets the counters, for CONFIG RESETSTAT.
    pub(crate) fn reset_counts(&self) {
        self.state.lock().saves = 0;
        self.aof.figures.reset();
    }

    pub(crate) fn state(&self) -> State {
        self.state.lock().clone()
    }

    /// Whether the data in memory are complete, and not a part loaded so far.
    pub(crate) fn has_all_data(&self) -> bool {
        !self.is_loading() && !self.is_incomplete.load(Acquire)
    }

    pub(crate) fn is_loading(&self) -> bool {
        self.blockers.any().contains(Blockers::LOADING)
    }

    /// Blocks or allows writes, as the settings say for a failed snapshot.
    pub(crate) fn follow(&self, settings: &Settings) {
        let stops = settings.stop_writes_on_bgsave_error && !settings.save.is_empty();
        // Under the lock: the last caller sees all changes.
        let state = self.state.lock();
        self.blockers.set(Blockers::NO_SNAPSHOT, stops && !state.last_ok);
    }

    /// Records that the data equal the data on disk, from which they have just been loaded.
    pub(crate) fn note_loaded(&self, keyspace: &Keyspace) {
        self.state.lock().changes_at_save = keyspace.total().asked();
    }
}
