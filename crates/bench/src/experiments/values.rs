//! `values`: the cost of the usual commands on collections, on small values and on large values.
//!
//! As in `throughput`, the metric is the CPU time of the server process per command and its ratio to Valkey's
//! in the same round. There are many small values of ten elements each (a hundred for the rows that say so);
//! the large value has a million elements, more than fit into a core's caches.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};

use super::feed::{Words, feed};
use super::lanes::{self, Lane, Traffic};
use super::{Session, series};
use crate::json::{Json, object};
use crate::load::keys::{self, Random};
use crate::load::requests::Command;
use crate::servers::{Launch, ServerKind, ask};
use crate::stats::Goal;
use crate::table::Table;

/// CPU per command relative to Valkey: in a pipeline, and without.
const GOAL_PIPELINED: Goal = Goal::AtMost(0.7);
const GOAL_SINGLE: Goal = Goal::AtMost(1.0);
const PIPELINE: usize = 16;
const CLIENTS: usize = 50;
/// Elements of a large value, and keys of small values.
const LARGE: u64 = 1_000_000;
const SMALL_KEYS: u64 = 10_000;
const KEY_SIZE: usize = 16;
const VALUE_SIZE: usize = 16;

#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct ValuesArgs {
    /// Only rows whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Without a pipeline, too
    #[arg(long)]
    single: bool,
}

/// A row: a name, and the command as `Command::Words` takes it.
struct Row {
    name: &'static str,
    family: Family,
    command: &'static str,
    /// Number of different keys or members that its placeholders take.
    range: u64,
}

/// The data that a row needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Lists,
    Hashes,
    Sets,
    SortedSets,
    Streams,
    HyperLogLogs,
    Places,
}
use Family::*;

const fn row(name: &'static str, family: Family, command: &'static str, range: u64) -> Row {
    Row { name, family, command, range }
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    row("LPUSH, LPOP small", Lists,     "LPUSH list:{key} {value} ; LPOP list:{same}",           SMALL_KEYS),
    row("LRANGE_100 small", Lists,      "LRANGE list100:{key} 0 99",                         SMALL_KEYS / 10),
    row("LPUSH, LPOP large", Lists,     "LPUSH list {value} ; LPOP list",                        1),
    row("LRANGE_100 large", Lists,      "LRANGE list 500000 500099",                             1),
    row("HSET small", Hashes,           "HSET hash:{key} field:00000000:5 {value}",              SMALL_KEYS),
    row("HGET small", Hashes,           "HGET hash:{key} field:00000000:5",                      SMALL_KEYS),
    row("HGETALL(100)", Hashes,         "HGETALL hash100:{key}",                             SMALL_KEYS / 10),
    row("HSET large", Hashes,           "HSET hash {key} {value}",                               LARGE),
    row("HGET large", Hashes,           "HGET hash {key}",                                       LARGE),
    row("SADD, SPOP small", Sets,       "SADD set:{key} a{number} ; SPOP set:{same}",            SMALL_KEYS),
    row("SISMEMBER small", Sets,        "SISMEMBER set:{key} member:0000000:5",                  SMALL_KEYS),
    row("SADD, SPOP large", Sets,       "SADD set other:{number} ; SPOP set",                    LARGE),
    row("SISMEMBER large", Sets,        "SISMEMBER set {key}",                                   LARGE),
    row("ZADD small", SortedSets,       "ZADD sorted:{key} {number} member:0000000:5",           SMALL_KEYS),
    row("ZRANK small", SortedSets,      "ZRANK sorted:{key} member:0000000:5",                   SMALL_KEYS),
    row("ZADD large", SortedSets,       "ZADD sorted {number} {key}",                            LARGE),
    row("ZRANK large", SortedSets,      "ZRANK sorted {key}",                                    LARGE),
    row("ZRANGE_100 large", SortedSets, "ZRANGE sorted 500000 500099",                           1),
    row("XADD small", Streams,          "XADD stream:{key} MAXLEN ~ 100 * field {value}",        SMALL_KEYS),
    row("XADD large", Streams,          "XADD stream MAXLEN ~ 1000000 * field {value}",          1),
    row("XADD, XREADGROUP", Streams, "XADD stream MAXLEN ~ 1000000 * field {value} \
                                      ; XREADGROUP GROUP group one COUNT 1 NOACK STREAMS stream >", 1),
    row("XACK", Streams,                "XACK pending group {number}-1",                         LARGE),
    row("PFADD small", HyperLogLogs,    "PFADD hll:{key} {number}",                              SMALL_KEYS),
    row("PFADD large", HyperLogLogs,    "PFADD hll {number}",                                    LARGE),
    row("GEOSEARCH", Places,            "GEOSEARCH places FROMLONLAT 13.4 52.5 BYRADIUS 20 km COUNT 10", 1),
];

