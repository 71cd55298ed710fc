//! `throughput`: the cost of a SET and a GET, with and without a pipeline.
//!
//! The main metric is the CPU time of the server process per command, user and system, as a ratio to Valkey's
//! in the same round. Requests per second also depend on the load generator and the machine; the CPU time
//! does not depend on whether the server was waiting. Pinned, server and load have a CPU each and Evenkeel a
//! single worker. Unpinned, each server uses its threads as it likes, and the load shares the cores with it.

use std::time::Duration;

use anyhow::Result;

use super::Session;
use super::lanes::{self, Lane, Traffic};
use super::series::{self, Series};
use crate::json::Json;
use crate::load::keys::KeyRange;
use crate::load::requests::Command;
use crate::servers::{Launch, ServerKind};
use crate::stats::{Goal, Spread};
use crate::table::{Table, thousands};
use crate::{proc, sys};

/// The loads, and the goals: CPU per command of a worker on a single core, as a ratio to Valkey.
const LOADS: [(Command, usize, Option<f64>); 6] = [
    (Command::Set, 16, Some(0.40)),
    (Command::Get, 16, Some(0.45)),
    (Command::Set, 1, Some(0.75)),
    (Command::Get, 1, Some(0.75)),
    (Command::Set, 100, None),
    (Command::Get, 100, None),
];
/// Fewest cores for Valkey with I/O threads. Its threads wait by spinning: with fewer cores they only take
/// them from the main thread and the load.
pub(super) const IO_THREADS_FROM: usize = 4;
/// Share of the free memory that the servers of an experiment may take.
const MEMORY_SHARE: f64 = 0.85;
/// Keys that the slowest fill writes per second, for the estimate of the time.
const FILL_RATE: u64 = 300_000;
/// The load counts as the limit when it runs for more than this share of the time.
pub(super) const LOAD_IS_THE_LIMIT: f64 = 0.95;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ThroughputArgs {
    /// Number of keys
    #[arg(short, long, default_value_t = 300_000)]
    pub(super) keys: u64,
    /// Bytes of a value
    #[arg(short = 'd', long, default_value_t = 500)]
    pub(super) value_size: usize,
    /// Connections at a time
    #[arg(short, long, default_value_t = 50)]
    pub(super) clients: usize,
    /// Let all servers run on all cores, with as many threads
    #[arg(long)]
    pub(super) unpinned: bool,
}

impl Default for ThroughputArgs {
    fn default() -> Self {
        Self { keys: 300_000, value_size: 500, clients: 50, unpinned: false }
    }
}

/// A server to compare.
struct LanePlan {
    kind: ServerKind,
    name: String,
    threads: usize,
    is_control: bool,
}

impl ThroughputArgs {
    pub(super) fn estimate(&self, session: &Session) -> Duration {
        let lanes = self.lanes(session);
        let fills = lanes.iter().filter(|lane| lane.kind != ServerKind::Floor).count() as u64;
        let fill = Duration::from_secs(fills * self.keys / FILL_RATE);
        session.time_for(lanes.len() * session.rounds * LOADS.len()) + fill
    }

    /// Returns as many servers as the memory holds, the most important first.
    fn lanes(&self, session: &Session) -> Vec<LanePlan> {
        let threads = if self.unpinned { sys::cores() } else { 1 };
        let several = if threads > 1 { format!(", {threads} threads") } else { String::new() };
        let lane = |kind: ServerKind, suffix: &str, threads, is_control| {
            let name = format!("{}{suffix}", kind.name());
            LanePlan { kind, name, threads, is_control }
        };
        let ours = if session.program(ServerKind::Evenkeel).is_some() {
            ServerKind::Evenkeel
        } else {
            ServerKind::Valkey
        };
        let mut lanes = vec![
            lane(ServerKind::Valkey, "", 1, false),
            lane(ServerKind::Evenkeel, &several, threads, false),
            lane(ours, " again", if ours == ServerKind::Evenkeel { threads } else { 1 }, true),
            lane(ServerKind::Redis, "", 1, false),
        ];
        if threads >= IO_THREADS_FROM {
            lanes.push(lane(ServerKind::Valkey, &several, threads, false));
        }
        let budget = (proc::memory_available() as f64 * MEMORY_SHARE) as u64;
        let fit = (budget / lanes::memory_for(self.keys, self.value_size).max(1)) as usize;
        lanes.retain(|lane| session.program(lane.kind).is_some());
        lanes.truncate(fit);
        lanes.extend(session.program(ServerKind::Floor).map(|_| lane(ServerKind::Floor, "", 1, false)));
        lanes
    }

