//! Compares two recordings: findings that appeared, are gone or changed, and the functions and calls behind
//! them.
//!
//! If both servers reported how many requests they processed, times are per request. Else findings are shares
//! of the critical thread's time, and functions and calls are shares of its CPU time. So a longer window or a
//! lower load does not look like a change. A change counts from `CHANGE_MIN` on, and only if it exceeds the
//! sampling error of the shares.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::view::View;
use super::{Diagnosis, Finding, Requests, critical, diagnose, examine};
use crate::recording::Recording;

const CHANGE_MIN: f64 = 0.02;
/// Standard errors by which a share must change; chance alone exceeds them once in twenty.
const ERRORS: f64 = 2.0;
const ROWS_MAX: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fate {
    Appeared,
    Gone,
    Changed,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Change {
    pub(crate) fate: Fate,
    pub(crate) rule: &'static str,
    pub(crate) subject: String,
    /// Title of the finding in the second recording, or in the first if the finding is gone.
    pub(crate) title: String,
    /// Shares of the critical thread's time.
    pub(crate) before: f64,
    pub(crate) after: f64,
    /// The shares as time per request, if both servers counted requests.
    pub(crate) before_us: Option<f64>,
    pub(crate) after_us: Option<f64>,
}

impl Change {
    /// The change as a share of the time per request.
    fn size(&self, per_request: Option<&PerRequest>) -> f64 {
        match per_request {
            Some(each) => {
                (self.after * each.after.critical_us - self.before * each.before.critical_us).abs()
                    / each.lesser_us()
            }
            None => (self.after - self.before).abs(),
        }
    }

    /// A finding without a share counts in full.
    fn weight(&self, per_request: Option<&PerRequest>) -> f64 {
        if self.before == 0.0 && self.after == 0.0 { 1.0 } else { self.size(per_request) }
    }
}

/// Request metrics, if both servers counted them.
struct PerRequest {
    before: Requests,
    after: Requests,
}

impl PerRequest {
    /// The shorter of the two times per request: a server that waited for work had more time.
    fn lesser_us(&self) -> f64 {
        self.before.critical_us.min(self.after.critical_us).max(1e-9)
    }
}

/// The unit of functions and calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Unit {
    /// Shares of the critical thread's CPU time.
    CpuShare,
    /// CPU time of the critical thread per request, in microseconds.
    MicrosecondsPerRequest,
}

/// A function or a call in both recordings.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) before: f64,
    pub(crate) after: f64,
}

