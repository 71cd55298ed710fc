//! Runs the BPF collectors under a budget, and converts their results to a recording.
//!
//! The kernel measures the programs' run time; the overhead around each run is estimated by the number of
//! runs. If both together exceed `CPU_SHARE_MAX` of a CPU, the programs are detached until the mean is back
//! at that share: a duty cycle. Counts and times are then scaled up to the whole window, and `Health::duty`
//! records it. Blocked time is not scaled: in pauses it is sampled from /proc, which also sees sleeps that
//! are longer than an attached span. /proc's own counters (CPU time, run queue) are exact in any case.
//!
//! On a machine so busy that this process is not scheduled in time, the programs stop by themselves after
//! `LEASE`.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use evenkeel_doctor_bpf::{self as bpf, CallClasses, Capture, Course, Described, Place, Seen};

use super::procfs::{self, InCall};
use super::{calls, descriptors, threads};
use crate::analyse::{IDLE_CALLS, POLLS, RECEIVING};
use crate::recording::{
    Call, Descriptor, Frame, Heat, INTERVAL_ERRORS, KERNEL, Recording, Role, STALL_NS, Sample, Slot, Stall,
    Wait, Waker,
};

/// Samples a second and CPU. 199 does not divide 1,000: work every millisecond is not always or never hit.
const SAMPLES_A_SECOND: u64 = 199;
/// Share of a CPU that the programs may take.
const CPU_SHARE_MAX: f64 = 0.03;
/// Overhead of a run: the slow path into a system call, the trampoline, and two clock reads for the kernel's
/// statistics. With a system call per request, throughput fell by 5% where 2.5% was measured
/// (`benches/cost.rs`).
const RUN_OVERHEAD: Duration = Duration::from_nanos(120);
/// Minimum attached span; shorter spans would be mostly attaching.
const SPAN_MIN: Duration = Duration::from_millis(100);
/// How long the programs handle events without an extension.
const LEASE: Duration = Duration::from_millis(250);
/// Minimum part of the window with attached programs, whatever they cost: else the recording is empty.
const DUTY_MIN: f64 = 0.05;
/// Unaccounted sleep, as a share of the window, from which it is attributed to the thread's current call.
const MISSING_SHARE: f64 = 0.02;

/// A slot of the heat map: 50 a second, as is usual for such maps.
const SLOT: Duration = Duration::from_millis(20);

pub(crate) const OUTSIDE: &str = "outside calls";

pub(crate) struct Collector {
    pid: i32,
    capture: Capture,
    on_since: Option<Instant>,
    /// While attached: when the programs stop by themselves.
    lease_until: Instant,
    on: Duration,
    spans: Vec<AttachedSpan>,
    off_until: Instant,
    /// The call in which each thread sleeps at the end, for sleeps that do not end in the window.
    at_end: HashMap<i32, SleepingCall>,
    passed: Duration,
}

/// A span with attached programs.
#[derive(Debug, Clone, Copy)]
struct AttachedSpan {
    length: Duration,
    /// Runs of the programs up to its end.
    runs: u64,
}

impl Collector {
    pub(crate) fn start(pid: i32, window: Duration) -> Result<Collector> {
        let numbers = |names: &[&str]| {
            (0..calls::NUMBER_MAX as i64)
                .filter(|&n| names.contains(&calls::name(n).as_str()))
                .collect::<Vec<_>>()
        };
        let on_descriptor = calls::on_descriptor();
        let classes = CallClasses {
            on_descriptor: (0..calls::NUMBER_MAX).filter(|&n| on_descriptor[n]).map(|n| n as i64).collect(),
            idle: numbers(IDLE_CALLS),
            polls: numbers(POLLS),
            receives: numbers(RECEIVING),
            futex: calls::FUTEX,
            close: libc::SYS_close,
        };
        let course = Course { window, slot: SLOT, stall: Duration::from_nanos(STALL_NS) };
        let capture = Capture::start(pid, &classes, SAMPLES_A_SECOND, course, LEASE)?;
        let now = Instant::now();
        Ok(Collector {
            pid,
            capture,
            on_since: Some(now),
            lease_until: now + LEASE,
            on: Duration::ZERO,
            spans: Vec::new(),
            off_until: now,
            at_end: HashMap::new(),
            passed: Duration::ZERO,
        })
    }

