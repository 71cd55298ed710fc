//! The diagnosis as text: the answer first, then the evidence, the excluded causes, and the doctor's own
//! cost.

use std::fmt::Write;

use crate::analyse::{Budget, Change, Comparison, Diagnosis, Fate, Finding, Part, Requests, Unit};
use crate::recording::{Health, Recording};

/// Lines are wrapped here: most terminals are wider, but long lines are hard to read.
const WIDTH: usize = 100;

pub(crate) fn terminal(recording: &Recording, diagnosis: &Diagnosis) -> String {
    let mut out = String::new();
    let target = &recording.target;
    let seconds = recording.window_ns as f64 / 1e9;
    line(
        &mut out,
        &format!("{} (pid {}), {seconds:.1} s, {}", target.name, target.pid, recording.tier.describe()),
    );
    out.push('\n');
    paragraph(&mut out, "", &diagnosis.sentence);
    if let Some(critical) = &diagnosis.critical {
        out.push('\n');
        paragraph(&mut out, "", &budget(critical));
    }
    if let Some(requests) = &diagnosis.requests {
        out.push('\n');
        paragraph(&mut out, "", &each_request(requests));
    }
    for (index, finding) in diagnosis.findings.iter().enumerate() {
        out.push('\n');
        show(&mut out, index + 1, finding);
    }
    out.push('\n');
    show_ruled_out(&mut out, diagnosis);
    out.push('\n');
    show_health(&mut out, &recording.health, seconds);
    out
}

fn budget(critical: &Budget) -> String {
    let percent = |ns| critical.share(ns) * 100.0;
    format!(
        "Critical thread: {} ({}): {:.1}% on a CPU, {:.1}% waiting for one, {:.1}% blocked, {:.1}% waiting \
         for work.",
        critical.name,
        critical.tid,
        percent(critical.cpu_ns),
        percent(critical.run_queue_ns),
        percent(critical.blocked_ns),
        percent(critical.idle_ns)
    )
}

fn each_request(requests: &Requests) -> String {
    let Requests { per_second, cpu_us, critical_cpu_us, .. } = requests;
    let mut text = format!(
        "By its own count it processes {per_second:.0} commands a second: {cpu_us:.2} us of CPU each, \
         {critical_cpu_us:.2} us of that in the critical thread."
    );
    let stages = requests.stages.iter().filter(|(_, share)| *share >= 0.0005);
    let stages: Vec<String> = stages.map(|(name, share)| format!("{name} {:.1}%", share * 100.0)).collect();
    if !stages.is_empty() {
        let _ = write!(text, " Its workers' time by stages: {}.", stages.join(", "));
    }
    text
}

fn show(out: &mut String, number: usize, finding: &Finding) {
    paragraph(out, &format!("{number}. "), &format!("{}.", finding.title));
    let gain = match finding.share {
        _ if !finding.is_cause() => "about this report".to_string(),
        Some(_) => format!("at most x{:.2} if fixed", finding.ceiling),
        None => "felt by clients, not by the thread".to_string(),
    };
    let each = finding.per_request_us.map_or_else(String::new, |us| format!("{us:.2} us a request; "));
    let of = finding.share.zip(finding.share_error).map_or_else(String::new, |(share, error)| {
        format!("{:.1}% ±{:.1}% of its time; ", share * 100.0, error * 100.0)
    });
    let confidence = (finding.confidence * 100.0).round();
    paragraph(out, "   ", &format!("[{}; {of}{each}{gain}; confidence {confidence:.0}%]", finding.rule));
    for evidence in &finding.evidence {
        paragraph(out, "   - ", &evidence.what);
        // Not wrapped, so that it can be copied.
        line(out, &format!("       $ {}", evidence.command));
    }
    if !finding.next_step.is_empty() {
        paragraph(out, "   Next: ", &finding.next_step);
    }
}

fn show_ruled_out(out: &mut String, diagnosis: &Diagnosis) {
    let (unseen, out_of): (Vec<_>, Vec<_>) = diagnosis.ruled_out.iter().partition(|ruled| ruled.unseen);
    for (title, list) in [("Ruled out:", out_of), ("Not seen in this tier:", unseen)] {
        if list.is_empty() {
            continue;
        }
        line(out, title);
        for ruled in list {
            paragraph(out, &format!("  {:<4}", ruled.rule), &ruled.why);
        }
    }
}

