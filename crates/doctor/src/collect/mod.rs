//! Collection: the only part with privileges, and the only part that touches the target's machine.
//!
//! The available mechanism decides the tier: BPF programs if they load (`kernel.rs`), else perf (`perf.rs`),
//! else /proc alone. Each missing mechanism is noted in the recording, with its reason. This module draws no
//! conclusions.

mod calls;
mod cgroup;
mod chain;
mod descriptors;
mod diag;
mod disks;
mod host;
mod in_hand;
#[cfg(feature = "bpf")]
mod kernel;
#[cfg(feature = "bpf")]
mod perf;
pub(crate) mod probes;
mod procfs;
mod reply;
mod runtimes;
mod server_query;
mod sockets;
pub(crate) mod target;
mod threads;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail};

use crate::recording::{
    Answer, Call, Counter, Descriptor, Forks, Health, Heat, Host, Memory, Recording, Role, States, Thread,
    Throttling, Tier,
};
use target::FoundProcess;

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) seconds: f64,
    /// Load no BPF programs, even if they are available.
    #[cfg_attr(not(feature = "bpf"), expect(dead_code, reason = "there is nothing to leave out"))]
    pub(crate) no_bpf: bool,
    /// Use /proc alone, even if more is available.
    pub(crate) proc_only: bool,
    /// Ask a server of the Redis family which clients are replicas.
    pub(crate) ask: bool,
    pub(crate) password: Option<String>,
}

/// Maximum step of the loop, so that Ctrl-C and the end of the target are noticed soon.
const STEP_MAX: Duration = Duration::from_millis(100);

/// Names of programs that a recording keeps.
const CHILDREN_MAX: usize = 20;

/// State of the progress line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) passed: Duration,
    pub(crate) length: Duration,
    pub(crate) tier: Tier,
}

/// Records the target for a window; `stop` ends the window early.
pub(crate) fn capture(
    found: &FoundProcess,
    options: &Options,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Recording> {
    let pid = found.pid;
    let target = target::describe(pid);
    let mut notes = Vec::new();
    let (mut descriptors, locals) = descriptors::describe_all(pid, &target.name);
    let server = server_query::server(pid, &descriptors, &target.name, options.password.as_deref());
    let server = server.filter(|_| options.ask);
    let clients_before = server.as_ref().map(|server| server.name_replicas(&mut descriptors, &mut notes));
    // Before counting starts: a hanging server does not reply.
    let info_before = server.as_ref().and_then(server_query::Server::info);
    let mut inside = Inside::start(pid, options, &mut notes);
    let tasks = runtimes::Watch::begin(pid);
    let mut window = Window::begin(pid, locals);
    let length = Duration::from_secs_f64(options.seconds);
    let end = Instant::now() + length;
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        if !found.is_alive() {
            let passed = window.start.elapsed().as_secs_f64();
            bail!(
                "process {pid} ({}) ended after {passed:.1} s of {}: too early to say",
                target.name,
                options.seconds
            );
        }
        inside.tick()?;
        let left = end.saturating_duration_since(Instant::now());
        let pause = window.step(!inside.sees_sleeps()).min(STEP_MAX).min(left);
        progress(Progress { passed: window.start.elapsed(), length, tier: inside.tier() });
        std::thread::sleep(pause);
    }
    let passed = window.start.elapsed();
    let end = window.close();
    let runtime = tasks.and_then(runtimes::Watch::end);
    inside.stop(passed);
    // A stopped process replies to nobody.
    let is_stopped = procfs::stat(pid).is_some_and(|stat| matches!(stat.state, 'T' | 't'));
    let replies = match server.as_ref().filter(|_| !is_stopped) {
        Some(server) => server.at_the_end(window.taken),
        None => server_query::AtTheEnd::default(),
    };
    let questions = server.as_ref().map_or(0, server_query::Server::commands_each);
    let info = info_before.as_ref().zip(replies.info.as_ref());
    merge_descriptors(&mut descriptors, descriptors::describe_all(pid, &target.name).0);
    let mut recording = window.end(passed, end);
    if let Some((before, after)) = info {
        recording.forks = before.forks.zip(after.forks).map(|(before, after)| Forks {
            count: after.count.saturating_sub(before.count),
            latest_ns: after.latest_ns,
        });
        recording.own_count = after.since(before, questions);
        recording.commands = after.commands_since(before);
    }
    (recording.slow_commands, recording.answer) = (replies.slow_commands, replies.answer);
    recording.memory = memory(pid);
    recording.runtime = runtime;
    // Without the first list, the counts are those since each connection's begin.
    if let Some(before) = clients_before.filter(|before| !before.is_empty()) {
        recording.clients = server_query::busiest(&before, &replies.clients);
    }
    recording.target = target;
    disks::name(pid, &mut descriptors);
    recording.descriptors = descriptors;
    recording.tier = inside.tier();
    recording.health.notes.splice(0..0, notes);
    inside.fill(&mut recording)?;
    // BPF sees every sleep as an event, whatever /proc shows.
    recording.health.sleeps_hidden &= recording.tier != Tier::T0;
    Ok(recording)
}

