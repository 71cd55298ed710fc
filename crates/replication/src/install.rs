//! Replaces this server's data by a primary's snapshot.
//!
//! `repl-diskless-load` sets the way:
//! - `disabled`: into a file, which is verified before anything is given up. Then the data are dropped, and
//!   the file becomes the server's own snapshot and is loaded.
//! - `on-empty-db` without data, and `flush-before-load`: from the socket into the databases.
//! - `swapdb`: from the socket into hidden databases ([`evenkeel_store::Keyspace::hidden`]), which are
//!   swapped with the present databases, while the gate is closed, when they are complete. If the snapshot is
//!   of the same history, the present data are served meanwhile. Otherwise clients get LOADING, as in Redis,
//!   but no data are lost if loading fails.
//!
//! While visible databases are being filled, clients get LOADING, no other job writes to disk, and the
//! append-only file is off. Afterwards it begins anew with the loaded data.
//!
//! **A server that is made a primary has its own data, in memory and on disk.** LOADING begins while the gate
//! is closed, if the server still follows this primary, and then REPLICAOF is refused too. Only then is
//! anything given up: the snapshot's file, the append-only file, the data. If clients are served until the
//! swap, the append-only file is given up together with the data.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::Instant;

use evenkeel_rdb::file::{FilePart, FileReader, ReadLimits};
use evenkeel_store::ThreadContext;

use super::History;
use super::Replication;
use super::link::LINK_POLL_INTERVAL;
use super::primary_connection::{Ended, PrimaryConnection};
use super::receive::{Received, Snapshot};
use evenkeel_client::runner::CommandRunner;
use evenkeel_config::{DisklessLoad, Settings};
use evenkeel_persist::load::{self, Loaded, Target};
use evenkeel_persist::lock::What;
use evenkeel_persist::{backup, rewrite};
use evenkeel_runtime::clock;
use evenkeel_scripting::functions::Libraries;

/// The history and position of a snapshot that is to be installed.
pub(super) struct New {
    pub(super) history: History,
    pub(super) offset: u64,
    /// The number of the link that it comes over.
    pub(super) generation: u64,
    /// Whether the stream can be continued from its offset.
    pub(super) is_known: bool,
}

/// Receives and installs a snapshot. Returns the database selected in the stream behind it.
pub(super) fn run(
    replication: &Arc<Replication>,
    runner: &mut dyn CommandRunner,
    conn: &mut PrimaryConnection,
    new: New,
) -> Result<u32, Ended> {
    let settings = replication.core.settings();
    let mut snapshot = Snapshot::begin(replication, conn)?;
    let is_empty = is_empty(replication, runner.ctx());
    let to_disk = match settings.repl_diskless_load {
        DisklessLoad::Disabled => true,
        DisklessLoad::OnEmptyDb => !is_empty,
        DisklessLoad::SwapDb | DisklessLoad::FlushBeforeLoad => false,
    };
    announce(&snapshot, to_disk);
    let installer = Installer { replication, settings: &settings, runner, new };
    if to_disk {
        installer.by_file(&mut snapshot)
    } else if settings.repl_diskless_load == DisklessLoad::SwapDb
        && replication.core.keyspace.hidden(0).is_some()
    {
        installer.beside(&mut snapshot)
    } else {
        installer.in_place(&mut snapshot)
    }
}

fn announce(snapshot: &Snapshot<'_>, to_disk: bool) {
    let way = if to_disk { "to disk" } else { "to parser" };
    log::info!(
        "{}",
        match snapshot.len() {
            None => format!("PRIMARY <-> REPLICA sync: receiving streamed RDB from master with EOF {way}"),
            Some(len) => format!("PRIMARY <-> REPLICA sync: receiving {len} bytes from master {way}"),
        }
    );
}

/// The databases to be emptied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Seen,
    Hidden,
}

struct Installer<'a> {
    replication: &'a Arc<Replication>,
    settings: &'a Arc<Settings>,
    runner: &'a mut dyn CommandRunner,
    new: New,
}