impl ValuesArgs {
    fn rows(&self) -> impl Iterator<Item = &'static Row> {
        ROWS.iter().filter(|row| row.name.contains(&self.only))
    }

    pub(super) fn estimate(&self, session: &Session) -> Duration {
        let pipelines = if self.single { 2 } else { 1 };
        session.time_for(self.rows().count() * pipelines * 4 * session.rounds) + Duration::from_secs(60)
    }
}

pub(crate) fn values(session: &mut Session, args: &ValuesArgs) -> Result<()> {
    let lanes = start(session, args)?;
    println!("\nCPU microseconds per command; ratio: to valkey in the same round");
    let pipelines: &[usize] = if args.single { &[PIPELINE, 1] } else { &[PIPELINE] };
    for &pipeline in pipelines {
        let goal = if pipeline == 1 { GOAL_SINGLE } else { GOAL_PIPELINED };
        let mut head = vec![""];
        head.extend(lanes.iter().map(|lane| lane.name.as_str()));
        head.extend(["ratio", "goal", "", "noise"]);
        let mut table = Table::new(&head);
        let mut figures = Vec::new();
        for row in args.rows() {
            let (cells, record) = measure(session, &lanes, row, pipeline, goal)?;
            eprintln!("{}", cells.join("  "));
            table.row(cells);
            figures.push(record);
        }
        let title = format!("Commands on collections, pipeline {pipeline}, {CLIENTS} clients");
        session.report("values", &title, &table, vec![("rows", Json::Array(figures))]);
    }
    Ok(())
}

fn start(session: &Session, args: &ValuesArgs) -> Result<Vec<Lane>> {
    let plans = [
        (ServerKind::Valkey, "valkey", false),
        (ServerKind::Evenkeel, "evenkeel", false),
        (ServerKind::Evenkeel, "again", true),
        (ServerKind::Redis, "redis", false),
    ];
    let mut lanes = Vec::new();
    for (kind, name, is_control) in plans {
        let Some(program) = session.program(kind) else { continue };
        let launch = Launch { cpus: session.server_cpus.clone(), threads: 1, ..Launch::default() };
        let mut lane = Lane::start(program, name, &launch)?;
        lane.is_control = is_control;
        let mut filled: Vec<Family> = Vec::new();
        for row in args.rows() {
            if !filled.contains(&row.family) {
                fill(lane.server.address, row.family).with_context(|| format!("cannot fill {name}"))?;
                filled.push(row.family);
            }
        }
        lanes.push(lane);
    }
    Ok(lanes)
}

fn measure(
    session: &mut Session,
    lanes: &[Lane],
    row: &Row,
    pipeline: usize,
    goal: Goal,
) -> Result<(Vec<String>, Json)> {
    let traffic = Traffic {
        command: Command::Words(row.command.to_owned()),
        pipeline,
        clients: CLIENTS,
        keys: row.range,
        value_size: VALUE_SIZE,
        ..Traffic::pinned(session)
    };
    let all = lanes::rounds(session, lanes, &traffic)?;
    let mut cells = vec![row.name.to_owned()];
    cells.extend(all.iter().map(|series| format!("{:.2}", series.median(|sample| sample.cpu_us))));
    let ours = all.iter().find(|series| series.kind == ServerKind::Evenkeel && !series.is_control);
    let theirs = all.iter().find(|series| series.kind == ServerKind::Valkey);
    let ratio = ours.zip(theirs).and_then(|(ours, theirs)| ours.ratio_to(theirs, |sample| sample.cpu_us));
    if let Some(ratio) = ratio {
        let what = format!("CPU to valkey's: {}, pipeline {pipeline}", row.name);
        cells.extend([ratio.to_string(), goal.to_string(), session.judge(what, goal, ratio.median)]);
        cells.push(format!("{:.2}", series::noise(&all, |sample| sample.cpu_us)));
    }
    let servers = Json::Array(all.iter().map(series::Series::to_json).collect());
    Ok((cells, object(vec![("row", row.name.into()), ("command", row.command.into()), ("servers", servers)])))
}

