//! The pace of a snapshot, and of other work that clients should not feel.
//!
//! The snapshot thread competes for cores with the serving threads, and a client feels each of its time
//! slices as a whole. So it works in short pieces and sleeps in between, long enough to use no more than the
//! idle time of the cores. With idle cores it does not sleep at all; with busy cores it takes a twelfth of
//! the machine, so it comes to an end under any load.
//!
//! Short pieces are felt less, but each sleep costs two context switches, and lasts longer than requested on
//! a busy core. The excess counts for the next sleep. On two busy cores, with pieces of 100 us, one request
//! in a hundred takes 1.7 times as long as without a snapshot, and with 500 us 2.7 times; the snapshot takes
//! the same time. With 60 us the snapshot takes half as long again, and requests gain nothing.
//!
//! SCHED_IDLE or a nice value is no way out: the thread then loses its core while it holds a slot, and the
//! longest request takes 6 to 30 ms.

use std::fs;
use std::mem;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_store::snapshot::Sink;
use evenkeel_store::{Keyspace, View, memory};
use rustix::thread::CpuSet;

use super::Progress;
use evenkeel_runtime::clock::{process_cpu, thread_cpu};
use evenkeel_runtime::sandbox::{self, Call};

/// Longest piece of work, for which other threads may have to wait.
const PIECE: Duration = Duration::from_micros(100);

/// Longest sleep: values that writers hand over meanwhile are taken in between.
pub(super) const SLEEP_MAX: Duration = Duration::from_millis(5);

/// Longest rest carried over after a long piece of work: a large value is encoded as a whole.
const OWED_MAX: Duration = Duration::from_millis(20);

/// Bytes handed over by writers from which on speed is worth its cost: a 128th of the memory used, within
/// these bounds. This memory does not shrink again, since a thread that lacks its core cannot catch up. With
/// 5 GB and no upper bound the limit was 36 MB, 77 MB came, and a full sync took 143 MB.
const HANDED_OVER_MIN: usize = 4 << 20;
const HANDED_OVER_MAX: usize = 8 << 20;

/// The limit within its bounds.
pub(super) fn handed_over_max() -> usize {
    (memory::used() / 128).clamp(HANDED_OVER_MIN, HANDED_OVER_MAX)
}

/// The time slice that this thread asks the kernel for: the longest that the kernel grants.
const SLICE: Duration = Duration::from_millis(100);

/// Interval between two samples of the cores' idle time, which is counted in hundredths of a second.
const WINDOW: Duration = Duration::from_millis(100);

/// The part of all cores that is used even if none is idle, and the part that is left idle otherwise. With a
/// tenth, BGSAVE on two busy cores takes 0.7 to 0.9 of the time of Valkey's child and leaves 0.81 of the
/// rate; with 0.085, 0.8 to 1.0 and 0.83 to 0.85.
const LEAST: f64 = 0.085;
const RESERVE: f64 = 0.25;

/// Seconds for each key, for tests: `setting` in microseconds, or below zero the number of keys in a
/// microsecond.
pub(super) fn key_delay(setting: i32) -> f64 {
    let setting = f64::from(setting);
    if setting < 0.0 { 1e-6 / -setting } else { setting * 1e-6 }
}

/// Decides when a thread sleeps, and for how long.
pub struct Pace {
    since: Instant,
    limit: Limit,
    /// The start of this piece of work, and the CPU time of this thread by then.
    began: Instant,
    ran: Duration,
    /// The rest that this thread still owes.
    owed: Duration,
    share: Share,
}

/// The requested limit, with the time and the bytes written when it was set: it may change during a snapshot,
/// and applies from then on.
struct Limit {
    /// `snapshot-max-mbps`; 0 for none.
    mbps: u32,
    since: Instant,
    from: u64,
}

impl Pace {
    /// For this thread, from now on.
    #[expect(clippy::new_without_default, reason = "the value belongs to a thread and a moment")]
    pub fn new() -> Pace {
        let now = Instant::now();
        Pace {
            since: now,
            limit: Limit { mbps: 0, since: now, from: 0 },
            began: now,
            ran: thread_cpu(),
            owed: Duration::ZERO,
            share: Share::new(now),
        }
    }

    /// The duration of the sleep that is due now, if the piece of work has ended. The share of a core is at
    /// least `share_min`.
    fn sleep_due(&mut self, now: Instant, share_min: f64) -> Option<Duration> {
        if now.saturating_duration_since(self.began) < PIECE {
            return None;
        }
        // Time in which other threads had the core is not owed to them.
        let ran = thread_cpu();
        let worked = ran.saturating_sub(mem::replace(&mut self.ran, ran));
        let share = self.share.at(now).max(share_min.min(1.0));
        // Time without its core, or waiting for its disk, counts as rest.
        let late = now.saturating_duration_since(self.began).saturating_sub(worked);
        let due;
        (due, self.owed) = rest(worked, late, share, self.owed);
        self.began = now + due;
        (!due.is_zero()).then_some(due)
    }

