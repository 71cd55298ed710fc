//! A run as a self-contained page of HTML: its tables, bars with their ranges, lines by cores or clients, and
//! latency over time.
//!
//! The page is made of the run's JSON, so it can be drawn for any earlier run. It has no script, and reads as
//! well on paper.

mod axis;
mod curves;
mod latencies;

use std::fmt::Write;

use crate::json::Json;
use crate::promises;
use crate::read::{list, samples, text};
use crate::stats::Spread;
use crate::table::{figure, thousands};

const STYLE: &str = include_str!("page.css");
/// The metrics drawn as bars if they were measured in rounds, and the captions above.
const BARS: [(&str, &str); 4] = [
    ("requests_per_s", "requests per second"),
    ("cpu_us_per_command", "CPU microseconds per command"),
    ("longest_us_during", "longest request during the event, us"),
    ("took_s", "seconds"),
];
/// What the rows are that name no server.
const FLOOR: &str = "<b>floor</b> is a loop of this program that answers without doing any work: it costs \
                     what the kernel costs, and no server can go far below.";
const AGAIN: &str =
    "<b>again</b> is the same server, measured a second time: a difference as large is noise.";
/// All lengths of drawings, in their own units.
const LABEL_WIDTH: f64 = 190.0;
const BAR_WIDTH: f64 = 420.0;
const ROW_HEIGHT: f64 = 22.0;

pub(crate) fn page(run: &Json) -> String {
    let mut out = String::from(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>evenkeel-bench</title>\n",
    );
    let _ = write!(out, "<style>\n{STYLE}</style></head><body>\n<h1>evenkeel-bench</h1>\n");
    head(run, &mut out);
    kept(run, &mut out);
    goals(run, &mut out);
    contents(run, &mut out);
    let mut chapter = "";
    for record in list(run, "experiments") {
        let experiment = text(record, "experiment");
        if experiment != chapter {
            let name = escaped(experiment);
            let _ = writeln!(out, "<h2 id=\"{name}\">{name}</h2>");
            chapter = experiment;
        }
        let _ = write!(out, "<section>\n<h3>{}</h3>\n", escaped(title(record)));
        if let Some(table) = record.get("table") {
            write_table(table, &mut out);
        }
        for (figure, what) in BARS {
            bars(record, figure, what, &mut out);
        }
        curves::draw(record, &mut out);
        latencies::draw(record, &mut out);
        out.push_str("</section>\n");
    }
    out.push_str("</body></html>\n");
    out
}

/// Returns the title without the name of the experiment, which stands above.
fn title(record: &Json) -> &str {
    let title = text(record, "title");
    let rest = title.strip_prefix(text(record, "experiment")).unwrap_or(title);
    rest.strip_prefix(':').unwrap_or(title).trim_start()
}

/// Writes the names of the experiments, without duplicates, as links.
fn contents(run: &Json, out: &mut String) {
    let mut names: Vec<String> =
        list(run, "experiments").map(|one| escaped(text(one, "experiment"))).collect();
    names.dedup();
    let links: Vec<String> = names.iter().map(|name| format!("<a href=\"#{name}\">{name}</a>")).collect();
    if links.len() > 1 {
        let _ = writeln!(out, "<nav>{}</nav>", links.join(" "));
    }
}

fn head(run: &Json, out: &mut String) {
    let number = |name: &str| run.get(name).and_then(Json::as_f64).unwrap_or(0.0);
    let programs =
        list(run, "peers").map(|program| format!("{} {}", text(program, "name"), text(program, "version")));
    let programs = programs.collect::<Vec<String>>().join(", ");
    let lines = [
        format!(
            "{}, {} cores, {:.0} GiB",
            text(run, "cpu"),
            number("cores"),
            number("memory_bytes") / (1u64 << 30) as f64
        ),
        format!("Linux {}", text(run, "kernel")),
        format!("{} rounds of {} s; {}", number("rounds"), number("seconds"), text(run, "when")),
    ];
    out.push_str("<p class=\"setting\">\n");
    lines.into_iter().chain([programs]).for_each(|line| _ = writeln!(out, "{}<br>", escaped(&line)));
    out.push_str("</p>\n");
    let has = |name: &str| list(run, "peers").any(|program| text(program, "name") == name);
    if has("floor") {
        let _ = writeln!(out, "<p class=\"setting\">{FLOOR} {AGAIN}</p>");
    }
}

