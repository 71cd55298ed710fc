//! Resource use of a process, from the scheduler's clock and `/proc`.
//!
//! CPU time comes from the process' CPU clock: nanoseconds, all threads, including ended threads.
//! `/proc/PID/stat` only serves to divide it into user and system, since it counts in ticks of 10 ms. Context
//! switches are summed over the living threads: the kernel keeps no sum for the process. A thread's run time
//! is in its `schedstat`.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::sys;

/// A process' use of the machine up to now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) pid: u32,
    cpu_ns: u64,
    user_ticks: u64,
    system_ticks: u64,
    pub(crate) rss_bytes: u64,
    voluntary_switches: u64,
    involuntary_switches: u64,
    /// Minor and major.
    page_faults: u64,
    /// Run time of each thread, in nanoseconds, by its number.
    ran_ns: Vec<(u64, u64)>,
}

/// The use between two looks.
#[derive(Clone, Debug)]
pub(crate) struct Spent {
    pub(crate) cpu: Duration,
    /// Run time of the thread that ran most.
    pub(crate) busiest: Duration,
    /// Share of the CPU time that was spent in the kernel, 0 to 1.
    pub(crate) system_share: f64,
    pub(crate) rss_bytes: u64,
    pub(crate) voluntary_switches: u64,
    pub(crate) involuntary_switches: u64,
    /// Minor and major.
    pub(crate) page_faults: u64,
}

impl Spent {
    /// Returns the sum for two processes over the same time.
    pub(crate) fn and(&self, other: &Self) -> Self {
        let cpu = self.cpu + other.cpu;
        let system = self.cpu.mul_f64(self.system_share) + other.cpu.mul_f64(other.system_share);
        Self {
            cpu,
            busiest: self.busiest.max(other.busiest),
            system_share: system.as_secs_f64() / cpu.as_secs_f64().max(1e-9),
            rss_bytes: self.rss_bytes + other.rss_bytes,
            voluntary_switches: self.voluntary_switches + other.voluntary_switches,
            involuntary_switches: self.involuntary_switches + other.involuntary_switches,
            page_faults: self.page_faults + other.page_faults,
        }
    }
}

impl Usage {
    pub(crate) fn since(&self, before: &Self) -> Spent {
        let user = self.user_ticks - before.user_ticks;
        let system = self.system_ticks - before.system_ticks;
        Spent {
            cpu: Duration::from_nanos(self.cpu_ns - before.cpu_ns),
            busiest: Duration::from_nanos(self.busiest_ns(before)),
            system_share: system as f64 / (user + system).max(1) as f64,
            rss_bytes: self.rss_bytes,
            voluntary_switches: self.voluntary_switches.saturating_sub(before.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_sub(before.involuntary_switches),
            page_faults: self.page_faults.saturating_sub(before.page_faults),
        }
    }

    fn busiest_ns(&self, before: &Self) -> u64 {
        let at_first =
            |thread| before.ran_ns.iter().find(|(number, _)| *number == thread).map_or(0, |(_, ran)| *ran);
        self.ran_ns.iter().map(|(thread, ran)| ran.saturating_sub(at_first(*thread))).max().unwrap_or(0)
    }
}

/// Resident bytes of a process, of which memory that several processes map counts in parts; zero if it has
/// ended. The kernel walks the page tables for it.
pub(crate) fn proportional_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    field(&text, "Pss:").map_or(0, |kb| kb * 1024)
}

/// Bytes of a process and of all its descendants; memory that they share counts once.
fn proportional_bytes_of_family(pid: u32) -> u64 {
    let own = proportional_bytes(pid);
    own + children(pid).into_iter().map(proportional_bytes_of_family).sum::<u64>()
}

/// The most memory that processes and their descendants have taken together.
///
/// The kernel walks all page tables for a look: 20 ms for 5 GB, on a core that the servers lack meanwhile. So
/// looks take a [`LOOKS_SHARE`]th of the time at most.
pub(crate) struct PeakMemory {
    pids: Vec<u32>,
    bytes: u64,
    not_before: Instant,
}

