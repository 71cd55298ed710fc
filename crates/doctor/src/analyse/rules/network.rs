//! R10: connections that wait to be accepted, or are refused. R11: peers that do not take what they are sent.
//!
//! Both are seen from the kernel's tables alone, and both may hold up clients while every thread of the server sleeps.

use super::percent;
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::View;
use crate::recording::{Listener, Role, Socket};

/// Part of the looks that found somebody waiting, from which the server accepts too late.
const WAITING_MIN: f64 = 0.5;
/// Part of the looks with much unsent, from which a peer is slow; and looks that are enough to say so.
const UNSENT_MIN: f64 = 0.5;
const LOOKS_MIN: u64 = 4;
const IDLE_FROM: f64 = 0.7;

pub(crate) fn accept_queues(view: &View<'_>) -> Outcome {
    let listeners = &view.recording.listeners;
    let findings: Vec<Finding> = listeners.iter().filter_map(|listener| full(view, listener)).collect();
    let waiting = listeners.iter().map(|l| l.waiting_max).max().unwrap_or(0);
    Outcome::found_or(findings, || {
        format!("at most {waiting} connections waited to be accepted, none was dropped")
    })
}

fn full(view: &View<'_>, listener: &Listener) -> Option<Finding> {
    let address = &listener.address;
    let is_full = listener.backlog.is_some_and(|limit| limit > 0 && listener.waiting_max >= limit);
    let port = address.rsplit(':').next().unwrap_or("");
    let command = format!("ss -ltnm 'sport = :{port}'   # Recv-Q waiting, Send-Q the limit, d the drops");
    let waited = format!("at most {} waited, the limit is {}", listener.waiting_max, limit(listener));
    if listener.drops > 0 || is_full {
        let title = match listener.drops {
            0 => format!("The accept queue of {address} is full: {waited}"),
            drops => format!("The accept queue of {address} overflows: {drops} connections dropped"),
        };
        let finding = Finding::outside("R10", 3.0, view.confidence(0.95, false).max(0.9), title);
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
    if seen < WAITING_MIN || listener.seen < LOOKS_MIN || !idle {
        return None;
    }
    let title = format!("Connections wait to be accepted on {address} while the server sleeps");
    Some(
        Finding::outside("R10", 2.0, view.confidence(0.8, false), title)
            .about(address.as_str())
            .evidence(format!("{} of the looks found somebody waiting; {waited}", percent(seen)), command)
            .next("An edge-triggered listener must be drained until EAGAIN at each event; or use level-triggered."),
    )
}

fn limit(listener: &Listener) -> String {
    listener.backlog.map_or_else(|| "unknown".to_string(), |limit| limit.to_string())
}

pub(crate) fn slow_peers(view: &View<'_>) -> Outcome {
    let slow = |socket: &&Socket| {
        let unsent = socket.seen_unsent as f64 / socket.seen.max(1) as f64;
        socket.seen >= LOOKS_MIN && (socket.seen_probing * 4 >= socket.seen || unsent >= UNSENT_MIN)
    };
    let sockets: Vec<&Socket> = view.recording.sockets.iter().filter(slow).collect();
    let Some(worst) = sockets.iter().max_by_key(|s| (s.seen_probing, s.unsent_max)) else {
        let most = view.recording.sockets.iter().map(|s| s.unsent_max).max().unwrap_or(0);
        return Outcome::RuledOut(format!("no connection holds more than {most} bytes for long"));
    };
    let closed = worst.seen_probing > 0;
    let role = view.role(worst.fd).unwrap_or(Role::Other);
    let who = format!("{} of {}", worst.remote, role.plural());
    let title = if closed {
        format!("{who} does not read: its window is closed and {} bytes wait for it", worst.unsent_max)
    } else {
        format!("{who} takes what it is sent slowly: {} bytes wait for it", worst.unsent_max)
    };
    // A pipelining client or a replica that keeps up has bytes under way as well: only a closed window is sure.
    let (ceiling, confidence) = if closed { (1.5, 0.8) } else { (1.05, 0.3) };
    let mut finding = Finding::outside("R11", ceiling, view.confidence(confidence, false), title)
        .evidence(
            format!("{} of {} looks found much unsent, {} a closed window", worst.seen_unsent, worst.seen, worst.seen_probing),
            format!("ss -tnmo dst {}", worst.remote),
        )
        .next("Look at that peer, or at the network to it; a limit on its output buffer keeps it from taking memory.");
    finding.holds_while_idle = closed;
    if sockets.len() > 1 {
        finding = finding.evidence(format!("{} connections are like that", sockets.len()), None);
    }
    Outcome::Found(vec![finding])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::{Verdict, diagnose};
    use crate::golden;

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
    fn a_closed_window_names_the_peer() {
        let mut recording = golden::idle();
        recording.sockets = vec![Socket {
            remote: "10.0.0.9:4000".to_string(),
            fd: Some(golden::CLIENT),
            unsent_max: 2_000_000,
            seen: 20,
            seen_unsent: 20,
            seen_probing: 18,
            ..Socket::default()
        }];
        let diagnosis = diagnose(&recording);
        assert!(
            diagnosis.sentence.starts_with("10.0.0.9:4000 of clients does not read"),
            "{}",
            diagnosis.sentence
        );
    }
}
