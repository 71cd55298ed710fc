//! The doctor's collectors inside the kernel: off-CPU time, system calls by descriptor, wakers, and CPU samples.
//!
//! ```text
//! Capture::start    load, build the tables for walking stacks, attach
//! pause, resume     take the programs off and put them on again (a budget decides)
//! finish            read what was counted, name the addresses
//! ```
//!
//! `Sampler` is for where no programs can be loaded: CPU samples by perf, walked outside of the kernel.
//! `Counter`, `Stopwatch` and `Teller` are probes that somebody asks for by name, in an object of their own.
//!
//! What comes out is counts and times by thread, call and descriptor number; what a descriptor is for, and what anything
//! means, is not known here. Dropping a `Capture` detaches everything; when the process is killed, the kernel does.
//!
//! Built with clang, and only where somebody wants it: see ARCHITECTURE.md.

mod attach;
mod course;
mod event;
mod functions;
mod harvest;
mod perf;
mod probe;
mod ring;
mod shared;
mod symbols;
mod tables;
mod teller;
mod walk;

pub use functions::{Function, find};
pub use perf::Sampler;
pub use probe::{Counter, Latency, Stopwatch, TRACEPOINTS_MAX};
pub use teller::{Teller, Told};

use std::time::Duration;

use anyhow::{Result, ensure};

/// The module of frames inside the kernel.
pub const KERNEL: &str = "kernel";

/// What system calls are, by number; the caller has the names.
#[derive(Debug, Clone)]
pub struct Kinds {
    /// Numbers of calls whose first argument is a descriptor.
    pub on_descriptor: Vec<i64>,
    /// Calls in which a thread waits for work.
    pub idle: Vec<i64>,
    /// Of those, the ones that wait for any of several descriptors.
    pub polls: Vec<i64>,
    /// Calls that wait for work, unless their descriptor is a file.
    pub receives: Vec<i64>,
    pub futex: i64,
    pub close: i64,
}

/// What is kept of the course of time.
#[derive(Debug, Clone, Copy)]
pub struct Course {
    /// How much longer than this the window may not be.
    pub window: Duration,
    /// Length of a slot, unless the window needs longer ones.
    pub slot: Duration,
    /// Turns of an event loop of this length are kept.
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

/// What a descriptor was when it was seen first: for those that are gone before anybody looks into /proc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Described {
    /// By the last part of its path.
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
    /// In a turn of an event loop that had taken long already.
    pub late: bool,
    pub count: u64,
}

/// A turn of an event loop that took long: from the end of one poll to the begin of the next.
#[derive(Debug, Clone)]
pub struct Stall {
    pub tid: i32,
    /// Since the programs came first.
    pub at_ns: u64,
    pub length_ns: u64,
    pub blocked_ns: u64,
    pub queued_ns: u64,
    /// Its longest call.
    pub place: Place,
    pub fd: Option<i32>,
    pub call_ns: u64,
}

/// What happened in one slot of time, in all threads.
#[derive(Debug, Clone, Copy, Default)]
pub struct Slot {
    pub samples: u64,
    pub blocked_ns: u64,
    pub queued_ns: u64,
    /// How long the programs looked.
    pub seen_ns: u64,
}

#[derive(Debug, Clone)]
pub struct Wait {
    pub tid: i32,
    pub place: Place,
    pub fd: Option<i32>,
    pub lock: bool,
    /// Of a futex.
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
    /// From when the programs came first, each `slot_ns` long.
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

/// What the programs cost, by the kernel's own count.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    pub time: Duration,
    pub runs: u64,
}

/// Programs that are loaded and, unless paused, attached.
#[derive(Debug)]
pub struct Capture {
    pid: i32,
    tables: tables::Tables,
    programs: attach::Programs,
    /// Calls that had not ended when the programs were taken off.
    unfinished: harvest::Unfinished,
}

impl Capture {
    /// Loads and attaches everything, or says why this machine does not let us; then nothing is left behind.
    ///
    /// `length` is as for `resume`.
    pub fn start(
        pid: i32,
        kinds: &Kinds,
        samples_a_second: u64,
        course: Course,
        length: Duration,
    ) -> Result<Capture> {
        check_machine()?;
        let tables = tables::build(pid)?;
        let programs = attach::Programs::load(pid, &tables, kinds, samples_a_second, course)?;
        let mut capture = Capture { pid, tables, programs, unfinished: harvest::Unfinished::default() };
        capture.resume(length)?;
        Ok(capture)
    }

    /// Takes the programs off; what they counted stays.
    pub fn pause(&mut self) {
        if self.programs.detach() {
            self.unfinished.add(&self.programs);
        }
    }

    /// Puts the programs on for `length`: when it has passed, they look at nothing, also if we are kept from taking them off.
    pub fn resume(&mut self, length: Duration) -> Result<()> {
        self.programs.attach(length)
    }

    /// Puts the end off: `length` from now. To be called before it has come, or what happened between is missing.
    pub fn extend(&mut self, length: Duration) -> Result<()> {
        self.programs.extend(length)
    }

    pub fn cost(&self) -> Cost {
        self.programs.cost()
    }

    /// Reads everything and names it; the process should still run, or there are no names.
    pub fn finish(mut self) -> Seen {
        self.pause();
        harvest::read(self.pid, &self.tables, &self.programs, &self.unfinished)
    }
}

/// What programs need of the machine, whatever they do.
fn check_machine() -> Result<()> {
    ensure!(
        std::path::Path::new("/sys/kernel/btf/vmlinux").exists(),
        "the kernel does not describe itself (no /sys/kernel/btf/vmlinux)"
    );
    ensure!(attach::in_first_namespace(), "this is a container with process numbers of its own");
    Ok(())
}
