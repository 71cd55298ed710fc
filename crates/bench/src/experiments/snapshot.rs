//! `snapshot`: what clients feel of a BGSAVE.
//!
//! SETs from 50 clients, first alone and then while a snapshot is being taken: rate, latencies, how long the snapshot
//! takes and how much memory the process takes more meanwhile. The servers are measured one after the other, since each
//! needs the disk and, to fork, as much memory again as it writes to.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::aof::wait_until;
use super::lanes::{self, Lane, Traffic};
use super::series::Sample;
use super::{Session, WARM_UP};
use crate::json::{Json, object};
use crate::load::keys::KeyRange;
use crate::peers::{Kind, Launch, ask};
use crate::stats::Goal;
use crate::table::{Table, time_us};
use crate::{interrupt, proc};

/// Longest request during a snapshot, in microseconds.
const LONGEST_US_MAX: f64 = 3_000.0;
const RATE_MIN: f64 = 0.85;
const P99_MAX: f64 = 1.3;
const MEMORY_MAX: f64 = 0.02;
/// A million keys and their snapshots, for each server.
pub(super) const ESTIMATE: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(10);

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct SnapshotArgs {
    /// Number of keys
    #[arg(short, long, default_value_t = 1_000_000)]
    keys: u64,
    /// Bytes of a value
    #[arg(short = 'd', long, default_value_t = 700)]
    value_size: usize,
}

impl Default for SnapshotArgs {
    fn default() -> Self {
        Self { keys: 1_000_000, value_size: 700 }
    }
}

/// A snapshot as seen from outside.
struct Taken {
    before: Sample,
    during: Sample,
    took: Duration,
    /// Most bytes of resident memory beyond those before; a forked child's own are not in it.
    grown: u64,
    resident: u64,
    timeline: Json,
}

pub(crate) fn snapshot(session: &mut Session, args: &SnapshotArgs) -> Result<()> {
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
        "memory",
    ];
    let (mut table, mut figures, mut timelines) = (Table::new(&head), Vec::new(), Vec::new());
    for kind in [Kind::Valkey, Kind::Evenkeel, Kind::Redis] {
        if session.peer(kind).is_none() {
            continue;
        }
        let taken = measure(session, kind, args)?;
        timelines.push(taken.timeline.clone());
        let (before, during) = (&taken.before, &taken.during);
        let ratio = during.rate / before.rate;
        let memory = taken.grown as f64 / taken.resident as f64;
        if kind == Kind::Evenkeel {
            session.judge(
                "longest request during BGSAVE, us".into(),
                Goal::AtMost(LONGEST_US_MAX),
                during.max,
            );
            session.judge("rate during BGSAVE, to before".into(), Goal::AtLeast(RATE_MIN), ratio);
            session.judge(
                "p99 during BGSAVE, to before".into(),
                Goal::AtMost(P99_MAX),
                during.p99 / before.p99,
            );
            session.judge("memory during BGSAVE".into(), Goal::AtMost(MEMORY_MAX), memory);
        }
        table.row(vec![
            kind.name().to_owned(),
            format!("{:.0}k", before.rate / 1e3),
            format!("{:.0}k", during.rate / 1e3),
            format!("{ratio:.2}"),
            time_us(before.p99),
            time_us(during.p99),
            time_us(before.max),
            time_us(during.max),
            format!("{:.2} s", taken.took.as_secs_f64()),
            format!("{:+.1}%", memory * 100.0),
        ]);
        figures.push(object(vec![
            ("server", kind.name().into()),
            ("requests_per_s_before", before.rate.into()),
            ("requests_per_s_during", during.rate.into()),
            ("longest_us_before", before.max.into()),
            ("longest_us_during", during.max.into()),
            ("took_s", taken.took.as_secs_f64().into()),
            ("memory_grown", memory.into()),
        ]));
    }
    let title =
        format!("snapshot: BGSAVE of {} keys of {} B, SET from 50 clients", args.keys, args.value_size);
    session.report(
        "snapshot",
        &title,
        &table,
        vec![("servers", Json::Array(figures)), ("timelines", timelines.into())],
    );
    Ok(())
}

fn measure(session: &Session, kind: Kind, args: &SnapshotArgs) -> Result<Taken> {
    let peer = session.peer(kind).expect("it was found");
    let lane = Lane::start(peer, kind.name(), &Launch { cpus: Vec::new(), threads: 1 })?;
    lane.fill(KeyRange { first: 0, count: args.keys }, args.value_size)?;
    let traffic = Traffic { keys: args.keys, value_size: args.value_size, ..Traffic::default() };
    let before = lanes::measure(session, &lane, &traffic)?;
    let resident = proc::usage(lane.server.pid())?.rss_bytes;
    let (during, saved) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| save(&lane));
        let during = lanes::watch(&lane, &traffic, session.measured);
        (during, watching.join().expect("it does not panic"))
    });
    let ((during, timeline), (took, peak)) = (during?, saved?);
    if took < session.measured / 2 {
        bail!("the snapshot took {took:?} of {:?}: use more keys or less --seconds", session.measured);
    }
    let timeline = lanes::drawn(kind.name(), &timeline, "BGSAVE", Duration::ZERO, took);
    Ok(Taken { before, during, took, grown: peak.saturating_sub(resident), resident, timeline })
}

/// Takes a snapshot once the load has begun; how long that took, and the most memory that the process had meanwhile.
fn save(lane: &Lane) -> Result<(Duration, u64)> {
    interrupt::sleep(WARM_UP)?;
    let began = Instant::now();
    let answer = ask(lane.server.address, &["BGSAVE"])?;
    if !answer.starts_with("+Background saving started") {
        bail!("{}: BGSAVE: {answer}", lane.name);
    }
    let mut peak = 0;
    loop {
        peak = peak.max(proc::usage(lane.server.pid())?.rss_bytes);
        let info = ask(lane.server.address, &["INFO", "persistence"]).context("no INFO during a snapshot")?;
        if info.contains("rdb_bgsave_in_progress:0") {
            wait_until(lane, "rdb_last_bgsave_status:ok")?;
            return Ok((began.elapsed(), peak));
        }
        interrupt::sleep(LOOK)?;
    }
}