fn memory(pid: i32) -> Memory {
    let status = procfs::read(procfs::path(pid, "status")).unwrap_or_default();
    let bytes = |name| {
        let kib = procfs::status_field(&status, name)?.split(' ').next()?.parse::<u64>().ok()?;
        Some(kib << 10)
    };
    Memory {
        resident_bytes: bytes("VmRSS").unwrap_or(0),
        swapped_bytes: bytes("VmSwap").unwrap_or(0),
        limit: cgroup::memory_limit(pid),
    }
}

/// Adds descriptors that were opened during the window; for a reused number, the descriptor from the
/// beginning wins.
fn merge_descriptors(descriptors: &mut Vec<Descriptor>, later: Vec<Descriptor>) {
    let known: HashMap<i32, ()> = descriptors.iter().map(|d| (d.fd, ())).collect();
    descriptors.extend(later.into_iter().filter(|d| !known.contains_key(&d.fd)));
    descriptors.sort_by_key(|d| d.fd);
}

/// Counters at the end of a window.
struct Counted {
    threads: Vec<Thread>,
    calls: Vec<Call>,
    ended_cpu_ns: u64,
    throttling: Option<Throttling>,
    host: Host,
    counters: Vec<Counter>,
}

/// The collectors on /proc, over a window.
struct Window {
    pid: i32,
    start: Instant,
    taken: SystemTime,
    own_cpu: Duration,
    threads: threads::Watch,
    sockets: sockets::Watch,
    groups: cgroup::Watch,
    host: host::Watch,
    disks: disks::Watch,
    states: States,
    /// Child processes at the begin of the window.
    children_before: Vec<i32>,
    /// Whether threads were sampled in the last step.
    samples_threads: bool,
    next_threads: Instant,
    next_sockets: Instant,
}

impl Window {
    fn begin(pid: i32, locals: Vec<descriptors::Local>) -> Window {
        let host = host::Watch::begin(pid);
        let groups = cgroup::Watch::begin(pid);
        // Both ends read the threads in the same order, so the time between the two reads of each is the
        // window's length.
        let now = Instant::now();
        let threads = threads::Watch::begin(pid);
        Window {
            pid,
            start: now,
            taken: SystemTime::now(),
            own_cpu: own_cpu(),
            threads,
            sockets: sockets::Watch::begin(pid, locals),
            groups,
            host,
            disks: disks::Watch::begin(),
            states: States::default(),
            children_before: procfs::children(pid),
            samples_threads: false,
            next_threads: now,
            next_sockets: now,
        }
    }

    /// Takes the samples that are due, and returns the time until the next.
    fn step(&mut self, sample_threads: bool) -> Duration {
        // The time up to now was not sampled: the first sample after it must not account for it.
        let sampled_before = std::mem::replace(&mut self.samples_threads, sample_threads);
        if !sample_threads || !sampled_before {
            self.threads.skip();
        } else if Instant::now() >= self.next_threads {
            self.next_threads = Instant::now() + self.threads.sample();
        }
        if Instant::now() >= self.next_sockets {
            // CPU time: on a busy machine a sample takes longer, but costs no more.
            let start = own_cpu();
            self.see_state();
            let owned = descriptors::owned_sockets(self.pid);
            let listed = own_cpu().saturating_sub(start) * sockets::SAMPLE_COST_FACTOR;
            self.next_sockets = Instant::now() + self.sockets.sample(&owned).max(listed);
        }
        let next = if sample_threads { self.next_threads.min(self.next_sockets) } else { self.next_sockets };
        next.saturating_duration_since(Instant::now())
    }