    /// Enforces the budget: detaches the programs when they exceed it, and attaches them again.
    pub(crate) fn tick(&mut self) -> Result<()> {
        let now = Instant::now();
        match self.on_since {
            Some(since) => {
                let lapsed = now >= self.lease_until;
                let span = now.min(self.lease_until) - since;
                let counted = self.capture.cost();
                let share = cost(counted) / (self.on + span).as_secs_f64();
                if lapsed || (span >= SPAN_MIN && share > CPU_SHARE_MAX) {
                    self.capture.pause();
                    self.add_span(span, counted.runs);
                    self.on_since = None;
                    self.off_until = now + off_time(span, share);
                } else {
                    self.capture.extend(LEASE)?;
                    self.lease_until = now + LEASE;
                }
            }
            None if now >= self.off_until => {
                self.capture.resume(LEASE)?;
                let now = Instant::now();
                self.on_since = Some(now);
                self.lease_until = now + LEASE;
            }
            None => {}
        }
        Ok(())
    }

    fn add_span(&mut self, length: Duration, runs: u64) {
        self.on += length;
        self.spans.push(AttachedSpan { length, runs });
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.on_since.is_none()
    }

    pub(crate) fn stop(&mut self, passed: Duration) {
        if let Some(since) = self.on_since.take() {
            let span = Instant::now().min(self.lease_until).saturating_duration_since(since);
            self.add_span(span, self.capture.cost().runs);
        }
        self.capture.pause();
        self.at_end = sleeps(self.pid);
        self.passed = passed;
    }

    pub(crate) fn fill(self, recording: &mut Recording) -> Result<()> {
        ensure!(!self.on.is_zero(), "the programs were never on");
        let duty = (self.on.as_secs_f64() / self.passed.as_secs_f64().max(1e-9)).min(1.0);
        let seen = self.capture.finish();
        let scale = Scale(1.0 / duty);
        fill_health(recording, &seen, duty);
        recording.health.scale_error = scale_error(&self.spans, duty);
        add_descriptors(recording, &seen);
        let in_pauses = std::mem::take(&mut recording.calls);
        recording.calls = seen.calls.iter().map(|call| convert_call(call, scale)).collect();
        recording.samples = seen
            .samples
            .iter()
            .map(|s| Sample {
                tid: s.tid,
                stack: s.stack,
                count: scale.up(s.count),
                call: in_call(s.place, false),
                fd: s.fd,
                late: s.late,
            })
            .collect();
        recording.waits = seen
            .waits
            .iter()
            .map(|w| Wait {
                tid: w.tid,
                stack: w.stack,
                call: in_call(w.place, w.lock),
                fd: w.fd,
                address: w.address,
                count: scale.up(w.count),
                blocked_ns: scale.up(w.blocked_ns),
                longest_ns: w.longest_ns,
            })
            .collect();
        recording.wakers = seen
            .wakers
            .iter()
            .map(|w| Waker {
                tid: w.tid,
                call: in_call(w.place, false),
                waker_tid: w.waker_tid,
                waker_pid: w.waker_pid,
                waker_name: w.waker_name.clone(),
                count: scale.up(w.count),
                across: scale.up(w.across),
                slept_ns: scale.up(w.slept_ns),
            })
            .collect();
        recording.stalls = seen.stalls.iter().map(convert_stall).collect();
        let slots = seen.slots.iter().map(convert_slot).collect();
        recording.heat = Heat { slot_ns: seen.slot_ns, slots };
        recording.frames = seen.frames.into_iter().map(convert_frame).collect();
        recording.stacks = seen.stacks;
        add_sleep_in_pauses(recording, in_pauses);
        add_missing_sleep(recording, &self.at_end);
        add_open_waits(recording, &self.at_end);
        Ok(())
    }
}

/// CPU seconds of the programs, overhead included.
fn cost(counted: bpf::Cost) -> f64 {
    counted.time.as_secs_f64() + RUN_OVERHEAD.as_secs_f64() * counted.runs as f64
}

