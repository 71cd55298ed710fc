//! A recording: everything observed of a process in a window, without conclusions.
//!
//! Collectors are the only code with privileges; analyses are pure functions of a recording. So a recording
//! can be taken in production and analysed elsewhere, and each rule is tested on stored recordings.
//!
//! Functions are stored by name: addresses are valid only while the process runs, on its machine. Times are
//! nanoseconds. The times of threads, calls and waits are sums over the window, not rates.

mod file;
mod redact;

pub(crate) use file::{load, save};
pub(crate) use redact::redacted;

use serde::{Deserialize, Serialize};

/// The capability of the collectors. Findings state their tier, so weaker evidence is visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Tier {
    /// BPF programs: every switch and system call, complete stacks.
    T0,
    /// Privileged perf: CPU samples with the kernel's part; the rest as T3.
    T1,
    /// Unprivileged perf, on the user's own process: CPU samples of user code; the rest as T3.
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
    /// Stalls of event loops, by their start.
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
    /// Segments of all connections together.
    #[serde(default)]
    pub(crate) segments: Segments,
    /// Requests inside the server, and its own requests to others.
    #[serde(default)]
    pub(crate) in_hand: InHand,
    /// The course of the same over the window; at most [`MOMENTS_MAX`].
    #[serde(default)]
    pub(crate) moments: Vec<Moment>,
    /// The tasks of a language's runtime, if the process has a runtime that the doctor can read.
    #[serde(default)]
    pub(crate) runtime: Option<Runtime>,
    pub(crate) throttling: Option<Throttling>,
    /// Block devices with activity.
    #[serde(default)]
    pub(crate) disks: Vec<Disk>,
    /// Forks by the INFO of a server of the Redis family, if it was asked.
    #[serde(default)]
    pub(crate) forks: Option<Forks>,
    /// Commands and stage times by the INFO of a server of the Redis family, if it was asked.
    #[serde(default)]
    pub(crate) own_count: Option<OwnCount>,
    /// The time of each command by the INFO of a server of the Redis family, if it was asked.
    #[serde(default)]
    pub(crate) commands: Vec<OwnCommand>,
    /// Slow commands of the window by its SLOWLOG, the slowest first.
    #[serde(default)]
    pub(crate) slow_commands: Vec<SlowCommand>,
    /// Clients that ran commands, by its CLIENT LIST at both ends, the busiest first.
    #[serde(default)]
    pub(crate) clients: Vec<OwnClient>,
    /// Whether it replied to the doctor at the end.
    #[serde(default)]
    pub(crate) answer: Answer,
    #[serde(default)]
    pub(crate) states: States,
    #[serde(default)]
    pub(crate) memory: Memory,
    /// Increments of machine-wide counters in the window, by name.
    pub(crate) counters: Vec<Counter>,
    pub(crate) health: Health,
}

/// The begin of the note of a doctor that was built without eBPF.
pub(crate) const NO_BPF_BUILD: &str = "this evenkeel-doctor was built without eBPF";

impl Recording {
    /// Whether the doctor that took it was built without eBPF.
    pub(crate) fn is_of_build_without_bpf(&self) -> bool {
        self.health.notes.iter().any(|note| note.starts_with(NO_BPF_BUILD))
    }

    /// The frames of a stack, the innermost first.
    pub(crate) fn frames_of(&self, stack: u32) -> impl DoubleEndedIterator<Item = &Frame> {
        self.stacks[stack as usize].iter().map(|&index| &self.frames[index as usize])
    }

