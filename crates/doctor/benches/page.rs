//! Time and size of the page of a large recording.
//!
//! ```text
//! cargo bench -p evenkeel-doctor --bench page -- [--stacks 100000] [--rounds 5]
//! ```
//!
//! The recording is of this process, with added stacks. Each is a different path of 20 functions, as in a
//! large server; half of them are of samples, and half of sleeps. The measured time is that of the whole
//! program: reading the file, the diagnosis, and writing the page.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crc_fast::{CrcAlgorithm, checksum};
use evenkeel_testkit::Random;
use serde_json::{Value, json};

/// Time and size limits of the page of 100,000 stacks.
const GOAL: Duration = Duration::from_secs(1);
const BYTES_MAX: u64 = 5 << 20;

const FRAMES: usize = 5_000;
const DEPTH: usize = 20;
/// Functions that each function calls.
const CALLED: usize = 4;

fn main() {
    let Some((stacks, rounds)) = options() else {
        eprintln!("page: [--stacks N] [--rounds N], both more than 0");
        std::process::exit(2);
    };
    let folder = std::env::temp_dir().join(format!("doctor-page-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a private folder");
    let recording = make(&folder, stacks);
    let page = folder.join("page.html");
    let cpu_before = cpu_of_children();
    let mut took: Vec<Duration> = (0..rounds).map(|_| explain(&recording, &page)).collect();
    let cpu = (cpu_of_children() - cpu_before) / rounds as u32;
    took.sort_unstable();
    let bytes = std::fs::metadata(&page).expect("the page was written").len();
    println!(
        "{stacks} stacks: {:.2} s (goal {GOAL:?}; {:.2} to {:.2} of {rounds}), of them {:.2} s on a CPU; \
         {:.2} MB (goal {} MB)",
        took[took.len() / 2].as_secs_f64(),
        took[0].as_secs_f64(),
        took[took.len() - 1].as_secs_f64(),
        cpu.as_secs_f64(),
        bytes as f64 / f64::from(1 << 20),
        BYTES_MAX >> 20
    );
    let _ = std::fs::remove_dir_all(&folder);
}

/// Ignores Cargo's `--bench`.
fn options() -> Option<(usize, usize)> {
    let (mut stacks, mut rounds) = (100_000, 5);
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        match word.as_str() {
            "--stacks" => stacks = words.next()?.parse().ok()?,
            "--rounds" => rounds = words.next()?.parse().ok()?,
            _ => return None,
        }
    }
    (stacks > 0 && rounds > 0).then_some((stacks, rounds))
}

fn doctor(arguments: &[&str]) {
    let status =
        Command::new(env!("CARGO_BIN_EXE_evenkeel-doctor")).args(arguments).stdout(Stdio::null()).status();
    assert!(status.is_ok_and(|status| status.success()), "{arguments:?}");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

fn explain(recording: &Path, page: &Path) -> Duration {
    let start = Instant::now();
    doctor(&["explain", text(recording), "--html", text(page)]);
    start.elapsed()
}

/// CPU time, which a busy machine does not change.
fn cpu_of_children() -> Duration {
    // SAFETY: zeroes are a valid `rusage`, and the call fills the structure.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let time = |t: libc::timeval| Duration::new(t.tv_sec.max(0) as u64, t.tv_usec.max(0) as u32 * 1_000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Makes a recording with `stacks` stacks, and rewrites its header.
fn make(folder: &Path, stacks: usize) -> PathBuf {
    let path = folder.join("recording");
    let pid = std::process::id().to_string();
    doctor(&["record", "--proc-only", "--seconds", "0.6", "--pid", &pid, "--output", text(&path)]);
    let bytes = std::fs::read(&path).expect("it was recorded");
    let end = bytes.iter().position(|&byte| byte == b'\n').expect("a first line");
    let mut recording: Value = serde_json::from_slice(&bytes[end + 1..]).expect("JSON follows it");
    add_stacks(&mut recording, stacks);
    let body = serde_json::to_vec(&recording).expect("it was JSON");
    let header = String::from_utf8_lossy(&bytes[..end]).into_owned();
    // The checksum covers the first line up to itself, and the JSON.
    let mut words: Vec<&str> = header.split(' ').collect();
    let length = body.len().to_string();
    let at = words.len() - 2;
    words[at] = &length;
    let begin = words[..=at].join(" ") + " ";
    let sum = checksum(CrcAlgorithm::Crc64Redis, &[begin.as_bytes(), &body].concat());
    let line = format!("{begin}{sum:016x}\n");
    std::fs::write(&path, [line.as_bytes(), &body].concat()).expect("room for it");
    path
}

fn add_stacks(recording: &mut Value, count: usize) {
    let mut random = Random::new(1);
    let tid = recording["target"]["pid"].clone();
    let frame = |index| {
        let name = format!("a_function_of_the_server_with_a_name::{index}");
        json!({ "name": name, "module": "server", "unnamed": null })
    };
    recording["frames"] = (0..FRAMES).map(frame).collect();
    let mut stack = || -> Value {
        let mut at = 0;
        let mut frames: Vec<usize> = vec![0];
        for _ in 1..DEPTH {
            at = (at * CALLED + 1 + random.below(CALLED)) % FRAMES;
            frames.push(at);
        }
        frames.reverse(); // the innermost first
        frames.into()
    };
    recording["stacks"] = (0..count).map(|_| stack()).collect();
    let sample = |index| json!({ "tid": tid, "stack": index, "count": 1, "call": null, "fd": null });
    recording["samples"] = (0..count / 2).map(sample).collect();
    let wait = |index| {
        json!({
            "tid": tid, "stack": index, "call": "futex-lock", "fd": null, "address": 4_096, "count": 1,
            "blocked_ns": 50_000, "longest_ns": 50_000
        })
    };
    recording["waits"] = (count / 2..count).map(wait).collect();
}
