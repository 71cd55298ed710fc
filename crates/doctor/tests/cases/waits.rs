//! Cases of servers that wait for something with their clients' requests in hand.

use crate::corpus;
use crate::stage::{self, Seen, diagnose_with, stage};

/// Diagnoses a program of the corpus, with all tiers and by /proc alone.
fn both_ways(program: &str, check: impl Fn(&Seen)) {
    let _stage = stage();
    let server = corpus::start(program, stage::ANYWHERE);
    let _clients = corpus::patient_pair(server.port());
    for more in [&[][..], &["--proc-only"]] {
        check(&diagnose_with(program, server.pid(), more));
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
