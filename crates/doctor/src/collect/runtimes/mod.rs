//! Tasks of language runtimes: goroutines, threads of Java, threads of Python.
//!
//! The kernel sees threads that sleep in futexes, whatever they wait for: a goroutine that waits for a mutex
//! has no thread, and a thread that waits for Python's interpreter lock looks like one without work. The
//! runtime knows, so its own records are read some ten times a second, without stopping or changing the
//! process. Each runtime has a module, which recognises its processes and reads the tasks of one moment.
//!
//! Reading takes a thread of its own: a runtime that does not respond delays no other collector.

mod go;
mod java;
mod memory;
mod python;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::recording::{Runtime, Task};

/// Minimum time between samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
/// A sample may take this part of the time until the next.
const SAMPLE_COST_FACTOR: u32 = 100;
/// The longest pause, so that a short window has some samples of an expensive runtime.
const PAUSE_MAX: Duration = Duration::from_millis(600);
/// Failures in a row after which the runtime is left alone: tasks change while they are read.
const FAILURES_MAX: u32 = 5;
/// Kinds of tasks that are kept of a window.
const KINDS_MAX: usize = 300;

/// Reads the tasks of one runtime.
trait Reader: Send {
    /// The runtime with its version, as far as known by now.
    fn name(&self) -> String;

    /// The tasks of this moment; an error if they changed too much meanwhile, or cannot be read.
    fn sample(&mut self) -> Result<Vec<Task>>;

    /// Whether the program stands while a sample is taken: then a sample costs the time that it takes, and
    /// else the CPU time of this thread.
    fn stops_program(&self) -> bool {
        false
    }

    /// The times in which the runtime stopped all tasks since this reader was made, by reason.
    fn pauses(&mut self) -> Vec<(String, u64)> {
        Vec::new()
    }

    /// What samples lack, after the last.
    fn notes(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// The thread that samples tasks, until the end of the window.
#[derive(Debug)]
pub(super) struct Watch {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Runtime>,
}

impl Watch {
    /// `None` if the process has no runtime that this program knows.
    pub(super) fn begin(pid: i32) -> Option<Watch> {
        let reader = match go::open(pid).or_else(|| java::open(pid)).or_else(|| python::open(pid))? {
            Ok(reader) => reader,
            Err(runtime) => {
                let thread = std::thread::spawn(|| runtime);
                return Some(Watch { ends: Arc::default(), thread });
            }
        };
        let ends = Arc::new(AtomicBool::new(false));
        let until = ends.clone();
        let thread = std::thread::Builder::new().name("tasks".to_string());
        let thread = thread.spawn(move || watch(reader, &until)).ok()?;
        Some(Watch { ends, thread })
    }

    pub(super) fn end(self) -> Option<Runtime> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().ok()
    }
}

/// What a module says of a process: not of its runtime, a reader, or why its tasks cannot be read.
type Opened = Option<Result<Box<dyn Reader>, Runtime>>;

/// A runtime that was recognised and cannot be read.
fn unreadable(name: impl Into<String>, why: impl Into<String>) -> Runtime {
    Runtime { name: name.into(), notes: vec![why.into()], ..Runtime::default() }
}

/// CPU time of this thread so far.
fn own_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.max(0) as u32)
}

fn watch(mut reader: Box<dyn Reader>, ends: &AtomicBool) -> Runtime {
    let mut counts: HashMap<Task, u64> = HashMap::new();
    let mut runtime = Runtime::default();
    let mut failures = 0;
    while !ends.load(Ordering::Relaxed) {
        let (start, cpu) = (Instant::now(), own_cpu());
        match reader.sample() {
            Ok(tasks) => {
                failures = 0;
                runtime.seen += 1;
                for task in tasks {
                    *counts.entry(task).or_default() += 1;
                }
            }
            Err(error) => {
                failures += 1;
                if failures == FAILURES_MAX {
                    let which = if runtime.seen > 0 {
                        "further tasks were not read"
                    } else {
                        "its tasks could not be read"
                    };
                    runtime.notes.push(format!("{which}: {error:#}"));
                    break;
                }
            }
        }
        let cost = if reader.stops_program() { start.elapsed() } else { own_cpu().saturating_sub(cpu) };
        let pause = (cost * SAMPLE_COST_FACTOR).clamp(SAMPLE_INTERVAL, PAUSE_MAX);
        std::thread::park_timeout(pause);
    }
    runtime.pauses = reader.pauses();
    runtime.notes.extend(reader.notes());
    // A runtime may tell its exact version only when it is read.
    runtime.name = reader.name();
    runtime.tasks = counts.into_iter().collect();
    runtime.tasks.sort_by(|(a, count_a), (b, count_b)| {
        count_b.cmp(count_a).then_with(|| a.place.cmp(&b.place)).then_with(|| a.stack.cmp(&b.stack))
    });
    let all = runtime.tasks.len();
    if all > KINDS_MAX {
        runtime.tasks.truncate(KINDS_MAX);
        runtime.notes.push(format!("of {all} kinds of tasks the {KINDS_MAX} most frequent were kept"));
    }
    runtime
}