/// How long to stay detached after `on`, so that the mean share is `CPU_SHARE_MAX`.
fn off_time(on: Duration, share: f64) -> Duration {
    let duty = (CPU_SHARE_MAX / share).clamp(DUTY_MIN, 1.0);
    on.mul_f64(1.0 / duty - 1.0)
}

/// The 95% error of a scaled count, as a part of the count: pieces of the window differ, and the pauses
/// between them were not observed. This is a ratio estimate over the sampled pieces, with finite population
/// correction.
fn scale_error(spans: &[AttachedSpan], duty: f64) -> Option<f64> {
    let runs = |index: usize| spans[index].runs - if index == 0 { 0 } else { spans[index - 1].runs };
    let all_runs = spans.last()?.runs as f64;
    if spans.len() < 2 || all_runs == 0.0 || duty >= 0.999 {
        return None;
    }
    let on: f64 = spans.iter().map(|span| span.length.as_secs_f64()).sum();
    let residual = |index: usize| runs(index) as f64 - all_runs / on * spans[index].length.as_secs_f64();
    let squares: f64 = (0..spans.len()).map(|index| residual(index).powi(2)).sum();
    let count = spans.len() as f64;
    Some(INTERVAL_ERRORS * ((1.0 - duty) * count / (count - 1.0) * squares).sqrt() / all_runs)
}

#[derive(Clone, Copy)]
struct Scale(f64);

impl Scale {
    fn up(self, value: u64) -> u64 {
        if self.0 <= 1.001 { value } else { (value as f64 * self.0) as u64 }
    }
}

/// A sleep in progress.
#[derive(Debug)]
struct SleepingCall {
    call: String,
    fd: Option<i32>,
    /// The kernel's functions, the innermost first. Empty for waits for work, and without privileges.
    kernel: Vec<String>,
}

/// Returns the sleep in which each thread is now.
fn sleeps(pid: i32) -> HashMap<i32, SleepingCall> {
    let on_descriptor = calls::on_descriptor();
    let asleep = |tid: i32| {
        let text = procfs::read(procfs::task_path(pid, tid, "syscall"))?;
        let InCall::Call { number, arguments } = procfs::parse_syscall(&text)? else { return None };
        let (call, fd) = threads::place(&on_descriptor, number, arguments);
        let works = !IDLE_CALLS.contains(&call.as_str());
        let stack = works.then(|| procfs::read(procfs::task_path(pid, tid, "stack"))).flatten();
        Some((tid, SleepingCall { call, fd, kernel: procfs::parse_stack(&stack.unwrap_or_default()) }))
    };
    procfs::threads(pid).into_iter().filter_map(asleep).collect()
}

/// The name of a call; `None` outside of calls.
fn in_call(place: Place, lock: bool) -> Option<String> {
    (place != Place::Outside).then(|| name_of(place, lock))
}

fn name_of(place: Place, lock: bool) -> String {
    match place {
        Place::Call(calls::FUTEX) if lock => calls::FUTEX_LOCK.to_string(),
        Place::Call(number) => calls::name(number),
        Place::Outside => OUTSIDE.to_string(),
    }
}

fn convert_call(call: &bpf::Call, scale: Scale) -> Call {
    let cpu_ns = call.wall_ns.saturating_sub(call.blocked_ns).saturating_sub(call.queued_ns);
    Call {
        tid: call.tid,
        name: name_of(call.place, call.lock),
        fd: call.fd,
        count: Some(scale.up(call.count)),
        cpu_ns: scale.up(cpu_ns),
        blocked_ns: call.blocked_ns, // in pauses, blocked time is sampled
        run_queue_ns: scale.up(call.queued_ns),
        longest_ns: call.longest_ns,
        bytes: scale.up(call.bytes),
        errors: scale.up(call.errors),
        would_block: scale.up(call.would_block),
        sleeps_short: scale.up(call.sleeps_short),
        sleeps: scale.up(call.sleeps),
    }
}

fn convert_stall(stall: &bpf::Stall) -> Stall {
    Stall {
        tid: stall.tid,
        at_ns: stall.at_ns,
        length_ns: stall.length_ns,
        blocked_ns: stall.blocked_ns,
        run_queue_ns: stall.queued_ns,
        call: (stall.call_ns > 0).then(|| name_of(stall.place, false)),
        fd: stall.fd,
        call_ns: stall.call_ns,
    }
}

