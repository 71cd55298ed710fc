//! `replica`: the cost of replicas for their primary.
//!
//! Each server is measured with a replica that drops the stream, with three of these, and with a real
//! replica, which is the same program. Before and after each of these states it is measured alone: the same
//! process, which keeps nothing for replicas meanwhile. The cost is the additional CPU time per command over
//! the average of the two measurements alone around it: of the whole process, and of its busiest thread,
//! which serves the clients. The difference between measurements alone is noise of the machine. The replicas
//! share the load's cores, so the rates say less than the CPU.
//!
//! For the real replica, the table shows its own CPU time per command, and then the lag ([`lag`]).

mod lag;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::lanes::{self, Lane, Traffic};
use super::series::{Sample, Series};
use super::sink::Sink;
use super::{COST_HEAD, Session};
use crate::json::Json;
use crate::load::keys::KeyRange;
use crate::promises::Promise;
use crate::servers::{Launch, Server, ServerKind, ask};
use crate::stats::{Goal, Spread};
use crate::table::Table;
use crate::{interrupt, proc};

/// CPU microseconds that a replica may add to a SET: for the whole process, and for the serving thread.
const ONE_ADDS_US_MAX: f64 = 0.25;
const ONE_ADDS_TO_SERVING_US_MAX: f64 = 0.05;
const THREE_ADD_US_MAX: f64 = 0.6;
const RATE_MIN: f64 = 0.93;
const KEYS: u64 = 100_000;
const VALUE_SIZE: usize = 500;
const CLIENTS: usize = 50;
/// Longest time until a real replica has all data, or until a server has dropped its backlog.
const SYNC_TIME_MAX: Duration = Duration::from_secs(60);
/// Seconds for which a primary keeps its backlog after the last replica has gone: the minimum.
const KEPT_S: u64 = 1;
/// Approximate time per round for attaching and detaching replicas.
const CHANGES: Duration = Duration::from_secs(10);

/// The replicas attached to a server while it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Alone,
    Sinks(usize),
    Real,
}

/// In this order.
const STATES: [State; 7] =
    [State::Alone, State::Sinks(1), State::Alone, State::Sinks(3), State::Alone, State::Real, State::Alone];
/// Index of the measurement alone that serves as the control.
const AGAIN: usize = 2;
const PIPELINES: [usize; 2] = [16, 1];

/// A server, and the replica that follows it at times.
struct Subject {
    lane: Lane,
    /// The floor has none.
    real: Option<Server>,
}

/// Replicas that are attached until this is dropped.
struct Attached<'a> {
    subject: &'a Subject,
    sinks: Vec<Sink>,
    real: Option<&'a Server>,
}

/// A measurement, and the CPU microseconds per command of the real replica, if any.
#[derive(Clone, Copy)]
struct Measured {
    sample: Sample,
    replica_us: Option<f64>,
}

pub(super) fn estimate(session: &Session) -> Duration {
    let measurements = session.programs.len() * (STATES.len() * 2 * session.rounds + 1);
    session.time_for(measurements) + CHANGES * (session.programs.len() * (session.rounds + 1)) as u32
}

pub(crate) fn replica(session: &mut Session) -> Result<()> {
    let kinds = [ServerKind::Valkey, ServerKind::Evenkeel, ServerKind::Redis, ServerKind::Floor];
    let kinds = kinds.into_iter().filter(|kind| session.program(*kind).is_some());
    let subjects = kinds.map(|kind| Subject::start(session, kind)).collect::<Result<Vec<Subject>>>()?;
    let all = lanes::in_rounds(session.rounds, &subjects, |subject| {
        subject.states().map(|state| subject.measure(session, state)).collect::<Result<Vec<_>>>()
    })?;
    for (at, pipeline) in PIPELINES.into_iter().enumerate() {
        let of_one = |round: &Vec<[Measured; 2]>| round.iter().map(|measured| measured[at]).collect();
        let all: Vec<Vec<Vec<Measured>>> =
            all.iter().map(|rounds| rounds.iter().map(of_one).collect()).collect();
        cost(session, &subjects, &all, pipeline);
    }
    lag::lag(session, &subjects)
}

impl Subject {
    fn start(session: &Session, kind: ServerKind) -> Result<Subject> {
        let program = session.program(kind).expect("it was found");
        let launch = |cpus: &[usize]| Launch { cpus: cpus.to_vec(), threads: 1, ..Launch::default() };
        let lane = Lane::start(program, kind.name(), &launch(&session.server_cpus))?;
        lane.fill(KeyRange { first: 0, count: KEYS }, VALUE_SIZE)?;
        if kind == ServerKind::Floor {
            return Ok(Subject { lane, real: None });
        }
        lane.set("repl-diskless-sync-delay", "0")?;
        lane.set("repl-backlog-ttl", &KEPT_S.to_string())?;
        let real = Server::start(program, &launch(&session.load_cpus))?;
        Ok(Subject { lane, real: Some(real) })
    }

