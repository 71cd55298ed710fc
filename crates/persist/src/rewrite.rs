//! New bases for the append-only file: BGREWRITEAOF, growth, and turning it on.

use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::Instant;

use evenkeel_rdb::Version;
use evenkeel_rdb::aof::{Directory, Since};
use evenkeel_store::{SlotGuard, ThreadContext};
use parking_lot::Mutex;

use super::Persist;
use super::direct_writer::{Cache, DirectWriter};
use super::lock::What;
use super::recorder::{Commands, Records};
use super::{PersistJob, Running, aof, save_points, snapshot};
use evenkeel_config::Settings;
use evenkeel_runtime::clock;
use evenkeel_runtime::threads;

/// How commands are logged behind the base that is about to be written.
enum Log {
    /// The append-only file exists, and goes on in a new incremental file.
    GoesOn,
    /// The append-only file begins with the base, and goes on in this file.
    Begins(aof::LogFile),
    /// Not at all.
    None,
}

/// Begins a rewrite on a thread of its own. Returns false if another job is running.
pub fn begin(persist: &Arc<Persist>) -> bool {
    if !persist.claim(PersistJob::Base) {
        return false;
    }
    let (on_thread, host) = (persist.clone(), persist.host());
    let thread = threads::named("snapshot");
    let work = move || {
        let _host = host;
        run(&on_thread)
    };
    if let Err(error) = thread.spawn(work) {
        // A log that is to be left is, some time.
        if end(persist, Err(format!("cannot start a thread: {error}"))).leaves_log {
            release(persist);
        }
    }
    true
}

/// Turns the append-only file on or off as the settings say. Long work goes to threads of its own.
pub fn follow_soon(persist: &Arc<Persist>) {
    let (wanted, is_on) = (persist.core.settings().appendonly, persist.aof.is_on());
    aof::refuse_writes(persist);
    // An append-only file that is being turned off does not come back: a new file begins behind its end, even
    // if the thread that turns it off has hardly begun. A client that waits for the rewrite sees it from now
    // on.
    if wanted && persist.schedule_behind_leaving() {
        return;
    }
    if wanted && !persist.aof.logs() {
        if !persist.has_all_data() {
            return; // begun when the data are whole
        }
        // The running rewrite may be the base that is wanted.
        let is_busy = |job| persist.state().all().any(|running| running.is(job));
        if !begin(persist) && !is_busy(PersistJob::Base) {
            persist.schedule_rewrite();
        }
        return;
    }
    if wanted || !is_on {
        return;
    }
    if persist.cancel_rewrite() {
        log::info!("Killing running AOF rewrite child: the append-only file is being disabled.");
    }
    if persist.claim(PersistJob::Log) {
        if !persist.aof.is_on() {
            return release(persist); // another thread was faster
        }
        let (on_thread, host) = (persist.clone(), persist.host());
        let thread = threads::named("aof-off");
        let work = move || {
            let _host = host;
            leave_and_release(&on_thread);
        };
        if thread.spawn(work).is_err() {
            release(persist); // tried again
        }
    }
}

/// Releases the claim without a result.
pub fn release(persist: &Persist) {
    let mut state = persist.state.lock();
    let running = state.running.take();
    state.save_owed |= running.is_some_and(|running| running.is_owed);
    state.on_job_end();
    drop(state);
    persist.ended.notify_all();
}

/// Ends the claimed append-only file, and releases the claim.
fn leave_and_release(persist: &Arc<Persist>) {
    behind_walks(persist, |guard| leave(persist, guard));
    persist.end_walk(PersistJob::Log, 0);
    end_log(persist);
    release(persist);
    // It may have been turned on meanwhile.
    follow_soon(persist);
}

/// Turns the append-only file off. All logged commands are on disk on return. No other thread writes a base.
pub fn turn_off(persist: &Persist) {
    behind_walks(persist, |guard| leave(persist, guard));
    end_log(persist);
}

/// Ends the logging of commands. The caller holds all locks, and calls [`end_log`] after their release.
pub fn leave(persist: &Persist, guard: &mut SlotGuard<'_>) {
    persist.aof.set_left();
    guard.dismiss(aof::place(persist));
}

/// Waits until all logged commands are on disk, and ends the append-only file.
pub fn end_log(persist: &Persist) {
    close_log(persist);
    log::info!("The append-only file is disabled.");
}

fn close_log(persist: &Persist) {
    aof::stop(persist);
    aof::vacate(persist);
    leave_directory(persist);
}

