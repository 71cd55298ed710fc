//! Online backups: the BACKUP commands.
//!
//! A backup is a folder in the format of the append-only file: a base, one incremental file, and a manifest.
//! The base is a snapshot. From its moment on, a thread of the backup reads the journal and writes the
//! incremental file, until the backup is sealed. The folder then has the data of the moment of BACKUP SEAL.
//!
//! Redis makes hard links to its append-only files. Here the backup shares no file with the server: it runs
//! with and without `appendonly`, rewrites go on, and a change of `appendonly` does not end it. With
//! `appendonly yes`, the commands of the backup window are written twice.
//!
//! A backup never delays a writer. If its disk falls behind by `appendonly-buffer-limit`, the backup fails,
//! and its share of the journal is dropped.
//!
//! ```text
//! idle ── START ── pending ── snapshotting ── incrementing ── SEAL ── sealed ── CLEANUP ── idle
//!                     └─────────────┴──── ABORT, an error ────┘
//!                                         failed ── START, CLEANUP
//! ```

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use evenkeel_config::cause;
use evenkeel_rdb::Version;
use evenkeel_rdb::aof::{Directory, Since};
use evenkeel_runtime::{clock, threads};
use evenkeel_store::journal::Reader;
use evenkeel_store::{Keyspace, ThreadContext};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::aof::{Appender, LogFile};
use super::direct_writer::{Cache, DirectWriter};
use super::jobs::START_TIMEOUT;
use super::recorder::Records;
use super::{CANCEL_POLL_INTERVAL, Persist, PersistJob, rewrite, snapshot};

/// Bytes taken from the journal before they are written.
const WRITE_LEN: usize = 256 * 1024;

/// The pause after a round that found little, and the longest pause of an idle thread.
const PAUSE: Duration = Duration::from_millis(5);
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(100);

const NOWHERE: usize = usize::MAX;

/// How far a backup is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    #[default]
    Idle,
    /// Another job is running, or a transaction that began the backup.
    Pending,
    Snapshotting,
    Incrementing,
    Sealed,
    Failed,
}

impl Stage {
    /// The name in BACKUP STATUS.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Idle => "idle",
            Stage::Pending => "pending",
            Stage::Snapshotting => "snapshotting",
            Stage::Incrementing => "incrementing",
            Stage::Sealed => "sealed",
            Stage::Failed => "failed",
        }
    }

    /// Whether a backup has been begun, and has neither been sealed nor failed.
    pub fn is_open(self) -> bool {
        matches!(self, Stage::Pending | Stage::Snapshotting | Stage::Incrementing)
    }
}

/// The state of the present or the last backup.
#[derive(Clone, Debug, Default)]
pub struct Status {
    pub stage: Stage,
    /// The reason of a failure; empty: none.
    pub error: String,
    /// Unix time of the start, in seconds; zero: none.
    pub started_s: u64,
    /// Unix time of the seal, in seconds; zero: not sealed.
    pub ended_s: u64,
}

/// The backup of a server, shared by all threads.
pub struct Backup {
    state: Mutex<State>,
    /// The context of threads that add and remove the journal's reader.
    ctx: Mutex<ThreadContext>,
}

#[derive(Default)]
struct State {
    status: Status,
    /// Absolute path of the backup's folder, and the prefix of the names in it.
    folder: PathBuf,
    name: PathBuf,
    /// The paths of the base, the incremental file and the manifest, once the base is there.
    files: Vec<PathBuf>,
    log: Option<Arc<Log>>,
    /// A client is sealing the backup, or a thread removes its files.
    is_busy: bool,
}

/// The state of the thread that writes the incremental file.
struct Log {
    place: AtomicUsize,
    is_dismissed: AtomicBool,
    /// All records of the backup have been published: the thread ends when it has written them.
    is_whole: AtomicBool,
    /// The rest is not wanted.
    is_abandoned: AtomicBool,
    /// The result of the thread, once it has ended.
    result: Mutex<Option<Result<(), String>>>,
    ended: Condvar,
}

impl Default for Log {
    fn default() -> Log {
        Log {
            place: AtomicUsize::new(NOWHERE),
            is_dismissed: AtomicBool::new(false),
            is_whole: AtomicBool::new(false),
            is_abandoned: AtomicBool::new(false),
            result: Mutex::default(),
            ended: Condvar::new(),
        }
    }
}

