//! Sends the same random commands to Evenkeel and to a reference server: every reply byte must be the same.

use evenkeel_testkit::differential::{Plan, compare};
use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Program, Reference, Server};

use crate::{program, start};

/// The seed of a reproducible run: a change of behaviour shows in the commit that made it.
const FIXED_SEED: u64 = 20_260_101;

/// Settings of both servers that make sets of a few members change their form. Redis 7.0 has no small sets of
/// texts.
fn thresholds(reference: Reference) -> (Vec<&'static str>, Vec<&'static str>) {
    let intset = vec!["--set-max-intset-entries", "16"];
    let listpack = |entries| [&intset[..], &["--set-max-listpack-entries", entries]].concat();
    match reference {
        Reference::Redis if program().reference() == Some(Reference::Redis) => (intset.clone(), intset),
        Reference::Redis => (listpack("0"), intset),
        _ => (listpack("12"), listpack("12")),
    }
}

fn same_as(reference: Reference, seed: u64, commands: usize) {
    let Some(oracle) = Program::oracle(reference) else { return };
    let (subject_is, oracle_is) = thresholds(reference);
    let oracle = Server::start(&oracle, &oracle_is);
    let mut subject = start(&subject_is);
    // The tests themselves can be tested with redis-server in Evenkeel's place.
    let except: &[&str] = if program().reference() == Some(Reference::Redis) {
        &["strings-valkey", "hashes-valkey", "sorted-sets-valkey", "streams-valkey"]
    } else {
        &[]
    };
    match compare(&subject, &oracle, Plan { seed, commands, oracle: reference, except }) {
        Ok(summary) => println!("{summary}"),
        Err(finding) => panic!("{finding}"),
    }
    subject.assert_healthy();
}

#[test]
fn redis_answers_the_same_to_a_fixed_seed() {
    same_as(Reference::Redis, FIXED_SEED, 30_000);
}

#[test]
fn redis_answers_the_same_to_a_fresh_seed() {
    same_as(Reference::Redis, fresh_seed(), 30_000);
}

#[test]
fn valkey_answers_the_same_to_a_fixed_seed() {
    same_as(Reference::Valkey, FIXED_SEED, 15_000);
}

#[test]
fn valkey_answers_the_same_to_a_fresh_seed() {
    same_as(Reference::Valkey, fresh_seed(), 15_000);
}
