//! `hot-key`, `databases` and `scatter`: loads of a different shape than uniform single keys of a single
//! database.
//!
//! - `hot-key`: nine of ten requests go to the same key, where a server cannot divide the work by keys.
//! - `databases`: writes with an append-only file, to a single database and alternating over all sixteen. A
//!   log with a lock or a buffer for each database, or for all of them, shows here.
//! - `scatter`: MGET and MSET of many unrelated keys, so that each is a cache miss of its own.
//!
//! All rows of an experiment come from the same servers in the same rounds.

use std::time::Duration;

use anyhow::{Result, bail};

use super::Session;
use super::aof::wait_until;
use super::lanes::{self, Lane, Traffic};
use super::series::Series;
use super::throughput::{IO_THREADS_FROM, busy_cell};
use crate::json::Json;
use crate::load::distribution::Distribution;
use crate::load::keys::KeyRange;
use crate::load::requests::Command;
use crate::promises::Promise;
use crate::servers::{Launch, ServerKind, ServerProgram, ask};
use crate::stats::{Goal, Spread};
use crate::sys;
use crate::table::Table;

const KEYS: u64 = 300_000;
const HOT_PERCENT: u8 = 90;
const DATABASES: usize = 16;
const PIPELINE: usize = 16;

/// With a hot key, many threads must not be slower than a single thread.
const HOT_GOAL: Goal = Goal::AtLeast(1.0);
/// Rate over many databases, relative to the rate over one.
const DATABASES_GOAL: Goal = Goal::AtLeast(0.95);
const SCATTER_GOAL: Goal = Goal::AtMost(1.0);

/// The judged metric of each row of Evenkeel.
#[derive(Clone, Copy)]
enum Judged {
    /// The rate, relative to Valkey with the same load.
    Rate,
    /// The rate with the harder load, relative to the easier load.
    Harder,
    /// CPU per key, relative to Valkey.
    Cpu,
}

/// A load with its name in the table.
struct Shape {
    name: String,
    traffic: Traffic,
    /// Keys per command, by which the CPU is divided.
    keys: usize,
}

pub(super) fn estimate(session: &Session) -> Duration {
    let measurements = (4 + 4 + 4) * session.rounds * session.programs.len();
    session.time_for(measurements)
}

pub(crate) fn hot_key(session: &mut Session) -> Result<()> {
    let spread_out =
        [("uniform", Distribution::Uniform), ("hot", Distribution::Hot { percent: HOT_PERCENT })];
    let shapes = [Command::Set, Command::Get].into_iter().flat_map(|command| {
        let shape = move |(name, distribution): (&str, Distribution)| Shape {
            name: format!("{command}, {name}"),
            traffic: Traffic { command: command.clone(), pipeline: PIPELINE, distribution, ..unpinned() },
            keys: 1,
        };
        spread_out.map(shape)
    });
    let lanes = start(session, &[], sys::cores())?;
    let title = format!("hot-key: {HOT_PERCENT}% of the requests to one key, pipeline {PIPELINE}, unpinned");
    run(session, "hot-key", &title, &lanes, &shapes.collect::<Vec<_>>(), Judged::Rate)
}

pub(crate) fn databases(session: &mut Session) -> Result<()> {
    let over = |count: usize| {
        let commands = (0..count).map(|db| format!("SELECT {db} ; SET {{key}} {{value}}"));
        Command::Words(commands.collect::<Vec<String>>().join(" ; "))
    };
    // A batch of each connection is SELECT, SET, SELECT, SET: both shapes do the same, to as many keys in
    // all, except for the numbers of the databases.
    let shape = |count: usize| Shape {
        name: format!("{count} database{}", if count == 1 { "" } else { "s" }),
        traffic: Traffic {
            command: over(count),
            pipeline: 2 * DATABASES,
            keys: KEYS / count as u64,
            ..unpinned()
        },
        keys: 1,
    };
    let lanes = start(session, &[], sys::cores())?;
    for lane in &lanes {
        spread_over_databases(lane)?;
        lane.set("auto-aof-rewrite-percentage", "0")?;
        lane.set("appendonly", "yes")?;
        wait_until(lane, "aof_rewrite_in_progress:0")?;
    }
    let title =
        format!("databases: SELECT and SET with a log (everysec), pipeline {}, unpinned", 2 * DATABASES);
    run(session, "databases", &title, &lanes, &[shape(1), shape(DATABASES)], Judged::Harder)
}

/// Gives each other database its part of as many keys as the first database has.
fn spread_over_databases(lane: &Lane) -> Result<()> {
    let swap = |with: usize| {
        let answer = ask(lane.server.address, &["SWAPDB", "0", &with.to_string()])?;
        if answer.starts_with("+OK") { Ok(()) } else { bail!("{}: SWAPDB: {answer}", lane.name) }
    };
    let last = DATABASES - 1;
    swap(last)?;
    for other in 1..DATABASES {
        lane.fill(KeyRange { first: 0, count: KEYS / DATABASES as u64 }, Traffic::default().value_size)?;
        swap(other)?;
    }
    Ok(())
}

