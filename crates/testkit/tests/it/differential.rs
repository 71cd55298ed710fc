//! Two servers of the same kind do not differ; two of different kinds do, and the finding is short.

use evenkeel_testkit::differential::{Plan, compare};
use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Program, Reference, Server};

fn compare_with_itself(reference: Reference, commands: usize) {
    let Some(program) = Program::oracle(reference) else { return };
    let (one, other) = (Server::start(&program, &[]), Server::start(&program, &[]));
    match compare(&one, &other, Plan { seed: fresh_seed(), commands, oracle: reference, except: &[] }) {
        Ok(summary) => println!("{summary}"),
        Err(finding) => panic!("{finding}"),
    }
}

#[test]
fn redis_equals_redis() {
    compare_with_itself(Reference::Redis8, 30_000);
}

#[test]
fn valkey_equals_valkey() {
    compare_with_itself(Reference::Valkey, 30_000);
}

#[test]
fn a_difference_is_found_and_shrunk_to_a_few_commands() {
    let Some(program) = Program::oracle(Reference::Valkey) else { return };
    let oracle = Server::start(&program, &[]);
    // This server has no APPEND.
    let subject = Server::start(&program, &["--rename-command", "APPEND", ""]);
    let plan = Plan { seed: 11, commands: 10_000, oracle: Reference::Valkey, except: &[] };
    let finding = compare(&subject, &oracle, plan).expect_err("one of them has no APPEND").to_string();
    println!("{finding}");
    assert!(
        finding.contains(", 1 of ") && finding.contains("unknown command"),
        "one command shows it:\n{finding}"
    );
}

#[test]
fn a_difference_that_needs_preparation_keeps_it() {
    let Some(program) = Program::oracle(Reference::Valkey) else { return };
    let oracle = Server::start(&program, &[]);
    // The subject counts how often a key is used, the oracle when: the difference shows as soon as a key
    // exists.
    let subject = Server::start(&program, &["--maxmemory-policy", "allkeys-lfu"]);
    let plan = Plan { seed: 11, commands: 10_000, oracle: Reference::Valkey, except: &[] };
    let finding = compare(&subject, &oracle, plan).expect_err("one of them knows no idle times").to_string();
    println!("{finding}");
    assert!(
        [", 2 of ", ", 3 of "].iter().any(|kept| finding.contains(kept)) && finding.contains("policy"),
        "a key, made in one step or two, and a question about it:\n{finding}"
    );
}
