//! The cost of a request, if the server was asked how many it had processed.

use serde::Serialize;

use super::critical::Budget;
use crate::recording::{OwnCount, Recording};

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Requests {
    pub(crate) per_second: f64,
    /// CPU time of all threads together, per request.
    pub(crate) cpu_us: f64,
    /// CPU time of the critical thread, per request that it serves.
    pub(crate) critical_cpu_us: f64,
    /// Wall time of the critical thread, per request that it serves: its factor from shares to time per
    /// request.
    pub(crate) critical_us: f64,
    /// The server's own account of its workers' time, as shares, the largest first.
    pub(crate) stages: Vec<(String, f64)>,
}

/// `None` if the server was not asked, or had no requests but the doctor's.
pub(crate) fn requests(recording: &Recording, critical: &Budget) -> Option<Requests> {
    let counted = recording.own_count.as_ref().filter(|counted| counted.commands > 0)?;
    let each_ns = counted.between_ns as f64 / counted.commands as f64;
    let cpu_us = |ns: u64| ns as f64 / recording.window_ns as f64 * each_ns / 1e3;
    let served = served_by(recording, critical);
    Some(Requests {
        per_second: 1e9 / each_ns.max(1e-9),
        cpu_us: cpu_us(recording.threads.iter().map(|thread| thread.cpu_ns).sum()),
        critical_cpu_us: cpu_us(critical.cpu_ns) / served,
        critical_us: each_ns / 1e3 / served,
        stages: stages(counted),
    })
}

/// The critical thread's part of the requests. Threads whose names differ only by a number share the requests
/// by their CPU time.
pub(super) fn served_by(recording: &Recording, critical: &Budget) -> f64 {
    fn kind(name: &str) -> &str {
        name.trim_end_matches(|c: char| c.is_ascii_digit())
    }
    let alike = recording.threads.iter().filter(|thread| kind(&thread.name) == kind(&critical.name));
    let all: u64 = alike.map(|thread| thread.cpu_ns).sum();
    if all == 0 { 1.0 } else { (critical.cpu_ns as f64 / all as f64).clamp(1e-3, 1.0) }
}

fn stages(counted: &OwnCount) -> Vec<(String, f64)> {
    let all: u64 = counted.stages.iter().map(|(_, ns)| ns).sum();
    let share = |(name, ns): &(String, u64)| (name.clone(), *ns as f64 / all.max(1) as f64);
    let mut stages: Vec<(String, f64)> = counted.stages.iter().map(share).collect();
    stages.sort_by(|a, b| b.1.total_cmp(&a.1));
    stages
}

#[cfg(test)]
mod tests {
    use crate::analyse::diagnose;
    use crate::golden;
    use crate::recording::{OwnCount, Recording, Thread};

    fn asked(mut recording: Recording) -> Recording {
        // A million in half of the window: five microseconds per request.
        recording.own_count = Some(OwnCount {
            between_ns: golden::WINDOW_NS / 2,
            commands: 1_000_000,
            stages: vec![("read".to_string(), 1_000), ("idle".to_string(), 3_000)],
        });
        recording
    }

    #[test]
    fn a_share_of_the_thread_is_time_for_each_request() {
        let mut recording = asked(golden::busy());
        golden::add_samples(&mut recording, &["main", "aeMain", "call", "replicationFeedSlaves"], 1_920);
        let diagnosis = diagnose(&recording);
        let requests = diagnosis.requests.expect("it was asked");
        assert!((requests.per_second - 200_000.0).abs() < 0.1, "{requests:?}");
        assert!(
            (requests.critical_us - 5.0).abs() < 1e-9 && (requests.cpu_us - 4.9).abs() < 1e-9,
            "{requests:?}"
        );
        assert_eq!(requests.stages, [("idle".to_string(), 0.75), ("read".to_string(), 0.25)]);
        let (feeding, each) = (&diagnosis.findings[0], diagnosis.findings[0].per_request_us);
        assert_eq!(feeding.rule, "R2");
        assert!((each.expect("it has a share") - 2.45).abs() < 0.01, "half of 4.9 us: {each:?}");
    }

    #[test]
    fn threads_of_the_same_kind_share_the_requests() {
        let mut recording = asked(golden::busy());
        recording.threads[0].name = "worker-0".to_string();
        let cpu_ns = recording.threads[0].cpu_ns / 3;
        recording.threads.push(Thread {
            tid: 200,
            name: "worker-11".to_string(),
            cpu_ns,
            ..Thread::default()
        });
        recording.threads.push(Thread { tid: 300, name: "log".to_string(), cpu_ns, ..Thread::default() });
        let requests = diagnose(&recording).requests.expect("it was asked");
        assert!((requests.critical_us - 5.0 / 0.75).abs() < 1e-6, "{requests:?}");
    }

    #[test]
    fn a_thread_without_requests_has_no_time_per_request() {
        assert!(diagnose(&golden::busy()).requests.is_none());
        let mut recording = asked(golden::idle());
        recording.own_count = Some(OwnCount { commands: 0, ..OwnCount::default() });
        assert!(diagnose(&recording).requests.is_none());
    }
}
