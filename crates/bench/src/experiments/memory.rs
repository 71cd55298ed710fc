//! `memory`: the memory cost of a key, from the growth of the resident set while 16-byte keys with 16-byte
//! values are written.
//!
//! Measured after each fifth of the keys, since tables grow in steps: a single value depends on whether a
//! table has just doubled. The goal applies to the last step, the median of the rounds.

use std::time::Duration;

use anyhow::Result;

use super::Session;
use super::felt::{self, Planned};
use super::lanes;
use crate::json::{Json, object};
use crate::load::keys::KeyRange;
use crate::servers::ServerKind;
use crate::stats::{Goal, Spread};
use crate::table::{Table, thousands};
use crate::{interrupt, proc};

const VALUE_SIZE: usize = 16;
const STEPS: u64 = 5;
/// Bytes of a key and its value, without any overhead.
const PAYLOAD: usize = lanes::KEY_SIZE + VALUE_SIZE;
const GOAL: Goal = Goal::AtMost(56.0);
/// Background work (rehashing, freeing) may go on for a moment after the last write.
const SETTLE: Duration = Duration::from_secs(1);
/// Keys per second, for the estimate of the time.
const FILL_RATE: u64 = 300_000;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct MemoryArgs {
    /// Number of keys
    #[arg(short, long, default_value_t = 5_000_000, value_parser = clap::value_parser!(u64).range(STEPS..))]
    keys: u64,
}

impl Default for MemoryArgs {
    fn default() -> Self {
        Self { keys: 5_000_000 }
    }
}

impl MemoryArgs {
    pub(super) fn estimate(&self, session: &Session) -> Duration {
        let each = Duration::from_secs(self.keys / FILL_RATE) + SETTLE * STEPS as u32;
        each * (felt::planned(session).len() * session.rounds) as u32
    }
}

/// A server's rounds.
struct Server {
    name: String,
    kind: ServerKind,
    is_control: bool,
    rounds: Vec<Growth>,
}

/// Bytes per key after each step.
struct Growth {
    empty_bytes: u64,
    per_key: Vec<f64>,
}

pub(crate) fn memory(session: &mut Session, args: &MemoryArgs) -> Result<()> {
    let planned = felt::planned(session);
    let all = lanes::in_rounds(session.rounds, &planned, |one| grow(one, args.keys))?;
    let server = |(one, rounds): (&Planned<'_>, _)| Server {
        name: one.name(),
        kind: one.kind(),
        is_control: one.is_control(),
        rounds,
    };
    let all: Vec<Server> = planned.iter().zip(all).map(server).collect();
    let steps: Vec<String> =
        (1..=STEPS).map(|step| at_step(step, args.keys)).map(|keys| thousands(keys as f64)).collect();
    let mut head = vec!["", "empty"];
    head.extend(steps.iter().map(String::as_str));
    head.extend(["to valkey's", "goal", ""]);
    let mut table = Table::new(&head);
    for server in &all {
        let row = row(session, &all, server);
        table.row(row);
    }
    let title = format!("Resident bytes per key of {PAYLOAD} B (16 B key, 16 B value), after so many keys");
    let figures = vec![("servers", Json::Array(all.iter().map(Server::to_json).collect()))];
    session.report("memory", &title, &table, figures);
    Ok(())
}

fn at_step(step: u64, keys: u64) -> u64 {
    keys / STEPS * step + if step == STEPS { keys % STEPS } else { 0 }
}

fn grow(planned: &Planned<'_>, keys: u64) -> Result<Growth> {
    let lane = planned.start(1)?;
    interrupt::sleep(SETTLE)?;
    let empty_bytes = proc::usage(lane.server.pid())?.rss_bytes;
    let mut per_key = Vec::new();
    for step in 1..=STEPS {
        let (first, end) = (at_step(step - 1, keys), at_step(step, keys));
        lane.fill(KeyRange { first, count: end - first }, VALUE_SIZE)?;
        interrupt::sleep(SETTLE)?;
        let grown = proc::usage(lane.server.pid())?.rss_bytes.saturating_sub(empty_bytes);
        per_key.push(grown as f64 / end as f64);
    }
    Ok(Growth { empty_bytes, per_key })
}

fn row(session: &mut Session, all: &[Server], server: &Server) -> Vec<String> {
    let empty = server.spread(|growth| growth.empty_bytes as f64 / 1e6).median;
    let mut cells = vec![server.name.clone(), format!("{empty:.1} MB")];
    let (last, before) = (STEPS as usize - 1, 0..STEPS as usize - 1);
    cells.extend(before.map(|step| format!("{:.1}", server.spread(|growth| growth.per_key[step]).median)));
    let bytes = server.spread(|growth| growth.per_key[last]);
    cells.push(bytes.to_one_decimal());
    let valkey =
        all.iter().find(|other| other.kind == ServerKind::Valkey && server.kind != ServerKind::Valkey);
    let ratio = valkey.and_then(|valkey| Spread::of_ratios(&server.last(), &valkey.last()));
    cells.push(ratio.map(|ratio| ratio.to_string()).unwrap_or_default());
    if server.kind == ServerKind::Evenkeel && !server.is_control {
        cells.push(GOAL.to_string());
        cells.push(session.judge("resident bytes per key of 32 B".to_owned(), GOAL, bytes.median));
    }
    cells
}

impl Server {
    fn spread(&self, figure: impl Fn(&Growth) -> f64) -> Spread {
        Spread::of(self.rounds.iter().map(figure)).expect("one round at least, and bytes are numbers")
    }

    /// Returns the bytes per key at the end of each round.
    fn last(&self) -> Vec<f64> {
        self.rounds.iter().map(|growth| growth.per_key[STEPS as usize - 1]).collect()
    }

    fn to_json(&self) -> Json {
        let steps = (0..STEPS as usize).map(|step| self.spread(|growth| growth.per_key[step]).median);
        let empty: Vec<f64> = self.rounds.iter().map(|growth| growth.empty_bytes as f64).collect();
        object(vec![
            ("server", self.name.as_str().into()),
            ("control", self.is_control.into()),
            ("empty_bytes", empty.into()),
            ("bytes_per_key", self.last().into()),
            ("bytes_per_key_by_step", steps.collect::<Vec<f64>>().into()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_end_with_the_last_key() {
        let steps: Vec<u64> = (0..=STEPS).map(|step| at_step(step, 13)).collect();
        assert_eq!(steps, [0, 2, 4, 6, 8, 13]);
    }
}