impl<'a> Installer<'a> {
    fn by_file(mut self, snapshot: &mut Snapshot<'_>) -> Result<u32, Ended> {
        let mut received = Received::from(snapshot, &self.settings.dir)?;
        look_through(self.replication, &mut received.file, received.len, snapshot)?;
        let target = self.settings.dir.join(&self.settings.dbfilename);
        let failed = |error: std::io::Error| {
            Ended::Broken(format!(
                "Error loading the snapshot of the master into {}: {error}",
                target.display()
            ))
        };
        received.file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let file = received.file.try_clone().map_err(failed)?;
        let len = received.len;
        self.replication
            .persist
            .locks
            .hold(What::Snapshot, &self.settings.dir, &self.settings.dbfilename)
            .map_err(failed)?;
        // The snapshot is complete. A broken link is noticed later, when the stream is to continue.
        let mut sign = || match snapshot.give_sign() {
            Err(Ended::Superseded) => Err(Ended::Superseded),
            _ => Ok(()),
        };
        let quiet = self.begin_loading(&mut sign)?;
        // From here on, this file is the only copy of the data on disk.
        received.install(&target).map_err(|error| {
            Ended::Broken(format!(
                "Failed trying to rename the temp DB into {} in {}, for PRIMARY <-> REPLICA synchronization: \
                 {error}",
                self.settings.dbfilename.display(),
                self.settings.dir.display()
            ))
        })?;
        let mut file = Watched { inner: BufReader::new(file), snapshot };
        let is_wanted =
            !self.settings.rdb_del_sync_files || !self.settings.save.is_empty() || self.settings.appendonly;
        let db = self.replace(quiet, &mut file, (Some(len), is_wanted))?;
        if !is_wanted {
            let _ = std::fs::remove_file(&target); // no setting asks for it
        }
        Ok(db)
    }

    fn in_place(mut self, snapshot: &mut Snapshot<'_>) -> Result<u32, Ended> {
        let len = snapshot.len();
        let quiet = self.begin_loading(&mut || snapshot.give_sign());
        let replaced = quiet.and_then(|quiet| self.replace(quiet, snapshot, (len, false)));
        replaced.map_err(|ended| snapshot.ended().unwrap_or(ended))
    }

