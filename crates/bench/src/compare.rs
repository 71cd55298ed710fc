//! `compare`: the metrics of two runs side by side, to see the effect of a change.
//!
//! A metric was measured once per round. Its noise is the deviation of a repeated server from itself in the
//! same rounds, in either run, and at least `LEAST`. A difference within the noise, or between two runs whose
//! ranges overlap, counts as none. Runs of two machines, or of two lengths, are not comparable, so that is
//! reported first.
//!
//! Experiments nest their metrics in different ways: by server, by step, by load. Here a metric is named by
//! the texts, and the numbers of `SETTINGS`, of all objects that contain it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use crate::json::Json;
use crate::read::{list, read, text};
use crate::stats::Spread;
use crate::table::Table;

/// Settings that comparable runs have in common.
const SETTING: [&str; 6] = ["cpu", "cores", "memory_bytes", "kernel", "rounds", "seconds"];
/// The metrics shown without `--all`, besides metrics measured once.
#[rustfmt::skip]
const MAIN: [&str; 11] = ["requests_per_s", "cpu_us_per_command", "latency_us_p99", "latency_us_max",
                         "requests_per_s_during", "p99_us_during", "longest_us_during", "longest_us",
                         "took_s", "bytes_per_key", "bytes_per_element"];
/// Parts of the names of metrics for which more is better.
const MORE_IS_BETTER: [&str; 5] =
    ["requests_per_s", "commands_per_s", "messages_per_s", "events_per_s", "useful"];
/// A smaller difference is noise, however narrow the ranges of a few rounds are.
const LEAST: f64 = 0.03;
/// Numbers that identify the measurement.
#[rustfmt::skip]
const SETTINGS: [&str; 11] = ["clients", "pipeline", "keys", "elements", "value_size", "threads", "cores",
                              "databases", "replicas", "count", "of_each"];
/// Members that are shown elsewhere.
const NOT_FIGURES: [&str; 4] = ["table", "curves", "timelines", "title"];

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct CompareArgs {
    /// The earlier run's --json
    old: PathBuf,
    /// The later run's --json
    new: PathBuf,
    /// Show all metrics, not only rates, CPU and latencies
    #[arg(long)]
    all: bool,
}

/// The change of a metric between two runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    None,
    Better,
    Worse,
    /// Measured once, so its variation is unknown.
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

/// Prints both runs; the exit code is a failure if a metric has become worse or a goal is no longer met.
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
                ratio(line.before.median, line.after.median),
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
    for lost in list(&new, "not_measured") {
        println!("\nnot measured in the later run: {lost}");
        is_worse = true;
    }
    is_worse |= goals(&old, &new);
    Ok(if is_worse { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

struct Line {
    /// The name of the measured object.
    of: String,
    figure: String,
    before: Spread,
    after: Spread,
    change: Change,
}

fn ratio(before: f64, after: f64) -> String {
    Some(after / before).filter(|ratio| ratio.is_finite()).map_or_else(String::new, |it| format!("{it:.2}"))
}

/// A metric with its name.
struct Figure<'a> {
    of: String,
    name: &'a str,
    /// A value per round; NaN in rounds without a measurement.
    rounds: Vec<f64>,
    /// Largest deviation of a ratio from 1 that counts as noise; 0 if no server was repeated.
    noise: f64,
}

impl Figure<'_> {
    fn measured(&self) -> Vec<f64> {
        self.rounds.iter().copied().filter(|value| value.is_finite()).collect()
    }
}

/// The noise of each metric, over all servers of a list.
type Noise<'a> = HashMap<&'a str, f64>;

/// Returns the rounds of a metric: a number, or numbers with nulls among them; `None` for other values.
fn rounds(value: &Json) -> Option<Vec<f64>> {
    let number = |value: &Json| if value.is_null() { Some(f64::NAN) } else { value.as_f64() };
    let rounds: Vec<f64> = match value {
        Json::Array(values) => values.iter().map(number).collect::<Option<_>>()?,
        value => vec![value.as_f64()?],
    };
    rounds.iter().any(|value| value.is_finite()).then_some(rounds)
}

fn is_control(server: &Json) -> bool {
    server.get("control") == Some(&true.into())
}

