//! Refusals: a single sentence and an exit code, and nothing stays behind.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::extremes::links_of;
use crate::stage::{stage, wait_for};

fn doctor(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_evenkeel-doctor"))
        .args(args)
        .output()
        .expect("the doctor was built for this test")
}

#[track_caller]
pub(crate) fn refused(args: &[&str]) -> String {
    let output = doctor(args);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn inaccessible_processes_are_named() {
    assert_eq!(
        refused(&["diagnose", "--pid", "2147483646"]),
        "evenkeel-doctor: there is no process 2147483646\n"
    );
    assert!(refused(&["diagnose", "--pid", "2"]).ends_with(" is a thread of the kernel\n"));
    assert_eq!(
        refused(&["diagnose", "--name", "no-such-program"]),
        "evenkeel-doctor: there is no process named no-such-program\n"
    );
    assert!(refused(&["diagnose", "--port", "1"]).contains("no process listens on TCP port 1 here"));
    assert!(
        refused(&["diagnose", "--pid", "1", "--seconds", "0"]).contains("--seconds is to be more than 0")
    );
    assert!(refused(&["diagnose"]).contains("--pid"));
    assert!(refused(&["diagnose", "--", "/no/such/program"]).contains("cannot start /no/such/program"));
}

#[test]
fn a_process_that_ends_too_early_is_reported() {
    let _stage = stage();
    let said = refused(&["diagnose", "--seconds", "20", "--", "sleep", "3"]);
    assert!(said.contains("(sleep) ended after ") && said.contains("too early to say"), "{said}");
}

#[test]
fn recordings_that_are_damaged_are_refused() {
    let folder = std::env::temp_dir().join(format!("doctor-refusals-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a private folder");
    let path = folder.join("recording");
    let shown = path.to_str().expect("text").to_string();
    assert!(refused(&["explain", &shown]).contains("cannot read"));
    std::fs::write(&path, "evenkeel-doctor recording 9 1 0\nx").expect("written");
    assert!(refused(&["explain", &shown]).contains("it is of version 9"));
    std::fs::write(&path, "evenkeel-doctor recording 2 100 0000000000000000\nx").expect("written");
    assert!(refused(&["explain", &shown]).contains("it is cut: 1 of 100 bytes are there"));
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// Files contain no secrets of the command line, and only their owner may access them, even if they existed
/// before.
#[test]
fn files_have_no_secrets_and_are_readable_by_their_owner_only() {
    let _stage = stage();
    let folder = std::env::temp_dir().join(format!("doctor-secrets-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a private folder");
    let files = ["recording", "page", "again", "difference", "stacks"].map(|name| folder.join(name));
    let [recording, page, again, difference, stacks] =
        files.each_ref().map(|file| file.to_str().expect("text"));
    for file in [page, "recording.part"] {
        let file = folder.join(file);
        std::fs::write(&file, "of before").expect("written");
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("it is ours");
    }
    let secrets = ["--requirepass", "s3cret-1", "--user", "alice on >s3cret-2", "redis://me:s3cret-3@host"];
    let mut target = Command::new("sh")
        .args(["-c", "read line; exit", "sh"])
        .args(secrets)
        .stdin(Stdio::piped())
        .spawn()
        .expect("there is a shell");
    let pid = target.id().to_string();
    wait_for("its command line can be read", || {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("s3cret-3"))
    });
    let args = ["diagnose", "--proc-only", "--seconds", "0.5", "--json", "--pid", &pid];
    let seen = doctor(&[&args[..], &["--record", recording, "--html", page]].concat());
    drop(target.stdin.take()); // it reads the end of its input, and ends
    target.wait().expect("it is ours");
    let others = [
        doctor(&["explain", recording, "--html", again]),
        doctor(&["diff", recording, recording, "--html", difference]),
        doctor(&["export", "--from", recording, "--folded", "--output", stacks]),
    ];
    for output in others.iter().chain([&seen]) {
        assert!(output.status.success(), "{output:?}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("s3cret"), "{output:?}");
    }
    for file in &files {
        let text = String::from_utf8_lossy(&std::fs::read(file).expect("it is there")).into_owned();
        assert!(!text.contains("s3cret"), "{}: {text}", file.display());
        let mode = std::fs::metadata(file).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", file.display());
    }
    let text = std::fs::read_to_string(recording).expect("text");
    assert!(text.contains(r#""--requirepass","(redacted)","--user","alice on >(redacted)""#), "{text}");
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// Waits until a doctor has attached its programs, or for a few seconds if it cannot.
fn begun(pid: u32) {
    let start = Instant::now();
    while links_of(pid) < 3 && start.elapsed() < Duration::from_secs(3) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn ctrl_c_ends_the_window_with_a_report() {
    let _stage = stage();
    let own = std::process::id().to_string();
    let child = Command::new(env!("CARGO_BIN_EXE_evenkeel-doctor"))
        .args(["diagnose", "--seconds", "600", "--json", "--pid", &own])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the doctor was built for this test");
    begun(child.id());
    std::thread::sleep(Duration::from_secs(1));
    // SAFETY: a plain system call, on a child that has not been waited for.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGINT) };
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert!(
        report["window_seconds"].as_f64().is_some_and(|seconds| (0.5..10.0).contains(&seconds)),
        "{report}"
    );
}

#[test]
fn programs_stop_while_the_doctor_is_stopped() {
    let _stage = stage();
    let own = std::process::id().to_string();
    let child = Command::new(env!("CARGO_BIN_EXE_evenkeel-doctor"))
        .args(["diagnose", "--seconds", "3", "--json", "--pid", &own])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the doctor was built for this test");
    begun(child.id());
    std::thread::sleep(Duration::from_millis(500));
    for (signal, then) in [(libc::SIGSTOP, 1_500), (libc::SIGCONT, 0)] {
        // SAFETY: a plain system call, on a child that has not been waited for.
        unsafe { libc::kill(child.id().cast_signed(), signal) };
        std::thread::sleep(Duration::from_millis(then));
    }
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
    if report["tier"] == "T0" {
        assert!(report["health"]["duty"].as_f64().is_some_and(|duty| duty < 0.8), "{report}");
    }
}
