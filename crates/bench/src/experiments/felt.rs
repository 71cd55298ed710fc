//! The impact of an event on clients: measures the load alone, and then for as long as the event lasts.
//!
//! Each server is measured in every round, Evenkeel twice: the difference between its two measurements is
//! noise of the machine. If the memory does not hold all servers, they run one after the other, with all
//! their rounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Result, bail};

use super::Session;
use super::feed::{Words, feed, member};
use super::lanes::{self, Lane, Traffic, memory_for};
use super::series::Sample;
use crate::json::{Json, object};
use crate::load::Event;
use crate::load::keys::KeyRange;
use crate::load::requests::Command;
use crate::load::timeline::{SLICE, Slice, Timeline};
use crate::servers::{Launch, ServerKind, ServerProgram, ask};
use crate::stats::Spread;
use crate::table::{Table, thousands, time_us};
use crate::{interrupt, proc};

/// Interval between looks at the process' memory.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Shorter events are not measurable.
const SHORTEST: Duration = Duration::from_millis(100);
/// Share of the free memory that the servers of an experiment may take.
const MEMORY_SHARE: f64 = 0.85;
/// Bytes per element of a huge value, in the most expensive server.
const PER_ELEMENT: u64 = 200;
/// Elements per command while a huge value is built.
const AT_ONCE: u64 = 20;
const HUGE_HASH: &str = "huge:hash";
const HUGE_ZSET: &str = "huge:zset";

/// A million keys of 700 B by default.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct DataArgs {
    /// Number of keys
    #[arg(short, long, default_value_t = 1_000_000)]
    pub(super) keys: u64,
    /// Bytes of a value
    #[arg(short = 'd', long, default_value_t = 700)]
    pub(super) value_size: usize,
    /// As many keys as fit into the free memory twice, which a fork under writes may need
    #[arg(long, conflicts_with = "keys")]
    pub(super) fill_memory: bool,
    /// Add a hash and a sorted set of this many elements, written to as often as the keys
    #[arg(long, value_name = "ELEMENTS", default_value_t = 0)]
    pub(super) huge: u64,
    /// Send this many per second, whatever the server does; latencies run from when a request was due
    #[arg(short, long, value_name = "REQUESTS")]
    pub(super) rate: Option<f64>,
}

impl Default for DataArgs {
    fn default() -> Self {
        Self { keys: 1_000_000, ..Self::BRIEF }
    }
}

impl DataArgs {
    /// Used when there is little time.
    pub(super) const BRIEF: Self =
        Self { keys: 250_000, value_size: 700, fill_memory: false, huge: 0, rate: None };

    /// Nine million keys of 700 B: 7 GB.
    pub(super) const LARGE: Self = Self { keys: 9_000_000, ..Self::BRIEF };

    /// `LARGE`, with a hash and a sorted set of ten million elements.
    pub(super) const HUGE: Self = Self { huge: 10_000_000, ..Self::LARGE };

    /// 5 GB.
    pub(super) const SYNCED: Self = Self { keys: 7_000_000, ..Self::BRIEF };

    /// Returns the same arguments with at most as many keys as fit into the free memory twice.
    pub(super) fn that_fits(self) -> Self {
        let most = Self { fill_memory: true, ..self.clone() }.keys();
        Self { keys: self.keys.min(most), ..self }
    }

    pub(super) fn keys(&self) -> u64 {
        if !self.fill_memory {
            return self.keys;
        }
        let room = (proc::memory_available() as f64 * MEMORY_SHARE) as u64 / 2;
        room.saturating_sub(2 * self.huge * PER_ELEMENT) / memory_for(1, self.value_size)
    }

    /// Returns the bytes that a server holds at most.
    pub(super) fn memory(&self) -> u64 {
        memory_for(self.keys(), self.value_size) + 2 * self.huge * PER_ELEMENT
    }