pub(crate) fn scatter(session: &mut Session) -> Result<()> {
    let repeated = |name: &str, words: &str, count: usize| {
        let words = vec![words; count].join(" ");
        Shape {
            name: format!("{name} of {count}"),
            traffic: Traffic {
                command: Command::Words(format!("{name} {words}")),
                value_size: 100,
                ..Traffic::pinned(session)
            },
            keys: count,
        }
    };
    let shapes = [
        repeated("MGET", "{key}", 10),
        repeated("MGET", "{key}", 100),
        repeated("MSET", "{key} {value}", 10),
        repeated("MSET", "{key} {value}", 100),
    ];
    let lanes = start(session, &session.server_cpus, 1)?;
    let title = "scatter: any keys, 100 B values, pinned; CPU per key";
    run(session, "scatter", title, &lanes, &shapes, Judged::Cpu)
}

/// All cores for server and load alike.
fn unpinned() -> Traffic {
    Traffic { load_threads: sys::cores().div_ceil(2), ..Traffic::default() }
}

fn start(session: &Session, cpus: &[usize], threads: usize) -> Result<Vec<Lane>> {
    let kinds = [ServerKind::Valkey, ServerKind::Evenkeel, ServerKind::Redis];
    let programs = kinds.into_iter().filter_map(|kind| session.program(kind));
    let lane = |program: &ServerProgram| {
        let spins = program.kind == ServerKind::Valkey && threads < IO_THREADS_FROM;
        let launch =
            Launch { cpus: cpus.to_vec(), threads: if spins { 1 } else { threads }, ..Launch::default() };
        let lane = Lane::start(program, program.kind.name(), &launch)?;
        lane.fill(KeyRange { first: 0, count: KEYS }, Traffic::default().value_size)?;
        Ok(lane)
    };
    programs.map(lane).collect()
}

fn run(
    session: &mut Session,
    experiment: &'static str,
    title: &str,
    lanes: &[Lane],
    shapes: &[Shape],
    judged: Judged,
) -> Result<()> {
    let head =
        ["", "", "requests/s", "to the easier", "CPU us", "to valkey", "goal", "", "p99", "max", "load busy"];
    let (mut table, mut figures) = (Table::new(&head), Vec::new());
    let mut before: Option<Vec<Series>> = None;
    for (index, shape) in shapes.iter().enumerate() {
        let all = lanes::rounds(session, lanes, &shape.traffic)?;
        let valkey = all.iter().find(|series| series.kind == ServerKind::Valkey);
        for (lane, series) in all.iter().enumerate() {
            let per_key = |sample: &super::series::Sample| sample.cpu_us / shape.keys as f64;
            let text = |spread: Option<Spread>| spread.map(|spread| spread.to_string()).unwrap_or_default();
            let to_valkey = valkey.filter(|valkey| valkey.kind != series.kind);
            // Shapes come in pairs, the harder shape second.
            let easier = before.as_ref().filter(|_| index % 2 == 1).map(|before| &before[lane]);
            let [_, p99, _, max] = series.latency_cells();
            let judged = Some(judged).filter(|_| series.kind == ServerKind::Evenkeel);
            let judged = judged.and_then(|judged| match judged {
                Judged::Rate => {
                    let ratio = series.ratio_to(to_valkey?, |sample| sample.rate)?;
                    Some((None, format!("rate to valkey's: {}", shape.name), HOT_GOAL, ratio.median))
                }
                Judged::Harder => {
                    let ratio = series.ratio_to(easier?, |sample| sample.rate)?;
                    let what = format!("rate with {}, to one", shape.name);
                    Some((Some(Promise::NothingGlobal), what, DATABASES_GOAL, ratio.median))
                }
                Judged::Cpu => {
                    let ratio = series.ratio_to(to_valkey?, |sample| sample.cpu_us)?;
                    Some((None, format!("CPU to valkey's: {}", shape.name), SCATTER_GOAL, ratio.median))
                }
            });
            let (goal, verdict) = match judged {
                Some((promise, what, goal, value)) => {
                    (goal.to_string(), session.judge_for(promise, what, goal, value))
                }
                None => Default::default(),
            };
            table.row(vec![
                shape.name.clone(),
                series.name.clone(),
                series.rate_cell(),
                text(easier.and_then(|easier| series.ratio_to(easier, |sample| sample.rate))),
                text(Some(series.spread(per_key))),
                text(to_valkey.and_then(|valkey| series.ratio_to(valkey, |sample| sample.cpu_us))),
                goal,
                verdict,
                p99,
                max,
                busy_cell(series),
            ]);
        }
        let named = |series: &Series| {
            let mut json = series.to_json();
            json["server"] = format!("{}: {}", series.name, shape.name).into();
            json
        };
        figures.extend(all.iter().map(named));
        before = Some(all);
    }
    session.report(experiment, title, &table, vec![("servers", Json::Array(figures))]);
    Ok(())
}
