//! A recording: everything that was seen of a process in one window, and nothing that was concluded from it.
//!
//! Collectors are the only code with rights; analyses are pure functions of a recording. So a recording can be taken in
//! production and explained elsewhere, and each rule is tested on recordings that are kept.
//!
//! Names of functions are in it already: addresses mean something only while the process runs, on its machine.
//! Times are nanoseconds, and those of threads, calls and waits add up to what the window had, not to a rate.

mod file;
mod redact;

pub(crate) use file::{load, save};
pub(crate) use redact::redacted;

use serde::{Deserialize, Serialize};

/// How much the collectors could see. A finding says from which it comes, so that it is never weaker in silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Tier {
    /// Programs inside the kernel: every switch and system call, complete stacks.
    T0,
    /// Perf, with the rights for it: CPU samples with the kernel's part; the rest as T3.
    T1,
    /// Perf for a plain user, on his own process: CPU samples of user code; the rest as T3.
    T2,
    /// /proc alone: threads' states a hundred times a second, counters, sockets.
    T3,
}

impl Tier {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Tier::T0 => "T0: eBPF, every switch and system call, complete stacks",
            Tier::T1 => "T1: perf without eBPF, CPU samples with stacks, states from /proc sampled",
            Tier::T2 => "T2: perf without rights, CPU samples of user code, states from /proc sampled",
            Tier::T3 => "T3: /proc only, states sampled",
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Recording {
    pub(crate) made_by: String,
    pub(crate) taken_unix_s: u64,
    pub(crate) tier: Tier,
    /// Length of the window.
    pub(crate) window_ns: u64,
    pub(crate) host: Host,
    pub(crate) target: Target,
    pub(crate) threads: Vec<Thread>,
    pub(crate) calls: Vec<Call>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) waits: Vec<Wait>,
    pub(crate) wakers: Vec<Waker>,
    /// Turns of event loops that took long, by their begin.
    #[serde(default)]
    pub(crate) stalls: Vec<Stall>,
    #[serde(default)]
    pub(crate) heat: Heat,
    /// Frames by index into `frames`, the innermost first.
    pub(crate) stacks: Vec<Vec<u32>>,
    pub(crate) frames: Vec<Frame>,
    pub(crate) descriptors: Vec<Descriptor>,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) sockets: Vec<Socket>,
    pub(crate) throttling: Option<Throttling>,
    /// Block devices that did something.
    #[serde(default)]
    pub(crate) disks: Vec<Disk>,
    /// What a server of the Redis family says of its forks, if it was asked.
    #[serde(default)]
    pub(crate) forks: Option<Forks>,
    /// What a server of the Redis family counted itself, if it was asked.
    #[serde(default)]
    pub(crate) own_count: Option<OwnCount>,
    /// Counters of the whole machine, by name, as what was added in the window.
    pub(crate) counters: Vec<Counter>,
    pub(crate) health: Health,
}

impl Recording {
    /// The frames of a stack, the innermost first.
    pub(crate) fn frames_of(&self, stack: u32) -> impl DoubleEndedIterator<Item = &Frame> {
        self.stacks[stack as usize].iter().map(|&index| &self.frames[index as usize])
    }

    /// A thread as people know it: "redis-server (100)".
    pub(crate) fn thread_name(&self, tid: i32) -> String {
        let thread = self.threads.iter().find(|thread| thread.tid == tid);
        thread.map_or_else(|| format!("thread {tid}"), |thread| format!("{} ({tid})", thread.name))
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Host {
    pub(crate) kernel: String,
    pub(crate) cpus: u32,
    /// Share of the CPU time that the machine asked for, idle excluded, that its hypervisor gave to others.
    pub(crate) steal: f64,
    /// Processes that ran beside the target, the busiest first.
    pub(crate) neighbours: Vec<Neighbour>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Neighbour {
    pub(crate) pid: i32,
    pub(crate) name: String,
    pub(crate) cpu_ns: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) pid: i32,
    pub(crate) name: String,
    pub(crate) executable: String,
    /// Without secrets.
    pub(crate) arguments: Vec<String>,
    /// CPUs that it may run on, as the kernel writes them: "0-3,7".
    pub(crate) cpus_allowed: String,
    pub(crate) cpus_allowed_count: u32,
    pub(crate) descriptors_limit: Option<u64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Thread {
    pub(crate) tid: i32,
    pub(crate) name: String,
    pub(crate) cpu_ns: u64,
    /// The part of `cpu_ns` inside the kernel; ticks, so only good to about 1%.
    pub(crate) system_ns: u64,
    /// Runnable, and waiting for a CPU.
    pub(crate) run_queue_ns: u64,
    pub(crate) switches_voluntary: u64,
    pub(crate) switches_involuntary: u64,
    pub(crate) faults_minor: u64,
    pub(crate) faults_major: u64,
    /// How often the sampler found it in uninterruptible sleep, and how often it looked.
    pub(crate) seen_uninterruptible: u64,
    pub(crate) seen: u64,
}

/// What a thread did in one system call on one descriptor, over the window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) tid: i32,
    pub(crate) name: String,
    pub(crate) fd: Option<i32>,
    /// None where states were sampled: how often is not known then.
    pub(crate) count: Option<u64>,
    pub(crate) cpu_ns: u64,
    pub(crate) blocked_ns: u64,
    pub(crate) run_queue_ns: u64,
    /// The longest single call.
    pub(crate) longest_ns: u64,
    /// Sum of the positive results.
    pub(crate) bytes: u64,
    pub(crate) errors: u64,
    pub(crate) would_block: u64,
    /// Voluntary sleeps of less than 50 us, and all of them.
    pub(crate) sleeps_short: u64,
    pub(crate) sleeps: u64,
}

impl Call {
    pub(crate) fn wall_ns(&self) -> u64 {
        self.cpu_ns + self.blocked_ns + self.run_queue_ns
    }
}

/// Samples of a running thread that had the same stack.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) tid: i32,
    pub(crate) stack: u32,
    pub(crate) count: u64,
    /// The system call it was in, and on which descriptor.
    pub(crate) call: Option<String>,
    pub(crate) fd: Option<i32>,
    /// In a turn of the event loop that had taken `STALL_NS` already.
    #[serde(default)]
    pub(crate) late: bool,
}

/// Turns of an event loop from this length on are kept. Between two events a client waits as long.
pub(crate) const STALL_NS: u64 = 20_000_000;

/// A turn of an event loop that took long: from the end of one poll to the begin of the next.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stall {
    pub(crate) tid: i32,
    /// Since the window began.
    pub(crate) at_ns: u64,
    pub(crate) length_ns: u64,
    pub(crate) blocked_ns: u64,
    pub(crate) run_queue_ns: u64,
    /// Its longest system call.
    pub(crate) call: Option<String>,
    pub(crate) fd: Option<i32>,
    pub(crate) call_ns: u64,
}

