//! From the incidents of a span to ranked causes.

use serde::Serialize;

use crate::incident::{Evidence, Incident, Rule};
use crate::log::Log;

/// More would bury the first.
const FINDINGS_MAX: usize = 8;

/// A cause, with all its incidents in the span.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    pub rule: &'static str,
    /// A sentence without a full stop, about the longest wait.
    pub title: String,
    /// Share of the time for which clients waited.
    pub share: f64,
    /// Longest wait, and all waits together.
    pub lasted_ms: f64,
    pub sum_ms: f64,
    pub times: u64,
    pub first_at: u64,
    pub last_at: u64,
    /// Begin and end of the longest wait.
    pub worst_from: u64,
    pub worst_at: u64,
    pub evidence: Vec<Evidence>,
    pub next_step: &'static str,
}

/// A cause that was looked for and not found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuledOut {
    pub rule: &'static str,
    pub why: &'static str,
}

/// The causes in a span, the one with the longest waits first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Findings {
    pub from: u64,
    pub to: u64,
    /// The answer, as a sentence.
    pub sentence: String,
    pub findings: Vec<Finding>,
    pub ruled_out: Vec<RuledOut>,
}

/// Returns the findings of a span. `time`: formats a time of day.
pub fn findings(log: &Log, from_ms: u64, to_ms: u64, time: impl Fn(u64) -> String) -> Findings {
    let mut causes: Vec<Cause> = Vec::new();
    for incident in log.incidents(from_ms, to_ms) {
        match causes.iter_mut().find(|cause| cause.is_of(incident)) {
            Some(cause) => cause.add(incident),
            None => causes.push(Cause::new(incident)),
        }
    }
    causes.sort_by(|a, b| b.rank().total_cmp(&a.rank()));
    let all: f64 = causes.iter().map(Cause::rank).sum();
    let ruled_out = Rule::ALL
        .into_iter()
        .filter(|rule| causes.iter().all(|cause| cause.worst.rule != *rule))
        .map(|rule| RuledOut { rule: rule.name(), why: absent(rule) })
        .collect();
    let findings: Vec<Finding> =
        causes.iter().take(FINDINGS_MAX).map(|cause| cause.finding(cause.rank() / all.max(1.0))).collect();
    let sentence = match causes.first() {
        None => "No client waited for 10 ms or longer, and nothing held the server back.".to_owned(),
        Some(first) => first.sentence(&time),
    };
    Findings { from: from_ms, to: to_ms, sentence, findings, ruled_out }
}

struct Cause<'a> {
    worst: &'a Incident,
    sum_us: u64,
    times: u64,
    first_at: u64,
    last_at: u64,
}

