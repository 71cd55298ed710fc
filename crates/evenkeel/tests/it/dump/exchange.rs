//! Values pass between Evenkeel and real servers, both ways, and between two Evenkeel servers.

use evenkeel_testkit::{Client, Program, Reference, Server};

use super::content::{Depth, content};
use super::samples::{Needs, Sample, all};
use super::{build, dump, restore};
use crate::{program, start};

/// Payloads are checked completely before they are accepted.
const STRICT: [&str; 2] = ["--sanitize-dump-payload", "yes"];

/// The newest version of the format that a server accepts.
fn newest(program: &Program) -> u16 {
    if program.reference() == Some(Reference::Redis) { 10 } else { 80 }
}

fn version(payload: &[u8]) -> u16 {
    let at = payload.len() - 10;
    u16::from_le_bytes([payload[at], payload[at + 1]])
}

/// The comparison's scope with a server of this version.
fn depth(newest: u16) -> Depth {
    if newest < 80 { Depth::Common } else { Depth::Newest }
}

/// Evenkeel writes the lowest sufficient version, which older servers read; a reference server writes its own
/// version.
fn oracle_for_us(reference: Reference) -> Option<Program> {
    Program::oracle(reference).filter(|_| program().reference().is_none())
}

/// Creates the value on the first server, and transfers it to the second and back.
fn check_transfer(sample: &Sample, from: &mut Client, to: &mut Client, newest_read: u16) {
    build(from, sample);
    let expected = content(from, "v", depth(newest_read));
    let payload = dump(from, "v");
    let reply = restore(to, "w", &payload);
    if version(&payload) > newest_read {
        assert!(sample.needs != Needs::Nothing, "{}: version {}", sample.name, version(&payload));
        assert!(reply.to_string().contains("version or checksum"), "{}: {reply}", sample.name);
        return;
    }
    assert_eq!(reply.to_string(), "OK", "{}", sample.name);
    assert!(content(to, "w", depth(newest_read)) == expected, "{}", sample.name);
    let back = dump(to, "w");
    assert_eq!(restore(from, "back", &back).to_string(), "OK", "{}", sample.name);
    assert!(content(from, "back", depth(newest_read)) == expected, "{} back again", sample.name);
}

fn both_ways(reference: Reference) {
    let Some(oracle) = oracle_for_us(reference) else { return };
    let newest_read = newest(&oracle).min(newest(&program()));
    let (oracle, mut subject) = (Server::start(&oracle, &STRICT), start(&STRICT));
    let (mut theirs, mut ours) = (oracle.connect(), subject.connect());
    for sample in all() {
        if sample.needs == Needs::FieldExpiry && newest_read < 80 {
            continue;
        }
        check_transfer(&sample, &mut ours, &mut theirs, newest_read);
        check_transfer(&sample, &mut theirs, &mut ours, newest_read);
    }
    subject.assert_healthy();
}

#[test]
fn values_move_between_redis_and_evenkeel() {
    both_ways(Reference::Redis);
}

#[test]
fn values_move_between_valkey_and_evenkeel() {
    both_ways(Reference::Valkey);
}

#[test]
fn values_move_between_two_evenkeel_servers_without_loss() {
    let newest_read = newest(&program());
    let (one, mut other) = (start(&STRICT), start(&STRICT));
    let (mut from, mut to) = (one.connect(), other.connect());
    for sample in all().iter().filter(|sample| sample.needs != Needs::FieldExpiry || newest_read >= 80) {
        check_transfer(sample, &mut from, &mut to, newest_read);
    }
    other.assert_healthy();
}

/// Values that another thread reads and writes.
#[test]
fn large_values_move_between_servers() {
    const COUNT: usize = 100_000;
    let references = [Reference::Redis, Reference::Valkey].into_iter().filter_map(oracle_for_us);
    let mut subject = start(&STRICT);
    let mut ours = subject.connect();
    let word =
        |number: usize| format!("{:x}", (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)).into_bytes();
    let fill = |command: &str, per_element: usize| {
        let args = [command.as_bytes().to_vec(), b"v".to_vec()].into_iter();
        let rest = (0..COUNT).flat_map(|number| (0..per_element).map(move |at| (number, at)));
        let rest = rest.map(|(number, at)| match (command, at) {
            ("ZADD", 0) => number.to_string().into_bytes(),
            _ => word(number * per_element + at),
        });
        args.chain(rest).collect::<Vec<_>>()
    };
    let string = vec![b"SET".to_vec(), b"v".to_vec(), (0..COUNT).flat_map(word).collect()];
    let entries = (1..=COUNT / 4).map(|n| {
        vec![b"XADD".to_vec(), b"v".to_vec(), format!("{n}-0").into_bytes(), b"f".to_vec(), word(n)]
    });
    let samples = [
        vec![string],
        vec![fill("RPUSH", 1)],
        vec![fill("SADD", 1)],
        vec![fill("ZADD", 2)],
        vec![fill("HSET", 2)],
        entries.collect(),
    ];
    for reference in references {
        let newest_read = newest(&reference);
        let reference = Server::start(&reference, &STRICT);
        let mut theirs = reference.connect();
        for commands in samples.iter().cloned() {
            let name = format!("large {}", String::from_utf8_lossy(&commands[0][0]));
            let sample = Sample { name, commands, needs: Needs::Nothing };
            check_transfer(&sample, &mut ours, &mut theirs, newest_read);
            check_transfer(&sample, &mut theirs, &mut ours, newest_read);
        }
    }
    subject.assert_healthy();
}