impl PeakMemory {
    pub(crate) fn of(pids: impl IntoIterator<Item = u32>) -> PeakMemory {
        PeakMemory { pids: pids.into_iter().collect(), bytes: 0, not_before: Instant::now() }
    }

    /// Looks at the processes, unless it is too early, and returns the largest sum so far, in bytes.
    pub(crate) fn look(&mut self) -> u64 {
        let began = Instant::now();
        if began >= self.not_before {
            self.bytes = self.bytes.max(self.pids.iter().copied().map(proportional_bytes_of_family).sum());
            self.not_before = Instant::now() + began.elapsed() * LOOKS_SHARE;
        }
        self.bytes
    }
}

/// See [`PeakMemory`].
const LOOKS_SHARE: u32 = 20;

/// Measures process `pid`.
pub(crate) fn usage(pid: u32) -> Result<Usage> {
    let read = |file: &str| {
        let path = format!("/proc/{pid}/{file}");
        fs::read_to_string(&path).with_context(|| format!("cannot read {path}: has the server ended?"))
    };
    let Stat { page_faults, user_ticks, system_ticks } =
        stat(&read("stat")?).context("unknown form of /proc/PID/stat")?;
    let rss_kb = field(&read("status")?, "VmRSS:").context("no VmRSS in /proc/PID/status")?;
    let Threads { voluntary_switches, involuntary_switches, ran_ns } = threads(pid)?;
    let cpu_ns = sys::process_cpu_ns(pid).context("cannot read the server's CPU clock")?;
    let rss_bytes = rss_kb * 1024;
    Ok(Usage {
        pid,
        cpu_ns,
        user_ticks,
        system_ticks,
        rss_bytes,
        voluntary_switches,
        involuntary_switches,
        page_faults,
        ran_ns,
    })
}

/// Statistics that the kernel keeps only for single, living threads.
#[derive(Default)]
struct Threads {
    voluntary_switches: u64,
    involuntary_switches: u64,
    ran_ns: Vec<(u64, u64)>,
}

fn threads(pid: u32) -> Result<Threads> {
    let mut sum = Threads::default();
    for thread in fs::read_dir(format!("/proc/{pid}/task")).context("the server has no threads")? {
        let thread = thread?;
        let read = |file| fs::read_to_string(thread.path().join(file));
        // it just ended
        let (Ok(status), Ok(schedstat)) = (read("status"), read("schedstat")) else { continue };
        sum.voluntary_switches += field(&status, "voluntary_ctxt_switches:").unwrap_or(0);
        sum.involuntary_switches += field(&status, "nonvoluntary_ctxt_switches:").unwrap_or(0);
        let number = thread.file_name().to_string_lossy().parse().ok();
        let ran = schedstat.split_ascii_whitespace().next().and_then(|ran| ran.parse().ok());
        sum.ran_ns.extend(number.zip(ran));
    }
    Ok(sum)
}

/// Fields of a `/proc/PID/stat` line.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    page_faults: u64,
    user_ticks: u64,
    system_ticks: u64,
}

/// The command's name, second, may hold spaces and parentheses.
fn stat(line: &str) -> Option<Stat> {
    let after_name = &line[line.rfind(')')? + 1..];
    let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
    // the state is the third of all fields
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Stat { page_faults: field(10)? + field(12)?, user_ticks: field(14)?, system_ticks: field(15)? })
}

/// Returns the first number of the line that begins with `name`.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns the children of a process; none if it has ended.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let of_task = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).ok();
    let lists = tasks.into_iter().flatten().flatten().filter_map(of_task);
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>())
        .collect()
}

/// Returns the connections that this machine's kernel dropped because a listener's queue was full; 0 if it
/// does not say.
pub(crate) fn listen_overflows() -> u64 {
    let text = fs::read_to_string("/proc/net/netstat").unwrap_or_default();
    netstat(&text, "TcpExt:", "ListenOverflows").unwrap_or(0)
}

/// `/proc/net/netstat` has a line of names and a line of numbers for each `group`.
fn netstat(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let column = names.split_ascii_whitespace().position(|this| this == name)?;
    numbers.split_ascii_whitespace().nth(column)?.parse().ok()
}