impl<'a> Cause<'a> {
    fn new(incident: &'a Incident) -> Cause<'a> {
        Cause {
            worst: incident,
            sum_us: incident.sum_us,
            times: incident.times,
            first_at: incident.start_ms(),
            last_at: incident.at_ms,
        }
    }

    fn is_of(&self, incident: &Incident) -> bool {
        self.worst.rule == incident.rule && self.worst.subject == incident.subject
    }

    fn add(&mut self, incident: &'a Incident) {
        if incident.lasted_us > self.worst.lasted_us {
            self.worst = incident;
        }
        self.sum_us += incident.sum_us;
        self.times += incident.times;
        self.first_at = self.first_at.min(incident.start_ms());
        self.last_at = self.last_at.max(incident.at_ms);
    }

    /// Returns the time that clients waited for the cause, in microseconds, weighted.
    fn rank(&self) -> f64 {
        let is_felt = self.worst.subject != "unfelt";
        self.sum_us as f64 * self.worst.rule.weight() * if is_felt { 1.0 } else { 0.001 }
    }

    fn sentence(&self, time: impl Fn(u64) -> String) -> String {
        let (worst, at) = (self.worst, time(self.worst.start_ms()));
        let times =
            if self.times > 1 { format!("; {} times in this span", self.times) } else { String::new() };
        let workers = match worst.workers {
            0 | 1 => String::new(),
            workers => format!(", and the clients of {workers} workers waited"),
        };
        format!("At {at} {}{workers}{times}.", worst.title)
    }

    fn finding(&self, share: f64) -> Finding {
        let worst = self.worst;
        Finding {
            rule: worst.rule.name(),
            title: worst.title.clone(),
            share,
            lasted_ms: worst.lasted_us as f64 / 1_000.0,
            sum_ms: self.sum_us as f64 / 1_000.0,
            times: self.times.max(1),
            first_at: self.first_at,
            last_at: self.last_at,
            worst_from: worst.start_ms(),
            worst_at: worst.at_ms,
            evidence: worst.evidence.clone(),
            next_step: next_step(worst),
        }
    }
}

impl Findings {
    /// Returns the findings as text, for LATENCY DOCTOR.
    pub fn text(&self, time: impl Fn(u64) -> String) -> String {
        let mut text = format!("{}\n", self.sentence);
        for (index, finding) in self.findings.iter().enumerate() {
            let share = finding.share * 100.0;
            text += &format!(
                "\n{}. [{}] {}\n   {} {}, {:.1} ms in all, {share:.0}% of the waiting; last at {}\n",
                index + 1,
                finding.rule,
                finding.title,
                finding.times,
                if finding.times == 1 { "time" } else { "times" },
                finding.sum_ms,
                time(finding.last_at)
            );
            for evidence in &finding.evidence {
                text += &format!("   - {} ({})\n", evidence.what, evidence.command);
            }
            text += &format!("   Next: {}\n", finding.next_step);
        }
        text
    }
}

fn next_step(incident: &Incident) -> &'static str {
    match (incident.rule, incident.subject.as_str()) {
        (Rule::SlowCommand, "KEYS") => "SCAN finds keys in small steps.",
        (Rule::SlowCommand, "EVAL" | "EVALSHA" | "EVAL_RO" | "EVALSHA_RO" | "FCALL" | "FCALL_RO") => {
            "Divide the work of the script over several calls: all other commands wait while it runs."
        }
        (Rule::SlowCommand, _) => {
            "SLOWLOG GET shows the command with its arguments; make it work on less data at a time."
        }
        (Rule::LockWait, _) => {
            "A transaction, a script or a command on many keys locks the slots: spread the keys, or make it \
             shorter."
        }
        (Rule::SlowDisk, "unfelt") => {
            "The data since the last sync would be lost with the machine: look at what else uses the disk."
        }
        (Rule::SlowDisk, _) => {
            "Look at what else uses the disk (iostat, /proc/pressure/io); move 'appenddirname' to another \
             disk, or accept 'appendfsync everysec'."
        }
        (Rule::CpuPressure, _) => {
            "Give the server its own CPUs, or fewer workers ('threads'); 'evenkeel-doctor' names the other \
             processes."
        }
        (Rule::Throttled, _) => "Raise the CPU limit of the control group, or lower the number of workers.",
        (Rule::MemoryPressure, _) => {
            "Give the machine or the control group more memory, set 'maxmemory', and turn swap off."
        }
        (Rule::ClientStorm, _) => "Let the clients keep their connections, in a pool.",
        (Rule::Refused, "maxclients") => {
            "Find the clients that do not close their connections (CLIENT LIST), or raise 'maxclients'."
        }
        (Rule::Refused, _) => "Repair the disk; the server log names the error.",
        (Rule::Background, "eviction") => {
            "The data outgrow 'maxmemory': raise it, or let keys expire earlier."
        }
        (Rule::Background, "removing expired keys") => {
            "Many keys expire at the same moment: add a random time to their deadlines."
        }
        (Rule::Background, _) => "INFO workers has the time by stage; the server log may name the cause.",
        (Rule::LongTurn, _) => {
            "Some clients send long pipelines or large values: split them, or look for them with CLIENT LIST."
        }
        (Rule::Running, _) => {
            "A script that runs for long ends by SCRIPT KILL or FUNCTION KILL; 'evenkeel-doctor' shows the \
             worker's stack."
        }
        (Rule::Stall, _) => {
            "The thread was stopped (a debugger, a virtual machine that was paused), or waited in the \
             kernel: run 'evenkeel-doctor' as root while it happens."
        }
        (Rule::Paused, _) => "CLIENT UNPAUSE ends a pause.",
        (Rule::Loading, _) => "Wait for the end; INFO persistence has the progress.",
        (Rule::Saturated, _) => {
            "More workers ('threads') or machines; pipelines of clients make each command cheaper."
        }
        (Rule::ReplicaLag, _) => "Look at the replica, and at the network to it, before its buffer is full.",
    }
}

fn absent(rule: Rule) -> &'static str {
    match rule {
        Rule::SlowCommand => "no command took 10 ms by itself, and reached 'slowlog-log-slower-than'",
        Rule::LockWait => "no worker waited 10 ms for locks",
        Rule::SlowDisk => "no reply waited 20 ms for the append-only file",
        Rule::CpuPressure => "no worker waited for a CPU for long",
        Rule::Throttled => "no CPU limit of a control group took effect",
        Rule::MemoryPressure => "hardly any pages were read from disk",
        Rule::ClientStorm => "connections were kept",
        Rule::Refused => "no connection was refused, and writes were accepted",
        Rule::Background => "eviction, expiry and compaction took less than 20% of the workers' time",
        Rule::LongTurn => "no turn of a worker was filled with commands for 10 ms",
        Rule::Running => "no turn lasted beyond a second",
        Rule::Stall => "no worker stood still",
        Rule::Paused => "commands were not paused",
        Rule::Loading => "no data were loaded",
        Rule::Saturated => "the workers had time left",
        Rule::ReplicaLag => "no replica was 64 MiB behind",
    }
}
