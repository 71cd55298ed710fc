//! From the rows of a second to the incidents in it, each with its cause.
//!
//! Clients wait while a worker's turn is long, while the append-only file is slow and replies depend on it,
//! and while commands are paused or refused. The detector takes each such wait, and asks the other columns of
//! the same time for the cause: the stage in which the worker spent the turn, a command in the slow log, the
//! run queue, the disk. Causes that make everything a little slower, such as eviction or a storm of
//! connections, count by the second.

use std::collections::VecDeque;

use crate::columns::{Columns, WorkerColumns, conditions};
use crate::history::FINE_MS;
use crate::incident::{Incident, Rule};
use crate::ring::Row;

/// A turn, or a command, from which clients notice.
const LONG_US: u64 = 10_000;
/// A turn that is not over, from which it is told before its end.
const RUNNING_US: u64 = 1_000_000;
/// A write or sync of the append-only file that replies wait for, from which clients notice; and a sync that
/// no reply waits for, from which the disk is worth a word.
const DISK_US: u64 = 20_000;
const DISK_UNFELT_US: u64 = 1_000_000;

/// Fine rows kept for the cause of a turn that ends now.
const ROWS_MAX: usize = 400;
/// Time after which an entry of the slow log explains no turn.
const SLOW_AGE_MS: u64 = 20_000;

/// Share of a long turn that its cause explains.
const EXPLAINS: f64 = 0.5;
/// Share of the workers' time in a second, from which a kind of work counts as a cause.
const SHARE_MIN: f64 = 0.2;
/// Idle share of the workers, below which they are saturated.
const IDLE_MIN: f64 = 0.05;
/// Connections per second of a storm, and commands per connection.
const STORM_PER_S: u64 = 200;
const STORM_COMMANDS: u64 = 10;
const THROTTLED_MIN: f64 = 0.05;
const PRESSURE_MIN: f64 = 0.1;
const MAJOR_FAULTS_MIN: u64 = 20;
const LAG_BYTES: u64 = 64 << 20;

/// A command of the slow log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slow {
    /// Its end.
    pub at_ms: u64,
    pub us: u64,
    /// The part of it in which it waited for locks.
    pub lock_wait_us: u64,
    /// `EVAL`, `CLIENT KILL`.
    pub command: String,
    /// The command with its arguments, truncated.
    pub shown: String,
    pub client: String,
}

impl Slow {
    /// Returns the time that is the command's own.
    fn own_us(&self) -> u64 {
        self.us.saturating_sub(self.lock_wait_us)
    }

