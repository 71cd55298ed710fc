//! The end of the server: replicas catch up, a last snapshot is taken if configured, and all threads stop.
//!
//! A single thread carries it out, whichever client or signal asks. Writes wait meanwhile. Until the last
//! step the server may turn out to stay: a client aborts the end, or the snapshot fails. Then writes go on,
//! and all clients that asked get an error. That also holds if the snapshot's disk hangs: a thread of its own
//! takes the snapshot, and is left to its disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::jobs::STUCK;
use super::snapshot;
use super::{EndStage, Persist};
use evenkeel_client::clients::ClientInfo;
use evenkeel_client::waiting::Resumed;
use evenkeel_command::Id;
use evenkeel_command::error::Error;
use evenkeel_command::reply::Reply;
use evenkeel_config::ShutdownOptions;
use evenkeel_config::cause;
use evenkeel_core::pause::Pauser;
use evenkeel_runtime::clock;
use evenkeel_runtime::threads;

/// The operator's way out if the server does not end because it cannot save.
const WITHOUT: &str = "SHUTDOWN NOSAVE stops the server without a snapshot";

/// The state of the end, shared by all threads.
#[derive(Default)]
pub struct Ending {
    stage: Mutex<Stage>,
    is_under_way: AtomicBool,
    is_aborted: AtomicBool,
    is_certain: AtomicBool,
    /// DEBUG PAUSE-CRON: an end that a signal has begun does nothing until this is false again.
    pub is_delayed: AtomicBool,
    /// The end of the wait for replicas, in milliseconds since the Unix epoch; zero: no wait.
    until_ms: AtomicU64,
}

#[derive(Default)]
enum Stage {
    #[default]
    None,
    /// The end has begun; these clients wait for an error reply.
    Begun(Vec<Asker>),
    /// The end can no longer be stopped.
    Certain,
}

/// A client that waits for the end, and gets a reply only if the server stays.
pub struct Asker {
    pub client: Arc<ClientInfo>,
    /// The number of its wait.
    pub number: u64,
    /// The command that it waits in.
    pub id: Id,
    pub resp3: bool,
}

impl Ending {
    /// Whether the end has begun.
    pub fn is_under_way(&self) -> bool {
        self.is_under_way.load(Acquire)
    }

    /// The remaining time of the wait for replicas, if there is such a wait.
    pub fn waits_ms(&self, now_ms: u64) -> Option<u64> {
        self.until_ms.load(Relaxed).checked_sub(now_ms).filter(|ms| *ms > 0)
    }

    /// Whether the end can no longer be stopped. It needs the gate closed, so a thread that keeps the gate
    /// open for long leaves it.
    pub fn is_certain(&self) -> bool {
        self.is_certain.load(Acquire)
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.is_aborted.load(Acquire)
    }

    /// Passes the point of no return. Returns false if the end was aborted before.
    fn make_certain(&self) -> bool {
        let mut stage = self.stage.lock();
        let continues = !self.is_aborted();
        if continues {
            *stage = Stage::Certain;
            self.is_certain.store(true, Release);
        }
        continues
    }
}

/// Begins the end. An end that has begun before is not changed, and the client waits for its result.
pub fn begin(persist: &Arc<Persist>, how: ShutdownOptions, who: Option<Asker>) {
    let (ending, by_client) = (&persist.ending, who.is_some());
    let mut stage = ending.stage.lock();
    match &mut *stage {
        Stage::Begun(askers) => return askers.extend(who),
        Stage::Certain => return,
        Stage::None => *stage = Stage::Begun(who.into_iter().collect()),
    }
    ending.is_aborted.store(false, Release);
    ending.is_under_way.store(true, Release);
    drop(stage);
    let (on_thread, host) = (persist.clone(), persist.host());
    let thread = threads::named("shutdown");
    let spawned = thread.spawn(move || {
        let _host = host;
        if let Err(reason) = end(&on_thread, how, by_client) {
            stay(&on_thread, &reason);
        }
    });
    if let Err(error) = spawned {
        let reason = format!("Cannot start the shutdown thread: {}", cause(&error));
        log::warn!("{}", reason.as_str());
        answer_askers(persist, &reason);
    }
}

/// Aborts an end that has begun. Returns false if there is none, or it can no longer be stopped.
pub fn abort(persist: &Persist) -> bool {
    let ending = &persist.ending;
    let stage = ending.stage.lock();
    let can_stop = matches!(&*stage, Stage::Begun(_));
    if can_stop && !ending.is_aborted.swap(true, AcqRel) {
        log::warn!("Shutdown manually aborted.");
        if ending.until_ms.load(Relaxed) == 0 {
            persist.cancel_save(); // the last snapshot
        }
    }
    can_stop
}

