//! `generator`: the load generator's own cost per request, compared with redis-benchmark.
//!
//! Both send the same requests to `floor`, which answers without doing anything, in alternating rounds on the
//! same CPUs: 50 connections, SET and GET of 500 B over 300,000 keys. A generator that costs more than the
//! server measures itself. For redis-benchmark, the cost is the process' whole CPU time, including its start,
//! which does not show over so many requests.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command as Process, Stdio};

use anyhow::{Context, Result, bail};

use super::Session;
use super::lanes::{self, Lane, Traffic};
use crate::json::{Json, object};
use crate::load::requests::Command;
use crate::servers::{Launch, ServerKind};
use crate::stats::{Goal, Spread};
use crate::table::Table;
use crate::{interrupt, sys};

const OTHER: &str = "redis-benchmark";
/// Cost relative to redis-benchmark.
const GOAL: Goal = Goal::AtMost(1.0);
const LOADS: [(Command, usize); 4] =
    [(Command::Set, 1), (Command::Get, 1), (Command::Set, 16), (Command::Get, 16)];

/// CPU microseconds per request, and requests per second.
type Figures = (f64, f64);

pub(super) fn estimate(session: &Session) -> std::time::Duration {
    session.time_for(2 * LOADS.len() * session.rounds)
}

pub(crate) fn generator(session: &mut Session) -> Result<()> {
    let program =
        session.program(ServerKind::Floor).context("it is measured against the floor: not without it")?;
    if Process::new(OTHER).arg("--version").stdout(Stdio::null()).status().is_err() {
        bail!("there is no {OTHER} on the PATH: apt-get install redis-tools");
    }
    let launch = Launch { cpus: session.server_cpus.clone(), threads: 1, ..Launch::default() };
    let lane = Lane::start(program, "floor", &launch)?;
    let mut table = Table::new(&["", "", "CPU us/request", "thousands/s", "to redis-benchmark", "goal", ""]);
    let mut servers = Vec::new();
    for (command, pipeline) in LOADS {
        let traffic = Traffic { command: command.clone(), pipeline, ..Traffic::pinned(session) };
        let (mut ours, mut theirs): (Vec<Figures>, Vec<Figures>) = Default::default();
        for _ in 0..session.rounds {
            let sample = lanes::measure(session, &lane, &traffic)?;
            ours.push((sample.load_us, sample.rate));
            let requests = (sample.rate * session.measured.as_secs_f64()) as u64;
            theirs.push(redis_benchmark(&lane, &traffic, requests.max(1_000))?);
        }
        let column =
            |figures: &[Figures], which: fn(&Figures) -> f64| figures.iter().map(which).collect::<Vec<f64>>();
        let ratio = Spread::of_ratios(&column(&ours, |f| f.0), &column(&theirs, |f| f.0));
        let what = format!("{command}, pipeline {pipeline}");
        for (name, figures) in [(OTHER, &theirs), ("evenkeel-bench load", &ours)] {
            let text = |which| {
                Spread::of(column(figures, which)).map(|spread| spread.to_string()).unwrap_or_default()
            };
            let mut cells = vec![what.clone(), name.to_owned(), text(|f| f.0), text(|f| f.1 / 1e3)];
            if let Some(ratio) = ratio.filter(|_| name != OTHER) {
                let goal = format!("generator's CPU to {OTHER}'s: {what}");
                cells.extend([ratio.to_string(), GOAL.to_string(), session.judge(goal, GOAL, ratio.median)]);
            }
            table.row(cells);
            servers.push(object(vec![
                ("server", format!("{name}: {what}").into()),
                ("cpu_us_per_request", column(figures, |f| f.0).into()),
                ("requests_per_s", column(figures, |f| f.1).into()),
            ]));
        }
    }
    let title = format!("generator: CPU of the load, against floor; load on cpu {:?}", session.load_cpus);
    session.report("generator", &title, &table, vec![("servers", Json::Array(servers))]);
    Ok(())
}

fn redis_benchmark(lane: &Lane, traffic: &Traffic, requests: u64) -> Result<Figures> {
    interrupt::check()?;
    let name = traffic.command.to_string().to_lowercase();
    let [port, requests_text, pipeline, clients, keys, size] = [
        u64::from(lane.server.address.port()),
        requests,
        traffic.pipeline as u64,
        traffic.clients as u64,
        traffic.keys,
        traffic.value_size as u64,
    ]
    .map(|number| number.to_string());
    let cpus = traffic.load_cpus.clone();
    let mut process = Process::new(OTHER);
    process
        .args(["-q", "--csv", "-t", &name, "-p", &port, "-n", &requests_text, "-P", &pipeline])
        .args(["-c", &clients, "-r", &keys, "-d", &size])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0);
    // SAFETY: the call is allowed between fork and exec: no allocation, no locks.
    unsafe { process.pre_exec(move || sys::pin(&cpus)) };
    let mut child = process.spawn().with_context(|| format!("cannot start {OTHER}"))?;
    let mut output = String::new();
    child.stdout.take().expect("it was asked for").read_to_string(&mut output)?;
    let cpu = sys::wait_for_child(child.id()).with_context(|| format!("{OTHER} failed"))?;
    Ok((
        cpu.as_secs_f64() * 1e6 / requests as f64,
        rate(&output).with_context(|| format!("{OTHER} said {output:?}"))?,
    ))
}

/// Parses the line `"SET","123456.00","0.1",...` behind the names of the columns.
fn rate(csv: &str) -> Option<f64> {
    let line = csv.lines().rev().find(|line| line.starts_with('"') && !line.starts_with("\"test\""))?;
    line.split(',').nth(1)?.trim_matches('"').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_redis_benchmark_is_parsed() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"456621.00\",\"1.041\"\n";
        assert_eq!(rate(csv), Some(456_621.0));
        assert_eq!(rate("\"test\",\"rps\"\n"), None);
        assert_eq!(rate(""), None);
    }
}