/// Writes the promises that were measured, with the missed goals under each, and the names of the others.
fn kept(run: &Json, out: &mut String) {
    let (mut rows, mut others) = (String::new(), Vec::new());
    for record in list(run, "promises") {
        let class = match text(record, "verdict") {
            "met" => "met",
            "not met" => "missed",
            _ => {
                others.push(escaped(text(record, "promise")));
                continue;
            }
        };
        let words = escaped(&promises::verdict(record));
        let _ = writeln!(
            rows,
            "<tr><td>{}</td><td class=\"{class}\">{words}</td></tr>",
            escaped(text(record, "promise"))
        );
        for goal in list(record, "missed") {
            let (goal, words) = (escaped(text(goal, "goal")), escaped(&promises::missed(goal)));
            let _ = writeln!(rows, "<tr class=\"under\"><td>{goal}</td><td>{words}</td></tr>");
        }
    }
    if !rows.is_empty() {
        let _ = write!(
            out,
            "<section>\n<h2>Promises</h2>\n<table class=\"words\">\n\
             <tr><th>promise</th><th>verdict</th></tr>\n{rows}</table>\n</section>\n"
        );
        if !others.is_empty() {
            let _ =
                writeln!(out, "<p class=\"setting\">Not measured in this run: {}.</p>", others.join("; "));
        }
    }
}

fn goals(run: &Json, out: &mut String) {
    let mut rows = String::new();
    for goal in list(run, "goals") {
        let is_met = goal.get("met").and_then(Json::as_bool).unwrap_or(false);
        let reached = goal.get("reached").and_then(Json::as_f64).map_or("?".to_owned(), figure);
        let (class, word) = if is_met { ("met", "met") } else { ("missed", "not met") };
        let word = escaped(goal.get("verdict").and_then(Json::as_str).unwrap_or(word));
        let (goal, bound) = (escaped(text(goal, "goal")), escaped(text(goal, "bound")));
        let _ = writeln!(
            rows,
            "<tr><td>{goal}</td><td>{bound}</td><td>{reached}</td><td class=\"{class}\">{word}</td></tr>"
        );
    }
    if !rows.is_empty() {
        let _ = write!(
            out,
            "<section>\n<h2>Goals</h2>\n<table>\n\
             <tr><th>goal</th><th>bound</th><th>reached</th><th></th></tr>\n{rows}</table>\n</section>\n"
        );
    }
}

fn write_table(table: &Json, out: &mut String) {
    let row = |cells: &Json, tag: &str| {
        let cells = cells.as_array().into_iter().flatten().map(|cell| escaped(cell.as_str().unwrap_or("")));
        let cells = cells.map(|cell| if tag == "td" { unbroken(&cell) } else { cell.replace('/', "/<wbr>") });
        cells.fold(String::from("<tr>"), |row, cell| row + &format!("<{tag}>{cell}</{tag}>")) + "</tr>\n"
    };
    out.push_str("<div class=\"wide\"><table>\n");
    out.push_str(&table.get("head").map(|head| row(head, "th")).unwrap_or_default());
    list(table, "rows").for_each(|cells| out.push_str(&row(cells, "td")));
    out.push_str("</table></div>\n");
}

/// Keeps a number with its unit, and puts its range below it.
fn unbroken(cell: &str) -> String {
    let (number, range) = cell.split_once(" (").unwrap_or((cell, ""));
    let number = number.replace(' ', "\u{a0}");
    if range.is_empty() { number } else { format!("{number} <small>({range}</small>") }
}

/// Draws a bar for each server's median, and a line over it from the smallest to the largest value.
fn bars(record: &Json, figure: &str, what: &str, out: &mut String) {
    let rounds = |server: &Json| samples(server.get(figure).filter(|value| value.is_array())?);
    let spread = |server: &Json| Spread::of(rounds(server)?);
    let all: Vec<(&str, Spread)> = list(record, "servers")
        .filter_map(|server| Some((text(server, "server"), spread(server)?)))
        .collect();
    let most = all.iter().map(|(_, spread)| spread.max).fold(0.0, f64::max);
    if all.is_empty() || most <= 0.0 {
        return;
    }
    let (width, height) = (LABEL_WIDTH + BAR_WIDTH + 90.0, ROW_HEIGHT * all.len() as f64);
    let _ = write!(
        out,
        "<figure>\n<figcaption>{what}</figcaption>\n<svg viewBox=\"0 0 {width} {height}\" role=\"img\">\n"
    );
    for (index, (name, spread)) in all.iter().enumerate() {
        let at = |value: f64| LABEL_WIDTH + value / most * BAR_WIDTH;
        let (top, middle) = (index as f64 * ROW_HEIGHT + 3.0, (index as f64 + 0.5) * ROW_HEIGHT);
        let class = if name.starts_with("evenkeel") { "ours" } else { "theirs" };
        let shown =
            if spread.median >= 1e3 { thousands(spread.median) } else { format!("{:.2}", spread.median) };
        let _ = writeln!(
            out,
            "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
             <rect class=\"{class}\" x=\"{LABEL_WIDTH}\" y=\"{top:.1}\" \
             width=\"{:.1}\" height=\"{:.1}\"/>\
             <line class=\"range\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{shown}</text>",
            LABEL_WIDTH - 8.0,
            middle + 4.0,
            escaped(name),
            at(spread.median) - LABEL_WIDTH,
            ROW_HEIGHT - 6.0,
            at(spread.min),
            at(spread.max),
            at(spread.max) + 6.0,
            middle + 4.0,
        );
    }
    out.push_str("</svg>\n</figure>\n");
}

pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_tables_bars_and_curves_and_no_foreign_markup() {
        let run = serde_json::json!({
            "cpu": "a <b>", "cores": 2, "memory_bytes": 1u64 << 31, "kernel": "6", "rounds": 3,
            "seconds": 1.0,
            "peers": [{"name": "valkey", "version": "9"}, {"name": "floor", "version": "built in"}],
            "promises": [{"promise": "never <late>", "verdict": "not met", "goals": 2, "experiment": "x",
                          "missed": [{"goal": "p99", "bound": "<= 1.00", "reached": 2.5,
                                      "by": "2.50 times as much"}]},
                         {"promise": "small", "verdict": "met", "goals": 1, "missed": []},
                         {"promise": "fast & even", "verdict": "not measured", "missed": []}],
            "goals": [{"goal": "g", "bound": "<= 1", "reached": 2.0, "met": false,
                       "verdict": "NOT met (+1.00); the machine alone 1.50"}],
            "experiments": [{
                "experiment": "x", "title": "t & u",
                "table": {"head": ["", "rate"], "rows": [["evenkeel", "5", "0.50 us (0.40..0.60)"]]},
                "servers": [{"server": "evenkeel", "requests_per_s": [1.0, 2.0, 4.0]}, {"server": "odd"}],
                "curves": [{"what": "rate", "x": "cores", "x_values": [1, 2],
                            "series": [{"server": "evenkeel", "median": [1, 2], "min": [1, 2],
                                        "max": [1, 3]}]}],
                "timelines": [{"server": "evenkeel", "slice_ms": 10, "longest_us": [50.0, 3000.0],
                               "event": "BGSAVE", "event_ms": [0.0, 10.0]},
                              {"server": "none", "slice_ms": 10, "longest_us": []}],
            }],
        });
        let page = page(&run);
        for part in [
            "a &lt;b&gt;",
            "t &amp; u",
            "never &lt;late&gt;",
            "NOT met, 1 of 2 goals missed",
            "2.50, bound &lt;= 1.00: 2.50 times as much",
            "met, 1 goal<",
            "Not measured in this run: fast &amp; even.",
            "<b>floor</b> is a loop",
            "NOT met (+1.00); the machine alone 1.50",
            "<td>5</td>",
            "<rect class=\"ours\"",
            "<polyline class=\"curve ours\"",
            "<polyline class=\"line ours\"",
            "BGSAVE",
            "valkey 9",
            "<td>0.50\u{a0}us <small>(0.40..0.60)</small></td>",
            "<h2 id=\"x\">x</h2>",
            "shaded: BGSAVE",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
        assert!(!page.contains("<script") && !page.contains("http"), "it needs nothing else");
        assert_eq!(page.matches("<figure>").count(), 3);
    }

    #[test]
    fn bars_are_drawn_of_rounds() {
        let bars = |server: Json| {
            let run = serde_json::json!({"experiments": [{"experiment": "x", "servers": [server]}]});
            let page = page(&run);
            assert!(!page.contains("NaN") && !page.contains("inf,"), "{page}");
            page.matches("<figure>").count()
        };
        let rounds = serde_json::json!({"server": "a<b", "longest_us_during": [5, 7, 6], "took_s": [2.5]});
        assert_eq!(bars(rounds), 2);
        let once = serde_json::json!({"server": "x", "longest_us_during": 5, "took_s": 2.5});
        assert_eq!(bars(once), 0);
        for odd in [serde_json::json!([]), serde_json::json!([0, 0]), serde_json::json!([null]), Json::Null] {
            assert_eq!(bars(serde_json::json!({"server": "x", "took_s": odd, "requests_per_s": "?"})), 0);
        }
    }

    #[test]
    fn an_empty_run_is_a_page_too() {
        assert!(page(&serde_json::json!({"experiments": []})).ends_with("</html>\n"));
    }
}
