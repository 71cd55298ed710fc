//! Values from the operating system and the allocator about this process.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Processor time used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CpuTime {
    pub(crate) user: Duration,
    pub(crate) system: Duration,
}

/// Returns the processor time of all threads, or of child processes that have ended.
pub(crate) fn cpu_time(children: bool) -> CpuTime {
    cpu_time_of(&rusage(if children { libc::RUSAGE_CHILDREN } else { libc::RUSAGE_SELF }))
}

/// Use of the machine by all threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    /// Pages that were read from disk.
    pub(crate) major_faults: u64,
}

/// Returns the use of all threads since the start.
pub(crate) fn usage() -> Usage {
    let usage = rusage(libc::RUSAGE_SELF);
    let time = cpu_time_of(&usage);
    Usage { cpu: time.user + time.system, major_faults: usage.ru_majflt as u64 }
}

fn cpu_time_of(usage: &libc::rusage) -> CpuTime {
    let span = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    CpuTime { user: span(usage.ru_utime), system: span(usage.ru_stime) }
}

fn rusage(whose: i32) -> libc::rusage {
    // SAFETY: zeros are a valid `rusage`, which the call fills; callers pass known values of `whose`, so it
    // cannot fail.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(whose, &mut usage);
        usage
    }
}

/// Returns the processor time of the process's first thread, which is the control thread and serves no
/// clients.
pub(crate) fn main_thread_cpu_time() -> CpuTime {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", std::process::id()));
    cpu_time_in(&stat.unwrap_or_default()).unwrap_or_default()
}

/// Parses a thread's stat line. The thread's name comes first and may contain anything; the last parenthesis
/// ends it.
fn cpu_time_in(stat: &str) -> Option<CpuTime> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    let (user, system) = (ticks.next()?.ok()?, ticks.next()?.ok()?);
    let per_second = rustix::param::clock_ticks_per_second();
    let span = |ticks: u64| Duration::from_millis(ticks * 1000 / per_second);
    Some(CpuTime { user: span(user), system: span(system) })
}

/// Returns the bytes of physical memory in use.
pub(crate) fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * page_bytes()
}

fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// Returns the bytes of physical memory of this machine.
pub(crate) fn machine_bytes() -> u64 {
    // SAFETY: returns a number.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(pages).unwrap_or(0) * page_bytes()
}

/// Returns the bytes of memory that the machine could give to processes now.
pub(crate) fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kb = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kb.map_or(u64::MAX, |kb| kb << 10) // unknown
}

/// Returns the bytes of memory that this process may use: the machine's, or the limit of its control groups.
pub(crate) fn memory_limit() -> u64 {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups).into_iter().filter_map(|path| {
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().parse::<u64>().ok() // without a limit the file contains `max`
    });
    limits.fold(machine_bytes(), u64::min)
}

/// Returns the limit files of the control groups in `/proc/self/cgroup`.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    group_files(groups, "memory", ["memory.max", "memory.limit_in_bytes"])
}

/// Returns a file of the control groups in `/proc/self/cgroup`: of each group and all its ancestors. `names`:
/// the file's name in version 2, and in version 1 below the directory of the controller.
pub(crate) fn group_files(groups: &str, controller: &str, names: [&str; 2]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (root, name) = match controllers {
            "" => ("/sys/fs/cgroup".into(), names[0]),
            _ if controllers.split(',').any(|one| one == controller) => {
                (Path::new("/sys/fs/cgroup").join(controller), names[1])
            }
            _ => continue,
        };
        // In a container, the group may have another name outside, and is the root inside.
        let around = Path::new(group.trim_start_matches('/')).ancestors();
        files.extend(around.map(|group| root.join(group).join(name)));
    }
    files
}

/// Returns the system's name, release and processor type.
pub(crate) fn system_name() -> String {
    let name = rustix::system::uname();
    let [system, release, machine] =
        [name.sysname(), name.release(), name.machine()].map(|text| text.to_string_lossy());
    format!("{system} {release} {machine}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_limits_of_parent_cgroups_apply() {
        let paths = |groups: &str| -> Vec<String> {
            limit_files(groups).into_iter().map(|path| path.display().to_string()).collect()
        };
        assert_eq!(
            paths("0::/a/b\n"),
            ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup/memory.max"]
        );
        assert_eq!(paths("0::/\n"), ["/sys/fs/cgroup/memory.max"]);
        assert_eq!(
            paths("5:cpu,cpuacct:/x\n4:memory:/x\nnonsense\n"),
            ["/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        );
        assert!(memory_limit() > 0 && memory_limit() <= machine_bytes());
    }

    #[test]
    fn thread_names_may_contain_any_character() {
        let stat = "7 (a ) b) S 1 1 1 0 -1 4194560 1 2 3 4 200 100 7 8 20 0";
        let time = cpu_time_in(stat).expect("it is whole");
        assert_eq!((time.user, time.system), (time.system * 2, time.user / 2));
        assert!(time.user > Duration::ZERO && cpu_time_in("7 (a) S").is_none());
        assert!(main_thread_cpu_time().user <= cpu_time(false).user + Duration::from_millis(50));
    }
}
