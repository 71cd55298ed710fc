//! R2: CPU time of sending, by role of the receiver; feeding replicas is a part of it. R13: the receiver's
//! work inside the server's own send.
//!
//! A replica costs twice: the server copies each command for it, and writes it to the socket. The copies are
//! in functions whose names are known for all servers of the Redis family; the writes are system calls on
//! descriptors with a known role.

use std::collections::BTreeMap;

use super::{SHARE_MIN, percent};
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::{Marks, View};
use crate::recording::{Role, Sample};

pub(crate) const SENDS: &[&str] = &["write", "writev", "sendto", "sendmsg", "sendmmsg", "sendfile", "splice"];

/// Functions that copy commands for replicas; their callees count as part of them.
#[rustfmt::skip]
const FEEDS: &[&str] = &[
    "replicationFeedSlaves", "replicationFeedReplicas", "replicationFeedStreamFromMasterStream",
    "replicationFeedStreamFromPrimaryStream", "feedReplicationBuffer", "feedReplicationBufferWithObject",
    "feedReplicationBacklog", "replicationFeedMonitors",
];

/// Loopback always has some; from this share on it is worth a finding.
const RECEIVE_MIN: f64 = 0.15;
#[rustfmt::skip]
const RECEIVES: &[&str] = &[
    "tcp_v4_rcv", "tcp_v6_rcv", "tcp_rcv_established", "__netif_receive_skb", "process_backlog",
];

pub(crate) fn is_feed(name: &str) -> bool {
    FEEDS.contains(&name)
}

/// Marks the functions that feed replicas.
pub(crate) fn feeds(view: &View<'_>) -> Marks {
    view.mark(|frame| is_feed(&frame.name))
}

/// Whether a sample is inside a system call that sends.
pub(crate) fn is_send(sample: &Sample) -> bool {
    sample.call.as_deref().is_some_and(|name| SENDS.contains(&name))
}

pub(crate) fn by_role(view: &View<'_>) -> Outcome {
    let mut cpu: BTreeMap<Role, u64> = BTreeMap::new();
    for call in view.calls().filter(|call| SENDS.contains(&call.name.as_str())) {
        if let Some(role) = view.role(call.fd).filter(|role| role.is_peer()) {
            *cpu.entry(role).or_default() += call.cpu_ns;
        }
    }
    let mut findings: Vec<Finding> = cpu
        .iter()
        .filter(|(role, ns)| **role != Role::Replica && view.share(**ns) >= SHARE_MIN)
        .map(|(&role, &ns)| sending(view, role, view.share(ns)))
        .collect();
    let sent = cpu.get(&Role::Replica).map_or(0.0, |&ns| view.share(ns));
    findings.extend(replicas(view, sent));
    if findings.is_empty() && !view.counts_calls() {
        return Outcome::Unseen("CPU time inside system calls needs BPF programs".to_string());
    }
    Outcome::found_or(findings, || {
        let all = view.share(cpu.values().sum());
        format!("sending takes {} of its time", percent(all))
    })
}

/// Feeding replicas: copies and writes are a single cause.
fn replicas(view: &View<'_>, sent: f64) -> Option<Finding> {
    let feeds = feeds(view);
    let fed = view.samples().filter(|sample| view.meets(sample.stack, &feeds));
    let samples: u64 = fed.map(|sample| sample.count).sum();
    let fed = view.sample_share(samples);
    if fed + sent < SHARE_MIN {
        return None;
    }
    let count = view.recording.descriptors.iter().filter(|d| d.role == Role::Replica).count();
    let title = format!(
        "Feeding {} replica{} takes {} of the thread's time: {} copying commands for them, {} writing to \
         their sockets",
        if count == 0 { "its".to_string() } else { count.to_string() },
        if count == 1 { "" } else { "s" },
        percent(fed + sent),
        percent(fed),
        percent(sent)
    );
    let replica = view.recording.descriptors.iter().find(|d| d.role == Role::Replica);
    let fd = replica.map_or_else(|| "all".to_string(), |d| d.fd.to_string());
    let perf = format!("perf record -F 199 -g -p {} -- sleep 10; perf report --no-children", view.pid());
    let trace = format!("strace -c -f -e trace=write -e fd={fd} -p {}", view.pid());
    Some(
        Finding::new("R2", fed + sent, view.confidence(0.9, true), title)
            .about("feeding replicas")
            .evidence(
                format!("{} of CPU samples are inside functions that feed replicas", percent(fed)),
                perf,
            )
            .evidence(format!("writes to replicas take {}", percent(sent)), trace)
            .next(
                "Chain replicas behind one another, or use a server that copies a command once for all of \
                 them.",
            )
            .frames(FEEDS.iter().map(ToString::to_string))
            .within(&[view.sample_error(samples), view.scale_error(sent)]),
    )
}

