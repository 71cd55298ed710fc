//! The experiments: each starts the servers that it compares, measures them in alternating rounds, and ends
//! them.
//!
//! A round measures every server once, briefly, one after the other; the next round starts with another
//! server. So anything that the machine does meanwhile (other tenants, temperature, page cache) affects all
//! servers alike, and ratios are taken within a round (see `stats`).

mod account;
mod accounting;
mod aof;
mod churn;
mod cluster;
mod connections;
mod elements;
mod failover;
mod features;
mod feed;
mod felt;
mod frozen;
mod full_sync;
mod generator;
mod http;
mod lanes;
mod load;
mod memory;
mod migration;
mod overhead;
mod probe;
mod replica;
mod ring;
mod scale;
mod series;
mod shapes;
mod sink;
mod snapshot;
mod stalls;
mod throughput;
mod upgrade;
mod values;
mod wake_up;
mod workers;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::json::{Json, object};
use crate::page::page;
use crate::pauses::Pauses;
use crate::promises::{self, Promise, Verdict};
use crate::servers::{ProgramPaths, ServerKind, ServerProgram};
use crate::stats::{Goal, Spread};
use crate::table::{Table, figure};
use crate::{interrupt, proc, sys};

pub(crate) use accounting::accounting;
pub(crate) use aof::aof;
pub(crate) use churn::{ChurnArgs, churn};
pub(crate) use cluster::cluster;
pub(crate) use connections::connections;
pub(crate) use elements::elements;
pub(crate) use failover::{FailoverArgs, failover};
pub(crate) use features::features;
pub(crate) use felt::DataArgs;
pub(crate) use frozen::frozen_disk;
pub(crate) use full_sync::full_sync;
pub(crate) use generator::generator;
pub(crate) use http::http;
pub(crate) use load::load;
pub(crate) use memory::{MemoryArgs, memory};
pub(crate) use migration::{MigrationArgs, migration};
pub(crate) use overhead::{OverheadArgs, overhead};
pub(crate) use replica::replica;
pub(crate) use scale::{ScaleArgs, scale};
pub(crate) use shapes::{databases, hot_key, scatter};
pub(crate) use snapshot::snapshot;
pub(crate) use stalls::{KeysArgs, StallsArgs, expiry, growth, stalls};
pub(crate) use throughput::{ThroughputArgs, throughput};
pub(crate) use upgrade::upgrade;
pub(crate) use values::{ValuesArgs, values};
pub(crate) use wake_up::wake_up;
pub(crate) use workers::workers;

/// Default rounds and seconds per measurement: thorough and quick.
const THOROUGH: (usize, f64) = (5, 2.0);
const QUICK: (usize, f64) = (3, 0.6);
/// Warm-up before each measurement: connections are open, buffers and caches have their size.
const WARM_UP: Duration = Duration::from_millis(200);
/// Opening connections and coming to rest between two measurements, for the estimate of the time.
const CHANGEOVER: Duration = Duration::from_millis(100);
/// Time for which the idle machine is observed, before and after a measurement of waits.
const PAUSE_PROBE_TIME: Duration = Duration::from_secs(3);
const SECONDS_MAX: f64 = 3_600.0;
/// Keys of the large run in `all`.
const MANY_KEYS: u64 = 10_000_000;

/// Command-line options of all experiments.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    program_paths: ProgramPaths,
    /// 3 rounds of 0.6 s instead of 5 of 2 s
    #[arg(long)]
    quick: bool,
    /// Rounds in which each server is measured once
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds of each measurement
    #[arg(long)]
    seconds: Option<f64>,
    /// CPUs of the server in pinned runs [default: the first that this process may use]
    #[arg(long, value_name = "LIST")]
    server_cpus: Option<String>,
    /// CPUs of the load in pinned runs [default: the second, or the first on a single CPU]
    #[arg(long, value_name = "LIST")]
    load_cpus: Option<String>,
    /// Write all metrics to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with tables and charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// A run of the program over one or more experiments.
