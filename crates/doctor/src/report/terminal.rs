//! The diagnosis as text: the circumstances, the answer, then its evidence, the excluded causes, and the
//! doctor's own cost.

use std::fmt::Write;

use super::look::{Ink, Look};
use super::sheet::Sheet;
use super::table::{Table, number, text};
use super::{facts, names};
use crate::analyse::{Budget, Change, Comparison, Diagnosis, Fate, Finding, Part, Requests, Unit, Verdict};
use crate::recording::{Health, InHand, Recording};

pub(crate) fn terminal(recording: &Recording, diagnosis: &Diagnosis, look: Look) -> String {
    let mut sheet = Sheet::new(look);
    show_circumstances(&mut sheet, recording, diagnosis);
    sheet.gap();
    let sentence = diagnosis.sentence.trim_end_matches('.');
    sheet.paragraph(headline_ink(diagnosis), "", &format!("{sentence}."));
    if let Some(critical) = &diagnosis.critical {
        sheet.gap();
        sheet.paragraph(Ink::Plain, "", &budget(recording, critical));
    }
    if let Some(requests) = &diagnosis.requests {
        sheet.paragraph(Ink::Plain, "", &each_request(requests));
    }
    if let Some(text) = inside(&recording.in_hand) {
        sheet.paragraph(Ink::Plain, "", &text);
    }
    for (index, finding) in diagnosis.findings.iter().enumerate() {
        sheet.gap();
        show(&mut sheet, index + 1, finding, finding.title == diagnosis.sentence);
    }
    show_ruled_out(&mut sheet, recording, diagnosis);
    sheet.gap();
    show_health(&mut sheet, &recording.health, recording.window_ns as f64 / 1e9);
    sheet.into_text()
}

fn show_circumstances(sheet: &mut Sheet, recording: &Recording, diagnosis: &Diagnosis) {
    let mut first = format!("{}, {}", facts::target(recording), facts::window(recording));
    if let Some(rate) = facts::rate(diagnosis) {
        let _ = write!(first, ", {rate}");
    }
    if recording.is_of_build_without_bpf() {
        first.push_str("; this build has no eBPF part");
    }
    sheet.paragraph(Ink::Plain, "", &first);
    let around = format!("{}; busy beside it: {}", facts::machine(recording), facts::busy(recording));
    sheet.paragraph(Ink::Faint, "", &around);
    sheet.paragraph(Ink::Faint, "", recording.tier.describe());
}

fn headline_ink(diagnosis: &Diagnosis) -> Ink {
    match diagnosis.verdict {
        Verdict::Found => {
            Ink::of_confidence(diagnosis.findings.first().map_or(0.0, |finding| finding.confidence))
        }
        Verdict::Idle | Verdict::Elsewhere => Ink::Calm,
        Verdict::Spread | Verdict::Inconclusive { .. } => Ink::Likely,
    }
}

fn budget(recording: &Recording, critical: &Budget) -> String {
    let parts = facts::time_parts(recording, critical);
    let parts: Vec<String> =
        parts.iter().map(|part| format!("{:.1}% {}", part.share * 100.0, part.name)).collect();
    format!("Critical thread: {} ({}): {}.", critical.name, critical.tid, parts.join(", "))
}

/// How long clients wait, beside what the thread does meanwhile.
fn inside(in_hand: &InHand) -> Option<String> {
    let average = in_hand.requests as f64 / in_hand.seen.max(1) as f64;
    let longest = in_hand.longest_ms;
    (in_hand.requests > 0).then(|| {
        format!(
            "Requests of clients that are inside for 10 ms and more: {average:.1} on average, for up to \
             {longest} ms."
        )
    })
}

fn each_request(requests: &Requests) -> String {
    let Requests { cpu_us, critical_cpu_us, .. } = requests;
    let (cpu, critical) = (format!("{cpu_us:.2} us"), format!("{critical_cpu_us:.2} us"));
    let critical = if critical == cpu { "all".to_string() } else { critical };
    let mut text = format!(
        "A command takes {cpu} of CPU, {critical} of it in the critical thread, by the server's own count of \
         commands."
    );
    let stages = requests.stages.iter().filter(|(_, share)| *share >= 0.0005);
    let stages: Vec<String> = stages.map(|(name, share)| format!("{name} {:.1}%", share * 100.0)).collect();
    if !stages.is_empty() {
        let _ = write!(text, " Its workers' time by stages: {}.", stages.join(", "));
    }
    text
}