/// Returns the noise of each metric, from a control and the server that it repeats: the server of the same
/// name without `again`, else the server before it.
fn noise(servers: &[Json]) -> Noise<'_> {
    let mut noise = Noise::new();
    for (index, control) in servers.iter().enumerate().filter(|(_, server)| is_control(server)) {
        let name = text(control, "server").trim_end_matches("again").trim_end();
        let originals = || servers.iter().filter(|server| !is_control(server));
        let before = || servers[..index].iter().rfind(|server| !is_control(server));
        let Some(original) = originals().find(|one| text(one, "server") == name).or_else(before) else {
            continue;
        };
        for (figure, again) in control.as_object().into_iter().flatten() {
            let (Some(again), Some(once)) = (rounds(again), original.get(figure).and_then(rounds)) else {
                continue;
            };
            let pairs =
                again.into_iter().zip(once).filter(|(again, once)| again.is_finite() && once.is_finite());
            let (again, once): (Vec<f64>, Vec<f64>) = pairs.unzip();
            if let Some(ratio) = Spread::of_ratios(&again, &once) {
                let known = noise.entry(figure).or_default();
                *known = ratio.noise().max(*known);
            }
        }
    }
    noise
}

/// Collects the metrics of a value and of everything inside, in order.
fn collect<'a>(value: &'a Json, of: &str, known: &Noise<'a>, found: &mut Vec<Figure<'a>>) {
    let Some(members) = value.as_object() else {
        let items = value.as_array().map_or(&[][..], Vec::as_slice);
        let noise = noise(items);
        let known = if noise.is_empty() { known } else { &noise };
        // A list of lists, such as servers by clients, is named by the position.
        for (index, item) in items.iter().enumerate() {
            let numbered = format!("{of} #{}", index + 1);
            collect(item, if item.is_array() { numbered.trim_start() } else { of }, known, found);
        }
        return;
    };
    if is_control(value) {
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
        match rounds(value) {
            Some(rounds) => {
                let noise = known.get(name.as_str()).copied().unwrap_or(0.0);
                found.push(Figure { of: of.clone(), name, rounds, noise });
            }
            None => collect(value, &of, known, found),
        }
    }
}

/// Returns the metrics of an experiment; its name is known.
fn figures(record: &Json) -> Vec<Figure<'_>> {
    let mut found = Vec::new();
    for (name, value) in record.as_object().into_iter().flatten() {
        if value.is_array() && rounds(value).is_none() && !NOT_FIGURES.contains(&name.as_str()) {
            collect(value, "", &Noise::new(), &mut found);
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
    let line = |later: &Figure<'_>| {
        let earlier = known.get(&(later.of.as_str(), later.name))?;
        let (before, after) = (earlier.measured(), later.measured());
        if before.len().max(after.len()) > 1 && !all && !MAIN.contains(&later.name) {
            return None;
        }
        let is_once = before.len().min(after.len()) < 2;
        let (before, after) = (Spread::of(before)?, Spread::of(after)?);
        let change = match change(later.name, before, after, earlier.noise.max(later.noise)) {
            Change::Better | Change::Worse if is_once => Change::Unknown,
            // Two values that were each measured once show nothing, even if they are equal.
            Change::None if earlier.rounds.len().max(later.rounds.len()) < 2 => Change::Unknown,
            change => change,
        };
        Some(Line { of: later.of.clone(), figure: later.name.to_owned(), before, after, change })
    };
    figures(after).iter().filter_map(line).collect()
}

/// `noise`: largest deviation of the ratio from 1 that counts as noise.
fn change(name: &str, before: Spread, after: Spread, noise: f64) -> Change {
    let is_small = (after.median - before.median).abs() <= LEAST.max(noise) * before.median.abs();
    if is_small || after.min <= before.max && before.min <= after.max {
        return Change::None;
    }
    let more_is_better = MORE_IS_BETTER.iter().any(|part| name.contains(part));
    if (after.median > before.median) == more_is_better { Change::Better } else { Change::Worse }
}