    /// Sleeps for the rest that is due by now. To be called after each short piece of work, with no lock and
    /// outside the gate. The share of a core is at least `share_min`; at 1 there is no rest.
    pub fn rest(&mut self, share_min: f64) {
        if let Some(due) = self.sleep_due(Instant::now(), share_min) {
            thread::sleep(due);
        }
    }

    /// Whether more has been written than a limit in MB/s (0: none) and a delay for each key, for tests,
    /// allow.
    fn is_ahead(&mut self, progress: &Progress, mbps: u32, s_per_key: f64) -> bool {
        let bytes = progress.bytes.load(Relaxed);
        if mbps != self.limit.mbps {
            self.limit = Limit { mbps, since: Instant::now(), from: bytes };
        }
        let elapsed = |since: Instant| since.elapsed().as_secs_f64();
        let written = bytes.saturating_sub(self.limit.from) as f64;
        mbps > 0 && written > f64::from(mbps) * 1e6 * elapsed(self.limit.since)
            || s_per_key > 0.0 && progress.keys.load(Relaxed) as f64 * s_per_key > elapsed(self.since)
    }
}

/// Returns the sleep after `worked`, and the rest that is still owed then. Other threads have already had the
/// core for `late`, and `owed` is due from before.
fn rest(worked: Duration, late: Duration, share: f64, owed: Duration) -> (Duration, Duration) {
    if share >= 1.0 {
        return (Duration::ZERO, Duration::ZERO); // haste, or idle cores
    }
    let owed = (worked.mul_f64((1.0 - share) / share) + owed).saturating_sub(late);
    let due = owed.min(SLEEP_MAX);
    (due, (owed - due).min(OWED_MAX))
}

/// Lets the serving threads preempt this thread when they wake, within their share: since Linux 6.12, the
/// scheduler prefers threads that ask for shorter slices. The total share of each thread stays the same. On
/// two busy cores, the longest request during a snapshot took 2.2 to 3.5 ms with this, and 2.4 to 5.6
/// without.
///
/// Lasts as long as the value: the thread may have other work afterwards, and threads that it starts inherit
/// its attributes.
pub struct GivesWay(Option<libc::sched_attr>);

impl GivesWay {
    /// For this thread.
    #[expect(clippy::new_without_default, reason = "the value has an effect")]
    pub fn new() -> GivesWay {
        let before = sandbox::permits(Call::SchedSetattr).then(attributes).flatten();
        if let Some(before) = before {
            set_attributes(libc::sched_attr { sched_runtime: SLICE.as_nanos() as u64, ..before });
        }
        GivesWay(before)
    }
}

impl Drop for GivesWay {
    fn drop(&mut self) {
        self.0.into_iter().for_each(set_attributes);
    }
}

/// The scheduling attributes of this thread, if the kernel returns them.
fn attributes() -> Option<libc::sched_attr> {
    // SAFETY: zeros are a valid value of the structure.
    let mut attributes: libc::sched_attr = unsafe { mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the kernel writes at most `size` bytes.
    let is_valid = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) == 0 };
    is_valid.then_some(attributes)
}

fn set_attributes(attributes: libc::sched_attr) {
    // SAFETY: the kernel reads as many bytes as the structure says it has. If it refuses, nothing changes.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// A sink that rests between entries.
pub(super) struct Paced<'a, S> {
    pub(super) sink: S,
    pace: Pace,
    keyspace: &'a Keyspace,
    progress: &'a Progress,
    /// Bytes handed over by writers from which on there is no rest, since they take memory.
    handed_over_max: usize,
}

impl<'a, S> Paced<'a, S> {
    pub(super) fn new(sink: S, pace: Pace, keyspace: &'a Keyspace, progress: &'a Progress) -> Self {
        Paced { sink, pace, keyspace, progress, handed_over_max: handed_over_max() }
    }

    /// Sleeps for the rest that is due by now.
    pub(super) fn rest(&mut self) {
        // The more bytes are handed over, the shorter the rest, so the amount finds its balance.
        let urgency = self.keyspace.handed_over() as f64 / self.handed_over_max as f64;
        if let Some(due) = self.pace.sleep_due(Instant::now(), urgency) {
            thread::sleep(due);
        }
    }

    /// Whether the limits require a longer rest.
    pub(super) fn is_ahead(&mut self, (mbps, s_per_key): (u32, f64)) -> bool {
        self.pace.is_ahead(self.progress, mbps, s_per_key)
    }
}

impl<S: Sink> Sink for Paced<'_, S> {
    fn take(&mut self, db: u32, view: View<'_>) {
        self.sink.take(db, view);
        self.rest();
    }

    fn share(&mut self, db: u32, view: View<'_>) -> usize {
        self.sink.share(db, view)
    }
}

/// The part of a core that this thread may take.
struct Share {
    present: f64,
    /// The CPUs that the process may run on, and the number of them that its control group grants.
    cpus: Vec<usize>,
    granted: f64,
    seen: Option<Seen>,
}