/// Syncs the append-only file from the calling thread, which waits for the disk as long as that takes: a sync
/// soon afterwards has little to do.
///
/// # Errors
/// The disk refuses.
pub fn sync_ahead(persist: &Persist) -> io::Result<()> {
    let last = {
        let directory = persist.aof.directory.lock();
        let parts = directory.as_ref().map(Directory::parts).transpose();
        parts.map_err(|error| io::Error::other(error.to_string()))?.and_then(|mut parts| parts.pop())
    };
    last.map_or(Ok(()), |part| File::open(part.path)?.sync_data())
}

/// Leaves the append-only file to another process, with all logged commands on disk on return. Nothing is
/// written meanwhile, and no job runs.
pub fn release_log(persist: &Persist) {
    behind_walks(persist, |guard| leave(persist, guard));
    close_log(persist);
}

/// Goes on with the append-only file that another process has released, whose data this process has.
pub fn take_log_over(persist: &Arc<Persist>) -> Result<(), String> {
    let settings = persist.core.settings();
    hold(persist, &settings).map_err(|error| error.to_string())?;
    let directory = open(&settings).map_err(|error| error.to_string())?;
    start_logging(persist, directory, true)
}

/// Drops the directory, to which nothing is appended any more. The settings then name the next directory.
fn leave_directory(persist: &Persist) {
    if let Some(directory) = persist.aof.directory.lock().take() {
        directory.drop_drafts(); // they may be the reason why the disk is full
    }
}

