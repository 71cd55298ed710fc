//! `full-sync`: what clients feel while a new replica gets everything.
//!
//! SETs from 50 clients as fast as they can, first alone and then while a replica is attached that takes the snapshot and the
//! stream as fast as they come and drops them. It has to get there at the first try, with the limits that servers have of
//! their own. The servers are measured one after the other, since a fork needs as much memory again as it writes to.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::lanes::{self, Lane, Traffic, memory_for};
use super::series::Sample;
use super::sink::Sink;
use super::{Session, WARM_UP};
use crate::json::{Json, object};
use crate::load::keys::KeyRange;
use crate::peers::{Kind, Launch, ask};
use crate::stats::Goal;
use crate::table::{Table, thousands, time_us};
use crate::{interrupt, proc};

const LONGEST_US_MAX: f64 = 5_000.0;
const RATE_MIN: f64 = 0.8;
/// Memory that the process may take more meanwhile, in MB.
const BUFFER_MB_MAX: f64 = 64.0;
/// Time, to Valkey's.
const TIME_MAX: f64 = 1.0;
/// The stream has to go on for so long after the snapshot.
const GOES_ON: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(10);

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct FullSyncArgs {
    /// Number of keys
    #[arg(short, long, default_value_t = 1_000_000)]
    keys: u64,
    /// Bytes of a value
    #[arg(short = 'd', long, default_value_t = 700)]
    value_size: usize,
}

impl Default for FullSyncArgs {
    fn default() -> Self {
        Self { keys: 1_000_000, value_size: 700 }
    }
}

impl FullSyncArgs {
    /// Filling at 200,000 keys a second and writing at 200,000, for each server.
    pub(super) fn estimate(&self, session: &Session) -> Duration {
        Duration::from_secs(self.keys * session.peers.len() as u64 / 100_000) + session.time_for(6)
    }
}

/// A full sync as seen from outside.
struct Seen {
    kind: Kind,
    before: Sample,
    during: Sample,
    /// Until the snapshot had come.
    took: Duration,
    snapshot_bytes: u64,
    /// Most bytes of resident memory beyond those before; a forked child's own are not in it.
    grown: u64,
    /// The replica had to begin anew, or was cut off.
    failed: bool,
    timeline: Json,
}

pub(crate) fn full_sync(session: &mut Session, args: &FullSyncArgs) -> Result<()> {
    let needed = 2 * memory_for(args.keys, args.value_size);
    if needed > proc::memory_available() {
        bail!("{} keys of {} B need {} MiB", args.keys, args.value_size, needed >> 20);
    }
    let kinds = [Kind::Valkey, Kind::Evenkeel, Kind::Redis];
    let kinds: Vec<Kind> = kinds.into_iter().filter(|kind| session.peer(*kind).is_some()).collect();
    let all = kinds.into_iter().map(|kind| measure(session, kind, args)).collect::<Result<Vec<Seen>>>()?;
    let valkey_s = all.iter().find(|seen| seen.kind == Kind::Valkey).map(|seen| seen.took.as_secs_f64());
    let head = [
        "",
        "SET/s before",
        "during",
        "ratio",
        "p99 before",
        "during",
        "longest before",
        "during",
        "took",
        "MB/s",
        "memory",
        "first try",
    ];
    let (mut table, mut figures) = (Table::new(&head), Vec::new());
    for seen in &all {
        let Seen { before, during, .. } = seen;
        let (ratio, took) = (during.rate / before.rate, seen.took.as_secs_f64());
        let grown_mb = seen.grown as f64 / 1e6;
        if seen.kind == Kind::Evenkeel {
            session.judge(
                "longest request during a full sync, us".into(),
                Goal::AtMost(LONGEST_US_MAX),
                during.max,
            );
            session.judge("rate during a full sync, to before".into(), Goal::AtLeast(RATE_MIN), ratio);
            session.judge("memory during a full sync, MB".into(), Goal::AtMost(BUFFER_MB_MAX), grown_mb);
            session.judge(
                "failed tries of a full sync".into(),
                Goal::AtMost(0.0),
                f64::from(u8::from(seen.failed)),
            );
            if let Some(valkey_s) = valkey_s {
                session.judge(
                    "time of a full sync, to valkey's".into(),
                    Goal::AtMost(TIME_MAX),
                    took / valkey_s,
                );
            }
        }
        table.row(vec![
            seen.kind.name().to_owned(),
            format!("{:.0}k", before.rate / 1e3),
            format!("{:.0}k", during.rate / 1e3),
            format!("{ratio:.2}"),
            time_us(before.p99),
            time_us(during.p99),
            time_us(before.max),
            time_us(during.max),
            format!("{took:.2} s"),
            format!("{:.0}", seen.snapshot_bytes as f64 / took / 1e6),
            format!("{grown_mb:+.0} MB"),
            if seen.failed { "no" } else { "yes" }.to_owned(),
        ]);
        figures.push(object(vec![
            ("server", seen.kind.name().into()),
            ("requests_per_s_before", before.rate.into()),
            ("requests_per_s_during", during.rate.into()),
            ("p99_us_before", before.p99.into()),
            ("p99_us_during", during.p99.into()),
            ("longest_us_before", before.max.into()),
            ("longest_us_during", during.max.into()),
            ("took_s", took.into()),
            ("snapshot_bytes", seen.snapshot_bytes.into()),
            ("memory_grown_bytes", seen.grown.into()),
            ("failed", seen.failed.into()),
        ]));
    }
    let timelines: Vec<Json> = all.iter().map(|seen| seen.timeline.clone()).collect();
    let title = format!(
        "full-sync: {} keys of {} B, SET from 50 clients, pipeline 1",
        thousands(args.keys as f64),
        args.value_size
    );
    session.report(
        "full-sync",
        &title,
        &table,
        vec![("servers", Json::Array(figures)), ("timelines", timelines.into())],
    );
    Ok(())
}

