//! The experiments: each starts the servers that it compares, measures them in alternating rounds, and ends them.
//!
//! A round measures every server once, briefly, one after the other; the next round starts with another one. So whatever
//! the machine does meanwhile (other tenants, temperature, page cache) meets all of them alike, and ratios are taken
//! within a round (see `stats`).

mod account;
mod aof;
mod connections;
mod elements;
mod features;
mod feed;
mod felt;
mod frozen;
mod full_sync;
mod lanes;
mod load;
mod memory;
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
mod values;
mod wake_up;
mod workers;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::json::{Json, object};
use crate::page::page;
use crate::peers::{Kind, Peer, Where};
use crate::promises::{self, Promise, Verdict};
use crate::stats::Goal;
use crate::table::{Table, figure};
use crate::{proc, sys};

pub(crate) use aof::aof;
pub(crate) use connections::connections;
pub(crate) use elements::elements;
pub(crate) use features::features;
pub(crate) use felt::DataArgs;
pub(crate) use frozen::frozen_disk;
pub(crate) use full_sync::full_sync;
pub(crate) use load::load;
pub(crate) use memory::{MemoryArgs, memory};
pub(crate) use replica::replica;
pub(crate) use scale::{ScaleArgs, scale};
pub(crate) use shapes::{databases, hot_key, scatter};
pub(crate) use snapshot::snapshot;
pub(crate) use stalls::{KeysArgs, StallsArgs, expiry, growth, stalls};
pub(crate) use throughput::{ThroughputArgs, throughput};
pub(crate) use values::{ValuesArgs, values};
pub(crate) use wake_up::wake_up;
pub(crate) use workers::workers;

/// Rounds and seconds per measurement, when not said otherwise: thorough and quick.
const THOROUGH: (usize, f64) = (5, 2.0);
const QUICK: (usize, f64) = (3, 1.0);
/// Warm-up before each measurement: connections are open, buffers and caches have their size.
const WARM_UP: Duration = Duration::from_millis(200);
/// Opening connections and coming to rest between two measurements, for the estimate of the time.
const CHANGEOVER: Duration = Duration::from_millis(100);
const SECONDS_MAX: f64 = 3_600.0;
/// Keys of the large run in `all`.
const MANY_KEYS: u64 = 10_000_000;

/// What all experiments take from the command line.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    places: Where,
    /// 3 rounds of 1 s instead of 5 of 2 s
    #[arg(long)]
    quick: bool,
    /// Rounds in which each server is measured once
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds of each measurement
    #[arg(long)]
    seconds: Option<f64>,
    /// CPUs of the server in pinned runs
    #[arg(long, value_name = "LIST", default_value = "0")]
    server_cpus: String,
    /// CPUs of the load in pinned runs [default: 1, or 0 where there is only one]
    #[arg(long, value_name = "LIST")]
    load_cpus: Option<String>,
    /// Write all figures to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with tables and charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// One run of the program over one or more experiments.
pub(crate) struct Session {
    /// Those that speak RESP.
    peers: Vec<Peer>,
    memcached: Option<Peer>,
    rounds: usize,
    measured: Duration,
    server_cpus: Vec<usize>,
    load_cpus: Vec<usize>,
    json: Option<PathBuf>,
    html: Option<PathBuf>,
    records: Vec<Json>,
    verdicts: Vec<Verdict>,
    started: Instant,
}

impl Session {
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let (rounds, seconds) = if options.quick { QUICK } else { THOROUGH };
        let (rounds, seconds) = (options.rounds.unwrap_or(rounds), options.seconds.unwrap_or(seconds));
        if rounds == 0 || !(0.01..=SECONDS_MAX).contains(&seconds) {
            bail!("at least one round, and 0.01 to {SECONDS_MAX} seconds");
        }
        let found = options.places.find()?;
        let (memcached, peers): (Vec<Peer>, _) =
            found.into_iter().partition(|peer| peer.kind == Kind::Memcached);
        let last_cpu = if sys::cores() > 1 { "1" } else { "0" };
        let session = Self {
            peers,
            memcached: memcached.into_iter().next(),
            rounds,
            measured: Duration::from_secs_f64(seconds),
            server_cpus: sys::parse_cpus(&options.server_cpus)?,
            load_cpus: sys::parse_cpus(options.load_cpus.as_deref().unwrap_or(last_cpu))?,
            json: options.json.clone(),
            html: options.html.clone(),
            records: Vec::new(),
            verdicts: Vec::new(),
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
        for peer in self.all_peers() {
            println!("{:>9}: {}", peer.kind.name(), peer.version);
        }
    }

    fn all_peers(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter().chain(&self.memcached)
    }

    fn peer(&self, kind: Kind) -> Option<&Peer> {
        self.all_peers().find(|peer| peer.kind == kind)
    }

    /// How long so many measurements take.
    fn time_for(&self, measurements: usize) -> Duration {
        (self.measured + WARM_UP + CHANGEOVER) * measurements as u32
    }