    fn start_ms(&self) -> u64 {
        self.at_ms.saturating_sub(self.us / 1_000)
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Detector {
    columns: Columns,
    stages: Vec<String>,
    rows: VecDeque<Row>,
    slow: VecDeque<Slow>,
    /// Duration of the call of the append-only file that the last row ended with.
    disk_before_us: u64,
}

impl Detector {
    /// `stages`: the names of the stages, as given to [`Columns::new`].
    pub fn new(columns: Columns, stages: &[&str]) -> Detector {
        Detector {
            columns,
            stages: stages.iter().map(|&stage| stage.to_owned()).collect(),
            rows: VecDeque::new(),
            slow: VecDeque::new(),
            disk_before_us: 0,
        }
    }

    /// Returns the incidents of a second. `fine`: its rows; `second`: the same as a single row; `slow`: new
    /// entries of the slow log.
    pub fn second(&mut self, fine: &[Row], second: &Row, slow: Vec<Slow>) -> Vec<Incident> {
        let mut found = Vec::new();
        for incident in slow.iter().filter(|slow| slow.own_us() >= LONG_US).map(of_slow) {
            add(&mut found, incident);
        }
        self.slow.extend(slow);
        for row in fine {
            if self.rows.len() == ROWS_MAX {
                self.rows.pop_front();
            }
            self.rows.push_back(row.clone());
            self.turns(row).into_iter().for_each(|incident| add(&mut found, incident));
        }
        found.extend(self.disk(fine, second));
        found.extend(self.by_the_second(second));
        let oldest_ms = second.at_ms.saturating_sub(SLOW_AGE_MS);
        self.slow.retain(|slow| slow.at_ms >= oldest_ms);
        found
    }

    /// Returns an incident per worker whose long turn ended in this row.
    fn turns(&self, row: &Row) -> Vec<Incident> {
        let ended = |(index, worker): (usize, &WorkerColumns)| {
            let us = row.values[worker.turn_ended_us];
            (us >= LONG_US).then(|| self.cause_of_turn(index, row.at_ms, us).workers(1))
        };
        self.columns.workers.iter().enumerate().filter_map(ended).collect()
    }

    fn cause_of_turn(&self, worker: usize, at_ms: u64, us: u64) -> Incident {
        let turn = self.turn(worker, at_ms, us);
        let incident = None
            .or_else(|| self.without_cpu(&turn))
            .or_else(|| self.slow_command(&turn))
            .unwrap_or_else(|| self.by_stage(&turn));
        incident.lasted(at_ms, us)
    }

    fn turn(&self, worker: usize, at_ms: u64, us: u64) -> Turn {
        let columns = &self.columns.workers[worker];
        let from_ms = at_ms.saturating_sub(us / 1_000 + FINE_MS);
        let mut turn = Turn {
            worker,
            from_ms,
            at_ms,
            us,
            stages_us: vec![0; columns.stages.len()],
            run_queue_us: 0,
            throttled_us: 0,
            major_faults: 0,
            commands: 0,
        };
        for row in self.rows.iter().rev().take_while(|row| row.at_ms > from_ms) {
            let values = &row.values;
            turn.run_queue_us += values[columns.run_queue_us];
            turn.throttled_us += values[self.columns.throttled_us];
            turn.major_faults += values[self.columns.major_faults];
            turn.commands += values[self.columns.commands];
            turn.stages_us.iter_mut().zip(&columns.stages).for_each(|(sum, &stage)| *sum += values[stage]);
        }
        turn
    }

    fn without_cpu(&self, turn: &Turn) -> Option<Incident> {
        if !turn.is_explained_by(turn.run_queue_us) {
            return None;
        }
        let waited = millis(turn.run_queue_us.min(turn.us));
        let (rule, title) = if turn.is_explained_by(turn.throttled_us) {
            let title = format!(
                "worker {} did not run for {waited}: the CPU limit of its control group was used up",
                turn.worker
            );
            (Rule::Throttled, title)
        } else {
            let title =
                format!("worker {} waited {waited} for a CPU: other threads had the CPUs", turn.worker);
            (Rule::CpuPressure, title)
        };
        let of = millis(turn.us);
        let evidence = format!("{waited} of a turn of {of} in the run queue");
        Some(Incident::new(rule, "", title).evidence(evidence, "cat /proc/PID/task/*/schedstat"))
    }

    /// Returns the command whose time explains the turn, on this worker or on another thread for whose locks
    /// this worker waited.
    fn slow_command(&self, turn: &Turn) -> Option<Incident> {
        let overlaps =
            |slow: &&Slow| slow.at_ms + FINE_MS >= turn.from_ms && slow.start_ms() <= turn.at_ms + FINE_MS;
        let longest = self.slow.iter().filter(overlaps).max_by_key(|slow| slow.own_us())?;
        turn.is_explained_by(longest.own_us()).then(|| Incident { times: 0, ..of_slow(longest) })
    }

    fn by_stage(&self, turn: &Turn) -> Incident {
        let stages = self.stages.iter().zip(&turn.stages_us).filter(|(name, _)| *name != "idle");
        let busiest = stages.max_by_key(|(_, us)| **us).map_or(("", 0), |(name, us)| (name.as_str(), *us));
        let (stage, us) = if turn.is_explained_by(busiest.1) { busiest } else { ("", 0) };
        let (whole, part, worker) = (millis(turn.us), millis(us.min(turn.us)), turn.worker);
        let incident = match stage {
            "" if turn.major_faults >= MAJOR_FAULTS_MIN => Incident::new(
                Rule::MemoryPressure,
                "",
                format!("worker {worker} stood still for {whole} while pages were read from disk"),
            )
            .evidence(format!("{} major page faults", turn.major_faults), "cat /proc/PID/stat"),
            "" => Incident::new(
                Rule::Stall,
                "",
                format!(
                    "worker {worker} stood still for {whole}, without work and without waiting for a CPU"
                ),
            ),
            "lock_wait" => Incident::new(
                Rule::LockWait,
                "",
                format!("worker {worker} waited {part} for slots that other threads had locked"),
            ),
            "expire" | "evict" | "purge" | "compact" | "other" => Incident::new(
                Rule::Background,
                work(stage),
                format!("{} took {part} of a turn of worker {worker}", work(stage)),
            ),
            "accept" => Incident::new(
                Rule::ClientStorm,
                "",
                format!("worker {worker} accepted connections and shook hands for {part} in a turn"),
            ),
            "execute" => Incident::new(
                Rule::LongTurn,
                stage,
                format!("worker {worker} ran commands for {part} in a turn, none of them slow by itself"),
            )
            .evidence(format!("{} commands in this time", turn.commands), "INFO commandstats"),
            _ => Incident::new(
                Rule::LongTurn,
                stage,
                format!("worker {worker} spent {part} of a turn in the stage '{stage}'"),
            ),
        };
        incident.evidence(format!("a turn of {whole}; stage '{stage}' took {part}"), "INFO workers")
    }

    /// Returns an incident if the append-only file was slow. Seconds that follow each other are joined later.
    fn disk(&mut self, fine: &[Row], second: &Row) -> Option<Incident> {
        let columns = &self.columns;
        let flags = second.values[columns.conditions];
        let is_crowded = flags & conditions::CROWDED != 0;
        let is_felt = is_crowded || flags & conditions::ALWAYS != 0;
        let least = if is_felt { DISK_US } else { DISK_UNFELT_US };
        let call_us = |row: &Row| row.values[columns.write_max_us].max(row.values[columns.sync_max_us]);
        let (mut longest, mut sum_us, mut times, mut at_ms) = (0, 0, 0, 0);
        for row in fine {
            let us = call_us(row);
            if us >= least {
                let is_same = self.disk_before_us >= least && us > self.disk_before_us;
                times += u64::from(!is_same);
                sum_us += if is_same { us - self.disk_before_us } else { us };
                at_ms = row.at_ms;
                longest = us.max(longest);
            }
            self.disk_before_us = us;
        }
        if longest == 0 && !is_crowded {
            return None;
        }
        let (sync, write) = (second.values[columns.sync_max_us], second.values[columns.write_max_us]);
        let call = if sync >= write { "a sync" } else { "a write" };
        let took = millis(longest);
        let (subject, title) = if is_crowded {
            let unread = second.values[columns.journal_unread_bytes] >> 20;
            let title =
                format!("writes waited: {unread} MiB of the journal were not in the append-only file");
            ("crowded", title)
        } else if is_felt {
            ("felt", format!("replies to writes waited {took} for {call} of the append-only file"))
        } else {
            ("unfelt", format!("{call} of the append-only file took {took}; no client waited for it"))
        };
        let sum_us = if is_crowded { second.covered_ms * 1_000 } else { sum_us };
        let incident = Incident::new(Rule::SlowDisk, subject, title)
            .lasted(if is_crowded { second.at_ms } else { at_ms }, longest.max(1))
            .evidence(format!("{call} of the append-only file took {took}"), "INFO persistence");
        Some(Incident { sum_us, times, workers: columns.workers.len() as u64, ..incident })
    }

    /// Returns causes that count by the second.
    fn by_the_second(&self, second: &Row) -> Vec<Incident> {
        let view = Second { columns: &self.columns, stages: &self.stages, row: second };
        let mut found = Vec::new();
        found.extend(view.running());
        found.extend(view.conditions());
        found.extend(view.refused());
        found.extend(view.machine());
        found.extend(view.storm());
        found.extend(view.background());
        found.extend(view.lag());
        // A storm, eviction or a lack of CPUs explains why the workers are busy.
        if found.is_empty() {
            found.extend(view.saturated());
        }
        let us = second.covered_ms * 1_000;
        found.into_iter().map(|incident| incident.lasted(second.at_ms, us)).collect()
    }
}

/// A long turn of a worker, with the sums of the rows that it overlaps.
struct Turn {
    worker: usize,
    from_ms: u64,
    at_ms: u64,
    us: u64,
    stages_us: Vec<u64>,
    run_queue_us: u64,
    throttled_us: u64,
    major_faults: u64,
    commands: u64,
}

impl Turn {
    fn is_explained_by(&self, us: u64) -> bool {
        us as f64 >= self.us as f64 * EXPLAINS
    }
}

/// A second as a row.
struct Second<'a> {
    columns: &'a Columns,
    stages: &'a [String],
    row: &'a Row,
}

impl Second<'_> {
    fn value(&self, column: usize) -> u64 {
        self.row.values[column]
    }

