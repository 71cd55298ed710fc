//! Tables of a recording, for readers with a specific question: threads, system calls by descriptor, sockets,
//! wake-ups. The terminal and the page show the same tables.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::table::{Table, UNKNOWN, decimal, known, number, text};
use crate::analyse::{IDLE_CALLS, budget};
use crate::recording::{Call, Descriptor, Listener, Recording, Role, Socket};

/// Rows of a table on the terminal; the rest is in the recording.
pub(crate) const ROWS_MAX: usize = 30;

pub(crate) fn seconds(recording: &Recording) -> f64 {
    recording.window_ns.max(1) as f64 / 1e9
}

pub(crate) fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// A time that is never zero if it was measured.
pub(super) fn measured_ms(ns: u64, places: usize) -> String {
    decimal((ns > 0).then(|| ms(ns)), places)
}

pub(crate) fn threads(recording: &Recording) -> String {
    threads_table(recording).first(ROWS_MAX).lines()
}

pub(super) fn threads_table(recording: &Recording) -> Table {
    let roles = recording.descriptors.iter().map(|d| (d.fd, d.role)).collect();
    let mut table = Table::new(
        "Threads",
        &[
            number("tid"),
            text("thread"),
            number("cpu%"),
            number("queue%"),
            number("block%"),
            number("wait%"),
            number("sleeps/s"),
            number("preempt/s"),
        ],
    );
    // Where sleeps are hidden, a thread that waits for work looks like a blocked thread.
    let sleeps = !recording.health.sleeps_hidden;
    let mut threads: Vec<_> = recording.threads.iter().collect();
    threads.sort_by_key(|thread| std::cmp::Reverse((thread.cpu_ns, thread.run_queue_ns)));
    table.rows.extend(threads.into_iter().map(|thread| {
        let budget = budget(recording, thread, &roles);
        let percent = |ns| budget.share(ns) * 100.0;
        let rate = |count: u64| format!("{:.0}", count as f64 / seconds(recording));
        vec![
            thread.tid.to_string(),
            thread.name.clone(),
            decimal(Some(percent(budget.cpu_ns)), 1),
            decimal(Some(percent(budget.run_queue_ns)), 1),
            decimal(sleeps.then(|| percent(budget.blocked_ns)), 1),
            decimal(sleeps.then(|| percent(budget.idle_ns)), 1),
            rate(thread.switches_voluntary),
            rate(thread.switches_involuntary),
        ]
    }));
    table
}

/// The key by which system calls are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum By {
    /// A row for each thread, call and descriptor
    Thread,
    /// A row for each call, of all threads
    Call,
    /// A row for each descriptor, with all calls on it
    Fd,
}

/// Sums up the calls that are equal in the key of `by`; other key fields are cleared.
fn together(calls: &[Call], by: By) -> Vec<Call> {
    let mut sums: BTreeMap<(i32, &str, Option<i32>), Call> = BTreeMap::new();
    for call in calls {
        let (tid, name, fd) = match by {
            By::Thread => (call.tid, call.name.as_str(), call.fd),
            By::Call => (0, call.name.as_str(), None),
            By::Fd => (0, if call.fd.is_some() { "all" } else { "on none" }, call.fd),
        };
        let new = || Call { tid, name: name.to_string(), fd, ..Call::default() };
        let sum = sums.entry((tid, name, fd)).or_insert_with(new);
        sum.count = call.count.map_or(sum.count, |count| Some(sum.count.unwrap_or(0) + count));
        sum.cpu_ns += call.cpu_ns;
        sum.blocked_ns += call.blocked_ns;
        sum.run_queue_ns += call.run_queue_ns;
        sum.longest_ns = sum.longest_ns.max(call.longest_ns);
        sum.bytes += call.bytes;
        sum.errors += call.errors;
        sum.would_block += call.would_block;
    }
    sums.into_values().collect()
}

pub(crate) fn calls(recording: &Recording, by: By) -> String {
    let mut out = calls_table(recording, by).first(ROWS_MAX).lines();
    let health = &recording.health;
    if let Some(error) = health.scale_error {
        let _ = writeln!(
            out,
            "\nCalls, CPU time and bytes are scaled up from {:.0}% of the window: ±{:.0}%.",
            health.duty * 100.0,
            error * 100.0
        );
    }
    if recording.calls.iter().all(|call| call.count.is_none()) {
        out.push_str("\nSleeps were sampled: calls, their CPU time and their bytes are unknown.\n");
    }
    out
}