/// What all threads did in each slot of the window; empty where that was not seen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Heat {
    pub(crate) slot_ns: u64,
    pub(crate) slots: Vec<Slot>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Slot {
    /// CPU samples.
    pub(crate) samples: u64,
    /// Sleeps that are no waits for work.
    pub(crate) blocked_ns: u64,
    pub(crate) run_queue_ns: u64,
    /// How long was looked; none of it where the programs were off.
    pub(crate) seen_ns: u64,
}

/// Time that a thread was blocked at one place.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Wait {
    pub(crate) tid: i32,
    pub(crate) stack: u32,
    pub(crate) call: Option<String>,
    pub(crate) fd: Option<i32>,
    /// Of a futex: the word that was waited for.
    pub(crate) address: Option<u64>,
    pub(crate) count: u64,
    pub(crate) blocked_ns: u64,
    pub(crate) longest_ns: u64,
}

/// Who ended a thread's sleeps.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Waker {
    pub(crate) tid: i32,
    /// The call that the thread slept in.
    pub(crate) call: Option<String>,
    /// 0 is the idle task, that is: an interrupt.
    pub(crate) waker_tid: i32,
    pub(crate) waker_pid: i32,
    pub(crate) waker_name: String,
    pub(crate) count: u64,
    /// How many came from another CPU.
    pub(crate) across: u64,
    pub(crate) slept_ns: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Frame {
    pub(crate) name: String,
    /// File that the code is from; "kernel" for the kernel's.
    pub(crate) module: String,
    /// Why there is no symbol: the name is then the module and the start of the function.
    pub(crate) unnamed: Option<String>,
}

impl Frame {
    pub(crate) fn is_kernel(&self) -> bool {
        self.module == KERNEL
    }
}

pub(crate) const KERNEL: &str = "kernel";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    Listener,
    Client,
    Replica,
    Primary,
    /// A connection that the server made.
    Outbound,
    AppendOnlyFile,
    Snapshot,
    Log,
    File,
    Epoll,
    Eventfd,
    Timer,
    Pipe,
    UnixSocket,
    /// A socket or pipe to a process that writes the log for the server.
    LogDaemon,
    Datagram,
    Other,
}

