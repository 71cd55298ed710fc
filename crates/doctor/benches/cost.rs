//! The doctor's cost to a server: throughput in windows with the doctor, and in the windows just before and
//! after.
//!
//! ```text
//! cargo bench -p evenkeel-doctor --features bpf --bench cost -- [--pairs 10] [--seconds 3] [--first]
//! ```
//!
//! Machines drift, so a window counts only against its neighbours in time, and the median of these ratios is
//! reported. The ratios of neighbours without the doctor are beside it: their distance from 1 is noise. The
//! doctor runs as a whole program, with all collectors and its budget; a window begins when its programs are
//! attached.
//!
//! `--first` gives server and load real-time priority (root). Then a busy machine disturbs less. But the
//! doctor's user-space part has to wait as well, so its CPU time, about 1%, is not in the result.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_testkit::{Client, Program, Reference, Server};

/// Minimum throughput with the doctor.
const GOAL: f64 = 0.95;
/// Maximum time of the doctor's start, which is not part of the window.
const START_MAX: Duration = Duration::from_secs(20);

const LOADS: &[(&str, &[&str])] = &[
    ("pipeline 16, 50 clients", &["-P", "16", "-c", "50"]),
    ("pipeline 1, 50 clients", &["-P", "1", "-c", "50"]),
    ("pipeline 1, 1 client", &["-P", "1", "-c", "1"]),
];

struct Options {
    pairs: usize,
    seconds: f64,
    first: bool,
}

fn main() {
    let Some(options) = options() else {
        eprintln!("cost: [--pairs N] [--seconds S] [--first], both numbers more than 0");
        std::process::exit(2);
    };
    let redis = Program::find(Reference::Redis).expect("scripts/setup installs redis-server");
    println!("redis-server, SET 500 B; {} pairs of {} s; goal {GOAL}", options.pairs, options.seconds);
    println!(
        "{:<24} {:>9} {:>17} {:>9} {:>17} {:>6} {:>8}",
        "load", "with", "range", "noise", "range", "duty", "kernel %"
    );
    for (name, args) in LOADS {
        measure(name, args, &redis, &options);
    }
}

/// Ignores Cargo's `--bench`.
fn options() -> Option<Options> {
    let mut options = Options { pairs: 10, seconds: 3.0, first: false };
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        match word.as_str() {
            "--pairs" => options.pairs = words.next()?.parse().ok()?,
            "--seconds" => options.seconds = words.next()?.parse().ok()?,
            "--first" => options.first = true,
            _ => return None,
        }
    }
    (options.pairs > 0 && options.seconds > 0.0).then_some(options)
}

fn measure(name: &str, args: &[&str], redis: &Program, options: &Options) {
    let server = Server::start(&redis.clone().started_by(&on_cpu(0, options.first)), &[]);
    let _load = Load::start(server.port(), args, options.first);
    let mut client = server.connect();
    let length = Duration::from_secs_f64(options.seconds);
    std::thread::sleep(Duration::from_secs(1));
    let (mut off, mut on, mut healths) = (vec![rate(&mut client, length)], Vec::new(), Vec::new());
    for _ in 0..options.pairs {
        let doctor = Doctor::start(server.pid(), options.seconds);
        on.push(rate(&mut client, length));
        healths.push(doctor.finish());
        off.push(rate(&mut client, length));
    }
    let neighbours = |index: usize| (off[index] + off[index + 1]) / 2.0;
    let with = sorted(on.iter().enumerate().map(|(index, rate)| rate / neighbours(index)));
    let noise = sorted(off.windows(2).map(|two| two[1] / two[0]));
    let mean = |index: usize| healths.iter().map(|health| health[index]).sum::<f64>() / healths.len() as f64;
    println!(
        "{name:<24} {:>9.3} {:>17} {:>9.3} {:>17} {:>6.2} {:>8.2}",
        median(&with),
        range(&with),
        median(&noise),
        range(&noise),
        mean(0),
        mean(1) * 100.0
    );
}

