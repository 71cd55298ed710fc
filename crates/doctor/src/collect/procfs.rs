//! Files of /proc as values. Each parser is a function of a text, with a thin reader beside it.
//!
//! A process may end between two reads, and threads end all the time: readers return `None` for missing
//! files.

use std::fs;
use std::path::PathBuf;

/// Length of a tick of the times in `stat`: user space sees 100 Hz on every supported architecture.
const TICK_NS: u64 = 10_000_000;

/// Threads whose child processes are listed: a process with more has them for its clients.
const CHILD_THREADS_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) name: String,
    pub(crate) state: char,
    pub(crate) parent: i32,
    /// A kernel thread, which has no program and no memory of its own.
    pub(crate) is_of_kernel: bool,
    pub(crate) faults_minor: u64,
    pub(crate) faults_major: u64,
    pub(crate) user_ns: u64,
    pub(crate) system_ns: u64,
    /// In ticks since boot: together with the pid, it identifies a process for good.
    pub(crate) started: u64,
}

/// A kernel task flag, which /proc shows unchanged.
const PF_KTHREAD: u64 = 0x0020_0000;

/// Parses `stat`. The name is in parentheses and may hold blanks and parentheses itself: the last closing
/// parenthesis ends it.
pub(crate) fn parse_stat(text: &str) -> Option<Stat> {
    let (open, close) = (text.find('(')?, text.rfind(')')?);
    // A process may set its name to any bytes.
    let name = text.get(open + 1..close)?.replace(char::is_control, "?");
    let fields: Vec<&str> = text.get(close + 1..)?.split_ascii_whitespace().collect();
    // Field 3 of proc_pid_stat(5) is the first here.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Stat {
        name,
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        is_of_kernel: number(9)? & PF_KTHREAD != 0,
        faults_minor: number(10)?,
        faults_major: number(12)?,
        user_ns: number(14)?.saturating_mul(TICK_NS),
        system_ns: number(15)?.saturating_mul(TICK_NS),
        started: number(22)?,
    })
}

/// Returns time on a CPU, time in the run queue, and how often the thread got a CPU.
pub(crate) fn parse_schedstat(text: &str) -> Option<(u64, u64, u64)> {
    let mut numbers = text.split_ascii_whitespace().map(|field| field.parse::<u64>().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InCall {
    Running,
    /// Blocked, but not in a system call: a page fault.
    Elsewhere,
    Call {
        number: i64,
        arguments: [u64; 6],
    },
}

/// Parses "running", "-1 stack pc", or the number, six arguments, and both registers.
pub(crate) fn parse_syscall(text: &str) -> Option<InCall> {
    let mut fields = text.split_ascii_whitespace();
    let first = fields.next()?;
    if first == "running" {
        return Some(InCall::Running);
    }
    let number: i64 = first.parse().ok()?;
    if number < 0 {
        return Some(InCall::Elsewhere);
    }
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    Some(InCall::Call { number, arguments })
}

/// Parses the kernel's functions, a line "[<0>] name+0x1/0x2" each, the innermost first.
#[cfg(feature = "bpf")]
pub(crate) fn parse_stack(text: &str) -> Vec<String> {
    let name = |line: &str| Some(line.split_once("] ")?.1.split('+').next()?.to_string());
    text.lines().filter_map(name).collect()
}

/// Returns the value of a line "Name:   value" of `status`.
pub(crate) fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let line = status.lines().find(|line| line.split(':').next() == Some(name))?;
    Some(line.split_once(':')?.1.trim())
}

/// Returns the number of CPUs in a list like "0-3,7".
pub(crate) fn count_cpus(list: &str) -> u32 {
    let count_range = |range: &str| -> Option<u32> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.split(',').filter_map(count_range).fold(0, u32::saturating_add)
}

pub(crate) fn path(pid: i32, rest: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{rest}"))
}

pub(crate) fn task_path(pid: i32, tid: i32, rest: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/task/{tid}/{rest}"))
}

pub(crate) fn read(path: PathBuf) -> Option<String> {
    fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

pub(crate) fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&read(path(pid, "stat"))?)
}

/// Returns the sorted numbers that name a folder's entries: processes, threads or descriptors.
pub(crate) fn numbers_in(folder: PathBuf) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut numbers: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

pub(crate) fn processes() -> Vec<i32> {
    numbers_in(PathBuf::from("/proc"))
}

pub(crate) fn threads(pid: i32) -> Vec<i32> {
    numbers_in(path(pid, "task"))
}

/// Child processes of all threads; none on kernels without CONFIG_PROC_CHILDREN.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let of_thread = |tid| read(task_path(pid, tid, "children")).unwrap_or_default();
    let all: Vec<String> = threads(pid).into_iter().take(CHILD_THREADS_MAX).map(of_thread).collect();
    all.iter().flat_map(|text| text.split_ascii_whitespace()).filter_map(|text| text.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_contain_parentheses() {
        let text = "42 (a) b (c) S 1 42 42 0 -1 4194560 10 0 2 0 300 40 0 0 20 0 4 0 77 0 0";
        let stat = parse_stat(text).expect("a stat line");
        assert_eq!((stat.name.as_str(), stat.state, stat.parent), ("a) b (c", 'S', 1));
        assert_eq!((stat.faults_minor, stat.faults_major, stat.started), (10, 2, 77));
        assert_eq!((stat.user_ns, stat.system_ns), (3_000_000_000, 400_000_000));
        assert!(!stat.is_of_kernel);
        let of_kernel = text.replace("4194560", "2129984");
        assert!(parse_stat(&of_kernel).expect("a stat line").is_of_kernel);
        assert_eq!(parse_stat("42 (cut"), None);
        assert_eq!(parse_stat("42 (cut) S 1"), None);
    }

    #[test]
    fn the_call_of_a_thread_is_read() {
        assert_eq!(parse_syscall("running\n"), Some(InCall::Running));
        assert_eq!(parse_syscall("-1 0x7ffc 0x55\n"), Some(InCall::Elsewhere));
        let call = parse_syscall("232 0x5 0x7f 0x10 0xffffffff 0x0 0x8 0x7ffc 0x55\n");
        assert_eq!(call, Some(InCall::Call { number: 232, arguments: [5, 0x7f, 16, 0xffff_ffff, 0, 8] }));
        assert_eq!(parse_syscall("232 0x5"), None);
    }

    #[cfg(feature = "bpf")]
    #[test]
    fn the_kernels_functions_are_read_from_the_innermost_on() {
        let text = "[<0>] percpu_rwsem_wait+0x15f/0x1d0\n[<0>] vfs_write+0x2/0x3\ncut\n";
        assert_eq!(parse_stack(text), ["percpu_rwsem_wait", "vfs_write"]);
        assert!(parse_stack("").is_empty());
    }

    #[test]
    fn lists_of_cpus_are_counted() {
        assert_eq!(count_cpus("0"), 1);
        assert_eq!(count_cpus("0-3,7"), 5);
        assert_eq!(count_cpus("3-1"), 0);
        assert_eq!(count_cpus(""), 0);
    }

    #[test]
    fn a_field_is_known_by_its_whole_name() {
        let status = "Name:\tx\nnonvoluntary_ctxt_switches:\t7\nvoluntary_ctxt_switches:\t9\n";
        assert_eq!(status_field(status, "voluntary_ctxt_switches"), Some("9"));
        assert_eq!(status_field(status, "ctxt_switches"), None);
    }
}
