//! A run as one page of HTML that needs nothing else: its tables, bars with their ranges, and latency over time.
//!
//! The page is made of the run's JSON, so one can be drawn of any earlier run. It has no script, and reads as well on paper.

use std::fmt::Write;

use crate::json::Json;
use crate::promises;
use crate::read::{list, samples, text};
use crate::stats::Spread;
use crate::table::{figure, thousands, time_us};

const STYLE: &str = include_str!("page.css");
/// The figures that are drawn as bars, and what is written above.
const BARS: [(&str, &str); 2] =
    [("requests_per_s", "requests per second"), ("cpu_us_per_command", "CPU microseconds per command")];
/// All lengths of drawings, in their own units.
const LABEL_WIDTH: f64 = 190.0;
const BAR_WIDTH: f64 = 420.0;
const ROW_HEIGHT: f64 = 22.0;
const TIME_WIDTH: f64 = 700.0;
const TIME_HEIGHT: f64 = 140.0;
/// Most points of a curve: neighbours are drawn as the longest of them.
const POINTS_MAX: usize = 700;

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
        for timeline in list(record, "timelines") {
            curve(timeline, &mut out);
        }
        out.push_str("</section>\n");
    }
    out.push_str("</body></html>\n");
    out
}

/// Without the name of the experiment, which stands above.
fn title(record: &Json) -> &str {
    let title = text(record, "title");
    let rest = title.strip_prefix(text(record, "experiment")).unwrap_or(title);
    rest.strip_prefix(':').unwrap_or(title).trim_start()
}

/// The names of the experiments, each once, as links.
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
    let peers = list(run, "peers").map(|peer| format!("{} {}", text(peer, "name"), text(peer, "version")));
    let peers = peers.collect::<Vec<String>>().join(", ");
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
    lines.into_iter().chain([peers]).for_each(|line| _ = writeln!(out, "{}<br>", escaped(&line)));
    out.push_str("</p>\n");
}

/// The promises, with the goals that were missed under each.
fn kept(run: &Json, out: &mut String) {
    let mut rows = String::new();
    for record in list(run, "promises") {
        let class = match text(record, "verdict") {
            "met" => "met",
            "not met" => "missed",
            _ => "unknown",
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
            "<section>\n<h2>Promises</h2>\n<table class=\"words\">\n<tr><th>promise</th><th>verdict</th></tr>\n{rows}</table>\n</section>\n"
        );
    }
}

fn goals(run: &Json, out: &mut String) {
    let mut rows = String::new();
    for goal in list(run, "goals") {
        let is_met = goal.get("met").and_then(Json::as_bool).unwrap_or(false);
        let reached = goal.get("reached").and_then(Json::as_f64).map_or("?".to_owned(), figure);
        let (class, word) = if is_met { ("met", "met") } else { ("missed", "not met") };
        let (goal, bound) = (escaped(text(goal, "goal")), escaped(text(goal, "bound")));
        let _ = writeln!(
            rows,
            "<tr><td>{goal}</td><td>{bound}</td><td>{reached}</td><td class=\"{class}\">{word}</td></tr>"
        );
    }
    if !rows.is_empty() {
        let _ = write!(
            out,
            "<section>\n<h2>Goals</h2>\n<table>\n<tr><th>goal</th><th>bound</th><th>reached</th><th></th></tr>\n{rows}</table>\n</section>\n"
        );
    }
}

fn write_table(table: &Json, out: &mut String) {
    let row = |cells: &Json, tag: &str| {
        let cells = cells.as_array().into_iter().flatten().map(|cell| escaped(cell.as_str().unwrap_or("")));
        let cells = cells.map(|cell| if tag == "td" { unbroken(&cell) } else { cell });
        cells.fold(String::from("<tr>"), |row, cell| row + &format!("<{tag}>{cell}</{tag}>")) + "</tr>\n"
    };
    out.push_str("<div class=\"wide\"><table>\n");
    out.push_str(&table.get("head").map(|head| row(head, "th")).unwrap_or_default());
    list(table, "rows").for_each(|cells| out.push_str(&row(cells, "td")));
    out.push_str("</table></div>\n");
}

/// A number stays with its unit, and its range stands below it.
fn unbroken(cell: &str) -> String {
    let (number, range) = cell.split_once(" (").unwrap_or((cell, ""));
    let number = number.replace(' ', "\u{a0}");
    if range.is_empty() { number } else { format!("{number} <small>({range}</small>") }
}

