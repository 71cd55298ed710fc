//! The circumstances of a recording: which process, when, for how long, on which machine, at which rate, and
//! who else was busy.

use serde::Serialize;

use crate::analyse::{Budget, Diagnosis};
use crate::recording::{Host, Recording, Tier, is_of_redis_family};

/// Busy processes that are named.
const NEIGHBOURS_MAX: usize = 3;
/// Share of a CPU from which a process counts as busy.
const BUSY_MIN: f64 = 0.01;

/// "redis-server (pid 100)".
pub(super) fn target(recording: &Recording) -> String {
    format!("{} (pid {})", recording.target.name, recording.target.pid)
}

/// "10.0 s from 2023-11-14 22:13:20 UTC".
pub(super) fn window(recording: &Recording) -> String {
    let seconds = recording.window_ns as f64 / 1e9;
    format!("{seconds:.1} s from {}", utc(recording.taken_unix_s))
}

/// "Linux 6.18, 2 CPUs".
pub(super) fn machine(recording: &Recording) -> String {
    let Host { kernel, cpus, steal, .. } = &recording.host;
    let system = format!("Linux {kernel}");
    let mut text = format!("{}, {cpus} CPU{}", system.trim_end(), if *cpus == 1 { "" } else { "s" });
    let allowed = recording.target.cpus_allowed_count;
    if allowed > 0 && allowed < *cpus {
        let plural = if allowed == 1 { "" } else { "s" };
        text += &format!(", of which it may use CPU{plural} {}", recording.target.cpus_allowed);
    }
    if *steal >= 0.005 {
        text += &format!(", {:.1}% of their time stolen by the hypervisor", steal * 100.0);
    }
    text
}

/// "115,826 commands a second", if the server counts them.
pub(super) fn rate(diagnosis: &Diagnosis) -> Option<String> {
    let requests = diagnosis.requests.as_ref()?;
    Some(format!("{} commands a second", grouped(requests.per_second)))
}

/// "redis-benchmark (200) 48% of a CPU, hog (300) 5.0%", or "nobody".
pub(super) fn busy(recording: &Recording) -> String {
    let share = |ns: u64| ns as f64 / recording.window_ns.max(1) as f64;
    let busy = recording.host.neighbours.iter().filter(|n| share(n.cpu_ns) >= BUSY_MIN);
    let named = busy.take(NEIGHBOURS_MAX).enumerate().map(|(index, n)| {
        let of = if index == 0 { " of a CPU" } else { "" };
        let percent = share(n.cpu_ns) * 100.0;
        let percent = if percent < 9.95 { format!("{percent:.1}") } else { format!("{percent:.0}") };
        format!("{} ({}) {percent}%{of}", n.name, n.pid)
    });
    let named: Vec<String> = named.collect();
    if named.is_empty() { "nobody".to_string() } else { named.join(", ") }
}

/// What the user can do so that fewer rules are blind; nothing if no rule is.
pub(super) fn to_see_more(recording: &Recording, diagnosis: &Diagnosis) -> Option<String> {
    let unseen = diagnosis.ruled_out.iter().filter(|ruled| ruled.unseen);
    let unseen: Vec<&str> = unseen.map(|ruled| ruled.rule).collect();
    if unseen.is_empty() {
        return None;
    }
    let notes = &recording.health.notes;
    let was_told = |option: &str| notes.iter().any(|note| note.starts_with(option));
    let mut steps = Vec::new();
    match recording.tier {
        Tier::T0 if recording.health.duty < 0.9 => {
            steps.push("record again, for longer (--seconds 60): rare events are then seen sooner or later");
        }
        Tier::T0 => {}
        _ if recording.is_of_build_without_bpf() => {
            steps
                .push("build the doctor with --features bpf (it needs clang and libelf), and run it as root");
        }
        _ if was_told("--proc-only") => steps.push("leave out --proc-only, as root"),
        _ if was_told("--no-bpf") => steps.push("leave out --no-bpf, as root"),
        _ => steps.push("run it as root, on a kernel with BTF; the notes below say what was missing"),
    }
    if unseen.contains(&"R20") && is_of_redis_family(&recording.target.name) {
        steps.push("let it ask the server for INFO (--auth PASSWORD, without --no-ask)");
    }
    (!steps.is_empty()).then(|| format!("To see more, {}.", steps.join("; ")))
}

