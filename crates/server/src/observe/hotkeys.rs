//! Hot keys: the keys that use most commands, processor time or network bytes (HOTKEYS; docs/hotkeys.md).
//!
//! Each worker keeps a sketch per requested metric, and a report merges the sketches. While counting is off,
//! a command costs the test of a flag. Otherwise it costs the decrement of a counter to the next sampled
//! command, whose weight stands for the skipped commands.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

use evenkeel_store::Keyspace;
use parking_lot::Mutex;

use super::commandlog::Spent;
use super::process::{self, CpuTime};
use super::sketch::Sketch;
use super::stats::Stats;
use crate::server::Server;
use evenkeel_command::{Args, Spec};
use evenkeel_runtime::clock;

/// Without a ratio in the request, each worker counts its first commands exactly, and then samples every
/// 256th on average, which costs less than a hundredth of a command each.
const FIRST: u32 = 1000;
const USUAL_RATIO: u32 = 256;

/// Capacity of a sketch per requested key, and its minimum.
const ROOM_PER_KEY: usize = 8;
const ROOM_MIN: usize = 256;

/// Most keys of a command that are counted. Each gets its share of the command's weight.
const KEYS_MAX: usize = 64;

/// A metric by which keys are hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    Cpu,
    Net,
    Requests,
}

impl Metric {
    pub(crate) const ALL: [Metric; 3] = [Metric::Cpu, Metric::Net, Metric::Requests];

    /// Returns the name in HOTKEYS START.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Metric::Cpu => "CPU",
            Metric::Net => "NET",
            Metric::Requests => "REQUESTS",
        }
    }

    /// Returns the name of its field in the reply.
    pub(crate) fn field(self) -> &'static str {
        match self {
            Metric::Cpu => "by-cpu-time-us",
            Metric::Net => "by-net-bytes",
            Metric::Requests => "by-requests",
        }
    }
}

/// The request of HOTKEYS START.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) metrics: Vec<Metric>,
    /// Keys shown per metric.
    pub(crate) keys: usize,
    pub(crate) duration_ms: Option<u64>,
    /// Ratio of commands to samples.
    pub(crate) ratio: Option<u32>,
}

/// Counting of hot keys; see the module's text.
pub(crate) struct HotKeys {
    is_on: AtomicBool,
    session: Mutex<Option<Session>>,
    /// A lane for each worker, and for each other thread that runs commands.
    lanes: Box<[Lane]>,
}

/// A worker's part.
#[derive(Default)]
#[repr(align(128))]
struct Lane {
    /// Commands up to the next sample, inclusive. Only its worker writes it while counting is on.
    left: AtomicU32,
    sampled: Mutex<Sampled>,
}

#[derive(Default)]
struct Sampled {
    /// In the order of [`Metric::ALL`].
    sketches: [Option<Sketch>; 3],
    ratio: u32,
    /// Commands still to be counted exactly.
    first: u32,
    /// Number of commands that the next sample stands for.
    weight: u32,
    random: u64,
}

/// A period of counting, and its result.
struct Session {
    wanted: Wanted,
    started_ms: u64,
    before: Totals,
    /// The end of the period, and the totals then.
    ended: Option<(u64, Totals)>,
}

/// The server's totals over all commands.
#[derive(Clone, Copy, Default)]
struct Totals {
    cpu: CpuTime,
    ticks: u64,
    net_bytes: u64,
}

/// The reply of HOTKEYS GET.
pub(crate) struct Report {
    pub(crate) wanted: Wanted,
    pub(crate) is_on: bool,
    pub(crate) started_ms: u64,
    pub(crate) elapsed_ms: u64,
    pub(crate) cpu: CpuTime,
    pub(crate) commands_us: u64,
    pub(crate) net_bytes: u64,
    /// A list for each requested metric.
    pub(crate) hottest: Vec<(Metric, Hottest)>,
}

/// Keys and their weights, hottest first.
pub(crate) type Hottest = Vec<(Vec<u8>, u64)>;

impl Totals {
    fn now(stats: &[Stats]) -> Totals {
        let sum = |of: fn(&Stats) -> u64| stats.iter().map(of).sum();
        Totals {
            cpu: process::cpu_time(false),
            ticks: sum(|stats| stats.commands.iter().map(|command| command.ticks.load(Relaxed)).sum()),
            net_bytes: sum(|stats| stats.net_in.load(Relaxed) + stats.net_out.load(Relaxed)),
        }
    }
}

