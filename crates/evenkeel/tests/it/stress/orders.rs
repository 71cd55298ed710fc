//! Linearizability: concurrent operations on a single key have results that some sequential order explains.

use evenkeel_resp::value::Value;
use evenkeel_testkit::history::{Op, Recorder, assert_linearizable};

use super::{Member, crowd};
use crate::start;

/// Few keys, so that clients meet on each, but too many for a single slot lock to serialize all operations.
const KEYS: usize = 12;

/// Operations per client. The search for an order keeps a bit per operation of the key for each step.
const OPERATIONS: u64 = 4_000;

fn number(reply: &Value) -> Option<i64> {
    reply.as_bytes().map(|bytes| String::from_utf8_lossy(bytes).parse().expect("a number"))
}

fn work(member: &mut Member<'_>, recorder: &Recorder) {
    while member.goes_on() && member.turns < OPERATIONS {
        let (key, value) = (member.random.below(KEYS) as u64, member.random.below(1_000_000) as i64);
        let name = format!("key:{key}");
        let (choice, value_text) = (member.random.below(6), value.to_string());
        let words: Vec<&str> = match choice {
            0 => vec!["SET", &name, &value_text],
            1 => vec!["SET", &name, &value_text, "GET"],
            2 => vec!["DEL", &name],
            3 => vec!["INCRBY", &name, &value_text],
            4 => vec!["EVAL", "return redis.call('get', KEYS[1])", "1", &name],
            _ => vec!["GET", &name],
        };
        let called = recorder.begin();
        let reply = member.client.call(&words);
        let op = match choice {
            0 => Op::Set(value),
            1 => Op::Swap(value, number(&reply)),
            2 => Op::Delete(reply.as_int() == Some(1)),
            3 => Op::Add(value, reply.as_int().expect("a number")),
            _ => Op::Get(number(&reply)),
        };
        recorder.end(called, key, op);
    }
}

#[test]
fn single_keys_are_linearizable() {
    let recorder = Recorder::default();
    let mut server = start(&["--threads", "4"]);
    let turns = crowd(&mut server, &[(8, &|member: &mut Member<'_>| work(member, &recorder))]);
    assert!(turns > 1_000, "{turns}");
    assert_linearizable(recorder);
}