fn show_health(out: &mut String, health: &Health, seconds: f64) {
    let share = |ns: u64| ns as f64 / 1e9 / seconds.max(1e-9) * 100.0;
    let mut text = format!("The doctor took {:.1}% of a CPU", share(health.own_cpu_ns));
    if health.kernel_runs > 0 {
        let _ = write!(
            text,
            " and its programs in the kernel {:.1}% ({} runs), by the kernel's count",
            share(health.kernel_ns),
            health.kernel_runs
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
    paragraph(out, "", &text);
    for note in &health.notes {
        paragraph(out, "  note: ", note);
    }
}

/// Two recordings: the changes, and the functions and calls behind them.
pub(crate) fn comparison(comparison: &Comparison) -> String {
    let mut out = String::new();
    paragraph(&mut out, "before: ", &comparison.before.sentence);
    paragraph(&mut out, "after:  ", &comparison.after.sentence);
    out.push('\n');
    for (index, change) in comparison.changes.iter().enumerate() {
        let fate = match change.fate {
            Fate::Appeared => "appeared",
            Fate::Gone => "gone",
            Fate::Changed => "changed",
        };
        paragraph(&mut out, &format!("{}. {fate}: ", index + 1), &format!("{}.", change.title));
        paragraph(&mut out, "   ", &format!("[{}; {}]", change.rule, extent(change)));
    }
    if comparison.changes.is_empty() {
        line(&mut out, "No finding appeared, is gone, or changed by more than the sampling error.");
    }
    show_parts(&mut out, "Functions, with what they call", comparison.unit, &comparison.functions);
    show_parts(&mut out, "System calls", comparison.unit, &comparison.calls);
    out
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

fn show_parts(out: &mut String, title: &str, of: Unit, parts: &[Part]) {
    if parts.is_empty() {
        return;
    }
    let (what, figure) = unit(of);
    line(out, &format!("\n{title}, {what}:"));
    for part in parts {
        let change = part.after - part.before;
        let sign = if change < 0.0 { "-" } else { "+" };
        let change = format!("{sign}{}", figure(change.abs()));
        line(
            out,
            &format!("  {:>7} > {:>7}  {change:>7}  {}", figure(part.before), figure(part.after), part.name),
        );
    }
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

/// Writes text with a prefix on its first line; the following lines are indented to match.
fn paragraph(out: &mut String, prefix: &str, text: &str) {
    let indent = prefix.chars().count();
    let mut column = indent;
    out.push_str(prefix);
    for (index, word) in text.split_whitespace().enumerate() {
        let length = word.chars().count();
        if index > 0 && column + 1 + length > WIDTH {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if index > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::diagnose;
    use crate::golden;
    use crate::recording::OwnCount;

    #[test]
    fn the_answer_comes_before_the_figures() {
        let recording = golden::everything_is_wrong();
        let diagnosis = diagnose(&recording);
        let text = terminal(&recording, &diagnosis);
        let answer = text.find(&diagnosis.findings[0].title[..20]).expect("the answer");
        assert!(answer < text.find("Critical thread").expect("the budget"));
        assert!(text.contains("Ruled out:") && text.contains("The doctor took 1.0% of a CPU"));
        assert!(text.lines().filter(|l| !l.contains("$ ")).all(|l| l.chars().count() <= WIDTH), "{text}");
    }

    #[test]
    fn sampled_or_scaled_values_state_their_certainty() {
        let mut recording = golden::busy();
        golden::add_samples(&mut recording, &["main", "aeMain", "sortCommand"], 1_920);
        recording.own_count =
            Some(OwnCount { between_ns: golden::WINDOW_NS, commands: 1_000_000, ..OwnCount::default() });
        let text = |recording: &Recording| terminal(recording, &diagnose(recording));
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
        let text = terminal(&recording, &diagnose(&recording));
        assert!(text.contains("redis-server is idle"), "{text}");
        assert!(!text.contains("1. "), "{text}");
    }
}
