//! What is kept on disk: snapshots (RDB files), and the log (append-only files).
//!
//! Serving threads touch no file. A snapshot has a thread of its own for as long as it takes ([`snapshot`]); the log is
//! written by one that lives as long as it is kept ([`aof`]); at the start, threads of their own load what there is
//! ([`load`]). Which of them may go on beside which is in [`claims`]; what they all say about themselves is in [`Persist`],
//! for INFO and for those who wait.

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
pub(crate) mod temp_file;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::*};
use std::time::Instant;

use evenkeel_store::{Keyspace, ThreadContext};
use parking_lot::{Condvar, Mutex};

pub(crate) use jobs::{Cancelled, Job, State};
use jobs::{LOOK, Running, cancelled};

use crate::command::{Command, Flags, LockScope};
use crate::config::Settings;
use crate::error::Error;
use crate::server::Server;
use crate::session::Session;

/// See the module's text.
pub(crate) struct Persist {
    pub(crate) blockers: Blockers,
    /// The snapshot thread's, of which there is one at a time.
    ctx: Mutex<ThreadContext>,
    /// Those of the threads that load, the reader's first.
    loaders: Mutex<Vec<ThreadContext>>,
    /// That of who runs the log's commands again, once there has been one.
    player: Mutex<Option<ThreadContext>>,
    state: Mutex<State>,
    /// A snapshot has ended.
    ended: Condvar,
    /// What is being written is not wanted any more.
    cancelled: AtomicBool,
    /// Nor the snapshot that is being taken for replicas.
    sync_cancelled: AtomicBool,
    /// Since when what is being written has waited for its disk.
    disk_since: Mutex<Option<Instant>>,
    /// Held by who takes all data out and puts them back.
    reload: Mutex<()>,
    pub(crate) ending: end::Ending,
    /// The data were given up for others, a primary's or those on disk, which have not come whole: what is in memory is not
    /// to take the place of what is on disk, unless somebody asks for it.
    pub(crate) is_incomplete: AtomicBool,
    pub(crate) progress: Progress,
    pub(crate) loading: load::Loading,
    pub(crate) aof: aof::Aof,
    pub(crate) locks: lock::Locks,
}

/// How far a snapshot is.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) keys: AtomicU64,
    pub(crate) keys_total: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// When it began, in milliseconds since the Unix epoch.
    pub(crate) since_ms: AtomicU64,
    /// Parts in ten thousand of the walk.
    pub(crate) walked: AtomicU64,
    /// How often a snapshot was lost because its disk was too slow, since the start.
    pub(crate) overruns: AtomicU64,
}

/// What keeps commands from being run, as bits: looked at before every command, written nearly never.
#[derive(Default)]
pub(crate) struct Blockers(AtomicU8);

/// Data are being loaded.
const LOADING: u8 = 1 << 0;
/// The last snapshot failed, and writes are not to go on without one.
pub(crate) const NO_SNAPSHOT: u8 = 1 << 1;
/// The log cannot be written to disk.
pub(crate) const NO_LOG: u8 = 1 << 2;
/// More of the log waits to be written than may wait: writes wait, too.
pub(crate) const CROWDED: u8 = 1 << 3;
/// There are not as many good replicas as there have to be.
pub(crate) const NO_REPLICAS: u8 = 1 << 4;
/// The server follows another one, and clients may not write.
pub(crate) const READ_ONLY: u8 = 1 << 5;
/// The server follows another one, the link to which does not stand, and clients are not to read what may be old.
pub(crate) const STALE: u8 = 1 << 6;

pub(crate) const STALE_TEXT: &str =
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";

impl Blockers {
    #[inline]
    pub(crate) fn any(&self) -> u8 {
        self.0.load(Relaxed)
    }

    pub(crate) fn set(&self, obstacle: u8, is_there: bool) {
        if is_there {
            self.0.fetch_or(obstacle, AcqRel);
        } else {
            self.0.fetch_and(!obstacle, AcqRel);
        }
    }

    /// Whether a command has to wait until more of the log is written.
    #[cold]
    pub(crate) fn delays(&self, row: &Command, session: &Session) -> bool {
        self.any() & CROWDED != 0 && has((row, row.flags), session, Flags::WRITE)
    }
}

impl Persist {
    /// Why a command with these flags cannot be run now, if so.
    #[cold]
    pub(crate) fn refuses(
        &self,
        server: &Server,
        command: (&Command, Flags),
        session: &Session,
    ) -> Option<Error> {
        let any = self.blockers.any();
        // PING counts as a write here: it tells whether a server is fit to be written to.
        let writes = || has(command, session, Flags::WRITE.with(Flags::HEALTH));
        if any & NO_LOG != 0 && writes() {
            let cause = self.aof.figures.failure.lock();
            return Some(Error::text(format!("MISCONF Errors writing to the AOF file: {cause}")));
        }
        if any & READ_ONLY != 0 && has(command, session, Flags::WRITE) {
            return Some(Error::text("READONLY You can't write against a read only replica."));
        }
        if any & STALE != 0 && lacks(command, session, Flags::STALE) {
            return Some(Error::text(STALE_TEXT));
        }
        if any & LOADING != 0 && lacks(command, session, Flags::LOADING) {
            return Some(loading());
        }
        if any & NO_SNAPSHOT != 0 && writes() {
            return Some(Error::text(
                "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. \
                 Commands that may modify the data set are disabled, because this instance is configured to report \
                 errors during writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the \
                 Redis logs for details about the RDB error.",
            ));
        }
        // Looked at again: a replica that is told to be online counts from then on.
        if any & NO_REPLICAS != 0
            && has(command, session, Flags::WRITE)
            && server.replication.follow(server, &server.settings())
        {
            return Some(Error::text("NOREPLICAS Not enough good replicas to write."));
        }
        None
    }
}

/// What is answered while data are loaded.
pub(crate) fn loading() -> Error {
    Error::text("LOADING Redis is loading the dataset in memory")
}

/// Whether a command has one of these flags; an EXEC, whether one of its commands has.
fn has((row, its): (&Command, Flags), session: &Session, flags: Flags) -> bool {
    match row.lock_scope {
        LockScope::Queue => queued(session).any(|its| its.has(flags)),
        _ => its.has(flags),
    }
}

/// Whether a command lacks this flag; an EXEC, whether one of its commands does.
fn lacks((row, its): (&Command, Flags), session: &Session, flag: Flags) -> bool {
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
            blockers: Blockers::default(),
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

    /// CONFIG RESETSTAT
    pub(crate) fn reset_counts(&self) {
        self.state.lock().saves = 0;
        self.aof.figures.reset();
    }

    pub(crate) fn state(&self) -> State {
        self.state.lock().clone()
    }

    /// Whether what is in memory are the data, and not what has been loaded of them so far.
    pub(crate) fn has_all_data(&self) -> bool {
        !self.is_loading() && !self.is_incomplete.load(Acquire)
    }

    pub(crate) fn is_loading(&self) -> bool {
        self.blockers.any() & LOADING != 0
    }

    /// Refuses writes, or no longer, as the settings say of a snapshot that failed.
    pub(crate) fn follow(&self, settings: &Settings) {
        let stops = settings.stop_writes_on_bgsave_error && !settings.save.is_empty();
        // Under the lock: the last one to come sees what all have changed.
        let state = self.state.lock();
        self.blockers.set(NO_SNAPSHOT, stops && !state.last_ok);
    }

    /// The data are what is on disk: they have been loaded just now.
    pub(crate) fn note_loaded(&self, keyspace: &Keyspace) {
        self.state.lock().changes_at_save = keyspace.total().asked();
    }
}
