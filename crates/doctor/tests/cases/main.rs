//! Cases with a known cause: each starts a real server, loads it, and runs the doctor.
//!
//! A case asserts the rule of the first finding, or the verdict, so no other cause may rank above it. Cases
//! that are not ignored are the short set of `make test`; `make doctor-cases` runs all and prints a line for
//! each.
//!
//! Server and load have separate CPUs, and real-time priority if the tests run as root. Otherwise the doctor
//! would find that the machine is busy, and would be right.

mod commands;
mod corpus;
mod disks;
mod extremes;
mod halted;
mod losses;
mod probes;
mod real;
mod refusals;
mod same_loads;
mod squid;
mod stage;
mod tiers;
mod waits;

use std::time::Duration;

use evenkeel_testkit::{Reference, Server};
use stage::{Load, Seen, diagnose, diagnose_with, redis, stage};

/// Few keys: with a key space larger than the caches, lookups would be a cause of their own.
const PIPELINED: &[&str] = &["-t", "set", "-d", "500", "-P", "16", "-c", "50", "-r", "10000"];

/// Without a pipeline, where work would hide the waiting.
const SYNCED: &[&str] = &["-t", "set", "-d", "500", "-c", "10", "-r", "100000"];

/// A server with `replicas` replicas in sync.
fn with_replicas(reference: Reference, replicas: usize) -> (Server, Vec<Server>) {
    let primary = Server::start(&stage::reference(reference, stage::SERVER), &[]);
    let replicas = follow(&primary, replicas);
    (primary, replicas)
}

/// Starts `count` replicas of `primary` in sync, which share the load's CPU.
fn follow(primary: &Server, count: usize) -> Vec<Server> {
    let program = match primary.program().reference() {
        // Redis cannot read Valkey's snapshots.
        Some(Reference::Valkey) => stage::reference(Reference::Valkey, stage::LOAD),
        _ => redis(stage::LOAD),
    };
    let port = primary.port().to_string();
    let start = |_| Server::start(&program, &["--replicaof", "127.0.0.1", &port]);
    let replicas: Vec<Server> = (0..count).map(start).collect();
    for replica in &replicas {
        stage::wait_for("the replica is in sync", || replica.info("master_link_status") == "up");
    }
    replicas
}

fn fed(seen: &Seen) -> bool {
    seen.titles().iter().any(|title| title.starts_with("Feeding "))
}

#[test]
fn feeding_a_replica_is_the_first_finding() {
    let _stage = stage();
    let (primary, _replicas) = with_replicas(Reference::Redis, 1);
    let _load = Load::start(primary.port(), PIPELINED);
    let Some(seen) = diagnose("redis-server, pipeline 16, 1 replica", primary.pid()).in_kernel() else {
        return;
    };
    seen.expect_first("R2");
    assert!(seen.titles()[0].starts_with("Feeding 1 replica takes "), "{seen}");
    assert!(seen.complete_stacks() >= 0.94, "{seen}");
}

#[test]
fn without_replicas_there_is_no_finding_about_them() {
    let _stage = stage();
    let (primary, _none) = with_replicas(Reference::Redis, 0);
    let _load = Load::start(primary.port(), PIPELINED);
    let Some(seen) = diagnose("redis-server, pipeline 16, no replica", primary.pid()).in_kernel() else {
        return;
    };
    assert!(!fed(&seen), "{seen}");
    assert_eq!(seen.verdict(), "found", "{seen}");
}

#[test]
#[ignore = "long"]
fn feeding_four_replicas_is_the_first_finding() {
    let _stage = stage();
    let (primary, _replicas) = with_replicas(Reference::Redis, 4);
    let _load = Load::start(primary.port(), PIPELINED);
    let Some(seen) = diagnose("redis-server, pipeline 16, 4 replicas", primary.pid()).in_kernel() else {
        return;
    };
    seen.expect_first("R2");
    assert!(seen.titles()[0].starts_with("Feeding 4 replicas takes "), "{seen}");
}

#[test]
#[ignore = "long"]
fn the_cost_of_an_added_replica_is_the_first_change() {
    let _stage = stage();
    let folder = Folder::new("diff");
    for replicas in [0, 1] {
        let (primary, _replicas) = with_replicas(Reference::Redis, replicas);
        let _load = Load::start(primary.port(), PIPELINED);
        let kept = folder.file(&replicas.to_string());
        let seen = diagnose_with("recorded for a comparison", primary.pid(), &["--record", &kept]);
        if seen.in_kernel().is_none() {
            return;
        }
    }
    let changes = stage::doctor_json(&["diff", "--json", &folder.file("0"), &folder.file("1")]);
    assert_eq!(changes["changes"][0]["subject"], "feeding replicas", "{:#}", changes["changes"]);
    assert_eq!(changes["changes"][0]["fate"], "appeared", "{:#}", changes["changes"]);
}