    /// Filling at 200,000 keys a second, the huge values at half a million elements.
    pub(super) fn fill_time(&self) -> Duration {
        Duration::from_secs(self.keys() / 200_000 + 2 * self.huge / 500_000)
    }

    /// Writes from 50 clients, with all cores for server and load alike.
    fn traffic(&self) -> Traffic {
        let command = match self.huge {
            0 => Command::Set,
            _ => Command::Words(format!(
                "SET {{key}} {{value}} ; HSET {HUGE_HASH} {{key}} value ; ZADD {HUGE_ZSET} {{number}} {{key}}"
            )),
        };
        let (keys, value_size, rate) = (self.keys(), self.value_size, self.rate);
        Traffic { command, keys, value_size, rate, ..Traffic::default() }
    }

    fn fill(&self, lane: &Lane) -> Result<()> {
        lane.fill(KeyRange { first: 0, count: self.keys() }, self.value_size)?;
        let build = |command: &'static str, key: &'static str, add: fn(u64, &mut Words)| {
            feed(lane.server.address, self.huge / AT_ONCE, |number, words| {
                words.add(command).add(key);
                (number * AT_ONCE..(number + 1) * AT_ONCE).for_each(|number| add(number, words));
            })
        };
        build("HSET", HUGE_HASH, |number, words| _ = words.add(member(number)).add("value"))?;
        build("ZADD", HUGE_ZSET, |number, words| _ = words.add(number.to_string()).add(member(number)))
    }

    /// `SET from 50 clients, 1,000,000 keys of 700 B`
    pub(super) fn words(&self) -> String {
        let (keys, size) = (thousands(self.keys() as f64), self.value_size);
        let rate = self.rate.map_or_else(String::new, |rate| format!(", {} a second", thousands(rate)));
        match self.huge {
            0 => format!("SET from 50 clients{rate}, {keys} keys of {size} B"),
            huge => format!(
                "SET, HSET and ZADD from 50 clients{rate}, {keys} keys of {size} B, a hash and a zset of {}",
                thousands(huge as f64)
            ),
        }
    }

    /// Groups the servers so that each group fits into the memory together; a fork may need as much again for
    /// one server.
    fn groups<'a>(&self, all: Vec<Planned<'a>>) -> Result<Vec<Vec<Planned<'a>>>> {
        let (each, free) = (self.memory(), (proc::memory_available() as f64 * MEMORY_SHARE) as u64);
        if 2 * each > free {
            bail!("{} keys of {} B need {} MiB twice", self.keys(), self.value_size, each >> 20);
        }
        let together = each * (all.len() as u64 + 1) <= free;
        Ok(if together { vec![all] } else { all.into_iter().map(|one| vec![one]).collect() })
    }
}

/// A server to be measured.
pub(super) struct Planned<'a> {
    program: &'a ServerProgram,
    is_control: bool,
    /// The difference from the server as installed, if any.
    change: Option<Change>,
}

/// Suffix of the server's name for a change, and the changed directive with its value.
pub(super) type Change = (&'static str, [&'static str; 2]);

/// Returns the servers that keep data, and Evenkeel again.
pub(super) fn planned(session: &Session) -> Vec<Planned<'_>> {
    let kinds = [
        (ServerKind::Valkey, false),
        (ServerKind::Evenkeel, false),
        (ServerKind::Redis, false),
        (ServerKind::Evenkeel, true),
    ];
    let planned =
        |(kind, is_control)| Some(Planned { program: session.program(kind)?, is_control, change: None });
    kinds.into_iter().filter_map(planned).collect()
}

