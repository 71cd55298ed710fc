//! `accounting`: the cost of Evenkeel's time accounting and of its hot-key counters.
//!
//! Both cost about a hundredth of a command, far less than the difference between two measurements of the
//! same load some seconds apart. So a single load runs without a pause while the server switches the feature
//! on and off, twenty times a second or more. The cost in each slice is compared with the slices right before
//! and after it. A slice's commands and CPU time come from the same reply of the server (INFO), so they
//! belong to the same instant, whenever that reply is read.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Session;
use super::lanes::{self, Lane, Traffic};
use crate::interrupt;
use crate::json::{Json, object};
use crate::load::Event;
use crate::load::keys::KeyRange;
use crate::load::requests::Command;
use crate::promises::Promise;
use crate::servers::{Launch, ServerKind, ask};
use crate::stats::{Goal, Spread};
use crate::table::Table;

const KEYS: u64 = 50_000;
const VALUE_SIZE: usize = 500;
const TRAFFIC: [(Command, usize); 4] =
    [(Command::Set, 16), (Command::Get, 16), (Command::Set, 1), (Command::Get, 1)];
/// Delay between a switch and the start of a slice.
const SETTLE: Duration = Duration::from_millis(3);
/// Fewest pairs of slices.
const PAIRS_MIN: usize = 8;
/// CPU with the feature, relative to without.
const GOAL: Goal = Goal::AtMost(1.01);

/// A feature that the server can switch on and off.
struct Switch {
    name: &'static str,
    on: &'static [&'static str],
    off: &'static [&'static str],
    /// Length of a slice: long enough to hide the costs of asking and starting, short enough to be like its
    /// neighbours.
    slice: Duration,
    promise: Option<Promise>,
}

const SWITCHES: [Switch; 2] = [
    Switch {
        name: "stages and latencies",
        on: &["DEBUG", "ACCOUNTING", "1"],
        off: &["DEBUG", "ACCOUNTING", "0"],
        slice: Duration::from_millis(20),
        promise: Some(Promise::Accounting),
    },
    Switch {
        name: "hot keys",
        // Starts with the usual sample rate: each slice starts the counters anew, and must not count its
        // first commands singly. The sketches are filled in the first third.
        on: &["HOTKEYS", "START", "METRICS", "3", "CPU", "NET", "REQUESTS", "SAMPLE", "256"],
        off: &["HOTKEYS", "STOP"],
        slice: Duration::from_millis(100),
        promise: None,
    },
];

/// Slices of a round with the feature on.
fn pairs(session: &Session, switch: &Switch) -> usize {
    let of_time = session.measured.as_secs_f64() / (2.0 * switch.slice.as_secs_f64());
    (of_time as usize).max(PAIRS_MIN)
}

pub(super) fn estimate(session: &Session) -> Duration {
    let of = |switch: &Switch| {
        (switch.slice + SETTLE) * (TRAFFIC.len() * (session.rounds * 2 * pairs(session, switch) + 1)) as u32
    };
    SWITCHES.iter().map(of).sum()
}

pub(crate) fn accounting(session: &mut Session) -> Result<()> {
    let program = session.program(ServerKind::Evenkeel).context("only Evenkeel accounts for its time")?;
    let launch =
        Launch { cpus: session.server_cpus.clone(), threads: 1, more: &["--enable-debug-command", "local"] };
    let lane = Lane::start(program, "evenkeel", &launch)?;
    lane.fill(KeyRange { first: 0, count: KEYS }, VALUE_SIZE)?;
    let mut table = Table::new(&[
        "",
        "CPU us/command without",
        "with",
        "with/without",
        "noise: without/without",
        "goal",
        "",
    ]);
    let mut records = Vec::new();
    for switch in &SWITCHES {
        for (command, pipeline) in TRAFFIC {
            let what = format!("{}: {command}, pipeline {pipeline}", switch.name);
            let traffic =
                Traffic { command, pipeline, keys: KEYS, value_size: VALUE_SIZE, ..Traffic::pinned(session) };
            let Costs { without, with, ratio, noise } = costs(session, &lane, &traffic, switch)?;
            let mut verdict =
                session.judge_for(switch.promise, format!("CPU with/without {what}"), GOAL, ratio.median);
            if ratio.median > 1.0 && ratio.median - 1.0 <= noise.noise() {
                verdict += ", within the noise";
            }
            table.row(vec![
                what.clone(),
                format!("{without:.3}"),
                format!("{with:.3}"),
                thousandths(&ratio),
                thousandths(&noise),
                GOAL.to_string(),
                verdict,
            ]);
            records.push(object(vec![
                ("what", what.into()),
                ("without_us", without.into()),
                ("with_us", with.into()),
                ("ratio", thousandths(&ratio).into()),
                ("noise", thousandths(&noise).into()),
            ]));
        }
    }
    let title =
        format!("accounting: turned off and on many times a second under one load, {VALUE_SIZE} B values");
    session.report("accounting", &title, &table, vec![("costs", Json::Array(records))]);
    Ok(())
}