    /// A thread's display name: "redis-server (100)".
    pub(crate) fn thread_name(&self, tid: i32) -> String {
        let thread = self.threads.iter().find(|thread| thread.tid == tid);
        thread.map_or_else(|| format!("thread {tid}"), |thread| format!("{} ({tid})", thread.name))
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Host {
    pub(crate) kernel: String,
    pub(crate) cpus: u32,
    /// Share of the requested CPU time, idle excluded, that the hypervisor gave to other machines.
    pub(crate) steal: f64,
    /// Other processes on the machine, the busiest first.
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
    /// CPUs on which it may run, in the kernel's format: "0-3,7".
    pub(crate) cpus_allowed: String,
    pub(crate) cpus_allowed_count: u32,
    pub(crate) descriptors_limit: Option<u64>,
}

/// Whether a program of this name is a server that replies to INFO, CLIENT LIST and SLOWLOG, and replicates.
pub(crate) fn is_of_redis_family(name: &str) -> bool {
    ["redis-server", "valkey-server", "keydb-server", "evenkeel"].iter().any(|known| name.starts_with(known))
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Thread {
    pub(crate) tid: i32,
    pub(crate) name: String,
    pub(crate) cpu_ns: u64,
    /// The part of `cpu_ns` inside the kernel; in ticks, so accurate to about 1%.
    pub(crate) system_ns: u64,
    /// Runnable, and waiting for a CPU.
    pub(crate) run_queue_ns: u64,
    pub(crate) switches_voluntary: u64,
    pub(crate) switches_involuntary: u64,
    pub(crate) faults_minor: u64,
    pub(crate) faults_major: u64,
    /// Samples in uninterruptible sleep, and all samples.
    pub(crate) seen_uninterruptible: u64,
    pub(crate) seen: u64,
}

/// Calls of a thread with the same name and descriptor, over the window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) tid: i32,
    pub(crate) name: String,
    pub(crate) fd: Option<i32>,
    /// None if states were sampled: the number of calls is then unknown.
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

/// Samples of a running thread with the same stack.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) tid: i32,
    pub(crate) stack: u32,
    pub(crate) count: u64,
    /// The system call and descriptor of the sample.
    pub(crate) call: Option<String>,
    pub(crate) fd: Option<i32>,
    /// The event loop's turn had already taken `STALL_NS`.
    #[serde(default)]
    pub(crate) late: bool,
}

/// Minimum length of a stall. A client's event may wait as long as a turn.
pub(crate) const STALL_NS: u64 = 20_000_000;

/// A turn of an event loop that took long: from the end of a poll to the begin of the next.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stall {
    pub(crate) tid: i32,
    /// Since the start of the window.
    pub(crate) at_ns: u64,
    pub(crate) length_ns: u64,
    pub(crate) blocked_ns: u64,
    pub(crate) run_queue_ns: u64,
    /// Its longest system call.
    pub(crate) call: Option<String>,
    pub(crate) fd: Option<i32>,
    pub(crate) call_ns: u64,
}

/// The activity of all threads in each slot of the window; empty if unknown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Heat {
    pub(crate) slot_ns: u64,
    pub(crate) slots: Vec<Slot>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Slot {
    /// CPU samples.
    pub(crate) samples: u64,
    /// Sleeps other than waits for work.
    pub(crate) blocked_ns: u64,
    pub(crate) run_queue_ns: u64,
    /// How long the slot was observed; 0 while the programs were detached.
    pub(crate) seen_ns: u64,
}

/// Blocked time of a thread at a place.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Wait {
    pub(crate) tid: i32,
    pub(crate) stack: u32,
    pub(crate) call: Option<String>,
    pub(crate) fd: Option<i32>,
    /// Address of the futex; `None` for other calls.
    pub(crate) address: Option<u64>,
    pub(crate) count: u64,
    pub(crate) blocked_ns: u64,
    pub(crate) longest_ns: u64,
}

/// The wakers of a thread's sleeps.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Waker {
    pub(crate) tid: i32,
    /// The call that the thread slept in.
    pub(crate) call: Option<String>,
    /// 0 is the idle task: an interrupt.
    pub(crate) waker_tid: i32,
    pub(crate) waker_pid: i32,
    pub(crate) waker_name: String,
    pub(crate) count: u64,
    /// Wake-ups from another CPU.
    pub(crate) across: u64,
    pub(crate) slept_ns: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Frame {
    pub(crate) name: String,
    /// The code's file; "kernel" for the kernel's code.
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
    /// A connection that the server opened.
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
    /// The role within a sentence: "writes to clients".
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
    /// The process at the other end, if it runs on this machine.
    pub(crate) peer: Option<String>,
    /// For a file: its disk, if `Recording::disks` has it.
    #[serde(default)]
    pub(crate) disk: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Listener {
    pub(crate) address: String,
    /// Connections waiting to be accepted: the observed maximum, and the limit if known.
    pub(crate) waiting_max: u32,
    pub(crate) backlog: Option<u32>,
    /// Samples, and samples with waiting connections.
    pub(crate) seen: u64,
    pub(crate) seen_waiting: u64,
    /// Connections dropped in the window because the queue was full.
    pub(crate) drops: u64,
}

/// Segments of TCP that were sent in the window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segments {
    /// With data, on connections that were seen twice.
    pub(crate) sent: u64,
    /// Sent again, since the other end did not acknowledge them in time, and not known to have arrived twice.
    pub(crate) again: u64,
    /// The other end with the most of these, without its port, and its number.
    pub(crate) worst: Option<(String, u64)>,
}