impl Log {
    fn has_ended(&self) -> bool {
        self.result.lock().is_some()
    }

    fn end(&self, result: Result<(), String>) {
        *self.result.lock() = Some(result);
        self.ended.notify_all();
    }

    /// Ends publishing for the thread, once. The caller is not in the gate.
    fn dismiss(&self, persist: &Persist) {
        let place = self.place.load(Acquire);
        if place == NOWHERE {
            return;
        }
        rewrite::with_all_held(persist, &persist.backup.ctx, |guard| {
            if !self.is_dismissed.swap(true, AcqRel) {
                guard.dismiss(place);
            }
        });
        persist.core.keyspace.journal.wake(place);
    }
}

impl Backup {
    pub(super) fn new(keyspace: &Keyspace) -> Backup {
        Backup { state: Mutex::default(), ctx: Mutex::new(keyspace.thread_context()) }
    }

    pub fn status(&self) -> Status {
        self.state.lock().status.clone()
    }

    pub(super) fn is_pending(&self) -> bool {
        self.state.lock().status.stage == Stage::Pending
    }

    /// Absolute paths of the files that do not change any more: the base of an open backup; base,
    /// incremental file and manifest of a sealed backup.
    pub fn files(&self) -> Vec<PathBuf> {
        let state = self.state.lock();
        match state.status.stage {
            Stage::Incrementing => state.files[..1].to_vec(),
            Stage::Sealed => state.files.clone(),
            Stage::Idle | Stage::Pending | Stage::Snapshotting | Stage::Failed => Vec::new(),
        }
    }
}

/// BACKUP START: begins a backup now, or when the running job ends. `is_nested`: the control thread begins it
/// behind the transaction. Otherwise the folder is read first, whose disk may hang.
///
/// # Errors
/// The reason why there can be no backup.
pub fn start(persist: &Arc<Persist>, is_nested: bool) -> Result<(), String> {
    let settings = persist.core.settings();
    if settings.backupdirname == settings.appenddirname {
        return Err("'backupdirname' is the folder of the append-only file".into());
    }
    let folder =
        std::path::absolute(&settings.dir).map_err(|error| cause(&error))?.join(&settings.backupdirname);
    if !is_nested {
        wait_for_end(persist);
        drop(check_startable(persist)?);
        expect_empty(&folder)?;
    }
    let mut state = check_startable(persist)?;
    let status = Status { stage: Stage::Pending, started_s: clock::unix_ms() / 1000, ..Status::default() };
    *state = State { status, folder, name: settings.appendfilename.clone(), ..State::default() };
    drop(state);
    if !is_nested {
        begin(persist);
    }
    Ok(())
}

fn check_startable(persist: &Persist) -> Result<MutexGuard<'_, State>, String> {
    let state = persist.backup.state.lock();
    match state.status.stage {
        Stage::Pending | Stage::Snapshotting | Stage::Incrementing => {
            return Err("A backup is already in progress".into());
        }
        Stage::Sealed => return Err("A sealed backup is kept: BACKUP CLEANUP removes it".into()),
        Stage::Idle | Stage::Failed => {}
    }
    if is_writing(persist, &state) {
        return Err("The last backup has not ended yet: its disk is slow or blocked".into());
    }
    Ok(state)
}

/// Whether a thread of a backup still writes, or removes files.
fn is_writing(persist: &Persist, state: &State) -> bool {
    state.is_busy
        || state.log.as_ref().is_some_and(|log| !log.has_ended())
        || persist.state().all().any(|running| running.is(PersistJob::Backup))
}

/// Waits for the threads of a failed backup, as long as a healthy disk takes.
fn wait_for_end(persist: &Persist) {
    let until = Instant::now() + START_TIMEOUT;
    let is_ending = || {
        let state = persist.backup.state.lock();
        state.status.stage == Stage::Failed && is_writing(persist, &state)
    };
    while is_ending() && Instant::now() < until {
        std::thread::sleep(PAUSE);
    }
}

