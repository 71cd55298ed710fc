//! R10: connections that wait to be accepted, or are refused. R11: receivers that do not read, on the network
//! and on this machine.
//!
//! The kernel's tables show both, and both may hold up clients while every thread of the server sleeps. The
//! call statistics show a server that waits inside a send until its receiver reads.

use std::collections::BTreeMap;

use super::sends::SENDS;
use super::{SHARE_MIN, in_hand, millis, percent, runtimes};
use crate::analyse::RECEIVING;
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::View;
use crate::recording::{Listener, Role, Socket};

/// Part of the polls that found connections waiting, from which the server accepts too late.
const WAITING_MIN: f64 = 0.5;
/// Part of the polls with much unsent data, from which a receiver is slow; and the minimum number of polls.
const UNSENT_MIN: f64 = 0.5;
const SAMPLES_MIN: u64 = 4;
/// Part of the polls with a closed window, from which a receiver does not read. If it made progress in more
/// than `TAKING_MAX` of the polls, it reads, only more slowly than the server sends.
const CLOSED_MIN: f64 = 0.25;
const TAKING_MAX: f64 = 0.5;
/// A process that is stopped at the begin and at the end needs no more polls.
const STOPPED_SAMPLES_MIN: u64 = 2;
/// For a process on this machine: part of the polls that found unread data.
const UNREAD_MIN: f64 = 0.75;
const IDLE_FROM: f64 = 0.7;
/// Ceiling of a full queue behind a server that waits for something else.
const EFFECT_CEILING: f64 = 1.2;
/// Connections dropped in a window, below which they are bad luck in a burst.
const DROPS_MIN: u64 = 10;

pub(crate) fn accept_queues(view: &View<'_>) -> Outcome {
    let listeners = &view.recording.listeners;
    // A server that waits with requests in hand accepts late: R22 or R24 has the cause.
    let is_effect = matches!(in_hand::waiting(view), Outcome::Found(_)) || runtimes::waits_for_locks(view);
    let findings: Vec<Finding> =
        listeners.iter().filter_map(|listener| full(view, listener, is_effect)).collect();
    let waiting = listeners.iter().map(|l| l.waiting_max).max().unwrap_or(0);
    Outcome::found_or(findings, || {
        format!("at most {waiting} connections waited to be accepted, none was dropped")
    })
}

fn full(view: &View<'_>, listener: &Listener, is_effect: bool) -> Option<Finding> {
    let address = &listener.address;
    let is_full = listener.backlog.is_some_and(|limit| limit > 0 && listener.waiting_max >= limit);
    let port = address.rsplit(':').next().unwrap_or("");
    let command = format!("ss -ltnm 'sport = :{port}'   # Recv-Q waiting, Send-Q the limit, d the drops");
    let waited = format!("at most {} waited, the limit is {}", listener.waiting_max, limit(listener));
    if listener.drops >= DROPS_MIN || is_full {
        let title = match listener.drops {
            0 => format!("The accept queue of {address} is full: {waited}"),
            drops => format!("The accept queue of {address} overflows: {drops} connections dropped"),
        };
        // A longer queue does not shorten a wait.
        let ceiling = if is_effect { EFFECT_CEILING } else { 3.0 };
        let finding = Finding::outside("R10", ceiling, view.confidence(0.95, false).max(0.9), title);
        return Some(
            finding
                .about(address.as_str())
                .evidence(waited, command)
                .evidence("drops of all listeners".to_string(), "nstat -az TcpExtListenDrops".to_string())
                .next("Raise the backlog of listen() and net.core.somaxconn; accept in a loop until EAGAIN."),
        );
    }
    let seen = listener.seen_waiting as f64 / listener.seen.max(1) as f64;
    let idle = view.critical.share(view.critical.idle_ns) > IDLE_FROM;
    if seen < WAITING_MIN || listener.seen < SAMPLES_MIN || !idle || is_effect {
        return None;
    }
    let client = awaited_client(view);
    let meanwhile = client.map_or_else(
        || "the server sleeps".to_string(),
        |client| format!("its thread waits for {client}, a client, to send"),
    );
    let title = format!("Connections wait to be accepted on {address} while {meanwhile}");
    let next = if client.is_some() {
        "A client that sends slowly keeps a thread: give reads a time limit, use more threads or an event \
         loop, or put a proxy that reads whole requests before it."
    } else {
        "An edge-triggered listener must be drained until EAGAIN at each event; or use level-triggered."
    };
    Some(
        Finding::outside("R10", 2.0, view.confidence(0.8, false), title)
            .about(address.as_str())
            .evidence(
                format!("{} of the samples found connections waiting; {waited}", percent(seen)),
                command,
            )
            .next(next),
    )
}

