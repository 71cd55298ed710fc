//! From a recording to a diagnosis: pure functions, with the same result on any machine.
//!
//! The first step chooses the critical thread, the thread that clients wait for. All shares are of its time:
//! computing, waiting for something, and waiting for work. A rule examines the recording. It returns
//! findings, or why its cause is ruled out, or that this tier does not show it. Findings are ranked by the
//! maximum gain of removing the cause, times their confidence.

mod compare;
mod critical;
mod finding;
mod requests;
mod rules;
mod stacks;
mod view;

pub(crate) use compare::{Change, Comparison, Fate, Part, Unit, compare};
#[cfg(feature = "bpf")]
pub(crate) use critical::POLLS;
pub(crate) use critical::RECEIVING;
pub(crate) use critical::{Budget, IDLE_CALLS, budget, is_idle, is_idle_wait, is_wait_for_work, roles};
pub(crate) use finding::Finding;
pub(crate) use requests::{Requests, requests};
pub(crate) use rules::fork::{COPIES, FORKS, TABLE_COPIES};
pub(crate) use rules::locks::{LOCK, taker};
pub(crate) use rules::runtimes::is_own_in_go;
pub(crate) use view::View;

use serde::Serialize;

use crate::recording::Recording;
use finding::Outcome;

/// More would bury the first.
const FINDINGS_MAX: usize = 5;
/// Share of the critical thread's time spent waiting for work, from which the limit is outside the server.
const ELSEWHERE_FROM: f64 = 0.7;
/// Busy share below which the server counts as idle.
const IDLE_BELOW: f64 = 0.02;
const RUN_QUEUE_LOW: f64 = 0.1;
/// Share of the time on a CPU, from which a small cause may not be the answer where no samples tell what the
/// thread computes; and the gain of a small cause.
const COMPUTING_FROM: f64 = 0.7;
const SMALL_CEILING: f64 = 1.1;
/// CPU time of ended threads, in CPUs, up to which it may be neglected.
const ENDED_MAX: f64 = 0.1;
/// Shorter windows say little.
const WINDOW_MIN_NS: u64 = 500_000_000;

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// The first finding is the answer.
    Found,
    /// The server has nothing to do.
    Idle,
    /// The server waits for work most of the time: the clients or the network are the limit.
    Elsewhere,
    /// Busy, and no cause stands out.
    Spread,
    Inconclusive {
        because: String,
    },
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Diagnosis {
    pub(crate) verdict: Verdict,
    /// The verdict as a sentence.
    pub(crate) sentence: String,
    pub(crate) critical: Option<Budget>,
    pub(crate) requests: Option<Requests>,
    pub(crate) findings: Vec<Finding>,
    pub(crate) ruled_out: Vec<RuledOut>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct RuledOut {
    pub(crate) rule: &'static str,
    pub(crate) why: String,
    /// This tier does not show the cause, so it is not ruled out.
    pub(crate) unseen: bool,
}

/// The numbers of all rules.
#[cfg(test)]
pub(crate) fn rule_ids() -> impl Iterator<Item = &'static str> {
    rules::ALL.iter().map(|rule| rule.id)
}

pub(crate) fn diagnose(recording: &Recording) -> Diagnosis {
    let mut diagnosis = examine(recording);
    diagnosis.findings.truncate(FINDINGS_MAX);
    diagnosis
}

/// As `diagnose`, with every finding.
fn examine(recording: &Recording) -> Diagnosis {
    let Some(critical) = critical::choose(recording) else {
        return inconclusive(None, "no thread of it could be read".to_string());
    };
    if recording.window_ns < WINDOW_MIN_NS {
        let seconds = recording.window_ns as f64 / 1e9;
        return inconclusive(Some(critical), format!("{seconds:.1} s are too short a window"));
    }
    let view = View::new(recording, critical.clone());
    let (mut findings, mut ruled_out) = (Vec::new(), Vec::new());
    for rule in rules::ALL {
        match rule.evaluate(&view) {
            Outcome::Found(found) => findings.extend(found),
            Outcome::RuledOut(why) => ruled_out.push(RuledOut { rule: rule.id, why, unseen: false }),
            Outcome::Unseen(why) => ruled_out.push(RuledOut { rule: rule.id, why, unseen: true }),
        }
    }
    // Causes that act while a thread is awake rank behind the causes that keep it asleep.
    let waits = waits(&critical);
    let is_behind = |finding: &Finding| waits && !finding.holds_while_idle;
    findings.sort_by(|a, b| {
        let order = is_behind(a).cmp(&is_behind(b));
        order.then_with(|| b.rank().total_cmp(&a.rank())).then_with(|| a.rule.cmp(b.rule))
    });
    let requests = requests(recording, &critical);
    if let Some(requests) = &requests {
        findings.iter_mut().for_each(|finding| {
            finding.per_request_us = finding.share.map(|share| share * requests.critical_us)
        });
    }
    let (verdict, sentence) = judge(&view, &findings);
    Diagnosis { verdict, sentence, critical: Some(critical), requests, findings, ruled_out }
}

