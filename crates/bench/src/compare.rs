//! `compare`: two runs' figures side by side, to see what a change has done.
//!
//! A figure was measured once per round. If the two runs' ranges overlap, the difference is no more than the noise, and is
//! called none. Runs of two machines, or of two lengths, tell nothing of each other, so that is said first.

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
        for server in list(record, "servers").filter(|server| server.get("control") != Some(&true.into())) {
            let name = text(server, "server");
            let same =
                |other: &&Json| text(other, "server") == name && other.get("control") != Some(&true.into());
            let Some(before) = list(before, "servers").find(same) else { continue };
            for line in lines(before, server, args.all) {
                is_worse |= line.change == Change::Worse;
                table.row(vec![
                    name.to_owned(),
                    line.figure,
                    line.before.to_string(),
                    line.after.to_string(),
                    format!("{:.2}", line.after.median / line.before.median),
                    line.change.word().to_owned(),
                ]);
            }
        }
        print!("\n{title}\n{table}");
    }
    is_worse |= goals(&old, &new);
    Ok(if is_worse { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

struct Line {
    figure: String,
    before: Spread,
    after: Spread,
    change: Change,
}

fn lines(before: &Json, after: &Json, all: bool) -> Vec<Line> {
    let members = after.as_object().into_iter().flatten();
    let line = |(name, after): (&String, &Json)| {
        let (before, after) = (samples(before.get(name)?)?, samples(after)?);
        if before.len().max(after.len()) > 1 && !all && !MAIN.contains(&name.as_str()) {
            return None;
        }
        let is_once = before.len().min(after.len()) < 2;
        let (before, after) = (Spread::of(before)?, Spread::of(after)?);
        let change = if is_once { Change::Unknown } else { change(name, before, after) };
        Some(Line { figure: name.clone(), before, after, change })
    };
    members.filter_map(line).collect()
}

fn change(name: &str, before: Spread, after: Spread) -> Change {
    if after.min <= before.max && before.min <= after.max {
        return Change::None;
    }
    let more_is_better = name.contains("per_s");
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
        let before =
            serde_json::json!({"server": "x", "requests_per_s": [1, 2], "load_busy": [1, 2], "took_s": 3});
        let after = serde_json::json!({"server": "x", "requests_per_s": [5, 6], "load_busy": [1, 2], "took_s": 4, "new": 1});
        let names = |all| lines(&before, &after, all).into_iter().map(|line| line.figure).collect::<Vec<_>>();
        assert_eq!(names(false), ["requests_per_s", "took_s"]);
        assert_eq!(names(true), ["load_busy", "requests_per_s", "took_s"]);
        let once = lines(&before, &after, false).pop().expect("took_s");
        assert_eq!((once.change, once.after.median), (Change::Unknown, 4.0));
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
