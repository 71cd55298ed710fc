//! Throttling: a control group that used up its CPU time before its period was over.
//!
//! Any level above the process may have a limit, so every ancestor is read, and the level that throttled most
//! is reported. Both hierarchies are read: the unified hierarchy (v2), and the separate CPU hierarchy (v1).

use std::path::{Path, PathBuf};

use super::procfs;
use crate::recording::Throttling;

/// Levels that are read; deeper hierarchies are cut.
const LEVELS_MAX: usize = 32;

#[derive(Debug)]
pub(crate) struct Watch {
    begin: Vec<Level>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Level {
    folder: PathBuf,
    periods: u64,
    periods_throttled: u64,
    throttled_ns: u64,
}

impl Watch {
    pub(crate) fn begin(pid: i32) -> Watch {
        let text = procfs::read(procfs::path(pid, "cgroup")).unwrap_or_default();
        let folders = folders(&text, Path::new("/sys/fs/cgroup"), "cpu");
        Watch { begin: folders.iter().filter_map(|folder| level(folder)).collect() }
    }

    pub(crate) fn end(&self) -> Option<Throttling> {
        let differences = self.begin.iter().filter_map(|begin| {
            let end = level(&begin.folder)?;
            Some(Throttling {
                group: begin.folder.to_string_lossy().into_owned(),
                periods: end.periods.saturating_sub(begin.periods),
                periods_throttled: end.periods_throttled.saturating_sub(begin.periods_throttled),
                throttled_ns: end.throttled_ns.saturating_sub(begin.throttled_ns),
                limit_cpus: limit(&begin.folder),
            })
        });
        let limited = differences.filter(|t| t.limit_cpus.is_some() || t.periods_throttled > 0);
        limited.max_by_key(|throttling| throttling.throttled_ns)
    }
}

/// Returns the control group of a process with the lowest limit on memory, and that limit in bytes.
pub(crate) fn memory_limit(pid: i32) -> Option<(String, u64)> {
    let text = procfs::read(procfs::path(pid, "cgroup")).unwrap_or_default();
    let folders = folders(&text, Path::new("/sys/fs/cgroup"), "memory");
    let limits = folders.into_iter().filter_map(|folder| {
        let limit = ["memory.max", "memory.limit_in_bytes"]
            .iter()
            .find_map(|file| procfs::read(folder.join(file))?.trim().parse::<u64>().ok())?;
        // Without a limit, the first hierarchy has the largest number of pages.
        (limit < 1 << 60).then(|| (folder.to_string_lossy().into_owned(), limit))
    });
    limits.min_by_key(|(_, limit)| *limit)
}

/// Returns the folders of the groups in `text` (/proc/PID/cgroup) for a controller, and of their ancestors.
fn folders(text: &str, root: &Path, controller: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let mount = match controllers {
            "" if root.join("cgroup.controllers").exists() => root.to_path_buf(),
            "" => root.join("unified"),
            _ if controllers.split(',').any(|name| name == controller) => root.join(controller),
            _ => continue,
        };
        let group = Path::new(group.trim_start_matches('/'));
        folders.extend(group.ancestors().take(LEVELS_MAX).map(|ancestor| mount.join(ancestor)));
    }
    folders
}

fn level(folder: &Path) -> Option<Level> {
    let text = procfs::read(folder.join("cpu.stat"))?;
    let mut level = parse(&text);
    level.folder = folder.to_path_buf();
    Some(level)
}

fn parse(text: &str) -> Level {
    let mut level = Level::default();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(' ') else { continue };
        let Ok(value) = value.trim().parse::<u64>() else { continue };
        match name {
            "nr_periods" => level.periods = value,
            "nr_throttled" => level.periods_throttled = value,
            "throttled_usec" => level.throttled_ns = value.saturating_mul(1_000),
            "throttled_time" => level.throttled_ns = value, // v1 counts in nanoseconds
            _ => {}
        }
    }
    level
}

fn limit(folder: &Path) -> Option<f64> {
    if let Some(text) = procfs::read(folder.join("cpu.max")) {
        let (quota, period) = text.trim().split_once(' ')?;
        return Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?);
    }
    let number = |name: &str| procfs::read(folder.join(name))?.trim().parse::<f64>().ok();
    let quota = number("cpu.cfs_quota_us").filter(|&quota| quota > 0.0)?;
    Some(quota / number("cpu.cfs_period_us")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_counters_are_read() {
        let two = parse("usage_usec 9\nnr_periods 50\nnr_throttled 49\nthrottled_usec 4000\n");
        assert_eq!((two.periods, two.periods_throttled, two.throttled_ns), (50, 49, 4_000_000));
        let one = parse("nr_periods 3\nnr_throttled 1\nthrottled_time 77\n");
        assert_eq!((one.periods_throttled, one.throttled_ns), (1, 77));
    }

    #[test]
    fn every_ancestor_is_read() {
        let text = "3:cpu,cpuacct:/a/b\n2:memory:/m\n";
        let found = folders(text, Path::new("/none"), "cpu");
        let expected = ["/none/cpu/a/b", "/none/cpu/a", "/none/cpu/"].map(PathBuf::from);
        assert_eq!(found, expected);
        let found = folders(text, Path::new("/none"), "memory");
        assert_eq!(found, ["/none/memory/m", "/none/memory/"].map(PathBuf::from));
    }
}
