//! Cases of servers that wait for something with their clients' requests in hand.

use evenkeel_testkit::Server;

use crate::corpus;
use crate::stage::{self, Load, Seen, diagnose_with, stage};

/// Connections are sampled some five times a second, less often on a busy machine.
const SECONDS: &str = "5";

/// Diagnoses a program of the corpus, with all tiers and by /proc alone.
fn both_ways(program: &str, check: impl Fn(&Seen)) {
    let _stage = stage();
    let server = corpus::start(program, stage::ANYWHERE);
    let _clients = corpus::patient_pair(server.port());
    for more in [&[][..], &["--proc-only"]] {
        check(&stage::diagnose_for(program, server.pid(), SECONDS, more));
    }
}

#[test]
fn a_slow_upstream_is_the_first_finding_by_name() {
    both_ways("front-of-slow", |seen| {
        seen.expect_first("R22");
        let title = seen.titles()[0];
        assert!(
            title.contains(" of the time it waits for 127.0.0.1:") && title.contains(" (cases-"),
            "{seen}"
        );
    });
}

#[test]
#[ignore = "long"]
fn a_fast_upstream_is_no_finding() {
    both_ways("front-of-fast", |seen| assert!(!seen.rules().contains(&"R22".to_string()), "{seen}"));
}

#[test]
#[ignore = "long"]
fn a_handler_that_sleeps_is_the_first_finding() {
    both_ways("sleeper", |seen| {
        seen.expect_first("R22");
        assert!(seen.titles()[0].contains("clock_nanosleep"), "{seen}");
    });
}

#[test]
#[ignore = "long"]
fn a_silent_name_server_is_the_first_finding() {
    both_ways("name-asker", |seen| {
        seen.expect_first("R22");
        assert!(seen.titles()[0].contains("the name server 127.0.0.1:53"), "{seen}");
    });
}

#[test]
#[ignore = "long"]
fn a_lock_that_is_kept_over_a_sleep_is_the_first_finding() {
    let _stage = stage();
    let server = corpus::start("lock-sleeper", stage::ANYWHERE);
    let _clients = corpus::patient_six(server.port());
    let Some(seen) = diagnose_with("a lock over a sleep of 50 ms", server.pid(), &[]).in_kernel() else {
        return;
    };
    assert!(["R6", "R22"].contains(&seen.rules()[0].as_str()), "{seen}");
    assert!(seen.titles()[0].contains("update_totals"), "{seen}");
}

#[test]
#[ignore = "long"]
fn a_named_pipe_with_a_slow_reader_is_the_first_finding_by_the_readers_name() {
    let _stage = stage();
    let folder = crate::Folder::new("fifo");
    let variable = format!("{}={}", corpus::FILE_VARIABLE, folder.file("pipe"));
    let own = std::env::current_exe().expect("this test has a path");
    let server = corpus::start_by(&["env", &variable], &own, "fifo-writer");
    for more in [&[][..], &["--proc-only"]] {
        let seen = diagnose_with("a FIFO whose reader sleeps", server.pid(), more);
        seen.expect_first("R11");
        let reader = format!("({})", server.child());
        assert!(seen.titles()[0].contains(&reader), "the reader is named: {seen}");
    }
}

/// A file for swapping and a control group with a limit on memory, removed on drop.
struct Swap(std::path::PathBuf, std::path::PathBuf);

impl Swap {
    /// `None` where neither can be made.
    fn new(file: std::path::PathBuf) -> Option<Swap> {
        let run = |words: &[&str]| {
            let status = std::process::Command::new(words[0]).args(&words[1..]).output();
            status.is_ok_and(|output| output.status.success()).then_some(())
        };
        let group =
            std::path::PathBuf::from(format!("/sys/fs/cgroup/memory/doctor-swap-{}", std::process::id()));
        std::fs::create_dir(&group).ok()?;
        let swap = Swap(file, group);
        let path = swap.0.to_str()?;
        run(&["dd", "if=/dev/zero", &format!("of={path}"), "bs=1M", "count=300"])?;
        run(&["chmod", "600", path])?;
        run(&["mkswap", path])?;
        run(&["swapon", path])?;
        Some(swap)
    }

    fn limit(&self, pid: u32, bytes: u64) {
        std::fs::write(self.1.join("cgroup.procs"), pid.to_string()).expect("the group takes it");
        std::fs::write(self.1.join("memory.limit_in_bytes"), bytes.to_string()).expect("it can be swapped");
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = std::process::Command::new("swapoff").arg(&self.0).output();
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_dir(&self.1);
    }
}

#[test]
#[ignore = "long"]
fn memory_in_the_swap_is_the_first_finding_with_the_limit_of_the_group() {
    const LIMIT: u64 = 120 << 20;
    let _stage = stage();
    let folder = crate::Folder::new("swap");
    let Some(swap) = Swap::new(folder.file("swap").into()) else {
        return println!("left out: no swap, or no control group");
    };
    let server = Server::start(&stage::redis(stage::ANYWHERE), &["--save", ""]);
    swap.limit(server.pid(), LIMIT);
    // Its data grow beyond the limit.
    Load::run(server.port(), &["-t", "set", "-d", "1000", "-r", "150000", "-n", "400000", "-P", "16"]);
    let load = Load::start_at(stage::ANYWHERE, server.port(), &["-t", "get", "-r", "150000", "-c", "10"]);
    let seen = diagnose_with("redis-server, a control group of 120 MB and swap", server.pid(), &[]);
    drop(load);
    drop(server);
    seen.expect_first("R15");
    let title = seen.titles()[0];
    assert!(title.contains("swapped out") && title.contains("may have 126 MB"), "{seen}");
}
