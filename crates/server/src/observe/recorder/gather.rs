//! A row of the recorder, from the counters of all threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenkeel_history::columns::conditions;
use evenkeel_history::{Columns, EventKind, FINE_MS, Row};

use super::FAMILIES;
use super::machine::{Machine, RunQueues};
use crate::observe::info::latencies_of;
use crate::observe::process;
use crate::observe::stats::{Latencies, Stage, Stats};
use crate::server::Server;
use evenkeel_command::table::table;
use evenkeel_config::Fsync;
use evenkeel_core::blockers::Blockers;
use evenkeel_persist::PersistJob;
use evenkeel_replication::link::Phase;
use evenkeel_runtime::clock;

/// A row that covers more, as after the machine slept, counts as this long.
const COVERED_MAX: Duration = Duration::from_secs(60);

/// Turns counters into differences; see the module's text.
pub(super) struct Gatherer {
    columns: Arc<Columns>,
    /// The counters of sums as they were, by column.
    totals: Vec<u64>,
    /// The last row: gauges that are read once a second stay as they were.
    row: Row,
    last: Instant,
    commands: Vec<CommandSeen>,
    machine: Machine,
    run_queues: RunQueues,
    jobs: JobTimes,
    was_replica: bool,
}

/// A command's counters at the end of the second before.
#[derive(Default)]
struct CommandSeen {
    calls: u64,
    ticks: u64,
    /// Absent for a command without latencies, as most commands are.
    latencies: Option<Box<Latencies>>,
}

/// Start of running jobs.
#[derive(Default)]
struct JobTimes {
    snapshot: Option<Instant>,
    rewrite: Option<Instant>,
    full_sync: Option<Instant>,
}

impl Gatherer {
    /// Starts with the present counters.
    pub(super) fn from_now(server: &Server) -> Gatherer {
        let mut gatherer = Gatherer::at_start(server);
        let mut row = gatherer.row(server, clock::unix_ms(), true);
        gatherer.add_commands(server, &mut row);
        gatherer
    }

    /// Starts with the counters of a server that has just been started.
    pub(super) fn at_start(server: &Server) -> Gatherer {
        let columns = server.recorder.columns().clone();
        let width = columns.schema.len();
        let machine = Machine::default();
        Gatherer {
            totals: totals_at_start(&columns, &machine),
            columns,
            row: Row::zeros(width),
            last: Instant::now(),
            commands: table().rows().iter().map(|_| CommandSeen::default()).collect(),
            machine,
            run_queues: RunQueues::default(),
            jobs: JobTimes::default(),
            was_replica: server.replication.is_replica(),
        }
    }

    /// Returns the row since the last call. At the end of a second, it has the values that are read once a
    /// second.
    pub(super) fn row(&mut self, server: &Server, now_ms: u64, ends_second: bool) -> Row {
        let now = Instant::now();
        let covered = now.duration_since(std::mem::replace(&mut self.last, now)).min(COVERED_MAX);
        (self.row.at_ms, self.row.covered_ms) = (now_ms, (covered.as_millis() as u64).max(1));
        self.counters(server);
        self.disk(server);
        self.workers(server, covered);
        if ends_second {
            self.once_a_second(server);
        } else {
            self.without_sums_of_seconds();
        }
        self.row.clone()
    }

    /// Sets a column to the difference of a counter, which CONFIG RESETSTAT may have reset.
    fn sum(&mut self, column: usize, total: u64) {
        let before = std::mem::replace(&mut self.totals[column], total);
        self.row.values[column] = if total < before { total } else { total - before };
    }

    fn set(&mut self, column: usize, value: u64) {
        self.row.values[column] = value;
    }

    fn counters(&mut self, server: &Server) {
        let of = |counter: fn(&Stats) -> &AtomicU64| -> u64 {
            server.stats.iter().map(|stats| counter(stats).load(Relaxed)).sum()
        };
        let (columns, process) = (self.columns.clone(), process::usage());
        self.sum(columns.commands, of(|stats| &stats.commands_run));
        self.sum(columns.errors, of(|stats| &stats.errors));
        self.sum(columns.bytes_in, of(|stats| &stats.net_in));
        self.sum(columns.bytes_out, of(|stats| &stats.net_out));
        self.sum(columns.accepted, of(|stats| &stats.connections));
        self.sum(columns.rejected, server.hub.rejected_connections.load(Relaxed));
        self.sum(columns.cpu_us, process.cpu.as_micros() as u64);
        self.sum(columns.major_faults, process.major_faults);
        self.set(columns.used_bytes, evenkeel_store::memory::used() as u64);
        self.set(columns.journal_unread_bytes, server.core.keyspace.journal.unread() as u64);
        self.set(columns.conditions, conditions_of(server));
    }

    fn disk(&mut self, server: &Server) {
        let metrics = &server.persist.aof.metrics;
        self.set(self.columns.write_max_us, metrics.recent_writes.take_us());
        self.set(self.columns.sync_max_us, metrics.recent_syncs.take_us());
    }