    fn start(&self, session: &Session, plan: &LanePlan) -> Result<Lane> {
        let program = session.program(plan.kind).expect("lanes are made of the programs that were found");
        let cpus = if self.unpinned { Vec::new() } else { session.server_cpus.clone() };
        let mut lane =
            Lane::start(program, &plan.name, &Launch { cpus, threads: plan.threads, ..Launch::default() })?;
        lane.is_control = plan.is_control;
        lane.fill(KeyRange { first: 0, count: self.keys }, self.value_size)?;
        Ok(lane)
    }

    fn traffic(&self, session: &Session, command: Command, pipeline: usize) -> Traffic {
        let (load_threads, load_cpus) = match self.unpinned {
            true => (sys::cores().div_ceil(2), Vec::new()),
            false => (session.load_cpus.len().max(1), session.load_cpus.clone()),
        };
        let (clients, keys, value_size) = (self.clients, self.keys, self.value_size);
        Traffic {
            command,
            pipeline,
            clients,
            keys,
            value_size,
            load_threads,
            load_cpus,
            ..Traffic::default()
        }
    }

    fn title(&self, session: &Session, command: &Command, pipeline: usize) -> String {
        let place = match self.unpinned {
            true => format!("unpinned, {} cores", sys::cores()),
            false => format!("server on cpu {:?}, load on cpu {:?}", session.server_cpus, session.load_cpus),
        };
        let (keys, clients, size) = (thousands(self.keys as f64), self.clients, self.value_size);
        let (rounds, seconds) = (session.rounds, session.measured.as_secs_f64());
        format!(
            "{command}, pipeline {pipeline}: {size} B values, {clients} clients, {keys} keys; {place}; \
             {rounds} x {seconds} s"
        )
    }
}

pub(crate) fn throughput(session: &mut Session, args: &ThroughputArgs) -> Result<()> {
    let plans = args.lanes(session);
    let left_out =
        session.programs.iter().filter(|program| !plans.iter().any(|lane| lane.kind == program.kind));
    for program in left_out {
        let gigabytes = lanes::memory_for(args.keys, args.value_size) as f64 / 1e9;
        println!("{}: left out, {gigabytes:.1} GB more do not fit into the memory", program.kind.name());
    }
    println!(
        "\nCPU ratio: to valkey in the same round; \
         of a server that is measured again: to itself, which is the noise"
    );
    let lanes = plans.iter().map(|plan| args.start(session, plan)).collect::<Result<Vec<Lane>>>()?;
    for (command, pipeline, goal) in LOADS {
        let traffic = args.traffic(session, command.clone(), pipeline);
        let all = lanes::rounds(session, &lanes, &traffic)?;
        let calls = lanes.iter().map(|lane| lanes::system_calls(lane, &traffic));
        let calls = calls.collect::<Result<Vec<Option<f64>>>>()?;
        let goal = goal.filter(|_| !args.unpinned).map(Goal::AtMost);
        let title = args.title(session, &command, pipeline);
        let table = table(
            session,
            (&all, &calls),
            goal,
            &format!("{command}, pipeline {pipeline}, {} keys", thousands(args.keys as f64)),
        );
        let figures = vec![
            ("command", command.to_string().into()),
            ("pipeline", pipeline.into()),
            ("keys", args.keys.into()),
            ("pinned", (!args.unpinned).into()),
            ("system_calls_per_command", calls.into()),
            ("servers", Json::Array(all.iter().map(Series::to_json).collect())),
        ];
        session.report("throughput", &title, &table, figures);
    }
    Ok(())
}

