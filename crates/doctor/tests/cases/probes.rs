//! Probes on request, on a real server.

use std::time::Duration;

use evenkeel_testkit::Server;

use crate::refusals::refused;
use crate::stage::{self, Load, redis, stage};
use crate::{PIPELINED, corpus};

/// Whether programs can be loaded here; prints a message if not.
fn can_probe(pid: &str) -> bool {
    let seen = stage::doctor_json(&["diagnose", "--json", "--no-ask", "--seconds", "0.6", "--pid", pid]);
    let can = seen["tier"] == "T0";
    if !can {
        println!("left out: needs eBPF, and: {}", seen["health"]["notes"]);
    }
    can
}

/// Returns the first number before a word.
fn number_before(text: &str, word: &str) -> f64 {
    let (before, _) = text.split_once(word).unwrap_or_else(|| panic!("no {word} in {text}"));
    let last = before.split_whitespace().next_back().and_then(|number| number.parse().ok());
    last.unwrap_or_else(|| panic!("no number before {word} in {text}"))
}

#[test]
fn calls_of_a_function_are_timed_and_those_of_a_hot_one_are_refused() {
    let _stage = stage();
    let server = Server::start(&redis(stage::SERVER), &[]);
    let pid = server.pid().to_string();
    if !can_probe(&pid) {
        return;
    }
    let time = |name| ["function", name, "--seconds", "1.5", "--pid", &pid];
    let before: f64 = server.info("total_commands_processed").parse().expect("a number");
    let calm = corpus::calm_clients(server.port(), Duration::from_millis(2));
    let said = stage::doctor(&time("readQueryFromClient"));
    drop(calm);
    let after: f64 = server.info("total_commands_processed").parse().expect("a number");
    let calls = number_before(&said, " calls in ");
    assert!(said.starts_with("readQueryFromClient of redis-"), "{said}");
    assert!(calls > 100.0 && calls <= after - before + 10.0, "{calls} of {}: {said}", after - before);
    assert!(number_before(&said, " us, 90% below") > 1.0, "{said}");
    let bars: usize = said.lines().skip(3).filter(|line| line.contains('#')).count();
    assert!(bars >= 1, "{said}");

    let never = stage::doctor(&time("rdbSave"));
    assert!(never.contains("rdbSave of redis-") && never.contains(": 0 calls"), "{never}");

    let _load = Load::start(server.port(), PIPELINED);
    std::thread::sleep(Duration::from_millis(500));
    let hot = refused(&time("zmalloc"));
    assert!(hot.contains("zmalloc is called ") && hot.contains("would slow the server too much"), "{hot}");
    let unknown = refused(&time("no_such_function"));
    assert!(unknown.contains("it has no function named no_such_function"), "{unknown}");
}

#[test]
fn tracepoints_are_counted_by_name() {
    let _stage = stage();
    let server = Server::start(&redis(stage::SERVER), &[]);
    let pid = server.pid().to_string();
    if !can_probe(&pid) {
        return;
    }
    let _calm = corpus::calm_clients(server.port(), Duration::from_millis(2));
    let said = stage::doctor(&["count", "sched_s*ch", "--seconds", "1", "--pid", &pid]);
    let line = said.lines().find(|line| line.starts_with("sched_switch "));
    let count: u64 = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0);
    assert!(count > 50, "{said}");
    let count = |pattern: &str| refused(&["count", pattern, "--seconds", "1", "--pid", &pid]);
    assert!(count("*").contains(" tracepoints match: use a longer name"));
    assert!(count("no_such_*_thing").contains("the kernel has no tracepoint and no function named no_such_"));
}

#[test]
fn the_stages_of_requests_match_the_servers_counts() {
    let _stage = stage();
    let Some(evenkeel) = stage::evenkeel(stage::SERVER) else {
        return println!("left out: no evenkeel was built");
    };
    let server = Server::start(&evenkeel, &[]);
    let pid = server.pid().to_string();
    if !can_probe(&pid) {
        return;
    }
    let _calm = corpus::calm_clients(server.port(), Duration::from_millis(2));
    let said = stage::doctor(&["stages", "--seconds", "2", "--pid", &pid]);
    let row = |name: &str| -> Vec<f64> {
        let line = said.lines().find(|line| line.starts_with(&format!("{name} ")));
        let numbers = line.unwrap_or_else(|| panic!("no {name} in {said}")).split_whitespace().skip(1);
        numbers.map(|number| number.parse().expect("a number")).collect()
    };
    for name in ["read", "parse", "execute", "write", "idle"] {
        let row = row(name);
        let (times, by_probe, counted) = (row[0], row[1], row[2]);
        assert!(times > 100.0, "{said}");
        // The count is in whole microseconds, and the two are read in succession.
        assert!((by_probe - counted).abs() <= 0.1 * counted + 0.05, "{name}: {said}");
    }
    println!("{said}");
    let other = Server::start(&redis(stage::SERVER), &[]);
    let refusal = refused(&["stages", "--seconds", "1", "--pid", &other.pid().to_string()]);
    assert!(refusal.contains("its INFO has no times of the stages of requests"), "{refusal}");
}
