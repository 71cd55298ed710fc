//! The diagnosis, or a comparison of two recordings, as a self-contained page: no server, no network, no
//! other file.
//!
//! The page combines three files of this crate, with the data as JSON between them. All text of the target
//! (names of functions, files and threads) is data. The script only inserts it as text, so none of it is
//! markup.

use anyhow::Result;
use serde::Serialize;

use super::flame::{self, Graph, Names};
use super::tables::{self, role_name};
use super::terminal::{extent, unit};
use crate::analyse::{Comparison, Diagnosis, Fate, Part, Unit, budget};
use crate::recording::{Health, Heat, OwnClient, OwnCommand, Recording, Target};

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");
const ROWS_MAX: usize = 200;

#[derive(Serialize)]
struct Data<'a> {
    target: &'a Target,
    tier: &'static str,
    seconds: f64,
    made_by: &'a str,
    diagnosis: &'a Diagnosis,
    health: &'a Health,
    names: Vec<String>,
    graphs: Vec<Graph>,
    heat: &'a Heat,
    tables: Vec<Table>,
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

/// Cells as text, which the script shows unchanged.
#[derive(Serialize)]
struct Table {
    title: &'static str,
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
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
    let data = Data {
        target: &recording.target,
        tier: recording.tier.describe(),
        seconds: recording.window_ns as f64 / 1e9,
        made_by: &recording.made_by,
        diagnosis,
        health: &recording.health,
        names: names.into_list(),
        graphs,
        heat: &recording.heat,
        tables: vec![
            threads(recording),
            commands(recording),
            clients(recording),
            calls(recording),
            locks(recording),
            sockets(recording),
            stalls(recording),
            disks(recording),
        ],
    };
    page(&data)
}

/// Compares two recordings: the changes, and differential flame graphs in both directions.
pub(crate) fn differences(before: &Recording, after: &Recording, comparison: &Comparison) -> Result<String> {
    let mut names = Names::default();
    let graphs = flame::differences(before, after, &mut names);
    let about = |recording: &Recording| {
        let seconds = recording.window_ns as f64 / 1e9;
        format!("{} (pid {}), {seconds:.1} s", recording.target.name, recording.target.pid)
    };
    let changes = comparison.changes.iter().map(|change| Change {
        fate: match change.fate {
            Fate::Appeared => "appeared",
            Fate::Gone => "gone",
            Fate::Changed => "changed",
        },
        title: change.title.clone(),
        detail: format!("{}: {}", change.rule, extent(change)),
    });
    page(&Differences {
        before: &comparison.before.sentence,
        after: &comparison.after.sentence,
        about: format!("before: {}; after: {}", about(before), about(after)),
        changes: changes.collect(),
        names: names.into_list(),
        graphs,
        tables: vec![
            parts("Functions, with what they call", comparison.unit, &comparison.functions),
            parts("System calls", comparison.unit, &comparison.calls),
        ],
    })
}

