//! The loads of the main cases on other servers of the family. On Valkey the causes are the same. Evenkeel
//! does not have them, and the doctor's samples match Evenkeel's own statistics.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use evenkeel_testkit::{Reference, Server};
use serde_json::Value;

use crate::stage::{self, Load, Place, Seen, diagnose, diagnose_for, stage};
use crate::{Folder, PIPELINED, SYNCED, a_fork_is_found, fed, follow, syncing, with_replicas};

#[test]
#[ignore = "long"]
fn feeding_replicas_of_valkey_is_the_first_finding() {
    let _stage = stage();
    for (replicas, title) in [(1, "Feeding 1 replica takes "), (4, "Feeding 4 replicas takes ")] {
        let (primary, _replicas) = with_replicas(Reference::Valkey, replicas);
        let _load = Load::start(primary.port(), PIPELINED);
        let seen = diagnose(&format!("valkey-server, pipeline 16, {replicas} replicas"), primary.pid());
        let Some(seen) = seen.in_kernel() else { return };
        seen.expect_first("R2");
        assert!(seen.titles()[0].starts_with(title), "{seen}");
    }
}

#[test]
#[ignore = "long"]
fn without_replicas_there_is_no_finding_about_them_for_valkey() {
    let _stage = stage();
    let (primary, _none) = with_replicas(Reference::Valkey, 0);
    let _load = Load::start(primary.port(), PIPELINED);
    let seen = diagnose("valkey-server, pipeline 16", primary.pid());
    assert_eq!(seen.verdict(), "found", "{seen}");
    assert!(!fed(&seen), "{seen}");
}

#[test]
#[ignore = "long"]
fn a_fork_of_valkey_is_found_and_its_length_is_the_servers_own() {
    let _stage = stage();
    a_fork_is_found(Reference::Valkey);
}

#[test]
#[ignore = "long"]
fn a_sync_on_the_event_loop_of_valkey_is_the_first_finding() {
    let _stage = stage();
    let (server, _load) = syncing(Reference::Valkey);
    let seen = diagnose("valkey-server, appendfsync always", server.pid());
    seen.expect_first("R3");
    assert!(seen.titles()[0].contains("fdatasync on the append-only file"), "{seen}");
}

/// A single worker, so that its thread and the server's statistics cover the same time.
fn evenkeel(more: &[&str]) -> Option<Server> {
    let program = stage::evenkeel(Place::FirstAlike);
    if program.is_none() {
        println!("left out: no evenkeel was built");
    }
    Some(Server::start(&program?, &[&["--threads", "1"], more].concat()))
}

#[test]
#[ignore = "long"]
fn findings_match_the_counts_of_evenkeel_feeding_replicas() {
    let _stage = stage();
    for count in [0, 1, 4] {
        let Some(server) = evenkeel(&[]) else { return };
        let _replicas = follow(&server, count);
        let _load = Load::start_at(Place::RestAlike, server.port(), PIPELINED);
        let Some(seen) = agrees(&format!("evenkeel, pipeline 16, {count} replicas"), &server) else { return };
        assert!(!fed(&seen), "another thread does that: {seen}");
    }
}

#[test]
#[ignore = "long"]
fn findings_match_the_counts_of_evenkeel_taking_a_snapshot() {
    let _stage = stage();
    let Some(server) = evenkeel(&["--enable-debug-command", "yes"]) else { return };
    let mut client = server.connect();
    client.set_reply_timeout(Duration::from_secs(60));
    client.run("DEBUG POPULATE 3000000 key 200");
    let _load = Load::start_at(Place::RestAlike, server.port(), PIPELINED);
    let saver = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(1_500));
        client.run("BGSAVE")
    });
    let seen = agrees("evenkeel, BGSAVE under load", &server);
    assert!(saver.join().expect("it does not panic").to_string().contains("Background saving started"));
    let Some(seen) = seen else { return };
    assert!(!seen.rules().iter().any(|rule| rule == "R4" || rule == "R5"), "there is no fork: {seen}");
}

#[test]
#[ignore = "long"]
fn findings_match_the_counts_of_evenkeel_syncing_each_write() {
    let _stage = stage();
    let args = ["--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"];
    let Some(server) = evenkeel(&args) else { return };
    let _load = Load::start_at(Place::RestAlike, server.port(), SYNCED);
    let Some(seen) = agrees("evenkeel, appendfsync always", &server) else { return };
    // Clients wait for a disk on both servers; here, no other client does.
    assert!(!seen.critical().starts_with("worker") || !seen.rules().contains(&"R3".to_string()), "{seen}");
}

/// Minimum share of the busy time for a stage to be compared: smaller stages have too few samples.
const LARGE: f64 = 0.2;