/// Shows a finding. `is_headline`: its title stands above already.
fn show(sheet: &mut Sheet, number: usize, finding: &Finding, is_headline: bool) {
    let number = format!("{number}. ");
    let figures = format!("[{}]", figures(finding));
    if is_headline {
        sheet.paragraph(Ink::Plain, &number, &format!("Evidence for the headline {figures}:"));
    } else {
        sheet.paragraph(Ink::Strong, &number, &format!("{}.", finding.title));
        sheet.paragraph(Ink::Plain, "   ", &figures);
    }
    for evidence in &finding.evidence {
        sheet.paragraph(Ink::Plain, "   - ", &evidence.what);
        // Not wrapped, so that it can be copied.
        sheet.line(Ink::Faint, &format!("       $ {}", evidence.command));
    }
    if !finding.next_step.is_empty() {
        sheet.paragraph(Ink::Plain, "   Next: ", &finding.next_step);
    }
}

/// "R1; 49.0% ±1.5% of its time; at most x1.96 if fixed; confidence 60%".
pub(super) fn figures(finding: &Finding) -> String {
    let gain = match finding.share {
        _ if !finding.is_cause() => "about this report".to_string(),
        Some(_) if finding.ceiling >= 10.0 => "more than x10 if fixed".to_string(),
        Some(_) => format!("at most x{:.2} if fixed", finding.ceiling),
        None => "felt by clients, not by the thread".to_string(),
    };
    let each = finding.per_request_us.map_or_else(String::new, |us| format!("{us:.2} us a request; "));
    let of = finding.share.zip(finding.share_error).map_or_else(String::new, |(share, error)| {
        format!("{:.1}% ±{:.1}% of its time; ", share * 100.0, error * 100.0)
    });
    let confidence = (finding.confidence * 100.0).round();
    format!("{}; {of}{each}{gain}; confidence {confidence:.0}%", finding.rule)
}

/// The excluded causes in a paragraph; the causes that were not seen by their reason, and what to do.
fn show_ruled_out(sheet: &mut Sheet, recording: &Recording, diagnosis: &Diagnosis) {
    let out: Vec<&str> = diagnosis
        .ruled_out
        .iter()
        // The doctor's own cost (R19) is no cause, and follows below.
        .filter(|ruled| !ruled.unseen && ruled.rule != "R19")
        .map(|ruled| names::of(ruled.rule))
        .collect();
    if !out.is_empty() {
        sheet.gap();
        let text = format!("{}. (Figures: --json, --html.)", out.join(", "));
        sheet.paragraph(Ink::Faint, "Ruled out: ", &text);
    }
    let unseen = unseen_by_reason(diagnosis);
    if unseen.is_empty() {
        return;
    }
    sheet.gap();
    sheet.line(Ink::Strong, "Not seen, so not ruled out:");
    for (why, rules) in unseen {
        sheet.paragraph(Ink::Plain, "  - ", &format!("{}: {why}", rules.join(", ")));
    }
    if let Some(more) = facts::to_see_more(recording, diagnosis) {
        sheet.paragraph(Ink::Plain, "  ", &more);
    }
}

/// Reasons in the order of their first rule, and the causes that each hides.
pub(super) fn unseen_by_reason(diagnosis: &Diagnosis) -> Vec<(&str, Vec<String>)> {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for ruled in diagnosis.ruled_out.iter().filter(|ruled| ruled.unseen) {
        let name = names::with_number(ruled.rule);
        match reasons.iter_mut().find(|(why, _)| *why == ruled.why) {
            Some((_, rules)) => rules.push(name),
            None => reasons.push((&ruled.why, vec![name])),
        }
    }
    reasons
}

fn show_health(sheet: &mut Sheet, health: &Health, seconds: f64) {
    sheet.paragraph(Ink::Faint, "", &cost(health, seconds));
    for note in &health.notes {
        sheet.paragraph(Ink::Faint, "  note: ", note);
    }
}

