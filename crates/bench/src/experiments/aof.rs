//! `aof`: what an append-only file costs.
//!
//! Each server runs twice, without and with `appendonly yes`, and what the second takes more per command in the same
//! round is what the file costs: the CPU of the whole process, its writing threads included. With `appendfsync always` the
//! disk decides, so there the rate is compared.

use std::time::Duration;

use anyhow::{Result, bail};

use super::Session;
use super::lanes::{self, Lane, Traffic};
use super::series::Series;
use super::throughput::ThroughputArgs;
use crate::interrupt;
use crate::json::Json;
use crate::load::keys::KeyRange;
use crate::peers::{Kind, Launch, ask};
use crate::stats::Goal;
use crate::table::Table;

/// CPU microseconds that `everysec` may add to a SET.
const ADDED_US_MAX: f64 = 0.5;
/// Rate with `always`, to Redis' on the same disk.
const ALWAYS_RATIO_MIN: f64 = 2.0;
/// Longest that turning the file on may take.
const TURN_ON_S_MAX: u32 = 60;

pub(super) fn estimate(session: &Session) -> Duration {
    session.time_for(3 * session.peers.len() * 2 * session.rounds)
}

struct Pair {
    off: Lane,
    on: Lane,
}

pub(crate) fn aof(session: &mut Session) -> Result<()> {
    let args = ThroughputArgs::default();
    let kinds = [Kind::Valkey, Kind::Evenkeel, Kind::Redis];
    let kinds = kinds.into_iter().filter(|kind| session.peer(*kind).is_some());
    let pairs = kinds.map(|kind| start(session, kind, &args)).collect::<Result<Vec<Pair>>>()?;
    let mut lanes: Vec<Lane> = Vec::new();
    for Pair { off, on } in pairs {
        lanes.extend([off, on]);
    }
    for pipeline in [1, 16] {
        everysec(session, &lanes, &args, pipeline)?;
    }
    always(session, &lanes, &args)
}

fn start(session: &Session, kind: Kind, args: &ThroughputArgs) -> Result<Pair> {
    let lane = |name: String| -> Result<Lane> {
        let peer = session.peer(kind).expect("it was found");
        let lane = Lane::start(
            peer,
            &name,
            &Launch { cpus: session.server_cpus.clone(), threads: 1, ..Launch::default() },
        )?;
        lane.fill(KeyRange { first: 0, count: args.keys }, args.value_size)?;
        Ok(lane)
    };
    let (off, on) = (lane(kind.name().to_owned())?, lane(format!("{}, everysec", kind.name()))?);
    // Growth is not to set off a rewrite in the middle of a measurement.
    on.set("auto-aof-rewrite-percentage", "0")?;
    on.set("appendonly", "yes")?;
    wait_until(&on, "aof_rewrite_in_progress:0")?;
    wait_until(&on, "aof_enabled:1")?;
    Ok(Pair { off, on })
}

/// Waits until INFO persistence has this line.
pub(super) fn wait_until(lane: &Lane, line: &str) -> Result<()> {
    for _ in 0..TURN_ON_S_MAX * 20 {
        if ask(lane.server.address, &["INFO", "persistence"])?.contains(line) {
            return Ok(());
        }
        interrupt::sleep(Duration::from_millis(50))?;
    }
    bail!("{}: INFO never said {line}", lane.name)
}

fn traffic(session: &Session, args: &ThroughputArgs, pipeline: usize) -> Traffic {
    Traffic {
        pipeline,
        clients: args.clients,
        keys: args.keys,
        value_size: args.value_size,
        ..Traffic::pinned(session)
    }
}

fn everysec(session: &mut Session, lanes: &[Lane], args: &ThroughputArgs, pipeline: usize) -> Result<()> {
    let all = lanes::rounds(session, lanes, &traffic(session, args, pipeline))?;
    let mut table = Table::new(&["", "requests/s", "CPU us/command", "added", "goal", "", "p99", "max"]);
    for pair in all.chunks(2) {
        let (off, on) = (&pair[0], &pair[1]);
        row(&mut table, off, [String::new(), String::new(), String::new()]);
        let added = on.more_than(off, |sample| sample.cpu_us);
        let is_ours = on.kind == Kind::Evenkeel;
        let goal = Goal::AtMost(ADDED_US_MAX);
        let verdict = match added.filter(|_| is_ours) {
            Some(added) => {
                session.judge(format!("CPU us that everysec adds, pipeline {pipeline}"), goal, added.median)
            }
            None => String::new(),
        };
        let shown = added.map(|added| added.to_string()).unwrap_or_default();
        row(&mut table, on, [shown, if is_ours { goal.to_string() } else { String::new() }, verdict]);
    }
    let title = format!(
        "aof everysec: SET, pipeline {pipeline}, {} B values, {} clients",
        args.value_size, args.clients
    );
    let servers = Json::Array(all.iter().map(Series::to_json).collect());
    session.report("aof", &title, &table, vec![("pipeline", pipeline.into()), ("servers", servers)]);
    Ok(())
}

fn row(table: &mut Table, series: &Series, middle: [String; 3]) {
    let [_, p99, _, max] = series.latency_cells();
    let mut cells = vec![series.name.clone(), series.rate_cell(), series.cpu_cell()];
    cells.extend(middle);
    cells.extend([p99, max]);
    table.row(cells);
}

fn always(session: &mut Session, lanes: &[Lane], args: &ThroughputArgs) -> Result<()> {
    let writing: Vec<&Lane> = lanes.iter().skip(1).step_by(2).collect();
    writing.iter().try_for_each(|lane| lane.set("appendfsync", "always"))?;
    let traffic = traffic(session, args, 1);
    let mut all: Vec<Series> = writing
        .iter()
        .map(|lane| Series {
            name: format!("{}, always", lane.kind.name()),
            kind: lane.kind,
            is_control: false,
            samples: Vec::new(),
        })
        .collect();
    for _ in 0..session.rounds {
        for (lane, series) in writing.iter().zip(&mut all) {
            series.samples.push(lanes::measure(session, lane, &traffic)?);
        }
    }
    let redis = all.iter().find(|series| series.kind == Kind::Redis).cloned();
    let mut table =
        Table::new(&["", "requests/s", "CPU us/command", "rate to redis'", "goal", "", "p99", "max"]);
    for series in &all {
        let ratio = redis.as_ref().filter(|redis| redis.kind != series.kind);
        let ratio = ratio.and_then(|redis| series.ratio_to(redis, |sample| sample.rate));
        let is_ours = series.kind == Kind::Evenkeel;
        let goal = Goal::AtLeast(ALWAYS_RATIO_MIN);
        let verdict = match ratio.filter(|_| is_ours) {
            Some(ratio) => session.judge("rate with always, to redis'".into(), goal, ratio.median),
            None => String::new(),
        };
        let shown = ratio.map(|ratio| ratio.to_string()).unwrap_or_default();
        row(&mut table, series, [shown, if is_ours { goal.to_string() } else { String::new() }, verdict]);
    }
    let servers = Json::Array(all.iter().map(Series::to_json).collect());
    session.report("aof", "aof always: SET, no pipeline", &table, vec![("servers", servers)]);
    Ok(())
}
