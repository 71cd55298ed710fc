//! Goroutines, from the memory of the process: the runtime's list of them, their states, and their stacks.
//!
//! The layout of a goroutine's record (`g` in the runtime) has changed twice; the right layout is the one by
//! which all records of the list are consistent. Stacks are walked by frame pointers, which Go's compiler
//! sets in every function. What a goroutine waits for follows from the functions of the standard library on
//! its stack, so no table of a version is needed.
//!
//! The process goes on meanwhile. A goroutine that moves while it is read yields a stack with fewer frames,
//! or a state of a moment before.

mod program;

use std::collections::HashMap;

use anyhow::{Context, Result, bail};

use super::memory::{Memory, half_word, word};
use super::{Opened, Reader, unreadable};
use crate::analyse::is_own_in_go as is_own;
use crate::recording::{TASK_FRAMES_MAX, Task, TaskState};
use program::Program;

/// Goroutines that are read at each sample.
const GOROUTINES_MAX: usize = 10_000;
/// More are no list of goroutines.
const LIST_MAX: u64 = 10_000_000;
/// Bytes of a record that are read.
const RECORD: usize = 192;
/// Bytes of a stack that are searched for frames, from the innermost on.
const STACK: usize = 4_096;
/// Stacks that are kept from sample to sample.
const KNOWN_MAX: usize = 50_000;

/// Offsets in a record that are the same in all versions: both ends of the stack, and the saved stack
/// pointer, program counter, and address of the record itself.
const LOW: usize = 0;
const HIGH: usize = 8;
const POINTER: usize = 56;
const COUNTER: usize = 64;
const SELF: usize = 72;

/// Offsets that differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    frame: usize,
    status: usize,
    id: usize,
}

/// Go 1.18 to 1.22, 1.23 and 1.24, and from 1.25 on.
const LAYOUTS: [Layout; 3] = [
    Layout { frame: 104, status: 144, id: 152 },
    Layout { frame: 104, status: 152, id: 160 },
    Layout { frame: 96, status: 144, id: 152 },
];

/// States of a goroutine in its record; a bit is added while the garbage collector reads its stack.
const IDLE: u32 = 0;
const RUNNABLE: u32 = 1;
const RUNNING: u32 = 2;
const SYSCALL: u32 = 3;
const WAITING: u32 = 4;
const DEAD: u32 = 6;
/// A record that waits for a thread of C, from Go 1.26 on.
const SPARE: u32 = 11;
const SCANNED: u32 = 0x1000;

pub(super) fn open(pid: i32) -> Opened {
    let program = match Program::open(pid)? {
        Ok(program) => program,
        Err(error) => return Some(Err(unreadable("Go", format!("its goroutines are hidden: {error:#}")))),
    };
    let memory = Memory::of(pid);
    let version = program.version.clone();
    match List::find(memory, &program) {
        Ok(list) => Some(Ok(Box::new(Goroutines { memory, program, list, known: HashMap::new() }))),
        Err(error) => Some(Err(unreadable(version, format!("its goroutines are hidden: {error:#}")))),
    }
}

/// The runtime's list of goroutines: the address of its slice, and the layout of the records.
#[derive(Debug)]
struct List {
    address: u64,
    layout: Layout,
}