/// What the doctor took, and how complete its data are.
pub(super) fn cost(health: &Health, seconds: f64) -> String {
    let share = |ns: u64| ns as f64 / 1e9 / seconds.max(1e-9) * 100.0;
    let mut text = format!("The doctor took {:.1}% of a CPU", share(health.own_cpu_ns));
    if health.kernel_runs > 0 {
        let _ = write!(
            text,
            " and its programs in the kernel {:.1}% ({} runs), by the kernel's count",
            share(health.kernel_ns),
            facts::grouped(health.kernel_runs as f64)
        );
    }
    if health.looks > 0 {
        let _ = write!(text, "; {} samples, every {:.0} ms", health.looks, health.look_ns as f64 / 1e6);
    }
    text.push('.');
    if health.stacks > 0 {
        let complete = health.stacks_complete as f64 / health.stacks as f64 * 100.0;
        let _ = write!(text, " {complete:.1}% of {} stacks are complete.", health.stacks);
    }
    if health.duty < 0.999 {
        let _ = write!(
            text,
            " To keep its budget it was on for {:.0}% of the time; counts and times of calls are scaled",
            health.duty * 100.0
        );
        let error = health.scale_error.map_or_else(String::new, |error| format!(" (±{:.0}%)", error * 100.0));
        let _ = write!(text, "{error}.");
    }
    if health.events_lost > 0 {
        let _ = write!(text, " {} events were lost.", health.events_lost);
    }
    text
}

/// Two recordings: the changes, and the functions and calls behind them.
pub(crate) fn comparison(comparison: &Comparison, look: Look) -> String {
    let mut sheet = Sheet::new(look);
    sheet.paragraph(Ink::Plain, "before: ", &comparison.before.sentence);
    sheet.paragraph(Ink::Strong, "after:  ", &comparison.after.sentence);
    sheet.gap();
    for (index, change) in comparison.changes.iter().enumerate() {
        let (fate, ink) = match change.fate {
            Fate::Appeared => ("appeared", Ink::Certain),
            Fate::Gone => ("gone", Ink::Calm),
            Fate::Changed => ("changed", Ink::Likely),
        };
        sheet.paragraph(ink, &format!("{}. {fate}: ", index + 1), &format!("{}.", change.title));
        sheet.paragraph(Ink::Plain, "   ", &format!("[{}; {}]", change.rule, extent(change)));
    }
    if comparison.changes.is_empty() {
        let none = "No finding appeared, is gone, or changed by more than the sampling error.";
        sheet.paragraph(Ink::Calm, "", none);
    }
    show_parts(&mut sheet, "Functions, with what they call", comparison.unit, &comparison.functions);
    show_parts(&mut sheet, "System calls", comparison.unit, &comparison.calls);
    sheet.into_text()
}

/// The extent of a change.
pub(crate) fn extent(change: &Change) -> String {
    let (before, after) = (change.before * 100.0, change.after * 100.0);
    let mut text = format!("{before:.1}% > {after:.1}% of the critical thread's time");
    if let Some((before, after)) = change.before_us.zip(change.after_us) {
        let _ = write!(text, ", {before:.2} > {after:.2} us a request");
    }
    text
}

/// The unit of functions and calls, and the format of a value.
pub(crate) fn unit(unit: Unit) -> (&'static str, fn(f64) -> String) {
    match unit {
        Unit::CpuShare => ("% of the critical thread's CPU time", |share| format!("{:.1}", share * 100.0)),
        Unit::MicrosecondsPerRequest => {
            ("us of the critical thread's CPU time a request", |us| format!("{us:.2}"))
        }
    }
}

