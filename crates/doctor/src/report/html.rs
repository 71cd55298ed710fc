//! The diagnosis, or a comparison of two recordings, as a self-contained page: no server, no network, no
//! other file.
//!
//! The page combines three files of this crate, with the data as JSON between them. All text of the target
//! (names of functions, files and threads) is data. The script only inserts it as text, so none of it is
//! markup. A content security policy lets the browser run that script alone, and load nothing.

use anyhow::Result;
use crc_fast::{CrcAlgorithm, checksum};
use serde::Serialize;

use super::chains::{Link, chains};
use super::facts::TimePart;
use super::flame::{self, Graph, Names};
use super::table::{Column, Table, UNKNOWN, decimal, known, number, text};
use super::tables::{self, By, measured_ms};
use super::terminal::{cost, extent, figures, unit, unseen_by_reason};
use super::{facts, names, tasks, timeline};
use crate::analyse::{Comparison, Diagnosis, Fate, Finding, Part, Unit, Verdict};
use crate::recording::{Heat, OwnClient, OwnCommand, Recording};

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");
const ROWS_MAX: usize = 200;

#[derive(Serialize)]
struct Data<'a> {
    name: String,
    sentence: &'a str,
    /// "found", "calm" or "open", which decides the colour of the headline.
    mood: &'static str,
    facts: Vec<(&'static str, String)>,
    /// Whose time it is, and its parts.
    budget: Option<(String, Vec<TimePart>)>,
    findings: Vec<Card<'a>>,
    chains: Vec<Vec<Link>>,
    ruled_out: Vec<(String, &'a str)>,
    unseen: Vec<(String, &'a str)>,
    to_see_more: Option<String>,
    cost: String,
    notes: &'a [String],
    seconds: f64,
    names: Vec<String>,
    graphs: Vec<Graph>,
    heat: &'a Heat,
    tables: Vec<Table>,
}

#[derive(Serialize)]
struct Card<'a> {
    /// None if the headline is its title.
    title: Option<&'a str>,
    figures: String,
    evidence: Vec<(&'a str, &'a str)>,
    next_step: &'a str,
    frames: &'a [String],
}

impl<'a> Card<'a> {
    fn of(finding: &'a Finding, headline: &str) -> Card<'a> {
        Card {
            title: (finding.title != headline).then_some(&finding.title),
            figures: figures(finding),
            evidence: finding.evidence.iter().map(|e| (e.what.as_str(), e.command.as_str())).collect(),
            next_step: &finding.next_step,
            frames: &finding.frames,
        }
    }
}

#[derive(Serialize)]
struct Differences<'a> {
    before: &'a str,
    after: &'a str,
    about: String,
    changes: Vec<Change>,
    names: Vec<String>,
    graphs: Vec<Graph>,
    tables: Vec<Table>,
}

#[derive(Serialize)]
struct Change {
    fate: &'static str,
    title: String,
    detail: String,
}

pub(crate) fn html(recording: &Recording, diagnosis: &Diagnosis) -> Result<String> {
    let mut names = Names::default();
    let graphs = vec![
        flame::on_cpu(recording, &mut names),
        flame::off_cpu(recording, &mut names, false),
        flame::off_cpu(recording, &mut names, true),
        flame::combined(recording, &mut names),
        flame::wakers(recording, &mut names),
    ];
    let seconds = recording.window_ns as f64 / 1e9;
    let data = Data {
        name: facts::target(recording),
        sentence: &diagnosis.sentence,
        mood: match diagnosis.verdict {
            Verdict::Found => "found",
            Verdict::Idle | Verdict::Elsewhere => "calm",
            Verdict::Spread | Verdict::Inconclusive { .. } => "open",
        },
        facts: circumstances(recording, diagnosis),
        budget: diagnosis.critical.as_ref().map(|critical| {
            let whose = format!("Time of the critical thread, {} ({})", critical.name, critical.tid);
            (whose, facts::time_parts(recording, critical))
        }),
        findings: diagnosis.findings.iter().map(|f| Card::of(f, &diagnosis.sentence)).collect(),
        chains: chains(recording),
        ruled_out: ruled_out(diagnosis),
        unseen: unseen_by_reason(diagnosis).into_iter().map(|(why, rules)| (rules.join(", "), why)).collect(),
        to_see_more: facts::to_see_more(recording, diagnosis),
        cost: cost(&recording.health, seconds),
        notes: &recording.health.notes,
        seconds,
        names: names.into_list(),
        graphs: with_data(graphs),
        heat: &recording.heat,
        tables: all_tables(recording),
    };
    page(&data, &timeline::section(recording))
}

/// A tab without data would only disappoint.
fn with_data(graphs: Vec<Graph>) -> Vec<Graph> {
    graphs.into_iter().filter(|graph| !graph.is_empty()).collect()
}

fn circumstances(recording: &Recording, diagnosis: &Diagnosis) -> Vec<(&'static str, String)> {
    let tier = match recording.is_of_build_without_bpf() {
        true => format!("{}; this build has no eBPF part", recording.tier.describe()),
        false => recording.tier.describe().to_string(),
    };
    let facts = [
        ("Window", Some(facts::window(recording))),
        ("Rate", facts::rate(diagnosis)),
        ("Machine", Some(facts::machine(recording))),
        ("Busy beside it", Some(facts::busy(recording))),
        ("Seen by", Some(format!("{tier} ({})", recording.made_by))),
    ];
    facts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

fn ruled_out(diagnosis: &Diagnosis) -> Vec<(String, &str)> {
    let out = diagnosis.ruled_out.iter().filter(|ruled| !ruled.unseen);
    out.map(|ruled| (names::with_number(ruled.rule), ruled.why.as_str())).collect()
}

fn all_tables(recording: &Recording) -> Vec<Table> {
    let all = [
        Some(tables::threads_table(recording)),
        recording.runtime.as_ref().map(tasks::table),
        Some(commands(recording)),
        Some(clients(recording)),
        Some(tables::calls_table(recording, By::Thread)),
        Some(locks(recording)),
        Some(tables::wakers_table(recording)),
        Some(tables::listeners_table(recording)),
        Some(tables::connections_table(recording)),
        Some(stalls(recording)),
        Some(disks(recording)),
    ];
    let filled = all.into_iter().flatten().filter(|table| !table.rows.is_empty());
    filled.map(|table| table.first(ROWS_MAX)).collect()
}

/// Compares two recordings: the changes, and differential flame graphs in both directions.
pub(crate) fn differences(before: &Recording, after: &Recording, comparison: &Comparison) -> Result<String> {
    let mut names = Names::default();
    let graphs = flame::differences(before, after, &mut names);
    let about = |recording: &Recording| format!("{}, {}", facts::target(recording), facts::window(recording));
    let changes = comparison.changes.iter().map(|change| Change {
        fate: match change.fate {
            Fate::Appeared => "appeared",
            Fate::Gone => "gone",
            Fate::Changed => "changed",
        },
        title: change.title.clone(),
        detail: format!("{}: {}", change.rule, extent(change)),
    });
    let data = Differences {
        before: &comparison.before.sentence,
        after: &comparison.after.sentence,
        about: format!("before: {}; after: {}", about(before), about(after)),
        changes: changes.collect(),
        names: names.into_list(),
        graphs: with_data(graphs),
        tables: vec![
            parts("Functions, with what they call", comparison.unit, &comparison.functions),
            parts("System calls", comparison.unit, &comparison.calls),
        ],
    };
    page(&data, "")
}

fn page(data: &impl Serialize, timeline: &str) -> Result<String> {
    // A name may contain "</script>": as an escape it is the same JSON, but does not end the script.
    let json = serde_json::to_string(data)?.replace('<', "\\u003c");
    // Markup that slipped in from the data could not know the checksum of all data.
    let nonce = format!("{:016x}", checksum(CrcAlgorithm::Crc64Redis, json.as_bytes()));
    Ok(PAGE
        .replace("/*NONCE*/", &nonce)
        .replace("/*STYLE*/", STYLE)
        .replace("/*TIMELINE*/", timeline)
        .replace("/*SCRIPT*/", SCRIPT)
        .replace("/*DATA*/", &json))
}

fn parts(title: &str, of: Unit, parts: &[Part]) -> Table {
    let (what, figure) = unit(of);
    let head = [text("name"), number("before"), number("after"), number("change")];
    let mut table = Table::new(format!("{title}, {what}"), &head);
    table.rows.extend(parts.iter().map(|part| {
        vec![part.name.clone(), figure(part.before), figure(part.after), figure(part.after - part.before)]
    }));
    table
}

fn ms(ns: u64) -> String {
    format!("{:.1}", ns as f64 / 1e6)
}

/// The server's own times of its commands.
fn commands(recording: &Recording) -> Table {
    let head = [text("command"), number("calls"), number("ms"), number("ms each")];
    let mut table = Table::new("Commands by the server's count", &head);
    table.rows.extend(recording.commands.iter().map(|command: &OwnCommand| {
        let each = command.took_ns as f64 / 1e6 / command.calls.max(1) as f64;
        let calls = command.calls.to_string();
        vec![command.name.clone(), calls, ms(command.took_ns), format!("{each:.3}")]
    }));
    table
}

fn clients(recording: &Recording) -> Table {
    let head = [text("client"), text("name"), number("commands")];
    let mut table = Table::new("Clients by the server's count", &head);
    table.rows.extend(recording.clients.iter().map(|client: &OwnClient| {
        vec![client.address.clone(), client.name.clone(), client.commands.to_string()]
    }));
    table
}

fn locks(recording: &Recording) -> Table {
    const FRAMES_MAX: usize = 6;
    let head: [Column; 7] = [
        number("tid"),
        text("futex"),
        number("address"),
        number("waits"),
        number("blocked ms"),
        number("longest ms"),
        text("at"),
    ];
    let mut waits: Vec<_> = recording.waits.iter().filter(|wait| wait.address.is_some()).collect();
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.blocked_ns));
    let mut table = Table::new("Locks", &head);
    table.rows.extend(waits.into_iter().take(ROWS_MAX).map(|wait| {
        let frames = recording.frames_of(wait.stack).filter(|frame| !frame.is_kernel());
        let path: Vec<&str> = frames.take(FRAMES_MAX).map(|frame| frame.name.as_str()).collect();
        vec![
            wait.tid.to_string(),
            known(wait.call.as_ref()),
            known(wait.address.map(|address| format!("{address:#x}"))),
            wait.count.to_string(),
            ms(wait.blocked_ns),
            measured_ms(wait.longest_ns, 1),
            path.join(" < "),
        ]
    }));
    table
}