/// The client from which the critical thread waits to receive most of the time, without serving others.
fn awaited_client<'a>(view: &View<'a>) -> Option<&'a str> {
    let receives = view.calls().filter(|call| RECEIVING.contains(&call.name.as_str()));
    let of_clients = receives.filter(|call| view.role(call.fd) == Some(Role::Client));
    let longest = of_clients.max_by_key(|call| call.blocked_ns)?;
    let what = view.what(longest.fd)?;
    (view.share(longest.blocked_ns) >= IDLE_FROM / 2.0).then(|| what.rsplit(' ').next().unwrap_or(what))
}

fn limit(listener: &Listener) -> String {
    listener.backlog.map_or_else(|| "unknown".to_string(), |limit| limit.to_string())
}

pub(crate) fn slow_peers(view: &View<'_>) -> Outcome {
    let sockets = &view.recording.sockets;
    let mut findings: Vec<Finding> = on_the_network(view).into_iter().collect();
    let blocked = blocked_sends(view);
    let is_said = |socket: &&Socket| !blocked.iter().any(|(fd, _)| *fd == socket.fd);
    findings.extend(
        sockets
            .iter()
            .filter(|socket| socket.local_only)
            .filter(is_said)
            .filter_map(|socket| on_this_machine(view, socket)),
    );
    findings.extend(blocked.into_iter().map(|(_, finding)| finding));
    Outcome::found_or(findings, || {
        let most = sockets.iter().map(|s| s.unsent_max).max().unwrap_or(0);
        format!("no connection holds more than {most} bytes for long")
    })
}

fn on_the_network(view: &View<'_>) -> Option<Finding> {
    let slow = |socket: &&Socket| {
        let unsent = socket.seen_unsent as f64 / socket.seen.max(1) as f64;
        socket.seen >= SAMPLES_MIN && (is_closed(socket) || unsent >= UNSENT_MIN)
    };
    let sockets: Vec<&Socket> =
        view.recording.sockets.iter().filter(|socket| !socket.local_only).filter(slow).collect();
    let worst = sockets.iter().max_by_key(|s| (is_closed(s), s.seen_probing, s.unsent_max))?;
    let closed = is_closed(worst);
    let role = view.role(worst.fd).unwrap_or(Role::Other);
    let who = format!("{} of {}", worst.remote, role.plural());
    let title = if closed {
        format!("{who} does not read: its window is closed and {} bytes wait for it", worst.unsent_max)
    } else {
        format!("{who} reads slowly: {} bytes wait for it", worst.unsent_max)
    };
    // A pipelining client or a replica that keeps up has bytes in flight as well: only a closed window is
    // certain.
    let (ceiling, confidence) = if closed { (1.5, 0.8) } else { (1.05, 0.3) };
    let mut finding = Finding::outside("R11", ceiling, view.confidence(confidence, false), title)
        .evidence(
            format!(
                "{} of {} samples found much unsent data, {} a closed window, {} progress of the receiver",
                worst.seen_unsent, worst.seen, worst.seen_probing, worst.seen_taking
            ),
            format!("ss -tnmo dst {}", worst.remote),
        )
        .next(
            "Look at that process, or at the network to it; a limit on its output buffer keeps it from \
             taking memory.",
        );
    finding.holds_while_idle = closed;
    if sockets.len() > 1 {
        let all = "ss -tnmoi   # those with much in Send-Q".to_string();
        finding = finding.evidence(format!("{} connections are like that", sockets.len()), all);
    }
    Some(finding)
}

fn is_closed(socket: &Socket) -> bool {
    let part = |samples: u64| samples as f64 / socket.seen.max(1) as f64;
    part(socket.seen_probing) >= CLOSED_MIN && part(socket.seen_taking) <= TAKING_MAX
}