/// Formats a row per server, with the ratio to Valkey, and of the control to its original.
fn table(
    session: &mut Session,
    (all, calls): (&[Series], &[Option<f64>]),
    goal: Option<Goal>,
    what: &str,
) -> Table {
    let head = [
        "",
        "requests/s",
        "CPU us/command",
        "kernel",
        "CPU ratio",
        "goal",
        "",
        "p50",
        "p99",
        "p99.9",
        "max",
        "switches/1000",
        "faults/1000",
        "calls/command",
        "RSS MB",
        "load busy",
    ];
    let mut table = Table::new(&head);
    let noise = series::noise(all, |sample| sample.cpu_us);
    for (series, calls) in all.iter().zip(calls) {
        let ratio = ratio_to_valkey(all, series);
        let is_ours = series.kind == ServerKind::Evenkeel && !series.is_control;
        let no_difference = ratio.is_some_and(|ratio| (ratio.median - 1.0).abs() <= noise);
        let verdict = match (ratio, goal.filter(|_| is_ours)) {
            _ if series.is_control => format!("noise {noise:.2}"),
            (Some(ratio), Some(goal)) => {
                session.judge(format!("CPU to valkey's: {what}"), goal, ratio.median)
            }
            _ if no_difference => "no difference".to_owned(),
            _ => String::new(),
        };
        let mut cells = vec![
            series.name.clone(),
            series.rate_cell(),
            series.cpu_cell(),
            format!("{:.0}%", series.median(|sample| sample.system_share) * 100.0),
            ratio.map(|ratio| ratio.to_string()).unwrap_or_default(),
            goal.filter(|_| is_ours).map(|goal| goal.to_string()).unwrap_or_default(),
            verdict,
        ];
        cells.extend(series.latency_cells());
        cells.extend([
            format!("{:.1}", series.median(|sample| sample.switches)),
            format!("{:.2}", series.median(|sample| sample.faults)),
            calls.map_or_else(String::new, |calls| format!("{calls:.2}")),
            format!("{:.0}", series.median(|sample| sample.rss_bytes) / 1e6),
            busy_cell(series),
        ]);
        table.row(cells);
    }
    table
}

/// Returns the ratio of a server to Valkey, and of the control to its original; `None` for Valkey itself.
fn ratio_to_valkey(all: &[Series], series: &Series) -> Option<Spread> {
    let reference = if series.is_control { series.kind } else { ServerKind::Valkey };
    let reference = all.iter().find(|other| other.kind == reference && !other.is_control)?;
    if std::ptr::eq(reference, series) {
        return None;
    }
    series.ratio_to(reference, |sample| sample.cpu_us)
}

/// Formats the load's busy share; an exclamation mark if the load, not the server, set the rate.
pub(super) fn busy_cell(series: &Series) -> String {
    let busy = series.median(|sample| sample.load_busy);
    format!("{:.0}%{}", busy * 100.0, if busy > LOAD_IS_THE_LIMIT { " !" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::super::series::tests::series;
    use super::*;

    #[test]
    fn ratios_have_the_right_reference() {
        let all = [
            series(ServerKind::Valkey, false, &[2.0, 2.0, 2.0]),
            series(ServerKind::Evenkeel, false, &[1.0, 1.0, 1.0]),
            series(ServerKind::Evenkeel, true, &[1.1, 1.1, 1.1]),
        ];
        let median = |index: usize| ratio_to_valkey(&all, &all[index]).map(|ratio| ratio.median);
        assert_eq!(median(0), None);
        assert_eq!(median(1), Some(0.5));
        assert_eq!(median(2), Some(1.1));
        assert_eq!(ratio_to_valkey(&all[1..2], &all[1]), None);
    }

    #[test]
    fn a_busy_load_is_marked() {
        let mut busy = series(ServerKind::Redis, false, &[1.0]);
        assert_eq!(busy_cell(&busy), "20%");
        busy.samples[0].load_busy = 0.99;
        assert_eq!(busy_cell(&busy), "99% !");
    }
}
