//! `full-sync`: what clients feel while a new replica gets everything.
//!
//! SETs from 50 clients as fast as they can, first alone and then while a replica is attached that takes the snapshot and the
//! stream as fast as they come and drops them. It has to get there at the first try, with the limits that servers have of
//! their own. The servers are measured one after the other, since a fork needs as much memory again as it writes to.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Session;
use super::felt::{self, DataArgs, Felt, feel};
use super::lanes::{Lane, memory_for};
use super::sink::Sink;
use crate::json::{Json, object};
use crate::load::keys::KeyRange;
use crate::peers::{Kind, Launch, ask};
use crate::stats::Goal;
use crate::table::{Table, thousands};
use crate::{interrupt, proc};

const LONGEST_US_MAX: f64 = 5_000.0;
const RATE_MIN: f64 = 0.8;
/// Memory that the process may take more meanwhile, in MB.
const BUFFER_MB_MAX: f64 = 64.0;
/// Time, to Valkey's.
const TIME_MAX: f64 = 1.0;
/// The stream has to go on within this time after the snapshot: a replica's second word is heard by all.
const GOES_ON: Duration = Duration::from_millis(2_500);

/// A full sync as seen from outside.
struct Synced {
    /// Until the snapshot had come.
    took: Duration,
    snapshot_bytes: u64,
    /// The replica had to begin anew, or was cut off.
    failed: bool,
}

/// Filling at 200,000 keys a second and writing at 200,000, for each server.
pub(super) fn estimate(session: &Session, args: &DataArgs) -> Duration {
    Duration::from_secs(args.keys * session.peers.len() as u64 / 100_000) + session.time_for(6)
}

pub(crate) fn full_sync(session: &mut Session, args: &DataArgs) -> Result<()> {
    let needed = 2 * memory_for(args.keys, args.value_size);
    if needed > proc::memory_available() {
        bail!("{} keys of {} B need {} MiB", args.keys, args.value_size, needed >> 20);
    }
    let (mut figures, mut curves) = (Vec::new(), Vec::new());
    let mut table = Table::new(&[&[""][..], &felt::HEAD, &["took", "MB/s", "memory", "first try"]].concat());
    let mut valkey_s = None;
    for kind in [Kind::Valkey, Kind::Evenkeel, Kind::Redis] {
        if session.peer(kind).is_none() {
            continue;
        }
        let (felt, synced) = measure(session, kind, args)?;
        let (took, grown_mb) = (synced.took.as_secs_f64(), felt.grown as f64 / 1e6);
        if kind == Kind::Valkey {
            valkey_s = Some(took);
        }
        if kind == Kind::Evenkeel {
            let failed = f64::from(u8::from(synced.failed));
            let mut judge = |what: &str, goal, value| _ = session.judge(what.to_owned(), goal, value);
            judge("longest request during a full sync, us", Goal::AtMost(LONGEST_US_MAX), felt.during.max);
            judge("rate during a full sync, to before", Goal::AtLeast(RATE_MIN), felt.ratio());
            judge("memory during a full sync, MB", Goal::AtMost(BUFFER_MB_MAX), grown_mb);
            judge("failed tries of a full sync", Goal::AtMost(0.0), failed);
            if let Some(valkey_s) = valkey_s {
                judge("time of a full sync, to valkey's", Goal::AtMost(TIME_MAX), took / valkey_s);
            }
        }
        let mut cells = vec![kind.name().to_owned()];
        cells.extend(felt.cells());
        cells.extend([
            format!("{took:.2} s"),
            format!("{:.0}", synced.snapshot_bytes as f64 / took / 1e6),
            format!("{grown_mb:+.0} MB"),
            if synced.failed { "no" } else { "yes" }.to_owned(),
        ]);
        table.row(cells);
        let mut members = vec![
            ("server", kind.name().into()),
            ("took_s", took.into()),
            ("snapshot_bytes", synced.snapshot_bytes.into()),
            ("failed", synced.failed.into()),
        ];
        members.extend(felt.figures());
        figures.push(object(members));
        curves.push(felt.curve(kind.name(), "a full sync", Duration::ZERO, synced.took));
    }
    let keys = thousands(args.keys as f64);
    let title = format!("full-sync: {keys} keys of {} B, SET from 50 clients, pipeline 1", args.value_size);
    let members = vec![("servers", Json::Array(figures)), ("timelines", Json::Array(curves))];
    session.report("full-sync", &title, &table, members);
    Ok(())
}

fn measure(session: &Session, kind: Kind, args: &DataArgs) -> Result<(Felt, Synced)> {
    let peer = session.peer(kind).expect("it was found");
    let lane = Lane::start(peer, kind.name(), &Launch { cpus: Vec::new(), threads: 1 })?;
    lane.set("repl-diskless-sync-delay", "0")?;
    lane.fill(KeyRange { first: 0, count: args.keys }, args.value_size)?;
    let (felt, synced) = feel(session, &lane, &args.traffic(), session.measured, || sync(&lane))?;
    if synced.took < session.measured / 2 {
        bail!("the sync took {:?} of {:?}: use more keys or less --seconds", synced.took, session.measured);
    }
    Ok((felt, synced))
}

/// Attaches a replica, and stays until the stream has gone on for a while.
fn sync(lane: &Lane) -> Result<Synced> {
    let began = Instant::now();
    let sink = Sink::attach(lane.server.address, &[]).context("a replica did not get everything")?;
    let took = began.elapsed();
    interrupt::sleep(GOES_ON)?;
    let stats = ask(lane.server.address, &["INFO", "stats"])?;
    let failed = sink.is_cut_off() || sink.stream_bytes() == 0 || !stats.contains("sync_full:1\r\n");
    Ok(Synced { took, snapshot_bytes: sink.snapshot_bytes, failed })
}