fn page(data: &impl Serialize) -> Result<String> {
    // A name may contain "</script>": as an escape it is the same JSON, but does not end the script.
    let json = serde_json::to_string(data)?.replace('<', "\\u003c");
    Ok(PAGE.replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", SCRIPT).replace("/*DATA*/", &json))
}

fn parts(title: &'static str, of: Unit, parts: &[Part]) -> Table {
    let (what, figure) = unit(of);
    let row = |part: &Part| {
        vec![part.name.clone(), figure(part.before), figure(part.after), figure(part.after - part.before)]
    };
    Table { title, head: vec![what, "before", "after", "change"], rows: parts.iter().map(row).collect() }
}

fn ms(ns: u64) -> String {
    format!("{:.1}", ns as f64 / 1e6)
}

fn threads(recording: &Recording) -> Table {
    let roles = recording.descriptors.iter().map(|d| (d.fd, d.role)).collect();
    let mut threads: Vec<_> =
        recording.threads.iter().map(|thread| budget(recording, thread, &roles)).collect();
    threads.sort_by_key(|b| std::cmp::Reverse((b.cpu_ns, b.run_queue_ns)));
    let percent = |share: f64| format!("{:.1}", share * 100.0);
    let row = |b: &crate::analyse::Budget| {
        let mut row = vec![b.tid.to_string(), b.name.clone()];
        row.extend([b.cpu_ns, b.run_queue_ns, b.blocked_ns, b.idle_ns].map(|ns| percent(b.share(ns))));
        row
    };
    Table {
        title: "Threads",
        head: vec!["tid", "thread", "CPU %", "run queue %", "blocked %", "waiting for work %"],
        rows: threads.iter().take(ROWS_MAX).map(row).collect(),
    }
}

/// The server's own times of its commands.
fn commands(recording: &Recording) -> Table {
    let row = |command: &OwnCommand| {
        vec![
            command.name.clone(),
            command.calls.to_string(),
            ms(command.took_ns),
            format!("{:.3}", command.took_ns as f64 / 1e6 / command.calls.max(1) as f64),
        ]
    };
    Table {
        title: "Commands by the server's count",
        head: vec!["command", "calls", "ms", "ms each"],
        rows: recording.commands.iter().take(ROWS_MAX).map(row).collect(),
    }
}

fn clients(recording: &Recording) -> Table {
    let row =
        |client: &OwnClient| vec![client.address.clone(), client.name.clone(), client.commands.to_string()];
    Table {
        title: "Clients by the server's count",
        head: vec!["client", "name", "commands"],
        rows: recording.clients.iter().take(ROWS_MAX).map(row).collect(),
    }
}

fn calls(recording: &Recording) -> Table {
    let mut calls: Vec<_> = recording.calls.iter().collect();
    calls.sort_by_key(|call| std::cmp::Reverse((call.cpu_ns + call.blocked_ns, call.count)));
    let rows = calls.into_iter().take(ROWS_MAX).map(|call| {
        let descriptor = recording.descriptors.iter().find(|d| Some(d.fd) == call.fd);
        vec![
            call.tid.to_string(),
            call.name.clone(),
            call.fd.map_or_else(String::new, |fd| fd.to_string()),
            descriptor.map_or_else(String::new, |d| role_name(d.role).to_string()),
            call.count.map_or_else(String::new, |count| count.to_string()),
            ms(call.cpu_ns),
            ms(call.blocked_ns),
            ms(call.run_queue_ns),
            format!("{:.3}", call.longest_ns as f64 / 1e6),
            call.bytes.to_string(),
            descriptor.map_or_else(String::new, tables::what),
        ]
    });
    Table {
        title: "System calls by descriptor and role",
        #[rustfmt::skip]
        head: vec![
            "tid", "call", "fd", "role", "calls", "CPU ms", "blocked ms", "run queue ms", "longest ms",
            "bytes", "what",
        ],
        rows: rows.collect(),
    }
}

fn locks(recording: &Recording) -> Table {
    let mut waits: Vec<_> = recording.waits.iter().filter(|wait| wait.address.is_some()).collect();
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.blocked_ns));
    let rows = waits.into_iter().take(ROWS_MAX).map(|wait| {
        let frames =
            recording.stacks[wait.stack as usize].iter().map(|&index| &recording.frames[index as usize]);
        let path: Vec<&str> =
            frames.filter(|f| !f.is_kernel()).take(6).map(|frame| frame.name.as_str()).collect();
        vec![
            wait.tid.to_string(),
            wait.call.clone().unwrap_or_default(),
            format!("{:#x}", wait.address.unwrap_or(0)),
            wait.count.to_string(),
            ms(wait.blocked_ns),
            ms(wait.longest_ns),
            path.join(" < "),
        ]
    });
    Table {
        title: "Locks",
        head: vec!["tid", "futex", "address", "waits", "blocked ms", "longest ms", "at"],
        rows: rows.collect(),
    }
}

fn sockets(recording: &Recording) -> Table {
    let listeners = recording.listeners.iter().map(|l| {
        let limit = l.backlog.map_or_else(|| "?".to_string(), |limit| limit.to_string());
        let state = format!("at most {} of {limit} waited, {} dropped", l.waiting_max, l.drops);
        vec![l.address.clone(), "listens".to_string(), state]
    });
    let connections = recording.sockets.iter().map(|s| {
        let state = format!(
            "at most {} bytes unsent and {} unread, {} sent again, window closed in {} of {} samples",
            s.unsent_max, s.unread_max, s.retransmissions, s.seen_probing, s.seen
        );
        vec![s.local.clone(), s.remote.clone(), state]
    });
    Table {
        title: "Sockets",
        head: vec!["here", "peer", "seen"],
        rows: listeners.chain(connections).take(ROWS_MAX).collect(),
    }
}

fn stalls(recording: &Recording) -> Table {
    let mut stalls: Vec<_> = recording.stalls.iter().collect();
    stalls.sort_by_key(|stall| std::cmp::Reverse(stall.length_ns));
    let rows = stalls.into_iter().take(ROWS_MAX).map(|stall| {
        let descriptor = recording.descriptors.iter().find(|d| Some(d.fd) == stall.fd);
        vec![
            format!("{:.3}", stall.at_ns as f64 / 1e9),
            stall.tid.to_string(),
            ms(stall.length_ns),
            ms(stall.blocked_ns),
            ms(stall.run_queue_ns),
            stall.call.clone().unwrap_or_default(),
            ms(stall.call_ns),
            descriptor.map_or_else(String::new, tables::what),
        ]
    });
    Table {
        title: "Turns of event loops that took long",
        #[rustfmt::skip]
        head: vec!["at s", "tid", "length ms", "blocked ms", "run queue ms", "longest call", "its ms", "on"],
        rows: rows.collect(),
    }
}

fn disks(recording: &Recording) -> Table {
    let rows = recording.disks.iter().take(ROWS_MAX).map(|disk| {
        let mut row = vec![disk.name.clone(), ms(disk.busy_ns)];
        for requests in [disk.reads, disk.writes, disk.flushes] {
            row.push(requests.count.to_string());
            row.push(format!("{:.3}", requests.took_ns as f64 / 1e6 / requests.count.max(1) as f64));
        }
        row
    });
    Table {
        title: "Disks",
        head: vec!["disk", "busy ms", "reads", "ms each", "writes", "ms each", "flushes", "ms each"],
        rows: rows.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::diagnose;
    use crate::golden;

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