impl List {
    fn find(memory: Memory, program: &Program) -> Result<List> {
        let mut refused = anyhow::anyhow!("the list of them was not found");
        for &address in &program.lists {
            let layout = addresses(memory, address).and_then(|records| {
                let records = memory.blocks(&records, RECORD);
                layout_of(&records).context("their records have an unknown layout")
            });
            match layout {
                Ok(layout) => return Ok(List { address, layout }),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }
}

/// The addresses of the records.
fn addresses(memory: Memory, list: u64) -> Result<Vec<u64>> {
    let [array, length, capacity] = memory.words(list)?;
    if length == 0 || length > capacity || capacity > LIST_MAX {
        bail!("the list of goroutines has no length");
    }
    let mut bytes = vec![0; length as usize * 8];
    memory.read(array, &mut bytes)?;
    let all: Vec<u64> = bytes.chunks_exact(8).map(|chunk| word(chunk, 0)).collect();
    let step = all.len().div_ceil(GOROUTINES_MAX);
    Ok(all.into_iter().step_by(step).collect())
}

/// The layout by which the records are consistent: known states, and an identity of each goroutine's own.
fn layout_of(records: &[u8]) -> Option<Layout> {
    let records: Vec<&[u8]> = records.chunks_exact(RECORD).filter(|record| is_record(record)).collect();
    if records.is_empty() {
        return None;
    }
    let fits = |layout: &Layout| {
        let alive = |record: &&&[u8]| !is_unused(status(record, *layout));
        let known = |record: &&[u8]| status(record, *layout) <= SPARE;
        let alive: Vec<_> = records.iter().filter(alive).collect();
        let mut ids: Vec<u64> = alive.iter().map(|record| word(record, layout.id)).collect();
        ids.sort_unstable();
        let count = ids.len();
        ids.dedup();
        // A parked goroutine's frame lies in its stack.
        let frames = alive.iter().filter(|record| {
            let frame = word(record, layout.frame);
            status(record, *layout) != WAITING
                || (word(record, POINTER)..=word(record, HIGH)).contains(&frame)
        });
        let frames = frames.count();
        let is_right = count > 0 && ids.len() == count && ids.first() != Some(&0);
        is_right && records.iter().all(known) && frames * 10 >= count * 9
    };
    LAYOUTS.into_iter().find(fits)
}

fn is_record(record: &[u8]) -> bool {
    let (low, high) = (word(record, LOW), word(record, HIGH));
    low < high && word(record, SELF) != 0
}

fn is_unused(status: u32) -> bool {
    matches!(status, IDLE | DEAD | SPARE)
}

fn status(record: &[u8], layout: Layout) -> u32 {
    half_word(record, layout.status) & !SCANNED
}

#[derive(Debug)]
struct Goroutines {
    memory: Memory,
    program: Program,
    list: List,
    /// Tasks by record and the state that was saved in it: a goroutine that sleeps on has the same stack.
    known: HashMap<[u64; 5], Option<Task>>,
}

impl Reader for Goroutines {
    fn name(&self) -> String {
        self.program.version.clone()
    }

    fn sample(&mut self) -> Result<Vec<Task>> {
        let addresses = addresses(self.memory, self.list.address)?;
        let records = self.memory.blocks(&addresses, RECORD);
        if self.known.len() > KNOWN_MAX {
            self.known.clear();
        }
        let layout = self.list.layout;
        let mut tasks = Vec::new();
        for (&address, record) in addresses.iter().zip(records.chunks_exact(RECORD)) {
            let status = status(record, layout);
            if !is_record(record) || is_unused(status) {
                continue;
            }
            let saved = [POINTER, COUNTER, layout.frame].map(|at| word(record, at));
            let key =
                [address, word(record, layout.id) << 8 | u64::from(status), saved[0], saved[1], saved[2]];
            let task = match self.known.get(&key) {
                Some(task) => task.clone(),
                None => {
                    let task = self.task(status, record, saved);
                    self.known.insert(key, task.clone());
                    task
                }
            };
            tasks.extend(task);
        }
        Ok(tasks)
    }
}

impl Goroutines {
    /// `None` for the runtime's own goroutines.
    fn task(&self, status: u32, record: &[u8], [pointer, counter, frame]: [u64; 3]) -> Option<Task> {
        if status == RUNNING {
            return Some(Task { state: TaskState::Running, ..Task::default() });
        }
        let counters = self.stack(pointer, counter, frame, word(record, HIGH));
        // A return address follows its call, which may be the last instruction of a function.
        let functions: Vec<_> =
            counters.iter().filter_map(|counter| self.program.function(counter - 1)).collect();
        let names: Vec<&str> = functions.iter().map(|function| function.name).collect();
        if names.last().is_some_and(|name| is_of_runtime(name)) {
            return None;
        }
        let stack = functions.iter().map(|function| match function.line {
            0 => function.name.to_string(),
            line => format!("{} ({}:{line})", function.name, function.file),
        });
        let stack: Vec<String> = stack.take(TASK_FRAMES_MAX).collect();
        let own = names.iter().position(|name| is_own(name));
        let place = own.and_then(|index| stack.get(index).cloned());
        let (state, lock) = match status {
            RUNNABLE => (TaskState::Ready, None),
            SYSCALL => (TaskState::Call, None),
            _ => wait(&names, own),
        };
        Some(Task { state, lock, holds: Vec::new(), place, stack })
    }

    /// Addresses of code from the innermost function on: the saved one, and the return addresses beside the
    /// saved frame pointers, each of which points further out. The last address is that of `runtime.goexit`,
    /// which is left out.
    fn stack(&self, pointer: u64, counter: u64, frame: u64, high: u64) -> Vec<u64> {
        let length = high.saturating_sub(pointer).min(STACK as u64) as usize;
        let mut bytes = vec![0; length];
        let mut counters = vec![counter];
        if self.memory.read(pointer, &mut bytes).is_err() {
            return counters;
        }
        let mut frame = frame;
        while let Some(at) = frame.checked_sub(pointer).filter(|at| at + 16 <= length as u64) {
            let (next, back) = (word(&bytes, at as usize), word(&bytes, at as usize + 8));
            if back == 0 {
                break;
            }
            counters.push(back);
            if next <= frame {
                break;
            }
            frame = next;
        }
        if counters.len() > 1 {
            let is_end = |address| self.program.function(address).is_some_and(|f| f.name == "runtime.goexit");
            counters.pop_if(|last| is_end(*last));
        }
        counters.retain(|counter| *counter != 0);
        counters
    }
}

/// Whether the outermost function of a goroutine belongs to the runtime: the garbage collector's workers and
/// the like. `runtime.main` calls the program's.
fn is_of_runtime(name: &str) -> bool {
    name.starts_with("runtime.") && name != "runtime.main"
}

/// What a parked goroutine waits for, by the functions of the standard library within its `own` function.
fn wait(names: &[&str], own: Option<usize>) -> (TaskState, Option<String>) {
    let library = &names[..own.unwrap_or(names.len())];
    let has = |wanted: &[&str]| library.iter().any(|name| wanted.contains(name));
    if has(&["database/sql.(*DB).conn"]) {
        return (TaskState::Lock, Some("a connection of database/sql's pool".to_string()));
    }
    if has(&["sync.(*RWMutex).Lock", "sync.(*RWMutex).RLock"]) {
        return (TaskState::Lock, Some("sync.RWMutex".to_string()));
    }
    let is_mutex = |name: &&str| name.ends_with("sync.(*Mutex).lockSlow") || name.ends_with("Mutex).Lock");
    if library.iter().any(|name| is_mutex(name) || name.ends_with("sync.runtime_SemacquireMutex")) {
        return (TaskState::Lock, Some("sync.Mutex".to_string()));
    }
    if has(&["time.Sleep"]) {
        return (TaskState::Sleep, None);
    }
    let accepts = library.iter().any(|name| name.ends_with(").Accept"));
    match own {
        Some(_) if !accepts && has(&["internal/poll.runtime_pollWait"]) => (TaskState::Network, None),
        Some(_) if !accepts => (TaskState::Signal, None),
        _ => (TaskState::Idle, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(layout: Layout, id: u64, status: u32) -> Vec<u8> {
        let mut record = vec![0; RECORD];
        let mut put = |at: usize, value: u64| record[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(LOW, 0xc000_0000);
        put(HIGH, 0xc000_8000);
        put(POINTER, 0xc000_7000);
        put(SELF, 0xc100_0000 + id);
        put(layout.frame, 0xc000_7040);
        put(layout.status, u64::from(status));
        put(layout.id, id);
        record
    }

    #[test]
    fn the_layout_of_the_records_is_recognised_by_their_content() {
        for layout in LAYOUTS {
            let states = [WAITING, RUNNING, WAITING | SCANNED, DEAD, SYSCALL, SPARE];
            let records =
                states.iter().enumerate().flat_map(|(n, status)| record(layout, n as u64 + 1, *status));
            assert_eq!(layout_of(&records.collect::<Vec<_>>()), Some(layout));
        }
        assert_eq!(layout_of(&[0; RECORD * 3]), None);
        assert_eq!(layout_of(&[0xff; RECORD * 3]), None);
    }

    #[test]
    fn a_wait_is_named_by_the_library_within_the_programs_function() {
        let mutex =
            ["runtime.gopark", "sync.runtime_SemacquireMutex", "sync.(*Mutex).lockSlow", "main.update"];
        assert_eq!(wait(&mutex, Some(3)), (TaskState::Lock, Some("sync.Mutex".to_string())));
        assert_eq!(wait(&["runtime.gopark", "time.Sleep", "main.x"], Some(2)).0, TaskState::Sleep);
        let reads = ["internal/poll.runtime_pollWait", "net.(*conn).Read", "main.serve"];
        assert_eq!(wait(&reads, Some(2)).0, TaskState::Network);
        assert_eq!(wait(&reads[..2], None).0, TaskState::Idle);
        let accepts = ["internal/poll.runtime_pollWait", "net.(*TCPListener).Accept", "main.main"];
        assert_eq!(wait(&accepts, Some(2)).0, TaskState::Idle);
        assert_eq!(wait(&["runtime.chanrecv1", "main.work"], Some(1)).0, TaskState::Signal);
    }
}
