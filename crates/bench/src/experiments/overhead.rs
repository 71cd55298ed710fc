//! `overhead`: the memory that a key takes beyond key and value, for values of many sizes.
//!
//! Each server is filled with about as many bytes of each size, from empty, and the growth of its resident
//! set is divided by the number of keys. An allocator's classes show as steps: a value that is a byte longer
//! than a class takes the next.

use std::time::Duration;

use anyhow::Result;

use super::Session;
use super::felt::{self, Planned};
use super::lanes::KEY_SIZE;
use crate::json::{Json, object};
use crate::load::keys::KeyRange;
use crate::servers::ServerKind;
use crate::stats::Goal;
use crate::table::{Table, thousands};
use crate::{interrupt, proc};

const SIZES: [usize; 10] = [16, 100, 200, 300, 500, 700, 1000, 1500, 3000, 10_000];

/// Of the smallest overhead among the peers.
const GOAL: Goal = Goal::AtMost(0.85);

/// Background work (rehashing, freeing) may go on for a moment after the last write.
const SETTLE: Duration = Duration::from_secs(1);

/// Bytes per second, for the estimate of the time.
const FILL_RATE: u64 = 100_000_000;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct OverheadArgs {
    /// Megabytes of keys and values of each size
    #[arg(short, long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    megabytes: u64,
}

impl Default for OverheadArgs {
    fn default() -> Self {
        Self { megabytes: 500 }
    }
}

impl OverheadArgs {
    pub(super) fn estimate(&self, session: &Session) -> Duration {
        let each = Duration::from_millis(self.megabytes * 1_000_000_000 / FILL_RATE) + 2 * SETTLE;
        each * (SIZES.len() * felt::planned(session).len()) as u32
    }

    fn keys(&self, size: usize) -> u64 {
        self.megabytes * 1_000_000 / (size + KEY_SIZE) as u64
    }
}

/// Bytes per key beyond key and value, by size.
struct Server {
    name: String,
    kind: ServerKind,
    is_control: bool,
    overheads: Vec<f64>,
}

pub(crate) fn overhead(session: &mut Session, args: &OverheadArgs) -> Result<()> {
    let measured = |planned: &Planned<'_>| {
        let overheads = SIZES.map(|size| fill(planned, size, args.keys(size)));
        Ok(Server {
            name: planned.name(),
            kind: planned.kind(),
            is_control: planned.is_control(),
            overheads: overheads.into_iter().collect::<Result<_>>()?,
        })
    };
    let servers: Vec<Server> = felt::planned(session).iter().map(measured).collect::<Result<_>>()?;
    let mut head = vec!["value".to_owned(), "keys".to_owned()];
    head.extend(servers.iter().map(|server| server.name.clone()));
    head.extend(["to the best peer".to_owned(), "goal".to_owned(), String::new()]);
    let mut table = Table::new(&head.iter().map(String::as_str).collect::<Vec<_>>());
    for (at, size) in SIZES.into_iter().enumerate() {
        let mut cells = vec![format!("{} B", thousands(size as f64)), thousands(args.keys(size) as f64)];
        cells.extend(servers.iter().map(|server| format!("{:.0} B", server.overheads[at])));
        if let Some(ratio) = to_the_best_peer(&servers, at) {
            cells.extend([format!("{ratio:.2}"), GOAL.to_string()]);
            let what = format!("resident bytes beyond key and value of {size} B, to the best peer's");
            cells.push(session.judge(what, GOAL, ratio));
        }
        table.row(cells);
    }
    let title =
        format!("Resident bytes per key beyond a key of {KEY_SIZE} B and its value, by the value's size");
    let figures = vec![
        ("sizes", SIZES.map(|size| size as f64).to_vec().into()),
        ("servers", Json::Array(servers.iter().map(Server::to_json).collect())),
    ];
    session.report("overhead", &title, &table, figures);
    Ok(())
}

/// Returns our overhead to the smallest of the others', for a size.
fn to_the_best_peer(servers: &[Server], at: usize) -> Option<f64> {
    let (ours, peers): (Vec<&Server>, Vec<&Server>) =
        servers.iter().partition(|server| server.kind == ServerKind::Evenkeel);
    let best = peers.iter().map(|peer| peer.overheads[at]).min_by(f64::total_cmp)?;
    let own = ours.iter().find(|server| !server.is_control)?;
    Some(own.overheads[at] / best)
}

fn fill(planned: &Planned<'_>, size: usize, keys: u64) -> Result<f64> {
    let lane = planned.start(1)?;
    interrupt::sleep(SETTLE)?;
    let empty = proc::usage(lane.server.pid())?.rss_bytes;
    lane.fill(KeyRange { first: 0, count: keys }, size)?;
    interrupt::sleep(SETTLE)?;
    let grown = proc::usage(lane.server.pid())?.rss_bytes.saturating_sub(empty);
    Ok(grown as f64 / keys as f64 - (KEY_SIZE + size) as f64)
}

impl Server {
    fn to_json(&self) -> Json {
        object(vec![
            ("server", self.name.as_str().into()),
            ("control", self.is_control.into()),
            ("bytes_beyond_key_and_value", self.overheads.clone().into()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_peer_is_the_one_with_the_least() {
        let server = |kind, is_control, overhead| Server {
            name: String::new(),
            kind,
            is_control,
            overheads: vec![overhead],
        };
        let servers = [
            server(ServerKind::Valkey, false, 80.0),
            server(ServerKind::Evenkeel, true, 41.0),
            server(ServerKind::Evenkeel, false, 30.0),
            server(ServerKind::Redis, false, 60.0),
        ];
        assert_eq!(to_the_best_peer(&servers, 0), Some(0.5));
        assert_eq!(to_the_best_peer(&servers[1..3], 0), None, "there is no peer");
    }
}
