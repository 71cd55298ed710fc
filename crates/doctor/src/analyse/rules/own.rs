//! R19: the doctor itself: its cost to the server, the events it lost, and the stacks it could not walk.
//!
//! These findings gain nothing, so they come last. They qualify the other findings: shares of system calls
//! are too high by the programs' time in each call, and lost events are missing somewhere.

use super::percent;
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::View;
use crate::recording::Health;

/// CPUs, while the programs are attached. Their budget limits the mean, which a duty cycle keeps; the
/// attached spans may take more.
const COST_MIN: f64 = 0.1;
/// CPUs, of the doctor's own process.
const OWN_MIN: f64 = 0.1;
/// Part of the stacks, from which shares of functions are in doubt.
const BROKEN_MIN: f64 = 0.1;
const STACKS_MIN: u64 = 50;

pub(crate) fn evaluate(view: &View<'_>) -> Outcome {
    let health = &view.recording.health;
    let window = view.recording.window_ns.max(1) as f64;
    let own = health.own_cpu_ns as f64 / window;
    let found = [cost(view, health, window), own_cpu(view, own), lost(health), broken(view, health)];
    Outcome::found_or(found.into_iter().flatten().collect(), || {
        format!(
            "the doctor took {} of a CPU and its programs in the kernel {}; nothing was lost",
            percent(own),
            percent(health.kernel_ns as f64 / window)
        )
    })
}

fn cost(view: &View<'_>, health: &Health, window: f64) -> Option<Finding> {
    let share = health.kernel_ns as f64 / (window * health.duty.max(0.001));
    if share < COST_MIN {
        return None;
    }
    let each = health.kernel_ns / health.kernel_runs.max(1);
    let title = format!(
        "While active, the doctor itself takes {} of a CPU, so it was active for {} of the time: it adds to \
         the times of short system calls",
        percent(share),
        percent(health.duty)
    );
    let show = "sysctl kernel.bpf_stats_enabled=1; bpftool prog show".to_string();
    let finding = Finding::aside("R19", title)
        .about("its cost")
        .evidence(format!("its programs ran {} times, {each} ns each", health.kernel_runs), show);
    Some(finding.next(&format!(
        "Shares of functions without this cost: evenkeel-doctor diagnose --no-bpf --pid {}",
        view.pid()
    )))
}

fn own_cpu(view: &View<'_>, own: f64) -> Option<Finding> {
    let title = format!("The doctor itself takes {} of a CPU beside the server", percent(own));
    let show = format!("evenkeel-doctor record --seconds 10 --output FILE --pid {}, and top", view.pid());
    let finding = Finding::aside("R19", title).about("its CPU time").evidence(
        "the process has very many threads, descriptors or connections to look at".to_string(),
        show,
    );
    (own >= OWN_MIN)
        .then(|| finding.next("A longer window: what is read once at both ends weighs less in it."))
}

fn lost(health: &Health) -> Option<Finding> {
    let title = format!(
        "{} events were lost by the doctor: there were more kinds than its tables hold",
        health.events_lost
    );
    let show = "evenkeel-doctor explain --json FILE   # health.events_lost".to_string();
    let lost = format!("{} events had no room", health.events_lost);
    let finding = Finding::aside("R19", title).about("its losses").evidence(lost, show);
    (health.events_lost > 0)
        .then(|| finding.next("A shorter window has fewer kinds of calls, stacks and descriptors."))
}

fn broken(view: &View<'_>, health: &Health) -> Option<Finding> {
    let broken = 1.0 - health.stacks_complete as f64 / health.stacks.max(1) as f64;
    let title = format!("{} of the stacks could not be walked to their end", percent(broken));
    let walked = format!("{} of {} stacks end where a thread begins", health.stacks_complete, health.stacks);
    let perf = format!("perf record --call-graph dwarf -p {} -- sleep 10; perf script", view.pid());
    let finding = Finding::aside("R19", title).about("its stacks").evidence(walked, perf);
    let next = "Code made at run time has no rules for walking: have it keep frame pointers.";
    (health.stacks >= STACKS_MIN && broken >= BROKEN_MIN).then(|| finding.next(next))
}

#[cfg(test)]
mod tests {
    use crate::analyse::{Verdict, diagnose};
    use crate::golden;
    use crate::recording::Recording;

    fn said(recording: &Recording) -> Vec<String> {
        let findings = diagnose(recording).findings;
        let own = findings.into_iter().filter(|finding| finding.rule == "R19");
        own.map(|finding| finding.subject).collect()
    }

    #[test]
    fn a_cheap_capture_is_ruled_out_with_its_cost() {
        let diagnosis = diagnose(&golden::busy());
        let ruled =
            diagnosis.ruled_out.iter().find(|ruled| ruled.rule == "R19").expect("nothing to complain of");
        assert!(ruled.why.starts_with("the doctor took 1.0% of a CPU"), "{}", ruled.why);
    }

    #[test]
    fn flaws_of_the_capture_are_reported_and_are_no_diagnosis() {
        let mut recording = golden::busy();
        recording.health.duty = 0.1;
        recording.health.kernel_ns = golden::WINDOW_NS / 40;
        assert_eq!(said(&recording), ["its cost"]);
        assert_eq!(diagnose(&recording).verdict, Verdict::Spread);
        recording.health.own_cpu_ns = golden::WINDOW_NS / 5;
        recording.health.events_lost = 1;
        recording.health.stacks = 1_000;
        recording.health.stacks_complete = 800;
        assert_eq!(said(&recording), ["its cost", "its CPU time", "its losses", "its stacks"]);
    }

    #[test]
    fn flaws_of_the_capture_rank_after_every_cause() {
        let mut recording = golden::everything_is_wrong();
        recording.health.events_lost = 1;
        assert!(said(&recording).is_empty(), "there are five causes before it");
    }
}
