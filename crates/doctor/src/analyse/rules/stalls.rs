//! R17: the event loop stalls again and again, with a period.
//!
//! A mean hides such stalls: a loop that works 60 ms every quarter of a second is free for three quarters of
//! the time, but each client waits up to 60 ms. A client that arrives during a turn of the loop, from one
//! poll to the next, waits until the turn ends. Periodic work is driven by the server's own timer, so it can
//! be split or moved to another thread.

use std::collections::BTreeMap;

use super::functions::is_foreign;
use super::{SHARE_MIN, millis, percent};
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::View;
use crate::recording::{STALL_NS, Stall};

/// Fewer stalls have a period by chance.
const STALLS_MIN: usize = 5;
/// Part of the intervals that must be the period, or two or three periods if a stall was missed; and the
/// tolerance.
const REGULAR_MIN: f64 = 0.8;
const MISSED_MAX: f64 = 3.0;
const EXACT: f64 = 0.1;
/// Clients notice a stall of this length even if the sum is small.
const LONG_NS: u64 = 100_000_000;
/// A cause with this part of the stalls' time is named for the finding.
const MOST: f64 = 0.5;
const NEARLY_ALL: f64 = 0.9;

pub(crate) fn periodic(view: &View<'_>) -> Outcome {
    if !view.counts_calls() {
        return Outcome::Unseen("turns of an event loop need BPF programs".to_string());
    }
    let tid = view.critical.tid;
    let stalls: Vec<&Stall> = view.recording.stalls.iter().filter(|stall| stall.tid == tid).collect();
    let longest = stalls.iter().map(|stall| stall.length_ns).max().unwrap_or(0);
    let sum: u64 = stalls.iter().map(|stall| stall.length_ns).sum();
    let period = period(&stalls).filter(|_| view.share(sum) >= SHARE_MIN || longest >= LONG_NS);
    match period {
        Some(period) => Outcome::Found(vec![finding(view, &stalls, period)]),
        None => Outcome::if_shown(
            Outcome::RuledOut(format!(
                "{} turns of its event loop took more than {}, and none with a period",
                stalls.len(),
                millis(STALL_NS)
            )),
            view.hidden_moments(),
        ),
    }
}

/// The interval between the starts of two stalls, if it is nearly always the same.
fn period(stalls: &[&Stall]) -> Option<u64> {
    if stalls.len() < STALLS_MIN {
        return None;
    }
    let mut intervals: Vec<u64> =
        stalls.windows(2).map(|pair| pair[1].at_ns.saturating_sub(pair[0].at_ns)).collect();
    intervals.sort_unstable();
    let period = intervals[intervals.len() / 2];
    let is_regular = |&&interval: &&u64| {
        let times = interval as f64 / period.max(1) as f64;
        let whole = times.round();
        (1.0..=MISSED_MAX).contains(&whole) && (times - whole).abs() <= EXACT
    };
    let regular = intervals.iter().filter(is_regular).count();
    (regular as f64 >= REGULAR_MIN * intervals.len() as f64).then_some(period)
}

fn finding(view: &View<'_>, stalls: &[&Stall], period: u64) -> Finding {
    let sum = |part: fn(&Stall) -> u64| stalls.iter().map(|stall| part(stall)).sum::<u64>();
    let all = sum(|stall| stall.length_ns);
    let mean = all / stalls.len() as u64;
    let of_all = |ns: u64| ns as f64 / all.max(1) as f64;
    let (blocked, queued) = (sum(|stall| stall.blocked_ns), sum(|stall| stall.run_queue_ns));
    let computing = (1.0 - of_all(blocked + queued)).max(0.0);
    let function = (computing >= MOST).then(|| function(view)).flatten();
    let call = call(view, stalls).filter(|(_, ns)| of_all(*ns) >= MOST);
    let cause = match (function, &call) {
        (Some(name), _) => format!("most of it computing in {name}"),
        (None, Some((call, _))) => format!("most of it in {call}"),
        (None, None) if of_all(queued) >= MOST => "most of it waiting for a CPU".to_string(),
        (None, None) => format!("{} of it computing", percent(computing)),
    };
    let title = format!(
        "Every {:.2} s the event loop stands still for {}, and all clients wait: {cause}",
        period as f64 / 1e9,
        millis(mean)
    );
    // Other rules know more about disks, locks and neighbours.
    let confidence = if computing >= MOST { 0.9 } else { 0.5 };
    let longest = stalls.iter().map(|stall| stall.length_ns).max().unwrap_or(0);
    let evidence = format!(
        "{} turns of its loop took more than {}, the longest {}; {} of that time on a CPU, {} blocked, {} \
         waiting for one",
        stalls.len(),
        millis(STALL_NS),
        millis(longest),
        percent(computing),
        percent(of_all(blocked)),
        percent(of_all(queued))
    );
    let show = format!("strace -r -e trace=epoll_wait,epoll_pwait,poll,select -p {}", view.critical.tid);
    let mut finding = Finding::new("R17", view.share(all), view.confidence(confidence, false), title)
        .about("stalls with a period")
        .evidence(evidence, show)
        .next("Find the work that a timer starts: split it into small pieces, or move it to another thread.")
        .frames(function.map(ToString::to_string));
    finding.holds_while_idle = true;
    finding
}

