//! R3: the thread that serves clients waits for a disk.
//!
//! A sync or a write that blocks the event loop stops every client for its length, so the longest single call
//! matters as much as the sum. The descriptor's role tells the file, and so the setting to change.

use std::collections::BTreeMap;

use super::{SHARE_MIN, disks, millis, percent};
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::View;
use crate::recording::{Call, Role, Wait};

const SYNCS: &[&str] = &["fsync", "fdatasync", "sync_file_range", "msync", "syncfs", "sync"];
const WRITES: &[&str] =
    &["write", "writev", "pwrite64", "pwritev", "pwritev2", "ftruncate", "fallocate", "close"];
const OTHERS: &[&str] = &["renameat", "renameat2", "rename", "unlink", "unlinkat", "openat", "open"];
/// Clients notice a call of this length even if the sum is small.
const STALL_NS: u64 = 100_000_000;
/// The kernel function in which writers to a frozen file system wait (`fsfreeze`, snapshots of volumes).
const FROZEN: &str = "percpu_rwsem_wait";

pub(crate) fn on_the_loop(view: &View<'_>) -> Outcome {
    let mut groups: BTreeMap<(&str, Role), Vec<&Call>> = BTreeMap::new();
    for call in view.calls() {
        if waits_without_a_disk(view, call) {
            continue;
        }
        let Some(role) = stored(view, call) else { continue };
        groups.entry((call.name.as_str(), role)).or_default().push(call);
    }
    let waited = |calls: &[&Call]| calls.iter().map(|c| c.blocked_ns + c.cpu_ns).sum::<u64>();
    let blocked: u64 = groups.values().map(|calls| waited(calls)).sum();
    let findings = groups
        .iter()
        .filter(|(_, calls)| {
            let longest = calls.iter().map(|c| c.longest_ns).max().unwrap_or(0);
            view.share(waited(calls)) >= SHARE_MIN || longest >= STALL_NS
        })
        .filter(|(_, calls)| calls.iter().any(|c| c.blocked_ns * 4 > c.cpu_ns)) // else it is work
        .map(|((name, role), calls)| finding(view, name, *role, calls, waited(calls)))
        .collect();
    Outcome::found_or(findings, || format!("files take {} of its time", percent(view.share(blocked))))
}

/// Whether a call on a name waits for something else than a local disk, as none worked long enough: opening a
/// pipe with a name waits for the process at its other end.
pub(super) fn waits_without_a_disk(view: &View<'_>, call: &Call) -> bool {
    let busy: u64 = view.recording.disks.iter().map(|disk| disk.busy_ns).sum();
    OTHERS.contains(&call.name.as_str()) && busy < call.blocked_ns / 4
}

/// Whether this rule examines a call.
pub(super) fn is_known(view: &View<'_>, call: &Call) -> bool {
    stored(view, call).is_some()
}

/// The role of the file that a call waits for.
fn stored(view: &View<'_>, call: &Call) -> Option<Role> {
    let role = view.role(call.fd);
    let name = call.name.as_str();
    if SYNCS.contains(&name) || OTHERS.contains(&name) {
        return Some(role.unwrap_or(Role::File));
    }
    role.filter(|role| WRITES.contains(&name) && role.is_stored())
}

fn finding(view: &View<'_>, name: &str, role: Role, calls: &[&Call], waited: u64) -> Finding {
    let share = view.share(waited);
    let longest = calls.iter().map(|c| c.longest_ns).max().unwrap_or(0);
    let count: Option<u64> = calls.iter().map(|c| c.count).sum();
    let longest_of_all = calls.iter().max_by_key(|c| c.blocked_ns);
    let path = longest_of_all.and_then(|c| view.what(c.fd));
    let file = path.unwrap_or("a file");
    let title = format!(
        "{} waits for the disk while clients wait for it: {name} on {} takes {} of the thread's time{}",
        view.recording.target.name,
        role.plural(),
        percent(share),
        path.and_then(|path| path.rsplit('/').next()).map_or_else(String::new, |name| format!(" ({name})"))
    );
    let often = count.map_or_else(|| "sampled".to_string(), |n| format!("{n} calls"));
    let mut what = format!("{name} on {file}: {} in {often}", millis(waited));
    if longest > 0 {
        what.push_str(&format!(", the longest {}", millis(longest)));
    }
    let trace = format!("strace -f -T -e trace={name} -p {}", view.pid());
    let frozen = is_frozen(view, calls);
    let mut finding = Finding::new("R3", share, view.confidence(0.95, false), title)
        .about(format!("{name} on {}", role.plural()))
        .evidence(what, trace)
        .next(match role {
            _ if frozen => {
                "Thaw the file system (fsfreeze --unfreeze), and find out why it was frozen: backups and \
                 snapshots of volumes do."
            }
            Role::AppendOnlyFile => {
                "If losing the last second is acceptable: appendfsync everysec. Else a faster disk, or a \
                 server that syncs on another thread."
            }
            Role::Log => "Log to a file system that does not block, log less, or log on a thread of its own.",
            _ => "Move the write to another thread, or the file to a faster disk.",
        })
        .frames([name.to_string()]);
    if let Some(disk) = calls.iter().find_map(|c| disks::disk_of(view, c.fd)) {
        finding = disks::with_disk(view, finding, disk);
    }
    if frozen {
        let show = format!("cat /proc/{}/task/{}/stack", view.pid(), view.critical.tid);
        finding =
            finding.evidence(format!("the file system is frozen: the kernel keeps it in {FROZEN}"), show);
    }
    // No client is served during the call, however little else there was to do.
    finding.holds_while_idle = longest >= STALL_NS;
    finding
}

