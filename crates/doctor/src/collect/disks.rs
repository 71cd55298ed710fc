//! Block devices by /proc/diskstats, and the device of each file.
//!
//! For every device, the kernel counts requests and their time, over all processes. The device of a file
//! comes from the table of mounts, not from the file: a call on a hanging file system would hang as well.

use std::collections::HashMap;

use super::procfs;
use crate::recording::{Descriptor, Disk, Requests};

const MS: u64 = 1_000_000;

#[derive(Debug)]
pub(crate) struct Watch {
    before: HashMap<String, Disk>,
}

/// A device with its number in mountinfo, "8:1"; its name is like "sda1".
type Numbered = (String, Disk);

impl Watch {
    pub(crate) fn begin() -> Watch {
        Watch { before: read().into_iter().map(|(_, disk)| (disk.name.clone(), disk)).collect() }
    }

    /// Returns the disks with activity since `begin`, the busiest first.
    pub(crate) fn end(&self) -> Vec<Disk> {
        let since = |(_, disk): Numbered| match self.before.get(&disk.name) {
            Some(before) => difference(before, disk),
            None => disk,
        };
        let mut disks: Vec<Disk> = read().into_iter().map(since).filter(did_something).collect();
        disks.sort_by(|a, b| b.busy_ns.cmp(&a.busy_ns).then_with(|| a.name.cmp(&b.name)));
        disks
    }
}

fn did_something(disk: &Disk) -> bool {
    disk.busy_ns > 0 || [disk.reads, disk.writes, disk.flushes].iter().any(|requests| requests.count > 0)
}

fn difference(before: &Disk, after: Disk) -> Disk {
    let since = |before: Requests, after: Requests| Requests {
        count: after.count.saturating_sub(before.count),
        took_ns: after.took_ns.saturating_sub(before.took_ns),
    };
    Disk {
        reads: since(before.reads, after.reads),
        writes: since(before.writes, after.writes),
        flushes: since(before.flushes, after.flushes),
        busy_ns: after.busy_ns.saturating_sub(before.busy_ns),
        ..after
    }
}

fn read() -> Vec<Numbered> {
    let text = procfs::read("/proc/diskstats".into()).unwrap_or_default();
    text.lines().filter_map(parse_disk).collect()
}

/// Parses a line of /proc/diskstats; kernels before 5.5 do not count flushes.
fn parse_disk(line: &str) -> Option<Numbered> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let requests = |count: usize, ms: usize| {
        Some(Requests { count: number(count)?, took_ns: number(ms)?.saturating_mul(MS) })
    };
    let disk = Disk {
        name: (*fields.get(2)?).to_string(),
        reads: requests(3, 6)?,
        writes: requests(7, 10)?,
        flushes: requests(18, 19).unwrap_or_default(),
        busy_ns: number(12)?.saturating_mul(MS),
    };
    Some((format!("{}:{}", fields[0], fields[1]), disk))
}

/// Sets the disks of stored files, as far as the table of mounts shows them.
pub(crate) fn name(pid: i32, descriptors: &mut [Descriptor]) {
    let disks: HashMap<String, String> =
        read().into_iter().map(|(number, disk)| (number, disk.name)).collect();
    let mounts = procfs::read(procfs::path(pid, "mountinfo")).unwrap_or_default();
    let mounts: HashMap<&str, String> = mounts.lines().filter_map(|line| parse_mount(line, &disks)).collect();
    for descriptor in descriptors.iter_mut().filter(|descriptor| descriptor.role.is_stored()) {
        let info = procfs::read(procfs::path(pid, &format!("fdinfo/{}", descriptor.fd)));
        let info = info.unwrap_or_default();
        let mount = procfs::status_field(&info, "mnt_id");
        descriptor.disk = mount.and_then(|id| mounts.get(id)).cloned();
    }
}

/// Returns the id of a mount, and the disk below it: by its number, or by the name of its source if the file
/// system has a number of its own.
fn parse_mount<'a>(line: &'a str, disks: &HashMap<String, String>) -> Option<(&'a str, String)> {
    let (mount, source) = line.split_once(" - ")?;
    let mut fields = mount.split(' ');
    let (id, number) = (fields.next()?, fields.nth(1)?);
    let device = source.split(' ').nth(1)?.rsplit('/').next()?;
    let by_name = || disks.values().find(|name| *name == device);
    Some((id, disks.get(number).or_else(by_name)?.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_and_timed() {
        let line = " 254       0 vda 10 0 80 20 30 0 240 90 0 50 110 0 0 0 0 4 8";
        let (number, disk) = parse_disk(line).expect("a line of it");
        assert_eq!((number.as_str(), disk.name.as_str()), ("254:0", "vda"));
        assert_eq!(disk.reads, Requests { count: 10, took_ns: 20 * MS });
        assert_eq!(disk.writes, Requests { count: 30, took_ns: 90 * MS });
        assert_eq!(disk.flushes, Requests { count: 4, took_ns: 8 * MS });
        assert_eq!(disk.busy_ns, 50 * MS);
        let old = parse_disk(" 254 0 vda 10 0 80 20 30 0 240 90 0 50 110").expect("an older kernel's");
        assert_eq!(old.1.flushes, Requests::default());
        assert!(parse_disk(" 254 0 vda 10").is_none());
    }

    #[test]
    fn a_mount_is_on_a_disk_by_number_or_by_name() {
        let disks = HashMap::from([("254:1".to_string(), "vda1".to_string())]);
        let mount = |line| parse_mount(line, &disks).map(|(id, name)| (id.to_string(), name));
        let found = Some(("36".to_string(), "vda1".to_string()));
        assert_eq!(mount("36 1 254:1 / /data rw shared:1 - ext4 /dev/root rw"), found);
        assert_eq!(mount("36 1 0:44 / /data rw - btrfs /dev/vda1 rw"), found);
        assert_eq!(mount("36 1 0:45 / / rw - overlay overlay rw"), None);
        assert_eq!(mount("cut"), None);
    }
}