fn syncing(reference: Reference) -> (Server, Load) {
    let args = ["--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"];
    let server = Server::start(&stage::reference(reference, stage::SERVER), &args);
    let load = Load::start(server.port(), SYNCED);
    (server, load)
}

#[test]
fn a_sync_on_the_event_loop_is_the_first_finding() {
    let _stage = stage();
    let (server, _load) = syncing(Reference::Redis);
    let seen = diagnose("redis-server, appendfsync always", server.pid());
    seen.expect_first("R3");
    assert!(seen.titles()[0].contains("fdatasync on the append-only file"), "{seen}");
    // Blocked time is measured while the programs are attached and sampled in pauses; the sum must not exceed
    // the window.
    assert!(seen.first_share() < 0.98, "{seen}");
}

#[test]
fn a_sync_on_the_event_loop_is_found_with_proc_alone() {
    let _stage = stage();
    let (server, _load) = syncing(Reference::Redis);
    let seen = diagnose_with("the same, /proc alone", server.pid(), &["--proc-only"]);
    seen.expect_first("R3");
    assert_eq!(seen.tier(), "T3", "{seen}");
}

#[test]
fn an_idle_server_has_no_finding() {
    let _stage = stage();
    let server = Server::start(&redis(stage::SERVER), &[]);
    let seen = diagnose("redis-server, idle", server.pid());
    assert_eq!(seen.verdict(), "idle", "{seen}");
    assert!(seen.titles().is_empty(), "{seen}");
}

#[test]
fn a_neighbour_on_the_same_cpu_is_the_first_finding() {
    let _stage = stage();
    let server = Server::start(&redis(stage::SERVER), &[]);
    let _load = Load::start(server.port(), PIPELINED);
    let hog = corpus::start("hog", stage::SERVER);
    let seen = diagnose("redis-server, and a neighbour on its CPU", server.pid());
    seen.expect_first("R8");
    assert!(seen.text().contains(&format!("({})", hog.pid())), "the neighbour is named: {seen}");
}

/// A private folder for recordings, removed on drop.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("doctor-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a private folder");
        Folder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("text").to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn mutexes_are_the_first_finding_and_their_places_are_named_in_order() {
    let _stage = stage();
    let folder = Folder::new("locks");
    let kept = folder.file("shared");
    let server = corpus::start("mutex", stage::ALL);
    let seen = diagnose_with("threads with one log and one queue", server.pid(), &["--record", &kept]);
    let Some(seen) = seen.in_kernel() else { return };
    seen.expect_first("R6");
    assert!(seen.titles()[0].contains("append_to_log"), "{seen}");

    let locks = stage::doctor(&["locks", "--from", &kept]);
    let line = |name: &str| locks.lines().position(|line| line.ends_with(name));
    assert!(line("append_to_log").is_some() && line("append_to_log") < line("take_task"), "{locks}");
    let blocked = stage::doctor(&["offcpu", "--from", &kept]);
    assert!(blocked.lines().nth(1).is_some_and(|line| line.contains("append_to_log")), "{blocked}");
    let folded = stage::doctor(&["export", "--folded", "--off-cpu", "--from", &kept]);
    assert!(folded.lines().any(|line| line.contains("append_to_log;") && line.contains(";futex-lock ")));
}

#[test]
#[ignore = "long"]
fn with_a_log_and_a_queue_for_each_thread_the_locks_are_gone() {
    let _stage = stage();
    let folder = Folder::new("locks-gone");
    for program in ["mutex", "no-mutex"] {
        let server = corpus::start(program, stage::ALL);
        let kept = folder.file(program);
        let Some(seen) = diagnose_with(program, server.pid(), &["--record", &kept]).in_kernel() else {
            return;
        };
        assert_eq!(seen.rules().contains(&"R6".to_string()), program == "mutex", "{seen}");
    }
    let changes = stage::doctor_json(&["diff", "--json", &folder.file("mutex"), &folder.file("no-mutex")]);
    let gone = |change: &serde_json::Value| change["rule"] == "R6" && change["fate"] == "gone";
    assert!(changes["changes"].as_array().expect("a list").iter().any(gone), "{changes:#}");
}

