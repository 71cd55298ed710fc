//! `snapshot`: what clients feel of a BGSAVE.
//!
//! SETs from 50 clients, first alone and then while a snapshot is being taken: rate, latencies, how long the snapshot
//! takes and how much memory the process takes more meanwhile. The servers are measured one after the other, since each
//! needs the disk and, to fork, as much memory again as it writes to.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Session;
use super::aof::wait_until;
use super::felt::{self, DataArgs, Felt, feel};
use super::lanes::Lane;
use crate::interrupt;
use crate::json::{Json, object};
use crate::load::keys::KeyRange;
use crate::peers::{Kind, Launch, ask};
use crate::promises::Promise;
use crate::stats::Goal;
use crate::table::Table;

/// Longest request during a snapshot, in microseconds.
const LONGEST_US_MAX: f64 = 3_000.0;
const RATE_MIN: f64 = 0.85;
const P99_MAX: f64 = 1.3;
const MEMORY_MAX: f64 = 0.02;
/// Time, to Valkey's.
const TIME_MAX: f64 = 1.0;
/// A million keys and their snapshots, for each server.
pub(super) const ESTIMATE: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(10);

pub(crate) fn snapshot(session: &mut Session, args: &DataArgs) -> Result<()> {
    let (mut figures, mut curves) = (Vec::new(), Vec::new());
    let mut table = Table::new(&[&[""][..], &felt::HEAD, &["took", "memory"]].concat());
    let mut valkey_s = None;
    for kind in [Kind::Valkey, Kind::Evenkeel, Kind::Redis] {
        if session.peer(kind).is_none() {
            continue;
        }
        let (felt, took) = measure(session, kind, args)?;
        let memory = felt.grown as f64 / felt.resident as f64;
        if kind == Kind::Valkey {
            valkey_s = Some(took.as_secs_f64());
        }
        if kind == Kind::Evenkeel {
            let p99 = felt.during.p99 / felt.before.p99;
            let (what, longest) = ("longest request during BGSAVE, us", Goal::AtMost(LONGEST_US_MAX));
            session.judge_for(Promise::Snapshot, what.to_owned(), longest, felt.during.max);
            let (what, most) = ("memory during BGSAVE", Goal::AtMost(MEMORY_MAX));
            session.judge_for(Promise::Snapshot, what.to_owned(), most, memory);
            let mut judge = |what: &str, goal, value| _ = session.judge(what.to_owned(), goal, value);
            judge("rate during BGSAVE, to before", Goal::AtLeast(RATE_MIN), felt.ratio());
            judge("p99 during BGSAVE, to before", Goal::AtMost(P99_MAX), p99);
            if let Some(valkey_s) = valkey_s {
                judge("time of BGSAVE, to valkey's", Goal::AtMost(TIME_MAX), took.as_secs_f64() / valkey_s);
            }
        }
        let mut cells = vec![kind.name().to_owned()];
        cells.extend(felt.cells());
        cells.extend([format!("{:.2} s", took.as_secs_f64()), format!("{:+.1}%", memory * 100.0)]);
        table.row(cells);
        let mut members = vec![("server", kind.name().into()), ("took_s", took.as_secs_f64().into())];
        members.extend(felt.figures());
        figures.push(object(members));
        curves.push(felt.curve(kind.name(), "BGSAVE", Duration::ZERO, took));
    }
    let title =
        format!("snapshot: BGSAVE of {} keys of {} B, SET from 50 clients", args.keys, args.value_size);
    let members = vec![("servers", Json::Array(figures)), ("timelines", Json::Array(curves))];
    session.report("snapshot", &title, &table, members);
    Ok(())
}

fn measure(session: &Session, kind: Kind, args: &DataArgs) -> Result<(Felt, Duration)> {
    let peer = session.peer(kind).expect("it was found");
    let lane = Lane::start(peer, kind.name(), &Launch { cpus: Vec::new(), threads: 1 })?;
    lane.fill(KeyRange { first: 0, count: args.keys }, args.value_size)?;
    let (felt, took) = feel(session, &lane, &args.traffic(), session.measured, || save(&lane))?;
    if took < session.measured / 2 {
        bail!("the snapshot took {took:?} of {:?}: use more keys or less --seconds", session.measured);
    }
    Ok((felt, took))
}

/// Takes a snapshot; how long that took.
fn save(lane: &Lane) -> Result<Duration> {
    let began = Instant::now();
    let answer = ask(lane.server.address, &["BGSAVE"])?;
    if !answer.starts_with("+Background saving started") {
        bail!("{}: BGSAVE: {answer}", lane.name);
    }
    loop {
        let info = ask(lane.server.address, &["INFO", "persistence"]).context("no INFO during a snapshot")?;
        if info.contains("rdb_bgsave_in_progress:0") {
            wait_until(lane, "rdb_last_bgsave_status:ok")?;
            return Ok(began.elapsed());
        }
        interrupt::sleep(LOOK)?;
    }
}
