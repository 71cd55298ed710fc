//! Reports on single questions: where threads are blocked, which locks, use of the CPUs, cost of forks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::table::{Table, UNKNOWN, decimal, known, number, text};
use super::tables::{ROWS_MAX, measured_ms, ms, role_name, seconds, what};
use crate::analyse::{self, FORKS, LOCK};
use crate::recording::{Recording, Wait};

/// Frames of a path that are shown, the innermost first.
const PATH_MAX: usize = 5;

/// Where threads were blocked, without waits for work: by call, descriptor and stack.
pub(crate) fn off_cpu(recording: &Recording) -> String {
    let roles = analyse::roles(recording);
    let mut table = Table::new(
        "",
        &[
            number("tid"),
            text("call"),
            number("fd"),
            text("role"),
            number("waits"),
            number("blocked ms"),
            number("longest ms"),
            text("at"),
        ],
    );
    let mut rows: Vec<(u64, Vec<String>)> = Vec::new();
    for call in &recording.calls {
        let role = call.fd.and_then(|fd| roles.get(&fd).copied());
        if call.blocked_ns == 0 || analyse::is_idle(call, role) {
            continue;
        }
        let descriptor = recording.descriptors.iter().find(|d| Some(d.fd) == call.fd);
        let row = |waits: Option<u64>, blocked: u64, longest: u64, at: String| {
            vec![
                call.tid.to_string(),
                call.name.clone(),
                known(call.fd),
                known(role.map(role_name)),
                known(waits),
                decimal(Some(ms(blocked)), 1),
                measured_ms(longest, 3),
                at,
            ]
        };
        let mut left = call.blocked_ns;
        let same =
            |w: &&Wait| w.tid == call.tid && w.fd == call.fd && w.call.as_deref() == Some(call.name.as_str());
        for wait in recording.waits.iter().filter(same) {
            left = left.saturating_sub(wait.blocked_ns);
            let at = path(recording, wait.stack);
            rows.push((wait.blocked_ns, row(Some(wait.count), wait.blocked_ns, wait.longest_ns, at)));
        }
        // Sleeps too short for a stack, or all sleeps if there are no stacks.
        if left > 0 {
            let at = descriptor.map_or_else(String::new, what);
            rows.push((left, row(None, left, call.longest_ns, at)));
        }
    }
    rows.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    table.rows = rows.into_iter().map(|(_, row)| row).collect();
    let note = match table.rows.is_empty() {
        true => "(no thread was blocked; waits for work are not shown)\n",
        false => "",
    };
    table.first(ROWS_MAX).lines() + note
}

/// Functions from the innermost on, without the kernel's, unless there are only kernel functions.
fn path(recording: &Recording, stack: u32) -> String {
    let of_user = recording.frames_of(stack).any(|frame| !frame.is_kernel());
    let frames = recording.frames_of(stack).filter(|frame| !of_user || !frame.is_kernel());
    let names: Vec<&str> = frames.take(PATH_MAX).map(|frame| frame.name.as_str()).collect();
    names.join(" < ")
}