/// Calls `f` with all locks held. For callers that need the snapshot thread's context, and wait for a walk.
pub fn behind_walks<R>(persist: &Persist, f: impl FnOnce(&mut SlotGuard<'_>) -> R) -> R {
    with_all_held(persist, &persist.ctx, f)
}

/// Like [`behind_walks`]; if `f` succeeds, everything is held as long as the process lives.
pub fn behind_walks_for_good<E>(
    persist: &Persist,
    f: impl FnOnce(&mut SlotGuard<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let (mut ctx, keyspace) = (persist.ctx.lock(), &persist.core.keyspace);
    keyspace.enter(&mut ctx);
    let mut guard = keyspace.hold_all(&mut ctx);
    let result = f(&mut guard);
    if result.is_ok() {
        std::mem::forget(guard);
        std::mem::forget(ctx);
        return result;
    }
    drop(guard);
    keyspace.leave(&mut ctx);
    result
}

/// Calls `f` with all locks held.
pub(super) fn with_all_held<R>(
    persist: &Persist,
    ctx: &Mutex<ThreadContext>,
    f: impl FnOnce(&mut SlotGuard<'_>) -> R,
) -> R {
    let (mut ctx, keyspace) = (ctx.lock(), &persist.core.keyspace);
    keyspace.enter(&mut ctx);
    let result = f(&mut keyspace.hold_all(&mut ctx));
    keyspace.leave(&mut ctx);
    result
}

/// Begins to log behind the data loaded from the directory or, if nothing was found, with a base of the
/// present data. No other thread writes yet.
pub fn start_logging(persist: &Arc<Persist>, mut directory: Directory, found: bool) -> Result<(), String> {
    if !found {
        *persist.aof.directory.lock() = Some(directory);
        let begun = persist.claim(PersistJob::Base) && run(persist);
        return begun
            .then_some(())
            .ok_or("the base of the append-only file cannot be written, see above".into());
    }
    let say = |error: &dyn std::fmt::Display| error.to_string();
    directory.adopt().map_err(|error| say(&error))?;
    remove_history(persist, &mut directory);
    let file = directory.resume().map_err(|error| say(&error))?;
    // The loaded bytes count as synced, but the previous server may not have synced them.
    file.sync_all().map_err(|error| say(&error))?;
    let file = aof::LogFile::open(file).map_err(|error| say(&error))?;
    let parts = directory.parts().map_err(|error| say(&error))?;
    let size = parts.iter().map(|part| part.size).sum();
    let metrics = &persist.aof.metrics;
    metrics.size.store(size, Relaxed);
    metrics.base_size.store(size, Relaxed);
    *persist.aof.own.lock() = Some(directory.manifest_path());
    *persist.aof.directory.lock() = Some(directory);
    let reader = behind_walks(persist, |guard| guard.join_log());
    let number = reader.last();
    if let Err(error) = aof::start(persist, file, reader) {
        behind_walks(persist, |guard| aof::forget(persist, guard));
        return Err(say(&error));
    }
    // Without a base, the incremental files are all the data.
    persist.aof.set_base(number);
    Ok(())
}

/// Begins to log with a base of the present data. The files of the directory, which were not loaded, are set
/// aside. No other thread writes yet.
pub fn start_anew(persist: &Arc<Persist>, mut directory: Directory) -> Result<(), String> {
    pass_over_parts(&mut directory).map_err(|error| error.to_string())?;
    start_logging(persist, directory, false)
}

fn run(persist: &Arc<Persist>) -> bool {
    let (began, was_on) = (Instant::now(), persist.aof.is_on());
    log::info!("Background append only file rewriting started");
    let written = catch_unwind(AssertUnwindSafe(|| write(persist)))
        .unwrap_or_else(|_| Err("a panic, see the server log".into()));
    if written.is_err() && !was_on && persist.aof.is_on() {
        turn_off(persist); // an append-only file without a base is unusable
    }
    if !persist.aof.is_on() {
        leave_directory(persist);
    } else if written.is_err()
        && let Some(directory) = &*persist.aof.directory.lock()
    {
        directory.drop_drafts();
    }
    if written.is_ok() {
        log::info!("Background AOF rewrite finished successfully in {:.3} s", began.elapsed().as_secs_f64());
    }
    let ended = end(persist, written);
    if ended.leaves_log {
        leave_and_release(persist);
    }
    ended.ok
}

/// The result of a rewrite.
struct Ended {
    ok: bool,
    /// Whether the append-only file was turned off meanwhile, and this thread is to end it. The job is
    /// claimed without a gap, so no other job can run and finish first.
    leaves_log: bool,
}

fn end(persist: &Persist, written: Result<(), String>) -> Ended {
    let ok = written.is_ok();
    if let Err(reason) = written {
        log::warn!("Background AOF rewrite failed: {reason}");
    }
    let mut state = persist.state.lock();
    let running = state.running.take().expect("it was claimed");
    // A thread that turns it off sets this before it looks for running jobs.
    let leaves_log = !persist.core.settings().appendonly && persist.aof.is_on();
    state.running = leaves_log.then(|| Running::now(PersistJob::Log, false));
    state.last_rewrite_copied = running.copied;
    state.last_rewrite_took_s = Some((clock::unix_ms() / 1000).saturating_sub(running.since_s));
    if ok {
        state.rewrites += 1;
        state.rewrites_failed = 0;
    } else if !persist.is_cancelled(PersistJob::Base) {
        state.rewrites_failed += 1;
        if let Some(minutes) = save_points::minutes_limited(state.rewrites_failed) {
            log::warn!(
                "Background AOF rewrite has repeatedly failed and triggered the limit, will retry in \
                 {minutes} minutes"
            );
        }
    }
    state.on_job_end();
    drop(state);
    persist.ended.notify_all();
    Ended { ok, leaves_log }
}

fn write(persist: &Arc<Persist>) -> Result<(), String> {
    let (settings, aof) = (persist.core.settings(), &persist.aof);
    let say = |error: &dyn std::fmt::Display| error.to_string();
    let (base, log) = {
        let mut directory = aof.directory.lock();
        let directory = match &mut *directory {
            // Whatever the settings are by now: the files, and the lock on them, are in this directory.
            Some(directory) => directory,
            none => {
                hold(persist, &settings).map_err(|error| say(&error))?;
                let mut directory = open(&settings).map_err(|error| say(&error))?;
                if aof.own.lock().as_ref() != Some(&directory.manifest_path()) {
                    pass_over_parts(&mut directory).map_err(|error| say(&error))?;
                }
                none.insert(directory)
            }
        };
        if let Some(path) = directory.pass_over_old_file() {
            log::warn!(
                "{} has the format before Redis 7 and was not loaded by this server. The file is kept \
                 unchanged and will not be used.",
                path.display()
            );
        }
        let base = directory.draft_base().map_err(|error| say(&error))?;
        let log = match (aof.is_on(), settings.appendonly) {
            (true, _) => Log::GoesOn,
            (false, true) => {
                let file = directory.draft_incremental().map_err(|error| say(&error))?;
                Log::Begins(aof::LogFile::open(file).map_err(|error| say(&error))?)
            }
            (false, false) => Log::None,
        };
        (base, log)
    };
    let folder = settings.dir.join(&settings.appenddirname);
    write_base(persist, &settings, &base, log).map_err(|error| format!("{}: {error}", folder.display()))
}

/// Sets the listed files aside if this server has not loaded them, since the base lacks their data.
fn pass_over_parts(directory: &mut Directory) -> Result<(), evenkeel_rdb::aof::Error> {
    let folder = directory.folder().display().to_string();
    if let Some(unused) = directory.pass_over_parts()? {
        log::warn!(
            "The append-only file in {folder} was not loaded by this server. Its files are kept unchanged, \
             and its manifest was renamed to {}: rename it back to load that data.",
            unused.display()
        );
    }
    Ok(())
}

/// Removes the files whose content is in the base, unless the settings leave that to the operator.
fn remove_history(persist: &Persist, directory: &mut Directory) {
    if !persist.core.settings().aof_disable_auto_gc
        && let Err(error) = directory.remove_history()
    {
        log::warn!("Cannot remove files that are no longer needed: {error}");
    }
}

/// Removes them now, on a thread of its own, if the settings allow it again.
pub fn collect_soon(persist: &Arc<Persist>) {
    let on_thread = persist.clone();
    let thread = threads::named("aof-gc");
    // Without a thread, the next rewrite removes them.
    let _ = thread.spawn(move || {
        if let Some(directory) = &mut *on_thread.aof.directory.lock() {
            remove_history(&on_thread, directory);
        }
    });
}

/// Locks the name of the append-only file against other servers, which may share the folder.
pub fn hold(persist: &Persist, settings: &Settings) -> io::Result<()> {
    let name = settings.appenddirname.join(&settings.appendfilename);
    persist.locks.hold(What::Log, &settings.dir, &name)
}

pub fn open(settings: &Settings) -> Result<Directory, evenkeel_rdb::aof::Error> {
    Directory::open(&settings.dir, settings.appenddirname.as_os_str(), settings.appendfilename.as_os_str())
}

fn write_base(persist: &Arc<Persist>, settings: &Arc<Settings>, base: &File, log: Log) -> io::Result<()> {
    let aof = &persist.aof;
    let (mut started, mut last) = (Ok(()), 0);
    let since = match log {
        Log::GoesOn => None,
        Log::Begins(_) => Some(Since::Draft),
        Log::None => Some(Since::Number(u64::MAX)),
    };
    let at_start = |guard: &mut SlotGuard<'_>| {
        match log {
            Log::GoesOn => {
                last = guard.keyspace().journal.last();
                aof.switch_behind(last);
            }
            Log::Begins(file) => {
                let reader = guard.join_log();
                last = reader.last();
                aof.metrics.size.store(0, Relaxed);
                started = aof::start(persist, file, reader).inspect_err(|_| aof::forget(persist, guard));
            }
            Log::None => {}
        }
        None
    };
    let is_snapshot = settings.aof_use_rdb_preamble;
    let writer = DirectWriter::new(persist, settings, base, Cache::Past, PersistJob::Base)?;
    let len = if is_snapshot {
        let records = Records::new(snapshot::open(writer, settings, Version::V10, true)?, settings.clone());
        snapshot::finish(
            snapshot::take(persist, settings, (PersistJob::Base, true), records, at_start)?,
            base,
        )?
    } else {
        let second = settings.aof_timestamp_enabled.then(|| clock::unix_ms() / 1000);
        snapshot::take(persist, settings, (PersistJob::Base, true), Commands::new(writer, second), at_start)?
    };
    started?;
    base.sync_all()?;
    let since = match since {
        Some(since) => since,
        None => Since::Number(
            aof.wait_for_switch(last, || persist.is_cancelled(PersistJob::Base)).map_err(io::Error::other)?,
        ),
    };
    let mut directory = aof.directory.lock();
    let directory = directory.as_mut().expect("the draft was made in it");
    directory.install(is_snapshot, since).map_err(|error| io::Error::other(error.to_string()))?;
    *aof.own.lock() = Some(directory.manifest_path());
    aof.set_base(last);
    remove_history(persist, directory);
    let parts = directory.parts().map_err(|error| io::Error::other(error.to_string()))?;
    let size = parts.iter().map(|part| part.size).sum::<u64>().max(len);
    aof.metrics.size.store(size, Relaxed);
    aof.metrics.base_size.store(size, Relaxed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Disk;

    /// A client that waits for the end of all rewrites also waits for the coming rewrite.
    #[test]
    fn turning_on_an_aof_being_left_is_reported() {
        let persist = &Disk::new(&["--appendonly", "yes"]);
        let await_log = || persist.wait_until("a log", || persist.aof.is_on() && persist.state().is_idle());
        follow_soon(persist);
        await_log();
        assert!(persist.claim(PersistJob::Log));
        // The thread that turns it off has not begun.
        assert!(persist.aof.logs());
        follow_soon(persist);
        assert!(persist.state().is_about_to_rewrite());
        leave_and_release(persist);
        await_log();
        assert!(!persist.state().is_about_to_rewrite());
        turn_off(persist);
    }
}
