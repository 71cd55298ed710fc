//! The chart and the tables of a run for a README: the cost of a command in each server, relative to Valkey,
//! and the impact of snapshots and full syncs on clients.
//!
//! They are made of the run's JSON, and name its machine and day. The chart contains its styles, since pages
//! that show it as an image supply none.

use std::fmt::Write;

use crate::json::Json;
use crate::page::escaped;
use crate::promises;
use crate::read::{list, samples, text};
use crate::stats::Spread;
use crate::table::{thousands, time_us};

/// All lengths of the drawing, in its own units.
const WIDTH: f64 = 760.0;
const LABEL_WIDTH: f64 = 110.0;
const BAR_WIDTH: f64 = 470.0;
const ROW_HEIGHT: f64 = 20.0;
const GROUP_GAP: f64 = 30.0;
const HEAD_HEIGHT: f64 = 34.0;
const FOOT_HEIGHT: f64 = 30.0;
/// The server that all servers are compared with.
const REFERENCE: &str = "valkey";
const OURS: &str = "evenkeel";
/// The experiments with an impact on clients, and the events that cause it.
const FELT: [(&str, &str); 2] = [("snapshot", "BGSAVE"), ("full-sync", "full sync")];

/// A load, and its cost in each server.
struct Group {
    name: String,
    /// The words of the load's goal in the run.
    goal: String,
    servers: Vec<Cost>,
}

struct Cost {
    server: String,
    /// CPU microseconds per command.
    us: Spread,
    /// Ratio to the reference server, round by round.
    ratio: Spread,
}

/// Returns the first pinned measurement of each load, with the servers in the order of measurement.
fn groups(run: &Json) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let is_pinned = |record: &&Json| record.get("pinned").and_then(Json::as_bool) == Some(true);
    for record in list(run, "experiments").filter(|record| text(record, "experiment") == "throughput") {
        let Some(record) = Some(record).filter(is_pinned) else { continue };
        let number = |name| record.get(name).and_then(Json::as_u64).unwrap_or(0);
        let name = match number("pipeline") {
            1 => format!("{}, no pipeline", text(record, "command")),
            pipeline => format!("{}, pipeline {pipeline}", text(record, "command")),
        };
        let servers = costs(record);
        if servers.is_empty() || groups.iter().any(|group| group.name == name) {
            continue;
        }
        let keys = thousands(number("keys") as f64);
        let goal = format!(
            "CPU to valkey's: {}, pipeline {}, {keys} keys",
            text(record, "command"),
            number("pipeline")
        );
        groups.push(Group { name, goal, servers });
    }
    groups
}

/// Returns whether this is the repeated measurement of a server, which shows the noise.
fn is_control(server: &Json) -> bool {
    server.get("control").and_then(Json::as_bool) == Some(true)
}

fn costs(record: &Json) -> Vec<Cost> {
    let of = |server: &Json| samples(server.get("cpu_us_per_command")?);
    let servers = || list(record, "servers").filter(|server| !is_control(server));
    let Some(reference) = servers().find(|server| text(server, "server") == REFERENCE).and_then(of) else {
        return Vec::new();
    };
    let cost = |server: &Json| {
        let us = of(server)?;
        let ratio = Spread::of_ratios(&us, &reference)?;
        Some(Cost { server: text(server, "server").to_owned(), us: Spread::of(us)?, ratio })
    };
    servers().filter_map(cost).collect()
}

/// `2026-01-31 12:00, AMD EPYC, 2 cores, Linux 6.1, 5 rounds of 2 s`
fn setting(run: &Json) -> String {
    let number = |name: &str| run.get(name).and_then(Json::as_f64).unwrap_or(0.0);
    format!(
        "{}, {}, {} cores, Linux {}, {} rounds of {} s",
        text(run, "when"),
        text(run, "cpu"),
        number("cores"),
        text(run, "kernel"),
        number("rounds"),
        number("seconds")
    )
}

fn versions(run: &Json) -> String {
    let programs = list(run, "peers").filter(|program| text(program, "version") != "built in");
    let programs = programs.map(|program| format!("{} {}", text(program, "name"), text(program, "version")));
    programs.collect::<Vec<String>>().join(", ")
}

/// Draws the chart as SVG; `None` if the run has no throughput with Valkey in it.
pub(crate) fn svg(run: &Json) -> Option<String> {
    let groups = groups(run);
    let most = groups.iter().flat_map(|group| &group.servers).map(|cost| cost.ratio.max).fold(1.0, f64::max);
    let rows: usize = groups.iter().map(|group| group.servers.len()).sum();
    if rows == 0 {
        return None;
    }
    let height =
        HEAD_HEIGHT + groups.len() as f64 * GROUP_GAP + rows as f64 * ROW_HEIGHT + FOOT_HEIGHT + 16.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#1d2733\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"16\" y=\"24\" font-size=\"15\" font-weight=\"600\">\
         CPU time of the server per command, to Valkey's: \
         shorter is better</text>\n"
    );
    let mut y = HEAD_HEIGHT;
    for group in &groups {
        y += GROUP_GAP;
        let _ = writeln!(
            out,
            "<text x=\"16\" y=\"{:.0}\" font-weight=\"600\">{}</text>",
            y - 8.0,
            escaped(&group.name)
        );
        for cost in &group.servers {
            bar(cost, most, y, &mut out);
            y += ROW_HEIGHT;
        }
    }
    for (line, words) in [setting(run), versions(run)].iter().enumerate() {
        let at = y + 24.0 + 16.0 * line as f64;
        let _ = writeln!(
            out,
            "<text x=\"16\" y=\"{at:.0}\" font-size=\"11\" fill=\"#566273\">{}</text>",
            escaped(words)
        );
    }
    out.push_str("</svg>\n");
    Some(out)
}

