//! `connections`: the rate of a server when many clients are connected, or come and go.
//!
//! Kept connections send one GET at a time, with few connections and with many: a server whose rate falls
//! pays per connection instead of per request. Short connections connect, ask once and close: each costs an
//! accept, and a burst of them needs a listen queue that is drained.
//!
//! - Refused: connections that the server turned away.
//! - Failed: connections that ended, or waited for seconds, without an answer.
//! - Overflows: connections that the kernel dropped since the queue was full. The client tries again after a
//!   second, which shows as the longest latency.
//!
//! The last part gives every server a queue of five: a burst of connections overflows it unless the accepting
//! thread takes all that have come.

use std::time::Duration;

use anyhow::Result;

use super::lanes::{self, Lane, Traffic};
use super::series::Series;
use super::{Session, throughput};
use crate::json::{Json, object};
use crate::load::keys::KeyRange;
use crate::load::requests::Command;
use crate::promises::Promise;
use crate::servers::{Launch, ServerKind};
use crate::stats::{Goal, Spread};
use crate::table::{Table, thousands, time_us};

const KEPT: [usize; 5] = [1, 10, 100, 1_000, 3_000];
const SHORT: [usize; 4] = [1, 100, 1_000, 3_000];
/// Numbers of clients with a listen queue of five.
const SHORT_QUEUE: [usize; 2] = [100, 1_000];
const SHORT_QUEUE_ARGS: &[&str] = &["--tcp-backlog", "5"];
const KEPT_GOAL: Goal = Goal::AtLeast(0.90);
const SHORT_GOAL: Goal = Goal::AtLeast(0.95);
const KEYS: KeyRange = KeyRange { first: 0, count: 10_000 };
const VALUE_SIZE: usize = 500;
/// Opening and closing 3,000 connections around each measurement, for the estimate of the time.
const OPENING: Duration = Duration::from_millis(300);

/// A kind of connection, measured over several numbers of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionMode {
    Kept,
    Short,
    /// Short connections, with a listen queue of five.
    ShortQueue,
}

impl ConnectionMode {
    fn numbers(self) -> &'static [usize] {
        match self {
            Self::Kept => &KEPT,
            Self::Short => &SHORT,
            Self::ShortQueue => &SHORT_QUEUE,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Short => "short",
            Self::ShortQueue => "short, queue of 5",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Kept => "Kept connections, GET without pipeline, requests/s",
            Self::Short => "Short connections (connect, GET, close), per second",
            Self::ShortQueue => "Short connections with a listen queue of 5, per second",
        }
    }

    /// Goal for the rate with the most clients, relative to the best rate.
    fn goal(self) -> Option<Goal> {
        match self {
            Self::Kept => Some(KEPT_GOAL),
            Self::Short => Some(SHORT_GOAL),
            Self::ShortQueue => None,
        }
    }
}

pub(super) fn estimate(session: &Session) -> Duration {
    let numbers = KEPT.len() + SHORT.len() + SHORT_QUEUE.len();
    let measurements = session.programs.len() * session.rounds * numbers;
    session.time_for(measurements) + OPENING * measurements as u32
}

pub(crate) fn connections(session: &mut Session) -> Result<()> {
    let lanes = start(session, &[])?;
    for mode in [ConnectionMode::Kept, ConnectionMode::Short] {
        let all = sweep(session, &lanes, mode)?;
        report(session, &all, mode);
    }
    drop(lanes);
    let lanes = start(session, SHORT_QUEUE_ARGS)?;
    let all = sweep(session, &lanes, ConnectionMode::ShortQueue)?;
    report(session, &all, ConnectionMode::ShortQueue);
    Ok(())
}

fn start(session: &Session, more: &'static [&'static str]) -> Result<Vec<Lane>> {
    let order = [ServerKind::Valkey, ServerKind::Evenkeel, ServerKind::Redis, ServerKind::Floor];
    let launch = Launch { cpus: session.server_cpus.clone(), threads: 1, more };
    let found = order.into_iter().filter_map(|kind| session.program(kind));
    let lanes = found
        .map(|program| Lane::start(program, program.kind.name(), &launch))
        .collect::<Result<Vec<Lane>>>()?;
    lanes.iter().try_for_each(|lane| lane.fill(KEYS, VALUE_SIZE))?;
    Ok(lanes)
}

/// Returns the servers' series for each number of clients. Within the rounds the numbers alternate, as the
/// servers do.
fn sweep(session: &Session, lanes: &[Lane], mode: ConnectionMode) -> Result<Vec<Vec<Series>>> {
    let empty = |lane: &Lane| Series {
        name: lane.name.clone(),
        kind: lane.kind,
        is_control: false,
        samples: Vec::new(),
    };
    let numbers = mode.numbers();
    let mut all: Vec<Vec<Series>> = numbers.iter().map(|_| lanes.iter().map(empty).collect()).collect();
    for _ in 0..session.rounds {
        for (index, lane) in lanes.iter().enumerate() {
            for (clients, series) in numbers.iter().zip(&mut all) {
                let sample = lanes::measure(session, lane, &traffic(session, *clients, mode))?;
                series[index].samples.push(sample);
            }
        }
    }
    Ok(all)
}

fn traffic(session: &Session, clients: usize, mode: ConnectionMode) -> Traffic {
    Traffic {
        command: Command::Get,
        clients,
        keys: KEYS.count,
        value_size: VALUE_SIZE,
        short: mode != ConnectionMode::Kept,
        ..Traffic::pinned(session)
    }
}

