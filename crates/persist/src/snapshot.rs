//! Snapshots in RDB files: BGSAVE, SAVE, save points, and the last snapshot before the end.
//!
//! A thread writes a temporary file, syncs it, and renames it, so a reader of the directory finds either the
//! old snapshot or the new. If a step before the rename fails, the old snapshot stays, the new file is
//! removed, and the server log has the reason.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use evenkeel_rdb::Version;
use evenkeel_rdb::file::{FileWriter, Finished, Origin};
use evenkeel_store::snapshot::Walk;
use evenkeel_store::{SlotGuard, SlotSet, ThreadContext, memory};
use parking_lot::MutexGuard;

use super::Persist;
use super::direct_writer::{Cache, DirectWriter};
use super::jobs::{START_TIMEOUT, STUCK};
use super::lock::What;
use super::pace::{GivesWay, Pace, Paced, SLEEP_MAX, key_delay};
use super::recorder::{Form, Recorder, Records, Sizes};
use super::{CANCEL_POLL_INTERVAL, PersistJob, Progress, Running, cancelled};
use crate::position::Position;
use evenkeel_config::{Settings, cause};
use evenkeel_runtime::clock;
use evenkeel_runtime::threads;

/// The version of Redis that files name as their writer: the version whose formats they have.
const REDIS_VERSION: &str = "7.0.15";

/// The default of `dbfilename`.
const USUAL_NAME: &str = "dump.rdb";

/// Another job is running, so a snapshot cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// A snapshot that has been begun.
pub struct Begun(Receiver<()>);

impl Begun {
    /// Waits until the snapshot's moment has come or it has failed, at most [`START_TIMEOUT`]: a file is
    /// opened before that moment, and its disk may hang. The caller is not in the gate.
    pub fn wait(self) {
        // Nothing is ever sent: the sender is dropped.
        let _ = self.0.recv_timeout(START_TIMEOUT);
    }
}

/// Begins a snapshot into the configured file, on a thread of its own.
pub fn begin(persist: &Arc<Persist>) -> Result<Begun, Busy> {
    if !persist.claim(PersistJob::Snapshot) {
        return Err(Busy);
    }
    let (moment, begun) = channel();
    spawn(persist, |persist| _ = run(persist, Some(moment), Next::Nothing));
    Ok(Begun(begun))
}

/// Runs the claimed snapshot on a thread of its own. If there can be no thread, the snapshot has failed.
fn spawn(persist: &Arc<Persist>, run: impl FnOnce(&Arc<Persist>) + Send + 'static) {
    let (on_thread, host) = (persist.clone(), persist.host());
    let thread = threads::named("snapshot");
    let work = move || {
        let _host = host;
        run(&on_thread);
    };
    if let Err(error) = thread.spawn(work) {
        log::warn!("Can't save in background: cannot start a thread: {error}");
        end(persist, None, Next::Nothing);
    }
}

/// The step that follows a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Nothing,
    /// The end of the server.
    End,
    /// Another job, claimed without a gap.
    PersistJob(PersistJob),
}

/// Takes a snapshot on this thread, once the running jobs have ended. If it fails, writes are refused as the
/// settings say. If the server ends meanwhile, no snapshot is taken.
///
/// # Errors
/// The reason why there is no snapshot.
pub fn save(persist: &Arc<Persist>) -> Result<(), String> {
    if !persist.claim_in_turn_unless(PersistJob::Snapshot, || ends(persist)) {
        return Err("The server is shutting down".into());
    }
    run(persist, None, Next::Nothing)
}

/// Whether the server ends. A thread that waits for its turn would then take a useless snapshot.
pub(super) fn ends(persist: &Persist) -> bool {
    persist.ending.is_under_way() || persist.core.stopping.load(Acquire)
}

/// Takes a snapshot on this thread, and claims `next` directly behind it, whatever the result.
pub(super) fn save_before(persist: &Arc<Persist>, next: PersistJob) -> Result<(), String> {
    persist.claim_in_turn(PersistJob::Snapshot);
    run(persist, None, Next::PersistJob(next))
}