    fn see_state(&mut self) {
        let Some(stat) = procfs::stat(self.pid) else { return };
        self.states.seen += 1;
        self.see_children();
        self.see_title(&stat.name);
        if matches!(stat.state, 'T' | 't') {
            self.states.stopped += 1;
            let status = procfs::read(procfs::path(self.pid, "status")).unwrap_or_default();
            let tracer = procfs::status_field(&status, "TracerPid").and_then(|text| text.parse().ok());
            let tracer = tracer.filter(|pid| *pid > 0).and_then(|pid: i32| Some((pid, procfs::stat(pid)?)));
            self.states.tracer = tracer.map(|(pid, stat)| format!("{} {pid}", stat.name));
        }
    }

    /// A session of PostgreSQL writes the running command's name into its title, and whether it waits for a
    /// lock.
    fn see_title(&mut self, name: &str) {
        if name != "postgres" {
            return;
        }
        let title = procfs::read(procfs::path(self.pid, "cmdline")).unwrap_or_default();
        let title = title.trim_end_matches(['\0', ' ']);
        let executes = title.starts_with("postgres: ")
            && title.contains(['(', '[']) // the client's address: not one of the server's own processes
            && !title.ends_with("idle")
            && !title.contains("idle in transaction");
        if executes {
            let seen = self.states.title.as_ref().map_or(0, |(_, seen)| *seen) + 1;
            self.states.title = Some((title.to_string(), seen));
        }
    }

    /// Counts programs that were started in the window: the processes of a pool stay.
    fn see_children(&mut self) {
        let mut now = Vec::new();
        for child in procfs::children(self.pid) {
            if self.children_before.contains(&child) {
                continue;
            }
            let Some(stat) = procfs::stat(child) else { continue };
            now.push(stat.name);
        }
        now.sort_unstable();
        now.dedup();
        let known = &mut self.states.children;
        for name in now {
            match known.iter().position(|(other, _)| *other == name) {
                Some(index) => known[index].1 += 1,
                None if known.len() < CHILDREN_MAX => known.push((name, 1)),
                None => {}
            }
        }
        known.sort_by_key(|(_, seen)| std::cmp::Reverse(*seen));
    }

    /// Reads the running counters as soon as the window is over.
    fn close(&self) -> Counted {
        let (threads, calls, ended_cpu_ns) = self.threads.end();
        let throttling = self.groups.end();
        let (host, counters) = self.host.end();
        Counted { threads, calls, ended_cpu_ns, throttling, host, counters }
    }

    fn end(mut self, passed: Duration, end: Counted) -> Recording {
        let Counted { threads, calls, ended_cpu_ns, throttling, host, counters } = end;
        // Drops are counted between samples, however long these take on a busy machine.
        self.sockets.sample(&descriptors::owned_sockets(self.pid));
        let own_cpu_ns = own_cpu().saturating_sub(self.own_cpu).as_nanos() as u64;
        let notes = [
            self.threads
                .refused
                .then(|| "sleeps of threads are hidden: not the same user, and not root".to_string()),
            self.sockets.note.clone(),
        ];
        let looks = self.threads.samples;
        let sockets::Ended { listeners, sockets, segments, in_hand, moments } = self.sockets.end();
        Recording {
            made_by: format!("evenkeel-doctor {}", env!("CARGO_PKG_VERSION")),
            taken_unix_s: self.taken.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            tier: Tier::T3,
            window_ns: passed.as_nanos() as u64,
            host,
            target: crate::recording::Target::default(),
            threads,
            calls,
            samples: Vec::new(),
            waits: Vec::new(),
            wakers: Vec::new(),
            stalls: Vec::new(),
            heat: Heat::default(),
            stacks: Vec::new(),
            frames: Vec::new(),
            descriptors: Vec::new(),
            listeners,
            sockets,
            segments,
            in_hand,
            moments,
            runtime: None,
            throttling,
            disks: self.disks.end(),
            forks: None,
            own_count: None,
            answer: Answer::NotAsked,
            states: self.states,
            memory: Memory::default(),
            commands: Vec::new(),
            slow_commands: Vec::new(),
            clients: Vec::new(),
            counters,
            health: Health {
                notes: notes.into_iter().flatten().collect(),
                own_cpu_ns,
                duty: 1.0,
                sleeps_hidden: self.threads.refused,
                descriptors_hidden: std::fs::read_dir(procfs::path(self.pid, "fd")).is_err(),
                ended_cpu_ns,
                looks,
                look_ns: passed.as_nanos() as u64 / looks.max(1),
                ..Health::default()
            },
        }
    }
}

