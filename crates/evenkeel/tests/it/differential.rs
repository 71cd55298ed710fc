//! Sends the same random commands to Evenkeel and to a reference server: every reply byte must be the same.

use evenkeel_testkit::differential::{Plan, compare};
use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Program, Reference, Server};

use crate::start;

/// The seed of a reproducible run: a change of behaviour shows in the commit that made it.
const FIXED_SEED: u64 = 20_260_101;

/// Settings of both servers that make sets of a few members change their form.
const THRESHOLDS: [&str; 4] = ["--set-max-intset-entries", "16", "--set-max-listpack-entries", "12"];

/// Another number of commands than [`COMMANDS`]: some differences show once in a million commands.
const COMMANDS_VARIABLE: &str = "EVENKEEL_COMMANDS";
const COMMANDS: usize = 45_000;

fn same_as(reference: Reference, seed: u64) {
    let commands = std::env::var(COMMANDS_VARIABLE)
        .map_or(COMMANDS, |text| text.parse().expect("EVENKEEL_COMMANDS is a decimal number"));
    let Some(oracle) = Program::oracle(reference) else { return };
    let oracle = Server::start(&oracle, &THRESHOLDS);
    let mut subject = start(&THRESHOLDS);
    match compare(&subject, &oracle, Plan { seed, commands, oracle: reference, except: &[] }) {
        Ok(summary) => println!("{summary}"),
        Err(finding) => panic!("{finding}"),
    }
    subject.assert_healthy();
}

#[test]
fn valkey_answers_the_same_to_a_fixed_seed() {
    same_as(Reference::Valkey, FIXED_SEED);
}

#[test]
fn valkey_answers_the_same_to_a_fresh_seed() {
    same_as(Reference::Valkey, fresh_seed());
}

#[test]
fn redis_answers_the_same_to_a_fixed_seed() {
    same_as(Reference::Redis8, FIXED_SEED);
}

#[test]
fn redis_answers_the_same_to_a_fresh_seed() {
    same_as(Reference::Redis8, fresh_seed());
}
