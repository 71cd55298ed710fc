//! `scale`: the benefit of further cores, up to all.
//!
//! For each number of cores: Evenkeel with as many workers; as many single-threaded Redis processes, which
//! divide the keys and the clients among themselves; memcached with as many threads; and, if there are enough
//! cores, Valkey with as many I/O threads. The processes share nothing, so their losses together are the
//! machine's: caches, memory, the load beside them. Evenkeel's losses beyond that are its own, and its own
//! clocks show the part spent waiting for locks.
//!
//! `serial` is the relative CPU time that each further core adds to a command: (CPU/CPU at one - 1)/(cores -
//! 1). It is Karp and Flatt's serial fraction (1990) with the CPU time instead of the rate, since a load that
//! is too slow lowers the rate only.

use std::time::Duration;

use anyhow::Result;

use super::Session;
use super::account::Account;
use super::lanes::{self, Lane, Traffic};
use super::series::{Sample, Series};
use super::throughput::{IO_THREADS_FROM, busy_cell};
use crate::json::{Json, object};
use crate::load::Outcome;
use crate::load::keys::KeyRange;
use crate::load::requests::Command;
use crate::promises::Promise;
use crate::servers::{Launch, ServerKind};
use crate::stats::{Goal, Spread};
use crate::sys;
use crate::table::{Table, thousands};

/// Loads without a pipeline come last: `--brief` leaves them out.
const LOADS: [(Command, usize); 4] =
    [(Command::Set, 16), (Command::Get, 16), (Command::Set, 1), (Command::Get, 1)];
const BRIEF_LOADS: usize = 2;
const KEYS: u64 = 300_000;
const VALUE_SIZE: usize = 500;
/// Clients per core, and in all: the same for any number of workers, so that only the workers differ.
const CLIENTS_PER_CORE: usize = 16;
const CLIENTS_MIN: usize = 50;
/// Bounds with all cores: the share of the workers' busy time spent waiting for locks, and the growth of the
/// CPU per command relative to processes that share nothing.
const LOCK_WAIT_MAX: f64 = 0.01;
const GROWTH_MAX: f64 = 1.10;

#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct ScaleArgs {
    /// Measure with a single core and with all, and only with a pipeline
    #[arg(long)]
    pub(super) brief: bool,
}

impl ScaleArgs {
    pub(super) fn estimate(&self, session: &Session) -> Duration {
        let contenders = kinds(session).len() * self.steps().len();
        session.time_for(contenders * self.loads().len() * session.rounds)
            + Duration::from_secs(contenders as u64)
    }

    fn loads(&self) -> &'static [(Command, usize)] {
        if self.brief { &LOADS[..BRIEF_LOADS] } else { &LOADS }
    }

    /// Returns the numbers of cores: powers of two, and all.
    fn steps(&self) -> Vec<usize> {
        let all = sys::cores();
        let mut steps: Vec<usize> = std::iter::successors(Some(1), |cores| Some(cores * 2))
            .take_while(|cores| *cores < all && (*cores == 1 || !self.brief))
            .collect();
        steps.push(all);
        steps
    }
}

fn kinds(session: &Session) -> Vec<ServerKind> {
    let valkey = (sys::cores() >= IO_THREADS_FROM).then_some(ServerKind::Valkey);
    let all = [ServerKind::Evenkeel, ServerKind::Redis, ServerKind::Memcached].into_iter().chain(valkey);
    all.filter(|kind| session.program(*kind).is_some()).collect()
}

/// A server with threads for this many cores, or a process for each.
struct Contender {
    kind: ServerKind,
    cores: usize,
    lanes: Vec<Lane>,
}

/// A contender's results over the rounds.
struct Scaled {
    kind: ServerKind,
    cores: usize,
    series: Series,
    /// Evenkeel's own account, over all rounds.
    account: Account,
}

pub(crate) fn scale(session: &mut Session, args: &ScaleArgs) -> Result<()> {
    let mut contenders = Vec::new();
    for cores in args.steps() {
        for kind in kinds(session) {
            contenders.push(start(session, kind, cores)?);
        }
    }
    for (command, pipeline) in args.loads() {
        let all = rounds(session, &contenders, command, *pipeline)?;
        report(session, &all, command, *pipeline);
    }
    Ok(())
}