    /// Returns the states in which this server is measured.
    fn states(&self) -> impl Iterator<Item = State> {
        let count = if self.real.is_some() { STATES.len() } else { AGAIN + 1 };
        STATES.into_iter().take(count)
    }

    /// Measures with each pipeline length, one after the other.
    fn measure(&self, session: &Session, state: State) -> Result<[Measured; 2]> {
        let attached = self.attach(session, state)?;
        let [one, other] = PIPELINES.map(|pipeline| attached.measure(session, pipeline));
        Ok([one?, other?])
    }

    /// Attaches replicas, and waits until they have all data; or waits until the server keeps no backlog.
    fn attach(&self, session: &Session, state: State) -> Result<Attached<'_>> {
        let mut attached = Attached { subject: self, sinks: Vec::new(), real: None };
        match state {
            State::Alone => self.await_rest()?,
            State::Sinks(count) => {
                for _ in 0..count {
                    attached.sinks.push(Sink::attach(self.lane.server.address, &session.load_cpus)?);
                }
            }
            State::Real => {
                let real = self.real.as_ref().context("there is no such program")?;
                attached.real = Some(real);
                follow(real, Some(self.lane.server.address))?;
            }
        }
        Ok(attached)
    }

    fn await_rest(&self) -> Result<()> {
        if self.lane.kind == ServerKind::Floor {
            return Ok(()); // it keeps nothing
        }
        let what = format!("{} lets go of its stream", self.lane.name);
        until(&what, || Ok(replication(&self.lane.server)?.contains("repl_backlog_active:0\r\n")))
    }
}

impl Attached<'_> {
    fn measure(&self, session: &Session, pipeline: usize) -> Result<Measured> {
        let before = self.real.map(Applied::by).transpose()?;
        let sample = lanes::measure(session, &self.subject.lane, &traffic(session, pipeline))?;
        if self.sinks.iter().any(Sink::is_cut_off) {
            bail!("{}: a replica was cut off", self.subject.lane.name);
        }
        let Some((real, before)) = self.real.zip(before) else {
            return Ok(Measured { sample, replica_us: None });
        };
        let info = replication(&self.subject.lane.server)?;
        if !info.contains("connected_slaves:1\r\n") {
            bail!("{}: a replica was lost: {info}", self.subject.lane.name);
        }
        Ok(Measured { sample, replica_us: Some(Applied::by(real)?.us_per_command(&before)) })
    }
}

/// Detaches the real replica, too: its own data stay.
impl Drop for Attached<'_> {
    fn drop(&mut self) {
        if let Some(real) = self.real {
            drop(follow(real, None)); // an error shows at the next attachment
        }
    }
}

/// A replica's progress.
struct Applied {
    usage: proc::Usage,
    commands: u64,
}

impl Applied {
    fn by(replica: &Server) -> Result<Applied> {
        let stats = ask(replica.address, &["INFO", "stats"])?;
        let text = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        let commands = text.and_then(|count| count.trim().parse().ok()).context("INFO stats has no count")?;
        Ok(Applied { usage: proc::usage(replica.pid())?, commands })
    }

    fn us_per_command(&self, before: &Applied) -> f64 {
        let commands = self.commands.saturating_sub(before.commands).max(1);
        self.usage.since(&before.usage).cpu.as_secs_f64() * 1e6 / commands as f64
    }
}

fn replication(server: &Server) -> Result<String> {
    ask(server.address, &["INFO", "replication"])
}

/// Makes a server a replica and waits until it has all data; or makes it a primary.
fn follow(replica: &Server, primary: Option<SocketAddr>) -> Result<()> {
    let words = primary.map(|primary| [primary.ip().to_string(), primary.port().to_string()]);
    let [host, port] = words.unwrap_or(["NO".into(), "ONE".into()]);
    let answer = ask(replica.address, &["REPLICAOF", &host, &port])?;
    if !answer.starts_with("+OK") {
        bail!("REPLICAOF: {answer}");
    }
    if primary.is_none() {
        return Ok(());
    }
    until("a replica is there", || Ok(replication(replica)?.contains("master_link_status:up")))
}

fn until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + SYNC_TIME_MAX;
    while !is_so()? {
        if Instant::now() > end {
            bail!("not after {SYNC_TIME_MAX:?}: {what}");
        }
        interrupt::sleep(Duration::from_millis(50))?;
    }
    Ok(())
}

fn traffic(session: &Session, pipeline: usize) -> Traffic {
    Traffic { pipeline, clients: CLIENTS, keys: KEYS, value_size: VALUE_SIZE, ..Traffic::pinned(session) }
}