/// Totals in seconds, from an arbitrary origin.
struct Seen {
    at: Instant,
    idle: f64,
    thread: f64,
    process: f64,
}

impl Share {
    fn new(now: Instant) -> Share {
        let granted = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let mut share = Share { present: 1.0, cpus: allowed_cpus(), granted, seen: None };
        share.seen = share.look(now);
        if share.seen.is_some() {
            share.present = share.bounded(0.0);
        }
        share
    }

    fn at(&mut self, now: Instant) -> f64 {
        if self.seen.as_ref().is_some_and(|seen| now.duration_since(seen.at) >= WINDOW) {
            let new = self.look(now);
            if let (Some(old), Some(new)) = (mem::replace(&mut self.seen, new), &self.seen) {
                let s = (new.at - old.at).as_secs_f64();
                let own = (new.thread - old.thread) / s;
                let idle = (new.idle - old.idle) / s;
                let left = self.granted - (new.process - old.process) / s;
                self.present = self.bounded(own + idle.min(left) - RESERVE * self.granted);
            }
        }
        self.present
    }

    fn bounded(&self, share: f64) -> f64 {
        share.max(LEAST * self.granted).min(1.0)
    }

    /// Returns `None` if the kernel gives no idle time. Then the thread does not hold back.
    fn look(&self, at: Instant) -> Option<Seen> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let idle = idle_s(&stat, &self.cpus)?;
        Some(Seen { at, idle, thread: thread_cpu().as_secs_f64(), process: process_cpu().as_secs_f64() })
    }
}

/// The idle time of these CPUs, from /proc/stat.
fn idle_s(stat: &str, cpus: &[usize]) -> Option<f64> {
    let mut ticks = 0;
    let lines = stat.lines().skip(1).map_while(|line| line.strip_prefix("cpu"));
    for line in lines {
        let mut fields = line.split_ascii_whitespace().map(|field| field.parse::<u64>().ok());
        let cpu = fields.next()?? as usize;
        if cpus.contains(&cpu) {
            // user, nice, system, idle, iowait
            ticks += fields.nth(3)?? + fields.next()??;
        }
    }
    // The unit of this interface is a hundredth of a second, whatever the kernel's own tick.
    Some(ticks as f64 / 100.0)
}

fn allowed_cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that has taken a snapshot has its former attributes again, and so have threads started later.
    #[test]
    fn a_guard_lowers_the_priority_for_its_lifetime() {
        let slice = || attributes().expect("every kernel of today tells").sched_runtime;
        let before = slice();
        let gives_way = GivesWay::new();
        let meanwhile = slice();
        drop(gives_way);
        assert_eq!(slice(), before);
        // Kernels before 6.12 report zero.
        assert!(before == 0 || meanwhile == SLICE.as_nanos() as u64, "{before} {meanwhile}");
    }

    #[test]
    fn idle_time_counts_the_allowed_cpus() {
        let stat = "cpu  9 9 9 999 9 9 9\ncpu0 1 2 3 400 50 6 7\ncpu1 1 2 3 100 0 6 7\ncpu2 1 1 1 700 1 1\n\
                    intr 5 5\n";
        assert_eq!(idle_s(stat, &[0, 2]), Some(11.51));
        assert_eq!(idle_s(stat, &[1]), Some(1.0));
        assert_eq!(idle_s("cpu 1\ncpu0 1 2\n", &[0]), None);
        assert_eq!(idle_s("cpu 1\ncpux 1 2\n", &[0]), None);
    }

    #[test]
    fn sleep_follows_the_configured_share() {
        let us = Duration::from_micros;
        let none = Duration::ZERO;
        assert_eq!(rest(us(100), none, 0.2, none), (us(400), none));
        assert_eq!(rest(us(100), us(150), 0.2, none), (us(250), none), "some was taken already");
        assert_eq!(rest(us(100), us(900), 0.2, none), (none, none));
        // A long piece is made up for step by step, but not for ever.
        assert_eq!(rest(us(2_000), none, 0.2, none), (SLEEP_MAX, us(3_000)));
        assert_eq!(rest(us(100), none, 0.2, us(3_000)), (us(3_400), none));
        assert_eq!(rest(us(900_000), none, 0.2, none), (SLEEP_MAX, OWED_MAX));
        assert_eq!(rest(us(100), none, 1.0, OWED_MAX), (none, none), "haste comes first");
    }

    #[test]
    fn idle_cpu_may_be_used_and_a_minimum_share() {
        let now = Instant::now();
        let mut share = Share::new(now);
        let granted = share.granted;
        assert!((0.0..=1.0).contains(&share.present));
        assert_eq!(share.bounded(0.0), (LEAST * granted).min(1.0));
        assert_eq!(share.bounded(7.0), 1.0);
        let later = share.at(now + WINDOW);
        assert!(later >= (LEAST * granted).min(1.0));
    }
}
