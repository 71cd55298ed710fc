//! `compare`: two runs' figures side by side, to see what a change has done.
//!
//! A figure was measured once per round. If the two runs' ranges overlap, or their medians differ by less than `LEAST`, the
//! difference is no more than the noise, and is called none. Runs of two machines, or of two lengths, tell nothing of each
//! other, so that is said first.
//!
//! Experiments nest their figures as suits them: by server, by step, by load. Here each is called by the texts, and the numbers
//! of `SETTINGS`, of all objects that it lies in.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use crate::json::Json;
use crate::read::{list, read, samples, text};
use crate::stats::Spread;
use crate::table::Table;

/// What both runs must have in common to be compared.
const SETTING: [&str; 6] = ["cpu", "cores", "memory_bytes", "kernel", "rounds", "seconds"];
/// The figures that are shown without `--all`, besides those measured once.
const MAIN: [&str; 4] = ["requests_per_s", "cpu_us_per_command", "latency_us_p99", "latency_us_max"];
/// Less is noise however narrow the ranges of a few rounds are.
const LEAST: f64 = 0.03;
/// Numbers that say what was measured.
#[rustfmt::skip]
const SETTINGS: [&str; 11] = ["clients", "pipeline", "keys", "elements", "value_size", "threads", "cores", "databases", "replicas", "count",
                              "of_each"];
/// Members that are shown elsewhere.
const NOT_FIGURES: [&str; 3] = ["table", "timelines", "title"];

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct CompareArgs {
    /// The earlier run's --json
    old: PathBuf,
    /// The later one's
    new: PathBuf,
    /// Show all figures, not only rates, CPU and latencies
    #[arg(long)]
    all: bool,
}

/// What became of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    None,
    Better,
    Worse,
    /// Measured once, so nobody knows how much it varies.
    Unknown,
}

impl Change {
    fn word(self) -> &'static str {
        match self {
            Self::None => "no difference",
            Self::Better => "better",
            Self::Worse => "WORSE",
            Self::Unknown => "",
        }
    }
}

/// Prints both; fails, as a process, if a figure has become worse or a goal is not met any more.
pub(crate) fn compare(args: &CompareArgs) -> Result<ExitCode> {
    let (old, new) = (read(&args.old)?, read(&args.new)?);
    for name in SETTING.into_iter().filter(|name| old.get(name) != new.get(name)) {
        let shown = |run: &Json| run.get(name).map_or("nothing".to_owned(), Json::to_string);
        println!("the runs differ in {name}: {} and {}", shown(&old), shown(&new));
    }
    let mut is_worse = false;
    for record in list(&new, "experiments") {
        let title = text(record, "title");
        let Some(before) = list(&old, "experiments").find(|before| text(before, "title") == title) else {
            println!("\n{title}: only in the later run");
            continue;
        };
        let mut table = Table::new(&["", "figure", "before", "after", "ratio", ""]);
        for line in lines(before, record, args.all) {
            is_worse |= line.change == Change::Worse;
            table.row(vec![
                line.of,
                line.figure,
                line.before.to_string(),
                line.after.to_string(),
                format!("{:.2}", line.after.median / line.before.median),
                line.change.word().to_owned(),
            ]);
        }
        print!("\n{title}\n{table}");
    }
    let is_there = |before: &Json| {
        list(&new, "experiments").any(|record| text(record, "title") == text(before, "title"))
    };
    for before in list(&old, "experiments").filter(|before| !is_there(before)) {
        println!("\n{}: only in the earlier run", text(before, "title"));
    }
    is_worse |= goals(&old, &new);
    Ok(if is_worse { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

struct Line {
    /// Whose it is.
    of: String,
    figure: String,
    before: Spread,
    after: Spread,
    change: Change,
}

/// A figure with what it is called by.
struct Figure<'a> {
    of: String,
    name: &'a str,
    samples: Vec<f64>,
}

/// The figures of an object and of all that it holds, in their order.
fn collect<'a>(value: &'a Json, of: &str, found: &mut Vec<Figure<'a>>) {
    let Some(members) = value.as_object() else {
        // A list of lists, as of servers by clients: called by the place.
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            let numbered = format!("{of} #{}", index + 1);
            collect(item, if item.is_array() { numbered.trim_start() } else { of }, found);
        }
        return;
    };
    if members.get("control") == Some(&true.into()) {
        return;
    }
    let members = || members.iter().filter(|(name, _)| !NOT_FIGURES.contains(&name.as_str()));
    let texts = members().filter_map(|(_, value)| value.as_str().map(str::to_owned));
    let settings = members().filter(|(name, _)| SETTINGS.contains(&name.as_str()));
    let numbers =
        settings.filter_map(|(name, value)| value.as_f64().map(|number| format!("{name} {number}")));
    let words: Vec<String> =
        [of.to_owned()].into_iter().chain(texts).chain(numbers).filter(|word| !word.is_empty()).collect();
    let of = words.join(", ");
    for (name, value) in members().filter(|(name, _)| !SETTINGS.contains(&name.as_str())) {
        match samples(value).filter(|samples| !samples.is_empty()) {
            Some(samples) => found.push(Figure { of: of.clone(), name, samples }),
            None => collect(value, &of, found),
        }
    }
}