/// One bar for each server's median, and a line over it from the smallest to the largest.
fn bars(record: &Json, figure: &str, what: &str, out: &mut String) {
    let spread = |server: &Json| Spread::of(samples(server.get(figure)?)?);
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
            "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text><rect class=\"{class}\" x=\"{LABEL_WIDTH}\" y=\"{top:.1}\" \
             width=\"{:.1}\" height=\"{:.1}\"/><line class=\"range\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>\
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

/// The longest latency of each moment, on a logarithmic scale, with the event between two lines.
fn curve(timeline: &Json, out: &mut String) {
    let longest = timeline.get("longest_us").and_then(samples).unwrap_or_default();
    let slice_ms = timeline.get("slice_ms").and_then(Json::as_f64).unwrap_or(0.0);
    let most = longest.iter().copied().fold(0.0, f64::max);
    if longest.is_empty() || slice_ms <= 0.0 || most <= 0.0 {
        return;
    }
    const LEAST_US: f64 = 10.0;
    let top = 10f64.powf(most.max(LEAST_US * 10.0).log10().ceil());
    let height =
        |us: f64| TIME_HEIGHT * (1.0 - (us.max(LEAST_US) / LEAST_US).log10() / (top / LEAST_US).log10());
    let whole_ms = slice_ms * longest.len() as f64;
    let at = |ms: f64| LABEL_WIDTH / 2.0 + ms / whole_ms * TIME_WIDTH;
    let (width, drawn) = (LABEL_WIDTH / 2.0 + TIME_WIDTH + 20.0, TIME_HEIGHT + 24.0);
    let mut caption = format!("{}: longest latency over time", text(timeline, "server"));
    match text(timeline, "event") {
        "" => {}
        event => caption += &format!("; shaded: {event}"),
    }
    let _ = write!(
        out,
        "<figure>\n<figcaption>{}</figcaption>\n<svg viewBox=\"0 -8 {width} {drawn}\" role=\"img\">\n",
        escaped(&caption)
    );
    let mut us = LEAST_US;
    while us <= top * 1.01 {
        let y = height(us);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            at(0.0),
            at(whole_ms),
            at(0.0) - 6.0,
            y + 4.0,
            time_us(us)
        );
        us *= 10.0;
    }
    let event = timeline.get("event_ms").and_then(samples).unwrap_or_default();
    if let [from, to] = event[..] {
        let (left, right) = (at(from.clamp(0.0, whole_ms)), at(to.clamp(0.0, whole_ms)));
        let _ = writeln!(
            out,
            "<rect class=\"event\" x=\"{left:.1}\" y=\"0\" width=\"{:.1}\" height=\"{TIME_HEIGHT}\"><title>{}</title></rect>",
            right - left,
            escaped(text(timeline, "event"))
        );
    }
    let each = longest.len().div_ceil(POINTS_MAX);
    let points = longest.chunks(each).enumerate().map(|(index, part)| {
        let us = part.iter().copied().fold(0.0, f64::max);
        format!("{:.1},{:.1}", at(index as f64 * each as f64 * slice_ms), height(us))
    });
    let points: Vec<String> = points.collect();
    let class = if text(timeline, "server").starts_with("evenkeel") { "ours" } else { "theirs" };
    let _ = write!(
        out,
        "<polyline class=\"curve {class}\" points=\"{}\"/><text x=\"{:.1}\" y=\"{:.1}\">0 s</text><text class=\"name\" x=\"{:.1}\" \
         y=\"{:.1}\">{:.1} s</text>\n</svg>\n</figure>\n",
        points.join(" "),
        at(0.0),
        TIME_HEIGHT + 14.0,
        at(whole_ms),
        TIME_HEIGHT + 14.0,
        whole_ms / 1e3
    );
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
            "cpu": "a <b>", "cores": 2, "memory_bytes": 1u64 << 31, "kernel": "6", "rounds": 3, "seconds": 1.0,
            "peers": [{"name": "valkey", "version": "9"}],
            "promises": [{"promise": "never <late>", "verdict": "not met", "goals": 2, "experiment": "x",
                          "missed": [{"goal": "p99", "bound": "<= 1.00", "reached": 2.5, "by": "2.50 times as much"}]},
                         {"promise": "small", "verdict": "met", "goals": 1, "missed": []}],
            "goals": [{"goal": "g", "bound": "<= 1", "reached": 2.0, "met": false}],
            "experiments": [{
                "experiment": "x", "title": "t & u",
                "table": {"head": ["", "rate"], "rows": [["evenkeel", "5", "0.50 us (0.40..0.60)"]]},
                "servers": [{"server": "evenkeel", "requests_per_s": [1.0, 2.0, 4.0]}, {"server": "odd"}],
                "timelines": [{"server": "evenkeel", "slice_ms": 10, "longest_us": [50.0, 3000.0], "event": "BGSAVE", "event_ms": [0.0, 10.0]},
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
            "not met",
            "<td>5</td>",
            "<rect class=\"ours\"",
            "<polyline class=\"curve ours\"",
            "BGSAVE",
            "valkey 9",
            "<td>0.50\u{a0}us <small>(0.40..0.60)</small></td>",
            "<h2 id=\"x\">x</h2>",
            "shaded: BGSAVE",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
        assert!(!page.contains("<script") && !page.contains("http"), "it needs nothing else");
        assert_eq!(page.matches("<figure>").count(), 2);
    }

    #[test]
    fn an_empty_run_is_a_page_too() {
        assert!(page(&serde_json::json!({"experiments": []})).ends_with("</html>\n"));
    }
}
