//! The flight recorder: its rows, its events, and the causes that it finds for provoked waits.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use evenkeel_testkit::Client;
use serde_json::Value;

use super::{WithHttp, start_http};
use crate::disk::Disk;
use crate::wait_until;

/// Causes that a busy machine adds to any other.
const OF_THE_MACHINE: [&str; 4] = ["cpu-pressure", "throttled", "memory-pressure", "stall"];

/// Runs for 250 ms; TIME stands still in a script.
const SLOW_SCRIPT: &str = "local x = 0 for i = 1, 40000000 do x = x + i end return x";

fn fetch(http: &WithHttp, path: &str) -> Value {
    let reply = http.browser("default", "").get(path);
    assert_eq!(reply.status, 200, "{}", reply.body);
    serde_json::from_str(&reply.body).unwrap_or_else(|error| panic!("{error}: {}", reply.body))
}

/// Returns the findings of the last minute, without causes of the machine.
fn found(http: &WithHttp) -> Vec<Value> {
    let findings = fetch(http, "/api/findings?from=-60000&to=0");
    let all = findings["findings"].as_array().cloned().unwrap_or_default();
    let is_own = |finding: &Value| !OF_THE_MACHINE.iter().any(|rule| finding["rule"] == *rule);
    all.into_iter().filter(is_own).collect()
}

#[track_caller]
fn expect_first(http: &WithHttp, rule: &str, words: &str) -> Value {
    let mut first = Value::Null;
    wait_until(&format!("the first finding is {rule}"), || {
        first = found(http).first().cloned().unwrap_or_default();
        first["rule"] == rule
    });
    assert!(first["title"].as_str().is_some_and(|title| title.contains(words)), "{first:#}");
    assert!(!first["evidence"].as_array().is_none_or(Vec::is_empty), "{first:#}");
    assert!(first["next_step"].as_str().is_some_and(|step| !step.is_empty()), "{first:#}");
    first
}

/// Sends commands from other connections while `provoke` runs.
fn under_load(http: &WithHttp, provoke: impl FnOnce(&mut Client)) {
    let until = Instant::now() + Duration::from_secs(3);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut client = http.server.connect();
                while Instant::now() < until {
                    client.run("SET k v");
                }
            });
        }
        std::thread::sleep(Duration::from_millis(1_500));
        provoke(&mut http.server.connect());
    });
}

#[test]
fn a_slow_script_is_the_first_finding_everywhere() {
    let http = start_http(&["--threads", "2"]);
    under_load(&http, |client| _ = client.call(&["EVAL", SLOW_SCRIPT, "0"]));
    let first = expect_first(&http, "slow-command", "EVAL took");
    assert!(first["evidence"][0]["what"].as_str().is_some_and(|what| what.contains("40000000")), "{first:#}");
    let doctor = http.server.connect().run("LATENCY DOCTOR").to_string();
    assert!(doctor.contains("[slow-command] EVAL took"), "{doctor}");
    let events = fetch(&http, "/api/events?from=-60000&to=0");
    let all = events["events"].as_array().cloned().unwrap_or_default();
    assert!(all.iter().any(|event| event["kind"] == "slow-command"), "{events:#}");
    assert!(all.iter().any(|event| event["kind"] == "start"), "{events:#}");
}

#[test]
fn a_slow_disk_is_the_first_finding_where_replies_wait_for_it() {
    let args = ["--threads", "2", "--appendonly", "yes", "--appendfsync", "always"];
    let http = start_http(&[&args[..], &["--enable-debug-command", "yes"]].concat());
    under_load(&http, |client| {
        client.run("DEBUG AOF-FLUSH-SLEEP 200000");
        std::thread::sleep(Duration::from_millis(700));
        client.run("DEBUG AOF-FLUSH-SLEEP 0");
    });
    expect_first(&http, "slow-disk", "of the append-only file");
}

#[test]
fn a_disk_that_hangs_is_found_while_it_hangs() {
    let Some(disk) = Disk::mount("recorded", 64) else { return };
    let folder = disk.path().to_str().expect("a path of text").to_owned();
    let args = ["--threads", "2", "--appendonly", "yes", "--appendfsync", "always", "--dir", &folder];
    let mut http = start_http(&args);
    http.server.connect().run("SET before 1");
    let frozen = disk.freeze();
    let mut writer = http.server.connect();
    writer.send(&["SET", "k", "v"]).expect("the server reads");
    expect_first(&http, "slow-disk", "replies to writes waited");
    assert_eq!(http.server.connect().run("EXISTS before").as_int(), Some(1));
    drop(frozen);
    assert_eq!(writer.read().to_string(), "OK");
    let first = expect_first(&http, "slow-disk", "replies to writes waited");
    assert!(first["lasted_ms"].as_f64() >= Some(20.0) && first["times"].as_u64() >= Some(1), "{first:#}");
    http.server.stop();
}