/// Prints the goals; returns whether a goal that was met is no longer met.
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
        let of = |name, before: &[f64], after: &[f64]| change(name, spread(before), spread(after), 0.0);
        assert_eq!(of("cpu_us_per_command", &[1.0, 1.2], &[1.1, 1.5]), Change::None);
        assert_eq!(of("cpu_us_per_command", &[1.0, 1.2], &[1.3, 1.5]), Change::Worse);
        assert_eq!(of("cpu_us_per_command", &[1.3, 1.5], &[1.0, 1.2]), Change::Better);
        assert_eq!(of("requests_per_s", &[1.0, 1.2], &[1.3, 1.5]), Change::Better);
        assert_eq!(of("requests_per_s", &[1.3, 1.5], &[1.0, 1.2]), Change::Worse);
        assert_eq!(of("signals_per_sleep", &[1.0, 1.2], &[1.3, 1.5]), Change::Worse);
        assert_eq!(of("requests_per_s", &[100.0, 100.0], &[98.0, 98.0]), Change::None);
        assert_eq!(of("longest_us_during", &[0.0, 0.0], &[5.0, 5.0]), Change::Worse);
    }

    #[test]
    fn only_the_main_figures_and_those_measured_once_are_shown() {
        let record = |server| serde_json::json!({"title": "t", "pipeline": 16, "servers": [server]});
        let before = record(
            serde_json::json!({"server": "x", "requests_per_s": [1, 2], "load_busy": [1, 2], "took_s": 3}),
        );
        let after = record(
            serde_json::json!({"server": "x", "requests_per_s": [5, 6], "load_busy": [1, 2], "took_s": 4,
                               "new": 1}),
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
                "steps": [{"step": "delete", "elements": 100,
                           "servers": [server("x", 100 * factor), server("y", 100)]}],
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

    /// Returns the changes of metrics between two records.
    fn changes(before: &Json, after: &Json) -> Vec<(String, Change)> {
        let lines = lines(before, after, true).into_iter();
        lines.map(|line| (line.figure, line.change)).collect()
    }

    #[test]
    fn the_difference_of_a_control_is_noise() {
        let record = |name: &str, again: &str, rates: [f64; 2], again_rates: [f64; 2]| {
            serde_json::json!({"servers_by_clients": [[
                {"server": "valkey", "requests_per_s": [1, 1]},
                {"server": name, "requests_per_s": rates},
                {"server": again, "control": true, "requests_per_s": again_rates},
            ]]})
        };
        let of_x = |before: &Json, after: &Json| changes(before, after)[1].1;
        for again in ["x again", "again"] {
            let of = |rates, again_rates| record("x", again, rates, again_rates);
            let calm = of([100.0, 101.0], [100.0, 101.0]);
            assert_eq!(of_x(&calm, &of([120.0, 121.0], [120.0, 121.0])), Change::Better);
            assert_eq!(
                of_x(&calm, &of([120.0, 121.0], [120.0, 97.0])),
                Change::Better,
                "{again}: 19.8% off, 19.9% more"
            );
            assert_eq!(of_x(&calm, &of([120.0, 121.0], [120.0, 96.0])), Change::None, "{again}: 21% off");
            assert_eq!(
                of_x(&of([100.0, 101.0], [130.0, 101.0]), &of([80.0, 81.0], [80.0, 81.0])),
                Change::None
            );
            assert_eq!(of_x(&calm, &of([80.0, 81.0], [80.0, 81.0])), Change::Worse);
        }
        let unmeasured = serde_json::json!([{"server": "again", "control": true, "requests_per_s": [1]}]);
        assert!(noise(unmeasured.as_array().expect("a list")).is_empty(), "it repeats nobody");
    }

    #[test]
    fn rounds_that_were_not_measured_are_left_out() {
        let record = |took: Json| serde_json::json!({"servers": [{"server": "x", "took_s": took}]});
        let of = |before: Json, after: Json| {
            changes(&record(before), &record(after)).into_iter().map(|(_, change)| change).collect::<Vec<_>>()
        };
        let rounds = || serde_json::json!([1.0, null, 1.2]);
        assert_eq!(of(rounds(), serde_json::json!([null, 1.1, 1.3])), [Change::None]);
        assert_eq!(of(rounds(), serde_json::json!([2, 3])), [Change::Worse]);
        assert_eq!(of(1.1.into(), rounds()), [Change::None], "once, and it is among the rounds");
        assert_eq!(of(2.0.into(), rounds()), [Change::Unknown]);
        assert_eq!(of(1.0.into(), 1.0.into()), [Change::Unknown]);
        for nothing in [Json::Null, serde_json::json!([]), serde_json::json!([null]), "1".into(), true.into()]
        {
            assert_eq!(of(rounds(), nothing), []);
        }
        assert_eq!(
            (ratio(2.0, 1.0), ratio(0.0, 1.0), ratio(0.0, 0.0)),
            ("0.50".into(), String::new(), String::new())
        );
    }

    #[test]
    fn charts_are_no_figures() {
        let record = serde_json::json!({"curves": [{"what": "rate", "x_values": [1, 2],
                                                    "series": [{"median": [1, 2]}]}]});
        assert_eq!(changes(&record, &record), []);
    }

    #[test]
    fn a_goal_that_was_met_must_stay_met() {
        let run = |met: bool| {
            serde_json::json!({"goals": [{"goal": "g", "bound": "<= 1",
                                          "reached": 1.0, "met": met}]})
        };
        assert!(goals(&run(true), &run(false)));
        assert!(!goals(&run(false), &run(true)));
        assert!(!goals(&run(false), &run(false)));
        assert!(!goals(&serde_json::json!({}), &run(false)));
    }
}