fn start(session: &Session, kind: ServerKind, cores: usize) -> Result<Contender> {
    let program = session.program(kind).expect("it was found");
    let processes = if kind == ServerKind::Redis { cores } else { 1 };
    let mut lanes = Vec::new();
    for number in 0..processes {
        let allowed = sys::allowed_cpus();
        let cpus = if processes > 1 { vec![allowed[number]] } else { allowed[..cores].to_vec() };
        let threads = if kind == ServerKind::Redis { 1 } else { cores };
        let lane = Lane::start(program, kind.name(), &Launch { cpus, threads, ..Launch::default() })?;
        lane.fill(share(number, processes), VALUE_SIZE)?;
        lanes.push(lane);
    }
    Ok(Contender { kind, cores, lanes })
}

/// Returns the keys of a process among `processes`.
fn share(number: usize, processes: usize) -> KeyRange {
    let (number, processes) = (number as u64, processes as u64);
    let first = KEYS * number / processes;
    KeyRange { first, count: KEYS * (number + 1) / processes - first }
}

fn rounds(
    session: &Session,
    contenders: &[Contender],
    command: &Command,
    pipeline: usize,
) -> Result<Vec<Scaled>> {
    let empty = |contender: &Contender| {
        let &Contender { kind, cores, .. } = contender;
        let name = match kind {
            ServerKind::Redis => format!("{} x {cores}", kind.name()),
            _ => format!("{}, {cores} thread{}", kind.name(), if cores == 1 { "" } else { "s" }),
        };
        let series = Series { name, kind, is_control: false, samples: Vec::new() };
        Scaled { kind, cores, series, account: Account::default() }
    };
    let mut all: Vec<Scaled> = contenders.iter().map(empty).collect();
    contenders.iter().flat_map(|contender| &contender.lanes).for_each(|lane| lane.server.rest());
    for round in 0..session.rounds {
        for step in 0..contenders.len() {
            let index = (round + step) % contenders.len();
            let contender = &contenders[index];
            let before = account(contender)?;
            let outcome = measure(session, contender, command, pipeline)?;
            all[index].account.add(&account(contender)?.since(&before));
            all[index].series.samples.push(Sample::from(&outcome));
        }
    }
    Ok(all)
}

/// The load has the cores that the server does not use, or shares all cores with it. If it shares them, it
/// has as many threads for each contender, since each process needs at least a thread.
fn measure(session: &Session, contender: &Contender, command: &Command, pipeline: usize) -> Result<Outcome> {
    let all = sys::cores();
    let (load_threads, load_cpus) = match contender.cores {
        cores if cores < all => (all - cores, sys::allowed_cpus()[cores..].to_vec()),
        _ => (all, Vec::new()),
    };
    let processes = contender.lanes.len();
    let traffic = |number| {
        let keys = share(number, processes);
        Traffic {
            command: command.clone(),
            pipeline,
            clients: ((CLIENTS_PER_CORE * all).max(CLIENTS_MIN) / processes).max(1),
            first_key: keys.first,
            keys: keys.count,
            value_size: VALUE_SIZE,
            load_threads: (load_threads / processes).max(1),
            load_cpus: load_cpus.clone(),
            ..Traffic::default()
        }
    };
    let outcomes: Vec<Result<Outcome>> = std::thread::scope(|scope| {
        let measure = |(number, lane)| {
            let traffic = traffic(number);
            scope.spawn(move || lanes::outcome(lane, &traffic, session.measured))
        };
        let running: Vec<_> = contender.lanes.iter().enumerate().map(measure).collect();
        running.into_iter().map(|one| one.join().expect("a measurement does not panic")).collect()
    });
    let joined = outcomes.into_iter().reduce(|one, other| {
        let mut one = one?;
        one.join(other?);
        Ok(one)
    });
    joined.expect("there is at least one process")
}

/// Returns Evenkeel's account; other servers keep none.
fn account(contender: &Contender) -> Result<Account> {
    match contender.kind {
        ServerKind::Evenkeel => Account::of(&contender.lanes[0]),
        _ => Ok(Account::default()),
    }
}