/// `all`: the rounds of each subject, with a measurement for each of its states.
fn cost(session: &mut Session, subjects: &[Subject], all: &[Vec<Vec<Measured>>], pipeline: usize) {
    let head = [&["", "requests/s", "to alone"], &COST_HEAD[..], &["replica's own"]].concat();
    let (mut table, mut servers) = (Table::new(&head), Vec::new());
    for (subject, rounds) in subjects.iter().zip(all) {
        let (kind, states) = (subject.lane.kind, subject.states().collect::<Vec<State>>());
        let series = |at: usize| Series {
            name: format!("{}{}", subject.lane.name, suffix(at)),
            kind,
            is_control: states[at] == State::Alone && at > 0,
            samples: rounds.iter().map(|round| round[at].sample).collect(),
        };
        let all: Vec<Series> = (0..states.len()).map(series).collect();
        for (at, state) in
            states.iter().enumerate().filter(|(at, state)| *at <= AGAIN || **state != State::Alone)
        {
            let own: Vec<f64> = rounds.iter().filter_map(|round| round[at].replica_us).collect();
            let around = match *state {
                State::Alone if at == 0 => None,
                State::Alone => Some([&all[at - 2], all.get(at + 2).unwrap_or(&all[at - 2])]),
                _ => Some([&all[at - 1], &all[at + 1]]),
            };
            let mut cells = cells(session, *state, &all[at], around, pipeline);
            cells.push(Spread::of(own.iter().copied()).map(|own| own.to_string()).unwrap_or_default());
            table.row(cells);
            let mut json = all[at].to_json();
            if let Some(members) = json.as_object_mut().filter(|_| !own.is_empty()) {
                members.insert("replica_cpu_us_per_command".into(), own.into());
            }
            servers.push(json);
        }
    }
    let title = format!("replica: SET, pipeline {pipeline}, {VALUE_SIZE} B values, {CLIENTS} clients");
    let members = vec![("pipeline", pipeline.into()), ("servers", Json::Array(servers))];
    session.report("replica", &title, &table, members);
}

/// Returns `f` of a metric and the average of the metrics around it, round by round.
fn compare(
    series: &Series,
    [before, behind]: [&Series; 2],
    figure: fn(&Sample) -> f64,
    f: impl Fn(f64, f64) -> f64,
) -> Option<Spread> {
    let around = before.samples.iter().zip(&behind.samples);
    let around = around.map(|(before, behind)| (figure(before) + figure(behind)) / 2.0);
    Spread::of(series.samples.iter().zip(around).map(|(sample, around)| f(figure(sample), around)))
}

/// Returns the row of a series, without the last cell. `around`: the same server before and after it, alone.
fn cells(
    session: &mut Session,
    state: State,
    series: &Series,
    around: Option<[&Series; 2]>,
    pipeline: usize,
) -> Vec<String> {
    let mut cells = vec![series.name.clone(), series.rate_cell()];
    let busiest = series.spread(|sample| sample.busiest_us).to_string();
    let Some(around) = around else {
        cells.extend([String::new(), series.cpu_cell()]);
        cells.extend([const { String::new() }; 3]);
        cells.push(busiest);
        cells.extend([const { String::new() }; 3]);
        return cells;
    };
    let rate = compare(series, around, |sample| sample.rate, |with, alone| with / alone);
    let added = compare(series, around, |sample| sample.cpu_us, |with, alone| with - alone);
    let to_serving = compare(series, around, |sample| sample.busiest_us, |with, alone| with - alone);
    // The promise is about a replica that costs nothing itself.
    let promise = (state == State::Sinks(1)).then_some(Promise::Replica);
    let is_judged = series.kind == ServerKind::Evenkeel && state != State::Alone;
    if is_judged && promise.is_some() {
        let rate = rate.map_or(f64::NAN, |rate| rate.median);
        let what = format!("rate with a replica, to without, pipeline {pipeline}");
        session.judge_for(promise, what, Goal::AtLeast(RATE_MIN), rate);
    }
    // A real replica has the same bound as a replica that drops everything.
    let (replicas, most) = match state {
        State::Sinks(3) => (3.0, THREE_ADD_US_MAX),
        _ => (1.0, ONE_ADDS_US_MAX),
    };
    let mut judged = |what: String, most, added| session.added_cells(promise, is_judged, what, most, added);
    let what = format!("CPU us that {} adds, pipeline {pipeline}", state.shown());
    let whole = judged(what, most, added);
    let what = format!("CPU us that {} adds to the serving thread, pipeline {pipeline}", state.shown());
    let serving = judged(what, ONE_ADDS_TO_SERVING_US_MAX * replicas, to_serving);
    cells.push(rate.map(|rate| rate.to_string()).unwrap_or_default());
    cells.push(series.cpu_cell());
    cells.extend(whole);
    cells.push(busiest);
    cells.extend(serving);
    cells
}

/// Returns the suffix of a series behind its server's name.
fn suffix(at: usize) -> &'static str {
    match STATES[at] {
        State::Alone if at == 0 => "",
        State::Alone => " again",
        State::Sinks(1) => ", 1 replica",
        State::Sinks(_) => ", 3 replicas",
        State::Real => ", a real one",
    }
}

impl State {
    fn shown(self) -> &'static str {
        match self {
            State::Alone => "nothing",
            State::Sinks(1) => "a replica",
            State::Sinks(_) => "three replicas",
            State::Real => "a real replica",
        }
    }
}