/// A local receiver reads at once, if it reads at all.
fn on_this_machine(view: &View<'_>, socket: &Socket) -> Option<Finding> {
    let stopped = socket.seen_stopped as f64 >= UNSENT_MIN * socket.seen as f64;
    let unread = socket.seen_unsent as f64 >= UNREAD_MIN * socket.seen as f64;
    let enough = if stopped { STOPPED_SAMPLES_MIN } else { SAMPLES_MIN };
    if socket.seen < enough || !(unread || stopped) {
        return None;
    }
    let who = other_end(view, socket.fd, &socket.remote);
    let title = match (stopped, socket.unsent_max) {
        (true, 0) => format!("{who} does not run: it was stopped"),
        (true, bytes) => format!("{who} does not read: it was stopped, and {bytes} bytes wait for it"),
        (false, bytes) => format!("{who} does not read: {bytes} bytes wait for it"),
    };
    let confidence = view.confidence(if stopped { 0.9 } else { 0.6 }, false).max(0.5);
    let samples = format!(
        "{} of {} samples found unread data, {} found it stopped",
        socket.seen_unsent, socket.seen, socket.seen_stopped
    );
    let pid = socket.remote.rsplit_once('(').map_or("", |(_, pid)| pid.trim_end_matches(')'));
    let next = match stopped {
        true => format!("Continue it: kill -CONT {pid}; and find out why it was stopped."),
        false => format!("See what it waits for: cat /proc/{pid}/stack."),
    };
    Some(
        Finding::outside("R11", 1.5, confidence, title)
            .about(format!("{} unread", socket.remote))
            .evidence(samples, format!("ss -xp | grep -w {pid}; ps -o pid,stat,wchan,comm -p {pid}"))
            .next(&next),
    )
}

/// The other end of a descriptor, with its role.
fn other_end(view: &View<'_>, fd: Option<i32>, name: &str) -> String {
    match view.role(fd) {
        Some(Role::LogDaemon) => format!("Its log daemon {name}"),
        Some(role @ (Role::Client | Role::Replica | Role::Outbound | Role::Primary)) => {
            format!("{name} of {}", role.plural())
        }
        _ => name.to_string(),
    }
}

/// Whether a call that copies from a file to a socket waits for the file's disk: by uninterruptible sleeps,
/// or by the time that disks worked on reads meanwhile.
pub(super) fn waits_for_a_file(view: &View<'_>, call: &str) -> bool {
    let waited: u64 = view.calls().filter(|c| c.name == call).map(|c| c.blocked_ns).sum();
    let read: u64 = view.recording.disks.iter().map(|disk| disk.reads.took_ns).sum();
    let thread = view.recording.threads.iter().find(|thread| thread.tid == view.critical.tid);
    let uninterruptible = thread.is_some_and(|t| t.seen_uninterruptible * 20 >= t.seen.max(1));
    uninterruptible || read * 2 >= waited.max(1)
}

/// Sends in which the thread waits until the other end reads.
fn blocked_sends(view: &View<'_>) -> Vec<(Option<i32>, Finding)> {
    let mut waited: BTreeMap<(&str, Option<i32>), u64> = BTreeMap::new();
    // A sendfile that sleeps mostly waits for the file: sockets of event loops do not block.
    let reads_a_file = |name: &str| matches!(name, "sendfile" | "splice") && waits_for_a_file(view, name);
    for call in view.calls().filter(|call| SENDS.contains(&call.name.as_str())) {
        if reads_a_file(&call.name) {
            continue;
        }
        if view.role(call.fd).is_some_and(|role| role.is_peer() || role == Role::Pipe) {
            *waited.entry((call.name.as_str(), call.fd)).or_default() += call.blocked_ns;
        }
    }
    waited
        .into_iter()
        .filter(|(_, ns)| view.share(*ns) >= SHARE_MIN)
        .map(|((name, fd), ns)| {
            let descriptor = view.recording.descriptors.iter().find(|d| Some(d.fd) == fd);
            let known = descriptor.map(|d| d.peer.clone().unwrap_or_else(|| d.what.clone()));
            let who = other_end(view, fd, &known.unwrap_or_else(|| "a peer".to_string()));
            let share = view.share(ns);
            let is_stopped =
                view.recording.sockets.iter().any(|socket| socket.fd == fd && is_stopped(socket));
            let why = if is_stopped { "was stopped and does not read" } else { "does not read in time" };
            let title = format!("{who} {why}: {name} to it takes {} of the thread's time", percent(share));
            let finding = Finding::new("R11", share, view.confidence(0.9, false), title)
                .about(format!("waiting in {name} for {who}"))
                .evidence(
                    format!("blocked {} in {name}", millis(ns)),
                    format!("strace -f -T -y -e trace={name} -p {}", view.pid()),
                )
                .next(
                    "Look at what that process waits for; sends that do not block, or another thread for \
                     them, keep it apart.",
                )
                .frames([name.to_string()]);
            (fd, finding)
        })
        .collect()
}

