//! Servers that run side by side for an experiment, and the rounds over them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::series::{Sample, Series};
use super::{Session, WARM_UP};
use crate::interrupt;
use crate::load::distribution::Distribution;
use crate::load::endpoint::{Endpoint, Protocol};
use crate::load::keys::{self, KeyRange};
use crate::load::requests::Command;
use crate::load::{self, Event, Outcome, Plan, Until};
use crate::servers::{Launch, Server, ServerKind, ServerProgram, ask};
use crate::syscalls::Syscalls;

/// Size of keys everywhere: 16 bytes, as in other load generators.
pub(super) const KEY_SIZE: usize = 16;
/// Memory that a server may need per key beside key and value, in bytes: the largest measured, rounded up.
const OVERHEAD_PER_KEY: u64 = 120;

/// Requests over which system calls are counted: opening the connections hardly shows.
const COUNTED: u64 = 50_000;

/// A running server with its place in the table.
pub(super) struct Lane {
    pub(super) name: String,
    pub(super) kind: ServerKind,
    pub(super) is_control: bool,
    pub(super) server: Server,
}

impl Lane {
    pub(super) fn start(program: &ServerProgram, name: &str, launch: &Launch) -> Result<Self> {
        let server = Server::start(program, launch)?;
        Ok(Self { name: name.to_owned(), kind: program.kind, is_control: false, server })
    }

    /// Like [`start`](Self::start), with its files in an existing directory.
    pub(super) fn start_in(
        program: &ServerProgram,
        name: &str,
        launch: &Launch,
        directory: &Path,
    ) -> Result<Self> {
        let server = Server::start_in(program, launch, Some(directory))?;
        Ok(Self { name: name.to_owned(), kind: program.kind, is_control: false, server })
    }

    /// Writes the keys and checks that the last key exists; a load of GETs finds any other missing key.
    pub(super) fn fill(&self, keys: KeyRange, value_size: usize) -> Result<()> {
        if self.kind == ServerKind::Floor {
            return Ok(()); // it keeps nothing
        }
        let outcome = load::run(&Plan::fill(self.server.endpoint(), keys, KEY_SIZE, value_size), None)
            .with_context(|| format!("cannot fill {}", self.name))?;
        if self.kind.protocol() == Protocol::Memcached && outcome.errors == 0 {
            return Ok(());
        }
        let mut last = Vec::new();
        keys::write(keys.first + keys.count - 1, KEY_SIZE, &mut last);
        let answer = ask(self.server.address, &["GET", &String::from_utf8_lossy(&last)])?;
        if outcome.errors > 0 || !answer.starts_with(&format!("${value_size}\r\n")) {
            let error = outcome.error_text.unwrap_or_default();
            bail!("{} does not hold what was written: {} errors; {error}", self.name, outcome.errors);
        }
        Ok(())
    }

    /// CONFIG SET
    pub(super) fn set(&self, name: &str, value: &str) -> Result<()> {
        let answer = ask(self.server.address, &["CONFIG", "SET", name, value])?;
        if !answer.starts_with("+OK") {
            bail!("{}: CONFIG SET {name} {value}: {answer}", self.name);
        }
        Ok(())
    }
}

/// Returns the bytes that a server may need for this many keys.
pub(super) fn memory_for(keys: u64, value_size: usize) -> u64 {
    keys * (value_size as u64 + KEY_SIZE as u64 + OVERHEAD_PER_KEY)
}

/// The requests sent to each server of an experiment.
#[derive(Clone, Debug)]
pub(super) struct Traffic {
    pub(super) command: Command,
    pub(super) pipeline: usize,
    pub(super) clients: usize,
    pub(super) first_key: u64,
    pub(super) keys: u64,
    pub(super) distribution: Distribution,
    pub(super) value_size: usize,
    pub(super) short: bool,
    /// Requests per second, sent when they are due; `None`: each connection sends after its last reply.
    pub(super) rate: Option<f64>,
    /// Destination, if other than the server's own address.
    pub(super) endpoint: Option<Endpoint>,
    pub(super) load_threads: usize,
    /// CPUs of the load; empty: anywhere.
    pub(super) load_cpus: Vec<usize>,
}