fn report(session: &mut Session, all: &[Scaled], command: &Command, pipeline: usize) {
    let cores = sys::cores();
    let what = format!("{command}, pipeline {pipeline}");
    let head = [
        "",
        "requests/s",
        "to one",
        "CPU us/command",
        "to one",
        "serial",
        "lock wait",
        "goal",
        "",
        "p99",
        "max",
        "load busy",
    ];
    let mut table = Table::new(&head);
    let one_of = |kind| all.iter().find(|one| one.kind == kind && one.cores == 1);
    for scaled in all {
        let one = one_of(scaled.kind).filter(|_| scaled.cores > 1);
        let rate = one.and_then(|one| scaled.series.ratio_to(&one.series, |sample| sample.rate));
        let cpu = one.and_then(|one| scaled.series.ratio_to(&one.series, |sample| sample.cpu_us));
        let lock_wait = scaled.lock_wait();
        let is_judged = scaled.kind == ServerKind::Evenkeel && scaled.cores == cores;
        let goal = Goal::AtMost(LOCK_WAIT_MAX);
        let verdict = match lock_wait.filter(|_| is_judged) {
            Some(share) => session.judge_for(
                Promise::NothingGlobal,
                format!("waiting for locks, of the busy time: {what}"),
                goal,
                share,
            ),
            None => String::new(),
        };
        let [_, p99, _, max] = scaled.series.latency_cells();
        let text = |spread: Option<Spread>| spread.map(|spread| spread.to_string()).unwrap_or_default();
        table.row(vec![
            scaled.series.name.clone(),
            scaled.series.rate_cell(),
            text(rate),
            scaled.series.cpu_cell(),
            text(cpu),
            cpu.map(|cpu| format!("{:.1}%", serial(cpu.median, scaled.cores) * 100.0)).unwrap_or_default(),
            lock_wait.map(|share| format!("{:.2}%", share * 100.0)).unwrap_or_default(),
            if is_judged { goal.to_string() } else { String::new() },
            verdict,
            p99,
            max,
            busy_cell(&scaled.series),
        ]);
    }
    judge_growth(session, all, &what);
    let keys = thousands(KEYS as f64);
    let title = format!("scale: {what}, {VALUE_SIZE} B values, {keys} keys, 1 to {cores} cores");
    let figures = all.iter().map(Scaled::to_json).collect();
    let members = vec![
        ("pipeline", pipeline.into()),
        ("cores", cores.into()),
        ("servers", Json::Array(figures)),
        ("curves", curves(all)),
    ];
    session.report("scale", &title, &table, members);
}

/// Judges the growth of the CPU per command from a single core to all, relative to processes that share
/// nothing.
fn judge_growth(session: &mut Session, all: &[Scaled], what: &str) {
    let growth = |kind| {
        let of = |cores| all.iter().find(|one| one.kind == kind && one.cores == cores).map(|one| &one.series);
        let (one, many) = (of(1)?, of(sys::cores()).filter(|_| sys::cores() > 1)?);
        let ratios = many.values(|sample| sample.cpu_us).into_iter().zip(one.values(|sample| sample.cpu_us));
        Some(ratios.map(|(many, one)| many / one).collect::<Vec<f64>>())
    };
    if let (Some(ours), Some(theirs)) = (growth(ServerKind::Evenkeel), growth(ServerKind::Redis))
        && let Some(ratio) = Spread::of_ratios(&ours, &theirs)
    {
        let what = format!("growth of CPU with all cores, to redis processes': {what}");
        session.judge_for(Promise::NothingGlobal, what, Goal::AtMost(GROWTH_MAX), ratio.median);
    }
}

/// Returns the metrics by number of cores for the page, if there are at least two numbers to compare.
fn curves(all: &[Scaled]) -> Json {
    let one_of = |kind| all.iter().find(|one| one.kind == kind && one.cores == 1);
    let percent = |spread: Spread, of: &dyn Fn(f64) -> f64| Spread {
        median: of(spread.median) * 100.0,
        min: of(spread.min) * 100.0,
        max: of(spread.max) * 100.0,
    };
    let rate = curve("requests per second", all, |one| Some(one.series.spread(|sample| sample.rate)));
    let serial = curve("serial part of the CPU time, %", all, |scaled| {
        let one = one_of(scaled.kind).filter(|_| scaled.cores > 1)?;
        let cpu = scaled.series.ratio_to(&one.series, |sample| sample.cpu_us)?;
        Some(percent(cpu, &|ratio| serial(ratio, scaled.cores)))
    });
    let lock_wait = curve("waiting for locks, % of the busy time", all, |scaled| {
        let spread = Spread::of([scaled.lock_wait()?])?;
        Some(percent(spread, &|share| share))
    });
    let rate = rate.map(|mut rate| {
        rate["ideal"] = true.into();
        rate
    });
    Json::Array([rate, serial, lock_wait].into_iter().flatten().collect())
}