/// Returns commands a second.
fn rate(client: &mut Client, length: Duration) -> f64 {
    let (start, before) = (Instant::now(), commands(client));
    std::thread::sleep(length);
    let (passed, after) = (start.elapsed(), commands(client));
    (after - before) / passed.as_secs_f64()
}

fn commands(client: &mut Client) -> f64 {
    let reply = client.run("INFO stats");
    let text = String::from_utf8_lossy(reply.as_bytes().expect("INFO is text")).into_owned();
    let field = text.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    field.and_then(|text| text.trim().parse().ok()).expect("INFO counts commands")
}

/// Server and load have different CPUs; the doctor runs wherever the kernel puts it, as it would elsewhere.
fn on_cpu(cpu: usize, first: bool) -> Vec<&'static str> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let before_others: &[&str] = if first { &["chrt", "-r", "5"] } else { &[] };
    match cpu {
        _ if cpus < 2 => before_others.to_vec(),
        0 => [before_others, &["taskset", "-c", "0"]].concat(),
        _ => [before_others, &["taskset", "-c", "1"]].concat(),
    }
}

/// An endless redis-benchmark, killed on drop.
struct Load(Child);

impl Load {
    fn start(port: u16, args: &[&str], first: bool) -> Load {
        let port = port.to_string();
        let mut words = on_cpu(1, first);
        words.extend(["redis-benchmark", "-p", &port, "-n", "1000000000", "-q"]);
        words.extend(["-t", "set", "-d", "500", "-r", "100000"]);
        words.extend(args);
        let mut command = Command::new(words[0]);
        let child = command.args(&words[1..]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Load(child.expect("scripts/setup installs redis-benchmark"))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Doctor {
    child: Child,
    file: PathBuf,
}

impl Doctor {
    /// Starts the doctor, and returns when its programs are attached.
    fn start(pid: u32, seconds: f64) -> Doctor {
        let file = std::env::temp_dir().join(format!("doctor-cost-{}", std::process::id()));
        let child = Command::new(env!("CARGO_BIN_EXE_evenkeel-doctor"))
            .args(["record", "--pid", &pid.to_string(), "--seconds", &format!("{}", seconds + 0.5)])
            .arg("--output")
            .arg(&file)
            .spawn()
            .expect("the doctor was built for this bench");
        let start = Instant::now();
        while !attached(child.id()) {
            assert!(start.elapsed() < START_MAX, "the doctor has attached nothing: is this root, with eBPF?");
            std::thread::sleep(Duration::from_millis(5));
        }
        Doctor { child, file }
    }

    /// Returns the part of the window with attached programs, and the share of a CPU that they took.
    fn finish(mut self) -> [f64; 2] {
        let status = self.child.wait().expect("it was started");
        assert!(status.success(), "the doctor failed");
        let doctor = Command::new(env!("CARGO_BIN_EXE_evenkeel-doctor"))
            .args(["explain", "--json"])
            .arg(&self.file)
            .output()
            .expect("the doctor was built for this bench");
        let report: serde_json::Value = serde_json::from_slice(&doctor.stdout).expect("--json prints JSON");
        let _ = std::fs::remove_file(&self.file);
        let number = |value: &serde_json::Value| value.as_f64().expect("the report has it");
        let window_ns = number(&report["window_seconds"]) * 1e9;
        [number(&report["health"]["duty"]), number(&report["health"]["kernel_ns"]) / window_ns]
    }
}

/// Whether a process holds links of BPF programs.
fn attached(pid: u32) -> bool {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let link = |entry: std::fs::DirEntry| std::fs::read_link(entry.path()).ok();
    entries.flatten().filter_map(link).any(|to| to.to_string_lossy().contains("bpf_link"))
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

fn range(sorted: &[f64]) -> String {
    format!("({:.3}..{:.3})", sorted[0], sorted[sorted.len() - 1])
}