fn inconclusive(critical: Option<Budget>, because: String) -> Diagnosis {
    let sentence = format!("Inconclusive, because {because}.");
    let verdict = Verdict::Inconclusive { because };
    Diagnosis { verdict, sentence, critical, requests: None, findings: Vec::new(), ruled_out: Vec::new() }
}

/// Whether the thread waits for work most of the time, and hardly ever for a CPU.
fn waits(budget: &Budget) -> bool {
    budget.share(budget.idle_ns) > ELSEWHERE_FROM && budget.share(budget.run_queue_ns) < RUN_QUEUE_LOW
}

/// Why a thread that seems to wait for work may not, or why other threads may work in its place.
fn unknown(view: &View<'_>) -> Option<String> {
    let ended = view.share(view.recording.health.ended_cpu_ns);
    if ended > ENDED_MAX {
        let percent = ended * 100.0;
        return Some(format!(
            "threads that ended took {percent:.0}% of a CPU, and their work is unknown: the other threads \
             wait for work"
        ));
    }
    if let Some(why) = rules::in_hand::unexplained(view) {
        return Some(why);
    }
    let hidden = view.hidden_sleeps()?;
    Some(format!("{hidden}: a thread that seems to wait for work may wait for anything"))
}

fn judge(view: &View<'_>, findings: &[Finding]) -> (Verdict, String) {
    let budget = &view.critical;
    let name = &view.recording.target.name;
    // A cause that keeps clients waiting while the server sleeps is a finding, however idle the threads are.
    if let Some(first) = findings.first().filter(|finding| finding.holds_while_idle) {
        return (Verdict::Found, first.title.clone());
    }
    let busy = budget.busy_share();
    let seems_to_wait = busy < IDLE_BELOW || waits(budget);
    if let Some(because) = unknown(view).filter(|_| seems_to_wait) {
        let sentence = format!("Inconclusive, because {because}.");
        return (Verdict::Inconclusive { because }, sentence);
    }
    if busy < IDLE_BELOW {
        let sentence = format!("{name} is idle: its busiest thread works {:.1}% of the time.", busy * 100.0);
        return (Verdict::Idle, sentence);
    }
    if waits(budget) {
        let sentence = format!(
            "The limit is elsewhere: {name} waits for work {:.0}% of the time. Look at its clients, at \
             the network, or at the services that it depends on.",
            budget.share(budget.idle_ns) * 100.0
        );
        return (Verdict::Elsewhere, sentence);
    }
    let is_hidden = !view.has_samples() && view.share(budget.cpu_ns) >= COMPUTING_FROM;
    let is_enough =
        |finding: &&Finding| finding.is_cause() && !(is_hidden && finding.ceiling < SMALL_CEILING);
    match findings.first().filter(is_enough) {
        Some(first) => (Verdict::Found, first.title.clone()),
        None if !view.has_samples() => {
            let because = format!(
                "{name} is busy {:.0}% of the time, and where it computes is not seen without CPU samples: \
                 run the doctor as root, in a build with its eBPF part",
                busy * 100.0
            );
            (Verdict::Inconclusive { because: because.clone() }, format!("Inconclusive, because {because}."))
        }
        None => {
            let sentence = format!(
                "{name} is busy {:.0}% of the time, and no single cause takes 5% of it: the work is spread.",
                busy * 100.0
            );
            (Verdict::Spread, sentence)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use crate::recording::{Call, Tier};

    #[test]
    fn a_server_that_sleeps_is_idle_and_nothing_is_found() {
        let diagnosis = diagnose(&golden::idle());
        assert_eq!(diagnosis.verdict, Verdict::Idle);
        assert!(diagnosis.findings.is_empty(), "{:#?}", diagnosis.findings);
    }

    #[test]
    fn a_server_that_waits_for_work_is_not_the_limit() {
        let mut recording = golden::idle();
        recording.threads[0].cpu_ns = golden::WINDOW_NS / 5;
        recording.calls[0].blocked_ns = golden::WINDOW_NS / 5 * 4;
        let diagnosis = diagnose(&recording);
        assert_eq!(diagnosis.verdict, Verdict::Elsewhere, "{}", diagnosis.sentence);
    }

    #[test]
    fn work_that_the_tier_does_not_see_is_not_called_spread() {
        let mut recording = golden::busy();
        recording.samples.clear();
        let diagnosis = diagnose(&recording);
        assert!(matches!(diagnosis.verdict, Verdict::Inconclusive { .. }), "{}", diagnosis.sentence);
        assert!(diagnosis.sentence.contains("not seen without CPU samples"), "{}", diagnosis.sentence);
    }

    #[test]
    fn hidden_causes_are_not_ruled_out() {
        let mut recording = golden::idle();
        recording.tier = Tier::T3;
        (recording.health.sleeps_hidden, recording.health.descriptors_hidden) = (true, true);
        let diagnosis = diagnose(&recording);
        assert!(matches!(diagnosis.verdict, Verdict::Inconclusive { .. }), "{}", diagnosis.sentence);
        let is_unseen = |rule| diagnosis.ruled_out.iter().any(|ruled| ruled.rule == rule && ruled.unseen);
        assert!(
            ["R3", "R6", "R10", "R11", "R15", "R16"].into_iter().all(is_unseen),
            "{:#?}",
            diagnosis.ruled_out
        );
        let mut recording = golden::idle();
        recording.health.ended_cpu_ns = golden::WINDOW_NS;
        let diagnosis = diagnose(&recording);
        assert!(
            diagnosis.sentence.contains("threads that ended took 100% of a CPU"),
            "{}",
            diagnosis.sentence
        );
        let mut recording = golden::busy();
        recording.health.duty = 0.2;
        let ruled_out = diagnose(&recording).ruled_out;
        let unseen = ruled_out.iter().filter(|ruled| ruled.unseen && ruled.why.contains("20% of the window"));
        assert_eq!(unseen.map(|ruled| ruled.rule).collect::<Vec<_>>(), ["R4", "R17"]);
    }

    #[test]
    fn without_threads_or_time_nothing_is_concluded() {
        let mut recording = golden::busy();
        recording.window_ns = 1;
        assert!(matches!(diagnose(&recording).verdict, Verdict::Inconclusive { .. }));
        recording.threads.clear();
        assert!(matches!(diagnose(&recording).verdict, Verdict::Inconclusive { .. }));
    }

    #[test]
    fn causes_invisible_to_a_tier_are_not_ruled_out() {
        let unseen = |tier| {
            let mut recording = golden::busy();
            recording.tier = tier;
            let ruled_out = diagnose(&recording).ruled_out;
            ruled_out.iter().filter(|ruled| ruled.unseen).map(|ruled| ruled.rule).collect::<Vec<_>>()
        };
        assert_eq!(unseen(Tier::T0), ["R9", "R20"], "nobody woke or asked it in that recording");
        assert_eq!(unseen(Tier::T1), ["R2", "R4", "R7", "R9", "R12", "R17", "R20", "R21"]);
        assert_eq!(unseen(Tier::T2), ["R2", "R4", "R5", "R7", "R9", "R12", "R13", "R17", "R20", "R21"]);
    }

    #[test]
    fn samples_of_user_code_are_shares_of_its_time_in_user_code() {
        let mut recording = golden::busy();
        golden::add_samples(&mut recording, &["main", "aeMain", "sortCommand"], 1_920);
        recording.threads[0].system_ns = recording.threads[0].cpu_ns / 2;
        let share = |recording: &Recording| {
            diagnose(recording)
                .findings
                .iter()
                .find(|finding| finding.rule == "R1")
                .and_then(|found| found.share)
        };
        let whole = share(&recording).expect("half of its samples");
        recording.tier = Tier::T2;
        let part = share(&recording).expect("a quarter of its time");
        assert!((whole - 2.0 * part).abs() < 0.01, "{whole} {part}");
    }

    #[test]
    fn at_most_five_findings_in_the_order_of_their_gain() {
        let diagnosis = diagnose(&golden::everything_is_wrong());
        assert_eq!(diagnosis.findings.len(), FINDINGS_MAX);
        let ranks: Vec<f64> = diagnosis.findings.iter().map(Finding::rank).collect();
        assert!(ranks.is_sorted_by(|a, b| a >= b), "{ranks:?}");
    }

    #[test]
    fn sampled_values_are_less_certain() {
        let mut recording = golden::busy();
        recording.calls.push(Call {
            tid: golden::TID,
            name: "fdatasync".to_string(),
            fd: Some(golden::AOF),
            blocked_ns: golden::WINDOW_NS / 2,
            ..Call::default()
        });
        recording.threads[0].cpu_ns = golden::WINDOW_NS / 3;
        let sure = diagnose(&recording).findings[0].clone();
        recording.tier = Tier::T3;
        let sampled = diagnose(&recording).findings[0].clone();
        assert_eq!((sure.rule, sampled.rule), ("R3", "R3"));
        assert!(sampled.confidence < sure.confidence);
    }
}