/// Draws a bar as long as the ratio, and a line over it from the smallest to the largest ratio.
fn bar(cost: &Cost, most: f64, y: f64, out: &mut String) {
    let at = |ratio: f64| LABEL_WIDTH + ratio / most * BAR_WIDTH;
    let middle = y + ROW_HEIGHT / 2.0;
    let fill = if cost.server.starts_with(OURS) { "#1769aa" } else { "#9aa8b7" };
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
         <rect x=\"{LABEL_WIDTH}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{fill}\"/>\
         <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\" \
         stroke=\"#1d2733\" stroke-width=\"1.5\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\">{:.2} ({:.2} us)</text>",
        LABEL_WIDTH - 8.0,
        middle + 4.5,
        escaped(&cost.server),
        y + 2.0,
        at(cost.ratio.median) - LABEL_WIDTH,
        ROW_HEIGHT - 4.0,
        at(cost.ratio.min),
        at(cost.ratio.max),
        at(cost.ratio.max.max(cost.ratio.median)) + 6.0,
        middle + 4.5,
        cost.ratio.median,
        cost.us.median,
    );
}

/// Formats the costs in Markdown, with the goals, the impact on clients, and the promises. `None` if the run
/// has neither costs nor impact.
pub(crate) fn markdown(run: &Json) -> Option<String> {
    let (costs, felt) = (costs_table(run), felt_table(run));
    if costs.is_none() && felt.is_none() {
        return None;
    }
    let tables: Vec<String> = [costs, felt, promises_table(run)].into_iter().flatten().collect();
    Some(format!("{}; {}\n\n{}", setting(run), versions(run), tables.join("\n")))
}

/// `None` as for the chart.
fn costs_table(run: &Json) -> Option<String> {
    let groups = groups(run);
    let first = groups.first()?;
    let names: Vec<&str> = first.servers.iter().map(|cost| cost.server.as_str()).collect();
    let mut out = String::new();
    let _ = writeln!(out, "| CPU us per command | {} | {OURS} to {REFERENCE} | goal |", names.join(" | "));
    let _ = writeln!(out, "|---|{}", "---|".repeat(names.len() + 2));
    for group in &groups {
        let of = |name: &str| group.servers.iter().find(|cost| cost.server == name);
        let cells: Vec<String> = names
            .iter()
            .map(|name| of(name).map_or_else(String::new, |cost| format!("{:.2}", cost.us.median)))
            .collect();
        let ours = of(OURS).map_or_else(String::new, |cost| cost.ratio.to_string());
        let goal = list(run, "goals").find(|goal| text(goal, "goal") == group.goal);
        let _ = writeln!(
            out,
            "| {} | {} | {ours} | {} |",
            group.name,
            cells.join(" | "),
            goal.map_or("", |goal| text(goal, "bound"))
        );
    }
    Some(out)
}

/// Formats a row for each server in the first record of each experiment of `FELT`.
fn felt_table(run: &Json) -> Option<String> {
    let mut rows = String::new();
    for (experiment, event) in FELT {
        let record = list(run, "experiments").find(|record| text(record, "experiment") == experiment);
        let servers = record.into_iter().flat_map(|record| list(record, "servers"));
        for server in servers.filter(|server| !is_control(server)) {
            let rounds = |name| samples(server.get(name)?);
            let median = |name| Some(Spread::of(rounds(name)?)?.median);
            let Some(longest) = median("longest_us_during") else { continue };
            let rates = rounds("requests_per_s_during").zip(rounds("requests_per_s_before"));
            let rate = rates.and_then(|(during, before)| Spread::of_ratios(&during, &before));
            let _ = writeln!(
                rows,
                "| {event}: {} | {} | {} | {} |",
                text(server, "server").replace('|', "\\|"),
                time_us(longest),
                rate.map_or_else(String::new, |rate| format!("{:.2}", rate.median)),
                median("took_s").map_or_else(String::new, |took| format!("{took:.2} s")),
            );
        }
    }
    (!rows.is_empty()).then(|| {
        format!(
            "| while it is under way | longest request | rate, to before | time |\n|---|---|---|---|\n{rows}"
        )
    })
}