fn stalls(recording: &Recording) -> Table {
    let head = [
        number("at s"),
        number("tid"),
        number("length ms"),
        number("blocked ms"),
        number("queue ms"),
        text("longest call"),
        number("its ms"),
        text("on"),
    ];
    let mut table = Table::new("Turns of event loops that took long", &head);
    let mut stalls: Vec<_> = recording.stalls.iter().collect();
    stalls.sort_by_key(|stall| std::cmp::Reverse(stall.length_ns));
    table.rows.extend(stalls.into_iter().take(ROWS_MAX).map(|stall| {
        let descriptor = recording.descriptors.iter().find(|d| Some(d.fd) == stall.fd);
        vec![
            format!("{:.3}", stall.at_ns as f64 / 1e9),
            stall.tid.to_string(),
            ms(stall.length_ns),
            ms(stall.blocked_ns),
            ms(stall.run_queue_ns),
            known(stall.call.as_ref()),
            measured_ms(stall.call_ns, 1),
            descriptor.map_or_else(|| UNKNOWN.to_string(), tables::what),
        ]
    }));
    table
}

fn disks(recording: &Recording) -> Table {
    let head = [
        text("disk"),
        number("busy ms"),
        number("reads"),
        number("ms each"),
        number("writes"),
        number("ms each"),
        number("flushes"),
        number("ms each"),
    ];
    let mut table = Table::new("Disks", &head);
    table.rows.extend(recording.disks.iter().map(|disk| {
        let mut row = vec![disk.name.clone(), ms(disk.busy_ns)];
        for requests in [disk.reads, disk.writes, disk.flushes] {
            let each = requests.took_ns as f64 / 1e6 / requests.count.max(1) as f64;
            row.push(requests.count.to_string());
            row.push(decimal((requests.count > 0).then_some(each), 3));
        }
        row
    }));
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::diagnose;
    use crate::golden;
    use crate::recording::{Moment, Runtime, Task};

    #[test]
    fn the_page_stands_alone_and_names_cannot_become_markup() {
        let mut recording = golden::busy();
        golden::add_samples(&mut recording, &["main", "</script><b>evil"], 500);
        recording.target.name = "<img src=x>".to_string();
        let page = html(&recording, &diagnose(&recording)).expect("a page");
        assert!(!page.contains("</script><b>") && !page.contains("<img"));
        assert!(page.contains("\\u003c/script>\\u003cb>evil"));
        assert!(
            !page.contains("http://") && !page.contains("https://") && !page.contains("/*"),
            "nothing is fetched"
        );
    }

    fn data_of(page: &str) -> serde_json::Value {
        let data = page.split("id=\"data\">").nth(1).and_then(|rest| rest.split("</script>").next());
        serde_json::from_str(data.expect("the page has data")).expect("JSON")
    }

    fn titles(list: &serde_json::Value) -> Vec<&str> {
        let all = list.as_array().expect("a list").iter();
        all.map(|entry| entry["title"].as_str().expect("a title")).collect()
    }

    #[test]
    fn tabs_tables_and_sections_without_data_are_left_out() {
        let mut recording = golden::busy();
        let page = html(&recording, &diagnose(&recording)).expect("a page");
        let data = data_of(&page);
        assert_eq!(titles(&data["graphs"]), ["On CPU", "On CPU and blocked"]);
        let tables = ["Threads", "System calls by descriptor and role", "Accept queues"];
        assert_eq!(titles(&data["tables"]), tables);
        assert!(!page.contains("Requests in hand") && data["chains"].as_array().is_some_and(Vec::is_empty));
        recording.moments = vec![Moment { at_ms: 10, inside: 3, upstream: 1 }];
        recording.runtime = Some(Runtime {
            name: "Go 1.26".to_string(),
            seen: 1,
            tasks: vec![(Task::default(), 1)],
            pauses: Vec::new(),
            notes: Vec::new(),
        });
        let page = html(&recording, &diagnose(&recording)).expect("a page");
        assert!(page.contains("<h2>Requests in hand</h2>"));
        assert_eq!(titles(&data_of(&page)["tables"])[1], "Tasks of Go 1.26");
    }

    #[test]
    fn unknown_values_of_the_page_are_dashes() {
        let mut recording = golden::idle();
        recording.calls[0].count = None;
        recording.calls[0].longest_ns = 0;
        let data = data_of(&html(&recording, &diagnose(&recording)).expect("a page"));
        let row = &data["tables"][1]["rows"][0];
        let cells: Vec<&str> =
            row.as_array().expect("a row").iter().filter_map(serde_json::Value::as_str).collect();
        assert_eq!(cells[4..10], ["-", "-", "9990.0", "-", "-", "-"]);
    }

    #[test]
    fn the_headline_stands_once() {
        let recording = golden::everything_is_wrong();
        let diagnosis = diagnose(&recording);
        let page = html(&recording, &diagnosis).expect("a page");
        assert_eq!(page.matches(diagnosis.sentence.as_str()).count(), 1);
    }

    #[test]
    fn the_browser_runs_nothing_but_the_script_of_the_page() {
        let recording = golden::busy();
        let page = html(&recording, &diagnose(&recording)).expect("a page");
        assert!(page.contains("content=\"default-src 'none'; style-src 'nonce-"));
        let nonce = page.split("'nonce-").nth(1).and_then(|rest| rest.split('\'').next()).expect("a nonce");
        assert_eq!(nonce.len(), 16);
        assert_eq!(page.matches(nonce).count(), 4, "the policy for style and script, and both of them");
        assert!(!page.contains(" style=\"") && !page.contains(" onclick="), "the policy forbids them");
    }

    #[test]
    fn a_comparison_is_a_page_as_well() {
        let before = golden::busy();
        let mut after = golden::busy();
        golden::add_samples(&mut after, &["main", "aeMain", "call", "</script>"], 700);
        let page = differences(&before, &after, &crate::analyse::compare(&before, &after)).expect("a page");
        assert!(page.contains("\\u003c/script>") && page.contains("On CPU, before"));
        assert_eq!(page.matches("</script>").count(), 2, "data and script");
    }

    #[test]
    fn a_hundred_thousand_stacks_fit_a_page() {
        let mut recording = golden::busy();
        let names: Vec<String> = (0..50).map(|i| format!("function_with_a_name_{i}")).collect();
        for i in 0..100_000_usize {
            let at = |step: usize| names[(i / step) % 50].as_str();
            golden::add_samples(&mut recording, &["main", at(1), at(50), at(2_500)], 1 + (i % 7) as u64);
        }
        let page = html(&recording, &diagnose(&recording)).expect("a page");
        assert!(page.len() < 5 << 20, "{} bytes", page.len());
    }
}
