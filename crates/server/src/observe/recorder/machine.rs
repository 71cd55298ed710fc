//! What the kernel says about this process and its machine, without privileges: pressure, the limits of
//! control groups, and the times in which threads waited for a CPU.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::observe::process;

/// Counters since the start of the machine, in microseconds; zero where the kernel does not have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MachineCounters {
    pub(super) throttled_us: u64,
    pub(super) pressure_cpu_us: u64,
    pub(super) pressure_memory_us: u64,
    pub(super) pressure_io_us: u64,
}

/// Files of the kernel, which stay open.
pub(super) struct Machine {
    /// `cpu.stat` of the control groups of this process, from its own up.
    groups: Vec<File>,
    cpu: Option<File>,
    memory: Option<File>,
    io: Option<File>,
}

impl Default for Machine {
    fn default() -> Machine {
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let pressure = |name: &str| File::open(Path::new("/proc/pressure").join(name)).ok();
        Machine {
            groups: stat_files(&groups).iter().filter_map(|path| File::open(path).ok()).collect(),
            cpu: pressure("cpu"),
            memory: pressure("memory"),
            io: pressure("io"),
        }
    }
}

impl Machine {
    pub(super) fn read(&self) -> MachineCounters {
        let of = |file: &Option<File>| file.as_ref().and_then(read).map_or(0, |text| some_total_us(&text));
        MachineCounters {
            throttled_us: self.groups.iter().filter_map(read).map(|text| throttled_us(&text)).sum(),
            pressure_cpu_us: of(&self.cpu),
            pressure_memory_us: of(&self.memory),
            pressure_io_us: of(&self.io),
        }
    }
}

/// The times for which workers waited for a CPU.
#[derive(Default)]
pub(super) struct RunQueues {
    /// `schedstat` by worker.
    files: Vec<Option<File>>,
}

impl RunQueues {
    /// Looks for the threads of workers whose files are not open yet: they may start later than this thread.
    pub(super) fn find(&mut self, workers: usize) {
        self.files.resize_with(workers, || None);
        if self.files.iter().all(Option::is_some) {
            return;
        }
        let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return };
        for task in tasks.flatten() {
            let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            let index = name.trim().strip_prefix("worker-").and_then(|number| number.parse::<usize>().ok());
            if let Some(file) = index.and_then(|index| self.files.get_mut(index)) {
                *file = File::open(task.path().join("schedstat")).ok();
            }
        }
    }

    /// Returns the microseconds that a worker has waited since its start; zero if that is unknown.
    pub(super) fn waited_us(&self, worker: usize) -> u64 {
        let text = self.files.get(worker).and_then(Option::as_ref).and_then(read);
        let waited_ns = text.and_then(|text| text.split(' ').nth(1).and_then(|ns| ns.parse::<u64>().ok()));
        waited_ns.unwrap_or(0) / 1_000
    }
}

/// Reads a small file from its beginning.
fn read(file: &File) -> Option<String> {
    let mut buffer = [0; 1024];
    let len = file.read_at(&mut buffer, 0).ok()?;
    Some(String::from_utf8_lossy(&buffer[..len]).into_owned())
}

/// Parses `some avg10=0.00 avg60=0.00 avg300=0.00 total=123`, which is the first line.
fn some_total_us(pressure: &str) -> u64 {
    let line = pressure.lines().find(|line| line.starts_with("some ")).unwrap_or_default();
    let total = line.split(' ').find_map(|word| word.strip_prefix("total="));
    total.and_then(|total| total.parse().ok()).unwrap_or(0)
}

/// Parses the time of version 2 in microseconds, and of version 1 in nanoseconds.
fn throttled_us(stat: &str) -> u64 {
    let find = |name: &str| -> Option<u64> {
        stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    find("throttled_usec ").or_else(|| find("throttled_time ").map(|ns| ns / 1_000)).unwrap_or(0)
}

/// Returns the `cpu.stat` of the control groups in `/proc/self/cgroup` and of their ancestors.
fn stat_files(groups: &str) -> Vec<PathBuf> {
    process::group_files(groups, "cpu", ["cpu.stat"; 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_kernel() {
        let pressure = "some avg10=1.50 avg60=0.10 avg300=0.00 total=12345\nfull avg10=0.00 total=99\n";
        assert_eq!(some_total_us(pressure), 12_345);
        assert_eq!(some_total_us("nonsense total=x"), 0);
        assert_eq!(throttled_us("usage_usec 5\nnr_throttled 2\nthrottled_usec 777\n"), 777);
        assert_eq!(throttled_us("nr_periods 5\nthrottled_time 777000\n"), 777);
        assert_eq!(throttled_us(""), 0);
        let files = stat_files("4:cpu,cpuacct:/x\n0::/a/b\n2:memory:/y\nnonsense\n");
        let files: Vec<_> = files.iter().map(|path| path.display().to_string()).collect();
        assert_eq!(
            files,
            [
                "/sys/fs/cgroup/cpu/x/cpu.stat",
                "/sys/fs/cgroup/cpu/cpu.stat",
                "/sys/fs/cgroup/a/b/cpu.stat",
                "/sys/fs/cgroup/a/cpu.stat",
                "/sys/fs/cgroup/cpu.stat"
            ]
        );
    }

    #[test]
    fn a_worker_is_found_by_its_name() {
        let (started, stops) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let spawned = std::thread::Builder::new().name("worker-1".into());
            let body = || {
                started.wait();
                stops.wait();
            };
            spawned.spawn_scoped(scope, body).expect("a thread can be started");
            started.wait();
            let mut run_queues = RunQueues::default();
            run_queues.find(2);
            assert!(run_queues.files[1].is_some() && run_queues.files[0].is_none());
            assert_eq!(run_queues.waited_us(0), 0);
            assert!(run_queues.waited_us(1) < 60_000_000);
            stops.wait();
        });
    }
}