impl<'a> Planned<'a> {
    /// Returns another server of a kind, with a change.
    pub(super) fn changed(session: &'a Session, kind: ServerKind, change: Change) -> Option<Planned<'a>> {
        Some(Planned { program: session.program(kind)?, is_control: false, change: Some(change) })
    }

    pub(super) fn kind(&self) -> ServerKind {
        self.program.kind
    }

    pub(super) fn name(&self) -> String {
        let change = self.change.map_or("", |(name, _)| name);
        format!("{}{}{change}", self.program.kind.name(), if self.is_control { " again" } else { "" })
    }

    /// Evenkeel, repeated.
    pub(super) fn is_control(&self) -> bool {
        self.is_control
    }

    /// Evenkeel, not repeated.
    pub(super) fn is_ours(&self) -> bool {
        self.kind() == ServerKind::Evenkeel && !self.is_control
    }

    pub(super) fn start(&self, threads: usize) -> Result<Lane> {
        let launch = Launch { threads, ..Launch::default() };
        let mut lane = Lane::start(self.program, &self.name(), &launch)?;
        lane.is_control = self.is_control;
        if let Some((_, [directive, value])) = self.change {
            lane.set(directive, value)?;
        }
        Ok(lane)
    }

    /// Like [`start`](Self::start), with its files in an existing directory.
    pub(super) fn start_in(&self, directory: &std::path::Path) -> Result<Lane> {
        let launch = Launch { threads: 1, ..Launch::default() };
        let mut lane = Lane::start_in(self.program, &self.name(), &launch, directory)?;
        lane.is_control = self.is_control;
        Ok(lane)
    }
}

/// The load before an event and during it, and the event's own result.
pub(super) struct Felt<T> {
    pub(super) before: Sample,
    pub(super) during: Sample,
    timeline: Timeline,
    /// Resident bytes before, and the largest growth beyond them during the event. Pages that a forked child
    /// has made the server copy are included, by the server's own count.
    pub(super) resident: u64,
    pub(super) grown: u64,
    pub(super) event: T,
}

/// Measures the load alone, and then with an event that begins as soon as the second measurement runs. Event
/// and measurement end when the event says so or returns.
pub(super) fn feel<T: Send>(
    session: &Session,
    lane: &Lane,
    traffic: &Traffic,
    event: impl FnOnce(&Event) -> Result<T> + Send,
) -> Result<Felt<T>> {
    let before = lanes::measure(session, lane, traffic)?;
    let pid = lane.server.pid();
    let resident = proc::usage(pid)?.rss_bytes;
    let (moment, is_done) = (&Arc::new(Event::default()), &AtomicBool::new(false));
    let (during, happened, peak) = std::thread::scope(|scope| {
        let happening = scope.spawn(move || {
            let happened = moment.begin().and_then(|()| event(moment));
            moment.end();
            is_done.store(true, Relaxed);
            happened
        });
        let watching = scope.spawn(move || -> Result<u64> {
            let mut peak = 0;
            while !is_done.load(Relaxed) {
                peak = peak.max(proc::usage(pid)?.rss_bytes);
                interrupt::sleep(POLL_INTERVAL)?;
            }
            Ok(peak)
        });
        let during = lanes::outcome_of(lane, traffic, moment);
        moment.end(); // it may have failed
        let joined = (happening.join(), watching.join());
        (during, joined.0.expect("events do not panic"), joined.1.expect("a look does not panic"))
    });
    let (during, event, peak) = (during?, happened?, peak?);
    if during.elapsed < SHORTEST {
        bail!("{}: it took {:?}, which is too short to be felt: use more keys", lane.name, during.elapsed);
    }
    let grown = peak.saturating_sub(resident) + copied(lane)?;
    let (during, timeline) = (Sample::from(&during), during.timeline);
    Ok(Felt { before, during, timeline, resident, grown, event })
}

/// Returns the private memory of the last child that wrote a snapshot: pages written to meanwhile by either
/// process. Evenkeel has no child, and all its memory is resident in the process.
fn copied(lane: &Lane) -> Result<u64> {
    if lane.kind == ServerKind::Evenkeel {
        return Ok(0);
    }
    let info = ask(lane.server.address, &["INFO", "persistence"])?;
    let text = info.lines().find_map(|line| line.strip_prefix("rdb_last_cow_size:"));
    Ok(text.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0))
}

