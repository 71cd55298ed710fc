//! The tiers without full privileges: each on a real process, with the notes on missing mechanisms.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::stage::{self, stage};
use crate::{Folder, corpus};

const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

fn is_root() -> bool {
    // SAFETY: it only reads.
    unsafe { libc::geteuid() == 0 }
}

/// Makes a copy that any user may start: the build folder may be closed to him.
fn copy_for_all(program: &Path, folder: &Folder) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let copy =
        PathBuf::from(folder.file(program.file_name().and_then(|name| name.to_str()).expect("a name")));
    let for_all = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("it is ours")
    };
    std::fs::copy(program, &copy).expect("it can be copied");
    for_all(&copy);
    for_all(copy.parent().expect("a folder"));
    copy
}

/// Returns the doctor's answer about a process to the user nobody.
fn ask_as_nobody(doctor: &Path, question: &[&str], pid: u32) -> String {
    let output = Command::new(NOBODY[0])
        .args(&NOBODY[1..])
        .arg(doctor)
        .args(question)
        .args(["--seconds", "1.5", "--pid", &pid.to_string()])
        .output()
        .expect("scripts/setup installs setpriv");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn diagnose_as_nobody(doctor: &Path, pid: u32) -> Value {
    serde_json::from_str(&ask_as_nobody(doctor, &["diagnose", "--json"], pid)).expect("--json prints JSON")
}

fn notes(report: &Value) -> String {
    report["health"]["notes"].to_string()
}

/// Whether this doctor can sample: without eBPF support it has /proc alone.
const HAS_PERF: bool = cfg!(feature = "bpf");

#[test]
fn a_plain_user_sees_own_functions_and_a_list_of_missing_data() {
    if !is_root() || !HAS_PERF {
        return println!("left out: needs root, to become another user, and the feature bpf");
    }
    let _stage = stage();
    let folder = Folder::new("tiers");
    let doctor = copy_for_all(Path::new(env!("CARGO_BIN_EXE_evenkeel-doctor")), &folder);
    let own = copy_for_all(&std::env::current_exe().expect("this test has a path"), &folder);
    let hog = corpus::start_by(&NOBODY, &own, "hog");
    let report = diagnose_as_nobody(&doctor, hog.pid());
    let notes = notes(&report);
    assert!(notes.contains("no programs inside the kernel: ") && notes.contains("CAP_BPF"), "{notes}");
    if report["tier"] == "T3" {
        // kernel.perf_event_paranoid above 2 denies perf to unprivileged users.
        return assert!(notes.contains("no CPU samples by perf: "), "{notes}");
    }
    assert_eq!(report["tier"], "T2", "{notes}");
    assert!(notes.contains("no samples of the kernel: "), "{notes}");
    let mut unseen =
        report["ruled_out"].as_array().expect("a list").iter().filter(|ruled| ruled["unseen"] == true);
    assert!(unseen.any(|ruled| ruled["rule"] == "R5"), "{report}");
    let folded = ask_as_nobody(&doctor, &["cpu"], hog.pid());
    assert!(folded.lines().any(|line| line.contains("corpus::hog;")), "{folded}");
}

#[test]
fn another_users_process_shows_only_public_proc_data() {
    if !is_root() {
        return println!("left out: needs root, to become another user");
    }
    let _stage = stage();
    let folder = Folder::new("others");
    let doctor = copy_for_all(Path::new(env!("CARGO_BIN_EXE_evenkeel-doctor")), &folder);
    let hog = corpus::start("hog", stage::ANYWHERE);
    let report = diagnose_as_nobody(&doctor, hog.pid());
    assert_eq!(report["tier"], "T3", "{report}");
    assert!(report["critical"]["cpu_ns"].as_u64().is_some_and(|ns| ns > 1_000_000), "{report}");
    if HAS_PERF {
        assert!(notes(&report).contains("no CPU samples by perf: "), "{report}");
    }
}

#[test]
fn without_bpf_programs_perf_sees_the_kernel_too() {
    if !is_root() || !HAS_PERF {
        return println!("left out: needs root and the feature bpf");
    }
    let _stage = stage();
    let server = corpus::start("writer", stage::ANYWHERE);
    let args = ["--pid", &server.pid().to_string(), "--no-bpf", "--seconds", "2"];
    let report = stage::doctor_json(&[&["diagnose", "--json"], &args[..]].concat());
    assert_eq!(report["tier"], "T1", "{report}");
    assert!(notes(&report).contains("--no-bpf: "), "{report}");
    let folded = stage::doctor(&[&["cpu"], &args[..]].concat());
    let inside = folded
        .lines()
        .filter(|line| line.contains("corpus::write_to_nobody;") && line.contains(";do_syscall_64"));
    assert!(inside.count() > 0, "{folded}");
}
