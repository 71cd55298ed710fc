use super::*;

const STAGES: [&str; 12] = [
    "accept",
    "read",
    "parse",
    "lock_wait",
    "execute",
    "write",
    "expire",
    "evict",
    "purge",
    "compact",
    "other",
    "idle",
];
const SECOND_US: u64 = 1_000_000;

/// A detector with two workers, and the rows of a second, in which the workers are idle.
struct Bench {
    detector: Detector,
    columns: Columns,
    rows: Vec<Row>,
    slow: Vec<Slow>,
    now_ms: u64,
}

impl Bench {
    fn new() -> Bench {
        let columns = Columns::new(2, &STAGES, &["string", "scripting"]);
        let detector = Detector::new(columns.clone(), &STAGES);
        let mut bench = Bench { detector, columns, rows: Vec::new(), slow: Vec::new(), now_ms: 1_000_000 };
        bench.begin();
        bench
    }

    fn begin(&mut self) {
        let width = self.columns.schema.len();
        self.rows = (1..=20)
            .map(|part| {
                let at_ms = self.now_ms + part * FINE_MS;
                let mut row = Row { at_ms, covered_ms: FINE_MS, values: vec![0; width] };
                self.columns
                    .workers
                    .iter()
                    .for_each(|worker| row.values[worker.stages[11]] = FINE_MS * 1_000);
                row
            })
            .collect();
        self.slow.clear();
    }

    fn set(&mut self, part: usize, column: impl Fn(&Columns) -> usize, value: u64) {
        self.rows[part].values[column(&self.columns)] = value;
    }

    fn set_all(&mut self, column: impl Fn(&Columns) -> usize, value: u64) {
        (0..20).for_each(|part| self.set(part, &column, value));
    }

    /// Moves time of both workers from the stage `idle` to another.
    fn busy(&mut self, stage: usize, share: f64) {
        for row in &mut self.rows {
            for worker in &self.columns.workers {
                let us = (FINE_MS as f64 * 1_000.0 * share) as u64;
                row.values[worker.stages[11]] -= us;
                row.values[worker.stages[stage]] += us;
            }
        }
    }

    /// Gives a worker a turn of `ms` that ends in a row, spent in a stage.
    fn turn(&mut self, worker: usize, part: usize, ms: u64, stage: Option<usize>) {
        self.set(part, |columns| columns.workers[worker].turn_ended_us, ms * 1_000);
        self.set(part, |columns| columns.workers[worker].stages[11], 0);
        if let Some(stage) = stage {
            self.set(part, |columns| columns.workers[worker].stages[stage], ms * 1_000);
        }
    }

    fn slow(&mut self, part: usize, command: &str, ms: u64, lock_wait_ms: u64) {
        self.slow.push(Slow {
            at_ms: self.rows[part].at_ms,
            us: ms * 1_000,
            lock_wait_us: lock_wait_ms * 1_000,
            command: command.into(),
            shown: format!("{command} x"),
            client: "127.0.0.1:1".into(),
        });
    }

    /// Ends the second; the next one begins as an idle one.
    fn second(&mut self) -> Vec<Incident> {
        let mut second = self.rows[0].clone();
        self.rows[1..].iter().for_each(|row| self.columns.schema.merge(&mut second, row));
        let found = self.detector.second(&self.rows, &second, self.slow.clone());
        self.now_ms += 1_000;
        self.begin();
        found
    }
}

fn rules(found: &[Incident]) -> Vec<Rule> {
    found.iter().map(|incident| incident.rule).collect()
}

#[test]
fn an_idle_server_has_no_incidents() {
    let mut bench = Bench::new();
    assert_eq!(bench.second(), []);
}

#[test]
fn a_slow_script_is_the_cause_of_all_long_turns() {
    let mut bench = Bench::new();
    bench.turn(0, 10, 250, Some(4));
    bench.turn(1, 10, 240, Some(3));
    bench.slow(10, "EVAL", 250, 0);
    bench.slow(10, "GET", 240, 239);
    let found = bench.second();
    assert_eq!(rules(&found), [Rule::SlowCommand], "{found:#?}");
    let incident = &found[0];
    assert_eq!((incident.subject.as_str(), incident.lasted_us, incident.sum_us), ("EVAL", 250_000, 250_000));
    assert_eq!((incident.times, incident.workers), (1, 2));
    assert_eq!(incident.title, "EVAL took 250 ms");
    assert!(incident.evidence[0].what.contains("EVAL x (client 127.0.0.1:1)"), "{incident:#?}");
}