/// Of the experiment itself, its name is known.
fn figures(record: &Json) -> Vec<Figure<'_>> {
    let mut found = Vec::new();
    for (name, value) in record.as_object().into_iter().flatten() {
        if value.is_array() && samples(value).is_none() && !NOT_FIGURES.contains(&name.as_str()) {
            collect(value, "", &mut found);
        }
    }
    found
}

fn lines(before: &Json, after: &Json, all: bool) -> Vec<Line> {
    let before = figures(before);
    let mut known: HashMap<(&str, &str), &Figure<'_>> = HashMap::new();
    for figure in &before {
        known.entry((&figure.of, figure.name)).or_insert(figure);
    }
    let line = |after: &Figure<'_>| {
        let before = &known.get(&(after.of.as_str(), after.name))?.samples;
        if before.len().max(after.samples.len()) > 1 && !all && !MAIN.contains(&after.name) {
            return None;
        }
        let is_once = before.len().min(after.samples.len()) < 2;
        let (before, later) =
            (Spread::of(before.iter().copied())?, Spread::of(after.samples.iter().copied())?);
        let change = if is_once { Change::Unknown } else { change(after.name, before, later) };
        Some(Line { of: after.of.clone(), figure: after.name.to_owned(), before, after: later, change })
    };
    figures(after).iter().filter_map(line).collect()
}

fn change(name: &str, before: Spread, after: Spread) -> Change {
    let is_small = (after.median - before.median).abs() < LEAST * before.median.abs();
    if is_small || after.min <= before.max && before.min <= after.max {
        return Change::None;
    }
    let more_is_better = name.contains("per_s") || name.contains("useful");
    if (after.median > before.median) == more_is_better { Change::Better } else { Change::Worse }
}