/// Ends the server, unless an obstacle is found.
///
/// # Errors
/// The obstacle; an empty text if the end is aborted.
fn end(persist: &Arc<Persist>, how: ShutdownOptions, by_client: bool) -> Result<(), String> {
    let (settings, persist) = (persist.core.settings(), &persist);
    persist.core.pause.begin(Pauser::End, false, u64::MAX, clock::unix_ms());
    while !by_client && persist.ending.is_delayed.load(Relaxed) && !persist.ending.is_aborted() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let is_loading = persist.is_loading();
    if !how.now && !is_loading {
        let timeout = Duration::from_secs(u64::from(settings.shutdown_timeout));
        persist.host().announce_end(EndStage::Begins { seconds: timeout.as_secs() });
        persist.ending.until_ms.store(clock::unix_ms() + timeout.as_millis() as u64, Relaxed);
        persist.host().wait_for_replicas(timeout, &|| persist.ending.is_aborted());
        persist.ending.until_ms.store(0, Relaxed);
    }
    // The settings may have changed during the wait for replicas.
    let settings = persist.core.settings();
    // The partial data of a failed full sync must not replace the data on disk.
    let is_whole = !is_loading && !persist.is_incomplete.load(Acquire);
    if !persist.ending.is_aborted() && settings.appendonly && is_whole && !persist.aof.is_complete() {
        // The data on disk are not complete, and may be very old. But the base cannot be completed either
        // while a script blocks all clients, and a script that has written can be ended only by this
        // shutdown.
        let waits_for_script = how.save == Some(false) && persist.scripts.busy.is_busy();
        if !how.force && !waits_for_script {
            log::warn!("Writing initial AOF, can't exit");
            return Err(
                "The initial append-only file is not complete. SHUTDOWN FORCE does not wait for it".into()
            );
        }
        log::warn!("Writing initial AOF. Exit anyway.");
    }
    // A client can repeat SHUTDOWN with FORCE, a service manager cannot.
    if by_client && !persist.ending.is_aborted() && persist.aof.fails() && !how.force {
        let cause = persist.aof.metrics.failure.lock().clone();
        log::warn!("Acknowledged writes cannot be written to the append-only file, can't exit.");
        return Err(format!(
            "The append-only file cannot be written: {cause}. SHUTDOWN FORCE discards the pending writes"
        ));
    }
    if !persist.ending.is_aborted() {
        persist.cancel_all();
    }
    // A client that asks for a snapshot gets a snapshot of the present data, even if they are incomplete.
    let (is_asked, is_due) = (how.save == Some(true), how.save.is_none() && !settings.save.is_empty());
    let saves = is_asked && !is_loading || is_due && is_whole;
    // The data before a FLUSHALL must not come back, whatever options are given: Redis saves before
    // FLUSHALL's reply.
    let may_pay = is_whole && !how.force && !persist.scripts.busy.is_busy();
    let pays = !saves && may_pay && persist.state().is_owing();
    if (saves || pays) && !persist.ending.is_aborted() {
        log::info!("Saving the final RDB snapshot before exiting.");
        let (saved, may_fail) = (snapshot::save_last(persist, is_asked, pays), pays || how.force);
        if let Err(reason) = saved
            && (!may_fail || persist.ending.is_aborted())
        {
            log::warn!("Error trying to save the DB, can't exit. {WITHOUT}.");
            return Err(format!("{reason}. {WITHOUT}"));
        }
    }
    if by_client && !how.force && !is_log_taken(persist) {
        log::warn!(
            "The disk of the append-only file is blocked, acknowledged writes are pending, can't exit."
        );
        return Err(
            "The disk of the append-only file is blocked. SHUTDOWN FORCE discards the pending writes".into(),
        );
    }
    if !persist.ending.make_certain() {
        return Err(String::new());
    }
    persist.host().announce_end(EndStage::Certain);
    persist.core.manager.notify_stopping();
    persist.host().stop_stream(&mut |point| {
        persist.aof.set_end(point);
        persist.core.stop();
    });
    Ok(())
}

/// Waits until the bytes that were waiting for the append-only file are written, or the end is aborted.
/// Returns false if the disk takes nothing. Clients write no more, but a replica still receives the primary's
/// stream.
pub fn is_log_taken(persist: &Persist) -> bool {
    let (aof, ending) = (&persist.aof, &persist.ending);
    let waits = || aof.unread(&persist.core.keyspace.journal) + aof.metrics.buffered.load(Relaxed);
    let (mut left, mut size, mut since) = (waits(), aof.metrics.size.load(Relaxed), Instant::now());
    while aof.is_on() && !ending.is_aborted() && left > 0 && waits() > 0 {
        let now = aof.metrics.size.load(Relaxed);
        if now != size {
            // A new file begins at zero.
            left = left.saturating_sub(now.saturating_sub(size));
            (size, since) = (now, Instant::now());
        } else if since.elapsed() > STUCK {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Lets the server go on, for this reason if the end is not aborted.
fn stay(persist: &Arc<Persist>, reason: &str) {
    let is_aborted = persist.ending.is_aborted();
    if !is_aborted {
        let text = "Errors trying to shut down the server. Check the logs for more information.";
        log::warn!("{}", text);
    }
    persist.host().announce_end(EndStage::Stays);
    persist.host().resume_stream();
    persist.core.pause.end(Pauser::End);
    persist.core.workers.wake_all();
    answer_askers(persist, if is_aborted { "" } else { reason });
}

fn answer_askers(persist: &Persist, reason: &str) {
    let mut stage = persist.ending.stage.lock();
    let Stage::Begun(askers) = std::mem::take(&mut *stage) else { return };
    let mut text = "ERR Errors trying to SHUTDOWN. Check logs.".to_owned();
    if !reason.is_empty() {
        text += &format!(" {reason}.");
    }
    let error = Error::text(text);
    let host = persist.host();
    for Asker { client, number, id, resp3 } in askers {
        let mut reply = Reply::default();
        reply.resp3 = resp3;
        reply.fail(&error);
        host.record_failure(id, &error);
        client.set_waiting(false, 0, false);
        persist.hub.resume(Resumed { client, number, reply, may_write: false, closes: false });
    }
    persist.ending.is_under_way.store(false, Release);
}
