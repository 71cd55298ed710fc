//! Evenkeel's promises, and whether a run has kept them.
//!
//! A promise is kept when every goal that belongs to it was met. A run that has not measured any of these
//! goals reports the promise as not measured.

use crate::json::{Json, object};
use crate::read::{list, text};
use crate::stats::Goal;
use crate::table::{Table, figure};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    Replica,
    Snapshot,
    NothingGlobal,
    WakeUps,
    Connections,
    Files,
    Accounting,
}

impl Promise {
    const ALL: [Self; 7] = [
        Self::Replica,
        Self::Snapshot,
        Self::NothingGlobal,
        Self::WakeUps,
        Self::Connections,
        Self::Files,
        Self::Accounting,
    ];

    fn text(self) -> &'static str {
        match self {
            Self::Replica => "A replica hardly costs its primary anything",
            Self::Snapshot => "A snapshot stalls nobody, and takes hardly any memory",
            Self::NothingGlobal => "Nothing global is written on the path of a command",
            Self::WakeUps => "A thread that is awake is never signalled",
            Self::Connections => "Many clients are served as fast as few, and none is turned away",
            Self::Files => "Threads that serve clients never touch a file",
            Self::Accounting => "Every stage of every command is accounted for, at a cost of 1%",
        }
    }

    /// Returns the experiment that shows it.
    fn experiment(self) -> &'static str {
        match self {
            Self::Replica => "replica",
            Self::Snapshot => "snapshot",
            Self::NothingGlobal => "scale",
            Self::WakeUps => "wake-up",
            Self::Connections => "connections",
            Self::Files => "frozen-disk",
            Self::Accounting => "accounting",
        }
    }
}

/// A goal with the value reached, and the promise that it belongs to, if any.
pub(crate) struct Verdict {
    pub(crate) promise: Option<Promise>,
    pub(crate) what: String,
    pub(crate) value: f64,
    pub(crate) goal: Goal,
    /// For a wait: the longest pause of an empty loop on the machine before and after, in the same unit.
    pub(crate) alone: Option<f64>,
}

impl Verdict {
    /// `met`, or by how much the goal is missed, and whether the machine alone misses it.
    pub(crate) fn words(&self) -> String {
        let words = self.goal.verdict(self.value);
        match self.alone {
            Some(alone) if !self.goal.is_met(self.value) && !self.goal.is_met(alone) => {
                format!("{words}; the machine alone {}", figure(alone))
            }
            _ => words,
        }
    }

    fn to_json(&self) -> Json {
        object(vec![
            ("goal", self.what.as_str().into()),
            ("bound", self.goal.to_string().into()),
            ("reached", self.value.into()),
            ("by", self.goal.missed_by(self.value).into()),
        ])
    }
}

/// Returns a record for each promise, in their order: its `verdict` (met, not met, not measured), the number
/// of its `goals` in this run, the `missed` goals, and the `experiment` that shows it.
pub(crate) fn to_json(verdicts: &[Verdict]) -> Json {
    let record = |promise: Promise| {
        let goals = || verdicts.iter().filter(|verdict| verdict.promise == Some(promise));
        let missed: Vec<Json> =
            goals().filter(|one| !one.goal.is_met(one.value)).map(Verdict::to_json).collect();
        let verdict = match (goals().count(), missed.len()) {
            (0, _) => "not measured",
            (_, 0) => "met",
            _ => "not met",
        };
        object(vec![
            ("promise", promise.text().into()),
            ("verdict", verdict.into()),
            ("goals", goals().count().into()),
            ("missed", missed.into()),
            ("experiment", promise.experiment().into()),
        ])
    };
    Json::Array(Promise::ALL.into_iter().map(record).collect())
}

/// Formats a record of [`to_json`]: `met, 5 goals`.
pub(crate) fn verdict(record: &Json) -> String {
    let goals = record.get("goals").and_then(Json::as_u64).unwrap_or(0);
    let s = if goals == 1 { "" } else { "s" };
    match text(record, "verdict") {
        "met" => format!("met, {goals} goal{s}"),
        "not met" => format!("NOT met, {} of {goals} goal{s} missed", list(record, "missed").count()),
        _ => format!("not measured: see {}", text(record, "experiment")),
    }
}

/// Formats a missed goal: `0.41, bound <= 0.25: 1.64 times as much`.
pub(crate) fn missed(goal: &Json) -> String {
    let reached = goal.get("reached").and_then(Json::as_f64).unwrap_or(f64::NAN);
    format!("{}, bound {}: {}", figure(reached), text(goal, "bound"), text(goal, "by"))
}

/// Returns the promises for the terminal, with the missed goals under each.
pub(crate) fn table(promises: &Json) -> Table {
    let mut table = Table::new(&["promise", "verdict"]);
    for record in promises.as_array().into_iter().flatten() {
        table.row(vec![text(record, "promise").to_owned(), verdict(record)]);
        for goal in list(record, "missed") {
            table.row(vec![format!("    {}", text(goal, "goal")), missed(goal)]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict_of(promise: Option<Promise>, what: &str, value: f64) -> Verdict {
        Verdict { promise, what: what.to_owned(), value, goal: Goal::AtMost(0.25), alone: None }
    }

    #[test]
    fn a_goal_missed_by_the_machine_alone_is_marked() {
        let words = |value, alone| Verdict { alone, ..verdict_of(None, "a wait", value) }.words();
        assert_eq!(words(0.5, None), "NOT met (+0.25)");
        assert_eq!(words(0.5, Some(0.2)), "NOT met (+0.25)");
        assert_eq!(words(0.5, Some(0.4)), "NOT met (+0.25); the machine alone 0.40");
        assert_eq!(words(0.2, Some(0.4)), "met");
    }

    #[test]
    fn a_promise_is_kept_by_all_of_its_goals() {
        let verdicts = [
            verdict_of(Some(Promise::Replica), "good", 0.25),
            verdict_of(Some(Promise::Replica), "too much", 0.5),
            verdict_of(Some(Promise::Snapshot), "good", 0.1),
            verdict_of(None, "of no promise", 7.0),
        ];
        let json = to_json(&verdicts);
        let words: Vec<String> = json.as_array().expect("records").iter().map(verdict).collect();
        assert_eq!(words.len(), Promise::ALL.len());
        assert_eq!(words[0], "NOT met, 1 of 2 goals missed");
        assert_eq!(words[1], "met, 1 goal");
        assert_eq!(words[2], "not measured: see scale");
        assert_eq!(words[6], "not measured: see accounting");
        let table = table(&json).to_string();
        assert!(
            table.contains("too much") && table.contains("0.50, bound <= 0.25: 2.00 times as much"),
            "{table}"
        );
        assert!(!table.contains("of no promise") && !table.contains("good"), "{table}");
    }
}