    fn begin_loading(&mut self, sign: &mut dyn FnMut() -> Result<(), Ended>) -> Result<Quiet<'a>, Ended> {
        let quiet = Quiet::begin(self.replication, self.new.generation, sign)?;
        self.have_all_wait()?;
        Ok(quiet)
    }

    /// Begins LOADING, unless this link is no longer wanted. From here on the target cannot change.
    fn have_all_wait(&mut self) -> Result<(), Ended> {
        let (replication, keyspace) = (self.replication, &self.replication.core.keyspace);
        keyspace.enter(self.runner.ctx());
        let guard = keyspace.hold_all(self.runner.ctx());
        let is_wanted = replication.link.generation() == self.new.generation;
        if is_wanted {
            load::set_loading(&replication.persist, true);
        }
        drop(guard);
        self.runner.serve_woken();
        keyspace.leave(self.runner.ctx());
        if is_wanted { Ok(()) } else { Err(Ended::Superseded) }
    }

    /// Replaces the data by those of `input`, of `len` bytes if known. `is_on_disk`: they stay on disk as
    /// well.
    fn replace(
        &mut self,
        quiet: Quiet<'_>,
        input: &mut impl Read,
        (len, is_on_disk): (Option<u64>, bool),
    ) -> Result<u32, Ended> {
        if self.replication.persist.aof.is_on() {
            rewrite::turn_off(&self.replication.persist);
        }
        backup::invalidate(&self.replication.persist);
        let link = &self.replication.link;
        log::info!("PRIMARY <-> REPLICA sync: Flushing old data");
        if !self.empty() {
            return Err(Ended::Superseded);
        }
        link.set_position(false, 0);
        self.replication.persist.is_incomplete.store(true, Release);
        log::info!("PRIMARY <-> REPLICA sync: Loading DB in memory");
        let loaded = self.load(input, len, Target::Visible);
        if loaded.is_err() {
            self.empty(); // partial data are unusable
            // Our own replicas cannot continue from here either.
            self.replication.stream().abandon();
        }
        let db = loaded.map(|loaded| {
            let db = loaded.position.as_ref().map_or(0, |position| position.db);
            self.replication.scripts.set_libraries(loaded.libraries);
            self.begin_history(db);
            if is_on_disk {
                self.replication.persist.record_loaded(&self.replication.core.keyspace);
            }
            self.wake_waiters();
            db
        });
        drop(quiet);
        db
    }

    /// Loads beside the present data, and swaps.
    fn beside(mut self, snapshot: &mut Snapshot<'_>) -> Result<u32, Ended> {
        let link = &self.replication.link;
        let is_same = self.replication.stream().history.id == self.new.history.id;
        let is_served = is_same && link.position(self.replication).is_some();
        if !is_served {
            self.have_all_wait()?;
        }
        link.loads_beside.store(is_served, Relaxed);
        log::info!("PRIMARY <-> REPLICA sync: Loading DB in memory");
        let len = snapshot.len();
        let loaded = self.load(snapshot, len, Target::Hidden);
        let swapped = loaded.and_then(|loaded| self.swap(loaded, snapshot)).map_err(|ended| match ended {
            Ended::Garbled(reason) => Ended::Broken(reason), // the present data are unchanged
            other => other,
        });
        if swapped.is_err() {
            self.drop_hidden();
        }
        link.loads_beside.store(false, Relaxed);
        load::set_loading(&self.replication.persist, false);
        swapped.map_err(|ended| snapshot.ended().unwrap_or(ended))
    }

    fn swap(&mut self, loaded: Loaded, snapshot: &mut Snapshot<'_>) -> Result<u32, Ended> {
        let db = loaded.position.as_ref().map_or(0, |position| position.db);
        let quiet = Quiet::begin(self.replication, self.new.generation, &mut || snapshot.give_sign())?;
        let (replication, keyspace) = (self.replication, &self.replication.core.keyspace);
        backup::invalidate(&replication.persist);
        let ctx = self.runner.ctx();
        ctx.now_ms = clock::unix_ms();
        keyspace.enter(ctx);
        let mut guard = keyspace.hold_all(ctx);
        let is_wanted = replication.link.generation() == self.new.generation;
        let ends_log = is_wanted && replication.persist.aof.is_on();
        let mut old = Vec::new();
        if ends_log {
            rewrite::leave(&replication.persist, &mut guard);
        }
        if is_wanted {
            replication.scripts.set_libraries(loaded.libraries);
            for index in 0..keyspace.databases() {
                let hidden = keyspace.hidden(index).expect("it was asked before");
                guard.unasked(|guard| {
                    guard.swap(index, hidden);
                    old.extend(guard.flush(hidden));
                });
            }
            replication.hub.forget_tracked();
        }
        drop(guard);
        if is_wanted {
            self.begin_history(db);
        }
        self.runner.serve_woken();
        keyspace.leave(self.runner.ctx());
        replication.core.record_flush();
        replication.core.lazy_free.free_flushed(old);
        if ends_log {
            rewrite::end_log(&replication.persist);
        }
        drop(quiet);
        if is_wanted { Ok(db) } else { Err(Ended::Superseded) }
    }

    /// Marks the data as those of the new history.
    fn begin_history(&self, db: u32) {
        let replication = &self.replication;
        replication.stream().restart(self.new.history.clone(), self.new.offset);
        replication.link.set_position(self.new.is_known, db);
        self.replication.persist.is_incomplete.store(false, Release);
    }

    fn load(&mut self, input: &mut impl Read, len: Option<u64>, target: Target) -> Result<Loaded, Ended> {
        let began = Instant::now();
        let loaded = load::from_primary(&self.replication.persist, input, len, target);
        let loaded = loaded.map_err(|ended| match ended {
            load::Ended::Stopped => Ended::Superseded,
            load::Ended::Failed(reason) => {
                let received = self.replication.link.metrics.transfer_read.load(Relaxed);
                log::warn!(
                    "Internal error in RDB: the loading ended after {received} received bytes: {reason}"
                );
                Ended::Garbled(format!("Failed trying to load the PRIMARY synchronization DB: {reason}"))
            }
        })?;
        log::info!(
            "DB loaded from the master: {} keys, {} bytes, {:.3} seconds",
            loaded.keys,
            loaded.bytes,
            began.elapsed().as_secs_f64()
        );
        Ok(loaded)
    }

    /// Serves the clients that wait for keys which are there now. `swapdb` serves them too, so they cannot
    /// see a difference.
    fn wake_waiters(&mut self) {
        let keyspace = &self.replication.core.keyspace;
        keyspace.enter(self.runner.ctx());
        let mut guard = keyspace.hold_all(self.runner.ctx());
        (0..keyspace.databases()).for_each(|db| guard.wake_waiters(db));
        drop(guard);
        self.runner.serve_woken();
        keyspace.leave(self.runner.ctx());
    }

    /// Drops the data, unless this link is no longer wanted.
    fn empty(&mut self) -> bool {
        let databases = self.replication.core.keyspace.databases();
        let is_wanted = self.flush(0..databases, Which::Seen);
        if is_wanted {
            self.replication.scripts.set_libraries(Libraries::default());
        }
        is_wanted
    }

    fn drop_hidden(&mut self) {
        let keyspace = &self.replication.core.keyspace;
        let hidden = (0..keyspace.databases()).filter_map(|db| keyspace.hidden(db));
        self.flush(hidden.collect::<Vec<_>>().into_iter(), Which::Hidden);
    }

    /// Empties databases; visible databases only if this link is still wanted.
    fn flush(&mut self, databases: impl Iterator<Item = usize>, which: Which) -> bool {
        let (replication, keyspace) = (self.replication, &self.replication.core.keyspace);
        keyspace.enter(self.runner.ctx());
        let mut guard = keyspace.hold_all(self.runner.ctx());
        let is_hidden = which == Which::Hidden;
        let is_wanted = is_hidden || replication.link.generation() == self.new.generation;
        let wanted = databases.filter(|_| is_wanted);
        let flushed: Vec<_> = guard.unasked(|guard| wanted.filter_map(|db| guard.flush(db)).collect());
        if is_wanted && !is_hidden {
            replication.hub.forget_tracked();
        }
        drop(guard);
        self.runner.serve_woken();
        keyspace.leave(self.runner.ctx());
        replication.core.record_flush();
        replication.core.lazy_free.free_flushed(flushed);
        is_wanted
    }
}