/// A server's rounds.
pub(super) struct Rounds<T> {
    pub(super) kind: ServerKind,
    pub(super) is_control: bool,
    pub(super) name: String,
    pub(super) all: Vec<Felt<T>>,
}

/// Measures each lane once per round; every round begins with another lane.
pub(super) fn rounds<T: Send>(
    session: &Session,
    lanes: &[Lane],
    traffic: &Traffic,
    event: impl Fn(&Lane, &Event) -> Result<T> + Sync,
) -> Result<Vec<Rounds<T>>> {
    let all = lanes::in_rounds(session.rounds, lanes, |lane| {
        feel(session, lane, traffic, |moment| event(lane, moment))
    })?;
    let rounds = |(lane, all): (&Lane, _)| Rounds {
        kind: lane.kind,
        is_control: lane.is_control,
        name: lane.name.clone(),
        all,
    };
    Ok(lanes.iter().zip(all).map(rounds).collect())
}

/// Measures the rounds of servers that hold these data; each server is prepared before it is filled.
pub(super) fn over_data<T: Send>(
    session: &Session,
    servers: Vec<Planned<'_>>,
    args: &DataArgs,
    prepare: impl Fn(&Lane) -> Result<()>,
    event: impl Fn(&Lane, &Event) -> Result<T> + Sync,
) -> Result<Vec<Rounds<T>>> {
    let mut all = Vec::new();
    for group in args.groups(servers)? {
        let lanes = group.iter().map(|planned| planned.start(1)).collect::<Result<Vec<Lane>>>()?;
        lanes.iter().try_for_each(|lane| prepare(lane).and_then(|()| args.fill(lane)))?;
        all.extend(rounds(session, &lanes, &args.traffic(), &event)?);
    }
    Ok(all)
}

/// An extra column of an experiment: its title, its cells, and its name and value in the JSON.
pub(super) struct Column<T> {
    pub(super) head: &'static str,
    pub(super) cell: fn(&Rounds<T>) -> String,
    pub(super) json: &'static str,
    pub(super) figure: fn(&Felt<T>) -> f64,
}

impl<T> Rounds<T> {
    pub(super) fn is_ours(&self) -> bool {
        self.kind == ServerKind::Evenkeel && !self.is_control
    }

    pub(super) fn spread(&self, figure: impl Fn(&Felt<T>) -> f64) -> Spread {
        Spread::of(self.all.iter().map(figure)).unwrap_or(Spread {
            median: f64::NAN,
            min: f64::NAN,
            max: f64::NAN,
        })
    }

    pub(super) fn median(&self, figure: impl Fn(&Felt<T>) -> f64) -> f64 {
        self.spread(figure).median
    }

    /// Returns the longest request during the event, in microseconds: the median of the rounds.
    pub(super) fn longest_us(&self) -> f64 {
        self.median(|felt| felt.during.max)
    }

    /// Returns the rate during the event, relative to before.
    pub(super) fn rate(&self) -> f64 {
        self.median(Felt::rate)
    }

    /// Returns the ratio of this server's metric to the other's, round by round.
    pub(super) fn ratio_to(&self, other: &Self, figure: fn(&Felt<T>) -> f64) -> f64 {
        let values = |rounds: &Self| rounds.all.iter().map(figure).collect::<Vec<f64>>();
        Spread::of_ratios(&values(self), &values(other)).map_or(f64::NAN, |spread| spread.median)
    }

    fn cells(&self) -> Vec<String> {
        let rate = |figure: fn(&Felt<T>) -> f64| format!("{:.0}k", self.median(figure) / 1e3);
        vec![
            self.name.clone(),
            rate(|felt| felt.before.rate),
            rate(|felt| felt.during.rate),
            self.spread(Felt::rate).to_string(),
            time_us(self.median(|felt| felt.before.p99)),
            time_us(self.median(|felt| felt.during.p99)),
            time_spread(self.spread(|felt| felt.before.max)),
            time_spread(self.spread(|felt| felt.during.max)),
        ]
    }