fn convert_slot(slot: &bpf::Slot) -> Slot {
    Slot {
        samples: slot.samples,
        blocked_ns: slot.blocked_ns,
        run_queue_ns: slot.queued_ns,
        seen_ns: slot.seen_ns,
    }
}

pub(crate) fn convert_frame(frame: bpf::Frame) -> Frame {
    Frame { name: frame.name, module: frame.module, unnamed: frame.unnamed }
}

fn fill_health(recording: &mut Recording, seen: &Seen, duty: f64) {
    let health = &mut recording.health;
    health.kernel_ns = seen.cost.time.as_nanos() as u64;
    health.kernel_runs = seen.cost.runs;
    health.events_lost = seen.lost;
    health.stacks = seen.stacks_walked;
    health.stacks_complete = seen.stacks_complete;
    health.duty = duty;
    health.notes.extend(seen.notes.iter().cloned());
}

/// Adds descriptors that lived too briefly for /proc, such as short connections.
fn add_descriptors(recording: &mut Recording, seen: &Seen) {
    let mut known: HashSet<i32> = recording.descriptors.iter().map(|d| d.fd).collect();
    let listeners = recording.descriptors.iter().filter(|d| d.role == Role::Listener);
    let ports: HashSet<String> =
        listeners.filter_map(|d| Some(d.what.rsplit_once(':')?.1.to_string())).collect();
    // A number may be reused: the object with the most time wins.
    let mut calls: Vec<&bpf::Call> = seen.calls.iter().collect();
    calls.sort_by_key(|call| std::cmp::Reverse(call.wall_ns));
    for call in calls {
        let (Some(fd), Some(described)) = (call.fd, &call.descriptor) else { continue };
        if known.insert(fd) {
            recording.descriptors.push(from_described(fd, described, &ports));
        }
    }
    recording.descriptors.sort_by_key(|d| d.fd);
}

fn from_described(fd: i32, described: &Described, ports: &HashSet<String>) -> Descriptor {
    let (role, what) = match described {
        Described::File(name) => (descriptors::role_of_file(name), name.clone()),
        Described::OtherSocket => (Role::UnixSocket, "a socket that was closed".to_string()),
        Described::Tcp { listens: true, local_port, .. } => (Role::Listener, format!("port {local_port}")),
        Described::Tcp { local_port, peer_port, peer_ip4, .. } => {
            let inbound = ports.contains(&local_port.to_string());
            let peer = peer_ip4.map_or_else(|| "?".to_string(), |[a, b, c, d]| format!("{a}.{b}.{c}.{d}"));
            let arrow = if inbound { "<-" } else { "->" };
            let role = if inbound { Role::Client } else { Role::Outbound };
            (role, format!("port {local_port} {arrow} {peer}:{peer_port}"))
        }
    };
    Descriptor { fd, role, what, peer: None, disk: None }
}

/// Adds the sleeps of pauses, sampled from /proc: sleeps longer than an attached span are seen nowhere else.
fn add_sleep_in_pauses(recording: &mut Recording, sampled: Vec<Call>) {
    for sleep in sampled {
        let same = |call: &&mut Call| call.tid == sleep.tid && call.name == sleep.name && call.fd == sleep.fd;
        match recording.calls.iter_mut().find(same) {
            Some(call) => {
                call.blocked_ns += sleep.blocked_ns;
                call.longest_ns = call.longest_ns.max(sleep.longest_ns);
            }
            None => recording.calls.push(Call { count: Some(0), ..sleep }),
        }
    }
}

