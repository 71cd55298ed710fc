//! `full-sync`: the impact on clients while a new replica gets the whole data set.
//!
//! 50 clients write as fast as they can, first alone and then until a replica has the snapshot. That replica
//! takes snapshot and stream as fast as they come and drops them. The sync has to succeed at the first try,
//! with each server's default limits. Valkey also runs without limits, so that its time is comparable even if
//! it fails with them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Session;
use super::felt::{self, Change, Column, DataArgs, Felt, Named, Planned, Rounds};
use super::lanes::Lane;
use super::sink::{CutOff, Sink};
use crate::interrupt;
use crate::load::Event;
use crate::servers::{ServerKind, ask};
use crate::stats::Goal;

const LONGEST_US_MAX: f64 = 5_000.0;
const RATE_MIN: f64 = 0.8;
/// Memory that the process may take more meanwhile, in MB.
const BUFFER_MB_MAX: f64 = 64.0;
/// Time, relative to Valkey.
const TIME_MAX: f64 = 1.0;
/// Fewest bytes of data sent per second.
const SLOWEST: u64 = 200_000_000;
/// The stream has to continue within this time after the snapshot: every server reads a replica's second
/// acknowledgement by then.
const RESUME_TIME_MAX: Duration = Duration::from_millis(2_500);
/// Seconds for which a primary keeps its backlog after the last replica has gone; the next round begins
/// without a backlog.
const KEPT_S: u64 = 1;

/// Valkey with as much memory for a replica as it needs.
const UNLIMITED: Change = (", unlimited", ["client-output-buffer-limit", "replica 0 0 0"]);

/// A full sync as seen from outside.
struct Synced {
    /// Time until the snapshot had come, or the replica had been cut off.
    took: Duration,
    snapshot_bytes: u64,
    /// The replica had to begin anew, or was cut off.
    failed: bool,
}

pub(super) fn estimate(session: &Session, args: &DataArgs) -> Duration {
    let (servers, rounds) = (servers(session).len(), session.rounds as u32);
    let sync = Duration::from_secs(args.memory() / SLOWEST + 2 * KEPT_S) + RESUME_TIME_MAX;
    (args.fill_time() + sync * rounds + session.time_for(session.rounds)) * servers as u32
}

fn servers(session: &Session) -> Vec<Planned<'_>> {
    let mut servers = felt::planned(session);
    servers.extend(Planned::changed(session, ServerKind::Valkey, UNLIMITED));
    servers
}

pub(crate) fn full_sync(session: &mut Session, args: &DataArgs) -> Result<()> {
    let prepare = |lane: &Lane| {
        lane.set("repl-diskless-sync-delay", "0")?;
        lane.set("repl-backlog-ttl", &KEPT_S.to_string())
    };
    let all = session.beside_pauses(|it| felt::over_data(it, servers(it), args, prepare, sync))?;
    judge(session, &all);
    let columns = [
        Column {
            head: "took, s",
            cell: |rounds| rounds.spread(seconds).to_string(),
            json: "took_s",
            figure: seconds,
        },
        Column {
            head: "MB/s",
            cell: |rounds| format!("{:.0}", rounds.median(rate)),
            json: "megabytes_per_s",
            figure: rate,
        },
        Column {
            head: "memory",
            cell: |rounds| format!("{:+.0} MB", rounds.median(grown_mb)),
            json: "memory_grown_mb",
            figure: grown_mb,
        },
        Column {
            head: "first try",
            cell: |rounds| {
                let good = rounds.all.iter().filter(|felt| !felt.event.failed).count();
                if good == rounds.all.len() {
                    "yes".into()
                } else {
                    format!("{good} of {}", rounds.all.len())
                }
            },
            json: "failed",
            figure: failed,
        },
    ];
    let title = format!("full-sync: {}", args.words());
    let event: Named<Synced> = ("a full sync", |felt| [Duration::ZERO, felt.event.took]);
    felt::report(session, "full-sync", &title, &all, &columns, event);
    Ok(())
}

fn seconds(felt: &Felt<Synced>) -> f64 {
    felt.event.took.as_secs_f64()
}

fn rate(felt: &Felt<Synced>) -> f64 {
    felt.event.snapshot_bytes as f64 / seconds(felt) / 1e6
}

fn grown_mb(felt: &Felt<Synced>) -> f64 {
    felt.grown as f64 / 1e6
}

fn failed(felt: &Felt<Synced>) -> f64 {
    f64::from(u8::from(felt.event.failed))
}

fn judge(session: &mut Session, all: &[Rounds<Synced>]) {
    let Some(ours) = all.iter().find(|rounds| rounds.is_ours()) else { return };
    let (what, goal) = ("longest request during a full sync, us".to_owned(), Goal::AtMost(LONGEST_US_MAX));
    session.judge_wait(None, what, goal, ours.longest_us(), 1.0);
    let mut judge = |what: &str, goal, value| _ = session.judge(what.to_owned(), goal, value);
    judge("rate during a full sync, to before", Goal::AtLeast(RATE_MIN), ours.rate());
    judge("memory during a full sync, MB", Goal::AtMost(BUFFER_MB_MAX), ours.median(grown_mb));
    judge("failed tries of a full sync", Goal::AtMost(0.0), ours.spread(failed).max);
    let succeeds =
        |rounds: &&Rounds<Synced>| rounds.kind == ServerKind::Valkey && rounds.spread(failed).max == 0.0;
    // Valkey as installed, if its sync succeeds.
    if let Some(valkey) = all.iter().find(succeeds) {
        let what = format!("time of a full sync, to that of {}", valkey.name);
        _ = session.judge(what, Goal::AtMost(TIME_MAX), ours.ratio_to(valkey, seconds));
    }
}

/// Attaches a replica, stays until the stream has continued for a while, and leaves.
fn sync(lane: &Lane, moment: &Event) -> Result<Synced> {
    let (began, before) = (Instant::now(), full_syncs(lane)?);
    let attached = Sink::attach(lane.server.address, &[]);
    let took = began.elapsed();
    moment.end();
    let sink = match attached {
        Ok(sink) => sink,
        Err(error) => {
            let Some(CutOff { taken }) = error.downcast_ref() else {
                return Err(error.context("a replica did not get everything"));
            };
            let snapshot_bytes = *taken;
            interrupt::sleep(Duration::from_secs(2 * KEPT_S))?;
            return Ok(Synced { took, snapshot_bytes, failed: true });
        }
    };
    interrupt::sleep(RESUME_TIME_MAX)?;
    let again = full_syncs(lane)? != before + 1;
    let failed = again || sink.is_cut_off() || sink.stream_bytes() == 0;
    let snapshot_bytes = sink.snapshot_bytes;
    drop(sink);
    interrupt::sleep(Duration::from_secs(2 * KEPT_S))?;
    Ok(Synced { took, snapshot_bytes, failed })
}

fn full_syncs(lane: &Lane) -> Result<u64> {
    let stats = ask(lane.server.address, &["INFO", "stats"])?;
    let count = stats.lines().find_map(|line| line.strip_prefix("sync_full:"));
    count.and_then(|count| count.trim().parse().ok()).context("INFO stats has no sync_full")
}