/// Diagnoses the server, and compares its worker's sampled stages with its own stage clocks.
fn agrees(case: &str, server: &Server) -> Option<Seen> {
    let folder = Folder::new("same-loads");
    let kept = folder.file("recording");
    // perf samples: under such loads BPF programs would be detached most of the time.
    let seen = diagnose_for(case, server.pid(), "15", &["--no-bpf", "--record", &kept]);
    if seen.tier() != "T1" {
        println!("left out: needs perf with the kernel's part, and has {}", seen.tier());
        return None;
    }
    let text = std::fs::read_to_string(&kept).expect("it was recorded");
    let recording: Value =
        serde_json::from_str(text.split_once('\n').expect("a first line").1).expect("JSON");
    let Sampled { busy: seen_busy, stages: sampled, count, queued } = by_samples(&recording);
    let (counted_busy, counted) = by_stages(&recording);
    println!(
        "  busy {seen_busy:.3?}, by its own count {counted_busy:.3}; {sampled:.3?}, by its own count \
         {counted:.3?}"
    );
    // The worker cannot tell a lack of work from a lack of CPU after work arrived.
    let (least, most) = (seen_busy.start() * 0.9, seen_busy.end() * 1.1);
    assert!((least..most).contains(&counted_busy), "{seen_busy:?} {counted_busy}");
    // Allow for the sampling error. The worker's clocks include the time in the run queue, which has no
    // samples and may belong to any stage.
    let chance = |share: f64| 2.0 * (share * (1.0 - share) / count).sqrt();
    let is_near = |seen: f64, counted: f64| {
        let (least, error) = (seen * (1.0 - queued), 0.1 * counted + chance(counted));
        (least - error..=least + queued + error).contains(&counted)
    };
    let mut compared = 0;
    for (stage, counted) in counted.into_iter().filter(|(_, share)| *share >= LARGE) {
        compared += 1;
        assert!(is_near(sampled[stage], counted), "{stage}: {} and {counted}", sampled[stage]);
    }
    assert!(compared > 0, "no stage is large");
    Some(seen)
}

struct Sampled {
    /// The worker's busy share: without the time in the run queue, and with it.
    busy: RangeInclusive<f64>,
    /// Shares of the busy samples by stage.
    stages: BTreeMap<&'static str, f64>,
    /// Number of busy samples.
    count: f64,
    /// Part of the busy time in the run queue.
    queued: f64,
}

fn by_samples(recording: &Value) -> Sampled {
    let list = |name: &str| recording[name].as_array().expect("a list");
    let number = |value: &Value| value.as_f64().expect("a number");
    let names: Vec<&str> = list("frames").iter().map(|frame| frame["name"].as_str().expect("text")).collect();
    let worker = |thread: &&Value| thread["name"].as_str().is_some_and(|name| name.starts_with("worker"));
    let worker = list("threads").iter().find(worker).expect("it has one");
    let mut counts = BTreeMap::from([("idle", 0.0), ("read", 0.0), ("execute", 0.0), ("write", 0.0)]);
    for sample in list("samples").iter().filter(|sample| sample["tid"] == worker["tid"]) {
        let stack =
            list("stacks")[sample["stack"].as_u64().expect("an index") as usize].as_array().expect("a list");
        let has = |parts: &[&str]| {
            let of_stack = |index: &Value| names[index.as_u64().expect("an index") as usize];
            stack.iter().map(of_stack).any(|name| parts.iter().any(|part| name.ends_with(part)))
        };
        let stage = match () {
            () if has(&["epoll_wait", "Poll::wait"]) => "idle",
            () if has(&[
                "Worker::flush",
                "Worker::flush_backlog",
                "Connection::send",
                "Connection::send_backlog",
            ]) =>
            {
                "write"
            }
            () if has(&["recv", "recvfrom", "Connection::read", "Connection::read_more"]) => "read",
            () => "execute",
        };
        *counts.get_mut(stage).expect("one of them") += number(&sample["count"]);
    }
    let all: f64 = counts.values().sum();
    let idle = counts.remove("idle").unwrap_or(0.0);
    let share = |ns: f64| ns / number(&recording["window_ns"]);
    let cpu = share(number(&worker["cpu_ns"]) * (1.0 - idle / all));
    // Neither bound includes the steal time.
    let stolen = number(&recording["host"]["steal"]);
    let busy = cpu..=(cpu + share(number(&worker["run_queue_ns"]))) / (1.0 - stolen);
    let count = all - idle;
    let waiting = share(number(&worker["run_queue_ns"]));
    let queued = waiting / (cpu + waiting);
    let stages = counts.into_iter().map(|(stage, of_it)| (stage, of_it / count)).collect();
    Sampled { busy, stages, count, queued }
}

/// The same by the server's own stage times.
fn by_stages(recording: &Value) -> (f64, BTreeMap<&'static str, f64>) {
    let stages = recording["own_count"]["stages"].as_array().expect("it was asked");
    let (mut times, mut idle) = (BTreeMap::from([("read", 0.0), ("execute", 0.0), ("write", 0.0)]), 0.0);
    for stage in stages {
        let ns = stage[1].as_f64().expect("a number");
        match stage[0].as_str().expect("a name") {
            "idle" => idle += ns,
            name => {
                let (name, _) = times.iter().find(|(known, _)| **known == name).unwrap_or((&"execute", &0.0));
                *times.get_mut(*name).expect("one of them") += ns;
            }
        }
    }
    let busy: f64 = times.values().sum();
    (busy / (busy + idle), times.into_iter().map(|(stage, ns)| (stage, ns / busy)).collect())
}