    fn figures(&self, columns: &[Column<T>]) -> Json {
        let list =
            |figure: &dyn Fn(&Felt<T>) -> f64| self.all.iter().map(figure).collect::<Vec<f64>>().into();
        let mut members = vec![
            ("server", self.name.as_str().into()),
            ("control", self.is_control.into()),
            ("requests_per_s_before", list(&|felt| felt.before.rate)),
            ("requests_per_s_during", list(&|felt| felt.during.rate)),
            ("cpu_us_per_command_before", list(&|felt| felt.before.cpu_us)),
            ("cpu_us_per_command_during", list(&|felt| felt.during.cpu_us)),
            ("p99_us_before", list(&|felt| felt.before.p99)),
            ("p99_us_during", list(&|felt| felt.during.p99)),
            ("longest_us_before", list(&|felt| felt.before.max)),
            ("longest_us_during", list(&|felt| felt.during.max)),
            ("page_faults_per_1000_during", list(&|felt| felt.during.faults)),
            ("memory_grown_bytes", list(&|felt| felt.grown as f64)),
        ];
        members.extend(columns.iter().map(|column| (column.json, list(&column.figure))));
        object(members)
    }
}

impl<T> Felt<T> {
    /// Returns the rate during the event, relative to before.
    pub(super) fn rate(&self) -> f64 {
        self.during.rate / self.before.rate
    }

    /// Returns the measurement during the event, over time.
    pub(super) fn slices(&self) -> &[Slice] {
        self.timeline.slices()
    }

    /// Returns the longest latency over time, with the start and the end of the event.
    fn curve(&self, server: &str, event: &str, [from, to]: [Duration; 2]) -> Json {
        let longest = self.timeline.slices().iter().map(|slice| slice.longest.as_secs_f64() * 1e6);
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        object(vec![
            ("server", server.into()),
            ("slice_ms", ms(SLICE).into()),
            ("longest_us", longest.collect::<Vec<f64>>().into()),
            ("event", event.into()),
            ("event_ms", vec![ms(from), ms(to)].into()),
        ])
    }
}

/// The name of an event, and its start and end in a round.
pub(super) type Named<T> = (&'static str, fn(&Felt<T>) -> [Duration; 2]);

/// Prints the table of an experiment and keeps its metrics. The timeline shows the round whose longest
/// request is the median.
pub(super) fn report<T>(
    session: &mut Session,
    experiment: &'static str,
    title: &str,
    all: &[Rounds<T>],
    columns: &[Column<T>],
    (event, time): Named<T>,
) {
    let mut head =
        vec!["", "writes/s before", "during", "ratio", "p99 before", "during", "longest before", "during"];
    head.extend(columns.iter().map(|column| column.head));
    let mut table = Table::new(&head);
    for rounds in all {
        let mut cells = rounds.cells();
        cells.extend(columns.iter().map(|column| (column.cell)(rounds)));
        table.row(cells);
    }
    let curves = all.iter().filter(|rounds| !rounds.is_control).filter_map(|rounds| {
        let mut sorted: Vec<&Felt<T>> = rounds.all.iter().collect();
        sorted.sort_by(|one, other| one.during.max.total_cmp(&other.during.max));
        let felt = sorted.get(sorted.len() / 2)?;
        Some(felt.curve(&rounds.name, event, time(felt)))
    });
    let members = vec![
        ("timelines", Json::Array(curves.collect())),
        ("servers", Json::Array(all.iter().map(|rounds| rounds.figures(columns)).collect())),
    ];
    session.report(experiment, title, &table, members);
}

/// `3.10 ms (2.95 ms..4.00 ms)`; without the range if all rounds agree.
pub(super) fn time_spread(us: Spread) -> String {
    if us.min == us.max {
        return time_us(us.median);
    }
    format!("{} ({}..{})", time_us(us.median), time_us(us.min), time_us(us.max))
}
