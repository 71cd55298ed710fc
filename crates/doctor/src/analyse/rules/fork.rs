//! R4: a fork that copies page tables while clients wait. R5: copies of pages that a child still shares.

use super::{SHARE_MIN, millis, percent};
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::View;

pub(crate) const FORKS: &[&str] = &["clone", "clone3", "fork", "vfork"];
/// Starting a thread takes 0.1 ms; only page tables take longer.
const FORK_MIN_NS: u64 = 5_000_000;
/// A stop of this length weighs as much as half of the thread's time.
const FELT_NS: f64 = 50_000_000.0;
const FELT_MIN: f64 = 1.2;
const FELT_MAX: f64 = 3.0;
pub(crate) const TABLE_COPIES: &[&str] = &["copy_page_range", "copy_page_tables", "dup_mm", "dup_mmap"];
#[rustfmt::skip]
pub(crate) const COPIES: &[&str] = &[
    "do_wp_page", "wp_page_copy", "do_cow_fault", "copy_user_highpage", "do_huge_pmd_wp_page",
];

pub(crate) fn page_tables(view: &View<'_>) -> Outcome {
    let seen = view
        .calls()
        .filter(|call| FORKS.contains(&call.name.as_str()) && call.count.is_some())
        .max_by_key(|call| call.longest_ns);
    // A fork may fall into a pause of the budget, or into the start of the capture. The server's own clock
    // has no pauses.
    let said = view.recording.forks.filter(|forks| forks.count > 0);
    if said.is_none() && !view.counts_calls() {
        return Outcome::Unseen("the length of forks needs BPF programs".to_string());
    }
    let seen_ns = seen.map_or(0, |call| call.longest_ns);
    let longest_ns = seen_ns.max(said.map_or(0, |forks| forks.latest_ns));
    if longest_ns < FORK_MIN_NS {
        let short = Outcome::RuledOut(format!("the longest fork took {}", millis(longest_ns.max(seen_ns))));
        return short.if_shown(view.hidden_moments().filter(|_| view.recording.forks.is_none()));
    }
    let all_ns = match said {
        Some(forks) => forks.latest_ns.saturating_mul(forks.count),
        None => seen.map_or(0, |call| call.wall_ns()),
    };
    let share = view.share(all_ns);
    let title = format!("A fork stopped the thread for {} to copy page tables", millis(longest_ns));
    let mut finding = Finding::new("R4", share, view.confidence(0.9, false), title);
    if let Some(call) = seen.filter(|call| call.longest_ns >= FORK_MIN_NS) {
        finding = finding.evidence(
            format!("{} on the thread that serves clients: {}", call.name, millis(call.longest_ns)),
            format!("strace -f -T -e trace=clone,fork -p {}", view.pid()),
        );
    }
    if let Some(forks) = said {
        finding = finding.evidence(
            format!("the server itself says {}; {} in the window", millis(forks.latest_ns), forks.count),
            "redis-cli INFO stats | grep fork".to_string(),
        );
    }
    let mut finding = finding
        .evidence("page tables to copy".to_string(), format!("grep VmPTE /proc/{}/status", view.pid()))
        .next(
            "Snapshot less often or on a replica; less memory in this process; or a server that does not \
             fork.",
        )
        .frames(TABLE_COPIES.iter().map(ToString::to_string));
    finding.holds_while_idle = true;
    // The longest wait hurts, not the mean.
    let felt = 1.0 + longest_ns as f64 / FELT_NS;
    finding.ceiling = finding.ceiling.max(felt.clamp(FELT_MIN, FELT_MAX));
    Outcome::Found(vec![finding])
}

pub(crate) fn copy_on_write(view: &View<'_>) -> Outcome {
    if !view.samples_kernel() {
        return Outcome::Unseen("stacks of the kernel need privileges".to_string());
    }
    let copying = view.mark(|frame| COPIES.contains(&frame.name.as_str()));
    let copies = view.samples().filter(|sample| view.meets(sample.stack, &copying));
    let count = copies.map(|sample| sample.count).sum();
    let share = view.sample_share(count);
    if share < SHARE_MIN {
        return Outcome::RuledOut(format!("copying shared pages takes {}", percent(share)));
    }
    let title =
        format!("Copying pages that a child still shares takes {} of the thread's time", percent(share));
    let perf = format!("perf record -g -p {} -- sleep 10; perf report -S do_wp_page", view.pid());
    Outcome::Found(vec![
        Finding::new("R5", share, view.confidence(0.8, true), title)
            .evidence(format!("{} of CPU samples are in copy-on-write faults", percent(share)), perf)
            .next("Snapshot when fewer writes come, without huge pages; or a server that does not fork.")
            .frames(COPIES.iter().map(ToString::to_string))
            .within(&[view.sample_error(count)]),
    ])
}

#[cfg(test)]
mod tests {
    use crate::analyse::diagnose;
    use crate::golden;
    use crate::recording::{Call, Forks, Tier};

    #[test]
    fn a_fork_that_was_not_seen_is_known_from_the_server() {
        let mut recording = golden::busy();
        recording.forks = Some(Forks { count: 1, latest_ns: 40_000_000 });
        for tier in [Tier::T0, Tier::T3] {
            recording.tier = tier;
            let diagnosis = diagnose(&recording);
            let found = diagnosis.findings.iter().find(|finding| finding.rule == "R4").expect("R4");
            assert!(found.title.contains("40.0 ms"), "{}", found.title);
        }
        // The latest fork was before the window.
        recording.forks = Some(Forks { count: 0, latest_ns: 40_000_000 });
        assert!(diagnose(&recording).findings.iter().all(|finding| finding.rule != "R4"));
    }

    #[test]
    fn a_long_fork_is_a_finding_and_starting_a_thread_is_not() {
        let clone = |longest_ns| Call {
            tid: golden::TID,
            name: "clone".to_string(),
            count: Some(1),
            cpu_ns: longest_ns,
            longest_ns,
            ..Call::default()
        };
        let mut recording = golden::busy();
        recording.calls.push(clone(100_000));
        assert!(diagnose(&recording).findings.iter().all(|finding| finding.rule != "R4"));
        recording.calls.push(clone(183_000_000));
        let diagnosis = diagnose(&recording);
        let found = diagnosis.findings.iter().find(|finding| finding.rule == "R4").expect("R4");
        assert!(found.title.contains("183 ms"), "{}", found.title);
    }
}