/// Whether any of these calls waits for a frozen file system.
fn is_frozen(view: &View<'_>, calls: &[&Call]) -> bool {
    let same = |wait: &&Wait| {
        calls
            .iter()
            .any(|c| (c.tid, Some(c.name.as_str()), c.fd) == (wait.tid, wait.call.as_deref(), wait.fd))
    };
    let mut waits = view.recording.waits.iter().filter(same);
    waits.any(|wait| view.frames(wait.stack).any(|frame| frame.is_kernel() && frame.name == FROZEN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::diagnose;
    use crate::golden;
    use crate::recording::{KERNEL, Recording};

    fn sync(name: &str, fd: i32, blocked_ns: u64, longest_ns: u64) -> Call {
        Call {
            tid: golden::TID,
            name: name.to_string(),
            fd: Some(fd),
            count: Some(100),
            blocked_ns,
            longest_ns,
            ..Call::default()
        }
    }

    #[test]
    fn a_sync_on_the_loop_is_named_with_its_file() {
        let mut recording = golden::busy();
        recording.threads[0].cpu_ns /= 3;
        recording.calls.push(sync("fdatasync", golden::AOF, golden::WINDOW_NS / 2, 9_000_000));
        let diagnosis = diagnose(&recording);
        assert_eq!(diagnosis.findings[0].rule, "R3");
        let title = &diagnosis.findings[0].title;
        assert!(title.contains("fdatasync on the append-only file takes 50%"), "{title}");
    }

    #[test]
    fn one_long_write_is_a_finding_though_the_server_sleeps() {
        let mut recording = golden::idle();
        recording.calls.push(sync("write", golden::AOF, 400_000_000, 400_000_000));
        let diagnosis = diagnose(&recording);
        assert!(diagnosis.sentence.contains("write on the append-only file"), "{}", diagnosis.sentence);
        assert!(diagnosis.sentence.ends_with("(appendonly.aof.1.incr.aof)"), "{}", diagnosis.sentence);
    }

    #[test]
    fn a_frozen_file_system_is_named() {
        let mut recording = golden::idle();
        recording.calls.push(sync("write", golden::AOF, golden::WINDOW_NS / 2, golden::WINDOW_NS / 2));
        let frozen = |recording: &Recording| diagnose(recording).findings[0].next_step.starts_with("Thaw");
        assert!(!frozen(&recording));
        let stack = golden::add_stack(&mut recording, &["vfs_write", FROZEN]);
        recording.frames.iter_mut().for_each(|frame| frame.module = KERNEL.to_string());
        recording.waits.push(Wait {
            tid: golden::TID,
            stack,
            call: Some("write".to_string()),
            fd: Some(golden::AOF),
            address: None,
            count: 1,
            blocked_ns: golden::WINDOW_NS / 2,
            longest_ns: golden::WINDOW_NS / 2,
        });
        assert!(frozen(&recording));
    }

    #[test]
    fn writes_to_clients_and_quick_writes_are_no_disk() {
        let mut recording = golden::busy();
        recording.calls.push(sync("write", golden::CLIENT, golden::WINDOW_NS / 2, 9_000_000));
        let quick = Call { cpu_ns: golden::WINDOW_NS / 10, ..sync("write", golden::AOF, 0, 90_000) };
        recording.calls.push(quick);
        assert!(diagnose(&recording).findings.iter().all(|finding| finding.rule != "R3"));
    }
}