#[test]
fn a_turn_that_began_in_the_second_before_has_its_cause() {
    let mut bench = Bench::new();
    bench.slow(18, "KEYS", 60, 0);
    assert_eq!(rules(&bench.second()), [Rule::SlowCommand]);
    bench.turn(0, 0, 110, Some(4));
    let found = bench.second();
    assert_eq!((rules(&found), found[0].subject.as_str()), (vec![Rule::SlowCommand], "KEYS"));
}

#[test]
fn slow_commands_of_the_same_name_are_added_up() {
    let mut bench = Bench::new();
    (0..4).for_each(|one| bench.slow(4 + 4 * one, "EVAL", 100 + one as u64, 0));
    let found = bench.second();
    assert_eq!((found.len(), found[0].times, found[0].lasted_us, found[0].sum_us), (1, 4, 103_000, 406_000));
    bench.slow(4, "GET", 9, 0);
    assert_eq!(bench.second(), [], "it is below the bound");
}

#[test]
fn the_stage_of_a_long_turn_names_its_cause() {
    let causes = [
        (Some(3), Rule::LockWait, ""),
        (Some(7), Rule::Background, "eviction"),
        (Some(6), Rule::Background, "removing expired keys"),
        (Some(4), Rule::LongTurn, "execute"),
        (Some(5), Rule::LongTurn, "write"),
        (Some(0), Rule::ClientStorm, ""),
        (None, Rule::Stall, ""),
    ];
    for (stage, rule, subject) in causes {
        let mut bench = Bench::new();
        bench.turn(1, 5, 40, stage);
        let found = bench.second();
        assert_eq!((rules(&found), found[0].subject.as_str()), (vec![rule], subject));
        assert_eq!((found[0].lasted_us, found[0].workers), (40_000, 1));
    }
    let mut bench = Bench::new();
    bench.turn(1, 5, 9, Some(4));
    assert_eq!(bench.second(), []);
}

#[test]
fn a_turn_without_a_cpu_is_not_the_command_s_fault() {
    let mut bench = Bench::new();
    bench.turn(0, 10, 100, Some(4));
    bench.slow(10, "GET", 100, 0);
    bench.set(10, |columns| columns.workers[0].run_queue_us, 90_000);
    let found = bench.second();
    assert!(rules(&found).contains(&Rule::CpuPressure), "{found:#?}");
    let mut bench = Bench::new();
    bench.turn(0, 10, 100, Some(4));
    bench.set(10, |columns| columns.workers[0].run_queue_us, 90_000);
    bench.set(10, |columns| columns.throttled_us, 90_000);
    let found = bench.second();
    assert_eq!(found.first().map(|one| one.rule), Some(Rule::Throttled), "{found:#?}");
}

#[test]
fn a_slow_sync_counts_where_replies_wait_for_it() {
    let mut bench = Bench::new();
    bench.set_all(|columns| columns.conditions, conditions::ALWAYS);
    bench.set(3, |columns| columns.sync_max_us, 51_000);
    bench.set(9, |columns| columns.sync_max_us, 30_000);
    let found = bench.second();
    assert_eq!((rules(&found), found[0].times, found[0].lasted_us), (vec![Rule::SlowDisk], 2, 51_000));
    assert_eq!(found[0].title, "replies to writes waited 51.0 ms for a sync of the append-only file");
    bench.set(3, |columns| columns.sync_max_us, 51_000);
    assert_eq!(bench.second(), [], "no reply waits for it");
    bench.set(3, |columns| columns.sync_max_us, 1_400_000);
    assert_eq!(bench.second()[0].subject, "unfelt");
}