pub(crate) struct Session {
    /// Servers that speak RESP.
    programs: Vec<ServerProgram>,
    memcached: Option<ServerProgram>,
    rounds: usize,
    measured: Duration,
    server_cpus: Vec<usize>,
    load_cpus: Vec<usize>,
    json: Option<PathBuf>,
    html: Option<PathBuf>,
    records: Vec<Json>,
    verdicts: Vec<Verdict>,
    /// Pauses of the idle machine, from an observation until the next report.
    pauses: Option<Pauses>,
    /// Experiments that could not be measured, and the errors.
    failures: Vec<(&'static str, String)>,
    started: Instant,
}

/// Heads for the costs of a command in the whole process and in the serving thread, each with
/// [`Session::added_cells`].
const COST_HEAD: [&str; 8] = ["CPU us/command", "added", "goal", "", "serving thread", "added", "goal", ""];

impl Session {
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let (rounds, seconds) = if options.quick { QUICK } else { THOROUGH };
        let (rounds, seconds) = (options.rounds.unwrap_or(rounds), options.seconds.unwrap_or(seconds));
        if rounds == 0 || !(0.01..=SECONDS_MAX).contains(&seconds) {
            bail!("at least one round, and 0.01 to {SECONDS_MAX} seconds");
        }
        let found = options.program_paths.find()?;
        let (memcached, programs): (Vec<ServerProgram>, _) =
            found.into_iter().partition(|program| program.kind == ServerKind::Memcached);
        let allowed = sys::allowed_cpus();
        let first = allowed.first().copied().unwrap_or(0);
        let second = allowed.get(1).copied().unwrap_or(first);
        let cpus = |list: &Option<String>, default| match list {
            Some(list) => sys::parse_cpus(list),
            None => Ok(vec![default]),
        };
        let session = Self {
            programs,
            memcached: memcached.into_iter().next(),
            rounds,
            measured: Duration::from_secs_f64(seconds),
            server_cpus: cpus(&options.server_cpus, first)?,
            load_cpus: cpus(&options.load_cpus, second)?,
            json: options.json.clone(),
            html: options.html.clone(),
            records: Vec::new(),
            verdicts: Vec::new(),
            pauses: None,
            failures: Vec::new(),
            started: Instant::now(),
        };
        session.print_machine();
        Ok(session)
    }

    fn print_machine(&self) {
        let memory = proc::memory_total() >> 30;
        println!(
            "machine: {}, {} cores, {memory} GiB, Linux {}",
            proc::cpu_model(),
            sys::cores(),
            proc::kernel()
        );
        for program in self.all_programs() {
            println!("{:>9}: {}", program.kind.name(), program.version);
        }
    }

    fn all_programs(&self) -> impl Iterator<Item = &ServerProgram> {
        self.programs.iter().chain(&self.memcached)
    }

    fn program(&self, kind: ServerKind) -> Option<&ServerProgram> {
        self.all_programs().find(|program| program.kind == kind)
    }

    /// Returns the duration of this many measurements.
    fn time_for(&self, measurements: usize) -> Duration {
        (self.measured + WARM_UP + CHANGEOVER) * measurements as u32
    }

