//! A primary's snapshot takes the place of this server's data.
//!
//! `repl-diskless-load` says how:
//! - `disabled`: into a file first, which is gone over before anything is given up. Then the data are dropped, the file
//!   becomes the server's own snapshot, and is loaded.
//! - `on-empty-db`, where there are no data, and `flush-before-load`: from the socket into the databases.
//! - `swapdb`: from the socket into hidden databases ([`evenkeel_store::Keyspace::hidden`]), which are swapped for the
//!   present ones behind the closed gate when they are whole. Where the snapshot is of the same history as the present data,
//!   these are served meanwhile; else clients are told to wait, as in Redis, but nothing is lost if loading fails.
//!
//! While databases are being filled that clients see, all wait (LOADING), nothing else is written to disk, and the log is
//! off: afterwards it begins anew with what has been loaded.
//!
//! **Whoever is made a primary has its own data, on disk, too.** Clients are told to wait behind the closed gate, if the server
//! follows this primary still, and REPLICAOF has to wait with them. Only then is anything given up: the snapshot's file, the
//! log, the data. Where clients are served until the swap, the log is left at the same moment as the data.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::Instant;

use evenkeel_rdb::file::{FileReader, Part, ReadLimits};
use evenkeel_store::ThreadContext;

use super::History;
use super::link::LOOK;
use super::primary_connection::{Ended, PrimaryConnection};
use super::receive::{Received, Snapshot};
use crate::config::{DisklessLoad, Settings};
use crate::dispatch::Executor;
use crate::persist::load::{self, Loaded, Target};
use crate::persist::lock::What;
use crate::persist::rewrite;
use crate::scripting::functions::Libraries;
use crate::server::Server;
use evenkeel_runtime::clock;

/// What is to be put in place.
pub(super) struct New {
    pub(super) history: History,
    pub(super) offset: u64,
    /// Of the link that it comes over.
    pub(super) generation: u64,
    /// Whether the stream can be taken up again at its offset.
    pub(super) is_known: bool,
}

/// Receives a snapshot and puts it in place; returns the database that is selected in the stream behind it.
pub(super) fn run(
    server: &Arc<Server>,
    executor: &mut Executor,
    conn: &mut PrimaryConnection,
    new: New,
) -> Result<u32, Ended> {
    let settings = server.settings();
    let mut snapshot = Snapshot::begin(server, conn)?;
    let is_empty = is_empty(server, &mut executor.ctx);
    let to_disk = match settings.repl_diskless_load {
        DisklessLoad::Disabled => true,
        DisklessLoad::OnEmptyDb => !is_empty,
        DisklessLoad::SwapDb | DisklessLoad::FlushBeforeLoad => false,
    };
    announce(server, &snapshot, to_disk);
    let installer = Installer { server, settings: &settings, executor, new };
    if to_disk {
        installer.by_file(&mut snapshot)
    } else if settings.repl_diskless_load == DisklessLoad::SwapDb && server.keyspace.hidden(0).is_some() {
        installer.beside(&mut snapshot)
    } else {
        installer.in_place(&mut snapshot)
    }
}

fn announce(server: &Server, snapshot: &Snapshot<'_>, to_disk: bool) {
    let way = if to_disk { "to disk" } else { "to parser" };
    server.log.notice(match snapshot.len() {
        None => format!("MASTER <-> REPLICA sync: receiving streamed RDB from master with EOF {way}"),
        Some(len) => format!("MASTER <-> REPLICA sync: receiving {len} bytes from master {way}"),
    });
}

/// Databases to be emptied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Seen,
    Hidden,
}

struct Installer<'a> {
    server: &'a Arc<Server>,
    settings: &'a Arc<Settings>,
    executor: &'a mut Executor,
    new: New,
}