pub(super) fn calls_table(recording: &Recording, by: By) -> Table {
    let mut table = Table::new(
        "System calls by descriptor and role",
        &[
            number("tid"),
            text("call"),
            number("fd"),
            text("role"),
            number("calls/s"),
            number("cpu ms"),
            number("blocked ms"),
            number("queue ms"),
            number("longest ms"),
            number("bytes each"),
            text("what"),
        ],
    );
    let mut calls = together(&recording.calls, by);
    calls.sort_by_key(|call| std::cmp::Reverse((call.cpu_ns + call.blocked_ns, call.count)));
    table.rows.extend(calls.iter().map(|call| call_row(recording, call)));
    table
}

fn call_row(recording: &Recording, call: &Call) -> Vec<String> {
    let descriptor = recording.descriptors.iter().find(|d| Some(d.fd) == call.fd);
    // Samples of sleeps tell neither the calls nor their work. A call that has not ended is not counted.
    let count = call.count.filter(|&count| count > 0);
    let counted = |ns| decimal(count.map(|_| ms(ns)), 1);
    let has_bytes = call.bytes > 0 && !IDLE_CALLS.contains(&call.name.as_str());
    vec![
        if call.tid == 0 { "all".to_string() } else { call.tid.to_string() },
        call.name.clone(),
        known(call.fd),
        known(descriptor.map(|d| role_name(d.role))),
        known(call.count.map(|n| format!("{:.0}", n as f64 / seconds(recording)))),
        counted(call.cpu_ns),
        decimal(Some(ms(call.blocked_ns)), 1),
        counted(call.run_queue_ns),
        measured_ms(call.longest_ns, 3),
        known(count.filter(|_| has_bytes).map(|count| call.bytes / count)),
        descriptor.map_or_else(String::new, what),
    ]
}

pub(crate) fn role_name(role: Role) -> &'static str {
    match role {
        Role::Listener => "listener",
        Role::Client => "client",
        Role::Replica => "replica",
        Role::Primary => "primary",
        Role::Outbound => "outbound",
        Role::AppendOnlyFile => "append-only",
        Role::Snapshot => "snapshot",
        Role::Log => "log",
        Role::File => "file",
        Role::Epoll => "epoll",
        Role::Eventfd => "eventfd",
        Role::Timer => "timer",
        Role::Pipe => "pipe",
        Role::UnixSocket => "unix socket",
        Role::LogDaemon => "log daemon",
        Role::Datagram => "datagram",
        Role::Other => "other",
    }
}

pub(crate) fn what(descriptor: &Descriptor) -> String {
    match &descriptor.peer {
        Some(peer) => format!("{} {peer}", descriptor.what),
        None => descriptor.what.clone(),
    }
}

pub(crate) fn sockets(recording: &Recording) -> String {
    let tables = [listeners_table(recording), connections_table(recording)];
    let shown = tables.into_iter().filter(|table| !table.rows.is_empty());
    let shown: Vec<String> = shown.map(|table| table.first(ROWS_MAX).lines()).collect();
    if shown.is_empty() { "(no socket of it was seen)\n".to_string() } else { shown.join("\n") }
}

pub(super) fn listeners_table(recording: &Recording) -> Table {
    let mut table = Table::new(
        "Accept queues",
        &[text("listener"), number("waited max"), number("limit"), number("drops")],
    );
    let row = |listener: &Listener| {
        // The kernel tells the limit and the drops together, or neither.
        let drops = listener.backlog.map(|_| listener.drops);
        vec![
            listener.address.clone(),
            listener.waiting_max.to_string(),
            known(listener.backlog),
            known(drops),
        ]
    };
    table.rows.extend(recording.listeners.iter().map(row));
    table
}