fn measure(session: &Session, kind: Kind, args: &FullSyncArgs) -> Result<Seen> {
    let peer = session.peer(kind).expect("it was found");
    let lane = Lane::start(peer, kind.name(), &Launch { cpus: Vec::new(), threads: 1 })?;
    lane.set("repl-diskless-sync-delay", "0")?;
    lane.fill(KeyRange { first: 0, count: args.keys }, args.value_size)?;
    let traffic = Traffic { keys: args.keys, value_size: args.value_size, ..Traffic::default() };
    let before = lanes::measure(session, &lane, &traffic)?;
    let resident = proc::usage(lane.server.pid())?.rss_bytes;
    let (during, synced) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| sync(&lane));
        let during = lanes::watch(&lane, &traffic, session.measured);
        (during, watching.join().expect("it does not panic"))
    });
    let ((during, timeline), synced) = (during?, synced?);
    if synced.took < session.measured / 2 {
        bail!("the sync took {:?} of {:?}: use more keys or less --seconds", synced.took, session.measured);
    }
    let Synced { took, snapshot_bytes, peak, failed } = synced;
    let timeline = lanes::drawn(kind.name(), &timeline, "a full sync", Duration::ZERO, took);
    let grown = peak.saturating_sub(resident);
    Ok(Seen { kind, before, during, took, snapshot_bytes, grown, failed, timeline })
}

struct Synced {
    took: Duration,
    snapshot_bytes: u64,
    peak: u64,
    failed: bool,
}

/// Attaches a replica once the load has begun, and stays until the stream has gone on for a while.
fn sync(lane: &Lane) -> Result<Synced> {
    interrupt::sleep(WARM_UP)?;
    std::thread::scope(|scope| {
        let attaching = scope.spawn(|| {
            let began = Instant::now();
            let sink = Sink::attach(lane.server.address, &[]).context("a replica did not get everything");
            sink.map(|sink| (sink, began.elapsed()))
        });
        let mut peak = 0;
        while !attaching.is_finished() {
            peak = peak.max(proc::usage(lane.server.pid())?.rss_bytes);
            interrupt::sleep(LOOK)?;
        }
        let (sink, took) = attaching.join().expect("it does not panic")?;
        interrupt::sleep(GOES_ON)?;
        let stats = ask(lane.server.address, &["INFO", "stats"])?;
        let failed = sink.is_cut_off() || sink.stream_bytes() == 0 || !stats.contains("sync_full:1\r\n");
        Ok(Synced { took, snapshot_bytes: sink.snapshot_bytes, peak, failed })
    })
}