    fn workers(&mut self, server: &Server, covered: Duration) {
        let (mut longest, mut queued) = (0, 0);
        let columns = self.columns.clone();
        for (index, worker) in columns.workers.iter().enumerate() {
            let stats = &server.stats[index];
            let mut busy_us = 0;
            for (stage, &column) in Stage::ALL.into_iter().zip(&worker.stages) {
                if stage != Stage::Idle {
                    self.sum(column, clock::us(stats.stage(stage)));
                    busy_us += self.row.values[column];
                }
            }
            let running_us = match stats.turn_began.load(Relaxed) {
                0 => 0,
                began => clock::us(clock::ticks().saturating_sub(began)),
            };
            // A worker records a wait for events when it ends; so the time without any other stage is idle,
            // but for a turn whose stages are not recorded yet.
            let covered_us = covered.as_micros() as u64;
            let idle_us = covered_us.saturating_sub(busy_us.max(running_us.min(covered_us)));
            self.set(worker.stages[Stage::Idle as usize], if clock::is_accounting() { idle_us } else { 0 });
            let ended_us = clock::us(stats.take_longest_turn());
            self.set(worker.turn_ended_us, ended_us);
            self.set(worker.turn_max_us, ended_us.max(running_us));
            longest = ended_us.max(running_us).max(longest);
            self.sum(worker.run_queue_us, self.run_queues.waited_us(index));
            queued += self.row.values[worker.run_queue_us];
        }
        self.set(self.columns.turn_max_us, longest);
        self.set(self.columns.run_queue_us, queued);
    }

    /// Reads values that cost more, or change slowly.
    fn once_a_second(&mut self, server: &Server) {
        let columns = self.columns.clone();
        self.run_queues.find(server.core.workers.count());
        let keys = server.core.keyspace.total();
        self.sum(columns.evicted, keys.evicted);
        self.sum(columns.expired, keys.expired);
        self.sum(columns.hits, keys.hits);
        self.sum(columns.misses, keys.misses);
        let slow = server.commandlog.recorded(super::CommandLogKind::Slow);
        self.sum(columns.slow_commands, slow);
        let machine = self.machine.read();
        self.sum(columns.throttled_us, machine.throttled_us);
        self.sum(columns.pressure_cpu_us, machine.pressure_cpu_us);
        self.sum(columns.pressure_memory_us, machine.pressure_memory_us);
        self.sum(columns.pressure_io_us, machine.pressure_io_us);
        let clients = server.hub.clients.totals();
        self.set(columns.clients, clients.count as u64);
        self.set(columns.blocked_clients, clients.blocked as u64);
        self.set(columns.resident_bytes, process::resident_bytes());
        self.set(columns.maxmemory_bytes, server.core.settings().maxmemory);
        self.set(columns.keys, server.sampler.keys());
        let replicas = server.replication.replicas.list();
        let slowest = replicas.iter().filter(|replica| replica.is_online()).map(|one| one.acked()).min();
        let offset = server.replication.stream().offset();
        self.set(columns.replicas, replicas.len() as u64);
        self.set(columns.replica_lag_bytes, slowest.map_or(0, |acked| offset.saturating_sub(acked)));
    }

    /// Clears the sums that only the last row of a second has.
    fn without_sums_of_seconds(&mut self) {
        let columns = &self.columns;
        for column in [
            columns.evicted,
            columns.expired,
            columns.hits,
            columns.misses,
            columns.slow_commands,
            columns.throttled_us,
            columns.pressure_cpu_us,
            columns.pressure_memory_us,
            columns.pressure_io_us,
        ] {
            self.row.values[column] = 0;
        }
    }

    /// Adds the commands of the second to its row: calls, time and percentiles by family.
    pub(super) fn add_commands(&mut self, server: &Server, second: &mut Row) {
        let mut families: Vec<(u64, u64, Latencies)> = FAMILIES.iter().map(|_| Default::default()).collect();
        for (index, (seen, row)) in self.commands.iter_mut().zip(table().rows()).enumerate() {
            let added = seen.follow(server, index);
            let family = FAMILIES.iter().position(|(group, _)| *group == row.group);
            if let (Some((calls, us, latencies)), Some(family)) = (added, family) {
                families[family].0 += calls;
                families[family].1 += us;
                families[family].2.add(&latencies);
            }
        }
        let mut all = (0, 0, Latencies::default());
        for (columns, family) in self.columns.families.iter().zip(&families) {
            all = (all.0 + family.0, all.1 + family.1, {
                all.2.add(&family.2);
                all.2
            });
            set_family(second, columns, family);
        }
        set_family(second, &self.columns.all, &all);
    }