/// The default: SET of 500 B from 50 clients, each waiting for its answer.
impl Default for Traffic {
    fn default() -> Self {
        Self {
            command: Command::Set,
            pipeline: 1,
            clients: 50,
            first_key: 0,
            keys: 300_000,
            distribution: Distribution::Uniform,
            value_size: 500,
            short: false,
            rate: None,
            endpoint: None,
            load_threads: 1,
            load_cpus: Vec::new(),
        }
    }
}

impl Traffic {
    /// Returns the default load on the load's CPUs in pinned runs, with a thread for each CPU.
    pub(super) fn pinned(session: &Session) -> Self {
        let load_cpus = session.load_cpus.clone();
        Self { load_threads: load_cpus.len().max(1), load_cpus, ..Self::default() }
    }

    fn plan(&self, lane: &Lane, until: Until) -> Plan {
        Plan {
            server: self.endpoint.clone().unwrap_or_else(|| lane.server.endpoint()),
            clients: self.clients,
            threads: self.load_threads,
            pipeline: self.pipeline,
            command: self.command.clone(),
            key_size: KEY_SIZE,
            keys: KeyRange { first: self.first_key, count: self.keys },
            distribution: self.distribution,
            value_size: self.value_size,
            rate: self.rate,
            until,
            short: self.short,
            cpus: self.load_cpus.clone(),
        }
    }
}

/// Measures each lane once per round; every round begins with another lane.
pub(super) fn rounds(session: &Session, lanes: &[Lane], traffic: &Traffic) -> Result<Vec<Series>> {
    lanes.iter().for_each(|lane| lane.server.rest());
    let all = in_rounds(session.rounds, lanes, |lane| measure(session, lane, traffic))?;
    let series = |(lane, samples): (&Lane, _)| Series {
        name: lane.name.clone(),
        kind: lane.kind,
        is_control: lane.is_control,
        samples,
    };
    Ok(lanes.iter().zip(all).map(series).collect())
}

/// Calls `measure` once per lane and round; returns the results by lanes.
pub(super) fn in_rounds<L, T>(
    rounds: usize,
    lanes: &[L],
    mut measure: impl FnMut(&L) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut all: Vec<Vec<T>> = lanes.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for step in 0..lanes.len() {
            let index = (round + step) % lanes.len();
            all[index].push(measure(&lanes[index])?);
        }
    }
    Ok(all)
}

/// Measures a lane once.
pub(super) fn measure(session: &Session, lane: &Lane, traffic: &Traffic) -> Result<Sample> {
    outcome(lane, traffic, session.measured).map(|outcome| Sample::from(&outcome))
}

/// Returns the server's system calls per command; `None` if they cannot be counted. Counting would distort
/// other measurements.
pub(super) fn system_calls(lane: &Lane, traffic: &Traffic) -> Result<Option<f64>> {
    let Ok(mut calls) = Syscalls::count(lane.server.pid()) else { return Ok(None) };
    let before = calls.total()?;
    run(lane, traffic, Until::Requests(COUNTED))?;
    Ok(Some((calls.total()? - before) as f64 / COUNTED as f64))
}

/// Returns the whole outcome of a measurement of this length; fails if a request failed.
pub(super) fn outcome(lane: &Lane, traffic: &Traffic, measured: Duration) -> Result<Outcome> {
    run(lane, traffic, Until::Time { warm_up: WARM_UP, measured })
}

/// Like [`outcome`], for as long as an event lasts.
pub(super) fn outcome_of(lane: &Lane, traffic: &Traffic, event: &Arc<Event>) -> Result<Outcome> {
    run(lane, traffic, Until::Event { warm_up: WARM_UP, event: event.clone() })
}

fn run(lane: &Lane, traffic: &Traffic, until: Until) -> Result<Outcome> {
    interrupt::check()?;
    let plan = traffic.plan(lane, until);
    lane.server.resume();
    let outcome = load::run(&plan, Some(lane.server.pid()));
    lane.server.rest();
    let outcome = outcome
        .with_context(|| format!("{}: {}, pipeline {}", lane.name, traffic.command, traffic.pipeline))?;
    if outcome.errors > 0 && !traffic.short {
        bail!("{}: {} error replies, such as {:?}", lane.name, outcome.errors, outcome.error_text);
    }
    if outcome.misses > 0 {
        bail!("{}: {} replies were null: the keys are not all there", lane.name, outcome.misses);
    }
    Ok(outcome)
}
