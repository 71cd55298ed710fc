//! `connections`: does a server keep its rate when many clients are connected, or come and go?
//!
//! Kept connections ask one GET at a time, few and many of them: a server whose rate falls pays per connection instead of
//! per request. Short ones connect, ask once and close: each costs an accept, and a burst of them needs a listen queue that
//! is drained. Refused are those that the server turned away; failed, those that ended or waited for seconds without an
//! answer; overflows, what the kernel dropped since the queue was full (the client tries again after a second, which shows
//! as the longest latency).

use std::time::Duration;

use anyhow::Result;

use super::lanes::{self, Lane, Traffic};
use super::series::Series;
use super::{Session, throughput};
use crate::json::Json;
use crate::load::keys::KeyRange;
use crate::load::requests::Command;
use crate::peers::{Kind, Launch};
use crate::promises::Promise;
use crate::stats::{Goal, Spread};
use crate::table::{Table, thousands, time_us};

const KEPT: [usize; 2] = [100, 3_000];
const SHORT: [usize; 3] = [100, 1_000, 3_000];
const KEPT_GOAL: Goal = Goal::AtLeast(0.90);
const SHORT_GOAL: Goal = Goal::AtLeast(0.95);
const KEYS: KeyRange = KeyRange { first: 0, count: 10_000 };
const VALUE_SIZE: usize = 500;
/// Opening and closing 3,000 connections around each measurement, for the estimate of the time.
const OPENING: Duration = Duration::from_millis(300);

pub(super) fn estimate(session: &Session) -> Duration {
    let measurements = session.peers.len() * session.rounds * (KEPT.len() + SHORT.len());
    session.time_for(measurements) + OPENING * measurements as u32
}

pub(crate) fn connections(session: &mut Session) -> Result<()> {
    let order = [Kind::Valkey, Kind::Evenkeel, Kind::Redis, Kind::Floor];
    let launch = Launch { cpus: session.server_cpus.clone(), threads: 1 };
    let found = order.into_iter().filter_map(|kind| session.peer(kind));
    let lanes =
        found.map(|peer| Lane::start(peer, peer.kind.name(), &launch)).collect::<Result<Vec<Lane>>>()?;
    lanes.iter().try_for_each(|lane| lane.fill(KEYS, VALUE_SIZE))?;
    let kept = sweep(session, &lanes, &KEPT, false)?;
    report(session, &kept, &KEPT, false);
    let short = sweep(session, &lanes, &SHORT, true)?;
    report(session, &short, &SHORT, true);
    Ok(())
}

/// For each number of clients the servers' series. The numbers alternate within the rounds like the servers do.
fn sweep(session: &Session, lanes: &[Lane], numbers: &[usize], short: bool) -> Result<Vec<Vec<Series>>> {
    let empty = |lane: &Lane| Series {
        name: lane.name.clone(),
        kind: lane.kind,
        is_control: false,
        samples: Vec::new(),
    };
    let mut all: Vec<Vec<Series>> = numbers.iter().map(|_| lanes.iter().map(empty).collect()).collect();
    for _ in 0..session.rounds {
        for (index, lane) in lanes.iter().enumerate() {
            for (clients, series) in numbers.iter().zip(&mut all) {
                let sample = lanes::measure(session, lane, &traffic(session, *clients, short))?;
                series[index].samples.push(sample);
            }
        }
    }
    Ok(all)
}

fn traffic(session: &Session, clients: usize, short: bool) -> Traffic {
    Traffic {
        command: Command::Get,
        clients,
        keys: KEYS.count,
        value_size: VALUE_SIZE,
        short,
        ..Traffic::pinned(session)
    }
}

fn report(session: &mut Session, all: &[Vec<Series>], numbers: &[usize], short: bool) {
    let (kind, goal) = if short { ("short", SHORT_GOAL) } else { ("kept", KEPT_GOAL) };
    let columns: Vec<String> =
        numbers.iter().map(|clients| format!("{} clients", thousands(*clients as f64))).collect();
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
    let mut table = Table::new(&head);
    for index in 0..all[0].len() {
        let across: Vec<&Series> = all.iter().map(|series| &series[index]).collect();
        let row = row(session, &across, goal, short);
        table.row(row);
    }
    let cpus = format!("server on cpu {:?}, load on cpu {:?}", session.server_cpus, session.load_cpus);
    let title = match short {
        true => format!("Short connections (connect, GET, close), per second; {cpus}"),
        false => format!("Kept connections, GET without pipeline, requests/s; {cpus}"),
    };
    let servers = |series: &Vec<Series>| Json::Array(series.iter().map(Series::to_json).collect());
    let figures = vec![
        ("kind", kind.into()),
        ("clients", numbers.to_vec().into()),
        ("servers_by_clients", Json::Array(all.iter().map(servers).collect())),
    ];
    session.report("connections", &title, &table, figures);
}

/// A server's rates, `across` the numbers of clients.
fn row(session: &mut Session, across: &[&Series], goal: Goal, short: bool) -> Vec<String> {
    let last = across.last().expect("there is more than one number of clients");
    let ratio = last_to_peak(across);
    let mut cells = vec![last.name.clone()];
    cells.extend(across.iter().map(|series| series.rate_cell()));
    cells.push(ratio.map(|ratio| ratio.to_string()).unwrap_or_default());
    let is_ours = last.kind == Kind::Evenkeel;
    let ratio = ratio.filter(|_| is_ours).map(|ratio| ratio.median);
    cells.push(ratio.map(|_| goal.to_string()).unwrap_or_default());
    let what =
        if short { "short connections, 3,000 to peak" } else { "kept connections, GET, 3,000 to peak" };
    cells.push(
        ratio
            .map(|ratio| {
                session.judge_for((!short).then_some(Promise::Connections), what.to_owned(), goal, ratio)
            })
            .unwrap_or_default(),
    );
    cells.push(format!("{:.1}", last.median(|sample| sample.cpu_us)));
    cells.push(time_us(last.median(|sample| sample.p99)));
    cells.push(time_us(last.spread(|sample| sample.max).max));
    let counts = |figure: fn(&super::series::Sample) -> u64| {
        across.iter().map(|series| series.sum(figure)).sum::<u64>()
    };
    let counts = [counts(|s| s.refused), counts(|s| s.failed), counts(|s| s.listen_overflows)];
    if short && is_ours {
        session.judge_for(
            Promise::Connections,
            "short connections, refused or failed".to_owned(),
            Goal::AtMost(0.0),
            (counts[0] + counts[1]) as f64,
        );
    }
    cells.extend(counts.map(|count| if short { count.to_string() } else { String::new() }));
    cells.push(throughput::busy_cell(last));
    cells
}

/// The rate with the most clients to the best rate, round by round.
fn last_to_peak(across: &[&Series]) -> Option<Spread> {
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
        let (few, many) = (series(Kind::Redis, false, &[1.0, 4.0]), series(Kind::Redis, false, &[2.0, 2.0]));
        let ratio = last_to_peak(&[&few, &many]).expect("two rounds");
        assert_eq!((ratio.min, ratio.max), (0.5, 1.0));
        assert_eq!(last_to_peak(&[]), None);
    }
}