#[test]
fn an_accept_queue_that_overflows_is_the_first_finding() {
    let _stage = stage();
    let server = corpus::start("slow-accept", stage::ANYWHERE);
    let _crowd = corpus::crowd(server.port());
    let seen = diagnose("backlog 5, and accepts too late", server.pid());
    seen.expect_first("R10");
    assert!(seen.titles()[0].contains(&server.port().to_string()), "{seen}");
}

#[test]
#[ignore = "long"]
fn a_pool_of_processes_with_a_short_backlog_drops_connections() {
    const CLIENTS: usize = 500;
    let _stage = stage();
    let pool = corpus::start("pool", stage::ANYWHERE);
    let _clients = corpus::short_connections(pool.port(), CLIENTS);
    for (who, pid) in [("the parent", pool.pid()), ("a child", pool.child())] {
        let seen = diagnose(&format!("a pool of processes, backlog 5, {CLIENTS} clients: {who}"), pid);
        seen.expect_first("R10");
        assert!(seen.titles()[0].contains(&pool.port().to_string()), "{seen}");
        assert!(seen.titles()[0].contains(" overflows: "), "{seen}");
    }
}

#[test]
#[ignore = "long"]
fn a_fork_under_load_is_found_and_its_length_is_the_servers_own() {
    let _stage = stage();
    a_fork_is_found(Reference::Redis);
}

fn a_fork_is_found(reference: Reference) {
    // The child has the load's CPU; else waiting for the server's CPU would be the first finding.
    let args = ["--bgsave_cpulist", "1", "--save", ""];
    let server = Server::start(&stage::reference(reference, stage::SERVER), &args);
    let mut client = server.connect();
    client.set_reply_timeout(Duration::from_secs(60));
    let writes = ["-t", "set", "-d", "1000", "-c", "50", "-r", "3000000"];
    Load::run(server.port(), &[&writes[..], &["-P", "100", "-n", "5000000"]].concat());
    let _load = Load::start(server.port(), &[&writes[..], &["-P", "16"]].concat());
    let saver = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(2_500));
        client.run("BGSAVE")
    });
    let seen = diagnose(&format!("{reference:?}, BGSAVE of some GB under load"), server.pid());
    let said = saver.join().expect("it does not panic");
    let fork_ms = server.info("latest_fork_usec").parse::<f64>().expect("a number") / 1e3;
    assert!(said.to_string().contains("Background saving started"), "{said}");
    let Some(seen) = seen.in_kernel() else { return };
    seen.expect_first("R4");
    assert!(seen.rules().contains(&"R5".to_string()), "then what is copied on write: {seen}");
    let title = seen.titles()[0];
    assert!(title.starts_with("A fork stopped the thread for "), "{seen}");
    let words: Vec<&str> = title.split(' ').collect();
    let at = words.iter().position(|word| *word == "ms").expect("milliseconds");
    let found_ms: f64 = words[at - 1].parse().expect("a number");
    println!("  {found_ms} ms, and the server says {fork_ms}: {:?}", seen.titles());
    assert!((found_ms / fork_ms - 1.0).abs() < 0.15, "{found_ms} ms, and the server says {fork_ms}");
}

#[test]
#[ignore = "long"]
fn a_single_accept_per_edge_is_the_first_finding() {
    let _stage = stage();
    let server = corpus::start("one-accept", stage::ANYWHERE);
    let _crowd = corpus::patient_crowd(server.port());
    let seen = diagnose("edge-triggered, one accept for each event", server.pid());
    seen.expect_first("R10");
    assert!(seen.titles()[0].contains("while the server sleeps"), "{seen}");
}

#[test]
fn threads_that_wake_each_other_are_the_first_finding() {
    let _stage = stage();
    let server = corpus::start("ping-pong", stage::ALL);
    let seen = diagnose("four threads that wake one another by eventfds", server.pid());
    let Some(seen) = seen.in_kernel() else { return };
    seen.expect_first("R9");
    assert!(seen.titles()[0].starts_with("Threads hand work to one another "), "{seen}");
}

/// A control group that may use a fifth of a CPU, removed on drop.
struct Limited(std::path::PathBuf);