/// Returns key number `number` after `prefix`, as the load writes it.
fn key(prefix: &str, number: u64) -> Vec<u8> {
    let mut key = prefix.as_bytes().to_vec();
    keys::write(number, KEY_SIZE, &mut key);
    key
}

/// Writes everything that the rows of a family touch.
fn fill(server: SocketAddr, family: Family) -> Result<()> {
    const VALUE: &str = "sixteen bytes...";
    match family {
        Lists => {
            small(server, "RPUSH", "list", |_, words| _ = words.add(VALUE))?;
            large(server, "RPUSH list", |_, words| _ = words.add(VALUE))
        }
        Hashes => {
            let field =
                |number, words: &mut Words| _ = words.add(format!("field:00000000:{number}")).add(VALUE);
            small(server, "HSET", "hash", field)?;
            large(server, "HSET hash", |number, words| _ = words.add(key("", number)).add(VALUE))
        }
        Sets => {
            small(server, "SADD", "set", |number, words| _ = words.add(format!("member:0000000:{number}")))?;
            large(server, "SADD set", |number, words| _ = words.add(key("", number)))
        }
        SortedSets => {
            small(server, "ZADD", "sorted", |number, words| {
                _ = words.add(number.to_string()).add(format!("member:0000000:{number}"));
            })?;
            large(server, "ZADD sorted", |number, words| {
                _ = words.add(scattered(number)).add(key("", number))
            })
        }
        Streams => {
            feed(server, LARGE, |_, words| _ = words.line("XADD stream * field").add(VALUE))?;
            ask(server, &["XGROUP", "CREATE", "stream", "group", "$"])?;
            pending(server)
        }
        HyperLogLogs => Ok(()),
        Places => feed(server, 100_000, |number, words| {
            let mut random = Random::new(number);
            let mut degrees = |around: f64, by: u64| {
                format!("{:.5}", around + (random.below(by * 200_000) as f64 / 1e5) - by as f64)
            };
            words.line("GEOADD places").add(degrees(13.4, 18)).add(degrees(52.5, 8)).add(key("", number));
        }),
    }
}

/// Writes many values of ten elements, and some of a hundred, whose keys say so.
fn small(server: SocketAddr, command: &str, name: &str, add: fn(u64, &mut Words)) -> Result<()> {
    for (keys, elements, suffix) in [(SMALL_KEYS, 10, ""), (SMALL_KEYS / 10, 100, "100")] {
        feed(server, keys, |number, words| {
            words.add(command).add(key(&format!("{name}{suffix}:"), number));
            (0..elements).for_each(|element| add(element, words));
        })?;
    }
    Ok(())
}

/// Writes a value of a million elements.
fn large(server: SocketAddr, head: &str, add: fn(u64, &mut Words)) -> Result<()> {
    const AT_ONCE: u64 = 100;
    feed(server, LARGE / AT_ONCE, |number, words| {
        words.line(head);
        (number * AT_ONCE..(number + 1) * AT_ONCE).for_each(|number| add(number, words));
    })
}

/// Writes a stream whose entries have all been read by a group and not been acknowledged.
fn pending(server: SocketAddr) -> Result<()> {
    feed(server, LARGE, |number, words| {
        _ = words.line("XADD pending").add(format!("{}-1", number + 1)).line("field value");
    })?;
    ask(server, &["XGROUP", "CREATE", "pending", "group", "0"])?;
    feed(server, LARGE / 1000, |_, words| {
        _ = words.line("XREADGROUP GROUP group one COUNT 1000 STREAMS pending >")
    })
}

/// Returns a score for a member, in no order.
fn scattered(number: u64) -> String {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24).to_string()
}