/// Takes the last snapshot, as long as the end of the server is not aborted. If it fails, the server goes on
/// as before. Incomplete data, left by a failed load that was waited for, are saved only if the snapshot
/// `is_asked` for. A snapshot that `is_only_owed` is given up without progress for [`STUCK`]: its disk hangs,
/// or a script blocks the gate.
///
/// # Errors
/// The reason why there is no snapshot.
pub(super) fn save_last(persist: &Arc<Persist>, is_asked: bool, is_only_owed: bool) -> Result<(), String> {
    const ABANDONED: &str = "The snapshot was abandoned";
    let progress = &persist.progress;
    let progress_sum = || progress.walked.load(Relaxed) + progress.bytes.load(Relaxed);
    let (mut last, mut since) = (progress_sum(), Instant::now());
    let mut is_cancelled = || {
        let now = progress_sum();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        persist.ending.is_aborted() || is_only_owed && since.elapsed() > STUCK
    };
    if !persist.claim_in_turn_unless(PersistJob::Snapshot, &mut is_cancelled) {
        return Err(ABANDONED.into());
    }
    if !is_asked && persist.is_incomplete.load(Acquire) {
        super::rewrite::release(persist);
        return Ok(());
    }
    let (sender, receiver) = channel();
    spawn(persist, move |persist| _ = sender.send(run(persist, None, Next::End)));
    loop {
        match receiver.recv_timeout(CANCEL_POLL_INTERVAL) {
            Ok(saved) => return saved,
            Err(RecvTimeoutError::Timeout) if !is_cancelled() => {}
            Err(_) => return Err(ABANDONED.into()),
        }
    }
}

/// Takes the snapshot that FLUSHALL owes, on this thread. If a long job is running (a base, a full sync), the
/// snapshot is taken after it.
pub fn pay(persist: &Arc<Persist>) {
    while !ends(persist) && persist.wait_to_pay() {
        if persist.claim_alone(PersistJob::Snapshot) {
            let _ = run(persist, None, Next::Nothing); // logged, and it stays owed
            return;
        }
    }
}

/// Takes the claimed snapshot. `moment` is dropped at the point in time that the snapshot shows.
fn run(persist: &Arc<Persist>, moment: Option<Sender<()>>, next: Next) -> Result<(), String> {
    let settings = persist.core.settings();
    let path = settings.dir.join(&settings.dbfilename);
    log::info!("Background saving started");
    // A value that cannot be written must not cost all other values.
    let result = catch_unwind(AssertUnwindSafe(|| write_file(persist, &settings, &path, moment)))
        .unwrap_or_else(|_| Err(io::Error::other("a panic, see the server log")));
    let changes = match result {
        Ok(Taken { changes, bytes, took }) => {
            log::info!("DB saved on disk: {bytes} bytes in {:.3} s", took.as_secs_f64());
            Ok(changes)
        }
        Err(error) => {
            let reason = format!("Failed saving the DB to {}: {}", path.display(), cause(&error));
            log::warn!("{}", reason.as_str());
            Err(reason)
        }
    };
    end(persist, changes.as_ref().ok().copied(), next);
    changes.map(drop)
}

/// Records the end of a snapshot, which contains `changes` writes if it succeeded.
fn end(persist: &Persist, changes: Option<u64>, next: Next) {
    let now_s = clock::unix_ms() / 1000;
    let mut state = persist.state.lock();
    let running = state.running.take().expect("it was begun");
    if let Next::PersistJob(job) = next {
        state.running = Some(Running::now(job, true));
    }
    state.last_took_s = Some(now_s.saturating_sub(running.since_s));
    state.last_copied = running.copied;
    state.save_owed |= running.is_owed && changes.is_none();
    if let Some(changes) = changes {
        state.saves += 1;
        state.last_save_s = now_s;
        state.changes_at_save = changes;
        state.changes_before_start = 0;
    }
    if changes.is_some() || next != Next::End && !persist.is_cancelled(PersistJob::Snapshot) {
        state.last_ok = changes.is_some();
    }
    state.on_job_end();
    drop(state);
    persist.follow(&persist.core.settings());
    persist.ended.notify_all();
}

/// The present limit in MB/s, and the delay in seconds for each key. The last snapshot, for which writers
/// wait, has no limit.
fn limits(persist: &Persist) -> (u32, f64) {
    let settings = persist.core.settings();
    let mbps = if persist.ending.is_under_way() { 0 } else { settings.snapshot_max_mbps };
    (mbps, key_delay(settings.rdb_key_save_delay))
}

/// A snapshot that has been taken.
struct Taken {
    changes: u64,
    bytes: u64,
    took: Duration,
}