/// A connected socket with something in a queue, or with losses.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Socket {
    pub(crate) local: String,
    pub(crate) remote: String,
    pub(crate) fd: Option<i32>,
    /// Maximum of the unacknowledged bytes, sent or to be sent.
    pub(crate) unsent_max: u64,
    /// Samples with more than `UNSENT_MUCH`.
    pub(crate) seen_unsent: u64,
    /// Maximum of the bytes that arrived and were not read by the server.
    pub(crate) unread_max: u64,
    pub(crate) seen_unread: u64,
    pub(crate) seen: u64,
    pub(crate) retransmissions: u64,
    /// Samples with a closed window of the other end: it does not read, or more slowly than the server sends.
    pub(crate) seen_probing: u64,
    /// Samples in which the other end had acknowledged bytes since the sample before.
    #[serde(default)]
    pub(crate) seen_taking: u64,
    /// A Unix socket or a pipe to a process on this machine. `seen_unsent` then counts samples with any
    /// unread data, because a local process reads at once, if at all; for a pipe it is unknown.
    #[serde(default)]
    pub(crate) local_only: bool,
    /// Samples in which the process at the other end was stopped.
    #[serde(default)]
    pub(crate) seen_stopped: u64,
}

/// Requests of clients that had been inside the server for 10 ms or longer, by samples of its connections.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InHand {
    /// Samples, and samples with such a request.
    pub(crate) seen: u64,
    pub(crate) seen_requests: u64,
    /// Such requests in all samples together, and the longest time.
    pub(crate) requests: u64,
    pub(crate) longest_ms: u64,
    /// Others that had owed the server a reply for 10 ms or longer meanwhile.
    pub(crate) upstreams: Vec<Upstream>,
}

/// Points of the time line of requests in hand: more than that many pixels would hold.
pub(crate) const MOMENTS_MAX: usize = 200;

/// Requests that had been open for 10 ms or longer at a moment. In a long window a moment stands for several
/// samples, and has the most of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Moment {
    /// Since the start of the window.
    pub(crate) at_ms: u64,
    /// Clients' requests inside the server.
    pub(crate) inside: u64,
    /// Requests of the server to other servers, without a reply yet.
    pub(crate) upstream: u64,
}

/// Another server of which this server asks something.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Upstream {
    pub(crate) address: String,
    /// The process that listens there, if it runs on this machine.
    pub(crate) process: Option<String>,
    pub(crate) is_name_server: bool,
    /// Behind a Unix socket: its connections were counted, and whether it owed a reply is unknown.
    #[serde(default)]
    pub(crate) is_unix: bool,
    /// Samples with clients' requests inside in which it owed a reply.
    pub(crate) seen_waiting: u64,
    pub(crate) requests: u64,
    /// Unknown for name servers: 0.
    pub(crate) longest_ms: u64,
    /// What the processes of this machine behind it did most often meanwhile: the first is its own, each
    /// further one is waited for by the one before.
    #[serde(default)]
    pub(crate) chain: Vec<Step>,
}

/// A process in a chain of waits.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Step {
    /// As "name pid".
    pub(crate) process: String,
    /// As a verb: "computes", "sleeps in clock_nanosleep", "waits for 127.0.0.1:5432".
    pub(crate) does: String,
}

/// Tasks of a language's runtime (goroutines, threads of Java or Python), by samples of the state that the
/// runtime itself keeps of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Runtime {
    /// With its version: "Go 1.22.4".
    pub(crate) name: String,
    /// Samples that were taken.
    pub(crate) seen: u64,
    /// Tasks that are equal in every part, and how many of them all samples together had; most first.
    pub(crate) tasks: Vec<(Task, u64)>,
    /// Time of the window in which the runtime stopped all tasks, by reason: "garbage collection (Copy)", ns.
    #[serde(default)]
    pub(crate) pauses: Vec<(String, u64)>,
    /// Why tasks could not be read, or not all of them.
    pub(crate) notes: Vec<String>,
}

/// A task of a runtime at the moment of a sample.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) state: TaskState,
    /// The lock that it waits for: its type or name, with its address where several are alike.
    pub(crate) lock: Option<String>,
    /// The locks that it holds, where the runtime knows.
    pub(crate) holds: Vec<String>,
    /// The innermost function of the program's own code, with its file and line where known.
    pub(crate) place: Option<String>,
    /// Functions, the innermost first; at most [`TASK_FRAMES_MAX`].
    pub(crate) stack: Vec<String>,
}

pub(crate) const TASK_FRAMES_MAX: usize = 24;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TaskState {
    /// On a CPU, as far as the runtime knows.
    Running,
    /// It could run, and waits for the runtime to let it: for one of Go's processors.
    Ready,
    /// Waits for a lock that another task holds: a mutex, a monitor, the interpreter lock.
    Lock,
    /// Waits for another task: a condition, a channel, a future, a queue that is not its pool's.
    Signal,
    /// Sleeps for a time.
    Sleep,
    /// Waits for the network.
    Network,
    /// In a system call or in native code, of which the runtime knows nothing.
    Call,
    /// Waits for work: a thread of a pool, a timer, the runtime's own tasks.
    #[default]
    Idle,
}

