//! The end of the server: replicas get what they lack, a last snapshot is taken if there is to be one, and then everybody
//! stops.
//!
//! One thread does it, whoever asks. Writes wait meanwhile. Until the last step it may turn out that the server stays:
//! somebody aborts it, or the snapshot cannot be taken. Then writes go on, and all who have asked are told. That holds for a
//! snapshot whose disk hangs, too: it is taken by a thread of its own, which is left to its disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::jobs::STUCK;
use super::snapshot;
use crate::clients::ClientInfo;
use crate::command::Id;
use crate::config::ShutdownOptions;
use crate::config::cause;
use crate::error::Error;
use crate::reply::Reply;
use crate::server::{Pauser, Server};
use crate::waiting::Resumed;
use evenkeel_runtime::clock;

/// What an operator can do whose server does not end since it cannot save.
const WITHOUT: &str = "SHUTDOWN NOSAVE stops the server without a snapshot";

/// The end as all threads see it.
#[derive(Default)]
pub(crate) struct Ending {
    stage: Mutex<Stage>,
    is_under_way: AtomicBool,
    is_aborted: AtomicBool,
    is_certain: AtomicBool,
    /// Replicas are waited for until then, in milliseconds since the Unix epoch; zero: none are.
    until_ms: AtomicU64,
}

#[derive(Default)]
enum Stage {
    #[default]
    None,
    /// It has begun; these wait to hear if it fails.
    Begun(Vec<Asker>),
    /// Nothing stops it any more.
    Certain,
}

/// A client that waits for the end: there is a reply only if it does not come.
pub(crate) struct Asker {
    pub(crate) client: Arc<ClientInfo>,
    /// The number of its wait.
    pub(crate) number: u64,
    /// The command that it waits in.
    pub(crate) id: Id,
    pub(crate) resp3: bool,
}

impl Ending {
    /// Whether it has begun.
    pub(crate) fn is_under_way(&self) -> bool {
        self.is_under_way.load(Acquire)
    }

    /// For how long replicas will be waited for at most, if they are.
    pub(crate) fn waits_ms(&self, now_ms: u64) -> Option<u64> {
        self.until_ms.load(Relaxed).checked_sub(now_ms).filter(|ms| *ms > 0)
    }

    /// Whether nothing stops it any more. It wants the gate closed, so who would keep it open for long lets go.
    pub(crate) fn is_certain(&self) -> bool {
        self.is_certain.load(Acquire)
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.is_aborted.load(Acquire)
    }

    /// Passes the point from which on nothing stops the end; `false`: it was aborted before.
    fn make_certain(&self) -> bool {
        let mut stage = self.stage.lock();
        let goes_on = !self.is_aborted();
        if goes_on {
            *stage = Stage::Certain;
            self.is_certain.store(true, Release);
        }
        goes_on
    }
}

/// Begins the end. One that has been begun before is not changed, and `who` hears how that goes.
pub(crate) fn begin(server: &Arc<Server>, how: ShutdownOptions, who: Option<Asker>) {
    let (ending, by_client) = (&server.persist.ending, who.is_some());
    let mut stage = ending.stage.lock();
    match &mut *stage {
        Stage::Begun(askers) => return askers.extend(who),
        Stage::Certain => return,
        Stage::None => *stage = Stage::Begun(who.into_iter().collect()),
    }
    ending.is_aborted.store(false, Release);
    ending.is_under_way.store(true, Release);
    drop(stage);
    let on_thread = server.clone();
    let thread = std::thread::Builder::new().name("shutdown".into());
    let spawned = thread.spawn(move || {
        if let Err(reason) = end(&on_thread, how, by_client) {
            stay(&on_thread, &reason);
        }
    });
    if let Err(error) = spawned {
        let reason = format!("Cannot start the shutdown thread: {}", cause(&error));
        server.log.warning(reason.as_str());
        tell_askers(server, &reason);
    }
}

/// Stops an end that has begun; `false`: there is none, or nothing stops it any more.
pub(crate) fn abort(server: &Server) -> bool {
    let ending = &server.persist.ending;
    let stage = ending.stage.lock();
    let can_stop = matches!(&*stage, Stage::Begun(_));
    if can_stop && !ending.is_aborted.swap(true, AcqRel) {
        server.log.warning("Shutdown manually aborted.");
        if ending.until_ms.load(Relaxed) == 0 {
            server.persist.cancel_save(); // the last one
        }
    }
    can_stop
}

