//! Threads by /proc: exact counters at both ends of the window, and states a hundred times a second between.
//!
//! The counters (`schedstat`, `status`) are the kernel's own. Sleeps are sampled: `syscall` shows the
//! thread's call and its arguments, so blocked time has a descriptor also without kernel privileges. If the
//! thread has not run since the sample before, both samples show the same sleep; this gives the length of
//! long sleeps. A sample costs a few
//! microseconds per thread, and the interval grows with it, so that sampling takes at most 2% of a CPU.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::calls::{self, FUTEX, FUTEX_LOCK};
use super::procfs::{self, InCall};
use crate::analyse::IDLE_CALLS;
use crate::recording::{Call, Thread};

/// Minimum time between samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);
/// A sample may take this part of the time until the next.
const SAMPLE_COST_FACTOR: u32 = 50;
/// Threads per sample. If there are more, each sample continues with the next threads.
const THREADS_MAX: usize = 512;

/// Returns the counters of a thread since its start.
fn counters(pid: i32, tid: i32) -> Option<Thread> {
    let read = |rest| procfs::read(procfs::task_path(pid, tid, rest));
    let stat = procfs::parse_stat(&read("stat")?)?;
    // Kernels without CONFIG_SCHED_INFO have no schedstat: CPU time is then in ticks, and run queue time is
    // unknown.
    let schedstat = read("schedstat").and_then(|text| procfs::parse_schedstat(&text));
    let (cpu_ns, run_queue_ns, _) = schedstat.unwrap_or((stat.user_ns + stat.system_ns, 0, 0));
    let status = read("status").unwrap_or_default();
    let field = |name| procfs::status_field(&status, name).and_then(|text| text.parse().ok()).unwrap_or(0);
    Some(Thread {
        tid,
        name: stat.name,
        cpu_ns,
        system_ns: stat.system_ns,
        run_queue_ns,
        switches_voluntary: field("voluntary_ctxt_switches"),
        switches_involuntary: field("nonvoluntary_ctxt_switches"),
        faults_minor: stat.faults_minor,
        faults_major: stat.faults_major,
        ..Thread::default()
    })
}

/// The samples of a thread's sleeps.
#[derive(Debug, Default)]
struct SleepSamples {
    samples: u64,
    uninterruptible: u64,
    asleep_ns: BTreeMap<At, u64>,
    longest_ns: BTreeMap<At, u64>,
    sleep: Option<Sleep>,
}

/// A call and its descriptor.
type At = (String, Option<i32>);

/// A sleep in progress.
#[derive(Debug)]
struct Sleep {
    at: At,
    /// How often the thread had got a CPU.
    runs: u64,
    since: Instant,
}

impl SleepSamples {
    /// Records a sleep, which may be the sleep of the last sample.
    fn is_asleep(&mut self, at: &At, runs: u64) {
        let same = self.sleep.as_ref().filter(|sleep| sleep.runs == runs && sleep.at == *at);
        let Some(sleep) = same else {
            self.sleep = Some(Sleep { at: at.clone(), runs, since: Instant::now() });
            return;
        };
        let length = sleep.since.elapsed().as_nanos() as u64;
        let longest = self.longest_ns.entry(at.clone()).or_default();
        *longest = length.max(*longest);
    }
}

#[derive(Debug)]
pub(crate) struct Watch {
    pid: i32,
    begin: HashMap<i32, Thread>,
    seen: HashMap<i32, SleepSamples>,
    on_descriptor: [bool; calls::NUMBER_MAX],
    last_sample: Instant,
    next_thread: usize,
    pub(crate) samples: u64,
    /// `syscall` could not be read: sleeps have no name.
    pub(crate) refused: bool,
    /// CPU time of the whole process up to `begin`, ended threads included.
    begin_cpu_ns: u64,
}

impl Watch {
    pub(crate) fn begin(pid: i32) -> Watch {
        let tids = procfs::threads(pid);
        Watch {
            pid,
            begin: tids.into_iter().filter_map(|tid| Some((tid, counters(pid, tid)?))).collect(),
            seen: HashMap::new(),
            on_descriptor: calls::on_descriptor(),
            last_sample: Instant::now(),
            next_thread: 0,
            samples: 0,
            refused: false,
            begin_cpu_ns: cpu_of_all(pid),
        }
    }

    /// Samples the states of threads, and returns the time until the next sample.
    pub(crate) fn sample(&mut self) -> Duration {
        let start = Instant::now();
        let tids = procfs::threads(self.pid);
        let rounds = tids.len().div_ceil(THREADS_MAX).max(1);
        // Each thread's sample stands for the time since the last sample, times the samples until the
        // thread's next turn.
        let passed = start.duration_since(self.last_sample).as_nanos() as u64 * rounds as u64;
        self.last_sample = start;
        self.samples += 1;
        let count = tids.len().min(THREADS_MAX);
        for index in 0..count {
            self.sample_thread(tids[(self.next_thread + index) % tids.len()], passed);
        }
        self.next_thread = if tids.is_empty() { 0 } else { (self.next_thread + count) % tids.len() };
        SAMPLE_INTERVAL.max(start.elapsed() * SAMPLE_COST_FACTOR)
    }

