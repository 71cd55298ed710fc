//! Two recordings side by side: which findings came, which went, which changed, and which functions and calls account for it.
//!
//! Shares are of the critical thread's time, and functions and calls are per second of its CPU time, so that a window that
//! was longer or a load that was lower does not look like a change. A change counts from `CHANGE_MIN` on, and only if it is
//! larger than what chance does to shares of that many samples.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::view::View;
use super::{Diagnosis, Finding, critical, diagnose, examine};
use crate::recording::Recording;

const CHANGE_MIN: f64 = 0.02;
/// Standard errors by which a share must change: once in twenty it is chance all the same.
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
    /// Of the finding in the second recording, or of the first if it is gone.
    pub(crate) title: String,
    pub(crate) before: f64,
    pub(crate) after: f64,
}

impl Change {
    fn size(&self) -> f64 {
        (self.after - self.before).abs()
    }

    /// What no share measures counts by being there at all.
    fn weight(&self) -> f64 {
        if self.before == 0.0 && self.after == 0.0 { 1.0 } else { self.size() }
    }
}

/// A part of the critical thread's CPU time, in both.
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
    /// Functions with what they call, as shares of CPU time.
    pub(crate) functions: Vec<Part>,
    /// CPU time of system calls by role of the descriptor, as shares of CPU time.
    pub(crate) calls: Vec<Part>,
}

pub(crate) fn compare(before: &Recording, after: &Recording) -> Comparison {
    let error = chance(before) + chance(after);
    let (one, two) = (functions(before), functions(after));
    let mut changes = changes(&examine(before), &examine(after));
    changes
        .iter_mut()
        .filter(|change| change.rule == "R1")
        .for_each(|change| by_function(change, &one, &two));
    changes.retain(|change| change.fate != Fate::Changed || change.size() >= CHANGE_MIN.max(error));
    // New causes first: where one came, the shares of all others fall.
    changes.sort_by(|a, b| {
        let old = |change: &Change| change.fate == Fate::Changed;
        old(a).cmp(&old(b)).then(b.weight().total_cmp(&a.weight())).then_with(|| a.title.cmp(&b.title))
    });
    Comparison {
        before: diagnose(before),
        after: diagnose(after),
        changes,
        functions: parts(&one, &two, error),
        calls: parts(&calls(before), &calls(after), 0.0),
    }
}

/// A function may be named in one recording only because in the other what it calls has 5% as well: it is in both, then,
/// and has changed by what it takes.
fn by_function(change: &mut Change, before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>) {
    let share = |map: &BTreeMap<String, f64>| map.get(&change.subject).copied().unwrap_or(0.0);
    (change.before, change.after) = (share(before), share(after));
    if change.before > 0.0 && change.after > 0.0 {
        change.fate = Fate::Changed;
    }
}

/// How far chance may move a share of half of the samples.
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
    })
}

/// Inclusive shares of functions, kernel's too, in the critical thread's samples.
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

/// What differs, the most first.
fn parts(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>, error: f64) -> Vec<Part> {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let share = |map: &BTreeMap<String, f64>, name: &String| map.get(name).copied().unwrap_or(0.0);
    let mut parts: Vec<Part> = names
        .into_iter()
        .map(|name| Part { name: name.clone(), before: share(before, name), after: share(after, name) })
        .filter(|part| part.change() >= CHANGE_MIN.max(error / 2.0))
        .collect();
    parts.sort_by(|a, b| b.change().total_cmp(&a.change()).then_with(|| a.name.cmp(&b.name)));
    parts.truncate(ROWS_MAX);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    #[test]
    fn what_came_with_a_replica_is_named_first() {
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
    fn the_same_recording_differs_in_nothing() {
        let recording = golden::everything_is_wrong();
        let comparison = compare(&recording, &recording);
        assert!(
            comparison.changes.is_empty() && comparison.functions.is_empty() && comparison.calls.is_empty()
        );
    }

    #[test]
    fn what_chance_does_is_no_change() {
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
    fn what_the_look_cost_is_no_change_of_the_server() {
        let mut after = golden::busy();
        after.health.events_lost = 5;
        assert!(compare(&golden::busy(), &after).changes.is_empty());
    }
}
