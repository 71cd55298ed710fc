//! Tables of a recording, for readers with a specific question: threads, system calls by descriptor, locks,
//! sockets.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::analyse::budget;
use crate::recording::{Call, Descriptor, Recording, Role};

/// Rows of a table; the rest is in the recording.
pub(crate) const ROWS_MAX: usize = 30;

pub(crate) fn seconds(recording: &Recording) -> f64 {
    recording.window_ns.max(1) as f64 / 1e9
}

pub(crate) fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

pub(crate) fn threads(recording: &Recording) -> String {
    let roles = recording.descriptors.iter().map(|d| (d.fd, d.role)).collect();
    let mut out = format!(
        "{:>8} {:<16} {:>7} {:>7} {:>7} {:>7} {:>9} {:>9}\n",
        "tid", "thread", "cpu%", "queue%", "block%", "wait%", "sleeps/s", "preempt/s"
    );
    let mut threads: Vec<_> = recording.threads.iter().collect();
    threads.sort_by_key(|thread| std::cmp::Reverse((thread.cpu_ns, thread.run_queue_ns)));
    for thread in threads.into_iter().take(ROWS_MAX) {
        let budget = budget(recording, thread, &roles);
        let percent = |ns| budget.share(ns) * 100.0;
        let _ = writeln!(
            out,
            "{:>8} {:<16} {:>7.1} {:>7.1} {:>7.1} {:>7.1} {:>9.0} {:>9.0}",
            thread.tid,
            thread.name,
            percent(budget.cpu_ns),
            percent(budget.run_queue_ns),
            percent(budget.blocked_ns),
            percent(budget.idle_ns),
            thread.switches_voluntary as f64 / seconds(recording),
            thread.switches_involuntary as f64 / seconds(recording)
        );
    }
    out
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
    let mut out = format!(
        "{:>8} {:<14} {:>5} {:<15} {:>9} {:>10} {:>10} {:>10} {:>9}  {}\n",
        "tid", "call", "fd", "role", "calls/s", "cpu ms", "blocked ms", "longest", "bytes", "what"
    );
    let mut calls = together(&recording.calls, by);
    calls.sort_by_key(|call| std::cmp::Reverse((call.cpu_ns + call.blocked_ns, call.count)));
    for call in calls.into_iter().take(ROWS_MAX) {
        let descriptor = recording.descriptors.iter().find(|d| Some(d.fd) == call.fd);
        let rate =
            call.count.map_or_else(|| "-".to_string(), |n| format!("{:.0}", n as f64 / seconds(recording)));
        let each =
            call.bytes.checked_div(call.count.unwrap_or(0)).map_or_else(String::new, |n| n.to_string());
        let _ = writeln!(
            out,
            "{:>8} {:<14} {:>5} {:<15} {:>9} {:>10.1} {:>10.1} {:>10.3} {:>9}  {}",
            if call.tid == 0 { "all".to_string() } else { call.tid.to_string() },
            call.name,
            call.fd.map_or_else(|| "-".to_string(), |fd| fd.to_string()),
            descriptor.map_or("-", |d| role_name(d.role)),
            rate,
            ms(call.cpu_ns),
            ms(call.blocked_ns),
            ms(call.longest_ns),
            each,
            descriptor.map_or_else(String::new, what)
        );
    }
    let health = &recording.health;
    if let Some(error) = health.scale_error {
        let _ = writeln!(
            out,
            "\nCalls, CPU time and bytes are scaled up from {:.0}% of the window: ±{:.0}%.",
            health.duty * 100.0,
            error * 100.0
        );
    }
    out
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
    let mut out = format!("{:<24} {:>8} {:>8} {:>8}\n", "listener", "waited", "limit", "drops");
    for listener in &recording.listeners {
        let limit = listener.backlog.map_or_else(|| "?".to_string(), |limit| limit.to_string());
        let _ = writeln!(
            out,
            "{:<24} {:>8} {:>8} {:>8}",
            listener.address, listener.waiting_max, limit, listener.drops
        );
    }
    let _ = writeln!(
        out,
        "\n{:<24} {:<24} {:>10} {:>10} {:>8} {:>8}",
        "connection", "peer", "unsent max", "unread max", "resent", "closed"
    );
    for socket in recording.sockets.iter().take(ROWS_MAX) {
        let _ = writeln!(
            out,
            "{:<24} {:<24} {:>10} {:>10} {:>8} {:>8}",
            socket.local,
            socket.remote,
            socket.unsent_max,
            socket.unread_max,
            socket.retransmissions,
            socket.seen_probing
        );
    }
    out
}

pub(crate) fn wakers(recording: &Recording) -> String {
    let mut out = format!(
        "{:>8} {:<14} {:>10} {:>8} {:<24} {:>10}\n",
        "tid", "slept in", "wakes/s", "across%", "by", "slept ms"
    );
    let mut wakers: Vec<_> = recording.wakers.iter().collect();
    wakers.sort_by_key(|waker| std::cmp::Reverse(waker.count));
    for waker in wakers.into_iter().take(ROWS_MAX) {
        let by = if waker.waker_tid == 0 {
            "an interrupt".to_string()
        } else {
            format!("{} ({})", waker.waker_name, waker.waker_tid)
        };
        let _ = writeln!(
            out,
            "{:>8} {:<14} {:>10.0} {:>8.0} {:<24} {:>10.1}",
            waker.tid,
            waker.call.as_deref().unwrap_or("-"),
            waker.count as f64 / seconds(recording),
            waker.across as f64 / waker.count.max(1) as f64 * 100.0,
            by,
            ms(waker.slept_ns)
        );
    }
    if recording.wakers.is_empty() {
        out.push_str("(wake-ups between threads need BPF programs)\n");
    }
    out
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
}
