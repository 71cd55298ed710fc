//! R16: the thread that serves clients waits for reads of files; with statistics of the disk below.
//!
//! The descriptor tells the file; the disk's own statistics tell a slow disk from many requests.

use std::collections::BTreeMap;

use super::network::waits_for_a_file;
use super::{SHARE_MIN, millis, percent};
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::View;
use crate::recording::{Call, Disk, Requests};

pub(super) const READS: &[&str] =
    &["read", "readv", "pread64", "preadv", "preadv2", "sendfile", "splice", "getdents64", "readahead"];

pub(crate) fn reading(view: &View<'_>) -> Outcome {
    let mut files: BTreeMap<(&str, &str), Vec<&Call>> = BTreeMap::new();
    let mut all = 0;
    for call in view.calls().filter(|call| READS.contains(&call.name.as_str())) {
        let role = view.role(call.fd);
        let file = if role.is_some_and(|role| role.is_stored()) {
            view.what(call.fd).unwrap_or("a file")
        } else if matches!(call.name.as_str(), "sendfile" | "splice") && waits_for_a_file(view, &call.name) {
            "a file that it sends" // the descriptor is that of the receiver
        } else {
            continue;
        };
        all += call.blocked_ns;
        files.entry((file, call.name.as_str())).or_default().push(call);
    }
    let findings = files
        .iter()
        .filter(|(_, calls)| view.share(calls.iter().map(|call| call.blocked_ns).sum()) >= SHARE_MIN)
        .map(|(&(file, name), calls)| finding(view, file, name, calls))
        .collect();
    Outcome::found_or(findings, || {
        format!("it waits {} of the time for files to be read", percent(view.share(all)))
    })
}

fn finding(view: &View<'_>, file: &str, name: &str, calls: &[&Call]) -> Finding {
    let blocked: u64 = calls.iter().map(|call| call.blocked_ns).sum();
    let share = view.share(blocked);
    let title = format!(
        "{} waits for disk reads: {name} of {} takes {} of the thread's time",
        view.recording.target.name,
        file.rsplit('/').next().unwrap_or(file),
        percent(share)
    );
    let count: Option<u64> = calls.iter().map(|call| call.count).sum();
    let mut what = format!("{name} of {file}: blocked {}", millis(blocked));
    if let Some(count) = count.filter(|&count| count > 0) {
        what.push_str(&format!(" in {count} calls, {} each", millis(blocked / count)));
    }
    let longest = calls.iter().map(|call| call.longest_ns).max().unwrap_or(0);
    if longest > 0 {
        what.push_str(&format!(", the longest {}", millis(longest)));
    }
    let finding = Finding::new("R16", share, view.confidence(0.9, false), title)
        .about(format!("{name} of {file}"))
        .evidence(what, format!("strace -f -T -y -e trace={name} -p {}", view.pid()))
        .next(
            "Keep frequently read data in memory, read ahead, or read on other threads; then check whether \
             the disk is slow.",
        )
        .frames([name.to_string()]);
    match calls.iter().find_map(|call| disk_of(view, call.fd)) {
        Some(disk) => with_disk(view, finding, disk),
        None => finding,
    }
}

/// The disk that a file is on.
pub(super) fn disk_of<'a>(view: &View<'a>, fd: Option<i32>) -> Option<&'a Disk> {
    let recording = view.recording;
    let descriptor = recording.descriptors.iter().find(|descriptor| Some(descriptor.fd) == fd)?;
    let name = descriptor.disk.as_deref()?;
    recording.disks.iter().find(|disk| disk.name == name)
}

/// Adds the disk's statistics, which cover all processes.
pub(super) fn with_disk(view: &View<'_>, finding: Finding, disk: &Disk) -> Finding {
    let kinds = [("reads", disk.reads), ("writes", disk.writes), ("flushes", disk.flushes)];
    let mut parts: Vec<String> = kinds
        .into_iter()
        .filter(|(_, requests)| requests.count > 0)
        .map(|(name, requests)| format!("{} {name} of {} each", requests.count, millis(mean_ns(requests))))
        .collect();
    parts.push(format!("busy {} of the time", percent(view.share(disk.busy_ns).min(1.0))));
    finding.evidence(
        format!("the disk {}: {}", disk.name, parts.join(", ")),
        format!("iostat -x {} 1", disk.name),
    )
}

fn mean_ns(requests: Requests) -> u64 {
    requests.took_ns / requests.count.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::diagnose;
    use crate::golden;
    use crate::recording::{Descriptor, Recording, Role};

    fn reading_a_file() -> Recording {
        let mut recording = golden::busy();
        recording.threads[0].cpu_ns /= 3;
        recording.descriptors.push(Descriptor {
            fd: 20,
            role: Role::File,
            what: "/data/table".to_string(),
            peer: None,
            disk: Some("vda".to_string()),
        });
        recording.calls.push(Call {
            tid: golden::TID,
            name: "pread64".to_string(),
            fd: Some(20),
            count: Some(1_000),
            blocked_ns: golden::WINDOW_NS / 2,
            longest_ns: 30_000_000,
            ..Call::default()
        });
        recording
    }

    #[test]
    fn the_file_is_named_and_the_disk_beside_it() {
        let mut recording = reading_a_file();
        let reads = Requests { count: 500, took_ns: 2_000_000_000 };
        recording.disks =
            vec![Disk { name: "vda".to_string(), reads, busy_ns: golden::WINDOW_NS, ..Disk::default() }];
        let first = diagnose(&recording).findings[0].clone();
        assert_eq!(first.rule, "R16");
        assert!(first.title.contains("pread64 of table takes 50%"), "{}", first.title);
        let disk = &first.evidence[1].what;
        assert_eq!(disk, "the disk vda: 500 reads of 4.0 ms each, busy 100% of the time");
    }

    #[test]
    fn reads_from_the_page_cache_are_no_disk_reads() {
        let mut recording = reading_a_file();
        recording.calls.last_mut().expect("it was added").blocked_ns = golden::WINDOW_NS / 100;
        assert!(diagnose(&recording).findings.iter().all(|finding| finding.rule != "R16"));
    }
}
