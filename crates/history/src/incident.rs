//! An incident: a time in which clients waited, with its cause.

use serde::{Deserialize, Serialize};

/// Causes that the detector tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// A command or a script that takes long by itself.
    SlowCommand,
    /// A slot, or the whole keyspace, was locked by other work.
    LockWait,
    /// The disk of the append-only file.
    SlowDisk,
    /// Workers waited for a CPU.
    CpuPressure,
    /// The CPU limit of the control group.
    Throttled,
    /// Pages had to be read from disk.
    MemoryPressure,
    /// Connections that are made for a few commands each.
    ClientStorm,
    /// Connections or writes were refused.
    Refused,
    /// Eviction, expiry, compaction.
    Background,
    /// Many commands, or large ones, in a single turn of a worker.
    LongTurn,
    /// A turn of a worker that is not over. Its cause is known when it ends.
    Running,
    /// A worker neither computed nor waited for a CPU.
    Stall,
    /// CLIENT PAUSE, or a failover.
    Paused,
    Loading,
    /// All workers were busy all the time.
    Saturated,
    /// A replica is far behind.
    ReplicaLag,
}

impl Rule {
    pub const ALL: [Rule; 16] = [
        Rule::SlowCommand,
        Rule::LockWait,
        Rule::SlowDisk,
        Rule::CpuPressure,
        Rule::Throttled,
        Rule::MemoryPressure,
        Rule::ClientStorm,
        Rule::Refused,
        Rule::Background,
        Rule::LongTurn,
        Rule::Running,
        Rule::Stall,
        Rule::Paused,
        Rule::Loading,
        Rule::Saturated,
        Rule::ReplicaLag,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Rule::SlowCommand => "slow-command",
            Rule::LockWait => "lock-wait",
            Rule::SlowDisk => "slow-disk",
            Rule::CpuPressure => "cpu-pressure",
            Rule::Throttled => "throttled",
            Rule::MemoryPressure => "memory-pressure",
            Rule::ClientStorm => "client-storm",
            Rule::Refused => "refused",
            Rule::Background => "background",
            Rule::LongTurn => "long-turn",
            Rule::Running => "running",
            Rule::Stall => "stall",
            Rule::Paused => "paused",
            Rule::Loading => "loading",
            Rule::Saturated => "saturated",
            Rule::ReplicaLag => "replica-lag",
        }
    }

    /// Whether it may go on for seconds, so that its seconds are a single incident.
    pub(crate) fn is_steady(self) -> bool {
        !matches!(self, Rule::SlowCommand | Rule::LockWait | Rule::LongTurn | Rule::Stall)
    }

    /// How much a client waits in a second of it, relative to a client that waits the whole second. A server
    /// whose workers are all busy still answers within a few turns, and a replica that is behind delays no
    /// client of its primary.
    pub(crate) fn weight(self) -> f64 {
        match self {
            Rule::Saturated => 0.02,
            // The turn counts under its cause as soon as it is over.
            Rule::Running => 0.02,
            Rule::ReplicaLag => 0.005,
            Rule::Background | Rule::CpuPressure | Rule::Throttled | Rule::MemoryPressure => 0.3,
            Rule::ClientStorm => 0.3,
            _ => 1.0,
        }
    }
}

/// A measurement that supports a finding, with a command that shows the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    pub what: String,
    pub command: String,
}

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    pub rule: Rule,
    /// The cause without numbers: equal for the same cause at another time.
    pub subject: String,
    /// A sentence about the longest wait, without a full stop and without its time.
    pub title: String,
    /// End of the last wait.
    pub at_ms: u64,
    /// Longest wait, and all waits together.
    pub lasted_us: u64,
    pub sum_us: u64,
    pub times: u64,
    /// Workers whose clients waited.
    pub workers: u64,
    pub evidence: Vec<Evidence>,
    pub(crate) start_ms: u64,
}

impl Incident {
    /// An incident without a time.
    pub(crate) fn new(rule: Rule, subject: impl Into<String>, title: String) -> Incident {
        Incident {
            rule,
            subject: subject.into(),
            title,
            at_ms: 0,
            lasted_us: 0,
            sum_us: 0,
            times: 1,
            workers: 0,
            evidence: Vec::new(),
            start_ms: 0,
        }
    }

    /// Sets the end and the length.
    pub(crate) fn lasted(mut self, at_ms: u64, us: u64) -> Incident {
        (self.at_ms, self.lasted_us, self.sum_us) = (at_ms, us, us);
        self.start_ms = at_ms.saturating_sub(us.div_ceil(1_000));
        self
    }

    pub(crate) fn workers(mut self, workers: u64) -> Incident {
        self.workers = workers;
        self
    }

    pub(crate) fn evidence(mut self, what: String, command: &str) -> Incident {
        self.evidence.push(Evidence { what, command: command.to_owned() });
        self
    }

    pub fn start_ms(&self) -> u64 {
        self.start_ms
    }

    /// Adds later waits with the same cause.
    pub(crate) fn extend(&mut self, later: Incident) {
        if later.lasted_us > self.lasted_us {
            (self.title, self.evidence) = (later.title, later.evidence);
            self.lasted_us = later.lasted_us;
        }
        self.start_ms = self.start_ms.min(later.start_ms);
        self.at_ms = self.at_ms.max(later.at_ms);
        self.sum_us = self.sum_us.saturating_add(later.sum_us);
        self.times += later.times;
        self.workers = self.workers.max(later.workers);
    }
}