/// Bytes in a send queue from which a sample counts as unsent: more than a reply of usual size.
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

/// Activity of a block device in the window, for all processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Disk {
    pub(crate) name: String,
    pub(crate) reads: Requests,
    pub(crate) writes: Requests,
    pub(crate) flushes: Requests,
    /// Time with at least one request in flight.
    pub(crate) busy_ns: u64,
}

/// Completed requests of a kind, and the sum of their times from queueing to completion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Requests {
    pub(crate) count: u64,
    pub(crate) took_ns: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Forks {
    /// In the window.
    pub(crate) count: u64,
    /// Length of the latest fork, which may have been before the window.
    pub(crate) latest_ns: u64,
}

/// The server's own counts between two replies, which are at the ends of the window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnCount {
    /// Time between the replies; always above zero, unless the file was forged.
    pub(crate) between_ns: u64,
    /// Commands that it processed, without the doctor's.
    pub(crate) commands: u64,
    /// Time of its workers in each stage of requests, ns, if it reports them.
    pub(crate) stages: Vec<(String, u64)>,
}

/// The reply of a server of the Redis family to the doctor's question at the end of the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    #[default]
    NotAsked,
    Given,
    /// It accepted the connection and did not reply in time.
    Silent,
    /// It refused the connection, since it has as many clients as it admits.
    ClientsMax,
    /// An error of another kind, such as a missing password.
    Refused,
}

/// The memory of the process at the end of the window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) resident_bytes: u64,
    pub(crate) swapped_bytes: u64,
    /// The control group with the lowest limit, and its limit in bytes.
    pub(crate) limit: Option<(String, u64)>,
}

/// Samples of the process's state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct States {
    pub(crate) seen: u64,
    /// Stopped by a signal or a debugger.
    pub(crate) stopped: u64,
    /// The debugger, as "name pid".
    pub(crate) tracer: Option<String>,
    /// Programs that it started in the window and that had not ended, by name, with the number of samples in
    /// which one was seen; the most frequent first.
    #[serde(default)]
    pub(crate) children: Vec<(String, u64)>,
    /// The title of a session of PostgreSQL while it executed a statement, without values, and the number of
    /// samples that found it so.
    #[serde(default)]
    pub(crate) title: Option<(String, u64)>,
}

/// A command's calls between the two replies of [`OwnCount`], and their time: the time that it took to run
/// them, without waits in queues and for keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnCommand {
    /// In lower case; a subcommand follows a bar.
    pub(crate) name: String,
    pub(crate) calls: u64,
    pub(crate) took_ns: u64,
}

/// A single command that the server found slow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SlowCommand {
    /// In lower case.
    pub(crate) name: String,
    pub(crate) took_ns: u64,
    /// Address of its client.
    pub(crate) client: String,
    /// The first line of an EVAL's script, the checksum of an EVALSHA, the name of a function.
    pub(crate) script: Option<String>,
}

/// A client's commands in the window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnClient {
    pub(crate) address: String,
    /// As the client has named itself; may be empty.
    pub(crate) name: String,
    pub(crate) commands: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Counter {
    pub(crate) name: String,
    pub(crate) added: u64,
}

/// Standard errors of a 95% interval.
pub(crate) const INTERVAL_ERRORS: f64 = 1.96;

/// Quality and cost of the recording.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Health {
    /// Missing mechanisms, each with its reason and its substitute.
    pub(crate) notes: Vec<String>,
    /// CPU time of this program in the window.
    pub(crate) own_cpu_ns: u64,
    /// CPU time of its BPF programs, as measured by the kernel.
    pub(crate) kernel_ns: u64,
    pub(crate) kernel_runs: u64,
    pub(crate) events_lost: u64,
    pub(crate) stacks: u64,
    pub(crate) stacks_complete: u64,
    /// Part of the window with attached programs; their counts and times are scaled up by its inverse.
    pub(crate) duty: f64,
    /// The 95% error of scaled counts and times, as a part of them; none if they are exact, or if it is
    /// unknown.
    #[serde(default)]
    pub(crate) scale_error: Option<f64>,
    /// Sleeps or descriptors were unreadable: their absence in the recording means nothing.
    #[serde(default)]
    pub(crate) sleeps_hidden: bool,
    #[serde(default)]
    pub(crate) descriptors_hidden: bool,
    /// CPU time of threads that ended in the window; nothing else is known of them.
    #[serde(default)]
    pub(crate) ended_cpu_ns: u64,
    /// Samples of the sampler, and the time between two.
    pub(crate) looks: u64,
    pub(crate) look_ns: u64,
}