/// The server's own function that holds nearly all samples of the stalls, or most of them.
fn function<'a>(view: &View<'a>) -> Option<&'a str> {
    let late: u64 = view.samples().filter(|sample| sample.late).map(|sample| sample.count).sum();
    let tree = view.tree(|sample| sample.late, |frame| !is_foreign(frame));
    let with = |share: f64| {
        let least = (share * late as f64).ceil().max(1.0) as u64;
        tree.deepest(least).first().map(|hot| hot.name)
    };
    with(NEARLY_ALL).or_else(|| with(MOST))
}

/// Of the calls that were the longest of their turns, the call with the largest sum.
fn call(view: &View<'_>, stalls: &[&Stall]) -> Option<(String, u64)> {
    let mut calls: BTreeMap<(&str, Option<i32>), u64> = BTreeMap::new();
    for stall in stalls {
        if let Some(call) = &stall.call {
            *calls.entry((call, stall.fd)).or_default() += stall.call_ns;
        }
    }
    let ((name, fd), ns) = calls.into_iter().max_by_key(|&(_, ns)| ns)?;
    let on = view
        .what(fd)
        .map_or_else(String::new, |what| format!(" on {}", what.rsplit('/').next().unwrap_or(what)));
    Some((format!("{name}{on}"), ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::diagnose;
    use crate::golden;
    use crate::recording::Recording;

    const MS: u64 = 1_000_000;

    fn at(ms: &[u64], stall: &Stall) -> Vec<Stall> {
        ms.iter().map(|ms| Stall { tid: golden::TID, at_ns: ms * MS, ..stall.clone() }).collect()
    }

    fn title(recording: &Recording) -> Option<String> {
        let findings = diagnose(recording).findings;
        findings.into_iter().find(|finding| finding.rule == "R17").map(|finding| finding.title)
    }

    #[test]
    fn a_periodic_chore_is_named_in_a_mostly_idle_server() {
        let mut recording = golden::idle();
        recording.threads[0].cpu_ns = golden::WINDOW_NS / 5;
        golden::add_samples(&mut recording, &["main", "cron", "sweep"], 200);
        recording.samples[0].late = true;
        golden::add_samples(&mut recording, &["main", "call"], 200);
        // A stall was not seen.
        let stall = Stall { length_ns: 120 * MS, ..Stall::default() };
        recording.stalls = at(&[100, 602, 1_099, 2_101, 2_600, 3_102], &stall);
        let title = title(&recording).expect("R17");
        assert!(title.starts_with("Every 0.50 s the event loop stands still for 120 ms"), "{title}");
        assert!(title.ends_with("most of it computing in sweep"), "{title}");
        assert_eq!(diagnose(&recording).findings[0].rule, "R17");
    }

    #[test]
    fn a_periodic_call_is_named_with_its_file() {
        let mut recording = golden::busy();
        let (call, fd) = (Some("fdatasync".to_string()), Some(golden::AOF));
        let stall = Stall {
            length_ns: 150 * MS,
            blocked_ns: 140 * MS,
            call,
            fd,
            call_ns: 145 * MS,
            ..Stall::default()
        };
        recording.stalls = at(&[0, 1_000, 2_000, 3_000, 4_000], &stall);
        let title = title(&recording).expect("R17");
        assert!(title.ends_with("most of it in fdatasync on appendonly.aof.1.incr.aof"), "{title}");
    }

    #[test]
    fn rare_or_irregular_stalls_are_no_finding() {
        let mut recording = golden::busy();
        let stall = Stall { length_ns: 150 * MS, ..Stall::default() };
        recording.stalls = at(&[0, 400, 2_000, 2_300, 5_000, 5_170, 7_900], &stall);
        assert_eq!(title(&recording), None);
        recording.stalls = at(&[0, 1_000, 2_000, 3_000], &stall);
        assert_eq!(title(&recording), None);
    }
}