    /// Prints a table and keeps its figures.
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
        self.records.push(object(record));
    }

    /// Notes what became of a goal, and returns the words for its row.
    fn judge(&mut self, what: String, goal: Goal, value: f64) -> String {
        self.judge_for(None, what, goal, value)
    }

    /// The same for a goal that may belong to a promise.
    fn judge_for(
        &mut self,
        promise: impl Into<Option<Promise>>,
        what: String,
        goal: Goal,
        value: f64,
    ) -> String {
        self.verdicts.push(Verdict { promise: promise.into(), what, value, goal });
        goal.verdict(value)
    }

    /// The promises in one table, and the files that were asked for.
    pub(crate) fn finish(self) -> Result<()> {
        if !self.verdicts.is_empty() {
            let mut table = Table::new(&["goal", "bound", "reached", ""]);
            for Verdict { what, value, goal, .. } in &self.verdicts {
                table.row(vec![what.clone(), goal.to_string(), figure(*value), goal.verdict(*value)]);
            }
            print!("\nEvenkeel's goals, after {:.0} s\n{table}", self.started.elapsed().as_secs_f64());
        }
        let run = self.to_json();
        if self.verdicts.iter().any(|verdict| verdict.promise.is_some()) {
            print!("\nEvenkeel's promises\n{}", promises::table(&run["promises"]));
        }
        let write = |path: &Option<PathBuf>, text: &dyn Fn() -> String| match path {
            Some(path) => {
                std::fs::write(path, text()).with_context(|| format!("cannot write {}", path.display()))
            }
            None => Ok(()),
        };
        write(&self.json, &|| format!("{run}\n"))?;
        write(&self.html, &|| page(&run))
    }

    fn to_json(&self) -> Json {
        let peer = |peer: &Peer| {
            object(vec![("name", peer.kind.name().into()), ("version", peer.version.as_str().into())])
        };
        let verdict = |verdict: &Verdict| {
            object(vec![
                ("goal", verdict.what.as_str().into()),
                ("bound", verdict.goal.to_string().into()),
                ("reached", verdict.value.into()),
                ("met", verdict.goal.is_met(verdict.value).into()),
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
            ("peers", Json::Array(self.all_peers().map(peer).collect())),
            ("experiments", Json::Array(self.records.clone())),
            ("promises", promises::to_json(&self.verdicts)),
            ("goals", Json::Array(self.verdicts.iter().map(verdict).collect())),
        ])
    }
}

/// What is run when there is little time: the promises that decide whether somebody moves.
pub(crate) fn short(session: &mut Session) -> Result<()> {
    throughput(session, &ThroughputArgs::default())?;
    scale(session, &ScaleArgs { brief: true })?;
    wake_up(session)?;
    aof(session)?;
    replica(session)?;
    snapshot(session, &DataArgs::default())?;
    full_sync(session, &DataArgs::default())?;
    frozen_disk(session)?;
    load(session, &DataArgs::default())?;
    memory(session, &MemoryArgs::default())
}

/// All experiments, one after the other.
pub(crate) fn all(session: &mut Session) -> Result<()> {
    let pinned = ThroughputArgs::default();
    let unpinned = ThroughputArgs { unpinned: true, ..pinned.clone() };
    let many = ThroughputArgs { keys: MANY_KEYS, ..pinned.clone() };
    let memory_args = MemoryArgs::default();
    let estimate = pinned.estimate(session)
        + unpinned.estimate(session)
        + many.estimate(session)
        + memory_args.estimate(session)
        + connections::estimate(session)
        + workers::estimate(session)
        + ScaleArgs::default().estimate(session)
        + wake_up::estimate(session)
        + ValuesArgs::default().estimate(session)
        + elements::estimate()
        + StallsArgs::default().estimate(session)
        + aof::estimate(session)
        + snapshot::ESTIMATE
        + frozen::ESTIMATE
        + features::estimate(session)
        + replica::estimate(session)
        + full_sync::estimate(session, &DataArgs::default())
        + load::estimate(session, &DataArgs::default())
        + shapes::estimate(session)
        + KeysArgs::default().estimate(session) * 2;
    println!("this takes about {} minutes", estimate.as_secs().div_ceil(60));
    throughput(session, &pinned)?;
    throughput(session, &many)?;
    throughput(session, &unpinned)?;
    workers(session)?;
    scale(session, &ScaleArgs::default())?;
    wake_up(session)?;
    connections(session)?;
    memory(session, &memory_args)?;
    values(session, &ValuesArgs::default())?;
    elements(session)?;
    stalls(session, &StallsArgs::default())?;
    aof(session)?;
    snapshot(session, &DataArgs::default())?;
    frozen_disk(session)?;
    features(session)?;
    replica(session)?;
    full_sync(session, &DataArgs::default())?;
    load(session, &DataArgs::default())?;
    hot_key(session)?;
    databases(session)?;
    scatter(session)?;
    growth(session, &KeysArgs::default())?;
    expiry(session, &KeysArgs::default())
}