/// Ends the server, unless something is in the way.
///
/// # Errors
/// What is in the way; nothing if the end is aborted.
fn end(server: &Arc<Server>, how: ShutdownOptions, by_client: bool) -> Result<(), String> {
    let (settings, persist) = (server.settings(), &server.persist);
    server.pause.begin(Pauser::End, false, u64::MAX, clock::unix_ms());
    let is_loading = persist.is_loading();
    if !how.now && !is_loading {
        let timeout = Duration::from_secs(u64::from(settings.shutdown_timeout));
        persist.ending.until_ms.store(clock::unix_ms() + timeout.as_millis() as u64, Relaxed);
        server.replication.wait_for_replicas(server, timeout, || persist.ending.is_aborted());
        persist.ending.until_ms.store(0, Relaxed);
    }
    // It may have changed while replicas were waited for.
    let settings = server.settings();
    // What a full sync has left in memory is not to take the place of what is on disk.
    let is_whole = !is_loading && !persist.is_incomplete.load(Acquire);
    if !persist.ending.is_aborted() && settings.appendonly && is_whole && !persist.aof.is_complete() {
        // What is on disk is not the data, and may be those of long ago. But it will not become the data either while a
        // script keeps everybody waiting, and nobody but this ends one that has written.
        let waits_for_script = how.save == Some(false) && server.scripts.busy.is_busy();
        if !how.force && !waits_for_script {
            server.log.warning("Writing initial AOF, can't exit");
            return Err(
                "The initial append-only file is not complete. SHUTDOWN FORCE does not wait for it".into()
            );
        }
        server.log.warning("Writing initial AOF. Exit anyway.");
    }
    // A client can say that it is to end all the same, a service manager cannot.
    if by_client && !persist.ending.is_aborted() && persist.aof.fails() && !how.force {
        let cause = persist.aof.figures.failure.lock().clone();
        server.log.warning("Acknowledged writes cannot be written to the append-only file, can't exit.");
        return Err(format!(
            "The append-only file cannot be written: {cause}. SHUTDOWN FORCE discards the pending writes"
        ));
    }
    if !persist.ending.is_aborted() {
        persist.cancel_all();
    }
    // Somebody who asks for it gets what there is.
    let (is_asked, is_due) = (how.save == Some(true), how.save.is_none() && !settings.save.is_empty());
    let saves = is_asked && !is_loading || is_due && is_whole;
    // What FLUSHALL has taken does not come back, whatever is said by then: in Redis it was saved before its reply.
    let may_pay = is_whole && !how.force && !server.scripts.busy.is_busy();
    let pays = !saves && may_pay && persist.state().is_owing();
    if (saves || pays) && !persist.ending.is_aborted() {
        server.log.notice("Saving the final RDB snapshot before exiting.");
        let (saved, may_fail) = (snapshot::save_last(server, is_asked, pays), pays || how.force);
        if let Err(reason) = saved
            && (!may_fail || persist.ending.is_aborted())
        {
            server.log.warning(format!("Error trying to save the DB, can't exit. {WITHOUT}."));
            return Err(format!("{reason}. {WITHOUT}"));
        }
    }
    if by_client && !how.force && !is_log_taken(server) {
        server.log.warning(
            "The disk of the append-only file is blocked, acknowledged writes are pending, can't exit.",
        );
        return Err(
            "The disk of the append-only file is blocked. SHUTDOWN FORCE discards the pending writes".into(),
        );
    }
    if !persist.ending.make_certain() {
        return Err(String::new());
    }
    server.manager.tell_stopping(&server.log);
    server.replication.stop(server, |point| {
        persist.aof.note_end(point);
        server.stop();
    });
    Ok(())
}

/// Waits until as much has gone to the append-only file as waited for it, as long as the end is not aborted; `false`: it takes nothing.
/// Clients write no more, but on a replica the primary's stream goes on.
fn is_log_taken(server: &Server) -> bool {
    let (aof, ending) = (&server.persist.aof, &server.persist.ending);
    let waits = || aof.unread(&server.keyspace.journal) + aof.figures.buffered.load(Relaxed);
    let (mut left, mut size, mut since) = (waits(), aof.figures.size.load(Relaxed), Instant::now());
    while aof.is_on() && !ending.is_aborted() && left > 0 && waits() > 0 {
        let now = aof.figures.size.load(Relaxed);
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

/// The server stays, for this reason if the end is not aborted.
fn stay(server: &Arc<Server>, reason: &str) {
    let is_aborted = server.persist.ending.is_aborted();
    if !is_aborted {
        let text = "Errors trying to shut down the server. Check the logs for more information.";
        server.log.warning(text);
    }
    server.replication.go_on(server);
    server.pause.end(Pauser::End);
    server.wake_all();
    tell_askers(server, if is_aborted { "" } else { reason });
}

fn tell_askers(server: &Server, reason: &str) {
    let mut stage = server.persist.ending.stage.lock();
    let Stage::Begun(askers) = std::mem::take(&mut *stage) else { return };
    let mut text = "ERR Errors trying to SHUTDOWN. Check logs.".to_owned();
    if !reason.is_empty() {
        text += &format!(" {reason}.");
    }
    let error = Error::text(text);
    let (stats, settings) = (server.stats.last().expect("that of who is no worker"), server.settings());
    for Asker { client, number, id, resp3 } in askers {
        let mut reply = Reply::default();
        reply.resp3 = resp3;
        reply.fail(&error);
        stats.error(&error.line());
        stats.resumed(id, 0, true, settings.latency_tracking);
        client.note_wait(false, 0, false);
        server.resume(Resumed { client, number, reply, may_write: false, closes: false });
    }
    server.persist.ending.is_under_way.store(false, Release);
}
