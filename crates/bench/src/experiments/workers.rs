//! `workers`: the benefit of a second worker.
//!
//! A single worker is compared with as many workers as there are cores, unpinned, under the same load. On a
//! small machine the load needs cores as well: there, more workers can only win while a command costs the
//! server more than the load, and the table shows how busy the load was.

use std::time::Duration;

use anyhow::Result;

use super::Session;
use super::lanes::{self, Lane, Traffic};
use super::series::{self, Series};
use super::throughput;
use crate::json::{Json, object};
use crate::load::keys::KeyRange;
use crate::load::requests::Command;
use crate::servers::{Launch, ServerKind};
use crate::stats::Goal;
use crate::sys;
use crate::table::Table;

const LOADS: [(Command, usize); 4] =
    [(Command::Set, 16), (Command::Get, 16), (Command::Set, 1), (Command::Get, 1)];
/// A single worker, all workers, and a single worker again for the noise.
const LANES: usize = 3;
const KEYS: u64 = 300_000;
const VALUE_SIZE: usize = 500;
const CLIENTS: usize = 50;
const GOAL: Goal = Goal::AtLeast(1.0);

pub(super) fn estimate(session: &Session) -> Duration {
    if session.program(ServerKind::Evenkeel).is_none() {
        return Duration::ZERO;
    }
    session.time_for(LANES * session.rounds * LOADS.len())
}

pub(crate) fn workers(session: &mut Session) -> Result<()> {
    let Some(lanes) = start(session)? else {
        println!("\nworkers: skipped, since there is no evenkeel");
        return Ok(());
    };
    let mut table = Table::new(&[
        "",
        "one worker",
        "again",
        "all workers",
        "rate",
        "goal",
        "",
        "CPU",
        "CPU us, one",
        "CPU us, all",
        "load busy",
    ]);
    let mut figures = Vec::new();
    for (command, pipeline) in LOADS {
        let all = lanes::rounds(session, &lanes, &traffic(command.clone(), pipeline))?;
        let row = row(session, &all, &format!("{command}, pipeline {pipeline}"));
        table.row(row);
        let servers = Json::Array(all.iter().map(Series::to_json).collect());
        figures.push(object(vec![
            ("command", command.to_string().into()),
            ("pipeline", pipeline.into()),
            ("servers", servers),
        ]));
    }
    let title = format!(
        "One worker and {}, unpinned, {CLIENTS} clients, {VALUE_SIZE} B values: \
         requests/s, and ratios of all to one",
        sys::cores()
    );
    session.report("workers", &title, &table, vec![("loads", Json::Array(figures))]);
    Ok(())
}

/// Starts a single worker, the same again, and all workers.
fn start(session: &Session) -> Result<Option<Vec<Lane>>> {
    let Some(program) = session.program(ServerKind::Evenkeel) else { return Ok(None) };
    let mut lanes = Vec::new();
    for (name, threads) in [("one worker", 1), ("one worker again", 1), ("all workers", sys::cores())] {
        let mut lane = Lane::start(program, name, &Launch { threads, ..Launch::default() })?;
        lane.is_control = name.ends_with("again");
        lane.fill(KeyRange { first: 0, count: KEYS }, VALUE_SIZE)?;
        lanes.push(lane);
    }
    Ok(Some(lanes))
}

fn traffic(command: Command, pipeline: usize) -> Traffic {
    Traffic {
        command,
        pipeline,
        clients: CLIENTS,
        keys: KEYS,
        value_size: VALUE_SIZE,
        load_threads: sys::cores().div_ceil(2),
        ..Traffic::default()
    }
}

fn row(session: &mut Session, all: &[Series], what: &str) -> Vec<String> {
    let [one, again, many] = all else { unreachable!("three lanes were started") };
    let noise = series::noise(all, |sample| sample.rate);
    let rate = many.ratio_to(one, |sample| sample.rate);
    let cpu = many.ratio_to(one, |sample| sample.cpu_us);
    let limited = one.median(|sample| sample.load_busy) > throughput::LOAD_IS_THE_LIMIT;
    let judged = rate.map(|rate| session.judge(format!("all workers to one: {what}"), GOAL, rate.median));
    let why = match rate {
        _ if limited => ", limited by the load",
        Some(rate) if (rate.median - 1.0).abs() <= noise => ", within the noise",
        _ => "",
    };
    let verdict = judged.map_or_else(String::new, |judged| judged + why);
    let text = |ratio: Option<crate::stats::Spread>| ratio.map(|ratio| ratio.to_string()).unwrap_or_default();
    vec![
        what.to_owned(),
        one.rate_cell(),
        again.rate_cell(),
        many.rate_cell(),
        text(rate),
        GOAL.to_string(),
        verdict,
        text(cpu),
        one.cpu_cell(),
        many.cpu_cell(),
        throughput::busy_cell(many),
    ]
}