fn sending(view: &View<'_>, role: Role, share: f64) -> Finding {
    let title =
        format!("Sending to {} takes {} of the thread's time in the kernel", role.plural(), percent(share));
    let calls: u64 = view
        .calls()
        .filter(|c| SENDS.contains(&c.name.as_str()) && view.role(c.fd) == Some(role))
        .filter_map(|c| c.count)
        .sum();
    // Clients asked for this work: the possible gain is smaller than the share.
    let mut finding = Finding::new("R2", share, view.confidence(0.5, false), title);
    finding.ceiling = 1.0 / (1.0 - share / 2.0);
    finding
        .about(role.plural())
        .evidence(
            format!("{} calls a second to {}", view.rate(calls), role.plural()),
            format!("strace -c -f -e trace=write,writev,sendto,sendmsg -p {}", view.pid()),
        )
        .next("Pipelining by the clients makes the calls fewer; threads for I/O take them off this one.")
        .frames(SENDS.iter().map(ToString::to_string))
        .within(&[view.scale_error(share)])
}

pub(crate) fn receive_inside_send(view: &View<'_>) -> Outcome {
    if !view.samples_kernel() {
        return Outcome::Unseen("stacks of the kernel need privileges".to_string());
    }
    let sends = |sample: &&Sample| is_send(sample);
    let receive = view.mark(|frame| RECEIVES.contains(&frame.name.as_str()));
    let receives = |sample: &&Sample| view.meets(sample.stack, &receive);
    let count: u64 = view.samples().filter(sends).filter(receives).map(|sample| sample.count).sum();
    let share = view.sample_share(count);
    if share < RECEIVE_MIN {
        return Outcome::RuledOut(format!("the receiver's work inside our sends takes {}", percent(share)));
    }
    let title = format!(
        "The receiver's TCP work runs inside our own sends (loopback): {} of the thread's time",
        percent(share)
    );
    let perf = format!("perf record -g -p {} -- sleep 10; perf report -S tcp_v4_rcv -g caller", view.pid());
    Outcome::Found(vec![
        Finding::new("R13", share, view.confidence(0.4, true), title)
            .evidence(
                format!("{} of CPU samples are in TCP's receive path below a send", percent(share)),
                perf,
            )
            .next(
                "Expected where both ends are on one machine; a Unix socket, or clients elsewhere, take it \
                 away.",
            )
            .frames(RECEIVES.iter().map(ToString::to_string))
            .within(&[view.sample_error(count)]),
    ])
}

#[cfg(test)]
mod tests {
    use crate::analyse::diagnose;
    use crate::golden;
    use crate::recording::Call;

    #[test]
    fn feeding_replicas_is_a_single_finding_of_two_parts() {
        let mut recording = golden::busy();
        golden::add_samples(
            &mut recording,
            &["main", "aeMain", "call", "replicationFeedSlaves", "memcpy"],
            500,
        );
        recording.calls.push(Call {
            tid: golden::TID,
            name: "write".to_string(),
            fd: Some(golden::REPLICA),
            count: Some(2_000),
            cpu_ns: golden::WINDOW_NS / 50,
            ..Call::default()
        });
        let diagnosis = diagnose(&recording);
        let first = &diagnosis.findings[0];
        assert_eq!(first.rule, "R2");
        assert!(first.title.starts_with("Feeding 1 replica takes "), "{}", first.title);
        assert!(first.title.ends_with("2.0% writing to their sockets"), "{}", first.title);
        // Functions of this finding are not found again as hot functions.
        assert!(
            diagnosis.findings.iter().all(|f| !f.title.contains("replicationFeedSlaves")),
            "{diagnosis:#?}"
        );
    }

    #[test]
    fn without_replicas_there_is_no_such_finding() {
        let diagnosis = diagnose(&golden::busy());
        assert!(
            diagnosis.findings.iter().all(|finding| !finding.title.contains("replica")),
            "{diagnosis:#?}"
        );
    }
}