fn promises_table(run: &Json) -> Option<String> {
    let mut rows = list(run, "promises").peekable();
    rows.peek()?;
    let mut out = String::from("| promise | |\n|---|---|\n");
    for record in rows {
        let missed =
            list(record, "missed").map(|goal| format!("{}: {}", text(goal, "goal"), promises::missed(goal)));
        let words: Vec<String> = std::iter::once(promises::verdict(record)).chain(missed).collect();
        let _ = writeln!(out, "| {} | {} |", text(record, "promise"), words.join("; "));
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Json {
        let server = |name: &str, us: [f64; 3], control: bool| {
            serde_json::json!({"server": name, "control": control,
                               "cpu_us_per_command": us})
        };
        let record = |pinned: bool, pipeline: u64, servers: Vec<Json>| {
            serde_json::json!({"experiment": "throughput", "command": "SET", "pipeline": pipeline,
                               "keys": 300_000, "pinned": pinned, "servers": servers})
        };
        let servers = || {
            vec![
                server("valkey", [2.0, 4.0, 2.0], false),
                server("evenkeel", [1.0, 1.0, 1.0], false),
                server("evenkeel again", [9.0; 3], true),
            ]
        };
        serde_json::json!({
            "when": "2026-01-31 12:00", "cpu": "a <cpu>", "cores": 2, "kernel": "6.1",
            "rounds": 3, "seconds": 2.0,
            "peers": [{"name": "valkey", "version": "9"}, {"name": "floor", "version": "built in"}],
            "experiments": [record(false, 16, servers()), record(true, 16, servers()),
                            record(true, 16, servers()),
                            record(true, 1, vec![server("evenkeel", [1.0; 3], false)])],
            "goals": [{"goal": "CPU to valkey's: SET, pipeline 16, 300,000 keys", "bound": "<= 0.40",
                       "reached": 0.5, "met": false}],
            "promises": [{"promise": "small", "verdict": "met", "goals": 1, "missed": []}],
        })
    }

    #[test]
    fn the_chart_has_a_group_for_each_pinned_load() {
        let svg = svg(&run()).expect("there is throughput");
        for part in [
            "SET, pipeline 16",
            ">0.50 (1.00 us)<",
            ">1.00 (2.00 us)<",
            "a &lt;cpu&gt;",
            "2026-01-31",
            "valkey 9",
        ] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
        assert!(!svg.contains("again") && !svg.contains("no pipeline"), "{svg}");
        assert_eq!((svg.matches("pipeline 16").count(), svg.matches("#1769aa").count()), (1, 1));
        assert!(self::svg(&serde_json::json!({"experiments": []})).is_none());
    }

    #[test]
    fn the_table_has_the_goals_and_the_promises() {
        let table = markdown(&run()).expect("there is throughput");
        assert!(
            table.contains("| CPU us per command | valkey | evenkeel | evenkeel to valkey | goal |"),
            "{table}"
        );
        assert!(
            table.contains("| SET, pipeline 16 | 2.00 | 1.00 | 0.50 (0.25..0.50) | <= 0.40 |"),
            "{table}"
        );
        assert!(table.contains("| small | met, 1 goal |"), "{table}");
        assert_eq!(markdown(&serde_json::json!({"experiments": []})), None);
    }

    #[test]
    fn the_table_has_the_latencies_of_clients() {
        let server = |name: &str, longest: Json, before: Json| {
            serde_json::json!({"server": name, "longest_us_during": longest, "requests_per_s_before": before,
                               "requests_per_s_during": [40, 90, 60], "took_s": 2.5})
        };
        let servers = [
            server("valkey", 12_345.6.into(), 80.into()),
            server("even|keel", vec![3, 1, 2].into(), vec![100, 100, 100].into()),
            server("no rate", 7.into(), 0.into()),
            server("null", Json::Null, 100.into()),
            serde_json::json!({"server": "evenkeel again", "control": true, "longest_us_during": [5]}),
            server("empty", Json::Array(Vec::new()), 100.into()),
            serde_json::json!({"server": "longest only", "longest_us_during": [5]}),
            Json::Null,
        ];
        let mut run = run();
        let record = serde_json::json!({"experiment": "snapshot", "servers": servers});
        run["experiments"].as_array_mut().expect("a list").push(record.clone());
        let table = markdown(&run).expect("there is throughput");
        let rows: Vec<&str> = table.lines().filter(|line| line.contains("BGSAVE")).collect();
        let expected = [
            "| BGSAVE: valkey | 12 ms | 0.50 | 2.50 s |",
            "| BGSAVE: even\\|keel | 2 us | 0.60 | 2.50 s |",
            "| BGSAVE: no rate | 7 us |  | 2.50 s |",
            "| BGSAVE: longest only | 5 us |  |  |",
        ];
        assert_eq!(rows, expected);
        let alone = markdown(&serde_json::json!({"experiments": [record]})).expect("clients feel something");
        assert!(alone.contains("| while it is") && !alone.contains("CPU us"), "{alone}");
        assert!(!markdown(&self::run()).expect("throughput").contains("while it is"));
    }
}
