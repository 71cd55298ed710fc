//! Targets and machines of unusual shape: many threads and descriptors, a separate mount namespace, no
//! symbols, a kernel without BTF, and a doctor that is killed.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::stage::{self, stage};
use crate::{Folder, corpus};

fn is_root() -> bool {
    // SAFETY: it only reads.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn ten_thousand_threads_and_fifty_thousand_descriptors_are_captured_in_time() {
    let _stage = stage();
    let program = corpus::start("many", stage::ANYWHERE);
    let start = Instant::now();
    let pid = program.pid().to_string();
    let report = stage::doctor_json(&["diagnose", "--json", "--seconds", "1", "--pid", &pid]);
    let took = start.elapsed();
    println!("{} threads, {} descriptors: {took:?}", corpus::MANY_THREADS, corpus::MANY_DESCRIPTORS);
    assert!(report["critical"]["tid"].is_number(), "{report}");
    assert_eq!(report["verdict"], "idle", "{report}");
    assert!(took < Duration::from_secs(30), "{took:?}");
    let threads = stage::doctor(&["threads", "--seconds", "0.5", "--proc-only", "--pid", &pid]);
    assert!(threads.lines().count() <= 40, "a table stays readable: {threads}");
}

#[test]
fn a_program_that_only_its_own_namespace_can_see_is_named() {
    if !is_root() {
        return println!("left out: needs root, to make a namespace");
    }
    let _stage = stage();
    let folder = Folder::new("namespace");
    let own = std::env::current_exe().expect("this test has a path");
    // The file is on a tmpfs that is mounted in that namespace alone.
    let script = format!(
        "mount -t tmpfs none {0} && cp {1} {0}/program && exec {0}/program \"$@\"",
        folder.file(""),
        own.display()
    );
    let prefix = ["unshare", "--mount", "sh", "-c", &script];
    let program = corpus::start_by(&prefix, std::path::Path::new("program"), "hog");
    let pid = program.pid().to_string();
    let folded = stage::doctor(&["cpu", "--seconds", "1", "--pid", &pid]);
    let tier = stage::doctor_json(&["diagnose", "--json", "--seconds", "0.6", "--pid", &pid])["tier"].clone();
    if tier == "T3" {
        return println!("left out: needs CPU samples");
    }
    assert!(folded.lines().any(|line| line.contains("corpus::hog;")), "{folded}");
}

#[test]
fn without_kernel_type_information_perf_is_used_and_reported() {
    if !is_root() || !cfg!(feature = "bpf") {
        return println!("left out: needs root and the feature bpf");
    }
    let _stage = stage();
    let program = corpus::start("hog", stage::ANYWHERE);
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", "mount -t tmpfs none /sys/kernel/btf && exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_evenkeel-doctor"))
        .args(["diagnose", "--json", "--seconds", "1", "--pid", &program.pid().to_string()])
        .output()
        .expect("scripts/setup installs unshare");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(report["tier"], "T1", "{report}");
    assert!(
        report["health"]["notes"].to_string().contains("the kernel does not describe itself"),
        "{report}"
    );
}

/// Returns the number of BPF links that a process holds.
pub(crate) fn links_of(pid: u32) -> usize {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let link = |entry: std::fs::DirEntry| std::fs::read_link(entry.path()).ok();
    entries.flatten().filter_map(link).filter(|to| to.to_string_lossy().contains("bpf_link")).count()
}

/// Returns the ids of all loaded BPF programs that have the doctor's names.
pub(crate) fn programs_of_the_doctor() -> Vec<u32> {
    const NEXT_ID: libc::c_int = 11;
    const FD_BY_ID: libc::c_int = 13;
    const INFO_BY_FD: libc::c_int = 15;
    const NAME_AT: usize = 64; // in `struct bpf_prog_info`
    let call = |command: libc::c_int, attributes: &mut [u64; 4]| {
        // SAFETY: the attributes are alive for the call, and larger than the bytes that these commands
        // access.
        unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), 32) }
    };
    let mut found = Vec::new();
    let mut id = 0_u32;
    loop {
        let mut attributes = [u64::from(id), 0, 0, 0];
        if call(NEXT_ID, &mut attributes) != 0 {
            return found;
        }
        id = (attributes[0] >> 32) as u32;
        let fd = call(FD_BY_ID, &mut [u64::from(id), 0, 0, 0]);
        if fd < 0 {
            continue; // unloaded since
        }
        let mut info = [0_u8; 128];
        let length = info.len() as u64;
        call(INFO_BY_FD, &mut [fd as u64 | length << 32, info.as_mut_ptr() as u64, 0, 0]);
        // SAFETY: the descriptor is ours, and is not used again.
        unsafe { libc::close(fd as i32) };
        if [&b"on_switch"[..], b"on_enter", b"on_sample"].iter().any(|name| info[NAME_AT..].starts_with(name))
        {
            found.push(id);
        }
    }
}

#[test]
fn a_killed_doctor_leaves_nothing_attached() {
    let _stage = stage();
    let before = programs_of_the_doctor();
    let mut child = Command::new(env!("CARGO_BIN_EXE_evenkeel-doctor"))
        .args(["diagnose", "--seconds", "60", "--pid", &std::process::id().to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the doctor was built for this test");
    let start = Instant::now();
    while links_of(child.id()) < 3 && start.elapsed() < Duration::from_secs(3) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let has_programs = links_of(child.id()) > 0;
    let during = programs_of_the_doctor();
    child.kill().expect("it runs");
    child.wait().expect("it was started");
    if !has_programs {
        return println!("left out: needs eBPF");
    }
    // Programs of a doctor that ended just before, or of another user, may be there.
    let new: Vec<u32> = during.into_iter().filter(|id| !before.contains(id)).collect();
    assert!(new.len() >= 3, "{before:?} {new:?}");
    // The kernel frees programs a little later.
    stage::wait_for("they are gone", || programs_of_the_doctor().iter().all(|id| !new.contains(id)));
}