fn show_parts(sheet: &mut Sheet, title: &str, of: Unit, parts: &[Part]) {
    if parts.is_empty() {
        return;
    }
    let (what, figure) = unit(of);
    sheet.gap();
    sheet.line(Ink::Strong, &format!("{title}, {what}:"));
    let mut table = Table::new(title, &[number("before"), number("after"), number("change"), text("")]);
    table.rows.extend(parts.iter().map(|part| {
        let change = part.after - part.before;
        let sign = if change < 0.0 { "-" } else { "+" };
        vec![
            figure(part.before),
            figure(part.after),
            format!("{sign}{}", figure(change.abs())),
            part.name.clone(),
        ]
    }));
    table.lines().lines().for_each(|line| sheet.line(Ink::Plain, &format!("  {line}")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::diagnose;
    use crate::golden;
    use crate::recording::{NO_BPF_BUILD, OwnCount, Tier};

    #[test]
    fn the_answer_comes_before_the_figures() {
        let recording = golden::everything_is_wrong();
        let diagnosis = diagnose(&recording);
        let text = terminal(&recording, &diagnosis, Look::PLAIN);
        let answer = text.find(&diagnosis.findings[0].title[..20]).expect("the answer");
        assert!(answer < text.find("Critical thread").expect("the budget"));
        assert!(text.contains("Ruled out:") && text.contains("The doctor took 1.0% of a CPU"));
        assert!(
            text.lines().filter(|l| !l.contains("$ ")).all(|l| l.chars().count() <= Look::PLAIN.width),
            "{text}"
        );
    }

    #[test]
    fn sampled_or_scaled_values_state_their_certainty() {
        let mut recording = golden::busy();
        golden::add_samples(&mut recording, &["main", "aeMain", "sortCommand"], 1_920);
        recording.own_count =
            Some(OwnCount { between_ns: golden::WINDOW_NS, commands: 1_000_000, ..OwnCount::default() });
        let text = |recording: &Recording| terminal(recording, &diagnose(recording), Look::PLAIN);
        // Half of 3,840 samples: 98% of the window times 1.96 * sqrt(0.25 / 3840).
        assert!(
            text(&recording).contains("[R1; 49.0% ±1.5% of its time; 4.90 us a request; "),
            "{}",
            text(&recording)
        );
        recording.health.duty = 0.16;
        recording.health.scale_error = Some(0.04);
        let scaled = text(&recording);
        assert!(scaled.contains("[R1; 49.0% ±3.9% of its time; "), "a sixth of them were taken: {scaled}");
        let words: Vec<&str> = scaled.split_whitespace().collect();
        assert!(words.join(" ").contains("counts and times of calls are scaled (±4%)."), "{scaled}");
    }

    #[test]
    fn an_idle_server_has_no_findings() {
        let recording = golden::idle();
        let text = terminal(&recording, &diagnose(&recording), Look::PLAIN);
        assert!(text.contains("redis-server is idle"), "{text}");
        assert!(!text.contains("1. "), "{text}");
    }

    #[test]
    fn the_headline_stands_once_and_the_circumstances_first() {
        let mut recording = golden::everything_is_wrong();
        recording.own_count =
            Some(OwnCount { between_ns: golden::WINDOW_NS, commands: 1_234_560, ..OwnCount::default() });
        let diagnosis = diagnose(&recording);
        let text = terminal(&recording, &diagnosis, Look::PLAIN);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words.matches(diagnosis.sentence.as_str()).count(), 1, "{text}");
        let mut lines = text.lines();
        assert_eq!(
            lines.next(),
            Some("redis-server (pid 100), 10.0 s from 2023-11-14 22:13:20 UTC, 123,456 commands a second")
        );
        let machine =
            "Linux 6.18, 2 CPUs, 10.0% of their time stolen by the hypervisor; busy beside it: hog (7)";
        assert!(lines.next().is_some_and(|line| line.starts_with(machine)), "{text}");
        recording.health.notes = vec![format!("{NO_BPF_BUILD}; /proc was used instead")];
        let text = terminal(&recording, &diagnose(&recording), Look::PLAIN);
        assert!(text.split("\nLinux").next().is_some_and(|first| first.contains("no eBPF part")), "{text}");
    }

    #[test]
    fn escape_codes_come_only_when_asked_for() {
        let mut recording = golden::everything_is_wrong();
        recording.target.name = "evil\x1b[2J".to_string();
        let diagnosis = diagnose(&recording);
        assert!(!terminal(&recording, &diagnosis, Look::PLAIN).contains('\x1b'));
        let colored = terminal(&recording, &diagnosis, Look { is_colored: true, ..Look::PLAIN });
        assert!(colored.contains("\x1b[1m\x1b[31m") && !colored.contains("\x1b[2J"), "{colored:?}");
    }

    #[test]
    fn requests_inside_stand_beside_the_time_of_the_thread() {
        let mut recording = golden::idle();
        let text = |recording: &Recording| terminal(recording, &diagnose(recording), Look::PLAIN);
        assert!(!text(&recording).contains("inside for 10 ms"));
        recording.in_hand =
            InHand { seen: 10, seen_requests: 9, requests: 47, longest_ms: 200, ..InHand::default() };
        let expected =
            "Requests of clients that are inside for 10 ms and more: 4.7 on average, for up to 200 ms.";
        assert!(text(&recording).replace('\n', " ").contains(expected), "{}", text(&recording));
    }

    #[test]
    fn excluded_causes_are_a_paragraph_and_blind_rules_share_their_reason() {
        let mut recording = golden::busy();
        let text = terminal(&recording, &diagnose(&recording), Look::PLAIN);
        let from = text.find("Ruled out: ").expect("a paragraph");
        let paragraph = text[from..].split("\n\n").next().expect("a paragraph");
        assert!(paragraph.lines().count() <= 6 && paragraph.contains("disk writes, "), "{text}");
        recording.tier = Tier::T3;
        recording.samples.clear();
        let text = terminal(&recording, &diagnose(&recording), Look::PLAIN);
        assert!(text.contains("useless wake-ups (R7), small calls (R12): counts of"), "{text}");
        assert!(text.contains("  To see more, "), "{text}");
    }
}
