//! Threads of CPython, 3.8 and later.
//!
//! Frames and the holder of the interpreter lock come from py-spy's library in its mode without stops: it
//! knows the structures of every version, opens a process in 2 to 70 ms and reads 7 threads in 0.5 ms, and it
//! builds with cargo alone. Tables of the same offsets here would have to follow each version of Python, for
//! 2 MB less of code.
//!
//! What a thread waits for is its system call. The interpreter lock is a variable of the interpreter itself,
//! so a futex in the data of its executable or library is that lock; every other lock of Python is in
//! memory that was allocated, or on a waiter's stack. Interpreters beside the main interpreter are not read,
//! and neither are threads that run no Python.

mod classify;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Context, Result, bail};
use py_spy::config::{Config, LockingStrategy};
use py_spy::{PythonSpy, StackTrace};

use super::{Opened, Reader, unreadable};
use crate::collect::calls::{self, FUTEX, is_lock_wait};
use crate::collect::procfs::{self, InCall};
use crate::collect::threads;
use crate::recording::{Runtime, Task};
use classify::Activity;

/// A sample of more threads would cost more than 30 ms.
const THREADS_MAX: usize = 500;
/// Attempts of one sample: frames change while they are read.
const ATTEMPTS: u32 = 3;
/// The first version whose lock of the interpreter and frames are as described here.
const MINOR_MIN: u32 = 8;

pub(super) fn open(pid: i32) -> Opened {
    let Some(maps) = procfs::read(procfs::path(pid, "maps")).filter(|maps| !maps.is_empty()) else {
        // Another user's process shows its command line only.
        let command = procfs::read(procfs::path(pid, "cmdline"))?;
        return version_of_program(command.split('\0').next()?).map(|version| Err(refused(&version)));
    };
    let program = std::fs::read_link(procfs::path(pid, "exe")).ok()?;
    let image = find_image(&maps, &program.to_string_lossy())?;
    Some(open_image(pid, &maps, image))
}

fn open_image(pid: i32, maps: &str, image: Image) -> Result<Box<dyn Reader>, Runtime> {
    let name = name(&image.version);
    if image.version.ends_with('t') {
        return Err(unreadable(name, "the builds without an interpreter lock cannot be read"));
    }
    if minor(&image.version).is_some_and(|minor| minor < MINOR_MIN) {
        return Err(unreadable(name, "only Python 3.8 and later can be read"));
    }
    let Ok(memory) = File::open(procfs::path(pid, "mem")) else { return Err(refused(&image.version)) };
    let status = procfs::read(procfs::path(pid, "status")).unwrap_or_default();
    Ok(Box::new(Python {
        pid,
        name,
        memory,
        data: data_of(maps, &image.path),
        is_nested: inner_id(&status).is_some_and(|inner| inner != pid),
        on_descriptor: calls::on_descriptor(),
        spy: None,
    }))
}

fn refused(version: &str) -> Runtime {
    unreadable(
        name(version),
        "its memory may not be read: run evenkeel-doctor as root, or with CAP_SYS_PTRACE",
    )
}

fn name(version: &str) -> String {
    format!("Python {version}").trim_end().to_string()
}

/// The file that has the interpreter, and its version as far as names tell: "3.11".
#[derive(Debug, PartialEq, Eq)]
struct Image {
    path: String,
    version: String,
}

/// Finds the interpreter among the mapped files: libpython, or the executable if that is Python, or if a
/// module for Python is mapped.
fn find_image(maps: &str, program: &str) -> Option<Image> {
    let files: HashSet<&str> = maps.lines().filter_map(|line| Some(parse_mapping(line)?.2)).collect();
    let library = files.iter().find_map(|path| Some((*path, version_of_library(path)?)));
    if let Some((path, version)) = library {
        return Some(Image { path: path.to_string(), version });
    }
    let program = program.trim_end_matches(" (deleted)");
    let of_module = || files.iter().find_map(|path| version_of_module(path));
    let version = match version_of_program(program) {
        Some(version) if version.is_empty() => of_module().unwrap_or_default(),
        Some(version) => version,
        None => of_module()?,
    };
    Some(Image { path: program.to_string(), version })
}

/// Returns a mapping's addresses, whether it is writable, and its file, which may be empty.
fn parse_mapping(line: &str) -> Option<(Range<u64>, bool, &str)> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let addresses = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
    let is_writable = fields.next()?.contains('w');
    let file = fields.nth(3).unwrap_or("").trim();
    Some((addresses, is_writable, file.trim_end_matches(" (deleted)")))
}