    fn is(&self, condition: u64) -> bool {
        self.value(self.columns.conditions) & condition != 0
    }

    /// Returns the share of a second.
    fn of_time(&self, us: u64) -> f64 {
        us as f64 / (self.row.covered_ms.max(1) * 1_000) as f64
    }

    /// Returns the share of the time of all workers.
    fn of_workers(&self, us: u64) -> f64 {
        self.of_time(us) / self.columns.workers.len().max(1) as f64
    }

    /// Returns the share of the workers' time in a stage.
    fn stage(&self, stage: &str) -> f64 {
        let Some(at) = self.stages.iter().position(|name| name == stage) else { return 0.0 };
        self.of_workers(self.columns.workers.iter().map(|worker| self.value(worker.stages[at])).sum())
    }

    fn busy(&self) -> f64 {
        (1.0 - self.stage("idle")).clamp(0.0, 1.0)
    }

    /// Returns an incident if a worker is in a turn that began before this second.
    fn running(&self) -> Option<Incident> {
        let turn = |worker: &WorkerColumns| {
            let (longest, ended) = (self.value(worker.turn_max_us), self.value(worker.turn_ended_us));
            if longest > ended { longest } else { 0 }
        };
        let turns = || self.columns.workers.iter().map(turn);
        let (worker, us) = turns().enumerate().max_by_key(|(_, us)| *us)?;
        let others = turns().filter(|us| *us >= RUNNING_US).count() as u64;
        (us >= RUNNING_US).then(|| {
            let title = format!("worker {worker} is in a turn that has lasted {} so far", millis(us));
            Incident::new(Rule::Running, "", title)
                .workers(others)
                .evidence("no stage of this turn is known before it ends".into(), "INFO debug")
        })
    }

