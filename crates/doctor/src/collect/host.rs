//! The machine around the target: other busy processes, steal time, and counters of the network and of
//! interrupts.

use std::collections::HashMap;

use super::procfs;
use crate::recording::{Counter, Host, Neighbour};

/// Neighbours that a recording keeps.
const NEIGHBOURS_KEPT: usize = 8;
/// CPU time in the window from which a process counts as a neighbour.
const NEIGHBOUR_NS: u64 = 20_000_000;

#[derive(Debug)]
pub(crate) struct Watch {
    pid: i32,
    cpu: (u64, u64),
    processes: HashMap<i32, u64>,
    counters: Vec<(String, u64)>,
}

impl Watch {
    pub(crate) fn begin(pid: i32) -> Watch {
        Watch { pid, cpu: cpu_times(), processes: process_times(), counters: counters(pid) }
    }

    pub(crate) fn end(&self) -> (Host, Vec<Counter>) {
        let (wanted, stolen) = cpu_times();
        let (wanted, stolen) = (wanted.saturating_sub(self.cpu.0), stolen.saturating_sub(self.cpu.1));
        let kernel = procfs::read("/proc/sys/kernel/osrelease".into()).unwrap_or_default();
        let host = Host {
            kernel: kernel.trim().to_string(),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            steal: stolen as f64 / wanted.max(1) as f64,
            neighbours: self.neighbours(),
        };
        let before: HashMap<&str, u64> = self.counters.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        let counters = counters(self.pid).into_iter().filter_map(|(name, value)| {
            let added = value.saturating_sub(*before.get(name.as_str())?);
            Some(Counter { name, added })
        });
        (host, counters.collect())
    }

    fn neighbours(&self) -> Vec<Neighbour> {
        let own = std::process::id().cast_signed();
        let mut neighbours: Vec<Neighbour> = process_times()
            .into_iter()
            .filter(|&(pid, _)| pid != own && pid != self.pid)
            .map(|(pid, ns)| (pid, ns.saturating_sub(self.processes.get(&pid).copied().unwrap_or(0))))
            .filter(|&(_, ns)| ns >= NEIGHBOUR_NS)
            .filter_map(|(pid, cpu_ns)| Some(Neighbour { pid, name: procfs::stat(pid)?.name, cpu_ns }))
            .collect();
        neighbours.sort_by_key(|n| (std::cmp::Reverse(n.cpu_ns), n.pid));
        neighbours.truncate(NEIGHBOURS_KEPT);
        neighbours
    }
}

/// The CPU time that the machine has requested so far, and the stolen part of it; in ticks.
fn cpu_times() -> (u64, u64) {
    parse_cpu_line(&procfs::read("/proc/stat".into()).unwrap_or_default())
}

fn parse_cpu_line(text: &str) -> (u64, u64) {
    const IDLE: usize = 3; // followed by iowait, which is idle too
    const STEAL: usize = 7;
    const GUEST: usize = 8; // from here on guest times, which user and nice include
    let line = text.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or("");
    let times: Vec<u64> = line.split_ascii_whitespace().filter_map(|field| field.parse().ok()).collect();
    let idle: u64 = times.iter().skip(IDLE).take(2).sum();
    (times.iter().take(GUEST).sum::<u64>() - idle, times.get(STEAL).copied().unwrap_or(0))
}

fn process_times() -> HashMap<i32, u64> {
    let time = |pid| procfs::stat(pid).map(|stat| (pid, stat.user_ns + stat.system_ns));
    procfs::processes().into_iter().filter_map(time).collect()
}

/// Returns the counters that rules use, by the names of `nstat` and /proc/interrupts.
fn counters(pid: i32) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for file in ["net/netstat", "net/snmp"] {
        let text = procfs::read(procfs::path(pid, file)).unwrap_or_default();
        found.extend(parse_pairs(&text));
    }
    let interrupts = procfs::read("/proc/interrupts".into()).unwrap_or_default();
    found.extend(parse_interrupts(&interrupts));
    found
}

const PAIRS: &[&str] = &[
    "TcpExtListenOverflows",
    "TcpExtListenDrops",
    "TcpExtTCPTimeouts",
    "TcpExtTCPFromZeroWindowAdv",
    "TcpRetransSegs",
    "TcpPassiveOpens",
];

/// Parses pairs of lines: "TcpExt: name name" and "TcpExt: 1 2".
fn parse_pairs(text: &str) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.chunks_exact(2) {
        let Some((group, names)) = pair[0].split_once(':') else { continue };
        let values = pair[1].split_once(':').map_or("", |(_, values)| values);
        for (name, value) in names.split_ascii_whitespace().zip(values.split_ascii_whitespace()) {
            let name = format!("{group}{name}");
            if let (true, Ok(value)) = (PAIRS.contains(&name.as_str()), value.parse()) {
                found.push((name, value));
            }
        }
    }
    found
}

fn parse_interrupts(text: &str) -> Vec<(String, u64)> {
    let sum_of = |name: &str| {
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name))?;
        Some(line.split_ascii_whitespace().map_while(|field| field.parse::<u64>().ok()).sum())
    };
    sum_of("RES:").map(|count| ("RescheduleInterrupts".to_string(), count)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let text = "TcpExt: SyncookiesSent ListenOverflows ListenDrops\nTcpExt: 1 2 3\n";
        let expected = [("TcpExtListenOverflows".to_string(), 2), ("TcpExtListenDrops".to_string(), 3)];
        assert_eq!(parse_pairs(text), expected);
        assert!(parse_pairs("TcpExt: cut").is_empty());
    }

    #[test]
    fn interrupts_are_added_over_cpus() {
        let text = "           CPU0       CPU1\n RES:       10         20   Rescheduling interrupts\n";
        assert_eq!(parse_interrupts(text), [("RescheduleInterrupts".to_string(), 30)]);
    }

    #[test]
    fn stolen_time_is_a_part_of_all_time() {
        assert_eq!(parse_cpu_line("cpu  10 0 20 60 0 0 0 10 5 0\ncpu0 1\n"), (40, 10));
    }
}