impl Part {
    fn change(&self) -> f64 {
        (self.after - self.before).abs()
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    pub(crate) before: Diagnosis,
    pub(crate) after: Diagnosis,
    pub(crate) changes: Vec<Change>,
    pub(crate) unit: Unit,
    /// Functions, including their callees.
    pub(crate) functions: Vec<Part>,
    /// CPU time of system calls by role of the descriptor.
    pub(crate) calls: Vec<Part>,
}

pub(crate) fn compare(before: &Recording, after: &Recording) -> Comparison {
    let error = chance(before) + chance(after);
    let (one, two) = (functions(before), functions(after));
    let (diagnosis_before, diagnosis_after) = (examine(before), examine(after));
    let both = diagnosis_before.requests.clone().zip(diagnosis_after.requests.clone());
    let per_request = both.map(|(before, after)| PerRequest { before, after });
    let each = per_request.as_ref();
    let on_cpu = [&diagnosis_before, &diagnosis_after]
        .map(|diagnosis| diagnosis.critical.as_ref().map_or(0.0, |critical| critical.share(critical.cpu_ns)));
    let mut changes = changes(&diagnosis_before, &diagnosis_after);
    changes
        .iter_mut()
        .filter(|change| change.rule == "R1")
        .for_each(|change| by_function(change, &one, &two, on_cpu));
    for change in &mut changes {
        change.before_us = each.map(|each| change.before * each.before.critical_us);
        change.after_us = each.map(|each| change.after * each.after.critical_us);
    }
    changes.retain(|change| change.fate != Fate::Changed || change.size(each) >= CHANGE_MIN.max(error));
    // New causes first: each new cause lowers the shares of all the rest.
    changes.sort_by(|a, b| {
        let old = |change: &Change| change.fate == Fate::Changed;
        old(a)
            .cmp(&old(b))
            .then(b.weight(each).total_cmp(&a.weight(each)))
            .then_with(|| a.title.cmp(&b.title))
    });
    let unit = if each.is_some() { Unit::MicrosecondsPerRequest } else { Unit::CpuShare };
    let cpu_us = each.map_or((1.0, 1.0), |each| (each.before.critical_cpu_us, each.after.critical_cpu_us));
    Comparison {
        before: diagnose(before),
        after: diagnose(after),
        changes,
        unit,
        functions: parts(&one, &two, cpu_us, error),
        calls: parts(&calls(before), &calls(after), cpu_us, 0.0),
    }
}

/// Corrects an R1 change by the function's share in both recordings. A function may have a finding in only
/// one recording because a callee has 5% as well in the other; then the function has changed, not appeared.
fn by_function(
    change: &mut Change,
    before: &BTreeMap<String, f64>,
    after: &BTreeMap<String, f64>,
    on_cpu: [f64; 2],
) {
    let share = |map: &BTreeMap<String, f64>| map.get(&change.subject).copied().unwrap_or(0.0);
    (change.before, change.after) = (share(before) * on_cpu[0], share(after) * on_cpu[1]);
    if change.before > 0.0 && change.after > 0.0 {
        change.fate = Fate::Changed;
    }
}

/// The error by chance of a share of half of the samples.
fn chance(recording: &Recording) -> f64 {
    let samples: u64 = recording.samples.iter().map(|sample| sample.count).sum();
    if samples == 0 { 0.0 } else { ERRORS * 0.5 / (samples as f64).sqrt() }
}

fn changes(before: &Diagnosis, after: &Diagnosis) -> Vec<Change> {
    let keyed = |diagnosis: &Diagnosis| -> BTreeMap<(&'static str, String), Finding> {
        let causes = diagnosis.findings.iter().filter(|finding| finding.is_cause());
        causes.map(|f| ((f.rule, f.subject.clone()), f.clone())).collect()
    };
    let (one, two) = (keyed(before), keyed(after));
    let keys: BTreeSet<_> = one.keys().chain(two.keys()).cloned().collect();
    keys.iter().filter_map(|key| change(one.get(key), two.get(key))).collect()
}

fn change(before: Option<&Finding>, after: Option<&Finding>) -> Option<Change> {
    let share = |finding: Option<&Finding>| finding.and_then(|f| f.share).unwrap_or(0.0);
    let (fate, shown) = match (before, after) {
        (None, Some(after)) => (Fate::Appeared, after),
        (Some(before), None) => (Fate::Gone, before),
        (Some(_), Some(after)) => (Fate::Changed, after),
        (None, None) => return None,
    };
    let (before, after) = (share(before), share(after));
    Some(Change {
        fate,
        rule: shown.rule,
        subject: shown.subject.clone(),
        title: shown.title.clone(),
        before,
        after,
        before_us: None,
        after_us: None,
    })
}

/// Inclusive shares of functions, the kernel's included, in the critical thread's samples.
fn functions(recording: &Recording) -> BTreeMap<String, f64> {
    let Some(budget) = critical::choose(recording) else { return BTreeMap::new() };
    let view = View::new(recording, budget);
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut total = 0;
    for sample in view.samples() {
        total += sample.count;
        let names: BTreeSet<&str> = view.frames(sample.stack).map(|frame| frame.name.as_str()).collect();
        for name in names {
            *counts.entry(name).or_default() += sample.count;
        }
    }
    counts.into_iter().map(|(name, count)| (name.to_string(), count as f64 / total as f64)).collect()
}

fn calls(recording: &Recording) -> BTreeMap<String, f64> {
    let Some(budget) = critical::choose(recording) else { return BTreeMap::new() };
    let cpu_ns = budget.cpu_ns.max(1) as f64;
    let view = View::new(recording, budget);
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    for call in view.calls().filter(|call| call.cpu_ns > 0) {
        let role = view.role(call.fd).map_or_else(String::new, |role| format!(" on {}", role.plural()));
        *sums.entry(format!("{}{role}", call.name)).or_default() += call.cpu_ns as f64 / cpu_ns;
    }
    sums
}

/// The differences, the largest first. `whole` is the value of a share of 1 in each recording.
fn parts(
    before: &BTreeMap<String, f64>,
    after: &BTreeMap<String, f64>,
    whole: (f64, f64),
    error: f64,
) -> Vec<Part> {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let share = |map: &BTreeMap<String, f64>, name: &String| map.get(name).copied().unwrap_or(0.0);
    let part = |name: &String| Part {
        name: name.clone(),
        before: share(before, name) * whole.0,
        after: share(after, name) * whole.1,
    };
    let least = CHANGE_MIN.max(error / 2.0) * whole.0.min(whole.1);
    let mut parts: Vec<Part> = names.into_iter().map(part).filter(|part| part.change() >= least).collect();
    parts.sort_by(|a, b| b.change().total_cmp(&a.change()).then_with(|| a.name.cmp(&b.name)));
    parts.truncate(ROWS_MAX);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use crate::recording::OwnCount;

    #[test]
    fn the_cost_of_an_added_replica_is_named_first() {
        let before = golden::busy();
        let mut after = golden::busy();
        golden::add_samples(&mut after, &["main", "aeMain", "call", "replicationFeedSlaves"], 700);
        let comparison = compare(&before, &after);
        let first = &comparison.changes[0];
        assert_eq!((first.fate, first.rule), (Fate::Appeared, "R2"));
        assert!(
            comparison
                .functions
                .iter()
                .any(|part| part.name == "replicationFeedSlaves" && part.before == 0.0)
        );
        let back = compare(&after, &before);
        assert_eq!((back.changes[0].fate, back.changes[0].rule), (Fate::Gone, "R2"));
    }

    #[test]
    fn twice_the_requests_for_the_same_work_are_half_the_time_for_each() {
        let asked = |commands| {
            let mut recording = golden::busy();
            golden::add_samples(&mut recording, &["main", "aeMain", "call", "replicationFeedSlaves"], 1_920);
            recording.own_count =
                Some(OwnCount { between_ns: golden::WINDOW_NS, commands, ..OwnCount::default() });
            recording
        };
        assert!(compare(&asked(1_000_000), &asked(1_000_000)).changes.is_empty());
        let comparison = compare(&asked(1_000_000), &asked(2_000_000));
        assert_eq!(comparison.unit, Unit::MicrosecondsPerRequest);
        let change = comparison.changes.iter().find(|change| change.rule == "R2").expect("it changed");
        assert_eq!((change.rule, change.fate, change.before), ("R2", Fate::Changed, change.after));
        let part = comparison.functions.iter().find(|part| part.name == "replicationFeedSlaves").expect("it");
        for (before, after) in [(change.before_us, change.after_us), (Some(part.before), Some(part.after))] {
            let (before, after) = (before.expect("both say"), after.expect("both say"));
            assert!((before - 4.9).abs() < 0.01 && (after - 2.45).abs() < 0.01, "{before} {after}");
        }
    }

    #[test]
    fn the_same_recording_differs_in_nothing() {
        let recording = golden::everything_is_wrong();
        let comparison = compare(&recording, &recording);
        assert!(
            comparison.changes.is_empty() && comparison.functions.is_empty() && comparison.calls.is_empty()
        );
    }

    #[test]
    fn random_variation_is_no_change() {
        let with = |count| {
            let mut recording = golden::idle();
            recording.threads[0].cpu_ns = golden::WINDOW_NS / 10 * 9;
            recording.calls[0].blocked_ns = golden::WINDOW_NS / 10;
            golden::add_samples(&mut recording, &["main", "one"], count);
            golden::add_samples(&mut recording, &["main", "two"], 100);
            recording
        };
        // 50% against 55%, of about 200 samples each.
        assert!(compare(&with(100), &with(122)).changes.is_empty());
        assert!(!compare(&with(100), &with(900)).changes.is_empty());
    }

    #[test]
    fn the_cost_of_the_capture_is_no_change_of_the_server() {
        let mut after = golden::busy();
        after.health.events_lost = 5;
        assert!(compare(&golden::busy(), &after).changes.is_empty());
    }
}