/// `None` if fewer than two numbers of cores have the metric. Missing values are null.
fn curve(what: &str, all: &[Scaled], figure: impl Fn(&Scaled) -> Option<Spread>) -> Option<Json> {
    let found: Vec<(&Scaled, Spread)> = all.iter().filter_map(|one| Some((one, figure(one)?))).collect();
    let mut steps: Vec<usize> = found.iter().map(|(one, _)| one.cores).collect();
    steps.sort_unstable();
    steps.dedup();
    let mut kinds: Vec<ServerKind> = Vec::new();
    for (one, _) in &found {
        if !kinds.contains(&one.kind) {
            kinds.push(one.kind);
        }
    }
    let series = |kind: &ServerKind| {
        let at = |cores: &usize| {
            found.iter().find(|(one, _)| one.kind == *kind && one.cores == *cores).map(|(_, spread)| *spread)
        };
        let list = |part: fn(&Spread) -> f64| -> Json {
            steps.iter().map(|cores| at(cores).as_ref().map(part)).collect::<Vec<Option<f64>>>().into()
        };
        let name = if *kind == ServerKind::Redis { "redis processes" } else { kind.name() };
        object(vec![
            ("server", name.into()),
            ("median", list(|spread| spread.median)),
            ("min", list(|spread| spread.min)),
            ("max", list(|spread| spread.max)),
        ])
    };
    (steps.len() > 1).then(|| {
        object(vec![
            ("what", what.into()),
            ("x", "cores".into()),
            ("x_values", steps.clone().into()),
            ("series", Json::Array(kinds.iter().map(series).collect())),
        ])
    })
}

/// See the module's text.
fn serial(cpu_to_one: f64, cores: usize) -> f64 {
    (cpu_to_one - 1.0) / (cores as f64 - 1.0)
}

impl Scaled {
    /// Returns the share of the workers' busy time spent waiting for locks; `None` for servers without this
    /// account.
    fn lock_wait(&self) -> Option<f64> {
        let busy_us = self.account.busy_us();
        (busy_us > 0.0).then(|| self.account.get("lock_wait_usec") / busy_us)
    }

    fn to_json(&self) -> Json {
        let mut json = self.series.to_json();
        json["cores"] = self.cores.into();
        if self.lock_wait().is_some() {
            json["clocks"] = object(vec![
                ("commands", self.account.get("commands").into()),
                ("busy_us", self.account.busy_us().into()),
                ("lock_wait_us", self.account.get("lock_wait_usec").into()),
            ]);
        }
        json
    }
}

#[cfg(test)]
mod tests {
    use super::super::series::tests::series;
    use super::*;

    #[test]
    fn shares_cover_the_keys() {
        for processes in 1..20 {
            let mut next = 0;
            for keys in (0..processes).map(|number| share(number, processes)) {
                assert_eq!(keys.first, next);
                next += keys.count;
            }
            assert_eq!(next, KEYS);
        }
    }

    #[test]
    fn curves_go_over_the_cores() {
        let scaled = |kind, cores, cpu_us: &[f64]| {
            let series = series(kind, false, cpu_us);
            Scaled { kind, cores, series, account: Account::default() }
        };
        let all = [
            scaled(ServerKind::Evenkeel, 1, &[1.0, 1.0, 2.0]),
            scaled(ServerKind::Redis, 1, &[4.0]),
            scaled(ServerKind::Evenkeel, 2, &[1.1, 1.2, 4.0]),
            scaled(ServerKind::Evenkeel, 3, &[1.2, 1.2, 4.0]),
        ];
        let curves = curves(&all);
        assert_eq!(curves.as_array().map(Vec::len), Some(2), "nobody has said how long it waited for locks");
        let [rate, serial] = [&curves[0], &curves[1]];
        assert_eq!((&rate["x_values"], &rate["ideal"]), (&serde_json::json!([1, 2, 3]), &true.into()));
        assert_eq!(rate["series"][0]["max"][0], 1e6);
        assert_eq!(rate["series"][1]["median"], serde_json::json!([2.5e5, null, null]));
        assert_eq!((&serial["x_values"], &serial["ideal"]), (&serde_json::json!([2, 3]), &Json::Null));
        let part = serial["series"][0]["median"][0].as_f64().expect("a number");
        assert!((part - 20.0).abs() < 1e-9, "{part}");
        assert_eq!(super::curves(&all[..2]), Json::Array(Vec::new()));
    }

    #[test]
    fn a_perfect_server_has_nothing_serial() {
        assert_eq!(serial(1.0, 8), 0.0);
        // Amdahl: with a tenth serial, eight cores take 1 + 7/10 as much together as one.
        assert!((serial(1.7, 8) - 0.1).abs() < 1e-9);
    }
}