    /// Drops the time since the last sample: another collector accounts for it.
    pub(crate) fn skip(&mut self) {
        self.last_sample = Instant::now();
    }

    fn sample_thread(&mut self, tid: i32, passed: u64) {
        let Some(stat) = procfs::read(procfs::task_path(self.pid, tid, "stat")) else { return };
        let Some(stat) = procfs::parse_stat(&stat) else { return };
        let seen = self.seen.entry(tid).or_default();
        seen.samples += 1;
        seen.uninterruptible += u64::from(stat.state == 'D');
        if stat.state == 'R' {
            return;
        }
        let text = procfs::read(procfs::task_path(self.pid, tid, "syscall"));
        // A thread that has ended since is not a refusal.
        self.refused |= text.is_none() && procfs::read(procfs::task_path(self.pid, tid, "stat")).is_some();
        let place = match text.and_then(|text| procfs::parse_syscall(&text)) {
            Some(InCall::Running) => return, // woke up between both reads
            Some(InCall::Elsewhere) => ("page fault".to_string(), None),
            Some(InCall::Call { number, arguments }) => place(&self.on_descriptor, number, arguments),
            None => ("asleep".to_string(), None),
        };
        // The length of waits for work is not needed.
        if !IDLE_CALLS.contains(&place.0.as_str()) {
            let text = procfs::read(procfs::task_path(self.pid, tid, "schedstat"));
            if let Some((_, _, runs)) = text.and_then(|text| procfs::parse_schedstat(&text)) {
                seen.is_asleep(&place, runs);
            }
        }
        *seen.asleep_ns.entry(place).or_default() += passed;
    }

    /// Returns the threads that still run, over the window; the samples of their sleeps; and the CPU time of
    /// ended threads.
    pub(crate) fn end(&self) -> (Vec<Thread>, Vec<Call>, u64) {
        let mut threads = Vec::new();
        let mut calls = Vec::new();
        for tid in procfs::threads(self.pid) {
            let Some(end) = counters(self.pid, tid) else { continue };
            let begin = self.begin.get(&tid).cloned().unwrap_or_default();
            let mut thread = difference(&begin, end);
            if let Some(seen) = self.seen.get(&tid) {
                thread.seen = seen.samples;
                thread.seen_uninterruptible = seen.uninterruptible;
                let longest = |at: &At| seen.longest_ns.get(at).copied().unwrap_or(0);
                calls.extend(seen.asleep_ns.iter().map(|(at, &ns)| sampled(tid, at, ns, longest(at))));
            }
            threads.push(thread);
        }
        let of_threads: u64 = threads.iter().map(|thread| thread.cpu_ns).sum();
        let ended_ns = cpu_of_all(self.pid).saturating_sub(self.begin_cpu_ns + of_threads);
        (threads, calls, ended_ns)
    }
}

/// CPU time of a process, ended threads included; zero if unreadable.
fn cpu_of_all(pid: i32) -> u64 {
    let stat = procfs::read(procfs::path(pid, "stat")).and_then(|text| procfs::parse_stat(&text));
    stat.map_or(0, |stat| stat.user_ns + stat.system_ns)
}

/// Returns the name of a call, and its descriptor.
pub(crate) fn place(
    on_descriptor: &[bool; calls::NUMBER_MAX],
    number: i64,
    arguments: [u64; 6],
) -> (String, Option<i32>) {
    if number == FUTEX && calls::is_lock_wait(arguments[1], arguments[2]) {
        return (FUTEX_LOCK.to_string(), None);
    }
    let has_fd = usize::try_from(number).is_ok_and(|index| on_descriptor.get(index) == Some(&true));
    (calls::name(number), has_fd.then_some(arguments[0] as i32))
}

fn sampled(tid: i32, at: &At, blocked_ns: u64, longest_ns: u64) -> Call {
    Call { tid, name: at.0.clone(), fd: at.1, blocked_ns, longest_ns, ..Call::default() }
}

fn difference(begin: &Thread, end: Thread) -> Thread {
    Thread {
        cpu_ns: end.cpu_ns.saturating_sub(begin.cpu_ns),
        system_ns: end.system_ns.saturating_sub(begin.system_ns),
        run_queue_ns: end.run_queue_ns.saturating_sub(begin.run_queue_ns),
        switches_voluntary: end.switches_voluntary.saturating_sub(begin.switches_voluntary),
        switches_involuntary: end.switches_involuntary.saturating_sub(begin.switches_involuntary),
        faults_minor: end.faults_minor.saturating_sub(begin.faults_minor),
        faults_major: end.faults_major.saturating_sub(begin.faults_major),
        ..end
    }
}