/// A part of a thread's time: its name, its kind in the page's style, and its share of the window.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct TimePart {
    pub(super) name: &'static str,
    kind: &'static str,
    pub(super) share: f64,
}

/// The parts of the critical thread's time. If the places of sleeps are hidden, nothing tells blocked time
/// from waits for work.
pub(super) fn time_parts(recording: &Recording, critical: &Budget) -> Vec<TimePart> {
    let part = |name, kind, ns| TimePart { name, kind, share: critical.share(ns) };
    let mut parts = vec![
        part("on a CPU", "cpu", critical.cpu_ns),
        part("waiting for a CPU", "queue", critical.run_queue_ns),
    ];
    if recording.health.sleeps_hidden {
        let asleep_ns = critical.blocked_ns + critical.idle_ns;
        parts.push(part("asleep, for hidden reasons", "idle", asleep_ns));
    } else {
        parts.push(part("blocked", "blocked", critical.blocked_ns));
        parts.push(part("waiting for work", "idle", critical.idle_ns));
    }
    parts
}

/// A number with its thousands apart: "115,826".
pub(super) fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// "2023-11-14 22:13:20 UTC".
fn utc(unix_s: u64) -> String {
    let unix_s = libc::time_t::try_from(unix_s).unwrap_or(libc::time_t::MAX);
    // SAFETY: zeroes are a valid `tm`, and the call fills the structure, or fails for a year that does not
    // fit.
    let (result, time) = unsafe {
        let mut time: libc::tm = std::mem::zeroed();
        let result = libc::gmtime_r(&raw const unix_s, &raw mut time);
        (result, time)
    };
    if result.is_null() {
        return "an unknown time".to_string();
    }
    format!(
        "{}-{:02}-{:02} {:02}:{:02}:{:02} UTC",
        i64::from(time.tm_year) + 1900,
        time.tm_mon + 1,
        time.tm_mday,
        time.tm_hour,
        time.tm_min,
        time.tm_sec
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::diagnose;
    use crate::golden;
    use crate::recording::NO_BPF_BUILD;

    #[test]
    fn time_and_numbers_are_those_of_people() {
        assert_eq!(utc(1_700_000_000), "2023-11-14 22:13:20 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(u64::MAX), "an unknown time");
        assert_eq!([0.0, 999.6, 1_234_567.0].map(grouped), ["0", "1,000", "1,234,567"]);
    }

    #[test]
    fn busy_neighbours_are_named() {
        assert_eq!(busy(&golden::idle()), "nobody");
        assert_eq!(busy(&golden::everything_is_wrong()), "hog (7) 25% of a CPU");
        assert_eq!(machine(&golden::idle()), "Linux 6.18, 2 CPUs");
    }

    #[test]
    fn hidden_sleeps_are_neither_blocked_nor_waits_for_work() {
        let mut recording = golden::idle();
        let parts = |recording: &Recording| {
            let critical = diagnose(recording).critical.expect("a thread");
            time_parts(recording, &critical).iter().map(|part| part.name).collect::<Vec<_>>()
        };
        let all = ["on a CPU", "waiting for a CPU", "blocked", "waiting for work"];
        assert_eq!(parts(&recording), all);
        recording.health.sleeps_hidden = true;
        assert_eq!(parts(&recording)[2..], ["asleep, for hidden reasons"]);
    }

    #[test]
    fn blind_rules_come_with_a_way_to_see() {
        let more = |recording: &Recording| to_see_more(recording, &diagnose(recording)).unwrap_or_default();
        let mut recording = golden::busy();
        recording.tier = Tier::T3;
        assert!(more(&recording).contains("run it as root"));
        recording.health.notes = vec!["--proc-only: nothing was asked for".to_string()];
        assert!(more(&recording).contains("leave out --proc-only"));
        recording.health.notes = vec![format!("{NO_BPF_BUILD}; /proc was used instead")];
        assert!(more(&recording).contains("--features bpf"));
    }
}
