//! `aof`: the cost of an append-only file.
//!
//! Each server runs twice, without and with `appendonly yes`. The cost of the file is the additional CPU time
//! per command in the same round, of the whole process, its writing threads included. With
//! `appendfsync always` the disk decides, so there the rate is compared, in two setups:
//!
//! - Nothing pinned, since the syncing thread needs a core from somewhere, as in production. Evenkeel has a
//!   single worker or, as installed, a worker per core. The load has a thread for every four cores, as a
//!   thread serves no more than some 150,000 requests a second.
//! - Each server on its own core, with the same load.

use std::time::Duration;

use anyhow::{Result, bail};

use super::lanes::{self, Lane, Traffic};
use super::series::Series;
use super::throughput::ThroughputArgs;
use super::{COST_HEAD, Session};
use crate::interrupt;
use crate::json::Json;
use crate::load::keys::KeyRange;
use crate::servers::{Launch, ServerKind, ask};
use crate::stats::Goal;
use crate::sys;
use crate::table::Table;

/// CPU microseconds that `everysec` may add to a SET, and to the serving thread's part of it.
const ADDED_US_MAX: f64 = 0.5;
const ADDED_TO_SERVING_US_MAX: f64 = 0.1;
/// Rate with `always`, relative to Redis on the same disk.
const ALWAYS_RATIO_MIN: f64 = 2.0;
/// Suffix for the server that has as many workers as there are cores.
const EACH_CORE: &str = ", always, a worker per core";
/// Longest time to turn the file on, in seconds.
const TURN_ON_S_MAX: u32 = 60;

pub(super) fn estimate(session: &Session) -> Duration {
    session.time_for((4 * session.programs.len() * 2 + 1) * session.rounds)
}

pub(crate) fn aof(session: &mut Session) -> Result<()> {
    let args = ThroughputArgs::default();
    let kinds: Vec<ServerKind> = [ServerKind::Valkey, ServerKind::Evenkeel, ServerKind::Redis]
        .into_iter()
        .filter(|kind| session.program(*kind).is_some())
        .collect();
    let mut lanes: Vec<Lane> = Vec::new();
    for kind in &kinds {
        lanes.push(start(session, *kind, &args, 1, "")?);
        let on = start(session, *kind, &args, 1, ", everysec")?;
        log(&on)?;
        lanes.push(on);
    }
    for pipeline in [1, 16] {
        everysec(session, &lanes, &args, pipeline)?;
    }
    drop(lanes);

    for unpinned in [true, false] {
        let args = ThroughputArgs { unpinned, ..args.clone() };
        let mut lanes = Vec::new();
        for kind in &kinds {
            lanes.push(start(session, *kind, &args, 1, ", always")?);
            if unpinned && *kind == ServerKind::Evenkeel && sys::cores() > 1 {
                lanes.push(start(session, *kind, &args, sys::cores(), EACH_CORE)?);
            }
        }
        for lane in &lanes {
            lane.set("appendfsync", "always")?;
            log(lane)?;
        }
        always(session, &lanes, &args)?;
    }
    Ok(())
}

fn start(
    session: &Session,
    kind: ServerKind,
    args: &ThroughputArgs,
    threads: usize,
    suffix: &str,
) -> Result<Lane> {
    let program = session.program(kind).expect("it was found");
    let name = format!("{}{suffix}", kind.name());
    let cpus = if args.unpinned { Vec::new() } else { session.server_cpus.clone() };
    let lane = Lane::start(program, &name, &Launch { cpus, threads, ..Launch::default() })?;
    lane.fill(KeyRange { first: 0, count: args.keys }, args.value_size)?;
    Ok(lane)
}

/// Turns the file on, and waits until its base is written.
fn log(lane: &Lane) -> Result<()> {
    // Growth must not start a rewrite in the middle of a measurement.
    lane.set("auto-aof-rewrite-percentage", "0")?;
    lane.set("appendonly", "yes")?;
    wait_until(lane, "aof_rewrite_in_progress:0")?;
    wait_until(lane, "aof_enabled:1")
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
        ..match args.unpinned {
            true => Traffic { load_threads: sys::cores().div_ceil(4), ..Traffic::default() },
            false => Traffic::pinned(session),
        }
    }
}