impl Limited {
    /// `None` if no group can be made.
    fn new(pid: u32) -> Option<Limited> {
        let root = std::path::Path::new("/sys/fs/cgroup");
        let mount = if root.join("cpu").is_dir() { root.join("cpu") } else { root.to_path_buf() };
        let group = Limited(mount.join(format!("doctor-case-{}", std::process::id())));
        std::fs::create_dir(&group.0).ok()?;
        let write = |name: &str, text: &str| std::fs::write(group.0.join(name), text);
        write("cpu.max", "20000 100000")
            .or_else(|_| {
                write("cpu.cfs_period_us", "100000").and_then(|()| write("cpu.cfs_quota_us", "20000"))
            })
            .ok()?;
        write("cgroup.procs", &pid.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
#[ignore = "long"]
fn a_limit_of_its_control_group_is_the_first_finding() {
    let _stage = stage();
    // The group is dropped after the program: a group with members cannot be removed.
    let (_group, hog);
    hog = corpus::start("hog", stage::ANYWHERE);
    let Some(group) = Limited::new(hog.pid()) else {
        return println!("left out: no control group can be made");
    };
    _group = group;
    let seen = diagnose("a control group with a fifth of a CPU", hog.pid());
    seen.expect_first("R8");
    assert!(seen.titles()[0].contains("control group is at its limit of 0.20 CPUs"), "{seen}");
}

#[test]
#[ignore = "long"]
fn a_client_that_does_not_read_is_the_first_finding() {
    let _stage = stage();
    let server =
        Server::start(&redis(stage::SERVER), &["--client-output-buffer-limit", "normal", "0", "0", "0"]);
    let _deaf = corpus::deaf_client(server.port());
    let seen = diagnose("redis-server, a client that does not read", server.pid());
    seen.expect_first("R11");
}

#[test]
#[ignore = "long"]
fn a_slow_load_generator_is_reported_as_the_limit() {
    let _stage = stage();
    let server = Server::start(&redis(stage::SERVER), &[]);
    let _calm = corpus::calm_clients(server.port(), Duration::from_micros(500));
    let seen = diagnose("redis-server, a load generator that is the limit", server.pid());
    assert_eq!(seen.verdict(), "elsewhere", "{seen}");
}

#[test]
#[ignore = "long"]
fn requests_in_single_bytes_are_the_first_finding() {
    let _stage = stage();
    let server = Server::start(&redis(stage::SERVER), &[]);
    let _chatty = corpus::chatty_clients(server.port());
    let Some(seen) = diagnose("redis-server, requests byte by byte", server.pid()).in_kernel() else {
        return;
    };
    seen.expect_first("R12");
}

#[test]
fn a_periodic_chore_is_the_first_finding_with_its_period_and_function() {
    let _stage = stage();
    let server = corpus::start("cron", stage::SERVER);
    let Some(seen) = diagnose("a chore of 70 ms each 250 ms", server.pid()).in_kernel() else { return };
    seen.expect_first("R17");
    assert!(seen.titles()[0].starts_with("Every 0.25 s the event loop stands still for "), "{seen}");
    assert!(seen.titles()[0].ends_with("corpus::sweep"), "{seen}");
}

#[test]
fn memory_that_is_mapped_for_each_line_of_a_log_is_the_first_finding() {
    let _stage = stage();
    let server = corpus::start("map-log", stage::SERVER);
    let _load = corpus::busy_client(server.port());
    let Some(seen) = diagnose("a log that maps memory for each line", server.pid()).in_kernel() else {
        return;
    };
    seen.expect_first("R15");
    assert!(seen.titles()[0].starts_with("Mapping and unmapping memory "), "{seen}");
    assert!(seen.titles()[0].ends_with("corpus::log_line"), "{seen}");
}

#[test]
fn an_expensive_capture_reports_its_cost() {
    let _stage = stage();
    let server = corpus::start("writer", stage::ANYWHERE);
    let seen = diagnose("system calls without end", server.pid());
    let Some(seen) = seen.in_kernel() else { return };
    let last = seen.titles().last().copied().unwrap_or("");
    assert!(last.starts_with("While active, the doctor itself takes "), "{seen}");
    assert_eq!(seen.rules().last().map(String::as_str), Some("R19"), "{seen}");
}

#[test]
#[ignore = "long"]
fn evenkeel_is_walked_and_named() {
    let _stage = stage();
    let Some(evenkeel) = stage::evenkeel(stage::SERVER) else {
        return println!("left out: no evenkeel was built");
    };
    let server = Server::start(&evenkeel, &[]);
    let _load = Load::start(server.port(), PIPELINED);
    let Some(seen) = diagnose("evenkeel, pipeline 16", server.pid()).in_kernel() else { return };
    assert!(seen.complete_stacks() >= 0.94, "{seen}");
    assert!(!fed(&seen), "{seen}");
}