    /// Records the jobs that have ended, and a change of the role.
    pub(super) fn events(&mut self, server: &Server) {
        let now = self.row.values[self.columns.conditions];
        let is = |condition| now & condition != 0;
        let recorder = &server.recorder;
        let state = server.persist.state();
        if let Some(took) = ended(&mut self.jobs.snapshot, is(conditions::SNAPSHOT)) {
            let result = if state.last_ok { "ended" } else { "failed" };
            recorder.record(EventKind::Snapshot, Some(took), format!("A snapshot {result}"));
        }
        if let Some(took) = ended(&mut self.jobs.rewrite, is(conditions::REWRITE)) {
            let result = if state.rewrites_failed == 0 { "ended" } else { "failed" };
            recorder.record(
                EventKind::Rewrite,
                Some(took),
                format!("A rewrite of the append-only file {result}"),
            );
        }
        if let Some(took) = ended(&mut self.jobs.full_sync, is(conditions::FULL_SYNC)) {
            recorder.record(EventKind::FullSync, Some(took), "A full sync of replicas ended".to_owned());
        }
        if std::mem::replace(&mut self.was_replica, is(conditions::REPLICA)) != is(conditions::REPLICA) {
            let role = if is(conditions::REPLICA) { "a replica" } else { "a primary" };
            recorder.record(EventKind::Role, None, format!("The server became {role}"));
        }
    }
}

impl CommandSeen {
    /// Returns the calls, microseconds and latencies since the last call; `None`: there are none.
    fn follow(&mut self, server: &Server, index: usize) -> Option<(u64, u64, Latencies)> {
        let (mut calls, mut ticks) = (0, 0);
        for stats in &server.stats {
            calls += stats.commands[index].calls.load(Relaxed);
            ticks += stats.commands[index].ticks.load(Relaxed);
        }
        let (calls_before, ticks_before) =
            (std::mem::replace(&mut self.calls, calls), std::mem::replace(&mut self.ticks, ticks));
        if calls == calls_before {
            return None;
        }
        let since = |now: u64, before: u64| if now < before { now } else { now - before };
        let (added, us) = (since(calls, calls_before), clock::us(since(ticks, ticks_before)));
        let latencies = latencies_of(server, index);
        let since = match &self.latencies {
            Some(before) => latencies.since(before),
            None => latencies.clone(),
        };
        self.latencies = Some(Box::new(latencies));
        Some((added, us, since))
    }
}

/// Returns the counters of a server that has just been started: those of the machine are older.
fn totals_at_start(columns: &Columns, machine: &Machine) -> Vec<u64> {
    let (mut totals, counters) = (vec![0; columns.schema.len()], machine.read());
    totals[columns.throttled_us] = counters.throttled_us;
    totals[columns.pressure_cpu_us] = counters.pressure_cpu_us;
    totals[columns.pressure_memory_us] = counters.pressure_memory_us;
    totals[columns.pressure_io_us] = counters.pressure_io_us;
    totals
}

fn set_family(
    second: &mut Row,
    columns: &evenkeel_history::columns::FamilyColumns,
    (calls, us, latencies): &(u64, u64, Latencies),
) {
    second.values[columns.calls] = *calls;
    second.values[columns.us] = *us;
    if latencies.count() > 0 {
        let ns = |us: f64| (us * 1_000.0).round() as u64;
        second.values[columns.p50_ns] = ns(latencies.percentile_us(50.0));
        second.values[columns.p99_ns] = ns(latencies.percentile_us(99.0));
        second.values[columns.max_ns] = ns(latencies.longest_us());
    }
}

/// Follows whether a job runs. Returns the time that it took, if it has ended.
fn ended(since: &mut Option<Instant>, runs: bool) -> Option<Duration> {
    match (runs, *since) {
        (true, None) => {
            *since = Some(Instant::now());
            None
        }
        (false, Some(began)) => {
            *since = None;
            Some(began.elapsed().max(Duration::from_millis(FINE_MS)))
        }
        _ => None,
    }
}

fn conditions_of(server: &Server) -> u64 {
    let (settings, blockers) = (server.core.settings(), server.core.blockers.any());
    let state = server.persist.state();
    let runs = |job| state.all().any(|running| running.is(job));
    let is_replica = server.replication.is_replica();
    let is_down = || server.replication.link.phase() != Phase::Connected;
    let is_always = || settings.appendfsync == Fsync::Always && server.persist.aof.is_on();
    [
        (conditions::SNAPSHOT, runs(PersistJob::Snapshot)),
        (conditions::REWRITE, runs(PersistJob::Base)),
        (conditions::FULL_SYNC, runs(PersistJob::Sync)),
        (conditions::LOADING, blockers.contains(Blockers::LOADING)),
        (conditions::PAUSED, server.core.pause.is_active(clock::unix_ms())),
        (conditions::CROWDED, blockers.contains(Blockers::CROWDED)),
        (conditions::ALWAYS, is_always()),
        (conditions::NO_LOG, blockers.contains(Blockers::NO_LOG)),
        (conditions::REPLICA, is_replica),
        (conditions::LINK_DOWN, is_replica && is_down()),
    ]
    .into_iter()
    .filter(|(_, is_so)| *is_so)
    .fold(0, |flags, (condition, _)| flags | condition)
}