impl Sampled {
    fn new(wanted: &Wanted, seed: u64) -> Sampled {
        let room = ROOM_MIN.max(ROOM_PER_KEY * wanted.keys);
        let sketch = |metric| wanted.metrics.contains(&metric).then(|| Sketch::new(room));
        Sampled {
            sketches: Metric::ALL.map(sketch),
            ratio: wanted.ratio.unwrap_or(USUAL_RATIO),
            first: if wanted.ratio.is_none() { FIRST } else { 0 },
            weight: 1,
            random: seed | 1,
        }
    }

    /// Returns the number of commands up to the next sample. Pipelines repeat themselves, so a fixed step
    /// could always meet the same command of each. This step is the ratio on average, between 1 and twice
    /// that.
    fn step(&mut self) -> u32 {
        if self.first > 0 {
            self.first -= 1;
            self.weight = 1;
            return 1;
        }
        self.weight = self.ratio;
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        1 + (self.random % u64::from(2 * self.ratio - 1)) as u32
    }
}

impl HotKeys {
    pub(crate) fn new(lanes: usize) -> HotKeys {
        let lanes = (0..lanes).map(|_| Lane::default()).collect();
        HotKeys { is_on: AtomicBool::new(false), session: Mutex::default(), lanes }
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Counts a command that has ended.
    #[inline]
    pub(crate) fn note(&self, keyspace: &Keyspace, worker: usize, command: (&Spec, Args<'_>, &Spent)) {
        let lane = &self.lanes[worker];
        let left = lane.left.load(Relaxed);
        if left > 1 {
            return lane.left.store(left - 1, Relaxed);
        }
        lane.sample(keyspace, command);
    }

    /// Begins to count. Returns `false` if counting is on.
    pub(crate) fn start(&self, server: &Server, wanted: Wanted, now_ms: u64) -> bool {
        let mut session = self.session.lock();
        if session.as_ref().is_some_and(|session| session.ended.is_none()) {
            return false;
        }
        for (index, lane) in self.lanes.iter().enumerate() {
            let seed = now_ms.wrapping_add(index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            *lane.sampled.lock() = Sampled::new(&wanted, seed);
            lane.left.store(0, Relaxed);
        }
        let before = Totals::now(&server.stats);
        *session = Some(Session { wanted, started_ms: now_ms, before, ended: None });
        self.is_on.store(true, Release);
        true
    }

    /// Stops counting. Returns `false` if counting is off.
    pub(crate) fn stop(&self, server: &Server, now_ms: u64) -> bool {
        let mut session = self.session.lock();
        let Some(session) = session.as_mut().filter(|session| session.ended.is_none()) else { return false };
        self.is_on.store(false, Release);
        session.ended = Some((now_ms, Totals::now(&server.stats)));
        true
    }

    /// Stops counting once the requested duration is over.
    pub(crate) fn end_if_due(&self, server: &Server, now_ms: u64) {
        if !self.is_on() {
            return;
        }
        let end_ms = {
            let session = self.session.lock();
            session.as_ref().and_then(|session| Some(session.started_ms + session.wanted.duration_ms?))
        };
        if let Some(end_ms) = end_ms
            && end_ms <= now_ms
        {
            self.stop(server, now_ms);
        }
    }

    /// Drops the counts. Returns `false` while counting is on.
    pub(crate) fn reset(&self) -> bool {
        let mut session = self.session.lock();
        if session.as_ref().is_some_and(|session| session.ended.is_none()) {
            return false;
        }
        *session = None;
        self.lanes.iter().for_each(|lane| *lane.sampled.lock() = Sampled::default());
        true
    }

    /// Returns the report; `None` if no counting was requested.
    pub(crate) fn report(&self, server: &Server, now_ms: u64) -> Option<Report> {
        let session = self.session.lock();
        let session = session.as_ref()?;
        let (end_ms, after) = session.ended.unwrap_or_else(|| (now_ms, Totals::now(&server.stats)));
        let before = &session.before;
        let hottest = |metric: &Metric| (*metric, self.hottest(*metric, session.wanted.keys));
        Some(Report {
            is_on: session.ended.is_none(),
            started_ms: session.started_ms,
            elapsed_ms: end_ms.saturating_sub(session.started_ms),
            cpu: CpuTime {
                user: after.cpu.user.saturating_sub(before.cpu.user),
                system: after.cpu.system.saturating_sub(before.cpu.system),
            },
            // CONFIG RESETSTAT may have come in between.
            commands_us: clock::us(after.ticks.saturating_sub(before.ticks)),
            net_bytes: after.net_bytes.saturating_sub(before.net_bytes),
            hottest: session.wanted.metrics.iter().map(hottest).collect(),
            wanted: session.wanted.clone(),
        })
    }

    /// Returns at most `keys` keys of all workers together, with their guaranteed weights. A key that is
    /// newly in a sketch inherits much weight that is not its own. So a stream without hot keys shows small
    /// weights, instead of the same weight for all keys.
    fn hottest(&self, metric: Metric, keys: usize) -> Hottest {
        let mut sums: HashMap<u64, (Vec<u8>, u64)> = HashMap::new();
        for lane in &self.lanes {
            let sampled = lane.sampled.lock();
            let counters = sampled.sketches[metric as usize].iter().flat_map(Sketch::counters);
            for counter in counters {
                let sum = sums.entry(counter.hash).or_insert_with(|| (counter.key.to_vec(), 0));
                sum.1 = sum.1.saturating_add(counter.count - counter.error);
            }
        }
        let mut hottest: Hottest = sums.into_values().collect();
        hottest.iter_mut().for_each(|(_, weight)| *weight = metric.shown(*weight));
        hottest.retain(|(_, weight)| *weight > 0);
        hottest.sort_unstable_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        hottest.truncate(keys);
        hottest
    }
}

impl Metric {
    /// Returns a command's weight, all its keys together.
    fn of(self, args: &Args<'_>, spent: &Spent) -> u64 {
        match self {
            Metric::Cpu => clock::ns(spent.ticks.saturating_sub(spent.waited)),
            Metric::Net => {
                // Commands run by EXEC have arrived before it.
                let request = if spent.request == 0 { args.wire_len() } else { spent.request };
                (request + spent.reply) as u64
            }
            Metric::Requests => 1,
        }
    }

    /// Converts a sketch's weight into the unit of the reply.
    fn shown(self, weight: u64) -> u64 {
        if self == Metric::Cpu { weight / 1000 } else { weight }
    }
}

impl Lane {
    #[cold]
    fn sample(&self, keyspace: &Keyspace, (row, args, spent): (&Spec, Args<'_>, &Spent)) {
        let mut sampled = self.sampled.lock();
        if sampled.ratio == 0 {
            return; // counting has ended meanwhile
        }
        let weight = u64::from(sampled.weight);
        let step = sampled.step();
        self.left.store(step, Relaxed);
        let (mut indices, mut count) = ([0; KEYS_MAX], 0);
        row.keys.for_each(&args, 0, keyspace.databases() as u32, |index, _| {
            if count < KEYS_MAX {
                indices[count] = index;
            }
            count += 1;
        });
        for index in &indices[..count.min(KEYS_MAX)] {
            let key = args.at(*index);
            let hash = keyspace.key(0, key).hash;
            for metric in Metric::ALL {
                let Some(sketch) = &mut sampled.sketches[metric as usize] else { continue };
                // A command counts as a request for each of its keys; other weights are divided among the
                // keys.
                let share = if metric == Metric::Requests { 1 } else { count as u64 };
                sketch.add(hash, key, metric.of(&args, spent) * weight / share);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Over many samples, the weights add up to all skipped commands.
    #[test]
    fn sample_weights_add_up_to_all_commands() {
        for ratio in [1, 2, 16, 1000] {
            let wanted =
                Wanted { metrics: vec![Metric::Requests], keys: 1, duration_ms: None, ratio: Some(ratio) };
            let mut sampled = Sampled::new(&wanted, 7);
            let (mut passed, mut stood_for) = (0, 0);
            for _ in 0..20_000 {
                passed += u64::from(sampled.step());
                stood_for += u64::from(sampled.weight);
            }
            let ratio_of_both = passed as f64 / stood_for as f64;
            assert!((0.98..1.02).contains(&ratio_of_both), "one in {ratio}: {ratio_of_both}");
        }
    }
}