    /// Prints a table and keeps its metrics.
    fn report(
        &mut self,
        experiment: &'static str,
        title: &str,
        table: &Table,
        figures: Vec<(&'static str, Json)>,
    ) {
        print!("\n{title}\n{table}");
        let mut record =
            vec![("experiment", Json::from(experiment)), ("title", title.into()), ("table", table.to_json())];
        record.extend(figures);
        if let Some(pauses) = self.pauses.take() {
            println!("{}", pauses.words());
            record.push(("pauses", pauses.to_json()));
        }
        self.records.push(object(record));
    }

    /// Records the verdict on a goal, and returns the words for its row.
    fn judge(&mut self, what: String, goal: Goal, value: f64) -> String {
        self.judge_for(None, what, goal, value)
    }

    /// Like [`judge`](Self::judge), for a goal that may belong to a promise.
    fn judge_for(
        &mut self,
        promise: impl Into<Option<Promise>>,
        what: String,
        goal: Goal,
        value: f64,
    ) -> String {
        self.record_verdict(Verdict { promise: promise.into(), what, value, goal, alone: None })
    }

    /// Returns cells for the added cost, its bound, and the verdict; the last two are empty unless `is_ours`.
    fn added_cells(
        &mut self,
        promise: Option<Promise>,
        is_ours: bool,
        what: String,
        most: f64,
        added: Option<Spread>,
    ) -> [String; 3] {
        let goal = Goal::AtMost(most);
        let (goal_cell, verdict) = match added.filter(|_| is_ours) {
            Some(added) => (goal.to_string(), self.judge_for(promise, what, goal, added.median)),
            None => (String::new(), String::new()),
        };
        [added.map(|added| added.to_string()).unwrap_or_default(), goal_cell, verdict]
    }

    /// Like [`judge_for`](Self::judge_for), for a wait: the time is in microseconds, and the goal's unit has
    /// `unit_us` of them.
    fn judge_wait(
        &mut self,
        promise: impl Into<Option<Promise>>,
        what: String,
        goal: Goal,
        us: f64,
        unit_us: f64,
    ) -> String {
        let alone = self.pauses.map(|pauses| pauses.longest_us() / unit_us);
        self.record_verdict(Verdict { promise: promise.into(), what, value: us / unit_us, goal, alone })
    }

    fn record_verdict(&mut self, verdict: Verdict) -> String {
        let words = verdict.words();
        self.verdicts.push(verdict);
        words
    }

    /// Measures waits, between two observations of the idle machine.
    fn beside_pauses<T>(&mut self, measure: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        let before = Pauses::observe(PAUSE_PROBE_TIME)?;
        let measured = measure(self)?;
        self.pauses = Some(Pauses::observe(PAUSE_PROBE_TIME)?.and(before));
        Ok(measured)
    }

    /// Runs an experiment among several: an error is reported and recorded, and does not stop the following
    /// experiments.
    fn attempt(&mut self, name: &'static str, run: impl FnOnce(&mut Session) -> Result<()>) -> Result<()> {
        let began = Instant::now();
        self.pauses = None;
        let ended = run(self);
        println!("\n({name}: {:.0} s)", began.elapsed().as_secs_f64());
        if let Err(error) = ended {
            interrupt::check()?; // an interrupt ends all experiments
            eprintln!("\n{name}: not measured: {error:#}");
            self.failures.push((name, format!("{error:#}")));
        }
        self.save(&self.to_json())
    }

    /// Writes the requested files; nothing, while nothing has been measured.
    fn save(&self, run: &Json) -> Result<()> {
        if self.records.is_empty() {
            return Ok(());
        }
        let write = |path: &Option<PathBuf>, text: &dyn Fn() -> String| match path {
            Some(path) => {
                std::fs::write(path, text()).with_context(|| format!("cannot write {}", path.display()))
            }
            None => Ok(()),
        };
        write(&self.json, &|| format!("{run}\n"))?;
        write(&self.html, &|| page(run))
    }

    /// Prints the goals and promises as tables, and writes the requested files. Fails if an experiment was
    /// not measured.
    pub(crate) fn finish(self) -> Result<()> {
        if !self.verdicts.is_empty() {
            let mut table = Table::new(&["goal", "bound", "reached", ""]);
            for verdict in &self.verdicts {
                let Verdict { what, value, goal, .. } = verdict;
                table.row(vec![what.clone(), goal.to_string(), figure(*value), verdict.words()]);
            }
            print!("\nEvenkeel's goals, after {:.0} s\n{table}", self.started.elapsed().as_secs_f64());
        }
        let run = self.to_json();
        if self.verdicts.iter().any(|verdict| verdict.promise.is_some()) {
            print!("\nEvenkeel's promises\n{}", promises::table(&run["promises"]));
        }
        self.save(&run)?;
        if !self.failures.is_empty() {
            let names: Vec<&str> = self.failures.iter().map(|(name, _)| *name).collect();
            bail!("not measured: {}", names.join(", "));
        }
        Ok(())
    }

    fn to_json(&self) -> Json {
        let program = |program: &ServerProgram| {
            object(vec![
                ("name", program.kind.name().into()),
                ("version", program.version.as_str().into()),
                ("sha256", program.sha256.as_str().into()),
            ])
        };
        let failure = |(name, why): &(&str, String)| {
            object(vec![("experiment", (*name).into()), ("why", why.as_str().into())])
        };
        let verdict = |verdict: &Verdict| {
            object(vec![
                ("goal", verdict.what.as_str().into()),
                ("bound", verdict.goal.to_string().into()),
                ("reached", verdict.value.into()),
                ("met", verdict.goal.is_met(verdict.value).into()),
                ("verdict", verdict.words().into()),
            ])
        };
        object(vec![
            ("when", crate::sys::date().into()),
            ("cpu", proc::cpu_model().into()),
            ("cores", sys::cores().into()),
            ("memory_bytes", proc::memory_total().into()),
            ("kernel", proc::kernel().into()),
            ("rounds", self.rounds.into()),
            ("seconds", self.measured.as_secs_f64().into()),
            ("peers", Json::Array(self.all_programs().map(program).collect())),
            ("experiments", Json::Array(self.records.clone())),
            ("not_measured", Json::Array(self.failures.iter().map(failure).collect())),
            ("promises", promises::to_json(&self.verdicts)),
            ("goals", Json::Array(self.verdicts.iter().map(verdict).collect())),
        ])
    }
}

/// Runs the short selection: the promises that decide whether a user migrates.
pub(crate) fn short(session: &mut Session) -> Result<()> {
    session.attempt("throughput", |it| throughput(it, &ThroughputArgs::default()))?;
    session.attempt("scale", |it| scale(it, &ScaleArgs { brief: true }))?;
    session.attempt("wake-up", wake_up)?;
    session.attempt("aof", aof)?;
    session.attempt("replica", replica)?;
    session.attempt("snapshot", |it| snapshot(it, &DataArgs::BRIEF))?;
    session.attempt("full-sync", |it| full_sync(it, &DataArgs::BRIEF))?;
    session.attempt("frozen-disk", frozen_disk)?;
    session.attempt("loading", |it| load(it, &DataArgs::BRIEF))?;
    session.attempt("memory", |it| memory(it, &MemoryArgs::default()))?;
    session.attempt("accounting", accounting)
}

/// Runs all experiments in sequence.
pub(crate) fn all(session: &mut Session) -> Result<()> {
    let pinned = ThroughputArgs::default();
    let unpinned = ThroughputArgs { unpinned: true, ..pinned.clone() };
    let many = ThroughputArgs { keys: MANY_KEYS, ..pinned.clone() };
    let (memory_args, churn_args) = (MemoryArgs::default(), ChurnArgs::default());
    let [large, huge, synced] = [DataArgs::LARGE, DataArgs::HUGE, DataArgs::SYNCED].map(DataArgs::that_fits);
    let estimate = pinned.estimate(session)
        + unpinned.estimate(session)
        + many.estimate(session)
        + memory_args.estimate(session)
        + OverheadArgs::default().estimate(session)
        + churn_args.estimate(session)
        + connections::estimate(session)
        + generator::estimate(session)
        + workers::estimate(session)
        + ScaleArgs::default().estimate(session)
        + wake_up::estimate(session)
        + http::estimate(session)
        + ValuesArgs::default().estimate(session)
        + elements::estimate(session)
        + StallsArgs::default().estimate(session)
        + aof::estimate(session)
        + snapshot::estimate(session, &large)
        + snapshot::estimate(session, &huge)
        + upgrade::estimate(session, &DataArgs::default())
        + frozen::estimate(session)
        + features::estimate(session)
        + accounting::estimate(session)
        + cluster::estimate(session)
        + replica::estimate(session)
        + full_sync::estimate(session, &synced)
        + load::estimate(session, &large)
        + shapes::estimate(session)
        + KeysArgs::GROWTH.estimate(session)
        + KeysArgs::EXPIRY.estimate_expiry(session)
        + 2 * PAUSE_PROBE_TIME * 7; // beside two of snapshot, full-sync, frozen-disk, stalls, growth, expiry
    println!("this takes about {} minutes", estimate.as_secs().div_ceil(60));
    session.attempt("throughput", |it| throughput(it, &pinned))?;
    session.attempt("throughput of many keys", |it| throughput(it, &many))?;
    session.attempt("throughput unpinned", |it| throughput(it, &unpinned))?;
    session.attempt("workers", workers)?;
    session.attempt("scale", |it| scale(it, &ScaleArgs::default()))?;
    session.attempt("wake-up", wake_up)?;
    session.attempt("http", http)?;
    session.attempt("connections", connections)?;
    session.attempt("generator", generator)?;
    session.attempt("memory", |it| memory(it, &memory_args))?;
    session.attempt("overhead", |it| overhead(it, &OverheadArgs::default()))?;
    session.attempt("churn", |it| churn(it, &churn_args))?;
    session.attempt("values", |it| values(it, &ValuesArgs::default()))?;
    session.attempt("elements", elements)?;
    session.attempt("stalls", |it| stalls(it, &StallsArgs::default()))?;
    session.attempt("aof", aof)?;
    session.attempt("snapshot", |it| snapshot(it, &large))?;
    session.attempt("upgrade", |it| upgrade(it, &DataArgs::default()))?;
    session.attempt("snapshot of huge values", |it| snapshot(it, &huge))?;
    session.attempt("frozen-disk", frozen_disk)?;
    session.attempt("features", features)?;
    session.attempt("accounting", accounting)?;
    session.attempt("cluster", cluster)?;
    session.attempt("replica", replica)?;
    session.attempt("full-sync", |it| full_sync(it, &synced))?;
    session.attempt("loading", |it| load(it, &large))?;
    session.attempt("hot-key", hot_key)?;
    session.attempt("databases", databases)?;
    session.attempt("scatter", scatter)?;
    session.attempt("growth", |it| growth(it, &KeysArgs::GROWTH))?;
    session.attempt("expiry", |it| expiry(it, &KeysArgs::EXPIRY))
}
