//! `upgrade`: the impact of an upgrade on clients.
//!
//! Clients write, first alone and then while the server hands over to another process of the same program. An
//! error reply or a closed connection fails the experiment. No peer can do this.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Session;
use super::felt::{self, Column, DataArgs, Felt, Rounds};
use super::lanes::Lane;
use crate::interrupt;
use crate::load::Event;
use crate::load::timeline::SLICE;
use crate::proc::{self, PeakMemory};
use crate::servers::{ServerKind, ask};
use crate::stats::Goal;

/// Longest request, in microseconds, if the other process maps the data, and if it gets a copy.
const LONGEST_MAPPED_US_MAX: f64 = 50_000.0;
const LONGEST_COPIED_US_MAX: f64 = 250_000.0;
/// Rate over the second of the hand-over, relative to before.
const RATE_MIN: f64 = 0.8;
/// Memory of both processes, relative to before.
const MEMORY_MAX: f64 = 1.15;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The time before and after an upgrade that is measured with it: the data that a process maps are there in
/// milliseconds.
const AROUND: Duration = Duration::from_millis(500);

/// An upgrade that has succeeded.
struct Upgraded {
    /// The time for which clients waited, by the server's own account.
    paused: Duration,
    took: Duration,
    /// Whether the other process maps the memory of the data.
    maps: bool,
    /// Largest memory of all processes of the server, and the memory before.
    peak: u64,
    resident: u64,
}

pub(super) fn estimate(session: &Session, args: &DataArgs) -> Duration {
    let round = Duration::from_secs(args.memory() / 100_000_000) * session.rounds as u32;
    2 * (args.fill_time() + round + session.time_for(session.rounds))
}

pub(crate) fn upgrade(session: &mut Session, args: &DataArgs) -> Result<()> {
    let all = session.beside_pauses(|it| {
        let ours = felt::planned(it).into_iter().filter(|planned| planned.kind() == ServerKind::Evenkeel);
        felt::over_data(it, ours.collect(), args, |_| Ok(()), |lane, _: &Event| hand_over(lane))
    })?;
    judge(session, &all);
    let columns = [
        Column {
            head: "paused, ms",
            cell: |rounds| rounds.spread(paused_ms).to_string(),
            json: "paused_ms",
            figure: paused_ms,
        },
        Column {
            head: "took, s",
            cell: |rounds| rounds.spread(seconds).to_string(),
            json: "took_s",
            figure: seconds,
        },
        Column {
            head: "slowest second",
            cell: |rounds| rounds.spread(slowest_second).to_string(),
            json: "slowest_second_ratio",
            figure: slowest_second,
        },
        Column {
            head: "last second",
            cell: |rounds| rounds.spread(last_second).to_string(),
            json: "last_second_ratio",
            figure: last_second,
        },
        Column {
            head: "memory",
            cell: |rounds| rounds.spread(memory).to_string(),
            json: "memory_ratio",
            figure: memory,
        },
    ];
    let title = format!("upgrade: hand-over to another process, {}", args.words());
    felt::report(
        session,
        "upgrade",
        &title,
        &all,
        &columns,
        ("upgrade", |felt| [Duration::ZERO, felt.event.took]),
    );
    Ok(())
}

fn paused_ms(felt: &Felt<Upgraded>) -> f64 {
    felt.event.paused.as_secs_f64() * 1e3
}

fn seconds(felt: &Felt<Upgraded>) -> f64 {
    felt.event.took.as_secs_f64()
}

fn memory(felt: &Felt<Upgraded>) -> f64 {
    felt.event.peak as f64 / felt.event.resident as f64
}

/// The rates of all seconds during the upgrade, relative to before.
fn seconds_of(felt: &Felt<Upgraded>) -> Vec<f64> {
    let in_second = (Duration::from_secs(1).as_micros() / SLICE.as_micros()) as usize;
    let slices: Vec<u64> = felt.slices().iter().map(|slice| slice.commands).collect();
    let window = in_second.min(slices.len()).max(1);
    let rate = |second: &[u64]| second.iter().sum::<u64>() as f64 / (SLICE * window as u32).as_secs_f64();
    slices.windows(window).map(|second| rate(second) / felt.before.rate).collect()
}

/// The rate while the data go over to the other process, in the slowest second.
fn slowest_second(felt: &Felt<Upgraded>) -> f64 {
    seconds_of(felt).into_iter().fold(f64::INFINITY, f64::min)
}

/// The rate over the second around the hand-over.
fn last_second(felt: &Felt<Upgraded>) -> f64 {
    seconds_of(felt).last().copied().unwrap_or(f64::NAN)
}

fn judge(session: &mut Session, all: &[Rounds<Upgraded>]) {
    let Some(ours) = all.iter().find(|rounds| rounds.is_ours()) else { return };
    let mut judge = |what: &str, goal, value| _ = session.judge(what.to_owned(), goal, value);
    let maps = ours.all.iter().all(|felt| felt.event.maps);
    let (longest, way) = if maps {
        (LONGEST_MAPPED_US_MAX, "that maps the data")
    } else {
        (LONGEST_COPIED_US_MAX, "that copies the data")
    };
    let what = format!("longest request during an upgrade {way}, us");
    judge(&what, Goal::AtMost(longest), ours.longest_us());
    let rate = ours.median(last_second);
    judge("rate of the second of the hand-over, to before", Goal::AtLeast(RATE_MIN), rate);
    let memory = ours.median(memory);
    judge("memory of both processes, to before", Goal::AtMost(MEMORY_MAX), memory);
}

/// Hands the server over to another process of the same program.
fn hand_over(lane: &Lane) -> Result<Upgraded> {
    interrupt::sleep(AROUND)?;
    let began = std::time::Instant::now();
    let keeper = lane.server.pid();
    let resident = proc::proportional_bytes(served_by(lane)?);
    let is_done = &AtomicBool::new(false);
    let (output, peak) = std::thread::scope(|scope| {
        let watching = scope.spawn(move || -> Result<u64> {
            let mut memory = PeakMemory::of([keeper]);
            while !is_done.load(Relaxed) {
                memory.look();
                interrupt::sleep(POLL_INTERVAL)?;
            }
            Ok(memory.look())
        });
        let mut command = Command::new(lane.server.program());
        let output = command.args(["upgrade", "--port", &lane.server.address.port().to_string()]).output();
        is_done.store(true, Relaxed);
        (output, watching.join().expect("a look does not panic"))
    });
    let (output, peak) = (output.context("cannot run 'evenkeel upgrade'")?, peak?);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{}: {text}{}", lane.name, String::from_utf8_lossy(&output.stderr));
    }
    let waited = text.lines().find_map(|line| line.split_once("they waited for ")?.1.strip_suffix(" ms"));
    let ms = waited.and_then(|ms| ms.parse().ok()).context("'evenkeel upgrade' names no time")?;
    let maps = text.contains("has mapped the data");
    let took = began.elapsed();
    interrupt::sleep(AROUND)?;
    Ok(Upgraded { paused: Duration::from_millis(ms), took, maps, peak, resident })
}

/// The process that serves.
fn served_by(lane: &Lane) -> Result<u32> {
    let info = ask(lane.server.address, &["INFO", "server"])?;
    let pid = info.lines().find_map(|line| line.strip_prefix("process_id:"));
    pid.and_then(|pid| pid.trim().parse().ok()).context("INFO names no process")
}