/// Attributes time that neither an event nor a sample covers to the thread's current call. Such gaps occur
/// when this process was not scheduled.
fn add_missing_sleep(recording: &mut Recording, at_end: &HashMap<i32, SleepingCall>) {
    let mut blocked: HashMap<i32, u64> = HashMap::new();
    for call in &recording.calls {
        *blocked.entry(call.tid).or_default() += call.blocked_ns;
    }
    for thread in &recording.threads {
        let accounted = thread.cpu_ns + thread.run_queue_ns + blocked.get(&thread.tid).copied().unwrap_or(0);
        let missing = recording.window_ns.saturating_sub(accounted);
        let Some(asleep) = at_end.get(&thread.tid) else { continue };
        if (missing as f64) < MISSING_SHARE * recording.window_ns as f64 {
            continue;
        }
        let same = |c: &&mut Call| c.tid == thread.tid && c.name == asleep.call && c.fd == asleep.fd;
        match recording.calls.iter_mut().find(same) {
            Some(call) => call.blocked_ns += missing,
            None => recording.calls.push(Call {
                tid: thread.tid,
                name: asleep.call.clone(),
                fd: asleep.fd,
                count: Some(0),
                blocked_ns: missing,
                longest_ns: missing,
                ..Call::default()
            }),
        }
    }
}

/// Adds waits that last beyond the window. The stack of a sleep is taken when its call returns; until then
/// there is only the kernel's part.
fn add_open_waits(recording: &mut Recording, at_end: &HashMap<i32, SleepingCall>) {
    for (&tid, asleep) in at_end.iter().filter(|(_, asleep)| !asleep.kernel.is_empty()) {
        let here = |other: i32, call: Option<&str>, fd| {
            other == tid && call == Some(&asleep.call) && fd == asleep.fd
        };
        let calls = recording.calls.iter().filter(|call| here(call.tid, Some(&call.name), call.fd));
        let (all, longest_ns) =
            calls.fold((0, 0), |(sum, longest), call| (sum + call.blocked_ns, call.longest_ns.max(longest)));
        let waits = recording.waits.iter().filter(|wait| here(wait.tid, wait.call.as_deref(), wait.fd));
        let blocked_ns = all.saturating_sub(waits.map(|wait| wait.blocked_ns).sum());
        if (blocked_ns as f64) < MISSING_SHARE * recording.window_ns as f64 {
            continue;
        }
        let mut stack = Vec::new();
        for name in &asleep.kernel {
            let frame = Frame { name: name.clone(), module: KERNEL.to_string(), unnamed: None };
            let known = recording.frames.iter().position(|other| *other == frame);
            stack.push(known.unwrap_or(recording.frames.len()) as u32);
            if known.is_none() {
                recording.frames.push(frame);
            }
        }
        recording.stacks.push(stack);
        recording.waits.push(Wait {
            tid,
            stack: recording.stacks.len() as u32 - 1,
            call: Some(asleep.call.clone()),
            fd: asleep.fd,
            address: None,
            count: 1,
            blocked_ns,
            longest_ns,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_spans_make_a_count_less_certain() {
        let spans = |runs: &[u64]| {
            let sums = runs.iter().scan(0, |sum, runs| {
                *sum += runs;
                Some(AttachedSpan { length: Duration::from_millis(100), runs: *sum })
            });
            sums.collect::<Vec<_>>()
        };
        assert!(scale_error(&spans(&[100; 10]), 0.2).expect("it was scaled") < 1e-9);
        let error = scale_error(&spans(&[50, 150, 50, 150]), 0.2).expect("it was scaled");
        // The standard deviation is 57.7% of the mean; four pieces are a fifth of all.
        assert!((error - 1.96 * 0.577 / 2.0 * 0.8_f64.sqrt()).abs() < 0.001, "{error}");
        assert!(scale_error(&spans(&[50, 150, 50, 150, 50, 150, 50, 150]), 0.2).expect("too") < error);
        assert_eq!(scale_error(&spans(&[50, 150]), 1.0), None, "all of it was seen");
        assert_eq!(scale_error(&spans(&[100]), 0.2), None, "one piece tells nothing of others");
        assert_eq!(scale_error(&[], 0.2), None);
    }

    #[test]
    fn time_off_brings_the_mean_down_to_the_goal() {
        let on = Duration::from_millis(250);
        let off = off_time(on, 2.0 * CPU_SHARE_MAX);
        assert!((off.as_secs_f64() - 0.25).abs() < 1e-6, "{off:?}");
        assert_eq!(off_time(on, CPU_SHARE_MAX / 2.0), Duration::ZERO);
        assert!(off_time(on, 100.0) < Duration::from_secs(5), "never off for good");
    }
}