fn write_file(
    persist: &Arc<Persist>,
    settings: &Arc<Settings>,
    path: &Path,
    moment: Option<Sender<()>>,
) -> io::Result<Taken> {
    let began = Instant::now();
    persist.locks.hold(What::Snapshot, &settings.dir, &settings.dbfilename)?;
    let beside = Beside::create(path)?;
    // A client that waits for the whole file may start the next server as soon as it is there.
    let cache = if moment.is_some() { Cache::Past } else { Cache::Through };
    let writer = DirectWriter::new(persist, settings, &beside.file, cache, PersistJob::Snapshot)?;
    let file = open(writer, settings, Version::V10, false)?;
    let mut changes = 0;
    let records = Records::new(file, settings.clone());
    let file = take(persist, settings, (PersistJob::Snapshot, true), records, |guard| {
        changes = guard.keyspace().total().asked();
        drop(moment);
        let is_last = persist.ending.is_under_way();
        let last = is_last.then(|| persist.host().finish_stream(guard)).flatten();
        last.or_else(|| persist.host().replica_position())
    })?;
    let len = finish(file, &beside.file)?;
    beside.install(path)?;
    Ok(Taken { changes, bytes: len, took: began.elapsed() })
}

/// Writes the header of a file, for readers of this version.
pub fn open<W: Write>(
    out: W,
    settings: &Settings,
    version: Version,
    aof_base: bool,
) -> io::Result<FileWriter<W>> {
    let origin = Origin {
        redis_version: REDIS_VERSION,
        created: clock::unix_ms() / 1000,
        used_memory: memory::used() as u64,
        aof_base,
        replication: None,
    };
    let mut file = FileWriter::new(out, version, settings.rdbchecksum)?;
    file.origin(&origin)?;
    Ok(file)
}

/// Writes the end of a file, and its header again if that has changed. Returns the length in bytes.
pub fn finish(file: FileWriter<DirectWriter>, mut disk: &File) -> io::Result<u64> {
    let Finished { len, header, .. } = file.finish()?;
    if let Some(header) = header {
        disk.seek(io::SeekFrom::Start(0))?;
        disk.write_all(&header)?;
    }
    Ok(len)
}

/// Takes a snapshot for a job, written in `form`. `at_start` is called with all locks held, at the point in
/// time that the snapshot shows, and returns its position in a replication stream. `to_disk`: the form's
/// destination is a disk.
pub fn take<F: Form>(
    persist: &Arc<Persist>,
    settings: &Arc<Settings>,
    (job, to_disk): (PersistJob, bool),
    mut form: F,
    at_start: impl FnOnce(&mut SlotGuard<'_>) -> Option<Position>,
) -> io::Result<F::Whole> {
    let mut ctx = snapshot_context(persist, job)?;
    let (keyspace, progress) = (&persist.core.keyspace, &persist.progress);
    ctx.now_ms = clock::unix_ms();
    // The replication feed gives up slow replicas by itself.
    let waiting_max = if to_disk { settings.snapshot_buffer_limit as usize } else { usize::MAX };
    let mut libraries = Arc::default();
    let slots = form.slots().cloned().unwrap_or_else(SlotSet::all);
    let (mut walk, sizes, position) = begin_walk(persist, (&slots, waiting_max), &mut ctx, |guard| {
        libraries = persist.scripts.libraries();
        at_start(guard)
    });
    // Not earlier: threads that `begin_walk` starts keep the normal time slice.
    let _gives_way = GivesWay::new();
    let positioned = position.map_or(Ok(()), |position| form.position(&position));
    let now_ms = ctx.now_ms;
    let written = libraries.iter().try_for_each(|library| form.library(&library.code));
    let recorder =
        || Recorder::new(form, settings.clone(), (progress, persist.cancel_flag(job)), now_ms, sizes);
    let mut recorder = Paced::new(memory::uncounted(recorder), Pace::new(), keyspace, progress);
    // The walk goes to its end even if it is cancelled: all entries must have the same epoch again.
    let mut cause = positioned.and(written).err();
    while !walk.is_done() {
        if cause.is_some() {
            let flushed = walk.step(keyspace, &mut ctx, &mut Nowhere);
            persist.core.lazy_free.free_if_any(flushed);
            continue;
        }
        let stepped = catch_unwind(AssertUnwindSafe(|| {
            let flushed = walk.step(keyspace, &mut ctx, &mut recorder);
            persist.core.lazy_free.free_if_any(flushed);
            while recorder.sink.encode() {
                recorder.rest();
                persist.core.lazy_free.free_if_any(walk.take_kept(keyspace, &mut recorder));
            }
            progress.walked.store((walk.progress() * 10_000.0) as u64, Relaxed);
            recorder.rest();
            while recorder.is_ahead(limits(persist)) && !persist.is_cancelled(job) {
                std::thread::sleep(SLEEP_MAX);
                persist.core.lazy_free.free_if_any(walk.take_kept(keyspace, &mut recorder.sink));
            }
        }));
        if stepped.is_err() {
            keyspace.leave_after_panic(&mut ctx);
            cause = Some(io::Error::other("a panic, see the server log"));
            continue;
        }
        if walk.is_lost(keyspace) {
            cause = Some(overrun(persist, settings));
        } else if persist.is_cancelled(job) {
            cause = Some(cancelled());
        } else if let Some(error) = recorder.sink.error() {
            cause = Some(io::Error::new(error.kind(), error.to_string()));
        }
    }
    keyspace.enter(&mut ctx);
    let rest = keyspace.hold_all(&mut ctx).end_snapshot(walk);
    keyspace.leave(&mut ctx);
    if cause.is_none() && rest.is_lost() {
        cause = Some(overrun(persist, settings));
    }
    let flushed = match cause {
        Some(_) => rest.finish(keyspace, &mut Nowhere),
        None => {
            let flushed = rest.finish(keyspace, &mut recorder.sink);
            while recorder.sink.encode() {}
            flushed
        }
    };
    persist.core.lazy_free.free_if_any(flushed);
    // Only disk work is left, which no other job has to wait for.
    persist.end_walk(job, keyspace.copied_for_snapshot() as u64);
    drop(ctx);
    let finished = match cause {
        Some(error) => {
            memory::uncounted(|| drop(recorder));
            Err(error)
        }
        None => memory::uncounted(|| recorder.sink.finish()),
    };
    persist.unless_cancelled(job, finished)
}

/// The context of the thread that walks through the keyspace, once no other thread does. Replicas do not wait
/// for a walk whose disk hangs.
///
/// # Errors
/// The job is cancelled.
fn snapshot_context(persist: &Persist, job: PersistJob) -> io::Result<MutexGuard<'_, ThreadContext>> {
    loop {
        if let Some(ctx) = persist.ctx.try_lock_for(CANCEL_POLL_INTERVAL) {
            persist.begin_walk(job);
            return Ok(ctx);
        }
        if persist.is_cancelled(job) {
            return Err(cancelled());
        }
        if job == PersistJob::Sync {
            give_way(persist);
        }
    }
}