/// User and system time of this process so far.
fn own_cpu() -> Duration {
    // SAFETY: zeroes are a valid `rusage`, and the call fills the structure.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let time = |t: libc::timeval| Duration::new(t.tv_sec.max(0) as u64, t.tv_usec.max(0) as u32 * 1_000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// The best available collectors beside /proc.
enum Inside {
    #[cfg(feature = "bpf")]
    Kernel(Box<kernel::Collector>),
    #[cfg(feature = "bpf")]
    Perf(Box<perf::Collector>),
    Nothing,
}

impl Inside {
    fn start(pid: i32, options: &Options, notes: &mut Vec<String>) -> Inside {
        if options.proc_only {
            notes.push("--proc-only: nothing inside the kernel was asked for".to_string());
            return Inside::Nothing;
        }
        Inside::best(pid, options, notes)
    }

    /// Each step down is noted with its reason.
    #[cfg(feature = "bpf")]
    fn best(pid: i32, options: &Options, notes: &mut Vec<String>) -> Inside {
        if options.no_bpf {
            notes.push("--no-bpf: perf was used instead of programs inside the kernel".to_string());
        } else {
            match kernel::Collector::start(pid, Duration::from_secs_f64(options.seconds)) {
                Ok(collector) => return Inside::Kernel(Box::new(collector)),
                Err(error) => notes.push(format!(
                    "no programs inside the kernel: {error:#}; so system calls and switches are not \
                     counted, and waits are sampled from /proc"
                )),
            }
        }
        match perf::Collector::start(pid) {
            Ok(collector) => {
                if collector.tier() == Tier::T2 {
                    notes.push(
                        "no samples of the kernel: they need root, CAP_PERFMON, or \
                         kernel.perf_event_paranoid at most 1; so what system calls do is not seen"
                            .to_string(),
                    );
                }
                Inside::Perf(Box::new(collector))
            }
            Err(error) => {
                notes.push(format!("no CPU samples by perf: {error:#}; /proc was used instead"));
                Inside::Nothing
            }
        }
    }

    #[cfg(not(feature = "bpf"))]
    fn best(_: i32, _: &Options, notes: &mut Vec<String>) -> Inside {
        notes.push(format!("{}; /proc was used instead", crate::recording::NO_BPF_BUILD));
        Inside::Nothing
    }

    fn tier(&self) -> Tier {
        match self {
            #[cfg(feature = "bpf")]
            Inside::Kernel(_) => Tier::T0,
            #[cfg(feature = "bpf")]
            Inside::Perf(collector) => collector.tier(),
            Inside::Nothing => Tier::T3,
        }
    }

    /// Whether sleeps are observed now: not by perf, and not in a pause of the programs.
    fn sees_sleeps(&self) -> bool {
        match self {
            #[cfg(feature = "bpf")]
            Inside::Kernel(collector) => !collector.is_paused(),
            #[cfg(feature = "bpf")]
            Inside::Perf(_) => false,
            Inside::Nothing => false,
        }
    }

    /// Enforces the budget, and drains the samples.
    fn tick(&mut self) -> Result<()> {
        match self {
            #[cfg(feature = "bpf")]
            Inside::Kernel(collector) => collector.tick(),
            #[cfg(feature = "bpf")]
            Inside::Perf(collector) => {
                collector.tick();
                Ok(())
            }
            Inside::Nothing => Ok(()),
        }
    }

    /// Detaches the programs at once; their counts can be read later.
    fn stop(&mut self, passed: Duration) {
        match self {
            #[cfg(feature = "bpf")]
            Inside::Kernel(collector) => collector.stop(passed),
            #[cfg(feature = "bpf")]
            Inside::Perf(collector) => collector.tick(),
            Inside::Nothing => {
                let _ = passed;
            }
        }
    }

    fn fill(self, recording: &mut Recording) -> Result<()> {
        match self {
            #[cfg(feature = "bpf")]
            Inside::Kernel(collector) => collector.fill(recording),
            #[cfg(feature = "bpf")]
            Inside::Perf(collector) => {
                collector.fill(recording);
                Ok(())
            }
            Inside::Nothing => {
                let _ = recording;
                Ok(())
            }
        }
    }
}

/// Whether a role is that of an inbound connection; used by the helper.
fn is_inbound(role: Role) -> bool {
    matches!(role, Role::Client | Role::Replica)
}
