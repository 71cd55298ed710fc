//! R8: the thread is runnable and does not run: the CPU is shared, its group is at its limit, or the
//! hypervisor took the CPU.

use super::{SHARE_MIN, percent};
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::View;
use crate::recording::Throttling;

/// Sharing a CPU a little is normal.
const QUEUE_MIN: f64 = 0.1;

pub(crate) fn waiting_for_a_cpu(view: &View<'_>) -> Outcome {
    let queue = view.share(view.critical.run_queue_ns);
    // `throttled_ns` is the sum over all CPUs, and perhaps over other processes of the group. Of this, the
    // thread felt at most its own wait in the run queue.
    let throttled = view.recording.throttling.as_ref().map_or(0.0, |t| view.share(t.throttled_ns)).min(queue);
    let mut findings = Vec::new();
    if let Some(throttling) = view.recording.throttling.as_ref().filter(|_| throttled >= SHARE_MIN) {
        findings.push(limited(view, throttling, queue));
    } else if queue >= QUEUE_MIN {
        findings.push(crowded(view, queue));
    }
    // A thread that wants little CPU time loses little.
    let steal = view.recording.host.steal;
    let lost = steal * view.share(view.critical.cpu_ns + view.critical.run_queue_ns);
    if lost >= SHARE_MIN {
        let title = format!("The hypervisor takes {} of the thread's time for other machines", percent(lost));
        findings.push(
            Finding::new("R8", lost, view.confidence(0.8, false), title)
                .about("steal")
                .evidence(
                    format!("{} of the CPU time that the machine asked for is stolen", percent(steal)),
                    "vmstat 1   # column st, against us + sy + st".to_string(),
                )
                .next("Another type of machine, or another host."),
        );
    }
    Outcome::found_or(findings, || format!("it waits for a CPU {} of the time", percent(queue)))
}

fn limited(view: &View<'_>, throttling: &Throttling, share: f64) -> Finding {
    let limit = throttling.limit_cpus.map_or_else(String::new, |cpus| format!(" of {cpus:.2} CPUs"));
    let title =
        format!("Its control group is at its limit{limit}: stopped for {} of the time", percent(share));
    Finding::new("R8", share, view.confidence(0.95, false), title)
        .evidence(
            format!("throttled in {} of {} periods", throttling.periods_throttled, throttling.periods),
            format!("cat {}/cpu.stat", throttling.group),
        )
        .next(
            "Raise cpu.max (a container's CPU limit), or give the server fewer threads than CPUs it may use.",
        )
}

fn crowded(view: &View<'_>, share: f64) -> Finding {
    let recording = view.recording;
    let busiest = recording.host.neighbours.first();
    let with = busiest
        .map_or_else(String::new, |n| format!(", and {} ({}) is the busiest beside it", n.name, n.pid));
    let cpus = recording.target.cpus_allowed_count;
    let title =
        format!("The thread waits {} of the time for a CPU: it may run on {cpus}{with}", percent(share));
    let thread = recording.threads.iter().find(|thread| thread.tid == view.critical.tid);
    let involuntary = thread.map_or(0, |thread| thread.switches_involuntary);
    let schedstat =
        format!("cat /proc/{}/task/{}/schedstat   # 2nd number, ns", view.pid(), view.critical.tid);
    let mut finding = Finding::new("R8", share, view.confidence(0.95, false).max(0.9), title)
        .evidence(format!("{} of the window in the run queue", percent(share)), schedstat)
        .evidence(
            format!("{:.0} involuntary switches a second", view.per_second(involuntary)),
            format!("pidstat -w -t -p {} 1", view.pid()),
        );
    for neighbour in recording.host.neighbours.iter().take(3) {
        let cpu = view.share(neighbour.cpu_ns);
        finding = finding.evidence(
            format!("{} ({}) used {} of a CPU", neighbour.name, neighbour.pid, percent(cpu)),
            format!("pidstat -u -p {} 10 1", neighbour.pid),
        );
    }
    finding.next("Move the other processes elsewhere, or give the server more CPUs or dedicated CPUs.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::diagnose;
    use crate::golden;
    use crate::recording::{Neighbour, Tier};

    #[test]
    fn a_neighbour_on_the_same_cpu_is_named() {
        let mut recording = golden::busy();
        recording.tier = Tier::T3;
        recording.threads[0].cpu_ns = golden::WINDOW_NS / 2;
        recording.threads[0].run_queue_ns = golden::WINDOW_NS / 2;
        recording.host.neighbours =
            vec![Neighbour { pid: 9, name: "hog".to_string(), cpu_ns: golden::WINDOW_NS / 2 }];
        let diagnosis = diagnose(&recording);
        assert_eq!(diagnosis.findings[0].rule, "R8");
        assert!(diagnosis.sentence.contains("waits 50% of the time for a CPU"), "{}", diagnosis.sentence);
        assert!(diagnosis.sentence.contains("hog (9) is the busiest beside it"), "{}", diagnosis.sentence);
    }

    #[test]
    fn stolen_time_is_a_finding_for_a_busy_server_only() {
        let has_steal_finding = |mut recording: crate::recording::Recording| {
            recording.host.steal = 0.2;
            let found = diagnose(&recording).findings;
            found.into_iter().find(|finding| finding.title.starts_with("The hypervisor takes 20%")).is_some()
        };
        assert!(has_steal_finding(golden::busy()));
        assert!(!has_steal_finding(golden::idle()));
    }

    /// The group's loss over all CPUs is not this thread's wait.
    #[test]
    fn a_limit_that_does_not_affect_the_thread_is_no_cause() {
        let mut recording = golden::busy();
        recording.throttling = Some(Throttling {
            group: "/sys/fs/cgroup/x".to_string(),
            periods: 100,
            periods_throttled: 99,
            throttled_ns: 4 * golden::WINDOW_NS,
            limit_cpus: Some(8.0),
        });
        assert!(diagnose(&recording).findings.iter().all(|finding| finding.rule != "R8"));
    }

    #[test]
    fn a_limit_is_distinguished_from_a_neighbour() {
        let mut recording = golden::busy();
        recording.threads[0].cpu_ns = golden::WINDOW_NS / 4;
        recording.threads[0].run_queue_ns = golden::WINDOW_NS / 4 * 3;
        recording.throttling = Some(Throttling {
            group: "/sys/fs/cgroup/x".to_string(),
            periods: 100,
            periods_throttled: 99,
            throttled_ns: golden::WINDOW_NS / 4 * 3,
            limit_cpus: Some(0.25),
        });
        let diagnosis = diagnose(&recording);
        assert!(diagnosis.sentence.contains("at its limit of 0.25 CPUs"), "{}", diagnosis.sentence);
    }
}