/// `1.006 (1.001..1.012)`: the bound is finer than the hundredths of other tables.
fn thousandths(spread: &Spread) -> String {
    format!("{:.3} ({:.3}..{:.3})", spread.median, spread.min, spread.max)
}

/// Medians over all slices, and ratios with the range over the rounds.
struct Costs {
    without: f64,
    with: f64,
    ratio: Spread,
    /// Ratio between slices that were both without the feature.
    noise: Spread,
}

fn costs(session: &Session, lane: &Lane, traffic: &Traffic, switch: &Switch) -> Result<Costs> {
    let event = Arc::new(Event::default());
    let slices = std::thread::scope(|scope| {
        let load = scope.spawn(|| lanes::outcome_of(lane, traffic, &event));
        let slices = event.begin().and_then(|()| slices(session, lane, switch));
        event.end();
        load.join().expect("the load does not panic")?;
        slices
    })?;
    Ok(compare(&slices, pairs(session, switch)))
}

/// Returns the cost of a command in each slice, alternately without and with the feature; the first and the
/// last slice are without.
fn slices(session: &Session, lane: &Lane, switch: &Switch) -> Result<Vec<f64>> {
    let count = session.rounds * 2 * pairs(session, switch) + 1;
    let mut costs = Vec::with_capacity(count);
    for index in 0..count {
        let words = if index % 2 == 1 { switch.on } else { switch.off };
        let answer = ask(lane.server.address, words)?;
        // The first "off" may find the feature off already.
        if !answer.starts_with("+OK") && index > 0 {
            bail!("{}: {answer}", words.join(" "));
        }
        interrupt::sleep(SETTLE)?;
        let (commands, cpu) = use_of(lane)?;
        interrupt::sleep(switch.slice)?;
        let (commands_then, cpu_then) = use_of(lane)?;
        costs.push((cpu_then - cpu) * 1e6 / (commands_then - commands).max(1.0));
    }
    let answer = ask(lane.server.address, SWITCHES[0].on)?;
    anyhow::ensure!(answer.starts_with("+OK"), "{}: {answer}", SWITCHES[0].on.join(" "));
    Ok(costs)
}

/// Returns the number of commands that the server has run, and its CPU seconds.
fn use_of(lane: &Lane) -> Result<(f64, f64)> {
    let info = ask(lane.server.address, &["INFO", "stats", "cpu"])?;
    read_use(&info).context("INFO is of another form")
}

fn read_use(info: &str) -> Option<(f64, f64)> {
    let field = |name: &str| -> Option<f64> {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?.trim().parse().ok()
    };
    Some((field("total_commands_processed")?, field("used_cpu_user")? + field("used_cpu_sys")?))
}

const NONE: Spread = Spread { median: f64::NAN, min: f64::NAN, max: f64::NAN };

/// `slices` begin and end without the feature, and alternate; a round has `pairs` of both.
fn compare(slices: &[f64], pairs: usize) -> Costs {
    let median = |values: Vec<f64>| Spread::of(values).map_or(f64::NAN, |spread| spread.median);
    let every_second = |first: usize| slices.iter().skip(first).step_by(2).copied().collect();
    let per_round = |ratio: fn(&[f64]) -> f64| {
        let ratios: Vec<f64> = slices.windows(3).step_by(2).map(ratio).collect();
        let rounds: Vec<f64> = ratios.chunks(pairs).map(|round| median(round.to_vec())).collect();
        Spread { median: median(ratios), ..Spread::of(rounds).unwrap_or(NONE) }
    };
    Costs {
        without: median(every_second(0)),
        with: median(every_second(1)),
        ratio: per_round(|three| 2.0 * three[1] / (three[0] + three[2])),
        noise: per_round(|three| three[2] / three[0]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_compared_with_their_neighbours() {
        // The machine becomes slower all the time, and slices with the feature cost a tenth more.
        let slice = |index: usize| (1.0 + index as f64) * if index % 2 == 1 { 1.1 } else { 1.0 };
        let slices: Vec<f64> = (0..=40).map(slice).collect();
        let costs = compare(&slices, 10);
        assert!((costs.ratio.median - 1.1).abs() < 1e-9 && (costs.ratio.max - 1.1).abs() < 1e-9);
        assert!(costs.noise.median > 1.0 && costs.noise.max > costs.noise.min);
        assert_eq!((costs.without, costs.with), (21.0, 21.0 * 1.1));
    }

    #[test]
    fn commands_and_cpu_come_from_one_reply() {
        let info = "$9\r\n# Stats\r\ntotal_commands_processed:70\r\n# CPU\r\n\
        used_cpu_sys:0.5\r\nused_cpu_user:1.25\r\n\
                    used_cpu_sys_children:9\r\n";
        assert_eq!(read_use(info), Some((70.0, 1.75)));
        assert_eq!(read_use("$0\r\n"), None);
    }
}
