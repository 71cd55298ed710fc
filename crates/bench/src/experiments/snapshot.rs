//! `snapshot`: the impact of a BGSAVE on clients.
//!
//! 50 clients write, first alone and then for as long as a snapshot is being taken: rate, latencies, the
//! duration of the snapshot and its memory.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Session;
use super::aof::wait_until;
use super::felt::{self, Column, DataArgs, Felt, Rounds};
use super::lanes::Lane;
use crate::interrupt;
use crate::load::Event;
use crate::promises::Promise;
use crate::servers::{ServerKind, ask};
use crate::stats::Goal;

/// Longest request during a snapshot, in microseconds.
const LONGEST_US_MAX: f64 = 3_000.0;
const RATE_MIN: f64 = 0.85;
const P99_MAX: f64 = 1.3;
const MEMORY_MAX: f64 = 0.02;
/// Time, relative to Valkey.
const TIME_MAX: f64 = 1.0;
/// Fewest bytes per second that a snapshot writes under load.
const SLOWEST: u64 = 200_000_000;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

pub(super) fn estimate(session: &Session, args: &DataArgs) -> Duration {
    let (servers, rounds) = (felt::planned(session).len(), session.rounds as u32);
    let round = Duration::from_secs(args.memory() / SLOWEST) * rounds + session.time_for(session.rounds);
    (args.fill_time() + round) * servers as u32
}

pub(crate) fn snapshot(session: &mut Session, args: &DataArgs) -> Result<()> {
    let all = session.beside_pauses(|it| {
        felt::over_data(it, felt::planned(it), args, |_| Ok(()), |lane, _: &Event| save(lane))
    })?;
    judge(session, &all);
    let columns = [
        Column {
            head: "took, s",
            cell: |rounds| rounds.spread(seconds).to_string(),
            json: "took_s",
            figure: seconds,
        },
        Column {
            head: "memory",
            cell: |rounds| format!("{:+.1}%", rounds.median(memory) * 100.0),
            json: "memory_grown_share",
            figure: memory,
        },
    ];
    let title = format!("snapshot: BGSAVE, {}", args.words());
    felt::report(
        session,
        "snapshot",
        &title,
        &all,
        &columns,
        ("BGSAVE", |felt| [Duration::ZERO, felt.event]),
    );
    Ok(())
}

fn seconds(felt: &Felt<Duration>) -> f64 {
    felt.event.as_secs_f64()
}

/// Returns the additional memory, relative to the memory before.
fn memory(felt: &Felt<Duration>) -> f64 {
    felt.grown as f64 / felt.resident as f64
}

fn judge(session: &mut Session, all: &[Rounds<Duration>]) {
    let Some(ours) = all.iter().find(|rounds| rounds.is_ours()) else { return };
    let (what, goal) = ("longest request during BGSAVE, us".to_owned(), Goal::AtMost(LONGEST_US_MAX));
    session.judge_wait(Promise::Snapshot, what, goal, ours.longest_us(), 1.0);
    let what = "memory during BGSAVE".to_owned();
    session.judge_for(Promise::Snapshot, what, Goal::AtMost(MEMORY_MAX), ours.median(memory));
    let mut judge = |what: &str, goal, value| _ = session.judge(what.to_owned(), goal, value);
    judge("rate during BGSAVE, to before", Goal::AtLeast(RATE_MIN), ours.rate());
    let p99 = ours.median(|felt| felt.during.p99 / felt.before.p99);
    judge("p99 during BGSAVE, to before", Goal::AtMost(P99_MAX), p99);
    if let Some(valkey) = all.iter().find(|rounds| rounds.kind == ServerKind::Valkey) {
        judge("time of BGSAVE, to valkey's", Goal::AtMost(TIME_MAX), ours.ratio_to(valkey, seconds));
    }
}

/// Takes a snapshot; returns its duration.
fn save(lane: &Lane) -> Result<Duration> {
    let began = Instant::now();
    let answer = ask(lane.server.address, &["BGSAVE"])?;
    if !answer.starts_with("+Background saving started") {
        bail!("{}: BGSAVE: {answer}", lane.name);
    }
    loop {
        let info = ask(lane.server.address, &["INFO", "persistence"]).context("no INFO during a snapshot")?;
        if info.contains("rdb_bgsave_in_progress:0") {
            wait_until(lane, "rdb_last_bgsave_status:ok")?;
            return Ok(began.elapsed());
        }
        interrupt::sleep(POLL_INTERVAL)?;
    }
}