#[test]
fn a_disk_that_hangs_is_seen_while_it_hangs() {
    let mut bench = Bench::new();
    for second in 0..3 {
        bench.set_all(|columns| columns.conditions, conditions::ALWAYS);
        (0..20).for_each(|part| {
            let us = (second * 20 + part + 1) as u64 * 50_000;
            bench.set(part, |columns| columns.write_max_us, us);
        });
        let found = bench.second();
        assert_eq!(rules(&found), [Rule::SlowDisk]);
        assert_eq!(found[0].times, u64::from(second == 0), "it is the same call");
        assert!(found[0].title.contains("for a write"), "{}", found[0].title);
        assert_eq!(found[0].lasted_us, (second as u64 + 1) * SECOND_US);
    }
    bench.set_all(|columns| columns.conditions, conditions::CROWDED);
    bench.set_all(|columns| columns.journal_unread_bytes, 100 << 20);
    let found = bench.second();
    assert_eq!((rules(&found), found[0].subject.as_str()), (vec![Rule::SlowDisk], "crowded"));
}

#[test]
fn a_storm_is_not_called_saturation() {
    let mut bench = Bench::new();
    bench.busy(0, 0.6);
    bench.busy(4, 0.38);
    bench.set_all(|columns| columns.accepted, 100);
    bench.set_all(|columns| columns.commands, 150);
    let found = bench.second();
    assert_eq!(rules(&found), [Rule::ClientStorm], "{found:#?}");
    assert!(
        found[0].title.contains("2000 connections a second, for 1.5 commands each"),
        "{}",
        found[0].title
    );
    bench.busy(4, 0.98);
    bench.set_all(|columns| columns.accepted, 100);
    bench.set_all(|columns| columns.commands, 5_000);
    assert_eq!(rules(&bench.second()), [Rule::Saturated], "the connections send many commands");
}

#[test]
fn saturation_names_the_stage_and_the_family() {
    let mut bench = Bench::new();
    bench.busy(4, 0.7);
    bench.busy(5, 0.28);
    bench.set_all(|columns| columns.families[1].us, 60_000);
    let found = bench.second();
    assert_eq!((rules(&found), found[0].subject.as_str()), (vec![Rule::Saturated], "execute"));
    assert!(found[0].evidence[0].what.contains("'scripting' took 60%"), "{:?}", found[0].evidence);
}

#[test]
fn conditions_of_the_machine_and_of_the_server() {
    let mut bench = Bench::new();
    bench.set_all(|columns| columns.run_queue_us, 30_000);
    assert_eq!(rules(&bench.second()), [Rule::CpuPressure]);
    bench.set_all(|columns| columns.throttled_us, 10_000);
    assert_eq!(rules(&bench.second()), [Rule::Throttled]);
    bench.set_all(|columns| columns.pressure_memory_us, 10_000);
    bench.set_all(|columns| columns.major_faults, 10);
    assert_eq!(rules(&bench.second()), [Rule::MemoryPressure]);
    bench.set(4, |columns| columns.rejected, 1);
    assert_eq!(rules(&bench.second()), [Rule::Refused]);
    bench.set(4, |columns| columns.conditions, conditions::PAUSED | conditions::LOADING | conditions::NO_LOG);
    assert_eq!(rules(&bench.second()), [Rule::Paused, Rule::Loading, Rule::Refused]);
    bench.busy(7, 0.3);
    assert_eq!(rules(&bench.second()), [Rule::Background]);
    bench.set(4, |columns| columns.replica_lag_bytes, 1 << 30);
    assert_eq!(rules(&bench.second()), [Rule::ReplicaLag]);
}

#[test]
fn a_turn_that_goes_on_is_told_before_its_end() {
    let mut bench = Bench::new();
    for second in 1..=3 {
        for part in 0..20 {
            let us = (second * 20 + part as u64) * 50_000;
            bench.set(part, |columns| columns.workers[1].turn_max_us, us);
            bench.set(part, |columns| columns.turn_max_us, us);
            bench.set(part, |columns| columns.workers[1].stages[11], 0);
        }
        let found = bench.second();
        assert_eq!(rules(&found), [Rule::Running], "{found:#?}");
        assert_eq!((found[0].lasted_us, found[0].workers), (SECOND_US, 1));
        assert!(found[0].title.starts_with("worker 1 is in a turn that has lasted"), "{}", found[0].title);
    }
    bench.turn(1, 0, 3_900, Some(4));
    bench.set(0, |columns| columns.workers[1].turn_max_us, 3_900_000);
    assert_eq!(rules(&bench.second()), [Rule::LongTurn]);
}
