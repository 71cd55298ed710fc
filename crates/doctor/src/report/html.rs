//! The diagnosis as one page that needs nothing else: no server, no network, no other file.
//!
//! The page is three files of this crate put together, with the data as JSON between them. All text of the target (names of
//! functions, files and threads) is data, and the script puts it on the page as text only, so nothing in it is markup.

use anyhow::Result;
use serde::Serialize;

use super::flame::{self, Graph, Names};
use super::tables::{self, role_name};
use crate::analyse::{Diagnosis, budget};
use crate::recording::{Health, Recording, Target};

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
    threads: Table,
    calls: Table,
    locks: Table,
    sockets: Table,
}

/// Cells as text; the script shows them as they are.
#[derive(Serialize)]
struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

pub(crate) fn html(recording: &Recording, diagnosis: &Diagnosis) -> Result<String> {
    let mut names = Names::default();
    let graphs = vec![
        flame::on_cpu(recording, &mut names),
        flame::off_cpu(recording, &mut names, false),
        flame::off_cpu(recording, &mut names, true),
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
        threads: threads(recording),
        calls: calls(recording),
        locks: locks(recording),
        sockets: sockets(recording),
    };
    // A name may hold "</script>": as an escape it is the same JSON, and no end of the script.
    let json = serde_json::to_string(&data)?.replace('<', "\\u003c");
    Ok(PAGE.replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", SCRIPT).replace("/*DATA*/", &json))
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
        head: vec!["tid", "thread", "CPU %", "run queue %", "blocked %", "waiting for work %"],
        rows: threads.iter().take(ROWS_MAX).map(row).collect(),
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
        #[rustfmt::skip]
        head: vec!["tid", "call", "fd", "role", "calls", "CPU ms", "blocked ms", "run queue ms", "longest ms", "bytes", "what"],
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
            "at most {} bytes unsent and {} unread, {} sent again, window closed in {} of {} looks",
            s.unsent_max, s.unread_max, s.retransmissions, s.seen_probing, s.seen
        );
        vec![s.local.clone(), s.remote.clone(), state]
    });
    Table { head: vec!["here", "peer", "seen"], rows: listeners.chain(connections).take(ROWS_MAX).collect() }
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