#[test]
fn a_recorder_whose_disk_hangs_keeps_its_rows_in_memory() {
    let Some(disk) = Disk::mount("recorder", 64) else { return };
    let folder = disk.path().join("history").to_str().expect("a path of text").to_owned();
    let http = start_http(&["--recorder-dir", &folder]);
    wait_until("a file is there", || std::fs::read_dir(&folder).is_ok_and(|files| files.count() > 0));
    let frozen = disk.freeze();
    std::thread::sleep(Duration::from_secs(3));
    let newest = || fetch(&http, "/api/series?from=-1500&to=0&points=2");
    assert!(newest()["rows"].as_array().is_some_and(|rows| !rows.is_empty()), "{:#}", newest());
    assert_eq!(http.server.connect().run("SET k v").to_string(), "OK");
    drop(frozen);
}

#[test]
fn short_connections_are_a_storm() {
    let http = start_http(&["--threads", "1"]);
    let until = Instant::now() + Duration::from_secs(4);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while Instant::now() < until {
                    drop(TcpStream::connect(http.server.address()));
                }
            });
        }
    });
    expect_first(&http, "client-storm", "connections a second");
}

#[test]
fn refused_connections_and_pauses_are_findings() {
    let http = start_http(&["--maxclients", "10"]);
    let kept: Vec<Client> = (0..10).filter_map(|_| http.server.try_connect().ok()).collect();
    (0..20).for_each(|_| drop(TcpStream::connect(http.server.address())));
    expect_first(&http, "refused", "'maxclients' was reached");
    drop(kept);
    let http = start_http(&[]);
    http.server.connect().run("CLIENT PAUSE 1500 WRITE");
    expect_first(&http, "paused", "CLIENT PAUSE");
}

#[test]
fn rows_add_up_to_the_commands() {
    let http = start_http(&["--threads", "2"]);
    let mut client = http.server.connect();
    (0..3_000).for_each(|one| _ = client.call(&["SET", "k", &one.to_string()]));
    client.run("CONFIG SET maxmemory 100mb");
    let sum_of = |series: &Value, name: &str| -> u64 {
        let columns = series["columns"].as_array().cloned().unwrap_or_default();
        let place = columns.iter().position(|column| column["name"] == name).expect(name) + 2;
        let rows = series["rows"].as_array().cloned().unwrap_or_default();
        rows.iter().filter_map(|row| row[place].as_u64()).sum()
    };
    let mut series = Value::Null;
    wait_until("all calls are in rows of seconds", || {
        series = fetch(&http, "/api/series?from=-60000&to=0&points=60");
        sum_of(&series, "family.string.calls") == 3_000
    });
    assert!(sum_of(&series, "commands") >= 3_000, "{series}");
    assert!(sum_of(&series, "family.string.us") > 0 && sum_of(&series, "bytes_in") > 3_000 * 20);
    assert!(sum_of(&series, "all.max_ns") > 0 && sum_of(&series, "cpu_us") > 0, "{series}");
    assert_eq!(sum_of(&series, "maxmemory_bytes") % (100 << 20), 0);
    // One of the workers has served the client, and both have waited for events.
    let of_stage = |stage: &str| -> Vec<u64> {
        (0..2).map(|worker| sum_of(&series, &format!("worker.{worker}.{stage}"))).collect()
    };
    assert!(of_stage("execute").iter().any(|us| *us > 0), "{series}");
    assert!(of_stage("idle").iter().all(|us| *us > 0), "{series}");
    // The columns of a worker are its stages, which add up to the time; a turn may count in a later row.
    let columns = series["columns"].as_array().cloned().unwrap_or_default();
    let names = columns.iter().filter_map(|column| column["name"].as_str());
    let of_worker: u64 =
        names.filter(|name| name.starts_with("worker.0.")).map(|name| sum_of(&series, name)).sum();
    let covered_us: u64 =
        series["rows"].as_array().into_iter().flatten().filter_map(|row| row[1].as_u64()).sum::<u64>()
            * 1_000;
    assert!(of_worker.abs_diff(covered_us) < covered_us / 10, "{of_worker} of {covered_us}: {series}");
    let pressures = ["pressure_cpu_us", "pressure_memory_us", "pressure_io_us"];
    let covered: u64 =
        series["rows"].as_array().into_iter().flatten().filter_map(|row| row[1].as_u64()).sum();
    assert!(pressures.iter().all(|name| sum_of(&series, name) <= covered * 1_100), "{series}");
    let fine = fetch(&http, "/api/series?from=-1000&to=0&points=2000");
    assert_eq!(fine["step_ms"], 50, "{fine}");
    let rows = fine["rows"].as_array().map_or(0, Vec::len);
    assert!((2..=21).contains(&rows), "{rows}");
    assert!(http.server.info("recorder_bytes").parse::<u64>().is_ok_and(|bytes| bytes > 100));
}

