//! `stalls`: the wait of a client while another client works on a huge value. `growth` and `expiry`: while
//! millions of keys come, and while they all expire at once.
//!
//! A [`super::probe`] sends GETs of its own key in sequence and records the longest time to a reply, with and
//! without the part taken by the kernel's scheduler. Meanwhile another client builds values of millions of
//! elements, copies them, writes to the copy, deletes both, sorts and unites. The machine's own delays show
//! in the rows where the server does nothing else, one of them beside a busy thread for each core.
//!
//! Evenkeel is measured twice in each round, each time from the beginning: the difference is noise of the
//! machine. Each round begins with another server. The result is the median of the rounds' longest waits.
//!
//! The server has a single serving thread by default: then no client can be lucky and be served by
//! another thread.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};

use super::Session;
use super::feed::{Words, feed, member};
use super::felt::{self, Planned};
use super::lanes::{self, KEY_SIZE};
use super::probe::{Longest, Probe};
use crate::interrupt;
use crate::json::{Json, object};
use crate::load::keys::KeyRange;
use crate::load::{self, Plan};
use crate::servers::{ServerKind, ask};
use crate::stats::{Goal, Spread};
use crate::table::{Table, thousands, time_us};

/// Longest wait of the probe.
const GOAL_MS: Goal = Goal::AtMost(3.0);
/// Duration of the rows in which nothing happens.
const IDLE: Duration = Duration::from_secs(2);
/// Keys of `growth` and of `expiry`, and the bytes of their values.
const GROWTH_KEYS: u64 = 20_000_000;
const EXPIRY_KEYS: u64 = 10_000_000;
const VALUE_SIZE: usize = 64;
/// Elements per command while a value is built.
const AT_ONCE: u64 = 20;
/// Time that the probe goes on after a step, for the server's background work.
const AFTER: Duration = Duration::from_millis(300);
/// Keys that are to expire at once do so this long after the fill began, and 10 us more per key.
const FILL_TIME_BASE: Duration = Duration::from_secs(3);
/// Longest time until a server has removed them.
const EXPIRY_TIME_MAX: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct StallsArgs {
    /// Elements of the values that are built, copied and deleted
    #[arg(short, long, default_value_t = 10_000_000)]
    elements: u64,
    /// Elements of the values that are sorted and united
    #[arg(long, default_value_t = 1_000_000)]
    work: u64,
    /// Serving threads: a single thread serves both the client with the huge values and the waiting client
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

impl Default for StallsArgs {
    fn default() -> Self {
        Self { elements: 10_000_000, work: 1_000_000, threads: 1 }
    }
}

impl StallsArgs {
    pub(super) fn estimate(&self, session: &Session) -> Duration {
        let servers =
            session.programs.iter().filter(|program| program.kind != ServerKind::Floor).count() as u64;
        let seconds = 4 * self.elements / 500_000 + self.work / 50_000 + 10;
        Duration::from_secs(servers * seconds * session.rounds as u64)
    }
}

/// Appends element `number` of a value to a command.
type Element = fn(u64, &mut Words);

/// The work done while the probe runs.
type Step = Box<dyn Fn(SocketAddr) -> Result<()>>;

fn once(line: &'static str) -> Step {
    Box::new(move |server| feed(server, 1, |_, words| _ = words.line(line)))
}

/// Runs a busy thread on each core.
fn keep_busy(time: Duration) -> Result<()> {
    let until = Instant::now() + time;
    std::thread::scope(|scope| {
        for _ in 0..crate::sys::cores() {
            scope.spawn(|| while Instant::now() < until {});
        }
    });
    interrupt::check()
}

/// Adds elements, numbered from zero, to a key.
fn build(command: &'static str, key: &'static str, count: u64, add: Element) -> Step {
    Box::new(move |server| {
        feed(server, count / AT_ONCE, |number, words| {
            words.add(command).add(key);
            (number * AT_ONCE..(number + 1) * AT_ONCE).for_each(|number| add(number, words));
        })
    })
}

fn steps(args: &StallsArgs) -> Vec<(String, Step)> {
    let mut steps: Vec<(String, Step)> = Vec::new();
    let mut add = |name: &str, step: Step| steps.push((name.to_owned(), step));
    add("nothing", Box::new(|_| interrupt::sleep(IDLE)));
    add("nothing, cores busy", Box::new(|_| keep_busy(IDLE)));
    let kinds: [(&str, &'static str, Element); 4] = [
        ("hash", "HSET", |number, words| _ = words.add(member(number)).add("value")),
        ("set", "SADD", |number, words| _ = words.add(member(number))),
        ("zset", "ZADD", |number, words| _ = words.add((number % 65_537).to_string()).add(member(number))),
        ("list", "RPUSH", |number, words| _ = words.add(member(number))),
    ];
    for (name, command, element) in kinds {
        add(&format!("build a {name}"), build(command, "big", args.elements, element));
        add(&format!("COPY the {name}"), once("COPY big copy"));
        add(&format!("write to the copied {name}"), build(command, "copy", 20_000, element));
        add(&format!("DEL the {name}s"), once("DEL big copy"));
    }
    add(
        "two zsets for work",
        Box::new({
            let count = args.work;
            move |server| {
                build("ZADD", "one", count, |number, words| {
                    _ = words.add(number.to_string()).add(member(number))
                })(server)?;
                build("ZADD", "two", count, |number, words| {
                    _ = words.add(number.to_string()).add(member(number + 500_000));
                })(server)
            }
        }),
    );
    add("ZUNIONSTORE", once("ZUNIONSTORE union 2 one two"));
    add("ZINTERSTORE", once("ZINTERSTORE inter 2 one two"));
    add("ZRANGESTORE", once("ZRANGESTORE range one 0 -2"));
    add("ZREMRANGEBYRANK of most", once("ZREMRANGEBYRANK range 10 -10"));
    add("ZRANGE of all", once("ZRANGE one 0 -1 WITHSCORES"));
    add("SORT ALPHA STORE", once("SORT one ALPHA STORE sorted"));
    add("LREM", once("LREM sorted 0 none"));
    add("LRANGE of all", once("LRANGE sorted 0 -1"));
    add(
        "a weight for each member",
        Box::new({
            let count = args.work;
            move |server| {
                feed(server, count / AT_ONCE, |number, words| {
                    words.add("MSET");
                    for number in number * AT_ONCE..(number + 1) * AT_ONCE {
                        words.add([b"weight:", &member(number)[..]].concat()).add(number.to_string());
                    }
                })
            }
        }),
    );
    add("SORT BY STORE", once("SORT one BY weight:* STORE sorted"));
    add("FLUSHALL", once("FLUSHALL"));
    steps
}

pub(crate) fn stalls(session: &mut Session, args: &StallsArgs) -> Result<()> {
    let (elements, work) = (thousands(args.elements as f64), thousands(args.work as f64));
    let title = format!("{elements} elements, {work} to sort and unite");
    waits_of(session, "stalls", &title, args.threads, &steps(args))
}

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct KeysArgs {
    /// Number of keys [default: 20,000,000 that come, 10,000,000 that expire]
    #[arg(short, long)]
    keys: Option<u64>,
    /// Bytes of a value
    #[arg(short = 'd', long, default_value_t = VALUE_SIZE)]
    value_size: usize,
    /// Serving threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

impl KeysArgs {
    pub(super) const GROWTH: Self = Self { keys: Some(GROWTH_KEYS), value_size: VALUE_SIZE, threads: 1 };
    pub(super) const EXPIRY: Self = Self { keys: Some(EXPIRY_KEYS), value_size: VALUE_SIZE, threads: 1 };

    pub(super) fn estimate(&self, session: &Session) -> Duration {
        let servers = felt::planned(session).len() as u64;
        let seconds = 10 + self.keys.unwrap_or(GROWTH_KEYS) / 200_000;
        Duration::from_secs(servers * seconds * session.rounds as u64)
    }

    /// Like [`estimate`](Self::estimate), for keys that expire.
    pub(super) fn estimate_expiry(&self, session: &Session) -> Duration {
        let each = Duration::from_secs(15) + fill_time(self.keys.unwrap_or(EXPIRY_KEYS));
        each * (felt::planned(session).len() * session.rounds) as u32
    }
}

/// Measures the longest wait while the keyspace grows: tables have to grow, and moving a whole table at once
/// shows here.
pub(crate) fn growth(session: &mut Session, args: &KeysArgs) -> Result<()> {
    let (keys, size) = (args.keys.unwrap_or(GROWTH_KEYS), args.value_size);
    let steps: Vec<(String, Step)> = vec![
        ("nothing".to_owned(), Box::new(|_| interrupt::sleep(IDLE))),
        ("fill".to_owned(), Box::new(move |server| fill(server, keys, size))),
        ("FLUSHALL".to_owned(), once("FLUSHALL")),
    ];
    let title = format!("growth to {} keys", thousands(keys as f64));
    waits_of(session, "growth", &title, args.threads, &steps)
}

/// Measures the longest wait while all keys expire at the same moment.
pub(crate) fn expiry(session: &mut Session, args: &KeysArgs) -> Result<()> {
    let (keys, size) = (args.keys.unwrap_or(EXPIRY_KEYS), args.value_size);
    // Past the end of the fill, however slow the server.
    let deadline_ms = Arc::new(AtomicU64::new(0));
    let set = deadline_ms.clone();
    let steps: Vec<(String, Step)> = vec![
        ("nothing".to_owned(), Box::new(|_| interrupt::sleep(IDLE))),
        (
            "fill".to_owned(),
            Box::new(move |server| {
                let at = unix_ms() + fill_time(keys).as_millis() as u64;
                set.store(at, Relaxed);
                let value = "v".repeat(size);
                feed(server, keys, |number, words| {
                    words.add("SET").add(member(number)).add(&value).add("PXAT").add(at.to_string());
                })
            }),
        ),
        (
            "all expire".to_owned(),
            Box::new(move |server| {
                let at = deadline_ms.load(Relaxed);
                interrupt::sleep(Duration::from_millis(at.saturating_sub(unix_ms())))?;
                let until = Instant::now() + EXPIRY_TIME_MAX;
                // The key of the probe stays.
                while ask(server, &["DBSIZE"])?.trim() != ":1" && Instant::now() < until {
                    interrupt::sleep(POLL_INTERVAL)?;
                }
                Ok(())
            }),
        ),
    ];
    let title = format!("{} keys that expire at once", thousands(keys as f64));
    waits_of(session, "expiry", &title, args.threads, &steps)
}

fn fill_time(keys: u64) -> Duration {
    FILL_TIME_BASE + Duration::from_micros(10 * keys)
}

fn fill(server: SocketAddr, count: u64, value_size: usize) -> Result<()> {
    let outcome = load::run(&Plan::fill(server, KeyRange { first: 0, count }, KEY_SIZE, value_size), None)?;
    if outcome.errors > 0 {
        bail!("a fill failed: {}", outcome.error_text.unwrap_or_default());
    }
    Ok(())
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Runs the steps on each server in each round, and reports the longest waits.
fn waits_of(
    session: &mut Session,
    experiment: &'static str,
    title: &str,
    threads: usize,
    steps: &[(String, Step)],
) -> Result<()> {
    let lanes = felt::planned(session);
    let names: Vec<String> = lanes.iter().map(Planned::name).collect();
    let controls: Vec<bool> = lanes.iter().map(Planned::is_control).collect();
    let ours = lanes.iter().position(Planned::is_ours);
    let all = session.beside_pauses(|it| {
        lanes::in_rounds(it.rounds, &felt::planned(it), |lane| waits(lane, threads, steps))
    })?;
    let mut head = vec![""];
    head.extend(names.iter().map(String::as_str));
    head.extend(["goal", ""]);
    let mut table = Table::new(&head);
    let mut records = Vec::new();
    for (index, (name, _)) in steps.iter().enumerate() {
        let of_step =
            |rounds: &Vec<Vec<Wait>>| rounds.iter().map(|waits| waits[index]).collect::<Vec<Wait>>();
        let all: Vec<Vec<Wait>> = all.iter().map(of_step).collect();
        let mut cells = vec![name.clone()];
        cells.extend(all.iter().map(|rounds| cell(rounds)));
        if let Some(ours) = ours {
            let us = spread(&all[ours], Wait::own_us).median;
            let verdict = session.judge_wait(None, format!("longest wait in ms: {name}"), GOAL_MS, us, 1e3);
            cells.extend([GOAL_MS.to_string(), verdict]);
        }
        table.row(cells);
        let servers = names.iter().zip(&controls).zip(&all).map(|((name, is_control), rounds)| {
            let list = |figure: fn(&Wait) -> f64| rounds.iter().map(figure).collect::<Vec<f64>>().into();
            object(vec![
                ("server", name.as_str().into()),
                ("control", (*is_control).into()),
                ("longest_us", list(Wait::us)),
                ("longest_own_us", list(Wait::own_us)),
                ("took_s", list(Wait::seconds)),
            ])
        });
        records
            .push(object(vec![("step", name.as_str().into()), ("servers", Json::Array(servers.collect()))]));
    }
    let title =
        format!("{experiment}: longest wait of another client, the server's own part of the whole: {title}");
    session.report(experiment, &title, &table, vec![("steps", Json::Array(records))]);
    Ok(())
}

/// `3.10 ms of 3.20 ms in 1.0 s`; with several rounds, the first time is followed by its range.
fn cell(rounds: &[Wait]) -> String {
    let own = felt::time_spread(spread(rounds, Wait::own_us));
    let (all, took) = (spread(rounds, Wait::us).median, spread(rounds, Wait::seconds).median);
    format!("{own} of {} in {took:.1} s", time_us(all))
}

fn spread(rounds: &[Wait], figure: fn(&Wait) -> f64) -> Spread {
    Spread::of(rounds.iter().map(figure)).expect("one round at least, and times are numbers")
}

/// The wait of the probe during a step.
#[derive(Clone, Copy)]
struct Wait {
    longest: Longest,
    took: Duration,
}

impl Wait {
    fn us(&self) -> f64 {
        self.longest.us
    }

    fn own_us(&self) -> f64 {
        self.longest.own_us
    }

    fn seconds(&self) -> f64 {
        self.took.as_secs_f64()
    }
}

fn waits(planned: &Planned<'_>, threads: usize, steps: &[(String, Step)]) -> Result<Vec<Wait>> {
    let lane = planned.start(threads)?;
    let server = lane.server.address;
    feed(server, 1, |_, words| _ = words.line("SET probe value"))?;
    Probe::run(server, lane.server.pid(), |probe| {
        let mut waits = Vec::new();
        for (_, step) in steps {
            probe.start_over();
            let started = Instant::now();
            step(server)?;
            let took = started.elapsed();
            interrupt::sleep(AFTER)?;
            waits.push(Wait { longest: probe.longest(), took });
            // FLUSHALL deletes the key of the probe, too.
            feed(server, 1, |_, words| _ = words.line("SET probe value"))?;
        }
        Ok(waits)
    })
}