fn everysec(session: &mut Session, lanes: &[Lane], args: &ThroughputArgs, pipeline: usize) -> Result<()> {
    let all = lanes::rounds(session, lanes, &traffic(session, args, pipeline))?;
    let mut table = Table::new(&[&["", "requests/s"], &COST_HEAD[..], &["p99", "max"]].concat());
    for pair in all.chunks(2) {
        let (off, on) = (&pair[0], &pair[1]);
        let is_ours = on.kind == ServerKind::Evenkeel;
        let mut judged = |what: &str, most, added| {
            session.added_cells(None, is_ours, format!("{what}, pipeline {pipeline}"), most, added)
        };
        let added = on.more_than(off, |sample| sample.cpu_us);
        let whole = judged("CPU us that everysec adds", ADDED_US_MAX, added);
        let to_serving = on.more_than(off, |sample| sample.busiest_us);
        let what = "CPU us that everysec adds to the serving thread";
        let serving = judged(what, ADDED_TO_SERVING_US_MAX, to_serving);
        for (series, whole, serving) in
            [(off, <[String; 3]>::default(), <[String; 3]>::default()), (on, whole, serving)]
        {
            let busiest = series.spread(|sample| sample.busiest_us).to_string();
            let middle = whole.into_iter().chain([busiest]).chain(serving);
            row(&mut table, series, middle);
        }
    }
    let title = format!(
        "aof everysec: SET, pipeline {pipeline}, {} B values, {} clients",
        args.value_size, args.clients
    );
    let servers = Json::Array(all.iter().map(Series::to_json).collect());
    session.report("aof", &title, &table, vec![("pipeline", pipeline.into()), ("servers", servers)]);
    Ok(())
}

fn row(table: &mut Table, series: &Series, middle: impl IntoIterator<Item = String>) {
    let [_, p99, _, max] = series.latency_cells();
    let mut cells = vec![series.name.clone(), series.rate_cell(), series.cpu_cell()];
    cells.extend(middle);
    cells.extend([p99, max]);
    table.row(cells);
}

fn always(session: &mut Session, lanes: &[Lane], args: &ThroughputArgs) -> Result<()> {
    let all = lanes::rounds(session, lanes, &traffic(session, args, 1))?;
    let redis = all.iter().find(|series| series.kind == ServerKind::Redis).cloned();
    let mut table =
        Table::new(&["", "requests/s", "CPU us/command", "rate to redis'", "goal", "", "p99", "max"]);
    for series in &all {
        let ratio = redis.as_ref().filter(|redis| redis.kind != series.kind);
        let ratio = ratio.and_then(|redis| series.ratio_to(redis, |sample| sample.rate));
        let is_ours = series.kind == ServerKind::Evenkeel && args.unpinned;
        let goal = Goal::AtLeast(ALWAYS_RATIO_MIN);
        let verdict = match ratio.filter(|_| is_ours) {
            Some(ratio) => {
                let workers = if series.name.ends_with(EACH_CORE) { " and a worker per core" } else { "" };
                session.judge(format!("rate with always{workers}, to redis'"), goal, ratio.median)
            }
            None => String::new(),
        };
        let shown = ratio.map(|ratio| ratio.to_string()).unwrap_or_default();
        row(&mut table, series, [shown, if is_ours { goal.to_string() } else { String::new() }, verdict]);
    }
    let servers = Json::Array(all.iter().map(Series::to_json).collect());
    let place = if args.unpinned { "unpinned" } else { "server and its file on one core" };
    session.report(
        "aof",
        &format!("aof always: SET, no pipeline, {place}"),
        &table,
        vec![("servers", servers)],
    );
    Ok(())
}