#[test]
fn the_past_survives_a_restart_in_files() {
    let mut http = start_http(&["--recorder-dir", "history", "--threads", "2"]);
    under_load(&http, |client| _ = client.call(&["EVAL", SLOW_SCRIPT, "0"]));
    expect_first(&http, "slow-command", "EVAL took");
    http.server.kill();
    // Another number of workers has other columns.
    http.server.start_again();
    expect_first(&http, "slow-command", "EVAL took");
    let series = fetch(&http, "/api/series?from=-60000&to=0&points=60");
    let commands = series["columns"]
        .as_array()
        .and_then(|columns| columns.iter().position(|one| one["name"] == "commands"));
    let most =
        series["rows"].as_array().into_iter().flatten().filter_map(|row| row[commands? + 2].as_u64()).max();
    assert!(most > Some(100), "the load before the restart: {series}");
}

#[test]
fn a_directory_that_cannot_be_used_stops_nobody() {
    let http = start_http(&["--recorder-dir", "/proc/none"]);
    wait_until("the log says so", || http.server.log().contains("Recorder: cannot use '/proc/none'"));
    wait_until("rows are kept in memory", || {
        fetch(&http, "/api/series?from=-9000&to=0&points=60")["rows"]
            .as_array()
            .is_some_and(|rows| !rows.is_empty())
    });
}

#[test]
fn the_recorder_can_be_turned_off_and_on() {
    let http = start_http(&["--recorder-memory", "0"]);
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(http.server.info("recorder_bytes"), "0");
    http.server.connect().run("CONFIG SET recorder-memory 1mb");
    wait_until("it records", || http.server.info("recorder_bytes") != "0");
}

#[test]
fn tools_read_the_history_with_a_password() {
    let http = start_http(&["--requirepass", "secret"]);
    http.server.connect().run("AUTH secret");
    let status = |path: &str, bearer: &str| http.status(path, &[("Authorization", bearer)]);
    for path in ["/api/series", "/api/events", "/api/findings?from=-3600000"] {
        assert_eq!(http.status(path, &[]), 401, "{path}");
        assert_eq!(status(path, "Bearer wrong"), 401, "{path}");
        assert_eq!(status(path, "Bearer secret"), 200, "{path}");
    }
    assert_eq!(http.status("/api/command", &[("Authorization", "Bearer secret")]), 404, "it is no history");
}

#[test]
fn an_operator_may_start_a_capture_by_the_doctor() {
    let http = start_http(&[]);
    http.server.connect().run("ACL SETUSER watcher on >secret +info +latency|doctor");
    let watcher = http.browser("watcher", "secret");
    assert_eq!(watcher.get("/api/doctor").status, 403);
    assert_eq!(watcher.post("/api/doctor", &[], "").status, 403);
    assert_eq!(watcher.get("/api/doctor/page").status, 403);
    let operator = http.browser("default", "");
    assert_eq!(operator.get("/api/doctor/page").status, 404);
    assert_eq!(operator.post("/api/doctor?seconds=-1", &[], "").status, 400);
    let capture = || fetch(&http, "/api/doctor");
    assert_eq!(capture()["last"]["state"], "never");
    let started = operator.post("/api/doctor?seconds=1", &[], "");
    if capture()["available"] == false {
        assert_eq!(started.status, 409, "{}", started.body);
        let reason = capture()["why"].as_str().unwrap_or_default().to_owned();
        assert!(reason.contains("root") || reason.contains("not installed"), "{reason}");
        return;
    }
    assert_eq!(started.status, 202, "{}", started.body);
    assert_eq!(operator.post("/api/doctor?seconds=1", &[], "").status, 409, "one is running");
    wait_until("the capture ends", || capture()["last"]["state"] != "running");
    let last = capture()["last"].clone();
    assert_eq!(last["state"], "done", "{last:#}");
    assert!(last["text"].as_str().is_some_and(|text| text.contains("evenkeel")), "{last:#}");
    let page = operator.get("/api/doctor/page");
    let policy = page.header("content-security-policy").unwrap_or_default();
    assert!(policy.starts_with("sandbox allow-scripts; default-src 'none'"), "{policy}");
    assert!(page.body.contains("<html"), "{}", &page.body[..200.min(page.body.len())]);
}