    fn conditions(&self) -> Vec<Incident> {
        let mut found = Vec::new();
        if self.is(conditions::PAUSED) {
            let title = "CLIENT PAUSE or a failover delayed commands".to_owned();
            found.push(
                Incident::new(Rule::Paused, "", title).evidence("paused_actions".into(), "INFO clients"),
            );
        }
        if self.is(conditions::LOADING) {
            let title = "data were being loaded, and most commands were refused".to_owned();
            found
                .push(Incident::new(Rule::Loading, "", title).evidence("loading".into(), "INFO persistence"));
        }
        found
    }

    fn refused(&self) -> Vec<Incident> {
        let mut found = Vec::new();
        let rejected = self.value(self.columns.rejected);
        if rejected > 0 {
            let clients = self.value(self.columns.clients);
            let title = format!("{rejected} connections a second were refused: 'maxclients' was reached");
            let evidence = format!("{clients} clients");
            found.push(Incident::new(Rule::Refused, "maxclients", title).evidence(evidence, "INFO clients"));
        }
        if self.is(conditions::NO_LOG) {
            let title = "writes were refused: the append-only file cannot be written".to_owned();
            let evidence = "aof_last_write_status".to_owned();
            found.push(Incident::new(Rule::Refused, "aof", title).evidence(evidence, "INFO persistence"));
        }
        found
    }

    /// Returns causes in the machine: no CPU, or no memory.
    fn machine(&self) -> Vec<Incident> {
        let columns = self.columns;
        let mut found = Vec::new();
        let throttled = self.of_time(self.value(columns.throttled_us));
        let queued = self.of_workers(self.value(columns.run_queue_us));
        let queued_evidence = format!("{} of the workers' time in the run queue", percent(queued));
        if throttled >= THROTTLED_MIN {
            let title = format!(
                "the CPU limit of the control group stopped threads for {} of the time",
                percent(throttled.min(1.0))
            );
            let incident = Incident::new(Rule::Throttled, "", title);
            found.push(incident.evidence(queued_evidence, "cat /sys/fs/cgroup/GROUP/cpu.stat"));
        } else if queued >= SHARE_MIN {
            let title = format!("workers waited {} of their time for a CPU", percent(queued));
            let pressure = self.of_time(self.value(columns.pressure_cpu_us));
            let incident = Incident::new(Rule::CpuPressure, "", title)
                .evidence(queued_evidence, "cat /proc/PID/task/*/schedstat");
            let evidence = format!("pressure on the machine's CPUs: {}", percent(pressure));
            found.push(incident.evidence(evidence, "cat /proc/pressure/cpu"));
        }
        let (pressure, faults) =
            (self.of_time(self.value(columns.pressure_memory_us)), self.value(columns.major_faults));
        if pressure >= PRESSURE_MIN && faults >= MAJOR_FAULTS_MIN {
            let title = format!("the machine lacks memory: {faults} pages a second were read from disk");
            let evidence = format!("pressure on memory: {}", percent(pressure));
            let incident = Incident::new(Rule::MemoryPressure, "", title);
            found.push(incident.evidence(evidence, "cat /proc/pressure/memory"));
        }
        found
    }