/// Prints the goals; whether one that was met is not met any more.
fn goals(old: &Json, new: &Json) -> bool {
    let mut table = Table::new(&["goal", "bound", "before", "after", ""]);
    let (mut is_lost, mut is_any) = (false, false);
    for goal in list(new, "goals") {
        let name = text(goal, "goal");
        let Some(before) = list(old, "goals").find(|before| text(before, "goal") == name) else { continue };
        let is_met = |goal: &Json| goal.get("met").and_then(Json::as_bool).unwrap_or(false);
        let reached = |goal: &Json| {
            goal.get("reached").and_then(Json::as_f64).map_or("?".into(), |it| format!("{it:.2}"))
        };
        let word = match (is_met(before), is_met(goal)) {
            (true, true) => "met",
            (false, false) => "NOT met",
            (false, true) => "met now",
            (true, false) => "NOT met any more",
        };
        is_lost |= is_met(before) && !is_met(goal);
        is_any = true;
        table.row(vec![
            name.to_owned(),
            text(goal, "bound").to_owned(),
            reached(before),
            reached(goal),
            word.into(),
        ]);
    }
    if is_any {
        print!("\nEvenkeel's goals\n{table}");
    }
    is_lost
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(values: &[f64]) -> Spread {
        Spread::of(values.iter().copied()).expect("values")
    }

    #[test]
    fn ranges_that_overlap_are_no_difference() {
        let of = |name, before: &[f64], after: &[f64]| change(name, spread(before), spread(after));
        assert_eq!(of("cpu_us_per_command", &[1.0, 1.2], &[1.1, 1.5]), Change::None);
        assert_eq!(of("cpu_us_per_command", &[1.0, 1.2], &[1.3, 1.5]), Change::Worse);
        assert_eq!(of("cpu_us_per_command", &[1.3, 1.5], &[1.0, 1.2]), Change::Better);
        assert_eq!(of("requests_per_s", &[1.0, 1.2], &[1.3, 1.5]), Change::Better);
        assert_eq!(of("requests_per_s", &[1.3, 1.5], &[1.0, 1.2]), Change::Worse);
    }

    #[test]
    fn only_the_main_figures_and_those_measured_once_are_shown() {
        let record = |server| serde_json::json!({"title": "t", "pipeline": 16, "servers": [server]});
        let before = record(
            serde_json::json!({"server": "x", "requests_per_s": [1, 2], "load_busy": [1, 2], "took_s": 3}),
        );
        let after = record(
            serde_json::json!({"server": "x", "requests_per_s": [5, 6], "load_busy": [1, 2], "took_s": 4, "new": 1}),
        );
        let names = |all| lines(&before, &after, all).into_iter().map(|line| line.figure).collect::<Vec<_>>();
        assert_eq!(names(false), ["requests_per_s", "took_s"]);
        assert_eq!(names(true), ["load_busy", "requests_per_s", "took_s"]);
        let once = lines(&before, &after, false).pop().expect("took_s");
        assert_eq!((once.change, once.after.median), (Change::Unknown, 4.0));
    }

    #[test]
    fn figures_are_found_wherever_an_experiment_has_put_them() {
        let server =
            |name: &str, rate: i64| serde_json::json!({"server": name, "requests_per_s": [rate, rate]});
        let run = |factor: i64| {
            serde_json::json!({
                "servers_by_clients": [[server("x", factor)], [server("x", 10 * factor)]],
                "steps": [{"step": "delete", "elements": 100, "servers": [server("x", 100 * factor), server("y", 100)]}],
                "timelines": [{"name": "x", "points": [1, 2]}],
            })
        };
        let of = |line: &Line| (line.of.clone(), line.before.median, line.change);
        let found: Vec<_> = lines(&run(1), &run(2), false).iter().map(of).collect();
        let named = |of: &str, before, change| (of.to_owned(), before, change);
        let expected = [
            named("#1, x", 1.0, Change::Better),
            named("#2, x", 10.0, Change::Better),
            named("delete, elements 100, x", 100.0, Change::Better),
            named("delete, elements 100, y", 100.0, Change::None),
        ];
        assert_eq!(found, expected);
        let control =
            serde_json::json!({"servers": [{"server": "x", "control": true, "requests_per_s": [1, 2]}]});
        assert!(lines(&control, &control, true).is_empty());
    }

    #[test]
    fn a_goal_that_was_met_must_stay_met() {
        let run = |met: bool| serde_json::json!({"goals": [{"goal": "g", "bound": "<= 1", "reached": 1.0, "met": met}]});
        assert!(goals(&run(true), &run(false)));
        assert!(!goals(&run(false), &run(true)));
        assert!(!goals(&run(false), &run(false)));
        assert!(!goals(&serde_json::json!({}), &run(false)));
    }
}