impl<'a> Installer<'a> {
    fn by_file(mut self, snapshot: &mut Snapshot<'_>) -> Result<u32, Ended> {
        let mut received = Received::from(snapshot, &self.settings.dir)?;
        look_through(self.server, &mut received.file, received.len, snapshot)?;
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
        self.server
            .persist
            .locks
            .hold(What::Snapshot, &self.settings.dir, &self.settings.dbfilename)
            .map_err(failed)?;
        // What has come is here: if the link breaks, that is found when what has been loaded is to go on.
        let mut sign = || match snapshot.give_sign() {
            Err(Ended::Superseded) => Err(Ended::Superseded),
            _ => Ok(()),
        };
        let quiet = self.begin_loading(&mut sign)?;
        // Whatever becomes of this, the data that are about to be dropped are on no disk any more but in this file.
        received.install(&target).map_err(failed)?;
        let mut file = Watched { inner: BufReader::new(file), snapshot };
        let is_wanted =
            !self.settings.rdb_del_sync_files || !self.settings.save.is_empty() || self.settings.appendonly;
        let db = self.replace(quiet, &mut file, (Some(len), is_wanted))?;
        if !is_wanted {
            let _ = std::fs::remove_file(&target); // it was never asked for
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
        let quiet = Quiet::begin(self.server, self.new.generation, sign)?;
        self.have_all_wait()?;
        Ok(quiet)
    }

    /// Has all clients wait, unless this link is not wanted any more: nobody follows somebody else from here on.
    fn have_all_wait(&mut self) -> Result<(), Ended> {
        let (server, keyspace) = (self.server, &self.server.keyspace);
        keyspace.enter(&mut self.executor.ctx);
        let guard = keyspace.hold_all(&mut self.executor.ctx);
        let is_wanted = server.replication.link.generation() == self.new.generation;
        if is_wanted {
            load::set_loading(server, true);
        }
        drop(guard);
        self.executor.serve_woken();
        keyspace.leave(&mut self.executor.ctx);
        if is_wanted { Ok(()) } else { Err(Ended::Superseded) }
    }

    /// Drops the data and loads others in their place, `len` bytes if that is known, which are on disk or are not.
    fn replace(
        &mut self,
        quiet: Quiet<'_>,
        input: &mut impl Read,
        (len, is_on_disk): (Option<u64>, bool),
    ) -> Result<u32, Ended> {
        if self.server.persist.aof.is_on() {
            rewrite::turn_off(self.server);
        }
        let link = &self.server.replication.link;
        self.server.log.notice("MASTER <-> REPLICA sync: Flushing old data");
        if !self.empty() {
            return Err(Ended::Superseded);
        }
        link.note_position(false, 0);
        self.server.persist.is_incomplete.store(true, Release);
        self.server.log.notice("MASTER <-> REPLICA sync: Loading DB in memory");
        let loaded = self.load(input, len, Target::Visible);
        if loaded.is_err() {
            self.empty(); // half of the data are not the data
            // Nor can anybody go on from here with what others had of them.
            self.server.replication.stream().give_up();
        }
        let db = loaded.map(|loaded| {
            let db = loaded.position.as_ref().map_or(0, |position| position.db);
            self.server.scripts.set_libraries(loaded.libraries);
            self.begin_history(db);
            if is_on_disk {
                self.server.persist.note_loaded(&self.server.keyspace);
            }
            self.wake_waiters();
            db
        });
        drop(quiet);
        db
    }

    /// Loads beside the present data and swaps the two.
    fn beside(mut self, snapshot: &mut Snapshot<'_>) -> Result<u32, Ended> {
        let link = &self.server.replication.link;
        let is_same = self.server.replication.stream().history.id == self.new.history.id;
        let is_served = is_same && link.position(self.server).is_some();
        if !is_served {
            self.have_all_wait()?;
        }
        link.loads_beside.store(is_served, Relaxed);
        self.server.log.notice("MASTER <-> REPLICA sync: Loading DB in memory");
        let len = snapshot.len();
        let loaded = self.load(snapshot, len, Target::Hidden);
        let swapped = loaded.and_then(|loaded| self.swap(loaded, snapshot)).map_err(|ended| match ended {
            Ended::Garbled(reason) => Ended::Broken(reason), // the present data are what they were
            other => other,
        });
        if swapped.is_err() {
            self.drop_hidden();
        }
        link.loads_beside.store(false, Relaxed);
        load::set_loading(self.server, false);
        swapped.map_err(|ended| snapshot.ended().unwrap_or(ended))
    }

    fn swap(&mut self, loaded: Loaded, snapshot: &mut Snapshot<'_>) -> Result<u32, Ended> {
        let db = loaded.position.as_ref().map_or(0, |position| position.db);
        let quiet = Quiet::begin(self.server, self.new.generation, &mut || snapshot.give_sign())?;
        let (server, keyspace) = (self.server, &self.server.keyspace);
        let ctx = &mut self.executor.ctx;
        ctx.now_ms = clock::unix_ms();
        keyspace.enter(ctx);
        let mut guard = keyspace.hold_all(ctx);
        let is_wanted = server.replication.link.generation() == self.new.generation;
        let ends_log = is_wanted && server.persist.aof.is_on();
        let mut old = Vec::new();
        if ends_log {
            rewrite::leave(server, &mut guard);
        }
        if is_wanted {
            server.scripts.set_libraries(loaded.libraries);
            for index in 0..keyspace.databases() {
                let hidden = keyspace.hidden(index).expect("it was asked before");
                guard.unasked(|guard| {
                    guard.swap(index, hidden);
                    old.extend(guard.flush(hidden));
                });
            }
            server.forget_tracked();
        }
        drop(guard);
        if is_wanted {
            self.begin_history(db);
        }
        self.executor.serve_woken();
        keyspace.leave(&mut self.executor.ctx);
        server.note_flush();
        server.lazy_free.free_flushed(old);
        if ends_log {
            rewrite::end_log(server);
        }
        drop(quiet);
        if is_wanted { Ok(db) } else { Err(Ended::Superseded) }
    }

    /// The data are those of the new history from now on.
    fn begin_history(&self, db: u32) {
        let replication = &self.server.replication;
        replication.stream().restart(self.new.history.clone(), self.new.offset);
        replication.link.note_position(self.new.is_known, db);
        self.server.persist.is_incomplete.store(false, Release);
    }

    fn load(&mut self, input: &mut impl Read, len: Option<u64>, target: Target) -> Result<Loaded, Ended> {
        let began = Instant::now();
        let loaded = load::from_primary(self.server, input, len, target).map_err(|ended| match ended {
            load::Ended::Stopped => Ended::Superseded,
            load::Ended::Failed(reason) => {
                Ended::Garbled(format!("Failed trying to load the MASTER synchronization DB: {reason}"))
            }
        })?;
        self.server.log.notice(format!(
            "DB loaded from the master: {} keys, {} bytes, {:.3} seconds",
            loaded.keys,
            loaded.bytes,
            began.elapsed().as_secs_f64()
        ));
        Ok(loaded)
    }

    /// Serves those who wait for what has been loaded: as `swapdb` does it, of which they could not tell.
    fn wake_waiters(&mut self) {
        let keyspace = &self.server.keyspace;
        keyspace.enter(&mut self.executor.ctx);
        let mut guard = keyspace.hold_all(&mut self.executor.ctx);
        (0..keyspace.databases()).for_each(|db| guard.wake_waiters(db));
        drop(guard);
        self.executor.serve_woken();
        keyspace.leave(&mut self.executor.ctx);
    }

    /// Drops the data, unless this link is not wanted any more.
    fn empty(&mut self) -> bool {
        let databases = self.server.keyspace.databases();
        let is_wanted = self.flush(0..databases, Which::Seen);
        if is_wanted {
            self.server.scripts.set_libraries(Libraries::default());
        }
        is_wanted
    }

    fn drop_hidden(&mut self) {
        let keyspace = &self.server.keyspace;
        let hidden = (0..keyspace.databases()).filter_map(|db| keyspace.hidden(db));
        self.flush(hidden.collect::<Vec<_>>().into_iter(), Which::Hidden);
    }

    /// Empties databases: those that clients see only if this link is wanted still.
    fn flush(&mut self, databases: impl Iterator<Item = usize>, which: Which) -> bool {
        let (server, keyspace) = (self.server, &self.server.keyspace);
        keyspace.enter(&mut self.executor.ctx);
        let mut guard = keyspace.hold_all(&mut self.executor.ctx);
        let is_hidden = which == Which::Hidden;
        let is_wanted = is_hidden || server.replication.link.generation() == self.new.generation;
        let wanted = databases.filter(|_| is_wanted);
        let flushed: Vec<_> = guard.unasked(|guard| wanted.filter_map(|db| guard.flush(db)).collect());
        if is_wanted && !is_hidden {
            server.forget_tracked();
        }
        drop(guard);
        self.executor.serve_woken();
        keyspace.leave(&mut self.executor.ctx);
        server.note_flush();
        server.lazy_free.free_flushed(flushed);
        is_wanted
    }
}

fn is_empty(server: &Server, ctx: &mut ThreadContext) -> bool {
    let keyspace = &server.keyspace;
    keyspace.enter(ctx);
    let is_empty = (0..keyspace.databases()).all(|db| keyspace.is_empty(ctx, db));
    keyspace.leave(ctx);
    is_empty
}

/// Goes over a file, its checksum included, before the data are dropped for it: what was damaged on its way costs a sync,
/// not the data.
fn look_through(
    server: &Server,
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
    let mut reader = FileReader::new(&mut *file, Some(len), ReadLimits::default()).map_err(damaged)?;
    if !server.settings().rdbchecksum {
        reader = reader.without_checksum();
    }
    while let Some(part) = reader.next().map_err(damaged)? {
        let refusal = load::refusal(server, &part).or_else(|| load::stream_refusal(server, &part));
        if let Some(reason) = refusal {
            return Err(unusable(reason));
        }
        match part {
            Part::Keys(batch) => reader.reuse(batch),
            Part::Function(code) => {
                load::library_of(server, &code).map_err(|reason| unusable(load::no_library(&reason)))?;
            }
            _ => {}
        }
        // A link that is broken does not keep what has come over it from being loaded.
        let sign = snapshot.give_sign();
        if server.stopping.load(Acquire) || matches!(sign, Err(Ended::Superseded)) {
            return Err(Ended::Superseded);
        }
    }
    reader.expect_no_more().map_err(damaged)
}

/// Reads a file, and tells the primary now and then that we are alive.
struct Watched<'a, 'w, R> {
    inner: R,
    snapshot: &'a mut Snapshot<'w>,
}

impl<R: Read> Read for Watched<'_, '_, R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        // If the link is broken, that is found when what has been loaded is to go on.
        let _ = self.snapshot.give_sign();
        self.inner.read(into)
    }
}

/// While this lives, nobody else writes to disk, or turns the log on or off. When it goes, nobody has to wait any more, and
/// the log is what the settings say.
struct Quiet<'a>(&'a Arc<Server>);

impl<'a> Quiet<'a> {
    /// Waits until nobody else writes to disk any more, which a disk that hangs may keep from ending, and until an end of the server
    /// that has begun is over, which saves what there is. `sign`: tells the primary that we are alive; its error ends the wait.
    fn begin(
        server: &'a Arc<Server>,
        generation: u64,
        sign: &mut dyn FnMut() -> Result<(), Ended>,
    ) -> Result<Quiet<'a>, Ended> {
        let persist = &server.persist;
        while persist.ending.is_under_way() || !persist.claim_alone(crate::persist::Job::Log) {
            if persist.ending.is_under_way() {
                std::thread::sleep(LOOK);
            } else {
                persist.cancel_unless_ending();
                persist.is_idle_within(LOOK);
            }
            if server.stopping.load(Acquire) || server.replication.link.generation() != generation {
                return Err(Ended::Superseded);
            }
            sign()?;
        }
        Ok(Quiet(server))
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        load::set_loading(self.0, false);
        rewrite::release(self.0);
        rewrite::follow_soon(self.0);
    }
}