fn expect_empty(folder: &Path) -> Result<(), String> {
    let first = match std::fs::read_dir(folder) {
        Ok(mut entries) => entries.next(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(format!("Cannot read {}: {}", folder.display(), cause(&error))),
    };
    match first {
        None => Ok(()),
        Some(_) => Err(format!("The backup folder {} is not empty", folder.display())),
    }
}

/// Begins the pending backup, unless another job is running.
fn begin(persist: &Arc<Persist>) {
    if !persist.has_all_data() || !persist.claim(PersistJob::Backup) {
        return;
    }
    let mut state = persist.backup.state.lock();
    if state.status.stage != Stage::Pending {
        drop(state);
        return rewrite::release(persist);
    }
    state.status.stage = Stage::Snapshotting;
    drop(state);
    let (on_thread, host) = (persist.clone(), persist.host());
    let spawned = threads::named("snapshot").spawn(move || {
        let _host = host;
        run(&on_thread);
    });
    if let Err(error) = spawned {
        rewrite::release(persist);
        fail(persist, &format!("cannot start a thread: {}", cause(&error)));
    }
}

/// Writes the base, as the claimed job.
fn run(persist: &Arc<Persist>) {
    log::info!("Backup started");
    let folder = persist.backup.state.lock().folder.clone();
    if let Err(reason) = expect_empty(&folder) {
        rewrite::release(persist);
        mark_failed(persist, &reason); // its files are not ours to remove
        return;
    }
    let written = catch_unwind(AssertUnwindSafe(|| write_base(persist)))
        .unwrap_or_else(|_| Err("a panic, see the server log".into()));
    rewrite::release(persist);
    let mut state = persist.backup.state.lock();
    match written {
        Ok(files) if state.status.stage == Stage::Snapshotting => {
            (state.status.stage, state.files) = (Stage::Incrementing, files);
            log::info!("The base of the backup is complete: {}", state.files[0].display());
        }
        Ok(_) => {
            drop(state);
            clean(persist); // aborted in the last moment
        }
        Err(reason) if state.status.stage == Stage::Snapshotting => {
            drop(state);
            fail(persist, &reason);
        }
        Err(_) => {
            drop(state);
            clean(persist);
        }
    }
}

/// Writes the base, and begins the incremental file at its moment. Returns the paths of the base, the
/// incremental file and the manifest.
fn write_base(persist: &Arc<Persist>) -> Result<Vec<PathBuf>, String> {
    let settings = persist.core.settings();
    let say = |error: &dyn std::fmt::Display| error.to_string();
    let (folder, name) = {
        let state = persist.backup.state.lock();
        (state.folder.clone(), state.name.clone())
    };
    let mut directory =
        Directory::open(&settings.dir, folder.as_os_str(), name.as_os_str()).map_err(|error| say(&error))?;
    directory.pass_over_old_file(); // the append-only file of an older server, which is beside the folder
    let base = directory.draft_base().map_err(|error| say(&error))?;
    let file = directory.draft_incremental().map_err(|error| say(&error))?;
    let file = LogFile::open(file).map_err(|error| say(&error))?;
    let log = Arc::new(Log::default());
    persist.backup.state.lock().log = Some(log.clone());
    let taken = (|| {
        let hand_over = spawn_log(persist, &log, file, settings.aof_timestamp_enabled)?;
        let writer = DirectWriter::new(persist, &settings, &base, Cache::Past, PersistJob::Backup)?;
        let records = Records::new(snapshot::open(writer, &settings, Version::V10, true)?, settings.clone());
        let taken = snapshot::take(persist, &settings, (PersistJob::Backup, true), records, |guard| {
            let reader = guard.join_log();
            log.place.store(reader.place(), Release);
            hand_over(reader);
            None
        })?;
        snapshot::finish(taken, &base)?;
        base.sync_all()
    })();
    // Without a reader, the thread has ended or never begun.
    if taken.is_err() && log.place.load(Acquire) == NOWHERE {
        log.end(Err(String::new()));
    }
    taken.map_err(|error| cause(&error))?;
    directory.install(true, Since::Draft).map_err(|error| say(&error))?;
    let parts = directory.parts().map_err(|error| say(&error))?;
    let paths = parts.into_iter().map(|part| part.path).chain([directory.manifest_path()]);
    paths.map(std::path::absolute).collect::<io::Result<_>>().map_err(|error| cause(&error))
}

/// Starts the thread that writes the incremental file. It waits for the reader, which is handed to it by a
/// call of the result, and ends without one.
fn spawn_log(
    persist: &Arc<Persist>,
    log: &Arc<Log>,
    file: LogFile,
    has_times: bool,
) -> io::Result<impl FnOnce(Reader) + use<>> {
    let (hand_over, handed) = channel::<Reader>();
    let (persist, log) = (persist.clone(), log.clone());
    threads::named("backup").spawn(move || {
        evenkeel_store::memory::register_thread();
        let Ok(mut reader) = handed.recv() else { return };
        let written = catch_unwind(AssertUnwindSafe(|| follow(&persist, &log, has_times, file, &mut reader)));
        let written = written.unwrap_or_else(|_| Err(io::Error::other("a panic, see the server log")));
        log.dismiss(&persist);
        reader.end(&persist.core.keyspace.journal);
        let written = written.map_err(|error| cause(&error));
        log.end(written.clone());
        if let Err(reason) = written {
            fail(&persist, &reason);
        }
    })?;
    Ok(move |reader| hand_over.send(reader).unwrap_or_else(|_| unreachable!("the thread waits for it")))
}

/// Writes the records of `reader` until the backup is whole, and syncs the file.
fn follow(
    persist: &Persist,
    log: &Log,
    has_times: bool,
    mut file: LogFile,
    reader: &mut Reader,
) -> io::Result<()> {
    let (journal, mut appender) = (&persist.core.keyspace.journal, Appender::default());
    loop {
        let is_whole = log.is_whole.load(Acquire);
        if log.is_abandoned.load(Acquire) {
            return Err(super::jobs::cancelled());
        }
        let now_s = if has_times { clock::unix_ms() / 1000 } else { 0 };
        let mut found = 0;
        reader.read(journal, |record| {
            appender.append(&mut file, &record, now_s, true);
            found += record.bytes.len();
            found < WRITE_LEN
        });
        file.write_all()?;
        file.start_writeback();
        if is_whole && reader.unread(journal) == 0 {
            return file.sync();
        }
        if found == 0 {
            reader.sleep(journal, IDLE_POLL_INTERVAL);
        }
        if found < WRITE_LEN && !log.is_whole.load(Acquire) {
            std::thread::sleep(PAUSE); // or each command would wake the thread
        }
    }
}

/// BACKUP SEAL: ends the backup with the commands acknowledged so far. Waits for its disk.
///
/// # Errors
/// The reason why there is no sealed backup.
pub fn seal(persist: &Arc<Persist>) -> Result<(), String> {
    let log = {
        let mut state = persist.backup.state.lock();
        if state.status.stage != Stage::Incrementing || state.is_busy {
            return Err("No backup ready to seal".into());
        }
        state.is_busy = true;
        state.log.clone().expect("an incrementing backup has one")
    };
    log.dismiss(persist);
    log.is_whole.store(true, Release);
    persist.core.keyspace.journal.wake(log.place.load(Acquire));
    let mut result = log.result.lock();
    while result.is_none() && !log.is_abandoned.load(Acquire) {
        log.ended.wait_for(&mut result, CANCEL_POLL_INTERVAL);
    }
    let written = result.clone();
    drop(result);
    let mut state = persist.backup.state.lock();
    state.is_busy = false;
    match written {
        Some(Ok(())) if state.status.stage == Stage::Incrementing => {
            (state.status.stage, state.status.ended_s) = (Stage::Sealed, clock::unix_ms() / 1000);
            log::info!("The backup is sealed: {}", state.folder.display());
            Ok(())
        }
        Some(Err(reason)) if state.status.stage == Stage::Incrementing => {
            drop(state);
            fail(persist, &reason); // not later than the reply
            Err(format!("The backup failed: {reason}"))
        }
        _ => Err(format!("The backup failed: {}", state.status.error)),
    }
}

/// BACKUP ABORT
///
/// # Errors
/// No backup is in progress.
pub fn abort(persist: &Arc<Persist>) -> Result<(), String> {
    match mark_failed(persist, "aborted by user") {
        true => {
            clean(persist);
            wait_for_end(persist);
            Ok(())
        }
        false => Err("No backup in progress".into()),
    }
}

/// BACKUP CLEANUP: removes the files of a sealed or failed backup.
///
/// # Errors
/// A backup is in progress, or a file cannot be removed.
pub fn cleanup(persist: &Arc<Persist>) -> Result<(), String> {
    let stage = persist.backup.state.lock().status.stage;
    if stage.is_open() {
        return Err("A backup is in progress: BACKUP ABORT ends it".into());
    }
    if stage != Stage::Idle {
        remove_files(persist)?;
        persist.backup.state.lock().status = Status::default();
    }
    Ok(())
}

/// Ends a backup whose data are replaced by other data than the journal's. The caller is not in the gate.
pub fn invalidate(persist: &Arc<Persist>) {
    if persist.backup.status().stage == Stage::Incrementing {
        fail(persist, "the data were replaced");
    }
}

/// Removes the files of an unfinished backup when the server ends. Its disk may hang: no thread is waited
/// for.
pub fn give_up(persist: &Persist) {
    if mark_failed(persist, "the server is shutting down")
        && let Err(reason) = remove_files(persist)
    {
        log::warn!("{}", reason);
    }
}

/// Begins a pending backup, ends a backup that falls behind, and removes a sealed backup in time. For the
/// control thread, which does no disk work.
pub fn look(persist: &Arc<Persist>) {
    let settings = persist.core.settings();
    let mut state = persist.backup.state.lock();
    match state.status.stage {
        Stage::Pending => {
            drop(state);
            if persist.state().is_idle() && !snapshot::ends(persist) {
                begin(persist);
            }
        }
        Stage::Snapshotting | Stage::Incrementing => {
            let place = state.log.as_ref().map_or(NOWHERE, |log| log.place.load(Acquire));
            drop(state);
            let unread = persist.core.keyspace.journal.unread_by(place) as u64;
            if unread > settings.appendonly_buffer_limit {
                let reason = format!(
                    "{unread} bytes of commands were waiting for its disk (appendonly-buffer-limit), which \
                     is too slow or blocked"
                );
                if mark_failed(persist, &reason) {
                    on_thread(persist, clean);
                }
            }
        }
        Stage::Sealed if settings.backup_sealed_ttl > 0 && !state.is_busy => {
            let kept_s = (clock::unix_ms() / 1000).saturating_sub(state.status.ended_s);
            state.is_busy = kept_s >= settings.backup_sealed_ttl;
            if state.is_busy {
                drop(state);
                log::info!("The sealed backup is removed after {kept_s} s (backup-sealed-ttl)");
                on_thread(persist, expire);
            }
        }
        Stage::Sealed | Stage::Idle | Stage::Failed => {}
    }
}

fn on_thread(persist: &Arc<Persist>, work: fn(&Arc<Persist>)) {
    let on_thread = persist.clone();
    if threads::named("backup-end").spawn(move || work(&on_thread)).is_err() {
        persist.backup.state.lock().is_busy = false; // tried again, or the next CLEANUP does it
    }
}

fn expire(persist: &Arc<Persist>) {
    if let Err(reason) = cleanup(persist) {
        log::warn!("{}", reason);
    }
    persist.backup.state.lock().is_busy = false;
}

/// Ends an open backup, and removes its files. The caller is not in the gate.
fn fail(persist: &Arc<Persist>, reason: &str) {
    if mark_failed(persist, reason) {
        clean(persist);
    }
}

/// Marks an open backup as failed; its threads then come to their ends. Returns false if none is open.
fn mark_failed(persist: &Persist, reason: &str) -> bool {
    let mut state = persist.backup.state.lock();
    if !state.status.stage.is_open() {
        return false;
    }
    state.status.stage = Stage::Failed;
    state.status.error = reason.into();
    let log = state.log.clone();
    drop(state);
    log::warn!("Backup failed: {reason}");
    persist.cancel_backup();
    if let Some(log) = log {
        log.is_abandoned.store(true, Release);
    }
    true
}

/// Ends publishing for a failed backup, and removes its files. Threads that still write have them open.
fn clean(persist: &Arc<Persist>) {
    let log = persist.backup.state.lock().log.clone();
    if let Some(log) = log {
        // It may have begun after the failure was marked.
        log.is_abandoned.store(true, Release);
        log.dismiss(persist);
    }
    if let Err(reason) = remove_files(persist) {
        log::warn!("{}", reason);
    }
}

fn remove_files(persist: &Persist) -> Result<(), String> {
    let (folder, name) = {
        let state = persist.backup.state.lock();
        (state.folder.clone(), state.name.clone())
    };
    Directory::remove_files(&folder, name.as_os_str())
        .map_err(|error| format!("Cannot remove the backup in {}: {error}", folder.display()))
}
