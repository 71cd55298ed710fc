//! The doctor's BPF collectors: off-CPU time, system calls by descriptor, wakers, and CPU samples.
//!
//! ```text
//! Capture::start    load, build the unwind tables, attach
//! pause, resume     detach and attach the programs again (the caller's budget decides)
//! finish            read the maps, symbolise the addresses
//! ```
//!
//! `Sampler` works where no programs can be loaded: perf takes CPU samples, user space walks the stacks.
//! `Counter`, `Stopwatch` and `StaticProbe` are the probes that a user requests by name. Their programs are
//! in a separate object.
//!
//! The results are counts and times by thread, call and descriptor number; their meaning, and the file or
//! socket behind a descriptor, is the caller's business. Dropping a `Capture` detaches everything; when the
//! process is killed, the kernel does.
//!
//! The build needs clang, so the crate is optional: see ARCHITECTURE.md.

mod attach;
mod course;
mod event;
mod functions;
mod harvest;
mod perf;
mod probe;
mod ring;
mod shared;
mod static_probe;
mod symbols;
mod tables;
mod walk;

pub use functions::{Function, find};
pub use perf::Sampler;
pub use probe::{Counter, Latency, Stopwatch, TRACEPOINTS_MAX};
pub use static_probe::{ProbeTotal, StaticProbe};

use std::time::Duration;

use anyhow::{Result, ensure};

/// The module of frames inside the kernel.
pub const KERNEL: &str = "kernel";

/// Classes of system calls, by number. The caller has the names.
#[derive(Debug, Clone)]
pub struct CallClasses {
    /// Numbers of calls whose first argument is a descriptor.
    pub on_descriptor: Vec<i64>,
    /// Calls in which a thread waits for work.
    pub idle: Vec<i64>,
    /// The subset of `idle` that waits for any of several descriptors.
    pub polls: Vec<i64>,
    /// Calls that wait for work, unless their descriptor is a file.
    pub receives: Vec<i64>,
    pub futex: i64,
    pub close: i64,
}

/// Limits of the time course: slots of time, and stalls of event loops.
#[derive(Debug, Clone, Copy)]
pub struct Course {
    /// Upper bound of the window's length.
    pub window: Duration,
    /// Length of a slot; longer if the window needs more slots than there are.
    pub slot: Duration,
    /// Turns of an event loop that last at least this long are kept.
    pub stall: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    Call(i64),
    /// Not in a system call: user code, or a page fault.
    Outside,
}

#[derive(Debug, Clone)]
pub struct Call {
    pub tid: i32,
    pub place: Place,
    pub fd: Option<i32>,
    /// A futex, and the wait was for a mutex.
    pub lock: bool,
    /// Calls that ended in the window.
    pub count: u64,
    pub wall_ns: u64,
    pub blocked_ns: u64,
    pub queued_ns: u64,
    pub longest_ns: u64,
    pub bytes: u64,
    pub errors: u64,
    pub would_block: u64,
    pub sleeps: u64,
    pub sleeps_short: u64,
    pub descriptor: Option<Described>,
}

/// The file or socket behind a descriptor at its first call. A descriptor may be closed before a reader of
/// /proc sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Described {
    /// The last part of its path.
    File(String),
    Tcp {
        listens: bool,
        local_port: u16,
        peer_port: u16,
        peer_ip4: Option<[u8; 4]>,
    },
    OtherSocket,
}

#[derive(Debug, Clone)]
pub struct Sample {
    pub tid: i32,
    pub place: Place,
    pub fd: Option<i32>,
    /// Index into `Seen::stacks`.
    pub stack: u32,
    /// The event loop's turn had already exceeded `Course::stall`.
    pub late: bool,
    pub count: u64,
}

/// A turn of an event loop that took long: from the end of a poll to the begin of the next.
#[derive(Debug, Clone)]
pub struct Stall {
    pub tid: i32,
    /// Since the programs were first attached.
    pub at_ns: u64,
    pub length_ns: u64,
    pub blocked_ns: u64,
    pub queued_ns: u64,
    /// The turn's longest call.
    pub place: Place,
    pub fd: Option<i32>,
    pub call_ns: u64,
}

