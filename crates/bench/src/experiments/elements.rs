//! `elements`: the memory cost of a collection's element, from the growth of the resident set.
//!
//! Members of 16 bytes (hashes: fields and values of 16 bytes each), in a single value of four million
//! elements and in four hundred thousand values of ten.

use std::time::Duration;

use anyhow::Result;

use super::Session;
use super::feed::{Words, feed, member};
use super::felt::{self, Planned};
use super::lanes;
use crate::json::{Json, object};
use crate::servers::ServerKind;
use crate::stats::{Goal, Spread};
use crate::table::Table;
use crate::{interrupt, proc};

/// Huge pages come two megabytes at a time: half a byte per element.
const ELEMENTS: u64 = 4_000_000;
const SMALL: u64 = 10;
/// Elements per command while the large value is built.
const AT_ONCE: u64 = 100;
/// Requests before the first look at the resident set; they store nothing.
const WARM_UP: u64 = 2_000;
/// Background work may go on for a moment after the last write.
const SETTLE: Duration = Duration::from_millis(1500);
/// Bytes per element, relative to Valkey.
const GOAL_LARGE: Goal = Goal::AtMost(0.8);
const GOAL_SMALL: Goal = Goal::AtMost(1.0);

struct Family {
    name: &'static str,
    command: &'static str,
    /// Appends element `number`.
    add: fn(u64, &mut Words),
}

const FAMILIES: [Family; 4] = [
    Family {
        name: "hash",
        command: "HSET",
        add: |number, words| _ = words.add(member(number)).add("sixteen bytes..."),
    },
    Family { name: "set", command: "SADD", add: |number, words| _ = words.add(member(number)) },
    Family {
        name: "zset",
        command: "ZADD",
        add: |number, words| _ = words.add((number * 7_919 % 4_000_037).to_string()).add(member(number)),
    },
    Family { name: "list", command: "RPUSH", add: |number, words| _ = words.add(member(number)) },
];

pub(super) fn estimate(session: &Session) -> Duration {
    Duration::from_secs((FAMILIES.len() * 2 * felt::planned(session).len() * session.rounds) as u64 * 7)
}

pub(crate) fn elements(session: &mut Session) -> Result<()> {
    let planned = felt::planned(session);
    let names: Vec<String> = planned.iter().map(Planned::name).collect();
    let controls: Vec<bool> = planned.iter().map(Planned::is_control).collect();
    let valkey = planned.iter().position(|one| one.kind() == ServerKind::Valkey);
    let ours = planned.iter().position(Planned::is_ours);
    let mut rows = Vec::new();
    for (each, what, goal) in [(ELEMENTS, "4M elements", GOAL_LARGE), (SMALL, "10 elements", GOAL_SMALL)] {
        for family in &FAMILIES {
            let name = format!("{} of {what}", family.name);
            let rounds = lanes::in_rounds(session.rounds, &planned, |one| bytes(one, family, each))?;
            rows.push((name, goal, rounds));
        }
    }
    let mut head = vec![""];
    head.extend(names.iter().map(String::as_str));
    head.extend(["to valkey's", "goal", ""]);
    let mut table = Table::new(&head);
    let mut records = Vec::new();
    for (name, goal, all) in rows {
        let mut cells = vec![name.clone()];
        cells.extend(all.iter().map(|rounds| spread(rounds).to_one_decimal()));
        let ratio = ours.zip(valkey).and_then(|(ours, valkey)| Spread::of_ratios(&all[ours], &all[valkey]));
        if let Some(ratio) = ratio {
            let verdict = session.judge(format!("bytes to valkey's: {name}"), goal, ratio.median);
            cells.extend([ratio.to_string(), goal.to_string(), verdict]);
        }
        table.row(cells);
        let servers = names.iter().zip(&controls).zip(all).map(|((server, is_control), rounds)| {
            object(vec![
                ("server", server.as_str().into()),
                ("control", (*is_control).into()),
                ("bytes_per_element", rounds.into()),
            ])
        });
        records.push(object(vec![("value", name.into()), ("servers", Json::Array(servers.collect()))]));
    }
    let title = "Resident bytes per element of 16 B (hash: 16 B and a value of 16 B), keys included";
    session.report("elements", title, &table, vec![("rows", Json::Array(records))]);
    Ok(())
}

fn spread(rounds: &[f64]) -> Spread {
    Spread::of(rounds.iter().copied()).expect("one round at least, and bytes are numbers")
}

/// Returns the resident bytes per element of a server that holds nothing else.
fn bytes(planned: &Planned<'_>, family: &Family, each: u64) -> Result<f64> {
    let lane = planned.start(1)?;
    let server = lane.server.address;
    let at_once = AT_ONCE.min(each);
    // Allocations for a first value, and buffers for requests of that size, do not belong to the elements.
    feed(server, 1, |_, words| (family.add)(0, words.add(family.command).add("first")))?;
    feed(server, WARM_UP, |_, words| {
        words.add("EXISTS");
        (0..at_once).for_each(|number| (family.add)(number, words));
    })?;
    interrupt::sleep(SETTLE)?;
    let before = proc::usage(lane.server.pid())?.rss_bytes;
    feed(server, ELEMENTS / at_once, |number, words| {
        let first = number * at_once;
        words.add(family.command).add(format!("{:012}", first / each));
        (first..first + at_once).for_each(|number| (family.add)(number, words));
    })?;
    interrupt::sleep(SETTLE)?;
    let after = proc::usage(lane.server.pid())?.rss_bytes;
    Ok(after.saturating_sub(before) as f64 / ELEMENTS as f64)
}