/// "3.11" of ".../libpython3.11.so.1.0".
fn version_of_library(path: &str) -> Option<String> {
    let version = base_name(path).strip_prefix("libpython")?.split_once(".so")?.0;
    (version.starts_with(|digit: char| digit.is_ascii_digit()) && version.contains('.'))
        .then(|| version.to_string())
}

/// "3.11" of ".../python3.11", and "" of ".../python"; `None` of other programs.
fn version_of_program(path: &str) -> Option<String> {
    let version = base_name(path).strip_prefix("python")?;
    let version = version.trim_end_matches("-dbg");
    let is_version = version.trim_end_matches(['d', 't']).chars().all(|c| c.is_ascii_digit() || c == '.');
    is_version.then(|| if version.contains('.') { version.to_string() } else { String::new() })
}

/// "3.11" of ".../_json.cpython-311-x86_64-linux-gnu.so".
fn version_of_module(path: &str) -> Option<String> {
    let version = base_name(path).split_once(".cpython-3")?.1.split('-').next()?;
    let is_version = version.starts_with(|digit: char| digit.is_ascii_digit());
    is_version.then(|| format!("3.{version}"))
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn minor(version: &str) -> Option<u32> {
    let (major, minor) = version.split_once('.')?;
    if major == "3" { minor.trim_end_matches(['d', 'm', 'u']).parse().ok() } else { Some(0) }
}

/// Returns the addresses of a file's variables: its writable mappings, and the nameless mapping behind.
fn data_of(maps: &str, image: &str) -> Vec<Range<u64>> {
    let mut data: Vec<Range<u64>> = Vec::new();
    for (addresses, is_writable, file) in maps.lines().filter_map(parse_mapping) {
        let follows = data.last().is_some_and(|last| last.end == addresses.start);
        if is_writable && (file == image || file.is_empty() && follows) {
            data.push(addresses);
        }
    }
    data
}

struct Python {
    pid: i32,
    name: String,
    memory: File,
    /// Addresses of the interpreter's variables.
    data: Vec<Range<u64>>,
    /// Whether the process has numbers of its own for threads: it runs in a container.
    is_nested: bool,
    on_descriptor: [bool; calls::NUMBER_MAX],
    spy: Option<PythonSpy>,
}

impl Reader for Python {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn sample(&mut self) -> Result<Vec<Task>> {
        let tids = procfs::threads(self.pid);
        if tids.len() > THREADS_MAX {
            bail!("it has {} threads, and at most {THREADS_MAX} are read", tids.len());
        }
        let runs: HashMap<i32, u64> = tids.iter().filter_map(|&tid| Some((tid, self.runs(tid)?))).collect();
        let traces = self.traces()?;
        let threads = self.threads_of(&traces, &tids);
        let task = |(trace, tid): (&StackTrace, Option<i32>)| {
            let tid = tid?;
            let activity = self.activity(tid)?;
            // The lock may have gone to another thread since; a thread that was blocked all the time has it
            // still.
            let still = activity == Activity::Running
                || activity != Activity::InterpreterLock && self.runs(tid) == runs.get(&tid).copied();
            Some(classify::task(&trace.frames, &activity, trace.owns_gil && still))
        };
        Ok(traces.iter().zip(threads).filter_map(task).collect())
    }
}

impl Python {
    fn traces(&mut self) -> Result<Vec<StackTrace>> {
        let mut attempt = 1;
        loop {
            match self.read_traces() {
                Err(_) if attempt < ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    fn read_traces(&mut self) -> Result<Vec<StackTrace>> {
        if self.spy.is_none() {
            let spy = open_spy(self.pid)?;
            self.name = format!("Python {}.{}.{}", spy.version.major, spy.version.minor, spy.version.patch);
            self.spy = Some(spy);
        }
        let spy = self.spy.as_mut().context("the process is open")?;
        without_panic(|| spy.get_stack_traces())
    }

    /// How often a thread got a CPU.
    fn runs(&self, tid: i32) -> Option<u64> {
        let text = procfs::read(procfs::task_path(self.pid, tid, "schedstat"))?;
        procfs::parse_schedstat(&text).map(|(_, _, runs)| runs)
    }

    /// Returns the thread of each trace, by the number that the kernel has for it here.
    fn threads_of(&self, traces: &[StackTrace], tids: &[i32]) -> Vec<Option<i32>> {
        let outer: HashMap<i32, i32> = tids.iter().filter_map(|&tid| Some((self.inner(tid)?, tid))).collect();
        // Before 3.11, Python knows only the address of the C library's structure.
        let inner = if traces.iter().any(|trace| trace.os_thread_id.is_some()) {
            traces.iter().map(|trace| i32::try_from(trace.os_thread_id?).ok()).collect()
        } else {
            let structures: Vec<Vec<i32>> = traces.iter().map(|trace| self.words(trace.thread_id)).collect();
            find_ids(&structures, &outer.keys().copied().collect())
        };
        inner.into_iter().map(|inner| outer.get(&inner?).copied()).collect()
    }

    /// The number that the process itself knows for a thread.
    fn inner(&self, tid: i32) -> Option<i32> {
        if !self.is_nested {
            return Some(tid);
        }
        inner_id(&procfs::read(procfs::task_path(self.pid, tid, "status"))?)
    }

    /// The beginning of the C library's structure of a thread.
    fn words(&self, address: u64) -> Vec<i32> {
        let mut bytes = [0; 1024];
        if self.memory.read_exact_at(&mut bytes, address).is_err() {
            return Vec::new();
        }
        bytes.chunks_exact(4).map(|word| i32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect()
    }

    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, address).ok()?;
        Some(u64::from_ne_bytes(bytes))
    }

    /// `None` for a thread that has ended.
    fn activity(&self, tid: i32) -> Option<Activity> {
        let text = procfs::read(procfs::task_path(self.pid, tid, "syscall"))?;
        let (number, arguments) = match procfs::parse_syscall(&text)? {
            InCall::Running => return Some(Activity::Running),
            InCall::Elsewhere => return Some(Activity::Elsewhere),
            InCall::Call { number, arguments } => (number, arguments),
        };
        if number == FUTEX && self.data.iter().any(|data| data.contains(&arguments[0])) {
            return Some(Activity::InterpreterLock);
        }
        if number == FUTEX && (is_lock_wait(arguments[1], arguments[2]) || self.is_semaphore(arguments[0])) {
            let stack = text.split_ascii_whitespace().nth(7).and_then(|text| text.strip_prefix("0x"));
            let stack = stack.and_then(|text| u64::from_str_radix(text, 16).ok());
            return Some(Activity::Lock(self.lock_at(arguments[0], stack)));
        }
        let (name, descriptor) = threads::place(&self.on_descriptor, number, arguments);
        let link =
            descriptor.and_then(|fd| std::fs::read_link(procfs::path(self.pid, &format!("fd/{fd}"))).ok());
        let on_socket = link.is_some_and(|link| link.to_string_lossy().starts_with("socket:"));
        Some(Activity::Call { name, arguments, on_socket })
    }

    /// Whether a semaphore of the C library is at an address: Python builds its locks from semaphores. The
    /// number of waiters follows the value, which is zero, negative in musl, or 1 if a waiter is about to
    /// run.
    fn is_semaphore(&self, address: u64) -> bool {
        let Some(word) = self.word(address) else { return false };
        let (value, waiters) = (word as u32 as i32, (word >> 32) as usize);
        value <= 1 && (1..=THREADS_MAX).contains(&waiters)
    }

    /// The lock of a waiter. Python 3.14 has a semaphore on each waiter's stack, and the lock's address in
    /// front of it.
    fn lock_at(&self, futex: u64, stack: Option<u64>) -> u64 {
        let is_on_stack = stack.is_some_and(|stack| (stack..stack.saturating_add(4_096)).contains(&futex));
        let lock = is_on_stack.then(|| self.word(futex.saturating_sub(8))).flatten();
        lock.unwrap_or(futex)
    }
}

fn open_spy(pid: i32) -> Result<PythonSpy> {
    let config =
        Config { blocking: LockingStrategy::NonBlocking, collect_thread_names: false, ..Config::default() };
    without_panic(|| PythonSpy::new(pid, &config))
}

/// Another process's memory may be anything, also a thing that py-spy does not expect.
fn without_panic<T>(read: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| bail!("its memory is not understood"))
}

/// The last number of the line NSpid of `status`: the number within the innermost container.
fn inner_id(status: &str) -> Option<i32> {
    procfs::status_field(status, "NSpid")?.split_ascii_whitespace().last()?.parse().ok()
}

/// Finds threads' numbers in their structures of the C library, at the place where each structure has the
/// number of another thread. The place differs between C libraries and architectures.
fn find_ids(structures: &[Vec<i32>], ids: &HashSet<i32>) -> Vec<Option<i32>> {
    let at = |place: usize| structures.iter().map(move |words| words.get(place).copied());
    let length = structures.iter().map(Vec::len).max().unwrap_or(0);
    let found = (0..length).max_by_key(|&place| {
        let distinct: HashSet<i32> = at(place).flatten().filter(|id| ids.contains(id)).collect();
        // The first of equal places.
        (distinct.len(), std::cmp::Reverse(place))
    });
    let Some(place) = found else { return vec![None; structures.len()] };
    at(place).map(|id| id.filter(|id| ids.contains(id))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0-55e0 r-xp 00000000 fe:00 10                         /usr/local/bin/python3.12
55e0-55f0 rw-p 00010000 fe:00 10                         /usr/local/bin/python3.12
7f10-7f20 r-xp 00000000 fe:00 11                         /usr/local/lib/libpython3.12.so.1.0 (deleted)
7f20-7f30 rw-p 00010000 fe:00 11                         /usr/local/lib/libpython3.12.so.1.0 (deleted)
7f30-7f40 rw-p 00000000 00:00 0 
7f40-7f50 rw-p 00000000 00:00 0 
7f60-7f70 rw-p 00000000 00:00 0 
";

    fn found(maps: &str, program: &str) -> Option<(String, String)> {
        find_image(maps, program).map(|image| (image.path, image.version))
    }

    fn image(path: &str, version: &str) -> Option<(String, String)> {
        Some((path.to_string(), version.to_string()))
    }

    #[test]
    fn the_interpreter_is_the_library_or_the_program_or_what_has_loaded_a_module() {
        let library = "/usr/local/lib/libpython3.12.so.1.0";
        assert_eq!(found(MAPS, "/usr/local/bin/python3.12"), image(library, "3.12"));
        assert_eq!(found(MAPS, "/usr/sbin/uwsgi"), image(library, "3.12"));
        assert_eq!(found("", "/usr/bin/python3.11 (deleted)"), image("/usr/bin/python3.11", "3.11"));
        let module = "7f10-7f20 r-xp 00000000 fe:00 11  /x/lib-dynload/_json.cpython-39-x86_64-linux-gnu.so";
        assert_eq!(found(module, "/opt/app/python"), image("/opt/app/python", "3.9"));
        assert_eq!(found(module, "/usr/sbin/uwsgi"), image("/usr/sbin/uwsgi", "3.9"));
        assert_eq!(found("", "/usr/sbin/nginx"), None);
        assert_eq!(found("", "/usr/bin/python-config"), None);
    }

    #[test]
    fn versions_are_read_from_names() {
        assert_eq!(version_of_program("/usr/bin/python3.13t").as_deref(), Some("3.13t"));
        assert_eq!(version_of_program("python3").as_deref(), Some(""));
        assert_eq!(version_of_library("/usr/lib/libpython3.so"), None);
        assert_eq!(version_of_module("/x/_json.cpython-313t-x86_64-linux-gnu.so").as_deref(), Some("3.13t"));
        assert_eq!(
            (minor("3.11"), minor("3.7m"), minor("2.7"), minor("")),
            (Some(11), Some(7), Some(0), None)
        );
        assert_eq!(name(""), "Python");
    }

    #[test]
    fn data_of_the_interpreter_are_its_writable_mappings_and_those_behind() {
        let data = data_of(MAPS, "/usr/local/lib/libpython3.12.so.1.0");
        assert_eq!(data, [0x7f20..0x7f30, 0x7f30..0x7f40, 0x7f40..0x7f50]);
        let data = data_of(MAPS, "/usr/local/bin/python3.12");
        assert_eq!(data.iter().map(|data| (data.start, data.end)).collect::<Vec<_>>(), [(0x55e0, 0x55f0)]);
        assert!(data_of("cut", "cut").is_empty());
    }

    #[test]
    fn threads_are_found_at_the_place_where_structures_have_distinct_numbers() {
        let ids = HashSet::from([70, 71, 72]);
        // The second word is the number of the process, the third that of the thread.
        let structures = [vec![5, 70, 70, 0], vec![6, 70, 71, 0], Vec::new(), vec![7, 70, 99, 0]];
        assert_eq!(find_ids(&structures, &ids), [Some(70), Some(71), None, None]);
        assert_eq!(find_ids(&[Vec::new()], &ids), [None]);
        assert!(find_ids(&[], &ids).is_empty());
    }

    #[test]
    fn a_thread_of_a_container_has_a_number_within() {
        assert_eq!(inner_id("Name:\tx\nNSpid:\t4711\t17\n"), Some(17));
        assert_eq!(inner_id("Name:\tx\nNSpid:\t4711\n"), Some(4711));
        assert_eq!(inner_id("Name:\tx\n"), None);
    }

    #[test]
    fn a_panic_of_the_reader_is_an_error() {
        assert!(without_panic::<u32>(|| panic!("at a number that is not there")).is_err());
        assert_eq!(without_panic(|| Ok(1)).expect("no panic"), 1);
    }
}
