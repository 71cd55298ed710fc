//! `load`: the time until a server is back, with a snapshot of this many keys.
//!
//! Each server is filled, saves, and is restarted over its own file. The time runs from the start of the
//! process to the first reply other than LOADING, less the time over an empty directory. The file has just
//! been written, so for every server it is in the page cache.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::Session;
use super::felt::DataArgs;
use super::lanes::{Lane, memory_for};
use crate::interrupt;
use crate::json::{Json, object};
use crate::load::keys::KeyRange;
use crate::proc;
use crate::servers::{Launch, ServerKind, ask, ask_within};
use crate::stats::{Goal, Spread};
use crate::table::{Table, thousands};

/// Time, relative to Valkey.
const RATIO_MAX: f64 = 0.6;
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Longest time that a server may take to save: several gigabytes, and a slow disk.
const SAVE_TIME_MAX: Duration = Duration::from_secs(900);
/// Longest time that a server may take to load.
const LOAD_TIME_MAX: Duration = Duration::from_secs(600);

/// Filling at 200,000 keys a second and loading at 500,000, for each server.
pub(super) fn estimate(session: &Session, args: &DataArgs) -> Duration {
    let keys = args.keys * session.programs.len() as u64;
    Duration::from_secs(keys / 200_000 + keys * session.rounds as u64 / 500_000)
}

/// A server's times, in seconds.
struct Loaded {
    kind: ServerKind,
    took: Vec<f64>,
    file_bytes: u64,
}

pub(crate) fn load(session: &mut Session, args: &DataArgs) -> Result<()> {
    let needed = memory_for(args.keys, args.value_size);
    if needed > proc::memory_available() {
        bail!("{} keys of {} B need {} MiB", args.keys, args.value_size, needed >> 20);
    }
    let kinds = [ServerKind::Valkey, ServerKind::Evenkeel, ServerKind::Redis];
    let kinds = kinds.into_iter().filter(|kind| session.program(*kind).is_some());
    let all = kinds.map(|kind| measure(session, kind, args)).collect::<Result<Vec<Loaded>>>()?;
    let valkey =
        all.iter().find(|loaded| loaded.kind == ServerKind::Valkey).map(|loaded| loaded.took.clone());
    let (mut table, mut figures) =
        (Table::new(&["", "seconds", "MB/s", "to valkey", "goal", ""]), Vec::new());
    for Loaded { kind, took, file_bytes } in &all {
        let seconds = Spread::of(took.iter().copied());
        let median = seconds.as_ref().map_or(f64::NAN, |spread| spread.median);
        let ratio = valkey.as_ref().filter(|_| *kind != ServerKind::Valkey);
        let ratio = ratio.and_then(|valkey| Spread::of_ratios(took, valkey));
        let is_ours = *kind == ServerKind::Evenkeel;
        let goal = Goal::AtMost(RATIO_MAX);
        let verdict = match ratio.as_ref().filter(|_| is_ours) {
            Some(ratio) => session.judge("time to load, to valkey's".into(), goal, ratio.median),
            None => String::new(),
        };
        table.row(vec![
            kind.name().to_owned(),
            seconds.as_ref().map(Spread::to_string).unwrap_or_default(),
            format!("{:.0}", *file_bytes as f64 / median / 1e6),
            ratio.as_ref().map(Spread::to_string).unwrap_or_default(),
            if is_ours { goal.to_string() } else { String::new() },
            verdict,
        ]);
        figures.push(object(vec![
            ("server", kind.name().into()),
            ("seconds", took.clone().into()),
            ("file_bytes", (*file_bytes).into()),
        ]));
    }
    let title = format!("load: a snapshot of {} keys of {} B", thousands(args.keys as f64), args.value_size);
    session.report("load", &title, &table, vec![("servers", Json::Array(figures))]);
    Ok(())
}

fn measure(session: &Session, kind: ServerKind, args: &DataArgs) -> Result<Loaded> {
    let program = session.program(kind).expect("it was found");
    let launch = Launch { threads: crate::sys::cores(), ..Launch::default() };
    let mut lane = Lane::start(program, kind.name(), &launch)?;
    let empty = restart(&mut lane, 0)?;
    lane.fill(KeyRange { first: 0, count: args.keys }, args.value_size)?;
    let saved = ask_within(lane.server.address, &["SAVE"], SAVE_TIME_MAX)?;
    if !saved.starts_with("+OK") {
        bail!("{}: SAVE: {saved}", lane.name);
    }
    let file_bytes = lane.server.directory().join("dump.rdb").metadata()?.len();
    let mut took = Vec::new();
    for _ in 0..session.rounds {
        let loaded = restart(&mut lane, args.keys)?;
        took.push(loaded.saturating_sub(empty).as_secs_f64());
    }
    Ok(Loaded { kind, took, file_bytes })
}

/// Kills the server and restarts it; returns the time until it has all keys.
fn restart(lane: &mut Lane, keys: u64) -> Result<Duration> {
    let began = lane.server.restart(&[])?;
    let until = Instant::now() + LOAD_TIME_MAX;
    loop {
        let answer = ask(lane.server.address, &["DBSIZE"]);
        match answer {
            Ok(answer) if answer.starts_with(':') => {
                let took = began.elapsed();
                if answer.trim() != format!(":{keys}") {
                    bail!("{}: {} keys after a restart, and not {keys}", lane.name, answer.trim());
                }
                return Ok(took);
            }
            Ok(answer) if !answer.starts_with("-LOADING") => bail!("{}: DBSIZE: {answer}", lane.name),
            _ if Instant::now() > until => bail!("{}: not loaded after {LOAD_TIME_MAX:?}", lane.name),
            _ => interrupt::sleep(POLL_INTERVAL)?,
        }
    }
}