fn report(session: &mut Session, all: &[Vec<Series>], mode: ConnectionMode) {
    let columns: Vec<String> =
        mode.numbers().iter().map(|clients| format!("{} clients", thousands(*clients as f64))).collect();
    let mut head = vec![""];
    head.extend(columns.iter().map(String::as_str));
    head.extend([
        "last to peak",
        "goal",
        "",
        "CPU us",
        "p99 at last",
        "max",
        "refused",
        "failed",
        "overflows",
        "load busy",
    ]);
    let (mut table, mut curves) = (Table::new(&head), Vec::new());
    for index in 0..all[0].len() {
        let across: Vec<&Series> = all.iter().map(|series| &series[index]).collect();
        curves.push(curve(&across));
        let row = row(session, &across, mode);
        table.row(row);
    }
    let cpus = format!("server on cpu {:?}, load on cpu {:?}", session.server_cpus, session.load_cpus);
    let title = format!("{}; {cpus}", mode.title());
    let servers = |series: &Vec<Series>| Json::Array(series.iter().map(Series::to_json).collect());
    let curves = object(vec![
        ("what", "requests per second".into()),
        ("x", "clients".into()),
        ("x_values", mode.numbers().to_vec().into()),
        ("series", Json::Array(curves)),
    ]);
    let figures = vec![
        ("kind", mode.name().into()),
        ("clients", mode.numbers().to_vec().into()),
        ("curves", Json::Array(vec![curves])),
        ("servers_by_clients", Json::Array(all.iter().map(servers).collect())),
    ];
    session.report("connections", &title, &table, figures);
}

/// Returns a server's rates over the numbers of clients, for the page.
fn curve(across: &[&Series]) -> Json {
    let spreads: Vec<Spread> = across.iter().map(|series| series.spread(|sample| sample.rate)).collect();
    let list = |figure: fn(&Spread) -> f64| Json::from(spreads.iter().map(figure).collect::<Vec<f64>>());
    object(vec![
        ("server", across[0].name.as_str().into()),
        ("median", list(|spread| spread.median)),
        ("min", list(|spread| spread.min)),
        ("max", list(|spread| spread.max)),
    ])
}

/// Formats a server's rates, `across` the numbers of clients.
fn row(session: &mut Session, across: &[&Series], mode: ConnectionMode) -> Vec<String> {
    let last = across.last().expect("there is more than one number of clients");
    let ratio = last_to_peak(across);
    let mut cells = vec![last.name.clone()];
    cells.extend(across.iter().map(|series| series.rate_cell()));
    cells.push(ratio.map(|ratio| ratio.to_string()).unwrap_or_default());
    let is_ours = last.kind == ServerKind::Evenkeel;
    let judged = ratio.filter(|_| is_ours).zip(mode.goal());
    cells.push(judged.map(|(_, goal)| goal.to_string()).unwrap_or_default());
    let (what, promise) = match mode {
        ConnectionMode::Kept => ("kept connections, GET, 3,000 to peak", Some(Promise::Connections)),
        _ => ("short connections, 3,000 to peak", None),
    };
    let verdict = judged.map(|(ratio, goal)| session.judge_for(promise, what.to_owned(), goal, ratio.median));
    cells.push(verdict.unwrap_or_default());
    cells.push(format!("{:.1}", last.median(|sample| sample.cpu_us)));
    cells.push(time_us(last.median(|sample| sample.p99)));
    cells.push(time_us(last.spread(|sample| sample.max).max));
    let counts = |figure: fn(&super::series::Sample) -> u64| {
        across.iter().map(|series| series.sum(figure)).sum::<u64>()
    };
    let counts = [counts(|s| s.refused), counts(|s| s.failed), counts(|s| s.listen_overflows)];
    if mode != ConnectionMode::Kept && is_ours {
        let what = format!("{} connections, refused or failed", mode.name());
        let bad = (counts[0] + counts[1]) as f64;
        session.judge_for(Promise::Connections, what, Goal::AtMost(0.0), bad);
    }
    cells.extend(
        counts.map(|count| if mode == ConnectionMode::Kept { String::new() } else { count.to_string() }),
    );
    cells.push(throughput::busy_cell(last));
    cells
}

/// Returns the rate with the most clients, relative to the best rate, round by round.
pub(super) fn last_to_peak(across: &[&Series]) -> Option<Spread> {
    let rates: Vec<Vec<f64>> = across.iter().map(|series| series.values(|sample| sample.rate)).collect();
    let last = rates.last()?;
    let peak = |round: usize| rates.iter().filter_map(|rates| rates.get(round)).copied().fold(0.0, f64::max);
    let peaks: Vec<f64> = (0..last.len()).map(peak).collect();
    Spread::of_ratios(last, &peaks)
}

#[cfg(test)]
mod tests {
    use super::super::series::tests::series;
    use super::*;

    #[test]
    fn the_peak_is_found_per_round() {
        let (few, many) =
            (series(ServerKind::Redis, false, &[1.0, 4.0]), series(ServerKind::Redis, false, &[2.0, 2.0]));
        let ratio = last_to_peak(&[&few, &many]).expect("two rounds");
        assert_eq!((ratio.min, ratio.max), (0.5, 1.0));
        assert_eq!(last_to_peak(&[]), None);
    }
}