fn is_empty(replication: &Replication, ctx: &mut ThreadContext) -> bool {
    let keyspace = &replication.core.keyspace;
    keyspace.enter(ctx);
    let is_empty = (0..keyspace.databases()).all(|db| keyspace.is_empty(ctx, db));
    keyspace.leave(ctx);
    is_empty
}

/// Verifies a file, checksum included, before the data are dropped for it: damage in transfer costs a sync,
/// not the data.
fn look_through(
    replication: &Replication,
    file: &mut File,
    len: u64,
    snapshot: &mut Snapshot<'_>,
) -> Result<(), Ended> {
    let unusable = |reason: String| {
        Ended::Broken(format!(
            "The snapshot of the master cannot be loaded: {reason}. The current data is kept"
        ))
    };
    let damaged = |failure: evenkeel_rdb::file::Failure| {
        Ended::Broken(format!(
            "The snapshot of the master is damaged ({failure}) and was discarded. The current data is kept"
        ))
    };
    file.seek(SeekFrom::Start(0)).map_err(|error| Ended::Broken(error.to_string()))?;
    let versions = replication.core.settings().rdb_versions();
    let reader = FileReader::of_versions(&mut *file, Some(len), ReadLimits::default(), versions);
    let mut reader = reader.map_err(damaged)?;
    if !replication.core.settings().rdbchecksum {
        reader = reader.without_checksum();
    }
    while let Some(part) = reader.next().map_err(damaged)? {
        let refusal = load::refusal(&replication.persist, &part)
            .or_else(|| load::stream_refusal(&replication.persist, &part));
        if let Some(reason) = refusal {
            return Err(unusable(reason));
        }
        match part {
            FilePart::Keys(batch) => reader.reuse(batch),
            FilePart::Function(code) => {
                load::library_of(&replication.persist, &code)
                    .map_err(|reason| unusable(load::no_library(&reason)))?;
            }
            _ => {}
        }
        // A broken link does not prevent the load of a complete snapshot.
        let sign = snapshot.give_sign();
        if replication.core.stopping.load(Acquire) || matches!(sign, Err(Ended::Superseded)) {
            return Err(Ended::Superseded);
        }
    }
    reader.expect_no_more().map_err(damaged)
}

/// Reads a file, and sends the primary signs of life.
struct Watched<'a, 'w, R> {
    inner: R,
    snapshot: &'a mut Snapshot<'w>,
}

impl<R: Read> Read for Watched<'_, '_, R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        // A broken link is noticed later, when the stream is to continue.
        let _ = self.snapshot.give_sign();
        self.inner.read(into)
    }
}

/// Keeps other jobs from writing to disk, and from turning the append-only file on or off. On drop, LOADING
/// ends, and the append-only file follows the settings.
struct Quiet<'a>(&'a Arc<Replication>);

impl<'a> Quiet<'a> {
    /// Waits until no other job writes to disk, although a disk may hang, and until an end of the server that
    /// has begun is over, since it saves the present data. `sign` sends the primary a sign of life; its error
    /// ends the wait.
    fn begin(
        replication: &'a Arc<Replication>,
        generation: u64,
        sign: &mut dyn FnMut() -> Result<(), Ended>,
    ) -> Result<Quiet<'a>, Ended> {
        let persist = &replication.persist;
        while persist.ending.is_under_way() || !persist.claim_alone(evenkeel_persist::PersistJob::Log) {
            if persist.ending.is_under_way() {
                std::thread::sleep(LINK_POLL_INTERVAL);
            } else {
                persist.cancel_unless_ending();
                persist.is_idle_within(LINK_POLL_INTERVAL);
            }
            if replication.core.stopping.load(Acquire) || replication.link.generation() != generation {
                return Err(Ended::Superseded);
            }
            sign()?;
        }
        Ok(Quiet(replication))
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        load::set_loading(&self.0.persist, false);
        rewrite::release(&self.0.persist);
        rewrite::follow_soon(&self.0.persist);
    }
}
