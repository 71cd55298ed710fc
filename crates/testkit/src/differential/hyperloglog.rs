//! HyperLogLogs, read back byte by byte: the bytes depend on how a value came about.
//!
//! Most keys are reserved for this family, since nearly every other command would spoil them; some commands
//! use the common keys. Corrupt values get single elements only: of several elements, Redis keeps the
//! elements before the failing element.

use super::make::{Maker, args};
use super::{Args, Family};

#[rustfmt::skip]
pub(super) const FAMILY: Family = Family {
    name: "hyperloglog",
    weight: 40,
    only: None,
    commands: &[(12, pfadd), (6, pfcount), (5, pfmerge), (3, pfdebug), (8, read_back)],
    scenes: &[(3, fill), (2, corrupt), (2, ragged), (1, limit)],
};

/// `plain` is a string of any kind; no command adds to `none` on purpose.
const KEYS: &[&str] = &["h1", "h2", "h3", "h4", "{h}5", "{h}6", "plain", "none"];

/// Elements added by one step of filling: enough for a few hundred bytes.
const FILL_MAX: usize = 200;

/// The bytes before the registers.
const HEADER: &[u8] = b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80";

const REGISTERS: usize = 16_384;

fn key(make: &mut Maker) -> Vec<u8> {
    match make.random.below(30) {
        0 => make.key(),
        1 => b"plain".into(),
        _ => make.word(KEYS),
    }
}

fn element(make: &mut Maker) -> Vec<u8> {
    match make.random.below(10) {
        0 => make.value(),
        1..5 => make.random.between(0, 50).to_string().into(),
        _ => make.random.between(0, 1_000_000).to_string().into(),
    }
}

fn pfadd(make: &mut Maker) -> Args {
    let (key, count) = (key(make), [0, 1, 1, 1, 2, 5, 20][make.random.below(7)]);
    let is_own = KEYS.iter().any(|own| own.as_bytes() == key);
    let count = if is_own { count } else { count.min(1) };
    args!["PFADD", key].into_iter().chain((0..count).map(|_| element(make))).collect()
}

fn keys(make: &mut Maker) -> Args {
    (0..make.random.between(1, 4)).map(|_| key(make)).collect()
}

fn pfcount(make: &mut Maker) -> Args {
    if make.chance(50) { args!["PFCOUNT", key(make)] } else { [args!["PFCOUNT"], keys(make)].concat() }
}

fn pfmerge(make: &mut Maker) -> Args {
    [args!["PFMERGE"], keys(make)].concat()
}

fn pfdebug(make: &mut Maker) -> Args {
    let what =
        ["GETREG", "DECODE", "DECODE", "ENCODING", "ENCODING", "TODENSE", "decode", "SPARSE", "x\r\ny"];
    args!["PFDEBUG", make.word(&what), key(make)]
}

/// Reads a value as a string.
fn read_back(make: &mut Maker) -> Args {
    match make.random.below(10) {
        0 => args!["DEL", key(make)],
        1 => args!["OBJECT", "ENCODING", key(make)],
        2 => args!["GETRANGE", key(make), "0", "15"],
        3 => args!["SET", "plain", make.value()],
        _ => args!["GET", key(make)],
    }
}

/// Adds many elements, so that the value becomes dense, or nearly.
fn fill(make: &mut Maker) {
    let key = make.word(&KEYS[..4]);
    for _ in 0..make.random.below(8) {
        let count = make.random.below(FILL_MAX);
        let elements = (0..count).map(|_| make.random.between(0, 100_000).to_string().into());
        let command = args!["PFADD", key.clone()].into_iter().chain(elements.collect::<Args>()).collect();
        make.command(command);
    }
    make.command(args!["PFDEBUG", "ENCODING", key.clone()]);
    make.command(args!["GET", key]);
}

/// Overwrites or appends a few bytes. An appended opcode has a byte behind it: of an opcode cut off at the
/// end, Redis reads a byte beyond the value.
fn corrupt(make: &mut Maker) {
    let key = make.word(&["bad", "h1", "h2"]);
    let add = args!["PFADD", key.clone(), element(make), element(make)];
    make.command(add);
    for _ in 0..make.random.between(1, 3) {
        let byte = vec![make.random.draw() as u8];
        match make.random.below(5) {
            0 => make.command(args!["APPEND", key.clone(), [byte, vec![0]].concat()]),
            1 => {
                let at = make.random.below(HEADER.len()).to_string();
                make.command(args!["SETRANGE", key.clone(), at, byte]);
            }
            _ => {
                let at = make.random.between(16, 19).to_string();
                make.command(args!["SETRANGE", key.clone(), at, byte]);
                make.command(args!["APPEND", key.clone(), b"\0".to_vec()]);
            }
        }
    }
    use_up(make, key);
}

/// Makes run lengths that no server writes: adjacent runs that could be merged, zeros in pieces.
fn ragged(make: &mut Maker) {
    let (key, mut value, mut left) = (make.word(&["bad", "h3"]), HEADER.to_vec(), REGISTERS);
    for _ in 0..make.random.below(60) {
        let len = make.random.below(4) + 1;
        let value_bits = 0x80 | make.random.below(3) << 2;
        value.push(if make.chance(20) { len - 1 } else { value_bits | (len - 1) } as u8);
        left -= len;
    }
    // Sometimes the long run at the end is a register too long or too short.
    let last = left - if make.chance(10) { make.random.below(2) } else { 1 };
    value.extend([0x40 | (last >> 8) as u8, last as u8]);
    make.command(args!["SET", key.clone(), value]);
    use_up(make, key);
}

/// Runs every command on a value that may be corrupt, and removes it.
fn use_up(make: &mut Maker, key: Vec<u8>) {
    for _ in 0..make.random.below(12) {
        let command = match make.random.below(8) {
            0 => args!["PFCOUNT", key.clone()],
            1 => args!["PFCOUNT", key.clone(), "h1"],
            2 => args!["PFMERGE", key.clone(), "h1"],
            3 => args!["PFMERGE", "h1", key.clone()],
            4 => args!["PFDEBUG", make.word(&["DECODE", "GETREG", "TODENSE", "ENCODING"]), key.clone()],
            _ => args!["PFADD", key.clone(), element(make)],
        };
        make.command(command);
        make.command(args!["GET", key.clone()]);
    }
    make.command(args!["DEL", key]);
}

/// Values become dense earlier or later. The limit is restored at once: the next episode does not restart the
/// servers.
fn limit(make: &mut Maker) {
    let bytes = make.word(&["0", "18", "30", "100", "100000"]);
    make.command(args!["CONFIG", "SET", "hll-sparse-max-bytes", bytes]);
    for _ in 0..make.random.below(6) {
        let (add, read_back) = (pfadd(make), args!["GET", make.word(KEYS)]);
        make.command(add);
        make.command(read_back);
    }
    make.command(args!["CONFIG", "SET", "hll-sparse-max-bytes", "3000"]);
}