/// Waits for held mutexes, by mutex and by the function that takes it, the longest blocked time first.
pub(crate) fn locks(recording: &Recording) -> String {
    #[derive(Default)]
    struct Place {
        waits: u64,
        blocked_ns: u64,
        longest_ns: u64,
        threads: BTreeSet<i32>,
    }
    let mut places: BTreeMap<(u64, String), Place> = BTreeMap::new();
    for wait in recording.waits.iter().filter(|wait| wait.call.as_deref() == Some(LOCK)) {
        let taker = analyse::taker(recording, wait);
        let place = places.entry((wait.address.unwrap_or(0), taker)).or_default();
        place.waits += wait.count;
        place.blocked_ns += wait.blocked_ns;
        place.longest_ns = place.longest_ns.max(wait.longest_ns);
        place.threads.insert(wait.tid);
    }
    let blocked: u64 = recording.calls.iter().filter(|c| c.name == LOCK).map(|c| c.blocked_ns).sum();
    let mut places: Vec<_> = places.into_iter().collect();
    places.sort_by_key(|(_, place)| std::cmp::Reverse(place.blocked_ns));
    let mut table = Table::new(
        "",
        &[
            number("mutex"),
            number("waits"),
            number("blocked ms"),
            number("longest ms"),
            number("threads"),
            text("taken in"),
        ],
    );
    table.rows.extend(places.iter().take(ROWS_MAX).map(|((address, taker), place)| {
        vec![
            format!("{address:#x}"),
            place.waits.to_string(),
            decimal(Some(ms(place.blocked_ns)), 1),
            measured_ms(place.longest_ns, 3),
            place.threads.len().to_string(),
            taker.clone(),
        ]
    }));
    let mut out = table.lines();
    let _ = writeln!(out, "All threads together waited {:.1} ms for mutexes.", ms(blocked));
    if places.is_empty() && blocked > 0 {
        out.push_str("(mutexes and places need BPF programs)\n");
    }
    out
}

/// Threads that wait for a CPU, and the processes that use the CPUs.
pub(crate) fn run_queue(recording: &Recording) -> String {
    let share = |ns: u64| ns as f64 / recording.window_ns.max(1) as f64 * 100.0;
    let mut threads: Vec<_> = recording.threads.iter().collect();
    threads.sort_by_key(|thread| std::cmp::Reverse((thread.run_queue_ns, thread.cpu_ns)));
    let head =
        [number("tid"), text("thread or process"), number("queue%"), number("cpu%"), number("preempt/s")];
    let mut table = Table::new("", &head);
    table.rows.extend(threads.iter().take(ROWS_MAX).map(|thread| {
        vec![
            thread.tid.to_string(),
            thread.name.clone(),
            decimal(Some(share(thread.run_queue_ns)), 1),
            decimal(Some(share(thread.cpu_ns)), 1),
            decimal(Some(thread.switches_involuntary as f64 / seconds(recording)), 0),
        ]
    }));
    table.rows.extend(recording.host.neighbours.iter().map(|neighbour| {
        let unknown = || UNKNOWN.to_string();
        let cpu = decimal(Some(share(neighbour.cpu_ns)), 1);
        vec![neighbour.pid.to_string(), neighbour.name.clone(), unknown(), cpu, unknown()]
    }));
    let mut out = table.lines();
    let (target, host) = (&recording.target, &recording.host);
    let _ = writeln!(out, "\nIt may run on CPUs {} ({} of them).", target.cpus_allowed, host.cpus);
    if let Some(limit) = &recording.throttling {
        let _ = writeln!(
            out,
            "{} was stopped in {} of {} periods, for {:.1} ms.",
            limit.group,
            limit.periods_throttled,
            limit.periods,
            ms(limit.throttled_ns)
        );
    }
    if host.steal > 0.0 {
        let _ = writeln!(
            out,
            "The hypervisor gave {:.1}% of the CPU time that the machine asked for to others.",
            host.steal * 100.0
        );
    }
    out
}