/// Totals of one slot of time, over all threads.
#[derive(Debug, Clone, Copy, Default)]
pub struct Slot {
    pub samples: u64,
    pub blocked_ns: u64,
    pub queued_ns: u64,
    /// How long the programs were active in this slot.
    pub seen_ns: u64,
}

#[derive(Debug, Clone)]
pub struct Wait {
    pub tid: i32,
    pub place: Place,
    pub fd: Option<i32>,
    pub lock: bool,
    /// Of the futex; `None` for other calls.
    pub address: Option<u64>,
    pub stack: u32,
    pub count: u64,
    pub blocked_ns: u64,
    pub longest_ns: u64,
}

#[derive(Debug, Clone)]
pub struct Waker {
    pub tid: i32,
    pub place: Place,
    pub waker_tid: i32,
    pub waker_pid: i32,
    pub waker_name: String,
    pub count: u64,
    pub across: u64,
    pub slept_ns: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Frame {
    pub name: String,
    pub module: String,
    pub unnamed: Option<String>,
}

#[derive(Debug, Default)]
pub struct Seen {
    pub calls: Vec<Call>,
    pub samples: Vec<Sample>,
    pub waits: Vec<Wait>,
    pub wakers: Vec<Waker>,
    pub stalls: Vec<Stall>,
    /// From the first attachment on, each `slot_ns` long.
    pub slots: Vec<Slot>,
    pub slot_ns: u64,
    /// Indices into `frames`, the innermost first.
    pub stacks: Vec<Vec<u32>>,
    pub frames: Vec<Frame>,
    pub stacks_walked: u64,
    pub stacks_complete: u64,
    pub lost: u64,
    pub cost: Cost,
    pub notes: Vec<String>,
}

/// Run time of the programs, as measured by the kernel.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    pub time: Duration,
    pub runs: u64,
}

/// Loaded programs, attached unless paused.
#[derive(Debug)]
pub struct Capture {
    pid: i32,
    tables: tables::Tables,
    programs: attach::Programs,
    /// Calls that had not ended when the programs were detached.
    unfinished: harvest::Unfinished,
}

impl Capture {
    /// Loads and attaches all programs. Fails, and leaves nothing behind, if the machine does not permit it;
    /// the error says why.
    ///
    /// `length` is as for `resume`.
    pub fn start(
        pid: i32,
        classes: &CallClasses,
        samples_a_second: u64,
        course: Course,
        length: Duration,
    ) -> Result<Capture> {
        check_machine()?;
        let tables = tables::build(pid)?;
        let programs = attach::Programs::load(pid, &tables, classes, samples_a_second, course)?;
        let mut capture = Capture { pid, tables, programs, unfinished: harvest::Unfinished::default() };
        capture.resume(length)?;
        Ok(capture)
    }

    /// Detaches the programs; their counts stay.
    pub fn pause(&mut self) {
        if self.programs.detach() {
            self.unfinished.add(&self.programs);
        }
    }

    /// Attaches the programs for `length`. After that they ignore all events, even if this process is not
    /// scheduled in time to detach them.
    pub fn resume(&mut self, length: Duration) -> Result<()> {
        self.programs.attach(length)
    }

    /// Sets the end to `length` from now. Call it before the old end: events between the two are not counted.
    pub fn extend(&mut self, length: Duration) -> Result<()> {
        self.programs.extend(length)
    }

    pub fn cost(&self) -> Cost {
        self.programs.cost()
    }

    /// Reads and symbolises everything. Without the running process there are no names.
    pub fn finish(mut self) -> Seen {
        self.pause();
        harvest::read(self.pid, &self.tables, &self.programs, &self.unfinished)
    }
}

/// Checks the requirements that all programs share.
fn check_machine() -> Result<()> {
    ensure!(
        std::path::Path::new("/sys/kernel/btf/vmlinux").exists(),
        "the kernel does not describe itself (no /sys/kernel/btf/vmlinux)"
    );
    ensure!(attach::in_first_namespace(), "this is a container with process numbers of its own");
    Ok(())
}