/// Cancels another walk if its disk hangs, since replicas wait for a full sync.
pub fn give_way(persist: &Persist) {
    if persist.cancel_stuck() {
        log::warn!(
            "The snapshot or rewrite in progress is abandoned and will be retried: its disk is blocked, and \
             replicas wait for a full sync."
        );
    }
}

/// The error of a snapshot that is lost because its file takes less than writers hand over.
#[cold]
pub(super) fn overrun(persist: &Persist, settings: &Settings) -> io::Error {
    persist.progress.overruns.fetch_add(1, Relaxed);
    io::Error::other(format!(
        "more than {} bytes of overwritten data were waiting for the disk (snapshot-buffer-limit), which is \
         too slow or blocked",
        settings.snapshot_buffer_limit
    ))
}

fn begin_walk(
    persist: &Persist,
    (slots, waiting_max): (&SlotSet, usize),
    ctx: &mut ThreadContext,
    at_start: impl FnOnce(&mut SlotGuard<'_>) -> Option<Position>,
) -> (Walk, Sizes, Option<Position>) {
    let keyspace = &persist.core.keyspace;
    keyspace.enter(ctx);
    let mut guard = keyspace.hold_all(ctx);
    let sizes = (0..keyspace.databases()).map(|db| {
        let keys = keyspace.len(guard.ctx, db) as u64;
        (keys > 0).then(|| (keys, keyspace.timed_len(guard.ctx, db) as u64))
    });
    let sizes: Sizes = sizes.collect();
    persist.progress.begin(sizes.iter().flatten().map(|(keys, _)| keys).sum());
    let position = at_start(&mut guard);
    let walk = guard.begin_snapshot_of(slots, waiting_max);
    drop(guard);
    keyspace.leave(ctx);
    (walk, sizes, position)
}

/// The sink for the rest of a cancelled snapshot.
struct Nowhere;

impl evenkeel_store::snapshot::Sink for Nowhere {
    fn take(&mut self, _: u32, _: evenkeel_store::View<'_>) {}

    fn share(&mut self, _: u32, _: evenkeel_store::View<'_>) -> usize {
        0
    }
}

impl Progress {
    fn begin(&self, keys: u64) {
        self.keys.store(0, Relaxed);
        self.keys_total.store(keys, Relaxed);
        self.bytes.store(0, Relaxed);
        self.walked.store(0, Relaxed);
        self.since_ms.store(clock::unix_ms(), Relaxed);
    }
}

/// A file that replaces another file once it is complete, and is removed otherwise.
struct Beside {
    file: File,
    path: PathBuf,
    installed: bool,
}

/// Removes the unfinished file in the configured folder, when the process ends without waiting for it.
pub fn remove_unfinished(settings: &Settings) {
    let target = settings.dir.join(&settings.dbfilename);
    let _ = fs::remove_file(unfinished(&target)); // there is none nearly always
}

/// The path of the unfinished file for `target`: Redis' name for it, extended by the target's name if that is
/// not the default. Servers that share a folder have locked targets of their own, but in containers their
/// process ids may be equal.
fn unfinished(target: &Path) -> PathBuf {
    let process = std::process::id();
    let mut name = OsString::from(format!("temp-{process}"));
    match target.file_name() {
        Some(of) if of != USUAL_NAME => {
            name.push("-");
            name.push(of);
        }
        _ => name.push(".rdb"),
    }
    target.with_file_name(name)
}

impl Beside {
    fn create(target: &Path) -> io::Result<Beside> {
        let path = unfinished(target);
        // A leftover is not continued: a thread that hung on its disk may still write to it.
        if fs::symlink_metadata(&path).is_ok_and(|there| there.is_file()) {
            fs::remove_file(&path)?;
        }
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
        Ok(Beside { file, path, installed: false })
    }

    /// Syncs the file and renames it to `target`.
    fn install(mut self, target: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, target)?;
        self.installed = true;
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if !self.installed {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that hung on its disk during a cancelled attempt writes to the old file, whenever the disk
    /// goes on.
    #[test]
    fn leftovers_of_another_attempt_are_not_overwritten() {
        use std::os::unix::fs::FileExt;
        let folder = crate::testing::folder("beside");
        let target = folder.join(USUAL_NAME);
        let left = File::create(unfinished(&target)).expect("a folder to write to");
        let beside = Beside::create(&target).expect("a folder to write to");
        beside.file.write_all_at(b"new", 0).expect("it takes it");
        left.write_all_at(b"what hung", 0).expect("it takes it");
        beside.install(&target).expect("it can be renamed");
        assert_eq!(fs::read(&target).expect("it is there"), b"new");
        fs::remove_dir_all(folder).expect("it is ours");
    }

    /// The sync was begun before the other job had come to its walk.
    #[test]
    fn a_hung_walk_yields_to_a_full_sync() {
        let persist = crate::testing::Disk::new(&[]);
        assert!(persist.claim(PersistJob::Snapshot));
        persist.state.lock().sync = Some(Running::now(PersistJob::Sync, false));
        let walker = snapshot_context(&persist, PersistJob::Snapshot).expect("nobody else walks");
        persist.begin_wait(PersistJob::Snapshot);
        *persist.disk_since.lock() = Instant::now().checked_sub(super::super::jobs::STUCK);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| snapshot_context(&persist, PersistJob::Sync).is_ok());
            persist.wait_until("it is given up", || persist.is_cancelled(PersistJob::Snapshot));
            persist.end_walk(PersistJob::Snapshot, 0);
            drop(walker);
            assert!(waiter.join().expect("it gets the seat"));
            let _walker = persist.ctx.lock();
            let waiter = scope.spawn(|| snapshot_context(&persist, PersistJob::Sync).is_ok());
            persist.cancel_sync();
            assert!(!waiter.join().expect("nobody wants it any more"));
        });
        persist.end_sync();
        end(&persist, None, Next::Nothing);
    }

    /// The first name is known to Redis' own tests and to operators' scripts.
    #[test]
    fn temp_files_are_named_by_process_and_target() {
        let process = std::process::id();
        assert_eq!(unfinished(Path::new("/x/dump.rdb")), PathBuf::from(format!("/x/temp-{process}.rdb")));
        assert_eq!(unfinished(Path::new("other.rdb")), PathBuf::from(format!("temp-{process}-other.rdb")));
        let settings = Settings::default();
        assert_eq!(settings.dbfilename, Path::new(USUAL_NAME));
    }
}
