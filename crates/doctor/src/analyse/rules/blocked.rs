//! R26: a system call in which the thread waits, and which no other rule knows: a lock on a file, a pipe that
//! nobody opens, a connection that is not accepted, a device.

use std::collections::BTreeMap;

use super::durability::waits_without_a_disk;
use super::locks::LOCK;
use super::sends::SENDS;
use super::{disks, durability, millis, percent};
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::View;
use crate::analyse::{RECEIVING, is_idle};
use crate::recording::Call;

/// Part of the thread's time from which such a call is a finding: single waits of this kind are normal.
const WAITED_MIN: f64 = 0.2;

pub(crate) fn evaluate(view: &View<'_>) -> Outcome {
    let mut waits: BTreeMap<(&str, Option<i32>), (u64, &Call)> = BTreeMap::new();
    for call in view.calls().filter(|call| !is_explained(view, call)) {
        waits.entry((call.name.as_str(), call.fd)).or_insert((0, call)).0 += call.blocked_ns;
    }
    let findings: Vec<Finding> = waits
        .into_values()
        .filter(|(ns, _)| view.share(*ns) >= WAITED_MIN)
        .map(|(ns, call)| finding(view, call, ns))
        .collect();
    Outcome::found_or(findings, || "it waits in no other call for long".to_string())
}

/// Whether another rule has the call: waits for work, files (R3, R16), receivers (R11), locks (R6), missing
/// memory (R15), forks (R4).
fn is_explained(view: &View<'_>, call: &Call) -> bool {
    let name = call.name.as_str();
    if waits_without_a_disk(view, call) {
        return false;
    }
    is_idle(call, view.role(call.fd))
        || name == LOCK
        || RECEIVING.contains(&name)
        || SENDS.contains(&name)
        || durability::is_known(view, call)
        || disks::READS.contains(&name)
        || ["page fault", "clone", "clone3", "fork", "vfork", "mmap", "munmap", "madvise", "brk", "mremap"]
            .contains(&name)
}

fn finding(view: &View<'_>, call: &Call, ns: u64) -> Finding {
    let share = view.share(ns);
    let name = call.name.as_str();
    let on = view.what(call.fd).map_or_else(String::new, |what| format!(" on {what}"));
    let is_lock = matches!(name, "flock" | "fcntl");
    let what = match name {
        "openat" | "open" => {
            ": no disk works for it, as when nobody opens the other end of a pipe with a name"
        }
        "connect" => ": the other end does not accept the connection",
        _ if is_lock => ": another process has the lock on that file",
        _ => "",
    };
    let title = format!("The thread waits {} of the time in {name}{on}{what}", percent(share));
    let longest = view.calls().filter(|c| c.name == name).map(|c| c.longest_ns).max().unwrap_or(0);
    let mut finding = Finding::new("R26", share, view.confidence(0.85, false).max(0.8), title)
        .about(format!("waits in {name}{on}"))
        .evidence(
            format!("blocked {} in {name}, the longest {}", millis(ns), millis(longest)),
            format!("strace -f -T -y -e trace={name} -p {}", view.pid()),
        )
        .next(if is_lock {
            "See who has it (lslocks), and for how long; no client is served meanwhile."
        } else {
            "Do it on another thread, or with a time limit; no client is served meanwhile."
        });
    finding.holds_while_idle = true;
    finding
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::diagnose;
    use crate::golden;
    use crate::recording::{Descriptor, Disk, Role};

    fn waits_in(name: &str, fd: Option<i32>) -> Call {
        let (tid, blocked_ns) = (golden::TID, golden::WINDOW_NS / 10 * 9);
        Call { tid, name: name.to_string(), fd, blocked_ns, ..Call::default() }
    }

    #[test]
    fn a_lock_on_a_file_is_named() {
        let mut recording = golden::idle();
        let (fd, role, what) = (30, Role::File, "/x/session.lock".to_string());
        recording.descriptors.push(Descriptor { fd, role, what, peer: None, disk: None });
        recording.calls.push(waits_in("flock", Some(30)));
        let first = diagnose(&recording).findings[0].clone();
        assert_eq!(
            first.title,
            "The thread waits 90% of the time in flock on /x/session.lock: another process has the lock on \
             that file"
        );
    }

    #[test]
    fn a_pipe_that_nobody_opens_is_no_disk() {
        let mut recording = golden::idle();
        recording.calls.push(waits_in("openat", None));
        let findings = diagnose(&recording).findings;
        assert_eq!(findings[0].rule, "R26");
        assert!(findings[0].title.contains("pipe with a name"), "{}", findings[0].title);
        let busy_ns = golden::WINDOW_NS / 2;
        recording.disks.push(Disk { name: "sda".to_string(), busy_ns, ..Disk::default() });
        assert_eq!(diagnose(&recording).findings[0].rule, "R3");
    }

    #[test]
    fn waits_that_other_rules_know_are_left_to_them() {
        for name in ["epoll_wait", "fdatasync", "futex-lock", "page fault"] {
            let mut recording = golden::idle();
            recording.calls.push(waits_in(name, Some(golden::AOF)));
            assert!(diagnose(&recording).findings.iter().all(|finding| finding.rule != "R26"), "{name}");
        }
    }
}
