//! Experiments from beginning to end, briefly, against real servers: their metrics, their files, and the
//! pages made from these files.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const BENCH: &str = env!("CARGO_BIN_EXE_evenkeel-bench");

/// A temporary folder, removed with the value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("evenkeel-experiments-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("it is not there yet");
        Folder(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).expect("it was written")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn bench(args: &[&str]) -> Output {
    let output = Command::new(BENCH).args(args).output().expect("the program is built");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}\n{}", String::from_utf8_lossy(&output.stdout));
    output
}

/// Runs an experiment with the installed servers; returns its first record.
#[track_caller]
fn run(folder: &Folder, args: &[&str]) -> Value {
    let (json, html) = (folder.path("run.json"), folder.path("run.html"));
    let ours = Path::new(BENCH).with_file_name("evenkeel");
    assert!(ours.exists(), "cargo build -p evenkeel");
    let ours = ours.display().to_string();
    let fixed = ["--evenkeel", &ours, "--json", &json, "--html", &html];
    bench(&[args, &fixed].concat());
    let run: Value = serde_json::from_str(&folder.read("run.json")).expect("it writes JSON");
    assert_eq!(run["not_measured"], Value::Array(Vec::new()));
    run["experiments"][0].clone()
}

fn server<'a>(record: &'a Value, name: &str) -> &'a Value {
    let servers = record["servers"].as_array().expect("a list");
    servers.iter().find(|server| server["server"] == name).unwrap_or_else(|| panic!("{name} in {record}"))
}

fn rounds(server: &Value, figure: &str) -> Vec<f64> {
    let list = server[figure].as_array().unwrap_or_else(|| panic!("{figure} in {server}"));
    list.iter().map(|value| value.as_f64().expect("a number")).collect()
}

#[test]
fn throughput_makes_a_page_a_chart_and_a_table() {
    let folder = Folder::new("throughput");
    let brief = ["throughput", "--rounds", "2", "--seconds", "0.5", "-k", "1000", "--without", "redis,floor"];
    let record = run(&folder, &brief);
    for name in ["valkey", "evenkeel", "evenkeel again"] {
        let server = server(&record, name);
        for figure in ["requests_per_s", "cpu_us_per_command", "rss_bytes"] {
            let values = rounds(server, figure);
            assert!(values.len() == 2 && values.iter().all(|value| *value > 0.0), "{figure}: {server}");
        }
        assert_eq!(server["control"], name == "evenkeel again");
    }
    let (json, html) = (folder.path("run.json"), folder.path("again.html"));
    let (chart, table) = (folder.path("chart.svg"), folder.path("table.md"));
    bench(&["page", &json, &html, "--chart", &chart, "--table", &table]);
    assert_eq!(folder.read("again.html"), folder.read("run.html"));
    assert!(folder.read("chart.svg").starts_with("<svg "));
    assert!(folder.read("table.md").contains("| SET, pipeline 16 |"));
    // A run is no worse than itself.
    bench(&["compare", &json, &json]);
}

#[test]
fn the_effect_of_a_snapshot_is_measured_while_it_lasts() {
    let folder = Folder::new("snapshot");
    let brief = ["snapshot", "--rounds", "1", "--seconds", "0.1", "-k", "150000", "--without", "redis,floor"];
    let record = run(&folder, &brief);
    for name in ["valkey", "evenkeel", "evenkeel again"] {
        let server = server(&record, name);
        let [longest, took, rate] =
            ["longest_us_during", "took_s", "requests_per_s_during"].map(|figure| rounds(server, figure)[0]);
        assert!(took > 0.1 && longest > 0.0 && rate > 0.0, "{server}");
    }
    let pauses = &record["pauses"];
    assert!(
        pauses["looked_s"] == 6.0 && pauses["longest_us"].as_f64().is_some_and(|us| us > 0.0),
        "{pauses}"
    );
    let timeline = &record["timelines"][0];
    let slices = timeline["longest_us"].as_array().expect("a list").len() as f64;
    let [whole_ms, event_ms] = [
        slices * timeline["slice_ms"].as_f64().expect("a number"),
        timeline["event_ms"][1].as_f64().expect("a number"),
    ];
    assert!(
        (whole_ms - event_ms).abs() < 0.5 * event_ms + 50.0,
        "{whole_ms} ms, and the event took {event_ms}"
    );
}

#[test]
fn an_impossible_measurement_is_reported_and_fails() {
    let output = Command::new(BENCH).args(["snapshot", "-k", "100000000000"]).output();
    let output = output.expect("the program is built");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("need"), "{stderr}");
}