    fn storm(&self) -> Option<Incident> {
        let (accepted, commands) = (self.value(self.columns.accepted), self.value(self.columns.commands));
        let per_second = accepted * 1_000 / self.row.covered_ms.max(1);
        // Most of their cost is the clients' and the kernel's: the workers need not be busy.
        let is_storm = per_second >= STORM_PER_S && commands < accepted * STORM_COMMANDS;
        is_storm.then(|| {
            let (accept, each) = (self.stage("accept"), commands as f64 / accepted as f64);
            let title =
                format!("clients made {per_second} connections a second, for {each:.1} commands each");
            Incident::new(Rule::ClientStorm, "", title)
                .evidence(
                    format!("accepting and handshakes took {} of the workers' time", percent(accept)),
                    "INFO workers",
                )
                .evidence(format!("{per_second} connections a second"), "INFO stats")
        })
    }

    fn background(&self) -> Vec<Incident> {
        let of = |stage: &&str| {
            let share = self.stage(stage);
            (share >= SHARE_MIN).then(|| {
                let title = format!("{} took {} of the workers' time", work(stage), percent(share));
                let incident = Incident::new(Rule::Background, work(stage), title);
                incident.evidence(format!("stage '{stage}': {}", percent(share)), "INFO workers")
            })
        };
        ["expire", "evict", "purge", "compact", "other"].iter().filter_map(of).collect()
    }

    fn lag(&self) -> Option<Incident> {
        let bytes = self.value(self.columns.replica_lag_bytes);
        (bytes >= LAG_BYTES).then(|| {
            let title = format!("the slowest replica is {} MiB behind", bytes >> 20);
            let evidence = format!("{bytes} bytes of the stream are not confirmed");
            Incident::new(Rule::ReplicaLag, "", title).evidence(evidence, "INFO replication")
        })
    }

    fn saturated(&self) -> Option<Incident> {
        // A long turn gets its cause when it ends.
        let is_in_turn = self.of_time(self.value(self.columns.turn_max_us)) >= EXPLAINS;
        if is_in_turn || self.busy() < 1.0 - IDLE_MIN {
            return None;
        }
        let mut stages: Vec<_> = self.stages.iter().map(|name| (name.as_str(), self.stage(name))).collect();
        stages.sort_by(|a, b| b.1.total_cmp(&a.1));
        let (stage, share) = *stages.first()?;
        let family = self.columns.families.iter().max_by_key(|family| self.value(family.us))?;
        let commands = self.value(self.columns.commands) * 1_000 / self.row.covered_ms.max(1);
        let title = format!(
            "all workers were busy {} of the time at {commands} commands a second; the stage '{stage}' \
             took {}",
            percent(self.busy()),
            percent(share)
        );
        let of_family = percent(self.of_workers(self.value(family.us)));
        let incident = Incident::new(Rule::Saturated, stage, title).evidence(
            format!("commands of the family '{}' took {of_family}", family.name),
            "INFO commandstats",
        );
        let all = stages.iter().take(4).map(|(name, share)| format!("{name} {}", percent(*share)));
        Some(incident.evidence(all.collect::<Vec<_>>().join(", "), "INFO workers"))
    }
}

fn of_slow(slow: &Slow) -> Incident {
    let title = format!("{} took {}", slow.command, millis(slow.own_us()));
    Incident::new(Rule::SlowCommand, slow.command.clone(), title)
        .lasted(slow.at_ms, slow.us)
        .evidence(format!("{} (client {}): {}", slow.shown, slow.client, millis(slow.us)), "SLOWLOG GET")
}

/// Adds an incident to those of the same cause in this second.
fn add(found: &mut Vec<Incident>, incident: Incident) {
    let is_same = |other: &&mut Incident| other.rule == incident.rule && other.subject == incident.subject;
    match found.iter_mut().find(is_same) {
        None => found.push(incident),
        Some(other) => join(other, incident),
    }
}

/// Joins two incidents of a cause in the same second. The turns that a slow command made long add no time to
/// it, but the workers that had them.
fn join(incident: &mut Incident, other: Incident) {
    let (workers, is_turn) = (incident.workers + other.workers, other.times == 0);
    let sum_us = incident.sum_us;
    incident.extend(other);
    incident.workers = workers;
    if is_turn {
        incident.sum_us = sum_us.max(incident.lasted_us);
    }
}

/// Names the background work of a stage.
fn work(stage: &str) -> &'static str {
    match stage {
        "expire" => "removing expired keys",
        "evict" => "eviction",
        "purge" => "giving memory back",
        "compact" => "compaction",
        _ => "timers and messages",
    }
}

fn millis(us: u64) -> String {
    let ms = us as f64 / 1_000.0;
    match ms {
        10_000.0.. => format!("{:.1} s", ms / 1_000.0),
        100.0.. => format!("{ms:.0} ms"),
        _ => format!("{ms:.1} ms"),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

#[cfg(test)]
mod tests;