fn is_stopped(socket: &Socket) -> bool {
    socket.seen >= STOPPED_SAMPLES_MIN && socket.seen_stopped as f64 >= UNSENT_MIN * socket.seen as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::{Verdict, diagnose};
    use crate::golden;
    use crate::recording::{Call, Descriptor};

    #[test]
    fn drops_are_found_though_every_thread_sleeps() {
        let mut recording = golden::idle();
        let address = "127.0.0.1:6379".to_string();
        recording.listeners = vec![Listener {
            address,
            backlog: Some(5),
            waiting_max: 6,
            drops: 40,
            seen: 20,
            seen_waiting: 3,
        }];
        let diagnosis = diagnose(&recording);
        assert_eq!((diagnosis.verdict, diagnosis.findings[0].rule), (Verdict::Found, "R10"));
        assert!(diagnosis.sentence.contains("40 connections dropped"), "{}", diagnosis.sentence);
    }

    #[test]
    fn a_forgotten_connection_is_found_only_if_the_server_sleeps() {
        let address = "127.0.0.1:80".to_string();
        let listener =
            Listener { address, backlog: Some(511), waiting_max: 3, drops: 0, seen: 20, seen_waiting: 18 };
        let mut recording = golden::idle();
        recording.listeners = vec![listener.clone()];
        assert!(diagnose(&recording).sentence.contains("while the server sleeps"));
        let mut recording = golden::busy();
        recording.listeners = vec![listener];
        assert!(diagnose(&recording).findings.iter().all(|finding| finding.rule != "R10"));
    }

    #[test]
    fn a_closed_window_names_the_peer_unless_it_reads_all_the_same() {
        let mut recording = golden::idle();
        let mut socket = Socket {
            remote: "10.0.0.9:4000".to_string(),
            fd: Some(golden::CLIENT),
            unsent_max: 2_000_000,
            seen: 20,
            seen_unsent: 20,
            seen_probing: 18,
            ..Socket::default()
        };
        recording.sockets = vec![socket.clone()];
        let diagnosis = diagnose(&recording);
        assert!(
            diagnosis.sentence.starts_with("10.0.0.9:4000 of clients does not read"),
            "{}",
            diagnosis.sentence
        );
        // A client that reads all the time, but more slowly than the server sends, closes its window now and
        // then.
        socket.seen_taking = 19;
        let mut recording = golden::busy();
        golden::add_samples(&mut recording, &["main", "call", "replicationFeedSlaves", "memcpy"], 500);
        recording.sockets = vec![socket];
        let diagnosis = diagnose(&recording);
        assert_eq!(diagnosis.findings[0].rule, "R2", "{}", diagnosis.sentence);
        let slow = diagnosis.findings.iter().find(|finding| finding.rule == "R11").expect("it is said");
        assert!(slow.title.starts_with("10.0.0.9:4000 of clients reads slowly"), "{}", slow.title);
    }

    #[test]
    fn a_log_daemon_that_is_stopped_is_named() {
        let mut recording = golden::idle();
        recording.descriptors.push(Descriptor {
            fd: 30,
            role: Role::LogDaemon,
            what: "socket:[7]".to_string(),
            peer: Some("log_file_daemon (77)".to_string()),
            disk: None,
        });
        let mut socket = Socket {
            remote: "log_file_daemon (77)".to_string(),
            fd: Some(30),
            unsent_max: 17_408,
            seen: 20,
            seen_unsent: 20,
            local_only: true,
            ..Socket::default()
        };
        recording.sockets = vec![socket.clone()];
        let sentence = diagnose(&recording).sentence;
        assert_eq!(sentence, "Its log daemon log_file_daemon (77) does not read: 17408 bytes wait for it");
        socket.seen_stopped = 20;
        recording.sockets = vec![socket.clone()];
        assert!(diagnose(&recording).findings[0].next_step.contains("kill -CONT 77"));
        socket.seen_unsent = 9;
        socket.seen_stopped = 0;
        recording.sockets = vec![socket];
        assert!(diagnose(&recording).findings.is_empty(), "it reads now and then");
    }

    #[test]
    fn a_write_that_waits_for_its_reader_is_no_disk() {
        let mut recording = golden::idle();
        recording.descriptors.push(Descriptor {
            fd: 30,
            role: Role::Pipe,
            what: "pipe:[7]".to_string(),
            peer: Some("rotatelogs (77)".to_string()),
            disk: None,
        });
        recording.calls.push(Call {
            tid: golden::TID,
            name: "write".to_string(),
            fd: Some(30),
            blocked_ns: golden::WINDOW_NS / 2,
            ..Call::default()
        });
        let first = diagnose(&recording).findings[0].clone();
        assert_eq!(
            first.title,
            "rotatelogs (77) does not read in time: write to it takes 50% of the thread's time"
        );
    }
}