impl Role {
    /// As it stands in a sentence: "writes to clients".
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Role::Listener => "listening sockets",
            Role::Client => "clients",
            Role::Replica => "replicas",
            Role::Primary => "its primary",
            Role::Outbound => "connections that it made",
            Role::AppendOnlyFile => "the append-only file",
            Role::Snapshot => "the snapshot file",
            Role::Log => "its log",
            Role::File => "files",
            Role::Epoll => "epoll",
            Role::Eventfd => "eventfds",
            Role::Timer => "timers",
            Role::Pipe => "pipes",
            Role::UnixSocket => "Unix sockets",
            Role::LogDaemon => "its log daemon",
            Role::Datagram => "datagram sockets",
            Role::Other => "other descriptors",
        }
    }

    pub(crate) fn is_stored(self) -> bool {
        matches!(self, Role::AppendOnlyFile | Role::Snapshot | Role::Log | Role::File)
    }

    pub(crate) fn is_peer(self) -> bool {
        matches!(
            self,
            Role::Client
                | Role::Replica
                | Role::Primary
                | Role::Outbound
                | Role::UnixSocket
                | Role::LogDaemon
        )
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Descriptor {
    pub(crate) fd: i32,
    pub(crate) role: Role,
    /// Path, or addresses of both ends.
    pub(crate) what: String,
    /// The process at the other end, where it runs on this machine.
    pub(crate) peer: Option<String>,
    /// Of a file: the disk that it is on, if that is one of `Recording::disks`.
    #[serde(default)]
    pub(crate) disk: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Listener {
    pub(crate) address: String,
    /// Connections waiting to be accepted: most that was seen, and the limit where it is known.
    pub(crate) waiting_max: u32,
    pub(crate) backlog: Option<u32>,
    /// Looks, and looks that found somebody waiting.
    pub(crate) seen: u64,
    pub(crate) seen_waiting: u64,
    /// Connections dropped in the window because the queue was full.
    pub(crate) drops: u64,
}

/// A connected socket with something in a queue, or with losses.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Socket {
    pub(crate) local: String,
    pub(crate) remote: String,
    pub(crate) fd: Option<i32>,
    /// Sent or to be sent, and not acknowledged: most that was seen, and in how many of `seen` looks there was any.
    pub(crate) unsent_max: u64,
    /// Looks that found more than `UNSENT_MUCH`.
    pub(crate) seen_unsent: u64,
    /// Arrived, and not read yet by the server.
    pub(crate) unread_max: u64,
    pub(crate) seen_unread: u64,
    pub(crate) seen: u64,
    pub(crate) retransmissions: u64,
    /// The peer's window was closed: it does not read, or not as fast as is sent.
    pub(crate) seen_probing: u64,
    /// Looks that found that it had taken something since the look before.
    #[serde(default)]
    pub(crate) seen_taking: u64,
    /// To a process on this machine, by a Unix socket or a pipe. `seen_unsent` has looks that found anything then, since such
    /// a process reads at once, if it does; of a pipe it is not known.
    #[serde(default)]
    pub(crate) local_only: bool,
    /// Looks that found the process at the other end stopped.
    #[serde(default)]
    pub(crate) seen_stopped: u64,
}

/// Bytes in a send queue from which a look counts as "held up by the peer": more than one reply of usual size.
pub(crate) const UNSENT_MUCH: u64 = 64 << 10;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Throttling {
    pub(crate) group: String,
    pub(crate) periods: u64,
    pub(crate) periods_throttled: u64,
    pub(crate) throttled_ns: u64,
    /// CPUs' worth of time that the group may use, if limited.
    pub(crate) limit_cpus: Option<f64>,
}

/// What a block device did in the window, for everybody.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Disk {
    pub(crate) name: String,
    pub(crate) reads: Requests,
    pub(crate) writes: Requests,
    pub(crate) flushes: Requests,
    /// When at least one request was under way.
    pub(crate) busy_ns: u64,
}

/// Requests of one kind that ended, and the time from the first queue to the answer, added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Requests {
    pub(crate) count: u64,
    pub(crate) took_ns: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Forks {
    /// In the window.
    pub(crate) count: u64,
    /// How long the latest one kept the server, in the window or before.
    pub(crate) latest_ns: u64,
}

/// What the server counted between two answers, one at each end of the window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnCount {
    /// Between the answers; not above zero only in a file that is made up.
    pub(crate) between_ns: u64,
    /// Commands that it processed, without our questions.
    pub(crate) commands: u64,
    /// Time of its workers in each stage of requests, ns, where it counts that.
    pub(crate) stages: Vec<(String, u64)>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Counter {
    pub(crate) name: String,
    pub(crate) added: u64,
}

/// Standard errors of an interval that holds the truth nineteen times of twenty.
pub(crate) const INTERVAL_ERRORS: f64 = 1.96;

/// How the recording itself went.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Health {
    /// What could not be had, each with its reason and what was used instead.
    pub(crate) notes: Vec<String>,
    /// CPU time of this program in the window.
    pub(crate) own_cpu_ns: u64,
    /// CPU time of its programs inside the kernel, by the kernel's own count.
    pub(crate) kernel_ns: u64,
    pub(crate) kernel_runs: u64,
    pub(crate) events_lost: u64,
    pub(crate) stacks: u64,
    pub(crate) stacks_complete: u64,
    /// Part of the window in which the costly collectors were on; figures of them are scaled up by its inverse.
    pub(crate) duty: f64,
    /// By what part of themselves scaled counts and times may be wrong, at 95%; none where they are exact, or nothing tells.
    #[serde(default)]
    pub(crate) scale_error: Option<f64>,
    /// Where threads sleep could not be read, or what descriptors are: what is not there was not looked for.
    #[serde(default)]
    pub(crate) sleeps_hidden: bool,
    #[serde(default)]
    pub(crate) descriptors_hidden: bool,
    /// CPU time of threads that ended in the window, of which nothing else is known.
    #[serde(default)]
    pub(crate) ended_cpu_ns: u64,
    /// Looks of the sampler, and the time between two.
    pub(crate) looks: u64,
    pub(crate) look_ns: u64,
}