pub(super) fn connections_table(recording: &Recording) -> Table {
    let mut table = Table::new(
        "Connections with data in a queue",
        &[
            text("here"),
            text("peer"),
            number("unsent max"),
            number("unread max"),
            number("sent again"),
            number("closed%"),
        ],
    );
    let row = |socket: &Socket| {
        let is_pipe = socket.local == "pipe";
        let (of_queue, of_tcp) = ((!is_pipe).then_some(()), (!socket.local_only).then_some(()));
        let closed = socket.seen_probing as f64 / socket.seen.max(1) as f64 * 100.0;
        vec![
            socket.local.clone(),
            socket.remote.clone(),
            known(of_queue.map(|()| socket.unsent_max)),
            known(of_queue.map(|()| socket.unread_max)),
            known(of_tcp.map(|()| socket.retransmissions)),
            decimal(of_tcp.map(|()| closed), 0),
        ]
    };
    table.rows.extend(recording.sockets.iter().map(row));
    table
}

pub(crate) fn wakers(recording: &Recording) -> String {
    let mut out = wakers_table(recording).first(ROWS_MAX).lines();
    if recording.wakers.is_empty() {
        out.push_str("(wake-ups between threads need BPF programs)\n");
    }
    out
}

pub(super) fn wakers_table(recording: &Recording) -> Table {
    let mut table = Table::new(
        "Wake-ups",
        &[
            number("tid"),
            text("slept in"),
            number("wakes/s"),
            number("across%"),
            text("by"),
            number("slept ms"),
        ],
    );
    let mut wakers: Vec<_> = recording.wakers.iter().collect();
    wakers.sort_by_key(|waker| std::cmp::Reverse(waker.count));
    table.rows.extend(wakers.into_iter().map(|waker| {
        let by = if waker.waker_tid == 0 {
            "an interrupt".to_string()
        } else {
            format!("{} ({})", waker.waker_name, waker.waker_tid)
        };
        vec![
            waker.tid.to_string(),
            waker.call.clone().unwrap_or_else(|| UNKNOWN.to_string()),
            format!("{:.0}", waker.count as f64 / seconds(recording)),
            format!("{:.0}", waker.across as f64 / waker.count.max(1) as f64 * 100.0),
            by,
            format!("{:.1}", ms(waker.slept_ns)),
        ]
    }));
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    #[test]
    fn tables_name_threads_calls_and_sockets() {
        let recording = golden::idle();
        assert!(calls(&recording, By::Thread).contains("epoll_wait"));
        assert!(threads(&recording).contains("redis-server"));
        assert!(sockets(&recording).contains("127.0.0.1:6379"));
    }

    #[test]
    fn calls_are_grouped_as_requested() {
        let call = |tid, name: &str, fd, count| Call {
            tid,
            name: name.to_string(),
            fd: Some(fd),
            count: Some(count),
            cpu_ns: 10,
            longest_ns: count,
            ..Call::default()
        };
        let all =
            [call(1, "read", 8, 3), call(2, "read", 8, 4), call(2, "write", 8, 5), call(2, "read", 9, 6)];
        let rows = |by| {
            let rows = together(&all, by).into_iter();
            rows.map(|c| (c.name, c.fd, c.count.unwrap_or(0), c.longest_ns)).collect::<Vec<_>>()
        };
        assert_eq!(rows(By::Thread).len(), 4);
        assert_eq!(rows(By::Call), [("read".to_string(), None, 13, 6), ("write".to_string(), None, 5, 5)]);
        assert_eq!(rows(By::Fd), [("all".to_string(), Some(8), 12, 5), ("all".to_string(), Some(9), 6, 6)]);
    }

    #[test]
    fn sampled_values_that_are_unknown_are_dashes() {
        let mut recording = golden::idle();
        recording.calls =
            vec![Call { name: "epoll_wait".to_string(), blocked_ns: 9_000_000, ..Call::default() }];
        recording.listeners[0].backlog = None;
        recording.health.sleeps_hidden = true;
        let cells = |text: &str| -> Vec<String> {
            text.lines().nth(1).into_iter().flat_map(str::split_whitespace).map(str::to_string).collect()
        };
        let expected = ["all", "epoll_wait", "-", "-", "-", "-", "9.0", "-", "-", "-"];
        assert_eq!(cells(&calls(&recording, By::Call)), expected);
        assert_eq!(cells(&sockets(&recording)), ["127.0.0.1:6379", "0", "-", "-"]);
        assert_eq!(cells(&threads(&recording))[2..6], ["0.1", "0.0", "-", "-"]);
    }
}