/// How long forks stopped their thread, and the cost of the pages shared with a child.
pub(crate) fn forks(recording: &Recording) -> String {
    let head = [number("tid"), text("call"), number("count"), number("all ms"), number("longest ms")];
    let mut table = Table::new("", &head);
    let forks = recording.calls.iter().filter(|call| FORKS.contains(&call.name.as_str()));
    table.rows.extend(forks.map(|call| {
        vec![
            call.tid.to_string(),
            call.name.clone(),
            known(call.count),
            decimal(Some(ms(call.wall_ns())), 2),
            measured_ms(call.longest_ns, 3),
        ]
    }));
    let mut out = table.lines();
    let all: u64 = recording.samples.iter().map(|sample| sample.count).sum();
    for (what, names) in [("copying page tables", analyse::TABLE_COPIES), ("copying pages", analyse::COPIES)]
    {
        let inside = recording.samples.iter().filter(|sample| {
            recording.frames_of(sample.stack).any(|frame| names.contains(&frame.name.as_str()))
        });
        let count: u64 = inside.map(|sample| sample.count).sum();
        if all > 0 {
            let _ = writeln!(
                out,
                "{:.1}% of its CPU samples are {what} that a child shares.",
                count as f64 / all as f64 * 100.0
            );
        }
    }
    if all == 0 {
        out.push_str("(the cost of copying needs CPU samples)\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use crate::recording::{Call, Neighbour};

    fn call(name: &str, fd: Option<i32>, blocked_ns: u64) -> Call {
        Call { tid: golden::TID, name: name.to_string(), fd, blocked_ns, ..Call::default() }
    }

    fn wait(stack: u32, name: &str, address: Option<u64>, blocked_ns: u64) -> Wait {
        Wait {
            tid: golden::TID,
            stack,
            call: Some(name.to_string()),
            fd: None,
            address,
            count: 3,
            blocked_ns,
            longest_ns: blocked_ns / 2,
        }
    }

    #[test]
    fn blocked_time_has_a_location_and_waits_for_work_are_left_out() {
        let mut recording = golden::idle();
        recording.calls.push(call("fdatasync", Some(golden::AOF), 5_000_000));
        recording.calls.push(call(LOCK, None, 9_000_000));
        let stack = golden::add_stack(&mut recording, &["main", "append_to_log", "pthread_mutex_lock"]);
        recording.waits.push(wait(stack, LOCK, Some(0x10), 8_000_000));
        let text = off_cpu(&recording);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].ends_with("pthread_mutex_lock < append_to_log < main"), "{text}");
        assert!(lines[1].contains("fdatasync") && lines[1].contains("append-only"), "{text}");
        assert!(lines[2].contains(" 1.0 "), "what has no stack is left: {text}");
    }

    #[test]
    fn locks_are_ordered_by_cost() {
        let mut recording = golden::idle();
        recording.calls.push(call(LOCK, None, 9_000_000));
        let queue = golden::add_stack(&mut recording, &["main", "take_task", "pthread_mutex_lock"]);
        let log = golden::add_stack(&mut recording, &["main", "append_to_log", "pthread_mutex_lock"]);
        recording.waits.push(wait(queue, LOCK, Some(0x10), 2_000_000));
        recording.waits.push(wait(log, LOCK, Some(0x20), 4_000_000));
        recording.waits.push(wait(queue, LOCK, Some(0x10), 3_000_000));
        let text = locks(&recording);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[1].contains("0x10") && lines[1].contains(" 5.0 ") && lines[1].ends_with("take_task"),
            "{text}"
        );
        assert!(lines[2].ends_with("append_to_log"), "{text}");
        assert_eq!(lines[3], "All threads together waited 9.0 ms for mutexes.");
    }

    #[test]
    fn cpu_users_and_fork_costs_are_reported() {
        let mut recording = golden::busy();
        recording.threads[0].run_queue_ns = golden::WINDOW_NS / 4;
        recording.host.neighbours =
            vec![Neighbour { pid: 9, name: "hog".to_string(), cpu_ns: golden::WINDOW_NS / 2 }];
        let text = run_queue(&recording);
        assert!(
            text.contains(" 25.0 ")
                && text.lines().any(|line| line.contains("hog") && line.contains(" 50.0 ")),
            "{text}"
        );
        recording.calls.push(Call {
            count: Some(1),
            cpu_ns: 20_000_000,
            longest_ns: 20_000_000,
            ..call("clone", None, 0)
        });
        golden::add_samples(&mut recording, &["main", "fork", "copy_page_range"], 1_920);
        let text = forks(&recording);
        assert!(
            text.contains("20.000") && text.contains("50.0% of its CPU samples are copying page tables"),
            "{text}"
        );
    }
}
