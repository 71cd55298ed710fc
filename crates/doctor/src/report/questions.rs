//! Reports on single questions: where threads are blocked, which locks, use of the CPUs, cost of forks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::tables::{ROWS_MAX, ms, role_name, seconds, what};
use crate::analyse::{self, FORKS, LOCK};
use crate::recording::{Recording, Wait};

/// Frames of a path that are shown, the innermost first.
const PATH_MAX: usize = 5;

/// Where threads were blocked, without waits for work: by call, descriptor and stack.
pub(crate) fn off_cpu(recording: &Recording) -> String {
    let roles = analyse::roles(recording);
    let mut out = format!(
        "{:>8} {:<14} {:>5} {:<12} {:>8} {:>11} {:>11}  {}\n",
        "tid", "call", "fd", "role", "waits", "blocked ms", "longest ms", "at"
    );
    let mut rows: Vec<(u64, String)> = Vec::new();
    for call in &recording.calls {
        let role = call.fd.and_then(|fd| roles.get(&fd).copied());
        if call.blocked_ns == 0 || analyse::is_idle(call, role) {
            continue;
        }
        let descriptor = recording.descriptors.iter().find(|d| Some(d.fd) == call.fd);
        let head = |waits: &str, blocked: u64, longest: u64, at: &str| {
            format!(
                "{:>8} {:<14} {:>5} {:<12} {waits:>8} {:>11.1} {:>11.3}  {at}",
                call.tid,
                call.name,
                call.fd.map_or_else(|| "-".to_string(), |fd| fd.to_string()),
                role.map_or("-", role_name),
                ms(blocked),
                ms(longest)
            )
        };
        let mut left = call.blocked_ns;
        let same =
            |w: &&Wait| w.tid == call.tid && w.fd == call.fd && w.call.as_deref() == Some(call.name.as_str());
        for wait in recording.waits.iter().filter(same) {
            left = left.saturating_sub(wait.blocked_ns);
            let at = path(recording, wait.stack);
            rows.push((
                wait.blocked_ns,
                head(&wait.count.to_string(), wait.blocked_ns, wait.longest_ns, &at),
            ));
        }
        // Sleeps too short for a stack, or all sleeps if there are no stacks.
        if left > 0 {
            let at = descriptor.map_or_else(String::new, what);
            rows.push((left, head("-", left, call.longest_ns, &at)));
        }
    }
    rows.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    if rows.is_empty() {
        out.push_str("(no thread was blocked; waits for work are not shown)\n");
    }
    rows.into_iter().take(ROWS_MAX).for_each(|(_, row)| {
        let _ = writeln!(out, "{}", row.trim_end());
    });
    out
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
    let mut out = format!(
        "{:>14} {:>9} {:>11} {:>11} {:>8}  {}\n",
        "mutex", "waits", "blocked ms", "longest ms", "threads", "taken in"
    );
    for ((address, taker), place) in places.iter().take(ROWS_MAX) {
        let _ = writeln!(
            out,
            "{:>14} {:>9} {:>11.1} {:>11.3} {:>8}  {taker}",
            format!("{address:#x}"),
            place.waits,
            ms(place.blocked_ns),
            ms(place.longest_ns),
            place.threads.len()
        );
    }
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
    let mut out =
        format!("{:>8} {:<16} {:>7} {:>7} {:>10}\n", "tid", "thread", "queue%", "cpu%", "preempt/s");
    for thread in threads.iter().take(ROWS_MAX) {
        let _ = writeln!(
            out,
            "{:>8} {:<16} {:>7.1} {:>7.1} {:>10.0}",
            thread.tid,
            thread.name,
            share(thread.run_queue_ns),
            share(thread.cpu_ns),
            thread.switches_involuntary as f64 / seconds(recording)
        );
    }
    let (target, host) = (&recording.target, &recording.host);
    let _ = writeln!(out, "\nIt may run on CPUs {} ({} of them).", target.cpus_allowed, host.cpus);
    for neighbour in &host.neighbours {
        let _ = writeln!(
            out,
            "{:>8} {:<16} {:>15.1} cpu%",
            neighbour.pid,
            neighbour.name,
            share(neighbour.cpu_ns)
        );
    }
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
    let mut out =
        format!("{:>8} {:<10} {:>7} {:>10} {:>11}\n", "tid", "call", "count", "all ms", "longest ms");
    let is_fork = |name: &str| FORKS.contains(&name);
    for call in recording.calls.iter().filter(|call| is_fork(&call.name)) {
        let count = call.count.map_or_else(|| "-".to_string(), |count| count.to_string());
        let _ = writeln!(
            out,
            "{:>8} {:<10} {count:>7} {:>10.2} {:>11.3}",
            call.tid,
            call.name,
            ms(call.wall_ns()),
            ms(call.longest_ns)
        );
    }
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
        assert!(text.contains(" 25.0 ") && text.contains("hog") && text.contains("50.0 cpu%"), "{text}");
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