/// Returns the interrupts between the machine's processors since its start: for rescheduling (`RES`), and for
/// function calls (`CAL`), which wake threads, too. 0 if the kernel does not say.
pub(crate) fn interrupts_between_cpus() -> (u64, u64) {
    let text = fs::read_to_string("/proc/interrupts").unwrap_or_default();
    (interrupts(&text, "RES:"), interrupts(&text, "CAL:"))
}

/// Returns the sum over all processors of a line of `/proc/interrupts`.
fn interrupts(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name));
    line.into_iter().flat_map(str::split_ascii_whitespace).map_while(|count| count.parse::<u64>().ok()).sum()
}

/// Returns the memory available without swapping, in bytes.
pub(crate) fn memory_available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    field(&text, "MemAvailable:").unwrap_or(0) * 1024
}

pub(crate) fn memory_total() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    field(&text, "MemTotal:").unwrap_or(0) * 1024
}

/// Returns the processor's name, as the kernel prints it.
pub(crate) fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(':')).map_or("unknown".into(), |(_, model)| model.trim().to_owned())
}

pub(crate) fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_do_no_harm() {
        let numbers = "S 1 2 3 4 5 6 7 8 9 10 700 42 0 0 20 0 1 0";
        let expected = Stat { page_faults: 7 + 9, user_ticks: 700, system_ticks: 42 };
        for name in ["redis-server", "a b", "x) R 1", ""] {
            assert_eq!(stat(&format!("77 ({name}) {numbers}")).as_ref(), Some(&expected), "{name}");
        }
        assert_eq!(stat("77 (x) S 1 2"), None);
        assert_eq!(stat(""), None);
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let status =
            "Name:\tx\nVmRSS:\t   1234 kB\nnonvoluntary_ctxt_switches:\t6\nvoluntary_ctxt_switches:\t5\n";
        assert_eq!(field(status, "VmRSS:"), Some(1234));
        assert_eq!(field(status, "voluntary_ctxt_switches:"), Some(5));
        assert_eq!(field(status, "nonvoluntary_ctxt_switches:"), Some(6));
        assert_eq!(field(status, "VmHWM:"), None);
    }

    #[test]
    fn netstat_pairs_names_with_numbers() {
        let text = "TcpExt: SyncookiesSent ListenOverflows ListenDrops\n\
        TcpExt: 1 22 333\nIpExt: ListenOverflows\nIpExt: 9\n";
        assert_eq!(netstat(text, "TcpExt:", "ListenOverflows"), Some(22));
        assert_eq!(netstat(text, "TcpExt:", "Nothing"), None);
        assert_eq!(netstat("", "TcpExt:", "ListenOverflows"), None);
    }

    #[test]
    fn interrupts_are_summed_over_the_processors() {
        let text = "           CPU0       CPU1\n  0:         20          0   IO-APIC   2-edge      timer\n\
             RES:       1200        34   Rescheduling interrupts\nCAL:   5   6   Function call interrupts\n";
        assert_eq!((interrupts(text, "RES:"), interrupts(text, "CAL:")), (1_234, 11));
        assert_eq!(interrupts(text, "TLB:"), 0);
    }

    #[test]
    fn two_processes_add_up() {
        let spent = |ms, system_share| Spent {
            cpu: Duration::from_millis(ms),
            busiest: Duration::from_millis(ms),
            system_share,
            rss_bytes: 10,
            voluntary_switches: 1,
            involuntary_switches: 2,
            page_faults: 3,
        };
        let both = spent(30, 1.0).and(&spent(10, 0.0));
        assert_eq!((both.cpu, both.busiest), (Duration::from_millis(40), Duration::from_millis(30)));
        assert!((both.system_share - 0.75).abs() < 1e-9);
    }

    #[test]
    fn a_busy_loop_shows_in_the_cpu_time() {
        let before = usage(std::process::id()).expect("own process");
        let until = sys::thread_cpu_ns() + 30_000_000;
        while sys::thread_cpu_ns() < until {}
        let spent = usage(std::process::id()).expect("own process").since(&before);
        assert!(spent.cpu >= Duration::from_millis(30), "{spent:?}");
        assert!(spent.busiest >= Duration::from_millis(20), "{spent:?}");
        assert!(spent.rss_bytes > 0);
    }
}
