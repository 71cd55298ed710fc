//! DUMP, RESTORE and MIGRATE: options, their order and their errors.
//!
//! DUMP's payloads differ between servers, so payloads for RESTORE are made here: a value of each type, or
//! bytes that no server accepts. Other tests cover values that pass between servers, and payloads that only
//! some servers refuse.

use super::make::{Maker, args};
use super::{Args, Family};
use crate::payload::seal;

#[rustfmt::skip]
pub(super) const FAMILY: Family = Family {
    name: "dumps",
    weight: 30,
    only: None,
    commands: &[(4, dump), (20, restore), (2, migrate)],
    scenes: &[(4, read_back)],
};

/// Values, in the oldest encodings, which all servers read.
#[rustfmt::skip]
const BODIES: &[&[u8]] = &[
    b"\x00\x00",
    b"\x00\x05hello",
    b"\x00\xc0\x7b",
    b"\x00\xc1\xd2\x04",
    b"\x00\xc3\x09\x40\x64\x01aa\xe0\x57\x00\x01aa",
    b"\x01\x02\x01a\x01b",
    b"\x02\x03\x01a\x01b\x01c",
    b"\x0b\x0c\x02\x00\x00\x00\x02\x00\x00\x00\x01\x00\x02\x00",
    b"\x03\x01\x01a\x031.5",
    b"\x05\x02\x01a\x00\x00\x00\x00\x00\x00\xf8\x3f\x01b\x00\x00\x00\x00\x00\x00\xf0\x7f",
    b"\x04\x01\x01f\x01v",
];

/// Bodies without a type, too short, empty, or of an unknown type. They lack more than the ten bytes of the
/// payload's end, which Redis would read as a part of the value.
const NO_BODIES: &[&[u8]] =
    &[b"", b"\x00", b"\x00\x15hel", b"\x02\x00", b"\x04\x01\x01f", b"\xff\x01a", b"\x08\x01a"];

fn payload(make: &mut Maker) -> Vec<u8> {
    let body = BODIES[make.random.below(BODIES.len())];
    match make.random.below(20) {
        0 => make.value(),
        1 => seal(NO_BODIES[make.random.below(NO_BODIES.len())], 10),
        2 => seal(body, [60, 100, u16::MAX][make.random.below(3)]),
        3 => {
            let mut payload = seal(body, 10);
            let at = make.random.below(payload.len());
            payload[at] ^= 1 << make.random.below(8);
            payload
        }
        4 => {
            let payload = seal(body, 10);
            payload[..make.random.below(payload.len())].to_vec()
        }
        _ => seal(body, [6, 9, 10][make.random.below(3)]),
    }
}

fn dump(make: &mut Maker) -> Args {
    args!["DUMP", make.key()]
}

fn restore(make: &mut Maker) -> Args {
    let is_absolute = make.chance(30);
    let mut ttl = match make.random.below(10) {
        0..5 => "0".into(),
        _ if is_absolute => make.moment_ms(),
        _ => make.ms_to_live(),
    };
    // A deadline beyond all times counts as past in the reference servers, which lose the key; Evenkeel
    // refuses it.
    if ttl == i64::MAX.to_string().as_bytes() {
        ttl = "9223372036854775808".into();
    }
    let mut args = args!["RESTORE", make.key(), ttl, payload(make)];
    if is_absolute {
        args.push(make.word(&["ABSTTL"]));
    }
    if make.chance(60) {
        args.push(make.word(&["REPLACE"]));
    }
    for _ in 0..2 {
        match make.random.below(8) {
            0 => args.extend(args![make.word(&["IDLETIME"]), make.int()]),
            1 => args.extend(args![make.word(&["FREQ"]), make.int()]),
            2 => args.push(make.word(&["REPLACE", "ABSTTL", "IDLETIME", "FREQ", "NX", ""])),
            _ => {}
        }
    }
    args
}

/// MIGRATE to a port without a listener.
fn migrate(make: &mut Maker) -> Args {
    let mut args = args!["MIGRATE", "127.0.0.1", "1", make.key(), make.word(&["0", "0", "1", "abc"])];
    args.push(make.word(&["100", "0", "-1", "abc"]));
    for _ in 0..make.random.below(3) {
        match make.random.below(5) {
            0 => args.push(make.word(&["COPY"])),
            1 => args.push(make.word(&["REPLACE"])),
            2 => args.extend(args![make.word(&["AUTH"]), "password"]),
            3 => args.extend(args![make.word(&["AUTH2"]), "user", "password"]),
            _ => args.push(make.word(&["AUTH", "AUTH2", "NX", ""])),
        }
    }
    if make.chance(30) {
        args[3] = b"".to_vec();
        args.push(make.word(&["KEYS"]));
        args.extend(make.keys(3));
    }
    args
}

/// Asks for the state of a key.
fn read_back(make: &mut Maker) {
    let key = make.key();
    let question = match make.random.below(8) {
        0 => args!["GET", key.clone()],
        1 => args!["LRANGE", key.clone(), "0", "-1"],
        2 => args!["SMEMBERS", key.clone()],
        3 => args!["ZRANGE", key.clone(), "0", "-1", "WITHSCORES"],
        4 => args!["HGETALL", key.clone()],
        5 => args!["OBJECT", "IDLETIME", key.clone()],
        6 => args!["OBJECT", "ENCODING", key.clone()],
        _ => args!["PEXPIRETIME", key.clone()],
    };
    make.command(question);
    make.command(args!["TYPE", key.clone()]);
    make.command(args!["PTTL", key]);
}
